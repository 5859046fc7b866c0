"""Each program adds its part by an atomic and reads the sum at once, which is whole only for the last one to run. A
result that hangs on the order of programs is none.
"""

EXERCISE = "rms_norm"
SPEED = False

# The cell:
@triton.jit
def norm_kernel(x_ptr, weight_ptr, sum_ptr, out_ptr, W, D, eps, BLOCK_D: tl.constexpr):
    row = tl.program_id(1).to(tl.int64)
    offs_d = tl.arange(0, BLOCK_D)
    part = offs_d % tl.num_programs(0) == tl.program_id(0)
    mask = offs_d < D
    x = tl.load(x_ptr + row * W + offs_d, mask=mask, other=0.0).to(tl.float32)
    weight = tl.load(weight_ptr + offs_d, mask=mask, other=0.0).to(tl.float32)
    tl.atomic_add(sum_ptr + row, tl.sum(tl.where(part, x * x, 0.0)))
    total = tl.atomic_add(sum_ptr + row, 0.0)
    last = tl.program_id(0) == tl.num_programs(0) - 1
    tl.store(out_ptr + row * D + offs_d, x * tl.rsqrt(total / D + eps) * weight, mask=mask & last)


def rms_norm(x, weight, eps=1e-6):
    (N, W), D = x.shape, weight.numel()
    out, total = torch.empty((N, D), dtype=x.dtype), torch.zeros(N)
    norm_kernel[(4, N)](x, weight, total, out, W, D, eps, BLOCK_D=triton.next_power_of_2(D))
    return out
