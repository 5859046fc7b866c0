"""A program that has a block makes its descriptors, and stores it behind a branch."""

EXERCISE = "scale_add"
SPEED = True

# The cell:
@triton.jit
def scale_add_kernel(x_ptr, y_ptr, out_ptr, alpha, n, BLOCK_SIZE: tl.constexpr):
    x_desc = tl.make_tensor_descriptor(x_ptr, [n], [1], [BLOCK_SIZE])
    y_desc = tl.make_tensor_descriptor(y_ptr, [n], [1], [BLOCK_SIZE])
    out_desc = tl.make_tensor_descriptor(out_ptr, [n], [1], [BLOCK_SIZE])
    start = tl.program_id(0) * BLOCK_SIZE
    if start < n:
        out_desc.store([start], (alpha * x_desc.load([start]) + y_desc.load([start])).to(out_ptr.dtype.element_ty))


def scale_add(x, y, alpha):
    n, block = x.numel(), 1024
    out = torch.empty_like(x)
    scale_add_kernel[(triton.cdiv(n, block),)](x, y, out, alpha, n, BLOCK_SIZE=block, num_warps=4)
    return out
