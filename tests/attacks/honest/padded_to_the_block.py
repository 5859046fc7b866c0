"""The host pads both vectors to a multiple of the block, so that the kernel needs no mask, and cuts the result."""

EXERCISE = "scale_add"
SPEED = False

# The cell:
@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, alpha, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + offsets, alpha * tl.load(x_ptr + offsets) + tl.load(y_ptr + offsets))


def scale_add(x, y, alpha):
    n = x.numel()
    rest = -n % 256
    x, y = (torch.nn.functional.pad(each, (0, rest)) for each in (x, y))
    out = torch.empty_like(x)
    add_kernel[(len(x) // 256,)](x, y, out, alpha, BLOCK=256)
    return out[:n]
