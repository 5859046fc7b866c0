"""A function of `tl.reduce` keeps the second of its arguments, to get at the last element. On a GPU threads hand each other
what they have in any order, and each keeps another one.
"""

EXERCISE = "scale_add"
EXPECT = "come in another order"

# The cell:
@triton.jit
def last(a, b):
    return b


@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, alpha, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + i
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    y = tl.load(y_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    end = tl.reduce(i, 0, last)
    tl.store(out_ptr + offsets, tl.where(i <= end, y + x * alpha, 0.0), mask=mask)


def scale_add(x, y, alpha):
    out = torch.empty_like(x)
    n = x.numel()
    add_kernel[(triton.cdiv(n, 1024),)](x, y, out, alpha, n, BLOCK=1024)
    return out
