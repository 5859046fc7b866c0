"""`check(name)` of a kernel: what is no kernel, or does something undefined, is refused at once, with its line."""

import dataclasses
import os
import subprocess
import sys

import pytest

from autograder import checking
from autograder.checking import CheckFailed
from autograder.judging.verdict import Outcome
from mla_ref.hardware import emulator

from .kernel_course import FOLDER, KERNEL, RIGHT, ROW_SUM, SETUP, verdict
from .test_checking import SHELL

pytestmark = [
    pytest.mark.xdist_group("workers"),
    pytest.mark.skipif(not emulator.active(), reason="kernels run on the GPU here"),
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


def test_a_kernel_under_a_magic_that_hides_its_source_is_said_to_be(monkeypatch):
    """Whether or not it stood there without before."""
    monkeypatch.setenv("MLA_COURSE", str(FOLDER))
    hidden, look = f"%%time\n{KERNEL}{RIGHT}", 'check("row_sum")'
    cells = [SETUP.source, "from autograder import check", hidden, look, KERNEL + RIGHT, look, hidden, look]
    command = [sys.executable, "-c", SHELL.format(cells=cells)]
    said = subprocess.run(command, env=os.environ, capture_output=True, text=True, check=True).stdout
    assert said.count("row_sum: passed") == 1, said
    assert said.count("Triton cannot read a kernel under %%time: time a call in a cell below, take the line out") == 2


def test_a_warning_shows_the_line_of_the_launch(checked):
    with pytest.warns(UserWarning, match="the grid .* has no programs") as caught, pytest.raises(CheckFailed):
        checked(KERNEL + RIGHT.replace("(len(x),)]", "(len(x) // 1000,)]"))
    assert {each.filename for each in caught} == {"<cell row_sum>"}


@pytest.mark.parametrize(
    ("step", "says"),
    [
        ("(tl.sum(x) + numpy.sum(0))", "nor do NumPy's"),
        ("(tl.sum(x) + [i * 0.0 for i in range(2)][0])", "only tuple comprehensions"),
        ("sum([0, tl.sum(x)])", "sum"),
    ],
)
def test_python_that_is_no_kernel_is_refused(checked, step, says, capsys):
    with pytest.raises(CheckFailed, match=says):
        checked(KERNEL.replace("tl.sum(x.to(tl.float32))", step) + RIGHT)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (", other=0.0", "", r"NaN in 3 of 3 entries: sum_kernel in line 5 \(.*the mask leaves places out of this load"),
        ("    tl.store", "    return\n    tl.store", "NaN in 3 of 3 entries: no store wrote 3 of them"),
        (
            "* alpha",
            "* alpha + (tl.sum(x) * 0) / (tl.sum(x) * 0)",
            "NaN comes here from 0/0, inf/inf, 0 · inf or inf - inf",
        ),
    ],
)
def test_where_nan_comes_from_is_said(checked, old, new, says, capsys):
    with pytest.raises(CheckFailed, match=says):
        checked(KERNEL.replace(old, new, 1) + RIGHT)


def test_what_the_compiler_says_is_shown_with_its_line(checked, capsys):
    loop = "    total = 0\n    for _ in range(D):\n        total += 0.5\n    x += 0.0 * total\n"
    with pytest.raises(CheckFailed, match=r"line 7 .*`for _ in range\(D\):`.*: Loop-carried variable total"):
        checked(KERNEL.replace("    tl.store(out_ptr + row", f"{loop}    tl.store(out_ptr + row", 1) + RIGHT)


