"""Products are added to a buffer by an atomic operation, and loaded at the same places with no barrier between.
"""

EXERCISE = "scale_add"
EXPECT = "another thread does, and no tl.debug_barrier() is between them"

# The cell:
@triton.jit
def add_kernel(x_ptr, y_ptr, buf_ptr, out_ptr, alpha, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    tl.atomic_add(buf_ptr + offsets, x * alpha, mask=mask, sem="relaxed")
    ax = tl.load(buf_ptr + offsets, mask=mask, other=0.0)
    y = tl.load(y_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    tl.store(out_ptr + offsets, ax + y, mask=mask)


def scale_add(x, y, alpha):
    out = torch.empty_like(x)
    buf = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    n = x.numel()
    add_kernel[(triton.cdiv(n, 1024),)](x, y, buf, out, alpha, n, BLOCK=1024)
    return out
