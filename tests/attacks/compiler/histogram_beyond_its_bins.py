"""A histogram of numbers of which most have no bin: here they were left out, on a GPU they are counted elsewhere."""

EXERCISE = "scale_add"
EXPECT = "tl.histogram meets 1024, expected numbers from 0 to 1023"

# The cell:
@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, alpha, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + i
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    y = tl.load(y_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    one = tl.sum(tl.histogram(i + 900, 1024), 0) / 124.0
    tl.store(out_ptr + offsets, (y + x * alpha) * one, mask=mask)


def scale_add(x, y, alpha):
    out = torch.empty_like(x)
    n = x.numel()
    add_kernel[(triton.cdiv(n, 1024),)](x, y, out, alpha, n, BLOCK=1024)
    return out
