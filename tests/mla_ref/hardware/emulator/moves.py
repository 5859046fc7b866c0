"""Cases of blocks: how they change shape, are reduced, scanned, sorted and multiplied, two programs each."""

import numpy as np
import torch

from .table import FLOATS, FORMS, FP8, INTEGERS, ROUGHLY, Case, blocks, numbers, tensor

CASES: list[Case] = []
F16, BF16, F32, F64 = FLOATS.values()
I8, I16, I32, I64 = list(INTEGERS.values())[:4]
HELPERS = """
@triton.jit
def larger(a, b):
    return tl.where(a > b, a, b)

@triton.jit
def total(a, b):
    return a + b

@triton.jit
def mean_and_spread(m, s, n, o):
    return m + n, s * o

@triton.jit
def chain(a, b, c, d):
    return a * c, b * c + d

@triton.jit
def first(a, b):
    return a

@triton.jit
def bounded(a, b):
    return tl.minimum(a + b, 100)

@triton.jit
def steps(a, b):
    n = 0
    while a > 5:
        a = a // 3
        n += b
    if n == 0:
        n = 77
    return n, a

@triton.jit
def larger_of(a, b):
    if a > b:
        return a
    else:
        return b

"""


def add(name, lines, inputs, outs, oracle, forms=("loaded",), **more) -> None:
    """Note a case for each form of the inputs; without a shape of its own, an output has that of the first input."""
    outs = (outs,) if isinstance(outs[1], torch.dtype) else outs
    for form in forms:
        label = name if form == "loaded" else f"{name}-{form}"
        CASES.append(blocks(label, lines, inputs, outs, oracle, form, helpers=HELPERS, **more))


def given(dtype, *shape, seed="", span=4.0):
    return (numbers(dtype, 2, *shape, seed=seed, span=span),)


# Shapes

for dtype in (I32, F16, torch.bool, torch.float8_e5m2):
    kind = str(dtype)[6:]
    x = given(dtype, 4, 8)
    add(f"trans-{kind}", "y = tl.trans(a)", x, ((8, 4), dtype), np.transpose, FORMS)
    add(f"reshape-{kind}", "y = tl.reshape(a, (2, 16))", x, ((2, 16), dtype), lambda a: a.reshape(2, 16), FORMS)
    pair = x + given(dtype, 4, 8, seed="b")
    add(f"join-{kind}", "y = tl.join(a, b)", pair, ((4, 8, 2), dtype), lambda a, b: np.stack([a, b], -1), FORMS)
x, cube, line = given(I32, 4, 8), given(I32, 2, 4, 8), given(I32, 16)
pair, lines_ = x + given(I32, 4, 8, seed="b"), line + given(I32, 16, seed="b")
add("ravel", "y = tl.ravel(a)", cube, ((64,), I32), np.ravel, FORMS)
add("view", "y = tl.sort(a.view(32))", x, ((32,), I32), lambda a: np.sort(a.ravel()), FORMS[:2])
add("reshape-3d", "y = a.reshape(2, 2, 8)", x, ((2, 2, 8), I32), lambda a: a.reshape(2, 2, 8), FORMS)
for order in [(2, 1, 0), (1, 0, 2), (0, 2, 1), (1, 2, 0)]:
    shape = tuple((2, 4, 8)[n] for n in order)
    add(f"permute-{''.join(map(str, order))}", f"y = tl.permute(a, {order})", cube, (shape, I32),
        lambda a, order=order: a.transpose(order), FORMS)  # fmt: skip
