"""A kernel writes the right numbers, and the result is moved to where no memory is. It holds nothing."""

EXERCISE = "scale_add"
SPEED = False
EXPECT = "without memory"

# The cell:
@triton.jit
def scale_add_kernel(x_ptr, y_ptr, out_ptr, alpha, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=offsets < n).to(tl.float32)
    y = tl.load(y_ptr + offsets, mask=offsets < n).to(tl.float32)
    tl.store(out_ptr + offsets, alpha * x + y, mask=offsets < n)


def scale_add(x, y, alpha):
    out, n = torch.empty_like(x), x.numel()
    scale_add_kernel[(triton.cdiv(n, 1024),)](x, y, out, alpha, n, BLOCK=1024)
    return out.to("meta")
