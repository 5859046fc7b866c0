"""Parameters have the types that they are annotated with: an integer of 64 bits, a one that is no constant, a float."""

EXERCISE = "scale_add"
SPEED = False

# The cell:
@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, alpha, n: tl.int64, BLOCK: tl.constexpr, big: tl.int64, one: tl.int64, unit: tl.float32):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    index = ((tl.program_id(0) + 1) * big // big - tl.program_id(0)) * one.to(tl.float32) * unit.to(tl.float32)
    x = tl.load(x_ptr + offs, mask=offs < n, other=0.0)
    y = tl.load(y_ptr + offs, mask=offs < n, other=0.0)
    tl.store(out_ptr + offs, (alpha * x + y * index).to(x.dtype), mask=offs < n)


def scale_add(x, y, alpha):
    n = x.numel()
    out = torch.empty_like(x)
    add_kernel[(triton.cdiv(n, 1024),)](x, y, out, alpha, n, BLOCK=1024, big=2000000000, one=1, unit=1)
    return out
