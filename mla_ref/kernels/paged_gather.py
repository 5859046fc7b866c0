"""Copy tokens of all sequences out of their pages: latent and shared key in one launch, a few tokens a program."""

import triton
import triton.language as tl
from torch import Tensor

from .._operands import check_gather, check_gathered
from ._launch import check_distinct, check_operands, on_device_of
from ._sizes import ceil_div
from .paged_update import choose_blocks, locate


@triton.jit
def _paged_gather(
    c_pages_ptr, k_pages_ptr, table_ptr, lengths_ptr, starts_ptr, c_kv_ptr, k_rope_ptr,
    T, R, DR, num_pages, page_size, max_pages,
    stride_cp, stride_ct, stride_cpd, stride_kp, stride_kt, stride_kpd, stride_tb, stride_td, stride_ld, stride_sd,
    stride_cb, stride_cs, stride_cd, stride_kb, stride_ks, stride_kd,
    BLOCK_N: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_DR: tl.constexpr,
):  # fmt: skip
    blocks = tl.cdiv(T, BLOCK_N)
    b = (tl.program_id(0) // blocks).to(tl.int64)
    offs_n = tl.program_id(0) % blocks * BLOCK_N + tl.arange(0, BLOCK_N)
    real = (offs_n < T) & (offs_n < tl.load(lengths_ptr + b * stride_ld))
    position = offs_n
    if starts_ptr is not None:
        position += tl.load(starts_ptr + b * stride_sd)
    page, slot, real = locate(table_ptr + b * stride_tb, stride_td, position, real, num_pages, page_size, max_pages)

    offs_n = offs_n.to(tl.int64)[:, None]
    offs_r, offs_d = tl.arange(0, BLOCK_R).to(tl.int64)[None, :], tl.arange(0, BLOCK_DR).to(tl.int64)[None, :]
    c_mask, k_mask = real & (offs_r < R), real & (offs_d < DR)
    # [BLOCK_N, BLOCK_R] and [BLOCK_N, BLOCK_DR]; both are loaded before one is stored, to wait only once
    c = tl.load(c_pages_ptr + page * stride_cp + slot * stride_ct + offs_r * stride_cpd, mask=c_mask)
    rope = tl.load(k_pages_ptr + page * stride_kp + slot * stride_kt + offs_d * stride_kpd, mask=k_mask)
    tl.store(c_kv_ptr + b * stride_cb + offs_n * stride_cs + offs_r * stride_cd, c, mask=c_mask)
    tl.store(k_rope_ptr + b * stride_kb + offs_n * stride_ks + offs_d * stride_kd, rope, mask=k_mask)


def paged_gather(
    c_kv_pages: Tensor,
    k_rope_pages: Tensor,
    block_table: Tensor,
    *,
    starts: Tensor | None = None,
    lengths: Tensor,
    out: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """Copy tokens of all sequences to contiguous memory: :func:`mla_ref.paged_gather` in one launch.

    Parameters
    ----------
    c_kv_pages, k_rope_pages
        ``[num_pages, page_size, R]`` and ``[num_pages, page_size, Dr]``, any layout.
    block_table
        int32 or int64 ``[B, max_pages]``; entries that no token to copy needs are not read.
    starts
        int32 or int64 ``[B]``, position of each sequence's first token to copy; 0 by default.
    lengths
        int32 or int64 ``[B]``, tokens to copy.
    out
        ``[B, T, R]`` and ``[B, T, Dr]``, any layout: where the results go, cut off at T. What lies beyond ``lengths``
        stays as it is.

    Returns
    -------
    c_kv, k_rope
        ``out``, or new tensors of T = max(``lengths``), zero beyond ``lengths``. Reading T waits for the device: pass
        ``out`` in a CUDA graph.

    Raises
    ------
    TypeError, ValueError, RuntimeError
        Shapes, dtypes or devices that do not agree, or a tensor that requires a gradient. On a CPU and without ``out``,
        where nothing more has to wait, also a token to copy that is in no page; elsewhere it is left out.

    References
    ----------
    PagedAttention, Kwon et al. 2023, arXiv:2309.06180; "Optimizing Multi-head Latent Attention for Efficient
    Inference", section 3.3.
    """
    waited = out is None
    size, out = check_gather(c_kv_pages, k_rope_pages, block_table, starts, lengths, out)
    c_kv, k_rope = out
    outs = {"out[0]": c_kv, "out[1]": k_rope}
    check_operands("mla_ref.paged_gather", c_kv_pages=c_kv_pages, k_rope_pages=k_rope_pages, **outs)
    check_distinct(**outs)
    if waited or not c_kv.is_cuda:
        check_gathered(size, block_table, starts, lengths)
    (B, T, R), Dr = c_kv.shape, k_rope.shape[-1]
    if B * T == 0:
        return out
    block_n, block_r, block_dr, num_warps = choose_blocks(T, R, Dr)
    with on_device_of(c_kv):
        _paged_gather[(B * ceil_div(T, block_n),)](
            c_kv_pages, k_rope_pages, block_table, lengths, starts, c_kv, k_rope,
            T, R, Dr, *c_kv_pages.shape[:2], block_table.shape[1],
            *c_kv_pages.stride(), *k_rope_pages.stride(), *block_table.stride(), *lengths.stride(),
            0 if starts is None else starts.stride(0), *c_kv.stride(), *k_rope.stride(),
            block_n, block_r, block_dr, num_warps=num_warps,
        )  # fmt: skip
    return out
