"""Verdicts on one exercise, with and without bubblewrap: each way to end has its name, and the judge outlives all."""

import dataclasses
import os
import re
import time
from pathlib import Path

import pytest
import torch

from autograder.course.course import Course
from autograder.course.lesson import without_marks
from autograder.isolation import sandbox
from autograder.isolation.sandbox import Limits, Reply, Sandbox
from autograder.isolation.worker.running import TIME_IS_UP
from autograder.judging import judge
from autograder.judging.cases import draw_cases
from autograder.judging.exercise import STUB, Exercise, Mistake, Part
from autograder.judging.program import Cell
from autograder.judging.verdict import Outcome

from ..tiny_course import DOUBLE, QUAD, SETUP, verdict

RIGHT = "def double(x): return 2 * x"
SHORT = dataclasses.replace(DOUBLE, limits=Limits(seconds=0.5, memory=256 << 20))


@pytest.mark.parametrize(
    ("source", "outcome", "says"),
    [
        (RIGHT, Outcome.PASSED, ""),
        ("def double(x): return x / 2", Outcome.WRONG, "halved"),
        ("def double(x): return x", Outcome.WRONG, "0.5 times"),
        ("def double(x): return 2 * x if len(x) < 40 else x", Outcome.PARTIAL, "(at n=70)"),
        ("def double(x): return None", Outcome.WRONG, "out is None"),
        ("def double(x): return object()", Outcome.WRONG, "a value of type object"),
        ("def double(x): return (2 * x).to(torch.complex64)", Outcome.WRONG, "complex64"),
        ("def double(x): return (2 * x).long()", Outcome.WRONG, "int64"),
        ("def double(x):\n    return x.mul_(2)", Outcome.WRONG, "changed its argument x in place"),
        ("def double(x): return x.unsqueeze_(0)", Outcome.WRONG, "changed its argument x in place"),
        ("def double(x):\n    y = 2 * x\n    return z", Outcome.ERROR, "NameError in line 3 (`return z`)"),
        ("def double(x)\n    return x", Outcome.ERROR, "SyntaxError in line 1"),
        ("def double(): return 1", Outcome.ERROR, "TypeError"),
        ("import nowhere\n" + RIGHT, Outcome.ERROR, "ModuleNotFoundError in line 1"),
        ("def double(x): raise NotImplementedError('later')", Outcome.UNFINISHED, "not finished"),
        ("def double(x): return torch.ones(1, device='meta').cpu()", Outcome.ERROR, "meta"),
        ("def doubel(x): return 2 * x", Outcome.MISSING, "no function or class called double"),
        ("double = 5", Outcome.MISSING, "no function or class called double"),
        ("raise SystemExit", Outcome.ERROR, "SystemExit"),
        ("def double(x): sys.exit(0)", Outcome.ERROR, "SystemExit"),
        ("def double(x): os._exit(0)", Outcome.ENDED, "ended before it gave an answer"),
        ("os._exit(0)", Outcome.ENDED, "ended before it gave an answer"),
        ("def double(x): os.abort()", Outcome.ENDED, "signal 6"),
        ("import ctypes\ndef double(x): ctypes.string_at(0)", Outcome.ENDED, "signal 11"),
        ("def double(x): return double(x)", Outcome.ERROR, "RecursionError"),
        ("def double(x): return bytearray(1 << 40)", Outcome.MEMORY, "256 MiB"),
        ("def double(x): return torch.ones(1 << 30)", Outcome.MEMORY, "256 MiB"),
        ("def double(x): raise MemoryError('full')", Outcome.ERROR, "MemoryError in line 1 (`def double(x): raise"),
        ("def double(x): return input()", Outcome.ERROR, "EOFError"),
    ],
)
def test_every_way_to_end_has_its_name(box, source, outcome, says):
    found = verdict(box, source)
    assert found.outcome is outcome, found.reason
    assert says in found.reason
    assert found.score == {Outcome.PASSED: 3, Outcome.PARTIAL: 2}.get(outcome, 0)
    assert sum(part.score for part in found.parts) == found.score


