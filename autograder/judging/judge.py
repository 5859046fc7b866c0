"""Reach a verdict on one exercise: draw the cases, run the student's program elsewhere, compare, say why.

This is the trusted side. It holds the seed, the oracle and the clock, and sees of the student's code only bytes.
"""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from autograder.isolation.sandbox import Reply, Sandbox, SandboxError, ServerLost
from autograder.isolation.worker.layout import packed
from autograder.isolation.worker.running import BESIDE, SHARE, TIME_IS_UP, earlier, in_words
from autograder.isolation.worker.shelf import EVERY
from autograder.isolation.worker.trees import tensors_in
from autograder.judging.cases import Case, draw_cases, noise_for
from autograder.judging.compare import Calls, Difference, assess
from autograder.judging.exercise import STUB, Exercise, upcast
from autograder.judging.program import Cell, digest_of
from autograder.judging.verdict import Outcome, PartVerdict, Verdict
from autograder.text import one_line, quoted

# Of a case, by a student's process, beside what it "changed"
SAID = ("result", "notes", "first", "unsupported", "beyond", "error", "calls")
OUT_OF_MEMORY = ("can't allocate memory", "not enough memory", "bad_alloc", "cannot allocate memory")
# What a kernel does wrong while it runs, by the emulator's names for it
REFUSED_BY = ("RuntimeError", "AssertionError", "KeyError", "IndexError")  # what ends a call that checks nothing
FAULTS = {
    "OutOfBounds": Outcome.WRONG,
    "Misaligned": Outcome.WRONG,
    "Miscompiled": Outcome.WRONG,
    "Race": Outcome.WRONG,
    "EndlessLoop": Outcome.TIME,
    "DeviceAssertion": Outcome.ERROR,
    "Undefined": Outcome.WRONG,
    "Unsupported": Outcome.ERROR,
}


KEPT = "it gives the result of an earlier call with the same shapes and other numbers: compute it anew in each call"
NO_LAUNCH = "no Triton kernel was launched"
STANDS_IN = "; the right solution of {} stands in for your own there, and does no more than its task says"
OF_ITS_OWN = "{} is returned as a tensor of its own: write into the one that is passed, and return that"


@dataclass(frozen=True)
class Failure:
    """Why a case was not passed. `unexplained` says that numbers are wrong, and not why.

    `constant` says that each tensor holds one value throughout, which many mistakes give.
    """

    outcome: Outcome
    reason: str
    mistake: str | None = None
    case: str = ""
    unexplained: bool = False
    constant: bool = False


Messages = dict[int, dict[str, Any]]  # by number of the case
Settle = Callable[[Sequence[Case], Messages], tuple[Messages, dict[int, Failure]]]


def judge(
    exercise: Exercise,
    program: Sequence[Cell],
    seed: str,
    sandbox: Sandbox,
    settle: Settle | None = None,
    hidden: bool = True,
) -> Verdict:
    """Run `program` in the sandbox on cases drawn from `seed` and return the verdict.

    With `settle`, which an exercise on kernels needs, the program is called on noise in place of data, twice, and tells
    what its function does; `settle` makes answers of that, and returns the cases for which there are none. Without
    `hidden` the visible cases are all.

    Never raises for what the program does. A fault of the grader is a verdict too, without a score.
    """
    started = time.monotonic()
    cells = [dataclasses.asdict(cell) for cell in program]
    try:
        cases = draw_cases(exercise, seed, hidden, digest_of(program))
    except Exception as error:
        return fault(exercise, f"its cases cannot be drawn: {error!r}")
    if untested := set(range(len(exercise.parts))) - {case.part for case in cases}:
        return fault(exercise, f"part {exercise.parts[min(untested)].name!r} has no case")
    request = {
        "program": cells,
        "entry": exercise.name,
        "driver": exercise.driver,
        "forbidden": list(exercise.forbidden),
        "counted": [each.cell, each.function, each.argument] if (each := exercise.counted) else [],
        "cases": [packed(case.arguments) for case in cases],
    }
    if settle:
        request |= {
            "record": True,
            "cases": [packed(noise_for(exercise, each, seed, exercise.kernel)) for each in cases],
        }
        request["first"] = [packed(noise_for(exercise, each, seed)) for each in cases]
    try:
        reply = _run(sandbox, request, exercise)
    except ServerLost:
        reply = Reply("exit", 9)
    except Exception as error:
        return fault(exercise, str(error) if isinstance(error, SandboxError) else repr(error))
    try:
        answers, unsettled = first_answers(cases, reply), {}
        if settle:
            answers, unsettled = settle(cases, answers)
        failures, notes = read_reply(exercise, cases, reply, answers, unsettled, program)
    except SandboxError as error:
        return fault(exercise, str(error))
    except Exception as error:  # whatever the comparison trips over, it is not the student's zero
        return fault(exercise, f"the comparison failed: {error!r}")
    verdict = verdict_from(exercise, cases, failures, notes)
    return replace(verdict, seconds=round(time.monotonic() - started, 4))


