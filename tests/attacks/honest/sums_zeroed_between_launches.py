"""A buffer of sums is zeroed by torch before each of the launches that add to it."""

EXERCISE = "scale_add"

# The cell:
@triton.jit
def half_kernel(x_ptr, w_ptr, alpha, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.atomic_add(w_ptr + offsets, tl.load(x_ptr + offsets, mask=mask).to(tl.float32) * alpha, mask=mask)

@triton.jit
def add_kernel(w_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(out_ptr + offsets, tl.load(w_ptr + offsets, mask=mask) + tl.load(y_ptr + offsets, mask=mask).to(tl.float32), mask=mask)


def scale_add(x, y, alpha):
    x, y = x.contiguous(), y.contiguous()
    out = torch.empty_like(x)
    n = x.numel()
    half = n // 2
    work = torch.empty(n - half, dtype=torch.float32, device=x.device)
    for a, b in ((0, half), (half, n)):
        if b > a:
            work.zero_()
            grid = (triton.cdiv(b - a, 1024),)
            half_kernel[grid](x.view(-1)[a:b], work, alpha, b - a, BLOCK=1024)
            add_kernel[grid](work, y.view(-1)[a:b], out.view(-1)[a:b], b - a, BLOCK=1024)
    return out