def test_a_table_of_what_an_earlier_attempt_has_found_out_is_of_no_use(box):
    """An error of the student's can show all cases of its program, and all programs but that one have others."""
    course = Course.at(Path(__file__).parents[3])
    lesson, exercise = course.locate("predict_cache_bytes")
    solution = Cell(exercise.name, without_marks(course.lesson(lesson).solutions[exercise.name]))
    known = [case.arguments for case in draw_cases(exercise, "seed", own="the first attempt")]
    table = {tuple(arguments.values()): exercise.oracle(**arguments) for arguments in known}
    of_table = Cell(exercise.name, f"def predict_cache_bytes(*args): return {table!r}.get(args)")
    found = judge.judge(exercise, [*course.lesson(lesson).setup, solution], "seed", box)
    assert found.outcome is Outcome.PASSED, found.reason
    assert judge.judge(exercise, [of_table], "seed", box).score == 0


def test_a_result_that_is_kept_by_shape_is_told(box):
    found = verdict(box, "KEPT = {}\ndef double(x): return KEPT.setdefault(x.shape, 2 * x)")
    assert found.score < found.points
    assert "it gives the result of an earlier call with the same shapes" in found.reason


@pytest.mark.parametrize(
    ("prediction", "says"),
    [
        ("dict(n=1, half=Fraction(1, 2))", "it returns a value of type Fraction as its entry 'half'"),
        ("Made(1, 0.5)", "it returns a value of type Made"),
        ("{0: 1}", "it returns a dict with keys of other types than str"),
    ],
)
def test_what_no_prediction_is_made_of_is_named_with_what_is_expected(box, prediction, says):
    made = (
        "from fractions import Fraction\nimport dataclasses\nMade = dataclasses.make_dataclass('Made', ['n', 'half'])"
    )
    parts = (Part("all", 1, [dict(n=1)]),)
    exercise = Exercise("halved", "", parts, lambda g, n: {"n": n}, lambda n: {"n": n, "half": n / 2})
    said = verdict(box, f"{made}\ndef halved(n): return {prediction}", exercise).reason
    assert said.startswith(f"{says}, expected a dict with the keys n, half and a number in each"), said


def test_what_a_constant_tells_is_no_headline_over_numbers_that_nothing_explains():
    named = judge.Failure(Outcome.WRONG, "the sums overflow", "overflow", "n=2", constant=True)
    wrong = judge.Failure(Outcome.WRONG, "a relative error", case="n=1", unexplained=True)
    exercise = dataclasses.replace(DOUBLE, mistakes=(Mistake("overflow", "the sums overflow", lambda x: x),))
    assert judge.telling(exercise, {0: wrong, 1: named}) == 0
    assert judge.telling(exercise, {0: wrong, 1: dataclasses.replace(named, constant=False)}) == 1


def test_the_first_failure_that_says_why_is_told_before_wrong_numbers():
    wrong = judge.Failure(Outcome.WRONG, "a relative error", case="n=1", unexplained=True)
    named = judge.Failure(Outcome.WRONG, "halved", "half", "n=2")
    mistake = Mistake("half", "halved", lambda x: x)
    exercise = dataclasses.replace(DOUBLE, mistakes=(mistake,))
    assert judge.telling(exercise, {3: wrong, 5: named, 6: named}) == 5
    assert judge.telling(exercise, {3: wrong, 5: wrong}) == 3
    assert judge.telling(exercise, {3: judge.Failure(Outcome.WRONG, "out of bounds"), 5: named}) == 3
    at_times = dataclasses.replace(DOUBLE, mistakes=(dataclasses.replace(mistake, at_times=True),))
    assert judge.telling(at_times, {3: wrong, 5: named}) == 3


@pytest.mark.thorough(but=4)
@pytest.mark.parametrize(
    "source",
    [
        "def double(x):\n    while True: pass",
        "while True: pass",
        "import signal\nfor s in (2, 15, 24): signal.signal(s, signal.SIG_IGN)\ndef double(x):\n    while True: pass",
        "import time\ndef double(x):\n    try:\n        time.sleep(1e6)\n    except BaseException:\n        double(x)",
        "import threading\ndef double(x): threading.Event().wait()",
        "def double(x):\n    os.fork()\n    while True: pass",
        "import signal\ndef double(x): os.kill(os.getpid(), signal.SIGSTOP)",
    ],
    ids=["loop", "loop in the cell", "deaf loop", "stubborn sleep", "wait", "two loops", "stopped"],
)
def test_what_does_not_end_is_ended(box, source):
    started = time.monotonic()
    found = verdict(box, source, SHORT)
    assert found.outcome is Outcome.TIME
    assert "within 0.5 s" in found.reason
    assert time.monotonic() - started < 15
    assert verdict(box, RIGHT).outcome is Outcome.PASSED