add(
    "expand-first",
    "y = a[None, :] + tl.zeros([4, 16], tl.int32)",
    line,
    ((4, 16), I32),
    lambda a: np.tile(a, (4, 1)),
    FORMS[:2],
)
add(
    "expand-last",
    "y = a[:, None] + tl.zeros([16, 4], tl.int32)",
    line,
    ((16, 4), I32),
    lambda a: np.tile(a, (4, 1)).T,
    FORMS[:2],
)
add(
    "expand-dims",
    "y = tl.expand_dims(a, 1) + tl.zeros([16, 2], tl.int32)",
    line,
    ((16, 2), I32),
    lambda a: np.tile(a, (2, 1)).T,
)
add(
    "outer",
    "y = a[:, None] * b[None, :]",
    lines_,
    ((16, 16), I32),
    lambda a, b: np.multiply.outer(a.astype(object), b),
    FORMS[:2],
)
add(
    "broadcast",
    "u, v = tl.broadcast(a[:, None], b[None, :])\ny = u - v",
    lines_,
    ((16, 16), I32),
    lambda a, b: np.subtract.outer(a.astype(object), b),
)
add("broadcast-to", "y = tl.broadcast_to(a[:, None], (16, 4))", line, ((16, 4), I32), lambda a: np.tile(a, (4, 1)).T)
add("split", "y0, y1 = tl.split(a)", given(I32, 4, 4, 2), (((4, 4), I32),) * 2, lambda a: (a[..., 0], a[..., 1]), FORMS)
add(
    "split-vector",
    "y0, y1 = tl.split(a.reshape(8, 2))",
    line,
    (((8,), I32),) * 2,
    lambda a: (a[::2], a[1::2]),
    FORMS[:3],
)
add(
    "join-scalars",
    "y = tl.join(tl.sum(a), tl.max(a))",
    line,
    ((2,), I32),
    lambda a: np.array([sum(map(int, a)), a.max()], dtype=object),
    FORMS[:2],
)
add(
    "cat",
    "y = tl.sort(tl.cat(a, b, can_reorder=True))",
    lines_,
    ((32,), I32),
    lambda a, b: np.sort(np.concatenate([a, b])),
    FORMS[:2],
)
add(
    "interleave",
    "y = tl.interleave(a, b)",
    pair,
    ((4, 16), I32),
    lambda a, b: np.stack([a, b], -1).reshape(4, 16),
    FORMS,
)
add("flip", "y = tl.flip(a, 1)", pair[:1], ((4, 8), I32), lambda a: a[:, ::-1], FORMS)
add("flip-0", "y = tl.flip(a, 0)", pair[:1], ((4, 8), I32), lambda a: a[::-1], FORMS)
add("gather-1", "y = tl.gather(a, b & 7, 1)", pair, ((4, 8), I32), lambda a, b: np.take_along_axis(a, b & 7, 1), FORMS)
add("gather-0", "y = tl.gather(a, b & 3, 0)", pair, ((4, 8), I32), lambda a, b: np.take_along_axis(a, b & 3, 0), FORMS)
add(
    "gather-mixed",
    "y = tl.gather(a, tl.arange(0, 16) ^ 5, 0)",
    line,
    ((16,), I32),
    lambda a: a[np.arange(16) ^ 5],
    FORMS[:2],
)
add(
    "histogram",
    "y = tl.histogram(a & 7, 8)",
    given(I32, 64),
    ((8,), I32),
    lambda a: np.bincount(a & 7, minlength=8),
    FORMS[:2],
)
add(
    "histogram-masked",
    "y = tl.histogram(a & 7, 8, mask=a > 0)",
    given(I32, 64),
    ((8,), I32),
    lambda a: np.bincount((a & 7)[a > 0], minlength=8),
    FORMS[:2],
)
add(
    "swizzle",
    "u, v = tl.swizzle2d(tl.arange(0, 4)[:, None], tl.arange(0, 4)[None, :], 4, 4, 2)\ny = u * 4 + v + a * 0",
    given(I32, 4, 4),
    ((4, 4), I32),
    lambda a: np.array([[0, 4, 1, 5], [2, 6, 3, 7], [8, 12, 9, 13], [10, 14, 11, 15]]),
)
add(
    "where-rows",
    "y = tl.where((tl.arange(0, 4) < 2)[:, None], a, b)",
    pair,
    ((4, 8), I32),
    lambda a, b: np.concatenate([a[:2], b[2:]]),
    FORMS,
)
add(
    "scalar-block",
    "y = tl.load(a_ptr + p * 16 + 3) + tl.full([4], 2, tl.int32)",
    line,
    ((4,), I32),
    lambda a: np.full(4, int(a[3]) + 2, dtype=object),
)

# Reductions

