"""x is transposed by torch.nn.functional.pad, to rows of 16 numbers more."""

EXERCISE = "scale_add"
SPEED = True

# The cell:
@triton.jit
def add_kernel(xt_ptr, x_ptr, y_ptr, out_ptr, alpha, R, C, CT, BM: tl.constexpr, BN: tl.constexpr):
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    cols = tl.program_id(1) * BN + tl.arange(0, BN)
    mask = (rows[:, None] < R) & (cols[None, :] < C)
    xt = tl.load(xt_ptr + cols[:, None].to(tl.int64) * CT + rows[None, :], mask=(cols[:, None] < C) & (rows[None, :] < R), other=0.0).to(tl.float32)
    off = rows[:, None].to(tl.int64) * C + cols[None, :]
    y = tl.load(y_ptr + off, mask=mask, other=0.0).to(tl.float32)
    tl.store(out_ptr + off, tl.trans(xt) * alpha + y, mask=mask)


def scale_add(x, y, alpha):
    n = x.numel()
    C = 1
    while C * C * 4 <= n and n % (C * 2) == 0:
        C *= 2
    R = n // C
    t = x.view(R, C).t()
    xt = torch.nn.functional.pad(t, (0, 16))
    out = torch.empty_like(x)
    add_kernel[(triton.cdiv(R, 64), triton.cdiv(C, 64))](xt, x, y, out, alpha, R, C, xt.stride(0), BM=64, BN=64)
    return out
