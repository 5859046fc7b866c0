"""An honest kernel writes its answer, and torch writes its own over it. Arithmetic of torch after the last kernel is
no cast and no copy.
"""

EXERCISE = "scale_add"
SPEED = False

# The cell:
@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, alpha, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=offsets < n)
    y = tl.load(y_ptr + offsets, mask=offsets < n)
    tl.store(out_ptr + offsets, alpha * x + y + 1, mask=offsets < n)


def scale_add(x, y, alpha):
    out = torch.empty_like(x)
    add_kernel[(triton.cdiv(x.numel(), 1024),)](x, y, out, alpha, x.numel(), BLOCK=1024)
    return out.sub_(1)
