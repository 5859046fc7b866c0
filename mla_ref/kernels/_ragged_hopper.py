"""The Gluon kernel of :mod:`mla_ref.kernels.ragged_hopper`, which says how it works."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

# Rows of a warpgroup and of a program, tokens of a block; widths of a key's parts and of a value.
ROWS = gl.constexpr(64)
BLOCK_M = gl.constexpr(128)
BLOCK_N = gl.constexpr(128)
D = gl.constexpr(128)
REST = gl.constexpr(64)
DV = gl.constexpr(128)
LN_2 = gl.constexpr(0.6931471805599453)

# Registers hold the scores [64, 128] and the accumulator [64, 128] of one warpgroup.
ACC = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 128, 16]))
ROW = gl.constexpr(gl.SliceLayout(1, ACC))
COLUMN = gl.constexpr(gl.SliceLayout(0, ACC))
P_OPERAND = gl.constexpr(gl.DotOperandLayout(0, ACC, 2))


@gluon.jit
def _finite(m):
    return gl.where(m == float("-inf"), 0.0, m)


@gluon.jit
def _tile(t, where, sizes, BLOCK_B: gl.constexpr, CAUSAL: gl.constexpr, BOTTOM_RIGHT: gl.constexpr):
    """Return what tile t is: head, first row within its sequence, the sequence's lengths, where its results, queries
    and keys begin, the tile's end and blocks.

    Heads of a group are neighbours, then come rows, those that see most first. Sequence b has the slots from
    ``cu_rows[b] // BLOCK_M + b`` on, of which the last may be empty: a tile of no blocks.
    """
    cu_rows_ptr, q_starts_ptr, kv_starts_ptr, kv_ends_ptr = where
    B, slots, group = sizes
    h = t // (slots * group) * group + t % group
    slot = slots - 1 - t // group % slots
    # one warp's lanes hold all sequences, and each warp the same
    layout: gl.constexpr = gl.BlockedLayout([BLOCK_B // 32 if BLOCK_B > 32 else 1], [32], [4], [0])
    offs_b = gl.arange(0, BLOCK_B, layout=layout)
    starts = gl.load(cu_rows_ptr + offs_b, mask=offs_b < B, other=0).to(gl.int32)
    b = gl.sum(((starts // BLOCK_M + offs_b <= slot) & (offs_b < B)).to(gl.int32), 0) - 1
    first, first_q = gl.load(cu_rows_ptr + b).to(gl.int32), gl.load(q_starts_ptr + b).to(gl.int32)
    first_k = gl.load(kv_starts_ptr + b).to(gl.int32)
    S, T = gl.load(cu_rows_ptr + b + 1).to(gl.int32) - first, gl.load(kv_ends_ptr + b).to(gl.int32) - first_k
    row = (slot - first // BLOCK_M - b) * BLOCK_M
    shift = T - S if BOTTOM_RIGHT else 0
    end = gl.minimum(row + BLOCK_M, S) + shift if CAUSAL else T  # tokens that the last row sees
    end = gl.maximum(gl.minimum(end, T), 0)
    blocks = gl.where(row < S, gl.maximum((end + BLOCK_N - 1) // BLOCK_N, 1), 0)
    return h, row, S, T, first, first_q, first_k, shift, end, blocks


@gluon.jit
def _start(i, end):
    """Return the first token of block i and where it ends. Blocks go backwards; the last one may begin with tokens
    that the one before it had, so that only a sequence of less than a block ends within one."""
    stop = end - i * BLOCK_N
    return gl.maximum(stop - BLOCK_N, 0), stop


@gluon.jit
def _scores(q, q_rest, k, k_rest):
    """Start the products of a block: [64, 128], not done when this returns."""
    qk = gl.zeros([ROWS, BLOCK_N], gl.float32, ACC)
    qk = warpgroup_mma(q, k.permute((1, 0)), qk, use_acc=False, is_async=True)
    return warpgroup_mma(q_rest, k_rest.permute((1, 0)), qk, is_async=True)


@gluon.jit
def _softmax(qk, i, end, limit, all_see, m_i, l_i, scale):
    """Return weights of a block, the new maximum and sum, and what the accumulator is to be scaled by."""
    start, stop = _start(i, end)
    if gl.minimum(stop, start + BLOCK_N) > all_see or start + BLOCK_N > stop:
        offs_n = start + gl.arange(0, BLOCK_N, layout=COLUMN)
        qk = gl.where(offs_n[None, :] < gl.minimum(limit, stop)[:, None], qk, float("-inf"))
    m_ij = gl.maximum(m_i, gl.max(qk, 1) * scale)
    base = _finite(m_ij)
    p, alpha = gl.exp2(qk * scale - base[:, None]), gl.exp2(m_i - base)
    return p, m_ij, l_i * alpha + gl.sum(p, 1), alpha


@gluon.jit
def _clear_tail(v, T, HALF: gl.constexpr):
    """Write zeros where no token is, in half of the columns: what is there may be NaN, times a weight of 0."""
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [8, 4], [4, 1], [1, 0])
    inside = gl.arange(0, BLOCK_N, layout=gl.SliceLayout(1, layout)) < T
    for j in gl.static_range(2):
        part = v.slice(64 * HALF + 32 * j, 32, dim=1)
        part.store(gl.where(inside[:, None], part.load(layout), 0.0).to(v.dtype))
    fence_async_shared()


@gluon.jit
def _attend(
    given, HALF: gl.constexpr, BLOCK_B: gl.constexpr, CAUSAL: gl.constexpr, BOTTOM_RIGHT: gl.constexpr,
    ALIGNED: gl.constexpr,
):  # fmt: skip
    """Attend with 64 rows of each of this program's tiles: what each of the two warpgroups does."""
    q, k, v, bars, out, lse, where, sizes, tiles, scale = given
    q_full, q_free, k_full, k_free, v_full, v_free, turns, cleared, sums = bars
    count, tile = 0, 0  # blocks and tiles so far, for the phases
    clears = 0
    for t in range(gl.program_id(0), tiles, gl.num_programs(0)):
        h, row, S, T, first, _first_q, _first_k, shift, end, blocks = _tile(
            t, where, sizes, BLOCK_B, CAUSAL, BOTTOM_RIGHT
        )
        if blocks > 0:
            offs_m = row + ROWS * HALF + gl.arange(0, ROWS, layout=ROW)
            limit = offs_m * 0 + end
            all_see = end
            if CAUSAL:
                limit = gl.minimum(offs_m + 1 + shift, end)
                all_see = gl.minimum(row + ROWS * HALF + 1 + shift, end)
            m_i, l_i = gl.full([ROWS], float("-inf"), gl.float32, ROW), gl.zeros([ROWS], gl.float32, ROW)
            acc = gl.zeros([ROWS, DV], gl.float32, ACC)

            mbarrier.wait(q_full, tile & 1)
            mbarrier.wait(k_full.index(count & 1), count >> 1 & 1)
            qk = _scores(q[0].index(HALF), q[1].index(HALF), k[0].index(count & 1), k[1].index(count & 1))
            qk = warpgroup_mma_wait(0, deps=(qk,))
            mbarrier.arrive(k_free.index(count & 1))
            p, m_i, l_i, alpha = _softmax(qk, 0, end, limit, all_see, m_i, l_i, scale)
            weights = gl.convert_layout(p.to(v.dtype), P_OPERAND)
            for i in range(1, blocks):
                before, count = count, count + 1
                mbarrier.wait(k_full.index(count & 1), count >> 1 & 1)
                mbarrier.wait(turns.index(HALF), (count - tile - 1 & 1) ^ (1 - HALF))  # the first warpgroup begins
                qk = _scores(q[0].index(HALF), q[1].index(HALF), k[0].index(count & 1), k[1].index(count & 1))
                mbarrier.wait(v_full.index(before & 1), before >> 1 & 1)
                acc = warpgroup_mma(weights, v.index(before & 1), acc, is_async=True)  # which runs during the softmax
                mbarrier.arrive(turns.index(1 - HALF))
                qk = warpgroup_mma_wait(1, deps=(qk,))
                p, m_i, l_i, alpha = _softmax(qk, i, end, limit, all_see, m_i, l_i, scale)
                sums.index(HALF).store(l_i)  # which nobody reads: else ptxas waits for the product before the softmax
                fresh = gl.convert_layout(p.to(v.dtype), P_OPERAND)
                # The wait names what has to be done before it, and weights, which the product still reads.
                acc, weights, fresh, l_i = warpgroup_mma_wait(0, deps=(acc, weights, fresh, l_i))
                mbarrier.arrive(k_free.index(count & 1))
                mbarrier.arrive(v_free.index(before & 1))
                acc, weights = acc * alpha[:, None], fresh
            mbarrier.arrive(q_free)
            mbarrier.wait(v_full.index(count & 1), count >> 1 & 1)
            if T < BLOCK_N:
                _clear_tail(v.index(count & 1), T, HALF)
                mbarrier.arrive(cleared)
                mbarrier.wait(cleared, clears & 1)
                clears += 1
            acc = warpgroup_mma(weights, v.index(count & 1), acc, is_async=True)
            acc, weights = warpgroup_mma_wait(0, deps=(acc, weights))
            mbarrier.arrive(v_free.index(count & 1))
            count, tile = count + 1, tile + 1

            total = gl.where(l_i == 0.0, 1.0, l_i)
            rows = (first + offs_m).to(gl.int64)
            offs_d = gl.arange(0, DV, layout=COLUMN)
            ptrs = out[0] + h.to(gl.int64) * out[2] + rows[:, None] * out[1] + offs_d[None, :] * out[3]
            if ALIGNED:  # to 16 bytes, which the compiler does not know in a partition: it would store 2 at a time
                ptrs = gl.max_contiguous(gl.multiple_of(ptrs, [1, 16]), [1, 8])
            gl.store(ptrs, (acc / total[:, None]).to(out[0].dtype.element_ty), mask=(offs_m < S)[:, None])
            ptrs_r = lse[0] + h.to(gl.int64) * lse[2] + rows * lse[1]
            gl.store(ptrs_r, (m_i + gl.log2(total)) * LN_2, mask=offs_m < S)


