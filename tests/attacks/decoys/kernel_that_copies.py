"""Torch computes and a kernel copies the outcome. What a kernel reads may not be arithmetic of torch on floats."""

EXERCISE = "scale_add"
SPEED = False

# The cell:
@triton.jit
def copy_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + offsets, tl.load(x_ptr + offsets, mask=offsets < n), mask=offsets < n)


def scale_add(x, y, alpha):
    out = torch.empty_like(x)
    copy_kernel[(triton.cdiv(x.numel(), 1024),)](alpha * x + y, out, x.numel(), BLOCK=1024)
    return out
