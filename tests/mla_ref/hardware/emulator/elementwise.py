"""Cases of arithmetic, functions and casts, element by element."""

import functools
import itertools
import math

import numpy as np
import torch

from .table import ALL, FLOATS, FORMATS, FP8, INTEGERS, ROUGHLY, Case, edges, numbers, pairs, tensor, vectors

CASES: list[Case] = []


def add(*args, **more) -> None:
    CASES.append(vectors(*args, **more))


def each(function):
    """Return a function of arrays of a function of Python's numbers."""
    return np.frompyfunc(function, function.__code__.co_argcount, 1)


def bits_of(dtype):
    return torch.iinfo(dtype).bits


# Integers


def truncated(a, b):
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


def shifted_right(a, b):
    return a >> b if b < 200 else (-1 if a < 0 else 0)


PLAIN = {
    "add": ("a + b", lambda a, b: a + b),
    "sub": ("a - b", lambda a, b: a - b),
    "mul": ("a * b", lambda a, b: a * b),
    "and": ("a & b", lambda a, b: a & b),
    "or": ("a | b", lambda a, b: a | b),
    "xor": ("a ^ b", lambda a, b: a ^ b),
    "minimum": ("tl.minimum(a, b)", each(lambda a, b: min(a, b))),
    "maximum": ("tl.maximum(a, b)", each(lambda a, b: max(a, b))),
    "where": ("tl.where(a < b, a, b)", each(lambda a, b: a if a < b else b)),
    "negate": ("-a", lambda a, b: -a),
    "invert": ("~a", lambda a, b: ~a),
}
COMPARED = "(a < b).to(tl.int32) + (a <= b) * 2 + (a == b) * 4 + (a != b) * 8 + (a >= b) * 16 + (a > b) * 32"


def compared(a, b):
    ways = (a < b, a <= b, a == b, a != b, a >= b, a > b)
    return sum(np.asarray(way).astype(int) << n for n, way in enumerate(ways))


