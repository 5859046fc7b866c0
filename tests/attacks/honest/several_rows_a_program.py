"""Each program takes four rows at once, as a block of two dimensions."""

EXERCISE = "rms_norm"
SPEED = False

# The cell:
@triton.jit
def norm_kernel(x_ptr, weight_ptr, out_ptr, N, W, D, eps, ROWS: tl.constexpr, BLOCK_D: tl.constexpr):
    rows = (tl.program_id(0) * ROWS + tl.arange(0, ROWS))[:, None].to(tl.int64)
    offs_d = tl.arange(0, BLOCK_D)[None, :]
    mask = (rows < N) & (offs_d < D)
    x = tl.load(x_ptr + rows * W + offs_d, mask=mask, other=0.0).to(tl.float32)
    weight = tl.load(weight_ptr + offs_d, mask=offs_d < D, other=0.0).to(tl.float32)
    rstd = tl.rsqrt(tl.sum(x * x, axis=1) / D + eps)
    tl.store(out_ptr + rows * D + offs_d, x * rstd[:, None] * weight, mask=mask)


def rms_norm(x, weight, eps=1e-6):
    (N, W), D = x.shape, weight.numel()
    out = torch.empty((N, D), dtype=x.dtype, device=x.device)
    norm_kernel[(triton.cdiv(N, 4),)](x, weight, out, N, W, D, eps, ROWS=4, BLOCK_D=triton.next_power_of_2(D))
    return out
