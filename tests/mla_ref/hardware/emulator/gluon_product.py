"""C = A Bᵀ by a loader and a warpgroup, in Gluon: what the tests of partitions run, and break."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

ACC = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16]))


@gluon.jit
def _load(a_desc, b_desc, a, b, full, free, row, column, blocks):
    for i in range(blocks):
        place = i % 2
        mbarrier.wait(free.index(place), (i // 2 & 1) ^ 1)
        mbarrier.expect(full.index(place), 2 * 64 * 64 * 2)
        tma.async_copy_global_to_shared(a_desc, [row, 64 * i], full.index(place), a.index(place))
        tma.async_copy_global_to_shared(b_desc, [column, 64 * i], full.index(place), b.index(place))


@gluon.jit
def _multiply(a, b, c, full, free, done, c_desc, row, column, blocks):
    acc = gl.zeros([64, 64], gl.float32, ACC)
    for i in range(blocks):
        place = i % 2
        mbarrier.wait(full.index(place), i // 2 & 1)
        acc = warpgroup_mma(a.index(place), b.index(place).permute((1, 0)), acc, is_async=True)
        acc = warpgroup_mma_wait(0, deps=(acc,))
        mbarrier.arrive(free.index(place))
    c.store(acc.to(c.dtype))
    fence_async_shared()
    mbarrier.arrive(done)


@gluon.jit
def _store(c_desc, c, done, row, column):
    mbarrier.wait(done, 0)
    tma.async_copy_shared_to_global(c_desc, [row, column], c)
    tma.store_wait(0)


@gluon.jit
def product(a_desc, b_desc, c_desc, blocks):
    a = gl.allocate_shared_memory(a_desc.dtype, [2, 64, 64], a_desc.layout)
    b = gl.allocate_shared_memory(b_desc.dtype, [2, 64, 64], b_desc.layout)
    c = gl.allocate_shared_memory(c_desc.dtype, [64, 64], c_desc.layout)
    full = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    done = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    for j in gl.static_range(2):
        mbarrier.init(full.index(j), count=1)
        mbarrier.init(free.index(j), count=1)
    mbarrier.init(done, count=1)
    row, column = 64 * gl.program_id(0), 64 * gl.program_id(1)
    gl.warp_specialize(
        [
            (_multiply, (a, b, c, full, free, done, c_desc, row, column, blocks)),
            (_load, (a_desc, b_desc, a, b, full, free, row, column, blocks)),
            (_store, (c_desc, c, done, row, column)),
        ],
        [1, 1],
        [24, 24],
    )
