# %% predict_splits: named steps, divmod and math.ceil
def predict_splits(B, H, T, num_splits):
    blocks, rest = divmod(H, 16)
    blocks += rest > 0
    one = B * H * (512 + 1) * 4
    cache = lambda tokens: 2 * B * tokens * (512 + 64)
    found = {"programs": B * blocks * num_splits, "cache_bytes": cache(T), "partial_bytes": 0}
    if num_splits != 1:
        found["partial_bytes"] = 2 * num_splits * one
    return {**found, "busy_sms": min(132, found["programs"]), "even_tokens": 2 * one / cache(1)}

# %% predict_splits: all numbers as floats
def predict_splits(B, H, T, num_splits):
    programs = float(B * num_splits) * math.ceil(H / 16)
    partial = 2.0 * num_splits * B * H * 513 * 4 * (num_splits > 1)
    return dict(programs=programs, busy_sms=min(programs, 132.0), cache_bytes=1152.0 * B * T,
                partial_bytes=partial, even_tokens=H * 513 * 8 / 1152)

# %% predict_splits: NumPy's numbers
import numpy as np

def predict_splits(B, H, T, num_splits):
    programs = B * np.ceil(H / 16) * num_splits
    words = np.array([512, 64])
    row = np.int64(2 * 4 * 513)
    return {
        "programs": programs, "busy_sms": np.minimum(programs, 132), "cache_bytes": (2 * B * T * words).sum(),
        "partial_bytes": np.where(num_splits > 1, num_splits * B * H * row, 0).item(), "even_tokens": H * row / (2 * words.sum()),
    }

# %% predict_splits: a dataclass and torch's numbers
import dataclasses

@dataclasses.dataclass
class Step:
    B: int
    H: int
    T: int
    num_splits: int

    @property
    def programs(self):
        return self.B * triton.cdiv(self.H, 16) * self.num_splits

    @property
    def partial(self):
        return 2 * torch.tensor([self.num_splits, self.B, self.H, 513, 4]).prod()

def predict_splits(B, H, T, num_splits):
    step = Step(B, H, T, num_splits)
    return {"programs": step.programs, "busy_sms": sorted((step.programs, 132))[0], "cache_bytes": B * T * 576 * 2,
            "partial_bytes": step.partial if num_splits > 1 else torch.tensor(0),
            "even_tokens": step.partial / num_splits / (B * 1152)}

# %% online_update: a softmax over old state and new scores at once
def online_update(m_i, l_i, acc, qk, v):
    m_new = torch.cat((m_i[:, None], qk), dim=1).max(dim=1).values
    safe = torch.where(torch.isinf(m_new), torch.zeros_like(m_new), m_new)
    alpha, p = (m_i - safe).exp(), (qk - safe.unsqueeze(1)).exp()
    acc = acc.clone()
    acc *= alpha.unsqueeze(1)
    acc += torch.matmul(p, v)
    return m_new, torch.addcmul(p.sum(dim=1), l_i, alpha), acc

# %% online_update: head by head, token by token
def online_update(m_i, l_i, acc, qk, v):
    m_out, l_out, acc_out = m_i.clone(), l_i.clone(), acc.clone()
    for h in range(qk.shape[0]):
        for n in range(qk.shape[1]):
            score = qk[h, n]
            if score == -math.inf:
                continue
            top = max(m_out[h], score)
            old, new = torch.exp(m_out[h] - top), torch.exp(score - top)
            l_out[h] = l_out[h] * old + new
            acc_out[h] = acc_out[h] * old + new * v[n]
            m_out[h] = top
    return m_out, l_out, acc_out

# %% online_update: nan_to_num and einsum
def online_update(m_i, l_i, acc, qk, v):
    m_new = torch.stack((m_i, qk.amax(1))).amax(0)
    alpha = torch.nan_to_num(torch.exp(m_i - m_new), nan=0.0)
    p = torch.nan_to_num(torch.exp(qk - m_new.view(-1, 1)), nan=0.0)
    return m_new, alpha * l_i + torch.einsum("hn->h", p), torch.einsum("h,hr->hr", alpha, acc) + torch.einsum("hn,nr->hr", p, v)

