"""What other threads add by atomic operations is read at once. No barrier says that they have added it.
"""

EXERCISE = "scale_add"
EXPECT = "another thread does"

# The cell:
@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, tmp_ptr, alpha, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    start = tl.program_id(0).to(tl.int64) * BLOCK
    offsets = start + i
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    y = tl.load(y_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    tl.atomic_add(tmp_ptr + offsets, y + x * alpha, sem="relaxed")
    back = start + BLOCK - 1 - i
    tl.store(out_ptr + back, tl.load(tmp_ptr + back), mask=back < n)


def scale_add(x, y, alpha):
    out = torch.empty_like(x)
    n = x.numel()
    tmp = torch.zeros(n + 1024, dtype=torch.float32, device=x.device)
    add_kernel[(triton.cdiv(n, 1024),)](x, y, out, tmp, alpha, n, BLOCK=1024)
    return out
