"""Two halves, each by a launch if it has elements, are put together: an empty one mends nothing."""

EXERCISE = "scale_add"
SPEED = False

# The cell:
@triton.jit
def k(x_ptr, y_ptr, out_ptr, alpha, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    x = tl.load(x_ptr + offs, mask=mask).to(tl.float32)
    y = tl.load(y_ptr + offs, mask=mask).to(tl.float32)
    r = alpha * x + y
    tl.store(out_ptr + offs, r, mask=mask)


def scale_add(x, y, alpha):
    n = x.numel()
    h = (n + 1) // 2
    parts = []
    for a, b in ((x[:h], y[:h]), (x[h:], y[h:])):
        o = torch.empty_like(a)
        if a.numel():
            k[(triton.cdiv(a.numel(), 1024),)](a, b, o, alpha, a.numel(), BLOCK=1024)
        parts.append(o)
    return torch.cat(parts)
