# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown]
# # Lesson 03: weight absorption
#
# The cache of lesson 02 is small: R + Dr = 576 words a token in DeepSeek-V3. (A **word** is one stored number.) But the
# **naive** form expands every cached latent into keys and values of all heads, for every new token, and throws them
# away again. This lesson removes the expansion. The result stays the same up to rounding.
#
# You write the **absorbed** form of MLA, which decode kernels compute, such as DeepSeek's FlashMLA. You count what it
# saves and what it costs, and from where on the naive form is the better one. The lesson takes about two hours.
#
# | exercise | you write | points |
# |---|---|---|
# | `predict_macs` | MACs and cached words of both forms | 2 |
# | `absorb_query` | the key weights into the query | 2 |
# | `latent_attention` | attention over the latent cache | 5 |
# | `absorb_output` | the value weights behind the softmax | 2 |
# | `absorbed_mla_attention` | the whole absorbed form | 3 |
# | `absorb_costs` | FLOPs and bytes of a whole step | 4 |
# | `break_even_queries` | from how many query tokens on naive takes fewer FLOPs | 2 |
#
# | symbol | meaning | DeepSeek-V3 |
# |---|---|---|
# | B, S, T | batch, new query tokens per sequence, context length (the S new tokens included) | |
# | H | heads | 128 |
# | Dn, Dr, Dv | width per head: without position, with position (RoPE), value | 128, 64, 128 |
# | R, D, Rq | width of the latent, of the model, of the query's latent | 512, 7168, 1536 |
#
# Tensors have the names of lesson 02. Limits, where nothing else is said: 10 seconds and 512 MiB for all cases of an
# exercise.

# %% setup="imports"
import math

import torch
from autograder import check

# %% [markdown]
# ## Why: the same product, bracketed differently
#
# Take one head h, one query and one cached token t. Lesson 02 built the key $k_t = W^{UK}_h c_t$ and multiplied it with
# the query. A product of three matrices may be bracketed either way:
#
# $$q^\top (W^{UK}_h\, c_t) \;=\; ({W^{UK}_h}^\top q)^\top c_t .$$
#
# The left bracket belongs to the **token**: it is computed for every token of the context. The right one belongs to the
# **query**: it is computed once per query, and serves every token. This is weight absorption. On the output side the
# weights $p_t$ of the softmax are numbers, so the matrix can leave the sum:
#
# $$\sum_t p_t\, (W^{UV}_h\, c_t) \;=\; W^{UV}_h \Big(\sum_t p_t\, c_t\Big).$$
#
# The RoPE part was never compressed (lesson 02). It is multiplied as it is.

# %%
torch.manual_seed(0)
Dn, R, T = 128, 512, 1000
q, w_uk = torch.randn(Dn, dtype=torch.float64), torch.randn(Dn, R, dtype=torch.float64)
c_kv = torch.randn(T, R, dtype=torch.float64)
keys_first = (c_kv @ w_uk.T) @ q  # T keys of Dn, then T products
query_first = c_kv @ (w_uk.T @ q)  # one query of R, then T products
print(f"largest difference {(keys_first - query_first).abs().max():.0e}, scores to {keys_first.abs().max():.0f}")
print(f"multiply-accumulates: keys first {T * Dn * R + T * Dn:,}, query first {Dn * R + T * R:,}")

# %% [markdown]
# Both data flows, with the sizes of DeepSeek-V3 for one sequence:

# %%
from mla_ref import plots

plots.flow(
    {
        "q": (0, 4, "q_nope | q_rope\n[S, 128, 128 | 64]"), "kr": (2.4, 4, "k_rope\n[T, 64]"),
        "c": (4.4, 4, "c_kv\n[T, 512]"), "K": (2.4, 2.7, "K [T, 128, 128 | 64]"),
        "V": (4.6, 2.7, "V [T, 128, 128]"), "p": (1.2, 1.5, "p = softmax(q·K / √192)"),
        "o": (3, 0.3, "out = p·V [S, 128, 128]"),
        "q2": (7.4, 4, "q_nope | q_rope\n[S, 128, 128 | 64]"),
        "ql": (7.4, 2.7, "q_latent | q_rope\n[S, 128, 512 | 64]"),
        "ck": (10.6, 4, "c_kv | k_rope [T, 512 | 64]"), "p2": (8.4, 1.5, "p = softmax(q·key / √192)"),
        "ol": (10.9, 1.5, "p·c_kv\n[S, 128, 512]"), "o2": (10.9, 0.3, "out [S, 128, 128]"),
    },
    [
        ("q", "p"), ("kr", "K", "copies"), ("c", "K", "$W^{UK}$"), ("c", "V", "$W^{UV}$"),
        ("K", "p"), ("p", "o"), ("V", "o"),
        ("q2", "ql", "$W^{UK}$"), ("ql", "p2"), ("ck", "p2", "key: all 576"), ("ck", "ol", "value: the first 512"),
        ("p2", "ol"), ("ol", "o2", "$W^{UV}$"),
    ],
    groups={"grows with the context T": ["kr", "c", "K", "V", "ck"],
            "grows with the new tokens S": ["q", "o", "q2", "ql", "ol", "o2"]},
    title="left, naive: expand the cache to 128 heads;   right, absorbed: bring the query to the cache",
    size=(11.5, 4.6),
)  # fmt: skip

