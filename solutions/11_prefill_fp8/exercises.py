"""Lesson 11: prefill and FP8. Attention over packed sequences, prompts in chunks, caches and keys in eight bits."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from typing import Any

import torch
from torch import Tensor

from autograder.judging.exercise import Arguments, Exercise, Mistake, Part, Speed, randn
from mla_ref.hardware.cost import Cost
from mla_ref.hardware.devices import DEVICES

from ..drawing import BF16, FAR_BELOW_0, FLOAT, HALF, as_given, set_level
from ..oracles import BASE_2, INF, after, base_2, empty_mistakes, finite_mask, in_blocks, slips

FP8, LARGEST = torch.float8_e4m3fn, 448.0
Lengths = Sequence[tuple[int, int]]  # of each sequence: query tokens, tokens of context

# --- prefill_work -----------------------------------------------------------------------------------------------------


def _triangle(S: int, T: int) -> int:
    return S * T - S * (S - 1) // 2


def _work(
    lengths_q: Sequence[int],
    lengths_kv: Sequence[int],
    H: int,
    Dn: int,
    Dr: int,
    Dv: int,
    rate: float,
    *,
    seen: Callable[[int, int], float] = _triangle,
    square: Callable[[Sequence[int], Sequence[int]], float] = lambda q, kv: len(q) * max(q) * max(kv),
    of_tokens: bool = False,
    each: int = 2,
    width: int | None = None,
) -> dict[str, float]:
    """Return the right numbers. Each keyword puts a wrong one in place of a right one."""
    tokens, slots = sum(lengths_q), len(lengths_q) * max(lengths_q)
    pairs = sum(map(seen, lengths_q, lengths_kv))
    flops = each * pairs * H * (Dn + Dr + Dv if width is None else width)
    return {
        "tokens": tokens,
        "padding": (slots - tokens) / (tokens if of_tokens else slots),
        "pairs": pairs,
        "padded_over_pairs": square(lengths_q, lengths_kv) / pairs,
        "flops": flops,
        "us": 1e6 * flops / rate,
    }


_work_slip = slips(_work)
V3_HEADS = dict(H=128, Dn=128, Dr=64, Dv=128)
H200 = DEVICES["h200"]


def _batch(r: Random, contexts: bool) -> dict[str, Any]:
    """Sequences whose queries are a chunk of what they attend to, or all of it."""
    lengths_q = [r.randint(1, 400) for _ in range(r.randint(2, 9))]
    past = [r.randint(1, 3000) * contexts for _ in lengths_q]
    lengths_kv = [S + n for S, n in zip(lengths_q, past, strict=True)]
    layer = dict(H=r.randint(2, 128), Dn=r.choice([32, 128]), Dr=r.choice([16, 48]), Dv=r.choice([64, 96]))
    return dict(lengths_q=lengths_q, lengths_kv=lengths_kv, **layer, rate=r.uniform(1e14, 2e15))


PREDICT = Exercise(
    name="prefill_work",
    title="prediction: what padding and causality spare",
    parts=(
        Part(
            "whole prompts",
            1,
            visible=[dict(lengths_q=[40, 100, 60], lengths_kv=[40, 100, 60], **V3_HEADS, rate=H200.rate())],
            hidden=lambda r: [
                _batch(r, contexts=False),
                dict(lengths_q=[77], lengths_kv=[77], **V3_HEADS, rate=1e15),
            ],
        ),
        Part(
            "chunks behind a context",
            2,
            visible=[
                dict(lengths_q=[512] * 4, lengths_kv=[81920] * 4, **V3_HEADS | dict(H=16), rate=H200.rate()),
                dict(lengths_q=[3, 1, 8], lengths_kv=[9, 5, 8], H=2, Dn=32, Dr=16, Dv=24, rate=1e12),
            ],
            hidden=lambda r: [_batch(r, contexts=True), _batch(r, contexts=True)],
        ),
    ),
    inputs=as_given,
    oracle=_work,
    returns=("prediction",),
    mistakes=(
        _work_slip(
            "aligned top-left",
            "pairs takes S(S+1)/2 for a chunk, as if it stood at the start of its context: its last query stands at "
            "the last key, so the first of S sees T−S+1",
            seen=lambda S, T: S * (S + 1) // 2,
        ),
        _work_slip("not causal", "pairs counts S·T: a query does not see what comes after it", seen=lambda S, T: S * T),
        _work_slip(
            "own position left out",
            "pairs lacks a query's own position: the last of S queries sees all T keys, itself included",
            seen=lambda S, T: S * T - S * (S + 1) // 2,
        ),
        _work_slip(
            "one product only",
            "flops has the scores alone: the weighted sum of the values takes another Dv multiply-accumulates a pair",
            lambda Dn, Dr, **_: dict(width=Dn + Dr),
        ),
        _work_slip("MACs for FLOPs", "flops are MACs: one multiply-accumulate is two FLOPs", each=1),
        _work_slip(
            "padding of the tokens",
            "padding divides by the real tokens: asked is its share of all rows, real and padded",
            of_tokens=True,
        ),
        _work_slip(
            "padded batch with a mask",
            "padded_over_pairs counts a triangle for the padded batch too: without a mask it has every pair of rows",
            square=lambda q, kv: len(q) * _triangle(max(q), max(kv)),
        ),
    ),
)

# --- plan_tiles -------------------------------------------------------------------------------------------------------


def _offsets(lengths: Sequence[int]) -> Tensor:
    return torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32)


def _packs(_: torch.Generator | None, lengths: Lengths, block: int, causal: bool = True) -> Arguments:
    q, kv = (_offsets([each[n] for each in lengths]) for n in range(2))
    return {"cu_seqlens_q": q, "cu_seqlens_kv": kv, "block": block, "causal": causal}


def _planned(
    cu_seqlens_q: Tensor,
    cu_seqlens_kv: Tensor,
    block: int,
    causal: bool,
    *,
    keys: Callable[..., int] = lambda S, T, start, end, block: max(T - S + end, 0),
    by: Callable[[int, int], int] = lambda S, block: -(-S // block),
    from_pack: bool = False,
    heedless: bool = False,
    flat: bool = False,
) -> Tensor:
    """Return the table, a sequence at a time. Each keyword makes a mistake."""
    ends_q, ends_kv = cu_seqlens_q.tolist(), cu_seqlens_kv.tolist()
    rows = []
    for b in range(len(ends_q) - 1):
        S, T = ends_q[b + 1] - ends_q[b], ends_kv[b + 1] - ends_kv[b]
        for n in range(by(S, block)):
            start, end = n * block, min((n + 1) * block, S)
            seen = keys(S, T, start, end, block) if causal or heedless else T
            rows.append([b, start + from_pack * ends_q[b], seen])
    found = torch.tensor(rows, dtype=torch.int32)
    return found if flat else found.view(-1, 3)


def _across(cu_seqlens_q: Tensor, cu_seqlens_kv: Tensor, block: int, causal: bool) -> Tensor:
    """Tiles cut from the pack as if it were one sequence."""
    whole = _planned(cu_seqlens_q[[0, -1]], cu_seqlens_kv[[0, -1]], block, causal, from_pack=True)
    b = torch.searchsorted(cu_seqlens_q[1:].contiguous(), whole[:, 1].contiguous(), right=True)
    return torch.stack((b, whole[:, 1] - cu_seqlens_q[b], whole[:, 2]), 1).int()


_plan_slip = slips(_planned)


def _some(r: Random, count: int, most: int, past: int) -> list[tuple[int, int]]:
    return [(S := r.randint(0, most), S + r.randint(0, past)) for _ in range(count)]


PLAN = Exercise(
    name="plan_tiles",
    title="tiles of packed sequences",
    parts=(
        Part(
            "prompts",
            1,
            visible=[dict(lengths=[(5, 5), (3, 3)], block=4), dict(lengths=[(4, 4), (9, 9), (1, 1)], block=4)],
            hidden=lambda r: [
                dict(lengths=[(S, S) for S, _ in _some(r, 6, 70, 0)] + [(33, 33)], block=16),
                dict(lengths=[(64, 64), (128, 128), (65, 65)], block=64),
            ],
        ),
        Part(
            "chunks: keys apart from queries",
            1,
            visible=[dict(lengths=[(6, 10), (3, 8)], block=4), dict(lengths=[(5, 9), (2, 2)], block=2)],
            hidden=lambda r: [
                dict(lengths=[*_some(r, 5, 60, 90), (17, 40)], block=16),
                dict(lengths=[(1, r.randint(2, 99)), *_some(r, 3, 300, 9), (200, 205)], block=128),
            ],
        ),
        Part(
            "empty sequences, and queries that see nothing",
            1,
            visible=[
                dict(lengths=[(0, 3), (5, 5), (0, 0)], block=4),
                dict(lengths=[(6, 1), (3, 0), (2, 4)], block=2),
                dict(lengths=[(0, 3), (0, 0)], block=4),
            ],
            hidden=lambda r: [
                dict(lengths=[(r.randint(9, 40), r.randint(0, 8)), (0, 7), (0, 0), (5, 9), (3, 0)], block=4),
                dict(lengths=[(0, 0), (0, 4)], block=16),
            ],
        ),
        Part(
            "not causal",
            1,
            visible=[dict(lengths=[(5, 7), (2, 9)], block=4, causal=False)],
            hidden=lambda r: [dict(lengths=[*_some(r, 4, 50, 50), (9, 3)], block=16, causal=False)],
        ),
    ),
    inputs=_packs,
    oracle=_planned,
    returns=("tiles",),
    like=(torch.int32,),
    mistakes=(
        _plan_slip(
            "aligned top-left",
            "the mask is aligned top-left: row s of S sees T−S+s+1 keys, because the last query stands at the last key",
            keys=lambda S, T, start, end, block: min(end, T),
        ),
        _plan_slip(
            "keys of the first row",
            "keys is what the first row of a tile sees: the loop must reach what the last one sees",
            keys=lambda S, T, start, end, block: max(T - S + start + 1, 0),
        ),
        _plan_slip(
            "rows that do not exist",
            "a last tile counts rows behind the end of its sequence: its last row is S−1, and no tile has more than T "
            "keys",
            keys=lambda S, T, start, end, block: max(T - S + start + block, 0),
        ),
        _plan_slip(
            "fewer than no keys",
            "keys is negative where a tile sees nothing: 0 is the least",
            keys=lambda S, T, start, end, block: T - S + end,
        ),
        _plan_slip(
            "tail forgotten", "the rows behind the last full tile are in none: round up", by=lambda S, n: S // n
        ),
        Mistake(
            "across a boundary",
            "a tile goes across the end of a sequence: the next one begins a tile of its own, since it has other keys",
            _across,
        ),
        _plan_slip(
            "start in the pack",
            "start is the row in the whole pack: expected the row counted from the sequence's own first one",
            from_pack=True,
        ),
        _plan_slip(
            "no columns without rows",
            "a batch without queries has no tiles, and a tensor of an empty list has the shape [0]: expected [0, 3], a "
            "table all the same; reshape(-1, 3) makes it",
            flat=True,
        ),
        _plan_slip("always causal", "without causality every tile sees all T keys of its sequence", heedless=True),
    ),
)

# --- ragged_prefill ---------------------------------------------------------------------------------------------------


def _prefill(
    g: torch.Generator | None,
    lengths: Lengths,
    H: int,
    Dn: int = 32,
    Dr: int = 16,
    Dv: int = 16,
    causal: bool = True,
    sharp: float = 1.0,
    level: float = 0.0,
    scale: float = 0.25,
    dtype: torch.dtype = HALF,
) -> Arguments:
    """The operands of a prefill; `sharp` is the size of the queries, `level` is added to all scores."""
    Nq, Nkv = (sum(each[n] for each in lengths) for n in range(2))
    found = {
        "q_nope": randn(g, Nq, H, Dn, scale=sharp, dtype=dtype),
        "q_rope": randn(g, Nq, H, Dr, scale=sharp, dtype=dtype),
        "k_nope": randn(g, Nkv, H, Dn, dtype=dtype),
        "k_rope": randn(g, Nkv, Dr, dtype=dtype),
        "v": randn(g, Nkv, H, Dv, dtype=dtype),
        "cu_seqlens_q": _offsets([S for S, _ in lengths]),
        "cu_seqlens_kv": _offsets([T for _, T in lengths]),
        "longest": max(S for S, _ in lengths),
        "scale": scale,
        "causal": causal,
    }
    if level:
        set_level(found["q_rope"], found["k_rope"], level, scale)
    return found


Bound = Callable[[Tensor, int, int], Tensor]  # rows s, S, T -> how many keys each sees


def _bottom_right(s: Tensor, S: int, T: int) -> Tensor:
    return T - S + s + 1


def _attended(
    q_nope: Tensor,
    q_rope: Tensor,
    k_nope: Tensor,
    k_rope: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_kv: Tensor,
    longest: int,
    scale: float,
    causal: bool,
    *,
    limit: Bound = _bottom_right,
    reach: int = 1,
    of_q: bool = False,
    rope: int | None = None,
    block: int = 0,
    keep_acc: bool = True,
    keep_sum: bool = True,
) -> tuple[Tensor, Tensor]:
    """Return out and lse, a sequence at a time. Each keyword makes a mistake.

    `reach` is what the number of keys is rounded up to; the keys behind are the next sequence's, or zeros. `rope` heads
    have the part with position. With a `block`, the softmax is online.
    """
    out, lse = q_nope.new_zeros(*q_nope.shape[:2], v.shape[2]), q_nope.new_full(q_nope.shape[:2], -INF)
    ends_q, ends_kv = cu_seqlens_q.tolist(), cu_seqlens_kv.tolist()
    some = torch.arange(q_nope.shape[1]) < (q_nope.shape[1] if rope is None else rope)
    for b in range(len(ends_q) - 1):
        rows = slice(ends_q[b], ends_q[b + 1])
        S, T = ends_q[b + 1] - ends_q[b], ends_kv[b + 1] - ends_kv[b]
        wide = -(-T // reach) * reach
        tokens = (ends_q if of_q else ends_kv)[b] + torch.arange(wide)
        inside = (tokens < len(v)).double()
        tokens = tokens.clamp(max=max(len(v) - 1, 0))
        if not S or not wide:
            continue
        k, r, x = k_nope[tokens], k_rope[tokens], v[tokens] * inside[:, None, None]
        scores = torch.einsum("shd,thd->hst", q_nope[rows], k)
        scores += torch.einsum("shd,td->hst", q_rope[rows] * some[:, None], r)
        scores *= scale * inside
        if causal:
            hidden = torch.arange(wide) >= limit(torch.arange(S), S, T)[:, None]
            scores = scores.masked_fill(hidden, -INF)
        out[rows], lse[rows] = _softmax(scores, x, block or wide, keep_acc, keep_sum)
    return out, lse


def _softmax(scores: Tensor, v: Tensor, block: int, keep_acc: bool, keep_sum: bool) -> tuple[Tensor, Tensor]:
    """Online softmax of scores [H, S, T] over v [T, H, Dv]: out [S, H, Dv], and lse [S, H]."""
    m_i = scores.new_full(scores.shape[:2], -INF)
    l_i, acc = torch.zeros_like(m_i), scores.new_zeros(*scores.shape[:2], v.shape[2])
    for qk, x in zip(scores.split(block, -1), v.split(block), strict=True):
        m_new = torch.maximum(m_i, qk.amax(-1))
        base = m_new.masked_fill(m_new == -INF, 0)
        p, alpha = (qk - base[..., None]).exp(), (m_i - base).exp()
        l_i = l_i * (alpha if keep_sum else 1) + p.sum(-1)
        acc = acc * (alpha[..., None] if keep_acc else 1) + torch.einsum("hst,thv->hsv", p, x)
        m_i = m_new
    out = acc / torch.where(l_i > 0, l_i, 1)[..., None]
    return out.transpose(0, 1), (m_i + l_i.log()).T


def _nan_rows(of_lse: bool) -> Callable[..., Any]:
    """NaN in rows that see nothing while others of their sequence do; in lse too, or in out alone."""

    def oracle(**given: Any) -> tuple[Tensor, Tensor]:
        out, lse = _attended(**given)
        bad = torch.zeros_like(lse, dtype=torch.bool)
        for start, end in itertools.pairwise(given["cu_seqlens_q"].tolist()):
            bad[start:end] = (lse[start:end] == -INF) & (lse[start:end] > -INF).any()
        return out.masked_fill(bad[..., None], math.nan), lse.masked_fill(bad & of_lse, math.nan)

    return oracle


def _eager(
    q_nope: Tensor,
    q_rope: Tensor,
    k_nope: Tensor,
    k_rope: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_kv: Tensor,
    longest: int,
    scale: float,
    causal: bool,
) -> tuple[Tensor, Tensor]:
    """The padded batch in PyTorch: the scores of every pair of rows, in memory."""
    ends_q, ends_kv = cu_seqlens_q.tolist(), cu_seqlens_kv.tolist()
    S, T = (torch.tensor(ends).diff() for ends in (ends_q, ends_kv))
    longest_q, longest_kv = int(S.max()), int(T.max())

    def padded(x: Tensor, ends: Sequence[int], longest: int) -> Tensor:
        places = (torch.tensor(ends[:-1])[:, None] + torch.arange(longest)).clamp(max=len(x) - 1)
        return x[places.to(x.device)]  # [B, longest, ...]

    q, r = (padded(x, ends_q, longest_q).transpose(1, 2) for x in (q_nope, q_rope))
    k, x = (padded(x, ends_kv, longest_kv).transpose(1, 2) for x in (k_nope, v))
    scores = q @ k.mT + r @ padded(k_rope, ends_kv, longest_kv)[:, None].mT
    s, t = torch.arange(longest_q)[:, None], torch.arange(longest_kv)
    seen = t < ((T - S)[:, None, None] + s + 1 if causal else T[:, None, None])
    scores = (scores.float() * scale).masked_fill(~seen[:, None].to(scores.device), -INF)
    lse = scores.logsumexp(-1)
    out = (scores - lse[..., None]).exp().to(v.dtype) @ x
    rows = torch.cat([b * longest_q + torch.arange(n) for b, n in enumerate(S.tolist())]).to(out.device)
    return out.transpose(1, 2).flatten(0, 1)[rows], lse.transpose(1, 2).flatten(0, 1)[rows]


def _prefill_floor(
    lengths: Lengths, H: int, Dn: int, Dr: int, Dv: int, dtype: torch.dtype, causal: bool = True, **_: Any
) -> Cost:
    """Everything is read once and written once; pairs that are seen are multiplied."""
    Nq, Nkv = (sum(each[n] for each in lengths) for n in range(2))
    words = Nq * H * (Dn + Dr + Dv) + Nkv * (H * (Dn + Dv) + Dr)
    pairs = sum(_triangle(S, T) if causal else S * T for S, T in lengths)
    return Cost(bytes=words * dtype.itemsize + 4 * Nq * H, flops=2 * pairs * H * (Dn + Dr + Dv))


_prefill_slip = slips(_attended)
ALIGNED = (
    "the causal mask is aligned top-left: query s of S sees the keys up to s; its sequence has T, and the last query "
    "stands at the last key, so it sees T−S+s+1"
)
ACROSS = (
    "a sequence sees keys of the next one: a block goes beyond its sequence, so mask the scores by the sequence's own "
    "T; without causality no other mask hides those keys"
)
NAN_ROWS = (
    "rows that see nothing of a block give NaN: their maximum is still −inf, and −inf − (−inf) is NaN; subtract 0 there"
)
WIDE = dict(Dn=128, Dr=64, Dv=128, scale=192**-0.5, dtype=BF16)

RAGGED = Exercise(
    name="ragged_prefill",
    title="attention over packed sequences",
    parts=(
        Part(
            "whole prompts",
            1,
            visible=[
                dict(lengths=[(20, 20), (7, 7)], H=2),
                dict(lengths=[(70, 70), (1, 1), (40, 40)], H=1, Dr=64, scale=0.1),
                dict(lengths=[(9, 9), (4, 4)], H=2, dtype=BF16),
                dict(lengths=[(3, 3), (2, 2)], H=135),
                dict(lengths=[(9, 9), (4, 4)], H=1, **WIDE),
            ],
            hidden=lambda r: [
                dict(lengths=[(S := r.randint(129, 160), S), (1, 1), (64, 64)], H=1, Dr=64, Dv=32, scale=0.15),
                dict(lengths=[(n, n) for n in (r.randint(2, 30), 33, r.randint(2, 9))], H=3, dtype=BF16),
            ],
        ),
        Part(
            "chunks behind a context, also with scores of a hundred and more",
            2,
            visible=[
                dict(lengths=[(5, 24), (18, 30)], H=2, Dn=16),
                dict(lengths=[(24, 150), (3, 70)], H=1, sharp=30.0),
                dict(lengths=[(140, 280), (1, 9)], H=1, Dr=32, Dv=64, scale=0.1),
                dict(lengths=[(3, 9), (2, 4200)], H=1),
                dict(lengths=[(5, 24), (18, 30)], H=2, **FAR_BELOW_0),
            ],
            hidden=lambda r: [
                dict(
                    lengths=[(r.randint(65, 80), 200), (1, r.randint(2, 130)), (17, 128)],
                    H=1,
                    Dn=16,
                    Dr=32,
                    scale=0.4,
                    dtype=BF16,
                ),
                dict(lengths=[(3, r.randint(257, 290)), (2, 64)], H=2, Dv=64, level=200.0),
            ],
        ),
        Part(
            "not causal",
            1,
            visible=[dict(lengths=[(5, 24), (18, 30)], H=2, Dr=32, causal=False, scale=0.1)],
            hidden=lambda r: [
                dict(lengths=[(r.randint(2, 40), r.randint(3, 90)), (9, 100), (1, 65)], H=2, causal=False),
                dict(lengths=[(r.randint(257, 270), 275), (3, 2)], H=1, causal=False),
            ],
        ),
        Part(
            "empty sequences, and queries that see nothing",
            1,
            visible=[
                dict(lengths=[(0, 6), (9, 9), (4, 0)], H=1),
                dict(lengths=[(20, 12), (6, 6)], H=2, Dr=32, scale=0.4),
                dict(lengths=[(6, 6), (300, 20), (5, 5)], H=2),
                dict(lengths=[(5, 5), *[(0, 0)] * 279, (4, 4)], H=2),
                dict(lengths=[(4, 0), (3, 9)], H=1, causal=False),
            ],
            hidden=lambda r: [
                dict(lengths=[(r.randint(40, 90), r.randint(1, 20)), (0, 0), (3, 5)], H=1, dtype=BF16),
                dict(lengths=[(5, 0), (2, 9)], H=2, causal=False),
            ],
        ),
    ),
    inputs=_prefill,
    oracle=_attended,
    returns=("out", "lse"),
    like=("q_nope", torch.float32),
    mistakes=(
        _prefill_slip("aligned top-left", ALIGNED, limit=lambda s, S, T: s + 1),
        _prefill_slip(
            "own position left out",
            "a query does not see its own position: it sees T−S+s+1 keys, the last of them its own",
            limit=lambda s, S, T: T - S + s,
        ),
        _prefill_slip(
            "offsets of q for kv",
            "keys are read from row cu_seqlens_q[b] on: they are packed by cu_seqlens_kv",
            of_q=True,
        ),
        *in_blocks("across a boundary", ACROSS, lambda n: lambda **a: _attended(**a, reach=n)),
        _prefill_slip(
            "RoPE part of one head", "only head 0 has q_rope · k_rope: all heads share the row of k_rope", rope=1
        ),
        Mistake("lse base 2", BASE_2, after(_attended, base_2)),
        *(Mistake("rows that see nothing", NAN_ROWS, _nan_rows(of_lse)) for of_lse in (False, True)),
        *empty_mistakes("a sequence without keys", _attended),
        finite_mask(_attended),
        *in_blocks(
            "not rescaled",
            "acc is not multiplied by exp(m_i − m_new) when the maximum grows: earlier blocks weigh too much",
            lambda n: lambda **a: _attended(**a, block=n, keep_acc=False),
        ),
        *in_blocks(
            "not rescaled",
            "l_i is not multiplied by exp(m_i − m_new) when the maximum grows: earlier blocks count too much",
            lambda n: lambda **a: _attended(**a, block=n, keep_sum=False),
        ),
    ),
    needs=("plan_tiles",),
    kernel=True,
    launches=1,
    speed=Speed(
        points=3,
        case=dict(
            lengths=[(512, 2048)] * 2,
            causal=False,
            H=64,
            **WIDE,
        ),
        small=dict(lengths=[(128, 256)] * 2, H=1),
        axes=dict(q_nope="_h", q_rope="_h", k_nope="_h", v="_h", out="_h", lse="_h"),
        floor=_prefill_floor,
        bars=((0.13, 0.5), (0.24, 1.0)),
        baseline=_eager,
        ratio=2.0,
    ),
)

# --- chunked_prefill --------------------------------------------------------------------------------------------------


def _chunks(
    g: torch.Generator | None,
    lengths: Lengths,
    chunk: int,
    H: int = 2,
    Dn: int = 8,
    Dr: int = 4,
    Dv: int = 6,
    R: int = 16,
    level: float = 0.0,
) -> Arguments:
    Nq, Nkv = (sum(each[n] for each in lengths) for n in range(2))
    q, k_rope = randn(g, Nq, H, Dn + Dr), randn(g, Nkv, Dr)
    if level:
        set_level(q[..., Dn:], k_rope, level, (Dn + Dr) ** -0.5)
    return {
        "q": q,
        "c_kv": randn(g, Nkv, R),
        "k_rope": k_rope,
        "w_uk": randn(g, H, Dn, R, scale=R**-0.5),
        "w_uv": randn(g, H, Dv, R, scale=R**-0.5),
        "cu_seqlens_q": _offsets([S for S, _ in lengths]),
        "cu_seqlens_kv": _offsets([T for _, T in lengths]),
        "chunk": chunk,
    }


def _chunked(
    q: Tensor,
    c_kv: Tensor,
    k_rope: Tensor,
    w_uk: Tensor,
    w_uv: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_kv: Tensor,
    chunk: int,
    *,
    rope: int | None = None,
    causal: tuple[bool, bool] = (False, True),
    whole: bool = False,
    of_q: bool = False,
    weigh: Callable[[Tensor, Tensor], Tensor] = lambda p, lse: (p - lse).exp(),
    merged: Callable[[Tensor], Tensor] = lambda p: p.logsumexp(0),
) -> tuple[Tensor, Tensor, Tensor]:
    """Return out, lse and the lses of the parts, from all keys at once. Each keyword makes a mistake.

    `causal` is that of a chunk of the context and that of the new tokens; `whole` has them in the chunks too.
    """
    H, Dn = w_uk.shape[:2]
    some = (torch.arange(H) < (H if rope is None else rope))[:, None]
    k = torch.cat((torch.einsum("tr,hdr->thd", c_kv, w_uk), k_rope[:, None] * some), -1)
    v = torch.einsum("tr,hvr->thv", c_kv, w_uv)
    ends_q, ends_kv = cu_seqlens_q.tolist(), cu_seqlens_kv.tolist()
    sizes = [(ends_q[b + 1] - ends_q[b], ends_kv[b + 1] - ends_kv[b]) for b in range(len(ends_q) - 1)]
    parts = -(-max(T - S * (not whole) for S, T in sizes) // chunk)
    part_lse = q.new_full((parts + 1, *q.shape[:2]), -INF)
    part_out = q.new_zeros(parts + 1, *q.shape[:2], v.shape[2])
    for b, (S, T) in enumerate(sizes):
        rows, first = slice(ends_q[b], ends_q[b + 1]), (ends_q if of_q else ends_kv)[b]
        past = T if whole else T - S
        bounds = [(min(n * chunk, past), min((n + 1) * chunk, past)) for n in range(parts)] + [(T - S, T)]
        for n, (low, high) in enumerate(bounds):
            if not S or low == high:
                continue
            tokens = slice(first + low, first + high)
            scores = torch.einsum("shd,thd->hst", q[rows], k[tokens]) * (Dn + k_rope.shape[1]) ** -0.5
            if causal[n == parts]:
                hidden = torch.arange(high - low) > torch.arange(S)[:, None] + high - low - S
                scores = scores.masked_fill(hidden, -INF)
            part_out[n, rows], part_lse[n, rows] = _softmax(scores, v[tokens], high - low, True, True)
    lse = merged(part_lse)
    return (weigh(part_lse, part_lse.logsumexp(0))[..., None] * part_out).sum(0), lse, part_lse


def _powers(part_lse: Tensor, most: float, divided: bool = False) -> tuple[Tensor, Tensor]:
    """Return weights and lse of float32's powers, relative to the largest lse, but to one from 0 to `most`."""
    top = part_lse.amax(0).clamp(0.0, most)
    powers = (part_lse - top).float().exp()
    lse = top + powers.sum(0).log()
    return (powers / powers.sum(0) if divided else (part_lse - lse).exp()).double(), lse


