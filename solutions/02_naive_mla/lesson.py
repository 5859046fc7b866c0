# %% [markdown]
# # Lesson 02: naive MLA
#
# Multi-head attention caches a key and a value for every head of every token. Multi-head Latent Attention (MLA)
# caches two short vectors per token instead: the **latent**, from which it makes every head's value and one part of its
# key, and the other part of the key, which all heads share.
#
# You build one MLA layer in plain PyTorch, step by step. It is called *naive* because it expands the latent into full
# keys and values at every step, and you measure what that costs. Lesson 03 removes the cost. This lesson takes about
# two and a half hours.
#
# | exercise | you write | points |
# |---|---|---|
# | `predict_latent_cache` | the bytes that a token takes, latent and expanded | 2 |
# | `rms_normalize` | RMSNorm that survives float16 | 3 |
# | `rotate_pairs` | RoPE on interleaved pairs | 3 |
# | `latent_kv` | what MLA caches of a token | 3 |
# | `naive_mla_attention` | attention over expanded keys and values | 5 |
# | `mla_decode_step` | one token through a layer with a latent cache | 4 |
#
# Every exercise is graded on its own, with the right solutions of the earlier ones. `check` calls your own where it has
# no others, and says so. Each may use 10 s and 512 MiB. The tensors are small; hidden cases have other shapes: odd
# widths, one token, one head.
#
# The equations are those of DeepSeek-V2 (arXiv:2405.04434), as repeated in section 3.1 of the report *Optimizing
# Multi-head Latent Attention for Efficient Inference* (below: "the report").

# %% setup="imports"
import math

import torch
from autograder import check

# %% [markdown]
# ## What MLA keeps of a token
#
# Symbols, with the values of DeepSeek-V3:
#
# | symbol | meaning | DeepSeek-V3 |
# |---|---|---|
# | $B$, $S$, $T$ | sequences in the batch, new tokens per sequence, tokens in the context (the new ones included) | |
# | $H$ | heads | 128 |
# | $D$ | width of the model, of the hidden state $h$ | 7168 |
# | $D_n$ | width of a head's query and key without position | 128 |
# | $D_r$ | width of the part that carries the position (RoPE) | 64 |
# | $D_v$ | width of a head's value | 128 |
# | $R$, $R_q$ | width (rank) of the latent for keys and values, and of the latent for queries | 512, 1536 |
#
# In the picture W is a weight matrix. The upper letters: D = down, U = up, Q = for queries, K = for keys, V = for
# values, O = for the layer's output. Follow the boxes "cached", orange with a solid edge: they
# are all that is kept of a token. The key of a head has two parts. `k_nope`, of width $D_n$, comes from the latent.
# `k_rope`, of width $D_r$, carries the position and is one vector for all heads. Its rotation is called RoPE.

# %%
from mla_ref.plots import flow

flow(
    {
        "h": (0, 3, "hidden state\nh [D]"),
        "c_q": (3, 5, "query latent\n[$R_q$]"),
        "k": (3, 3, "k_rope [$D_r$]\none for all heads"),
        "c": (3, 1, "c_kv, the latent\n[R]"),
        "q": (6.2, 5, "q_nope [H, $D_n$]\nq_rope [H, $D_r$]"),
        "k_rope": (6.2, 3, "k_rope [H, $D_r$]"),
        "k_nope": (6.2, 1.6, "k_nope [H, $D_n$]"),
        "v": (6.2, 0.4, "v [H, $D_v$]"),
        "attention": (8.8, 3, "attention\nof H heads"),
        "u": (10.8, 3, "u [D]"),
    },
    [
        ("h", "c_q", "$W^{DQ}$, RMSNorm"), ("h", "k", "$W^{DKV}$, RoPE"), ("h", "c", "$W^{DKV}$, RMSNorm"),
        ("c_q", "q", "$W^{UQ}$, RoPE"), ("k", "k_rope", "copies"), ("c", "k_nope", "$W^{UK}$"), ("c", "v", "$W^{UV}$"),
        ("q", "attention"), ("k_rope", "attention"), ("k_nope", "attention"), ("v", "attention"),
        ("attention", "u", "$W^O$"),
    ],
    groups={"cached": ["k", "c"], "new token only": ["h", "c_q", "q", "u"],
            "rebuilt for all tokens at every step": ["k_rope", "k_nope", "v"]},
    title="One MLA layer, widths per token",
)  # fmt: skip

# %% [markdown]
# ## Predict: bytes in the cache
#
# There are two things one could cache per token:
#
# - **expanded**: the key of every head, both parts ($D_n + D_r$), and the value of every head ($D_v$);
# - **latent**: the boxes "cached" of the picture, in orange.
#
# Count the bytes of one token in one layer. A **word** is one stored number, an element of a tensor. `itemsize` is the
# bytes of one word: 2 for bfloat16. Return the quotient as it is, not rounded: figures may be off by a millionth of
# their value.
#
# <details><summary>Hint 1</summary>
#
# In the picture, count the numbers in the boxes "rebuilt" on the key and value side, then those in the boxes
# "cached". Two products, then a quotient.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Expanded, the rotated part is copied into the key of every head, so it counts $H$ times. In the latent form it
# counts once. Keys and values come from the same latent: it counts once too.
#
# </details>
# <details><summary>Hint 3</summary>
#
# For DeepSeek-V3 the expanded form has 128 × (128 + 64 + 128) words. The latent form has 512 + 64. Multiply both
# by `itemsize`. Three lines.
#
# </details>


