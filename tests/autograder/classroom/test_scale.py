"""Judging on the workers of a dask scheduler: the same verdicts, workers that die, a scheduler that vanishes."""

import os
import subprocess
import sys
import time
import types
from pathlib import Path

import pytest

from autograder.classroom import scale
from autograder.classroom.grade import Classroom
from autograder.classroom.scale import Cluster, SchedulerError, Task, rules_of
from autograder.course.course import Course
from autograder.isolation import sandbox
from autograder.isolation.sandbox import Limits, default_isolation
from autograder.judging.program import Cell
from autograder.judging.verdict import Outcome

from .. import tiny_course
from ..tiny_course import NAME, RIGHT, hand_in, notebook

pytest.importorskip("distributed", reason="the extra `scale` is not installed")
pytestmark = pytest.mark.xdist_group("scheduler")  # one set of workers, for all of them
ROOT = Path(__file__).parents[3]
# a wrong result of `double` ends the process that compares it, which is the worker's: a bug of ours
DEADLY = {"lambda x: x / 2": "lambda x: __import__('os').kill(__import__('os').getpid(), 9)"}
HALVED = notebook(double="def double(x): return x / 2", quad=RIGHT["quad"])


def start(folder, *arguments, **environment):
    known = {"PYTHONPATH": str(ROOT), "DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": "0"}
    command = [sys.executable, "-m", "dask", *arguments, "--scheduler-file", str(folder / "scheduler.json")]
    with open(folder / f"{arguments[0]}.log", "w") as log:
        return subprocess.Popen(command, env={**os.environ, **known, **environment}, stdout=log, stderr=log)


class Farm:
    """A scheduler with workers, as processes."""

    def __init__(self, folder, course):
        self.folder = folder
        self.scheduler = start(folder, "scheduler", "--port", "0", "--no-dashboard", "--host", "127.0.0.1")
        self.workers = start(
            folder, "worker", "--nworkers", "2", "--nthreads", "1", "--no-dashboard", MLA_COURSE=str(course.root)
        )
        self.address = self._ready()

    def _ready(self):
        from distributed import Client

        file = Path(self.scheduler.args[-1])
        wait_for(file.exists, self.scheduler)
        with Client(scheduler_file=str(file), set_as_default=False) as client:
            client.wait_for_workers(2, timeout=120)
            return client.scheduler.address

    def close(self):
        for process in (self.workers, self.scheduler):
            process.terminate()
            process.wait()


def wait_for(condition, *processes, seconds=120):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        assert all(process.poll() is None for process in processes)
        time.sleep(0.05)


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    return tiny_course.write(tmp_path_factory.mktemp("deadly"), changes=DEADLY)


@pytest.fixture(scope="module")
def farm(course, tmp_path_factory):
    """Two workers, which take half a minute to start; the last test here ends the scheduler."""
    farm = Farm(tmp_path_factory.mktemp("farm"), course)
    yield farm
    farm.close()


def test_workers_judge_as_this_process_does_and_what_kills_them_is_a_fault(course, farm, tmp_path):
    wrong = notebook(double="def double(x): return x.double", quad="def quad(x): return 5 * x")
    students = {"ada": notebook(**RIGHT), "ben": wrong, "chloe": wrong}
    hand_in(tmp_path / "here", **students)
    hand_in(tmp_path / "there", **students, eve=HALVED)
    (tmp_path / "there" / "seed").write_text("one secret")
    (tmp_path / "here" / "seed").write_text("one secret")
    steps = []
    there = Classroom(course, tmp_path / "there", isolation=default_isolation(), scheduler=farm.address)
    results = there.grade(progress=lambda *step: steps.append(step))
    assert ("judging", 8, 8) in steps
    here = Classroom(course, tmp_path / "here", isolation=default_isolation()).grade()
    eve = next(result for result in results if result.student == "eve")
    assert [(r.student, r.verdicts) for r in results if r is not eve] == [(r.student, r.verdicts) for r in here]
    double, quad = eve.verdicts
    assert (double.outcome, double.score, eve.score) == (Outcome.FAULT, None, None)
    assert "worker after worker died on it" in double.reason
    assert quad.outcome is Outcome.PASSED
    deaths = [line for line in (farm.folder / "worker.log").read_text().splitlines() if "killed by signal 9" in line]
    assert len(deaths) >= 2


@pytest.mark.thorough
def test_workers_of_another_course_are_refused_at_the_start(farm, tiny, tmp_path):
    hand_in(tmp_path / "class", ada=notebook(**RIGHT))
    with pytest.raises(SchedulerError, match=r"would judge otherwise: its code is .*, here it is .*; install the same"):
        Classroom(tiny, tmp_path / "class", isolation=default_isolation(), scheduler=farm.address).grade()
    assert not (tmp_path / "class" / "graded").exists()


