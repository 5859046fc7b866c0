"""Races are named with both lines, what depends on the order of programs differs when that is reversed, and neither is
said of kernels that are right."""

import functools
import inspect
import random
import re

import pytest
import torch

from mla_ref.hardware import emulator

triton = pytest.importorskip("triton", reason="kernels need Triton")
tl = pytest.importorskip("triton.language")
if not emulator.prepare() or emulator.interpreted():
    pytest.skip("kernels do not run in the emulator", allow_module_level=True)

from mla_ref import kernels  # noqa: E402
from mla_ref.hardware.emulator import races  # noqa: E402
from mla_ref.hardware.emulator.machine import Kernel  # noqa: E402
from mla_ref.hardware.emulator.memory import Memory, Region  # noqa: E402

P = 8  # programs of most launches


def ints(*shape):
    return torch.zeros(shape, dtype=torch.int32)


def numbers(count=P):
    return torch.arange(1, count + 1, dtype=torch.int32)


RACY, HONEST, CHANCE = {}, {}, {}


def racy(*arguments, grid=P, **options):
    """Note a kernel with lines `# one` and `# two`, or `# both`, that race, and what returns its arguments."""
    return lambda kernel: RACY.setdefault(kernel.fn.__name__, (kernel, grid, arguments, options))[0]


def honest(*arguments, grid=P, expect, **options):
    """Note a kernel that is right; ``expect`` gives of each argument by number what it holds afterwards."""
    return lambda kernel: HONEST.setdefault(kernel.fn.__name__, (kernel, grid, arguments, expect, options))[0]


def by_chance(*arguments, grid=P, **options):
    """Note a kernel without a race whose results depend on the order of programs."""
    return lambda kernel: CHANCE.setdefault(kernel.fn.__name__, (kernel, grid, arguments, options))[0]


def lines(kernel, *marks):
    source, first = inspect.getsourcelines(kernel.fn)
    return {first + n for n, line in enumerate(source) if line.rstrip().endswith(tuple(f"# {mark}" for mark in marks))}


def run(kernel, grid, arguments, options, order="forward"):
    """Launch a kernel in an order; return its arguments afterwards, and what was launched."""
    given, launched = [each() if callable(each) else each for each in arguments], []

    def launch(self, *args, **kwargs):
        launched.append(self)
        original(self, *args, order=order, **kwargs)

    original = Kernel.launch
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Kernel, "launch", launch)
        kernel[(grid,)](*given, **options)
    return given, launched[0]


# Races without atomic operations


@racy(lambda: ints(4))
@triton.jit
def all_write_one_row(y_ptr):
    tl.store(y_ptr + tl.arange(0, 4), tl.program_id(0))  # both


@racy(lambda: numbers(P + 1))
@triton.jit
def neighbours_in_place(x_ptr):
    p = tl.program_id(0)
    x = tl.load(x_ptr + p + 1)  # one
    tl.store(x_ptr + p, 5 * x)  # two


@racy(lambda: ints(P), lambda: ints(P))
@triton.jit
def reads_what_the_next_writes(x_ptr, y_ptr):
    p = tl.program_id(0)
    tl.store(x_ptr + p, p + 1)  # one
    tl.store(y_ptr + p, tl.load(x_ptr + (p + 1) % 8))  # two


@racy(lambda: ints(64))
@triton.jit
def tiles_that_overlap(y_ptr):
    p = tl.program_id(0)
    tl.store(y_ptr + p * 7 + tl.arange(0, 8), p + tl.arange(0, 8))  # both


@racy(lambda: ints(P * 6 + 2))
@triton.jit
def rows_without_a_mask(y_ptr):
    p, i = tl.program_id(0), tl.arange(0, 8)
    tl.store(y_ptr + p * 6 + i, p * 10 + i)  # both


@racy(lambda: numbers(), lambda: ints(1))
@triton.jit
def sum_without_an_atomic(x_ptr, y_ptr):
    x = tl.load(x_ptr + tl.program_id(0))
    y = tl.load(y_ptr)  # one
    tl.store(y_ptr, y + x)  # two


@racy(lambda: ints(16), lambda: ints(16))
@triton.jit
def turns_without_a_barrier(a_ptr, b_ptr):
    p = tl.program_id(0)
    for turn in range(2):
        x = tl.load(a_ptr + p) + tl.load(a_ptr + p + 1) + p  # one
        tl.store(b_ptr + p, x)
        tl.store(a_ptr + p, tl.load(b_ptr + p) + turn)  # two


@racy(lambda: ints(4), lambda: ints(P))
@triton.jit
def one_scratch_for_all(scratch_ptr, y_ptr):
    p, i = tl.program_id(0), tl.arange(0, 4)
    tl.store(scratch_ptr + i, p * i)  # both
    tl.store(y_ptr + p, tl.sum(tl.load(scratch_ptr + i)))


