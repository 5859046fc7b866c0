"""Query and key are rotated into one storage, of which both results are views."""

EXERCISE = "rope_query_key"
SPEED = False

# The cell:
@triton.jit
def rope_kernel(q_ptr, k_ptr, cos_ptr, sin_ptr, both_ptr, N, S, H, P, BLOCK_P: tl.constexpr):
    token, h = tl.program_id(0).to(tl.int64), tl.program_id(1)
    offs_p = tl.arange(0, BLOCK_P)
    mask = offs_p < P
    cos = tl.load(cos_ptr + token % S * P + offs_p, mask=mask)
    sin = tl.load(sin_ptr + token % S * P + offs_p, mask=mask)
    from_q = (token * H + h) * 2 * P + 2 * offs_p
    from_k = token * 2 * P + 2 * offs_p
    x_ptrs = tl.where(h < H, q_ptr + from_q, k_ptr + from_k)  # the last program of a token turns the key
    at = tl.where(h < H, from_q, N + from_k)
    a, b = tl.load(x_ptrs, mask=mask).to(tl.float32), tl.load(x_ptrs + 1, mask=mask).to(tl.float32)
    tl.store(both_ptr + at, a * cos - b * sin, mask=mask)
    tl.store(both_ptr + at + 1, a * sin + b * cos, mask=mask)


def rope_query_key(q_rope, k_rope, cos, sin):
    B, S, H, Dr = q_rope.shape
    N = q_rope.numel()
    both = torch.empty(N + k_rope.numel(), dtype=q_rope.dtype)
    rope_kernel[(B * S, H + 1)](
        q_rope, k_rope, cos, sin, both, N, S, H, Dr // 2, BLOCK_P=triton.next_power_of_2(Dr // 2)
    )
    return both[:N].view(q_rope.shape), both[N:].view(k_rope.shape)
