"""A constant goes to os by Triton's own modules and starts a command in the judge's process. Nothing but literals may
be a constant of a kernel.
"""

EXERCISE = "scale_add"
SPEED = False

# The cell:
TOOLS = triton.testing
OS = TOOLS.os
FLAG = tl.constexpr(OS.system("true"))


@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, alpha, n, BLOCK: tl.constexpr):
    offsets = FLAG + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=offsets < n)
    y = tl.load(y_ptr + offsets, mask=offsets < n)
    tl.store(out_ptr + offsets, alpha * x + y, mask=offsets < n)


def scale_add(x, y, alpha):
    out = torch.empty_like(x)
    add_kernel[(triton.cdiv(x.numel(), 1024),)](x, y, out, alpha, x.numel(), BLOCK=1024)
    return out
