"""The cell imports the worker's module and puts a function that does nothing in place of its check. A rule may not be
enforced by what the student's code can replace.
"""

EXERCISE = "attention"
SPEED = False

# The cell:
import torch.nn.functional as F
from autograder.isolation.worker import running

running._refuse = lambda *rest: None


def attention(q, k, v):
    S, T = q.shape[1], k.shape[1]
    future = torch.arange(T) > torch.arange(S)[:, None] + (T - S)
    scores = (torch.einsum("bshd,bthd->bsht", q, k) / math.sqrt(q.shape[-1])).masked_fill(future[:, None], -math.inf)
    turned = [x.transpose(1, 2) for x in (q, k, v)]
    return F.scaled_dot_product_attention(*turned, attn_mask=~future).transpose(1, 2), scores.logsumexp(-1)
