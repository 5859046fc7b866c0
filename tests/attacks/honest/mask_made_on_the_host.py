"""The host makes a mask of booleans by comparing integers, and the kernel loads it."""

EXERCISE = "masked_softmax"
SPEED = False

# The cell:
@triton.jit
def softmax_kernel(scores_ptr, mask_ptr, out_ptr, H, T, BLOCK_N: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    offs_n = tl.arange(0, BLOCK_N)
    seen = tl.load(mask_ptr + row // H * T + offs_n, mask=offs_n < T, other=0) != 0
    x = tl.load(scores_ptr + row * T + offs_n, mask=seen, other=float("-inf")).to(tl.float32)
    m_i = tl.max(x)
    p = tl.exp(x - tl.where(m_i == float("-inf"), 0.0, m_i))
    l_i = tl.sum(p)
    tl.store(out_ptr + row * T + offs_n, p / tl.where(l_i == 0, 1.0, l_i), mask=offs_n < T)


def masked_softmax(scores, seq_lens):
    B, S, H, T = scores.shape
    out = torch.empty_like(scores)
    last = seq_lens[:, None] - torch.arange(S - 1, -1, -1)
    mask = (torch.arange(T) < last[..., None]).to(torch.int8)
    softmax_kernel[(B * S * H,)](scores, mask, out, H, T, BLOCK_N=triton.next_power_of_2(T))
    return out
