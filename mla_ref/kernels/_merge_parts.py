"""What programs found in parts of a batch, merged: the second kernel of :mod:`mla_ref.kernels.decode_hopper`."""

import triton
import triton.language as tl
from torch import Tensor

from ._decode import overlaps
from ._sizes import ceil_div, power_of_2
from .masked_softmax import finite, nonzero

MERGED = 2048  # elements of a block that is merged at once
ROWS = 2  # of a program where most programs have nothing to merge


@triton.jit
def _merge(
    found_ptr, found_lse_ptr, begin_ptr, out_ptr, lse_ptr, num_splits, parts, S, H, R: tl.constexpr,
    stride_ob, stride_os, stride_oh, stride_od, stride_lb, stride_ls, stride_lh,
    OVERLAP: tl.constexpr, BORDERS: tl.constexpr, PARTS: tl.constexpr, ROWS: tl.constexpr,
    BLOCK_P: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Merge what parts found in some rows of a sequence, if there are several."""
    rows, columns = S * H, R // BLOCK_D
    blocks, pid = tl.cdiv(rows, ROWS), tl.program_id(0)
    column, row, b = pid % columns, pid // columns % blocks * ROWS, pid // columns // blocks
    if OVERLAP:
        tl.extra.cuda.gdc_wait()  # for the kernel before this one, which writes what is merged
    first, last = b * num_splits, (b + 1) * num_splits
    if PARTS:  # the parts that begin in the middle of the sequence, and the one before them
        offs = tl.arange(0, PARTS)
        b_all = tl.load(begin_ptr + 2 * offs, mask=offs < parts, other=-1)
        n_all = tl.load(begin_ptr + 2 * offs + 1, mask=offs < parts, other=0)
        border = b + 1
        if BORDERS:
            b = tl.load(begin_ptr + 2 * border)
        begin_within = (b_all == b) & (n_all > 0)
        first = tl.min(tl.where(begin_within, offs, PARTS)) - 1
        last = first + 1 + tl.sum(begin_within.to(tl.int32))
        if BORDERS:
            last = tl.where(first + 1 == border, last, 0)  # one border's program does it
    if last > first + 1:
        offs_d = column * BLOCK_D + tl.arange(0, BLOCK_D)
        for r in range(row, tl.minimum(row + ROWS, rows)):
            m_i, l_i, acc = float("-inf"), 0.0, tl.zeros([BLOCK_D], tl.float32)
            for start in range(first, last, BLOCK_P):
                offs_p = start + tl.arange(0, BLOCK_P)
                exists, place = offs_p < last, offs_p
                if PARTS:
                    place = 2 * offs_p + (offs_p == first).to(tl.int32)
                at = place.to(tl.int64) * rows + r
                lses = tl.load(found_lse_ptr + at, mask=exists, other=float("-inf"))
                found = tl.load(found_ptr + at[:, None] * R + offs_d[None, :], mask=exists[:, None], other=0.0)
                m_ij = tl.maximum(m_i, tl.max(lses))
                alpha, weights = tl.exp(m_i - finite(m_ij)), tl.exp(lses - finite(m_ij))
                # A part that had nothing to do left its place as it was: it may hold NaN.
                acc = acc * alpha + tl.sum(tl.where((weights != 0)[:, None], found * weights[:, None], 0.0), 0)
                l_i = l_i * alpha + tl.sum(weights)
                m_i = m_ij
            total = nonzero(l_i)
            b_64, s, h = b.to(tl.int64), (r // H).to(tl.int64), (r % H).to(tl.int64)
            out_ptrs = out_ptr + b_64 * stride_ob + s * stride_os + h * stride_oh + offs_d * stride_od
            tl.store(out_ptrs, (acc / total).to(out_ptr.dtype.element_ty))
            if column == 0:
                tl.store(lse_ptr + b_64 * stride_lb + s * stride_ls + h * stride_lh, m_i + tl.log(total))


def launch_merge(
    found: Tensor, found_lse: Tensor, begins: Tensor, out: Tensor, lse: Tensor, num_splits: int | None
) -> None:
    """Start the merging of each sequence that several parts share; the results of the others stay as they are.

    Parameters
    ----------
    found, found_lse
        Attention over pieces of sequences, float32 ``[places, S·H, R]`` and ``[places, S·H]``. With ``num_splits``,
        part p left its piece in place p. Without, it left the piece that begins a sequence in place 2p + 1, and the one
        that begins within one, in place 2p. A part that has nothing to do left an lse of -inf, and anything in
        ``found``.
    begins
        int32 ``[parts + 1, 2]``: in which sequence a part begins, and whether within it (greater than 0).
    out, lse
        ``[B, S, H, R]`` and float32 ``[B, S, H]``.
    num_splits
        How many parts each sequence has, one after the other; None, if ``begins`` says.
    """
    B, S, H, R = out.shape
    parts, overlap = begins.shape[0] - 1, overlaps(out.device)
    several = num_splits or max(parts // B, 2)
    block_p = min(power_of_2(several), 32)
    block_d = min(MERGED // block_p, power_of_2(R))
    rows_each = 1 if num_splits or parts >= 2 * B else ROWS
    borders = parts - 1 if num_splits is None and parts <= B else 0  # a program for each, or else for each sequence
    _merge[((borders or B) * ceil_div(S * H, rows_each) * (R // block_d),)](
        found, found_lse, begins, out, lse, num_splits or 0, parts, S, H, R, *out.stride(), *lse.stride(),
        overlap, borders > 0, 0 if num_splits else power_of_2(parts), rows_each, block_p, block_d,
        num_warps=2, **({"launch_pdl": True} if overlap else {}),
    )  # fmt: skip
