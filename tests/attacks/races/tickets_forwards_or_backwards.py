"""Programs draw tickets. They are right where these come in the order of programs or in the reverse one, but a GPU's come in
any.
"""

EXERCISE = "scale_add"
EXPECT = "in another order it is wrong"

# The cell:
@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, count_ptr, alpha, n, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    offsets = pid.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    y = tl.load(y_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    ticket = tl.atomic_add(count_ptr, 1)
    programs = tl.num_programs(0)
    right = (ticket == pid) | (ticket == programs - 1 - pid)
    tl.store(out_ptr + offsets, y + x * alpha + tl.where(right, 0.0, 100.0), mask=mask)


def scale_add(x, y, alpha):
    out = torch.empty_like(x)
    n = x.numel()
    count = torch.zeros(1, dtype=torch.int32, device=x.device)
    add_kernel[(triton.cdiv(n, 256),)](x, y, out, count, alpha, n, BLOCK=256)
    return out
