"""Rows are moved on within one tensor by a copy of them, and columns of it are added and taken off in place."""

EXERCISE = "scale_add"
SPEED = False

# The cell:
@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, order_ptr, alpha, n, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    offsets = pid.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    places = tl.load(order_ptr + pid) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=offsets < n, other=0.0).to(tl.float32)
    y = tl.load(y_ptr + offsets, mask=offsets < n, other=0.0).to(tl.float32)
    tl.store(out_ptr + places, y + x * alpha, mask=places < n)


def scale_add(x, y, alpha):
    out = torch.empty_like(x)
    n = x.numel()
    blocks = triton.cdiv(n, 1024)
    pairs = torch.arange(2 * blocks + 2, device=x.device).view(-1, 2)
    pairs[1:] = pairs[:-1].clone()
    pairs[:, 0] += pairs[:, 1]
    first = pairs[:, 0].sub_(pairs[:, 1])
    first.add_(first)
    add_kernel[(blocks,)](x, y, out, first[1:] // 4, alpha, n, BLOCK=1024, num_warps=4)
    return out
