"""As many programs as an H100 has multiprocessors, and a row each, without a loop over the others."""

EXERCISE = "rms_norm"
EXPECT = "no store wrote"

# The cell:
@triton.jit
def rms_norm_kernel(x_ptr, weight_ptr, out_ptr, W, D, eps, BLOCK_D: tl.constexpr):
    """One program: one row.

    x_ptr: [N, W]; weight_ptr: [D]; out_ptr: [N, D]; BLOCK_D: a power of two, at least D.
    """
    row = tl.program_id(0).to(tl.int64)
    offs_d = tl.arange(0, BLOCK_D)
    mask = offs_d < D
    x = tl.load(x_ptr + row * W + offs_d, mask=mask, other=0.0).to(tl.float32)  # [BLOCK_D]
    weight = tl.load(weight_ptr + offs_d, mask=mask, other=0.0).to(tl.float32)  # [BLOCK_D]
    rstd = tl.rsqrt(tl.sum(x * x) / D + eps)
    tl.store(out_ptr + row * D + offs_d, x * rstd * weight, mask=mask)


def rms_norm(x, weight, eps=1e-6):
    """RMSNorm of the first D columns of each row.

    x: [N, W], contiguous; weight: [D], D <= W and D <= 8192, same dtype; eps: float.
    Returns a new tensor [N, D] of the dtype of x. Launches rms_norm_kernel.

    The traps: float16 must be squared and summed in float32; the mean runs over D, not over the
    block; rows of x are W apart.
    """
    (N, W), D = x.shape, weight.numel()
    out = torch.empty((N, D), dtype=x.dtype, device=x.device)
    block = triton.next_power_of_2(D)
    warps = min(max(block // 1024, 1), 8)
    rms_norm_kernel[(min(N, 132),)](x, weight, out, W, D, eps, BLOCK_D=block, num_warps=warps)
    return out
