"""What the mask leaves out of a load without `other` is replaced before anything else is done with it."""

EXERCISE = "masked_softmax"
SPEED = True

# The cell:
@triton.jit
def softmax_kernel(scores_ptr, seq_lens_ptr, out_ptr, S, H, T, BLOCK_N: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    b, s = row // (S * H), row // H % S
    seen = tl.load(seq_lens_ptr + b) - (S - 1 - s)
    offs_n = tl.arange(0, BLOCK_N)
    x = tl.load(scores_ptr + row * T + offs_n, mask=offs_n < seen).to(tl.float32)
    x = tl.where(offs_n < seen, x, float("-inf"))
    m_i = tl.max(x)
    p = tl.exp(x - tl.where(m_i == float("-inf"), 0.0, m_i))
    l_i = tl.sum(p)
    tl.store(out_ptr + row * T + offs_n, p / tl.where(l_i == 0, 1.0, l_i), mask=offs_n < T)


def masked_softmax(scores, seq_lens):
    B, S, H, T = scores.shape
    out = torch.empty_like(scores)
    block = triton.next_power_of_2(T)
    warps = min(max(block // 1024, 1), 16)
    softmax_kernel[(B * S * H,)](scores, seq_lens, out, S, H, T, BLOCK_N=block, num_warps=warps)
    return out
