"""Memory for a call's arguments that the server keeps in sight: whether they changed, it sees for itself."""

from __future__ import annotations

import ctypes
import fcntl
import functools
import hashlib
import json
import mmap
import os
import struct
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from autograder.isolation.worker.layout import NORESERVE, is_gapped
from autograder.isolation.worker.trees import mapped

SIZE = 256 << 20  # bytes; what does not fit is not looked after
TABLE = 1 << 20  # of them for the table of what lies here
ALIGNED = 64
TOLD = struct.Struct("<QQ16s")  # where the table begins, how long it is, and its digest
EVERY = [-1, ""]  # what changed is anybody's guess


class Shelf:
    """Memory that a process and its forks share. On Linux it is a `file` without a name, whose size can be fixed."""

    def __init__(self):
        self.file, flags = -1, mmap.MAP_SHARED | NORESERVE
        if sys.platform == "linux":
            self.file = os.memfd_create("shelf", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            os.ftruncate(self.file, SIZE)
        self.memory = mmap.mmap(self.file, SIZE, flags=flags if self.file >= 0 else flags | mmap.MAP_ANONYMOUS)
        self.used = 0
        self._table: list[tuple[int, str, int, int, str]] = []  # case, argument, first byte, bytes, digest

    def close(self) -> None:
        """Give back the memory. For the process that made it."""
        self.memory.close()
        if self.file >= 0:
            os.close(self.file)

    def placed(self, cases: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return the arguments of calls, nested as they may be, with their tensors in this memory."""
        return [
            {name: mapped(value, functools.partial(self._placed, n, name)) for name, value in case.items()}
            for n, case in enumerate(cases)
        ]

    def _placed(self, case: int, name: str, tensor: torch.Tensor) -> torch.Tensor:
        first = self.used
        if is_gapped(tensor) or not tensor.numel() or first + tensor.nbytes > SIZE - TABLE:
            return tensor
        self.used += -(-tensor.nbytes // ALIGNED) * ALIGNED
        there = torch.frombuffer(self.memory, dtype=tensor.dtype, count=tensor.numel(), offset=first)
        placed = there.view(tensor.shape).copy_(tensor)
        self._table.append((case, name, first, tensor.nbytes, _digest(self.memory, first, tensor.nbytes)))
        return placed

    def told(self) -> bytes:
        """Return what to tell the server before other code runs. What is left over is gone, and cannot come back."""
        table, begin = json.dumps(self._table).encode() if self._table else b"", self.used
        if len(table) > TABLE:
            table = b""
        self.memory[begin : begin + len(table)] = table
        first = -(-(begin + len(table)) // mmap.PAGESIZE) * mmap.PAGESIZE
        if self.file >= 0:  # else whoever maps a page of it anew could make it longer, as memory that nothing counts
            os.ftruncate(self.file, first)
            fcntl.fcntl(self.file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL)
            os.close(self.file)
        start = torch.frombuffer(self.memory, dtype=torch.uint8).data_ptr()
        ctypes.CDLL(None).munmap(ctypes.c_void_p(start + first), ctypes.c_size_t(SIZE - first))
        return TOLD.pack(begin, len(table), bytes.fromhex(_digest(self.memory, begin, len(table))))

    def changed(self, told: bytes) -> list[list[Any]]:
        """Return the case and the argument of each tensor that is not what lay here then; of none, if nothing was told.

        `EVERY` stands for all where the table of them is not what it was.
        """
        if len(told) != TOLD.size:
            return []
        begin, length, digest = TOLD.unpack(told)
        if begin + length > SIZE or _digest(self.memory, begin, length) != digest.hex():
            return [EVERY]
        table = json.loads(self.memory[begin : begin + length] or b"[]")
        return [[case, name] for case, name, first, size, was in table if _digest(self.memory, first, size) != was]


def _digest(memory: mmap.mmap, first: int, size: int) -> str:
    return hashlib.blake2b(memoryview(memory)[first : first + size], digest_size=16).hexdigest()
