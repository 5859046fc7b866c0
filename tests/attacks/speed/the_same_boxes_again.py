"""A tensor descriptor brings the same boxes again and again: there is no L1 cache where they could be found."""

EXERCISE = "scale_add"
SPEED = True

# The cell:
from triton.tools.tensor_descriptor import TensorDescriptor


@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, alpha, n, box, TURNS: tl.constexpr, BLOCK: tl.constexpr):
    first = tl.program_id(0).to(tl.int64) * BLOCK
    offsets = first + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask).to(tl.float32)
    y = tl.load(y_ptr + offsets, mask=mask).to(tl.float32)
    ones = tl.full([64, 16], 1.0, tl.bfloat16)
    seen = tl.zeros([128, 16], tl.float32)
    for i in tl.range(TURNS, num_stages=3):
        seen = tl.dot(box.load([tl.program_id(0) * (BLOCK // 64) + i % 2, 0]), ones, seen)
    nothing = tl.where(tl.max(tl.max(seen, axis=1), axis=0) == 1234567.0, 1e-30, 0.0)
    tl.store(out_ptr + offsets, x * alpha + y + nothing, mask=mask)


@triton.jit
def plain_kernel(x_ptr, y_ptr, out_ptr, alpha, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask).to(tl.float32)
    y = tl.load(y_ptr + offsets, mask=mask).to(tl.float32)
    tl.store(out_ptr + offsets, x * alpha + y, mask=mask)


def scale_add(x, y, alpha):
    out = torch.empty_like(x)
    n = x.numel()
    if n % 64 or x.dtype != torch.bfloat16:
        plain_kernel[(triton.cdiv(n, 1024),)](x, y, out, alpha, n, BLOCK=1024)
        return out
    box = TensorDescriptor(x, [n // 64, 64], [64, 1], [128, 64])
    add_kernel[(triton.cdiv(n, 8192),)](x, y, out, alpha, n, box, TURNS=15, BLOCK=8192, num_warps=8)
    return out
