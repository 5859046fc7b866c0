"""The advice under a table of times says what the counts say: what it says of kernels is in test_speed."""

import pytest

from autograder.judging.program import Cell
from autograder.kernels import speed
from autograder.kernels.advice import advice
from autograder.kernels.report import speed_lines

from ..kernel_course import KERNEL, SETUP
from .test_speed import FULL, TIMED

FLOOR = 189.3e6


def said(steps=None, **row):
    """The sentence on a call of 100 µs of one step, or of several."""
    steps = steps or [{"step": "kernel", "us": 95.0, "programs": 4096, "multiprocessors": 132, **row}]
    found = {"how": "modelled", "device": "H100", "noise": None, "fraction": 0.5, "ratio": 1.0, "seconds": 1e-4}
    found |= {"floor": 5e-5, "baseline": 1e-4, "copy": 6e-5, "bytes": FLOOR, "flops": 1e6}
    return advice({**found, "bandwidth": 3.35e12, "rate": 1e15, "steps": steps, **row.pop("of", {})})


WIDE = {"load_widths": {"16": 4}}
ONCE = dict(distinct_bytes=FLOOR, issued_bytes=FLOOR, distinct_loaded_bytes=FLOOR / 2, loaded_bytes=FLOOR / 2, **WIDE)
TABLE = {
    "a copy takes as long": (dict(bound="DRAM", of={"copy": 9.5e-5}), "at the limit: a copy of the 189.3 MB"),
    "spills": (dict(bound="L2", spill_bytes=64), "registers spill"),
    "few programs": (dict(bound="waiting", programs=64), "64 programs run on 132 multiprocessors"),
    "no matrix units": (dict(bound="instructions", of={"flops": 1e11}), "no matrix units ran"),
    "narrow loads": (dict(bound="L2", load_widths={"4": 8, "16": 1}), "comes 4 bytes at a time"),
    "read twice": (
        dict(bound="DRAM", again_bytes=FLOOR / 2, **{**ONCE, "loaded_bytes": FLOOR}),
        "189.3 MB are loaded of 94.65 MB: some is",
    ),
    "read twice, by one warp": (
        dict(bound="DRAM", again_bytes=FLOOR / 2, next=["waiting", 80.0], **{**ONCE, "loaded_bytes": FLOOR}),
        "fewer times; after that, waiting bounds it",
    ),
    "read twice, from the L2": (
        dict(bound="DRAM", again_bytes=1e6, bound_us=90.0, **{**ONCE, "loaded_bytes": FLOOR}),
        "the bytes are about the floor's",
    ),
    "tiles, from the L2": (
        dict(bound="DRAM", again_bytes=0, bound_us=90.0, tensor_instructions=8, **{**ONCE, "loaded_bytes": FLOOR}),
        "the bytes are about the floor's",
    ),
    "read by two launches": (
        dict(bound="DRAM", **{**ONCE, "loaded_bytes": FLOOR, "distinct_bytes": 1.5 * FLOOR}),
        "283.9 MB pass between chip and memory",
    ),
    "read ten times": (dict(bound="L2", **{**ONCE, "loaded_bytes": 5 * FLOOR}), "take larger tiles"),
    "buffers": (dict(bound="DRAM", **{**ONCE, "distinct_bytes": 2 * FLOOR}), "378.6 MB pass between chip and memory"),
    "the next limit": (dict(bound="DRAM", next=["waiting", 80.0], **ONCE), "after that, waiting bounds it"),
    "only bytes": (dict(bound="DRAM", next=["waiting", 8.0], bound_us=90.0, **ONCE), "takes 90 of 100 µs"),
    "many programs": (dict(bound="handing out blocks", **ONCE), "let each do more"),
}


@pytest.mark.parametrize("case", TABLE)
def test_each_count_has_its_sentence(case):
    row, expected = TABLE[case]
    assert expected in said(**row)


def test_a_pass_of_torch_is_named_with_its_line():
    host = {"step": "to_copy", "us": 60.0, "bound": "DRAM", "host": True, "line": "line 12 (`x = x.float()`)"}
    text = said([host, {"step": "kernel", "us": 30.0, "bound": "DRAM"}])
    assert text == "torch's to_copy in line 12 (`x = x.float()`) takes 60 of 100 µs: do it in the kernel"


def test_passes_of_torch_count_with_their_launches():
    filled = [
        {"step": name, "us": us, "bound": "waiting", "host": True} for name, us in (("zeros", 1.0), ("full", 0.9))
    ]
    steps = [*filled, {"step": "kernel", "us": 9.7, "bound": "waiting", "spill_bytes": 96}]
    launching = {"step": "launching", "us": 8.0, "further": 1.7}
    text = said([*steps, launching], of={"seconds": 19.6e-6, "copy": 0})
    assert text == "torch's zeros and 1 more of its passes take 5.3 of 19.6 µs, launching included: do it in the kernel"


