"""What a student's code does to those after it, to its own limits, and to the machine of a grader run by root."""

import contextlib
import ctypes
import errno
import itertools
import json
import os
import platform
import pty
import re
import signal
import struct
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

import autograder.isolation.sandbox as module
from autograder.isolation.sandbox import Limits, Sandbox, SandboxError, default_isolation
from autograder.isolation.worker import confine, memory
from autograder.judging.verdict import Outcome

from ..tiny_course import DOUBLE, verdict
from .test_sandbox import IDLE, RIGHT, tell

LIBC = ctypes.CDLL(None, use_errno=True)
NUMBERS = {
    "x86_64": dict(clone=56, add_key=248, keyctl=250, ioprio_set=251, ioprio_get=252, seccomp=317, fchmodat2=452),
    "aarch64": dict(clone=220, add_key=217, keyctl=219, ioprio_set=30, ioprio_get=31, seccomp=277, fchmodat2=452),
}
NR = NUMBERS.get(platform.machine(), NUMBERS["x86_64"])
needs_bubblewrap = pytest.mark.skipif(default_isolation() != "bubblewrap", reason="bubblewrap does not work here")

STATE = f"""
def spy():
    import ctypes, resource
    libc = ctypes.CDLL(None)
    def text(path):
        try: return open(path).read()
        except OSError: return ""
    seen = dict(
        limits=[text("/proc/1/limits"), [resource.getrlimit(n) for n in range(16) if n != resource.RLIMIT_AS]],
        nice=[os.getpriority(os.PRIO_PROCESS, pid) for pid in (0, 1)],
        cores=[sorted(os.sched_getaffinity(pid)) for pid in (0, 1)],
        schedule=[os.sched_getscheduler(pid) for pid in (0, 1)],
        io=[libc.syscall({NR["ioprio_get"]}, 1, pid) for pid in (0, 1)],
        other=[text("/proc/1/" + name) for name in ("oom_score_adj", "autogroup", "coredump_filter")],
        queue=libc.mq_open(b"/left", os.O_RDWR),
        memory=libc.shmget(77, 4096, 0o666),
        key=libc.syscall({NR["keyctl"]}, 10, -4, b"user", b"left", 0),
        folder=os.path.dirname(os.getcwd()),
        files=len(os.listdir("/proc/self/fd")),
    )
    return json.dumps(seen)
"""
LEAVE = {
    "its memory limit": "import resource; resource.prlimit(1, resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))",
    "its open files": "import resource; resource.prlimit(1, resource.RLIMIT_NOFILE, (40, 60))",
    "its priority": "os.setpriority(os.PRIO_PROCESS, 1, 17)",
    "its user's priority": "os.setpriority(os.PRIO_USER, 0, 18)",
    "its group's priority": "os.setpriority(os.PRIO_PGRP, os.getpgid(1), 19)",
    "its cores": "os.sched_setaffinity(1, {min(os.sched_getaffinity(0))})",
    "its schedule": "os.sched_setscheduler(1, os.SCHED_BATCH, os.sched_param(0))",
    "its disk's priority": f"import ctypes; ctypes.CDLL(None).syscall({NR['ioprio_set']}, 1, 1, 3 << 13)",
    "its place when memory is short": "open('/proc/1/oom_score_adj', 'w').write('900')",
    "its session's priority": "open('/proc/1/autogroup', 'w').write('7')",
    "its crashes": "open('/proc/1/coredump_filter', 'w').write('1')",
    "a queue": "import ctypes; ctypes.CDLL(None).mq_open(b'/left', os.O_CREAT | os.O_RDWR, 0o666, None)",
    "shared memory": "import ctypes; ctypes.CDLL(None).shmget(77, 4096, 0o1666)",
    "a key": f"import ctypes; ctypes.CDLL(None).syscall({NR['add_key']}, b'user', b'left', b'word', 4, -4)",
    "its own limits": "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64)); os.nice(5)",
    "an open file": "import builtins; builtins.left = open('/tmp/left', 'w'); os.chdir('/')",
}


