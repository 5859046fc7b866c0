"""Triton's interpreter, as this project corrects it.

The environment holds one version of Triton. For another one, put it in front of the environment's:

    .venv/bin/python -m pip install --no-deps --target /tmp/triton-3.6.0 triton==3.6.0
    PYTHONPATH=/tmp/triton-3.6.0 .venv/bin/python -m pytest tests/mla_ref -k "interpreter or kernels"

Checked so: 3.6.0, with NumPy 2.3.5 and with 2.4.6, 3.7.1, 3.8.0 and 3.9.0.
"""

import doctest
import importlib
import os
import subprocess
import sys
import traceback
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

import mla_ref
from mla_ref.hardware import interpreter

triton = pytest.importorskip("triton", reason="kernels need Triton")
tl = pytest.importorskip("triton.language")

ROOT = Path(mla_ref.__file__).parent.parent
interpreted = pytest.mark.skipif(not interpreter.active(), reason="kernels are compiled on this machine")
VERSION = tuple(map(int, triton.__version__.split(".")[:2]))
N = 64


@triton.jit
def convert(x_ptr, out_ptr):
    i = tl.arange(0, 64)
    tl.store(out_ptr + i, tl.load(x_ptr + i).to(out_ptr.dtype.element_ty))


@triton.jit
def dot(a_ptr, b_ptr, out_ptr):
    i = tl.arange(0, 16)[:, None] * 16 + tl.arange(0, 16)[None, :]
    total = tl.full([16, 16], 1.0, tl.float32)
    tl.store(out_ptr + i, tl.dot(tl.load(a_ptr + i), tl.load(b_ptr + i), total))


@triton.jit
def combine(a_ptr, b_ptr, out_ptr, OPERATION: tl.constexpr):
    i = tl.arange(0, 64)
    a, b = tl.load(a_ptr + i), tl.load(b_ptr + i)
    if OPERATION == "add":
        c = a + b
    elif OPERATION == "subtract":
        c = a - b
    elif OPERATION == "multiply":
        c = a * b
    elif OPERATION == "divide":
        c = a / b
    elif OPERATION == "negate":
        c = -a
    elif OPERATION == "halve":
        c = a * 0.5
    elif OPERATION == "greater":
        c = tl.where(a > b, a, b)
    elif OPERATION == "maximum":
        c = tl.maximum(a, b)
    elif OPERATION == "absolute":
        c = tl.abs(a)
    elif OPERATION == "one and a half":
        c = tl.full([64], 1.5, tl.bfloat16)
    elif OPERATION == "cumulative sum":
        c = tl.cumsum(a, 0)
    tl.store(out_ptr + i, c.to(tl.bfloat16))


@triton.jit
def total(x_ptr, out_ptr):
    i = tl.arange(0, 64)
    tl.store(out_ptr, tl.sum(tl.load(x_ptr + i)).to(tl.bfloat16))


@triton.jit
def count(n, out_ptr):
    steps = 0
    for _ in range(tl.program_id(0), n, tl.num_programs(0)):
        steps += 1
    if n > 3:
        steps += 100
    tl.store(out_ptr + tl.program_id(0), steps)


@triton.jit
def visit(rows_ptr, n, out_ptr, N: tl.constexpr, FORM: tl.constexpr):
    if FORM == "range":
        for row in range(tl.program_id(0), n, tl.num_programs(0)):
            tl.static_assert(row.dtype == tl.int32)
            tl.store(out_ptr + row.to(tl.int64) * N, row)
    elif FORM == "tl.range":
        for row in tl.range(0, tl.load(rows_ptr), step=2, num_stages=2):
            tl.static_assert(row.dtype == tl.int64)  # as its bound
            tl.store(out_ptr + row * N, row)
    elif FORM == "constant bounds":
        for row in range(N, 0, -1):
            tl.store(out_ptr + row.to(tl.int64) * N, row)
    elif FORM == "nested":
        for row in range(n):
            for column in tl.range(row + 1):
                if column == row:
                    tl.store(out_ptr + (row * N + column).to(tl.int64), (row - column).to(tl.int64) + n)
    elif FORM == "static":
        for width in tl.static_range(N):
            tl.store(out_ptr + tl.arange(0, 2**width), width)


