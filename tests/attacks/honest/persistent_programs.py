"""Few programs walk over all rows, each by a loop with the number of programs as its step."""

EXERCISE = "rms_norm"
SPEED = True

# The cell:
@triton.jit
def norm_kernel(x_ptr, weight_ptr, out_ptr, N, W, D, eps, BLOCK_D: tl.constexpr):
    offs_d = tl.arange(0, BLOCK_D)
    mask = offs_d < D
    weight = tl.load(weight_ptr + offs_d, mask=mask, other=0.0).to(tl.float32)
    for row in range(tl.program_id(0), N, tl.num_programs(0)):
        at = row.to(tl.int64)
        x = tl.load(x_ptr + at * W + offs_d, mask=mask, other=0.0).to(tl.float32)
        tl.store(out_ptr + at * D + offs_d, x * tl.rsqrt(tl.sum(x * x) / D + eps) * weight, mask=mask)


def rms_norm(x, weight, eps=1e-6):
    (N, W), D = x.shape, weight.numel()
    out = torch.empty((N, D), dtype=x.dtype, device=x.device)
    norm_kernel[(min(N, 264),)](x, weight, out, N, W, D, eps, BLOCK_D=triton.next_power_of_2(D), num_warps=8)
    return out
