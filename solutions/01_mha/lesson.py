# %% [markdown]
# # Lesson 01: multi-head attention and its cache
#
# A language model writes one token at a time. Each new token attends to every token before it, whose keys and values
# are kept in a **cache**. You build attention, the cache, and a layer that decodes with it, and count what the cache
# costs. Multi-head Latent Attention (MLA, lesson 02) exists to make that number smaller. You need PyTorch and no GPU.
# The lesson takes about two hours.
#
# | exercise | you write | points |
# |---|---|---|
# | `predict_cache_bytes` | the bytes that a token takes in the cache | 2 |
# | `attention` | causal attention and its log-sum-exp | 5 |
# | `grouped_attention` | the same with heads that share keys and values | 4 |
# | `KVCache` | a cache of fixed capacity | 4 |
# | `CachedAttention` | a layer that decodes with it | 4 |
# | `predict_decode_cost` | bytes, FLOPs and intensity of a step | 3 |
#
# A **head** is one attention with queries, keys and values of its own; a layer has many side by side.
#
# | symbol | meaning |
# |---|---|
# | B, S, T | sequences in the batch; new query tokens per sequence; tokens in the context, the S new ones included |
# | H, G | query heads; key/value heads, "key heads" for short. G divides H |
# | D, Dh | width of the model; width of one head |
#
# Limits of every exercise here: 10 s, 512 MiB and 32768 of torch's operations for all cases together. Tensors stay
# below B = 4, S = 10, T = 50 and H = 25, and are float32 on the CPU. Attention may have a relative error of 1e-4; what
# a cache stores must come back as it was.

# %% setup="imports"
import math

import torch
from autograder import check

# %% [markdown]
# ## Why there is a cache
#
# The key and the value of a token depend on that token and the ones before it. In causal attention a later token never
# changes them. So at every step of generation a model may compute the keys and values of the whole context again, or
# keep them.
#
# The figure shows both for a prompt of 4 tokens and 8 generated tokens. A row is one step of generation, a column one
# token. The first row processes the prompt and is called **prefill**; it already yields token 1 of the 8. The other
# rows are **decode** steps. The last generated token is never fed back, so there are 11 columns.

# %%
from mla_ref import plots

prompt, generated = 4, 8
step = torch.arange(generated)[:, None]
token = torch.arange(prompt + generated - 1)
seen = token < prompt + step
new = seen & ((step == 0) | (token == prompt + step - 1))
plots.squares(
    {f"{name} a cache: {int(computed.sum())} keys computed": seen.int() + computed.int()
     for name, computed in (("without", seen), ("with", new))},
    ("future", "kept from an earlier step and read", "computed in this step"),
    xlabel="token position",
    ylabel="step of generation",
)

# %% [markdown]
# With a cache every token is computed once. But **in each row all squares with a dot are read**, and that decides how
# fast decoding is.

# %% [markdown]
# ## Predict: what the cache costs
#
# Per layer and token, the cache holds one key and one value for each key/value head, Dh numbers each. Three kinds of
# attention differ only in how many key/value heads they have:
#
# | kind | key/value heads | |
# |---|---|---|
# | MHA, multi-head | H | every query head has its own |
# | GQA, grouped-query | G | H/G query heads share one |
# | MQA, multi-query | 1 | all query heads share one |
#
# Write the formula: **bytes that one token occupies in the caches of all layers**. `itemsize` is the bytes of one
# number, 2 for bfloat16.
#
# <details><summary>Hint 1</summary>
#
# Count numbers first, then bytes. One line per kind.
#
# </details>
# <details><summary>Hint 2</summary>
#
# A product of five factors. One of them is a 2: it is not the itemsize.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `per_head = 2 * num_layers * head_dim * itemsize` is a key and a value of one head in all layers. The three entries
# are this number times a count of heads.
#
# </details>

# %% solution="predict_cache_bytes"
def predict_cache_bytes(num_layers, num_heads, num_kv_heads, head_dim, itemsize):
    """Bytes that one token occupies in the KV caches of a model.

    Parameters
    ----------
    num_layers, head_dim, itemsize : int
        Layers of the model, Dh, and bytes of one cached number.
    num_heads, num_kv_heads : int
        H and G. Only "mha" stores H heads; only "gqa" stores G.

    Returns
    -------
    dict
        Bytes (not elements, and keys as well as values) under "mha", "gqa" and "mqa".
    """
    ### BEGIN SOLUTION
    per_head = 2 * num_layers * head_dim * itemsize
    return {"mha": num_heads * per_head, "gqa": num_kv_heads * per_head, "mqa": per_head}
    ### END SOLUTION


