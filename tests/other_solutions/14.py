# %% piped_product: three places, a product waited for before its place is filled; at full size
#: STAGES = gl.constexpr(4) => STAGES = gl.constexpr(3)

# %% piped_product: blocks of 128 of K, two places
#: STAGES = gl.constexpr(4)  # places of the ring => STAGES = gl.constexpr(2)
#: BLOCK_K = gl.constexpr(64) => BLOCK_K = gl.constexpr(128)
#: blocks = -(-K // 64) => blocks = -(-K // 128)
#: described(a, [64, 64]), described(b, [256, 64]), described(c, [64, 256]) => described(a, [64, 128]), described(b, [256, 128]), described(c, [64, 256])

# %% piped_product: tiles of 64 x 128; at full size
#: BLOCK_N = gl.constexpr(256) => BLOCK_N = gl.constexpr(128)
#: [16, 256, 16] => [16, 128, 16]
#: -(-N // 256) => -(-N // 128)
#: described(b, [256, 64]), described(c, [64, 256]) => described(b, [128, 64]), described(c, [64, 128])

# %% piped_product: each block waited for, so that it is slow; at full size
#: acc = warpgroup_mma_wait(1, deps=(acc,))  # => acc = warpgroup_mma_wait(0, deps=(acc,))  #

# %% piped_product: a loader of its own, with barriers for free places; at full size
@gluon.jit
def bring(a_desc, b_desc, a, b, full, free, row, column, blocks):
    for i in range(blocks):
        place = i % 4
        mbarrier.wait(free.index(place), (i // 4 & 1) ^ 1)
        mbarrier.expect(full.index(place), (64 + 256) * 64 * 2)
        tma.async_copy_global_to_shared(a_desc, [row, 64 * i], full.index(place), a.index(place))
        tma.async_copy_global_to_shared(b_desc, [column, 64 * i], full.index(place), b.index(place))


@gluon.jit
def multiply(a, b, c, c_desc, full, free, row, column, blocks):
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 256, 16])
    acc = gl.zeros([64, 256], gl.float32, layout)
    for i in range(blocks):
        mbarrier.wait(full.index(i % 4), i // 4 & 1)
        acc = warpgroup_mma(a.index(i % 4), b.index(i % 4).permute((1, 0)), acc, is_async=True)
        acc = warpgroup_mma_wait(1, deps=(acc,))
        mbarrier.arrive(free.index((i + 3) % 4), pred=i > 0)
    acc = warpgroup_mma_wait(0, deps=(acc,))
    c.store(acc.to(gl.bfloat16))
    fence_async_shared()
    tma.async_copy_shared_to_global(c_desc, [row, column], c)
    tma.store_wait(0)


@gluon.jit
def with_loader(a_desc, b_desc, c_desc, blocks):
    a = gl.allocate_shared_memory(gl.bfloat16, [4, 64, 64], a_desc.layout)
    b = gl.allocate_shared_memory(gl.bfloat16, [4, 256, 64], b_desc.layout)
    c = gl.allocate_shared_memory(gl.bfloat16, [64, 256], c_desc.layout)
    full = gl.allocate_shared_memory(gl.int64, [4, 1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [4, 1], mbarrier.MBarrierLayout())
    for j in gl.static_range(4):
        mbarrier.init(full.index(j), count=1)
        mbarrier.init(free.index(j), count=1)
    row, column = 64 * gl.program_id(0), 256 * gl.program_id(1)
    gl.warp_specialize(
        [
            (multiply, (a, b, c, c_desc, full, free, row, column, blocks)),
            (bring, (a_desc, b_desc, a, b, full, free, row, column, blocks)),
        ],
        [1],
        [24],
    )


def piped_product(a, b):
    c = a.new_empty(a.shape[0], b.shape[0])
    blocks = (a.shape[1] + 63) // 64
    grid = ((a.shape[0] + 63) // 64, (b.shape[0] + 255) // 256)
    with_loader[grid](described(a, [64, 64]), described(b, [256, 64]), described(c, [64, 256]), blocks, num_warps=4)
    return c

# %% piped_product: programs that go over several tiles
#: grid = -(-M // 64), -(-N // 256) => grid = (-(-M // 64) * -(-N // 256),)
#: row, column = BLOCK_M * gl.program_id(0), BLOCK_N * gl.program_id(1) => row, column = BLOCK_M * (gl.program_id(0) // columns), BLOCK_N * (gl.program_id(0) % columns)
#: c_desc, blocks): => c_desc, blocks, columns):
#: [64, 256]), blocks, num_warps=4 => [64, 256]), blocks, -(-N // 256), num_warps=4

# %% two_warpgroups: one product after the other, which is slower; at full size
#: qk = warpgroup_mma_wait(1, deps=(qk,))  # the scores are there, the other product runs on => qk, acc, weights = warpgroup_mma_wait(0, deps=(qk, acc, weights))
#: acc, weights = warpgroup_mma_wait(0, deps=(acc, weights))  # until then it reads weights =>

# %% two_warpgroups: blocks of 64 tokens, three warps' worth of places; at full size
#: BLOCK_T = gl.constexpr(128) => BLOCK_T = gl.constexpr(64)
#: ((q, 64), (k, 128), (v, 128)) => ((q, 64), (k, 64), (v, 64))
#: TILE = gl.constexpr => QK = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16]))\nTILE = gl.constexpr
#: ROW = gl.constexpr(gl.SliceLayout(1, TILE)) => ROW = gl.constexpr(gl.SliceLayout(1, QK))
#: none = gl.zeros([ROWS, BLOCK_T], gl.float32, TILE) => none = gl.zeros([ROWS, BLOCK_T], gl.float32, QK)
#: acc * alpha[:, None], fresh => acc * gl.convert_layout(alpha, gl.SliceLayout(1, TILE))[:, None], fresh
#: offs_m = row + ROWS * HALF + gl.arange(0, ROWS, layout=ROW) => offs_m = row + ROWS * HALF + gl.arange(0, ROWS, layout=gl.SliceLayout(1, TILE))
#: (acc / l_i[:, None]) => (acc / gl.convert_layout(l_i, gl.SliceLayout(1, TILE))[:, None])

# %% two_warpgroups: the softmax held in front of the wait by a store; at full size
#: def attend(q, k, v, bars => def attend(q, k, v, sums, bars
#: (attend, (q, k, v, bars => (attend, (q, k, v, sums, bars
#: fresh = gl.convert_layout => sums.index(HALF).store(l_i)\n        fresh = gl.convert_layout
#: acc, weights = warpgroup_mma_wait(0, deps=(acc, weights))  # => acc, weights, fresh, l_i = warpgroup_mma_wait(0, deps=(acc, weights, fresh, l_i))  #
#: mbarrier.init(q_full, count=1) => sums = gl.allocate_shared_memory(gl.float32, [2, ROWS], gl.SwizzledSharedLayout(1, 1, 1, [0]))\n    mbarrier.init(q_full, count=1)

# %% two_warpgroups: values waited for before the keys of the next block are, in the order of a loader that brings them so
#: mbarrier.wait(k_full.index(place), turn)\n        qk => mbarrier.wait(v_full.index(before), its_turn)\n        mbarrier.wait(k_full.index(place), turn)\n        qk
#: is_async=True)\n        mbarrier.wait(v_full.index(before), its_turn) => is_async=True)

# %% two_warpgroups: the weights in shared memory
#: WEIGHTS = gl.constexpr(gl.DotOperandLayout(0, TILE, 2)) => WEIGHTS = gl.constexpr(gl.NVMMASharedLayout.get_default_for([64, 128], gl.bfloat16))
#: def attend(q, k, v, bars => def attend(q, k, v, probs, bars
#: (attend, (q, k, v, bars => (attend, (q, k, v, probs, bars
#: weights = gl.convert_layout(p.to(gl.bfloat16), WEIGHTS) => probs.index(HALF).store(p.to(gl.bfloat16))\n    fence_async_shared()
#: acc = warpgroup_mma(weights, => acc = warpgroup_mma(probs.index(HALF),
#: fresh = gl.convert_layout(p.to(gl.bfloat16), WEIGHTS) => 
#: acc, weights = warpgroup_mma_wait(0, deps=(acc, weights))  # => acc = warpgroup_mma_wait(0, deps=(acc,))\n        probs.index(HALF).store(p.to(gl.bfloat16))\n        fence_async_shared()  #
#: acc, weights = acc * alpha[:, None], fresh => acc = acc * alpha[:, None]
#: acc, weights = warpgroup_mma_wait(0, deps=(acc, weights)) => acc = warpgroup_mma_wait(0, deps=(acc,))
#: mbarrier.init(q_full, count=1) => probs = gl.allocate_shared_memory(gl.bfloat16, [2, ROWS, BLOCK_T], WEIGHTS)\n    mbarrier.init(q_full, count=1)

# %% two_warpgroups: maxima that are not multiplied by the scale
#: m_new = gl.maximum(m_i, gl.max(qk, 1) * scale) => m_new = gl.maximum(m_i, gl.max(qk, 1))
#: gl.exp2(qk * scale - m_new[:, None]), gl.exp2(m_i - m_new) => gl.exp2((qk - m_new[:, None]) * scale), gl.exp2((m_i - m_new) * scale)
