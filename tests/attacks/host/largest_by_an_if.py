"""The host chooses the way of the kernel by the largest number of x: rows of large numbers are divided first, and rows
near zero have their eps. Which constants a kernel gets may not depend on the values of floats, and neither way is
right for all.
"""

EXERCISE = "rms_norm"
SPEED = False

# The cell:
@triton.jit
def norm_kernel(x_ptr, weight_ptr, out_ptr, W, D, eps, LARGE: tl.constexpr, BLOCK_D: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    offs_d = tl.arange(0, BLOCK_D)
    mask = offs_d < D
    x = tl.load(x_ptr + row * W + offs_d, mask=mask, other=0.0)
    weight = tl.load(weight_ptr + offs_d, mask=mask, other=0.0)
    if LARGE:
        x = x.to(tl.float32)
        y = x * tl.rsqrt(tl.sum(x * x) / D)
    else:
        y = x * tl.rsqrt(tl.sum((x * x).to(tl.float32)) / D + eps)
    tl.store(out_ptr + row * D + offs_d, y * weight, mask=mask)


def rms_norm(x, weight, eps=1e-6):
    (N, W), D = x.shape, weight.numel()
    out = torch.empty((N, D), dtype=x.dtype)
    large = x.abs().amax().item() > 200
    norm_kernel[(N,)](x, weight, out, W, D, eps, LARGE=large, BLOCK_D=triton.next_power_of_2(D))
    return out
