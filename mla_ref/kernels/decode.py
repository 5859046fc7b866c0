"""Absorbed MLA decode: online softmax over the latent cache, split along the context where the batch is small.

Flash decoding (Dao et al. 2023) for one key-value head. The scores of a block of tokens live in registers only, and
each token is read once for the scores and, as the value, used again from where it is.
"""

import triton
import triton.language as tl
from torch import Tensor

from ..float8 import Float8Latent
from ._decode import Decode, Tile, block_width, check_decode, limits, overlaps, run
from ._sizes import ceil_div
from .masked_softmax import finite, nonzero

MAX_WIDTH = 1024  # of an accumulator, which lies in registers
# From fast to slow.
FEW_ROWS = Tile(16, 32, 4, 3), Tile(16, 32, 4, 2), Tile(16, 16, 4, 2)
MANY_ROWS = Tile(32, 32, 8, 3), Tile(32, 32, 8, 2), Tile(16, 16, 4, 2)
FLOAT32, T4, MI300X = (Tile(16, 16, 4, 2),), (Tile(8, 16, 8, 1),), (Tile(16, 32, 4, 1),)


@triton.jit
def _latent_attention(
    q_latent_ptr, q_rope_ptr, c_kv_ptr, k_rope_ptr, scales_ptr, seq_lens_ptr, block_table_ptr, out_ptr, lse_ptr,
    scale, S, H, T, page_size, num_splits,
    stride_qb, stride_qs, stride_qh, stride_qd, stride_rb, stride_rs, stride_rh, stride_rd,
    stride_cb, stride_ct, stride_cd, stride_kb, stride_kt, stride_kd, stride_xb, stride_xt, stride_xn,
    stride_tb, stride_tp,
    stride_op, stride_ob, stride_os, stride_oh, stride_od, stride_lp, stride_lb, stride_ls, stride_lh,
    CAUSAL: tl.constexpr, R: tl.constexpr, DR: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_DR: tl.constexpr,
    TILE: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    if OVERLAP:
        tl.extra.cuda.gdc_launch_dependents()
    # Programs that read the same tokens are neighbours, to meet in L2.
    pid, blocks = tl.program_id(0), tl.cdiv(S * H, BLOCK_M)
    split, b = (pid // blocks % num_splits).to(tl.int64), (pid // blocks // num_splits).to(tl.int64)
    # A row is a head of a query token: several tokens fold into one block where heads are few.
    offs_m = pid % blocks * BLOCK_M + tl.arange(0, BLOCK_M)
    s, h = (offs_m // H).to(tl.int64), (offs_m % H).to(tl.int64)
    offs_r, offs_d = tl.arange(0, BLOCK_R).to(tl.int64), tl.arange(0, BLOCK_DR).to(tl.int64)

    # [BLOCK_M, BLOCK_R] and [BLOCK_M, BLOCK_DR]
    q_latent_ptrs = q_latent_ptr + b * stride_qb + s[:, None] * stride_qs + h[:, None] * stride_qh + offs_r * stride_qd
    q_latent = tl.load(q_latent_ptrs, mask=(offs_m < S * H)[:, None] & (offs_r < R), other=0.0)
    q_rope_ptrs = q_rope_ptr + b * stride_rb + s[:, None] * stride_rs + h[:, None] * stride_rh + offs_d * stride_rd
    q_rope = tl.load(q_rope_ptrs, mask=(offs_m < S * H)[:, None] & (offs_d < DR), other=0.0)

    length = T if seq_lens_ptr is None else tl.maximum(tl.minimum(tl.load(seq_lens_ptr + b), T), 0).to(tl.int32)
    seen = tl.minimum(length - S + s.to(tl.int32) + 1, length) if CAUSAL else tl.full([BLOCK_M], length, tl.int32)
    end = tl.max(seen)
    share = tl.cdiv(tl.cdiv(end, BLOCK_N), num_splits) * BLOCK_N
    start, end = share * split.to(tl.int32), tl.minimum(share * split.to(tl.int32) + share, end)

    m_i = tl.full([BLOCK_M], float("-inf"), tl.float32)
    l_i = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_R], tl.float32)
    for start_n in range(start, end, BLOCK_N):
        offs_n = start_n + tl.arange(0, BLOCK_N)
        if block_table_ptr is None:
            page, slot = b, offs_n.to(tl.int64)
        else:
            page_ptrs = block_table_ptr + b * stride_tb + (offs_n // page_size).to(tl.int64) * stride_tp
            page = tl.load(page_ptrs, mask=offs_n < end, other=0).to(tl.int64)
            slot = (offs_n % page_size).to(tl.int64)
        # [BLOCK_N, BLOCK_R] and [BLOCK_N, BLOCK_DR]; zeros beyond the end, where the cache may hold NaN
        c_kv_rows, k_rope_rows = page * stride_cb + slot * stride_ct, page * stride_kb + slot * stride_kt
        c_kv_ptrs = c_kv_ptr + c_kv_rows[:, None] + offs_r * stride_cd
        c_kv = tl.load(c_kv_ptrs, mask=(offs_n < end)[:, None] & (offs_r < R), other=0.0)
        k_rope_ptrs = k_rope_ptr + k_rope_rows[:, None] + offs_d * stride_kd
        k_rope = tl.load(k_rope_ptrs, mask=(offs_n < end)[:, None] & (offs_d < DR), other=0.0)
        if TILE > 0:  # FP8
            scales_rows = page * stride_xb + slot * stride_xt
            scales_ptrs = scales_ptr + scales_rows[:, None] + offs_r // TILE * stride_xn
            scales = tl.load(scales_ptrs, mask=(offs_n < end)[:, None] & (offs_r < R), other=0.0)
            c_kv = (c_kv.to(tl.float32) * scales).to(q_latent.dtype)

        qk = tl.dot(q_latent, tl.trans(c_kv), input_precision="ieee")
        qk = tl.dot(q_rope, tl.trans(k_rope), qk, input_precision="ieee") * scale
        qk = tl.where((offs_n < end) & (offs_n < seen[:, None]), qk, float("-inf"))  # [BLOCK_M, BLOCK_N]

        m_ij = tl.maximum(m_i, tl.max(qk, 1))
        base = finite(m_ij)
        p, alpha = tl.exp(qk - base[:, None]), tl.exp(m_i - base)
        l_i = l_i * alpha + tl.sum(p, 1)
        acc = tl.dot(p.to(c_kv.dtype), c_kv, acc * alpha[:, None], input_precision="ieee")
        m_i = m_ij

    l_i = nonzero(l_i)  # rows that see nothing: 0 and -inf
    out = (acc / l_i[:, None]).to(out_ptr.dtype.element_ty)
    out_rows = split * stride_op + b * stride_ob + s * stride_os + h * stride_oh
    tl.store(out_ptr + out_rows[:, None] + offs_r * stride_od, out, mask=(offs_m < S * H)[:, None] & (offs_r < R))
    lse_rows = split * stride_lp + b * stride_lb + s * stride_ls + h * stride_lh
    tl.store(lse_ptr + lse_rows, m_i + tl.log(l_i), mask=offs_m < S * H)


def latent_attention(
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
    """Multi-query attention over the latent cache: :func:`mla_ref.latent_attention` in one launch, or in two.

    Parameters
    ----------
    q_latent, q_rope
        ``[B, S, H, R]`` absorbed query and ``[B, S, H, Dr]``, rotated. Any layout.
    c_kv, k_rope
        ``[B, T, R]`` and ``[B, T, Dr]``, any layout: they may be views of one buffer ``[B, T, R+Dr]``. ``c_kv`` may be
        in FP8, as :func:`mla_ref.quantize_latent` makes it: it is multiplied out to the dtype of the query.
    scale
        1/√(Dn+Dr), never 1/√(R+Dr).
    seq_lens
        int32 or int64 ``[B]``, tokens of each sequence that are real; all T by default. The values stay on the
        device and are not checked: less than 0 counts as 0, more than T as T. What the cache holds beyond is never
        used, NaN included.
    causal
        Whether query ``s`` sees only positions up to its own, ``seq_lens[b] - S + s``.
    out, lse
        Where the results go.
    num_splits
        Into how many parts each context is split, to be computed side by side and merged by a second launch. By
        default as many as fill the GPU, judged from the shapes alone. Where it is given, a sequence's result has the
        same bits whatever else is in the batch.

    Returns
    -------
    out, lse
        ``[B, S, H, R]`` in the dtype of ``q_latent``, still to be multiplied by W_UV, and float32 ``[B, S, H]``;
        0 and -inf where nothing is seen.

    Raises
    ------
    TypeError, ValueError, RuntimeError
        Shapes, dtypes or devices that do not agree, T < S under ``causal`` without ``seq_lens``, R = 0, above 1024 or
        more than the GPU's shared memory takes, or a tensor that requires a gradient.

    References
    ----------
    Flash-Decoding, Dao et al. 2023. Folding query tokens into heads: TokenSpeed-MLA, ``fold_sq_factor``.
    """
    decode = check_decode(q_latent, q_rope, c_kv, k_rope, seq_lens, None, scale, causal, paged=False)
    return run(launch, decode, choose_tile(decode), out, lse, num_splits)


def paged_latent_attention(
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
    """Attend to pages where they are: :func:`latent_attention` over a cache that a block table scatters.

    Every token looks its page up, before its load can start: on an H100 that halves the bandwidth.
    :func:`mla_ref.kernels.paged_latent_attention_tma` looks up once a block, ahead of time.

    Parameters
    ----------
    c_kv, k_rope
        ``[num_pages, page_size, R]``, or that in FP8, and ``[num_pages, page_size, Dr]``, any layout and page size.
    block_table
        int32 or int64 ``[B, max_pages]``: position ``t`` of sequence ``b`` is on page ``block_table[b, t //
        page_size]``, in slot ``t % page_size``. Entries beyond a sequence's length are never read. Warning: on a GPU
        the others are not checked, and one that is no page, -1 for example, has the kernel read outside of the pool;
        see :func:`mla_ref.check_table`, which is applied on a CPU.
    seq_lens
        Required. On a CPU a length below 0, or beyond max_pages × page_size, is an error.
    q_latent, q_rope, scale, causal, out, lse, num_splits
        As in :func:`latent_attention`, and so are results and errors.

    References
    ----------
    PagedAttention, Kwon et al. 2023, arXiv:2309.06180.
    """
    decode = check_decode(q_latent, q_rope, c_kv, k_rope, seq_lens, block_table, scale, causal, paged=True)
    return run(launch, decode, choose_tile(decode), out, lse, num_splits)


def launch(decode: Decode, tile: Tile, outs: Tensor, lses: Tensor) -> None:
    """Start the kernel, a program for each block of rows, split and sequence."""
    d, operands = decode, (decode.q_latent, decode.q_rope, decode.c_kv, decode.k_rope)
    scales, tile_width = d.scales, 0 if d.scales is None else d.R // d.scales.shape[2]
    num_splits = outs.shape[0]
    _latent_attention[(d.B * num_splits * ceil_div(d.S * d.H, tile.block_m),)](
        *operands, scales, d.seq_lens, d.block_table, outs, lses,
        d.scale, d.S, d.H, d.T, d.c_kv.shape[1], num_splits,
        *(stride for x in operands for stride in x.stride()),
        *((0, 0, 0) if scales is None else scales.stride()),
        *((0, 0) if d.block_table is None else d.block_table.stride()), *outs.stride(), *lses.stride(),
        d.causal, d.R, d.Dr, tile.block_m, tile.block_n, block_width(d.R), block_width(d.Dr),
        tile_width, num_splits > 1 and overlaps(outs.device),
        num_warps=tile.num_warps, num_stages=tile.num_stages,
    )  # fmt: skip


def choose_tile(decode: Decode) -> Tile:
    """Return the fastest block sizes that leave shared memory for the tokens of several blocks in flight.

    Raises
    ------
    ValueError
        Not even the smallest do.
    """
    limit, size = limits(decode.c_kv.device), decode.k_rope.element_size()
    block_r, width = block_width(decode.R), block_width(decode.R) + block_width(decode.Dr)
    if limit.shared_bytes <= 64 * 2**10:
        tiles = T4 if limit.nvidia else MI300X
    else:
        tiles = FLOAT32 if size == 4 else FEW_ROWS if decode.S * decode.H <= 16 else MANY_ROWS
    for each in tiles:
        if tiles is MI300X:  # one block is all that lies there
            shared_bytes = each.block_n * block_r * 4
        elif tiles is T4:  # whose tensor cores Triton does not use: operands lie there as float32
            shared_bytes = (each.block_m + each.block_n) * width * 4
        else:  # queries and the blocks ahead, and weights; or, where blocks are not copied ahead, layouts in between
            rows = each.block_m + (each.num_stages - 1) * each.block_n
            shared_bytes = rows * width * size + (12 if each.num_stages == 2 else 4) * 2**10
            if decode.scales is not None:  # FP8, once more in the dtype of the query
                shared_bytes += each.block_n * block_r * size
        if shared_bytes <= limit.shared_bytes and decode.R <= MAX_WIDTH:
            return each
    raise ValueError(
        f"R = {decode.R} and Dr = {decode.Dr}, expected R up to {MAX_WIDTH} and blocks that fit into "
        f"{limit.shared_bytes // 2**10} KiB of shared memory: use {decode.twin}"
    )
