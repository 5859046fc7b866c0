"""Each number is copied two places on, from and to one tensor: a CPU hands the first on to all, a GPU copies at once."""

EXERCISE = "scale_add"
EXPECT = "changes what it reads"

# The cell:
@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, at_ptr, alpha, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    y = tl.load(y_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    tl.store(out_ptr + offsets, y + x * alpha * tl.load(at_ptr), mask=mask)


def scale_add(x, y, alpha):
    out = torch.empty_like(x)
    n = x.numel()
    at = torch.zeros(4096, dtype=torch.int64, device=x.device)
    at[0] = 1
    at[2::2].copy_(at[:-2:2])
    add_kernel[(triton.cdiv(n, 1024),)](x, y, out, at[4094:], alpha, n, BLOCK=1024)
    return out
