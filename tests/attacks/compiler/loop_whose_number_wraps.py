"""A loop whose next number is beyond the largest of 32 bits. It wraps, and a GPU goes on without end.
"""

EXERCISE = "scale_add"
EXPECT = "wraps"

# The cell:
@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, alpha, n, most, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + i
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    y = tl.load(y_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    total = y
    for k in range(0, most, 1 << 30):
        total += x * alpha * 0.5
    tl.store(out_ptr + offsets, total, mask=mask)


def scale_add(x, y, alpha):
    out = torch.empty_like(x)
    n = x.numel()
    add_kernel[(triton.cdiv(n, 1024),)](x, y, out, alpha, n, 2**31 - 1, BLOCK=1024)
    return out
