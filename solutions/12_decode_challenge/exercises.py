"""Lesson 12: the decode challenge. Angles in bfloat16, one buffer, a step from naive to absorbed to fused."""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random
from typing import Any

import torch
from torch import Tensor

from autograder.judging.exercise import Arguments, Exercise, Mistake, Part, Speed, randn
from mla_ref.attention import sdpa
from mla_ref.challenge import THETA, bfloat16_angles
from mla_ref.hardware.cost import Cost
from mla_ref.hardware.devices import DEVICES
from mla_ref.rope import apply_rope, rope_cos_sin

from ..drawing import BF16, FAR_BELOW_0, HALF, V3, set_level, widths
from ..oracles import FINITE, HIDDEN, INF, slips, softmax_from

H100, H200 = DEVICES["h100"], DEVICES["h200"]
LAYER = dict(**V3, D=7168, Rq=1536)

# --- challenge_bytes --------------------------------------------------------------------------------------------------


def _counted(
    B: int,
    T: int,
    D: int,
    H: int,
    Rq: int,
    R: int,
    Dn: int,
    Dr: int,
    Dv: int,
    rate: float,
    bandwidth: float,
    *,
    word: int = 2,
    caches: int = 1,
    keys: int | None = None,
    weights: Callable[[int, int], int] = lambda all_of_them, out: all_of_them,
    flops: int = 2,
    wide: int | None = None,
    longer: Callable[..., float] = max,
) -> dict[str, float]:
    """Return the right numbers. Each keyword puts a wrong one in place of a right one."""
    out = H * Dv * D
    held = weights(D * (Rq + R + Dr) + Rq * H * (Dn + Dr) + H * R * (Dn + Dv) + out, out)
    cache = word * caches * B * T * (R + Dr)
    expanded = word * B * T * H * (Dn + Dr + Dv if keys is None else keys)
    work = flops * B * held + flops * B * T * H * (2 * R + Dr if wide is None else wide)
    moved = word * held + cache
    return {
        "cache_bytes": cache,
        "expanded_bytes": expanded,
        "weight_bytes": word * held,
        "flops": work,
        "floor_us": 1e6 * longer(moved / bandwidth, work / rate),
    }


_count_slip = slips(_counted)
ON_H200 = dict(rate=H200.rate(), bandwidth=H200.bandwidth())
ON_H100 = dict(rate=H100.rate(), bandwidth=H100.bandwidth())


def _asked(r: Random, ridge: float, **fixed: Any) -> dict[str, Any]:
    bandwidth = r.uniform(0.5e12, 8e12)
    layer = dict(D=r.randint(100, 9000), H=r.randint(2, 128), Rq=r.randint(64, 2000)) | widths(r)
    return (
        dict(B=r.randint(2, 200), T=r.randint(1, 9999))
        | layer
        | dict(rate=bandwidth * ridge, bandwidth=bandwidth)
        | fixed
    )


def _in_order(_: torch.Generator | None, **case: Any) -> Arguments:
    names = ("B", "T", "D", "H", "Rq", "R", "Dn", "Dr", "Dv", "rate", "bandwidth")
    return {name: case[name] for name in names}


BYTES = Exercise(
    name="challenge_bytes",
    title="prediction: the cache, its expansion, and the floor of a step",
    parts=(
        Part("the challenge", 1, visible=[dict(B=128, T=6145, **LAYER, **ON_H200)]),
        Part(
            "any layer and device",
            2,
            visible=[
                dict(B=3, T=513, D=640, H=5, Rq=96, R=160, Dn=48, Dr=16, Dv=32, **ON_H100),
                dict(B=200, T=3000, D=640, H=64, Rq=96, R=320, Dn=96, Dr=32, Dv=56, rate=2e13, bandwidth=1e12),
            ],
            hidden=lambda r: [_asked(r, 300), _asked(r, 5), _asked(r, 300, B=1, H=2), _asked(r, 20, T=1)],
        ),
    ),
    inputs=_in_order,
    oracle=_counted,
    returns=("prediction",),
    mistakes=(
        _count_slip("words for bytes", "the bytes are words: each has two bytes", word=1),
        _count_slip(
            "a cache for each head",
            "cache_bytes counts a cache for each head: all heads read the same R+Dr words of a token",
            lambda H, **_: dict(caches=H),
        ),
        _count_slip(
            "keys without position",
            "expanded_bytes lacks the keys' RoPE part: naive copies it for every head, Dn + Dr + Dv words in all",
            lambda Dn, Dv, **_: dict(keys=Dn + Dv),
        ),
        _count_slip(
            "output projection left out",
            "the weights lack the output projection, [D, H·Dv]",
            weights=lambda all_of_them, out: all_of_them - out,
        ),
        _count_slip("MACs for FLOPs", "the arithmetic is in MACs: one multiply-accumulate is two FLOPs", flops=1),
        _count_slip(
            "scores alone",
            "flops lacks the weighted sum: a token and a head take R + Dr for the score, and R more for the value",
            lambda R, Dr, **_: dict(wide=R + Dr),
        ),
        _count_slip(
            "memory alone",
            "floor_us is the time of the bytes alone: where the arithmetic takes longer, that counts",
            longer=lambda memory, compute: memory,
        ),
        _count_slip(
            "both times added",
            "floor_us adds the two times: they can overlap completely, so the longer one is the least",
            longer=lambda memory, compute: memory + compute,
        ),
    ),
)

