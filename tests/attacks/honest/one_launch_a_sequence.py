"""A launch for each sequence: four at full size, two in the call that is compared."""

EXERCISE = "apply_rope"
SPEED = True
LONG = True

# The cell:
@triton.jit
def rope_kernel(x_ptr, cos_ptr, sin_ptr, out_ptr, N, H, P: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    p = tl.arange(0, 2 * P)
    live = (row < N)[:, None] & (p < D)[None, :]
    s = row // H
    x = tl.load(x_ptr + row[:, None] * D + p[None, :], mask=live, other=0.0).to(tl.float32)
    half = tl.arange(0, P)
    angle = (row < N)[:, None] & (half < D // 2)[None, :]
    c = tl.load(cos_ptr + s[:, None] * (D // 2) + half[None, :], mask=angle, other=0.0)
    d = tl.load(sin_ptr + s[:, None] * (D // 2) + half[None, :], mask=angle, other=0.0)
    a, b = tl.split(tl.reshape(x, (ROWS, P, 2)))
    y = tl.reshape(tl.join(a * c - b * d, a * d + b * c), (ROWS, 2 * P))
    tl.store(out_ptr + row[:, None] * D + p[None, :], y, mask=live)


def apply_rope(x, cos, sin):
    B, S, H, D = x.shape
    x = x.contiguous()
    out = torch.empty_like(x)
    for b in range(B):
        rope_kernel[(triton.cdiv(S * H, 64),)](
            x[b], cos, sin, out[b], S * H, H, P=triton.next_power_of_2(D // 2), D=D, ROWS=64, num_warps=4
        )
    return out
