# %% [markdown]
# # Lesson 13: generate
#
# Your attention computes numbers. Here it writes text. You put it into a whole model, read prompts in chunks, choose
# tokens, and then let the model check several drafted tokens in one step, which decodes faster and, but for rounding,
# changes no token.
# Allow four hours: one to read, three for the exercises.
#
# | exercise | you write | points |
# |---|---|---|
# | `predict_drafting` | what drafts are worth, from their acceptance | 3 |
# | `attend_pages` | attention over pages for any chunk of a ragged batch: what a model calls | 4 |
# | `choose_tokens` | the next token, likeliest or drawn | 4 |
# | `generate_texts` | prompts of different lengths, in chunks, then token by token | 6 |
# | `verify_drafts` | several drafted tokens verified in a step | 5 |
#
# Each exercise may take 10 s and 512 MiB for all its cases. There is no kernel to write here.
#
# | symbol | meaning | DeepSeek-V3 |
# |---|---|---|
# | B, S | texts; tokens of each that go through the model together: a chunk of a prompt, 1, or k + 1 | |
# | V | tokens that there are: the vocabulary | 129,280 |
# | H, R | heads; width of the latent | 128, 512 |
# | Dn, Dr, Dv | width per head: without position, with position (RoPE), value | 128, 64, 128 |
# | k, a | drafted tokens in a step; **acceptance**: the share of them taken, where all before were | 1, 0.85 to 0.9 |

# %% setup="imports"
import math

import torch
from autograder import check

# %% [markdown]
# ## Why: a step is a walk through the weights
#
# One step of decoding makes one token for each text. It reads every weight that a token meets, once, whatever the
# number of texts; of the cache it reads what each text holds. The next cell counts both for DeepSeek-V3 in its
# published form, weights of one byte: of its 671 billion parameters a token meets 37 billion. With more texts more of
# the experts are met: a token takes 8 of 256, so B texts miss one with the probability (1 − 8/256)^B.

# %%
from mla_ref import DEVICES, MLAConfig, plots
from mla_ref.roofline import cache_bytes_per_token

v3, h200, context = MLAConfig.preset("deepseek_v3"), DEVICES["h200"], 4096
cached = cache_bytes_per_token("absorb", v3, layers=61)
experts = 58 * 256 * 3 * 7168 * 2048  # bytes: 58 layers, three matrices of 7168 × 2048 an expert
others = 671e9 - experts
weights = lambda tokens: others + experts * (1 - (1 - 8 / 256) ** tokens)
shares = {}
for B in (1, 8, 64, 512):
    shares[f"B = {B}"] = parts = (weights(B) / 1e9, B * context * cached / 1e9)
    twice = (weights(2 * B) / 1e9 + parts[1]) / sum(parts)
    ms = sum(parts) * 1e12 / 8 / h200.bandwidth()
    print(f"B = {B:3}: weights {parts[0]:4.0f} GB, cache {parts[1]:5.1f} GB, {ms:4.1f} ms at the bandwidth of 8 H200; "
          f"two tokens each: × {twice:.2f}")
plots.bars(
    {f"{name}: {part}": pair[n] for name, pair in shares.items() for n, part in enumerate(("weights", "cache"))},
    unit="GB read in a step, log scale", log=True, title="DeepSeek-V3, contexts of 4096 tokens",
)

# %% [markdown]
# In all of these steps the weights are most of what is read. From B = 64 on most experts are met anyway: a second token
# of each text needs little more of them, and the same cache. So if somebody *guessed* it, the model could check the
# guess for little more than the step costs anyway. With one text or eight the second tokens meet experts of their own,
# and the check costs half as much again, or more. (These are bytes. At B = 512 arithmetic counts too.)
#
# ## Predict: what is a draft worth?
#
# A cheap drafter proposes k tokens. The model computes all of them in one step, behind the last token that is certain:
# its logits at that token say what the first draft should have been, those at the first draft what the second should
# have been, and so on. It takes the drafts up to the first that it would not have chosen, and **one more token of its
# own**: the choice behind the last draft that it took.
#
# Suppose that it takes each draft, once those before it are taken, with the probability a. The k-th counts only if all
# before it do. So a step gives
#
# $$1 + a + a^2 + \dots + a^k = \frac{1 - a^{k+1}}{1 - a}$$
#
# tokens on average (Leviathan et al. 2023, arXiv:2211.17192).
#
# Write your guess first. DeepSeek-V3 drafts one token with a small layer of its own, and its report says that 85 to
# 90 % are taken. How many times as fast is its decoding?

