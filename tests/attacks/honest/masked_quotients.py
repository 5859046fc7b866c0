"""Quotients by what the mask leaves out as 0."""

EXERCISE = "scale_add"

# The cell:

@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, count_ptr, alpha, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    y = tl.load(y_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    by = tl.load(count_ptr + offsets, mask=offsets < n - 1, other=0)
    q = (offsets * (by + 1) * (by + 1)) // tl.where(mask, by + 1, 1)
    tl.store(out_ptr + q // (by + 1), alpha * x + y, mask=mask)


def scale_add(x, y, alpha):
    out = torch.empty_like(x)
    n = x.numel()
    count = torch.zeros(n, dtype=torch.int32, device=x.device)
    add_kernel[(triton.cdiv(n, 256),)](x, y, out, count, alpha, n, BLOCK=256)
    return out