@pytest.mark.parametrize("what", LEAVE)
def test_the_next_student_finds_all_as_the_last_one_did(bubble, what):
    before = json.loads(json.dumps(tell(bubble, STATE)))
    server = bubble._process.pid
    source = f"def double(x):\n    try: exec({LEAVE[what]!r})\n    except OSError: pass\n    return 2 * x"
    assert verdict(bubble, source).outcome is Outcome.PASSED
    after = tell(bubble, STATE)
    assert {name: (before[name], after[name]) for name in before if before[name] != after[name]} == {}
    assert bubble._process.pid == server, "and it takes no new server, which costs seconds"


def test_a_child_sets_limits_priority_and_cores_of_its_own(bubble):
    source = """
def spy():
    import resource
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    cores = {min(os.sched_getaffinity(0))}
    os.sched_setaffinity(0, cores)
    nicer = os.nice(3) - os.getpriority(os.PRIO_PROCESS, 1)
    return json.dumps([resource.getrlimit(resource.RLIMIT_NOFILE), nicer, os.sched_getaffinity(0) == cores])
"""
    assert tell(bubble, source) == [[64, 64], 3, True]


def test_no_program_takes_of_the_memory_for_filters_that_all_share(bubble):
    source = f"""
def spy():
    import ctypes, struct
    libc, allow = ctypes.CDLL(None, use_errno=True), struct.pack("<HBBI", 6, 0, 0, 0x7FFF0000)
    code = ctypes.create_string_buffer(allow, 8)
    rules = struct.pack("@HP", 1, ctypes.addressof(code))
    return json.dumps([libc.prctl(22, 2, rules, 0, 0), libc.syscall({NR["seccomp"]}, 1, 0, rules), ctypes.get_errno()])
"""
    assert tell(bubble, source) == [-1, -1, errno.EPERM]


def test_no_program_makes_the_kernel_load_a_module(bubble):
    source = """
def spy():
    import fcntl, socket, struct
    def done(what, *arguments):
        try: what(*arguments)
        except OSError as error: return error.errno
    families = [f for f in range(2, 46) if done(socket.socketpair, f, socket.SOCK_DGRAM) != 1]
    pair, terminal = socket.socketpair(), os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY)
    file = os.open(os.__file__, os.O_RDONLY)
    vlan, bridge, discipline, key, shrink = 0x8982, 0x8940, 0x5423, 0xC0506617, 0x6628
    asked = [(pair[0], vlan), (pair[0], bridge), (terminal, discipline), (file, key), (file, shrink)]
    return json.dumps([families, [hex(what) for on, what in asked if done(fcntl.ioctl, on, what, bytes(80)) != 1]])
"""
    assert tell(bubble, source) == [[], []]


def test_no_file_is_sent_away_with_what_waits_in_it(bubble):
    source = """
def spy():
    import socket
    one, other = socket.socketpair()
    try: socket.send_fds(one, [b"x"], [other.fileno()])
    except PermissionError: return json.dumps("refused")
    return json.dumps("sent")
"""
    assert tell(bubble, source) == "refused"


def test_no_pipe_is_made_larger_than_what_is_counted_for_it(bubble):
    source = """
def spy():
    import fcntl
    end = os.pipe()[1]
    try: fcntl.fcntl(end, fcntl.F_SETPIPE_SZ, 1 << 20)
    except PermissionError: return json.dumps(fcntl.fcntl(end, fcntl.F_GETPIPE_SZ))
"""
    assert tell(bubble, source) <= 2 * memory.A_BUFFER


