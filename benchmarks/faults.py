"""Faults to inject: of students and of the grader, each with the label that it must get."""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import signal
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

from autograder.classroom import grade, grader
from autograder.classroom.grade import Classroom
from autograder.classroom.grader import Grader
from autograder.classroom.restore import clean_cells, restore
from autograder.isolation import sandbox
from autograder.isolation.sandbox import Sandbox, default_isolation
from autograder.judging import judge
from autograder.judging import verdict as verdicts
from autograder.judging.verdict import Outcome, Verdict
from autograder.kernels import speed
from autograder.kernels.workers import KernelWorkers
from tests.autograder import kernel_course, tiny_course

KINDS = ("student", "time", "memory", "grader", "none")
LABELS = {
    Outcome.PASSED: "none",
    Outcome.FAULT: "grader",
    Outcome.TIME: "time",
    Outcome.MEMORY: "memory",
}
Found = Sequence[Verdict]


def label(name: str) -> str:
    """Inject a fault and return what it is called; a grader's fault that gives a score is called a zero."""
    try:
        found = FAULTS[name][1]()
    except Exception as error:
        return f"raised {error!r}"[:200]
    called = {LABELS.get(each.outcome, "student") for each in found}
    if any(each.outcome is Outcome.FAULT and each.score is not None for each in found):
        return "a zero"
    return called.pop() if len(called) == 1 else f"several: {sorted(called)}"


# Of students


@functools.cache
def _box() -> Sandbox:
    return Sandbox()


@functools.cache
def _workers() -> KernelWorkers:
    return KernelWorkers()


def _double(body: str) -> Callable[[], Found]:
    """Return the judging of a cell for `double`, which has 5 s and 256 MiB."""
    return lambda: [tiny_course.verdict(_box(), body)]


def _kernel(old: str, new: str) -> Callable[[], Found]:
    """Return the judging of a kernel with one text replaced by another."""

    def found() -> Found:
        assert old in kernel_course.KERNEL
        source = kernel_course.KERNEL.replace(old, new)
        short = replace(kernel_course.ROW_SUM, limits=replace(kernel_course.ROW_SUM.limits, seconds=6.0))
        return [kernel_course.verdict(_workers(), kernel_course.RIGHT, source, short)]

    return found


# Of the grader


def _tiny(
    changes: dict[str, str] | None = None,
    kind: str = "exercises",
    injected: contextlib.AbstractContextManager[Any] | None = None,
) -> Found:
    """Judge a right answer in the tiny course, a file of it changed or something injected."""
    with tempfile.TemporaryDirectory() as scratch:
        course = tiny_course.write(Path(scratch), kind, changes)
        lesson = course.lesson(tiny_course.NAME)
        notebook = restore(lesson, list(clean_cells(tiny_course.notebook(**tiny_course.RIGHT)["cells"])))
        with Grader(course, None) as own, injected or contextlib.nullcontext():
            return [own.verdict(lesson, own.jobs(lesson, notebook)[0])]


def _broken(changes: dict[str, str], kind: str = "exercises") -> Callable[[], Found]:
    return lambda: _tiny(changes, kind)


def _class(
    notebook: bytes | None = None, injected: contextlib.AbstractContextManager[Any] | None = None
) -> tuple[Found, Found]:
    """Grade a class of one in the tiny course while something is injected, then again without."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        course = tiny_course.write(folder)
        room = Classroom(course, folder / "class", isolation=default_isolation())
        tiny_course.hand_in(room.folder, ada=notebook or tiny_course.notebook(**tiny_course.RIGHT))
        try:
            with injected or contextlib.nullcontext():
                found = room.grade()[0].verdicts
        except OSError as error:
            assert not list(room.folder.glob("graded/*/*.json")), "a run that failed recorded something"
            found = [judge.fault(tiny_course.DOUBLE, str(error))]
        finally:
            grader.shared.cache_clear()  # it holds the fault for a while
        again = room.grade()[0].verdicts
        grader.shared.cache_clear()
        return found, again


def _mended(injected: contextlib.AbstractContextManager[Any]) -> Found:
    """Grade a right answer while something is injected; the run after that must give its points."""
    found, again = _class(injected=injected)
    assert {each.outcome for each in again} == {Outcome.PASSED}, again
    return found


def _full_disk() -> Any:
    full = OSError(errno.ENOSPC, "No space left on device")
    return mock.patch.object(verdicts, "write_whole", side_effect=full)


def _killed(times: int = 1 << 30) -> Any:
    """Kill the server of a sandbox as soon as it has work, so many times."""
    send, left = Sandbox._fork, [times]

    def fork(box: Sandbox, limits: Any) -> Any:
        channel = send(box, limits)
        if left[0]:
            left[0] -= 1
            os.kill(box._process.pid, signal.SIGKILL)
        return channel

    return mock.patch.object(Sandbox, "_fork", fork)


def _no_start() -> Found:
    return _tiny(injected=mock.patch.object(sandbox, "_bubblewrap", return_value=["false"]))


def _raising(place: Any, attribute: str) -> Any:
    return mock.patch.object(place, attribute, side_effect=ZeroDivisionError("injected"))


def _no_triton() -> Found:
    """Judge a right kernel where Triton cannot be imported in the sandbox."""
    stage = sandbox.stage_packages

    def without(folder: Path, helpers: Sequence[str] = ()) -> None:
        stage(folder, helpers)
        (folder / "triton.py").write_text("raise ImportError('No module named triton')\n")

    with mock.patch.object(sandbox, "stage_packages", without), KernelWorkers() as workers:
        return [kernel_course.verdict(workers, kernel_course.RIGHT)]


def _speed(attribute: str) -> Callable[[], Found]:
    """Return the judging of a right kernel's speed while a part of its exercise or of the model raises."""

    def found() -> Found:
        from tests.attacks.test_attacks import COURSE

        with Grader(COURSE, None, modelled=True) as own:
            lesson = COURSE.lesson(COURSE.locate("scale_add")[0])
            job = own.reference_job(lesson, "scale_add:speed")
            assert own.verdict(lesson, job.answers).outcome is Outcome.PASSED
            with _raising(speed, attribute):
                return [own.verdict(lesson, job)]

    return found


