"""The sample class of lesson 06: right in several styles, slow, wrong, and dishonest; every named mistake is shown."""

from autograder.course.sample import (
    Expected,
    Patch,
    Submission,
    add_cell,
    left_out,
    not_right,
    replace,
    rewrite,
    says,
    slip,
    slow,
    unfinished,
)
from autograder.judging.verdict import Outcome

SCORES = "        qk = tl.dot(q_rope, tl.trans(k_rope), qk) * scale\n"
ACC = "acc = tl.dot(p.to(c_kv.dtype), c_kv, acc * alpha[:, None])"
TOTAL = "l_i = l_i * alpha + tl.sum(p, axis=1)"
GUARD = "    l_i = tl.where(l_i > 0, l_i, 1.0)  # for length 0: out 0, and lse the maximum, -inf\n"
SPLIT_GUARD = "    l_i = tl.where(l_i > 0, l_i, 1.0)  # where nothing is seen: out 0, and lse the maximum, -inf\n"
END = "    end = tl.minimum((split + 1) * share, length)\n"
SHARE = "share = tl.cdiv(length, num_splits)"
REST_TO_THE_LAST = (
    "share = length // num_splits\n    end = tl.where(split == num_splits - 1, length, (split + 1) * share)\n"
)
RANGE = "range(split * share, end, BLOCK_N)"
SEEN = "seen = length - S + offs_m // H + 1  # [BLOCK_M]"
LAST_SEEN = " & (offs_n[None, :] < seen[:, None])"
COMBINED = "tl.sum(parts * weights[:, None], axis=0) / l_i"
WEIGHTS = 'tl.exp(lses - tl.where(m_i == float("-inf"), 0.0, m_i))'
STEP = """        m_new = tl.maximum(m_i, tl.max(qk, axis=1))
        p = tl.exp(qk - m_new[:, None])
        alpha = tl.exp(m_i - m_new)
        l_i = l_i * alpha + tl.sum(p, axis=1)
        acc = tl.dot(p.to(c_kv.dtype), c_kv, acc * alpha[:, None])
        m_i = m_new
"""
ALL_SPLITS = """    for split in range(num_splits):
        one_split(
            q_latent, q_rope, c_kv_ptr, k_rope_ptr, partial_out_ptr, partial_lse_ptr, scale, split, b, offs_h, row,
            length, share, B, H, T, num_splits, R, DR, BLOCK_H, BLOCK_N,
        )


@triton.jit
def one_split(
    q_latent, q_rope, c_kv_ptr, k_rope_ptr, partial_out_ptr, partial_lse_ptr, scale, split, b, offs_h, row,
    length, share, B, H, T, num_splits,
    R: tl.constexpr, DR: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_N: tl.constexpr,
):
    offs_r, offs_d = tl.arange(0, R), tl.arange(0, DR)
"""
FACTOR = "max(f for f in range(1, q_len + 1) if q_len % f == 0 and H * f <= 128)"
DOT = "qk = tl.dot(q_latent, tl.trans(c_kv))"
PART = "part = split.to(tl.int64) * B * H + row"
PARTIAL_16 = "(num_splits, B, M, R), dtype=q_latent.dtype"
KERNELS = ("latent_decode", "split_decode", "combine_splits", "folded_decode")


def in_base_2(exercise: str) -> tuple[Patch, ...]:
    """Work with powers of 2 and forget it in the end."""
    return (
        replace(exercise, "qk) * scale\n", "qk) * (scale * 1.4426950408889634)\n"),
        replace(exercise, "tl.exp(", "tl.exp2("),
        replace(exercise, "tl.log(", "tl.log2("),
    )


REST, NOT_DONE = left_out("split_decode", "combine_splits", "folded_decode")

