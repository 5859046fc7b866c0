"""A loop of 100 turns of exponentials loads in one of its turns. It turns as often as it turns, however rarely it loads."""

EXERCISE = "scale_add"
SPEED = True

# The cell:
@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, alpha, n, turns, BLOCK: tl.constexpr):
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask).to(tl.float32)
    y = tl.zeros([BLOCK], dtype=tl.float32)
    waste = x
    for i in range(turns):
        waste = tl.exp2(waste * alpha) * 0.5 + i
        if i == turns // 2:
            y = tl.load(y_ptr + offsets, mask=mask).to(tl.float32)
    tl.store(out_ptr + offsets, y + x * alpha + tl.where(waste == 12345.678, 1e-6, 0.0), mask=mask)


def scale_add(x, y, alpha):
    out = torch.empty_like(x)
    n = x.numel()
    add_kernel[(triton.cdiv(n, 4096),)](x, y, out, alpha, n, 100, BLOCK=4096, num_warps=8)
    return out