# %% [markdown]
# The right side is **multi-query attention** (MQA, lesson 01): H query heads, one key head. The key is R + Dr = 576
# wide. The value is no other tensor: it is the first R = 512 words of the key. On the right side nothing grows with T
# but the cache and the weights p.

# %% [markdown]
# ## Predict: arithmetic against bytes
#
# Absorption is not free. Per head, the query it compares with a token becomes wider (512 + 64 in place of 128 +
# 64), and so does the value it averages (512 in place of 128).
#
# Write `predict_macs`. Per **query token and context token**, count the MACs of attention: scores and weighted sum,
# over all heads. Per **context token**, count the words that the cache holds and attention reads.
#
# - `naive_macs`, `naive_words`: keys and values are stored expanded, for every head, as attention reads them. So
#   each head has a whole key of its own, Dn + Dr wide. This is the cache that multi-head attention would have, not what
#   lesson 02 stored.
# - `absorb_macs`, `absorb_words`: attention over the latent cache.
#
# Leave out the projections (they come later in this lesson), the softmax, and the mask. A **MAC**, a
# multiply-accumulate, is two FLOPs.
#
# <details><summary>Hint 1</summary>
#
# A score is one product of a query with a key: as many MACs as the key is wide. The weighted sum adds one value,
# times a weight: as many MACs as the value is wide. Both happen in every head, in both forms.
#
# </details>
# <details><summary>Hint 2</summary>
#
# naive: keys Dn + Dr wide, values Dv wide, H of each. absorb: the key is R + Dr wide, the value R wide, H query
# heads multiply with it. Stored is one key, and the value is inside it.
#
# </details>
# <details><summary>Hint 3</summary>
#
# Four lines. For DeepSeek-V3 three of the four numbers are multiples of 1024: 40, 136 and 40 of them. The fourth is
# 576.
#
# </details>

# %% solution="predict_macs"
def predict_macs(H, Dn, Dr, Dv, R):
    """Count the arithmetic and the cache of both forms of MLA.

    H, Dn, Dr, Dv, R: int, the layer's sizes.

    Returns a dict of four numbers:
        "naive_macs", "absorb_macs": MACs per query token and context token, over all heads;
        "naive_words", "absorb_words": words per context token in the cache (words, not bytes).
    Trap: one shared key does not mean one head's arithmetic.
    """
    ### BEGIN SOLUTION
    return {
        "naive_macs": H * (Dn + Dr + Dv),
        "absorb_macs": H * (R + Dr + R),
        "naive_words": H * (Dn + Dr + Dv),
        "absorb_words": R + Dr,
    }
    ### END SOLUTION


# %% check="predict_macs"
check("predict_macs")

# %% [markdown]
# Your numbers for DeepSeek-V3, in units of 1024. They are those of Table 1 of the TyphoonMLA paper (arXiv:2509.21081).

# %%
from mla_ref import DEVICES, MLAConfig, tokens_that_fit

v3 = MLAConfig.preset("deepseek_v3")
sizes = dict(H=128, Dn=128, Dr=64, Dv=128, R=512)  # as in v3
counts = predict_macs(**sizes)
h100 = DEVICES["h100"]
for name, count in counts.items():
    print(f"{name:12} {count / 1024:8.4g} × 1024")
more, fewer = counts["absorb_macs"] / counts["naive_macs"], counts["naive_words"] / counts["absorb_words"]
print(f"absorb: {more:.1f} times the arithmetic, 1/{fewer:.0f} of the bytes")
for form in ("naive", "absorb"):
    flops, nbytes = 2 * counts[f"{form}_macs"], 2 * counts[f"{form}_words"]  # 2 bytes a word
    print(f"{form:>6}: {flops / nbytes:5.1f} FLOP per byte of a 16-bit cache, one query token")
peak, memory = h100.rate() / 1e12, h100.bandwidth() / 1e12
print(f"H100, data sheet: {peak:.0f} TFLOP/s over {memory:.2f} TB/s = {h100.ridge():.0f} FLOP per byte")
for form in ("naive", "absorb"):
    print(f"{form:>6}: {tokens_that_fit(form, v3, 80e9, layers=61):>9,} tokens fit into 80 GB, 61 layers, 16 bits")

