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
# The cache of lesson 02 is small: R + Dr = 576 words a token in DeepSeek-V3. (A **word** is one stored number,
# whatever its type; lesson 02 said element.) The attention over it is not small. It expands every cached latent into
# keys and values of all heads, for every new token, and throws them away again.
#
# This lesson removes the expansion, and the result stays the same up to rounding. It takes one identity, one line
# of code on the query side, one on the output side, and an attention that reads the cache as it is.
#
# At the end you
#
# - have written the **absorbed** form of MLA, the one that decode kernels such as FlashMLA compute;
# - can say what it saves (bytes), what it costs (arithmetic), and from where on the **naive** form is the better
#   one;
# - know the trap in its softmax scale, which several public implementations fell into.
#
# The lesson takes about two hours. 20 points.
#
# | symbol | meaning | DeepSeek-V3 |
# |---|---|---|
# | B, S, T | batch, new query tokens per sequence, context length (the S new tokens included) | |
# | H | heads | 128 |
# | Dn, Dr, Dv | width per head: without position, with position (RoPE), value | 128, 64, 128 |
# | R | width of the latent | 512 |
#
# D is the width of the model (7168) and Rq that of the query's latent (1536), as in lesson 02.
#
# | tensor | shape | what it is |
# |---|---|---|
# | `c_kv` | [B, T, R] | cached latents, after their RMSNorm |
# | `k_rope` | [B, T, Dr] | cached keys with position, rotated; one for all heads |
# | `q_nope`, `q_rope` | [B, S, H, Dn], [B, S, H, Dr] | the query's two parts, the second rotated |
# | `w_uk`, `w_uv` | [H, Dn, R], [H, Dv, R] | up-projections of the latent to keys and to values |

# %% setup="imports"
import math

import torch
from autograder import check

# %% [markdown]
# ## Why: the same product, bracketed differently
#
# Take one head h, one query and one cached token t. Lesson 02 built the key $k_t = W^{UK}_h c_t$ and took its
# product with the query. A product of three matrices may be bracketed either way:
#
# $$q^\top (W^{UK}_h\, c_t) \;=\; ({W^{UK}_h}^\top q)^\top c_t .$$
#
# On the left the bracket belongs to the **token**: it is computed once per token of the context. On the right it
# belongs to the **query**: it is computed once per query, and serves every token. This is all there is to weight
# absorption.
#
# The output side works the same way. The weights $p_t$ of the softmax are numbers, so the matrix can leave the sum:
#
# $$\sum_t p_t\, (W^{UV}_h\, c_t) \;=\; W^{UV}_h \Big(\sum_t p_t\, c_t\Big).$$
#
# The property used is associativity. (The TyphoonMLA paper, arXiv:2509.21081, calls it commutativity; matrix products
# do not commute.) The next cell tries both sides for one head and 1000 tokens, and counts multiply-accumulates
# (**MACs**).

# %%
torch.manual_seed(0)
Dn, R, T = 128, 512, 1000
q = torch.randn(Dn, dtype=torch.float64)  # [Dn]
w_uk = torch.randn(Dn, R, dtype=torch.float64)  # [Dn, R]
c_kv = torch.randn(T, R, dtype=torch.float64)  # [T, R]

keys_first = (c_kv @ w_uk.T) @ q  # T keys of Dn, then T products
query_first = c_kv @ (w_uk.T @ q)  # one query of R, then T products

difference = (keys_first - query_first).abs().max()
print(f"largest difference   {difference:.1e}, scores up to {keys_first.abs().max():.0f}")
print(f"MACs, keys first     {T * Dn * R + T * Dn:>12,}")
print(f"MACs, query first    {Dn * R + T * R:>12,}")

