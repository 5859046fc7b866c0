# %% predict_cache_bytes: heads by form in a dict
def predict_cache_bytes(num_layers, num_heads, num_kv_heads, head_dim, itemsize):
    heads = {"mha": num_heads, "gqa": num_kv_heads, "mqa": 1}
    return {form: num_layers * (n * head_dim * 2) * itemsize for form, n in heads.items()}

# %% predict_cache_bytes: as the sizes of tensors, floats
def predict_cache_bytes(num_layers, num_heads, num_kv_heads, head_dim, itemsize):
    def cache(heads):
        return 2.0 * torch.empty(num_layers, heads, head_dim, device="meta").numel() * itemsize
    return dict(mha=cache(num_heads), gqa=cache(num_kv_heads), mqa=cache(1))

# %% predict_cache_bytes: math.prod, one entry after the other
def predict_cache_bytes(num_layers, num_heads, num_kv_heads, head_dim, itemsize):
    answer = {}
    for name, heads in zip(("mha", "gqa", "mqa"), (num_heads, num_kv_heads, 1)):
        keys = math.prod([num_layers, heads, head_dim, itemsize])
        answer[name] = keys + keys
    return answer

# %% predict_cache_bytes: torch's integers
def predict_cache_bytes(num_layers, num_heads, num_kv_heads, head_dim, itemsize):
    mha, gqa, mqa = torch.tensor([num_heads, num_kv_heads, 1]) * (2 * num_layers * head_dim * itemsize)
    return {"mqa": mqa, "mha": mha, "gqa": gqa}

# %% attention: a loop over the queries, each with the keys it sees
def attention(q, k, v):
    B, S, H, Dh = q.shape
    T = k.shape[1]
    out = torch.zeros(B, S, H, Dh)
    lse = torch.zeros(B, S, H)
    for s in range(S):
        n = T - S + s + 1
        scores = (q[:, s, None] * k[:, :n]).sum(-1) / Dh**0.5  # [B, n, H]
        lse[:, s] = torch.logsumexp(scores, dim=1)
        weights = torch.exp(scores - lse[:, s, None])
        out[:, s] = (weights[..., None] * v[:, :n]).sum(1)
    return out, lse

# %% attention: bmm on flattened heads, the mask by triu and addition
def attention(q, k, v):
    B, S, H, Dh = q.shape
    T = k.size(1)
    flat = lambda x: x.permute(0, 2, 1, 3).reshape(B * H, -1, Dh)
    q, k, v = flat(q), flat(k), flat(v)
    mask = torch.full((S, T), float("-inf")).triu(diagonal=T - S + 1)
    scores = torch.baddbmm(mask, q, k.mT, alpha=1 / math.sqrt(Dh))
    lse = scores.logsumexp(-1)
    out = torch.bmm(torch.softmax(scores, -1), v)
    return out.view(B, H, S, Dh).transpose(1, 2), lse.view(B, H, S).permute(0, 2, 1)

# %% attention: an online softmax over the keys, in place
def attention(q, k, v):
    B, S, H, Dh = q.shape
    T = k.shape[1]
    m = torch.full((B, S, H), -math.inf)
    l = torch.zeros(B, S, H)
    acc = torch.zeros_like(q)
    q = q * Dh**-0.5
    for t in range(T):
        first = max(0, t - (T - S))  # the first query that sees it
        score = torch.einsum("bshd,bhd->bsh", q[:, first:], k[:, t])
        new = torch.maximum(m[:, first:], score)
        alpha, p = torch.exp(m[:, first:] - new), torch.exp(score - new)
        l[:, first:] = l[:, first:] * alpha + p
        acc[:, first:] = acc[:, first:] * alpha[..., None] + p[..., None] * v[:, t, None]
        m[:, first:] = new
    return acc / l.unsqueeze(-1), m + torch.log(l)

# %% attention: query by query, a vector times a matrix
def attention(q, k, v):
    B, S, H, Dh = q.shape
    T = k.shape[1]
    out, lse = torch.empty(B, S, H, Dh), torch.empty(B, S, H)
    for b in range(B):
        for s in range(S):
            for h in range(H):
                keys, values = k[b, : T - S + s + 1, h], v[b, : T - S + s + 1, h]
                z = keys @ q[b, s, h] / math.sqrt(Dh)
                out[b, s, h] = z.softmax(0) @ values
                lse[b, s, h] = z.logsumexp(0)
    return out, lse

