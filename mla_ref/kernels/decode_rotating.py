"""Absorbed MLA decode from one buffer whose shared keys are cached before their rotation, and rotated as they are read.

The cache keeps what the projection gave, latent and key side by side. To rotate all keys first reads and writes a ninth
of the cache, and reads it again. Here a block's keys are turned in registers, on their way to the tensor cores.
"""

import functools

import triton
import triton.language as tl
from torch import Tensor

from .._validate import check_tensors
from ._decode import Decode, Tile, check_decode, overlaps, run
from ._launch import check_operands
from ._sizes import ceil_div, power_of_2
from .decode_hopper import fits as hopper_fits
from .decode_hopper import latent_attention_hopper
from .decode_tma import LOG2_E, _descriptor, _scores, _step, choose_tile, fits, rows_between
from .masked_softmax import nonzero
from .rope import apply_rope


@triton.jit
def _keys(k_rope_ptr, cos_ptr, sin_ptr, offs_n, end, stride_kt, HALF: tl.constexpr):
    """Return both halves of the keys of a block, and cos and sin of its positions: [BLOCK_N, HALF] each."""
    offs_d, inside = tl.arange(0, HALF), (offs_n < end)[:, None]
    rows, angles = offs_n[:, None] * stride_kt + offs_d, offs_n[:, None] * HALF + offs_d
    first = tl.load(k_rope_ptr + rows, mask=inside, other=0.0)
    second = tl.load(k_rope_ptr + rows + HALF, mask=inside, other=0.0)
    cos = tl.load(cos_ptr + angles, mask=inside, other=0.0)
    sin = tl.load(sin_ptr + angles, mask=inside, other=0.0)
    return first, second, cos, sin


@triton.jit
def _rotated(first, second, cos, sin):
    x, y = first.to(tl.float32), second.to(tl.float32)
    return (x * cos - y * sin).to(first.dtype), (y * cos + x * sin).to(first.dtype)


@triton.jit
def _both_scores(q_latent, q_first, q_second, c_kv, k_first, k_second, scale):
    """Return scores [BLOCK_M, BLOCK_N], base 2: each half of the rotated key is a product of its own."""
    qk = _scores(q_latent, q_first, c_kv, k_first, 0.0, scale, False)
    return qk + tl.dot(q_second, tl.trans(k_second)) * scale


