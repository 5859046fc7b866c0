"""Start the fork server in a sandbox and send it work: the judge's end of `isolation/worker/server.py`."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import importlib.util
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import sysconfig
import tempfile
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from autograder.isolation.worker import wire
from autograder.isolation.worker.running import PATIENCE

STAGE = "mla-stage-"
START_SECONDS = 120.0
MOST_SAID = 1000  # characters of what a server that does not start says
GRACE_SECONDS = 5.0
MAX_TEXT = wire.MAX_HEADER  # bytes of JSON in all messages of a reply
GPU_SETTINGS = ("LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "CUDA_HOME", "CC")
ROOMS = Path(__file__).parents[1]
IGNORED = shutil.ignore_patterns("__pycache__")
SCRATCH = str(128 << 20)  # bytes that may be written to /tmp, and to /dev/shm
SYSTEM = ("/usr", "/lib", "/lib64", "/bin", "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d")
TELLING = ("/proc/keys", "/proc/key-users", "/proc/kallsyms", "/proc/locks")  # for everybody to read
# What of /proc is written to other than of one's own processes
SETTINGS = tuple(f"/proc/{name}" for name in ("bus", "driver/nvidia", "fs", "irq", "pressure", "sys", "sysrq-trigger"))
_OWN = re.compile(r"/proc/(\d+|sys/net)$")  # a sandbox has processes and a network of its own
UNFILTERED = (
    "the kernel filters no system calls here: students' code can change the limits and the schedule of those after it, "
    "and leave keys and queues for them. The filter needs Linux on x86-64 or 64-bit ARM, with seccomp"
)


class SandboxError(RuntimeError):
    """The sandbox itself failed: a fault of the grader or its machine, not of the code that ran in it."""


class ServerLost(SandboxError):
    """The fork server went away in the middle of a request."""


@dataclass(frozen=True)
class Limits:
    """What one exercise may use: seconds, bytes of memory beyond torch itself (0: any), bytes of reply.

    `seconds` are those of the processor, of each process, and `PATIENCE` times as many by the clock are for all: the
    verdict on an answer does not follow from what else the machine does.
    `memory` bounds the addresses of a process, and what all its processes hold, unless `held` bounds that.
    """

    seconds: float = 10.0
    memory: int = 512 << 20
    reply_bytes: int = 128 << 20
    held: int = 0


@dataclass
class Reply:
    """How a child ended ("exit", "time", "flood", "crowd", "memory"; a signal that killed it, or 0), and what it sent.

    `changed` are the arguments that changed in its memory, as the server saw: [case, name], or `shelf.EVERY`.
    """

    ended: str
    signal: int
    messages: list[dict[str, Any]] = field(default_factory=list)
    malformed: str | None = None
    changed: list[list[Any]] = field(default_factory=list)


@dataclass(frozen=True)
class Kind:
    """What a server is for.

    Attributes
    ----------
    tasks : str
        Module of what its processes do beside running a program: `warm_up()`, `perform(request, out, send)` and
        `record(request, message, entry, arguments)`. Empty for none.
    environment : mapping
        Further variables of its environment.
    gpu : bool
        Whether it sees the GPUs.
    """

    tasks: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    gpu: bool = False


PLAIN = Kind()


class Ended(RuntimeError):
    """A conversation ended before the answer: `how` is "exit", "time" or "flood"."""

    def __init__(self, how: str):
        super().__init__(how)
        self.how = how


class Talk:
    """A conversation with a fresh process, a message and an answer at a time. Made by `Sandbox.talk`."""

    def __init__(self, channel: socket.socket):
        self._channel = channel

    def ask(self, message: dict[str, Any], seconds: float, files: Sequence[int] = ()) -> dict[str, Any]:
        """Return the answer to a message; open files may go along, behind it.

        Raises
        ------
        Ended
            The process is gone, or said nothing in time, or too much.
        wire.WireError
            The answer is no message.
        """
        deadline = time.monotonic() + seconds
        data = bytearray()
        try:
            self._channel.settimeout(seconds)
            self._channel.sendall(wire.encode(message))
            if files:
                socket.send_fds(self._channel, [b"."], list(files))
            while (size := wire.message_size(data)) is None or len(data) < size:
                if size is not None and size > MAX_TEXT:
                    raise Ended("flood")
                if (left := deadline - time.monotonic()) <= 0:  # whatever arrives
                    raise Ended("time")
                self._channel.settimeout(left)
                chunk = self._channel.recv((size or wire.PREFIX.size) - len(data))
                if not chunk:
                    raise Ended("exit")
                data += chunk
        except TimeoutError:
            raise Ended("time") from None
        except (BrokenPipeError, ConnectionResetError):
            raise Ended("exit") from None
        answer = wire.decode(data)
        if not isinstance(answer, dict):
            raise wire.WireError("a message that is not a table")
        return answer


class Sandbox:
    """A fork server, isolated by bubblewrap where that works, and by process limits alone where it does not.

    Use as a context manager, from one thread. The server starts on the first request and again after it was lost.
    `helpers` are packages that the code may import (see `autograder.course.course.Course`). `hidden` are folders that
    bubblewrap keeps out of sight wherever they lie: the classroom, the course. The project's own needs no naming.
    """

    def __init__(
        self,
        isolation: str | None = None,
        kind: Kind = PLAIN,
        helpers: Sequence[str] = (),
        hidden: Sequence[str | Path] = (),
    ):
        self.isolation = isolation or default_isolation()
        self.kind = kind
        self.helpers = tuple(helpers)
        self.hidden = tuple(Path(folder) for folder in hidden)
        self._process: subprocess.Popen | None = None
        self._socket: socket.socket | None = None
        self._stage: tempfile.TemporaryDirectory | None = None
        self._lock: int | None = None

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def run(self, request: dict[str, Any], limits: Limits) -> Reply:
        """Run one request (`program`, `entry`, `driver`, `forbidden`, `cases`) in a fresh process.

        Raises ServerLost if the server dies or does not answer in time, SandboxError if it or the process cannot be
        started.
        """
        try:
            message = wire.encode(request)
        except wire.WireError as error:
            raise SandboxError(f"the request cannot be sent: {error}") from error
        return self.run_encoded(message, limits)

    def run_encoded(self, message: bytes, limits: Limits) -> Reply:
        """Run one request that is a message already. Raises as `run` does.

        Once more, if the process was killed: the system does so where memory is short, and a program that does it to
        itself does it again.
        """
        reply = self._run(message, limits)
        return self._run(message, limits) if (reply.ended, reply.signal) == ("exit", signal.SIGKILL) else reply

    def _run(self, message: bytes, limits: Limits) -> Reply:
        if self._process is None:
            self._start()
        try:
            return self._exchange(message, limits)
        except (OSError, wire.WireError) as error:
            self.close()
            raise ServerLost(f"the worker's server was lost: {error}") from error
        except BaseException:  # a later request must not find the answer to this one
            self.close()
            raise

    @contextlib.contextmanager
    def talk(self, limits: Limits) -> Iterator[Talk]:
        """Start a fresh process for the body of a `with`, to talk with; afterwards nothing of it is left.

        Raises as `run` does.
        """
        if self._process is None:
            self._start()
        ended = False
        try:
            try:
                channel = self._fork(limits)
            except OSError as error:
                raise ServerLost(f"the worker's server was lost: {error}") from error
            try:
                with channel:
                    yield Talk(channel)
            finally:
                self._finish("time")
                ended = True
        finally:
            if not ended:  # a later request must not find the answer to this one
                self.close()

    def _fork(self, limits: Limits) -> socket.socket:
        """Start a child; return the socket to talk with it."""
        channel, theirs = socket.socketpair()
        with theirs:
            held = limits.held or limits.memory
            terms = wire.encode({"seconds": limits.seconds, "memory": limits.memory, "held": held})
            self._socket.settimeout(GRACE_SECONDS)
            socket.send_fds(self._socket, [terms], [theirs.fileno()])
        return channel

    def _exchange(self, message: bytes, limits: Limits) -> Reply:
        deadline = time.monotonic() + PATIENCE * limits.seconds
        with self._fork(limits) as channel:
            data, ended = _converse(channel, message, deadline, limits.reply_bytes)
        answer = self._finish(ended)
        return replace(_read_reply(data, answer["over"] or ended, answer["signal"]), changed=answer["changed"])

    def _finish(self, ended: str) -> dict[str, Any]:
        """End the child and say how it went. Raises SandboxError if that was before any code of a student's ran."""
        try:
            self._socket.sendall(b".")
            answer = wire.receive(self._socket)
            if answer is None:
                raise OSError("it ended in the middle of a request")
        except OSError:
            if ended == "exit":  # perhaps not of the program's making
                raise
            answer = {"signal": 0, "over": "", "clean": False, "changed": [], "begun": True}
        if not answer["clean"]:
            self.close()
        if not answer["begun"]:
            raise SandboxError(
                "the process for a program ended before the program began: has the machine memory for it, and the "
                "kernel for a filter of system calls (net.core.bpf_jit_limit)?"
            )
        return answer

    def _start(self) -> None:
        try:
            self._launch()
        except BaseException:  # a later request must not find a server that is half begun
            self.close()
            raise

    def _launch(self) -> None:
        self._stage = tempfile.TemporaryDirectory(prefix=STAGE)
        stage = Path(self._stage.name)
        self._lock = os.open(stage, os.O_RDONLY)  # for as long as this process lives
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        _sweep(stage.parent)
        stage_packages(stage, self.helpers)
        ours, theirs = socket.socketpair()
        fd = theirs.fileno()
        command = [sys.executable, "-B", "-P", "-m", "autograder.isolation.worker.server", str(fd)]
        environment = {
            "PATH": os.environ.get("PATH", os.defpath),
            "PYTHONPATH": str(stage),
            "PYTHONDONTWRITEBYTECODE": "1",
            "LANG": "C.UTF-8",
            "LOGNAME": "student",  # else torch looks up a name for the number of the user, which may have none
            "OMP_NUM_THREADS": "1",
            "MKL_NUM_THREADS": "1",
            "TORCHDYNAMO_DISABLE": "1",  # under @torch.compile all runs as it was written: a compiler has no time here
            **self.kind.environment,
        }
        if self.kind.tasks:
            environment["MLA_TASKS"] = self.kind.tasks
        if self.kind.gpu:
            environment["MLA_GPU"] = "1"
            environment |= {name: os.environ[name] for name in GPU_SETTINGS if name in os.environ}
        if self.isolation == "bubblewrap":
            environment["MLA_PRIVATE"] = "1"
            hidden = [*self.hidden, *_own_folders(self.helpers)]
            command = _bubblewrap(stage, environment, hidden, gpu=self.kind.gpu) + command
        self._process = subprocess.Popen(
            command,
            pass_fds=[fd],
            cwd=stage,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,  # bubblewrap shows a terminal that it finds here as /dev/console
            stderr=subprocess.PIPE,
        )
        theirs.close()
        self._socket = ours
        ours.settimeout(START_SECONDS)
        try:
            ready = wire.receive(ours)
        except (OSError, wire.WireError):
            ready = None
        if ready is None:
            self._process.kill()
            message = self._process.stderr.read().decode(errors="replace").strip()
            said = message if len(message) < MOST_SAID else f"… {message[-MOST_SAID:]}"  # the end says what it was
            raise SandboxError(f"the worker's server did not start: {said or 'no message'}")
        if self.isolation == "bubblewrap" and not ready["filtered"]:
            warnings.warn(UNFILTERED, stacklevel=2)

    def close(self) -> None:
        """End the server and everything it started."""
        process, channel, stage, lock = self._process, self._socket, self._stage, self._lock
        self._process = self._socket = self._stage = self._lock = None  # first: it may be interrupted
        if channel is not None:
            channel.close()
        if process is not None:
            process.kill()
            process.wait()
            process.stderr.close()
        if stage is not None:
            stage.cleanup()
        if lock is not None:
            os.close(lock)


