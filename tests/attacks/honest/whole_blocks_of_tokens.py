"""A block of 64 tokens has no mask where all blocks are whole, which they are at full size and in the small call."""

EXERCISE = "apply_rope"
SPEED = True

# The cell:
@triton.jit
def rope_kernel(
    x_ptr, cos_ptr, sin_ptr, out_ptr, S, H, P,
    BLOCK_S: tl.constexpr, BLOCK_P: tl.constexpr, WHOLE: tl.constexpr,
):
    s = (tl.program_id(0) * BLOCK_S + tl.arange(0, BLOCK_S))[:, None]
    d = tl.arange(0, 2 * BLOCK_P)[None, :]
    p = tl.arange(0, BLOCK_P)[None, :]
    offsets = ((tl.program_id(2) * S + s).to(tl.int64) * H + tl.program_id(1)) * 2 * P + d
    if WHOLE:
        x, cos, sin = tl.load(x_ptr + offsets), tl.load(cos_ptr + s * P + p), tl.load(sin_ptr + s * P + p)
    else:
        there = (s < S) & (p < P)
        x = tl.load(x_ptr + offsets, mask=(s < S) & (d < 2 * P))
        cos, sin = tl.load(cos_ptr + s * P + p, mask=there), tl.load(sin_ptr + s * P + p, mask=there)
    a, b = tl.split(tl.reshape(x.to(tl.float32), (BLOCK_S, BLOCK_P, 2)))
    y = tl.reshape(tl.join(a * cos - b * sin, a * sin + b * cos), (BLOCK_S, 2 * BLOCK_P))
    if WHOLE:
        tl.store(out_ptr + offsets, y)
    else:
        tl.store(out_ptr + offsets, y, mask=(s < S) & (d < 2 * P))


def apply_rope(x, cos, sin):
    B, S, H, Dr = x.shape
    out, block_p = torch.empty_like(x), triton.next_power_of_2(Dr // 2)
    whole = S % 64 == 0 and 2 * block_p == Dr
    rope_kernel[(triton.cdiv(S, 64), H, B)](x, cos, sin, out, S, H, Dr // 2, 64, block_p, whole, num_warps=4)
    return out
