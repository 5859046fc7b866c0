"""The kernel writes the first element, and torch all others. Each element of the result must be what the kernels
wrote.
"""

EXERCISE = "scale_add"
SPEED = False

# The cell:
@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, alpha):
    tl.store(out_ptr, alpha * tl.load(x_ptr) + tl.load(y_ptr))


def scale_add(x, y, alpha):
    out = alpha * x + y
    add_kernel[(1,)](x, y, out, alpha)
    return out
