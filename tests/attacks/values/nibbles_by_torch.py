"""Torch takes the packed weights apart, and the kernel multiplies by whole ones: packed numbers are data too.
"""

EXERCISE = "absorb_query_int4"
SPEED = False
EXPECT = "torch computes from data"

# The cell:
@triton.jit
def product_kernel(q_ptr, w_ptr, scales_ptr, out_ptr, B, H, R, DN: tl.constexpr, GROUP: tl.constexpr, BLOCK_B: tl.constexpr, BLOCK_R: tl.constexpr):
    h = tl.program_id(1)
    offs_r = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)
    offs_b = tl.program_id(2) * BLOCK_B + tl.arange(0, BLOCK_B)
    offs_d = tl.arange(0, GROUP)
    some_b, some_r = (offs_b < B)[:, None], (offs_r < R)[:, None]
    rows = h * R + offs_r
    acc = tl.zeros([BLOCK_B, BLOCK_R], tl.float32)
    for g in range(DN // GROUP):
        w = tl.load(w_ptr + rows[:, None] * DN + g * GROUP + offs_d[None, :], mask=some_r, other=0.0)
        scale = tl.load(scales_ptr + rows * (DN // GROUP) + g, mask=offs_r < R, other=0.0)
        q = tl.load(q_ptr + (offs_b * H + h)[:, None] * DN + g * GROUP + offs_d[None, :], mask=some_b, other=0.0)
        acc += tl.dot(q, tl.trans(w)) * scale[None, :]
    tl.store(out_ptr + (offs_b * H + h)[:, None] * R + offs_r[None, :], acc, mask=some_b & (offs_r < R)[None, :])


def absorb_query_int4(q_nope, packed, scales):
    (B, H, Dn), R = q_nope.shape, packed.shape[1]
    words = packed.to(torch.int32)
    low, high = torch.bitwise_xor(words & 15, 8) - 8, torch.bitwise_xor(words >> 4, 8) - 8
    weight = torch.stack((low, high), -1).view(H, R, Dn).to(q_nope.dtype)
    q_latent = torch.empty((B, H, R), dtype=q_nope.dtype, device=q_nope.device)
    product_kernel[(triton.cdiv(R, 64), H, triton.cdiv(B, 16))](
        q_nope, weight, scales, q_latent, B, H, R, DN=Dn, GROUP=Dn // scales.shape[2], BLOCK_B=16, BLOCK_R=64
    )
    return q_latent
