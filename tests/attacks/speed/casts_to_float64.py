"""Twelve times each number becomes one of 64 bits and back, which a GPU does at an eighth of the pace of a sum."""

EXERCISE = "scale_add"
SPEED = True
EXPECT = "of the floor's speed"

# The cell:
@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, alpha, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask).to(tl.float32)
    y = tl.load(y_ptr + offsets, mask=mask).to(tl.float32)
    for i in tl.static_range(12):
        x = (x.to(tl.float64) * 1.0000000001).to(tl.float32)
    tl.store(out_ptr + offsets, y + x * alpha, mask=mask)


def scale_add(x, y, alpha):
    out = torch.empty_like(x)
    n = x.numel()
    add_kernel[(triton.cdiv(n, 4096),)](x, y, out, alpha, n, BLOCK=4096, num_warps=8)
    return out
