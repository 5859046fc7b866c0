"""Lesson 01: multi-head attention, its cache, and what the cache costs."""

from __future__ import annotations

import math
from functools import partial
from random import Random
from typing import Any

import torch

from autograder.isolation.worker.running import BESIDE
from autograder.judging.exercise import Arguments, Exercise, Mistake, Part, randn
from mla_ref import Cost, sdpa

from ..drawing import as_given, sink
from ..oracles import (
    HIDDEN,
    ZERO_IS_SEEN,
    after,
    axis_mistakes,
    base_2_mistake,
    causal,
    constants,
    hidden_mistakes,
    mask_mistakes,
    other_scales,
    slips,
    sum_mistakes,
    weighed,
)

# predict_cache_bytes


def _cache_bytes(num_layers, num_heads, num_kv_heads, head_dim, itemsize, *, parts=2):
    """Bytes per token of keys and values (`parts` tensors), by kind of attention."""
    heads = {"mha": num_heads, "gqa": num_kv_heads, "mqa": 1}
    return {kind: parts * num_layers * count * head_dim * itemsize for kind, count in heads.items()}


def _model(r: Random, num_layers: int) -> dict[str, int]:
    kv = r.randint(2, 8)
    heads = kv * r.choice([2, 3, 5, 6])
    return dict(
        num_layers=num_layers,
        num_heads=heads,
        num_kv_heads=kv,
        head_dim=r.choice([32, 80, 96]),
        itemsize=r.choice([1, 2, 4]),
    )


_bytes_slip = slips(_cache_bytes)

