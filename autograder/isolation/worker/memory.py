"""What all processes of a sandbox hold together: memory, files in memory, and the kernel's buffers for them.

A limit on the addresses of one process bounds that process alone. The server, the first process here, looks at the
others. No control group is needed, which an instructor without root seldom may make.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator

FOLDERS = ("/tmp", "/dev/shm")
A_FILE, A_BUFFER = 16 << 10, 208 << 10  # bytes: for a file, whose removal takes time too; what an open socket may keep
LOOKS, BETWEEN = 4, 0.02  # a process that starts another is counted twice until the other has its own program
FEW = 8
LOOK_SECONDS = 0.5  # a program can keep its pages locked, by forks without end, and a look waits for them


def held() -> int:
    """Return the bytes that this process and the files in memory take."""
    return _most(os.getpid()) + _files()


def exceeds(limit: int) -> bool:
    """Return whether the processes beside this one hold more than so many bytes, for longer than a start takes.

    Whoever keeps a look from its end counts as holding more. The server must then end all: the look goes on until they
    are gone, in a thread.
    """
    if sum(map(_most, _others())) + _files() <= limit:  # counts shared pages many times, and is quick
        return False
    found: list[bool] = []
    look = threading.Thread(target=lambda: found.append(_shares_exceed(limit)), daemon=True)
    look.start()
    look.join(LOOK_SECONDS)
    return found != [False]


def _shares_exceed(limit: int) -> bool:
    for _ in range(LOOKS):
        with _stopped():
            counted = _pages("self") + sum(map(_share, _others())) + _files()
        if counted <= limit:
            return False
        time.sleep(BETWEEN)
    return True


@contextlib.contextmanager
def _stopped() -> Iterator[None]:
    """Stop the other processes meanwhile if they are many: whoever forks keeps its pages locked, and a look waits.

    Few are not stopped: halfway through the start of a command they would be counted twice every time.
    """
    if os.getpid() != 1 or len(_others()) <= FEW:  # not the first of a namespace: others would be stopped too
        yield
        return
    everyone = -1
    with contextlib.suppress(ProcessLookupError):
        os.kill(everyone, signal.SIGSTOP)
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
    return (_pages(pid) or _kilobytes(pid, "status", "RssAnon", "VmSwap")) + _kernels(pid)


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
