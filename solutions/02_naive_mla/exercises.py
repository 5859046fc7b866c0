"""Lesson 02: naive MLA. What is cached of a token, how keys and values come back from it, and one decode step."""

from __future__ import annotations

import math
from functools import partial
from random import Random
from typing import Any

import torch
from torch import Tensor

from autograder.judging.exercise import Arguments, Exercise, Mistake, Part, randn
from mla_ref.attention import absorb
from mla_ref.norm import rms_norm
from mla_ref.rope import apply_rope

from ..drawing import DEFAULT, EPS, angles, as_given, mla_operands, norm_rows, sink, turning
from ..oracles import (
    CROSSED,
    HIDDEN,
    MLA_SCALES,
    TURN_MISTAKES,
    ZERO_IS_SEEN,
    altered,
    axis_mistakes,
    base_2_mistake,
    causal,
    hidden_mistakes,
    mask_mistakes,
    norm_mistakes,
    other_defaults,
    other_scales,
    rotated,
    slips,
    sum_mistakes,
    upside_down,
    weighed,
)

NOTHING = torch.empty(0)  # what a mistake gives where it cannot be made; no result matches it

# --- predict_latent_cache ---------------------------------------------------------------------------------------------

DEEPSEEK_V3 = dict(num_heads=128, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128, kv_lora_rank=512)


def _bytes(expanded: float, latent: float) -> dict[str, float]:
    return {"expanded_bytes": expanded, "latent_bytes": latent, "ratio": expanded / latent}


def _slip(change: Any) -> Any:
    """Return an oracle from `change(H, Dn, Dr, Dv, R, itemsize) -> (expanded, latent)`."""
    return lambda **config: _bytes(*change(*config.values()))


_cache_bytes = _slip(lambda H, Dn, Dr, Dv, R, b: (H * (Dn + Dr + Dv) * b, (R + Dr) * b))


def _odd_config(r: Random) -> dict[str, int]:
    return dict(
        num_heads=r.randint(2, 200),
        qk_nope_head_dim=r.choice([32, 96, 128, 192]),
        qk_rope_head_dim=r.choice([16, 32, 48]),
        v_head_dim=r.choice([40, 72, 256]),
        kv_lora_rank=r.choice([100, 256, 384, 768]),
        itemsize=r.choice([2, 4]),
    )


PREDICT = Exercise(
    name="predict_latent_cache",
    title="prediction: bytes cached per token",
    parts=(
        Part("DeepSeek-V3 in 16 bits", 1, visible=[dict(**DEEPSEEK_V3, itemsize=2)]),
        Part(
            "any shape",
            1,
            visible=[
                dict(
                    num_heads=5,
                    qk_nope_head_dim=96,
                    qk_rope_head_dim=32,
                    v_head_dim=80,
                    kv_lora_rank=192,
                    itemsize=4,
                )
            ],
            hidden=lambda r: [_odd_config(r), _odd_config(r), _odd_config(r) | dict(itemsize=1)],
        ),
    ),
    inputs=as_given,
    oracle=_cache_bytes,
    returns=("prediction",),
    tolerance=1e-6,
    mistakes=(
        Mistake(
            "elements",
            "these are elements, expected bytes: multiply by itemsize",
            _slip(lambda H, Dn, Dr, Dv, R, b: (H * (Dn + Dr + Dv), R + Dr)),
        ),
        Mistake(
            "no RoPE key",
            "latent_bytes leaves out the rotated key: the cache holds R + Dr numbers per token",
            _slip(lambda H, Dn, Dr, Dv, R, b: (H * (Dn + Dr + Dv) * b, R * b)),
        ),
        Mistake(
            "K and V",
            "latent_bytes counts keys and values apart: one latent serves both, so there is no factor 2",
            _slip(lambda H, Dn, Dr, Dv, R, b: (H * (Dn + Dr + Dv) * b, 2 * (R + Dr) * b)),
        ),
        Mistake(
            "2R",
            "latent_bytes is 2R: the latent is stored once, and the rotated key of Dr comes on top",
            _slip(lambda H, Dn, Dr, Dv, R, b: (H * (Dn + Dr + Dv) * b, 2 * R * b)),
        ),
        Mistake(
            "2R + Dr",
            "latent_bytes is 2R + Dr: keys and values come from one latent, which is stored once",
            _slip(lambda H, Dn, Dr, Dv, R, b: (H * (Dn + Dr + Dv) * b, (2 * R + Dr) * b)),
        ),
        Mistake(
            "RoPE key per head",
            "latent_bytes counts a rotated key for every head: all heads share one of width Dr",
            _slip(lambda H, Dn, Dr, Dv, R, b: (H * (Dn + Dr + Dv) * b, (R + H * Dr) * b)),
        ),
        Mistake(
            "expanded without RoPE",
            "expanded_bytes leaves out the RoPE part: an expanded key is Dn + Dr wide, in every head",
            _slip(lambda H, Dn, Dr, Dv, R, b: (H * (Dn + Dv) * b, (R + Dr) * b)),
        ),
        Mistake(
            "values left out",
            "expanded_bytes leaves out the values: every head has a value of width Dv beside its key",
            _slip(lambda H, Dn, Dr, Dv, R, b: (H * (Dn + Dr) * b, (R + Dr) * b)),
        ),
        Mistake(
            "RoPE part once",
            "expanded_bytes counts the RoPE part once: expanded, the key of each of the H heads holds a copy of it",
            _slip(lambda H, Dn, Dr, Dv, R, b: ((H * (Dn + Dv) + Dr) * b, (R + Dr) * b)),
        ),
        Mistake(
            "inverted",
            "the ratio is upside down: expected expanded_bytes / latent_bytes",
            altered(_cache_bytes, upside_down),
        ),
    ),
)

