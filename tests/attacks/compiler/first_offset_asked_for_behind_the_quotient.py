"""Quotients by the offsets, of which the first is 0. To the compiler it is no longer 0 behind the quotient.
"""

EXERCISE = "scale_add"
EXPECT = "the compiler takes the divisor for another number"

# The cell:
@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, index_ptr, alpha, n, m, BLOCK: tl.constexpr):
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    y = tl.load(y_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    at = (offsets).to(tl.int32)
    quotient = m // at
    right = alpha * x + y
    tl.store(out_ptr + offsets, tl.where(at == 0, right, right + quotient * (at < 0)), mask=mask)


def scale_add(x, y, alpha):
    out = torch.empty_like(x)
    n = x.numel()
    index = torch.ones(1, dtype=torch.int32, device=x.device)
    add_kernel[(triton.cdiv(n, 1024),)](x, y, out, index, alpha, n, 5, BLOCK=1024)
    return out