# %% [markdown]
# With one new token the naive form does 1 FLOP per byte, so the arithmetic units of an H100 idle while it reads.
# The absorbed form does 242 FLOP per byte, close to the 295 at which the device is balanced. It reads 71 times
# fewer bytes and pays with 3.4 times the arithmetic, which the device had to spare. And 71 times as many tokens fit.

# %% [markdown]
# ## Build: absorb the query
#
# The first of three pieces. Every head multiplies its query by its own weight, once per query token:
#
# $$\text{q\_latent}_{b,s,h,r} = \sum_{d} \text{q\_nope}_{b,s,h,d}\; W^{UK}_{h,d,r}$$
#
# This is equation 12 of the report "Optimizing Multi-head Latent Attention for Efficient Inference".
#
# | | shape | dtype |
# |---|---|---|
# | `q_nope` | [B, S, H, Dn] | float32 |
# | `w_uk` | [H, Dn, R] | float32 |
# | returns `q_latent` | [B, S, H, R] | float32 |
#
# <details><summary>Hint 1</summary>
#
# h is an index of both inputs and of the result. It is neither summed over nor broadcast: a *batched* product, one
# batch entry per head.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `torch.einsum` writes such a product as its formula: name the axes of both inputs and of the result. The axis that
# is missing in the result is summed over.
#
# </details>
# <details><summary>Hint 3</summary>
#
# One line: `torch.einsum("bshd,hdr->…", q_nope, w_uk)`, with the result's axes in place of the dots.
#
# </details>

# %% solution="absorb_query"
def absorb_query(q_nope, w_uk):
    """Bring the query without position into the latent space: W_UK absorbed.

    q_nope: [B, S, H, Dn] float32; w_uk: [H, Dn, R] float32.
    Returns q_latent: [B, S, H, R] float32.

    Traps: `q_nope @ w_uk` runs where S equals H or is 1, and multiplies query s by the weight of head s, or by all.
    An `@` that broadcasts w_uk over the tokens copies it for each of them; einsum does not.
    """
    ### BEGIN SOLUTION
    return torch.einsum("bshd,hdr->bshr", q_nope, w_uk)
    ### END SOLUTION


# %% check="absorb_query"
check("absorb_query")

# %% [markdown]
# ## Build: attention over the latent cache
#
# The core, and what an MLA decode kernel does. It knows nothing of W_UK and W_UV. Equation 13 of the report,
# without its last factor:
#
# $$x_{b,s,h,t} = \big(\text{q\_latent}_{b,s,h} \cdot c_{b,t} + \text{q\_rope}_{b,s,h} \cdot \text{k\_rope}_{b,t}\big)
# \cdot \text{scale}, \qquad
# \text{out\_latent}_{b,s,h} = \sum_t \operatorname{softmax}_t(x_{b,s,h})_t \; c_{b,t}$$
#
# | | shape | dtype |
# |---|---|---|
# | `q_latent`, `q_rope` | [B, S, H, R], [B, S, H, Dr] | float32 |
# | `c_kv`, `k_rope` | [B, T, R], [B, T, Dr] | float32 |
# | `scale` | | float |
# | returns `out_latent` | [B, S, H, R] | float32 |
# | returns `lse` | [B, S, H] | float32 |
#
# As in lesson 01: the S queries are the last S of the T tokens, a query sees its own position and everything before
# it, and `lse` is the natural logarithm of the sum of the exponentials of the scaled, masked scores.
#
# **Why `scale` is an argument.** The softmax was trained with 1/√(Dn+Dr), and the scores are still the same
# numbers. But Dn can no longer be read off the shapes: the tensors here are R and Dr wide. Do not compute a scale
# from them.
#
# May not be called: `scaled_dot_product_attention`. Scores may be large enough for `exp` to overflow. A later cell
# calls your functions in float64 and bfloat16 too: a mask that you add needs the dtype of the scores.
#
# <details><summary>Hint 1</summary>
#
# c_kv and k_rope have no head axis. The h of the query stays, and all heads meet the same token. This is lesson
# 01's attention with the head axis gone from the key and the value.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Scores are two products, added, then scaled: `"bshr,btr->bsht"` and `"bshe,bte->bsht"` with e for Dr. Mask: query
# s sees t ≤ T − S + s. Put −inf elsewhere, before the softmax and `torch.logsumexp`.
#
# </details>
# <details><summary>Hint 3</summary>
#
# Eight lines. The mask, the weights `torch.softmax(scores, dim=-1)` and the log-sum-exp are those of your `attention`
# in lesson 01. The output is `torch.einsum("bsht,btr->bshr", weights, c_kv)`.
#
# </details>

