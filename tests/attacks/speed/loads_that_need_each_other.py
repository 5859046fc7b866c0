"""A chain of 130 loads, each at the place that the one before it gives, beside the work. Loads that need each other wait
one after the other, though each is another operation.
"""

EXERCISE = "scale_add"
SPEED = True

# The cell:
@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, next_ptr, alpha, n, m, BLOCK: tl.constexpr):
    at = tl.program_id(0) * 97 % m
    for i in tl.static_range(130):
        at = tl.load(next_ptr + at)
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask).to(tl.float32)
    y = tl.load(y_ptr + offsets, mask=mask).to(tl.float32)
    tl.store(out_ptr + offsets, tl.where(at < 0, 0.0, y + x * alpha), mask=mask)


def scale_add(x, y, alpha):
    out = torch.empty_like(x)
    n = x.numel()
    m = 1 << 18
    follow = (torch.arange(m, dtype=torch.int32, device=x.device) * 40503 + 12345) % m
    add_kernel[(triton.cdiv(n, 4096),)](x, y, out, follow.to(torch.int32), alpha, n, m, BLOCK=4096, num_warps=8)
    return out
