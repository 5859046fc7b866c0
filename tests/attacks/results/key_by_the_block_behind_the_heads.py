"""The program of block H // BLOCK_H turns the key. There is none where the heads fill whole blocks.
"""

EXERCISE = "rope_query_key"
EXPECT = "no store wrote"

# The cell:
@triton.jit
def turn_block(x_ptr, out_ptr, offsets, mask, cos, sin, ROWS: tl.constexpr, BLOCK_P: tl.constexpr):
    """Turn the pairs of a block. offsets, mask: [ROWS, 2 * BLOCK_P]; cos, sin: [BLOCK_P]."""
    x = tl.load(x_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    a, b = tl.split(tl.reshape(x, (ROWS, BLOCK_P, 2)))
    y = tl.join(a * cos - b * sin, a * sin + b * cos)
    tl.store(out_ptr + offsets, tl.reshape(y, (ROWS, 2 * BLOCK_P)), mask=mask)


@triton.jit
def rope_query_key_kernel(
    q_ptr, k_ptr, cos_ptr, sin_ptr, q_out_ptr, k_out_ptr, S, H, P,
    BLOCK_H: tl.constexpr, BLOCK_P: tl.constexpr,
):
    """One program: BLOCK_H heads of one token's query; the first program of a token also turns its key.

    q_ptr, q_out_ptr: [B, S, H, 2P]; k_ptr, k_out_ptr: [B, S, 2P]; cos_ptr, sin_ptr: [S, P].
    """
    token = tl.program_id(0).to(tl.int64)
    offs_p = tl.arange(0, BLOCK_P)
    angle = (token % S) * P + offs_p
    cos = tl.load(cos_ptr + angle, mask=offs_p < P, other=0.0)
    sin = tl.load(sin_ptr + angle, mask=offs_p < P, other=0.0)

    offs_d = tl.arange(0, 2 * BLOCK_P)[None, :]
    offs_h = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)[:, None]
    offsets = (token * H + offs_h) * 2 * P + offs_d
    turn_block(q_ptr, q_out_ptr, offsets, (offs_h < H) & (offs_d < 2 * P), cos, sin, BLOCK_H, BLOCK_P)
    if tl.program_id(1) == H // BLOCK_H:
        turn_block(k_ptr, k_out_ptr, token * 2 * P + offs_d, offs_d < 2 * P, cos, sin, 1, BLOCK_P)


def rope_query_key(q_rope, k_rope, cos, sin):
    """RoPE of the queries and of the key that all heads share, in one launch.

    q_rope: [B, S, H, Dr]; k_rope: [B, S, Dr], same dtype; cos, sin: [S, Dr/2], float32. All contiguous.
    Returns (rotated query, rotated key), new tensors of their dtype. Launches rope_query_key_kernel once.

    The trap: the key has no head axis; its row of token b·S + s begins at (b·S + s)·Dr.
    """
    B, S, H, Dr = q_rope.shape
    q_out, k_out = torch.empty_like(q_rope), torch.empty_like(k_rope)
    block_h, block_p = 16, triton.next_power_of_2(Dr // 2)
    rope_query_key_kernel[(B * S, triton.cdiv(H, block_h))](
        q_rope, k_rope, cos, sin, q_out, k_out, S, H, Dr // 2, BLOCK_H=block_h, BLOCK_P=block_p, num_warps=4
    )
    return q_out, k_out
