"""The two batched products of the absorbed form: W_UK into the query, and W_UV behind the attention."""

import torch
from torch import Tensor

from ._validate import check_tensors
from .quantize import Int4Weight


def absorb_query(q_nope: Tensor, w_uk: Tensor | Int4Weight) -> Tensor:
    """Bring the queries to the latent: for each head W_UKᵀ q.

    Half types are computed in float32 and rounded once, at the end.

    Parameters
    ----------
    q_nope
        ``[B, S, H, Dn]``.
    w_uk
        ``[H, Dn, R]`` in the same dtype, or what :func:`mla_ref.quantize_int4` makes of it with ``axis=1``.

    Returns
    -------
    Tensor
        ``[B, S, H, R]`` in the dtype of ``q_nope``.

    Raises
    ------
    TypeError, ValueError
        Shapes, dtypes or devices that do not agree, or a weight quantised along the other axis.

    References
    ----------
    DeepSeek-V2, arXiv:2405.04434, section 2.1.2.
    """
    check_product("q_nope", q_nope, "Dn", "w_uk", w_uk, 1)
    return torch.einsum("bshd,hdr->bshr", *_widen(q_nope, w_uk)).to(q_nope.dtype)


def reconstruct_value(o_latent: Tensor, w_uv: Tensor | Int4Weight) -> Tensor:
    """Bring the output of attention over the latent to the values' width: for each head W_UV o.

    Half types are computed in float32 and rounded once, at the end.

    Parameters
    ----------
    o_latent
        ``[B, S, H, R]``.
    w_uv
        ``[H, Dv, R]`` in the same dtype, or what :func:`mla_ref.quantize_int4` makes of it with ``axis=2``.

    Returns
    -------
    Tensor
        ``[B, S, H, Dv]`` in the dtype of ``o_latent``.

    Raises
    ------
    TypeError, ValueError
        As of :func:`absorb_query`.
    """
    check_product("o_latent", o_latent, "R", "w_uv", w_uv, 2)
    return torch.einsum("bshr,hvr->bshv", *_widen(o_latent, w_uv)).to(o_latent.dtype)


def check_product(x_name: str, x: Tensor, width: str, w_name: str, weight: Tensor | Int4Weight, axis: int) -> None:
    """Check ``x`` ``[B, S, H, width]`` and a weight whose ``axis`` the product sums over."""
    pattern = f"H {width} R" if axis == 1 else f"H Dv {width}"
    if not isinstance(weight, Int4Weight):
        check_tensors(**{x_name: (x, f"B S H {width}"), w_name: (weight, pattern)})
        return
    if weight.axis != axis:
        raise ValueError(
            f"{w_name} is quantised along axis {weight.axis}, expected {axis}, which this product sums over: "
            f"quantise the source with axis={axis}"
        )
    size = check_tensors(**{x_name: (x, f"B S H {width}"), f"{w_name}.scales": (weight.scales, "H _ _")})
    if weight.shape[axis] != size[width]:
        raise ValueError(
            f"{w_name} has shape {list(weight.shape)}, expected [{pattern.replace(' ', ', ')}] with "
            f"{width} = {size[width]} from {x_name}"
        )


def _widen(x, weight):
    weight = weight.dequantize() if isinstance(weight, Int4Weight) else weight
    return (each.to(torch.promote_types(each.dtype, torch.float32)) for each in (x, weight))
