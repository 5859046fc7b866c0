"""The sample class of lesson 09: right in several styles, slow, and wrong; every named mistake is shown."""

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

LSE = "lse = torch.logaddexp(lse_a, lse_b)"
BASE = "    base = base.masked_fill(base == -math.inf, 0.0)\n"
DIVISION = "    out = out / torch.where(total > 0, total, 1.0)\n"
WEIGHT = "torch.exp(part_lse - base)[..., None]"
KEPT_OUT = "torch.where(weight > 0, weight * part.float(), 0.0)"
NAN_STAYS = replace("merge_two", KEPT_OUT, "torch.where(weight == 0, 0.0, weight * part.float())")
OWN = "own_c, own_k = c_kv[:, L:], k_rope[:, L:]"
MERGED = "merge_two(out, lse, own_out, own_lse)"
ROTATED = "    q_rope = rotate(q_rope, cos[position], sin[position])\n"
QUERY = "    q = torch.cat((q_nope, q_rope), -1)\n"
UNUSED = """    scores = torch.einsum("bhd,lhd->bhl", q, k) * scale
    lse = scores.logsumexp(-1)
    out = torch.einsum("bhl,lhv->bhv", torch.exp(scores - lse[..., None]), v)
"""
NOT_CHOSEN = """    if L == 0 or switch_point > B:
        return {"switch_point": switch_point, "form": "absorb", "gain": 1.0}
"""
POSITION = "position = seq_lens.long() - 1"
FALL_BACK = "if L == 0 or switch_point > B:"
TOKENS = "tokens = L + B / data * (T - L)"
DIVIDED = "itemsize * L / (tensor * sequence)"
ACC = "acc = tl.dot(p.to(v.dtype), v, acc * alpha[:, None])"
TOTAL = "l_i = l_i * alpha + tl.sum(p, axis=1)"
SIZES = "block_sizes(B)"
WALK = """        while node != -1:
            users[node].append(request)
            node = parents[node]
"""
PASSED_UP = """        if node != -1:
            users[node].append(request)
    for node in reversed(range(len(parents))):
        if parents[node] != -1:
            users[parents[node]] += users[node]
"""
NODE_MERGE = "out, lse = merge_two(out, lse, part, part_lse)"
NOT_DONE = Expected(0, Outcome.UNFINISHED, "as it was handed out")

