"""The kernel leaves NaN in rows that see nothing, and the host looks these up in zeros of the result's shape, stacked\nbeside it. A tensor that has but the shape of what a kernel left holds nothing that a kernel left.
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
    empty = seq_lens[:, None] - torch.arange(S - 1, -1, -1) <= 0
    softmax_kernel[(B * S * H,)](scores, seq_lens, out, S, H, T, BLOCK_N=triton.next_power_of_2(T))
    both = torch.stack([out, torch.zeros_like(out)])
    return both[empty.long()[:, :, None], torch.arange(B)[:, None, None], torch.arange(S)[None, :, None], torch.arange(H)]