# %% check="predict_cache_bytes"
check("predict_cache_bytes")

# %% [markdown]
# Now a large model: 61 layers and 128 heads of width 128, the sizes of DeepSeek-V3 (its published `config.json`). It
# does not use any of these three kinds. The question here is what it would have to store if it did.

# %%
from mla_ref import DEVICES

sizes = dict(num_layers=61, num_heads=128, num_kv_heads=8, head_dim=128, itemsize=2)
per_token = predict_cache_bytes(**sizes)
memory = DEVICES["h100"].dram_bytes
names = {"mha": "MHA: 128 key heads", "gqa": "GQA: 8 key heads", "mqa": "MQA: 1 key head"}
print(f"{'':18} {'bytes per token':>16} {'GB for 131072 tokens':>22} {'tokens in 80 GB':>17}")
for kind, size in per_token.items():
    print(f"{names[kind]:>18} {size:>16,} {size * 131072 / 1e9:>22.1f} {int(memory // size):>17,}")

context = [2**n for n in range(10, 18)]
caches = {names[kind]: (context, [tokens * size / 1e9 for tokens in context]) for kind, size in per_token.items()}
whole = {"all memory of an H100": (context, len(context) * [memory / 1e9])}
plots.curves(
    {"Cache of one sequence, 61 layers, bfloat16": caches | whole},
    xlabel="context of one sequence (tokens)",
    ylabel="cache (GB)",
    log="xy",
    dotted=list(whole),
)

# %% [markdown]
# With MHA, one sequence of 128k tokens would need 524 GB of cache: more than six H100s hold, for the cache alone. GQA
# with 8 key heads needs 1/16 of that, MQA 1/128. Fewer key heads cost model quality, as an appendix of the DeepSeek-V2
# paper (arXiv:2405.04434) measures. MLA takes another way.

# %% [markdown]
# ## Build: attention
#
# For every head, query $q_s$ is compared with every key $k_t$ it may see. The scores become weights by a softmax, and
# the output is the weighted sum of the values:
#
# $$ z_{st} = \frac{q_s \cdot k_t}{\sqrt{D_h}}, \qquad
# \mathrm{out}_s = \sum_t \frac{e^{z_{st}}}{\sum_u e^{z_{su}}}\, v_t, \qquad
# \mathrm{lse}_s = \ln \sum_t e^{z_{st}} . $$
#
# Here $z$ are the scores, and every sum runs over the keys that query s sees.
#
# Two points need care.
#
# **Which keys are seen.** The S queries are the *last* S of the T tokens. Query s stands at position T−S+s and sees
# the positions 0 to T−S+s, its own included. In the picture of the mask the diagonal ends in the bottom right corner.
# A mask made with `tril()` starts in the top left corner instead. The two agree only for S = T.

# %%
S, T = 3, 8
plots.squares(
    {
        "bottom-right: what decoding needs": torch.ones(S, T, dtype=torch.int).tril(T - S),
        "top-left: tril()": torch.ones(S, T, dtype=torch.int).tril(),
    },
    ("not seen", "seen"),
    xlabel="key position t",
    ylabel="query s",
)

# %% [markdown]
# **Large scores.** float32 ends at $3.4 \cdot 10^{38} = e^{88.7}$. A score of 89 turns `exp` into inf, and inf/inf
# into NaN. Subtracting a row's maximum before the exponent changes nothing in the quotient and keeps every exponent
# at or below 0. `torch.softmax` and `torch.logsumexp` do that.
#
# For large scores, compute the weights as the **quotient** and not as $e^{z - \mathrm{lse}}$. Both are the same number,
# and at the scores of this exercise both pass. But lse is rounded, and the rounding error of a number grows with it:
# the step between neighbours in float32 is $6 \cdot 10^{-5}$ near 1000. In the exponent that error becomes a factor of
# all weights of the row. The next cell shows it for three equal scores.

# %%
for score in (10.0, 1e3, 1e6):
    z = torch.full((3,), score)
    print(f"scores {score:9,.0f}: exp(z - lse) sums to {torch.exp(z - z.logsumexp(0)).sum():.5f}, "
          f"softmax to {z.softmax(0).sum():.5f}")

