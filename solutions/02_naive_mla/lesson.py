# %% [markdown]
# # Lesson 02: naive MLA
#
# Multi-head attention caches a key and a value for every head of every token. Multi-head Latent Attention (MLA)
# caches one short vector per token instead, and makes the keys and values of all heads from it when they are needed.
#
# In this lesson you build one MLA layer in plain PyTorch: the norm, the rotation, what goes into the cache, the
# attention, and a decode step. It is called *naive* because it expands the short vector into full keys and values at
# every step. At the end you measure what that costs. Lesson 03 removes the cost.
#
# | exercise | you write | points |
# |---|---|---|
# | `predict_latent_cache` | bytes cached per token, both ways | 2 |
# | `rms_normalize` | RMSNorm | 3 |
# | `rotate_pairs` | rotary position embedding | 3 |
# | `latent_kv` | what is cached of a token | 3 |
# | `naive_mla_attention` | attention over expanded keys and values | 5 |
# | `mla_decode_step` | one token through the layer | 4 |
#
# Every exercise is judged on its own, with the right solutions of the earlier ones. Each may use 10 s and 512 MiB.
# The tensors are small, a few thousand numbers at most. Hidden cases have other shapes: odd widths, one token, one
# head.
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
# The next cell draws the layer. Follow the orange boxes: they are all that is kept of a token. The key of head $i$
# has two parts. The part of width $D_n$ comes from the latent, through a matrix $W^{UK}_i$ of that head. The part of
# width $D_r$ is one vector that all heads share.

# %%
import matplotlib.pyplot as plt
from mla_ref.plots import PALETTE

BLUE, ORANGE, GREEN = PALETTE[0], PALETTE[4], PALETTE[2]


def box(x, y, text, width=1.5, color="#E8EEF4", edge="#8899AA"):
    corner = (x - width / 2, y - 0.36)
    axes.add_patch(plt.Rectangle(corner, width, 0.72, facecolor=color, edgecolor=edge, zorder=2))
    axes.text(x, y, text, ha="center", va="center", fontsize=8.5, zorder=3)


def arrow(start, end):
    axes.annotate("", end, start, arrowprops={"arrowstyle": "->", "color": "#556677"}, zorder=1)


figure, axes = plt.subplots(figsize=(9.6, 4.4), layout="constrained")
box(0.3, 2.9, "hidden state\nh  [D]", 1.2)
for y, down, latent, shade in (
    (4.6, "$W^{DQ}$, RMSNorm", "query latent\n[$R_q$]", "#E8EEF4"),
    (2.9, "$W^{DKV}$, RoPE", "k_rope\n[$D_r$], shared", ORANGE),
    (1.2, "$W^{DKV}$, RMSNorm", "c_kv, the latent\n[R]", ORANGE),
):
    box(2.3, y, down, 1.6, "white")
    box(4.3, y, latent, 1.6, shade)
    arrow((0.9, 2.9), (1.5, y))
    arrow((3.1, y), (3.5, y))
for y, source, up, result, made in (
    (5.1, 4.6, "$W^{UQ}$", "q_nope\n[H, $D_n$]", None),
    (4.1, 4.6, "$W^{UQ}$, RoPE", "q_rope\n[H, $D_r$]", None),
    (2.9, 2.9, "copy to heads", "k_rope\n[H, $D_r$]", GREEN),
    (1.7, 1.2, "$W^{UK}$", "k_nope\n[H, $D_n$]", GREEN),
    (0.7, 1.2, "$W^{UV}$", "v\n[H, $D_v$]", GREEN),
):
    box(6.2, y, up, 1.3, "white")
    box(7.9, y, result, 1.2, *(("#DCEFE8", GREEN) if made else ()))
    arrow((5.1, source), (5.55, y))
    arrow((6.85, y), (7.3, y))
    arrow((8.5, y), (9.15, 2.9 + (y - 2.9) * 0.12))
box(9.8, 2.9, "attention\nof H heads", 1.3)
box(11.4, 2.9, "$W^O$", 0.7, "white")
box(12.6, 2.9, "u\n[D]", 0.7)
arrow((10.45, 2.9), (11.05, 2.9))
arrow((11.75, 2.9), (12.25, 2.9))
axes.text(3.95, 2.05, "cached: R + $D_r$ numbers per token", ha="center", fontsize=8.5, color="#A05A00")
axes.text(7.9, 0.05, "rebuilt at every step by the naive form", ha="center", fontsize=8.5, color=GREEN)
axes.set(xlim=(-0.4, 13.05), ylim=(-0.2, 5.6), title="One MLA layer, widths per token")
axes.axis("off")
plt.show()

