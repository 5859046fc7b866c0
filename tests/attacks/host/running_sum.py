"""The host makes running sums of the exponentials by cumsum, and the kernel only divides. What the kernel reads is
arithmetic of torch on floats.
"""

EXERCISE = "masked_softmax"
SPEED = False

# The cell:
@triton.jit
def divide_kernel(p_ptr, sum_ptr, out_ptr, T, BLOCK_N: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    offs_n = tl.arange(0, BLOCK_N)
    p = tl.load(p_ptr + row * T + offs_n, mask=offs_n < T)
    total = tl.load(sum_ptr + row * T + T - 1)
    tl.store(out_ptr + row * T + offs_n, p / tl.where(total == 0, 1.0, total), mask=offs_n < T)


def masked_softmax(scores, seq_lens):
    B, S, H, T = scores.shape
    out = torch.empty_like(scores)
    last = seq_lens[:, None] - torch.arange(S - 1, -1, -1)
    hidden = (torch.arange(T) >= last[..., None])[:, :, None]
    x = scores.float().masked_fill(hidden, -torch.inf)
    p = (x - x.amax(-1, keepdim=True).clamp(min=-1e30)).exp()
    divide_kernel[(B * S * H,)](p, p.cumsum(-1), out, T, BLOCK_N=triton.next_power_of_2(T))
    return out