def _run(sandbox: Sandbox, request: dict[str, Any], exercise: Exercise) -> Reply:
    """Run the request; if the server is lost, once more on a fresh one. ServerLost then lies with the program."""
    try:
        return sandbox.run(request, exercise.limits)
    except ServerLost:
        pass
    try:
        return sandbox.run(request, exercise.limits)
    except ServerLost:
        idle = {"program": [], "entry": "none", "driver": "call", "forbidden": [], "cases": []}
        try:
            sandbox.run(idle, exercise.limits)
        except ServerLost as error:
            raise SandboxError(f"the sandbox fails without any student code: {error}") from error
        raise


def fault(exercise: Exercise, reason: str, of_speed: bool = False) -> Verdict:
    """Return the verdict for a fault of the grader, on the answers or on their speed: no score."""
    return Verdict(*exercise.graded(of_speed), None, Outcome.FAULT, f"the grader failed: {reason}")


def zero(exercise: Exercise, outcome: Outcome, reason: str, of_speed: bool = False) -> Verdict:
    """Return a verdict of no points, on the answers or on their speed, reached without running anything."""
    parts = () if of_speed else tuple(PartVerdict(part.name, part.points, 0.0, reason) for part in exercise.parts)
    return Verdict(*exercise.graded(of_speed), 0.0, outcome, reason, parts=parts)


def read_reply(
    exercise: Exercise,
    cases: Sequence[Case],
    reply: Reply,
    answers: Messages | None = None,
    failed: Mapping[int, Failure] | None = None,
    program: Sequence[Cell] = (),
) -> tuple[dict[int, Failure], list[str]]:
    """Return the failed cases by number and remarks for the feedback. Whatever the reply holds, a case without a
    right answer has failed.

    `answers` are in place of the reply's own, and `failed` are the cases for which there could be none. There is one
    remark at most on each cell of the `program`.
    """
    failures: dict[int, Failure] = dict(failed or {})
    answers = first_answers(cases, reply) if answers is None else answers
    notes: dict[str, str] = {}
    names = {cell.name for cell in program}
    stop: Failure | None = None
    calls = calls_of(exercise, cases, answers)
    for index, message in answers.items():
        hidden = {"hidden": hidden_changes(reply, index, cases[index], message), "repeated": index == 0}
        if failure := read_case(exercise, cases[index], message | hidden, calls):
            failures[index] = failure
    for message in reply.messages:
        failure = _read_error(exercise, message.get("error"))
        if message.get("event") == "missing":
            stop = Failure(Outcome.MISSING, f"the cell defines no function or class called {exercise.name}")
        elif message.get("event") == "cell":
            name = message.get("cell")
            if name == exercise.name or failure.outcome is Outcome.TIME:
                stop = failure
            elif isinstance(name, str) and name in names and name not in notes:
                notes[name] = f"a cell that {exercise.name} needs failed: {failure.reason}"
        elif message.get("event") == "case" and failure.outcome is Outcome.TIME:
            stop = failure  # of all that it left no time for
    stop = stop or _how_it_ended(exercise, reply)
    for index in range(len(cases)):
        if index not in answers and index not in failures:
            failures[index] = stop
    return failures, list(notes.values())


