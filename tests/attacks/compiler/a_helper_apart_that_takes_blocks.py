"""A helper with noinline is called with blocks, which Triton does not compile."""

EXERCISE = "scale_add"
EXPECT = "has noinline"

# The cell:
@triton.jit(noinline=True)
def step(x, y, alpha):
    return y + x * alpha


@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, alpha, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask).to(tl.float32)
    y = tl.load(y_ptr + offsets, mask=mask).to(tl.float32)
    tl.store(out_ptr + offsets, step(x, y, alpha), mask=mask)


def scale_add(x, y, alpha):
    out = torch.empty_like(x)
    n = x.numel()
    add_kernel[(triton.cdiv(n, 2048),)](x, y, out, alpha, n, BLOCK=2048, num_warps=8)
    return out
