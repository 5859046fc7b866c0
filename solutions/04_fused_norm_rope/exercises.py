"""Lesson 04: first kernels. RMSNorm and RoPE, each in one pass over memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from autograder.judging.exercise import Arguments, Exercise, Mistake, Part, Speed, randn
from mla_ref.hardware.cost import Cost

from ..drawing import BF16, DEFAULT, EPS, FLOAT, HALF, angles, as_given, norm_rows, turning
from ..oracles import (
    TURN_MISTAKES,
    altered,
    in_blocks,
    norm_mistakes,
    other_defaults,
    rotated,
    upside_down,
)

# --- predict_norm_bytes -----------------------------------------------------------------------------------------------


def _traffic(eager: Callable[[int], float], fused: Callable[[int], float] = lambda i: 2 * i) -> Callable[..., Any]:
    """Return an oracle from bytes per element, given the itemsize."""

    def oracle(rows: int, width: int, itemsize: int) -> dict[str, float]:
        count = rows * width
        before, after = count * eager(itemsize), count * fused(itemsize)
        return {"eager_bytes": before, "fused_bytes": after, "ratio": before / after}

    return oracle


_right_traffic = _traffic(lambda i: 2 * i + 36)


PREDICT = Exercise(
    name="predict_norm_bytes",
    title="prediction: bytes moved by an RMSNorm",
    parts=(
        Part("the width of DeepSeek-V3, bfloat16", 1, visible=[dict(rows=16384, width=7168, itemsize=2)]),
        Part(
            "any size",
            1,
            visible=[dict(rows=5, width=33, itemsize=1)],
            hidden=lambda r: [
                dict(rows=r.randint(1, 9999), width=r.randint(1, 9999), itemsize=itemsize) for itemsize in (1, 2, 2)
            ],
        ),
    ),
    inputs=as_given,
    oracle=_right_traffic,
    returns=("prediction",),
    mistakes=(
        *(
            Mistake(
                "float32 forgotten",
                f"eager_bytes takes {passes} at itemsize: between float() and to() tensors are float32, 4 bytes each",
                _traffic(eager),
            )
            for passes, eager in (
                ("every pass", lambda i: 11 * i),
                ("every pass but those of float() and to()", lambda i: 9 * i + 8),
                ("every pass but one", lambda i: 10 * i + 4),
            )
        ),
        Mistake(
            "reads only",
            "only reads are counted: every operation but the mean writes a tensor too, and so does the fused kernel",
            _traffic(lambda i: i + 20, lambda i: i),
        ),
        Mistake(
            "reads of eager only",
            "eager_bytes counts reads alone: every operation but the mean writes a tensor too",
            _traffic(lambda i: i + 20),
        ),
        Mistake(
            "no to at the end",
            "eager_bytes lacks the last operation, to(): it reads 4 bytes a number and writes itemsize",
            _traffic(lambda i: i + 32),
        ),
        *(
            Mistake(
                "product in 16 bits",
                "eager_bytes has the product with the weight write itemsize bytes a number: y is float32, and so is "
                "its product with what has fewer bits",
                _traffic(eager),
            )
            for eager in (lambda i: 3 * i + 32, lambda i: 4 * i + 28)
        ),
        Mistake(
            "one pass too many",
            "eager_bytes has a pass of 4 bytes a number too many: the square reads its input once, though it "
            "multiplies it by itself, and the mean writes one number per row, which is left out",
            _traffic(lambda i: 2 * i + 40),
        ),
        Mistake(
            "two passes too many",
            "eager_bytes has two passes of 4 bytes a number too many: the square reads its input once, the mean writes "
            "one number per row, which is left out, and no product reads more than one whole tensor",
            _traffic(lambda i: 2 * i + 44),
        ),
        Mistake(
            "one pass too few",
            "eager_bytes lacks a pass of 4 bytes a number: the mean reads the squares, and the square and both "
            "products read and write",
            _traffic(lambda i: 2 * i + 32),
        ),
        Mistake(
            "one operation too few",
            "eager_bytes lacks an operation that reads and writes 4 bytes a number: there are three, the square and "
            "the products with the root and with the weight",
            _traffic(lambda i: 2 * i + 28),
        ),
        Mistake(
            "fused reads twice",
            "fused_bytes reads the row twice, for the mean and for the result: a fused kernel keeps it on the chip",
            _traffic(lambda i: 2 * i + 36, lambda i: 3 * i),
        ),
        Mistake(
            "fused reads or writes",
            "fused_bytes counts one pass: the kernel reads x and writes the result",
            _traffic(lambda i: 2 * i + 36, lambda i: i),
        ),
        Mistake(
            "fused in float32",
            "fused_bytes takes x and the result at 4 bytes a number: in memory both have itemsize, float32 is only on "
            "the chip",
            _traffic(lambda i: 2 * i + 36, lambda i: 8),
        ),
        Mistake(
            "fused result in float32",
            "fused_bytes takes x or the result at 4 bytes a number: in memory both have itemsize, float32 is only on "
            "the chip",
            _traffic(lambda i: 2 * i + 36, lambda i: i + 4),
        ),
        Mistake(
            "inverted",
            "the ratio is upside down: expected eager_bytes / fused_bytes",
            altered(_right_traffic, upside_down),
        ),
    ),
)

# --- scale_add --------------------------------------------------------------------------------------------------------


def _vectors(g: torch.Generator | None, n: int, alpha: float = 2.5, dtype: torch.dtype = FLOAT) -> Arguments:
    return {"x": randn(g, n, dtype=dtype), "y": randn(g, n, dtype=dtype), "alpha": alpha}


SCALE_ADD = Exercise(
    name="scale_add",
    title="first kernel: alpha·x + y",
    parts=(
        Part(
            "a power of two",
            1,
            visible=[dict(n=2048), dict(n=2048, alpha=-0.5, dtype=HALF), dict(n=1024, dtype=BF16)],
            hidden=lambda r: [dict(n=2 ** r.randint(11, 13), alpha=r.uniform(-3, 3))],
        ),
        Part(
            "any length",
            1,
            visible=[dict(n=2500), dict(n=1), dict(n=9829), dict(n=(1 << 20) + 9, dtype=HALF)],  # no block is as long
            hidden=lambda r: [
                dict(n=r.randint(2, 200), alpha=r.uniform(-3, 3)),
                dict(n=r.randint(1025, 4000), alpha=r.uniform(-3, 3), dtype=HALF),
                dict(n=r.randint(9000, 20000), alpha=r.uniform(-3, 3)),
            ],
        ),
    ),
    inputs=_vectors,
    oracle=lambda x, y, alpha: torch.add(y, x, alpha=alpha),
    like=("x",),
    mistakes=(
        Mistake("alpha on y", "alpha multiplies y: expected alpha·x + y", lambda x, y, alpha: x + alpha * y),
        Mistake("no alpha", "this is x + y: alpha is missing", lambda x, y, alpha: x + y),
        Mistake("no y", "this is alpha·x: y is not added", lambda x, y, alpha: alpha * x),
        Mistake("alpha on both", "alpha multiplies the sum: expected alpha·x + y", lambda x, y, alpha: alpha * (x + y)),
    ),
    kernel=True,
    speed=Speed(
        points=1,
        case=dict(n=1 << 26, dtype=BF16),
        small=dict(n=1 << 16),
        axes=dict(x="n", y="n", out="n"),
        floor=lambda n, dtype: Cost(bytes=3 * n * dtype.itemsize, flops=2 * n),
        bars=((0.4, 0.5), (0.7, 1.0)),
        baseline=lambda x, y, alpha: alpha * x + y,
        ratio=1.3,
    ),
)

# --- rms_norm ---------------------------------------------------------------------------------------------------------


def _rows(
    g: torch.Generator | None,
    rows: int,
    width: int,
    beside: int = 0,
    scale: float = 1.0,
    largest: float | None = None,
    eps: float | str = EPS,
    dtype: torch.dtype = FLOAT,
) -> Arguments:
    return norm_rows(g, (rows, width + beside), width, scale, largest, eps, dtype)


def _norm(x: Tensor, weight: Tensor, eps: float = EPS, *, divisor: int | None = None, mean: bool = False) -> Tensor:
    """RMSNorm by the 2-norm of the row; `divisor` in place of its width."""
    x = x[:, : len(weight)]
    x = x - x.mean(-1, keepdim=True) if mean else x
    length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return x * weight / (length.square() / (divisor or len(weight)) + eps).sqrt()


_norm_slips = norm_mistakes(_norm)


def _power_of_two(n: int) -> int:
    return 1 << (n - 1).bit_length()


def _divided(divisor: Callable[[int, int], int], unless: Callable[[int, int], int]) -> Callable[..., Tensor]:
    """Return the oracle of another divisor, given D and W; NaN where it is that of `unless`: neither can be named."""

    def oracle(x: Tensor, weight: Tensor, eps: float = EPS) -> Tensor:
        sizes = len(weight), x.shape[1]
        return _norm(x, weight, eps if divisor(*sizes) != unless(*sizes) else torch.nan, divisor=divisor(*sizes))

    return oracle


def _wide_mean(x: Tensor, weight: Tensor, eps: float = EPS) -> Tensor:
    return x[:, : len(weight)] / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weight


def _neighbours_too(block: bool) -> Callable[..., Tensor]:
    """Return the oracle of a sum over all W columns, or over those of them that a block of D takes in."""

    def oracle(x: Tensor, weight: Tensor, eps: float = EPS) -> Tensor:
        D = len(weight)
        total = x[:, : _power_of_two(D) if block else None].square().sum(-1, keepdim=True)
        return x[:, :D] / (total / D + eps).sqrt() * weight

    return oracle


def _rows_together(block: int) -> Callable[..., Tensor]:
    """Return the oracle of a sum that runs over all of a block's rows, too."""

    def oracle(x: Tensor, weight: Tensor, eps: float = EPS) -> Tensor:
        x = x[:, : len(weight)]
        total = torch.cat([each.square().sum().expand(len(each), 1) for each in x.split(block)])
        return x / (total / len(weight) + eps).sqrt() * weight

    return oracle


