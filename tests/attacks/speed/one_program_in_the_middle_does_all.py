"""One program of a hundred does all the work in a buffer, on wide blocks. The others turn as often on single elements,
and a second launch copies. Control flow tells how much each program does. On a slow machine the time is up before.
"""

EXERCISE = "scale_add"
SPEED = True
EXPECT = ("of the floor's speed", "when the time was up")
LONG = True

# The cell:
@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, alpha, n, WHO, TURNS, BLOCK: tl.constexpr):
    if tl.program_id(0) == WHO:
        for turn in range(TURNS):
            offsets = turn * BLOCK + tl.arange(0, BLOCK)
            mask = offsets < n
            x = tl.load(x_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
            y = tl.load(y_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
            tl.store(out_ptr + offsets, y + alpha * x, mask=mask)
    else:
        for turn in range(TURNS):
            tl.store(out_ptr + n + tl.program_id(0), tl.load(x_ptr) + tl.load(y_ptr))


@triton.jit
def copy_kernel(z_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    z = tl.load(z_ptr + offsets, mask=offsets < n).to(tl.float32)
    y = tl.load(y_ptr + offsets, mask=offsets < n).to(tl.float32)
    tl.store(out_ptr + offsets, z + 0.0 * y, mask=offsets < n)


def scale_add(x, y, alpha):
    n = x.numel()
    made, out = torch.empty(n + 100, dtype=x.dtype), torch.empty_like(x)
    block = 1 << 18
    add_kernel[(100,)](x, y, made, alpha, n, 77, triton.cdiv(n, block), BLOCK=block, num_warps=32)
    copy_kernel[(triton.cdiv(n, 4096),)](made, y, out, n, BLOCK=4096, num_warps=8)
    return out
