"""Two kernels change names after they are defined: the right one is launched under the name of one that only copies.
What is replayed is cut from the source by name, and there the name is the copying kernel's.
"""

EXERCISE = "scale_add"
SPEED = False

# The cell:
@triton.jit
def right_kernel(x_ptr, y_ptr, out_ptr, alpha, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=offsets < n)
    y = tl.load(y_ptr + offsets, mask=offsets < n)
    tl.store(out_ptr + offsets, alpha * x + y, mask=offsets < n)


@triton.jit
def copy_kernel(x_ptr, y_ptr, out_ptr, alpha, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + offsets, tl.load(x_ptr + offsets, mask=offsets < n), mask=offsets < n)


right_kernel.fn.__name__ = "copy_kernel"


def scale_add(x, y, alpha):
    out = torch.empty_like(x)
    right_kernel[(triton.cdiv(x.numel(), 1024),)](x, y, out, alpha, x.numel(), BLOCK=1024)
    return out
