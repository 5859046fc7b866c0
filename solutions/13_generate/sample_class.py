"""The sample class of lesson 13: right in another style, and wrong; every named mistake is shown."""

from autograder.course.sample import Expected, Submission, replace, rewrite, says, slip, unfinished
from autograder.judging.verdict import Outcome

NOT_DONE = Expected(0, Outcome.UNFINISHED, "as it was handed out")
SUM = "sum(acceptance**i for i in range(n + 1))"
TIME = "(check * step_us + n * draft_us)"
SCALE = "(Dn + Dr) ** -0.5"
HIDDEN = "torch.arange(held.shape[1]) > position[..., None]"
WRITTEN = "at = position[text, place]"
REAL = "text, place = real.nonzero(as_tuple=True)"
QUERY = 'query = torch.cat((torch.einsum("bshd,hdr->bshr", q_nope, w_uk), q_rope), -1)'
ROW = "(lengths - 1).clamp(min=0)"
KEPT = "shares.cumsum(-1) - shares >= top_p"
DRAWN = "u[:, None] * ends[:, -1:]"
TEMPERED = "(rows / temperature)"
STARTS = "(start + torch.arange(S)).expand(B, S)"
DECODED = 'cache["seq_lens"][:, None]'
LENGTHS = "torch.tensor([len(part) for part in parts])"
GOING = "going = going & (token != stop)"
CUT = '        cache["seq_lens"] = before + (taken + 1) * going\n'
TAKEN = "(best[:, :-1] == drafts).long().cumprod(1).sum(1)"
GIVEN = "each += best[b, : taken[b] + 1].tolist()"

