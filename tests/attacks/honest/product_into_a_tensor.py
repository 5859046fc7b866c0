"""A right answer puts its products into tensors by `out=`."""

EXERCISE = "attention"

# The cell:
import torch, math
import torch.nn.functional as F
from torch import nn
def attention(q, k, v):
    S, T = q.shape[1], k.shape[1]
    seen = torch.ones(S, T, dtype=torch.bool).tril(T - S)
    
    q, k, v = (x.transpose(1, 2).contiguous() for x in (q, k, v))
    s = torch.empty(*q.shape[:3], T)
    torch.matmul(q, k.mT, out=s)
    s.div_(math.sqrt(q.shape[-1])).masked_fill_(~seen, -math.inf)
    lse = torch.empty(s.shape[:-1])
    torch.logsumexp(s, -1, out=lse)
    return (torch.softmax(s, -1) @ v).transpose(1, 2), lse.transpose(1, 2)
