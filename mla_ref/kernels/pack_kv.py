"""Keys put together from their two parts, keys and values converted to FP8: one pass over memory in place of three."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from .._validate import check_pair
from ..float8 import DTYPE, LARGEST, check_pack
from ._decode import check_converts
from ._launch import check_operands, on_device_of, result_for
from ._sizes import ceil_div, power_of_2

HEADS = 16  # of a program


@triton.jit
def _float8(x, inverse, LARGEST: tl.constexpr):
    """Convert to E4M3: beyond ±448 the largest there is, NaN stays."""
    x = x.to(tl.float32) * inverse
    x = tl.where(x > LARGEST, LARGEST, x)
    return tl.where(x < -LARGEST, -LARGEST, x).to(tl.float8e4nv)


@triton.jit
def _pack_kv(
    k_nope_ptr, k_rope_ptr, v_ptr, k_ptr, packed_v_ptr, k_inverse, v_inverse, H,
    stride_nt, stride_nh, stride_nd, stride_rt, stride_rd, stride_vt, stride_vh, stride_vd,
    stride_kt, stride_kh, stride_kd, stride_pt, stride_ph, stride_pd,
    DN: tl.constexpr, DR: tl.constexpr, DV: tl.constexpr,
    BLOCK_H: tl.constexpr, BLOCK_DN: tl.constexpr, BLOCK_DR: tl.constexpr, BLOCK_DV: tl.constexpr,
    LARGEST: tl.constexpr,
):  # fmt: skip
    pid, blocks = tl.program_id(0), tl.cdiv(H, BLOCK_H)
    token = (pid // blocks).to(tl.int64)
    h = (pid % blocks * BLOCK_H + tl.arange(0, BLOCK_H)).to(tl.int64)[:, None]
    offs_n, offs_r = tl.arange(0, BLOCK_DN).to(tl.int64), tl.arange(0, BLOCK_DR).to(tl.int64)
    offs_v = tl.arange(0, BLOCK_DV).to(tl.int64)

    # [BLOCK_H, BLOCK_DN], [BLOCK_DR] and [BLOCK_H, BLOCK_DV]
    nope_mask, v_mask = (h < H) & (offs_n < DN), (h < H) & (offs_v < DV)
    k_nope = tl.load(k_nope_ptr + token * stride_nt + h * stride_nh + offs_n * stride_nd, mask=nope_mask)
    k_rope = tl.load(k_rope_ptr + token * stride_rt + offs_r * stride_rd, mask=offs_r < DR)
    v = tl.load(v_ptr + token * stride_vt + h * stride_vh + offs_v * stride_vd, mask=v_mask)

    k_rows = k_ptr + token * stride_kt + h * stride_kh
    tl.store(k_rows + offs_n * stride_kd, _float8(k_nope, k_inverse, LARGEST), mask=nope_mask)
    k_rope = tl.broadcast_to(_float8(k_rope, k_inverse, LARGEST)[None, :], [BLOCK_H, BLOCK_DR])
    tl.store(k_rows + (DN + offs_r) * stride_kd, k_rope, mask=(h < H) & (offs_r < DR))
    v_ptrs = packed_v_ptr + token * stride_pt + h * stride_ph + offs_v * stride_pd
    tl.store(v_ptrs, _float8(v, v_inverse, LARGEST), mask=v_mask)


def pack_kv(
    k_nope: Tensor,
    k_rope: Tensor,
    v: Tensor,
    *,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
    out: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """Put keys together and convert keys and values to FP8: :func:`mla_ref.pack_kv` in one launch, bit for bit.

    Parameters
    ----------
    k_nope, k_rope, v, k_scale, v_scale
        As in the twin.
    out
        Where k and v go, ``float8_e4m3fn``, any layout.

    Returns
    -------
    k, v
        ``[N, H, Dn+Dr]`` and ``[N, H, Dv]``.

    Raises
    ------
    TypeError, ValueError, RuntimeError
        As the twin, or a GPU that does not convert to E4M3, before compute capability 8.9, or a tensor that requires a
        gradient.

    References
    ----------
    TokenSpeed-MLA, "MLA K/V pack + FP8 quantize".
    """
    size = check_pack(k_nope, k_rope, v, k_scale, v_scale)
    check_operands("mla_ref.pack_kv", k_nope=k_nope, k_rope=k_rope, v=v)
    check_pair("out", out)
    N, H, Dn, Dr, Dv = (size[name] for name in ("N", "H", "Dn", "Dr", "Dv"))
    check_converts(k_nope)
    k_out, v_out = out or (None, None)
    k_out = result_for(k_out, "out[0]", (N, H, Dn + Dr), (DTYPE,), k_nope.device)
    v_out = result_for(v_out, "out[1]", (N, H, Dv), (DTYPE,), k_nope.device)
    if N * H == 0:
        return k_out, v_out
    block_h = min(power_of_2(H), HEADS)
    k_inverse, v_inverse = (float(1.0 / torch.tensor(scale, dtype=torch.float32)) for scale in (k_scale, v_scale))
    with on_device_of(k_nope):
        _pack_kv[(N * ceil_div(H, block_h),)](
            k_nope, k_rope, v, k_out, v_out, k_inverse, v_inverse, H,
            *(stride for x in (k_nope, k_rope, v, k_out, v_out) for stride in x.stride()),
            Dn, Dr, Dv, block_h, power_of_2(Dn), power_of_2(Dr), power_of_2(Dv), LARGEST, num_warps=4,
        )  # fmt: skip
    return k_out, v_out
