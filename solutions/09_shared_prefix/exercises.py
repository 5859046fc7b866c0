"""Lesson 09: shared prefixes. Two parts merged, Algorithm 1, the switch point, memory, a kernel, a tree."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import torch
from torch import Tensor

from autograder.judging.exercise import Arguments, Exercise, Mistake, Part, Speed, randn
from mla_ref.attention import naive
from mla_ref.hardware.cost import Cost

from ..drawing import BF16, FAR_BELOW_0, FLOAT, HALF, V3, as_given, widths
from ..oracles import BASE_2, FINITE, HIDDEN, INF, after, base_2, in_blocks, rotated, slips, softmax_from

LN2 = math.log(2)
KIMI = V3 | dict(H=64)

# --- merge_two --------------------------------------------------------------------------------------------------------


def _two(
    g: torch.Generator | None,
    B: int,
    H: int,
    Dv: int = 16,
    at: float = 0.0,
    apart: float = 0.0,
    empty_a: Sequence[int] = (),
    empty_b: Sequence[int] = (),
    left: float = 0.0,
    dtype: torch.dtype = FLOAT,
) -> Arguments:
    """Return two parts, `apart` in their log-sum-exps. A part that is empty for a sequence has NaN and ∞ for its out.

    With `left` they cancel but for about that share of each: weights or products of 16 bits are seen then.
    """
    found: Arguments = {}
    for name, level, empty in (("a", at, empty_a), ("b", at + apart, empty_b)):
        out, lse = randn(g, B, H, Dv, dtype=dtype), randn(g, B, H, scale=2.0) + level
        for b in empty:
            out[b], lse[b] = _undefined(Dv), -INF
        found |= {f"out_{name}": out, f"lse_{name}": lse}
    if left:
        other = -(found["lse_a"] - found["lse_b"]).exp()[..., None] * found["out_a"].float()
        found["out_b"] = (other + left * found["out_b"].float()).to(dtype)
    return found


def _undefined(width: int) -> Tensor:
    """Return what an empty part may hold: NaN and infinity in turn."""
    return torch.tensor([math.nan, INF]).repeat(width)[:width]


def _finite(x: Tensor) -> Tensor:
    return x.masked_fill(x == -INF, 0)


def _merged(out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor) -> tuple[Tensor, Tensor]:
    """The parts weighed by the softmax of their log-sum-exps. What an empty part holds is not used."""
    return _joined(torch.stack((out_a, out_b)), torch.stack((lse_a, lse_b)))


def _joined(outs: Tensor, lses: Tensor) -> tuple[Tensor, Tensor]:
    """Return any number of parts as one: outs [P, B, H, Dv], lses [P, B, H]."""
    lse = lses.logsumexp(0)
    share = (lses - _finite(lse)).exp()[..., None]
    return (share * outs.masked_fill(lses[..., None] == -INF, 0)).sum(0), lse


def _weighed(
    weights: Callable[[Tensor], Tensor], lse: Callable[[Tensor], Tensor] = lambda z: z.logsumexp(0)
) -> Callable[..., tuple[Tensor, Tensor]]:
    """Return an oracle with other weights [2, B, H], or another lse, from both log-sum-exps [2, B, H]."""

    def oracle(out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor) -> tuple[Tensor, Tensor]:
        lses = torch.stack((lse_a, lse_b))
        outs = torch.stack((out_a, out_b)).masked_fill(lses[..., None] == -INF, 0)
        return (weights(lses)[..., None] * outs).sum(0), lse(lses)

    return oracle


def _nan_of_empty(out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor) -> tuple[Tensor, Tensor]:
    lses = torch.stack((lse_a, lse_b))
    lse = lses.logsumexp(0)
    return ((lses - _finite(lse)).exp()[..., None] * torch.stack((out_a, out_b))).sum(0), lse


def _inf_of_empty(out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor) -> tuple[Tensor, Tensor]:
    """Leave NaN out of an empty part, and it alone."""
    kept = [out.masked_fill(out.isnan(), 0) for out in (out_a, out_b)]
    return _nan_of_empty(kept[0], lse_a, kept[1], lse_b)


def _both_empty(lse_too: bool) -> Callable[..., tuple[Tensor, Tensor]]:
    def oracle(**given: Tensor) -> tuple[Tensor, Tensor]:
        out, lse = _merged(**given)
        nothing = lse == -INF
        return out.masked_fill(nothing[..., None], math.nan), lse.masked_fill(nothing, math.nan) if lse_too else lse

    return oracle


def _in_16_bits(dtype: torch.dtype, divided: bool) -> Callable[..., tuple[Tensor, Tensor]]:
    """Return an oracle with weights, products and sum of this type; `divided` by the weights' sum behind them."""

    def oracle(out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor) -> tuple[Tensor, Tensor]:
        lses = torch.stack((lse_a, lse_b))
        lse = lses.logsumexp(0)
        outs = torch.stack((out_a, out_b)).masked_fill(lses[..., None] == -INF, 0).to(dtype)
        weights = (lses - _finite(lses.amax(0) if divided else lse)).exp()[..., None]
        a, b = weights.to(dtype) * outs
        return (a + b).double() / (weights.sum(0) if divided else 1), lse

    return oracle


def _float_exp(z: Tensor) -> Tensor:
    return z.float().exp()


POWERS_OF_2 = (
    "the weights are powers of 2, as for base-2 log-sum-exps: these are natural, so take exp and log "
    "(TyphoonMLA's public code has the two bases mixed up as well)"
)
NOTHING = "where both parts are empty the result is NaN: −inf − (−inf) is NaN; expected out 0 and lse −inf"

