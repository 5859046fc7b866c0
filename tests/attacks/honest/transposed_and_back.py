"""The host turns heads before tokens by a copy, and the result is a view that is turned back."""

EXERCISE = "apply_rope"
SPEED = False

# The cell:
@triton.jit
def rope_kernel(x_ptr, cos_ptr, sin_ptr, out_ptr, S, P, BLOCK_P: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    offs_p = tl.arange(0, BLOCK_P)
    mask = offs_p < P
    cos = tl.load(cos_ptr + row % S * P + offs_p, mask=mask)
    sin = tl.load(sin_ptr + row % S * P + offs_p, mask=mask)
    at = row * 2 * P + 2 * offs_p
    a, b = tl.load(x_ptr + at, mask=mask).to(tl.float32), tl.load(x_ptr + at + 1, mask=mask).to(tl.float32)
    tl.store(out_ptr + at, a * cos - b * sin, mask=mask)
    tl.store(out_ptr + at + 1, a * sin + b * cos, mask=mask)


def apply_rope(x, cos, sin):
    B, S, H, Dr = x.shape
    turned = x.transpose(1, 2).contiguous()
    out = torch.empty_like(turned)
    rope_kernel[(B * H * S,)](turned, cos, sin, out, S, Dr // 2, BLOCK_P=triton.next_power_of_2(Dr // 2))
    return out.transpose(1, 2)