@pytest.mark.parametrize(
    ("source", "own", "place", "small"),
    [
        ("def double(x):\n    while len(x) > 60: pass\n    return 2 * x", "", "line 2 (`while len(x) > 60: pass`)", 2),
        ("def double(x): return 2 * x\nwhile True: pass", "", "line 2 (`while True: pass`)", 0),
        ("def double(x): return two * x", "for two in iter(int, 1): pass", "line 1 of a cell of your own (`for two", 0),
    ],
    ids=["in the function", "in its cell", "in a cell beside"],
)
def test_where_the_time_was_up_is_told(box, source, own, place, small):
    hurried = dataclasses.replace(DOUBLE, limits=dataclasses.replace(DOUBLE.limits, seconds=2.0))
    found = verdict(box, source, hurried, [own])
    assert [part.score for part in found.parts] == [small, 0]
    assert f"no answer within 2 s in {place}" in found.reason
    assert f"no answer within 2 s in {place}" in found.parts[1].reason


def test_the_limit_of_time_is_the_processors_and_not_what_a_busy_machine_leaves(box):
    waits = "import time\ntime.sleep(1)\ndef double(x): return 2 * x"
    assert verdict(box, waits, SHORT).outcome is Outcome.PASSED


FLOOD_ALL = """
    def double(x):
        for fd in range(3, 64):
            try:
                while True: os.write(fd, b"x" * 65536)
            except OSError: pass
"""
FLOODS = {
    "output": (
        "def double(x):\n    print('x' * 10**7)\n    os.write(2, b'x' * 10**7)\n    return 2 * x",
        Outcome.PASSED,
    ),
    "bytes": (FLOOD_ALL, Outcome.ENDED),
    "result": ("def double(x): return torch.zeros(1 << 24)", Outcome.MEMORY),
    "text": ("def double(x): raise ValueError('x' * 10**7)", Outcome.ERROR),
}


@pytest.mark.parametrize("kind", ["TimeoutError", "CompilationError"])
def test_what_was_under_way_when_the_time_was_up_may_have_an_error_of_its_own_for_it(kind):
    (case, *_) = judge.draw_cases(DOUBLE, "seed")
    found = judge.read_case(DOUBLE, case, {"error": {"type": kind, "message": TIME_IS_UP, "where": None}})
    assert found.outcome is Outcome.TIME
    assert "no answer within" in found.reason


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize("flood", FLOODS)
def test_a_flood_does_not_reach_the_judge(box, flood):
    source, outcome = FLOODS[flood]
    limits = dataclasses.replace(DOUBLE.limits, reply_bytes=32 << 20)
    found = verdict(box, source, dataclasses.replace(DOUBLE, limits=limits))
    assert found.outcome is outcome, found.reason
    assert len(found.reason) < 2000


def test_a_case_that_fails_leaves_the_others_their_points(box):
    found = verdict(box, "def double(x):\n    if len(x) == 70: raise ValueError\n    return 2 * x")
    assert [part.score for part in found.parts] == [2, 0]


def test_prints_and_warnings_cost_nothing(box):
    found = verdict(
        box, "import warnings\ndef double(x):\n    warnings.warn('w')\n    print(x)\n    display(x)\n    return 2 * x"
    )
    assert found.outcome is Outcome.PASSED


def test_the_right_predecessor_is_supplied(box):
    reference = Cell("double (reference)", RIGHT, True, gives="double")
    source = "def quad(x): return double(double(x))"
    wrong = "def double(x): return 1 / 0"
    assert verdict(box, source, QUAD, helpers=[wrong], references=[reference]).outcome is Outcome.PASSED
    assert verdict(box, source, QUAD, helpers=[wrong]).outcome is Outcome.ERROR


