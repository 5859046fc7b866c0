"""Where programs are judged: in threads of this process, or on the workers of a dask scheduler.

A task is pure: its verdict follows from what it holds and from the code whose digest it holds. Whoever sends the tasks
keeps the verdicts, so that workers write nothing and may die.
"""

from __future__ import annotations

import functools
import importlib.metadata
import logging
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from autograder.course.course import Course, find_course
from autograder.course.digest import OWN, digest, imported
from autograder.isolation import sandbox
from autograder.isolation.sandbox import Limits, Sandbox
from autograder.judging import judge
from autograder.judging.exercise import Exercise
from autograder.judging.program import Cell
from autograder.judging.verdict import Verdict
from autograder.kernels import cost_model, measure, speed
from autograder.kernels.answers import Answers
from autograder.kernels.measure import GpuWorker
from autograder.kernels.workers import KernelWorkers
from mla_ref.hardware.devices import hardware_path

ENGINE = Path(__file__).parents[1]
RULES = (
    *(ENGINE / "judging/judge.py", ENGINE / "isolation/sandbox.py"),
    *(ENGINE / "isolation/worker" / name for name in ("server.py", "stub.py")),
)
REPLAY_RULES = (ENGINE / "kernels/answers.py", ENGINE / "kernels/worker/tasks.py")
SPEED_RULES = (ENGINE / "kernels/speed.py", cost_model.FITTED)
CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
CONNECT_SECONDS = 10.0
NO_WORKERS = "the scheduler at {} has no workers: start some with `dask worker`"
GPU = "GPU"  # the resource that a worker offers where it may measure

Rules = tuple[str, ...]


class SchedulerError(RuntimeError):
    """The scheduler cannot be used, or is gone: a sentence with what to do."""


@dataclass(frozen=True)
class Task:
    """A program to judge, on its answers or on its speed, and all that the verdict follows from.

    `rules` are a digest of the code that decides and the versions of PyTorch and Triton (see `rules_of`). `gpu` is the
    GPU that measures a speed, None where it is modelled. `hidden` are folders that the program must not see where it
    runs (see `Here`), if they are there.
    """

    lesson: str
    exercise: str
    of_speed: bool
    program: tuple[Cell, ...]
    seed: str
    limits: Limits
    isolation: str
    rules: Rules
    gpu: str | None = None
    hidden: tuple[Path, ...] = ()


def rules_of(course: Course, lesson: str, program: Sequence[Cell] = ()) -> Rules:
    """Return what else decides the verdict on a program: code, as a digest, and versions.

    The code is that of the lesson's exercises, of the judge's rules for their kind, and of what the program imports of
    the course's helpers; each with all that it imports of ours.
    """
    helpers = ("mla_ref", *course.helpers)
    used = {path for cell in program for path in imported(cell.source, helpers)}
    return _digest(_files(course, lesson) | used, (*OWN, *helpers)), torch.__version__, _triton()


@functools.cache
def _files(course: Course, lesson: str) -> frozenset[Path]:
    rules, exercises = RULES, course.exercises(lesson)
    if any(each.replayed for each in exercises):
        rules += REPLAY_RULES
    if any(each.speed for each in exercises):
        rules += (*SPEED_RULES, *([path] if (path := hardware_path()) else ()))
    return frozenset((course.folder(lesson) / "exercises.py", *rules))


@functools.cache  # for as long as this process runs the code that it has loaded
def _digest(files: frozenset[Path], packages: tuple[str, ...]) -> str:
    return digest(files, packages)


def _has_kernels(course: Course, lesson: str) -> bool:
    return any(each.kernel for each in course.exercises(lesson))


@functools.cache
def _triton() -> str:
    try:
        return importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:
        return ""


