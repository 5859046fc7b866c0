"""Each row has a launch of its own, on views of the row, in a loop of Python."""

EXERCISE = "rms_norm"
SPEED = False

# The cell:
@triton.jit
def norm_kernel(x_ptr, weight_ptr, out_ptr, D, eps, BLOCK_D: tl.constexpr):
    offs_d = tl.arange(0, BLOCK_D)
    mask = offs_d < D
    x = tl.load(x_ptr + offs_d, mask=mask, other=0.0).to(tl.float32)
    weight = tl.load(weight_ptr + offs_d, mask=mask, other=0.0).to(tl.float32)
    tl.store(out_ptr + offs_d, x * tl.rsqrt(tl.sum(x * x) / D + eps) * weight, mask=mask)


def rms_norm(x, weight, eps=1e-6):
    (N, W), D = x.shape, weight.numel()
    out = torch.empty((N, D), dtype=x.dtype, device=x.device)
    for x_row, out_row in zip(x, out, strict=True):
        norm_kernel[(1,)](x_row, weight, out_row, D, eps, BLOCK_D=triton.next_power_of_2(D))
    return out
