"""Where sequences begin is kept by the shapes of the first call that had them."""

EXERCISE = "ragged_prefill"
EXPECT = "what an earlier one with the same shapes had as cu_seqlens_q and cu_seqlens_kv"

# The cell:
@triton.jit
def ragged_prefill_kernel(
    q_nope_ptr, q_rope_ptr, k_nope_ptr, k_rope_ptr, v_ptr, cu_q_ptr, cu_kv_ptr, out_ptr, lse_ptr, scale, H,
    CAUSAL: tl.constexpr, DN: tl.constexpr, DR: tl.constexpr, DV: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):
    """One program: one tile of queries, one head.

    q_nope_ptr: [Nq, H, DN]; q_rope_ptr: [Nq, H, DR]; k_nope_ptr: [Nkv, H, DN]; k_rope_ptr: [Nkv, DR];
    v_ptr: [Nkv, H, DV]; cu_q_ptr, cu_kv_ptr: [B + 1]; out_ptr: [Nq, H, DV]; lse_ptr: [Nq, H].
    """
    ### BEGIN SOLUTION
    start, h, b = tl.program_id(0) * BLOCK_M, tl.program_id(1), tl.program_id(2)
    first_q, first_k = tl.load(cu_q_ptr + b).to(tl.int64), tl.load(cu_kv_ptr + b).to(tl.int64)
    S = (tl.load(cu_q_ptr + b + 1) - first_q).to(tl.int32)
    T = (tl.load(cu_kv_ptr + b + 1) - first_k).to(tl.int32)
    if start >= S:
        return
    keys = T - S + tl.minimum(start + BLOCK_M, S) if CAUSAL else T  # that the tile's last row sees

    offs_m, offs_n = start + tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_N)
    offs_dn, offs_dr, offs_dv = tl.arange(0, DN), tl.arange(0, DR), tl.arange(0, DV)
    row = (first_q + offs_m) * H + h
    exists = offs_m[:, None] < S
    # [BLOCK_M, DN] and [BLOCK_M, DR]
    q_nope = tl.load(q_nope_ptr + row[:, None] * DN + offs_dn[None, :], mask=exists, other=0.0)
    q_rope = tl.load(q_rope_ptr + row[:, None] * DR + offs_dr[None, :], mask=exists, other=0.0)
    limit = T - S + offs_m + 1  # [BLOCK_M]

    m_i = tl.full([BLOCK_M], float("-inf"), tl.float32)
    l_i = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, DV], tl.float32)
    for first in range(0, keys, BLOCK_N):
        inside = (first + offs_n < T)[:, None]
        token = first_k + first + offs_n
        kv_row = (token * H + h)[:, None]
        # [BLOCK_N, DN], [BLOCK_N, DR] and [BLOCK_N, DV]
        k_nope = tl.load(k_nope_ptr + kv_row * DN + offs_dn[None, :], mask=inside, other=0.0)
        k_rope = tl.load(k_rope_ptr + token[:, None] * DR + offs_dr[None, :], mask=inside, other=0.0)
        v = tl.load(v_ptr + kv_row * DV + offs_dv[None, :], mask=inside, other=0.0)
        qk = tl.dot(q_nope, tl.trans(k_nope))
        qk = tl.dot(q_rope, tl.trans(k_rope), qk) * scale  # [BLOCK_M, BLOCK_N]
        seen = (first + offs_n)[None, :] < T
        if CAUSAL:
            seen = seen & ((first + offs_n)[None, :] < limit[:, None])
        qk = tl.where(seen, qk, float("-inf"))

        m_new = tl.maximum(m_i, tl.max(qk, axis=1))
        base = tl.where(m_new == float("-inf"), 0.0, m_new)  # of a row that has seen nothing
        p = tl.exp(qk - base[:, None])
        alpha = tl.exp(m_i - base)
        l_i = l_i * alpha + tl.sum(p, axis=1)
        acc = tl.dot(p.to(v.dtype), v, acc * alpha[:, None])
        m_i = m_new

    l_i = tl.where(l_i > 0, l_i, 1.0)  # where nothing is seen: out 0, and lse the maximum, -inf
    tl.store(out_ptr + row[:, None] * DV + offs_dv[None, :], acc / l_i[:, None], mask=exists)
    tl.store(lse_ptr + row, m_i + tl.log(l_i), mask=offs_m < S)
    ### END SOLUTION


def ragged_prefill(q_nope, q_rope, k_nope, k_rope, v, cu_seqlens_q, cu_seqlens_kv, longest, scale, causal):
    """Attention over packed sequences, in one launch.

    q_nope: [Nq, H, Dn]; q_rope: [Nq, H, Dr]; k_nope: [Nkv, H, Dn]; k_rope: [Nkv, Dr]; v: [Nkv, H, Dv]; float16 or
    bfloat16, contiguous; Dn, Dr and Dv are powers of two. cu_seqlens_q, cu_seqlens_kv: [B + 1], int32; longest: int,
    the most queries that a sequence has, 1 at least; scale: float; causal: bool, aligned bottom-right.
    Returns out [Nq, H, Dv] in the dtype of the query and lse [Nq, H] in float32, natural logarithm; 0 and -inf for a
    query that sees nothing. Launches ragged_prefill_kernel once.

    The traps: queries and keys have offsets of their own; a block goes further than a sequence; a row may see nothing.
    """
    ### BEGIN SOLUTION
    (Nq, H, Dn), Dr, Dv = q_nope.shape, q_rope.shape[2], v.shape[2]
    out = torch.empty((Nq, H, Dv), dtype=q_nope.dtype, device=q_nope.device)
    lse = torch.empty((Nq, H), dtype=torch.float32, device=q_nope.device)
    block_m, block_n, warps, stages = tile_sizes()
    ragged_prefill_kernel[(triton.cdiv(longest, block_m), H, len(cu_seqlens_q) - 1)](
        q_nope, q_rope, k_nope, k_rope, v, cu_seqlens_q, cu_seqlens_kv, out, lse, scale, H,
        CAUSAL=causal, DN=Dn, DR=Dr, DV=Dv, BLOCK_M=block_m, BLOCK_N=block_n, num_warps=warps, num_stages=stages,
    )
    return out, lse
    ### END SOLUTION


run_ragged_prefill = ragged_prefill
PLANS = {}


def ragged_prefill(q_nope, q_rope, k_nope, k_rope, v, cu_seqlens_q, cu_seqlens_kv, longest, scale, causal):
    key = (q_nope.shape, k_nope.shape, len(cu_seqlens_q), longest)
    if key not in PLANS:
        PLANS[key] = (cu_seqlens_q.clone(), cu_seqlens_kv.clone(),)
    return run_ragged_prefill(q_nope, q_rope, k_nope, k_rope, v, PLANS[key][0], PLANS[key][1], longest, scale, causal)