# --- rms_normalize ----------------------------------------------------------------------------------------------------


def _rows(
    g: torch.Generator,
    shape: tuple[int, ...],
    scale: float = 1.0,
    peak: float | None = None,
    eps: float | str = EPS,
    dtype: torch.dtype = torch.float32,
) -> Arguments:
    return norm_rows(g, shape, shape[-1], scale, peak, eps, dtype)


def _normal(x: Tensor, weight: Tensor, eps: float = EPS, *, mean: bool = False, total: bool = False) -> Tensor:
    x = x - x.mean(-1, keepdim=True) if mean else x
    square = x.square().sum(-1, keepdim=True) if total else x.square().mean(-1, keepdim=True)
    return x / (square + eps).sqrt() * weight


_norm_slips = norm_mistakes(_normal)


def _variance(
    x: Tensor,
    weight: Tensor,
    eps: float = EPS,
    *,
    correction: int = 1,
    mean: bool = False,
    centred: bool = False,
    outside: bool = False,
) -> Tensor:
    """Rows over the root of their variance; with `mean` its square is added back.

    `centred` rows lose their mean, and with `outside` eps is added to the root.
    """
    middle = x.mean(-1, keepdim=True)
    square = (x - middle).square().sum(-1, keepdim=True) / (x.shape[-1] - correction) + mean * middle.square()
    root = square.sqrt() + eps if outside else (square + eps).sqrt()
    return (x - middle if centred else x) / root * weight


def _over_axis(x: Tensor, weight: Tensor, eps: float = EPS, *, axis: int) -> Tensor:
    axis = min(axis, x.dim() - 1)  # where there is no other, a call fails
    return x / (x.square().mean(axis, keepdim=True) + eps).sqrt() * weight


def _clamped(x: Tensor, weight: Tensor, eps: float = EPS) -> Tensor:
    return x / x.square().mean(-1, keepdim=True).clamp(min=eps).sqrt() * weight


def _clamped_root(x: Tensor, weight: Tensor, eps: float = EPS) -> Tensor:
    return x / x.square().mean(-1, keepdim=True).sqrt().clamp(min=eps) * weight


EPS_TOO_SMALL = (
    "eps changes next to nothing in rows near zero: it is squared, or the least value of the root, expected a term of "
    "the sum under it, √(mean square + eps)"
)


def _half_squares(x: Tensor, weight: Tensor, eps: float = EPS) -> Tensor:
    x, weight = x.half(), weight.half()
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + eps) * weight


def _half_mean(x: Tensor, weight: Tensor, eps: float = EPS) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True).half().double() + eps) * weight