# %% solution="latent_attention"
def latent_attention(q_latent, q_rope, c_kv, k_rope, scale):
    """Causal multi-query attention over the latent cache.

    q_latent: [B, S, H, R]; q_rope: [B, S, H, Dr]; c_kv: [B, T, R]; k_rope: [B, T, Dr]; all float32.
    T counts the S new tokens. scale: float, multiplies the scores.
    Returns out_latent [B, S, H, R] and lse [B, S, H], natural logarithm, both float32.

    Traps: the key is c_kv and k_rope, the value is c_kv alone. The scale is the argument, never
    1/√(R+Dr).
    """
    ### BEGIN SOLUTION
    S, T = q_latent.shape[1], c_kv.shape[1]
    scores = torch.einsum("bshr,btr->bsht", q_latent, c_kv)
    scores = scores + torch.einsum("bshe,bte->bsht", q_rope, k_rope)
    future = torch.arange(T) > torch.arange(S)[:, None] + (T - S)  # [S, T]
    scores = (scores * scale).masked_fill(future[:, None, :], -math.inf)
    lse = torch.logsumexp(scores, dim=-1)
    weights = torch.softmax(scores, dim=-1)
    return torch.einsum("bsht,btr->bshr", weights, c_kv), lse
    ### END SOLUTION


# %% check="latent_attention"
check("latent_attention")

# %% [markdown]
# ## Build: expand the output
#
# The average of latents, one per head, becomes that head's output. Once per query token, whatever the context:
#
# $$\text{out}_{b,s,h,v} = \sum_r \text{out\_latent}_{b,s,h,r}\; W^{UV}_{h,v,r}$$
#
# | | shape | dtype |
# |---|---|---|
# | `out_latent` | [B, S, H, R] | float32 |
# | `w_uv` | [H, Dv, R] | float32 |
# | returns `out` | [B, S, H, Dv] | float32 |
#
# <details><summary>Hint 1</summary>
#
# The counterpart of `absorb_query`, with one difference: which axis of the weight is summed over.
#
# </details>
# <details><summary>Hint 2</summary>
#
# w_uv is stored as it was applied to a latent: R in, Dv out. It is applied to a latent here too. R is its last
# axis.
#
# </details>
# <details><summary>Hint 3</summary>
#
# One line, `torch.einsum` again. The inputs are `"bshr,hvr"`.
#
# </details>

# %% solution="absorb_output"
def absorb_output(out_latent, w_uv):
    """Bring the latent output back to value width: W_UV after the softmax.

    out_latent: [B, S, H, R] float32; w_uv: [H, Dv, R] float32.
    Returns out: [B, S, H, Dv] float32.

    Trap: w_uk was summed over its middle axis, w_uv is summed over its last.
    """
    ### BEGIN SOLUTION
    return torch.einsum("bshr,hvr->bshv", out_latent, w_uv)
    ### END SOLUTION


# %% check="absorb_output"
check("absorb_output")

# %% [markdown]
# ## Build: the absorbed form whole
#
# Put the three pieces together. The signature and the result are those of lesson 02's naive attention, so one can
# stand in for the other.
#
# | | shape | dtype |
# |---|---|---|
# | `q_nope`, `q_rope` | [B, S, H, Dn], [B, S, H, Dr] | float32 |
# | `c_kv`, `k_rope` | [B, T, R], [B, T, Dr] | float32 |
# | `w_uk`, `w_uv` | [H, Dn, R], [H, Dv, R] | float32 |
# | returns `out`, `lse` | [B, S, H, Dv], [B, S, H] | float32 |
#
# Call `absorb_query`, `latent_attention` and `absorb_output`. The grader supplies right ones, so this exercise does
# not depend on your own.
#
# Limit: 256 MiB. One hidden case has 4,300 tokens or more, H = 64 and Dn = 256: its expanded keys alone would take
# 4,300 × 64 × 256 × 4 bytes = 269 MiB. The absorbed form needs a few MiB beside its arguments. The judge also counts
# the FLOPs of your products and the bytes that your operations write: at most twice the FLOPs of the absorbed form, and
# 16 times the bytes of its tensors. So expanding one head after the other does not pass either, nor does writing a
# copy of the latent for every head. (A broadcasting `@` makes one, too, where B > 1. It passes.)
#
# <details><summary>Hint 1</summary>
#
# Three calls and one number. The number is what the softmax was trained with.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Here Dn is still known: it is the last axis of `q_nope`. Dr is the last axis of `q_rope`.
#
# </details>
# <details><summary>Hint 3</summary>
#
# Four lines: `scale = 1 / math.sqrt(…)`, then the three calls in order. `lse` comes from the second and is returned
# as it is.
#
# </details>

