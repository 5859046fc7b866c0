"""A pipelined loop reads back what the turn before stored. A loop within it keeps the compiler from that, or would, if its
two bounds, which the loop carries, were not found to be one number and it left out.
"""

EXERCISE = "scale_add"
EXPECT = "the compiler may do the load turns ahead"

# The cell:
@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, alpha, n, m, BLOCK: tl.constexpr):
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(out_ptr + offsets, tl.load(y_ptr + offsets, mask=mask), mask=mask)
    x = tl.load(x_ptr + offsets, mask=mask).to(tl.float32)
    a = m
    b = m
    for turn in tl.range(0, 4, num_stages=3):
        before = tl.load(out_ptr + offsets, mask=mask).to(tl.float32)
        for j in range(a, b):
            before = before * 0.5
        a = a * 3 + n
        b = b * 3 + n
        tl.store(out_ptr + offsets, before + tl.where(turn == 2, x * alpha, 0.0), mask=mask)


def scale_add(x, y, alpha):
    out = torch.empty_like(x)
    n = x.numel()
    add_kernel[(triton.cdiv(n, 1024),)](x, y, out, alpha, n, 5, BLOCK=1024)
    return out
