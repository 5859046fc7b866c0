"""Each program has several rows, but begins at the row of its own number: of the last ones few are written."""

EXERCISE = "rms_norm"
EXPECT = "no store wrote"

# The cell:
@triton.jit
def rms_norm_kernel(x_ptr, weight_ptr, out_ptr, N, W, D, eps, ROWS: tl.constexpr, BLOCK_D: tl.constexpr):
    row = tl.program_id(0) + tl.arange(0, ROWS)[:, None]  # expected: program_id(0) * ROWS
    offs_d = tl.arange(0, BLOCK_D)[None, :]
    mask = (row < N) & (offs_d < D)
    x = tl.load(x_ptr + row * W + offs_d, mask=mask, other=0.0).to(tl.float32)
    weight = tl.load(weight_ptr + offs_d, mask=offs_d < D, other=0.0).to(tl.float32)
    rstd = tl.rsqrt(tl.sum(x * x, 1) / D + eps)
    tl.store(out_ptr + row * D + offs_d, x * rstd[:, None] * weight, mask=mask)


def rms_norm(x, weight, eps=1e-6):
    (N, W), D = x.shape, weight.numel()
    out = torch.empty((N, D), dtype=x.dtype, device=x.device)
    block = triton.next_power_of_2(D)
    rms_norm_kernel[(triton.cdiv(N, 8),)](x, weight, out, N, W, D, eps, ROWS=8, BLOCK_D=block, num_warps=8)
    return out
