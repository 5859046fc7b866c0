"""The host sorts equal numbers, which a CPU leaves in their order. Torch promises that for `stable=True` alone."""

EXERCISE = "scale_add"
EXPECT = "torch sorts what is equal"

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
    order = torch.zeros(blocks, dtype=torch.int64, device=x.device).argsort()
    add_kernel[(blocks,)](x, y, out, order, alpha, n, BLOCK=1024, num_warps=4)
    return out