# %% [markdown]
# **And the RoPE part?** Between a rotated query and a rotated key stands a rotation that depends on how far apart
# the two tokens are. $q^\top \mathrm{Rot}(t-s)\, W\, c_t$ has no matrix that serves every t, so nothing can be
# absorbed. That is why MLA keeps position in a part of its own, `q_rope` and `k_rope`: that part was never
# compressed, and it is multiplied as it is.
#
# Draw both data flows. Orange grows with the context T, blue with the new tokens S. Sizes are DeepSeek-V3's, for
# one sequence.

# %%
import matplotlib.pyplot as plt
from mla_ref import plots

TOKEN, QUERY, PLAIN = "#F5C9A3", "#A9CCE3", "#E8E8E8"  # grows with T, grows with S, operation


def box(axes, x, y, text, color, width=2.5):
    corner = (x - width / 2, y - 0.36)
    axes.add_patch(plt.Rectangle(corner, width, 0.72, facecolor=color, edgecolor="#555555"))
    axes.text(x, y, text, ha="center", va="center", fontsize=8.5)


def arrow(axes, start, end, text=""):
    axes.annotate("", end, start, arrowprops=dict(arrowstyle="-|>", color="#555555"))
    if text:
        x, y = (start[0] + end[0]) / 2, (start[1] + end[1]) / 2
        white = dict(facecolor="white", edgecolor="none", pad=1.5)
        axes.text(x, y, text, fontsize=9, ha="center", va="center", bbox=white)


figure, (left, right) = plt.subplots(1, 2, figsize=(11, 6.2), layout="constrained")
for axes in (left, right):
    axes.set(xlim=(0, 9), ylim=(-0.6, 6.6))
    axes.axis("off")

left.set_title("naive: expand the cache to H heads", loc="left")
box(left, 1.5, 6, "q_nope | q_rope\n[S, 128, 128 | 64]", QUERY)
box(left, 4.7, 6, "k_rope [T, 64]", TOKEN)
box(left, 7.6, 6, "c_kv [T, 512]", TOKEN)
box(left, 4.7, 4.2, "K [T, 128, 128 | 64]\n24,576 words a token", TOKEN)
box(left, 7.6, 4.2, "V [T, 128, 128]\n16,384 words a token", TOKEN)
box(left, 3.1, 2.4, "p = softmax(q·K / √192)", PLAIN, 4.0)
box(left, 5.3, 0.4, "out = p·V   [S, 128, 128]", QUERY, 4.0)
arrow(left, (7.1, 5.6), (5.6, 4.6), "W_UK")
arrow(left, (8.1, 5.6), (8.1, 4.6), "W_UV")
arrow(left, (4.3, 5.6), (4.3, 4.6), "128 copies")
arrow(left, (1.5, 5.6), (2.2, 2.8))
arrow(left, (4.7, 3.8), (4.0, 2.8))
arrow(left, (3.6, 2.0), (4.6, 0.8))
arrow(left, (7.6, 3.8), (6.4, 0.8))

right.set_title("absorb: bring the query to the cache", loc="left")
box(right, 1.5, 6, "q_nope | q_rope\n[S, 128, 128 | 64]", QUERY)
box(right, 1.5, 4.2, "q_latent | q_rope\n[S, 128, 512 | 64]", QUERY)
box(right, 6.3, 4.2, "c_kv | k_rope  [T, 512 | 64]\n576 words a token, for all heads", TOKEN, 4.6)
box(right, 3.1, 2.4, "p = softmax(q·key / √192)", PLAIN, 4.0)
box(right, 6.0, 1.2, "out_latent = p·c_kv   [S, 128, 512]", QUERY, 4.8)
box(right, 6.0, -0.2, "out [S, 128, 128]", QUERY)
arrow(right, (1.2, 5.6), (1.2, 4.6), "W_UK")
arrow(right, (2.3, 5.6), (2.3, 4.6), "as it is")
arrow(right, (1.5, 3.8), (2.2, 2.8))
arrow(right, (5.2, 3.8), (4.2, 2.8), "key: all 576")
arrow(right, (7.4, 3.8), (7.4, 1.6), "value: the first 512")
arrow(right, (3.6, 2.0), (4.6, 1.6))
arrow(right, (6.0, 0.8), (6.0, 0.2), "W_UV")
plt.show()

