"""The host halves y in place for a kernel that doubles it, and the worker's list of what has changed is emptied.
Arithmetic on floats belongs into the kernel, and arguments stay as they are.
"""

EXERCISE = "scale_add"
SPEED = False

# The cell:
from autograder.isolation.worker import running

running.changed = lambda before, after: []


@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, alpha, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=offsets < n)
    y = tl.load(y_ptr + offsets, mask=offsets < n)
    tl.store(out_ptr + offsets, alpha * x + y, mask=offsets < n)


def scale_add(x, y, alpha):
    out = torch.empty_like(x)
    add_kernel[(triton.cdiv(x.numel(), 1024),)](x, y, out, alpha, x.numel(), BLOCK=1024)
    y.mul_(0.5)
    return out
