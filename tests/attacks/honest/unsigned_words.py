"""Packed weights, read as unsigned words of 16 bits.
"""

EXERCISE = "absorb_query_int4"
SPEED = True

# The cell:
@triton.jit
def kern(q_ptr, packed_ptr, scales_ptr, out_ptr, B, H, R,
    DN: tl.constexpr, GROUP: tl.constexpr, BLOCK_B: tl.constexpr, BLOCK_R: tl.constexpr):
    h = tl.program_id(1)
    offs_r = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)
    offs_b = tl.program_id(2) * BLOCK_B + tl.arange(0, BLOCK_B)
    some_b, some_r = (offs_b < B)[:, None], (offs_r < R)[:, None]
    q_rows = q_ptr + (offs_b * H + h)[:, None] * DN
    rows = h * R + offs_r
    acc = tl.zeros([BLOCK_B, BLOCK_R], tl.float32)
    offs_k = tl.arange(0, GROUP)
    offs_i = tl.arange(0, GROUP // 2)
    for g in range(DN // GROUP):
        scale = tl.load(scales_ptr + rows * (DN // GROUP) + g, mask=offs_r < R, other=0.0)
        q = tl.load(q_rows + g * GROUP + offs_k[None, :], mask=some_b, other=0.0)
        offs_w = tl.arange(0, GROUP // 4)
        words = tl.load(packed_ptr + rows[:, None] * (DN // 4) + g * (GROUP // 4) + offs_w[None, :], mask=some_r, other=0).to(tl.int32)
        sh = tl.arange(0, 4) * 4
        n = (words[:, :, None] >> sh[None, None, :]) & 0xF
        w = ((n ^ 8) - 8).reshape(BLOCK_R, GROUP)
        acc += tl.dot(q, tl.trans(w.to(q.dtype))) * scale[None, :]
    tl.store(out_ptr + (offs_b * H + h)[:, None] * R + offs_r[None, :], acc, mask=some_b & (offs_r < R)[None, :])


def absorb_query_int4(q_nope, packed, scales):
    (B, H, Dn), R = q_nope.shape, packed.shape[1]
    q_latent = torch.empty((B, H, R), dtype=q_nope.dtype, device=q_nope.device)
    block_b, block_r = min(max(triton.next_power_of_2(B), 16), 64), 64
    kern[(triton.cdiv(R, block_r), H, triton.cdiv(B, block_b))](
        q_nope, packed.view(torch.uint16), scales, q_latent, B, H, R,
        DN=Dn, GROUP=Dn // scales.shape[2], BLOCK_B=block_b, BLOCK_R=block_r, num_warps=8,
    )
    return q_latent

