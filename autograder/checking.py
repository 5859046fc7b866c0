"""`check(name)`, `check_speed(name)` and `progress()` in a notebook.

`check` compares as the judge does, in this process, on the visible cases; what is right runs once more, as the judge
runs it, in a process of its own. `check_speed` times the kernels as the judge would. Neither gives points: those come
from the judge, on data of its own. `progress` shows what both said last.
"""

from __future__ import annotations

import ast
import atexit
import functools
import inspect
import linecache
import re
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stdout, suppress
from dataclasses import replace
from importlib import metadata
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from typing import Any

import torch

from autograder import progress as notes
from autograder.classroom import report
from autograder.course.colab import INSTALL
from autograder.course.course import PROJECT, Course, find_course
from autograder.course.lesson import Lesson, LessonError
from autograder.isolation.sandbox import Sandbox
from autograder.isolation.worker import layout, running, wire
from autograder.isolation.worker.trees import tensors_in
from autograder.judging.cases import Case, draw_cases, noise_for, without_bfloat16
from autograder.judging.compare import difference
from autograder.judging.exercise import Arguments, Exercise, relative_tolerance, upcast
from autograder.judging.judge import Failure, broken_terms, calls_of, judge, read_case, telling, verdict_from
from autograder.judging.program import Cell, build_program, defining, names_bound, names_read, parsed
from autograder.judging.verdict import Outcome, Verdict
from autograder.kernels import measure
from autograder.kernels.answers import Answers
from autograder.kernels.explain import Explained, Forbidden, data_of, explained, torch_alone
from autograder.kernels.measure import GpuWorker
from autograder.kernels.record import Recording, checked
from autograder.kernels.speed import judge_speed
from autograder.kernels.worker.recording import TooMany, recording
from autograder.kernels.workers import KernelWorkers
from mla_ref.hardware import emulator
from mla_ref.hardware.emulator.memory import Fills

VISIBLE_SEED = "visible"
SMALLEST_PICTURE = 64  # elements; fewer say nothing
GRADED = "its own cell runs whole, and of your other cells only the statements run that define what it needs"
ALONE = (
    f"right here, but not where it is graded: there {GRADED}. Put all that it needs into its own cell, and nothing else"
)
FAILED_ONCE = "the cell that defines it failed when it was run: {} it again"
HIDES_SOURCE = re.compile(r"\s*%%(time|timeit|prun)\b")  # by which a cell's source is nowhere that Triton could read it
FAILS = "right here, but its cell fails, in the notebook too, and the grader runs it whole: "
SAYS = "right here, but the grader says: "
ALIEN = "{} is imported, which the grader may not have: use PyTorch, or put what you need of it into the notebook"
UNJUDGED = "right here, but not judged, so that it does not count as passed; check it again. "
PREINSTALLED = frozenset(["torch", "triton", "numpy", "mla_ref", "autograder"])


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
        ran = [cell for cell in _history(namespace) if name not in namespace and _has_def(name, cell)]
        what = FAILED_ONCE.format(_mend(exercise, ran[-1])) if ran else "run the cell above that defines it"
        raise CheckFailed(f"there is no function or class {name} yet: {what}")
    if failed := _failed_since(name, entry):
        raise CheckFailed(
            f"the cell that defines {name} failed when it was run last, so that {name} is still what it was before: "
            f"{_mend(exercise, failed)} it again"
        )
    if exercise.kernel and not emulator.active() and torch.cuda.get_device_capability() < (8, 0):
        parts = [replace(part, visible=[*map(without_bfloat16, part.visible)]) for part in exercise.parts]
        exercise = replace(exercise, parts=parts)
    cases = draw_cases(exercise, VISIBLE_SEED, hidden=False)
    with supplied(namespace, course, lesson, exercise):
        results = _run_cases(exercise, entry, cases)
    messages = {n: message for n, (message, _, _) in enumerate(results)}
    calls = calls_of(exercise, cases, messages)
    read = {n: read_case(exercise, cases[n], message, calls) for n, message in messages.items()}
    failures = {n: failure for n, failure in read.items() if failure}
    failures |= {n: replace(failures[len(results) - 1], case="") for n in range(len(results), len(cases))}
    verdict = verdict_from(exercise, cases, failures)
    if not failures:
        calls = [call for _, _, call in results]
        verdict = _confirmed(namespace, course, lesson, exercise, cases, calls) or verdict
    if exercise.needs and not course.has(lesson, "lesson"):
        cells, plan = _cells(namespace, course, lesson)
        given, there = plan.setup if plan else (), [name for name in exercise.needs if defining(name, cells)]
        used = names_read(there, cells, found[-1], given) if (found := defining(exercise.name, cells)) else []
        verdict = report.with_own(verdict, used)
    told = telling(exercise, failures) if failures else None
    picture = "" if told is None else _picture(exercise, cases[told], results[told][1])
    show(verdict, picture)
    _keep(verdict, namespace)
    if verdict.outcome is not Outcome.PASSED:
        raise CheckFailed(verdict.reason)