@triton.jit
def bound(x_ptr, low_ptr, high_ptr, out_ptr, FORM: tl.constexpr):
    i = tl.arange(0, 64)
    x, low, high = tl.load(x_ptr + i), tl.load(low_ptr + i), tl.load(high_ptr + i)
    if FORM == "maximum":
        y = tl.maximum(x, low)
    elif FORM == "minimum":
        y = tl.minimum(x, high)
    elif FORM == "clamp":
        y = tl.clamp(x, low, high)
    elif FORM == "NaN stays":
        y = tl.maximum(x, low, propagate_nan=tl.PropagateNan.ALL)
    elif FORM == "NaN stays, clamp":
        y = tl.clamp(x, low, high, propagate_nan=tl.PropagateNan.ALL)
    tl.store(out_ptr + i, y)


@triton.jit
def read(x_ptr, i, n):
    return tl.load(x_ptr + i, mask=i < n)


@triton.jit
def gather(x_ptr, out_ptr, first, stride, n):
    i = tl.arange(0, 64)
    x = read(x_ptr, (first + i) * stride, (first + n) * stride)
    tl.store(out_ptr + i, x, mask=i < n)


@triton.jit
def copy_tile(x_ptr, out_ptr, stride):
    i, j = tl.arange(0, 8), tl.arange(0, 16)
    tile = tl.load(x_ptr + i[:, None] * stride + tl.trans(j[:, None]))
    tl.store(out_ptr + i[:, None] * 16 + j[None, :], tile)


@triton.jit
def update(out_ptr, first, n, OPERATION: tl.constexpr):
    i = first + tl.arange(0, 64)
    if OPERATION == "add":
        tl.atomic_add(out_ptr + i, i, mask=i < n)
    elif OPERATION == "max":
        tl.atomic_max(out_ptr + i, i, mask=i < n)
    elif OPERATION == "exchange":
        tl.atomic_xchg(out_ptr + i, i, mask=i < n)
    elif OPERATION == "compare":
        tl.atomic_cas(out_ptr + i, i * 0, i)
    elif OPERATION == "one":
        tl.atomic_add(out_ptr + first, 1)


@triton.jit
def add_all(pair, out_ptr):
    i = tl.arange(0, 64)
    tl.store(out_ptr + i, tl.load(pair[0] + i) + tl.load(pair[1] + i))


@triton.jit
def walk(x_ptr, out_ptr, steps):
    total = 0.0
    for _ in range(steps):
        total += tl.load(x_ptr)
        x_ptr += 1
    tl.store(out_ptr, total)


@triton.jit
def choose(a_ptr, b_ptr, out_ptr, first):
    i = tl.arange(0, 64)
    tl.store(out_ptr + i, tl.load(tl.where(i < 32, a_ptr, b_ptr) + first + i))


@triton.jit
def follow(table_ptr, out_ptr):
    i = tl.arange(0, 64)
    tl.store(out_ptr + i, tl.load(tl.load(table_ptr).to(tl.pointer_type(tl.float32)) + i))


@triton.jit
def copy_descriptor(x, out_ptr, row):
    i, j = tl.arange(0, 8), tl.arange(0, 16)
    tl.store(out_ptr + i[:, None] * 16 + j[None, :], x.load([row, 0]))


@triton.jit
def store_descriptor(out_ptr, rows, row):
    out = tl.make_tensor_descriptor(out_ptr, [rows, 16], [16, 1], [8, 16])
    out.store([row, 0], tl.full([8, 16], 1.0, tl.float32))


