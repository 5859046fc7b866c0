"""The squares of two halves of a row are put together in any order, and added up as a block of two axes."""

EXERCISE = "rms_norm"
SPEED = True

# The cell:
@triton.jit
def norm_kernel(x_ptr, weight_ptr, out_ptr, W, D, eps, HALF: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    first = tl.arange(0, HALF)
    second = first + HALF
    x = tl.load(x_ptr + row * W + first, mask=first < D, other=0.0).to(tl.float32)
    y = tl.load(x_ptr + row * W + second, mask=second < D, other=0.0).to(tl.float32)
    squares = tl.reshape(tl.cat(x * x, y * y, can_reorder=True), (2, HALF), can_reorder=True)
    rstd = tl.rsqrt(tl.sum(squares) / D + eps)
    weight = tl.load(weight_ptr + first, mask=first < D, other=0.0).to(tl.float32)
    tl.store(out_ptr + row * D + first, x * rstd * weight, mask=first < D)
    weight = tl.load(weight_ptr + second, mask=second < D, other=0.0).to(tl.float32)
    tl.store(out_ptr + row * D + second, y * rstd * weight, mask=second < D)


def rms_norm(x, weight, eps=1e-6):
    (N, W), D = x.shape, weight.numel()
    out = torch.empty((N, D), dtype=x.dtype, device=x.device)
    norm_kernel[(N,)](x, weight, out, W, D, eps, HALF=max(1, triton.next_power_of_2(D) // 2))
    return out
