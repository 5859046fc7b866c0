"""Attention over packed sequences of different lengths, each head with keys of its own: the naive form's prefill.

A program takes a head and a block of one sequence's queries, and walks over that sequence's keys. Which sequence that
is it finds itself, from the offsets, so that the host need not read them.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from .._validate import check_numbers
from ..prefill import NARROW, check_offsets, check_ragged
from . import ragged_hopper
from ._decode import Tile, check_converts, limits
from ._launch import DTYPES, check_operands, check_scale, check_width, on_device_of, result_for
from ._sizes import ceil_div, power_of_2
from .masked_softmax import finite, nonzero

LOG2_E = 1.4426950408889634
# The first that fits is the fastest: for sequences whose queries fill its rows, and for others.
MANY = Tile(128, 64, 8, 3), Tile(128, 64, 8, 2), Tile(64, 64, 4, 2), Tile(64, 32, 4, 2), Tile(16, 32, 4, 1)
FEW = Tile(64, 64, 4, 3), *MANY[2:]


@triton.jit
def attend_block(
    q, q_rest, k, k_rest, v, seen, acc, m_i, l_i, scale, MASKED: tl.constexpr, REST: tl.constexpr, SHIFT: tl.constexpr
):
    """Take a block of keys into the online softmax, to the base 2.

    q ``[BLOCK_M, ...]`` and k ``[BLOCK_N, ...]`` come in two parts, since 192 is no power of two; v ``[BLOCK_N, Dv]``,
    seen ``[BLOCK_M or 1, BLOCK_N]``, ``scale`` times log2(e). Weights are kept 2**SHIFT times as large.
    """
    qk = tl.dot(q, tl.trans(k), input_precision="ieee")
    if REST:
        qk = tl.dot(q_rest, tl.trans(k_rest), qk, input_precision="ieee")
    qk *= scale
    if MASKED:
        qk = tl.where(seen, qk, float("-inf"))
    m_ij = tl.maximum(m_i, tl.max(qk, 1))
    base = finite(m_ij) if MASKED else m_ij
    p, alpha = tl.exp2(qk - (base - SHIFT)[:, None]), tl.exp2(m_i - base)
    l_i = l_i * alpha + tl.sum(p, 1)
    acc = tl.dot(p.to(v.dtype), v, acc * alpha[:, None], input_precision="ieee")
    return acc, m_ij, l_i


@triton.jit
def _ragged_attention(
    q_ptr, k_ptr, v_ptr, k_desc, k_rest_desc, v_desc, cu_q_ptr, cu_kv_ptr, out_ptr, lse_ptr, scale, v_scale, B, slots,
    stride_qt, stride_qh, stride_qd, stride_kt, stride_kh, stride_kd, stride_vt, stride_vh, stride_vd,
    stride_ot, stride_oh, stride_od, stride_lt, stride_lh,
    CAUSAL: tl.constexpr, BOTTOM_RIGHT: tl.constexpr, D: tl.constexpr, REST: tl.constexpr, DV: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_REST: tl.constexpr, BLOCK_DV: tl.constexpr, BLOCK_B: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, TMA: tl.constexpr, SHIFT: tl.constexpr,
):  # fmt: skip
    # Programs of one head are neighbours, to meet in L2. The last block of a sequence sees most, and starts first.
    h = (tl.program_id(0) // slots).to(tl.int64)
    slot = (slots - 1 - tl.program_id(0) % slots).to(tl.int32)
    offs_b = tl.arange(0, BLOCK_B)
    starts = tl.load(cu_q_ptr + offs_b, mask=offs_b < B, other=0).to(tl.int32)
    ends = tl.load(cu_q_ptr + offs_b + 1, mask=offs_b < B, other=0).to(tl.int32)
    blocks = (ends - starts + BLOCK_M - 1) // BLOCK_M
    b = tl.sum((tl.cumsum(blocks, 0) <= slot).to(tl.int32), 0)  # sequences whose blocks all come before
    if b >= B:
        return
    block = slot - tl.sum(tl.where(offs_b < b, blocks, 0), 0)
    first_q, first_k = tl.load(cu_q_ptr + b).to(tl.int64), tl.load(cu_kv_ptr + b).to(tl.int64)
    S, T = (tl.load(cu_q_ptr + b + 1) - first_q).to(tl.int32), (tl.load(cu_kv_ptr + b + 1) - first_k).to(tl.int32)

    offs_m, offs_n = block * BLOCK_M + tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_N)
    offs_d, offs_rest = tl.arange(0, BLOCK_D).to(tl.int64), D + tl.arange(0, BLOCK_REST).to(tl.int64)
    offs_dv = tl.arange(0, BLOCK_DV).to(tl.int64)
    exists = (offs_m < S)[:, None]
    # [BLOCK_M, BLOCK_D] and [BLOCK_M, BLOCK_REST]
    q_rows = q_ptr + ((first_q + offs_m) * stride_qt + h * stride_qh)[:, None]
    q = tl.load(q_rows + offs_d[None, :] * stride_qd, mask=exists & (offs_d < D), other=0.0)
    q_rest = q
    if REST:
        q_rest = tl.load(q_rows + offs_rest[None, :] * stride_qd, mask=exists & (offs_rest < D + REST), other=0.0)

    k_ptr += first_k * stride_kt + h * stride_kh
    v_ptr += first_k * stride_vt + h * stride_vh
    limit = tl.minimum(offs_m, S - 1) + 1 + ((T - S) if BOTTOM_RIGHT else 0)
    limit = tl.minimum(limit, T) if CAUSAL else tl.full([BLOCK_M], T, tl.int32)  # keys that a row sees
    all_see = tl.maximum(tl.min(limit, 0), 0) // BLOCK_N * BLOCK_N
    end = tl.maximum(tl.max(limit, 0), 0)

    m_i = tl.full([BLOCK_M], float("-inf"), tl.float32)
    l_i = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_DV], tl.float32)
    column_k, column_v = (h * stride_kh).to(tl.int32), (h * stride_vh).to(tl.int32)
    for start_n in range(0, all_see, BLOCK_N):
        if TMA:
            row = first_k.to(tl.int32) + start_n
            k, v = k_desc.load([row, column_k]), v_desc.load([row, column_v])
            k_rest = k
            if REST:
                k_rest = k_rest_desc.load([row, column_k + D])
        else:
            tokens = (start_n + offs_n).to(tl.int64)[:, None]
            k = tl.load(k_ptr + tokens * stride_kt + offs_d * stride_kd, mask=(offs_d < D)[None, :], other=0.0)
            k_rest = k
            if REST:
                k_ptrs = k_ptr + tokens * stride_kt + offs_rest * stride_kd
                k_rest = tl.load(k_ptrs, mask=(offs_rest < D + REST)[None, :], other=0.0)
            v = tl.load(v_ptr + tokens * stride_vt + offs_dv * stride_vd, mask=(offs_dv < DV)[None, :], other=0.0)
        acc, m_i, l_i = attend_block(q, q_rest, k, k_rest, v, exists, acc, m_i, l_i, scale, False, REST > 0, SHIFT)
    for start_n in range(all_see, end, BLOCK_N):  # across the diagonal, or the end of the sequence
        inside = (start_n + offs_n < T)[:, None]
        tokens = (start_n + offs_n).to(tl.int64)[:, None]
        k = tl.load(k_ptr + tokens * stride_kt + offs_d * stride_kd, mask=inside & (offs_d < D), other=0.0)
        k_rest = k
        if REST:
            k_ptrs = k_ptr + tokens * stride_kt + offs_rest * stride_kd
            k_rest = tl.load(k_ptrs, mask=inside & (offs_rest < D + REST), other=0.0)
        v = tl.load(v_ptr + tokens * stride_vt + offs_dv * stride_vd, mask=inside & (offs_dv < DV), other=0.0)
        seen = (start_n + offs_n)[None, :] < limit[:, None]
        acc, m_i, l_i = attend_block(q, q_rest, k, k_rest, v, seen, acc, m_i, l_i, scale, True, REST > 0, SHIFT)

    l_i = nonzero(l_i)  # rows that see nothing: 0 and -inf
    out = (acc * (v_scale / l_i)[:, None]).to(out_ptr.dtype.element_ty)
    rows = first_q + offs_m
    out_ptrs = out_ptr + (rows * stride_ot + h * stride_oh)[:, None] + offs_dv[None, :] * stride_od
    tl.store(out_ptrs, out, mask=exists & (offs_dv < DV))
    lse = (m_i - SHIFT + tl.log2(l_i)) * 0.6931471805599453
    tl.store(lse_ptr + rows * stride_lt + h * stride_lh, lse, mask=offs_m < S)


def ragged_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_kv: Tensor,
    *,
    scale: float | None = None,
    causal: bool = True,
    bottom_right: bool = True,
    q_scale: float = 1.0,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
    out: Tensor | None = None,
    lse: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Multi-head attention of packed sequences in one launch: :func:`mla_ref.ragged_attention`.

    On an H100 or H200 keys 192 wide and values 128, of 16 bits, go to :mod:`mla_ref.kernels.ragged_hopper`.

    Parameters
    ----------
    q, k, v, scale, causal, bottom_right, q_scale, k_scale, v_scale
        As in the twin. FP8 takes a GPU of compute capability 8.9 or more.
    cu_seqlens_q, cu_seqlens_kv
        As in the twin. Their values stay on the device and are not checked there.
    out, lse
        Where the results go.

    Returns
    -------
    out, lse
        ``[Nq, H, Dv]`` in the dtype of ``q``, of FP8 in bfloat16, and float32 ``[Nq, H]``.

    Raises
    ------
    TypeError, ValueError, RuntimeError
        As the twin, or heads wider than the GPU's shared memory takes, FP8 on a GPU without, or a tensor that requires
        a gradient.

    References
    ----------
    FlashAttention-2, Dao 2023, arXiv:2307.08691. TokenSpeed-MLA, ``tokenspeed_mla_prefill``.
    """
    size = check_ragged(q, k, v, cu_seqlens_q, cu_seqlens_kv)
    check_operands("mla_ref.ragged_attention", (*DTYPES, NARROW), q=q, k=k, v=v)
    check_width("q", q)
    check_numbers(q_scale=q_scale, k_scale=k_scale, v_scale=v_scale)
    if not q.is_cuda:
        check_offsets("cu_seqlens_q", cu_seqlens_q, size["Nq"])
        check_offsets("cu_seqlens_kv", cu_seqlens_kv, size["Nkv"])
    Nq, H, D, Dv, B = (size[name] for name in ("Nq", "H", "D", "Dv", "ends"))
    B -= 1
    scale = (D**-0.5 if scale is None else check_scale(scale)) * q_scale * k_scale
    out = result_for(out, "out", (Nq, H, Dv), (torch.bfloat16 if q.dtype == NARROW else q.dtype,), q.device)
    lse = result_for(lse, "lse", (Nq, H), (torch.float32,), q.device)
    if q.dtype == NARROW:
        check_converts(q)
    if lse.numel() == 0:
        return out, lse
    if v_scale == 1 and ragged_hopper.fits(q, k, v, scale, B):
        offsets = cu_seqlens_q, cu_seqlens_q, cu_seqlens_kv, cu_seqlens_kv[1:]
        short = size["Nkv"] < ragged_hopper.LONG * B
        ragged_hopper.launch(q, k, v, offsets, out, lse, scale * LOG2_E, causal, bottom_right, stay=short)
        return out, lse
    whole, rest = split_width(D)
    widths = [block_width(width, q) for width in (whole, rest, Dv)]
    tile = choose_tile(q, widths[0] + widths[1], widths[2], Nq // B)
    tma = widths == [whole, rest, Dv] and fits(k, v)
    descriptors = (None, None, None)
    if tma:
        descriptors = [describe(x, tile.block_n, width) for x, width in ((k, whole), (k, rest), (v, Dv))]
    slots = ceil_div(Nq, tile.block_m) + B  # at least as many as all sequences have blocks
    with on_device_of(q):
        _ragged_attention[(slots * H,)](
            q, k, v, *descriptors, cu_seqlens_q, cu_seqlens_kv, out, lse, scale * LOG2_E, v_scale, B, slots,
            *(stride for x in (q, k, v, out, lse) for stride in x.stride()),
            causal, bottom_right, whole, rest, Dv, widths[0], widths[1] or 16, widths[2], power_of_2(B),
            tile.block_m, tile.block_n, tma, 8 if q.dtype == NARROW else 0,
            num_warps=tile.num_warps, num_stages=tile.num_stages,
        )  # fmt: skip
    return out, lse


def split_width(D: int) -> tuple[int, int]:
    """Return the widths of two blocks that hold a row of D: a power of two, and what is left, of 192 64."""
    whole = D if D < 16 else power_of_2(D + 1) // 2
    return whole, D - whole


def block_width(width: int, like: Tensor) -> int:
    """Return the width of a block that holds so many values: a product takes powers of two from 32 bytes up."""
    return max(power_of_2(width), 32 if like.element_size() == 1 else 16) if width else 0


def choose_tile(q: Tensor, key: int, value: int, rows: int) -> Tile:
    """Return the block sizes for so many queries: the fastest that leave room for the blocks ahead.

    Parameters
    ----------
    q
        The queries, for their device and dtype.
    key, value
        Widths of the blocks of a key and of a value.
    rows
        Queries to the same keys.

    Raises
    ------
    ValueError
        Heads so wide that none does.
    """
    limit, size = limits(q.device), q.element_size()
    tiles = MANY if rows > FEW[0].block_m else FEW
    for tile in tiles:
        if limit.shared_bytes > 64 * 2**10:
            needed = (tile.block_m * key + tile.num_stages * tile.block_n * (key + value)) * size
        else:  # a T4, whose operands lie there as float32, or an MI300X, where one block does
            needed = (tile.block_m * key + tile.block_n * (key + value)) * 4
        if needed <= limit.shared_bytes and (size > 1 or tile.block_n >= 32):
            return tile
    raise ValueError(
        f"keys are {key} wide and values {value}, expected blocks that fit into {limit.shared_bytes // 2**10} KiB of "
        f"shared memory: use the function of mla_ref of the same name"
    )


def fits(k: Tensor, v: Tensor) -> bool:
    """Return whether TMA can read keys and values, but for their widths: on Hopper, in rows of 16 bytes."""
    return limits(k.device).hopper and all(
        x.element_size() <= 2
        and x.shape[0] > 0
        and x.stride(2) == 1
        and x.stride(0) * x.element_size() % 16 == x.data_ptr() % 16 == 0
        for x in (k, v)
    )


def describe(x: Tensor, rows: int, width: int) -> TensorDescriptor | None:
    """Return a descriptor of ``[N, H, D]`` as rows, of which head h begins in column ``h * x.stride(1)``."""
    columns = (x.shape[1] - 1) * x.stride(1) + x.shape[2]
    return TensorDescriptor(x, [x.shape[0], columns], [x.stride(0), 1], [rows, width]) if width else None
