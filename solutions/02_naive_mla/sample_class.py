"""The sample class of lesson 02: every named mistake of its exercises is shown by someone."""

from autograder.course.sample import Expected, Submission, add_cell, replace, rewrite, slip, unfinished
from autograder.judging.verdict import Outcome

RMS = "    y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + eps)\n"
TURN = "    return torch.stack((a * cos - b * sin, a * sin + b * cos), dim=-1).flatten(-2)"
LATENT = "    return rms_normalize(c_kv, norm_weight), rotate_pairs(k_rope[:, :, None], cos, sin)[:, :, 0]"
ROPE_SCORES = '    scores = scores + torch.einsum("bshd,btd->bsht", q_rope, k_rope)\n'
SCALE = "math.sqrt(q_nope.shape[-1] + q_rope.shape[-1])"
LSE = "    lse = torch.logsumexp(scores, dim=-1)\n"
WEIGHTS = "torch.softmax(scores, dim=-1)"
WRITE = "    c_cache[:, now] = c_new\n    k_cache[:, now] = k_new\n"
FILLED = "    c_kv, k_rope = c_cache[:, : position + 1], k_cache[:, : position + 1]\n"

LSE_EARLY = {"    future =": LSE + "    future =", "v)\n" + LSE: "v)\n"}