# %% solution="predict_latent_cache"
def predict_latent_cache(num_heads, qk_nope_head_dim, qk_rope_head_dim, v_head_dim, kv_lora_rank, itemsize):
    """Bytes cached per token and layer.

    The arguments are H, Dn, Dr, Dv, R and the bytes of one word; all are ints.

    Returns a dict of numbers:
      expanded_bytes  keys (both parts) and values of every head
      latent_bytes    what MLA caches
      ratio           expanded_bytes / latent_bytes, not rounded

    The trap: bytes, not words.
    """
    ### BEGIN SOLUTION
    expanded = num_heads * (qk_nope_head_dim + qk_rope_head_dim + v_head_dim) * itemsize
    latent = (kv_lora_rank + qk_rope_head_dim) * itemsize
    return {"expanded_bytes": expanded, "latent_bytes": latent, "ratio": expanded / latent}
    ### END SOLUTION


# %% check="predict_latent_cache"
check("predict_latent_cache")

# %% [markdown]
# Plain multi-head attention with heads of 128 would cache $H(D_n + D_v)$ = 32768 words. Expanded MLA needs more than
# that, 40960, because of the RoPE part. The latent needs 576: between multi-query attention (one key head, 256) and
# grouped-query attention with 8 key heads (2048).

# %%
from mla_ref import MLAConfig
from mla_ref.plots import bars
from mla_ref.roofline import cache_bytes_per_token, kv_cache_elements, tokens_that_fit

v3 = MLAConfig.preset("deepseek_v3")
predicted = predict_latent_cache(128, 128, 64, 128, 512, itemsize=2)
print(f"your prediction: {predicted['expanded_bytes']:,} and {predicted['latent_bytes']:,} bytes, "
      f"{predicted['ratio']:.1f} to 1")
for kind in ("naive", "absorb"):
    size = cache_bytes_per_token(kind, v3, layers=61)
    fit = tokens_that_fit(kind, v3, 16e9, layers=61)
    name = {"naive": "expanded", "absorb": "latent"}[kind]
    print(f"{name:9}61 layers in bfloat16: {size / 1e3:7,.1f} kB per token, {fit:8,} tokens in 16 GB")

bars(
    {
        "multi-head, heads of 128": kv_cache_elements("mha", v3),
        "MLA expanded": kv_cache_elements("naive", v3),
        "grouped-query, 8 key heads": kv_cache_elements("gqa", v3, num_kv_heads=8),
        "multi-query": kv_cache_elements("mqa", v3),
        "MLA latent": kv_cache_elements("absorb", v3),
    },
    unit="words per token and layer",
    title="What is cached of a token, DeepSeek-V3 head sizes",
    log=True,
)

# %% [markdown]
# ## Build: RMSNorm
#
# Both latents pass through an RMSNorm before they are used. It divides a vector by its root mean square and
# multiplies by a learned weight $w$:
#
# $$y_i = \frac{x_i}{\sqrt{\frac{1}{n}\sum_{k=1}^{n} x_k^2 + \epsilon}}\; w_i$$
#
# Here $n$ is the width of the vector. Unlike LayerNorm it does not subtract the mean. The constant $\epsilon$ stands
# inside the root and keeps a row of zeros from dividing by zero.
#
# The largest number of float16 is 65504. The square of 300 is 90000. The next cell shows what that does.

# %%
x = torch.tensor([300.0, 20.0], dtype=torch.float16)
print("squares in float16:", (x * x).tolist())
print("divided by their root mean square:", (x / (x * x).mean().sqrt()).tolist())
print("the same in float32:", (x.float() / (x.float() ** 2).mean().sqrt()).tolist())

# %% [markdown]
# The result is zero, not an error and not a NaN: infinity in the denominator wipes the row out silently.
#
# | tensor | shape | dtype |
# |---|---|---|
# | `x` | `[..., n]`, any number of leading axes | float16, bfloat16, float32 or float64 |
# | `weight` | `[n]` | that of `x` |
# | result | shape of `x` | that of `x` |
#
# Write it with basic operations (`square`, `mean`, `rsqrt`, …). May not be called: `rms_norm`.
#
# <details><summary>Hint 1</summary>
#
# The mean runs over the last axis only. Keep that axis, so that the quotient broadcasts. Three lines in all.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Convert `x` before you square it, and convert the result back at the very end. `torch.promote_types(x.dtype,
# torch.float32)` is float32 for the half types and leaves float64 alone. `x.float()` would round float64 to float32.
#
# </details>
# <details><summary>Hint 3</summary>
#
# With `y` the converted input: `y * torch.rsqrt(y.square().mean(-1, keepdim=True) + eps)`. Then the weight, then
# `.to(x.dtype)`.
#
# </details>


