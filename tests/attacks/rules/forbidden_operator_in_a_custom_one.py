"""An operator of the student's own calls the forbidden one, below the place where modes look. The score of a call to
what is forbidden is zero however it is wrapped.
"""

EXERCISE = "attention"
SPEED = False

# The cell:
import torch.nn.functional as F


@torch.library.custom_op("mine::attend", mutates_args=())
def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
    with torch._C.DisableTorchFunction():
        return torch._C._nn.scaled_dot_product_attention(q, k, v, attn_mask=seen).clone()


def attention(q, k, v):
    S, T = q.shape[1], k.shape[1]
    future = torch.arange(T) > torch.arange(S)[:, None] + (T - S)
    scores = (torch.einsum("bshd,bthd->bsht", q, k) / math.sqrt(q.shape[-1])).masked_fill(future[:, None], -math.inf)
    turned = [x.transpose(1, 2) for x in (q, k, v)]
    return attend(*turned, ~future).transpose(1, 2), scores.logsumexp(-1)
