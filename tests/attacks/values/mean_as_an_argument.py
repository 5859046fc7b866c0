"""The host takes the largest score by item() and hands it to the kernel, which leaves out the maximum of its row. A
float argument may not depend on the values of tensors.
"""

EXERCISE = "masked_softmax"
SPEED = False

# The cell:
@triton.jit
def softmax_kernel(scores_ptr, seq_lens_ptr, out_ptr, largest, S, H, T, BLOCK_N: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    b, s = row // (S * H), row // H % S
    seen = tl.load(seq_lens_ptr + b) - (S - 1 - s)
    offs_n = tl.arange(0, BLOCK_N)
    x = tl.load(scores_ptr + row * T + offs_n, mask=offs_n < seen, other=float("-inf")).to(tl.float32)
    p = tl.exp(x - largest)
    l_i = tl.sum(p)
    tl.store(out_ptr + row * T + offs_n, p / tl.where(l_i == 0, 1.0, l_i), mask=offs_n < T)


def masked_softmax(scores, seq_lens):
    B, S, H, T = scores.shape
    out = torch.empty_like(scores)
    largest = scores.float().nan_to_num(0).amax().item() - 80
    softmax_kernel[(B * S * H,)](scores, seq_lens, out, largest, S, H, T, BLOCK_N=triton.next_power_of_2(T))
    return out
