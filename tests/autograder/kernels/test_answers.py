"""Where did the answer come from? Honest kernels of several kinds, and what is passed off as a kernel."""

import dataclasses
import textwrap

import pytest
import torch

from autograder.isolation.worker import wire
from autograder.judging.exercise import Exercise, Part, randn
from autograder.judging.verdict import Outcome
from autograder.kernels.worker import tasks

from ..kernel_course import KERNEL, RIGHT, ROW_SUM, verdict

pytestmark = pytest.mark.usefixtures("workers")


@pytest.mark.parametrize(
    "source",
    [
        RIGHT,
        RIGHT.replace("(x, out,", "(x.contiguous(), out,"),
        RIGHT.replace("(x, out,", "(x.double().float(), out,"),
        RIGHT.replace("torch.empty(len(x))", "torch.zeros(2, len(x))[1]"),
        RIGHT.replace("(x, out,", "(torch.nn.functional.pad(x, (0, 3)), out,").replace("x.stride(0)", "x.shape[1] + 3"),
        RIGHT.replace("return out", "return out.double()"),
        RIGHT.replace("(x, out,", "(x.flip(0), out,").replace(
            "return out", "return out[torch.arange(len(x) - 1, -1, -1)]"
        ),
        RIGHT.replace("torch.empty(len(x))", "torch.rand(len(x))"),
        RIGHT.replace("return out", "assert x.isfinite().all()\n    return out"),
        RIGHT.replace("torch.empty(len(x))", "torch.empty(0).resize_(len(x))"),
        RIGHT.replace(
            "return out",
            "rows = torch.empty(0, dtype=torch.int64)\n    torch.arange(len(x), out=rows)\n    return out[rows]",
        ),
        "ROWS = torch.zeros(1, dtype=torch.int64)\n"
        + RIGHT.replace(
            "return out",
            "ROWS.sub_(1).add_(1)\n    return out[torch.tensor([0]).sub_(1).add_(1) + ROWS + torch.arange(len(x))]",
        ),
    ],
    ids=[
        *("plain", "contiguous", "cast", "zeros", "padded", "cast behind", "turned round", "random out", "looked at"),
        *("made larger", "place made larger", "kept numbers changed"),
    ],
)
def test_a_host_may_copy_cast_and_pad(workers, source):
    found = verdict(workers, source)
    assert found.outcome is Outcome.PASSED, found.reason


def test_a_kernel_may_give_fp8(workers):
    exercise = dataclasses.replace(ROW_SUM, tolerance=0.07, like=(torch.float8_e4m3fn,))
    narrow = RIGHT.replace("torch.empty(len(x))", "torch.empty(len(x), dtype=torch.float8_e4m3fn)")
    found = verdict(workers, narrow, exercise=exercise)
    assert found.outcome is Outcome.PASSED, found.reason
    found = verdict(workers, narrow.replace("(len(x),)", "(len(x) - 1,)"), exercise=exercise)
    assert found.outcome is not Outcome.PASSED


