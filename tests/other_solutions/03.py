# %% predict_macs: sums over named widths
def predict_macs(H, Dn, Dr, Dv, R):
    naive = {"key": Dn + Dr, "value": Dv}
    absorb = {"key": R + Dr, "value": R}
    words = sum(naive.values()) * H
    return dict(
        naive_macs=H * sum(naive.values()), absorb_macs=H * sum(absorb.values()), naive_words=words, absorb_words=absorb["key"]
    )

# %% predict_macs: a loop over heads
def predict_macs(H, Dn, Dr, Dv, R):
    result = dict.fromkeys(("naive_macs", "absorb_macs", "naive_words"), 0)
    for _ in range(H):
        result["naive_macs"] += Dn + Dr
        result["naive_macs"] += Dv
        result["absorb_macs"] += 2 * R + Dr
        result["naive_words"] += Dn + Dr + Dv
    result["absorb_words"] = R + Dr
    return result

# %% predict_macs: floats
def predict_macs(H, Dn, Dr, Dv, R):
    H, R = float(H), float(R)
    naive = H * Dn + H * Dr + H * Dv
    return {"absorb_words": R + Dr, "naive_words": naive, "absorb_macs": H * (R + R + Dr), "naive_macs": naive}

# %% predict_macs: torch's dot product
def predict_macs(H, Dn, Dr, Dv, R):
    widths = torch.tensor([Dn, Dr, Dv, R])
    rows = torch.tensor([[1, 1, 1, 0], [0, 1, 0, 2], [1, 1, 1, 0]])
    naive, absorb, words = H * (rows * widths).sum(1)
    return {"naive_macs": naive, "absorb_macs": absorb, "naive_words": words, "absorb_words": widths[1] + widths[3]}

# %% absorb_query: heads first, matmul
def absorb_query(q_nope, w_uk):
    return (q_nope.transpose(1, 2) @ w_uk).transpose(1, 2)

# %% absorb_query: head by head
def absorb_query(q_nope, w_uk):
    return torch.stack([q_nope[:, :, h] @ w for h, w in enumerate(w_uk)], dim=2)

# %% absorb_query: a row against each head's matrix, the axis squeezed
def absorb_query(q_nope, w_uk):
    return (q_nope[..., None, :] @ w_uk).squeeze(-2)

# %% absorb_query: bmm with the heads as batch
def absorb_query(q_nope, w_uk):
    B, S, H, Dn = q_nope.shape
    rows = q_nope.reshape(B * S, H, Dn).movedim(1, 0)
    return torch.bmm(rows, w_uk).movedim(0, 1).reshape(B, S, H, -1)

# %% absorb_query: into a new tensor, einsum in double precision
def absorb_query(q_nope, w_uk):
    q_latent = q_nope.new_zeros(*q_nope.shape[:3], w_uk.size(2))
    for b in range(q_nope.size(0)):
        q_latent[b] = torch.einsum("shd,hdr->shr", q_nope[b].double(), w_uk.double()).float()
    return q_latent

# %% latent_attention: keys concatenated, heads and tokens as rows
def latent_attention(q_latent, q_rope, c_kv, k_rope, scale):
    B, S, H, R = q_latent.shape
    T = c_kv.shape[1]
    q = torch.cat((q_latent, q_rope), dim=-1).flatten(1, 2)
    k = torch.cat((c_kv, k_rope), dim=-1)
    scores = (torch.bmm(q, k.transpose(1, 2)) * scale).unflatten(1, (S, H))
    hidden = torch.ones(S, T, dtype=torch.bool).triu(1 + T - S)
    scores.masked_fill_(hidden[None, :, None], float("-inf"))
    weights = scores.softmax(-1)
    return torch.bmm(weights.flatten(1, 2), c_kv).unflatten(1, (S, H)), scores.logsumexp(-1)

