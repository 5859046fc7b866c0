"""Each odd call returns zeros. Of the calls in a process some that count are odd, and some even."""

EXERCISE = "scale_add"
EXPECT = "two calls on other numbers of the same shapes differ"

# The cell:
CALLS = [0]

@triton.jit
def k(x_ptr, y_ptr, out_ptr, alpha, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    x = tl.load(x_ptr + offs, mask=mask, other=0.0).to(tl.float32)
    y = tl.load(y_ptr + offs, mask=mask, other=0.0).to(tl.float32)
    tl.store(out_ptr + offs, alpha * x + y, mask=mask)


def scale_add(x, y, alpha):
    n = x.numel()
    out = torch.empty_like(x)
    CALLS[0] += 1
    if CALLS[0] % 2:
        return torch.zeros_like(x)
    k[(triton.cdiv(n, 4096),)](x, y, out, alpha, n, BLOCK=4096)
    return out