class Here:
    """Threads of this process, each with sandboxes of its own, which start on first use.

    Attributes
    ----------
    gpu : str or None
        The GPU that measures speeds; None where they are modelled, by `modelled` or because there is none.
    seats : int
        How many tasks are run at a time unless the caller says.
    hidden : sequence of Path
        What the code that is judged must not see, wherever it lies; the course, besides.
    """

    def __init__(self, course: Course, isolation: str, modelled: bool = False, hidden: Sequence[Path] = ()):
        self.course, self.isolation, self.hidden = course, isolation, (course.root, *hidden)
        self.gpu = None if modelled else measure.available()
        self.seats = CORES
        self.workers: list[Sandbox | KernelWorkers | GpuWorker] = []
        self._local = threading.local()

    def run(self, task: Task) -> Verdict:
        """Judge a program in this thread's sandbox."""
        each, worker = _exercise(self.course, task), None
        if task.of_speed:
            worker = self._own(GpuWorker) if task.gpu else self._own(KernelWorkers)
            found = speed.judge_speed(each, task.program, worker, task.seed)
        elif not _has_kernels(self.course, task.lesson) and not each.replayed:
            found = judge.judge(each, task.program, task.seed, self._own(Sandbox))
        else:
            worker = self._own(KernelWorkers)  # they have Triton loaded, which the lesson's setup imports
            settle = Answers(each, task.program, worker) if each.replayed else None
            found = judge.judge(each, task.program, task.seed, worker.sandbox, settle)
        return replace(found, isolation=self.isolation)

    def abandon(self) -> None:
        """Wait for what is under way, which has its limits."""

    def rest(self) -> None:
        """End the sandboxes; they start again if they are needed. Not while others judge."""
        for worker in self.workers:
            worker.close()
        self.workers.clear()
        self._local = threading.local()

    close = rest

    def _own(self, kind: Callable[..., Any]) -> Any:
        """Return this thread's worker of a kind, made on first use."""
        if not hasattr(self._local, kind.__name__):
            terms = {"helpers": self.course.helpers, "hidden": self.hidden}
            setattr(self._local, kind.__name__, kind(self.isolation, **terms))
            self.workers.append(getattr(self._local, kind.__name__))
        return getattr(self._local, kind.__name__)