# %% [markdown]
# The right side is **multi-query attention** (MQA, lesson 01): H query heads, one key head. The key is R + Dr = 576
# wide. The value is R = 512 wide, and it is not another tensor: it is the first 512 words of the key. A kernel that
# has a token's 576 words on the chip has its key and its value for all heads.
#
# Nothing on the right side is orange except the cache itself.

# %% [markdown]
# ## Predict: arithmetic against bytes
#
# Absorption is not free. Per head, the query it compares with a token becomes wider (512 + 64 in place of 128 +
# 64), and so does the value it averages (512 in place of 128). Count both, before any measurement.
#
# Write `predict_macs`. Per **query token and context token**, count the MACs of attention: scores and weighted sum,
# over all heads. Per **context token**, count the words that the cache holds and attention reads.
#
# - `naive_macs`, `naive_words`: keys and values are stored expanded, for every head, as attention reads them. So
#   each head has a whole key of its own, Dn + Dr wide. This is the cache that multi-head attention would have.
# - `absorb_macs`, `absorb_words`: attention over the latent cache.
#
# Leave out the projections (they come later in this lesson), the softmax, and the mask. Count MACs, not FLOPs: one
# multiplication with its addition is one MAC and two FLOPs.
#
# Limits here and below, where nothing else is said: 10 seconds and 512 MiB for all cases of an exercise.
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
# Your numbers for DeepSeek-V3, in units of 1024. They are those of Table 1 of the TyphoonMLA paper.

# %%
from mla_ref import DEVICES, MLAConfig

v3 = MLAConfig.preset("deepseek_v3")
sizes = dict(H=128, Dn=128, Dr=64, Dv=128, R=512)  # as in v3
counts = predict_macs(**sizes)
h100 = DEVICES["h100"]

with plt.rc_context(plots.STYLE):
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 2.3), layout="constrained")
    titles = {"macs": "MACs per query and context token", "words": "cached words per token"}
    for axes, (kind, title) in zip((left, right), titles.items(), strict=True):
        values = [counts[f"{form}_{kind}"] / 1024 for form in ("naive", "absorb")]
        drawn = axes.barh(["naive", "absorb"], values, color=plots.PALETTE[:2])
        axes.bar_label(drawn, [f" {value:g}" for value in values])
        axes.invert_yaxis()
        axes.margins(x=0.15)
        axes.grid(axis="y", visible=False)
        axes.set(title=title, xlabel="× 1024")
    plt.show()

more, fewer = counts["absorb_macs"] / counts["naive_macs"], counts["naive_words"] / counts["absorb_words"]
print(f"absorb: {more:.1f} times the arithmetic, 1/{fewer:.0f} of the bytes")
for form in ("naive", "absorb"):
    flops, nbytes = 2 * counts[f"{form}_macs"], 2 * counts[f"{form}_words"]  # 2 bytes a word
    print(f"{form:>6}: {flops / nbytes:5.1f} FLOP per byte of a 16-bit cache, one query token")
peak, memory = h100.rate() / 1e12, h100.bandwidth() / 1e12
print(f"H100, data sheet: {peak:.0f} TFLOP/s over {memory:.2f} TB/s = {h100.ridge():.0f} FLOP per byte")

# %% [markdown]
# With one new token the naive form does 1 FLOP per byte, so the arithmetic units of an H100 idle while it reads.
# The absorbed form does 242 FLOP per byte, close to the 295 at which the device is balanced. It reads 71 times
# fewer bytes and pays with 3.4 times the arithmetic, which the device had to spare.
#
# The size matters as much as the time. How many tokens of context fit into 80 GB, over the 61 layers of DeepSeek-V3
# (`num_hidden_layers` of its `config.json`), with nothing else in the memory?

