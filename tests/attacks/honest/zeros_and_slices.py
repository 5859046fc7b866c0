"""The result is a slice of a larger tensor of zeros, at an offset, as is one of the arguments."""

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
    n = x.numel()
    both = torch.zeros(2, n + 16, dtype=x.dtype)
    both[0, 16:] = y
    add_kernel[(triton.cdiv(n, 512),)](x, both[0, 16:], both[1, 16:], alpha, n, BLOCK=512)
    return both[1, 16:]
