"""The first of two kernels of one name is launched by another name, and is wrong."""

EXERCISE = "scale_add"
EXPECT = "is not the last"

# The cell:
@triton.jit
def k(x_ptr, y_ptr, out_ptr, alpha, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    x = tl.load(x_ptr + offs, mask=mask, other=0.0).to(tl.float32)
    y = tl.load(y_ptr + offs, mask=mask, other=0.0).to(tl.float32)
    tl.store(out_ptr + offs, alpha * x - y, mask=mask)

first = k

@triton.jit
def k(x_ptr, y_ptr, out_ptr, alpha, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    x = tl.load(x_ptr + offs, mask=mask, other=0.0).to(tl.float32)
    y = tl.load(y_ptr + offs, mask=mask, other=0.0).to(tl.float32)
    tl.store(out_ptr + offs, alpha * x + y, mask=mask)

def scale_add(x, y, alpha):
    out = torch.empty_like(x)
    n = x.numel()
    first[(triton.cdiv(n, 1024),)](x, y, out, alpha, n, BLOCK=1024)
    return out