_chunk_slip = slips(_chunked)
LN_2 = math.log(2)

CHUNKED = Exercise(
    name="chunked_prefill",
    title="a prompt in chunks, merged by log-sum-exps",
    parts=(
        Part(
            "one sequence",
            1,
            visible=[dict(lengths=[(3, 9)], chunk=4), dict(lengths=[(4, 4)], chunk=2, Dn=12, Dr=6, Dv=10, R=20)],
            hidden=lambda r: [
                dict(lengths=[(S := r.randint(1, 9), S + r.randint(1, 40))], chunk=r.choice([1, 4, 7]), R=24, Dr=6),
                dict(lengths=[(5, 21)], chunk=8),
            ],
        ),
        Part(
            "a batch, whose contexts differ",
            2,
            visible=[
                dict(lengths=[(3, 9), (2, 4), (4, 4)], chunk=4),
                dict(lengths=[(5, 6), (2, 12), (0, 7)], chunk=5, H=3),  # the first context is the shortest
            ],
            hidden=lambda r: [
                dict(lengths=[(S := r.randint(1, 7), S + r.randint(0, 30)) for _ in range(4)], chunk=8, H=3),
                dict(lengths=[(1, 1), (1, 33), (6, 17)], chunk=16),
                dict(lengths=[(0, 9), (4, 20), (0, 0)], chunk=6),
            ],
        ),
        Part(
            "large log-sum-exps",
            1,
            visible=[dict(lengths=[(3, 9), (2, 2)], chunk=4, level=level) for level in (150.0, -150.0)],
            hidden=lambda r: [dict(lengths=[(2, r.randint(20, 30)), (3, 5)], chunk=8, level=200.0)],
        ),
    ),
    inputs=_chunks,
    oracle=_chunked,
    returns=("out", "lse", "part_lse"),
    like=("q", "q", "q"),
    tolerance=3e-5,
    mistakes=(
        _chunk_slip(
            "causal in the context",
            "a chunk of the context is attended to causally: all of it comes before the new tokens, so causal=False",
            causal=(True, True),
        ),
        _chunk_slip(
            "new tokens not causal",
            "the new tokens see one another without a mask: this last part is the causal one",
            causal=(False, False),
        ),
        _chunk_slip(
            "new tokens in the chunks",
            "the chunks go up to T and hold the new tokens too, which then count twice: the context ends at T−S",
            whole=True,
        ),
        _chunk_slip(
            "offsets of q for kv", "latents are taken from row cu_seqlens_q[b] on: they lie by cu_seqlens_kv", of_q=True
        ),
        _chunk_slip(
            "RoPE part of one head",
            "k_rope is in the key of head 0 alone: expand it to all heads before you concatenate",
            rope=1,
        ),
        _chunk_slip(
            "plain mean",
            "out is the plain mean of the parts: weigh each by exp(its lse − the lse of all)",
            weigh=lambda p, lse: torch.full_like(p, 1 / len(p)),
        ),
        _chunk_slip(
            "weights not normalised",
            "the weights are relative to the largest lse and do not add up to 1: take exp(part − lse of all)",
            weigh=lambda p, lse: (p - p.amax(0)).exp(),
        ),
        _chunk_slip(
            "weights base 2",
            "the weights are powers of 2: these log-sum-exps are natural, take exp",
            weigh=lambda p, lse: (p * LN_2).softmax(0),
        ),
        _chunk_slip(
            "weights base 2",
            "the weights are powers of 2: these log-sum-exps are natural, take exp",
            weigh=lambda p, lse: (p * LN_2).softmax(0),
            merged=lambda p: (p * LN_2).logsumexp(0) / LN_2,
        ),
        *(
            _chunk_slip(
                "another number for the maximum",
                "exp leaves float32 beyond 88, and below −104: subtract the largest lse of the parts first, be it "
                "below 0 or above",
                weigh=lambda p, lse, most=most, divided=divided: _powers(p, most, divided)[0],
                merged=lambda p, most=most: _powers(p, most)[1],
            )
            for most in (0.0, INF)
            for divided in (False, True)
        ),
        _chunk_slip(
            "lse of the last part",
            "lse is that of the new tokens alone: take logsumexp over the parts",
            merged=lambda p: p[-1],
        ),
    ),
)

