"""Each product is three of the matrix units': `input_precision="tf32x3"`."""

EXERCISE = "scaled_matmul"
SPEED = True
EXPECT = "of the floor's speed"

# The cell:
@triton.jit
def mm(x_ptr, y_ptr, out_ptr, scale, M, N, K, sxm, sxk, syn, syk, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    m = tl.program_id(1) * BM + tl.arange(0, BM)
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    k = tl.arange(0, BK)
    acc = tl.zeros([BM, BN], dtype=tl.float32)
    for start in range(0, K, BK):
        a = tl.load(x_ptr + m[:, None].to(tl.int64) * sxm + (start + k)[None, :] * sxk, mask=(m[:, None] < M) & (start + k < K)[None, :], other=0.0).to(tl.float32)
        b = tl.load(y_ptr + n[None, :].to(tl.int64) * syn + (start + k)[:, None] * syk, mask=(n[None, :] < N) & (start + k < K)[:, None], other=0.0).to(tl.float32)
        acc = tl.dot(a, b, acc, input_precision="tf32x3")
    tl.store(out_ptr + m[:, None].to(tl.int64) * N + n[None, :], acc * scale, mask=(m[:, None] < M) & (n[None, :] < N))


def scaled_matmul(x, y, scale):
    (M, K), N = x.shape, y.shape[0]
    out = torch.empty((M, N), dtype=x.dtype, device=x.device)
    BM, BN, BK = 128, 128, 32
    mm[(triton.cdiv(N, BN), triton.cdiv(M, BM))](x, y, out, scale, M, N, K, x.stride(0), x.stride(1), y.stride(0), y.stride(1), BM=BM, BN=BN, BK=BK, num_warps=8)
    return out
