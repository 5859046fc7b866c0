# %% challenge_bytes: NumPy's numbers
import numpy as np

def challenge_bytes(B, T, D, H, Rq, R, Dn, Dr, Dv, rate, bandwidth):
    shapes = np.array([[Rq, D], [H * (Dn + Dr), Rq], [R + Dr, D], [H * (Dn + Dv), R], [D, H * Dv]], dtype=np.int64)
    words = shapes.prod(axis=1).sum()
    tokens = np.int64(B) * T
    flops = 2.0 * (B * words + tokens * H * (2 * R + Dr))
    seconds = np.maximum(2.0 * (words + tokens * (R + Dr)) / bandwidth, flops / rate)
    return dict(weight_bytes=2 * words, cache_bytes=2 * tokens * (R + Dr), flops=flops, floor_us=seconds * 1e6,
                expanded_bytes=2 * tokens * H * (Dn + Dr + Dv))

# %% challenge_bytes: fractions
from fractions import Fraction

def challenge_bytes(B, T, D, H, Rq, R, Dn, Dr, Dv, rate, bandwidth):
    weights = sum(a * b for a, b in [(Rq, D), (H, Rq * (Dn + Dr)), (R, D), (Dr, D), (H * Dn, R), (H * Dv, R), (D, H * Dv)])
    macs = B * weights + sum(B * T * H * width for width in (R, Dr, R))
    moved = 2 * (weights + B * T * R + B * T * Dr)
    floor = max(Fraction(moved) / Fraction(bandwidth), Fraction(2 * macs) / Fraction(rate))
    return {"cache_bytes": moved - 2 * weights, "weight_bytes": 2 * weights, "flops": 2 * macs,
            "expanded_bytes": 2 * B * T * H * Dn + 2 * B * T * H * Dr + 2 * B * T * H * Dv, "floor_us": float(10**6 * floor)}

# %% challenge_bytes: a class, and the work of each matrix
class Matrix:
    def __init__(self, rows, columns):
        self.words = rows * columns

    def flops(self, B):
        return 2 * B * self.words

def challenge_bytes(B, T, D, H, Rq, R, Dn, Dr, Dv, rate, bandwidth):
    layer = [Matrix(Rq, D), Matrix(H * Dn + H * Dr, Rq), Matrix(R + Dr, D), Matrix(H * Dn, R), Matrix(H * Dv, R), Matrix(D, H * Dv)]
    held = sum(2 * each.words for each in layer)
    attention = 2 * B * H * T * (R + Dr) + 2 * B * H * T * R
    flops = sum(each.flops(B) for each in layer) + attention
    cache = 2 * (R + Dr) * T * B
    memory, compute = (held + cache) / bandwidth, flops / rate
    return {"flops": flops, "floor_us": (memory if memory > compute else compute) * 1e6, "weight_bytes": held,
            "expanded_bytes": H * T * B * 2 * (Dv + Dn + Dr), "cache_bytes": cache}

# %% challenge_bytes: by named steps, floats
def challenge_bytes(B, T, D, H, Rq, R, Dn, Dr, Dv, rate, bandwidth):
    query, latent, up, out = Rq * (D + H * (Dn + Dr)), (R + Dr) * D, H * R * (Dn + Dv), D * H * Dv
    words = float(query + latent + up + out)
    flops = 2.0 * B * (words + T * H * (R + R + Dr))
    reading = (2 * words + 2.0 * B * T * (R + Dr)) * 1e6 / bandwidth
    return {"cache_bytes": 2.0 * B * T * (R + Dr), "expanded_bytes": 2.0 * B * T * H * (Dn + Dr + Dv),
            "weight_bytes": 2 * words, "flops": flops, "floor_us": max(reading, flops * 1e6 / rate)}

