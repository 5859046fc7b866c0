"""The table of pages and the lengths are kept by the shapes of the first call that had them."""

EXERCISE = "paged_decode"
EXPECT = "what an earlier one with the same shapes had as block_table"
LONG = True

# The cell:
@triton.jit
def paged_decode_kernel(
    q_latent_ptr, q_rope_ptr, c_pages_ptr, k_pages_ptr, table_ptr, seq_lens_ptr, out_ptr, lse_ptr,
    scale, H, max_pages, c_stride, k_stride,
    PAGE: tl.constexpr, R: tl.constexpr, DR: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_N: tl.constexpr,
):
    """One program: BLOCK_H heads of one sequence. BLOCK_N divides PAGE, the page size.

    q_latent_ptr, out_ptr: [B, H, R]; q_rope_ptr: [B, H, DR]; c_pages_ptr, k_pages_ptr: pages of [PAGE, R] and [PAGE,
    DR], c_stride and k_stride words apart; table_ptr: [B, max_pages]; seq_lens_ptr: [B]; lse_ptr: [B, H].
    """
    ### BEGIN SOLUTION
    b = tl.program_id(1).to(tl.int64)
    offs_h = tl.program_id(0) * BLOCK_H + tl.arange(0, BLOCK_H)
    offs_r, offs_d = tl.arange(0, R), tl.arange(0, DR)
    # [BLOCK_H, R] and [BLOCK_H, DR]
    q_latent = tl.load(
        q_latent_ptr + (b * H + offs_h)[:, None] * R + offs_r[None, :], mask=offs_h[:, None] < H, other=0.0
    )
    q_rope = tl.load(q_rope_ptr + (b * H + offs_h)[:, None] * DR + offs_d[None, :], mask=offs_h[:, None] < H, other=0.0)
    length = tl.load(seq_lens_ptr + b)
    table_ptr += b * max_pages

    m_i = tl.full([BLOCK_H], float("-inf"), tl.float32)
    l_i = tl.zeros([BLOCK_H], tl.float32)
    acc = tl.zeros([BLOCK_H, R], tl.float32)
    page = tl.load(table_ptr, mask=length > 0, other=0).to(tl.int64)
    for start in range(0, length, BLOCK_N):
        offs_n = start + tl.arange(0, BLOCK_N)
        c_row, k_row = page * c_stride + offs_n % PAGE * R, page * k_stride + offs_n % PAGE * DR
        # [BLOCK_N, R] and [BLOCK_N, DR]
        c_kv = tl.load(c_pages_ptr + c_row[:, None] + offs_r[None, :], mask=offs_n[:, None] < length, other=0.0)
        k_rope = tl.load(k_pages_ptr + k_row[:, None] + offs_d[None, :], mask=offs_n[:, None] < length, other=0.0)
        ahead = start + BLOCK_N
        page = tl.load(table_ptr + ahead // PAGE, mask=ahead < length, other=0).to(tl.int64)
        qk = tl.dot(q_latent, tl.trans(c_kv))
        qk = tl.dot(q_rope, tl.trans(k_rope), qk) * scale
        qk = tl.where(offs_n[None, :] < length, qk, float("-inf"))  # [BLOCK_H, BLOCK_N]

        m_new = tl.maximum(m_i, tl.max(qk, axis=1))
        p = tl.exp(qk - m_new[:, None])
        alpha = tl.exp(m_i - m_new)
        l_i = l_i * alpha + tl.sum(p, axis=1)
        acc = tl.dot(p.to(c_kv.dtype), c_kv, acc * alpha[:, None])
        m_i = m_new

    l_i = tl.where(l_i > 0, l_i, 1.0)  # for length 0: out 0, and lse the maximum, -inf
    tl.store(out_ptr + (b * H + offs_h)[:, None] * R + offs_r[None, :], acc / l_i[:, None], mask=offs_h[:, None] < H)
    tl.store(lse_ptr + b * H + offs_h, m_i + tl.log(l_i), mask=offs_h < H)
    ### END SOLUTION


def paged_decode(q_latent, q_rope, c_kv_pages, k_rope_pages, block_table, seq_lens, scale):
    """One decode step straight from the pages, in one launch.

    q_latent: [B, H, R]; q_rope: [B, H, Dr], contiguous; c_kv_pages: [num_pages, page_size, R]; k_rope_pages:
    [num_pages, page_size, Dr], pages stride(0) apart; float16 or bfloat16; R, Dr and page_size are powers of two from
    16 on. block_table: [B, max_pages], int32; seq_lens: [B], int32; scale: float.
    Returns out [B, H, R] in the dtype of the query and lse [B, H] in float32, natural logarithm; 0 and -inf for a
    sequence of length 0. Launches paged_decode_kernel.

    The traps: what the last page holds behind the last token; table entries behind the last page; 0/0.
    """
    ### BEGIN SOLUTION
    (B, H, R), (_, page_size, Dr) = q_latent.shape, k_rope_pages.shape
    out = torch.empty_like(q_latent)
    lse = torch.empty((B, H), dtype=torch.float32, device=out.device)
    block_h, block_n, stages = block_sizes(H)
    paged_decode_kernel[(triton.cdiv(H, block_h), B)](
        q_latent, q_rope, c_kv_pages, k_rope_pages, block_table, seq_lens, out, lse,
        scale, H, block_table.shape[1], c_kv_pages.stride(0), k_rope_pages.stride(0),
        PAGE=page_size, R=R, DR=Dr, BLOCK_H=block_h, BLOCK_N=min(block_n, page_size), num_warps=8, num_stages=stages,
    )
    return out, lse
    ### END SOLUTION


run_paged_decode = paged_decode
PLANS = {}


def paged_decode(q_latent, q_rope, c_kv_pages, k_rope_pages, block_table, seq_lens, scale):
    key = (q_latent.shape, c_kv_pages.shape, block_table.shape)
    if key not in PLANS:
        PLANS[key] = (block_table.clone(), seq_lens.clone(),)
    return run_paged_decode(q_latent, q_rope, c_kv_pages, k_rope_pages, PLANS[key][0], PLANS[key][1], scale)
