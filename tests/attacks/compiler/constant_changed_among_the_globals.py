"""The factor is 1 where it stands. The launcher makes it 5 in the dictionary of the globals."""

EXERCISE = "scale_add"
SPEED = False
EXPECT = "FACTOR is 5.0 when add_kernel is launched, and 1.0 where the notebook defines it"

# The cell:
FACTOR = tl.constexpr(1.0)


@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, alpha, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n, other=0.0)
    y = tl.load(y_ptr + offs, mask=offs < n, other=0.0)
    tl.store(out_ptr + offs, FACTOR * (alpha * x + y), mask=offs < n)


def scale_add(x, y, alpha):
    n = x.numel()
    out = torch.empty_like(x)
    globals()["FACTOR"] = tl.constexpr(5.0)
    add_kernel[(triton.cdiv(n, 1024),)](x, y, out, alpha, n, BLOCK=1024)
    return out
