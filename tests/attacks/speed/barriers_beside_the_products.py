"""The warps of the loop with products meet at eighty barriers in each turn, while the tensor cores wait."""

EXERCISE = "piped_product"
SPEED = True
LONG = True
# Gluon of Triton 3.6 has no such barrier
EXPECT = ("the products of a turn take 512 cycles, and what is beside them", "counts once the answer is right")

# The cell:
STAGES = gl.constexpr(4)  # places of the ring
BLOCK_M = gl.constexpr(64)
BLOCK_N = gl.constexpr(256)
BLOCK_K = gl.constexpr(64)
ACC = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 256, 16]))


@gluon.jit
def fetch(a_desc, b_desc, a, b, full, row, column, i):
    """Start to bring block i of K to its place of the ring."""
    place = i % STAGES
    mbarrier.expect(full.index(place), (BLOCK_M + BLOCK_N) * BLOCK_K * 2)
    tma.async_copy_global_to_shared(a_desc, [row, BLOCK_K * i], full.index(place), a.index(place))
    tma.async_copy_global_to_shared(b_desc, [column, BLOCK_K * i], full.index(place), b.index(place))


@gluon.jit
def piped_product_kernel(a_desc, b_desc, c_desc, blocks):
    a = gl.allocate_shared_memory(gl.bfloat16, [STAGES, BLOCK_M, BLOCK_K], a_desc.layout)
    b = gl.allocate_shared_memory(gl.bfloat16, [STAGES, BLOCK_N, BLOCK_K], b_desc.layout)
    c = gl.allocate_shared_memory(gl.bfloat16, [BLOCK_M, BLOCK_N], c_desc.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for j in gl.static_range(STAGES):
        mbarrier.init(full.index(j), count=1)
    row, column = BLOCK_M * gl.program_id(0), BLOCK_N * gl.program_id(1)
    acc = gl.zeros([BLOCK_M, BLOCK_N], gl.float32, ACC)
    for i in range(gl.minimum(STAGES - 1, blocks)):
        fetch(a_desc, b_desc, a, b, full, row, column, i)
    for i in range(blocks):
        place = i % STAGES
        for _ in gl.static_range(80):
            gl.barrier()
        mbarrier.wait(full.index(place), i // STAGES & 1)
        acc = warpgroup_mma(a.index(place), b.index(place).permute((1, 0)), acc, is_async=True)
        acc = warpgroup_mma_wait(1, deps=(acc,))  # the product before is done, and its place free
        if i + STAGES - 1 < blocks:
            fetch(a_desc, b_desc, a, b, full, row, column, i + STAGES - 1)
    acc = warpgroup_mma_wait(0, deps=(acc,))
    c.store(acc.to(gl.bfloat16))
    fence_async_shared()
    tma.async_copy_shared_to_global(c_desc, [row, column], c)
    tma.store_wait(0)


def piped_product(a, b):
    """Return a·bᵀ.

    a: [M, K], b: [N, K], bfloat16, contiguous; N and K are multiples of 8. Returns [M, N], bfloat16.
    """
    (M, K), N = a.shape, len(b)
    c = torch.empty(M, N, dtype=a.dtype, device=a.device)
    grid = -(-M // 64), -(-N // 256)
    blocks = -(-K // 64)
    piped_product_kernel[grid](
        described(a, [64, 64]), described(b, [256, 64]), described(c, [64, 256]), blocks, num_warps=4
    )
    return c