def _failed_since(name: str, entry: Any) -> str:
    """Return the cell that ran before this one, if it should have defined `name` anew and failed first; else ""."""
    from IPython import get_ipython

    last = getattr(get_ipython(), "last_execution_result", None)
    if last is None or last.success or not _has_def(name, last.info.raw_cell):
        return ""
    functions = (each for each in (entry, *vars(entry).values()) if hasattr(each, "__code__"))
    code = next((each.__code__ for each in functions), None)
    ran = get_ipython().transform_cell(last.info.raw_cell)
    stands = code is not None and "".join(linecache.getlines(code.co_filename)).strip() == ran.strip()
    return "" if stands else last.info.raw_cell


def _mend(exercise: Exercise, cell: str) -> str:
    """Return what to do with a cell that failed, up to "it again"."""
    if exercise.kernel and (magic := HIDES_SOURCE.match(cell)):
        return f"Triton cannot read a kernel under {magic[0]}: time a call in a cell below, take the line out and run"
    return "mend it and run"


def _has_def(name: str, cell: str) -> bool:
    """Return whether a cell, broken or not, defines a function or class of that name."""
    return bool(re.search(rf"^\s*(def|class)\s+{name}\b", cell, re.MULTILINE))


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
    verdict = judge_speed(exercise, program, _worker(course, exercise))
    show(verdict)
    _keep(verdict, namespace)
    if verdict.outcome is not Outcome.PASSED:
        raise CheckFailed(verdict.reason)


def progress() -> None:
    """Show what the checks of this course said last, in this notebook's folder and in those beside it."""
    found = notes.entries(find_course(), Path.cwd())
    _display(notes.as_html(found), notes.as_text(found))


def _keep(verdict: Verdict, namespace: dict[str, Any]) -> None:
    """Note a verdict on what the notebook itself defines, not on what a script or a cell's own `exec` does."""
    if _shell_of(namespace):
        notes.note(verdict, Path())  # which may be there no more


def _shell_of(namespace: dict[str, Any]) -> Any:
    """Return the shell of a notebook whose namespace this is; None of a script's, or of what an `exec` has."""
    from IPython import get_ipython

    shell = get_ipython()
    return shell if shell is not None and shell.user_ns is namespace else None


def session_program(
    namespace: dict[str, Any], course: Course, lesson: str, exercise: Exercise, last: bool = True
) -> list[Cell]:
    """Return the program that the judge would run, from the cells that this session has run.

    `last` is that of `build_program`: by default a name has the value that it has in the session.

    The lesson's set-up is the lesson's own. Where its script is not installed, the session's own predecessors stand in
    for the right ones, called as those are.

    Raises CheckFailed if none of them defines the exercise's function.
    """
    own, plan = _cells(namespace, course, lesson)
    found = defining(exercise.name, own)
    if not found:
        raise CheckFailed(f"no cell that was run defines {exercise.name}: write it in its own cell, and run that")
    solution = replace(found[-1], name=exercise.name)
    own[own.index(found[-1])] = solution
    if plan is None:
        return build_program((), (), own, solution, last)
    for name in exercise.needs if plan.handed_out else ():
        mine, asked = defining(name, own), as_asked(name, plan.solutions[name])
        if mine and mine[-1] is not solution and asked:
            own[own.index(mine[-1])] = replace(mine[-1], source=f"{mine[-1].source}\n{asked}")
    return build_program(plan.setup, plan.references(exercise.needs), own, solution, last)


