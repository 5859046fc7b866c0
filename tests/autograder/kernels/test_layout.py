"""Offsets that leave 32 bits: a pool whose rows lie far apart shows them on any machine, and takes no memory."""

import dataclasses
import resource

import pytest
import torch

from autograder import checking
from autograder.judging.exercise import Speed, far_apart, randn, upcast
from autograder.judging.program import Cell
from autograder.judging.verdict import Outcome
from autograder.kernels import speed
from mla_ref.hardware import emulator
from mla_ref.hardware.cost import Cost

from ..kernel_course import CLEARED, FOLDER, GATHERED, SETUP, verdict

pytestmark = [pytest.mark.usefixtures("workers"), pytest.mark.xdist_group("workers")]

KERNELS = """
@triton.jit
def gather_kernel(pool_ptr, pages_ptr, out_ptr, page_stride, row_stride, PAGE: tl.constexpr, D: tl.constexpr):
    page = tl.load(pages_ptr + tl.program_id(0)).to(tl.int64)
    rows, cols = tl.arange(0, PAGE)[:, None], tl.arange(0, D)[None, :]
    x = tl.load(pool_ptr + page * page_stride + rows * row_stride + cols)
    tl.store(out_ptr + tl.program_id(0) * PAGE * D + rows * D + cols, x)

@triton.jit
def clear_kernel(pool_ptr, pages_ptr, page_stride, SIZE: tl.constexpr):
    page = tl.load(pages_ptr + tl.program_id(0)).to(tl.int64)
    tl.store(pool_ptr + page * page_stride + tl.arange(0, SIZE), tl.zeros([SIZE], tl.float16))
"""
GATHER = """
def gather(pool, pages):
    out = torch.empty(len(pages), *pool.shape[1:], dtype=pool.dtype)
    gather_kernel[(len(pages),)](pool, pages, out, *pool.stride()[:2], PAGE=pool.shape[1], D=pool.shape[2])
    return out
"""
CLEAR = """
def clear(pool, pages):
    clear_kernel[(len(pages),)](pool, pages, pool.stride(0), SIZE=pool[0].numel())
    return pool
"""
NARROW = KERNELS.replace(".to(tl.int64)", "")


@pytest.mark.parametrize(("source", "exercise"), [(GATHER, GATHERED), (CLEAR, CLEARED)], ids=["read", "written"])
def test_offsets_in_32_bits_are_found_and_named(workers, source, exercise):
    found = verdict(workers, source, KERNELS, exercise)
    assert found.outcome is Outcome.PASSED, found.reason
    found = verdict(workers, source, NARROW, exercise)
    assert (found.outcome, found.score) == (Outcome.WRONG, 0)
    assert "element -" in found.reason and "wide=True" in found.reason
    assert "2³¹" in found.reason


def test_the_notebook_finds_them_too(workers, monkeypatch, capsys):
    if not emulator.active():
        pytest.skip("kernels run on the GPU, where the check's copy is dense")
    monkeypatch.setenv("MLA_COURSE", str(FOLDER))
    for kernels in (KERNELS, NARROW):
        namespace = {"__name__": "notebook", "check": checking.check}
        checking.running.run_cell("imports", SETUP.source, namespace)
        checking.running.run_cell("gather", kernels + GATHER, namespace)
        if kernels is KERNELS:
            exec("check('gather')", namespace)
        else:
            with pytest.raises(checking.CheckFailed, match="2³¹"):
                exec("check('gather')", namespace)


def test_rows_far_apart_take_no_memory():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    values = torch.randn(3, 5, 8).half()
    pool = far_apart(values)
    assert torch.equal(pool, values) and pool.stride(0) * 2 >= 1 << 31
    assert pool.stride(0) % values[0].numel() == 0 and pool.stride()[1:] == values.stride()[1:]
    assert upcast({"pool": pool})["pool"].is_contiguous()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 << 10  # KiB, of 4 GiB of addresses


LARGE_KERNEL = """
@triton.jit
def gather_kernel(pool_ptr, pages_ptr, out_ptr, size, BLOCK: tl.constexpr):
    i, at = tl.program_id(0), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    page = tl.load(pages_ptr + i).to(tl.int64)
    tl.store(out_ptr + i * size + at, tl.load(pool_ptr + page * size + at))
"""
LARGE_GATHER = """
def gather(pool, pages):
    out = torch.empty(len(pages), *pool.shape[1:], dtype=pool.dtype)
    gather_kernel[(len(pages), pool[0].numel() // 4096)](pool, pages, out, pool.stride(0), BLOCK=4096)
    return out
"""


def _large(generator, pages):
    pool = randn(generator, pages, 64, 576, dtype=torch.float16)
    return {"pool": pool, "pages": torch.arange(pages - 1, 0, -pages // 256, dtype=torch.int32)}


LARGE = dataclasses.replace(
    GATHERED,
    inputs=_large,
    speed=Speed(
        points=2,
        case=dict(pages=1 << 16),
        floor=lambda pages: Cost(bytes=2 * 2 * 256 * 64 * 576),
        bars=((0.1, 1.0),),
        baseline=lambda pool, pages: pool[pages.long()],
    ),
)


def test_offsets_in_32_bits_are_found_in_a_pool_of_full_size(workers):
    wide, narrow = (
        speed.judge_speed(LARGE, [SETUP, Cell("gather", kernels + LARGE_GATHER)], workers)
        for kernels in (LARGE_KERNEL, LARGE_KERNEL.replace(".to(tl.int64)", ""))
    )
    assert wide.outcome is Outcome.PASSED, wide.reason
    assert narrow.score == 0 and "2³¹" in narrow.reason


@pytest.mark.parametrize("prepared", ["pages.long()", "torch.arange(len(pool) - 1, 0, -len(pool) // 256)"])
def test_indices_from_the_host_lead_where_they_do(workers, prepared):
    plain, cast = (
        speed.judge_speed(LARGE, [SETUP, Cell("gather", LARGE_KERNEL + source)], workers)
        for source in (LARGE_GATHER, LARGE_GATHER.replace("](pool, pages,", f"](pool, {prepared},"))
    )
    assert cast.outcome is Outcome.PASSED, cast.reason
    assert plain.speed["steps"][0]["distinct_bytes"] == cast.speed["steps"][-2]["distinct_bytes"] - 4 * 256