PASSED_OFF = {
    "calls torch": ("def row_sum(x, alpha):\n    return alpha * x.sum(-1)", "no Triton kernel was launched"),
    "throws the kernel's output away": (
        RIGHT.replace("return out", "return alpha * x.sum(-1)"),
        "the result is what torch computes from data outside the kernels: `sum` in line 20 (`return alpha",
    ),
    "multiplies a list": (
        RIGHT.replace("return out", "torch._foreach_mul_([out], 2)\n    return out"),
        "the result is what torch computes from data outside the kernels: `mul` in line 20 (`torch._foreach_mul_",
    ),
    "takes a step of an optimizer": (
        RIGHT.replace("return out", "rest = dict.fromkeys(('weight_decay', 'momentum', 'dampening'), 0.0)\n"
                      "    torch._fused_sgd_([out], [out], [], **rest, lr=0.5, nesterov=False, maximize=False, "
                      "is_first_step=True)\n    return out"),
        "the result is what torch computes from data outside the kernels: `fused_sgd` in line 21",
    ),
    "takes the result for a running mean": (
        RIGHT.replace("return out", "torch.nn.functional.batch_norm(torch.zeros(2, len(x)), out, torch.ones(len(x)), "
                      "training=True)\n    return out"),
        "the result is what torch computes from data outside the kernels: `native_batch_norm` in line 20",
    ),
    "writes over the kernel's output": (
        RIGHT.replace("return out", "return out.copy_(alpha * x.sum(-1))").replace("x, out,", "x * 0, out,"),
        "sum_kernel takes as x_ptr what torch computes from data outside the kernels: `mul`",
    ),
    "copies with a kernel": (
        "def row_sum(x, alpha):\n    out = torch.empty(len(x))\n"
        "    copy_kernel[(1,)](alpha * x.sum(-1), out, len(x), BLOCK=64)\n    return out",
        "copy_kernel takes as x_ptr what torch computes from data outside the kernels: `sum` in line 18",
    ),
    "gives torch a place for its results": (
        RIGHT.replace("return out", "torch.mul(x.sum(-1), alpha, out=out)\n    return out").replace("alpha, B", "9, B"),
        "the result is what torch computes from data outside the kernels: `sum` in line 20 (`torch.mul(",
    ),
    "computes with torch what no data reaches": (
        RIGHT.replace("return out", "return torch.ones(len(x)) / 2"),
        "the result is what torch computes with floats outside the kernels: `div`",
    ),
    "leaves the kernel the last step": (
        RIGHT.replace("(x, out,", "(alpha * x, out,").replace("alpha, BLOCK", "1.0, BLOCK"),
        "sum_kernel takes as x_ptr what torch computes from data outside the kernels: `mul` in line 19",
    ),
    "computes with NumPy": (
        RIGHT.replace("(x, out,", "(torch.from_numpy(alpha * x.numpy()), out,").replace("alpha, BLOCK", "1.0, BLOCK"),
        "sum_kernel takes as x_ptr what was there before the call",
    ),
    "passes results as numbers": (
        "def row_sum(x, alpha):\n    out = torch.empty(len(x))\n    for i in range(len(x)):\n"
        "        fill_kernel[(1,)](out, i, float(alpha * x[i].sum()))\n    return out",
        "numbers of a tensor are read in Python in line",
    ),
    "hides results in an argument": (
        "def row_sum(x, alpha):\n    out = torch.empty(len(x))\n    keep = x.clone()\n"
        "    x.view(-1)[: len(x)] = alpha * keep.sum(-1)\n"
        "    copy_kernel[(1,)](x, out, len(x), BLOCK=64)\n    x.copy_(keep)\n    return out",
        "it changed its argument x in place",
    ),
    "keeps results": (
        RIGHT.replace("def row_sum(x, alpha):\n", "kept = {}\ndef row_sum(x, alpha):\n    if x.shape in kept:\n"
                      "        return kept[x.shape]\n").replace("return out", "kept[x.shape] = out\n    return out"),
        "one that an earlier call returned",
    ),
    "hands results over as integers": (
        """
@triton.jit
def scale_kernel(whole_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out_ptr + i, tl.load(whole_ptr + i, mask=i < n).to(tl.float32) / 262144, mask=i < n)

def row_sum(x, alpha):
    out, whole = torch.empty(len(x)), (alpha * x.sum(-1) * 262144).round().int()
    scale_kernel[(1,)](whole, out, len(x), BLOCK=64)
    return out
""",
        "scale_kernel takes as whole_ptr what torch computes from data outside the kernels: `sum`",
    ),
    "hands results over as two types at once": (
        '''
@triton.jit
def second_kernel(whole_ptr, part_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out_ptr + i, tl.load(part_ptr + i, mask=i < n).to(tl.float32) * 2, mask=i < n)

def row_sum(x, alpha):
    out, half = torch.empty(len(x)), (alpha * x.sum(-1) / 2).double()
    second_kernel[(1,)](half.view(torch.int16), half, out, len(x), BLOCK=64)
    return out
''',
        "second_kernel takes as whole_ptr what torch computes from data outside the kernels: `sum`",
    ),
    "writes over what a kernel left for the next": (
        RIGHT.replace("    return out", "    kept, last = torch.empty(len(x)), torch.empty(len(x))\n"
                      "    copy_kernel[(1,)](out, kept, len(x), BLOCK=64)\n    kept.copy_(alpha * x.sum(-1))\n"
                      "    copy_kernel[(1,)](kept, last, len(x), BLOCK=64)\n    return last"),
        "copy_kernel takes as x_ptr what torch computes from data outside the kernels: `sum`",
    ),
    "compares by identity": (
        KERNEL.replace("    tl.store(out_ptr + row,", "    if row is not 0:\n        tl.store(out_ptr + row,") + RIGHT,
        "compares with `is`",
    ),
    "would work where 1 is no constant": (
        KERNEL.replace("stride, alpha,", "stride, alpha, one,")
        .replace("    tl.store(out_ptr + row,", "    if (one - 2) // 2 == 0:\n        tl.store(out_ptr + row,")
        + RIGHT.replace("alpha, BLOCK", "alpha, 1, BLOCK"),
        "has NaN in 3 of 3",
    ),
    "adds to what a kernel left": (
        RIGHT.replace("return out", "out.add_(1)\n    return out"),
        "the result is what torch computes from data outside the kernels: `add` in line 20",
    ),
    "falls back": (
        "def row_sum(x, alpha):\n    try:\n        sum_kernel[(1,)](x)\n    except Exception:\n"
        "        return alpha * x.sum(-1)",
        "no Triton kernel was launched",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PASSED_OFF)
def test_what_is_passed_off_as_a_kernel_is_refused(workers, name):
    source, says = PASSED_OFF[name]
    found = verdict(workers, source)
    assert (found.outcome, found.score) == (Outcome.WRONG, 0), name
    assert says in found.reason


@pytest.mark.parametrize(
    "step",
    ["tl.sum(torch.as_tensor(1.0) * x)", "tl.sum(x) + numpy.sum(0)", "x.handle.data.sum()", "tl.sum(x) + float(x.sum)"],
)
def test_python_that_is_no_kernel_is_refused(workers, step):
    kernels = KERNEL.replace("tl.sum(x.to(tl.float32))", step)
    found = verdict(workers, RIGHT, kernels)
    assert (found.outcome is not Outcome.PASSED, found.score) == (True, 0)


def _before_the_store(step):
    store = "    tl.store(out_ptr + row"
    return KERNEL.replace(store, f"    {step}\n{store}")


MESSAGES = {
    "if": (_before_the_store("if x > 0: x = x"), "tl.where"),
    "while": (_before_the_store("while x > 0: x -= 1"), "tl.where"),
    "split": (_before_the_store("a, b = tl.split(x)"), "2 elements"),
    "a shape that does not fit": (
        _before_the_store("x = x + tl.arange(0, 2)"),
        "in line 6 (`x = x + tl.arange(0, 2)`)",
    ),
    "a length that is no power of 2": (_before_the_store("x = tl.arange(0, 3)"), "must be a power of 2"),
}


@pytest.mark.parametrize("name", MESSAGES)
def test_what_beginners_write_in_kernels_is_answered_in_words_that_help(workers, name):
    kernels, says = MESSAGES[name]
    found = verdict(workers, RIGHT, kernels)
    assert (found.outcome, found.score) == (Outcome.ERROR, 0)
    assert says in found.reason


REFUSED = {
    "state": (_before_the_store("tl.kept = 7"), "tl.kept"),
    "torch": (KERNEL.replace("tl.sum(x.to(tl.float32))", "tl.sum(torch.exp(x))"), "torch's functions take no blocks"),
    "autotune": (  # which times several launches in one call, and makes one in another
        KERNEL.replace("@", "@triton.autotune([triton.Config({}, num_warps=w) for w in (4, 8)], key=['D'])\n@", 1),
        "pass the values of one configuration at the launch",
    ),
    "numpy": (KERNEL.replace("tl.sum(x.to(tl.float32))", "numpy.sum(x)"), "nor do NumPy's"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_kernel_does_not_hold_is_said_before_it_runs(workers, name):
    kernels, says = REFUSED[name]
    found = verdict(workers, RIGHT, kernels)
    assert (found.outcome, found.score) == (Outcome.WRONG, 0)
    assert says in found.reason


@pytest.mark.parametrize(
    ("grid", "says"),
    [("len(x)", "as a tuple"), ("(len(x) / 1,)", "triton.cdiv"), ("()", "one to three")],
)
def test_a_grid_that_is_none_is_shown(workers, grid, says):
    found = verdict(workers, RIGHT.replace("(len(x),)]", f"{grid}]"))
    assert found.outcome is Outcome.ERROR
    assert "the grid is " in found.reason and says in found.reason


def test_a_condition_on_a_number_of_the_kernel_is_fine(workers):
    kernels = _before_the_store("if row > 0 and D > 1: x = x + 0")
    assert verdict(workers, RIGHT, kernels).outcome is Outcome.PASSED


def test_an_output_of_another_dtype_is_wrong_where_the_exercise_says_so(workers):
    halves = dataclasses.replace(
        ROW_SUM,
        inputs=lambda generator, rows, width: {"x": randn(generator, rows, width, dtype=torch.float16), "alpha": 1.5},
        like=("x",),
        tolerance=2e-3,
    )
    found = verdict(workers, RIGHT, exercise=halves)
    assert (found.outcome, found.score) == (Outcome.WRONG, 0)
    assert "out is float32, expected float16, as x is" in found.reason
    found = verdict(
        workers, RIGHT.replace("torch.empty(len(x))", "torch.empty(len(x), dtype=x.dtype)"), exercise=halves
    )
    assert found.outcome is Outcome.PASSED, found.reason


def test_accounts_of_launches_that_the_students_process_makes_up_do_not_count(workers):
    forger = """
    from autograder.kernels.worker import recording
    def notes(self, result):
        return {"events": [], "storages": [], "result": [], "form": alpha_sums}
    """
    source = "alpha_sums = []\nrecording.Recorder.notes = notes\n" + RIGHT.replace(
        "return out", "return alpha * x.sum(-1)"
    )
    found = verdict(workers, source, helpers=[forger])
    assert (found.outcome, found.score) == (Outcome.WRONG, 0)


def test_unwritten_elements_are_named(workers):
    found = verdict(workers, RIGHT.replace("(len(x),)]", "(len(x) - 1,)]"))
    assert found.outcome is Outcome.WRONG
    assert "has NaN in 1 of 3 entries: no store wrote 1 of them" in found.reason


def test_the_tensor_that_is_left_is_named(workers):
    found = verdict(workers, RIGHT.replace("(len(x),)]", "(len(x) + 4000,)]"))
    assert found.outcome is Outcome.WRONG
    assert "sum_kernel" in found.reason and "_ptr, which holds" in found.reason


def test_what_is_to_be_written_in_place_is(workers):
    given = dataclasses.replace(
        ROW_SUM,
        inputs=lambda generator, rows, width: {**ROW_SUM.inputs(generator, rows, width), "out": randn(generator, rows)},
        oracle=lambda x, alpha, out: alpha * x.sum(-1),
        may_change=("out",),
    )
    right = RIGHT.replace("(x, alpha)", "(x, alpha, out)").replace("    out = torch.empty(len(x))\n", "")
    assert verdict(workers, right, exercise=given).outcome is Outcome.PASSED
    found = verdict(workers, right.replace("    sum_kernel[", "    out = out.clone()\n    sum_kernel["), exercise=given)
    assert (found.outcome, found.score) == (Outcome.WRONG, 0)
    assert "out is returned as a tensor of its own: write into the one that is passed" in found.reason


def test_more_launches_than_asked_for_are_counted(workers):
    once = dataclasses.replace(ROW_SUM, launches=1)
    assert verdict(workers, RIGHT, exercise=once).outcome is Outcome.PASSED
    again = RIGHT.replace("    return out", "    copy_kernel[(1,)](out, out, len(x), BLOCK=64)\n    return out")
    found = verdict(workers, again, exercise=once)
    assert (found.outcome, found.score) == (Outcome.WRONG, 0) and "2 launches, expected 1" in found.reason


@pytest.mark.parametrize(
    ("more", "times", "says"),
    [("copy_kernel[(1,)](out, out, 1, BLOCK=64)", 5000, "launches 5001"), ("x.clone()", 9000, "has 900")],
)
def test_more_of_them_than_are_graded_are_counted_too(workers, more, times, says):
    source = RIGHT.replace("    return out", f"    for _ in range({times}):\n        {more}\n    return out")
    assert f"one call {says}" in verdict(workers, source).reason


def test_an_answer_of_many_small_operations_counts(workers):
    plain = dataclasses.replace(ROW_SUM, kernel=False, forbidden=("softmax",))
    loop = "def row_sum(x, alpha):\n    for _ in range({}):\n        x = x + 0.0\n    return alpha * x.sum(-1)"
    found = verdict(workers, loop.format(800), exercise=plain)
    assert found.outcome is Outcome.PASSED, found.reason


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("torch.empty(len(x))", "torch.empty(len(x), device='cuda')", "use the device of the arguments"),
        ("BLOCK=64", "BLOCK=64, launch_cooperative_grid=True", "so make two launches of it"),
        (
            "return out",
            "return out / 1",
            "torch computes from data outside the kernels: `div` in line 20 (`return out / 1`)",
        ),
        (
            "return out",
            "rows = torch.linspace(0, len(x) - 1, len(x)).div(1).round().long()\n"
            "    gather_kernel[(len(x),)](x, rows, out)\n    return out",
            "gather_kernel takes as rows_ptr what torch computes with floats outside the kernels: `div` in line 20",
        ),
        (
            "return out",
            "rows = torch.randperm(len(x))\n    gather_kernel[(len(x),)](x, rows, out)\n    return out",
            "gather_kernel takes as rows_ptr what torch computes outside the kernels: `randperm` in line 20",
        ),
        ("return out", "return (each for each in [out])", "it returns a value of type generator, expected"),
        ("return out", "return {out: 1}", "it returns a dict with keys of other types than str, expected"),
        (
            "return out",
            "return out.to_sparse()",
            "line 20 (`return out.to_sparse()`): sparse and nested tensors are not",
        ),
    ],
)
def test_what_beginners_write_around_kernels_is_answered_too(workers, old, new, says):
    gather = """
    @triton.jit
    def gather_kernel(x_ptr, rows_ptr, out_ptr):
        row = tl.load(rows_ptr + tl.program_id(0))
        tl.store(out_ptr + row, tl.load(x_ptr + row))
    """
    found = verdict(workers, RIGHT.replace(old, new) + textwrap.dedent(gather))
    assert found.score == 0 and says in found.reason


def test_an_exception_that_cannot_say_what_it_is_is_named_all_the_same(workers):
    mute = "class Mute(Exception):\n    def __str__(self): raise ValueError\n"
    found = verdict(workers, mute + RIGHT.replace("return out", "raise Mute"))
    assert found.outcome is Outcome.ERROR and found.reason.startswith("Mute in line ")


def test_an_argument_that_is_changed_by_no_operation_is_seen(workers):
    plain = dataclasses.replace(ROW_SUM, kernel=False, forbidden=("softmax",))
    found = verdict(
        workers, "def row_sum(x, alpha):\n    y = x.sum(-1)\n    x.numpy()[:] = 0\n    return alpha * y", exercise=plain
    )
    assert (found.score, found.reason.partition(" (")[0]) == (0, "it changed its argument x in place")


ENDLESS = {
    "stuck": ("n = -row\n    while n < 1: n = n * 2\n    x += n", "turns have changed neither"),
    "counting": (
        "n = row + 1\n    while n > 0: n = (n + 2) % 1001 + 1\n    x += n",
        "the loop had not ended when the time was up",
    ),
}


def test_a_loop_that_is_written_out_turn_by_turn_is_named(workers):
    hurried = dataclasses.replace(ROW_SUM, limits=dataclasses.replace(ROW_SUM.limits, seconds=1.0))
    found = verdict(workers, RIGHT, _before_the_store("for i in tl.static_range(20000): x += 1.0"), exercise=hurried)
    assert (found.outcome, found.score) == (Outcome.TIME, 0)
    assert "most of it to compile sum_kernel: does it write out a loop" in found.reason


@pytest.mark.parametrize("name", ENDLESS)
def test_a_loop_in_a_kernel_that_does_not_end_is_named_with_its_line(workers, name):
    loop, says = ENDLESS[name]
    hurried = dataclasses.replace(ROW_SUM, limits=dataclasses.replace(ROW_SUM.limits, seconds=2.0))
    found = verdict(workers, RIGHT, _before_the_store(loop), exercise=hurried)
    assert (found.outcome, found.score) == (Outcome.TIME, 0)
    assert "sum_kernel in line 7 (`while" in found.reason and says in found.reason


def test_so_is_one_around_the_launch(workers):
    hurried = dataclasses.replace(ROW_SUM, limits=dataclasses.replace(ROW_SUM.limits, seconds=2.0))
    found = verdict(workers, RIGHT.replace("    return out", "    while True: pass"), exercise=hurried)
    assert (found.outcome, found.score) == (Outcome.TIME, 0)
    assert "no answer within 2 s in line" in found.reason and "`while True: pass`" in found.reason


def test_of_kernels_that_take_all_the_time_the_largest_grid_is_told(workers):
    hurried = dataclasses.replace(ROW_SUM, limits=dataclasses.replace(ROW_SUM.limits, seconds=1.0))
    source = RIGHT.replace(
        "    return out", "    copy_kernel[(10**8,)](out, torch.empty(64), 0, BLOCK=64)\n    return out"
    )
    found = verdict(workers, source, exercise=hurried)
    assert (found.outcome, found.score) == (Outcome.TIME, 0)
    assert "took more than 1 s: the largest grid is that of copy_kernel, of 100000000 programs" in found.reason
    assert "larger blocks, and fewer splits" in found.reason


def test_a_read_of_what_nothing_wrote_explains_a_nan(workers):
    source = RIGHT.replace(
        "    return out",
        "    last = torch.empty(len(x))\n    copy_kernel[(1,)](torch.empty(len(x)), last, len(x), BLOCK=64)\n"
        "    return last",
    )
    found = verdict(workers, source)
    assert (found.outcome, found.score) == (Outcome.WRONG, 0)
    assert "copy_kernel in line 11" in found.reason and "reads element 0 of x_ptr, which nothing wrote" in found.reason


ORDERS = {
    "the last to come wins": "tl.atomic_xchg(out_ptr, tl.sum(x.to(tl.float32)) * alpha)",
    "a ticket chooses the row": "ticket = tl.atomic_add(out_ptr, 1.0)\n    tl.store(out_ptr + 1 + row, ticket)",
}


@pytest.mark.parametrize("name", ORDERS)
def test_a_result_that_depends_on_the_order_of_programs_is_named(workers, name):
    last = dataclasses.replace(
        ROW_SUM,
        oracle=lambda x, alpha: (
            (alpha * x.sum(-1))[-1:] if "last" in name else torch.cat([torch.tensor([3.0]), torch.arange(3.0)])
        ),
        parts=[dataclasses.replace(ROW_SUM.parts[0], hidden=lambda rng: ())],
    )
    kernels = KERNEL.replace("tl.store(out_ptr + row, tl.sum(x.to(tl.float32)) * alpha)", ORDERS[name])
    source = RIGHT.replace("torch.empty(len(x))", "torch.zeros(1)" if "last" in name else "torch.zeros(4)")
    found = verdict(workers, source, kernels, exercise=last)
    assert (found.outcome, found.score) == (Outcome.WRONG, 0)
    assert "the result depends on the order in which programs run" in found.reason


def test_programs_that_write_to_one_place_are_named_with_both_lines(workers):
    kernels = _before_the_store("tl.store(out_ptr, row * 1.0)")
    found = verdict(workers, RIGHT, kernels)
    assert (found.outcome, found.score) == (Outcome.WRONG, 0)
    assert "sum_kernel in line 6" in found.reason and found.reason.count("line 6") == 2


COUNTED = """
@triton.jit
def sum_kernel(x_ptr, out_ptr, D, stride, alpha, count_ptr, BLOCK: tl.constexpr):
    row, cols = tl.program_id(0), tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * stride + cols, mask=cols < D, other=0.0)
    first = tl.load(count_ptr + row) == 0
    tl.store(out_ptr + row, tl.where(first, tl.sum(x.to(tl.float32)) * alpha, 0.0))
    tl.store(count_ptr + row, AFTER)
"""
COUNTING = "COUNTS = torch.zeros(2, 512, dtype=torch.int32)\n" + RIGHT.replace("alpha, B", "alpha, COUNTS[0], B")


def test_what_a_kernel_leaves_between_calls_and_does_not_set_back_is_named(workers):
    found = verdict(workers, COUNTING, COUNTED.replace("AFTER", "1"))
    assert (found.outcome, found.score) == (Outcome.WRONG, 0)
    assert "what sum_kernel leaves in count_ptr from one call makes the next one wrong" in found.reason


@pytest.mark.parametrize(
    ("source", "after"),
    [
        (COUNTING, "0"),
        (COUNTING.replace("    out", "    COUNTS.zero_()\n    out", 1), "1"),
        (COUNTING.replace("COUNTS[0]", "COUNTS[0].clone()"), "1"),
    ],
    ids=["set back by the kernel", "set back by the host", "made anew"],
)
def test_what_is_set_back_or_made_anew_is_fine(workers, source, after):
    found = verdict(workers, source, COUNTED.replace("AFTER", after))
    assert found.outcome is Outcome.PASSED, found.reason


OF_LENGTHS = Exercise(
    "lengths_sum",
    "",
    (Part("all", 2, [dict(lens=(5, 9)), dict(lens=(7, 7))]),),
    lambda generator, lens: {"x": randn(generator, 2, 9), "lens": torch.tensor(lens, dtype=torch.int32)},
    lambda x, lens: torch.stack([row[:n].sum() for row, n in zip(x, lens.tolist(), strict=True)]),
    kernel=True,
)
SUMS = """
@triton.jit
def sum_kernel(x_ptr, lens_ptr, out_ptr, D, BLOCK: tl.constexpr):
    row, cols = tl.program_id(0), tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * D + cols, mask=cols < tl.load(lens_ptr + row), other=0.0)
    tl.store(out_ptr + row, tl.sum(x))

PLANS = {}

def lengths_sum(x, lens):
    out = torch.empty(len(x))
    plan = PLAN
    sum_kernel[(len(x),)](x, plan, out, x.shape[1], BLOCK=16)
    return out
"""
BY_SHAPE = "PLANS.setdefault(x.shape, lens.clone())"


@pytest.mark.parametrize(
    "plan",
    [
        BY_SHAPE,
        BY_SHAPE.replace("clone", "long"),
        BY_SHAPE.replace("clone()", "cumsum(0)") + ".diff(prepend=lens[:1] * 0)",
    ],
)
def test_integers_kept_by_the_shapes_of_an_earlier_call_are_named(workers, plan):
    found = verdict(workers, SUMS.replace("PLAN\n", f"{plan}\n"), "", OF_LENGTHS)
    assert (found.outcome, found.score) == (Outcome.WRONG, 0)
    assert "the call takes what an earlier one with the same shapes had as lens" in found.reason


@pytest.mark.parametrize(
    "plan",
    [
        "PLANS.setdefault(x.shape, torch.empty_like(lens)).copy_(lens)",
        "PLANS.setdefault(tuple(lens.tolist()), lens.clone())",
        "[lens][max(lens.tolist()) < 7]",  # which raises in the call with smaller lengths
    ],
)
def test_what_is_kept_and_read_anew_is_fine(workers, plan):
    found = verdict(workers, SUMS.replace("PLAN\n", f"{plan}\n"), "", OF_LENGTHS)
    assert found.outcome is Outcome.PASSED, found.reason


IN_A_DICT = Exercise(
    "doubled",
    "",
    (Part("all", 2, [dict(n=3)]),),
    lambda generator, n: {"weights": {"w": randn(generator, n), "b": randn(generator, n)}},
    lambda weights: 2 * weights["w"],
    forbidden=("cat",),
)


@pytest.mark.parametrize(
    ("taken", "right"),
    [
        ("weights['w']", True),
        ("dict(weights).pop('w')", True),
        ("weights.pop('w')", False),
        ("weights['b'] = 2", False),
    ],
)
def test_an_entry_taken_out_of_a_dict_is_missed_by_no_call_and_told(workers, taken, right):
    source = f"def doubled(weights):\n    w = weights['w']\n    {taken}\n    return 2 * w"
    found = verdict(workers, source, "", IN_A_DICT)
    assert found.score == 2 * right, found.reason
    assert right or "it changed its argument weights in place" in found.reason


def test_how_many_operations_all_calls_of_an_exercise_may_have_is_told(monkeypatch):
    monkeypatch.setattr(tasks, "MOST", 5)
    monkeypatch.setattr(tasks, "_noted", 0)
    request = {"driver": "call", "forbidden": [], "first": []}
    told = [
        wire.decode(tasks.record(request, {"event": "case", "index": n}, lambda x: x + 1 + 2, {"x": torch.ones(3)}))
        for n in range(3)
    ]
    assert ["notes" in each for each in told] == [True, True, False]
    assert told[2]["beyond"] == "the calls of an exercise have more than 5 operations and launches together"
