"""A loop over all blocks that there may be leaves out what lies behind the end of the row, by a branch around its body."""

EXERCISE = "rms_norm"
SPEED = True

# The cell:
@triton.jit
def norm_kernel(x_ptr, weight_ptr, out_ptr, W, D, blocks, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for block in range(blocks):
        if block * BLOCK < D:
            offs = block * BLOCK + tl.arange(0, BLOCK)
            x = tl.load(x_ptr + row * W + offs, mask=offs < D, other=0.0).to(tl.float32)
            total += x * x
    rstd = tl.rsqrt(tl.sum(total) / D + eps)
    for block in range(blocks):
        if block * BLOCK < D:
            offs = block * BLOCK + tl.arange(0, BLOCK)
            x = tl.load(x_ptr + row * W + offs, mask=offs < D, other=0.0).to(tl.float32)
            w = tl.load(weight_ptr + offs, mask=offs < D, other=0.0).to(tl.float32)
            tl.store(out_ptr + row * D + offs, x * rstd * w, mask=offs < D)


def rms_norm(x, weight, eps=1e-6):
    (N, W), D = x.shape, weight.numel()
    out = torch.empty((N, D), dtype=x.dtype, device=x.device)
    blocks = 2 * triton.cdiv(D, 1024)
    norm_kernel[(N,)](x, weight, out, W, D, blocks, eps, BLOCK=1024, num_warps=8)
    return out
