# %% predict_score_bytes: passes by kernel, summed
EAGER = {"two products": 2, "sum": 3, "scale": 2, "mask": 2, "softmax": 2}

def predict_score_bytes(B, S, H, T, R, Dr, itemsize):
    scores = B * S * H * T * itemsize
    score_passes = EAGER["two products"] + EAGER["sum"] + EAGER["scale"]
    softmax_passes = EAGER["mask"] + EAGER["softmax"]
    return {
        "eager_bytes": (score_passes + softmax_passes) * scores,
        "score_fused_bytes": (1 + softmax_passes) * scores,
        "softmax_fused_bytes": (score_passes + 2) * scores,
        "both_fused_bytes": (1 + 2) * scores,
        "cache_bytes": itemsize * (B * T * R + B * T * Dr),
    }

# %% predict_score_bytes: zip of names and passes, as floats
def predict_score_bytes(B, S, H, T, R, Dr, itemsize):
    names = "eager score_fused softmax_fused both_fused".split()
    words = float(B) * S * H * T
    out = {f"{name}_bytes": n * words * itemsize for name, n in zip(names, (11, 5, 9, 3))}
    out.update(cache_bytes=float(B) * T * (R + Dr) * itemsize)
    return out

# %% predict_score_bytes: by tensors on the device meta
def predict_score_bytes(B, S, H, T, R, Dr, itemsize):
    size = lambda *shape: torch.empty(shape, dtype={1: torch.int8, 2: torch.half, 4: torch.float32, 8: torch.float64}[itemsize], device="meta").nbytes
    p = size(B, S, H, T)
    return {"eager_bytes": 7 * p + 4 * p, "score_fused_bytes": p + 4 * p, "softmax_fused_bytes": 7 * p + 2 * p,
            "both_fused_bytes": 3 * p, "cache_bytes": size(B, T, R) + size(B, T, Dr)}

# %% predict_score_bytes: torch's integers
def predict_score_bytes(B, S, H, T, R, Dr, itemsize):
    passes = torch.tensor([11, 5, 9, 3]) * (B * S * H * T * itemsize)
    eager, score, softmax, both = passes
    return dict(eager_bytes=eager, score_fused_bytes=score, softmax_fused_bytes=softmax, both_fused_bytes=both,
                cache_bytes=torch.tensor(B * T * itemsize) * (R + Dr))

# %% scaled_matmul: block pointers, programs in groups of rows; at full size
@triton.jit
def scaled_matmul_kernel(
    x_ptr, y_ptr, out_ptr, scale, M, N, K,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
):
    pid = tl.program_id(0)
    rows, columns = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    first = pid // (GROUP * columns) * GROUP
    size = min(rows - first, GROUP)
    pid_m, pid_n = first + pid % (GROUP * columns) % size, pid % (GROUP * columns) // size
    x_block = tl.make_block_ptr(x_ptr, (M, K), (K, 1), (pid_m * BLOCK_M, 0), (BLOCK_M, BLOCK_K), (1, 0))
    y_block = tl.make_block_ptr(y_ptr, (K, N), (1, K), (0, pid_n * BLOCK_N), (BLOCK_K, BLOCK_N), (0, 1))
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for _ in range(0, tl.cdiv(K, BLOCK_K)):
        x = tl.load(x_block, boundary_check=(0, 1), padding_option="zero")
        y = tl.load(y_block, boundary_check=(0, 1), padding_option="zero")
        acc += tl.dot(x, y, input_precision="ieee")
        x_block = tl.advance(x_block, (0, BLOCK_K))
        y_block = tl.advance(y_block, (BLOCK_K, 0))
    out_block = tl.make_block_ptr(out_ptr, (M, N), (N, 1), (pid_m * BLOCK_M, pid_n * BLOCK_N), (BLOCK_M, BLOCK_N), (1, 0))
    tl.store(out_block, (acc * scale).to(out_ptr.dtype.element_ty), boundary_check=(0, 1))