# %%
from mla_ref import tokens_that_fit

for form in ("naive", "absorb"):
    print(f"{form:>6}: {tokens_that_fit(form, v3, 80e9, layers=61):>9,} tokens")

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

    Trap: `q_nope @ w_uk` runs where S equals H, and multiplies query s by the weight of head s.
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
# May not be called: `scaled_dot_product_attention`. Scores may be large enough for `exp` to overflow.
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
# s sees t ≤ T − S + s. Put −inf elsewhere before `torch.logsumexp`.
#
# </details>
# <details><summary>Hint 3</summary>
#
# Seven lines. The mask and the log-sum-exp are those of your `attention` in lesson 01. The weights are
# `torch.exp(scores - lse[..., None])`, and the last line is `torch.einsum("bsht,btr->bshr", weights, c_kv)`.
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
    weights = torch.exp(scores - lse[..., None])
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
# Call `absorb_query`, `latent_attention` and `absorb_output`. The judge supplies right ones, so this exercise does
# not depend on your own.
#
# Limit: 256 MiB. One hidden case has about 4,400 tokens, H = 64 and Dn = 256: its expanded keys alone would take
# 4,400 × 64 × 256 × 4 bytes = 275 MiB. The absorbed form needs a few.
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
    lse = torch.logsumexp(scores, dim=-1)
    return torch.einsum("bsht,bthv->bshv", torch.exp(scores - lse[..., None]), v), lse


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
# - **bfloat16**: they differ by about 1 %, and so does each from the exact result. The naive form rounds every key
#   and value to 8 significant bits; the absorbed form rounds the latent query and the latent output. Another order
#   of multiplication is another order of rounding. Neither form is the reference for the other.
#
# So a test of an absorbed kernel compares with float64, and its tolerance follows from the dtype. Do not ask for
# equal bits. The scores are the same numbers in both forms, and so is `lse`. (In bfloat16 the difference shows as 0
# or as one step of that type, 0.03 here.) Lesson 09 uses this: it takes the naive form on one part of a context,
# the absorbed form on the rest, and merges them by `lse`.

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
# Look at the FLOPs for one sequence with a context of 4096 tokens, as the number S of new tokens grows. S = 1 is
# decoding. S = T is the prefill of an empty cache. Between them lie speculative decoding (a few tokens to verify)
# and chunked prefill (some hundred tokens on a context that is already there). Mind the vertical axes: each panel has
# a scale of its own.

# %%
def macs_by_stage(S, T, **sizes):
    """Return (MACs of expansion or projections, MACs of attention) of each form."""
    flops = absorb_costs(B=1, S=S, T=T, itemsize=2, **sizes)
    alone = predict_macs(**sizes)
    attention = {form: S * T * alone[f"{form}_macs"] for form in ("naive", "absorb")}
    return {form: (flops[f"{form}_flops"] / 2 - attention[form], attention[form]) for form in attention}


def draw_stages(axes, S, T=4096):
    stages = macs_by_stage(S, T, **sizes)
    first = [weights / 1e9 for weights, _ in stages.values()]
    second = [attention / 1e9 for _, attention in stages.values()]
    axes.bar(list(stages), first, color=plots.PALETTE[4], label="expansion, or projections")
    axes.bar(list(stages), second, bottom=first, color=plots.PALETTE[5], label="attention")
    axes.set(title=f"S = {S}", ylabel="10⁹ MACs")
    axes.grid(axis="x", visible=False)


with plt.rc_context(plots.STYLE):
    figure, panels = plt.subplots(1, 4, figsize=(10, 2.9), layout="constrained")
    for axes, S in zip(panels, (1, 32, 164, 1024), strict=True):
        draw_stages(axes, S)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=2)
    plt.show()

# %% [markdown]
# With ipywidgets installed you can move S yourself.