# %% [markdown]
# The function returns the **log-sum-exp** beside the output. Below the exercise you will see what for.
#
# | tensor | shape |
# |---|---|
# | q | [B, S, H, Dh] |
# | k, v | [B, T, H, Dh] |
# | out | [B, S, H, Dh] |
# | lse | [B, S, H], natural logarithm |
#
# `scaled_dot_product_attention` may not be called.
#
# <details><summary>Hint 1</summary>
#
# Six lines. Scores [B, S, H, T] by `torch.einsum`, the mask, the weights, the output by `torch.einsum`, the
# log-sum-exp.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `torch.arange(T) > torch.arange(S)[:, None] + (T - S)` is a [S, T] table that is True where a key lies in a query's
# future. `masked_fill` with `-math.inf` removes those scores. The table lacks the axis of the heads.
#
# </details>
# <details><summary>Hint 3</summary>
#
# Broadcast the table as `future[:, None, :]`. The two einsums are `"bshd,bthd->bsht"` and `"bsht,bthd->bshd"`. The
# weights are `torch.softmax(scores, dim=-1)`, and `torch.logsumexp` takes the same arguments.
#
# </details>

# %% solution="attention"
def attention(q, k, v):
    """Causal attention of the last S of T tokens, and the log-sum-exp of its scores.

    Parameters
    ----------
    q : [B, S, H, Dh] float32
    k, v : [B, T, H, Dh] float32
        The S queries are the last S of the T tokens: query s stands at position T-S+s (not at s).

    Returns
    -------
    out : [B, S, H, Dh]
    lse : [B, S, H]
        Natural logarithm of the sum of exp(q·k/sqrt(Dh)) over the keys that a query sees; finite
        even where scores are several hundred.
    """
    ### BEGIN SOLUTION
    S, T = q.shape[1], k.shape[1]
    scores = torch.einsum("bshd,bthd->bsht", q, k) / math.sqrt(q.shape[-1])
    future = torch.arange(T) > torch.arange(S)[:, None] + (T - S)
    scores = scores.masked_fill(future[:, None, :], -math.inf)
    out = torch.einsum("bsht,bthd->bshd", torch.softmax(scores, dim=-1), v)
    lse = torch.logsumexp(scores, dim=-1)
    return out, lse
    ### END SOLUTION


# %% check="attention"
check("attention")

# %% [markdown]
# ### What the log-sum-exp is for
#
# The output forgets how large the sum under the fraction was; `lse` keeps it. With it, attention over one part of the
# context can be merged with attention over another part, as if both had been computed together. Lesson 06 splits a
# long context over many cores this way. The cell splits 1000 keys after the 300th.

# %%
torch.manual_seed(0)
q, k, v = torch.randn(1, 1, 4, 64), torch.randn(1, 1000, 4, 64), torch.randn(1, 1000, 4, 64)
whole, lse_whole = attention(q, k, v)
first, lse_first = attention(q, k[:, :300], v[:, :300])
second, lse_second = attention(q, k[:, 300:], v[:, 300:])

lse = torch.logaddexp(lse_first, lse_second)
shares = torch.stack((lse_first, lse_second)).softmax(0)[..., None]  # of the sum of exponentials, by part
merged = shares[0] * first + shares[1] * second
print(f"largest difference of the merged output: {(merged - whole).abs().max():.1e}")
print(f"largest difference of the merged lse:    {(lse - lse_whole).abs().max():.1e}")
print(f"for comparison, a plain mean of the two: {((first + second) / 2 - whole).abs().max():.1e}")

# %% [markdown]
# ## Build: fewer key heads
#
# GQA and MQA change one thing: query head h reads key and value head `h // (H/G)`. With H = 8 and G = 2, query heads
# 0 to 3 read key head 0, and 4 to 7 read key head 1. MHA is G = H, MQA is G = 1.
#
# | tensor | shape |
# |---|---|
# | q | [B, S, H, Dh] |
# | k, v | [B, T, G, Dh] |
# | out, lse | [B, S, H, Dh], [B, S, H] |
#
# There are two ways, and both get full points. You may copy every key head H/G times and call your `attention` (the
# grader supplies a right one). Or you give the queries an axis of their own for the group and copy nothing, as
# production kernels do. A later cell measures the difference.
#
# `scaled_dot_product_attention` may not be called.
#
# <details><summary>Hint 1</summary>
#
# By copying: two lines. Mind which of `repeat` and `repeat_interleave` puts equal heads next to each other. Without
# copying: your six lines with one more letter in each einsum.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Copying: `k.repeat_interleave(H // G, dim=2)`. Not copying: `q.unflatten(2, (G, -1))` is [B, S, G, H/G, Dh].
#
# </details>
# <details><summary>Hint 3</summary>
#
# Not copying: with n for the H/G heads of a group, the einsums are `"bsgnd,btgd->bsgnt"` and `"bsgnt,btgd->bsgnd"`.
# The mask needs two more axes, `future[:, None, None, :]`. At the end `flatten(2, 3)` makes one axis of G and H/G
# again, for `out` and for `lse`.
#
# </details>

