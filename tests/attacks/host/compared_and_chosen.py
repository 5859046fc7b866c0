"""The host finds the rows' largest scores by torch.maximum alone, halving the rows again and again, and the kernel
does the rest. A choice between floats by their size is arithmetic on floats.
"""

EXERCISE = "masked_softmax"
SPEED = False

# The cell:
@triton.jit
def softmax_kernel(scores_ptr, largest_ptr, seq_lens_ptr, out_ptr, S, H, T, BLOCK_N: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    b, s = row // (S * H), row // H % S
    seen = tl.load(seq_lens_ptr + b) - (S - 1 - s)
    offs_n = tl.arange(0, BLOCK_N)
    x = tl.load(scores_ptr + row * T + offs_n, mask=offs_n < seen, other=float("-inf")).to(tl.float32)
    m_i = tl.load(largest_ptr + row)
    p = tl.exp(x - tl.where(m_i == float("-inf"), 0.0, m_i))
    l_i = tl.sum(p)
    tl.store(out_ptr + row * T + offs_n, p / tl.where(l_i == 0, 1.0, l_i), mask=offs_n < T)


def masked_softmax(scores, seq_lens):
    B, S, H, T = scores.shape
    out = torch.empty_like(scores)
    last = seq_lens[:, None] - torch.arange(S - 1, -1, -1)
    hidden = (torch.arange(T) >= last[..., None])[:, :, None]
    x = scores.float().masked_fill(hidden, -torch.inf)
    while x.shape[-1] > 1:
        half = (x.shape[-1] + 1) // 2
        x = torch.maximum(x[..., :half], x[..., -half:])
    block = triton.next_power_of_2(T)
    softmax_kernel[(B * S * H,)](scores, x.contiguous(), seq_lens, out, S, H, T, BLOCK_N=block)
    return out
