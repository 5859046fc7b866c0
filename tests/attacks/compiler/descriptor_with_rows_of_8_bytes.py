"""A tensor descriptor of the host with boxes of 8 bytes a row. No GPU takes it."""

EXERCISE = "scale_add"
EXPECT = "needs 16 at least"

# The cell:
from triton.tools.tensor_descriptor import TensorDescriptor

@triton.jit
def add_kernel(x_desc, y_ptr, out_ptr, alpha, n, ROWS: tl.constexpr):
    row = tl.program_id(0) * ROWS
    offsets = (row + tl.arange(0, ROWS)).to(tl.int64)[:, None] * 4 + tl.arange(0, 4)[None, :]
    mask = offsets < n
    x = x_desc.load([row, 0]).to(tl.float32)
    y = tl.load(y_ptr + offsets, mask=mask).to(tl.float32)
    tl.store(out_ptr + offsets, y + x * alpha, mask=mask)


@triton.jit
def plain_kernel(x_ptr, y_ptr, out_ptr, alpha, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask).to(tl.float32)
    y = tl.load(y_ptr + offsets, mask=mask).to(tl.float32)
    tl.store(out_ptr + offsets, y + x * alpha, mask=mask)


def scale_add(x, y, alpha):
    out = torch.empty_like(x)
    n = x.numel()
    if n % 8 == 0 and n:
        desc = TensorDescriptor(x.view(-1), [n // 8, 8], [8, 1], [256, 4])
        add_kernel[(triton.cdiv(n // 8, 256),)](desc, y, out, alpha, n, ROWS=256)
    plain_kernel[(triton.cdiv(n, 1024),)](x, y, out, alpha, n, BLOCK=1024)
    return out