for dtype in (F16, BF16, F32, F64):
    kind, one, two = str(dtype)[6:], given(dtype, 16), given(dtype, 4, 8)
    close = dict(rtol=ROUGHLY[dtype] * 4, atol=ROUGHLY[dtype] * 16)
    add(f"sum-{kind}", "y = tl.sum(a)", one, ((), dtype), np.sum, FORMS[:2], **close)
    for axis in (0, 1):
        shape = (8,) if axis == 0 else (4,)
        add(
            f"sum-{axis}-{kind}",
            f"y = tl.sum(a, {axis})",
            two,
            (shape, dtype),
            lambda a, axis=axis: a.sum(axis),
            FORMS,
            **close,
        )
        add(
            f"max-{axis}-{kind}", f"y = tl.max(a, {axis})", two, (shape, dtype), lambda a, axis=axis: a.max(axis), FORMS
        )
        add(
            f"argmin-{axis}-{kind}",
            f"y = tl.argmin(a, {axis})",
            two,
            (shape, I32),
            lambda a, axis=axis: a.argmin(axis),
            FORMS,
        )
    nan = tensor([[np.nan, 1, 3, np.nan, -2, np.inf, 0, 5], [np.nan] * 7 + [2]], dtype)
    add(f"max-nan-{kind}", "y = tl.max(a)", (nan,), ((), dtype), np.nanmax)
    add(f"min-nan-{kind}", "y = tl.min(a)", (nan,), ((), dtype), np.nanmin)
    ties = tensor([[1, 3, 3, 0, 0, 3, 1, 0], [7] * 8], dtype)
    for op, rule in {"argmax": np.argmax, "argmin": np.argmin}.items():
        add(f"{op}-ties-{kind}", f"y = tl.{op}(a, 0)", (ties,), ((), I32), rule)
    add(f"max-indices-{kind}", "y0, y1 = tl.max(a, 1, return_indices=True)", two, (((4,), dtype), ((4,), I32)),
        lambda a: (a.max(1), a.argmax(1)), FORMS)  # fmt: skip
    add(f"cumsum-{kind}", "y = tl.cumsum(a, 1)", two, ((4, 8), dtype), lambda a: a.cumsum(1), FORMS, **close)
    add(f"sort-{kind}", "y = tl.sort(a)", two, ((4, 8), dtype), lambda a: np.sort(a, 1), FORMS)
    add(f"reduce-{kind}", "y = tl.reduce(a, 1, larger)", two, ((4,), dtype), lambda a: a.max(1), FORMS)
allnan = tensor([[np.nan] * 8] * 2, F32)
add("max-all-nan", "y = tl.max(a)", (allnan,), ((), F32), lambda a: np.nan)
add("min-all-nan", "y = tl.min(a)", (allnan,), ((), F32), lambda a: np.nan)

for name, dtype in INTEGERS.items():
    one, two, wide = given(dtype, 16), given(dtype, 4, 8), dtype.itemsize >= 4
    result = dtype if wide else I32 if dtype.is_signed else torch.uint32
    objects = lambda a: a.astype(object)
    add(f"sum-{name}", "y = tl.sum(a, 1)", two, ((4,), result), lambda a: a.astype(object).sum(1), FORMS)
    add(f"max-{name}", "y = tl.max(a, 1)", two, ((4,), result), lambda a: a.max(1), FORMS[:3])
    add(f"min-{name}", "y = tl.min(a, 0)", two, ((8,), result), lambda a: a.min(0), FORMS[:3])
    add(f"argmax-{name}", "y = tl.argmax(a, 1)", two, ((4,), I32), lambda a: a.argmax(1), FORMS[:2])
    add(f"xor_sum-{name}", "y = tl.xor_sum(a, 1)", two, ((4,), dtype), lambda a: np.bitwise_xor.reduce(a, 1), FORMS)
    add(f"reduce_or-{name}", "y = tl.reduce_or(a & b, 1)", two + given(dtype, 4, 8, seed="o"), ((4,), dtype),
        lambda a, b: np.bitwise_or.reduce(a & b, 1), FORMS[:2])  # fmt: skip
    add(f"cumsum-{name}", "y = tl.cumsum(a, 1)", two, ((4, 8), result), lambda a: a.astype(object).cumsum(1), FORMS[:3])
    add(
        f"cumprod-{name}",
        "y = tl.cumprod(a, 0)",
        two,
        ((4, 8), dtype),
        lambda a: np.multiply.accumulate(a.astype(object), 0),
        FORMS[:3],
    )
    add(f"sort-{name}", "y = tl.sort(a)", one, ((16,), dtype), np.sort, FORMS[:2])
    add(
        f"sort-descending-{name}",
        "y = tl.sort(a, descending=True)",
        two,
        ((4, 8), dtype),
        lambda a: np.sort(a, 1)[:, ::-1],
        FORMS,
    )
    add(f"topk-{name}", "y = tl.topk(a, 4)", two, ((4, 4), dtype), lambda a: np.sort(a, 1)[:, :-5:-1], FORMS[:2])
