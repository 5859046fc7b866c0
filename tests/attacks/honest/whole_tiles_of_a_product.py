"""Where both sizes are whole tiles, which they are at full size, the mask is left out: the small call has such sizes."""

EXERCISE = "scaled_matmul"
SPEED = True

# The cell:
@triton.jit
def product_kernel(
    x_ptr, y_ptr, out_ptr, scale, M, N, K,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, WHOLE: tl.constexpr,
):
    rows = (tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M))[:, None]
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for first in range(0, K, BLOCK_K):
        k = first + tl.arange(0, BLOCK_K)[None, :]
        x = tl.load(x_ptr + rows * K + k, mask=(rows < M) & (k < K), other=0.0)
        y = tl.load(y_ptr + columns[:, None] * K + k, mask=(columns < N)[:, None] & (k < K), other=0.0)
        acc = tl.dot(x, y.T, acc, input_precision="ieee")
    out = out_ptr + rows * N + columns[None, :]
    if WHOLE:
        tl.store(out, acc * scale)
    else:
        tl.store(out, acc * scale, mask=(rows < M) & (columns < N)[None, :])


def scaled_matmul(x, y, scale):
    (M, K), N, block_k = x.shape, y.shape[0], 128 // x.element_size()
    out = torch.empty((M, N), device=x.device, dtype=x.dtype)
    whole = M % 128 == 0 and N % 128 == 0
    grid = (triton.cdiv(M, 128), triton.cdiv(N, 128))
    product_kernel[grid](x, y, out, scale, M, N, K, 128, 128, block_k, whole, num_warps=8, num_stages=3)
    return out
