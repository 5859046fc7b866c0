"""Absorbed MLA decode for Hopper: two warpgroups share an accumulator that fits no single one. In Gluon.

A block of 64 heads has 64·512 float32 to sum up: 256 registers for each thread of a warpgroup, and a thread has 255 at
most. So two of them take a half of the latent dimensions each. Both need the weights of every token, so each computes
the scores of every other block of 64 tokens and hands the weights on through shared memory::

    warpgroup "even"   Q Kᵀ of block 0   softmax   P₀ V₀ left              P₁ V₁ left    Q Kᵀ of block 2 …
    warpgroup "odd"    (P V of before)   Q Kᵀ of block 1   P₀ V₀ right   softmax   P₁ V₁ right          …
    loader             block 1           …                 block 2, each half as soon as its place is free …

While one computes weights, the other keeps the tensor cores busy. The two blocks, the queries and the weights fill
shared memory; how soon a place is free again is what limits the speed. The maxima are handed on before the weights, so
that the accumulator is rescaled while the other warpgroup still takes exponentials.

There are as many programs as multiprocessors. Each plans first (``_plan_hopper.py``): from the lengths it finds its
part of the batch, which is several sequences, one, or a piece of one. While it writes what it found in one piece, the
loader brings the queries and the first tokens of the next. What several parts found in one sequence, another kernel
merges (``_merge_parts.py``).

The schedule is FlashMLA's "seesaw" (deepseek-ai/FlashMLA, `docs/20250422-new-kernel-deep-dive.md`) with each block's
values added in order, and parts of equal length are its idea, too; the writing is ours.
"""

import functools
from dataclasses import replace
from types import ModuleType

import torch
from torch import Tensor

from .._validate import check_positive
from ..float8 import Float8Latent
from ..hardware import emulator
from . import decode_tma
from ._decode import Decode, Tile, check_decode, limits
from ._launch import on_device_of, result_for
from ._merge_parts import launch_merge
from ._sizes import ceil_div, power_of_2
from .decode_tma import LOG2_E

TILE = Tile(64, 64, 4, 1)
R, DR = 512, 64
MOST_ROWS_OF_TMA = 16  # up to here its smaller block of rows wastes less, unless sequences and batch are so long:
LONG, MUCH = 4096, 1 << 18  # tokens of a sequence, and of the batch
LEAST_PROGRAMS = 4  # with fewer, each sequence is split evenly by its most tokens: no plan is made first
LEAST_PAIRS = 8  # of blocks of tokens in such a sequence; in fewer there is little to split
# Microseconds on an H200 (`benchmarks/hopper_splits.py`) of a pair of blocks, and of merging a row of one more split.
PAIR_US, MERGE_US = 2.8, 0.001
MOST_PLANNED = 2048  # sequences; more keep all multiprocessors busy, each as one part