MERGE = Exercise(
    name="merge_two",
    title="two partial results into one",
    parts=(
        Part(
            "both parts have tokens",
            1,
            visible=[
                dict(B=2, H=3),
                dict(B=1, H=2, apart=3.0, dtype=HALF),
                dict(B=4, H=4, left=0.02, dtype=HALF),
                dict(B=2, H=2, Dv=8, apart=1.0, dtype=BF16),
            ],
            hidden=lambda r: [
                dict(B=r.randint(1, 5), H=r.randint(1, 5), Dv=r.randint(1, 40), apart=r.uniform(-3, 3)),
                dict(B=2, H=2, Dv=r.choice([8, 128]), apart=1.0, dtype=BF16),
                dict(B=4, H=4, Dv=r.choice([8, 128]), left=0.02, dtype=BF16),
            ],
        ),
        Part(
            "large log-sum-exps",
            1,
            visible=[dict(B=2, H=2, at=150.0), dict(B=2, H=2, at=-200.0)],
            hidden=lambda r: [
                # below 256 float32 rounds z by less than 1e-5, so exp(z_a − z) is near enough as well
                dict(B=2, H=2, at=r.choice([-220.0, 220.0]), apart=r.uniform(-2, 2)),
                dict(B=1, H=3, at=40.0, apart=r.choice([-120.0, 120.0])),
            ],
        ),
        Part(
            "a part is empty, or both are",
            1,
            visible=[
                dict(B=3, H=2, empty_a=(0,), empty_b=(1,)),
                dict(B=3, H=2, at=150.0, empty_a=(0, 2), empty_b=(2,)),
            ],
            hidden=lambda r: [
                dict(B=2, H=r.randint(1, 4), empty_a=(0, 1), empty_b=(1,)),
                dict(B=2, H=1, at=r.choice([-200.0, 200.0]), empty_b=(r.randint(0, 1),)),
            ],
        ),
    ),
    inputs=_two,
    oracle=_merged,
    returns=("out", "lse"),
    like=("out_a", FLOAT),
    mistakes=(
        Mistake(
            "lse base 2",
            POWERS_OF_2,
            _weighed(lambda z: (z * LN2).softmax(0).nan_to_num(), lambda z: (z * LN2).logsumexp(0) / LN2),
        ),
        Mistake(
            "lse base 2",
            POWERS_OF_2,
            _weighed(lambda z: (z * LN2).softmax(0).nan_to_num(), lambda z: (z * LN2).logsumexp(0)),
        ),
        Mistake(
            "lse base 2",
            POWERS_OF_2,
            _weighed(lambda z: (z * LN2).softmax(0).nan_to_num()),
        ),
        Mistake(
            "plain mean",
            "out is the mean of both: a part of many tokens weighs more, exp(its lse − the lse of both)",
            _weighed(lambda z: torch.full_like(z, 0.5)),
            at_times=True,
        ),
        Mistake(
            "weights not normalised",
            "the weights exp(lse − maximum) do not add up to 1: divide by their sum, or subtract the lse of both",
            _weighed(lambda z: (z - _finite(z.amax(0))).exp()),
        ),
        Mistake(
            "lse is the larger one",
            "lse is the larger of the two: add the logarithm of the sum of the weights",
            _weighed(lambda z: (z - _finite(z.logsumexp(0))).exp(), lambda z: z.amax(0)),
        ),
        *(
            Mistake(
                "weights in 16 bits",
                "weights and products are rounded to 16 bits: take the parts to float32 first, and round once, at the "
                "end",
                _in_16_bits(dtype, divided),
                at_times=True,
            )
            for dtype in (HALF, BF16)
            for divided in (False, True)
        ),
        Mistake("both empty", NOTHING, _both_empty(False)),
        Mistake("both empty", NOTHING, _both_empty(True)),
        Mistake(
            "maximum not subtracted",
            "exp leaves float32 beyond 88, and below −104: subtract the larger lse first",
            _weighed(lambda z: _float_exp(z) / _float_exp(z).sum(0), lambda z: _float_exp(z).sum(0).log()),
        ),
        Mistake(
            "NaN of an empty part",
            "the out of an empty part is used: its weight is 0, but it may hold NaN, and 0 · NaN is NaN; leave it out",
            _nan_of_empty,
        ),
        Mistake(
            "infinity of an empty part",
            "only NaN is left out of an empty part: it may hold infinity as well, and 0 · ∞ is NaN; go by its lse",
            _inf_of_empty,
        ),
    ),
)

# --- prefix_decode ----------------------------------------------------------------------------------------------------


