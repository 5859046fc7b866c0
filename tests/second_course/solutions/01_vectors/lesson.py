# %% [markdown]
# # Lesson 01: vectors
#
# A course of one lesson that has nothing to do with attention: the grader serves it as it serves any other.

# %% setup="imports"
import torch
from autograder import check, check_speed
from mla_ref.hardware import emulator

emulated = emulator.prepare()

import triton
import triton.language as tl

# %% [markdown]
# ## The mean
#
# `mean(x)` returns the mean of each row of `x`.

# %% solution="mean"
def mean(x):
    """Return the mean of each row of `x` [N, D] as [N]."""
    ### BEGIN SOLUTION
    return x.sum(-1) / x.shape[-1]
    ### END SOLUTION

# %% check="mean"
check("mean")

# %% [markdown]
# ## The spread
#
# `spread(x)` returns the mean squared distance of a row's values from their `mean`.

# %% solution="spread"
def spread(x):
    """Return the variance of each row of `x` [N, D] as [N]."""
    ### BEGIN SOLUTION
    return mean((x - mean(x)[:, None]) ** 2)
    ### END SOLUTION

# %% check="spread"
check("spread")

# %% [markdown]
# ## A first kernel
#
# `saxpy(a, x, y)` returns `a * x + y` from one Triton kernel.

# %% solution="saxpy"
@triton.jit
def saxpy_kernel(x_ptr, y_ptr, out_ptr, a, n, BLOCK: tl.constexpr):
    ### BEGIN SOLUTION
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    x = tl.load(x_ptr + offs, mask=mask)
    y = tl.load(y_ptr + offs, mask=mask)
    tl.store(out_ptr + offs, a * x + y, mask=mask)
    ### END SOLUTION


def saxpy(a, x, y):
    """Return a * x + y for vectors of one length."""
    out = torch.empty_like(x)
    ### BEGIN SOLUTION
    saxpy_kernel[(triton.cdiv(x.numel(), 1024),)](x, y, out, a, x.numel(), BLOCK=1024)
    ### END SOLUTION
    return out

# %% check="saxpy"
check("saxpy")

# %% speed="saxpy"
check_speed("saxpy")
