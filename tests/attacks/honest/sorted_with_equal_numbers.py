"""The host sorts blocks by a key that many share: any order of theirs is right, and the one of `stable=True` is known."""

EXERCISE = "scale_add"
SPEED = True

# The cell:
@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, order_ptr, even_ptr, alpha, n, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    offsets = tl.load(order_ptr + pid) * BLOCK + tl.arange(0, BLOCK)
    places = tl.where(tl.load(even_ptr + pid) == 2 * pid, offsets, 0)
    mask = offsets < n
    x = tl.load(x_ptr + places, mask=mask, other=0.0).to(tl.float32)
    y = tl.load(y_ptr + places, mask=mask, other=0.0).to(tl.float32)
    tl.store(out_ptr + places, y + x * alpha, mask=mask)


def scale_add(x, y, alpha):
    out = torch.empty_like(x)
    n = x.numel()
    blocks = triton.cdiv(n, 4096)
    keys = torch.arange(2 * blocks, device=x.device) % 2
    order = keys[:blocks].sort(descending=True).indices
    even = keys.sort(stable=True).indices
    add_kernel[(blocks,)](x, y, out, order, even, alpha, n, BLOCK=4096, num_warps=4)
    return out
