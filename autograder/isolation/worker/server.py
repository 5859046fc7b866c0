"""The fork server: imports torch once, then forks a fresh process for every exercise that is judged.

It holds no secret and never sees one, because a later child inherits its memory: what a child is to run, and what it
answers, pass between the judge and that child on a socket of their own. The server forks the child, kills whatever is
left of it when the judge says so, and wipes what it wrote.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import os
import resource
import select
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

import torch

from autograder.isolation.worker import layout, running, wire

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER = 1, 4, 36
PRIVATE = os.environ.get("MLA_PRIVATE") == "1"  # the processes, /tmp and /dev/shm in sight are all this server's
TASKS = os.environ.get("MLA_TASKS")  # a module with what a process of this kind does beside running a program
MAX_PROCESSES = 64
WATCH_SECONDS = 0.05


def main(fd: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    _warm_up()
    gc.freeze()  # a collection in a child would touch, and so copy, all that was imported
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    _prctl(PR_SET_DUMPABLE, 0)
    judge = socket.socket(fileno=fd)
    judge.sendall(wire.encode({"ready": True}))
    while True:
        data, channels, _, _ = socket.recv_fds(judge, 4096, 1)
        if not channels:
            return
        judge.sendall(wire.encode(serve(judge, wire.decode(data), channels[0])))


def _warm_up() -> None:
    """Import what torch leaves until first use, and what the tasks need.

    torch runs on one thread here: a fork copies no other, and what another had locked would stay locked.
    """
    if TASKS:
        importlib.import_module(TASKS).warm_up()
    with running.forbidding(["nothing"]):
        torch.einsum("i,i->", torch.ones(1), torch.ones(1)).add(1)


def serve(judge: socket.socket, limits: dict[str, Any], channel: int) -> dict[str, Any]:
    """Fork a child that talks with the judge on `channel`; end it at the judge's next byte and say how that went."""
    directory = tempfile.mkdtemp(prefix="work-")
    os.set_inheritable(channel, False)  # a command that the child starts would hold it open
    child = os.fork()
    if child == 0:
        try:
            os.closerange(3, channel)
            os.closerange(channel + 1, 4096)
            request = wire.receive(socket.socket(fileno=os.dup(channel)))
            request |= {"cases": layout.unpacked(request.get("cases", []))}  # no part of what it may use
            _confine(limits, directory)
            _work(request, channel)
        finally:
            os._exit(0)
    os.close(channel)
    crowded = False
    while not crowded and not select.select([judge], [], [], WATCH_SECONDS)[0]:
        crowded = PRIVATE and sum(name.isdigit() for name in os.listdir("/proc")) > MAX_PROCESSES
    status = _kill(child)
    judge.recv(1)
    killed = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    return {"signal": killed, "crowded": crowded, "clean": _clean(directory)}


def _kill(child: int) -> int:
    """Kill the child, its session, and every orphan that the subreaper inherits; return the child's wait status."""
    status, mine = 0, {child}
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child, signal.SIGKILL)
    while True:
        if os.getpid() == 1:  # all other processes of the namespace in one step, which no fork can outrun
            with contextlib.suppress(ProcessLookupError):
                os.kill(-1, signal.SIGKILL)
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


def _clean(directory: str) -> bool:
    """Remove what the child wrote; return whether nothing is left for a later one to find."""
    try:
        shutil.rmtree(directory, ignore_errors=True)
        if not PRIVATE:
            return not os.path.exists(directory)
        for entry in _entries():
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path, ignore_errors=True)
            else:
                os.unlink(entry.path)
        return not _entries() and not any(_rows(f"/proc/sysvipc/{kind}") for kind in ("msg", "sem", "shm"))
    except (OSError, RecursionError):
        return False


def _entries() -> list[os.DirEntry]:
    """Return what lies in /tmp and /dev/shm, but for what the sandbox bound there."""
    bound = {os.environ["PYTHONPATH"], sys.prefix, sys.base_prefix}
    return [entry for root in ("/tmp", "/dev/shm") for entry in _beside(root, bound)]


def _beside(folder: str, bound: set[str]) -> Iterator[os.DirEntry]:
    for entry in os.scandir(folder):
        if any(path.startswith(f"{entry.path}/") for path in bound):
            yield from _beside(entry.path, bound)
        elif entry.path not in bound:
            yield entry


def _rows(table: str) -> int:
    try:
        with open(table) as file:
            return len(file.readlines()) - 1  # less the heading
    except OSError:
        return 0


def _confine(limits: dict[str, Any], directory: str) -> None:
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    os.chdir(directory)
    os.environ.update(HOME=directory, TMPDIR=directory)
    tempfile.tempdir = directory
    seconds = int(limits["seconds"]) + 1
    _limit(resource.RLIMIT_CPU, seconds, seconds + 1)  # the soft limit's signal names the cause
    _limit(resource.RLIMIT_FSIZE, 64 << 20)
    _limit(resource.RLIMIT_CORE, 0)
    if limits["memory"]:  # CUDA maps more address space than any limit would leave it
        _limit(resource.RLIMIT_AS, _address_space() + limits["memory"])
    if PRIVATE:
        _limit(resource.RLIMIT_NPROC, 4 * MAX_PROCESSES)  # threads count too


def _limit(which: int, soft: int, hard: int | None = None) -> None:
    with contextlib.suppress(ValueError, OSError):  # macOS refuses some; the time limit still holds
        resource.setrlimit(which, (soft, soft if hard is None else hard))


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
    """Run the program, then the entry on every case; write one message for each thing that happens.

    A request with a `task` is the task module's, and so is each case of one with `record`.
    """

    def send(data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(out, rest) :]

    tasks = importlib.import_module(TASKS) if TASKS else None
    if "task" in request:
        tasks.perform(request, out, send)
        return
    entry = running.entry_of(request, send)
    if entry is None:
        return
    case = tasks.record if "record" in request else running.case
    for index, arguments in enumerate(request["cases"]):
        send(case(request, {"event": "case", "index": index}, entry, arguments))


if __name__ == "__main__":
    main(int(sys.argv[1]))