# %% attention: axes exchanged in place
def attention(q, k, v):
    S, T = q.shape[1], k.shape[1]
    q, k, v = (x.clone().transpose_(1, 2) for x in (q, k, v))
    z = q @ k.mT
    z /= math.sqrt(q.shape[-1])
    z += torch.full((S, T), -math.inf).triu_(T - S + 1).unsqueeze_(0)
    m = z.amax(-1, keepdim=True)
    e = z.sub_(m).exp_()
    l = e.sum(-1, keepdim=True)
    return (e.div_(l) @ v).transpose_(1, 2), m.add_(l.log_()).squeeze_(-1).transpose_(1, 2)

# %% grouped_attention: the earlier function, on repeated heads
def grouped_attention(q, k, v):
    n = q.shape[2] // k.shape[2]
    return attention(q, k.repeat_interleave(n, 2), v.repeat_interleave(n, 2))

# %% grouped_attention: group by group, stacked
def grouped_attention(q, k, v):
    n = q.shape[2] // k.shape[2]
    results = []
    for g, heads in enumerate(q.split(n, dim=2)):
        key, value = (x[:, :, g : g + 1].expand(-1, -1, n, -1) for x in (k, v))
        results.append(attention(heads, key, value))
    outs, lses = zip(*results)
    return torch.cat(outs, dim=2), torch.cat(lses, dim=2)

