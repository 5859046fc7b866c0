"""Fewer numbers than threads are stored, loaded again with no barrier between, and turned round: other threads load them
than stored them.
"""

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
    turned = tl.trans(tl.reshape(back, (BLOCK // 8, 8)))
    there = tl.trans(tl.reshape(offsets, (BLOCK // 8, 8)))
    tl.store(out_ptr + there, turned, mask=there < n)


def scale_add(x, y, alpha):
    out, kept = torch.empty_like(x), torch.empty_like(x)
    n = x.numel()
    add_kernel[(triton.cdiv(n, 64),)](x, y, out, kept, alpha, n, BLOCK=64)
    return out