HELD = {
    "several processes": """
    for _ in range(4):
        if os.fork() == 0:
            kept = os.urandom(1 << 20) * 140
            time.sleep(30)
            os._exit(0)
""",
    "one process and files": """
    kept = os.urandom(1 << 20) * 110
    for place in ("/tmp", "/dev/shm"):
        for n in range(2):
            open(f"{place}/{n}", "wb").write(bytes(60 << 20))
""",
    "very many files": """
    import itertools
    for n in itertools.count(): open(f"/tmp/{n}", "w").close()
""",
    "a file without a name": """
    file = os.memfd_create("x")
    for _ in range(10): os.pwrite(file, bytes(40 << 20), os.lseek(file, 0, 2))
""",
    "what is left of shared memory": """
    import ctypes, mmap
    kept, libc = [], ctypes.CDLL(None)
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    for _ in range(8):
        kept.append(mmap.mmap(-1, 40 << 20))
        kept[-1].write(bytes(40 << 20))
        libc.munmap(ctypes.addressof(ctypes.c_char.from_buffer(kept[-1])) + 4096, (40 << 20) - 4096)
""",
    "what is left of /dev/zero": """
    import ctypes, mmap
    kept, libc, zero = [], ctypes.CDLL(None), os.open("/dev/zero", os.O_RDWR)
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    for _ in range(8):
        kept.append(mmap.mmap(zero, 40 << 20))
        kept[-1].write(bytes(40 << 20))
        libc.munmap(ctypes.addressof(ctypes.c_char.from_buffer(kept[-1])) + 4096, (40 << 20) - 4096)
""",
    "processes without their first thread": """
    import ctypes, threading
    kept = []
    for _ in range(3):
        if os.fork() == 0:
            threading.Thread(target=lambda: (kept.append(os.urandom(1 << 20) * 110), time.sleep(30))).start()
            ctypes.CDLL(None).syscall(60 if os.uname().machine == "x86_64" else 93, 0)
""",
    "sockets of a thread's own": """
    import ctypes, socket, threading
    threading.stack_size(1 << 18)
    refused = []
    def fill():
        kept, unshare = [], 2
        if ctypes.CDLL(None).syscall(436, 3000, 3001, unshare):
            refused.append(True)
            return
        try:
            while True:
                kept += socket.socketpair()
                for end in kept[-2:]:
                    end.setblocking(False)
                    try:
                        while True: end.send(bytes(4096))
                    except BlockingIOError: pass
        except OSError: time.sleep(30)
    for _ in range(3): threading.Thread(target=fill, daemon=True).start()
    time.sleep(0.5)
    if refused: raise PermissionError
""",
    "pages of files in sockets": """
    import socket
    ends = [end for _ in range(240) for end in socket.socketpair()]
    for end in ends: end.setblocking(False)
    left = list(ends)
    while left:
        with open("/tmp/pages", "wb+") as file:
            file.write(bytes(2 << 20))
            file.flush()
            for place in range(4095, (2 << 20) - 2, 8192):
                try: os.sendfile(left[-1].fileno(), file.fileno(), place, 2)
                except BlockingIOError: left.pop()
                if not left: break
""",
    "what waits in sockets": """
    import os, socket
    kept, more = [], os.fork()
    while len(kept) < 490:
        kept += socket.socketpair()
        for end in kept[-2:]:
            end.setblocking(False)
            try:
                while True: end.send(bytes(4096))
            except BlockingIOError: pass
""",
}


def test_a_look_that_is_kept_from_its_end_finds_too_much(monkeypatch):
    pages_are_free = threading.Event()
    monkeypatch.setattr(memory, "_others", lambda: [1])
    monkeypatch.setattr(memory, "_most", lambda pid: 1 << 40)
    monkeypatch.setattr(memory, "_files", lambda: 0)
    monkeypatch.setattr(memory, "_pages", lambda pid: 0)
    monkeypatch.setattr(memory, "_share", lambda pid: 0)
    assert not memory.exceeds(1)
    monkeypatch.setattr(memory, "_share", lambda pid: pages_are_free.wait(2) * 0)
    assert memory.exceeds(1)
    pages_are_free.set()


