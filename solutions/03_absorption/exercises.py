"""Lesson 03: weight absorption. W_UK moves into the query, W_UV behind the softmax; what that costs and saves."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from random import Random

import torch
from torch import Tensor

from autograder.isolation.sandbox import Limits
from autograder.judging.exercise import Arguments, Exercise, Mistake, Part, randn
from mla_ref import Cost
from mla_ref.attention import latent_attention
from mla_ref.roofline import (
    absorb_projection_cost,
    attention_cost,
    expansion_cost,
    kv_cache_elements,
    operand_cost,
)

from ..drawing import V3, as_given, config, latent_operands, mla_operands, sink, widths
from ..oracles import (
    CROSSED,
    HIDDEN,
    MLA_SCALES,
    ZERO_IS_SEEN,
    axis_mistakes,
    base_2_mistake,
    causal,
    hidden_mistakes,
    mask_mistakes,
    other_scales,
    slips,
    sum_mistakes,
    weighed,
)

LITE = V3 | dict(H=16)

# Where key and value differ in width, scaled_dot_product_attention runs as several operators, this one among them.
SDPA = ("scaled_dot_product",)


# predict_macs


def _macs(H, Dn, Dr, Dv, R):
    layer = config(H, Dn, Dr, Dv, R)
    flops = {kind: attention_cost(kind, layer, batch=1, context=1).flops for kind in ("naive", "absorb")}
    return {
        "naive_macs": flops["naive"] / 2,
        "absorb_macs": flops["absorb"] / 2,
        "naive_words": kv_cache_elements("naive", layer),
        "absorb_words": kv_cache_elements("absorb", layer),
    }


def _slip(message: str, name: str, slip) -> Mistake:
    """Return a mistake. What `slip` returns stands in place of some of the right numbers."""
    return Mistake(name, message, lambda **a: _macs(**a) | slip(**a))


PREDICT_MACS = Exercise(
    name="predict_macs",
    title="MACs and cached words of both forms",
    parts=(
        Part("DeepSeek-V3", 1, visible=[V3]),
        Part(
            "any layer",
            1,
            visible=[dict(H=3, Dn=16, Dr=8, Dv=12, R=32), LITE],
            hidden=lambda r: [dict(H=r.randint(2, 96)) | widths(r) for _ in range(3)],
        ),
    ),
    inputs=as_given,
    oracle=_macs,
    returns=("costs",),
    tolerance=1e-6,
    mistakes=(
        Mistake(
            "FLOPs for MACs",
            "these are FLOPs: one multiply-accumulate is one MAC and two FLOPs, and MACs are asked for",
            lambda **a: {k: v * (2 if "macs" in k else 1) for k, v in _macs(**a).items()},
        ),
        _slip(
            "the RoPE part is missing: Dr counts once in the width of a query and a key, and is cached too",
            "RoPE part left out",
            lambda H, Dn, Dr, Dv, R: {
                "naive_macs": H * (Dn + Dv),
                "absorb_macs": H * 2 * R,
                "naive_words": H * (Dn + Dv),
                "absorb_words": R,
            },
        ),
        _slip(
            "the latent cache is counted once per head; all H heads read the same R+Dr words of a token",
            "latent cached per head",
            lambda H, Dn, Dr, Dv, R: {"absorb_words": H * (R + Dr)},
        ),
        _slip(
            "the latent is counted twice, as key and as value; it is stored once, and the value is the first R words "
            "of the key",
            "latent cached twice",
            lambda H, Dn, Dr, Dv, R: {"absorb_words": 2 * R + Dr},
        ),
        _slip(
            "only the scores are counted; the weighted sum of the values takes as many MACs as a value is wide, in "
            "every head",
            "weighted sum left out",
            lambda H, Dn, Dr, Dv, R: {"naive_macs": H * (Dn + Dr), "absorb_macs": H * (R + Dr)},
        ),
        _slip(
            "absorb's value is counted as R+Dr wide; the RoPE part belongs to the key alone, so the value is R wide",
            "value with RoPE part",
            lambda H, Dn, Dr, Dv, R: {"absorb_macs": H * 2 * (R + Dr)},
        ),
        _slip(
            "absorb's MACs are counted for one head; one key serves all heads, but each of the H query heads "
            "multiplies with it",
            "one query head",
            lambda H, Dn, Dr, Dv, R: {"absorb_macs": 2 * R + Dr},
        ),
        _slip(
            "one head is counted: the MACs of both forms, and the expanded keys and values, are those of all H heads",
            "one head",
            lambda H, Dn, Dr, Dv, R: {
                "naive_macs": Dn + Dr + Dv,
                "absorb_macs": 2 * R + Dr,
                "naive_words": Dn + Dr + Dv,
            },
        ),
        _slip(
            "naive's RoPE part is counted once for all heads: every head's query and key are multiplied, and stored, "
            "whole, Dn+Dr wide",
            "RoPE part shared",
            lambda H, Dn, Dr, Dv, R: {"naive_macs": H * (Dn + Dv) + Dr, "naive_words": H * (Dn + Dv) + Dr},
        ),
        _slip(
            "naive_words counts the RoPE part once; expanded, every head's key is stored whole, Dn+Dr wide",
            "RoPE part cached once",
            lambda H, Dn, Dr, Dv, R: {"naive_words": H * (Dn + Dv) + Dr},
        ),
        _slip(
            "absorb's value is counted as Dv wide; what is averaged is the latent itself, R wide, and W_UV comes after "
            "the sum",
            "value of width Dv",
            lambda H, Dn, Dr, Dv, R: {"absorb_macs": H * (R + Dr + Dv)},
        ),
        Mistake(
            "bytes for words",
            "these are bytes of a 16-bit cache: words are asked for, so leave the 2 out",
            lambda **a: {k: v * (2 if "words" in k else 1) for k, v in _macs(**a).items()},
        ),
    ),
)


# absorb_query and absorb_output


def _per_head(x, w):
    """Multiply each head of x [B, S, H, in] by its own matrix w [H, in, out], one head at a time."""
    return torch.stack([x[:, :, h] @ w[h] for h in range(w.shape[0])], dim=2)


def _by_position(x, w):
    """What `x @ w` gives where S equals H: the matrix is picked by the query's position, not by its head."""
    return x @ w if x.shape[1] in (1, w.shape[0]) or w.shape[0] == 1 else torch.zeros(())


