"""A counter is kept between calls and never set back. From the second call on no program is the last."""

EXERCISE = "scale_add"
EXPECT = "what add_kernel leaves in count_ptr from one call makes the next one wrong"

# The cell:
COUNT = torch.zeros(1, dtype=torch.int32)

@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, scaled_ptr, count_ptr, alpha, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    tl.store(scaled_ptr + offsets, x * alpha, mask=mask)
    tl.debug_barrier()
    programs = tl.num_programs(0)
    if tl.atomic_add(count_ptr, 1) == programs - 1:
        for block in range(programs):
            at = block.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
            scaled = tl.load(scaled_ptr + at, mask=at < n, other=0.0)
            y = tl.load(y_ptr + at, mask=at < n, other=0.0).to(tl.float32)
            tl.store(out_ptr + at, scaled + y, mask=at < n)


def scale_add(x, y, alpha):
    out = torch.empty_like(x)
    n = x.numel()
    scaled = torch.empty(n, dtype=torch.float32, device=x.device)
    add_kernel[(triton.cdiv(n, 8192),)](x, y, out, scaled, COUNT, alpha, n, BLOCK=8192)
    return out
