"""A kernel writes the right numbers, and torch is told that they have still to be negated: what is returned is their
opposite, in the same memory.
"""

EXERCISE = "scale_add"
SPEED = False
EXPECT = "has still to negate"

# The cell:
@triton.jit
def scale_add_kernel(x_ptr, y_ptr, out_ptr, alpha, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=offsets < n).to(tl.float32)
    y = tl.load(y_ptr + offsets, mask=offsets < n).to(tl.float32)
    tl.store(out_ptr + offsets, alpha * x + y, mask=offsets < n)


def scale_add(x, y, alpha):
    out, n = torch.empty_like(x), x.numel()
    scale_add_kernel[(triton.cdiv(n, 1024),)](x, y, out, alpha, n, BLOCK=1024)
    return torch._neg_view(out)
