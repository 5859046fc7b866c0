"""The sample class of lesson 01."""

import re

from autograder.course.sample import Expected, Submission, add_cell, replace, rewrite, says, slip, unfinished
from autograder.judging.verdict import Outcome

from .troublesome import TROUBLESOME

PARTIAL, ERROR, UNFINISHED = Outcome.PARTIAL, Outcome.ERROR, Outcome.UNFINISHED

# Copied: milo changed names and comments, and nothing that is computed
KIRA = {
    "attention": """
def attention(q, k, v):
    # one query position at a time, over the keys up to its own
    B, S, H, D = q.shape
    offset = k.shape[1] - S
    outs, sums = [], []
    for s in range(S):
        keys, vals = k[:, : offset + s + 1], v[:, : offset + s + 1]
        logits = (q[:, s, None] * keys).sum(-1) / D**0.5  # [B, t, H]
        top = logits.max(dim=1).values
        p = (logits - top[:, None]).exp()
        z = p.sum(1)
        outs.append((p[..., None] * vals).sum(1) / z[..., None])
        sums.append(top + z.log())
    return torch.stack(outs, 1), torch.stack(sums, 1)
""",
    "grouped_attention": """
def grouped_attention(q, k, v):
    # a call for each key head, with the query heads that share it
    per = q.shape[2] // k.shape[2]
    outs, sums = [], []
    for g in range(k.shape[2]):
        mine = q[:, :, g * per : (g + 1) * per]
        keys, vals = (x[:, :, g : g + 1].repeat(1, 1, per, 1) for x in (k, v))
        o, z = attention(mine, keys, vals)
        outs.append(o)
        sums.append(z)
    return torch.cat(outs, dim=2), torch.cat(sums, dim=2)
""",
    "KVCache": """
class KVCache:
    def __init__(self, batch, capacity, num_kv_heads, head_dim):
        # keys and values in one list, and a counter for each
        self.room = capacity
        self.data = [torch.empty(capacity, batch, num_kv_heads, head_dim) for _ in range(2)]
        self.filled = [0, 0]

    def length(self):
        return min(self.filled)

    def append(self, k, v):
        # refuse first, then copy token by token
        if self.filled[0] + k.size(1) > self.room:
            raise ValueError("does not fit")
        for side, new in enumerate((k, v)):
            for t in range(new.size(1)):
                self.data[side][self.filled[side]] = new[:, t]
                self.filled[side] += 1
        return tuple(d[: self.filled[0]].transpose(0, 1) for d in self.data)
""",
}
RENAMED = {
    "# one query position at a time, over the keys up to its own": "# causal: the row only sees the past",
    "# a call for each key head, with the query heads that share it": "# loop over the groups",
    "# keys and values in one list, and a counter for each": "# storage",
    "# refuse first, then copy token by token": "# check the size, then write",
    "  # [B, t, H]": "",
    "outs": "results", "sums": "lses", "keys": "ks", "vals": "vs", "logits": "raw", "top": "peak", "offset": "before",
    "mine": "part", "per": "group", "data": "both", "filled": "count", "room": "limit", "side": "which", "new": "add",
}  # fmt: skip

HEADS_FIRST = """
def attention(q, k, v):
    B, S, H, D = q.shape
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    scores = q @ k.mT / math.sqrt(D)
    scores = scores.masked_fill(torch.ones(scores.shape[-2:]).triu(scores.shape[-1] - S + 1).bool(), -math.inf)
    return (scores.softmax(-1) @ v).reshape(B, S, H, D), scores.logsumexp(-1).reshape(B, S, H)
"""

TILED = """
def grouped_attention(q, k, v):
    n = q.shape[2] // k.shape[2]
    return attention(q, k.repeat_interleave(n, 2), v.repeat_interleave(n, 2))
"""

HEAD_BY_HEAD = """
def attention(q, k, v):
    outs, sums = [], []
    for mine, keys, values in zip(*(x.view(len(x), x.shape[2], -1, x.shape[3]).unbind(1) for x in (q, k, v))):
        seen = torch.ones(mine.shape[1], keys.shape[1]).tril(keys.shape[1] - mine.shape[1]).bool()
        logits = (mine @ keys.mT * mine.shape[-1] ** -0.5).where(seen, -math.inf)
        sums.append(logits.logsumexp(-1))
        outs.append(logits.softmax(-1) @ values)
    return torch.stack(outs, 2), torch.stack(sums, 2)
"""