def _cells(namespace: dict[str, Any], course: Course, lesson: str) -> tuple[list[Cell], Lesson | None]:
    """Return the cells of the student's that this session has run, and the lesson, of which they are not.

    The lesson is None where no more of it is installed than its exercises.
    """
    own = [Cell(f"[{n}]", source) for n, source in enumerate(_history(namespace))]  # as Jupyter shows it
    try:
        plan = course.lesson(lesson)
    except LessonError:
        return own, None
    given = {cell.source for cell in plan.notebook.cells if _is_given(cell)}
    return [cell for cell in own if cell.source not in given], plan


def _history(namespace: dict[str, Any]) -> Sequence[str]:
    """Return the cells that this session has run, as they were typed."""
    shell = _shell_of(namespace)
    return shell.history_manager.input_hist_raw if shell else namespace.get("In", ())  # `In` has no magics any more


def _is_given(cell: Any) -> bool:
    """Return whether a cell of a lesson is none of the student's: the grader has it, or runs without it."""
    return cell["id"] == INSTALL or cell.metadata.get("nbgrader", {}).get("locked", False)


def as_asked(name: str, starter: str) -> str:
    """Return statements that have a function of the student's take what its starter takes, as the right one does.

    Empty for a kernel or a class.
    """
    for node in getattr(parsed(starter), "body", []):
        if isinstance(node, ast.FunctionDef) and node.name == name and not node.decorator_list:
            given = node.args
            for arg in (*given.posonlyargs, *given.args, *given.kwonlyargs):
                arg.annotation = None
            names = [arg.arg for arg in (*given.posonlyargs, *given.args)]
            names += [f"{arg.arg}={arg.arg}" for arg in given.kwonlyargs]
            called = f"def {name}({ast.unparse(given)}): return own({', '.join(names)})"
            maker = running.AS_ASKED.format(name)
            return f"def {maker}(own):\n    {called}\n    return {name}\n{name} = {maker}({name})"
    return ""


def foreign(cells: Sequence[Cell]) -> str | None:
    """Return a module that a program imports and that comes with no package of the course's, or None.

    What is imported under a condition, in a `try` or under `suppress`, may be missing.
    """
    waiting = [node for cell in cells for node in getattr(parsed(cell.source), "body", [])]
    while waiting:
        node = waiting.pop(0)
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module] if isinstance(node, ast.ImportFrom) and node.module and not node.level else []
        for name in names:
            top = name.split(".")[0]
            if top not in sys.stdlib_module_names | PREINSTALLED and top not in _packages() and _is_there(top):
                return top
        if isinstance(node, ast.Try):
            waiting += [*node.handlers, *node.finalbody]
            continue
        suppressed = isinstance(node, ast.With) and any("suppress" in ast.unparse(each) for each in node.items)
        if not (suppressed or isinstance(node, ast.If)):
            waiting += ast.iter_child_nodes(node)
    return None


def _is_there(module: str) -> bool:
    with suppress(ValueError, ImportError):  # of `__main__`, or of one that is made at run time, there is none
        return find_spec(module) is not None
    return False


@functools.cache
def _packages() -> frozenset[str]:
    """Return the modules of all distributions that the course's installation brings."""
    found, waiting = set(), [PROJECT]
    while waiting:
        name = re.sub(r"[-_.]+", "-", waiting.pop()).lower()
        if name not in found:
            found.add(name)
            with suppress(metadata.PackageNotFoundError):
                needs = (each for each in metadata.requires(name) or () if "extra ==" not in each)
                waiting += [re.match(r"[\w.-]+", each)[0] for each in needs]
    every = metadata.packages_distributions().items()
    return frozenset(m for m, given in every if any(re.sub(r"[-_.]+", "-", d).lower() in found for d in given))


def _worker(course: Course, exercise: Exercise) -> KernelWorkers | GpuWorker:
    return _started(course, GpuWorker if measure.timing(exercise, measure.available()) else KernelWorkers)


