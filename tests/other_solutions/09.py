# %% merge_two: both weights by the sigmoid of the difference
def merge_two(out_a, lse_a, out_b, lse_b):
    gap = torch.where(lse_b == -math.inf, math.inf, lse_a - lse_b)
    share = torch.sigmoid(gap)
    share = torch.where(lse_a == -math.inf, torch.zeros_like(share), share)[..., None]
    other = torch.where(lse_b == -math.inf, torch.zeros_like(lse_b), 1 - share[..., 0])[..., None]
    a, b = (torch.nan_to_num(x.float(), nan=0.0) for x in (out_a, out_b))
    return (share * a + other * b).to(out_a.dtype), torch.logaddexp(lse_a, lse_b)

# %% merge_two: numerators and denominators under the larger lse
def merge_two(out_a, lse_a, out_b, lse_b):
    top = torch.maximum(lse_a, lse_b)
    safe = torch.where(torch.isinf(top), torch.zeros_like(top), top)
    total, acc = torch.zeros_like(top), torch.zeros(out_a.shape)
    for out, lse in [(out_a, lse_a), (out_b, lse_b)]:
        weight = torch.exp(lse - safe)
        total += weight
        acc += weight.unsqueeze(-1) * out.float().masked_fill(torch.isinf(lse).unsqueeze(-1), 0)
    acc /= total.clamp_min(1e-30).unsqueeze(-1)
    return acc.type_as(out_a), top + torch.log(total)

# %% merge_two: in float64, row by row
def merge_two(out_a, lse_a, out_b, lse_b):
    out, lse = torch.zeros(out_a.shape, dtype=torch.float64), torch.full(lse_a.shape, -math.inf)
    for b in range(lse.shape[0]):
        for h in range(lse.shape[1]):
            parts = [(o[b, h].double(), z[b, h].item()) for o, z in ((out_a, lse_a), (out_b, lse_b)) if z[b, h] > -math.inf]
            if parts:
                top = max(z for _, z in parts)
                weights = [math.exp(z - top) for _, z in parts]
                lse[b, h] = top + math.log(sum(weights))
                for (o, _), w in zip(parts, weights):
                    out[b, h] += o * (w / sum(weights))
    return out.to(out_a.dtype), lse

# %% merge_two: only rows that have a part, by index
def merge_two(out_a, lse_a, out_b, lse_b):
    out = torch.zeros_like(out_a)
    lse = torch.logaddexp(lse_a, lse_b)
    both = (lse_a > -math.inf) & (lse_b > -math.inf)
    only_a, only_b = (lse_a > -math.inf) & ~both, (lse_b > -math.inf) & ~both
    out[only_a], out[only_b] = out_a[only_a], out_b[only_b]
    wa, wb = ((z[both] - lse[both]).exp()[:, None] for z in (lse_a, lse_b))
    out[both] = (wa * out_a[both].float() + wb * out_b[both].float()).to(out.dtype)
    return out, lse

# %% prefix_decode: heads first, batched products
def prefix_decode(q_nope, q_rope, k, v, c_kv, k_rope, w_uk, w_uv, cos, sin, seq_lens):
    scale = 1 / math.sqrt(k.shape[2])
    last = (seq_lens - 1).long()
    q_rope = rotate(q_rope, cos.index_select(0, last), sin.index_select(0, last))
    L = k.size(0)
    q = torch.cat([q_nope, q_rope], dim=2).transpose(0, 1)
    shared = torch.bmm(q, k.permute(1, 2, 0)) * scale
    z_shared = shared.logsumexp(2).T
    o_shared = torch.bmm(shared.softmax(2), v.transpose(0, 1)).transpose(0, 1)
    latents, keys = c_kv[:, L:], k_rope[:, L:]
    q_latent = torch.bmm(q_nope.transpose(0, 1), w_uk).transpose(0, 1)
    own = (torch.bmm(q_latent, latents.transpose(1, 2)) + torch.bmm(q_rope, keys.transpose(1, 2))) * scale
    place = torch.arange(L, c_kv.shape[1])
    own = torch.where(place[None, None] < seq_lens[:, None, None], own, -math.inf)
    z_own = own.logsumexp(2)
    o_own = torch.bmm(own.softmax(2).nan_to_num(0), latents)
    o_own = torch.bmm(o_own.transpose(0, 1), w_uv.transpose(1, 2)).transpose(0, 1)
    return merge_two(o_shared, z_shared, o_own, z_own)

