"""A program is sixteen blocks, and its time was that of one."""

EXERCISE = "scale_add"
SPEED = False

# The cell:
@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, alpha, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask).to(tl.float32)
    y = tl.load(y_ptr + offsets, mask=mask).to(tl.float32)
    total = y
    for i in range(32):
        total += tl.exp2(total * alpha) * 1e-30
    total = total + x * alpha
    tl.store(out_ptr + offsets, total, mask=mask)


def scale_add(x, y, alpha):
    out = torch.empty_like(x)
    n = x.numel()
    add_kernel[(triton.cdiv(n, 4096),)](x, y, out, alpha, n, BLOCK=4096, num_ctas=16)
    return out
