"""The kernel is right with the functions that Triton has. The notebook puts tl.exp for tl.exp2."""

EXERCISE = "scale_add"
SPEED = False
EXPECT = "tl.exp2 is tl.exp when"

# The cell:
@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, alpha, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n, other=0.0)
    y = tl.load(y_ptr + offs, mask=offs < n, other=0.0)
    tl.store(out_ptr + offs, alpha * x + y * tl.exp2(y.to(tl.float32) * 0 + 1) / 2, mask=offs < n)


tl.exp2 = tl.exp


def scale_add(x, y, alpha):
    n = x.numel()
    out = torch.empty_like(x)
    add_kernel[(triton.cdiv(n, 1024),)](x, y, out, alpha, n, BLOCK=1024)
    return out
