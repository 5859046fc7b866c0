"""`check(name)` in a notebook: at once, specific, and of one mind with the judge."""

import os
import re
import subprocess
import sys
import time
from contextlib import nullcontext, suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from autograder import checking
from autograder.checking import CheckFailed, check
from autograder.classroom import report
from autograder.course.course import UnknownExercise
from autograder.isolation.worker.running import DispatchMode, run_cell, stopped_after
from autograder.judging.judge import draw_cases, fault, judge
from autograder.judging.program import Cell, build_program
from autograder.judging.verdict import Outcome

from .tiny_course import DOUBLE, NAME, RIGHT, WRONG, verdict, without_script, write


@pytest.fixture(autouse=True)
def at_work(tiny, monkeypatch):
    """The tiny course is the one at work."""
    monkeypatch.setenv("MLA_COURSE", str(tiny.root))


def checked(source, name="double"):
    """Run `check(name)` in a namespace where `source` has run, as a notebook's cell would."""
    namespace = {"check": check, "torch": torch}
    exec(source, namespace)
    exec(f"check({name!r})", namespace)
    return namespace


def test_a_right_function_is_told_so(capsys):
    checked("def double(x): return 2 * x")
    assert "double: passed, 3 of 3 points" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("def double(x): return x / 2", "halved"),
        ("def double(x): return x[:1]", r"shape \[1, 4\], expected \[3, 4\]"),
        ("def double(x): return x.mul_(2)", "changed its argument x in place"),
        ("def double(x): return 1 / 0", "ZeroDivisionError"),
        ("def double(x): raise NotImplementedError", "NotImplementedError"),
        ("def double(x): raise SystemExit", "SystemExit: this ends the whole session"),
        ("def double(x): return twice(x)", "'twice' is not defined: is it spelt like that, and was the cell run"),
        ("def double(x):\n    x = y\n    y = 1", "UnboundLocalError.*with a value \\("),
        ("def double(x): return {1, 2}", "a value of type set"),
        ("double = None", "no function or class double yet"),
        ("", "no function or class double yet"),
    ],
)
def test_a_wrong_one_is_told_what_is_wrong_and_the_check_fails(source, says, capsys):
    with pytest.raises(CheckFailed, match=says):
        checked(source)


@pytest.mark.parametrize("name", ["/tmp/ipykernel_1/{}.py", "<ipython-input-{}-1a2b3c>", "/tmp/ipython-input-{}.py"])
def test_the_line_of_another_cell_comes_with_the_function_that_failed(name):
    namespace = {"check": check, "torch": torch}
    for number, source in enumerate(("def half(x):\n    return x / [2]", "def double(x):\n    return half(x)")):
        exec(compile(source, name.format(number), "exec"), namespace)
    with pytest.raises(CheckFailed, match="TypeError in line 2 of cell half"):
        exec("check('double')", namespace)


def test_an_unknown_name_is_answered_with_those_there_are():
    with pytest.raises(UnknownExercise, match="double, quad"):
        checked("", "triple")


def test_the_right_predecessor_is_supplied_and_taken_away_again(capsys):
    namespace = checked("def double(x): return 1 / 0\ndef quad(x): return double(double(x))", "quad")
    with pytest.raises(ZeroDivisionError):
        namespace["double"](1)
    namespace = checked("def quad(x): return double(double(x))", "quad")
    assert "double" not in namespace


def test_a_predecessor_that_the_answers_own_cell_defines_anew_is_that_one_as_for_the_judge(tiny):
    own = "def double(x, times): return 2 ** times * x\ndef quad(x): return double(x, 2)"
    assert in_session(["import torch", RIGHT["double"], own], "quad") is None
    apart = own.splitlines()
    assert "TypeError" in in_session(["import torch", *apart], "quad")


def test_the_namespace_is_put_back_after_a_failure_too(capsys):
    namespace = {"check": check}
    exec("def double(x): return 'mine'\ndef quad(x): raise ValueError", namespace)
    with pytest.raises(CheckFailed):
        exec("check('quad')", namespace)
    assert namespace["double"](1) == "mine"


@pytest.mark.parametrize(
    "source",
    [
        "def double(x): return 2 * x",
        "def double(x): return (2 * x).numpy()",
        "def double(x): return [2 * x]",
        "def double(x): return (2 * x).requires_grad_()",
        "def double(x): return 2 * x if len(x) < 40 else x",
        "def double(x): return (2 * x).to(torch.complex64)",
        "def double(x): return None",
        "class Yes(torch.Tensor):\n    def __sub__(self, other): return self * 0\n"
        "def double(x): return x.as_subclass(Yes)",
        "class Yes:\n    def __eq__(self, other): return True\ndef double(x): return Yes()",
    ],
)
def test_the_check_and_the_judge_agree(bubble, source, capsys):
    judged = verdict(bubble, source)
    try:
        checked(source)
    except CheckFailed as failed:
        assert judged.outcome is not Outcome.PASSED
        assert str(failed) == judged.reason
    else:
        assert judged.outcome is Outcome.PASSED


