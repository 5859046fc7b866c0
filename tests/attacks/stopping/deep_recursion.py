"""The launcher calls itself a million times with the recursion limit lifted, until the stack of the process ends. The
process may die, and the judge goes on.
"""

EXERCISE = "scale_add"
SPEED = False

# The cell:
import sys

sys.setrecursionlimit(1 << 30)


def deeper(n):
    return [deeper(n - 1)] if n else []


@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, alpha, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=offsets < n)
    y = tl.load(y_ptr + offsets, mask=offsets < n)
    tl.store(out_ptr + offsets, alpha * x + y, mask=offsets < n)


def scale_add(x, y, alpha):
    deeper(1 << 22)
    out = torch.empty_like(x)
    add_kernel[(triton.cdiv(x.numel(), 1024),)](x, y, out, alpha, x.numel(), BLOCK=1024)
    return out