def _weight_by_row(x: Tensor, weight: Tensor, eps: float = EPS) -> Tensor:
    """Every column times the weight of the row's number, of the last one beyond."""
    row = torch.arange(len(x)).clamp(max=len(weight) - 1)
    return _norm(x, torch.ones_like(weight), eps) * weight[row, None]


def _packed_rows(x: Tensor, weight: Tensor, eps: float = EPS) -> Tensor:
    """What reading rows that are D apart gives, where they are W apart."""
    return _norm(x.flatten()[: len(x) * len(weight)].view(len(x), -1), weight, eps)


def _padded_with_ones(x: Tensor, weight: Tensor, eps: float = EPS) -> Tensor:
    """Places beyond the row, up to the next power of 2, counted as 1. NaN where there are none."""
    D = len(weight)
    beyond = _power_of_two(D) - D
    total = x[:, :D].square().sum(-1, keepdim=True) + (beyond or torch.nan)
    return x[:, :D] / (total / D + eps).sqrt() * weight


def _half_squares(x: Tensor, weight: Tensor, eps: float = EPS) -> Tensor:
    x = x[:, : len(weight)]
    square = (x.half() * x.half()).double()
    return x / (square.mean(-1, keepdim=True) + eps).sqrt() * weight


def _rounded_to_half(x: Tensor, weight: Tensor, eps: float = EPS) -> Tensor:
    return _norm(x.half().double(), weight.half().double(), eps)


