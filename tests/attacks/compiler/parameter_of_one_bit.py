"""The number of elements is annotated as one bit wide. A GPU gets its last bit, and leaves the result unwritten."""

EXERCISE = "scale_add"
SPEED = False
EXPECT = "n is annotated as u1"

# The cell:
@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, alpha, n: "u1", BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n, other=0.0)
    y = tl.load(y_ptr + offs, mask=offs < n, other=0.0)
    tl.store(out_ptr + offs, alpha * x + y, mask=offs < n)


def scale_add(x, y, alpha):
    n = x.numel()
    out = torch.empty_like(x)
    add_kernel[(triton.cdiv(n, 1024),)](x, y, out, alpha, n, BLOCK=1024)
    return out
