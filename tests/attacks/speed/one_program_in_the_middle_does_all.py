"""One program of a thousand does all the work in a buffer, the others next to nothing, and a second launch copies it.
All of the first launch's programs run, and those that were not counted may take no longer.
"""

EXERCISE = "rms_norm"
SPEED = True
EXPECT = "times as much as the others"

# The cell:
@triton.jit
def norm_kernel(x_ptr, weight_ptr, out_ptr, N, W, D, eps, WHO, BLOCK: tl.constexpr):
    if tl.program_id(0) == WHO:
        offs = tl.arange(0, BLOCK)
        mask = offs < D
        weight = tl.load(weight_ptr + offs, mask=mask, other=0.0).to(tl.float32)
        for row in range(0, N):
            at = row.to(tl.int64)
            x = tl.load(x_ptr + at * W + offs, mask=mask, other=0.0).to(tl.float32)
            rstd = tl.rsqrt(tl.sum(x * x) / D + eps)
            tl.store(out_ptr + at * D + offs, x * rstd * weight, mask=mask)
    else:
        tl.store(out_ptr + N * D + tl.program_id(0), 0.0)


@triton.jit
def copy_kernel(x_ptr, out_ptr, N, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + at, tl.load(x_ptr + at, mask=at < N), mask=at < N)


def rms_norm(x, weight, eps=1e-6):
    (N, W), D = x.shape, weight.numel()
    made = torch.empty(N * D + 1000, dtype=x.dtype, device=x.device)
    out = torch.empty((N, D), dtype=x.dtype, device=x.device)
    norm_kernel[(1000,)](x, weight, made, N, x.stride(0), D, eps, 77, BLOCK=triton.next_power_of_2(D), num_warps=8)
    m = out.numel()
    copy_kernel[(triton.cdiv(m, 4096),)](made, out, m, BLOCK=4096)
    return out
