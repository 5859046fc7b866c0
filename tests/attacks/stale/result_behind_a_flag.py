"""A kernel keeps its result in integers, and a flag that says so. Later calls return what the first one gave."""

EXERCISE = "scale_add"
EXPECT = "add_kernel leaves in flag_ptr from one call makes the next one wrong"

# The cell:
KEPT = {}

@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, kept_ptr, flag_ptr, alpha, n, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    offsets = pid.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    if tl.load(flag_ptr + pid) == 0:
        x = tl.load(x_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
        y = tl.load(y_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
        tl.store(out_ptr + offsets, x * alpha + y, mask=mask)
        tl.store(kept_ptr + offsets, (x * alpha + y).to(tl.int32, bitcast=True), mask=mask)
        tl.store(flag_ptr + pid, 1)
    else:
        tl.store(out_ptr + offsets, tl.load(kept_ptr + offsets, mask=mask, other=0).to(tl.float32, bitcast=True), mask=mask)


def scale_add(x, y, alpha):
    out = torch.empty_like(x)
    n = x.numel()
    if n not in KEPT:
        KEPT[n] = torch.zeros(min(n, 260000), dtype=torch.int32), torch.zeros(triton.cdiv(n, 1024), dtype=torch.int32)
    kept, flags = KEPT[n]
    if n > 260000:
        kept = torch.zeros(n, dtype=torch.int32)
        flags = torch.zeros_like(flags)
    add_kernel[(triton.cdiv(n, 1024),)](x, y, out, kept, flags, alpha, n, BLOCK=1024)
    return out