@pytest.fixture
def handed_on(monkeypatch):
    """Processes that end before they are looked at and leave 100 bytes to a child, until something is in the list."""
    pids, still = itertools.count(2), []
    monkeypatch.setattr(memory, "_others", lambda: [1] if still else [next(pids)])
    monkeypatch.setattr(memory, "_most", lambda pid: 0)
    monkeypatch.setattr(memory, "_share", lambda pid: 100 if still else 0)
    monkeypatch.setattr(memory, "_pages", lambda pid: 0)
    monkeypatch.setattr(memory, "_files", lambda: 0)
    yield still
    still.append(True)  # ends a look that goes on


def test_who_hands_memory_on_is_stopped_and_looked_at(handed_on, monkeypatch):
    @contextlib.contextmanager
    def stopped(few):
        handed_on.extend([True] * few)
        yield
        handed_on.clear()

    monkeypatch.setattr(memory, "_stopped", stopped)
    assert memory.exceeds(99)
    assert not memory.exceeds(100)


def test_who_hands_memory_on_and_cannot_be_stopped_holds_too_much(handed_on):
    assert memory.exceeds(100)


def test_huge_pages_count_as_memory(monkeypatch, tmp_path):
    status = tmp_path / "status"  # few machines set huge pages aside
    status.write_text(f"RssAnon: 4 kB\nHugetlbPages: {300 << 10} kB\nVmPTE: 4 kB\nFDSize: 4\n")
    real = memory._fields
    monkeypatch.setattr(memory, "_files", lambda: 0)
    monkeypatch.setattr(memory, "_others", lambda: [os.getpid()])
    monkeypatch.setattr(memory, "_pages", lambda pid: 0)
    monkeypatch.setattr(memory, "_fields", lambda path, names: real(status, names))
    assert memory.exceeds(200 << 20)
    assert not memory.exceeds(400 << 20)


@pytest.mark.thorough(but=2)
@pytest.mark.parametrize("how", HELD)
def test_memory_beyond_the_limit_is_not_held(bubble, how):
    source = f"import time\ndef double(x):\n{HELD[how]}\n    time.sleep(1.5)\n    return 2 * x"
    exercise = replace(DOUBLE, limits=Limits(seconds=20, memory=192 << 20))
    found = verdict(bubble, source, exercise)
    assert found.outcome in (Outcome.MEMORY, Outcome.ERROR), found
    assert found.outcome is Outcome.MEMORY or "PermissionError" in found.reason, found
    assert verdict(bubble, RIGHT).outcome is Outcome.PASSED


def test_what_a_child_shares_with_the_server_is_no_larger_than_its_arguments(bubble):
    source = """
def spy():
    shared = [line.split()[0].split("-") for line in open("/proc/self/maps") if " rw-s " in line]
    return json.dumps(sum(int(end, 16) - int(first, 16) for first, end in shared))
"""
    assert tell(bubble, source) == 0


def test_what_a_child_shares_with_the_server_cannot_grow(bubble):
    source = """
        import ctypes, time
        told = []
        def double(x):
            if told:  # in an earlier call
                raise told[0]
            libc = ctypes.CDLL(None)
            libc.mremap.restype = ctypes.c_void_p
            libc.mremap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int]
            shared = [line.split()[0] for line in open("/proc/self/maps") if " rw-s " in line]
            first, end = (int(each, 16) for each in shared[0].split("-"))
            may_move = 1
            there = libc.mremap(first, end - first, 64 << 20, may_move)
            assert there not in (None, 2**64 - 1), "it is not there"
            pid = os.fork()
            if pid == 0:
                ctypes.memset(there + end - first, 1, 32 << 20)
                os._exit(0)
            told.append(ValueError(f"ended by {os.waitpid(pid, 0)[1]}"))
            raise told[0]
    """
    found = verdict(bubble, source)
    assert f"ended by {int(signal.SIGBUS)}" in found.reason, found


