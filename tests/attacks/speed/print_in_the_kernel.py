"""Each program prints a number, which takes a GPU hundreds of times as long as the sum."""

EXERCISE = "scale_add"
SPEED = True
EXPECT = "a kernel that prints is not timed"

# The cell:
@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, alpha, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask).to(tl.float32)
    y = tl.load(y_ptr + offsets, mask=mask).to(tl.float32)
    tl.device_print("n", n)
    tl.store(out_ptr + offsets, y + x * alpha, mask=mask)


def scale_add(x, y, alpha):
    out = torch.empty_like(x)
    n = x.numel()
    add_kernel[(triton.cdiv(n, 4096),)](x, y, out, alpha, n, BLOCK=4096, num_warps=8)
    return out
