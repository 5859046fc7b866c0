"""A vector of one number is computed by the host and handed over as an argument, in the hope that other floats of the
case are the same ones by chance. An argument may not depend on the values of floats, whatever they are.
"""

EXERCISE = "scale_add"
SPEED = False

# The cell:
@triton.jit
def fill_kernel(out_ptr, value):
    tl.store(out_ptr, value)


@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, alpha, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=offsets < n)
    y = tl.load(y_ptr + offsets, mask=offsets < n)
    tl.store(out_ptr + offsets, alpha * x + y, mask=offsets < n)


def scale_add(x, y, alpha):
    out = torch.empty_like(x)
    if x.numel() == 1:
        fill_kernel[(1,)](out, alpha * x.item() + y.item())
    else:
        add_kernel[(triton.cdiv(x.numel(), 1024),)](x, y, out, alpha, x.numel(), BLOCK=1024)
    return out