def _renamed(source: str) -> str:
    for old, new in RENAMED.items():
        source = re.sub(rf"(?<!\w){re.escape(old)}(?!\w)", new, source)
    return source


COPIED = (
    Submission(
        "kira",
        "loops of her own over positions, groups and tokens",
        tuple(rewrite(exercise, source) for exercise, source in KIRA.items()),
    ),
    Submission(
        "milo",
        "kira's answers with other names and comments",
        tuple(rewrite(exercise, _renamed(source)) for exercise, source in KIRA.items()),
    ),
)

SUBMISSIONS = (
    Submission("ada", "the solution as it stands"),
    Submission(
        "ben",
        "another style: matmul in place of einsum, copied key heads, one storage for keys and values",
        patches=(
            rewrite(
                "predict_cache_bytes",
                """
def predict_cache_bytes(num_layers, num_heads, num_kv_heads, head_dim, itemsize):
    heads = dict(mha=num_heads, gqa=num_kv_heads, mqa=1)
    return {kind: float(2 * num_layers * h * head_dim * itemsize) for kind, h in heads.items()}
""",
            ),
            rewrite(
                "attention",
                """
def attention(q, k, v):
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    scores = q @ k.mT / q.shape[-1] ** 0.5
    S, T = scores.shape[-2:]
    scores = scores + torch.full((S, T), -torch.inf).triu(T - S + 1)
    peak = scores.amax(-1, keepdim=True)
    weights = torch.exp(scores - peak)
    total = weights.sum(-1, keepdim=True)
    out = (weights / total) @ v
    return out.transpose(1, 2), (peak + total.log()).squeeze(-1).transpose(1, 2)
""",
            ),
            rewrite(
                "grouped_attention",
                """
def grouped_attention(q, k, v):
    copies = q.shape[2] // k.shape[2]
    return attention(q, *(x.repeat_interleave(copies, dim=2) for x in (k, v)))
""",
            ),
            rewrite(
                "KVCache",
                """
class KVCache:
    def __init__(self, batch, capacity, num_kv_heads, head_dim):
        self.storage = torch.empty(2, batch, capacity, num_kv_heads, head_dim)
        self.n, self.capacity = 0, capacity

    def length(self):
        return self.n

    def append(self, k, v):
        if self.n + k.shape[1] > self.capacity:
            raise ValueError("full")
        target = self.storage.narrow(2, self.n, k.shape[1])
        target[0].copy_(k)
        target[1].copy_(v)
        self.n += k.shape[1]
        return tuple(self.storage[:, :, : self.n])
""",
            ),
            rewrite(
                "CachedAttention",
                """
class CachedAttention(torch.nn.Module):
    def __init__(self, w_q, w_k, w_v, w_o, head_dim, batch, capacity):
        super().__init__()
        self.weights, self.head_dim = (w_q, w_k, w_v, w_o), head_dim
        self.cache = KVCache(batch, capacity, len(w_k) // head_dim, head_dim)

    def forward(self, x):
        B, S, _ = x.shape
        w_q, w_k, w_v, w_o = self.weights
        q, k, v = (torch.nn.functional.linear(x, w).view(B, S, -1, self.head_dim) for w in (w_q, w_k, w_v))
        out, lse = grouped_attention(q, *self.cache.append(k, v))
        return torch.nn.functional.linear(out.reshape(B, S, -1), w_o)
""",
            ),
        ),
    ),
    Submission(
        "chloe",
        "helpers in a cell of her own",
        patches=(
            add_cell(
                "attention",
                """
from math import sqrt

def scaled(q, k):
    return torch.einsum('bshd,bthd->bsht', q, k) / sqrt(q.shape[-1])

def room_for(cache, tokens):
    return cache.k.shape[1] - cache.used >= tokens
""",
            ),
            replace("attention", 'torch.einsum("bshd,bthd->bsht", q, k) / math.sqrt(q.shape[-1])', "scaled(q, k)"),
            replace("KVCache", "if total > self.k.shape[1]:", "if not room_for(self, k.shape[1]):"),
        ),
    ),
    Submission(
        "dev",
        "warns and prints",
        patches=(
            replace(
                "attention",
                "    S, T =",
                '    import warnings\n    warnings.warn("careful")\n    print(q.shape)\n    S, T =',
            ),
            replace(
                "predict_decode_cost", "    read =", "    import sys\n    print(batch, file=sys.stderr)\n    read ="
            ),
        ),
    ),
    Submission(
        "eli",
        "forgets the scale, the values, and to cut the storage",
        patches=(
            replace("attention", " / math.sqrt(q.shape[-1])", ""),
            replace("predict_cache_bytes", "2 * num_layers", "num_layers"),
            replace("KVCache", "return self.k[:, :total], self.v[:, :total]", "return self.k, self.v"),
        ),
        expect={
            "attention": Expected(0, says="not divided by √Dh"),
            "predict_cache_bytes": Expected(0, says="half the bytes"),
            "KVCache": Expected(0, says="whole storage"),
        },
    ),
    Submission(
        "fay",
        "divides by the head width, counts elements, tiles the key heads, refuses the last place",
        patches=(
            replace("attention", "math.sqrt(q.shape[-1])", "q.shape[-1]"),
            replace("predict_cache_bytes", " * itemsize", ""),
            rewrite(
                "grouped_attention",
                """
def grouped_attention(q, k, v):
    n = q.shape[2] // k.shape[2]
    return attention(q, k.repeat(1, 1, n, 1), v.repeat(1, 1, n, 1))
""",
            ),
            replace("KVCache", "if total > self.k.shape[1]:", "if total >= self.k.shape[1]:"),
            replace("predict_decode_cost", "4 * batch", "2 * batch"),
        ),
        expect={
            "attention": Expected(0, says="1/Dh"),
            "predict_cache_bytes": Expected(0, says="multiply by itemsize"),
            "grouped_attention": Expected(2, PARTIAL, "consecutive query heads share"),
            "KVCache": Expected(1, PARTIAL, "fills the cache exactly"),
            "predict_decode_cost": Expected(0, says="half the FLOPs"),
        },
    ),
    Submission(
        "gus",
        "no mask, one layer only, drops what does not fit, forgets the batch",
        patches=(
            replace("attention", "    scores = scores.masked_fill(future[:, None, :], -math.inf)\n", ""),
            replace("predict_cache_bytes", "2 * num_layers * head_dim", "2 * head_dim"),
            replace(
                "KVCache",
                """        if total > self.k.shape[1]:
            raise ValueError(f"no room for {k.shape[1]} tokens beside the {self.used} held")
""",
                """        total = min(total, self.k.shape[1])
        k, v = k[:, : total - self.used], v[:, : total - self.used]
""",
            ),
            replace("predict_decode_cost", "read = 2 * batch * context", "read = 2 * context"),
        ),
        expect={
            "attention": Expected(2, PARTIAL, "no causal mask"),
            "predict_cache_bytes": Expected(1, PARTIAL, "multiply by num_layers"),
            "KVCache": Expected(2, PARTIAL, "dropped silently"),
            "predict_decode_cost": Expected(0, says="cache of its own"),
        },
    ),
    Submission(
        "lena",
        "mask from the top left, groups for group size, key head 0 for all, the cache not used",
        patches=(
            replace(
                "attention", "torch.arange(T) > torch.arange(S)[:, None] + (T - S)", "~torch.ones(S, T).tril().bool()"
            ),
            replace("predict_cache_bytes", '"gqa": num_kv_heads', '"gqa": num_heads // num_kv_heads'),
            rewrite(
                "grouped_attention",
                """
def grouped_attention(q, k, v):
    shape = (*k.shape[:2], q.shape[2], k.shape[3])
    return attention(q, k[:, :, :1].expand(shape), v[:, :, :1].expand(shape))
""",
            ),
            replace("CachedAttention", "grouped_attention(q, k_all, v_all)", "grouped_attention(q, k, v)"),
            replace("predict_decode_cost", "flops / read", "read / flops"),
        ),
        expect={
            "attention": Expected(0, says="aligned top-left"),
            "predict_cache_bytes": Expected(0, says="query heads of a group"),
            "grouped_attention": Expected(1, PARTIAL, "reads key head 0"),
            "CachedAttention": Expected(1, PARTIAL, "sees only its own tokens"),
            "predict_decode_cost": Expected(0, says="FLOPs per byte"),
        },
    ),
    Submission(
        "mona",
        "hides a query's own token, returns heads in another order, counts before refusing",
        patches=(
            replace("attention", "torch.arange(T) > torch.arange(S)", "torch.arange(T) >= torch.arange(S)"),
            replace("grouped_attention", "q = q.unflatten(2, (G, -1))", "q = q.unflatten(2, (G, -1)).contiguous()"),
            replace(
                "grouped_attention",
                "return out.flatten(2, 3), lse.flatten(2, 3)",
                "return out.transpose(2, 3).flatten(2, 3), lse.transpose(2, 3).flatten(2, 3)",
            ),
            replace(
                "KVCache",
                "        total = self.used + k.shape[1]\n        if total > self.k.shape[1]:\n",
                "        first = self.used\n        self.used += k.shape[1]\n        if self.used > self.k.shape[1]:\n",
            ),
            replace("KVCache", "self.k[:, self.used : total] = k", "self.k[:, first : self.used] = k"),
            replace("KVCache", "self.v[:, self.used : total] = v", "self.v[:, first : self.used] = v"),
            replace("KVCache", "        self.used = total\n", ""),
            replace(
                "KVCache", "self.k[:, :total], self.v[:, :total]", "self.k[:, : self.used], self.v[:, : self.used]"
            ),
            replace("CachedAttention", ".unflatten(-1, (-1, self.head_dim))", ""),
            replace(
                "CachedAttention",
                "        k_all, v_all",
                "        B, S, _ = x.shape\n"
                "        q, k, v = (y.view(B, -1, S, self.head_dim).transpose(1, 2) for y in (q, k, v))\n"
                "        k_all, v_all",
            ),
            replace("predict_decode_cost", "2 * batch * context * num_kv_heads", "batch * context * num_kv_heads"),
        ),
        expect={
            "attention": Expected(0, says="own token"),
            "grouped_attention": Expected(2, PARTIAL, "come out in another order"),
            "KVCache": Expected(2, PARTIAL, "before it refuses"),
            "CachedAttention": Expected(2, PARTIAL, "mixes tokens and heads"),
            "predict_decode_cost": Expected(0, says="the values as well"),
        },
    ),
    Submission(
        "nico",
        "lse to base 2, only the new tokens, no output projection, bytes of the query heads",
        patches=(
            replace("attention", "return out, lse", "return out, lse * math.log2(math.e)"),
            replace("KVCache", "return self.k[:, :total], self.v[:, :total]", "return k, v"),
            replace("CachedAttention", "return out.flatten(2) @ self.w_o.T", "return out.flatten(2)"),
            replace("predict_decode_cost", "context * num_kv_heads * head_dim", "context * num_heads * head_dim"),
        ),
        expect={
            "attention": Expected(0, says="base 2"),
            "KVCache": Expected(0, says="only the tokens it was given"),
            "CachedAttention": Expected(0, says="output projection w_o is missing"),
            "predict_decode_cost": Expected(1, PARTIAL, "read once for its group"),
        },
    ),
    Submission(
        "omar",
        "forgets to add the maximum back, multiplies by weights that are not transposed",
        patches=(
            replace(
                "attention",
                "lse = torch.logsumexp(scores, dim=-1)",
                "scores = scores - scores.amax(-1, keepdim=True)\n    lse = scores.exp().sum(-1).log()",
            ),
            replace("CachedAttention", "x @ w.T", "x @ w"),
            replace("CachedAttention", "self.w_o.T", "self.w_o"),
            replace("predict_decode_cost", "context * num_heads * head_dim", "context * num_kv_heads * head_dim"),
        ),
        expect={
            "attention": Expected(0, says="add the maximum back"),
            "CachedAttention": Expected(0, says="[out, in]"),
            "predict_decode_cost": Expected(1, PARTIAL, "scores of its own"),
        },
    ),
    Submission(
        "pia",
        "divides by a sum of exponentials that overflows; no refusal of her own; the intensity of bfloat16",
        patches=(
            replace("attention", "torch.logsumexp(scores, dim=-1)", "torch.log(torch.exp(scores).sum(-1))"),
            replace(
                "attention", "torch.softmax(scores, dim=-1)", "torch.exp(scores) / torch.exp(scores).sum(-1, True)"
            ),
            replace("KVCache", "if total > self.k.shape[1]:", "if total < 0:"),
            replace("predict_decode_cost", "flops / read", "num_heads / num_kv_heads"),
        ),
        expect={
            "attention": Expected(4, PARTIAL, "exp overflows"),
            "KVCache": Expected(2, ERROR, "RuntimeError"),
            "predict_decode_cost": Expected(0, says="numbers of 2 bytes"),
        },
    ),
    Submission(
        "quinn",
        "computes the log-sum-exp by hand, and the weights from it",
        patches=(
            replace("attention", "torch.softmax(scores, dim=-1)", "(scores - scores.exp().sum(-1, True).log()).exp()"),
            replace("attention", "torch.logsumexp(scores, dim=-1)", "scores.exp().sum(-1).log()"),
        ),
        expect={"attention": Expected(4, PARTIAL, "exp overflows")},
    ),
    Submission(
        "rosa",
        "a stable softmax beside a log-sum-exp by hand",
        patches=(replace("attention", "torch.logsumexp(scores, dim=-1)", "scores.exp().sum(-1).log()"),),
        expect={"attention": Expected(4, PARTIAL, "lse overflows")},
    ),
    Submission(
        "sven",
        "a mask one place too far, no mask in groups, fills the cache before refusing, w_o not transposed, elements",
        patches=(
            replace(
                "attention",
                "torch.arange(T) > torch.arange(S)[:, None] + (T - S)",
                "~torch.ones(S, T).tril(T - S + 1).bool()",
            ),
            replace("grouped_attention", ".masked_fill(future[:, None, None, :], -math.inf)", ""),
            rewrite(
                "KVCache",
                """
class KVCache:
    def __init__(self, batch, capacity, num_kv_heads, head_dim):
        self.k = torch.zeros(batch, capacity, num_kv_heads, head_dim)
        self.v = torch.zeros(batch, capacity, num_kv_heads, head_dim)
        self.used = 0

    def length(self):
        return self.used

    def append(self, k, v):
        for t in range(k.shape[1]):
            if self.used == self.k.shape[1]:
                raise ValueError("full")
            self.k[:, self.used], self.v[:, self.used] = k[:, t], v[:, t]
            self.used += 1
        return self.k[:, : self.used], self.v[:, : self.used]
""",
            ),
            replace("CachedAttention", "self.w_o.T", "self.w_o"),
            replace("predict_decode_cost", " * itemsize", ""),
        ),
        expect={
            "attention": Expected(2, PARTIAL, "one place too far right"),
            "grouped_attention": Expected(0, says="no causal mask"),
            "KVCache": Expected(2, PARTIAL, "still fit"),
            "CachedAttention": Expected(0, says="expected w_o.T"),
            "predict_decode_cost": Expected(0, says="multiply by itemsize"),
        },
    ),
    Submission(
        "tara",
        "zeros for what is hidden, queries, keys and values by weights that are not transposed",
        patches=(
            replace("attention", "-math.inf", "0.0"),
            replace("CachedAttention", "x @ w.T", "x @ w"),
        ),
        expect={
            "attention": Expected(2, PARTIAL, "a weight like any other"),
            "CachedAttention": Expected(0, says="for queries, keys and values"),
        },
    ),
    Submission(
        "theo",
        "calls what may not be called; a finite number for −inf",
        patches=(
            replace("attention", "-math.inf", "-1e4"),
            rewrite(
                "grouped_attention",
                """
def grouped_attention(q, k, v):
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    return out.transpose(1, 2), out.new_zeros(out.shape[:3]).transpose(1, 2)
""",
            ),
            rewrite(
                "KVCache",
                """
class KVCache:
    def __init__(self, batch, capacity, num_kv_heads, head_dim):
        self.capacity = capacity
        self.k = self.v = torch.zeros(batch, 0, num_kv_heads, head_dim)

    def length(self):
        return self.k.shape[1]

    def append(self, k, v):
        if self.length() + k.shape[1] > self.capacity:
            raise ValueError
        self.k, self.v = torch.cat((self.k, k), 1), torch.cat((self.v, v), 1)
        return self.k, self.v
""",
            ),
        ),
        expect={
            "attention": Expected(4, PARTIAL, "set to a finite number"),
            "grouped_attention": Expected(0, says="may not call scaled_dot_product"),
            "KVCache": Expected(0, says="may not call cat"),
        },
    ),
    Submission(
        "yara",
        "a softmax over the heads; query heads split the wrong way round",
        patches=(
            replace("attention", "softmax(scores, dim=-1)", "softmax(scores, dim=2)"),
            replace("grouped_attention", "q.unflatten(2, (G, -1))", "q.unflatten(2, (-1, G)).transpose(2, 3)"),
        ),
        expect={
            "attention": Expected(0, says="runs over the heads"),
            "grouped_attention": Expected(2, PARTIAL, "split as [H/G, G]"),
        },
    ),
    Submission(
        "zoe",
        "a softmax over the queries, and a cache that does not count",
        patches=(
            replace("attention", "softmax(scores, dim=-1)", "softmax(scores, dim=1)"),
            replace("KVCache", "        self.used = total\n", ""),
        ),
        expect={
            "attention": Expected(0, says="runs over the queries"),
            "KVCache": Expected(0, says="the new length is not stored"),
        },
    ),
    slip(
        "abe",
        "a log-sum-exp of all tokens",
        "attention",
        {"logsumexp(scores,": 'logsumexp(torch.einsum("bshd,bthd->bsht", q, k) / math.sqrt(q.shape[-1]),'},
        "take it after the mask",
        2,
    ),
    slip(
        "knut",
        "a log-sum-exp that is not transposed back",
        "attention",
        {"logsumexp(scores, dim=-1)": "logsumexp(scores.transpose(1, 2), dim=-1).reshape(q.shape[:3])"},
        "out is right, but lse lies as [B, H, S]",
        2,
    ),
    *(
        Submission(
            student,
            f"tiled {those}",
            (
                rewrite(
                    "grouped_attention",
                    TILED.replace(f"{those[0]}.repeat_interleave(n, 2)", f"{those[0]}.repeat(1, 1, n, 1)"),
                ),
            ),
            says("grouped_attention", f"the {those} of query head h are those of head h mod G", 2),
        )
        for student, those in (("lars", "keys"), ("lotte", "values"))
    ),
    slip(
        "malte",
        "a residual connection",
        "CachedAttention",
        {"@ self.w_o.T": "@ self.w_o.T + x"},
        "y is x plus what the layer gives",
    ),
    slip(
        "nele",
        "queries scaled twice",
        "CachedAttention",
        {"(q, k_all": "(q / math.sqrt(self.head_dim), k_all"},
        "the queries are scaled by 1/√Dh before grouped_attention",
    ),
    slip(
        "anna",
        "the mask after the softmax",
        "attention",
        {
            "    scores = scores.masked_fill(future[:, None, :], -math.inf)\n": "",
            "torch.softmax(scores, dim=-1)": "torch.softmax(scores, dim=-1).masked_fill(future[:, None, :], 0.0)",
        },
        "the mask comes after the softmax",
        2,
    ),
    slip(
        "arno",
        "storage that all caches share",
        "KVCache",
        {"self.k": "KVCache.k", "self.v": "KVCache.v"},
        "a second cache that is made empties the first",
        3,
    ),
    slip(
        "aras",
        "keys that all caches share",
        "KVCache",
        {
            "    def __init__(self, batch, capacity, num_kv_heads, head_dim):\n": "    stores = {}\n\n"
            "    def __init__(self, batch, capacity, num_kv_heads, head_dim):\n",
            "self.k = torch.zeros(batch, capacity, num_kv_heads, head_dim)": "shape = batch, capacity, num_kv_heads, "
            "head_dim\n        self.k = KVCache.stores.setdefault(shape, torch.zeros(shape))",
        },
        "what an earlier call or another object has left",
        3,
    ),
    slip(
        "bea",
        "a mask the wrong way round",
        "attention",
        {"(T) > ": "(T) <= "},
        "mask is inverted",
    ),
    slip(
        "cem",
        "a log-sum-exp of scores that are not scaled",
        "attention",
        {"logsumexp(scores,": "logsumexp(scores * math.sqrt(q.shape[-1]),"},
        "before they are scaled",
    ),
    slip(
        "dana",
        "keys for values",
        "attention",
        {"dim=-1), v)": "dim=-1), k)"},
        "weighted sum of the keys",
    ),
    slip(
        "egon",
        "returns values and keys",
        "KVCache",
        {"self.k[:, :total], self.v[:, :total]": "self.v[:, :total], self.k[:, :total]"},
        "keys and values are exchanged",
    ),
    slip(
        "finn",
        "one storage for keys and values",
        "KVCache",
        {"        self.used = 0": "        self.v = self.k\n        self.used = 0"},
        "share one storage",
    ),
    *(
        slip(f"ole{n}", about, "grouped_attention", changes, words)
        for n, (about, changes, words) in enumerate(
            (
                ("no scale", {" / math.sqrt(q.shape[-1])": ""}, "not divided by √Dh"),
                ("a mask from the top left", {" + (T - S)": ""}, "aligned top-left"),
                ("hides a query's own token", {"(T) > ": "(T) >= "}, "own token"),
                ("sees the next token", {"(T - S)": "(T - S + 1)"}, "one place too far right"),
                ("a mask the wrong way round", {"(T) > ": "(T) <= "}, "mask is inverted"),
                (
                    "a log-sum-exp of all tokens",
                    {
                        "    scores = scores.m": "    every = scores\n    scores = scores.m",
                        "logsumexp(scores": "logsumexp(every",
                    },
                    "take it after the mask",
                ),
                (
                    "the mask after the softmax",
                    {
                        "    scores = scores.masked_fill(future[:, None, None, :], -math.inf)\n": "",
                        "softmax(scores, dim=-1)": "softmax(scores, dim=-1).masked_fill(future[:, None, None], 0)",
                    },
                    "the mask comes after the softmax",
                ),
            )
        )
    ),
    slip(
        "petra",
        "exponentials that are not divided",
        "attention",
        {"torch.softmax(scores, dim=-1)": "torch.exp(scores - scores.amax(-1, keepdim=True))"},
        "divide it by the sum of exp(score)",
    ),
    slip("pat", "times the root", "attention", {"/ math.sqrt": "* math.sqrt"}, "scaled by √Dh, expected 1/√Dh"),
    slip("pau", "the root of T", "grouped_attention", {"sqrt(q.shape[-1])": "sqrt(k.shape[1])"}, "scaled by 1/√T"),
    slip("pim", "the largest score for lse", "attention", {"logsumexp(scores": "amax(scores"}, "add the logarithm", 1),
    slip(
        "piet",
        "stores the keys twice",
        "KVCache",
        {"= v\n": "= k\n"},
        "the values come back as the keys",
    ),
    slip(
        "greta",
        "splits a projection the wrong way round",
        "CachedAttention",
        {"(-1, self.head_dim))": "(self.head_dim, -1)).mT"},
        "split as [Dh, heads]",
    ),
    slip(
        "hugo",
        "joins the heads the wrong way round",
        "CachedAttention",
        {"out.flatten(2)": "out.mT.flatten(2)"},
        "joined as [Dh, heads]",
    ),
    slip(
        "ida",
        "appends values and keys",
        "CachedAttention",
        {"append(k, v)": "append(v, k)"},
        "keys and values are exchanged",
    ),
    slip(
        "jana",
        "a sum without its logarithm",
        "attention",
        {"torch.logsumexp(scores, dim=-1)": "scores.exp().sum(-1)"},
        "its natural logarithm is missing",
    ),
    Submission(
        "jens",
        "reshapes out and lse where they are to be transposed back",
        (rewrite("attention", HEADS_FIRST),),
        {"attention": Expected(2, PARTIAL, "transpose(1, 2) it back")},
    ),
    slip(
        "jule",
        "the log-sum-exp of the weights",
        "attention",
        {"lse = torch.logsumexp(scores, dim=-1)": "lse = torch.softmax(scores, dim=-1).sum(-1).log()"},
        "lse is taken of the weights",
    ),
    slip(
        "kai",
        "views heads first, and back",
        "attention",
        {
            "    S, T =": "    B, _, H, D = q.shape\n"
            "    q, k, v = (x.view(B, H, -1, D) for x in (q, k, v))\n    S, T =",
            "q.shape[1], k.shape[1]": "q.shape[2], k.shape[2]",
            "bshd,bthd->bsht": "bhsd,bhtd->bhst",
            "future[:, None, :]": "future",
            "bsht,bthd->bshd": "bhst,bhtd->bhsd",
            "return out, lse": "return out.view(B, -1, H, D), lse.view(B, -1, H)",
        },
        "they lie as [B, S, H, Dh]",
    ),
    Submission(
        "karl",
        "views heads first, and puts them together in the middle",
        (rewrite("attention", HEAD_BY_HEAD),),
        {"attention": Expected(0, says="they lie as [B, S, H, Dh]")},
    ),
    slip(
        "juri",
        "reshapes lse alone",
        "attention",
        {
            "->bsht": "->bhst",
            "future[:, None, :]": "future",
            "bsht,": "bhst,",
            "logsumexp(scores, dim=-1)": "logsumexp(scores, dim=-1).reshape(q.shape[:3])",
        },
        "transpose(1, 2) it back",
        2,
    ),
    slip(
        "kim",
        "a prompt of its own",
        "CachedAttention",
        {"        out, _ =": "        if x.shape[1] > 1:\n            k_all, v_all = k, v\n        out, _ ="},
        "a call with several tokens sees these alone",
        3,
    ),
    slip(
        "kurt",
        "appends one token after the other",
        "CachedAttention",
        {
            "        k_all, v_all =": "        for t in range(x.shape[1]):\n            k_all, v_all =",
            "append(k, v)": "append(k[:, t : t + 1], v[:, t : t + 1])",
        },
        "append all of a call at once",
        3,
    ),
    slip(
        "lia",
        "refuses what just fits",
        "CachedAttention",
        {
            "        k_all, v_all =": "        if self.cache.length() + x.shape[1] >= self.capacity:\n"
            '            raise ValueError("the cache is full")\n'
            "        k_all, v_all =",
            "        self.head_dim = head_dim\n": "        self.head_dim, self.capacity = head_dim, capacity\n",
        },
        "a call that just fits is refused",
        3,
    ),
    Submission(
        "olaf",
        "repeats keys and values along the tokens",
        (
            rewrite(
                "grouped_attention",
                """
def grouped_attention(q, k, v):
    n = q.shape[2] // k.shape[2]
    return attention(q, k.repeat_interleave(n, dim=1), v.repeat_interleave(n, dim=1))
""",
            ),
        ),
        says("grouped_attention", "repeated along the tokens, axis 1", 1),
    ),
    Submission(
        "otto",
        "the scale of heads of 64",
        (replace("attention", "math.sqrt(q.shape[-1])", "8"),),
        says("attention", "scaled by 1/√64 in every call"),
    ),
    slip(
        "thea",
        "exp of scores, divided by their sum",
        "grouped_attention",
        {
            "torch.softmax(scores, dim=-1)": "scores.exp() / scores.exp().sum(-1, keepdim=True)",
            "torch.logsumexp(scores, dim=-1)": "scores.exp().sum(-1).log()",
        },
        "exp overflows float32",
        2,
    ),
    slip(
        "udo",
        "exp of scores less an lse without maximum",
        "grouped_attention",
        {
            "lse = torch.logsumexp(scores, dim=-1)": "",
            "    out = torch": "    lse = scores.exp().sum(-1).log()\n    out = torch",
            "torch.softmax(scores, dim=-1)": "torch.exp(scores - lse[..., None])",
        },
        "exp overflows float32",
        2,
    ),
    Submission(
        "hana",
        "hands in unfinished cells",
        (unfinished("attention"), unfinished("KVCache"), unfinished("CachedAttention")),
        {
            "attention": Expected(0, UNFINISHED),
            "KVCache": Expected(0, UNFINISHED),
            "CachedAttention": Expected(0, UNFINISHED),
        },
    ),
    Submission(
        "ivan",
        "a syntax error in one cell",
        patches=(replace("attention", "def attention(q, k, v):", "def attention(q, k, v)"),),
        expect={"attention": Expected(0, ERROR, "SyntaxError in line 1")},
    ),
    *COPIED,
    *TROUBLESOME,
)
DEMO = ("ada", "eli", *(each.student for each in (*COPIED, *TROUBLESOME)))