# %%
guess = 1.5  # times as fast: put your own number here

# %% [markdown]
# ## Exercise: predict_drafting
#
# | argument | unit | |
# |---|---|---|
# | `acceptance` | 0 to 1 | the share a |
# | `k` | int, from 1 on | tokens drafted in a step |
# | `step_us` | µs | a step of the model over one token a text |
# | `draft_us` | µs | drafting one token |
# | `check` | from 1 on | a step over k + 1 tokens takes `check` times as long; take it as the same for every k |
#
# Return a dict: `"tokens"`, the mean number of tokens a step gives; `"speedup"`, the time of a token without drafts
# over the time of a token with them; `"best_k"`, the k from 1 to 8 with the greatest speedup.
#
# <details><summary>Hint 1</summary>
#
# Tokens first. At a = 1 the closed form is 0/0, and the sum is k + 1.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Without drafts a token takes `step_us`. With them a step takes `check * step_us + k * draft_us` and gives `tokens`.
#
# </details>
# <details><summary>Hint 3</summary>
#
# A small function `speedup(n)` inside serves both: `max(range(1, 9), key=speedup)`.
#
# </details>

# %% solution="predict_drafting"
def predict_drafting(acceptance, k, step_us, draft_us, check):
    """What k drafted tokens a step are worth.

    acceptance: float, 0 to 1; k: int; step_us, draft_us: float, microseconds; check: float.
    Returns a dict: tokens (float), speedup (float), best_k (int, 1 to 8).

    The traps: a draft behind a refused one is worth nothing; the model adds a token of its own; drafting takes time.
    """
    ### BEGIN SOLUTION
    def tokens(n):
        return sum(acceptance**i for i in range(n + 1))

    def speedup(n):
        return tokens(n) * step_us / (check * step_us + n * draft_us)

    return {"tokens": tokens(k), "speedup": speedup(k), "best_k": max(range(1, 9), key=speedup)}
    ### END SOLUTION


# %% check="predict_drafting"
check("predict_drafting")

# %% [markdown]
# With a = 0.85, one draft and nothing else to pay that is 1.85 tokens a step. DeepSeek's report gives 1.8 times the
# tokens per second. Your function says what drafting and checking may cost for that:

# %%
for cost, check_cost in ((0.0, 1.0), (0.02, 1.0), (0.02, 1.05), (0.02, 1.15)):
    found = predict_drafting(0.85, 1, 1.0, cost, check_cost)
    print(f"draft {cost:.0%} of a step, check {check_cost:.2f} steps: {found['speedup']:.2f} times as fast, "
          f"best k {found['best_k']}")

# %% [markdown]
# ## A model, given
#
# A language model is a stack of layers between an embedding and a head. The one below is DeepSeek's without its
# experts, the gate of its feed-forward layers and the low rank of the query. All of its weights are in a dict:
#
# | key | shape | key of `model["layers"][n]` | shape |
# |---|---|---|---|
# | `"embed"` | [V, D] | `"norm"`, `"mlp_norm"` | [D] |
# | `"norm"` | [D] | `"w_q"` | [H, Dn+Dr, D] |
# | `"head"` | [V, D] | `"w_dkv"`, `"kv_norm"` | [R+Dr, D], [R] |
# | `"layers"` | list | `"w_uk"`, `"w_uv"` | [H, Dn, R], [H, Dv, R] |
# | | | `"w_o"` | [D, H·Dv] |
# | | | `"w_up"`, `"w_down"` | [2D, D], [D, 2D] |
#
# A model may have two entries beside them: `"most"`, the most tokens of a text that there is memory for in one run, and
# `"left"`, how many tokens it takes in all runs from here on.
#
# `make_cache` makes one paged cache for all layers: a pool of pages for each, and one table, as all layers hold the
# same tokens. Latent and rotated key of a token lie side by side in one row of R + Dr numbers, as in vLLM and FlashMLA.
# `run` is what you call. It needs one thing of you: `attend_pages`.

# %% setup="model"
def rms_norm(x, weight):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * weight


