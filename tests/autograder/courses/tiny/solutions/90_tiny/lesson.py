# %% [markdown]
# # Lesson 90: twice
#
# Some words on the matter.

# %% setup="imports"
import math

import torch
from autograder import check

# %%
print("the lesson's own words")

# %% solution="double"
def double(x):
    """Return 2x."""
    ### BEGIN SOLUTION
    return _twice(x)


def _twice(x):
    return 2 * x
    ### END SOLUTION

# %% check="double"
check("double")

# %% solution="quad"
def quad(x):
    """Return 4x."""
    ### BEGIN SOLUTION
    return double(double(x))
    ### END SOLUTION

# %% check="quad"
check("quad")