@gluon.jit
def _load(
    q_desc, q_rest_desc, k_desc, k_rest_desc, v_desc, q, k, v, bars, strides, where, sizes, tiles,
    BLOCK_B: gl.constexpr, CAUSAL: gl.constexpr, BOTTOM_RIGHT: gl.constexpr,
):  # fmt: skip
    """Bring queries and blocks to shared memory as soon as there is room: the next tile's, too."""
    q_full, q_free, k_full, k_free, v_full, v_free, _turns, _cleared, _sums = bars
    count, tile = 0, 0
    for t in range(gl.program_id(0), tiles, gl.num_programs(0)):
        h, row, _S, _T, _first, first_q, first_k, _shift, end, blocks = _tile(
            t, where, sizes, BLOCK_B, CAUSAL, BOTTOM_RIGHT
        )
        column_q, column_k, column_v = h * strides[0], h * strides[1], h * strides[2]
        if blocks > 0:
            mbarrier.wait(q_free, (tile & 1) ^ 1)
            mbarrier.expect(q_full, BLOCK_M * (D + REST) * 2)
            for j in gl.static_range(2):
                row_q = first_q + row + ROWS * j
                tma.async_copy_global_to_shared(q_desc, [row_q, column_q], q_full, q[0].index(j))
                tma.async_copy_global_to_shared(q_rest_desc, [row_q, column_q + D], q_full, q[1].index(j))
            tile += 1
        for i in range(blocks + 1):  # a block's keys, and the values of the one before
            if i < blocks:
                now = count + i
                start = _start(i, end)[0]
                bar = k_full.index(now & 1)
                mbarrier.wait(k_free.index(now & 1), (now >> 1 & 1) ^ 1)
                mbarrier.expect(bar, BLOCK_N * (D + REST) * 2)
                tma.async_copy_global_to_shared(k_desc, [first_k + start, column_k], bar, k[0].index(now & 1))
                tma.async_copy_global_to_shared(k_rest_desc, [first_k + start, column_k + D], bar, k[1].index(now & 1))
            if (i > 0) & (blocks > 0):
                now = count + i - 1
                start = _start(i - 1, end)[0]
                bar = v_full.index(now & 1)
                mbarrier.wait(v_free.index(now & 1), (now >> 1 & 1) ^ 1)
                mbarrier.expect(bar, BLOCK_N * DV * 2)
                tma.async_copy_global_to_shared(v_desc, [first_k + start, column_v], bar, v.index(now & 1))
        count += blocks


