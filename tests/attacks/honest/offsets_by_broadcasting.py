"""The host makes the first offset of each block from two short tensors, of which each number counts many times."""

EXERCISE = "scale_add"
SPEED = True

# The cell:
@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, first_ptr, alpha, n, BLOCK: tl.constexpr):
    offsets = tl.load(first_ptr + tl.program_id(0)) + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    y = tl.load(y_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    tl.store(out_ptr + offsets, y + x * alpha, mask=mask)


def scale_add(x, y, alpha):
    out = torch.empty_like(x)
    n = x.numel()
    rows = triton.cdiv(n, 4096 * 64)
    first = torch.arange(rows, device=x.device)[:, None] * 64 + torch.arange(64, device=x.device).expand(rows, 64)
    first = first * torch.full((1,), 4096, device=x.device).expand_as(first)
    add_kernel[(first.numel(),)](x, y, out, first, alpha, n, BLOCK=4096, num_warps=4)
    return out
