"""The kernel multiplies and torch adds, in place on what the kernel wrote. Arithmetic of torch after the last kernel
is no cast and no copy.
"""

EXERCISE = "scale_add"
SPEED = False

# The cell:
@triton.jit
def scale_kernel(x_ptr, out_ptr, alpha, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + offsets, alpha * tl.load(x_ptr + offsets, mask=offsets < n), mask=offsets < n)


def scale_add(x, y, alpha):
    out = torch.empty_like(x)
    scale_kernel[(triton.cdiv(x.numel(), 1024),)](x, out, alpha, x.numel(), BLOCK=1024)
    return out.add_(y)
