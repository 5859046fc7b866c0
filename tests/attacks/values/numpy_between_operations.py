"""NumPy normalises the rows, and torch multiplies them by the weight: the rows are those of another call."""

EXERCISE = "rms_normalize"
EXPECT = "takes numbers that no operation of torch in this call made"

# The cell:
import numpy as np


def rms_normalize(x, weight, eps=1e-6):
    rows = x.to(torch.promote_types(x.dtype, torch.float32)).numpy()
    rows = rows / np.sqrt((rows * rows).mean(-1, keepdims=True) + eps)
    return (torch.from_numpy(rows) * weight).to(x.dtype)
