"""A maximum is taken with memory that nothing wrote: NaN is none, and a number would be."""

EXERCISE = "masked_softmax"
EXPECT = "nothing wrote"

# The cell:
@triton.jit
def masked_softmax_kernel(scores_ptr, seq_lens_ptr, m_ptr, out_ptr, S, H, T, BLOCK_N: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    b = row // (S * H)
    s = row % (S * H) // H
    limit = tl.load(seq_lens_ptr + b) - (S - 1 - s)
    offs = tl.arange(0, BLOCK_N)
    seen = offs < limit
    x = tl.load(scores_ptr + row * T + offs, mask=seen, other=float("-inf")).to(tl.float32)
    m = tl.maximum(tl.load(m_ptr + row), tl.max(x, 0))
    p = tl.where(seen, tl.exp(x - m), 0.0)
    l = tl.sum(p, 0)
    tl.store(out_ptr + row * T + offs, tl.where(l > 0, p / l, 0.0), mask=offs < T)


def masked_softmax(scores, seq_lens):
    B, S, H, T = scores.shape
    out = torch.empty_like(scores)
    m = torch.empty(B * S * H, dtype=torch.float32, device=scores.device)
    BLOCK_N = triton.next_power_of_2(T)
    masked_softmax_kernel[(B * S * H,)](scores, seq_lens, m, out, S, H, T, BLOCK_N=BLOCK_N)
    return out
