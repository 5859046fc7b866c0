"""Ten copies of an argument inside an operator of the student's own, which shows nothing of what it does."""

EXERCISE = "scale_add"
SPEED = False
EXPECT = "is no operator of PyTorch's own"

# The cell:
@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, alpha, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask).to(tl.float32)
    y = tl.load(y_ptr + offsets, mask=mask).to(tl.float32)
    tl.store(out_ptr + offsets, y + x * alpha, mask=mask)


HELD = {}


@torch.library.custom_op("mine::waste", mutates_args=())
def waste(flag: torch.Tensor) -> torch.Tensor:
    for _ in range(10):
        HELD["x"].clone()
    return flag.clone()


@waste.register_fake
def _(flag):
    return flag.clone()


def scale_add(x, y, alpha):
    out = torch.empty_like(x)
    n = x.numel()
    HELD["x"] = x
    waste(torch.zeros(1, device=x.device))
    add_kernel[(triton.cdiv(n, 2048),)](x, y, out, alpha, n, BLOCK=2048, num_warps=8)
    return out