# %% solution="rms_normalize"
def rms_normalize(x, weight, eps=1e-6):
    """Root mean square normalisation of the last axis.

    x: [..., n], float16, bfloat16, float32 or float64; weight: [n], same dtype; eps: float.
    Returns a tensor of the shape and dtype of x.

    The trap: float16 must be squared and summed in float32. 256² does not fit into float16.
    """
    ### BEGIN SOLUTION
    y = x.to(torch.promote_types(x.dtype, torch.float32))
    y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + eps)
    return (y * weight).to(x.dtype)
    ### END SOLUTION


# %% check="rms_normalize"
check("rms_normalize")

# %% [markdown]
# ## Build: RoPE on pairs
#
# Rotary position embedding (RoPE) tells the attention where a token stands. It takes the elements of a vector in
# pairs and turns each pair by an angle proportional to the token's position $t$:
#
# $$\begin{pmatrix} y_{2i} \\ y_{2i+1} \end{pmatrix} =
# \begin{pmatrix} \cos t\theta_i & -\sin t\theta_i \\ \sin t\theta_i & \cos t\theta_i \end{pmatrix}
# \begin{pmatrix} x_{2i} \\ x_{2i+1} \end{pmatrix}, \qquad \theta_i = 10000^{-2i/D_r}$$
#
# DeepSeek pairs neighbours: (0, 1), (2, 3), … This is called *interleaved*. Other models pair element $i$ with
# element $i + D_r/2$ (*half rotation*). Weights trained for one give wrong scores with the other.
#
# The cosines and sines are computed once, for all positions. The next cell makes the tables, in float64, and draws
# the cosines of four pairs.

# %%
from mla_ref.plots import curves


