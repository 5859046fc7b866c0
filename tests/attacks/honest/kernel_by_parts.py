"""The kernel calls two other functions of the student's, with a default and a keyword."""

EXERCISE = "rms_norm"
SPEED = False

# The cell:
@triton.jit
def mean_square(x, D):
    return tl.sum(x * x) / D


@triton.jit
def row_of(ptr, row, stride, offs, mask, other=0.0):
    return tl.load(ptr + row * stride + offs, mask=mask, other=other).to(tl.float32)


@triton.jit
def norm_kernel(x_ptr, weight_ptr, out_ptr, W, D, eps, BLOCK_D: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    offs_d = tl.arange(0, BLOCK_D)
    x = row_of(x_ptr, row, W, offs_d, offs_d < D)
    weight = row_of(weight_ptr, row, 0, offs_d, mask=offs_d < D)
    tl.store(out_ptr + row * D + offs_d, x * tl.rsqrt(mean_square(x, D) + eps) * weight, mask=offs_d < D)


def rms_norm(x, weight, eps=1e-6):
    (N, W), D = x.shape, weight.numel()
    out = torch.empty((N, D), dtype=x.dtype, device=x.device)
    norm_kernel[(N,)](x, weight, out, W, D, eps, BLOCK_D=triton.next_power_of_2(D))
    return out
