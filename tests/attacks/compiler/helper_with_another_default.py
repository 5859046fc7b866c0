"""The helper multiplies by 1 unless told otherwise. Python is told that its default is 5."""

EXERCISE = "scale_add"
SPEED = False
EXPECT = "the default of factor in scaled is 5.0 when"

# The cell:
@triton.jit
def scaled(value, factor=1.0):
    return value * factor


@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, alpha, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n, other=0.0)
    y = tl.load(y_ptr + offs, mask=offs < n, other=0.0)
    tl.store(out_ptr + offs, scaled(alpha * x + y), mask=offs < n)


scaled.fn.__defaults__ = (5.0,)


def scale_add(x, y, alpha):
    n = x.numel()
    out = torch.empty_like(x)
    add_kernel[(triton.cdiv(n, 1024),)](x, y, out, alpha, n, BLOCK=1024)
    return out
