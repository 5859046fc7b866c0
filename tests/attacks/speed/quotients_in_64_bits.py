"""Quotients of 64 bits: the compiler writes the division once, and calls it for each element."""

EXERCISE = "scale_add"
SPEED = True
EXPECT = "of the floor's speed"

# The cell:
@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, alpha, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask).to(tl.float32)
    y = tl.load(y_ptr + offsets, mask=mask).to(tl.float32)
    t = offsets * 0x9E3779B97F4A7C1
    d = offsets * 0x1E3779B97F4A7C3 | 0x1100000000
    for j in tl.static_range(1):
        t = t // d + (t ^ offsets)
    tl.store(out_ptr + offsets, y + x * alpha + t.to(tl.float32) * 1e-38, mask=mask)


def scale_add(x, y, alpha):
    out = torch.empty_like(x)
    n = x.numel()
    add_kernel[(triton.cdiv(n, 4096),)](x, y, out, alpha, n, BLOCK=4096, num_warps=8)
    return out
