"""The host tells the kernel by a tensor of integers which rows are all zeros, where the kernel would divide 0 by 0. An
integer may not depend on the values of floats.
"""

EXERCISE = "rms_norm"
SPEED = False

# The cell:
@triton.jit
def norm_kernel(x_ptr, weight_ptr, empty_ptr, out_ptr, W, D, eps, BLOCK_D: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    offs_d = tl.arange(0, BLOCK_D)
    mask = offs_d < D
    if tl.load(empty_ptr + row) != 0:
        tl.store(out_ptr + row * D + offs_d, tl.zeros([BLOCK_D], tl.float32), mask=mask)
    else:
        x = tl.load(x_ptr + row * W + offs_d, mask=mask, other=0.0).to(tl.float32)
        largest = tl.max(tl.abs(x))
        x = x / largest
        weight = tl.load(weight_ptr + offs_d, mask=mask, other=0.0).to(tl.float32)
        y = x * tl.rsqrt(tl.sum(x * x) / D + eps / (largest * largest))
        tl.store(out_ptr + row * D + offs_d, y * weight, mask=mask)


def rms_norm(x, weight, eps=1e-6):
    (N, W), D = x.shape, weight.numel()
    out = torch.empty((N, D), dtype=x.dtype)
    empty = (x[:, :D] == 0).all(-1).to(torch.int32)
    norm_kernel[(N,)](x, weight, empty, out, W, D, eps, BLOCK_D=triton.next_power_of_2(D))
    return out
