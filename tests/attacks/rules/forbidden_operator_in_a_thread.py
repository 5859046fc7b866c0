"""The exercise asks for attention written out, and a thread calls torch's fused one, which a mode of the main thread
does not see. The score of a call to what is forbidden is zero in whatever thread it runs.
"""

EXERCISE = "attention"
SPEED = False

# The cell:
import threading

import torch.nn.functional as F


def attention(q, k, v):
    S, T = q.shape[1], k.shape[1]
    future = torch.arange(T) > torch.arange(S)[:, None] + (T - S)
    scores = (torch.einsum("bshd,bthd->bsht", q, k) / math.sqrt(q.shape[-1])).masked_fill(future[:, None], -math.inf)
    found = []

    def fused():
        turned = (x.transpose(1, 2) for x in (q, k, v))
        found.append(F.scaled_dot_product_attention(*turned, attn_mask=~future).transpose(1, 2))

    thread = threading.Thread(target=fused)
    thread.start()
    thread.join()
    return found[0], scores.logsumexp(-1)