def test_an_error_at_a_supplied_predecessor_says_that_it_is_not_the_students_own(box):
    own = "def double(x, times=1): return 2**times * x"
    reference = Cell("double (reference)", RIGHT, True, gives="double")
    says = "; the right solution of double stands in for your own there, and does no more than its task says"
    for call in "double(x, times=2)", "double(double)(x)", "double.of(x)":
        said = verdict(box, f"def quad(x): return {call}", QUAD, helpers=[own], references=[reference]).reason
        assert f"Error in line 1 (`def quad(x): return {call}`): " in said and says in said, said
    for source in f"{own}\ndef quad(x): return double(x, twice=2)", "def quad(x): return 4 * y":
        said = verdict(box, source, QUAD, helpers=[own], references=[reference]).reason
        assert "Error in line" in said and "stands in" not in said, said


def test_a_broken_helper_is_mentioned(box):
    found = verdict(box, "def double(x): return helper(x)", helpers=["helper = 1 / 0"])
    assert found.outcome is Outcome.ERROR
    assert "ZeroDivisionError in line 1 of a cell of your own" in found.notes[0]


def test_a_forbidden_function_is_refused(box):
    exercise = dataclasses.replace(DOUBLE, forbidden=("mul",))
    assert "may not call mul" in verdict(box, "def double(x): return torch.mul(x, 2)", exercise).reason
    exercise = dataclasses.replace(DOUBLE, forbidden=("cat",))
    for name, refused in (("concatenate", True), ("concat", True), ("hstack", True), ("masked_scatter", False)):
        source = {"masked_scatter": "(2 * x).masked_scatter(x > 5, x)"}.get(name, f"torch.{name}((2 * x, x))[: len(x)]")
        assert ("may not call" in (verdict(box, f"def double(x): return {source}", exercise).reason or "")) == refused
    assert verdict(box, "def double(x): return x + x", exercise).outcome is Outcome.PASSED


def test_nan_in_an_argument_is_not_taken_for_a_change(box):
    part = Part("all", 1, [dict(n=2)])
    poisoned = Exercise(
        "double",
        "",
        (part,),
        lambda g, n: {"x": torch.ones(n), "pool": torch.full((4,), torch.nan)},
        lambda x, pool: 2 * x,
    )
    assert verdict(box, "def double(x, pool): return 2 * x", poisoned).outcome is Outcome.PASSED
    assert "argument pool" in verdict(box, "def double(x, pool):\n    pool[0] = 1\n    return 2 * x", poisoned).reason


HIDDEN = {  # what a call that looks after nothing does to its arguments, and what is said; x may change
    "nothing": ("pass", ""),
    "what it may": ("x.mul_(2)", ""),
    "what it may not": ("y.mul_(2)", "changed its argument y in place, and that was not said"),
    "what it may not, in one case": (
        "y.mul_(2 if len(x) == 3 else 1)",
        "argument y in place, and that was not said (at",
    ),
    "the next one's": (
        "torch.cat(others).zero_() if False else [each.mul_(3) for each in others]",
        "argument y in place",
    ),
    "the list of what lies there": ("overwrite()", "changed its argument y in place, and that was not said"),
}


@pytest.mark.parametrize("name", HIDDEN)
def test_a_change_that_a_program_hides_is_seen_in_its_case(box, name):
    twofold = Exercise(
        "double",
        "",
        (Part("all", 1, [dict(n=2), dict(n=3), dict(n=4)]),),
        lambda g, n: {"x": torch.rand(n, generator=g), "y": torch.rand(n, generator=g)},
        lambda x, y: x.new_ones(len(x)),
        may_change=("x",),
    )
    does, said = HIDDEN[name]
    source = f"""
        import gc, sys
        from autograder.isolation.worker import running
        running.changed = lambda *_: []
        others = [each for each in gc.get_objects() if type(each) is dict and each.keys() == {{"x", "y"}}]
        others = [each["y"] for each in others if isinstance(each["y"], torch.Tensor)][-1:]
        def overwrite():
            for each in gc.get_objects():
                if type(each).__name__ == "Shelf": each.memory[each.used : each.used + 2] = b"[]"
        def double(x, y):
            out = torch.ones(len(x))
            {does}
            return out"""
    found = verdict(box, source, twofold)
    assert (found.outcome is Outcome.PASSED) == (not said), found.reason
    assert said in found.reason


