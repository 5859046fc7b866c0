"""The maximum of a row begins at 0, and so it is never below. Where all scores are below −100 each weight is 0.
"""

EXERCISE = "folded_decode"
EXPECT = "level=-150.0"

# The cell:
@triton.jit
def folded_decode_kernel(
    q_latent_ptr, q_rope_ptr, c_kv_ptr, k_rope_ptr, seq_lens_ptr, partial_out_ptr, partial_lse_ptr,
    scale, B, S, H, T, num_splits,
    R: tl.constexpr, DR: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):
    """One program: BLOCK_M rows of one sequence, one part of its context. Row m: token m // H, head m % H.

    q_latent_ptr: [B, S, H, R]; q_rope_ptr: [B, S, H, DR]; c_kv_ptr: [B, T, R]; k_rope_ptr: [B, T, DR];
    seq_lens_ptr: [B]; partial_out_ptr: [num_splits, B, S * H, R]; partial_lse_ptr: [num_splits, B, S * H].
    """
    M = S * H
    split, b = tl.program_id(2), tl.program_id(1).to(tl.int64)
    offs_m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_r, offs_d = tl.arange(0, R), tl.arange(0, DR)
    row = b * M + offs_m
    # [BLOCK_M, R] and [BLOCK_M, DR]
    q_latent = tl.load(q_latent_ptr + row[:, None] * R + offs_r[None, :], mask=offs_m[:, None] < M, other=0.0)
    q_rope = tl.load(q_rope_ptr + row[:, None] * DR + offs_d[None, :], mask=offs_m[:, None] < M, other=0.0)
    length = tl.load(seq_lens_ptr + b)
    share = tl.cdiv(length, num_splits)
    end = tl.minimum((split + 1) * share, length)
    seen = length - S + offs_m // H + 1  # [BLOCK_M]

    m_i = tl.zeros([BLOCK_M], tl.float32)
    l_i = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, R], tl.float32)
    for start in range(split * share, end, BLOCK_N):
        offs_n = start + tl.arange(0, BLOCK_N)
        # [BLOCK_N, R] and [BLOCK_N, DR]
        c_kv = tl.load(
            c_kv_ptr + (b * T + offs_n)[:, None] * R + offs_r[None, :], mask=offs_n[:, None] < end, other=0.0
        )
        k_rope = tl.load(
            k_rope_ptr + (b * T + offs_n)[:, None] * DR + offs_d[None, :], mask=offs_n[:, None] < end, other=0.0
        )
        qk = tl.dot(q_latent, tl.trans(c_kv))
        qk = tl.dot(q_rope, tl.trans(k_rope), qk) * scale
        mask = (offs_n[None, :] < end) & (offs_n[None, :] < seen[:, None])
        qk = tl.where(mask, qk, float("-inf"))  # [BLOCK_M, BLOCK_N]

        m_new = tl.maximum(m_i, tl.max(qk, axis=1))
        base = tl.where(m_new == float("-inf"), 0.0, m_new)  # of a row that has seen nothing
        p = tl.exp(qk - base[:, None])
        alpha = tl.exp(m_i - base)
        l_i = l_i * alpha + tl.sum(p, axis=1)
        acc = tl.dot(p.to(c_kv.dtype), c_kv, acc * alpha[:, None])
        m_i = m_new

    lse = tl.where(l_i > 0, m_i + tl.log(l_i), float("-inf"))
    l_i = tl.where(l_i > 0, l_i, 1.0)  # where nothing is seen: out 0, and lse the maximum, -inf
    part = split.to(tl.int64) * B * M + row
    tl.store(partial_out_ptr + part[:, None] * R + offs_r[None, :], acc / l_i[:, None], mask=offs_m[:, None] < M)
    tl.store(partial_lse_ptr + part, lse, mask=offs_m < M)


def folded_decode(q_latent, q_rope, c_kv, k_rope, seq_lens, scale):
    """A decode step of S query tokens, folded into the heads, split and combined.

    q_latent: [B, S, H, R]; q_rope: [B, S, H, Dr]; c_kv: [B, T, R]; k_rope: [B, T, Dr]; float16 or bfloat16,
    contiguous; R and Dr are powers of two. seq_lens: [B], int32, 0 to T, the S new tokens included; scale: float.
    Returns out [B, S, H, R] in the dtype of the query and lse [B, S, H] in float32; 0 and -inf for a query that sees
    nothing. Launches folded_decode_kernel, and calls combine_splits.

    The traps: row m is token m // H; token s sees length - S + s + 1 positions; a row may see nothing of a block.
    """
    (B, S, H, R), (_, T, Dr), M = q_latent.shape, k_rope.shape, q_latent.shape[1] * q_latent.shape[2]
    block_m, block_n, stages = block_sizes(M)
    blocks = triton.cdiv(M, block_m)
    num_splits = max(1, min(132 // (B * blocks), triton.cdiv(T, 128)))
    partial_out = torch.empty((num_splits, B, M, R), dtype=torch.float32, device=q_latent.device)
    partial_lse = torch.empty((num_splits, B, M), dtype=torch.float32, device=q_latent.device)
    folded_decode_kernel[(blocks, B, num_splits)](
        q_latent, q_rope, c_kv, k_rope, seq_lens, partial_out, partial_lse, scale, B, S, H, T, num_splits,
        R=R, DR=Dr, BLOCK_M=block_m, BLOCK_N=block_n, num_warps=8, num_stages=stages,
    )
    out = torch.empty_like(q_latent)
    _, lse = combine_splits(partial_out, partial_lse, out.view(B, M, R))
    return out, lse.view(B, S, H)
