"""A descriptor's strides are changed behind its checks: no GPU's hardware takes rows that begin between 16 bytes."""

EXERCISE = "scaled_matmul"
EXPECT = "multiples of 16 bytes"

# The cell:
from triton.tools.tensor_descriptor import TensorDescriptor


@triton.jit
def matmul_kernel(x_desc, y_desc, out_ptr, scale, M, N, K, BLOCK: tl.constexpr, BLOCK_K: tl.constexpr):
    first_m, first_n = tl.program_id(0) * BLOCK, tl.program_id(1) * BLOCK
    acc = tl.zeros([BLOCK, BLOCK], tl.float32)
    for start in range(0, K, BLOCK_K):
        acc = tl.dot(x_desc.load([first_m, start]), y_desc.load([first_n, start]).T, acc, input_precision="ieee")
    offs_m, offs_n = first_m + tl.arange(0, BLOCK), first_n + tl.arange(0, BLOCK)
    mask = (offs_m < M)[:, None] & (offs_n < N)[None, :]
    tl.store(out_ptr + offs_m[:, None] * N + offs_n[None, :], acc * scale, mask=mask)


def described(x):
    found = TensorDescriptor(x, list(x.shape), [8 * x.shape[1], 1], [32, 32])
    found.strides[0] = x.shape[1]
    return found


def scaled_matmul(x, y, scale):
    (M, K), N = x.shape, len(y)
    out = torch.empty((M, N), dtype=x.dtype, device=x.device)
    matmul_kernel[(triton.cdiv(M, 32), triton.cdiv(N, 32))](
        described(x), described(y), out, scale, M, N, K, BLOCK=32, BLOCK_K=32
    )
    return out