SUBMISSIONS = (
    Submission("ada", "the solution as it stands"),
    Submission(
        "ben",
        "another style: norms, complex numbers, concatenated keys, matmul in place of einsum",
        patches=(
            rewrite(
                "predict_latent_cache",
                """
def predict_latent_cache(num_heads, qk_nope_head_dim, qk_rope_head_dim, v_head_dim, kv_lora_rank, itemsize):
    words = {
        "expanded_bytes": num_heads * (qk_nope_head_dim + qk_rope_head_dim) + num_heads * v_head_dim,
        "latent_bytes": kv_lora_rank + qk_rope_head_dim,
    }
    answer = {name: itemsize * count for name, count in words.items()}
    answer["ratio"] = words["expanded_bytes"] / words["latent_bytes"]
    return answer
""",
            ),
            rewrite(
                "rms_normalize",
                """
def rms_normalize(x, weight, eps=1e-6):
    n = x.shape[-1]
    wide = x.double()
    length = torch.sqrt(torch.linalg.vector_norm(wide, dim=-1, keepdim=True) ** 2 / n + eps)
    return (wide / length * weight.double()).to(x.dtype)
""",
            ),
            rewrite(
                "rotate_pairs",
                """
def rotate_pairs(x, cos, sin):
    pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2).contiguous())
    turn = torch.complex(cos, sin)[None, :, None, :]
    return torch.view_as_real(pairs * turn).reshape(x.shape)
""",
            ),
            rewrite(
                "latent_kv",
                """
def latent_kv(h, w_dkv, norm_weight, cos, sin):
    rank = len(norm_weight)
    latent = torch.nn.functional.linear(h, w_dkv[:rank])
    key = torch.nn.functional.linear(h, w_dkv[rank:]).unsqueeze(2)
    return rms_normalize(latent, norm_weight, 1e-6), rotate_pairs(key, cos, sin).squeeze(2)
""",
            ),
            rewrite(
                "naive_mla_attention",
                """
def naive_mla_attention(q_nope, q_rope, c_kv, k_rope, w_uk, w_uv):
    heads = w_uk.shape[0]
    q = torch.cat((q_nope, q_rope), -1).transpose(1, 2)  # [B, H, S, Dn + Dr]
    k_nope = c_kv[:, None] @ w_uk.mT  # [B, H, T, Dn]
    k = torch.cat((k_nope, k_rope[:, None].expand(-1, heads, -1, -1)), -1)
    v = c_kv[:, None] @ w_uv.mT
    scores = (q * q.shape[-1] ** -0.5) @ k.mT
    S, T = scores.shape[-2:]
    scores = scores + torch.full((S, T), -torch.inf).triu(T - S + 1)
    peak = scores.amax(-1, keepdim=True)
    weights = torch.exp(scores - peak)
    total = weights.sum(-1, keepdim=True)
    return ((weights / total) @ v).transpose(1, 2), (peak + total.log()).squeeze(-1).transpose(1, 2)
""",
            ),
            rewrite(
                "mla_decode_step",
                """
def mla_decode_step(h, weights, c_cache, k_cache, position, cos, sin):
    here, length = [position], position + 1
    query = mla_query(h, *(weights[name] for name in ("w_dq", "q_norm", "w_uq")), cos[here], sin[here])
    c_cache[:, here], k_cache[:, here] = latent_kv(h, weights["w_dkv"], weights["kv_norm"], cos[here], sin[here])
    out = naive_mla_attention(*query, c_cache[:, :length], k_cache[:, :length], weights["w_uk"], weights["w_uv"])[0]
    return torch.nn.functional.linear(out.reshape(len(h), 1, -1), weights["w_o"]), c_cache, k_cache
""",
            ),
        ),
    ),
    Submission(
        "chloe",
        "helpers in cells of her own",
        patches=(
            add_cell(
                "rotate_pairs",
                "def halves(x):\n    return x[..., 0::2], x[..., 1::2]\n\nprint(halves(torch.arange(6)))",
            ),
            replace("rotate_pairs", "a, b = x[..., 0::2], x[..., 1::2]", "a, b = halves(x)"),
            add_cell(
                "naive_mla_attention",
                'from math import sqrt\n\ndef expand(c_kv, w):\n    return torch.einsum("btr,hdr->bthd", c_kv, w)',
            ),
            replace("naive_mla_attention", 'torch.einsum("btr,hdr->bthd", c_kv, w_uk)', "expand(c_kv, w_uk)"),
            replace("naive_mla_attention", 'torch.einsum("btr,hvr->bthv", c_kv, w_uv)', "expand(c_kv, w_uv)"),
            replace("naive_mla_attention", "math.sqrt", "sqrt"),
        ),
    ),
    Submission(
        "dev",
        "warns and prints",
        patches=(
            replace(
                "rms_normalize",
                "    y = x.to(",
                '    import warnings\n    warnings.warn("careful with half types")\n    print(x.dtype)\n    y = x.to(',
            ),
            replace("mla_decode_step", "    w, angle =", '    print("position", position)\n    w, angle ='),
        ),
    ),
    Submission(
        "eli",
        "counts elements, subtracts the mean, pairs the halves, caches the raw latent, scales by Dn, rotates one late",
        patches=(
            replace("predict_latent_cache", " * itemsize", ""),
            replace("rms_normalize", RMS, "    y = y - y.mean(-1, keepdim=True)\n" + RMS),
            replace("rotate_pairs", "x[..., 0::2], x[..., 1::2]", "x.chunk(2, dim=-1)"),
            replace("rotate_pairs", TURN, "    return torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1)"),
            replace("latent_kv", "rms_normalize(c_kv, norm_weight)", "c_kv"),
            replace("naive_mla_attention", SCALE, "math.sqrt(q_nope.shape[-1])"),
            replace(
                "mla_decode_step",
                "(cos[now], sin[now])",
                "(cos[position + 1 : position + 2], sin[position + 1 : position + 2])",
            ),
        ),
        expect={
            "predict_latent_cache": Expected(0, says="multiply by itemsize"),
            "rms_normalize": Expected(0, says="that is LayerNorm"),
            "rotate_pairs": Expected(0, says="paired with i + Dr/2"),
            "latent_kv": Expected(0, says="before its RMSNorm"),
            "naive_mla_attention": Expected(0, says="scaled by 1/√Dn,"),
            "mla_decode_step": Expected(0, says="rotated for position + 1"),
        },
    ),
    Submission(
        "fay",
        "forgets the RoPE key, sums the squares, turns backwards, caches the raw key, scales by R+Dr, rotates at 0",
        patches=(
            replace("predict_latent_cache", "(kv_lora_rank + qk_rope_head_dim) * itemsize", "kv_lora_rank * itemsize"),
            replace("rms_normalize", ".mean(", ".sum("),
            replace("rotate_pairs", "a * cos - b * sin, a * sin + b * cos", "a * cos + b * sin, b * cos - a * sin"),
            replace("latent_kv", "rotate_pairs(k_rope[:, :, None], cos, sin)[:, :, 0]", "k_rope"),
            replace("naive_mla_attention", SCALE, "math.sqrt(c_kv.shape[-1] + k_rope.shape[-1])"),
            replace("mla_decode_step", "(cos[now], sin[now])", "(cos[: h.shape[1]], sin[: h.shape[1]])"),
        ),
        expect={
            "predict_latent_cache": Expected(0, says="leaves out the rotated key"),
            "rms_normalize": Expected(0, says="expected their mean"),
            "rotate_pairs": Expected(0, says="turn backwards"),
            "latent_kv": Expected(0, says="before its rotation"),
            "naive_mla_attention": Expected(0, says="scaled by 1/√(R+Dr)"),
            "mla_decode_step": Expected(0, says="rotated for position 0"),
        },
    ),
    Submission(
        "gus",
        "counts K and V, forgets the weight, ends in halves, splits the wrong way, leaves RoPE out, rotates again",
        patches=(
            replace(
                "predict_latent_cache",
                "(kv_lora_rank + qk_rope_head_dim) * itemsize",
                "2 * (kv_lora_rank + qk_rope_head_dim) * itemsize",
            ),
            replace("rms_normalize", "(y * weight)", "y"),
            replace("rotate_pairs", TURN, "    return torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1)"),
            replace(
                "latent_kv",
                "projected[..., :R], projected[..., R:]",
                "projected[..., -R:], projected[..., : projected.shape[-1] - R]",
            ),
            replace("naive_mla_attention", ROPE_SCORES, ""),
            replace(
                "mla_decode_step",
                FILLED,
                FILLED
                + "    k_rope = rotate_pairs(k_rope[:, :, None], cos[: position + 1], sin[: position + 1])[:, :, 0]\n",
            ),
        ),
        expect={
            "predict_latent_cache": Expected(0, says="no factor 2"),
            "rms_normalize": Expected(0, says="not multiplied by weight"),
            "rotate_pairs": Expected(0, says="laid out as two halves"),
            "latent_kv": Expected(0, says="split the wrong way round"),
            "naive_mla_attention": Expected(0, says="RoPE part is missing"),
            "mla_decode_step": Expected(0, says="rotated a second time"),
        },
    ),
    Submission(
        "hana",
        "hands in unfinished cells",
        patches=(unfinished("latent_kv"), unfinished("naive_mla_attention"), unfinished("mla_decode_step")),
        expect={
            "latent_kv": Expected(0, Outcome.UNFINISHED),
            "naive_mla_attention": Expected(0, Outcome.UNFINISHED),
            "mla_decode_step": Expected(0, Outcome.UNFINISHED),
        },
    ),
    Submission(
        "ivan",
        "a syntax error in one cell; those that call it are judged with the right one",
        patches=(replace("rotate_pairs", "def rotate_pairs(x, cos, sin):", "def rotate_pairs(x, cos, sin)"),),
        expect={"rotate_pairs": Expected(0, Outcome.ERROR, "SyntaxError in line 1")},
    ),
    Submission(
        "lena",
        "counts 2R, forgets the root, tiles the table, norms latent and key together, exchanges the weights, no write",
        patches=(
            replace("predict_latent_cache", "(kv_lora_rank + qk_rope_head_dim)", "2 * kv_lora_rank"),
            replace("rms_normalize", RMS, "    y = y / (y.square().mean(-1, keepdim=True) + eps)\n"),
            rewrite(
                "rotate_pairs",
                """
def rotate_pairs(x, cos, sin):
    cos, sin = torch.cat((cos, cos), -1)[:, None], torch.cat((sin, sin), -1)[:, None]
    swapped = torch.stack((-x[..., 1::2], x[..., 0::2]), dim=-1).flatten(-2)
    return x * cos + swapped * sin
""",
            ),
            replace(
                "latent_kv",
                "    c_kv, k_rope = projected",
                "    ones = torch.ones(projected.shape[-1] - R)\n"
                "    projected = rms_normalize(projected, torch.cat((norm_weight, ones)))\n"
                "    c_kv, k_rope = projected",
            ),
            replace("latent_kv", LATENT, "    return c_kv, rotate_pairs(k_rope[:, :, None], cos, sin)[:, :, 0]"),
            replace(
                "naive_mla_attention",
                "    k_nope =",
                "    w_uv, w_uk = w_uk, w_uv\n    k_nope =",
            ),
            replace("mla_decode_step", WRITE, ""),
            replace(
                "mla_decode_step",
                FILLED,
                "    c_kv = torch.cat((c_cache[:, :position], c_new), 1)\n"
                "    k_rope = torch.cat((k_cache[:, :position], k_new), 1)\n",
            ),
        ),
        expect={
            "predict_latent_cache": Expected(0, says="latent_bytes is 2R"),
            "rms_normalize": Expected(0, says="expected its square root"),
            "rotate_pairs": Expected(0, says="need the same angle"),
            "latent_kv": Expected(0, says="over latent and key together"),
            "naive_mla_attention": Expected(0, says="exchanged"),
            "mla_decode_step": Expected(0, says="come back without the new token"),
        },
    ),
    Submission(
        "mona",
        "a RoPE key per head, eps outside the root, angles by head, values from W_UK, blind to the new token",
        patches=(
            replace("predict_latent_cache", "(kv_lora_rank + qk", "(kv_lora_rank + num_heads * qk"),
            replace("rms_normalize", RMS, "    y = y / (y.square().mean(-1, keepdim=True).sqrt() + eps)\n"),
            replace("rotate_pairs", "    cos, sin = cos[:, None], sin[:, None]  # [S, 1, Dr/2]\n", ""),
            replace("naive_mla_attention", 'torch.einsum("btr,hvr->bthv", c_kv, w_uv)', "k_nope"),
            replace("mla_decode_step", FILLED, "    c_kv, k_rope = c_cache[:, :position], k_cache[:, :position]\n"),
        ),
        expect={
            "predict_latent_cache": Expected(0, says="a rotated key for every head"),
            "rms_normalize": Expected(2, Outcome.PARTIAL, "eps is added to the root"),
            "rotate_pairs": Expected(1, Outcome.PARTIAL, "run over the heads"),
            "naive_mla_attention": Expected(0, says="values come from w_uk"),
            "mla_decode_step": Expected(0, says="does not attend to itself"),
        },
    ),
    Submission(
        "nils",
        "leaves RoPE out of the expanded key, no eps, no mask, attends to the whole cache",
        patches=(
            replace("predict_latent_cache", "(qk_nope_head_dim + qk_rope_head_dim + v", "(qk_nope_head_dim + v"),
            replace("rms_normalize", " + eps", ""),
            replace("naive_mla_attention", "    scores = scores.masked_fill(future[:, None, :], -math.inf)\n", ""),
            replace("mla_decode_step", FILLED, "    c_kv, k_rope = c_cache, k_cache\n"),
        ),
        expect={
            "predict_latent_cache": Expected(0, says="leaves out the RoPE part"),
            "rms_normalize": Expected(2, Outcome.PARTIAL, "eps is missing"),
            "naive_mla_attention": Expected(2, Outcome.PARTIAL, "no causal mask"),
            "mla_decode_step": Expected(0, says="rows that are not filled"),
        },
    ),
    Submission(
        "olga",
        "the ratio upside down, squares in float16, the mask top-left",
        patches=(
            replace("predict_latent_cache", "expanded / latent", "latent / expanded"),
            replace("rms_normalize", "    y = x.to(torch.promote_types(x.dtype, torch.float32))\n", "    y = x\n"),
            replace("naive_mla_attention", " + (T - S)", ""),
        ),
        expect={
            "predict_latent_cache": Expected(0, says="upside down"),
            "rms_normalize": Expected(2, Outcome.PARTIAL, "overflow float16"),
            "naive_mla_attention": Expected(0, says="aligned top-left"),
        },
    ),
    Submission(
        "paul",
        "no scale, and an eps of his own",
        patches=(
            replace("naive_mla_attention", f"    scores = scores / {SCALE}\n", ""),
            replace("rms_normalize", "+ eps", "+ 1e-6"),
        ),
        expect={
            "naive_mla_attention": Expected(0, says="not scaled"),
            "rms_normalize": Expected(2, Outcome.PARTIAL, "take the argument"),
        },
    ),
    Submission(
        "rosa",
        "reports the log-sum-exp in base 2",
        patches=(replace("naive_mla_attention", "    return out, lse", "    return out, lse / math.log(2)"),),
        expect={"naive_mla_attention": Expected(0, says="base 2")},
    ),
    Submission(
        "sven",
        "takes the logarithm of a sum that overflows",
        patches=(
            replace("naive_mla_attention", LSE, "    lse = scores.exp().sum(-1).log()\n"),
            replace("naive_mla_attention", WEIGHTS, "(scores - scores.exp().sum(-1, keepdim=True).log()).exp()"),
        ),
        expect={"naive_mla_attention": Expected(4, Outcome.PARTIAL, "before the logarithm")},
    ),
    Submission(
        "tara",
        "calls scaled_dot_product_attention",
        patches=(
            replace(
                "naive_mla_attention",
                "    lse = torch",
                "    q, k = (x.transpose(1, 2) for x in (q_nope, k_nope))\n"
                "    torch.nn.functional.scaled_dot_product_attention(q, k, v.transpose(1, 2))\n    lse = torch",
            ),
        ),
        expect={"naive_mla_attention": Expected(0, says="may not call")},
    ),
    Submission(
        "uma",
        "divides exponentials that overflow",
        patches=(
            replace("naive_mla_attention", LSE, "    lse = scores.exp().sum(-1).log()\n"),
            replace("naive_mla_attention", WEIGHTS, "scores.exp() / scores.exp().sum(-1, keepdim=True)"),
        ),
        expect={"naive_mla_attention": Expected(4, Outcome.PARTIAL, "subtract each row's maximum")},
    ),
    Submission(
        "vera",
        "one RoPE part for all heads, one mean for all rows, pairs overwritten as they turn, lse too early, a row late",
        patches=(
            replace(
                "predict_latent_cache",
                "num_heads * (qk_nope_head_dim + qk_rope_head_dim + v_head_dim) * itemsize",
                "(num_heads * (qk_nope_head_dim + v_head_dim) + qk_rope_head_dim) * itemsize",
            ),
            replace("rms_normalize", ".mean(-1, keepdim=True)", ".mean()"),
            replace(
                "rotate_pairs",
                TURN,
                "    y = x.clone()\n"
                "    y[..., 0::2] = y[..., 0::2] * cos - y[..., 1::2] * sin\n"
                "    y[..., 1::2] = y[..., 0::2] * sin + y[..., 1::2] * cos\n"
                "    return y",
            ),
            replace(
                "naive_mla_attention", "    return out, lse", f"    return out, torch.logsumexp(scores * {SCALE}, -1)"
            ),
            replace(
                "mla_decode_step", "now = slice(position, position + 1)", "now = slice(position + 1, position + 2)"
            ),
            replace("mla_decode_step", "(cos[now], sin[now])", "(cos[[position]], sin[[position]])"),
        ),
        expect={
            "predict_latent_cache": Expected(0, says="each of the H heads holds a copy"),
            "rms_normalize": Expected(0, says="every row has a mean of its own"),
            "rotate_pairs": Expected(0, says="the first one's new value"),
            "naive_mla_attention": Expected(0, says="before they are scaled"),
            "mla_decode_step": Expected(0, says="written to row position + 1"),
        },
    ),
    Submission(
        "wim",
        "calls PyTorch's RMSNorm, hides a query's own token, writes the latent and forgets the key",
        patches=(
            rewrite(
                "rms_normalize",
                """
def rms_normalize(x, weight, eps=1e-6):
    return torch.nn.functional.rms_norm(x, x.shape[-1:], weight, eps)
""",
            ),
            replace("naive_mla_attention", "torch.arange(T) > ", "torch.arange(T) >= "),
            replace("mla_decode_step", "    k_cache[:, now] = k_new\n", ""),
        ),
        expect={
            "rms_normalize": Expected(0, says="may not call rms_norm"),
            "naive_mla_attention": Expected(0, says="hides a query's own token"),
            "mla_decode_step": Expected(0, says="without the new token's key"),
        },
    ),
    Submission(
        "xaver",
        "counts the latent twice, a finite number for −inf",
        patches=(
            replace("predict_latent_cache", "(kv_lora_rank + qk", "(2 * kv_lora_rank + qk"),
            replace("naive_mla_attention", "-math.inf", "-1e9"),
        ),
        expect={
            "predict_latent_cache": Expected(0, says="latent_bytes is 2R + Dr"),
            "naive_mla_attention": Expected(4, Outcome.PARTIAL, "set to a finite number"),
        },
    ),
    *(
        slip(
            student,
            "the parts of queries and keys in another order",
            "naive_mla_attention",
            {
                ROPE_SCORES: "    q, shared = (q_nope, q_rope), k_rope[:, :, None].expand(*k_nope.shape[:3], -1)\n"
                f"    q, k = torch.cat(q{query}, -1), torch.cat((k_nope, shared){key}, -1)\n"
                '    scores = torch.einsum("bshd,bthd->bsht", q, k)\n'
            },
            "in one order in both",
        )
        for student, query, key in (("yara", "[::-1]", ""), ("yuri", "", "[::-1]"))
    ),
    *(
        slip(f"{exercise[0]}{n}", about, exercise, changes, words)
        for n, (exercise, about, changes, words) in enumerate(
            (
                ("rms_normalize", "sqrt for rsqrt", {"torch.rsqrt": "torch.sqrt"}, "rsqrt is 1 / sqrt"),
                (
                    "rotate_pairs",
                    "exchanges cos and sin",
                    {"cos, sin = cos": "sin, cos = cos"},
                    "cos and sin are exchanged",
                ),
                (
                    "rotate_pairs",
                    "takes halves for pairs",
                    {"x[..., 0::2], x[..., 1::2]": "x.chunk(2, dim=-1)"},
                    "and stored beside it",
                ),
                ("rotate_pairs", "a plus for a minus", {"cos - b": "cos + b"}, "the first of each pair is"),
                ("rotate_pairs", "a minus for a plus", {"sin + b": "sin - b"}, "the second of each pair is"),
                ("rotate_pairs", "a minus for a", {"a * sin + b * cos": "b * cos - a * sin"}, "is b·cos − a·sin"),
                ("rotate_pairs", "b and a", {"    a, b =": "    b, a ="}, "a and b are exchanged"),
                ("rms_normalize", "Gemma's weight", {"y * weight": "y * (1 + weight)"}, "multiplied by 1 + weight"),
                (
                    "rotate_pairs",
                    "rotates halves by repeated angles",
                    {
                        "cos, sin = cos[:, None]": "cos, sin = (t.repeat_interleave(2, -1) for t in (cos, sin))\n"
                        "    first, second = x.chunk(2, -1)\n    cos, sin = cos[:, None]",
                        TURN: "    return x * cos + torch.cat((-second, first), -1) * sin",
                    },
                    "not with (−second half, first half)",
                ),
                (
                    "mla_decode_step",
                    "the row before",
                    {"(cos[now], sin[now])": "(cos[[position - 1]], sin[[position - 1]])"},
                    "rotated for position - 1",
                ),
                (
                    "mla_decode_step",
                    "the last row",
                    {"(cos[now], sin[now])": "(cos[-1:], sin[-1:])"},
                    "rotated for the last row",
                ),
                (
                    "mla_decode_step",
                    "writes a row early",
                    {"c_cache[:, now]": "c_cache[:, [position - 1]]", "k_cache[:, now]": "k_cache[:, [position - 1]]"},
                    "written to row position - 1",
                ),
                (
                    "mla_decode_step",
                    "does not write the latent",
                    {"    c_cache[:, now] = c_new\n": ""},
                    "without the new token's latent",
                ),
                ("mla_decode_step", "joins wrongly", {"out.flatten(2)": "out.mT.flatten(2)"}, "joined as [Dv, H]"),
            )
        )
    ),
    slip(
        "rita",
        "the mean of the squares in float16",
        "rms_normalize",
        {"y.square().mean(-1, keepdim=True)": "y.square().mean(-1, keepdim=True).to(x.dtype)"},
        "the mean of the squares overflows",
        2,
    ),
    slip(
        "otto",
        "the latent of sequence 0 for all",
        "mla_decode_step",
        {"c_cache[:, now] = c_new": "c_cache[:, now] = c_new[:1]"},
        "get the row of sequence 0",
    ),
    slip(
        "paula",
        "the key of sequence 0 for all",
        "mla_decode_step",
        {"k_cache[:, now] = k_new": "k_cache[:, now] = k_new[:1]"},
        "get the row of sequence 0",
    ),
    slip(
        "quinn",
        "writes to sequence 0 alone",
        "mla_decode_step",
        {"c_cache[:, now] = c_new": "c_cache[0, now] = c_new[0]"},
        "only sequence 0 is written",
    ),
    slip(
        "zoe",
        "scales the RoPE term alone",
        "naive_mla_attention",
        {f"q_rope, k_rope)\n    scores = scores / {SCALE}": f"q_rope, k_rope) / {SCALE}"},
        "and q_nope·k_nope is not",
    ),
    slip(
        "zita",
        "normalises the key, too",
        "latent_kv",
        {"    return rms": "    k_rope = rms_normalize(k_rope, torch.ones(k_rope.shape[-1]))\n    return rms"},
        "the RMSNorm belongs to the latent alone",
    ),
    slip(
        "zora",
        "scales the other term alone",
        "naive_mla_attention",
        {f"    scores = scores / {SCALE}\n": "", "q_nope, k_nope)": f"q_nope, k_nope) / {SCALE}"},
        "and q_rope·k_rope is not",
    ),
    slip(
        "abe",
        "a log-sum-exp of all tokens",
        "naive_mla_attention",
        LSE_EARLY,
        "take it after the mask",
        2,
    ),
    slip(
        "bea",
        "a mask the wrong way round",
        "naive_mla_attention",
        {"(T) > ": "(T) <= "},
        "mask is inverted",
    ),
    slip(
        "cem",
        "sees the next token",
        "naive_mla_attention",
        {"(T - S)": "(T - S + 1)"},
        "one place too far right",
        2,
    ),
    slip(
        "dana",
        "a softmax over the heads",
        "naive_mla_attention",
        {"softmax(scores, dim=-1)": "softmax(scores, dim=2)"},
        "runs over the heads",
    ),
    slip(
        "egon",
        "a softmax over the queries",
        "naive_mla_attention",
        {"softmax(scores, dim=-1)": "softmax(scores, dim=1)"},
        "runs over the queries",
    ),
    slip(
        "finn",
        "the variance for the mean of the squares",
        "rms_normalize",
        {"y.square().mean(-1, keepdim=True)": "y.var(-1, keepdim=True)"},
        "divide by one less than the width",
    ),
    slip(
        "hans",
        "the variance of the whole row for the mean of the squares",
        "rms_normalize",
        {"y.square().mean(-1, keepdim=True)": "y.var(-1, keepdim=True, unbiased=False)"},
        "the variance subtracts the row's mean before it squares",
    ),
    slip(
        "ines",
        "rows of mean 0 and variance 1",
        "rms_normalize",
        {RMS: "    y = (y - y.mean(-1, keepdim=True)) / (y.std(-1, keepdim=True) + eps)\n"},
        "the rows are standardised",
    ),
    slip(
        "gerd",
        "a variance and the mean's square",
        "rms_normalize",
        {"y.square().mean(-1, keepdim=True)": "(y.var(-1, keepdim=True) + y.mean(-1, keepdim=True) ** 2)"},
        "the mean's square is added to a sample variance",
    ),
    slip(
        "greta",
        "eps for the least mean square",
        "rms_normalize",
        {"keepdim=True) + eps)": "keepdim=True).clamp(min=eps))"},
        "expected a term of the sum",
        2,
    ),
    slip(
        "hugo",
        "a scale for each of the terms",
        "naive_mla_attention",
        {
            "q_nope, k_nope)": "q_nope, k_nope) / math.sqrt(q_nope.shape[-1])",
            f"q_rope, k_rope)\n    scores = scores / {SCALE}": "q_rope, k_rope) / math.sqrt(q_rope.shape[-1])",
        },
        "the two terms are scaled apart",
    ),
    slip(
        "wanda",
        "one row of angles for all positions",
        "rotate_pairs",
        {"cos[:, None], sin[:, None]": "cos[:1, None], sin[:1, None]"},
        "every token turns by the angle of token 0",
        1,
    ),
    slip(
        "willy",
        "the axis of heads before the positions",
        "latent_kv",
        {"k_rope[:, :, None], cos, sin)[:, :, 0]": "k_rope[:, None], cos, sin)[:, 0]"},
        "the key's axis of one head goes behind S",
        1,
    ),
    slip(
        "wilma",
        "two roots",
        "naive_mla_attention",
        {SCALE: "(math.sqrt(q_nope.shape[-1]) + math.sqrt(q_rope.shape[-1]))"},
        "scaled by 1/(√Dn + √Dr), expected 1/√(Dn+Dr)",
    ),
    *(
        slip(f"vera{n}", about, "naive_mla_attention", changes, words, score)
        for n, (about, changes, words, score) in enumerate(
            (
                ("exponentials that are not divided", {WEIGHTS: "scores.exp()"}, "divide it by the sum", 0),
                ("the largest score for lse", {"logsumexp(scores": "amax(scores"}, "add the logarithm", 0),
                ("a logarithm alone", {LSE: LSE[:-1] + " - scores.amax(-1)\n"}, "add the maximum back", 0),
                ("no logarithm", {LSE: LSE[:-1] + ".exp()\n"}, "its natural logarithm is missing", 0),
                ("lse of the weights", {LSE: f"    lse = {WEIGHTS}.sum(-1).log()\n"}, "taken of the weights", 0),
                (
                    "the mask after the softmax",
                    {
                        "    scores = scores.masked_fill(future[:, None, :], -math.inf)\n": "",
                        WEIGHTS: f"{WEIGHTS}.masked_fill(future[:, None, :], 0.0)",
                    },
                    "the mask comes after the softmax",
                    2,
                ),
                ("zeros for what is hidden", {"-math.inf": "0.0"}, "a weight like any other", 2),
                ("no root", {SCALE: SCALE.removeprefix("math.sqrt")}, "the root is missing", 0),
            )
        )
    ),
    slip(
        "ida",
        "row 0 for the key",
        "mla_decode_step",
        {'w["kv_norm"], *angle': 'w["kv_norm"], cos[:1], sin[:1]'},
        "new token's key is rotated for position 0",
    ),
    slip(
        "jana",
        "row 0 for the query",
        "mla_decode_step",
        {'w["w_uq"], *angle': 'w["w_uq"], cos[:1], sin[:1]'},
        "new token's query is rotated for position 0",
    ),
    slip(
        "kurt",
        "a mean over the first axis",
        "rms_normalize",
        {"mean(-1,": "mean(0,"},
        "the mean runs over axis 0",
    ),
    slip(
        "lars",
        "a mean over axis 1",
        "rms_normalize",
        {"mean(-1,": "mean(1,"},
        "the mean runs over axis 1",
        1,
    ),
    slip(
        "malte",
        "another default",
        "rms_normalize",
        {"eps=1e-6": "eps=1e-5"},
        "without eps in the call it is 1e-05, expected 1e-06",
        2,
    ),
    *(
        slip(student, about, exercise, changes, words, score)
        for student, about, exercise, changes, words, score in (
            (
                "nora",
                "keys alone",
                "predict_latent_cache",
                {" + v_head_dim": ""},
                "expanded_bytes leaves out the values",
                0,
            ),
            ("olaf", "eps squared", "rms_normalize", {"+ eps)": "+ eps**2)"}, "eps changes next to nothing", 2),
            (
                "ove",
                "eps as the least root",
                "rms_normalize",
                {RMS: "    y = y / y.square().mean(-1, keepdim=True).sqrt().clamp(min=eps)\n"},
                "eps changes next to nothing",
                2,
            ),
            (
                "pia",
                "the scale of DeepSeek-V3",
                "naive_mla_attention",
                {SCALE: "math.sqrt(192)"},
                "scaled by 1/√192 in every call",
                0,
            ),
            (
                "quin",
                "a latent that is rotated",
                "latent_kv",
                {
                    LATENT: "    c_kv, Dr = rms_normalize(c_kv, norm_weight), k_rope.shape[-1]\n"
                    "    k_rope = rotate_pairs(k_rope[:, :, None], cos, sin)[:, :, 0]\n"
                    "    if Dr <= R:\n"
                    "        turned = rotate_pairs(c_kv[:, :, None, :Dr], cos, sin)[:, :, 0]\n"
                    "        c_kv = torch.cat((turned, c_kv[..., Dr:]), dim=-1)\n"
                    "    return c_kv, k_rope"
                },
                "the first columns of c_kv are rotated, too",
                0,
            ),
            (
                "rena",
                "a norm over the key, too",
                "latent_kv",
                {
                    "rms_normalize(c_kv, norm_weight)": "rms_normalize("
                    "projected, torch.cat((norm_weight, torch.ones(k_rope.shape[-1]))))[..., :R]"
                },
                "with the key's columns in its mean square",
                0,
            ),
            (
                "sami",
                "attends, then writes",
                "mla_decode_step",
                {
                    WRITE + FILLED: "    c_kv, k_rope = c_cache[:, : position + 1].clone(), "
                    "k_cache[:, : position + 1].clone()\n" + WRITE
                },
                "attends before its own row is written",
                0,
            ),
            (
                "timo",
                "attends to the new token",
                "mla_decode_step",
                {FILLED: "    c_kv, k_rope = c_new, k_new\n"},
                "attends to itself alone",
                0,
            ),
        )
    ),
    slip(
        "nele",
        "cos and sin exchanged",
        "mla_decode_step",
        {"(cos[now], sin[now])": "(sin[now], cos[now])"},
        "the new token is rotated with cos for sin",
    ),
)
DEMO = ("ada", "eli")
