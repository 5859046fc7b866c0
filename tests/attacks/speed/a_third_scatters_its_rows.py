"""One program in three reads and writes its row in an order that fills no sector, with as many accesses as the others.
Programs that run to show that all are alike show their sectors too.
"""

EXERCISE = "rms_norm"
SPEED = True

# The cell:
@triton.jit
def norm_kernel(x_ptr, weight_ptr, out_ptr, W, D, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    slow = (row * 40503 // 64) % 3 == 1
    acc = tl.zeros([BLOCK], dtype=tl.float32)
    for start in range(0, D, BLOCK):
        offs = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * W + offs, mask=offs < D, other=0.0).to(tl.float32)
        acc += x * x
    rstd = tl.rsqrt(tl.sum(acc) / D + eps)
    for start in range(0, D, BLOCK):
        i = tl.arange(0, BLOCK)
        offs = start + i
        far = (offs * 32) % D + (offs * 32) // D
        offs2 = tl.where(slow & (D % 32 == 0), far, offs)
        x = tl.load(x_ptr + row * W + offs2, mask=offs < D, other=0.0).to(tl.float32)
        w = tl.load(weight_ptr + offs2, mask=offs < D, other=0.0).to(tl.float32)
        tl.store(out_ptr + row * D + offs2, x * rstd * w, mask=offs < D)


def rms_norm(x, weight, eps=1e-6):
    (N, W), D = x.shape, weight.numel()
    out = torch.empty((N, D), dtype=x.dtype, device=x.device)
    norm_kernel[(N,)](x, weight, out, x.stride(0), D, eps, BLOCK=1024, num_warps=4)
    return out