def test_what_is_held_is_named_as_the_reason(bubble):
    exercise = replace(DOUBLE, limits=Limits(seconds=20, memory=192 << 20))
    found = verdict(bubble, f"import time\ndef double(x):\n{HELD['several processes']}\n    time.sleep(9)", exercise)
    assert found.outcome is Outcome.MEMORY
    assert "held more than 192 MiB" in found.reason


HONEST = {
    "memory that forks share": """
        import time
        kept = os.urandom(1 << 20) * 120
        def double(x):
            pids = [os.fork() for _ in range(2)]
            time.sleep(0.5)
            if 0 in pids: os._exit(0)
            return 2 * x
    """,
    "many short commands beside much memory": """
        import subprocess
        kept = os.urandom(1 << 20) * 120
        def double(x):
            for _ in range(30): subprocess.run(["true"], check=True)
            return 2 * x
    """,
    "a command that is long in starting, in its parent's memory": f"""
        import ctypes, time
        def double(x):
            if os.fork() == 0:
                kept, parents_memory = os.urandom(1 << 20) * 140, 0x4100
                if ctypes.PyDLL(None).syscall({NR["clone"]}, parents_memory, 0, 0, 0, 0) == 0:
                    time.sleep(1)
                    os.kill(os.getppid(), 9)
                    os._exit(0)
            os.wait()
            return 2 * x
    """,
    "a pool of processes": """
        import multiprocessing
        def double(x):
            with multiprocessing.get_context("fork").Pool(2) as pool:
                assert pool.map(abs, [-1, -2]) == [1, 2]
            return 2 * x
    """,
    "a copied file": """
        import shutil
        def double(x):
            open("a", "w").write("x"); shutil.copy("a", "b"); os.chmod("b", 0o600); os.utime("b")
            return 2 * x
    """,
    "a file copied by others": """
        import pathlib, shutil, socket, subprocess
        def double(x):
            given = bytes(range(256)) * 4096
            pathlib.Path("a").write_bytes(given)
            subprocess.run("cp a b; cat b > c", shell=True, check=True)
            one, other = socket.socketpair()
            with open(shutil.copyfile("c", "d"), "rb") as file: one.sendfile(file, 0, 9)
            assert pathlib.Path("d").read_bytes() == given and other.recv(9) == given[:9]
            return 2 * x
    """,
    "a loop of events": """
        import asyncio
        async def later(x):
            await asyncio.sleep(0.01)
            return await asyncio.to_thread(lambda: 2 * x)
        def double(x): return asyncio.run(later(x))
    """,
    "a mapped file": """
        import numpy
        def double(x):
            y = numpy.memmap("m", numpy.float64, "w+", shape=tuple(x.shape))
            y[:] = x
            return torch.from_numpy(2 * numpy.array(y))
    """,
}


@pytest.mark.thorough(but=2)
@pytest.mark.parametrize("what", HONEST)
def test_an_honest_program_goes_on(box, what):
    exercise = replace(DOUBLE, limits=Limits(seconds=20, memory=256 << 20))
    found = verdict(box, HONEST[what], exercise)
    assert found.outcome is Outcome.PASSED, found.reason


@pytest.mark.parametrize("isolation", ["bubblewrap", "process"])
def test_the_instructors_keys_are_neither_seen_nor_changed(isolation):
    if isolation != default_isolation() == "process":
        pytest.skip("bubblewrap does not work here")
    search, read, describe, revoke = 10, 11, 6, 3
    key = LIBC.syscall(NR["add_key"], b"user", b"mla-canary", b"secret", 6, -3)
    if key < 0:
        pytest.skip(f"the kernel keeps no keys here: {os.strerror(ctypes.get_errno())}")
    source = f"""
def spy():
    import ctypes
    call, found = ctypes.CDLL(None).syscall, ctypes.create_string_buffer(64)
    calls = [({search}, -3, b"user", b"mla-canary", 0), ({read}, {key}, found, 64), ({describe}, {key}, found, 64)]
    calls += [(2, {key}, b"other", 5), (5, {key}, 0x3f3f3f3f)]
    got = [call({NR["keyctl"]}, *arguments) for arguments in calls]
    return json.dumps([got, found.value.decode()])
"""
    try:
        with Sandbox(isolation) as fresh:
            assert tell(fresh, source) == [[-1] * 5, ""]
    finally:
        LIBC.syscall(NR["keyctl"], revoke, key)