# %% online_update: in float64 by the log-sum-exp, and back
def online_update(m_i, l_i, acc, qk, v):
    kind = qk.dtype
    m_i, l_i, acc, qk, v = (x.double() for x in (m_i, l_i, acc, qk, v))
    m_new = torch.maximum(m_i, torch.amax(qk, -1))
    lowest = torch.finfo(torch.float64).min
    base = m_new.clamp(min=lowest)
    scale = torch.exp(m_i - base).where(m_i > -math.inf, torch.zeros_like(m_i))
    p = torch.exp(qk - base[:, None])
    return m_new.to(kind), (l_i * scale + p.sum(-1)).to(kind), (acc * scale[:, None] + p @ v).to(kind)

# %% latent_decode: block pointers for all tiles; at full size
@triton.jit
def latent_decode_kernel(
    q_latent_ptr, q_rope_ptr, c_kv_ptr, k_rope_ptr, seq_lens_ptr, out_ptr, lse_ptr, scale, H, T,
    R: tl.constexpr, DR: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_N: tl.constexpr,
):
    b = tl.program_id(1).to(tl.int64)
    first = tl.program_id(0) * BLOCK_H
    length = tl.load(seq_lens_ptr + b)
    q_block = tl.make_block_ptr(q_latent_ptr + b * H * R, (H, R), (R, 1), (first, 0), (BLOCK_H, R), (1, 0))
    q_latent = tl.load(q_block, boundary_check=(0,), padding_option="zero")
    q_rope = tl.load(
        tl.make_block_ptr(q_rope_ptr + b * H * DR, (H, DR), (DR, 1), (first, 0), (BLOCK_H, DR), (1, 0)),
        boundary_check=(0,), padding_option="zero",
    )
    c_block = tl.make_block_ptr(c_kv_ptr + b * T * R, (length, R), (R, 1), (0, 0), (BLOCK_N, R), (1, 0))
    k_block = tl.make_block_ptr(k_rope_ptr + b * T * DR, (DR, length), (1, DR), (0, 0), (DR, BLOCK_N), (0, 1))
    m_i = tl.full([BLOCK_H], float("-inf"), tl.float32)
    l_i = tl.zeros([BLOCK_H], tl.float32)
    acc = tl.zeros([BLOCK_H, R], tl.float32)
    for start in range(0, length, BLOCK_N):
        c_kv = tl.load(c_block, boundary_check=(0,), padding_option="zero")
        k_rope = tl.load(k_block, boundary_check=(1,), padding_option="zero")
        qk = (tl.dot(q_latent, c_kv.T) + tl.dot(q_rope, k_rope)) * scale
        qk += tl.where(start + tl.arange(0, BLOCK_N) < length, 0.0, float("-inf"))[None, :]
        m_new = tl.maximum(m_i, tl.max(qk, 1))
        p = tl.exp(qk - m_new[:, None])
        alpha = tl.exp(m_i - m_new)
        l_i = l_i * alpha + tl.sum(p, 1)
        acc = acc * alpha[:, None] + tl.dot(p.to(c_kv.dtype), c_kv)
        m_i = m_new
        c_block = tl.advance(c_block, (BLOCK_N, 0))
        k_block = tl.advance(k_block, (0, BLOCK_N))
    l_i = tl.where(l_i == 0.0, 1.0, l_i)
    out_block = tl.make_block_ptr(out_ptr + b * H * R, (H, R), (R, 1), (first, 0), (BLOCK_H, R), (1, 0))
    tl.store(out_block, (acc / l_i[:, None]).to(out_ptr.dtype.element_ty), boundary_check=(0,))
    lse_block = tl.make_block_ptr(lse_ptr + b * H, (H,), (1,), (first,), (BLOCK_H,), (0,))
    tl.store(lse_block, m_i + tl.log(l_i), boundary_check=(0,))

def latent_decode(q_latent, q_rope, c_kv, k_rope, seq_lens, scale):
    B, H, R = q_latent.shape
    _, T, Dr = k_rope.shape
    out = torch.zeros_like(q_latent)
    lse = q_latent.new_zeros((B, H), dtype=torch.float32)
    latent_decode_kernel[(triton.cdiv(H, 16), B)](
        q_latent, q_rope, c_kv, k_rope, seq_lens, out, lse, scale, H, T, R, Dr, BLOCK_H=16, BLOCK_N=32, num_warps=4
    )
    return out, lse