# %%
try:
    from ipywidgets import IntSlider, interact
except ImportError:
    print("no ipywidgets here: the figure above shows four positions of the slider")
else:

    @interact(S=IntSlider(value=64, min=1, max=512, description="S", continuous_update=False))
    def stages(S):
        with plt.rc_context(plots.STYLE):
            _, axes = plt.subplots(figsize=(4.5, 2.9), layout="constrained")
            draw_stages(axes, S)
            plt.show()

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
    print(f"T = {T:>13,}: naive takes fewer FLOPs from S = {break_even_queries(T, **widths):.1f} on")

# %% [markdown]
# The statement for DeepSeek-V3 and a long context, in FLOPs: **absorb up to 170 new tokens per sequence, naive
# beyond.** Neither the batch nor the number of heads matters. At the break-even 1/S is 1/T plus something, so S is
# below T: a prefill of an empty cache, with S = T, is always beyond it. A decode step has S = 1, below the break-even
# for any context of two tokens or more.
#
# Serving engines do just this: naive kernels for prefill, absorbed ones for decode (the TyphoonMLA paper,
# section 1).
#
# One thing makes the batch matter: a context that several sequences *share*. Then one expansion serves them all,
# and what counts is the batch times S. That is the subject of lessons 08 and 09.

# %% [markdown]
# ## Measure: both forms on this machine
#
# Time your `absorbed_mla_attention` against `naive`, with the widths of DeepSeek-V3, 8 heads, and a context of 512
# tokens in float32.
#
# First the prediction. It is your `absorb_costs` under the roofline of lesson 00: the larger of FLOPs over this
# machine's matmul rate and bytes over its copy bandwidth. One thread, so that neighbours on the machine disturb
# less.

# %%
import functools

from mla_ref import bench, measure_copy_bandwidth, measure_matmul_rate

threads = torch.get_num_threads()
torch.set_num_threads(1)
rate, bandwidth = measure_matmul_rate("cpu"), measure_copy_bandwidth("cpu")
print(f"this machine, one thread: {rate / 1e9:.0f} GFLOP/s in float32, {bandwidth / 1e9:.1f} GB/s")


def predicted(form, rate, bandwidth, **case):
    """Return the roofline time in seconds."""
    costs = absorb_costs(**case)
    return max(costs[f"{form}_flops"] / rate, costs[f"{form}_bytes"] / bandwidth)


T, H = 512, 8
here = dict(B=1, T=T, itemsize=4, **(sizes | dict(H=H)))
steps = (1, 32, 64, 128, 256, 512)
forms = {"naive": naive, "absorb": absorbed_mla_attention}
model = {form: [predicted(form, rate, bandwidth, S=S, **here) for S in steps] for form in forms}
for S, a, b in zip(steps, model["naive"], model["absorb"], strict=True):
    print(f"S = {S:3}: naive {1e3 * a:5.1f} ms, absorb {1e3 * b:5.1f} ms, naive / absorb {a / b:5.2f}")

# %% [markdown]
# Now the clock. Before you run the cell: will the measured times be above or below these, and which of the ratios
# do you trust?

# %%
measured = {form: [] for form in forms}
for S in steps:
    args = operands(B=1, S=S, T=T, H=H)
    for form, attention in forms.items():
        timing = bench(functools.partial(attention, *args), warmup=1, repeat=5, device="cpu")
        measured[form].append(timing.median)

with plt.rc_context(plots.STYLE):
    figure, axes = plt.subplots(figsize=(7, 3.6), layout="constrained")
    for form, color, marker in zip(forms, plots.PALETTE, plots.MARKERS, strict=False):
        milliseconds = [1e3 * seconds for seconds in measured[form]]
        axes.plot(steps, milliseconds, color=color, marker=marker, label=f"{form}, measured")
        axes.plot(steps, [1e3 * x for x in model[form]], ":", color=color, label=f"{form}, predicted")
    axes.axvline(break_even_queries(T, **widths), color="grey", linewidth=1)
    axes.set(title=f"T = {T}, {H} heads, float32, one CPU thread")
    axes.set(xlabel="new tokens S", ylabel="milliseconds", ylim=(0, None))
    axes.legend()
    plt.show()

