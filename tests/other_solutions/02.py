# %% predict_latent_cache: words first, bytes behind
def predict_latent_cache(num_heads, qk_nope_head_dim, qk_rope_head_dim, v_head_dim, kv_lora_rank, itemsize):
    words = {"expanded": 0, "latent": kv_lora_rank + qk_rope_head_dim}
    for _ in range(num_heads):
        words["expanded"] += qk_nope_head_dim + qk_rope_head_dim
        words["expanded"] += v_head_dim
    answer = {f"{form}_bytes": n * itemsize for form, n in words.items()}
    answer["ratio"] = words["expanded"] / words["latent"]
    return answer

# %% predict_latent_cache: floats, keyword arguments of dict
def predict_latent_cache(num_heads, qk_nope_head_dim, qk_rope_head_dim, v_head_dim, kv_lora_rank, itemsize):
    key = float(qk_nope_head_dim) + qk_rope_head_dim
    expanded, latent = itemsize * num_heads * (key + v_head_dim), itemsize * float(kv_lora_rank + qk_rope_head_dim)
    return dict(ratio=expanded / latent, latent_bytes=latent, expanded_bytes=expanded)

# %% predict_latent_cache: torch's numbers
def predict_latent_cache(num_heads, qk_nope_head_dim, qk_rope_head_dim, v_head_dim, kv_lora_rank, itemsize):
    expanded = torch.tensor([qk_nope_head_dim, qk_rope_head_dim, v_head_dim]).sum() * num_heads * itemsize
    latent = torch.tensor([kv_lora_rank, qk_rope_head_dim]).sum() * itemsize
    return {"expanded_bytes": expanded, "latent_bytes": latent, "ratio": expanded.double() / latent}

# %% predict_latent_cache: shapes and math.prod
def predict_latent_cache(num_heads, qk_nope_head_dim, qk_rope_head_dim, v_head_dim, kv_lora_rank, itemsize):
    tensors = [(num_heads, qk_nope_head_dim), (num_heads, qk_rope_head_dim), (num_heads, v_head_dim)]
    expanded = sum(math.prod(shape) for shape in tensors)
    latent = sum((kv_lora_rank, qk_rope_head_dim))
    return {"expanded_bytes": expanded * itemsize, "latent_bytes": latent * itemsize, "ratio": expanded / latent}

# %% rms_normalize: dot product of rows, division by sqrt
def rms_normalize(x, weight, eps=1e-6):
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    y = x.to(wide)
    mean = torch.einsum("...n,...n->...", y, y) / y.shape[-1]
    return (y / torch.sqrt(mean + eps)[..., None] * weight.to(wide)).to(x.dtype)

# %% rms_normalize: in double precision, in place
def rms_normalize(x, weight, eps=1e-6):
    y = x.double()
    y = y.clone() if y is x else y
    y *= (y.pow(2).mean(dim=-1, keepdim=True) + eps).pow(-0.5)
    y *= weight
    return y.type_as(x)

# %% rms_normalize: by the norm of a row
def rms_normalize(x, weight, eps=1e-6):
    n = x.shape[-1]
    y = x.float() if x.itemsize < 4 else x
    norm = y.norm(dim=-1, keepdim=True)
    root = torch.sqrt(norm * norm / n + eps)
    return torch.mul(torch.div(y, root), weight).to(dtype=x.dtype)

# %% rotate_pairs: complex numbers
def rotate_pairs(x, cos, sin):
    z = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
    turn = torch.complex(cos, sin).unsqueeze(1)
    return torch.view_as_real(z * turn).flatten(-2)

# %% rotate_pairs: matrices of two by two
def rotate_pairs(x, cos, sin):
    turn = torch.stack((torch.stack((cos, -sin), -1), torch.stack((sin, cos), -1)), -2)  # [S, P, 2, 2]
    pairs = x.reshape(*x.shape[:-1], -1, 2)
    return torch.einsum("spij,bshpj->bshpi", turn, pairs).reshape(x.shape)

# %% rotate_pairs: tables repeated for both of a pair, the other of a pair with its sign
def rotate_pairs(x, cos, sin):
    cos, sin = cos.repeat_interleave(2, dim=-1), sin.repeat_interleave(2, dim=-1)
    other = torch.empty_like(x)
    other[..., 0::2] = -x[..., 1::2]
    other[..., 1::2] = x[..., 0::2]
    return x * cos[None, :, None] + other * sin[None, :, None]

# %% rotate_pairs: token by token, pair by pair
def rotate_pairs(x, cos, sin):
    out = torch.zeros_like(x)
    for s in range(x.shape[1]):
        for i in range(cos.shape[1]):
            a, b, c, d = x[:, s, :, 2 * i], x[:, s, :, 2 * i + 1], cos[s, i], sin[s, i]
            out[:, s, :, 2 * i] = c * a - d * b
            out[:, s, :, 2 * i + 1] = d * a + c * b
    return out

