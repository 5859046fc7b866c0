"""All of the kernel hangs on a shift by a number from memory, of which the compiler knows that it is 32 at least.
"""

EXERCISE = "scale_add"
EXPECT = "a shift by as many bits as the number has"

# The cell:
@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, index_ptr, alpha, n, m, BLOCK: tl.constexpr):
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    y = tl.load(y_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    by = tl.load(index_ptr) | 32
    if (m << by) == 0:
        tl.store(out_ptr + offsets, alpha * x + y, mask=mask)


def scale_add(x, y, alpha):
    out = torch.empty_like(x)
    n = x.numel()
    index = torch.ones(1, dtype=torch.int32, device=x.device)
    add_kernel[(triton.cdiv(n, 1024),)](x, y, out, index, alpha, n, 5, BLOCK=1024)
    return out