# %% [markdown]
# ## Predict: bytes in the cache
#
# There are two things one could cache per token:
#
# - **expanded**: the key of every head, both parts ($D_n + D_r$), and the value of every head ($D_v$);
# - **latent**: the orange boxes of the picture.
#
# Count the bytes of one token in one layer. `itemsize` is the number of bytes of one element: 2 for bfloat16.
#
# <details><summary>Hint 1</summary>
#
# In the picture, count the numbers in the green boxes on the key and value side, then those in the orange boxes. Two
# products, then a quotient.
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
# For DeepSeek-V3 the expanded form has 128 × (128 + 64 + 128) elements. The latent form has 512 + 64. Multiply both
# by `itemsize`. Three lines.
#
# </details>


# %% solution="predict_latent_cache"
def predict_latent_cache(num_heads, qk_nope_head_dim, qk_rope_head_dim, v_head_dim, kv_lora_rank, itemsize):
    """Bytes cached per token and layer.

    The arguments are H, Dn, Dr, Dv, R and the bytes of one element; all are ints.

    Returns a dict of numbers:
      expanded_bytes  keys (both parts) and values of every head
      latent_bytes    what MLA caches
      ratio           expanded_bytes / latent_bytes

    The trap: bytes, not elements.
    """
    ### BEGIN SOLUTION
    expanded = num_heads * (qk_nope_head_dim + qk_rope_head_dim + v_head_dim) * itemsize
    latent = (kv_lora_rank + qk_rope_head_dim) * itemsize
    return {"expanded_bytes": expanded, "latent_bytes": latent, "ratio": expanded / latent}
    ### END SOLUTION


# %% check="predict_latent_cache"
check("predict_latent_cache")

# %% [markdown]
# The next cell compares five caches for the head sizes of DeepSeek-V3. Plain multi-head attention with heads of 128
# would cache $H(D_n + D_v)$ = 32768 elements. Expanded MLA needs more than that, because of the RoPE part: 40960. The
# latent needs 576, between multi-query attention (one key head, 256) and grouped-query attention with 8 key heads
# (2048). In units of grouped-query attention that is 576/256 = 2.25 key heads.

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
    unit="elements per token and layer",
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
# torch.float32)` is float32 for the half types and leaves float64 alone.
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

    The trap: half types must be squared and summed in float32. 256² does not fit into float16.
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
# (Below its equation 7 the report gives the base as 1/10000. With that value the angles would grow with $i$. The base
# is 10000.)
#
# The cosines and sines are computed once, for all positions. The next cell makes the tables, in float64, and draws
# the angles of the first pairs.