# %% latent_kv: split by sizes, linear
def latent_kv(h, w_dkv, norm_weight, cos, sin):
    sizes = [len(norm_weight), 2 * cos.shape[-1]]
    c_kv, k_rope = torch.nn.functional.linear(h, w_dkv).split(sizes, dim=-1)
    c_kv = rms_normalize(c_kv, norm_weight)
    k_rope = rotate_pairs(k_rope.unsqueeze(2), cos, sin).squeeze(2)
    return c_kv, k_rope

# %% latent_kv: two products, einsum
def latent_kv(h, w_dkv, norm_weight, cos, sin):
    R, B = norm_weight.numel(), h.shape[0]
    latent = torch.einsum("bsd,rd->bsr", h, w_dkv[:R])
    key = torch.einsum("bsd,rd->bsr", h, w_dkv[R:])
    return rms_normalize(x=latent, weight=norm_weight), rotate_pairs(key.view(B, -1, 1, key.shape[-1]), cos, sin).view_as(key)

# %% latent_kv: norm and rotation written out
def latent_kv(h, w_dkv, norm_weight, cos, sin):
    R = norm_weight.shape[0]
    both = torch.matmul(h, w_dkv.transpose(0, 1))
    c_kv = both[:, :, :R]
    c_kv = c_kv * (c_kv.square().mean(2, keepdim=True) + 1e-6).rsqrt() * norm_weight
    a, b = both[:, :, R:].unflatten(2, (-1, 2)).unbind(-1)
    k_rope = torch.stack([a * cos - b * sin, b * cos + a * sin], -1).reshape(*both.shape[:2], -1)
    return c_kv, k_rope

# %% latent_kv: sequence by sequence
def latent_kv(h, w_dkv, norm_weight, cos, sin):
    R = len(norm_weight)
    latents, keys = [], []
    for sequence in h:
        row = sequence.mm(w_dkv.t())
        latents.append(rms_normalize(row[:, :R], norm_weight))
        keys.append(rotate_pairs(row[None, :, None, R:], cos, sin)[0, :, 0])
    return torch.stack(latents), torch.stack(keys)

# %% naive_mla_attention: concatenated keys, heads first, matmul
def naive_mla_attention(q_nope, q_rope, c_kv, k_rope, w_uk, w_uv):
    (B, S, H, Dn), T = q_nope.shape, c_kv.shape[1]
    k_nope = c_kv[:, None] @ w_uk.mT  # [B, H, T, Dn]
    v = c_kv[:, None] @ w_uv.mT
    k = torch.cat((k_nope, k_rope[:, None].expand(B, H, T, -1)), dim=-1)
    q = torch.cat((q_nope, q_rope), dim=-1).transpose(1, 2)
    scores = q @ k.mT * q.shape[-1] ** -0.5
    scores = scores + torch.full((S, T), -math.inf).triu(T - S + 1)
    return (scores.softmax(-1) @ v).transpose(1, 2), scores.logsumexp(-1).transpose(1, 2)

# %% naive_mla_attention: head by head
def naive_mla_attention(q_nope, q_rope, c_kv, k_rope, w_uk, w_uv):
    B, S, H, Dn = q_nope.shape
    T, Dr = k_rope.shape[1:]
    seen = torch.arange(T) <= torch.arange(T - S, T).unsqueeze(-1)
    out, lse = torch.empty(B, S, H, w_uv.shape[1], dtype=c_kv.dtype), torch.empty(B, S, H, dtype=c_kv.dtype)
    for h in range(H):
        key, value = c_kv @ w_uk[h].T, c_kv @ w_uv[h].T
        scores = (q_nope[:, :, h] @ key.mT + q_rope[:, :, h] @ k_rope.mT) / (Dn + Dr) ** 0.5
        scores = torch.where(seen, scores, -torch.inf)
        m = scores.amax(-1, keepdim=True)
        p = torch.exp(scores - m)
        l = p.sum(-1, keepdim=True)
        out[:, :, h] = (p @ value) / l
        lse[:, :, h] = (m + l.log()).squeeze(-1)
    return out, lse

# %% naive_mla_attention: query by query, with the tokens it sees
def naive_mla_attention(q_nope, q_rope, c_kv, k_rope, w_uk, w_uv):
    S, T = q_nope.shape[1], c_kv.shape[1]
    keys = torch.tensordot(c_kv, w_uk, dims=([2], [2]))  # [B, T, H, Dn]
    values = torch.tensordot(c_kv, w_uv, dims=([2], [2]))
    scale = 1.0 / math.sqrt(q_nope.shape[3] + q_rope.shape[3])
    outs, lses = [], []
    for s in range(S):
        n = T - (S - 1 - s)
        score = (q_nope[:, s, None] * keys[:, :n]).sum(-1) + (q_rope[:, s, None] * k_rope[:, :n, None]).sum(-1)
        score = score * scale  # [B, n, H]
        outs.append((score.softmax(1)[..., None] * values[:, :n]).sum(1))
        lses.append(score.logsumexp(1))
    return torch.stack(outs, 1), torch.stack(lses, 1)

