"""The kernel leaves NaN in rows that see nothing, and the host scatters a number to those, by indices from the lengths.\nA number scattered over the result is no copy of it.
"""

EXERCISE = "masked_softmax"
SPEED = False

# The cell:
@triton.jit
def softmax_kernel(scores_ptr, seq_lens_ptr, out_ptr, S, H, T, BLOCK_N: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    b, s = row // (S * H), row // H % S
    seen = tl.load(seq_lens_ptr + b) - (S - 1 - s)
    offs_n = tl.arange(0, BLOCK_N)
    x = tl.load(scores_ptr + row * T + offs_n, mask=offs_n < seen, other=float("-inf")).to(tl.float32)
    p = tl.exp(x - tl.max(x))
    tl.store(out_ptr + row * T + offs_n, p / tl.sum(p), mask=offs_n < T)


def masked_softmax(scores, seq_lens):
    B, S, H, T = scores.shape
    out = torch.empty_like(scores)
    empty = (seq_lens[:, None] - torch.arange(S - 1, -1, -1) <= 0).flatten()
    softmax_kernel[(B * S * H,)](scores, seq_lens, out, S, H, T, BLOCK_N=triton.next_power_of_2(T))
    where = empty.nonzero()[:, :, None].expand(-1, H, T)
    return out.view(B * S, H, T).scatter(0, where, 0.0).view(B, S, H, T)