# %% prefix_decode: keys of latent and RoPE part side by side, merged first argument own
def prefix_decode(q_nope, q_rope, k, v, c_kv, k_rope, w_uk, w_uv, cos, sin, seq_lens):
    L, B = len(k), len(q_nope)
    q_rope = rotate(q_rope, cos[seq_lens.long() - 1], sin[seq_lens.long() - 1])
    width = q_nope.shape[-1] + q_rope.shape[-1]
    query = torch.cat((torch.einsum("bhd,hdr->bhr", q_nope, w_uk), q_rope), -1)
    cache = torch.cat((c_kv, k_rope), -1)[:, L:]
    scores = query @ cache.mT / width**0.5
    mask = torch.arange(cache.shape[1]).expand(B, -1) >= (seq_lens - L).unsqueeze(1)
    scores = scores.masked_fill(mask.unsqueeze(1), float("-inf"))
    own_lse = torch.logsumexp(scores, -1)
    weights = torch.exp(scores - own_lse.masked_fill(own_lse == -math.inf, 0)[..., None])
    own = torch.einsum("bhr,hvr->bhv", (weights @ cache)[..., : c_kv.shape[-1]], w_uv)
    scores = torch.einsum("bhd,lhd->bhl", torch.cat((q_nope, q_rope), -1), k) / width**0.5
    return merge_two(own, own_lse, torch.einsum("bhl,lhv->bhv", torch.softmax(scores, -1), v), torch.logsumexp(scores, -1))

# %% prefix_decode: the prefix in two halves, three parts merged
#: scores = torch.einsum("bhd,lhd->bhl", q, k) * scale => middle = L // 2
#: lse = scores.logsumexp(-1)\n    out = torch.einsum("bhl,lhv->bhv", torch.exp(scores - lse[..., None]), v)\n => halves = []\n    for keys, values in ((k[:middle], v[:middle]), (k[middle:], v[middle:])):\n        s = torch.einsum("bhd,lhd->bhl", q, keys) * scale\n        halves += [torch.einsum("bhl,lhv->bhv", s.softmax(-1), values), s.logsumexp(-1)]\n    out, lse = merge_two(*halves)\n

# %% prefix_decode: scale in the query, positions by gather
#: position = seq_lens.long() - 1 => position = (seq_lens.long() - 1)[:, None].expand(-1, cos.shape[1])
#: rotate(q_rope, cos[position], sin[position]) => rotate(q_rope, cos.gather(0, position), sin.gather(0, position)) * scale
#: q = torch.cat((q_nope, q_rope), -1) => q_nope = q_nope * scale\n    q = torch.cat((q_nope, q_rope), -1)
#: "bhd,lhd->bhl", q, k) * scale => "bhd,lhd->bhl", q, k)
#: (scores * scale).masked_fill => scores.masked_fill

# %% choose_form: Eq. 1 times the units
def choose_form(B, S, L, sizes, itemsize, sparse_tflops, tb_per_s):
    H, Dn, Dr, Dv, R = (sizes[x] for x in ("H", "Dn", "Dr", "Dv", "R"))
    T, M = 0.5 * sparse_tflops, tb_per_s
    point = (Dn + Dr + Dv) / (S * (2 * R + Dr)) * T / M * itemsize / 2
    chosen = "naive" if B >= point and L > 0 else "absorb"
    times = {
        "naive": max(itemsize * L * H * (Dn + Dr + Dv) / M, 2 * B * S * L * H * (Dn + Dr + Dv) / T),
        "absorb": max(itemsize * L * (R + Dr) / M, 2 * B * S * L * H * (2 * R + Dr) / T),
    }
    return {"gain": times["absorb"] / times[chosen] if L else 1.0, "form": chosen, "switch_point": point}

# %% choose_form: roofs as functions
def choose_form(B, S, L, sizes, itemsize, sparse_tflops, tb_per_s):
    read = lambda words: words * itemsize / (tb_per_s * 1e12)
    compute = lambda macs: 2 * macs / (sparse_tflops * 5e11)
    wide = sizes["H"] * (sizes["Dn"] + sizes["Dr"] + sizes["Dv"])
    deep = sizes["H"] * (sizes["R"] + sizes["Dr"] + sizes["R"])
    answer = {"switch_point": read(wide) / compute(S * deep), "form": "absorb", "gain": 1}
    if not L or B < answer["switch_point"]:
        return answer
    naive, absorb = max(read(wide), compute(B * S * wide)), max(read(sizes["R"] + sizes["Dr"]), compute(B * S * deep))
    return answer | {"form": "naive", "gain": absorb / naive}

