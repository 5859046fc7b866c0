"""Each turn reads what the turn before stored, moved by one, behind a barrier."""

EXERCISE = "scale_add"

# The cell:

@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, kept_ptr, alpha, n, BLOCK: tl.constexpr):
    start = tl.program_id(0) * BLOCK
    for turn in tl.range(0, 3):
        at = start + (tl.arange(0, BLOCK) + turn * 32) % BLOCK
        if turn == 0:
            value = alpha * tl.load(x_ptr + at, mask=at < n, other=0.0).to(tl.float32)
        else:
            value = tl.load(kept_ptr + at, mask=at < n, other=0.0)
        tl.debug_barrier()
        tl.store(kept_ptr + at, value, mask=at < n)
        tl.debug_barrier()
    at = start + BLOCK - 1 - tl.arange(0, BLOCK)
    tl.store(out_ptr + at, tl.load(kept_ptr + at, mask=at < n) + tl.load(y_ptr + at, mask=at < n).to(tl.float32), mask=at < n)


def scale_add(x, y, alpha):
    out = torch.empty_like(x)
    n = x.numel()
    kept = torch.empty(n, dtype=torch.float32, device=x.device)
    add_kernel[(triton.cdiv(n, 1024),)](x, y, out, kept, alpha, n, BLOCK=1024)
    return out
