"""One program of a product goes over all tiles: each loop shows what it should, and 131 multiprocessors have nothing
to do.
"""

EXERCISE = "piped_product"
SPEED = True
EXPECT = "one program does 100% of the products"
LONG = True

# The cell:
STAGES = gl.constexpr(4)  # places of the ring
BLOCK_M = gl.constexpr(64)
BLOCK_N = gl.constexpr(256)
BLOCK_K = gl.constexpr(64)
ACC = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 256, 16]))


@gluon.jit
def fetch(a_desc, b_desc, a, b, full, row, column, i, done):
    """Start to bring block i of K to its place of the ring."""
    place = (i + done) % STAGES
    mbarrier.expect(full.index(place), (BLOCK_M + BLOCK_N) * BLOCK_K * 2)
    tma.async_copy_global_to_shared(a_desc, [row, BLOCK_K * i], full.index(place), a.index(place))
    tma.async_copy_global_to_shared(b_desc, [column, BLOCK_K * i], full.index(place), b.index(place))


@gluon.jit
def piped_product_kernel(a_desc, b_desc, c_desc, blocks, rows, columns):
    a = gl.allocate_shared_memory(gl.bfloat16, [STAGES, BLOCK_M, BLOCK_K], a_desc.layout)
    b = gl.allocate_shared_memory(gl.bfloat16, [STAGES, BLOCK_N, BLOCK_K], b_desc.layout)
    c = gl.allocate_shared_memory(gl.bfloat16, [BLOCK_M, BLOCK_N], c_desc.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for j in gl.static_range(STAGES):
        mbarrier.init(full.index(j), count=1)
    done = 0
    for t in range(rows * columns):
        row, column = BLOCK_M * (t // columns), BLOCK_N * (t % columns)
        acc = gl.zeros([BLOCK_M, BLOCK_N], gl.float32, ACC)
        for i in range(gl.minimum(STAGES - 1, blocks)):
            fetch(a_desc, b_desc, a, b, full, row, column, i, done)
        for i in range(blocks):
            place = (i + done) % STAGES
            mbarrier.wait(full.index(place), (i + done) // STAGES & 1)
            acc = warpgroup_mma(a.index(place), b.index(place).permute((1, 0)), acc, is_async=True)
            acc = warpgroup_mma_wait(1, deps=(acc,))  # the product before is done, and its place free
            if i + STAGES - 1 < blocks:
                fetch(a_desc, b_desc, a, b, full, row, column, i + STAGES - 1, done)
        acc = warpgroup_mma_wait(0, deps=(acc,))
        c.store(acc.to(gl.bfloat16))
        fence_async_shared()
        tma.async_copy_shared_to_global(c_desc, [row, column], c)
        tma.store_wait(0)
        done += blocks


def piped_product(a, b):
    """Return a·bᵀ.

    a: [M, K], b: [N, K], bfloat16, contiguous; N and K are multiples of 8. Returns [M, N], bfloat16.
    """
    (M, K), N = a.shape, len(b)
    c = torch.empty(M, N, dtype=a.dtype, device=a.device)
    grid = -(-M // 64), -(-N // 256)
    blocks = -(-K // 64)
    piped_product_kernel[(1,)](
        described(a, [64, 64]), described(b, [256, 64]), described(c, [64, 256]), blocks, -(-M // 64), -(-N // 256), num_warps=4
    )
    return c
