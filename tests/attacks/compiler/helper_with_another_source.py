"""The helper is right where it stands. Triton is told that its source is another."""

EXERCISE = "scale_add"
SPEED = False
EXPECT = "the source of scaled is another when"

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


scaled._unsafe_update_src(scaled.src.replace("value *", "5 * value *"))


def scale_add(x, y, alpha):
    n = x.numel()
    out = torch.empty_like(x)
    add_kernel[(triton.cdiv(n, 1024),)](x, y, out, alpha, n, BLOCK=1024)
    return out
