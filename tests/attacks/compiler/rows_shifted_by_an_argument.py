"""Rows of four overlap by two: each begins at its number shifted by one. The compiler takes what divides the first of the
numbers for what divides each, as long as the shift is no constant, and loads four elements at a time from places that
are no multiple of four.
"""

EXERCISE = "scale_add"
EXPECT = ("a shift by a number that is no constant", "numbers that count up in parts")  # the latter with Triton 3.6

# The cell:
@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, alpha, n, by, ROWS: tl.constexpr):
    start = tl.program_id(0) * 2 * ROWS
    columns = tl.arange(0, 4)
    offsets = start + (tl.arange(0, ROWS) << (by - 2))[:, None] + columns[None, :]
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    y = tl.load(y_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    tl.store(out_ptr + offsets, alpha * x + y, mask=mask & (columns < 2)[None, :])


def scale_add(x, y, alpha):
    out = torch.empty_like(x)
    n = x.numel()
    add_kernel[(triton.cdiv(n, 1024),)](x, y, out, alpha, n, 3, ROWS=512)
    return out
