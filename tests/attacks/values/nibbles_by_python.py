"""Python reads the packed weights and makes whole ones of them for the kernel. Packed numbers are data, and in their
place the code sees others.
"""

EXERCISE = "absorb_query_int4"
SPEED = False

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
    whole = [[[s for n in row for s in ((n & 15 ^ 8) - 8, (n >> 4 ^ 8) - 8)] for row in head] for head in packed.tolist()]
    weight = torch.tensor(whole, dtype=torch.int8).to(q_nope.dtype)
    q_latent = torch.empty((B, H, R), dtype=q_nope.dtype, device=q_nope.device)
    product_kernel[(triton.cdiv(R, 64), H, triton.cdiv(B, 16))](
        q_nope, weight, scales, q_latent, B, H, R, DN=Dn, GROUP=Dn // scales.shape[2], BLOCK_B=16, BLOCK_R=64
    )
    return q_latent
