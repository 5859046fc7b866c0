"""A function that is not inlined: its code stands once, and is called 64 times by each program."""

EXERCISE = "scale_add"
SPEED = True

# The cell:
@triton.jit(noinline=True)
def waste(s, i):
    for j in tl.static_range(16):
        s = tl.exp2(s * 0.5 + i) * 0.001
    return s


@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, alpha, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask).to(tl.float32)
    y = tl.load(y_ptr + offsets, mask=mask).to(tl.float32)
    s = alpha
    for i in range(64):
        s = waste(s, alpha)
    total = y + x * alpha + s * 1e-30
    tl.store(out_ptr + offsets, total, mask=mask)


def scale_add(x, y, alpha):
    out = torch.empty_like(x)
    n = x.numel()
    add_kernel[(triton.cdiv(n, 2048),)](x, y, out, alpha, n, BLOCK=2048, num_warps=8)
    return out
