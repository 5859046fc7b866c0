"""The host asks for the longest sequence by item() and reads no further than that, and zeros are there already."""

EXERCISE = "masked_softmax"
SPEED = False

# The cell:
@triton.jit
def softmax_kernel(scores_ptr, seq_lens_ptr, out_ptr, S, H, T, longest, BLOCK_N: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    b, s = row // (S * H), row // H % S
    seen = tl.load(seq_lens_ptr + b) - (S - 1 - s)
    offs_n = tl.arange(0, BLOCK_N)
    x = tl.load(scores_ptr + row * T + offs_n, mask=offs_n < seen, other=float("-inf")).to(tl.float32)
    m_i = tl.max(x)
    p = tl.exp(x - tl.where(m_i == float("-inf"), 0.0, m_i))
    l_i = tl.sum(p)
    tl.store(out_ptr + row * T + offs_n, p / tl.where(l_i == 0, 1.0, l_i), mask=offs_n < T)


def masked_softmax(scores, seq_lens):
    B, S, H, T = scores.shape
    out = torch.empty_like(scores)
    longest = int(seq_lens.max().item())
    softmax_kernel[(B * S * H,)](scores, seq_lens, out, S, H, T, longest, BLOCK_N=triton.next_power_of_2(T))
    return out
