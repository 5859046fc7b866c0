"""The eigenvalues of a matrix that nobody needs: by its bytes they would take three microseconds."""

EXERCISE = "scale_add"
SPEED = True
EXPECT = "no model tells the time of torch's `linalg_eigh`"

# The cell:
@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, alpha, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask).to(tl.float32)
    y = tl.load(y_ptr + offsets, mask=mask).to(tl.float32)
    tl.store(out_ptr + offsets, y + x * alpha, mask=mask)


def scale_add(x, y, alpha):
    out = torch.empty_like(x)
    n = x.numel()
    torch.linalg.eigvalsh(torch.eye(1024, device=x.device))
    add_kernel[(triton.cdiv(n, 2048),)](x, y, out, alpha, n, BLOCK=2048, num_warps=8)
    return out