def _converse(channel: socket.socket, message: bytes, deadline: float, limit: int) -> tuple[bytearray, str]:
    """Send a message; return what comes back until the other end closes, time runs out, or it is too much."""
    data = bytearray()
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        channel.settimeout(GRACE_SECONDS)
        channel.sendall(message)
        while (left := deadline - time.monotonic()) > 0:
            channel.settimeout(left)
            try:
                chunk = channel.recv(1 << 20)
            except TimeoutError:
                break
            data += chunk
            if not chunk:
                return data, "exit"
            if len(data) > limit:
                return data[:limit], "flood"
        return data, "time"
    return data, "exit"


def _read_reply(data: bytes | bytearray, ended: str, killed: int) -> Reply:
    reply, rest, headers = Reply(ended, killed), memoryview(data), 0
    try:
        while rest:
            size = wire.message_size(rest)
            if size is None or size > len(rest):
                break  # cut short by a limit
            headers += wire.header_size(rest)
            if headers > MAX_TEXT:
                raise wire.WireError(f"more than {MAX_TEXT >> 20} MiB of text, with the notes on its operations")
            message = wire.decode(rest[:size])
            if not isinstance(message, dict):
                raise wire.WireError("a message that is not a table")
            reply.messages.append(message)
            rest = rest[size:]
    except wire.WireError as error:
        reply.malformed = str(error)
    return reply


