"""Elements and their places are each reshaped in any order, from blocks of two shapes. A GPU's threads lay out the two
differently, and so each comes in an order of its own.
"""

EXERCISE = "scale_add"

# The cell:
@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, alpha, n, BLOCK: tl.constexpr):
    start = tl.program_id(0).to(tl.int64) * BLOCK
    a = tl.arange(0, 8)[:, None] * 128 + tl.arange(0, 128)[None, :]
    b = tl.arange(0, 128)[:, None] * 8 + tl.arange(0, 8)[None, :]
    offsets = start + a
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    y = tl.load(y_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    values = tl.reshape(y + x * alpha, (BLOCK,), can_reorder=True)
    places = start + tl.reshape(b, (BLOCK,), can_reorder=True)
    tl.store(out_ptr + places, values, mask=places < n)


def scale_add(x, y, alpha):
    out = torch.empty_like(x)
    n = x.numel()
    add_kernel[(triton.cdiv(n, 1024),)](x, y, out, alpha, n, BLOCK=1024)
    return out
