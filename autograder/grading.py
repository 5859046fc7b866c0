"""Grade notebooks of a classroom: which program to judge for each exercise, and what is known of it already."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import inspect
import json
import math
import secrets
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from nbformat import NotebookNode

import mla_ref
from autograder import (
    compare,
    cost,
    cost_model,
    exercise,
    judge,
    kernel_program,
    measured,
    program,
    proof,
    sandbox,
    speed,
)
from autograder.cost import Bench
from autograder.exercise import Exercise
from autograder.exercises import exercises
from autograder.lesson import Lesson
from autograder.measured import GpuBench
from autograder.program import Cell, build_program
from autograder.sandbox import Sandbox
from autograder.submission import REMARKS, code_cells
from autograder.verdict import Outcome, Verdict, VerdictStore, write_atomically
from autograder.worker import server

KERNEL_MODULES = (cost, cost_model, kernel_program, measured, proof, speed)
INTERPRETED = 10  # times the limit that the caller sets, for kernels that run under the interpreter
PENDING = "counts once the answer is right"  # what is said of the speed of an answer that is not
FAULT_SECONDS = 60.0  # for which a grader fault stands; a later look tries again


@dataclass(frozen=True)
class Job:
    """One exercise of one notebook, or the speed of one: what to run, or the verdict that needs no run.

    A job on speed has the job on the answers that come first, as `answers`.
    """

    exercise: Exercise
    program: tuple[Cell, ...]
    key: str
    settled: Verdict | None = None
    answers: Job | None = None

    @property
    def name(self) -> str:
        """The name of its verdict."""
        return self.exercise.name + (speed.SUFFIX if self.answers else "")


class Grader:
    """Verdicts for notebooks, from the store or from the judge.

    Parameters
    ----------
    classroom
        Folder that holds the secret seed and the verdicts; made if absent. None keeps nothing and draws a fresh seed.
    seconds
        Wall-clock limit an exercise, in place of the exercises' own; kernels get ten times as much.
    isolation
        "bubblewrap" or "process"; by default the best there is.
    modelled
        Model the speed of kernels even where there is a GPU to measure it.
    """

    def __init__(
        self,
        classroom: Path | None,
        seconds: float | None = None,
        isolation: str | None = None,
        modelled: bool = False,
    ):
        self.seconds = seconds
        self.gpu = None if modelled else measured.available()
        self.isolation = isolation or sandbox.default_isolation()
        self.seed = read_seed(classroom) if classroom else secrets.token_hex(16)
        self.store = VerdictStore(classroom / "verdicts") if classroom else None
        self._memory: dict[str, Verdict] = {}
        self._faults: dict[str, tuple[float, Verdict]] = {}
        self._local = threading.local()
        self._workers: list[Sandbox | Bench | GpuBench] = []

    def __enter__(self) -> Grader:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """End the workers."""
        for worker in self._workers:
            worker.close()
        self._workers.clear()
        self._local = threading.local()

    def jobs(self, lesson: Lesson, notebook: NotebookNode) -> list[Job]:
        """Return the jobs of a restored notebook: one an exercise, and one for each speed."""
        remarks = notebook.metadata.get(REMARKS, {})
        cells = code_cells(notebook, lesson)
        found = []
        for each in exercises(lesson.name):
            found.append(self._safe_job(lesson, each, cells, remarks))
            if each.speed:
                found.append(self._speed_job(found[-1]))
        return found

    def _speed_job(self, answers: Job) -> Job:
        each, settled = answers.exercise, answers.settled
        if settled:
            settled = _speed_after(each, settled)
        where = f"measured on {self.gpu}" if self.gpu else f"modelled on {each.speed.device}"
        key = hashlib.sha256(f"speed {answers.key} {where}".encode()).hexdigest() if answers.key else ""
        return Job(each, answers.program, key, settled, answers)

    def _safe_job(self, lesson: Lesson, each: Exercise, cells: list[Cell], remarks: dict) -> Job:
        try:
            return self._job(lesson, each, cells, remarks)
        except Exception as error:  # one notebook that the grader trips over must not stop the class
            return Job(each, (), "", judge.fault(each, f"no program could be cut from the notebook: {error!r}"))

    def reference_job(self, lesson: Lesson, name: str) -> Job:
        """Return the job for the verdict `name` on the lesson's own solution."""
        exercise_name, _, of_speed = name.partition(":")
        each = next(e for e in exercises(lesson.name) if e.name == exercise_name)
        job = self._job(lesson, each, [Cell(n, s) for n, s in lesson.solutions.items()], {}, "the solution")
        return self._speed_job(job) if of_speed else job

    def _job(self, lesson: Lesson, each: Exercise, cells: list[Cell], remarks: dict, who: str = "") -> Job:
        if self.seconds is not None:
            seconds = self.seconds * (INTERPRETED if each.kernel else 1)
            each = replace(each, limits=replace(each.limits, seconds=seconds))
        if remarks.get("outcome") in (Outcome.ABSENT, Outcome.UNREADABLE):
            return Job(each, (), "", judge.zero(each, Outcome(remarks["outcome"]), str(remarks.get("reason", ""))))
        if each.name in remarks.get("missing", []):
            return Job(
                each, (), "", judge.zero(each, Outcome.MISSING, f"the cell of {each.name} is not in the notebook")
            )
        source = next(cell.source for cell in cells if cell.name == each.name)
        if source.strip() == lesson.starter(each.name).strip():
            return Job(each, (), "", judge.zero(each, Outcome.UNFINISHED, "the cell is as it was handed out"))
        solution = Cell(each.name, source)
        cut = tuple(build_program(lesson.setup, lesson.references(each.needs), cells, solution))
        words = (
            [[c.name, c.source] for c in cut],
            each.name,
            version(lesson.name),
            self.seed,
            self.isolation,
            str(each.limits),
        )
        return Job(each, cut, hashlib.sha256(json.dumps([words, who]).encode()).hexdigest())

    def verdict(self, lesson: Lesson, job: Job) -> Verdict:
        """Return the verdict of a job: known, or reached now in this thread's sandbox.

        Before the first verdict on an exercise its own solution is judged; unless that earns every point, the fault
        lies with the grader and no student is given a score.
        """
        if job.settled:
            return job.settled
        if known := self.known(job):
            return known
        fault = speed.fault if job.answers else judge.fault
        if job.answers:
            answers = self.verdict(lesson, job.answers)
            if answers.outcome is not Outcome.PASSED:
                return _speed_after(job.exercise, answers)
        control = self.reference_job(lesson, job.name)
        if job.key != control.key:
            check = self.verdict(lesson, control)
            if check.outcome is not Outcome.PASSED:
                return fault(
                    job.exercise, f"the lesson's own solution of {job.name} is {check.outcome}: {check.reason}"
                )
        verdict = self._run(lesson, job)
        if verdict.outcome is Outcome.FAULT:
            self._faults[job.key] = time.monotonic(), verdict
            return verdict
        self._memory[job.key] = verdict
        if self.store:
            self.store.put(job.key, verdict)
        return verdict

    def _run(self, lesson: Lesson, job: Job) -> Verdict:
        if job.answers:
            bench = self._gpu_bench() if self.gpu else self._bench()
            return speed.judge_speed(job.exercise, job.program, bench, self.seed)
        if not any(each.kernel for each in exercises(lesson.name)):
            return judge.judge(job.exercise, job.program, self.seed, self._sandbox())
        bench = self._bench()  # its interpreter has Triton loaded, which the lesson's setup imports
        prove = functools.partial(proof.prove, job.exercise, job.program, bench) if job.exercise.kernel else None
        return judge.judge(job.exercise, job.program, self.seed, bench.interpreter, prove)

    def known(self, job: Job) -> Verdict | None:
        """Return the verdict of a job if no run is needed for it."""
        since, fault = self._faults.get(job.key, (-math.inf, None))
        if fault and time.monotonic() - since < FAULT_SECONDS:
            return fault
        return job.settled or self._memory.get(job.key) or (self.store.get(job.key) if self.store else None)

    def forget(self) -> None:
        """Drop the verdicts held in memory; those in the store stay."""
        self._memory.clear()
        self._faults.clear()

    def verdicts(self, lesson: Lesson, notebook: NotebookNode) -> dict[str, Verdict]:
        """Return the verdicts on a restored notebook by name: "rms_norm", "rms_norm:speed"."""
        return {job.name: self.verdict(lesson, job) for job in self.jobs(lesson, notebook)}

    def judge_all(self, work: Iterable[tuple[Lesson, Job]], workers: int, progress: Callable[[int, int], None]) -> None:
        """Reach the verdicts of many jobs at once, and call `progress(done, total)` after each."""
        work = list(work)
        fresh = {(lesson.name, job.name): lesson for lesson, job in work if not self.known(job)}
        controls = [(lesson, self.reference_job(lesson, name)) for (_, name), lesson in fresh.items()]
        count = iter(range(1, len(work) + len(controls) + 1))

        def one(item: tuple[Lesson, Job]) -> None:
            self.verdict(*item)
            progress(next(count), len(work) + len(controls))

        with ThreadPoolExecutor(workers) as pool:
            for jobs in (controls, work):  # what others wait for first, so that two threads do not both judge it
                list(pool.map(one, [item for item in jobs if not item[1].answers]))
                list(pool.map(one, [item for item in jobs if item[1].answers]))

    def _sandbox(self) -> Sandbox:
        if not hasattr(self._local, "sandbox"):
            self._local.sandbox = Sandbox(self.isolation)
            self._workers.append(self._local.sandbox)
        return self._local.sandbox

    def _bench(self) -> Bench:
        if not hasattr(self._local, "bench"):
            self._local.bench = Bench(self.isolation)
            self._workers.append(self._local.bench)
        return self._local.bench

    def _gpu_bench(self) -> GpuBench:
        if not hasattr(self._local, "gpu"):
            self._local.gpu = GpuBench(self.isolation)
            self._workers.append(self._local.gpu)
        return self._local.gpu