x, y = given(I32, 4, 8), given(F32, 4, 8)
add(
    "sum-keep",
    "y = tl.sum(a, 1, keep_dims=True) + a * 0",
    x,
    ((4, 8), I32),
    lambda a: np.tile(a.astype(object).sum(1)[:, None], 8),
    FORMS,
)
add("max-keep-none", "y = tl.max(a, keep_dims=True) + a * 0", x, ((4, 8), I32), lambda a: np.full((4, 8), a.max()))
add("sum-dtype", "y = tl.sum(a, 1, dtype=tl.int64)", x, ((4,), I64), lambda a: a.astype(object).sum(1), FORMS)
add("sum-bool", "y = tl.sum((a > 0).to(tl.int32), 1)", x, ((4,), I32), lambda a: (a > 0).sum(1), FORMS)
add("sum-bool-i1", "y = tl.sum(a > 0, 1)", x, ((4,), I32), lambda a: (a > 0).sum(1), FORMS)
add("max-bool", "y = tl.max(a > 0, 1)", x, ((4,), I32), lambda a: (a > 0).any(1), FORMS)
add("any-bool", "y = tl.reduce_or(a > 0, 1)", x, ((4,), torch.bool), lambda a: (a > 0).any(1), FORMS)
add("odd-bool", "y = tl.xor_sum(a > 0, 1)", x, ((4,), torch.bool), lambda a: (a > 0).sum(1) % 2, FORMS)
add("sum-3d-1", "y = tl.sum(a, 1)", given(I32, 2, 4, 8), ((2, 8), I32), lambda a: a.astype(object).sum(1), FORMS)
add("sum-negative-axis", "y = tl.sum(a, -1)", x, ((4,), I32), lambda a: a.astype(object).sum(1))
add("sum-one", "y = tl.sum(a, 0)", given(I32, 1, 8), ((8,), I32), lambda a: a[0])
add(
    "reduce-pair",
    "y0, y1 = tl.reduce((a, b), 1, mean_and_spread)",
    x + given(I32, 4, 8, seed="b"),
    (((4,), I32), ((4,), I32)),
    lambda a, b: (a.astype(object).sum(1), b.astype(object).prod(1)),
    FORMS,
)
add(
    "reduce-pair-mixed",
    "y0, y1 = tl.reduce((a, tl.broadcast_to(tl.arange(0, 8)[None, :], (4, 8))), 1, mean_and_spread)",
    x,
    (((4,), I32), ((4,), I32)),
    lambda a: (a.astype(object).sum(1), np.zeros(4)),
    FORMS,
)


def chained(a, b):
    """Scan of affine maps, one after the other, along the last axis."""
    one, two = a.astype(object).copy(), b.astype(object).copy()
    for n in range(1, a.shape[1]):
        one[:, n], two[:, n] = one[:, n - 1] * a[:, n], two[:, n - 1] * a[:, n] + b[:, n]
    return one, two


def backwards(rule):
    return lambda *args: tuple(x[:, ::-1] for x in rule(*(a[:, ::-1] for a in args)))


pair = x + given(I32, 4, 8, seed="b")
for label, text, rule in [("", "", chained), ("-reverse", ", reverse=True", backwards(chained))]:
    add(
        f"scan-pair{label}",
        f"y0, y1 = tl.associative_scan((a, b), 1, chain{text})",
        pair,
        (((4, 8), I32),) * 2,
        rule,
        FORMS,
    )
add("scan-max", "y = tl.associative_scan(a, 1, larger)", y, ((4, 8), F32), lambda a: np.maximum.accumulate(a, 1), FORMS)
add(
    "scan-axis-0",
    "y = tl.associative_scan(a, 0, larger)",
    y,
    ((4, 8), F32),
    lambda a: np.maximum.accumulate(a, 0),
    FORMS,
)
add("scan-first", "y = tl.associative_scan(a, 1, first)", y, ((4, 8), F32), lambda a: np.tile(a[:, :1], 8), FORMS)
add(
    "cumsum-reverse",
    "y = tl.cumsum(a, 1, reverse=True)",
    x,
    ((4, 8), I32),
    lambda a: a.astype(object)[:, ::-1].cumsum(1)[:, ::-1],
    FORMS,
)
add(
    "cumprod-reverse",
    "y = tl.cumprod(a, 0, reverse=True)",
    x,
    ((4, 8), I32),
    lambda a: np.multiply.accumulate(a.astype(object)[::-1], 0)[::-1],
    FORMS,
)
add(
    "cumprod-float",
    "y = tl.cumprod(a, 1)",
    y,
    ((4, 8), F32),
    lambda a: np.multiply.accumulate(a, 1),
    rtol=1e-5,
    atol=1e-6,
)
add("cumsum-bool", "y = tl.cumsum(a > 0, 1)", x, ((4, 8), I32), lambda a: (a > 0).cumsum(1), FORMS)
add(
    "softmax-rows",
    "y = tl.softmax(a, 1, keep_dims=True)",
    y,
    ((4, 8), F32),
    lambda a: np.exp(a) / np.exp(a).sum(1, keepdims=True),
    FORMS,
    rtol=1e-5,
)
few = (tensor(np.arange(64).reshape(2, 4, 8) % 23, I32),)
add("reduce-constant", "y = tl.reduce(a, 1, bounded)", few, ((4,), I32), lambda a: np.minimum(a.sum(1), 100), FORMS)
add(
    "scan-constant",
    "y = tl.associative_scan(a, 1, bounded)",
    few,
    ((4, 8), I32),
    lambda a: np.minimum(a.cumsum(1), 100),
    FORMS,
)
add("assume", "tl.assume(p < 2)\ny = tl.multiple_of(a, (1, 1)) + 1", few, ((4, 8), I32), lambda a: a + 1)


