"""Pairs of maximum and sum are reduced by one function of both, over a million numbers."""

EXERCISE = "long_softmax"
SPEED = True

# The cell:
LONG_BLOCK = 4096

@triton.jit
def _pair(m1, l1, m2, l2):
    m = tl.maximum(m1, m2)
    a = tl.where(m1 == m, 1.0, tl.exp(m1 - m))
    b = tl.where(m2 == m, 1.0, tl.exp(m2 - m))
    return m, l1 * a + l2 * b

@triton.jit
def long_softmax_kernel(x_ptr, len_ptr, o_ptr, S, H, T, BLOCK_N: tl.constexpr):
    row = tl.program_id(0)
    seen = tl.load(len_ptr + row // (S * H)) - (S - 1 - row // H % S)
    base = row.to(tl.int64) * T
    m = float("-inf")
    l = 0.0
    for start in range(0, seen, BLOCK_N):
        n = start + tl.arange(0, BLOCK_N)
        x = tl.load(x_ptr + base + n, mask=n < seen, other=float("-inf")).to(tl.float32)
        bm, bl = tl.reduce((x, tl.where(n < seen, 1.0, 0.0)), 0, _pair)
        m, l = _pair(m, l, bm, bl)
    if seen <= 0:
        m = 0.0
        l = 1.0
    for start in range(0, T, BLOCK_N):
        n = start + tl.arange(0, BLOCK_N)
        x = tl.load(x_ptr + base + n, mask=n < seen, other=float("-inf")).to(tl.float32)
        tl.store(o_ptr + base + n, tl.exp(x - m) / l, mask=n < T)

def long_softmax(scores, seq_lens):
    B, S, H, T = scores.shape
    out = torch.empty_like(scores)
    long_softmax_kernel[(B * S * H,)](scores, seq_lens, out, S, H, T, BLOCK_N=LONG_BLOCK, num_warps=8)
    return out
