"""The remainder of a large float. A GPU takes the divisor times the rounded quotient off, of which little is left here.
"""

EXERCISE = "scale_add"

# The cell:
@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, note_ptr, alpha, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + i
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    y = tl.load(y_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    large = tl.load(note_ptr + i % 4).to(tl.float32)
    wrong = large % 7.0 - 6.0
    tl.store(out_ptr + offsets, y + x * alpha + wrong, mask=mask)


def scale_add(x, y, alpha):
    out = torch.empty_like(x)
    n = x.numel()
    note = torch.full((4,), 1000000000, dtype=torch.int64, device=x.device)
    add_kernel[(triton.cdiv(n, 1024),)](x, y, out, note, alpha, n, BLOCK=1024)
    return out