@triton.jit
def copy_block(x_ptr, out_ptr, first):
    x = tl.make_block_ptr(x_ptr, (60,), (1,), (first,), (64,), (0,))
    tl.store(out_ptr + tl.arange(0, 64), tl.load(x, boundary_check=(0,) if first == 0 else ()))


def bfloat16(*shape):
    return torch.randn(shape).bfloat16()


@interpreted
def test_dot_of_bfloat16():
    a, b, out = bfloat16(16, 16), bfloat16(16, 16), torch.full((16, 16), float("nan"))
    dot[(1,)](a, b, out)
    torch.testing.assert_close(out.double(), a.double() @ b.double() + 1, rtol=1e-6, atol=1e-6)
    dot[(1,)](a.half(), b.half(), out)
    torch.testing.assert_close(out.double(), a.half().double() @ b.half().double() + 1, rtol=1e-6, atol=1e-6)


@interpreted
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64, torch.int32])
def test_conversions_round_to_nearest_even(dtype):
    x = torch.cat((torch.tensor([float("inf"), 0.0, 257.0, 259.0, -257.0]), torch.randn(N - 5) * 1000))
    if dtype == torch.int32:
        x[0] = 7
    x, narrow, wide = x.to(dtype), bfloat16(N), torch.zeros(N, dtype=dtype)
    convert[(1,)](x, narrow)
    assert narrow.equal(x.bfloat16())
    narrow[0] = 1.0
    convert[(1,)](narrow, wide)
    assert wide.equal(narrow.to(dtype))


@interpreted
def test_not_a_number_and_the_largest_numbers_survive():
    x = torch.tensor([float("nan"), -float("nan"), -float("inf"), 3.4e38, 1e-45, -0.0] + [1.0] * (N - 6))
    narrow = bfloat16(N)
    convert[(1,)](x, narrow)
    torch.testing.assert_close(narrow, x.bfloat16(), rtol=0, atol=0, equal_nan=True)


@interpreted
@pytest.mark.parametrize(
    ("operation", "expected"),
    [
        ("add", torch.add),
        ("subtract", torch.subtract),
        ("multiply", torch.multiply),
        ("divide", torch.divide),
        ("negate", lambda a, b: -a),
        ("halve", lambda a, b: a * 0.5),
        ("greater", torch.maximum),
        ("maximum", torch.maximum),
        ("absolute", lambda a, b: a.abs()),
        ("one and a half", lambda a, b: torch.full_like(a, 1.5)),
    ],
)
def test_arithmetic_on_bfloat16(operation, expected):
    a, b, out = bfloat16(N), bfloat16(N), bfloat16(N)
    combine[(1,)](a, b, out, operation)
    assert out.equal(expected(a, b))


@interpreted
def test_sums_of_bfloat16():
    a, out = bfloat16(N), bfloat16(N)
    combine[(1,)](a, a, out, "cumulative sum")
    torch.testing.assert_close(out.float(), a.float().cumsum(0), rtol=2**-8, atol=1e-6)
    total[(1,)](a, out)
    torch.testing.assert_close(out[0].float(), a.float().sum(), rtol=2**-8, atol=1e-6)


@interpreted
def test_loops_and_branches_on_values_known_at_run_time():
    out = torch.zeros(3, dtype=torch.int32)
    count[(3,)](7, out)
    assert out.tolist() == [103, 102, 102]


@interpreted
@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ("range", {0: 0, 4: 1, 8: 2}),
        ("tl.range", {0: 0, 8: 2, 16: 4}),
        ("constant bounds", {4: 1, 8: 2, 12: 3, 16: 4}),
        ("nested", {0: 3, 5: 3, 10: 3}),
        ("static", {0: 3, 1: 3, 2: 3, 3: 3, 4: 3, 5: 3, 6: 3, 7: 3}),
    ],
)
def test_the_variable_of_a_loop_is_a_tensor(form, expected):
    out = torch.full((N,), -1, dtype=torch.int64)
    visit[(2,) if form == "range" else (1,)](torch.tensor([5]), 3, out, 4, form)
    assert {i: int(out[i]) for i in range(N) if out[i] >= 0} == expected


