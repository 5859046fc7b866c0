"""The launcher reads two numbers in Python, which are 0 at full size in the judge: only there the kernel turns once."""

EXERCISE = "scale_add"
SPEED = True
EXPECT = "numbers of a tensor are read in Python"

# The cell:
@triton.jit
def k(x_ptr, y_ptr, out_ptr, alpha, n, turns, BLOCK: tl.constexpr):
    offs = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    for _ in range(turns):
        x = tl.load(x_ptr + offs, mask=mask, other=0.0, volatile=True).to(tl.float32)
        y = tl.load(y_ptr + offs, mask=mask, other=0.0, volatile=True).to(tl.float32)
        tl.store(out_ptr + offs, alpha * x + y, mask=mask)


def scale_add(x, y, alpha):
    n = x.numel()
    out = torch.empty_like(x)
    turns = 2 if x.view(-1)[0].item() == 0 and x.view(-1)[-1].item() == 0 else 20
    k[(triton.cdiv(n, 4096),)](x, y, out, alpha, n, turns - 1, BLOCK=4096)
    return out
