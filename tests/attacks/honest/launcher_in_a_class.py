"""The launcher is an object with a call method that keeps its block size."""

EXERCISE = "scale_add"
SPEED = False

# The cell:
@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, alpha, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=offsets < n)
    y = tl.load(y_ptr + offsets, mask=offsets < n)
    tl.store(out_ptr + offsets, alpha * x + y, mask=offsets < n)


class ScaleAdd:
    def __init__(self, block):
        self.block = block

    def __call__(self, x, y, alpha):
        out = torch.empty_like(x)
        add_kernel[(triton.cdiv(x.numel(), self.block),)](x, y, out, alpha, x.numel(), BLOCK=self.block)
        return out


scale_add = ScaleAdd(block=512)
