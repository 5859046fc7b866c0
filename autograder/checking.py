"""`check(name)` and `check_speed(name)` in a notebook.

`check` compares as the judge does, in this process, on the visible cases. `check_speed` times the kernels as the judge
would. Neither gives points: those come from the judge, on data of its own.
"""

from __future__ import annotations

import atexit
import functools
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from autograder.classroom import report
from autograder.course.course import Course, find_course
from autograder.isolation.worker import layout, running, wire
from autograder.judging.cases import Case, draw_cases
from autograder.judging.exercise import Exercise, upcast
from autograder.judging.judge import Failure, broken_terms, read_case, verdict_from
from autograder.judging.program import Cell, build_program, names_bound, without_magics
from autograder.judging.verdict import Outcome, Verdict
from autograder.kernels import measure
from autograder.kernels.explain import data_of, explained
from autograder.kernels.measure import GpuWorker
from autograder.kernels.record import Recording, checked, kernels_of
from autograder.kernels.speed import judge_speed
from autograder.kernels.worker.recording import recording
from autograder.kernels.workers import KernelFailure, KernelWorkers
from mla_ref.hardware import emulator

VISIBLE_SEED = "visible"
SMALLEST_PICTURE = 64  # elements; fewer say nothing


class CheckFailed(AssertionError):
    """The function is not right yet. The message is the first thing that is wrong."""

    def _render_traceback_(self) -> list[str]:
        return [f"CheckFailed: {self}"]


def check(name: str) -> None:
    """Check the function or class `name` of the calling notebook on the visible cases and show what is wrong.

    Raises CheckFailed unless everything is right, UnknownExercise for a name that no exercise has.
    """
    namespace = inspect.currentframe().f_back.f_globals
    course = find_course()
    lesson, exercise = course.locate(name)
    entry = namespace.get(name)
    if not callable(entry):
        raise CheckFailed(f"there is no function or class {name} yet: run the cell above that defines it")
    cases = draw_cases(exercise, VISIBLE_SEED, hidden=False)
    launches: list[dict[str, Any]] = []
    with supplied(namespace, course, lesson, exercise):
        results = [run_case(exercise, entry, case, launches) for case in cases]
    failures = {n: failure for n, (failure, _) in enumerate(results) if failure}
    if launches and not failures and (reason := _refused(namespace, course, lesson, exercise, launches)):
        failures[0] = Failure(Outcome.WRONG, reason, case=str(cases[0]))
    verdict = verdict_from(exercise, cases, failures)
    first = min(failures, default=None)
    picture = "" if first is None else _picture(exercise, cases[first], results[first][1])
    show(verdict, picture)
    if verdict.outcome is not Outcome.PASSED:
        raise CheckFailed(verdict.reason)


def check_speed(name: str) -> None:
    """Show how fast the kernels of `name` in the calling notebook are, and what bounds them.

    Raises CheckFailed unless every point for speed is reached, UnknownExercise for a name that no exercise has.
    """
    namespace = inspect.currentframe().f_back.f_globals
    course = find_course()
    lesson, exercise = course.locate(name)
    if exercise.speed is None:
        raise CheckFailed(f"{name} has no points for speed")
    program = session_program(namespace, course, lesson, exercise)
    verdict = judge_speed(exercise, program, _worker(course))
    show(verdict)
    if verdict.outcome is not Outcome.PASSED:
        raise CheckFailed(verdict.reason)


def session_program(namespace: dict[str, Any], course: Course, lesson: str, exercise: Exercise) -> list[Cell]:
    """Return the program that the judge would run, from the cells that this session has run.

    Where the lessons' scripts are not installed, the session's own set-up and predecessors stand in for the right ones.

    Raises CheckFailed if none of them defines the exercise's function.
    """
    history = list(enumerate(namespace.get("In", ())))
    last = max((n for n, source in history if exercise.name in names_bound(without_magics(source))), default=None)
    if last is None:
        raise CheckFailed(f"there is no function {exercise.name} yet: run the cell above that defines it")
    own = [Cell(exercise.name if n == last else f"cell {n}", source) for n, source in history]
    if not course.has(lesson, "lesson"):
        return build_program((), (), own, own[last])
    plan = course.lesson(lesson)
    return build_program(plan.setup, plan.references(exercise.needs), own, own[last])


def _worker(course: Course) -> KernelWorkers | GpuWorker:
    return _started(course, GpuWorker if measure.available() else KernelWorkers)


@functools.cache
def _started(course: Course, kind: type[Any]) -> Any:
    worker = kind(helpers=course.helpers)
    atexit.register(worker.close)
    return worker


