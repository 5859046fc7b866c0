"""The host asks of each row by an `if` whether it is all zeros, on which the kernel divides 0 by 0, and launches
another kernel then. Which kernels are launched may not depend on the values of floats.
"""

EXERCISE = "rms_norm"
SPEED = False

# The cell:
@triton.jit
def zero_kernel(out_ptr, D, BLOCK_D: tl.constexpr):
    offs_d = tl.arange(0, BLOCK_D)
    tl.store(out_ptr + offs_d, tl.zeros([BLOCK_D], tl.float32), mask=offs_d < D)


@triton.jit
def norm_kernel(x_ptr, weight_ptr, out_ptr, D, eps, BLOCK_D: tl.constexpr):
    offs_d = tl.arange(0, BLOCK_D)
    mask = offs_d < D
    x = tl.load(x_ptr + offs_d, mask=mask, other=0.0).to(tl.float32)
    largest = tl.max(tl.abs(x))
    x = x / largest
    weight = tl.load(weight_ptr + offs_d, mask=mask, other=0.0).to(tl.float32)
    y = x * tl.rsqrt(tl.sum(x * x) / D + eps / (largest * largest))
    tl.store(out_ptr + offs_d, y * weight, mask=mask)


def rms_norm(x, weight, eps=1e-6):
    N, D = len(x), weight.numel()
    out = torch.empty((N, D), dtype=x.dtype)
    for row in range(N):
        if bool((x[row] == 0).all()):
            zero_kernel[(1,)](out[row], D, BLOCK_D=triton.next_power_of_2(D))
        else:
            norm_kernel[(1,)](x[row], weight, out[row], D, eps, BLOCK_D=triton.next_power_of_2(D))
    return out