@functools.cache
def _started(course: Course, kind: type[Any]) -> Any:
    worker = kind(helpers=course.helpers)
    atexit.register(worker.close)
    return worker


def _confirmed(
    namespace: dict[str, Any],
    course: Course,
    lesson: str,
    exercise: Exercise,
    cases: list[Case],
    calls: list[Explained | None],
) -> Verdict | None:
    """Return the judge's verdict where each result is right here; None where no cells are known that it could run.

    The judge runs the program that it cuts from the session's cells, in a process of its own. A call of None does
    other things on other data, or ran on a GPU; one with a `reason` does not count. Of these the judge's words are
    enough. Where it finds what none of the calls shows, a name that is missing or a cell that fails tells that the
    program is not the session; what else it says comes first.
    """
    reason = next((each.reason for each in calls if each and each.reason), None)
    try:
        ways = [session_program(namespace, course, lesson, exercise, last) for last in (True, False)]
        said = (module := foreign(ways[0])) and ALIEN.format(module)
    except CheckFailed as error:
        ways, said = [], str(error) if _shell_of(namespace) else reason
    if said or not ways:
        failed = dict.fromkeys(range(len(cases)), Failure(Outcome.WRONG, said or ""))
        return verdict_from(exercise, cases, failed) if said else None
    found = _judged(course, lesson, exercise, ways[0])
    if found.outcome is not Outcome.PASSED and ways[0] != ways[1]:
        other = _judged(course, lesson, exercise, ways[1])
        found = other if other.outcome is Outcome.PASSED else found
    if found.outcome is Outcome.FAULT:
        return replace(found, reason=f"{UNJUDGED}{found.reason[:1].upper()}{found.reason[1:]}")
    if found.outcome is Outcome.PASSED or reason or None in calls:
        return found
    if _unlike_the_session(found):
        if _failed_last(namespace, course, lesson, exercise):
            return replace(found, reason=f"{FAILS}{found.reason}")
        return replace(found, reason=f"{ALONE}. The grader would say: {found.reason}", notes=(*found.notes, ALONE))
    values = not exercise.kernel and found.outcome in (Outcome.WRONG, Outcome.PARTIAL)  # of a kernel, how it is written
    perhaps = values or (found.outcome is Outcome.ERROR and not found.reason.startswith("SyntaxError"))
    notes = (*found.notes, f"where it is graded {GRADED}") if perhaps else found.notes
    return replace(found, reason=f"{SAYS}{found.reason}", notes=notes)


def _unlike_the_session(found: Verdict) -> bool:
    """Return whether the judge missed a name, or a cell failed there that is Python for it, too."""
    limited = found.outcome in (Outcome.TIME, Outcome.MEMORY, Outcome.ENDED)
    if limited or any("SyntaxError" in said for said in (found.reason, *found.notes)):  # an `await` beside functions
        return False
    cell_failed = found.outcome is Outcome.ERROR and not any(part.case for part in found.parts)
    return cell_failed or bool(found.notes) or found.outcome is Outcome.MISSING or found.reason.startswith("NameError")


def _failed_last(namespace: dict[str, Any], course: Course, lesson: str, exercise: Exercise) -> bool:
    """Return whether the exercise's own cell is what ran last before this one, and failed."""
    last, (cells, _) = getattr(_shell_of(namespace), "last_execution_result", None), _cells(namespace, course, lesson)
    found = defining(exercise.name, cells)
    return last is not None and not last.success and found[-1].source.strip() == last.info.raw_cell.strip()


def _judged(course: Course, lesson: str, exercise: Exercise, cells: list[Cell]) -> Verdict:
    """Return the judge's verdict on a program, on the visible cases."""
    if find_spec("triton") and any(each.replayed for each in course.exercises(lesson)):
        workers = _started(course, KernelWorkers)
        settle = Answers(exercise, cells, workers) if exercise.replayed else None
        return judge(exercise, cells, VISIBLE_SEED, workers.sandbox, settle, hidden=False)
    return judge(exercise, cells, VISIBLE_SEED, _started(course, Sandbox), hidden=False)


