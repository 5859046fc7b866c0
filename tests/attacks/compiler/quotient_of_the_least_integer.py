"""All of the kernel hangs on the quotient of the least integer by -1. Nothing says what that gives, so that the compiler
leaves out the kernel, and a GPU stores nothing.
"""

EXERCISE = "rms_norm"
SPEED = False
EXPECT = "of the least integer by -1"

# The cell:
@triton.jit
def norm_kernel(x_ptr, weight_ptr, out_ptr, W, D, eps, a, BLOCK_D: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    offs_d = tl.arange(0, BLOCK_D)
    mask = offs_d < D
    if (a * 0 - 2147483647 - 1) // (a * 0 - 1) == a * 0 - 2147483647 - 1:
        x = tl.load(x_ptr + row * W + offs_d, mask=mask, other=0.0).to(tl.float32)
        weight = tl.load(weight_ptr + offs_d, mask=mask, other=0.0).to(tl.float32)
        rstd = tl.rsqrt(tl.sum(x * x) / D + eps)
        y = x * rstd
        for _ in range(1):
            y = tl.div_rn(y, rstd) * rstd
        tl.store(out_ptr + row * D + offs_d, y * weight, mask=mask)


def rms_norm(x, weight, eps=1e-6):
    (N, W), D = x.shape, weight.numel()
    out = torch.empty((N, D), dtype=x.dtype, device=x.device)
    block = triton.next_power_of_2(D)
    norm_kernel[(N,)](x, weight, out, W, D, eps, 5, BLOCK_D=block, num_warps=min(max(block // 1024, 1), 8))
    return out
