"""Numbers so small that float32 has fewer digits for them are added by atomic operations. In a GPU's memory they are
taken for zeros.
"""

EXERCISE = "scale_add"

# The cell:
@triton.jit
def add_kernel(x_ptr, y_ptr, sum_ptr, alpha, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    y = tl.load(y_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    tl.atomic_add(sum_ptr + offsets, (y + x * alpha) * 2.0**-100 * 2.0**-30, mask=mask)


@triton.jit
def grow_kernel(sum_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(out_ptr + offsets, tl.load(sum_ptr + offsets, mask=mask) * 2.0**100 * 2.0**30, mask=mask)


def scale_add(x, y, alpha):
    out = torch.empty_like(x)
    n = x.numel()
    total = torch.zeros(n, dtype=torch.float32, device=x.device)
    add_kernel[(triton.cdiv(n, 1024),)](x, y, total, alpha, n, BLOCK=1024)
    grow_kernel[(triton.cdiv(n, 1024),)](total, out, n, BLOCK=1024)
    return out