for S, a, b in zip(steps, measured["naive"], measured["absorb"], strict=True):
    print(f"S = {S:3}: naive {1e3 * a:5.1f} ms, absorb {1e3 * b:5.1f} ms, naive / absorb {a / b:5.2f}")

# %% [markdown]
# The grey line is `break_even_queries`, 128 for this T. Where the measured lines cross depends on your machine and on
# what else it does. In seven of eight runs on a shared 2-core server it was between S = 128 and S = 256; in the
# eighth, with a busy neighbour and uneven times, beyond 256.
#
# With many queries both forms take longer than predicted, up to six times in those runs. The count leaves the softmax
# out, and PyTorch makes several passes over the scores for it. They are the same passes in both forms, so they pull
# the ratio towards 1. At S = 1 the absorbed form can also be *faster* than predicted: its few MiB stay in the
# processor's own cache between the timed calls, and the prediction lets them come from memory.
#
# Now decoding, S = 1, over a longer context. A third way joins: the naive form with a cache that is *stored*
# expanded, as in `predict_macs`. It needs no expansion.

# %%
T = 2048
args = operands(B=1, S=1, T=T, H=H)
k, v = expand(*args[2:])
expanded_bytes, latent_bytes = 4 * (k.numel() + v.numel()), 4 * (args[2].numel() + args[3].numel())
case = here | dict(S=1, T=T)
rows = {
    "naive, latent cache": (lambda: naive(*args), predicted("naive", rate, bandwidth, **case)),
    "naive, expanded cache": (lambda: attend(*args[:2], k, v), expanded_bytes / bandwidth),
    "absorb": (lambda: absorbed_mla_attention(*args), predicted("absorb", rate, bandwidth, **case)),
}
print(f"decode, B = 1, T = {T}, {H} heads, float32, one thread")
for name, (call, seconds) in rows.items():
    timing = bench(call, warmup=2, repeat=9, device="cpu")
    print(f"{name:22} measured {1e3 * timing.median:7.2f} ms   predicted {1e3 * seconds:7.2f} ms")
print(f"cache: {expanded_bytes / 2**20:.1f} MiB expanded, {latent_bytes / 2**20:.1f} MiB latent")
torch.set_num_threads(threads)

# %% [markdown]
# Expanding at every step loses by far. Between the other two the gap is small here: with 8 heads the expanded cache
# is 4.4 times as large as the latent one, not 71 times, and a CPU has less arithmetic to spare per byte than a GPU.
# (And here too a few MiB can stay in the processor's own cache.) The expanded cache grows in proportion to H, the
# latent one does not.

# %% [markdown]
# ## Measure: the same on an H100, by the model
#
# Without a GPU here, the roofline says what an H100 could do at best: DeepSeek-V3, all 128 heads, bfloat16, the data
# sheet's ceilings. The crosses are FlashMLA, a public absorbed kernel, measured for this course on an
# {{decode_h100.device}} (`benchmarks/decode_h100.json`): {{us_32}} µs at B = 32 and {{us_128}} µs at B = 128. That is
# attention alone, without the two projections.

# %%
from mla_ref import attention_cost, operand_cost

case = dict(T=4096, itemsize=2, **sizes)
batches = [2**n for n in range(9)]
ceilings = h100.rate(), h100.bandwidth()
lines = {form: [predicted(form, *ceilings, B=B, S=1, **case) for B in batches] for form in forms}
stored = [
    (attention_cost("naive", v3, batch=B, context=4096) + operand_cost("naive", v3, batch=B)).time(h100)
    for B in batches
]

