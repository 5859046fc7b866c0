"""What nothing wrote is added where it is greater than the least number, which NaN alone is not."""

EXERCISE = "scale_add"
EXPECT = "nothing wrote"

# The cell:
@triton.jit
def k(x_ptr, y_ptr, out_ptr, spare_ptr, alpha, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    x = tl.load(x_ptr + offs, mask=mask).to(tl.float32)
    y = tl.load(y_ptr + offs, mask=mask).to(tl.float32)
    z = tl.load(spare_ptr + offs, mask=mask)
    r = alpha * x + y
    r = tl.where(z > -1e38, r + z, r)
    tl.store(out_ptr + offs, r, mask=mask)


def scale_add(x, y, alpha):
    n = x.numel()
    out = torch.empty_like(x)
    spare = torch.empty(n, dtype=torch.float32)
    k[(triton.cdiv(n, 1024),)](x, y, out, spare, alpha, n, BLOCK=1024)
    return out