# %% latent_attention: query by query, weights from the log-sum-exp
def latent_attention(q_latent, q_rope, c_kv, k_rope, scale):
    B, S, H, R = q_latent.shape
    T = c_kv.size(1)
    out, lse = torch.empty_like(q_latent), torch.empty(B, S, H)
    for s in range(S):
        n = T - S + s + 1
        c, k = c_kv[:, :n], k_rope[:, :n]
        scores = scale * (q_latent[:, s] @ c.mT + q_rope[:, s] @ k.mT)
        lse[:, s] = torch.logsumexp(scores, -1)
        out[:, s] = torch.exp(scores - lse[:, s].unsqueeze(-1)) @ c
    return out, lse

# %% latent_attention: in blocks of tokens, as an online softmax
def latent_attention(q_latent, q_rope, c_kv, k_rope, scale, block=8):
    (B, S, H, R), T = q_latent.shape, c_kv.shape[1]
    m, l, acc = torch.full((B, S, H, 1), -math.inf), torch.zeros(B, S, H, 1), torch.zeros(B, S, H, R)
    last = torch.arange(T - S, T).view(S, 1, 1)
    for start in range(0, T, block):
        c, k = c_kv[:, None, start : start + block], k_rope[:, None, start : start + block]
        scores = (q_latent @ c.mT + q_rope @ k.mT) * scale
        scores = scores.masked_fill(torch.arange(start, start + c.shape[2]) > last, -math.inf)
        new = torch.maximum(m, scores.amax(-1, keepdim=True))
        base = new.masked_fill(new == -math.inf, 0.0)
        p, alpha = torch.exp(scores - base), torch.exp(m - base)
        l, acc, m = l * alpha + p.sum(-1, keepdim=True), acc * alpha + p @ c, new
    return acc / l, (m + l.log()).squeeze(-1)

# %% latent_attention: sequence by sequence, the mask added
def latent_attention(q_latent, q_rope, c_kv, k_rope, scale):
    S, T = q_latent.shape[1], c_kv.shape[1]
    mask = torch.zeros(S, 1, T)
    for s in range(S):
        mask[s, :, T - S + s + 1 :] = -math.inf
    outs, lses = [], []
    for q, r, c, k in zip(q_latent, q_rope, c_kv, k_rope):
        scores = scale * (torch.tensordot(q, c, dims=([2], [1])) + torch.tensordot(r, k, dims=([2], [1]))) + mask
        top = scores.max(dim=-1, keepdim=True)[0]
        p = (scores - top).exp()
        outs.append(p @ c / p.sum(-1, keepdim=True))
        lses.append((p.sum(-1).log() + top[..., 0]))
    return torch.stack(outs), torch.stack(lses)

# %% absorb_output: heads first, matmul
def absorb_output(out_latent, w_uv):
    return torch.matmul(out_latent.transpose(1, 2), w_uv.transpose(1, 2)).transpose(1, 2)

# %% absorb_output: products and a sum
def absorb_output(out_latent, w_uv):
    return (out_latent.unsqueeze(-2) * w_uv).sum(dim=-1)

# %% absorb_output: matrix times column
def absorb_output(out_latent, w_uv):
    return (w_uv @ out_latent[..., None])[..., 0]

# %% absorb_output: linear for each head, written in place
def absorb_output(out_latent, w_uv):
    B, S, H, R = out_latent.shape
    out = torch.zeros(B, S, H, w_uv.shape[1], dtype=out_latent.dtype)
    for h in range(H):
        out[:, :, h] += torch.nn.functional.linear(out_latent[:, :, h], w_uv[h])
    return out

# %% absorb_output: bmm
def absorb_output(out_latent, w_uv):
    B, S = out_latent.shape[:2]
    rows = out_latent.flatten(0, 1).permute(1, 0, 2)
    return torch.bmm(rows, w_uv.mT).permute(1, 0, 2).contiguous().view(B, S, w_uv.size(0), -1)

