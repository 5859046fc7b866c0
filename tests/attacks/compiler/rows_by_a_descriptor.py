"""Rows gathered by a tensor descriptor. Hopper's hardware does not: the compiler's machine code for it is refused.
"""

EXERCISE = "scaled_matmul"
EXPECT = "takes a GPU later than Hopper"

# The cell:
@triton.jit
def matmul_kernel(x_ptr, y_ptr, out_ptr, scale, M, N, K, BLOCK: tl.constexpr, BLOCK_K: tl.constexpr):
    x_desc = tl.make_tensor_descriptor(x_ptr, [M, K], [K, 1], [1, BLOCK_K])
    y_desc = tl.make_tensor_descriptor(y_ptr, [N, K], [K, 1], [BLOCK, BLOCK_K])
    first_m, first_n = tl.program_id(0) * BLOCK, tl.program_id(1) * BLOCK
    acc = tl.zeros([BLOCK, BLOCK], tl.float32)
    offs_m, offs_n = first_m + tl.arange(0, BLOCK), first_n + tl.arange(0, BLOCK)
    for start in range(0, K, BLOCK_K):
        acc = tl.dot(x_desc.gather(offs_m, start), y_desc.load([first_n, start]).T, acc, input_precision="ieee")
    mask = (offs_m < M)[:, None] & (offs_n < N)[None, :]
    tl.store(out_ptr + offs_m[:, None] * N + offs_n[None, :], acc * scale, mask=mask)


def scaled_matmul(x, y, scale):
    (M, K), N = x.shape, len(y)
    x, y = (torch.nn.functional.pad(each, (0, -K % 32)) for each in (x, y))
    out = torch.empty((M, N), dtype=x.dtype, device=x.device)
    matmul_kernel[(triton.cdiv(M, 32), triton.cdiv(N, 32))](
        x, y, out, scale, M, N, x.shape[1], BLOCK=32, BLOCK_K=32
    )
    return out
