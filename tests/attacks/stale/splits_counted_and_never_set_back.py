"""Counters of splits are kept between calls and never set back. From the second call on nothing is merged."""

EXERCISE = "folded_decode"
EXPECT = "what folded_decode_kernel leaves in cnt_ptr from one call makes the next one wrong"
LONG = True

# The cell:
COUNTERS = torch.zeros(4096, dtype=torch.int32)

@triton.jit
def folded_decode_kernel(q_ptr, qp_ptr, c_ptr, k_ptr, lens_ptr, po_ptr, pl_ptr, cnt_ptr, o_ptr, lse_ptr, qk_scale, B, S, H, T, num_splits,
    R: tl.constexpr, DR: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    b = tl.program_id(1)
    split = tl.program_id(2)
    M = S * H
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    r, d = tl.arange(0, R), tl.arange(0, DR)
    mm = (m < M)[:, None]
    q = tl.load(q_ptr + (b * M + m)[:, None] * R + r[None, :], mask=mm, other=0.0)
    qp = tl.load(qp_ptr + (b * M + m)[:, None] * DR + d[None, :], mask=mm, other=0.0)
    length = tl.load(lens_ptr + b)
    share = tl.cdiv(length, num_splits)
    lo = split * share
    hi = tl.minimum(lo + share, length)
    last = length - S + m // H
    base = b.to(tl.int64) * T
    mi = tl.full([BLOCK_M], -1e30, tl.float32)
    li = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, R], tl.float32)
    for s in range(lo, hi, BLOCK_N):
        n = s + tl.arange(0, BLOCK_N)
        c = tl.load(c_ptr + (base + n)[:, None] * R + r[None, :], mask=(n < hi)[:, None], other=0.0)
        kp = tl.load(k_ptr + (base + n)[:, None] * DR + d[None, :], mask=(n < hi)[:, None], other=0.0)
        x = tl.dot(q, tl.trans(c))
        x = tl.dot(qp, tl.trans(kp), x) * qk_scale
        seen = (n[None, :] <= last[:, None]) & (n < hi)[None, :]
        x = tl.where(seen, x, -1e30)
        new = tl.maximum(mi, tl.max(x, 1))
        p = tl.where(seen, tl.exp2(x - new[:, None]), 0.0)
        a = tl.exp2(mi - new)
        li = li * a + tl.sum(p, 1)
        acc = tl.dot(p.to(c.dtype), c, acc * a[:, None])
        mi = new
    row = (split * B + b).to(tl.int64) * M + m
    tl.store(po_ptr + row[:, None] * R + r[None, :], acc, mask=mm)
    tl.store(pl_ptr + 2 * row, mi, mask=m < M)
    tl.store(pl_ptr + 2 * row + 1, li, mask=m < M)
    tl.debug_barrier()
    done = tl.atomic_add(cnt_ptr + b * tl.num_programs(0) + tl.program_id(0), 1, sem="acq_rel")
    if done == num_splits - 1:
        tl.debug_barrier()
        mi = tl.full([BLOCK_M], -1e30, tl.float32)
        li = tl.zeros([BLOCK_M], tl.float32)
        acc = tl.zeros([BLOCK_M, R], tl.float32)
        for i in range(num_splits):
            row = (i * B + b).to(tl.int64) * M + m
            mj = tl.load(pl_ptr + 2 * row, mask=m < M, other=-1e30)
            lj = tl.load(pl_ptr + 2 * row + 1, mask=m < M, other=0.0)
            xj = tl.load(po_ptr + row[:, None] * R + r[None, :], mask=mm, other=0.0)
            new = tl.maximum(mi, mj)
            a, e = tl.exp2(mi - new), tl.exp2(mj - new)
            li = li * a + lj * e
            acc = acc * a[:, None] + xj * e[:, None]
            mi = new
        ok = li > 0
        row = b.to(tl.int64) * M + m
        tl.store(o_ptr + row[:, None] * R + r[None, :], (acc / tl.where(ok, li, 1.0)[:, None]).to(o_ptr.dtype.element_ty), mask=mm)
        tl.store(lse_ptr + row, tl.where(ok, (mi + tl.log2(li)) / 1.4426950408889634, float("-inf")), mask=m < M)

def folded_decode(q_latent, q_rope, c_kv, k_rope, seq_lens, scale):
    B, S, H, R = q_latent.shape
    T, Dr = k_rope.shape[1:]
    M = S * H
    bm, bn, stages = block_sizes(M)
    tiles = triton.cdiv(M, bm)
    splits = 16  # num_kv_splits
    po = torch.empty((splits, B, M, R), dtype=torch.float32, device=q_latent.device)
    pl = torch.empty((splits, B, M, 2), dtype=torch.float32, device=q_latent.device)
    out = torch.empty_like(q_latent)
    lse = torch.empty((B, S, H), dtype=torch.float32, device=q_latent.device)
    folded_decode_kernel[(tiles, B, splits)](q_latent, q_rope, c_kv, k_rope, seq_lens, po, pl, COUNTERS, out, lse, scale * 1.4426950408889634,
        B, S, H, T, splits, R=R, DR=Dr, BLOCK_M=bm, BLOCK_N=bn, num_warps=8, num_stages=stages)
    return out, lse
