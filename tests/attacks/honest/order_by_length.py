"""The host sorts the sequences by their lengths, which are integers, and long rows come first."""

EXERCISE = "masked_softmax"
SPEED = False

# The cell:
@triton.jit
def softmax_kernel(scores_ptr, seq_lens_ptr, order_ptr, out_ptr, S, H, T, BLOCK_N: tl.constexpr):
    b = tl.load(order_ptr + tl.program_id(1)).to(tl.int64)
    row = b * S * H + tl.program_id(0)
    seen = tl.load(seq_lens_ptr + b) - (S - 1 - row // H % S)
    offs_n = tl.arange(0, BLOCK_N)
    x = tl.load(scores_ptr + row * T + offs_n, mask=offs_n < seen, other=float("-inf")).to(tl.float32)
    m_i = tl.max(x)
    p = tl.exp(x - tl.where(m_i == float("-inf"), 0.0, m_i))
    l_i = tl.sum(p)
    tl.store(out_ptr + row * T + offs_n, p / tl.where(l_i == 0, 1.0, l_i), mask=offs_n < T)


def masked_softmax(scores, seq_lens):
    B, S, H, T = scores.shape
    out, order = torch.empty_like(scores), torch.argsort(seq_lens, descending=True)
    softmax_kernel[(S * H, B)](scores, seq_lens, order, out, S, H, T, BLOCK_N=triton.next_power_of_2(T))
    return out