LOOP = """    turn = 1
    while turn > 0:
        turn = (turn * 5 + 1) % 1024 + 1
    x = turn + tl.load(x_ptr + row"""
DOUBLE = "def double(x):\n    "
FAULTS: dict[str, tuple[str, Callable[[], Found]]] = {
    "an exception": ("student", _double(DOUBLE + "raise ValueError('no')")),
    "a syntax error": ("student", _double("def double(x) return")),
    "a wrong value": ("student", _double(DOUBLE + "return x / 2")),
    "a result of another type": ("student", _double(DOUBLE + "return 'twice'")),
    "os._exit": ("student", _double(DOUBLE + "os._exit(0)")),
    "a signal to itself": ("student", _double(DOUBLE + "os.kill(os.getpid(), 11)")),
    "no function of that name": ("student", _double("def twice(x): return 2 * x")),
    "a notebook that is none": ("student", lambda: _class(b'{"cells": [')[0]),
    "a kernel out of bounds": ("student", _kernel("mask=cols < D, other=0.0", "mask=cols < D + 4096, other=0.0")),
    "a loop without end": ("time", _double(DOUBLE + "while True: pass")),
    "a long sleep": ("time", _double(DOUBLE + "import time\n    time.sleep(60)")),
    "a loop without end in a kernel": (
        "time",
        _kernel("    x = tl.load(x_ptr + row", LOOP),
    ),
    "a giant tensor": ("memory", _double(DOUBLE + "return torch.ones(1 << 33)")),
    "a list that grows": ("memory", _double(DOUBLE + "a = []\n    while True: a.append(bytearray(1 << 24))")),
    "many processes": (
        "memory",
        _double(DOUBLE + "while True:\n        if not os.fork(): __import__('signal').pause()"),
    ),
    "an oracle that raises": ("grader", _broken({"oracle=lambda x: 2 * x": "oracle=lambda x: 2 * y"})),
    "a wrong oracle": ("grader", _broken({"oracle=lambda x: 2 * x": "oracle=lambda x: 3 * x"})),
    "inputs that raise": ("grader", _broken({"randn(generator, n, 4)": "randn(generator, n / 0, 4)"})),
    "hidden cases that raise": ("grader", _broken({"r.randint(10, 30)": "r.randint(30, 10)"})),
    "a part without cases": ("grader", _broken({"[dict(n=70)]": "[]"})),
    "a solution that is wrong": ("grader", _broken({"return 2 * x": "return 3 * x"}, "lesson")),
    "a comparison that raises": ("grader", lambda: _tiny(injected=_raising(judge, "assess"))),
    "a notebook that trips the grader": ("grader", lambda: _mended(_raising(grade, "restore"))),
    "a sandbox that cannot start": (
        "grader",
        _no_start,
    ),
    "a sandbox without Triton": ("grader", _no_triton),
    "a server that is killed each time": ("grader", lambda: _tiny(injected=_killed())),
    "a full disk": ("grader", lambda: _mended(_full_disk())),
    "a baseline that raises": ("grader", _speed("baseline_seconds")),
    "a model that raises": ("grader", _speed("model_call")),
    "a server that is killed once": ("none", lambda: _tiny(injected=_killed(1))),
}