# --- quantize_cache ---------------------------------------------------------------------------------------------------


def _rounded(x: Tensor) -> Tensor:
    """Return numbers in E4M3, as float64; what is too large becomes the largest."""
    return x.float().clamp(-LARGEST, LARGEST).to(FP8).double()


def _doubtful(quotients: Tensor) -> Tensor:
    """Return where the last bits of float32 decide how a quotient rounds."""
    return _rounded(quotients * (1 + 1e-6)) != _rounded(quotients * (1 - 1e-6))


def _rows_of_cache(
    g: torch.Generator | None,
    N: int,
    R: int,
    tile: int | None,
    Dr: int = 8,
    dtype: torch.dtype = FLOAT,
    spread: float = 6.0,
    zeros: Sequence[int] = (),
) -> Arguments:
    """Return rows of a cache whose tiles differ by up to 2**spread, and whose last Dr numbers are larger than the rest.

    The tokens `zeros` hold a latent of zeros. The largest magnitude is that of a negative number in every other token,
    and in the whole where there is one scale. No quotient depends on the last bits of a division.
    """
    latent = randn(g, N, R, dtype=torch.float64)
    tiles = latent.unflatten(1, (-1, 4))
    tiles *= 2 ** (spread * torch.rand(*tiles.shape[:2], 1, generator=g, dtype=torch.float64) - spread / 2)
    place = tiles.abs().argmax(2, keepdim=True)
    tiles.scatter_(2, place, tiles.gather(2, place).abs())
    latent[::2] *= -1
    if tile is None and latent.amax() > -latent.amin():
        latent *= -1
    latent[list(zeros)] = 0
    latent = latent.to(dtype).double()
    scales = _largest(latent, tile) / LARGEST
    latent[_doubtful(_over(latent, torch.where(scales > 0, scales, 1)))] = 0
    rope = randn(g, N, Dr, scale=30.0, dtype=torch.float64)
    return {"cache": torch.cat((latent, rope), 1).to(dtype), "R": R, "tile": tile}


