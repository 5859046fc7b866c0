"""The emulator stops where a GPU would go on with what is wrong, and names the line, the tensor and the program."""

import _thread
import inspect
import os
import re
import runpy
import signal
import subprocess
import sys
import threading
import traceback
import warnings

import numpy as np
import pytest
import torch

from mla_ref.hardware import emulator

triton = pytest.importorskip("triton", reason="kernels need Triton")
tl = pytest.importorskip("triton.language")
if emulator.interpreted():
    pytest.skip("the emulator is not in use under TRITON_INTERPRET=1", allow_module_level=True)


@pytest.fixture(autouse=True)
def emulated():
    with emulator.emulating():
        yield


def line_of(kernel, text):
    """Return the number of a kernel's line that contains a text."""
    lines, first = inspect.getsourcelines(kernel.fn)
    return first + next(n for n, line in enumerate(lines) if text in line)


def fault(kind, kernel, *args, grid=(1,), at="#!", inner=None, **options):
    """Launch a kernel; return what its fault says after the line, which is that with `at`, as is the last frame."""
    with pytest.raises(kind) as caught:
        kernel[grid](*args, **options)
    where = inner or kernel
    line = line_of(where, at)
    frame = traceback.extract_tb(caught.value.__traceback__)[-1]
    assert (frame.filename, frame.lineno) == (inspect.getsourcefile(where.fn), line)
    prefix, _, said = str(caught.value).partition(": ")
    assert prefix == f"line {line}"
    return said


HINT = ": is the mask missing, an offset wrong, or the grid too large?"


@triton.jit
def load(x_ptr, y_ptr, first):
    i = tl.program_id(0) * 4 + tl.arange(0, 4)
    x = tl.load(x_ptr + first + i)  #!
    tl.store(y_ptr + i, x)


@triton.jit
def store(y_ptr, first, n):
    i = tl.program_id(0) * 4 + tl.arange(0, 4)
    tl.store(y_ptr + first + i, i, mask=i < n)  #!


@triton.jit
def load_by_weight(x_ptr, y_ptr, n):
    i = tl.arange(0, 4)
    weight = tl.exp(tl.load(x_ptr + i, mask=i < n, other=0.0))
    x = tl.load(x_ptr + i, mask=weight > 0, other=0.0)  #!
    tl.store(y_ptr + i, x, mask=i < n)


@triton.jit
def update(y_ptr, first, n):
    i = tl.program_id(0) * 4 + tl.arange(0, 4)
    tl.atomic_add(y_ptr + first + i, i, mask=i < n)  #!


@triton.jit
def compare(y_ptr, first):
    tl.atomic_cas(y_ptr + first, 0, 1)  #!


def numbers(n):
    return torch.arange(n, dtype=torch.int32)


def ints(*shape):
    return torch.zeros(shape, dtype=torch.int32)


def test_a_load_above_names_element_tensor_count_shape_and_program():
    said = fault(emulator.OutOfBounds, load, ints(3, 4), ints(16), 0, grid=(4,))
    assert said == f"tl.load reads element 12 of x_ptr, which holds 12 (shape 3x4); program (3, 0, 0){HINT}"


def test_a_load_below():
    said = fault(emulator.OutOfBounds, load, ints(12), ints(16), -1, grid=(2,))
    assert said == f"tl.load reads element -1 of x_ptr, which holds 12 (shape 12); program (0, 0, 0){HINT}"


def test_a_mask_that_depends_on_a_load_beyond_its_own_mask_is_told_with_that_load():
    said = fault(emulator.OutOfBounds, load_by_weight, torch.zeros(3), torch.zeros(4), 3)
    _, _, said = said.partition(f"{HINT} Its mask depends on what is loaded in line ")
    assert said.startswith(f"{line_of(load_by_weight, 'weight = ')} (`weight = ")


def test_a_store_above_and_below_leaves_what_was_there():
    y = ints(6)
    said = fault(emulator.OutOfBounds, store, y, 0, 8, grid=(2,))
    assert said == f"tl.store writes element 6 of y_ptr, which holds 6 (shape 6); program (1, 0, 0){HINT}"
    assert fault(emulator.OutOfBounds, store, y, -2, 8).startswith("tl.store writes element -2 of y_ptr")
    assert not y.any()
    store[(2,)](y, 0, 6)
    assert y.tolist() == [0, 1, 2, 3, 4, 5]


def test_an_atomic_operation_above_and_below():
    said = fault(emulator.OutOfBounds, update, ints(6), 0, 8, grid=(2,))
    assert said == f"an atomic operation updates element 6 of y_ptr, which holds 6 (shape 6); program (1, 0, 0){HINT}"
    said = fault(emulator.OutOfBounds, compare, ints(6), -1)
    assert said.startswith("tl.atomic_cas updates element -1 of y_ptr, which holds 6")


def test_a_view_reaches_its_whole_storage_and_counts_from_its_own_start():
    base = torch.arange(32, dtype=torch.int32)
    y = ints(4)
    load[(1,)](base[8:12], y, 4)
    assert y.tolist() == [12, 13, 14, 15]
    load[(1,)](base[8:12], y, -8)
    assert y.tolist() == [0, 1, 2, 3]
    said = fault(emulator.OutOfBounds, load, base[8:12], y, 21)
    assert said.startswith("tl.load reads element 24 of x_ptr, which holds 24 (shape 4)")


