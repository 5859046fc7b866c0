# %% predict_norm_bytes: a table of operations
OPERATIONS = [("float", "i", 4), ("square", 4, 4), ("mean", 4, 0), ("times rstd", 4, 4), ("times weight", 4, 4), ("to", 4, "i")]

def predict_norm_bytes(rows, width, itemsize):
    size = lambda n: itemsize if n == "i" else n
    eager = rows * width * sum(size(r) + size(w) for _, r, w in OPERATIONS)
    fused = 2 * rows * width * itemsize
    return dict(eager_bytes=eager, fused_bytes=fused, ratio=eager / fused)

# %% predict_norm_bytes: in closed form, as floats
def predict_norm_bytes(rows, width, itemsize):
    n = 1.0 * rows * width
    return {"eager_bytes": n * (36 + 2 * itemsize), "fused_bytes": n * 2 * itemsize, "ratio": 1 + 18 / itemsize}

# %% predict_norm_bytes: step by step
def predict_norm_bytes(rows, width, itemsize):
    x = rows * width * itemsize
    y = rows * width * 4
    moved = x + y
    moved += y + y
    moved += y
    moved += 2 * (y + y)
    moved += y + x
    answer = {}
    answer["eager_bytes"] = moved
    answer["fused_bytes"] = x + x
    answer["ratio"] = moved / answer["fused_bytes"]
    return answer

# %% predict_norm_bytes: torch's numbers
def predict_norm_bytes(rows, width, itemsize):
    per_number = torch.tensor([itemsize + 4, 8, 4, 8, 8, 4 + itemsize]).sum()
    eager = per_number * rows * width
    fused = torch.tensor(2 * itemsize) * rows * width
    return {"eager_bytes": eager, "fused_bytes": fused, "ratio": eager.double() / fused}

# %% rms_norm: block pointers over several rows, sizes by heuristics; at full size
@triton.heuristics({"BLOCK_D": lambda args: triton.next_power_of_2(args["D"]), "ROWS": lambda args: 4 if args["D"] <= 1024 else 1})
@triton.jit
def rms_norm_kernel(x_ptr, weight_ptr, out_ptr, N, W, D, eps, ROWS: tl.constexpr, BLOCK_D: tl.constexpr):
    first = tl.program_id(0) * ROWS
    x_block = tl.make_block_ptr(x_ptr, (N, D), (W, 1), (first, 0), (ROWS, BLOCK_D), (1, 0))
    w_block = tl.make_block_ptr(weight_ptr, (D,), (1,), (0,), (BLOCK_D,), (0,))
    x = tl.load(x_block, boundary_check=(0, 1), padding_option="zero").to(tl.float32)
    w = tl.load(w_block, boundary_check=(0,), padding_option="zero").to(tl.float32)
    y = x / tl.sqrt(tl.sum(x * x, axis=1) / D + eps)[:, None] * w[None, :]
    out_block = tl.make_block_ptr(out_ptr, (N, D), (D, 1), (first, 0), (ROWS, BLOCK_D), (1, 0))
    tl.store(out_block, y.to(out_ptr.dtype.element_ty), boundary_check=(0, 1))

def rms_norm(x, weight, eps=1e-6):
    N, W = x.shape
    (D,) = weight.shape
    out = x.new_empty(N, D)
    rms_norm_kernel[lambda meta: (triton.cdiv(N, meta["ROWS"]),)](x, weight, out, N, W, D, eps)
    return out

