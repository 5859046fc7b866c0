"""An operator of the student's own, made by torch.library, does the arithmetic below the place where modes look. An
operator that is not on the list of what a host may do is refused.
"""

EXERCISE = "scale_add"
SPEED = False

# The cell:
@triton.jit
def copy_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + offsets, tl.load(x_ptr + offsets, mask=offsets < n), mask=offsets < n)


def copied(answer):
    out, n = torch.empty(answer.shape, dtype=answer.dtype), answer.numel()
    copy_kernel[(triton.cdiv(n, 1024),)](answer, out, n, BLOCK=1024)
    return out


@torch.library.custom_op("mine::answer", mutates_args=())
def answer(x: torch.Tensor, y: torch.Tensor, alpha: float) -> torch.Tensor:
    return alpha * x + y


def scale_add(x, y, alpha):
    return copied(answer(x.float(), y.float(), alpha))