# %% choose_form: NumPy's numbers
import numpy as np

def choose_form(B, S, L, sizes, itemsize, sparse_tflops, tb_per_s):
    widths = np.array([sizes["Dn"] + sizes["Dr"] + sizes["Dv"], 2 * sizes["R"] + sizes["Dr"]], dtype=np.float64)
    words = np.array([sizes["H"] * widths[0], sizes["R"] + sizes["Dr"]])
    reading = words * itemsize / tb_per_s
    computing = 2 * S * sizes["H"] * widths / (sparse_tflops / 2)
    point = reading[0] / computing[1]
    times = np.maximum(reading, B * computing)
    naive = bool(L) and bool(B >= point)
    return {"switch_point": point, "form": ("absorb", "naive")[naive], "gain": times[1] / times[0] if naive else np.float64(1)}

# %% choose_form: the least of both times decides
def choose_form(B, S, L, sizes, itemsize, sparse_tflops, tb_per_s):
    rate, bandwidth = 1e12 * sparse_tflops / 2, 1e12 * tb_per_s
    wide, deep = sizes["Dn"] + sizes["Dr"] + sizes["Dv"], 2 * sizes["R"] + sizes["Dr"]
    naive = max(itemsize * wide * sizes["H"] / bandwidth, 2 * B * S * wide * sizes["H"] / rate)
    absorb = max(itemsize * (sizes["R"] + sizes["Dr"]) / bandwidth, 2 * B * S * deep * sizes["H"] / rate)
    form = "naive" if L and naive <= absorb else "absorb"
    return {"form": form, "gain": absorb / (naive if form == "naive" else absorb),
            "switch_point": itemsize * wide * rate / (2 * S * deep * bandwidth)}

# %% prefix_footprint: all words, then bytes
def prefix_footprint(B, T, L, layers, sizes, itemsize, weight_bytes, data, tensor, sequence):
    latent_words = (sizes["R"] + sizes["Dr"]) * (L + (T - L) * B / data)
    head_words = (sizes["Dn"] + 2 * sizes["Dr"] - sizes["Dr"] + sizes["Dv"]) * sizes["H"] * L
    latent, expanded = (words * itemsize * layers / sequence for words in (latent_words, head_words / tensor))
    weights = weight_bytes / data / tensor / sequence
    return dict(weights=weights, latent=latent, expanded=expanded, overhead=expanded / (latent + weights))

# %% prefix_footprint: bytes of the whole cluster, then of a device
def prefix_footprint(B, T, L, layers, sizes, itemsize, weight_bytes, data, tensor, sequence):
    devices = data * tensor * sequence
    token = itemsize * layers
    all_latents = tensor * token * (sizes["R"] + sizes["Dr"]) * (data * L + B * (T - L))
    all_expanded = data * token * L * sizes["H"] * (sizes["Dn"] + sizes["Dr"] + sizes["Dv"])
    found = {"weights": weight_bytes / devices, "latent": all_latents / devices, "expanded": all_expanded / devices}
    found["overhead"] = all_expanded / (weight_bytes + all_latents)
    return found

# %% prefix_footprint: NumPy's numbers
import numpy as np

def prefix_footprint(B, T, L, layers, sizes, itemsize, weight_bytes, data, tensor, sequence):
    per_token = np.array([sizes["R"] + sizes["Dr"], sizes["H"] * (sizes["Dn"] + sizes["Dr"] + sizes["Dv"]) / tensor])
    tokens = np.array([L + B / data * (T - L), L])
    latent, expanded = per_token * tokens * layers * itemsize / sequence
    weights = np.float64(weight_bytes) / np.prod([data, tensor, sequence])
    return {"weights": weights, "latent": latent, "expanded": expanded, "overhead": expanded / (weights + latent)}

# %% prefix_footprint: fractions
from fractions import Fraction

