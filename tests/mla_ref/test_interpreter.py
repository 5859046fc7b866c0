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
from pathlib import Path

import pytest
import torch

import mla_ref
from mla_ref import interpreter

triton = pytest.importorskip("triton", reason="kernels need Triton")
tl = pytest.importorskip("triton.language")

ROOT = Path(mla_ref.__file__).parent.parent
interpreted = pytest.mark.skipif(not interpreter.active(), reason="kernels are compiled on this machine")
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
from mla_ref import interpreter
assert "triton" not in sys.modules and not interpreter.active()
print(interpreter.prepare(), interpreter.prepare(), interpreter.active())
import os, triton
print(os.environ["TRITON_INTERPRET"], triton.knobs.runtime.interpret)
"""
    assert python(code, TRITON_INTERPRET=None) == ["True", "True", "True", "1", "True"]


def test_importing_the_kernels_is_enough():
    code = "import mla_ref.kernels; print(mla_ref.interpreter.active())"
    assert python(code, TRITON_INTERPRET=None) == ["True"]


def test_the_variable_decides():
    code = "from mla_ref import interpreter; print(interpreter.prepare())"
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
from mla_ref import interpreter
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
from mla_ref import interpreter, rms_norm
assert not interpreter.active()
try:
    import mla_ref.kernels
except ImportError as error:
    assert "pip install triton" in str(error), error
    print("no kernels")
"""
    assert python(code, TRITON_INTERPRET=None) == ["no", "kernels"]