@interpreted
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ("maximum", lambda x, low, high: torch.fmax(x, low)),
        ("minimum", lambda x, low, high: torch.fmin(x, high)),
        ("clamp", lambda x, low, high: torch.fmin(torch.fmax(x, low), high)),
        ("NaN stays", lambda x, low, high: torch.maximum(x, low)),
        ("NaN stays, clamp", lambda x, low, high: torch.clamp(x, low, high)),
    ],
)
def test_a_maximum_of_nan_and_a_number_is_the_number(form, expected, dtype):
    x, low, high, out = torch.randn(N), torch.full((N,), -0.5), torch.full((N,), 0.5), torch.zeros(N)
    x[::5] = float("nan")
    x, low, high, out = (each.to(dtype) for each in (x, low, high, out))
    bound[(1,)](x, low, high, out, form)
    torch.testing.assert_close(out, expected(x, low, high), rtol=0, atol=0, equal_nan=True)


@triton.jit
def masked(x_ptr, given_ptr, out_ptr):
    i = tl.arange(0, 16)
    tl.store(out_ptr + i, tl.load(x_ptr + i, mask=i < 9))
    tl.store(given_ptr + i, tl.load(x_ptr + i, mask=i < 9, other=0))


@interpreted
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int32])
def test_masked_places_without_another_value_show(dtype):
    x, given, out = torch.arange(9).to(dtype), torch.ones(16, dtype=dtype), torch.ones(16, dtype=dtype)
    masked[(1,)](x, given, out)
    assert torch.equal(given, torch.cat([x, torch.zeros(7, dtype=dtype)]))
    assert torch.equal(out[:9], x)
    assert (out[9:] == 0).all() if dtype == torch.int32 else out[9:].isnan().all()


def refused(kernel, *args):
    with pytest.raises(interpreter.OutOfBounds) as caught:
        kernel[(1,)](*args)
    message, hint = str(caught.value).rsplit(": ", 1)
    assert hint == "is the mask missing, or an offset wrong?"
    lines = [frame.line for frame in traceback.extract_tb(caught.value.__traceback__)]
    return message, lines


@interpreted
@pytest.mark.parametrize("dtype", [torch.bool, torch.int8, torch.bfloat16, torch.float32, torch.float64])
def test_store_past_the_end(dtype):
    x, out = torch.ones(N, dtype=dtype), torch.zeros(3, 20, dtype=dtype)
    message, lines = refused(convert, x, out)
    assert message == "convert writes element 60 of out_ptr, which holds 60 (shape 3x20)"
    assert lines[-1] == "tl.store(out_ptr + i, tl.load(x_ptr + i).to(out_ptr.dtype.element_ty))"
    assert not out.any()


@interpreted
@pytest.mark.parametrize("dtype", [torch.int8, torch.bfloat16, torch.float32])
def test_load_past_the_end_and_before_the_beginning(dtype):
    x, out = torch.ones(60, dtype=dtype), torch.zeros(N, dtype=dtype)
    assert refused(convert, x, out)[0] == "convert reads element 60 of x_ptr, which holds 60 (shape 60)"
    message, lines = refused(gather, x, out, -1, 1, N)
    assert message == "gather reads element -1 of x_ptr, which holds 60 (shape 60)"
    assert lines[-2:] == [
        "x = read(x_ptr, (first + i) * stride, (first + n) * stride)",
        "return tl.load(x_ptr + i, mask=i < n)",
    ]
    message, _ = refused(gather, x, out, 1, 1, 60)
    assert message == "gather reads element 60 of x_ptr, which holds 60 (shape 60)"
    assert not out.any()