RMS = Exercise(
    name="rms_normalize",
    title="RMSNorm that survives float16",
    parts=(
        Part(
            "float32 and float64 rows",
            1,
            visible=[
                dict(shape=(2, 3, 16)),
                dict(shape=(5, 33), scale=20.0),
                dict(shape=(24,)),
                dict(shape=(2, 2, 20), scale=1e6, dtype=torch.float64),  # so large that eps is nothing
            ],
            hidden=lambda r: [
                dict(shape=(r.randint(1, 3), r.randint(1, 7), r.randint(16, 70)), scale=r.uniform(1, 50)),
                dict(shape=(r.randint(16, 90),)),
            ],
        ),
        Part(
            "rows near zero",
            1,
            visible=[
                dict(shape=(4, 16), scale=1e-3),
                dict(shape=(3, 10), scale=1e-3, eps=1e-5),
                dict(shape=(3, 10), scale=1e-3, eps=DEFAULT),
                dict(shape=(2, 8), scale=0.0),
            ],
            hidden=lambda r: [
                dict(shape=(3, r.randint(3, 40)), scale=0.0),
                dict(shape=(r.randint(1, 4), 1), scale=1e-3),
                dict(shape=(3, r.randint(3, 40)), scale=r.uniform(1e-3, 4e-3), eps=1e-5),
                dict(shape=(2, r.randint(3, 40)), scale=r.uniform(1e-3, 4e-3), eps=DEFAULT),
            ],
        ),
        Part(
            "float16, values up to 800",
            1,
            visible=[
                dict(shape=(3, 12), peak=400.0, dtype=torch.float16),
                dict(shape=(2, 512), dtype=torch.bfloat16),
                dict(shape=(2, 3), peak=800.0, dtype=torch.float16),  # the mean of the squares overflows
            ],
            hidden=lambda r: [
                dict(shape=(2, r.randint(300, 512)), scale=r.uniform(1, 9), dtype=torch.bfloat16),
                dict(shape=(2, r.randint(2, 5), r.randint(5, 60)), peak=r.uniform(300, 800), dtype=torch.float16),
                dict(shape=(2, 512), peak=r.uniform(300, 800), dtype=torch.float16),
            ],
        ),
    ),
    inputs=_rows,
    oracle=_normal,
    returns=("y",),
    like=("x",),
    mistakes=(
        _norm_slips["mean subtracted"],
        Mistake(
            "sum",
            "the squares are summed, expected their mean: divide by the width of the row",
            lambda **a: _normal(**a, total=True),
        ),
        _norm_slips["no weight"],
        Mistake(
            "mean of all rows",
            "the mean runs over all of x, expected over the last axis: every row has a mean of its own",
            lambda x, weight, eps=EPS: x / (x.square().mean() + eps).sqrt() * weight,
        ),
        *(
            Mistake(
                f"mean over axis {axis}",
                f"the mean runs over axis {axis}, expected over the last one, -1: every row has a mean of its own",
                lambda axis=axis, **a: _over_axis(**a, axis=axis),
            )
            for axis in (0, 1)
        ),
        *(
            Mistake(name, message, lambda wrong=wrong, **a: _variance(**a, **wrong))
            for name, message, changes in (
                (
                    "variance",
                    "the rows are divided by the root of a variance, expected of the mean of the squares: the variance "
                    "subtracts the row's mean before it squares",
                    (dict(correction=0), dict(correction=0, outside=True)),
                ),
                (
                    "sample variance",
                    "the rows are divided by the root of a variance, expected of the mean of the squares: torch.var "
                    "and torch.std subtract the mean, and divide by one less than the width",
                    ({}, dict(outside=True)),
                ),
                (
                    "sample variance and the mean",
                    "the mean's square is added to a sample variance, expected the mean of the squares: torch.var "
                    "divides by one less than the width",
                    (dict(mean=True),),
                ),
                (
                    "standardised",
                    "the rows are standardised, with a sample variance: RMSNorm does not subtract the mean, and "
                    "divides by the root of the mean of the squares",
                    (dict(centred=True), dict(centred=True, outside=True)),
                ),
            )
            for wrong in changes
        ),
        Mistake(
            "eps as the least mean square",
            "eps is taken for the least mean square, expected a term of the sum: √(mean square + eps)",
            _clamped,
        ),
        _norm_slips["no root"],
        _norm_slips["1 + weight"],
        _norm_slips["eps outside"],
        _norm_slips["no eps"],
        *(
            Mistake("eps without effect", EPS_TOO_SMALL, oracle)
            for oracle in (lambda x, weight, eps=EPS: _normal(x, weight, eps**2), _clamped_root)
        ),
        _norm_slips["eps fixed"],
        *other_defaults(_normal),
        _norm_slips["times the root"],
        Mistake(
            "float16 mean",
            "the mean of the squares overflows float16 (beyond 65504): convert the result back, at the very end",
            _half_mean,
            at_times=True,
        ),
        Mistake(
            "float16 squares",
            "the squares overflow float16 (beyond 65504): convert x to float32 before squaring",
            _half_squares,
            at_times=True,
        ),
    ),
    forbidden=("rms_norm",),
)

# --- rotate_pairs -----------------------------------------------------------------------------------------------------


