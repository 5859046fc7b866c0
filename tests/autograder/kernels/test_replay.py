"""Counts of a replay, against what the kernels' text says they must be."""

import time
from random import Random

import pytest
import torch

from autograder.judging.program import Cell
from autograder.kernels.record import kernels_of, record
from autograder.kernels.replay import replay, replay_request
from autograder.kernels.worker.replaying import Own, by_work, sample
from autograder.kernels.workers import KernelFailure

pytestmark = pytest.mark.xdist_group("workers")

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
def add_unmasked(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n)
    tl.store(out_ptr + offs, x + tl.load(y_ptr + offs), mask=offs < n)

@triton.jit
def again(x_ptr, out_ptr, n, PASSES: tl.constexpr, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    acc = tl.zeros([BLOCK], tl.float32)
    for _ in range(PASSES):
        acc += tl.load(x_ptr + offs)
    tl.store(out_ptr + offs, acc)

@triton.jit
def sums(x_ptr, lengths_ptr, out_ptr, BLOCK: tl.constexpr):
    acc = tl.zeros([BLOCK], tl.float32)
    for i in range(tl.load(lengths_ptr + tl.program_id(0))):
        acc += tl.load(x_ptr + i * BLOCK + tl.arange(0, BLOCK))
    tl.store(out_ptr + tl.program_id(0), tl.sum(acc))

@triton.jit
def masked(x_ptr, lengths_ptr, out_ptr, TURNS: tl.constexpr, BLOCK: tl.constexpr):
    row, length = tl.program_id(0), tl.load(lengths_ptr + tl.program_id(0))
    for turn in range(TURNS):
        i = turn * BLOCK + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * TURNS * BLOCK + i, mask=i < length, other=0.0)
        tl.store(out_ptr + row * TURNS * BLOCK + i, x)

@triton.jit
def count(x_ptr, out_ptr, BLOCK: tl.constexpr):
    x = tl.load(x_ptr + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK))
    tl.atomic_add(out_ptr, tl.sum(x))

@triton.jit
def matmul(a_ptr, b_ptr, out_ptr, K, M: tl.constexpr, BLOCK: tl.constexpr):
    rows, inner = tl.arange(0, M)[:, None], tl.arange(0, BLOCK)
    acc = tl.zeros([M, M], tl.float32)
    for start in range(0, K, BLOCK):
        a = tl.load(a_ptr + rows * K + start + inner[None, :])
        b = tl.load(b_ptr + (start + inner[:, None]) * M + tl.arange(0, M)[None, :])
        acc = tl.dot(a, b, acc)
    tl.store(out_ptr + rows * M + tl.arange(0, M)[None, :], acc)

@triton.jit
def ticket(x_ptr, counter_ptr, out_ptr, OTHER: tl.constexpr):
    number = tl.atomic_add(counter_ptr, 1)
    x = tl.load(x_ptr + number, mask=number > 0) if OTHER is None else tl.load(x_ptr + number, number > 0, OTHER)
    tl.store(out_ptr + number, tl.where(number > 0, x, 0.0))

def adds(x, y, block):
    out = torch.empty_like(x)
    add[(triton.cdiv(x.numel(), block),)](x, y, out, x.numel(), BLOCK=block)
    return out

def adds_unmasked(x, y, block):
    out = torch.empty_like(x)
    add_unmasked[(triton.cdiv(x.numel(), block),)](x, y, out, x.numel(), BLOCK=block)
    return out

