"""A function of `tl.reduce` keeps the second of its arguments, of numbers that are nearly the same: which one it was shows once
the large part of them is taken off.
"""

EXERCISE = "scale_add"
EXPECT = "in another order it is wrong"

# The cell:
@triton.jit
def second(a, b):
    return b


@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, alpha, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + i
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    y = tl.load(y_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    last = tl.reduce(1000.0 + i / BLOCK, 0, second) - 1000.0
    wrong = tl.where(last > 0.9985, 0.0, 5.0)
    tl.store(out_ptr + offsets, y + x * alpha + wrong, mask=mask)


def scale_add(x, y, alpha):
    out = torch.empty_like(x)
    n = x.numel()
    add_kernel[(triton.cdiv(n, 1024),)](x, y, out, alpha, n, BLOCK=1024)
    return out