def _speed_after(exercise: Exercise, answers: Verdict) -> Verdict:
    """Return the verdict on the speed of answers that did not pass."""
    if answers.outcome is Outcome.FAULT:
        return speed.fault(exercise, answers.reason.removeprefix("the grader failed: "))
    if answers.outcome in (Outcome.ABSENT, Outcome.UNREADABLE):
        return speed.zero(exercise, answers.outcome, answers.reason)
    return speed.zero(exercise, answers.outcome, PENDING)


def read_seed(classroom: Path) -> str:
    """Return the classroom's secret seed; draw it on first use."""
    path = classroom / "seed"
    if not path.exists() or not path.read_text().strip():
        write_atomically(path, secrets.token_hex(16) + "\n")  # readable by its owner alone
    return path.read_text().strip()


@functools.cache
def version(lesson: str) -> str:
    """Return a digest of everything that decides a lesson's verdicts: exercises, judge, worker, oracles, and torch."""
    own = {inspect.getmodule(each.inputs) for each in exercises(lesson)} - {None}
    # A lesson may take oracles from another's exercises.
    used = [each for module in own for each in vars(module).values() if isinstance(each, Exercise)]
    modules = [compare, exercise, judge, program, *KERNEL_MODULES, *(inspect.getmodule(each.inputs) for each in used)]
    files = {cost_model.FITTED, *(Path(module.__file__) for module in modules if module)}
    files.update(Path(server.__file__).parent.glob("*.py"), Path(mla_ref.__file__).parent.rglob("*.py"))
    sources = [path.read_bytes() for path in sorted(files)]
    return hashlib.sha256(b"\0".join([*sources, f"{torch.__version__} {_triton()}".encode()])).hexdigest()


def _triton() -> str:
    try:
        return importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:
        return ""


@functools.cache
def shared(classroom: str, seconds: float | None) -> Grader:
    """Return the one grader of a classroom in this process, with nbgrader's preprocessors as its users."""
    return Grader(Path(classroom), seconds)