def _run_cases(exercise: Exercise, entry: Any, cases: list[Case]) -> list[tuple[dict[str, Any], Any, Explained | None]]:
    """Return what `run_case` gives of each case, up to one that takes all the time there is: the others would, too."""
    results = []
    for case in cases:
        started = time.monotonic()
        results.append(run_case(exercise, entry, case))
        failure = read_case(exercise, case, results[-1][0]) if "error" in results[-1][0] else None
        late = failure is not None and failure.outcome is Outcome.TIME
        if late and time.monotonic() - started >= exercise.limits.seconds:
            break
    return results


def run_case(exercise: Exercise, entry: Any, case: Case) -> tuple[dict[str, Any], Any, Explained | None]:
    """Call the entry on one case; return what the judge would be told, the result, and what of the call counts."""
    result = found = None
    try:
        result, message, found = _called(exercise, entry, case)
    except wire.WireError as error:
        message = {"unsupported": str(error)}
    except TooMany as error:
        message = {"beyond": str(error)}
    except Forbidden as error:
        message = {"error": {"type": "ForbiddenCall", "message": str(error)}}
    except (Exception, SystemExit) as error:
        message = {"error": _described(error)}
    return message, result, found


def _described(error: Exception) -> dict[str, Any]:
    """Describe an error as the judge does, but name a cell that is not the exercise's by the function that failed."""
    found = running.describe_error(error)
    if isinstance(error, NameError) and not isinstance(error, UnboundLocalError):
        found["message"] += ": is it spelt like that, and was the cell run that defines it?"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if running.is_students(frame.filename)]
    late = str(error) == running.TIME_IS_UP  # of which the place is in the first cell
    if frames and found["where"] and found["where"]["line"] == frames[-1].lineno and not late:
        elsewhere = frames[-1].filename != frames[0].filename
        found["where"]["cell"] = found["where"]["cell"] or (frames[-1].name if elsewhere else "")
    return found


def _called(exercise: Exercise, entry: Any, case: Case) -> tuple[Any, dict[str, Any], Explained | None]:
    """Return the result, the message that the judge would get, and what of the call counts.

    None stands for what is open: on noise, as for the judge, the call does other things, and nothing says yet why it
    should not count.
    """
    limit = running.stopped_after(exercise.limits.seconds)
    if exercise.kernel and not emulator.active():
        case = replace(case, arguments=_on(case.arguments, "cuda"))
        given = _copy(case.arguments)
        with running.poisoned():
            result = _on(_run(exercise, entry, given), "cpu")
        return result, _message(case, given, result), None
    given = _copy(case.arguments)
    if not exercise.kernel and not (exercise.replayed and find_spec("triton")):
        with limit, _counting(exercise, entry) as calls:
            result = _run(exercise, entry, given)
        return result, _message(case, given, result) | {"calls": calls}, Explained(Recording([], [], []))
    memory = running.poisoned() if exercise.kernel else nullcontext()
    with limit, memory, Fills() as fills, recording(given, execute=True) as recorder:
        result = _run(exercise, entry, given)
    message, notes = _message(case, given, result), recorder.notes(result)
    call = checked(notes)
    if exercise.kernel:
        found = explained(call, data_of(given), exercise.copies)
        message |= {"unwritten": recorder.blanks.reports[:1], "explained": found.reason}
        tensors = tensors_in(result)
        message |= {"blank": recorder.blanks.nans(tensors), "filled": _filled(exercise, entry, case, fills, tensors)}
    else:
        found = torch_alone(call, exercise.forbidden, exercise.most(**case.arguments) if exercise.most else None)
    owners = [call.storages[view["storage"]].get("input") for view in call.result]
    message["terms"] = broken_terms(exercise, case, len(call.launches), owners)
    known = not fills.open and wire.encode(notes) == _noted_on_noise(exercise, entry, case)
    return result, message, found if known or found.reason else None


def _counting(exercise: Exercise, entry: Any) -> AbstractContextManager[list[list[int]]]:
    """Count as the judge does: calls of the function that the entry's notebook has by that name."""
    if not (counted := exercise.counted):
        return nullcontext([])
    function = getattr(entry, "__globals__", {}).get(counted.function)
    filename = getattr(getattr(function, "__code__", None), "co_filename", "")
    return running.counting(counted.cell, counted.function, counted.argument, filename)