@interpreted
def test_masked_elements_may_lie_anywhere():
    x, out = torch.randn(60), torch.zeros(60)
    gather[(1,)](x, out, 0, 1, 60)
    assert out.equal(x)
    gather[(1,)](x, out, 0, 2**20, 1)
    gather[(1,)](x, out, 2**20, 1, 0)
    gather[(1,)](x[:0], out[:0], 0, 1, 0)
    assert out.equal(x)


@interpreted
def test_views_reach_their_whole_storage():
    base, out = torch.randn(N, 3), torch.zeros(N)
    gather[(1,)](base[:, 1], out, 0, 3, N)
    assert out.equal(base[:, 1])
    gather[(1,)](base[40:, 0], out, -40, 3, N)
    assert out.equal(base[:, 0])
    message, _ = refused(gather, base[1:, 1], out, 0, 3, N)
    assert message == "gather reads element 189 of x_ptr, which holds 188 (shape 63)"
    rows, tile = torch.randn(8, 24), torch.zeros(8, 16)
    copy_tile[(1,)](rows[:, 8:], tile, 24)
    assert tile.equal(rows[:, 8:])
    message, _ = refused(copy_tile, rows[:, 8:], tile, 25)
    assert message == "copy_tile reads element 184 of x_ptr, which holds 184 (shape 8x16)"


@interpreted
def test_empty_tensors_have_no_elements():
    x, out = torch.randn(N), torch.zeros(N)
    message, _ = refused(gather, x[5:5], out, 0, 1, N)
    assert message == "gather reads element 0 of x_ptr, which holds 0 (shape 0)"
    message, _ = refused(gather, torch.empty(3, 0), out, -2, 1, N)
    assert message == "gather reads element -2 of x_ptr, which holds 0 (shape 3x0)"


@interpreted
def test_another_tensor_of_the_launch_is_no_refuge():
    x, out = torch.zeros(2, N), torch.zeros(N)
    offset = (out.data_ptr() - x.data_ptr()) // 4
    assert refused(gather, x, out, offset, 1, N)[0] == (
        f"gather reads element {offset} of x_ptr, which holds 128 (shape 2x64)"
    )


@interpreted
@pytest.mark.parametrize("operation", ["add", "max", "exchange", "compare", "one"])
def test_atomics(operation):
    expected = torch.zeros(N, dtype=torch.int32) if operation == "one" else torch.arange(N, dtype=torch.int32)
    out = torch.zeros(N, dtype=torch.int32)
    update[(1,)](out, 0, N, operation)
    expected[0] = operation == "one"
    assert out.equal(expected)
    first = N if operation == "one" else 1
    message, _ = refused(update, out, first, 2 * N, operation)
    assert message == "update updates element 64 of out_ptr, which holds 64 (shape 64)"
    if operation in ("add", "max", "exchange"):
        update[(1,)](out, 1, N, operation)


@interpreted
def test_pointers_in_tuples_loops_and_descriptors():
    x, out = torch.ones(N), torch.zeros(N)
    add_all[(1,)]((x, x), out)
    assert out.eq(2).all()
    message, _ = refused(add_all, (x, x[1:]), out)
    assert message == "add_all reads element 63 of pair[1], which holds 63 (shape 63)"

    walk[(1,)](x, out, N)
    assert out[0] == N
    assert refused(walk, x, out, N + 1)[0] == "walk reads element 64 of x_ptr, which holds 64 (shape 64)"

    descriptor = importlib.import_module("triton.tools.tensor_descriptor").TensorDescriptor
    rows, tile = torch.randn(12, 16), torch.zeros(8, 16)
    copy_descriptor[(1,)](descriptor(rows, [12, 16], [16, 1], [8, 16]), tile, 8)
    assert tile.equal(torch.cat((rows[8:], torch.zeros(4, 16))))
    message, _ = refused(copy_descriptor, descriptor(rows, [13, 16], [16, 1], [8, 16]), tile, 8)
    assert message == "copy_descriptor reads element 192 of x, which holds 192 (shape 12x16)"
    store_descriptor[(1,)](rows, 12, 8)
    assert rows[8:].eq(1).all()
    message, _ = refused(store_descriptor, rows, 13, 8)
    assert message == "store_descriptor writes element 192 of out_ptr, which holds 192 (shape 12x16)"


