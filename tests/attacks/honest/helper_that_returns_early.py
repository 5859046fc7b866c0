"""A helper returns early where a row sees nothing: each of its ways returns something."""

EXERCISE = "masked_softmax"

# The cell:
@triton.jit
def weights(x, seen, BLOCK: tl.constexpr):
    if seen > 0:
        x = x - tl.max(x, axis=0)
        e = tl.exp(x)
        return e / tl.sum(e, axis=0)
    return tl.zeros([BLOCK], tl.float32)

@triton.jit
def k(s_ptr, len_ptr, o_ptr, S, H, T, B: tl.constexpr):
    row = tl.program_id(0)
    seen = tl.load(len_ptr + row // (S * H)) - (S - 1 - row // H % S)
    c = tl.arange(0, B)
    x = tl.load(s_ptr + row * T + c, mask=c < seen, other=float("-inf")).to(tl.float32)
    p = weights(x, seen, B)
    tl.store(o_ptr + row * T + c, p, mask=c < T)

def masked_softmax(scores, seq_lens):
    B_, S, H, T = scores.shape
    out = torch.empty_like(scores)
    k[(B_ * S * H,)](scores, seq_lens, out, S, H, T, B=triton.next_power_of_2(T), num_warps=4)
    return out
