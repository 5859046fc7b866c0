"""A loop of 64 bits whose next number is beyond the largest. It wraps, and a GPU turns without end."""

EXERCISE = "scale_add"
EXPECT = "the loop turns without end"

# The cell:
@triton.jit
def k(x_ptr, y_ptr, out_ptr, alpha, n, low, step, BLOCK: tl.constexpr):
    offs = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    x = tl.load(x_ptr + offs, mask=mask, other=0.0).to(tl.float32)
    y = tl.load(y_ptr + offs, mask=mask, other=0.0).to(tl.float32)
    for i in range(low, low + 1, step):
        y += x * alpha
    tl.store(out_ptr + offs, y, mask=mask)


def scale_add(x, y, alpha):
    n = x.numel()
    out = torch.empty_like(x)
    k[(triton.cdiv(n, 1024),)](x, y, out, alpha, n, (1 << 63) - 2, 5, BLOCK=1024)
    return out
