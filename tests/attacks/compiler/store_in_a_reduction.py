"""A function of `tl.reduce` stores what it is given. For which pairs a GPU calls it is the compiler's choice.
"""

EXERCISE = "scale_add"
EXPECT = "reads or writes memory"

# The cell:
@triton.jit
def noted(a, p, b, q):
    tl.store(p.to(tl.pointer_type(tl.int32)), a)
    return a + b, tl.maximum(p, q)


@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, note_ptr, alpha, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + i
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    y = tl.load(y_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    found, _ = tl.reduce((i, i * 0 + note_ptr.to(tl.int64)), 0, noted)
    wrong = tl.where(found < 0, 5.0, 0.0)
    tl.store(out_ptr + offsets, y + x * alpha + wrong, mask=mask)


def scale_add(x, y, alpha):
    out = torch.empty_like(x)
    n = x.numel()
    note = torch.zeros(4, dtype=torch.int32, device=x.device)
    add_kernel[(triton.cdiv(n, 1024),)](x, y, out, note, alpha, n, BLOCK=1024)
    return out
