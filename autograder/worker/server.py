"""The fork server: imports torch once, then forks a fresh process for every exercise that is judged.

It holds no secret. It reads a request from the judge, forks, lets the child run the student's program under limits of
time and memory, kills whatever is left, and passes on the bytes the child wrote. The judge makes sense of them.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import select
import shutil
import signal
import socket
import sys
import tempfile
import time
from typing import Any

import torch

from autograder.worker import running, wire

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER = 1, 4, 36


def main(fd: int) -> None:
    torch.set_num_threads(1)
    _warm_up()
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    _prctl(PR_SET_DUMPABLE, 0)
    judge = socket.socket(fileno=fd)
    judge.sendall(wire.encode({"ready": True}))
    while (request := receive(judge)) is not None:
        reply, blob = serve(request)
        judge.sendall(wire.encode({**reply, "bytes": torch.frombuffer(blob, dtype=torch.uint8) if blob else None}))


def _warm_up() -> None:
    """Import what torch leaves until first use. One thread, one number: nothing that a fork could break."""
    with running.forbidding(["nothing"]):
        torch.einsum("i,i->", torch.ones(1), torch.ones(1)).add(1)


def receive(sock: socket.socket) -> Any:
    """Return the next message of a socket, or None at its end."""
    data = bytearray()
    while (size := wire.message_size(data)) is None or len(data) < size:
        chunk = sock.recv(min(1 << 20, (size or wire.PREFIX.size) - len(data)))
        if not chunk:
            return None
        data += chunk
    return wire.decode(data)


def serve(request: dict[str, Any]) -> tuple[dict[str, Any], bytearray]:
    """Fork a child for one request; return how it ended and the bytes it wrote."""
    limits = request["limits"]
    directory = tempfile.mkdtemp(prefix="work-")
    readable, writable = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(readable)
            _confine(limits, directory, keep=writable)
            _work(request, writable)
        finally:
            os._exit(0)
    os.close(writable)
    try:
        blob, ended = _collect(readable, limits["seconds"], limits["reply_bytes"])
    finally:
        os.close(readable)
        status = _kill(child)
        _clean(directory)
    return {"ended": ended, "signal": os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0}, blob


def _collect(readable: int, seconds: float, limit: int) -> tuple[bytearray, str]:
    blob, deadline = bytearray(), time.monotonic() + seconds
    while True:
        ready, _, _ = select.select([readable], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            return blob, "time"
        chunk = os.read(readable, 1 << 20)
        if not chunk:
            return blob, "exit"
        blob += chunk
        if len(blob) > limit:
            return blob[:limit], "flood"


def _kill(child: int) -> int:
    """Kill the child, its session, and every orphan that the subreaper inherits; return the child's wait status."""
    status, mine = 0, {child}
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child, signal.SIGKILL)
    while True:
        for pid in mine.union(_children()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        try:
            pid, code = os.waitpid(-1, 0)
        except ChildProcessError:
            return status
        mine.discard(pid)
        if pid == child:
            status = code


def _children() -> list[int]:
    try:
        with open("/proc/thread-self/children") as file:
            return [int(pid) for pid in file.read().split()]
    except OSError:
        return []


def _clean(directory: str) -> None:
    """Remove what the child wrote; in a private /tmp, everything."""
    shutil.rmtree(directory, ignore_errors=True)
    if os.environ.get("MLA_PRIVATE_TMP"):
        for root in ("/tmp", "/dev/shm"):
            for name in os.listdir(root) if os.path.isdir(root) else ():
                path = os.path.join(root, name)
                shutil.rmtree(path, ignore_errors=True) if os.path.isdir(path) else os.unlink(path)


def _confine(limits: dict[str, Any], directory: str, keep: int) -> None:
    os.setsid()
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    os.closerange(3, keep)
    os.closerange(keep + 1, 4096)
    os.chdir(directory)
    os.environ.update(HOME=directory, TMPDIR=directory)
    tempfile.tempdir = directory
    seconds = int(limits["seconds"]) + 1
    _limit(resource.RLIMIT_CPU, seconds)
    _limit(resource.RLIMIT_FSIZE, 64 << 20)
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_AS, _address_space() + limits["memory"])


def _limit(which: int, value: int) -> None:
    with contextlib.suppress(ValueError, OSError):  # macOS refuses some; the time limit still holds
        resource.setrlimit(which, (value, value))


def _address_space() -> int:
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[0]) * resource.getpagesize()
    except OSError:
        return 8 << 30


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def _work(request: dict[str, Any], out: int) -> None:
    """Run the program, then the entry on every case; write one message for each thing that happens."""

    def send(**message: Any) -> None:
        data = memoryview(wire.encode(message))
        while data:
            data = data[os.write(out, data) :]

    namespace: dict[str, Any] = {"__name__": "__main__"}
    for cell in request["program"]:
        try:
            running.run_cell(cell["name"], cell["source"], namespace)
        except BaseException as error:
            send(event="cell", cell=cell["name"], error=running.describe_error(error))
            if cell["required"]:
                return
    entry = namespace.get(request["entry"])
    if not callable(entry):
        send(event="missing", found=type(entry).__name__)
        return
    driver = running.DRIVERS[request["driver"]]
    for index, arguments in enumerate(request["cases"]):
        given = {k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in arguments.items()}
        try:
            with running.forbidding(request["forbidden"]):
                result = driver(entry, arguments)
            message = {"result": result, "changed": running.changed(given, arguments)}
            wire.encode(message)
        except wire.WireError as error:
            message = {"unsupported": str(error)}
        except BaseException as error:
            message = {"error": running.describe_error(error)}
        send(event="case", index=index, **message)


if __name__ == "__main__":
    main(int(sys.argv[1]))