def hidden_changes(reply: Reply, index: int, case: Case, message: Mapping[str, Any]) -> list[str]:
    """Return the arguments of a case that changed, as the server saw, and of which the process said nothing."""
    seen = {name for number, name in reply.changed if number == index}
    if EVERY in reply.changed:
        seen.update(case.arguments)
    return sorted(seen.difference(message.get("changed", [])))


def first_answers(cases: Sequence[Case], reply: Reply) -> Messages:
    """Return the first message about each case, of which the rest is what a student's process has a say in.

    It may send others, and in them what only the judge says of an answer, or a tensor where names or text belong.
    """
    found: Messages = {}
    for message in reply.messages:
        index = message.get("index")
        if message.get("event") == "case" and type(index) is int and 0 <= index < len(cases):
            said = {key: message[key] for key in SAID if key in message}
            names = message.get("changed")
            names = [name for name in names if isinstance(name, str)] if isinstance(names, list) else []
            found.setdefault(index, said | {"changed": names})
    return found


def _how_it_ended(exercise: Exercise, reply: Reply) -> Failure:
    limits = exercise.limits
    if reply.malformed:
        return Failure(Outcome.ENDED, f"the worker's reply could not be read: {reply.malformed}")
    if reply.ended == "time" or reply.signal == 24:  # SIGXCPU
        return Failure(Outcome.TIME, _too_long(exercise))
    if reply.ended == "crowd":
        return Failure(Outcome.MEMORY, "it started more processes than an answer needs")
    if reply.ended == "memory":
        return Failure(Outcome.MEMORY, f"its processes and files held more than {limits.memory >> 20} MiB of memory")
    if reply.ended == "flood":
        return Failure(Outcome.MEMORY, f"the results exceed {limits.reply_bytes >> 20} MiB")
    if reply.signal:
        return Failure(Outcome.ENDED, f"the process died (signal {reply.signal}) before it gave an answer")
    return Failure(Outcome.ENDED, "the process ended before it gave an answer: does the code call exit?")


def _too_long(exercise: Exercise, place: str = "") -> str:
    grid = ", or a grid of more programs than are needed" if exercise.kernel else ""
    return f"no answer within {exercise.limits.seconds:g} s{place}: is there a loop that does not end{grid}?"


def calls_of(exercise: Exercise, cases: Sequence[Case], answers: Messages) -> Calls:
    """Return the calls that gave a result."""
    return Calls(exercise, [(cases[n].arguments, each["result"]) for n, each in answers.items() if "result" in each])


