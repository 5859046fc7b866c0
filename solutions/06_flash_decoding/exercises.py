"""Lesson 06: flash decoding. Online softmax, a decode kernel, split-KV and its combine, tokens folded into heads."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from autograder.judging.exercise import Arguments, Exercise, Mistake, Part, Speed, randn
from mla_ref.attention import latent_attention
from mla_ref.hardware.cost import Cost

from ..drawing import BF16, FAR_BELOW_0, FLOAT, HALF, as_given, set_level
from ..oracles import (
    BLOCKS,
    DECODED_IN_BASE_2,
    INF,
    LENGTH_OF_0,
    NOT_NORMALISED,
    OF_A_STEP,
    ROPE_MISSING,
    SCALE_MISSING,
    SCALE_OF_THE_LATENT,
    after,
    blockwise,
    decode_floor,
    decoded,
    decoded_with,
    eager_decode,
    empty_mistakes,
    finite_mask,
    in_blocks,
    lse_where_empty,
    maximum_not_kept,
    nan_where_empty,
    slips,
    up_to_length,
)

SMS = 132  # of an H100

# --- predict_splits ---------------------------------------------------------------------------------------------------


def _split_costs(
    B: int,
    H: int,
    T: int,
    num_splits: int,
    *,
    heads: int = 16,
    up: bool = True,
    sms: float = SMS,
    caches: int = 1,
    words: int = 513,
    ways: int = 2,
    whole: bool = True,
    copies: int | None = None,
) -> dict[str, float]:
    """Return the right numbers. Each keyword puts a wrong one in place of a right one."""
    programs, each = B * (-(-H // heads) if up else H // heads) * num_splits, copies or H
    partial_bytes = ways * num_splits * B * each * words * 4
    return {
        "programs": programs,
        "busy_sms": min(programs, sms),
        "cache_bytes": B * T * 576 * 2 * caches,
        "partial_bytes": 0 if whole and num_splits == 1 else partial_bytes,
        "even_tokens": ways * each * words * 4 / (576 * 2 * caches),
    }


_slip = slips(_split_costs)

PREDICT = Exercise(
    name="predict_splits",
    title="prediction: programs, and bytes of a split",
    parts=(
        Part("one sequence, 64 splits", 1, visible=[dict(B=1, H=16, T=8192, num_splits=64)]),
        Part(
            "any step",
            1,
            visible=[
                dict(B=60, H=120, T=99_990, num_splits=99),  # bytes pass 2³¹
                dict(B=2, H=5, T=333, num_splits=1),
                dict(B=3, H=7, T=5, num_splits=12),
            ],
            hidden=lambda r: (
                [
                    dict(B=r.randint(1, 64), H=r.randint(1, 128), T=r.randint(1, 99999), num_splits=n)
                    for n in (1, 2, r.randint(3, 9), r.randint(10, 200))
                ]
                + [dict(B=1, H=16 * r.randint(1, 7) + 1, T=r.randint(1, 999), num_splits=3)]
                + [dict(B=r.randint(1, 9), H=r.randint(1, 15), T=r.randint(1, 9), num_splits=r.randint(10, 64))]
            ),
        ),
    ),
    inputs=as_given,
    oracle=_split_costs,
    returns=("prediction",),
    mistakes=(
        _slip("a program per head", "a program has one head here: 16 heads share one, ceil(H / 16) blocks", heads=1),
        _slip("last heads without a program", "H // 16 leaves the last heads without a program: round up", up=False),
        _slip("more SMs than there are", "busy_sms exceeds 132: with more programs than SMs all are busy", sms=INF),
        _slip(
            "cache of every head",
            "cache_bytes counts a cache for each head: all heads share one",
            lambda H, **_: {"caches": H},
        ),
        _slip(
            "cache of every block",
            "cache_bytes counts the cache once for each block of 16 heads: it is asked for as read once",
            lambda H, **_: {"caches": -(-H // 16)},
        ),
        _slip("lse left out", "a partial result is R numbers and its lse: 513 words a head, not 512", words=512),
        _slip(
            "half of the partials",
            "partials are counted at half: a number has 4 bytes, and is written and read again by the combine",
            ways=1,
        ),
        _slip(
            "partials of one head",
            "the partials lack H: heads share the cache, but each has R numbers and an lse of its own",
            copies=1,
        ),
        _slip(
            "partials of one split", "with one split there are no partials: it writes the result itself", whole=False
        ),
        _slip(
            "splits with tokens alone",
            "splits that get no token are left out: where T is less than num_splits they have a program all the same, "
            "and partial results",
            lambda T, num_splits, **_: {"num_splits": min(num_splits, T)},
        ),
    ),
)

# --- online_update ----------------------------------------------------------------------------------------------------


def _state_and_block(
    g: torch.Generator, H: int, R: int, n: int, before: int = 0, rise: float = 0.0, hidden: Sequence[int] = ()
) -> Arguments:
    """Return the state after `before` tokens, and a block of n more.

    The scores of the block are `rise` higher. The heads `hidden` see none of it.
    """
    qk = randn(g, H, before + n, scale=2.0, dtype=torch.float64)
    v = randn(g, before + n, R, dtype=torch.float64)
    qk[:, before:] += rise
    qk[list(hidden), before:] = -INF
    old, new = qk[:, :before], qk[:, before:]
    m_i = old.amax(-1) if before else torch.full((H,), -INF, dtype=torch.float64)
    p = (old - m_i[:, None]).exp()
    state = {"m_i": m_i, "l_i": p.sum(-1), "acc": p @ v[:before]}
    return {name: x.float() for name, x in {**state, "qk": new, "v": v[before:]}.items()}


def _updated(m_i: Tensor, l_i: Tensor, acc: Tensor, qk: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """From the log-sum-exps of both parts."""
    m_new = torch.maximum(m_i, qk.amax(-1))
    base = m_new.masked_fill(m_new == -INF, 0)
    lse = torch.logaddexp(m_i + l_i.log(), qk.logsumexp(-1))
    return m_new, (lse - base).exp(), acc * (m_i - base).exp()[:, None] + (qk - base[:, None]).exp() @ v


Update = Callable[..., tuple[Tensor, Tensor, Tensor]]


def _by_steps(
    keep_acc: float = 1, keep_sum: float = 1, block_maximum: bool = False, safe: bool = True, divide: bool = False
) -> Update:
    """Return an update as a kernel does it. Each keyword makes a mistake."""

    def oracle(m_i: Tensor, l_i: Tensor, acc: Tensor, qk: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        m_new = qk.amax(-1) if block_maximum else torch.maximum(m_i, qk.amax(-1))
        base = m_new.masked_fill(m_new == -INF, 0) if safe else m_new
        fall = torch.where(m_i == base, 0.0, m_i - base) if safe else m_i - base
        p = (qk - base[:, None]).exp()
        l_i = l_i * _alpha(fall, keep_sum) + p.sum(-1)
        acc = acc * _alpha(fall, keep_acc)[:, None] + p @ v
        return m_new, l_i, acc / l_i[:, None] if divide else acc

    return oracle


def _alpha(fall: Tensor, power: float) -> Tensor:
    return (fall * power).exp() if power else torch.ones_like(fall)


UPDATE = Exercise(
    name="online_update",
    title="online softmax: one block into the state",
    parts=(
        Part(
            "the first block",
            1,
            visible=[dict(H=3, R=4, n=5)],
            hidden=lambda r: [dict(H=r.randint(1, 5), R=r.randint(1, 9), n=n) for n in (1, r.randint(2, 9))],
        ),
        Part(
            "later blocks",
            1,
            visible=[
                dict(H=3, R=4, n=5, before=6, rise=8.0),
                dict(H=2, R=3, n=4, before=2, rise=-40.0),
                dict(H=5, R=3, n=1, before=1),
            ],
            hidden=lambda r: [
                dict(H=r.randint(1, 5), R=r.randint(1, 9), n=r.randint(1, 9), before=r.randint(1, 20), rise=rise)
                for rise in (0.0, 60.0, r.uniform(-5, 5))
            ],
        ),
        Part(
            "heads that see nothing of the block",
            1,
            visible=[dict(H=4, R=3, n=4, hidden=(0, 2)), dict(H=3, R=3, n=4, before=5, rise=-12.0, hidden=(1,))],
            hidden=lambda r: [dict(H=3, R=r.randint(1, 9), n=3, before=r.randint(0, 1) * 4, hidden=(0, 1, 2))],
        ),
    ),
    inputs=_state_and_block,
    oracle=_updated,
    returns=("m_i", "l_i", "acc"),
    mistakes=(
        Mistake(
            "accumulator not rescaled",
            "acc still holds weights under the old maximum: multiply it by exp(m_i − m_new) before adding",
            _by_steps(keep_acc=0),
        ),
        Mistake(
            "sum not rescaled",
            "l_i still counts weights under the old maximum: multiply it by exp(m_i − m_new) before adding",
            _by_steps(keep_sum=0),
        ),
        Mistake(
            "rescaled upwards",
            "the old state is multiplied by exp(m_new − m_i): the maximum grows, so old weights shrink, by "
            "exp(m_i − m_new)",
            _by_steps(keep_acc=-1, keep_sum=-1, safe=False),
        ),
        Mistake(
            "maximum of the block",
            "m_i is the maximum of this block alone: it must be that of everything seen, max(m_i, the block's)",
            _by_steps(block_maximum=True),
        ),
        Mistake(
            "divided too early",
            "acc comes back divided by l_i: the state keeps the plain sum, and only the end divides",
            _by_steps(divide=True),
        ),
        Mistake(
            "NaN of a hidden block",
            "a head that has seen nothing gives NaN: its maximum is −inf, and −inf − (−inf) is NaN; subtract 0 there",
            _by_steps(safe=False),
        ),
    ),
)

# --- latent_decode ----------------------------------------------------------------------------------------------------


def _tokens(
    g: torch.Generator | None,
    B: int,
    T: int,
    R: int,
    Dr: int,
    lens: Sequence[int] | None,
    dtype: torch.dtype,
    nan_beyond: bool,
) -> Arguments:
    """Return a cache of B sequences. What lies behind their lengths is four times as large, or NaN."""
    c_kv, k_rope = randn(g, B, T, R, dtype=dtype), randn(g, B, T, Dr, dtype=dtype)
    seq_lens = torch.tensor(lens if lens is not None else [T] * B, dtype=torch.int32)
    if g is not None and lens is not None:
        beyond = (torch.arange(T) >= seq_lens[:, None])[..., None]
        c_kv, k_rope = (torch.where(beyond, (math.nan if nan_beyond else 4) * x, x) for x in (c_kv, k_rope))
    return {"c_kv": c_kv, "k_rope": k_rope, "seq_lens": seq_lens}


def _decode_step(
    g: torch.Generator | None,
    B: int,
    H: int,
    T: int,
    R: int = 32,
    Dr: int = 16,
    lens: Sequence[int] | None = None,
    sharp: float = 1.0,
    level: float = 0.0,
    first: float = 0.0,
    scale: float = 0.25,
    dtype: torch.dtype = HALF,
    nan_beyond: bool = False,
) -> Arguments:
    """Return the operands of a step; `sharp` is the size of the queries, `level` is added to all scores.

    `first` is added to the score of the first token, and no latent is negative: each block adds little to a large sum.
    """
    q_latent, q_rope = (randn(g, B, H, width, scale=sharp, dtype=dtype) for width in (R, Dr))
    tokens = _tokens(g, B, T, R, Dr, lens, dtype, nan_beyond)
    if level:
        set_level(q_rope, tokens["k_rope"], level, scale)
    if first:
        q_rope[..., 0], tokens["k_rope"][:, 0, 0] = 1.0, first / scale
        tokens["c_kv"].abs_()
    return {"q_latent": q_latent, "q_rope": q_rope, **tokens, "scale": scale}


def _nan_loaded(oracle: Callable[..., Any]) -> Callable[..., Any]:
    """Return the oracle with an out of NaN in sequences that are shorter than T."""

    def wrong(**given: Any) -> Any:
        out, lse = oracle(**given)
        short = (given["seq_lens"] < given["c_kv"].shape[1]).view(-1, *[1] * (lse.ndim - 1))
        return out.masked_fill(((lse > -INF) & short)[..., None], math.nan), lse

    return wrong


WIDE = dict(R=512, Dr=64, scale=192**-0.5, dtype=BF16)
TAIL = (
    "places beyond the length count: a masked load gives 0, and exp(0) is 1; "
    "set their scores to −inf before the maximum"
)
NAN_BEYOND = (
    "the result is NaN: behind a sequence's length the cache may hold NaN, and 0 · NaN is NaN; mask the loads of "
    "tokens by the length, not by T"
)

DECODE = Exercise(
    name="latent_decode",
    title="decode kernel over the latent cache",
    parts=(
        Part(
            "one block of tokens",
            1,
            visible=[
                dict(B=2, H=5, T=16),
                dict(B=2, H=128, T=16, **WIDE),
                dict(B=1, H=1, T=16),
                dict(B=2, H=300, T=16),
                dict(B=281, H=5, T=16),
            ],
            hidden=lambda r: [
                dict(B=1, H=r.choice([18, 20, 40]), T=16, R=r.choice([16, 64]), Dr=r.choice([16, 32]), scale=0.15),
                dict(B=2, H=r.randint(114, 127), T=16, R=16, Dr=16),
                dict(B=1, H=r.randint(130, 140), T=16, R=16, Dr=16),
            ],
        ),
        Part(
            "many blocks, also with scores of a hundred and more",
            2,
            visible=[
                dict(B=2, H=120, T=256, level=-150.0),
                dict(B=1, H=20, T=384, scale=0.4, dtype=BF16),
                dict(B=1, H=8, T=192, sharp=60.0),
                dict(B=1, H=2, T=4500, sharp=0.0, first=12.0),
            ],
            hidden=lambda r: [dict(B=1, H=r.randint(1, 20), T=128 * r.randint(1, 3), R=64, scale=0.1, dtype=BF16)],
        ),
        Part(
            "lengths of their own",
            1,
            visible=[
                dict(B=4, H=8, T=200, lens=(21, 200, 0, 1), scale=0.4),
                dict(B=3, H=8, T=40, lens=(37, 5, 0), nan_beyond=True),
                dict(B=1, H=4, T=40, lens=(37,), **FAR_BELOW_0),
            ],
            hidden=lambda r: [
                dict(B=3, H=r.randint(1, 17), T=150, lens=(r.randint(129, 150), r.randint(0, 20), r.randint(60, 70))),
                dict(B=1, H=r.randint(1, 17), T=63, lens=(2 * r.randint(16, 30) + 1,), **FAR_BELOW_0),
            ],
        ),
    ),
    inputs=_decode_step,
    oracle=decoded,
    returns=("out", "lse"),
    like=("q_latent", torch.float32),
    mistakes=(
        *OF_A_STEP,
        Mistake(
            "lengths ignored",
            "all T places count: sequence b has seq_lens[b] tokens, what lies behind them is old",
            decoded_with(lambda a: {"seq_lens": torch.full_like(a["seq_lens"], a["c_kv"].shape[1])}),
        ),
        LENGTH_OF_0,
        *(
            Mistake(
                "cache of sequence 0",
                f"every sequence meets the {what} of sequence 0: those of sequence b begin at row b·T",
                decoded_with(lambda a, names=names: {name: a[name][:1].expand_as(a[name]) for name in names}),
            )
            for what, names in (
                ("latents and rotated keys", ("c_kv", "k_rope")),
                ("latents", ("c_kv",)),
                ("rotated keys", ("k_rope",)),
            )
        ),
        *in_blocks(
            "tail left out",
            "tokens behind the last whole block are left out: the loop needs a turn for the tail, masked",
            lambda block: decoded_with(lambda a: {"seq_lens": a["seq_lens"] // block * block}),
        ),
        *empty_mistakes("a sequence of length 0", decoded),
        Mistake("NaN behind the length", NAN_BEYOND, _nan_loaded(decoded)),
        *in_blocks(
            "maximum not kept",
            "the maximum stays −inf, so lse is −inf and every block wipes out the ones before: end each turn with "
            "m_i = m_new",
            maximum_not_kept,
        ),
        *in_blocks("tail unmasked", TAIL, lambda block: blockwise(block, tail=False)),
        finite_mask(decoded),
    ),
    kernel=True,
    launches=1,
    speed=Speed(
        points=3,
        case=dict(B=128, H=16, T=4096, **WIDE),
        small=dict(B=1, T=512),
        axes=dict(q_latent="bh", q_rope="bh", c_kv="b", k_rope="b", seq_lens="b", out="bh", lse="bh"),
        floor=lambda B, H, T, R, Dr, scale, dtype: decode_floor(B, H, T, dtype, R, Dr),
        bars=((0.3, 0.5), (0.5, 1.0)),
        baseline=eager_decode,
        ratio=2.0,
    ),
)

# --- split_decode -----------------------------------------------------------------------------------------------------


def _split_step(g: torch.Generator | None, num_splits: int, **step: Any) -> Arguments:
    return {**_decode_step(g, **step), "num_splits": num_splits}


Bounds = Callable[[int, int, int, int], tuple[int, int]]  # of a split: length, T, num_splits, split -> first, end


def _bounds(length: int, T: int, num_splits: int, split: int) -> tuple[int, int]:
    share = -(-length // num_splits)
    return min(split * share, length), min((split + 1) * share, length)


def _split_by(
    bounds: Bounds,
    zeros: Callable[[int, int, int], int] = lambda first, end, length: 0,
    attend: Callable[..., Any] = decoded,
) -> Callable[..., Any]:
    """Return an oracle that attends to the tokens between the bounds of each split, and to `zeros` places of 0."""

    def oracle(q_latent, q_rope, c_kv, k_rope, seq_lens, scale, num_splits):
        (B, H, R), T = q_latent.shape, c_kv.shape[1]
        out, lse = q_latent.new_zeros(num_splits, B, H, R), q_latent.new_full((num_splits, B, H), -INF)
        for b, length in enumerate(seq_lens.tolist()):
            for split in range(num_splits):
                first, end = bounds(length, T, num_splits, split)
                c, k = c_kv[b : b + 1, first:end], k_rope[b : b + 1, first:end]
                if end > first:
                    padding = (0, 0, 0, zeros(first, end, length))
                    c, k = (torch.nn.functional.pad(x, padding) for x in (c, k))
                    count = torch.tensor([c.shape[1]])
                    q, p = q_latent[b : b + 1], q_rope[b : b + 1]
                    part = attend(q_latent=q, q_rope=p, c_kv=c, k_rope=k, seq_lens=count, scale=scale)
                    out[split, b], lse[split, b] = part[0][0], part[1][0]
        return out, lse

    return oracle


_splits = _split_by(_bounds)


def _rounded_down(length: int, T: int, num_splits: int, split: int) -> tuple[int, int]:
    share = length // num_splits
    return split * share, (split + 1) * share


def _rest_to_the_last(length: int, T: int, num_splits: int, split: int) -> tuple[int, int]:
    share = length // num_splits
    return split * share, length if split == num_splits - 1 else (split + 1) * share


def _rest_to_the_first(length: int, T: int, num_splits: int, split: int) -> tuple[int, int]:
    share, rest = divmod(length, num_splits)
    first = split * share + min(split, rest)
    return first, first + share + (split < rest)


def _proportional(length: int, T: int, num_splits: int, split: int) -> tuple[int, int]:
    return split * length // num_splits, (split + 1) * length // num_splits


def _room_rounded_down(length: int, T: int, num_splits: int, split: int) -> tuple[int, int]:
    share = T // num_splits
    return min(split * share, length), min((split + 1) * share, length)


def _last_lost(length: int, T: int, num_splits: int, split: int) -> tuple[int, int]:
    first, end = _bounds(length, T, num_splits, split)
    return first, min(end, length - 1)


def _end_included(length: int, T: int, num_splits: int, split: int) -> tuple[int, int]:
    first, end = _bounds(length, T, num_splits, split)
    return first, min(end + 1, length) if end > first else end


def _share_of_room(length: int, T: int, num_splits: int, split: int) -> tuple[int, int]:
    share = -(-T // num_splits)
    return min(split * share, length), min((split + 1) * share, length)


def _up_to_block(block: int) -> Bounds:
    def bounds(length: int, T: int, num_splits: int, split: int) -> tuple[int, int]:
        first, end = _bounds(length, T, num_splits, split)
        return first, min(first + -(-(end - first) // block) * block, length)

    return bounds


def _whole_blocks(block: int) -> Bounds:
    def bounds(length: int, T: int, num_splits: int, split: int) -> tuple[int, int]:
        share = -(-length // (num_splits * block)) * block
        return min(split * share, length), min((split + 1) * share, length)

    return bounds


def _in_turn(block: int) -> Callable[..., Any]:
    """Return an oracle in which the splits take blocks of tokens in turn."""

    def oracle(c_kv: Tensor, k_rope: Tensor, seq_lens: Tensor, num_splits: int, **given: Any) -> tuple[Tensor, ...]:
        token, parts = torch.arange(c_kv.shape[1]), []
        for split in range(num_splits):
            taken = token // block % num_splits == split
            count = (taken & (token < seq_lens[:, None])).sum(1)
            order = (~taken).long().argsort(stable=True)  # its own come first
            parts.append(decoded(c_kv=c_kv[:, order], k_rope=k_rope[:, order], seq_lens=count, **given))
        return tuple(torch.stack(each) for each in zip(*parts, strict=True))

    return oracle


def _by_sequence(out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
    """Change the layout: the parts of a sequence one after the other."""
    return out.transpose(0, 1).reshape(out.shape), lse.transpose(0, 1).reshape(lse.shape)


def _eager_splits(
    q_latent: Tensor, q_rope: Tensor, c_kv: Tensor, k_rope: Tensor, seq_lens: Tensor, scale: float, num_splits: int
) -> tuple[Tensor, Tensor]:
    """`eager_decode` on parts of equal size, as if each were a sequence."""
    share = c_kv.shape[1] // num_splits
    c, k = c_kv.unflatten(1, (num_splits, share)), k_rope.unflatten(1, (num_splits, share))
    scores = (q_latent[:, None] @ c.mT + q_rope[:, None] @ k.mT).float() * scale
    start = torch.arange(c_kv.shape[1], device=scores.device).view(num_splits, 1, share)
    scores = scores.masked_fill(start >= seq_lens.to(scores.device)[:, None, None, None], -INF)
    lse = scores.logsumexp(-1)
    out = (scores - lse[..., None]).exp().to(c.dtype) @ c
    return out.transpose(0, 1).float(), lse.transpose(0, 1)


ZEROS_BEHIND = (
    "places behind the end of a split count: a masked load gives 0, and exp(0) is 1; set the scores of offs_n >= end "
    "to −inf"
)
NAN_SPLITS = dict(B=2, H=3, T=50, lens=(41, 23), num_splits=4, nan_beyond=True)


def _nan_splits(block: int) -> Callable[..., Any]:
    """Return an oracle with NaN in the splits whose last block reaches behind the length."""

    def oracle(**given: Any) -> Any:
        out, lse = _splits(**given)
        T = given["c_kv"].shape[1]
        for b, length in enumerate(given["seq_lens"].tolist()):
            for split in range(len(out)):
                first, end = _bounds(length, T, len(out), split)
                if length < T and end > first and first + -(-(end - first) // block) * block > length:
                    out[split, b] = math.nan
        return out, lse

    return oracle


OF_A_PART = (
    *(each for each in OF_A_STEP if each is not NOT_NORMALISED),
    replace(
        NOT_NORMALISED,
        name="partials not normalised",
        message="partial_out is not divided by its sum of weights: the combine takes results that are normalised",
    ),
)

SPLIT = Exercise(
    name="split_decode",
    title="split-KV: partial results of parts of the context",
    parts=(
        Part(
            "equal shares",
            1,
            visible=[
                dict(B=2, H=4, T=64, num_splits=4),
                dict(B=1, H=1, T=16, num_splits=1),  # integers of 1 are constants in a kernel
                dict(B=2, H=120, T=160, R=64, Dr=32, num_splits=2, scale=0.1),
                dict(B=2, H=128, T=32, num_splits=2, **WIDE),
                dict(B=2, H=300, T=32, R=64, num_splits=2),
            ],
            hidden=lambda r: (
                [dict(B=1, H=r.randint(1, 20), T=16 * n, num_splits=n) for n in (r.randint(1, 3),)]
                + [dict(B=1, H=r.randint(130, 140), T=32, Dr=32, num_splits=2, scale=0.15)]
                + [dict(B=2, H=r.randint(114, 127), T=32, Dr=32, num_splits=2)]
            ),
        ),
        Part(
            "shares that do not come out even",
            2,
            visible=[
                dict(B=1, H=3, T=50, num_splits=4),
                dict(B=2, H=3, T=600, lens=(23, 571), num_splits=4, scale=0.4),
                dict(B=1, H=2, T=5000, lens=(4571,), num_splits=2, level=-150.0, dtype=BF16),
                NAN_SPLITS,
            ],
            hidden=lambda r: [
                dict(B=2, H=r.randint(1, 17), T=170, R=64, lens=(r.choice([131, 149]), 90), num_splits=2, scale=0.1),
                dict(B=1, H=r.randint(1, 4), T=600, lens=(r.randint(560, 600),), num_splits=2),
            ],
        ),
        Part(
            "splits with no tokens",
            1,
            visible=[
                dict(B=3, H=2, T=20, lens=(3, 20, 0), num_splits=6, scale=0.4),
                dict(B=2, H=2, T=3, lens=(3, 1), num_splits=8),
                dict(B=2, H=2, T=3, lens=(3, 1), num_splits=281),
                dict(B=281, H=2, T=20, lens=(3, *[0] * 279, 20), num_splits=2, scale=0.4),
                dict(B=2, H=3, T=50, lens=(41, 3), num_splits=4, **FAR_BELOW_0),
            ],
            hidden=lambda r: [
                dict(B=2, H=2, T=9, lens=(r.randint(0, 2), 5), num_splits=4),
                dict(B=2, H=r.randint(1, 4), T=3, lens=(3, r.randint(1, 2)), num_splits=8),
                dict(B=2, H=2, T=50, lens=(r.choice([29, 39]), r.randint(1, 2)), num_splits=3, **FAR_BELOW_0),
            ],
        ),
    ),
    inputs=_split_step,
    oracle=_splits,
    returns=("partial_out", "partial_lse"),
    like=(torch.float32, torch.float32),
    mistakes=(
        Mistake(
            "share rounded down",
            "the share is length // num_splits: the tokens that do not divide are lost; round up",
            _split_by(_rounded_down),
        ),
        Mistake(
            "share of T rounded down",
            "the share is T // num_splits: the last tokens of a long sequence are read by no program, and short ones "
            "use few splits; take ceil(length / num_splits)",
            _split_by(_room_rounded_down),
        ),
        *(
            Mistake(
                "shared out in another way",
                "the tokens are shared out in another way: split i has those from i · share up to (i + 1) · share, "
                "with share = ceil(length / num_splits), so that the last splits have fewer, or none",
                oracle,
            )
            for oracle in (
                *map(_split_by, (_rest_to_the_last, _rest_to_the_first, _proportional, *map(_whole_blocks, BLOCKS))),
                *map(_in_turn, (1, *BLOCKS)),
            )
        ),
        Mistake(
            "parts by sequence",
            "the parts of a sequence lie one after the other: partial_out is [num_splits, B, H, R], so that those of "
            "split i and sequence b begin at row (i · B + b) · H",
            after(_splits, _by_sequence),
        ),
        Mistake(
            "last token lost",
            "the last token of the sequence is in no split: offs_n < length",
            _split_by(_last_lost),
        ),
        Mistake(
            "boundary counted twice",
            "the first token of the next split counts here as well: a split ends before (split + 1) · share",
            _split_by(_end_included),
        ),
        Mistake(
            "share of T",
            "the share is ceil(T / num_splits): take the sequence's own length, or short ones use few splits",
            _split_by(_share_of_room),
        ),
        Mistake(
            "whole context",
            "every split covers the whole context: it begins at split · share and ends before (split + 1) · share",
            _split_by(lambda length, T, num_splits, split: (0, length)),
        ),
        *(replace(each, oracle=_split_by(_bounds, attend=each.oracle)) for each in OF_A_PART),
        Mistake(
            "length of sequence 0",
            LENGTH_OF_0.message,
            lambda seq_lens, **a: _splits(seq_lens=seq_lens[:1].expand_as(seq_lens), **a),
        ),
        Mistake(
            "lengths ignored",
            "all T places are split: sequence b has seq_lens[b] tokens, what lies behind them is old",
            lambda seq_lens, c_kv, **a: _splits(seq_lens=torch.full_like(seq_lens, c_kv.shape[1]), c_kv=c_kv, **a),
        ),
        *empty_mistakes("a split with no tokens", _splits, "partial_out 0, partial_lse −inf"),
        *in_blocks("NaN behind the length", NAN_BEYOND, _nan_splits),
        *in_blocks(
            "zeros behind a split",
            ZEROS_BEHIND,
            lambda block: _split_by(_bounds, lambda first, end, length: min(-(end - first) % block, length - end)),
        ),
        *in_blocks(
            "zeros behind a split",
            ZEROS_BEHIND,
            lambda block: _split_by(_bounds, lambda first, end, length: -(end - first) % block),
        ),
        *in_blocks(
            "into the next split",
            "the last block of a split reaches into the next one: mask with the end of the split, not with the length",
            lambda block: _split_by(_up_to_block(block)),
        ),
        finite_mask(_splits),
    ),
    kernel=True,
    launches=1,
    speed=Speed(
        points=3,
        case=dict(B=1, H=16, T=8192, num_splits=64, **WIDE),
        small=dict(T=1024, num_splits=8),
        axes=dict(q_latent="bh", q_rope="bh", c_kv="b", k_rope="b", seq_lens="b", partial_out="_bh", partial_lse="_bh"),
        floor=lambda B, H, T, num_splits, R, Dr, scale, dtype: decode_floor(
            B, H, T, dtype, R, Dr, out_bytes=num_splits * B * H * (R + 1) * 4
        ),
        bars=((0.12, 0.5), (0.16, 1.0)),
        baseline=_eager_splits,
        ratio=3.0,
    ),
)

# --- combine_splits ---------------------------------------------------------------------------------------------------


def _partials(
    g: torch.Generator | None,
    P: int,
    B: int,
    H: int,
    R: int = 32,
    at: float = 0.0,
    empty: Sequence[tuple[int, int]] = (),
    held: float = math.nan,
    dtype: torch.dtype = FLOAT,
) -> Arguments:
    """Return partial results with log-sum-exps around `at`. Each (split, sequence) in `empty` has an out of `held`."""
    partial_out, partial_lse = randn(g, P, B, H, R), randn(g, P, B, H, scale=2.0) + at
    for split, b in empty:
        partial_out[split, b], partial_lse[split, b] = held, -INF
    return {"partial_out": partial_out, "partial_lse": partial_lse, "out": randn(g, B, H, R, dtype=dtype)}


def _combined(partial_out: Tensor, partial_lse: Tensor, out: Tensor) -> tuple[Tensor, Tensor]:
    """The parts weighed by the softmax of their log-sum-exps. What an empty part holds is not used."""
    lse = partial_lse.logsumexp(0)
    share = (partial_lse - lse.masked_fill(lse == -INF, 0)).exp()[..., None]
    return (share * partial_out.masked_fill(share == 0, 0)).sum(0), lse


def _weighed(
    weights: Callable[[Tensor, Tensor], Tensor], lse: Callable[[Tensor, Tensor], Tensor] = lambda p, lse: lse
) -> Callable[..., Any]:
    """Return an oracle with other weights [P, B, H] or another lse, from the partial ones and the right one."""

    def oracle(partial_out: Tensor, partial_lse: Tensor, out: Tensor) -> tuple[Tensor, Tensor]:
        right = _combined(partial_out, partial_lse, out)[1]
        share = weights(partial_lse, right)[..., None]
        seen = partial_lse[..., None] == -INF
        return (share * partial_out.masked_fill(seen, 0)).sum(0), lse(partial_lse, right)

    return oracle


def _right_share(p: Tensor, lse: Tensor) -> Tensor:
    return (p - lse.masked_fill(lse == -INF, 0)).exp()


def _float_exp(p: Tensor) -> Tensor:
    return p.float().exp()


def _nan_of_empty(partial_out: Tensor, partial_lse: Tensor, out: Tensor) -> tuple[Tensor, Tensor]:
    lse = partial_lse.logsumexp(0)
    return (_right_share(partial_lse, lse)[..., None] * partial_out).sum(0), lse


def _all_empty(partial_out: Tensor, partial_lse: Tensor, out: Tensor) -> tuple[Tensor, Tensor]:
    return nan_where_empty(*_combined(partial_out, partial_lse, out))


def _all_empty_lse(partial_out: Tensor, partial_lse: Tensor, out: Tensor) -> tuple[Tensor, Tensor]:
    out, lse = _all_empty(partial_out, partial_lse, out)
    return out, lse.masked_fill(lse == -INF, math.nan)


def _eager_combine(partial_out: Tensor, partial_lse: Tensor, out: Tensor) -> tuple[Tensor, Tensor]:
    lse = partial_lse.logsumexp(0)
    weights = (partial_lse - lse).exp()
    return (weights[..., None] * partial_out).sum(0).to(out.dtype), lse


ALL_EMPTY = "where all splits are empty the result is NaN: the maximum is −inf; expected out 0 and lse −inf"

COMBINE = Exercise(
    name="combine_splits",
    title="combine: partial results into one",
    parts=(
        Part(
            "splits with tokens",
            1,
            visible=[
                dict(P=4, B=2, H=3, dtype=HALF),
                dict(P=130, B=2, H=2, R=512),
                dict(P=1, B=1, H=1),
                dict(P=3, B=7, H=41, dtype=BF16),
            ],
            hidden=lambda r: [
                dict(P=1, B=1, H=r.randint(1, 5), R=64),
                dict(P=r.randint(33, 64), B=3, H=1, R=512),
                dict(P=r.randint(33, 70), B=2, H=r.randint(1, 3), R=16, dtype=BF16),
                dict(P=r.randint(200, 256), B=2, H=1, R=16),
            ],
        ),
        Part(
            "large log-sum-exps",
            1,
            visible=[dict(P=3, B=2, H=2, at=150.0), dict(P=3, B=2, H=64, at=-150.0)],
            hidden=lambda r: [dict(P=5, B=1, H=3, at=r.choice([-200.0, 300.0]))],
        ),
        Part(
            "empty splits",
            1,
            visible=[
                dict(P=3, B=2, H=2, empty=((1, 0), (2, 0))),
                dict(P=2, B=2, H=3, empty=((0, 1), (1, 1))),
                dict(P=3, B=2, H=2, empty=((1, 0),), held=INF),
                dict(P=3, B=2, H=2, empty=((0, 1), (1, 1), (2, 1))),
            ],
            hidden=lambda r: [
                dict(P=4, B=2, H=2, empty=[(split, r.randint(0, 1)) for split in range(4)]),
                *(dict(P=P, B=2, H=2, empty=[(split, 0) for split in range(P)]) for P in (4, r.choice([3, 5, 7]))),
            ],
        ),
    ),
    inputs=_partials,
    oracle=_combined,
    returns=("out", "lse"),
    like=("out", torch.float32),
    mistakes=(
        Mistake(
            "plain mean",
            "out is the plain mean of the partial results: weigh each by exp(its lse − the lse of all)",
            _weighed(lambda p, lse: torch.full_like(p, 1 / len(p))),
        ),
        Mistake(
            "weights not normalised",
            "the weights exp(lse − maximum) do not add up to 1: divide by their sum",
            _weighed(lambda p, lse: (p - p.amax(0)).exp()),
        ),
        Mistake(
            "weights base 2",
            "the weights are powers of 2, as for base-2 log-sum-exps: these are natural, take exp",
            _weighed(
                lambda p, lse: (p * math.log(2)).softmax(0), lambda p, lse: (p * math.log(2)).logsumexp(0) / math.log(2)
            ),
        ),
        Mistake(
            "weights base 2",
            "the weights are powers of 2, as for base-2 log-sum-exps: these are natural, take exp",
            _weighed(
                lambda p, lse: (p * math.log(2)).softmax(0),
                lambda p, lse: p.amax(0) + (p - p.amax(0)).exp2().sum(0).log(),
            ),
        ),
        Mistake(
            "lse is the maximum",
            "lse is the largest of the partial ones: add the logarithm of the sum of the weights",
            _weighed(_right_share, lambda p, lse: p.amax(0)),
        ),
        Mistake(
            "lse without the maximum",
            "lse is the logarithm of the sum of the weights alone: add the maximum that was subtracted",
            _weighed(_right_share, lambda p, lse: (p - p.amax(0)).exp().sum(0).log()),
        ),
        Mistake("nothing but empty splits", ALL_EMPTY, _all_empty),
        Mistake("nothing but empty splits", ALL_EMPTY, _all_empty_lse),
        Mistake(
            "maximum not subtracted",
            "exp overflows float32 beyond 88: subtract the largest lse first",
            _weighed(lambda p, lse: _float_exp(p) / _float_exp(p).sum(0), lambda p, lse: _float_exp(p).sum(0).log()),
        ),
        Mistake(
            "NaN of an empty split",
            "the out of an empty split is used: its weight is 0, but it may hold NaN, and 0 · NaN is NaN; leave it out",
            _nan_of_empty,
        ),
    ),
    may_change=("out",),
    kernel=True,
    speed=Speed(
        points=2,
        case=dict(P=8, B=32, H=128, R=512, dtype=BF16),
        small=dict(B=2, H=64),
        axes=dict(partial_out="_bh", partial_lse="_bh", out="bh", lse="bh"),
        floor=lambda P, B, H, R, dtype: Cost(
            bytes=B * H * (P * (R + 1) * 4 + R * dtype.itemsize + 4), flops=2 * P * B * H * R
        ),
        bars=((0.3, 0.5), (0.45, 1.0)),
        baseline=_eager_combine,
        ratio=2.0,
    ),
)

# --- predict_fold -----------------------------------------------------------------------------------------------------


def _factor(q_len: int, H: int) -> int:
    """The largest divisor of q_len with H times it at most 128."""
    return max((f for f in range(1, q_len + 1) if q_len % f == 0 and H * f <= 128), default=1)


def _fold(
    factor: Callable[[int, int], int] = _factor,
    reads: Callable[[int, int, int], float] | None = None,
    rows: Callable[[int, int], int] = operator.mul,
) -> Any:
    def oracle(q_len: int, H: int) -> dict[str, float]:
        f = factor(q_len, H)
        return {"factor": f, "rows": rows(H, f), "cache_reads": reads(q_len, H, f) if reads else q_len / f}

    return oracle


PREDICT_FOLD = Exercise(
    name="predict_fold",
    title="prediction: query tokens per block",
    parts=(
        Part("64 heads, 4 tokens", 1, visible=[dict(q_len=4, H=64)]),
        Part(
            "any step",
            1,
            visible=[
                dict(q_len=5, H=32),
                dict(q_len=6, H=30),
                dict(q_len=10, H=32),
                dict(q_len=9, H=8),
                dict(q_len=9, H=20),
                dict(q_len=120, H=1),
            ],
            hidden=lambda r: (
                [dict(q_len=r.randint(1, 12), H=r.choice([1, 7, 8, 16, 20, 32, 64, 128])) for _ in range(6)]
                + [dict(q_len=3, H=43), dict(q_len=12, H=32), dict(q_len=r.choice([15, 20]), H=16)]
                + [dict(q_len=r.choice([24, 36, 40]), H=r.randint(1, 3))]
            ),
        ),
    ),
    inputs=as_given,
    oracle=_fold(),
    returns=("prediction",),
    mistakes=(
        Mistake(
            "reads of full blocks",
            "cache_reads counts blocks of 128 rows: each group of factor tokens has one of its own, full or not",
            _fold(reads=lambda q_len, H, f: math.ceil(q_len * H / 128)),
        ),
        Mistake(
            "factor that does not divide",
            "factor is the most tokens that fit: it must divide q_len as well, so that all groups are alike",
            _fold(lambda q_len, H: min(q_len, 128 // H), lambda q_len, H, f: math.ceil(q_len / f)),
        ),
        Mistake(
            "factor that does not divide",
            "factor is the most tokens that fit: it must divide q_len as well, so that all groups are alike",
            _fold(lambda q_len, H: min(q_len, 128 // H)),
        ),
        Mistake(
            "powers of 2",
            "factor is a power of 2: any divisor of q_len will do, if factor · H is 128 at most",
            _fold(
                lambda q_len, H: max(
                    (f for f in (1, 2, 4, 8, 16, 32, 64, 128) if q_len % f == 0 and H * f <= 128), default=1
                )
            ),
        ),
        Mistake(
            "greatest common divisor",
            "factor is the greatest common divisor of q_len and 128 // H: it must divide q_len alone",
            _fold(lambda q_len, H: math.gcd(q_len, 128 // H)),
        ),
        Mistake(
            "rows of the block",
            "rows are those of a block of 128: of these factor · H are in use",
            _fold(rows=lambda H, f: 128),
        ),
        Mistake(
            "limit excluded",
            "factor · H may be 128 itself: at most 128, not less than 128",
            _fold(lambda q_len, H: max((f for f in range(1, q_len + 1) if q_len % f == 0 and H * f < 128), default=1)),
        ),
        Mistake(
            "limit ignored",
            "all query tokens are folded: factor · H may be 128 at most",
            _fold(lambda q_len, H: q_len),
        ),
        Mistake(
            "reads of every token",
            "cache_reads counts one read for each query token: the tokens of a group share one",
            _fold(reads=lambda q_len, H, f: q_len),
        ),
    ),
)

# --- folded_decode ----------------------------------------------------------------------------------------------------


def _folded_step(
    g: torch.Generator | None,
    B: int,
    S: int,
    H: int,
    T: int,
    R: int = 32,
    Dr: int = 16,
    lens: Sequence[int] | None = None,
    sharp: float = 1.0,
    level: float = 0.0,
    scale: float = 0.25,
    dtype: torch.dtype = HALF,
    nan_beyond: bool = False,
    cancel: float = 0.0,
) -> Arguments:
    """Return the operands of a step; `sharp` is the size of the queries, `level` is added to all scores.

    With `cancel` all scores are 0, and each number of a latent is so much higher in the first half, and lower in the
    second one: parts of the context give large results, whose mean is small.
    """
    q_latent, q_rope = (randn(g, B, S, H, width, scale=sharp, dtype=dtype) for width in (R, Dr))
    tokens = _tokens(g, B, T, R, Dr, lens, dtype, nan_beyond)
    found = {"q_latent": q_latent, "q_rope": q_rope, **tokens, "scale": scale}
    if level:
        set_level(found["q_rope"], found["k_rope"], level, scale)
    if cancel:
        q_latent.zero_(), q_rope.zero_()
        found["c_kv"][:, : T // 2] += cancel
        found["c_kv"][:, T // 2 :] -= cancel
    return found


def _causal(q_latent: Tensor, q_rope: Tensor, c_kv: Tensor, k_rope: Tensor, seq_lens: Tensor, scale: float) -> Any:
    c_kv, k_rope = (up_to_length(x, seq_lens) for x in (c_kv, k_rope))
    return latent_attention(q_latent, q_rope, c_kv, k_rope, scale=scale, seq_lens=seq_lens)


Last = Callable[[Tensor, Tensor, Tensor, Arguments], Tensor]  # s, h, length, sizes -> the last position that is seen


def _own_position(s: Tensor, h: Tensor, length: Tensor, sizes: Arguments) -> Tensor:
    return length - sizes["S"] + s


def _seen_up_to(
    last: Last, times: Callable[[int, int], Sequence[int]] = lambda length, T: [1] * length
) -> Callable[..., Any]:
    """Return an oracle in which head h of query s sees the positions up to `last`, each as often as `times` says.

    `times(length, T)` is of the positions 0, 1, …; further ones are not seen.
    """

    def oracle(q_latent, q_rope, c_kv, k_rope, seq_lens, scale):
        (B, S, H, _), T = q_latent.shape, c_kv.shape[1]
        c_kv, k_rope = (up_to_length(x, seq_lens) for x in (c_kv, k_rope))
        s, h = torch.arange(S).view(S, 1, 1), torch.arange(H).view(1, H, 1)
        length = seq_lens.view(B, 1, 1, 1)
        counts = q_latent.new_zeros(B, 1, 1, T)
        for b, each in enumerate(seq_lens.tolist()):
            found = torch.tensor(times(each, T)[:each]).to(counts)
            counts[b, 0, 0, : len(found)] = found
        seen = torch.arange(T) <= last(s, h, length, {"S": S, "H": H, "T": T})
        scores = torch.einsum("bshr,btr->bsht", q_latent, c_kv) + torch.einsum("bshr,btr->bsht", q_rope, k_rope)
        scores = (scores * scale + counts.log()).masked_fill(~seen, -INF)
        lse = scores.logsumexp(-1)
        weights = (scores - lse.masked_fill(lse == -INF, 0)[..., None]).exp()
        return torch.einsum("bsht,btr->bshr", weights, c_kv), lse

    return oracle


def _in_splits(bounds: Bounds, num_splits: Callable[[int], int]) -> Callable[..., Any]:
    """Return an oracle that combines the splits of these bounds, `num_splits(T)` of them."""

    def times(length: int, T: int) -> list[int]:
        counts, splits = [0] * length, num_splits(T)
        for split in range(splits):
            for t in range(*bounds(length, T, splits, split)):
                counts[t] += 1
        return counts

    return _seen_up_to(_own_position, times)


SPLITS = (  # how many splits a student may choose; 1 stands for calls that this leaves right
    *(lambda T, n=n: n for n in (1, 2, 3, 4, 8)),
    *(lambda T, block=block: -(-T // block) for block in (16, 32, 64)),
)


def _each_token(oracle: Callable[..., Any]) -> Callable[..., Any]:
    """Return the oracle of a decode step for each of S query tokens, with the positions that it sees."""

    def folded(q_latent: Tensor, q_rope: Tensor, seq_lens: Tensor, **rest: Any) -> tuple[Tensor, ...]:
        S = q_latent.shape[1]
        found = [
            oracle(q_latent=q_latent[:, s], q_rope=q_rope[:, s], seq_lens=(seq_lens - S + s + 1).clamp(min=0), **rest)
            for s in range(S)
        ]
        return tuple(torch.stack(each, 1) for each in zip(*found, strict=True))

    return folded


def _in_16_bits(num_splits: Callable[[int], int], dtype: torch.dtype) -> Callable[..., Any]:
    """Return an oracle whose partial results have this dtype. It shows where they cancel."""

    def oracle(**given: Any) -> Any:
        if given["q_latent"].any():
            return _causal(**given)
        return _each_token(rounded)(num_splits=num_splits(given["c_kv"].shape[1]), **given)

    def rounded(**given: Any) -> tuple[Tensor, Tensor]:
        out, lse = _splits(**given)
        return _combined(out.to(dtype).double(), lse, out)

    return oracle


def _rows_turned(**given: Any) -> Any:
    """Rows taken as h·S + s on the way out."""
    out, lse = _causal(**given)
    return out.transpose(1, 2).reshape(out.shape), lse.transpose(1, 2).reshape(lse.shape)


def _nan_rows(below: Callable[[Tensor, int], Tensor]) -> Callable[..., Any]:
    """NaN in the queries `s < below(length, S)` of each sequence."""

    def oracle(**given: Any) -> Any:
        out, lse = _causal(**given)
        S = out.shape[1]
        bad = (torch.arange(S) < below(given["seq_lens"], S)[:, None])[..., None].expand(lse.shape)
        return out.masked_fill(bad[..., None], math.nan), lse.masked_fill(bad, math.nan)

    return oracle


def _eager_folded(
    q_latent: Tensor, q_rope: Tensor, c_kv: Tensor, k_rope: Tensor, seq_lens: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """`eager_decode` on rows of all query tokens, with the causal mask."""
    (B, S, H, R), T = q_latent.shape, c_kv.shape[1]
    q, p = q_latent.view(B, S * H, R), q_rope.view(B, S * H, -1)
    scores = (q @ c_kv.mT + p @ k_rope.mT).float() * scale
    s = torch.arange(S, device=scores.device).repeat_interleave(H)[:, None]
    last = seq_lens.to(scores.device)[:, None, None] - S + s
    scores = scores.masked_fill(torch.arange(T, device=scores.device) > last, -INF)
    lse = scores.logsumexp(-1)
    out = (scores - lse[..., None]).exp().to(c_kv.dtype) @ c_kv
    return out.view(B, S, H, R), lse.view(B, S, H)


NAN_ROWS = (
    "rows that see nothing of a block give NaN: their maximum is still −inf, and −inf − (−inf) is NaN; subtract 0 there"
)
ORDER = "row m of the folded queries is token m // H and head m % H: token and head are swapped here"

FOLDED = Exercise(
    name="folded_decode",
    title="query tokens folded into the heads",
    parts=(
        Part(
            "one query token",
            1,
            visible=[
                dict(B=2, S=1, H=5, T=40, lens=(40, 17)),
                dict(B=2, S=1, H=5, T=40, lens=(37, 17), nan_beyond=True),
                dict(B=2, S=1, H=128, T=40, lens=(17, 40), **WIDE),
                dict(B=2, S=1, H=4, T=150, lens=(121, 7)),
                dict(B=1, S=1, H=3, T=270, level=250.0),
                dict(B=1, S=1, H=3, T=17001, level=-150.0),  # more than 128 splits of 128 tokens
                dict(B=281, S=1, H=1, T=4),
                dict(B=1, S=1, H=2, T=1024, dtype=BF16, cancel=32.0),
            ],
            hidden=lambda r: [
                dict(
                    B=2,
                    S=1,
                    H=r.randint(1, 9),
                    T=r.randint(130, 160),
                    R=64,
                    Dr=r.choice([32, 64]),
                    lens=(2 * r.randint(40, 64) + 1, 0),
                    scale=0.15,
                ),
                dict(B=1, S=1, H=3, T=r.randint(257, 300), level=250.0),
                dict(B=1, S=1, H=r.randint(2, 9), T=1024, dtype=BF16, cancel=32.0),
            ],
        ),
        Part(
            "several query tokens, causal",
            2,
            visible=[
                dict(B=1, S=3, H=4, T=24),
                dict(B=2, S=4, H=2, T=150, Dr=32, lens=(17, 150), scale=0.1),
                dict(B=2, S=2, H=60, T=32),
                dict(B=1, S=2, H=60, T=503),  # blocks of rows beside splits, which T does not divide into
                dict(B=2, S=2, H=70, T=32),
                dict(B=1, S=2, H=300, T=32),
            ],
            hidden=lambda r: [
                dict(B=1, S=5, H=r.choice([13, 14]), T=48, Dr=32, lens=(r.randint(20, 47),), scale=0.4),
                dict(B=2, S=2, H=r.randint(57, 63), T=32),
                dict(B=1, S=2, H=r.randint(66, 70), T=32),
            ],
        ),
        Part(
            "queries that see nothing",
            1,
            visible=[
                dict(B=3, S=4, H=1, T=12, lens=(2, 12, 0)),
                dict(B=1, S=2, H=3, T=9, Dr=32, scale=0.4, **FAR_BELOW_0),
            ],
            hidden=lambda r: [dict(B=1, S=5, H=3, T=50, lens=(r.randint(1, 4),), dtype=BF16)],
        ),
    ),
    inputs=_folded_step,
    oracle=_causal,
    returns=("out", "lse"),
    like=("q_latent", torch.float32),
    mistakes=(
        Mistake(
            "not causal",
            "every query token sees the whole context: token s sees positions up to length − S + s",
            _seen_up_to(lambda s, h, length, n: length),
        ),
        Mistake(
            "own position left out",
            "a query token does not see its own position: offs_n <= length − S + s, the end included",
            _seen_up_to(lambda s, h, length, n: length - n["S"] + s - 1),
        ),
        Mistake(
            "aligned at the start",
            "token s sees positions up to s, as if the context held the S new tokens alone: add length − S",
            _seen_up_to(lambda s, h, length, n: s),
        ),
        Mistake(
            "counted from T",
            "positions are counted from T − S: sequence b ends at seq_lens[b], expected length − S + s",
            _seen_up_to(lambda s, h, length, n: n["T"] - n["S"] + s),
        ),
        Mistake(
            "order of the rows", ORDER, _seen_up_to(lambda s, h, length, n: length - n["S"] + (s * n["H"] + h) % n["S"])
        ),
        Mistake("order of the rows", ORDER, _rows_turned),
        Mistake(
            "head for token",
            "the mask takes m % H for the token of row m, and that is its head: the token is m // H",
            _seen_up_to(lambda s, h, length, n: (length - n["S"] + h).clamp(max=length - 1) + 0 * s),
        ),
        Mistake(
            "rows in groups of S",
            "the mask takes m // S for the token of row m: each token has H rows, so it is m // H",
            _seen_up_to(lambda s, h, length, n: (length - n["S"] + (s * n["H"] + h) // n["S"]).clamp(max=length - 1)),
        ),
        Mistake(
            "next position seen",
            "a query token sees the position behind its own: offs_n <= length − S + s is the last",
            _seen_up_to(lambda s, h, length, n: (length - n["S"] + s + 1).clamp(max=length - 1)),
        ),
        *(
            replace(each, oracle=_each_token(each.oracle))
            for each in (ROPE_MISSING, SCALE_MISSING, SCALE_OF_THE_LATENT, DECODED_IN_BASE_2)
        ),
        *(
            Mistake(
                "share rounded down",
                "the share of a split is rounded down: the last tokens, which do not divide, are read by no program; "
                "round up, tl.cdiv(length, num_splits)",
                _in_splits(bounds, num_splits),
            )
            for num_splits in SPLITS
            for bounds in (_rounded_down, _room_rounded_down)
        ),
        *(
            Mistake(
                "partial results in 16 bits",
                "partial results are rounded to 16 bits: those of the splits may be large and cancel, so keep them in "
                "float32",
                _in_16_bits(num_splits, dtype),
            )
            for num_splits in SPLITS
            for dtype in (BF16, HALF)
        ),
        Mistake(
            "last token lost",
            "the last token of the sequence is in no split: offs_n < length",
            _seen_up_to(_own_position, lambda length, T: [1] * (length - 1)),
        ),
        *(
            Mistake(
                "boundary counted twice",
                "the first token of the next split counts here as well: a split ends before (split + 1) · share",
                _in_splits(_end_included, num_splits),
            )
            for num_splits in SPLITS[:4]
        ),
        Mistake(
            "mask of the first token",
            "all rows see what token 0 sees: the mask differs from row to row, by token m // H",
            _seen_up_to(lambda s, h, length, n: length - n["S"]),
        ),
        Mistake("NaN behind the length", NAN_BEYOND, _nan_loaded(_causal)),
        *(
            Mistake(
                "maximum from 0",
                "a query that sees nothing has a finite lse, expected −inf: let the maximum begin at −inf, not at 0",
                after(_causal, lse_where_empty(math.log(num_splits))),
            )
            for num_splits in range(1, 5)
        ),
        Mistake("rows that see nothing", NAN_ROWS, _nan_rows(lambda length, S: (S - length) * (length > 0))),
        Mistake("rows that see nothing", NAN_ROWS, _nan_rows(lambda length, S: (S - 1) * (length > 0))),
    ),
    needs=("combine_splits",),
    kernel=True,
    speed=Speed(
        points=3,
        case=dict(B=4, S=4, H=16, T=16384, **WIDE),
        small=dict(B=1, T=512),
        axes=dict(q_latent="b_h", q_rope="b_h", c_kv="b", k_rope="b", seq_lens="b", out="b_h", lse="b_h"),
        floor=lambda B, S, H, T, R, Dr, scale, dtype: decode_floor(B, H, T, dtype, R, Dr, S),
        bars=((0.15, 0.5), (0.19, 1.0)),
        baseline=_eager_folded,
        ratio=2.3,
    ),
)

EXERCISES = (PREDICT, UPDATE, DECODE, SPLIT, COMBINE, PREDICT_FOLD, FOLDED)