def prefix_footprint(B, T, L, layers, sizes, itemsize, weight_bytes, data, tensor, sequence):
    own = Fraction(B, data) * (T - L)
    latent = Fraction(layers * itemsize, sequence) * (sizes["R"] + sizes["Dr"]) * (L + own)
    expanded = Fraction(layers * itemsize * L, sequence * tensor) * sizes["H"] * (sizes["Dn"] + sizes["Dr"] + sizes["Dv"])
    weights = weight_bytes / (data * tensor * sequence)
    return {"weights": weights, "latent": float(latent), "expanded": float(expanded),
            "overhead": float(expanded) / (weights + float(latent))}

# %% shared_attention: blocks of 64 users, powers of 2; at full size
#: block_sizes(B) => (16 if B <= 16 else 64), 64, 4, 2
#: scale, B, H, L,\n        DN=Dn => scale * 1.4426950408889634, B, H, L,\n        DN=Dn
#: tl.exp( => tl.exp2(
#: m_i + tl.log(l_i) => (m_i + tl.log2(l_i)) * 0.6931471805599453

# %% shared_attention: block pointers
@triton.jit
def users_kernel(
    qn_ptr, qr_ptr, k_ptr, v_ptr, out_ptr, lse_ptr, scale, B, H, L,
    DN: tl.constexpr, DR: tl.constexpr, DV: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
):
    first, h = tl.program_id(0) * M, tl.program_id(1)
    qn = tl.load(tl.make_block_ptr(qn_ptr + h * DN, (B, DN), (H * DN, 1), (first, 0), (M, DN), (1, 0)), boundary_check=(0,), padding_option="zero")
    qr = tl.load(tl.make_block_ptr(qr_ptr + h * DR, (B, DR), (H * DR, 1), (first, 0), (M, DR), (1, 0)), boundary_check=(0,), padding_option="zero")
    D: tl.constexpr = DN + DR
    kn_block = tl.make_block_ptr(k_ptr + h * D, (DN, L), (1, H * D), (0, 0), (DN, N), (0, 1))
    kr_block = tl.make_block_ptr(k_ptr + h * D + DN, (DR, L), (1, H * D), (0, 0), (DR, N), (0, 1))
    v_block = tl.make_block_ptr(v_ptr + h * DV, (L, DV), (H * DV, 1), (0, 0), (N, DV), (1, 0))
    m = tl.full([M], float("-inf"), tl.float32)
    l = tl.zeros([M], tl.float32)
    o = tl.zeros([M, DV], tl.float32)
    for start in range(0, L, N):
        kn = tl.load(kn_block, boundary_check=(1,), padding_option="zero")
        kr = tl.load(kr_block, boundary_check=(1,), padding_option="zero")
        s = (tl.dot(qn, kn) + tl.dot(qr, kr)) * scale
        s = tl.where((start + tl.arange(0, N) < L)[None, :], s, float("-inf"))
        top = tl.maximum(m, tl.max(s, 1))
        p, a = tl.exp(s - top[:, None]), tl.exp(m - top)
        v = tl.load(v_block, boundary_check=(0,), padding_option="zero")
        o = o * a[:, None] + tl.dot(p.to(v.dtype), v)
        l = l * a + tl.sum(p, 1)
        m = top
        kn_block = tl.advance(kn_block, (0, N))
        kr_block = tl.advance(kr_block, (0, N))
        v_block = tl.advance(v_block, (N, 0))
    out_block = tl.make_block_ptr(out_ptr + h * DV, (B, DV), (H * DV, 1), (first, 0), (M, DV), (1, 0))
    tl.store(out_block, (o / l[:, None]).to(out_ptr.dtype.element_ty), boundary_check=(0,))
    b = first + tl.arange(0, M)
    tl.store(lse_ptr + b * H + h, m + tl.log(l), mask=b < B)

def shared_attention(q_nope, q_rope, k, v, scale):
    (B, H, Dn), (L, _, Dv) = q_nope.shape, v.shape
    out, lse = torch.empty(B, H, Dv, dtype=k.dtype, device=k.device), torch.empty(B, H, device=k.device)
    users_kernel[(triton.cdiv(B, 32), H)](
        q_nope, q_rope, k, v, out, lse, scale, B, H, L, Dn, q_rope.shape[2], Dv, M=32, N=32, num_warps=4
    )
    return out, lse

