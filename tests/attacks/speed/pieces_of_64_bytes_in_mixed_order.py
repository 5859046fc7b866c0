"""Each program touches 64 bytes here and there, in an order that keeps the programs of one line far apart in time."""

EXERCISE = "scale_add"
SPEED = True

# The cell:
@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, alpha, n, BLOCK: tl.constexpr):
    programs = tl.num_programs(0).to(tl.int64)
    program = tl.program_id(0).to(tl.int64) * 65521 % programs
    offsets = ((tl.arange(0, BLOCK) // 32) * programs + program) * 32 + tl.arange(0, BLOCK) % 32
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
