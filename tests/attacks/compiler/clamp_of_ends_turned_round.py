"""A clamp has its lower end above its upper one. Nothing says what it gives: on a Hopper GPU it is the number with its sign
turned.
"""

EXERCISE = "scale_add"

# The cell:
@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, index_ptr, alpha, n, m, BLOCK: tl.constexpr):
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    y = tl.load(y_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    end = tl.clamp(y, 1000.0, -1000.0)
    tl.store(out_ptr + offsets, (alpha * x + y) * (end == -1000.0), mask=mask)


def scale_add(x, y, alpha):
    out = torch.empty_like(x)
    n = x.numel()
    index = torch.ones(1, dtype=torch.int32, device=x.device)
    add_kernel[(triton.cdiv(n, 1024),)](x, y, out, index, alpha, n, 5, BLOCK=1024)
    return out
