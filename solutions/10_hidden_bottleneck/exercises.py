"""Lesson 10: the hidden bottleneck. The two products of absorption, their weights in INT4, and four clocks."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from random import Random
from typing import Any

import torch
from torch import Tensor

from autograder.judging.exercise import Arguments, Exercise, Part, Speed, randn
from mla_ref.hardware.cost import Cost
from mla_ref.hardware.devices import DEVICES

from ..drawing import BF16, FLOAT, HALF, V3, as_given, widths
from ..oracles import slips

H100, H200 = DEVICES["h100"], DEVICES["h200"]
GROUPS = (32, 64, 128)

# --- reconstruction_bytes ---------------------------------------------------------------------------------------------


def _layer_bytes(
    B: int,
    T: int,
    H: int,
    Dn: int,
    Dr: int,
    Dv: int,
    R: int,
    group: int,
    rate: float,
    bandwidth: float,
    *,
    weights: int | None = None,
    copies: int = 1,
    flops: int = 2,
    macs: int | None = None,
    word: int = 2,
    moved: int | None = None,
    of_rows: bool = False,
    caches: int = 1,
    of_attention: bool = False,
    scale_bytes: int = 2,
    by_memory: bool = False,
) -> dict[str, float]:
    """Return the right numbers. Each keyword puts a wrong one in place of a right one."""
    weights = H * R * (Dn + Dv) if weights is None else weights
    rows = word * B * H * (Dn + R + R + Dv) if moved is None else moved
    size = word * copies * weights + rows
    work = flops * B * (weights if macs is None else macs)
    seconds = size / bandwidth if by_memory else max(size / bandwidth, work / rate)
    cache = caches * 2 * B * T * (R + Dr) / bandwidth
    return {
        "weight_bytes": word * weights,
        "bytes": size,
        "intensity": work / (rows if of_rows else size),
        "floor_us": 1e6 * seconds,
        "share": (cache if of_attention else seconds) / (seconds + cache),
        "int4_gain": size / (weights / 2 + scale_bytes * weights / group + rows),
    }


_bytes_slip = slips(_layer_bytes)
ON_H200 = dict(rate=H200.rate(), bandwidth=H200.bandwidth())
ON_H100 = dict(rate=H100.rate(), bandwidth=H100.bandwidth())


def _asked(r: Random, **fixed: Any) -> dict[str, Any]:
    """A layer on an accelerator, whose ridge is 100 to 400 FLOP per byte."""
    bandwidth = r.uniform(0.5e12, 8e12)
    layer = dict(H=r.randint(2, 128)) | widths(r)
    machine = dict(group=r.choice(GROUPS), rate=bandwidth * r.uniform(100, 400), bandwidth=bandwidth)
    return dict(B=r.randint(2, 99), T=r.randint(1, 9999)) | layer | machine | fixed


def _by_compute(r: Random) -> dict[str, Any]:
    """Many rows on a processor whose ridge is low, 5 to 10 FLOP per byte."""
    case = _asked(r, B=r.randint(300, 999))
    return case | dict(rate=case["bandwidth"] * r.uniform(5, 10))


BYTES = Exercise(
    name="reconstruction_bytes",
    title="prediction: bytes, intensity and floor of both products",
    parts=(
        Part(
            "one request",
            1,
            visible=[dict(B=1, T=4096, **V3, group=128, **ON_H200)],
            hidden=lambda r: [_asked(r, B=1)],
        ),
        Part(
            "any batch",
            2,
            visible=[
                dict(B=128, T=1000, **V3, group=64, **ON_H100),
                dict(B=7, T=1, H=3, Dn=96, Dr=16, Dv=32, R=160, group=32, rate=1e12, bandwidth=1e10),
                dict(B=512, T=100, **V3, group=128, rate=2e12, bandwidth=1e11),
                # apart, one product would be bound by compute, and the other by memory
                dict(B=64, T=50, H=3, Dn=96, Dr=16, Dv=32, R=160, group=32, rate=2.5e11, bandwidth=1e10),
            ],
            hidden=lambda r: [_asked(r), _asked(r, T=0), _by_compute(r)],
        ),
    ),
    inputs=as_given,
    oracle=_layer_bytes,
    returns=("prediction",),
    mistakes=(
        _bytes_slip(
            "one product only",
            "only the product into the query is counted: the values come back through W_UV, R to Dv wide, as well",
            lambda B, H, Dn, R, **_: dict(weights=H * R * Dn, moved=2 * B * H * (Dn + R)),
        ),
        _bytes_slip(
            "MACs for FLOPs",
            "the arithmetic is in MACs: one multiply-accumulate is two FLOPs",
            flops=1,
        ),
        _bytes_slip(
            "FLOPs of one product",
            "the arithmetic is that of the first product alone: the second, R to Dv wide, is multiplied as well",
            lambda H, Dn, R, **_: dict(macs=H * R * Dn),
        ),
        _bytes_slip("words for bytes", "the bytes are words: each has two bytes here", word=1),
        _bytes_slip(
            "weights for each request",
            "the weights are counted for every request: they are read once, and multiplied with all B rows",
            lambda B, **_: dict(copies=B),
        ),
        _bytes_slip(
            "results left out",
            "the bytes lack the results, or the rows of the second product: the first reads Dn words a row and writes "
            "R, the second reads R and writes Dv",
            lambda B, H, Dn, R, **_: dict(moved=2 * B * H * (Dn + R)),
        ),
        _bytes_slip(
            "rows of the second product alone",
            "the bytes lack the rows of the first product: it reads Dn words a row and writes R",
            lambda B, H, Dv, R, **_: dict(moved=2 * B * H * (R + Dv)),
        ),
        _bytes_slip(
            "intensity of the rows",
            "intensity divides by the bytes of the rows: the weights move too, so divide by all bytes",
            of_rows=True,
        ),
        _bytes_slip(
            "memory alone",
            "floor_us is the time of the bytes alone: with many rows the arithmetic takes longer, and the longer one "
            "counts",
            by_memory=True,
        ),
        _bytes_slip(
            "share of the attention",
            "share is that of the attention: asked is the share of the two products",
            of_attention=True,
        ),
        _bytes_slip(
            "cache for each head",
            "share takes a cache for each head: all heads read the same R+Dr words of a token",
            lambda H, **_: dict(caches=H),
        ),
        _bytes_slip(
            "scales left out",
            "int4_gain leaves out the scales: each group of weights has one, of two bytes",
            scale_bytes=0,
        ),
    ),
)

# --- quantize_int4 and dequantize_int4 --------------------------------------------------------------------------------


def _weight(
    g: torch.Generator | None,
    H: int,
    shape: tuple[int, int],
    axis: int,
    group: int,
    dtype: torch.dtype = FLOAT,
    scale: float = 0.01,
    zeros: int = 0,
) -> Arguments:
    """Return a weight ``[H, *shape]`` and how to quantise it.

    No quotient is nearer than 0.2 to where rounding turns, so whoever computes in another order gets the same integers.
    The first `zeros` groups of each head hold nothing else.
    """
    N, K = shape if axis == 2 else shape[::-1]
    size = (H, N, K // group, group)
    values = torch.randint(-7, 8, size, generator=g) + 0.6 * torch.rand(size, generator=g, dtype=torch.float64) - 0.3
    values = values.clamp(-6.95, 6.95)
    place = torch.randint(group, (*size[:3], 1), generator=g)
    values.scatter_(3, place, 7.0 * (2 * torch.randint(2, place.shape, generator=g) - 1).double())
    values *= scale * 2 ** (4 * torch.rand((*size[:3], 1), generator=g, dtype=torch.float64) - 2)
    values.flatten(1, 2)[:, :zeros] = 0
    rows = values.flatten(2)
    weight = (rows if axis == 2 else rows.mT).to(dtype).contiguous()
    return {"weight": weight, "axis": axis, "group": group}


def _rows(weight: Tensor, axis: int) -> Tensor:
    """Return the weight as rows [H, N, K] along the axis that is summed over."""
    return weight.movedim(axis, -1)


def _quantized(
    weight: Tensor,
    axis: int,
    group: int,
    *,
    swapped: bool = False,
    smeared: bool = False,
    offset: int = 0,
    halves: bool = False,
    rows: Any = _rows,
    shared: bool = False,
    steps: float = 7,
    lowest: int | None = None,
    signed: bool = False,
    cut: bool = False,
    empty: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """Return packed and scales. Each keyword makes a mistake; what is cut off depends on the last bit of float32."""
    groups = rows(weight.float() if cut else weight, axis)
    groups = groups.reshape(*groups.shape[:2], -1, group)
    largest = groups.amax(-1) if signed else groups.abs().amax(-1)
    if shared:
        largest = largest.amax().expand_as(largest)
    scales = torch.where(largest == 0, empty, largest / steps)
    values = (groups / scales[..., None]).nan_to_num()
    values = (values.trunc() if cut else values.round()).long().flatten(-2)
    values = values if lowest is None else values.clamp(lowest, 7)
    return _packed(values, swapped, smeared, offset, halves), scales


def _packed(values: Tensor, swapped: bool, smeared: bool, offset: int, halves: bool) -> Tensor:
    """Return bytes of pairs. With `smeared`, the sign bits of the low nibble lie over the high one."""
    first, second = values.chunk(2, -1) if halves else (values[..., 0::2], values[..., 1::2])
    low, high = (second, first) if swapped else (first, second)
    if offset:
        return (low + offset + 16 * (high + offset)).to(torch.uint8)
    found = low.remainder(16) + 16 * high.remainder(16)
    return torch.where((low < 0) & smeared, found | 0xF0, found).to(torch.uint8)


_quantized_slip = slips(_quantized)

QUANTIZE = Exercise(
    name="quantize_int4",
    title="weights in groups, four bits each",
    parts=(
        Part(
            "along the last axis",
            1,
            visible=[
                dict(H=2, shape=(32, 64), axis=2, group=32),
                dict(H=1, shape=(5, 128), axis=2, group=128, dtype=BF16),
            ],
            hidden=lambda r: [
                dict(H=r.randint(1, 4), shape=(n, blocks * group), axis=2, group=group, dtype=dtype)
                for n, blocks, group, dtype in (
                    (1, r.randint(2, 3), 32, FLOAT),
                    (r.randint(2, 9), 3, 64, HALF),
                    (r.randint(2, 9), r.randint(1, 2), 128, FLOAT),
                )
            ],
        ),
        Part(
            "along the middle axis",
            2,
            visible=[
                dict(H=2, shape=(64, 40), axis=1, group=32),
                dict(H=3, shape=(128, 128), axis=1, group=64, dtype=HALF),
            ],
            hidden=lambda r: [
                dict(H=r.randint(1, 3), shape=(blocks * group, n), axis=1, group=group, dtype=dtype, scale=scale)
                for n, blocks, group, dtype, scale in (
                    (r.randint(2, 40), 3, 32, FLOAT, 1e6),
                    (1, r.randint(1, 3), 64, HALF, 1500.0),
                    (r.randint(60, 70), 2, 128, BF16, 0.02),
                )
            ],
        ),
        Part(
            "a group of zeros",
            1,
            visible=[dict(H=2, shape=(64, 3), axis=1, group=32, zeros=2)],
            hidden=lambda r: [
                dict(H=2, shape=(4, 128), axis=2, group=r.choice((32, 64)), zeros=r.randint(1, 3), dtype=HALF),
                dict(H=1, shape=(32, 2), axis=1, group=32, zeros=2),
            ],
        ),
    ),
    inputs=_weight,
    oracle=_quantized,
    returns=("packed", "scales"),
    like=(torch.uint8, "weight"),
    mistakes=(
        _quantized_slip(
            "high nibble first",
            "the nibbles are swapped: the first weight of a pair belongs into the low one",
            swapped=True,
        ),
        _quantized_slip(
            "halves in a byte",
            "the first half of a row fills the low nibbles and the second the high ones: a byte holds neighbours, 2i "
            "and 2i + 1",
            halves=True,
        ),
        _quantized_slip(
            "low nibble not cut off",
            "a negative low nibble overwrites the high one: −1 is 0xFF in eight bits, so cut it off with & 0xF",
            smeared=True,
        ),
        _quantized_slip(
            "offset for two's complement",
            "8 is added to the integers: expected two's complement, where −1 is 0xF",
            offset=8,
        ),
        _quantized_slip(
            "the other axis",
            "the groups lie along the axis that stays: a product can take a scale out of its sum only if the whole "
            "group is in that sum, so group along `axis`",
            lambda weight, axis, group: (
                dict(rows=lambda weight, axis: weight.movedim(3 - axis, -1))
                if weight.shape[3 - axis] % group == 0
                else {}
            ),
        ),
        _quantized_slip(
            "rows by reshape",
            "the rows are cut from the weight as it lies in memory: a group then holds weights of several sums; "
            "transpose instead of reshaping",
            rows=lambda weight, axis: weight.reshape(_rows(weight, axis).shape),
        ),
        _quantized_slip(
            "one scale for all", "all groups have one scale: each has its own, by its own largest weight", shared=True
        ),
        _quantized_slip(
            "largest over 8",
            "the scale is the largest magnitude over 8: that weight becomes 8 itself, which four bits read as −8",
            steps=8,
        ),
        *(
            _quantized_slip(
                "largest over 8",
                "the scale is not the largest magnitude over 7, and what does not fit is cut off: the integers "
                "are −7 to 7, so divide by 7, and nothing is cut",
                steps=steps,
                lowest=lowest,
            )
            for steps in (8, 7.5)
            for lowest in (-8, -7)
        ),
        _quantized_slip(
            "largest without its sign",
            "the scale is that of the largest weight: a negative one may have the larger magnitude, and does not fit",
            signed=True,
        ),
        _quantized_slip(
            "cut off for rounded",
            "the quotients are cut off towards 0: round them to the nearest integer",
            cut=True,
        ),
        _quantized_slip(
            "scale of zeros",
            "a group of zeros has scale 0, or nearly: give it scale 1 (0/0 is NaN, of which an integer may become "
            "anything)",
            empty=0.0,
        ),
    ),
)


def _bytes(
    g: torch.Generator | None,
    H: int,
    N: int,
    K: int,
    group: int,
    axis: int,
    dtype: torch.dtype = FLOAT,
    scale: float = 0.01,
) -> Arguments:
    """Return packed integers, every one that four bits hold, and scales."""
    return {**_packed_rows(g, H, N, K, group, dtype, scale), "axis": axis}


def _packed_rows(
    g: torch.Generator | None, H: int, N: int, K: int, group: int, dtype: torch.dtype, scale: float
) -> Arguments:
    if g is None:
        packed = torch.empty(H, N, K // 2, dtype=torch.uint8, device="meta")
        return {"packed": packed, "scales": randn(None, H, N, K // group, dtype=dtype)}
    packed = torch.randint(256, (H, N, K // 2), generator=g).to(torch.uint8)
    scales = scale * 2 ** (3 * torch.rand(H, N, K // group, generator=g, dtype=torch.float64) - 1.5)
    return {"packed": packed, "scales": scales.to(dtype)}


def _integers(
    packed: Tensor,
    *,
    swapped=False,
    halves=False,
    signed: Sequence[bool] = (True, True),
    offset=0,
    first=8,
    wraps=False,
) -> Tensor:
    """Return the integers of the nibbles in float64. Each keyword makes a mistake."""
    nibbles = packed.long() % 16, packed.long() // 16
    if offset:
        low, high = (each - offset for each in nibbles)
    else:
        low, high = (each - 16 * (each >= first) * sign for each, sign in zip(nibbles, signed, strict=True))
    if wraps:
        low, high = low % 256, high % 256
    pair = (high, low) if swapped else (low, high)
    return (torch.cat(pair, -1) if halves else torch.stack(pair, -1).flatten(-2)).double()


def _spread(scales: Tensor, group: int, how: str = "groups") -> Tensor:
    """Return a scale for each weight. `how` names a mistake."""
    if how == "tiled":
        return scales.repeat(1, 1, group)
    if how == "first":
        scales = scales[..., :1].expand_as(scales)
    elif how == "last":
        scales = scales[..., -1:].expand_as(scales)
    elif how == "none":
        scales = torch.ones_like(scales)
    return scales.repeat_interleave(group, -1)


def _dequantized(packed: Tensor, scales: Tensor, axis: int, *, how="groups", back: Any = None, **wrong: Any) -> Tensor:
    rows = _integers(packed, **wrong) * _spread(scales, 2 * packed.shape[-1] // scales.shape[-1], how)
    back = back or (lambda rows, axis: rows.movedim(-1, axis))
    return back(rows, axis)


_dequantized_slip = slips(_dequantized)
SWAPPED = "the nibbles are swapped: the low one is the first weight of a pair"
UNSIGNED = "the integers have no sign: nibbles 8 to 15 stand for −8 to −1 in two's complement"
HIGH_UNSIGNED = (
    "the high nibbles have no sign: shifting a uint8 to the right brings in zeros, so 8 to 15 stay there; they stand "
    "for −8 to −1"
)
EIGHT = "nibble 8 stays 8: it stands for −8, so from 8 on 16 is subtracted (> 7, or >= 8)"
WRAPS = (
    "negative integers come out 256 too large: below 0 a uint8 begins at 255 again; cast to a signed type before you "
    "subtract"
)
HALVES = "low nibbles fill the first half of a row and high ones the second: they are neighbours, 2i and 2i + 1"
OFFSET = "8 is subtracted from every nibble: they are in two's complement, not stored with 8 added"
TILED = "weight k has scale k % groups: a group lies together, so its scale is k // group"
UNSCALED = "the integers are not multiplied by their scales"

DEQUANTIZE = Exercise(
    name="dequantize_int4",
    title="the way back",
    parts=(
        Part(
            "one group in a row",
            1,
            visible=[dict(H=2, N=3, K=32, group=32, axis=2)],
            hidden=lambda r: [
                dict(H=r.randint(1, 4), N=n, K=group, group=group, axis=2, dtype=dtype)
                for n, group, dtype in ((1, 64, HALF), (r.randint(2, 9), 128, FLOAT))
            ],
        ),
        Part(
            "several groups",
            1,
            visible=[dict(H=2, N=3, K=96, group=32, axis=2), dict(H=1, N=4, K=256, group=128, axis=2, dtype=BF16)],
            hidden=lambda r: [
                dict(H=r.randint(1, 4), N=n, K=r.randint(2, 4) * group, group=group, axis=2, scale=scale)
                for n, group, scale in ((1, 64, 1e6), (r.randint(2, 9), r.choice(GROUPS), 1e-3))
            ],
        ),
        Part(
            "along the middle axis",
            1,
            visible=[dict(H=2, N=40, K=64, group=32, axis=1), dict(H=2, N=64, K=64, group=64, axis=1, dtype=HALF)],
            hidden=lambda r: [
                dict(H=r.randint(1, 4), N=r.randint(1, 70), K=r.randint(1, 3) * group, group=group, axis=1)
                for group in GROUPS
            ],
        ),
    ),
    inputs=_bytes,
    oracle=_dequantized,
    returns=("weight",),
    like=("scales",),
    mistakes=(
        _dequantized_slip("high nibble first", SWAPPED, swapped=True),
        _dequantized_slip("halves in a byte", HALVES, halves=True),
        _dequantized_slip("no sign", UNSIGNED, signed=(False, False)),
        _dequantized_slip("high nibble without sign", HIGH_UNSIGNED, signed=(True, False)),
        _dequantized_slip("8 without sign", EIGHT, first=9),
        _dequantized_slip("wraps in eight bits", WRAPS, wraps=True),
        _dequantized_slip("wraps in eight bits", WRAPS, offset=8, wraps=True),
        _dequantized_slip("offset for two's complement", OFFSET, offset=8),
        _dequantized_slip("scales tiled", TILED, how="tiled"),
        _dequantized_slip("first group's scale", "the whole row has the scale of its first group", how="first"),
        _dequantized_slip("no scales", UNSCALED, how="none"),
        _dequantized_slip(
            "not turned back",
            "the weight comes back as rows: with axis 1 the source is [H, K, N], so exchange the last two axes",
            back=lambda rows, axis: rows,
        ),
        _dequantized_slip(
            "turned by reshape",
            "the rows are given another shape where their axes must change places: transpose instead of reshaping",
            back=lambda rows, axis: rows.reshape(rows.movedim(-1, axis).shape),
        ),
    ),
)

# --- absorb_query_int4 ------------------------------------------------------------------------------------------------


def _query_step(
    g: torch.Generator | None,
    B: int,
    H: int,
    Dn: int,
    R: int,
    group: int,
    dtype: torch.dtype = HALF,
    size: float = 1.0,
    scale: float = 0.02,
) -> Arguments:
    """Return queries of standard deviation `size`, and packed rows of W_UK with scales of about `scale`."""
    return {
        "q_nope": randn(g, B, H, Dn, scale=size, dtype=dtype),
        **_packed_rows(g, H, R, Dn, group, dtype, scale),
    }


def _absorbed(
    q_nope: Tensor,
    packed: Tensor,
    scales: Tensor,
    *,
    how: str = "groups",
    head: bool = False,
    **wrong: Any,
) -> Tensor:
    """Return the query in the latent. Each keyword makes a mistake."""
    group = q_nope.shape[-1] // scales.shape[-1]
    integers, spread = _integers(packed, **wrong), _spread(scales, group, how)
    if head:
        integers, spread = (each[:1].expand_as(each) for each in (integers, spread))
    return torch.einsum("bhd,hrd->bhr", q_nope, integers * spread)


def _absorbed_floor(B: int, H: int, Dn: int, R: int, group: int, dtype: torch.dtype) -> Cost:
    weights, rows = H * R * Dn, B * H * (Dn + R)
    size = weights / 2 + weights / group * dtype.itemsize + rows * dtype.itemsize
    return Cost(bytes=size, flops=2 * B * weights)


def _half_product(q_nope: Tensor, packed: Tensor, scales: Tensor) -> Tensor:
    """The product of cuBLAS, with a weight in 16 bits that lies there."""
    (H, R, half), B = packed.shape, len(q_nope)
    weight = q_nope.new_empty(H, 2 * half, R)
    out = q_nope.new_empty(H, B, R)
    return torch.bmm(q_nope.transpose(0, 1), weight, out=out).transpose(0, 1)


_absorbed_slip = slips(_absorbed)

ABSORB = Exercise(
    name="absorb_query_int4",
    title="the product into the query, weights in INT4",
    parts=(
        Part(
            "one group in a row",
            1,
            visible=[
                dict(B=16, H=2, Dn=64, R=64, group=64),
                dict(B=1, H=1, Dn=32, R=9, group=32),
                dict(B=9, H=1, Dn=32, R=1, group=32),
            ],
            hidden=lambda r: [
                dict(B=r.choice([1, 4, 16]), H=r.randint(1, 3), Dn=32, R=128, group=32),
                dict(B=2, H=2, Dn=128, R=r.choice([16, 64, 256]), group=128, dtype=BF16),
            ],
        ),
        Part(
            "several groups",
            2,
            visible=[
                dict(B=16, H=2, Dn=128, R=64, group=32),
                dict(B=16, H=1, Dn=192, R=64, group=64, dtype=BF16),
                dict(B=4, H=1, Dn=384, R=64, group=128),
            ],
            hidden=lambda r: [
                dict(B=r.randint(1, 16), H=2, Dn=n * group, R=128, group=group)
                for n, group in ((3, 32), (2, 64), (r.randint(2, 3), 128))
            ],
        ),
        Part(
            "tails of batch and rank",
            1,
            visible=[
                dict(B=5, H=2, Dn=64, R=40, group=32),
                dict(B=5, H=281, Dn=64, R=40, group=32),
                dict(B=37, H=1, Dn=32, R=72, group=32),
                dict(B=140, H=1, Dn=32, R=270, group=32),
            ],
            hidden=lambda r: [
                dict(B=r.randint(17, 31), H=r.randint(1, 3), Dn=64, R=r.randint(1, 60), group=64),
                dict(B=r.randint(65, 80), H=2, Dn=32, R=r.randint(257, 300), group=32, dtype=BF16),
                dict(B=r.randint(129, 150), H=1, Dn=32, R=r.randint(130, 140), group=32),
                dict(B=1, H=3, Dn=64, R=r.randint(513, 600), group=32),
            ],
        ),
        Part(
            "large queries and small scales",
            1,
            visible=[dict(B=4, H=2, Dn=128, R=64, group=64, size=4000.0, scale=3e-4)],
            hidden=lambda r: [dict(B=r.randint(1, 9), H=2, Dn=256, R=64, group=128, size=3000.0, scale=4e-4)],
        ),
    ),
    inputs=_query_step,
    oracle=_absorbed,
    returns=("q_latent",),
    like=("q_nope",),
    mistakes=(
        _absorbed_slip("high nibble first", SWAPPED, swapped=True),
        _absorbed_slip("halves in a byte", HALVES, halves=True),
        _absorbed_slip("no sign", UNSIGNED, signed=(False, False)),
        _absorbed_slip("high nibble without sign", HIGH_UNSIGNED, signed=(True, False)),
        _absorbed_slip("8 without sign", EIGHT, first=9),
        _absorbed_slip("wraps in eight bits", WRAPS, wraps=True),
        _absorbed_slip("offset for two's complement", OFFSET, offset=8),
        _absorbed_slip("scales tiled", TILED, how="tiled"),
        _absorbed_slip(
            "first group's scale",
            "every group is multiplied by the scale of the first: the pointer to the scales must move with the group",
            how="first",
        ),
        _absorbed_slip(
            "last group's scale",
            "the whole sum is multiplied by the scale of the last group: multiply each group's sum by its own before "
            "it is added",
            how="last",
        ),
        _absorbed_slip("no scales", UNSCALED, how="none"),
        _absorbed_slip(
            "weights of head 0", "every head takes the weights of head 0: row r of head h is row h·R + r", head=True
        ),
    ),
    kernel=True,
    launches=1,
    speed=Speed(
        points=3,
        case=dict(B=16, H=128, Dn=128, R=512, group=128, dtype=BF16),
        small=dict(H=8),
        axes=dict(q_nope="bh", packed="hr", scales="hr", q_latent="bhr"),
        floor=_absorbed_floor,
        bars=((0.1, 0.5), (0.12, 1.0)),
        baseline=_half_product,
    ),
)

# --- which_clock ------------------------------------------------------------------------------------------------------

CLOCKS = ("wall", "events", "graph", "flushed")


def _times(r: Random, fits: bool = True) -> dict[str, float]:
    """Microseconds of a kernel by each clock. What does not fit into the L2 takes the same warm and flushed."""
    graph = r.uniform(2, 30)
    flushed = graph * (r.uniform(1.3, 2.5) if fits else r.uniform(1.0, 1.02))
    events = flushed + r.uniform(3, 20)
    return dict(wall=events + r.uniform(5, 30), events=events, graph=graph, flushed=flushed)


def _tables(r: Random, products: int = 2, fits: bool = True) -> dict[str, Any]:
    times = [_times(r, fits) for _ in range(products)]
    size = r.uniform(0.3, 0.8) * 4e12 * sum(each["flushed"] for each in times) * 1e-6
    return dict(products=times, attention=_times(r), weight_bytes=int(size), bandwidth=4e12)


def _clocks(
    products: Sequence[dict[str, float]],
    attention: dict[str, float],
    weight_bytes: int,
    bandwidth: float,
    *,
    share: Any = lambda x, a: x / (x + a),
    add: Any = sum,
    launching: Any = lambda t: 1 - t["graph"] / t["wall"],
    resident: Any = lambda t: 1 - t["graph"] / t["flushed"],
    floor: Any = lambda least, t: least / t["flushed"],
) -> dict[str, float]:
    """Return what the clocks say. Each keyword makes a mistake."""
    total = {clock: add([each[clock] for each in products]) for clock in CLOCKS}
    least = 1e6 * weight_bytes / bandwidth
    shares = {f"{clock}_share": share(total[clock], attention[clock]) for clock in CLOCKS}
    return shares | {"launch_share": launching(total), "l2_share": resident(total), "of_floor": floor(least, total)}


_clock_slip = slips(_clocks)
# About what an H200 shows for a layer of DeepSeek-V3, one request.
LIKE_H200 = dict(
    products=[
        dict(wall=25.0, events=14.0, graph=5.0, flushed=8.5),
        dict(wall=24.0, events=13.5, graph=4.6, flushed=8.6),
    ],
    attention=dict(wall=60.0, events=40.0, graph=14.0, flushed=16.0),
    weight_bytes=2 * 128 * 128 * 512 * 2,
    bandwidth=4.8e12,
)
BEYOND_L2 = dict(
    products=[dict(wall=60.0, events=50.0, graph=40.0, flushed=40.5)],
    attention=dict(wall=30.0, events=20.0, graph=8.0, flushed=10.0),
    weight_bytes=96 * 2**20,
    bandwidth=3.35e12,
)
THREE = LIKE_H200 | dict(
    products=[*LIKE_H200["products"], dict(wall=31.0, events=19.0, graph=7.0, flushed=9.5)],
    weight_bytes=3 * 2**24,
    bandwidth=3.35e12,
)

CLOCK = Exercise(
    name="which_clock",
    title="what each of four clocks says",
    parts=(
        Part(
            "the two products of a layer", 2, visible=[LIKE_H200], hidden=lambda r: [_tables(r) for _ in range(3)]
        ),
        Part(
            "other tables",
            1,
            visible=[BEYOND_L2, THREE],
            hidden=lambda r: [_tables(r, 1, fits=False), _tables(r, 3), _tables(r, r.randint(4, 9))],
        ),
    ),
    inputs=as_given,
    oracle=_clocks,
    returns=("the reading",),
    mistakes=(
        _clock_slip(
            "ratio for share",
            "the shares are products over attention: a share is the part of both together",
            share=lambda x, a: x / a,
        ),
        _clock_slip(
            "share of the attention", "the shares are those of the attention: asked are those of the products",
            share=lambda x, a: a / (x + a),
        ),
        _clock_slip(
            "one product only", "only the first product counts: a layer has all that are in the list",
            add=lambda times: times[0],
        ),
        _clock_slip(
            "longest product only", "only the longest product counts: they run one after the other, so they add",
            add=max,
        ),
        _clock_slip(
            "mean of the products", "the products' times are averaged: they run one after the other, so they add",
            add=lambda times: sum(times) / len(times),
        ),
        _clock_slip(
            "launches by the events",
            "launch_share compares the graph with the events: asked is the part of the wall clock's time",
            launching=lambda t: 1 - t["graph"] / t["events"],
        ),
        _clock_slip(
            "launches by the flushed graph",
            "launch_share compares a clock whose L2 is warm with one whose L2 is empty: repeated calls find their "
            "weights in L2, so take the warm graph",
            launching=lambda t: 1 - t["flushed"] / t["wall"],
        ),
        _clock_slip(
            "share of the work",
            "launch_share is the part in which the kernels run: asked is the rest",
            launching=lambda t: t["graph"] / t["wall"],
        ),
        _clock_slip(
            "L2 over the warm time",
            "l2_share is relative to the warm time: asked is the part of the flushed time that a warm L2 saves",
            resident=lambda t: t["flushed"] / t["graph"] - 1,
        ),
        _clock_slip(
            "floor over the warm graph",
            "of_floor holds DRAM's floor against a graph that reads the L2: take the clock for which the bytes come "
            "from DRAM",
            floor=lambda least, t: least / t["graph"],
        ),
        _clock_slip(
            "floor upside down", "of_floor is how many floors the time is: asked is the floor's part of the time",
            floor=lambda least, t: t["flushed"] / least,
        ),
    ),
)  # fmt: skip

# --- l2_knee ----------------------------------------------------------------------------------------------------------


def _sweep(
    _: torch.Generator | None,
    mib: Sequence[float],
    knee: int,
    fixed: float,
    l2: float,
    dram: float,
    copy: float,
    late: int | None = None,
    slow: int | None = None,
) -> Arguments:
    """Return a table [bytes, us] of reads that the L2 serves up to row `knee`, and DRAM from there on.

    l2 and dram are in TB/s, and so is copy, which is given. No line is quite straight: the step to row `late`, beyond
    the knee, is as fast as one from the L2, as in the lesson's own sweep; that to row `slow` is slower than the knee's.
    """
    rows, saved = [], 0.0
    held = mib[knee] / (mib[knee + 1] - mib[knee]) * (1 / dram - 1 / l2) / 1e6  # by a byte of the knee's step
    for n, size in enumerate(mib):
        nbytes = int(size * 2**20)
        saved += (nbytes - rows[-1][0]) * (1 / dram - 1 / l2) / 1e6 if n == late else 0.0
        saved -= (nbytes - rows[-1][0]) * 2 * held if n == slow else 0.0
        rows.append([nbytes, fixed + nbytes / (l2 if n <= knee else dram) / 1e6 + 0.02 * (n % 3) - saved])
    return {"rows": rows, "bandwidth": 1e12 * copy}


def _knee(
    rows: Sequence[Sequence[float]],
    bandwidth: float,
    *,
    found: Any = lambda steps, rows, bandwidth: next(n for n, step in enumerate(steps) if step < bandwidth),
    beyond: bool = False,
    by_size: bool = False,
    transition: bool = False,
    giga: float = 1e9,
    fixed: Any = lambda nbytes, us, rate: us - 1e6 * nbytes / rate,
) -> dict[str, float]:
    """Return what the sweep says. Each keyword makes a mistake."""
    steps = [_rate(*pair) for pair in itertools.pairwise(rows)]
    knee = found(steps, rows, bandwidth)
    origin = [0, 0.0]
    l2 = _rate(origin if by_size else rows[0], rows[knee])
    dram = _rate(origin if by_size else rows[knee + (not transition)], rows[-1])
    return {
        "knee_bytes": rows[knee + beyond][0],
        "l2_gb_per_s": l2 / giga,
        "dram_gb_per_s": dram / giga,
        "fixed_us": fixed(*rows[0], l2),
    }


def _rate(low: Sequence[float], high: Sequence[float]) -> float:
    return (high[0] - low[0]) / (high[1] - low[1]) * 1e6


def _drawn_sweep(r: Random, knee: int) -> dict[str, Any]:
    mib = [4.0 * r.randint(1, 3)]
    for _ in range(knee + r.randint(2, 5)):
        mib.append(mib[-1] + 4 * r.randint(1, 6))
    dram = r.uniform(1, 4)
    copy = dram * r.uniform(1.05, 1.2)
    late = r.randint(knee + 3, len(mib) - 1) if knee + 3 < len(mib) else None
    sweep = dict(mib=mib, knee=knee, fixed=r.uniform(1, 4), l2=copy * r.uniform(1.6, 3), dram=dram, copy=copy)
    slow = [n for n in range(knee + 2, len(mib) - 1) if n != late]
    return sweep | dict(late=late, slow=r.choice([*slow, None]))


def _behind_last_fast(steps: Sequence[float], rows: Sequence[Sequence[float]], bandwidth: float) -> int:
    """The row behind the last fast step but for the last of all, and two rows before the end at most."""
    return min(max(n for n, step in enumerate(steps[:-1]) if step >= bandwidth) + 1, len(rows) - 3)


_knee_slip = slips(_knee)
SWEEP = dict(mib=(8, 16, 24, 32, 40, 48, 64, 96, 128), knee=3, fixed=2.0, l2=7.0, dram=4.0, copy=4.2)
SMALL = dict(mib=(1, 2, 4, 8, 16, 32, 40, 48, 56, 64), knee=4, fixed=3.0, l2=2.5, dram=0.9, copy=1.0)

KNEE = Exercise(
    name="l2_knee",
    title="where a sweep leaves the L2",
    parts=(
        Part(
            "an L2 of some rows",
            2,
            visible=[SWEEP | dict(late=8, slow=6), SWEEP | dict(late=5)],
            hidden=lambda r: [_drawn_sweep(r, r.randint(2, 4)) for _ in range(3)],
        ),
        Part(
            "a large one and a small one",
            1,
            # who takes the last slow step gets 0/0 in the second
            visible=[SMALL | dict(late=9, slow=7), SMALL | dict(late=6)],
            hidden=lambda r: [_drawn_sweep(r, n) for n in (1, 5, 6)],
        ),
    ),
    inputs=_sweep,
    oracle=_knee,
    returns=("the reading",),
    mistakes=(
        _knee_slip(
            "row beyond the knee",
            "knee_bytes is the first size that the L2 no longer holds: asked is the last one before the step",
            beyond=True,
        ),
        _knee_slip(
            "last slow step",
            "the knee is taken at the last slow step: take the first, whatever follows",
            found=lambda steps, rows, bandwidth: max(n for n, step in enumerate(steps[:-1]) if step < bandwidth),
        ),
        _knee_slip(
            "slowest step",
            "the knee is taken at the slowest step: take the first below the bandwidth, whatever follows",
            found=lambda steps, rows, bandwidth: min(range(len(steps) - 1), key=lambda n: steps[n]),
        ),
        _knee_slip(
            "behind the last fast step",
            "the knee is behind the last fast step: beyond the L2 one step may be fast by chance, so take the first "
            "slow one",
            found=_behind_last_fast,
        ),
        _knee_slip(
            "rates by size",
            "the rates are bytes over time of one row: that holds the fixed time of a call; take differences of rows",
            by_size=True,
        ),
        _knee_slip(
            "step within DRAM's rate",
            "dram_gb_per_s begins at the knee, and so holds the step from L2 to DRAM: begin at the row behind it",
            transition=True,
        ),
        _knee_slip("GiB", "the rates are in GiB/s: a GB is 10^9 bytes", giga=2**30),
        _knee_slip(
            "time of the first row",
            "fixed_us is the whole time of the first row: subtract what its bytes take at the L2's rate",
            fixed=lambda nbytes, us, rate: us,
        ),
    ),
)

EXERCISES = (BYTES, QUANTIZE, DEQUANTIZE, ABSORB, CLOCK, KNEE)