def _transposed(x, w):
    return _per_head(x, w.mT) if w.shape[1] == w.shape[2] else torch.zeros(())


def _reshaped(batch_first: bool) -> Callable[[Tensor], Tensor]:
    """Return what takes [B, S, H, ...] for what it should be where it lies as [H, B, S, ...], or as [B, H, S, ...]."""
    order = (0, 2, 1, 3) if batch_first else (2, 0, 1, 3)
    return lambda x: x.permute(order).reshape(x.shape)


def _misread(x, w, back: bool):
    """Read x [B, S, H, in] as [H, B·S, in], as it lies; bring the heads of the result back where `back`."""
    B, S, H, _ = x.shape
    found = x.reshape(H, B * S, -1) @ w
    return found.view(H, B, S, -1).permute(1, 2, 0, 3) if back else found.reshape(B, S, H, -1)


MISREAD = (
    "{x} is reshaped to [H, B·S, …], which moves no axis: a head's weight meets rows of other heads. Permute the heads "
    "to the front first"
)
HEADS_FIRST = (
    "the heads stand before the positions where the result is reshaped, which mixes the two: bring the axes into the "
    "order [B, S, H, …] first"
)


def _projection_parts(width: str) -> tuple[Part, Part]:
    """Return the parts of a projection to or from the latent. `width` names the size of a head: "Dn" or "Dv"."""

    def case(B: int, S: int, H: int, size: int, R: int) -> dict[str, int]:
        return {"B": B, "S": S, "H": H, width: size, "R": R}

    def drawn(r: Random, S: int) -> dict[str, int]:
        return case(r.randint(1, 3), S, r.randint(1, 6), r.choice([5, 9, 16]), r.choice([7, 12, 33]))

    return (
        Part("square", 1, visible=[case(2, 3, 3, 8, 8)], hidden=lambda r: [case(r.randint(1, 3), 4, 4, 6, 6)]),
        Part(
            "any shape",
            1,
            visible=[case(2, 1, 4, 6, 10), case(1, 5, 2, 8, 5)],
            hidden=lambda r: [drawn(r, S=1), drawn(r, S=r.randint(2, 7)), drawn(r, S=2) | dict(scale=300.0)],
        ),
    )


def _query_inputs(g: torch.Generator, B: int, S: int, H: int, Dn: int, R: int, scale: float = 1.0) -> Arguments:
    return {"q_nope": randn(g, B, S, H, Dn, scale=scale), "w_uk": randn(g, H, Dn, R, scale=R**-0.5)}


ABSORB_QUERY = Exercise(
    name="absorb_query",
    title="W_UK into the query",
    parts=_projection_parts("Dn"),
    inputs=_query_inputs,
    oracle=lambda q_nope, w_uk: _per_head(q_nope, w_uk),
    returns=("q_latent",),
    like=("q_nope",),
    mistakes=(
        Mistake(
            "weight by position",
            "the weight is picked by the query's position, not by its head, or all weights meet the only position: "
            "`@` lines the H of w_uk up with the S of q_nope",
            lambda q_nope, w_uk: _by_position(q_nope, w_uk),
        ),
        Mistake(
            "transposed",
            "the wrong axis of w_uk is summed over: it is [H, Dn, R], and the query's Dn meets its Dn",
            lambda q_nope, w_uk: _transposed(q_nope, w_uk),
        ),
        Mistake(
            "one head's weight",
            "every head is multiplied by the weight of head 0: each has its own",
            lambda q_nope, w_uk: q_nope @ w_uk[0],
        ),
        Mistake(
            "summed over heads",
            "the heads are added up: h has to stay an index of the result, [B, S, H, R]",
            lambda q_nope, w_uk: _per_head(q_nope, w_uk).sum(2),
        ),
        Mistake(
            "not transposed back",
            "the result is [B, H, S, R]: transpose heads and positions back, to [B, S, H, R]",
            lambda q_nope, w_uk: _per_head(q_nope, w_uk).transpose(1, 2),
        ),
        *(
            Mistake(
                "heads first",
                HEADS_FIRST,
                lambda q_nope, w_uk, change=change: change(_per_head(q_nope, w_uk)),
            )
            for change in (_reshaped(False), _reshaped(True))
        ),
        *(
            Mistake(
                "heads misread",
                MISREAD.format(x="q_nope"),
                lambda q_nope, w_uk, back=back: _misread(q_nope, w_uk, back),
            )
            for back in (False, True)
        ),
        Mistake(
            "all heads' weights",
            "every head is multiplied by the weights of all heads, added up: h is one index of q_nope and of w_uk",
            lambda q_nope, w_uk: q_nope @ w_uk.sum(0),
        ),
    ),
)


def _output_inputs(g: torch.Generator, B: int, S: int, H: int, Dv: int, R: int, scale: float = 1.0) -> Arguments:
    return {"out_latent": randn(g, B, S, H, R, scale=scale), "w_uv": randn(g, H, Dv, R, scale=R**-0.5)}


