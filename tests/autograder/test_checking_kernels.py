"""`check(name)` of a kernel: what the interpreter takes and the compiler does not is refused at once."""

import pytest

from autograder import checking
from autograder.checking import CheckFailed
from mla_ref.hardware import interpreter

from .kernel_course import FOLDER, KERNEL, RIGHT, SETUP

pytestmark = [
    pytest.mark.xdist_group("workers"),
    pytest.mark.skipif(not interpreter.active(), reason="kernels are compiled here in any case"),
]


@pytest.fixture
def checked(monkeypatch):
    """A function that runs `check("row_sum")` as a notebook would after a cell with a kernel and its launch."""
    monkeypatch.setenv("MLA_COURSE", str(FOLDER))

    def run(source, history=True):
        namespace = {"__name__": "notebook", "check": checking.check}
        checking.running.run_cell("imports", SETUP.source, namespace)
        checking.running.run_cell("row_sum", source, namespace)
        if history:
            namespace["In"] = ["", SETUP.source, source]
        exec("check('row_sum')", namespace)

    return run


def test_a_right_kernel_passes_with_and_without_a_history_of_cells(checked, capsys):
    for history in (True, False):
        checked(KERNEL + RIGHT, history)
        assert "row_sum: passed, 2 of 2 points" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("step", "says"),
    [
        ("(tl.sum(x) + numpy.sum(0))", "numpy"),
        ("(tl.sum(x) + [i * 0.0 for i in range(2)][0])", "ListComp"),
        ("sum([0, tl.sum(x)])", "sum"),
    ],
)
def test_python_that_only_the_interpreter_runs_is_refused(checked, step, says, capsys):
    with pytest.raises(CheckFailed, match=says):
        checked(KERNEL.replace("tl.sum(x.to(tl.float32))", step) + RIGHT)


def test_what_the_compiler_says_is_shown_with_its_line(checked, capsys):
    loop = "    total = 0\n    for _ in range(D):\n        total += 0.5\n    x += 0.0 * total\n"
    with pytest.raises(CheckFailed, match=r"not compile for H100.*`for _ in range\(D\):`: Loop-carried variable total"):
        checked(KERNEL.replace("    tl.store(out_ptr + row", f"{loop}    tl.store(out_ptr + row", 1) + RIGHT)
