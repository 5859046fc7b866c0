"""Start the fork server in a sandbox and send it work: the judge's end of `worker/server.py`."""

from __future__ import annotations

import functools
import os
import shutil
import socket
import subprocess
import sys
import sysconfig
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

import mla_ref
from autograder.worker import server, wire

START_SECONDS = 120.0
GRACE_SECONDS = 5.0


class SandboxError(RuntimeError):
    """The sandbox itself failed: a fault of the grader or its machine, not of the code that ran in it."""


class ServerLost(SandboxError):
    """The fork server went away in the middle of a request."""


@dataclass(frozen=True)
class Limits:
    """What one exercise may use: wall-clock seconds, bytes of memory beyond torch itself, bytes of reply."""

    seconds: float = 10.0
    memory: int = 512 << 20
    reply_bytes: int = 128 << 20


@dataclass
class Reply:
    """How a child ended ("exit", "time", "flood"; the signal that killed it, or 0) and the messages it sent."""

    ended: str
    signal: int
    messages: list[dict[str, Any]] = field(default_factory=list)
    malformed: str | None = None


class Sandbox:
    """A fork server, isolated by bubblewrap where that works, and by process limits alone where it does not.

    Use as a context manager, from one thread. The server starts on the first request and again after it was lost.
    """

    def __init__(self, isolation: str | None = None):
        self.isolation = isolation or default_isolation()
        self._process: subprocess.Popen | None = None
        self._socket: socket.socket | None = None
        self._stage: tempfile.TemporaryDirectory | None = None

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def run(self, request: dict[str, Any], limits: Limits) -> Reply:
        """Run one request (`program`, `entry`, `driver`, `forbidden`, `cases`) in a fresh process.

        Raises ServerLost if the server dies or does not answer in time, SandboxError if it cannot be started.
        """
        if self._process is None:
            self._start()
        limits_sent = {"seconds": limits.seconds, "memory": limits.memory, "reply_bytes": limits.reply_bytes}
        try:
            self._socket.settimeout(limits.seconds + GRACE_SECONDS)
            self._socket.sendall(wire.encode({**request, "limits": limits_sent}))
            answer = server.receive(self._socket)
        except (OSError, wire.WireError) as error:
            self.close()
            raise ServerLost(f"the worker's server did not answer: {error}") from error
        if answer is None:
            self.close()
            raise ServerLost("the worker's server ended in the middle of a request")
        return _read_reply(answer)

    def _start(self) -> None:
        self._stage = tempfile.TemporaryDirectory(prefix="mla-stage-")
        stage = Path(self._stage.name)
        stage_packages(stage)
        ours, theirs = socket.socketpair()
        fd = theirs.fileno()
        command = [sys.executable, "-B", "-m", "autograder.worker.server", str(fd)]
        environment = {
            "PATH": os.environ.get("PATH", os.defpath),
            "PYTHONPATH": str(stage),
            "PYTHONDONTWRITEBYTECODE": "1",
            "LANG": "C.UTF-8",
            "OMP_NUM_THREADS": "1",
            "MKL_NUM_THREADS": "1",
        }
        if self.isolation == "bubblewrap":
            environment["MLA_PRIVATE_TMP"] = "1"
            command = _bubblewrap(stage, environment) + command
        self._process = subprocess.Popen(
            command, pass_fds=[fd], cwd=stage, env=environment, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        theirs.close()
        self._socket = ours
        ours.settimeout(START_SECONDS)
        try:
            ready = server.receive(ours)
        except (OSError, wire.WireError):
            ready = None
        if ready is None:
            self._process.kill()
            message = self._process.stderr.read().decode(errors="replace").strip()
            self.close()
            raise SandboxError(f"the worker's server did not start: {message or 'no message'}")

    def close(self) -> None:
        """End the server and everything it started."""
        if self._socket is not None:
            self._socket.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process.stderr.close()
        if self._stage is not None:
            self._stage.cleanup()
        self._process = self._socket = self._stage = None


def _read_reply(answer: dict[str, Any]) -> Reply:
    blob = answer["bytes"]
    data = memoryview(blob.numpy()) if isinstance(blob, torch.Tensor) else memoryview(b"")
    reply = Reply(answer["ended"], answer["signal"])
    try:
        while data:
            size = wire.message_size(data)
            if size is None or size > len(data):
                break  # cut short by a limit
            message = wire.decode(data[:size])
            if not isinstance(message, dict):
                raise wire.WireError("a message that is not a table")
            reply.messages.append(message)
            data = data[size:]
    except wire.WireError as error:
        reply.malformed = str(error)
    return reply


def stage_packages(stage: Path) -> None:
    """Copy what may be imported beside a student's code: helpers of `mla_ref`, the worker, a stub of `check`."""
    source = Path(mla_ref.__file__).parent
    package = stage / "mla_ref"
    package.mkdir()
    for module in ("__init__", *mla_ref.HELPER_MODULES):
        shutil.copy(source / f"{module}.py", package)
    worker = Path(server.__file__).parent
    shutil.copytree(worker, stage / "autograder" / "worker", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(worker / "stub.py", stage / "autograder" / "__init__.py")


def _bubblewrap(stage: Path, environment: dict[str, str]) -> list[str]:
    """Return the prefix that hides the network, other processes, and every file but the interpreter's and the stage."""
    command = ["bwrap", "--unshare-all", "--unshare-user", "--disable-userns", "--die-with-parent", "--new-session"]
    command += ["--uid", "65534", "--gid", "65534", "--cap-drop", "ALL", "--clearenv"]
    for key, value in environment.items():
        command += ["--setenv", key, value]
    command += ["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"]
    system = ["/usr", "/lib", "/lib64", "/bin", "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d"]
    own = {sys.prefix, sys.base_prefix, str(Path(sys.executable).resolve().parent.parent)}
    for path in [*system, *sorted(own), str(stage)]:
        command += ["--ro-bind-try", path, path]
    for hidden in _installed_copies():
        command += ["--tmpfs", str(hidden)]
    return [*command, "--chdir", "/tmp", "--"]


def _installed_copies() -> list[Path]:
    """Return the folders of this project's packages inside the bound interpreter, where the answers would be read."""
    site = Path(sysconfig.get_path("purelib"))
    return [site / name for name in ("mla_ref", "autograder") if (site / name).is_dir()]


@functools.cache
def default_isolation() -> str:
    """Return "bubblewrap" if it can start a process here, else "process"."""
    if sys.platform != "linux" or shutil.which("bwrap") is None:
        return "process"
    probe = ["bwrap", "--unshare-all", "--unshare-user", "--disable-userns", "--ro-bind", "/", "/", "true"]
    try:
        works = subprocess.run(probe, capture_output=True, timeout=20, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        works = False
    return "bubblewrap" if works else "process"