# %% solution="absorbed_mla_attention"
def absorbed_mla_attention(q_nope, q_rope, c_kv, k_rope, w_uk, w_uv):
    """MLA attention straight from the latent cache.

    q_nope: [B, S, H, Dn]; q_rope: [B, S, H, Dr]; c_kv: [B, T, R]; k_rope: [B, T, Dr];
    w_uk: [H, Dn, R]; w_uv: [H, Dv, R]; all float32.
    Returns out [B, S, H, Dv] and lse [B, S, H], both float32.

    Traps: the scale is 1/√(Dn+Dr), as before absorption. No tensor may hold keys or values of all heads.
    """
    ### BEGIN SOLUTION
    scale = 1 / math.sqrt(q_nope.shape[-1] + q_rope.shape[-1])
    q_latent = absorb_query(q_nope, w_uk)
    out_latent, lse = latent_attention(q_latent, q_rope, c_kv, k_rope, scale)
    return absorb_output(out_latent, w_uv), lse
    ### END SOLUTION


# %% check="absorbed_mla_attention"
check("absorbed_mla_attention")

# %% [markdown]
# **Your code in the model.** The trained model of lesson 02 writes on, with your absorbed form in all of its layers.
# That may take a minute. It does not know that its keys and values are never built.

# %%
from mla_ref import playground

playground.write("class Cache:\n    ", attention=absorbed_mla_attention, new=48)

# %% [markdown]
# ## Look: is it really the same?
#
# Here is the naive form to compare with, in two steps: `expand` builds keys and values, `attend` is multi-head
# attention.

# %%
def expand(c_kv, k_rope, w_uk, w_uv):
    """Return keys [B, T, H, Dn+Dr] and values [B, T, H, Dv] of all heads."""
    k_nope = torch.einsum("btr,hdr->bthd", c_kv, w_uk)
    shared = k_rope[:, :, None].expand(-1, -1, w_uk.shape[0], -1)
    return torch.cat((k_nope, shared), -1), torch.einsum("btr,hvr->bthv", c_kv, w_uv)


def attend(q_nope, q_rope, k, v):
    """Return causal multi-head attention out [B, S, H, Dv] and lse [B, S, H]."""
    q = torch.cat((q_nope, q_rope), -1)
    S, T = q.shape[1], k.shape[1]
    scores = torch.einsum("bshd,bthd->bsht", q, k) / math.sqrt(q.shape[-1])
    future = torch.arange(T) > torch.arange(S)[:, None] + (T - S)
    scores = scores.masked_fill(future[:, None, :], -math.inf)
    return torch.einsum("bsht,bthv->bshv", torch.softmax(scores, dim=-1), v), torch.logsumexp(scores, dim=-1)


def naive(q_nope, q_rope, c_kv, k_rope, w_uk, w_uv):
    return attend(q_nope, q_rope, *expand(c_kv, k_rope, w_uk, w_uv))


def operands(B, S, T, H, Dn=128, Dr=64, Dv=128, R=512, dtype=torch.float32):
    """Return random q_nope, q_rope, c_kv, k_rope, w_uk, w_uv."""
    g = torch.Generator().manual_seed(1)
    shapes = (B, S, H, Dn), (B, S, H, Dr), (B, T, R), (B, T, Dr), (H, Dn, R), (H, Dv, R)
    drawn = [torch.randn(shape, generator=g, dtype=torch.float64) for shape in shapes]
    return [x.to(dtype) for x in (*drawn[:4], drawn[4] / math.sqrt(R), drawn[5] / math.sqrt(R))]


def distance(a, b):
    return ((a.double() - b.double()).norm() / b.double().norm()).item()


print("relative error of out           naive    absorb   between    |lse difference|")
for dtype in (torch.float64, torch.float32, torch.bfloat16):
    args = operands(B=2, S=2, T=300, H=4, dtype=dtype)
    exact, _ = naive(*(x.double() for x in args))
    (out_naive, lse_naive), (out_absorb, lse_absorb) = naive(*args), absorbed_mla_attention(*args)
    errors = distance(out_naive, exact), distance(out_absorb, exact), distance(out_absorb, out_naive)
    between = (lse_absorb.double() - lse_naive.double()).abs().max()
    print(f"{dtype!s:28}", *(f"{error:9.1e}" for error in errors), f"{between:12.1e}")

