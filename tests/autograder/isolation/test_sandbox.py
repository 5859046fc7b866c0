"""What a student's code can see and reach under bubblewrap: the interpreter, its own folder, and nothing else."""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

import mla_ref
from autograder.classroom import grader
from autograder.classroom.grader import Grader
from autograder.course.course import Course, find_course
from autograder.isolation import sandbox
from autograder.isolation.sandbox import Ended, Limits, Sandbox, Talk, default_isolation
from autograder.isolation.worker import wire
from autograder.judging.verdict import Outcome

from ..tiny_course import FOLDER, verdict

COURSE = Course.at(FOLDER)
IDLE = {"program": [], "entry": "none", "driver": "call", "forbidden": [], "cases": []}
RIGHT = "def double(x): return 2 * x"


def tell(bubble, source):
    """Run code in the sandbox and return what it puts in `told`, as JSON data."""
    found = bubble.run(
        {
            "program": [dict(name="spy", source=f"import os, sys, json\n{source}", required=True, gives="")],
            "entry": "spy",
            "driver": "call",
            "forbidden": [],
            "cases": [{}],
        },
        Limits(seconds=10),
    )
    (message,) = found.messages
    assert message["event"] == "case", message
    assert "error" not in message, message
    return json.loads(message["result"])


def test_the_files_of_the_project_and_of_the_user_are_not_there(bubble, tmp_path):
    canary = tmp_path / "canary"
    canary.write_text("secret")
    hidden = [
        canary,
        find_course().solutions,
        FOLDER,
        Path(grader.__file__),
        Path.home() / ".bashrc",
        "/etc/passwd",
        "/root/.ssh",
    ]
    hidden += [
        Path(grader.__file__).parents[1] / "course",
        Path(mla_ref.__file__).parent / "attention.py",
        "/sys",
        "/var",
    ]
    there = tell(bubble, f"def spy(): return json.dumps([p for p in {[str(p) for p in hidden]} if os.path.exists(p)])")
    assert there == []


def test_no_file_in_sight_holds_an_answer(bubble):
    source = """
def spy():
    found = []
    for module in ("mla_ref", "autograder"):
        for place in sys.path:
            for folder, _, names in os.walk(os.path.join(place, module)):
                found += [os.path.join(folder, name) for name in names]
    return json.dumps(found)
"""
    names = {Path(path).name for path in tell(bubble, source)}
    assert "wire.py" in names
    answers = {"attention.py", "mla.py", "compare.py", "judge.py", "exercise.py", "grader.py", "course.py"}
    assert not names & (answers | {"exercises.py", "lesson.py", "sample_class.py"})


@pytest.mark.parametrize(("helpers", "there"), [((), {"hardware"}), (("mla_ref",), {*mla_ref.HELPER_MODULES})])
def test_the_answers_cannot_be_imported_and_the_courses_helpers_can(helpers, there):
    if default_isolation() != "bubblewrap":
        pytest.skip("bubblewrap does not work here")
    source = """
def spy():
    import importlib, mla_ref
    got = []
    for name in mla_ref.HELPER_MODULES + mla_ref.ANSWER_MODULES + ("kernels",):
        try: importlib.import_module("mla_ref." + name); got.append(name)
        except ImportError: pass
    return json.dumps(got)
"""
    with Sandbox("bubblewrap", helpers=helpers) as fresh:
        assert set(tell(fresh, source)) == there


def test_the_environment_is_clean(monkeypatch):
    monkeypatch.setenv("MLA_GRADEBOOK", "postgresql://canary")
    monkeypatch.setenv("CANARY", "secret")
    if default_isolation() != "bubblewrap":
        pytest.skip("bubblewrap does not work here")
    with Sandbox("bubblewrap") as fresh:
        source = """
def spy():
    seen = [dict(os.environ)]
    for pid in filter(str.isdigit, os.listdir("/proc")):
        for name in ("environ", "cmdline"):
            try: seen.append(open(f"/proc/{pid}/{name}").read())
            except OSError: pass
    return json.dumps(seen)
"""
        text = json.dumps(tell(fresh, source))
    assert "canary" not in text.lower()
    assert "secret" not in text