def rotate(x, positions):
    """Rotate the neighbouring pairs of x [B, S, ..., Dr] by the angles of positions [B, S]."""
    frequency = 10000.0 ** (-torch.arange(0, x.shape[-1], 2, dtype=torch.float64) / x.shape[-1])
    angle = (positions[..., None] * frequency).view(*positions.shape, *[1] * (x.dim() - 3), -1)
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    a, b = x[..., 0::2], x[..., 1::2]
    return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2)


def make_cache(model, B, capacity, page_size=4):
    """An empty cache for B texts of capacity tokens and some to spare, its pages in no order; what it holds is old."""
    w = model["layers"][0]
    per_text = -(-capacity // page_size) + 8
    order = torch.arange(B * per_text).flip(0).view(per_text, B).T
    shape = B * per_text, page_size, w["w_dkv"].shape[0]
    return {
        "pages": [torch.full(shape, 3.0) for _ in model["layers"]],
        "table": order.to(torch.int32).contiguous(),
        "seq_lens": torch.zeros(B, dtype=torch.int64),  # tokens that each text holds
    }


def run(model, tokens, positions, lengths, cache):
    """Run new tokens through the model, and put them into the cache.

    tokens, positions: [B, S], int64; lengths: [B], how many of the S are real, from the first on; 0 for a text that
    gets none. Returns logits [B, S, V], without meaning behind padding. cache["seq_lens"] is a new tensor afterwards.
    Raises ValueError if a length is more than model["most"], where there is one, if all lengths are more than
    model["left"], which counts them, or if a text that gets some has more then than the cache has room for.
    """
    if (n := int(lengths.max())) > model.get("most", n):
        raise ValueError(f"{n} tokens of a text in one run, and there is memory for {model['most']}")
    if "left" in model:
        model["left"] -= int(lengths.sum())
        if model["left"] < 0:
            raise ValueError("the runs have taken more tokens than the texts have: each goes through the model once")
    room = cache["table"].shape[1] * cache["pages"][0].shape[1]
    if (n := int(((cache["seq_lens"] + lengths) * (lengths > 0)).max())) > room:
        raise ValueError(f"{n} tokens of a text, and the cache has room for {room}: make it larger, or cut it back")
    x = model["embed"][tokens]
    for w, pages in zip(model["layers"], cache["pages"], strict=True):
        Dn, R = w["w_uk"].shape[1:]
        h = rms_norm(x, w["norm"])
        q_nope, q_rope = torch.einsum("bsd,hed->bshe", h, w["w_q"]).split((Dn, w["w_q"].shape[1] - Dn), -1)
        c_kv, k_rope = (h @ w["w_dkv"].T).split((R, w["w_dkv"].shape[0] - R), -1)
        c_kv, k_rope = rms_norm(c_kv, w["kv_norm"]), rotate(k_rope, positions)
        context = pages, cache["table"], cache["seq_lens"], lengths
        out, _ = attend_pages(q_nope, rotate(q_rope, positions), c_kv, k_rope, w["w_uk"], w["w_uv"], *context)
        x = x + out.flatten(2) @ w["w_o"].T
        h = rms_norm(x, w["mlp_norm"])
        x = x + torch.nn.functional.silu(h @ w["w_up"].T) @ w["w_down"].T
    cache["seq_lens"] = cache["seq_lens"] + lengths
    return rms_norm(x, model["norm"]) @ model["head"].T


# %% [markdown]
# ## Exercise: attend_pages
#
# An engine calls its attention with whatever it has: a chunk of one text's prompt, a single token of another. Shorter
# rows are padded behind. Write the new tokens into their pages, then attend, absorbed, causal.
#
# | | shape | |
# |---|---|---|
# | `q_nope`, `q_rope` | [B, S, H, Dn], [B, S, H, Dr] | rotated |
# | `c_kv`, `k_rope` | [B, S, R], [B, S, Dr] | of the new tokens: normalised, rotated |
# | `w_uk`, `w_uv` | [H, Dn, R], [H, Dv, R] | |
# | `pages` | [num_pages, page_size, R+Dr] | latent, then key; to be changed in place |
# | `table` | [B, max_pages], int32 | page p of a text has its tokens from p · page_size on |
# | `seq_lens` | [B], int64 | tokens that are there already; 0 is possible |
# | `lengths` | [B], int64 | new tokens that are real, 0 to S |
# | returns `out` | [B, S, H, Dv] | zeros for padding |
# | returns `pages` | | the argument |
#
# Floats are float32. New token s of text b stands at `seq_lens[b] + s`. Nothing else in the pool may change: a page of
# another text, or the rest of the last page. What lies behind a text's last token is old, and finite.
#
# <details><summary>Hint 1</summary>
#
# Three blocks: write, gather, attend. With `real = torch.arange(S) < lengths[:, None]`, `real.nonzero(as_tuple=True)`
# gives text and place of every real token.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Token at position p goes to `pages[table[b, p // page_size], p % page_size]`, and one assignment with index tensors
# writes all. `pages[table.long()].flatten(1, 2)` is `[B, max_pages · page_size, R+Dr]`, each text in order.
#
# </details>
# <details><summary>Hint 3</summary>
#
# Latent and key are one row, so the absorbed query is one too: `torch.cat((torch.einsum("bshd,hdr->bshr", q_nope,
# w_uk), q_rope), -1)`. Position t is hidden from new token s if t > seq_lens[b] + s. Values are the first R columns.
# The scale is 1/√(Dn+Dr).
#
# </details>

# %% solution="attend_pages"
def attend_pages(q_nope, q_rope, c_kv, k_rope, w_uk, w_uv, pages, table, seq_lens, lengths):
    """Write a chunk of new tokens into pages, and attend from it to all that its texts hold then.

    q_nope, q_rope: [B, S, H, Dn], [B, S, H, Dr]; c_kv, k_rope: [B, S, R], [B, S, Dr];
    w_uk, w_uv: [H, Dn, R], [H, Dv, R]; pages: [num_pages, page_size, R+Dr], changed in place;
    table: [B, max_pages], int32; seq_lens, lengths: [B], int64.
    Returns out [B, S, H, Dv], zeros for padding, and pages. All floats are float32.

    The traps: where the chunk begins; what of it is padding; the scale.
    """
    ### BEGIN SOLUTION
    (_, S, _, Dn), Dr, R, size = q_nope.shape, q_rope.shape[-1], c_kv.shape[-1], pages.shape[1]
    real = torch.arange(S) < lengths[:, None]
    position = seq_lens[:, None] + torch.arange(S)  # [B, S]
    text, place = real.nonzero(as_tuple=True)
    at = position[text, place]
    pages[table[text, at // size].long(), at % size] = torch.cat((c_kv, k_rope), -1)[text, place]

    held = pages[table.long()].flatten(1, 2)  # [B, T, R + Dr]
    query = torch.cat((torch.einsum("bshd,hdr->bshr", q_nope, w_uk), q_rope), -1)
    scores = torch.einsum("bshe,bte->bsht", query, held) * (Dn + Dr) ** -0.5
    hidden = torch.arange(held.shape[1]) > position[..., None]  # [B, S, T]
    weights = scores.masked_fill(hidden[:, :, None], -math.inf).softmax(-1)
    out = torch.einsum("bsht,btr,hvr->bshv", weights, held[..., :R], w_uv)
    return out.masked_fill(~real[..., None, None], 0.0), pages
    ### END SOLUTION


# %% check="attend_pages"
check("attend_pages")

# %% [markdown]
# ## Exercise: choose_tokens
#
# Logits become a token in one of two ways. At temperature 0 it is the likeliest. Else the logits are divided by the
# temperature, and a token is drawn by its share in the softmax. **Top-p** draws from the likeliest alone: the fewest
# tokens whose shares add up to `top_p` at least. So the token that crosses `top_p` is among them, and there is always
# one.
#
# | | shape | |
# |---|---|---|
# | `logits` | [B, S, V], float32 | of a chunk |
# | `lengths` | [B], int64 | the last real token of text b is `lengths[b] - 1`: its logits are asked for |
# | `temperature`, `top_p` | float | 0 or more; more than 0, up to 1 |
# | `u` | [B], float32, 0 to 1 | a random number for each text; None at temperature 0 |
# | returns | [B], int64 | |
#
# To draw with u: order the kept tokens by their shares, the likeliest first. Take the first token whose running sum is
# greater than u times the sum of all that are kept.
#
# <details><summary>Hint 1</summary>
#
# First the row of each text: `logits[torch.arange(B), lengths - 1]`, `[B, V]`. At temperature 0 only `argmax` is left
# to do.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `shares, order = probabilities.sort(-1, descending=True)`, `ends = shares.cumsum(-1)`. What stands in front of a
# token adds up to `ends - shares`: it is kept if that is less than `top_p`.
#
# </details>
# <details><summary>Hint 3</summary>
#
# Set the other shares to 0 and sum again: `ends` then stays at its last value, the sum of all. The number of `ends`
# that are not greater than `u[:, None] * ends[:, -1:]` is the place of the token in `order`.
#
# </details>

# %% solution="choose_tokens"
def choose_tokens(logits, lengths, temperature=0.0, top_p=1.0, u=None):
    """Return a token [B], int64, for each text, from the logits [B, S, V] of its last real token.

    lengths: [B], int64; temperature, top_p: float; u: [B], float32, or None at temperature 0.

    The traps: which row of a padded chunk; the token that crosses top_p belongs to the kept; their shares add up to
    less than 1.
    """
    ### BEGIN SOLUTION
    rows = logits[torch.arange(len(logits)), (lengths - 1).clamp(min=0)]
    if temperature == 0:
        return rows.argmax(-1)
    shares, order = (rows / temperature).softmax(-1).sort(-1, descending=True)
    shares = shares.masked_fill(shares.cumsum(-1) - shares >= top_p, 0.0)
    ends = shares.cumsum(-1)
    place = (ends <= u[:, None] * ends[:, -1:]).sum(-1, keepdim=True)
    return order.gather(1, place.clamp(max=order.shape[1] - 1))[:, 0]
    ### END SOLUTION


# %% check="choose_tokens"
check("choose_tokens")

# %% [markdown]
# ## Exercise: generate_texts
#
# Now the loop of an engine, greedy. **Prefill** puts the prompts into the cache, `chunk` tokens of each at a time: a
# long prompt would fill the GPU's memory with activations, and make all others wait. **Decode** then takes one token of
# each text at a time.
#
# | | | |
# |---|---|---|
# | `model` | dict | see above |
# | `prompts` | list of B lists of ints | of different lengths, none empty |
# | `new` | int | most tokens that a text gets |
# | `chunk` | int | most tokens of a text in one run of the prefill; `model["most"]` says the same |
# | `model["left"]` | int | enough for each token once, padding included: what the cache holds is not run again |
# | `stop` | int | the token that ends a text; −1 for none |
# | returns | [B, new], int64 | a text keeps the token that ends it; behind it its row holds −1 |
#
# Call `make_cache`, `run` and `choose_tokens`. Three things need care. A short prompt ends in an earlier chunk than a
# long one, and its first new token comes from *that* run's logits. The new tokens' positions go on where the prompt
# ended. And a text that has no tokens in this chunk gets length 0, as does one that has ended: else its cache
# grows, though its row holds −1 anyway.
#
# <details><summary>Hint 1</summary>
#
# For the chunk from `start` on: `parts = [prompt[start : start + chunk] for prompt in prompts]`, `lengths` of these,
# tokens padded with 0 to the longest, positions `start + torch.arange(S)` for all.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Keep the newest choice of a text that had tokens: `token = torch.where(lengths > 0, choose_tokens(logits, lengths),
# token)`. After the last chunk that is everybody's first new token.
#
# </details>
# <details><summary>Hint 3</summary>
#
# In decode, `run(model, token[:, None], cache["seq_lens"][:, None], going.long(), cache)`, where `going` says which
# texts have not ended. Write first, then look for `stop`, then run: the last token needs no run of its own.
#
# </details>

# %% solution="generate_texts"
def generate_texts(model, prompts, new, chunk, stop):
    """Go on from prompts with the likeliest tokens.

    model: dict; prompts: list of B lists of ints, none empty; new, chunk, stop: int.
    Returns [B, new], int64: the new tokens of each text, -1 behind the one that is stop.

    The traps: positions go on behind the prompt; padding is no token; prompts end in different chunks.
    """
    ### BEGIN SOLUTION
    B, longest = len(prompts), max(map(len, prompts))
    cache = make_cache(model, B, longest + new)
    token = torch.zeros(B, dtype=torch.int64)
    for start in range(0, longest, chunk):
        parts = [prompt[start : start + chunk] for prompt in prompts]
        lengths = torch.tensor([len(part) for part in parts])
        S = int(lengths.max())
        tokens = torch.tensor([part + [0] * (S - len(part)) for part in parts])
        logits = run(model, tokens, (start + torch.arange(S)).expand(B, S), lengths, cache)
        token = torch.where(lengths > 0, choose_tokens(logits, lengths), token)
    found = torch.full((B, new), -1)
    going = torch.ones(B, dtype=torch.bool)
    for n in range(new):
        found[:, n] = torch.where(going, token, -1)
        going = going & (token != stop)
        if n + 1 == new or not going.any():
            break
        logits = run(model, token[:, None], cache["seq_lens"][:, None], going.long(), cache)
        token = choose_tokens(logits, torch.ones_like(token))
    return found
    ### END SOLUTION


# %% check="generate_texts"
check("generate_texts")

# %% [markdown]
# ## Exercise: verify_drafts
#
# A drafter has guessed. Here its guesses come in a table: `guesses[b, n]` are the k tokens that it expects behind the
# n-th new token of text b, counted from 0. (DeepSeek-V3's drafter is one more layer: it takes the last hidden state and
# the newest token, and is applied again to its own result for a further one.)
#
# 1. One run over the prompts, whole: its choice is new token 0.
# 2. Then in every round one run over k + 1 tokens of each text: the newest, and its k drafts. Take the drafts up to
#    the first that the model would not have chosen, and its own choice there.
# 3. The run has put all k + 1 tokens into the cache. **Cut it back**: what stays are the tokens before, the newest, and
#    the drafts that were taken. To forget the rest, set `cache["seq_lens"]`: the next run writes over it.
#
# A text with `new` tokens is done, and gets length 0 in further rounds. The others go on. Greedy throughout, no stop.
#
# | | | |
# |---|---|---|
# | `model`, `prompts`, `new` | | as before |
# | `guesses` | [B, new, k], int64 | |
# | returns `tokens` | [B, new], int64 | **exactly** those of greedy decoding without drafts |
# | returns `calls` | int | how often `run` was called, the prompts included; the grader counts as well, for each text |
#
# The last round may give more than `new` tokens: leave out what is too many. The cache needs room for k more tokens.
#
# <details><summary>Hint 1</summary>
#
# `best = logits.argmax(-1)` is `[B, k + 1]`: `best[:, i]` is the model's choice behind token i of the run. So draft i
# (from 0) is right if it is `best[:, i]`.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `(best[:, :-1] == drafts).long().cumprod(1).sum(1)` counts the right ones before the first wrong one. The new tokens
# of text b are then `best[b, : taken[b] + 1]`: the drafts taken are the model's own choices.
#
# </details>
# <details><summary>Hint 3</summary>
#
# Remember `before = cache["seq_lens"]` in front of the run; behind it `cache["seq_lens"] = before + (taken + 1) *
# going`. Keep the new tokens as B lists: a text's newest is its last, and its drafts are `guesses[b,
# min(len(found[b]), new) - 1]`, as a text that is done may have more than `new`. Loop while any list is shorter.
#
# </details>

# %% solution="verify_drafts"
def verify_drafts(model, prompts, new, guesses):
    """Greedy decoding with drafts: the same tokens in fewer runs of the model.

    model: dict; prompts: list of B lists of ints; new: int; guesses: [B, new, k], int64.
    Returns tokens [B, new], int64, and calls, an int.

    The traps: the first wrong draft ends a round; its place gets the model's own choice; the cache holds all k drafts.
    """
    ### BEGIN SOLUTION
    (B, _, k), longest = guesses.shape, max(map(len, prompts))
    cache = make_cache(model, B, longest + new + k)
    lengths = torch.tensor([len(prompt) for prompt in prompts])
    tokens = torch.tensor([prompt + [0] * (longest - len(prompt)) for prompt in prompts])
    logits = run(model, tokens, torch.arange(longest).expand(B, longest), lengths, cache)
    found = [[token] for token in choose_tokens(logits, lengths).tolist()]
    calls = 1
    while min(map(len, found)) < new:
        going = torch.tensor([len(each) < new for each in found]).long()
        newest = torch.tensor([[each[-1]] for each in found])
        drafts = torch.stack([guesses[b, min(len(each), new) - 1] for b, each in enumerate(found)])
        before = cache["seq_lens"]
        positions = before[:, None] + torch.arange(k + 1)
        logits = run(model, torch.cat((newest, drafts), 1), positions, going * (k + 1), cache)
        best = logits.argmax(-1)
        taken = (best[:, :-1] == drafts).long().cumprod(1).sum(1)
        cache["seq_lens"] = before + (taken + 1) * going
        for b, each in enumerate(found):
            if going[b]:
                each += best[b, : taken[b] + 1].tolist()
        calls += 1
    return torch.tensor([each[:new] for each in found]), calls
    ### END SOLUTION


# %% check="verify_drafts"
check("verify_drafts")

# %% [markdown]
# ## Your code in the model
#
# The course has a trained model of DeepSeek-V3's architecture: bytes in, bytes out, trained on the documentation and
# sources of Python's standard library. The next cell puts your `attend_pages` in place of its attention.

# %%
from mla_ref import playground

playground.write("class Cache:\n    ", pages=attend_pages, new=60)

# %% [markdown]
# ## Measure: drafts that it makes itself
#
# The model has one more layer that drafts, as DeepSeek-V3 has. `mla_ref.drafting` is your `verify_drafts` with that
# layer behind it.

# %%
playground.draft("class Cache:\n    ", new=60)

# %% [markdown]
# **Tokens per step** is what your prediction calls `tokens`, or a little less: the run over the prompt counts as a
# step, too. The shares are of all rounds. With one acceptance for every place of a draft they would be a, a² and a³:
# divide each by the one before. These quotients fall, so the assumption fails here. The layer was trained to go one
# token further, and does worse behind its own result.
#
# ## Measure: where the time of a step goes
#
# One step of a larger model on an {{generation_h200.device}}: 8 layers of width 2048 with 16 heads and random weights,
# in bfloat16, behind 4096 tokens a sequence. The GPU's microseconds by part, from the profiler, and last the time from
# the step's start by Python to its end (`benchmarks/generation_h200.json`).
#
# {{step_table}}
#
# Naive expands the whole context in every layer of every step. With the kernel, attention and cache take
# {{attention_share}} % of the GPU's time at B = 64. The last column is the trap: Python starts one small operation
# after the other, and at B = 64 the step with the kernel takes {{starts}} times as long as the GPU computes. Serving
# engines capture the step in a CUDA graph for this reason.
#
# Verifying several tokens is a step with S > 1. With 16 heads and B = 64, the decode kernel alone took {{few_2}} times
# as long for 2 tokens as for one, and {{few_4}} times for 4. With 128 heads it took {{many_2}} and {{many_4}} times.
# With 16 heads memory decides, and the cache is read once for all tokens. With 128 heads the matrix units decide, and
# each token brings them its whole work.
#
# ## In the field
#
# - **MTP in engines.** DeepSeek-V3's checkpoint has one such layer. vLLM first took one draft of it, and then let it
#   go on from its own result (vllm #12755, #13626). With DeepSeek-V4 and two drafts that way, a comparison saw 70 % of
#   the first taken, and 29 % of both (vllm #41044): 41 % of the second where the first was.
# - **k + 1 query tokens.** The fold of lesson 06 makes rows of them. Kernels that were written for one token do not
#   take the call.
# - **One backend, several kernels.** Engines choose by the shape of the call: absorbed for decode and drafts, expanded
#   with a ragged kernel for prefill (lesson 11), and for a chunk whose prefix is cached both, merged by lse.
# - **Chunked prefill** mixes chunks of prompts and decode tokens in one batch. Its lengths are ragged always, and a
#   row of length 0 or 1 is nothing special: vllm #27715 and FlashMLA #126 are what happens otherwise.
# - **Positions.** The public code of the report behind this course ignores `start_pos` in its page kernels: it is
#   right for the first chunk alone.
# - **The same tokens?** Your two functions agree exactly because the judge left no choice to rounding. On a GPU a
#   product over 4 rows and one over 1 may round differently, and where two logits are nearly equal the texts part.
#   That is no error of the drafts; compare logits, not texts, before you look for one.
# - **Drawn tokens** can be verified as well: take a draft with the probability min(1, p/q) of both models' shares,
#   else draw from what is left of p − q. The result is distributed as without drafts (arXiv:2211.17192).
#
# ## What to take along
#
# - A step costs the weights it reads. Tokens that share a step share that cost: texts of a batch, chunks of a prompt,
#   drafts.
# - But for rounding, drafts do not change the greedy text. They change how many steps it takes:
#   (1 − a^{k+1}) / (1 − a) tokens a step.
# - A cache is cut back by its lengths. Pages and attention need not know.
#
# Figures: {{records}}.