# %% solution="grouped_attention"
def grouped_attention(q, k, v):
    """Causal attention in which H/G consecutive query heads share a key and value head.

    Parameters
    ----------
    q : [B, S, H, Dh] float32
    k, v : [B, T, G, Dh] float32
        G divides H. Query head h reads key head h // (H/G), not h % G.

    Returns
    -------
    out : [B, S, H, Dh]
    lse : [B, S, H]
        As in `attention`: causal, bottom-right aligned, natural logarithm.
    """
    ### BEGIN SOLUTION
    S, T, G = q.shape[1], k.shape[1], k.shape[2]
    q = q.unflatten(2, (G, -1))  # [B, S, G, H/G, Dh]
    scores = torch.einsum("bsgnd,btgd->bsgnt", q, k) / math.sqrt(q.shape[-1])
    future = torch.arange(T) > torch.arange(S)[:, None] + (T - S)
    scores = scores.masked_fill(future[:, None, None, :], -math.inf)
    out = torch.einsum("bsgnt,btgd->bsgnd", torch.softmax(scores, dim=-1), v)
    lse = torch.logsumexp(scores, dim=-1)
    return out.flatten(2, 3), lse.flatten(2, 3)
    ### END SOLUTION


# %% check="grouped_attention"
check("grouped_attention")

# %% [markdown]
# ## Build: the cache
#
# The storage is allocated once, for `capacity` tokens. Appending S tokens writes S tokens. It must not copy the T
# that are there already: a cache that grows by `torch.cat` moves the whole context at every step, and `torch.cat` may
# therefore not be called here.
#
# A full cache refuses. `append` raises `ValueError` if the new tokens do not all fit, and then **nothing has
# changed**: neither the length nor what is held. A serving system catches the error, makes room, and tries again. A
# cache that is half updated at that moment produces wrong tokens without any error.
#
# | method | arguments | returns |
# |---|---|---|
# | `KVCache` | batch, capacity, num_kv_heads, head_dim | an empty cache, float32 |
# | `length` | | int, tokens held |
# | `append` | k, v: [B, S, G, Dh] | k_all, v_all: [B, length, G, Dh], the filled part with the new tokens at its end |
#
# The check plays sessions: it calls `length()`, then `append(…)` and `length()` in turn. One session makes a
# second cache; the first must not change. "Call 2 of append" in a message is the second `append` of a session,
# "value 1" and "value 2" are its k_all and v_all. Results are compared at the end of the session. The count needs
# another name than `self.length`: an attribute of that name hides the method.
#
# <details><summary>Hint 1</summary>
#
# Three attributes in `__init__`, one line in `length`, seven in `append`. The part that is filled is a slice of the
# storage: a view, not a copy.
#
# </details>
# <details><summary>Hint 2</summary>
#
# In `append`, compute the new length into a local variable, compare it with the capacity, and only then write and
# store the length. The capacity is the storage's shape[1].
#
# </details>
# <details><summary>Hint 3</summary>
#
# `self.k[:, self.used : total] = k` writes behind what is there, with `total = self.used + k.shape[1]`. Refuse for
# `total > capacity`; `total == capacity` fits.
#
# </details>

