"""Rows are walked by blocks from the end. The first block begins below zero, where the mask leaves out what quotients and
remainders of the offsets give.
"""

EXERCISE = "scale_add"

# The cell:
@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, alpha, n, PAGE: tl.constexpr, BLOCK: tl.constexpr):
    end = n - tl.program_id(0) * BLOCK
    at = (end + 15) // 16 * 16 - BLOCK + tl.arange(0, BLOCK)
    mask = (at >= 0) & (at < end) & (at >= end - BLOCK)
    where = at // PAGE * PAGE + at % PAGE
    x = tl.load(x_ptr + where, mask=mask)
    y = tl.load(y_ptr + where, mask=mask)
    tl.store(out_ptr + where, alpha * x + y, mask=mask)
    rest = (end + 15) // 16 * 16 - 2 * BLOCK + tl.arange(0, BLOCK)
    more = (rest >= 0) & (rest >= end - BLOCK)
    where = rest // PAGE * PAGE + rest % PAGE
    x = tl.load(x_ptr + where, mask=more)
    y = tl.load(y_ptr + where, mask=more)
    tl.store(out_ptr + where, alpha * x + y, mask=more)


def scale_add(x, y, alpha):
    out = torch.empty_like(x)
    n = x.numel()
    add_kernel[(triton.cdiv(n, 1024),)](x, y, out, alpha, n, PAGE=64, BLOCK=1024)
    return out
