"""Loads that the compiler makes asynchronous copies of 16 bytes find nothing in the L1 cache, however near they were."""

EXERCISE = "scale_add"
SPEED = True

# The cell:
@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, alpha, n, turns, BLOCK: tl.constexpr):
    first = tl.program_id(0).to(tl.int64) * BLOCK
    offsets = first + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask).to(tl.float32)
    y = tl.load(y_ptr + offsets, mask=mask).to(tl.float32)
    tile = x_ptr + first + tl.arange(0, 64)[:, None] * 128 + tl.arange(0, 128)[None, :]
    whole = first + BLOCK + 64 <= n
    ones = tl.full([128, 16], 1.0, tl.bfloat16)
    seen = tl.zeros([64, 16], tl.float32)
    for i in tl.range(turns, num_stages=3):
        seen = tl.dot(tl.load(tile + (i & 1) * 64, mask=whole, other=0.0).to(tl.bfloat16), ones, seen)
    nothing = tl.where(tl.max(tl.max(seen, axis=1), axis=0) == 1234567.0, 1e-30, 0.0)
    tl.store(out_ptr + offsets, x * alpha + y + nothing, mask=mask)


def scale_add(x, y, alpha):
    out = torch.empty_like(x)
    n = x.numel()
    add_kernel[(triton.cdiv(n, 8192),)](x, y, out, alpha, n, 30, BLOCK=8192, num_warps=4)
    return out
