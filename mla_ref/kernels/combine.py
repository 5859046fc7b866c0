"""Attention over the parts of a context, merged into attention over all of it: the second kernel of split-KV."""

from collections.abc import Iterable

import torch
import triton
import triton.language as tl
from torch import Tensor

from .._validate import check_tensors
from ._launch import DTYPES, check_operands, check_width, on_device_of, result_for
from ._sizes import ceil_div, power_of_2
from .masked_softmax import finite, nonzero

MAX_BLOCK = 4096


@triton.jit
def _combine(
    parts_ptr, part_lses_ptr, out_ptr, lse_ptr, P, S, H, D,
    stride_pp, stride_pb, stride_ps, stride_ph, stride_pd, stride_mp, stride_mb, stride_ms, stride_mh,
    stride_ob, stride_os, stride_oh, stride_od, stride_lb, stride_ls, stride_lh,
    OVERLAP: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    blocks = tl.cdiv(D, BLOCK_D)
    row, block = (tl.program_id(0) // blocks).to(tl.int64), tl.program_id(0) % blocks
    b, s, h = row // H // S, row // H % S, row % H
    offs_p = tl.arange(0, BLOCK_P).to(tl.int64)
    offs_d = block.to(tl.int64) * BLOCK_D + tl.arange(0, BLOCK_D)
    if OVERLAP:
        tl.extra.cuda.gdc_wait()  # for the kernel before this one, which writes the parts

    # [BLOCK_P] and [BLOCK_P, BLOCK_D]
    exists = offs_p < P
    lses_ptrs = part_lses_ptr + offs_p * stride_mp + b * stride_mb + s * stride_ms + h * stride_mh
    lses = tl.load(lses_ptrs, mask=exists, other=float("-inf"))
    mask = exists[:, None] & (offs_d < D)[None, :]
    parts_ptrs = parts_ptr + offs_p[:, None] * stride_pp + b * stride_pb + s * stride_ps + h * stride_ph
    parts = tl.load(parts_ptrs + offs_d[None, :] * stride_pd, mask=mask, other=0.0)

    m_i = tl.max(lses)
    alpha = tl.exp(lses - finite(m_i))
    l_i = nonzero(tl.sum(alpha))  # 0 where every part is empty
    # What an empty part holds is not used, it may be NaN; an alpha that is NaN is.
    out = tl.sum(tl.where((alpha != 0)[:, None], parts.to(tl.float32) * alpha[:, None], 0.0), 0)
    out = (out / l_i).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + b * stride_ob + s * stride_os + h * stride_oh + offs_d * stride_od, out, mask=offs_d < D)
    if block == 0:
        tl.store(lse_ptr + b * stride_lb + s * stride_ls + h * stride_lh, m_i + tl.log(l_i))


def combine(
    outs: Tensor | Iterable[Tensor],
    lses: Tensor | Iterable[Tensor],
    *,
    out: Tensor | None = None,
    lse: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Merge attention over disjoint parts of a context: :func:`mla_ref.combine` in one launch.

    Parameters
    ----------
    outs
        ``[P, B, S, H, Dv]`` in any layout, or P tensors ``[B, S, H, Dv]``, which are copied into one first.
    lses
        ``[P, B, S, H]`` or P tensors, float32, natural logarithm; -inf where the part is empty. Unlike in the
        twin, +inf goes unnoticed and gives NaN.
    out, lse
        Where the results go. ``out`` has the dtype of ``outs``, or any other that kernels take.

    Returns
    -------
    out, lse
        ``[B, S, H, Dv]`` and float32 ``[B, S, H]``.

    Raises
    ------
    TypeError, ValueError, RuntimeError
        Shapes, dtypes or devices that do not agree, Dv = 0, or a tensor that requires a gradient.

    References
    ----------
    Flash-Decoding, Dao et al. 2023.
    """
    outs, lses = (_stacked(name, x) for name, x in (("outs", outs), ("lses", lses)))
    check_tensors(outs=(outs, "P B S H Dv"))
    P, B, S, H, D = outs.shape
    check_width("outs", outs)
    check_tensors(lses=(lses, f"{P} {B} {S} {H}"))
    check_operands("mla_ref.combine", outs=outs, lses=lses)
    if lses.dtype != torch.float32:
        raise TypeError(f"lses has dtype {lses.dtype}, expected float32: its error is a factor on every output")
    if lses.device != outs.device:
        raise ValueError(f"lses is on {lses.device}, expected {outs.device} as outs: move one")
    out = result_for(out, "out", (B, S, H, D), (outs.dtype, *DTYPES), outs.device)
    lse = result_for(lse, "lse", (B, S, H), (torch.float32,), outs.device)
    launch_combine(outs, lses, out, lse)
    return out, lse


def _stacked(name, parts):
    parts = parts if isinstance(parts, Tensor) else tuple(parts)
    if not len(parts):
        raise ValueError(f"{name} has no parts, expected at least one")
    return parts if isinstance(parts, Tensor) else torch.stack(parts)


def launch_combine(outs: Tensor, lses: Tensor, out: Tensor, lse: Tensor, overlap: bool = False) -> None:
    """Start the kernel on checked tensors.

    ``overlap`` lets it start before the kernel that writes ``outs`` has finished: programmatic dependent launch, which
    NVIDIA GPUs have from sm_90 on.
    """
    P, B, S, H, D = outs.shape
    block_p = power_of_2(P)
    block_d = min(power_of_2(D), max(MAX_BLOCK // block_p, 16), 512)
    grid = B * S * H * ceil_div(D, block_d)
    if grid:
        with on_device_of(outs):
            _combine[(grid,)](
                outs, lses, out, lse, P, S, H, D, *outs.stride(), *lses.stride(), *out.stride(), *lse.stride(),
                overlap, block_p, block_d, num_warps=2, **({"launch_pdl": True} if overlap else {}),
            )  # fmt: skip
