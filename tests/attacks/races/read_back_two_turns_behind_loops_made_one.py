"""Two loops of which the compiler makes one. What stands behind the inner one becomes a branch, and runs behind the loads
that are done turns ahead: one turn more of them misses what it stores.
"""

EXERCISE = "scale_add"
EXPECT = "the compiler may do the load turns ahead"

# The cell:
@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, alpha, n, m, BLOCK: tl.constexpr):
    base = tl.program_id(0).to(tl.int64) * BLOCK * 4
    offs = tl.arange(0, BLOCK)
    for b in range(0, 4):
        mask = base + b * BLOCK + offs < n
        y = tl.load(y_ptr + base + b * BLOCK + offs, mask=mask, other=0.0).to(tl.float32)
        x = tl.load(x_ptr + base + b * BLOCK + offs, mask=mask, other=0.0).to(tl.float32)
        tl.store(out_ptr + base + b * BLOCK + offs, y + tl.where(b == 1, 0.0, alpha * x), mask=mask)
    mask = base + BLOCK + offs < n
    x = tl.load(x_ptr + base + BLOCK + offs, mask=mask, other=0.0).to(tl.float32)
    for i in tl.range(0, 2, flatten=True):
        acc = tl.zeros((BLOCK,), tl.float32)
        for j in tl.range(0, m, num_stages=3):
            inside = base + j * BLOCK + offs < n
            v = tl.load(out_ptr + base + j * BLOCK + offs, mask=inside, other=0.0).to(tl.float32)
            acc += tl.where(j == 1, v, 0.0)
        tl.store(out_ptr + base + BLOCK + offs, acc + tl.where(i == 0, alpha * x, 0.0), mask=mask)


def scale_add(x, y, alpha):
    out = torch.empty_like(x)
    n = x.numel()
    add_kernel[(triton.cdiv(n, 4096),)](x, y, out, alpha, n, 4, BLOCK=1024)
    return out
