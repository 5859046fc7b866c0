"""What decode kernels have in common: their checks, the number of splits, the partial results and their merging."""

import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from .._operands import check_causal, check_latent, check_pages
from .._validate import check_integers, check_positive
from ..float8 import Float8Latent
from ..hardware import emulator
from ..paged import check_table
from ._launch import check_operands, check_scale, check_width, on_device_of, result_for
from ._sizes import ceil_div, power_of_2
from .combine import launch_combine

MAX_SPLITS = 128
# Times, in those of a block of tokens: of a program besides its blocks, of merging at all, of each partial result.
PROGRAM, MERGING, PARTIAL = 1.5, 1.0, 0.015


@dataclass(frozen=True)
class Decode:
    """Checked operands of one decode, paged where ``block_table`` is not None; T is what the cache has room for.

    ``scales`` are those of latents in FP8, whose values ``c_kv`` then holds.
    """

    q_latent: Tensor
    q_rope: Tensor
    c_kv: Tensor
    k_rope: Tensor
    seq_lens: Tensor | None
    block_table: Tensor | None
    scale: float
    causal: bool
    B: int
    S: int
    H: int
    R: int
    Dr: int
    T: int
    scales: Tensor | None = None

    @property
    def twin(self) -> str:
        """The PyTorch function that does the same."""
        return twin_of(paged=self.block_table is not None)


def twin_of(*, paged: bool) -> str:
    """Return the name of the PyTorch function that errors offer as the way out."""
    return f"mla_ref.{'paged_' if paged else ''}latent_attention"


@dataclass(frozen=True)
class Tile:
    """Rows and tokens of a block, and the warps and stages of a program."""

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int


@dataclass(frozen=True)
class Limits:
    """What a device offers: multiprocessors, bytes of shared memory for a program, its kind and compute capability."""

    multiprocessors: int
    shared_bytes: int
    nvidia: bool
    capability: tuple[int, int]

    @property
    def hopper(self) -> bool:
        """Whether it has TMA and programmatic dependent launch."""
        return self.nvidia and self.capability >= (9, 0)


@functools.cache
def limits(device: torch.device) -> Limits:
    """Return the limits of a GPU. On a CPU they are those of an H100, with one multiprocessor."""
    if emulator.active():
        return Limits(1, 227 * 2**10, True, (9, 0))
    properties = triton.runtime.driver.active.utils.get_device_properties(device.index)
    return Limits(
        properties["multiprocessor_count"],
        properties["max_shared_mem"],
        torch.version.hip is None,
        torch.cuda.get_device_capability(device),
    )


def check_converts(x: Tensor) -> None:
    """Raise ValueError where the GPU has no E4M3."""
    limit = limits(x.device)
    if limit.nvidia and limit.capability < (8, 9):
        raise ValueError(f"{x.device} has compute capability {limit.capability}, expected 8.9 or more, which has FP8")


def overlaps(device: torch.device) -> bool:
    """Return whether a kernel there may start before the one before it has ended."""
    return limits(device).hopper and not emulator.active()


@functools.lru_cache(1024)
def choose_splits(programs: int, blocks: int, multiprocessors: int) -> int:
    """Return the number of splits that should take least time.

    Programs run in waves, one to a multiprocessor. A wave takes as long as a split's share of the blocks of tokens, and
    what a program costs besides; every partial result is written and read once more. What that costs was measured on
    an H100.
    """

    def time(splits):
        waves, share = ceil_div(programs * splits, multiprocessors), ceil_div(blocks, splits)
        merging = MERGING + PARTIAL * programs * splits if splits > 1 else 0
        return waves * (share + PROGRAM) + merging

    return min(range(1, max(min(blocks, MAX_SPLITS), 1) + 1), key=time)


def block_width(width: int) -> int:
    """Return the width of a block that holds ``width`` values: ``tl.dot`` takes powers of two from 16 up."""
    return max(power_of_2(width), 16)


def check_decode(
    q_latent: Tensor,
    q_rope: Tensor,
    c_kv: Tensor | Float8Latent,
    k_rope: Tensor,
    seq_lens: Tensor | None,
    block_table: Tensor | None,
    scale: float,
    causal: bool,
    *,
    paged: bool,
) -> Decode:
    """Check shapes, dtypes and devices; lengths and pages only on a CPU, where that waits for nothing.

    Raises
    ------
    TypeError, ValueError, RuntimeError
        As :func:`mla_ref.kernels.latent_attention` says.
    """
    size = check_latent(q_latent, q_rope, c_kv, k_rope, paged=paged)
    scales = None
    if isinstance(c_kv, Float8Latent):
        check_converts(q_latent)
        c_kv, scales = c_kv.values, c_kv.scales
    cache = {} if scales is not None else {"c_kv": c_kv}
    check_operands(twin_of(paged=paged), q_latent=q_latent, q_rope=q_rope, **cache, k_rope=k_rope)
    check_width("q_latent", q_latent)
    B, S, H, R = q_latent.shape
    if paged:
        size = check_pages(size, block_table, seq_lens, q_latent)
    if seq_lens is not None:
        check_integers(q_latent.device, size, seq_lens=(seq_lens, "B"))
        seq_lens = seq_lens.contiguous()
    else:
        check_causal(size, causal)
    if paged and not q_latent.is_cuda:
        check_table(block_table, seq_lens=seq_lens, num_pages=size["num_pages"], page_size=size["page_size"])
    operands = q_latent, q_rope, c_kv, k_rope, seq_lens, block_table, check_scale(scale), causal
    return Decode(*operands, B, S, H, R, size["Dr"], size["T"], scales)


def run(
    launch: Callable[[Decode, Tile, Tensor, Tensor], None],
    decode: Decode,
    tile: Tile,
    out: Tensor | None,
    lse: Tensor | None,
    num_splits: int | None,
) -> tuple[Tensor, Tensor]:
    """Choose the number of splits, launch, merge what the splits found.

    ``launch(decode, tile, outs, lses)`` starts the kernel, which writes a split's result to ``outs[split]`` ``[P, B,
    S, H, R]`` and ``lses[split]``.
    """
    shape, q = (decode.B, decode.S, decode.H, decode.R), decode.q_latent
    out = result_for(out, "out", shape, (q.dtype,), q.device)
    lse = result_for(lse, "lse", shape[:3], (torch.float32,), q.device)
    if out.numel() == 0:
        return out, lse
    if num_splits is None:
        programs = decode.B * ceil_div(decode.S * decode.H, tile.block_m)
        blocks = ceil_div(decode.T, tile.block_n)
        num_splits = choose_splits(programs, blocks, limits(q.device).multiprocessors)
    check_positive(num_splits=num_splits)
    with on_device_of(q):
        if num_splits == 1:
            launch(decode, tile, out[None], lse[None])
        else:
            outs = q.new_empty((num_splits, *shape), dtype=torch.float32)
            lses = q.new_empty((num_splits, *shape[:3]), dtype=torch.float32)
            launch(decode, tile, outs, lses)
            launch_combine(outs, lses, out, lse, overlap=overlaps(q.device))
    return out, lse
