"""The order of the blocks is added up in place on the host: at full size, too, that is done once."""

EXERCISE = "scale_add"
SPEED = True

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
    blocks = triton.cdiv(n, 4096)
    order = torch.zeros(blocks, dtype=torch.int64, device=x.device)
    order += torch.arange(blocks, device=x.device)
    add_kernel[(blocks,)](x, y, out, order, alpha, n, BLOCK=4096, num_warps=4)
    return out
