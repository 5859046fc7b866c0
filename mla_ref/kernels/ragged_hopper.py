"""Ragged prefill for Hopper, keys 192 wide and values 128: one warpgroup's softmax runs under products. In Gluon.

A tile is 128 queries of a head. Two warpgroups have 64 rows each, a third loads. A warpgroup keeps two products under
way, one of which the softmax does not wait for::

    tensor cores   Q Kⱼᵀ    Pⱼ₋₁ Vⱼ₋₁      Q Kⱼ₊₁ᵀ   Pⱼ Vⱼ …
    warpgroup               softmax of j              softmax of j + 1 …

The two take turns in starting products, so that one's are computed while the other takes exponentials. Blocks of keys
and values have two places each. They are taken from the last token that a tile sees backwards: what is masked comes
first, and what is loaded beyond a sequence is only what a sequence of less than a block lacks. Those rows of values are
cleared.

Long sequences have tiles of very different length: each is a program, and the GPU gives the next one, the longest
first, to the multiprocessor that is free. Tiles of short ones are alike: a program stays on its multiprocessor, takes
one after the other, and loads the next while it ends the last.

The schedule is FlashAttention-3's (Shah et al. 2024, arXiv:2407.08608, algorithms 1 and 2); the writing is ours.
"""

import functools
from collections.abc import Sequence
from types import ModuleType

import torch
from torch import Tensor

from ..hardware import emulator
from ._decode import limits
from ._launch import on_device_of
from ._sizes import power_of_2
from .decode_hopper import aligned

D, REST, DV = 128, 64, 128
BLOCK_M, BLOCK_N = 128, 128
LONG = 1024  # tokens of a sequence, on average, from which on each tile is a program
MOST_SEQUENCES = 512  # each program looks its tiles up among all
L2_BYTES = 32 * 2**20  # of keys and values that tiles at work at once may read


def fits(q: Tensor, k: Tensor, v: Tensor, scale: float, sequences: int) -> bool:
    """Return whether the kernel is the one to choose: on a Hopper GPU, for these operands."""
    return not emulator.active() and takes(q, k, v, scale, sequences)


def takes(q: Tensor, k: Tensor, v: Tensor, scale: float, sequences: int) -> bool:
    """Return whether the kernel is made for these operands, and for what runs it: Hopper, or the emulator of it."""
    return (
        not emulator.interpreted()
        and limits(q.device).capability == (9, 0)
        and limits(q.device).nvidia
        and q.element_size() == 2
        and (q.shape[2], v.shape[2]) == (D + REST, DV)
        and scale > 0
        and sequences <= MOST_SEQUENCES
        and all(_readable(x) for x in (q, k, v))
        and _gluon() is not None
    )


def _readable(x: Tensor) -> bool:
    """Return whether TMA can read rows of a tensor ``[N, H, D]``."""
    strides_fit = x.stride(2) == 1 and all(stride % 8 == 0 for stride in x.stride()[:2])
    return x.shape[0] > 0 and strides_fit and x.data_ptr() % 16 == 0 and x.stride(0) > 0 and _columns(x) < 2**31


def _columns(x: Tensor) -> int:
    return (x.shape[1] - 1) * x.stride(1) + x.shape[2]


@functools.cache
def _gluon() -> ModuleType | None:
    """Import the kernel: Gluon is an experimental part of Triton, and another version may have it otherwise."""
    try:
        from . import _ragged_hopper
    except (ImportError, AttributeError):
        return None
    return _ragged_hopper


@functools.cache
def _layout(rows: int, width: int, dtype: torch.dtype):
    from triton.experimental.gluon import language as gl

    return gl.NVMMASharedLayout.get_default_for([rows, width], gl.bfloat16 if dtype == torch.bfloat16 else gl.float16)


def _descriptor(x: Tensor, rows: int, width: int):
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    layout = _layout(rows, width, x.dtype)
    return TensorDescriptor(x, [x.shape[0], _columns(x)], [x.stride(0), 1], [rows, width], layout)


def launch(
    q: Tensor, k: Tensor, v: Tensor, offsets: Sequence[Tensor], out: Tensor, lse: Tensor, scale: float,
    causal: bool, bottom_right: bool, stay: bool,
) -> None:  # fmt: skip
    """Start the kernel on checked operands that fit; ``scale`` is multiplied by log2(e).

    ``offsets`` are where each sequence's rows of results begin, and the last one's end, where its queries begin, where
    its keys begin, and where they end. Queries or keys may be those of another sequence, too. With ``stay`` a program
    stays on its multiprocessor: for tiles that are short and alike.
    """
    B, H = len(offsets[0]) - 1, q.shape[1]
    slots = out.shape[0] // BLOCK_M + B  # at least as many as all sequences have tiles
    most = L2_BYTES * B // (k.shape[0] * (D + REST + DV) * k.element_size())
    group = max(each for each in range(1, H + 1) if H % each == 0 and each <= max(most, 1))
    queries = (_descriptor(q, BLOCK_M // 2, width) for width in (D, REST))
    keys = (_descriptor(k, BLOCK_N, width) for width in (D, REST))
    tiles = slots * H
    programs = min(tiles, limits(q.device).multiprocessors) if stay else tiles
    with on_device_of(q):
        _gluon().ragged_attention_hopper[(programs,)](
            *queries, *keys, _descriptor(v, BLOCK_N, DV), *offsets, out, lse, scale, B, slots, group, tiles,
            q.stride(1), k.stride(1), v.stride(1), *out.stride(), *lse.stride(),
            causal, bottom_right, aligned(out), max(power_of_2(B), 32), num_warps=4,
        )  # fmt: skip
