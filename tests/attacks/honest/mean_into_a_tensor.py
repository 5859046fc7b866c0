"""A right answer puts its mean into a tensor by `out=`."""

EXERCISE = "rms_normalize"

# The cell:
import torch, math
import torch.nn.functional as F
from torch import nn
def rms_normalize(x, weight, eps=1e-6):
    y = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
    ms = torch.empty(*y.shape[:-1], 1, dtype=y.dtype)
    torch.mean(y * y, -1, keepdim=True, out=ms)
    ms += eps
    return (y * ms.rsqrt_() * weight).to(x.dtype)