ABSORB_OUTPUT = Exercise(
    name="absorb_output",
    title="W_UV behind the softmax",
    parts=_projection_parts("Dv"),
    inputs=_output_inputs,
    oracle=lambda out_latent, w_uv: _per_head(out_latent, w_uv.mT),
    returns=("out",),
    like=("out_latent",),
    mistakes=(
        Mistake(
            "transposed",
            "the wrong axis of w_uv is summed over: it is [H, Dv, R], and its last axis, R, is the one to sum over",
            lambda out_latent, w_uv: _transposed(out_latent, w_uv.mT),
        ),
        Mistake(
            "reshaped",
            "w_uv is reshaped to [H, R, Dv], which moves no number: transpose its last two axes, w_uv.mT",
            lambda out_latent, w_uv: _per_head(out_latent, w_uv.reshape(w_uv.mT.shape)),
        ),
        Mistake(
            "weight by position",
            "the weight is picked by the query's position, not by its head, or all weights meet the only position: "
            "`@` lines the H of w_uv up with the S of out_latent",
            lambda out_latent, w_uv: _by_position(out_latent, w_uv.mT),
        ),
        Mistake(
            "not transposed back",
            "the result is [B, H, S, Dv]: transpose heads and positions back, to [B, S, H, Dv]",
            lambda out_latent, w_uv: _per_head(out_latent, w_uv.mT).transpose(1, 2),
        ),
        *(
            Mistake(
                "heads first",
                HEADS_FIRST,
                lambda out_latent, w_uv, change=change: change(_per_head(out_latent, w_uv.mT)),
            )
            for change in (_reshaped(False), _reshaped(True))
        ),
        *(
            Mistake(
                "heads misread",
                MISREAD.format(x="out_latent"),
                lambda out_latent, w_uv, back=back: _misread(out_latent, w_uv.mT, back),
            )
            for back in (False, True)
        ),
        Mistake(
            "one head's weight",
            "every head is multiplied by the weight of head 0: each has its own",
            lambda out_latent, w_uv: out_latent @ w_uv[0].T,
        ),
        Mistake(
            "heads added up first",
            "the heads of out_latent are added up before they are multiplied: each meets the weight of its own alone",
            lambda out_latent, w_uv: _per_head(out_latent.sum(2, keepdim=True).expand_as(out_latent), w_uv.mT),
        ),
        Mistake(
            "all heads' weights",
            "every head is multiplied by the weights of all heads, added up: h is one index of out_latent and of w_uv",
            lambda out_latent, w_uv: out_latent @ w_uv.sum(0).T,
        ),
        Mistake(
            "summed over heads",
            "the heads are added up: that is W_O's work, later; here h stays an index of the result, [B, S, H, Dv]",
            lambda out_latent, w_uv: _per_head(out_latent, w_uv.mT).sum(2),
        ),
    ),
)


# latent_attention


def _latent_inputs(
    g: torch.Generator,
    B: int,
    S: int,
    T: int,
    H: int,
    Dr: int,
    R: int,
    Dn: int = 12,
    scale: float = 1.0,
    depth: float = 0.0,
) -> Arguments:
    given = latent_operands(g, B, S, T, H, Dr, R, scale)
    if depth:
        sink(given["q_rope"], given["k_rope"], depth)
    return {**given, "scale": (Dn + Dr) ** -0.5}


def _latent(
    q_latent,
    q_rope,
    c_kv,
    k_rope,
    scale,
    *,
    rope=True,
    unscaled=None,
    crossed=None,
    rope_value=False,
    axis=-1,
    slip="",
    lse_scale=1.0,
    stable=True,
    hidden=-math.inf,
    mixed=False,
    **mask,
):
    """Multi-query attention over keys of R+Dr in float64. The keywords make the named mistakes.

    `unscaled` is "latent" or "rope". `crossed` is "query" or "key", of which the parts are joined the other way round.
    `mixed` scores lie as [B, H, S, T] and are taken for [B, S, H, T].
    """
    S = q_latent.shape[1]
    latent_scale, rope_scale = (1.0 if unscaled == part else scale for part in ("latent", "rope"))
    query = [q_latent * latent_scale, q_rope * (rope_scale if rope else 0.0)]
    query = torch.cat(query[:: -1 if crossed == "query" else 1], -1)
    key = torch.cat((k_rope, c_kv) if crossed == "key" else (c_kv, k_rope), -1)
    scores = query.flatten(1, 2) @ key.mT  # [B, S*H, T]
    scores = scores.unflatten(1, (S, -1))
    scores = causal(_reshaped(batch_first=True)(scores) if mixed else scores, **mask)
    scores = scores.masked_fill(scores.isinf(), hidden)
    value = key if rope_value else c_kv
    if not stable:
        weights = scores.float().exp()
        total = weights.sum(-1, keepdim=True)
        out = (weights / total).flatten(1, 2) @ value.float()
        return out.unflatten(1, (S, -1)), total.squeeze(-1).log()
    weights, lse = weighed(scores, axis, slip)
    out = weights.flatten(1, 2) @ value
    return out.unflatten(1, (S, -1)), lse if lse_scale == 1 else (scores * lse_scale).logsumexp(-1)


def _key_columns(columns, given, rope_first=False):
    """Some columns of the average key in place of c_kv's, and an lse that is right."""
    out, lse = _latent(**given, rope_value=True)
    return (out.roll(given["k_rope"].shape[-1], -1) if rope_first else out)[..., columns], lse


def _key_crossed(q_latent, **given):
    """The key joined with k_rope first, the query with q_latent first, and the key's first R columns for a value."""
    out, lse = _latent(q_latent, **given, crossed="key", rope_value=True)
    return out[..., : q_latent.shape[-1]], lse