# --- challenge_angles -------------------------------------------------------------------------------------------------


def _positions(g: torch.Generator | None, first: int, count: int, dim: int, step: int = 1) -> Arguments:
    return {"positions": torch.arange(first, first + count * step, step), "dim": dim}


def _exact(positions: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    return rope_cos_sin(positions, dim, dtype=torch.float64)


def _angles(positions: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    cos, sin = bfloat16_angles(positions, dim)
    return cos.double(), sin.double()


def _partly(positions: Tensor, dim: int, where: str) -> tuple[Tensor, Tensor]:
    """Return angles of which only the positions, the frequencies or the product are rounded, or all but the latter."""
    pair = torch.arange(dim // 2, dtype=torch.float64)
    frequencies = THETA ** (-pair / (dim // 2))
    if where in ("frequencies", "factors"):
        frequencies = (THETA ** (-pair.bfloat16() / (dim // 2))).double()
    held = positions.bfloat16() if where in ("positions", "factors") else positions
    angles = held.double()[:, None] * frequencies
    if where == "product":
        angles = angles.bfloat16().double()
    return angles.cos(), angles.sin()


def _of_exact_base(positions: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    pair = torch.arange(dim // 2, dtype=BF16)
    frequencies = (float(THETA) ** (-pair / (dim // 2)).double()).to(BF16)
    angles = positions.to(BF16)[:, None] * frequencies
    return angles.cos().double(), angles.sin().double()


def _of_pairs(positions: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    pair = torch.arange(dim // 2, dtype=BF16)
    angles = positions.to(BF16)[:, None] * THETA ** (-pair / dim)
    return angles.cos().double(), angles.sin().double()


NOT_ROUNDED = (
    "the angles are exact: the challenge rounds positions, frequencies and their products to bfloat16, so that "
    "positions beyond 256 share angles"
)
IN_PART = "a part of the angle is not rounded: position, frequency and their product are bfloat16 each"

ANGLES = Exercise(
    name="challenge_angles",
    title="angles in bfloat16",
    parts=(
        Part(
            "up to position 256",
            1,
            visible=[dict(first=0, count=33, dim=64), dict(first=3, count=5, dim=24)],
            hidden=lambda r: [
                dict(first=0, count=257, dim=32),
                dict(first=r.randint(1, 99), count=r.randint(2, 50), dim=16),
                dict(first=200, count=1, dim=8),
            ],
        ),
        Part(
            "beyond",
            2,
            visible=[dict(first=250, count=20, dim=64), dict(first=6000, count=40, dim=64)],
            hidden=lambda r: [
                dict(first=r.randint(257, 500), count=r.randint(20, 99), dim=64),
                dict(first=r.randint(1000, 4000), count=r.randint(20, 99), dim=r.choice([24, 48])),
                dict(first=1, count=60, dim=32, step=r.randint(90, 130)),
            ],
        ),
    ),
    inputs=_positions,
    oracle=_angles,
    returns=("cos", "sin"),
    like=(BF16, BF16),
    tolerance=3e-3,
    mistakes=(
        Mistake("exact angles", NOT_ROUNDED, _exact),
        *(
            Mistake("rounded in part", IN_PART, lambda positions, dim, where=where: _partly(positions, dim, where))
            for where in ("positions", "frequencies", "product", "factors")
        ),
        Mistake(
            "base not rounded",
            "the base of the frequencies is exact: bfloat16 has no 10000, PyTorch takes 9984; leave the power to it",
            _of_exact_base,
        ),
        Mistake(
            "half the exponent",
            "the frequencies fall to 1/100 only: the exponent of pair i is i / (dim/2), not i / dim",
            _of_pairs,
        ),
        Mistake("cos and sin swapped", "cos and sin are swapped", lambda **a: _angles(**a)[::-1]),
    ),
)

# --- the steps --------------------------------------------------------------------------------------------------------


def _step_operands(
    g: torch.Generator | None,
    B: int,
    length: int,
    H: int = 4,
    D: int = 80,
    Rq: int = 48,
    R: int = 64,
    Dn: int = 24,
    Dr: int = 32,
    Dv: int = 16,
    room: int = 3,
    scale: float = 1.5,
    peak: float = 0.0,
    dtype: torch.dtype = BF16,
) -> Arguments:
    """Return a layer, a new token for each sequence, and a cache with `room` places behind what it holds.

    With a `peak`, which a first column makes that nothing else uses, it is the score of the token in the middle; one
    below 0 is all scores, alike.
    What stands there is larger. Of length 302 the position before rounds to another number, as it does not of 300.
    """
    weights = dict(
        q_down=(Rq, D), q_up=(H * (Dn + Dr), Rq), kv_down=(R + Dr, D), kv_up=(H * (Dn + Dv), R), wo=(D, H * Dv)
    )
    cache = randn(g, B, length + room, R + Dr, dtype=dtype)
    if g is not None:
        cache[:, length:] *= 4
    given = {
        "x": randn(g, B, 1, D, scale=scale, dtype=dtype),
        "cache": cache,
        "length": length,
        **{name: randn(g, *shape, scale=shape[1] ** -0.5, dtype=dtype) for name, shape in weights.items()},
        "heads": H,
    }
    if peak:
        heads = {name: given[name].unflatten(0, (H, -1)) for name in ("q_up", "kv_up")}
        for row in (given["q_down"][0], given["kv_down"][0], heads["q_up"][:, 0], heads["kv_up"][:, 0]):
            row.zero_()
        given["x"][..., 0], given["q_down"][0, 0], heads["q_up"][:, 0, 0] = 1.0, 1.0, 8.0
        heads["kv_up"][..., 0], cache[..., 0] = 0.0, 0.0
        key, where = peak * (Dn + Dr) ** 0.5 / 8, slice(length) if peak < 0 else length // 2
        heads["kv_up"][:, 0, 0], cache[:, where, 0] = 1.0, key
        if peak < 0:
            heads["q_up"][:, 1:], given["kv_down"][0, 0] = 0.0, key
    return given


def _normed(x: Tensor) -> Tensor:
    return x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt()


def _step(
    x: Tensor,
    cache: Tensor,
    length: int,
    q_down: Tensor,
    q_up: Tensor,
    kv_down: Tensor,
    kv_up: Tensor,
    wo: Tensor,
    heads: int,
    *,
    interleaved: bool = False,
    angles: Callable[[Tensor, int], tuple[Tensor, Tensor]] = _angles,
    position: int | None = None,
    turned: str = "both",
    cached: str = "projected",
    norm: bool = False,
    scale: Callable[[int, int, int], int] = lambda Dn, Dr, R: Dn + Dr,
    seen: int = 1,
    place: int = 0,
    write: bool = True,
    values_first: bool = False,
    least: float = -INF,
) -> tuple[Tensor, Tensor]:
    """Return the layer's output and its cache, by expansion. Each keyword makes a mistake.

    A maximum of at least `least` leaves no weights, where all scores are below it.
    """
    R, Dv = kv_up.shape[1], wo.shape[1] // heads
    Dr, Dn = kv_down.shape[0] - R, kv_up.shape[0] // heads - Dv
    cache, kept = cache.clone(), cache
    down, new = x @ q_down.T, (x @ kv_down.T)[:, 0]
    if norm:
        down, new = _normed(down), torch.cat((_normed(new[:, :R]), new[:, R:]), -1)
    q_nope, q_rope = (down @ q_up.T).unflatten(-1, (heads, Dn + Dr)).split((Dn, Dr), -1)
    cos, sin = angles(torch.arange(length + 2), Dr)

    def rotate(x: Tensor, first: int) -> Tensor:
        places = slice(first, first + x.shape[1])
        return apply_rope(x, cos[places], sin[places], interleaved=interleaved)

    if cached != "projected":
        new = torch.cat((new[:, :R], rotate(new[:, None, R:], length)[:, 0]), -1)
    cache[:, max(length + place, 0)] = new
    context = cache[:, : length + seen] if length + seen else cache[:, :0]
    latents, keys = context.split((R, Dr), -1)
    if turned in ("both", "query"):
        q_rope = rotate(q_rope, length if position is None else position)
    if cached == "rotated":
        keys = torch.cat((rotate(keys[:, :length], 0), keys[:, length:]), 1)
    elif turned in ("both", "keys"):
        keys = rotate(keys, 0)
    up = kv_up.unflatten(0, (heads, -1))
    w_uk, w_uv = (up[:, Dv:], up[:, :Dv]) if values_first else (up[:, :Dn], up[:, Dn:])
    k = torch.cat((torch.einsum("btr,hdr->bthd", latents, w_uk), keys[:, :, None].expand(-1, -1, heads, -1)), -1)
    v = torch.einsum("btr,hvr->bthv", latents, w_uv)
    out, lse = sdpa(torch.cat((q_nope, q_rope), -1), k, v, scale=scale(Dn, Dr, R) ** -0.5)
    out[lse < least - 104] = math.nan  # what float32's exp makes 0
    return out.flatten(2) @ wo.T, cache if write else kept


_step_slip = slips(_step)
HALVES_MESSAGE = (
    "the pairs are neighbours, (0, 1), (2, 3), …: this layer pairs element i with i + Dr/2, as rotate_halves does"
)
STEP_MISTAKES = (
    _step_slip("interleaved pairs", HALVES_MESSAGE, interleaved=True),
    _step_slip("exact angles in a step", NOT_ROUNDED, angles=_exact),
    _step_slip(
        "query at another position",
        "the query is rotated by position length − 1: it stands at position length, behind what the cache held",
        lambda length, **_: dict(position=max(length - 1, 0)),
    ),
    _step_slip(
        "query not rotated", "the query's RoPE part is not rotated: its position is length", turned="keys"
    ),
    _step_slip(
        "keys not rotated",
        "the cached keys are not rotated: the cache holds them as they were projected, so rotate what you read, all of "
        "it, from position 0 on",
        turned="query",
    ),
    *(
        _step_slip(
            "rotated key cached",
            "the new key is rotated before it is cached: this cache holds keys as they were projected, and the next "
            "step would rotate it again",
            cached=cached,
        )
        for cached in ("rotated", "rotated twice")
    ),
    _step_slip("norm applied", "latents are normalised: this layer has no norms", norm=True),
    _step_slip(
        "scale of the latent",
        "the scale is 1/√(R+Dr), 1/√576 in the challenge: scores are those of keys of Dn+Dr values, so it is 1/√192",
        scale=lambda Dn, Dr, R: R + Dr,
    ),
    _step_slip(
        "new token not attended to",
        "the new token is not attended to: length + 1 tokens are seen, the new one among them",
        lambda length, **_: dict(seen=0) if length else {},
    ),
    _step_slip(
        "place behind the new token",
        "a place more than the cache holds is attended to: length + 1 tokens are filled, the rest is old",
        seen=2,
    ),
    _step_slip(
        "new token overwrites the last",
        "the new token is written over the last one: it belongs behind it, in place length",
        place=-1,
    ),
    _step_slip(
        "cache not updated",
        "the cache comes back without the new token: write it in place, cache[:, length] = …",
        write=False,
    ),
    _step_slip(
        "finite maximum",
        "where all scores are far below 0 none of them counts: subtract their maximum, be it below 0, as softmax does",
        least=0.0,
    ),
    _step_slip(
        "values before keys",
        "keys and values of kv_up are exchanged: of each head's rows the first Dn are its key, the last Dv its value",
        values_first=True,
    ),
)  # fmt: skip


def _absorbed_most(
    x: Tensor,
    cache: Tensor,
    length: int,
    q_down: Tensor,
    q_up: Tensor,
    kv_down: Tensor,
    kv_up: Tensor,
    wo: Tensor,
    heads: int,
) -> Cost:
    """Twice the FLOPs of an absorbed step, and 16 times what it makes in float32: expanding takes more."""
    (B, _, D), R, T = x.shape, kv_up.shape[1], length + 1
    Dr = kv_down.shape[0] - R
    weights = sum(w.numel() for w in (q_down, q_up, kv_down, kv_up, wo))
    made = (
        B * heads * (T + 2 * R + Dr)
        + B * T * (R + Dr)
        + B * (q_down.numel() // D + q_up.shape[0] + wo.numel() // D + D)
    )
    return Cost(bytes=16 * 4 * made + 8 * weights + 4096, flops=2 * 2 * (B * weights + B * T * heads * (2 * R + Dr)))


def _short(r: Random) -> list[dict[str, Any]]:
    odd = dict(
        H=r.randint(2, 5), D=r.choice([40, 56]), Rq=r.choice([24, 36]), Dn=r.choice([8, 20]), Dv=r.choice([12, 28]),
        R=r.choice([40, 64]), Dr=r.choice([16, 48]),
    )  # fmt: skip
    return [dict(B=r.randint(1, 3), length=n) | odd for n in (0, 1, r.randint(2, 40))]


def _long(r: Random) -> list[dict[str, Any]]:
    return [dict(B=r.randint(1, 2), length=n, H=r.randint(2, 4), scale=1.2) for n in (256, 257, r.randint(300, 700))]


def _but(*names: str) -> tuple[Mistake, ...]:
    """Return the mistakes of a step without those of these names, which another form has."""
    assert {each.name for each in STEP_MISTAKES} >= set(names)
    return tuple(each for each in STEP_MISTAKES if each.name not in names)


def _step_exercise(
    name: str, title: str, points: tuple[float, float], mistakes: tuple[Mistake, ...], few: bool = False, **more: Any
) -> Exercise:
    others = dict(H=3) if few else dict(H=3, D=56, Rq=36, Dn=20, Dv=12)
    return Exercise(
        name=name,
        title=title,
        parts=(
            Part(
                "short contexts",
                points[0],
                visible=[
                    dict(B=2, length=5),
                    dict(B=1, length=0, room=1, R=128, Dr=64, **others),
                    *(dict(B=2, length=9, peak=peak) for peak in ((200.0,) if few else (200.0, -2e4))),
                ],
                hidden=lambda r: [] if few else [*_short(r), dict(B=1, length=r.randint(4, 30), peak=150.0)],
            ),
            Part(
                "across position 256",
                points[1],
                visible=[dict(B=4, length=302, scale=1.2)],
                hidden=lambda r: _long(r)[1:] if few else _long(r),
            ),
        ),
        inputs=_step_operands,
        oracle=_step,
        returns=("out", "cache"),
        like=("x", "cache"),
        mistakes=mistakes,
        tolerance=2e-2,  # scores of some size, in bfloat16
        may_change=("cache",),
        **more,
    )


PLACES = "place behind the new token", "new token overwrites the last"
NAIVE = _step_exercise(
    "naive_step",
    "the layer, by expansion",
    (2, 2),
    _but("scale of the latent", "values before keys", *PLACES),
    needs=("challenge_angles",),
)
ABSORBED = _step_exercise(
    "absorbed_step",
    "the layer, absorbed",
    (2, 2),
    _but("query not rotated", "keys not rotated", *PLACES),
    needs=("challenge_angles",),
    most=_absorbed_most,
)
CHALLENGE = _step_exercise(
    "challenge_step",
    "the layer, with your kernel",
    (2, 3),
    _but("query not rotated", "keys not rotated", "values before keys", "interleaved pairs", "finite maximum"),
    few=True,
    needs=("challenge_angles", "rotating_decode"),
)

# --- rotating_decode --------------------------------------------------------------------------------------------------


def _decode_operands(
    g: torch.Generator | None,
    B: int,
    H: int,
    length: int,
    R: int = 32,
    Dr: int = 32,
    room: int = 5,
    sharp: float = 1.0,
    level: float = 0.0,
    scale: float = 0.2,
    dtype: torch.dtype = HALF,
    nan_behind: bool = False,
) -> Arguments:
    """Return queries, a cache whose keys are not rotated, and the angles of all of its places.

    `sharp` is the size of the queries, `level` is added to all scores.
    """
    q_latent, cache = randn(g, B, H, R, scale=sharp, dtype=dtype), randn(g, B, length + room, R + Dr, dtype=dtype)
    if level and g is not None:
        set_level(q_latent, cache, level, scale)
    if g is None:
        cos, sin = (randn(None, length + room, Dr // 2, dtype=dtype) for _ in range(2))
    else:
        cos, sin = (each.to(dtype) for each in bfloat16_angles(torch.arange(length + room), Dr))
        cache[:, length:] *= math.nan if nan_behind else 3
    return {
        "q_latent": q_latent,
        "q_rope": randn(g, B, H, Dr, scale=sharp, dtype=dtype),
        "cache": cache,
        "cos": cos,
        "sin": sin,
        "length": length,
        "scale": scale,
    }


def _decoded(
    q_latent: Tensor,
    q_rope: Tensor,
    cache: Tensor,
    cos: Tensor,
    sin: Tensor,
    length: int,
    scale: float,
    *,
    interleaved: bool = False,
    sign: float = 1.0,
    turns: int = 1,
    divide: bool = True,
    block: int = 0,
    least: float = -INF,
) -> Tensor:
    """Return attention to the first `length` places. Each keyword makes a mistake.

    A `block` has it not rescale. The maximum begins at `least`.
    """
    R = q_latent.shape[-1]
    latents, keys = cache[:, :length].split((R, q_rope.shape[-1]), -1)
    for _ in range(turns):
        keys = apply_rope(keys, cos[:length], sign * sin[:length], interleaved=interleaved)
    scores = (q_latent @ latents.mT + q_rope @ keys.mT) * scale
    if block:
        peak = torch.cummax(torch.stack([s.amax(-1) for s in scores.split(block, -1)], -1), -1).values
        weights = (scores - peak.repeat_interleave(block, -1)[..., :length]).exp()
        return weights @ latents / (scores - peak[..., -1:]).exp().sum(-1, keepdim=True)
    out = (scores.softmax(-1) if least == -INF else softmax_from(least, scores)[0]) @ latents
    return out if divide else out * (scores - scores.amax(-1, keepdim=True)).exp().sum(-1, keepdim=True)


def _nan_where_behind(**given: Any) -> Tensor:
    """NaN, where there is a place behind the length."""
    out = _decoded(**given)
    return out * math.nan if given["length"] < given["cache"].shape[1] else out


def _decode_floor(B: int, H: int, length: int, R: int, Dr: int, dtype: torch.dtype, **_: Any) -> Cost:
    read = B * length * (R + Dr) + B * H * (R + Dr) + length * Dr
    return Cost(bytes=dtype.itemsize * (read + B * H * R), flops=2 * B * H * length * (2 * R + Dr))


def _eager(
    q_latent: Tensor, q_rope: Tensor, cache: Tensor, cos: Tensor, sin: Tensor, length: int, scale: float
) -> Tensor:
    """Absorbed attention in PyTorch: rotated keys and scores in memory."""
    latents, keys = cache[:, :length].split((q_latent.shape[-1], q_rope.shape[-1]), -1)
    (a, b), cos, sin = keys.chunk(2, -1), cos[:length], sin[:length]
    keys = torch.cat((a * cos - b * sin, b * cos + a * sin), -1)
    scores = (q_latent @ latents.mT + q_rope @ keys.mT).float() * scale
    return scores.softmax(-1).to(cache.dtype) @ latents


_decode_slip = slips(_decoded)
WIDE = dict(R=512, Dr=64, scale=192**-0.5, dtype=BF16, room=64)
RANKED = tuple(dict(B=128, H=128, length=n + 1, **WIDE) for n in (512, 2048, 4096, 6144))


def _like_a_context(g: torch.Generator) -> Arguments:
    """Return the angles of all places of the speed case, and numbers of a cache."""
    places, width = RANKED[1]["length"] + WIDE["room"], WIDE["Dr"]
    cos, sin = bfloat16_angles(torch.arange(places), width)
    return {"cos": cos, "sin": sin, "cache": randn(g, 1 << 16, dtype=BF16)}


DECODE = Exercise(
    name="rotating_decode",
    title="decode kernel that rotates as it reads",
    parts=(
        Part(
            "one block of tokens",
            1,
            visible=[dict(B=2, H=5, length=16, scale=0.4), dict(B=1, H=1, length=1),
                     dict(B=2, H=300, length=16), dict(B=281, H=5, length=16),
                     dict(B=2, H=3, length=16, **WIDE | dict(room=5))],
            hidden=lambda r: [
                dict(B=1, H=r.choice([16, 20]), length=r.randint(1, 16), R=r.choice([16, 64]), Dr=r.choice([32, 64])),
                dict(B=2, H=1, length=1, room=0),
            ],
        ),
        Part(
            "many blocks, also with large scores",
            2,
            visible=[dict(B=1, H=8, length=256), dict(B=2, H=120, length=128),
                     dict(B=2, H=70, length=320, R=64, Dr=64, scale=0.1),
                     dict(B=1, H=8, length=192, sharp=8.0),
                     dict(B=1, H=4, length=40, **FAR_BELOW_0),
                     dict(B=1, H=1, length=4200)],
            hidden=lambda r: [
                dict(B=2, H=r.randint(114, 127), length=64),
                dict(B=1, H=r.randint(65, 70), length=128, R=16, scale=0.3),
                dict(B=1, H=r.randint(1, 9), length=64 * r.randint(5, 7), Dr=64, dtype=BF16),
            ],
        ),
        Part(
            "a last block that is not full, and a cache with room behind it",
            2,
            visible=[dict(B=2, H=3, length=37, room=40), dict(B=1, H=4, length=70, room=100, nan_behind=True)],
            hidden=lambda r: [
                dict(B=2, H=r.randint(1, 6), length=n, room=r.randint(1, 80), nan_behind=n % 2 == 0)
                for n in (r.randint(33, 63), 2 * r.randint(66, 90), 257)
            ],
        ),
    ),
    inputs=_decode_operands,
    oracle=_decoded,
    returns=("out",),
    like=("q_latent",),
    mistakes=(
        _decode_slip("interleaved pairs", HALVES_MESSAGE, interleaved=True),
        _decode_slip(
            "wrong sign", "the keys turn backwards: expected (a·cos − b·sin, b·cos + a·sin)", sign=-1.0
        ),
        _decode_slip("not rotated", "the keys are not rotated: the cache holds them as they were projected", turns=0),
        _decode_slip(
            "RoPE part missing",
            "the scores lack the RoPE part: add the products of both halves of the rotated key",
            lambda q_rope, **_: dict(q_rope=0 * q_rope),
        ),
        _decode_slip(
            "scale of the latent",
            "the softmax scale is 1/√(R+Dr), 1/√576 in the challenge: take the argument, which is 1/√192 there",
            lambda q_latent, q_rope, **_: dict(scale=(q_latent.shape[-1] + q_rope.shape[-1]) ** -0.5),
        ),
        _decode_slip(
            "last token not seen",
            "the last token is not seen: length counts the new one, so tokens 0 to length − 1 are seen",
            lambda length, **_: dict(length=length - 1) if length > 1 else {},
        ),
        Mistake(
            "NaN behind the length",
            "the result is NaN: behind the length the cache may hold NaN, and 0 · NaN is NaN; mask the loads of tokens "
            "by length, not by what the cache has room for",
            _nan_where_behind,
        ),
        _decode_slip(
            "all places seen",
            "all places of the cache count: only the first `length` are filled",
            lambda cache, **_: dict(length=cache.shape[1]),
        ),
        *(_decode_slip("finite maximum", FINITE, least=least) for least in (0.0, HIDDEN)),
        _decode_slip("not divided", "out is not divided by the sum of the weights", divide=False),
        *(
            _decode_slip(
                "accumulator not rescaled",
                "acc is not multiplied by exp(m_i − m_new) when the maximum grows: earlier blocks weigh too much",
                block=block,
            )
            for block in (16, 32, 64, 128)
        ),
    ),
    kernel=True,
    launches=1,
    speed=Speed(
        points=3,
        case=RANKED[1],
        small=dict(B=1, H=128, length=130),
        data=_like_a_context,
        axes=dict(q_latent="bh", q_rope="bh", cache="b", cos="_", sin="_", out="bh"),
        floor=_decode_floor,
        bars=((0.05, 0.5), (0.1, 1.0)),
        baseline=_eager,
        ratio=1.0,
        ranked=RANKED,
    ),
)  # fmt: skip

EXERCISES = (BYTES, ANGLES, NAIVE, ABSORBED, DECODE, CHALLENGE)
