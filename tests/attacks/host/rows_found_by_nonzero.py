"""The host finds by nonzero() which rows are not all zeros, and the kernel, which divides 0 by 0, is launched on
those. How many programs there are, and on what, may not depend on the values of floats.
"""

EXERCISE = "rms_norm"
SPEED = False

# The cell:
@triton.jit
def norm_kernel(x_ptr, weight_ptr, rows_ptr, out_ptr, W, D, eps, BLOCK_D: tl.constexpr):
    row = tl.load(rows_ptr + tl.program_id(0))
    offs_d = tl.arange(0, BLOCK_D)
    mask = offs_d < D
    x = tl.load(x_ptr + row * W + offs_d, mask=mask, other=0.0).to(tl.float32)
    largest = tl.max(tl.abs(x))
    x = x / largest
    weight = tl.load(weight_ptr + offs_d, mask=mask, other=0.0).to(tl.float32)
    y = x * tl.rsqrt(tl.sum(x * x) / D + eps / (largest * largest))
    tl.store(out_ptr + row * D + offs_d, y * weight, mask=mask)


def rms_norm(x, weight, eps=1e-6):
    (N, W), D = x.shape, weight.numel()
    out = torch.zeros((N, D), dtype=x.dtype)
    rows = x[:, :D].abs().sum(-1).nonzero().flatten()
    norm_kernel[(max(len(rows), 1),)](
        x, weight, rows if len(rows) else torch.zeros(1, dtype=torch.long), out, W, D, eps,
        BLOCK_D=triton.next_power_of_2(D),
    )
    return out.nan_to_num_(0.0) if not len(rows) else out