@gluon.jit(do_not_specialize=["B", "slots", "group", "tiles"])  # which differ from batch to batch
def ragged_attention_hopper(
    q_desc, q_rest_desc, k_desc, k_rest_desc, v_desc, cu_rows_ptr, q_starts_ptr, kv_starts_ptr, kv_ends_ptr,
    out_ptr, lse_ptr, scale, B, slots, group, tiles,
    stride_qh, stride_kh, stride_vh, stride_ot, stride_oh, stride_od, stride_lt, stride_lh,
    CAUSAL: gl.constexpr, BOTTOM_RIGHT: gl.constexpr, ALIGNED: gl.constexpr, BLOCK_B: gl.constexpr,
):  # fmt: skip
    """Attend with a tile of 128 rows, or several in turn: a program of two warpgroups, and one that loads."""
    dtype: gl.constexpr = v_desc.dtype
    q = gl.allocate_shared_memory(dtype, [2, ROWS, D], q_desc.layout)
    q_rest = gl.allocate_shared_memory(dtype, [2, ROWS, REST], q_rest_desc.layout)
    k = gl.allocate_shared_memory(dtype, [2, BLOCK_N, D], k_desc.layout)
    k_rest = gl.allocate_shared_memory(dtype, [2, BLOCK_N, REST], k_rest_desc.layout)
    v = gl.allocate_shared_memory(dtype, [2, BLOCK_N, DV], v_desc.layout)
    k_full = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    k_free = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    v_full = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    v_free = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    q_full = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    q_free = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    turns = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    cleared = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    for j in gl.static_range(2):
        mbarrier.init(k_full.index(j), count=1)
        mbarrier.init(v_full.index(j), count=1)
        mbarrier.init(k_free.index(j), count=2)
        mbarrier.init(v_free.index(j), count=2)
        mbarrier.init(turns.index(j), count=1)
    mbarrier.init(q_full, count=1)
    mbarrier.init(q_free, count=2)
    mbarrier.init(cleared, count=2)

    sums = gl.allocate_shared_memory(gl.float32, [2, ROWS], gl.SwizzledSharedLayout(1, 1, 1, [0]))

    bars = q_full, q_free, k_full, k_free, v_full, v_free, turns, cleared, sums
    keys, queries, sizes = (k, k_rest), (q, q_rest), (B, slots, group)
    out, lse = (out_ptr, stride_ot, stride_oh, stride_od), (lse_ptr, stride_lt, stride_lh)
    where = cu_rows_ptr, q_starts_ptr, kv_starts_ptr, kv_ends_ptr
    given = queries, keys, v, bars, out, lse, where, sizes, tiles, scale
    strides = stride_qh, stride_kh, stride_vh
    gl.warp_specialize(
        [
            (_attend, (given, 0, BLOCK_B, CAUSAL, BOTTOM_RIGHT, ALIGNED)),
            (_attend, (given, 1, BLOCK_B, CAUSAL, BOTTOM_RIGHT, ALIGNED)),
            (
                _load,
                (q_desc, q_rest_desc, k_desc, k_rest_desc, v_desc, queries, keys, v, bars, strides, where,
                 sizes, tiles, BLOCK_B, CAUSAL, BOTTOM_RIGHT),
            ),
        ],
        [4, 4],
        [232, 40],
    )  # fmt: skip
