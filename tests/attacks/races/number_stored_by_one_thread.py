"""A number is stored by one thread, and loaded by all threads of the program with no barrier between."""

EXERCISE = "scale_add"

# The cell:
@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, note_ptr, alpha, n, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    offsets = pid.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask).to(tl.float32)
    y = tl.load(y_ptr + offsets, mask=mask).to(tl.float32)
    tl.store(note_ptr + pid, alpha)
    scale = tl.load(note_ptr + pid)
    tl.store(out_ptr + offsets, x * scale + y, mask=mask)


def scale_add(x, y, alpha):
    out = torch.empty_like(x)
    n = x.numel()
    note = torch.empty(triton.cdiv(n, 1024), dtype=torch.float32, device=x.device)
    add_kernel[(triton.cdiv(n, 1024),)](x, y, out, note, alpha, n, BLOCK=1024)
    return out