SUBMISSIONS = (
    Submission("ada", "the solution as it stands"),
    Submission(
        "ben",
        "another style: a closed form, text by text, lists",
        patches=(
            rewrite(
                "predict_drafting",
                """
def predict_drafting(acceptance, k, step_us, draft_us, check):
    rates = {}
    for n in range(1, max(9, k + 1)):
        tokens = n + 1 if acceptance == 1 else (1 - acceptance ** (n + 1)) / (1 - acceptance)
        rates[n] = tokens, tokens / (check + n * draft_us / step_us)
    best = max(list(rates)[:8], key=lambda n: rates[n][1])
    return dict(tokens=rates[k][0], speedup=rates[k][1], best_k=best)
""",
            ),
            rewrite(
                "attend_pages",
                """
def attend_pages(q_nope, q_rope, c_kv, k_rope, w_uk, w_uv, pages, table, seq_lens, lengths):
    B, S, H, Dn = q_nope.shape
    R = c_kv.shape[2]
    out = torch.zeros(B, S, H, w_uv.shape[1])
    for b in range(B):
        first, n = int(seq_lens[b]), int(lengths[b])
        for s in range(n):
            page, slot = divmod(first + s, pages.shape[1])
            pages[table[b, page], slot, :R] = c_kv[b, s]
            pages[table[b, page], slot, R:] = k_rope[b, s]
        rows = pages[table[b].long()].reshape(-1, pages.shape[2])[: first + n]
        k = torch.einsum("tr,hdr->htd", rows[:, :R], w_uk)
        v = torch.einsum("tr,hvr->htv", rows[:, :R], w_uv)
        scores = q_nope[b, :n].transpose(0, 1) @ k.mT + q_rope[b, :n].transpose(0, 1) @ rows[:, R:].T
        scores = scores / math.sqrt(Dn + q_rope.shape[-1])
        future = torch.ones(n, first + n, dtype=torch.bool).triu(first + 1)
        out[b, :n] = (scores.masked_fill(future, -math.inf).softmax(-1) @ v).transpose(0, 1)
    return out, pages
""",
            ),
            rewrite(
                "choose_tokens",
                """
def choose_tokens(logits, lengths, temperature=0.0, top_p=1.0, u=None):
    found = []
    for b, n in enumerate(lengths.tolist()):
        row = logits[b, max(n - 1, 0)]
        if temperature == 0:
            found.append(int(torch.argmax(row)))
            continue
        shares, order = torch.sort(torch.softmax(row / temperature, 0), descending=True)
        count = int((shares.cumsum(0) < top_p).sum()) + 1
        ends = shares[:count].cumsum(0)
        found.append(int(order[min(int((ends <= u[b] * ends[-1]).sum()), len(ends) - 1)]))
    return torch.tensor(found)
""",
            ),
            rewrite(
                "generate_texts",
                """
def generate_texts(model, prompts, new, chunk, stop):
    rows = []
    for prompt in prompts:
        cache, one = make_cache(model, 1, len(prompt) + new), torch.ones(1, dtype=torch.int64)
        for start in range(0, len(prompt), chunk):
            part = torch.tensor([prompt[start : start + chunk]])
            positions = torch.arange(start, start + part.shape[1])[None]
            logits = run(model, part, positions, one * part.shape[1], cache)
        row = [int(logits[0, -1].argmax())]
        while len(row) < new and row[-1] != stop:
            at = torch.tensor([[len(prompt) + len(row) - 1]])
            row.append(int(run(model, torch.tensor([row[-1:]]), at, one, cache)[0, 0].argmax()))
        rows.append(row + [-1] * (new - len(row)))
    return torch.tensor(rows)
""",
            ),
            rewrite(
                "verify_drafts",
                """
def verify_drafts(model, prompts, new, guesses):
    texts, calls = [], 0
    for prompt, guessed in zip(prompts, guesses.tolist()):
        cache, row, waiting, drafts, mine = make_cache(model, 1, 2 * len(prompt) + 3 * new + 9), [], prompt, [], 0
        while len(row) < new:
            tokens = torch.tensor([waiting + drafts])
            held = cache["seq_lens"]
            n = torch.tensor([tokens.shape[1]])
            logits = run(model, tokens, held[:, None] + torch.arange(tokens.shape[1]), n, cache)
            best = logits[0, len(waiting) - 1 :].argmax(-1).tolist()
            count = 0
            while count < len(drafts) and best[count] == drafts[count]:
                count += 1
            cache["seq_lens"] = held + len(waiting) + count
            row += best[: count + 1]
            waiting, mine = row[-1:], mine + 1
            drafts = guessed[min(len(row), new) - 1]
        texts.append(row[:new])
        calls = max(calls, mine)
    return torch.tensor(texts), calls
""",
            ),
        ),
    ),
    Submission(
        "carla",
        "drafts one by one, the latent's scale, last column, positions restart, cache not cut",
        patches=(
            replace("predict_drafting", SUM, "1 + acceptance * n"),
            replace("attend_pages", SCALE, "(R + Dr) ** -0.5"),
            replace("choose_tokens", ROW, "-1"),
            replace("generate_texts", DECODED, "torch.full((B, 1), n)"),
            replace("verify_drafts", CUT, ""),
        ),
        expect={
            **says("predict_drafting", "the n-th counts only if it and all before it", 1),
            **says("attend_pages", "the softmax scale is 1/√(R+Dr)"),
            **says("choose_tokens", "those of the last column"),
            **says("generate_texts", "they go on behind the prompt"),
            **says("verify_drafts", "stays in the cache"),
        },
    ),
    Submission(
        "dev",
        "own token forgotten, RoPE missing, first column, positions of chunks, one too many",
        patches=(
            replace("predict_drafting", SUM, "sum(acceptance**i for i in range(1, n + 1))"),
            replace("attend_pages", QUERY, QUERY.replace("q_rope)", "0 * q_rope)")),
            replace("choose_tokens", ROW, "0"),
            replace("generate_texts", STARTS, "torch.arange(S).expand(B, S)"),
            replace("verify_drafts", CUT, CUT + "        over = (taken < k).long()\n"),
            replace(
                "verify_drafts",
                GIVEN,
                "each += torch.cat((drafts[b, : taken[b] + 1], best[b, k:][taken[b] < k :])).tolist()",
            ),
        ),
        expect={
            **says("predict_drafting", "the one that the model adds itself"),
            **says("attend_pages", "the scores lack q_rope"),
            **says("choose_tokens", "those of the first column"),
            **says("generate_texts", "the positions of every chunk begin at 0", 2),
            **says("verify_drafts", "is taken as well"),
        },
    ),
    Submission(
        "ema",
        "drafts for nothing, no mask, top-p drops one, one position too far, drafts behind a wrong one",
        patches=(
            replace("predict_drafting", TIME, "(check * step_us)"),
            replace("attend_pages", HIDDEN, "(torch.arange(held.shape[1]) >= (seq_lens + lengths)[:, None, None])"),
            replace("choose_tokens", KEPT, "(shares.cumsum(-1) > top_p + 1e-5) & (torch.arange(shares.shape[1]) > 0)"),
            replace("generate_texts", DECODED, DECODED + " + 1"),
            replace("verify_drafts", ".long().cumprod(1).sum(1)", ".long().sum(1)"),
        ),
        expect={
            **says("predict_drafting", "leaves out the time of drafting"),
            **says("attend_pages", "no causal mask", 1),
            **says("choose_tokens", "the token that crosses top_p", 2),
            **says("generate_texts", "one position too far"),
            **says("verify_drafts", "drafts are counted that stand behind", 3),
        },
    ),
    Submission(
        "finn",
        "check for nothing, mask top-left, shares not normalised, padding counts, own token lost",
        patches=(
            replace("predict_drafting", TIME, "(step_us + n * draft_us)"),
            replace(
                "attend_pages",
                HIDDEN,
                "(torch.arange(held.shape[1]) > torch.arange(S)[:, None]).expand(len(held), -1, -1)",
            ),
            replace("choose_tokens", DRAWN, "u[:, None]"),
            replace("generate_texts", LENGTHS, "torch.full((B,), max(map(len, parts)))"),
            replace("verify_drafts", CUT, CUT.replace("(taken + 1)", "taken.clamp(min=1)")),
            replace("verify_drafts", GIVEN, "each += best[b, : max(taken[b], 1)].tolist()"),
        ),
        expect={
            **says("predict_drafting", "takes check times as long"),
            **says("attend_pages", "new token s sees the positions up to s"),
            **says("choose_tokens", "multiply it by the sum", 2),
            **says("generate_texts", "padding counts as tokens of the prompt", 2),
            **says("verify_drafts", "own token behind the drafts is dropped"),
        },
    ),
    Submission(
        "gita",
        "upside down, mask by the padded chunk, temperature multiplied, padding in the cache, one token a call",
        patches=(
            replace("predict_drafting", '"speedup": speedup(k)', '"speedup": 1 / speedup(k)'),
            replace(
                "attend_pages",
                HIDDEN,
                "torch.arange(held.shape[1]) > (position + (lengths - S)[:, None]).clamp(min=0)[..., None]",
            ),
            replace("choose_tokens", TEMPERED, "(rows * temperature)"),
            replace("generate_texts", GOING, "going = token >= 0"),
            rewrite(
                "verify_drafts",
                """
def verify_drafts(model, prompts, new, guesses):
    return generate_all(model, prompts, new), new


def generate_all(model, prompts, new):
    rows = []
    for prompt in prompts:
        cache, one, row = make_cache(model, 1, len(prompt) + new), torch.ones(1, dtype=torch.int64), []
        tokens = torch.tensor([prompt])
        while len(row) < new:
            positions = cache["seq_lens"][:, None] + torch.arange(tokens.shape[1])
            row.append(int(run(model, tokens, positions, one * tokens.shape[1], cache)[0, -1].argmax()))
            tokens = torch.tensor([row[-1:]])
        rows.append(row)
    return torch.tensor(rows)
""",
            ),
        ),
        expect={
            **says("predict_drafting", "speedup is upside down"),
            **says("attend_pages", "counts from the end of the padded chunk", 3),
            **says("choose_tokens", "divide", 1),
            **says("generate_texts", "behind the token that stops it", 5),
            **says("verify_drafts", "each took a call of its own"),
        },
    ),
    Submission(
        "hugo",
        "written from 0, temperature ignored, the stop left out, prompt not counted",
        patches=(
            replace("attend_pages", WRITTEN, "at = place"),
            replace("choose_tokens", TEMPERED, "rows"),
            replace("generate_texts", f"        {GOING}\n", ""),
            replace("generate_texts", "found[:, n] =", f"{GOING}\n        found[:, n] ="),
            replace("verify_drafts", "calls = 1", "calls = 0"),
        ),
        expect={
            **says("attend_pages", "written from position 0"),
            **says("choose_tokens", "the temperature changes nothing", 1),
            **says("generate_texts", "the token that stops a text is missing", 5),
            **says("verify_drafts", "calls leaves out"),
        },
    ),
    Submission(
        "iris",
        "padding written, top-p first, positions of the longest prompt; drafting is not done",
        patches=(
            unfinished("predict_drafting"),
            replace("attend_pages", REAL, "text, place = torch.ones_like(real).nonzero(as_tuple=True)"),
            replace(
                "choose_tokens",
                "    shares = shares.masked_fill(",
                "    shares = shares.masked_fill(rows.softmax(-1).sort(-1, descending=True)[0].cumsum(-1)"
                " - rows.softmax(-1).sort(-1, descending=True)[0] >= top_p, 0.0)\n"
                "    shares = shares.masked_fill(torch.zeros_like(shares, dtype=torch.bool) & (",
            ),
            replace("choose_tokens", f"({KEPT}, 0.0)", f"({KEPT}), 0.0)"),
            replace("generate_texts", 'cache["seq_lens"][:, None]', "torch.full((B, 1), longest + n)"),
            unfinished("verify_drafts"),
        ),
        expect={
            "predict_drafting": NOT_DONE,
            **says("attend_pages", "padding is written", 3),
            **says("choose_tokens", "divide by the temperature first", 2),
            **says("generate_texts", "behind the longest prompt", 2),
            "verify_drafts": NOT_DONE,
        },
    ),
    slip(
        "jan",
        "pages of its own",
        "attend_pages",
        {"    real = torch": "    pages = pages.clone()\n    real = torch"},
        "pages is returned as a tensor of its own",
    ),
    *(
        slip(f"page{n}", says_so, "attend_pages", changes, says_so)
        for n, (changes, says_so) in enumerate(
            (
                ({SCALE: "Dn**-0.5"}, "the softmax scale is 1/√Dn"),
                ({f" * {SCALE}": ""}, "the scores are not scaled"),
                ({"> position[..., None]": ">= position[..., None]"}, "a new token does not see itself"),
                ({"> position[..., None]": "> position[..., None] + 1"}, "sees one position too many"),
                (
                    {
                        "    pages[table[text": "    before = pages.clone()\n    pages[table[text",
                        "held = pages[": "held = before[",
                    },
                    "are read before the new tokens are written",
                ),
            )
        )
    ),
    slip(
        "drafts-one-more",
        "the best k pays for a draft more",
        "predict_drafting",
        {"key=speedup": "key=lambda n: tokens(n) / (check * step_us + (n + 1) * draft_us)"},
        "one draft too many for each k",
        1,
    ),
    slip(
        "no-maximum",
        "exp without the maximum",
        "choose_tokens",
        {"(rows / temperature).softmax(-1)": "torch.nn.functional.normalize((rows / temperature).exp(), 1, -1)"},
        "exp leaves float32 for numbers beyond 88",
        3,
    ),
    Submission(
        "kim",
        "whole prompts in one run",
        (replace("generate_texts", "    B, longest =", "    chunk = max(map(len, prompts))\n    B, longest ="),),
        {"generate_texts": Expected(2, Outcome.ERROR, "there is memory for")},
    ),
)
DEMO = ("ada", "carla", "dev", "gita")
