"""Sixteen atomic additions, ordered for the whole system, come one after the other. Each is to a number of its own."""

EXERCISE = "scale_add"
SPEED = True
LONG = True

# The cell:
@triton.jit
def scale_add_kernel(x_ptr, y_ptr, out_ptr, flags_ptr, alpha, n, BLOCK_SIZE: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask)
    y = tl.load(y_ptr + offsets, mask=mask)
    total = alpha * x + y
    for i in range(16):
        tl.atomic_add(flags_ptr + tl.program_id(0) * 16 + i, 1, sem="acq_rel", scope="sys")
    tl.store(out_ptr + offsets, total, mask=mask)


def scale_add(x, y, alpha):
    n, block = x.numel(), 1024
    out = torch.empty_like(x)
    scale_add_kernel[(triton.cdiv(n, block),)](x, y, out, torch.zeros(16 * triton.cdiv(n, 1024), dtype=torch.int32, device=x.device), alpha, n, BLOCK_SIZE=block, num_warps=4)
    return out