# %% challenge_angles: einsum, as the competition's reference has it
def challenge_angles(positions, dim):
    theta = 10000 ** (-torch.arange(0, dim // 2, dtype=torch.bfloat16) / (dim // 2))
    angles = torch.einsum("s,d->sd", positions, theta.to(positions.device))
    return angles.cos().to(torch.bfloat16), angles.sin().to(torch.bfloat16)

# %% challenge_angles: rows one by one
def challenge_angles(positions, dim):
    frequencies = torch.pow(10000, torch.arange(dim // 2, dtype=torch.bfloat16).neg() / (dim // 2))
    rows = [torch.tensor(float(n)).bfloat16() * frequencies for n in positions.tolist()]
    return torch.stack([row.cos() for row in rows]), torch.stack([row.sin() for row in rows])

# %% challenge_angles: cos and sin in float64, of angles rounded before
def challenge_angles(positions, dim):
    i = torch.arange(dim // 2).bfloat16()
    angles = (positions.bfloat16().unsqueeze(-1) * 10000 ** (-i / (dim // 2))).double()
    return angles.cos().to(torch.bfloat16), angles.sin().to(torch.bfloat16)

# %% challenge_angles: a complex exponential
def challenge_angles(positions, dim):
    exponents = torch.linspace(0, dim // 2 - 1, dim // 2).bfloat16() / (dim // 2)
    angles = torch.outer(positions.to(torch.bfloat16), 10000 ** (-exponents)).float()
    turns = torch.polar(torch.ones_like(angles), angles)
    return turns.real.bfloat16(), turns.imag.bfloat16()

# %% naive_step: heads first, batched products
def naive_step(x, cache, length, q_down, q_up, kv_down, kv_up, wo, heads):
    (B, _, D), R, T = x.shape, kv_up.shape[1], length + 1
    Dv = wo.shape[1] // heads
    Dn = kv_up.shape[0] // heads - Dv
    cache[:, length] = x[:, 0] @ kv_down.T
    q = (x[:, 0] @ q_down.T @ q_up.T).view(B, heads, 1, -1)
    cos, sin = challenge_angles(torch.arange(T, device=x.device), kv_down.shape[0] - R)
    up = (cache[:, :T, :R] @ kv_up.T).view(B, T, heads, -1).transpose(1, 2)
    keys = rotate_halves(cache[:, :T, R:], cos, sin).unsqueeze(1).repeat(1, heads, 1, 1)
    k = torch.cat((up[..., :Dn], keys), -1)
    q = torch.cat((q[..., :Dn], rotate_halves(q[..., Dn:], cos[-1], sin[-1])), -1)
    weights = torch.softmax((q @ k.mT).float() / q.shape[-1] ** 0.5, -1).to(x.dtype)
    return ((weights @ up[..., Dn:]).reshape(B, 1, -1) @ wo.T), cache

# %% naive_step: scaled_dot_product_attention
import torch.nn.functional as F

def naive_step(x, cache, length, q_down, q_up, kv_down, kv_up, wo, heads):
    R, Dv, T = kv_up.shape[1], wo.shape[1] // heads, length + 1
    cache[:, length : length + 1].copy_(F.linear(x, kv_down))
    q = F.linear(F.linear(x, q_down), q_up).unflatten(-1, (heads, -1)).transpose(1, 2)
    k_nope, v = F.linear(cache[:, :T, :R], kv_up).unflatten(-1, (heads, -1)).transpose(1, 2).tensor_split([-Dv], -1)
    cos, sin = challenge_angles(torch.arange(T), kv_down.shape[0] - R)
    keys = rotate_halves(cache[:, None, :T, R:], cos, sin).expand(-1, heads, -1, -1)
    nope, rope = q.tensor_split([k_nope.shape[-1]], -1)
    q, k = torch.cat((nope, rotate_halves(rope, cos[-1:], sin[-1:])), -1), torch.cat((k_nope, keys), -1)
    return F.linear(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2), wo), cache

# %% naive_step: in float64, sequence by sequence
def naive_step(x, cache, length, q_down, q_up, kv_down, kv_up, wo, heads):
    R, Dv = kv_up.shape[1], wo.shape[1] // heads
    Dr, outs = kv_down.shape[0] - R, []
    cos, sin = (each.double() for each in challenge_angles(torch.arange(length + 1), Dr))
    for token, held in zip(x[:, 0].double(), cache):
        held[length] = (kv_down.double() @ token).to(held.dtype)
        q = (q_up.double() @ (q_down.double() @ token)).view(heads, -1)
        filled = held[: length + 1].double()
        up = (filled[:, :R] @ kv_up.double().T).view(length + 1, heads, -1)
        Dn = up.shape[-1] - Dv
        scores = torch.einsum("hd,thd->ht", q[:, :Dn], up[..., :Dn])
        scores += rotate_halves(q[:, Dn:], cos[length], sin[length]) @ rotate_halves(filled[:, R:], cos, sin).T
        weights = (scores / (Dn + Dr) ** 0.5).softmax(-1)
        outs.append(wo.double() @ torch.einsum("ht,thv->hv", weights, up[..., Dn:]).flatten())
    return torch.stack(outs)[:, None].to(x.dtype), cache

# %% naive_step: scores of both parts apart, an index for the new token
#: cache[:, length] = (x @ kv_down.T)[:, 0] => cache.index_copy_(1, torch.tensor([length], device=x.device), x @ kv_down.T)
#: q = torch.cat((q_nope, q_rope), -1) => nope, rope = (torch.einsum(f, *o).float() for f, o in (("bshd,bthd->bhst", (q_nope, k_nope)), ("bshd,btd->bhst", (q_rope, keys))))
#: torch.einsum("bshd,bthd->bhst", q, k).float() * => (nope + rope) *

# %% absorbed_step: einsum throughout
#: (q_latent @ latents.mT + q_rope[:, 0] @ keys.mT).float() => (torch.einsum("bhr,btr->bht", q_latent, latents) + torch.einsum("bhd,btd->bht", q_rope[:, 0], keys)).float()
#: scores.softmax(-1).to(x.dtype) @ latents => torch.einsum("bht,btr->bhr", scores.softmax(-1).to(x.dtype), latents)

# %% absorbed_step: products in float32, weights divided at the end
def absorbed_step(x, cache, length, q_down, q_up, kv_down, kv_up, wo, heads):
    R = kv_up.shape[1]
    up = kv_up.float().unflatten(0, (heads, -1))
    Dn = up.shape[1] - wo.shape[1] // heads
    cache[:, length] = (x @ kv_down.T).squeeze(1)
    q = ((x.float() @ q_down.float().T) @ q_up.float().T).squeeze(1).unflatten(-1, (heads, -1))
    held = cache[:, : length + 1].float()
    cos, sin = (each.float() for each in challenge_angles(torch.arange(length + 1, device=x.device), held.shape[-1] - R))
    latent = torch.einsum("bhd,hdr->bhr", q[..., :Dn], up[:, :Dn])
    turned = rotate_halves(q[..., Dn:], cos[length], sin[length])
    scores = (latent @ held[..., :R].mT + turned @ rotate_halves(held[..., R:], cos, sin).mT) / q.shape[-1] ** 0.5
    p = (scores - scores.amax(-1, keepdim=True)).exp()
    found = (p @ held[..., :R]) / p.sum(-1, keepdim=True)
    out = torch.einsum("bhr,hvr->bhv", found, up[:, Dn:]).flatten(1)
    return (out @ wo.float().T).to(x.dtype).unsqueeze(1), cache

# %% absorbed_step: the query in the latent by bmm, W_UV met head by head
#: torch.einsum("bhd,hdr->bhr", q_nope[:, 0], w_uk) => torch.bmm(q_nope[:, 0].transpose(0, 1), w_uk).transpose(0, 1)
#: torch.einsum("bhr,hvr->bhv", found, w_uv) => torch.stack([found[:, h] @ w_uv[h].T for h in range(heads)], 1)

# %% absorbed_step: scale in the query, softmax from logsumexp
#: q_latent = torch.einsum("bhd,hdr->bhr", q_nope[:, 0], w_uk) => q_latent = torch.einsum("bhd,hdr->bhr", q_nope[:, 0].float(), w_uk.float()) * (Dn + Dr) ** -0.5
#: (q_latent @ latents.mT + q_rope[:, 0] @ keys.mT).float() * (Dn + Dr) ** -0.5 => q_latent @ latents.float().mT + q_rope[:, 0].float() @ keys.float().mT * (Dn + Dr) ** -0.5
#: scores.softmax(-1) => (scores - scores.logsumexp(-1, keepdim=True)).exp()

# %% rotating_decode: exp2, and the scale in the queries' products
#: sin, out, scale, H => sin, out, scale * 1.4426950408889634, H
#: tl.exp(qk => tl.exp2(qk
#: tl.exp(m_i => tl.exp2(m_i

# %% rotating_decode: halves joined to one block of keys
#: first, second = (x * cos - y * sin).to(c_kv.dtype), (y * cos + x * sin).to(c_kv.dtype) => turned = tl.permute(tl.join(x * cos - y * sin, y * cos + x * sin), (0, 2, 1))\n        keys = tl.reshape(turned, (BLOCK_N, DR)).to(c_kv.dtype)
#: q_first = tl.load(q_rope_ptr + row[:, None] * DR + offs_d[None, :], mask=some, other=0.0) => q_rope = tl.load(q_rope_ptr + row[:, None] * DR + tl.arange(0, DR)[None, :], mask=some, other=0.0)
#:     q_second = tl.load(q_rope_ptr + row[:, None] * DR + DR // 2 + offs_d[None, :], mask=some, other=0.0)\n =>
#: qk = tl.dot(q_first, tl.trans(first), qk) => qk = tl.dot(q_rope, tl.trans(keys), qk) * scale
#:         qk = tl.dot(q_second, tl.trans(second), qk) * scale\n =>

# %% rotating_decode: a grid of one axis, smaller blocks of tokens; at full size
#: b = tl.program_id(1).to(tl.int64) => b = (tl.program_id(0) // tl.cdiv(H, BLOCK_H)).to(tl.int64)
#: tl.program_id(0) * BLOCK_H => tl.program_id(0) % tl.cdiv(H, BLOCK_H) * BLOCK_H
#: (triton.cdiv(H, block_h), B)] => (triton.cdiv(H, block_h) * B,)]
#: BLOCK_N=block_n => BLOCK_N=min(block_n, 32)

# %% rotating_decode: whole blocks without masks first, the tail behind the loop, queries kept in halves
@triton.jit
def take(q_latent, q_first, q_second, tokens, cos_rows, sin_rows, there, m_i, l_i, acc, scale,
         R: tl.constexpr, DR: tl.constexpr):
    offs_r, offs_d = tl.arange(0, R)[None, :], tl.arange(0, DR // 2)[None, :]
    c = tl.load(tokens + offs_r, mask=there[:, None], other=0.0)
    x = tl.load(tokens + R + offs_d, mask=there[:, None], other=0.0).to(tl.float32)
    y = tl.load(tokens + R + DR // 2 + offs_d, mask=there[:, None], other=0.0).to(tl.float32)
    cos = tl.load(cos_rows + offs_d, mask=there[:, None], other=0.0).to(tl.float32)
    sin = tl.load(sin_rows + offs_d, mask=there[:, None], other=0.0).to(tl.float32)
    qk = tl.dot(q_latent, tl.trans(c)) + tl.dot(q_first, tl.trans((x * cos - y * sin).to(c.dtype)))
    qk = (qk + tl.dot(q_second, tl.trans((y * cos + x * sin).to(c.dtype)))) * scale
    qk = tl.where(there[None, :], qk, float("-inf"))
    top = tl.maximum(m_i, tl.max(qk, axis=1))
    p, kept = tl.exp(qk - top[:, None]), tl.exp(m_i - top)
    return top, l_i * kept + tl.sum(p, axis=1), tl.dot(p.to(c.dtype), c, acc * kept[:, None])


@triton.jit
def in_two(q_ptr, p_ptr, cache_ptr, cos_ptr, sin_ptr, out_ptr, scale, H, length, capacity,
           R: tl.constexpr, DR: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_N: tl.constexpr):
    b, h = tl.program_id(1).to(tl.int64), tl.program_id(0) * BLOCK_H + tl.arange(0, BLOCK_H)
    row = (b * H + h)[:, None]
    q = tl.load(q_ptr + row * R + tl.arange(0, R)[None, :], mask=h[:, None] < H, other=0.0)
    p_ptrs = p_ptr + row * DR + tl.arange(0, DR // 2)[None, :]
    p1 = tl.load(p_ptrs, mask=h[:, None] < H, other=0.0)
    p2 = tl.load(p_ptrs + DR // 2, mask=h[:, None] < H, other=0.0)
    m_i, l_i = tl.full([BLOCK_H], float("-inf"), tl.float32), tl.zeros([BLOCK_H], tl.float32)
    acc = tl.zeros([BLOCK_H, R], tl.float32)
    n = tl.arange(0, BLOCK_N)
    base = cache_ptr + b * capacity * (R + DR)
    whole = length // BLOCK_N * BLOCK_N
    for start in range(0, whole, BLOCK_N):
        t = (start + n)[:, None]
        m_i, l_i, acc = take(q, p1, p2, base + t * (R + DR), cos_ptr + t * (DR // 2), sin_ptr + t * (DR // 2),
                             n < BLOCK_N, m_i, l_i, acc, scale, R, DR)
    if whole < length:
        t = (whole + n)[:, None]
        m_i, l_i, acc = take(q, p1, p2, base + t * (R + DR), cos_ptr + t * (DR // 2), sin_ptr + t * (DR // 2),
                             whole + n < length, m_i, l_i, acc, scale, R, DR)
    tl.store(out_ptr + row * R + tl.arange(0, R)[None, :], acc / l_i[:, None], mask=h[:, None] < H)


def rotating_decode(q_latent, q_rope, cache, cos, sin, length, scale):
    (B, H, R), Dr = q_latent.shape, q_rope.shape[2]
    out = torch.empty_like(q_latent)
    block_h, block_n, stages = block_sizes(H)
    in_two[(triton.cdiv(H, block_h), B)](
        q_latent, q_rope, cache, cos, sin, out, scale, H, length, cache.shape[1],
        R=R, DR=Dr, BLOCK_H=block_h, BLOCK_N=block_n, num_warps=8, num_stages=stages,
    )
    return out

# %% challenge_step: products by bmm, angles of the filled places copied behind
#: q_latent = torch.einsum("bhd,hdr->bhr", q_nope[:, 0], w_uk).contiguous() => q_latent = torch.bmm(q_nope[:, 0].transpose(0, 1), w_uk).transpose(0, 1).contiguous()
#: out = torch.einsum("bhr,hvr->bhv", found, w_uv) => out = torch.bmm(found.transpose(0, 1), w_uv.mT).transpose(0, 1)

# %% challenge_step: a copy of the filled part goes to the kernel
#: cache, cos, sin, length + 1, => cache[:, : length + 1].contiguous(), cos[: length + 1].contiguous(), sin[: length + 1].contiguous(), length + 1,

# %% challenge_step: F.linear, views in place of unflatten
#: (x @ q_down.T @ q_up.T) => torch.nn.functional.linear(torch.nn.functional.linear(x, q_down), q_up)
#: cache[:, length] = (x @ kv_down.T)[:, 0] => cache[:, length : length + 1] = torch.nn.functional.linear(x, kv_down)

# %% challenge_step: projections in float32
#: (x @ q_down.T @ q_up.T) => (x.float() @ q_down.float().T @ q_up.float().T).to(x.dtype)
#: return out.flatten(1)[:, None] @ wo.T, cache => return (out.flatten(1)[:, None].float() @ wo.float().T).to(x.dtype), cache
