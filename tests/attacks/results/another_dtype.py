"""The log-sum-exp comes back in float64, cast by torch after the kernel, where float32 is asked for. The dtypes of the
results are part of the answer.
"""

EXERCISE = "paged_decode"
SPEED = False

# The cell:
@triton.jit
def paged_decode_kernel(
    q_latent_ptr, q_rope_ptr, c_pages_ptr, k_pages_ptr, table_ptr, seq_lens_ptr, out_ptr, lse_ptr,
    scale, H, max_pages, c_stride, k_stride,
    PAGE: tl.constexpr, R: tl.constexpr, DR: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_N: tl.constexpr,
):
    b = tl.program_id(1).to(tl.int64)
    offs_h = tl.program_id(0) * BLOCK_H + tl.arange(0, BLOCK_H)
    offs_r, offs_d = tl.arange(0, R), tl.arange(0, DR)
    q_latent = tl.load(
        q_latent_ptr + (b * H + offs_h)[:, None] * R + offs_r[None, :], mask=offs_h[:, None] < H, other=0.0
    )
    q_rope = tl.load(q_rope_ptr + (b * H + offs_h)[:, None] * DR + offs_d[None, :], mask=offs_h[:, None] < H, other=0.0)
    length = tl.load(seq_lens_ptr + b)
    m_i = tl.full([BLOCK_H], float("-inf"), tl.float32)
    l_i = tl.zeros([BLOCK_H], tl.float32)
    acc = tl.zeros([BLOCK_H, R], tl.float32)
    for start in range(0, length, BLOCK_N):
        page = tl.load(table_ptr + b * max_pages + start // PAGE).to(tl.int64)
        offs_n = start + tl.arange(0, BLOCK_N)
        c_row, k_row = page * c_stride + offs_n % PAGE * R, page * k_stride + offs_n % PAGE * DR
        c_kv = tl.load(c_pages_ptr + c_row[:, None] + offs_r[None, :], mask=offs_n[:, None] < length, other=0.0)
        k_rope = tl.load(k_pages_ptr + k_row[:, None] + offs_d[None, :], mask=offs_n[:, None] < length, other=0.0)
        qk = tl.dot(q_latent, tl.trans(c_kv))
        qk = tl.dot(q_rope, tl.trans(k_rope), qk) * scale
        qk = tl.where(offs_n[None, :] < length, qk, float("-inf"))
        m_new = tl.maximum(m_i, tl.max(qk, axis=1))
        p = tl.exp(qk - m_new[:, None])
        alpha = tl.exp(m_i - m_new)
        l_i = l_i * alpha + tl.sum(p, axis=1)
        acc = tl.dot(p.to(c_kv.dtype), c_kv, acc * alpha[:, None])
        m_i = m_new
    l_i = tl.where(l_i > 0, l_i, 1.0)
    tl.store(out_ptr + (b * H + offs_h)[:, None] * R + offs_r[None, :], acc / l_i[:, None], mask=offs_h[:, None] < H)
    tl.store(lse_ptr + b * H + offs_h, m_i + tl.log(l_i), mask=offs_h < H)


def paged_decode(q_latent, q_rope, c_kv_pages, k_rope_pages, block_table, seq_lens, scale):
    (B, H, R), (_, page_size, Dr) = q_latent.shape, k_rope_pages.shape
    out, lse = torch.empty_like(q_latent), torch.empty((B, H), dtype=torch.float32)
    paged_decode_kernel[(triton.cdiv(H, 16), B)](
        q_latent, q_rope, c_kv_pages, k_rope_pages, block_table, seq_lens, out, lse,
        scale, H, block_table.shape[1], c_kv_pages.stride(0), k_rope_pages.stride(0),
        PAGE=page_size, R=R, DR=Dr, BLOCK_H=16, BLOCK_N=16,
    )
    return out, lse.double()
