"""Pointers to the beginnings of rows, which are no neighbours, are cast to bytes before the columns are added."""

EXERCISE = "scale_add"

# The cell:
@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, alpha, n, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    rows = tl.program_id(0) * ROWS * BLOCK + tl.arange(0, ROWS) * BLOCK
    cols = tl.arange(0, BLOCK)
    offs = rows[:, None] + cols[None, :]
    mask = offs < n
    x = tl.load(x_ptr + offs, mask=mask, other=0.0).to(tl.float32)
    y = tl.load(y_ptr + offs, mask=mask, other=0.0).to(tl.float32)
    tl.store(out_ptr + offs, alpha * x + y, mask=mask)
    begin = (out_ptr + rows).to(tl.pointer_type(tl.int8))
    size: tl.constexpr = out_ptr.dtype.element_ty.primitive_bitwidth // 8
    there = (begin[:, None] + cols[None, :] * size).to(tl.pointer_type(out_ptr.dtype.element_ty))
    tl.store(there, alpha * x + y, mask=mask)


def scale_add(x, y, alpha):
    out = torch.empty_like(x)
    n = x.numel()
    add_kernel[(triton.cdiv(n, 2048),)](x, y, out, alpha, n, ROWS=16, BLOCK=128)
    return out
