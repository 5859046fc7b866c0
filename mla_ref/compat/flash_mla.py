"""FlashMLA's dense decode by its names, shapes and conventions: ``from mla_ref.compat import flash_mla``.

Names, shapes and meanings are those of ``flash_mla/flash_mla_interface.py`` in deepseek-ai/FlashMLA, in the older form
with lengths and a number of splits, too. What computes is :data:`mla_ref.kernels.DECODERS`, on any GPU that Triton
compiles for, and PyTorch where there is none. Sparse attention and FP8 caches are not here.

What FlashMLA does otherwise than this package: queries and cache have their latent and rotated parts in one tensor, the
``lse`` is ``[B, H, S]`` and +inf where a query sees nothing, ``causal`` is false unless asked for, and the scale is
1/√576 unless given, which is not the one of any DeepSeek model.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from .._validate import check_tensors
from ..attention import paged_latent_attention
from ..hardware import emulator


class FlashMLASchedMeta:
    """In place of FlashMLA's plan for a batch. Here each call plans for itself."""


def get_mla_metadata(*args: Any, **kwargs: Any) -> tuple[FlashMLASchedMeta, None]:
    """Return what :func:`flash_mla_with_kvcache` wants as plan and number of splits. Arguments are ignored."""
    return FlashMLASchedMeta(), None


def flash_mla_with_kvcache(
    q: Tensor,
    k_cache: Tensor,
    block_table: Tensor,
    cache_seqlens: Tensor,
    head_dim_v: int,
    tile_scheduler_metadata: Any = None,
    num_splits: Any = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    is_fp8_kvcache: bool = False,
    **others: Any,
) -> tuple[Tensor, Tensor]:
    """Attend to a paged cache.

    Parameters
    ----------
    q
        ``[B, S, H, D]``: the absorbed query, ``head_dim_v`` wide, then the rotated one.
    k_cache
        ``[num_pages, page_size, Hk, D]``, likewise. Heads ``[g·H/Hk, (g+1)·H/Hk)`` attend to head g of the cache; MLA
        has one.
    block_table, cache_seqlens
        int32 ``[B, max_pages]`` and ``[B]``. Entries beyond a length are not read.
    head_dim_v
        Of the D dimensions of a cached token, how many are its value, from the first on.
    tile_scheduler_metadata, num_splits
        What :func:`get_mla_metadata` returned. Ignored.
    softmax_scale
        1/√D by default.
    causal
        Whether the S queries are the last tokens, and see none behind themselves.
    is_fp8_kvcache, others
        Of FlashMLA's sparse attention: false or None.

    Returns
    -------
    out, lse
        ``[B, S, H, head_dim_v]`` in the dtype of ``q``, 0 where a query sees nothing, and float32 ``[B, H, S]``,
        natural, +inf there.

    Raises
    ------
    NotImplementedError
        Sparse attention or a cache in FP8 is asked for.
    TypeError, ValueError
        Shapes, dtypes or devices that do not fit, as of :func:`mla_ref.paged_latent_attention`.
    """
    others |= {"is_fp8_kvcache": is_fp8_kvcache or None}
    asked = [name for name, value in others.items() if value is not None]
    if asked:
        raise NotImplementedError(f"{', '.join(asked)}: expected none of it, as sparse attention and FP8 are not here")
    size = check_tensors(q=(q, "B S H D"), k_cache=(k_cache, "num_pages page_size Hk D"))
    H, Hk, D = size["H"], size["Hk"], size["D"]
    if Hk == 0 or H % Hk:
        raise ValueError(f"k_cache has {Hk} heads, expected a number that divides the {H} of q: MLA has one")
    if not 0 < head_dim_v < D:
        raise ValueError(
            f"head_dim_v is {head_dim_v}, expected fewer than the {D} of q, whose rest is the rotated part"
        )
    attend = paged_latent_attention
    if q.is_cuda or emulator.active():
        from ..kernels import DECODERS, FASTEST

        attend = DECODERS[FASTEST].paged
    given = {
        "scale": D**-0.5 if softmax_scale is None else softmax_scale,
        "seq_lens": cache_seqlens,
        "causal": causal,
    }
    groups = []
    for query, cached in zip(q.chunk(Hk, 2), k_cache.unbind(2), strict=True):
        parts = (part for x in (query, cached) for part in x.tensor_split((head_dim_v,), -1))
        groups.append(attend(*parts, block_table, **given))
    out, lse = groups[0] if Hk == 1 else (torch.cat(parts, 2) for parts in zip(*groups, strict=True))
    return out, lse.nan_to_num(math.nan, math.inf, math.inf).transpose(1, 2)