def test_no_setting_of_the_kernel_can_be_opened_for_writing(bubble):
    source = """
def spy():
    found = []
    for folder, folders, names in os.walk("/proc"):
        folders[:] = [name for name in folders if name not in ("self", "thread-self", str(os.getpid()))]
        for name in names:
            path = os.path.join(folder, name)
            try: os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK)); found.append(path)
            except OSError: pass
    return json.dumps(found)
"""
    assert tell(bubble, source) == []


@pytest.mark.skipif(os.getuid() != 0, reason="only root may change the modes of devices")
def test_the_modes_of_the_machines_devices_stay(bubble):
    device, mode = "/dev/full", os.stat("/dev/full").st_mode & 0o7777
    source = f"""
def spy():
    import ctypes
    number = os.open("{device}", os.O_RDWR)
    for change in (
        lambda: os.chmod("{device}", 0o664), lambda: os.fchmod(number, 0o664),
        lambda: ctypes.CDLL(None).fchmodat(-100, b"{device}", 0o664, 0),
        lambda: ctypes.CDLL(None).syscall({NR["fchmodat2"]}, -100, b"{device}", 0o664, 0),
        lambda: os.setxattr("{device}", "user.left", b"x"), lambda: os.chown("{device}", 65534, 65534),
    ):
        try: change()
        except OSError: pass
    return json.dumps(0)
"""
    try:
        tell(bubble, source)
        assert os.stat(device).st_mode & 0o7777 == mode
    finally:
        os.chmod(device, mode)


@needs_bubblewrap
def test_a_classroom_below_a_folder_of_the_system_is_not_there(tmp_path, monkeypatch):
    system, link = tmp_path / "system", tmp_path / "link"
    classroom = system / "share" / "class"
    classroom.mkdir(parents=True)
    (classroom / "seed").write_text("secret")
    (system / "library").write_text("needed")
    link.symlink_to(system)
    monkeypatch.setattr(module, "SYSTEM", (*module.SYSTEM, str(system), str(link)))
    look = (
        f"def spy(): return json.dumps([os.listdir(p) for p in {[str(p / 'share' / 'class') for p in (system, link)]}])"
    )
    with Sandbox("bubblewrap", hidden=[link / "share" / "class"]) as fresh:
        assert tell(fresh, look) == [[], []]
        assert tell(fresh, f"def spy(): return json.dumps(open({str(link / 'library')!r}).read())") == "needed"


@needs_bubblewrap
def test_a_project_below_a_folder_of_the_system_is_not_there(monkeypatch):
    project = module.ROOMS.parent
    if not (project / "pyproject.toml").is_file():
        pytest.skip("the project is installed: no checkout holds its answers")
    monkeypatch.setattr(module, "SYSTEM", (*module.SYSTEM, str(project.parent)))
    with Sandbox("bubblewrap") as fresh:
        seen = tell(fresh, f"def spy(): return json.dumps(os.listdir({str(project)!r}))")
    assert not {"solutions", "autograder", "mla_ref", "tests"} & set(seen)


@needs_bubblewrap
def test_what_cannot_be_hidden_is_an_error_that_says_so():
    with Sandbox("bubblewrap", hidden=[sys.prefix]) as fresh, pytest.raises(SandboxError, match="move Python's"):
        fresh.run(IDLE, Limits())