# %%
def rope_table(first, count, dim, theta=10000.0, dtype=torch.float64):
    """cos and sin, [count, dim/2] each, of positions first, first + 1, …"""
    frequency = theta ** (-2 * torch.arange(dim // 2, dtype=torch.float64) / dim)
    angle = torch.arange(first, first + count, dtype=torch.float64)[:, None] * frequency
    return angle.cos().to(dtype), angle.sin().to(dtype)


cos, sin = rope_table(0, 100, 64)
figure, axes = plt.subplots(figsize=(7, 2.6), layout="constrained")
for pair, color in zip((0, 4, 8, 16), PALETTE, strict=False):
    axes.plot(cos[:, pair], color=color, label=f"pair {pair}")
axes.set(xlabel="position t (tokens)", ylabel="cos tθ")
axes.set_title("Early pairs turn fast, late pairs slowly ($D_r$ = 64)")
axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
plt.show()

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
# A weight of shape `[out, in]` is applied as `h @ w.T`. Then split the last axis, then one call for each part. Three
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
# Two expansions, the scores, the mask, the softmax, the weighted sum: about eight lines, of which you wrote five in
# lesson 01. Name the axes in `torch.einsum` with one letter each: b, s, t, h, d, r, v.
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
# S)`. `torch.logsumexp(scores, -1)` is stable, and the softmax is `torch.exp(scores - lse[..., None])`.
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
    lse = torch.logsumexp(scores, dim=-1)
    out = torch.einsum("bsht,bthv->bshv", torch.exp(scores - lse[..., None]), v)
    return out, lse
    ### END SOLUTION


# %% check="naive_mla_attention"
check("naive_mla_attention")

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

# %% setup="query"
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
# Call `mla_query`, `latent_kv` and `naive_mla_attention`.
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
# around 1e-16, or around 1e-7 if your norm always computes in float32.

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
# ## Measure: what expansion costs
#
# The cache is 71 times smaller. The price is that keys and values of all $T$ cached tokens are rebuilt at every step,
# for one new token.
#
# First predict. For each cached token, count the multiply-accumulates of one decode step (S = 1): how many does the
# expansion take, $W^{UK}$ and $W^{UV}$ of all heads? How many the attention itself, scores and weighted sum? Write
# the quotient for $D_n$ = 128, $D_r$ = 64, $D_v$ = 128, $R$ = 512 into the next cell. It is not graded.

# %%
my_quotient = 1.0  # multiply-accumulates of the expansion, per one of the attention

# %% [markdown]
# Now measure on this machine: one sequence, float32, the report's layer (16 heads, sizes as above), one thread. The
# expansion is one matrix product here, with the weights of all heads stacked; the attention gets keys and values that
# are expanded already. Each time is the 20th percentile of 9 calls.

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
contexts, expanding, attending = (128, 256, 512, 1024, 2048), [], []
for T in contexts:
    c_kv, k, v = torch.randn(1, T, R), torch.randn(1, T, H, Dn + Dr), torch.randn(1, T, H, Dv)
    expanding.append(milliseconds(torch.matmul, c_kv, w_both.T))
    attending.append(milliseconds(attend, q, k, v))
torch.set_num_threads(threads)

print("context T   expansion (ms)   attention (ms)   quotient of the times")
for T, a, b in zip(contexts, expanding, attending, strict=True):
    print(f"{T:9} {a:16.2f} {b:16.2f} {a / b:23.0f}")
counted = R * (Dn + Dv) / (Dn + Dr + Dv)
print(f"\nquotient of the multiply-accumulates: you wrote {my_quotient:g}")
print(f"counted: H(Dn+Dv)R / H(Dn+Dr+Dv) = {counted:g}")

figure, axes = plt.subplots(figsize=(7, 3.2), layout="constrained")
axes.loglog(contexts, expanding, "s-", color=PALETTE[1], label="expansion of the latents into K and V")
axes.loglog(contexts, attending, "o-", color=BLUE, label="attention over K and V")
axes.set(xlabel="context T (tokens)", ylabel="time per step (ms)")
axes.set_title("One decode step on one core of this CPU, B = 1, H = 16")
axes.set_xticks(contexts, [str(T) for T in contexts])
axes.minorticks_off()
axes.grid(color="#DDDDDD")
axes.legend(frameon=False)
plt.show()

# %% [markdown]
# The expansion has about 410 times the arithmetic of the attention. It does not take 410 times as long: the last column
# of your table says how many times on your machine. The expansion is a large matrix product, which a processor does
# near its full rate. The attention of a single query reads every key and value once and does two operations with each
# number, so it waits for memory.
#
# Both lines grow about in proportion to $T$. Generating $T$ tokens expands every latent again at every step, so the
# total grows with $T^2$.
#
# The next cell does the same for an H100, by model: the sizes of DeepSeek-V3 in bfloat16, 128 sequences of 4096
# tokens, one layer, one step. Bytes are divided by 3.35 TB/s, FLOPs (two per multiply-accumulate) by 989 TFLOP/s,
# both from the data sheet, and the larger time counts. Real kernels take longer.

# %%
from mla_ref.hardware.devices import DEVICES
from mla_ref.hardware.cost import Cost
from mla_ref.roofline import attention_cost, expansion_cost

h100, batch, context = DEVICES["h100"], 128, 4096
latent = Cost(bytes=batch * context * cache_bytes_per_token("absorb", v3))
costs = {
    "expand K and V of all tokens": expansion_cost(v3, tokens=batch * context),
    "attention over expanded K and V": attention_cost("naive", v3, batch=batch, context=context),
    "read the latent cache once": latent,
}
print(f"{'':34}     GB     TFLOP   H100 (ms)   bound by")
for name, cost in costs.items():
    print(f"{name:34}{cost.bytes / 1e9:7.2f} {cost.flops / 1e12:9.3f} "
          f"{cost.time(h100) * 1e3:11.2f}   {cost.bound(h100)}")
stored = batch * context * cache_bytes_per_token("naive", v3, layers=61)
print(f"\nkeeping K and V expanded instead, in all 61 layers: {stored / 1e12:.2f} TB; "
      f"an H100 has {h100.dram_bytes / 1e12:.2f} TB")
bars(
    {name: cost.time(h100) * 1e3 for name, cost in costs.items()},
    unit="ms, modelled, per layer and step",
    title="Naive decode on an H100: B = 128, T = 4096, DeepSeek-V3",
    log=True,
)

# %% [markdown]
# Here the quotient of the times is 1.4 (17.79 to 12.82 ms), for the same 410 in arithmetic: a GPU multiplies faster,
# compared with its memory, than a CPU does.
#
# Rebuilding and reading keys and values takes about 31 ms per layer. Reading the cache itself would take 0.18 ms.
# Keeping keys and values expanded would avoid the first bar, but would not fit.
#
# DeepSeek's kernel FlashMLA does the attention of this step (128 sequences, 128 heads, 4096 tokens) in {{flash_mla_ms}}
# ms per layer, measured for this course on an {{decode_h100.device}} (`benchmarks/decode_h100.json`). It never expands.
# Lesson 03 shows why it need not.

# %% [markdown]
# ## In the field
#
# Each of these cost somebody time in a public project. Issue and pull request numbers are those of the repositories
# named.
#
# ### The softmax scale
#
# The scale is $1/\sqrt{D_n + D_r}$, the width of the key in training. Kernels that work on the latent see keys of
# width $R + D_r$, and it is tempting to take that one. FlashMLA's default is 1/√576 unless the caller passes a scale.
# ollama used 1/√576 where 1/√256 was right, for a model with $D_n + D_r$ = 256; the fix names tool calling and
# looping as what improved (ollama #13893). Megatron-LM took D/H = 5120/128 = 40 for the width (Megatron-LM #1501).
#
# Models whose context was extended with YaRN multiply the scale by one more factor: 1.87 for DeepSeek-V3. It was
# computed from the wrong field (Megatron-LM #1429) or left out (transformers #47435, TensorRT-LLM #19112). The next
# cell shows the size of these errors on random data with your function: multiplying the queries by a factor is the
# same as multiplying the scale by it.

# %%
torch.manual_seed(0)
q_nope, q_rope = torch.randn(1, 1, 16, 128), torch.randn(1, 1, 16, 64)
c_kv, k_rope = torch.randn(1, 512, 512), torch.randn(1, 512, 64)
right, _ = naive_mla_attention(q_nope, q_rope, c_kv, k_rope, w_uk, w_uv)
yarn = v3.softmax_scale * math.sqrt(192)
print(f"YaRN's factor for DeepSeek-V3: (0.1 ln 40 + 1)² = {(0.1 * math.log(40) + 1) ** 2:.3f}")
print(f"the same from mla_ref's configuration:            {yarn:.3f}\n")
for name, factor in (
    ("1/√576 for 1/√192", math.sqrt(192 / 576)),
    ("1/√128 for 1/√192", math.sqrt(192 / 128)),
    ("YaRN's factor left out", 1 / yarn),
):
    wrong, _ = naive_mla_attention(q_nope * factor, q_rope * factor, c_kv, k_rope, w_uk, w_uv)
    error = (wrong - right).norm() / right.norm()
    print(f"{name:23} scores × {factor:.2f}, error of the output {error:.0%}")

# %% [markdown]
# ### Two ways to pair
#
# Hugging Face's DeepSeek code first sorts the even and odd elements into halves and then uses half rotation. Its keys
# are a permutation of DeepSeek's own, and its scores are the same, because query and key are permuted alike. Users
# who compared the tensors reported a bug (transformers #39687, vllm #26995). The error is real only where one
# convention meets the other.

# %%
def rotate_halves(x, cos, sin):
    cos, sin = cos[:, None], sin[:, None]
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


def scores(turn_q, q, turn_k, k):
    return torch.einsum("bshd,bthd->bst", turn_q(q, *table), turn_k(k, *table))


sort = torch.cat((torch.arange(0, 64, 2), torch.arange(1, 64, 2)))  # even elements, then odd ones
q, k = torch.randn(2, 1, 9, 1, 64, dtype=torch.float64)
table = rope_table(0, 9, 64)
right = scores(rotate_pairs, q, rotate_pairs, k)
sorted_q, sorted_k = q[..., sort], k[..., sort]
for name, other in (
    ("both sorted, half rotation on both", scores(rotate_halves, sorted_q, rotate_halves, sorted_k)),
    ("neither sorted, half rotation on both", scores(rotate_halves, q, rotate_halves, k)),
    ("query in pairs, key by half rotation", scores(rotate_pairs, q, rotate_halves, k)),
):
    print(f"{name:38} error of the scores {(other - right).norm() / right.norm():.1e}")

# %% [markdown]
# ### Angles in bfloat16
#
# The public MLA decode challenge for AMD's MI300 (lesson 12) computes its angles in bfloat16. A bfloat16 number has 8
# significant bits. Integers up to 256 are exact; above that, positions round to multiples of 2, then 4, and so on.
# The first pair turns by one radian per token, so its angle is the position itself.

# %%
positions = torch.arange(0, 6145)
rounded = positions.to(torch.bfloat16).double()
print("4097 tokens, positions 0 to 4096:", len(rounded[:4097].unique()), "different angles in bfloat16")
print("positions 4090 to 4096 become", rounded[4090:4097].long().tolist())

figure, axes = plt.subplots(figsize=(7, 2.8), layout="constrained")
axes.plot(positions, (rounded - positions).abs(), color=PALETTE[1], linewidth=0.6)
axes.axhline(2 * math.pi, color="#556677", linestyle="--", linewidth=1)
axes.text(100, 2 * math.pi + 0.4, "one full turn", fontsize=8.5, color="#556677")
axes.set(xlabel="position (tokens)", ylabel="error of the angle (rad)")
axes.set_title("Pair 0, angle computed in bfloat16")
plt.show()

# %% [markdown]
# Beyond a few hundred tokens the fast pairs carry no usable position. The tables of this lesson are computed in
# float64 and rounded once, at the end.
#
# ### Rotated before the cache, or after
#
# The same challenge caches the key's RoPE part *unrotated* and rotates the whole cache again at each step. The result
# is the same; the work is not. The next cell counts it for the challenge's largest case: 128 sequences, 6144 tokens.
# A cache and a layer that disagree on this are the mistake "rotated again" of your last exercise.

# %%
batch, context = 128, 6144
again = Cost(bytes=2 * batch * context * v3.qk_rope_head_dim * 2)  # read and written, 2 bytes each
once = Cost(bytes=2 * batch * 1 * v3.qk_rope_head_dim * 2)
cache = Cost(bytes=batch * context * cache_bytes_per_token("absorb", v3))
for name, cost in (
    ("rotate every cached key", again),
    ("rotate the new key only", once),
    ("read the whole cache", cache),
):
    micros = cost.time(h100) * 1e6
    print(f"{name:25}{cost.bytes / 1e6:9.2f} MB, {micros:8.2f} µs at 3.35 TB/s")

# %% [markdown]
# ### What is cached
#
# Users of two projects had to ask what the cache holds (DeepSeek-V3 #305, TensorRT-LLM #2738). It holds the latent
# after its RMSNorm and the rotated shared key: 576 elements per token for DeepSeek-V3. A public cache calculator
# counted 2 × 512 = 1024: the latent once for K and once for V, and no RoPE key (LMCache #694).
#
# ### Squares in float16
#
# The RMSNorm kernel of the report squares in the dtype of its input. In float16 that overflows from 256 on. Yours was
# tested with values up to 400.
#
# ## What to take along
#
# - A layer that caches 576 elements per token where expanded keys and values take 40960.
# - A function for each step, which later lessons replace one by one: by absorption (03), by kernels for norm and
#   rotation (04), for the attention (05, 06), by a paged cache (07).
# - The number to beat: expansion is 410 multiply-accumulates for each one of the attention itself.
#
# Figures: {{records}}.
