"""Products are stored in float32 and loaded at the same places, with no barrier between. A thread stores 4 of them and loads
8, as many as it does of the other blocks, in 16 bits.
"""

EXERCISE = "scale_add"
EXPECT = "another thread does, and no tl.debug_barrier() is between them"

# The cell:
@triton.jit
def add_kernel(x_ptr, y_ptr, buf_ptr, out_ptr, alpha, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    tl.store(buf_ptr + offsets, x * alpha, mask=mask)
    ax = tl.load(buf_ptr + offsets, mask=mask, other=0.0)
    y = tl.load(y_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    tl.store(out_ptr + offsets, ax + y, mask=mask)


def scale_add(x, y, alpha):
    out = torch.empty_like(x)
    buf = torch.empty(x.shape, dtype=torch.float32, device=x.device)
    n = x.numel()
    add_kernel[(triton.cdiv(n, 1024),)](x, y, buf, out, alpha, n, BLOCK=1024)
    return out
