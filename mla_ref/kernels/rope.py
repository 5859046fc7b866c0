"""RoPE, one token a program: rows are read as they lie, separated into pairs in registers, turned, and written.

Tokens of one head, the shared keys, are taken many at a time: a program for each would be busier starting than turning.

Two loads of every other value, ``x[0::2]`` and ``x[1::2]``, look simpler and are 12 times slower on an H100
(``benchmarks/norm_rope_h100.json``): such a load has no neighbours in it, so Triton lays a warp across rows, and each
lane fetches a sector of its own.
"""

import triton
import triton.language as tl
from torch import Tensor

from .._operands import check_rope
from .._validate import by_rank
from ._launch import check_gradients, check_operands, on_device_of, output_for
from ._sizes import ceil_div, power_of_2

FEW_TOKENS = 1024  # below, programs of one token each fill the GPU better
BLOCK_VALUES = 2048  # pairs of a program that takes several tokens


@triton.jit
def _rope(
    x_ptr, cos_ptr, sin_ptr, out_ptr, B, S, H, P,
    stride_xb, stride_xs, stride_xh, stride_xd, stride_ob, stride_os, stride_oh, stride_od, stride_tb,
    INTERLEAVED: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_P: tl.constexpr,
):  # fmt: skip
    if BLOCK_N == 1:
        token = tl.program_id(0)
        offs_h = tl.program_id(1).to(tl.int64) * BLOCK_H + tl.arange(0, BLOCK_H)[:, None]
        mask = offs_h < H
    else:  # of one head
        offs_n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)[:, None]
        token, mask = tl.minimum(offs_n, B * S - 1), offs_n < B * S
        offs_h = tl.zeros([BLOCK_N, 1], tl.int64)
    b, s = (token // S).to(tl.int64), (token % S).to(tl.int64)
    rows = x_ptr + b * stride_xb + s * stride_xs + offs_h * stride_xh
    out_rows = out_ptr + b * stride_ob + s * stride_os + offs_h * stride_oh

    # [N, BLOCK_P] and the angles, [1, BLOCK_P] or as many, of BLOCK_N tokens or BLOCK_H heads
    x, y = load_pairs(rows, stride_xd, mask, P, INTERLEAVED, BLOCK_P)
    cos = load_angles(cos_ptr + b * stride_tb + s * P, P, BLOCK_P)
    sin = load_angles(sin_ptr + b * stride_tb + s * P, P, BLOCK_P)
    store_pairs(x * cos - y * sin, y * cos + x * sin, out_rows, stride_od, mask, P, INTERLEAVED, BLOCK_P)


@triton.jit
def load_angles(ptr, P, BLOCK_P: tl.constexpr):
    offs_p = tl.arange(0, BLOCK_P)[None, :]
    # [1, BLOCK_P], or a row for each pointer of [N, 1]
    return tl.load(ptr + offs_p, mask=offs_p < P, other=0.0).to(tl.float32)


@triton.jit
def load_pairs(rows, stride, mask, P, INTERLEAVED: tl.constexpr, BLOCK_P: tl.constexpr):
    """Return first and second values [N, BLOCK_P] of the pairs in rows, given by pointers [N, 1] to their starts."""
    if INTERLEAVED:
        offs_d = tl.arange(0, 2 * BLOCK_P).to(tl.int64)[None, :]
        # [N, 2 * BLOCK_P]
        row = tl.load(rows + offs_d * stride, mask=mask & (offs_d < 2 * P), other=0.0).to(tl.float32)
        x, y = tl.split(tl.reshape(row, [row.shape[0], BLOCK_P, 2]))
    else:
        offs_d = tl.arange(0, BLOCK_P).to(tl.int64)[None, :]
        # [N, BLOCK_P] each
        x = tl.load(rows + offs_d * stride, mask=mask & (offs_d < P), other=0.0).to(tl.float32)
        y = tl.load(rows + (offs_d + P) * stride, mask=mask & (offs_d < P), other=0.0).to(tl.float32)
    return x, y


@triton.jit
def store_pairs(x, y, rows, stride, mask, P, INTERLEAVED: tl.constexpr, BLOCK_P: tl.constexpr):
    """Store what :func:`load_pairs` loads."""
    dtype = rows.dtype.element_ty
    if INTERLEAVED:
        offs_d = tl.arange(0, 2 * BLOCK_P).to(tl.int64)[None, :]
        # [N, 2 * BLOCK_P]
        row = tl.reshape(tl.join(x, y), [x.shape[0], 2 * BLOCK_P])
        tl.store(rows + offs_d * stride, row.to(dtype), mask=mask & (offs_d < 2 * P))
    else:
        offs_d = tl.arange(0, BLOCK_P).to(tl.int64)[None, :]
        # [N, BLOCK_P] each
        tl.store(rows + offs_d * stride, x.to(dtype), mask=mask & (offs_d < P))
        tl.store(rows + (offs_d + P) * stride, y.to(dtype), mask=mask & (offs_d < P))


def apply_rope(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = True, *, out: Tensor | None = None) -> Tensor:
    """Rotate the pairs of ``x``: :func:`mla_ref.apply_rope` in one launch.

    Parameters
    ----------
    x
        ``[B, S, H, Dr]``, or ``[B, S, Dr]`` for the key that all heads share. Any layout, for instance the last
        Dr columns of a wider query.
    cos, sin
        ``[S, Dr/2]``, or ``[B, S, Dr/2]`` where sequences stand at different positions. Any floating dtype.
    interleaved
        True pairs neighbours ``(0, 1), (2, 3), …`` (DeepSeek); False pairs ``(i, i + Dr/2)``.
    out
        Where the result goes: ``x`` itself rotates in place.

    Returns
    -------
    Tensor
        ``out``, or a new tensor with the shape and dtype of ``x``.

    Raises
    ------
    TypeError, ValueError, RuntimeError
        Shapes or devices that do not agree, an odd Dr, dtypes that kernels do not take, or a tensor that requires a
        gradient.

    References
    ----------
    Su et al. 2021, arXiv:2104.09864.

    Examples
    --------
    >>> import torch
    >>> from mla_ref import rope_cos_sin
    >>> query = torch.ones(1, 1, 1, 2)
    >>> _ = apply_rope(query, *rope_cos_sin(torch.tensor([1]), 2), out=query)  # in place, by one radian
    >>> query.flatten()
    tensor([-0.3012,  1.3818])
    """
    check_rotation(cos, sin, x=(x, by_rank(x, "B S H Dr", "B S Dr")))
    out = output_for(x, out)
    if x.numel() == 0:
        return out
    cos, sin = cos.contiguous(), sin.contiguous()
    x4, out4 = (each if x.ndim == 4 else each.unsqueeze(2) for each in (x, out))
    B, S, H, width = x4.shape
    block_h, block_p, num_warps = choose_blocks(B * S, H, width)
    block_n = 1
    if H == 1 and B * S >= FEW_TOKENS:
        block_n, num_warps = max(BLOCK_VALUES // block_p, 2), 4
    with on_device_of(x):
        _rope[(ceil_div(B * S, block_n), ceil_div(H, block_h))](
            x4, cos, sin, out4, B, S, H, width // 2,
            *x4.stride(), *out4.stride(), cos.stride(0) if cos.ndim == 3 else 0,
            interleaved, block_n, block_h, block_p, num_warps=num_warps,
        )  # fmt: skip
    return out


def check_rotation(cos: Tensor, sin: Tensor, **rotated: tuple[Tensor, str]) -> None:
    """Check what :func:`check_rope` checks, and that a kernel can do it."""
    check_rope(cos, sin, **rotated)
    check_operands("mla_ref.apply_rope", **{name: x for name, (x, _) in rotated.items()})
    check_gradients("mla_ref.apply_rope", cos=cos, sin=sin)


def choose_blocks(tokens: int, heads: int, width: int) -> tuple[int, int, int]:
    """Return heads, pairs and warps a program; a few tokens are spread over more programs, to fill the GPU."""
    block_h = min(power_of_2(heads), 128 if tokens >= 1024 else 16)
    block_p = power_of_2(width // 2)
    return block_h, block_p, min(max(block_h * block_p // 128, 1), 8)