def read_case(exercise: Exercise, case: Case, message: dict[str, Any], calls: Calls | None = None) -> Failure | None:
    """Return what is wrong with the message about one case, or None. `calls` tell mistakes apart (see `assess`)."""
    if "error" in message:
        return replace(_refused_wrongly(exercise, case, message["error"]), case=str(case))
    if "beyond" in message:
        return Failure(Outcome.WRONG, quoted(message["beyond"], 200), case=str(case))
    if "unsupported" in message:
        found = quoted(message["unsupported"], 200)
        reason = f"it returns {found}, expected {_wanted(exercise, case, found)}"
        return Failure(Outcome.WRONG, reason, case=str(case))
    for key, more in ("changed", ""), ("hidden", ", and that was not said"):
        touched = sorted(set(message.get(key, [])).intersection(case.arguments).difference(exercise.may_change))
        if touched:
            named = (
                _of_methods(case, touched[0]) if exercise.driver == "session" else f"its argument {', '.join(touched)}"
            )
            return Failure(Outcome.WRONG, f"it changed {named} in place{more}", case=str(case))
    found = assess(exercise, case.arguments, message.get("result"), calls)
    repeated = found and not found.mistake and message.get("repeated") and not exercise.replayed
    if repeated and _is_earlier(exercise, case, message):
        return Failure(Outcome.WRONG, KEPT, case=str(case))
    terms = message.get("terms")
    if not found and not exercise.replayed:
        return _miscounted(exercise, case, message) or _kept_apart(exercise, case, message)
    if not found or (terms is not None and terms.reason == NO_LAUNCH):
        return terms
    if message.get("explained"):
        return message.get("terms") or Failure(Outcome.WRONG, one_line(message["explained"], 1000), case=str(case))
    named = any(mistake.unwritten for mistake in exercise.mistakes if mistake.name == found.mistake)
    made = not named and (bool(message.get("filled")) or _never_written(exercise, message, found))
    strange = "has NaN in" in found.plain or message.get("filled")
    if message.get("frozen"):
        said = (
            f"{one_line(message['frozen'], 500)}, and what Python makes of them does not count: use torch's operations"
        )
        both = f"{said}. Or it is this: {found.reason}" if found.mistake else f"{one_line(found.plain, 500)}: {said}"
        return Failure(Outcome.WRONG, one_line(both, 1000), found.mistake, str(case))
    if "has NaN in" in found.plain and not exercise.kernel and not found.mistake:
        return Failure(Outcome.WRONG, f"{one_line(found.reason, 1000)}: {_nan_from(case)}", case=str(case))
    if not exercise.kernel or not strange or (found.mistake and not made):
        constant = _is_constant(message.get("result"))
        reason = one_line(found.reason, 1000)
        return Failure(Outcome.WRONG, reason, found.mistake, str(case), found.unexplained, constant)
    reason = f"{one_line(found.plain, 1000)}: {one_line(_source_of(exercise, case, message, found), 500)}"
    return Failure(Outcome.WRONG, reason, case=str(case))


def _is_earlier(exercise: Exercise, case: Case, message: Mapping[str, Any]) -> bool:
    """Return whether a wrong result is right for the numbers of the call before (see `running.case`)."""
    both = (case.arguments, message.get("result"))
    if not all(any(t.is_floating_point() for t in tensors_in(each)) for each in both):
        return False  # of a few integers chance may decide
    with suppress(Exception):  # whatever an oracle makes of them
        return assess(replace(exercise, mistakes=()), earlier(case.arguments, SHARE), message["result"]) is None
    return False


def _of_methods(case: Case, part: str) -> str:
    """Return what to call an argument in a part of a session: "init" or "steps"."""
    methods = dict.fromkeys(method.removeprefix(BESIDE) for method, given in case.arguments["steps"] if given)
    return f"an argument of {'__init__' if part == 'init' else ' or '.join(methods)}"


def _is_constant(result: Any) -> bool:
    """Return whether all tensors hold one value throughout: 0, NaN or infinity, say."""
    tensors = tensors_in(result)
    return bool(tensors) and all(len(each.double().nan_to_num().unique()) < 2 for each in tensors)


def _wanted(exercise: Exercise, case: Case, found: str) -> str:
    """Return what to return in place of what no message holds."""
    expected = exercise.oracle(**upcast(case.arguments))
    if isinstance(expected, dict):
        numbers = all(isinstance(each, int | float) for each in expected.values())
        return f"a dict with the keys {', '.join(expected)}{' and a number in each' if numbers else ''}"
    wanted = ", ".join(exercise.returns) + (" and nothing else" if found.startswith("a value of type") else "")
    return "tensors and numbers" if "the result" in wanted else wanted