# %% latent_decode: descriptors made in the kernel, memory for them given by the host; at full size
@triton.jit
def latent_decode_kernel(
    q_latent_ptr, q_rope_ptr, c_kv_ptr, k_rope_ptr, seq_lens_ptr, out_ptr, lse_ptr, scale, H, T,
    R: tl.constexpr, DR: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_N: tl.constexpr,
):
    b = tl.program_id(1).to(tl.int64)
    first = tl.program_id(0) * BLOCK_H
    length = tl.load(seq_lens_ptr + b)
    out_tile = tl.make_tensor_descriptor(out_ptr + b * H * R, [H, R], [R, 1], [BLOCK_H, R])
    q_latent = tl.make_tensor_descriptor(q_latent_ptr + b * H * R, [H, R], [R, 1], [BLOCK_H, R]).load([first, 0])
    q_rope = tl.make_tensor_descriptor(q_rope_ptr + b * H * DR, [H, DR], [DR, 1], [BLOCK_H, DR]).load([first, 0])
    c_tile = tl.make_tensor_descriptor(c_kv_ptr + b * T * R, [tl.maximum(length, 1), R], [R, 1], [BLOCK_N, R])
    k_tile = tl.make_tensor_descriptor(k_rope_ptr + b * T * DR, [tl.maximum(length, 1), DR], [DR, 1], [BLOCK_N, DR])
    m_i = tl.full([BLOCK_H], float("-inf"), tl.float32)
    l_i = tl.zeros([BLOCK_H], tl.float32)
    acc = tl.zeros([BLOCK_H, R], tl.float32)
    for start in tl.range(0, length, BLOCK_N, num_stages=2):
        c_kv = c_tile.load([start, 0])
        qk = tl.dot(q_latent, c_kv.T)
        qk = tl.dot(q_rope, k_tile.load([start, 0]).T, qk) * scale
        qk = tl.where((start + tl.arange(0, BLOCK_N) < length)[None, :], qk, float("-inf"))
        m_new = tl.maximum(m_i, tl.max(qk, axis=1))
        p = tl.exp(qk - m_new[:, None])
        alpha = tl.exp(m_i - m_new)
        l_i = tl.fma(l_i, alpha, tl.sum(p, axis=1))
        acc = tl.dot(p.to(c_kv.dtype), c_kv, acc * alpha[:, None])
        m_i = m_new
    offs_h = first + tl.arange(0, BLOCK_H)
    l_i = tl.where(l_i > 0, l_i, 1.0)
    out_tile.store([first, 0], (acc / l_i[:, None]).to(q_latent.dtype))
    tl.store(lse_ptr + b * H + offs_h, m_i + tl.log(l_i), mask=offs_h < H)

def latent_decode(q_latent, q_rope, c_kv, k_rope, seq_lens, scale):
    triton.set_allocator(lambda size, align, stream: torch.empty(size, dtype=torch.int8, device=device))
    (B, H, R), (_, T, Dr) = q_latent.shape, k_rope.shape
    out = torch.empty_like(q_latent)
    lse = torch.empty(B, H, dtype=torch.float32, device=out.device)
    latent_decode_kernel[(triton.cdiv(H, 16), B)](
        q_latent, q_rope, c_kv, k_rope, seq_lens, out, lse, scale, H, T, R=R, DR=Dr, BLOCK_H=16, BLOCK_N=64, num_warps=8
    )
    return out, lse

# %% latent_decode: exp2 and log2, the scale with the query's weights
LOG2E: tl.constexpr = tl.constexpr(1.4426950408889634)

#: qk) * scale => qk) * (scale * LOG2E)
#: tl.exp( => tl.exp2(
#: m_i + tl.log(l_i) => (m_i + tl.log2(l_i)) / LOG2E

