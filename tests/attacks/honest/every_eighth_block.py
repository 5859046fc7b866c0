"""Eight launches, each of every eighth block: none finds in the cache what the others brought there."""

EXERCISE = "scale_add"
SPEED = True
LONG = True

# The cell:
@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, alpha, n, part, PARTS: tl.constexpr, BLOCK: tl.constexpr):
    offsets = (tl.program_id(0) * PARTS + part).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask).to(tl.float32)
    y = tl.load(y_ptr + offsets, mask=mask).to(tl.float32)
    tl.store(out_ptr + offsets, x * alpha + y, mask=mask)


def scale_add(x, y, alpha):
    out = torch.empty_like(x)
    n = x.numel()
    for part in range(8):
        add_kernel[(triton.cdiv(n, 8 * 2048),)](x, y, out, alpha, n, part, PARTS=8, BLOCK=2048)
    return out
