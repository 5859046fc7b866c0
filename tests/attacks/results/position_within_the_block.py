"""The position of a token is that of its place in the block: right for 16 tokens, and where S divides 16."""

EXERCISE = "rope_query_key"
EXPECT = "q_rope"

# The cell:
@triton.jit
def turn_block(x_ptr, out_ptr, offsets, mask, cos, sin, ROWS: tl.constexpr, BLOCK_P: tl.constexpr):
    x = tl.load(x_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    a, b = tl.split(tl.reshape(x, (ROWS, BLOCK_P, 2)))
    y = tl.join(a * cos - b * sin, a * sin + b * cos)
    tl.store(out_ptr + offsets, tl.reshape(y, (ROWS, 2 * BLOCK_P)), mask=mask)


@triton.jit
def rope_query_key_kernel(
    q_ptr, k_ptr, cos_ptr, sin_ptr, q_out_ptr, k_out_ptr, N, S, H, P,
    BLOCK_T: tl.constexpr, BLOCK_P: tl.constexpr,
):
    """One program: head program_id(1) of BLOCK_T tokens; head H is the key."""
    h = tl.program_id(1)
    offs_t = tl.arange(0, BLOCK_T)
    token = tl.program_id(0) * BLOCK_T + offs_t
    offs_p, offs_d = tl.arange(0, BLOCK_P), tl.arange(0, 2 * BLOCK_P)
    some = (token < N)[:, None]
    angle = (offs_t % S)[:, None] * P + offs_p[None, :]  # expected: token % S
    cos = tl.load(cos_ptr + angle, mask=some & (offs_p < P)[None, :], other=0.0)
    sin = tl.load(sin_ptr + angle, mask=some & (offs_p < P)[None, :], other=0.0)
    mask = some & (offs_d < 2 * P)[None, :]
    if h < H:
        offsets = (token[:, None] * H + h) * 2 * P + offs_d[None, :]
        turn_block(q_ptr, q_out_ptr, offsets, mask, cos, sin, BLOCK_T, BLOCK_P)
    else:
        offsets = token[:, None] * 2 * P + offs_d[None, :]
        turn_block(k_ptr, k_out_ptr, offsets, mask, cos, sin, BLOCK_T, BLOCK_P)


def rope_query_key(q_rope, k_rope, cos, sin):
    B, S, H, Dr = q_rope.shape
    q_out, k_out = torch.empty_like(q_rope), torch.empty_like(k_rope)
    N, block_p = B * S, triton.next_power_of_2(Dr // 2)
    rope_query_key_kernel[(triton.cdiv(N, 16), H + 1)](
        q_rope, k_rope, cos, sin, q_out, k_out, N, S, H, Dr // 2, BLOCK_T=16, BLOCK_P=block_p, num_warps=4
    )
    return q_out, k_out