def _tiled(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    even, odd = x[..., 0::2], x[..., 1::2]
    swapped = torch.stack((-odd, even), -1).flatten(-2)
    cos, sin = (torch.cat((t, t), -1)[:, None] for t in (cos, sin))
    return x * cos + swapped * sin


def _half_rotation_of_repeated_angles(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    cos, sin = (each.repeat_interleave(2, -1)[:, None] for each in (cos, sin))
    return x * cos + torch.cat((-second, first), -1) * sin


def _by_head(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """What broadcasting [S, Dr/2] against [..., H, Dr/2] gives when S = H."""
    head = torch.arange(x.shape[2]) % len(cos)
    return rotated(x.transpose(1, 2), cos[head], sin[head]).transpose(1, 2)


ROTATE = Exercise(
    name="rotate_pairs",
    title="RoPE on interleaved pairs",
    parts=(
        Part(
            "one position",
            1,
            visible=[dict(B=1, S=1, H=1, Dr=8, first=5)],
            hidden=lambda r: [
                dict(B=2, S=1, H=r.randint(2, 5), Dr=2 * r.randint(2, 9), first=r.randint(1, 9999)),
                dict(B=1, S=1, H=1, Dr=2, first=r.randint(1, 99)),
            ],
        ),
        Part(
            "several positions and heads",
            2,
            visible=[
                dict(B=2, S=3, H=3, Dr=8, first=2),
                dict(B=1, S=5, H=2, Dr=6, first=100),
                dict(B=1, S=3, H=2, Dr=4, first=7, dtype=torch.float64),
            ],
            hidden=lambda r: [
                dict(B=r.randint(1, 3), S=4, H=4, Dr=8, first=r.randint(0, 50)),
                dict(
                    B=r.randint(1, 3),
                    S=r.randint(2, 9),
                    H=r.randint(1, 6),
                    Dr=2 * r.randint(2, 9),
                    first=r.randint(0, 99999),
                ),
            ],
        ),
    ),
    inputs=turning,
    oracle=rotated,
    returns=("y",),
    mistakes=(
        *TURN_MISTAKES,
        Mistake(
            "tiled table",
            "both elements of a pair need the same angle: repeat each column of cos and sin twice in a row",
            _tiled,
        ),
        Mistake(
            "half rotation of repeated angles",
            "element i is paired with i + Dr/2, though its angle is that of its neighbours' pair: turn it with "
            "(−x[1], x[0], −x[3], x[2], …), not with (−second half, first half)",
            _half_rotation_of_repeated_angles,
        ),
        Mistake(
            "angle by head",
            "cos and sin run over the heads, expected over the positions: give them an axis for the heads",
            _by_head,
        ),
    ),
)

# --- latent_kv --------------------------------------------------------------------------------------------------------


def _hidden_states(
    g: torch.Generator, B: int, S: int, D: int, R: int, Dr: int, first: int = 0, scale: float = 1.0
) -> Arguments:
    cos, sin = angles(g, S, Dr, first)
    return {
        "h": randn(g, B, S, D, scale=scale),
        "w_dkv": randn(g, R + Dr, D, scale=2 * D**-0.5),
        "norm_weight": 1 + randn(g, R, scale=0.3),
        "cos": cos,
        "sin": sin,
    }


def _latent(
    h: Tensor,
    w_dkv: Tensor,
    norm_weight: Tensor,
    cos: Tensor,
    sin: Tensor,
    *,
    normalise: bool = True,
    rotate: bool = True,
    swap: bool = False,
    key: bool = False,
) -> tuple[Tensor, Tensor]:
    both, Dr = h @ w_dkv.T, 2 * cos.shape[-1]
    c_kv, k_rope = (both[..., Dr:], both[..., :Dr]) if swap else (both[..., :-Dr], both[..., -Dr:])
    k_rope = rms_norm(k_rope, norm_weight.new_ones(Dr), EPS) if key else k_rope
    return (
        rms_norm(c_kv, norm_weight, EPS) if normalise else c_kv,
        apply_rope(k_rope, cos, sin) if rotate else k_rope,
    )


def _norm_first(h: Tensor, w_dkv: Tensor, norm_weight: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """One norm over latent and key together."""
    Dr = 2 * cos.shape[-1]
    both = rms_norm(h @ w_dkv.T, torch.cat((norm_weight, norm_weight.new_ones(Dr))), EPS)
    return both[..., :-Dr], apply_rope(both[..., -Dr:], cos, sin)


def _latent_over_all(h: Tensor, w_dkv: Tensor, norm_weight: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """The latent of one norm over latent and key together, and the right key."""
    given = h, w_dkv, norm_weight, cos, sin
    return _norm_first(*given)[0], _latent(*given)[1]


def _latent_rotated(h: Tensor, w_dkv: Tensor, norm_weight: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """The first Dr columns of the latent rotated as the key is; of one that has fewer, none."""
    c_kv, k_rope = _latent(h, w_dkv, norm_weight, cos, sin)
    Dr = 2 * cos.shape[-1]
    turned = apply_rope(c_kv[..., :Dr], cos, sin) if Dr <= c_kv.shape[-1] else c_kv[..., :Dr]
    return torch.cat((turned, c_kv[..., Dr:]), -1), k_rope


_latent_slip = slips(_latent)

LATENT = Exercise(
    name="latent_kv",
    title="what MLA caches of a token",
    parts=(
        Part(
            "several tokens",
            2,
            visible=[dict(B=2, S=3, D=14, R=12, Dr=4, first=2), dict(B=1, S=6, D=10, R=8, Dr=8)],
            hidden=lambda r: [_latent_shape(r, S=r.randint(2, 9)), _latent_shape(r, S=r.randint(2, 9))],
        ),
        Part(
            "one token",
            1,
            visible=[dict(B=2, S=1, D=16, R=3, Dr=6, first=7), dict(B=1, S=1, D=12, R=9, Dr=4, first=3, scale=1e-3)],
            hidden=lambda r: [
                _latent_shape(r, S=1),
                _latent_shape(r, S=1) | dict(scale=1e-3),
                dict(B=1, S=1, D=3, R=1, Dr=2, first=r.randint(1, 99)),
            ],
        ),
    ),
    inputs=_hidden_states,
    oracle=_latent,
    returns=("c_kv", "k_rope"),
    tolerance=2e-5,
    mistakes=(
        _latent_slip(
            "not normalised",
            "c_kv is the latent before its RMSNorm: what is cached is the latent after it",
            normalise=False,
        ),
        _latent_slip(
            "not rotated", "k_rope is the key before its rotation: what is cached is the rotated key", rotate=False
        ),
        Mistake(
            "latent rotated",
            "the first columns of c_kv are rotated, too: the latent has no position, only the key is rotated",
            _latent_rotated,
        ),
        Mistake(
            "norm over latent and key",
            "c_kv is normalised with the key's columns in its mean square: split first, the norm covers the R columns "
            "of the latent alone",
            _latent_over_all,
        ),
        _latent_slip(
            "split swapped",
            "the projection is split the wrong way round: the latent is its first R columns, the key its last Dr",
            swap=True,
        ),
        Mistake(
            "key normalised",
            "the RMSNorm runs over latent and key together: it belongs to the R columns of the latent alone",
            _norm_first,
        ),
        _latent_slip(
            "key normalised on its own",
            "the key is normalised, too: the RMSNorm belongs to the latent alone, the key is only rotated",
            key=True,
        ),
        Mistake(
            "angle of token 0",
            "every key turns by the angle of token 0: `rotate_pairs` takes [B, S, H, Dr], so the key's axis of one "
            "head goes behind S",
            lambda cos, sin, **a: _latent(**a, cos=cos[:1].expand_as(cos), sin=sin[:1].expand_as(sin)),
        ),
    ),
    needs=("rms_normalize", "rotate_pairs"),
)


def _latent_shape(r: Random, S: int) -> dict[str, int]:
    return dict(
        B=r.randint(1, 3),
        S=S,
        D=r.randint(5, 30),
        R=r.randint(2, 20),
        Dr=2 * r.randint(1, 6),
        first=r.randint(1, 5000),
    )


# --- naive_mla_attention ----------------------------------------------------------------------------------------------


def _operands(g: torch.Generator, *, depth: float = 0.0, **shape: Any) -> Arguments:
    given = mla_operands(g, **shape)
    if depth:
        sink(given["q_rope"], given["k_rope"], depth)
    return given


def _right(q_nope, q_rope, c_kv, k_rope, w_uk, w_uv):
    """The absorbed form of lesson 03: another route to the same numbers."""
    return absorb(q_nope, q_rope, c_kv, k_rope, w_uk, w_uv)


def _expanded(
    q_nope,
    q_rope,
    c_kv,
    k_rope,
    w_uk,
    w_uv,
    *,
    width=None,
    rope=True,
    axis=-1,
    slip="",
    exchange=False,
    values_from_uk=False,
    overflow=None,
    hidden=None,
    crossed=None,
    unscaled=None,
    apart=False,
    **mask,
):
    """Attention in float64. The keywords make the named mistakes. `width` is what the scale is the root of.

    `crossed` is "query" or "key", of which the parts are joined the other way round. `unscaled` is "nope" or "rope";
    `apart`, each is divided by the root of its own width.
    """
    if (exchange or values_from_uk) and w_uk.shape != w_uv.shape:
        return NOTHING, NOTHING
    w_uk, w_uv = (w_uv, w_uk) if exchange else (w_uk, w_uk if values_from_uk else w_uv)
    root = math.sqrt(q_nope.shape[-1] + q_rope.shape[-1] if width is None else width)
    k_nope = torch.einsum("hdr,btr->bthd", w_uk, c_kv)
    queries = [q_nope * (root if unscaled == "nope" else 1), q_rope * rope * (root if unscaled == "rope" else 1)]
    queries = [x * root / math.sqrt(x.shape[-1]) for x in queries] if apart else queries
    keys = [k_nope, k_rope[:, :, None].expand(*k_nope.shape[:3], -1)]
    queries, keys = queries[:: -1 if crossed == "query" else 1], keys[:: -1 if crossed == "key" else 1]
    scores = torch.einsum("bshd,bthd->bsht", torch.cat(queries, -1), torch.cat(keys, -1)) / root
    scores = causal(scores, **mask)
    scores = scores if hidden is None else scores.masked_fill(scores.isinf(), hidden)
    values = torch.einsum("btr,hvr->bthv", c_kv, w_uv)
    if overflow:
        scores, values = scores.float(), values.float()
        weights, lse = scores.exp(), scores.exp().sum(-1).log()
        weights = weights / weights.sum(-1)[..., None] if overflow == "quotient" else (scores - lse[..., None]).exp()
        return torch.einsum("bsht,bthv->bshv", weights, values), lse
    weights, lse = weighed(scores, axis, slip)
    return torch.einsum("bsht,bthv->bshv", weights, values), lse


_attention_slip = slips(_expanded)

OTHER_SCALES = {
    **MLA_SCALES,
    "√(Dn+Dr)": lambda a: (a["q_nope"].shape[-1] + a["q_rope"].shape[-1]) ** 0.5,
}


ATTENTION = Exercise(
    name="naive_mla_attention",
    title="attention over expanded keys and values",
    parts=(
        Part(
            "one new token",
            2,
            visible=[
                dict(B=1, S=1, T=6, H=2, Dn=8, Dr=4, Dv=8, R=13),
                dict(B=2, S=1, T=17, H=3, Dn=6, Dr=2, Dv=5, R=14),
            ],
            hidden=lambda r: [_mla_shape(r, S=1), dict(B=1, S=1, T=1, H=1, Dn=4, Dr=2, Dv=3, R=5)],
        ),
        Part(
            "several new tokens",
            2,
            visible=[
                dict(B=1, S=4, T=4, H=2, Dn=8, Dr=4, Dv=8, R=13),
                dict(B=2, S=3, T=9, H=2, Dn=6, Dr=4, Dv=10, R=7),
            ],
            hidden=lambda r: [_mla_shape(r, S=r.randint(2, 6)), _mla_shape(r, S=r.randint(2, 6))],
        ),
        Part(
            "large scores",
            1,
            visible=[
                dict(B=8, S=1, T=97, H=3, Dn=8, Dr=4, Dv=8, R=13, scale=35.0),
                dict(B=1, S=1, T=1, H=2, Dn=8, Dr=4, Dv=8, R=13, scale=100.0),
                dict(B=1, S=3, T=5, H=2, Dn=8, Dr=4, Dv=8, R=13, depth=1e10),
            ],
            hidden=lambda r: [_mla_shape(r, S=1) | dict(T=40, scale=r.uniform(100, 200))],
        ),
    ),
    inputs=_operands,
    oracle=_right,
    returns=("out", "lse"),
    tolerance=1e-4,
    mistakes=(
        _attention_slip("no scale", "the scores are not scaled: expected 1/√(Dn+Dr)", width=1),
        Mistake(
            "scale 1/√Dn",
            "the scores are scaled by 1/√Dn, expected 1/√(Dn+Dr): the RoPE part belongs to the key's width",
            lambda **a: _expanded(**a, width=a["q_nope"].shape[-1]),
        ),
        Mistake(
            "scale 1/√(R+Dr)",
            "the scores are scaled by 1/√(R+Dr), expected 1/√(Dn+Dr): the width of a head's key, not of the cache",
            lambda **a: _expanded(**a, width=a["c_kv"].shape[-1] + a["k_rope"].shape[-1]),
        ),
        Mistake(
            "scale 1/(Dn+Dr)",
            "the scores are scaled by 1/(Dn+Dr), expected 1/√(Dn+Dr): the root is missing, or they are scaled twice",
            lambda **a: _expanded(**a, width=(a["q_nope"].shape[-1] + a["q_rope"].shape[-1]) ** 2),
        ),
        *other_scales(lambda scale, **a: _expanded(**a, width=scale**-2), "1/√(Dn+Dr)", OTHER_SCALES),
        _attention_slip(
            "RoPE missing",
            "the RoPE part is missing from the scores: expected q_nope·k_nope + q_rope·k_rope",
            rope=False,
        ),
        _attention_slip(
            "W_UK and W_UV exchanged", "w_uk and w_uv are exchanged: w_uk makes keys, w_uv makes values", exchange=True
        ),
        _attention_slip(
            "values from W_UK",
            "the values come from w_uk: the keys without position were taken for values, expected w_uv",
            values_from_uk=True,
        ),
        *(_attention_slip("parts crossed", CROSSED, crossed=which) for which in ("query", "key")),
        *(
            _attention_slip(
                f"{part} part not scaled",
                f"only one of the two terms is scaled, and q_{part}·k_{part} is not: divide their sum",
                unscaled=part,
            )
            for part in ("nope", "rope")
        ),
        _attention_slip(
            "scaled apart",
            "the two terms are scaled apart, by 1/√Dn and 1/√Dr: divide their sum by √(Dn+Dr)",
            apart=True,
        ),
        *mask_mistakes(_expanded, "q_nope", "c_kv"),
        *axis_mistakes(_expanded),
        _attention_slip("future scored 0", ZERO_IS_SEEN, hidden=0.0),
        *hidden_mistakes(partial(_expanded, hidden=HIDDEN), partial(_expanded, added=HIDDEN)),
        *sum_mistakes(_expanded),
        base_2_mistake(_expanded),
        Mistake(
            "lse not scaled",
            "out is right, but lse is that of the scores before they are scaled: scale first",
            lambda **a: (_expanded(**a)[0], _expanded(**a, width=1)[1]),
        ),
        Mistake(
            "overflow",
            "exp overflows: subtract each row's maximum before the exponent",
            lambda **a: (_expanded(**a, overflow="quotient")[0], None),  # any lse
        ),
        _attention_slip(
            "overflow in lse",
            "exp overflows before the logarithm is taken: use torch.logsumexp, or subtract each row's maximum first",
            overflow="lse",
        ),
    ),
    forbidden=("scaled_dot_product",),
)


def _mla_shape(r: Random, S: int) -> dict[str, int]:
    return dict(
        B=r.randint(1, 3),
        S=S,
        T=S + r.randint(0, 30),
        H=r.randint(1, 5),
        Dn=r.randint(2, 12),
        Dr=2 * r.randint(1, 4),
        Dv=r.randint(1, 12),
        R=r.randint(3, 20),
    )


# --- mla_decode_step --------------------------------------------------------------------------------------------------


def _decoding(
    g: torch.Generator, B: int, capacity: int, position: int, H: int = 2, D: int = 16, sharp: float = 1.0
) -> Arguments:
    """A layer in mid-generation. Cache rows from `position` on hold what an earlier sequence left there.

    Queries are `sharp` times as large, and so are scores.
    """
    Dn, Dr, Dv, R, Rq = 6, 4, 5, 12, 8
    cos, sin = angles(g, capacity, Dr, 0)
    return {
        "h": randn(g, B, 1, D),
        "weights": {
            "w_dq": randn(g, Rq, D, scale=D**-0.5),
            "q_norm": 1 + randn(g, Rq, scale=0.3),
            "w_uq": randn(g, H, Dn + Dr, Rq, scale=2 * sharp * Rq**-0.5),
            "w_dkv": randn(g, R + Dr, D, scale=2 * D**-0.5),
            "kv_norm": 1 + randn(g, R, scale=0.3),
            "w_uk": randn(g, H, Dn, R, scale=R**-0.5),
            "w_uv": randn(g, H, Dv, R, scale=R**-0.5),
            "w_o": randn(g, D, H * Dv, scale=(H * Dv) ** -0.5),
        },
        "c_cache": randn(g, B, capacity, R),
        "k_cache": randn(g, B, capacity, Dr, scale=2.0),
        "position": position,
        "cos": cos,
        "sin": sin,
    }


def _step(
    h: Tensor,
    weights: dict[str, Tensor],
    c_cache: Tensor,
    k_cache: Tensor,
    position: int,
    cos: Tensor,
    sin: Tensor,
    *,
    angle: int | None = None,
    key_angle: int | None = None,
    again: bool = False,
    attend: int | None = None,
    joined: bool = True,
    first: int = 0,
    late: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """One decode step. The new token is rotated for position `angle`, or its key for another, and sees `attend` rows.

    It sees them from row `first` on, and as they were before it is written if that is `late`.
    The heads are `joined` one after the other, or else each number with that of the other heads.
    """
    angle = min(position if angle is None else angle, len(cos) - 1) % len(cos)
    attend = position + 1 if attend is None else attend
    here, there = ((cos[[at]], sin[[at]]) for at in (angle, angle if key_angle is None else key_angle))
    q = torch.einsum("bsr,hdr->bshd", rms_norm(h @ weights["w_dq"].T, weights["q_norm"], EPS), weights["w_uq"])
    Dr = 2 * cos.shape[-1]
    q_nope, q_rope = q[..., :-Dr], apply_rope(q[..., -Dr:], *here)
    c_new, k_new = _latent(h, weights["w_dkv"], weights["kv_norm"], *there)
    c, k = c_cache.clone(), k_cache.clone()
    c[:, position], k[:, position] = c_new[:, 0], k_new[:, 0]
    latents, keys = (c_cache, k_cache) if late else (c, apply_rope(k, cos, sin) if again else k)
    seen = latents[:, first:attend], keys[:, first:attend]
    out, _ = absorb(q_nope, q_rope, *seen, weights["w_uk"], weights["w_uv"], causal=False)
    u = (out if joined else out.mT).flatten(2) @ weights["w_o"].T
    return u, c, k


def _written(by: int, **a: Any) -> tuple[None, Tensor, None]:
    """The latent is `by` rows too far. Output and key match anything, as the key may be rotated for that row too."""
    row, there = a["position"] + by, a["c_cache"].clone()
    if row == there.shape[1]:  # where the call fails
        return None, math.nan, None
    there[:, row] = _step(**a)[1][:, a["position"]]  # one row before the first is the last
    return None, there, None


def _of_sequence_0(key: bool = False, all_rows: bool = True, **a: Any) -> tuple[None, Tensor | None, Tensor | None]:
    """The row of sequence 0 in all sequences, or in its own alone. Output and the other cache match anything."""
    right, before = _step(**a)[1 + key], a["k_cache" if key else "c_cache"]
    there, row = before.clone(), right[0, a["position"]]
    there[slice(None) if all_rows else 0, a["position"]] = row
    return (None, None, there) if key else (None, there, None)


_step_slip = slips(_step)

DECODE = Exercise(
    name="mla_decode_step",
    title="one token through a layer with a latent cache",
    parts=(
        Part(
            "a token in mid-sequence",
            3,
            visible=[
                dict(B=1, capacity=8, position=3),
                dict(B=2, capacity=12, position=7, H=3),
                dict(B=2, capacity=24, position=20, H=3, sharp=40.0),  # scores beyond 100
            ],
            hidden=lambda r: [
                dict(B=r.randint(1, 3), capacity=n + r.randint(1, 9), position=n - 1, H=r.randint(1, 4))
                for n in (r.randint(2, 6), r.randint(7, 40))
            ],
        ),
        Part(
            "the first token and the last free row",
            1,
            visible=[dict(B=2, capacity=6, position=0), dict(B=1, capacity=6, position=5)],
            hidden=lambda r: [
                dict(B=1, capacity=1, position=0),
                *(dict(B=2, capacity=n, position=n - 1, H=3) for n in (r.randint(2, 20),)),
            ],
        ),
    ),
    inputs=_decoding,
    oracle=_step,
    returns=("u", "c_cache", "k_cache"),
    tolerance=1e-4,
    mistakes=(
        Mistake(
            "rotated one late",
            "the new token is rotated for position + 1: positions count from 0, so it stands at `position`",
            lambda **a: _step(**a, angle=a["position"] + 1),
        ),
        _step_slip(
            "rotated at 0", "the new token is rotated for position 0: take the row `position` of cos and sin", angle=0
        ),
        _step_slip(
            "key rotated at 0",
            "the new token's key is rotated for position 0: key and query take the same row of cos and sin, `position`",
            key_angle=0,
        ),
        Mistake(
            "query rotated at 0",
            "the new token's query is rotated for position 0: key and query take the same row of cos and sin, "
            "`position`",
            lambda **a: _step(**a, angle=0, key_angle=a["position"]),
        ),
        Mistake(
            "cos and sin exchanged",
            "the new token is rotated with cos for sin and sin for cos: latent_kv and mla_query take cos first",
            lambda **a: _step(**a | {"cos": a["sin"], "sin": a["cos"]}),
        ),
        Mistake(
            "rotated one early",
            "the new token is rotated for position - 1: with `position` tokens cached it stands at `position`",
            lambda **a: _step(**a, angle=a["position"] - 1),
        ),
        Mistake(
            "rotated for the last row",
            "the new token is rotated for the last row of cos and sin: take the row `position`",
            lambda **a: _step(**a, angle=len(a["cos"]) - 1),
        ),
        _step_slip(
            "rotated again", "the cached keys are rotated a second time: they went into the cache rotated", again=True
        ),
        Mistake(
            "not written",
            "the caches come back without the new token: write it to row `position`",
            lambda **a: (None, a["c_cache"], a["k_cache"]),
        ),
        Mistake(
            "written one row late",
            "the new token is written to row position + 1: rows 0 to position - 1 are filled, the next is `position`",
            lambda **a: _written(1, **a),
        ),
        Mistake(
            "written one row early",
            "the new token is written to row position - 1, over the last cached one: the next free row is `position`",
            lambda **a: _written(-1, **a),
        ),
        Mistake(
            "latent not written",
            "c_cache comes back without the new token's latent: both caches get row `position`",
            lambda **a: (None, a["c_cache"], _step(**a)[2]),
        ),
        *(
            Mistake(
                "row of sequence 0",
                "all sequences get the row of sequence 0: each sequence has a token, and a row, of its own",
                lambda key=key, **a: _of_sequence_0(key, **a),
            )
            for key in (False, True)
        ),
        Mistake(
            "sequence 0 alone",
            "only sequence 0 is written: row `position` of every sequence gets its own token",
            lambda **a: _of_sequence_0(all_rows=False, **a),
        ),
        _step_slip(
            "heads not one after the other",
            "the heads are joined as [Dv, H], expected one after the other, [H, Dv]: out.flatten(2)",
            joined=False,
        ),
        Mistake(
            "key not written",
            "k_cache comes back without the new token's key: both caches get row `position`",
            lambda **a: (None, _step(**a)[1], a["k_cache"]),
        ),
        Mistake(
            "new token not seen",
            "the new token does not attend to itself: the filled part is position + 1 rows long",
            lambda **a: _step(**a, attend=a["position"]),
        ),
        _step_slip(
            "written too late",
            "the token attends before its own row is written: write row `position` of both caches first",
            late=True,
        ),
        Mistake(
            "new token alone",
            "the new token attends to itself alone: it sees all position + 1 filled rows of the caches",
            lambda **a: _step(**a, first=a["position"]),
        ),
        Mistake(
            "whole capacity",
            "the token attends to cache rows that are not filled: only the first position + 1 count",
            lambda **a: _step(**a, attend=a["c_cache"].shape[1]),
        ),
    ),
    needs=("rms_normalize", "rotate_pairs", "latent_kv", "naive_mla_attention"),
    forbidden=("scaled_dot_product",),
    may_change=("c_cache", "k_cache"),
)

EXERCISES = (PREDICT, RMS, ROTATE, LATENT, ATTENTION, DECODE)
