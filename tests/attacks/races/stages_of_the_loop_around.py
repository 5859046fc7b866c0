"""Two loops are made one. The inner one asks for one stage and the outer one for three: the compiler takes three."""

EXERCISE = "scale_add"
EXPECT = "the compiler may do the load turns ahead"

# The cell:
@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, alpha, n, m, BLOCK: tl.constexpr):
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(out_ptr + offsets, tl.load(y_ptr + offsets, mask=mask), mask=mask)
    x = tl.load(x_ptr + offsets, mask=mask).to(tl.float32)
    for i in tl.range(0, 2, flatten=True, num_stages=3):
        for j in tl.range(0, m, num_stages=1):
            before = tl.load(out_ptr + offsets, mask=mask).to(tl.float32)
            tl.store(out_ptr + offsets, before + tl.where((i == 1) & (j == 0), x * alpha, 0.0), mask=mask)


def scale_add(x, y, alpha):
    out = torch.empty_like(x)
    n = x.numel()
    add_kernel[(triton.cdiv(n, 1024),)](x, y, out, alpha, n, 2, BLOCK=1024)
    return out
