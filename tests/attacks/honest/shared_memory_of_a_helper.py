"""A helper stores half of a tile into shared memory of its own, sends it, and waits for that.
"""

EXERCISE = "piped_product"
SPEED = True

# The cell:
STAGES = gl.constexpr(4)  # places of the ring
BLOCK_M = gl.constexpr(64)
BLOCK_N = gl.constexpr(256)
BLOCK_K = gl.constexpr(64)
ACC = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 128, 16]))


@gluon.jit
def fetch(a_desc, b_desc, a, b, full, row, column, i):
    """Start to bring block i of K to its place of the ring."""
    place = i % STAGES
    mbarrier.expect(full.index(place), (BLOCK_M + BLOCK_N) * BLOCK_K * 2)
    tma.async_copy_global_to_shared(a_desc, [row, BLOCK_K * i], full.index(place), a.index(place))
    tma.async_copy_global_to_shared(b_desc, [column, BLOCK_K * i], full.index(place), b.index(place))


@gluon.jit
def put(c_desc, acc, row, column):
    c = gl.allocate_shared_memory(gl.bfloat16, [BLOCK_M, 128], c_desc.layout)
    c.store(acc.to(gl.bfloat16))
    fence_async_shared()
    tma.async_copy_shared_to_global(c_desc, [row, column], c)
    tma.store_wait(0)


@gluon.jit
def piped_product_kernel(a_desc, b_desc, c_desc, blocks):
    a = gl.allocate_shared_memory(gl.bfloat16, [STAGES, BLOCK_M, BLOCK_K], a_desc.layout)
    b = gl.allocate_shared_memory(gl.bfloat16, [STAGES, BLOCK_N, BLOCK_K], b_desc.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for j in gl.static_range(STAGES):
        mbarrier.init(full.index(j), count=1)
    row, column = BLOCK_M * gl.program_id(0), BLOCK_N * gl.program_id(1)
    acc = gl.zeros([BLOCK_M, 128], gl.float32, ACC)
    bcc = gl.zeros([BLOCK_M, 128], gl.float32, ACC)
    for i in range(gl.minimum(STAGES - 1, blocks)):
        fetch(a_desc, b_desc, a, b, full, row, column, i)
    for i in range(blocks):
        place = i % STAGES
        mbarrier.wait(full.index(place), i // STAGES & 1)
        acc = warpgroup_mma(a.index(place), b.index(place).slice(0, 128).permute((1, 0)), acc, is_async=True)
        bcc = warpgroup_mma(a.index(place), b.index(place).slice(128, 128).permute((1, 0)), bcc, is_async=True)
        acc, bcc = warpgroup_mma_wait(2, deps=(acc, bcc))  # the product before is done, and its place free
        if i + STAGES - 1 < blocks:
            fetch(a_desc, b_desc, a, b, full, row, column, i + STAGES - 1)
    acc, bcc = warpgroup_mma_wait(0, deps=(acc, bcc))
    put(c_desc, acc, row, column)
    put(c_desc, bcc, row, column + 128)


def piped_product(a, b):
    """Return a·bᵀ.

    a: [M, K], b: [N, K], bfloat16, contiguous; N and K are multiples of 8. Returns [M, N], bfloat16.
    """
    (M, K), N = a.shape, len(b)
    c = torch.empty(M, N, dtype=a.dtype, device=a.device)
    grid = -(-M // 64), -(-N // 256)
    blocks = -(-K // 64)
    piped_product_kernel[grid](
        described(a, [64, 64]), described(b, [256, 64]), described(c, [64, 128]), blocks, num_warps=4
    )
    return c