@triton.jit
def _rotating_attention(
    q_latent_ptr, q_rope_ptr, c_kv_desc, c_kv_ptr, k_rope_ptr, cos_ptr, sin_ptr, out_ptr, lse_ptr,
    scale, H, T, c_kv_rows, num_splits,
    stride_qb, stride_qh, stride_qd, stride_rb, stride_rh, stride_rd, stride_ct, stride_kb, stride_kt,
    stride_op, stride_ob, stride_oh, stride_od, stride_lp, stride_lb, stride_lh,
    R: tl.constexpr, HALF: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    if OVERLAP:
        tl.extra.cuda.gdc_launch_dependents()
    pid, blocks = tl.program_id(0), tl.cdiv(H, BLOCK_M)
    split, b = pid // blocks % num_splits, pid // blocks // num_splits
    h = (pid % blocks * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    offs_n, offs_r, offs_d = tl.arange(0, BLOCK_N), tl.arange(0, R).to(tl.int64), tl.arange(0, HALF).to(tl.int64)

    # [BLOCK_M, R] and twice [BLOCK_M, HALF]
    q_rows = b.to(tl.int64) * stride_qb + h * stride_qh
    q_latent = tl.load(q_latent_ptr + q_rows[:, None] + offs_r * stride_qd, mask=(h < H)[:, None], other=0.0)
    q_ptrs = q_rope_ptr + (b.to(tl.int64) * stride_rb + h * stride_rh)[:, None] + offs_d * stride_rd
    q_first = tl.load(q_ptrs, mask=(h < H)[:, None], other=0.0)
    q_second = tl.load(q_ptrs + HALF * stride_rd, mask=(h < H)[:, None], other=0.0)

    share = tl.cdiv(tl.cdiv(T, BLOCK_N), num_splits) * BLOCK_N
    start, end = share * split, tl.minimum(share * split + share, T)
    tail = start + (tl.maximum(end, start) - start) // BLOCK_N * BLOCK_N  # from here on less than a block
    k_rope_ptr += b.to(tl.int64) * stride_kb

    m_i = tl.full([BLOCK_M], float("-inf"), tl.float32)
    l_i = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)  # summed once, at the end
    acc = tl.zeros([BLOCK_M, R], tl.float32)
    first, second, cos, sin = _keys(k_rope_ptr, cos_ptr, sin_ptr, start + offs_n, end, stride_kt, HALF)
    k_first, k_second = _rotated(first, second, cos, sin)
    if start < tail:  # ptxas keeps matrix products in flight only in a loop that is sure to run
        for start_n in range(start, tail, BLOCK_N):
            c_kv = c_kv_desc.load([(b * c_kv_rows + start_n).to(tl.int32), 0])  # [BLOCK_N, R]
            # The next block's keys, held in registers: shared memory has no room for them beside the latents.
            ahead = start_n + BLOCK_N + offs_n
            first, second, cos, sin = _keys(k_rope_ptr, cos_ptr, sin_ptr, ahead, end, stride_kt, HALF)
            qk = _both_scores(q_latent, q_first, q_second, c_kv, k_first, k_second, scale)
            if start_n + BLOCK_N > T:  # never, and kept for its branch: see _scores
                qk = tl.where(start_n + offs_n < T, qk, float("-inf"))
            acc, m_i, l_i = _step(qk, c_kv, 0.0, acc, m_i, l_i, False)
            k_first, k_second = _rotated(first, second, cos, sin)
    if tail < end:
        inside = tail + offs_n < end  # beyond the end the cache may hold NaN
        rows = (b.to(tl.int64) * c_kv_rows + tail + offs_n) * stride_ct
        c_kv = tl.load(c_kv_ptr + rows[:, None] + offs_r, mask=inside[:, None], other=0.0)
        qk = _both_scores(q_latent, q_first, q_second, c_kv, k_first, k_second, scale)
        acc, m_i, l_i = _step(tl.where(inside, qk, float("-inf")), c_kv, 0.0, acc, m_i, l_i, False)

    l_i = nonzero(tl.sum(l_i, 1))
    out = (acc / l_i[:, None]).to(out_ptr.dtype.element_ty)
    split, b = split.to(tl.int64), b.to(tl.int64)
    out_rows = split * stride_op + b * stride_ob + h * stride_oh
    tl.store(out_ptr + out_rows[:, None] + offs_r * stride_od, out, mask=(h < H)[:, None])
    lse_rows = split * stride_lp + b * stride_lb + h * stride_lh
    tl.store(lse_ptr + lse_rows, (m_i + tl.log2(l_i)) * 0.6931471805599453, mask=h < H)


def rotating_latent_attention(
    q_latent: Tensor,
    q_rope: Tensor,
    cache: Tensor,
    cos: Tensor,
    sin: Tensor,
    *,
    scale: float,
    out: Tensor | None = None,
    lse: Tensor | None = None,
    num_splits: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Attend from one query token to a cache of latents and unrotated keys, in one launch, or in two with splits.

    Where the GPU has no TMA, or the widths are no powers of two, the keys are rotated first, by a kernel of their own.
    So they are on an H100 or H200 where :func:`latent_attention_hopper` gains more than that costs.

    Parameters
    ----------
    q_latent, q_rope
        ``[B, 1, H, R]`` absorbed query and ``[B, 1, H, Dr]``, rotated. Any layout.
    cache
        ``[B, T, R+Dr]``, any layout; its keys are rotated by halves, element i with i + Dr/2.
    cos, sin
        ``[T, Dr/2]``, of the positions of the cache. Any floating dtype.
    scale
        1/√(Dn+Dr).
    out, lse, num_splits
        As in :func:`mla_ref.kernels.latent_attention`.

    Returns
    -------
    out, lse
        ``[B, 1, H, R]`` in the dtype of ``q_latent``, and float32 ``[B, 1, H]``.

    Raises
    ------
    TypeError, ValueError, RuntimeError
        Shapes, dtypes or devices that do not agree, or a tensor that requires a gradient.
    """
    size = check_tensors(q_latent=(q_latent, "B 1 H R"), q_rope=(q_rope, "B 1 H Dr"))
    R, Dr = size["R"], size["Dr"]
    check_tensors(cache=(cache, f"{size['B']} T {R + Dr}"))
    T = cache.shape[1]
    check_tensors(cos=(cos, f"{T} {Dr // 2}"), sin=(sin, f"{T} {Dr // 2}"))
    check_operands("challenge_decode(impl='absorb')", cache=cache, cos=cos, sin=sin)
    c_kv, keys = cache[..., :R], cache[..., R:]
    decode = check_decode(q_latent, q_rope, c_kv, keys, None, None, scale, False, paged=False)
    tile = choose_tile(decode)
    within = cache.stride(1) * T < 2**31  # offsets in a sequence have 32 bits
    if not hopper_fits(decode) and T and within and Dr >= 32 and power_of_2(Dr) == Dr and fits(decode, tile):
        started = functools.partial(launch, cos.contiguous(), sin.contiguous())
        return run(started, decode, tile, out, lse, num_splits)
    rotated = apply_rope(keys, cos, sin, interleaved=False)
    return latent_attention_hopper(
        q_latent, q_rope, c_kv, rotated, scale=scale, causal=False, out=out, lse=lse, num_splits=num_splits
    )


def launch(cos: Tensor, sin: Tensor, decode: Decode, tile: Tile, outs: Tensor, lses: Tensor) -> None:
    """Start the kernel, a program for each block of heads, split and sequence."""
    d, num_splits = decode, outs.shape[0]
    strides = (
        *(x.stride(axis) for x in (d.q_latent, d.q_rope) for axis in (0, 2, 3)),
        d.c_kv.stride(1), *d.k_rope.stride()[:2],
        *(outs.stride(axis) for axis in (0, 1, 3, 4)), *(lses.stride(axis) for axis in (0, 1, 3)),
    )  # fmt: skip
    _rotating_attention[(d.B * num_splits * ceil_div(d.H, tile.block_m),)](
        d.q_latent, d.q_rope, _descriptor(d.c_kv, tile.block_n), d.c_kv, d.k_rope, cos, sin, outs, lses,
        d.scale * LOG2_E, d.H, d.T, rows_between(d.c_kv), num_splits, *strides,
        d.R, d.Dr // 2, tile.block_m, tile.block_n, num_splits > 1 and overlaps(outs.device),
        num_warps=tile.num_warps, num_stages=tile.num_stages,
    )  # fmt: skip
