"""Write new tokens of all sequences into their pages: latent and shared key in one launch, a few tokens a program."""

import triton
import triton.language as tl
from torch import Tensor

from .._operands import check_update
from ._launch import check_distinct, check_operands, on_device_of
from ._sizes import ceil_div, power_of_2


@triton.jit
def _paged_update(
    c_kv_ptr, k_rope_ptr, c_pages_ptr, k_pages_ptr, table_ptr, starts_ptr, lengths_ptr,
    S, R, DR, num_pages, page_size, max_pages,
    stride_cb, stride_cs, stride_cd, stride_kb, stride_ks, stride_kd,
    stride_cp, stride_ct, stride_cpd, stride_kp, stride_kt, stride_kpd, stride_tb, stride_td, stride_sd, stride_ld,
    BLOCK_S: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_DR: tl.constexpr,
):  # fmt: skip
    blocks = tl.cdiv(S, BLOCK_S)
    b = (tl.program_id(0) // blocks).to(tl.int64)
    offs_s = tl.program_id(0) % blocks * BLOCK_S + tl.arange(0, BLOCK_S)
    real = offs_s < S
    if lengths_ptr is not None:
        real = real & (offs_s < tl.load(lengths_ptr + b * stride_ld))
    start = tl.load(starts_ptr + b * stride_sd)
    table_row, position = table_ptr + b * stride_tb, start + offs_s
    page, slot, real = locate(table_row, stride_td, position, real, num_pages, page_size, max_pages)

    offs_s = offs_s.to(tl.int64)[:, None]
    offs_r, offs_d = tl.arange(0, BLOCK_R).to(tl.int64)[None, :], tl.arange(0, BLOCK_DR).to(tl.int64)[None, :]
    c_mask, k_mask = real & (offs_r < R), real & (offs_d < DR)
    # [BLOCK_S, BLOCK_R] and [BLOCK_S, BLOCK_DR]; both are loaded before one is stored, to wait only once
    c = tl.load(c_kv_ptr + b * stride_cb + offs_s * stride_cs + offs_r * stride_cd, mask=c_mask)
    rope = tl.load(k_rope_ptr + b * stride_kb + offs_s * stride_ks + offs_d * stride_kd, mask=k_mask)
    tl.store(c_pages_ptr + page * stride_cp + slot * stride_ct + offs_r * stride_cpd, c, mask=c_mask)
    tl.store(k_pages_ptr + page * stride_kp + slot * stride_kt + offs_d * stride_kpd, rope, mask=k_mask)


@triton.jit
def locate(table_row, stride, position, real, num_pages, page_size, max_pages):
    """Return page and slot [N, 1] of positions [N], and whether they are real and lie in a page."""
    entry = position // page_size
    real = real & (position >= 0) & (entry < max_pages)
    page = tl.load(table_row + entry.to(tl.int64) * stride, mask=real, other=-1).to(tl.int64)
    real = real & (page >= 0) & (page < num_pages)
    return page[:, None], (position % page_size).to(tl.int64)[:, None], real[:, None]


def choose_blocks(tokens: int, R: int, Dr: int) -> tuple[int, int, int, int]:
    """Return tokens, latent and key width of a block, and warps a program."""
    block_r, block_dr = power_of_2(R), power_of_2(Dr)
    block_s = min(power_of_2(tokens), max(2048 // block_r, 1))
    return block_s, block_r, block_dr, min(max(block_s * block_r // 1024, 1), 8)


def paged_update(
    c_kv: Tensor,
    k_rope: Tensor,
    c_kv_pages: Tensor,
    k_rope_pages: Tensor,
    block_table: Tensor,
    *,
    starts: Tensor,
    lengths: Tensor | None = None,
) -> None:
    """Write new tokens of all sequences into their pages: :func:`mla_ref.paged_update` in one launch.

    Token s of sequence b goes to position ``starts[b] + s``, which is slot ``position % page_size`` of page
    ``block_table[b, position // page_size]``. A position outside the table, or one whose table entry is no page, is
    left out. No two tokens may have the same slot.

    Parameters
    ----------
    c_kv, k_rope
        ``[B, S, R]`` and ``[B, S, Dr]``, any layout.
    c_kv_pages, k_rope_pages
        ``[num_pages, page_size, R]`` and ``[num_pages, page_size, Dr]``, any layout; written in place.
    block_table
        int32 or int64 ``[B, max_pages]``; entries that no real token needs are not read.
    starts
        int32 or int64 ``[B]``, position of each sequence's first new token.
    lengths
        int32 or int64 ``[B]``, how many of the S tokens are real, from the first on; all by default.

    Raises
    ------
    TypeError, ValueError, RuntimeError
        Shapes, dtypes or devices that do not agree, pages that share memory, or a tensor that requires a gradient.

    References
    ----------
    PagedAttention, Kwon et al. 2023, arXiv:2309.06180; "Optimizing Multi-head Latent Attention for Efficient
    Inference", section 3.3.
    """
    check_update(c_kv, k_rope, c_kv_pages, k_rope_pages, block_table, starts, lengths)
    check_operands("mla_ref.paged_update", c_kv=c_kv, k_rope=k_rope, c_kv_pages=c_kv_pages, k_rope_pages=k_rope_pages)
    check_distinct(c_kv_pages=c_kv_pages, k_rope_pages=k_rope_pages)
    (B, S, R), Dr = c_kv.shape, k_rope.shape[-1]
    if B * S == 0:
        return
    block_s, block_r, block_dr, num_warps = choose_blocks(S, R, Dr)
    with on_device_of(c_kv):
        _paged_update[(B * ceil_div(S, block_s),)](
            c_kv, k_rope, c_kv_pages, k_rope_pages, block_table, starts, lengths,
            S, R, Dr, *c_kv_pages.shape[:2], block_table.shape[1],
            *c_kv.stride(), *k_rope.stride(), *c_kv_pages.stride(), *k_rope_pages.stride(), *block_table.stride(),
            *starts.stride(), 0 if lengths is None else lengths.stride(0),
            block_s, block_r, block_dr, num_warps=num_warps,
        )  # fmt: skip