# %% absorbed_mla_attention: in one function, matmul
def absorbed_mla_attention(q_nope, q_rope, c_kv, k_rope, w_uk, w_uv):
    S, T = q_nope.shape[1], c_kv.shape[1]
    query = torch.cat(((q_nope.transpose(1, 2) @ w_uk), q_rope.transpose(1, 2)), -1)  # [B, H, S, R + Dr]
    key = torch.cat((c_kv, k_rope), -1).unsqueeze(1)
    scores = query @ key.mT * (q_nope.shape[-1] + q_rope.shape[-1]) ** -0.5
    scores = scores.masked_fill(torch.ones(S, T).triu(T - S + 1).bool(), -math.inf)
    out = scores.softmax(-1) @ c_kv.unsqueeze(1) @ w_uv.mT
    return out.transpose(1, 2), scores.logsumexp(-1).transpose(1, 2)

# %% absorbed_mla_attention: by the earlier functions, keyword arguments
def absorbed_mla_attention(q_nope, q_rope, c_kv, k_rope, w_uk, w_uv):
    Dn, Dr = q_nope.size(-1), q_rope.size(-1)
    latent, lse = latent_attention(
        q_latent=absorb_query(q_nope=q_nope, w_uk=w_uk), q_rope=q_rope, c_kv=c_kv, k_rope=k_rope, scale=(Dn + Dr) ** -0.5
    )
    return absorb_output(out_latent=latent, w_uv=w_uv), lse

# %% absorbed_mla_attention: head by head in the latent space
def absorbed_mla_attention(q_nope, q_rope, c_kv, k_rope, w_uk, w_uv):
    scale = 1 / math.sqrt(q_nope.shape[-1] + q_rope.shape[-1])
    outs, lses = [], []
    for h in range(q_nope.shape[2]):
        q = (q_nope[:, :, h] @ w_uk[h]).unsqueeze(2)
        out, lse = latent_attention(q, q_rope[:, :, h : h + 1], c_kv, k_rope, scale)
        outs.append(out.squeeze(2) @ w_uv[h].T)
        lses.append(lse)
    return torch.stack(outs, dim=2), torch.cat(lses, dim=2)

# %% absorbed_mla_attention: the scale goes to the query, einsum throughout
def absorbed_mla_attention(q_nope, q_rope, c_kv, k_rope, w_uk, w_uv):
    B, S, H, Dn = q_nope.shape
    T, Dr = k_rope.shape[1:]
    scale = (Dn + Dr) ** -0.5
    scores = torch.einsum("bshd,hdr,btr->bhst", q_nope * scale, w_uk, c_kv) if S * H < 0 else torch.einsum(
        "bshr,btr->bhst", torch.einsum("bshd,hdr->bshr", q_nope * scale, w_uk), c_kv
    )
    scores += torch.einsum("bshe,bte->bhst", q_rope * scale, k_rope)
    seen = torch.arange(T)[None, :] - torch.arange(S)[:, None] <= T - S
    scores = torch.where(seen, scores, torch.full_like(scores, -math.inf))
    lse = torch.logsumexp(scores, -1)
    out = torch.einsum("bhst,btr->bshr", torch.exp(scores - lse[..., None]), c_kv)
    return torch.einsum("bshr,hvr->bshv", out, w_uv), lse.mT

# %% absorb_costs: products counted by a helper, each with what it reads and writes
def product(rows, inner, columns, times=1):
    return times * rows * inner * columns

def absorb_costs(B, S, T, H, Dn, Dr, Dv, R, itemsize):
    q, k, v = B * S * H * (Dn + Dr), B * T * H * (Dn + Dr), B * T * H * Dv
    out, cache, weights = B * S * H * Dv, B * T * (R + Dr), H * Dn * R + H * Dv * R
    naive = product(T, R, Dn + Dv, B * H) + product(S, Dn + Dr, T, B * H) + product(S, T, Dv, B * H)
    naive_words = (cache + weights + k + v) + (q + k + v + out)
    absorb = product(S, Dn, R, B * H) + product(S, R + Dr, T, B * H) + product(S, T, R, B * H) + product(S, R, Dv, B * H)
    latent, rope = B * S * H * R, B * S * H * Dr
    absorb_words = (B * S * H * Dn + H * Dn * R + latent) + (latent + rope + cache + latent) + (latent + H * Dv * R + out)
    return {"naive_flops": 2 * naive, "naive_bytes": naive_words * itemsize,
            "absorb_flops": 2 * absorb, "absorb_bytes": absorb_words * itemsize}