# %% [markdown]
# The first two columns are distances to the naive form in float64 on the same inputs; the third is the distance
# between the two forms.
#
# - **float64**: they agree to about 1e-15. It is one function.
# - **float32**: both are about equally far from the exact result, and from each other.
# - **bfloat16**: they differ by somewhat less than 1 %, and so does each from the exact result. The naive form rounds
#   every key and value to 8 significant bits; the absorbed form rounds the latent query and the latent output. Another
#   order of multiplication is another order of rounding. Neither form is the reference for the other.
#
# So a test of an absorbed kernel compares with float64, and its tolerance follows from the dtype. Do not ask for
# equal bits. The scores are the same numbers in both forms, and so is `lse`. (In bfloat16 the difference shows as 0
# or as one step of that type, 0.03 here.)

# %% [markdown]
# ## Predict: what a whole step costs
#
# `predict_macs` counts attention alone, over a cache that is stored in each form's own way. Our cache is latent. So the
# naive form has to expand it first, and the absorbed form has its two projections. Count whole steps.
#
# | form | stage | reads | writes | multiplies |
# |---|---|---|---|---|
# | naive | expand | c_kv, k_rope, w_uk, w_uv | K [B,T,H,Dn+Dr], V [B,T,H,Dv] | latents with w_uk and w_uv |
# | | attend | q [B,S,H,Dn+Dr], K, V | out [B,S,H,Dv] | q with K, weights with V |
# | absorb | absorb query | q_nope, w_uk | q_latent [B,S,H,R] | queries with w_uk |
# | | attend | q_latent, q_rope, c_kv, k_rope | out_latent [B,S,H,R] | as above, R+Dr and R wide |
# | | expand output | out_latent, w_uv | out [B,S,H,Dv] | outputs with w_uv |
#
# Rules: a stage reads each of its inputs once and writes its result once, `itemsize` bytes per word. Every query
# attends to all T tokens; the mask saves nothing. Copying k_rope is no arithmetic. Softmax and `lse` are left out.
# A MAC is two FLOPs.
#
# Write `absorb_costs`.
#
# <details><summary>Hint 1</summary>
#
# Do the two forms apart, stage by stage. A product of a vector of width n with a matrix [m, n] is n·m MACs. Bytes
# are the sizes of the tensors in the table, added up. K and V appear twice: written once, read once.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Expanding costs H·R·(Dn+Dv) MACs for each of the B·T context tokens. The two projections of the absorbed form cost
# the same H·R·(Dn+Dv) MACs, but for each of the B·S query tokens. Attention is B·S·T times your `predict_macs`
# numbers.
#
# </details>
# <details><summary>Hint 3</summary>
#
# About eight lines. With `weights = H * R * (Dn + Dv)` and `kv = B * T * H * (Dn + Dr + Dv)`, the naive words are
# B·T·(R+Dr) + weights + 2·kv + B·S·H·(Dn+Dr+Dv). The absorbed words are weights + B·T·(R+Dr) + B·S·H times a sum of
# seven widths: one for each time that a tensor with an S is read or written.
#
# </details>

# %% solution="absorb_costs"
def absorb_costs(B, S, T, H, Dn, Dr, Dv, R, itemsize):
    """Count the FLOPs and the bytes of one attention step from a latent cache, in both forms.

    B, S, T: int, batch, new tokens, context (new tokens included);
    H, Dn, Dr, Dv, R: int, the layer's sizes; itemsize: int, bytes per word of every tensor.

    Returns a dict of four numbers: "naive_flops", "naive_bytes", "absorb_flops", "absorb_bytes".
    Trap: what one stage writes and the next reads counts twice.
    """
    ### BEGIN SOLUTION
    weights = H * R * (Dn + Dv)
    cache = B * T * (R + Dr)
    expanded = B * T * H * (Dn + Dr + Dv)
    naive_macs = B * T * weights + B * S * T * H * (Dn + Dr + Dv)
    naive_words = cache + weights + 2 * expanded + B * S * H * (Dn + Dr + Dv)
    absorb_macs = B * S * weights + B * S * T * H * (2 * R + Dr)
    absorb_words = weights + cache + B * S * H * ((Dn + R) + (R + Dr + R) + (R + Dv))
    return {
        "naive_flops": 2 * naive_macs,
        "naive_bytes": itemsize * naive_words,
        "absorb_flops": 2 * absorb_macs,
        "absorb_bytes": itemsize * absorb_words,
    }
    ### END SOLUTION


# %% check="absorb_costs"
check("absorb_costs")

# %% [markdown]
# The FLOPs for one sequence with a context of 4096 tokens, as the number S of new tokens grows. S = 1 is decoding, S =
# T the prefill of an empty cache. Between them lie speculative decoding (a few tokens to verify) and chunked prefill
# (some hundred tokens on a context that is already there).

