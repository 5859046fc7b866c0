"""What a kernel does wrong while it runs, each with the kernel's line."""

from __future__ import annotations


class KernelFault(RuntimeError):
    """A kernel did what a GPU does not survive, or what has no defined result. The traceback ends in its line.

    Attributes
    ----------
    said
        What happened, without the line.
    kernel
        The function that was launched.
    place
        File, line and column.
    """

    def __init__(self, said: str, kernel: str = "", place: tuple[str, int, int] = ("", 0, 0)):
        super().__init__(f"line {place[1]}: {said}" if place[1] else said)
        self.said, self.kernel, self.place = said, kernel, place


class OutOfBounds(KernelFault, IndexError):
    """An access outside of the tensor that its pointer belongs to."""


class Misaligned(KernelFault):
    """An access at an address that is no multiple of its size."""


class Race(KernelFault):
    """Two programs touch one byte, one of them writing, not both by atomic operations, and nothing orders them.

    Or one store writes several values to one element, or two threads of a program touch one with no barrier between. In
    Gluon also two partitions of a program, or what is still under way.
    """


class EndlessLoop(KernelFault):
    """A loop that turns without changing anything, or that a caller's timer interrupts with a TimeoutError.

    In Gluon also partitions of a program that all wait for barriers.
    """


class DeviceAssertion(KernelFault, AssertionError):
    """A `tl.device_assert` of a kernel launched with ``debug=True``, a `tl.assume` or a hint that does not hold."""


class Undefined(KernelFault, ArithmeticError):
    """A number of which nothing says what it is, so that a compiler may leave out whatever depends on it.

    That is a shift by as many bits as there are, or more, unless a select or a mask leaves out what it gives; a
    division by 0, or of the least integer by -1; and a float that is beyond the integers that it becomes: each where
    the number does not come from memory. So is what a reduction gives by a function for which the order of the elements
    matters.
    """


class Miscompiled(KernelFault):
    """What Triton's compiler makes something else of than the kernel says: it infers what does not hold."""


class Unsupported(KernelFault, NotImplementedError):
    """An operation that only a GPU has: inline assembly, a function of libdevice."""


class OutOfMemory(KernelFault, MemoryError):
    """The blocks of one program need more memory than there is."""


def raise_in(fault: KernelFault) -> None:
    """Raise a fault so that its traceback ends in the line of the kernel that it happened in."""
    file, line, _ = fault.place
    code = compile("\n" * max(0, line - 1) + "raise fault from None", file or "<kernel>", "exec")
    exec(code.replace(co_name=fault.kernel), {"fault": fault, "__name__": "kernel"})
