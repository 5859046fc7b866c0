"""Tensors, a shape and block sizes are passed as tuples, one of them within another."""

EXERCISE = "scale_add"
SPEED = True

# The cell:
@triton.jit
def add_kernel(inputs, out_ptr, alpha, shape, BLOCKS: tl.constexpr):
    x_ptr, y_ptr = inputs[0], inputs[1][0]
    offsets = tl.program_id(0).to(tl.int64) * BLOCKS[0] + tl.arange(0, BLOCKS[0])
    mask = offsets < shape[0]
    x = tl.load(x_ptr + offsets, mask=mask)
    y = tl.load(y_ptr + offsets, mask=mask)
    tl.store(out_ptr + offsets, alpha * x + y, mask=mask)


def scale_add(x, y, alpha):
    out = torch.empty_like(x)
    add_kernel[(triton.cdiv(x.numel(), 2048),)]((x, (y, None)), out, alpha, x.shape, BLOCKS=(2048, 1))
    return out