def test_the_first_case_is_not_spoilt_by_a_function_that_changes_its_input(capsys):
    """The oracle must see the arguments as they were drawn."""
    (case, *_) = draw_cases(DOUBLE, "visible", hidden=False)
    before = case.arguments["x"].clone()
    checking.run_case(DOUBLE, lambda x: x.zero_(), case)
    assert torch.equal(case.arguments["x"], before)


def test_html_escapes_what_the_student_wrote(bubble):
    found = verdict(bubble, "def double(x): raise ValueError('<script>alert(1)</script>')")
    html = report.as_html(found)
    assert "&lt;script&gt;" in html
    assert "<script>" not in html


@pytest.mark.parametrize("shape", [(), (1,), (3,), (100, 300), (2, 3, 4, 5)])
def test_a_picture_can_be_drawn_of_any_shape(shape):
    expected = torch.randn(shape, dtype=torch.float64)
    result = expected.clone().float()
    result.view(-1)[0] = torch.nan
    svg = report.error_picture(result, expected, "out<")
    assert svg.count("<rect") <= 24 * 64
    assert "out&lt;" in svg


def test_no_picture_is_drawn_of_what_is_right():
    out = torch.randn(8, 8, dtype=torch.float64)
    exercise = SimpleNamespace(oracle=lambda x: (2 * x, x), returns=("out", "lse"), tolerance=1e-5)
    case = SimpleNamespace(arguments={"x": out})
    assert checking._picture(exercise, case, (2 * out, 3 * out)) == ""
    drawn = checking._picture(exercise, case, (torch.where(out == out[0, 0], 0.0, 2 * out), 3 * out))
    assert "error of out" in drawn
    assert drawn.count("rgb(255,255,255)") == 63  # white, as it says below


def test_a_grader_fault_shows_no_points():
    text = report.as_text(fault(DOUBLE, "the machine is gone"))
    assert "grader fault, – of 3 points" in text
    assert "the machine is gone" in text


NORM = """
def rms_normalize(x, weight, eps=1e-6):
    y = x.double()
    return (y * (y.square().mean(-1, keepdim=True) + eps).rsqrt() * weight).to(x.dtype)
"""


def test_numbers_that_numpy_gives_where_torch_has_to_compute_are_refused(monkeypatch, capsys):
    """They are right here, but the judge follows what torch does, on numbers that the student's process never saw."""
    pytest.importorskip("triton", reason="calls are noted by a mode that comes with the kernels")
    monkeypatch.setenv("MLA_COURSE", str(Path(__file__).parents[2]))
    by_numpy = NORM.replace("x.double()", "torch.from_numpy(x.double().numpy() * 1)")
    for source in (NORM, by_numpy):
        namespace = {"check": check, "torch": torch, "In": ["import torch", source]}
        exec(source, namespace)
        with pytest.raises(CheckFailed, match="relative error") if source is by_numpy else nullcontext():
            exec("check('rms_normalize')", namespace)


SHELL = """
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance(colors="nocolor")
for cell in {cells!r}:
    shell.run_cell(cell, store_history=True)
"""


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize("broken", ["def double(x) return 3 * x", "x = nowhere\ndef double(x): return 3 * x"])
def test_a_cell_that_failed_when_it_was_run_last_is_not_checked_as_it_was_before(tiny, broken):
    right, look = "def double(x): return 2 * x", 'check("double")'
    after = "def double(x): return 2 * x\ndouble(nowhere)"  # defined, but the judge runs the cell whole
    cells = ["import torch\nfrom autograder import check", right, look, broken, look, right, look, after, look]
    command = [sys.executable, "-c", SHELL.format(cells=cells)]
    said = subprocess.run(command, env=os.environ, capture_output=True, text=True, check=True).stdout
    assert said.count("double: passed") == 2, said
    assert said.count("failed when it was run last") == 1, said
    assert (
        "right here, but its cell fails, in the notebook too, and the grader runs it whole: NameError in line 2" in said
    )


