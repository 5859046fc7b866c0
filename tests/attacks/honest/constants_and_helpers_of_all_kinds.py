"""Constants, helpers, defaults and imports under names of their own, in a cell that also binds names by `:=`."""

EXERCISE = "scale_add"
SPEED = False

# The cell:
import math
from math import pi

from triton.language import exp as exponential

ONE = tl.constexpr(triton.next_power_of_2(17) - 31)
KIND: tl.constexpr = tl.float32
PI = tl.constexpr(pi)
SEVERAL = tl.constexpr((1, 2.0, -float("inf"), tl.float32))
print((shown := 4), [n for n in range(3) if (last := n)])


@triton.jit
def scaled(value, factor=ONE, by: tl.constexpr = -2):
    """Return a multiple.
    
    Of a block.
    """
    return value * factor * by  # of both
    # which is all


@triton.jit
def halved(value):
    return scaled(value) * -0.5 * SEVERAL[0]


scaled.note = "an attribute of the notebook's own"


@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, alpha, n, BLOCK: tl.constexpr = 1024):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=offsets < n).to(KIND)
    y = tl.load(y_ptr + offsets, mask=offsets < n)
    ones = exponential(x * 0) * (PI / math.pi)
    tl.store(out_ptr + offsets, halved(alpha * x * ones) + y, mask=offsets < n)


def scale_add(x, y, alpha, block=(size := 1024)):
    out = torch.empty_like(x)
    add_kernel[(triton.cdiv(x.numel(), block),)](x, y, out, alpha, x.numel(), block)
    return out
