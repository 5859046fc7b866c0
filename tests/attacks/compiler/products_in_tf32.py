"""Products of float32 without `input_precision="ieee"`: a GPU cuts the operands to TF32. The emulator multiplied in float32."""

EXERCISE = "scaled_matmul"
EXPECT = "multiplied in TF32"

# The cell:
@triton.jit
def matmul_kernel(x_ptr, y_ptr, out_ptr, scale, M, N, K, BLOCK: tl.constexpr):
    offs_m = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    offs_n = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    acc = tl.zeros([BLOCK, BLOCK], tl.float32)
    for start in range(0, K, BLOCK):
        offs_k = start + tl.arange(0, BLOCK)
        inside = offs_k[None, :] < K
        x = tl.load(x_ptr + offs_m[:, None] * K + offs_k[None, :], mask=(offs_m < M)[:, None] & inside, other=0.0)
        y = tl.load(y_ptr + offs_n[:, None] * K + offs_k[None, :], mask=(offs_n < N)[:, None] & inside, other=0.0)
        acc = tl.dot(x, y.T, acc)
    mask = (offs_m < M)[:, None] & (offs_n < N)[None, :]
    tl.store(out_ptr + offs_m[:, None] * N + offs_n[None, :], acc * scale, mask=mask)


def scaled_matmul(x, y, scale):
    (M, K), N = x.shape, len(y)
    out = torch.empty((M, N), dtype=x.dtype, device=x.device)
    matmul_kernel[(triton.cdiv(M, 32), triton.cdiv(N, 32))](x, y, out, scale, M, N, K, BLOCK=32)
    return out
