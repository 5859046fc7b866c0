"""The host pads both vectors to whole blocks before the kernel, and cuts the result by a negative pad."""

EXERCISE = "scale_add"
SPEED = False

# The cell:
@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, alpha, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x, y = tl.load(x_ptr + offsets).to(tl.float32), tl.load(y_ptr + offsets).to(tl.float32)
    tl.store(out_ptr + offsets, alpha * x + y)


def scale_add(x, y, alpha):
    more = -x.numel() % 256
    x, y = (torch.nn.functional.pad(each, (0, more)) for each in (x, y))
    out = torch.empty_like(x)
    add_kernel[(x.numel() // 256,)](x, y, out, alpha, BLOCK=256)
    return torch.nn.functional.pad(out, (0, -more))
