"""What a process may ask of the kernel: a list, which it can never lengthen. Linux on x86-64 and 64-bit ARM.

A list of what is refused would be one short with the next kernel. What is not on this list answers as refused (EPERM),
or as unknown to an old kernel (ENOSYS), and libraries have other ways for both.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import signal
import struct
import sys

# Name, number on x86-64, number on ARM; "-" where there is none. From 424 on both count alike.
ALLOWED = {
    "files, pipes and folders in sight": """
        read 0 63, write 1 64, pread64 17 67, pwrite64 18 68, readv 19 65, writev 20 66, preadv 295 69, pwritev 296 70,
        preadv2 327 286, pwritev2 328 287, lseek 8 62, open 2 -, openat 257 56, openat2 437 437, creat 85 -, close 3 57,
        close_range 436 436, dup 32 23, dup2 33 -, dup3 292 24, pipe 22 -, pipe2 293 59, fcntl 72 25, flock 73 32,
        ioctl 16 29, copy_file_range 326 285, readahead 187 213, fadvise64 221 223, fsync 74 82,
        fdatasync 75 83, sync_file_range 277 84, stat 4 -, fstat 5 80, lstat 6 -, newfstatat 262 79, statx 332 291,
        statfs 137 43, fstatfs 138 44, access 21 -, faccessat 269 48, faccessat2 439 439, getdents 78 -,
        getdents64 217 61, getcwd 79 17, chdir 80 49, fchdir 81 50, readlink 89 -, readlinkat 267 78, link 86 -,
        linkat 265 37, symlink 88 -, symlinkat 266 36, unlink 87 -, unlinkat 263 35, rmdir 84 -, mkdir 83 -,
        mkdirat 258 34, rename 82 -, renameat 264 38, renameat2 316 276, truncate 76 45, ftruncate 77 46,
        fallocate 285 47, umask 95 166, utime 132 -, utimes 235 -,
        futimesat 261 -, utimensat 280 88, getxattr 191 8, lgetxattr 192 9, fgetxattr 193 10, listxattr 194 11,
        llistxattr 195 12, flistxattr 196 13""",
    "memory of its own": """
        mmap 9 222, munmap 11 215, mprotect 10 226, mremap 25 216, madvise 28 233, mincore 27 232, msync 26 227,
        brk 12 214, mlock 149 228, mlock2 325 284, munlock 150 229, munlockall 152 231, pkey_mprotect 329 288,
        pkey_alloc 330 289, pkey_free 331 290, membarrier 324 283, get_mempolicy 239 236""",
    "processes and threads": """
        clone 56 220, fork 57 -, vfork 58 -, execve 59 221, execveat 322 281, exit 60 93, exit_group 231 94,
        wait4 61 260, waitid 247 95, kill 62 129, tkill 200 130, tgkill 234 131, pidfd_open 434 434,
        pidfd_send_signal 424 424, getpid 39 172, getppid 110 173, gettid 186 178, getpgid 121 155, setpgid 109 154,
        getpgrp 111 -, getsid 124 156, getuid 102 174, geteuid 107 175, getgid 104 176, getegid 108 177,
        getgroups 115 158, getresuid 118 148, getresgid 120 150, capget 125 90, prctl 157 167, arch_prctl 158 -,
        set_tid_address 218 96, set_robust_list 273 99, rseq 334 293, futex 202 98, futex_waitv 449 449,
        restart_syscall 219 128, rt_sigaction 13 134, rt_sigprocmask 14 135, rt_sigpending 127 136,
        rt_sigtimedwait 128 137, rt_sigsuspend 130 133, rt_sigreturn 15 139, sigaltstack 131 132, pause 34 -""",
    "limits and schedule": """
        prlimit64 302 261, getrlimit 97 163, setrlimit 160 164, getrusage 98 165, getpriority 140 141,
        setpriority 141 140, sched_yield 24 124, sched_getaffinity 204 123, sched_setaffinity 203 122,
        sched_getparam 143 121, sched_getscheduler 145 120, sched_getattr 315 275, sched_get_priority_max 146 125,
        sched_get_priority_min 147 126, sched_rr_get_interval 148 127, ioprio_get 252 31, getcpu 309 168""",
    "time, waiting, the machine": """
        time 201 -, gettimeofday 96 169, clock_gettime 228 113, clock_getres 229 114, clock_nanosleep 230 115,
        nanosleep 35 101, times 100 153, alarm 37 -, getitimer 36 102, setitimer 38 103, timer_create 222 107,
        timer_settime 223 110, timer_gettime 224 108, timer_getoverrun 225 109, timer_delete 226 111,
        timerfd_create 283 85, timerfd_settime 286 86, timerfd_gettime 287 87, eventfd 284 -, eventfd2 290 19,
        signalfd 282 -, signalfd4 289 74, select 23 -, pselect6 270 72, poll 7 -, ppoll 271 73, epoll_create 213 -,
        epoll_create1 291 20, epoll_ctl 233 21, epoll_wait 232 -, epoll_pwait 281 22, epoll_pwait2 441 441,
        uname 63 160, sysinfo 99 179, getrandom 318 278""",
    "pairs of sockets, which reach nobody else": """
        socketpair 53 199, sendto 44 206, recvfrom 45 207, recvmsg 47 212, shutdown 48 210,
        getsockname 51 204, getpeername 52 205, getsockopt 55 209""",
}
# A file that is sent along by sendmsg is in nobody's hands until it is received, with all that waits in it uncounted.
# Of what sendfile, splice and tee put into a buffer, whole pages stay for a few bytes, also when their file is gone.
# CUDA's driver shares memory by files without a name, talks with daemons by sockets, and places its threads and memory.
FOR_GPU = """
    memfd_create 319 279, mbind 237 235, set_mempolicy 238 237, mlockall 151 230, socket 41 198, connect 42 203,
    bind 49 200, listen 50 201, accept 43 202, accept4 288 242, setsockopt 54 208, sendmsg 46 211,
    sendmmsg 307 269, recvmmsg 299 243, inotify_init 253 -, inotify_init1 294 26, inotify_add_watch 254 27,
    inotify_rm_watch 255 28, sendfile 40 71, splice 275 76, tee 276 77"""
# Modes mean nothing in a scratch folder, and devices are the machine's own: where root grades, they would change.
PRETENDED = "chmod 90 -, fchmod 91 52, fchmodat 268 53"
YOUNG = 424  # from this number on a call is younger than libraries' other ways: they look for ENOSYS, as of clone3

LOAD, AND, EQUAL, AT_LEAST, ANY_BIT, RETURN = 0x20, 0x54, 0x15, 0x35, 0x45, 0x06
NUMBER, MACHINE, ARGUMENTS = 0, 4, 16  # offsets in struct seccomp_data
ALLOW, KILL, REFUSE = 0x7FFF0000, 0x80000000, 0x00050000 | errno.EPERM
UNKNOWN, DONE = 0x00050000 | errno.ENOSYS, 0x00050000  # the latter does nothing and says that it was done
X32 = 0x40000000  # marks calls of the x32 interface, which have numbers of their own
NAMESPACES = 0x7E020000  # the flags of clone that make one
CLONE_FILES, CLONE_THREAD, CLOSE_RANGE_UNSHARE = 0x400, 0x10000, 0x2
SHARED_ANONYMOUS, F_SETLEASE, F_SETPIPE_SZ = 0x21, 1024, 1031
PR_SET_NO_NEW_PRIVS = 38
# The signal at a parent's end, whether it may be looked into, a thread's name, what it may have, ARM's vectors. Another
# takes filters, from memory that all processes of the machine share (net.core.bpf_jit_limit); another ties schedules.
OF_ITSELF = (1, 2, 3, 15, 16, 23, 39, 51, 64)
# Of a terminal its settings (also as TCGETS2), group and size; FICLONE, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX. Others
# may make the kernel load a module, or change what it keeps of files that everybody uses.
OF_FILES = (0x5401, 0x5402, 0x5403, 0x5404, 0x802C542A, 0x540F, 0x5413, 0x40049409, 0x541B, 0x5421, 0x5450, 0x5451)
AF_UNIX = 1
SOL_SOCKET, SO_ATTACH_FILTER, SO_ATTACH_REUSEPORT_CBPF = 1, 26, 51  # filters are filters
MACHINES = {"x86_64": (0, 0xC000003E, 317, 250), "aarch64": (1, 0xC00000B7, 277, 219)}  # column, token, seccomp, keyctl

Code = list[tuple[int, int, int, int]]  # instructions: what, jump if true, jump if false, operand


def _own(*indices: int) -> Code:
    """Allow a call for which these arguments, each 32 bits, are 0: the caller itself."""
    steps = [
        step for index in indices for step in ((LOAD, 0, 0, ARGUMENTS + 8 * index), (EQUAL, 1, 0, 0), _end(REFUSE))
    ]
    return [*steps, _end(ALLOW)]


def _without(index: int, mask: int, value: int | None = None, then: Code | None = None) -> Code:
    """Allow a call of whose argument no bit of the mask is set; with `value`, whose masked bits are not that.

    With `then`, go on with that in place of allowing it.
    """
    test = [(ANY_BIT, 0, 1, mask)] if value is None else [(AND, 0, 0, mask), (EQUAL, 0, 1, value)]
    return [(LOAD, 0, 0, ARGUMENTS + 8 * index), *test, _end(REFUSE), *(then or [_end(ALLOW)])]


def _only(index: int, *values: int) -> Code:
    """Allow a call whose argument, of 32 bits, is one of the values."""
    tests = [(EQUAL, len(values) - at, 0, value) for at, value in enumerate(values)]
    return [(LOAD, 0, 0, ARGUMENTS + 8 * index), *tests, _end(REFUSE), _end(ALLOW)]


def _end(action: int) -> tuple[int, int, int, int]:
    return (RETURN, 0, 0, action)


WITH_CARE = {
    "prlimit64": _own(0),
    "sched_setaffinity": _own(0),
    "setpriority": _own(0, 1),
    # a thread has the files of its process, which are counted there
    "clone": _without(0, NAMESPACES, then=_without(0, CLONE_THREAD | CLONE_FILES, CLONE_THREAD)),
    "close_range": _without(2, CLOSE_RANGE_UNSHARE),
    # others who write to a file in sight, as to update it, would wait; a larger pipe keeps more than is counted for it
    "fcntl": _without(1, 0xFFFFFFFF, F_SETLEASE, then=_without(1, 0xFFFFFFFF, F_SETPIPE_SZ)),
    "prctl": _only(0, *OF_ITSELF),
    "ioctl": _only(1, *OF_FILES),
    "socketpair": _only(0, AF_UNIX),  # for another the kernel may load a module
    "setsockopt": [
        (LOAD, 0, 0, ARGUMENTS + 8),
        (EQUAL, 1, 0, SOL_SOCKET),
        _end(ALLOW),
        *_without(2, 0xFFFFFFFF, SO_ATTACH_FILTER, then=_without(2, 0xFFFFFFFF, SO_ATTACH_REUSEPORT_CBPF)),
    ],
    "mmap": _without(3, SHARED_ANONYMOUS, SHARED_ANONYMOUS),  # is held on to by one page of it, and counted by that
}


def program(gpu: bool = False, machine: str | None = None) -> bytes | None:
    """Return the filter for this machine as classic BPF, 8 bytes an instruction; None where none is known.

    With `gpu` it is one that CUDA can live with, and memory is then not counted.
    """
    if sys.platform != "linux" or (machine := machine or platform.machine()) not in MACHINES:
        return None
    column, token, *_ = MACHINES[machine]
    rules: dict[int, Code] = {}
    care = {name: code for name, code in WITH_CARE.items() if not (gpu and name in ("mmap", "ioctl"))}
    for calls in (*ALLOWED.values(), PRETENDED, *([FOR_GPU] if gpu else [])):
        otherwise = [_end(DONE if calls is PRETENDED else ALLOW)]
        for name, *numbers in map(str.split, calls.split(",")):
            if numbers[column] != "-":
                rules[int(numbers[column])] = care.get(name, otherwise)
    spans: list[tuple[int, Code]] = []  # from each number on, until the next, what is done
    for number in sorted({0, YOUNG, *rules, *(n + 1 for n in rules)}):
        code = rules.get(number, [_end(REFUSE if number < YOUNG else UNKNOWN)])
        if not spans or spans[-1][1] != code:
            spans.append((number, code))
    head: Code = [(LOAD, 0, 0, MACHINE), (EQUAL, 1, 0, token), _end(KILL)]
    head += [(LOAD, 0, 0, NUMBER), (AT_LEAST, 0, 1, X32), _end(KILL)]
    return b"".join(struct.pack("<HBBI", *step) for step in head + _search(spans))


def _search(spans: list[tuple[int, Code]]) -> Code:
    """Return the code that finds the span of a number by halves."""
    if len(spans) == 1:
        return spans[0][1]
    middle = len(spans) // 2
    low, high = _search(spans[:middle]), _search(spans[middle:])
    return [(AT_LEAST, len(low), 0, spans[middle][0]), *low, *high]


class Filter:
    """A filter that is ready to be installed, as soon after a fork as one likes."""

    def __init__(self, code: bytes):
        self._code = ctypes.create_string_buffer(code, len(code))
        self._struct = ctypes.create_string_buffer(struct.pack("@HP", len(code) // 8, ctypes.addressof(self._code)))
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._number = MACHINES[platform.machine()][2]

    def install(self) -> None:
        """Put it on this process, for good, and on all that it will start. Raises OSError where the kernel refuses."""
        set_filter, all_threads = 1, 1
        refused = self._libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or self._libc.syscall(
            self._number, set_filter, all_threads, self._struct
        )
        if refused:
            raise OSError(ctypes.get_errno(), "the kernel takes no filter of system calls")

    def known(self) -> bool:
        """Return whether the kernel has such filters: it then looks for one where there is none."""
        set_filter = 1
        return self._libc.syscall(self._number, set_filter, 0, None) != 0 and ctypes.get_errno() == errno.EFAULT


def ready(gpu: bool = False) -> Filter | None:
    """Return the filter for this machine, tried out in a process of its own; None where there are none.

    Raises OSError where the kernel has filters and does not take this one: not now, as its memory for them is limited.
    """
    if (code := program(gpu)) is None:
        return None
    made = Filter(code)
    if not made.known():
        return None
    child = os.fork()
    if child == 0:
        try:
            made.install()
            os._exit(0)
        finally:
            os.kill(os.getpid(), signal.SIGKILL)
    if os.waitpid(child, 0)[1] != 0:
        raise OSError(
            "the kernel takes no filter of system calls now, so no student's code can run: has it memory for one "
            "(net.core.bpf_jit_limit)?"
        )
    return made


def leave_keyring() -> None:
    """Join a new, empty session keyring: the one before holds the keys of whoever runs the judge."""
    if sys.platform == "linux" and platform.machine() in MACHINES:
        join_session_keyring = 1
        ctypes.CDLL(None).syscall(MACHINES[platform.machine()][3], join_session_keyring, None)
