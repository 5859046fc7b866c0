"""A function of tl.reduce adds two sums if both are of as many numbers, and drops one if not. A GPU's threads add what
they hold one after the other.
"""

EXERCISE = "rms_norm"
EXPECT = "the function of tl.reduce gives something else"

# The cell:
@triton.jit
def halves(a, m, b, n):
    return tl.where(m == n, a + b, a), tl.maximum(m, n) + 1


@triton.jit
def norm_kernel(x_ptr, weight_ptr, out_ptr, W, D, eps, BLOCK_D: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    offs_d = tl.arange(0, BLOCK_D)
    mask = offs_d < D
    x = tl.load(x_ptr + row * W + offs_d, mask=mask, other=0.0).to(tl.float32)
    weight = tl.load(weight_ptr + offs_d, mask=mask, other=0.0).to(tl.float32)
    total, _ = tl.reduce((x * x, offs_d * 0), 0, halves)
    tl.store(out_ptr + row * D + offs_d, x * tl.rsqrt(total / D + eps) * weight, mask=mask)


def rms_norm(x, weight, eps=1e-6):
    (N, W), D = x.shape, weight.numel()
    out = torch.empty((N, D), dtype=x.dtype, device=x.device)
    block = triton.next_power_of_2(D)
    norm_kernel[(N,)](x, weight, out, W, D, eps, BLOCK_D=block, num_warps=min(max(block // 1024, 1), 8))
    return out
