"""A launch with an option that is misspelt. Triton refuses it.
"""

EXERCISE = "scale_add"
EXPECT = "num_wraps is neither a parameter"

# The cell:
@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, alpha, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + i
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    y = tl.load(y_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    tl.store(out_ptr + offsets, y + x * alpha, mask=mask)


def scale_add(x, y, alpha):
    out = torch.empty_like(x)
    n = x.numel()
    add_kernel[(triton.cdiv(n, 1024),)](x, y, out, alpha, n, BLOCK=1024, num_wraps=8)
    return out
