"""torch cuts the columns out before the kernel runs: a pass over memory that the kernel could do without."""

EXERCISE = "rms_norm"
SPEED = True

# The cell:
@triton.jit
def rms_norm_kernel(x_ptr, weight_ptr, out_ptr, D, eps, BLOCK_D: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, BLOCK_D)
    m = cols < D
    x = tl.load(x_ptr + row * D + cols, mask=m, other=0.0).to(tl.float32)
    w = tl.load(weight_ptr + cols, mask=m, other=0.0).to(tl.float32)
    r = tl.rsqrt(tl.sum(x * x) / D + eps)
    tl.store(out_ptr + row * D + cols, x * r * w, mask=m)
def rms_norm(x, weight, eps=1e-6):
    D = len(weight)
    x = x[:, :D].contiguous()
    out = torch.empty_like(x)
    rms_norm_kernel[(x.shape[0],)](x, weight, out, D, eps, BLOCK_D=triton.next_power_of_2(D), num_warps=8)
    return out