def test_a_compiler_outside_the_system_is_in_sight_where_a_gpu_measures_and_what_lies_beside_it_is_not(monkeypatch):
    """Triton compiles its launchers with the compiler of CC, or that of PATH, which on clusters lies anywhere."""
    if default_isolation() != "bubblewrap":
        pytest.skip("bubblewrap does not work here")
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        tool, library, canary = (Path(folder, name) for name in ("gcc/bin/gcc", "gcc/lib/crt.o", "canary/file"))
        for path in (tool, library, canary):
            path.parent.mkdir(parents=True)
            path.touch(0o755)
        source = f"def spy(): return json.dumps([os.path.exists(p) for p in {list(map(str, (tool, library, canary)))}])"
        for name, value in (("CC", str(tool)), ("PATH", f"{tool.parent}:{os.environ['PATH']}")):
            monkeypatch.delenv("CC", raising=False)
            monkeypatch.setenv(name, value)
            with Sandbox("bubblewrap", sandbox.Kind(gpu=True)) as fresh:
                assert tell(fresh, source) == [True, True, False], name


def test_where_a_gpu_measures_a_process_may_name_itself_as_cuda_does_and_change_no_setting():
    """CUDA does not start where /proc is for reading alone, and root may be the user."""
    if default_isolation() != "bubblewrap":
        pytest.skip("bubblewrap does not work here")
    source = """
def spy():
    def opens(path):
        try: os.close(os.open(path, os.O_WRONLY))
        except OSError: return False
        return True
    told = [p for p in os.listdir("/proc") if not p.isdigit() and p not in ("self", "thread-self", "net", "mounts")]
    files = [f"/proc/{p}" for p in told if os.path.isfile(f"/proc/{p}")]
    files += [f"{at}/{n}" for p in told for at, _, names in os.walk(f"/proc/{p}") for n in names]
    return json.dumps([opens("/proc/self/comm"), len(files) > 500, [p for p in files if opens(p)]])
"""
    with Sandbox("bubblewrap", sandbox.Kind(gpu=True)) as fresh:
        assert tell(fresh, source) == [True, True, []]


def test_there_is_no_network(bubble):
    source = """
def spy():
    import socket
    names = [line.split(":")[0].strip() for line in open("/proc/net/dev").readlines()[2:]]
    try: socket.create_connection(("127.0.0.1", 9), 1)
    except OSError as error: return json.dumps([names, error.errno])
"""
    names, _ = tell(bubble, source)
    assert set(names) <= {"lo"}


def test_what_the_kernel_tells_of_keys_and_root_alone_is_not_there(bubble):
    source = """
def spy():
    told, tables = [], ["/proc/" + name for name in ("keys", "key-users", "kallsyms", "locks")]
    for folder, folders, names in os.walk("/proc"):
        if folder == "/proc": folders[:] = [name for name in folders if not name.isdigit()]
        if folder == "/proc/sys": folders.remove("net")  # of the sandbox's own network
        locked = folder != "/proc" and not os.stat(folder).st_mode & 4
        for path in (os.path.join(folder, name) for name in names):
            try:
                private = path in tables or locked or not os.stat(path).st_mode & 4
                if private and os.read(os.open(path, os.O_RDONLY | os.O_NONBLOCK), 1): told.append(path)
            except OSError: pass
    return json.dumps([told, open("/proc/meminfo").read() != "", os.path.exists("/proc/sysvipc/shm")])
"""
    assert tell(bubble, source) == [[], True, True]


def test_no_other_process_is_in_sight(bubble):
    seen = tell(bubble, "def spy(): return json.dumps([int(p) for p in os.listdir('/proc') if p.isdigit()])")
    assert len(seen) == 2


def test_the_judges_sockets_are_out_of_reach(bubble):
    source = """
def spy():
    found = {"self": [], "1": []}
    for pid, places in found.items():
        for fd in range(3, 256):
            try: places.append(os.readlink(f"/proc/{pid}/fd/{fd}"))
            except OSError: pass
    return json.dumps(found)
"""
    found = tell(bubble, source)
    assert len([place for place in found["self"] if "socket" in place]) == 1, "its own, for the answer"
    assert found["1"] == []


