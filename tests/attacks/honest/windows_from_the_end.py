"""Rows of four count down from the end, each one element before the last: no two begin at the same place, and few at a
multiple of four.
"""

EXERCISE = "scale_add"

# The cell:
@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, alpha, n, ROWS: tl.constexpr):
    first = n - 1 - tl.program_id(0) * ROWS - tl.arange(0, ROWS)
    columns = tl.arange(0, 4)
    offsets = first[:, None] + columns[None, :]
    mask = (offsets >= 0) & (columns == 0)[None, :]
    x = tl.load(x_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    y = tl.load(y_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    tl.store(out_ptr + offsets, alpha * x + y, mask=mask)


def scale_add(x, y, alpha):
    out = torch.empty_like(x)
    n = x.numel()
    add_kernel[(triton.cdiv(n, 256),)](x, y, out, alpha, n, ROWS=256)
    return out
