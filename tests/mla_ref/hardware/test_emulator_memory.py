"""What the emulator makes of pointers in memory, of locks, of loops that end at different times, and of hints."""

import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from mla_ref.hardware import emulator

pytest.importorskip("triton")
if not emulator.prepare() or emulator.interpreted():
    pytest.skip("kernels do not run in the emulator", allow_module_level=True)

import triton
import triton.language as tl


@triton.jit
def _through_addresses(addresses_ptr, out_ptr, N: tl.constexpr):
    row, offs = tl.program_id(0), tl.arange(0, N)
    x = tl.load(addresses_ptr + row).to(tl.pointer_type(tl.float32))
    tl.store(out_ptr + row * N + offs, tl.load(x + offs))


def test_an_address_read_from_memory_leads_to_any_tensor():
    tensors = [torch.randn(4) for _ in range(3)]
    out = torch.empty(3, 4)
    _through_addresses[(3,)](torch.tensor([x.data_ptr() for x in tensors]), out, 4)
    assert out.equal(torch.stack(tensors))


def test_an_address_that_no_tensor_has_is_refused():
    with pytest.raises(emulator.OutOfBounds, match="belongs to no argument"):
        _through_addresses[(1,)](torch.tensor([64]), torch.empty(1, 4), 4)


@triton.jit
def _add_in_turn(lock_ptr, sum_ptr, LOCKED: tl.constexpr):
    if LOCKED:
        while tl.atomic_cas(lock_ptr, 0, 1) == 1:
            pass
    tl.store(sum_ptr, tl.load(sum_ptr) + 1.0)
    if LOCKED:
        tl.atomic_xchg(lock_ptr, 0)


def test_programs_that_take_a_lock_may_read_and_write_one_element():
    total = torch.zeros(1)
    _add_in_turn[(5,)](torch.zeros(1, dtype=torch.int32), total, True)
    assert total.item() == 5


def test_without_the_lock_they_race():
    with pytest.raises(emulator.Race):
        _add_in_turn[(5,)](torch.zeros(1, dtype=torch.int32), torch.zeros(1), False)


@triton.jit
def _sums(x_ptr, lens_ptr, out_ptr, T, WHILE: tl.constexpr, N: tl.constexpr):
    row, offs = tl.program_id(0), tl.arange(0, N)
    length, start = tl.load(lens_ptr + row), 0
    acc = tl.zeros([N], tl.float32)
    if WHILE:
        while start < length:
            acc += tl.load(x_ptr + row * T + start + offs, mask=start + offs < length, other=0.0)
            start += N
    else:
        for begin in range(0, length, N):
            acc += tl.load(x_ptr + row * T + begin + offs, mask=begin + offs < length, other=0.0)
    tl.store(out_ptr + row, tl.sum(acc, 0))


@pytest.mark.parametrize("is_while", [False, True])
@pytest.mark.parametrize("lengths", [[0, 0, 0], [63, 0, 1, 17, 63, 2, 5, 0], [9, 9, 9], [0, 0, 40]])
def test_programs_whose_loops_end_at_different_times(lengths, is_while):
    x, out = torch.randn(len(lengths), 63), torch.empty(len(lengths))
    _sums[(len(lengths),)](x, torch.tensor(lengths), out, 63, is_while, 4)
    torch.testing.assert_close(out, torch.stack([row[:n].sum() for row, n in zip(x, lengths, strict=True)]))


@triton.jit
def _assume(x_ptr, n):
    tl.assume(n > 0)
    tl.store(x_ptr, n)


def test_an_assumption_that_does_not_hold_is_refused():
    x = torch.zeros(1, dtype=torch.int32)
    _assume[(1,)](x, 3)
    assert x.item() == 3
    with pytest.raises(emulator.DeviceAssertion, match=r"tl\.assume"):
        _assume[(1,)](x, -3)


def test_options_of_amd_are_taken_and_others_refused():
    x = torch.zeros(1, dtype=torch.int32)
    _assume[(1,)](x, 2, matrix_instr_nonkdim=16)
    with pytest.raises(KeyError, match="unrecognised"):
        _assume[(1,)](x, 2, no_such_option=1)


@triton.jit
def _count(counts_ptr, N: tl.constexpr):
    tl.atomic_add(counts_ptr + tl.arange(0, N), 1)


def test_launches_from_several_threads_lose_nothing():
    counts = torch.zeros(64, dtype=torch.int32)
    _count[(1,)](counts, 64)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda _: _count[(3,)](counts, 64), range(200)))
    finally:
        sys.setswitchinterval(interval)
    assert counts.unique().tolist() == [601]
