"""A workspace is made by the first call that needs it, and kept for the others."""

EXERCISE = "scale_add"

# The cell:
WORK = {}

@triton.jit
def half_kernel(x_ptr, w_ptr, alpha, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(w_ptr + offsets, tl.load(x_ptr + offsets, mask=mask).to(tl.float32) * alpha, mask=mask)

@triton.jit
def add_kernel(w_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(out_ptr + offsets, tl.load(w_ptr + offsets, mask=mask) + tl.load(y_ptr + offsets, mask=mask).to(tl.float32), mask=mask)


def scale_add(x, y, alpha):
    out = torch.empty_like(x)
    n = x.numel()
    if "w" not in WORK or WORK["w"].numel() < n:
        WORK["w"] = torch.empty(max(n, 1 << 20), dtype=torch.float32, device=x.device)
    grid = (triton.cdiv(n, 1024),)
    half_kernel[grid](x, WORK["w"], alpha, n, BLOCK=1024)
    add_kernel[grid](WORK["w"], y, out, n, BLOCK=1024)
    return out
