"""Fewer numbers than threads are stored, loaded again with no barrier between, and gathered: all threads load them."""

EXERCISE = "scale_add"
EXPECT = "no tl.debug_barrier() is between them"

# The cell:
@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, kept_ptr, alpha, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    y = tl.load(y_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    tl.store(kept_ptr + offsets, alpha * x + y, mask=mask)
    back = tl.load(kept_ptr + offsets, mask=mask, other=0.0)
    other = BLOCK - 1 - tl.arange(0, BLOCK)
    turned = tl.gather(back, other, 0)
    there = tl.program_id(0) * BLOCK + other
    tl.store(out_ptr + there, turned, mask=there < n)


def scale_add(x, y, alpha):
    out, kept = torch.empty_like(x), torch.empty_like(x)
    n = x.numel()
    add_kernel[(triton.cdiv(n, 64),)](x, y, out, kept, alpha, n, BLOCK=64)
    return out
