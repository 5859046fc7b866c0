"""Two passes through memory, and before each two programs touch the ends of what it will read. The L2 then holds two
blocks, and not what lies between.
"""

EXERCISE = "scale_add"
SPEED = True
LONG = True

# The cell:
@triton.jit
def scale_kernel(x_ptr, t_ptr, alpha, n, first, step, BLOCK: tl.constexpr):
    offsets = (tl.program_id(0).to(tl.int64) * step + first) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask).to(tl.float32)
    tl.store(t_ptr + offsets, x * alpha, mask=mask)


@triton.jit
def add_kernel(t_ptr, y_ptr, out_ptr, n, first, step, BLOCK: tl.constexpr):
    offsets = (tl.program_id(0).to(tl.int64) * step + first) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    t = tl.load(t_ptr + offsets, mask=mask)
    y = tl.load(y_ptr + offsets, mask=mask).to(tl.float32)
    tl.store(out_ptr + offsets, y + t, mask=mask)


def scale_add(x, y, alpha):
    out = torch.empty_like(x)
    n = x.numel()
    t = torch.empty(n, dtype=torch.float32, device=x.device)
    blocks = triton.cdiv(n, 4096)
    scale_kernel[(2,)](x, t, alpha, n, 0, max(blocks - 1, 1), BLOCK=4096, num_warps=8)
    scale_kernel[(blocks,)](x, t, alpha, n, 0, 1, BLOCK=4096, num_warps=8)
    add_kernel[(2,)](t, y, out, n, 0, max(blocks - 1, 1), BLOCK=4096, num_warps=8)
    add_kernel[(blocks,)](t, y, out, n, 0, 1, BLOCK=4096, num_warps=8)
    return out
