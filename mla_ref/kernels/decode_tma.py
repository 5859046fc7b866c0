"""Absorbed MLA decode through the copy engine of Hopper and newer GPUs.

TMA brings whole blocks of tokens to shared memory while earlier ones are worked on. No thread computes their addresses,
which leaves the registers to the accumulator: 64 heads by 512 latent dimensions are half of what a multiprocessor has.
"""

import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from ..float8 import Float8Latent
from . import decode as pointers
from ._decode import Decode, Tile, check_decode, limits, overlaps, run
from ._sizes import ceil_div, power_of_2
from .masked_softmax import finite, nonzero

LOG2_E = 1.4426950408889634


@triton.jit
def _page(block_table_ptr, position, end, stride_tp, PAGE_SIZE: tl.constexpr):
    """Return the page that holds a position, any page if that is not before the end."""
    # In 32 bits, as TMA counts: widened here, each block would wait for its load.
    return tl.load(block_table_ptr + position // PAGE_SIZE * stride_tp, mask=position < end, other=0).to(tl.int32)


@triton.jit
def _step(qk, c_kv, factors, acc, m_i, l_i, WHOLE: tl.constexpr):
    """Take a block of tokens into the softmax: qk, base 2, and l_i [BLOCK_M, BLOCK_N], c_kv [BLOCK_N, R].

    With ``WHOLE``, latents in FP8 with a factor a token [BLOCK_N], these meet the weights.
    """
    m_ij = tl.maximum(m_i, tl.max(qk, 1))
    base = finite(m_ij)
    p, alpha = tl.exp2(qk - base[:, None]), tl.exp2(m_i - base)
    weights = p * factors[None, :] if WHOLE else p
    acc = tl.dot(weights.to(c_kv.dtype), c_kv, acc * alpha[:, None])
    return acc, m_ij, l_i * alpha[:, None] + p


@triton.jit
def _scores(q_latent, q_rope, c_kv, k_rope, factors, scale, WHOLE: tl.constexpr):
    # Scaled apart and with a branch behind them, these products are no chain with the next. In a chain Triton
    # has each warpgroup compute all scores instead of half of them: 280 TFLOP/s at 128 heads instead of 355.
    factor = (factors * scale)[None, :] if WHOLE else scale
    return tl.dot(q_latent, tl.trans(c_kv)) * factor + tl.dot(q_rope, tl.trans(k_rope)) * scale


@triton.jit
def _widened(c_kv, factors_ptrs, inside, dtype, R: tl.constexpr, TILE: tl.constexpr):
    """Return latents [BLOCK_N, R] in 16 bits, and what each token is still to be multiplied by, where that is one."""
    factors = 0.0
    if TILE == R:
        # By way of float32: Hopper turns float16, in which FP8 arrives, into bfloat16 at a quarter of the speed.
        c_kv, factors = c_kv.to(tl.float32).to(dtype), tl.load(factors_ptrs, mask=inside, other=0.0)
    elif TILE > 0:
        tiles: tl.constexpr = R // TILE
        tile_factors = tl.load(factors_ptrs[:, None] + tl.arange(0, tiles), mask=inside[:, None], other=0.0)
        wide = tl.reshape(c_kv.to(tl.float32), [c_kv.shape[0], tiles, TILE]) * tile_factors[:, :, None]
        c_kv = tl.reshape(wide, [c_kv.shape[0], R]).to(dtype)
    return c_kv, factors


@triton.jit
def _latent_attention_tma(
    q_latent_ptr, q_rope_ptr, c_kv_desc, k_rope_desc, c_kv_ptr, k_rope_ptr, scales_ptr, seq_lens_ptr,
    block_table_ptr, out_ptr, lse_ptr, scale, S, H, T, c_kv_rows, k_rope_rows, scales_rows, num_splits,
    stride_qb, stride_qs, stride_qh, stride_qd, stride_rb, stride_rs, stride_rh, stride_rd,
    stride_ct, stride_kt, stride_xt, stride_tb, stride_tp,
    stride_op, stride_ob, stride_os, stride_oh, stride_od, stride_lp, stride_lb, stride_ls, stride_lh,
    CAUSAL: tl.constexpr, FOLD: tl.constexpr, R: tl.constexpr, DR: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, PAGE_SIZE: tl.constexpr, TILE: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    if OVERLAP:
        tl.extra.cuda.gdc_launch_dependents()
    pid, blocks = tl.program_id(0), tl.cdiv(S * H, BLOCK_M)
    split, b = pid // blocks % num_splits, pid // blocks // num_splits
    offs_m = pid % blocks * BLOCK_M + tl.arange(0, BLOCK_M)
    if FOLD:
        s, h = (offs_m // H).to(tl.int64), (offs_m % H).to(tl.int64)
    else:  # one query token: without the divisions no register spills
        s, h = tl.zeros([BLOCK_M], tl.int64), offs_m.to(tl.int64)
    offs_r, offs_d = tl.arange(0, R).to(tl.int64), tl.arange(0, DR).to(tl.int64)

    # [BLOCK_M, R] and [BLOCK_M, DR]
    q_rows = b.to(tl.int64) * stride_qb + s * stride_qs + h * stride_qh
    q_latent = tl.load(q_latent_ptr + q_rows[:, None] + offs_r * stride_qd, mask=(offs_m < S * H)[:, None], other=0.0)
    q_rows = b.to(tl.int64) * stride_rb + s * stride_rs + h * stride_rh
    q_rope = tl.load(q_rope_ptr + q_rows[:, None] + offs_d * stride_rd, mask=(offs_m < S * H)[:, None], other=0.0)

    length = T if seq_lens_ptr is None else tl.maximum(tl.minimum(tl.load(seq_lens_ptr + b), T), 0).to(tl.int32)
    seen = tl.minimum(length - S + s.to(tl.int32) + 1, length) if CAUSAL else tl.full([BLOCK_M], length, tl.int32)
    seen_by_all, end = tl.min(seen), tl.max(seen)
    share = tl.cdiv(tl.cdiv(end, BLOCK_N), num_splits) * BLOCK_N
    start, end = share * split, tl.minimum(share * split + share, end)
    tail = start + (tl.maximum(end, start) - start) // BLOCK_N * BLOCK_N  # from here on less than a block

    m_i = tl.full([BLOCK_M], float("-inf"), tl.float32)
    l_i = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)  # summed once, at the end
    acc = tl.zeros([BLOCK_M, R], tl.float32)
    page = b
    if PAGE_SIZE > 0:
        block_table_ptr += b.to(tl.int64) * stride_tb
        page = _page(block_table_ptr, start, end, stride_tp, PAGE_SIZE)
    if start < tail:  # ptxas keeps matrix products in flight only in a loop that is sure to run
        for start_n in range(start, tail, BLOCK_N):
            slot = start_n % PAGE_SIZE if PAGE_SIZE > 0 else start_n
            # [BLOCK_N, R] and [BLOCK_N, DR]
            c_kv = c_kv_desc.load([(page * c_kv_rows + slot).to(tl.int32), 0])
            k_rope = k_rope_desc.load([(page * k_rope_rows + slot).to(tl.int32), 0])
            factors_ptrs = scales_ptr
            if TILE > 0:
                tokens = page.to(tl.int64) * scales_rows + slot + tl.arange(0, BLOCK_N)
                factors_ptrs = scales_ptr + tokens * stride_xt
            c_kv, factors = _widened(c_kv, factors_ptrs, tl.full([BLOCK_N], True, tl.int1), k_rope.dtype, R, TILE)
            if PAGE_SIZE > 0:  # the next page, a block ahead of its use
                page = _page(block_table_ptr, start_n + BLOCK_N, end, stride_tp, PAGE_SIZE)
            qk = _scores(q_latent, q_rope, c_kv, k_rope, factors, scale, TILE == R)
            if start_n + BLOCK_N > seen_by_all:
                qk = tl.where(start_n + tl.arange(0, BLOCK_N) < seen[:, None], qk, float("-inf"))
            acc, m_i, l_i = _step(qk, c_kv, factors, acc, m_i, l_i, TILE == R)
    if tail < end:
        offs_n = tl.arange(0, BLOCK_N)
        inside = (tail + offs_n < end)[:, None]  # beyond the end the cache may hold NaN
        slot = (tail % PAGE_SIZE if PAGE_SIZE > 0 else tail) + offs_n[:, None]
        c_kv_ptrs = c_kv_ptr + (page.to(tl.int64) * c_kv_rows + slot) * stride_ct + offs_r
        c_kv = tl.load(c_kv_ptrs, mask=inside, other=0.0)
        k_rope_ptrs = k_rope_ptr + (page.to(tl.int64) * k_rope_rows + slot) * stride_kt + offs_d
        k_rope = tl.load(k_rope_ptrs, mask=inside, other=0.0)
        factors_ptrs = scales_ptr
        if TILE > 0:
            tokens = page.to(tl.int64) * scales_rows + (tail % PAGE_SIZE if PAGE_SIZE > 0 else tail) + offs_n
            factors_ptrs = scales_ptr + tokens * stride_xt
        c_kv, factors = _widened(c_kv, factors_ptrs, tail + offs_n < end, k_rope.dtype, R, TILE)
        qk = _scores(q_latent, q_rope, c_kv, k_rope, factors, scale, TILE == R)
        qk = tl.where((tail + offs_n < end) & (tail + offs_n < seen[:, None]), qk, float("-inf"))
        acc, m_i, l_i = _step(qk, c_kv, factors, acc, m_i, l_i, TILE == R)

    l_i = nonzero(tl.sum(l_i, 1))
    out = (acc / l_i[:, None]).to(out_ptr.dtype.element_ty)
    split, b = split.to(tl.int64), b.to(tl.int64)
    out_rows = split * stride_op + b * stride_ob + s * stride_os + h * stride_oh
    tl.store(out_ptr + out_rows[:, None] + offs_r * stride_od, out, mask=(offs_m < S * H)[:, None])
    lse_rows = split * stride_lp + b * stride_lb + s * stride_ls + h * stride_lh
    tl.store(lse_ptr + lse_rows, (m_i + tl.log2(l_i)) * 0.6931471805599453, mask=offs_m < S * H)


def latent_attention_tma(
    q_latent: Tensor,
    q_rope: Tensor,
    c_kv: Tensor | Float8Latent,
    k_rope: Tensor,
    *,
    scale: float,
    seq_lens: Tensor | None = None,
    causal: bool = True,
    out: Tensor | None = None,
    lse: Tensor | None = None,
    num_splits: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute :func:`mla_ref.kernels.latent_attention`, same arguments, faster on GPUs that have TMA.

    That function still does what this kernel cannot: GPUs before sm_90, float32, caches whose rows are not spaced
    evenly in steps of 16 bytes, widths that are no powers of two or more than fits.
    """
    decode = check_decode(q_latent, q_rope, c_kv, k_rope, seq_lens, None, scale, causal, paged=False)
    return run_fitting(decode, out, lse, num_splits)


def paged_latent_attention_tma(
    q_latent: Tensor,
    q_rope: Tensor,
    c_kv: Tensor | Float8Latent,
    k_rope: Tensor,
    block_table: Tensor,
    *,
    scale: float,
    seq_lens: Tensor,
    causal: bool = True,
    out: Tensor | None = None,
    lse: Tensor | None = None,
    num_splits: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute :func:`mla_ref.kernels.paged_latent_attention`, same arguments, faster where pages hold whole blocks.

    That is a multiple of 64 tokens a page, or of 32 where S·H is at most 16. That function still does the others, and
    what :func:`latent_attention_tma` leaves to its own.
    """
    decode = check_decode(q_latent, q_rope, c_kv, k_rope, seq_lens, block_table, scale, causal, paged=True)
    return run_fitting(decode, out, lse, num_splits)


def run_fitting(
    decode: Decode, out: Tensor | None, lse: Tensor | None, num_splits: int | None
) -> tuple[Tensor, Tensor]:
    """Run this kernel if it can, the one without TMA otherwise."""
    tile = choose_tile(decode)
    if fits(decode, tile):
        return run(launch, decode, tile, out, lse, num_splits)
    return run(pointers.launch, decode, pointers.choose_tile(decode), out, lse, num_splits)


def choose_tile(decode: Decode) -> Tile:
    """Return the block sizes that were fastest on an H100; for 64 rows the tensor cores of a B200 want more memory."""
    if decode.S * decode.H <= 16:
        return Tile(16, 32, 4, 3)
    return Tile(64 if limits(decode.c_kv.device).capability < (10, 0) else 32, 64, 8, 2)


def fits(decode: Decode, tile: Tile) -> bool:
    """Return whether TMA can read this cache in blocks of this size."""
    caches, table, limit = (decode.c_kv, decode.k_rope), decode.block_table, limits(decode.c_kv.device)
    token = sum(x.shape[2] * x.element_size() for x in caches)
    widened = 0 if decode.scales is None else tile.block_n * decode.R * 2  # FP8, once more in 16 bits
    rows_bytes = tile.block_m * (decode.R + decode.Dr) * 2 + tile.num_stages * tile.block_n * token + widened
    return (
        limit.hopper
        and decode.k_rope.element_size() == 2
        and rows_bytes <= limit.shared_bytes
        and all(x.shape[2] == max(power_of_2(x.shape[2]), 16) for x in caches)
        and all(x.stride(2) == 1 and x.data_ptr() % 16 == 0 for x in caches)
        and all(x.stride(1) * x.element_size() % 16 == 0 < x.stride(1) for x in caches)
        and all(
            x.numel() > 0 and x.stride(0) % x.stride(1) == 0 and rows_between(x) * x.shape[0] < 2**31 for x in caches
        )
        and (decode.scales is None or decode.scales.is_contiguous())
        and (table is None or (decode.c_kv.shape[1] % tile.block_n == 0 and table.stride(1) * decode.T < 2**31))
    )


def rows_between(cache: Tensor) -> int:
    """Return the rows from the start of a sequence, or page, to that of the next."""
    return cache.stride(0) // cache.stride(1)


def _descriptor(cache, block_n):
    """[B, T, R] as rows of R: TMA counts the rows in 32 bits and the bytes in 64."""
    rows = (cache.shape[0] - 1) * rows_between(cache) + cache.shape[1]
    return TensorDescriptor(cache, [rows, cache.shape[2]], [cache.stride(1), 1], [block_n, cache.shape[2]])


def launch(decode: Decode, tile: Tile, outs: Tensor, lses: Tensor) -> None:
    """Start the kernel, a program for each block of rows, split and sequence."""
    d, table, scales, num_splits = decode, decode.block_table, decode.scales, outs.shape[0]
    scales_rows, stride_xt = (0, 0) if scales is None else scales.shape[1:]
    overlap = num_splits > 1 and overlaps(outs.device)
    _latent_attention_tma[(d.B * num_splits * ceil_div(d.S * d.H, tile.block_m),)](
        d.q_latent, d.q_rope, _descriptor(d.c_kv, tile.block_n), _descriptor(d.k_rope, tile.block_n),
        d.c_kv, d.k_rope, scales, d.seq_lens, table, outs, lses,
        d.scale * LOG2_E, d.S, d.H, d.T, rows_between(d.c_kv), rows_between(d.k_rope), scales_rows, num_splits,
        *d.q_latent.stride(), *d.q_rope.stride(), d.c_kv.stride(1), d.k_rope.stride(1), stride_xt,
        *((0, 0) if table is None else table.stride()), *outs.stride(), *lses.stride(),
        d.causal, d.S > 1, d.R, d.Dr, tile.block_m, tile.block_n, 0 if table is None else d.c_kv.shape[1],
        0 if scales is None else d.R // stride_xt, overlap,
        num_warps=tile.num_warps, num_stages=tile.num_stages,
    )  # fmt: skip