@pytest.mark.skipif(sys.prefix.startswith("/tmp/"), reason="the environment itself lies in /tmp")
def test_only_the_scratch_folders_can_be_written_and_they_are_small(bubble):
    source = """
def spy():
    open_, full = [], []
    for place in ["/", "/dev", "/dev/shm", "/tmp", "/usr", "/etc", "/proc", sys.prefix, *sys.path, os.getcwd()]:
        try:
            with open(os.path.join(place, "left"), "wb"): open_.append(place)
        except OSError: pass
    for place in ("/dev/shm", "/tmp"):
        size = 0
        try:
            for n in range(16):
                with open(f"{place}/file{n}", "wb") as f: size += f.write(bytes(48 << 20))
        except OSError: pass
        full.append(size)
    return json.dumps([open_, full])
"""
    places, sizes = tell(bubble, source)
    assert {place.split("/work-")[0] for place in places} <= {"/tmp", "/dev/shm"}
    assert max(sizes) <= 256 << 20


LEAVE = {
    "a file": "open('/tmp/left', 'w').write('x'); open('/dev/shm/left', 'w').write('x')",
    "a locked folder": "os.makedirs('/tmp/a/b'); open('/tmp/a/b/c', 'w'); os.chmod('/tmp/a', 0)",
    "a link": "os.symlink('secret', '/tmp/left'); os.symlink('/usr', '/tmp/dir')",
    "a name like the stage's": "open('/tmp/m', 'w'); open('/tmp/mla-stage', 'w')",
    "a closed /tmp": "open('/tmp/left', 'w'); os.chmod('/tmp', 0)",
    "a deep tree": 'exec(\'for _ in range(2500):\\n os.mkdir("d"); os.chdir("d")\')',
    "shared memory": "import ctypes; assert ctypes.CDLL(None).shmget(77, 4096, 0o1666) >= 0",
    "a module": "open('/tmp/torch.py', 'w').write('1 / 0')",
}


@pytest.mark.skipif(sys.prefix.startswith("/tmp/"), reason="the environment itself lies in /tmp")
@pytest.mark.parametrize("what", LEAVE)
def test_one_student_leaves_nothing_for_the_next(bubble, what):
    verdict(bubble, f"def double(x):\n    try: exec({LEAVE[what]!r})\n    except OSError: pass\n    return 2 * x")
    source = """
def spy():
    import ctypes
    entries = os.listdir("/tmp") + os.listdir("/dev/shm")
    return json.dumps([entries, ctypes.CDLL(None).shmget(77, 4096, 0o666), os.access("/tmp", os.W_OK)])
"""
    entries, segment, writable = tell(bubble, source)
    assert [e for e in entries if not e.startswith(("work-", "mla-stage-", "torchinductor"))] == []
    assert segment == -1
    assert writable


def test_a_crowd_of_processes_is_stopped(bubble):
    source = """
        import time
        def double(x):
            for _ in range(120):
                try:
                    if os.fork() == 0:
                        os.setpgid(0, 0)
                        time.sleep(60)
                        os._exit(0)
                except OSError: pass
            time.sleep(60)
    """
    started = time.monotonic()
    found = verdict(bubble, source)
    assert found.outcome in (Outcome.MEMORY, Outcome.TIME)
    assert time.monotonic() - started < 20
    assert verdict(bubble, RIGHT).outcome is Outcome.PASSED


def test_a_child_cannot_end_or_stop_the_server(bubble):
    before = bubble._process.pid if verdict(bubble, RIGHT) else None
    source = "def double(x):\n    for s in (9, 19, 2, 15, 6, 11, 1, 10): os.kill(os.getppid(), s)\n    return 2 * x"
    assert verdict(bubble, source).outcome is Outcome.PASSED
    assert bubble._process.pid == before


def test_a_process_whose_name_is_no_text_does_not_end_the_server(bubble):
    before = bubble._process.pid if verdict(bubble, RIGHT) else None
    source = r"""
        import ctypes, time
        def double(x):
            ctypes.CDLL(None).prctl(15, b"\xff\xfe", 0, 0, 0)
            time.sleep(0.3)
            return 2 * x
    """
    assert verdict(bubble, source).outcome is Outcome.PASSED
    assert bubble._process.pid == before


