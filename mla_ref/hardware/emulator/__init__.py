"""Triton kernels on a CPU, as the compiler means them.

Triton's own front end compiles a kernel to TTIR, its intermediate form. The emulator runs that form with torch, all
programs of the grid at once, so that what it accepts and what it computes is what the compiler accepts and means:
integers wrap, 16-bit floats round, `tl.dot` cuts float32 to TF32 unless it is told otherwise, a place that a mask
leaves out holds NaN unless the load says `other`. It stops with the kernel's line where an access leaves its tensor,
two programs touch one element without an order, or a loop turns without end. Kernels in Gluon for Hopper run, too:
partitions, barriers, copies by TMA and products under way.

What it does not model: the order in which sums are added, the last bits of approximate functions (`exp`, `log`,
`sin`, division), the fusing of a product with a sum, caches and time.

:func:`prepare`
    Have kernels run here if there is no GPU.
:func:`active`
    Whether they do.

To step through a kernel with print and pdb, set ``TRITON_INTERPRET=1`` before Python starts: Triton's interpreter then
runs one program after the other, as Python. It differs from the compiler in places.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from .faults import (
    DeviceAssertion,
    EndlessLoop,
    KernelFault,
    Misaligned,
    Miscompiled,
    OutOfBounds,
    OutOfMemory,
    Race,
    Undefined,
    Unsupported,
)

INTERPRET = "TRITON_INTERPRET"
VARIABLE = "MLA_EMULATE"
_emulating = False

__all__ = [
    "DeviceAssertion",
    "EndlessLoop",
    "KernelFault",
    "Misaligned",
    "Miscompiled",
    "OutOfBounds",
    "OutOfMemory",
    "Race",
    "Undefined",
    "Unsupported",
    "active",
    "emulating",
    "prepare",
]


def prepare(capability: tuple[int, int] | None = None) -> bool:
    """Import Triton, and have kernels run on the CPU where there is no GPU for them.

    ``MLA_EMULATE=1`` asks for the CPU on a machine with a GPU too. ``TRITON_INTERPRET=1`` leaves kernels to Triton's
    interpreter. Once kernels run on the CPU, further calls change nothing.

    Parameters
    ----------
    capability
        The compute capability that the kernels are written for, ``(9, 0)`` for Hopper's; None for any GPU.

    Returns
    -------
    bool
        Whether kernels run on the CPU.

    Raises
    ------
    ImportError
        Triton is not installed.
    """
    try:
        import triton
    except ImportError as error:
        raise ImportError(
            f"kernels need Triton, which is published for Linux ({error}): pip install triton, "
            f"or stay with the PyTorch reference, which does not need it"
        ) from error
    global _emulating
    if active():
        return True
    if os.environ.get(VARIABLE, "") not in ("", "0") or not _has_gpu(capability):
        from .backend import Driver, register

        register()
        triton.runtime.driver.set_active(Driver())
        _emulating = True
    return _emulating


def active() -> bool:
    """Return whether kernels run on the CPU: emulated, or under Triton's interpreter."""
    return _emulating or interpreted()


def interpreted() -> bool:
    """Return whether Triton was imported with its interpreter on."""
    triton = sys.modules.get("triton")
    return triton is not None and not isinstance(triton.language.cdiv, triton.runtime.JITFunction)


@contextmanager
def emulating() -> Iterator[None]:
    """Have kernels run on the CPU in the body of a `with`, also where there is a GPU."""
    global _emulating
    import triton

    from .backend import Driver, register

    register()
    devices, outer = triton.runtime.driver, _emulating
    before = devices.active
    devices.set_active(Driver())
    _emulating = True
    try:
        yield
    finally:
        devices.set_active(before)
        _emulating = outer


def _has_gpu(capability: tuple[int, int] | None) -> bool:
    import torch

    return torch.cuda.is_available() and capability in (None, torch.cuda.get_device_capability())
