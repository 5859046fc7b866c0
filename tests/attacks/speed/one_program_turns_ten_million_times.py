"""One program of 65536 turns ten million times, so that asking all how often they turn takes too long.

It must not pass for one that does as much as the others: who goes on when the time is up is run, and takes too long.
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
    t = 0
    if pid == 8777:
        t = 10000000
    s = 0
    while t > 0:
        s = s * 1664525 + 1013904222
        t -= 1 + (s == 123456789).to(tl.int32)
    m = m & (s % 2 == 0)
    tl.store(o + i, a * tl.load(x + i, mask=m) + tl.load(y + i, mask=m), mask=m)


def scale_add(x, y, alpha):
    o = torch.empty_like(x)
    k[(triton.cdiv(x.numel(), 1024),)](x, y, o, alpha, x.numel(), B=1024)
    return o