def _latent_shape(r: Random, S: int) -> dict[str, int]:
    return dict(
        B=r.randint(1, 3), S=S, T=S + r.randint(1, 40), H=r.randint(1, 5), Dr=r.choice([4, 6]), R=r.choice([8, 17, 32])
    )


def _row_modulo(q_latent, q_rope, c_kv, k_rope, scale):
    """Row r of S·H, in which token and head are flattened, sees as far as token r % S."""
    (S, H), T = q_latent.shape[1:3], c_kv.shape[1]
    scores = torch.einsum("bshr,btr->bsht", torch.cat((q_latent, q_rope), -1), torch.cat((c_kv, k_rope), -1)) * scale
    token = (torch.arange(S * H) % S).view(S, H, 1)
    scores = scores.masked_fill(torch.arange(T) > token + (T - S), -math.inf)
    return torch.einsum("bsht,btr->bshr", scores.softmax(-1), c_kv), scores.logsumexp(-1)


_latent_slip = slips(_latent)

LATENT_ATTENTION = Exercise(
    name="latent_attention",
    title="attention over the latent cache",
    parts=(
        Part(
            "one new token",
            2,
            visible=[dict(B=1, S=1, T=7, H=3, Dr=4, R=8), dict(B=2, S=1, T=17, H=2, Dr=6, R=16)],
            hidden=lambda r: [_latent_shape(r, S=1), dict(B=2, S=1, T=1, H=1, Dr=4, R=8)],
        ),
        Part(
            "several new tokens",
            2,
            visible=[dict(B=1, S=4, T=9, H=2, Dr=4, R=8), dict(B=2, S=3, T=3, H=2, Dr=4, R=12)],
            hidden=lambda r: [_latent_shape(r, S=r.randint(2, 7)), _latent_shape(r, S=r.randint(2, 7))],
        ),
        Part(
            "large scores",
            1,
            visible=[
                dict(B=2, S=8, T=12, H=3, Dr=4, R=32, scale=100.0),
                dict(B=1, S=3, T=5, H=2, Dr=4, R=8, depth=1e10),
            ],
            hidden=lambda r: [_latent_shape(r, S=r.randint(4, 7)) | dict(R=32, scale=r.uniform(100, 200))],
        ),
    ),
    inputs=_latent_inputs,
    oracle=_latent,
    returns=("out_latent", "lse"),
    like=("q_latent", "q_latent"),
    tolerance=2e-4,
    mistakes=(
        Mistake(
            "scale 1/√(R+Dr)",
            "the scores are scaled by 1/√(R+Dr), the width of the absorbed key; expected the argument `scale`, which "
            "is 1/√(Dn+Dr)",
            lambda **a: _latent(**a | dict(scale=(a["c_kv"].shape[-1] + a["k_rope"].shape[-1]) ** -0.5)),
        ),
        Mistake("no scale", "the scores are not multiplied by `scale`", lambda **a: _latent(**a | dict(scale=1.0))),
        Mistake(
            "divided by scale",
            "the scores are divided by `scale`, expected times `scale`: it is 1/√(Dn+Dr) already",
            lambda **a: _latent(**a | dict(scale=1 / a["scale"])),
        ),
        *other_scales(
            _latent,
            "`scale`",
            {
                "`scale` twice": lambda a: a["scale"] ** 2,
                "√`scale`": lambda a: a["scale"] ** 0.5,
                "1/√R": lambda a: a["c_kv"].shape[-1] ** -0.5,
                "1/√Dr": lambda a: a["q_rope"].shape[-1] ** -0.5,
            },
        ),
        _latent_slip(
            "RoPE term missing",
            "the scores lack q_rope·k_rope: without it attention does not know positions",
            rope=False,
        ),
        _latent_slip(
            "RoPE term not scaled",
            "only the latent term is multiplied by `scale`: scale the sum of both terms",
            unscaled="rope",
        ),
        _latent_slip(
            "latent term not scaled",
            "only q_rope·k_rope is multiplied by `scale`: scale the sum of both terms",
            unscaled="latent",
        ),
        *(_latent_slip("parts crossed", CROSSED, crossed=which) for which in ("query", "key")),
        Mistake(
            "key crossed",
            "the key is joined with k_rope first, the query with q_latent first, and the value is taken for the key's "
            "first R columns: join both with the latent first",
            _key_crossed,
        ),
        _latent_slip(
            "value with k_rope",
            "out_latent is R+Dr wide, with the average of k_rope at its end: the value is c_kv alone, R wide",
            rope_value=True,
        ),
        *(
            Mistake(
                "value with columns of k_rope",
                "R columns of the average key are taken, and some are those of k_rope: the value is c_kv alone",
                oracle,
            )
            for oracle in (
                lambda **a: _key_columns(slice(a["k_rope"].shape[-1], None), a),
                lambda **a: _key_columns(slice(a["c_kv"].shape[-1]), a, rope_first=True),
            )
        ),
        _latent_slip(
            "tokens and heads mixed",
            "the scores lie as [B, H, S, T] and are taken for [B, S, H, T], which mixes tokens and heads: split the "
            "axis as it was flattened, transpose then",
            mixed=True,
        ),
        Mistake(
            "row modulo S",
            "row s·H + h is masked as token (s·H + h) % S: it is that of token s, the row's number // H",
            _row_modulo,
        ),
        *mask_mistakes(_latent, "q_latent", "c_kv"),
        *axis_mistakes(_latent),
        _latent_slip("future scored 0", ZERO_IS_SEEN, hidden=0.0),
        *hidden_mistakes(partial(_latent, hidden=HIDDEN), partial(_latent, added=HIDDEN)),
        *sum_mistakes(_latent),
        base_2_mistake(_latent),
        Mistake(
            "lse not scaled",
            "out_latent is right, but lse is that of the scores before they are scaled: scale first",
            lambda **a: _latent(**a, lse_scale=1 / a["scale"]),
        ),
        Mistake(
            "overflow",
            "exp overflows: subtract each row's maximum before the exponent, or use torch.logsumexp",
            lambda **a: (_latent(**a, stable=False)[0], None),  # any lse
        ),
        Mistake(
            "overflow in lse",
            "out_latent is right, but lse overflows: use torch.logsumexp, or add the maximum after the logarithm",
            lambda **a: (_latent(**a)[0], _latent(**a, stable=False)[1]),
        ),
    ),
    forbidden=SDPA,
)


