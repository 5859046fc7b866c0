"""A power of 2 for each head, as ALiBi has it: of two shifts `tl.where` chooses the one that is defined."""

EXERCISE = "scale_add"

# The cell:
@triton.jit
def k(x_ptr, y_ptr, out_ptr, alpha, n, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    offs = pid.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    x = tl.load(x_ptr + offs, mask=mask, other=0.0).to(tl.float32)
    y = tl.load(y_ptr + offs, mask=mask, other=0.0).to(tl.float32)
    h = offs % 16
    power = tl.where(h < 8, 1 << h, 1 << (h - 8))
    one = power.to(tl.float32) / tl.where(h < 8, 1 << h, 1 << (h - 8)).to(tl.float32)
    tl.store(out_ptr + offs, alpha * x * one + y, mask=mask)


def scale_add(x, y, alpha):
    n = x.numel()
    out = torch.empty_like(x)
    k[(triton.cdiv(n, 1024),)](x, y, out, alpha, n, BLOCK=1024)
    return out
