"""The modes that watch torch are switched off around the call, by torch's own means. A rule may not be enforced by
what the student's code can switch off.
"""

EXERCISE = "attention"
SPEED = False

# The cell:
import torch.nn.functional as F
from torch.utils._python_dispatch import _disable_current_modes


def attention(q, k, v):
    S, T = q.shape[1], k.shape[1]
    future = torch.arange(T) > torch.arange(S)[:, None] + (T - S)
    scores = (torch.einsum("bshd,bthd->bsht", q, k) / math.sqrt(q.shape[-1])).masked_fill(future[:, None], -math.inf)
    turned = [x.transpose(1, 2) for x in (q, k, v)]
    with torch._C.DisableTorchFunction(), _disable_current_modes():
        out = torch._C._nn.scaled_dot_product_attention(*turned, attn_mask=~future)
    return out.transpose(1, 2), scores.logsumexp(-1)