def test_a_change_inside_a_nested_argument_is_seen(box):
    nested = Exercise(
        "double",
        "",
        (Part("all", 1, [{}]),),
        lambda g: {"weights": {"w": torch.ones(2), "more": [torch.ones(1)]}},
        lambda weights: 2 * weights["w"],
    )
    assert verdict(box, "def double(weights): return 2 * weights['w']", nested).outcome is Outcome.PASSED
    found = verdict(box, "def double(weights):\n    weights['more'][0] += 1\n    return 2 * weights['w']", nested)
    assert "changed its argument weights" in found.reason
    allowed = dataclasses.replace(nested, may_change=("weights",))
    assert verdict(box, "def double(weights): return weights['w'].mul_(2)", allowed).outcome is Outcome.PASSED


def test_a_session_keeps_its_state_and_may_refuse(box):
    session = Exercise(
        "Counter",
        "",
        (Part("all", 1, [{}]),),
        lambda g: {"init": [3], "steps": [["add", [1]], ["add", [5]], ["", []], ["total", []]]},
        lambda init, steps: [4, "ValueError", None, 4],
        driver="session",
    )
    right = """
        class Counter:
            def __init__(self, n): self.n = n
            def add(self, k):
                if self.n + k > 8: raise ValueError
                self.n += k
                return self.n
            def total(self): return self.n
    """
    assert verdict(box, right, session).outcome is Outcome.PASSED
    found = verdict(box, right.replace("> 8", "> 99"), session)
    assert "call 2 of add should have raised ValueError" in found.reason
    for kind in ("RuntimeError", "MemoryError", "NotImplementedError", "Exception"):
        found = verdict(box, right.replace("raise ValueError", f"raise {kind}('full')"), session)
        assert re.match(rf"{kind} in line 4 .*: full; a call that must be refused raises ValueError", found.reason)
    found = verdict(box, right.replace("raise ValueError", STUB), session)
    assert found.outcome is Outcome.UNFINISHED and "must be refused" not in found.reason
    found = verdict(box, right.replace("raise ValueError", "None.full"), session)
    assert "AttributeError" in found.reason and "must be refused" not in found.reason
    found = verdict(box, right.replace("return self.n\n", "return {}[k]\n"), session)  # in a call that is none of these
    assert "KeyError" in found.reason
    assert "must be refused" not in found.reason
    found = verdict(box, right.replace("self.n = n", "self.n = self.total = n"), session)
    assert "self.total hides the method total" in found.reason
    found = verdict(box, right.replace("self.n", "Counter.n"), session)  # another object, of the same class
    assert "total after call 2 of add is 3" in found.reason
    beside = dataclasses.replace(
        session,
        inputs=lambda g: {"init": [3], "steps": [["", []], ["beside add", [2]], ["beside total", []], ["add", [1]]]},
        oracle=lambda init, steps: [None, 5, 5, 4],
    )
    assert verdict(box, right, beside).outcome is Outcome.PASSED
    shared = right.replace("self.n = n", "Counter.n = n").replace("self.n += k", "Counter.n += k")
    assert "call 1 of add is 6, expected 4" in verdict(box, shared, beside).reason


def test_the_same_seed_draws_the_same_cases_and_another_others():
    first, again, other = (judge.draw_cases(DOUBLE, seed) for seed in ("a", "a", "b"))
    assert all(torch.equal(x.arguments["x"], y.arguments["x"]) for x, y in zip(first, again, strict=True))
    assert not any(torch.equal(x.arguments["x"], y.arguments["x"]) for x, y in zip(first[:1], other[:1], strict=True))
    shapes = {judge.draw_cases(DOUBLE, str(seed))[1].params["n"] for seed in range(30)}
    assert len(shapes) > 3


def broken(*args, **kwargs):
    raise ZeroDivisionError("a bug of ours")


@pytest.mark.parametrize("what", ["oracle", "inputs", "hidden", "no case", "mistake", "dtype"])
def test_a_fault_of_the_grader_is_no_score(box, what):
    if what == "hidden":
        exercise = dataclasses.replace(DOUBLE, parts=(Part("all", 3, [dict(n=3)], broken),))
    elif what == "no case":
        exercise = dataclasses.replace(DOUBLE, parts=(*DOUBLE.parts, Part("more", 1, [])))
    elif what == "mistake":
        exercise = dataclasses.replace(DOUBLE, mistakes=(judge_mistake(),))
    elif what == "dtype":
        exercise = dataclasses.replace(DOUBLE, inputs=lambda g, n: {"x": torch.ones(n, dtype=torch.complex64)})
    else:
        exercise = dataclasses.replace(DOUBLE, **{what: broken})
    found = verdict(box, "def double(x): return x", exercise)
    assert found.outcome is Outcome.FAULT
    assert found.score is None
    assert "the grader failed" in found.reason


