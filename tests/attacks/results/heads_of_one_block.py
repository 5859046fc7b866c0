"""One block of 128 heads for each sequence, whatever their number: those behind it are not computed."""

EXERCISE = "rotating_decode"
EXPECT = "no store wrote"

# The cell:
@triton.jit
def rotating_decode_kernel(
    q_latent_ptr, q_rope_ptr, cache_ptr, cos_ptr, sin_ptr, out_ptr, scale, H, length, capacity,
    R: tl.constexpr, DR: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_N: tl.constexpr,
):
    """One program: BLOCK_H heads of one sequence.

    q_latent_ptr, out_ptr: [B, H, R]; q_rope_ptr: [B, H, DR]; cache_ptr: [B, capacity, R + DR];
    cos_ptr, sin_ptr: [capacity, DR / 2].
    """
    b = tl.program_id(1).to(tl.int64)
    offs_h = tl.program_id(0) * BLOCK_H + tl.arange(0, BLOCK_H)
    offs_r, offs_d = tl.arange(0, R), tl.arange(0, DR // 2)
    row, some = b * H + offs_h, offs_h[:, None] < H
    # [BLOCK_H, R] and twice [BLOCK_H, DR / 2]
    q_latent = tl.load(q_latent_ptr + row[:, None] * R + offs_r[None, :], mask=some, other=0.0)
    q_first = tl.load(q_rope_ptr + row[:, None] * DR + offs_d[None, :], mask=some, other=0.0)
    q_second = tl.load(q_rope_ptr + row[:, None] * DR + DR // 2 + offs_d[None, :], mask=some, other=0.0)

    m_i = tl.full([BLOCK_H], float("-inf"), tl.float32)
    l_i = tl.zeros([BLOCK_H], tl.float32)
    acc = tl.zeros([BLOCK_H, R], tl.float32)
    for start in range(0, length, BLOCK_N):
        offs_n = start + tl.arange(0, BLOCK_N)
        there = offs_n[:, None] < length
        tokens = cache_ptr + (b * capacity + offs_n)[:, None] * (R + DR)
        angles = offs_n[:, None] * (DR // 2) + offs_d[None, :]
        # [BLOCK_N, R] and [BLOCK_N, DR / 2]
        c_kv = tl.load(tokens + offs_r[None, :], mask=there, other=0.0)
        x = tl.load(tokens + R + offs_d[None, :], mask=there, other=0.0).to(tl.float32)
        y = tl.load(tokens + R + DR // 2 + offs_d[None, :], mask=there, other=0.0).to(tl.float32)
        cos = tl.load(cos_ptr + angles, mask=there, other=0.0).to(tl.float32)
        sin = tl.load(sin_ptr + angles, mask=there, other=0.0).to(tl.float32)
        first, second = (x * cos - y * sin).to(c_kv.dtype), (y * cos + x * sin).to(c_kv.dtype)

        qk = tl.dot(q_latent, tl.trans(c_kv))
        qk = tl.dot(q_first, tl.trans(first), qk)
        qk = tl.dot(q_second, tl.trans(second), qk) * scale
        qk = tl.where(offs_n[None, :] < length, qk, float("-inf"))  # [BLOCK_H, BLOCK_N]

        m_new = tl.maximum(m_i, tl.max(qk, axis=1))
        p = tl.exp(qk - m_new[:, None])
        alpha = tl.exp(m_i - m_new)
        l_i = l_i * alpha + tl.sum(p, axis=1)
        acc = tl.dot(p.to(c_kv.dtype), c_kv, acc * alpha[:, None])
        m_i = m_new
    tl.store(out_ptr + row[:, None] * R + offs_r[None, :], acc / l_i[:, None], mask=some)


def rotating_decode(q_latent, q_rope, cache, cos, sin, length, scale):
    """Attend to the first `length` tokens of a cache whose keys are not rotated, in one launch.

    q_latent: [B, H, R]; q_rope: [B, H, Dr], rotated; cache: [B, capacity, R + Dr]; cos, sin: [capacity, Dr/2]; float16
    or bfloat16, contiguous, R and Dr powers of two. length: int, 1 to capacity; scale: float.
    Returns [B, H, R] in the dtype of the query. Launches rotating_decode_kernel.

    The traps: halves, not neighbours; what lies behind the length may be NaN; acc and l_i are rescaled.
    """
    (B, H, R), Dr, capacity = q_latent.shape, q_rope.shape[2], cache.shape[1]
    out = torch.empty_like(q_latent)
    block_h, block_n, stages = 128, 32, 1
    rotating_decode_kernel[(1, B)](
        q_latent, q_rope, cache, cos, sin, out, scale, H, length, capacity,
        R=R, DR=Dr, BLOCK_H=block_h, BLOCK_N=block_n, num_warps=8, num_stages=stages,
    )
    return out
