"""The sample class of lesson 03."""

from autograder.course.sample import Expected, Submission, add_cell, replace, rewrite, slip, unfinished
from autograder.judging.verdict import Outcome

ABSORB = '"absorb_macs": H * (R + Dr + R)'
NAIVE = '"naive_macs": H * (Dn + Dr + Dv)'
NAIVE_WORDS = '"naive_words": H * (Dn + Dr + Dv)'
SCALED = "(scores * scale)"
SCALE = "1 / math.sqrt(q_nope.shape[-1] + q_rope.shape[-1])"
RETURN = 'return torch.einsum("bsht,btr->bshr", weights, c_kv), lse'

LSE = "    lse = torch.logsumexp(scores, dim=-1)\n"
WEIGHTS = "torch.softmax(scores, dim=-1)"
LSE_EARLY = {
    "    scores = (": LSE.replace("scores", "scores * scale") + "    scores = (",
    "-math.inf)\n" + LSE: "-math.inf)\n",
}

SUBMISSIONS = (
    Submission("ada", "the solution as it stands"),
    Submission(
        "ben",
        "another style: matmul over concatenated keys, loops over heads, stages in a table",
        patches=(
            rewrite(
                "predict_macs",
                """
def predict_macs(H, Dn, Dr, Dv, R):
    def attend(key, value):
        return H * key + H * value

    return dict(
        naive_macs=attend(Dn + Dr, Dv),
        absorb_macs=attend(R + Dr, R),
        naive_words=float(H * (Dn + Dr) + H * Dv),
        absorb_words=R + Dr,
    )
""",
            ),
            rewrite(
                "absorb_query",
                """
def absorb_query(q_nope, w_uk):
    return (q_nope.transpose(1, 2) @ w_uk).transpose(1, 2)
""",
            ),
            rewrite(
                "latent_attention",
                """
def latent_attention(q_latent, q_rope, c_kv, k_rope, scale):
    B, S, H, R = q_latent.shape
    T = c_kv.shape[1]
    q = torch.cat([q_latent, q_rope], dim=-1).reshape(B, S * H, -1)
    key = torch.cat([c_kv, k_rope], dim=-1)
    scores = (scale * (q @ key.mT)).view(B, S, H, T)
    mask = torch.full((S, T), -torch.inf).triu(T - S + 1)
    scores = scores + mask.unsqueeze(1)
    peak = scores.max(dim=-1, keepdim=True).values
    weights = (scores - peak).exp()
    total = weights.sum(-1, keepdim=True)
    out = (weights / total).view(B, S * H, T) @ key[..., :R]
    return out.view(B, S, H, R), (peak + total.log())[..., 0]
""",
            ),
            rewrite(
                "absorb_output",
                """
def absorb_output(out_latent, w_uv):
    heads = [out_latent[:, :, h] @ w_uv[h].T for h in range(len(w_uv))]
    return torch.stack(heads, dim=2)
""",
            ),
            rewrite(
                "absorbed_mla_attention",
                """
def absorbed_mla_attention(q_nope, q_rope, c_kv, k_rope, w_uk, w_uv):
    Dn, Dr = q_nope.size(-1), q_rope.size(-1)
    latent, lse = latent_attention(absorb_query(q_nope, w_uk), q_rope, c_kv, k_rope, (Dn + Dr) ** -0.5)
    out = absorb_output(latent, w_uv)
    return out, lse
""",
            ),
            rewrite(
                "absorb_costs",
                """
def absorb_costs(B, S, T, H, Dn, Dr, Dv, R, itemsize):
    w_uk, w_uv = H * Dn * R, H * Dv * R
    q, k, v, out = B * S * H * (Dn + Dr), B * T * H * (Dn + Dr), B * T * H * Dv, B * S * H * Dv
    c_kv, k_rope = B * T * R, B * T * Dr
    q_nope, q_rope, latent = B * S * H * Dn, B * S * H * Dr, B * S * H * R
    stages = {
        "naive": [(c_kv + k_rope + w_uk + w_uv + k + v, B * T * (w_uk + w_uv)), (q + k + v + out, T * (q + out))],
        "absorb": [
            (q_nope + w_uk + latent, B * S * w_uk),
            (latent + q_rope + c_kv + k_rope + latent, T * (2 * latent + q_rope)),
            (latent + w_uv + out, B * S * w_uv),
        ],
    }
    costs = {}
    for form, parts in stages.items():
        costs[form + "_flops"] = sum(2 * macs for _, macs in parts)
        costs[form + "_bytes"] = sum(itemsize * words for words, _ in parts)
    return costs
""",
            ),
            rewrite(
                "break_even_queries",
                """
def break_even_queries(T, Dn, Dr, Dv, R):
    project = R * (Dn + Dv)
    return T * project / (project + T * ((2 * R + Dr) - (Dn + Dr + Dv)))
""",
            ),
        ),
    ),
    Submission(
        "chloe",
        "helpers in cells of her own",
        patches=(
            add_cell(
                "latent_attention",
                """
from torch import einsum

def hidden(S, T):
    return torch.ones(S, T, dtype=torch.bool).triu(T - S + 1)
""",
            ),
            replace("latent_attention", "torch.einsum(", "einsum("),
            replace("latent_attention", "torch.arange(T) > torch.arange(S)[:, None] + (T - S)", "hidden(S, T)"),
            add_cell("absorb_costs", "def pairs(B, S, T, H):\n    return B * S * T * H"),
            replace("absorb_costs", "B * S * T * H *", "pairs(B, S, T, H) *"),
        ),
    ),
    Submission(
        "dev",
        "warns and prints",
        patches=(
            replace(
                "latent_attention",
                "    S, T =",
                '    import warnings\n    warnings.warn("careful")\n    print(q_latent.shape)\n    S, T =',
            ),
            replace("absorb_costs", "    cache =", '    print("weights:", weights)\n    cache ='),
        ),
    ),
    Submission(
        "eli",
        "FLOPs and MACs mixed up, a weight by position, the absorbed width in the scale",
        patches=(
            replace("predict_macs", NAIVE, '"naive_macs": 2 * H * (Dn + Dr + Dv)'),
            replace("predict_macs", ABSORB, '"absorb_macs": 2 * H * (R + Dr + R)'),
            replace("absorb_query", 'torch.einsum("bshd,hdr->bshr", q_nope, w_uk)', "q_nope @ w_uk"),
            replace("latent_attention", SCALED, "(scores / math.sqrt(q_latent.shape[-1] + q_rope.shape[-1]))"),
            replace("absorb_output", "bshr,hvr->bshv", "bshr,hrv->bshv"),
            replace("absorbed_mla_attention", SCALE, "1 / math.sqrt(c_kv.shape[-1] + k_rope.shape[-1])"),
            replace("absorb_costs", "2 * naive_macs", "naive_macs"),
            replace("absorb_costs", "2 * absorb_macs", "absorb_macs"),
            replace("break_even_queries", "1 / T + ", ""),
        ),
        expect={
            "predict_macs": Expected(0, says="these are FLOPs"),
            "absorb_query": Expected(0, says="picked by the query's position"),
            "latent_attention": Expected(0, says="1/√(R+Dr), the width of the absorbed key"),
            "absorb_output": Expected(0, says="the wrong axis of w_uv"),
            "absorbed_mla_attention": Expected(0, says="1/√576"),
            "absorb_costs": Expected(0, says="these are MACs"),
            "break_even_queries": Expected(0, says="endless context"),
        },
    ),
    Submission(
        "fay",
        "no RoPE part in the count, no scale, words for bytes",
        patches=(
            replace("predict_macs", NAIVE, '"naive_macs": H * (Dn + Dv)'),
            replace("predict_macs", ABSORB, '"absorb_macs": H * (R + R)'),
            replace("predict_macs", NAIVE_WORDS, '"naive_words": H * (Dn + Dv)'),
            replace("predict_macs", '"absorb_words": R + Dr', '"absorb_words": R'),
            replace("absorb_query", "bshd,hdr->bshr", "bshd,hrd->bshr"),
            replace("latent_attention", SCALED, "scores"),
            replace("absorb_output", 'torch.einsum("bshr,hvr->bshv", out_latent, w_uv)', "out_latent @ w_uv.mT"),
            replace("absorbed_mla_attention", SCALE, "1 / math.sqrt(q_nope.shape[-1])"),
            replace("absorb_costs", "itemsize * ", ""),
            replace("break_even_queries", "R * (Dn + Dv)", "R * Dn"),
        ),
        expect={
            "predict_macs": Expected(0, says="the RoPE part is missing"),
            "absorb_query": Expected(0, says="the wrong axis of w_uk"),
            "latent_attention": Expected(0, says="not multiplied by `scale`"),
            "absorb_output": Expected(0, says="picked by the query's position"),
            "absorbed_mla_attention": Expected(0, says="the softmax scale is 1/√Dn"),
            "absorb_costs": Expected(0, says="counted in words"),
            "break_even_queries": Expected(0, says="only W_UK is counted"),
        },
    ),
    Submission(
        "gus",
        "a latent for every head, one weight for all heads, keys without positions",
        patches=(
            replace("predict_macs", '"absorb_words": R + Dr', '"absorb_words": H * (R + Dr)'),
            replace("absorb_query", 'torch.einsum("bshd,hdr->bshr", q_nope, w_uk)', "q_nope @ w_uk[0]"),
            replace("latent_attention", '    scores = scores + torch.einsum("bshe,bte->bsht", q_rope, k_rope)\n', ""),
            replace("absorb_output", "->bshv", "->bsv"),
            replace("absorbed_mla_attention", "absorb_output(out_latent, w_uv)", "absorb_output(out_latent, w_uk)"),
            replace("absorb_costs", "naive_macs = B * T * weights + ", "naive_macs = "),
            replace("absorb_costs", "naive_words = cache + weights + 2 * expanded", "naive_words = expanded"),
            replace("break_even_queries", "2 * R - Dn - Dv", "2 * R + Dr - Dn - Dv"),
        ),
        expect={
            "predict_macs": Expected(0, says="once per head"),
            "absorb_query": Expected(0, says="the weight of head 0"),
            "latent_attention": Expected(0, says="lack q_rope·k_rope"),
            "absorb_output": Expected(0, says="the heads are added up"),
            "absorbed_mla_attention": Expected(0, says="multiplied by w_uk"),
            "absorb_costs": Expected(0, says="lacks the stage expand"),
            "break_even_queries": Expected(0, says="Dr cancels"),
        },
    ),
    Submission(
        "lena",
        "key and value cached apart, half a scale, no way back from the latent",
        patches=(
            replace("predict_macs", '"absorb_words": R + Dr', '"absorb_words": 2 * R + Dr'),
            replace("absorb_query", "->bshr", "->bsr"),
            replace("latent_attention", "q_latent, c_kv)\n    scores = scores + ", "q_latent, c_kv) * scale + "),
            replace("latent_attention", SCALED, "scores"),
            replace("absorbed_mla_attention", "absorb_output(out_latent, w_uv)", "out_latent"),
            replace("absorb_costs", "absorb_macs = B * S * weights + ", "absorb_macs = "),
            replace("absorb_costs", "absorb_words = weights + cache", "absorb_words = cache"),
            replace("absorb_costs", "((Dn + R) + (R + Dr + R) + (R + Dv))", "(R + Dr + R)"),
        ),
        expect={
            "predict_macs": Expected(0, says="counted twice, as key and as value"),
            "absorb_query": Expected(0, says="the heads are added up"),
            "latent_attention": Expected(0, says="only the latent term"),
            "absorbed_mla_attention": Expected(0, says="still latent"),
            "absorb_costs": Expected(0, says="lacks two stages, absorb query and expand output"),
        },
    ),
    Submission(
        "mona",
        "the value is the whole key; expands every key and value in the end",
        patches=(
            replace("predict_macs", NAIVE, '"naive_macs": H * (Dn + Dr)'),
            replace("predict_macs", ABSORB, '"absorb_macs": H * (R + Dr)'),
            replace("latent_attention", RETURN, RETURN.replace("c_kv)", "torch.cat((c_kv, k_rope), -1))")),
            rewrite(
                "absorbed_mla_attention",
                """
def absorbed_mla_attention(q_nope, q_rope, c_kv, k_rope, w_uk, w_uv):
    k_nope = torch.einsum("btr,hdr->bthd", c_kv, w_uk)
    v = torch.einsum("btr,hvr->bthv", c_kv, w_uv)
    scores = torch.einsum("bshd,bthd->bsht", q_nope, k_nope) + torch.einsum("bshe,bte->bsht", q_rope, k_rope)
    S, T = q_nope.shape[1], c_kv.shape[1]
    future = torch.arange(T) > torch.arange(S)[:, None] + (T - S)
    scores = scores / math.sqrt(q_nope.shape[-1] + q_rope.shape[-1])
    scores = scores.masked_fill(future[:, None, :], -math.inf)
    return torch.einsum("bsht,bthv->bshv", scores.softmax(-1), v), scores.logsumexp(-1)
""",
            ),
            replace("absorb_costs", "naive_words = cache + weights", "naive_words = cache"),
            replace("absorb_costs", "absorb_words = weights + cache", "absorb_words = cache"),
        ),
        expect={
            "predict_macs": Expected(0, says="only the scores are counted"),
            "latent_attention": Expected(0, says="R+Dr wide"),
            "absorbed_mla_attention": Expected(0, says="the products of torch's operations take"),
            "absorb_costs": Expected(0, says="w_uk and w_uv are missing"),
        },
    ),
    Submission(
        "nora",
        "a value with position, no mask, expanded keys moved once",
        patches=(
            replace("predict_macs", ABSORB, '"absorb_macs": H * 2 * (R + Dr)'),
            replace("latent_attention", f"{SCALED}.masked_fill(future[:, None, :], -math.inf)", "scores * scale"),
            replace("absorb_costs", "2 * expanded", "expanded"),
        ),
        expect={
            "predict_macs": Expected(0, says="counted as R+Dr wide"),
            "latent_attention": Expected(2, Outcome.PARTIAL, "no causal mask"),
            "absorb_costs": Expected(0, says="counted once"),
        },
    ),
    Submission(
        "omar",
        "one head's arithmetic, the mask in the wrong corner",
        patches=(
            replace("predict_macs", ABSORB, '"absorb_macs": R + Dr + R'),
            replace("latent_attention", " + (T - S)", ""),
        ),
        expect={
            "predict_macs": Expected(0, says="counted for one head"),
            "latent_attention": Expected(0, says="top-left"),
        },
    ),
    Submission(
        "pia",
        "the RoPE part cached once, lse to base 2, the scale upside down",
        patches=(
            replace("predict_macs", NAIVE_WORDS, '"naive_words": H * (Dn + Dv) + Dr'),
            replace("latent_attention", RETURN, RETURN.replace(", lse", ", lse / math.log(2)")),
            replace("absorbed_mla_attention", "1 / math.sqrt", "math.sqrt"),
        ),
        expect={
            "predict_macs": Expected(0, says="counts the RoPE part once"),
            "latent_attention": Expected(0, says="base 2"),
            "absorbed_mla_attention": Expected(0, says="multiplies by it"),
        },
    ),
    Submission(
        "quin",
        "one head for all, heads before positions, exponentials without the maximum",
        patches=(
            replace("predict_macs", NAIVE, NAIVE.replace("H * ", "")),
            replace("predict_macs", ABSORB, ABSORB.replace("H * ", "")),
            replace("predict_macs", NAIVE_WORDS, NAIVE_WORDS.replace("H * ", "")),
            replace("absorb_query", 'torch.einsum("bshd,hdr->bshr", q_nope, w_uk)', "q_nope.transpose(1, 2) @ w_uk"),
            replace("latent_attention", "lse = torch.logsumexp(scores, dim=-1)", "total = scores.exp().sum(-1)"),
            replace("latent_attention", "torch.softmax(scores, dim=-1)", "scores.exp() / total[..., None]"),
            replace("latent_attention", RETURN, RETURN.replace(", lse", ", total.log()")),
        ),
        expect={
            "predict_macs": Expected(0, says="one head is counted"),
            "absorb_query": Expected(0, says="transpose heads and positions back"),
            "latent_attention": Expected(4, Outcome.PARTIAL, "exp overflows"),
        },
    ),
    Submission(
        "rosa",
        "calls PyTorch's own attention",
        patches=(
            rewrite(
                "latent_attention",
                """
def latent_attention(q_latent, q_rope, c_kv, k_rope, scale):
    q = torch.cat((q_latent, q_rope), -1).transpose(1, 2)
    key = torch.cat((c_kv, k_rope), -1)[:, None].expand(-1, q.shape[1], -1, -1)
    value = c_kv[:, None].expand(-1, q.shape[1], -1, -1)
    S, T = q.shape[2], key.shape[2]
    seen = torch.ones(S, T, dtype=torch.bool).tril(T - S)
    out = torch.nn.functional.scaled_dot_product_attention(q, key, value, attn_mask=seen, scale=scale)
    scores = (q @ key.mT * scale).masked_fill(~seen, -math.inf)
    return out.transpose(1, 2), scores.logsumexp(-1).transpose(1, 2)
""",
            ),
        ),
        expect={"latent_attention": Expected(0, says="may not call")},
    ),
    Submission(
        "sven",
        "a value of width Dv, a division by the scale, weights read for each sequence, 1/S for S",
        patches=(
            replace("predict_macs", ABSORB, '"absorb_macs": H * (R + Dr + Dv)'),
            replace("latent_attention", SCALED, "(scores / scale)"),
            replace("absorb_costs", "cache + weights", "cache + B * weights"),
            replace("absorb_costs", "weights + cache", "B * weights + cache"),
            replace("break_even_queries", "1 / (1 / T + ", "(1 / T + "),
        ),
        expect={
            "predict_macs": Expected(0, says="counted as Dv wide"),
            "latent_attention": Expected(0, says="divided by `scale`"),
            "absorb_costs": Expected(0, says="counted for each sequence"),
            "break_even_queries": Expected(0, says="this is 1/S"),
        },
    ),
    Submission(
        "tara",
        "bytes for words, the own token hidden, latents of the queries moved once, a sign",
        patches=(
            replace("predict_macs", NAIVE_WORDS, '"naive_words": 2 * H * (Dn + Dr + Dv)'),
            replace("predict_macs", '"absorb_words": R + Dr', '"absorb_words": 2 * (R + Dr)'),
            replace("latent_attention", "torch.arange(T) > ", "torch.arange(T) >= "),
            replace("absorb_costs", "((Dn + R) + (R + Dr + R) + (R + Dv))", "(Dn + R + Dr + R + Dv)"),
            replace("break_even_queries", "(1 / T + ", "(-1 / T + "),
        ),
        expect={
            "predict_macs": Expected(0, says="these are bytes"),
            "latent_attention": Expected(0, says="hides a query's own token"),
            "absorb_costs": Expected(0, says="q_latent and out_latent once"),
            "break_even_queries": Expected(0, says="the wrong sign"),
        },
    ),
    Submission(
        "uma",
        "lse of the scores as they were, queries and outputs not moved",
        patches=(
            replace("latent_attention", RETURN, RETURN.replace(", lse", ", torch.logsumexp(scores / scale, dim=-1)")),
            replace("absorb_costs", " + B * S * H * (Dn + Dr + Dv)\n    absorb_macs", "\n    absorb_macs"),
        ),
        expect={
            "latent_attention": Expected(0, says="before they are scaled"),
            "absorb_costs": Expected(0, says="lacks the queries"),
        },
    ),
    Submission(
        "vera",
        "a RoPE part for all heads, expands the new tokens only",
        patches=(
            replace("predict_macs", NAIVE, '"naive_macs": H * (Dn + Dv) + Dr'),
            replace("predict_macs", NAIVE_WORDS, '"naive_words": H * (Dn + Dv) + Dr'),
            replace("absorb_costs", "naive_macs = B * T * weights", "naive_macs = B * S * weights"),
        ),
        expect={
            "predict_macs": Expected(0, says="counted once for all heads"),
            "absorb_costs": Expected(0, says="expands the S new tokens only"),
        },
    ),
    Submission(
        "wieb",
        "projects the whole context, a stable softmax beside a log-sum-exp by hand",
        patches=(
            replace("latent_attention", "lse = torch.logsumexp(scores, dim=-1)", "lse = scores.exp().sum(-1).log()"),
            replace("absorb_costs", "absorb_macs = B * S * weights", "absorb_macs = B * T * weights"),
        ),
        expect={
            "latent_attention": Expected(4, Outcome.PARTIAL, "lse overflows"),
            "absorb_costs": Expected(0, says="projects all T tokens"),
        },
    ),
    Submission(
        "hana",
        "stops half way",
        patches=(
            unfinished("absorb_output"),
            unfinished("absorbed_mla_attention"),
            unfinished("absorb_costs"),
            unfinished("break_even_queries"),
        ),
        expect={
            "absorb_output": Expected(0, Outcome.UNFINISHED),
            "absorbed_mla_attention": Expected(0, Outcome.UNFINISHED),
            "absorb_costs": Expected(0, Outcome.UNFINISHED),
            "break_even_queries": Expected(0, Outcome.UNFINISHED),
        },
    ),
    Submission(
        "ivan",
        "a syntax error in one cell; what builds on it is judged with the right one",
        patches=(replace("absorb_query", "def absorb_query(q_nope, w_uk):", "def absorb_query(q_nope, w_uk)"),),
        expect={"absorb_query": Expected(0, Outcome.ERROR, "SyntaxError in line 1")},
    ),
    *(
        slip(
            student,
            "the parts of queries and keys in another order",
            "latent_attention",
            {
                '    scores = torch.einsum("bshr,btr->bsht", q_latent, c_kv)\n'
                '    scores = scores + torch.einsum("bshe,bte->bsht", q_rope, k_rope)\n': (
                    f"    q, k = torch.cat((q_latent, q_rope){query}, -1), torch.cat((c_kv, k_rope){key}, -1)\n"
                    '    scores = torch.einsum("bshe,bte->bsht", q, k)\n'
                )
            },
            "in one order in both",
        )
        for student, query, key in (("yara", "[::-1]", ""), ("yuri", "", "[::-1]"))
    ),
    slip(
        "zoe",
        "scales q_rope · k_rope alone",
        "latent_attention",
        {"q_rope, k_rope)": "q_rope, k_rope) * scale", SCALED: "scores"},
        "only q_rope·k_rope is multiplied",
    ),
    slip(
        "yves",
        "k_rope once in the expanded keys",
        "absorb_costs",
        {"cache + weights + 2 * expanded": "cache + weights + 2 * B * T * (H * (Dn + Dv) + Dr)"},
        "each of the H heads holds a copy",
    ),
    *(
        slip(f"yola{n}", about, "absorb_costs", changes, words)
        for n, (about, changes, words) in enumerate(
            (
                ("expands one token", {"naive_macs = B * T *": "naive_macs ="}, "the stage expand for one token"),
                ("expands one sequence", {"naive_macs = B * T *": "naive_macs = T *"}, "expand for one sequence"),
                ("one sequence", {"    weights = H": "    B = 1\n    weights = H"}, "count all B sequences"),
            )
        )
    ),
    slip(
        "zack",
        "c_kv as key and as value",
        "absorb_costs",
        {"absorb_words = weights + cache": "absorb_words = weights + cache + B * T * R"},
        "read once for both",
    ),
    slip(
        "zita",
        "no RoPE part in absorb's query",
        "absorb_costs",
        {"(R + Dr + R)": "(R + R)"},
        "absorb_bytes lacks q_rope",
    ),
    slip(
        "zora",
        "returns heads first",
        "absorb_output",
        {"bshv": "bhsv"},
        "the result is [B, H, S, Dv]",
    ),
    slip(
        "abe",
        "a log-sum-exp of all tokens",
        "latent_attention",
        LSE_EARLY,
        "take it after the mask",
        2,
    ),
    slip(
        "bea",
        "a mask the wrong way round",
        "latent_attention",
        {"(T) > ": "(T) <= "},
        "mask is inverted",
    ),
    slip(
        "cem",
        "sees the next token",
        "latent_attention",
        {"(T - S)": "(T - S + 1)"},
        "one place too far right",
        2,
    ),
    slip(
        "dana",
        "a softmax over the heads",
        "latent_attention",
        {"softmax(scores, dim=-1)": "softmax(scores, dim=2)"},
        "runs over the heads",
    ),
    slip(
        "egon",
        "a softmax over the queries",
        "latent_attention",
        {"softmax(scores, dim=-1)": "softmax(scores, dim=1)"},
        "runs over the queries",
    ),
    Submission(
        "finn",
        "heads first, and reshaped",
        patches=(
            replace(
                "absorb_query", '"bshd,hdr->bshr", q_nope, w_uk)', '"bshd,hdr->hbsr", q_nope, w_uk).reshape(SHAPE)'
            ),
            replace("absorb_query", "SHAPE", "(*q_nope.shape[:3], -1)"),
            replace("absorb_output", '>bshv", out_latent, w_uv)', '>bhsv", out_latent, w_uv).reshape(SHAPE)'),
            replace("absorb_output", "SHAPE", "(*out_latent.shape[:3], -1)"),
            replace(
                "latent_attention",
                "    future =",
                "    scores = scores.transpose(1, 2).reshape(scores.shape)\n    future =",
            ),
            replace("absorb_costs", "naive_macs = B * T * weights", "naive_macs = B * T * (weights + H * R * Dr)"),
        ),
        expect={
            "absorb_query": Expected(0, says="bring the axes into the order"),
            "absorb_output": Expected(0, says="bring the axes into the order"),
            "latent_attention": Expected(2, Outcome.PARTIAL, "split the axis as it was flattened"),
            "absorb_costs": Expected(0, says="makes Dn columns alone"),
        },
    ),
    Submission(
        "greta",
        "two indices for the heads, the last columns of the average key",
        patches=(
            replace("absorb_query", "bshd,hdr", "bshd,gdr"),
            replace("absorb_output", "bshr,hvr->bshv", "bsgr,hvr->bshv"),
            replace(
                "latent_attention",
                "weights, c_kv), lse",
                "weights, torch.cat((c_kv, k_rope), -1))[..., k_rope.shape[-1] :], lse",
            ),
        ),
        expect={
            "absorb_query": Expected(0, says="added up: h is one index of q_nope"),
            "absorb_output": Expected(0, says="before they are multiplied"),
            "latent_attention": Expected(0, says="some are those of k_rope"),
        },
    ),
    Submission(
        "hugo",
        "other indices for the heads, the first columns of the average key",
        patches=(
            replace("absorb_output", "bshr,hvr->bshv", "bshr,gvr->bshv"),
            replace("latent_attention", "weights, c_kv), lse", "weights, torch.cat((k_rope, c_kv), -1))[..., :R], lse"),
            replace("latent_attention", "    S, T =", "    R = c_kv.shape[-1]\n    S, T ="),
        ),
        expect={
            "absorb_output": Expected(0, says="added up: h is one index of out_latent"),
            "latent_attention": Expected(0, says="some are those of k_rope"),
        },
    ),
    Submission(
        "ines",
        "a value's width for the key's",
        patches=(
            rewrite(
                "break_even_queries",
                """
def break_even_queries(T, Dn, Dr, Dv, R):
    weights = 2 * Dv * R
    return T * weights / (weights + T * 2 * (R - Dv))
""",
            ),
        ),
        expect={"break_even_queries": Expected(1, Outcome.PARTIAL, "Dv stands where Dn belongs")},
    ),
    *(
        slip(f"queries{n}", says_so, "break_even_queries", changes, says_so)
        for n, (changes, says_so) in enumerate(
            (
                ({"(2 * R - Dn - Dv)": "(R - Dn - Dv)"}, "is counted R wide"),
                ({"(2 * R - Dn - Dv)": "(R - Dn)"}, "the scores alone are counted"),
                ({"(R * (Dn + Dv))": "(2 * R * (Dn + Dv))"}, "one side counts FLOPs and the other MACs"),
                ({"(R * (Dn + Dv))": "(R * (Dn + Dr + Dv))"}, "is counted Dn + Dr + Dv wide"),
            )
        )
    ),
    slip(
        "jana",
        "a key's width for the value's, in the projections alone",
        "break_even_queries",
        {"(R * (Dn + Dv))": "(R * 2 * Dn)"},
        "Dn stands where Dv belongs",
        1,
    ),
    *(
        slip(f"vera{n}", about, "latent_attention", changes, words, score)
        for n, (about, changes, words, score) in enumerate(
            (
                ("exponentials that are not divided", {WEIGHTS: "scores.exp()"}, "divide it by the sum", 0),
                ("the largest score for lse", {"logsumexp(scores": "amax(scores"}, "add the logarithm", 0),
                ("a logarithm alone", {LSE: LSE[:-1] + " - scores.amax(-1)\n"}, "add the maximum back", 0),
                ("no logarithm", {LSE: LSE[:-1] + ".exp()\n"}, "its natural logarithm is missing", 0),
                (
                    "the mask after the softmax",
                    {
                        ".masked_fill(future[:, None, :], -math.inf)": "",
                        WEIGHTS: f"{WEIGHTS}.masked_fill(future[:, None, :], 0.0)",
                    },
                    "the mask comes after the softmax",
                    2,
                ),
                ("zeros for what is hidden", {"-math.inf": "0.0"}, "a weight like any other", 2),
                ("lse of the weights", {LSE: f"    lse = {WEIGHTS}.sum(-1).log()\n"}, "taken of the weights", 0),
            )
        )
    ),
    slip(
        "wies",
        "the scale once more",
        "latent_attention",
        {"(scores * scale)": "(scores * scale * scale)"},
        "scaled by `scale` twice, expected `scale`",
    ),
    slip(
        "wolf",
        "the latent's width",
        "absorbed_mla_attention",
        {SCALE: "1 / math.sqrt(c_kv.shape[-1])"},
        "scaled by 1/√R, expected 1/√(Dn+Dr)",
    ),
    slip("wout", "no root", "absorbed_mla_attention", {SCALE: SCALE.replace("math.sqrt", "")}, "the root is missing"),
    Submission(
        "xaver",
        "a finite number for −inf",
        patches=(replace("latent_attention", "-math.inf", "-1e4"),),
        expect={"latent_attention": Expected(4, Outcome.PARTIAL, "set to a finite number")},
    ),
    slip(
        "yann",
        "heads to the front by a reshape",
        "absorb_query",
        {
            'torch.einsum("bshd,hdr->bshr", q_nope, w_uk)': "torch.bmm(q_nope.reshape(w_uk.shape[0], -1, "
            "w_uk.shape[1]), w_uk).reshape(*q_nope.shape[:3], -1)"
        },
        "which moves no axis",
    ),
    slip(
        "yrsa",
        "heads of the outputs to the front by a reshape",
        "absorb_output",
        {
            'torch.einsum("bshr,hvr->bshv", out_latent, w_uv)': "torch.bmm(out_latent.reshape(len(w_uv), -1, "
            "w_uv.shape[2]), w_uv.mT).reshape(*out_latent.shape[:3], -1)"
        },
        "which moves no axis",
    ),
    Submission(
        "zelda",
        "a finite number is added",
        patches=(
            replace(
                "latent_attention",
                "(scores * scale).masked_fill(future[:, None, :], -math.inf)",
                "scores * scale - 1e9 * future[:, None, :]",
            ),
        ),
        expect={"latent_attention": Expected(4, Outcome.PARTIAL, "a finite number is added")},
    ),
    slip(
        "knut",
        "rows of the mask counted modulo S",
        "latent_attention",
        {
            "torch.arange(S)[:, None] + (T - S)": "(torch.arange(S * q_rope.shape[2]) % S).view(S, -1, 1) + (T - S)",
            "future[:, None, :]": "future",
        },
        "is masked as token (s·H + h) % S",
        2,
    ),
    slip(
        "nele",
        "the weight of head 0",
        "absorb_output",
        {'torch.einsum("bshr,hvr->bshv", out_latent, w_uv)': "out_latent @ w_uv[0].T"},
        "multiplied by the weight of head 0",
    ),
    slip(
        "olaf",
        "a key of k_rope and c_kv",
        "latent_attention",
        {
            '    scores = torch.einsum("bshr,btr->bsht", q_latent, c_kv)\n': (
                "    query, key = torch.cat((q_latent, q_rope), -1), torch.cat((k_rope, c_kv), -1)\n"
                '    scores = torch.einsum("bshr,btr->bsht", query, key)\n'
            ),
            '    scores = scores + torch.einsum("bshe,bte->bsht", q_rope, k_rope)\n': "",
            "weights, c_kv)": "weights, key[..., : c_kv.shape[-1]])",
        },
        "the key is joined with k_rope first",
    ),
    slip(
        "otto",
        "the scale of DeepSeek-V3",
        "absorbed_mla_attention",
        {SCALE: "1 / math.sqrt(192)"},
        "scaled by 1/√192 in every call",
    ),
    slip(
        "paul",
        "scales the query, too",
        "absorbed_mla_attention",
        {"absorb_query(q_nope,": "absorb_query(q_nope * scale,", "q_latent, q_rope,": "q_latent, q_rope * scale,"},
        "or the scores are scaled twice",
    ),
    *(
        slip(student, about, "absorb_costs", {old: new}, words)
        for student, about, old, new, words in (
            (
                "rena",
                "naive without its attention",
                " + B * S * T * H * (Dn + Dr + Dv)",
                "",
                "naive_flops lacks the stage attend",
            ),
            (
                "sami",
                "absorb without its attention",
                " + B * S * T * H * (2 * R + Dr)",
                "",
                "absorb_flops lacks the stage attend",
            ),
            (
                "lars",
                "weights that absorb does not read",
                "weights + cache",
                "cache",
                "absorb_bytes lacks w_uk and w_uv",
            ),
            (
                "lotte",
                "a latent for each head",
                "B * T * (R + Dr)",
                "B * T * H * (R + Dr)",
                "naive_bytes and absorb_bytes count the cache once for each head",
            ),
            (
                "malte",
                "a latent for each head of absorb",
                "weights + cache",
                "weights + H * cache",
                "absorb_bytes counts the cache once for each head",
            ),
        )
    ),
    slip(
        "nils",
        "reshapes w_uv where its axes are to be exchanged",
        "absorb_output",
        {'"bshr,hvr->bshv", out_latent, w_uv)': '"bshr,hrv->bshv", out_latent, w_uv.reshape(w_uv.mT.shape))'},
        "which moves no number",
    ),
)
DEMO = ("ada", "eli")
