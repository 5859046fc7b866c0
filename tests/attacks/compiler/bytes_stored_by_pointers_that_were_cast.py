"""The result is stored byte by byte. The compiler takes pointers to numbers for neighbours as pointers to bytes, too, and
stores the low bytes side by side over other numbers.
"""

EXERCISE = "scale_add"
EXPECT = "a block of pointers that is cast to numbers of another width"

# The cell:
@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, alpha, n, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    y = tl.load(y_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    z = (alpha * x + y).to(out_ptr.dtype.element_ty)
    if SIZE == 2:
        bits = z.to(tl.uint16, bitcast=True).to(tl.uint32)
    else:
        bits = z.to(tl.uint32, bitcast=True)
    at = (out_ptr + offsets).to(tl.pointer_type(tl.uint8))
    for k in tl.static_range(SIZE):
        tl.store(at + (SIZE - 1 - k), (bits >> (8 * (SIZE - 1 - k)) & 255).to(tl.uint8), mask=mask)


def scale_add(x, y, alpha):
    out = torch.empty_like(x)
    n = x.numel()
    add_kernel[(triton.cdiv(n, 1024),)](x, y, out, alpha, n, SIZE=x.element_size(), BLOCK=1024)
    return out
