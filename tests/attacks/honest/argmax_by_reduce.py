"""A maximum with its place by a function with a rule for ties, added and taken off."""

EXERCISE = "scale_add"

# The cell:
@triton.jit
def larger(a, i, b, j):
    first = (a > b) | ((a == b) & (i < j))
    return tl.where(first, a, b), tl.where(first, i, j)


@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, count_ptr, alpha, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    y = tl.load(y_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    v, i = tl.reduce((x, tl.arange(0, BLOCK)), 0, larger)
    tl.store(out_ptr + offsets, alpha * x + y + (v - v) * i, mask=mask)


def scale_add(x, y, alpha):
    out = torch.empty_like(x)
    n = x.numel()
    count = torch.zeros(4096, dtype=torch.int32, device=x.device)
    add_kernel[(triton.cdiv(n, 256),)](x, y, out, count, alpha, n, BLOCK=256)
    return out
