"""Two programs store the same numbers, and each reads them back in other threads with no barrier between."""

EXERCISE = "scale_add"
EXPECT = "no tl.debug_barrier() is between them"

# The cell:
@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, kept_ptr, alpha, n, BLOCK: tl.constexpr):
    base = tl.program_id(0) // 2 * BLOCK
    offsets = base + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    y = tl.load(y_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    tl.store(kept_ptr + offsets, alpha * x + y, mask=mask)
    back = base + BLOCK - 1 - tl.arange(0, BLOCK)
    mask = back < n
    tl.store(out_ptr + back, tl.load(kept_ptr + back, mask=mask), mask=mask)


def scale_add(x, y, alpha):
    out, kept = torch.empty_like(x), torch.empty_like(x)
    n = x.numel()
    add_kernel[(2 * triton.cdiv(n, 1024),)](x, y, out, kept, alpha, n, BLOCK=1024)
    return out
