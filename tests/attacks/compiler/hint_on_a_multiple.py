"""A hint says that each program begins at a multiple of 16, and programs begin 1000 elements apart. A GPU then loads 16
bytes at an address that is no multiple of 16.
"""

EXERCISE = "scale_add"
EXPECT = "tl.multiple_of with [16] does not hold"

# The cell:
@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, alpha, n, SHARE: tl.constexpr, BLOCK: tl.constexpr):
    first = tl.multiple_of(tl.program_id(0) * SHARE, 16)
    i = tl.arange(0, BLOCK)
    offsets = first + i
    mask = (offsets < n) & (i < SHARE)
    x = tl.load(x_ptr + offsets, mask=mask)
    y = tl.load(y_ptr + offsets, mask=mask)
    tl.store(out_ptr + offsets, y + x * alpha, mask=mask)


def scale_add(x, y, alpha):
    out = torch.empty_like(x)
    n = x.numel()
    add_kernel[(triton.cdiv(n, 1000),)](x, y, out, alpha, n, SHARE=1000, BLOCK=1024)
    return out
