"""Even and odd numbers are loaded apart, and stored apart."""

EXERCISE = "apply_rope"
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


def apply_rope(x, cos, sin):
    B, S, H, Dr = x.shape
    out = torch.empty_like(x)
    rope_kernel[(B * S, H)](x, cos, sin, out, S, H, Dr // 2, BLOCK_P=triton.next_power_of_2(Dr // 2))
    return out