FAULTS = {
    "reads too far": (
        "mask=cols < D, other=0.0",
        "mask=cols <= D, other=0.0",
        r"sum_kernel in line 5 .*tl.load reads element",
    ),
    "all write to one row": (
        "tl.store(out_ptr + row,",
        "tl.store(out_ptr + row // 2,",
        r"sum_kernel in line 6 .*nothing says which",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_what_is_undefined_is_named(checked, name, capsys):
    old, new, says = FAULTS[name]
    with pytest.raises(CheckFailed, match=says):
        checked(KERNEL.replace(old, new) + RIGHT)


def test_a_loop_that_does_not_end_is_stopped(checked, capsys):
    loop = "    n = row + 1\n    while n > 0: n = (n + 2) % 1001 + 1\n    x += n\n"
    hurried = dataclasses.replace(ROW_SUM, limits=dataclasses.replace(ROW_SUM.limits, seconds=1.0))
    with (
        pytest.MonkeyPatch.context() as patch,
        pytest.raises(CheckFailed, match=r"line 7 .*had not ended when the time"),
    ):
        patch.setattr(checking.Course, "locate", lambda self, name: ("91_row_sum", hurried))
        checked(KERNEL.replace("    tl.store(out_ptr + row", f"{loop}    tl.store(out_ptr + row", 1) + RIGHT)


# What a function does beside its kernel, and whether the judge's verdict depends on it
BESIDE = {
    "a check of the data": ("    assert x.isfinite().all()\n", "", True),
    "a print of the data": ("    print(float(x.sum()))\n", "", True),
    "random numbers where results will be": ("", ("torch.empty(", "torch.rand("), True),
    "a choice by the data": ("    if x.sum() > 1e9: return out\n", "", True),
    "an answer of NumPy's": ("", ("return out", "return torch.from_numpy(alpha * x.float().numpy().sum(1))"), False),
    "an answer of an earlier call": (
        "",
        ("return out", "return row_sum.__dict__.setdefault((x.shape, alpha), out)"),
        False,
    ),
}


@pytest.mark.parametrize("name", BESIDE)
def test_what_is_open_is_decided_by_the_judge(checked, name, workers, capsys):
    before, change, passes = BESIDE[name]
    launcher = RIGHT.replace("    out =", f"{before}    out =").replace(*change or ("", ""))
    judged = verdict(workers, launcher)
    assert (judged.outcome is Outcome.PASSED) == passes, judged
    if passes:
        checked(KERNEL + launcher)
    else:
        with pytest.raises(CheckFailed) as failed:
            checked(KERNEL + launcher)
        assert str(failed.value).split(" (at")[0] == judged.reason.split(" (at")[0]


OPTIONS = {
    "num_warps=max(1, 4096 / 1024)": "num_warps is 4.0: give a whole number (`//`, not `/`)",
    "num_warps='4'": "num_warps is '4': give a whole number (`//`, not `/`)",
    "num_warps=True": "num_warps is True: give a whole number (int(n))",
    "num_warps=64 // 1024": "num_warps is 0, expected 1, 2, 4, 8, 16 or 32: max(1, n) where n may come to 0",
    "num_warps=3": "num_warps is 3, expected 1, 2, 4, 8, 16 or 32",
    "num_warps=128": "num_warps is 128, expected 1, 2, 4, 8, 16 or 32: min(32, n) where n may be larger",
    "num_stages=2.0": "num_stages is 2.0: give a whole number (`//`, not `/`)",
    "num_stages=0": "num_stages is 0, expected 1 to 64: max(1, n) where n may come to 0",
    "num_ctas=1.0": "num_ctas is 1.0: give a whole number (`//`, not `/`)",
    "num_ctas=2": "num_ctas is 2: programs that share several blocks are not graded",
    "maxnreg='64'": "maxnreg is '64': give a whole number (`//`, not `/`)",
    "num_warps=None, num_stages=None, num_ctas=None, maxnreg=None": "",
    "num_stages=numpy.int64(2)": "num_stages is np.int64(2): give a whole number (int(n))",
    "num_warps=numpy.int64(8), num_stages=1, num_ctas=1, maxnreg=64": "",
}


@pytest.mark.parametrize("options", OPTIONS)
def test_an_option_that_no_gpu_takes_is_refused_in_the_same_words(checked, options, workers, capsys):
    launcher = RIGHT.replace("BLOCK=64", f"BLOCK=64, {options}")
    judged = verdict(workers, launcher)
    if not OPTIONS[options]:
        checked(KERNEL + launcher)
        assert judged.outcome is Outcome.PASSED
        return
    with pytest.raises(CheckFailed) as failed:
        checked(KERNEL + launcher)
    for said in (str(failed.value), judged.reason):
        assert "in line 19 (`sum_kernel[(len(x),)](" in said and OPTIONS[options] in said, said


ARGUMENTS = "(x, out, x.shape[1], x.stride(0), alpha, BLOCK=64"
OTHERWISE = {
    f"    sum_kernel.warmup{ARGUMENTS}, grid=(1,))[(len(x), 1, 1)](x, out, x.shape[1], x.stride(0), alpha, 64)": (
        "what sum_kernel.warmup compiled is launched: launch the kernel itself, sum_kernel[grid](...)"
    ),
    f"    torch.library.wrap_triton(sum_kernel)[(len(x),)]{ARGUMENTS})": (
        "torch.library.wrap_triton is not graded: launch the kernel itself, kernel[grid](...)"
    ),
    f"    sum_kernel.add_pre_run_hook(print)\n    sum_kernel[(len(x),)]{ARGUMENTS})": (
        "sum_kernel.add_pre_run_hook is not graded: do in front of the launch what the hook does"
    ),
}


@pytest.mark.parametrize("launch", OTHERWISE, ids=["warmup", "wrap_triton", "hook"])
def test_a_launch_in_a_way_that_is_not_graded_is_refused_with_what_to_do(checked, launch, workers):
    launcher = f"\ndef row_sum(x, alpha):\n    out = torch.empty(len(x))\n{launch}\n    return out\n"
    judged = verdict(workers, launcher)
    with pytest.raises(CheckFailed) as failed:
        checked(KERNEL + launcher)
    for said in (str(failed.value), judged.reason):
        assert OTHERWISE[launch] in said and "[(len(x)" in said.split("`)")[0], said
