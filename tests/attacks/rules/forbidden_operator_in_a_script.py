"""The forbidden operator is called by a function that torch.jit has compiled, where no function of Python is called.
The score of a call to what is forbidden is zero however it is wrapped.
"""

EXERCISE = "attention"
SPEED = False

# The cell:
@torch.jit.script
def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=seen)


def attention(q, k, v):
    S, T = q.shape[1], k.shape[1]
    future = torch.arange(T) > torch.arange(S)[:, None] + (T - S)
    scores = (torch.einsum("bshd,bthd->bsht", q, k) / math.sqrt(q.shape[-1])).masked_fill(future[:, None], -math.inf)
    turned = [x.transpose(1, 2) for x in (q, k, v)]
    return attend(*turned, ~future).transpose(1, 2), scores.logsumexp(-1)
