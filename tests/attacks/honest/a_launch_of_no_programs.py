"""What is left behind the last whole block gets a launch of its own, of no programs where nothing is left."""

EXERCISE = "scale_add"
SPEED = True

# The cell:
@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, alpha, first, n, BLOCK: tl.constexpr):
    offsets = first + tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=offsets < n).to(tl.float32)
    y = tl.load(y_ptr + offsets, mask=offsets < n).to(tl.float32)
    tl.store(out_ptr + offsets, alpha * x + y, mask=offsets < n)


def scale_add(x, y, alpha):
    out = torch.empty_like(x)
    n = x.numel()
    whole = n // 1024
    add_kernel[(whole,)](x, y, out, alpha, 0, n, BLOCK=1024)
    add_kernel[(triton.cdiv(n, 1024) - whole,)](x, y, out, alpha, whole * 1024, n, BLOCK=1024)
    return out
