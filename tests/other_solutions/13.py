# %% predict_drafting: the tokens by Horner's rule
#: return sum(acceptance**i for i in range(n + 1)) => total = 1.0\n        for _ in range(n):\n            total = 1.0 + acceptance * total\n        return total

# %% predict_drafting: times per token, and the smallest of them
def predict_drafting(acceptance, k, step_us, draft_us, check):
    tokens = [1.0]
    for n in range(1, max(k, 8) + 1):
        tokens.append(tokens[-1] + acceptance**n)
    per_token = [(check * step_us + n * draft_us) / count for n, count in enumerate(tokens)]
    best = min(range(1, 9), key=per_token.__getitem__)
    return {"best_k": best, "speedup": step_us / per_token[k], "tokens": tokens[k]}

# %% predict_drafting: with tensors
def predict_drafting(acceptance, k, step_us, draft_us, check):
    a = torch.tensor(acceptance, dtype=torch.float64)
    n = torch.arange(9, dtype=torch.float64)
    tokens = (a**n).cumsum(0)
    speedups = tokens * step_us / (check * step_us + n * draft_us)
    return {"tokens": tokens[k].item(), "speedup": speedups[k].item(), "best_k": int(speedups[1:].argmax()) + 1}

# %% predict_drafting: by the probability of each length
def predict_drafting(acceptance, k, step_us, draft_us, check):
    def mean(n):
        exactly = [acceptance**i * (1 - acceptance) for i in range(n)] + [acceptance**n]
        return sum((i + 1) * p for i, p in enumerate(exactly))

    rate = lambda n: mean(n) / (check + n * draft_us / step_us)
    return {"tokens": mean(k), "speedup": rate(k), "best_k": sorted(range(1, 9), key=rate)[-1]}

# %% attend_pages: written token by token
#: text, place = real.nonzero(as_tuple=True)\n    at = position[text, place]\n    pages[table[text, at // size].long(), at % size] = torch.cat((c_kv, k_rope), -1)[text, place] => for b, n in enumerate(lengths.tolist()):\n        for s in range(n):\n            p = int(seq_lens[b]) + s\n            pages[table[b, p // size], p % size] = torch.cat((c_kv[b, s], k_rope[b, s]))

# %% attend_pages: values expanded behind the weights
#: out = torch.einsum("bsht,btr,hvr->bshv", weights, held[..., :R], w_uv) => latent = torch.einsum("bsht,btr->bshr", weights, held[..., :R])\n    out = torch.einsum("bshr,hvr->bshv", latent, w_uv)