def passes(x, times):
    out = torch.empty_like(x)
    again[(x.numel() // 64,)](x, out, x.numel(), PASSES=times, BLOCK=64)
    return out

def ragged(x, lengths):
    out = torch.empty(len(lengths))
    sums[(len(lengths),)](x, lengths, out, BLOCK=64)
    return out

def long_ragged(x, lengths):
    out = torch.empty_like(x)
    masked[(len(lengths),)](x, lengths, out, TURNS=x.shape[1] // 64, BLOCK=64)
    return out

def counts(x):
    out = torch.zeros(1)
    count[(x.numel() // 64,)](x, out, BLOCK=64)
    return out

def tickets(x, other):
    out = torch.empty_like(x)
    ticket[(x.numel(),)](x, torch.zeros(1, dtype=torch.int32), out, OTHER=other)
    return out

def matmuls(a, b):
    out = torch.empty(16, 16)
    matmul[(1,)](a, b, out, a.shape[1], M=16, BLOCK=32)
    return out
""",
        required=True,
    )
]


def counted(workers, entry, arguments, **options):
    return replayed(workers, entry, arguments, **options or {"count": True}).counts[0]


def replayed(workers, entry, arguments, **options):
    recording = record(workers, PROGRAM, entry, arguments)
    return replay(workers, kernels_of(PROGRAM, recording).source, replay_request(recording, arguments, **options))


def test_exact_counts_of_an_addition_without_its_masked_tail(workers):
    got = counted(workers, "adds", {"x": torch.randn(1000), "y": torch.randn(1000), "block": 256})
    load, store = got["access"]["load"], got["access"]["store"]
    assert (load["elements"], load["bytes"], load["masked"]) == (2000, 8000, 48)
    assert (store["elements"], store["bytes"], store["sectors"], store["partial"]) == (1000, 4000, 125, 0)
    assert got["distinct"] == {"0": {"read": 4000}, "1": {"read": 4000}, "2": {"write": 4000}}
    assert got["programs"] == got["sampled"] == 4 and got["exact"]


def test_re_reads_are_issued_but_not_distinct(workers):
    once, five = (counted(workers, "passes", {"x": torch.randn(640), "times": times}) for times in (1, 5))
    assert five["access"]["load"]["bytes"] == 5 * once["access"]["load"]["bytes"] == 5 * 2560
    assert five["distinct"] == once["distinct"]
    assert sum(once["fetched"]["sectors"][:-1]) == 0 and sum(five["fetched"]["sectors"][:-1]) == 4 * 80


def test_atomics_and_dots_are_counted(workers):
    got = counted(workers, "counts", {"x": torch.ones(256)})
    assert got["access"]["atomic"]["elements"] == 4 and got["barriers"] == 4
    got = counted(workers, "matmuls", {"a": torch.randn(16, 64), "b": torch.randn(64, 16)})
    assert got["dots"] == {"fp32": 2 * 16 * 16 * 64}
    assert got["in_tiles"] == {"fp32": 2 * got["dots"]["fp32"]}  # two tiles for four warps


def test_of_who_comes_first_other_orders_are_run_and_other_numbers_only_for_what_is_undefined(
    workers,
):
    found = [replayed(workers, "tickets", {"x": torch.ones(8), "other": other}) for other in (0.0, None)]
    assert [len(each.again) for each in found] == [2, 2]
    assert [len(each.otherwise) for each in found] == [0, 2]


def test_other_orders_take_none_of_an_exercises_seconds():
    def work():
        ends = time.process_time() + 0.05
        while time.process_time() < ends:
            pass

    own = Own(100.0)
    before = own.left
    work()
    assert own.left == before
    with own.limited():
        work()
    assert own.left < before
    with pytest.raises(TimeoutError), Own(0.0).limited():
        while True:
            work()


def test_a_missing_mask_is_named(workers):
    arguments = {"x": torch.randn(1000), "y": torch.randn(1000), "block": 256}
    with pytest.raises(
        KernelFailure, match=r"add_unmasked in line .*: tl.load reads element 1000 of y_ptr, which holds 1000"
    ):
        counted(workers, "adds_unmasked", arguments)


def test_a_sample_counts_what_the_whole_grid_does(workers):
    n = 300 * 64 + 17
    arguments = {"x": torch.zeros(n), "y": torch.zeros(n), "block": 64}
    whole, part = counted(workers, "adds", arguments), counted(workers, "adds", arguments, sample=16)
    assert part["sampled"] == 16 and part["alike"] and not part["exact"]
    for kind in ("load", "store"):
        assert {k: v for k, v in part["access"][kind].items() if k in ("elements", "bytes", "masked")} == {
            k: v for k, v in whole["access"][kind].items() if k in ("elements", "bytes", "masked")
        }
    assert part["distinct"] == whole["distinct"]


def test_long_programs_that_are_alike_are_counted_from_few(workers, monkeypatch):
    many = counted(workers, "passes", {"x": torch.zeros(64 * 300), "times": 3}, sample=24)
    few = counted(workers, "passes", {"x": torch.zeros(64 * 300), "times": 30}, sample=24)
    assert (many["sampled"], few["sampled"]) == (24, 3)
    assert few["alike"] and few["distinct"] == many["distinct"]
    assert few["access"]["load"]["bytes"] == 10 * many["access"]["load"]["bytes"]


def test_long_programs_that_differ_are_not(workers):
    lengths = torch.arange(10, 310, dtype=torch.int32)
    got = counted(workers, "ragged", {"x": torch.zeros(64 * 320), "lengths": lengths}, sample=24)
    assert 24 <= got["sampled"] <= 48 and not got["alike"]
    assert got["access"]["load"]["bytes"] == pytest.approx(4 * 64 * int(lengths.sum()), rel=0.02)


def test_what_is_counted_hardly_hangs_on_which_long_program_the_secret_shows(workers):
    lengths = torch.tensor([2048] * 100 + [1024] * 100 + [1792] * 99 + [2048], dtype=torch.int32)
    arguments = {"x": torch.zeros(300, 2048), "lengths": lengths}
    got = [counted(workers, "long_ragged", arguments, sample=24, secret=str(n)) for n in range(6)]
    loaded = [each["access"]["load"]["bytes"] for each in got]
    assert loaded == [pytest.approx(4 * (300 + int(lengths.sum())), rel=0.04)] * 6


@pytest.mark.parametrize("grid", [[1000, 1, 1], [7, 300, 1], [50, 60, 70], [1, 1, 1]])
def test_weights_of_a_sample_add_up_to_the_grid(grid):
    chosen = list(sample(grid, 5))
    assert sum(weight for _, weight in chosen) == grid[0] * grid[1] * grid[2]
    assert chosen[0] == ((0, 0, 0), 1) and chosen[-1] == (tuple(n - 1 for n in grid), 1)


@pytest.mark.parametrize("rng", [None, Random(3)])
def test_programs_that_work_longer_than_others_stand_for_none_of_these(rng):
    work = torch.full((1000,), 10)
    work[100:140], work[555] = 400, 10_000_000
    chosen = dict(by_work(work, 24, rng))
    stand_for = {each: sum(times for n, times in chosen.items() if work[n] == each) for each in (10, 400, 10_000_000)}
    assert stand_for == {10: 959, 400: 40, 10_000_000: 1}
    assert chosen[0] == chosen[999] == 1 and len(chosen) <= 24
