"""The fork server: imports torch once, then forks a fresh process for every exercise that is judged.

It holds no secret and never sees one, because a later child inherits its memory: what a child is to run, and what it
answers, pass between the judge and that child on a socket of their own. The server forks the child, which gives up for
good what it does not need (`confine`), and sees that it does not grow too large (`memory`). It kills whatever is left
of it when the judge says so, and wipes what it wrote.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import math
import os
import resource
import select
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, BinaryIO

import torch

from autograder.isolation.worker import confine, layout, memory, running, wire
from autograder.isolation.worker.shelf import TOLD, Shelf

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER = 1, 4, 36
PRIVATE = os.environ.get("MLA_PRIVATE") == "1"  # the processes, /tmp and /dev/shm in sight are all this server's
TASKS = os.environ.get("MLA_TASKS")  # a module with what a process of this kind does beside running a program
GPU = os.environ.get("MLA_GPU") == "1"
MAX_PROCESSES = 64
MAX_FILES = 512  # of a process; where nothing is filtered, of a user's under way in sockets: the judge needs some too
WATCH_SECONDS = 0.05
TERMS = 8 + TOLD.size  # bytes that a child tells: of memory that it holds, and of its arguments


def main(fd: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    _warm_up()
    confine.leave_keyring()
    try:
        limited = confine.ready(GPU)
    except OSError as error:
        sys.exit(str(error))
    gc.freeze()  # a collection in a child would touch, and so copy, all that was imported
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    _prctl(PR_SET_DUMPABLE, 0)
    judge = socket.socket(fileno=fd)
    judge.sendall(wire.encode({"ready": True, "filtered": limited is not None}))
    while True:
        data, channels, _, _ = socket.recv_fds(judge, 4096, 1)
        if not channels:
            return
        judge.sendall(wire.encode(serve(judge, wire.decode(data), channels[0], limited)))


def _warm_up() -> None:
    """Import what torch leaves until first use, and what the tasks need.

    torch runs on one thread here: a fork copies no other, and what another had locked would stay locked.
    """
    if TASKS:
        importlib.import_module(TASKS).warm_up()
    with running.forbidding(["nothing"]):
        torch.einsum("i,i->", torch.ones(1), torch.ones(1)).add(1)


def serve(judge: socket.socket, limits: dict[str, Any], channel: int, limited: confine.Filter | None) -> dict[str, Any]:
    """Fork a child that talks with the judge on `channel`; end it at the judge's next byte and say how that went."""
    directory = tempfile.mkdtemp(prefix="work-")
    hears, tells = os.pipe()
    os.set_inheritable(channel, False)  # a command that the child starts would hold it open
    shelf = Shelf()
    child = os.fork()
    if child == 0:
        try:
            kept = sorted({2, channel, tells, max(2, shelf.file)})
            for before, after in pairwise([*kept, 4096]):
                os.closerange(before + 1, after)
            request = wire.receive(socket.socket(fileno=os.dup(channel)))
            given = {key: layout.unpacked(request.get(key, [])) for key in ("cases", "first")}
            request |= given  # no part of what it may use
            if "record" not in request:
                request |= {"cases": shelf.placed(request["cases"])}
            terms = _confine(limits, directory, shelf)
            if limited:
                limited.install()
            os.write(tells, terms)  # the last step before a student's code may run
            os.close(tells)
            _work(request, channel)
        finally:
            os._exit(0)
    os.close(channel)
    os.close(tells)
    with open(hears, "rb") as told:
        over, before = _watch(judge, told, limits["held"])
        status, used = _kill(child)
        before = before or told.read(TERMS)
    judge.recv(1)
    changed = shelf.changed(before[8:])
    shelf.close()
    killed = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    clean = not over and _clean(directory)  # so much is gone sooner with the whole server, whose look may go on
    if killed == signal.SIGKILL and used > int(limits["seconds"]):  # it was deaf to the signal that names the cause
        over = over or "time"
    return {"signal": killed, "over": over, "clean": clean, "changed": changed, "begun": bool(before)}


def _watch(judge: socket.socket, told: BinaryIO, allowed: int) -> tuple[str, bytes]:
    """Wait for the judge's next byte; "crowd" or "memory" as soon as the child and its own go beyond that.

    Return that, and what the child told, if it was read.
    """
    before = b""
    while not select.select([judge], [], [], WATCH_SECONDS)[0]:
        if not PRIVATE:
            continue  # others' processes and files are in sight too
        if _crowded():
            return "crowd", before
        if not before and allowed and select.select([told], [], [], 0)[0]:
            before = told.read(TERMS)  # said before any code of the student's ran
        if before and memory.exceeds(int.from_bytes(before[:8], "little") + allowed):
            return "crowd" if _crowded() else "memory", before
    return "", before


def _crowded() -> bool:
    return sum(name.isdigit() for name in os.listdir("/proc")) > MAX_PROCESSES


def _kill(child: int) -> tuple[int, float]:
    """Kill the child, its session, and every orphan that the subreaper inherits.

    Return the child's wait status, and the seconds of the processor that it used.
    """
    status, used, mine, first = 0, 0.0, {child}, os.getpid() == 1
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child, signal.SIGKILL)
    if first:  # all other processes of the namespace in one step, which no fork can outrun
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)
    while True:
        for pid in () if first else mine.union(_children()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        try:
            pid, code, usage = os.wait4(-1, 0)
        except ChildProcessError:
            return status, used
        mine.discard(pid)
        if pid == child:
            status, used = code, usage.ru_utime + usage.ru_stime


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


def _confine(limits: dict[str, Any], directory: str, shelf: Shelf) -> bytes:
    """Lower what this process may use; return what to tell the server: what it holds, and its arguments."""
    told = shelf.told()  # gives back memory, so before the limit of addresses is drawn
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    os.chdir(directory)
    os.environ.update(HOME=directory, TMPDIR=directory)
    tempfile.tempdir = directory
    seconds = math.ceil(limits["seconds"]) + running.LAST
    _limit(resource.RLIMIT_CPU, seconds, seconds + 1)  # the soft limit's signal names the cause
    _limit(resource.RLIMIT_FSIZE, 64 << 20)
    _limit(resource.RLIMIT_CORE, 1)  # 0 would start the machine's handler of crashes, 1 byte is too little for that too
    if limits["memory"]:  # CUDA maps more address space than any limit would leave it
        _limit(resource.RLIMIT_AS, _address_space() + limits["memory"])
        _limit(resource.RLIMIT_NOFILE, MAX_FILES)
    if PRIVATE:
        _prctl(PR_SET_DUMPABLE, 1)  # lets the server see how much of its memory is shared
        _limit(resource.RLIMIT_NPROC, 2 * MAX_PROCESSES)  # threads count too
    return (memory.held() if PRIVATE else 0).to_bytes(8, "little") + told


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