# %% solution="KVCache"
class KVCache:
    """Keys and values of the tokens so far, in storage for `capacity` tokens."""

    def __init__(self, batch, capacity, num_kv_heads, head_dim):
        """Allocate storage for keys and for values, and hold no token yet.

        Each is [batch, capacity, num_kv_heads, head_dim], float32.
        """
        ### BEGIN SOLUTION
        self.k = torch.zeros(batch, capacity, num_kv_heads, head_dim)
        self.v = torch.zeros(batch, capacity, num_kv_heads, head_dim)
        self.used = 0
        ### END SOLUTION

    def length(self):
        """Return how many tokens the cache holds (an int)."""
        ### BEGIN SOLUTION
        return self.used
        ### END SOLUTION

    def append(self, k, v):
        """Write S new tokens behind those held; return everything held.

        Parameters
        ----------
        k, v : [B, S, G, Dh] float32

        Returns
        -------
        k_all, v_all : [B, length, G, Dh]
            The filled part, not the whole storage.

        Raises
        ------
        ValueError
            The tokens do not all fit. The cache is then exactly as it was before the call.
        """
        ### BEGIN SOLUTION
        total = self.used + k.shape[1]
        if total > self.k.shape[1]:
            raise ValueError(f"no room for {k.shape[1]} tokens beside the {self.used} held")
        self.k[:, self.used : total] = k
        self.v[:, self.used : total] = v
        self.used = total
        return self.k[:, :total], self.v[:, :total]
        ### END SOLUTION


# %% check="KVCache"
check("KVCache")

# %% [markdown]
# ## Build: a layer that decodes
#
# An attention layer projects its input to queries, keys and values, attends, and projects the heads back to the width
# of the model. With a cache, one method serves prefill and decode: `forward(x)` takes the S *new* tokens only. S is
# the length of the prompt in the first call and 1 in the calls that follow.
#
# The weights have the layout of `torch.nn.Linear`, [out, in], without biases:
#
# | tensor | shape |
# |---|---|
# | x, y | [B, S, D] |
# | w_q | [H·Dh, D] |
# | w_k, w_v | [G·Dh, D] |
# | w_o | [D, H·Dh] |
#
# A projection's last axis holds the heads one after the other: [B, S, H·Dh] is [B, S, H, Dh] with its last two axes
# written as one. There are no positions in this layer; lesson 02 adds them.
#
# The test is the definition of a right cache: the outputs of **one prefill of the whole sequence** and of **any
# sequence of steps** are the same. The judge also counts the FLOPs of your products: at most twice what it takes if
# each step projects only its new tokens. The grader supplies a right `grouped_attention` and `KVCache`; where the
# course came without solutions, `check` takes yours. Use the cache through `append` and `length` alone. The grader's
# cache may name its attributes otherwise. A `check` that runs with your cache will not notice if you read them.
#
# <details><summary>Hint 1</summary>
#
# Project and split three times, append, attend, join the heads and project. Four to seven lines.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `(x @ w.T).unflatten(-1, (-1, self.head_dim))` projects and splits, whatever the number of heads.
#
# </details>
# <details><summary>Hint 3</summary>
#
# Attend to what `self.cache.append(k, v)` returns, not to `k` and `v`: those are the new tokens alone. The new tokens
# must be in the cache before they attend, because each of them sees itself. `out.flatten(2)` joins the heads.
#
# </details>

