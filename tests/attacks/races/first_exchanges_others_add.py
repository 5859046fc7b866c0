"""A program that finds that it is the first exchanges, and others add: one of them may do so before the exchange."""

EXERCISE = "scaled_matmul"
EXPECT = "nothing says which comes first"

# The cell:
@triton.jit
def mm(A, B, C, Count, scale, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, SPLIT: tl.constexpr):
    pm, pn = tl.program_id(0), tl.program_id(1)
    rm = pm * BM + tl.arange(0, BM)
    rn = pn * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(tl.program_id(2) * BK, K, BK * SPLIT):
        rk = k + tl.arange(0, BK)
        a = tl.load(A + rm[:, None] * K + rk[None, :], mask=(rm[:, None] < M) & (rk[None, :] < K), other=0.0)
        b = tl.load(B + rn[:, None] * K + rk[None, :], mask=(rn[:, None] < N) & (rk[None, :] < K), other=0.0)
        acc += tl.dot(a, b.T, input_precision="ieee")
    ptrs = C + rm[:, None] * N + rn[None, :]
    m = (rm[:, None] < M) & (rn[None, :] < N)
    if tl.atomic_add(Count + pm * tl.num_programs(1) + pn, 1) == 0:
        tl.atomic_xchg(ptrs, acc * scale, mask=m)
    else:
        tl.atomic_add(ptrs, acc * scale, mask=m)

def scaled_matmul(x, y, scale):
    (M, K), (N, _) = x.shape, y.shape
    c = torch.empty(M, N, dtype=torch.float32, device=x.device)
    g = triton.cdiv(M, 32), triton.cdiv(N, 32)
    cnt = torch.zeros(g[0] * g[1], dtype=torch.int32, device=x.device)
    mm[(*g, 3)](x, y, c, cnt, scale, M, N, K, 32, 32, 32, 3)
    return c.to(x.dtype)
