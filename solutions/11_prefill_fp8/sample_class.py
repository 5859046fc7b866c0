"""The sample class of lesson 11."""

from autograder.course.sample import (
    Expected,
    Submission,
    add_cell,
    left_out,
    not_right,
    replace,
    rewrite,
    says,
    slow,
)
from autograder.judging.verdict import Outcome

PAIRS = "S * T - S * (S - 1) // 2"
FLOPS = "flops = 2 * pairs * H * (Dn + Dr + Dv)"
PADDING = "1 - sum(lengths_q) / slots"
COUNTS = "counts = (S + block - 1) // block"
KEYS = "keys = (T[b] - S[b] + end).clamp(min=0) if causal else T[b]"
LIMIT = "limit = T - S + offs_m + 1"
SEEN = "seen = (first + offs_n)[None, :] < T\n"
BOUNDS = "bounds = [(context.clamp(max=start), context.clamp(max=start + chunk)) for start in starts] + [(context, T)]"
WEIGHTS = "weights = torch.exp(part_lse - lse)"
EXPANDED = "r[:, None].expand(-1, len(w_uk), -1)"
LARGEST = "largest = tiles.abs().amax(-1, keepdim=True)"
ROPE = "cache[:, R:]\n"
OF_ROPE = "rope = tl.clamp(rope.to(tl.float32) * k_inverse, -448.0, 448.0)"
STORED = "tl.broadcast_to(rope[None, :], [BLOCK_H, DR]), mask=some)"
CLAMPED = "tl.clamp({0}.to(tl.float32) * {1}_inverse, -448.0, 448.0)"
LISTED = """
def plan_tiles(cu_seqlens_q, cu_seqlens_kv, block, causal):
    rows = []
    for b in range(len(cu_seqlens_q) - 1):
        S = int(cu_seqlens_q[b + 1] - cu_seqlens_q[b])
        T = int(cu_seqlens_kv[b + 1] - cu_seqlens_kv[b])
        for start in range(0, S, block):
            last = min(start + block, S) - 1
            rows.append((b, start, max(0, T - S + last + 1) if causal else T))
    return torch.tensor(rows, dtype=torch.int32)
"""


def everywhere(form):
    """Return patches that give every number of pack_fp8 another form, of `{0}`, its name, and `{1}`, its scale's."""
    return tuple(
        replace("pack_fp8", CLAMPED.format(name, scale), form.format(name, scale))
        for name, scale in (("nope", "k"), ("rope", "k"), ("v", "v"))
    )