def _eager_norm(x: Tensor, weight: Tensor, eps: float = EPS) -> Tensor:
    """The lesson's `eager_rms_norm`: one pass an operation."""
    y = x[:, : len(weight)].float()
    y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + eps)
    return (y * weight).to(x.dtype)


RMS = Exercise(
    name="rms_norm",
    title="fused RMSNorm",
    parts=(
        Part(
            "whole rows, float32",
            1,
            visible=[
                dict(rows=3, width=33),
                dict(rows=3, width=33, scale=20.0),
                dict(rows=2, width=64),
                dict(rows=2, width=8192),
                dict(rows=1, width=1),
                dict(rows=2135, width=33),
            ],
            hidden=lambda r: [
                dict(rows=r.randint(1, 5), width=r.randint(20, 300), scale=r.uniform(1, 50)),
                dict(rows=2, width=r.randint(7169, 8192)),
                dict(rows=r.randint(1, 3), width=1, scale=1000.0),
            ],
        ),
        Part(
            "rows inside wider ones",
            1,
            visible=[dict(rows=4, width=24, beside=16), dict(rows=3, width=33, beside=6, dtype=BF16)],
            hidden=lambda r: [
                dict(rows=r.randint(2, 5), width=r.randint(5, 90), beside=r.randint(1, 70)),
                dict(rows=3, width=512, beside=64, dtype=HALF),
            ],
        ),
        Part(
            "rows near zero",
            1,
            visible=[
                dict(rows=3, width=40, scale=1e-3),
                dict(rows=2, width=24, scale=1e-3, eps=1e-5),
                dict(rows=2, width=24, scale=1e-3, eps=DEFAULT),
            ],
            hidden=lambda r: [
                dict(rows=2, width=r.randint(3, 60), scale=0.0),
                dict(rows=3, width=r.randint(20, 60), scale=r.uniform(1e-3, 4e-3), eps=1e-5),
                dict(rows=2, width=r.randint(20, 60), scale=r.uniform(1e-3, 4e-3), eps=DEFAULT),
            ],
        ),
        Part(
            "float16, values up to 800",
            1,
            visible=[dict(rows=3, width=21, largest=400.0, dtype=HALF)],
            hidden=lambda r: [
                dict(rows=2, width=2 * r.randint(3, 45) - 1, largest=r.uniform(300, 800), dtype=HALF),
                dict(rows=2, width=1024, largest=r.uniform(300, 800), dtype=HALF),
            ],
        ),
    ),
    inputs=_rows,
    oracle=_norm,
    like=("x",),
    mistakes=(
        Mistake(
            "mean over the block",
            "the sum is divided by the size of the block: the mean runs over the D columns, masked ones do not count",
            _divided(lambda D, W: _power_of_two(D), lambda D, W: W),
        ),
        Mistake(
            "divided by the row stride",
            "the sum is divided by W, the distance of the rows: the mean is that of the D = len(weight) columns",
            _divided(lambda D, W: W, lambda D, W: _power_of_two(D)),
        ),
        Mistake(
            "sum",
            "the squares are summed, expected their mean: divide by D",
            lambda x, weight, eps=EPS: _norm(x, weight, eps, divisor=1),
        ),
        *(
            Mistake(
                "columns beside the row",
                "the sum takes in columns of x that are not the row's: its mask is offs_d < D, not offs_d < W",
                _neighbours_too(block),
            )
            for block in (True, False)
        ),
        *in_blocks(
            "rows summed together",
            "tl.sum adds up all rows of the block: with axis=1 and keep_dims=True each row has a sum of its own",
            _rows_together,
            (2, 4, 8, 16),
        ),
        Mistake(
            "weight by row",
            "row r is multiplied by weight r throughout: column d takes weight_ptr + offs_d, in every row",
            _weight_by_row,
        ),
        Mistake(
            "eps in the sum",
            "eps is added to the sum of the squares, expected to their mean: tl.sum(x * x) / D + eps",
            lambda x, weight, eps=EPS: _norm(x, weight, eps / len(weight)),
        ),
        Mistake(
            "not squared",
            "the row itself is summed, expected its squares: tl.sum(x * x)",
            lambda x, weight, eps=EPS: (
                x[:, : len(weight)] / (x[:, : len(weight)].mean(-1, keepdim=True) + eps).sqrt() * weight
            ),
        ),
        _norm_slips["mean subtracted"],
        _norm_slips["no weight"],
        Mistake(
            "padded with ones",
            "places beyond the row are loaded as 1 and join the sum of the squares: other=0.0 leaves it as it is",
            _padded_with_ones,
        ),
        _norm_slips["no eps"],
        _norm_slips["eps outside"],
        _norm_slips["eps fixed"],
        *other_defaults(_norm),
        _norm_slips["times the root"],
        _norm_slips["no root"],
        _norm_slips["1 + weight"],
        Mistake(
            "row 0 everywhere",
            "every program reads row 0: row r of x begins at r · W",
            lambda x, weight, eps=EPS: _norm(x[:1].expand_as(x), weight, eps),
        ),
        Mistake(
            "row stride",
            "rows are read D elements apart, D = len(weight): in the x of the call they are W = x.shape[1] apart, "
            "and in a slice of it, x[:, :D], as far, x.stride(0)",
            _packed_rows,
        ),
        Mistake(
            "mean over the wide row",
            "the mean runs over all W columns of x: only the first D = len(weight) belong to the row",
            _wide_mean,
        ),
        Mistake(
            "float16 squares",
            "the squares overflow float16 (beyond 65504): convert to tl.float32 right after the load",
            _half_squares,
        ),
        Mistake(
            "rounded to float16",
            "float32 rows are rounded to float16 before they are normalised: read x in its own dtype",
            _rounded_to_half,
        ),
    ),
    kernel=True,
    speed=Speed(
        points=3,
        case=dict(rows=16384, width=7168, beside=512, dtype=BF16),
        small=dict(rows=64),
        axes=dict(x="n", out="n"),
        floor=lambda rows, width, beside, dtype: Cost(
            bytes=(2 * rows + 1) * width * dtype.itemsize, flops=4 * rows * width
        ),
        bars=((0.4, 0.5), (0.7, 1.0)),
        baseline=_eager_norm,
        ratio=4.0,
    ),
)

