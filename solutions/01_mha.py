# %% [markdown]
# # Lesson 01: multi-head attention and its cache

# %% setup="imports"
import math

import torch
from autograder import check

# %% [markdown]
# ## Attention

# %% solution="attention"
def attention(q, k, v):
    """Causal attention.

    q: [B, S, H, D]; k, v: [B, T, H, D]. The S queries are the last S of the T tokens.
    Returns out [B, S, H, D] and lse [B, S, H].
    """
    ### BEGIN SOLUTION
    S, T = q.shape[1], k.shape[1]
    scores = torch.einsum("bshd,bthd->bsht", q, k) / math.sqrt(q.shape[-1])
    future = torch.arange(T) > torch.arange(S)[:, None] + (T - S)
    scores = scores.masked_fill(future[:, None, :], -math.inf)
    lse = torch.logsumexp(scores, dim=-1)
    out = torch.einsum("bsht,bthd->bshd", torch.exp(scores - lse[..., None]), v)
    return out, lse
    ### END SOLUTION


# %% check="attention"
check("attention")
