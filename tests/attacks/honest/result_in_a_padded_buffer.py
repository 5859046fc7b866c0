"""The result is the beginning of a padded buffer, which whole blocks fill."""

EXERCISE = "scale_add"
SPEED = True

# The cell:
@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, alpha, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    y = tl.load(y_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    tl.store(out_ptr + offsets, y + x * alpha)


def scale_add(x, y, alpha):
    n = x.numel()
    programs = triton.cdiv(n + 1, 2048)
    out = torch.empty(programs * 2048, dtype=x.dtype, device=x.device)
    add_kernel[(programs,)](x, y, out, alpha, n, BLOCK=2048, num_warps=8)
    return out[:n].view(x.shape)