def test_a_cell_that_failed_before_it_defined_anything_is_said_to_have_failed(tiny):
    cells = ["import torch\nfrom autograder import check", "import nowhere\ndef double(x): return 2 * x", "1 + 1"]
    command = [sys.executable, "-c", SHELL.format(cells=[*cells, 'check("double")', 'check("quad")'])]
    said = subprocess.run(command, env=os.environ, capture_output=True, text=True, check=True).stdout
    assert "no function or class double yet: the cell that defines it failed when it was run: mend it and run" in said
    assert "no function or class quad yet: run the cell above that defines it" in said


ELSEWHERE = {  # in other cells: what they do, and whether the judge sees it
    "a list that it appends to": (["factors = []", "factors.append(2)"], True),
    "a function that fills a list": (["factors = []\ndef put(n): factors.append(n)", "put(2)"], False),
    "a register": (
        ["factors = []\ndef register(f):\n    factors.append(f())\n    return f", "@register\ndef two(): return 2"],
        False,
    ),
    "a name that only the session has": (["globals()['factors'] = [2]"], False),
    "a cell that fails after it": (["factors = [2]", "raise ValueError"], True),
    "what it needs, twice": (["factors = [3]", "factors = [2]"], True),
    "a module in the folder": (["open('of_mine.py', 'w').write('factors = [2]')\nfrom of_mine import factors"], False),
    "a helper that was mended": (["factors = [3]", "def double(x): return factors[-1] * x", "factors = [2]"], True),
    "a default that was there": (["factors = [3]", "def two(n=factors): return 2", "factors = [two()]"], True),
    "a hidden builtin": (["factors = [2]\nprint = sum = lambda *_: None"], True),
    "a package that the course brings": (["import nbformat\nfactors = [2] if nbformat else []"], True),
    "an operation put on torch": (["factors = [2]\ntorch.Tensor.twice = lambda x: 2 * x"], True),
}


def in_session(cells, name):
    """Run cells as a notebook does, then `check(name)`; return what that said where it failed."""
    namespace = {"check": check, "In": ["", *cells]}
    for source in cells:
        with suppress(ValueError):
            exec(source, namespace)
    try:
        exec(f"check({name!r})", namespace)
    except CheckFailed as failed:
        return str(failed)
    return None


def test_a_check_in_a_folder_that_is_gone_ends_with_its_verdict(tmp_path, monkeypatch):
    (gone := tmp_path / "gone").mkdir()
    monkeypatch.chdir(gone)
    monkeypatch.setattr(checking, "_shell_of", lambda namespace: True)
    gone.rmdir()
    checking._keep(fault(DOUBLE, "any"), {})
    monkeypatch.chdir(tmp_path)
    checking._keep(fault(DOUBLE, "any"), {})
    assert (tmp_path / ".progress" / "double.json").is_file()


def test_what_could_not_be_judged_is_told_so_and_not_passed(monkeypatch, capsys):
    monkeypatch.setattr(checking, "_judged", lambda course, lesson, exercise, cells: fault(exercise, "no memory"))
    said = in_session(["def double(x):\n    return 2 * x"], "double")
    assert "right here, but not judged" in said and "no memory" in said
    assert "double: grader fault, – of 3 points" in capsys.readouterr().out


