"""Tensors of full size whose numbers are drawn where they are touched, the same for everybody with the key."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence

import numpy as np
import torch

from autograder.isolation.worker.layout import blank

PAGE = 1 << 16  # bytes that are drawn together
# What pages of floats are multiplied by: what is the same for all numbers cannot be known beforehand. Half of the
# pages, and half of the stretches of pages as a whole, look as if nothing had been drawn in their place.
SCALES = (0.5, 1.0, 1.0, 2.0)
STRETCH = 64  # pages
POOL = 1 << 20  # numbers drawn once, of which each page takes some


class Generated:
    """The storage of a contiguous tensor of numbers like others.

    Parameters
    ----------
    dtype, count
        Of the tensor, and its elements.
    like
        Values of the dtype, one axis: each number is one of them by chance, times what its page has of SCALES. If
        they are as many as the elements, they are what the tensor holds.
    key
        Decides on the numbers; who does not have it cannot tell them.
    raw
        uint8 ``[bytes]``, where they are put; zeros that take no memory by default.
    """

    def __init__(
        self,
        dtype: torch.dtype,
        count: int,
        like: torch.Tensor,
        key: str,
        raw: np.ndarray | None = None,
    ):
        self.dtype, self.itemsize, size = dtype, dtype.itemsize, count * dtype.itemsize
        self.raw = blank(size) if raw is None else raw
        self.filled = np.zeros(-(-size // PAGE), bool)
        self.key = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "little")
        generator = torch.Generator().manual_seed(self.key >> 1)
        most = min(POOL + PAGE // self.itemsize, 2 * count + PAGE // self.itemsize)
        if len(like) == count:
            self.raw[:] = like.view(torch.uint8).numpy()
            self.filled[:] = True
            return
        pool = like[torch.randint(len(like), (most,), generator=generator)]
        scaled = [(pool * scale).to(dtype) for scale in SCALES] if dtype.is_floating_point else [pool] * len(SCALES)
        self.pools = [each.view(torch.uint8).numpy() for each in scaled]
        self.starts = most - PAGE // self.itemsize + 1

    def touch(self, elements: torch.Tensor, itemsize: int) -> None:
        """Draw what is not there yet of the pages in which elements of that many bytes lie, int64 of any shape."""
        wanted = np.zeros(len(self.filled), bool)
        wanted[np.asarray(elements) >> (PAGE // itemsize).bit_length() - 1] = True  # much faster than a division
        self._fill(np.flatnonzero(wanted & ~self.filled))

    def part(self, shape: Sequence[int], chosen: Sequence[slice | torch.Tensor]) -> torch.Tensor:
        """Return part of the tensor, drawn: what is chosen along its first axes, by slices, or by a list of entries.

        What is chosen along the last of these lies together; a list comes alone.
        """
        starts, length = torch.zeros(1, dtype=torch.int64), math.prod(shape)
        for axis, index in enumerate(chosen):
            length //= shape[axis]
            entries = index.long() if isinstance(index, torch.Tensor) else torch.arange(*index.indices(shape[axis]))
            if axis == len(chosen) - 1 and isinstance(index, slice):
                entries, length = entries[:1], len(entries) * length
            starts = (starts[:, None] + entries * (math.prod(shape[axis + 1 :]))).flatten()
        wanted = np.zeros(len(self.filled), bool)
        for start in (starts * self.itemsize).tolist():
            wanted[start // PAGE : -(-(start + length * self.itemsize) // PAGE)] = True
        self._fill(np.flatnonzero(wanted & ~self.filled))
        return torch.from_numpy(self.raw).view(self.dtype).view(shape)[tuple(chosen)]

    def whole(self) -> None:
        """Draw all."""
        self._fill(np.flatnonzero(~self.filled))

    def _fill(self, pages: np.ndarray) -> None:
        drawn = _mixed(pages.astype(np.uint64) + np.uint64(self.key)).tolist()
        plain = _mixed((pages // STRETCH).astype(np.uint64) + np.uint64(self.key >> 2)) % np.uint64(2) == 1
        for page, number, as_it_is in zip(pages.tolist(), drawn, plain.tolist(), strict=True):
            part = self.raw[page * PAGE : (page + 1) * PAGE]
            pool = self.pools[SCALES.index(1.0) if as_it_is else number % len(SCALES)]
            start = (number // len(SCALES)) % self.starts * self.itemsize
            part[:] = pool[start : start + len(part)]
        self.filled[pages] = True


def _mixed(x: np.ndarray) -> np.ndarray:
    """Return 64-bit hashes of counters: the finaliser of splitmix64."""
    x = x * np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor)
    return x ^ (x >> np.uint64(31))
