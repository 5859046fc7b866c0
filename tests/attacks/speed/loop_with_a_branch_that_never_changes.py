"""A loop whose branches go the same way in all turns. The compiler makes a loop for each way they may go, and the slow
one alone turns: it is no average of all.
"""

EXERCISE = "scale_add"
SPEED = True

# The cell:
@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, alpha, n, a, BLOCK: tl.constexpr):
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask).to(tl.float32)
    y = tl.load(y_ptr + offsets, mask=mask).to(tl.float32)
    slow = x
    for i in range(a):
        slow = slow + tl.load(x_ptr + i % n)
        if alpha < 1e9:
            if n > 0:
                slow = tl.exp2(tl.exp2(slow * 1e-3)*1e-3)
            else:
                slow = slow + 3.0
        else:
            if n > 1000:
                slow = slow + 1.0
            else:
                slow = slow + 2.0
    total = x * alpha + y + tl.minimum(slow, slow * 0.5) * 1e-30
    tl.store(out_ptr + offsets, total, mask=mask)


def scale_add(x, y, alpha):
    out = torch.empty_like(x)
    n = x.numel()
    add_kernel[(triton.cdiv(n, 1024),)](x, y, out, alpha, n, 5, BLOCK=1024)
    return out
