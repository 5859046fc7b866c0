"""Programs find their row by a quotient of 64 bits, one for each program."""

EXERCISE = "rms_norm"
SPEED = True

# The cell:
@triton.jit
def norm_kernel(x_ptr, weight_ptr, out_ptr, W, D, eps, repeats, BLOCK_D: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * repeats // repeats
    offs_d = tl.arange(0, BLOCK_D)
    mask = offs_d < D
    x = tl.load(x_ptr + row * W + offs_d, mask=mask, other=0.0).to(tl.float32)
    weight = tl.load(weight_ptr + offs_d, mask=mask, other=0.0).to(tl.float32)
    rstd = tl.rsqrt(tl.sum(x * x) / D + eps)
    tl.store(out_ptr + row * D + offs_d, x * rstd * weight, mask=mask)


def rms_norm(x, weight, eps=1e-6):
    (N, W), D = x.shape, weight.numel()
    out = torch.empty((N, D), dtype=x.dtype, device=x.device)
    norm_kernel[(N,)](x, weight, out, W, D, eps, 3, BLOCK_D=triton.next_power_of_2(D))
    return out