# %% absorb_costs: stages as a table, summed, floats
def absorb_costs(B, S, T, H, Dn, Dr, Dv, R, itemsize):
    rows, tokens, W = float(B * S * H), float(B * T), float(Dn + Dr + Dv)
    stages = {
        "naive": [
            (tokens * H * R * (Dn + Dv), tokens * (R + Dr) + H * R * (Dn + Dv) + tokens * H * W),
            (rows * T * W, tokens * H * W + rows * W),
        ],
        "absorb": [
            (rows * Dn * R, rows * Dn + H * Dn * R + rows * R),
            (rows * T * (2 * R + Dr), rows * (R + Dr) + tokens * (R + Dr) + rows * R),
            (rows * R * Dv, rows * R + H * R * Dv + rows * Dv),
        ],
    }
    answer = {}
    for form, counts in stages.items():
        answer[form + "_flops"] = 2 * sum(macs for macs, _ in counts)
        answer[form + "_bytes"] = itemsize * sum(words for _, words in counts)
    return answer

# %% absorb_costs: sizes of tensors on the device meta
def absorb_costs(B, S, T, H, Dn, Dr, Dv, R, itemsize):
    words = lambda *shapes: sum(torch.empty(shape, device="meta").numel() for shape in shapes)
    c_kv, k_rope, w_uk, w_uv = (B, T, R), (B, T, Dr), (H, Dn, R), (H, Dv, R)
    keys, values = (B, T, H, Dn + Dr), (B, T, H, Dv)
    naive = words(c_kv, k_rope, w_uk, w_uv, keys, values) + words((B, S, H, Dn + Dr), keys, values, (B, S, H, Dv))
    latent = (B, S, H, R)
    absorb = words((B, S, H, Dn), w_uk, latent) + words(latent, (B, S, H, Dr), c_kv, k_rope, latent)
    absorb += words(latent, w_uv, (B, S, H, Dv))
    expansion = words(keys[:3] + (Dn,)) * R + words(values) * R
    return dict(
        naive_flops=2 * (expansion + words((B, S, H, T)) * (Dn + Dr + Dv)), naive_bytes=naive * itemsize,
        absorb_flops=2 * words((B, S, H, Dn)) * R + 2 * words((B, S, H, T)) * (R + Dr + R) + 2 * words(latent) * Dv,
        absorb_bytes=absorb * itemsize,
    )

# %% break_even_queries: solved for S, by steps
def break_even_queries(T, Dn, Dr, Dv, R):
    expansion = T * R * (Dn + Dv)
    slope = R * (Dn + Dv) + T * (2 * R - Dn - Dv)
    return expansion / slope

# %% break_even_queries: bisection over the FLOPs of the function before
def break_even_queries(T, Dn, Dr, Dv, R):
    def more(S):
        cost = absorb_costs(1, S, T, 1, Dn, Dr, Dv, R, 1)
        return cost["absorb_flops"] - cost["naive_flops"]
    low, high = 0.0, 2.0 * T
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if more(middle) < 0 else (low, middle)
    return high

# %% break_even_queries: a line through two differences
def break_even_queries(T, Dn, Dr, Dv, R):
    difference = [
        S * R * (Dn + Dv) + S * T * (2 * R + Dr) - T * R * (Dn + Dv) - S * T * (Dn + Dr + Dv) for S in (0, 1)
    ]
    return -difference[0] / (difference[1] - difference[0])

# %% break_even_queries: fractions
from fractions import Fraction

def break_even_queries(T, Dn, Dr, Dv, R):
    per_query = Fraction(1, T) + Fraction(2 * R - Dn - Dv, R * (Dn + Dv))
    return float(1 / per_query)

# %% break_even_queries: torch's scalar
def break_even_queries(T, Dn, Dr, Dv, R):
    T, width, R = torch.tensor([T, Dn + Dv, R], dtype=torch.float64)
    return (T.reciprocal() + (2 * R - width) / (R * width)).reciprocal()