# %% attend_pages: naive, with keys of all heads
def attend_pages(q_nope, q_rope, c_kv, k_rope, w_uk, w_uv, pages, table, seq_lens, lengths):
    (B, S, H, Dn), R, size = q_nope.shape, c_kv.shape[-1], pages.shape[1]
    for b in range(B):
        at = torch.arange(int(seq_lens[b]), int(seq_lens[b] + lengths[b]))
        rows = torch.cat((c_kv[b], k_rope[b]), -1)[: len(at)]
        pages.view(-1, pages.shape[-1])[table[b].long()[at // size] * size + at % size] = rows
    held = pages[table.long()].flatten(1, 2)
    k = torch.einsum("btr,hdr->bthd", held[..., :R], w_uk)
    k = torch.cat((k, held[:, :, None, R:].expand(-1, -1, H, -1)), -1)
    scores = torch.einsum("bshd,bthd->bhst", torch.cat((q_nope, q_rope), -1), k) / math.sqrt(k.shape[-1])
    s, t = torch.arange(S)[:, None], torch.arange(held.shape[1])
    seen = t <= seq_lens[:, None, None] + s
    weights = scores.masked_fill(~seen[:, None], float("-inf")).softmax(-1)
    out = torch.einsum("bhst,bthv->bshv", weights, torch.einsum("btr,hvr->bthv", held[..., :R], w_uv))
    return torch.where((s[:, 0] < lengths[:, None])[..., None, None], out, torch.zeros(())), pages

# %% attend_pages: scaled queries, a mask that is added
#: * (Dn + Dr) ** -0.5 =>
#: query = torch.cat((torch.einsum("bshd,hdr->bshr", q_nope, w_uk), q_rope), -1) => query = torch.cat((torch.einsum("bshd,hdr->bshr", q_nope, w_uk), q_rope), -1) / math.sqrt(Dn + Dr)
#: weights = scores.masked_fill(hidden[:, :, None], -math.inf).softmax(-1) => weights = (scores + torch.zeros(hidden.shape).masked_fill(hidden, -math.inf)[:, :, None]).softmax(-1)

# %% choose_tokens: what is not kept becomes −inf, and softmax again
def choose_tokens(logits, lengths, temperature=0.0, top_p=1.0, u=None):
    rows = torch.stack([logits[b, n - 1] for b, n in enumerate(lengths.tolist())])
    if not temperature:
        return rows.max(-1).indices
    scaled, order = (rows / temperature).sort(-1, descending=True)
    shares = scaled.softmax(-1)
    before = torch.cat((torch.zeros(len(rows), 1), shares.cumsum(-1)[:, :-1]), -1)
    again = scaled.masked_fill(before >= top_p, -math.inf).softmax(-1)
    place = torch.searchsorted(again.cumsum(-1), u[:, None].contiguous(), right=True)
    return order.gather(-1, place.clamp(max=rows.shape[1] - 1)).squeeze(-1)

# %% choose_tokens: the row by gather
#: rows = logits[torch.arange(len(logits)), (lengths - 1).clamp(min=0)] => at = (lengths - 1).clamp(min=0)[:, None, None].expand(-1, 1, logits.shape[-1])\n    rows = logits.gather(1, at)[:, 0]

# %% choose_tokens: the first that is greater, by argmax
#: place = (ends <= u[:, None] * ends[:, -1:]).sum(-1, keepdim=True) => place = (ends > u[:, None] * ends[:, -1:]).int().argmax(-1, keepdim=True)

# %% choose_tokens: in float64
#: (rows / temperature).softmax(-1) => (rows.double() / temperature).softmax(-1)

# %% generate_texts: starts of prompts read off at the end
#: token = torch.where(lengths > 0, choose_tokens(logits, lengths), token) => for b in range(B):\n            if lengths[b]:\n                token[b] = choose_tokens(logits[b : b + 1], lengths[b : b + 1])[0]

# %% generate_texts: positions counted by hand
#: cache["seq_lens"][:, None], going.long() => torch.tensor([[len(prompt) + n] for prompt in prompts]), going.long()

# %% generate_texts: the last token of each text runs as well
#: going = going & (token != stop) => running, going = going, going & (token != stop)
#: going.long(), cache) => running.long(), cache)

# %% generate_texts: padded to the whole chunk
#: S = int(lengths.max()) => S = chunk

# %% verify_drafts: hits counted in Python
#: taken = (best[:, :-1] == drafts).long().cumprod(1).sum(1) => taken = torch.tensor([next((i for i in range(k) if best[b, i] != drafts[b, i]), k) for b in range(B)])

# %% verify_drafts: the first wrong one by argmin
#: taken = (best[:, :-1] == drafts).long().cumprod(1).sum(1) => right = torch.cat((best[:, :-1] == drafts, torch.zeros(B, 1, dtype=torch.bool)), 1)\n        taken = right.int().argmin(1)

# %% verify_drafts: drafts taken and then the model's own token
#: each += best[b, : taken[b] + 1].tolist() => each += [*drafts[b, : taken[b]].tolist(), int(best[b, taken[b]])]

# %% verify_drafts: what is over is taken off the length
#: cache["seq_lens"] = before + (taken + 1) * going => cache["seq_lens"] = cache["seq_lens"] - (k - taken) * going
