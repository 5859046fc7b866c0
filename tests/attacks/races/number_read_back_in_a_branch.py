"""One thread stores a number, and all read it back with no barrier between, in a branch of which it is the result."""

EXERCISE = "scale_add"
EXPECT = "no tl.debug_barrier() is between them"

# The cell:
@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, kept_ptr, alpha, n, m, BLOCK: tl.constexpr):
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    y = tl.load(y_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    tl.store(kept_ptr + tl.program_id(0), alpha)
    factor = 0.0
    if m > 3:
        factor = tl.load(kept_ptr + tl.program_id(0))
    tl.store(out_ptr + offsets, factor * x + y, mask=mask)


def scale_add(x, y, alpha):
    out = torch.empty_like(x)
    n = x.numel()
    kept = torch.zeros(triton.cdiv(n, 1024), dtype=torch.float32, device=x.device)
    add_kernel[(triton.cdiv(n, 1024),)](x, y, out, kept, alpha, n, 5, BLOCK=1024)
    return out
