"""Tensors that hold far less than their size: shapes without data, and rows that lie far apart."""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from autograder.isolation.worker import wire
from autograder.isolation.worker.trees import mapped

NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)  # Python names it from 3.13 on
GAPS = 1 << 30  # bytes between the elements from which on a tensor is taken for its elements alone


def blank(size: int) -> np.ndarray:
    """Return that many zero bytes, which take memory only where they are touched."""
    if size < GAPS:
        return np.zeros(size, np.uint8)
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NORESERVE)
    return np.frombuffer(memory, np.uint8)


def spread(values: torch.Tensor, strides: Sequence[int]) -> torch.Tensor:
    """Return the values with these strides, in memory of their own. What lies between them is 0, and costs nothing."""
    elements = 1 + sum((n - 1) * s for n, s in zip(values.shape, strides, strict=True))
    memory = torch.from_numpy(blank(elements * values.element_size()))
    return memory.view(values.dtype).as_strided(values.shape, strides).copy_(values)


def is_gapped(tensor: torch.Tensor) -> bool:
    """Return whether nearly all of the tensor's storage lies between its elements."""
    return tensor.untyped_storage().nbytes() > tensor.nbytes + GAPS


def window(raw: torch.Tensor, shape: Sequence[int], strides: Sequence[int], itemsize: int) -> torch.Tensor:
    """Return the bytes `[*shape, itemsize]` of a tensor at the start of a storage."""
    return raw.as_strided([*shape, itemsize], [*(s * itemsize for s in strides), 1])


PACKED = ("$empty", "$spread")


def packed(value: Any) -> Any:
    """Return arguments as they are sent: of "meta" tensors the shape, of gapped ones the elements and the strides."""

    def leaf(tensor: torch.Tensor) -> Any:
        if tensor.device.type == "meta":
            return {"$empty": [str(tensor.dtype).removeprefix("torch."), list(tensor.shape)]}
        return {"$spread": [tensor.contiguous(), list(tensor.stride())]} if is_gapped(tensor) else tensor

    return mapped(value, leaf)


def unpacked(value: Any) -> Any:
    """Return arguments with memory for what `packed` put in a tensor's place."""

    def leaf(stand_in: dict[str, Any]) -> torch.Tensor:
        ((kind, (first, second)),) = stand_in.items()
        return torch.empty(second, dtype=wire.DTYPES[first]) if kind == "$empty" else spread(first, second)

    return mapped(value, leaf, PACKED)
