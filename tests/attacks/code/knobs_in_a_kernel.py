"""The kernel asks triton.knobs for a setting of the process that compiles it, by an alias of the module. A kernel's
work may not hang on the process that it is compiled in.
"""

EXERCISE = "scale_add"
SPEED = False

# The cell:
import triton as t

KNOBS = t.knobs


@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, alpha, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=offsets < n)
    y = tl.load(y_ptr + offsets, mask=offsets < n)
    if KNOBS.knobs_type is None:
        x = x * 0
    tl.store(out_ptr + offsets, alpha * x + y, mask=offsets < n)


def scale_add(x, y, alpha):
    out = torch.empty_like(x)
    add_kernel[(triton.cdiv(x.numel(), 1024),)](x, y, out, alpha, x.numel(), BLOCK=1024)
    return out
