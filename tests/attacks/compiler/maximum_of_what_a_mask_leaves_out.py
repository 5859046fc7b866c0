"""The maximum of a row takes in what the mask leaves out of the load, which is NaN in the emulator, and NaN is no maximum.
On a GPU it may be any number."""

EXERCISE = "masked_softmax"
EXPECT = "has no `other`"

# The cell:
@triton.jit
def masked_softmax_kernel(scores_ptr, seq_lens_ptr, out_ptr, S, H, T, BLOCK_N: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    b = row // (S * H)
    s = row % (S * H) // H
    limit = tl.load(seq_lens_ptr + b) - (S - 1 - s)
    offs = tl.arange(0, BLOCK_N)
    seen = offs < limit
    x = tl.load(scores_ptr + row * T + offs, mask=seen).to(tl.float32)
    m = tl.max(x, 0)
    p = tl.where(seen, tl.exp(x - m), 0.0)
    l = tl.sum(p, 0)
    tl.store(out_ptr + row * T + offs, tl.where(l > 0, p / l, 0.0), mask=offs < T)


def masked_softmax(scores, seq_lens):
    B, S, H, T = scores.shape
    out = torch.empty_like(scores)
    BLOCK_N = triton.next_power_of_2(T)
    masked_softmax_kernel[(B * S * H,)](scores, seq_lens, out, S, H, T, BLOCK_N=BLOCK_N, num_warps=min(max(BLOCK_N // 256, 1), 16))
    return out
