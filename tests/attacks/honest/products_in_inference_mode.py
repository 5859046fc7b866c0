"""A right answer runs in torch's inference mode, where torch does not take products apart."""

EXERCISE = "attention"

# The cell:
@torch.inference_mode()
def attention(q, k, v):
    """Causal attention of the last S of T tokens, and the log-sum-exp of its scores.

    Parameters
    ----------
    q : [B, S, H, Dh] float32
    k, v : [B, T, H, Dh] float32
        The S queries are the last S of the T tokens: query s stands at position T-S+s (not at s).

    Returns
    -------
    out : [B, S, H, Dh]
    lse : [B, S, H]
        Natural logarithm of the sum of exp(q·k/sqrt(Dh)) over the keys that a query sees; finite
        even where scores are several hundred.
    """
    S, T = q.shape[1], k.shape[1]
    scores = torch.einsum("bshd,bthd->bsht", q, k) / math.sqrt(q.shape[-1])
    future = torch.arange(T) > torch.arange(S)[:, None] + (T - S)
    scores = scores.masked_fill(future[:, None, :], -math.inf)
    out = torch.einsum("bsht,bthd->bshd", torch.softmax(scores, dim=-1), v)
    lse = torch.logsumexp(scores, dim=-1)
    return out, lse