# %% shared_attention: whole blocks first, the last one behind the loop
@triton.jit
def turn(q_nope, q_rope, k_ptr, v_ptr, offs_n, h, H, L, scale, m_i, l_i, acc, DN: tl.constexpr, DR: tl.constexpr, DV: tl.constexpr, LAST: tl.constexpr):
    token, inside = (offs_n * H + h)[:, None], (offs_n < L)[:, None]
    offs_dn, offs_dr, offs_dv = tl.arange(0, DN), tl.arange(0, DR), tl.arange(0, DV)
    k_nope = tl.load(k_ptr + token * (DN + DR) + offs_dn[None, :], mask=inside, other=0.0)
    k_rope = tl.load(k_ptr + token * (DN + DR) + DN + offs_dr[None, :], mask=inside, other=0.0)
    v = tl.load(v_ptr + token * DV + offs_dv[None, :], mask=inside, other=0.0)
    qk = tl.dot(q_rope, tl.trans(k_rope), tl.dot(q_nope, tl.trans(k_nope))) * scale
    if LAST:
        qk = tl.where(offs_n[None, :] < L, qk, float("-inf"))
    m_new = tl.maximum(m_i, tl.max(qk, axis=1))
    p = tl.exp(qk - m_new[:, None])
    alpha = tl.exp(m_i - m_new)
    return m_new, l_i * alpha + tl.sum(p, axis=1), tl.dot(p.to(v.dtype), v, acc * alpha[:, None])

@triton.jit
def shared_attention_kernel(
    q_nope_ptr, q_rope_ptr, k_ptr, v_ptr, out_ptr, lse_ptr, scale, B, H, L,
    DN: tl.constexpr, DR: tl.constexpr, DV: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):
    h = tl.program_id(0)
    offs_m = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    row = (offs_m * H + h)[:, None]
    q_nope = tl.load(q_nope_ptr + row * DN + tl.arange(0, DN)[None, :], mask=offs_m[:, None] < B, other=0.0)
    q_rope = tl.load(q_rope_ptr + row * DR + tl.arange(0, DR)[None, :], mask=offs_m[:, None] < B, other=0.0)
    m_i = tl.full([BLOCK_M], float("-inf"), tl.float32)
    l_i = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, DV], tl.float32)
    whole = L // BLOCK_N * BLOCK_N
    for start in range(0, whole, BLOCK_N):
        m_i, l_i, acc = turn(q_nope, q_rope, k_ptr, v_ptr, start + tl.arange(0, BLOCK_N), h, H, L, scale, m_i, l_i, acc, DN, DR, DV, False)
    if whole < L:
        m_i, l_i, acc = turn(q_nope, q_rope, k_ptr, v_ptr, whole + tl.arange(0, BLOCK_N), h, H, L, scale, m_i, l_i, acc, DN, DR, DV, True)
    tl.store(out_ptr + row * DV + tl.arange(0, DV)[None, :], acc / l_i[:, None], mask=offs_m[:, None] < B)
    tl.store(lse_ptr + offs_m * H + h, m_i + tl.log(l_i), mask=offs_m < B)

def shared_attention(q_nope, q_rope, k, v, scale):
    (B, H, Dn), Dr, (L, _, Dv) = q_nope.shape, q_rope.shape[-1], v.shape
    out, lse = k.new_empty(B, H, Dv), k.new_empty(B, H, dtype=torch.float32)
    shared_attention_kernel[(H, triton.cdiv(B, 64))](q_nope, q_rope, k, v, out, lse, scale, B, H, L, Dn, Dr, Dv, 64, 32, num_warps=4)
    return out, lse

# %% shared_attention: a grid of one axis, tokens backwards
#: h = tl.program_id(1).to(tl.int64) => h = (tl.program_id(0) % H).to(tl.int64)
#: offs_m = tl.program_id(0) * BLOCK_M => offs_m = tl.program_id(0) // H * BLOCK_M
#: offs_n = start + tl.arange => offs_n = (tl.cdiv(L, BLOCK_N) - 1) * BLOCK_N - start + tl.arange
#: (triton.cdiv(B, block_m), H) => (triton.cdiv(B, block_m) * H,)

