"""The Gluon kernel of :mod:`mla_ref.kernels.decode_hopper`, which says how it works."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

# Rows of queries and tokens of a block, latent dimensions and half of them: what a warpgroup sums up.
BLOCK = gl.constexpr(64)
R = gl.constexpr(512)
HALF = gl.constexpr(256)
DR = gl.constexpr(64)
LN_2 = gl.constexpr(0.6931471805599453)

# Registers hold the scores [64, 64] and a half of the accumulator [64, 256] of one warpgroup.
QK = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16]))
ACC = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 256, 16]))
ROW = gl.constexpr(gl.SliceLayout(1, QK))
ACC_ROW = gl.constexpr(gl.SliceLayout(1, ACC))
P_OPERAND = gl.constexpr(gl.DotOperandLayout(0, ACC, 2))
Q_OPERAND = gl.constexpr(gl.DotOperandLayout(0, QK, 2))


@gluon.jit
def _finite(m):
    return gl.where(m == float("-inf"), 0.0, m)


@gluon.jit
def _ptrs(ptr, stride_s, stride_h, stride_d, offs_m, offs_d, H, FOLD: gl.constexpr):
    """Return pointers to rows that fold query tokens and heads: [offs_m, offs_d]."""
    s, h = offs_m * 0, offs_m
    if FOLD:  # without divisions where there is one query token
        s, h = offs_m // H, offs_m % H
    rows = s.to(gl.int64) * stride_s + h.to(gl.int64) * stride_h
    return ptr + rows[:, None] + offs_d.to(gl.int64)[None, :] * stride_d


@gluon.jit
def _begin(q_rope_ptr, strides, block, end, first_seen, CAUSAL: gl.constexpr, FOLD: gl.constexpr):
    """Return q_rope in registers, how many tokens each row attends to, and acc, m_i and l_i of no token."""
    first_row, rows, H = block
    offs_q = first_row + gl.arange(0, BLOCK, layout=gl.SliceLayout(1, Q_OPERAND))
    offs_d = gl.arange(0, DR, layout=gl.SliceLayout(0, Q_OPERAND))
    ptrs = _ptrs(q_rope_ptr, strides[0], strides[1], strides[2], offs_q, offs_d, H, FOLD)
    q_rope = gl.load(ptrs, mask=(offs_q < rows)[:, None], other=0.0)
    offs_m = first_row + gl.arange(0, BLOCK, layout=ROW)
    seen = offs_m * 0 + end
    if CAUSAL and FOLD:
        seen = gl.minimum(first_seen + offs_m // H, end)
    m_i, l_i = gl.full([BLOCK], float("-inf"), gl.float32, ROW), gl.zeros([BLOCK], gl.float32, ROW)
    return q_rope, seen, gl.zeros([BLOCK, HALF], gl.float32, ACC), m_i, l_i


@gluon.jit
def _scores(q_left, q_right, q_rope, left, right, rope, full_left, full_right, phase):
    """Start the products of a block of tokens: [64, 64], none of which is done when this returns."""
    qk = gl.zeros([BLOCK, BLOCK], gl.float32, QK)
    mbarrier.wait(full_left, phase)
    qk = warpgroup_mma(q_rope, rope.permute((1, 0)), qk, use_acc=False, is_async=True)
    qk = warpgroup_mma(q_left, left.permute((1, 0)), qk, is_async=True)
    mbarrier.wait(full_right, phase)
    return warpgroup_mma(q_right, right.permute((1, 0)), qk, is_async=True)


@gluon.jit
def _masked(qk, start_n, seen, seen_by_all):
    if start_n + BLOCK > seen_by_all:
        offs_n = start_n + gl.arange(0, BLOCK, layout=gl.SliceLayout(0, QK))
        qk = gl.where(offs_n[None, :] < seen[:, None], qk, float("-inf"))
    return qk


@gluon.jit
def _scaled(acc, alpha):
    return acc * gl.convert_layout(alpha, ACC_ROW)[:, None]


@gluon.jit
def _clear_tail(values, start_n, end):
    """Write zeros where no token is: the cache may hold NaN there, which a weight of 0 does not take away."""
    if start_n + BLOCK > end:
        layout: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
        inside = start_n + gl.arange(0, BLOCK, layout=gl.SliceLayout(1, layout)) < end
        for j in gl.static_range(HALF // 64):
            part = values.slice(64 * j, 64, dim=1)
            part.store(gl.where(inside[:, None], part.load(layout), 0.0).to(values.dtype))
        fence_async_shared()


@gluon.jit
def _even(given, CAUSAL: gl.constexpr, FOLD: gl.constexpr):
    """Score the even blocks, sum up the left half of the values of all."""
    q, k, p, bars, out, lse, block, tokens, scale = given
    q_left, q_right, q_rope_ptr, q_strides = q
    left, right, rope = k
    p_even, p_odd, m_even, m_odd, l_parts = p
    full, free, ready, done = bars
    start, end, seen_by_all, first_seen, pairs = tokens
    q_rope, seen, acc, m_i, l_i = _begin(q_rope_ptr, q_strides, block, end, first_seen, CAUSAL, FOLD)
    for i in range(pairs):
        start_n, phase = start + 2 * BLOCK * i, i & 1
        zero = (
            i >> 24
        )  # is 0: a constant would have the addresses of all operands computed before the loop, and spilled
        qk = _scores(
            q_left.index(zero), q_right.index(zero), q_rope, left.index(zero), right.index(zero), rope.index(zero),
            full.index(0), full.index(1), phase,
        )  # fmt: skip
        qk = _masked(warpgroup_mma_wait(0, deps=(qk,)), start_n, seen, seen_by_all)
        m_ij = gl.maximum(m_i, gl.max(qk, 1) * scale)
        m_even.store(m_ij)
        mbarrier.arrive(ready.index(0))
        probs = gl.exp2(qk * scale - _finite(m_ij)[:, None])
        weights = probs.to(q_left.dtype)
        p_even.store(weights)
        alpha = gl.exp2(m_i - _finite(m_ij))
        acc = _scaled(acc, alpha)  # while the stores are on their way
        fence_async_shared()
        mbarrier.arrive(ready.index(1))
        _clear_tail(left.index(0), start_n, end)
        acc = warpgroup_mma(gl.convert_layout(weights, P_OPERAND), left.index(0), acc, is_async=True)
        l_i = l_i * alpha + gl.sum(probs, 1)
        acc = warpgroup_mma_wait(0, deps=(acc,))
        mbarrier.arrive(free.index(0))

        mbarrier.wait(ready.index(2), phase)
        m_i = m_odd.load(ROW)
        alpha = gl.exp2(m_ij - _finite(m_i))
        l_i, acc = l_i * alpha, _scaled(acc, alpha)
        _clear_tail(left.index(1), start_n + BLOCK, end)
        mbarrier.wait(ready.index(3), phase)
        acc = warpgroup_mma(p_odd, left.index(1), acc, is_async=True)
        acc = warpgroup_mma_wait(0, deps=(acc,))
        mbarrier.arrive(free.index(2))
    _finish(acc, l_i, m_i, 0, l_parts, done, out, lse, block, FOLD)


@gluon.jit
def _odd(given, CAUSAL: gl.constexpr, FOLD: gl.constexpr):
    """Score the odd blocks, sum up the right half of the values of all."""
    q, k, p, bars, out, lse, block, tokens, scale = given
    q_left, q_right, q_rope_ptr, q_strides = q
    left, right, rope = k
    p_even, p_odd, m_even, m_odd, l_parts = p
    full, free, ready, done = bars
    start, end, seen_by_all, first_seen, pairs = tokens
    q_rope, seen, acc, m_i, l_i = _begin(q_rope_ptr, q_strides, block, end, first_seen, CAUSAL, FOLD)
    for i in range(pairs):
        start_n, phase = start + 2 * BLOCK * i, i & 1
        mbarrier.wait(ready.index(0), phase)
        m_ij = m_even.load(ROW)
        alpha = gl.exp2(m_i - _finite(m_ij))
        l_i, acc = l_i * alpha, _scaled(acc, alpha)
        _clear_tail(right.index(0), start_n, end)
        zero = i >> 24
        qk = _scores(
            q_left.index(zero), q_right.index(zero), q_rope, left.index(zero + 1), right.index(zero + 1),
            rope.index(zero + 1), full.index(2), full.index(3), phase,
        )  # fmt: skip
        mbarrier.wait(ready.index(1), phase)
        acc = warpgroup_mma(p_even, right.index(0), acc, is_async=True)  # which runs during the softmax
        qk = _masked(warpgroup_mma_wait(1, deps=(qk,)), start_n + BLOCK, seen, seen_by_all)
        m_i = gl.maximum(m_ij, gl.max(qk, 1) * scale)
        m_odd.store(m_i)
        mbarrier.arrive(ready.index(2))
        probs = gl.exp2(qk * scale - _finite(m_i)[:, None])
        weights = probs.to(q_left.dtype)
        p_odd.store(weights)
        alpha = gl.exp2(m_ij - _finite(m_i))
        l_i = l_i * alpha + gl.sum(probs, 1)
        acc = warpgroup_mma_wait(0, deps=(acc,))
        fence_async_shared()
        mbarrier.arrive(ready.index(3))
        mbarrier.arrive(free.index(1))
        acc = _scaled(acc, alpha)
        _clear_tail(right.index(1), start_n + BLOCK, end)
        acc = warpgroup_mma(gl.convert_layout(weights, P_OPERAND), right.index(1), acc, is_async=True)
        acc = warpgroup_mma_wait(0, deps=(acc,))
        mbarrier.arrive(free.index(3))
    _finish(acc, l_i, m_i, 1, l_parts, done, out, lse, block, FOLD)


@gluon.jit
def _finish(acc, l_i, m_i, PART: gl.constexpr, l_parts, done, out, lse, block, FOLD: gl.constexpr):
    first_row, rows, H = block
    l_parts.index(PART).store(l_i)
    mbarrier.arrive(done)
    mbarrier.wait(done, 0)
    total = l_parts.index(0).load(ROW) + l_parts.index(1).load(ROW)
    total = gl.where(total == 0.0, 1.0, total)
    offs_m = first_row + gl.arange(0, BLOCK, layout=ACC_ROW)
    offs_d = HALF * PART + gl.arange(0, HALF, layout=gl.SliceLayout(0, ACC))
    result = acc / gl.convert_layout(total, ACC_ROW)[:, None]
    ptrs = _ptrs(out[0], out[1], out[2], out[3], offs_m, offs_d, H, FOLD)
    gl.store(ptrs, result.to(out[0].dtype.element_ty), mask=(offs_m < rows)[:, None])
    if PART == 0:
        offs_r = first_row + gl.arange(0, BLOCK, layout=ROW)
        s, h = offs_r * 0, offs_r
        if FOLD:
            s, h = offs_r // H, offs_r % H
        ptrs_r = lse[0] + s.to(gl.int64) * lse[1] + h.to(gl.int64) * lse[2]
        gl.store(ptrs_r, (m_i + gl.log2(total)) * LN_2, mask=offs_r < rows)


@gluon.jit
def _place(block_table_ptr, stride_tp, b, start_n, end, PAGE_SIZE: gl.constexpr):
    """Return page and slot of a block of tokens; of one beyond the end, which no row attends to, those of the last."""
    start_n = gl.maximum(gl.minimum(start_n, (end - 1) // BLOCK * BLOCK), 0)
    page, slot = b, start_n
    if PAGE_SIZE > 0:
        page = gl.load(block_table_ptr + start_n // PAGE_SIZE * stride_tp, mask=start_n < end, other=0).to(gl.int32)
        slot = start_n % PAGE_SIZE
    return page, slot


@gluon.jit
def _load(
    c_kv_desc, k_rope_desc, k, bars, tokens, block_table_ptr, stride_tp, b, c_kv_rows, k_rope_rows,
    PAGE_SIZE: gl.constexpr,
):  # fmt: skip
    """Bring blocks to shared memory as soon as there is room for them, in halves."""
    left, right, rope = k
    full, free, _, _ = bars
    start, end, _, _, pairs = tokens
    page, slot = _place(block_table_ptr, stride_tp, b, start, end, PAGE_SIZE)
    for i in range(2 * pairs):
        j, phase = i & 1, (i >> 1 & 1) ^ 1
        row, rope_row = page * c_kv_rows + slot, page * k_rope_rows + slot
        page, slot = _place(block_table_ptr, stride_tp, b, start + BLOCK * (i + 1), end, PAGE_SIZE)  # one ahead
        mbarrier.wait(free.index(2 * j), phase)
        mbarrier.expect(full.index(2 * j), BLOCK * (HALF + DR) * 2)
        tma.async_copy_global_to_shared(k_rope_desc, [rope_row, 0], full.index(2 * j), rope.index(j))
        tma.async_copy_global_to_shared(c_kv_desc, [row, 0], full.index(2 * j), left.index(j))
        mbarrier.wait(free.index(2 * j + 1), phase)
        mbarrier.expect(full.index(2 * j + 1), BLOCK * HALF * 2)
        tma.async_copy_global_to_shared(c_kv_desc, [row, HALF], full.index(2 * j + 1), right.index(j))


@gluon.jit(
    do_not_specialize=["S", "H", "T", "c_kv_rows", "k_rope_rows", "num_splits"]
)  # which differ from batch to batch
def latent_attention_hopper(
    q_latent_ptr, q_rope_ptr, c_kv_desc, k_rope_desc, seq_lens_ptr, block_table_ptr, out_ptr, lse_ptr,
    scale, S, H, T, c_kv_rows, k_rope_rows, num_splits,
    stride_qb, stride_qs, stride_qh, stride_qd, stride_rb, stride_rs, stride_rh, stride_rd, stride_tb, stride_tp,
    stride_op, stride_ob, stride_os, stride_oh, stride_od, stride_lp, stride_lb, stride_ls, stride_lh,
    CAUSAL: gl.constexpr, FOLD: gl.constexpr, PAGE_SIZE: gl.constexpr,
):  # fmt: skip
    """Attend with a block of rows to a share of a sequence: a program of two warpgroups, and one that loads."""
    dtype: gl.constexpr = c_kv_desc.dtype
    q_left = gl.allocate_shared_memory(dtype, [1, BLOCK, HALF], c_kv_desc.layout)
    q_right = gl.allocate_shared_memory(dtype, [1, BLOCK, HALF], c_kv_desc.layout)
    left = gl.allocate_shared_memory(dtype, [2, BLOCK, HALF], c_kv_desc.layout)
    right = gl.allocate_shared_memory(dtype, [2, BLOCK, HALF], c_kv_desc.layout)
    rope = gl.allocate_shared_memory(dtype, [2, BLOCK, DR], k_rope_desc.layout)
    p_even = gl.allocate_shared_memory(dtype, [BLOCK, BLOCK], k_rope_desc.layout)
    p_odd = gl.allocate_shared_memory(dtype, [BLOCK, BLOCK], k_rope_desc.layout)
    vector: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    m_even = gl.allocate_shared_memory(gl.float32, [BLOCK], vector)
    m_odd = gl.allocate_shared_memory(gl.float32, [BLOCK], vector)
    l_parts = gl.allocate_shared_memory(gl.float32, [2, BLOCK], vector)
    full = gl.allocate_shared_memory(gl.int64, [4, 1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [4, 1], mbarrier.MBarrierLayout())
    ready = gl.allocate_shared_memory(gl.int64, [4, 1], mbarrier.MBarrierLayout())
    done = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    for j in gl.static_range(4):
        mbarrier.init(full.index(j), count=1)
        mbarrier.init(free.index(j), count=1)
        mbarrier.init(ready.index(j), count=1)
    mbarrier.init(done, count=2)

    pid, rows = gl.program_id(0), S * H
    blocks = (rows + BLOCK - 1) // BLOCK
    split, b, first_row = pid // blocks % num_splits, pid // blocks // num_splits, pid % blocks * BLOCK
    length = T
    if seq_lens_ptr is not None:
        length = gl.maximum(gl.minimum(gl.load(seq_lens_ptr + b), T), 0).to(gl.int32)
    end, seen_by_all, first_seen = length, length, length - S + 1  # the last: tokens that the first query attends to
    if CAUSAL and FOLD:
        end = gl.maximum(first_seen + (gl.minimum(first_row + BLOCK, rows) - 1) // H, 0)
        seen_by_all = first_seen + first_row // H
    share = ((end + BLOCK - 1) // BLOCK + num_splits - 1) // num_splits * BLOCK
    start = share * split
    end = gl.minimum(start + share, end)
    pairs = gl.maximum(end - start + 2 * BLOCK - 1, 2 * BLOCK) // (2 * BLOCK)  # one, if there is no token

    layout: gl.constexpr = gl.BlockedLayout([1, 8], [2, 16], [4, 1], [1, 0])
    offs_m = first_row + gl.arange(0, BLOCK, layout=gl.SliceLayout(1, layout))
    b_64, split = b.to(gl.int64), split.to(gl.int64)
    for j in gl.static_range(R // 128):
        offs_d = 128 * j + gl.arange(0, 128, layout=gl.SliceLayout(0, layout))
        ptrs = _ptrs(q_latent_ptr + b_64 * stride_qb, stride_qs, stride_qh, stride_qd, offs_m, offs_d, H, FOLD)
        part = gl.load(ptrs, mask=(offs_m < rows)[:, None], other=0.0)
        if j < 2:
            q_left.index(0).slice(128 * j, 128, dim=1).store(part)
        else:
            q_right.index(0).slice(128 * j - HALF, 128, dim=1).store(part)
    fence_async_shared()

    q = q_left, q_right, q_rope_ptr + b_64 * stride_rb, (stride_rs, stride_rh, stride_rd)
    k, p, bars = (left, right, rope), (p_even, p_odd, m_even, m_odd, l_parts), (full, free, ready, done)
    out = out_ptr + split * stride_op + b_64 * stride_ob, stride_os, stride_oh, stride_od
    lse = lse_ptr + split * stride_lp + b_64 * stride_lb, stride_ls, stride_lh
    block, tokens = (first_row, rows, H), (start, end, gl.minimum(seen_by_all, end), first_seen, pairs)
    pages = b  # where there is no table, the page is the sequence
    if PAGE_SIZE > 0:
        pages = block_table_ptr + b_64 * stride_tb
    given = q, k, p, bars, out, lse, block, tokens, scale
    # 240 registers a thread for the second warpgroup and 24 for the loader leave the first 240. Constants are written
    # out here: as a part of a tuple that has a name they would be variables.
    gl.warp_specialize(
        [
            (_even, (given, CAUSAL, FOLD)),
            (_odd, (given, CAUSAL, FOLD)),
            (_load, (c_kv_desc, k_rope_desc, k, bars, tokens, pages, stride_tp, b, c_kv_rows, k_rope_rows, PAGE_SIZE)),
        ],
        [4, 4],
        [240, 24],
    )
