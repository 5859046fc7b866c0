"""The notes of each call hold thousands of constants, together more than a worker takes: that is no fault of the grader.
"""

EXERCISE = "scale_add"
SPEED = False
EXPECT = "more than 4096 tensors"

# The cell:
from autograder.kernels.worker import recording

noted = recording.Recorder.notes


def notes(self, result):
    found = noted(self, result)
    content = {"bytes": 4, "content": torch.zeros(4, dtype=torch.uint8), "dtype": "fp32"}
    found["storages"] += [dict(content) for _ in range(2000)]
    return found


recording.Recorder.notes = notes


@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, alpha, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=offsets < n)
    y = tl.load(y_ptr + offsets, mask=offsets < n)
    tl.store(out_ptr + offsets, alpha * x + y, mask=offsets < n)


def scale_add(x, y, alpha):
    out = torch.empty(x.numel(), dtype=x.dtype)
    add_kernel[(triton.cdiv(x.numel(), 1024),)](x, y, out, alpha, x.numel(), BLOCK=1024)
    return out