PREDICT_CACHE_BYTES = Exercise(
    name="predict_cache_bytes",
    title="bytes cached per token: MHA, GQA, MQA",
    parts=(
        Part(
            "one layer",
            1,
            visible=[dict(num_layers=1, num_heads=15, num_kv_heads=3, head_dim=16, itemsize=4)],
            hidden=lambda r: [_model(r, 1), _model(r, 1)],
        ),
        Part(
            "a whole model",
            1,
            visible=[
                dict(num_layers=10, num_heads=40, num_kv_heads=8, head_dim=128, itemsize=2),
                dict(num_layers=6, num_heads=12, num_kv_heads=3, head_dim=48, itemsize=4),
            ],
            hidden=lambda r: [_model(r, r.randint(2, 90)), _model(r, r.randint(2, 90))],
        ),
    ),
    inputs=as_given,
    oracle=_cache_bytes,
    returns=("prediction",),
    mistakes=(
        _bytes_slip(
            "keys without values", "these are half the bytes: a token leaves a key and a value in the cache", parts=1
        ),
        Mistake(
            "elements",
            "these are elements, expected bytes: multiply by itemsize",
            lambda **a: _cache_bytes(**{**a, "itemsize": 1}),
        ),
        Mistake(
            "layers forgotten",
            "this is one layer's share: every layer has keys and values of its own, so multiply by num_layers",
            lambda **a: _cache_bytes(**{**a, "num_layers": 1}),
        ),
        Mistake(
            "group size for groups",
            "gqa: you took num_heads/num_kv_heads, the query heads of a group; num_kv_heads heads are stored",
            lambda **a: _cache_bytes(**{**a, "num_kv_heads": a["num_heads"] // a["num_kv_heads"]}),
        ),
    ),
)

# attention and grouped_attention


def _qkv(
    g: torch.Generator, B: int, S: int, T: int, H: int, Dh: int, G: int = 0, scale: float = 1.0, depth: float = 0.0
) -> Arguments:
    heads = G or H
    q, k = randn(g, B, S, H, Dh, scale=scale), randn(g, B, T, heads, Dh, scale=scale)
    if depth:
        sink(q, k, depth)
    return {"q": q, "k": k, "v": randn(g, B, T, heads, Dh)}


def _scores(q, k, scale=None, **mask):
    """Scores [B, S, H, T] behind a causal `mask`; -inf where a query may not look."""
    scores = torch.einsum("bshd,bthd->bsht", q, k)
    return causal(scores * (q.shape[-1] ** -0.5 if scale is None else scale), **mask)


def _attention(q, k, v, axis=-1, slip="", **wrong):
    """Attention. The keywords make the named mistakes; the weights sum to 1 along `axis`."""
    weights, lse = weighed(_scores(q, k, **wrong), axis, slip)
    return torch.einsum("bsht,bthd->bshd", weights, v), lse


OTHER_SCALES = {
    "√Dh": lambda a: a["q"].shape[3] ** 0.5,
    "1/√T": lambda a: a["k"].shape[1] ** -0.5,
    "1/√H": lambda a: a["q"].shape[2] ** -0.5,
    "1/√(H·Dh)": lambda a: (a["q"].shape[2] * a["q"].shape[3]) ** -0.5,
    **constants(64, 128),
}


def _future_at(q, k, v, score):
    """Scores of the future at `score` in place of -inf: they may still get a weight."""
    scores = _scores(q, k)
    scores = scores.masked_fill(scores.isinf(), score)
    return torch.einsum("bsht,bthd->bshd", scores.softmax(-1), v), scores.logsumexp(-1)


def _not_transposed_back(x):
    """Take [B, S, H, ...] that lies as [B, H, S, ...] for what it should be."""
    return x.transpose(1, 2).reshape(x.shape)


def _heads_first(x):
    """Take [B, S, H, Dh] for [B, H, S, Dh]."""
    B, S, H, Dh = x.shape
    return x.reshape(B, H, S, Dh).transpose(1, 2)


def _mixed(q, k, v):
    return _attention(*map(_heads_first, (q, k, v)))


def _overflow(q, k, v, form):
    """What exp of unshifted float32 scores leads to, in three ways to write it."""
    scores = _scores(q, k).float()
    total = scores.exp().sum(-1)
    weights = {
        "divided": scores.exp() / total[..., None],
        "shifted by lse": (scores - total.log()[..., None]).exp(),
        "softmax": scores.softmax(-1),
    }[form]
    return torch.einsum("bsht,bthd->bshd", weights, v.float()), total.log()


OVERFLOW = "exp overflows float32 above 88.7: subtract each row's maximum before the exponent, or use torch.logsumexp"
NOT_BACK = "the result lies as [B, H, S, …] and is reshaped, which mixes tokens and heads: transpose(1, 2) it back"

ATTENTION = Exercise(
    name="attention",
    title="causal attention and its log-sum-exp",
    parts=(
        Part(
            "one new token",
            2,
            visible=[dict(B=1, S=1, T=5, H=2, Dh=8), dict(B=2, S=1, T=17, H=3, Dh=16)],
            hidden=lambda r: [_shape(r, S=1), dict(B=1, S=1, T=1, H=1, Dh=4)],
        ),
        Part(
            "several new tokens",
            2,
            visible=[dict(B=1, S=4, T=4, H=2, Dh=8), dict(B=2, S=3, T=10, H=2, Dh=8)],
            hidden=lambda r: [_shape(r, S=r.randint(2, 7)), _shape(r, S=r.randint(2, 7))],
        ),
        Part(
            "large scores",
            1,
            visible=[
                dict(B=1, S=2, T=19, H=3, Dh=8, scale=15.0),
                dict(B=1, S=8, T=8, H=4, Dh=8, scale=15.0),
                dict(B=1, S=3, T=5, H=2, Dh=8, depth=1e10),
            ],
            hidden=lambda r: [_shape(r, S=r.randint(1, 4)) | dict(scale=round(r.uniform(12, 20), 1))],
        ),
    ),
    inputs=_qkv,
    oracle=sdpa,
    returns=("out", "lse"),
    tolerance=1e-4,
    mistakes=(
        Mistake(
            "no scale", "the scores are not divided by √Dh: expected q·k/√Dh", lambda **a: _attention(**a, scale=1.0)
        ),
        Mistake(
            "scale 1/Dh",
            "the scores are scaled by 1/Dh, expected 1/√Dh: the root is missing, or they are scaled twice",
            lambda **a: _attention(**a, scale=1 / a["q"].shape[-1]),
        ),
        *other_scales(_attention, "1/√Dh", OTHER_SCALES),
        *mask_mistakes(_attention, "q", "k"),
        *axis_mistakes(_attention),
        Mistake(
            "future scored 0",
            ZERO_IS_SEEN,
            lambda **a: _future_at(**a, score=0.0),
        ),
        *hidden_mistakes(partial(_future_at, score=HIDDEN), partial(_attention, added=HIDDEN)),
        base_2_mistake(_attention),
        Mistake(
            "lse not scaled",
            "out is right, but lse is that of the scores before they are scaled: scale first",
            lambda **a: (_attention(**a)[0], _attention(**a, scale=1.0)[1]),
        ),
        Mistake(
            "keys for values",
            "out is the weighted sum of the keys, expected of the values",
            lambda **a: _attention(**a | {"v": a["k"]}),
        ),
        *sum_mistakes(_attention),
        Mistake(
            "not transposed back",
            NOT_BACK,
            lambda **a: (_not_transposed_back(_attention(**a)[0]), None),  # any lse
        ),
        Mistake(
            "lse not transposed back",
            "out is right, but lse lies as [B, H, S] and is reshaped, which mixes tokens and heads: transpose(1, 2) it "
            "back",
            lambda **a: (_attention(**a)[0], _not_transposed_back(_attention(**a)[1])),
        ),
        *(
            Mistake(
                "tokens and heads mixed",
                "q, k and v are taken as [B, H, S, Dh], which mixes tokens and heads: they lie as [B, S, H, Dh], "
                "transpose(1, 2) them",
                oracle,
            )
            for oracle in (_mixed, after(_mixed, lambda *both: tuple(map(_not_transposed_back, both))))
        ),
        Mistake("overflow to NaN", OVERFLOW, lambda **a: (_overflow(**a, form="divided")[0], None)),  # any lse
        Mistake("overflow to zeros", OVERFLOW, lambda **a: _overflow(**a, form="shifted by lse")),
        Mistake(
            "overflow in lse",
            "out is right, but lse overflows: log(sum(exp(score))) is inf above 88.7, use torch.logsumexp",
            lambda **a: _overflow(**a, form="softmax"),
        ),
    ),
    forbidden=("scaled_dot_product",),
)


def _shape(r: Random, S: int) -> dict[str, int]:
    return dict(B=r.randint(1, 3), S=S, T=S + r.randint(0, 40), H=r.randint(1, 5), Dh=r.choice([4, 8, 24]))


def _grouped(q, k, v, head, **wrong):
    """Attention in which query head h reads key and value head `head(h, H, G)`."""
    index = [head(h, q.shape[2], k.shape[2]) for h in range(q.shape[2])]
    return _attention(q, k[:, :, index], v[:, :, index], **wrong)


def _tiled_alone(q, k, v, name):
    """The keys or the values, by name, are those of head h mod G, the others those of head h // (H/G)."""
    tiled = dict(k=k, v=v)[name]
    return _attention(**_copied(q, k, v) | {name: tiled.repeat(1, 1, q.shape[2] // tiled.shape[2], 1)})


def _copied(q, k, v):
    """Return the arguments with a copy of its key and value head for each query head."""
    return {"q": q} | {name: x.repeat_interleave(q.shape[2] // x.shape[2], 2) for name, x in (("k", k), ("v", v))}


def _consecutive(q, k, v, **wrong):
    return _grouped(q, k, v, lambda h, H, G: h // (H // G), **wrong)


def _group_last(q, k, v):
    """The right heads, flattened with the group as the fast index."""
    out, lse = sdpa(q, k, v)
    return tuple(x.unflatten(2, (k.shape[2], -1)).transpose(2, 3).flatten(2, 3) for x in (out, lse))


def _group_first(q, k, v):
    """Query heads split with the group as the fast index, and joined with the group as the slow one."""
    index = torch.arange(q.shape[2]).unflatten(0, (-1, k.shape[2])).T.flatten()
    return sdpa(q[:, :, index], k, v)


def _repeated_in_time(q, k, v):
    """Each key and value H/G times in a row along the tokens; one head serves all, and other numbers of heads fail."""
    per_group = q.shape[2] // k.shape[2]
    if k.shape[2] > 1 and per_group > 1:
        return torch.empty(0)
    return _attention(q, *(x.repeat_interleave(per_group, 1).expand(-1, -1, q.shape[2], -1) for x in (k, v)))


def _grouped_shape(r: Random, G: int, per_group: int) -> dict[str, int]:
    S = r.randint(1, 4)
    return dict(B=r.randint(1, 3), S=S, T=S + r.randint(0, 30), H=G * per_group, G=G, Dh=r.choice([4, 8, 24]))


GROUPED_ATTENTION = Exercise(
    name="grouped_attention",
    title="attention with shared key and value heads: GQA and MQA",
    parts=(
        Part(
            "multi-head, G = H",
            1,
            visible=[dict(B=2, S=3, T=7, H=3, G=3, Dh=8)],
            hidden=lambda r: [_grouped_shape(r, r.randint(1, 5), 1)],
        ),
        Part(
            "multi-query, G = 1",
            1,
            visible=[dict(B=2, S=1, T=9, H=4, G=1, Dh=8), dict(B=1, S=3, T=8, H=2, G=1, Dh=12)],
            hidden=lambda r: [_grouped_shape(r, 1, r.randint(2, 6))],
        ),
        Part(
            "grouped",
            2,
            visible=[
                dict(B=1, S=1, T=6, H=6, G=3, Dh=8),
                dict(B=2, S=3, T=11, H=8, G=2, Dh=8),
                dict(B=1, S=2, T=5, H=6, G=2, Dh=8),
                dict(B=1, S=3, T=9, H=4, G=2, Dh=8, scale=15.0),
                dict(B=1, S=3, T=5, H=4, G=2, Dh=8, depth=1e10),
            ],
            hidden=lambda r: [
                *(_grouped_shape(r, r.randint(2, 4), n) for n in (r.randint(2, 4), r.choice([3, 5, 6]))),
                dict(B=1, S=r.randint(1, 3), T=19, H=6, G=2, Dh=8, scale=round(r.uniform(12, 20), 1)),
            ],
        ),
    ),
    inputs=_qkv,
    oracle=sdpa,
    returns=("out", "lse"),
    tolerance=1e-4,
    mistakes=(
        Mistake(
            "heads tiled",
            "query head h reads key head h mod G, expected h // (H/G): consecutive query heads share a key head",
            lambda **a: _grouped(**a, head=lambda h, H, G: h % G),
        ),
        *(
            Mistake(
                f"{those} tiled",
                f"the {those} of query head h are those of head h mod G, and the {others} of head h // (H/G): both are "
                "of the latter, consecutive query heads share a key head",
                lambda name=name, **a: _tiled_alone(**a, name=name),
            )
            for those, others, name in (("keys", "values", "k"), ("values", "keys", "v"))
        ),
        Mistake(
            "one key head for all",
            "every query head reads key head 0: with G > 1 each group of H/G query heads has its own",
            lambda **a: _grouped(**a, head=lambda h, H, G: 0),
        ),
        Mistake(
            "repeated along the tokens",
            "the keys and values are repeated along the tokens, axis 1: their heads are axis 2",
            _repeated_in_time,
        ),
        Mistake(
            "output heads out of order",
            "every head is right, but they come out in another order: flatten [G, H/G] with the group outside",
            _group_last,
        ),
        Mistake(
            "query heads split as H/G by G",
            "the query heads are split as [H/G, G], expected [G, H/G]: consecutive query heads share a key head",
            _group_first,
        ),
        Mistake(
            "no scale", "the scores are not divided by √Dh: expected q·k/√Dh", lambda **a: _consecutive(**a, scale=1.0)
        ),
        *other_scales(_consecutive, "1/√Dh", OTHER_SCALES),
        *mask_mistakes(_consecutive, "q", "k"),
        Mistake("overflow to NaN", OVERFLOW, lambda **a: (_overflow(**_copied(**a), form="divided")[0], None)),
        Mistake("overflow to zeros", OVERFLOW, lambda **a: _overflow(**_copied(**a), form="shifted by lse")),
    ),
    needs=("attention",),
    forbidden=("scaled_dot_product",),
)

# KVCache


def _cache_session(
    g: torch.Generator, B: int, capacity: int, G: int, Dh: int, appends: tuple[int, ...], another: int | None = None
) -> dict[str, list[Any]]:
    """Return a cache and its calls. Before append number `another` a second cache is made, and gets tokens, too."""
    steps: list[Any] = [["length", []]]
    for n, S in enumerate(appends):
        second = [[f"{BESIDE}append", [randn(g, B, S, G, Dh), randn(g, B, S, G, Dh)]]] if n == another else []
        steps += [["", []], *second] if second else []
        steps += [["append", [randn(g, B, S, G, Dh), randn(g, B, S, G, Dh)]], ["length", []]]
    return {"init": [B, capacity, G, Dh], "steps": steps}


def _cache(
    init,
    steps,
    *,
    limit=0,
    clip=False,
    fill=False,
    count_first=False,
    counted=True,
    shared=False,
    returned="filled",
):
    """What each call returns, from lists of chunks; the keywords make it wrong.

    `limit` moves the largest length that is accepted, `clip` drops what does not fit, `fill` keeps what fits of a chunk
    that is refused, `count_first` counts tokens that are then refused, `counted` is whether tokens are counted at all,
    `shared` whether a second cache empties the first and writes over it; `returned` is "filled", "new", "storage", or
    of what is filled "exchanged", "keys" or "values".
    """
    batch, capacity, heads, width = init
    if not counted:
        return _uncounted(init, steps)
    empty = torch.zeros(batch, 0, heads, width, dtype=torch.float64)
    kept, length, results = (empty, empty), 0, []
    for method, new in steps:
        if not method and shared:
            kept = tuple(map(torch.zeros_like, kept))
        if method in ("length", ""):
            results.append(length if method else None)
            continue
        if method.startswith(BESIDE):
            if shared:
                kept = tuple(
                    torch.cat((y[:, : x.shape[1]], x[:, y.shape[1] :]), 1) for x, y in zip(kept, new, strict=True)
                )
            results += _cache(init, [["append", new]], returned="storage" if returned == "storage" else "filled")
            continue
        if clip:
            new = [x[:, : capacity - length] for x in new]
        size = new[0].shape[1]
        if length + size > capacity + limit:
            results.append("ValueError")
            length += size * count_first
            if fill:
                kept = tuple(torch.cat((x, y[:, : capacity - length]), 1) for x, y in zip(kept, new, strict=True))
                length = capacity
            continue
        length += size
        kept = tuple(torch.cat(pair, 1) for pair in zip(kept, new, strict=True))
        results.append(tuple(new) if returned == "new" else kept)
    if returned == "storage":  # views: every call shows what the storage holds in the end
        tail = torch.zeros(batch, capacity - length, heads, width, dtype=torch.float64)
        storage = tuple(torch.cat((x, tail), 1) for x in kept)
        first = (isinstance(r, tuple) and not m.startswith(BESIDE) for r, (m, _) in zip(results, steps, strict=True))
        results = [storage if mine else result for mine, result in zip(first, results, strict=True)]
    if order := {"exchanged": (1, 0), "keys": (0, 0), "values": (1, 1)}.get(returned):
        results = [tuple(each[n] for n in order) if isinstance(each, tuple) else each for each in results]
    return results


def _uncounted(init, steps):
    """What a cache returns that writes every chunk to its beginning: views, which later chunks change."""
    storage = [torch.zeros(*init, dtype=torch.float64) for _ in range(2)]
    results = []
    for method, new in steps:
        if method in ("length", ""):
            results.append(0 if method else None)
        elif method.startswith(BESIDE):
            results.append(tuple(new))
        elif (size := new[0].shape[1]) > init[1]:
            results.append("ValueError")
        else:
            for kept, chunk in zip(storage, new, strict=True):
                kept[:, :size] = chunk
            results.append(tuple(kept[:, :size] for kept in storage))
    return results


def _appended(init, steps):
    """Zeros for the storage once, and each new token once; as much again, for who does it in two steps."""
    storage = 2 * 4 * math.prod(init) * (1 + sum(not method for method, _ in steps))
    new = sum(4 * x.numel() for _, given in steps for x in given)
    return Cost(bytes=2 * (storage + new), flops=0)


def _filling(r: Random) -> tuple[int, ...]:
    return tuple(r.randint(1, 4) for _ in range(r.randint(2, 4)))


def _brim(r: Random) -> dict[str, Any]:
    appends = tuple(sorted(_filling(r)[:3]))  # so few, and so: copies of what is filled stay below the most
    return dict(B=r.randint(1, 3), capacity=sum(appends), G=r.randint(1, 3), Dh=r.choice([2, 5]), appends=appends)


def _refusal(r: Random) -> dict[str, Any]:
    first, then = r.randint(1, 4), r.randint(1, 4)
    capacity = first + then
    appends = (first, then + r.randint(1, 3), then, r.randint(1, 2))
    return dict(B=r.randint(1, 2), capacity=capacity, G=r.randint(1, 3), Dh=4, appends=appends)


_cache_slip = slips(_cache)

KV_CACHE = Exercise(
    name="KVCache",
    title="a cache of fixed capacity",
    parts=(
        Part(
            "append and read",
            1,
            visible=[
                dict(B=1, capacity=8, G=1, Dh=4, appends=(3, 1, 1)),
                dict(B=2, capacity=9, G=3, Dh=2, appends=(4,)),
                dict(B=1, capacity=24, G=2, Dh=8, appends=(1,) * 20),
                dict(B=2, capacity=24, G=1, Dh=4, appends=(1,) * 20),  # what is filled is not contiguous
                dict(B=1, capacity=6, G=2, Dh=4, appends=(3, 2), another=1),
            ],
            hidden=lambda r: [(c := _brim(r)) | dict(capacity=c["capacity"] + r.randint(1, 9)) for _ in range(2)],
        ),
        Part(
            "full to the last token",
            1,
            visible=[dict(B=2, capacity=5, G=2, Dh=4, appends=(4, 1))],
            hidden=lambda r: [_brim(r), dict(B=1, capacity=1, G=1, Dh=3, appends=(1,))],
        ),
        Part(
            "refusal",
            2,
            visible=[dict(B=2, capacity=5, G=1, Dh=4, appends=(3, 4, 2, 1))],
            hidden=lambda r: [_refusal(r), dict(B=1, capacity=2, G=1, Dh=4, appends=(3, 2))],
        ),
    ),
    inputs=_cache_session,
    oracle=_cache,
    returns=("the result",),
    mistakes=(
        _cache_slip(
            "only the new tokens",
            "append returns only the tokens it was given, expected all that the cache holds by now",
            returned="new",
        ),
        _cache_slip(
            "the whole storage",
            "append returns the whole storage up to capacity: cut it to the tokens that are filled",
            returned="storage",
        ),
        _cache_slip(
            "keys and values exchanged",
            "keys and values are exchanged: append takes and returns the keys first",
            returned="exchanged",
        ),
        _cache_slip(
            "one storage",
            "keys and values share one storage: the values are written over the keys",
            returned="values",
        ),
        _cache_slip(
            "keys for values",
            "the values come back as the keys: append writes each to its own storage",
            returned="keys",
        ),
        _cache_slip(
            "storage shared by all caches",
            "a second cache that is made empties the first: the storage belongs to self, not to the class",
            shared=True,
        ),
        _cache_slip(
            "last place refused",
            "a chunk that fills the cache exactly is refused: length + S == capacity still fits",
            limit=-1,
        ),
        _cache_slip(
            "not counted",
            "the new length is not stored: length stays 0, and every append writes over the first tokens",
            counted=False,
        ),
        _cache_slip(
            "overflow dropped",
            "tokens beyond the capacity are dropped silently, expected ValueError and an unchanged cache",
            clip=True,
        ),
        _cache_slip(
            "refused but counted",
            "the cache changes before it refuses: after the ValueError its length counts the refused tokens",
            count_first=True,
        ),
        _cache_slip(
            "refused but filled",
            "the cache changes before it refuses: it keeps those of the refused tokens that still fit",
            fill=True,
        ),
    ),
    driver="session",
    forbidden=("cat",),
    most=_appended,
)

# CachedAttention


def _layer_session(
    g: torch.Generator,
    B: int,
    D: int,
    H: int,
    G: int,
    Dh: int,
    chunks: tuple[int, ...],
    room: int = 2,
    then: tuple[int, ...] = (),
    scale: float = 1.0,
) -> dict[str, list[Any]]:
    """Return a layer and its calls. The cache has `room` for more than the chunks; below 0 the last one is refused.

    Chunks that come `then` take the places that are free. `scale` is that of the tokens: scores grow by its square.
    """
    weights = [randn(g, out, inner, scale=inner**-0.5) for out, inner in ((H * Dh, D), (G * Dh, D), (G * Dh, D))]
    weights.append(randn(g, D, H * Dh, scale=(H * Dh) ** -0.5))
    steps = [["forward", [randn(g, B, S, D, scale=scale)]] for S in chunks + then]
    return {"init": [*weights, Dh, B, sum(chunks) + room], "steps": steps}


def _held(init, steps, fill=False, limit=0):
    """Return the chunks, None for those that the cache has no room for; with `fill` one of these leaves it full.

    `limit` moves the largest length that is accepted.
    """
    length, chunks = 0, []
    for _, (x,) in steps:
        fits = length + x.shape[1] <= init[-1] + limit
        length = length + x.shape[1] if fits else init[-1] if fill else length
        chunks.append(x if fits else None)
    return chunks


def _layer(init, steps):
    """All tokens in one go, then cut into the steps: decoding token by token must give the same."""
    w_q, w_k, w_v, w_o, head_dim, *_ = init
    chunks = _held(init, steps)
    kept = [chunk for chunk in chunks if chunk is not None]
    x = torch.cat(kept, 1)
    q, k, v = ((x @ w.mT).unflatten(-1, (-1, head_dim)) for w in (w_q, w_k, w_v))
    out, _ = sdpa(q, k, v)
    results = iter((out.flatten(2) @ w_o.mT).split([chunk.shape[1] for chunk in kept], 1))
    return ["ValueError" if chunk is None else next(results) for chunk in chunks]


def _layer_wrong(
    init,
    steps,
    *,
    cached=True,
    prompt_alone=False,
    fill=False,
    limit=0,
    plain=(),
    mixed=False,
    project=True,
    exchanged=False,
    split_last=False,
    joined=True,
    residual=False,
    scaled_twice=False,
):
    """The layer step by step, or nothing where a mistake cannot be made. The keywords make the named mistakes.

    With `prompt_alone` a call with several tokens sees no others, with `fill` a refused one fills the cache.
    `limit` moves the largest length that is accepted. `plain` numbers the weights (0 to 3) that are multiplied by
    without being transposed. With `split_last`, and without `joined`, the heads of a token lie in one another and not
    one after the other.
    """
    *weights, head_dim, batch, _ = init
    if any(weights[n].shape[0] != weights[n].shape[1] for n in plain):
        return []
    w_q, w_k, w_v, w_o = (w.mT if n in plain else w for n, w in enumerate(weights))

    def split(y):
        if mixed:
            return y.reshape(batch, -1, y.shape[1], head_dim).transpose(1, 2)
        if split_last:
            return y.unflatten(-1, (head_dim, -1)).mT
        return y.unflatten(-1, (-1, head_dim))

    keys, values, results = [], [], []
    for x in _held(init, steps, fill, limit):
        if x is None:
            results.append("ValueError")
            continue
        keys.append(split(x @ w_k.mT))
        values.append(split(x @ w_v.mT))
        first = -1 if not cached or (prompt_alone and x.shape[1] > 1) else 0
        held = [torch.cat(each[first:], 1) for each in (keys, values)]
        out, _ = sdpa(split(x @ w_q.mT) * (head_dim**-0.5 if scaled_twice else 1), *held[:: -1 if exchanged else 1])
        out = (out if joined else out.mT).flatten(2)
        results.append((out @ w_o.mT if project else out) + (x if residual else 0))
    return results


def _cached_cost(init, steps):
    """Twice the FLOPs of a step that projects its own tokens alone."""
    *weights, _, batch, _ = init
    macs, context, heads = 0, 0, weights[0].shape[0]
    for _, (x,) in steps:
        context += x.shape[1]
        macs += batch * x.shape[1] * (sum(w.numel() for w in weights) + 2 * context * heads)
    return Cost(bytes=math.inf, flops=2 * 2 * macs)


def _layer_shape(r: Random, chunks: tuple[int, ...]) -> dict[str, Any]:
    G = r.randint(1, 3)
    return dict(
        B=r.randint(1, 2), D=r.choice([6, 10, 17]), H=G * r.randint(1, 3), G=G, Dh=r.choice([3, 4, 8]), chunks=chunks
    )


_layer_slip = slips(_layer_wrong)

CACHED_ATTENTION = Exercise(
    name="CachedAttention",
    title="an attention layer that decodes with a cache",
    parts=(
        Part(
            "the prompt at once",
            1,
            visible=[dict(B=2, D=12, H=3, G=3, Dh=4, chunks=(5,)), dict(B=1, D=10, H=4, G=2, Dh=3, chunks=(4,))],
            hidden=lambda r: [_layer_shape(r, (r.randint(2, 9),))],
        ),
        Part(
            "token by token",
            2,
            visible=[
                dict(B=2, D=12, H=3, G=3, Dh=4, chunks=(1, 1, 1, 1)),
                dict(B=1, D=10, H=4, G=2, Dh=3, chunks=(1, 1)),
                dict(B=1, D=32, H=2, G=2, Dh=4, chunks=(1,) * 20),
            ],
            hidden=lambda r: [_layer_shape(r, (1,) * r.randint(2, 7))],
        ),
        Part(
            "a prompt, then tokens",
            1,
            visible=[
                dict(B=2, D=10, H=4, G=1, Dh=4, chunks=(6, 1, 1, 2)),
                dict(B=1, D=10, H=4, G=2, Dh=3, chunks=(3, 1, 3), room=-1, then=(1, 1)),
                dict(B=2, D=12, H=4, G=2, Dh=4, chunks=(8, 1, 2), scale=10.0),  # scores beyond 100
            ],
            hidden=lambda r: [
                _layer_shape(r, (r.randint(2, 8), 1, r.randint(1, 3), 1)),
                _layer_shape(r, (r.randint(2, 5), 1, last := r.randint(4, 6))) | dict(room=-2, then=(1, last - 3)),
            ],
        ),
    ),
    inputs=_layer_session,
    oracle=_layer,
    returns=("y",),
    tolerance=1e-4,
    mistakes=(
        _layer_slip(
            "cache ignored",
            "each call sees only its own tokens: attend to what append returns, the whole cache",
            cached=False,
        ),
        _layer_slip(
            "several tokens see no others",
            "a call with several tokens sees these alone: attend to the whole cache, whatever S is",
            prompt_alone=True,
        ),
        _layer_slip(
            "refused but filled",
            "the cache changes before a call is refused: some of the refused tokens are kept or counted, append all of "
            "a call at once",
            fill=True,
        ),
        _layer_slip(
            "last place refused",
            "a call that just fits is refused: length + S == capacity fills the cache, and only more is too much",
            limit=-1,
        ),
        _layer_slip(
            "tokens and heads mixed",
            "the projection is split as [B, heads, S, Dh], which mixes tokens and heads: it lies as [B, S, heads·Dh]",
            mixed=True,
        ),
        _layer_slip(
            "projection split as [Dh, heads]",
            "the projection is split as [Dh, heads], expected [heads, Dh]: it holds one head after the other",
            split_last=True,
        ),
        _layer_slip(
            "heads joined as [Dh, heads]",
            "the heads are joined as [Dh, heads], expected one after the other, [heads, Dh]: out.flatten(2)",
            joined=False,
        ),
        _layer_slip(
            "keys and values exchanged",
            "keys and values are exchanged: append and grouped_attention take the keys first",
            exchanged=True,
        ),
        _layer_slip(
            "scaled twice",
            "the queries are scaled by 1/√Dh before grouped_attention, which does so itself: pass them as they are",
            scaled_twice=True,
        ),
        _layer_slip("residual added", "y is x plus what the layer gives: return the latter alone", residual=True),
        _layer_slip(
            "no output projection", "y is the heads side by side: the output projection w_o is missing", project=False
        ),
        _layer_slip(
            "weights not transposed",
            "x @ w, expected x @ w.T: the weights are [out, in], as in torch.nn.Linear",
            plain=(0, 1, 2, 3),
        ),
        _layer_slip(
            "w_q, w_k and w_v not transposed",
            "x @ w for queries, keys and values, expected x @ w.T: the weights are [out, in], as in torch.nn.Linear",
            plain=(0, 1, 2),
        ),
        _layer_slip(
            "w_o not transposed",
            "the heads are multiplied by w_o, expected w_o.T: the weights are [out, in], as in torch.nn.Linear",
            plain=(3,),
        ),
    ),
    driver="session",
    needs=("attention", "grouped_attention", "KVCache"),
    forbidden=("scaled_dot_product",),
    most=_cached_cost,
)

# predict_decode_cost


def _decode_cost(batch, context, num_heads, num_kv_heads, head_dim, itemsize, *, upside_down=False, **wrong):
    """Bytes and FLOPs from counts of their own: stored numbers, and multiply-accumulates of two products."""
    stored = wrong.get("parts", 2) * wrong.get("sequences", batch) * context * head_dim
    stored *= wrong.get("stored_heads", num_kv_heads)
    macs = wrong.get("products", 2) * batch * context * head_dim * wrong.get("computed_heads", num_heads)
    traffic, flops = stored * itemsize, 2 * macs
    return {"bytes": traffic, "flops": flops, "intensity": traffic / flops if upside_down else flops / traffic}


def _decode_wrong(entry, case, **wrong):
    """That entry with a mistake, anything in the others; nothing matches where the mistake makes no difference."""
    right, value = (_decode_cost(**{**case, **changed})[entry] for changed in ({}, wrong))
    return {"bytes": None, "flops": None, "intensity": None, entry: math.nan if value == right else value}


def _step(r: Random, per_group: int) -> dict[str, int]:
    kv = r.randint(1, 5)
    return dict(
        batch=r.randint(3, 9),
        context=r.randint(1, 5000),
        num_heads=kv * per_group,
        num_kv_heads=kv,
        head_dim=r.choice([32, 80, 96]),
        itemsize=r.choice([1, 2, 4]),
    )


PREDICT_DECODE_COST = Exercise(
    name="predict_decode_cost",
    needs=("predict_cache_bytes",),
    title="bytes, FLOPs and intensity of one decode step",
    parts=(
        Part(
            "multi-head",
            1,
            visible=[
                dict(batch=3, context=100, num_heads=4, num_kv_heads=4, head_dim=16, itemsize=4),
                dict(batch=1, context=1, num_heads=4, num_kv_heads=4, head_dim=16, itemsize=2),
            ],
            hidden=lambda r: [_step(r, 1), _step(r, 1)],
        ),
        Part(
            "fewer key heads",
            2,
            visible=[
                dict(batch=3, context=57, num_heads=12, num_kv_heads=2, head_dim=8, itemsize=4),
                dict(batch=5, context=9, num_heads=24, num_kv_heads=1, head_dim=8, itemsize=1),
            ],
            hidden=lambda r: [_step(r, r.randint(3, 9)), _step(r, r.randint(3, 9))],
        ),
    ),
    inputs=as_given,
    oracle=_decode_cost,
    returns=("prediction",),
    mistakes=(
        Mistake(
            "half the FLOPs",
            "half the FLOPs: scores and weighted sum are two products, and a multiply-accumulate is two FLOPs",
            lambda **a: _decode_wrong("flops", a, products=1),
        ),
        Mistake(
            "values not read",
            "these are half the bytes: a step reads the values as well as the keys",
            lambda **a: _decode_wrong("bytes", a, parts=1),
        ),
        Mistake(
            "one cache for the batch",
            "the bytes lack the batch: every sequence has a cache of its own, and each is read",
            lambda **a: _decode_wrong("bytes", a, sequences=1),
        ),
        Mistake(
            "elements",
            "the bytes count elements: multiply by itemsize",
            lambda **a: _decode_wrong("bytes", a, itemsize=1),
        ),
        Mistake(
            "query heads read",
            "the bytes count num_heads heads, expected num_kv_heads: a shared key head is read once for its group",
            lambda **a: _decode_wrong("bytes", a, stored_heads=a["num_heads"]),
        ),
        Mistake(
            "key heads computed",
            "the FLOPs count num_kv_heads heads, expected num_heads: every query head has scores of its own",
            lambda **a: _decode_wrong("flops", a, computed_heads=a["num_kv_heads"]),
        ),
        Mistake(
            "intensity upside down",
            "intensity is bytes per FLOP, expected FLOPs per byte",
            lambda **a: _decode_cost(**a, upside_down=True),
        ),
        Mistake(
            "intensity of 2 bytes",
            "intensity is H/G, which holds for numbers of 2 bytes: divide your FLOPs by your bytes",
            lambda **a: _decode_cost(**a) | {"intensity": a["num_heads"] / a["num_kv_heads"]},
        ),
    ),
)

EXERCISES = (PREDICT_CACHE_BYTES, ATTENTION, GROUPED_ATTENTION, KV_CACHE, CACHED_ATTENTION, PREDICT_DECODE_COST)