# %% solution="CachedAttention"
class CachedAttention:
    """An attention layer with a KV cache. `forward` takes new tokens only."""

    def __init__(self, w_q, w_k, w_v, w_o, head_dim, batch, capacity):
        """Keep the weights and make an empty cache. This method is complete."""
        self.w_q, self.w_k, self.w_v, self.w_o = w_q, w_k, w_v, w_o
        self.head_dim = head_dim
        self.cache = KVCache(batch, capacity, w_k.shape[0] // head_dim, head_dim)

    def forward(self, x):
        """Append S new tokens to the cache and attend from them to all it holds.

        Parameters
        ----------
        x : [B, S, D] float32
            The new tokens: a prompt, or one token (S = 1).

        Returns
        -------
        y : [B, S, D]

        Raises
        ------
        ValueError
            The cache has no room for them: what `append` raises goes on to the caller, and the
            cache is as it was before the call.
        """
        ### BEGIN SOLUTION
        q, k, v = ((x @ w.T).unflatten(-1, (-1, self.head_dim)) for w in (self.w_q, self.w_k, self.w_v))
        k_all, v_all = self.cache.append(k, v)
        out, _ = grouped_attention(q, k_all, v_all)
        return out.flatten(2) @ self.w_o.T
        ### END SOLUTION


# %% check="CachedAttention"
check("CachedAttention")

# %% [markdown]
# The next cell compares 40 tokens at once with the same 40 tokens as a prompt of 24 and 16 single steps.

# %%
D, H, G, Dh = 512, 8, 8, 64
torch.manual_seed(0)
weights = [torch.randn(rows, D) / math.sqrt(D) for rows in (H * Dh, G * Dh, G * Dh, D)]
x = torch.randn(1, 40, D)

prefill = CachedAttention(*weights, Dh, batch=1, capacity=40).forward(x)
layer = CachedAttention(*weights, Dh, batch=1, capacity=40)
pieces = [layer.forward(x[:, :24])] + [layer.forward(x[:, t : t + 1]) for t in range(24, 40)]
difference = (torch.cat(pieces, 1) - prefill).abs().max()
print(f"largest difference between prefill and token by token: {difference:.1e}")
print(f"largest value: {prefill.abs().max():.2f}")

# %% [markdown]
# ## Measure: a step with and without the cache
#
# **Predict first.** The layer above has D = 512 and 8 heads of 64. The context is T = 512 tokens. One decode step
# with the cache projects one token and attends from one query. One step without it projects 512 tokens and attends
# from 512 queries. How many times longer does the step without the cache take, on one core of this machine? Write
# your number into the next cell before you run on.

# %%
guess = 1  # times longer at T = 512: put your own number here

# %%
from mla_ref.hardware.timing import bench, measure_copy_bandwidth

torch.set_num_threads(1)  # one core, here and below: times are steadier where a machine is shared


def one_step(T):
    """Time one step at context T: the whole context again, and one token with the cache."""
    x = torch.randn(1, T, D)
    without = bench(lambda: CachedAttention(*weights, Dh, 1, T).forward(x), warmup=1, repeat=3)
    layer = CachedAttention(*weights, Dh, 1, T + 32)
    layer.forward(x[:, :-1])
    # each of the 23 calls makes the context one token longer
    cached = bench(lambda: layer.forward(x[:, -1:]), warmup=3, repeat=20)
    return T, without, cached


rows = [one_step(T) for T in (64, 128, 256, 512, 1024)]
for T, without, cached in rows:
    print(f"T = {T}: {without.median / cached.median:.0f} times longer")
    print(f"    without {without}")
    print(f"    with    {cached}")
measured = next(without.median / cached.median for T, without, cached in rows if T == 512)
print(f"your guess at T = 512: {guess} times, measured: {measured:.0f} times")
contexts, *timings = zip(*rows, strict=True)
steps = {
    f"{name} the cache": (contexts, [1e3 * each.median for each in times])
    for name, times in zip(("without", "with"), timings, strict=True)
}
plots.curves({"One step of one layer, one core": steps}, xlabel="context T (tokens)", ylabel="one step (ms)", log="xy")

# %% [markdown]
# Count the multiply-accumulates of one token: 4·D² in the projections and 2·T·D in the attention (with G = H, masked
# scores included). Without the cache the step pays that for T tokens, with it for one: **the work falls by a factor of
# T**. The time usually falls by a smaller factor. The next cell compares the rates: the one token of a step with the
# cache still needs all weights and the whole cache to be read.

# %%
bandwidth = measure_copy_bandwidth()
weight_bytes = sum(w.nbytes for w in weights)
print(f"one core copies {bandwidth / 1e9:.1f} GB/s (read plus written)")
print(f"the weights are {weight_bytes / 1e6:.1f} MB")
for T, without, cached in rows:
    flops = 2 * (4 * D * D + 2 * T * D)  # per token
    read = weight_bytes + 2 * T * G * Dh * 4
    rates = [count * flops / timing.median / 1e9 for count, timing in ((T, without), (1, cached))]
    print(
        f"T = {T:4}: without {rates[0]:5.1f} GFLOP/s, with {rates[1]:4.1f} GFLOP/s "
        f"and {read / 1e6:3.1f} MB read, {read / cached.median / 1e9:4.1f} GB/s"
    )

# %% [markdown]
# With the cache a step computes at a lower rate than the machine reaches without it. It waits for the weights and the
# cache. (A few MB may stay in the processor's own caches between the timed calls. Then the last column
# can be above the copy bandwidth. If your `grouped_attention` copies key heads, it moves more than is counted here, and
# the column is lower.) The same holds on a GPU: **decode is bound by memory**.

# %% [markdown]
# ## Predict: what one decode step must move
#
# **Arithmetic intensity** is FLOPs per byte. A device has such a number too, its ridge: FLOP/s divided by bytes/s.
# Work of a lower intensity than the ridge waits for memory.
#
# Take one layer and one decode step: S = 1 for each of B sequences, every sequence with a context of T tokens. Count
#
# - `bytes`: cached keys and values that are read, each once;
# - `flops`: the scores and the weighted sum, 2 FLOPs per multiply-accumulate; neither softmax nor projections;
# - `intensity`: FLOPs per byte.
#
# Before you write it: which of batch, context, H, G and Dh does the intensity depend on?
#
# <details><summary>Hint 1</summary>
#
# Three lines. Queries and outputs are small and not counted.
#
# </details>
# <details><summary>Hint 2</summary>
#
# What is read has G heads, what is computed has H. Every sequence has a cache of its own.
#
# </details>
# <details><summary>Hint 3</summary>
#
# One query head and one cached token: Dh multiply-accumulates for the score, Dh for the weighted sum, so 4·Dh FLOPs.
# One key head and one cached token: 2·Dh numbers.
#
# </details>

# %% solution="predict_decode_cost"
def predict_decode_cost(batch, context, num_heads, num_kv_heads, head_dim, itemsize):
    """Cost of the attention of one decode step in one layer: one new token per sequence.

    Parameters
    ----------
    batch, context : int
        B and T. Every sequence has its own T tokens.
    num_heads, num_kv_heads, head_dim : int
        H, G and Dh.
    itemsize : int
        Bytes of one cached number.

    Returns
    -------
    dict
        "bytes": keys and values read, each once.
        "flops": of scores and weighted sum, 2 per multiply-accumulate.
        "intensity": FLOPs per byte.
    """
    ### BEGIN SOLUTION
    read = 2 * batch * context * num_kv_heads * head_dim * itemsize
    flops = 4 * batch * context * num_heads * head_dim
    return {"bytes": read, "flops": flops, "intensity": flops / read}
    ### END SOLUTION


# %% check="predict_decode_cost"
check("predict_decode_cost")

# %% [markdown]
# ## Measure: fewer key heads on this machine
#
# The same 32 query heads of width 64 over 4096 tokens, in float32, with 32, 8 and 1 key heads. The arithmetic is the
# same three times, and only the bytes of the cache differ. The floor is those bytes divided by the copy bandwidth
# measured above. The last column is a function that copies each key head H/G times. Before you run it: from the first
# line to the last the bytes fall by a factor of 32. Which of the two times falls with them?

# %%
from functools import partial


def copying_attention(q, k, v):
    k, v = (x.repeat_interleave(q.shape[2] // x.shape[2], dim=2) for x in (k, v))
    return attention(q, k, v)


heads, width, context = 32, 64, 4096
for groups in (32, 8, 1):
    q = torch.randn(1, 1, heads, width)
    k, v = torch.randn(1, context, groups, width), torch.randn(1, context, groups, width)
    cost = predict_decode_cost(1, context, heads, groups, width, itemsize=4)
    yours, copying = (bench(partial(f, q, k, v), repeat=9).median for f in (grouped_attention, copying_attention))
    print(
        f"G = {groups:2}: {cost['intensity']:4.1f} FLOP/byte, {cost['bytes'] / 1e6:4.1f} MB, floor "
        f"{cost['bytes'] / bandwidth * 1e3:5.2f} ms, yours {yours * 1e3:5.2f} ms, copying {copying * 1e3:5.2f} ms"
    )

# %% [markdown]
# Copying writes and reads 32 heads whatever G is, so its time does not follow the bytes of the cache. Without copies
# the time falls, but by less than the bytes: the arithmetic did not shrink, and a handful of PyTorch calls have a fixed
# cost. (If both columns agree, your function copies too. A time below the floor is possible: a copy also writes, which
# can cost more than reading.)

# %% [markdown]
# ## The same step on an H100, modelled
#
# The roofline of lesson 00, for an H100 by its data sheet: 989 TFLOP/s of dense bfloat16 and 3.35 TB/s. Nothing below
# was run on one. The sizes are those of the large model above, 128 heads of width 128 in bfloat16, with 8 sequences of
# 4096 tokens.

# %%
from mla_ref.hardware.cost import Cost

h100 = DEVICES["h100"]
points = {}
for kind, groups in (("MHA", 128), ("GQA", 8), ("MQA", 1)):
    cost = predict_decode_cost(8, 4096, num_heads=128, num_kv_heads=groups, head_dim=128, itemsize=2)
    work = Cost(bytes=cost["bytes"], flops=cost["flops"])
    points[f"{kind}, G = {groups}"] = work
    memory_us, compute_us = work.memory_time(h100) * 1e6, work.compute_time(h100) * 1e6
    print(
        f"{kind}, G = {groups:3}: {work.intensity:3.0f} FLOP/byte, memory {memory_us:5.1f} µs, "
        f"arithmetic {compute_us:3.1f} µs, bound by {work.bound(h100)}; "
        f"61 layers {61 * work.time(h100) * 1e3:5.2f} ms"
    )
print(f"ridge: {h100.ridge():.0f} FLOP/byte")
plots.roofline(h100, points, title="Attention of one decode step, one layer")

# %% [markdown]
# With MHA in bfloat16 every number that is read takes part in one multiply-accumulate: the intensity is 1 FLOP per
# byte, the ridge is 295. **The tensor cores**, the units that multiply matrices, **are idle more than 99 % of the
# time.** In bfloat16 the intensity is H/G and nothing else. A longer context or a larger batch does not change it,
# since every sequence brings a cache of its own. (All sequences share the weights of the projections, so a batch raises
# *their* intensity.)
#
# Sharing key heads moves a point to the right. MQA with 128 heads comes to 128, still left of the ridge. Lesson 03
# shows where MLA stands.

# %% [markdown]
# ## In the field
#
# Four traps that real code fell into. A name such as flashinfer#2113 is an issue or pull request of that repository.
#
# **Base of the log-sum-exp.** GPUs have an instruction for $2^x$, so some kernels return $\log_2$. FlashInfer does
# (flashinfer#2113); backends of one of its functions differ (flashinfer#4485). Merging with the wrong base raises no
# error: sglang#35045 reports a largest error of 0.105, and 0.0005 once fixed.
#
# **Empty rows.** A query that sees nothing has a sum of 0, so lse = −inf, and merging it changes nothing.
# FlashAttention returned +inf there (flash-attention#978). Two empty parts merge to −inf − (−inf) = NaN unless the
# merge is written for it (flashinfer#4051). This course uses −inf.
#
# **Alignment of the causal mask.** `is_causal=True` of PyTorch's `scaled_dot_product_attention` (SDPA) is top-left
# aligned. With one query and a cache, the query sees key 0 and nothing else (pytorch#144858). FlashAttention moved from
# top-left to bottom-right in version 2.1 (flash-attention#517).
#
# **Order of grouped heads.** Both orders have the same shapes, so nothing fails. The ONNX definition of attention tiled
# its key heads as 0, 1, 0, 1, where PyTorch interleaves them as 0, 0, 1, 1 (onnx#7274).
#
# The cell reproduces three of the four, two of them with your functions.

# %%
torch.manual_seed(0)
q, k, v = torch.randn(1, 1, 4, 64), torch.randn(1, 1000, 4, 64), torch.randn(1, 1000, 4, 64)
whole, _ = attention(q, k, v)
parts, lses = zip(attention(q, k[:, :300], v[:, :300]), attention(q, k[:, 300:], v[:, 300:]), strict=True)
for base, name in ((math.e, "e"), (2, "2")):
    shares = (torch.stack(lses) / math.log(base)).softmax(0)[..., None]
    error = (shares[0] * parts[0] + shares[1] * parts[1] - whole).norm() / whole.norm()
    print(f"merging with lse to base {name}: relative error {error:.1e}")

heads_first = [t.transpose(1, 2) for t in (q, k, v)]
top_left = torch.nn.functional.scaled_dot_product_attention(*heads_first, is_causal=True).transpose(1, 2)
print("SDPA with is_causal=True, S = 1: the output is the first value:", torch.allclose(top_left, v[:, :1]))

k2, v2 = k[:, :, :2], v[:, :, :2]
tiled, _ = attention(q, k2.repeat(1, 1, 2, 1), v2.repeat(1, 1, 2, 1))
right, _ = grouped_attention(q, k2, v2)
wrong = [h for h in range(4) if not torch.allclose(tiled[:, :, h], right[:, :, h], atol=1e-5)]
print("repeat instead of repeat_interleave: of the heads 0 to 3, these are wrong:", wrong)

# %% [markdown]
# Of the tiled heads the first and the last are right. A test that looks at head 0 passes.
#
# ## What to take along
#
# - Keys and values of past tokens never change, so they are kept. A step's work falls by a factor of T.
# - The cache costs 2 · layers · key heads · Dh · itemsize bytes per token.
# - A decode step reads all of the cache and does H/G FLOPs per byte of it in bfloat16. It is bound by memory, so a
#   smaller cache makes it faster. MLA caches two short vectors per token: one from which every head's value and part of
#   its key are rebuilt, and the rest of the key, which all heads share.