def test_a_scheduler_that_is_not_there_is_a_sentence(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(scale, "CONNECT_SECONDS", 1.0)
    hand_in(tmp_path, ada=notebook(**RIGHT))
    with pytest.raises(SchedulerError, match=r"no scheduler answers at tcp://127.0.0.1:1 .*dask scheduler"):
        Classroom(tiny, tmp_path, isolation="process", scheduler="tcp://127.0.0.1:1").grade()


def test_a_worker_that_came_later_and_judges_otherwise_judges_nothing(tiny, monkeypatch):
    monkeypatch.setenv("MLA_COURSE", str(tiny.root))
    scale._here.cache_clear()
    code, torch, triton = rules_of(tiny, NAME)
    task = Task(NAME, "double", False, (Cell("double", RIGHT["double"]),), "seed", Limits(), default_isolation(), ())
    for rules, says in (((code, "1.0", triton), "PyTorch"), (("other", torch, triton), "code")):
        with pytest.raises(SchedulerError, match=f"its {says} is"):
            scale.perform(Task(**{**vars(task), "rules": rules}))
    verdict = scale.perform(Task(**{**vars(task), "rules": (code, torch, triton)}))
    assert (verdict.outcome, verdict.isolation) == (Outcome.PASSED, default_isolation())
    scale._here(default_isolation(), ()).close()
    scale._here.cache_clear()


@pytest.mark.thorough
@pytest.mark.skipif(default_isolation() != "bubblewrap", reason="only bubblewrap hides folders")
def test_a_worker_hides_the_classroom_that_it_judges_for(tiny, tmp_path, monkeypatch):
    classroom = tmp_path / "system" / "class"
    monkeypatch.setattr(sandbox, "SYSTEM", (*sandbox.SYSTEM, str(classroom.parent)))
    monkeypatch.setenv("MLA_COURSE", str(tiny.root))
    scale._here.cache_clear()
    here = cluster(monkeypatch, {}, isolation="bubblewrap")
    here._client.submit = lambda do, task, **rest: types.SimpleNamespace(result=lambda: do(task))
    monkeypatch.setattr("autograder.classroom.grade.Cluster", lambda *rest: here)
    look = f"import os\ndef double(x): raise ValueError(sorted(os.listdir({str(classroom)!r})))"
    hand_in(classroom, eve=notebook(double=look))
    (eve,) = Classroom(tiny, classroom, isolation="bubblewrap", scheduler="tcp://s").grade(jobs=1)
    assert "`): [] (at" in eve.verdicts[0].reason
    scale._here("bubblewrap", (classroom,)).close()
    scale._here.cache_clear()


def cluster(monkeypatch, *workers, isolation="process"):
    """Return a cluster with workers that describe themselves so; its `_client` notes what it is asked for."""
    asked, course = [], Course.at(tiny_course.FOLDER)
    same = {"rules": {NAME: rules_of(course, NAME)}, "isolation": "bubblewrap", "gpu": None, "offers": False}
    found = {f"tcp://w{n}": each if isinstance(each, Exception) else same | each for n, each in enumerate(workers)}
    client = types.SimpleNamespace(
        run=lambda *a, **k: found,
        nthreads=lambda: dict.fromkeys(found, 1),
        submit=lambda *a, **k: asked.append(k) or types.SimpleNamespace(result=lambda: "a verdict"),
        close=lambda: None,
        asked=asked,
    )
    monkeypatch.setattr("distributed.Client", lambda *a, **k: client)
    return Cluster("tcp://s", course, [NAME], isolation)


def test_speeds_are_measured_by_workers_that_offer_a_gpu(monkeypatch):
    task = Task(NAME, "double", True, (), "seed", Limits(), "process", ())
    without = cluster(monkeypatch, {}, {"gpu": "an H100"})
    assert without.gpu is None, "a GPU that is not offered is not taken"
    having = cluster(monkeypatch, {}, {"gpu": "an H100", "offers": True})
    assert having.gpu == "an H100"
    for gpu in (None, "an H100"):
        having.run(Task(**{**vars(task), "gpu": gpu}))
    assert [each["resources"] for each in having._client.asked] == [None, {"GPU": 1}]


@pytest.mark.parametrize(
    ("workers", "says"),
    [
        ([], "has no workers"),
        ([{}, ModuleNotFoundError("No module named 'torch'")], "w1 cannot judge .*No module named 'torch'"),
        ([{"rules": {}}], "its code is none"),
        ([{"isolation": "process"}], "w0 has no bubblewrap"),
        ([{"offers": True}], "offers the resource GPU, and PyTorch finds none"),
        ([{"gpu": "A", "offers": True}, {"gpu": "B", "offers": True}], r"several kinds \(A, B\)"),
    ],
)
def test_workers_that_cannot_judge_the_same_are_refused(monkeypatch, workers, says):
    with pytest.raises(SchedulerError, match=says):
        cluster(monkeypatch, *workers, isolation="bubblewrap")


@pytest.mark.thorough
def test_a_scheduler_that_vanishes_loses_nothing_that_was_judged(course, farm, tmp_path):
    room = Classroom(course, tmp_path / "class", isolation=default_isolation(), scheduler=farm.address)
    slow = [notebook(double=f"import time; time.sleep(1)\ndef double(x): raise ValueError({n})") for n in range(8)]
    hand_in(room.folder, ada=notebook(**RIGHT), **{f"s{n}": each for n, each in enumerate(slow)})

    def vanish(stage, done, total):
        if done == 4:
            farm.scheduler.kill()

    with pytest.raises(SchedulerError, match="is gone: what was judged is kept; run `grade` again"):
        room.grade(progress=vanish)
    kept = {path: path.stat().st_mtime_ns for path in (room.folder / "verdicts").rglob("*.json")}
    assert kept
    results = Classroom(course, room.folder, isolation=default_isolation()).grade()
    assert {result.student: result.score for result in results} == {"ada": 5, **{f"s{n}": 2 for n in range(8)}}
    assert {path: path.stat().st_mtime_ns for path in kept} == kept, "nothing was judged twice"


def test_workers_that_leave_while_they_are_looked_at_are_a_sentence(tiny, monkeypatch):
    import distributed

    class Client:
        def __init__(self, *_, **__): ...

        def run(self, *_, **__):
            known = {"rules": {}, "isolation": "bubblewrap", "gpu": None, "offers": False}
            return {"tcp://127.0.0.1:1": known}

        def nthreads(self):
            return {}

        def close(self): ...

    monkeypatch.setattr(distributed, "Client", Client)
    with pytest.raises(SchedulerError, match="has no workers"):
        Cluster("tcp://127.0.0.1:2", tiny, [], "bubblewrap")