def _miscounted(exercise: Exercise, case: Case, message: dict[str, Any]) -> Failure | None:
    """Return the failure of right results that took calls which they may not take, or None."""
    if not exercise.counted:
        return None
    calls = message.get("calls")
    lists = [each for each in calls if isinstance(each, list)] if isinstance(calls, list) else []
    numbers = [[number for number in each if type(number) is int] for each in lists]
    wrong = exercise.counted.wrong(numbers, message["result"], **case.arguments)
    return Failure(Outcome.WRONG, wrong, case=str(case)) if wrong else None


def _kept_apart(exercise: Exercise, case: Case, message: dict[str, Any]) -> Failure | None:
    """Return the failure of right results, by what changed, of which one belongs into an argument, or None."""
    results = message["result"] if len(exercise.returns) > 1 else (message["result"],)
    for name, result in zip(exercise.returns, results, strict=False):
        given = case.arguments.get(name) if name in exercise.may_change else None
        if given is not None and name not in message.get("changed", []) and bool((result != given).any()):
            return Failure(Outcome.WRONG, OF_ITS_OWN.format(name), case=str(case))
    return None


def _never_written(exercise: Exercise, message: dict[str, Any], found: Difference) -> bool:
    """Whether every NaN of a kernel's result is a place that no store wrote."""
    blank = dict(zip(exercise.returns, message.get("blank") or (), strict=False)).get(found.where)
    return bool(blank) and f"has NaN in {blank} of" in found.plain


def _source_of(exercise: Exercise, case: Case, message: dict[str, Any], found: Difference) -> str:
    """Return where what is strange in a kernel's result comes from, as far as is known (see `replay.Replayed`)."""
    if told := [*(message.get("filled") or ()), *(message.get("unwritten") or ())]:
        return told[0]
    blank = dict(zip(exercise.returns, message.get("blank") or (), strict=False)).get(found.where)
    if blank:
        return f"no store wrote {blank} of them: are grid, offsets and mask of the store right, and is it reached?"
    sources = [] if "blank" in message else ["what a kernel does not write"]
    if message.get("filled") is None:
        sources.append("what a mask leaves out of a load without `other`")
    return _nan_from(case, *sources)


def _nan_from(case: Case, *sources: str) -> str:
    """Return where a NaN comes from, beside these sources."""
    made = "0/0, inf/inf, 0 · inf or inf - inf"
    if any(bool(t.isnan().any()) for t in tensors_in(case.arguments)):
        sources = (*sources, "places of the arguments that hold NaN and do not count (0 · NaN is NaN, too)")
        made = f"or else from {made}"
    return f"NaN comes here from {'; '.join([*sources, made])}"


def _refused_wrongly(exercise: Exercise, case: Case, error: Any) -> Failure:
    """Return the failure by an error, and with which a call of a session refuses, where it ended one that must."""
    step, wanted = error.get("step") if isinstance(error, dict) else None, []
    if exercise.driver == "session" and type(step) is int:
        wanted = exercise.oracle(**upcast(case.arguments))[step : step + 1]
    refuses = any(isinstance(each, str) for each in wanted)
    failure = _read_error(exercise, error, refuses)
    if not refuses or not (failure.reason.startswith(REFUSED_BY) or _is_raised(error)):
        return failure
    if failure.outcome is Outcome.UNFINISHED:
        return failure
    return replace(failure, reason=f"{failure.reason}; a call that must be refused raises ValueError")


def _is_raised(error: dict[str, Any]) -> bool:
    """Return whether an error comes of a `raise` in the student's code."""
    where = error.get("where")
    return isinstance(where, dict) and bool(re.search(r"\braise\b", quoted(where.get("source"), 200)))


