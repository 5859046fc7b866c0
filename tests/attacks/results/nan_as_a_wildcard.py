"""The kernel stores NaN, which no comparison calls different by more than a tolerance. NaN where a number is expected
is wrong.
"""

EXERCISE = "scale_add"
SPEED = False

# The cell:
@triton.jit
def nan_kernel(x_ptr, y_ptr, out_ptr, alpha, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + offsets, tl.full([BLOCK], float("nan"), tl.float32), mask=offsets < n)


def scale_add(x, y, alpha):
    out = torch.empty_like(x)
    nan_kernel[(triton.cdiv(x.numel(), 1024),)](x, y, out, alpha, x.numel(), BLOCK=1024)
    return out