def judge_mistake():
    from autograder.judging.exercise import Mistake

    return Mistake("broken", "", broken)


def test_a_sandbox_that_cannot_start_is_the_graders_fault(monkeypatch, tmp_path):
    monkeypatch.setattr(sandbox.sys, "executable", "/bin/false")
    with Sandbox("process") as box:
        found = verdict(box, RIGHT)
    assert found.outcome is Outcome.FAULT
    assert found.score is None
    assert "did not start" in found.reason


def test_a_server_that_is_always_lost_is_the_graders_fault(monkeypatch):
    lost = []

    def run(self, request, limits):
        lost.append(1)
        raise sandbox.ServerLost("the machine is out of memory")

    monkeypatch.setattr(Sandbox, "run", run)
    with Sandbox("process") as box:
        found = verdict(box, RIGHT)
    assert (found.outcome, found.score) == (Outcome.FAULT, None)
    assert len(lost) > 1


@pytest.mark.thorough(but=1)
def test_a_server_that_is_lost_once_costs_nobody_anything(box):
    assert verdict(box, RIGHT).outcome is Outcome.PASSED
    box._process.kill()
    box._process.wait()
    assert verdict(box, RIGHT).outcome is Outcome.PASSED


def test_an_interrupted_request_does_not_answer_the_next(box, monkeypatch):
    def interrupt(*args):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(sandbox, "_read_reply", interrupt)
        with pytest.raises(KeyboardInterrupt):
            verdict(box, "def double(x): return x")
    assert verdict(box, RIGHT).outcome is Outcome.PASSED


def test_a_process_that_the_system_killed_is_tried_once_more(box, monkeypatch):
    """As a kernel does where memory is short."""
    real, left = box._exchange, [1]

    def exchange(message, limits):
        left[0] -= 1
        return Reply("exit", 9) if left[0] >= 0 else real(message, limits)

    monkeypatch.setattr(box, "_exchange", exchange)
    assert verdict(box, RIGHT).outcome is Outcome.PASSED
    left[0] = 2
    assert verdict(box, RIGHT).outcome is Outcome.ENDED


def test_killing_the_server_gains_nothing_and_harms_nobody(box):
    found = verdict(box, "import signal\ndef double(x):\n    os.kill(os.getppid(), signal.SIGKILL)\n    os._exit(0)")
    assert found.outcome is Outcome.ENDED
    assert verdict(box, RIGHT).outcome is Outcome.PASSED


@pytest.mark.thorough(but=1)
def test_stopping_the_server_does_not_hold_up_the_class(box):
    started = time.monotonic()
    source = "import signal, time\ndef double(x):\n    os.kill(os.getppid(), signal.SIGSTOP)\n    time.sleep(1e6)"
    assert verdict(box, source, SHORT).outcome is Outcome.TIME
    assert time.monotonic() - started < 20
    assert verdict(box, RIGHT).outcome is Outcome.PASSED


def test_nothing_that_was_left_behind_lives_on(box):
    mark = f"left-behind-{os.getpid()}"
    source = f"""
        import subprocess, time
        def double(x):
            for _ in range(3):
                if os.fork() == 0:
                    os.setpgid(0, 0)
                    if os.fork() == 0:
                        os.execv(sys.executable, [sys.executable, "-c", "import time; time.sleep(600)", "{mark}"])
                    os._exit(0)
            time.sleep(0.3)
            return 2 * x
    """
    assert verdict(box, source, dataclasses.replace(DOUBLE, limits=Limits(seconds=6))).outcome is Outcome.PASSED
    lines = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]
    assert not [line for line in lines if mark.encode() in line]


def test_set_up_that_fails_is_seen_in_the_notes(box):
    found = judge.judge(DOUBLE, [SETUP, Cell("more", "1 / 0", True), Cell("double", RIGHT, True)], "seed", box)
    assert found.score == 0
    assert "ZeroDivisionError in line 1 of cell more" in found.notes[0]