def _filled(exercise: Exercise, entry: Any, case: Case, fills: Fills, results: list[torch.Tensor]) -> list[str] | None:
    """Return what `Fills.reaching` does of a call; None if it is not known."""
    limit, silent = running.stopped_after(exercise.limits.seconds), redirect_stdout(StringIO())
    try:
        with limit, silent, running.poisoned():
            return fills.reaching(lambda: tensors_in(_run(exercise, entry, _copy(case.arguments))), results)
    except (Exception, SystemExit):
        return None


def _noted_on_noise(exercise: Exercise, entry: Any, case: Case) -> bytes | None:
    """Return what is noted of a call on noise, as for the judge; None if it raises something."""
    given = noise_for(exercise, case, VISIBLE_SEED, exercise.kernel)
    limit, silent = running.stopped_after(exercise.limits.seconds), redirect_stdout(StringIO())
    try:
        with limit, silent, recording(given) as recorder:
            result = _run(exercise, entry, given)
        return wire.encode(recorder.notes(result))
    except (Exception, SystemExit):
        return None


def _run(exercise: Exercise, entry: Any, arguments: Arguments) -> Any:
    compiler = "torch._dynamo" in sys.modules  # it would compile what records a call, too: all runs as it was written
    stance = torch.compiler.set_stance("force_eager") if compiler else nullcontext()
    with stance, running.forbidding(exercise.forbidden):
        return running.DRIVERS[exercise.driver](entry, arguments)


def _message(case: Case, given: Arguments, result: Any) -> dict[str, Any]:
    try:
        sent = wire.decode(wire.encode(result))  # what the judge would see
    except wire.WireError as error:
        raise wire.WireError(wire.refusal(error, result)) from None
    return {"result": sent, "changed": running.changed(case.arguments, given)}


def _copy(arguments: Arguments) -> Arguments:
    return layout.unpacked(running.copied(layout.packed(arguments)))


def _on(value: Any, device: str) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to(device)
    if isinstance(value, dict):
        return {key: _on(each, device) for key, each in value.items()}
    return type(value)(_on(each, device) for each in value) if isinstance(value, list | tuple) else value


@contextmanager
def supplied(namespace: dict[str, Any], course: Course, lesson: str, exercise: Exercise) -> Iterator[None]:
    """Put the right solutions of the exercises that this one needs into `namespace`, for a while.

    What the exercise's own cell binds stays, as in the judge's program. Where the lessons' scripts are not installed,
    all of the student's own do.
    """
    if not exercise.needs or not course.has(lesson, "lesson"):
        yield
        return
    cells, plan = _cells(namespace, course, lesson)
    own = names_bound(found[-1].source) if (found := defining(exercise.name, cells)) else set()
    scratch: dict[str, Any] = {"__name__": "reference"}
    for cell in (*plan.setup, *plan.references(exercise.needs)):
        running.run_cell(cell.name, cell.source, scratch)
    absent = object()
    before = {name: namespace.get(name, absent) for name in exercise.needs if name not in own}
    namespace.update({name: scratch[name] for name in before})
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
    _display(report.as_html(verdict, picture), report.as_text(verdict))


def _display(html: str, text: str) -> None:
    from IPython import get_ipython
    from IPython.display import display

    if get_ipython() is None:
        print(text)
    else:
        display({"text/html": html, "text/plain": text}, raw=True)


def _picture(exercise: Exercise, case: Case, result: Any) -> str:
    """Return a picture of the error where the first output is a tensor of the right shape but not right."""
    expected, tolerance = exercise.oracle(**upcast(case.arguments)), relative_tolerance(exercise, case.arguments)
    if isinstance(expected, tuple) and isinstance(result, tuple | list) and expected and result:
        expected, result = expected[0], result[0]
    if not isinstance(expected, torch.Tensor) or not isinstance(result, torch.Tensor):
        return ""
    if expected.shape != result.shape or expected.numel() < SMALLEST_PICTURE or not result.is_floating_point():
        return ""
    if difference(result.detach().cpu(), expected, exercise.returns[:1], tolerance) is None:
        return ""
    return report.error_picture(result.detach().cpu(), expected, exercise.returns[0])