def scaled_matmul(x, y, scale):
    M, K = x.shape
    N, _ = y.shape
    out = torch.empty((M, N), device=x.device, dtype=x.dtype)
    grid = lambda meta: (triton.cdiv(M, meta["BLOCK_M"]) * triton.cdiv(N, meta["BLOCK_N"]),)
    scaled_matmul_kernel[grid](x, y, out, scale, M, N, K, BLOCK_M=64, BLOCK_N=64, BLOCK_K=32, GROUP=8)
    return out

# %% scaled_matmul: few programs walk over all tiles
#: offs_m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)\n    offs_n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N) => columns = tl.cdiv(N, BLOCK_N)\n    for tile in range(tl.program_id(0), tl.cdiv(M, BLOCK_M) * columns, tl.num_programs(0)):\n        one_tile(x_ptr, y_ptr, out_ptr, scale, M, N, K, tile // columns * BLOCK_M + tl.arange(0, BLOCK_M), tile % columns * BLOCK_N + tl.arange(0, BLOCK_N), BLOCK_M, BLOCK_N, BLOCK_K)\n\n\n@triton.jit\ndef one_tile(x_ptr, y_ptr, out_ptr, scale, M, N, K, offs_m, offs_n, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):
#: (triton.cdiv(M, block_m), triton.cdiv(N, block_n)) => (min(132, triton.cdiv(M, block_m) * triton.cdiv(N, block_n)),)

# %% attention_score: heads of a token against a tile of tokens, the rope part first, block pointers
@triton.jit
def attention_score_kernel(
    q_latent_ptr, q_rope_ptr, c_kv_ptr, k_rope_ptr, out_ptr, scale, M, T, R, P,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):
    b = tl.program_id(0).to(tl.int64)
    first_m, first_n = tl.program_id(1) * BLOCK_M, tl.program_id(2) * BLOCK_N
    acc = tl.full((BLOCK_M, BLOCK_N), 0, tl.float32)
    q = tl.make_block_ptr(q_rope_ptr + b * M * P, (M, P), (P, 1), (first_m, 0), (BLOCK_M, BLOCK_D), (1, 0))
    k = tl.make_block_ptr(k_rope_ptr + b * T * P, (P, T), (1, P), (0, first_n), (BLOCK_D, BLOCK_N), (0, 1))
    for _ in range(0, P, BLOCK_D):
        acc = tl.dot(
            tl.load(q, boundary_check=(0, 1), padding_option="zero"),
            tl.load(k, boundary_check=(0, 1), padding_option="zero"), acc, input_precision="ieee",
        )
        q, k = tl.advance(q, (0, BLOCK_D)), tl.advance(k, (BLOCK_D, 0))
    q = tl.make_block_ptr(q_latent_ptr + b * M * R, (M, R), (R, 1), (first_m, 0), (BLOCK_M, BLOCK_D), (1, 0))
    k = tl.make_block_ptr(c_kv_ptr + b * T * R, (R, T), (1, R), (0, first_n), (BLOCK_D, BLOCK_N), (0, 1))
    for _ in range(0, R, BLOCK_D):
        acc = tl.dot(
            tl.load(q, boundary_check=(0, 1), padding_option="zero"),
            tl.load(k, boundary_check=(0, 1), padding_option="zero"), acc, input_precision="ieee",
        )
        q, k = tl.advance(q, (0, BLOCK_D)), tl.advance(k, (BLOCK_D, 0))
    out = tl.make_block_ptr(out_ptr + b * M * T, (M, T), (T, 1), (first_m, first_n), (BLOCK_M, BLOCK_N), (1, 0))
    tl.store(out, (acc * scale).to(out_ptr.dtype.element_ty), boundary_check=(0, 1))

