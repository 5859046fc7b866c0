"""A loop loads by a helper, and so does a branch that is never taken: what the loop turns is not shared out over both."""

EXERCISE = "rms_norm"
SPEED = True

# The cell:
@triton.jit
def get(p, mask):
    return tl.load(p, mask=mask, other=0.0).to(tl.float32)


@triton.jit
def norm_kernel(x_ptr, weight_ptr, out_ptr, W, D, eps, none, BLOCK: tl.constexpr, HEAVY: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    offs = tl.arange(0, BLOCK)
    acc = tl.zeros([BLOCK], dtype=tl.float32)
    for start in range(0, D, BLOCK):
        x = get(x_ptr + row * W + start + offs, start + offs < D)
        for j in tl.static_range(HEAVY):
            acc += tl.exp2(x * 1e-3 - j) * 1e-30
        acc += x * x
    if none > 0:
        for j in tl.static_range(24):
            acc += get(x_ptr + none * j * BLOCK + offs, none * j + offs < D)
    rstd = tl.rsqrt(tl.sum(acc, axis=0) / D + eps)
    for start in range(0, D, BLOCK):
        x = tl.load(x_ptr + row * W + start + offs, mask=start + offs < D, other=0.0).to(tl.float32)
        w = tl.load(weight_ptr + start + offs, mask=start + offs < D, other=0.0).to(tl.float32)
        tl.store(out_ptr + row * D + start + offs, x * rstd * w, mask=start + offs < D)


def rms_norm(x, weight, eps=1e-6):
    (N, W), D = x.shape, weight.numel()
    out = torch.empty((N, D), dtype=x.dtype, device=x.device)
    norm_kernel[(N,)](x, weight, out, x.stride(0), D, eps, 0, BLOCK=1024, HEAVY=100, num_warps=8)
    return out
