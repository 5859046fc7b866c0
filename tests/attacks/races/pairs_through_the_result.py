"""Neighbours meet in global memory: each thread stores what it has and loads what another one stored, with no barrier."""

EXERCISE = "apply_rope"
SPEED = False
EXPECT = "another thread does, and no tl.debug_barrier() is between them"

# The cell:
@triton.jit
def rope_kernel(x_ptr, cos_ptr, sin_ptr, out_ptr, N, S, H, D: tl.constexpr, P: tl.constexpr):
    row, p = tl.program_id(0), tl.arange(0, P)
    s = row // H % S
    x = tl.load(x_ptr + row * D + p, mask=p < D, other=0.0).to(tl.float32)
    tl.store(out_ptr + row * D + p, x, mask=p < D)
    other = tl.load(out_ptr + row * D + (p ^ 1), mask=p < D, other=0.0).to(tl.float32)
    cos = tl.load(cos_ptr + s * (D // 2) + p // 2, mask=p < D, other=0.0)
    sin = tl.load(sin_ptr + s * (D // 2) + p // 2, mask=p < D, other=0.0)
    tl.store(out_ptr + row * D + p, x * cos + tl.where(p % 2 == 0, -other, other) * sin, mask=p < D)


def apply_rope(x, cos, sin):
    B, S, H, D = x.shape
    x = x.contiguous()
    out = torch.empty_like(x)
    rope_kernel[(B * S * H,)](x, cos, sin, out, B * S * H, S, H, D=D, P=triton.next_power_of_2(D))
    return out
