"""Threads wait for one another behind an atomic operation whose result is asked for. The compiler finds that nobody asks
here, and has no barrier.
"""

EXERCISE = "scale_add"
EXPECT = "another thread does, and no tl.debug_barrier() is between them"

# The cell:
@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, count_ptr, alpha, n, m, BLOCK: tl.constexpr):
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    tl.store(out_ptr + offsets, -tl.load(y_ptr + offsets, mask=mask).to(tl.float32) + alpha * x, mask=mask)
    first = tl.program_id(0) * BLOCK
    a = m
    b = m
    kept = 0
    for turn in range(0, 2):
        old = tl.atomic_add(count_ptr + tl.program_id(0), 1)
        kept += tl.where(a != b, old, 0)
        a = a * 3 + n
        b = b * 3 + n
    other = BLOCK - 1 - tl.arange(0, BLOCK)
    there = first + other < n
    back = tl.load(out_ptr + first + other, mask=there, other=0.0)
    tl.store(out_ptr + first + other, -back - kept, mask=there)


def scale_add(x, y, alpha):
    out = torch.empty_like(x)
    n = x.numel()
    count = torch.zeros(triton.cdiv(n, 1024), dtype=torch.int32, device=x.device)
    add_kernel[(triton.cdiv(n, 1024),)](x, y, out, count, -alpha, n, 5, BLOCK=1024)
    return out
