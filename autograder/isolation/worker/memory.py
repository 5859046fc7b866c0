"""What all processes of a sandbox hold together: memory, files in memory, and the kernel's buffers for them.

A limit on the addresses of one process bounds that process alone. The server, the first process here, looks at the
others. No control group is needed, which an instructor without root seldom may make.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import signal
import threading
import time
from collections.abc import Callable, Iterator

FOLDERS = ("/tmp", "/dev/shm")
A_FILE, A_BUFFER = 16 << 10, 208 << 10  # bytes: for a file, whose removal takes time too; what an open socket may keep
LOOKS, BETWEEN = 4, 0.02  # a process that starts or ends meanwhile is counted twice at times
FEW = 8
SETTLING = 100  # ms at most until who was told to stop stands still
KCMP = {"x86_64": 312, "aarch64": 272}  # the number of a call that says whether two processes have the same memory
LIBC = ctypes.CDLL(None)
LOOK_SECONDS = 0.5  # a program can keep its pages locked, by forks without end, and a look waits for them


def held() -> int:
    """Return the bytes that this process and the files in memory take."""
    return _most(os.getpid()) + _files()


def exceeds(limit: int) -> bool:
    """Return whether the processes beside this one hold more than so many bytes, for longer than a start takes.

    Whoever keeps a look from its end counts as holding more. The server must then end all: the look goes on until they
    are gone, in a thread.
    """
    counted, whole = _look(_most)  # counts shared pages many times, and is quick
    if whole and counted <= limit:
        return False
    found: list[bool] = []
    look = threading.Thread(target=lambda: found.append(_shares_exceed(limit)), daemon=True)
    look.start()
    look.join(LOOK_SECONDS)
    return found != [False]


def _shares_exceed(limit: int) -> bool:
    high, whole = 0, True
    while high < LOOKS:
        with _stopped(few=not whole):
            counted, whole = _look(_share)
            counted += _pages("self")
        if whole and counted <= limit:
            return False
        if whole:
            high += 1
            time.sleep(BETWEEN)
    return True


def _look(size: Callable[[int], int]) -> tuple[int, bool]:
    """Return what the others and the files take, and whether none began or ended meanwhile, with pages in its hands."""
    others = _others()
    return sum(map(size, others)) + _files(), others == _others()


@contextlib.contextmanager
def _stopped(few: bool) -> Iterator[None]:
    """Stop the other processes meanwhile if they are many: whoever forks keeps its pages locked, and a look waits.

    Few are stopped only if that is asked for: a command that stands still halfway through its start counts twice on a
    kernel without kcmp.
    """
    if os.getpid() != 1 or not (few or len(_others()) > FEW):  # not the first of a namespace: others would stop too
        yield
        return
    everyone = -1
    with contextlib.suppress(ProcessLookupError):
        os.kill(everyone, signal.SIGSTOP)
    for _ in range(SETTLING):
        if not any(map(_runs, _others())):
            break
        time.sleep(0.001)
    yield
    with contextlib.suppress(ProcessLookupError):
        os.kill(everyone, signal.SIGCONT)


def _others() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != os.getpid()]


def _files() -> int:
    states = [os.statvfs(folder) for folder in FOLDERS]
    return sum((s.f_blocks - s.f_bfree) * s.f_frsize + (s.f_files - s.f_ffree) * A_FILE for s in states)


def _most(pid: int) -> int:
    """Return the most bytes that a process may hold, pages of others included."""
    return _kilobytes(pid, "status", "RssAnon", "VmSwap") + _kernels(pid)


def _share(pid: int) -> int:
    """Return the bytes that a process holds, of shared pages its share; the most if that is not to be read."""
    pages = 0 if _borrows(pid) else _pages(pid) or _kilobytes(pid, "status", "RssAnon", "VmSwap")
    return pages + _kernels(pid)


def _borrows(pid: int) -> bool:
    """Return whether a process is in its parent's memory, where it is counted: a command before it has its program."""
    if platform.machine() not in KCMP:
        return False
    with contextlib.suppress(OSError):
        status, memory_of_both = f"/proc/{pid}/status", 1
        parent, has_any = _fields(status, ("PPid",)), _fields(status, ("VmRSS",)) > 0
        return has_any and LIBC.syscall(KCMP[platform.machine()], pid, parent, memory_of_both, 0, 0) == 0
    return False


def _runs(pid: int) -> bool:
    """Return whether a process is neither stopped nor gone, nor in a wait that no signal ends."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/stat", errors="replace") as file:
        return file.read().rpartition(") ")[2][:1] in ("R", "S")
    return False


def _pages(pid: int | str) -> int:
    return _kilobytes(pid, "smaps_rollup", "Pss_Anon", "SwapPss")


def _kernels(pid: int) -> int:
    """Return the bytes that are in no count of pages: page tables, huge pages set aside, buffers of open files."""
    return _kilobytes(pid, "status", "VmPTE", "HugetlbPages") + A_BUFFER * _sum(pid, "status", "FDSize")


def _kilobytes(pid: int | str, file: str, *names: str) -> int:
    return _sum(pid, file, *names) << 10


def _sum(pid: int | str, file: str, *names: str) -> int:
    """Return the sum of fields of a process's file in /proc; 0 if it is gone or not to be read.

    A process lives on without its first thread, which then tells nothing: the first one that does tells for all.
    """
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError):
                if total := _fields(f"/proc/{pid}/task/{thread}/{file}", names):
                    return total
    return 0


def _fields(path: str, names: tuple[str, ...]) -> int:
    with open(path, errors="replace") as lines:  # a process may give itself any bytes as a name
        fields = (line.split() for line in lines)
        return sum(int(field[1]) for field in fields if field and field[0][:-1] in names)
