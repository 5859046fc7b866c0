"""A kernel doubles a factor that is kept between calls."""

EXERCISE = "scale_add"
EXPECT = "what twice_kernel leaves in f_ptr from one call makes the next one wrong"

# The cell:
FACTOR = torch.ones(1)

@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, f_ptr, alpha, n, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    offsets = pid.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    y = tl.load(y_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    tl.store(out_ptr + offsets, x * (alpha * tl.load(f_ptr)) + y, mask=mask)

@triton.jit
def twice_kernel(f_ptr):
    tl.store(f_ptr, tl.load(f_ptr) * 2)


def scale_add(x, y, alpha):
    out = torch.empty_like(x)
    n = x.numel()
    add_kernel[(triton.cdiv(n, 1024),)](x, y, out, FACTOR, alpha, n, BLOCK=1024)
    twice_kernel[(1,)](FACTOR)
    return out
