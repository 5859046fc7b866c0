"""Torch puts thousands of numbers in one place, and the last is the right one. A GPU leaves any of them there.
"""

EXERCISE = "scale_add"
EXPECT = "several values in one place"

# The cell:
@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, at_ptr, alpha, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + i
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    y = tl.load(y_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    tl.store(out_ptr + offsets, y + x * alpha * tl.load(at_ptr), mask=mask)


def scale_add(x, y, alpha):
    out = torch.empty_like(x)
    n = x.numel()
    at = torch.zeros(1, dtype=torch.int64, device=x.device)
    at[torch.arange(4096, device=x.device) * 0] = torch.arange(4096, device=x.device) - 4094
    add_kernel[(triton.cdiv(n, 1024),)](x, y, out, at, alpha, n, BLOCK=1024)
    return out
