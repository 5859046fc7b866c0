"""The storage of a kernel's result is given up and made anew by resize_, and torch writes there. What is returned was
not written by a kernel.
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


def scale_add(x, y, alpha):
    out, answer = copied(torch.zeros(x.shape)), alpha * x.float() + y.float()
    out.untyped_storage().resize_(0)
    out.untyped_storage().resize_(answer.nbytes)
    return out.copy_(answer)
