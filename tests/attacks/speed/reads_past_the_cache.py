"""Volatile loads read both inputs six times more than is needed, and each time from the L2 cache: what a program reads
again it does not find in the L1.
"""

EXERCISE = "scale_add"
SPEED = True

# The cell:
@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, alpha, n, turns, BLOCK: tl.constexpr):
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask).to(tl.float32)
    y = tl.load(y_ptr + offsets, mask=mask).to(tl.float32)
    z = x
    for i in range(turns):
        z = z + tl.load(x_ptr + offsets, mask=mask, volatile=True).to(tl.float32)
        z = z + tl.load(y_ptr + offsets, mask=mask, volatile=True).to(tl.float32)
    tl.store(out_ptr + offsets, x * alpha + y + z * 1e-30, mask=mask)


def scale_add(x, y, alpha):
    out = torch.empty_like(x)
    n = x.numel()
    add_kernel[(triton.cdiv(n, 1024),)](x, y, out, alpha, n, 6, BLOCK=1024)
    return out
