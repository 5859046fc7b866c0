"""What the exercises of several lessons draw: widths of a layer, rows, queries and caches.

The letters are the course's: B sequences, S query tokens, T tokens of context and H heads; widths Dn and Dr of the two
parts of a query, Dv of a value, and R of the latent. Without a generator, `randn` gives shapes without data.
"""

from __future__ import annotations

import math
from random import Random
from typing import Any

import torch
from torch import Tensor

from autograder.judging.exercise import Arguments, randn
from mla_ref.config import MLAConfig
from mla_ref.rope import rope_cos_sin

HALF, FLOAT, BF16 = torch.float16, torch.float32, torch.bfloat16
EPS = 1e-6
DEFAULT = "left to its default"  # of a case, in place of an argument
FAR_BELOW_0 = dict(sharp=0.0, level=-2e4)  # scores of a decode step: alike, so exp2(x · log2 e) is exact, too
V3 = dict(H=128, Dn=128, Dr=64, Dv=128, R=512)  # DeepSeek-V3


def as_given(_: torch.Generator | None, **case: Any) -> Arguments:
    """Return the case: its numbers are the arguments, and nothing is drawn."""
    return case


def config(H: int, Dn: int, Dr: int, Dv: int, R: int) -> MLAConfig:
    """Return the configuration of a layer with these widths."""
    return MLAConfig(
        hidden_size=1,
        num_attention_heads=H,
        kv_lora_rank=R,
        qk_nope_head_dim=Dn,
        qk_rope_head_dim=Dr,
        v_head_dim=Dv,
    )


def widths(r: Random) -> dict[str, int]:
    """Return Dn, Dr, Dv and R of an MLA layer. All differ, and 2R > Dn + Dv as in every published layer."""
    Dn, Dr, Dv = r.choice([24, 48, 96]), r.choice([8, 16, 32]), r.choice([40, 56, 112])
    return dict(Dn=Dn, Dr=Dr, Dv=Dv, R=r.choice([128, 320, 448]))


def norm_rows(
    g: torch.Generator | None,
    shape: tuple[int, ...],
    width: int,
    scale: float,
    largest: float | None,
    eps: float | str,
    dtype: torch.dtype,
) -> Arguments:
    """Return what RMSNorm takes: x of this shape, a weight for the first `width` columns, and eps but for DEFAULT.

    The rows have standard deviation `scale`, and a mean that is not zero. If `largest` is given, it is the largest
    magnitude in every row instead.
    """
    x = randn(g, *shape, dtype=torch.float64) + 0.3
    x = x * scale if largest is None else x / x.abs().amax(-1, keepdim=True) * largest
    weight = 1 + randn(g, width, scale=0.3)
    return {"x": x.to(dtype), "weight": weight.to(dtype), **({} if eps == DEFAULT else {"eps": eps})}


def angles(g: torch.Generator | None, S: int, Dr: int, first: int, dtype: torch.dtype = FLOAT) -> tuple[Tensor, Tensor]:
    """Return cos and sin, [S, Dr/2] each, of the positions from `first` on."""
    if g is None:
        return randn(None, S, Dr // 2, dtype=dtype), randn(None, S, Dr // 2, dtype=dtype)
    return rope_cos_sin(torch.arange(first, first + S), Dr, dtype=dtype)


def turning(
    g: torch.Generator | None, B: int, S: int, H: int, Dr: int, first: int = 0, dtype: torch.dtype = FLOAT
) -> Arguments:
    """Return what RoPE takes: x [B, S, H, Dr], and the angles of its positions, in float32 or float64."""
    cos, sin = angles(g, S, Dr, first, torch.promote_types(dtype, FLOAT))
    return {"x": randn(g, B, S, H, Dr, dtype=dtype), "cos": cos, "sin": sin}


def mla_operands(
    g: torch.Generator | None, B: int, S: int, T: int, H: int, Dn: int, Dr: int, Dv: int, R: int, scale: float = 1.0
) -> Arguments:
    """Return the queries of a layer, its cache, and the weights that expand it. `scale` is that of the queries."""
    return {
        "q_nope": randn(g, B, S, H, Dn, scale=scale),
        "q_rope": randn(g, B, S, H, Dr, scale=scale),
        "c_kv": randn(g, B, T, R),
        "k_rope": randn(g, B, T, Dr),
        "w_uk": randn(g, H, Dn, R, scale=R**-0.5),
        "w_uv": randn(g, H, Dv, R, scale=R**-0.5),
    }


def sink(q: torch.Tensor, k: torch.Tensor, depth: float) -> None:
    """Lower the score of key t of T by about `depth`·(T − t) before it is scaled: change the first elements in place.

    q is [B, S, H, n], k is [B, T, n] or [B, T, H, n]. No score is near 0 then, and the newest key of a query wins.
    """
    below = depth * torch.arange(k.shape[1], 0, -1)
    q[..., 0] = 1.0
    k[..., 0] -= below.reshape(-1, *[1] * (k.dim() - 3))


def set_level(q: torch.Tensor, k: torch.Tensor, level: float, scale: float) -> None:
    """Add `level` to all scores of queries and keys, by their first elements: change these in place."""
    q[..., 0] = math.sqrt(abs(level) / scale)
    k[..., 0] = math.copysign(math.sqrt(abs(level) / scale), level)


def latent_operands(
    g: torch.Generator | None,
    B: int,
    S: int,
    T: int,
    H: int,
    Dr: int,
    R: int,
    scale: float = 1.0,
    dtype: torch.dtype = FLOAT,
) -> Arguments:
    """Return absorbed queries and a cache. `scale` is that of the queries."""
    return {
        "q_latent": randn(g, B, S, H, R, scale=scale, dtype=dtype),
        "q_rope": randn(g, B, S, H, Dr, scale=scale, dtype=dtype),
        "c_kv": randn(g, B, T, R, dtype=dtype),
        "k_rope": randn(g, B, T, Dr, dtype=dtype),
    }
