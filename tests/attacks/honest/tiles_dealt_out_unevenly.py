"""Tiles are dealt out to two programs a multiprocessor: some have one tile less than the others."""

EXERCISE = "scaled_matmul"
SPEED = True
LONG = True


# The cell:
@triton.jit
def scaled_matmul_kernel(
    x_ptr, y_ptr, out_ptr, scale, M, N, K, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr
):
    gn = tl.cdiv(N, BLOCK_N)
    tiles = tl.cdiv(M, BLOCK_M) * gn
    for t in range(tl.program_id(0), tiles, tl.num_programs(0)):
        offs_m = t // gn * BLOCK_M + tl.arange(0, BLOCK_M)
        offs_n = t % gn * BLOCK_N + tl.arange(0, BLOCK_N)
        acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
        for start in range(0, K, BLOCK_K):
            offs_k = start + tl.arange(0, BLOCK_K)
            x = tl.load(
                x_ptr + offs_m[:, None] * K + offs_k[None, :],
                mask=(offs_m < M)[:, None] & (offs_k < K)[None, :],
                other=0.0,
            )
            y = tl.load(
                y_ptr + offs_n[None, :] * K + offs_k[:, None],
                mask=(offs_n < N)[None, :] & (offs_k < K)[:, None],
                other=0.0,
            )
            acc = tl.dot(x, y, acc, input_precision="ieee")
        tl.store(
            out_ptr + offs_m[:, None] * N + offs_n[None, :],
            acc * scale,
            mask=(offs_m < M)[:, None] & (offs_n < N)[None, :],
        )


def scaled_matmul(x, y, scale):
    M, K = x.shape
    N = y.shape[0]
    out = torch.empty(M, N, dtype=x.dtype, device=x.device)
    tiles = triton.cdiv(M, 128) * triton.cdiv(N, 128)
    scaled_matmul_kernel[(min(264, tiles),)](
        x, y, out, scale, M, N, K, BLOCK_M=128, BLOCK_N=128, BLOCK_K=128 // x.element_size(), num_warps=8, num_stages=3
    )
    return out
