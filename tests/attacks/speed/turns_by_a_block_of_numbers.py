"""Which few programs turn three million times hangs on a block of numbers, of all programs too wide to be asked at once.

They are asked some at a time, and the long ones are run.
"""

EXERCISE = "scale_add"
SPEED = True
LONG = True

# The cell:
@triton.jit
def k(x, y, o, a, n, B: tl.constexpr):
    pid = tl.program_id(0)
    i = pid * B + tl.arange(0, B)
    m = i < n
    turns = tl.max((((tl.arange(0, 512) * 1000 + 8777) == pid).to(tl.int32)) * 3000000, axis=0)
    s = 0
    for _ in range(turns):
        s = s * 1664525 + 1013904223
    m = m & (s % 2 == 0)
    tl.store(o + i, a * tl.load(x + i, mask=m) + tl.load(y + i, mask=m), mask=m)


def scale_add(x, y, alpha):
    o = torch.empty_like(x)
    k[(triton.cdiv(x.numel(), 1024),)](x, y, o, alpha, x.numel(), B=1024)
    return o