def _refused(
    namespace: dict[str, Any], course: Course, lesson: str, exercise: Exercise, launches: list[dict[str, Any]]
) -> str | None:
    """Return why the judge could not cut the kernels out, as far as it can be told."""
    try:
        kernels_of(session_program(namespace, course, lesson, exercise), Recording(launches, [], []))
    except KernelFailure as error:
        return str(error)
    except CheckFailed:  # run as a script, say
        pass
    return None


def run_case(exercise: Exercise, entry: Any, case: Case, launches: list | None = None) -> tuple[Failure | None, Any]:
    """Call the entry on one case; return what is wrong, if anything, and the result; add its launches to `launches`."""
    call = _call_kernels if exercise.kernel else _call
    result = None
    try:
        result, message = call(exercise, entry, case)
    except wire.WireError as error:
        message = {"unsupported": str(error)}
    except Exception as error:
        message = {"error": running.describe_error(error)}
    failure = read_case(exercise, case, message)
    if launches is not None:
        launches += message.get("launches", [])
    return failure, result


def _call(exercise: Exercise, entry: Any, case: Case) -> tuple[Any, dict[str, Any]]:
    given = layout.unpacked(running.copied(layout.packed(case.arguments)))
    with running.forbidding(exercise.forbidden):
        result = running.DRIVERS[exercise.driver](entry, given)
    sent = wire.decode(wire.encode(result))  # what the judge would see
    return result, {"result": sent, "changed": running.changed(case.arguments, given)}


def _call_kernels(exercise: Exercise, entry: Any, case: Case) -> tuple[Any, dict[str, Any]]:
    """Call on the CPU, and look at what the call does as the judge would; or on the GPU."""
    if not emulator.active():
        case = replace(case, arguments=_on(case.arguments, "cuda"))
        with running.poisoned():
            return _call(exercise, lambda *args: _on(entry(*args), "cpu"), case)
    given = layout.unpacked(running.copied(layout.packed(case.arguments)))
    limit = running.stopped_after(exercise.limits.seconds)
    with limit, running.poisoned(), recording(given, execute=True) as recorder:
        result = running.DRIVERS[exercise.driver](entry, given)
    found = explained(checked(recorder.notes(result)), data_of(given), exercise.copies)
    call = found.recording
    owners = [call.storages[view["storage"]].get("input") for view in call.result]
    return result, {
        "result": wire.decode(wire.encode(result)),
        "changed": running.changed(case.arguments, given),
        "launches": call.launches,
        "unwritten": recorder.blanks.reports[:1],
        "terms": broken_terms(exercise, case, len(call.launches), owners) or _not_explained(found.reason, case),
    }


def _not_explained(reason: str | None, case: Case) -> Failure | None:
    return Failure(Outcome.WRONG, reason, case=str(case)) if reason else None


def _on(value: Any, device: str) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to(device)
    if isinstance(value, dict):
        return {key: _on(each, device) for key, each in value.items()}
    return type(value)(_on(each, device) for each in value) if isinstance(value, list | tuple) else value


@contextmanager
def supplied(namespace: dict[str, Any], course: Course, lesson: str, exercise: Exercise) -> Iterator[None]:
    """Put the right solutions of the exercises that this one needs into `namespace`, for a while.

    Where the lessons' scripts are not installed, the student's own stay.
    """
    if not exercise.needs or not course.has(lesson, "lesson"):
        yield
        return
    plan = course.lesson(lesson)
    scratch: dict[str, Any] = {"__name__": "reference"}
    for cell in (*plan.setup, *plan.references(exercise.needs)):
        running.run_cell(cell.name, cell.source, scratch)
    absent = object()
    before = {name: namespace.get(name, absent) for name in exercise.needs}
    namespace.update({name: scratch[name] for name in exercise.needs})
    try:
        yield
    finally:
        for name, value in before.items():
            if value is absent:
                namespace.pop(name, None)
            else:
                namespace[name] = value


def show(verdict: Verdict, picture: str = "") -> None:
    """Display a verdict: HTML in a notebook, text elsewhere."""
    from IPython import get_ipython
    from IPython.display import display

    if get_ipython() is None:
        print(report.as_text(verdict))
    else:
        data = {"text/html": report.as_html(verdict, picture), "text/plain": report.as_text(verdict)}
        display(data, raw=True)


def _picture(exercise: Exercise, case: Case, result: Any) -> str:
    """Return a picture of the error where the first output is a tensor of the right shape but not right."""
    expected = exercise.oracle(**upcast(case.arguments))
    if isinstance(expected, tuple) and isinstance(result, tuple | list) and expected and result:
        expected, result = expected[0], result[0]
    if not isinstance(expected, torch.Tensor) or not isinstance(result, torch.Tensor):
        return ""
    if expected.shape != result.shape or expected.numel() < SMALLEST_PICTURE or not result.is_floating_point():
        return ""
    return report.error_picture(result.detach().cpu(), expected, exercise.returns[0])