# absorbed_mla_attention

EXPANDABLE = 1000  # tokens; beyond, expanding takes the oracle seconds, and it absorbs


OTHER_SCALES = {
    **MLA_SCALES,
    "1/√(Dn+Dr+R)": lambda a: sum(a[name].shape[-1] for name in ("q_nope", "q_rope", "c_kv")) ** -0.5,
    "1": lambda a: 1.0,
}


def _mla(q_nope, q_rope, c_kv, k_rope, w_uk, w_uv, *, scale=None, latent_out=False):
    """The naive form in float64, which expands keys and values of one head at a time."""
    S, T = q_nope.shape[1], c_kv.shape[1]
    scale = (q_nope.shape[-1] + q_rope.shape[-1]) ** -0.5 if scale is None else scale
    if T > EXPANDABLE:
        out_latent, lse = latent_attention(_per_head(q_nope, w_uk), q_rope, c_kv, k_rope, scale=scale)
        return out_latent if latent_out else _per_head(out_latent, w_uv.mT), lse
    seen = torch.ones(S, T, dtype=torch.bool).tril(T - S)
    outs, lses = [], []
    for h in range(w_uk.shape[0]):
        key = torch.cat((c_kv @ w_uk[h].T, k_rope), -1)  # [B, T, Dn+Dr]
        value = c_kv if latent_out else c_kv @ w_uv[h].T  # [B, T, Dv]
        scores = torch.cat((q_nope[:, :, h], q_rope[:, :, h]), -1) @ key.mT * scale  # [B, S, T]
        scores = scores.masked_fill(~seen, -math.inf)
        outs.append(scores.softmax(-1) @ value)
        lses.append(scores.logsumexp(-1))
    return torch.stack(outs, 2), torch.stack(lses, 2)


def _absorbed_cost(q_nope, q_rope, c_kv, k_rope, w_uk, w_uv):
    """Twice the FLOPs of the absorbed form, and 16 times what it makes; keys expanded head by head take more.

    So does, with many heads and a wide latent, a copy of it for every head.
    """
    (H, Dn, R), Dv, (B, S, _, Dr), T = w_uk.shape, w_uv.shape[1], q_rope.shape, c_kv.shape[1]
    a_query = H * (Dn * R + R * Dv + T * (2 * R + Dr))
    made = B * S * H * (T + 2 * R + Dr + Dv) + B * T * (R + Dr) + H * (Dn + Dv) * R
    return Cost(bytes=16 * 4 * made, flops=2 * 2 * B * S * a_query)


def _mla_shape(r: Random, S: int) -> dict[str, int]:
    return dict(
        B=r.randint(1, 3),
        S=S,
        T=S + r.randint(0, 30),
        H=r.randint(1, 5),
        Dn=r.choice([5, 8, 12]),
        Dr=r.choice([4, 6]),
        Dv=r.choice([7, 10]),
        R=r.choice([9, 16, 24]),
    )


ABSORBED_MLA_ATTENTION = Exercise(
    name="absorbed_mla_attention",
    title="the whole absorbed form",
    parts=(
        Part(
            "one new token",
            1,
            visible=[
                dict(B=1, S=1, T=7, H=3, Dn=6, Dr=4, Dv=5, R=9),
                dict(B=2, S=1, T=13, H=2, Dn=8, Dr=4, Dv=5, R=12),
                dict(B=2, S=1, T=21, H=4, Dn=8, Dr=4, Dv=5, R=12, scale=100.0),
            ],
            hidden=lambda r: [_mla_shape(r, S=1), _mla_shape(r, S=1) | dict(scale=r.uniform(5, 15))],
        ),
        Part(
            "several new tokens",
            1,
            visible=[
                dict(B=2, S=3, T=8, H=2, Dn=6, Dr=4, Dv=5, R=10),
                dict(B=1, S=2, T=40, H=4, Dn=16, Dr=4, Dv=12, R=8),
            ],
            hidden=lambda r: [
                _mla_shape(r, S=r.randint(2, 6)),
                _mla_shape(r, S=r.randint(2, 6)),
                dict(B=1, S=2, T=r.randint(40, 60), H=3, Dn=20, Dr=4, Dv=16, R=8),
            ],
        ),
        Part(
            "long context, not expanded",
            1,
            visible=[
                dict(B=1, S=1, T=600, H=4, Dn=16, Dr=4, Dv=6, R=8),
                dict(B=1, S=1, T=2000, H=32, Dn=8, Dr=8, Dv=6, R=64),
            ],
            hidden=lambda r: [dict(B=1, S=1, T=r.randint(4300, 4600), H=64, Dn=256, Dr=4, Dv=8, R=8)],
        ),
    ),
    inputs=mla_operands,
    oracle=_mla,
    returns=("out", "lse"),
    like=("q_nope", "q_nope"),
    tolerance=1e-4,
    mistakes=(
        Mistake(
            "scale 1/√(R+Dr)",
            "the softmax scale is 1/√(R+Dr) (1/√576 in DeepSeek-V3), expected 1/√(Dn+Dr) (1/√192): absorption changes "
            "the width of the vectors, not the scores",
            lambda **a: _mla(**a, scale=(a["c_kv"].shape[-1] + a["k_rope"].shape[-1]) ** -0.5),
        ),
        Mistake(
            "scale 1/√Dn",
            "the softmax scale is 1/√Dn, expected 1/√(Dn+Dr): a head's query is Dn+Dr wide",
            lambda **a: _mla(**a, scale=a["q_nope"].shape[-1] ** -0.5),
        ),
        Mistake(
            "scale 1/(Dn+Dr)",
            "the softmax scale is 1/(Dn+Dr), expected 1/√(Dn+Dr): the root is missing, or the scores are scaled twice, "
            "before `latent_attention` and in it",
            lambda **a: _mla(**a, scale=1 / (a["q_nope"].shape[-1] + a["q_rope"].shape[-1])),
        ),
        Mistake(
            "scale √(Dn+Dr)",
            "the softmax scale is √(Dn+Dr), expected 1/√(Dn+Dr): `latent_attention` multiplies by it",
            lambda **a: _mla(**a, scale=(a["q_nope"].shape[-1] + a["q_rope"].shape[-1]) ** 0.5),
        ),
        *other_scales(_mla, "1/√(Dn+Dr)", OTHER_SCALES),
        Mistake(
            "W_UK on the output",
            "the output is multiplied by w_uk: keys use w_uk, values use w_uv",
            lambda **a: _mla(**a | dict(w_uv=a["w_uk"])),
        ),
        Mistake(
            "output left latent",
            "the output is still latent, R wide: multiply it by w_uv at the end",
            lambda **a: _mla(**a, latent_out=True),
        ),
    ),
    needs=("absorb_query", "latent_attention", "absorb_output"),
    forbidden=SDPA,
    most=_absorbed_cost,
    limits=Limits(memory=256 << 20),
)


