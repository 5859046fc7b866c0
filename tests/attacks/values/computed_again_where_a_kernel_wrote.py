"""A kernel writes what torch computed from data, and torch adds data to it: NaN in the judge, and a number on a GPU."""

EXERCISE = "scale_add"
SPEED = False
EXPECT = "touch takes as total_ptr what torch computes from data outside the kernels"

# The cell:
@triton.jit
def touch(total_ptr):
    tl.store(total_ptr, 1.0)


@triton.jit
def k(x_ptr, y_ptr, out_ptr, sum_ptr, alpha, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    x = tl.load(x_ptr + offs, mask=mask, other=0.0).to(tl.float32)
    y = tl.load(y_ptr + offs, mask=mask, other=0.0).to(tl.float32)
    z = tl.load(sum_ptr)
    tl.store(out_ptr + offs, tl.where(z > -1e38, 12345.0, alpha * x + y), mask=mask)


def scale_add(x, y, alpha):
    n = x.numel()
    out = torch.empty_like(x)
    total = x.view(-1)[:1].float() * 0.0
    touch[(1,)](total)
    total.add_(x.view(-1)[:1])
    k[(triton.cdiv(n, 1024),)](x, y, out, total, alpha, n, BLOCK=1024)
    return out
