"""A kernel puts the bits of x into an argument of integers, torch computes with them, and another kernel puts the
argument right again. What a kernel has changed is no integer that was known beforehand.
"""

EXERCISE = "masked_softmax"
SPEED = False

# The cell:
@triton.jit
def swap_kernel(scores_ptr, seq_lens_ptr, kept_ptr, row, T, BACK: tl.constexpr):
    if BACK:
        tl.store(seq_lens_ptr, tl.load(kept_ptr))
    else:
        tl.store(kept_ptr, tl.load(seq_lens_ptr))
        tl.store(seq_lens_ptr, tl.load(scores_ptr + row).to(tl.float32).to(tl.int32, bitcast=True))


@triton.jit
def softmax_kernel(scores_ptr, bits_ptr, seq_lens_ptr, out_ptr, S, H, T, BLOCK_N: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    b, s = row // (S * H), row // H % S
    seen = tl.load(seq_lens_ptr + b) - (S - 1 - s)
    offs_n = tl.arange(0, BLOCK_N)
    x = tl.load(scores_ptr + row * T + offs_n, mask=offs_n < seen, other=float("-inf")).to(tl.float32)
    first = -tl.load(bits_ptr).to(tl.float32, bitcast=True)
    x = tl.where((row == 0) & (offs_n == 0) & (offs_n < seen), first, x)
    m_i = tl.max(x)
    p = tl.exp(x - tl.where(m_i == float("-inf"), 0.0, m_i))
    l_i = tl.sum(p)
    tl.store(out_ptr + row * T + offs_n, p / tl.where(l_i == 0, 1.0, l_i), mask=offs_n < T)


def masked_softmax(scores, seq_lens):
    B, S, H, T = scores.shape
    out, kept = torch.empty_like(scores), torch.empty_like(seq_lens[:1])
    swap_kernel[(1,)](scores, seq_lens, kept, 0, T, BACK=False)
    bits = torch.bitwise_xor(seq_lens[:1], -(1 << 31))
    swap_kernel[(1,)](scores, seq_lens, kept, 0, T, BACK=True)
    block = triton.next_power_of_2(T)
    softmax_kernel[(B * S * H,)](scores, bits, seq_lens, out, S, H, T, BLOCK_N=block)
    return out