def attention_score(q_latent, q_rope, c_kv, k_rope, Dn):
    B, S, H, R = q_latent.shape
    _, T, P = k_rope.shape
    out = q_latent.new_empty(B, S, H, T)
    scale = 1 / (Dn + P) ** 0.5
    attention_score_kernel[B, triton.cdiv(S * H, 32), triton.cdiv(T, 32)](
        q_latent, q_rope, c_kv, k_rope, out, scale, S * H, T, R, P, 32, 32, 32
    )
    return out

# %% attention_score: a grid of one axis, tokens as rows of the product
@triton.jit
def attention_score_kernel(
    q_latent_ptr, q_rope_ptr, c_kv_ptr, k_rope_ptr, out_ptr, scale, M, T, R, P,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):
    tiles_m, tiles_n = tl.cdiv(M, BLOCK_M), tl.cdiv(T, BLOCK_N)
    pid = tl.program_id(0)
    b = (pid // (tiles_m * tiles_n)).to(tl.int64)
    m = pid // tiles_n % tiles_m * BLOCK_M + tl.arange(0, BLOCK_M)
    n = pid % tiles_n * BLOCK_N + tl.arange(0, BLOCK_N)
    acc = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    for start in range(0, R + P, BLOCK_D):  # both parts as one sum; a block may hold some of each
        d = start + tl.arange(0, BLOCK_D)
        latent, rope = d < R, (d >= R) & (d < R + P)
        k = tl.load(c_kv_ptr + (b * T + n[:, None]) * R + d[None, :], mask=(n < T)[:, None] & latent[None, :], other=0.0)
        k += tl.load(k_rope_ptr + (b * T + n[:, None]) * P + d[None, :] - R, mask=(n < T)[:, None] & rope[None, :], other=0.0)
        q = tl.load(q_latent_ptr + (b * M + m[None, :]) * R + d[:, None], mask=(m < M)[None, :] & latent[:, None], other=0.0)
        q += tl.load(q_rope_ptr + (b * M + m[None, :]) * P + d[:, None] - R, mask=(m < M)[None, :] & rope[:, None], other=0.0)
        acc = tl.dot(k, q, acc, input_precision="ieee")
    tl.store(out_ptr + (b * M + m[None, :]) * T + n[:, None], acc * scale, mask=(m < M)[None, :] & (n < T)[:, None])

def attention_score(q_latent, q_rope, c_kv, k_rope, Dn):
    B, S, H, R = q_latent.shape
    T, P = c_kv.shape[1], k_rope.shape[2]
    out = torch.empty(B, S, H, T, dtype=q_latent.dtype, device=q_latent.device)
    grid = (B * triton.cdiv(S * H, 16) * triton.cdiv(T, 64),)
    attention_score_kernel[grid](
        q_latent, q_rope, c_kv, k_rope, out, (Dn + P) ** -0.5, S * H, T, R, P, BLOCK_M=16, BLOCK_N=64, BLOCK_D=32
    )
    return out

# %% attention_score: one block as wide as each part, padded to a power of two
#: for start in range(0, D, BLOCK_D):\n        offs_d = start + tl.arange(0, BLOCK_D) => for _ in tl.static_range(1):\n        offs_d = tl.arange(0, BLOCK_D)
#: M, T, R, BLOCK_D) => M, T, R, BLOCK_R)
#: M, T, P, BLOCK_D) => M, T, P, BLOCK_P)
#: BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,\n): => BLOCK_N: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_P: tl.constexpr,\n):
#: BLOCK_D=128 // q_latent.element_size() => BLOCK_R=max(16, triton.next_power_of_2(R)), BLOCK_P=max(16, triton.next_power_of_2(P))
#: min(max(triton.next_power_of_2(M), 16), 128) => 16
#: block_n = S * H, 128 => block_n = S * H, 16
#: num_stages=3 => num_stages=1

# %% masked_softmax: block pointers, exp2, the padding's weights taken away
@triton.jit
def masked_softmax_kernel(scores_ptr, seq_lens_ptr, out_ptr, S, H, T, BLOCK_N: tl.constexpr):
    h, s, b = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    row = (b * S + s) * H + h
    seen = tl.load(seq_lens_ptr + b) - S + s + 1
    n = tl.arange(0, BLOCK_N)
    block = tl.make_block_ptr(scores_ptr + row * T, (T,), (1,), (0,), (BLOCK_N,), (0,))
    x = tl.load(block, boundary_check=(0,), padding_option="zero").to(tl.float32) * 1.4426950408889634
    x = tl.where(n < seen, x, -1e38)
    p = tl.where(n < seen, tl.exp2(x - tl.max(x, axis=0)), 0.0)
    total = tl.sum(p, axis=0)
    p = p / (total + (total == 0).to(tl.float32))
    tl.store(tl.make_block_ptr(out_ptr + row * T, (T,), (1,), (0,), (BLOCK_N,), (0,)), p.to(out_ptr.dtype.element_ty), boundary_check=(0,))

def masked_softmax(scores, seq_lens):
    B, S, H, T = scores.shape
    out = torch.empty_like(scores)
    masked_softmax_kernel[H, S, B](scores, seq_lens, out, S, H, T, triton.next_power_of_2(T), num_warps=8)
    return out

# %% long_softmax: maximum first, then the sum, then the result: three passes
@triton.jit
def long_softmax_kernel(scores_ptr, seq_lens_ptr, out_ptr, S, H, T, BLOCK_N: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    seen = tl.load(seq_lens_ptr + row // (S * H)) + 1 - S + row // H % S
    scores_ptr += row * T
    out_ptr += row * T
    top = tl.full([BLOCK_N], float("-inf"), tl.float32)
    for start in range(0, seen, BLOCK_N):
        n = start + tl.arange(0, BLOCK_N)
        top = tl.maximum(top, tl.load(scores_ptr + n, mask=n < seen, other=float("-inf")).to(tl.float32))
    m = tl.max(top, axis=0)
    sums = tl.zeros([BLOCK_N], tl.float32)
    for start in range(0, seen, BLOCK_N):
        n = start + tl.arange(0, BLOCK_N)
        sums += tl.exp(tl.load(scores_ptr + n, mask=n < seen, other=float("-inf")).to(tl.float32) - m)
    rest = 1 / tl.sum(sums, axis=0)
    for start in range(0, T, BLOCK_N):
        n = start + tl.arange(0, BLOCK_N)
        if start < seen:
            x = tl.load(scores_ptr + n, mask=n < seen, other=float("-inf")).to(tl.float32)
            tl.store(out_ptr + n, tl.exp(x - m) * rest, mask=n < T)
        else:
            tl.store(out_ptr + n, tl.zeros([BLOCK_N], tl.float32), mask=n < T)

def long_softmax(scores, seq_lens):
    B, S, H, T = scores.shape
    out = torch.empty_like(scores)
    long_softmax_kernel[(B * S * H,)](scores, seq_lens, out, S, H, T, BLOCK_N=LONG_BLOCK, num_warps=4)
    return out

LONG_BLOCK = 2048

# %% long_softmax: a state for each column of the block, merged behind the loop; exp2
@triton.jit
def long_softmax_kernel(scores_ptr, seq_lens_ptr, out_ptr, S, H, T, BLOCK_N: tl.constexpr):
    b, s, h = tl.program_id(2).to(tl.int64), tl.program_id(1), tl.program_id(0)
    row = (b * S + s) * H + h
    seen = tl.maximum(tl.load(seq_lens_ptr + b) - (S - 1 - s), 0)
    m = tl.full([BLOCK_N], -1e30, tl.float32)
    l = tl.zeros([BLOCK_N], tl.float32)
    for start in range(0, seen, BLOCK_N):
        n = start + tl.arange(0, BLOCK_N)
        x = tl.load(scores_ptr + row * T + n, mask=n < seen, other=float("-inf")).to(tl.float32) * 1.4426950408889634
        new = tl.maximum(m, x)
        l = l * tl.exp2(m - new) + tl.exp2(x - new)
        m = new
    top = tl.max(m)
    total = tl.sum(l * tl.exp2(m - top))
    for start in range(0, T, BLOCK_N):
        n = start + tl.arange(0, BLOCK_N)
        x = tl.load(scores_ptr + row * T + n, mask=n < seen, other=float("-inf")).to(tl.float32) * 1.4426950408889634
        p = tl.where(n < seen, tl.exp2(x - top) / total, 0.0)
        tl.store(out_ptr + row * T + n, p, mask=n < T)

def long_softmax(scores, seq_lens):
    B, S, H, T = scores.shape
    out = scores.new_zeros(scores.shape)
    long_softmax_kernel[H, S, B](scores, seq_lens, out, S, H, T, LONG_BLOCK)
    return out

LONG_BLOCK: int = 1024

# %% long_softmax: few programs walk over all rows, block pointers
#: long_softmax_kernel(scores_ptr, seq_lens_ptr, out_ptr, S, H, T, BLOCK_N: tl.constexpr): => long_softmax_kernel(scores_ptr, seq_lens_ptr, out_ptr, rows, S, H, T, BLOCK_N: tl.constexpr):\n    for row in range(tl.program_id(0), rows, tl.num_programs(0)):\n        one_row(scores_ptr, seq_lens_ptr, out_ptr, row.to(tl.int64), S, H, T, BLOCK_N)\n\n\n@triton.jit\ndef one_row(scores_ptr, seq_lens_ptr, out_ptr, row, S, H, T, BLOCK_N: tl.constexpr):
#: row = tl.program_id(0).to(tl.int64)\n => block = tl.make_block_ptr(out_ptr + row * T, (T,), (1,), (0,), (BLOCK_N,), (0,))\n
#: tl.store(out_ptr + row * T + offs_n, tl.exp(x - m_i) / l_i, mask=offs_n < T) => tl.store(block, (tl.exp(x - m_i) / l_i).to(out_ptr.dtype.element_ty), boundary_check=(0,)); block = tl.advance(block, (BLOCK_N,))
#: [(B * S * H,)](scores, seq_lens, out, S => [(min(B * S * H, 264),)](scores, seq_lens, out, B * S * H, S

# %% predict_ablation: a loop over pairs
def predict_ablation(total, before, after):
    gains, rest = [], total
    for i in range(len(before)):
        saved = before[i] - after[i]
        gains.append(saved / (total - saved))
        rest -= saved
    return {"combined_gain": (total - rest) / rest, "sum_of_gains": math_sum(gains), "gains": gains}

def math_sum(values):
    result = 0
    for value in values:
        result = result + value
    return result

# %% predict_ablation: torch's vectors
def predict_ablation(total, before, after):
    before, after = (torch.tensor(x, dtype=torch.float64) for x in (before, after))
    gains = total / (total - before + after) - 1
    return dict(gains=gains.tolist(), sum_of_gains=gains.sum().item(),
                combined_gain=total / (total - before.sum().item() + after.sum().item()) - 1)

# %% predict_ablation: throughputs by a helper, NumPy
import numpy as np

def gain(old, new):
    return (1 / new - 1 / old) * old

def predict_ablation(total, before, after):
    before, after = np.asarray(before), np.asarray(after)
    gains = [gain(total, total - b + a) for b, a in zip(before, after)]
    return {"gains": gains, "sum_of_gains": np.sum(gains), "combined_gain": gain(total, total - np.sum(before - after))}

# %% predict_ablation: a tensor of gains made a list, map and lambda
def predict_ablation(total, before, after):
    saved = list(map(lambda old, new: old - new, before, after))
    gains = torch.tensor([total / (total - s) for s in saved], dtype=torch.float64) - 1
    return {"gains": list(gains), "sum_of_gains": gains.sum(), "combined_gain": sum(saved) / (total - sum(saved))}
