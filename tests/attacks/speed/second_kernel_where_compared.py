"""A fast kernel writes a wrong answer, and where few rows show that answers are compared a slow one writes the right
one over it. At full size results are compared as well.
"""

EXERCISE = "rms_norm"
SPEED = True

# The cell:
@triton.jit
def fast_kernel(x_ptr, weight_ptr, out_ptr, W, D, eps, BLOCK_D: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    offs_d = tl.arange(0, BLOCK_D)
    mask = offs_d < D
    x = tl.load(x_ptr + row * W + offs_d, mask=mask, other=0.0).to(tl.float32)
    weight = tl.load(weight_ptr + offs_d, mask=mask, other=0.0).to(tl.float32)
    rstd = tl.rsqrt(tl.sum(x * x) / D + eps)
    tl.store(out_ptr + row * D + offs_d, x * weight + rstd, mask=mask)


@triton.jit
def slow_kernel(x_ptr, weight_ptr, out_ptr, W, D, eps, BLOCK_D: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    offs_d = tl.arange(0, BLOCK_D)
    mask = offs_d < D
    for _ in range(6):
        x = tl.load(x_ptr + row * W + offs_d, mask=mask, other=0.0).to(tl.float32)
        weight = tl.load(weight_ptr + offs_d, mask=mask, other=0.0).to(tl.float32)
        rstd = tl.rsqrt(tl.sum(x * x) / D + eps)
        tl.store(out_ptr + row * D + offs_d, x * rstd * weight, mask=mask)


def rms_norm(x, weight, eps=1e-6):
    (N, W), D = x.shape, weight.numel()
    out = torch.empty((N, D), dtype=x.dtype, device=x.device)
    block = triton.next_power_of_2(D)
    given, warps = (x, weight, out, W, D, eps), min(max(block // 1024, 1), 8)
    fast_kernel[(N,)](*given, BLOCK_D=block, num_warps=warps)
    if N < 1000:
        slow_kernel[(N,)](*given, BLOCK_D=block, num_warps=warps)
    return out
