"""The partition that loads turns a loop before each copy, at full size alone, and those that multiply wait for it."""

EXERCISE = "two_warpgroups"
SPEED = True
LONG = True
EXPECT = "a loop turns within the one that fetches"

# The cell:
ROWS = gl.constexpr(64)  # of queries, for a warpgroup; a program has two
BLOCK_T = gl.constexpr(128)  # tokens
D = gl.constexpr(128)
TILE = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 128, 16]))  # of scores, and of acc
ROW = gl.constexpr(gl.SliceLayout(1, TILE))
COLUMN = gl.constexpr(gl.SliceLayout(0, TILE))
WEIGHTS = gl.constexpr(gl.DotOperandLayout(0, TILE, 2))  # registers as the first factor of a product


@gluon.jit
def softmax_step(qk, m_i, l_i, scale):
    """Return weights of a block, the new maximum and sum, and what acc is to be multiplied by."""
    m_new = gl.maximum(m_i, gl.max(qk, 1) * scale)
    shifted = qk * scale - m_new[:, None]
    p, alpha = gl.exp2(shifted), gl.exp2(m_i - m_new)
    return p, m_new, l_i * alpha + gl.sum(p, 1), alpha


@gluon.jit
def load(q_desc, k_desc, v_desc, q, k, v, bars, row, first, blocks, out_ptr):
    """The loader: queries once, then keys and values of each block as soon as there is room."""
    q_full, k_full, k_free, v_full, v_free = bars
    mbarrier.expect(q_full, 2 * ROWS * D * 2)
    for half in gl.static_range(2):
        tma.async_copy_global_to_shared(q_desc, [row + ROWS * half, 0], q_full, q.index(half))
    for i in range(blocks):
        place, turn = i & 1, i >> 1 & 1
        mbarrier.wait(k_free.index(place), turn ^ 1)
        for _ in range(blocks // 8 * 1000):
            fence_async_shared()
        mbarrier.expect(k_full.index(place), BLOCK_T * D * 2)
        tma.async_copy_global_to_shared(k_desc, [first + BLOCK_T * i, 0], k_full.index(place), k.index(place))
        mbarrier.wait(v_free.index(place), turn ^ 1)
        mbarrier.expect(v_full.index(place), BLOCK_T * D * 2)
        tma.async_copy_global_to_shared(v_desc, [first + BLOCK_T * i, 0], v_full.index(place), v.index(place))


@gluon.jit
def attend(q, k, v, bars, out_ptr, row, blocks, scale, HALF: gl.constexpr):
    """A warpgroup: one half of the program's rows, and all blocks of tokens."""
    q_full, k_full, k_free, v_full, v_free = bars
    m_i = gl.full([ROWS], float("-inf"), gl.float32, ROW)
    l_i = gl.zeros([ROWS], gl.float32, ROW)
    acc = gl.zeros([ROWS, D], gl.float32, TILE)
    none = gl.zeros([ROWS, BLOCK_T], gl.float32, TILE)
    mbarrier.wait(q_full, 0)
    mbarrier.wait(k_full.index(0), 0)
    qk = warpgroup_mma(q.index(HALF), k.index(0).permute((1, 0)), none, use_acc=False, is_async=True)
    qk = warpgroup_mma_wait(0, deps=(qk,))
    mbarrier.arrive(k_free.index(0))
    p, m_i, l_i, alpha = softmax_step(qk, m_i, l_i, scale)
    weights = gl.convert_layout(p.to(gl.bfloat16), WEIGHTS)
    for i in range(1, blocks):
        place, turn = i & 1, i >> 1 & 1
        before, its_turn = i - 1 & 1, i - 1 >> 1 & 1
        mbarrier.wait(k_full.index(place), turn)
        qk = warpgroup_mma(q.index(HALF), k.index(place).permute((1, 0)), none, use_acc=False, is_async=True)
        mbarrier.wait(v_full.index(before), its_turn)
        acc = warpgroup_mma(weights, v.index(before), acc, is_async=True)
        qk = warpgroup_mma_wait(1, deps=(qk,))  # the scores are there, the other product runs on
        mbarrier.arrive(k_free.index(place))
        p, m_i, l_i, alpha = softmax_step(qk, m_i, l_i, scale)
        fresh = gl.convert_layout(p.to(gl.bfloat16), WEIGHTS)
        acc, weights = warpgroup_mma_wait(0, deps=(acc, weights))  # until then it reads weights
        mbarrier.arrive(v_free.index(before))
        acc, weights = acc * alpha[:, None], fresh
    last = blocks - 1
    mbarrier.wait(v_full.index(last & 1), last >> 1 & 1)
    acc = warpgroup_mma(weights, v.index(last & 1), acc, is_async=True)
    acc, weights = warpgroup_mma_wait(0, deps=(acc, weights))
    offs_m = row + ROWS * HALF + gl.arange(0, ROWS, layout=ROW)
    offs_d = gl.arange(0, D, layout=COLUMN)
    gl.store(out_ptr + offs_m[:, None] * D + offs_d[None, :], (acc / l_i[:, None]).to(gl.bfloat16))


@gluon.jit
def two_warpgroups_kernel(q_desc, k_desc, v_desc, out_ptr, S, T, scale):
    q = gl.allocate_shared_memory(gl.bfloat16, [2, ROWS, D], q_desc.layout)
    k = gl.allocate_shared_memory(gl.bfloat16, [2, BLOCK_T, D], k_desc.layout)
    v = gl.allocate_shared_memory(gl.bfloat16, [2, BLOCK_T, D], v_desc.layout)
    q_full = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    k_full = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    k_free = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    v_full = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    v_free = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    mbarrier.init(q_full, count=1)
    for j in gl.static_range(2):
        mbarrier.init(k_full.index(j), count=1)  # the loader's copies
        mbarrier.init(v_full.index(j), count=1)
        mbarrier.init(k_free.index(j), count=2)  # both warpgroups
        mbarrier.init(v_free.index(j), count=2)
    bars = q_full, k_full, k_free, v_full, v_free
    h, blocks = gl.program_id(1), T // BLOCK_T
    row, first = h * S + 2 * ROWS * gl.program_id(0), h * T
    gl.warp_specialize(
        [
            (attend, (q, k, v, bars, out_ptr, row, blocks, scale, 0)),
            (attend, (q, k, v, bars, out_ptr, row, blocks, scale, 1)),
            (load, (q_desc, k_desc, v_desc, q, k, v, bars, row, first, blocks, out_ptr)),
        ],
        [4, 4],
        [240, 24],
    )


def two_warpgroups(q, k, v, scale):
    """Return softmax(q·kᵀ·scale)·v of each head.

    q: [H, S, 128], k and v: [H, T, 128], bfloat16, contiguous; S and T are multiples of 128; scale: float, above 0.
    Returns [H, S, 128], bfloat16.
    """
    (H, S, _), T = q.shape, k.shape[1]
    out = torch.empty_like(q)
    matrices = [described(x.view(-1, 128), [rows, 128]) for x, rows in ((q, 64), (k, 128), (v, 128))]
    scale_of_2 = scale * 1.4426950408889634  # log2(e): the kernel's exponentials are powers of 2
    two_warpgroups_kernel[(S // 128, H)](*matrices, out, S, T, scale_of_2, num_warps=4)
    return out