def test_more_warps_are_no_advice_where_there_are_none():
    assert "or more warps" in said(bound="L2", spill_bytes=64, warps=16)
    assert "or more warps" not in said(bound="L2", spill_bytes=64, warps=32)


@pytest.mark.parametrize(("count", "expected"), [(1, "one launch is the least"), (3, "make them fewer")])
def test_only_launches_beyond_the_first_can_be_saved(count, expected):
    rows = [{"step": f"k{n}", "us": 3.0, "bound": "waiting"} for n in range(count)]
    assert expected in said([*rows, {"step": "launching", "us": 90.0}])


def test_a_table_without_bounds_has_no_advice():
    assert said([{"step": "kernel", "us": 90.0}]) == ""


LAUNCHER = """
def row_sum(x, alpha):
    out = torch.empty(len(x))
    programs = min(len(x), PROGRAMS)
    sum_kernel[(programs,)](x, out, len(x), x.shape[1], x.stride(0), alpha, BLOCK=BLOCK)
    return out
"""
A_ROW_AT_A_TIME = """
@triton.jit
def sum_kernel(x_ptr, out_ptr, N, D, stride, alpha, BLOCK: tl.constexpr):
    cols = tl.arange(0, BLOCK)
    for row in range(tl.program_id(0), N, tl.num_programs(0)):
        x = tl.load(x_ptr + row * stride + cols, mask=cols < D, other=0.0)
        tl.store(out_ptr + row, tl.sum(x) * alpha)
"""
TWICE = """
@triton.jit
def sum_kernel(x_ptr, out_ptr, N, D, stride, alpha, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    top, total = tl.zeros([BLOCK], tl.float32), tl.zeros([BLOCK], tl.float32)
    for start in range(0, D, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        top = tl.maximum(top, tl.load(x_ptr + row * stride + cols, mask=cols < D, other=0.0))
    for start in range(0, D, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        total += tl.load(x_ptr + row * stride + cols, mask=cols < D, other=0.0)
    tl.store(out_ptr + row, tl.sum(total) * alpha + 0 * tl.max(top))
"""
TWICE_OVER_ALL = """
@triton.jit
def sum_kernel(x_ptr, out_ptr, N, D, stride, alpha, BLOCK: tl.constexpr):
    cols, top = tl.arange(0, BLOCK), tl.zeros([BLOCK], tl.float32)
    for row in range(tl.program_id(0), N, tl.num_programs(0)):
        top = tl.maximum(top, tl.load(x_ptr + row * stride + cols, mask=cols < D, other=0.0))
    for row in range(tl.program_id(0), N, tl.num_programs(0)):
        x = tl.load(x_ptr + row * stride + cols, mask=cols < D, other=0.0)
        tl.store(out_ptr + row, tl.sum(x) * alpha + 0 * tl.max(top))
"""
COLUMNS = """
@triton.jit
def sum_kernel(x_ptr, out_ptr, N, D, stride, alpha, BLOCK: tl.constexpr):
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    for col in range(D):
        total += tl.load(x_ptr + rows * stride + col, mask=rows < N, other=0.0)
    tl.store(out_ptr + rows, total * alpha, mask=rows < N)
"""
KERNELS = {
    "as good as it gets": (KERNEL + FULL, "at the limit: a copy of the 268.5 MB"),
    "64 programs": (A_ROW_AT_A_TIME + LAUNCHER.replace("PROGRAMS", "64").replace("=BLOCK", "=4096"), "64 programs run"),
    "read twice": (
        TWICE_OVER_ALL + LAUNCHER.replace("PROGRAMS", "528").replace("=BLOCK", "=4096"),
        "536.9 MB are loaded of",
    ),
    "read twice, from the L2": (
        TWICE + LAUNCHER.replace("PROGRAMS", "len(x)").replace("=BLOCK", "=128"),
        "moving them takes",
    ),
    "columns": (COLUMNS + LAUNCHER.replace("PROGRAMS", "len(x) // 64").replace("=BLOCK", "=64"), "4 bytes at a time"),
    "cast by torch": (KERNEL + FULL.replace("(x, out,", "(x.double().float(), out,"), "torch's to_copy in line"),
}


@pytest.mark.thorough(but=2)
@pytest.mark.parametrize("name", KERNELS)
def test_the_advice_is_true_of_a_kernel(workers, name):
    source, expected = KERNELS[name]
    found = speed.judge_speed(TIMED, [SETUP, Cell("row_sum", source)], workers)
    assert found.speed, found.reason
    assert expected in speed_lines(found.speed)[-1]
