"""torch turns y round before the kernel runs, in two halves that torch.cat puts together."""

EXERCISE = "scaled_matmul"
SPEED = True

# The cell:
@triton.jit
def scaled_matmul_kernel(
    x_ptr, y_ptr, out_ptr, scale, M, N, K,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):
    offs_m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(0, K, BLOCK_K):
        offs_k = start + tl.arange(0, BLOCK_K)
        x = tl.load(x_ptr + offs_m[:, None] * K + offs_k[None, :], mask=(offs_m < M)[:, None] & (offs_k < K)[None, :], other=0.0)
        y = tl.load(y_ptr + offs_k[:, None] * N + offs_n[None, :], mask=(offs_n < N)[None, :] & (offs_k < K)[:, None], other=0.0)
        acc = tl.dot(x, y, acc, input_precision="ieee")
    tl.store(out_ptr + offs_m[:, None] * N + offs_n[None, :], acc * scale, mask=(offs_m < M)[:, None] & (offs_n < N)[None, :])


def scaled_matmul(x, y, scale):
    (M, K), N = x.shape, len(y)
    out = torch.empty((M, N), dtype=x.dtype, device=x.device)
    t = y.t()
    turned = torch.cat([t[: K // 2], t[K // 2 :]])
    block_m, block_n = (min(max(triton.next_power_of_2(size), 16), 128) for size in (M, N))
    grid = (triton.cdiv(M, block_m), triton.cdiv(N, block_n))
    scaled_matmul_kernel[grid](
        x, turned, out, scale, M, N, K, BLOCK_M=block_m, BLOCK_N=block_n, BLOCK_K=128 // x.element_size(),
        num_warps=8 if block_m * block_n > 8192 else 4, num_stages=3,
    )
    return out
