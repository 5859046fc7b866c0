"""A branch on the size of the scores: both ways are right for the data that take them."""

EXERCISE = "attention"

# The cell:
def attention(q, k, v):
    scores = torch.einsum("bshd,bthd->bsht", q, k) / math.sqrt(q.shape[-1])
    S, T = q.shape[1], k.shape[1]
    future = torch.arange(T) > torch.arange(S)[:, None] + (T - S)
    top = 0.0 if scores.abs().max() < 60 else scores.masked_fill(future[:, None, :], -math.inf).amax(-1, keepdim=True)
    weights = (scores - top).exp().masked_fill(future[:, None, :], 0)
    total = weights.sum(-1, keepdim=True)
    return torch.einsum("bsht,bthd->bshd", weights / total, v), (total.log() + top).squeeze(-1)
