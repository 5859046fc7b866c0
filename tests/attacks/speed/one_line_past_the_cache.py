"""All warps of all programs ask for the same 64 bytes by `.cg`: each time the L2 cache is asked."""

EXERCISE = "scale_add"
SPEED = True

# The cell:
@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, alpha, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask, other=0.0)
    y = tl.load(y_ptr + offsets, mask=mask, other=0.0)
    z = alpha * x + y
    lane = tl.arange(0, BLOCK) & 31
    slow = tl.load(x_ptr + lane, mask=lane < n, other=0.0, cache_modifier=".cg")
    for i in tl.static_range(6):
        slow = tl.maximum(slow, tl.load(x_ptr + (lane ^ (i + 1)), mask=(lane ^ (i + 1)) < n, other=0.0, cache_modifier=".cg"))
    tl.store(out_ptr + offsets, tl.where(slow > 1e30, slow, z), mask=mask)


def scale_add(x, y, alpha):
    out = torch.empty_like(x)
    n = x.numel()
    add_kernel[(triton.cdiv(n, 1024),)](x, y, out, alpha, n, BLOCK=1024)
    return out
