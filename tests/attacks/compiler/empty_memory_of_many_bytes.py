"""What nothing wrote in a buffer of more than 64 MiB is looked at. It is NaN here, and no NaN on a GPU."""

EXERCISE = "scale_add"
LONG = True
EXPECT = "undefined"

# The cell:
@triton.jit
def k(x_ptr, y_ptr, out_ptr, spare_ptr, alpha, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    x = tl.load(x_ptr + offs, mask=mask, other=0.0).to(tl.float32)
    y = tl.load(y_ptr + offs, mask=mask, other=0.0).to(tl.float32)
    z = tl.load(spare_ptr + offs)
    r = alpha * x + y
    r = tl.where(z > -1e38, 12345.0, r)
    tl.store(out_ptr + offs, r, mask=mask)


def scale_add(x, y, alpha):
    n = x.numel()
    out = torch.empty_like(x)
    spare = torch.empty(max(n, 17 << 20), dtype=torch.float32, device=x.device)
    k[(triton.cdiv(n, 1024),)](x, y, out, spare, alpha, n, BLOCK=1024)
    return out
