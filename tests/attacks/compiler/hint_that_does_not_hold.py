"""Offsets go down and a hint says that eight of them go up. A GPU then loads 16 bytes at an address that is no multiple
of 16.
"""

EXERCISE = "scale_add"
EXPECT = "tl.max_contiguous with [8] does not hold"

# The cell:
@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, alpha, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    i = tl.max_contiguous(tl.multiple_of(BLOCK - 1 - i, 8), 8)
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + i
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask).to(tl.float32)
    y = tl.load(y_ptr + offsets, mask=mask).to(tl.float32)
    tl.store(out_ptr + offsets, y + x * alpha, mask=mask)


def scale_add(x, y, alpha):
    out = torch.empty_like(x)
    n = x.numel()
    add_kernel[(triton.cdiv(n, 4096),)](x, y, out, alpha, n, BLOCK=4096, num_warps=8)
    return out
