"""Two workspaces are zeroed at once, by an operation on a list of tensors, which returns nothing."""

EXERCISE = "scale_add"
SPEED = False

# The cell:
@triton.jit
def sum_kernel(x_ptr, sum_ptr, alpha, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.atomic_add(sum_ptr + offsets, tl.load(x_ptr + offsets, mask=mask, other=0.0).to(tl.float32) * alpha, mask=mask)


@triton.jit
def join_kernel(first_ptr, second_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(out_ptr + offsets, tl.load(first_ptr + offsets, mask=mask) + tl.load(second_ptr + offsets, mask=mask), mask)


def scale_add(x, y, alpha):
    out = torch.empty_like(x)
    n = x.numel()
    first, second = (torch.empty(n, dtype=torch.float32, device=x.device) for _ in range(2))
    torch._foreach_zero_([first, second])
    grid = (triton.cdiv(n, 1024),)
    sum_kernel[grid](x, first, alpha, n, BLOCK=1024)
    sum_kernel[grid](y, second, 1.0, n, BLOCK=1024)
    join_kernel[grid](first, second, out, n, BLOCK=1024)
    return out
