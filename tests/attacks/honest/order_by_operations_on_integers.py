"""The order of the blocks comes of integers that no data reaches: chosen, filled, put and added up by all that torch has
for it."""

EXERCISE = "scale_add"
SPEED = False

# The cell:
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
    every = torch.arange(2 * blocks)
    order = every.masked_select(every < blocks)
    order = torch.zeros_like(order).scatter_add_(0, order, order)
    order = torch.zeros_like(order).index_add(0, torch.arange(blocks), order)
    order = torch.zeros_like(order).put_(torch.arange(blocks), order)
    order = order.masked_scatter(order >= 0, order.clone()).index_fill(0, torch.arange(0), 7)
    order = torch.addcmul(order, order - order, order).gcd(torch.zeros_like(order)).pow(1)
    add_kernel[(blocks,)](x, y, out, order, alpha, n, BLOCK=1024)
    return out
