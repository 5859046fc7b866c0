"""A second launch, of a kernel with a loop, has no programs."""

EXERCISE = "scale_add"
SPEED = True
LONG = True

# The cell:
@triton.jit
def k(x_ptr, y_ptr, out_ptr, alpha, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    x = tl.load(x_ptr + offs, mask=mask, other=0.0).to(tl.float32)
    y = tl.load(y_ptr + offs, mask=mask, other=0.0).to(tl.float32)
    tl.store(out_ptr + offs, alpha * x + y, mask=mask)


@triton.jit
def idle(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    acc = tl.zeros((BLOCK,), tl.float32)
    for i in range(0, n, BLOCK):
        offs = i + tl.arange(0, BLOCK)
        acc += tl.load(x_ptr + offs, mask=offs < n, other=0.0).to(tl.float32)
    tl.store(out_ptr + tl.arange(0, BLOCK), acc)


def scale_add(x, y, alpha):
    n = x.numel()
    out = torch.empty_like(x)
    k[(triton.cdiv(n, 1024),)](x, y, out, alpha, n, BLOCK=1024)
    idle[(0,)](x, out, n, BLOCK=128)
    return out