@interpreted
@pytest.mark.skipif(VERSION >= (3, 9), reason="Triton 3.9 removed block pointers")
@pytest.mark.filterwarnings("ignore:tl.make_block_ptr is deprecated")
def test_block_pointers():
    x, out = torch.randn(60), torch.zeros(N)
    copy_block[(1,)](x, out, 0)
    assert out[:60].equal(x)
    message, _ = refused(copy_block, x, out, 1)
    assert message == "copy_block reads element 60 of x_ptr, which holds 60 (shape 60)"


@interpreted
def test_pointers_of_unknown_origin_reach_every_tensor_of_the_launch():
    a, b, out = torch.randn(N), torch.randn(N), torch.zeros(N)
    choose[(1,)](a, b, out, 0)
    assert out.equal(torch.cat((a[:32], b[32:])))
    message, _ = refused(choose, a, b[:33], out, N)
    assert message.startswith("choose reads an address that belongs to no argument; the nearest is element ")
    message, _ = refused(follow, torch.tensor([8]), out)
    assert message.startswith("follow reads an address that belongs to no argument; the nearest is element ")
    follow[(1,)](torch.tensor([out.data_ptr()]), out)


@interpreted
def test_tensors_passed_with_another_dtype():
    x, out = torch.randn(60).bfloat16(), torch.zeros(N)
    message, _ = refused(convert, triton.reinterpret(x.view(torch.int16), tl.bfloat16), out)
    assert message == "convert reads element 60 of x_ptr, which holds 60 (shape 60)"


@interpreted
def test_launches_go_on_after_an_error():
    x, out = torch.randn(N), torch.zeros(N)
    refused(convert, x[1:], out)
    with pytest.raises(triton.runtime.errors.InterpreterError):
        count[(1,)](None, out)
    convert[(1,)](x, out)
    assert out.equal(x)


@interpreted
def test_errors_while_launches_are_recorded():
    code = """
import sys, torch
sys.path.insert(0, "tests/mla_ref/hardware")
from autograder.kernels.worker.recording import recording
from test_interpreter import convert, interpreter
x, out = torch.ones(64), torch.zeros(64)
for _ in "recorder first", "corrections first":
    with recording({"x": x, "out": out}, execute=True) as recorder:
        interpreter.prepare()
        try:
            convert[(1,)](x, out)
            convert[(1,)](x, out[1:])
        except interpreter.OutOfBounds as error:
            print(str(error).split()[5], out.sum().item(), sum(event["kind"] == "launch" for event in recorder.events))
"""
    assert python(code, TRITON_INTERPRET="1") == ["out_ptr,", "64.0", "2"] * 2


@interpreted
@pytest.mark.parametrize("module", ["rms_norm", "rope"])
def test_examples_of_kernels_hold(module):
    result = doctest.testmod(importlib.import_module(f"mla_ref.kernels.{module}"))
    assert result.attempted and not result.failed


def python(code, **environment):
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", **environment}
    environment = {name: value for name, value in environment.items() if value is not None}
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_without_a_gpu_kernels_are_interpreted_here_and_in_child_processes():
    code = """
import sys
from mla_ref.hardware import interpreter
assert "triton" not in sys.modules and not interpreter.active()
print(interpreter.prepare(), interpreter.prepare(), interpreter.active())
import os, triton
print(os.environ["TRITON_INTERPRET"], triton.knobs.runtime.interpret)
"""
    assert python(code, TRITON_INTERPRET=None) == ["True", "True", "True", "1", "True"]


