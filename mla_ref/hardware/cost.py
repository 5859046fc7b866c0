"""Bytes and FLOPs of a piece of work, and the least time that a device takes for them.

Bytes are compulsory traffic with DRAM, every word once. FLOPs are two per multiply-accumulate.
"""

from dataclasses import dataclass
from typing import Any

from .devices import Device


@dataclass(frozen=True)
class Cost:
    """Compulsory bytes and FLOPs. Costs add, and multiply by a count."""

    bytes: float = 0
    flops: float = 0

    def __add__(self, other: "Cost") -> "Cost":
        if not isinstance(other, Cost):
            return NotImplemented
        return Cost(self.bytes + other.bytes, self.flops + other.flops)

    def __mul__(self, count: float) -> "Cost":
        return Cost(self.bytes * count, self.flops * count)

    __rmul__ = __mul__

    @property
    def intensity(self) -> float:
        """FLOP per byte; infinite where nothing is moved."""
        return self.flops / self.bytes if self.bytes else float("inf")

    def memory_time(self, device: Device, *, measured: bool = False) -> float:
        """Return seconds that the bytes take."""
        return self.bytes / device.bandwidth(measured)

    def compute_time(self, device: Device, dtype: Any = None, *, measured: bool = False) -> float:
        """Return seconds that the FLOPs take."""
        return self.flops / device.rate(dtype, measured)

    def time(self, device: Device, dtype: Any = None, *, measured: bool = False) -> float:
        """Return the least seconds, bytes and FLOPs perfectly overlapped.

        Parameters
        ----------
        device
            Whose ceilings.
        dtype
            Of the arithmetic; the device's 16-bit type by default.
        measured
            Take the ceilings measured instead of the data sheet's.
        """
        return max(self.memory_time(device, measured=measured), self.compute_time(device, dtype, measured=measured))

    def bound(self, device: Device, dtype: Any = None, *, measured: bool = False) -> str:
        """Return ``"memory"`` or ``"compute"``, whichever sets :meth:`time`."""
        memory = self.memory_time(device, measured=measured)
        return "memory" if memory >= self.compute_time(device, dtype, measured=measured) else "compute"