# %%
new_tokens = [2**n for n in range(13)]
steps = [absorb_costs(B=1, S=S, T=4096, itemsize=2, **sizes) for S in new_tokens]
flops = {form: (new_tokens, [step[f"{form}_flops"] for step in steps]) for form in ("naive", "absorb")}
plots.curves({"One step, B = 1, T = 4096": flops}, xlabel="new tokens S", ylabel="FLOPs", log="xy")

# %% [markdown]
# ## Predict: the break-even
#
# For few queries the naive form pays for an expansion that hardly anyone uses. For many, the absorbed form pays for
# its wider vectors at every pair of query and token. Somewhere between, both take the same number of FLOPs.
#
# Write `break_even_queries`: the S, as a real number, at which both forms take equally many FLOPs, for a context of
# T tokens. More queries than that, and naive takes fewer. Assume 2R > Dn + Dv, as in every published MLA model.
#
# <details><summary>Hint 1</summary>
#
# Write the FLOPs of both forms as you did in `absorb_costs`, set them equal, and solve for S. B and H are factors
# of every term and cancel.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Divided by 2·B·H: T·R(Dn+Dv) + S·T·(Dn+Dr+Dv) = S·R(Dn+Dv) + S·T·(2R+Dr). One of the arguments cancels as well.
#
# </details>
# <details><summary>Hint 3</summary>
#
# Divide by S·T·R(Dn+Dv) and sort: 1/S = 1/T + (2R−Dn−Dv) / (R(Dn+Dv)). One line of code.
#
# </details>

# %% solution="break_even_queries"
def break_even_queries(T, Dn, Dr, Dv, R):
    """Return the number of query tokens per sequence at which both forms take equally many FLOPs.

    T: int, context length; Dn, Dr, Dv, R: int, the layer's sizes, with 2R > Dn + Dv.
    Returns a float. Not every argument has a part in it.
    """
    ### BEGIN SOLUTION
    return 1 / (1 / T + (2 * R - Dn - Dv) / (R * (Dn + Dv)))
    ### END SOLUTION


# %% check="break_even_queries"
check("break_even_queries")

# %%
widths = {name: value for name, value in sizes.items() if name != "H"}
for T in (512, 4096, 32768, 10**9):
    print(f"T = {T:>13,}: naive takes fewer FLOPs beyond S = {break_even_queries(T, **widths):.1f}")

# %% [markdown]
# For DeepSeek-V3 and a long context, in FLOPs: **absorb up to 170 new tokens per sequence, naive beyond.** Neither the
# batch nor the number of heads matters. At the break-even 1/S = 1/T + (2R − Dn − Dv) / (R(Dn + Dv)), so S is below T: a
# prefill of an empty cache, with S = T, is always beyond it. A decode step has S = 1, below the break-even for any
# context of two tokens or more. Serving engines use naive kernels for prefill and absorbed ones for decode (the
# TyphoonMLA paper, section 1).

# %% [markdown]
# ## Measure: both forms on this machine
#
# The next cell times your `absorbed_mla_attention` and `naive`, with the widths of DeepSeek-V3, 8 heads, a context of
# 512 tokens, float32 and one thread. Beside it stands the roofline of lesson 00, from your `absorb_costs` and the rates
# of this machine. Before you run it: will the measured times be above or below the predicted ones?

# %%
import functools

from mla_ref import bench, measure_copy_bandwidth, measure_matmul_rate

threads = torch.get_num_threads()
torch.set_num_threads(1)
rate, bandwidth = measure_matmul_rate("cpu"), measure_copy_bandwidth("cpu")
forms = {"naive": naive, "absorb": absorbed_mla_attention}


def predicted(form, rate, bandwidth, **case):
    """Return the roofline time in seconds."""
    costs = absorb_costs(**case)
    return max(costs[f"{form}_flops"] / rate, costs[f"{form}_bytes"] / bandwidth)


T, steps = 512, (1, 32, 64, 128, 256, 512)
here = dict(B=1, T=T, itemsize=4, **(sizes | dict(H=8)))
times = {}
for form, function in forms.items():
    calls = [functools.partial(function, *operands(B=1, S=S, T=T, H=8)) for S in steps]
    times[form] = steps, [1e3 * bench(call, warmup=1, repeat=5, device="cpu").median for call in calls]
    times[f"{form}, predicted"] = steps, [1e3 * predicted(form, rate, bandwidth, S=S, **here) for S in steps]
torch.set_num_threads(threads)
plots.curves(
    {"T = 512, 8 heads, float32, one CPU thread": times},
    xlabel="new tokens S",
    ylabel="milliseconds",
    log="xy",
    dotted=("naive, predicted", "absorb, predicted"),
    verticals={"break-even in FLOPs": break_even_queries(T, **widths)},
)

