"""RoPE of the queries and of the key that they share, in one launch.

In a decode step both are small, and a launch is most of what they cost: in a CUDA graph on an H100, a step of 4 tokens
and 16 heads takes 1.6 us, or 2.9 us in two launches.
"""

import triton
import triton.language as tl
from torch import Tensor

from .._validate import check_pair
from ._launch import on_device_of, output_for
from ._sizes import ceil_div
from .rope import check_rotation, choose_blocks, load_angles, load_pairs, store_pairs


@triton.jit
def _rope_qk(
    q_ptr, k_ptr, cos_ptr, sin_ptr, q_out_ptr, k_out_ptr, S, H, P,
    stride_qb, stride_qs, stride_qh, stride_qd, stride_kb, stride_ks, stride_kd,
    stride_qob, stride_qos, stride_qoh, stride_qod, stride_kob, stride_kos, stride_kod, stride_tb,
    INTERLEAVED: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_P: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0)
    b, s = (token // S).to(tl.int64), (token % S).to(tl.int64)
    offs_h = tl.program_id(1).to(tl.int64) * BLOCK_H + tl.arange(0, BLOCK_H)[:, None]
    # [BLOCK_H, 1] and [1, 1]
    q_rows = q_ptr + b * stride_qb + s * stride_qs + offs_h * stride_qh
    q_out_rows = q_out_ptr + b * stride_qob + s * stride_qos + offs_h * stride_qoh
    zero = tl.zeros([1, 1], tl.int64)
    k_row, k_out_row = k_ptr + b * stride_kb + s * stride_ks + zero, k_out_ptr + b * stride_kob + s * stride_kos + zero
    k_mask = tl.program_id(1) + zero == 0  # the programs of the first heads rotate the key
    q_mask = offs_h < H

    # [BLOCK_H, BLOCK_P] and, for key and angles, [1, BLOCK_P]; all are loaded before one is stored, to wait only once
    q_x, q_y = load_pairs(q_rows, stride_qd, q_mask, P, INTERLEAVED, BLOCK_P)
    k_x, k_y = load_pairs(k_row, stride_kd, k_mask, P, INTERLEAVED, BLOCK_P)
    cos = load_angles(cos_ptr + b * stride_tb + s * P, P, BLOCK_P)
    sin = load_angles(sin_ptr + b * stride_tb + s * P, P, BLOCK_P)
    store_pairs(q_x * cos - q_y * sin, q_y * cos + q_x * sin, q_out_rows, stride_qod, q_mask, P, INTERLEAVED, BLOCK_P)
    store_pairs(k_x * cos - k_y * sin, k_y * cos + k_x * sin, k_out_row, stride_kod, k_mask, P, INTERLEAVED, BLOCK_P)


def apply_rope_qk(
    q_rope: Tensor,
    k_rope: Tensor,
    cos: Tensor,
    sin: Tensor,
    interleaved: bool = True,
    *,
    out: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """Rotate the pairs of queries and shared key: :func:`mla_ref.apply_rope_qk` in one launch.

    Parameters
    ----------
    q_rope
        ``[B, S, H, Dr]``, any layout.
    k_rope
        ``[B, S, Dr]``, any layout, same dtype.
    cos, sin
        ``[S, Dr/2]``, or ``[B, S, Dr/2]`` where sequences stand at different positions. Any floating dtype.
    interleaved
        True pairs neighbours ``(0, 1), (2, 3), …`` (DeepSeek); False pairs ``(i, i + Dr/2)``.
    out
        Where the two results go: ``(q_rope, k_rope)`` rotates in place.

    Returns
    -------
    q_rope, k_rope
        Rotated: ``out``, or new tensors.

    Raises
    ------
    TypeError, ValueError, RuntimeError
        Shapes or devices that do not agree, an odd Dr, dtypes that kernels do not take, or a tensor that requires a
        gradient.

    References
    ----------
    Su et al. 2021, arXiv:2104.09864.
    """
    check_rotation(cos, sin, q_rope=(q_rope, "B S H Dr"), k_rope=(k_rope, "B S Dr"))
    check_pair("out", out)
    q_out, k_out = out or (None, None)
    q_out, k_out = output_for(q_rope, q_out, "out[0]"), output_for(k_rope, k_out, "out[1]")
    if k_rope.numel() == 0:
        return q_out, k_out
    cos, sin = cos.contiguous(), sin.contiguous()
    B, S, H, width = q_rope.shape
    block_h, block_p, num_warps = choose_blocks(B * S, H, width)
    with on_device_of(q_rope):
        _rope_qk[(B * S, max(ceil_div(H, block_h), 1))](
            q_rope, k_rope, cos, sin, q_out, k_out, S, H, width // 2,
            *q_rope.stride(), *k_rope.stride(), *q_out.stride(), *k_out.stride(),
            cos.stride(0) if cos.ndim == 3 else 0,
            interleaved, block_h, block_p, num_warps=num_warps,
        )  # fmt: skip
    return q_out, k_out
