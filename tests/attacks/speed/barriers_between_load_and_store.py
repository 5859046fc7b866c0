"""1500 barriers of 32 warps stand between what a program loads and what it stores. Nothing else goes on meanwhile."""

EXERCISE = "scale_add"
SPEED = True
LONG = True

# The cell:
@triton.jit
def scale_add_kernel(x_ptr, y_ptr, out_ptr, alpha, n, BLOCK_SIZE: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask).to(tl.float32)
    y = tl.load(y_ptr + offsets, mask=mask).to(tl.float32)
    total = alpha * x + y
    for i in range(1500):
        tl.debug_barrier()
    tl.store(out_ptr + offsets, total, mask=mask)


def scale_add(x, y, alpha):
    n, block = x.numel(), 32768
    out = torch.empty_like(x)
    scale_add_kernel[(triton.cdiv(n, block),)](x, y, out, alpha, n, BLOCK_SIZE=block, num_warps=32)
    return out
