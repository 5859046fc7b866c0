"""Remainders of offsets below zero are 0, -7, -6 and so on. The compiler takes them for eight neighbours, and so what is
below zero for one mask of all eight: it loads all eight or none.
"""

EXERCISE = "scale_add"
EXPECT = "from a quotient or a remainder"

# The cell:
@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, alpha, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    offsets = tl.program_id(0) * BLOCK + i
    back = (i - BLOCK) % 8 < 0
    mask = offsets < n
    most = tl.load(x_ptr + offsets, mask=mask & back, other=0.0).to(tl.float32)
    rest = tl.load(x_ptr + offsets, mask=mask & (i % 8 == 0), other=0.0).to(tl.float32)
    y = tl.load(y_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    tl.store(out_ptr + offsets, alpha * (most + rest) + y, mask=mask)


def scale_add(x, y, alpha):
    out = torch.empty_like(x)
    n = x.numel()
    add_kernel[(triton.cdiv(n, 1024),)](x, y, out, alpha, n, BLOCK=1024)
    return out
