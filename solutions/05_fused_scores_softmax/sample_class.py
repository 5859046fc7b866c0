"""The sample class of lesson 05: right in several styles, slow, wrong, and dishonest; every named mistake is shown."""

from autograder.course.sample import (
    Expected,
    Submission,
    add_cell,
    not_right,
    replace,
    rewrite,
    says,
    slip,
    slow,
    unfinished,
)
from autograder.judging.verdict import Outcome

PASSES = '{"eager_bytes": 11, "score_fused_bytes": 5, "softmax_fused_bytes": 9, "both_fused_bytes": 3}'
PASS = "name: count * one_pass for"
CACHE = "B * T * (R + Dr) * itemsize}"
COMBINED = "total / (total - sum(saved)) - 1}"
GAINS = "gains = [total / (total - each) - 1 for each in saved]"

DOT = "        acc = tl.dot(x, y, acc, input_precision="
MATMUL_LOOP = "range(0, K, BLOCK_K)"
OWN_SUM = "acc = tl.zeros([BLOCK_M, BLOCK_N], x_ptr.dtype.element_ty)"
FLOAT_SUM = "acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)"

LATENT = """    acc = add_product(acc, q_latent_ptr + b * M * R, c_kv_ptr + b * T * R, offs_m, offs_n, M, T, R, BLOCK_D)
"""
ROPE = """    acc = add_product(acc, q_rope_ptr + b * M * P, k_rope_ptr + b * T * P, offs_m, offs_n, M, T, P, BLOCK_D)
"""
SCALE = "(Dn + P) ** -0.5"
SCORE_GRID = "grid = (triton.cdiv(M, block_m), triton.cdiv(T, block_n), B)"

SEEN = "    seen = tl.load(seq_lens_ptr + b) - (S - 1 - s)\n"
SCORES = 'tl.load(scores_ptr + row * T + offs_n, mask=offs_n < seen, other=float("-inf")).to(tl.float32)'
LOAD = f"    x = {SCORES}  # [BLOCK_N]\n"
ADDED = '    x += tl.where(offs_n < seen, 0.0, float("-inf"))\n'
POWERS = '    p = tl.exp(x - tl.where(m_i == float("-inf"), 0.0, m_i))\n'
RUNNING = """        alpha = tl.exp(m_i - m_new)
        l_i = l_i * alpha + tl.sum(tl.exp(x - m_new))
"""
EMPTY = "    m_i, l_i = tl.where(seen > 0, m_i, 0.0), tl.where(seen > 0, l_i, 1.0)\n"
SECOND = "    for start in range(0, T, BLOCK_N):\n"

THREE_LOOPS = """
LONG_BLOCK = 4096


@triton.jit
def three_loops(scores_ptr, seq_lens_ptr, out_ptr, S, H, T, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    scores_ptr += row * T
    seen = tl.load(seq_lens_ptr + row // (S * H)) - (S - 1 - row // H % S)
    cols = tl.arange(0, BLOCK)
    peak = -3.0e38
    for start in range(0, seen, BLOCK):
        x = tl.load(scores_ptr + start + cols, mask=start + cols < seen, other=float("-inf")).to(tl.float32)
        peak = tl.maximum(peak, tl.max(x))
    total = 0.0
    for start in range(0, seen, BLOCK):
        x = tl.load(scores_ptr + start + cols, mask=start + cols < seen, other=float("-inf")).to(tl.float32)
        total += tl.sum(tl.exp(x - peak))
    total = tl.where(seen > 0, total, 1.0)
    for start in range(0, T, BLOCK):
        x = tl.load(scores_ptr + start + cols, mask=start + cols < seen, other=float("-inf")).to(tl.float32)
        tl.store(out_ptr + row * T + start + cols, tl.exp(x - peak) / total, mask=start + cols < T)


def NAME(scores, seq_lens):
    B, S, H, T = scores.shape
    out = torch.empty_like(scores)
    three_loops[(B * S * H,)](scores, seq_lens, out, S, H, T, BLOCK=SIZE, num_warps=WARPS)
    return out
"""


def three_loops(name: str, block: int, warps: int) -> str:
    """Return a softmax that reads each row three times."""
    return THREE_LOOPS.replace("NAME", name).replace("SIZE", str(block)).replace("WARPS", str(warps))