@needs_bubblewrap
def test_the_instructors_terminal_is_not_there():
    spy = "import os, torch\ndef spy(): return torch.tensor([os.path.exists('/dev/console')])"
    request = IDLE | dict(program=[dict(name="s", source=spy, required=True, gives="")], entry="spy", cases=[{}])
    program = f"""
import sys
from autograder.isolation.sandbox import Limits, Sandbox
with Sandbox("bubblewrap") as box:
    found = box.run({request!r}, Limits())
open(sys.argv[1], "w").write(str(found.messages[0]["result"].item()))
"""
    outer, inner = pty.openpty()
    read, write = os.pipe()
    try:
        subprocess.run([sys.executable, "-c", program, f"/dev/fd/{write}"], stdout=inner, pass_fds=[write], check=True)
        os.close(write)
        with open(read) as file:
            assert file.read() == "False"
    finally:
        os.close(outer)
        os.close(inner)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="other processors have no second interface to the kernel")
def test_the_kernels_other_interfaces_end_the_process(bubble):
    for code in (b"\xb8\x14\0\0\0\xcd\x80\xc3", b"\xb8\x27\0\0\x40\x0f\x05\xc3"):  # getpid, of i386 and of x32
        source = f"""
            import ctypes, mmap
            def double(x):
                page = mmap.mmap(-1, 4096, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, 7)
                page.write({code!r})
                ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()
                return 2 * x
        """
        found = verdict(bubble, source)
        assert found.outcome is Outcome.ENDED
        assert "signal 31" in found.reason or "signal 11" in found.reason


def answer(machine, number, *arguments, token=None, gpu=False):
    """Run the filter of a machine on a call, as the kernel would; return its action."""
    code = confine.program(gpu, machine)
    data = struct.pack(
        "<IIQ6Q", number, token or confine.MACHINES[machine][1], 0, *arguments, *[0] * (6 - len(arguments))
    )
    at = value = 0
    while True:
        what, yes, no, operand = struct.unpack_from("<HBBI", code, 8 * at)
        at += 1
        if what == confine.RETURN:
            return operand
        if what == confine.LOAD:
            (value,) = struct.unpack_from("<I", data, operand)
        elif what == confine.AND:
            value &= operand
        else:
            tests = {
                confine.EQUAL: value == operand,
                confine.AT_LEAST: value >= operand,
                confine.ANY_BIT: value & operand,
            }
            at += yes if tests[what] else no


@pytest.mark.parametrize("machine", confine.MACHINES)
def test_the_filter_answers_as_its_list_says(machine):
    column = confine.MACHINES[machine][0]
    calls = {}
    for text in confine.ALLOWED.values():
        for name, *numbers in map(str.split, text.split(",")):
            if numbers[column] != "-":
                calls[name] = int(numbers[column])
    fits = {"prctl": [1], "ioctl": [0, 0x5401], "socketpair": [1]}
    allowed = {n for n in range(700) if confine.ALLOW in (answer(machine, n), answer(machine, n, 1, 0x5401))}
    assert allowed == set(calls.values())
    assert len(allowed) == len(calls)
    for call, arguments in {
        "prlimit64": [1],
        "sched_setaffinity": [1],
        "setpriority": [0, 1],
        "clone": [0x10000000 | 17],
        "close_range": [0, 0, 2],
        "fcntl": [0, 1024],
        "mmap": [0, 4096, 3, 0x21],
        "prctl": [22],
        "ioctl": [0, 0x5423],
        "socketpair": [2],
    }.items():
        assert answer(machine, calls[call], *arguments) == 0x50000 | errno.EPERM, call
        assert answer(machine, calls[call], *fits.get(call, [1 << 32 if call == "prlimit64" else 0])) == confine.ALLOW
    for option in range(100):
        assert (answer(machine, calls["prctl"], option) == confine.ALLOW) == (option in confine.OF_ITSELF)
    assert answer(machine, calls["clone"], 0x3D0F00) == confine.ALLOW, "a thread, as the C library starts one"
    assert answer(machine, calls["clone"], 0x3D0B00) == 0x50000 | errno.EPERM, "a thread with files of its own"
    assert answer(machine, 435) == 0x50000 | errno.ENOSYS, "clone3, of which libraries know that it may be missing"
    assert answer(machine, calls["read"], token=0x40000003) == confine.KILL
    assert answer(machine, 1 << 30 | calls["read"]) == confine.KILL


