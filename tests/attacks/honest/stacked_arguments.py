"""The host stacks both vectors in one tensor, and the kernel reads both rows."""

EXERCISE = "scale_add"
SPEED = False

# The cell:
@triton.jit
def add_kernel(both_ptr, out_ptr, alpha, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x, y = tl.load(both_ptr + offsets, mask=mask), tl.load(both_ptr + n + offsets, mask=mask)
    tl.store(out_ptr + offsets, alpha * x + y, mask=mask)


def scale_add(x, y, alpha):
    out = torch.empty_like(x)
    add_kernel[(triton.cdiv(x.numel(), 1024),)](torch.stack((x, y)), out, alpha, x.numel(), BLOCK=1024)
    return out