SUBMISSIONS = (
    Submission("ada", "the solution as it stands"),
    Submission(
        "ben",
        "another style: other grids, transposed in registers, a running maximum for each place of a block",
        patches=(
            rewrite(
                "predict_score_bytes",
                """
def predict_score_bytes(B, S, H, T, R, Dr, itemsize):
    scores = B * S * H * T * itemsize
    eager_scores, eager_softmax = 1 + 1 + 3 + 2, 2 + 2
    fused_scores, fused_softmax = 1, 2
    return dict(
        eager_bytes=(eager_scores + eager_softmax) * scores,
        score_fused_bytes=(fused_scores + eager_softmax) * scores,
        softmax_fused_bytes=(eager_scores + fused_softmax) * scores,
        both_fused_bytes=(fused_scores + fused_softmax) * scores,
        cache_bytes=B * T * R * itemsize + B * T * Dr * itemsize,
    )
""",
            ),
            rewrite(
                "scaled_matmul",
                """
@triton.jit
def tile(x_ptr, y_ptr, out_ptr, scale, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    across = tl.cdiv(N, BN)
    m = tl.program_id(0) // across * BM + tl.arange(0, BM)[:, None]
    n = tl.program_id(0) % across * BN + tl.arange(0, BN)[:, None]
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for start in range(0, K, BK):
        k = start + tl.arange(0, BK)[None, :]
        x = tl.load(x_ptr + m * K + k, mask=(m < M) & (k < K), other=0.0)
        y = tl.load(y_ptr + n * K + k, mask=(n < N) & (k < K), other=0.0)
        total += tl.dot(x, tl.trans(y), input_precision="ieee")
    column = tl.program_id(0) % across * BN + tl.arange(0, BN)[None, :]
    tl.store(out_ptr + m * N + column, total * scale, mask=(m < M) & (column < N))


def scaled_matmul(x, y, scale):
    M, K = x.shape
    N = y.shape[0]
    out = x.new_empty(M, N)
    tile[(triton.cdiv(M, 128) * triton.cdiv(N, 64),)](
        x, y, out, scale, M, N, K, BM=128, BN=64, BK=32, num_warps=4, num_stages=4
    )
    return out
""",
            ),
            rewrite(
                "attention_score",
                """
@triton.jit
def all_heads(ql_ptr, qr_ptr, c_ptr, k_ptr, out_ptr, scale, rows, T, R, P, BN: tl.constexpr, BT: tl.constexpr):
    b = (tl.program_id(0) // tl.cdiv(rows, BN)).to(tl.int64)
    n = tl.program_id(0) % tl.cdiv(rows, BN) * BN + tl.arange(0, BN)
    t = tl.program_id(1) * BT + tl.arange(0, BT)
    d = tl.arange(0, 64)
    acc = tl.zeros([BN, BT], tl.float32)
    for start in range(0, R + P + (64 - R % 64) % 64, 64):  # the latent's turns first, then those of RoPE
        if start < R:
            width, left, q, k = R, start, ql_ptr + b * rows * R, c_ptr + b * T * R
        else:
            width, left, q, k = P, start - tl.cdiv(R, 64) * 64, qr_ptr + b * rows * P, k_ptr + b * T * P
        inside = left + d < width
        x = tl.load(q + n[:, None] * width + left + d[None, :], mask=(n < rows)[:, None] & inside[None, :], other=0.0)
        y = tl.load(k + t[:, None] * width + left + d[None, :], mask=(t < T)[:, None] & inside[None, :], other=0.0)
        acc = tl.dot(x, tl.trans(y), acc, input_precision="ieee")
    place = out_ptr + (b * rows + n)[:, None] * T + t[None, :]
    tl.store(place, (acc * scale).to(out_ptr.dtype.element_ty), mask=(n < rows)[:, None] & (t < T)[None, :])


def attention_score(q_latent, q_rope, c_kv, k_rope, Dn):
    B, S, H, R = q_latent.shape
    _, T, P = k_rope.shape
    out = q_latent.new_empty(B, S, H, T)
    rows = 16 if S * H <= 16 else 64 if S * H <= 64 else 128
    grid = (B * triton.cdiv(S * H, rows), triton.cdiv(T, 64))
    all_heads[grid](
        q_latent, q_rope, c_kv, k_rope, out, 1 / (Dn + P) ** 0.5, S * H, T, R, P, BN=rows, BT=64, num_warps=4
    )
    return out
""",
            ),
            rewrite(
                "masked_softmax",
                """
@triton.jit
def rows_of_heads(x_ptr, lens_ptr, out_ptr, S, H, T, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    query = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * ROWS + tl.arange(0, ROWS)[:, None]
    t = tl.arange(0, BLOCK)[None, :]
    limit = tl.load(lens_ptr + query // S) - S + 1 + query % S
    at = (query * H + head) * T + t
    x = tl.load(x_ptr + at, mask=(head < H) & (t < T), other=0.0).to(tl.float32)
    x = tl.where(t < limit, x, float("-inf"))
    peak = tl.maximum(tl.max(x, axis=1, keep_dims=True), -1e30)
    p = tl.exp(x - peak)
    p = p * (1.0 / tl.maximum(tl.sum(p, axis=1, keep_dims=True), 1e-30))
    tl.store(out_ptr + at, p, mask=(head < H) & (t < T))


def masked_softmax(scores, seq_lens):
    B, S, H, T = scores.shape
    out = torch.empty_like(scores)
    BLOCK = max(triton.next_power_of_2(T), 16)
    ROWS = 2 if H > 1 else 1
    rows_of_heads[(B * S, triton.cdiv(H, ROWS))](
        scores, seq_lens, out, S, H, T, ROWS=ROWS, BLOCK=BLOCK, num_warps=8
    )
    return out
""",
            ),
            rewrite(
                "long_softmax",
                """
LONG_BLOCK = 4096


@triton.jit
def lanes(x_ptr, lens_ptr, out_ptr, S, H, T, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    limit = tl.load(lens_ptr + row // (S * H)) - S + 1 + row // H % S
    x_ptr, out_ptr = x_ptr + row * T, out_ptr + row * T
    t = tl.arange(0, BLOCK)
    peaks, totals = tl.full([BLOCK], -1e30, tl.float32), tl.zeros([BLOCK], tl.float32)
    for start in range(0, limit, BLOCK):
        x = tl.load(x_ptr + start + t, mask=start + t < limit, other=float("-inf")).to(tl.float32)
        larger = tl.maximum(peaks, x)
        totals = totals * tl.exp(peaks - larger) + tl.exp(x - larger)
        peaks = larger
    peak = tl.max(peaks)
    total = tl.sum(totals * tl.exp(peaks - peak))
    inverse = 1.0 / tl.where(limit > 0, total, 1.0)
    for start in range(0, T, BLOCK):
        x = tl.load(x_ptr + start + t, mask=start + t < limit, other=float("-inf")).to(tl.float32)
        tl.store(out_ptr + start + t, tl.exp(x - peak) * inverse, mask=start + t < T)


def long_softmax(scores, seq_lens):
    B, S, H, T = scores.shape
    out = torch.empty_like(scores)
    lanes[(B * S * H,)](scores, seq_lens, out, S, H, T, LONG_BLOCK, num_warps=16)
    return out
""",
            ),
            rewrite(
                "predict_ablation",
                """
def predict_ablation(total, before, after):
    gains = []
    rest = total
    for slow, fast in zip(before, after):
        gains.append((slow - fast) / (total - slow + fast))
        rest += fast - slow
    return dict(gains=gains, sum_of_gains=sum(gains), combined_gain=(total - rest) / rest)
""",
            ),
        ),
    ),
    Submission(
        "chloe",
        "kernels' helpers and a constant in cells of her own",
        patches=(
            add_cell(
                "masked_softmax",
                "LOG2E = tl.constexpr(1.4426950408889634)\n\n\n"
                "@triton.jit\n"
                "def finite(x):\n"
                '    return tl.where(x == float("-inf"), 0.0, x)\n\n\n'
                "@triton.jit\n"
                "def power(x):\n"
                "    return tl.exp2(x * LOG2E)\n\n\n"
                "print(LOG2E)",
            ),
            replace("masked_softmax", POWERS, "    p = power(x - finite(m_i))\n"),
            replace(
                "long_softmax",
                RUNNING,
                "        alpha = power(m_i - m_new)\n        l_i = l_i * alpha + tl.sum(power(x - m_new))\n",
            ),
            replace("long_softmax", "tl.exp(x - m_i) / l_i", "power(x - m_i) / l_i"),
            add_cell("scaled_matmul", "def side(size):\n    return min(max(triton.next_power_of_2(size), 16), 128)"),
            replace(
                "scaled_matmul",
                "(min(max(triton.next_power_of_2(size), 16), 128) for size in (M, N))",
                "side(M), side(N)",
            ),
            replace("attention_score", "min(max(triton.next_power_of_2(M), 16), 128)", "side(M)"),
        ),
    ),
    Submission(
        "dev",
        "warns and prints",
        patches=(
            replace(
                "attention_score",
                "    M, block_n = S * H, 128\n",
                "    M, block_n = S * H, 128\n    import warnings\n"
                '    warnings.warn(f"{M} rows")\n    print(q_latent.shape)\n',
            ),
            replace("predict_ablation", "    saved = [", '    print("total", total)\n    saved = ['),
        ),
    ),
    # Wrong
    Submission(
        "eli",
        "counts numbers, forgets the scale, scales by 1/√576, softmax over heads, each block alone, adds gains",
        patches=(
            replace("predict_score_bytes", "one_pass = B * S * H * T * itemsize", "one_pass = B * S * H * T"),
            replace("predict_score_bytes", CACHE, "B * T * (R + Dr)}"),
            replace("scaled_matmul", "acc * scale", "acc"),
            replace("attention_score", SCALE, "(R + P) ** -0.5"),
            rewrite(
                "masked_softmax",
                """
@triton.jit
def softmax_tile(scores_ptr, seq_lens_ptr, out_ptr, S, H, T, HEADS: tl.constexpr, BLOCK: tl.constexpr):
    query = tl.program_id(0)
    h, t = tl.arange(0, HEADS)[:, None], tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[None, :]
    seen = tl.load(seq_lens_ptr + query // S) - (S - 1 - query % S)
    at = (query * H + h) * T + t
    x = tl.load(scores_ptr + at, mask=(h < H) & (t < seen), other=float("-inf")).to(tl.float32)
    peak = tl.max(x, axis=0)
    powers = tl.exp(x - tl.where(peak == float("-inf"), 0.0, peak))
    total = tl.sum(powers, axis=0)
    tl.store(out_ptr + at, powers / tl.where(total == 0, 1.0, total), mask=(h < H) & (t < T))


def masked_softmax(scores, seq_lens):
    B, S, H, T = scores.shape
    out = torch.empty_like(scores)
    grid = (B * S, triton.cdiv(T, 128))
    softmax_tile[grid](scores, seq_lens, out, S, H, T, HEADS=triton.next_power_of_2(H), BLOCK=128)
    return out
""",
            ),
            replace(
                "long_softmax",
                "        m_new = tl.maximum(m_i, tl.max(x))\n" + RUNNING + "        m_i = m_new\n",
                "",
            ),
            replace(
                "long_softmax",
                SECOND,
                "    for start in range(0, T, BLOCK_N):\n        m_i, l_i = 0.0, 1.0\n",
            ),
            replace(
                "long_softmax",
                "        tl.store(",
                "        if start < seen:\n"
                "            m_i = tl.max(x)\n"
                "            l_i = tl.sum(tl.exp(x - m_i))\n"
                "        tl.store(",
            ),
            replace("predict_ablation", COMBINED, "sum(gains)}"),
        ),
        expect={
            **says("predict_score_bytes", "multiply by itemsize"),
            **not_right("scaled_matmul", "not multiplied by scale"),
            **not_right("attention_score", "the scale is 1/√(R+Dr)"),
            **not_right("masked_softmax", "the weights of the heads add up to 1"),
            **not_right("long_softmax", "each block of 4096 add up to 1"),
            **says("predict_ablation", "combined_gain adds the gains"),
        },
    ),
    Submission(
        "fay",
        "one head, y read as it lies, 1/√R, counts the block's empty places, does not rescale, multiplies gains",
        patches=(
            replace("predict_score_bytes", "one_pass = B * S * H * T * itemsize", "one_pass = B * S * T * itemsize"),
            replace(
                "scaled_matmul",
                "y_ptr + offs_n[None, :] * K + offs_k[:, None]",
                "y_ptr + offs_k[:, None] * N + offs_n[None, :]",
            ),
            replace("attention_score", SCALE, "R ** -0.5"),
            replace("masked_softmax", 'other=float("-inf")', "other=0.0"),
            replace("long_softmax", RUNNING, "        l_i += tl.sum(tl.exp(x - m_new))\n"),
            replace(
                "predict_ablation",
                "    return {",
                "    product = 1.0\n    for gain in gains:\n        product *= 1 + gain\n    return {",
            ),
            replace("predict_ablation", COMBINED, "product - 1}"),
        ),
        expect={
            **says("predict_score_bytes", "the scores of one head"),
            **not_right("scaled_matmul", "read as if its rows were columns"),
            **not_right("attention_score", "the scale is 1/√R"),
            **not_right("masked_softmax", "count as scores of 0"),
            **not_right("long_softmax", "exp(old maximum − new maximum)"),
            **says("predict_ablation", "multiplies the gains"),
        },
    ),
    Submission(
        "gus",
        "counts writes, stores columns, 1/√Dn, no maximum, keeps the last block's sum, returns shares of the time",
        patches=(
            replace(
                "predict_score_bytes",
                PASSES,
                '{"eager_bytes": 6, "score_fused_bytes": 3, "softmax_fused_bytes": 5, "both_fused_bytes": 2}',
            ),
            replace(
                "scaled_matmul",
                "out_ptr + offs_m[:, None] * N + offs_n[None, :]",
                "out_ptr + offs_n[None, :] * M + offs_m[:, None]",
            ),
            replace("attention_score", SCALE, "Dn ** -0.5"),
            replace("masked_softmax", POWERS, "    p = tl.exp(x)\n"),
            replace("long_softmax", RUNNING, "        l_i = tl.sum(tl.exp(x - m_new))\n"),
            replace("predict_ablation", GAINS, "gains = [each / total for each in saved]"),
            replace("predict_ablation", COMBINED, "sum(saved) / total}"),
        ),
        expect={
            **says("predict_score_bytes", "only writes are counted"),
            **not_right("scaled_matmul", "stored by columns"),
            **not_right("attention_score", "the scale is 1/√Dn"),
            **not_right("masked_softmax", "subtract the row's maximum first", 3),
            **not_right("long_softmax", "divided by the sum of its last block"),
            **says("predict_ablation", "shares of the time saved"),
        },
    ),
    Submission(
        "hana",
        "hands in unfinished cells, and scores without a scale",
        patches=(
            unfinished("scaled_matmul"),
            replace("attention_score", "acc * scale", "acc"),
            unfinished("masked_softmax"),
            unfinished("long_softmax"),
        ),
        expect={
            **not_right("scaled_matmul", "as it was handed out", outcome=Outcome.UNFINISHED),
            **not_right("attention_score", "the scores are not scaled"),
            **not_right("masked_softmax", "as it was handed out", outcome=Outcome.UNFINISHED),
            **not_right("long_softmax", "as it was handed out", outcome=Outcome.UNFINISHED),
        },
    ),
    Submission(
        "ivan",
        "a syntax error in one cell, and the scale on one product",
        patches=(
            replace("masked_softmax", "    l_i = tl.sum(p)\n", "    l_i = = tl.sum(p)\n"),
            replace("attention_score", ROPE, "    acc *= scale\n" + ROPE),
            replace("attention_score", "acc * scale", "acc"),
        ),
        expect={
            **not_right("masked_softmax", "SyntaxError in line", outcome=Outcome.ERROR),
            **not_right("attention_score", "only the latent product is scaled"),
        },
    ),
    Submission(
        "jens",
        "float32 operands in TF32, heads before queries",
        patches=(
            replace("masked_softmax", "row // H % S", "row % S"),
            replace("scaled_matmul", ', input_precision="ieee"', ""),
            replace("attention_score", ', input_precision="ieee"', ""),
        ),
        expect={
            **not_right("masked_softmax", "taken for query n % S", 2),
            **not_right("scaled_matmul", "multiplied in TF32"),
            **not_right("attention_score", "multiplied in TF32", 1),
        },
    ),
    Submission(
        "lena",
        "a mask as large as the scores, no tail of K, the scale on the wrong product, ignores lengths, forgets `after`",
        patches=(
            replace(
                "predict_score_bytes",
                PASSES,
                '{"eager_bytes": 12, "score_fused_bytes": 6, "softmax_fused_bytes": 9, "both_fused_bytes": 3}',
            ),
            replace("scaled_matmul", MATMUL_LOOP, "range(0, K - K % BLOCK_K, BLOCK_K)"),
            replace(
                "attention_score",
                LATENT + ROPE,
                ROPE + "    acc *= scale\n" + LATENT,
            ),
            replace("attention_score", "acc * scale", "acc"),
            replace("masked_softmax", SEEN, "    seen = T - (S - 1 - s)\n"),
            replace("long_softmax", SEEN, "    seen = T - (S - 1 - s)\n"),
            replace("predict_ablation", "old - new for", "old for"),
        ),
        expect={
            **says("predict_score_bytes", "its softmax takes 2, a read and a write, and the mask"),
            **not_right("scaled_matmul", "needs a turn for the tail"),
            **not_right("attention_score", "only the RoPE product is scaled"),
            **not_right("masked_softmax", "only the first seq_lens[b]", 1),
            **not_right("long_softmax", "only the first seq_lens[b]", 2),
            **says("predict_ablation", "take no time here"),
        },
    ),
    Submission(
        "mona",
        "a sum that reads one, overwrites the accumulator, no RoPE part, masks after the maximum, NaN, per cent",
        patches=(
            replace(
                "predict_score_bytes",
                PASSES,
                '{"eager_bytes": 10, "score_fused_bytes": 5, "softmax_fused_bytes": 8, "both_fused_bytes": 3}',
            ),
            replace("scaled_matmul", "tl.dot(x, y, acc, input", "tl.dot(x, y, input"),
            replace("attention_score", ROPE, ""),
            replace(
                "masked_softmax",
                LOAD + "    m_i = tl.max(x)\n" + POWERS,
                '    x = tl.load(scores_ptr + row * T + offs_n, mask=offs_n < T, other=float("-inf")).to(tl.float32)\n'
                "    p = tl.where(offs_n < seen, tl.exp(x - tl.max(x)), 0.0)\n",
            ),
            replace("masked_softmax", "p / tl.where(l_i == 0, 1.0, l_i)", "p / l_i"),
            replace("long_softmax", EMPTY, ""),
            replace("predict_ablation", GAINS, "gains = [100 * (total / (total - each) - 1) for each in saved]"),
            replace("predict_ablation", COMBINED, "100 * (total / (total - sum(saved)) - 1)}"),
        ),
        expect={
            **says("predict_score_bytes", "the sum reads both products"),
            **not_right("scaled_matmul", "only the last turn of the loop", 1),
            **not_right("attention_score", "the RoPE product is missing"),
            **not_right("masked_softmax", "the maximum is taken over positions that are not seen", 1),
            **not_right("long_softmax", "rows that see nothing are NaN", 2),
            **says("predict_ablation", "expected fractions"),
        },
    ),
    Submission(
        "nils",
        "products free, float16 accumulator, the second product alone, not causal, each block's own maximum, own gain",
        patches=(
            replace(
                "predict_score_bytes",
                PASSES,
                '{"eager_bytes": 9, "score_fused_bytes": 4, "softmax_fused_bytes": 7, "both_fused_bytes": 2}',
            ),
            replace("scaled_matmul", FLOAT_SUM, OWN_SUM),
            replace(
                "scaled_matmul", DOT + '"ieee")', '        acc += tl.dot(x, y, input_precision="ieee").to(acc.dtype)'
            ),
            replace("attention_score", ROPE, ROPE.replace("(acc,", "(tl.zeros_like(acc),")),
            replace("masked_softmax", SEEN, "    seen = tl.load(seq_lens_ptr + b)\n"),
            replace("long_softmax", "tl.maximum(m_i, tl.max(x))", "tl.max(x)"),
            replace("predict_ablation", GAINS, "gains = [old / new - 1 for old, new in zip(before, after)]"),
        ),
        expect={
            **says("predict_score_bytes", "each matrix product writes a tensor of scores"),
            **not_right("scaled_matmul", "overflow float16", 1),
            **not_right("attention_score", "the latent product is missing"),
            **not_right("masked_softmax", "every query sees the whole sequence", 2),
            **not_right("long_softmax", "use tl.maximum(m_i, tl.max(x))", 2),
            **says("predict_ablation", "compare each piece with itself"),
        },
    ),
    Submission(
        "olga",
        "a cache for every head, whole turns only, queries that do not see themselves, ratios for gains",
        patches=(
            replace("predict_score_bytes", CACHE, "B * T * H * (R + Dr) * itemsize}"),
            replace("attention_score", "range(0, D, BLOCK_D)", "range(0, D // BLOCK_D * BLOCK_D, BLOCK_D)"),
            replace("attention_score", "BLOCK_D=128 // q_latent.element_size()", "BLOCK_D=64"),
            replace("masked_softmax", "- (S - 1 - s)", "- (S - s)"),
            replace("predict_ablation", GAINS, GAINS.replace(" - 1 for", " for")),
            replace("predict_ablation", COMBINED, COMBINED.replace(" - 1", "")),
        ),
        expect={
            **says("predict_score_bytes", "all heads share one"),
            **not_right("attention_score", "smaller than a turn of the loop"),
            **not_right("masked_softmax", "do not see their own position"),
            **says("predict_ablation", "the ratio less 1"),
        },
    ),
    Submission(
        "paul",
        "bytes of the kernel alone, one cache for all sequences, queries aligned at the start, no mask at the end",
        patches=(
            replace("predict_score_bytes", PASSES, PASSES.replace("5,", "1,").replace("9,", "2,")),
            replace("scaled_matmul", "acc * scale, mask=(offs_m < M)[:, None] & (offs_n < N)[None, :]", "acc * scale"),
            replace("attention_score", "c_kv_ptr + b * T * R", "c_kv_ptr"),
            replace("attention_score", "k_rope_ptr + b * T * P", "k_rope_ptr"),
            replace("masked_softmax", SEEN, "    seen = tl.minimum(s + 1, tl.load(seq_lens_ptr + b))\n"),
        ),
        expect={
            **says("predict_score_bytes", "the fused kernel alone"),
            **not_right("scaled_matmul", "is the mask missing"),
            **not_right("attention_score", "the latents and rotated keys of sequence 0"),
            **not_right("masked_softmax", "query s sees s + 1 positions"),
        },
    ),
    Submission(
        "rosa",
        "counts the mask, stores the rows head by head, NaN where nothing is seen",
        patches=(
            replace("predict_score_bytes", PASS, PASS.replace("one_pass for", "one_pass + S * T * itemsize for")),
            replace("attention_score", "scale, M, T, R: tl", "scale, S, H, M, T, R: tl"),
            replace("attention_score", SCALE + ", M, T", SCALE + ", S, H, M, T"),
            replace(
                "attention_score",
                "(b * M + offs_m[:, None]) * T",
                "(b * M + (offs_m % H * S + offs_m // H)[:, None]) * T",
            ),
            replace("masked_softmax", POWERS, "    p = tl.exp(x - m_i)\n"),
        ),
        expect={
            **says("predict_score_bytes", "the mask is counted"),
            **not_right("attention_score", "stored head by head", 2),
            **not_right("masked_softmax", "rows that see nothing are NaN", 3),
        },
    ),
    Submission(
        "sven",
        "counts the mask where it is added, a float16 accumulator for the scores, a large negative number for -inf",
        patches=(
            replace("predict_score_bytes", PASS, "name: count * one_pass + (count in (11, 5)) * S * T * itemsize for"),
            replace(
                "attention_score",
                "tl.zeros([BLOCK_M, BLOCK_N], tl.float32)",
                "tl.zeros([BLOCK_M, BLOCK_N], q_latent_ptr.dtype.element_ty)",
            ),
            replace(
                "attention_score",
                '        acc = tl.dot(q, k, acc, input_precision="ieee")',
                '        acc += tl.dot(q, k, input_precision="ieee").to(acc.dtype)',
            ),
            replace("masked_softmax", 'other=float("-inf")', "other=-1e30"),
        ),
        expect={
            **says("predict_score_bytes", "the mask is counted"),
            **not_right("attention_score", "overflow float16", 3),
            **not_right("masked_softmax", "get equal weights", 3),
        },
    ),
    Submission(
        "tim",
        "the first block of K in every turn, a mask that is added, sums relative to each block's own maximum",
        patches=(
            replace("scaled_matmul", "start + tl.arange", "tl.arange"),
            replace("masked_softmax", LOAD, LOAD.replace("< seen", "< T") + ADDED),
            replace("long_softmax", "m_new = tl.maximum(m_i, tl.max(x))", "m_new = tl.max(x)"),
            replace("long_softmax", "l_i * alpha +", "l_i +"),
        ),
        expect={
            **not_right("scaled_matmul", "multiplies the first columns", 1),
            **not_right("masked_softmax", "NaN + -inf is NaN", 2),
            **not_right("long_softmax", "relative to each block's own maximum"),
        },
    ),
    *(
        slip(student, about, "predict_score_bytes", {PASSES: passes}, words)
        for student, about, passes, words in (
            (
                "anna",
                "an eager softmax that only writes",
                "dict(eager_bytes=7 + 2 + 1, score_fused_bytes=1 + 2 + 1, softmax_fused_bytes=9, both_fused_bytes=3)",
                "eager_softmax lacks a pass",
            ),
            (
                "bert",
                "a mask that costs nothing",
                '{"eager_bytes": 9, "score_fused_bytes": 3, "softmax_fused_bytes": 9, "both_fused_bytes": 3}',
                "adding the mask is an operation of its own",
            ),
            (
                "carl",
                "a fused softmax that only writes",
                '{"eager_bytes": 11, "score_fused_bytes": 5} | dict(softmax_fused_bytes=7 + 1, both_fused_bytes=1 + 1)',
                "the fused softmax counts one pass",
            ),
            (
                "dana",
                "a softmax that only writes, fused or not",
                '{f"{k}_bytes": 2 * n for k, n in dict(eager=5, score_fused=2, softmax_fused=4, both_fused=1).items()}',
                "the fused softmax counts one pass",
            ),
        )
    ),
    *(
        slip(f"{exercise[0]}{n}", about, exercise, {old: new}, words, score, not_right)
        for n, (exercise, about, old, new, words, score) in enumerate(
            (
                ("masked_softmax", "one length", "seq_lens_ptr + b", "seq_lens_ptr", "the length of sequence 0", 1),
                ("masked_softmax", "no sum", "p / tl.where(l_i == 0, 1.0, l_i)", "p", "not divided by their sum", 0),
                ("masked_softmax", "exp2", "tl.exp(", "tl.exp2(", "the weights are powers of 2", 0),
                ("masked_softmax", "from the left", "(S - 1 - s)", "s", "sees seq_lens[b] − s positions", 2),
                (
                    "masked_softmax",
                    "logarithms",
                    "p / tl.where(l_i == 0, 1.0, l_i)",
                    "x - m_i - tl.log(l_i) if T > 0 else p",
                    "the logarithms of the weights",
                    0,
                ),
                ("masked_softmax", "another sum", "tl.sum(p)", "tl.sum(tl.exp(x))", "and the powers are exp(x −", 0),
                ("long_softmax", "from the left", "(S - 1 - s)", "s", "sees seq_lens[b] − s positions", 2),
                (
                    "long_softmax",
                    "logarithms",
                    "tl.exp(x - m_i) / l_i",
                    "x - m_i - tl.log(l_i)",
                    "the logarithms of the weights",
                    0,
                ),
                ("long_softmax", "mask of T", "mask=offs_n < seen", "mask=offs_n < T", "the loads is offs_n < seen", 2),
                (
                    "attention_score",
                    "one turn",
                    "range(0, D, BLOCK_D)",
                    "range(0, BLOCK_D, BLOCK_D)",
                    "the first block of",
                    1,
                ),
                (
                    "scaled_matmul",
                    "one turn",
                    "range(0, K, BLOCK_K)",
                    "range(0, BLOCK_K, BLOCK_K)",
                    "the first block of",
                    1,
                ),
                ("attention_score", "one width", "M, T, R, BLOCK_D)", "M, T, P, BLOCK_D)", "rows Dr wide", 0),
                ("long_softmax", "one length", "seq_lens_ptr + b", "seq_lens_ptr", "the length of sequence 0", 2),
                ("long_softmax", "no sum", "tl.exp(x - m_i) / l_i", "tl.exp(x - m_i)", "not divided by their sum", 0),
                ("long_softmax", "exp2", "tl.exp(", "tl.exp2(", "the weights are powers of 2", 0),
                ("long_softmax", "no mask", " - (S - 1 - s)", "", "sees the whole sequence", 2),
                ("long_softmax", "one too few", "(S - 1 - s)", "(S - s)", "do not see their own position", 0),
                (
                    "long_softmax",
                    "a mask from the top left",
                    "tl.load(seq_lens_ptr + b) - (S - 1 - s)",
                    "tl.minimum(tl.load(seq_lens_ptr + b), s + 1)",
                    "query s sees s + 1 positions",
                    0,
                ),
                (
                    "long_softmax",
                    "whole blocks alone",
                    "range(0, seen, BLOCK_N)",
                    "range(0, seen // BLOCK_N * BLOCK_N, BLOCK_N)",
                    "behind the last whole block",
                    0,
                ),
            )
        )
    ),
    slip(
        "tom",
        "a finite number in masked places",
        "long_softmax",
        {'other=float("-inf")).to(tl.float32)  #': "other=-1e6).to(tl.float32)  #"},
        "or of another number: load them as -inf",
        2,
        not_right,
    ),
    slip(
        "toni",
        "scores that are masked already, row by row",
        "attention_score",
        {"acc * scale, mask": 'tl.where(offs_n[None, :] <= T - M + offs_m[:, None], acc * scale, float("-inf")), mask'},
        "scores stay as they are here",
        told=not_right,
    ),
    slip(
        "tuva",
        "gains in per cent",
        "predict_ablation",
        {"total / (total - each) - 1 for": "100 * (total / (total - each) - 1) for"},
        "gains are in per cent",
    ),
    slip(
        "tyra",
        "per cent of a ratio, less 1",
        "predict_ablation",
        {"total / (total - each) - 1 for": "100 * total / (total - each) - 1 for"},
        "1 is subtracted from 100 times the ratio",
    ),
    slip(
        "ugo",
        "powers without a maximum",
        "long_softmax",
        {"l_i * alpha": "l_i", "tl.exp(x - m_new)": "tl.exp(x)", "tl.exp(x - m_i)": "tl.exp(x)"},
        "subtract the row's maximum first",
        told=not_right,
    ),
    slip(
        "uli",
        "a sum without a maximum",
        "long_softmax",
        {"l_i * alpha": "l_i", "tl.exp(x - m_new)": "tl.exp(x)"},
        "and the powers are exp(x −",
        told=not_right,
    ),
    Submission(
        "ulla",
        "the accumulator added twice; the last block's maximum for the running one",
        patches=(
            *(replace(name, "acc = tl.dot", "acc += tl.dot") for name in ("scaled_matmul", "attention_score")),
            replace("long_softmax", "m_i = m_new", "m_i = tl.max(x)"),
        ),
        expect={
            **not_right("scaled_matmul", "the accumulator is added twice", 1),
            **not_right("attention_score", "the accumulator is added twice"),
            **not_right("long_softmax", "end each turn with m_i = m_new"),
        },
    ),
    Submission(
        "udo",
        "operands counted, scales in every turn, one sequence's latents for all, 0 for what is not seen",
        patches=(
            replace(
                "predict_score_bytes",
                " | {",
                ' | {"eager_bytes": 11 * one_pass + B * (S * H + T) * (R + Dr) * itemsize} | {',
            ),
            replace("scaled_matmul", DOT, DOT.replace("acc =", "acc = scale *")),
            replace("scaled_matmul", "acc * scale, mask", "acc, mask"),
            replace("attention_score", "c_kv_ptr + b * T * R", "c_kv_ptr"),
            replace("long_softmax", 'other=float("-inf")', "other=0.0"),
        ),
        expect={
            **says("predict_score_bytes", "queries and cache are counted"),
            **not_right("scaled_matmul", "once is enough", 1),
            **not_right("attention_score", "meets the latents of sequence 0"),
            **not_right("long_softmax", "load them as -inf"),
        },
    ),
    Submission(
        "uma",
        "masks after the maximum, and then the powers",
        patches=(
            replace("masked_softmax", LOAD, LOAD.replace("< seen", "< T")),
            replace("masked_softmax", POWERS, '    x = tl.where(offs_n < seen, x, float("-inf"))\n' + POWERS),
        ),
        expect=not_right("masked_softmax", "the maximum is taken over positions that are not seen", 1),
    ),
    Submission(
        "vera",
        "numbers of 4 bytes, a maximum that begins at 0",
        patches=(
            replace("predict_score_bytes", "T * itemsize", "T * 4"),
            replace("predict_score_bytes", "(R + Dr) * itemsize", "(R + Dr) * 4"),
            replace("masked_softmax", "    m_i = tl.max(x)\n", "    m_i = tl.maximum(tl.max(x), 0.0)\n"),
            replace("long_softmax", 'm_i, l_i = float("-inf"), 0.0', "m_i, l_i = 0.0, 0.0"),
        ),
        expect={
            **says("predict_score_bytes", "numbers are counted at 4 bytes"),
            **not_right("masked_softmax", "a maximum that begins at 0", 3),
            **not_right("long_softmax", "a maximum that begins at 0", 2),
        },
    ),
    # Not from the kernels, or not all of it
    Submission(
        "tara",
        "scores one block of positions where T is that of the case for speed; sums the softmax with PyTorch",
        patches=(
            replace("attention_score", SCORE_GRID, SCORE_GRID + "\n    if T == 4096:\n        grid = (grid[0], 1, B)"),
            rewrite(
                "masked_softmax",
                """
@triton.jit
def only_powers(scores_ptr, lse_ptr, seq_lens_ptr, out_ptr, S, H, T, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    seen = tl.load(seq_lens_ptr + row // (S * H)) - (S - 1 - row // H % S)
    t = tl.arange(0, BLOCK)
    x = tl.load(scores_ptr + row * T + t, mask=t < seen, other=float("-inf")).to(tl.float32)
    tl.store(out_ptr + row * T + t, tl.exp(x - tl.load(lse_ptr + row)), mask=t < T)


def masked_softmax(scores, seq_lens):
    B, S, H, T = scores.shape
    out = torch.empty_like(scores)
    limits = seq_lens[:, None] - torch.arange(S - 1, -1, -1)
    hidden = torch.arange(T) >= limits[..., None]
    lse = scores.float().masked_fill(hidden[:, :, None], -1e30).logsumexp(-1)
    only_powers[(B * S * H,)](scores, lse, seq_lens, out, S, H, T, BLOCK=triton.next_power_of_2(T))
    return out
""",
            ),
        ),
        expect={
            "attention_score:speed": Expected(0, Outcome.ERROR, "at full size: the kernels touch"),
            **not_right("masked_softmax", "only_powers takes as lse_ptr what torch computes from data"),
        },
    ),
    # Right and slow
    Submission(
        "bela",
        "tiny tiles; a launch for each product, with the scores in memory between; three loops over a row",
        patches=(
            replace("scaled_matmul", "min(max(triton.next_power_of_2(size), 16), 128)", "16 + 0 * size"),
            replace("scaled_matmul", "BLOCK_K=128 // x.element_size()", "BLOCK_K=16"),
            rewrite(
                "attention_score",
                """
@triton.jit
def one_product(q_ptr, k_ptr, out_ptr, scale, N, T, D, ADD: tl.constexpr, BN: tl.constexpr, BT: tl.constexpr):
    b = tl.program_id(2).to(tl.int64)
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    t = tl.program_id(1) * BT + tl.arange(0, BT)
    acc = tl.zeros([BN, BT], tl.float32)
    for start in range(0, D, 64):
        d = start + tl.arange(0, 64)
        q = tl.load(q_ptr + (b * N + n[:, None]) * D + d, mask=(n[:, None] < N) & (d[None, :] < D), other=0.0)
        k = tl.load(k_ptr + (b * T + t[None, :]) * D + d[:, None], mask=(t[None, :] < T) & (d[:, None] < D), other=0.0)
        acc = tl.dot(q, k, acc, input_precision="ieee")
    acc *= scale
    there = (n[:, None] < N) & (t[None, :] < T)
    at = (b * N + n[:, None]) * T + t[None, :]
    if ADD:
        acc += tl.load(out_ptr + at, mask=there, other=0.0).to(tl.float32)
    tl.store(out_ptr + at, acc, mask=there)


def attention_score(q_latent, q_rope, c_kv, k_rope, Dn):
    (B, S, H, R), (T, P) = q_latent.shape, k_rope.shape[1:]
    out = torch.empty((B, S, H, T), dtype=q_latent.dtype, device=q_latent.device)
    scale, N = (Dn + P) ** -0.5, S * H
    grid = (triton.cdiv(N, 32), triton.cdiv(T, 128), B)
    one_product[grid](q_latent, c_kv, out, scale, N, T, R, ADD=False, BN=32, BT=128, num_stages=2)
    one_product[grid](q_rope, k_rope, out, scale, N, T, P, ADD=True, BN=32, BT=128, num_stages=2)
    return out
""",
            ),
            rewrite("masked_softmax", three_loops("masked_softmax", 1024, 4).replace("LONG_BLOCK = 4096\n\n\n", "")),
            rewrite("long_softmax", three_loops("long_softmax", 4096, 8)),
        ),
        expect={
            **slow("scaled_matmul"),
            **slow("attention_score", 1.5),
            **slow("masked_softmax", 1.5),
            **slow("long_softmax", 1),
        },
    ),
    Submission(
        "cleo",
        "a program for each head, which reads the cache again; a launch that masks, and one that normalises",
        patches=(
            replace("scaled_matmul", "        x, y, out, scale,", "        x.float(), y.float(), out, scale,"),
            replace("attention_score", "min(max(triton.next_power_of_2(M), 16), 128)", "16"),
            replace("attention_score", "tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)", "tl.arange(0, BLOCK_M)"),
            replace("attention_score", LATENT, "    row, only = tl.program_id(0), 1\n" + LATENT),
            replace("attention_score", "b * M * R, c_kv", "(b * M + row) * R, c_kv"),
            replace("attention_score", "b * M * P, k_rope", "(b * M + row) * P, k_rope"),
            replace("attention_score", "offs_m, offs_n, M, T, R, BLOCK_D", "offs_m, offs_n, only, T, R, BLOCK_D"),
            replace("attention_score", "offs_m, offs_n, M, T, P, BLOCK_D", "offs_m, offs_n, only, T, P, BLOCK_D"),
            replace("attention_score", "(b * M + offs_m[:, None]) * T", "(b * M + row + offs_m[:, None]) * T"),
            replace("attention_score", "acc * scale, mask=(offs_m < M)", "acc * scale, mask=(offs_m < only)"),
            replace("attention_score", "triton.cdiv(M, block_m), triton", "M, triton"),
            rewrite(
                "masked_softmax",
                """
@triton.jit
def mask_kernel(scores_ptr, seq_lens_ptr, masked_ptr, S, H, T, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    t = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    seen = tl.load(seq_lens_ptr + row // (S * H)) - (S - 1 - row // H % S)
    x = tl.load(scores_ptr + row * T + t, mask=t < T)
    tl.store(masked_ptr + row * T + t, tl.where(t < seen, x, float("-inf")), mask=t < T)


@triton.jit
def softmax_kernel(masked_ptr, out_ptr, T, BLOCK: tl.constexpr):
    row, t = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    x = tl.load(masked_ptr + row * T + t, mask=t < T, other=float("-inf")).to(tl.float32)
    p = tl.exp(x - tl.maximum(tl.max(x), -1e30))
    tl.store(out_ptr + row * T + t, p / tl.maximum(tl.sum(p), 1e-30), mask=t < T)


def masked_softmax(scores, seq_lens):
    B, S, H, T = scores.shape
    masked, out = torch.empty_like(scores), torch.empty_like(scores)
    mask_kernel[(B * S * H, triton.cdiv(T, 1024))](scores, seq_lens, masked, S, H, T, BLOCK=1024)
    softmax_kernel[(B * S * H,)](masked, out, T, BLOCK=triton.next_power_of_2(T))
    return out
""",
            ),
            replace("long_softmax", "num_warps=8", "num_warps=1"),
        ),
        expect={
            **slow("scaled_matmul"),
            **slow("attention_score"),
            **slow("masked_softmax"),
            **slow("long_softmax", 1),
        },
    ),
    Submission(
        "dora",
        "tiles of 16 rows; a whole row of 131072 in one block",
        patches=(
            replace("attention_score", "min(max(triton.next_power_of_2(M), 16), 128)", "16"),
            replace("masked_softmax", "min(max(block // 1024, 1), 16)", "32"),
            replace("long_softmax", "BLOCK_N=LONG_BLOCK", "BLOCK_N=min(triton.next_power_of_2(T), 1 << 17)"),
        ),
        expect={
            **slow("attention_score", 1.5),
            **slow("masked_softmax"),
            **slow("long_softmax", says="spill"),
        },
    ),
    Submission(
        "edda",
        "stores the weights that are seen into zeros",
        patches=(
            replace("masked_softmax", "torch.empty_like(scores)", "torch.zeros_like(scores)"),
            replace("masked_softmax", "mask=offs_n < T)", "mask=offs_n < seen)"),
        ),
        expect={"masked_softmax:speed": Expected(0, Outcome.ERROR, "the kernels touch")},
    ),
    Submission(
        "finn",
        "a sum in the dtype of the result",
        patches=(
            replace("scaled_matmul", "BLOCK_N], tl.float32)", "BLOCK_N], out_ptr.dtype.element_ty)"),
            replace(
                "scaled_matmul",
                'acc = tl.dot(x, y, acc, input_precision="ieee")',
                'acc += (tl.dot(x, y, input_precision="ieee") * scale).to(acc.dtype)',
            ),
            replace("scaled_matmul", "acc * scale, mask", "acc, mask"),
        ),
        expect=not_right("scaled_matmul", "rounded to 16 bits in every turn", 1),
    ),
)
DEMO = ("ada", "eli", "bela")
