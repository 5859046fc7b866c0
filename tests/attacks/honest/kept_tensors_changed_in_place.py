"""A tensor that was there before the call, and one that was made from numbers, are changed in place before a kernel takes
what is made of them."""

EXERCISE = "scale_add"
SPEED = False

# The cell:
SHIFT = torch.zeros(1, dtype=torch.int64)


@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, order_ptr, alpha, n, BLOCK: tl.constexpr):
    at = tl.load(order_ptr + tl.program_id(0)).to(tl.int64)
    offsets = at * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    y = tl.load(y_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    tl.store(out_ptr + offsets, x * alpha + y, mask=mask)


def scale_add(x, y, alpha):
    out = torch.empty_like(x)
    n, blocks = x.numel(), triton.cdiv(x.numel(), 1024)
    SHIFT.add_(1)
    start = torch.tensor([3])
    start.sub_(3)
    order = torch.arange(blocks) + SHIFT - 1 + start
    SHIFT.sub_(1)
    add_kernel[(blocks,)](x, y, out, order, alpha, n, BLOCK=1024)
    return out
