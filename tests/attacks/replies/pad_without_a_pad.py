"""The notes of a call hold an operation without its operands: they are malformed, and no fault of the grader."""

EXERCISE = "scale_add"
SPEED = False
EXPECT = "malformed"

# The cell:
from autograder.kernels.worker import recording

noted = recording.Recorder.notes


def notes(self, result):
    found = noted(self, result)
    view = found["result"][0]
    step = {"kind": "host", "op": ["constant_pad_nd", "default"], "line": "", "args": [{"tensor": dict(view)}]}
    step |= {"kwargs": {}, "out": [dict(view)], "flops": 0, "reads": [], "writes": []}
    found["events"].append(step)
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
