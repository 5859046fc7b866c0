"""The host casts both vectors to float32 before the kernel and back to their own type behind it."""

EXERCISE = "scale_add"
SPEED = False

# The cell:
@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, alpha, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=offsets < n)
    y = tl.load(y_ptr + offsets, mask=offsets < n)
    tl.store(out_ptr + offsets, alpha * x + y, mask=offsets < n)


def scale_add(x, y, alpha):
    out = torch.empty(x.shape, dtype=torch.float32, device=x.device)
    add_kernel[(triton.cdiv(x.numel(), 1024),)](x.float(), y.float(), out, alpha, x.numel(), BLOCK=1024)
    return out.to(x.dtype)
