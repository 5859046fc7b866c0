"""The grid has two thousand million programs, each of which does next to nothing. The time limit ends the launch
wherever it is run.
"""

EXERCISE = "scale_add"
SPEED = False
LONG = True

# The cell:
@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, alpha, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=offsets < n)
    y = tl.load(y_ptr + offsets, mask=offsets < n)
    tl.store(out_ptr + offsets, alpha * x + y, mask=offsets < n)


def scale_add(x, y, alpha):
    out = torch.empty_like(x)
    add_kernel[(2000000000,)](x, y, out, alpha, x.numel(), BLOCK=1024)
    return out