class Cluster:
    """The workers of a dask scheduler; `gpu` and `seats` as of `Here`.

    Speeds are measured where workers offer the resource GPU, on a GPU that all of these have, and modelled where none
    does. A worker that dies is replaced by the scheduler, and its tasks are done again.

    Raises
    ------
    SchedulerError
        No scheduler answers at `address`, it has no workers, or one of them judges otherwise than this process: by
        other code or versions, without bubblewrap where that is asked for, or with another GPU.
    """

    def __init__(self, address: str, course: Course, lessons: Sequence[str], isolation: str):
        from distributed import Client

        self.address, self.course = address, course
        self._alone = threading.Lock()
        for name in ("distributed", "distributed.client", "distributed.core"):
            logging.getLogger(name).setLevel(logging.CRITICAL)  # what goes wrong is said in a sentence of ours
        try:
            self._client = Client(address, timeout=CONNECT_SECONDS, set_as_default=False)
        except (OSError, ValueError) as error:
            raise SchedulerError(
                f"no scheduler answers at {address} ({error}): start one with `dask scheduler`, and its workers with "
                "`dask worker ADDRESS`"
            ) from None
        try:
            self.gpu = self._examine(lessons, isolation)
            self.seats = 2 * sum(self._client.nthreads().values())  # one at work, one on its way
            if not self.seats:  # they have gone since
                raise SchedulerError(NO_WORKERS.format(address))
        except BaseException:
            self.close()
            raise

    def _examine(self, lessons: Sequence[str], isolation: str) -> str | None:
        """Return the GPU that measures. Raises SchedulerError if a worker would judge otherwise than this process."""
        workers = self._client.run(describe, list(lessons), on_error="return")
        if not workers:
            raise SchedulerError(NO_WORKERS.format(self.address))
        gpus = set()
        for address, found in workers.items():
            if isinstance(found, BaseException):
                raise SchedulerError(
                    f"the worker at {address} cannot judge ({type(found).__name__}: {found}): install there what is "
                    "installed here, and start it in a checkout of this course"
                )
            for lesson in lessons:
                _compare(address, found["rules"].get(lesson), rules_of(self.course, lesson))
            if isolation == "bubblewrap" != found["isolation"]:
                raise SchedulerError(f"the worker at {address} has no bubblewrap: run `apt install bubblewrap` there")
            if found["offers"] and not found["gpu"]:
                raise SchedulerError(f"the worker at {address} offers the resource {GPU}, and PyTorch finds none there")
            gpus |= {found["gpu"]} if found["offers"] else set()
        if len(gpus) > 1:
            raise SchedulerError(
                f"the workers have GPUs of several kinds ({', '.join(sorted(gpus))}), which would give several scores "
                f"for one kernel: offer the resource {GPU} on one kind alone"
            )
        return min(gpus, default=None)

    def run(self, task: Task) -> Verdict:
        """Have a worker judge a program, and wait. A program on which worker after worker dies is a grader fault.

        dask suspects all that a worker had before it when it died. Suspects are tried again, one at a time.

        Raises SchedulerError if the scheduler is gone, or a worker that came later judges otherwise.
        """
        from distributed import KilledWorker

        try:
            return self._submit(task)
        except KilledWorker:
            pass
        try:
            with self._alone:
                return self._submit(task)
        except KilledWorker as error:
            reason = f"worker after worker died on it, the last one at {error.last_worker.address}"
            return judge.fault(_exercise(self.course, task), reason, task.of_speed)

    def _submit(self, task: Task) -> Verdict:
        try:
            resources = {GPU: 1} if task.gpu else None
            return self._client.submit(perform, task, pure=False, resources=resources).result()
        except (CancelledError, OSError):
            raise SchedulerError(
                f"the scheduler at {self.address} is gone: what was judged is kept; run `grade` again to go on"
            ) from None

    def close(self) -> None:
        """Leave the scheduler, which drops what it has not done yet of our tasks."""
        self._client.close()

    abandon = close

    def rest(self) -> None:
        """Do nothing: the workers' sandboxes are theirs."""


def _exercise(course: Course, task: Task) -> Exercise:
    each = next(each for each in course.exercises(task.lesson) if each.name == task.exercise)
    return replace(each, limits=task.limits)


def _compare(where: str, theirs: Rules | None, ours: Rules) -> None:
    """Raise SchedulerError, naming what differs, unless a worker decides by the same rules."""
    for what, one, other in zip(("code", "PyTorch", "Triton"), theirs or ("none",) * 3, ours, strict=True):
        if one != other:
            one, other = (each[:12] or "none" for each in (one, other))
            raise SchedulerError(
                f"the worker at {where} would judge otherwise: its {what} is {one}, here it is {other}; install the "
                "same project and versions there"
            )


def describe(lessons: Sequence[str], dask_worker: Any = None) -> dict[str, Any]:
    """Return what a worker judges by. Runs on the worker, which dask passes."""
    course = find_course()
    known = [name for name in course.lesson_names() if name in lessons]
    return {
        "rules": {name: rules_of(course, name) for name in known},
        "isolation": sandbox.default_isolation(),
        "gpu": measure.available(),
        "offers": GPU in dask_worker.state.total_resources,
    }


def perform(task: Task) -> Verdict:
    """Judge a program. Runs on a worker. Raises SchedulerError if that decides by other rules than the task's."""
    here = _here(task.isolation, task.hidden)
    _compare(os.uname().nodename, rules_of(here.course, task.lesson, task.program), task.rules)
    if task.gpu and task.gpu != here.gpu:
        raise SchedulerError(f"the worker at {os.uname().nodename} has the GPU {here.gpu}, expected {task.gpu}")
    return here.run(task)


@functools.cache
def _here(isolation: str, hidden: tuple[Path, ...]) -> Here:
    """Return the one place of a worker's process for a classroom."""
    return Here(find_course(), isolation, hidden=hidden)
