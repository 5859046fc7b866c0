"""The two batched products of the absorbed form: a program for each head and block of its results.

A decode step has few rows, so the weights are nearly all that is read: 16 MiB for each product of DeepSeek-V3. For one
row a program can ask for its whole block of weights at once, multiply without the tensor cores, and be done.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..quantize import Int4Weight
from ..reconstruction import check_product
from ._decode import block_width, limits, overlaps
from ._launch import check_operands, check_width, on_device_of, result_for
from ._sizes import ceil_div, power_of_2
from .reconstruct_int4 import ZERO, _many_rows_int4, _one_row_int4, place

BLOCK = 8192  # weights of a program that does without the tensor cores; no row may be wider


@triton.jit
def _one_row(
    x_ptr, w_ptr, out_ptr, S, N,
    stride_xb, stride_xs, stride_xh, stride_xd, stride_wh, stride_wk, stride_wn,
    stride_ob, stride_os, stride_oh, stride_od,
    K: tl.constexpr, OVERLAP: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    m, h, block_n = place(OVERLAP, 1)
    b, s = (m // S).to(tl.int64), (m % S).to(tl.int64)
    offs_n = block_n * BLOCK_N + tl.arange(0, BLOCK_N)
    offs_k = tl.arange(0, BLOCK_K).to(tl.int64)
    # [BLOCK_K, BLOCK_N] and [BLOCK_K]
    w_ptrs = w_ptr + h * stride_wh + offs_k[:, None] * stride_wk + offs_n[None, :] * stride_wn
    w = tl.load(w_ptrs, mask=(offs_k < K)[:, None] & (offs_n < N)[None, :], other=0.0)
    x_ptrs = x_ptr + b * stride_xb + s * stride_xs + h * stride_xh + offs_k * stride_xd
    x = tl.load(x_ptrs, mask=offs_k < K, other=0.0)
    acc = tl.sum(x.to(tl.float32)[:, None] * w.to(tl.float32), 0)
    out_ptrs = out_ptr + b * stride_ob + s * stride_os + h * stride_oh + offs_n * stride_od
    tl.store(out_ptrs, acc.to(out_ptr.dtype.element_ty), mask=offs_n < N)


@triton.jit
def _many_rows(
    x_ptr, w_ptr, out_ptr, M, S, N,
    stride_xb, stride_xs, stride_xh, stride_xd, stride_wh, stride_wk, stride_wn,
    stride_ob, stride_os, stride_oh, stride_od,
    K: tl.constexpr, OVERLAP: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    start_m, h, block_n = place(OVERLAP, BLOCK_M)
    offs_m = start_m + tl.arange(0, BLOCK_M)
    b, s = (offs_m // S).to(tl.int64), (offs_m % S).to(tl.int64)
    offs_n = block_n * BLOCK_N + tl.arange(0, BLOCK_N)
    x_rows = x_ptr + b * stride_xb + s * stride_xs + h * stride_xh
    w_columns = w_ptr + h * stride_wh + offs_n * stride_wn

    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start_k in range(0, K, BLOCK_K):
        offs_k = start_k + tl.arange(0, BLOCK_K).to(tl.int64)
        # [BLOCK_M, BLOCK_K] and [BLOCK_K, BLOCK_N]
        x_ptrs = x_rows[:, None] + offs_k[None, :] * stride_xd
        x = tl.load(x_ptrs, mask=(offs_m < M)[:, None] & (offs_k < K)[None, :], other=0.0)
        w_ptrs = w_columns[None, :] + offs_k[:, None] * stride_wk
        w = tl.load(w_ptrs, mask=(offs_k < K)[:, None] & (offs_n < N)[None, :], other=0.0)
        acc = tl.dot(x, w, acc, input_precision="ieee")
    out_ptrs = out_ptr + (b * stride_ob + s * stride_os + h * stride_oh)[:, None] + offs_n[None, :] * stride_od
    tl.store(out_ptrs, acc.to(out_ptr.dtype.element_ty), mask=(offs_m < M)[:, None] & (offs_n < N)[None, :])


@dataclass(frozen=True)
class Tile:
    """Rows, columns and depth of a block, warps and stages of a program; without ``dot`` it does without tensor cores.

    The depth of INT4 weights is their group: what stands here is the largest. ``overlap`` lets a program start before
    the kernel ahead has ended, on GPUs where that is possible; with several stages of INT4 and few rows it is slower.
    """

    block_m: int
    block_n: int
    block_k: int
    num_warps: int
    num_stages: int = 1
    dot: bool = True
    overlap: bool = True


# For up to so many rows, by INT4 or not and by K, which is short in the product into the query and long in the one
# behind the attention. Measured on an H200 with the widths of DeepSeek-V3: the fastest with L2 emptied before a call,
# of equals the fastest with the weights in L2. Float32 was not measured: no tensor core multiplies it exactly.
MANY = math.inf
TILES = {
    (False, "short"): {
        16: Tile(16, 64, 64, 4, 2), 32: Tile(32, 64, 64, 4, 2), MANY: Tile(64, 128, 64, 4, 2),
    },
    (False, "long"): {
        1: Tile(1, 16, 512, 4, dot=False), 16: Tile(16, 64, 256, 2, 3), 32: Tile(32, 128, 128, 8, 4),
        64: Tile(64, 128, 128, 8, 3), MANY: Tile(128, 128, 64, 8, 4),
    },
    (False, "float32"): {
        1: Tile(1, 16, 512, 4, dot=False), 16: Tile(16, 64, 32, 4, 3), 64: Tile(64, 64, 32, 4, 3),
        MANY: Tile(128, 128, 32, 8, 3),
    },
    (True, "short"): {
        1: Tile(1, 64, 128, 4, dot=False), 16: Tile(16, 256, 128, 8), 32: Tile(32, 256, 128, 4),
        64: Tile(64, 256, 128, 4), MANY: Tile(128, 128, 128, 4),
    },
    (True, "long"): {
        2: Tile(1, 16, 512, 2, dot=False), 16: Tile(16, 64, 128, 4, 3, overlap=False),
        32: Tile(32, 64, 128, 4, 3, overlap=False), 64: Tile(64, 64, 128, 4, 3), MANY: Tile(64, 128, 128, 4, 3),
    },
    (True, "float32"): {
        1: Tile(1, 16, 512, 4, dot=False), 16: Tile(16, 64, 128, 4), MANY: Tile(64, 64, 128, 4),
    },
}  # fmt: skip


def absorb_query(q_nope: Tensor, w_uk: Tensor | Int4Weight, *, out: Tensor | None = None) -> Tensor:
    """Bring the queries to the latent: :func:`mla_ref.absorb_query` in one launch.

    Parameters
    ----------
    q_nope
        ``[B, S, H, Dn]``, any layout.
    w_uk
        ``[H, Dn, R]`` in the same dtype, any layout, or what :func:`mla_ref.quantize_int4` makes of it with
        ``axis=1``.
    out
        Where the result goes, any layout; it may not overlap ``q_nope``.

    Returns
    -------
    Tensor
        ``out``, or a new tensor ``[B, S, H, R]`` in the dtype of ``q_nope``.

    Raises
    ------
    TypeError, ValueError, RuntimeError
        Shapes, dtypes or devices that do not agree, Dn = 0, a weight quantised along the other axis, or a tensor that
        requires a gradient.
    """
    return _product("q_nope", q_nope, "Dn", "w_uk", w_uk, 1, out)


def reconstruct_value(o_latent: Tensor, w_uv: Tensor | Int4Weight, *, out: Tensor | None = None) -> Tensor:
    """Bring the output over the latent to the values' width: :func:`mla_ref.reconstruct_value` in one launch.

    Parameters
    ----------
    o_latent
        ``[B, S, H, R]``, any layout.
    w_uv
        ``[H, Dv, R]`` in the same dtype, any layout, or what :func:`mla_ref.quantize_int4` makes of it with
        ``axis=2``.
    out
        Where the result goes, any layout; it may not overlap ``o_latent``.

    Returns
    -------
    Tensor
        ``out``, or a new tensor ``[B, S, H, Dv]`` in the dtype of ``o_latent``.

    Raises
    ------
    TypeError, ValueError, RuntimeError
        As of :func:`absorb_query`, with R = 0 in place of Dn = 0.
    """
    return _product("o_latent", o_latent, "R", "w_uv", w_uv, 2, out)


def _product(x_name, x, width, w_name, weight, axis, out):
    check_product(x_name, x, width, w_name, weight, axis)
    tensors = {f"{w_name}.scales": weight.scales} if isinstance(weight, Int4Weight) else {w_name: weight}
    twin = "mla_ref.absorb_query" if axis == 1 else "mla_ref.reconstruct_value"
    check_operands(twin, **{x_name: x}, **tensors)
    check_width(x_name, x)
    out = result_for(out, "out", (*x.shape[:3], weight.shape[3 - axis]), (x.dtype,), x.device)
    if out.numel():
        with on_device_of(x):
            if isinstance(weight, Int4Weight):
                launch_int4(x, weight, out)
            else:
                launch(x, weight if axis == 1 else weight.mT, out)
    return out


def launch(x: Tensor, w: Tensor, out: Tensor, tile: Tile | None = None) -> None:
    """Start the product of x ``[B, S, H, K]`` and w ``[H, K, N]`` into ``[B, S, H, N]``."""
    tile = tile or choose_tile(x, out)
    _start(_many_rows if tile.dot else _one_row, tile, x, (w,), w.stride(), out, (), (tile.block_k,))


def launch_int4(x: Tensor, weight: Int4Weight, out: Tensor, tile: Tile | None = None) -> None:
    """Start the product of x ``[B, S, H, K]`` and packed rows ``[H, N, K/2]`` into ``[B, S, H, N]``."""
    tile = tile or choose_tile_int4(x, out)
    packed, scales = weight.packed.contiguous(), weight.scales.contiguous()
    if tile.dot:
        _start(_many_rows_int4, tile, x, (packed, scales, ZERO), (), out, (weight.group,), ())
    else:
        words = packed.view(torch.int32)
        _start(_one_row_int4, tile, x, (words, scales, ZERO), (), out, (weight.group,), (tile.block_k,))


def _start(kernel, tile, x, weights, strides, out, group, depth):
    B, S, H, K = x.shape
    N, overlap = out.shape[3], tile.overlap and overlaps(x.device)
    rows, side = ((B * S,), (tile.block_m,)) if tile.dot else ((), ())
    kernel[(ceil_div(B * S, tile.block_m), ceil_div(N, tile.block_n), H)](
        x, *weights, out, *rows, S, N, *x.stride(), *strides, *out.stride(), K, *group, overlap,
        *side, tile.block_n, *depth,
        num_warps=tile.num_warps, num_stages=tile.num_stages, **({"launch_pdl": True} if overlap else {}),
    )  # fmt: skip


def choose_tile(x: Tensor, out: Tensor) -> Tile:
    """Return the block sizes for x ``[B, S, H, K]`` and out ``[B, S, H, N]``."""
    return _choose(*_product_of(x, out), False)


def choose_tile_int4(x: Tensor, out: Tensor) -> Tile:
    """Return the block sizes for x ``[B, S, H, K]``, INT4 weights and out ``[B, S, H, N]``."""
    return _choose(*_product_of(x, out), True)


def _product_of(x, out):
    B, S, _, K = x.shape
    return B * S, K, out.shape[3], x.element_size(), limits(x.device).shared_bytes


@functools.lru_cache(1024)
def _choose(M, K, N, size, shared_bytes, int4):
    tiles = TILES[int4, "float32" if size == 4 else "short" if K <= N else "long"]
    tile = next(tile for rows, tile in tiles.items() if rows >= M and (tile.dot or K <= BLOCK))
    if not tile.dot:
        width = power_of_2(K)
        return replace(tile, block_n=min(BLOCK // width, power_of_2(N)), block_k=width)
    tile = replace(tile, block_n=min(tile.block_n, block_width(N)), block_k=min(tile.block_k, block_width(K)))
    if shared_bytes <= 64 * 2**10:
        size = 4  # a T4's operands lie in shared memory as float32
    while (tile.block_m + tile.block_n) * tile.block_k * size * tile.num_stages > shared_bytes:
        if tile.num_stages > 1:
            tile = replace(tile, num_stages=tile.num_stages - 1)
        else:
            side = "block_m" if tile.block_m > tile.block_n else "block_n"
            tile = replace(tile, **{side: getattr(tile, side) // 2})
    return tile