def stepped(a, b):
    out = []
    for x, y in zip(a.reshape(-1), b.reshape(-1), strict=True):
        n = 0
        while x > 5:
            x, n = x // 3, n + y
        out.append((n or 77, x))
    return tuple(np.array(out).reshape(4, 8, 2).transpose(2, 0, 1))


add(
    "map-loops",
    "y0, y1 = tl.map_elementwise(steps, a, b)",
    (*few, few[0].flip(2) + 1),
    (((4, 8), I32),) * 2,
    stepped,
    FORMS,
)
add("map", "y = tl.map_elementwise(larger_of, a, b)", pair, ((4, 8), I32), np.maximum, FORMS[:2])

# Products

for kind, dtype in {**{name: FLOATS[name] for name in ("float16", "bfloat16", "float32")}, **FP8, "int8": I8}.items():
    out = I32 if dtype == I8 else F32
    a, b = given(dtype, 16, 32, seed="a", span=2), given(dtype, 32, 16, seed="b", span=2)
    exact = (lambda a: a.astype(object)) if dtype == I8 else (lambda a: a)
    close = {} if dtype == I8 else dict(rtol=1e-5, atol=1e-4 if dtype not in FP8.values() else 2e-2)
    precision = ', input_precision="ieee"' if dtype == F32 else ""
    into = ", out_dtype=tl.int32" if dtype == I8 else ""
    add(
        f"dot-{kind}",
        f"y = tl.dot(a, b{precision}{into})",
        a + b,
        ((16, 16), out),
        lambda a, b, exact=exact: exact(a) @ exact(b),
        FORMS,
        **close,
    )
    c = given(out, 16, 16, seed="c")
    add(f"dot-acc-{kind}", f"y = tl.dot(a, b, c{precision}{into})", a + b + c, ((16, 16), out),
        lambda a, b, c, exact=exact: exact(a) @ exact(b) + exact(c), FORMS, **close)  # fmt: skip
cut = lambda a: (a.astype(np.float32, order="C").view(np.int32) & ~0x1FFF).view(np.float32)
single = given(F32, 16, 32, seed="a") + given(F32, 32, 16, seed="b")
add("dot-tf32", "y = tl.dot(a, b)", single, ((16, 16), F32), lambda a, b: cut(a) @ cut(b), FORMS, rtol=1e-5, atol=1e-4)
half = given(F16, 16, 32, seed="a"), given(F16, 32, 16, seed="b")
add(
    "dot-out-float16",
    "y = tl.dot(a, b, out_dtype=tl.float16)",
    half[0] + half[1],
    ((16, 16), F16),
    np.matmul,
    rtol=2**-8,
    atol=0.1,
)
add("dot-trans", "y = tl.dot(a, tl.trans(a))", half[0], ((16, 16), F32), lambda a: a @ a.T, FORMS, rtol=1e-5, atol=1e-4)
add(
    "dot-plus",
    "y = b\nfor _ in range(3):\n    y += tl.dot(a, tl.trans(a))",
    half[0] + given(F32, 16, 16),
    ((16, 16), F32),
    lambda a, b: b + 3 * (a @ a.T),
    FORMS,
    rtol=1e-5,
    atol=1e-3,
)
cubes = given(F16, 2, 16, 32, seed="a") + given(F16, 2, 32, 16, seed="b")
add("dot-3d", "y = tl.dot(a, b)", cubes, ((2, 16, 16), F32), np.matmul, FORMS, rtol=1e-5, atol=1e-4)