with plt.rc_context(plots.STYLE):
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
    for label, times, style, color in (
        ("naive, latent cache", lines["naive"], "o-", plots.PALETTE[0]),
        ("naive, expanded cache", stored, "D-", plots.PALETTE[2]),
        ("absorb", lines["absorb"], "s-", plots.PALETTE[1]),
    ):
        left.loglog(batches, [1e6 * x for x in times], style, color=color, label=label)
    left.loglog([32, 128], "{{crosses}}", "kx", markersize=8, label="FlashMLA, measured")
    left.set(xlabel="batch B", ylabel="microseconds", title="decode: S = 1, T = 4096")
    left.legend()
    queries = [2**n for n in range(13)]
    for form, style, color in (("naive", "o-", plots.PALETTE[0]), ("absorb", "s-", plots.PALETTE[1])):
        times = [predicted(form, *ceilings, B=8, S=S, **case) for S in queries]
        right.loglog(queries, [1e6 * x for x in times], style, color=color, label=form)
    right.axvline(break_even_queries(4096, **widths), color="grey", linewidth=1)
    right.set(title="B = 8, T = 4096; grey: break-even in FLOPs")
    right.set(xlabel="new tokens S", ylabel="microseconds")
    right.legend()
    plt.show()

at = batches.index(32)
for name, times in (*lines.items(), ("expanded", stored)):
    print(f"B = 32, S = 1: {name:9} {1e6 * times[at]:9.1f} µs")
step = absorb_costs(B=32, S=1, **case)
computing, moving = step["absorb_flops"] / ceilings[0], step["absorb_bytes"] / ceilings[1]
print(f"absorb, B = 32: {1e6 * computing:.1f} µs of arithmetic, {1e6 * moving:.1f} µs of memory traffic")
weights = 2 * 128 * 512 * (128 + 128)  # bytes
print(f"W_UK and W_UV: {weights / 2**20:.0f} MiB, {1e6 * weights / ceilings[1]:.1f} µs to read")


def gain(S):
    times = {form: predicted(form, *ceilings, B=8, S=S, **case) for form in forms}
    return times["absorb"] / times["naive"]


crossing = next(S for S in range(1, 4096) if gain(S) > 1)
print(f"B = 8: naive is faster from S = {crossing} on")

# %% [markdown]
# Read off the left picture:
#
# - Expanding at every decode step is the worst of all. Each step reads, writes and multiplies as a prefill would.
# - Storing the expansion is 53 times slower than absorbing at B = 32, and takes 10 GiB per layer there.
# - Towards B = 1 the absorbed line flattens. It then reads mostly its two weights, 16 MiB each, and not the cache of
#   the sequence (4.5 MiB). The two projections are small products with large weights; lesson 10 is about them.
#
# Right picture: the naive line is flat on the left. Writing and reading the expanded keys and values takes that long,
# whatever S is. The absorbed line rises from the third new token on, bound by arithmetic. They cross close to the
# break-even in FLOPs.
#
# (Lesson 02 came to 31 ms for a naive step at B = 128, this picture to 26 ms. There each stage had a roofline of its
# own, and the expansion alone is bound by arithmetic. Here the step has one, as if the arithmetic of one stage could
# run during the traffic of the other. Both are floors; the second is the lower one.)
#
# FlashMLA's times are the core alone, and above the line of the whole{{!above_the_line}}: {{about_us_32}} µs where the
# model says 61. A roofline is a floor. Lesson 06 asks what lies between.

# %% [markdown]
# ## In the field
#
# **1/√576.** The absorbed query and key are 576 wide, and a habit says: scale by one over the square root of the
# width. But the scores are those that the model was trained with, $q^\top k$ with 192 terms. The right scale is
# 1/√192.
#
# Lesson 02 named those who fell for it: FlashMLA's default is 1/√576, so its caller must pass the scale, and ollama
# ran a model that way until pull request #13893. Nothing had crashed; the model looped and called tools badly. One
# more: FlashInfer's own benchmark of MLA decode sets 1/√(512+64). For a timing on random data that does no harm. As an
# example to copy from, it does.
#
# The scores shrink by √(192/576) = 0.58, so attention spreads out more evenly. Measure what that does.

