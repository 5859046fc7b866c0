"""A workspace of 128 MiB, as libraries ask for one, of which a small call takes the beginning."""

EXERCISE = "scale_add"

# The cell:
@triton.jit
def half_kernel(x_ptr, work_ptr, alpha, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    tl.store(work_ptr + offs, tl.load(x_ptr + offs, mask=mask, other=0.0).to(tl.float32) * alpha, mask=mask)


@triton.jit
def add_kernel(work_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    y = tl.load(y_ptr + offs, mask=mask, other=0.0).to(tl.float32)
    tl.store(out_ptr + offs, tl.load(work_ptr + offs, mask=mask, other=0.0) + y, mask=mask)


def scale_add(x, y, alpha):
    n, out = x.numel(), torch.empty_like(x)
    work = torch.empty(32 << 20, dtype=torch.float32, device=x.device)
    half_kernel[(triton.cdiv(n, 1024),)](x, work, alpha, n, BLOCK=1024)
    add_kernel[(triton.cdiv(n, 1024),)](work, y, out, n, BLOCK=1024)
    return out
