"""Twenty-eight roundings to integers for each number go to the unit of special functions, 16 in a cycle."""

EXERCISE = "scale_add"
SPEED = True
LONG = True

# The cell:
@triton.jit
def scale_add_kernel(x_ptr, y_ptr, out_ptr, alpha, n, BLOCK_SIZE: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    mask = offsets < n
    total = alpha * tl.load(x_ptr + offsets, mask=mask).to(tl.float32) + tl.load(y_ptr + offsets, mask=mask).to(tl.float32)
    h = total
    for i in tl.static_range(24):
        h = tl.floor(h) * 1.01
    tl.store(out_ptr + offsets, tl.where(h == 1e30, 0.0, total), mask=mask)


def scale_add(x, y, alpha):
    n, block = x.numel(), 1024
    out = torch.empty_like(x)
    scale_add_kernel[(triton.cdiv(n, block),)](x, y, out, alpha, n, BLOCK_SIZE=block, num_warps=4)
    return out
