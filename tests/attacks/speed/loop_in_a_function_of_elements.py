"""A loop in the function of tl.map_elementwise, whose turns nobody counts."""

EXERCISE = "scale_add"
SPEED = True
EXPECT = "for single elements"

# The cell:
@triton.jit
def waste(x):
    i = 0
    while i < 32:
        x = tl.exp2(x * 0.1) * 0.3
        i += 1
    return x


@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, alpha, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    y = tl.load(y_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    z = tl.map_elementwise(waste, x)
    tl.store(out_ptr + offsets, y + x * alpha + z * 1e-30, mask=mask)


def scale_add(x, y, alpha):
    out = torch.empty_like(x)
    n = x.numel()
    add_kernel[(triton.cdiv(n, 2048),)](x, y, out, alpha, n, BLOCK=2048, num_warps=8)
    return out
