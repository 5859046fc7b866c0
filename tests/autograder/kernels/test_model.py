"""The modelled time: deterministic, and on the right side of what every tuner knows."""

import dataclasses

import pytest
import torch

from autograder.judging.program import Cell
from autograder.kernels.model import model_call
from autograder.kernels.workers import KernelFailure
from mla_ref.hardware.cost import Cost

pytestmark = pytest.mark.xdist_group("workers")

N = 1 << 22
PROGRAM = [
    Cell(
        "kernels",
        """
import torch
import triton
import triton.language as tl

@triton.jit
def add(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    tl.store(out_ptr + offs, tl.load(x_ptr + offs, mask=mask) + tl.load(y_ptr + offs, mask=mask), mask=mask)

@triton.jit
def add_far(x_ptr, y_ptr, out_ptr, n, stride, BLOCK: tl.constexpr):
    offs = tl.program_id(0) + tl.arange(0, BLOCK) * stride
    mask = offs < n
    tl.store(out_ptr + offs, tl.load(x_ptr + offs, mask=mask) + tl.load(y_ptr + offs, mask=mask), mask=mask)

@triton.jit
def multiply_on(x_ptr, y_ptr, out_ptr, turns, UNROLLED: tl.constexpr, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x, acc = tl.load(x_ptr + offs), tl.load(y_ptr + offs)
    if UNROLLED:
        for _ in tl.static_range(64):
            acc += acc * x
    else:
        for _ in range(turns):
            acc += acc * x
    tl.store(out_ptr + offs, acc)

def in_a_loop(x, y):
    out = torch.empty_like(x)
    multiply_on[(x.numel() // 1024,)](x, y, out, 64, UNROLLED=False, BLOCK=1024)
    return out

def written_out(x, y):
    out = torch.empty_like(x)
    multiply_on[(x.numel() // 1024,)](x, y, out, 64, UNROLLED=True, BLOCK=1024)
    return out

def fast(x, y):
    out = torch.empty_like(x)
    add[(triton.cdiv(x.numel(), 1024),)](x, y, out, x.numel(), BLOCK=1024)
    return out

def tiny_blocks(x, y):
    out = torch.empty_like(x)
    add[(triton.cdiv(x.numel(), 32),)](x, y, out, x.numel(), BLOCK=32, num_warps=1)
    return out

def strided(x, y):
    out, programs = torch.empty_like(x), triton.cdiv(x.numel(), 1024)
    add_far[(programs,)](x, y, out, x.numel(), programs, BLOCK=1024)
    return out

def copied_first(x, y):
    return fast(x.clone(), y)

def into_zeros(x, y):
    out = torch.zeros_like(x)
    add[(triton.cdiv(x.numel(), 1024),)](x, y, out, x.numel(), BLOCK=1024)
    return out

def into_part(x, y, out):
    n = x.numel() // 4
    add[(triton.cdiv(n, 1024),)](x, y, out, n, BLOCK=1024)
    return out

def zeros_like(x, y):
    return into_part(x, y, torch.zeros_like(x))

def zero_(x, y):
    return into_part(x, y, torch.empty_like(x).zero_())

def fill_(x, y):
    out = torch.empty_like(x)
    out[:] = 0
    return into_part(x, y, out)

def full(x, y):
    return into_part(x, y, torch.full(x.shape, 0.0, device=x.device))

def hidden_host_work(x, y):
    with torch.utils._python_dispatch._disable_current_modes():
        x = x.clone()
    return fast(x, y)
""",
        required=True,
    )
]
FLOOR = Cost(bytes=3 * 4 * N)


@pytest.fixture(scope="module")
def modelled(workers):
    known = {}

    def measure(entry, device="h100"):
        if (entry, device) not in known:
            given = {name: torch.empty(N, device="meta") for name in ("x", "y")}
            known[entry, device] = model_call(workers, PROGRAM, entry, given, FLOOR, device)
        return known[entry, device]

    return measure