# %% mla_decode_step: the caches by index, w_o by linear
def mla_decode_step(h, weights, c_cache, k_cache, position, cos, sin):
    at = torch.tensor([position])
    c, s = cos[at], sin[at]
    c_new, k_new = latent_kv(h, weights["w_dkv"], weights["kv_norm"], c, s)
    c_cache.index_copy_(1, at, c_new)
    k_cache.index_copy_(1, at, k_new)
    q_nope, q_rope = mla_query(h, weights["w_dq"], weights["q_norm"], weights["w_uq"], c, s)
    out = naive_mla_attention(
        q_nope, q_rope, c_cache[:, : position + 1], k_cache[:, : position + 1], weights["w_uk"], weights["w_uv"]
    )[0]
    u = torch.nn.functional.linear(out.reshape(out.shape[0], 1, -1), weights["w_o"])
    return u, c_cache, k_cache

# %% mla_decode_step: narrow and copy_, keyword arguments
def mla_decode_step(h, weights, c_cache, k_cache, position, cos, sin):
    tables = dict(cos=cos.narrow(0, position, 1), sin=sin.narrow(0, position, 1))
    w_dkv, kv_norm, w_uk, w_uv, w_o = (weights[name] for name in "w_dkv kv_norm w_uk w_uv w_o".split())
    new = latent_kv(h, w_dkv, kv_norm, **tables)
    for cache, row in zip((c_cache, k_cache), new):
        cache.narrow(1, position, 1).copy_(row)
    query = mla_query(h, weights["w_dq"], weights["q_norm"], weights["w_uq"], **tables)
    filled = [cache.narrow(1, 0, position + 1) for cache in (c_cache, k_cache)]
    out, _ = naive_mla_attention(*query, *filled, w_uk, w_uv)
    return torch.einsum("bshv,chv->bsc", out, w_o.unflatten(1, out.shape[2:])), c_cache, k_cache

# %% mla_decode_step: row by row of the batch
def mla_decode_step(h, weights, c_cache, k_cache, position, cos, sin):
    w, end = weights, position + 1
    c, s = cos[position][None], sin[position][None]
    u = torch.zeros_like(h)
    for b in range(len(h)):
        c_new, k_new = latent_kv(h[b : b + 1], w["w_dkv"], w["kv_norm"], c, s)
        c_cache[b, position] = c_new[0, 0]
        k_cache[b, position] = k_new[0, 0]
        q_nope, q_rope = mla_query(h[b : b + 1], w["w_dq"], w["q_norm"], w["w_uq"], c, s)
        out, _ = naive_mla_attention(q_nope, q_rope, c_cache[b : b + 1, :end], k_cache[b : b + 1, :end], w["w_uk"], w["w_uv"])
        u[b] = out.reshape(1, -1) @ w["w_o"].T
    return u, c_cache, k_cache

# %% mla_decode_step: attention in the latent space, a class that keeps the weights
class Layer:
    def __init__(self, **weights):
        self.__dict__.update(weights)

    def step(self, h, caches, position, turn):
        for cache, new in zip(caches, latent_kv(h, self.w_dkv, self.kv_norm, *turn)):
            cache[:, position : position + 1] = new
        q_nope, q_rope = mla_query(h, self.w_dq, self.q_norm, self.w_uq, *turn)
        c_kv, k_rope = (cache[:, : position + 1] for cache in caches)
        q_latent = torch.einsum("bshd,hdr->bshr", q_nope, self.w_uk)
        scores = q_latent @ c_kv.mT[:, None] + q_rope @ k_rope.mT[:, None]
        weights = (scores / math.sqrt(q_nope.shape[-1] + q_rope.shape[-1])).softmax(-1)
        out = torch.einsum("bshr,hvr->bshv", weights @ c_kv[:, None], self.w_uv)
        return out.flatten(2) @ self.w_o.T

def mla_decode_step(h, weights, c_cache, k_cache, position, cos, sin):
    turn = cos[position : position + 1], sin[position : position + 1]
    return Layer(**weights).step(h, (c_cache, k_cache), position, turn), c_cache, k_cache

# %% naive_mla_attention: online softmax, one token expanded at a time
def naive_mla_attention(q_nope, q_rope, c_kv, k_rope, w_uk, w_uv):
    B, S, H, Dn = q_nope.shape
    T, Dr, Dv = c_kv.shape[1], k_rope.shape[2], w_uv.shape[1]
    m = torch.full((B, S, H), -math.inf, dtype=q_nope.dtype)
    l = torch.zeros(B, S, H, dtype=q_nope.dtype)
    acc = torch.zeros(B, S, H, Dv, dtype=q_nope.dtype)
    for t in range(T):
        k = torch.einsum("br,hdr->bhd", c_kv[:, t], w_uk)
        v = torch.einsum("br,hdr->bhd", c_kv[:, t], w_uv)
        z = (q_nope * k[:, None]).sum(-1) + (q_rope * k_rope[:, t][:, None, None]).sum(-1)
        z = z / math.sqrt(Dn + Dr)
        hidden = torch.arange(S) + T - S < t
        z = z.masked_fill(hidden[None, :, None], -math.inf)
        new = torch.maximum(m, z)
        a = torch.exp(m - new)
        p = torch.exp(z - new)
        l = l * a + p
        acc = acc * a[..., None] + p[..., None] * v[:, None]
        m = new
    return acc / l[..., None], m + torch.log(l)