def rope_table(first, count, dim, theta=10000.0, dtype=torch.float64):
    """cos and sin, [count, dim/2] each, of positions first, first + 1, …"""
    frequency = theta ** (-2 * torch.arange(dim // 2, dtype=torch.float64) / dim)
    angle = torch.arange(first, first + count, dtype=torch.float64)[:, None] * frequency
    return angle.cos().to(dtype), angle.sin().to(dtype)


cos, sin = rope_table(0, 100, 64)
pairs = {f"pair {pair}": (range(100), cos[:, pair]) for pair in (0, 4, 8, 16)}
curves({"Early pairs turn fast, late pairs slowly ($D_r$ = 64)": pairs}, xlabel="position t (tokens)", ylabel="cos tθ")

# %% [markdown]
# Your function gets the tables and applies them.
#
# | tensor | shape | remark |
# |---|---|---|
# | `x` | `[B, S, H, Dr]` | queries; for the shared key the caller gives it a head axis of length 1 |
# | `cos`, `sin` | `[S, Dr/2]` | row `s` belongs to token `s`, column `i` to pair `i` |
# | result | `[B, S, H, Dr]` | each pair back in its place |
#
# <details><summary>Hint 1</summary>
#
# Split `x` into the elements with even index and those with odd index: two tensors of shape `[B, S, H, Dr/2]`. Then
# the formula is two lines, and one more line puts the pairs together again.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Broadcasting lines up the *last* axes. `[S, Dr/2]` against `[B, S, H, Dr/2]` would put the positions on the heads,
# and raises no error when S equals H. Give the tables an axis of length 1 for the heads: `cos[:, None]`.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `a, b = x[..., 0::2], x[..., 1::2]`. The turned pair is `(a*cos - b*sin, a*sin + b*cos)`. `torch.stack((first,
# second), dim=-1).flatten(-2)` interleaves the two again; `torch.cat` would not.
#
# </details>


# %% solution="rotate_pairs"
def rotate_pairs(x, cos, sin):
    """Turn each pair (x[2i], x[2i+1]) by the angle of its token.

    x: [B, S, H, Dr]; cos, sin: [S, Dr/2]. All of one floating dtype.
    Returns a tensor of the shape of x, pairs interleaved as in x.

    The trap: cos and sin run over S, not over H, and both elements of a pair share a column.
    """
    ### BEGIN SOLUTION
    cos, sin = cos[:, None], sin[:, None]  # [S, 1, Dr/2]
    a, b = x[..., 0::2], x[..., 1::2]
    return torch.stack((a * cos - b * sin, a * sin + b * cos), dim=-1).flatten(-2)
    ### END SOLUTION


# %% check="rotate_pairs"
check("rotate_pairs")

# %% [markdown]
# Turning both a query at position $i$ and a key at position $j$ leaves a score that depends on $i - j$ alone: a
# rotation forward by $i$ and one by $j$ differ by a rotation of $i - j$. The next cell moves both by the same amount.
# The last line moves only the key.

# %%
generator = torch.Generator().manual_seed(0)
q, k = torch.randn(2, 64, generator=generator, dtype=torch.float64)


def turned(vector, position):
    return rotate_pairs(vector[None, None, None], *rope_table(position, 1, 64))[0, 0, 0]


for i, j in ((9, 2), (1009, 1002), (100009, 100002), (9, 3)):
    print(f"query at {i:6}, key at {j:6}: score {turned(q, i) @ turned(k, j):.6f}")

# %% [markdown]
# ## Why the RoPE part is decoupled
#
# Why does the key have a separate part for the position? Why not rotate the part that comes from the latent?
#
# Write $c_j$ for the latent of token $j$, $W$ for $W^{UK}$ of one head, and $\mathcal{R}_t$ for the rotation of
# position $t$. Without rotation the score of a query $q$ is
#
# $$q^\top (W c_j) = (W^\top q)^\top c_j .$$
#
# The right-hand side is useful: $W^\top q$ does not depend on $j$. One vector, computed once per head, serves all
# cached tokens, and no key is ever expanded. Lesson 03 does that.
#
# With rotation of the whole key the score is
#
# $$(\mathcal{R}_i q)^\top (\mathcal{R}_j W c_j) = (W^\top \mathcal{R}_{i-j}\, q)^\top c_j .$$
#
# Now a rotation stands between $W$ and $q$, and it is another one for every $j$. There is no single vector any more.
# The cell below computes the vector for each $j$ and compares it with that of the newest token.

# %%
Dn, R, T = 16, 32, 8
q = torch.randn(Dn, generator=generator, dtype=torch.float64)
W = torch.randn(Dn, R, generator=generator, dtype=torch.float64) / R**0.5
c = torch.randn(T, R, generator=generator, dtype=torch.float64)
keys = c @ W.T  # [T, Dn]

plain = keys @ q
one_vector = c @ (W.T @ q)
print(f"no rotation:   one vector for all tokens, largest error {(plain - one_vector).abs().max():.1e}")

i = T - 1
all_positions = rope_table(0, T, Dn)
turned_q = rotate_pairs(q.expand(1, T, 1, Dn), *all_positions)[0, :, 0]  # row t: q turned by position t
turned_keys = rotate_pairs(keys[None, :, None], *all_positions)[0, :, 0]
scores = turned_keys @ turned_q[i]
vectors = torch.stack([W.T @ turned_q[i - j] for j in range(T)])  # [T, R]: one vector per cached token
own = (scores - (vectors * c).sum(-1)).abs().max()
shared = (scores - c @ vectors[i]).norm() / scores.norm()
print(f"with rotation: a vector for each token, largest error {own:.1e}")
print(f"with rotation: the newest token's vector for all, relative error {shared:.2f}")
away = (vectors - vectors[i]).norm(dim=-1) / vectors[i].norm()
print("\ndistance i - j                 ", *(f"{i - j:6}" for j in range(T)))
print("‖vector_j − vector_i‖, relative", *(f"{value:6.2f}" for value in away))

# %% [markdown]
# The two ways around this both cost what MLA wants to save. Rotating every expanded key at each step means expanding
# it. Caching rotated keys means $H D_n$ numbers per token.
#
# DeepSeek's answer is to decouple the two. $D_n$ columns of each head carry content and are not rotated. $D_r$
# further columns carry position. Their key is computed from the hidden state directly, not from the latent, and there
# is one for all heads. It is small enough to be cached after its rotation:
#
# $$\text{score}_{ij} = \frac{{q^{\mathrm{nope}}_i}^\top W^{UK} c_j +
# (\mathcal{R}_i\, q^{\mathrm{rope}}_i)^\top (\mathcal{R}_j\, k^{\mathrm{rope}}_j)}{\sqrt{D_n + D_r}}$$

# %% [markdown]
# ## Build: what goes into the cache
#
# One matrix $W^{DKV}$ of shape $[R + D_r, D]$ makes both cached vectors from the hidden state (equations 9 to 11 of
# the report):
#
# $$[c'_t;\; k'_t] = W^{DKV} h_t, \qquad c^{KV}_t = \text{RMSNorm}(c'_t), \qquad k^{rope}_t = \text{RoPE}(k'_t)$$
#
# The first $R$ numbers are the latent, the last $D_r$ the key. What is cached is the latent *after* its norm and the
# key *after* its rotation. Each is computed once per token, however long the token stays in the cache.
#
# | tensor | shape |
# |---|---|
# | `h` | `[B, S, D]` |
# | `w_dkv` | `[R + Dr, D]` |
# | `norm_weight` | `[R]` |
# | `cos`, `sin` | `[S, Dr/2]`, the rows of these S tokens |
# | `c_kv`, `k_rope` | `[B, S, R]`, `[B, S, Dr]` |
#
# Call `rms_normalize` (with its default `eps`) and `rotate_pairs`.
#
# <details><summary>Hint 1</summary>
#
# A weight of shape `[out, in]` is applied as `h @ w.T`. Then split the last axis, then one call for each part. Four
# lines.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `R` is `norm_weight.shape[0]`. The norm is for the latent alone: the key is not normalised, the latent is not
# rotated.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `rotate_pairs` wants an axis for the heads. Give the key one, `k[:, :, None]`, and take it away again with `[:, :,
# 0]`.
#
# </details>


# %% solution="latent_kv"
def latent_kv(h, w_dkv, norm_weight, cos, sin):
    """What MLA caches of S tokens.

    h: [B, S, D]; w_dkv: [R + Dr, D], latent first; norm_weight: [R]; cos, sin: [S, Dr/2].
    Returns c_kv [B, S, R], normalised, and k_rope [B, S, Dr], rotated. The key has no head axis.

    The trap: both are cached in their final form, and the norm covers the R columns of the latent only.
    """
    ### BEGIN SOLUTION
    R = norm_weight.shape[0]
    projected = h @ w_dkv.T  # [B, S, R + Dr]
    c_kv, k_rope = projected[..., :R], projected[..., R:]
    return rms_normalize(c_kv, norm_weight), rotate_pairs(k_rope[:, :, None], cos, sin)[:, :, 0]
    ### END SOLUTION


# %% check="latent_kv"
check("latent_kv")

# %% [markdown]
# ## Build: attention over expanded keys and values
#
# The naive form expands the latents of all $T$ tokens, and then it is the attention of lesson 01:
#
# $$k^{nope}_{j,i} = W^{UK}_i c_j, \qquad v_{j,i} = W^{UV}_i c_j \qquad \text{for token } j \text{ and head } i$$
#
# The key of a head is `k_nope` and the shared `k_rope` side by side, and the query likewise, so the score is the sum
# of two dot products. The softmax scale is $1/\sqrt{D_n + D_r}$: 1/√192 for DeepSeek-V3.
#
# | tensor | shape |
# |---|---|
# | `q_nope`, `q_rope` | `[B, S, H, Dn]`, `[B, S, H, Dr]`, the latter rotated |
# | `c_kv`, `k_rope` | `[B, T, R]`, `[B, T, Dr]`: the cache |
# | `w_uk`, `w_uv` | `[H, Dn, R]`, `[H, Dv, R]` |
# | `out`, `lse` | `[B, S, H, Dv]`, `[B, S, H]` |
#
# The S queries are the last S of the T tokens: query $s$ sees the tokens up to position $T - S + s$. As in lesson 01,
# `lse` is the natural logarithm of the sum of exponentials of the scaled scores. Large scores must not overflow. Not
# to be called: `scaled_dot_product_attention`.
#
# <details><summary>Hint 1</summary>
#
# Two expansions, the scores, the mask, the softmax, the weighted sum: about ten lines, of which you wrote five
# in lesson 01. Name the axes in `torch.einsum` with one letter each: b, s, t, h, d, r, v.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `k_nope = torch.einsum("btr,hdr->bthd", c_kv, w_uk)`, and `v` in the same way from `w_uv`. The shared key needs no
# copy: `torch.einsum("bshd,btd->bsht", q_rope, k_rope)`.
#
# </details>
# <details><summary>Hint 3</summary>
#
# Add the two products, then divide the sum by `math.sqrt(Dn + Dr)`, both read off the queries. Mask with
# `masked_fill(future, -math.inf)`, where `future` compares `torch.arange(T)` with `torch.arange(S)[:, None] + (T -
# S)`. The weights are `torch.softmax(scores, dim=-1)`; `torch.logsumexp` takes the same arguments.
#
# </details>


# %% solution="naive_mla_attention"
def naive_mla_attention(q_nope, q_rope, c_kv, k_rope, w_uk, w_uv):
    """Causal MLA that expands the latent into keys and values of every head.

    q_nope: [B, S, H, Dn]; q_rope: [B, S, H, Dr], rotated.
    c_kv: [B, T, R], normalised; k_rope: [B, T, Dr], rotated. w_uk: [H, Dn, R]; w_uv: [H, Dv, R].
    The S queries are the last S of the T tokens.
    Returns out [B, S, H, Dv] and lse [B, S, H], the natural log-sum-exp of the scaled scores.

    The trap: the scale is the width of a head's key, Dn + Dr, and not the width of the cache, R + Dr.
    """
    ### BEGIN SOLUTION
    S, T = q_nope.shape[1], c_kv.shape[1]
    k_nope = torch.einsum("btr,hdr->bthd", c_kv, w_uk)
    v = torch.einsum("btr,hvr->bthv", c_kv, w_uv)
    scores = torch.einsum("bshd,bthd->bsht", q_nope, k_nope)
    scores = scores + torch.einsum("bshd,btd->bsht", q_rope, k_rope)
    scores = scores / math.sqrt(q_nope.shape[-1] + q_rope.shape[-1])
    future = torch.arange(T) > torch.arange(S)[:, None] + (T - S)
    scores = scores.masked_fill(future[:, None, :], -math.inf)
    out = torch.einsum("bsht,bthv->bshv", torch.softmax(scores, dim=-1), v)
    lse = torch.logsumexp(scores, dim=-1)
    return out, lse
    ### END SOLUTION


# %% check="naive_mla_attention"
check("naive_mla_attention")

# %% [markdown]
# ## Measure: what expansion costs
#
# The cache is 71 times smaller. The price: keys and values of all $T$ cached tokens are rebuilt at every step, for one
# new token. For each cached token, how many multiply-accumulates of a decode step (S = 1) does the expansion take, and
# how many the attention, scores and weighted sum? Write the quotient for $D_n$ = 128, $D_r$ = 64, $D_v$ = 128, $R$ =
# 512 into the next cell. It is not graded.

# %%
my_quotient = 1.0  # multiply-accumulates of the expansion, per one of the attention

# %% [markdown]
# Now measure on this machine: one sequence, float32, the report's layer (16 heads, widths as above), one thread. The
# expansion is one matrix product here, with the weights of all heads stacked. The attention gets expanded keys and
# values. Each time is the 20th percentile of 9 calls.

# %%
from mla_ref.hardware.timing import bench

H, Dn, Dr, Dv, R = 16, 128, 64, 128, 512
w_uk, w_uv = torch.randn(H, Dn, R) / R**0.5, torch.randn(H, Dv, R) / R**0.5
w_both = torch.cat((w_uk, w_uv), 1).flatten(0, 1)  # [H(Dn+Dv), R]
q = torch.randn(1, 1, H, Dn + Dr)


def attend(q, k, v):
    weights = (torch.einsum("bshd,bthd->bsht", q, k) / math.sqrt(Dn + Dr)).softmax(-1)
    return torch.einsum("bsht,bthv->bshv", weights, v)


def milliseconds(call, *operands):
    return bench(lambda: call(*operands), repeat=9, device="cpu").p20 * 1e3


threads = torch.get_num_threads()
torch.set_num_threads(1)
print("context T   expansion (ms)   attention (ms)   quotient of the times")
for T in (128, 512, 2048):
    c_kv, k, v = torch.randn(1, T, R), torch.randn(1, T, H, Dn + Dr), torch.randn(1, T, H, Dv)
    a, b = milliseconds(torch.matmul, c_kv, w_both.T), milliseconds(attend, q, k, v)
    print(f"{T:9} {a:16.2f} {b:16.2f} {a / b:23.0f}")
torch.set_num_threads(threads)
counted = R * (Dn + Dv) / (Dn + Dr + Dv)
print(f"\nmultiply-accumulates: you wrote {my_quotient:g}, counted H(Dn+Dv)R / H(Dn+Dr+Dv) = {counted:g}")

# %% [markdown]
# The expansion has about 410 times the arithmetic of the attention. Its time is a smaller multiple: it is a large
# matrix product, which a processor does near its full rate. The attention of a single query does two operations with
# each number that it reads, so it waits for memory. Each step expands every latent again. To generate $T$ tokens,
# expansion takes some 410 times the arithmetic of attention; both grow with $T^2$.
#
# The next cell calculates the same for an H100, as in lesson 00: the sizes of DeepSeek-V3 in bfloat16, 128 sequences of
# 4096 tokens, one layer, one step.

# %%
from mla_ref import DEVICES, Cost, attention_cost
from mla_ref.roofline import expansion_cost

h100, batch, context = DEVICES["h100"], 128, 4096
costs = {
    "expand K and V of all tokens": expansion_cost(v3, tokens=batch * context),
    "attention over expanded K and V": attention_cost("naive", v3, batch=batch, context=context),
    "read the latent cache once": Cost(bytes=batch * context * cache_bytes_per_token("absorb", v3)),
}
for name, cost in costs.items():
    print(f"{name:34}{cost.bytes / 1e9:7.2f} GB {cost.flops / 1e12:8.3f} TFLOP {cost.time(h100) * 1e3:7.2f} ms, "
          f"bound by {cost.bound(h100)}")
stored = batch * context * cache_bytes_per_token("naive", v3, layers=61)
print(f"keeping K and V expanded, all 61 layers: {stored / 1e12:.2f} TB; an H100 has {h100.dram_bytes / 1e12:.2f} TB")

# %% [markdown]
# Here the quotient of the times is 1.4 for the same 410 in arithmetic: a GPU multiplies faster, compared with its
# memory, than a CPU does. Rebuilding and reading keys and values takes about 31 ms per layer, reading the cache 0.18
# ms. Keeping keys and values expanded would avoid the first time, but they do not fit.
#
# FlashMLA, DeepSeek's kernel for the attention of this step, takes {{flash_mla_ms}} ms per layer, measured for this
# course on an {{decode_h100.device}} (`benchmarks/decode_h100.json`). It never expands. Lesson 03 shows why it need
# not.

# %% [markdown]
# ## The query, given
#
# The query takes the same road as the latent: down to $R_q$ numbers, RMSNorm, up to all heads, and a rotation of its
# RoPE part (equations 1 to 4 of the report). Nothing of it is cached. The low rank saves weights and, in training,
# activations; the cache does not depend on it. So the function is given. It calls your `rms_normalize` and
# `rotate_pairs`.
#
# One detail to notice: the heads are separated *before* the split. Each head has its own Dn + Dr columns. Splitting
# the flat row of H·(Dn+Dr) numbers first would mix the heads up.

# %% setup="mla_query"
def mla_query(h, w_dq, norm_weight, w_uq, cos, sin):
    """The query of S tokens.

    h: [B, S, D]; w_dq: [Rq, D]; norm_weight: [Rq]; w_uq: [H, Dn + Dr, Rq]; cos, sin: [S, Dr/2].
    Returns q_nope [B, S, H, Dn] and q_rope [B, S, H, Dr], the latter rotated.
    """
    c_q = rms_normalize(h @ w_dq.T, norm_weight)
    q = torch.einsum("bsr,hdr->bshd", c_q, w_uq)
    nope = w_uq.shape[1] - 2 * cos.shape[1]
    return q[..., :nope], rotate_pairs(q[..., nope:], cos, sin)


# %% [markdown]
# ## Build: one decode step
#
# In decoding one token arrives per sequence. The layer makes its query, its latent and its key, writes the latter two
# into the cache, attends to everything cached up to and including the token itself, and projects the output back to
# width $D$.
#
# The caches have room for `capacity` tokens. `position` tokens are in them, in rows 0 to `position - 1`. The rows
# behind hold whatever an earlier sequence left there.
#
# | argument | shape | |
# |---|---|---|
# | `h` | `[B, 1, D]` | hidden state of the new token |
# | `weights` | dict of tensors | see the second table |
# | `c_cache`, `k_cache` | `[B, capacity, R]`, `[B, capacity, Dr]` | to be changed in place |
# | `position` | int | tokens already cached; 0 for the first token |
# | `cos`, `sin` | `[capacity, Dr/2]` | the tables of all positions |
# | `u` | `[B, 1, D]` | output of the layer |
#
# | key of `weights` | shape | key of `weights` | shape |
# |---|---|---|---|
# | `"w_dq"` | `[Rq, D]` | `"w_uk"` | `[H, Dn, R]` |
# | `"q_norm"` | `[Rq]` | `"w_uv"` | `[H, Dv, R]` |
# | `"w_uq"` | `[H, Dn + Dr, Rq]` | `"w_o"` | `[D, H·Dv]` |
# | `"w_dkv"` | `[R + Dr, D]` | `"kv_norm"` | `[R]` |
#
# Return `u`, `c_cache` and `k_cache`, of which the latter two are the tensors that were passed. Call `mla_query`,
# `latent_kv` and `naive_mla_attention`.
#
# <details><summary>Hint 1</summary>
#
# About nine lines, in this order: the row of the tables, query, latent and key, write, attend, project. Positions
# count from 0. With `position` tokens cached, which position does the new one have?
#
# </details>
# <details><summary>Hint 2</summary>
#
# The new token stands at `position`. Slice with a range, so that the axis stays: `cos[position : position + 1]` is
# `[1, Dr/2]`. After the write, `position + 1` rows are filled. The cached keys have been rotated already.
#
# </details>
# <details><summary>Hint 3</summary>
#
# Write with `c_cache[:, position : position + 1] = c_new`. Attend to `c_cache[:, : position + 1]` and the same rows
# of `k_cache`. `out` is `[B, 1, H, Dv]`: `out.flatten(2)` is `[B, 1, H·Dv]`, and `w_o` is applied as `@
# weights["w_o"].T`.
#
# </details>


# %% solution="mla_decode_step"
def mla_decode_step(h, weights, c_cache, k_cache, position, cos, sin):
    """One new token per sequence through an MLA layer with a latent cache.

    h: [B, 1, D]; weights: dict of tensors, as in the table above.
    c_cache: [B, capacity, R]; k_cache: [B, capacity, Dr]; position: int, tokens already cached.
    cos, sin: [capacity, Dr/2], all positions.
    Changes row `position` of both caches in place. Returns u [B, 1, D], c_cache, k_cache.

    The trap: the new token stands at `position`. Once it is written, position + 1 rows are filled.
    """
    ### BEGIN SOLUTION
    now = slice(position, position + 1)
    w, angle = weights, (cos[now], sin[now])
    q_nope, q_rope = mla_query(h, w["w_dq"], w["q_norm"], w["w_uq"], *angle)
    c_new, k_new = latent_kv(h, w["w_dkv"], w["kv_norm"], *angle)
    c_cache[:, now] = c_new
    k_cache[:, now] = k_new
    c_kv, k_rope = c_cache[:, : position + 1], k_cache[:, : position + 1]
    out, _ = naive_mla_attention(q_nope, q_rope, c_kv, k_rope, w["w_uk"], w["w_uv"])
    return out.flatten(2) @ w["w_o"].T, c_cache, k_cache
    ### END SOLUTION


# %% check="mla_decode_step"
check("mla_decode_step")

# %% [markdown]
# ## Your layer against the reference
#
# `mla_ref.MLA` is this course's reference layer. Its weights have the names that Hugging Face uses. The next cell
# takes the weights out of a small one (D = 64, H = 4, R = 32), feeds ten tokens through your `mla_decode_step` one at
# a time, and compares with the reference, which sees all ten at once. Everything is in float64. Expect an error
# of 1e-15.

# %%
from mla_ref import MLA

tiny = MLAConfig.preset("tiny")
torch.manual_seed(0)
layer = MLA(tiny, impl="naive", dtype=torch.float64)
with torch.no_grad():
    for norm in (layer.q_a_layernorm, layer.kv_a_layernorm):
        norm.weight.uniform_(0.5, 1.5)  # ones would hide a missing weight
    weights = {
        "w_dq": layer.q_a_proj.weight,
        "q_norm": layer.q_a_layernorm.weight,
        "w_uq": layer.q_b_proj.weight.unflatten(0, (tiny.num_attention_heads, -1)),
        "w_dkv": layer.kv_a_proj_with_mqa.weight,
        "kv_norm": layer.kv_a_layernorm.weight,
        "w_uk": layer.w_uk,
        "w_uv": layer.w_uv,
        "w_o": layer.o_proj.weight,
    }
    tokens = torch.randn(2, 10, tiny.hidden_size, dtype=torch.float64)
    c_cache = torch.zeros(2, 16, tiny.kv_lora_rank, dtype=torch.float64)
    k_cache = torch.zeros(2, 16, tiny.qk_rope_head_dim, dtype=torch.float64)
    cos, sin = rope_table(0, 16, tiny.qk_rope_head_dim)
    steps = []
    for position in range(10):
        u, c_cache, k_cache = mla_decode_step(
            tokens[:, position : position + 1], weights, c_cache, k_cache, position, cos, sin
        )
        steps.append(u)
    difference = (torch.cat(steps, 1) - layer(tokens)).abs().max()
print(f"ten decode steps against one pass of the reference: largest difference {difference:.1e}")

# %% [markdown]
# ## Your code in the model
#
# The course has a small trained model of DeepSeek-V3's architecture. It reads and writes bytes, and has seen the
# documentation and sources of Python's standard library. The next cell puts your `mla_decode_step` in place of all six
# of its attention layers, which may take a minute. A layer that is right writes on as the model does by itself. Then
# make a mistake on purpose: with a scale of 1/√(R + Dr) the model writes another text, with neither queries nor keys
# rotated nothing but blanks.

# %%
from mla_ref import playground

playground.write("class Cache:\n    ", layer=mla_decode_step, new=48)

# %% [markdown]
# ## In the field: the softmax scale
#
# The scale is $1/\sqrt{D_n + D_r}$, from the width of a head's key. Kernels that work on the latent see keys of width
# $R + D_r$, and it is tempting to take that one. FlashMLA's default is 1/√576 unless the caller passes a scale. ollama
# used 1/√576 where 1/√256 was right, for a model with $D_n + D_r$ = 256; the fix names tool calling and looping as what
# improved (ollama #13893). Megatron-LM took D/H = 5120/128 = 40 for the width (Megatron-LM #1501).
#
# YaRN, a way to extend a model's context, multiplies the scale by one more factor: 1.87 for DeepSeek-V3. It was
# computed from the wrong field (Megatron-LM #1429) or left out (transformers #47435). The next cell shows the size of
# these errors on random data: multiplying the queries by a factor is the same as multiplying the scale by it.

# %%
torch.manual_seed(0)
q_nope, q_rope = torch.randn(1, 1, 16, 128), torch.randn(1, 1, 16, 64)
c_kv, k_rope = torch.randn(1, 512, 512), torch.randn(1, 512, 64)
right, _ = naive_mla_attention(q_nope, q_rope, c_kv, k_rope, w_uk, w_uv)
yarn = v3.softmax_scale * math.sqrt(192)
for name, factor in (
    ("1/√576 for 1/√192", math.sqrt(192 / 576)),
    ("1/√128 for 1/√192", math.sqrt(192 / 128)),
    (f"YaRN's factor {yarn:.2f} left out", 1 / yarn),
):
    wrong, _ = naive_mla_attention(q_nope * factor, q_rope * factor, c_kv, k_rope, w_uk, w_uv)
    error = (wrong - right).norm() / right.norm()
    print(f"{name:28} scores × {factor:.2f}, error of the output {error:.0%}")

# %% [markdown]
# ## What to take along
#
# - A layer that caches 576 words per token where expanded keys and values take 40960.
# - A function for each step. Later lessons replace them one by one: by absorption (03), by kernels for norm and
#   rotation (04), for the attention (05, 06), by a paged cache (07).
# - Expansion takes 410 multiply-accumulates for each one of the attention itself.
#
# <details><summary><b>Appendix: four more traps from public projects</b></summary>
#
# Numbers are issues and pull requests of the repositories named.
#
# **Two ways to pair.** Hugging Face's DeepSeek code first sorts the even and odd elements into halves and then uses
# half rotation. Its keys are a permutation of DeepSeek's own. The scores are the same, because query and key are
# permuted alike. Users who compared the tensors reported a bug (transformers #39687, vllm #26995). The scores are wrong
# where one side is turned in pairs and the other by halves.
#
# **Angles in bfloat16.** A bfloat16 number has 8 significant bits. Integers up to 256 are exact; above that, positions
# round to multiples of 2, then 4, and so on. The first pair turns by one radian per token, so its angle is the position
# itself. The public MLA decode challenge for AMD's MI300 computes its angles in bfloat16. The tables of this lesson are
# computed in float64 and rounded once, at the end.
#
# **Rotated before the cache, or after.** The same challenge caches the key's RoPE part unrotated and rotates the whole
# cache again at each step. The result is the same, with more work. Where a cache and a layer disagree on this, cached
# keys are rotated twice or never. The check of your last exercise looks for keys that are rotated a second time.
#
# **What is cached.** Users of two projects had to ask what the cache holds (DeepSeek-V3 #305, TensorRT-LLM #2738): the
# latent after its RMSNorm and the rotated shared key, 576 words per token for DeepSeek-V3. A public cache calculator
# counted 2 × 512 = 1024: the latent once for K and once for V, and no RoPE key (LMCache #694).
#
# </details>
#
# Figures: {{records}}.
