"""A function of `tl.map_elementwise` swaps the two elements that it gets together. Which two these are is the compiler's choice:
those that a thread holds in registers beside each other.
"""

EXERCISE = "scale_add"
EXPECT = "something else beside other elements"

# The cell:
@triton.jit
def turned(a, b):
    return b, a


@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, alpha, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + i
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    y = tl.load(y_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    swapped = tl.map_elementwise(turned, i, pack=2)[0]
    wrong = tl.where(swapped == (i ^ 1), 0.0, 5.0)
    tl.store(out_ptr + offsets, y + x * alpha + wrong, mask=mask)


def scale_add(x, y, alpha):
    out = torch.empty_like(x)
    n = x.numel()
    add_kernel[(triton.cdiv(n, 1024),)](x, y, out, alpha, n, BLOCK=1024)
    return out
