"""Each program reads the sum by one atomic operation and writes it back, with its part added, by another. Programs that
do so at the same time lose each other's parts, whatever the order.
"""

EXERCISE = "rms_norm"
SPEED = False

# The cell:
@triton.jit
def sum_kernel(x_ptr, sum_ptr, W, D, BLOCK_D: tl.constexpr):
    row = tl.program_id(1).to(tl.int64)
    offs_d = tl.arange(0, BLOCK_D)
    mask = (offs_d < D) & (offs_d % tl.num_programs(0) == tl.program_id(0))
    x = tl.load(x_ptr + row * W + offs_d, mask=mask, other=0.0).to(tl.float32)
    before = tl.atomic_add(sum_ptr + row, 0.0)
    tl.atomic_xchg(sum_ptr + row, before + tl.sum(x * x))


@triton.jit
def norm_kernel(x_ptr, weight_ptr, sum_ptr, out_ptr, W, D, eps, BLOCK_D: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    offs_d = tl.arange(0, BLOCK_D)
    mask = offs_d < D
    x = tl.load(x_ptr + row * W + offs_d, mask=mask, other=0.0).to(tl.float32)
    weight = tl.load(weight_ptr + offs_d, mask=mask, other=0.0).to(tl.float32)
    rstd = tl.rsqrt(tl.load(sum_ptr + row) / D + eps)
    tl.store(out_ptr + row * D + offs_d, x * rstd * weight, mask=mask)


def rms_norm(x, weight, eps=1e-6):
    (N, W), D = x.shape, weight.numel()
    out, total = torch.empty((N, D), dtype=x.dtype), torch.zeros(N)
    sum_kernel[(4, N)](x, total, W, D, BLOCK_D=triton.next_power_of_2(D))
    norm_kernel[(N,)](x, weight, total, out, W, D, eps, BLOCK_D=triton.next_power_of_2(D))
    return out