def test_an_expanded_tensor_holds_one_line():
    y = ints(4)
    load[(1,)](torch.arange(4, dtype=torch.int32).expand(3, 4), y, 0)
    assert y.tolist() == [0, 1, 2, 3]
    said = fault(emulator.OutOfBounds, load, torch.arange(4, dtype=torch.int32).expand(3, 4), y, 4)
    assert said.startswith("tl.load reads element 4 of x_ptr, which holds 4 (shape 3x4)")


@pytest.mark.parametrize("x", [ints(0), ints(8)[3:3], ints(3, 0)], ids=["new", "view", "columns"])
def test_an_empty_tensor_holds_nothing(x):
    said = fault(emulator.OutOfBounds, load, x, ints(4), 0)
    assert said.startswith("tl.load reads element 0 of x_ptr, which holds 0 (shape ")


def test_a_masked_access_of_an_empty_tensor_is_none():
    store[(2,)](ints(0), 0, 0)
    update[(2,)](ints(0), 0, 0)


def test_another_tensor_of_the_launch_is_no_refuge():
    x, y = ints(16), ints(16)
    said = fault(emulator.OutOfBounds, load, x, y, (y.data_ptr() - x.data_ptr()) // 4)
    assert " of x_ptr, which holds 16" in said


@triton.jit
def helper(x_ptr, i):
    return tl.load(x_ptr + i)  #!


@triton.jit
def calls(x_ptr, y_ptr, n):
    tl.store(y_ptr, helper(x_ptr, n))


@triton.jit(noinline=True)
def apart(x_ptr, i):
    return tl.load(x_ptr + i)  #!


@triton.jit
def calls_apart(x_ptr, y_ptr, n):
    tl.store(y_ptr, apart(x_ptr, n))


def test_a_fault_in_a_function_is_in_the_functions_line():
    assert fault(emulator.OutOfBounds, calls, ints(4), ints(1), 9, inner=helper).startswith("tl.load reads element 9")
    assert "reads" in fault(emulator.OutOfBounds, calls_apart, ints(4), ints(1), 99999, inner=apart)


@triton.jit
def part_ways(x_ptr, y_ptr):
    p = tl.program_id(0)
    if p >= 2:
        tl.store(y_ptr + p, tl.load(x_ptr + 10))  #!


def test_the_program_is_one_that_took_the_branch():
    said = fault(emulator.OutOfBounds, part_ways, ints(10), ints(4), grid=(4,))
    assert said.endswith(f"program (2, 0, 0){HINT}")
    part_ways[(2,)](ints(10), ints(4))


@triton.jit
def in_three(y_ptr):
    at = tl.program_id(0) + 2 * (tl.program_id(1) + 3 * tl.program_id(2))
    tl.store(y_ptr + at, at)  #!


def test_the_program_has_three_numbers():
    assert "program (1, 2, 1)" in fault(emulator.OutOfBounds, in_three, ints(11), grid=(2, 3, 2))


@triton.jit
def choose(a_ptr, b_ptr, y_ptr, n):
    i = tl.arange(0, 4)
    tl.store(y_ptr + i, tl.load(tl.where(i < 2, a_ptr, b_ptr) + n + i))  #!


def test_a_pointer_of_two_tensors():
    said = fault(emulator.OutOfBounds, choose, ints(4), ints(4), ints(4), 10**6)
    assert re.match(
        r"tl\.load reads an address that belongs to no argument; the nearest is element -?\d+ of \w_ptr", said
    )


@triton.jit
def follow(x_ptr, y_ptr, address):
    tl.store(y_ptr, tl.load(address.to(tl.int64).to(tl.pointer_type(tl.int32))))  #!


def test_a_pointer_of_an_integer():
    x, y = torch.tensor([7, 8], dtype=torch.int32), ints(1)
    follow[(1,)](x, y, x.data_ptr() + 4)
    assert y.item() == 8
    assert "belongs to no argument" in fault(emulator.OutOfBounds, follow, x, y, 16)
    assert "belongs to no argument" in fault(emulator.OutOfBounds, follow, x, y, 2**62)


@triton.jit
def no_tensor(address):
    tl.store(address.to(tl.int64).to(tl.pointer_type(tl.int32)), 1)  #!


def test_a_pointer_of_an_integer_where_there_is_no_tensor():
    assert "belongs to no argument" in fault(emulator.OutOfBounds, no_tensor, 2**20)


@triton.jit
def uneven(x_ptr, y_ptr, n):
    x = (x_ptr.to(tl.pointer_type(tl.int8), bitcast=True) + n).to(tl.pointer_type(tl.int32), bitcast=True)
    tl.store(y_ptr, tl.load(x))  #!


def test_a_misaligned_access():
    x, y = torch.tensor([7, 8], dtype=torch.int32), ints(1)
    uneven[(1,)](x, y, 4)
    assert y.item() == 8
    said = fault(emulator.Misaligned, uneven, x, y, 2)
    assert said == "tl.load of 4 bytes at an address that is no multiple of 4, in x_ptr; program (0, 0, 0)"


# Races


@triton.jit
def same_place(y_ptr, scale):
    tl.store(y_ptr + tl.arange(0, 4), tl.program_id(0) * scale)  #!


@triton.jit
def neighbours(x_ptr, grow):
    p = tl.program_id(0)
    x = tl.load(x_ptr + p + 1)  # earlier
    tl.store(x_ptr + p, x + grow)  #!


def test_two_programs_that_write_one_element():
    said = fault(emulator.Race, same_place, ints(4), 1, grid=(3,))
    line = line_of(same_place, "#!")
    assert re.match(
        rf"tl\.store of program \(\d, 0, 0\) writes element 0 of y_ptr, which tl\.store in line {line} of program "
        rf"\(\d, 0, 0\) writes: nothing says which comes first",
        said,
    )


def test_a_program_that_writes_what_another_reads_names_both_lines():
    said = fault(emulator.Race, neighbours, torch.arange(5, dtype=torch.int32), 5, grid=(4,))
    assert f"which tl.load in line {line_of(neighbours, '# earlier')} of program " in said
    assert said.startswith("tl.store of program (") and " of x_ptr, " in said


@triton.jit
def reads_later(x_ptr, y_ptr):
    p = tl.program_id(0)
    tl.store(x_ptr + p, p + 1)  # earlier
    tl.store(y_ptr + p, tl.load(x_ptr + (p + 1) % 4))  #!


def test_a_program_that_reads_what_another_writes():
    said = fault(emulator.Race, reads_later, ints(4), ints(4), grid=(4,))
    assert re.match(r"tl\.load of program \(\d, 0, 0\) reads element \d of x_ptr, which tl\.store in line", said)
    assert f"line {line_of(reads_later, '# earlier')} " in said


@triton.jit
def far_apart(y_ptr, n):
    p = tl.program_id(0)
    tl.store(y_ptr + p % n, p)  #!


def test_a_race_of_programs_that_do_not_run_together():
    y = ints(150_000)
    far_apart[(150_000,)](y, 150_000)
    assert y[-1] == 149_999
    assert "tl.store" in fault(emulator.Race, far_apart, ints(149_999), 149_999, grid=(150_000,))


@triton.jit
def mixed_widths(x_ptr, y_ptr):
    p = tl.program_id(0)
    if p == 0:
        tl.store(x_ptr, 1)
    else:
        tl.store(y_ptr + 2, 5)  #!


def test_a_race_of_different_widths():
    x = ints(4)
    assert "writes" in fault(emulator.Race, mixed_widths, x, x.view(torch.int8), grid=(2,))


def test_the_same_value_written_by_all_is_no_race():
    y = torch.full((4,), 9, dtype=torch.int32)
    same_place[(5,)](y, 0)
    assert not y.any()


@triton.jit
def in_place(x_ptr):
    i = tl.program_id(0) * 4 + tl.arange(0, 4)
    for _ in range(3):
        tl.store(x_ptr + i, tl.load(x_ptr + i) * 2)


@triton.jit
def atomics(y_ptr):
    p = tl.program_id(0)
    tl.atomic_add(y_ptr, p)
    tl.atomic_max(y_ptr + 1, p)


def test_own_rows_in_place_and_atomic_operations_are_no_races():
    x, y = torch.ones(16), ints(2)
    in_place[(4,)](x)
    assert x.eq(8).all()
    atomics[(5,)](y)
    assert y.tolist() == [10, 4]


@triton.jit
def last_reduces(x_ptr, part_ptr, count_ptr, y_ptr, PROGRAMS: tl.constexpr, SEM: tl.constexpr):
    p = tl.program_id(0)
    tl.store(part_ptr + p, tl.sum(tl.load(x_ptr + p * 8 + tl.arange(0, 8))))
    tl.debug_barrier()
    done = tl.atomic_add(count_ptr, 1, sem=SEM)
    if done == PROGRAMS - 1:
        tl.store(y_ptr, tl.sum(tl.load(part_ptr + tl.arange(0, PROGRAMS))))  #!


def test_the_last_program_may_reduce_what_an_atomic_counter_orders():
    x, y = torch.arange(64, dtype=torch.int32), ints(1)
    last_reduces[(8,)](x, ints(8), ints(1), y, 8, "acq_rel")
    assert y.item() == x.sum()


def test_a_relaxed_counter_orders_nothing():
    x = torch.arange(64, dtype=torch.int32)
    assert "tl.load" in fault(emulator.Race, last_reduces, x, ints(8), ints(1), ints(1), 8, "relaxed", grid=(8,))


@triton.jit
def ping_pong(a_ptr, b_ptr):
    p = tl.program_id(0)
    for _ in range(3):
        tl.store(b_ptr + p, tl.load(a_ptr + p) + 1)
        tl.store(a_ptr + p, tl.load(b_ptr + p) + 1)


def test_ping_pong_of_own_elements_is_no_race():
    a = ints(6)
    ping_pong[(6,)](a, ints(6))
    assert a.eq(6).all()


@triton.jit
def halves(x_ptr):
    p, i = tl.program_id(0), tl.arange(0, 4)
    tl.store(x_ptr + 2 * i + p, tl.load(x_ptr + 2 * i + p) + p)


def test_interleaved_elements_are_no_race():
    x = ints(8)
    halves[(2,)](x)
    assert x.tolist() == [0, 1] * 4


# Loops


@triton.jit
def the_second(a, b):
    return b


@triton.jit
def largest_with_its_place(a, i, b, j):
    first = (a > b) | ((a == b) & (i < j))
    return tl.where(first, a, b), tl.where(first, i, j)


@triton.jit
def more_of_both(m, l, n, k):
    top = tl.maximum(m, n)
    return top, l * tl.exp(m - top) + k * tl.exp(n - top)


@triton.jit
def last_of_a_block(x_ptr, y_ptr):
    tl.store(y_ptr, tl.reduce(tl.load(x_ptr + tl.arange(0, 16)), 0, the_second))  #!


@triton.jit
def the_second_of_equals(x_ptr, y_ptr):
    x = tl.load(x_ptr + tl.arange(0, 16)) * 0
    tl.store(y_ptr, tl.argmax(x, 0, tie_break_left=False))  #!


@triton.jit
def in_any_order(x_ptr, y_ptr, z_ptr):
    i = tl.arange(0, 16)
    x = tl.load(x_ptr + i)
    _, place = tl.reduce((x // 4, i), 0, largest_with_its_place)
    tl.store(y_ptr, place)
    scores = tl.where(i < 9, x * 30.0, -1e30)
    m, l = tl.reduce((scores, tl.where(i < 9, 1.0, 0.0)), 0, more_of_both)
    tl.store(z_ptr, m + tl.log(l))


def test_a_reduction_that_hangs_on_the_order_of_the_elements():
    for kernel in (last_of_a_block, the_second_of_equals):
        said = fault(emulator.Undefined, kernel, numbers(16), ints(1))
        assert "the function of tl.reduce gives something else" in said


def test_a_reduction_in_any_order():
    place, total = ints(1), torch.zeros(1)
    in_any_order[(1,)](numbers(16), place, total)
    assert place.item() == 12
    torch.testing.assert_close(total, (torch.arange(9) * 30.0).logsumexp(0, keepdim=True))


@triton.jit
def leaks(a, b):
    return a / 2 + b


@triton.jit
def decays(a, x, b, y):
    return a * b, b * x + y


@triton.jit
def leaking_sums(x_ptr, y_ptr):
    i = tl.arange(0, 16)
    tl.store(y_ptr + i, tl.associative_scan(tl.load(x_ptr + i) * 1.0, 0, leaks))  #!


@triton.jit
def decaying_sums(x_ptr, y_ptr):
    i = tl.arange(0, 16)
    x = tl.load(x_ptr + i) * 1.0
    _, sums = tl.associative_scan((x * 0.0 + 0.5, x), 0, decays)
    tl.store(y_ptr + i, sums)


def test_a_scan_that_hangs_on_how_elements_are_grouped():
    said = fault(emulator.Undefined, leaking_sums, numbers(16), torch.zeros(16))
    assert "it is not associative" in said


def test_a_scan_of_what_is_associative():
    sums, left = torch.zeros(16), 0.0
    decaying_sums[(1,)](numbers(16), sums)
    for n, found in enumerate(sums.tolist()):
        left = left / 2 + n
        assert found == pytest.approx(left)


@triton.jit
def slopes(x_ptr, LIMIT: tl.constexpr):
    h = tl.program_id(0)
    tl.store(x_ptr + h, tl.where(h < LIMIT, 1.0 / (1 << h), 1.0 / (1 << (2 * (h - 8) + 1))))  #!


@triton.jit
def bits_of_a_word(x_ptr, word, COUNT: tl.constexpr):
    lane = tl.arange(0, 64)
    tl.store(x_ptr + lane, (word >> lane) & 1, mask=lane < COUNT)  #!


@triton.jit
def chosen_in_a_loop(x_ptr, first):
    total = 0
    for turn in range(5):
        total += tl.where(turn < first, 1, 1 << (turn - 2))  #!
    tl.store(x_ptr, total)


@triton.jit
def divides_by_a_shifted(x_ptr):
    lane = tl.arange(0, 64)
    tl.store(x_ptr + lane, tl.where(lane < 32, 100 // (1 << lane), 7))  #!


@triton.jit
def asks_a_shifted(x_ptr):
    lane = tl.arange(0, 64)
    tl.store(x_ptr + lane, tl.where((lane < 32) & ((1 << lane) > 4), 1, 0))  #!


def test_a_shift_by_too_many_bits_where_nothing_chooses_it():
    x, bits, total = torch.zeros(16), ints(64), ints(1)
    slopes[(16,)](x, 8)
    assert x.tolist() == [2.0**-h for h in range(8)] + [2.0 ** -(2 * h + 1) for h in range(8)]
    bits_of_a_word[(1,)](bits, 0b1011, 32)
    assert bits.tolist() == [1, 1, 0, 1] + [0] * 60
    chosen_in_a_loop[(1,)](total, 2)
    assert total.tolist() == [1 + 1 + 1 + 2 + 4]


def test_a_shift_by_too_many_bits_that_reaches_a_result():
    calls = [(slopes, torch.zeros(16), 7), (bits_of_a_word, ints(64), 0b1011, 33), (chosen_in_a_loop, ints(1), 1)]
    calls += [(divides_by_a_shifted, ints(64)), (asks_a_shifted, ints(64))]
    for kernel, *args in calls:
        grid = (16,) if kernel is slopes else (1,)
        assert "a shift by as many bits" in fault(emulator.Undefined, kernel, *args, grid=grid)


@triton.jit
def keeps_and_sums(a, p, b, q):
    tl.store(p.to(tl.pointer_type(tl.int64)), a)
    return a + b, tl.maximum(p, q)


@triton.jit
def sum_on_the_side(x_ptr, y_ptr):
    x = tl.load(x_ptr + tl.arange(0, 16))
    total, _ = tl.reduce((x, x * 0 + y_ptr.to(tl.int64)), 0, keeps_and_sums)  #!
    tl.store(y_ptr, total)


def test_a_function_of_elements_that_stores():
    said = fault(emulator.Unsupported, sum_on_the_side, torch.arange(16), torch.zeros(1, dtype=torch.int64))
    assert "reads or writes memory" in said


@triton.jit
def swapped(a, b):
    return b, a


@triton.jit
def doubled(a, b):
    return a * 2, b * 2


@triton.jit
def swapped_by_pairs(x_ptr, y_ptr):
    i = tl.arange(0, 16)
    tl.store(y_ptr + i, tl.map_elementwise(swapped, tl.load(x_ptr + i), pack=2)[0])  #!


@triton.jit
def doubled_by_pairs(x_ptr, y_ptr):
    i = tl.arange(0, 16)
    tl.store(y_ptr + i, tl.map_elementwise(doubled, tl.load(x_ptr + i), pack=2)[0])


def test_elements_of_a_function_that_takes_several():
    said = fault(emulator.Undefined, swapped_by_pairs, numbers(16), numbers(16))
    assert "something else beside other elements" in said
    twice = torch.zeros(16)
    doubled_by_pairs[(1,)](numbers(16), twice)
    assert twice.tolist() == [2.0 * n for n in range(16)]


@triton.jit
def described(x_ptr, y_ptr, first, stride):
    rows = tl.make_tensor_descriptor(x_ptr + first, [2, 4], [stride, 1], [2, 4])  #!
    i = tl.arange(0, 2)[:, None] * 4 + tl.arange(0, 4)[None, :]
    tl.store(y_ptr + i, rows.load([0, 0]))


@pytest.mark.parametrize(("first", "stride"), [(1, 4), (0, 6)])
def test_a_descriptor_that_hardware_does_not_take(first, stride):
    said = fault(emulator.DeviceAssertion, described, numbers(64), ints(8), first, stride)
    assert "no multiple of 16 bytes" in said
    described[(1,)](numbers(64), ints(8), 4, 8)


@triton.jit
def read_back(x_ptr, y_ptr, stores: tl.constexpr, loads: tl.constexpr, rows: tl.constexpr):
    i = tl.arange(0, 2)[:, None] * 4 + tl.arange(0, 4)[None, :]
    first = tl.make_tensor_descriptor(x_ptr, [rows, 4], [4, 1], [2, 4])
    if stores:
        first.store([0, 0], i * 2.0)
    else:
        tl.store(x_ptr + i, i * 2.0)
    tl.debug_barrier()
    x = first.load([rows - 2, 0]) if loads else tl.load(x_ptr + (rows - 2) * 4 + i)
    tl.store(y_ptr + i, x)


@pytest.mark.parametrize(("stores", "loads"), [(True, True), (True, False), (False, True)])
def test_what_goes_by_a_descriptor_and_back_in_one_launch(stores, loads):
    def run(rows):
        read_back[(1,)](numbers(64), torch.zeros(8), stores, loads, rows)

    with pytest.raises(emulator.Race, match="by a tensor descriptor, for which no barrier waits"):
        run(2)
    run(4)  # other rows than were stored


def test_what_goes_without_one_and_back():
    found = torch.zeros(8)
    read_back[(1,)](numbers(64), found, False, False, 2)
    assert found.tolist() == [2.0 * n for n in range(8)]


@triton.jit
def bins(x_ptr, y_ptr, n):
    i = tl.arange(0, 16)
    x = tl.load(x_ptr + i)
    counts = tl.histogram(x, 8, mask=i < n)  #!
    tl.store(y_ptr + tl.arange(0, 8), counts)


def test_a_histogram_of_what_is_in_no_bin():
    counts = ints(8)
    bins[(1,)](numbers(16), counts, 8)
    assert counts.tolist() == [1] * 8
    said = fault(emulator.OutOfBounds, bins, numbers(16), ints(8), 9)
    assert said == "tl.histogram meets 8, expected numbers from 0 to 7"


@triton.jit
def endless(x_ptr, y_ptr):
    n = tl.load(x_ptr)
    while n > 0:  #!
        tl.store(y_ptr, n)


@triton.jit
def spin_lock(lock_ptr, y_ptr):
    while tl.atomic_cas(lock_ptr, 0, 1) == 1:
        pass
    tl.store(y_ptr, tl.load(y_ptr) * 3 + tl.program_id(0))
    tl.debug_barrier()
    tl.atomic_xchg(lock_ptr, 0)


@triton.jit
def waits_for_later(flag_ptr, y_ptr):
    p = tl.program_id(0)
    if p == 0:
        while tl.atomic_add(flag_ptr, 0) == 0:  #!
            pass
    else:
        tl.atomic_xchg(flag_ptr, 1)
    tl.store(y_ptr + p, p)


@triton.jit
def waits_for_earlier(flag_ptr, y_ptr):
    p = tl.program_id(0)
    if p > 0:
        while tl.atomic_add(flag_ptr + p - 1, 0) == 0:
            pass
        tl.store(y_ptr + p, tl.load(y_ptr + p - 1) + p)
    tl.debug_barrier()
    tl.atomic_xchg(flag_ptr + p, 1)


def test_a_loop_that_changes_nothing():
    said = fault(emulator.EndlessLoop, endless, ints(1) + 1, ints(1))
    assert said.startswith("the loop turns without end: ") and "program (0, 0, 0)" in said


def test_a_spin_lock_lets_one_program_after_the_other_through():
    y = ints(1)
    spin_lock[(6,)](ints(1), y)
    assert y.item() == sum(p * 3 ** (5 - p) for p in range(6))


def test_a_program_that_waits_for_a_later_one():
    said = fault(emulator.EndlessLoop, waits_for_later, ints(1), ints(2), grid=(2,))
    assert said.startswith("the loop turns without end: ") and "waits for another program" in said


def test_a_program_may_wait_for_an_earlier_one():
    y = ints(5)
    waits_for_earlier[(5,)](ints(5), y)
    assert y.tolist() == [0, 1, 3, 6, 10]


@triton.jit
def long_loop(x_ptr):
    n = tl.load(x_ptr)
    while n > 0:
        n += 1
        tl.store(x_ptr, n)  #!


@pytest.fixture
def interruptible():
    """Have an interrupt raise KeyboardInterrupt, which a process in the background ignores."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_an_interrupt_says_where(interruptible):
    timer = threading.Timer(0.5, _thread.interrupt_main)
    x = torch.ones(1, dtype=torch.int64)
    long_loop.warmup(x, grid=(1,))
    timer.start()
    with pytest.raises(KeyboardInterrupt) as caught:
        long_loop[(1,)](x)
    timer.cancel()
    (note,) = caught.value.__notes__
    first = line_of(long_loop, "while")
    assert int(re.search(r"long_loop was interrupted in line (\d+)", note)[1]) in range(first, first + 3)


# Arguments, grids, assertions


def test_a_tensor_that_requires_a_gradient_is_warned_of():
    x, y = torch.ones(4, requires_grad=True), torch.zeros(4)
    with pytest.warns(UserWarning, match="load: x_ptr requires a gradient, and none passes through a kernel") as caught:
        load[(1,)](x, y, 0)
    mine = next(each for each in caught if "requires a gradient" in str(each.message))  # others may come between
    assert mine.filename == __file__
    assert y.eq(1).all()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with torch.no_grad():
            load[(1,)](x, y, 0)
        load[(1,)](x.detach(), y, 0)


def test_a_grid_of_no_programs_is_warned_of_and_runs_nothing():
    y = ints(4)
    with pytest.warns(UserWarning, match=r"store: the grid \(0, 1, 1\) has no programs") as caught:
        store[(0,)](y, 100, 4)
    assert caught[0].filename == __file__
    assert not y.any()


@pytest.mark.parametrize(("grid", "axis"), [((2**31,), "x"), ((1, 65536), "y"), ((1, 1, 65536), "z"), ((-1,), "x")])
def test_a_grid_that_no_gpu_takes_is_refused(grid, axis):
    with pytest.raises(ValueError, match=rf"store: the grid .* along {axis}, expected 0 to"):
        store[grid](ints(4), 0, 4)


@triton.jit
def asserts(x_ptr, y_ptr):
    p = tl.program_id(0)
    x = tl.load(x_ptr + p)
    tl.device_assert(x > 0, 'x is "positive", (as) {said}')  #!
    tl.store(y_ptr + p, x)


@triton.jit
def hints(x_ptr, y_ptr, n, groups: tl.constexpr, multiple: tl.constexpr, constant: tl.constexpr):
    at = tl.program_id(0) * n + tl.arange(0, 4) // 2 * 4 + tl.arange(0, 4) % 2  #!
    at = tl.max_constancy(tl.max_contiguous(tl.multiple_of(at, multiple), groups), constant)
    tl.store(y_ptr + at, tl.load(x_ptr + at))


@pytest.mark.parametrize(
    "n, groups, multiple, constant, said",
    [
        (8, 2, 4, 1, None),
        (8, 1, 1, 1, None),
        (8, 4, 1, 1, "tl.max_contiguous with [4] does not hold; program (0, 0, 0)"),
        (6, 2, 4, 1, "tl.multiple_of with [4] does not hold; program (1, 0, 0)"),
        (8, 1, 1, 2, "tl.max_constancy with [2] does not hold; program (0, 0, 0)"),
    ],
)
def test_a_hint_that_does_not_hold(n, groups, multiple, constant, said):
    x, y = ints(16), ints(16)
    if said is None:
        hints[(2,)](x, y, n, groups, multiple, constant)
    else:
        assert fault(emulator.DeviceAssertion, hints, x, y, n, groups, multiple, constant, grid=(2,)) == said


def test_an_assertion_that_does_not_hold():
    x, y = torch.tensor([1, 2, -3, 4], dtype=torch.int32), ints(4)
    said = fault(emulator.DeviceAssertion, asserts, x, y, grid=(4,), debug=True)
    assert said == 'x is "positive", (as) {said}; program (2, 0, 0)'
    asserts[(4,)](x, y)
    assert y.equal(x)
    asserts[(4,)](x.abs(), y, debug=True)


@triton.jit
def assembly(x_ptr):
    x = tl.load(x_ptr + tl.arange(0, 4))
    y = tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [x], tl.int32, True, 1)  #!
    tl.store(x_ptr + tl.arange(0, 4), y)


@triton.jit
def of_libdevice(x_ptr):
    x = tl.load(x_ptr + tl.arange(0, 4))
    tl.store(x_ptr + tl.arange(0, 4), tl.extra.cuda.libdevice.cbrt(x))  #!


def test_what_only_a_gpu_has_is_refused_with_its_line():
    assert fault(emulator.Unsupported, assembly, ints(4)).startswith("inline assembly runs on a GPU only")
    said = fault(emulator.Unsupported, of_libdevice, torch.ones(4), inner=None)
    assert said.startswith("a function of libdevice runs on a GPU only")


@triton.jit
def scaled(x_ptr):
    at = tl.arange(0, 32)[:, None] * 32 + tl.arange(0, 32)
    x = tl.load(x_ptr + at)
    tl.store(x_ptr + at, tl.dot_scaled(x, None, "bf16", x, None, "bf16"))  #!


def test_a_product_that_is_not_emulated_is_told_with_one_that_is():
    said = fault(emulator.Unsupported, scaled, torch.ones(32, 32, dtype=torch.bfloat16))
    assert said == "tl.dot_scaled is not emulated: use tl.dot"


@triton.jit
def of_a_table(table_ptr, out_ptr):
    x_ptr = tl.load(table_ptr).to(tl.pointer_type(tl.float32))
    for n in range(2):
        tl.store(out_ptr + n, tl.load(x_ptr))  #!
        x_ptr += 1


def test_addresses_in_a_tensor_are_told_from_a_wrong_mask():
    said = fault(emulator.OutOfBounds, of_a_table, torch.tensor([4096]), torch.zeros(2))
    assert "what is loaded in line" in said and said.endswith("pass the tensors themselves")


@triton.jit
def prints(x_ptr):
    p = tl.program_id(0)
    x = tl.load(x_ptr + p * 2 + tl.arange(0, 2))
    if p == 1:
        tl.device_print('x, of "(1": ', x, p)
        tl.device_print("here")
        tl.device_print("hex", p + 15, hex=True)


def test_a_print_shows_program_place_and_value(capsys):
    prints[(2,)](torch.tensor([1, 2, 30, -4], dtype=torch.int32))
    assert [re.sub(r"\s+", " ", line).strip() for line in capsys.readouterr().out.splitlines()] == [
        'pid (1, 0, 0) idx (0) x, of "(1": (operand 0) 30',
        'pid (1, 0, 0) idx (1) x, of "(1": (operand 0) -4',
        'pid (1, 0, 0) x, of "(1": (operand 1) 1',
        "pid (1, 0, 0) here",
        "pid (1, 0, 0) hex: 0x10",
    ]


@triton.jit
def static(N: tl.constexpr):
    tl.static_print("N is", N)
    tl.static_assert(N == 4, "N is not four")


def test_what_is_known_before_a_launch_is_checked_and_printed_then(capsys):
    static.warmup(4, grid=(1,))
    with pytest.raises(triton.CompilationError, match="N is not four"):
        static[(1,)](5)
    assert "N is" in capsys.readouterr().out


@triton.jit
def out_of_gather(x_ptr, y_ptr, n):
    i = tl.arange(0, 4)
    tl.store(y_ptr + i, tl.gather(tl.load(x_ptr + i), i + n, 0))  #!


def test_a_gather_beyond_its_block():
    assert (
        fault(emulator.OutOfBounds, out_of_gather, ints(4), ints(4), 2)
        == "tl.gather asks for element 5 of an axis of 4"
    )


def test_a_launch_after_a_fault_is_as_any():
    y = ints(4)
    fault(emulator.OutOfBounds, store, y, 2, 4)
    store[(1,)](y, 0, 4)
    assert y.tolist() == [0, 1, 2, 3]


HUNGRY = """
import resource
from mla_ref.hardware import emulator
emulator.prepare()
import torch, triton, triton.language as tl

@triton.jit
def hungry(x_ptr, N: tl.constexpr):
    a = tl.arange(0, N).to(tl.float64) * 2
    b = a + tl.load(x_ptr).to(tl.float64)
    tl.store(x_ptr, tl.sum(a * b + (b * a) * 3 + b))

x = torch.zeros(4)
hungry[(1,)](x, N=1024)
held = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (held + (30 << 20),) * 2)
try:
    hungry[(1,)](x, N=1 << 20)
except emulator.OutOfMemory as error:
    print(error)
"""


def test_blocks_that_memory_does_not_hold(tmp_path):
    (tmp_path / "hungry.py").write_text(HUNGRY)
    environment = {**os.environ, "MLA_EMULATE": "1"}
    done = subprocess.run([sys.executable, tmp_path / "hungry.py"], capture_output=True, text=True, env=environment)
    assert re.match(r"line (9|10|11): the blocks need more memory than there is", done.stdout), done.stderr


OTHER_GPU = """
import torch
torch.cuda.is_available, torch.cuda.get_device_capability = lambda: True, lambda: (8, 0)
from mla_ref.hardware import emulator
print(emulator.prepare(), emulator.prepare(capability=(8, 0)), emulator.prepare(capability=(9, 0)), emulator.prepare())
"""


def test_kernels_for_another_gpu_than_the_one_there_run_on_the_cpu():
    environment = {**os.environ, "MLA_EMULATE": "", "TRITON_INTERPRET": "0"}
    done = subprocess.run([sys.executable, "-c", OTHER_GPU], capture_output=True, text=True, env=environment)
    assert done.stdout.split() == ["False", "False", "True", "True"], done.stderr


def values(*numbers):
    return torch.tensor(numbers, dtype=torch.int32)


@triton.jit
def stuck_beside_a_mask(x_ptr, n, N: tl.constexpr):
    offs, i = tl.arange(0, N), tl.program_id(0) * 0
    x = tl.load(x_ptr + offs, mask=offs < n)
    while i < 1:  #!
        x += 0
        i *= 2
    tl.store(x_ptr + offs, x, mask=offs < n)


def test_a_loop_without_end_is_found_where_a_mask_leaves_nan():
    assert "turns without end" in fault(emulator.EndlessLoop, stuck_beside_a_mask, torch.ones(5), 5, N=8)


@triton.jit
def stepped(steps_ptr, out_ptr, n):
    step, acc = tl.load(steps_ptr + tl.program_id(0)), 0
    if step != 0:
        for i in range(0, n, step):  #!
            acc += i
    tl.store(out_ptr + tl.program_id(0), acc)


def test_steps_of_a_loop():
    out = values(0, 0, 0)
    stepped[(3,)](values(0, 1, 2), out, 5)
    assert out.tolist() == [0, 10, 6]
    stepped[(1,)](values(-1), out, 0)
    assert out[0] == 0
    said = fault(emulator.EndlessLoop, stepped, values(1, -1), out, 5, grid=(2,))
    assert said == "the loop turns without end: its step is not above 0; program (1, 0, 0)"


@triton.jit
def last_of_all(x_ptr, count_ptr, P: tl.constexpr, LAST: tl.constexpr):
    x = tl.load(x_ptr + tl.arange(0, P))
    arrived = tl.atomic_add(count_ptr, 1)
    if arrived == LAST:
        tl.store(x_ptr + tl.arange(0, P), x * 2)  #!


def test_who_comes_last_may_write_what_all_have_read():
    x = values(1, 2, 3, 4)
    last_of_all[(4,)](x, values(0), P=4, LAST=3)
    assert x.tolist() == [2, 4, 6, 8]
    assert "nothing says" in fault(emulator.Race, last_of_all, values(1, 2, 3, 4), values(0), grid=(4,), P=4, LAST=1)


@triton.jit
def sum_of_all_at_once(part_ptr, count_ptr, out_ptr, P: tl.constexpr):
    tl.store(part_ptr + tl.program_id(0), tl.program_id(0))
    tl.atomic_add(count_ptr, 1)
    tl.store(out_ptr + tl.program_id(0), tl.sum(tl.load(part_ptr + tl.arange(0, P))))  #!


def test_an_atomic_is_no_barrier_of_the_grid():
    said = fault(emulator.Race, sum_of_all_at_once, values(0, 0, 0, 0), values(0), values(0, 0, 0, 0), grid=(4,), P=4)
    assert "nothing says which comes first" in said


@triton.jit(noinline=True)
def put(ptr, at, value):
    tl.store(ptr + at, value)  #!


@triton.jit
def puts_far(x_ptr, at):
    put(x_ptr, at, 9)


def test_functions_that_are_called_stay_in_the_arguments_too():
    x, other = values(0, 0), values(0, 0)
    far = (other.data_ptr() - x.data_ptr()) // 4
    fault(emulator.OutOfBounds, puts_far, x, far, inner=put)
    assert other.tolist() == [0, 0]


@triton.jit
def of_tuples(pair, out_ptr):
    tl.store(out_ptr, tl.load(pair[0]) + pair[1])


def test_tuples_hold_constants_too():
    out = torch.zeros(1)
    of_tuples[(1,)]((torch.ones(1), 1), out)
    assert out.item() == 2


@triton.jit
def halved(out_ptr, v):
    tl.store(out_ptr, (v >> 1).to(tl.int64))


def test_integers_beyond_64_bits_with_a_sign():
    out = torch.zeros(1, dtype=torch.int64)
    halved[(1,)](out, 2**63 + 6)
    assert out.item() == 2**62 + 3


@triton.jit
def filled(out_ptr, v):
    tl.store(out_ptr, v)


def test_a_number_of_numpys_that_is_pythons_float_too():
    out = torch.zeros(1)
    filled[(1,)](out, np.float64(0.5))
    assert out.item() == 0.5


def test_a_tensor_under_another_dtype():
    out = torch.zeros(1, dtype=torch.int8)
    filled[(1,)](triton.reinterpret(out, tl.uint8), 200)
    assert out.item() == 200 - 256


FAR = """
import triton
import triton.language as tl

@triton.jit
def beyond(x_ptr):
    tl.store(x_ptr + 7, 1.0)
"""


def test_a_kernel_from_the_cache_on_disk_is_in_its_own_file(tmp_path):
    for name in ("first", "second"):
        path = tmp_path / f"{name}.py"
        path.write_text(FAR)
        module = runpy.run_path(str(path))
        with pytest.raises(emulator.OutOfBounds) as caught:
            module["beyond"][(1,)](torch.zeros(2))
        frame = traceback.extract_tb(caught.value.__traceback__)[-1]
        assert (frame.filename, frame.lineno, frame.line) == (str(path), 7, "tl.store(x_ptr + 7, 1.0)")


@triton.jit
def hinted_choice(x_ptr, y_ptr, m):
    i = tl.arange(0, 16)
    at = tl.max_contiguous(tl.multiple_of(tl.where(i < m, i, 0), 4), 4)
    x = tl.load(x_ptr + at)  #!
    tl.store(y_ptr + i, x)


def test_what_tl_where_puts_in_the_place_of_neighbours_is_looked_at_where_it_is_loaded():
    said = fault(emulator.Miscompiled, hinted_choice, torch.ones(16), torch.empty(16), 2)
    assert "each 4 elements here are aligned neighbours under one mask, and they are not" in said
    hinted_choice[(1,)](torch.ones(16), torch.empty(16), 16)