# absorb_costs and break_even_queries


def _cost_stages(B, S, T, H, Dn, Dr, Dv, R, itemsize):
    layer = config(H, Dn, Dr, Dv, R)
    call = dict(batch=B, q_len=S, dtype_bytes=itemsize)
    expand = expansion_cost(layer, tokens=B * T, dtype_bytes=itemsize)
    naive = attention_cost("naive", layer, context=T, **call) + operand_cost("naive", layer, lse=False, **call)
    project = absorb_projection_cost(layer, weight_bytes=itemsize, **call)
    absorb = attention_cost("absorb", layer, context=T, **call) + operand_cost("absorb", layer, lse=False, **call)
    return expand, naive, project, absorb


def _table(naive, absorb):
    return {
        "naive_flops": naive.flops,
        "naive_bytes": naive.bytes,
        "absorb_flops": absorb.flops,
        "absorb_bytes": absorb.bytes,
    }


def _costs(**a):
    expand, naive, project, absorb = _cost_stages(**a)
    return _table(expand + naive, project + absorb)


def _only(**entry):
    """Return one wrong entry. The other three match anything."""
    return dict.fromkeys(("naive_flops", "naive_bytes", "absorb_flops", "absorb_bytes")) | entry


def _less_bytes(naive=0, absorb=0, **a):
    right = _costs(**a)
    return right | {"naive_bytes": right["naive_bytes"] - naive, "absorb_bytes": right["absorb_bytes"] - absorb}


def _weight_bytes(a):
    return a["H"] * a["R"] * (a["Dn"] + a["Dv"]) * a["itemsize"]


def _weight_flops(a, tokens):
    """FLOPs of `tokens` tokens of each sequence with w_uk and w_uv."""
    return 2 * a["B"] * tokens * a["H"] * a["R"] * (a["Dn"] + a["Dv"])


def _token_bytes(a, words):
    return a["B"] * a["S"] * words * a["itemsize"]


def _step(r: Random, S: int, T: int) -> dict[str, int]:
    return dict(B=r.randint(1, 9), S=S, T=T, H=r.randint(2, 40)) | widths(r) | dict(itemsize=r.choice([1, 2, 4]))