@pytest.mark.parametrize(
    ("machine", "header", "pattern"),
    [
        ("x86_64", "/usr/include/x86_64-linux-gnu/asm/unistd_64.h", r"#define __NR_(\w+) (\d+)"),
        ("aarch64", "/usr/include/asm-generic/unistd.h", r"#define __NR(?:3264)?_(\w+) (\d+)"),
    ],
)
def test_the_numbers_are_the_kernels(machine, header, pattern):
    with contextlib.suppress(OSError):
        numbers = {name: int(number) for name, number in re.findall(pattern, Path(header).read_text())}
        numbers.setdefault("newfstatat", numbers.get("fstatat"))
        for text in (*confine.ALLOWED.values(), confine.PRETENDED, confine.FOR_GPU):
            for name, *own in map(str.split, text.split(",")):
                own = own[confine.MACHINES[machine][0]]
                assert own == "-" or int(own) == numbers[name], name
        return
    pytest.skip(f"{header} is not installed")


@pytest.mark.parametrize("machine", confine.MACHINES)
def test_on_a_gpu_no_socket_takes_a_filter_and_the_driver_is_asked_what_it_likes(machine):
    number, socket, attach = {"x86_64": 54, "aarch64": 208}[machine], 1, (26, 51)
    for option in attach:
        assert answer(machine, number, 5, socket, option, gpu=True) == 0x50000 | errno.EPERM
    tcp, no_delay, keep_alive = 6, 1, 9
    assert answer(machine, number, 5, tcp, no_delay, gpu=True) == confine.ALLOW
    assert answer(machine, number, 5, socket, keep_alive, gpu=True) == confine.ALLOW
    assert answer(machine, {"x86_64": 16, "aarch64": 29}[machine], 5, 0xC020462A, gpu=True) == confine.ALLOW


@pytest.fixture
def append(monkeypatch):
    """Return a function that ends the module which confines processes with more lines, in sandboxes to come."""

    def appended(lines):
        def staged(stage, helpers=()):
            real(stage, helpers)
            with open(stage / "autograder" / "isolation" / "worker" / "confine.py", "a") as file:
                file.write(f"\n{lines}\n")

        real = module.stage_packages
        monkeypatch.setattr(module, "stage_packages", staged)

    return appended


@needs_bubblewrap
def test_a_machine_without_a_filter_is_named(append):
    append("MACHINES.clear()")
    with Sandbox("bubblewrap") as fresh, pytest.warns(UserWarning, match="filters no system calls"):
        assert verdict(fresh, RIGHT).outcome is Outcome.PASSED


NO_MEMORY = "def refuse(self): raise OSError(errno.ENOMEM, 'no memory for a filter')\nFilter.install = refuse"
LATER = f"{NO_MEMORY}\ndef ready(gpu=False): return Filter(program(gpu))"


@pytest.mark.thorough(but=1)
@pytest.mark.skipif(platform.machine() not in confine.MACHINES, reason="no filter is known for this processor")
@pytest.mark.parametrize("when", [NO_MEMORY, LATER], ids=["at the start", "later"])
@pytest.mark.parametrize("isolation", sorted({"process", default_isolation()}))
def test_where_the_kernel_takes_no_filter_now_no_program_runs_and_nobody_gets_a_zero(append, isolation, when):
    append(when)
    with Sandbox(isolation) as fresh:
        found = verdict(fresh, RIGHT)
    assert found.outcome is Outcome.FAULT
    assert "bpf_jit_limit" in found.reason
