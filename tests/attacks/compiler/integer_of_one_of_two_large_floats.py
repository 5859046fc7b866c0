"""All of the kernel hangs on the integer that 1e30 or 2e30 becomes; a number from memory says which of the two.
"""

EXERCISE = "scale_add"
EXPECT = "a cast of a float that is beyond the integers"

# The cell:
@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, index_ptr, alpha, n, m, BLOCK: tl.constexpr):
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    y = tl.load(y_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    large = tl.where(tl.load(index_ptr) > 0, 1e30, 2e30)
    if large.to(tl.int32) == 2147483647:
        tl.store(out_ptr + offsets, alpha * x + y, mask=mask)


def scale_add(x, y, alpha):
    out = torch.empty_like(x)
    n = x.numel()
    index = torch.ones(1, dtype=torch.int32, device=x.device)
    add_kernel[(triton.cdiv(n, 1024),)](x, y, out, index, alpha, n, 5, BLOCK=1024)
    return out
