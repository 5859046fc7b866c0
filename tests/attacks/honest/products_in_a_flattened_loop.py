"""Two loops that are made one, which read what others only read."""

EXERCISE = "scale_add"

# The cell:

@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, count_ptr, alpha, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    y = tl.load(y_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    for i in tl.range(0, 2, flatten=True):
        acc = tl.zeros((BLOCK,), tl.float32)
        for j in tl.range(0, 3, num_stages=3):
            acc += tl.load(x_ptr + offsets, mask=mask, other=0.0).to(tl.float32) * alpha / 3
        tl.store(out_ptr + offsets, acc + y, mask=mask)


def scale_add(x, y, alpha):
    out = torch.empty_like(x)
    n = x.numel()
    count = torch.zeros(4096, dtype=torch.int32, device=x.device)
    add_kernel[(triton.cdiv(n, 256),)](x, y, out, count, alpha, n, BLOCK=256)
    return out