# %% [markdown]
# Where the measured lines cross depends on your machine and on what else it does. With many queries both forms take
# longer than predicted: the count leaves the softmax out, and PyTorch makes several passes over the scores for it. If
# absorb takes ten times as long as predicted, `absorb_query` or `absorb_output` copies its weight for every token. At
# S = 1 the absorbed form can be *faster* than predicted, as its few MiB stay in the processor's own cache between the
# timed calls.

# %% [markdown]
# ## Measure: the same on an H100, by the model
#
# The roofline of an H100: DeepSeek-V3, all 128 heads, bfloat16, the data sheet's ceilings. "Naive: expanded cache"
# keeps K and V expanded in memory. The stars are FlashMLA, measured for this course on an {{decode_h100.device}}
# (`benchmarks/decode_h100.json`): attention alone, without the two projections.

# %%
from mla_ref import attention_cost, operand_cost

case = dict(S=1, T=4096, itemsize=2, **sizes)
batches = [2**n for n in range(9)]
ceilings = h100.rate(), h100.bandwidth()
lines = {f"{form}: latent cache": [predicted(form, *ceilings, B=B, **case) for B in batches] for form in forms}
lines["naive: expanded cache"] = [
    (attention_cost("naive", v3, batch=B, context=4096) + operand_cost("naive", v3, batch=B)).time(h100)
    for B in batches
]
for name, times in lines.items():
    print(f"B = 32, S = 1: {name:22} {1e6 * times[batches.index(32)]:9.1f} µs")
step = absorb_costs(B=32, **case)
computing, moving = step["absorb_flops"] / ceilings[0], step["absorb_bytes"] / ceilings[1]
print(f"absorb, B = 32: {1e6 * computing:.1f} µs of arithmetic, {1e6 * moving:.1f} µs of memory traffic")
drawn = {name: (batches, [1e6 * each for each in times]) for name, times in lines.items()}
drawn["FlashMLA: measured"] = [32, 128], "{{crosses}}"
plots.curves(
    {"One decode step of one layer: S = 1, T = 4096": drawn},
    xlabel="batch B",
    ylabel="microseconds",
    log="xy",
    points=["FlashMLA: measured"],
)

# %% [markdown]
# - Expanding at every decode step is the slowest: each step expands the whole context.
# - Storing the expansion is 53 times slower than absorbing at B = 32, and takes 10 GiB per layer there.
# - Towards B = 1 the absorbed line flattens. It then reads mostly $W^{UK}$ and $W^{UV}$, 16 MiB each, and not the cache
#   of the sequence (4.5 MiB).
# - FlashMLA's times are the attention alone, and above the line of the whole step{{!above_the_line}}: {{us_32}} µs at
#   B = 32. A roofline is a floor. Lesson 06 asks what lies between.
#
# ## What to take along
#
# - A matrix that stands between a query and every token belongs to the query: $W^{UK}$ before the attention, $W^{UV}$
#   after it.
# - For DeepSeek-V3 that costs 3.4 times the arithmetic of attention and reads 1/71 of the bytes. Decoding is bound by
#   bytes, so it wins there. With a long context and more than about 170 new tokens per sequence the naive form takes
#   fewer FLOPs.
# - The softmax scale stays 1/√(Dn+Dr), whatever the widths of the tensors.
#
# <details><summary><b>Appendix: two traps in the field</b></summary>
#
# **1/√576.** The absorbed query and key are 576 wide, and a habit says: scale by one over the square root of the width.
# The scores are those that the model was trained with, $q^\top k$ with 192 terms, so the scale is 1/√192. Lesson 02
# named those who fell for it, and measured the error. FlashInfer's own benchmark of MLA decode sets 1/√(512+64). For a
# timing on random data that does no harm; copied into a model it does.
#
# **Absorbing too much.** "Absorb $W^{UK}$ into $W^{UQ}$" (the query's own up-projection, here without its RoPE rows:
# [H, Dn, Rq]) can be read as: multiply both matrices once, offline, and store the product. The pull request that
# brought MLA decode to FlashInfer (#551) described it so, with merged weights [1536, 65536], which is [Rq, H·R]. The
# result is right, and the low rank is gone. Apart, the two matrices have H·Dn·(Rq + R) words; their product has H·Rq·R,
# three times as many. For $W^{UV}$ and $W^O$ it is H·Dv·(D + R) against H·D·R, 3.7 times as many. In decode those
# weights are read for every token. So "absorb" means an order of multiplication, not a merged weight: two small
# products, one after the other.
#
# </details>
#
# Figures: {{records}}.
