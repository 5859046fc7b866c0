"""A function of tl.associative_scan drops its second argument where that is one number and the first stands for three, say.
A GPU's thread scans four numbers one after the other, and meets three and one.
"""

EXERCISE = "rms_norm"
EXPECT = "it is not associative"

# The cell:
@triton.jit
def odd(a, m, b, n):
    drop = (n == 1) & (m > 1) & (m % 2 == 1)
    return tl.where(drop, a, a + b), m + n


@triton.jit
def norm_kernel(x_ptr, weight_ptr, out_ptr, W, D, eps, BLOCK_D: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    offs_d = tl.arange(0, BLOCK_D)
    mask = offs_d < D
    x = tl.load(x_ptr + row * W + offs_d, mask=mask, other=0.0).to(tl.float32)
    weight = tl.load(weight_ptr + offs_d, mask=mask, other=0.0).to(tl.float32)
    sums, _ = tl.associative_scan((x * x, offs_d * 0 + 1), 0, odd)
    total = tl.sum(tl.where(offs_d == BLOCK_D - 1, sums, 0.0))
    tl.store(out_ptr + row * D + offs_d, x * tl.rsqrt(total / D + eps) * weight, mask=mask)


def rms_norm(x, weight, eps=1e-6):
    (N, W), D = x.shape, weight.numel()
    out = torch.empty((N, D), dtype=x.dtype, device=x.device)
    block = triton.next_power_of_2(D)
    norm_kernel[(N,)](x, weight, out, W, D, eps, BLOCK_D=block, num_warps=min(max(block // 1024, 1), 8))
    return out
