"""Each program waits in a loop until the one before it has done its work, which takes a hundred times as long as all
together. Where programs may wait for one another no time is modelled.
"""

EXERCISE = "scale_add"
SPEED = True
EXPECT = "wait there for one another"

# The cell:
@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, turn_ptr, alpha, n, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    offsets = pid.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    while tl.atomic_add(turn_ptr, 0) != pid:
        pass
    x = tl.load(x_ptr + offsets, mask=mask).to(tl.float32)
    y = tl.load(y_ptr + offsets, mask=mask).to(tl.float32)
    tl.store(out_ptr + offsets, y + x * alpha, mask=mask)
    tl.atomic_add(turn_ptr, 1)


def scale_add(x, y, alpha):
    out = torch.empty_like(x)
    n = x.numel()
    turn = torch.zeros(1, dtype=torch.int32, device=x.device)
    add_kernel[(triton.cdiv(n, 8192),)](x, y, out, turn, alpha, n, BLOCK=8192, num_warps=8)
    return out
