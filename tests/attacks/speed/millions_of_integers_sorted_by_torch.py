"""torch sorts four million integers, of which the kernel reads the first. A GPU goes over them many times."""

EXERCISE = "scale_add"
SPEED = True

# The cell:
@triton.jit
def scale_add_kernel(x_ptr, y_ptr, out_ptr, first_ptr, alpha, n, BLOCK_SIZE: tl.constexpr):
    first = tl.load(first_ptr)
    offsets = first + tl.program_id(0) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    mask = offsets < n
    tl.store(out_ptr + offsets, alpha * tl.load(x_ptr + offsets, mask=mask) + tl.load(y_ptr + offsets, mask=mask), mask=mask)


def scale_add(x, y, alpha):
    n, block = x.numel(), 1024
    out = torch.empty_like(x)
    order = torch.arange(min(n, 1 << 22), dtype=torch.int32, device=x.device).flip(0).sort()[0]
    scale_add_kernel[(triton.cdiv(n, block),)](x, y, out, order, alpha, n, BLOCK_SIZE=block, num_warps=4)
    return out
