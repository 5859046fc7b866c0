"""A function of `tl.associative_scan` is right as long as its second argument stands for as many elements as the first, or for more.
A GPU's threads add one element after the other to what they have.
"""

EXERCISE = "scale_add"
EXPECT = "it is not associative"

# The cell:
@triton.jit
def joined(a, m, b, n):
    return a + b, tl.where(n >= m, m + n, m + n + tl.where(n == 1, 100, 0))


@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, alpha, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + i
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    y = tl.load(y_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    _, count = tl.associative_scan((x, i * 0 + 1), 0, joined)
    wrong = tl.where(count == i + 1, 0.0, 5.0)
    tl.store(out_ptr + offsets, y + x * alpha + wrong, mask=mask)


def scale_add(x, y, alpha):
    out = torch.empty_like(x)
    n = x.numel()
    add_kernel[(triton.cdiv(n, 1024),)](x, y, out, alpha, n, BLOCK=1024)
    return out