@racy(lambda: ints(P // 2 + 1))
@triton.jit
def a_byte_of_another(x_ptr):
    p = tl.program_id(0)
    if p % 2 == 0:
        tl.store(x_ptr + p // 2, p + 257)  # one
    else:
        tl.store(x_ptr.to(tl.pointer_type(tl.int8), bitcast=True) + p // 2 * 4 + 1, p)  # two


@racy(lambda: ints(1), lambda: ints(P))
@triton.jit
def one_value_written_by_some_and_read_by_others(x_ptr, y_ptr):
    p = tl.program_id(0)
    if p < 4:
        tl.store(x_ptr, 7)  # one
    else:
        tl.store(y_ptr + p, tl.load(x_ptr))  # two


@racy(lambda: ints(150_000), grid=150_001)
@triton.jit
def of_programs_far_apart(y_ptr):
    p = tl.program_id(0)
    tl.store(y_ptr + p % 150_000, p)  # both


# Plain accesses beside atomic ones


@racy(lambda: numbers(), lambda: ints(1))
@triton.jit
def zeroed_by_the_first(x_ptr, y_ptr):
    p = tl.program_id(0)
    if p == 0:
        tl.store(y_ptr, 1)  # one
    tl.atomic_add(y_ptr, tl.load(x_ptr + p))  # two


@racy(lambda: numbers(), lambda: ints(1))
@triton.jit
def added_to_and_then_stored(x_ptr, y_ptr):
    p = tl.program_id(0)
    tl.atomic_add(y_ptr, tl.load(x_ptr + p))  # one
    if p == 7:
        tl.store(y_ptr, 0)  # two


@racy(lambda: numbers(), lambda: ints(1), lambda: ints(P))
@triton.jit
def reads_a_sum_while_others_add(x_ptr, sum_ptr, y_ptr):
    p = tl.program_id(0)
    tl.atomic_add(sum_ptr, tl.load(x_ptr + p))  # one
    tl.debug_barrier()
    tl.store(y_ptr + p, tl.load(sum_ptr))  # two


@racy(lambda: torch.zeros(4), lambda: torch.zeros(P, 4))
@triton.jit
def reads_a_row_while_others_add(sum_ptr, y_ptr):
    p, i = tl.program_id(0), tl.arange(0, 4)
    before = tl.load(sum_ptr + i)  # one
    tl.store(y_ptr + p * 4 + i, before)
    tl.atomic_add(sum_ptr + i, before + 1.0)  # two


@racy(lambda: ints(1), lambda: ints(P))
@triton.jit
def asks_for_a_flag_that_is_stored(flag_ptr, y_ptr):
    p = tl.program_id(0)
    tl.store(y_ptr + p, tl.atomic_add(flag_ptr, 0))  # one
    if p == 3:
        tl.store(flag_ptr, 1)  # two


@racy(lambda: ints(P), lambda: ints(1), lambda: ints(P))
@triton.jit
def waits_for_a_flag_that_is_stored(x_ptr, flag_ptr, y_ptr):
    p = tl.program_id(0)
    if p == 0:
        tl.store(x_ptr, 5)
        tl.debug_barrier()
        tl.store(flag_ptr, 1)  # one
    else:
        while tl.atomic_add(flag_ptr, 0) == 0:  # two
            pass
        tl.store(y_ptr + p, tl.load(x_ptr))


# Orders that are none


@racy(lambda: ints(P), lambda: ints(1), lambda: ints(P), N=P)
@triton.jit
def a_counter_as_a_barrier(part_ptr, count_ptr, y_ptr, N: tl.constexpr):
    p = tl.program_id(0)
    tl.store(part_ptr + p, p)  # one
    tl.atomic_add(count_ptr, 1)
    tl.store(y_ptr + p, tl.sum(tl.load(part_ptr + tl.arange(0, N))))  # two


@triton.jit
def last_reduces(part_ptr, count_ptr, y_ptr, LAST: tl.constexpr, SEM: tl.constexpr, SCOPE: tl.constexpr):
    p = tl.program_id(0)
    tl.store(part_ptr + p, p + 1)  # one
    tl.debug_barrier()
    done = tl.atomic_add(count_ptr, 1, sem=SEM, scope=SCOPE)
    if done == LAST:
        tl.store(y_ptr, tl.sum(tl.load(part_ptr + tl.arange(0, 8))))  # two


PARTS = (lambda: ints(P), lambda: ints(1), lambda: ints(1))
for name, last, sem in (
    ("relaxed", P - 1, "relaxed"),
    ("that only acquires", P - 1, "acquire"),
    ("that only releases", P - 1, "release"),
    ("that reaches the last but one", P - 2, "acq_rel"),
    ("that reaches the first", 0, "acq_rel"),
):
    RACY[f"a counter {name}"] = last_reduces, P, PARTS, {"LAST": last, "SEM": sem, "SCOPE": "gpu"}


@racy(*PARTS)
@triton.jit
def a_counter_of_one_program(part_ptr, count_ptr, y_ptr):
    p = tl.program_id(0)
    tl.store(part_ptr + p, p + 1)
    done = tl.atomic_add(count_ptr, 1, scope="cta")  # both
    if done == 7:
        tl.store(y_ptr, tl.sum(tl.load(part_ptr + tl.arange(0, 8))))


@racy(*PARTS)
@triton.jit
def counted_before_it_is_stored(part_ptr, count_ptr, y_ptr):
    p = tl.program_id(0)
    done = tl.atomic_add(count_ptr, 1)
    tl.store(part_ptr + p, p + 1)  # one
    if done == 7:
        tl.store(y_ptr, tl.sum(tl.load(part_ptr + tl.arange(0, 8))))  # two


@racy(lambda: ints(P), lambda: ints(P), lambda: ints(P))
@triton.jit
def a_counter_for_each(part_ptr, count_ptr, y_ptr):
    p = tl.program_id(0)
    tl.store(part_ptr + p, p + 1)  # one
    if tl.atomic_add(count_ptr + p, 1) == 0:
        tl.store(y_ptr + p, tl.sum(tl.load(part_ptr + tl.arange(0, 8))))  # two


@racy(lambda: ints(P), lambda: ints(2), lambda: ints(2))
@triton.jit
def a_counter_for_half_of_them(part_ptr, count_ptr, y_ptr):
    p = tl.program_id(0)
    tl.store(part_ptr + p, p + 1)  # one
    if tl.atomic_add(count_ptr + p % 2, 1) == 3:
        tl.store(y_ptr + p % 2, tl.sum(tl.load(part_ptr + tl.arange(0, 8))))  # two


@racy(lambda: numbers(), lambda: ints(1), lambda: ints(P))
@triton.jit
def written_before_all_have_read(x_ptr, count_ptr, y_ptr):
    p = tl.program_id(0)
    x = tl.load(x_ptr + tl.arange(0, 8))  # one
    tl.store(y_ptr + p, tl.sum(x))
    if tl.atomic_add(count_ptr, 1) == 4:
        tl.store(x_ptr + tl.arange(0, 8), x * 2)  # two


@racy(lambda: ints(1), lambda: ints(1))
@triton.jit
def unlocked_before_it_is_stored(lock_ptr, y_ptr):
    while tl.atomic_cas(lock_ptr, 0, 1) == 1:
        pass
    y = tl.load(y_ptr)  # two
    tl.atomic_xchg(lock_ptr, 0)
    tl.store(y_ptr, y + 1)  # one


@racy(lambda: ints(2), lambda: ints(1))
@triton.jit
def two_locks_of_one_place(lock_ptr, y_ptr):
    lock = lock_ptr + tl.program_id(0) % 2
    while tl.atomic_cas(lock, 0, 1) == 1:
        pass
    y = tl.load(y_ptr)  # one
    tl.store(y_ptr, y + 1)  # two
    tl.debug_barrier()
    tl.atomic_xchg(lock, 0)


@racy(lambda: ints(1), lambda: ints(1))
@triton.jit
def a_relaxed_lock(lock_ptr, y_ptr):
    while tl.atomic_cas(lock_ptr, 0, 1, sem="relaxed") == 1:
        pass
    y = tl.load(y_ptr)  # one
    tl.store(y_ptr, y + 1)  # two
    tl.debug_barrier()
    tl.atomic_xchg(lock_ptr, 0, sem="relaxed")


@racy(lambda: ints(1), lambda: ints(1), lambda: ints(P))
@triton.jit
def read_without_the_lock(lock_ptr, y_ptr, z_ptr):
    p = tl.program_id(0)
    if p % 2 == 0:
        while tl.atomic_cas(lock_ptr, 0, 1) == 1:
            pass
        tl.store(y_ptr, tl.load(y_ptr) + 1)  # one
        tl.debug_barrier()
        tl.atomic_xchg(lock_ptr, 0)
    else:
        tl.store(z_ptr + p, tl.load(y_ptr))  # two


@racy(lambda: ints(1), lambda: ints(1), lambda: ints(P))
@triton.jit
def waits_by_a_volatile_load(x_ptr, flag_ptr, y_ptr):
    p = tl.program_id(0)
    if p == 0:
        tl.store(x_ptr, 5)  # one
        tl.debug_barrier()
        tl.atomic_xchg(flag_ptr, 1)
    else:
        while tl.load(flag_ptr, volatile=True) == 0:
            pass
        tl.store(y_ptr + p, tl.load(x_ptr))  # two


@racy(lambda: ints(P), lambda: ints(P))
@triton.jit
def waits_for_the_wrong_one(flag_ptr, y_ptr):
    p = tl.program_id(0)
    if p > 1:
        while tl.atomic_add(flag_ptr + p - 2, 0) == 0:
            pass
    if p > 0:
        tl.store(y_ptr + p, tl.load(y_ptr + p - 1) + p)  # both
    tl.debug_barrier()
    tl.atomic_xchg(flag_ptr + p, 1)


@racy(lambda: ints(1), lambda: ints(P))
@triton.jit
def two_in_one_slot(count_ptr, y_ptr):
    slot = tl.atomic_add(count_ptr, 1) // 2
    tl.store(y_ptr + slot, tl.program_id(0))  # both


# Threads of one program


@racy(lambda: numbers(8 * P), lambda: ints(8 * P), lambda: ints(8 * P))
@triton.jit
def a_row_read_backwards(x_ptr, y_ptr, z_ptr):
    row, i = tl.program_id(0) * 8, tl.arange(0, 8)
    tl.store(y_ptr + row + i, tl.load(x_ptr + row + i))  # one
    tl.store(z_ptr + row + i, tl.load(y_ptr + row + 7 - i))  # two


@racy(lambda: numbers(64), lambda: ints(1), grid=1)
@triton.jit
def a_sum_of_what_a_loop_stored(x_ptr, y_ptr):
    for start in range(0, 64, 16):
        i = start + tl.arange(0, 16)
        tl.store(x_ptr + i, tl.load(x_ptr + i) * 2)  # one
    tl.store(y_ptr, tl.sum(tl.load(x_ptr + tl.arange(0, 64))))  # two


@racy(lambda: numbers(32), lambda: ints(32), grid=1)
@triton.jit
def a_barrier_too_early(x_ptr, y_ptr):
    i = tl.arange(0, 32)
    tl.debug_barrier()
    tl.store(x_ptr + i, i)  # one
    tl.store(y_ptr + i, tl.load(x_ptr + (i ^ 1), mask=i < 30, other=0))  # two


@racy(lambda: numbers(64), lambda: ints(64), grid=1)
@triton.jit
def zeros_where_other_threads_store(x_ptr, y_ptr):
    i = tl.arange(0, 64)
    tl.store(y_ptr + 63 - i, tl.zeros([64], tl.int32))  # one
    tl.store(y_ptr + i, tl.load(x_ptr + i))  # two


@racy(lambda: numbers(64), lambda: ints(P), lambda: ints(64), grid=1)
@triton.jit
def a_number_that_one_thread_stores(x_ptr, y_ptr, z_ptr):
    i = tl.arange(0, 64)
    tl.store(y_ptr, 7)  # one
    tl.store(z_ptr + i, tl.load(x_ptr + i) + tl.load(y_ptr))  # two


@racy(lambda: numbers(8), lambda: ints(8), lambda: ints(1), grid=1)
@triton.jit
def fewer_elements_than_threads(x_ptr, y_ptr, z_ptr):
    i = tl.arange(0, 8)
    tl.store(y_ptr + i, tl.load(x_ptr + i) * 2)  # one
    pairs = tl.load(y_ptr + i)[:, None] * tl.load(x_ptr + tl.arange(0, 16) % 8)[None, :]  # two
    tl.store(z_ptr, tl.sum(tl.sum(pairs, 1), 0))


# Loads that the compiler does turns ahead


@racy(lambda: numbers(256), grid=1)
@triton.jit
def a_turn_reads_what_the_one_before_stored(x_ptr):
    i = tl.arange(0, 256)
    for turn in tl.range(0, 4, num_stages=3):
        tl.store(x_ptr + i, tl.load(x_ptr + i) * 2 + turn)  # both


@racy(lambda: torch.ones(16, 16).half(), lambda: torch.ones(16, 16).half(), grid=1)
@triton.jit
def a_product_of_what_the_turn_before_stored(x_ptr, y_ptr):
    i, j = tl.arange(0, 16)[:, None], tl.arange(0, 16)[None, :]
    y = tl.load(y_ptr + i * 16 + j)
    for _ in range(3):
        x = tl.load(x_ptr + i * 16 + j)  # two
        tl.store(x_ptr + i * 16 + j, tl.dot(x, y).to(tl.float16))  # one


@pytest.mark.parametrize("name", RACY)
@pytest.mark.parametrize("order", ["forward", "reversed", "shuffled"])
def test_a_race_is_named_with_both_lines(name, order):
    kernel, grid, arguments, options = RACY[name]
    with pytest.raises(emulator.Race) as caught:
        run(kernel, grid, arguments, options, order)
    said = str(caught.value)
    assert said.endswith("nothing says which comes first")
    found = {int(each) for each in re.findall(r"line (\d+)", said)}
    assert found == lines(kernel, "one", "two", "both")


# What is right


def values(*each):
    return torch.tensor(each, dtype=torch.int32)


@honest(lambda: numbers(32), expect={0: numbers(32) * 8})
@triton.jit
def own_rows_in_place(x_ptr):
    i = tl.program_id(0) * 4 + tl.arange(0, 4)
    for _ in range(3):
        tl.store(x_ptr + i, tl.load(x_ptr + i) * 2)
        tl.debug_barrier()


@honest(lambda: ints(4 * P), expect={0: numbers(P).repeat(4)})
@triton.jit
def interleaved(x_ptr):
    p, i = tl.program_id(0), tl.arange(0, 4)
    tl.store(x_ptr + 8 * i + p, tl.load(x_ptr + 8 * i + p) + p + 1)


@honest(lambda: ints(P * 6), expect={0: torch.arange(6, dtype=torch.int32).repeat(P)})
@triton.jit
def rows_with_a_mask(y_ptr):
    p, i = tl.program_id(0), tl.arange(0, 8)
    tl.store(y_ptr + p * 6 + i, i, mask=i < 6)


@honest(lambda: ints(2), lambda: ints(P), expect={0: values(9, 9), 1: torch.full((P,), 18, dtype=torch.int32)})
@triton.jit
def all_write_one_value_and_read_it_back(x_ptr, y_ptr):
    tl.store(x_ptr + tl.arange(0, 2), 9)
    tl.debug_barrier()
    tl.store(y_ptr + tl.program_id(0), tl.sum(tl.load(x_ptr + tl.arange(0, 2))))


@honest(lambda: numbers(8 * P), lambda: ints(8 * P), expect={1: numbers(8 * P).view(P, 8).flip(1).reshape(-1)})
@triton.jit
def a_row_read_backwards_behind_a_barrier(x_ptr, y_ptr):
    row, i = tl.program_id(0) * 8, tl.arange(0, 8)
    tl.store(x_ptr + row + i, tl.load(x_ptr + row + i))
    tl.debug_barrier()
    tl.store(y_ptr + row + i, tl.load(x_ptr + row + 7 - i))


@honest(lambda: numbers(64), lambda: ints(64), expect={1: numbers(64) * 2 + 1}, grid=1)
@triton.jit
def two_passes_with_the_same_blocks(x_ptr, y_ptr):
    for start in range(0, 64, 16):
        i = start + tl.arange(0, 16)
        tl.store(y_ptr + i, tl.load(x_ptr + i) * 2)
    for start in range(0, 64, 16):
        i = start + tl.arange(0, 16)
        tl.store(y_ptr + i, tl.load(y_ptr + i) + 1)


@honest(lambda: numbers(64), lambda: ints(64), expect={1: numbers(64)}, grid=1)
@triton.jit
def zeros_from_the_same_threads_and_behind_a_barrier(x_ptr, y_ptr):
    i = tl.arange(0, 64)
    tl.store(y_ptr + i, tl.zeros([64], tl.int32))
    tl.store(y_ptr + i, tl.load(x_ptr + i) + 1)
    tl.debug_barrier()
    tl.store(y_ptr + 63 - i, tl.load(x_ptr + 63 - i))
    tl.store(y_ptr + i, tl.load(x_ptr + i))  # which is there


@honest(lambda: ints(P), lambda: ints(P), expect={0: numbers() * 3})
@triton.jit
def ping_pong_of_own_elements(a_ptr, b_ptr):
    p = tl.program_id(0)
    for _ in range(3):
        tl.store(b_ptr + p, tl.load(a_ptr + p) + p)
        tl.store(a_ptr + p, tl.load(b_ptr + p) + 1)


@honest(lambda: ints(11), expect={0: numbers(11) * 11 - 11}, grid=3)
@triton.jit
def a_persistent_loop(y_ptr):
    for i in range(tl.program_id(0), 11, tl.num_programs(0)):
        tl.store(y_ptr + i, i * 11)


@honest(lambda: numbers(64) % 5, lambda: ints(8), expect={1: values(12, 13, 13, 13, 13, 0, 0, 0)})
@triton.jit
def a_histogram(x_ptr, y_ptr):
    tl.atomic_add(y_ptr + tl.load(x_ptr + tl.program_id(0) * 8 + tl.arange(0, 8)), 1)


@honest(lambda: torch.ones(P, 16) / 3, lambda: torch.zeros(16), expect={1: torch.full((16,), P / 3)})
@triton.jit
def a_split_sum(x_ptr, y_ptr):
    i = tl.arange(0, 16)
    tl.atomic_add(y_ptr + i, tl.load(x_ptr + tl.program_id(0) * 16 + i))


@honest(lambda: ints(4), expect={0: values(7, -7, 255, 0)})
@triton.jit
def bounds_and_bits(y_ptr):
    p = tl.program_id(0)
    tl.atomic_max(y_ptr, p)
    tl.atomic_min(y_ptr + 1, -p, sem="relaxed")
    tl.atomic_or(y_ptr + 2, 1 << p)
    tl.atomic_xor(y_ptr + 3, p)


@honest(lambda: ints(P), expect={0: numbers()})
@triton.jit
def exchanges_of_own_elements(y_ptr):
    p = tl.program_id(0)
    tl.atomic_cas(y_ptr + p, tl.atomic_xchg(y_ptr + p, p), p + 1)
    tl.atomic_xchg(y_ptr + p, p + 1)


HONEST["the last reduces"] = (
    last_reduces,
    P,
    PARTS,
    {2: values(36)},
    {"LAST": P - 1, "SEM": "acq_rel", "SCOPE": "gpu"},
)
HONEST["the last of the machine reduces"] = (
    last_reduces,
    P,
    PARTS,
    {2: values(36)},
    {"LAST": P - 1, "SEM": "acq_rel", "SCOPE": "sys"},
)


@honest(lambda: ints(3, 4), lambda: ints(3), lambda: ints(3), grid=12, expect={2: values(10, 50, 90), 1: ints(3)})
@triton.jit
def the_last_of_each_tile_reduces(part_ptr, count_ptr, y_ptr):
    tile, split = tl.program_id(0) // 4, tl.program_id(0) % 4
    tl.store(part_ptr + tile * 4 + split, tile * 10 + split + 1)
    tl.debug_barrier()
    if tl.atomic_add(count_ptr + tile, 1) == 3:
        tl.store(y_ptr + tile, tl.sum(tl.load(part_ptr + tile * 4 + tl.arange(0, 4))))
        tl.store(count_ptr + tile, 0)


@honest(lambda: ints(4, 8), lambda: ints(1), lambda: ints(8), grid=4, expect={2: values(*range(0, 48, 6))})
@triton.jit
def the_last_reduces_in_turns(part_ptr, count_ptr, y_ptr):
    p, i = tl.program_id(0), tl.arange(0, 8)
    tl.store(part_ptr + p * 8 + i, p * i)
    tl.debug_barrier()
    if tl.atomic_add(count_ptr, 1) == 3:
        sums = tl.zeros([8], tl.int32)
        for n in range(3, -1, -1):
            sums += tl.load(part_ptr + n * 8 + i)
        tl.store(y_ptr + i, sums)


@honest(lambda: torch.zeros(4), lambda: ints(1), lambda: torch.zeros(4), expect={2: torch.full((4,), 36.0)})
@triton.jit
def the_last_reads_what_all_added(sum_ptr, count_ptr, y_ptr):
    i = tl.arange(0, 4)
    tl.atomic_add(sum_ptr + i, tl.program_id(0) + 1.0, sem="relaxed")
    tl.debug_barrier()
    if tl.atomic_add(count_ptr, 1) == 7:
        tl.store(y_ptr + i, tl.load(sum_ptr + i))
        tl.store(sum_ptr + i, tl.zeros([4], tl.float32))


@honest(*PARTS, expect={2: values(36)})
@triton.jit
def released_by_all_and_acquired_by_the_last(part_ptr, count_ptr, y_ptr):
    p = tl.program_id(0)
    tl.store(part_ptr + p, p + 1)
    if tl.atomic_add(count_ptr, 1, sem="release") == 7:
        tl.atomic_add(count_ptr, 0, sem="acquire")
        tl.store(y_ptr, tl.sum(tl.load(part_ptr + tl.arange(0, 8))))


@honest(lambda: numbers(), lambda: ints(1), lambda: ints(P), expect={0: numbers() * 2, 2: ints(P) + 36})
@triton.jit
def written_when_all_have_read(x_ptr, count_ptr, y_ptr):
    x = tl.load(x_ptr + tl.arange(0, 8))
    tl.store(y_ptr + tl.program_id(0), tl.sum(x))
    if tl.atomic_add(count_ptr, 1) == 7:
        tl.store(x_ptr + tl.arange(0, 8), x * 2)


@honest(lambda: ints(P), lambda: ints(P), lambda: ints(1), expect={2: values(36)})
@triton.jit
def up_a_tree(part_ptr, count_ptr, y_ptr):
    # of two neighbours the second goes on with what both found; the root knows the others by a chain alone
    p = tl.program_id(0)
    at, width, first = 0, 4, p // 2
    tl.store(part_ptr + p, p + 1)
    on = tl.atomic_add(count_ptr + first, 1) == 1
    for _ in range(2):
        if on:
            at += width
            width = width // 2
            first = first // 2
            on = tl.atomic_add(count_ptr + at + first, 1) == 1
    if on:
        tl.store(y_ptr, tl.sum(tl.load(part_ptr + tl.arange(0, 8))))


@honest(lambda: ints(1), lambda: ints(1), expect={0: ints(1), 1: values(36)})
@triton.jit
def a_spin_lock(lock_ptr, y_ptr):
    while tl.atomic_cas(lock_ptr, 0, 1) == 1:
        pass
    tl.store(y_ptr, tl.load(y_ptr) + tl.program_id(0) + 1)
    tl.debug_barrier()
    tl.atomic_xchg(lock_ptr, 0)


@honest(
    lambda: numbers(32), lambda: ints(4), lambda: ints(2, 4) - 1, expect={2: numbers(32).view(4, 2, 4).sum(0).int()}
)
@triton.jit
def the_locks_of_a_layer_norm(x_ptr, lock_ptr, y_ptr):
    # as in Triton's tutorial: two groups, each with a lock and a word that says whether somebody came before
    p, i = tl.program_id(0), tl.arange(0, 4)
    group = p % 2
    lock, count, y = lock_ptr + group, lock_ptr + 2 + group, y_ptr + group * 4 + i
    x = tl.load(x_ptr + p * 4 + i)
    while tl.atomic_cas(lock, 0, 1) == 1:
        pass
    if tl.load(count) == 0:
        tl.atomic_xchg(count, 1)
    else:
        x += tl.load(y)
    tl.store(y, x)
    tl.debug_barrier()
    tl.atomic_xchg(lock, 0)


@honest(lambda: ints(P), lambda: ints(P), expect={1: values(0, 1, 3, 6, 10, 15, 21, 28)})
@triton.jit
def waits_for_the_one_before(flag_ptr, y_ptr):
    p = tl.program_id(0)
    if p > 0:
        while tl.atomic_add(flag_ptr + p - 1, 0) == 0:
            pass
        tl.store(y_ptr + p, tl.load(y_ptr + p - 1) + p)
    tl.debug_barrier()
    tl.atomic_xchg(flag_ptr + p, 1)


@honest(lambda: ints(P), lambda: ints(P), lambda: ints(P), expect={2: numbers() * (numbers() + 1) // 2})
@triton.jit
def looks_back_at_all_before(flag_ptr, part_ptr, y_ptr):
    p = tl.program_id(0)
    tl.store(part_ptr + p, p + 1)
    tl.debug_barrier()
    if p > 0:
        while tl.atomic_cas(flag_ptr + p - 1, 1, 1, sem="acquire") == 0:
            pass
    i = tl.arange(0, 8)
    tl.store(y_ptr + p, tl.sum(tl.load(part_ptr + i, mask=i <= p, other=0)))
    tl.debug_barrier()
    tl.atomic_xchg(flag_ptr + p, 1, sem="release")


@honest(lambda: ints(4), lambda: ints(4), lambda: ints(3), grid=4, expect={2: values(10, 26, 42)})
@triton.jit
def stream_k(part_ptr, flag_ptr, y_ptr):
    # 12 steps of 3 tiles, 3 steps for each program; who ends a tile adds what the one before left of it
    p = tl.program_id(0)
    acc, tile = 0, p * 3 // 4
    for step in range(p * 3, p * 3 + 3):
        acc += step + 1
        if step % 4 == 3:
            if step - p * 3 < 3 and p * 3 % 4 != 0:
                while tl.atomic_add(flag_ptr + p - 1, 0) == 0:
                    pass
                acc += tl.load(part_ptr + p - 1)
            tl.store(y_ptr + tile, acc)
            acc, tile = 0, tile + 1
    tl.store(part_ptr + p, acc)
    tl.debug_barrier()
    tl.atomic_xchg(flag_ptr + p, 1)


@honest(lambda: ints(1), lambda: ints(11), expect={1: numbers(11) * 7}, grid=3)
@triton.jit
def tiles_by_ticket(count_ptr, y_ptr):
    tile = tl.atomic_add(count_ptr, 1)
    while tile < 11:
        tl.store(y_ptr + tile, (tile + 1) * 7)
        tile = tl.atomic_add(count_ptr, 1)


@honest(lambda: ints(1 << 23), lambda: ints(1), lambda: ints(1), expect={2: values(36)})
@triton.jit
def parts_far_apart(part_ptr, count_ptr, y_ptr):
    p = tl.program_id(0)
    tl.store(part_ptr + p * 1048576, p + 1)
    if tl.atomic_add(count_ptr, 1) == 7:
        tl.store(y_ptr, tl.sum(tl.load(part_ptr + tl.arange(0, 8) * 1048576)))


@honest(lambda: numbers(64), lambda: ints(1), lambda: ints(64), grid=1, expect={2: numbers(64) + 7})
@triton.jit
def a_number_that_all_wait_for(x_ptr, y_ptr, z_ptr):
    i = tl.arange(0, 64)
    tl.store(y_ptr, 7)
    tl.debug_barrier()
    tl.store(z_ptr + i, tl.load(x_ptr + i) + tl.load(y_ptr))


@honest(lambda: numbers(P), lambda: ints(P), expect={1: numbers() * 2 + 1})
@triton.jit
def a_number_that_its_thread_reads_back(x_ptr, y_ptr):
    p = tl.program_id(0)
    tl.store(y_ptr + p, tl.load(x_ptr + p) * 2)
    tl.store(y_ptr + p, tl.load(y_ptr + p) + 1)


@honest(lambda: numbers(256), grid=1, expect={0: numbers(256) * 8 + 4})
@triton.jit
def turns_of_a_loop_that_is_not_pipelined(x_ptr):
    i = tl.arange(0, 256)
    for turn in tl.range(0, 3, num_stages=1):
        tl.store(x_ptr + i, tl.load(x_ptr + i) * 2 + turn)


@honest(lambda: numbers(256), grid=1, expect={0: numbers(256) * 8 + 4})
@triton.jit
def turns_of_a_plain_loop(x_ptr):
    i = tl.arange(0, 256)
    for turn in range(3):
        tl.store(x_ptr + i, tl.load(x_ptr + i) * 2 + turn)


@honest(lambda: numbers(256), grid=1, expect={0: numbers(256) * 8 + 4})
@triton.jit
def turns_behind_barriers(x_ptr):
    i = tl.arange(0, 256)
    for turn in tl.range(0, 3, num_stages=3):
        tl.store(x_ptr + i, tl.load(x_ptr + i) * 2 + turn)
        tl.debug_barrier()


@honest(lambda: numbers(256), lambda: ints(256), grid=1, expect={1: numbers(256) * 2})
@triton.jit
def turns_of_which_each_has_places_of_its_own(x_ptr, y_ptr):
    for start in tl.range(0, 256, 64, num_stages=3):
        i = start + tl.arange(0, 64)
        tl.store(y_ptr + i, tl.load(x_ptr + i) * 2)


@pytest.mark.parametrize("name", HONEST)
def test_what_is_right_is_not_flagged_and_the_same_in_every_order(name):
    kernel, grid, arguments, expect, options = HONEST[name]
    for order in ("forward", "reversed", "shuffled"):
        given, _ = run(kernel, grid, arguments, options, order)
        for number, wanted in expect.items():
            torch.testing.assert_close(given[number], wanted, msg=lambda said, order=order: f"{order}: {said}")


def launches():
    """Return calls of the package's kernels by name."""
    torch.manual_seed(0)
    half = lambda *shape: torch.randn(shape).half()
    x, weight, scale = half(37, 96), half(96), 0.1
    cos, sin = torch.rand(2, 5, 8).unbind()
    q_rope, k_rope, c_kv = half(2, 5, 3, 16), half(2, 5, 16), half(2, 5, 32)
    decode = half(2, 1, 3, 32), half(2, 1, 3, 16), half(2, 70, 32), half(2, 70, 16)
    pages = half(10, 16, 32), half(10, 16, 16), torch.randperm(10).reshape(2, 5)
    lengths, starts = torch.tensor([70, 33]), torch.tensor([60, 9])
    parts = torch.randn(4, 2, 1, 3, 32), torch.randn(4, 2, 1, 3)
    updated = lambda: [page.clone() for page in pages[:2]]

    def update():
        mine = updated()
        kernels.paged_update(c_kv, k_rope, *mine, pages[2], starts=starts)
        return mine

    calls = {
        "rms_norm": lambda: kernels.rms_norm(x, weight),
        "rms_norm_rows": lambda: kernels.rms_norm_rows(x, weight),
        "apply_rope": lambda: kernels.apply_rope(q_rope, cos, sin),
        "apply_rope_qk": lambda: kernels.apply_rope_qk(q_rope, k_rope, cos, sin),
        "paged_update": update,
        "paged_gather": lambda: kernels.paged_gather(*pages, lengths=lengths),
        "attention_score": lambda: kernels.attention_score(*decode, scale=scale),
        "masked_softmax": lambda: kernels.masked_softmax(torch.sin(torch.arange(480.0)).reshape(2, 1, 3, 80)),
        "combine": lambda: kernels.combine(*parts),
    }
    for name in ("latent_attention", "latent_attention_tma"):
        call = getattr(kernels, name)
        calls[name] = functools.partial(call, *decode, scale=scale, seq_lens=lengths, num_splits=3)
        paged = getattr(kernels, f"paged_{name}")
        calls[f"paged_{name}"] = functools.partial(
            paged, *decode[:2], *pages, scale=scale, seq_lens=lengths, num_splits=3
        )
    return calls


@pytest.mark.parametrize("name", launches())
def test_the_packages_kernels_are_right_in_both_orders(name, monkeypatch):
    call, seen = launches()[name], []
    first = call()
    original = Kernel.launch

    def launch(self, *args, **options):
        seen.append(self.order_matters)
        original(self, *args, order="reversed", **options)

    monkeypatch.setattr(Kernel, "launch", launch)
    torch.testing.assert_close(call(), first, rtol=0, atol=0, equal_nan=True)
    assert seen and not any(seen)


# What depends on the order of programs


@by_chance(lambda: ints(1), lambda: ints(P))
@triton.jit
def a_ticket_is_the_result(count_ptr, y_ptr):
    tl.store(y_ptr + tl.program_id(0), tl.atomic_add(count_ptr, 1))


@by_chance(lambda: ints(1), lambda: ints(P))
@triton.jit
def looks_at_a_counter(count_ptr, y_ptr):
    tl.atomic_add(count_ptr, 1)
    tl.store(y_ptr + tl.program_id(0), tl.load(count_ptr, volatile=True))


@by_chance(lambda: ints(1), lambda: ints(P))
@triton.jit
def compacted_in_any_order(count_ptr, y_ptr):
    p = tl.program_id(0)
    if p % 3 != 1:
        tl.store(y_ptr + tl.atomic_add(count_ptr, 1), p)


@by_chance(lambda: ints(1))
@triton.jit
def the_last_to_exchange_wins(y_ptr):
    tl.atomic_xchg(y_ptr, tl.program_id(0) + 1)


@by_chance(lambda: ints(P), lambda: ints(16 * P))
@triton.jit
def tickets_of_the_elements_of_a_block(count_ptr, y_ptr):
    p, i = tl.program_id(0), tl.arange(0, 16)
    tl.store(y_ptr + p * 16 + i, tl.atomic_add(count_ptr + p + i * 0, 1))


@by_chance(lambda: ints(P))
@triton.jit
def the_last_of_a_block_wins(y_ptr):
    i = tl.arange(0, 16)
    tl.atomic_xchg(y_ptr + tl.program_id(0) + i * 0, i)


@triton.jit
def the_second(a, b):
    return b


@by_chance(lambda: ints(1))
@triton.jit
def the_last_of_what_is_nearly_the_same(y_ptr):
    last = tl.reduce(1000.0 + tl.arange(0, 16) / 16, 0, the_second)
    tl.store(y_ptr, ((last - 1000.0) * 16).to(tl.int32), mask=tl.program_id(0) == 0)


@by_chance(lambda: ints(1))
@triton.jit
def the_first_to_compare_wins(y_ptr):
    tl.atomic_cas(y_ptr, 0, tl.program_id(0) + 1)


@by_chance(lambda: ints(1), lambda: ints(1))
@triton.jit
def under_a_lock_but_in_any_order(lock_ptr, y_ptr):
    while tl.atomic_cas(lock_ptr, 0, 1) == 1:
        pass
    tl.store(y_ptr, tl.load(y_ptr) * 3 + tl.program_id(0))
    tl.debug_barrier()
    tl.atomic_xchg(lock_ptr, 0)


@racy(lambda: ints(1))
@triton.jit
def some_add_and_some_take_the_largest(y_ptr):
    p = tl.program_id(0)
    if p % 2 == 0:
        tl.atomic_add(y_ptr, p + 1)  # one
    else:
        tl.atomic_max(y_ptr, p + 1)  # two


@racy(lambda: ints(1), lambda: ints(1))
@triton.jit
def the_first_sets_and_the_others_add(count_ptr, y_ptr):
    p = tl.program_id(0)
    if tl.atomic_add(count_ptr, 1) == 0:
        tl.atomic_xchg(y_ptr, p + 1)  # one
    else:
        tl.atomic_add(y_ptr, p + 1)  # two


@honest(lambda: ints(2), lambda: ints(2), expect={1: values(36, 0)})
@triton.jit
def the_first_sets_and_the_others_wait_to_add(flag_ptr, y_ptr):
    p = tl.program_id(0)
    if tl.atomic_add(flag_ptr, 1) == 0:
        tl.atomic_xchg(y_ptr, p + 1)
        tl.atomic_xchg(flag_ptr + 1, 1)
    else:
        while tl.atomic_add(flag_ptr + 1, 0) == 0:
            pass
        tl.atomic_add(y_ptr, p + 1)


@honest(lambda: numbers() - 3.5, lambda: numbers(1) - 100, expect={1: values(4.5)})
@triton.jit
def largest_of_floats_of_both_signs(x_ptr, y_ptr):
    tl.atomic_max(y_ptr, tl.load(x_ptr + tl.program_id(0)))


@by_chance(lambda: numbers(), lambda: ints(1), lambda: ints(1))
@triton.jit
def the_first_three_are_summed(x_ptr, count_ptr, y_ptr):
    x = tl.load(x_ptr + tl.program_id(0))
    if tl.atomic_add(count_ptr, 1) < 3:
        tl.atomic_add(y_ptr, x)


@by_chance(lambda: numbers() * 7 % 5, lambda: ints(1), lambda: ints(1))
@triton.jit
def one_of_the_largest(x_ptr, best_ptr, y_ptr):
    p = tl.program_id(0)
    x = tl.load(x_ptr + p)
    if tl.atomic_max(best_ptr, x) < x:
        tl.atomic_xchg(y_ptr, p)


@pytest.mark.parametrize("name", CHANCE)
def test_what_depends_on_the_order_differs_when_it_is_reversed(name):
    kernel, grid, arguments, options = CHANCE[name]
    (first, launched), (second, _) = (run(kernel, grid, arguments, options, order) for order in ("forward", "reversed"))
    assert launched.order_matters
    assert not all(a.equal(b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("name", ["own_rows_in_place", "a_histogram", "a_split_sum"])
def test_where_order_does_not_matter_a_second_launch_is_not_asked_for(name):
    kernel, grid, arguments, _, options = HONEST[name]
    assert not run(kernel, grid, arguments, options)[1].order_matters


@triton.jit
def waits_for_nobody(flag_ptr):
    if tl.program_id(0) < 2:
        while tl.atomic_add(flag_ptr, 0) == 0:
            pass


def test_programs_that_wait_in_vain_in_every_order_are_named():
    with pytest.raises(emulator.EndlessLoop, match=r"program \((0|1), 0, 0\). It waits for another program"):
        run(waits_for_nobody, 4, [lambda: ints(1)], {}, "reversed")


def test_another_order_is_refused():
    with pytest.raises(
        ValueError, match="the order of programs is 'random', expected one of forward, reversed, shuffled"
    ):
        run(own_rows_in_place, 4, [lambda: ints(16)], {}, "random")


def by_vector_clocks(steps, programs):
    """Return the first step that races, by the definition; None if none does."""
    clocks = [[int(p == q) for q in range(programs + 1)] for p in range(programs + 1)]
    released, touched = {}, []
    for number, (kind, who, units, acquires, releases) in enumerate(steps):
        for p, unit in zip(who, units, strict=True):
            if acquires:
                clocks[p] = list(map(max, clocks[p], released.get(unit, clocks[p])))
            for q, earlier, where, clock in touched:
                if where == unit and p != q and earlier in races.RIVALS[kind] and clocks[p][q] < clock:
                    return number
            touched.append((p, kind, unit, clocks[p][p]))
            if releases:
                released[unit] = list(map(max, clocks[p], released.get(unit, clocks[p])))
                clocks[p][p] += 1
    return None


def by_shadow(steps, programs):
    """Return what `by_vector_clocks` does, as the emulator finds it; all writes differ."""
    region = Region("x", (16,), 0, 0, torch.zeros(16, dtype=torch.uint8))
    shadow = races.Shadow(programs, Memory({0: region}), {(1, frozenset([0]))}, True, warps=1)
    for number, (kind, who, units, acquires, releases) in enumerate(steps):
        who, units, time = torch.tensor(who), torch.tensor(units), shadow.order.now
        if acquires or releases:
            shadow.sync(region, units, who, acquires, releases)
        differs = (lambda count=len(who): torch.zeros(count, dtype=torch.bool)) if kind == races.WRITE else None
        if shadow.touch(kind, region, units, who, 0, differs, differs, time):
            return number
    return None


def test_random_accesses_race_where_vector_clocks_say_so():
    found = []
    for seed in range(80):
        draw = random.Random(seed)
        programs, steps = draw.randint(2, 5), []
        for _ in range(40):
            who = draw.sample(range(1, programs + 1), draw.choice([1, 1, 1, 2]))
            if draw.random() < 0.7:
                kind, acquires, releases = draw.choice([races.UPDATE, races.POLL]), *draw.choices([True, False], k=2)
                steps.append((kind, who, [draw.randrange(2)] * len(who), acquires, releases))
            else:
                kind = draw.choice([races.READ, races.READ, races.READ, races.WRITE])
                steps.append((kind, who, [draw.randrange(1, 12) for _ in who], False, False))
        found.append(by_vector_clocks(steps, programs))
        assert by_shadow(steps, programs) == found[-1], seed
    assert None in found and len({*found}) > 8
