"""A launch for each group of sixteen heads: they share the stretch, and no byte of it."""

EXERCISE = "apply_rope"
SPEED = True
LONG = True

# The cell:
@triton.jit
def rope_kernel(x_ptr, cos_ptr, sin_ptr, out_ptr, N, S, D, first, last, step, H, TOKENS: tl.constexpr, HEADS: tl.constexpr, P: tl.constexpr):
    token = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)[:, None, None]
    head = first + tl.arange(0, HEADS)[None, :, None]
    p = tl.arange(0, P)[None, None, :]
    live = (token < N) & (head < last) & (p < D // 2)
    at = (token * H + head) * D + 2 * p
    turn = token % S * (D // 2) + p
    c = tl.load(cos_ptr + turn, mask=(token < N) & (p < D // 2), other=0.0)
    s = tl.load(sin_ptr + turn, mask=(token < N) & (p < D // 2), other=0.0)
    wide = tl.arange(0, 2 * P)[None, None, :]
    every = (token * H + head) * D + wide
    inside = (token < N) & (head < last) & (wide < D)
    x = tl.load(x_ptr + every, mask=inside, other=0.0).to(tl.float32)
    a, b = tl.split(tl.reshape(x, (TOKENS, HEADS, P, 2)))
    y = tl.reshape(tl.join(a * c - b * s, a * s + b * c), (TOKENS, HEADS, 2 * P))
    tl.store(out_ptr + every, y, mask=inside)


def apply_rope(x, cos, sin):
    B, S, H, D = x.shape
    x = x.contiguous()
    out = torch.empty_like(x)
    for first in range(0, H, 16):
        rope_kernel[(triton.cdiv(B * S, 4),)](
            x, cos, sin, out, B * S, S, D, first, min(first + 16, H), 0, H, TOKENS=4, HEADS=16,
            P=triton.next_power_of_2(D // 2), num_warps=4,
        )
    return out
