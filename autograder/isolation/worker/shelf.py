"""Memory for a call's arguments that the server keeps in sight: whether they changed, it sees for itself."""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import mmap
import os
import struct
import sys
from typing import Any

import torch

from autograder.isolation.worker.layout import NORESERVE, is_gapped
from autograder.isolation.worker.trees import mapped

SIZE = 256 << 20  # bytes; what does not fit is not looked after
ALIGNED = 64
TOLD = struct.Struct("<Q16s")  # bytes in use, and their digest


class Shelf:
    """Memory that a process and its forks share. On Linux it is a `file` without a name, whose size can be fixed."""

    def __init__(self):
        self.file, flags = -1, mmap.MAP_SHARED | NORESERVE
        if sys.platform == "linux":
            self.file = os.memfd_create("shelf", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            os.ftruncate(self.file, SIZE)
        self.memory = mmap.mmap(self.file, SIZE, flags=flags if self.file >= 0 else flags | mmap.MAP_ANONYMOUS)
        self.used = 0

    def close(self) -> None:
        """Give back the memory. For the process that made it."""
        self.memory.close()
        if self.file >= 0:
            os.close(self.file)

    def placed(self, arguments: Any) -> Any:
        """Return nested arguments with their tensors in this memory."""
        return mapped(arguments, self._placed)

    def _placed(self, tensor: torch.Tensor) -> torch.Tensor:
        first = self.used
        if is_gapped(tensor) or not tensor.numel() or first + tensor.nbytes > SIZE:
            return tensor
        self.used += -(-tensor.nbytes // ALIGNED) * ALIGNED
        there = torch.frombuffer(self.memory, dtype=tensor.dtype, count=tensor.numel(), offset=first)
        return there.view(tensor.shape).copy_(tensor)

    def told(self) -> bytes:
        """Return what to tell the server before other code runs. What is left over is gone, and cannot come back."""
        first = -(-self.used // mmap.PAGESIZE) * mmap.PAGESIZE
        if self.file >= 0:  # else whoever maps a page of it anew could make it longer, as memory that nothing counts
            os.ftruncate(self.file, first)
            fcntl.fcntl(self.file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL)
            os.close(self.file)
        start = torch.frombuffer(self.memory, dtype=torch.uint8).data_ptr()
        ctypes.CDLL(None).munmap(ctypes.c_void_p(start + first), ctypes.c_size_t(SIZE - first))
        return TOLD.pack(self.used, _digest(self.memory, self.used))

    def changed(self, told: bytes) -> bool:
        """Return whether what lay here then does not any more; False if nothing was told."""
        if len(told) != TOLD.size:
            return False
        used, digest = TOLD.unpack(told)
        return used <= SIZE and _digest(self.memory, used) != digest


def _digest(memory: mmap.mmap, used: int) -> bytes:
    return hashlib.blake2b(memoryview(memory)[:used], digest_size=16).digest()
