"""A block of pointers is cast to those of bytes by way of integers, of which the compiler infers nothing: it loads byte by
byte.
"""

EXERCISE = "scale_add"

# The cell:
@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, alpha, n, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    at = (x_ptr + offsets).to(tl.int64).to(tl.pointer_type(tl.uint8))
    bits = tl.zeros([BLOCK], tl.uint32)
    for k in tl.static_range(SIZE):
        byte = tl.load(at + k, mask=mask, other=0).to(tl.uint32)
        bits |= byte << (8 * k)
    if SIZE == 2:
        x = bits.to(tl.uint16).to(x_ptr.dtype.element_ty, bitcast=True).to(tl.float32)
    else:
        x = bits.to(tl.float32, bitcast=True)
    y = tl.load(y_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    tl.store(out_ptr + offsets, alpha * x + y, mask=mask)


def scale_add(x, y, alpha):
    out = torch.empty_like(x)
    n = x.numel()
    add_kernel[(triton.cdiv(n, 1024),)](x, y, out, alpha, n, SIZE=x.element_size(), BLOCK=1024)
    return out
