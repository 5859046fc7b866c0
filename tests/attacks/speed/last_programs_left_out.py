"""At full size the last programs are left out: 0.9 % of the result is never written."""

EXERCISE = "scale_add"
SPEED = True
EXPECT = "the kernels write only"

# The cell:
@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, alpha, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask).to(tl.float32)
    y = tl.load(y_ptr + offsets, mask=mask).to(tl.float32)
    tl.store(out_ptr + offsets, y + x * alpha, mask=mask)


def scale_add(x, y, alpha):
    out = torch.empty_like(x)
    n = x.numel()
    programs = triton.cdiv(n, 2048)
    if n > 1 << 22:
        programs -= programs // 110
    add_kernel[(programs,)](x, y, out, alpha, n, BLOCK=2048, num_warps=8)
    return out