# %% grouped_attention: queries of a group as rows of one product, broadcast
def grouped_attention(q, k, v):
    (B, S, H, Dh), (_, T, G, _) = q.shape, k.shape
    q = q.reshape(B, S, G, H // G, Dh).permute(0, 2, 3, 1, 4)  # [B, G, n, S, Dh]
    k, v = (x.permute(0, 2, 1, 3).unsqueeze(2) for x in (k, v))
    scores = torch.matmul(q, k.transpose(-1, -2)).div_(math.sqrt(Dh))
    hidden = torch.ones(S, T, dtype=torch.bool).triu_(T - S + 1)
    scores.masked_fill_(hidden, -math.inf)
    lse = torch.logsumexp(scores, dim=-1, keepdim=True)
    out = torch.matmul((scores - lse).exp_(), v)
    back = lambda x: x.permute(0, 3, 1, 2, 4).reshape(B, S, H, -1)
    return back(out), back(lse).squeeze(-1)

# %% grouped_attention: heads by an index, double precision inside
def grouped_attention(q, k, v):
    H, G = q.shape[2], k.shape[2]
    head = torch.arange(H) // (H // G)
    k, v = k.index_select(2, head).double(), v[:, :, head].double()
    S, T = q.shape[1], k.shape[1]
    scores = torch.einsum("bshd,bthd->bhst", q.double(), k) * q.shape[3] ** -0.5
    position = torch.arange(T - S, T).unsqueeze(1)
    scores = torch.where(torch.arange(T) <= position, scores, torch.tensor(-torch.inf, dtype=torch.double))
    p = scores.softmax(dim=3)
    out = torch.einsum("bhst,bthd->bshd", p, v)
    return out.float(), scores.logsumexp(3).permute(0, 2, 1).float()

# %% KVCache: one storage for both, narrow and copy_
class KVCache:
    def __init__(self, batch, capacity, num_kv_heads, head_dim):
        self.storage = torch.empty(2, batch, capacity, num_kv_heads, head_dim)
        self.n = 0

    def length(self):
        return self.n

    def append(self, k, v):
        new = k.size(1)
        if new > self.storage.size(2) - self.n:
            raise ValueError("full")
        for target, source in zip(self.storage, (k, v)):
            target.narrow(1, self.n, new).copy_(source)
        self.n += new
        return tuple(each.narrow(1, 0, self.n) for each in self.storage)

# %% KVCache: storage in the order of heads, returned as views
class KVCache:
    def __init__(self, batch, capacity, num_kv_heads, head_dim):
        shape = (batch, num_kv_heads, capacity, head_dim)
        self.k, self.v = torch.zeros(shape), torch.zeros(shape)
        self.capacity, self.filled = capacity, 0

    def length(self):
        return self.filled

    def append(self, k, v):
        start, end = self.filled, self.filled + k.shape[1]
        if end > self.capacity:
            raise ValueError(f"{end} tokens, and room for {self.capacity}")
        self.k[:, :, start:end] = k.transpose(1, 2)
        self.v[:, :, start:end] = v.transpose(1, 2)
        self.filled = end
        return self.k[:, :, :end].transpose(1, 2), self.v[:, :, :end].transpose(1, 2)

# %% KVCache: a dataclass, the length a property of its own, index_copy_
from dataclasses import dataclass, field

@dataclass
class KVCache:
    batch: int
    capacity: int
    num_kv_heads: int
    head_dim: int
    positions: list = field(default_factory=list)

    def __post_init__(self):
        self._k, self._v = (torch.zeros(self.batch, self.capacity, self.num_kv_heads, self.head_dim) for _ in "kv")

    def length(self):
        return len(self.positions)

    def append(self, k, v):
        S, start = k.shape[1], self.length()
        try:
            if start + S > self.capacity:
                raise OverflowError
        except OverflowError as error:
            raise ValueError("the cache is full") from error
        where = torch.arange(start, start + S)
        self._k.index_copy_(1, where, k)
        self._v.index_copy_(1, where, v)
        self.positions += range(start, start + S)
        return self._k[:, : self.length()], self._v[:, : self.length()]

# %% CachedAttention: torch's linear, views of heads
class CachedAttention:
    def __init__(self, w_q, w_k, w_v, w_o, head_dim, batch, capacity):
        self.w_q, self.w_k, self.w_v, self.w_o = w_q, w_k, w_v, w_o
        self.head_dim = head_dim
        self.cache = KVCache(batch, capacity, w_k.shape[0] // head_dim, head_dim)

    def forward(self, x):
        B, S, _ = x.shape
        linear = torch.nn.functional.linear
        q = linear(x, self.w_q).view(B, S, -1, self.head_dim)
        k = linear(x, self.w_k).view(B, S, -1, self.head_dim)
        v = linear(x, self.w_v).view(B, S, -1, self.head_dim)
        out = grouped_attention(q, *self.cache.append(k, v))[0]
        return linear(out.reshape(B, S, -1), self.w_o)

# %% CachedAttention: a module with one weight for queries, keys and values
class CachedAttention(torch.nn.Module):
    def __init__(self, w_q, w_k, w_v, w_o, head_dim, batch, capacity):
        super().__init__()
        self.sizes = [len(w) for w in (w_q, w_k, w_v)]
        self.w_in, self.w_o, self.head_dim = torch.cat((w_q, w_k, w_v)), w_o, head_dim
        self.cache = KVCache(batch, capacity, self.sizes[1] // head_dim, head_dim)

    def forward(self, x):
        parts = torch.matmul(x, self.w_in.T).split(self.sizes, dim=-1)
        q, k, v = [part.reshape(*x.shape[:2], -1, self.head_dim) for part in parts]
        keys, values = self.cache.append(k, v)
        out, _ = grouped_attention(q, keys, values)
        return torch.matmul(out.flatten(-2), self.w_o.t())

# %% CachedAttention: einsum over heads of the weights, no flattening
class CachedAttention:
    def __init__(self, w_q, w_k, w_v, w_o, head_dim, batch, capacity):
        self.w = {name: w.view(-1, head_dim, w.shape[1]) for name, w in zip("qkv", (w_q, w_k, w_v))}
        self.w_o = w_o.view(w_o.shape[0], -1, head_dim)
        self.cache = KVCache(batch, capacity, len(self.w["k"]), head_dim)

    def forward(self, x):
        q, k, v = (torch.einsum("bsc,hdc->bshd", x, self.w[name]) for name in "qkv")
        out, _lse = grouped_attention(q, *self.cache.append(k=k, v=v))
        return torch.einsum("bshd,chd->bsc", out, self.w_o)

# %% CachedAttention: attention written out, with the length of the cache for the mask
class CachedAttention:
    def __init__(self, w_q, w_k, w_v, w_o, head_dim, batch, capacity):
        self.w_q, self.w_k, self.w_v, self.w_o = w_q, w_k, w_v, w_o
        self.head_dim = head_dim
        self.cache = KVCache(batch, capacity, w_k.shape[0] // head_dim, head_dim)

    def _heads(self, x, w):
        return torch.stack((x @ w.T).split(self.head_dim, dim=-1), dim=2)

    @torch.no_grad()
    def forward(self, x):
        before = self.cache.length()
        k, v = self.cache.append(self._heads(x, self.w_k), self._heads(x, self.w_v))
        q = self._heads(x, self.w_q)
        n = q.shape[2] // k.shape[2]
        scores = torch.einsum("bshd,bthd->bhst", q, k.repeat_interleave(n, dim=2)) / self.head_dim**0.5
        for s in range(x.shape[1]):
            scores[:, :, s, before + s + 1 :] = -torch.inf
        out = torch.einsum("bhst,bthd->bshd", scores.softmax(-1), v.repeat_interleave(n, dim=2))
        return out.flatten(2) @ self.w_o.T

# %% predict_decode_cost: the earlier prediction for one layer
def predict_decode_cost(batch, context, num_heads, num_kv_heads, head_dim, itemsize):
    token = predict_cache_bytes(1, num_heads, num_kv_heads, head_dim, itemsize)["gqa"]
    nbytes = batch * context * token
    macs = sum(batch * num_heads * context * head_dim for _ in ("scores", "weighted sum"))
    return {"bytes": nbytes, "flops": 2 * macs, "intensity": 2 * macs / nbytes}

# %% predict_decode_cost: intensity in closed form, floats
def predict_decode_cost(batch, context, num_heads, num_kv_heads, head_dim, itemsize):
    n = float(batch * context * head_dim)
    return dict(intensity=2 * num_heads / (num_kv_heads * itemsize), flops=4 * n * num_heads, bytes=2 * n * num_kv_heads * itemsize)

# %% predict_decode_cost: tensors on the device meta, and counting products
def predict_decode_cost(batch, context, num_heads, num_kv_heads, head_dim, itemsize):
    k = torch.empty(batch, context, num_kv_heads, head_dim, device="meta")
    q = torch.empty(batch, num_heads, head_dim, device="meta")
    read = 2 * k.numel() * itemsize
    flops = 2 * 2 * q.numel() * context
    return {"bytes": read, "flops": flops, "intensity": flops / read}

# %% predict_decode_cost: a named tuple
from typing import NamedTuple

class Cost(NamedTuple):
    bytes: int
    flops: int

    @property
    def intensity(self):
        return self.flops / self.bytes

def predict_decode_cost(batch, context, num_heads, num_kv_heads, head_dim, itemsize):
    cost = Cost(2 * batch * context * num_kv_heads * head_dim * itemsize, 4 * batch * context * num_heads * head_dim)
    return {**cost._asdict(), "intensity": cost.intensity}

# %% predict_decode_cost: fractions and NumPy
from fractions import Fraction
import numpy as np

def predict_decode_cost(batch, context, num_heads, num_kv_heads, head_dim, itemsize):
    moved = np.prod([2, batch, context, num_kv_heads, head_dim, itemsize])
    flops = np.prod([2, 2, batch, context, num_heads, head_dim])
    return {"bytes": moved, "flops": flops, "intensity": float(Fraction(int(flops), int(moved)))}

# %% KVCache: places by a tensor of indices, index_put_
class KVCache:
    def __init__(self, batch, capacity, num_kv_heads, head_dim):
        self.k = torch.zeros((batch, capacity, num_kv_heads, head_dim))
        self.v = torch.zeros_like(self.k)
        self.places = torch.arange(capacity)
        self.used = 0

    def length(self):
        return int(self.used)

    def append(self, k, v):
        places = self.places[self.used : self.used + k.shape[1]]
        if len(places) < k.shape[1]:
            raise ValueError("no room")
        self.k[:, places], self.v[:, places] = k, v
        self.used += len(places)
        return self.k[:, : self.used], self.v[:, : self.used]

# %% attention: online softmax for each query, key by key
def attention(q, k, v):
    B, S, H, Dh = q.shape
    T = k.shape[1]
    out = torch.empty(B, S, H, Dh)
    lse = torch.empty(B, S, H)
    for s in range(S):
        m = torch.full((B, H), -math.inf)
        l = torch.zeros(B, H)
        acc = torch.zeros(B, H, Dh)
        for t in range(T - S + s + 1):
            z = (q[:, s] * k[:, t]).sum(-1) / math.sqrt(Dh)
            new = torch.maximum(m, z)
            a, p = torch.exp(m - new), torch.exp(z - new)
            l = l * a + p
            acc = acc * a[..., None] + p[..., None] * v[:, t]
            m = new
        out[:, s] = acc / l[..., None]
        lse[:, s] = m + torch.log(l)
    return out, lse
