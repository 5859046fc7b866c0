"""A constant is the next power of two of a number that is none of Triton's, for the judge who works it out. It is no
constant, and the judge goes on.
"""

EXERCISE = "scale_add"
SPEED = False
EXPECT = "the constant WIDTH"

# The cell:
setattr(triton, "next_power_of_2", lambda n: 1024)
WIDTH = triton.next_power_of_2(1.5)


@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, alpha, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, WIDTH)
    x = tl.load(x_ptr + offsets, mask=offsets < n)
    y = tl.load(y_ptr + offsets, mask=offsets < n)
    tl.store(out_ptr + offsets, alpha * x + y, mask=offsets < n)


def scale_add(x, y, alpha):
    out = torch.empty_like(x)
    add_kernel[(triton.cdiv(x.numel(), 1024),)](x, y, out, alpha, x.numel(), BLOCK=1024)
    return out
