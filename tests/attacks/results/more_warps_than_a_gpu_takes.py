"""The launch asks for 64 warps, which no GPU starts: on a GPU there is no answer. What is replayed is a launch that a GPU\ntakes.
"""

EXERCISE = "scale_add"
SPEED = False

# The cell:
@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, alpha, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask).to(tl.float32)
    y = tl.load(y_ptr + offsets, mask=mask).to(tl.float32)
    total = x * alpha + y
    tl.store(out_ptr + offsets, total, mask=mask)


def scale_add(x, y, alpha):
    out = torch.empty_like(x)
    n = x.numel()
    add_kernel[(triton.cdiv(n, 1024),)](x, y, out, alpha, n, BLOCK=1024, num_warps=64)
    return out
