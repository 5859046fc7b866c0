"""A constant reaches triton.knobs and changes how the judge's process compiles. Nothing but literals may be a constant
of a kernel.
"""

EXERCISE = "scale_add"
SPEED = False

# The cell:
KNOBS = triton.knobs
RUNTIME = KNOBS.runtime
FLAG = tl.constexpr(int(RUNTIME.debug))


@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, alpha, n, BLOCK: tl.constexpr):
    offsets = FLAG + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=offsets < n)
    y = tl.load(y_ptr + offsets, mask=offsets < n)
    tl.store(out_ptr + offsets, alpha * x + y, mask=offsets < n)


def scale_add(x, y, alpha):
    out = torch.empty_like(x)
    add_kernel[(triton.cdiv(x.numel(), 1024),)](x, y, out, alpha, x.numel(), BLOCK=1024)
    return out
