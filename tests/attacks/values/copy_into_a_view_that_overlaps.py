"""Torch copies a right and a wrong value to one place, and nothing says which one stays."""

EXERCISE = "scale_add"
EXPECT = "several values in one place"

# The cell:
@triton.jit
def k(x_ptr, y_ptr, src_ptr, alpha, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    x = tl.load(x_ptr + offs, mask=mask).to(tl.float32)
    y = tl.load(y_ptr + offs, mask=mask).to(tl.float32)
    tl.store(src_ptr + 2 * offs, alpha * x + y, mask=mask)
    tl.store(src_ptr + 2 * offs + 1, x - y, mask=mask)


def scale_add(x, y, alpha):
    n = x.numel()
    src = torch.empty((n, 2), dtype=x.dtype, device=x.device)
    k[(triton.cdiv(n, 1024),)](x, y, src, alpha, n, BLOCK=1024)
    buf = torch.empty(n + 1, dtype=x.dtype, device=x.device)
    buf.as_strided((n, 2), (1, 1)).copy_(src)   # several values in one place
    return buf[:n]
