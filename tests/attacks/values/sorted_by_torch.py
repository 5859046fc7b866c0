"""The host sorts the scores and hands the kernel the order as an index, from which it takes the largest. The order of
floats is a value that torch computed from floats.
"""

EXERCISE = "masked_softmax"
SPEED = False

# The cell:
@triton.jit
def softmax_kernel(scores_ptr, best_ptr, seq_lens_ptr, out_ptr, S, H, T, BLOCK_N: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    b, s = row // (S * H), row // H % S
    seen = tl.load(seq_lens_ptr + b) - (S - 1 - s)
    offs_n = tl.arange(0, BLOCK_N)
    m_i = tl.load(scores_ptr + row * T + tl.load(best_ptr + row)).to(tl.float32)
    x = tl.load(scores_ptr + row * T + offs_n, mask=offs_n < seen, other=float("-inf")).to(tl.float32)
    p = tl.where(offs_n < seen, tl.exp(x - m_i), 0.0)
    l_i = tl.sum(p)
    tl.store(out_ptr + row * T + offs_n, p / tl.where(l_i == 0, 1.0, l_i), mask=offs_n < T)


def masked_softmax(scores, seq_lens):
    B, S, H, T = scores.shape
    out = torch.empty_like(scores)
    last = seq_lens[:, None] - torch.arange(S - 1, -1, -1)
    hidden = (torch.arange(T) >= last[..., None])[:, :, None]
    best = scores.float().masked_fill(hidden, -torch.inf).nan_to_num(-torch.inf).argsort(-1, descending=True)[..., 0]
    softmax_kernel[(B * S * H,)](
        scores, best.contiguous(), seq_lens, out, S, H, T, BLOCK_N=triton.next_power_of_2(T)
    )
    return out
