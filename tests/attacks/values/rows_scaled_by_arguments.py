"""One launch a row, and the factor of the row is a float argument that the host took from the data by item(). A float
argument may not depend on the values of tensors.
"""

EXERCISE = "rms_norm"
SPEED = False

# The cell:
@triton.jit
def scale_kernel(x_ptr, weight_ptr, out_ptr, rstd, D, BLOCK_D: tl.constexpr):
    offs_d = tl.arange(0, BLOCK_D)
    x = tl.load(x_ptr + offs_d, mask=offs_d < D).to(tl.float32)
    weight = tl.load(weight_ptr + offs_d, mask=offs_d < D).to(tl.float32)
    tl.store(out_ptr + offs_d, x * rstd * weight, mask=offs_d < D)


def rms_norm(x, weight, eps=1e-6):
    (N, W), D = x.shape, weight.numel()
    out = torch.empty((N, D), dtype=x.dtype)
    for row in range(N):
        rstd = torch.rsqrt(x[row, :D].float().square().mean() + eps).item()
        scale_kernel[(1,)](x[row], weight, out[row], rstd, D, BLOCK_D=triton.next_power_of_2(D))
    return out