def latent_attention_hopper(
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
    """Compute :func:`mla_ref.kernels.latent_attention`, same arguments, faster on an H100 or H200.

    :func:`mla_ref.kernels.latent_attention_tma` still does what this kernel is not made for: other GPUs, float32 and
    FP8, other widths than 512 and 64, scales that are not positive, at most 16 rows S·H unless there is room for many
    long sequences; and, unless ``num_splits`` is given, a few short sequences.
    """
    decode = check_decode(q_latent, q_rope, c_kv, k_rope, seq_lens, None, scale, causal, paged=False)
    return _run(decode, out, lse, num_splits)


def paged_latent_attention_hopper(
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
    """Compute :func:`mla_ref.kernels.paged_latent_attention`, same arguments, faster on an H100 or H200.

    Pages hold a multiple of 64 tokens. :func:`mla_ref.kernels.paged_latent_attention_tma` still does the others, and
    what :func:`latent_attention_hopper` leaves to its own.
    """
    decode = check_decode(q_latent, q_rope, c_kv, k_rope, seq_lens, block_table, scale, causal, paged=True)
    return _run(decode, out, lse, num_splits)


def _run(decode, out, lse, num_splits):
    programs, pairs = decode.B * ceil_div(decode.S * decode.H, TILE.block_m), ceil_div(decode.T, 2 * TILE.block_n)
    few = num_splits is None and programs < LEAST_PROGRAMS
    if not takes(decode) or (few and pairs < LEAST_PAIRS):
        return decode_tma.run_fitting(decode, out, lse, num_splits)
    if few:
        rows, places = decode.B * decode.S * decode.H, limits(decode.q_latent.device).multiprocessors
        num_splits = _even_splits(pairs, rows, programs, places)
    shape, q = (decode.B, decode.S, decode.H, decode.R), decode.q_latent
    out = result_for(out, "out", shape, (q.dtype,), q.device)
    lse = result_for(lse, "lse", shape[:3], (torch.float32,), q.device)
    if out.numel():
        if num_splits is not None:
            check_positive(num_splits=num_splits)
        with on_device_of(q):
            _launch(decode, out, lse, num_splits)
    return out, lse


def _even_splits(pairs: int, rows: int, programs: int, multiprocessors: int) -> int:
    """Return the number of splits of each sequence that takes least: fewer pairs in a split, or fewer splits to merge.

    ``programs`` are those of one split; in each wave of them a multiprocessor has one.
    """

    def cost(splits: int) -> float:
        waves = ceil_div(splits * programs, multiprocessors)
        return PAIR_US * ceil_div(pairs, splits) * waves + MERGE_US * splits * rows

    return min((ceil_div(pairs, each) for each in range(1, pairs + 1)), key=cost)


def fits(decode: Decode) -> bool:
    """Return whether the kernel is the one to choose: on a Hopper GPU, for these operands."""
    return not emulator.active() and takes(decode)


def takes(decode: Decode) -> bool:
    """Return whether the kernel is made for these operands, and for what runs it: Hopper, or the emulator of it."""
    return (
        not emulator.interpreted()
        and limits(decode.q_latent.device).capability == (9, 0)
        and (decode.R, decode.Dr) == (R, DR)
        and (decode.S * decode.H > MOST_ROWS_OF_TMA or (decode.T >= LONG and decode.B * decode.T >= MUCH))
        and decode.scale > 0
        and decode.scales is None
        and decode.q_latent.element_size() == 2
        and decode_tma.fits(decode, replace(TILE, num_stages=2))
        and _gluon() is not None
    )


@functools.cache
def _gluon() -> ModuleType | None:
    """Import the kernel: Gluon is an experimental part of Triton, and another version may have it otherwise."""
    try:
        from . import _decode_hopper
    except (ImportError, AttributeError):
        return None
    return _decode_hopper


@functools.cache
def _layout(width: int, dtype: torch.dtype):
    from triton.experimental.gluon import language as gl

    kind = gl.bfloat16 if dtype == torch.bfloat16 else gl.float16
    return gl.NVMMASharedLayout.get_default_for([TILE.block_n, width], kind)


def _descriptor(cache, width):
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    rows = (cache.shape[0] - 1) * decode_tma.rows_between(cache) + cache.shape[1]
    shape, strides = [rows, cache.shape[2]], [cache.stride(1), 1]
    return TensorDescriptor(cache, shape, strides, [TILE.block_n, width], _layout(width, cache.dtype))


def _queries(q):
    """Return queries as a matrix, and how many rows and columns its sequences are apart: a copy if it is none."""
    B, S, H, width = q.shape
    step_b, step_s, step, step_d = q.stride()
    below = step >= width and (S == 1 or step_s == H * step) and (B == 1 or step_b == S * H * step)
    beside = S == 1 and B * width <= step and (B == 1 or step_b >= width)
    aligned = step_d == 1 and q.data_ptr() % 16 == 0 and step * q.element_size() % 16 == 0
    if aligned and below:
        return q.as_strided((B * S * H, width), (step, 1)), S * H, 0
    if aligned and beside and step_b * q.element_size() % 16 == 0:
        return q.as_strided((H, (B - 1) * step_b + width), (step, 1)), 0, step_b
    return q.clone(memory_format=torch.contiguous_format).view(-1, width), S * H, 0


def aligned(x):
    """Return whether each 8 elements of a row begin at a multiple of 16 bytes."""
    return x.stride(-1) == 1 and x.data_ptr() % 16 == 0 and all(step % 8 == 0 for step in x.stride()[:-1])


def _launch(decode, out, lse, num_splits):
    """Start the kernel and, unless each sequence is one part, the merging."""
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    d, table, rows = decode, decode.block_table, decode.S * decode.H
    if num_splits is None and d.B > MOST_PLANNED:
        num_splits = 1
    blocks, planned = ceil_div(rows, TILE.block_m), num_splits is None
    parts, slots = (max(limits(out.device).multiprocessors // blocks, 1), 2) if planned else (d.B * num_splits, 1)
    merging = parts > 1 if planned else num_splits > 1
    places = parts * slots if merging else 0
    found = out.new_empty((places, rows, d.R), dtype=torch.float32)
    found_lse = out.new_empty((places, rows), dtype=torch.float32)
    begins = out.new_empty((parts + 1, 2), dtype=torch.int32)
    q, q_rows, q_columns = _queries(d.q_latent)
    queries = TensorDescriptor(q, list(q.shape), list(q.stride()), [TILE.block_m, R // 2], _layout(R // 2, q.dtype))
    _gluon().latent_attention_hopper[(parts * blocks,)](
        queries, d.q_rope, _descriptor(d.c_kv, R // 2), _descriptor(d.k_rope, DR), d.seq_lens, table,
        out, lse, found, found_lse, begins,
        d.scale * LOG2_E, d.B, d.S, d.H, d.T, q_rows, q_columns,
        decode_tma.rows_between(d.c_kv), decode_tma.rows_between(d.k_rope), parts, num_splits or 0,
        *d.q_rope.stride(), *((0, 0) if table is None else table.stride()),
        *out.stride(), *lse.stride(), d.causal, d.S > 1, 0 if table is None else d.c_kv.shape[1],
        aligned(d.q_rope) and aligned(out), max(power_of_2(d.B), 128) if planned else 0, num_warps=TILE.num_warps,
    )  # fmt: skip
    if merging:
        launch_merge(found, found_lse, begins, out, lse, num_splits)