def test_twice_the_same_bits(workers, modelled):
    given = {name: torch.empty(N, device="meta") for name in ("x", "y")}
    again = model_call(workers, PROGRAM, "fast", given, FLOOR)
    assert dataclasses.asdict(again) == dataclasses.asdict(modelled("fast"))


def test_a_good_kernel_is_near_the_floor_and_never_above_it(modelled):
    assert 0.5 < modelled("fast").fraction <= 1


@pytest.mark.thorough(but=2)
@pytest.mark.parametrize("worse", ["tiny_blocks", "strided", "copied_first", "hidden_host_work"])
def test_what_costs_more_is_slower(modelled, worse):
    assert modelled(worse).seconds > 1.15 * modelled("fast").seconds


def test_host_work_is_charged_though_it_hides_from_the_notes(modelled):
    assert [step.name for step in modelled("hidden_host_work").steps if step.host] == ["made on the host"]
    assert "1 pass on the host" in modelled("hidden_host_work").notes[0]


def test_a_loop_that_the_compiler_writes_for_several_turns_at_once_takes_its_turns_once(modelled):
    loop, written = ({**modelled(how).steps[0].parts}["instructions"] for how in ("in_a_loop", "written_out"))
    assert written <= loop < 2 * written


def test_a_fill_is_bound_by_memory(modelled):
    fill = modelled("into_zeros").steps[0]
    assert fill.name == "zeros_like"
    assert fill.bound == "DRAM"
    assert fill.seconds < modelled("copied_first").steps[0].seconds


@pytest.mark.parametrize("how", ["zeros_like", "zero_", "fill_", "full"])
def test_what_torch_fills_in_does_not_count_and_that_is_said(modelled, how):
    with pytest.raises(KernelFailure, match=f"have them store what `{how}` of torch fills in, too"):
        modelled(how)


def test_a_slower_memory_takes_longer(modelled):
    times = [modelled("fast", device).seconds for device in ("b200", "h100", "a100_80gb", "l4")]
    assert times == sorted(times)


def test_the_table_explains_each_step(modelled):
    (row,) = modelled("fast").table()
    assert row["distinct_bytes"] == row["issued_bytes"] == FLOOR.bytes
    assert row["bound"] == "DRAM" and row["load_widths"] == {"16": 4} and row["spill_bytes"] == 0


def test_no_byte_is_touched_that_was_not_asked_for(modelled):
    """Both counts are estimates from some programs, where the others have other lengths."""
    found = modelled("fast")
    (counts,) = found.counts
    few = {kind: {**access, "bytes": 0.99 * access["bytes"]} for kind, access in counts["access"].items()}
    (row,) = dataclasses.replace(found, counts=[{**counts, "access": few}]).table()
    assert row["issued_bytes"] == row["distinct_bytes"] == FLOOR.bytes


def test_a_program_that_counts_who_came_and_waits_for_nobody_has_a_time(workers):
    cell = """
import torch
import triton
import triton.language as tl

@triton.jit
def total_kernel(x_ptr, part_ptr, count_ptr, out_ptr, BLOCK: tl.constexpr):
    part, parts = tl.program_id(0), tl.num_programs(0)
    tl.store(part_ptr + part, tl.sum(tl.load(x_ptr + part * BLOCK + tl.arange(0, BLOCK))))
    if tl.atomic_add(count_ptr, 1) == parts - 1:
        total = 0.0
        for other in range(parts):
            total += tl.load(part_ptr + other)
        tl.store(out_ptr, total)

def total(x):
    out, count = torch.empty(1), torch.zeros(1, dtype=torch.int32)
    parts = x.numel() // 1024
    total_kernel[(parts,)](x, torch.empty(parts), count, out, BLOCK=1024)
    return out
"""
    x = torch.empty(1 << 15, device="meta")
    found = model_call(workers, [Cell("kernels", cell, required=True)], "total", {"x": x}, Cost(4 << 15, 0))
    assert found.seconds > found.floor
