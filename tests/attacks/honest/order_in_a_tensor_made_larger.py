"""A tensor without elements is made as large as it must be: by hand, and by the operation that it is given as a place for
its result; another takes the memory of a third."""

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
    first, second, order = (torch.empty(0, dtype=torch.int64) for _ in range(3))
    torch.arange(blocks, out=first)
    second.resize_(blocks).copy_(first)
    order.set_(second)
    add_kernel[(blocks,)](x, y, out, order, alpha, n, BLOCK=1024)
    return out
