"""Exponentials in the condition of a while loop, which turns 75 times. The machine code of its body is that of a number
that the condition has computed already, and has the condition's line.
"""

EXERCISE = "scale_add"
SPEED = True

# The cell:
@triton.jit
def waste(s):
    for j in tl.static_range(16):
        s = tl.exp2(s * 1e-3) * 1e-3
    return s


@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, alpha, n, first, BLOCK: tl.constexpr):
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask).to(tl.float32)
    y = tl.load(y_ptr + offsets, mask=mask).to(tl.float32)
    i = 1.0 * first
    while (i + 1.0) < tl.minimum(waste(alpha + i), 0.0) + 80:
        i = i + 1.0
    total = x * alpha + y + tl.minimum(x, i) * 1e-30
    tl.store(out_ptr + offsets, total, mask=mask)


def scale_add(x, y, alpha):
    out = torch.empty_like(x)
    n = x.numel()
    add_kernel[(triton.cdiv(n, 1024),)](x, y, out, alpha, n, 5, BLOCK=1024)
    return out
