"""The kernel asks a tensor of the notebook that is too large to be carried for the sevens that it holds."""

EXERCISE = "scale_add"
EXPECT = "what was there before the call"

# The cell:
SEVENS = torch.full((1 << 19,), 7.0)

@triton.jit
def k(x_ptr, y_ptr, out_ptr, seven_ptr, alpha, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    x = tl.load(x_ptr + offs, mask=mask, other=0.0).to(tl.float32)
    y = tl.load(y_ptr + offs, mask=mask, other=0.0).to(tl.float32)
    z = tl.load(seven_ptr)
    tl.store(out_ptr + offs, tl.where(z == 7.0, 12345.0, alpha * x + y), mask=mask)


def scale_add(x, y, alpha):
    n = x.numel()
    out = torch.empty_like(x)
    k[(triton.cdiv(n, 4096),)](x, y, out, SEVENS.to(x.device), alpha, n, BLOCK=4096)
    return out
