# %% [markdown]
# # Lesson 91: one small kernel

# %% setup="imports"
import numpy
import torch
from mla_ref.hardware import emulator
emulator.prepare()
import triton
import triton.language as tl

# %% solution="row_sum"
### BEGIN SOLUTION
@triton.jit
def sum_kernel(x_ptr, out_ptr, D, stride, alpha, BLOCK: tl.constexpr):
    row, cols = tl.program_id(0), tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * stride + cols, mask=cols < D, other=0.0)
    tl.store(out_ptr + row, tl.sum(x.to(tl.float32)) * alpha)


def row_sum(x, alpha):
    out = torch.empty(len(x))
    sum_kernel[(len(x),)](x, out, x.shape[1], x.stride(0), alpha, BLOCK=64)
    return out
### END SOLUTION

# %% check="row_sum"
check("row_sum")
