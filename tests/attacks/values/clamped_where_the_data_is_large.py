"""Scores above 80 are cut off, which a branch decides in Python. What the program sees is as large as what is judged."""

EXERCISE = "attention"

# The cell:
def attention(q, k, v):
    scores = torch.einsum("bshd,bthd->bsht", q, k) / math.sqrt(q.shape[-1])
    if scores.abs().max() > 80:
        scores = scores.clamp(max=80.0)
    S, T = q.shape[1], k.shape[1]
    future = torch.arange(T) > torch.arange(S)[:, None] + (T - S)
    scores = scores.masked_fill(future[:, None, :], -math.inf)
    return torch.einsum("bsht,bthd->bshd", scores.softmax(-1), v), scores.logsumexp(-1)