# %%
q_nope, q_rope, c_kv, k_rope, w_uk, _ = operands(B=1, S=1, T=1000, H=16)
for sharpness in (1, 3, 6):
    query = sharpness * absorb_query(q_nope, w_uk), sharpness * q_rope
    (right, right_lse), (wrong, wrong_lse) = (
        latent_attention(*query, c_kv, k_rope, 1 / math.sqrt(width)) for width in (192, 576)
    )
    off = (wrong_lse - right_lse).abs().max()
    error = 100 * distance(wrong, right)
    print(f"queries × {sharpness}: out is {error:.0f} % off, lse by up to {off:.1f}")

# %% [markdown]
# The output is off by about half its size or more, and no shape, no NaN and no exception tells.
#
# There is another reason for taking the scale as an argument: YaRN, which multiplies DeepSeek-V3's scale by 1.87
# (lesson 02). `MLAConfig.preset("deepseek_v3").softmax_scale` is 1.87/√192. This lesson leaves YaRN out.
#
# **Absorbing too much.** "Absorb W_UK into W_UQ" (the query's own up-projection, here without its RoPE rows: [H, Dn,
# Rq]) can be read as: multiply both matrices once, offline, and store the product. The pull request that brought MLA
# decode to FlashInfer (#551) described it so, with merged weights [1536, 65536], which is [Rq, H·R]. The result is
# right, and the low rank is gone. Count the words.

# %%
Rq, D, mib = v3.q_lora_rank, v3.hidden_size, 2**20
H, Dn, Dv, R = sizes["H"], sizes["Dn"], sizes["Dv"], sizes["R"]
table = {
    "W_UQ and W_UK, apart": H * Dn * Rq + H * Dn * R,
    "their product": H * Rq * R,
    "W_O and W_UV, apart": D * H * Dv + H * Dv * R,
    "their product ": D * H * R,
}
for name, words in table.items():
    print(f"{name:22} {2 * words / mib:4.0f} MiB in bfloat16, {words / 1e6:5.1f} million MACs a query token")

product = torch.randn(96, 16, dtype=torch.float64) @ torch.randn(16, 64, dtype=torch.float64)
rank = torch.linalg.matrix_rank(product)
print(f"\na [96, 16] matrix times a [16, 64] one: {product.numel()} words, rank {rank}")

# %% [markdown]
# Per head the product has at most rank Dn = 128 and is stored as if it had rank 512: three times the bytes on the query
# side, nearly four times on the output side, and as many times the arithmetic. In decode those weights are read for
# every token. So "absorb" means an order of multiplication, not a merged weight: two small products, one after the
# other.
#
# **What a kernel covers.** FlashMLA takes queries that are already 576 wide and returns outputs that are 512 wide,
# which is your `latent_attention`. `absorb_query` and `absorb_output` are the caller's. A benchmark of the kernel
# alone does not show them.
#
# ## What to take along
#
# - A matrix that stands between a query and every token belongs to the query: W_UK before the attention, W_UV after it.
#   The result is the same up to rounding.
# - For DeepSeek-V3 that costs 3.4 times the arithmetic of attention and reads 1/71 of the bytes. Decoding is bound by
#   bytes, so it wins there. Beyond about 170 new tokens per sequence the naive form takes fewer FLOPs.
# - The softmax scale stays 1/√(Dn+Dr), whatever the widths of the tensors.
# - You have the mathematics of every MLA kernel. Lesson 04 writes the first kernels in Triton, lesson 06 turns
#   `latent_attention` into one, and lesson 09 takes the better of both forms at once.
#
# Figures: {{records}}.