SUBMISSIONS = (
    Submission("ada", "the solution as it stands"),
    Submission(
        "ben",
        "another style: a softmax over the parts, own tokens sequence by sequence, requests grouped by a matrix",
        patches=(
            rewrite(
                "merge_two",
                """
def merge_two(out_a, lse_a, out_b, lse_b):
    lses = torch.stack((lse_a, lse_b), -1)
    shares = lses.softmax(-1).nan_to_num(0.0)
    outs = torch.stack((out_a, out_b), -1).float().nan_to_num(0.0)
    return (outs * shares[..., None, :]).sum(-1).to(out_a.dtype), lses.logsumexp(-1)
""",
            ),
            rewrite(
                "prefix_decode",
                """
def prefix_decode(q_nope, q_rope, k, v, c_kv, k_rope, w_uk, w_uv, cos, sin, seq_lens):
    (L, H, width), B = k.shape, q_nope.shape[0]
    lengths = seq_lens.tolist()
    at = [n - 1 for n in lengths]
    q_rope = rotate(q_rope, cos[at], sin[at]) / math.sqrt(width)
    q_nope = q_nope / math.sqrt(width)
    scores = torch.cat((q_nope, q_rope), -1).transpose(0, 1) @ k.permute(1, 2, 0)
    out = (scores.softmax(-1) @ v.transpose(0, 1)).transpose(0, 1)
    lse = scores.logsumexp(-1).T
    q_latent = (q_nope.transpose(0, 1) @ w_uk).transpose(0, 1)
    own_out, own_lse = torch.zeros_like(out), torch.full_like(lse, -math.inf)
    for b, n in enumerate(lengths):
        if n > L:
            c, key = c_kv[b, L:n], k_rope[b, L:n]
            scores = q_latent[b] @ c.T + q_rope[b] @ key.T
            own_lse[b] = scores.logsumexp(-1)
            own_out[b] = (w_uv @ (scores.softmax(-1) @ c)[..., None])[..., 0]
    return merge_two(out, lse, own_out, own_lse)
""",
            ),
            rewrite(
                "choose_form",
                """
def choose_form(B, S, L, sizes, itemsize, sparse_tflops, tb_per_s):
    ridge = sparse_tflops / 2 / tb_per_s
    wide, latent = sizes["Dn"] + sizes["Dr"] + sizes["Dv"], 2 * sizes["R"] + sizes["Dr"]
    point = ridge * itemsize * wide / (2 * S * latent)
    if L and point <= B:
        read, computed = itemsize * wide * ridge, 2 * B * S * wide
        absorb = max(2 * B * S * latent, itemsize * (sizes["R"] + sizes["Dr"]) / sizes["H"] * ridge)
        return dict(switch_point=point, form="naive", gain=absorb / max(read, computed))
    return dict(switch_point=point, form="absorb", gain=1)
""",
            ),
            rewrite(
                "prefix_footprint",
                """
def prefix_footprint(B, T, L, layers, sizes, itemsize, weight_bytes, data, tensor, sequence):
    word = layers * itemsize / sequence
    found = {"weights": weight_bytes / data / tensor / sequence}
    found["latent"] = word * (sizes["R"] + sizes["Dr"]) * (B * (T - L) / data + L)
    heads = sizes["H"] / tensor
    found["expanded"] = word * L * heads * sum(sizes[name] for name in ("Dn", "Dr", "Dv"))
    found["overhead"] = found["expanded"] / (found["weights"] + found["latent"])
    return found
""",
            ),
            rewrite(
                "shared_attention",
                """
@triton.jit
def all_users(
    qn_ptr, qr_ptr, k_ptr, v_ptr, out_ptr, lse_ptr, scale_log2, B, H, L,
    DN: tl.constexpr, DR: tl.constexpr, DV: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
):
    blocks = tl.cdiv(B, M)
    h, b = tl.program_id(0) // blocks, tl.program_id(0) % blocks * M + tl.arange(0, M)
    there = (b < B)[:, None]
    n, dn, dr, dv = tl.arange(0, N), tl.arange(0, DN), tl.arange(0, DR), tl.arange(0, DV)
    qn = tl.load(qn_ptr + (b * H + h)[:, None] * DN + dn, mask=there, other=0.0)
    qr = tl.load(qr_ptr + (b * H + h)[:, None] * DR + dr, mask=there, other=0.0)
    m, l, o = tl.full([M], float("-inf"), tl.float32), tl.zeros([M], tl.float32), tl.zeros([M, DV], tl.float32)
    for block in range(0, tl.cdiv(L, N)):
        t = block * N + n
        row = (t * H + h).to(tl.int64)
        kn = tl.load(k_ptr + row[None, :] * (DN + DR) + dn[:, None], mask=t[None, :] < L, other=0.0)
        kr = tl.load(k_ptr + row[None, :] * (DN + DR) + (DN + dr)[:, None], mask=t[None, :] < L, other=0.0)
        z = (tl.dot(qn, kn) + tl.dot(qr, kr)) * scale_log2
        z += tl.where(t < L, 0.0, float("-inf"))[None, :]
        new = tl.maximum(m, tl.max(z, 1))
        w, a = tl.exp2(z - new[:, None]), tl.exp2(m - new)
        values = tl.load(v_ptr + row[:, None] * DV + dv, mask=(t < L)[:, None], other=0.0)
        l, m = l * a + tl.sum(w, 1), new
        o = o * a[:, None] + tl.dot(w.to(values.dtype), values)
    tl.store(out_ptr + (b * H + h)[:, None] * DV + dv, o / l[:, None], mask=there)
    tl.store(lse_ptr + b * H + h, (m + tl.log2(l)) * 0.6931471805599453, mask=b < B)


def shared_attention(q_nope, q_rope, k, v, scale):
    (B, H, Dn), (L, _, Dv) = q_nope.shape, v.shape
    out, lse = q_nope.new_empty(B, H, Dv), q_nope.new_empty(B, H, dtype=torch.float32)
    rows = 16 if B <= 16 else 64
    all_users[(triton.cdiv(B, rows) * H,)](
        q_nope, q_rope, k, v, out, lse, scale * math.log2(math.e), B, H, L,
        Dn, q_rope.shape[2], Dv, rows, 64, num_warps=4, num_stages=2,
    )
    return out, lse
""",
            ),
            rewrite(
                "tree_decode",
                """
def tree_decode(q, k, v, parents, lengths, last, own_out, own_lse):
    def path(node):
        return [] if node == -1 else path(parents[node]) + [node]

    paths = [path(node) for node in last]
    slots = max(map(len, paths), default=0)
    outs = own_out.new_zeros(slots + 1, *own_out.shape)
    lses = own_lse.new_full((slots + 1, *own_lse.shape), -math.inf)
    outs[0], lses[0] = own_out, own_lse
    start = 0
    for node, length in enumerate(lengths):
        mine = [b for b, nodes in enumerate(paths) if node in nodes]
        if length and mine:
            place = [paths[b].index(node) + 1 for b in mine]
            scores = (q[mine].transpose(0, 1) @ k[start : start + length].permute(1, 2, 0)) / math.sqrt(q.shape[-1])
            outs[place, mine] = (scores.softmax(-1) @ v[start : start + length].transpose(0, 1)).transpose(0, 1)
            lses[place, mine] = scores.logsumexp(-1).T
        start += length
    shares = lses.softmax(0).nan_to_num(0.0)[..., None]
    return (shares * outs.nan_to_num(0.0)).sum(0), lses.logsumexp(0)
""",
            ),
        ),
    ),
    Submission(
        "chloe",
        "one helper for both parts, in a cell of her own",
        patches=(
            add_cell(
                "prefix_decode",
                """
def soft(scores):
    lse = torch.logsumexp(scores, dim=-1)
    return torch.exp(scores - lse.unsqueeze(-1)), lse
""",
            ),
            replace("prefix_decode", "    lse = scores.logsumexp(-1)\n", "    weights, lse = soft(scores)\n"),
            replace("prefix_decode", "torch.exp(scores - lse[..., None])", "weights"),
            replace("prefix_decode", "    own_lse = scores.logsumexp(-1)\n", "    weights, own_lse = soft(scores)\n"),
            replace("prefix_decode", "torch.exp(scores - own_lse[..., None])", "weights"),
            replace("tree_decode", "if not mine or not lengths[node]:", "if len(mine) * lengths[node] == 0:"),
        ),
    ),
    # Wrong
    Submission(
        "eli",
        "powers of 2, the prefix twice, the sparse rate, the prefix for each sequence, no rescaling, parents forgotten",
        patches=(
            replace("merge_two", LSE, LSE.replace("logaddexp", "logaddexp2")),
            replace("merge_two", "torch.exp(", "torch.exp2("),
            replace("prefix_decode", OWN, "own_c, own_k = c_kv, k_rope"),
            replace("prefix_decode", "(seq_lens - L)", "seq_lens"),
            replace("choose_form", "sparse_tflops / 2 * 1e12", "sparse_tflops * 1e12"),
            replace("prefix_footprint", TOKENS, "tokens = B / data * T"),
            replace("shared_attention", ACC, "acc = tl.dot(p.to(v.dtype), v, acc)"),
            replace("tree_decode", WALK, "        if node != -1:\n            users[node].append(request)\n"),
        ),
        expect={
            **says("merge_two", "the weights are powers of 2"),
            **says("prefix_decode", "count twice"),
            **says("choose_form", "structured sparsity"),
            **says("prefix_footprint", "counts the prefix for each sequence"),
            **not_right("shared_attention", "acc is not multiplied by exp"),
            **says("tree_decode", "its last node alone", 1),
        },
    ),
    Submission(
        "fay",
        "plain means, own tokens from place 0, S forgotten, T own tokens, the sum not rescaled, roots only",
        patches=(
            replace("merge_two", WEIGHT, "torch.where(part_lse > -math.inf, 0.5, 0.0)[..., None]"),
            replace("prefix_decode", OWN, "own_c, own_k = c_kv, k_rope"),
            replace("choose_form", "2 * S * macs", "2 * macs"),
            replace("choose_form", "2 * B * S * words", "2 * B * words"),
            replace("prefix_footprint", TOKENS, "tokens = L + B / data * T"),
            replace("shared_attention", TOTAL, "l_i = l_i + tl.sum(p, axis=1)"),
            replace(
                "tree_decode",
                WALK,
                "        while node != -1 and parents[node] != -1:\n            node = parents[node]\n"
                "        if node != -1:\n            users[node].append(request)\n",
            ),
        ),
        expect={
            **says("merge_two", "the mean of both"),
            **says("prefix_decode", "taken from place 0"),
            **says("choose_form", "S is left out", 2),
            **says("prefix_footprint", "T tokens of its own"),
            **not_right("shared_attention", "l_i is not multiplied by exp"),
            **says("tree_decode", "its root alone", 1),
        },
    ),
    Submission(
        "gus",
        "weights not normalised, lengths with the prefix, words for bytes, latents dropped, the tail, siblings",
        patches=(
            replace("merge_two", DIVISION, ""),
            replace("prefix_decode", "(seq_lens - L)", "seq_lens"),
            replace("choose_form", "itemsize * ", ""),
            replace("prefix_footprint", TOKENS, "tokens = B / data * (T - L)"),
            replace(
                "shared_attention",
                '        qk = tl.where(offs_n[None, :] < L, qk, float("-inf"))  # [BLOCK_M, BLOCK_N]\n',
                "",
            ),
            replace(
                "tree_decode",
                WALK,
                """        path = []
        while node != -1:
            path.insert(0, node)
            node = parents[node]
        for each, parent in enumerate(parents):
            if each == (path or [None])[0] or parent in path[:-1]:
                users[each].append(request)
""",
            ),
        ),
        expect={
            **says("merge_two", "do not add up to 1"),
            **says("prefix_decode", "seq_lens counts the prefix as well", 2),
            **says("choose_form", "words are counted for bytes"),
            **says("prefix_footprint", "latent lacks the prefix"),
            **not_right("shared_attention", "places beyond L count", 1),
            **says("tree_decode", "for users of its siblings", 1),
        },
    ),
    Submission(
        "lena",
        "the larger lse, positions that restart, MACs for FLOPs, divided by heads, no scale, tokens by position",
        patches=(
            replace("merge_two", "return out.to(out_a.dtype), lse", "return out.to(out_a.dtype), lse_a.maximum(lse_b)"),
            replace("prefix_decode", POSITION, "position = (seq_lens.long() - 1 - L).clamp(min=0)"),
            replace("choose_form", "2 * S * macs", "S * macs"),
            replace("choose_form", "2 * B * S * words", "B * S * words"),
            replace("prefix_footprint", "tokens / sequence", "tokens / (tensor * sequence)"),
            replace("shared_attention", "tl.trans(k_rope), qk) * scale", "tl.trans(k_rope), qk)"),
            replace(
                "tree_decode",
                "        first = sum(lengths[:node])\n",
                "        first, before = 0, parents[node]\n        while before != -1:\n"
                "            first, before = first + lengths[before], parents[before]\n",
            ),
        ),
        expect={
            **says("merge_two", "lse is the larger of the two"),
            **says("prefix_decode", "as if positions began behind the prefix"),
            **says("choose_form", "or MACs are counted for FLOPs"),
            **says("prefix_footprint", "latent is divided by tensor", 1),
            **not_right("shared_attention", "not multiplied by scale"),
            **says("tree_decode", "from its position in the context"),
        },
    ),
    Submission(
        "mona",
        "NaN of nothing, a position too far, keys of 576, all heads everywhere, base 2, own tokens forgotten",
        patches=(
            replace("merge_two", BASE, ""),
            NAN_STAYS,
            replace("prefix_decode", POSITION, "position = seq_lens.long().clamp(max=len(cos) - 1)"),
            replace("choose_form", '(2 * sizes["R"] + sizes["Dr"])', '(sizes["R"] + sizes["Dr"])'),
            replace("prefix_footprint", DIVIDED, "itemsize * L / sequence"),
            replace("shared_attention", "tl.log(", "tl.log2("),
            replace(
                "tree_decode",
                "merge_two(own_out, own_lse, torch",
                "merge_two(own_out, torch.full_like(own_lse, -math.inf), torch",
            ),
        ),
        expect={
            **says("merge_two", "where both parts are empty", 2),
            **says("prefix_decode", "for position seq_lens[b]", 2),
            **says("choose_form", "the key alone"),
            **says("prefix_footprint", "expanded is not divided by tensor", 1),
            **not_right("shared_attention", "lse is m_i + log2(l_i), of two bases"),
            **says("tree_decode", "own_out and own_lse are a part too"),
        },
    ),
    Submission(
        "nils",
        "exp that overflows, no rotation, no fall-back, a prefix for all groups, not divided, plain mean of parts",
        patches=(
            replace("merge_two", LSE, "both = torch.exp(lse_a) + torch.exp(lse_b)\n    lse = torch.log(both)"),
            replace("merge_two", WEIGHT, "(torch.exp(part_lse) / both)[..., None]"),
            NAN_STAYS,
            replace("prefix_decode", ROTATED, ""),
            replace("choose_form", FALL_BACK, "if B == 0:"),
            replace("prefix_footprint", DIVIDED, "itemsize * L / (data * tensor * sequence)"),
            replace("shared_attention", "acc / l_i[:, None]", "acc"),
            replace(
                "tree_decode",
                "    for node, mine",
                "    count = (own_lse > -math.inf).float()\n    for node, mine",
            ),
            replace(
                "tree_decode",
                NODE_MERGE,
                "out, lse = out + part, torch.logaddexp(lse, part_lse)\n"
                "        count = count + (part_lse > -math.inf).float()",
            ),
            replace("tree_decode", "    return out, lse", "    return out / count.clamp(min=1)[..., None], lse"),
        ),
        expect={
            **says("merge_two", "subtract the larger lse first", 1),
            **says("prefix_decode", "q_rope is not rotated"),
            **says("choose_form", "naive is chosen where too few sequences share", 1),
            **says("prefix_footprint", "expanded is divided by data", 1),
            **not_right("shared_attention", "not divided by the sum"),
            **says("tree_decode", "the parts are averaged"),
        },
    ),
    Submission(
        "olga",
        "NaN of an empty part, 1/√576, naive without a prefix, one rotated key, an lse without maximum, halves",
        patches=(
            replace("merge_two", KEPT_OUT, "weight * part.float()"),
            replace("prefix_decode", "(scores * scale)", "(scores * (w_uk.shape[-1] + q_rope.shape[-1]) ** -0.5)"),
            replace("choose_form", FALL_BACK, "if switch_point > B:"),
            replace(
                "prefix_footprint",
                'sizes["H"] * (sizes["Dn"] + sizes["Dr"] + sizes["Dv"])',
                'sizes["H"] * (sizes["Dn"] + sizes["Dv"]) + sizes["Dr"]',
            ),
            replace("shared_attention", "m_i + tl.log(l_i)", "tl.log(l_i)"),
            replace(
                "tree_decode",
                NODE_MERGE,
                "out[mine] = (out[mine] + part[mine]) / 2\n        lse = torch.logaddexp(lse, part_lse)",
            ),
        ),
        expect={
            **says("merge_two", "the out of an empty part is used", 2),
            **says("prefix_decode", "1/√576"),
            **says("choose_form", "there is no prefix, and naive is chosen", 2),
            **says("prefix_footprint", "the rotated key once"),
            **not_right("shared_attention", "add the maximum that was subtracted"),
            **says("tree_decode", "the parts are averaged"),
        },
    ),
    Submission(
        "pia",
        "base-2 log-sum-exps, a gain upside down, words for bytes, head 0 for all, an lse that stays; no merge",
        patches=(
            unfinished("merge_two"),
            replace("prefix_decode", MERGED, "merge_two(out, lse / math.log(2), own_out, own_lse / math.log(2))"),
            replace("choose_form", "absorb / naive}", "naive / absorb}"),
            replace("prefix_footprint", "itemsize * ", ""),
            replace("shared_attention", "(offs_n * H + h)", "(offs_n * H)"),
            replace("tree_decode", NODE_MERGE, "out, _ = merge_two(out, lse, part, part_lse)"),
        ),
        expect={
            "merge_two": NOT_DONE,
            **says("prefix_decode", "hand base-2 log-sum-exps"),
            **says("choose_form", "gain is below 1 where naive is faster", 1),
            **says("prefix_footprint", "words are counted for bytes"),
            **not_right("shared_attention", "keys and values of head 0"),
            **says("tree_decode", "the lse stays that of the first"),
        },
    ),
    Submission(
        "quin",
        "the mean of both parts, the ratio of MACs, one layer, no RoPE part, a path that ends at an empty node",
        patches=(
            replace("prefix_decode", MERGED, "(out + own_out) / 2, torch.logaddexp(lse, own_lse)"),
            replace("choose_form", "absorb / naive}", "macs / words}"),
            replace("prefix_footprint", "layers * ", ""),
            replace("shared_attention", "qk = tl.dot(q_rope, tl.trans(k_rope), qk) * scale", "qk = qk * scale"),
            replace("tree_decode", "while node != -1:", "while node != -1 and lengths[node]:"),
        ),
        expect={
            **says("prefix_decode", "the mean of both parts"),
            **says("choose_form", "gain is the ratio of the MACs", 1),
            **says("prefix_footprint", "the cache of one layer"),
            **not_right("shared_attention", "lack q_rope"),
            **says("tree_decode", "a node without tokens ends the path", 3),
        },
    ),
    Submission(
        "rosa",
        "own tokens alone, an overhead of the whole, the last users lost, NaN where there are no own tokens",
        patches=(
            replace("prefix_decode", MERGED, "own_out, own_lse"),
            unfinished("choose_form"),
            replace("prefix_footprint", "expanded / (weights + latent)", "expanded / (weights + latent + expanded)"),
            replace("shared_attention", SIZES, "16, 64, 4, 2"),
            replace("shared_attention", "triton.cdiv(B, block_m)", "max(B // block_m, 1)"),
            replace("shared_attention", "torch.empty(", "torch.zeros("),
            replace(
                "tree_decode",
                "merge_two(own_out, own_lse, torch.zeros_like(own_out), torch.full_like(own_lse, -math.inf))",
                "own_out, own_lse",
            ),
            replace(
                "tree_decode",
                NODE_MERGE,
                "both = torch.logaddexp(lse, part_lse)\n"
                "        shares = [torch.exp(z - both.clamp(min=-1e30))[..., None] for z in (lse, part_lse)]\n"
                "        out, lse = shares[0] * out + shares[1] * part, both",
            ),
        ),
        expect={
            **says("prefix_decode", "that of the own tokens alone"),
            "choose_form": NOT_DONE,
            **says("prefix_footprint", "overhead is a share of everything"),
            **not_right("shared_attention", "behind the last whole block", 1),
            **says("tree_decode", "own_out is not defined", 1),
        },
    ),
    Submission(
        "tess",
        "weights in 16 bits, a prefix's query unrotated, a gain below the switch point, column 0, places by users",
        patches=(
            replace("merge_two", "weight * part.float()", "weight.to(part.dtype) * part"),
            replace("prefix_decode", ROTATED, ""),
            replace("prefix_decode", QUERY, QUERY + ROTATED),
            replace("choose_form", NOT_CHOSEN, "    form = 'absorb' if L == 0 or switch_point > B else 'naive'\n"),
            replace("choose_form", '"form": "naive"', '"form": form'),
            replace("shared_attention", "(DN + DR) + DN + offs_dr", "(DN + DR) + offs_dr"),
            replace(
                "tree_decode", "first = sum(lengths[:node])", "first = sum(lengths[n] for n in range(node) if users[n])"
            ),
        ),
        expect={
            **says("merge_two", "rounded to 16 bits", 2),
            **says("prefix_decode", "for the prefix q_rope is not rotated"),
            **says("choose_form", "gain is that of naive although absorb is chosen", 1),
            **not_right("shared_attention", "taken from column 0"),
            **says("tree_decode", "as if nodes without users had none", 2),
        },
    ),
    Submission(
        "uri",
        "absorb alone for the prefix too, tokens not divided, rows of one head together, no zeros without any node",
        patches=(
            replace("prefix_decode", OWN, "own_c, own_k = c_kv, k_rope"),
            replace("prefix_decode", "(seq_lens - L)", "seq_lens"),
            replace("prefix_decode", MERGED, "own_out, own_lse"),
            replace("prefix_decode", UNUSED, ""),
            replace("prefix_footprint", "L / (tensor * sequence)", "L / tensor"),
            replace("shared_attention", "(offs_n * H + h)", "(h * L + offs_n)"),
            replace(
                "tree_decode",
                "    out, lse = merge_two(own_out, own_lse, torch",
                "    out, lse = own_out, own_lse\n    if parents:\n"
                "        out, lse = merge_two(own_out, own_lse, torch",
            ),
        ),
        expect={
            **says("prefix_decode", "are plenty"),
            **says("prefix_footprint", "expanded is not divided by sequence", 1),
            **not_right("shared_attention", "as if they lay together"),
            **says("tree_decode", "own_out is not defined", 3),
        },
    ),
    Submission(
        "vera",
        "own tokens rotated from the prefix's end on, users passed up in the order of the numbers",
        patches=(
            replace(
                "prefix_decode",
                "own_c, own_k = c_kv[:, L:], k_rope[:, L:]\n",
                "own_c, own_k = c_kv[:, L:], k_rope[:, L:]\n    position = (position - L).clamp(min=0)\n"
                "    q_rope = rotate(unrotated, cos[position], sin[position])\n",
            ),
            replace("prefix_decode", ROTATED, "    unrotated = q_rope\n" + ROTATED),
            replace("tree_decode", WALK, PASSED_UP),
        ),
        expect={
            **says("prefix_decode", "for the own tokens as if positions began behind the prefix", 1),
            **says("tree_decode", "before it has all of them", 1),
        },
    ),
    Submission(
        "wim",
        "one position for all without own tokens",
        patches=(
            replace(
                "prefix_decode",
                POSITION,
                POSITION + "\n    if L and bool((seq_lens == L).all()):\n        position = position * 0",
            ),
        ),
        expect=says("prefix_decode", "where a sequence has no own tokens the query is not rotated", 4),
    ),
    slip(
        "ines",
        "an empty part without NaN",
        "merge_two",
        {KEPT_OUT: "weight * part.float().masked_fill(part.isnan(), 0.0)"},
        "it may hold infinity as well",
        2,
    ),
    slip(
        "jaro",
        "no maximum in either part",
        "prefix_decode",
        {"scores.logsumexp(-1)": "scores.exp().sum(-1).log()"},
        "exp leaves float32 for scores",
        1,
    ),
    slip(
        "kaia",
        "a maximum that begins at 0, over users",
        "shared_attention",
        {'m_i = tl.full([BLOCK_M], float("-inf"), tl.float32)': "m_i = tl.zeros([BLOCK_M], tl.float32)"},
        "so is the first maximum",
        2,
        not_right,
    ),
    slip(
        "lars",
        "a maximum of at least 0, in a tree",
        "tree_decode",
        {
            "node_lse = scores.logsumexp(-1)": "top = scores.amax(-1).clamp(min=0.0)\n"
            "        node_lse = top + (scores - top[..., None]).exp().sum(-1).log()"
        },
        "all far below 0 is left out",
        2,
    ),
    # Right and slow
    Submission(
        "bela",
        "blocks of 16 users: each reads all keys again",
        patches=(replace("shared_attention", SIZES, "16, 64, 4, 2"), unfinished("tree_decode")),
        expect={**slow("shared_attention"), "tree_decode": NOT_DONE},
    ),
    Submission(
        "cleo",
        "blocks of 64 users, small ones of tokens, one stage",
        patches=(replace("shared_attention", SIZES, "64, 32, 4, 1"),),
        expect={**slow("shared_attention", 1.5)},
    ),
)
DEMO = ("ada", "gus", "bela")