def _sweep(folder: Path) -> None:
    """Remove the stages of judges that were killed: theirs alone are not locked."""
    for stage in folder.glob(f"{STAGE}*"):
        with contextlib.suppress(OSError):
            found = stage.lstat()
            if found.st_uid != os.getuid() or time.time() - found.st_mtime < START_SECONDS:
                continue  # another's, or about to be locked
            handle = os.open(stage, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(stage, ignore_errors=True)
            finally:
                os.close(handle)


def stage_packages(stage: Path, helpers: Sequence[str] = ()) -> None:
    """Copy what may be imported beside a student's code: helpers, the worker, a stub of `check`.

    Raises SandboxError for a helper that cannot be found.
    """
    for name in dict.fromkeys(("mla_ref", *helpers)):
        _stage_helper(stage, name, everything=name in helpers)
    for room in ("isolation", "kernels"):
        target = stage / "autograder" / room
        shutil.copytree(ROOMS / room / "worker", target / "worker", ignore=IGNORED)
        (target / "__init__.py").touch()
    shutil.copy(ROOMS / "isolation" / "worker" / "stub.py", stage / "autograder" / "__init__.py")


def _stage_helper(stage: Path, name: str, everything: bool) -> None:
    """Copy a helper: its `HELPER_MODULES` alone if it names any, else all of it.

    Unless `everything`, copy `hardware` alone: what the worker needs of `mla_ref` where that is no helper.
    """
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise SandboxError(f"the course's helper {name!r} is not installed: see helpers in solutions/course.toml")
    source = Path(spec.origin)
    if source.name != "__init__.py":
        shutil.copy(source, stage)
        return
    package = importlib.import_module(name)
    modules = getattr(package, "HELPER_MODULES", None) if everything else ("hardware",)
    if modules is None:
        shutil.copytree(source.parent, stage / name, ignore=IGNORED)
        return
    (stage / name).mkdir()
    shutil.copy(source, stage / name)
    for module in modules:
        folder = source.parent / module
        if folder.is_dir():
            shutil.copytree(folder, stage / name / module, ignore=IGNORED)
        else:
            shutil.copy(folder.with_suffix(".py"), stage / name)


def _bubblewrap(stage: Path, environment: dict[str, str], hidden: Iterable[Path], gpu: bool = False) -> list[str]:
    """Return the prefix that hides the network, other processes, and every file but the interpreter's and the stage.

    Folders in `hidden` are out of sight where they lie below one that is shown. With `gpu` it shows NVIDIA's devices,
    what the driver reads of the system, and the C compiler.
    """
    command = ["bwrap", "--unshare-all", "--unshare-user", "--disable-userns", "--die-with-parent", "--new-session"]
    command += ["--as-pid-1"]  # no signal of a descendant ends or stops the first process of a namespace
    command += ["--uid", "65534", "--gid", "65534", "--cap-drop", "ALL", "--clearenv"]
    for key, value in environment.items():
        command += ["--setenv", key, value]
    command += ["--proc", "/proc", "--dev", "/dev", "--size", SCRATCH, "--tmpfs", "/tmp"]
    for path in filter(os.path.exists, SETTINGS if gpu else ()):
        command += ["--ro-bind", path, path]
    for path in _of_the_machine():
        command += ["--ro-bind", "/dev/null", path]
    shown = [*SYSTEM, sys.prefix, sys.base_prefix, str(Path(sys.executable).resolve().parent.parent), str(stage)]
    if gpu:
        for device in sorted(Path("/dev").glob("nvidia*")):
            command += ["--dev-bind", str(device), str(device)]
        shown += ["/sys", "/sbin", "/usr/local/nvidia"]  # Triton asks /sbin/ldconfig where libcuda is
        shown += _compiler()
    else:
        command += ["--ro-bind", "/dev/null", "/dev/zero"]  # what is mapped from there is memory that nothing counts
    command += ["--size", SCRATCH, "--tmpfs", "/dev/shm", "--remount-ro", "/dev"]
    masks = _masks(shown, hidden)
    for path in sorted({*shown, *masks}, key=lambda path: path.count("/")):  # what lies deeper decides
        command += ["--tmpfs", path] if path in masks else ["--ro-bind-try", path, path]
    whole = [] if gpu else ["/proc"]  # CUDA does not start where it may not write there
    for path in [*sorted(masks), *whole, "/"]:  # the kernel's settings are root's, who may be the user outside
        command += ["--remount-ro", path]
    return [*command, "--chdir", "/tmp", "--"]


def _compiler() -> list[str]:
    """Return where the C compiler lies that Triton takes for its launchers, if not in a folder with a home below it."""
    found = next(filter(None, map(shutil.which, (os.environ.get("CC", ""), "gcc", "clang"))), None)
    folders = {path.parent.parent for path in (Path(found), Path(found).resolve())} if found else set()
    home = Path.home().resolve()
    return [str(folder) for folder in folders if not home.is_relative_to(folder) and not folder.is_relative_to(home)]


def _of_the_machine() -> list[str]:
    """Return the files in /proc that tell of what is outside: root's own, as root may be the user, and `TELLING`.

    Left out are those of processes and of the network, which the sandbox has of its own, and of other file systems
    below, which it has not.
    """
    return sorted(_told_in("/proc", os.stat("/proc").st_dev, private=False))


def _told_in(folder: str, device: int, private: bool) -> Iterator[str]:
    try:
        names = [] if _OWN.match(folder) else os.listdir(folder)
    except OSError:  # for root alone, and nobody else could read on in the sandbox either
        return
    for path in (f"{folder}/{name}" for name in names):
        with contextlib.suppress(FileNotFoundError):
            found = os.lstat(path)
            alone = private or not found.st_mode & stat.S_IROTH
            if stat.S_ISREG(found.st_mode) and (alone or path in TELLING):
                yield path
            elif stat.S_ISDIR(found.st_mode) and found.st_dev == device:
                yield from _told_in(path, device, alone)


def _masks(shown: Iterable[str], hidden: Iterable[Path]) -> set[str]:
    """Return the paths at which hidden folders would be seen.

    Raises SandboxError where Python or the system itself is in such a folder, with nothing between the two.
    """
    masks = set()
    for folder in {folder.resolve() for folder in hidden if folder.is_dir()}:
        for path in shown:
            seen = Path(path).resolve()
            if folder == seen:
                raise SandboxError(
                    f"students' code needs {path} and must not see it: move Python's environment, or what is secret, "
                    "to another folder"
                )
            if folder.is_relative_to(seen):
                masks.add(str(path / folder.relative_to(seen)))
    return masks


def _own_folders(helpers: Sequence[str]) -> list[Path]:
    """Return the folders in which this project's oracles and answers would be read: packages, or the whole checkout."""
    names = sorted({"autograder", "mla_ref", *helpers})
    packages = [Path(sysconfig.get_path("purelib")) / name for name in names]
    checkout = ROOMS.parent
    return [*packages, checkout] if (checkout / "pyproject.toml").is_file() else packages


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
