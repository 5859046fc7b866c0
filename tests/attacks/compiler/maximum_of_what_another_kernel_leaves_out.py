"""One kernel stores what its mask leaves out of a load, and another takes the maximum."""

EXERCISE = "masked_softmax"
EXPECT = "has no `other`"

# The cell:
@triton.jit
def pad_kernel(scores_ptr, seq_lens_ptr, pad_ptr, S, H, T, BLOCK_N: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    b = row // (S * H)
    s = row % (S * H) // H
    limit = tl.load(seq_lens_ptr + b) - (S - 1 - s)
    offs = tl.arange(0, BLOCK_N)
    x = tl.load(scores_ptr + row * T + offs, mask=offs < limit).to(tl.float32)  # no other
    tl.store(pad_ptr + row * BLOCK_N + offs, x)


@triton.jit
def masked_softmax_kernel(pad_ptr, seq_lens_ptr, out_ptr, S, H, T, BLOCK_N: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    b = row // (S * H)
    s = row % (S * H) // H
    limit = tl.load(seq_lens_ptr + b) - (S - 1 - s)
    offs = tl.arange(0, BLOCK_N)
    x = tl.load(pad_ptr + row * BLOCK_N + offs)
    m = tl.max(x, 0)
    p = tl.where(offs < limit, tl.exp(x - m), 0.0)
    l = tl.sum(p, 0)
    tl.store(out_ptr + row * T + offs, tl.where(l > 0, p / l, 0.0), mask=offs < T)


def masked_softmax(scores, seq_lens):
    B, S, H, T = scores.shape
    out = torch.empty_like(scores)
    BLOCK_N = triton.next_power_of_2(T)
    pad = torch.empty(B * S * H, BLOCK_N, dtype=torch.float32, device=scores.device)
    pad_kernel[(B * S * H,)](scores, seq_lens, pad, S, H, T, BLOCK_N=BLOCK_N)
    masked_softmax_kernel[(B * S * H,)](pad, seq_lens, out, S, H, T, BLOCK_N=BLOCK_N)
    return out
