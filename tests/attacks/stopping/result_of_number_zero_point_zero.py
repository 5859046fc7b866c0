"""The account names its result by 0.0, which is equal to the number 0 and is no place in a list. The account is
malformed, and the judge goes on.
"""

EXERCISE = "scale_add"
SPEED = False
EXPECT = "malformed"

# The cell:
from autograder.kernels.worker import recording

honest = recording.Recorder.notes
recording.Recorder.notes = lambda self, result: {**honest(self, result), "form": {"$view": 0.0}}


@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, alpha, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=offsets < n)
    y = tl.load(y_ptr + offsets, mask=offsets < n)
    tl.store(out_ptr + offsets, alpha * x + y, mask=offsets < n)


def scale_add(x, y, alpha):
    out = torch.empty_like(x)
    add_kernel[(triton.cdiv(x.numel(), 1024),)](x, y, out, alpha, x.numel(), BLOCK=1024)
    return out
