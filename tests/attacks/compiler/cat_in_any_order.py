"""Halves of a block are put together by `tl.cat`, which may reorder, and stored as if it did not. On a GPU nearly all of
the elements come out elsewhere.
"""

EXERCISE = "scale_add"
EXPECT = "out has a relative error"

# The cell:
@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, alpha, n, BLOCK: tl.constexpr):
    base = tl.program_id(0).to(tl.int64) * BLOCK
    half = base + tl.arange(0, BLOCK // 2)
    first = tl.load(x_ptr + half, mask=half < n).to(tl.float32)
    second = tl.load(x_ptr + half + BLOCK // 2, mask=half + BLOCK // 2 < n).to(tl.float32)
    x = tl.cat(first, second, can_reorder=True)
    offsets = base + tl.arange(0, BLOCK)
    mask = offsets < n
    y = tl.load(y_ptr + offsets, mask=mask).to(tl.float32)
    tl.store(out_ptr + offsets, y + x * alpha, mask=mask)


def scale_add(x, y, alpha):
    out = torch.empty_like(x)
    n = x.numel()
    add_kernel[(triton.cdiv(n, 1024),)](x, y, out, alpha, n, BLOCK=1024)
    return out
