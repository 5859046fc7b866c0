"""Indices are kept from call to call, and both ways of indexing are used."""

EXERCISE = "scale_add"
SPEED = False

# The cell:
@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, alpha, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=offsets < n, other=0.0).to(tl.float32)
    y = tl.load(y_ptr + offsets, mask=offsets < n, other=0.0).to(tl.float32)
    tl.store(out_ptr + offsets, alpha * x + y, mask=offsets < n)


KEPT = {}


def scale_add(x, y, alpha):
    n, out = x.numel(), torch.empty_like(x)
    if n not in KEPT:
        KEPT[n] = torch.arange(n - 1, -1, -1)
    order = KEPT[n]
    add_kernel[(triton.cdiv(n, 1024),)](x[order], y.index_select(0, order), out, alpha, n, BLOCK=1024)
    return torch.zeros_like(out).index_copy(0, order, out)
