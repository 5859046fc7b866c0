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

from ._plan_hopper import PAIR, length_of, pairs_of, plan_part

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
def _ptrs(ptr, stride_s, stride_h, stride_d, offs_m, offs_d, H, FOLD: gl.constexpr, ALIGNED: gl.constexpr):
    """Return pointers to rows that fold query tokens and heads: [offs_m, offs_d]. ``ALIGNED``: to 16 bytes each 8."""
    s, h = offs_m * 0, offs_m
    if FOLD:  # without divisions where there is one query token
        s, h = offs_m // H, offs_m % H
    rows = s.to(gl.int64) * stride_s + h.to(gl.int64) * stride_h
    ptrs = ptr + rows[:, None] + offs_d.to(gl.int64)[None, :] * stride_d
    if ALIGNED:  # which the compiler does not know of arguments in a partition, and would move 2 bytes at a time
        ptrs = gl.max_contiguous(gl.multiple_of(ptrs, [1, 16]), [1, 8])
    return ptrs


@gluon.jit
def _count(plan):
    b_0, n_0, b_1, n_1 = plan
    return gl.where((b_0 == b_1) & (n_0 == n_1), 0, b_1 - b_0 + (n_1 > 0).to(gl.int32))


@gluon.jit
def _piece(i, length, plan, sizes, first_row, CAUSAL: gl.constexpr, FOLD: gl.constexpr):
    """Return piece i of a part: its sequence, its tokens, whether it begins a sequence, and whether it is all of one.

    The tokens are the first, where they end, where those end that all rows see, how many the first query sees, and how
    many pairs of blocks they are.
    """
    b_0, n_0, b_1, n_1 = plan
    S, H, _B, _T, num_splits = sizes
    b = b_0 + i
    end, seen_by_all, first_seen = length, length, length - S + 1  # the last: tokens that the first query attends to
    if CAUSAL and FOLD:
        end = gl.maximum(first_seen + (gl.minimum(first_row + BLOCK, S * H) - 1) // H, 0)
        seen_by_all = first_seen + first_row // H
    first, pairs = gl.where(i == 0, n_0, 0), pairs_of(length)
    last = gl.where(b == b_1, n_1, pairs)
    end = gl.minimum(end, PAIR * last)
    pairs_here = gl.maximum((end - PAIR * first + PAIR - 1) // PAIR, 1)
    tokens = PAIR * first, end, gl.minimum(seen_by_all, end), first_seen, pairs_here
    return b, tokens, first == 0, (first == 0) & (last == pairs) & (num_splits < 2)


@gluon.jit
def _next(i, work, q_rope_ptr, strides, FOLD: gl.constexpr, ALIGNED: gl.constexpr):
    """Return the length of the sequence of piece i, and q_rope in registers: what has to be waited for."""
    plan, sizes, seq_lens_ptr, block = work
    first_row, rows, H = block
    first_row += i >> 24  # by 0, as in _finish
    b = gl.minimum(plan[0] + i, sizes[2] - 1)
    length = length_of(seq_lens_ptr, b, sizes[3])
    offs_q = first_row + gl.arange(0, BLOCK, layout=gl.SliceLayout(1, Q_OPERAND))
    offs_d = gl.arange(0, DR, layout=gl.SliceLayout(0, Q_OPERAND))
    ptr = q_rope_ptr + b.to(gl.int64) * strides[0]
    ptrs = _ptrs(ptr, strides[1], strides[2], strides[3], offs_q, offs_d, H, FOLD, ALIGNED)
    return length, gl.load(ptrs, mask=(offs_q < rows)[:, None], other=0.0)


@gluon.jit
def _begin(block, end, first_seen, CAUSAL: gl.constexpr, FOLD: gl.constexpr):
    """Return how many tokens each row attends to, and acc, m_i and l_i of no token."""
    first_row, _rows, H = block
    offs_m = first_row + gl.arange(0, BLOCK, layout=ROW)
    seen = offs_m * 0 + end
    if CAUSAL and FOLD:
        seen = gl.minimum(first_seen + offs_m // H, end)
    m_i, l_i = gl.full([BLOCK], float("-inf"), gl.float32, ROW), gl.zeros([BLOCK], gl.float32, ROW)
    return seen, (gl.zeros([BLOCK, HALF], gl.float32, ACC), m_i, l_i)


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
def _even(q, q_rope, k, p, bars, sums, seen, tokens, count, scale):
    """Score the even blocks of a piece, sum up the left half of the values of all."""
    q_left, q_right, _q_rope_ptr, _q_strides = q
    left, right, rope = k
    p_even, p_odd, m_even, m_odd, _l_parts = p
    full, free, ready, _done, _q_full, q_free = bars
    start, end, seen_by_all, _first_seen, pairs = tokens
    acc, m_i, l_i = sums
    for i in range(count, count + pairs):
        start_n, phase = start + PAIR * (i - count), i & 1
        zero = i >> 24  # a constant would have the addresses of all operands computed before the loop, and spilled
        qk = _scores(
            q_left.index(zero), q_right.index(zero), q_rope, left.index(zero), right.index(zero), rope.index(zero),
            full.index(0), full.index(1), phase,
        )  # fmt: skip
        qk = _masked(warpgroup_mma_wait(0, deps=(qk,)), start_n, seen, seen_by_all)
        mbarrier.arrive(q_free, pred=i == count + pairs - 1)
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
    return acc, m_i, l_i


@gluon.jit
def _odd(q, q_rope, k, p, bars, sums, seen, tokens, count, scale):
    """Score the odd blocks of a piece, sum up the right half of the values of all."""
    q_left, q_right, _q_rope_ptr, _q_strides = q
    left, right, rope = k
    p_even, p_odd, m_even, m_odd, _l_parts = p
    full, free, ready, _done, _q_full, q_free = bars
    start, end, seen_by_all, _first_seen, pairs = tokens
    acc, m_i, l_i = sums
    for i in range(count, count + pairs):
        start_n, phase = start + PAIR * (i - count), i & 1
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
        mbarrier.arrive(q_free, pred=i == count + pairs - 1)
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
    return acc, m_i, l_i


@gluon.jit
def _halves(x):
    return x.reshape([BLOCK, 2, x.shape[1] // 2]).permute((0, 2, 1)).split()


@gluon.jit
def _quarters(x):
    """Return the columns of [64, 256] in four blocks."""
    left, right = _halves(x)
    return _halves(left) + _halves(right)


@gluon.jit
def _finish(
    sums, PART: gl.constexpr, p, done, piece, results, b, begins, whole, block,
    FOLD: gl.constexpr, ALIGNED: gl.constexpr, TWO: gl.constexpr,
):  # fmt: skip
    """Write what this warpgroup summed up: a result if it is all of a sequence, else for the merging."""
    acc, m_i, l_i = sums
    staging, l_parts = p[PART], p[4]  # the weights of this warpgroup, which nobody reads any more
    first_row, rows, H = block
    first_row += piece >> 24  # by 0: else all addresses would be computed before the first piece, and spilled
    out, lse, part_ptr, part_lse_ptr, part = results
    l_parts.index(PART).store(l_i)
    mbarrier.arrive(done)
    mbarrier.wait(done, piece & 1)
    total = l_parts.index(0).load(ROW) + l_parts.index(1).load(ROW)
    total = gl.where(total == 0.0, 1.0, total)
    result = acc * gl.convert_layout(1.0 / total, ACC_ROW)[:, None]
    natural = (m_i + gl.log2(total)) * LN_2
    if whole:
        b_64 = b.to(gl.int64)
        quarters = _quarters(result.to(staging.dtype))
        layout: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])  # 16 bytes a thread, where they belong
        offs_m = first_row + gl.arange(0, BLOCK, layout=gl.SliceLayout(1, layout))
        for j in gl.static_range(4):
            offs_d = HALF * PART + 64 * j + gl.arange(0, 64, layout=gl.SliceLayout(0, layout))
            staging.store(quarters[j])
            ptrs = _ptrs(out[0] + b_64 * out[1], out[2], out[3], out[4], offs_m, offs_d, H, FOLD, ALIGNED)
            gl.store(ptrs, staging.load(layout), mask=(offs_m < rows)[:, None])
        if PART == 0:
            offs_r = first_row + gl.arange(0, BLOCK, layout=ROW)
            s, h = offs_r * 0, offs_r
            if FOLD:
                s, h = offs_r // H, offs_r % H
            ptrs_r = lse[0] + b_64 * lse[1] + s.to(gl.int64) * lse[2] + h.to(gl.int64) * lse[3]
            gl.store(ptrs_r, natural, mask=offs_r < rows)
    else:
        place = part
        if TWO:
            place = 2 * part + begins.to(gl.int32)
        at = place.to(gl.int64) * rows + first_row
        offs_p = gl.arange(0, BLOCK, layout=ACC_ROW)
        offs_f = HALF * PART + gl.arange(0, HALF, layout=gl.SliceLayout(0, ACC))
        part_ptrs = part_ptr + at * R + offs_p[:, None] * R + offs_f[None, :]
        gl.store(part_ptrs, result, mask=(first_row + offs_p < rows)[:, None])
        if PART == 0:
            offs_l = gl.arange(0, BLOCK, layout=ROW)
            gl.store(part_lse_ptr + at + offs_l, natural, mask=first_row + offs_l < rows)


@gluon.jit
def _attend(
    given, PART: gl.constexpr, CAUSAL: gl.constexpr, FOLD: gl.constexpr, ALIGNED: gl.constexpr, TWO: gl.constexpr,
):  # fmt: skip
    """Attend to all pieces of this program's part: what each of the two warpgroups does."""
    q, k, p, bars, results, work, scale = given
    _q_left, _q_right, q_rope_ptr, q_strides = q
    plan, sizes, _seq_lens_ptr, block = work
    _full, _free, _ready, done, q_full, _q_free = bars
    count = 0  # pairs so far, for the phases
    length, q_rope = _next(0, work, q_rope_ptr, q_strides, FOLD, ALIGNED)
    for piece in range(_count(plan)):
        b, tokens, begins, whole = _piece(piece, length, plan, sizes, block[0], CAUSAL, FOLD)
        _start, end, _seen_by_all, first_seen, pairs = tokens
        seen, sums = _begin(block, end, first_seen, CAUSAL, FOLD)
        mbarrier.wait(q_full, piece & 1)
        if PART == 0:
            sums = _even(q, q_rope, k, p, bars, sums, seen, tokens, count, scale)
        else:
            sums = _odd(q, q_rope, k, p, bars, sums, seen, tokens, count, scale)
        length, q_rope = _next(piece + 1, work, q_rope_ptr, q_strides, FOLD, ALIGNED)  # while the rest is done
        _finish(sums, PART, p, done, piece, results, b, begins, whole, block, FOLD, ALIGNED, TWO)
        count += pairs


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
    q_desc, q_step, c_kv_desc, k_rope_desc, q, k, bars, work, block_table_ptr, stride_tb, stride_tp,
    c_kv_rows, k_rope_rows, CAUSAL: gl.constexpr, FOLD: gl.constexpr, PAGE_SIZE: gl.constexpr,
):  # fmt: skip
    """Bring blocks to shared memory as soon as there is room for them, in halves: those of the next piece, too."""
    q_left, q_right, _q_rope_ptr, _q_strides = q
    left, right, rope = k
    full, free, _ready, _done, q_full, q_free = bars
    plan, sizes, seq_lens_ptr, block = work
    first_row = block[0]
    count = 0
    for piece in range(_count(plan)):
        length = length_of(seq_lens_ptr, plan[0] + piece, sizes[3])
        b, tokens, _begins, _whole = _piece(piece, length, plan, sizes, first_row, CAUSAL, FOLD)
        start, end, _seen_by_all, _first_seen, pairs = tokens
        pages = b  # where there is no table, the page is the sequence
        if PAGE_SIZE > 0:
            pages = block_table_ptr + b.to(gl.int64) * stride_tb
        page, slot = _place(pages, stride_tp, b, start, end, PAGE_SIZE)
        for i in range(2 * pairs):
            j, phase = i & 1, (count + (i >> 1) & 1) ^ 1
            row, rope_row = page * c_kv_rows + slot, page * k_rope_rows + slot
            page, slot = _place(pages, stride_tp, b, start + BLOCK * (i + 1), end, PAGE_SIZE)  # one ahead
            mbarrier.wait(free.index(2 * j), phase)
            mbarrier.expect(full.index(2 * j), BLOCK * (HALF + DR) * 2)
            tma.async_copy_global_to_shared(k_rope_desc, [rope_row, 0], full.index(2 * j), rope.index(j))
            tma.async_copy_global_to_shared(c_kv_desc, [row, 0], full.index(2 * j), left.index(j))
            mbarrier.wait(free.index(2 * j + 1), phase)
            mbarrier.expect(full.index(2 * j + 1), BLOCK * HALF * 2)
            tma.async_copy_global_to_shared(c_kv_desc, [row, HALF], full.index(2 * j + 1), right.index(j))
            if i == 0:
                mbarrier.wait(q_free, (piece & 1) ^ 1)
                mbarrier.expect(q_full, BLOCK * R * 2)
                row, column = b * q_step[0] + first_row, b * q_step[1]
                tma.async_copy_global_to_shared(q_desc, [row, column], q_full, q_left.index(0))
                tma.async_copy_global_to_shared(q_desc, [row, column + HALF], q_full, q_right.index(0))
        count += pairs


@gluon.jit(
    do_not_specialize=["B", "S", "H", "T", "q_rows", "q_columns", "c_kv_rows", "k_rope_rows", "parts", "num_splits"]
)  # which differ from batch to batch
def latent_attention_hopper(
    q_desc, q_rope_ptr, c_kv_desc, k_rope_desc, seq_lens_ptr, block_table_ptr,
    out_ptr, lse_ptr, part_ptr, part_lse_ptr, begin_ptr,
    scale, B, S, H, T, q_rows, q_columns, c_kv_rows, k_rope_rows, parts, num_splits,
    stride_rb, stride_rs, stride_rh, stride_rd, stride_tb, stride_tp,
    stride_ob, stride_os, stride_oh, stride_od, stride_lb, stride_ls, stride_lh,
    CAUSAL: gl.constexpr, FOLD: gl.constexpr, PAGE_SIZE: gl.constexpr, ALIGNED: gl.constexpr, BLOCK_B: gl.constexpr,
):  # fmt: skip
    """Attend with a block of rows to a part of the batch's tokens: a program of two warpgroups, and one that loads."""
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
    q_full = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    q_free = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    rows = S * H
    blocks = (rows + BLOCK - 1) // BLOCK
    part, first_row = gl.program_id(0) // blocks, gl.program_id(0) % blocks * BLOCK
    # Before the mbarriers, which have all warps meet: Triton 3.6 stores what partitions are given where warps may still
    # read the plan's sums.
    plan = plan_part(part, parts, seq_lens_ptr, B, T, num_splits, BLOCK_B)
    for j in gl.static_range(4):
        mbarrier.init(full.index(j), count=1)
        mbarrier.init(free.index(j), count=1)
        mbarrier.init(ready.index(j), count=1)
    mbarrier.init(done, count=2)
    mbarrier.init(q_full, count=1)
    mbarrier.init(q_free, count=2)

    if first_row == 0:  # for the kernel that merges
        gl.store(begin_ptr + 2 * part, plan[0])
        gl.store(begin_ptr + 2 * part + 1, plan[1])
        gl.store(begin_ptr + 2 * part + 2, plan[2])
        gl.store(begin_ptr + 2 * part + 3, plan[3])

    if _count(plan) == 0:  # a part of a sequence that has nothing to do
        offs_m = first_row + gl.arange(0, BLOCK, layout=gl.BlockedLayout([1], [32], [4], [0]))
        place = part
        if BLOCK_B > 0:
            place = 2 * part
        if (BLOCK_B == 0) | (plan[1] > 0):
            lse_ptrs = part_lse_ptr + place.to(gl.int64) * rows + offs_m
            gl.store(lse_ptrs, gl.full_like(offs_m, float("-inf"), dtype=gl.float32), mask=offs_m < rows)

    q = q_left, q_right, q_rope_ptr, (stride_rb, stride_rs, stride_rh, stride_rd)
    k, p = (left, right, rope), (p_even, p_odd, m_even, m_odd, l_parts)
    bars = full, free, ready, done, q_full, q_free
    out, lse = (out_ptr, stride_ob, stride_os, stride_oh, stride_od), (lse_ptr, stride_lb, stride_ls, stride_lh)
    results = out, lse, part_ptr, part_lse_ptr, part
    work = plan, (S, H, B, T, num_splits), seq_lens_ptr, (first_row, rows, H)
    given = q, k, p, bars, results, work, scale
    # 240 registers a thread for the second warpgroup and 24 for the loader leave the first 240. Constants are written
    # out here: as a part of a tuple that has a name they would be variables.
    gl.warp_specialize(
        [
            (_attend, (given, 0, CAUSAL, FOLD, ALIGNED, BLOCK_B > 0)),
            (_attend, (given, 1, CAUSAL, FOLD, ALIGNED, BLOCK_B > 0)),
            (
                _load,
                (q_desc, (q_rows, q_columns), c_kv_desc, k_rope_desc, q, k, bars, work, block_table_ptr,
                 stride_tb, stride_tp, c_kv_rows, k_rope_rows, CAUSAL, FOLD, PAGE_SIZE),
            ),
        ],
        [4, 4],
        [240, 24],
    )  # fmt: skip
