"""A product by sums of products, without tl.dot: right, and the floor is that of the work all the same."""

EXERCISE = "scaled_matmul"
SPEED = True
EXPECT = ": 2% of the floor's speed"

# The cell:
@triton.jit
def scaled_matmul_kernel(x_ptr, y_ptr, out_ptr, scale, M, N, K, BN: tl.constexpr, BK: tl.constexpr):
    m = tl.program_id(0)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    acc = tl.zeros([BN], tl.float32)
    for start in range(0, K, BK):
        k = start + tl.arange(0, BK)
        x = tl.load(x_ptr + m * K + k, mask=k < K, other=0.0).to(tl.float32)
        y = tl.load(y_ptr + n[:, None] * K + k[None, :], mask=(n < N)[:, None] & (k < K)[None, :], other=0.0).to(tl.float32)
        acc += tl.sum(x[None, :] * y, axis=1)
    tl.store(out_ptr + m * N + n, acc * scale, mask=n < N)

def scaled_matmul(x, y, scale):
    M, K = x.shape
    N = y.shape[0]
    out = torch.empty(M, N, dtype=x.dtype, device=x.device)
    scaled_matmul_kernel[(M, triton.cdiv(N, 32))](x, y, out, scale, M, N, K, 32, 64)
    return out
