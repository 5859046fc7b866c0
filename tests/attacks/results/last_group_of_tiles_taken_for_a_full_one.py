"""Tiles in groups of 8, of which the last is taken for a full one: right up to 8 tiles, and where 8 divides them."""

EXERCISE = "scaled_matmul"
EXPECT = "no store wrote"

# The cell:
@triton.jit
def scaled_matmul_kernel(
    x_ptr, y_ptr, out_ptr, scale, M, N, K,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
):
    """One program: a tile [BLOCK_M, BLOCK_N] of scale * x @ y.T.

    x_ptr: [M, K]; y_ptr: [N, K]; out_ptr: [M, N].
    """
    pid = tl.program_id(0)
    num_m, num_n = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    group = pid // (GROUP_M * num_n)
    size = tl.minimum(num_m, GROUP_M)  # expected: num_m - group * GROUP_M, GROUP_M
    pid_m = group * GROUP_M + pid % (GROUP_M * num_n) % size
    pid_n = pid % (GROUP_M * num_n) // size
    offs_m = pid_m * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_n = pid_n * BLOCK_N + tl.arange(0, BLOCK_N)
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(0, K, BLOCK_K):
        offs_k = start + tl.arange(0, BLOCK_K)
        # [BLOCK_M, BLOCK_K] and [BLOCK_K, BLOCK_N]
        x = tl.load(
            x_ptr + offs_m[:, None] * K + offs_k[None, :], mask=(offs_m < M)[:, None] & (offs_k < K)[None, :], other=0.0
        )
        y = tl.load(
            y_ptr + offs_n[None, :] * K + offs_k[:, None], mask=(offs_n < N)[None, :] & (offs_k < K)[:, None], other=0.0
        )
        acc = tl.dot(x, y, acc, input_precision="ieee")
    tl.store(
        out_ptr + offs_m[:, None] * N + offs_n[None, :], acc * scale, mask=(offs_m < M)[:, None] & (offs_n < N)[None, :]
    )


def scaled_matmul(x, y, scale):
    """Return scale * x @ y.T, in one launch.

    x: [M, K]; y: [N, K], same dtype; both contiguous. scale: float.
    Returns a new tensor [M, N] of the dtype of x. Launches scaled_matmul_kernel once.

    The traps: K need not be a multiple of the block; scale before the result becomes float16.
    """
    (M, K), N = x.shape, len(y)
    out = torch.empty((M, N), dtype=x.dtype, device=x.device)
    block_m, block_n = (min(max(triton.next_power_of_2(size), 16), 128) for size in (M, N))
    grid = (triton.cdiv(M, block_m) * triton.cdiv(N, block_n),)
    scaled_matmul_kernel[grid](
        x, y, out, scale, M, N, K,
        BLOCK_M=block_m, BLOCK_N=block_n, BLOCK_K=128 // x.element_size(), GROUP_M=8,
        num_warps=8 if block_m * block_n > 8192 else 4, num_stages=3,
    )
    return out
