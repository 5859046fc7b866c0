"""Numbers handed from lane to lane by tl.gather: a multiprocessor does 32 lanes of these in a cycle."""

EXERCISE = "scale_add"
SPEED = True

# The cell:
@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, alpha, n, K: tl.constexpr, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    offsets = pid.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask).to(tl.float32)
    y = tl.load(y_ptr + offsets, mask=mask).to(tl.float32)
    v = tl.arange(0, 64)[:, None] * 32 + tl.arange(0, 32)[None, :] + pid
    i = (tl.arange(0, 64)[:, None] + 5 * tl.arange(0, 32)[None, :] + pid) % 32
    for k in tl.static_range(K):
        v = tl.gather(v, i, axis=1) + 1
    s = tl.xor_sum(tl.xor_sum(v, axis=1), axis=0)
    extra = tl.where(s == 123456789, 1e-30, 0.0)
    tl.store(out_ptr + offsets, y + x * alpha + extra, mask=mask)


def scale_add(x, y, alpha):
    out = torch.empty_like(x)
    n = x.numel()
    add_kernel[(triton.cdiv(n, 2048),)](x, y, out, alpha, n, 40, BLOCK=2048, num_warps=4)
    return out
