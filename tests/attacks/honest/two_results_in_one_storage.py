"""Query and key are rotated into one storage, of which both results are views."""

EXERCISE = "rope_query_key"
SPEED = False

# The cell:
@triton.jit
def rope_kernel(x_ptr, cos_ptr, sin_ptr, out_ptr, S, H, P, BLOCK_P: tl.constexpr):
    token, h = tl.program_id(0).to(tl.int64), tl.program_id(1)
    offs_p = tl.arange(0, BLOCK_P)
    mask = offs_p < P
    cos = tl.load(cos_ptr + token % S * P + offs_p, mask=mask)
    sin = tl.load(sin_ptr + token % S * P + offs_p, mask=mask)
    at = (token * H + h) * 2 * P + 2 * offs_p
    a, b = tl.load(x_ptr + at, mask=mask).to(tl.float32), tl.load(x_ptr + at + 1, mask=mask).to(tl.float32)
    tl.store(out_ptr + at, a * cos - b * sin, mask=mask)
    tl.store(out_ptr + at + 1, a * sin + b * cos, mask=mask)


def rope_query_key(q_rope, k_rope, cos, sin):
    B, S, H, Dr = q_rope.shape
    both = torch.empty(q_rope.numel() + k_rope.numel(), dtype=q_rope.dtype)
    q_out, k_out = both[: q_rope.numel()].view(q_rope.shape), both[q_rope.numel() :].view(k_rope.shape)
    for x, out, heads in ((q_rope, q_out, H), (k_rope, k_out, 1)):
        rope_kernel[(B * S, heads)](x, cos, sin, out, S, heads, Dr // 2, BLOCK_P=triton.next_power_of_2(Dr // 2))
    return q_out, k_out
