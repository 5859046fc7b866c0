"""Block and warps are constants of the module, one of them computed from another and read by the kernel."""

EXERCISE = "scale_add"
SPEED = False

# The cell:
WARPS = 4
PER_THREAD = 8
BLOCK_SIZE = tl.constexpr(WARPS * 32 * PER_THREAD)


@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, alpha, n):
    offsets = tl.program_id(0) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask)
    y = tl.load(y_ptr + offsets, mask=mask)
    tl.store(out_ptr + offsets, alpha * x + y, mask=mask)


def scale_add(x, y, alpha):
    out = torch.empty_like(x)
    add_kernel[(triton.cdiv(x.numel(), 32 * WARPS * PER_THREAD),)](x, y, out, alpha, x.numel(), num_warps=WARPS)
    return out
