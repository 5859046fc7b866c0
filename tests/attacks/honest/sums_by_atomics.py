"""Programs of a row's parts add up its squares by atomics in a buffer of zeros, and a second launch scales."""

EXERCISE = "rms_norm"
SPEED = False

# The cell:
@triton.jit
def square_kernel(x_ptr, sum_ptr, W, D, BLOCK_D: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    offs_d = tl.program_id(1) * BLOCK_D + tl.arange(0, BLOCK_D)
    x = tl.load(x_ptr + row * W + offs_d, mask=offs_d < D, other=0.0).to(tl.float32)
    tl.atomic_add(sum_ptr + row, tl.sum(x * x))


@triton.jit
def scale_kernel(x_ptr, weight_ptr, sum_ptr, out_ptr, W, D, eps, BLOCK_D: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    offs_d = tl.program_id(1) * BLOCK_D + tl.arange(0, BLOCK_D)
    mask = offs_d < D
    rstd = tl.rsqrt(tl.load(sum_ptr + row) / D + eps)
    x = tl.load(x_ptr + row * W + offs_d, mask=mask).to(tl.float32)
    weight = tl.load(weight_ptr + offs_d, mask=mask).to(tl.float32)
    tl.store(out_ptr + row * D + offs_d, x * rstd * weight, mask=mask)


def rms_norm(x, weight, eps=1e-6):
    (N, W), D = x.shape, weight.numel()
    out = torch.empty((N, D), dtype=x.dtype, device=x.device)
    total = torch.zeros(N, dtype=torch.float32, device=x.device)
    grid = (N, triton.cdiv(D, 1024))
    square_kernel[grid](x, total, W, D, BLOCK_D=1024)
    scale_kernel[grid](x, weight, total, out, W, D, eps, BLOCK_D=1024)
    return out