# --- apply_rope -------------------------------------------------------------------------------------------------------


def _somewhere(g: torch.Generator, S: int, Dr: int) -> Arguments:
    """Return the angles of S positions from one on that nobody knows."""
    first = int(torch.randint(100_000, (), generator=g))
    return dict(zip(("cos", "sin"), angles(g, S, Dr, first), strict=True))


def _first_angle(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return rotated(x, cos[:1].expand_as(cos), sin[:1].expand_as(sin))


def _angle_by_row(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """The position taken as the row's number modulo S, with one row per token and head."""
    B, S, H, _ = x.shape
    position = (torch.arange(B * S * H) % S).view(B * S, H)
    rows = x.reshape(B * S, H, -1).transpose(0, 1)
    turned = [rotated(rows[h][None, :, None], cos[position[:, h]], sin[position[:, h]]) for h in range(H)]
    return torch.cat(turned, 2).reshape(x.shape)


def _angle_by_division(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """The position taken as the token's number over B."""
    B, S, _, _ = x.shape
    position = torch.arange(B * S) // B
    return rotated(x.flatten(0, 1)[None], cos[position], sin[position]).view(x.shape)


def _angle_by_sequence(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """The position taken as the token's number over S; NaN where the tables have no such row."""
    B, S, _, _ = x.shape
    if B > S:
        return x * torch.nan
    position = torch.arange(B * S) // S
    return rotated(x.flatten(0, 1)[None], cos[position], sin[position]).view(x.shape)


def _angle_beside(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """The angle of pair p at position s read at element s + p of the tables."""
    at = torch.arange(len(cos))[:, None] + torch.arange(cos.shape[1])
    return rotated(x, cos.flatten()[at], sin.flatten()[at])


def _pairs_exchanged(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return rotated(x, cos, sin).unflatten(-1, (-1, 2)).flip(-1).flatten(-2)


def _eager_rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """The lesson's `eager_rope`: one pass an operation."""
    a, b = x[..., 0::2].float(), x[..., 1::2].float()
    cos, sin = cos[:, None], sin[:, None]
    return torch.stack((a * cos - b * sin, a * sin + b * cos), dim=-1).flatten(-2).to(x.dtype)


ROPE = Exercise(
    name="apply_rope",
    title="fused RoPE on interleaved pairs",
    parts=(
        Part(
            "one token",
            1,
            visible=[
                dict(B=2, S=1, H=2, Dr=8, first=5),
                dict(B=1, S=1, H=3, Dr=12, first=8),
                dict(B=1, S=1, H=1, Dr=2),
            ],
            hidden=lambda r: [
                dict(B=2, S=1, H=r.randint(2, 5), Dr=2 * r.randint(2, 9), first=r.randint(1, 9999)),
                dict(B=1, S=1, H=1, Dr=2, first=r.randint(1, 99)),
            ],
        ),
        Part(
            "several tokens and sequences",
            2,
            visible=[
                dict(B=2, S=3, H=3, Dr=8, first=2),
                dict(B=2, S=4, H=5, Dr=12, first=3),
                dict(B=1, S=4, H=70, Dr=6, first=100),
                dict(B=2, S=3, H=130, Dr=64, first=9),
                dict(B=2, S=3, H=2, Dr=128, first=7),
                dict(B=3, S=711, H=3, Dr=8),
                dict(B=2, S=3, H=384, Dr=6),
            ],
            hidden=lambda r: [
                dict(B=r.randint(2, 3), S=4, H=4, Dr=8, first=r.randint(0, 50)),
                dict(B=2, S=r.randint(3, 4), H=r.randint(1, 6), Dr=2 * r.randint(2, 20), first=r.randint(0, 99999)),
                dict(B=3, S=2, H=r.choice([63, 130]), Dr=64, first=7),
                dict(B=2, S=3, H=3, Dr=2 * r.randint(50, 64), first=7),
            ],
        ),
        Part(
            "float16 and bfloat16",
            1,
            visible=[dict(B=2, S=3, H=5, Dr=12, first=40, dtype=each) for each in (HALF, BF16)],
            hidden=lambda r: [dict(B=1, S=3, H=r.randint(3, 9), Dr=64, first=r.randint(0, 9999), dtype=HALF)],
        ),
    ),
    inputs=turning,
    oracle=rotated,
    like=("x",),
    mistakes=(
        *TURN_MISTAKES,
        Mistake(
            "angle by row",
            "row (b·S + s)·H + h turns by the angle of its number modulo S: divide by H first",
            _angle_by_row,
        ),
        Mistake(
            "angle by division",
            "token b·S + s turns by the angle of row (b·S + s) // B: its position is its number modulo S, s",
            _angle_by_division,
        ),
        Mistake(
            "angle by sequence",
            "token b·S + s turns by the angle of row (b·S + s) // S, and not of s, its number modulo S",
            _angle_by_sequence,
        ),
        Mistake(
            "angle one element on",
            "pair p of position s reads element s + p of cos and sin: a row of them is Dr/2 long, s·Dr/2 + p",
            _angle_beside,
        ),
        Mistake(
            "pairs exchanged",
            "the two numbers of each pair come out exchanged: tl.join(a cos − b sin, a sin + b cos), in this order",
            _pairs_exchanged,
        ),
    ),
    kernel=True,
    speed=Speed(
        points=3,
        case=dict(B=4, S=4096, H=128, Dr=64, dtype=BF16),
        small=dict(B=2, S=64),
        data=lambda g: _somewhere(g, 4096, 64),
        axes=dict(x="bsh", cos="s", sin="s", out="bsh"),
        floor=lambda B, S, H, Dr, dtype: Cost(
            bytes=2 * B * S * H * Dr * dtype.itemsize + S * Dr * 4, flops=3 * B * S * H * Dr
        ),
        bars=((0.6, 0.5), (0.7, 1.0)),
        baseline=_eager_rope,
        ratio=3.0,
    ),
)

# --- rope_query_key ---------------------------------------------------------------------------------------------------


def _query_and_key(
    g: torch.Generator | None, B: int, S: int, H: int, Dr: int, first: int = 0, dtype: torch.dtype = FLOAT
) -> Arguments:
    cos, sin = angles(g, S, Dr, first)
    return {
        "q_rope": randn(g, B, S, H, Dr, dtype=dtype),
        "k_rope": randn(g, B, S, Dr, dtype=dtype),
        "cos": cos,
        "sin": sin,
    }


def _both(turn: Callable[..., Tensor], turn_key: Callable[..., Tensor] | None = None) -> Callable[..., Any]:
    """Return an oracle that turns query and key with these functions of `[B, S, H, Dr]`."""
    turn_key = turn_key or turn

    def oracle(q_rope: Tensor, k_rope: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        return turn(q_rope, cos, sin), turn_key(k_rope[:, :, None], cos, sin)[:, :, 0]

    return oracle


def _as_it_is(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return x


def _key_of_sequence_0(others: float | None) -> Callable[..., Tensor]:
    """Return what turns the keys of sequence 0; the other sequences get `others`, or where that is None the same."""

    def turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        first = rotated(x[:1], cos, sin)
        return torch.cat((first, first.expand_as(x[1:]) if others is None else torch.full_like(x[1:], others)))

    return turn


QUERY_KEY = Exercise(
    name="rope_query_key",
    title="RoPE of query and shared key in one launch",
    parts=(
        Part(
            "a decode step",
            1,
            visible=[
                dict(B=2, S=1, H=4, Dr=8, first=9),
                dict(B=2, S=1, H=130, Dr=64, first=4, dtype=HALF),
                dict(B=1, S=1, H=1, Dr=2),
                dict(B=301, S=1, H=4, Dr=8, first=6),
            ],
            hidden=lambda r: [
                dict(B=r.randint(1, 4), S=1, H=r.randint(1, 20), Dr=2 * r.randint(1, 9), first=r.randint(1, 9999)),
                dict(B=2, S=1, H=r.choice([33, 128]), Dr=64, first=r.randint(1, 9999), dtype=HALF),
                dict(B=1, S=1, H=r.randint(129, 140), Dr=16, first=r.randint(1, 99)),
            ],
        ),
        Part(
            "several tokens",
            2,
            visible=[
                dict(B=2, S=3, H=3, Dr=8, first=2),
                dict(B=2, S=2, H=140, Dr=6, first=50, dtype=HALF),
                dict(B=1, S=2, H=3, Dr=6, first=50, dtype=BF16),
                dict(B=2, S=2, H=2, Dr=128, first=7),
                dict(B=3, S=711, H=3, Dr=8, first=1),
                dict(B=2, S=2, H=384, Dr=6, dtype=HALF),
            ],
            hidden=lambda r: [
                dict(B=2, S=r.randint(2, 4), H=r.randint(1, 6), Dr=2 * r.randint(2, 20), first=r.randint(0, 99999)),
                dict(B=r.randint(2, 3), S=3, H=r.choice([3, 130]), Dr=16, first=r.randint(0, 99)),
                dict(B=2, S=2, H=3, Dr=2 * r.randint(50, 64), first=7),
            ],
        ),
    ),
    inputs=_query_and_key,
    oracle=_both(rotated),
    returns=("q_rope", "k_rope"),
    like=("q_rope", "k_rope"),
    mistakes=(
        Mistake("key not rotated", "the key comes back as it was: it is rotated too", _both(rotated, _as_it_is)),
        Mistake(
            "key by token 0",
            "every key turns by the angle of token 0: row s of cos and sin belongs to token s, of query and key",
            _both(rotated, _first_angle),
        ),
        *(
            Mistake(
                "key of sequence 0",
                "the key of token b·S + s is read or written at row s: k_rope is [B, S, Dr], so its row is b·S + s",
                _both(rotated, _key_of_sequence_0(others)),
                unwritten=others is not None,
            )
            for others in (None, 0.0, torch.nan)
        ),
        *(replace(each, oracle=_both(each.oracle)) for each in TURN_MISTAKES),
        *(
            Mistake(f"{one} turned wrongly", f"{one} alone is not right: {each.message}", _both(*turns))
            for each in TURN_MISTAKES
            for one, turns in (("q_rope", (each.oracle, rotated)), ("k_rope", (rotated, each.oracle)))
        ),
    ),
    kernel=True,
    launches=1,
    speed=Speed(
        points=2,
        case=dict(B=128, S=1, H=128, Dr=64, dtype=BF16),
        small=dict(B=32),
        data=lambda g: _somewhere(g, 1, 64),
        axes=dict(q_rope="bsh", k_rope="bs", cos="s", sin="s"),
        floor=lambda B, S, H, Dr, dtype: Cost(
            bytes=2 * B * S * (H + 1) * Dr * dtype.itemsize + S * Dr * 4, flops=3 * B * S * (H + 1) * Dr
        ),
        bars=((0.1, 0.5), (0.12, 1.0)),
        baseline=_both(_eager_rope),
        ratio=3.0,
    ),
)

EXERCISES = (PREDICT, SCALE_ADD, RMS, ROPE, QUERY_KEY)
