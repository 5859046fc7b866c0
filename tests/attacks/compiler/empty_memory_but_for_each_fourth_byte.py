"""One byte of each integer of an empty buffer is written. The others are what nothing wrote."""

EXERCISE = "scale_add"
EXPECT = "which nothing wrote"

# The cell:
@triton.jit
def k(x_ptr, y_ptr, out_ptr, spare_ptr, alpha, n, WHAT: tl.constexpr, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    x = tl.load(x_ptr + offs, mask=mask, other=0.0).to(tl.float32)
    y = tl.load(y_ptr + offs, mask=mask, other=0.0).to(tl.float32)
    z = tl.load(spare_ptr + offs)
    r = alpha * x + y
    r = tl.where(z == WHAT, r, 12345.0)
    tl.store(out_ptr + offs, r, mask=mask)


@triton.jit
def first(bytes_ptr, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(bytes_ptr + offs * 4, tl.zeros((BLOCK,), tl.int8))


def scale_add(x, y, alpha):
    n = x.numel()
    out = torch.empty_like(x)
    m = triton.cdiv(n, 1024)
    spare = torch.empty(m * 1024, dtype=torch.int32, device=x.device)
    first[(m,)](spare.view(torch.int8), BLOCK=1024)
    k[(m,)](x, y, out, spare, alpha, n, WHAT=0x7FFFFF00, BLOCK=1024)
    return out