def test_an_answer_that_comes_by_the_byte_ends_with_its_time(monkeypatch):
    class Trickling:
        """An end of a conversation whose clock goes on by a second with each byte."""

        def __init__(self):
            self.rest = list(wire.encode({"text": "x" * 100}))
            self.now = 0.0

        def settimeout(self, seconds):
            assert seconds > 0

        def sendall(self, data): ...

        def recv(self, size):
            self.now += 1.0
            return bytes([self.rest.pop(0)])

    channel = Trickling()
    monkeypatch.setattr(sandbox, "time", SimpleNamespace(monotonic=lambda: channel.now))
    assert Talk(channel).ask({}, seconds=1000.0) == {"text": "x" * 100}
    late = channel = Trickling()
    with pytest.raises(Ended, match="time"):
        Talk(late).ask({}, seconds=10.0)


@pytest.mark.parametrize(
    ("place", "name"),
    [(sandbox.subprocess, "Popen"), (sandbox.wire, "receive"), (sandbox.socket, "send_fds")],
    ids=lambda each: each if isinstance(each, str) else "",
)
@pytest.mark.parametrize("talked", [False, True], ids=["run", "talk"])
def test_after_an_interrupt_at_any_moment_a_request_gets_its_own_answer(place, name, talked, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    original = getattr(place, name)

    def interrupted(*arguments, **keywords):
        monkeypatch.setattr(place, name, original)
        if name != "receive":  # it is done, and nobody has read what it led to
            original(*arguments, **keywords)
        raise KeyboardInterrupt

    with Sandbox("process") as box:
        monkeypatch.setattr(place, name, interrupted)
        with pytest.raises(KeyboardInterrupt):
            if talked:
                with box.talk(Limits()):
                    pass
            else:
                box.run(IDLE, Limits())
        assert not [*tmp_path.glob("mla-stage-*")]
        assert verdict(box, RIGHT).outcome is Outcome.PASSED


def test_a_child_cannot_read_the_servers_memory(bubble):
    source = """
def spy():
    import ctypes
    try: open("/proc/1/mem", "rb"); return json.dumps("read")
    except OSError: pass
    attached = ctypes.CDLL(None).ptrace(16, 1, 0, 0)
    return json.dumps(attached)
"""
    assert tell(bubble, source) == -1


def test_when_the_judge_is_killed_its_workers_go_too(tmp_path):
    if default_isolation() != "bubblewrap":
        pytest.skip("bubblewrap does not work here")
    program = f"""
from autograder.isolation.sandbox import Limits, Sandbox
box = Sandbox("bubblewrap")
box.run({IDLE!r}, Limits())
print(box._process.pid, flush=True)
endless = dict(name="endless", source="while True: pass", required=True, gives="")
box.run({IDLE!r} | dict(program=[endless]), Limits(seconds=60))
"""
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    worker = int(process.stdout.readline())
    time.sleep(0.3)
    process.kill()
    process.wait()
    process.stdout.close()
    deadline = time.monotonic() + 15
    while Path(f"/proc/{worker}").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not Path(f"/proc/{worker}").exists()


def test_what_a_killed_judge_left_is_removed_and_what_a_living_one_uses_is_not(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    left, young = tmp_path / "mla-stage-left", tmp_path / "mla-stage-young"
    for stage in (left, young):
        (stage / "mla_ref").mkdir(parents=True)
    with Sandbox("process") as living:
        living.run(IDLE, Limits())
        (used,) = {*tmp_path.glob("mla-stage-*")} - {left, young}
        for stage in (left, used):
            os.utime(stage, (0, 0))
        with Sandbox("process") as another:
            another.run(IDLE, Limits())
        assert {*tmp_path.glob("mla-stage-*")} == {used, young}
    assert {*tmp_path.glob("mla-stage-*")} == {young}


def test_the_seed_of_a_classroom_is_its_owners(tmp_path):
    with Grader(COURSE, tmp_path / "class") as grader:
        seed = grader.seed
    path = tmp_path / "class" / "seed"
    assert path.stat().st_mode & 0o077 == 0
    assert len(seed) == 32
    with Grader(COURSE, tmp_path / "class") as again, Grader(COURSE, tmp_path / "other") as other:
        assert again.seed == seed != other.seed
    path.write_text("")
    with Grader(COURSE, tmp_path / "class") as redrawn:
        assert len(redrawn.seed) == 32, "an empty seed would be one that everybody knows"
    assert os.path.exists(path)
