"""Each program touches 32 bytes here and there, and the next program the next 32 bytes."""

EXERCISE = "scale_add"
SPEED = True

# The cell:
@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, alpha, n, BLOCK: tl.constexpr):
    offsets = ((tl.arange(0, BLOCK) // 16).to(tl.int64) * tl.num_programs(0) + tl.program_id(0)) * 16 + tl.arange(0, BLOCK) % 16
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    y = tl.load(y_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    v = x * alpha + y

    tl.store(out_ptr + offsets, v, mask=mask)


def scale_add(x, y, alpha):
    out = torch.empty_like(x)
    n = x.numel()
    add_kernel[(triton.cdiv(n, 1024),)](x, y, out, alpha, n, BLOCK=1024)
    return out
