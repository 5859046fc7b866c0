"""The launcher prints, warns and logs what it does, shapes and dtypes only."""

EXERCISE = "scale_add"
SPEED = False

# The cell:
import logging
import warnings

logging.basicConfig(level="DEBUG")


@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, alpha, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=offsets < n)
    y = tl.load(y_ptr + offsets, mask=offsets < n)
    tl.store(out_ptr + offsets, alpha * x + y, mask=offsets < n)


def scale_add(x, y, alpha):
    print("scale_add of", x.shape, x.dtype, flush=True)
    warnings.warn("careful", stacklevel=2)
    logging.info("n = %d", x.numel())
    out = torch.empty_like(x)
    add_kernel[(triton.cdiv(x.numel(), 1024),)](x, y, out, alpha, x.numel(), BLOCK=1024)
    return out
