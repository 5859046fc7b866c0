"""A program makes its three tensor descriptors anew for each 128 numbers: a GPU writes each to memory, and waits."""

EXERCISE = "scale_add"
SPEED = True

# The cell:
@triton.jit
def scale_add_kernel(x_ptr, y_ptr, out_ptr, alpha, n, BLOCK_SIZE: tl.constexpr):
    start = tl.program_id(0) * 16 * BLOCK_SIZE
    turns = 0
    for i in range(16):
        at = start + i * BLOCK_SIZE
        x_desc = tl.make_tensor_descriptor(x_ptr, [n], [1], [BLOCK_SIZE])
        y_desc = tl.make_tensor_descriptor(y_ptr, [n], [1], [BLOCK_SIZE])
        out_desc = tl.make_tensor_descriptor(out_ptr, [n], [1], [BLOCK_SIZE])
        x = x_desc.load([at])
        y = y_desc.load([at])
        out_desc.store([at], (alpha * x + y).to(x.dtype))
        turns += 1
    tl.device_assert(turns < 100)


def scale_add(x, y, alpha):
    n, block = x.numel(), 128
    out = torch.empty_like(x)
    scale_add_kernel[(triton.cdiv(n, 16 * block),)](x, y, out, alpha, n, BLOCK_SIZE=block, num_warps=1)
    return out
