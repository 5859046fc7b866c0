"""The arguments become the parts of one complex tensor, seen as floats again."""

EXERCISE = "scale_add"
SPEED = False

# The cell:
@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, alpha, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=offsets < n, other=0.0).to(tl.float32)
    y = tl.load(y_ptr + offsets, mask=offsets < n, other=0.0).to(tl.float32)
    tl.store(out_ptr + offsets, alpha * x + y, mask=offsets < n)


def scale_add(x, y, alpha):
    n, out = x.numel(), torch.empty_like(x)
    both = torch.stack([x.float(), y.float()], -1).view(torch.complex64)
    x, y = torch.view_as_real(both.clone()).unbind(-1)
    add_kernel[(triton.cdiv(n, 1024),)](x.contiguous(), y.contiguous(), out, alpha, n, BLOCK=1024)
    return out
