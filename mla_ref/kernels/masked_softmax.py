"""Masked softmax: each row is read up to the last position that it sees, and written once.

A row that fits into a block stays in registers. The maximum and the sum of a longer one are kept online, a new maximum
rescaling the sum so far, and it is read a second time for its weights.
"""

import triton
import triton.language as tl
from torch import Tensor

from .._operands import check_causal
from .._validate import check_integers, check_tensors
from ._launch import check_operands, on_device_of, output_for
from ._sizes import ceil_div, power_of_2

MAX_WHOLE = 16384


@triton.jit
def _whole_rows(
    scores_ptr, seq_lens_ptr, out_ptr, S, H, T,
    stride_xb, stride_xs, stride_xh, stride_xd, stride_ob, stride_os, stride_oh, stride_od, stride_l,
    CAUSAL: tl.constexpr, RAGGED: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    b, s, h, mask, seen = locate(seq_lens_ptr, S, H, T, stride_l, CAUSAL, RAGGED, BLOCK_M)
    offs_n = tl.arange(0, BLOCK_N).to(tl.int64)[None, :]

    # [BLOCK_M, BLOCK_N]
    qk_ptrs = scores_ptr + b * stride_xb + s * stride_xs + h * stride_xh + offs_n * stride_xd
    qk = tl.load(qk_ptrs, mask=offs_n < seen, other=float("-inf")).to(tl.float32)
    p = tl.exp(qk - finite(tl.max(qk, 1, keep_dims=True)))
    p = p / nonzero(tl.sum(p, 1, keep_dims=True))
    out_ptrs = out_ptr + b * stride_ob + s * stride_os + h * stride_oh + offs_n * stride_od
    tl.store(out_ptrs, p.to(out_ptr.dtype.element_ty), mask=mask & (offs_n < T))


@triton.jit
def _long_rows(
    scores_ptr, seq_lens_ptr, out_ptr, S, H, T,
    stride_xb, stride_xs, stride_xh, stride_xd, stride_ob, stride_os, stride_oh, stride_od, stride_l,
    CAUSAL: tl.constexpr, RAGGED: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    b, s, h, mask, seen = locate(seq_lens_ptr, S, H, T, stride_l, CAUSAL, RAGGED, BLOCK_M)
    offs_block = tl.arange(0, BLOCK_N).to(tl.int64)[None, :]
    qk_rows = scores_ptr + b * stride_xb + s * stride_xs + h * stride_xh
    out_rows = out_ptr + b * stride_ob + s * stride_os + h * stride_oh

    # [BLOCK_M, 1], the maximum so far, and the sum of exponentials relative to it
    m_i, l_i = tl.full([BLOCK_M, 1], float("-inf"), tl.float32), tl.zeros([BLOCK_M, 1], tl.float32)
    for start_n in range(0, tl.max(seen), BLOCK_N):
        offs_n = start_n + offs_block
        # [BLOCK_M, BLOCK_N]
        qk = tl.load(qk_rows + offs_n * stride_xd, mask=offs_n < seen, other=float("-inf")).to(tl.float32)
        m_ij = tl.maximum(m_i, tl.max(qk, 1, keep_dims=True))
        l_i = l_i * tl.exp(m_i - finite(m_ij)) + tl.sum(tl.exp(qk - finite(m_ij)), 1, keep_dims=True)
        m_i = m_ij

    for start_n in range(0, T, BLOCK_N):
        offs_n = start_n + offs_block
        qk = tl.load(qk_rows + offs_n * stride_xd, mask=offs_n < seen, other=float("-inf")).to(tl.float32)
        p = (tl.exp(qk - finite(m_i)) / nonzero(l_i)).to(out_ptr.dtype.element_ty)
        tl.store(out_rows + offs_n * stride_od, p, mask=mask & (offs_n < T))


@triton.jit
def locate(seq_lens_ptr, S, H, T, stride_l, CAUSAL: tl.constexpr, RAGGED: tl.constexpr, BLOCK_M: tl.constexpr):
    """Return sequence, query and head of this program's rows, which of them exist, and how many positions each sees."""
    pid, blocks = tl.program_id(0), tl.cdiv(S * H, BLOCK_M)
    b = (pid // blocks).to(tl.int64)
    offs_m = pid % blocks * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    s, h = offs_m // H, offs_m % H
    seen = tl.zeros_like(offs_m) + T
    if RAGGED:
        # Clamped before it is narrowed, or a length that no int32 holds would wrap.
        seen = tl.maximum(tl.minimum(seen, tl.load(seq_lens_ptr + b * stride_l)), 0).to(tl.int32)
    if CAUSAL:
        seen = seen - (S - 1 - s)
    # [BLOCK_M, 1] each, but for b
    return b, s.to(tl.int64), h.to(tl.int64), offs_m < S * H, tl.where(offs_m < S * H, seen, 0)


@triton.jit
def finite(m_i):
    """Replace -inf by 0: subtracted, it leaves a row that sees nothing at -inf instead of NaN."""
    return tl.where(m_i == float("-inf"), 0.0, m_i)


@triton.jit
def nonzero(l_i):
    """Replace 0, the sum of a row that sees nothing, by 1."""
    return tl.where(l_i == 0, 1.0, l_i)


def masked_softmax(
    scores: Tensor, *, seq_lens: Tensor | None = None, causal: bool = True, out: Tensor | None = None
) -> Tensor:
    """Take each row's softmax over the positions it sees: :func:`mla_ref.masked_softmax` in one launch.

    Parameters
    ----------
    scores
        ``[B, S, H, T]``, scaled, any layout. Positions that are not seen are not read.
    seq_lens
        int32 or int64 ``[B]``, tokens of each sequence that are real; all T by default. Their values are not
        checked, which would wait for the device: less than 0 counts as 0, more than T as T.
    causal
        Whether query ``s`` sees only positions up to its own, ``seq_lens[b] - S + s``.
    out
        Where the result goes; may be ``scores``.

    Returns
    -------
    Tensor
        ``out``, or a new tensor with the shape and dtype of ``scores``: zeros where nothing is seen, so that a row
        that sees nothing, or -inf alone, is zeros throughout.

    Raises
    ------
    TypeError, ValueError, RuntimeError
        A shape, dtype or device that does not fit, T < S under ``causal`` without ``seq_lens``, or a tensor that
        requires a gradient.

    References
    ----------
    "Optimizing Multi-head Latent Attention for Efficient Inference", section 3.2.2. Online softmax: Milakov &
    Gimelshein 2018, arXiv:1805.02867.

    Examples
    --------
    Two queries at the end of three tokens:

    >>> import torch
    >>> masked_softmax(torch.zeros(1, 2, 1, 3)).squeeze()
    tensor([[0.5000, 0.5000, 0.0000],
            [0.3333, 0.3333, 0.3333]])
    """
    size = check_tensors(scores=(scores, "B S H T"))
    B, S, H, T = size.values()
    check_operands("mla_ref.masked_softmax", scores=scores)
    if seq_lens is None:
        check_causal(size, causal)
    else:
        check_integers(scores.device, size, seq_lens=(seq_lens, "B"))
    out = output_for(scores, out)
    if scores.numel() == 0:
        return out
    kernel, block_m, block_n, num_warps = choose_blocks(S * H, T)
    with on_device_of(scores):
        kernel[(B * ceil_div(S * H, block_m),)](
            scores, seq_lens, out, S, H, T, *scores.stride(), *out.stride(),
            0 if seq_lens is None else seq_lens.stride(0),
            causal, seq_lens is not None, block_m, block_n, num_warps=num_warps,
        )  # fmt: skip
    return out


def choose_blocks(rows: int, context: int) -> tuple[triton.runtime.JITFunction, int, int, int]:
    """Return the kernel, its rows and positions a block, and warps."""
    if context > MAX_WHOLE:
        return _long_rows, 1, 4096, 8
    block_n = power_of_2(context)
    block_m = min(max(1024 // block_n, 1), power_of_2(rows))
    return _whole_rows, block_m, block_n, min(max(block_m * block_n // 1024, 1), 8)
