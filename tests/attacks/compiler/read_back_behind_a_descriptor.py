"""A program stores by a tensor descriptor and loads it again behind a barrier. The barrier waits for threads, and not for what
the hardware has yet to store.
"""

EXERCISE = "scale_add"
EXPECT = "for which no barrier waits"

# The cell:
@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, note_ptr, alpha, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + i
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    y = tl.load(y_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    block = tl.make_tensor_descriptor(note_ptr, [n], [1], [BLOCK])
    block.store([tl.program_id(0) * BLOCK], x * alpha)
    tl.debug_barrier()
    scaled = tl.load(note_ptr + offsets, mask=mask, other=0.0)
    tl.store(out_ptr + offsets, y + scaled, mask=mask)


def scale_add(x, y, alpha):
    out = torch.empty_like(x)
    n = x.numel()
    note = torch.empty(n, dtype=torch.float32, device=x.device)
    add_kernel[(triton.cdiv(n, 1024),)](x, y, out, note, alpha, n, BLOCK=1024)
    return out