def _prefix_step(
    g: torch.Generator,
    B: int,
    H: int,
    L: int,
    lens: Sequence[int],
    T: int | None = None,
    Dn: int = 16,
    Dr: int = 8,
    Dv: int = 12,
    R: int = 24,
    sharp: float = 1.0,
    level: float = 0.0,
    depth: float = 0.0,
) -> Arguments:
    """Return a step: a cache of B contexts whose first L tokens are the same, and these expanded.

    `lens` are whole contexts. What the cache holds behind them is larger than tokens are. All scores are near `level`,
    or fall by about `depth` with each place that a token stands further back.
    """
    T = T or max(lens)
    q_nope, q_rope = (randn(g, B, H, width, scale=2 * sharp) for width in (Dn, Dr))
    w_uk, w_uv = randn(g, H, Dn, R, scale=R**-0.5), randn(g, H, Dv, R, scale=R**-0.5)
    c_kv, k_rope = randn(g, B, T, R), randn(g, B, T, Dr)
    c_kv[:, :L], k_rope[:, :L] = c_kv[:1, :L].clone(), k_rope[:1, :L].clone()
    seq_lens = torch.tensor(lens, dtype=torch.int32)
    beyond = (torch.arange(T) >= seq_lens[:, None])[..., None]
    c_kv, k_rope = (torch.where(beyond, 3 * x, x) for x in (c_kv, k_rope))
    if level or depth:
        q_nope[..., 0], w_uk[:, 0], w_uk[:, 0, 0], w_uv[..., 0] = (level or 1.0) * (Dn + Dr) ** 0.5, 0.0, 1.0, 0.0
        c_kv[..., 0] = 1.0 if level else -depth * torch.arange(T, 0, -1)
    latent = c_kv[0, :L].double()
    k = torch.cat(
        (torch.einsum("lr,hdr->lhd", latent, w_uk.double()), k_rope[0, :L, None].double().expand(L, H, Dr)), -1
    )
    v = torch.einsum("lr,hvr->lhv", latent, w_uv.double())
    turns = torch.arange(T)[:, None] * torch.logspace(0, -2, Dr // 2)
    given = {"q_nope": q_nope, "q_rope": q_rope, "k": k.float(), "v": v.float(), "c_kv": c_kv, "k_rope": k_rope}
    return given | {"w_uk": w_uk, "w_uv": w_uv, "cos": turns.cos(), "sin": turns.sin(), "seq_lens": seq_lens}


def _turned(q_rope: Tensor, cos: Tensor, sin: Tensor, position: Tensor) -> Tensor:
    return rotated(q_rope[None], cos[position], sin[position])[0]


def _by_naive(q_nope, q_rope, k, v, c_kv, k_rope, w_uk, w_uv, cos, sin, seq_lens) -> tuple[Tensor, Tensor]:
    """The reference over the whole cache. The expanded prefix is not used."""
    q_rope = _turned(q_rope, cos, sin, seq_lens.long() - 1)
    given = q_nope[:, None], q_rope[:, None], c_kv, k_rope, w_uk, w_uv
    out, lse = naive(*given, seq_lens=seq_lens, causal=False)
    return out[:, 0], lse[:, 0]


def _part(scores: Tensor, values: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
    """Return out and lse of scores [B, H, T], values [B, T, H, Dv] and what is seen, [B, T]."""
    scores = scores.masked_fill(~seen[:, None], -INF)
    lse = scores.logsumexp(-1)
    return torch.einsum("bht,bthv->bhv", (scores - _finite(lse)[..., None]).exp(), values), lse


def _algorithm_1(
    q_nope, q_rope, k, v, c_kv, k_rope, w_uk, w_uv, cos, sin, seq_lens,
    *, position=None, first=None, own=None, scale=None, own_scale=None, turn=(True, True), base=1.0,
    merge=_joined, parts=(0, 1),
):  # fmt: skip
    """Both parts and their merge. The keywords make the named mistakes.

    `turn` says of the prefix and of the own tokens whether the query is rotated; a position in its place, for which.
    """
    (B, _, Dn), L, T = q_nope.shape, len(k), c_kv.shape[1]
    scale = scale or (Dn + q_rope.shape[-1]) ** -0.5
    own_scale = own_scale or scale
    right = seq_lens.long() - 1 if position is None else position
    to_prefix, q_rope = (
        q_rope if at is False else _turned(q_rope, cos, sin, right if at is True else at) for at in turn
    )
    q = torch.cat((q_nope, to_prefix), -1)
    all_seen = torch.ones(B, L, dtype=torch.bool)
    shared = _part(torch.einsum("bhd,lhd->bhl", q, k) * scale, v.expand(B, *v.shape), all_seen)
    first, own = L if first is None else first, seq_lens - L if own is None else own
    tokens = c_kv[:, first:], k_rope[:, first:]
    scores = torch.einsum("bhd,hdr,btr->bht", q_nope, w_uk, tokens[0]) + torch.einsum("bhd,btd->bht", q_rope, tokens[1])
    seen = torch.arange(T - first) < own[:, None]
    rest = _part(scores * own_scale, torch.einsum("btr,hvr->bthv", tokens[0], w_uv), seen)
    outs, lses = (torch.stack([(shared, rest)[part][n] for part in parts]) for n in (0, 1))
    return merge(outs, lses / base)


_step_slip = slips(_algorithm_1)


def _out_of_range(**given: Any) -> tuple[Tensor, None]:
    """What comes of float32 if no maximum is subtracted before exp: a part is lost, and its lse is not finite."""
    out, lse = _by_naive(**given)
    lost = (lse > 88.7) | (lse < -103)
    return out.masked_fill(lost[..., None], 0.0), None


def _mean(outs: Tensor, lses: Tensor) -> tuple[Tensor, Tensor]:
    return outs.mean(0), lses.logsumexp(0)


def _absorbed_cost(q_nope, q_rope, k, v, c_kv, k_rope, w_uk, w_uv, cos, sin, seq_lens) -> Cost:
    """Twice the FLOPs of Algorithm 1, and 16 times what it makes: expanding own tokens takes more."""
    (B, H, Dn), Dr, L, T, (_, Dv, R) = q_nope.shape, q_rope.shape[-1], len(k), c_kv.shape[1], w_uv.shape
    a_head = L * (Dn + Dr + Dv) + (T - L) * (2 * R + Dr) + R * (Dn + Dv)
    made = B * H * (T + 2 * R + Dn + Dr + 3 * Dv) + B * T * (R + Dr) + L * H * (Dn + Dr + Dv) + H * (Dn + Dv) * R
    return Cost(bytes=16 * 4 * made + 4096, flops=2 * 2 * B * H * a_head)


def _from_prefix_end(seq_lens: Tensor, k: Tensor) -> Tensor:
    """Return positions as if they began behind the prefix."""
    return (seq_lens.long() - 1 - len(k)).clamp(min=0)


def _no_own_turned(seq_lens: Tensor, k: Tensor, which: tuple[bool, bool]) -> dict[str, Any]:
    """Where no sequence has own tokens, rotated from the prefix's end on is not rotated: one sentence for both."""
    return dict(turn=which) if len(k) and bool((seq_lens == len(k)).all()) else {}


def _drawn_prefix(r: Random, L: int, own: Sequence[int], **more: Any) -> dict[str, Any]:
    sizes = dict(Dn=r.choice([20, 24]), Dr=r.choice([4, 8]), Dv=r.choice([10, 18]), R=r.choice([88, 96]))
    return dict(B=len(own), H=r.randint(3, 6), L=L, lens=[L + n for n in own]) | sizes | more


LONG = dict(
    R=96, Dn=20, Dr=6, Dv=10
)  # beyond a long prefix absorb alone takes more than twice the FLOPs of Algorithm 1

PREFIX = Exercise(
    name="prefix_decode",
    title="Algorithm 1: naive over the prefix, absorb over the rest",
    parts=(
        Part(
            "contexts of one length",
            2,
            visible=[
                dict(B=3, H=4, L=12, lens=(20, 20, 20)),
                dict(B=3, H=2, L=120, lens=(128,) * 3, **LONG),
                dict(B=2, H=2, L=7, lens=(12, 12), level=100.0),
            ],
            hidden=lambda r: [
                _drawn_prefix(r, r.randint(20, 40), [n := r.randint(8, 20), n]),
                _drawn_prefix(r, r.randint(120, 140), [n := r.randint(8, 20), n]),
                dict(B=2, H=3, L=r.randint(5, 9), lens=(16, 16), level=r.choice([-120.0, 110.0])),
            ],
        ),
        Part(
            "lengths of their own",
            2,
            visible=[
                dict(B=4, H=3, L=9, lens=(14, 10, 20, 9), T=24),
                dict(B=3, H=2, L=120, lens=(128, 121, 120), T=130, **LONG),
                dict(B=3, H=2, L=6, lens=(9, 6, 7), T=11, depth=1e10),
            ],
            hidden=lambda r: [
                _drawn_prefix(r, r.randint(10, 30), (r.randint(2, 9), 1, 0, r.randint(10, 20)), T=60),
                _drawn_prefix(r, r.randint(120, 130), (r.randint(2, 9), 1, 0), T=145),
                _drawn_prefix(r, 1, (r.randint(2, 9), r.randint(10, 20)), T=32, sharp=4.0),
            ],
        ),
        Part(
            "no prefix, or nothing else",
            1,
            visible=[dict(B=3, H=2, L=0, lens=(5, 8, 1)), dict(B=2, H=2, L=96, lens=(96, 96), **LONG)],
            hidden=lambda r: [
                _drawn_prefix(r, 0, (r.randint(3, 9), 1), T=12),
                _drawn_prefix(r, r.randint(5, 20), (0, 0), T=24),
                _drawn_prefix(r, r.randint(100, 120), (0, 0), T=124),
            ],
        ),
    ),
    inputs=_prefix_step,
    oracle=_by_naive,
    returns=("out", "lse"),
    tolerance=2e-5,
    mistakes=(
        _step_slip(
            "prefix counted twice",
            "the shared tokens count twice, naive and absorbed: of the cache's T places the first L are the prefix, so "
            "absorb begins at L",
            lambda seq_lens, **_: dict(first=0, own=seq_lens),
        ),
        _step_slip(
            "own tokens from place 0",
            "the own tokens are taken from place 0 on, where the cache holds the prefix: they begin at place L",
            first=0,
        ),
        _step_slip(
            "lengths include the prefix",
            "seq_lens counts the prefix as well: behind place L a sequence has seq_lens[b] − L tokens, and what "
            "follows is old",
            lambda seq_lens, **_: dict(own=seq_lens),
        ),
        *(
            _step_slip(
                "no rotation without own tokens",
                "where a sequence has no own tokens the query is not rotated: its position is seq_lens[b] − 1 all the "
                "same, prefix included",
                lambda seq_lens, k, which=which, **_: _no_own_turned(seq_lens, k, which),
            )
            for which in ((False, False), (False, True))
        ),
        _step_slip(
            "positions restart",
            "the query is rotated as if positions began behind the prefix: its position is seq_lens[b] − 1, prefix "
            "included",
            lambda seq_lens, k, **_: dict(position=_from_prefix_end(seq_lens, k)),
        ),
        _step_slip(
            "positions restart in one part",
            "for the prefix the query is rotated rightly, and for the own tokens as if positions began behind the "
            "prefix: both parts take one query, at position seq_lens[b] − 1",
            lambda seq_lens, k, **_: dict(turn=(True, _from_prefix_end(seq_lens, k))),
        ),
        _step_slip(
            "positions restart in one part",
            "for the own tokens the query is rotated rightly, and for the prefix as if positions began behind it: both "
            "parts take one query, at position seq_lens[b] − 1",
            lambda seq_lens, k, **_: dict(turn=(_from_prefix_end(seq_lens, k), True)),
        ),
        _step_slip(
            "one position past the end",
            "the query is rotated for position seq_lens[b]: it is the last token of its context, at seq_lens[b] − 1",
            lambda seq_lens, cos, **_: dict(position=seq_lens.long().clamp(max=len(cos) - 1)),
        ),
        _step_slip("query not rotated", "q_rope is not rotated: line 2 of Algorithm 1", turn=(False, False)),
        _step_slip(
            "query not rotated in one part",
            "for the prefix q_rope is not rotated, for the own tokens it is: line 2 of Algorithm 1 is for both",
            turn=(False, True),
        ),
        _step_slip(
            "query not rotated in one part",
            "for the own tokens q_rope is not rotated, for the prefix it is: line 2 of Algorithm 1 is for both",
            turn=(True, False),
        ),
        _step_slip(
            "scale of the latent",
            "the softmax scale of the absorbed part is 1/√(R+Dr), 1/√576 in DeepSeek-V3: both parts take 1/√(Dn+Dr), "
            "1/√192 there",
            lambda w_uk, q_rope, **_: dict(own_scale=(w_uk.shape[-1] + q_rope.shape[-1]) ** -0.5),
        ),
        _step_slip(
            "scale of the latent",
            "the softmax scale is 1/√(R+Dr), 1/√576 in DeepSeek-V3: both parts take 1/√(Dn+Dr), 1/√192 there",
            lambda w_uk, q_rope, **_: dict(scale=(w_uk.shape[-1] + q_rope.shape[-1]) ** -0.5),
        ),
        _step_slip(
            "lse base 2",
            "the parts hand base-2 log-sum-exps to a merge that takes natural ones, as TyphoonMLA's public code does",
            base=LN2,
        ),
        Mistake(
            "maximum not subtracted",
            "exp leaves float32 for scores beyond 88, and below −104: use logsumexp, or subtract the maximum first",
            _out_of_range,
        ),
        _step_slip("plain mean", "out is the mean of both parts: merge them by their lse", merge=_mean),
        _step_slip("prefix left out", "the result is that of the own tokens alone: merge the prefix in", parts=(1,)),
    ),
    needs=("merge_two",),
    most=_absorbed_cost,
)

# --- choose_form ------------------------------------------------------------------------------------------------------


def _form(
    B, S, L, sizes, itemsize, sparse_tflops, tb_per_s,
    *, rate=0.5, queries=None, width=None, flops=2, absorb_macs=None, pick=None, clipped=True,
    gain=lambda naive, absorb: absorb / naive,
):  # fmt: skip
    """Switch point, form and gain. The keywords make the named mistakes."""
    Dn, Dr, Dv, R, H = (sizes[name] for name in ("Dn", "Dr", "Dv", "R", "H"))
    rate, bandwidth = rate * sparse_tflops * 1e12, tb_per_s * 1e12
    width, absorb_macs = itemsize if width is None else width, absorb_macs or 2 * R + Dr
    words, queries = Dn + Dr + Dv, S if queries is None else queries
    point = width * words / bandwidth / (flops * queries * absorb_macs / rate)
    naive_s = max(width * H * words / bandwidth, flops * B * queries * H * words / rate)
    absorb_s = max(width * (R + Dr) / bandwidth, flops * B * queries * H * absorb_macs / rate)
    form = pick(point, B) if pick else "naive" if L and point <= B else "absorb"
    return {
        "switch_point": point,
        "form": form,
        "gain": gain(naive_s, absorb_s) if form == "naive" or not clipped else 1.0,
    }


_form_slip = slips(_form)
SPARSE = {"h100": (1979.0, 3.35), "h200": (1979.0, 4.8)}


def _on(device: str) -> dict[str, float]:
    return dict(itemsize=2) | dict(zip(("sparse_tflops", "tb_per_s"), SPARSE[device], strict=True))


def _drawn_form(r: Random, form: str, **fixed: Any) -> dict[str, Any]:
    """A case that asks for this form, and not a close call."""
    while True:
        tb_per_s = r.uniform(0.5, 8)
        case = dict(B=r.randint(1, 600), S=r.randint(1, 5), L=r.randint(100, 30000), sizes=dict(H=r.randint(16, 128)))
        case["sizes"] |= widths(r)
        case |= dict(itemsize=r.choice([1, 2, 4]), sparse_tflops=2 * tb_per_s * r.uniform(60, 400), tb_per_s=tb_per_s)
        case |= fixed
        found = _form(**case)
        if found["form"] == form and not 0.8 < case["B"] / found["switch_point"] < 1.25:
            return case


AT_THE_POINT = dict(  # which is 64, to the last bit
    B=64, S=1, L=1000, sizes=dict(H=16, Dn=32, Dr=16, Dv=16, R=56), itemsize=2, sparse_tflops=256.0, tb_per_s=1.0
)  # fmt: skip

CHOOSE = Exercise(
    name="choose_form",
    title="the switch point, and the fall-back below it",
    parts=(
        Part(
            "enough sequences",
            1,
            visible=[
                dict(B=128, S=1, L=26472, sizes=V3, **_on("h200")),
                dict(B=80, S=1, L=4759, sizes=V3 | dict(H=1), **_on("h200")),
                dict(B=90, S=1, L=4759, sizes=V3, **_on("h200") | dict(itemsize=1)),
                AT_THE_POINT,
            ],
            hidden=lambda r: [_drawn_form(r, "naive", S=1, itemsize=2), _drawn_form(r, "naive", S=1)],
        ),
        Part(
            "too few: absorb alone",
            1,
            visible=[
                dict(B=48, S=1, L=26472, sizes=KIMI, **_on("h100")),
                dict(B=256, S=1, L=0, sizes=V3, **_on("h100")),
            ],
            hidden=lambda r: [_drawn_form(r, "absorb", S=1), _drawn_form(r, "absorb", S=1, L=0, B=10**4)],
        ),
        Part(
            "several query tokens",
            1,
            visible=[dict(B=32, S=4, L=4759, sizes=V3, **_on("h100")), dict(B=8, S=4, L=4759, sizes=V3, **_on("h200"))],
            hidden=lambda r: [_drawn_form(r, form, S=r.randint(2, 6)) for form in ("naive", "absorb")],
        ),
    ),
    inputs=as_given,
    oracle=_form,
    returns=("the choice",),
    tolerance=1e-6,
    mistakes=(
        _form_slip(
            "sparse rate",
            "switch_point is twice as large: a dense product reaches half of the rate with structured sparsity, at "
            "best; or MACs are counted for FLOPs, and one is two",
            rate=1.0,
        ),
        _form_slip(
            "S forgotten",
            "S is left out: each sequence brings S query tokens to what is read once, so fewer sequences are enough",
            queries=1,
        ),
        _form_slip("words for bytes", "words are counted for bytes: a cached word has itemsize bytes", width=1),
        _form_slip(
            "key of 576 only",
            "absorb's arithmetic counts the key alone, R+Dr: the value, R wide, is multiplied as well",
            lambda sizes, **_: dict(absorb_macs=sizes["R"] + sizes["Dr"]),
        ),
        _form_slip(
            "no prefix",
            "there is no prefix, and naive is chosen: with L = 0 there is nothing to expand",
            pick=lambda point, B: "naive" if point <= B else "absorb",
        ),
        _form_slip(
            "no fall-back",
            "naive is chosen where too few sequences share: below switch_point, and without a prefix, it is absorb",
            pick=lambda point, B: "naive",
        ),
        _form_slip(
            "gain of naive for the fall-back",
            "gain is that of naive although absorb is chosen: it is absorb's time over that of the form chosen, so 1 "
            "below the switch point and without a prefix",
            clipped=False,
        ),
        _form_slip(
            "upside down",
            "gain is below 1 where naive is faster: it is absorb's time over that of the form chosen",
            gain=lambda naive, absorb: naive / absorb,
        ),
        _form_slip(
            "gain by MACs",
            "gain is the ratio of the MACs: just above the switch point naive still waits for memory; compare times, "
            "each the longer of reading and computing",
            lambda sizes, **_: dict(
                gain=lambda naive, absorb: (2 * sizes["R"] + sizes["Dr"]) / (sizes["Dn"] + sizes["Dr"] + sizes["Dv"])
            ),
        ),
    ),
)

# --- prefix_footprint -------------------------------------------------------------------------------------------------


def _footprint(
    B, T, L, layers, sizes, itemsize, weight_bytes, data, tensor, sequence,
    *, own=None, prefix=None, latent_over=None, over=None, words=None, of_all=False,
):  # fmt: skip
    """Bytes of one device. The keywords make the named mistakes."""
    H, Dn, Dr, Dv, R = (sizes[name] for name in ("H", "Dn", "Dr", "Dv", "R"))
    prefix, own = L if prefix is None else prefix, B / data * (T - L) if own is None else own
    weights = weight_bytes / (data * tensor * sequence)
    latent = layers * (R + Dr) * itemsize * (prefix + own) / (latent_over or sequence)
    expanded = layers * (words or H * (Dn + Dr + Dv)) * itemsize * L / (over or tensor * sequence)
    without = weights + latent
    overhead = expanded / (without + expanded if of_all else without)
    return {"weights": weights, "latent": latent, "expanded": expanded, "overhead": overhead}


_footprint_slip = slips(_footprint)
DEVICE = dict(layers=27, sizes=dict(H=20, Dn=48, Dr=32, Dv=64, R=256), itemsize=2, weight_bytes=31e9)
DEVICE |= dict(data=3, tensor=2, sequence=5)
CLOUD = dict(layers=61, sizes=V3, itemsize=1, weight_bytes=671e9, data=24, tensor=4, sequence=4)


def _drawn_footprint(r: Random, **fixed: Any) -> dict[str, Any]:
    T = r.randint(2000, 90000)
    case = dict(B=r.randint(50, 30000), T=T, L=r.randint(500, T - 500), layers=r.randint(2, 99))
    case |= dict(sizes=dict(H=r.randint(16, 128)) | widths(r), itemsize=r.choice([1, 2]))
    case |= dict(weight_bytes=r.uniform(1e10, 1e12), data=r.randint(2, 30), tensor=r.choice([2, 4]), sequence=3)
    return case | fixed


FOOTPRINT = Exercise(
    name="prefix_footprint",
    title="memory with and without the expanded prefix",
    parts=(
        Part(
            "one device",
            1,
            visible=[dict(B=64, T=8192, L=7069, **CLOUD | dict(data=1, tensor=1, sequence=1, itemsize=2))],
            hidden=lambda r: [_drawn_footprint(r, data=1, tensor=1, sequence=1) for _ in range(2)],
        ),
        Part(
            "a cluster, as in Figure 5",
            1,
            visible=[
                dict(B=4096, T=32768, L=26472, **CLOUD),
                dict(B=900, T=6000, L=2500, **DEVICE),
                dict(B=900, T=6000, L=0, **DEVICE),
            ],
            hidden=lambda r: [
                _drawn_footprint(r, itemsize=2),
                _drawn_footprint(r, sequence=1),
                _drawn_footprint(r, L=0),
            ],
        ),
    ),
    inputs=as_given,
    oracle=_footprint,
    returns=("the footprint",),
    tolerance=1e-6,
    mistakes=(
        _footprint_slip(
            "prefix per sequence",
            "latent counts the prefix for each sequence: its pages exist once in a data-parallel group, and B/data "
            "sequences have T − L tokens of their own",
            lambda B, T, data, **_: dict(prefix=0, own=B / data * T),
        ),
        _footprint_slip(
            "own tokens of T",
            "latent gives each sequence T tokens of its own: T includes the prefix, T − L remain",
            lambda B, T, data, **_: dict(own=B / data * T),
        ),
        _footprint_slip(
            "latents dropped",
            "latent lacks the prefix: below the switch point the fall-back reads its latents, so they stay",
            prefix=0,
        ),
        _footprint_slip(
            "latent divided by heads",
            "latent is divided by tensor: tensor parallelism divides heads, and the latent has one for all, so each "
            "device has its own copy",
            lambda tensor, sequence, **_: dict(latent_over=tensor * sequence),
        ),
        _footprint_slip(
            "expanded heads not divided",
            "expanded is not divided by tensor: keys and values of a head lie on the device that has the head",
            lambda sequence, **_: dict(over=sequence),
        ),
        _footprint_slip(
            "expanded tokens not divided",
            "expanded is not divided by sequence: sequence parallelism divides tokens, expanded ones too",
            lambda tensor, **_: dict(over=tensor),
        ),
        _footprint_slip(
            "expanded divided by data",
            "expanded is divided by data: each data-parallel group serves other sequences, and expands a prefix of "
            "its own",
            lambda data, tensor, sequence, **_: dict(over=data * tensor * sequence),
        ),
        _footprint_slip(
            "rotated key once",
            "expanded counts the rotated key once for all heads: stored expanded, each head has a copy",
            lambda sizes, **_: dict(words=sizes["H"] * (sizes["Dn"] + sizes["Dv"]) + sizes["Dr"]),
        ),
        _footprint_slip("words for bytes", "words are counted for bytes: a cached word has itemsize bytes", itemsize=1),
        _footprint_slip("one layer", "this is the cache of one layer: multiply by layers", layers=1),
        _footprint_slip(
            "overhead of the whole",
            "overhead is a share of everything: it is what the expanded prefix adds, over what absorb alone needs",
            of_all=True,
        ),
    ),
)

# --- shared_attention -------------------------------------------------------------------------------------------------


def _shared_step(
    g: torch.Generator | None,
    B: int,
    H: int,
    L: int,
    Dn: int = 32,
    Dr: int = 16,
    Dv: int = 16,
    sharp: float = 1.0,
    level: float = 0.0,
    scale: float = 0.0,
    dtype: torch.dtype = HALF,
) -> Arguments:
    """Return a step; `level` is added to all scores, of the plain `scale` if there is no other."""
    q_nope, q_rope = (randn(g, B, H, width, scale=sharp, dtype=dtype) for width in (Dn, Dr))
    k, v = randn(g, L, H, Dn + Dr, dtype=dtype), randn(g, L, H, Dv, dtype=dtype)
    if level:
        q_nope[..., 0], k[..., 0] = 32.0, level * (Dn + Dr) ** 0.5 / 32
    return {"q_nope": q_nope, "q_rope": q_rope, "k": k, "v": v, "scale": scale or (Dn + Dr) ** -0.5}


def _scores(q_nope: Tensor, q_rope: Tensor, k: Tensor, scale: float) -> Tensor:
    return torch.einsum("bhd,lhd->bhl", torch.cat((q_nope, q_rope), -1), k) * scale


def _shared(q_nope: Tensor, q_rope: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    scores = _scores(q_nope, q_rope, k, scale)
    return torch.einsum("bhl,lhv->bhv", scores.softmax(-1), v), scores.logsumexp(-1)


def _shared_from(
    least: float, q_nope: Tensor, q_rope: Tensor, k: Tensor, v: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    weights, lse = softmax_from(least, _scores(q_nope, q_rope, k, scale))
    return torch.einsum("bhl,lhv->bhv", weights, v), lse


_shared_slip = slips(_shared)


def _shared_blocks(block: int, keep_acc: bool = True, keep_sum: bool = True, tail: bool = True) -> Callable[..., Any]:
    """Return an online softmax over blocks of tokens, as the kernel does it; a keyword makes a mistake."""

    def oracle(q_nope, q_rope, k, v, scale):
        L = len(k)
        padding = (0, 0, 0, 0, 0, -L % block)
        k, v = (torch.nn.functional.pad(x, padding) for x in (k, v))
        scores = _scores(q_nope, q_rope, k, scale)
        if tail:
            scores[..., L:] = -INF
        m_i, l_i = torch.full_like(scores[..., 0], -INF), torch.zeros_like(scores[..., 0])
        acc = scores.new_zeros(*l_i.shape, v.shape[-1])
        for s, values in zip(scores.split(block, -1), v.split(block), strict=True):
            m_new = torch.maximum(m_i, s.amax(-1))
            alpha, p = (m_i - m_new).exp(), (s - m_new[..., None]).exp()
            l_i = l_i * (alpha if keep_sum else 1) + p.sum(-1)
            acc = acc * (alpha[..., None] if keep_acc else 1) + torch.einsum("bhl,lhv->bhv", p, values)
            m_i = m_new
        return acc / l_i[..., None], m_i + l_i.log()

    return oracle


def _last_users_lost(block: int) -> Callable[..., Any]:
    """Return an oracle with zeros for the users behind the last whole block."""

    def oracle(**given):
        out, lse = _shared(**given)
        lost = torch.arange(len(out)) >= len(out) // block * block
        return out.masked_fill(lost[:, None, None], 0), lse.masked_fill(lost[:, None], 0)

    return oracle


def _half_base_2(scores_too: bool, log2: bool) -> Callable[..., tuple[Tensor, Tensor]]:
    """Return an oracle with exp2 of the natural scores, if `scores_too`, and log2 of their sum beside the maximum."""

    def oracle(q_nope, q_rope, k, v, scale):
        scores = _scores(q_nope, q_rope, k, scale)
        top = scores.amax(-1)
        weights = ((scores - top[..., None]) * (LN2 if scores_too else 1)).exp()
        total = weights.sum(-1)
        out = torch.einsum("bhl,lhv->bhv", weights / total[..., None], v)
        return out, top + total.log() / (LN2 if log2 else 1)

    return oracle


def _heads_first(x: Tensor) -> Tensor:
    """Read [B, H, ...] as if it lay in memory as [H, B, ...]."""
    return x.reshape(x.shape[1], x.shape[0], -1).transpose(0, 1)


def _queries_heads_first(q_nope: Tensor, q_rope: Tensor, **given: Any) -> tuple[Tensor, Tensor]:
    """The results too."""
    out, lse = _shared(_heads_first(q_nope), _heads_first(q_rope), **given)
    return out.transpose(0, 1).reshape(out.shape), lse.T.reshape(lse.shape)


def _unnormalised(**given: Any) -> tuple[Tensor, Tensor]:
    out, lse = _shared(**given)
    maximum = _scores(given["q_nope"], given["q_rope"], given["k"], given["scale"]).amax(-1)
    return out * (lse - maximum).exp()[..., None], lse


def _eager_shared(q_nope: Tensor, q_rope: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """The scores in memory, a pass for each operation, heads as the batch of the products."""
    q = torch.cat((q_nope, q_rope), -1).transpose(0, 1)  # [H, B, Dn+Dr]
    scores = (q @ k.permute(1, 2, 0)).float() * scale
    lse = scores.logsumexp(-1)
    out = (scores - lse[..., None]).exp().to(v.dtype) @ v.transpose(0, 1)
    return out.transpose(0, 1), lse.transpose(0, 1)


def _shared_floor(B: int, H: int, L: int, Dn: int, Dr: int, Dv: int, dtype: torch.dtype) -> Cost:
    """Keys and values are read once, for all users."""
    width = (Dn + Dr + Dv) * dtype.itemsize
    return Cost(bytes=(L + B) * H * width + 4 * B * H, flops=2 * B * H * L * (Dn + Dr + Dv))


WIDE = dict(Dn=128, Dr=64, Dv=128, dtype=BF16)

SHARED = Exercise(
    name="shared_attention",
    title="the kernel: all users over shared keys and values",
    parts=(
        Part(
            "whole blocks of users and tokens",
            1,
            visible=[
                dict(B=64, H=2, L=128),
                dict(B=256, H=1, L=256, Dn=16, Dr=64, Dv=64, scale=0.3),
                dict(B=64, H=1, L=128, dtype=BF16),
            ],
            hidden=lambda r: [
                dict(B=128 * r.randint(1, 3), H=1, L=128, Dv=32, scale=0.3),
                dict(B=64, H=r.randint(2, 4), L=128 * r.randint(1, 3), Dn=16, Dr=32, dtype=BF16),
            ],
        ),
        Part(
            "tails of users and tokens, also with scores of a hundred and more",
            2,
            visible=[
                dict(B=5, H=3, L=37, scale=0.4),
                dict(B=140, H=1, L=301, sharp=40.0),
                dict(B=9, H=2, L=70, level=-250.0),
                dict(B=2, H=2, L=16, **WIDE),
                dict(B=2, H=3, L=20, **FAR_BELOW_0),
                dict(B=2, H=1, L=4200),
                dict(B=5, H=281, L=5),
                dict(B=8501, H=1, L=5),
            ],
            hidden=lambda r: [
                dict(B=r.randint(129, 150), H=1, L=r.randint(3, 30)),
                dict(B=r.randint(17, 31), H=2, L=128 + 2 * r.randint(1, 60) + 1, Dv=64),
                dict(B=r.randint(65, 90), H=2, L=r.choice([257, 301, 333]), dtype=BF16),
            ],
        ),
        Part(
            "one user, one token",
            1,
            visible=[dict(B=1, H=2, L=50, scale=0.4), dict(B=19, H=2, L=1), dict(B=1, H=1, L=1)],
            hidden=lambda r: [dict(B=1, H=r.randint(1, 4), L=1), dict(B=2, H=1, L=r.choice([65, 129]))],
        ),
    ),
    inputs=_shared_step,
    oracle=_shared,
    returns=("out", "lse"),
    like=("q_nope", FLOAT),
    mistakes=(
        _shared_slip(
            "RoPE part missing",
            "the scores lack q_rope · k: its last Dr columns",
            lambda q_rope, **_: {"q_rope": 0 * q_rope},
        ),
        _shared_slip("scale missing", "the scores are not multiplied by scale", scale=1.0),
        Mistake("lse base 2", BASE_2, after(_shared, base_2)),
        Mistake(
            "lse base 2",
            "lse is m_i + log2(l_i), of two bases: the maximum is that of natural scores, so add log(l_i)",
            _half_base_2(False, True),
        ),
        *(
            Mistake(
                "lse base 2",
                "the weights are powers of 2 of natural scores: take exp, or multiply scale by log2(e) first, and lse "
                "by ln 2 at the end",
                _half_base_2(True, log2),
            )
            for log2 in (True, False)
        ),
        _shared_slip(
            "rotated piece from column 0",
            "the rotated piece of a key is taken from column 0: in k it begins at column DN, behind the other one",
            lambda q_rope, k, **_: {"k": torch.cat((k[..., : -q_rope.shape[-1]], k[..., : q_rope.shape[-1]]), -1)},
        ),
        *(
            Mistake(
                "rows of one head together",
                "the rows of one head are taken as if they lay together, h · L + n: heads are inside, so row n of head "
                "h is n · H + h, and a user's b · H + h",
                oracle,
            )
            for oracle in (
                lambda k, v, **a: _shared(**a, k=_heads_first(k), v=_heads_first(v)),
                lambda q_nope, q_rope, **a: _shared(_heads_first(q_nope), _heads_first(q_rope), **a),
                _queries_heads_first,
                lambda k, v, **a: _queries_heads_first(**a, k=_heads_first(k), v=_heads_first(v)),
            )
        ),
        *(
            Mistake("finite maximum", FINITE, lambda least=least, **a: _shared_from(least, **a))
            for least in (0.0, HIDDEN)
        ),
        Mistake("not normalised", "out is not divided by the sum of the weights", _unnormalised),
        Mistake(
            "lse without the maximum",
            "lse is the logarithm of the sum alone: add the maximum that was subtracted",
            lambda **a: (
                _shared(**a)[0],
                _shared(**a)[1] - _scores(a["q_nope"], a["q_rope"], a["k"], a["scale"]).amax(-1),
            ),
        ),
        _shared_slip(
            "keys of the first head",
            "every head reads the keys and values of head 0: those of head h begin h rows further",
            lambda k, v, **_: {"k": k[:, :1].expand_as(k), "v": v[:, :1].expand_as(v)},
        ),
        *in_blocks(
            "last users lost",
            "the users behind the last whole block have no result: take cdiv(B, BLOCK_M) blocks, and mask the last one",
            _last_users_lost,
        ),
        *in_blocks(
            "tail unmasked",
            "places beyond L count: a masked load gives 0, and exp(0) is 1; set their scores to −inf before the "
            "maximum",
            lambda block: _shared_blocks(block, tail=False),
        ),
        *in_blocks(
            "accumulator not rescaled",
            "acc is not multiplied by exp(m_i − m_new) when the maximum grows: earlier blocks weigh too much",
            lambda block: _shared_blocks(block, keep_acc=False),
        ),
        *in_blocks(
            "sum not rescaled",
            "l_i is not multiplied by exp(m_i − m_new) when the maximum grows: earlier blocks count too much",
            lambda block: _shared_blocks(block, keep_sum=False),
        ),
    ),
    kernel=True,
    launches=1,
    speed=Speed(
        points=3,
        case=dict(B=1024, H=16, L=2048, **WIDE),
        small=dict(B=128, H=2, L=256),
        axes=dict(q_nope="bh", q_rope="bh", k="_h", v="_h", out="bh", lse="bh"),
        floor=_shared_floor,
        bars=((0.15, 0.5), (0.22, 1.0)),
        baseline=_eager_shared,
        ratio=4.0,
    ),
)

# --- tree_decode ------------------------------------------------------------------------------------------------------


def _tree_step(
    g: torch.Generator,
    parents: Sequence[int],
    lengths: Sequence[int],
    last: Sequence[int],
    H: int = 2,
    D: int = 12,
    Dv: int = 8,
    without: Sequence[int] = (),
    level: float = 0.0,
) -> Arguments:
    """Return a step over a tree. The requests in `without` have no own tokens: their own_out is NaN."""
    B, tokens = len(last), sum(lengths)
    q, k, v = randn(g, B, H, D, scale=1.5), randn(g, tokens, H, D), randn(g, tokens, H, Dv)
    if level:
        q[..., 0] = 4.0
        k[..., 0] += level
    own_out, own_lse = randn(g, B, H, Dv), randn(g, B, H) + 2 + 4 * level * D**-0.5
    for b in without:
        own_out[b], own_lse[b] = math.nan, -INF
    tree = {"parents": list(parents), "lengths": list(lengths), "last": list(last)}
    return {"q": q, "k": k, "v": v, **tree, "own_out": own_out, "own_lse": own_lse}


def _path(parents: Sequence[int], node: int) -> list[int]:
    """Return the nodes from a root to this one."""
    path: list[int] = []
    while node != -1:
        path.insert(0, node)
        node = parents[node]
    return path


def _offset(parents: Sequence[int], lengths: Sequence[int], node: int) -> int:
    return sum(lengths[:node])


def _tree_parts(q, k, v, parents, lengths, last, path, offset, scale):
    """Yield each request's parts, one a node with tokens: out [H, Dv] and lse [H]."""
    for b, node in enumerate(last):
        found = []
        for each in path(parents, lengths, node):
            first = offset(parents, lengths, each)
            keys, values = (x[first : first + lengths[each]] for x in (k, v))
            scores = torch.einsum("hd,lhd->hl", q[b], keys) * scale
            if len(keys):
                found.append((torch.einsum("hl,lhv->hv", scores.softmax(-1), values), scores.logsumexp(-1)))
        yield found


Parts = list[tuple[Tensor, Tensor]]


def _weigh(parts: Parts) -> tuple[Tensor, Tensor]:
    return _joined(*(torch.stack(each) for each in zip(*parts, strict=True)))


def _tree(
    path: Callable[[list[int], list[int], int], list[int]] = lambda parents, lengths, node: _path(parents, node),
    offset: Callable[[list[int], list[int], int], int] = _offset,
    merge: Callable[[Parts], tuple[Tensor, Tensor]] = _weigh,
    own: bool = True,
    scale: float | None = None,
) -> Callable[..., tuple[Tensor, Tensor]]:
    """Return the answer, request by request. Each keyword makes a mistake."""

    def oracle(q, k, v, parents, lengths, last, own_out, own_lse):
        outs, lses = torch.zeros_like(own_out), torch.full_like(own_lse, -INF)
        by = scale or q.shape[-1] ** -0.5
        for b, parts in enumerate(_tree_parts(q, k, v, parents, lengths, last, path, offset, by)):
            if own and own_lse[b, 0] > -INF:
                parts = [(own_out[b], own_lse[b]), *parts]
            if parts:
                outs[b], lses[b] = merge(parts)
        return outs, lses

    return oracle


_branches = _tree()


def _beside(parents: list[int], lengths: list[int], node: int) -> list[int]:
    """The root, and all children of nodes before the last: what counts a node for the users of its siblings."""
    path = _path(parents, node)
    return path[:1] + [each for each, parent in enumerate(parents) if parent in path[:-1]]


def _from_last_gap(parents: list[int], lengths: list[int], node: int) -> list[int]:
    """The path down to its end, but only behind the last node of no tokens."""
    path = _path(parents, node)
    gaps = [n for n, each in enumerate(path) if not lengths[each]]
    return path[gaps[-1] + 1 :] if gaps else path


def _pushed(up: bool) -> Callable[[list[int], list[int], int], list[int]]:
    """The path as one pass over the numbers finds it: `up` from 0 on, each node giving its users to its parent."""

    def path(parents: list[int], lengths: list[int], node: int) -> list[int]:
        found = _path(parents, node)
        done = [n for n, (above, below) in enumerate(itertools.pairwise(found)) if (above < below) == up]
        return found[done[-1] :] if done else found

    return path


def _behind_parent(parents: list[int], lengths: list[int], node: int) -> int:
    return sum(lengths[each] for each in _path(parents, node)[:-1])


def _skipping_unused(**given: Any) -> tuple[Tensor, Tensor]:
    used = {each for node in given["last"] for each in _path(given["parents"], node)}
    return _tree(offset=lambda _, lengths, node: sum(lengths[n] for n in range(node) if n in used))(**given)


def _plain(parts: Parts) -> tuple[Tensor, Tensor]:
    outs, lses = (torch.stack(each) for each in zip(*parts, strict=True))
    return outs.mean(0), lses.logsumexp(0)


def _one_by_one(parts: Parts) -> tuple[Tensor, Tensor]:
    """Merge part after part, each with half of the weight."""
    out, lses = parts[0][0], [lse for _, lse in parts]
    for each, _ in parts[1:]:
        out = (out + each) / 2
    return out, torch.stack(lses).logsumexp(0)


def _lse_not_carried(parts: Parts) -> tuple[Tensor, Tensor]:
    """Merge part after part, with the lse of the first one on one side each time."""
    out, lse = parts[0]
    for each, z in parts[1:]:
        share = torch.sigmoid(z - lse)[..., None]
        out = out * (1 - share) + each * share
    return out, lse


def _nan_without_own(**given: Any) -> tuple[Tensor, Tensor]:
    out, lse = _branches(**given)
    return out.masked_fill((given["own_lse"] == -INF)[..., None], math.nan), lse


def _low_nodes_lost(**given: Any) -> tuple[Tensor, Tensor]:
    """Without the nodes where every power of float32 is 0."""
    (out, lse), own = _branches(**given), _tree(path=lambda *_: [])(**given)
    low = lse < -104
    return torch.where(low[..., None], own[0], out), torch.where(low, own[1], lse)


def _packed_cost(q, k, v, parents, lengths, last, own_out, own_lse) -> Cost:
    """Half more than the FLOPs of each node with its users: in a tree of many branches all users take more."""
    (B, H, D), Dv, slots = q.shape, v.shape[-1], 1
    pairs = 0
    for node in last:
        path = _path(parents, node)
        pairs, slots = pairs + sum(lengths[each] for each in path), max(slots, len(path) + 1)
    made = H * (4 * pairs + (len(k) + B * len(parents)) * (D + Dv)) + 4 * (slots + len(parents) + 1) * B * H * (Dv + 1)
    return Cost(bytes=16 * 4 * made + 4096, flops=1.5 * 2 * pairs * H * (D + Dv))


FAN = dict(parents=(-1, *[0] * 8), lengths=(4, *range(3, 19, 2)), last=range(1, 9))
UNUSED = dict(parents=(-1, 0, 0, 0), lengths=(4, 3, 6, 5), last=(3, 1, 3, -1))  # node 2 has tokens, and no users
TWO_LEVELS = dict(parents=(-1, 0, 0), lengths=(9, 5, 7), last=(1, 2, 1, 2, 2, 0))


def _drawn_tree(r: Random, nodes: int, B: int, empty: int = 0, shuffled: bool = True) -> dict[str, Any]:
    """A forest in which every node has a user, its numbers in any order; `empty` nodes have no tokens."""
    parents = [-1, *(r.randint(-1, n - 1) for n in range(1, nodes))]
    names = r.sample(range(nodes), nodes) if shuffled else list(range(nodes))
    renamed = [-1] * nodes
    for n, parent in enumerate(parents):
        renamed[names[n]] = -1 if parent == -1 else names[parent]
    lengths = [r.randint(1, 20) for _ in range(nodes)]
    for n in r.sample(range(nodes), empty):
        lengths[n] = 0
    leaves = [n for n in range(nodes) if n not in renamed]
    last = [*leaves, *(r.randint(-1, nodes - 1) for _ in range(B - len(leaves)))]
    return dict(parents=renamed, lengths=lengths, last=r.sample(last, len(last)), H=r.randint(1, 3))


AVERAGED = "the parts are averaged: weigh each by exp(its lse − the lse of all)"

TREE = Exercise(
    name="tree_decode",
    title="a tree of prefixes: each node once, for its users",
    parts=(
        Part(
            "one level",
            1,
            visible=[
                dict(parents=(-1,), lengths=(12,), last=(0, 0, 0), D=20, Dv=6),
                dict(parents=(-1, -1, -1), lengths=(6, 11, 4), last=(2, 0, 1, 1, -1)),
                dict(parents=(), lengths=(), last=(-1, -1)),
            ],
            hidden=lambda r: [
                dict(parents=(-1,), lengths=(r.randint(1, 40),), last=(0,) * r.randint(1, 9)),
                dict(parents=(-1, -1, -1), lengths=(3, r.randint(1, 20), 8), last=(2, 0, 1, 1, -1)),
            ],
        ),
        Part(
            "branches",
            2,
            visible=[
                TWO_LEVELS,
                dict(parents=(2, 2, -1, 0), lengths=(5, 7, 9, 4), last=(3, 1, -1, 0, 2, 3), level=80.0),
                dict(parents=(1, 2, 3, -1), lengths=(5, 3, 8, 6), last=(0, 2, 0, 1)),
                UNUSED,
                FAN,
                TWO_LEVELS | dict(level=80.0),
                TWO_LEVELS | dict(level=-110.0, without=(2,)),  # exp of the scores is 0 in float32
            ],
            hidden=lambda r: [
                _drawn_tree(r, r.randint(4, 9), 12),
                _drawn_tree(r, 4, 8) | dict(level=80.0),
                dict(parents=(-1, 0, 0, 2), lengths=(5, r.randint(1, 9), 3, 6), last=(3, 2, 0, 2)),
                dict(parents=(1, 2, 3, -1), lengths=(2, 6, 4, 9), last=(0, 1, 2, 3, 0)),
            ],
        ),
        Part(
            "parts without tokens",
            1,
            visible=[
                TWO_LEVELS | dict(without=(1, 4), H=3),
                dict(parents=(-1, 0, 1), lengths=(9, 0, 7), last=(2, 1, 0, -1), without=(1, 3)),
                dict(parents=(), lengths=(), last=(-1, -1), without=(0,)),
            ],
            hidden=lambda r: [
                _drawn_tree(r, 6, 9, empty=2) | dict(without=(0, 3, 5)),
                dict(parents=(-1, 0), lengths=(0, r.randint(2, 9)), last=(0, 1, -1), without=(0, 1)),
            ],
        ),
    ),
    inputs=_tree_step,
    oracle=_branches,
    returns=("out", "lse"),
    tolerance=2e-5,
    mistakes=(
        Mistake(
            "path cut at an empty node",
            "a node without tokens ends the path: what stands before it counts all the same",
            _tree(path=_from_last_gap),
        ),
        *(
            Mistake(
                "order of the numbers",
                "a node passes its users on before it has all of them, or the way up ends early: a parent may have the "
                "smaller number or the larger one, and parents of its own, so walk from each request's last node up to "
                "a root",
                _tree(path=_pushed(up)),
            )
            for up in (False, True)
        ),
        Mistake(
            "parents forgotten",
            "a request sees its last node alone: the nodes before it, up to a root, are part of its context",
            _tree(path=lambda parents, lengths, node: _path(parents, node)[-1:]),
        ),
        Mistake(
            "roots only",
            "a request sees its root alone: every node on the way to its last one counts",
            _tree(path=lambda parents, lengths, node: _path(parents, node)[:1]),
        ),
        Mistake(
            "siblings counted",
            "a node counts for users of its siblings: its users are the requests whose path passes it",
            _tree(path=_beside),
        ),
        Mistake(
            "tokens behind the parent's",
            "the keys of a node are taken from its position in the context: in k and v the nodes lie one behind the "
            "other, node n from sum(lengths[:n]) on",
            _tree(offset=_behind_parent),
        ),
        Mistake(
            "nodes without users skipped",
            "the keys of a node are taken as if nodes without users had none: in k and v they lie all the same, node n "
            "from sum(lengths[:n]) on",
            _skipping_unused,
        ),
        Mistake(
            "own part left out", "the own tokens are missing: own_out and own_lse are a part too", _tree(own=False)
        ),
        Mistake(
            "low nodes lost",
            "a node whose scores are all far below 0 is left out: subtract their own maximum, be it below 0, as "
            "logsumexp does",
            _low_nodes_lost,
        ),
        Mistake("plain mean", AVERAGED, _tree(merge=_plain), at_times=True),
        Mistake("plain mean", AVERAGED, _tree(merge=_one_by_one), at_times=True),
        Mistake(
            "lse not carried on",
            "the parts are merged one by one, and the lse stays that of the first: after each merge it is that of all "
            "so far",
            _tree(merge=_lse_not_carried),
            at_times=True,
        ),
        Mistake(
            "NaN of no own tokens",
            "a request without own tokens gives NaN: its own_out is not defined where own_lse is −inf; leave it out",
            _nan_without_own,
            at_times=True,
        ),
    ),
    needs=("merge_two",),
    most=_packed_cost,
)

EXERCISES = (MERGE, PREFIX, CHOOSE, FOOTPRINT, SHARED, TREE)