for name, dtype in INTEGERS.items():
    a, b = pairs(dtype)
    for op, (text, rule) in PLAIN.items():
        add(f"{op}-{name}", text, (a, b), dtype, rule)
    add(f"compare-{name}", COMPARED, (a, b), torch.int32, compared)
    fine = [(int(x), int(y)) for x, y in zip(a.numpy(), b.numpy(), strict=True)]
    fine = [(x, y) for x, y in fine if y and (x, y) != (torch.iinfo(dtype).min, -1)]
    fine = np.array((fine * 2)[:64], dtype=object)
    divided = tensor(fine[:, 0], dtype), tensor(fine[:, 1], dtype)
    add(f"floordiv-{name}", "a // b", divided, dtype, each(lambda a, b: truncated(a, b)))
    add(f"mod-{name}", "a % b", divided, dtype, each(lambda a, b: a - b * truncated(a, b)))
    small = tensor(abs(fine[:, 0]) % 50, dtype), tensor(abs(fine[:, 1]) % 9 + 1, dtype)
    add(f"cdiv-{name}", "tl.cdiv(a, b)", small, dtype, each(lambda a, b: -(-a // b)))
    width = bits_of(dtype)
    by = tensor([0, 1, 3, width - 1, width, width + 1, 2 * width - 1, 100] * 8, dtype)
    add(f"shl-{name}", "a << b", (a, by), dtype, each(lambda a, b: a << b))
    add(f"shr-{name}", "a >> b", (a, by), dtype, each(lambda a, b: shifted_right(a, b)))
    if width == 64:  # whose low 32 bits count
        by = tensor([1 << 32, (1 << 32) + 3, (1 << 40) + 1, (5 << 32) + 65] * 16, dtype)
        add(f"shl-far-{name}", "a << b", (a, by), dtype, lambda a, b: a << (b % (1 << 32)))
        add(f"shr-far-{name}", "a >> b", (a, by), dtype, lambda a, b: each(shifted_right)(a, b % (1 << 32)))
    if dtype.is_signed:
        add(f"abs-{name}", "tl.abs(a)", (a,), dtype, abs)
    if width >= 32:
        high = lambda a, b, size=1 << width: (a % size) * (b % size) // size
        add(f"umulhi-{name}", "tl.umulhi(a, b)", (a, b), dtype, high)
        c, d = numbers(dtype, 64, seed="c"), numbers(dtype, 64, seed="d")
        add(f"umulhi-random-{name}", "tl.umulhi(a, b)", (c, d), dtype, high)
    add(f"scalar-{name}", "a * 3 + 1 - (5 & a)", (a,), dtype, lambda a: a * 3 + 1 - (5 & a))

# Two types meet: the wider wins, and of equal width the unsigned
MIXED = [("int8", "int32"), ("int16", "uint8"), ("int32", "uint32"), ("int64", "uint32"), ("uint8", "int8")]
RESULTS = {"int8 int32": "int32", "int16 uint8": "int16", "int32 uint32": "uint32", "int64 uint32": "int64",
           "uint8 int8": "uint8"}  # fmt: skip
for one, two in MIXED:
    a, b = tensor(edges(INTEGERS[one]) * 8, INTEGERS[one]), tensor(np.repeat(edges(INTEGERS[two]), 8), INTEGERS[two])
    add(f"add-{one}-{two}", "a + b", (a, b), INTEGERS[RESULTS[f"{one} {two}"]], lambda a, b: a + b)

a, b = tensor([0, 0, 1, 1], torch.bool), tensor([0, 1, 0, 1], torch.bool)
for op, text, rule in [
    ("and", "a & b", np.logical_and),
    ("or", "a | b", np.logical_or),
    ("xor", "a ^ b", np.logical_xor),
    ("equal", "a == b", lambda a, b: a == b),
    ("not", "~a", lambda a, b: ~a),
    ("logical", "(a & ~b) | (b & ~a)", np.logical_xor),
]:
    add(f"{op}-bool", text, (a, b), torch.bool, rule)
add("greater-bool", "(a > b) | (b >= a) & a", (a, b), torch.bool, lambda a, b: (a > b) | (b >= a) & a)
add("multiply-bool-int32", "a * 7 + b", (a, b), torch.int32, lambda a, b: a.astype(int) * 7 + b)


# Floats


def larger_zero(way, a, b):
    return np.copysign(0.0, np.copysign(1, a) + np.copysign(1, b) + way)


for name, dtype in FLOATS.items():
    a, b = pairs(dtype)
    more = numbers(dtype, 64, seed="a"), numbers(dtype, 64, seed="b")
    for label, (x, y) in {"edges": (a, b), "random": more}.items():
        add(f"add-{name}-{label}", "a + b", (x, y), dtype, lambda a, b: a + b)
        add(f"sub-{name}-{label}", "a - b", (x, y), dtype, lambda a, b: a - b)
        add(f"mul-{name}-{label}", "a * b", (x, y), dtype, lambda a, b: a * b)
    add(f"div-{name}", "(a / b).to(out_ptr.dtype.element_ty)", more, dtype, np.divide, rtol=ROUGHLY[dtype])
    add(f"div-edges-{name}", "a / b", pairs(dtype, 4), dtype, np.divide, rtol=ROUGHLY[dtype])
    add(f"mod-{name}", "a % b", more, dtype, np.fmod, rtol=ROUGHLY[dtype], atol=ROUGHLY[dtype], gpu=False)
    one, two = tensor([0.0, -0.0, 0.0, -0.0] * 16, dtype), tensor([0.0, 0.0, -0.0, -0.0] * 16, dtype)
    for least, text in [(True, "tl.minimum(a, b)"), (True, "tl.min(tl.join(a, b), 1)"),
                        (False, "tl.maximum(a, b)"), (False, "tl.max(tl.join(a, b), 1)")]:  # fmt: skip
        add(f"zeros-{text}-{name}", text, (one, two), dtype, functools.partial(larger_zero, -1 if least else 1))
    add(f"compare-{name}", COMPARED, (a, b), torch.int32, compared)
    add(f"minimum-{name}", "tl.minimum(a, b)", (a, b), dtype, np.fmin, zeros=False)
    add(f"maximum-{name}", "tl.maximum(a, b)", (a, b), dtype, np.fmax, zeros=False)
    every = "propagate_nan=tl.PropagateNan.ALL"
    add(f"minimum-nan-{name}", f"tl.minimum(a, b, {every})", (a, b), dtype, np.minimum, zeros=False)
    add(f"maximum-nan-{name}", f"tl.maximum(a, b, {every})", (a, b), dtype, np.maximum, zeros=False)
    low, high = tensor([-1.5] * 64, dtype), tensor([2.0] * 64, dtype)
    add(f"clamp-{name}", "tl.clamp(a, b, c)", (a, low, high), dtype,
        lambda a, b, c: np.fmin(np.fmax(a, b), c), zeros=False)  # fmt: skip
    add(f"clamp-nan-{name}", f"tl.clamp(a, b, c, {every})", (a, low, high), dtype,
        lambda a, b, c: np.minimum(np.maximum(a, b), c), zeros=False)  # fmt: skip
    add(f"where-{name}", "tl.where(a > b, a, b)", (a, b), dtype, lambda a, b: np.where(a > b, a, b))
    add(f"where-scalar-{name}", "tl.where(a > b, a, 1.5)", (a, b), dtype, lambda a, b: np.where(a > b, a, 1.5))
    add(f"negate-{name}", "-a", (a,), dtype, np.negative, zeros=False)
    add(f"abs-{name}", "tl.abs(a)", (a,), dtype, np.abs)
    add(f"scalar-{name}", "a * 0.1", (a,), dtype,
        lambda a, dtype=dtype: a * tensor([0.1], dtype).double().numpy())  # fmt: skip
    c = numbers(dtype, 64, seed="c")
    fused = {torch.float64: 1e-15, torch.float32: 1e-7, torch.float16: 2**-11, torch.bfloat16: 2**-8}[dtype]
    add(f"fma-{name}", "tl.fma(a, b, c)", (*more, c), dtype, lambda a, b, c: a * b + c, rtol=fused, atol=fused)
    if dtype.itemsize < 4:
        continue
    roughly, spread = ROUGHLY[dtype], tensor([0.5, 1.5, -0.5, -2.0, 0.0, -0.0, 1e6 + 0.5, 3.0] * 2, dtype)
    add(f"floor-{name}", "tl.floor(a)", (spread,), dtype, np.floor)
    add(f"ceil-{name}", "tl.ceil(a)", (spread,), dtype, np.ceil)
    positive = tensor(np.abs(more[0].double().numpy()) + 1e-3, dtype)
    special = tensor([0.0, np.inf, -1.0, np.nan, 1.0, 4.0, 0.25, 1e30], dtype)
    for op, rule in {"sqrt": np.sqrt, "rsqrt": lambda a: 1 / np.sqrt(a), "log": np.log, "log2": np.log2}.items():
        add(f"{op}-{name}", f"tl.{op}(a)", (positive,), dtype, rule, rtol=roughly, atol=roughly)
        add(f"{op}-special-{name}", f"tl.{op}(a)", (special,), dtype, rule, rtol=roughly, atol=roughly)
    erf = np.vectorize(math.erf)
    for op, rule in {"exp": np.exp, "exp2": np.exp2, "sin": np.sin, "cos": np.cos, "erf": erf}.items():
        add(f"{op}-{name}", f"tl.{op}(a)", (more[0],), dtype, rule, rtol=roughly, atol=roughly)
    infinite = tensor([np.inf, -np.inf, np.nan, 0.0], dtype)
    add(f"exp-special-{name}", "tl.exp(a)", (infinite,), dtype, np.exp, rtol=roughly)
    add(f"exp2-special-{name}", "tl.exp2(a)", (infinite,), dtype, np.exp2, rtol=roughly)
    add(f"sigmoid-{name}", "tl.sigmoid(a)", (more[0],), dtype, lambda a: 1 / (1 + np.exp(-a)), rtol=roughly)
    add(
        f"softmax-{name}",
        "tl.softmax(a)",
        (more[0],),
        dtype,
        lambda a: np.exp(a - a.max()) / np.exp(a - a.max()).sum(),
        rtol=2e-5 if name == "float32" else 1e-12,
    )

single = numbers(torch.float32, 64, seed="x"), numbers(torch.float32, 64, seed="y")
add("div_rn-float32", "tl.div_rn(a, b)", single, torch.float32, np.divide)
add("div_rn-edges-float32", "tl.div_rn(a, b)", pairs(torch.float32), torch.float32, np.divide)
add("sqrt_rn-float32", "tl.sqrt_rn(tl.abs(a))", single[:1], torch.float32, lambda a: np.sqrt(np.abs(a)))
tiny = tensor([1e-40, -1e-40, 1e-45, 2e-38, 0.0, 1.0, -2e-39, 3e-39], torch.float32)
add("subnormal-add", "a + b", (tiny, tiny), torch.float32, lambda a, b: a + b)
add("subnormal-mul", "a * 0.5", (tiny,), torch.float32, lambda a: a * 0.5)
for op in ("sin", "erf"):
    add(f"subnormal-{op}", f"tl.{op}(a)", (tiny[[0, 1, 2, 7]],), torch.float32, np.zeros_like, zeros=False)
whole = tensor([255.0, 3.0, 41.0, 1.0, 2.0, 83.0, 512.0, 997.0], torch.float32)
add("quotient-of-itself", "a / b == 1", (whole, whole), torch.bool,
    lambda a, b: np.float32(1) / b.astype(np.float32) * a.astype(np.float32) == 1)  # fmt: skip
endless = (
    tensor([np.inf, -np.inf, 3.0, np.inf], torch.float32),
    tensor([np.inf, np.inf, -np.inf, -np.inf], torch.float32),
)
add("mod-infinite", "a % b", endless, torch.float32, lambda a, b: a)

# Casts

VALUES = {
    "int": [0, 1, 2, 3, 57, 100, 127, 33],
    "float": [0.0, -0.0, 0.5, 1.5, 2.5, -1.0, 99.99, 3.14159, -7.5, 100.0, 0.1, 1 / 3, 17.0, 12.0, 0.875, 64.0],
}


def fits(source, target):
    """Return values that both types hold nearly, and the edges if they are defined for both."""
    plain = {*INTEGERS.values(), torch.bool}
    if target in plain and source in plain:
        return [*edges(source), 5, 6, 7, 100, 101, 77, 2, 9]
    if source in plain:
        return [*edges(source), 5, 6, 7, 100, 101, 77, 2, 9]
    values = VALUES["float"]
    if target in INTEGERS.values():
        values = [*values[:11], -300.0, np.nan, np.inf, -np.inf, 60000.0]
    elif target in FLOATS.values() or target in FP8.values():
        values = [*values[:10], np.nan, np.inf, -np.inf, 60000.0, 1e-7, 500.0]
    return values


def cast(source, target):
    """Return the value of a cast before it is rounded: of a float that is too large, what PTX says of `cvt.rzi`."""

    def rule(x):
        if target == torch.bool:
            return x != 0
        if target not in INTEGERS.values() or x.dtype.kind != "f":
            return x
        bits = max(bits_of(target), 16)  # there is none to 8 bits
        low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if target.is_signed else (0, 2**bits - 1)
        nan = 2 ** (bits - 1) if source == torch.float64 or bits == 64 else 0
        cut = lambda v: nan if v != v else high if v >= high else low if v <= low else int(v)
        return np.array([cut(float(v)) for v in x], dtype=object)

    return rule


for (one, source), (two, target) in itertools.permutations(ALL.items(), 2):
    eight = {source, target} & set(FP8.values())
    if eight and {source, target} & {*INTEGERS.values(), torch.bool, torch.float64}:
        continue  # Triton refuses some of them
    x = tensor(fits(source, target), source)
    # Triton has no code for a GPU from one 8-bit type to the other, and its code from e5 to bfloat16 loses NaN
    gpu = len(eight) < 2 and (source, target) != (torch.float8_e5m2, torch.bfloat16)
    add(f"cast-{one}-{two}", f"a.to(tl.{two})", (x,), target, cast(source, target), gpu=gpu)

for name, dtype in {**FP8, "bfloat16": torch.bfloat16, "float16": torch.float16}.items():
    digits, least, _ = FORMATS[dtype]
    ties = 1 + (np.arange(32) / 2 + 0.25 * (np.arange(32) % 3 - 1) * 2**-6) * 2.0 ** (1 - digits)
    add(f"ties-to-even-{name}", f"a.to(tl.{name})", (tensor(ties, torch.float32),), dtype, lambda a: a)
    low = np.arange(32) / 4 * 2.0 ** (least + 1 - digits)
    add(f"subnormal-cast-{name}", f"a.to(tl.{name})", (tensor(low, torch.float32),), dtype, lambda a: a)
    if dtype in (torch.float16, torch.bfloat16):
        above = np.array(
            [
                1 + 2.0**-digits + 2.0**-40,
                1 + 2.0**-digits,
                1 + 3 * 2.0**-digits - 2.0**-40,
                -1 - 2.0**-digits - 2.0**-45,
            ]
        )
        add(f"once-rounded-{name}", f"a.to(tl.{name})", (tensor(above, torch.float64),), dtype, lambda a: a)
add("toward-zero-bfloat16", "a.to(tl.bfloat16, fp_downcast_rounding='rtz')", (numbers(torch.float32, 64),),
    torch.bfloat16, lambda a: (a.astype(np.float32).view(np.int32) & -65536).view(np.float32))  # fmt: skip

add("toward-zero-infinite", "a.to(tl.float8e5, fp_downcast_rounding='rtz').to(tl.float32)",
    (tensor([np.inf, -np.inf, 1.0, 0.0], torch.float32),), torch.float32, lambda a: a)  # fmt: skip
for name in ("int32", "int64", "uint64"):  # by way of float32 the first would become the even neighbour
    near = tensor([(1 << 30) + (1 << 22) + 1, (1 << 30) + (1 << 22), (1 << 30) + 3 * (1 << 22) - 1, 255], ALL[name])
    add(f"once-rounded-{name}-bfloat16", "a.to(tl.bfloat16)", (near,), torch.bfloat16, lambda a: a)

for one, two in [("int32", "float32"), ("int16", "float16"), ("uint16", "bfloat16"), ("int64", "float64"),
                 ("int8", "float8e5"), ("uint8", "float8e4nv"), ("int32", "uint32")]:  # fmt: skip
    source, target = ALL[one], ALL[two]
    given = tensor([0, 1, 2, 3, 60, 61, 62, 63], source)
    add(f"bitcast-{one}-{two}", f"a.to(tl.{two}, bitcast=True)", (given,), target,
        lambda a, given=given, target=target: given.view(target).double().numpy()
        if target.is_floating_point else given.numpy())  # fmt: skip
    back = numbers(target, 16, seed="back")
    add(f"bitcast-{two}-{one}", f"a.to(tl.{one}, bitcast=True)", (back,), source,
        lambda a, back=back, source=source: back.view(source).numpy())  # fmt: skip
