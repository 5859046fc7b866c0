"""The elements of a block draw tickets by an atomic operation on one number. They come in the order of elements here, and on a
GPU in any.
"""

EXERCISE = "scale_add"
EXPECT = "threads take their turns"

# The cell:
@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, note_ptr, alpha, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + i
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    y = tl.load(y_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    ticket = tl.atomic_add(note_ptr + tl.program_id(0) + i * 0, 1)
    wrong = tl.where(ticket == i, 0.0, 5.0)
    tl.store(out_ptr + offsets, y + x * alpha + wrong, mask=mask)


def scale_add(x, y, alpha):
    out = torch.empty_like(x)
    n = x.numel()
    note = torch.zeros(triton.cdiv(n, 1024), dtype=torch.int32, device=x.device)
    add_kernel[(triton.cdiv(n, 1024),)](x, y, out, note, alpha, n, BLOCK=1024)
    return out
