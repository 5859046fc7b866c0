"""The host puts the numbers behind a mask of its own, by boolean indexing and by scatter."""

EXERCISE = "scale_add"
SPEED = False

# The cell:
@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, alpha, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=offsets < n, other=0.0).to(tl.float32)
    y = tl.load(y_ptr + offsets, mask=offsets < n, other=0.0).to(tl.float32)
    tl.store(out_ptr + offsets, alpha * x + y, mask=offsets < n)


def scale_add(x, y, alpha):
    n, out = x.numel(), torch.empty_like(x)
    even = torch.arange(2 * n) % 2 == 0
    x_wide, y_wide = x.new_zeros(2 * n), y.new_zeros(2 * n)
    x_wide[even] = x
    y_wide.scatter_(0, even.nonzero()[:, 0], y)
    wide = torch.empty_like(x_wide)
    add_kernel[(triton.cdiv(2 * n, 1024),)](x_wide, y_wide, wide, alpha, 2 * n, BLOCK=1024)
    out.copy_(wide[even])
    return out