# %% tree_decode: parts of all nodes on a new axis, one softmax
def tree_decode(q, k, v, parents, lengths, last, own_out, own_lse):
    D = q.shape[-1]
    starts = [sum(lengths[:n]) for n in range(len(lengths))]
    outs, lses = [own_out.masked_fill((own_lse == -math.inf)[..., None], 0)], [own_lse]
    for node in range(len(parents)):
        mine = []
        for b, at in enumerate(last):
            while at not in (-1, node):
                at = parents[at]
            if at == node:
                mine.append(b)
        if lengths[node] == 0 or not mine:
            continue
        keys, values = (x.narrow(0, starts[node], lengths[node]) for x in (k, v))
        index = torch.tensor(mine)
        scores = torch.einsum("bhd,lhd->bhl", q.index_select(0, index), keys) / D**0.5
        outs.append(torch.zeros_like(own_out).index_copy(0, index, torch.einsum("bhl,lhv->bhv", scores.softmax(-1), values)))
        lses.append(torch.full_like(own_lse, -math.inf).index_copy(0, index, scores.logsumexp(-1)))
    lses = torch.stack(lses)
    return (lses.softmax(0).nan_to_num(0)[..., None] * torch.stack(outs)).sum(0), lses.logsumexp(0)

# %% tree_decode: request by request over its whole path
def tree_decode(q, k, v, parents, lengths, last, own_out, own_lse):
    out, lse = [], []
    for b, node in enumerate(last):
        tokens = []
        while node >= 0:
            first = sum(lengths[:node])
            tokens = list(range(first, first + lengths[node])) + tokens
            node = parents[node]
        scores = torch.einsum("hd,lhd->hl", q[b], k[tokens]) * q.shape[-1] ** -0.5
        part = torch.einsum("hl,lhv->hv", scores.softmax(-1), v[tokens])
        merged = merge_two(part[None], scores.logsumexp(-1)[None], own_out[b : b + 1], own_lse[b : b + 1])
        out.append(merged[0])
        lse.append(merged[1])
    return torch.cat(out), torch.cat(lse)

# %% tree_decode: a user matrix from the roots down
def tree_decode(q, k, v, parents, lengths, last, own_out, own_lse):
    users = {node: {b for b, end in enumerate(last) if end == node} for node in range(len(parents))}
    def fill(node):
        for child in range(len(parents)):
            if parents[child] == node:
                users[node] |= fill(child)
        return users[node]
    for root in [node for node, parent in enumerate(parents) if parent == -1]:
        fill(root)
    nothing = torch.zeros_like(own_out), torch.full_like(own_lse, -math.inf)
    out, lse = merge_two(*nothing, own_out, own_lse)
    key_parts, value_parts = k.split(lengths) if lengths else (), v.split(lengths) if lengths else ()
    for node, (keys, values) in enumerate(zip(key_parts, value_parts)):
        mine = sorted(users[node])
        if mine and len(keys):
            scores = torch.einsum("bhd,lhd->hbl", q[mine] / math.sqrt(q.shape[-1]), keys)
            weights = scores.softmax(-1)
            merged = merge_two(out[mine], lse[mine], (weights @ values.transpose(0, 1)).transpose(0, 1), scores.logsumexp(-1).T)
            out, lse = out.clone(), lse.clone()
            out[mine], lse[mine] = merged
    return out, lse

# %% tree_decode: nodes in the order of their depth, sums under a running maximum
def tree_decode(q, k, v, parents, lengths, last, own_out, own_lse):
    paths = []
    for node in last:
        path = []
        while node != -1:
            path.append(node)
            node = parents[node]
        paths.append(path[::-1])
    seen = own_lse > -math.inf
    m = own_lse.clone()
    total = seen.float()
    acc = torch.where(seen[..., None], own_out, torch.zeros_like(own_out))
    for depth in range(max([0] + [len(path) for path in paths])):
        for node in sorted({path[depth] for path in paths if len(path) > depth}):
            mine = [b for b, path in enumerate(paths) if len(path) > depth and path[depth] == node]
            start = sum(lengths[:node])
            keys, values = k[start : start + lengths[node]], v[start : start + lengths[node]]
            if not len(keys):
                continue
            scores = torch.einsum("bhd,lhd->bhl", q[mine], keys) * q.shape[-1] ** -0.5
            top = torch.maximum(m[mine], scores.amax(-1))
            p, alpha = torch.exp(scores - top[..., None]), torch.exp(m[mine] - top)
            total[mine] = total[mine] * alpha + p.sum(-1)
            acc[mine] = acc[mine] * alpha[..., None] + torch.einsum("bhl,lhv->bhv", p, values)
            m[mine] = top
    safe = torch.where(total > 0, total, torch.ones_like(total))
    return acc / safe[..., None], m + safe.log()