@triton.jit
def largest(x):
    return tl.max(x, 0)


@triton.jit
def branch(x_ptr, out_ptr, BLOCK: tl.constexpr):
    x = tl.load(x_ptr + tl.arange(0, BLOCK))
    if x > 0:
        tl.store(out_ptr, largest(x))
    else:
        tl.store(out_ptr, -largest(x))


@interpreted
def test_a_branch_on_a_block_is_refused_and_on_one_number_taken():
    out = torch.empty(1)
    with pytest.raises(Exception, match=r"a block of \[4\] is neither true nor false: choose by element"):
        branch[(1,)](torch.tensor([-1.0, 1.0, 2.0, 3.0]), out, BLOCK=4)
    for x in (2.0, -2.0):
        branch[(1,)](torch.tensor([x]), out, BLOCK=1)
        assert out.item() == 2.0


@interpreted
@pytest.mark.parametrize(("block", "ends"), [(1, nullcontext()), (4, pytest.raises(Exception, match="neither true"))])
def test_the_language_is_its_own_again_after_a_launch_and_after_one_that_fails(block, ends):
    with ends:
        branch[(1,)](torch.ones(4), torch.empty(1), BLOCK=block)
    with pytest.raises(ValueError, match=r"Did you forget to add @triton\.jit"):
        tl.arange(0, 4)


@interpreted
def test_many_launches_in_one_context():
    out = torch.empty(1)
    with interpreter.patched():
        for x in (1.0, 2.0):
            branch[(1,)](torch.tensor([x]), out, BLOCK=1)
            assert out.item() == x
    with pytest.raises(ValueError, match=r"Did you forget to add @triton\.jit"):
        tl.arange(0, 4)


@interpreted
@pytest.mark.parametrize("context", [nullcontext, interpreter.patched])
def test_a_function_of_kernels_is_refused_outside_of_them(context):
    with context(), pytest.raises(RuntimeError, match=r"largest is called outside of a kernel: launch it with a grid"):
        largest(torch.ones(4))


def test_importing_the_kernels_is_enough():
    code = "import mla_ref.kernels; print(mla_ref.hardware.interpreter.active())"
    assert python(code, TRITON_INTERPRET=None) == ["True"]


def test_the_variable_decides():
    code = "from mla_ref.hardware import interpreter; print(interpreter.prepare())"
    assert python(code, TRITON_INTERPRET="0") == ["False"]
    assert python(code, TRITON_INTERPRET="1") == ["True"]


def test_tensors_on_the_cpu_are_refused_where_kernels_are_compiled():
    code = """
import torch, mla_ref.kernels
try:
    mla_ref.kernels.rms_norm(torch.ones(2, 8), torch.ones(8))
except ValueError as error:
    assert "x is on cpu, expected a GPU" in str(error), error
    print("refused")
"""
    assert python(code, TRITON_INTERPRET="0") == ["refused"]


def test_too_late_is_said():
    code = """
{first}
from mla_ref.hardware import interpreter
try:
    interpreter.prepare()
except RuntimeError as error:
    assert "set TRITON_INTERPRET=1 before Python starts" in str(error), error
    print("too late")
"""
    assert python(code.format(first="import triton"), TRITON_INTERPRET=None) == ["too", "late"]
    first = "import os, triton; os.environ['TRITON_INTERPRET'] = '1'"
    assert python(code.format(first=first), TRITON_INTERPRET=None) == ["too", "late"]


def test_without_triton_the_rest_works():
    code = """
import sys
sys.modules["triton"] = None
from mla_ref import rms_norm
from mla_ref.hardware import interpreter
assert not interpreter.active()
try:
    import mla_ref.kernels
except ImportError as error:
    assert "pip install triton" in str(error), error
    print("no kernels")
"""
    assert python(code, TRITON_INTERPRET=None) == ["no", "kernels"]
