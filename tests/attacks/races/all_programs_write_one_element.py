"""All programs of a row add to one element with a load and a store, which gives the sum where they run one after the
other. Two programs that touch one byte, one of them writing, need an atomic.
"""

EXERCISE = "rms_norm"
SPEED = False

# The cell:
@triton.jit
def square_kernel(x_ptr, sum_ptr, W, D, BLOCK_D: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    offs_d = tl.program_id(1) * BLOCK_D + tl.arange(0, BLOCK_D)
    x = tl.load(x_ptr + row * W + offs_d, mask=offs_d < D, other=0.0).to(tl.float32)
    tl.store(sum_ptr + row, tl.load(sum_ptr + row) + tl.sum(x * x))


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
    out, total = torch.empty((N, D), dtype=x.dtype), torch.zeros(N)
    grid = (N, triton.cdiv(D, 16))
    square_kernel[grid](x, total, W, D, BLOCK_D=16)
    scale_kernel[grid](x, weight, total, out, W, D, eps, BLOCK_D=16)
    return out