@pytest.mark.parametrize("name", ELSEWHERE)
def test_what_other_cells_do_counts_in_a_check_as_it_does_for_the_judge(tiny, bubble, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    before, right = ELSEWHERE[name]
    cells = ["import torch", *before, "def double(x): return factors[-1] * x"]
    said = in_session(cells, "double")
    sys.modules.pop("of_mine", None)
    assert (said is None) == right, said
    assert right or "right here, but" in said or "put what you need of it into the notebook" in said
    own = [Cell(f"cell {n}", source) for n, source in enumerate(cells)]
    program = build_program((), (), own, own[-1])
    assert (judge(DOUBLE, program, "seed", bubble).outcome is Outcome.PASSED) == right


MAGICS = (  # cells that a notebook runs; whether the check of double passes
    (["%%time\ndef double(x): return 2 * x"], True),
    (["!true\ndef double(x): return 2 * x"], True),
    (["%%time\ndef two(): return 2", "def double(x): return two() * x"], True),
    (["def double(x): return x", "%%capture\ndef double(x): return 2 * x"], True),
    (["globals()['k'] = 2", "%%time\ndef double(x): return k * x"], False),
    (["k = 2", "%%timeit -n1 -r1\nk = 3", "def double(x): return k * x"], True),
    (["exec('def double(x): return 2 * x')"], False),
    (["import __main__\ndef double(x): return 2 * x"], True),
    (["%time y = 3\ndef double(x): return 2 * x\ndouble(nowhere)"], False),
)


def test_a_check_reads_cells_as_they_were_typed(tiny):
    """One session for all: what `In` holds has no magics any more."""
    cells = ["import torch\nfrom autograder import check"]
    for number, (each, _) in enumerate(MAGICS):
        cells += [*each, f"print('case {number}')\ncheck('double')", "del double"]
    command = [sys.executable, "-c", SHELL.format(cells=cells)]
    said = subprocess.run(command, env=os.environ, capture_output=True, text=True, check=True).stdout
    parts = re.split(r"case \d+\n", said)[1:]
    assert [("double: passed" in part) for part in parts] == [right for _, right in MAGICS], said
    assert "no cell that was run defines double" not in parts[4]
    assert "the grader runs it whole" in parts[-1], said


JUDGED = {  # what the judge alone finds, and what comes first in what is said of it
    "a name that only the session has": (
        ["globals()['k'] = 2", "def double(x): return k * x"],
        "right here, but not where it is graded",
    ),
    "a cell that fails in the end": (
        ["def double(x): return 2 * x\nraise ValueError"],
        "right here, but not where it is graded",
    ),
    "a function that fills a list": (
        ["ks = []\ndef put(n): ks.append(n)", "put(2)", "def double(x): return ks[-1] * x"],
        "right here, but the grader says: IndexError in line 1",
    ),
    "memory": (
        ["def double(x): return 2 * x + 0 * len(torch.empty(1 << 27))"],
        "right here, but the grader says: more than 256 MiB",
    ),
    "time": (
        ["def double(x):\n    while 'In' not in globals(): pass\n    return 2 * x"],
        "right here, but the grader says: no answer within 1 s",
    ),
}


@pytest.mark.parametrize("name", JUDGED)
def test_what_the_judge_alone_finds_comes_first_unless_the_session_has_more(tmp_path, monkeypatch, name):
    monkeypatch.setenv("MLA_COURSE", str(write(tmp_path, "exercises", {"seconds=5.0": "seconds=1.0"}).root))
    cells, says = JUDGED[name]
    said = in_session(["import torch", *cells], "double")
    assert said.startswith(says), said


def test_after_a_call_that_takes_all_the_time_there_are_no_others(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("MLA_COURSE", str(write(tmp_path, "exercises", {"seconds=5.0": "seconds=1.0"}).root))
    endless = "calls = []\ndef double(x):\n    calls.append(x)\n    while True: pass"
    namespace = {"check": check}
    exec(endless, namespace)
    with pytest.raises(CheckFailed, match="no answer within 1 s"):
        exec("check('double')", namespace)
    assert len(namespace["calls"]) == 1
    said = capsys.readouterr().out
    assert "small: 0/2" in said and "large: 0/1  no answer within 1 s" in said, said


def test_a_check_whose_time_is_up_leaves_the_session_as_it_was():
    """Wherever it is just then: a mode of torch's that is half begun would be there in all calls after it."""

    class Slow(DispatchMode):
        def __enter__(self):
            super().__enter__()
            time.sleep(0.2)

    before = len(_get_current_dispatch_mode_stack())
    with pytest.raises(TimeoutError), stopped_after(0.05), Slow():
        time.sleep(5)
    assert len(_get_current_dispatch_mode_stack()) == before


def test_a_machine_that_is_busy_with_other_work_takes_nothing_from_the_time_of_a_call():
    with stopped_after(0.1):
        time.sleep(0.15)


def test_a_students_own_with_that_does_not_begin_is_stopped():
    namespace = {}
    run_cell("own", "class Endless:\n    def __enter__(self):\n        while True: pass", namespace)
    with pytest.raises(TimeoutError), stopped_after(0.05):
        namespace["Endless"]().__enter__()


def test_what_the_session_shows_is_shown_once(capsys):
    in_session(["import torch", "print('loud')\ndef double(x): return 2 * x"], "double")
    said = capsys.readouterr().out
    assert (said.count("loud"), said.count("double: passed")) == (1, 1)


def test_an_import_that_the_grader_may_lack_is_refused_before_it_is_handed_in(tmp_path, monkeypatch):
    (tmp_path / "einopsy.py").write_text("def twice(x): return 2 * x")
    monkeypatch.syspath_prepend(tmp_path)
    used = "def double(x):\n    from einopsy import twice\n    return twice(x)"
    assert "einopsy is imported, which the grader may not have" in in_session(["import torch", used], "double")
    for perhaps in (
        "try:\n    import einopsy\nexcept ImportError:\n    pass",
        "from contextlib import suppress\nwith suppress(ImportError): import einopsy",
        "if torch is None: import einopsy",
    ):
        assert in_session(["import torch", f"{perhaps}\ndef double(x): return 2 * x"], "double") is None
    quiet = "import warnings\nwith warnings.catch_warnings():\n    import einopsy\n    suppressed = True\n"
    assert "einopsy is imported" in in_session(["import torch", f"{quiet}def double(x): return 2 * x"], "double")
    fetched = "try:\n    import einopsy\nexcept ImportError:\n    import einopsy as other\n"
    assert "einopsy" in in_session(["import torch", f"{fetched}def double(x): return 2 * x"], "double")
    sys.modules.pop("einopsy")


def test_of_several_definitions_the_one_that_ran_last_is_checked():
    """It is among those that the judge looks at, of which the best counts."""
    right, wrong, faster = "def double(x): return 2 * x", "def double(x): return x", "double = torch.no_grad()(double)"
    assert in_session(["import torch", wrong, right], "double") is None
    assert in_session(["import torch", right, faster], "double") is None
    assert "expected" in in_session(["import torch", right, wrong], "double")
    helped = ["import torch", "def two(): return 3", "def double(x): return two() * x"]
    assert in_session([*helped, "def two(): return 2"], "double") is None
    bound = ["import torch", "K = 2", "def double(x, k=K): return k * x", "K = 3"]
    assert in_session(bound, "double") is None


HANDED_OUT = {  # where no lesson's script is: the student's cells, and whether the check of quad passes
    "right": (["def double(x): return 2 * x", "def quad(x): return double(double(x))"], True),
    "a function called like one of the set-up": (
        ["def shift(x): return x", "def double(x): return 2 * x", "def quad(x): return shift(double(double(x)))"],
        False,
    ),
    "more of an earlier exercise than it has": (
        ["def double(x, times=1): return 2**times * x", "def quad(x): return double(x, times=2)"],
        False,
    ),
    "as much of it": (["def double(x, times=1): return 2**times * x", "def quad(x): return double(double(x))"], True),
    "an earlier exercise that ran later": (
        ["def quad(x): return double(double(x))", "def double(x): return 2 * x"],
        True,
    ),
}


@pytest.mark.thorough(but=2)
@pytest.mark.parametrize("name", HANDED_OUT)
def test_without_the_lessons_scripts_a_check_knows_set_up_and_starters(tmp_path, monkeypatch, name):
    course = without_script(tmp_path, {"import math\n": "import math\n\ndef shift(x): return x + 1\n"})
    monkeypatch.setenv("MLA_COURSE", str(course.root))
    cells, right = HANDED_OUT[name]
    said = in_session([course.lesson(NAME).setup[0].source, *cells], "quad")
    assert (said is None) == right, said
    assert right or "right here, but the grader says: " in said
    assert ("the right solution of double stands in" in (said or "")) == (
        name == "more of an earlier exercise than it has"
    )


OWN = "Your own double was used here. The grader uses its own"
USED = {  # cells, and what is said of the student's own `double`
    "in a helper": (
        ["def double(x): return 2 * x", "def twice(x): return double(x)", "def quad(x): return twice(twice(x))"],
        f"{OWN}, so rely only on what double's task promises",
    ),
    "wrong": (
        ["def double(x): return 3 * x", "def quad(x): return double(double(x))"],
        f"{OWN}: where yours is wrong, this may be right",
    ),
    "in a function that the lesson gives": (
        ["def double(x): return 2 * x", "def quad(x): return twice(twice(x))", "def twice(x): return double(x)"],
        f"{OWN}, so rely only on what double's task promises",
    ),
    "not at all": (["def double(x): return 2 * x", "def quad(x): return 4 * x"], ""),
}
TWICE = '# %% setup="twice"\ndef twice(x): return double(x)\n\n# %% solution="double"'


@pytest.mark.parametrize("name", USED)
def test_a_check_says_which_answers_of_ones_own_it_used(tmp_path, monkeypatch, name, capsys):
    given = {'# %% solution="double"': TWICE} if "gives" in name else {}
    monkeypatch.setenv("MLA_COURSE", str(without_script(tmp_path, given).root))
    cells, says = USED[name]
    in_session(["import torch", *cells], "quad")
    said = capsys.readouterr().out
    assert says in said if says else "note:" not in said, said


def test_several_answers_of_ones_own_are_named_in_a_sentence(bubble):
    said = report.as_text(report.with_own(verdict(bubble, RIGHT["double"]), ["a", "b", "c"]))
    assert "Your own a, b and c were used here. The grader uses its own, so rely only on what their tasks" in said
    said = report.as_text(report.with_own(verdict(bubble, WRONG["double"]), ["a", "b"]))
    assert "Your own a and b were used here. The grader uses its own: where one of yours is wrong, this may be" in said