# %% apply_rope: pairs by two loads, all heads of a token in a loop
@triton.jit
def rope_kernel(x_ptr, cos_ptr, sin_ptr, out_ptr, S, H, P, BLOCK_P: tl.constexpr):
    s, b = tl.program_id(0), tl.program_id(1).to(tl.int64)
    i = tl.arange(0, BLOCK_P)
    live = i < P
    cos = tl.load(cos_ptr + s * P + i, mask=live)
    sin = tl.load(sin_ptr + s * P + i, mask=live)
    base = (b * S + s) * H * 2 * P
    for h in range(H):
        a = tl.load(x_ptr + base + 2 * i, mask=live).to(tl.float32)
        c = tl.load(x_ptr + base + 2 * i + 1, mask=live).to(tl.float32)
        tl.store(out_ptr + base + 2 * i, tl.fma(a, cos, -(c * sin)), mask=live)
        tl.store(out_ptr + base + 2 * i + 1, tl.fma(a, sin, c * cos), mask=live)
        base += 2 * P

def apply_rope(x, cos, sin):
    B, S, H, Dr = x.shape
    out = torch.zeros_like(x)
    rope_kernel[S, B](x, cos, sin, out, S, H, Dr // 2, triton.next_power_of_2(Dr // 2), num_warps=1)
    return out

# %% apply_rope: the partner by a second load at offset xor 1, signs instead of a split
@triton.jit
def rope_kernel(x_ptr, cos_ptr, sin_ptr, out_ptr, total, S, H, D, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    live = at < total
    d, token = at % D, at // (H * D)
    place = token % S * (D // 2) + d // 2
    cos, sin = tl.load(cos_ptr + place, mask=live), tl.load(sin_ptr + place, mask=live)
    own = tl.load(x_ptr + at, mask=live).to(tl.float32)
    partner = tl.load(x_ptr + (at ^ 1), mask=live).to(tl.float32)
    tl.store(out_ptr + at, own * cos + partner * tl.where(d % 2 == 0, -sin, sin), mask=live)

def apply_rope(x, cos, sin):
    B, S, H, Dr = x.shape
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    rope_kernel[triton.cdiv(x.numel(), 1024),](x, cos, sin, out, x.numel(), S, H, Dr, BLOCK=1024)
    return out

# %% apply_rope: block pointers over [tokens, heads, pairs, 2], the table in the module's own order of programs
#: token = tl.program_id(0).to(tl.int64) => token = (tl.num_programs(0) - 1 - tl.program_id(0)).to(tl.int64)
#: x = tl.load(x_ptr + offsets, mask=mask, other=0.0).to(tl.float32) => block = tl.make_block_ptr(x_ptr + token * H * 2 * P, (H, 2 * P), (2 * P, 1), (tl.program_id(1) * BLOCK_H, 0), (BLOCK_H, 2 * BLOCK_P), (1, 0)); x = tl.load(block, boundary_check=(0, 1), padding_option="zero").to(tl.float32)
#: tl.store(out_ptr + offsets, tl.reshape(y, (BLOCK_H, 2 * BLOCK_P)), mask=mask) => tl.store(out_ptr + offsets, y.reshape(BLOCK_H, 2 * BLOCK_P).to(out_ptr.dtype.element_ty), mask=mask)

# %% rope_query_key: query and key as one run of rows, pairs by two loads
@triton.jit
def rope_query_key_kernel(
    q_ptr, k_ptr, cos_ptr, sin_ptr, q_out_ptr, k_out_ptr, tokens, S, H, P, ROWS: tl.constexpr, BLOCK_P: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    token, head = row // (H + 1), row % (H + 1)
    i = tl.arange(0, BLOCK_P)[None, :]
    live = (token < tokens) & (i < P)
    cos = tl.load(cos_ptr + token % S * P + i, mask=live, other=0.0)
    sin = tl.load(sin_ptr + token % S * P + i, mask=live, other=0.0)
    is_key = head == H
    q_at, k_at = (token * H + head) * 2 * P + 2 * i, token * 2 * P + 2 * i
    a = tl.load(q_ptr + q_at, mask=live & (head < H), other=0.0) + tl.load(k_ptr + k_at, mask=live & is_key, other=0.0)
    b = tl.load(q_ptr + q_at + 1, mask=live & (head < H), other=0.0) + tl.load(k_ptr + k_at + 1, mask=live & is_key, other=0.0)
    a, b = a.to(tl.float32), b.to(tl.float32)
    first, second = a * cos - b * sin, a * sin + b * cos
    tl.store(q_out_ptr + q_at, first, mask=live & (head < H))
    tl.store(q_out_ptr + q_at + 1, second, mask=live & (head < H))
    tl.store(k_out_ptr + k_at, first, mask=live & is_key)
    tl.store(k_out_ptr + k_at + 1, second, mask=live & is_key)

def rope_query_key(q_rope, k_rope, cos, sin):
    (B, S, H, Dr), P = q_rope.shape, cos.shape[1]
    q_out, k_out = torch.empty_like(q_rope), torch.empty_like(k_rope)
    rope_query_key_kernel[(triton.cdiv(B * S * (H + 1), 16),)](
        q_rope, k_rope, cos, sin, q_out, k_out, B * S, S, H, P, ROWS=16, BLOCK_P=triton.next_power_of_2(P)
    )
    return q_out, k_out

# %% rope_query_key: the key by programs of their own, behind those of the query
#: if tl.program_id(1) == 0: => if tl.program_id(1) == tl.num_programs(1) - 1:
#: turn_block(q_ptr, q_out_ptr, offsets, (offs_h < H) & (offs_d < 2 * P), cos, sin, BLOCK_H, BLOCK_P)\n => if tl.program_id(1) < tl.num_programs(1) - 1:\n        turn_block(q_ptr, q_out_ptr, offsets, (offs_h < H) & (offs_d < 2 * P), cos, sin, ROWS=BLOCK_H, BLOCK_P=BLOCK_P)\n
#: [(B * S, triton.cdiv(H, block_h))] => [(B * S, triton.cdiv(H, block_h) + 1)]

# %% rope_query_key: a loop over blocks of heads in each token's program, angles loaded once
@triton.jit
def turned(x, cos, sin, ROWS: tl.constexpr, P: tl.constexpr):
    a, b = tl.split(x.to(tl.float32).reshape(ROWS, P, 2))
    return tl.join(a * cos - b * sin, a * sin + b * cos).reshape(ROWS, 2 * P)

@triton.jit
def rope_query_key_kernel(
    q_ptr, k_ptr, cos_ptr, sin_ptr, q_out_ptr, k_out_ptr, S, H, P, BLOCK_H: tl.constexpr, BLOCK_P: tl.constexpr
):
    s, b = tl.program_id(1), tl.program_id(0).to(tl.int64)
    token = b * S + s
    i, d = tl.arange(0, BLOCK_P), tl.arange(0, 2 * BLOCK_P)[None, :]
    cos = tl.load(cos_ptr + s * P + i, mask=i < P, other=0.0)[None, :]
    sin = tl.load(sin_ptr + s * P + i, mask=i < P, other=0.0)[None, :]
    key = tl.load(k_ptr + token * 2 * P + d, mask=d < 2 * P, other=0.0)
    tl.store(k_out_ptr + token * 2 * P + d, turned(key, cos, sin, 1, BLOCK_P), mask=d < 2 * P)
    for first in range(0, H, BLOCK_H):
        h = first + tl.arange(0, BLOCK_H)[:, None]
        mask = (h < H) & (d < 2 * P)
        query = tl.load(q_ptr + (token * H + h) * 2 * P + d, mask=mask, other=0.0)
        tl.store(q_out_ptr + (token * H + h) * 2 * P + d, turned(query, cos, sin, BLOCK_H, BLOCK_P), mask=mask)

def rope_query_key(q_rope, k_rope, cos, sin):
    B, S, H, Dr = q_rope.shape
    q_out, k_out = torch.empty_like(q_rope), torch.empty_like(k_rope)
    rope_query_key_kernel[B, S](
        q_rope, k_rope, cos, sin, q_out, k_out, S, H, Dr // 2, BLOCK_H=8, BLOCK_P=triton.next_power_of_2(Dr // 2)
    )
    return q_out, k_out