SUBMISSIONS = (
    Submission("ada", "the solution as it stands"),
    Submission(
        "ben",
        "another style: loops, one sequence at a time, a right kernel in blocks of 16 rows that is slow",
        patches=(
            rewrite(
                "prefill_work",
                """
def prefill_work(lengths_q, lengths_kv, H, Dn, Dr, Dv, rate):
    pairs = 0
    for S, T in zip(lengths_q, lengths_kv):
        for s in range(S):
            pairs += T - S + s + 1
    rows = len(lengths_q) * max(lengths_q)
    macs = pairs * H * (Dn + Dr) + pairs * H * Dv
    return dict(
        tokens=sum(lengths_q), padding=(rows - sum(lengths_q)) / rows, pairs=pairs,
        padded_over_pairs=rows * max(lengths_kv) / pairs, flops=2 * macs, us=2 * macs / rate * 1e6,
    )
""",
            ),
            rewrite("plan_tiles", LISTED.replace("int32)", "int32).reshape(len(rows), 3)")),
            replace("ragged_prefill", "block_m, block_n, warps, stages = tile_sizes()", "block_m, block_n = 16, 32"),
            replace("ragged_prefill", "num_warps=warps, num_stages=stages", "num_warps=4"),
            rewrite(
                "chunked_prefill",
                """
def chunked_prefill(q, c_kv, k_rope, w_uk, w_uv, cu_seqlens_q, cu_seqlens_kv, chunk):
    B, H = len(cu_seqlens_q) - 1, w_uk.shape[0]
    sizes = list(zip(cu_seqlens_q.diff().tolist(), cu_seqlens_kv.diff().tolist()))
    parts = -(-max(T - S for S, T in sizes) // chunk)
    out = q.new_zeros(q.shape[0], H, w_uv.shape[1])
    part_lse = q.new_full((parts + 1, q.shape[0], H), -math.inf)
    for b, (S, T) in enumerate(sizes):
        rows = slice(int(cu_seqlens_q[b]), int(cu_seqlens_q[b + 1]))
        base, found = int(cu_seqlens_kv[b]), []
        for n in range(parts + 1):
            low, high = (T - S, T) if n == parts else (min(n * chunk, T - S), min((n + 1) * chunk, T - S))
            c, r = c_kv[base + low : base + high], k_rope[base + low : base + high]
            k = torch.cat((torch.einsum("tr,hdr->thd", c, w_uk), r.unsqueeze(1).repeat(1, H, 1)), 2)
            ends = torch.tensor([0, S]), torch.tensor([0, high - low])
            part, part_lse[n, rows] = attend(q[rows], k, torch.einsum("tr,hvr->thv", c, w_uv), *ends, n == parts)
            found.append(part)
        weights = part_lse[:, rows].softmax(0)
        for n, part in enumerate(found):
            out[rows] += weights[n, ..., None] * part
    return out, part_lse.logsumexp(0), part_lse
""",
            ),
            rewrite(
                "quantize_cache",
                """
def quantize_cache(cache, R, tile):
    latent, k_rope = cache[:, :R].float(), cache[:, R:].clone()
    values = torch.empty(latent.shape, dtype=torch.float8_e4m3fn)
    if tile is None:
        scales = latent.abs().max().reshape(1, 1) / 448
        scales[scales == 0] = 1
        return (latent / scales).to(torch.float8_e4m3fn), scales, k_rope
    scales = torch.ones(len(cache), R // tile)
    for n in range(R // tile):
        part = latent[:, n * tile : (n + 1) * tile]
        largest = part.abs().max(dim=1).values
        scales[:, n] = torch.where(largest == 0, 1.0, largest / 448.0)
        values[:, n * tile : (n + 1) * tile] = (part * (1 / scales[:, n : n + 1])).to(torch.float8_e4m3fn)
    return values, scales, k_rope
""",
            ),
            rewrite(
                "pack_fp8",
                """
@triton.jit
def one_head(
    kv_ptr, cache_ptr, k_ptr, v_ptr, k_scale, v_scale, H, R, DN: tl.constexpr, DR: tl.constexpr, DV: tl.constexpr
):
    n, h = tl.program_id(1).to(tl.int64), tl.program_id(0)
    row = n * H + h
    dn, dr, dv = tl.arange(0, DN), tl.arange(0, DR), tl.arange(0, DV)
    nope = tl.load(kv_ptr + row * (DN + DV) + dn).to(tl.float32) / k_scale
    rope = tl.load(cache_ptr + n * (R + DR) + R + dr).to(tl.float32) / k_scale
    v = tl.load(kv_ptr + row * (DN + DV) + DN + dv).to(tl.float32) / v_scale
    tl.store(k_ptr + row * (DN + DR) + dn, nope.to(tl.float8e4nv))
    tl.store(k_ptr + row * (DN + DR) + DN + dr, rope.to(tl.float8e4nv))
    tl.store(v_ptr + row * DV + dv, v.to(tl.float8e4nv))


def pack_fp8(kv, cache, Dn, R, k_scale, v_scale):
    N, H, width = kv.shape
    k = kv.new_empty(N, H, Dn + cache.shape[1] - R, dtype=torch.float8_e4m3fn)
    v = kv.new_empty(N, H, width - Dn, dtype=torch.float8_e4m3fn)
    one_head[(H, N)](kv, cache, k, v, k_scale, v_scale, H, R, Dn, cache.shape[1] - R, width - Dn)
    return k, v
""",
            ),
        ),
        expect={**slow("ragged_prefill"), **slow("pack_fp8")},
    ),
    Submission(
        "chloe",
        "a helper in a cell of her own, blocks of 64 rows",
        patches=(
            add_cell(
                "pack_fp8",
                """
@triton.jit
def narrowed(x, inverse):
    return tl.minimum(tl.maximum(x.to(tl.float32) * inverse, -448.0), 448.0).to(tl.float8e4nv)
""",
            ),
            *(
                replace(
                    "pack_fp8", f"{CLAMPED.format(name, scale)}.to(tl.float8e4nv)", f"narrowed({name}, {scale}_inverse)"
                )
                for name, scale in (("nope", "k"), ("rope", "k"), ("v", "v"))
            ),
            replace("ragged_prefill", "tile_sizes()", "64, 32, 4, 2"),
        ),
        expect=slow("ragged_prefill", 1.5),
    ),
    # Wrong
    Submission(
        "eli",
        "everything aligned top-left, scales multiplied",
        patches=(
            replace("prefill_work", PAIRS, "S * (S + 1) // 2"),
            replace("plan_tiles", KEYS, "keys = torch.minimum(end, T[b]) if causal else T[b]"),
            replace("ragged_prefill", LIMIT, "limit = offs_m + 1"),
            replace(
                "ragged_prefill",
                "keys = T - S + tl.minimum(start + BLOCK_M, S)",
                "keys = tl.minimum(start + BLOCK_M, T)",
            ),
            replace("chunked_prefill", "causal=n == len(starts)", "causal=True"),
            replace("quantize_cache", "(tiles / scales)", "(tiles * scales)"),
            *everywhere("tl.clamp({0}.to(tl.float32) / {1}_inverse, -448.0, 448.0)"),
        ),
        expect={
            **says("prefill_work", "as if it stood at the start", 1),
            **says("plan_tiles", "aligned top-left", 2),
            **not_right("ragged_prefill", "aligned top-left", 2),
            **says("chunked_prefill", "attended to causally"),
            **says("quantize_cache", "the latent times its scale"),
            **not_right("pack_fp8", "multiplied by their scales"),
        },
    ),
    Submission(
        "fay",
        "no mask, keys of the first row, own position left out, one head with RoPE",
        patches=(
            replace("prefill_work", PAIRS, "S * T"),
            replace("plan_tiles", KEYS, "keys = (T[b] - S[b] + start + 1).clamp(min=0) if causal else T[b]"),
            replace("ragged_prefill", LIMIT, "limit = T - S + offs_m"),
            replace("chunked_prefill", "causal=n == len(starts)", "causal=False"),
            replace(
                "quantize_cache", "largest / 448, torch.ones_like(largest))", "448 / largest, torch.ones_like(largest))"
            ),
            replace("quantize_cache", "(tiles / scales)", "(tiles * scales)"),
            replace("pack_fp8", STORED, STORED.replace("mask=some", "mask=offs_h[:, None] == 0")),
        ),
        expect={
            **says("prefill_work", "does not see what comes after"),
            **says("plan_tiles", "what the first row", 1),
            **not_right("ragged_prefill", "does not see its own position", 1),
            **says("chunked_prefill", "without a mask"),
            **says("quantize_cache", "448 over the largest magnitude"),
            **not_right("pack_fp8", "only head 0", 0),
        },
    ),
    Submission(
        "gus",
        "rows that do not exist, offsets of q everywhere, RoPE in the scale",
        patches=(
            replace("prefill_work", PAIRS, "S * T - S * (S + 1) // 2"),
            replace("plan_tiles", "end = torch.minimum(start + block, S[b])", "end = start + block"),
            replace(
                "ragged_prefill",
                "tl.load(cu_q_ptr + b).to(tl.int64), tl.load(cu_kv_ptr + b).to(tl.int64)",
                "tl.load(cu_q_ptr + b).to(tl.int64), tl.load(cu_q_ptr + b).to(tl.int64)",
            ),
            replace("ragged_prefill", "+ b + 1) - first_k)", "+ b + 1) - tl.load(cu_kv_ptr + b))"),
            replace(
                "chunked_prefill",
                "bounds = [(context.clamp",
                "context = T\n    starts = range(0, int(T.max()), chunk)\n    bounds = [(context.clamp",
            ),
            replace("chunked_prefill", "[(context, T)]", "[(T - S, T)]"),
            replace(
                "quantize_cache",
                LARGEST,
                f"{LARGEST}\n    rope = cache[:, R:].float().abs().amax(-1)[:, None, None]\n"
                "    largest = torch.maximum(largest, rope.amax() if tile is None else rope)",
            ),
            replace("pack_fp8", OF_ROPE, "rope = tl.clamp(rope.to(tl.float32), -448.0, 448.0)"),
        ),
        expect={
            **says("prefill_work", "lacks a query's own position"),
            **says("plan_tiles", "behind the end of its sequence", 1),
            **not_right("ragged_prefill", "packed by cu_seqlens_kv", 1),
            **says("chunked_prefill", "count twice"),
            **says("quantize_cache", "that of the whole row"),
            **not_right("pack_fp8", "is not divided by k_scale"),
        },
    ),
    Submission(
        "hana",
        "stops half way",
        patches=(
            replace("prefill_work", "Dv, rate):", "Dv, rate:"),
            replace("plan_tiles", ".clamp(min=0)", ""),
            replace(
                "ragged_prefill",
                "(first + offs_n < T)[:, None]",
                "(first_k + first + offs_n < tl.load(cu_kv_ptr + tl.num_programs(2)))[:, None]",
            ),
            replace("ragged_prefill", SEEN, "seen = (first + offs_n)[None, :] >= 0\n"),
            replace(
                "chunked_prefill",
                "(first + low).tolist(), (first + high).tolist()",
                "(cu_seqlens_q[:-1] + low).tolist(), (cu_seqlens_q[:-1] + high).tolist()",
            ),
            replace("quantize_cache", ROPE, "cache[:, R:].to(torch.float8_e4m3fn).to(cache.dtype)\n"),
            *left_out("pack_fp8")[0],
        ),
        expect={
            "prefill_work": Expected(0, Outcome.ERROR, "SyntaxError in line"),
            **says("plan_tiles", "keys is negative", 3),
            **not_right("ragged_prefill", "a sequence sees keys of the next one", 3),
            **says("chunked_prefill", "they lie by cu_seqlens_kv", 1),
            **says("quantize_cache", "k_rope is rounded to E4M3"),
            **left_out("pack_fp8")[1],
        },
    ),
    Submission(
        "lena",
        "one product, no tail, RoPE in one head, INT8's largest",
        patches=(
            replace("prefill_work", FLOPS, "flops = 2 * pairs * H * (Dn + Dr)"),
            replace("plan_tiles", COUNTS, "counts = S // block"),
            replace("ragged_prefill", LIMIT, f"{LIMIT}\n    q_rope = tl.where(h == 0, q_rope, 0.0)"),
            replace(
                "chunked_prefill",
                EXPANDED,
                "torch.cat((r[:, None], torch.zeros(len(r), len(w_uk) - 1, r.shape[1])), 1)",
            ),
            replace("quantize_cache", "largest / 448", "largest / 127"),
            replace("pack_fp8", "+ n * (R + DR) + R + offs_dr", "+ n * (R + DR) + offs_dr"),
        ),
        expect={
            **says("prefill_work", "the scores alone"),
            **says("plan_tiles", "round up"),
            **not_right("ragged_prefill", "only head 0"),
            **says("chunked_prefill", "the key of head 0 alone"),
            **says("quantize_cache", "as for INT8"),
            **not_right("pack_fp8", "begins behind the latent"),
        },
    ),
    Submission(
        "mia",
        "MACs, tiles across boundaries, base 2, no signs",
        patches=(
            replace("prefill_work", FLOPS, "flops = pairs * H * (Dn + Dr + Dv)"),
            rewrite(
                "plan_tiles",
                """
def plan_tiles(cu_seqlens_q, cu_seqlens_kv, block, causal):
    start = torch.arange(0, int(cu_seqlens_q[-1]), block)
    b = torch.searchsorted(cu_seqlens_q[1:].long().contiguous(), start, right=True)
    Nq, Nkv = int(cu_seqlens_q[-1]), int(cu_seqlens_kv[-1])
    keys = (Nkv - Nq + (start + block).clamp(max=Nq)).clamp(min=0) if causal else torch.full_like(start, Nkv)
    return torch.stack((b, start - cu_seqlens_q[b], keys), 1).int()
""",
            ),
            replace("ragged_prefill", "m_i + tl.log(l_i)", "(m_i * 1.4426950408889634) + tl.log2(l_i)"),
            replace("chunked_prefill", WEIGHTS, "weights = torch.softmax(part_lse * math.log(2), 0)"),
            replace("quantize_cache", "tiles.abs()", "tiles"),
            replace("pack_fp8", "1 / k_scale, 1 / v_scale", "1 / k_scale, 1 / k_scale"),
        ),
        expect={
            **says("prefill_work", "one multiply-accumulate is two FLOPs"),
            **says("plan_tiles", "across the end of a sequence"),
            **not_right("ragged_prefill", "base-2 logarithm"),
            **says("chunked_prefill", "powers of 2"),
            **says("quantize_cache", "that of the largest number"),
            **not_right("pack_fp8", "the values are divided by k_scale"),
        },
    ),
    Submission(
        "noor",
        "padding of the tokens, starts in the pack, 0/0, a mean, scales for tokens, 16 bits",
        patches=(
            replace("prefill_work", PADDING, "(slots - sum(lengths_q)) / sum(lengths_q)"),
            replace(
                "plan_tiles", "torch.stack((b, start, keys), 1)", "torch.stack((b, start + cu_seqlens_q[b], keys), 1)"
            ),
            replace("ragged_prefill", "l_i = tl.where(l_i > 0, l_i, 1.0)", "l_i = l_i + 0.0"),
            replace("chunked_prefill", WEIGHTS, "weights = torch.full_like(part_lse, 1 / len(part_lse))"),
            replace("quantize_cache", "unflatten(1, (-1, tile))", "unflatten(1, (-1, R))"),
            *everywhere("tl.clamp(({0} * {1}_inverse).to({0}.dtype).to(tl.float32), -448.0, 448.0)"),
        ),
        expect={
            **says("prefill_work", "divides by the real tokens"),
            **says("plan_tiles", "the row in the whole pack"),
            **not_right("ragged_prefill", "0/0", 4),
            **says("chunked_prefill", "the plain mean"),
            **says("quantize_cache", "those of whole tokens", 2),
            **not_right("pack_fp8", "rounded twice", 2),
        },
    ),
    Submission(
        "otis",
        "a triangle for the padded batch, no columns, NaN rows, weights that do not add up, one scale for all",
        patches=(
            replace(
                "prefill_work",
                "slots * max(lengths_kv) / pairs",
                "(slots * max(lengths_kv) - slots * (max(lengths_q) - 1) // 2) / pairs",
            ),
            rewrite("plan_tiles", LISTED),
            replace("ragged_prefill", 'tl.where(m_new == float("-inf"), 0.0, m_new)', "m_new"),
            replace("chunked_prefill", WEIGHTS, "weights = torch.exp(part_lse - part_lse.amax(0))"),
            replace(
                "quantize_cache",
                "latent.reshape(1, 1, -1) if tile is None else latent.unflatten(1, (-1, tile))",
                "latent.reshape(1, 1, -1)",
            ),
            *everywhere("(tl.clamp({0}.to(tl.float32), -448.0, 448.0) * {1}_inverse)"),
        ),
        expect={
            **says("prefill_work", "counts a triangle for the padded batch"),
            **says("plan_tiles", "a tensor of an empty list", 3),
            **not_right("ragged_prefill", "rows that see nothing of a block", 4),
            **says("chunked_prefill", "do not add up to 1"),
            **says("quantize_cache", "all tokens share one scale", 1),
            **not_right("pack_fp8", "held within ±448 before they are divided", 3),
        },
    ),
    Submission(
        "pia",
        "always causal, the old sum, the last lse, zeros without a scale, NaN beyond 448",
        patches=(
            replace("plan_tiles", " if causal else T[b]", ""),
            replace("ragged_prefill", "acc * alpha[:, None])", "acc)"),
            replace(
                "chunked_prefill", "lse = part_lse.logsumexp(0)\n", "lse = part_lse.logsumexp(0)\n    last = lses[-1]\n"
            ),
            replace("chunked_prefill", ".sum(0), lse, part_lse", ".sum(0), last, part_lse"),
            replace(
                "quantize_cache", "torch.where(largest > 0, largest / 448, torch.ones_like(largest))", "largest / 448"
            ),
            *everywhere(
                "tl.where(tl.abs({0}.to(tl.float32) * {1}_inverse) > 464.0, float('nan'), "
                "{0}.to(tl.float32) * {1}_inverse)"
            ),
        ),
        expect={
            **says("plan_tiles", "without causality every tile", 3),
            **not_right("ragged_prefill", "acc is not multiplied", 1),
            **says("chunked_prefill", "that of the new tokens alone"),
            **says("quantize_cache", "a tile of zeros", 3),
            **not_right("pack_fp8", "what is too large becomes NaN", 2),
        },
    ),
    Submission(
        "rita",
        "a finite number for a maximum of −inf, a maximum of at least 0",
        patches=(
            replace("ragged_prefill", 'tl.where(m_new == float("-inf"), 0.0, m_new)', "tl.maximum(m_new, -1e4)"),
            replace(
                "chunked_prefill",
                "lse = part_lse.logsumexp(0)\n",
                "top = part_lse.amax(0).clamp(min=0.0)\n    lse = top + (part_lse - top).exp().sum(0).log()\n",
            ),
        ),
        expect={
            **not_right("ragged_prefill", "so is the first maximum", 3),
            **says("chunked_prefill", "subtract the largest lse", 3),
        },
    ),
)
DEMO = ("ada", "eli")