# %% latent_decode: few programs that walk over sequences and blocks of heads
@triton.jit
def latent_decode_kernel(
    q_latent_ptr, q_rope_ptr, c_kv_ptr, k_rope_ptr, seq_lens_ptr, out_ptr, lse_ptr, scale, B, H, T,
    R: tl.constexpr, DR: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_N: tl.constexpr,
):
    offs_r, offs_d = tl.arange(0, R), tl.arange(0, DR)
    blocks = tl.cdiv(H, BLOCK_H)
    for work in range(tl.program_id(0), B * blocks, tl.num_programs(0)):
        b = (work // blocks).to(tl.int64)
        offs_h = work % blocks * BLOCK_H + tl.arange(0, BLOCK_H)
        row = b * H + offs_h
        live = (offs_h < H)[:, None]
        q_latent = tl.load(q_latent_ptr + row[:, None] * R + offs_r, mask=live, other=0.0)
        q_rope = tl.load(q_rope_ptr + row[:, None] * DR + offs_d, mask=live, other=0.0)
        length = tl.load(seq_lens_ptr + b)
        m_i = tl.full([BLOCK_H], -float("inf"), tl.float32)
        l_i = tl.zeros([BLOCK_H], tl.float32)
        acc = tl.zeros([BLOCK_H, R], tl.float32)
        start = 0
        while start < length:
            offs_n = start + tl.arange(0, BLOCK_N)
            held = (offs_n < length)[:, None]
            c_kv = tl.load(c_kv_ptr + (b * T + offs_n)[:, None] * R + offs_r, mask=held, other=0.0)
            k_rope = tl.load(k_rope_ptr + (b * T + offs_n)[:, None] * DR + offs_d, mask=held, other=0.0)
            # transposed: [BLOCK_N, BLOCK_H]
            kq = tl.dot(c_kv, q_latent.T) + tl.dot(k_rope, q_rope.T)
            kq = tl.where(held, kq * scale, -float("inf"))
            m_new = tl.maximum(m_i, tl.max(kq, axis=0))
            p = tl.exp(kq - m_new[None, :])
            alpha = tl.exp(m_i - m_new)
            l_i = l_i * alpha + tl.sum(p, axis=0)
            acc = tl.dot(tl.trans(p.to(c_kv.dtype)), c_kv, acc * alpha[:, None])
            m_i = m_new
            start += BLOCK_N
        empty = l_i == 0
        tl.store(out_ptr + row[:, None] * R + offs_r, acc / (l_i + empty)[:, None], mask=live)
        tl.store(lse_ptr + row, tl.where(empty, -float("inf"), m_i + tl.log(l_i + empty)), mask=offs_h < H)

def latent_decode(q_latent, q_rope, c_kv, k_rope, seq_lens, scale):
    (B, H, R), (_, T, Dr) = q_latent.shape, k_rope.shape
    out, lse = torch.empty_like(q_latent), torch.empty(B, H, dtype=torch.float32, device=q_latent.device)
    work = B * triton.cdiv(H, 16)
    latent_decode_kernel[min(132, work),](
        q_latent, q_rope, c_kv, k_rope, seq_lens, out, lse, scale, B, H, T, R=R, DR=Dr, BLOCK_H=16, BLOCK_N=32
    )
    return out, lse

# %% latent_decode: full blocks without masks first, the rest by a helper, sizes by heuristics
@triton.jit
def take(m_i, l_i, acc, q_latent, q_rope, c_kv, k_rope, live, scale):
    qk = tl.dot(q_rope, tl.trans(k_rope), tl.dot(q_latent, tl.trans(c_kv))) * scale
    qk = tl.where(live[None, :], qk, float("-inf"))
    m_new = tl.maximum(m_i, tl.max(qk, axis=1))
    p, alpha = tl.exp(qk - m_new[:, None]), tl.exp(m_i - m_new)
    return m_new, l_i * alpha + tl.sum(p, axis=1), tl.dot(p.to(c_kv.dtype), c_kv, acc * alpha[:, None])

@triton.heuristics({"BLOCK_H": lambda args: 16, "BLOCK_N": lambda args: 64 if args["R"] <= 256 else 32})
@triton.jit
def latent_decode_kernel(
    q_latent_ptr, q_rope_ptr, c_kv_ptr, k_rope_ptr, seq_lens_ptr, out_ptr, lse_ptr, scale, H, T,
    R: tl.constexpr, DR: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_N: tl.constexpr,
):
    b = tl.program_id(0).to(tl.int64)
    offs_h = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    at = tl.minimum(offs_h, H - 1)  # heads beyond the last repeat it, and store the same
    offs_r, offs_d = tl.arange(0, R), tl.arange(0, DR)
    q_latent = tl.load(q_latent_ptr + (b * H + at)[:, None] * R + offs_r[None, :])
    q_rope = tl.load(q_rope_ptr + (b * H + at)[:, None] * DR + offs_d[None, :])
    length = tl.load(seq_lens_ptr + b)
    c_kv_ptr += b * T * R
    k_rope_ptr += b * T * DR
    m_i = tl.full([BLOCK_H], float("-inf"), tl.float32)
    l_i = tl.zeros([BLOCK_H], tl.float32)
    acc = tl.zeros([BLOCK_H, R], tl.float32)
    full = length // BLOCK_N * BLOCK_N
    for start in range(0, full, BLOCK_N):
        offs_n = start + tl.arange(0, BLOCK_N)
        c_kv = tl.load(c_kv_ptr + offs_n[:, None] * R + offs_r[None, :])
        k_rope = tl.load(k_rope_ptr + offs_n[:, None] * DR + offs_d[None, :])
        m_i, l_i, acc = take(m_i, l_i, acc, q_latent, q_rope, c_kv, k_rope, offs_n >= 0, scale)
    if full < length:
        offs_n = full + tl.arange(0, BLOCK_N)
        live = offs_n < length
        c_kv = tl.load(c_kv_ptr + offs_n[:, None] * R + offs_r[None, :], mask=live[:, None], other=0.0)
        k_rope = tl.load(k_rope_ptr + offs_n[:, None] * DR + offs_d[None, :], mask=live[:, None], other=0.0)
        m_i, l_i, acc = take(m_i, l_i, acc, q_latent, q_rope, c_kv, k_rope, live, scale)
    some = length > 0
    l_i = tl.where(some, l_i, 1.0)
    tl.store(out_ptr + (b * H + at)[:, None] * R + offs_r[None, :], acc / l_i[:, None], mask=offs_h[:, None] < H)
    tl.store(lse_ptr + b * H + at, tl.where(some, m_i + tl.log(l_i), float("-inf")), mask=offs_h < H)

def latent_decode(q_latent, q_rope, c_kv, k_rope, seq_lens, scale):
    (B, H, R), (_, T, Dr) = q_latent.shape, k_rope.shape
    out = q_latent.new_empty(B, H, R)
    lse = torch.full((B, H), float("-inf"), device=out.device)
    grid = lambda meta: (B, triton.cdiv(H, meta["BLOCK_H"]))
    latent_decode_kernel[grid](q_latent, q_rope, c_kv, k_rope, seq_lens, out, lse, scale, H, T, R=R, DR=Dr)
    return out, lse

# %% split_decode: a grid of one axis, last split first
#: split, b = tl.program_id(2), tl.program_id(1).to(tl.int64) => pid = tl.num_programs(0) - 1 - tl.program_id(0); blocks = tl.cdiv(H, BLOCK_H); split = pid % num_splits; b = (pid // num_splits // blocks).to(tl.int64)
#: offs_h = tl.program_id(0) * BLOCK_H => offs_h = pid // num_splits % blocks * BLOCK_H
#: [(triton.cdiv(H, block_h), B, num_splits)] => [(triton.cdiv(H, block_h) * B * num_splits,)]

# %% split_decode: block pointers and exp2
#: c_kv_ptr + (b * T + offs_n)[:, None] * R + offs_r[None, :], mask=offs_n[:, None] < end, other=0.0 => tl.make_block_ptr(c_kv_ptr + b * T * R, (end, R), (R, 1), (start, 0), (BLOCK_N, R), (1, 0)), boundary_check=(0,), padding_option="zero"
#: k_rope_ptr + (b * T + offs_n)[:, None] * DR + offs_d[None, :], mask=offs_n[:, None] < end, other=0.0 => tl.make_block_ptr(k_rope_ptr + b * T * DR, (end, DR), (DR, 1), (start, 0), (BLOCK_N, DR), (1, 0)), boundary_check=(0,), padding_option="zero"
#: qk) * scale => qk) * (scale * 1.4426950408889634)
#: tl.exp( => tl.exp2(
#: m_i + tl.log(l_i) => (m_i + tl.log2(l_i)) * 0.6931471805599453

# %% split_decode: descriptors from the host, parts walked by while; at full size
#: q_latent, q_rope, c_kv, k_rope, seq_lens, partial_out, => q_latent, q_rope, TensorDescriptor(c_kv, [B, T, R], [T * R, R, 1], [1, block_n, R]), TensorDescriptor.from_tensor(k_rope, [1, block_n, Dr]), seq_lens, partial_out,
#: (B, H, R), (_, T, Dr) = q_latent.shape => from triton.tools.tensor_descriptor import TensorDescriptor; (B, H, R), (_, T, Dr) = q_latent.shape
#: for start in range(split * share, end, BLOCK_N): => start = split * share; start -= BLOCK_N\n    while start + BLOCK_N < end:\n        start += BLOCK_N
#: tl.load(\n            c_kv_ptr + (b * T + offs_n)[:, None] * R + offs_r[None, :], mask=offs_n[:, None] < end, other=0.0\n        ) => tl.where(offs_n[:, None] < end, c_kv_ptr.load([tl.program_id(1), start, 0]).reshape(BLOCK_N, R), 0.0)
#: tl.load(\n            k_rope_ptr + (b * T + offs_n)[:, None] * DR + offs_d[None, :], mask=offs_n[:, None] < end, other=0.0\n        ) => tl.where(offs_n[:, None] < end, k_rope_ptr.load([tl.program_id(1), start, 0]).reshape(BLOCK_N, DR), 0.0)

# %% split_decode: the state of all parts in one helper class of the host, views of one buffer
class Partials:
    def __init__(self, query, splits):
        B, H, R = query.shape
        self.out = query.new_empty((splits, B, H, R), dtype=torch.float32)
        self.lse = query.new_empty((splits, B, H), dtype=torch.float32)

#: partial_out = torch.empty((num_splits, B, H, R), dtype=torch.float32, device=q_latent.device) => held = Partials(q_latent, num_splits)
#: partial_lse = torch.empty((num_splits, B, H), dtype=torch.float32, device=q_latent.device) => partial_out, partial_lse = held.out, held.lse
#: q_latent, q_rope, c_kv, k_rope, seq_lens, partial_out, partial_lse, scale, B, H, T, num_splits, => q_latent_ptr=q_latent, q_rope_ptr=q_rope, c_kv_ptr=c_kv, k_rope_ptr=k_rope, seq_lens_ptr=seq_lens, partial_out_ptr=partial_out, partial_lse_ptr=partial_lse, scale=scale, B=B, H=H, T=T, num_splits=num_splits,

# %% split_decode: each block of tokens masked by its offset alone, two accumulators of half the latent
#: acc = tl.zeros([BLOCK_H, R], tl.float32) => low = tl.zeros([BLOCK_H, R // 2], tl.float32); high = tl.zeros([BLOCK_H, R // 2], tl.float32)
#: acc = tl.dot(p.to(c_kv.dtype), c_kv, acc * alpha[:, None]) => first, second = tl.split(tl.permute(tl.reshape(c_kv, (BLOCK_N, 2, R // 2)), (0, 2, 1))); low = tl.dot(p.to(c_kv.dtype), first, low * alpha[:, None]); high = tl.dot(p.to(c_kv.dtype), second, high * alpha[:, None])
#: l_i = tl.where(l_i > 0, l_i, 1.0) => l_i = tl.where(l_i > 0, l_i, 1.0); acc = tl.reshape(tl.permute(tl.join(low, high), (0, 2, 1)), (BLOCK_H, R))

# %% combine_splits: one part after the other, as an online softmax
@triton.jit
def combine_kernel(partial_out_ptr, partial_lse_ptr, out_ptr, lse_ptr, P, M, R: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    offs_r = tl.arange(0, R)
    m_i, l_i = -float("inf"), 0.0
    acc = tl.zeros([R], tl.float32)
    for p in range(P):
        lse = tl.load(partial_lse_ptr + p * M + row)
        if lse > -float("inf"):
            m_new = tl.maximum(m_i, lse)
            old, new = tl.exp(m_i - m_new), tl.exp(lse - m_new)
            l_i = l_i * old + new
            acc = acc * old + new * tl.load(partial_out_ptr + (p * M + row) * R + offs_r)
            m_i = m_new
    seen = l_i > 0
    tl.store(out_ptr + row * R + offs_r, acc / tl.where(seen, l_i, 1.0))
    tl.store(lse_ptr + row, tl.where(seen, m_i + tl.log(l_i), -float("inf")))

def combine_splits(partial_out, partial_lse, out):
    P, B, H, R = partial_out.shape
    lse = torch.empty_like(partial_lse[0])
    combine_kernel[(B * H,)](partial_out, partial_lse, out, lse, P, B * H, R=R, num_warps=1)
    return out, lse

# %% combine_splits: two passes over the parts, a grid of two axes, exp2
@triton.jit
def combine_kernel(partial_out_ptr, partial_lse_ptr, out_ptr, lse_ptr, P, B, H, R: tl.constexpr):
    h, b = tl.program_id(0), tl.program_id(1)
    row = b.to(tl.int64) * H + h
    most = float("-inf")
    for p in range(0, P):
        most = tl.maximum(most, tl.load(partial_lse_ptr + p * B * H + row))
    base = tl.where(most == float("-inf"), 0.0, most)
    total = 0.0
    acc = tl.zeros([R], dtype=tl.float32)
    for p in range(0, P):
        weight = tl.exp2((tl.load(partial_lse_ptr + p * B * H + row) - base) * 1.4426950408889634)
        part = tl.load(partial_out_ptr + (p * B * H + row) * R + tl.arange(0, R), mask=weight > 0, other=0.0)
        total += weight
        acc = tl.fma(part, weight, acc)
    tl.store(out_ptr + row * R + tl.arange(0, R), (acc / tl.maximum(total, 1e-30)).to(out_ptr.dtype.element_ty))
    tl.store(lse_ptr + row, most + tl.log(tl.where(total > 0, total, 1.0)))

def combine_splits(partial_out, partial_lse, out):
    (P, B, H), R = partial_lse.shape, partial_out.shape[-1]
    lse = partial_lse.new_empty(B, H)
    combine_kernel[H, B](partial_out, partial_lse, out, lse, P, B, H, R=R)
    return out, lse

# %% combine_splits: block pointers over [P, R] of a row
#: parts = tl.load( => block = tl.make_block_ptr(partial_out_ptr + row * R, (P, R), (M * R, 1), (0, tl.program_id(1) * BLOCK_R), (BLOCK_P, BLOCK_R), (1, 0)); parts = tl.where((weights > 0)[:, None], tl.load(block, boundary_check=(0,), padding_option="zero"), 0.0)
#: \n        partial_out_ptr + (offs_p[:, None] * M + row) * R + offs_r[None, :], mask=(weights > 0)[:, None], other=0.0\n    ) =>

# %% combine_splits: several rows a program, softmax of tl along the parts
#: row = tl.program_id(0).to(tl.int64) => row = tl.program_id(0).to(tl.int64) * 2 + tl.arange(0, 2)
#: partial_lse_ptr + offs_p * M + row, mask=offs_p < P, other => partial_lse_ptr + offs_p[:, None] * M + row[None, :], mask=(offs_p < P)[:, None] & (row < M)[None, :], other
#: m_i = tl.max(lses) => m_i = tl.max(lses, axis=0)
#: tl.exp(lses - tl.where(m_i == float("-inf"), 0.0, m_i)) => tl.exp(lses - tl.where(m_i == float("-inf"), 0.0, m_i)[None, :])
#: l_i = tl.sum(weights) => l_i = tl.sum(weights, axis=0)
#: (offs_p[:, None] * M + row) * R + offs_r[None, :], mask=(weights > 0)[:, None], other => (offs_p[:, None, None] * M + row[None, :, None]) * R + offs_r[None, None, :], mask=(weights > 0)[:, :, None], other
#: tl.store(out_ptr + row * R + offs_r, tl.sum(parts * weights[:, None], axis=0) / l_i) => tl.store(out_ptr + row[:, None] * R + offs_r[None, :], tl.sum(parts * weights[:, :, None], axis=0) / l_i[:, None], mask=(row < M)[:, None])
#: tl.store(lse_ptr + row, m_i + tl.log(l_i)) => tl.store(lse_ptr + row, m_i + tl.log(l_i), mask=row < M)
#: [(B * H, R // block_r)] => [(triton.cdiv(B * H, 2), R // block_r)]

# %% predict_fold: counting down from the most that fits
def predict_fold(q_len, H):
    factor = min(q_len, 128 // H)
    while q_len % factor:
        factor -= 1
    return {"factor": factor, "rows": factor * H, "cache_reads": q_len / factor}

# %% predict_fold: counting cache reads up
def predict_fold(q_len, H):
    for reads in range(1, q_len + 1):
        factor, rest = divmod(q_len, reads)
        if not rest and factor * H <= 128:
            return dict(factor=factor, rows=factor * H, cache_reads=reads)

# %% predict_fold: all divisors, by a generator
def divisors(n):
    yield from (d for d in range(n, 0, -1) if n % d == 0)

def predict_fold(q_len, H):
    factor = next(d for d in divisors(q_len) if d * H <= 128)
    return {"cache_reads": float(q_len // factor), "rows": float(factor * H), "factor": float(factor)}

# %% predict_fold: by a tensor of candidates
def predict_fold(q_len, H):
    f = torch.arange(1, q_len + 1)
    factor = f[(q_len % f == 0) & (f * H <= 128)].max()
    return {"factor": factor, "rows": H * factor, "cache_reads": q_len // factor}

# %% folded_decode: a grid of one axis, and twice as many splits
#: split, b = tl.program_id(2), tl.program_id(1).to(tl.int64) => split = tl.program_id(0) % num_splits; rest = tl.program_id(0) // num_splits; b = (rest % B).to(tl.int64)
#: offs_m = tl.program_id(0) * BLOCK_M => offs_m = rest // B * BLOCK_M
#: num_splits = max(1, min(132 // (B * blocks), triton.cdiv(T, 128))) => num_splits = min(8, max(1, triton.cdiv(T, 64)))
#: [(blocks, B, num_splits)] => [(blocks * B * num_splits,)]

# %% folded_decode: exp2, and one split
#: num_splits = max(1, min(132 // (B * blocks), triton.cdiv(T, 128))) => num_splits = 1
#: tl.exp( => tl.exp2(
#: qk) * scale => qk) * (scale * 1.4426950408889634)
#: m_i + tl.log(l_i) => (m_i + tl.log2(l_i)) * 0.6931471805599453

# %% folded_decode: a program takes one token's block of heads
#: M = S * H => M = S * H; blocks_h = tl.cdiv(H, BLOCK_M); token = tl.program_id(0) // blocks_h; offs_h = tl.program_id(0) % blocks_h * BLOCK_M + tl.arange(0, BLOCK_M)
#: offs_m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M) => offs_m = tl.where(offs_h < H, token * H + offs_h, M)
#: seen = length - S + offs_m // H + 1 => seen = (length - S + token + 1) + 0 * offs_h
#: block_m, block_n, stages = block_sizes(M) => block_m, block_n, stages = block_sizes(H)
#: blocks = triton.cdiv(M, block_m) => blocks = S * triton.cdiv(H, block_m)

# %% folded_decode: block pointers for the cache, the combined query viewed as rows
#: c_kv_ptr + (b * T + offs_n)[:, None] * R + offs_r[None, :], mask=offs_n[:, None] < end, other=0.0 => tl.make_block_ptr(c_kv_ptr + b * T * R, (end, R), (R, 1), (start, 0), (BLOCK_N, R), (1, 0)), boundary_check=(0,), padding_option="zero"
#: q_latent, q_rope, c_kv, k_rope, seq_lens, partial_out, => q_latent.reshape(B, M, R), q_rope.flatten(1, 2), c_kv, k_rope, seq_lens, partial_out,
#: out = torch.empty_like(q_latent) => out = q_latent.new_empty(B, M, R)
#: out.view(B, M, R)) => out)
#: return out, lse.view(B, S, H) => return out.unflatten(1, (S, H)), lse.unflatten(1, (S, H))