def broken_terms(exercise: Exercise, case: Case, launches: int, owners: Sequence[str | None]) -> Failure | None:
    """Return which of its terms a right call breaks, or None: the number of launches, results in place.

    `owners` names for each returned tensor the argument that it shares memory with.
    """
    reason = ""
    if exercise.kernel and not launches:
        reason = NO_LAUNCH
    elif exercise.launches is not None and launches > exercise.launches:
        reason = f"{launches} launches, expected {exercise.launches}"
    for name, owner in zip(exercise.returns, owners, strict=False):
        if name in exercise.may_change and case.arguments.get(name) is not None and owner != name:
            reason = OF_ITS_OWN.format(name)
    return Failure(Outcome.WRONG, reason, case=str(case)) if reason else None


def _read_error(exercise: Exercise, error: Any, refuses: bool = False) -> Failure:
    """Turn a reported exception into a sentence. `refuses` says that the call had to raise something.

    The report comes from the student's process, so nothing in it is taken for granted.
    """
    error = error if isinstance(error, dict) else {}
    kind, text = quoted(error.get("type"), 80) or "error", quoted(error.get("message"), 500)
    where = error.get("where")
    place = source = ""
    if isinstance(where, dict):
        limits = {"line": 8, "cell": 80, "source": 120}
        line, cell, source = (quoted(where.get(key, ""), limit) for key, limit in limits.items())
        place = in_words(line, cell, source, exercise.name)
    out_of_memory = kind == "MemoryError" or any(mark in text.lower() for mark in OUT_OF_MEMORY)
    if out_of_memory and not _is_raised(error):
        return Failure(Outcome.MEMORY, f"more than {exercise.limits.memory >> 20} MiB of memory were asked for{place}")
    if kind == "NotImplementedError" and (STUB if refuses else "raise NotImplementedError") in source:
        return Failure(Outcome.UNFINISHED, f"not finished: NotImplementedError{place}")
    if kind == "ForbiddenCall":
        return Failure(Outcome.WRONG, f"{place.strip()}: {text}" if place else text)
    if text == TIME_IS_UP:  # of whatever type: Triton's compiler makes an error of its own of it
        return Failure(Outcome.TIME, _too_long(exercise, place))
    if kind in FAULTS:
        return Failure(FAULTS[kind], f"{quoted(error.get('kernel', ''), 80)}{place}: {text}")
    reason = f"{kind}{place}: {text}" if text else f"{kind}{place}"
    supplied = error.get("supplied")
    stands_in = next((name for name in exercise.needs if isinstance(supplied, list) and name in supplied), None)
    return Failure(Outcome.ERROR, reason + (STANDS_IN.format(stands_in) if stands_in else ""))


def telling(exercise: Exercise, failures: Mapping[int, Failure]) -> int:
    """Return the number of the case whose failure tells most: the first, or the first that explains its numbers.

    A mistake that is made at times explains its own case alone, and so does one that is told by a constant.
    """
    first = min(failures)
    if not failures[first].unexplained:
        return first
    always = {each.name for each in exercise.mistakes if not each.at_times}
    telling = (n for n, failure in failures.items() if failure.mistake in always and not failure.constant)
    return min(telling, default=first)


def verdict_from(
    exercise: Exercise, cases: Sequence[Case], failures: dict[int, Failure], notes: Sequence[str] = ()
) -> Verdict:
    """Add up the parts: each is earned when none of its cases failed."""
    parts = []
    for index, part in enumerate(exercise.parts):
        first = next((failures[n] for n, case in enumerate(cases) if case.part == index and n in failures), None)
        parts.append(
            PartVerdict(part.name, part.points, 0.0, first.reason, first.case)
            if first
            else PartVerdict(part.name, part.points, part.points)
        )
    score = sum(part.score for part in parts)
    if not failures:
        return Verdict(exercise.name, exercise.points, score, Outcome.PASSED, parts=tuple(parts))
    worst = failures[telling(exercise, failures)]
    outcome = Outcome.PARTIAL if score and worst.outcome is Outcome.WRONG else worst.outcome
    reason = f"{worst.reason} (at {worst.case})" if worst.case else worst.reason
    return Verdict(exercise.name, exercise.points, score, outcome, reason, worst.mistake, tuple(parts), tuple(notes))
