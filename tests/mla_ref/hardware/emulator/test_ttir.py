"""The parser reads what MLIR writes: strings, constants, places."""

import inspect
import math

import pytest
import torch

from mla_ref.hardware import emulator

pytest.importorskip("triton", reason="kernels need Triton")

import triton
import triton.language as tl

from mla_ref.hardware.emulator.backend import compile_kernel
from mla_ref.hardware.emulator.ttir import parse, parse_constant, parse_type

AWKWARD = 'a "b" (c) {d} [e] <f>, g: %x -> loc("h":1:2) ) {'


@triton.jit
def speaks(x_ptr, n):
    x = tl.load(x_ptr)
    tl.device_assert(x > n, 'a "b" (c) {d} [e] <f>, g: %x -> loc("h":1:2) ) {')
    tl.device_print('a "b" (c) {d} [e] <f>, g: %x -> loc("h":1:2) ) {', x, n)


@triton.jit
def inner(x_ptr):
    return tl.load(x_ptr)  # the load


@triton.jit
def middle(x_ptr):
    return inner(x_ptr) + 1  # the addition


@triton.jit
def outer(x_ptr, y_ptr):
    tl.store(
        y_ptr,  # a call of many lines
        middle(x_ptr),
    )


def compiled(kernel, signature, **options):
    return compile_kernel(kernel, signature, {}, {}, options)


def ops(kernel, name):
    return [op for op in kernel.module.ops if op.name == name]


def place(kernel, text):
    lines, first = inspect.getsourcelines(kernel.fn)
    return first + next(n for n, line in enumerate(lines) if text in line)


def test_strings_keep_brackets_quotes_and_commas():
    kernel = compiled(speaks, {"x_ptr": "*i32", "n": "i32"}, debug=True)
    (check,), (show,) = ops(kernel, "tt.assert"), ops(kernel, "tt.print")
    assert check.attrs["message"] == AWKWARD
    assert show.attrs["prefix"].strip().rstrip(":") == AWKWARD
    assert len(show.operands) == 2
    assert check.line == place(speaks, "device_assert")


def test_an_operation_lies_in_the_innermost_function():
    kernel = compiled(outer, {"x_ptr": "*i32", "y_ptr": "*i32"})
    (load,), (add,), (store,) = (ops(kernel, name) for name in ("tt.load", "arith.addi", "tt.store"))
    assert load.place[:2] == (__file__, place(inner, "# the load"))
    assert add.line == place(middle, "# the addition")
    assert place(outer, "tl.store(") <= store.line <= place(outer, "# a call of many lines") + 2


def test_accesses_know_their_parameters():
    kernel = compiled(outer, {"x_ptr": "*i32", "y_ptr": "*i32"})
    assert [op.roots for name in ("tt.load", "tt.store") for op in ops(kernel, name)] == [{0}, {1}]
    assert [name for name, _ in kernel.module.main.blocks[0].args] == ["%x_ptr", "%y_ptr"]


@pytest.mark.parametrize(
    ("text", "element", "value"),
    [
        ("dense<-5> : tensor<4xi32>", "i32", -5),
        ("-7 : i8", "i8", -7),
        ("dense<true> : tensor<4xi1>", "i1", True),
        ("false", "i1", False),
        ("1.500000e+00 : f32", "f32", 1.5),
        ("dense<-1.250000e-03> : tensor<8xf16>", "f16", -1.25e-3),
        ("0xFF800000 : f32", "f32", -math.inf),
        ("dense<0x7F80> : tensor<2xbf16>", "bf16", math.inf),
        ("0xFC00 : f16", "f16", -math.inf),
        ("0x7FF0000000000000 : f64", "f64", math.inf),
        ("dense<[1, -2, 3]> : tensor<3xi64>", "i64", [1, -2, 3]),
        ("dense<[[1.0, 0x7F800000], [2.0, -3.5]]> : tensor<2x2xf32>", "f32", [1.0, math.inf, 2.0, -3.5]),
        (3, "i32", 3),
    ],
)
def test_constants(text, element, value):
    assert parse_constant(text, element) == value


@pytest.mark.parametrize(
    ("text", "element"),
    [
        ("0x7FC00000 : f32", "f32"),
        ("dense<0xFE00> : tensor<4xf16>", "f16"),
        ("0x7FC0 : bf16", "bf16"),
        ("0xFFF8000000000000 : f64", "f64"),
    ],
)
def test_not_a_number(text, element):
    assert math.isnan(parse_constant(text, element))


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("i32", ((), "i32", None)),
        ("tensor<16x64xbf16>", ((16, 64), "bf16", None)),
        ("!tt.ptr<f32>", ((), "i64", "f32")),
        ("tensor<8x!tt.ptr<f8E4M3FN>>", ((8,), "i64", "f8E4M3FN")),
        ("!tt.ptr<!tt.ptr<f32>>", ((), "i64", "!tt.ptr<f32>")),
    ],
)
def test_types(text, parts):
    kind = parse_type(text)
    assert (kind.shape, kind.element, kind.pointee) == parts


def test_what_is_no_ttir_is_refused():
    with pytest.raises(SyntaxError, match="a line of TTIR that is not known: nonsense"):
        parse('"builtin.module"() ({\n  nonsense\n}) : () -> ()\n')


@triton.jit
def constants(y_ptr):
    tl.store(y_ptr, float("nan"))
    tl.store(y_ptr + 1, float("-inf"))
    tl.store(y_ptr + 2, -0.375)
    tl.store(y_ptr + 3, 1e-45)
    tl.store(y_ptr + 4, -16777217)
    tl.store(y_ptr + 5, 3.4028234663852886e38)


@triton.jit
def integers(y_ptr):
    tl.store(y_ptr, -9223372036854775808)
    tl.store(y_ptr + 1, 0xFFFFFFFF)
    tl.store(y_ptr + 2, -1)
    tl.store(y_ptr + 3, 9223372036854775807)


@pytest.mark.skipif(emulator.interpreted(), reason="the emulator is not in use under TRITON_INTERPRET=1")
def test_constants_of_a_kernel_arrive():
    with emulator.emulating():
        y, z = torch.ones(6), torch.ones(4, dtype=torch.int64)
        constants[(1,)](y)
        integers[(1,)](z)
    assert y[0].isnan() and y[1] == -math.inf and y[2] == -0.375
    assert y[3:].tolist() == [2**-149, -16777216.0, torch.finfo(torch.float32).max]
    assert z.tolist() == [-(2**63), 2**32 - 1, -1, 2**63 - 1]


@triton.jit
def large(y_ptr):
    i = tl.arange(0, 4)
    tl.store(y_ptr + i, tl.full([4], 2**64 - 1, tl.uint64))
    tl.store(y_ptr + 4 + i, tl.full([4], -1.5, tl.float16).to(tl.float32).to(tl.int64).to(tl.uint64))


@pytest.mark.skipif(emulator.interpreted(), reason="the emulator is not in use under TRITON_INTERPRET=1")
def test_the_largest_unsigned_constant_arrives():
    with emulator.emulating():
        y = torch.zeros(8, dtype=torch.uint64)
        large[(1,)](y)
    assert y.view(torch.int64).tolist() == [-1] * 8