def _largest(latent: Tensor, tile: int | None, magnitude: Callable[[Tensor], Tensor] = torch.abs) -> Tensor:
    if tile is None:
        return magnitude(latent).amax().view(1, 1)
    return magnitude(latent).unflatten(1, (-1, tile)).amax(-1)


def _over(latent: Tensor, scales: Tensor) -> Tensor:
    """Return numbers over their scales, which are [1, 1] or [N, tiles]."""
    return latent / scales.repeat_interleave(latent.shape[1] // scales.shape[1], 1)


def _quantized(
    cache: Tensor,
    R: int,
    tile: int | None,
    *,
    size: Callable[[int | None, int], int | None] = lambda tile, R: tile,
    largest: float = LARGEST,
    magnitude: Callable[[Tensor], Tensor] = torch.abs,
    with_rope: bool = False,
    rope: Callable[[Tensor], Tensor] = lambda rope: rope,
    reciprocal: bool = False,
    empty: float = 1.0,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return values, scales and the part with position. Each keyword makes a mistake."""
    latent, k_rope = cache[:, :R], cache[:, R:]
    tile = size(tile, R)
    scales = _largest(latent, tile, magnitude) / largest
    if with_rope:
        scales = torch.maximum(scales, _largest(k_rope, None if tile is None else k_rope.shape[1]) / largest)
    scales = torch.where(scales == 0, empty, scales)
    quotients = _over(latent, scales)
    values = _rounded(quotients.nan_to_num() if empty else quotients)
    return values, 1 / scales if reciprocal else scales, rope(k_rope)


def _multiplied(cache: Tensor, R: int, tile: int | None) -> tuple[Tensor, Tensor, Tensor]:
    """The latent times its scale."""
    _, scales, k_rope = _quantized(cache, R, tile)
    return _rounded(_over(cache[:, :R], 1 / scales)), scales, k_rope


_cache_slip = slips(_quantized)

QUANTIZE = Exercise(
    name="quantize_cache",
    title="choice of scale: tensor, token or tile",
    parts=(
        Part(
            "a scale for each token",
            1,
            visible=[dict(N=5, R=16, tile=16), dict(N=3, R=32, tile=32, dtype=BF16)],
            hidden=lambda r: [
                dict(N=1, R=64, tile=64, Dr=r.choice([4, 16])),
                dict(N=r.randint(6, 40), R=48, tile=48, dtype=HALF, spread=2.0),
            ],
        ),
        Part(
            "a scale for each tile",
            1,
            visible=[dict(N=4, R=16, tile=4), dict(N=3, R=64, tile=16, dtype=BF16)],
            hidden=lambda r: [
                dict(N=r.randint(2, 20), R=r.choice([32, 96]), tile=8, spread=16.0),
                dict(N=2, R=512, tile=128, Dr=64, dtype=BF16),
            ],
        ),
        Part(
            "one scale for the tensor",
            1,
            visible=[dict(N=4, R=16, tile=None)],
            hidden=lambda r: [dict(N=r.randint(2, 20), R=32, tile=None, dtype=BF16), dict(N=1, R=8, tile=None)],
        ),
        Part(
            "latents of zeros",
            1,
            visible=[dict(N=4, R=16, tile=8, zeros=(1, 3)), dict(N=2, R=8, tile=None, zeros=(0, 1))],
            hidden=lambda r: [
                dict(N=5, R=32, tile=r.choice([8, 32]), zeros=[r.randint(0, 4)], dtype=BF16),
                dict(N=1, R=8, tile=8, zeros=(0,)),
            ],
        ),
    ),
    inputs=_rows_of_cache,
    oracle=_quantized,
    returns=("values", "scales", "k_rope"),
    like=(FP8, torch.float32, "cache"),
    tolerance=1e-6,
    mistakes=(
        Mistake(
            "multiplied by the scale",
            "the values are the latent times its scale: the scale is what 1 stands for, so divide by it",
            _multiplied,
        ),
        _cache_slip(
            "reciprocal returned",
            "scales are 448 over the largest magnitude: that is what you multiply with; return what the values are "
            "multiplied with on the way back, the largest magnitude over 448",
            reciprocal=True,
        ),
        _cache_slip(
            "RoPE part in the scale",
            "the scale is that of the whole row: the part with position is not quantised, and its larger numbers cost "
            "the latent its resolution",
            with_rope=True,
        ),
        _cache_slip(
            "RoPE part quantised",
            "k_rope is rounded to E4M3: it stays as the cache has it, since its numbers decide about positions",
            rope=_rounded,
        ),
        _cache_slip(
            "largest of another format",
            "the scale is the largest magnitude over 127, as for INT8: E4M3 goes to 448",
            largest=127.0,
        ),
        _cache_slip(
            "largest of another format",
            "the scale is the largest magnitude over 57344, as for E5M2: E4M3 ends at 448, and the rest is cut off",
            largest=57344.0,
        ),
        _cache_slip(
            "largest of another format",
            "the scale is the largest magnitude over 240, where another FP8 format ends: this E4M3 goes to 448",
            largest=240.0,
        ),
        replace(
            _cache_slip(
                "largest without its sign",
                "the scale is that of the largest number: a negative one may have the larger magnitude, and is cut off",
                magnitude=lambda x: x,
            ),
            at_times=True,  # tiles and the whole have lines of their own
        ),
        _cache_slip(
            "a scale for each token",
            "the scales are those of whole tokens: `tile` numbers in a row share one",
            size=lambda tile, R: tile and R,
        ),
        _cache_slip(
            "one scale for the tensor",
            "all tokens share one scale: each token, or each tile, has its own",
            size=lambda tile, R: None,
        ),
        _cache_slip(
            "scale of zeros",
            "a tile of zeros has scale 0, and 0/0 is NaN: give it scale 1",
            empty=0.0,
        ),
        replace(
            _cache_slip("scale of zeros", "a tile of zeros has a scale of nearly 0: give it scale 1", empty=1e-12),
            at_times=True,
        ),
    ),
)

# --- pack_fp8 ---------------------------------------------------------------------------------------------------------


def _unpacked(
    g: torch.Generator | None,
    N: int,
    H: int,
    Dn: int = 32,
    Dr: int = 16,
    Dv: int = 16,
    R: int = 32,
    k_scale: float = 0.5,
    v_scale: float = 0.25,
    size: float = 10.0,
    dtype: torch.dtype = BF16,
) -> Arguments:
    """Return what one product gives for keys and values, and rows of the cache; `size` is the standard deviation.

    By scales that are powers of two every quotient is exact, halves of the last place among them. By others none
    depends on the last bits of a division.
    """
    kv, cache = randn(g, N, H, Dn + Dv, scale=size, dtype=dtype), randn(g, N, R + Dr, scale=size, dtype=dtype)
    if g is not None:
        for x, scale in ((kv[..., :Dn], k_scale), (kv[..., Dn:], v_scale), (cache, k_scale)):
            if math.frexp(scale)[0] != 0.5:
                x[_doubtful(x.double() / scale)] = 0
    return {"kv": kv, "cache": cache, "Dn": Dn, "R": R, "k_scale": k_scale, "v_scale": v_scale}


def _packed(
    kv: Tensor,
    cache: Tensor,
    Dn: int,
    R: int,
    k_scale: float,
    v_scale: float,
    *,
    by: Callable[[Tensor, float], Tensor] = lambda x, scale: x / scale,
    of: str = "nrv",
    cast: Callable[[Tensor], Tensor] = _rounded,
    heads: int | None = None,
    rope_scale: float | None = None,
    rope: Callable[[Tensor, int], Tensor] = lambda cache, R: cache[:, R:],
) -> tuple[Tensor, Tensor]:
    """Return packed keys and values. Each keyword makes a mistake.

    `of` says to what `by` is done, which else is divided: a key's numbers without position, those with it, values.
    """
    H = kv.shape[1]
    nope, turn, value = (by if each in of else lambda x, scale: x / scale for each in "nrv")
    turned = cast(turn(rope(cache, R), k_scale if rope_scale is None else rope_scale))[:, None].expand(-1, H, -1)
    if heads is not None:
        turned = turned.masked_fill((torch.arange(H) >= heads)[:, None], math.nan)
    return torch.cat((cast(nope(kv[..., :Dn], k_scale)), turned), -1), cast(value(kv[..., Dn:], v_scale))


def _nan_beyond(x: Tensor) -> Tensor:
    """E4M3 without saturation: what rounds to more than 448 is NaN."""
    return _rounded(x).masked_fill(x.abs() > 464, math.nan)


def _eager_pack(kv: Tensor, cache: Tensor, Dn: int, R: int, k_scale: float, v_scale: float) -> tuple[Tensor, Tensor]:
    """Concatenate, divide, cast: each is a pass over memory."""
    k = torch.cat((kv[..., :Dn], cache[:, None, R:].expand(-1, kv.shape[1], -1)), -1)
    return tuple(
        (x.float() / scale).clamp(-LARGEST, LARGEST).to(FP8) for x, scale in ((k, k_scale), (kv[..., Dn:], v_scale))
    )


def _pack_floor(N: int, H: int, Dn: int, Dr: int, Dv: int, R: int, dtype: torch.dtype, **_: Any) -> Cost:
    """The product and the rotated keys are read once; each result has a byte."""
    read = (N * H * (Dn + Dv) + N * Dr) * dtype.itemsize
    return Cost(bytes=read + N * H * (Dn + Dr + Dv), flops=N * H * (Dn + Dr + Dv))


_pack_slip = slips(_packed)
TURNED = "the RoPE part of a key is not that of its token's cache row: it begins behind the latent, at column R"

PACK = Exercise(
    name="pack_fp8",
    title="keys and values packed to FP8",
    parts=(
        Part(
            "blocks that are full",
            1,
            visible=[dict(N=4, H=16), dict(N=2, H=4, dtype=HALF)],
            hidden=lambda r: [dict(N=r.randint(1, 9), H=16, Dn=64, Dr=32, Dv=64, k_scale=2.0, v_scale=1.0)],
        ),
        Part(
            "any number of heads and tokens, and widths that differ",
            1,
            visible=[
                dict(N=3, H=5, Dn=32, Dr=16, Dv=64, R=48),
                dict(N=37, H=1),
                dict(N=1, H=1),
                dict(N=301, H=3),
                dict(N=2, H=301, Dn=128, Dr=64, Dv=128, R=512),
            ],
            hidden=lambda r: [
                dict(N=r.randint(1, 5), H=r.randint(17, 40), Dn=16, Dr=32, Dv=32, R=r.randint(8, 70)),
                dict(N=r.randint(130, 150), H=3, Dn=16, Dv=16, k_scale=4.0),
                dict(N=1, H=1, Dn=128, Dr=64, Dv=128, R=512),
            ],
        ),
        Part(
            "scales that are no powers of two",
            1,
            visible=[dict(N=4, H=6, k_scale=0.3, v_scale=0.07), dict(N=4, H=6, k_scale=3.1, v_scale=0.7, dtype=HALF)],
            hidden=lambda r: [dict(N=5, H=7, k_scale=r.uniform(0.1, 3), v_scale=r.uniform(0.1, 3)) for _ in range(2)],
        ),
        Part(
            "numbers beyond 448, and tiny ones",
            1,
            visible=[
                dict(N=3, H=4, size=300.0, k_scale=1.0, v_scale=0.5),
                dict(N=3, H=4, size=900.0, k_scale=1.7, v_scale=3.3),
            ],
            hidden=lambda r: [
                dict(N=9, H=5, size=300.0, k_scale=r.uniform(0.5, 2), v_scale=r.uniform(0.5, 2)),
                dict(N=3, H=5, size=0.01, k_scale=1.0, v_scale=0.5),
                dict(N=3, H=5, size=1e6, k_scale=4096.0, v_scale=8192.0),
            ],
        ),
    ),
    inputs=_unpacked,
    oracle=_packed,
    returns=("k", "v"),
    like=(FP8, FP8),
    tolerance=0.0,
    mistakes=(
        _pack_slip(
            "multiplied by the scale",
            "keys and values are multiplied by their scales: a scale is what 1 stands for in the result, so divide",
            by=lambda x, scale: x * scale,
        ),
        _pack_slip(
            "RoPE part without scale",
            "the RoPE part of the keys is not divided by k_scale: a key has one scale, or its score is the sum of two "
            "units",
            rope_scale=1.0,
        ),
        Mistake(
            "RoPE part of one head",
            "only head 0 has its RoPE part: the same Dr numbers go into the keys of all heads",
            lambda **a: _packed(**a, heads=1),
            unwritten=True,
        ),
        _pack_slip("start of the cache row", TURNED, rope=lambda cache, R: cache[:, : cache.shape[1] - R]),
        _pack_slip(
            "scale of the keys for the values",
            "the values are divided by k_scale: they have a scale of their own",
            lambda k_scale, **_: dict(v_scale=k_scale),
        ),
        *(
            _pack_slip(
                "divided in 16 bits",
                "the quotients are rounded twice, to 16 bits and then to 8: take x.to(tl.float32) before you divide",
                by=lambda x, scale, dtype=dtype: (x / scale).to(dtype).double(),
                of=of,
            )
            for dtype in (BF16, HALF)
            for of in ("nrv", "nr", "n", "r", "v")
        ),
        *(
            _pack_slip(
                "cut off before the division",
                "the numbers are held within ±448 before they are divided: it is the quotients that must fit",
                by=lambda x, scale: x.clamp(-LARGEST, LARGEST) / scale,
                of=of,
            )
            for of in ("nrv", "nr", "n", "r", "v")
        ),
        _pack_slip(
            "NaN beyond 448",
            "what is too large becomes NaN: E4M3 has no infinity, so hold the quotients within ±448 before the cast",
            cast=_nan_beyond,
        ),
    ),
    kernel=True,
    launches=1,
    copies=False,
    speed=Speed(
        points=3,
        case=dict(N=8192, H=128, Dn=128, Dr=64, Dv=128, R=512, k_scale=0.5, v_scale=0.25, dtype=BF16),
        small=dict(N=64),
        axes=dict(kv="nh", cache="n", k="nh", v="nh"),
        floor=_pack_floor,
        bars=((0.5, 0.5), (0.7, 1.0)),
        baseline=_eager_pack,
        ratio=2.0,
    ),
)

EXERCISES = (PREDICT, PLAN, RAGGED, CHUNKED, QUANTIZE, PACK)
