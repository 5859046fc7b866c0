"""Rows begin at remainders of remainders. The compiler takes each for a multiple of 16, which the first of each run is,
and loads eight elements at a time from wherever a row begins.
"""

EXERCISE = "scale_add"
EXPECT = "a quotient or a remainder"

# The cell:
@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, alpha, n, COLUMNS: tl.constexpr):
    start = tl.program_id(0) * 32
    rows = tl.arange(0, 64) % 48 % 32
    columns = tl.arange(0, COLUMNS)
    offsets = start + rows[:, None] + columns[None, :]
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    y = tl.load(y_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    first = (tl.arange(0, 64) < 32)[:, None] & (columns == 0)[None, :]
    tl.store(out_ptr + offsets, alpha * x + y, mask=mask & first)


def scale_add(x, y, alpha):
    out = torch.empty_like(x)
    n = x.numel()
    add_kernel[(triton.cdiv(n, 32),)](x, y, out, alpha, n, COLUMNS=16)
    return out
