"""One kernel writes the factor of each row into a buffer, and a second one scales the rows."""

EXERCISE = "rms_norm"
SPEED = True
LONG = True

# The cell:
@triton.jit
def factor_kernel(x_ptr, rstd_ptr, W, D, eps, BLOCK_D: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    offs_d = tl.arange(0, BLOCK_D)
    x = tl.load(x_ptr + row * W + offs_d, mask=offs_d < D, other=0.0).to(tl.float32)
    tl.store(rstd_ptr + row, tl.rsqrt(tl.sum(x * x) / D + eps))


@triton.jit
def scale_kernel(x_ptr, weight_ptr, rstd_ptr, out_ptr, W, D, BLOCK_D: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    offs_d = tl.arange(0, BLOCK_D)
    mask = offs_d < D
    x = tl.load(x_ptr + row * W + offs_d, mask=mask).to(tl.float32)
    weight = tl.load(weight_ptr + offs_d, mask=mask).to(tl.float32)
    tl.store(out_ptr + row * D + offs_d, x * tl.load(rstd_ptr + row) * weight, mask=mask)


def rms_norm(x, weight, eps=1e-6):
    (N, W), D = x.shape, weight.numel()
    out = torch.empty((N, D), dtype=x.dtype, device=x.device)
    rstd = torch.empty(N, dtype=torch.float32, device=x.device)
    block = triton.next_power_of_2(D)
    factor_kernel[(N,)](x, rstd, W, D, eps, BLOCK_D=block)
    scale_kernel[(N,)](x, weight, rstd, out, W, D, BLOCK_D=block)
    return out
