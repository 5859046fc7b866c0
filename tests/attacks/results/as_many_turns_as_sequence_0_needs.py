"""All programs loop as long as the first sequence lasts: enough where that is the longest.
"""

EXERCISE = "latent_decode"
EXPECT = "lens=(21, 200, 0, 1)"

# The cell:
@triton.jit
def latent_decode_kernel(
    q_latent_ptr, q_rope_ptr, c_kv_ptr, k_rope_ptr, seq_lens_ptr, out_ptr, lse_ptr, scale, H, T,
    R: tl.constexpr, DR: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_N: tl.constexpr,
):
    """One program: BLOCK_H heads of one sequence.

    q_latent_ptr, out_ptr: [B, H, R]; q_rope_ptr: [B, H, DR]; c_kv_ptr: [B, T, R]; k_rope_ptr: [B, T, DR];
    seq_lens_ptr: [B]; lse_ptr: [B, H].
    """
    b = tl.program_id(1).to(tl.int64)
    offs_h = tl.program_id(0) * BLOCK_H + tl.arange(0, BLOCK_H)
    offs_r, offs_d = tl.arange(0, R), tl.arange(0, DR)
    row = b * H + offs_h
    # [BLOCK_H, R] and [BLOCK_H, DR]
    q_latent = tl.load(q_latent_ptr + row[:, None] * R + offs_r[None, :], mask=offs_h[:, None] < H, other=0.0)
    q_rope = tl.load(q_rope_ptr + row[:, None] * DR + offs_d[None, :], mask=offs_h[:, None] < H, other=0.0)
    length = tl.load(seq_lens_ptr + b)

    m_i = tl.full([BLOCK_H], float("-inf"), tl.float32)
    l_i = tl.zeros([BLOCK_H], tl.float32)
    acc = tl.zeros([BLOCK_H, R], tl.float32)
    for start in range(0, tl.load(seq_lens_ptr), BLOCK_N):
        offs_n = start + tl.arange(0, BLOCK_N)
        # [BLOCK_N, R] and [BLOCK_N, DR]
        c_kv = tl.load(
            c_kv_ptr + (b * T + offs_n)[:, None] * R + offs_r[None, :], mask=offs_n[:, None] < length, other=0.0
        )
        k_rope = tl.load(
            k_rope_ptr + (b * T + offs_n)[:, None] * DR + offs_d[None, :], mask=offs_n[:, None] < length, other=0.0
        )
        qk = tl.dot(q_latent, tl.trans(c_kv))
        qk = tl.dot(q_rope, tl.trans(k_rope), qk) * scale
        qk = tl.where(offs_n[None, :] < length, qk, float("-inf"))  # [BLOCK_H, BLOCK_N]

        m_new = tl.maximum(m_i, tl.max(qk, axis=1))
        base = tl.where(m_new == float("-inf"), 0.0, m_new)
        p = tl.exp(qk - base[:, None])
        alpha = tl.exp(m_i - base)
        l_i = l_i * alpha + tl.sum(p, axis=1)
        acc = tl.dot(p.to(c_kv.dtype), c_kv, acc * alpha[:, None])
        m_i = m_new

    l_i = tl.where(l_i > 0, l_i, 1.0)  # for length 0: out 0, and lse the maximum, -inf
    tl.store(out_ptr + row[:, None] * R + offs_r[None, :], acc / l_i[:, None], mask=offs_h[:, None] < H)
    tl.store(lse_ptr + row, m_i + tl.log(l_i), mask=offs_h < H)


def latent_decode(q_latent, q_rope, c_kv, k_rope, seq_lens, scale):
    """One decode step over the latent cache, in one launch.

    q_latent: [B, H, R]; q_rope: [B, H, Dr]; c_kv: [B, T, R]; k_rope: [B, T, Dr]; float16 or bfloat16,
    contiguous; R and Dr are powers of two. seq_lens: [B], int32, 0 to T; scale: float.
    Returns out [B, H, R] in the dtype of the query and lse [B, H] in float32, natural logarithm; 0 and -inf for a
    sequence of length 0. Launches latent_decode_kernel once.

    The traps: acc and l_i both have to be rescaled; a masked load gives a score of 0, not of -inf; 0/0.
    """
    (B, H, R), (_, T, Dr) = q_latent.shape, k_rope.shape
    out = torch.empty_like(q_latent)
    lse = torch.empty((B, H), dtype=torch.float32, device=out.device)
    block_h, block_n, stages = block_sizes(H)
    latent_decode_kernel[(triton.cdiv(H, block_h), B)](
        q_latent, q_rope, c_kv, k_rope, seq_lens, out, lse, scale, H, T,
        R=R, DR=Dr, BLOCK_H=block_h, BLOCK_N=block_n, num_warps=8, num_stages=stages,
    )
    return out, lse
