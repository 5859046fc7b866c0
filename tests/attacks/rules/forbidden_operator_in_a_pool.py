"""As in a thread, by the workers of a pool that was made while the cell ran, before any rule was on. The score of a
call to what is forbidden is zero in whatever thread it runs.
"""

EXERCISE = "attention"
SPEED = False

# The cell:
from concurrent.futures import ThreadPoolExecutor

import torch.nn.functional as F

pool = ThreadPoolExecutor(1)
pool.submit(int).result()


def attention(q, k, v):
    S, T = q.shape[1], k.shape[1]
    future = torch.arange(T) > torch.arange(S)[:, None] + (T - S)
    scores = (torch.einsum("bshd,bthd->bsht", q, k) / math.sqrt(q.shape[-1])).masked_fill(future[:, None], -math.inf)
    turned = [x.transpose(1, 2) for x in (q, k, v)]
    out = pool.submit(F.scaled_dot_product_attention, *turned, attn_mask=~future).result()
    return out.transpose(1, 2), scores.logsumexp(-1)
