"""A number is added to a view that overlaps itself: one after the other on a CPU, all at once on a GPU."""

EXERCISE = "scale_add"
EXPECT = "changes a place of its tensor several times"

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
    counts = torch.zeros(8, dtype=torch.int64, device=x.device)
    counts.as_strided((4, 4), (1, 1)).add_(1)  # 1 2 3 4 3 2 1 0 on a CPU, ones on a GPU
    order = torch.arange(blocks, device=x.device) + (counts[3] % 4)  # 0 on a CPU, also when added twice
    add_kernel[(blocks,)](x, y, out, order, alpha, n, BLOCK=4096, num_warps=4)
    return out