SUBMISSIONS = (
    Submission("ada", "the solution as it stands"),
    Submission(
        "ben",
        "another style: powers of 2 throughout, a loop over the parts, rows and tokens as two numbers",
        patches=(
            rewrite(
                "predict_splits",
                """
def predict_splits(B, H, T, num_splits):
    blocks = (H + 15) // 16
    cache, part = 2 * (512 + 64), 4 * (512 + 1) * H
    programs = blocks * B * num_splits
    moved = 0 if num_splits == 1 else 2 * part * B * num_splits
    return dict(
        programs=programs, busy_sms=programs if programs < 132 else 132, cache_bytes=B * T * cache,
        partial_bytes=moved, even_tokens=2 * part / cache,
    )
""",
            ),
            rewrite(
                "online_update",
                """
def online_update(peak, total, acc, scores, values):
    both = torch.cat((peak[:, None], scores), dim=1)
    new = both.max(dim=1).values
    shift = torch.where(torch.isinf(new), torch.zeros_like(new), new)
    factors = (both - shift[:, None]).exp()
    old, weights = factors[:, 0], factors[:, 1:]
    return new, old * total + weights.sum(1), torch.einsum("h,hr->hr", old, acc) + weights.matmul(values)
""",
            ),
            rewrite(
                "latent_decode",
                """
@triton.jit
def decode_base_2(
    q_ptr, p_ptr, c_ptr, k_ptr, len_ptr, out_ptr, lse_ptr, scale_log2, H, T,
    R: tl.constexpr, DR: tl.constexpr, ROWS: tl.constexpr, STEP: tl.constexpr,
):
    b, first = tl.program_id(0).to(tl.int64), tl.program_id(1) * ROWS
    h = first + tl.arange(0, ROWS)
    inside = (h < H)[:, None]
    q = tl.load(q_ptr + (b * H + h)[:, None] * R + tl.arange(0, R), mask=inside, other=0.0)
    p = tl.load(p_ptr + (b * H + h)[:, None] * DR + tl.arange(0, DR), mask=inside, other=0.0)
    n = tl.load(len_ptr + b)
    m, l, o = tl.full([ROWS], float("-inf"), tl.float32), tl.zeros([ROWS], tl.float32), tl.zeros([ROWS, R], tl.float32)
    for start in range(0, tl.cdiv(n, STEP)):
        t = start * STEP + tl.arange(0, STEP)
        there = (t < n)[:, None]
        c = tl.load(c_ptr + (b * T + t)[:, None] * R + tl.arange(0, R), mask=there, other=0.0)
        k = tl.load(k_ptr + (b * T + t)[:, None] * DR + tl.arange(0, DR), mask=there, other=0.0)
        z = (tl.dot(q, c.T) + tl.dot(p, k.T)) * scale_log2
        z += tl.where(t < n, 0.0, float("-inf"))
        m_new = tl.maximum(m, tl.max(z, 1))
        w, a = tl.exp2(z - m_new[:, None]), tl.exp2(m - m_new)
        l = l * a + tl.sum(w, 1)
        o = o * a[:, None] + tl.dot(w.to(c.dtype), c)
        m = m_new
    empty = n == 0
    l = tl.where(empty, 1.0, l)
    tl.store(out_ptr + (b * H + h)[:, None] * R + tl.arange(0, R), o / l[:, None], mask=inside)
    tl.store(lse_ptr + b * H + h, (m + tl.log2(l)) * 0.6931471805599453, mask=h < H)


def latent_decode(q_latent, q_rope, c_kv, k_rope, seq_lens, scale):
    B, H, R = q_latent.shape
    out, lse = torch.empty_like(q_latent), q_latent.new_empty(B, H, dtype=torch.float32)
    rows = 16 if H <= 16 else 32 if H <= 32 else 64
    decode_base_2[(B, triton.cdiv(H, rows))](
        q_latent, q_rope, c_kv, k_rope, seq_lens, out, lse, scale * math.log2(math.e), H, c_kv.shape[1],
        R, q_rope.shape[2], rows, 64, num_warps=4, num_stages=2,
    )
    return out, lse
""",
            ),
            rewrite(
                "combine_splits",
                """
@triton.jit
def join(o_ptr, z_ptr, out_ptr, lse_ptr, N, R: tl.constexpr, P: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    r = tl.arange(0, R)
    top = float("-inf")
    for p in tl.static_range(P):
        top = tl.maximum(top, tl.load(z_ptr + p * N + row))
    total, out = 0.0, tl.zeros([R], tl.float32)
    for p in tl.static_range(P):
        z = tl.load(z_ptr + p * N + row)
        w = tl.where(z == float("-inf"), 0.0, tl.exp(z - top))
        o = tl.load(o_ptr + (p * N + row) * R + r)
        total += w
        out += tl.where(w > 0, o * w, 0.0)
    empty = top == float("-inf")
    tl.store(out_ptr + row * R + r, tl.where(empty, 0.0, out / tl.where(empty, 1.0, total)))
    tl.store(lse_ptr + row, top + tl.log(tl.where(empty, 1.0, total)))


def combine_splits(partial_out, partial_lse, out):
    P, B, H, R = partial_out.shape
    lse = partial_lse.new_empty(B, H)
    join[(B * H,)](partial_out, partial_lse, out, lse, B * H, R, P, num_warps=2)
    return out, lse
""",
            ),
            rewrite(
                "predict_fold",
                """
def predict_fold(q_len, H):
    f = q_len
    while q_len % f or f * H > 128:
        f -= 1
    return {"factor": f, "rows": f * H, "cache_reads": q_len / f}
""",
            ),
            replace(
                "folded_decode",
                SEEN,
                "s, offs_h = offs_m // H, offs_m % H\n    seen = tl.minimum(length - (S - 1 - s), length) + 0 * offs_h",
            ),
            replace("folded_decode", "132 // (B * blocks)", "2 * 132 // (B * blocks) // 2"),
        ),
    ),
    Submission(
        "chloe",
        "one helper for all kernels, in a cell of her own",
        patches=(
            add_cell(
                "latent_decode",
                """
@triton.jit
def into_state(peak, total, acc, scores, values):
    new_peak = tl.maximum(peak, tl.max(scores, axis=1))
    base = tl.where(new_peak == float("-inf"), 0.0, new_peak)
    weights = tl.exp(scores - base[:, None])
    kept = tl.exp(peak - base)
    total = total * kept + tl.sum(weights, axis=1)
    return new_peak, total, tl.dot(weights.to(values.dtype), values, acc * kept[:, None])
""",
            ),
            replace("latent_decode", STEP, "        m_i, l_i, acc = into_state(m_i, l_i, acc, qk, c_kv)\n"),
            replace("split_decode", STEP, "        m_i, l_i, acc = into_state(m_i, l_i, acc, qk, c_kv)\n"),
        ),
    ),
    Submission(
        "dev",
        "warns and prints",
        patches=(
            replace(
                "latent_decode",
                "    block_h,",
                '    import warnings\n    warnings.warn("8 warps are a guess")\n    print(seq_lens)\n    block_h,',
            ),
            *REST,
        ),
        expect=NOT_DONE,
    ),
    # Wrong
    Submission(
        "eli",
        "a program per head, no rescaling, shares rounded down, a plain mean, not causal",
        patches=(
            replace("predict_splits", "-(-H // 16)", "H"),
            replace("online_update", "acc * alpha[:, None] + p", "acc + p"),
            replace("latent_decode", ACC, "acc = tl.dot(p.to(c_kv.dtype), c_kv, acc)"),
            replace("split_decode", SHARE, "share = length // num_splits"),
            replace("combine_splits", COMBINED, "tl.sum(parts, axis=0) / P"),
            replace("predict_fold", FACTOR, "min(q_len, 128 // H)"),
            replace("predict_fold", "q_len // factor", "-(-q_len // factor)"),
            replace("folded_decode", LAST_SEEN, ""),
        ),
        expect={
            **says("predict_splits", "16 heads share one"),
            **says("online_update", "acc still holds weights", 2),
            **not_right("latent_decode", "acc is not multiplied by exp", 1),
            **not_right("split_decode", "the tokens that do not divide are lost", 1),
            **not_right("combine_splits", "plain mean"),
            **says("predict_fold", "must divide q_len", 1),
            **not_right("folded_decode", "every query token sees the whole context", 1),
        },
    ),
    Submission(
        "fay",
        "more SMs than there are, the sum not rescaled, the last token lost, weights that do not add up to 1",
        patches=(
            replace("predict_splits", "min(programs, 132)", "programs"),
            replace("online_update", "l_i * alpha + p", "l_i + p"),
            replace("latent_decode", TOTAL, "l_i = l_i + tl.sum(p, axis=1)"),
            replace("split_decode", END, END.replace("length)", "length - 1)")),
            replace("combine_splits", COMBINED, COMBINED.removesuffix(" / l_i")),
            replace("predict_fold", FACTOR, "q_len"),
            replace("folded_decode", "offs_m // H + 1", "offs_m // H"),
        ),
        expect={
            **says("predict_splits", "with more programs than SMs all are busy", 1),
            **says("online_update", "l_i still counts weights", 2),
            **not_right("latent_decode", "l_i is not multiplied by exp", 1),
            **not_right("split_decode", "the last token of the sequence is in no split"),
            **not_right("combine_splits", "do not add up to 1"),
            **says("predict_fold", "all query tokens are folded"),
            **not_right("folded_decode", "does not see its own position"),
        },
    ),
    Submission(
        "gus",
        "a cache per head, rescales upwards, forgets the tail, counts the boundary twice, weights of base 2",
        patches=(
            replace("predict_splits", "(512 + 64) * 2", "(512 + 64) * 2 * H"),
            replace("online_update", "torch.exp(m_i - base)", "torch.exp(base - m_i)"),
            replace(
                "latent_decode",
                '        qk = tl.where(offs_n[None, :] < length, qk, float("-inf"))  # [BLOCK_H, BLOCK_N]\n',
                "",
            ),
            replace("split_decode", END, END.replace("* share,", "* share + 1,")),
            replace("combine_splits", "tl.exp(", "tl.exp2("),
            replace("predict_fold", "q_len // factor", "q_len"),
            replace("folded_decode", SEEN, "seen = offs_m // H + 1"),
        ),
        expect={
            **says("predict_splits", "counts a cache for each head"),
            **says("online_update", "the maximum grows, so old weights shrink"),
            **not_right("latent_decode", "places beyond the length count", 2),
            **not_right("split_decode", "the first token of the next split counts here as well"),
            **not_right("combine_splits", "the weights are powers of 2"),
            **says("predict_fold", "the tokens of a group share one"),
            **not_right("folded_decode", "as if the context held the S new tokens alone"),
        },
    ),
    Submission(
        "hana",
        "hands in unfinished cells",
        patches=left_out(*KERNELS)[0],
        expect=left_out(*KERNELS)[1],
    ),
    Submission(
        "ivan",
        "a syntax error in one cell; the cell that calls it is right",
        patches=(
            replace("combine_splits", "    P, B, H, R = partial_out.shape", "    P, B, H, R = = partial_out.shape"),
            unfinished("latent_decode"),
            unfinished("split_decode"),
        ),
        expect={
            **left_out("latent_decode", "split_decode")[1],
            **not_right("combine_splits", "SyntaxError in line", outcome=Outcome.ERROR),
        },
    ),
    Submission(
        "lena",
        "forgets the lse, the block's maximum, 1/√576, shares of T, the lse's maximum, full blocks, positions from T",
        patches=(
            replace("predict_splits", "(512 + 1) * 4", "512 * 4"),
            replace("online_update", "torch.maximum(m_i, qk.amax(-1))", "qk.amax(-1)"),
            replace("latent_decode", "out, lse, scale, H, T,", "out, lse, (R + Dr) ** -0.5, H, T,"),
            replace("split_decode", SHARE, "share = tl.cdiv(T, num_splits)"),
            replace("combine_splits", "m_i + tl.log(l_i)", "m_i"),
            replace("predict_fold", "q_len // factor", "-(-q_len * H // 128)"),
            replace("folded_decode", SEEN, "seen = T - S + offs_m // H + 1"),
        ),
        expect={
            **says("predict_splits", "513 words a head"),
            **says("online_update", "the maximum of this block alone", 1),
            **not_right("latent_decode", "1/√576"),
            **not_right("split_decode", "the sequence's own length", 1),
            **not_right("combine_splits", "the largest of the partial ones"),
            **says("predict_fold", "counts blocks of 128 rows", 1),
            **not_right("folded_decode", "positions are counted from T", 1),
        },
    ),
    Submission(
        "mona",
        "counts partials once, divides too early, no scale, splits that cover everything, exp that overflows",
        patches=(
            replace("predict_splits", "2 * B * H * (512", "B * H * (512"),
            replace("online_update", "acc * alpha[:, None] + p @ v", "(acc * alpha[:, None] + p @ v)"),
            replace(
                "online_update",
                "+ p @ v)",
                "+ p @ v) / (l_i * alpha + p.sum(-1))[:, None]",
            ),
            replace("latent_decode", "k_rope), qk) * scale", "k_rope), qk)"),
            replace("split_decode", END, "    end = length\n"),
            replace("split_decode", RANGE, "range(0, end, BLOCK_N)"),
            replace("combine_splits", WEIGHTS, "tl.exp(lses)"),
            replace("combine_splits", "m_i + tl.log(l_i)", "tl.log(l_i)"),
            replace("folded_decode", "offs_m // H + 1", "offs_m % S + 1"),
        ),
        expect={
            **says("predict_splits", "counted at half"),
            **says("online_update", "only the end divides"),
            **not_right("latent_decode", "not multiplied by scale"),
            **not_right("split_decode", "every split covers the whole context"),
            **not_right("combine_splits", "subtract the largest lse first", 1),
            **not_right("folded_decode", "token and head are swapped", 1),
        },
    ),
    Submission(
        "nils",
        "NaN of a hidden block, no RoPE part, base 2, NaN of an empty split, rows turned",
        patches=(
            replace("online_update", "m_new.masked_fill(m_new == -math.inf, 0.0)", "m_new"),
            replace("latent_decode", SCORES, "        qk *= scale\n"),
            *in_base_2("split_decode"),
            replace("combine_splits", "mask=(weights > 0)[:, None]", "mask=(offs_p < P)[:, None]"),
            replace("folded_decode", "B * M + row\n", "B * M + b * M + offs_m % H * S + offs_m // H\n"),
        ),
        expect={
            **says("online_update", "a head that has seen nothing gives NaN", 2),
            **not_right("latent_decode", "the scores lack q_rope"),
            **not_right("split_decode", "base-2 logarithm"),
            **not_right("combine_splits", "0 · NaN is NaN", 2),
            **not_right("folded_decode", "token and head are swapped", 1),
        },
    ),
    Submission(
        "olga",
        "partials of one split, all T places, partials not divided, NaN of an empty row, one mask for all tokens",
        patches=(
            replace("predict_splits", "num_splits * partial if num_splits > 1 else 0", "num_splits * partial"),
            replace("latent_decode", "length = tl.load(seq_lens_ptr + b)", "length = T"),
            replace("split_decode", "acc / l_i[:, None]", "acc"),
            replace("combine_splits", WEIGHTS, "tl.exp(lses - m_i)"),
            replace("folded_decode", SEEN, "seen = length - S + 1 + 0 * offs_m"),
        ),
        expect={
            **says("predict_splits", "with one split there are no partials", 1),
            **not_right("latent_decode", "all T places count", 3),
            **not_right("split_decode", "the combine takes results that are normalised"),
            **not_right("combine_splits", "where all splits are empty the result is NaN", 2),
            **not_right("folded_decode", "all rows see what token 0 sees", 1),
        },
    ),
    Submission(
        "paul",
        "does not divide, NaN of an empty split, NaN of rows that see nothing",
        patches=(
            replace("latent_decode", "acc / l_i[:, None]", "acc"),
            replace("split_decode", SPLIT_GUARD, ""),
            unfinished("combine_splits"),
            replace("folded_decode", SPLIT_GUARD, ""),
            replace("folded_decode", 'tl.where(m_new == float("-inf"), 0.0, m_new)', "m_new"),
        ),
        expect={
            **left_out("combine_splits")[1],
            **not_right("latent_decode", "not divided by the sum"),
            **not_right("split_decode", "a split with no tokens gives NaN", 3),
            **not_right("folded_decode", "rows that see nothing of a block give NaN", 3),
        },
    ),
    Submission(
        "rosa",
        "an lse of base 2; blocks that reach into the next split",
        patches=(
            *in_base_2("latent_decode"),
            replace("split_decode", "offs_n[:, None] < end", "offs_n[:, None] < length"),
            replace("split_decode", "offs_n[None, :] < end", "offs_n[None, :] < length"),
            unfinished("combine_splits"),
            unfinished("folded_decode"),
        ),
        expect={
            **left_out("combine_splits", "folded_decode")[1],
            **not_right("latent_decode", "base-2 logarithm"),
            **not_right("split_decode", "reaches into the next one"),
        },
    ),
    Submission(
        "sven",
        "an lse without the maximum",
        patches=(replace("latent_decode", "m_i + tl.log(l_i)", "tl.log(l_i)"), *REST),
        expect={**NOT_DONE, **not_right("latent_decode", "add the maximum that was subtracted")},
    ),
    Submission(
        "nora",
        "a greatest common divisor, partial results in the dtype of the query",
        patches=(
            replace("predict_fold", FACTOR, "math.gcd(q_len, 128 // H)"),
            replace("folded_decode", "(num_splits, B, M, R), dtype=torch.float32", PARTIAL_16),
        ),
        expect={
            **says("predict_fold", "it must divide q_len alone", 1),
            **not_right("folded_decode", "partial results are rounded to 16 bits", 3),
        },
    ),
    Submission(
        "tara",
        "NaN of an empty sequence",
        patches=(replace("latent_decode", GUARD, ""), *REST),
        expect={**NOT_DONE, **not_right("latent_decode", "a sequence of length 0 gives NaN", 3)},
    ),
    Submission(
        "zoe",
        "partials of one head; tokens are loaded up to T",
        patches=(
            replace("predict_splits", "2 * B * H * (512", "2 * B * (512"),
            replace("latent_decode", "offs_n[:, None] < length", "offs_n[:, None] < T"),
            replace("split_decode", "offs_n[:, None] < end", "offs_n[:, None] < T"),
            replace("folded_decode", "offs_n[:, None] < end", "offs_n[:, None] < T"),
        ),
        expect={
            **says("predict_splits", "the partials lack H"),
            **not_right("latent_decode", "mask the loads of tokens by the length", 3),
            **not_right("split_decode", "mask the loads of tokens by the length", 2),
            **not_right("folded_decode", "mask the loads of tokens by the length", 3),
        },
    ),
    Submission(
        "kim",
        "lse as the maximum, scores of 0 behind a split, lse without its maximum, a maximum that begins at 0",
        patches=(
            replace("latent_decode", "m_i + tl.log(l_i)", "m_i"),
            replace("split_decode", "offs_n[None, :] < end, qk", "offs_n[None, :] < length, qk"),
            replace("combine_splits", "m_i + tl.log(l_i)", "tl.log(l_i)"),
            replace(
                "folded_decode", 'tl.full([BLOCK_M], float("-inf"), tl.float32)', "tl.zeros([BLOCK_M], tl.float32)"
            ),
        ),
        expect={
            **not_right("latent_decode", "lse is the largest score"),
            **not_right("split_decode", "behind the end of a split count"),
            **not_right("combine_splits", "add the maximum that was subtracted"),
            **not_right("folded_decode", "let the maximum begin at −inf", 2),
        },
    ),
    Submission(
        "quin",
        "a mask of −30",
        patches=(
            replace("latent_decode", 'length, qk, float("-inf")', "length, qk, -30.0"),
            replace("split_decode", 'end, qk, float("-inf")', "end, qk, -30.0"),
            unfinished("combine_splits"),
            unfinished("folded_decode"),
        ),
        expect={
            **left_out("combine_splits", "folded_decode")[1],
            **not_right("latent_decode", "masked scores are −inf", 3),
            **not_right("split_decode", "masked scores are −inf", 1),
        },
    ),
    Submission(
        "zach",
        "powers of 2",
        patches=(replace("latent_decode", "tl.exp(", "tl.exp2("), *REST),
        expect={**NOT_DONE, **not_right("latent_decode", "the weights are powers of 2")},
    ),
    Submission(
        "yves",
        "a maximum that is never kept",
        patches=(replace("latent_decode", "        m_i = m_new\n", ""), *REST),
        expect={**NOT_DONE, **not_right("latent_decode", "end each turn with m_i = m_new")},
    ),
    *(
        Submission(
            student,
            what,
            patches=(replace("latent_decode", old, new), *REST),
            expect={**NOT_DONE, **not_right("latent_decode", told)},
        )
        for student, what, old, new, told in (
            (
                "zack",
                "the scale on the RoPE part alone",
                "tl.dot(q_rope, tl.trans(k_rope), qk) * scale",
                "qk + tl.dot(q_rope, tl.trans(k_rope)) * scale",
                "only q_rope · k_rope is multiplied",
            ),
            (
                "xavi",
                "the scale twice",
                "tl.dot(q_rope, tl.trans(k_rope), qk) * scale",
                "tl.dot(q_rope, tl.trans(k_rope), qk) * scale * scale",
                "multiplied by scale twice",
            ),
            (
                "wim",
                "the scale on the latent part alone",
                "tl.dot(q_rope, tl.trans(k_rope), qk) * scale",
                "tl.dot(q_rope, tl.trans(k_rope), qk * scale)",
                "only q_latent · c_kv is multiplied",
            ),
            (
                "xena",
                "the sum's logarithm to base 2, the maximum natural",
                "m_i + tl.log(l_i)",
                "m_i + tl.log2(l_i)",
                "a maximum that is natural",
            ),
        )
    ),
    Submission(
        "anna",
        "leaves out splits with no token; shares of T, rounded down; shares rounded down in the fold",
        patches=(
            unfinished("latent_decode"),
            unfinished("combine_splits"),
            replace("predict_splits", "programs = B", "num_splits = min(num_splits, T)\n    programs = B"),
            replace("split_decode", SHARE, "share = T // num_splits"),
            replace("folded_decode", SHARE, "share = (length - length % num_splits) // num_splits"),
        ),
        expect={
            **left_out("latent_decode", "combine_splits")[1],
            **says("predict_splits", "splits that get no token are left out", 1),
            **not_right("split_decode", "the share is T // num_splits", 1),
            **not_right("folded_decode", "the share of a split is rounded down", 1),
        },
    ),
    *(
        Submission(
            student,
            what,
            patches=(
                *left_out("latent_decode", "split_decode", "combine_splits")[0],
                replace("folded_decode", END, new),
            ),
            expect={
                **left_out("latent_decode", "split_decode", "combine_splits")[1],
                **not_right("folded_decode", told, score),
            },
        )
        for student, what, new, told, score in (
            (
                "bert",
                "the last token lost in the fold",
                END.replace("length)", "length - 1)"),
                "the last token of the sequence is in no split",
                0,
            ),
            (
                "carl",
                "the boundary counted twice in the fold",
                END.replace("(split + 1) * share", "split * share + share + 1"),
                "the first token of the next split counts here as well",
                1,
            ),
        )
    ),
    *(
        Submission(
            f"vera{n}",
            f"in three kernels: {', '.join(words for _, _, _, words, _ in slips)}",
            patches=(*(replace(name, old, new) for name, old, new, _, _ in slips), unfinished("combine_splits")),
            expect={
                **left_out("combine_splits")[1],
                **{key: each for name, _, _, *told in slips for key, each in not_right(name, *told).items()},
            },
        )
        for n, slips in enumerate(
            (
                (
                    ("latent_decode", "k_rope), qk) * scale", "k_rope)) * scale", "lack q_latent · c_kv", 0),
                    ("split_decode", SCORES, "        qk *= scale\n", "lack q_rope · k_rope", 0),
                    ("folded_decode", SCORES, "        qk *= scale\n", "lack q_rope · k_rope", 0),
                ),
                (
                    ("latent_decode", "c_kv_ptr + (b * T + offs_n)", "c_kv_ptr + (offs_n)", "latents of sequence 0", 0),
                    ("split_decode", "qk) * scale", "qk)", "not multiplied by scale", 0),
                    ("folded_decode", "qk) * scale", "qk)", "not multiplied by scale", 0),
                ),
                (
                    ("latent_decode", "seq_lens_ptr + b", "seq_lens_ptr", "the length of sequence 0", 3),
                    ("split_decode", "seq_lens_ptr + b", "seq_lens_ptr", "the length of sequence 0", 1),
                    ("folded_decode", "offs_m // H + 1", "offs_m // H + 2", "the position behind its own", 1),
                ),
                (
                    ("latent_decode", "(b * T + offs_n)", "offs_n", "rotated keys of sequence 0", 0),
                    ("split_decode", "partial_lse, scale", "partial_lse, (R + Dr) ** -0.5", "1/√(R+Dr)", 0),
                    ("folded_decode", "partial_lse, scale", "partial_lse, (R + Dr) ** -0.5", "1/√(R+Dr)", 0),
                ),
                (
                    ("split_decode", "m_i + tl.log(l_i)", "tl.log(l_i)", "the logarithm of the sum alone", 0),
                    ("folded_decode", "m_i + tl.log(l_i)", "m_i * 1.4426950 + tl.log2(l_i)", "a base-2 logarithm", 0),
                ),
                (("split_decode", "m_i + tl.log(l_i)", "m_i", "lse is the largest score", 0),),
                (("split_decode", "tl.exp(", "tl.exp2(", "the weights are powers of 2", 0),),
                (("split_decode", "acc * alpha[:, None])", "acc)", "acc is not multiplied", 1),),
                (("split_decode", "l_i * alpha", "l_i", "l_i is not multiplied", 1),),
                (("split_decode", f"{SHARE}\n{END}", REST_TO_THE_LAST, "shared out in another way", 1),),
                (("split_decode", "tl.load(seq_lens_ptr + b)", "T", "all T places are split", 1),),
                (
                    ("latent_decode", DOT, f"{DOT} * scale", "q_latent · c_kv is multiplied by scale twice", 0),
                    ("split_decode", DOT, f"{DOT} * scale", "q_latent · c_kv is multiplied by scale twice", 0),
                ),
                (("split_decode", "k_rope), qk) * scale", "k_rope)) * scale", "lack q_latent · c_kv", 0),),
                (("split_decode", "qk) * scale", "qk) * scale * scale", "scores are multiplied by scale twice", 0),),
                (("split_decode", "k_rope), qk) * scale", "k_rope)) * scale + qk", "only q_rope · k_rope", 0),),
                (("split_decode", "k_rope), qk) * scale", "k_rope), qk * scale)", "only q_latent · c_kv", 0),),
                (("split_decode", "m_i + tl.log(l_i)", "m_i + tl.log2(l_i)", "a maximum that is natural", 0),),
                (("split_decode", PART, "part = (b * num_splits + split) * H + offs_h", "one after the other", 0),),
                (("split_decode", SHARE, f"{SHARE}\n    share = tl.cdiv(share, 64) * 64", "in another way", 0),),
                (
                    ("split_decode", RANGE, "range(split * BLOCK_N, end, num_splits * BLOCK_N)", "in another way", 0),
                    ("split_decode", END, "    end = length\n", "in another way", 0),
                ),
                (
                    (
                        "split_decode",
                        "    partial_out =",
                        "    num_splits = min(num_splits, T)\n    partial_out =",
                        "has shape [3, 2, 2, 32], expected [8, 2, 2, 32]",
                        3,
                    ),
                ),
            )
        )
    ),
    slip(
        "xul", "powers of 2", "predict_fold", {"q_len % f == 0 and": "q_len % f == f & (f - 1) == 0 and"}, "a power", 1
    ),
    slip("yul", "rows of 128", "predict_fold", {'"rows": H * factor': '"rows": 128'}, "of a block of 128", 1),
    *(
        Submission(
            f"walter{n}",
            "rounded down, a limit excluded, a token that is none, no tail",
            patches=(
                replace("predict_splits", *splits[:2]),
                replace("predict_fold", "H * f <= 128", "H * f < 128"),
                replace("latent_decode", "range(0, length, BLOCK_N)", "range(0, length // BLOCK_N * BLOCK_N, BLOCK_N)"),
                unfinished("split_decode"),
                unfinished("combine_splits"),
                replace("folded_decode", "offs_m // H + 1", f"{token} + 1"),
            ),
            expect={
                **left_out("split_decode", "combine_splits")[1],
                **says("predict_splits", splits[2], 1),
                **says("predict_fold", "may be 128 itself"),
                **not_right("latent_decode", "behind the last whole block", 2),
                **not_right("folded_decode", told, 1),
            },
        )
        for n, (splits, token, told) in enumerate(
            (
                (("-(-H // 16)", "(H // 16)", "leaves the last heads"), "offs_m % H", "that is its head"),
                (
                    ("B * T * (512 + 64) * 2,", "B * T * (512 + 64) * 2 * -(-H // 16),", "each block of 16 heads"),
                    "offs_m // S",
                    "each token has H rows",
                ),
            )
        )
    ),
    # Not from a kernel, or not all of it
    Submission(
        "uma",
        "leaves the products to PyTorch: a kernel for the softmax and the weighted sum",
        patches=(
            rewrite(
                "latent_decode",
                """
@triton.jit
def weighted_sum(scores_ptr, c_ptr, len_ptr, out_ptr, lse_ptr, H, T, R: tl.constexpr, BLOCK_T: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    b, r, t = row // H, tl.arange(0, R), tl.arange(0, BLOCK_T)
    there = t < tl.load(len_ptr + b)
    scores = tl.load(scores_ptr + row * T + t, mask=there, other=float("-inf"))
    c = tl.load(c_ptr + (b * T + t)[:, None] * R + r[None, :], mask=there[:, None], other=0.0)
    peak = tl.max(scores)
    weights = tl.exp(scores - tl.where(peak == float("-inf"), 0.0, peak))
    total = tl.sum(weights)
    total = tl.where(total > 0, total, 1.0)
    tl.store(out_ptr + row * R + r, tl.sum(weights[:, None] * c.to(tl.float32), axis=0) / total)
    tl.store(lse_ptr + row, peak + tl.log(total))


def latent_decode(q_latent, q_rope, c_kv, k_rope, seq_lens, scale):
    (B, H, R), T = q_latent.shape, c_kv.shape[1]
    scores = (q_latent.float() @ c_kv.float().mT + q_rope.float() @ k_rope.float().mT) * scale
    out, lse = torch.empty_like(q_latent), torch.empty((B, H), device=q_latent.device)
    block = triton.next_power_of_2(T)
    weighted_sum[(B * H,)](scores, c_kv, seq_lens, out, lse, H, T, R=R, BLOCK_T=block)
    return out, lse
""",
            ),
            *REST,
        ),
        expect={
            **NOT_DONE,
            **not_right("latent_decode", "weighted_sum takes as scores_ptr what torch computes from data"),
        },
    ),
    Submission(
        "vera",
        "puts the last line of the lse on the host",
        patches=(
            replace("latent_decode", "m_i + tl.log(l_i)", "l_i"),
            replace("latent_decode", "out_ptr, lse_ptr, scale", "out_ptr, lse_ptr, m_ptr, scale"),
            replace(
                "latent_decode",
                "    tl.store(lse_ptr + row, l_i, mask=offs_h < H)\n",
                "    tl.store(lse_ptr + row, l_i, mask=offs_h < H)\n    tl.store(m_ptr + row, m_i, mask=offs_h < H)\n",
            ),
            replace("latent_decode", "out, lse, scale, H, T,", "out, lse, m_i, scale, H, T,"),
            replace("latent_decode", "    block_h,", "    m_i = torch.empty_like(lse)\n    block_h,"),
            replace("latent_decode", "    return out, lse", "    return out, m_i + lse.log()"),
            *REST,
        ),
        expect={**NOT_DONE, **not_right("latent_decode", "the result is what torch computes from data")},
    ),
    Submission(
        "walt",
        "does less where nobody compares: contexts of the case for speed are cut off",
        patches=(
            replace(
                "latent_decode",
                "length = tl.load(seq_lens_ptr + b)",
                "length = tl.load(seq_lens_ptr + b)\n    if T == 4096:\n        length = tl.minimum(length, 64)",
            ),
            *REST,
        ),
        expect={**NOT_DONE, "latent_decode:speed": Expected(0, Outcome.ERROR, "the work takes")},
    ),
    # Right and slow
    Submission(
        "bela",
        "a head a program without tl.dot; all splits in one program; a launch for each part; blocks of 16 rows",
        patches=(
            rewrite(
                "latent_decode",
                """
@triton.jit
def one_head(
    q_ptr, p_ptr, c_ptr, k_ptr, len_ptr, out_ptr, lse_ptr, scale, H, T,
    R: tl.constexpr, DR: tl.constexpr, BLOCK_T: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    b, r, d = row // H, tl.arange(0, R), tl.arange(0, DR)
    q = tl.load(q_ptr + row * R + r).to(tl.float32)
    p = tl.load(p_ptr + row * DR + d).to(tl.float32)
    length = tl.load(len_ptr + b)
    peak, total, acc = float("-inf"), 0.0, tl.zeros([R], tl.float32)
    for start in range(0, length, BLOCK_T):
        t = start + tl.arange(0, BLOCK_T)
        c = tl.load(c_ptr + (b * T + t)[:, None] * R + r[None, :], mask=t[:, None] < length, other=0.0).to(tl.float32)
        k = tl.load(k_ptr + (b * T + t)[:, None] * DR + d[None, :], mask=t[:, None] < length, other=0.0).to(tl.float32)
        scores = (tl.sum(c * q[None, :], axis=1) + tl.sum(k * p[None, :], axis=1)) * scale
        scores = tl.where(t < length, scores, float("-inf"))
        new_peak = tl.maximum(peak, tl.max(scores))
        weights, kept = tl.exp(scores - new_peak), tl.exp(peak - new_peak)
        total = total * kept + tl.sum(weights)
        acc = acc * kept + tl.sum(c * weights[:, None], axis=0)
        peak = new_peak
    total = tl.where(total > 0, total, 1.0)
    tl.store(out_ptr + row * R + r, acc / total)
    tl.store(lse_ptr + row, peak + tl.log(total))


def latent_decode(q_latent, q_rope, c_kv, k_rope, seq_lens, scale):
    (B, H, R), (_, T, Dr) = q_latent.shape, k_rope.shape
    out, lse = torch.empty_like(q_latent), torch.empty((B, H), device=q_latent.device)
    block_t = 64 if R <= 64 else 16
    one_head[(B * H,)](q_latent, q_rope, c_kv, k_rope, seq_lens, out, lse, scale, H, T, R=R, DR=Dr, BLOCK_T=block_t)
    return out, lse
""",
            ),
            replace("split_decode", "    split, b = tl.program_id(2), tl", "    b = tl"),
            replace(
                "split_decode",
                END,
                ALL_SPLITS + END,
            ),
            replace("split_decode", "split.to(tl.int64) * B", "split * B"),
            replace("split_decode", "B, num_splits)](", "B)]("),
            rewrite(
                "combine_splits",
                """
@triton.jit
def take_in(part_ptr, z_ptr, sum_ptr, total_ptr, peak_ptr, out_ptr, lse_ptr, p, P, N, R: tl.constexpr):
    row, r = tl.program_id(0).to(tl.int64), tl.arange(0, R)
    z = tl.load(z_ptr + p * N + row)
    peak, total, acc = float("-inf"), 0.0, tl.zeros([R], tl.float32)
    if p > 0:
        peak, total, acc = tl.load(peak_ptr + row), tl.load(total_ptr + row), tl.load(sum_ptr + row * R + r)
    new = tl.maximum(peak, z)
    base = tl.where(new == float("-inf"), 0.0, new)
    w, kept = tl.exp(z - base), tl.exp(peak - base)
    acc = acc * kept + tl.where(w > 0, w * tl.load(part_ptr + (p * N + row) * R + r), 0.0)
    total = total * kept + w
    tl.store(sum_ptr + row * R + r, acc)
    tl.store(total_ptr + row, total)
    tl.store(peak_ptr + row, new)
    if p == P - 1:
        total = tl.where(total > 0, total, 1.0)
        tl.store(out_ptr + row * R + r, acc / total)
        tl.store(lse_ptr + row, new + tl.log(total))


def combine_splits(partial_out, partial_lse, out):
    P, B, H, R = partial_out.shape
    total, peak, lse = (torch.empty((B, H), device=out.device) for _ in range(3))
    acc = torch.empty((B, H, R), device=out.device)
    for p in range(P):
        take_in[(B * H,)](partial_out, partial_lse, acc, total, peak, out, lse, p, P, B * H, R=R)
    return out, lse
""",
            ),
            replace("folded_decode", "block_sizes(M)", "16, 64, 2"),
        ),
        expect={
            **slow("latent_decode"),
            **slow("split_decode"),
            **slow("combine_splits", 1),
            **slow("folded_decode", 1.5),
        },
    ),
    Submission(
        "cleo",
        "tiny blocks of tokens, 16 columns a program, no splits where they are needed",
        patches=(
            replace("split_decode", "block_sizes(H)", "16, 16, 1"),
            replace("combine_splits", "min(R, max(8192 // block_p, 16))", "16"),
            replace("folded_decode", "max(1, min(132 // (B * blocks), triton.cdiv(T, 128)))", "1"),
        ),
        expect={
            **slow("split_decode", 1.5),
            **slow("combine_splits"),
            **slow("folded_decode"),
        },
    ),
)
DEMO = ("ada", "gus", "bela")
