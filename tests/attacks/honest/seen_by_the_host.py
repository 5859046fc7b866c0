"""The host computes from seq_lens how much each row sees, a tensor of integers that the kernel reads."""

EXERCISE = "masked_softmax"
SPEED = False

# The cell:
@triton.jit
def softmax_kernel(scores_ptr, seen_ptr, out_ptr, T, BLOCK_N: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    offs_n = tl.arange(0, BLOCK_N)
    seen = offs_n < tl.load(seen_ptr + row)
    x = tl.load(scores_ptr + row * T + offs_n, mask=seen, other=float("-inf")).to(tl.float32)
    m_i = tl.max(x)
    p = tl.exp(x - tl.where(m_i == float("-inf"), 0.0, m_i))
    l_i = tl.sum(p)
    tl.store(out_ptr + row * T + offs_n, p / tl.where(l_i == 0, 1.0, l_i), mask=offs_n < T)


def masked_softmax(scores, seq_lens):
    B, S, H, T = scores.shape
    out = torch.empty_like(scores)
    seen = seq_lens[:, None] - torch.arange(S - 1, -1, -1, device=seq_lens.device)
    seen = seen.clamp(min=0)[:, :, None].expand(B, S, H).to(torch.int32).contiguous()
    softmax_kernel[(B * S * H,)](scores, seen, out, T, BLOCK_N=triton.next_power_of_2(T))
    return out
