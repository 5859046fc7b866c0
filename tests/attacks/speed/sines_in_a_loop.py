"""Four hundred sines in a loop: the code for large angles is in the loop, and the loop is more than that."""

EXERCISE = "scale_add"
SPEED = True

# The cell:
@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, alpha, n, turns, BLOCK: tl.constexpr):
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask).to(tl.float32)
    y = tl.load(y_ptr + offsets, mask=mask).to(tl.float32)
    total = y
    for i in range(turns):
        total += tl.sin(x * alpha + i) * 1e-30
    total = total + x * alpha
    tl.store(out_ptr + offsets, total, mask=mask)


def scale_add(x, y, alpha):
    out = torch.empty_like(x)
    n = x.numel()
    add_kernel[(triton.cdiv(n, 1024),)](x, y, out, alpha, n, 400, BLOCK=1024)
    return out
