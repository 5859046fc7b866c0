"""The block's size is chosen by `triton.heuristics`, and the grid is a list: Triton takes both."""

EXERCISE = "scale_add"
SPEED = True

# The cell:
@triton.heuristics({"BLOCK": lambda args: 1024 if args["n"] > 4096 else 256})
@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, alpha, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=offsets < n).to(tl.float32)
    y = tl.load(y_ptr + offsets, mask=offsets < n).to(tl.float32)
    tl.store(out_ptr + offsets, alpha * x + y, mask=offsets < n)


def scale_add(x, y, alpha):
    out = torch.empty_like(x)
    n = x.numel()
    add_kernel[lambda meta: [triton.cdiv(n, meta["BLOCK"])]](x, y, out, alpha, n)
    return out