ABSORB_COSTS = Exercise(
    name="absorb_costs",
    needs=("predict_macs",),
    title="FLOPs and bytes of a whole step",
    parts=(
        Part(
            "decode",
            2,
            visible=[
                dict(B=3, S=1, T=50, H=4, Dn=6, Dr=4, Dv=5, R=10, itemsize=4),
                dict(B=32, S=1, T=4096, **V3, itemsize=2),
            ],
            hidden=lambda r: [_step(r, 1, r.randint(1, 5000)) for _ in range(3)],
        ),
        Part(
            "prefill",
            2,
            visible=[dict(B=1, S=300, T=512, **LITE, itemsize=4), dict(B=2, S=128, T=4096, **V3, itemsize=2)],
            hidden=lambda r: [_step(r, s := r.randint(2, 3000), s + r.randint(0, 3000)) for _ in range(3)],
        ),
    ),
    inputs=as_given,
    oracle=_costs,
    returns=("costs",),
    tolerance=1e-6,
    mistakes=(
        Mistake(
            "MACs for FLOPs",
            "these are MACs: a FLOP count is twice that, one multiplication and one addition",
            lambda **a: {k: v / (2 if "flops" in k else 1) for k, v in _costs(**a).items()},
        ),
        Mistake(
            "words for bytes",
            "the traffic is counted in words: multiply by itemsize",
            lambda **a: {k: v / (a["itemsize"] if "bytes" in k else 1) for k, v in _costs(**a).items()},
        ),
        Mistake(
            "expansion left out",
            "naive_flops lacks the stage expand: the cache holds latents, so keys and values of all T tokens are "
            "expanded first",
            lambda **a: _only(naive_flops=_cost_stages(**a)[1].flops),
        ),
        *(
            Mistake(
                "attend left out",
                f"{entry} lacks the stage attend: the scores and the weighted sum over all T tokens",
                lambda entry=entry, other=other, **a: _only(
                    **{entry: _costs(**a)[entry] - _cost_stages(**a)[other].flops}
                ),
            )
            for entry, other in (("naive_flops", 1), ("absorb_flops", 3))
        ),
        Mistake(
            "expansion of the new tokens",
            "naive_flops expands the S new tokens only, in the stage expand: without a stored expansion all T "
            "are expanded at every step",
            lambda **a: _only(naive_flops=_cost_stages(**a)[1].flops + _weight_flops(a, a["S"])),
        ),
        *(
            Mistake(
                "expansion of one token",
                f"naive_flops counts the stage expand for {what}: each of the B·T tokens of the cache is expanded",
                lambda tokens=tokens, **a: _only(
                    naive_flops=_cost_stages(**a)[1].flops + _weight_flops(a, tokens(a)) / a["B"]
                ),
            )
            for what, tokens in (("one token", lambda a: 1), ("one sequence", lambda a: a["T"]))
        ),
        Mistake("one sequence", "the batch is left out: count all B sequences", lambda **a: _costs(**a | dict(B=1))),
        Mistake(
            "RoPE part expanded",
            "naive_flops multiplies k_rope by weights, too, in the stage expand: it is copied to every head, and W_UK "
            "makes Dn columns alone",
            lambda **a: _only(naive_flops=_costs(**a)["naive_flops"] + 2 * a["B"] * a["T"] * a["H"] * a["R"] * a["Dr"]),
        ),
        Mistake(
            "projections left out",
            "absorb_flops lacks two stages, absorb query and expand output: W_UK into every query, W_UV into "
            "every output",
            lambda **a: _only(absorb_flops=_cost_stages(**a)[3].flops),
        ),
        Mistake(
            "projections of the context",
            "absorb_flops projects all T tokens of the context: the stages absorb query and expand output take "
            "the S new tokens only",
            lambda **a: _only(absorb_flops=_cost_stages(**a)[3].flops + _weight_flops(a, a["T"])),
        ),
        Mistake(
            "weights not read",
            "the bytes of w_uk and w_uv are missing: naive reads them in the stage expand, absorb in its first "
            "and its last",
            lambda **a: _less_bytes(naive=_weight_bytes(a), absorb=_weight_bytes(a), **a),
        ),
        Mistake(
            "weights not read by absorb",
            "absorb_bytes lacks w_uk and w_uv: absorb reads them, too, in its first and its last stage",
            lambda **a: _only(absorb_bytes=_costs(**a)["absorb_bytes"] - _weight_bytes(a)),
        ),
        *(
            Mistake(
                "latents of every head",
                f"{' and '.join(entries)} {'counts' if len(entries) == 1 else 'count'} the cache once for each head: "
                "all heads share a token's R + Dr numbers, which are read once",
                lambda entries=entries, **a: _only(
                    **{
                        each: _costs(**a)[each] + a["B"] * a["T"] * (a["H"] - 1) * (a["R"] + a["Dr"]) * a["itemsize"]
                        for each in entries
                    }
                ),
            )
            for entries in (("naive_bytes", "absorb_bytes"), ("absorb_bytes",))
        ),
        Mistake(
            "expanded keys and values moved once",
            "the expanded keys and values are counted once: the stage expand writes them, the naive attend reads "
            "them again",
            lambda **a: _less_bytes(
                naive=a["B"] * a["T"] * a["H"] * (a["Dn"] + a["Dr"] + a["Dv"]) * a["itemsize"], **a
            ),
        ),
        Mistake(
            "RoPE part expanded once",
            "naive_bytes counts k_rope once in the expanded keys: each of the H heads holds a copy, Dn+Dr wide with it",
            lambda **a: _only(
                naive_bytes=_costs(**a)["naive_bytes"] - 2 * a["B"] * a["T"] * (a["H"] - 1) * a["Dr"] * a["itemsize"]
            ),
        ),
        Mistake(
            "latents read twice",
            "absorb_bytes counts c_kv twice in the stage attend, as key and as value: it is read once for both",
            lambda **a: _only(absorb_bytes=_costs(**a)["absorb_bytes"] + a["B"] * a["T"] * a["R"] * a["itemsize"]),
        ),
        *(
            Mistake(
                "q_rope not read",
                f"{entry} lacks q_rope: attend reads the whole query, with its RoPE part",
                lambda entry=entry, **a: _only(**{entry: _costs(**a)[entry] - _token_bytes(a, a["H"] * a["Dr"])}),
            )
            for entry in ("naive_bytes", "absorb_bytes")
        ),
        Mistake(
            "queries and outputs not moved",
            "naive_bytes lacks the queries that the stage attend reads, and the outputs that it writes",
            lambda **a: _only(
                naive_bytes=_costs(**a)["naive_bytes"] - _token_bytes(a, a["H"] * (a["Dn"] + a["Dr"] + a["Dv"]))
            ),
        ),
        Mistake(
            "latents of the queries moved once",
            "absorb_bytes counts q_latent and out_latent once each: attend reads what absorb query writes, and "
            "expand output what attend writes",
            lambda **a: _only(absorb_bytes=_costs(**a)["absorb_bytes"] - _token_bytes(a, a["H"] * 2 * a["R"])),
        ),
        Mistake(
            "weights per sequence",
            "w_uk and w_uv are counted for each sequence: a stage reads them once, whatever the batch",
            lambda **a: _less_bytes(naive=(1 - a["B"]) * _weight_bytes(a), absorb=(1 - a["B"]) * _weight_bytes(a), **a),
        ),
    ),
)


