# %% prefill_work: tensors
def prefill_work(lengths_q, lengths_kv, H, Dn, Dr, Dv, rate):
    S, T = torch.tensor(lengths_q), torch.tensor(lengths_kv)
    pairs = (S * T - S * (S - 1) // 2).sum().item()
    rows = len(S) * S.max().item()
    flops = pairs * H * (2 * (Dn + Dr) + 2 * Dv)
    return {"tokens": S.sum().item(), "padding": 1 - S.sum().item() / rows, "pairs": pairs,
            "padded_over_pairs": rows * T.max().item() / pairs, "flops": flops, "us": flops / (rate / 1e6)}

# %% prefill_work: triangles of whole contexts
def prefill_work(lengths_q, lengths_kv, H, Dn, Dr, Dv, rate):
    triangle = lambda n: n * (n + 1) // 2
    pairs = sum(triangle(T) - triangle(T - S) for S, T in zip(lengths_q, lengths_kv))
    slots = len(lengths_q) * max(lengths_q)
    out = dict(tokens=sum(lengths_q), pairs=pairs, flops=2 * pairs * H * (Dn + Dr + Dv))
    out["us"] = out["flops"] / rate * 1e6
    out["padding"] = sum(max(lengths_q) - S for S in lengths_q) / slots
    out["padded_over_pairs"] = slots * max(lengths_kv) / pairs
    return out

# %% prefill_work: NumPy, a query at a time
import numpy as np

def prefill_work(lengths_q, lengths_kv, H, Dn, Dr, Dv, rate):
    seen = np.concatenate([np.arange(T - S, T) + 1 for S, T in zip(lengths_q, lengths_kv)])
    work = np.float64(2) * seen.sum() * H * (Dn + Dr + Dv)
    S, T = np.max(lengths_q), np.max(lengths_kv)
    return dict(tokens=len(seen), padding=1 - len(seen) / (S * len(lengths_q)), pairs=int(seen.sum()),
                padded_over_pairs=float(S * T * len(lengths_q) / seen.sum()), flops=work, us=work / rate * 1e6)

# %% prefill_work: exact fractions
from fractions import Fraction

def prefill_work(lengths_q, lengths_kv, H, Dn, Dr, Dv, rate):
    B, longest, tokens, pairs = 0, 0, 0, Fraction(0)
    for S, T in zip(lengths_q, lengths_kv):
        B, longest, tokens = B + 1, max(longest, S), tokens + S
        pairs += S * (T - S) + Fraction(S * (S + 1), 2)
    flops = int(2 * pairs * H * (Dn + Dr + Dv))
    return {"tokens": tokens, "pairs": int(pairs), "padding": float(1 - Fraction(tokens, B * longest)), "flops": flops,
            "padded_over_pairs": float(B * longest * max(lengths_kv) / pairs), "us": flops * 1e6 / rate}

# %% plan_tiles: lists
def plan_tiles(cu_seqlens_q, cu_seqlens_kv, block, causal):
    q, kv = cu_seqlens_q.tolist(), cu_seqlens_kv.tolist()
    sizes = [(q[b + 1] - q[b], kv[b + 1] - kv[b]) for b in range(len(q) - 1)]
    table = [
        [b, start, max(T - max(S - start - block, 0), 0) if causal else T]
        for b, (S, T) in enumerate(sizes) for start in range(0, S, block)
    ]
    return torch.tensor(table, dtype=torch.int32).view(-1, 3)

# %% plan_tiles: NumPy
import numpy as np

def plan_tiles(cu_seqlens_q, cu_seqlens_kv, block, causal):
    S, T = np.diff(cu_seqlens_q.numpy()), np.diff(cu_seqlens_kv.numpy())
    count = -(-S // block)
    b = np.repeat(np.arange(len(S)), count)
    start = np.concatenate([np.arange(n) * block for n in count]) if len(count) else b
    keys = np.maximum(np.minimum(start + block, S[b]) + T[b] - S[b], 0) if causal else T[b]
    return torch.from_numpy(np.stack((b, start, keys), 1).astype(np.int32))

# %% plan_tiles: tiles look for their sequence
def plan_tiles(cu_seqlens_q, cu_seqlens_kv, block, causal):
    S, T = cu_seqlens_q[1:] - cu_seqlens_q[:-1], cu_seqlens_kv[1:] - cu_seqlens_kv[:-1]
    ends = torch.div(S + block - 1, block, rounding_mode="floor").cumsum(0)
    tile = torch.arange(int(ends[-1]))
    b = (ends[None, :] <= tile[:, None]).sum(1)
    before = torch.cat((torch.zeros(1, dtype=ends.dtype), ends))[b]
    start = (tile - before) * block
    keys = T[b]
    if causal:
        keys = torch.maximum(keys - S[b] + torch.minimum(start + block, S[b]), torch.zeros_like(start))
    return torch.stack([b.int(), start.int(), keys.int()], dim=1)

# %% plan_tiles: a piece for each sequence
def plan_tiles(cu_seqlens_q, cu_seqlens_kv, block, causal):
    pieces = [torch.zeros(0, 3, dtype=torch.int32)]
    for b, (S, T) in enumerate(zip(cu_seqlens_q.diff().tolist(), cu_seqlens_kv.diff().tolist())):
        start = torch.arange(0, S, block, dtype=torch.int32)
        piece = torch.empty(len(start), 3, dtype=torch.int32)
        piece[:, 0], piece[:, 1], piece[:, 2] = b, start, T
        if causal:
            piece[:, 2] = (T - S + (start + block).clamp(max=S)).clamp(min=0)
        pieces.append(piece)
    return torch.cat(pieces)

# %% ragged_prefill: by the table of plan_tiles
@triton.jit
def by_table(qn, qr, kn, kr, v_ptr, cu_q, cu_kv, table, o_ptr, l_ptr, scale, H, CAUSAL: tl.constexpr,
             DN: tl.constexpr, DR: tl.constexpr, DV: tl.constexpr, M: tl.constexpr, N: tl.constexpr):
    entry, h = table + tl.program_id(0) * 3, tl.program_id(1)
    b, start, keys = tl.load(entry), tl.load(entry + 1), tl.load(entry + 2)
    fq, fk = tl.load(cu_q + b), tl.load(cu_kv + b)
    S, T = tl.load(cu_q + b + 1) - fq, tl.load(cu_kv + b + 1) - fk
    m, n = start + tl.arange(0, M), tl.arange(0, N)
    dn, dr, dv = tl.arange(0, DN), tl.arange(0, DR), tl.arange(0, DV)
    row = ((fq + m).to(tl.int64) * H + h)[:, None]
    q = tl.load(qn + row * DN + dn, mask=(m < S)[:, None], other=0.0)
    r = tl.load(qr + row * DR + dr, mask=(m < S)[:, None], other=0.0)
    biggest = tl.full([M], float("-inf"), tl.float32)
    total, acc = tl.zeros([M], tl.float32), tl.zeros([M, DV], tl.float32)
    while keys > 0:
        t = (fk + n).to(tl.int64)[:, None]
        there = (n < T)[:, None]
        k = tl.load(kn + (t * H + h) * DN + dn, mask=there, other=0.0)
        p = tl.load(kr + t * DR + dr, mask=there, other=0.0)
        v = tl.load(v_ptr + (t * H + h) * DV + dv, mask=there, other=0.0)
        s = tl.dot(r, p.T, tl.dot(q, k.T)) * scale
        seen = (n < T)[None, :]
        if CAUSAL:
            seen &= n[None, :] - m[:, None] <= T - S
        s = tl.where(seen, s, float("-inf"))
        new = tl.maximum(biggest, tl.max(s, 1))
        safe = tl.where(new > float("-inf"), new, 0.0)
        w = tl.exp(s - safe[:, None])
        shrink = tl.exp(biggest - safe)
        total = total * shrink + tl.sum(w, 1)
        acc = tl.dot(w.to(v.dtype), v, acc * shrink[:, None])
        biggest, n, keys = new, n + N, keys - N
    some = total > 0
    out = tl.where(some[:, None], acc / tl.where(some, total, 1.0)[:, None], 0.0)
    tl.store(o_ptr + row * DV + dv, out, mask=(m < S)[:, None])
    lse = tl.where(some, biggest + tl.log(tl.where(some, total, 1.0)), float("-inf"))
    tl.store(l_ptr + (fq + m).to(tl.int64) * H + h, lse, mask=m < S)


def ragged_prefill(q_nope, q_rope, k_nope, k_rope, v, cu_seqlens_q, cu_seqlens_kv, longest, scale, causal):
    (Nq, H, Dn), Dv = q_nope.shape, v.shape[2]
    out, lse = q_nope.new_empty(Nq, H, Dv), torch.empty(Nq, H, device=q_nope.device)
    tiles = plan_tiles(cu_seqlens_q, cu_seqlens_kv, 32, causal)
    by_table[(len(tiles), H)](
        q_nope, q_rope, k_nope, k_rope, v, cu_seqlens_q, cu_seqlens_kv, tiles, out, lse, scale, H,
        causal, Dn, q_rope.shape[2], Dv, 32, 32,
    )
    return out, lse

# %% ragged_prefill: base 2, and two loops, of which one has no mask; at full size
@triton.jit
def two_loops(qn, qr, kn, kr, v_ptr, cu_q, cu_kv, o_ptr, l_ptr, scale, H, CAUSAL: tl.constexpr,
              DN: tl.constexpr, DR: tl.constexpr, DV: tl.constexpr, M: tl.constexpr, N: tl.constexpr):
    b, h, start = tl.program_id(2), tl.program_id(0), tl.program_id(1) * M
    fq, fk = tl.load(cu_q + b).to(tl.int64), tl.load(cu_kv + b).to(tl.int64)
    S, T = (tl.load(cu_q + b + 1) - fq).to(tl.int32), (tl.load(cu_kv + b + 1) - fk).to(tl.int32)
    if start < S:
        m, n = start + tl.arange(0, M), tl.arange(0, N)
        dn, dr, dv = tl.arange(0, DN)[None, :], tl.arange(0, DR)[None, :], tl.arange(0, DV)[None, :]
        row = ((fq + m) * H + h)[:, None]
        q = tl.load(qn + row * DN + dn, mask=(m < S)[:, None], other=0.0)
        r = tl.load(qr + row * DR + dr, mask=(m < S)[:, None], other=0.0)
        limit = tl.minimum(T - S + m + 1, T) if CAUSAL else tl.zeros([M], tl.int32) + T
        free = tl.maximum(tl.min(limit, 0), 0) // N * N
        mi, li = tl.full([M], float("-inf"), tl.float32), tl.zeros([M], tl.float32)
        acc = tl.zeros([M, DV], tl.float32)
        for at in range(0, free, N):
            t = (fk + at + n)[:, None]
            k, p = tl.load(kn + (t * H + h) * DN + dn), tl.load(kr + t * DR + dr)
            s = tl.dot(r, tl.trans(p), tl.dot(q, tl.trans(k))) * (scale * 1.4426950408889634)
            new = tl.maximum(mi, tl.max(s, 1))
            w, a = tl.exp2(s - new[:, None]), tl.exp2(mi - new)
            li = li * a + tl.sum(w, 1)
            v = tl.load(v_ptr + (t * H + h) * DV + dv)
            acc = tl.dot(w.to(v.dtype), v, acc * a[:, None])
            mi = new
        for at in range(free, tl.max(limit, 0), N):
            t, inside = (fk + at + n)[:, None], (at + n < T)[:, None]
            k = tl.load(kn + (t * H + h) * DN + dn, mask=inside, other=0.0)
            p = tl.load(kr + t * DR + dr, mask=inside, other=0.0)
            s = tl.dot(r, tl.trans(p), tl.dot(q, tl.trans(k))) * (scale * 1.4426950408889634)
            s = tl.where((at + n)[None, :] < limit[:, None], s, float("-inf"))
            new = tl.maximum(mi, tl.max(s, 1))
            base = tl.where(new == float("-inf"), 0.0, new)
            w, a = tl.exp2(s - base[:, None]), tl.exp2(mi - base)
            li = li * a + tl.sum(w, 1)
            v = tl.load(v_ptr + (t * H + h) * DV + dv, mask=inside, other=0.0)
            acc = tl.dot(w.to(v.dtype), v, acc * a[:, None])
            mi = new
        li = tl.where(li == 0, 1.0, li)
        tl.store(o_ptr + row * DV + dv, acc / li[:, None], mask=(m < S)[:, None])
        tl.store(l_ptr + (fq + m) * H + h, (mi + tl.log2(li)) * 0.6931471805599453, mask=m < S)


def ragged_prefill(q_nope, q_rope, k_nope, k_rope, v, cu_seqlens_q, cu_seqlens_kv, longest, scale, causal):
    (Nq, H, Dn), Dv, B = q_nope.shape, v.shape[-1], cu_seqlens_q.numel() - 1
    out = torch.empty(Nq, H, Dv, dtype=q_nope.dtype, device=q_nope.device)
    lse = torch.empty(Nq, H, dtype=torch.float32, device=q_nope.device)
    two_loops[(H, -(-longest // 128), B)](
        q_nope, q_rope, k_nope, k_rope, v, cu_seqlens_q, cu_seqlens_kv, out, lse, scale, H,
        CAUSAL=causal, DN=Dn, DR=q_rope.shape[-1], DV=Dv, M=128, N=64, num_warps=8, num_stages=2,
    )
    return out, lse

# %% ragged_prefill: a program finds its tile from the offsets
@triton.jit
def seeking(qn, qr, kn, kr, v_ptr, cu_q, cu_kv, o_ptr, l_ptr, scale, H, B, CAUSAL: tl.constexpr, DN: tl.constexpr,
            DR: tl.constexpr, DV: tl.constexpr, M: tl.constexpr, N: tl.constexpr, BB: tl.constexpr):
    tile, h, i = tl.program_id(0) // H, tl.program_id(0) % H, tl.arange(0, BB)
    tiles = tl.cdiv(tl.load(cu_q + i + 1, mask=i < B, other=0) - tl.load(cu_q + i, mask=i < B, other=0), M)
    b = tl.sum((tl.cumsum(tiles, 0) <= tile).to(tl.int32), 0)
    if b >= B:
        return
    start = (tile - tl.sum(tl.where(i < b, tiles, 0), 0)) * M
    fq, fk = tl.load(cu_q + b), tl.load(cu_kv + b)
    S, T = tl.load(cu_q + b + 1) - fq, tl.load(cu_kv + b + 1) - fk
    m = start + tl.arange(0, M)
    row = ((fq + m) * H + h)[:, None]
    q = tl.load(qn + row * DN + tl.arange(0, DN), mask=(m < S)[:, None], other=0.0)
    r = tl.load(qr + row * DR + tl.arange(0, DR), mask=(m < S)[:, None], other=0.0)
    mi, li = tl.full([M], -1e30, tl.float32), tl.zeros([M], tl.float32)
    acc = tl.zeros([M, DV], tl.float32)
    for at in range(0, T, N):
        n = at + tl.arange(0, N)
        t, inside = (fk + n)[:, None], (n < T)[:, None]
        k = tl.load(kn + (t * H + h) * DN + tl.arange(0, DN), mask=inside, other=0.0)
        p = tl.load(kr + t * DR + tl.arange(0, DR), mask=inside, other=0.0)
        v = tl.load(v_ptr + (t * H + h) * DV + tl.arange(0, DV), mask=inside, other=0.0)
        seen = (n < T)[None, :] & ((n[None, :] <= (T - S + m)[:, None]) | (not CAUSAL))
        s = tl.where(seen, (tl.dot(q, tl.trans(k)) + tl.dot(r, tl.trans(p))) * scale, -1e30)
        new = tl.maximum(mi, tl.max(s, 1))
        w = tl.where(seen, tl.exp(s - new[:, None]), 0.0)
        a = tl.exp(mi - new)
        li, mi = li * a + tl.sum(w, 1), new
        acc = acc * a[:, None] + tl.dot(w.to(v.dtype), v)
    tl.store(o_ptr + row * DV + tl.arange(0, DV), acc / tl.where(li > 0, li, 1.0)[:, None], mask=(m < S)[:, None])
    lse = tl.where(li > 0, mi + tl.log(tl.where(li > 0, li, 1.0)), float("-inf"))
    tl.store(l_ptr + (fq + m) * H + h, lse, mask=m < S)


def ragged_prefill(q_nope, q_rope, k_nope, k_rope, v, cu_seqlens_q, cu_seqlens_kv, longest, scale, causal):
    (Nq, H, Dn), Dv, B = q_nope.shape, v.shape[2], len(cu_seqlens_q) - 1
    out = torch.empty((Nq, H, Dv), dtype=q_nope.dtype, device=q_nope.device)
    lse = torch.empty((Nq, H), dtype=torch.float32, device=q_nope.device)
    seeking[((Nq // 32 + B) * H,)](
        q_nope, q_rope, k_nope, k_rope, v, cu_seqlens_q, cu_seqlens_kv, out, lse, scale, H, B,
        causal, Dn, q_rope.shape[2], Dv, 32, 32, triton.next_power_of_2(B),
    )
    return out, lse

# %% chunked_prefill: merged one part after the other
def chunked_prefill(q, c_kv, k_rope, w_uk, w_uv, cu_seqlens_q, cu_seqlens_kv, chunk):
    S, T = cu_seqlens_q.diff(), cu_seqlens_kv.diff()

    def part(low, high, causal):
        index = [torch.arange(int(a), int(b)) for a, b in zip(cu_seqlens_kv[:-1] + low, cu_seqlens_kv[:-1] + high)]
        index = torch.cat(index)
        c = c_kv[index]
        k = torch.einsum("tr,hdr->thd", c, w_uk)
        k = torch.cat([k, k_rope[index].unsqueeze(1) + 0 * k[..., :1]], dim=-1)
        ends = torch.cat((torch.zeros(1, dtype=torch.long), (high - low).cumsum(0)))
        return attend(q, k, torch.einsum("tr,hvr->thv", c, w_uv), cu_seqlens_q, ends, causal)

    out, lse, lses, n = 0, q.new_full(q.shape[:2], -math.inf), [], 0
    while True:
        last = n * chunk >= int((T - S).max())
        low = T - S if last else (T - S).clamp(max=n * chunk)
        new_out, new_lse = part(low, T if last else (T - S).clamp(max=n * chunk + chunk), last)
        both = torch.logaddexp(lse, new_lse)
        old, new = ((each - both).exp().nan_to_num()[..., None] for each in (lse, new_lse))
        out, lse, n = old * out + new * new_out, both, n + 1
        lses.append(new_lse)
        if last:
            return out, lse, torch.stack(lses)

# %% chunked_prefill: tokens chosen by a mask
def chunked_prefill(q, c_kv, k_rope, w_uk, w_uv, cu_seqlens_q, cu_seqlens_kv, chunk):
    B, H = len(cu_seqlens_q) - 1, len(w_uk)
    T, S = cu_seqlens_kv.diff().long(), cu_seqlens_q.diff().long()
    owner = torch.repeat_interleave(torch.arange(B), T)
    position = torch.arange(len(c_kv)) - cu_seqlens_kv[:-1].long()[owner]
    number = torch.where(position < (T - S)[owner], position // chunk, -1)
    parts = [*range(-(-int((T - S).max()) // chunk)), -1]
    found = []
    for n in parts:
        chosen = number == n
        ends = torch.bincount(owner[chosen], minlength=B).cumsum(0)
        k = torch.cat(((c_kv[chosen] @ w_uk.mT).transpose(0, 1), k_rope[chosen][:, None].repeat(1, H, 1)), -1)
        v = (c_kv[chosen] @ w_uv.mT).transpose(0, 1)
        found.append(attend(q, k, v, cu_seqlens_q, torch.nn.functional.pad(ends, (1, 0)), n < 0))
    outs, lses = map(torch.stack, zip(*found))
    return (lses.softmax(0).unsqueeze(-1) * outs).sum(0), torch.logsumexp(lses, 0), lses

# %% chunked_prefill: attention of its own, a sequence at a time
def chunked_prefill(q, c_kv, k_rope, w_uk, w_uv, cu_seqlens_q, cu_seqlens_kv, chunk):
    q_ends, kv_ends = cu_seqlens_q.tolist(), cu_seqlens_kv.tolist()
    H, Dn = w_uk.shape[:2]
    sizes = [(q_ends[b + 1] - q_ends[b], kv_ends[b + 1] - kv_ends[b]) for b in range(len(q_ends) - 1)]
    parts = -(-max(T - S for S, T in sizes) // chunk) + 1
    lses = torch.full((parts, len(q), H), -math.inf)
    outs = torch.zeros(parts, len(q), H, w_uv.shape[1])
    for b, (S, T) in enumerate(sizes):
        x = q[q_ends[b] : q_ends[b + 1]]
        for n in range(parts):
            low, high = (T - S, T) if n == parts - 1 else (n * chunk, min(n * chunk + chunk, T - S))
            if high <= low or not S:
                continue
            c, r = (each[kv_ends[b] + low : kv_ends[b] + high] for each in (c_kv, k_rope))
            scores = torch.einsum("shd,hdr,tr->hst", x[..., :Dn], w_uk, c) + torch.einsum("shd,td->hst", x[..., Dn:], r)
            scores = scores / math.sqrt(x.shape[-1])
            if n == parts - 1:
                scores = scores + torch.full((S, S), -math.inf).triu(1)
            rows = slice(q_ends[b], q_ends[b + 1])
            lses[n, rows] = scores.logsumexp(-1).T
            outs[n, rows] = torch.einsum("hst,tr,hvr->shv", scores.softmax(-1), c, w_uv)
    largest = lses.amax(0)
    weights = torch.exp(lses - largest)
    return (weights[..., None] * outs).sum(0) / weights.sum(0)[..., None], largest + weights.sum(0).log(), lses

# %% chunked_prefill: keys and values expanded at once, indices by padding
def chunked_prefill(q, c_kv, k_rope, w_uk, w_uv, cu_seqlens_q, cu_seqlens_kv, chunk):
    k = torch.cat((torch.einsum("tr,hdr->thd", c_kv, w_uk), k_rope[:, None].expand(-1, len(w_uk), -1)), 2)
    v = torch.einsum("tr,hvr->thv", c_kv, w_uv)
    first, T = cu_seqlens_kv[:-1].long(), cu_seqlens_kv.diff().long()
    past = T - cu_seqlens_q.diff()
    lows = [torch.clamp(past, max=n) for n in range(0, int(past.max()), chunk)] + [past]
    highs = lows[1:] + [T]
    outs, lses = [], []
    for low, high in zip(lows, highs):
        place = low[:, None] + torch.arange(max(int((high - low).max()), 1))
        index = (first[:, None] + place)[place < high[:, None]]
        ends = torch.zeros(len(T) + 1, dtype=torch.int64)
        ends[1:] = torch.cumsum(high - low, 0)
        out, lse = attend(q, k[index], v[index], cu_seqlens_q, ends, high is T)
        outs, lses = [*outs, out], [*lses, lse]
    lses = torch.stack(lses)
    lse = lses.logsumexp(0, keepdim=True)
    return torch.einsum("pnh,pnhv->nhv", (lses - lse).exp(), torch.stack(outs)), lse[0], lses

# %% quantize_cache: the reciprocal, in float64
def quantize_cache(cache, R, tile):
    rows, rope = cache.double().split([R, cache.shape[1] - R], 1)
    groups = rows.flatten()[None, None] if tile is None else rows.view(len(rows), R // tile, tile)
    most = groups.abs().max(-1).values
    scales = torch.where(most == 0, 1.0, most / 448)
    values = (groups * scales.reciprocal()[..., None]).float().clamp(-448, 448)
    return values.reshape(rows.shape).to(torch.float8_e4m3fn), scales.float(), rope.to(cache.dtype)

# %% quantize_cache: a token at a time
def quantize_cache(cache, R, tile):
    def narrow(x):
        scale = float(x.abs().max()) / 448 or 1.0
        return (x / scale).to(torch.float8_e4m3fn), scale

    latent, k_rope = cache[:, :R].to(torch.float32), cache[:, R:]
    if tile is None:
        values, scale = narrow(latent)
        return values, torch.tensor([[scale]]), k_rope
    found = [[narrow(part) for part in row.split(tile)] for row in latent]
    values = torch.stack([torch.cat([part.float() for part, _ in row]) for row in found])
    return values.to(torch.float8_e4m3fn), torch.tensor([[scale for _, scale in row] for row in found]), k_rope

# %% quantize_cache: scales spread to every number
def quantize_cache(cache, R, tile):
    latent = cache[:, :R].float()
    if tile is None:
        scales = latent.abs().max()[None, None] / 448
    else:
        scales = torch.nn.functional.max_pool1d(latent.abs()[:, None], tile)[:, 0] / 448
    scales = scales + (scales == 0).float()
    wide = scales.repeat_interleave(R // scales.shape[1], dim=1)
    return torch.div(latent, wide).to(torch.float8_e4m3fn), scales, cache[:, R:].contiguous()

# %% quantize_cache: NumPy for the scales
import numpy as np

def quantize_cache(cache, R, tile):
    x = cache[:, :R].float().numpy()
    shape = (1, 1, x.size) if tile is None else (len(x), R // tile, tile)
    scales = np.abs(x.reshape(shape)).max(2) / np.float32(448)
    scales[scales == 0] = 1
    values = torch.from_numpy((x.reshape(shape) / scales[..., None]).reshape(x.shape))
    return values.clip(-448, 448).to(torch.float8_e4m3fn), torch.from_numpy(scales), cache[:, R:]

# %% pack_fp8: rows of all tokens and heads in blocks; at full size
@triton.jit
def by_rows(kv, cache, k_ptr, v_ptr, k_scale, v_scale, rows, H, R, DN: tl.constexpr, DR: tl.constexpr, DV: tl.constexpr,
            BLOCK: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    there, row, n = (i < rows)[:, None], i[:, None], (i // H)[:, None]
    dn, dr, dv = tl.arange(0, DN), tl.arange(0, DR), tl.arange(0, DV)
    x = tl.load(kv + row * (DN + DV) + dn, mask=there).to(tl.float32) / k_scale
    tl.store(k_ptr + row * (DN + DR) + dn, x.to(tl.float8e4nv), mask=there)
    x = tl.load(cache + n * (R + DR) + R + dr, mask=there).to(tl.float32) / k_scale
    tl.store(k_ptr + row * (DN + DR) + DN + dr, x.to(tl.float8e4nv), mask=there)
    x = tl.load(kv + row * (DN + DV) + DN + dv, mask=there).to(tl.float32) / v_scale
    tl.store(v_ptr + row * DV + dv, x.to(tl.float8e4nv), mask=there)


def pack_fp8(kv, cache, Dn, R, k_scale, v_scale):
    (N, H, width), Dr = kv.shape, cache.shape[1] - R
    k = torch.empty(N, H, Dn + Dr, dtype=torch.float8_e4m3fn, device=kv.device)
    v = torch.empty(N, H, width - Dn, dtype=torch.float8_e4m3fn, device=kv.device)
    by_rows[(triton.cdiv(N * H, 16),)](kv, cache, k, v, k_scale, v_scale, N * H, H, R, Dn, Dr, width - Dn, 16)
    return k, v

# %% pack_fp8: whole keys by one address computation
@triton.jit
def whole_keys(kv, cache, k_ptr, v_ptr, ks, vs, H, R, DN: tl.constexpr, DR: tl.constexpr, DV: tl.constexpr,
               W: tl.constexpr):
    h, n = tl.program_id(0), tl.program_id(1).to(tl.int64)
    d, e = tl.arange(0, W), tl.arange(0, DV)
    own = tl.load(kv + (n * H + h) * (DN + DV) + d, mask=d < DN, other=0.0).to(tl.float32)
    shared = tl.load(cache + n * (R + DR) + R + d - DN, mask=(d >= DN) & (d < DN + DR), other=0.0).to(tl.float32)
    key = tl.minimum(tl.maximum((own + shared) * ks, -448.0), 448.0)
    tl.store(k_ptr + (n * H + h) * (DN + DR) + d, key.to(tl.float8e4nv), mask=d < DN + DR)
    value = tl.load(kv + (n * H + h) * (DN + DV) + DN + e).to(tl.float32) * vs
    tl.store(v_ptr + (n * H + h) * DV + e, tl.minimum(tl.maximum(value, -448.0), 448.0).to(tl.float8e4nv))


def pack_fp8(kv, cache, Dn, R, k_scale, v_scale):
    N, H, _ = kv.shape
    Dr, Dv = cache.shape[1] - R, kv.shape[2] - Dn
    k, v = (torch.empty((N, H, w), dtype=torch.float8_e4m3fn, device=kv.device) for w in (Dn + Dr, Dv))
    whole_keys[(H, N)](kv, cache, k, v, 1.0 / k_scale, 1.0 / v_scale, H, R, Dn, Dr, Dv, triton.next_power_of_2(Dn + Dr))
    return k, v

# %% pack_fp8: views with strides, saturation by tl.where
@triton.jit
def narrow(x, scale):
    x = x.to(tl.float32) / scale
    return tl.where(x > 448, 448.0, tl.where(x < -448, -448.0, x)).to(tl.float8e4nv)


@triton.jit
def of_views(nope, rope, v, k_out, v_out, k_scale, v_scale, H, sn, sh, sr, DN: tl.constexpr, DR: tl.constexpr,
             DV: tl.constexpr, BH: tl.constexpr):
    n = tl.program_id(0).to(tl.int64)
    dr = tl.arange(0, DR)[None, :]
    turned = narrow(tl.load(rope + n * sr + dr), k_scale)
    for first in range(0, H, BH):
        h = first + tl.arange(0, BH)[:, None]
        dn, dv = tl.arange(0, DN)[None, :], tl.arange(0, DV)[None, :]
        to = k_out + (n * H + h) * (DN + DR)
        tl.store(to + dn, narrow(tl.load(nope + n * sn + h * sh + dn, mask=h < H, other=0.0), k_scale), mask=h < H)
        tl.store(to + DN + dr, tl.broadcast_to(turned, [BH, DR]), mask=h < H)
        value = narrow(tl.load(v + n * sn + h * sh + dv, mask=h < H, other=0.0), v_scale)
        tl.store(v_out + (n * H + h) * DV + dv, value, mask=h < H)


def pack_fp8(kv, cache, Dn, R, k_scale, v_scale):
    nope, v, rope = kv[:, :, :Dn], kv[:, :, Dn:], cache[:, R:]
    N, H, Dv = v.shape
    k_out = kv.new_empty((N, H, Dn + rope.shape[1]), dtype=torch.float8_e4m3fn)
    v_out = torch.empty_like(v, dtype=torch.float8_e4m3fn, memory_format=torch.contiguous_format)
    of_views[(N,)](nope, rope, v, k_out, v_out, k_scale, v_scale, H, nope.stride(0), nope.stride(1), rope.stride(0),
                   Dn, rope.shape[1], Dv, 8)
    return k_out, v_out
