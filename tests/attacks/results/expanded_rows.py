"""The kernel normalises the first row alone, and the result shows it in all rows. Every row is compared."""

EXERCISE = "rms_norm"
SPEED = False

# The cell:
@triton.jit
def norm_kernel(x_ptr, weight_ptr, out_ptr, W, D, eps, BLOCK_D: tl.constexpr):
    offs_d = tl.arange(0, BLOCK_D)
    mask = offs_d < D
    x = tl.load(x_ptr + offs_d, mask=mask, other=0.0).to(tl.float32)
    weight = tl.load(weight_ptr + offs_d, mask=mask, other=0.0).to(tl.float32)
    tl.store(out_ptr + offs_d, x * tl.rsqrt(tl.sum(x * x) / D + eps) * weight, mask=mask)


def rms_norm(x, weight, eps=1e-6):
    (N, W), D = x.shape, weight.numel()
    out = torch.empty((1, D), dtype=x.dtype)
    norm_kernel[(1,)](x, weight, out, W, D, eps, BLOCK_D=triton.next_power_of_2(D))
    return out.expand(N, D)