def _break_even(T, Dn, Dv, R, *, extra=0, weights=None):
    """S at which FLOPs agree: (Dn+Dv)R(1/S − 1/T) = 2R − Dn − Dv, by bisection on the difference."""
    width = Dn + Dv if weights is None else weights

    def excess(S):
        return width * R * (T - S) - S * T * (2 * R + extra - Dn - Dv)

    low, high = 0.0, float(T)
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if excess(middle) > 0 else (low, middle)
    return low


def _solved(T, R, expanded, more):
    """The break-even by its formula, with counts of its own; NaN where there is none."""
    found = 1 / T + more / (R * expanded)
    return 1 / found if found > 0 else math.nan


def _one_width(wrong, Dn, Dv, T, R, places):
    """The break-even with twice a width in place of Dn + Dv: where R is multiplied (0), where 2R is lessened (1), both.

    NaN where the widths are equal, or where nothing is left of 2R.
    """
    expanded, less = (2 * wrong if place in places else Dn + Dv for place in (0, 1))
    return _solved(T, R, expanded, 2 * R - less) if Dn != Dv and less < 2 * R else math.nan


BREAK_EVEN_QUERIES = Exercise(
    name="break_even_queries",
    needs=("absorb_costs",),
    title="from how many query tokens on naive takes fewer FLOPs",
    parts=(
        Part("DeepSeek-V3", 1, visible=[dict(T=1000, Dr=64, Dn=128, Dv=128, R=512)]),
        Part(
            "any layer",
            1,
            visible=[dict(T=3000, Dn=128, Dr=64, Dv=128, R=512), dict(T=100, Dn=16, Dr=8, Dv=10, R=32)],
            hidden=lambda r: [dict(T=r.randint(1, 20000)) | widths(r) for _ in range(3)],
        ),
    ),
    inputs=lambda generator, T, Dn, Dr, Dv, R: dict(T=T, Dn=Dn, Dr=Dr, Dv=Dv, R=R),
    oracle=lambda T, Dn, Dr, Dv, R: _break_even(T, Dn, Dv, R),
    returns=("queries",),
    tolerance=1e-4,
    mistakes=(
        Mistake(
            "context taken as endless",
            "this holds for an endless context; absorption's projections of the S queries are missing, which lower the "
            "break-even for a finite T",
            lambda T, Dn, Dr, Dv, R: _break_even(10**12, Dn, Dv, R),
        ),
        Mistake(
            "W_UV left out",
            "only W_UK is counted in the expansion and the projection: W_UV has its share in both",
            lambda T, Dn, Dr, Dv, R: _break_even(T, Dn, Dv, R, weights=Dn),
        ),
        *(
            Mistake(
                name,
                message,
                lambda T, Dn, Dr, Dv, R, which=which, places=places: _one_width((Dn, Dv)[which], Dn, Dv, T, R, places),
            )
            for which, name, message in (
                (
                    0,
                    "Dn for Dv",
                    "Dn stands where Dv belongs: a head's key is Dn wide and its value Dv, which add up to Dn + Dv",
                ),
                (
                    1,
                    "Dv for Dn",
                    "Dv stands where Dn belongs: a head's key is Dn wide and its value Dv, which add up to Dn + Dv",
                ),
            )
            for places in ((0, 1), (0,), (1,))
        ),
        *(
            Mistake(
                "RoPE part in one form only",
                "Dr is counted in one form only: both multiply the RoPE parts, so Dr cancels",
                lambda T, Dn, Dr, Dv, R, sign=sign: _break_even(T, Dn, Dv, R, extra=sign * Dr),
            )
            for sign in (1, -1)
        ),
        Mistake(
            "reciprocal",
            "this is 1/S, expected S",
            lambda T, Dn, Dr, Dv, R: 1 / _break_even(T, Dn, Dv, R),
        ),
        Mistake(
            "sign of the projections",
            "1/T has the wrong sign: the projections of the S queries stand on absorption's side, and the break-even "
            "lies below that of an endless context",
            lambda T, Dn, Dr, Dv, R: 1 / ((2 * R - Dn - Dv) / (R * (Dn + Dv)) - 1 / T),
        ),
        Mistake(
            "latent counted once",
            "absorption's attention is counted R wide: its key is R wide, and its value is R wide as well, 2R together",
            lambda T, Dn, Dr, Dv, R: _solved(T, R, Dn + Dv, R - Dn - Dv),
        ),
        Mistake(
            "scores alone",
            "the scores alone are counted, R against Dn: the weighted sum takes R against Dv besides",
            lambda T, Dn, Dr, Dv, R: _solved(T, R, Dn + Dv, R - Dn),
        ),
        *(
            Mistake(
                "FLOPs and MACs",
                "one side counts FLOPs and the other MACs: expansion, projections and attention take two FLOPs a MAC",
                lambda T, Dn, Dr, Dv, R, factor=factor: _solved(T, R, Dn + Dv, factor * (2 * R - Dn - Dv)),
            )
            for factor in (0.5, 2)
        ),
        Mistake(
            "RoPE part expanded",
            "the expansion is counted Dn + Dr + Dv wide: the rotated key is cached as it is, and nothing expands it",
            lambda T, Dn, Dr, Dv, R: _solved(T, R, Dn + Dr + Dv, 2 * R - Dn - Dv),
        ),
    ),
)


EXERCISES = (
    PREDICT_MACS,
    ABSORB_QUERY,
    LATENT_ATTENTION,
    ABSORB_OUTPUT,
    ABSORBED_MLA_ATTENTION,
    ABSORB_COSTS,
    BREAK_EVEN_QUERIES,
)
