# %% [markdown]
# # Lesson 09: shared prefixes
#
# Lesson 08 found that a prefix which many sequences share is better stored expanded. Here you build the decode step
# that uses this: TyphoonMLA's Algorithm 1 (arXiv:2509.21081), naive over the prefix, absorb over the rest, merged.
# Then its kernel, its switch point, its price in memory. And what the paper leaves to others: a **tree** of
# prefixes. Allow five hours: one to read, four for the exercises.
#
# | exercise | you write | points right | points fast |
# |---|---|---|---|
# | `merge_two` | two partial results into one | 3 | |
# | `prefix_decode` | Algorithm 1 in PyTorch | 5 | |
# | `choose_form` | the switch point predicted, and the fall-back below it | 3 | |
# | `prefix_footprint` | what the expanded prefix costs in memory | 2 | |
# | `shared_attention` | the kernel: all users over shared keys and values | 4 | 3 |
# | `tree_decode` | prefixes of prefixes: each node once, for its users | 4 | |
#
# Each exercise may take 10 s and 512 MiB for all its cases; speed has a limit of its own. Speed is
# that of an H100.
#
# | symbol | meaning | DeepSeek-V3 |
# |---|---|---|
# | B, S | sequences, or **users** of a prefix; query tokens of each (1 in the kernels of this lesson) | |
# | L | tokens of the prefix, which all B share; what follows is a sequence's **own** | |
# | H | heads (Kimi K2: 64) | 128 |
# | Dn, Dr, Dv | width per head: without position, with position (RoPE), value | 128, 64, 128 |
# | R | width of the latent | 512 |
# | lse | log-sum-exp of a row of scores: natural logarithm, −inf for a row that sees nothing | |

# %% setup="imports"
import math

import torch
from autograder import check, check_speed
from mla_ref.hardware import emulator

emulated = emulator.prepare()  # whether kernels run on the CPU, for lack of a GPU

import triton
import triton.language as tl

device = "cpu" if emulated else "cuda"

# %% [markdown]
# ## Why: one step, two forms
#
# Every request to a service begins with the same system prompt. The paper has three (its table 2), here prompts
# {{prompts}} tokens; A is Claude-4's. The question behind it has a few hundred. So nearly the whole context is shared.
# Over the shared part the naive form takes H(Dn+Dr+Dv) multiply-accumulates (MACs) a pair of query and token, and
# absorb H(2R+Dr): 3.4 times as many. Over own tokens absorb reads 71 times less. So each part gets the form that suits
# it:

# %%
from mla_ref import plots

plots.flow(
    {
        "kv": (0, 3, "prefix, expanded once\nk [L, H, Dn+Dr], v [L, H, Dv]"),
        "q": (0, 1.9, "query of each user\nq_nope, q_rope"),
        "own": (0, 0.8, "own tokens of each user\nc_kv [.., R], k_rope [.., Dr]"),
        "naive": (3.4, 3, "naive\nall users at once"),
        "absorb": (3.4, 0.8, "absorb\nuser by user"),
        "merge": (6.4, 1.9, "merge\nby lse"),
        "out": (8.6, 1.9, "out [B, H, Dv]"),
    },
    [
        ("kv", "naive"), ("q", "naive"), ("q", "absorb"), ("own", "absorb"),
        ("naive", "merge", "out, lse"), ("absorb", "merge", "out, lse"), ("merge", "out"),
    ],
    groups={"read once": ["kv"], "one for each user": ["q", "own"]},
    title="Algorithm 1: a decode step over a shared prefix",
    size=(10.0, 4.2),
)

# %% [markdown]
# The prefix costs nothing to expand: prefill has computed these keys and values anyway. It costs memory to keep
# them.
#
# Write your guess before you go on. An H200 computes 989 TFLOP/s in bfloat16 and reads 4.8 TB/s, by its data sheet.
# From how many users on is the mixed step faster than absorb alone?

# %%
guess = 50  # users: put your own number here

# %% [markdown]
# ## Exercise: merge_two
#
# Lesson 06 combined the splits of a context. Two parts are the same: with the results $o_a$, $o_b$ and the
# log-sum-exps $z_a$, $z_b$,
#
# $$z = \ln(e^{z_a} + e^{z_b}), \qquad o = e^{z_a - z} o_a + e^{z_b - z} o_b .$$
#
# In float32 the weights are better taken from the larger one, $m = \max(z_a, z_b)$: $w_a = e^{z_a - m}$,
# $w_b = e^{z_b - m}$ and $o = (w_a o_a + w_b o_b) / (w_a + w_b)$. A z of 300 is rounded by up to 1.5e-5, and
# $e^{z_a - z}$ is off by as much; the differences to m are rounded far less. `mla_ref.combine` does it so too.
#
# | | shape | dtype |
# |---|---|---|
# | `out_a`, `out_b` | [B, H, Dv]; where the part is empty undefined, perhaps NaN | float32, float16 or bfloat16 |
# | `lse_a`, `lse_b` | [B, H], natural logarithm; −inf where the part is empty | float32 |
# | returns `out` | [B, H, Dv]; 0 where both parts are empty | that of `out_a` |
# | returns `lse` | [B, H]; −inf where both parts are empty | float32 |
#
# Compute in float32 and round once, at the end. Log-sum-exps may be in the hundreds.
#
# <details><summary>Hint 1</summary>
#
# `torch.logaddexp(lse_a, lse_b)` is z: it subtracts the larger one for you, and gives −inf for two of −inf.
# `torch.maximum(lse_a, lse_b)` is m.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Where both are empty, put 0 in place of m in the exponents, as in `online_update` of lesson 06: then both
# weights are $e^{-\infty} = 0$, and their sum is 0 too, so divide by 1 there. A weight of 0 does not keep out a NaN:
# 0 · NaN is NaN.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `weight = torch.exp(lse_a - base)[..., None]`, and for the part `torch.where(weight > 0, weight * out_a.float(),
# 0.0)`. The same for b. Add the parts, add the weights, divide: `out / torch.where(total > 0, total, 1.0)`. Seven or
# eight lines.
#
# </details>

# %% solution="merge_two"
def merge_two(out_a, lse_a, out_b, lse_b):
    """Merge attention over two parts of a context.

    out_a, out_b: [B, H, Dv], float32, float16 or bfloat16, undefined where the part is empty;
    lse_a, lse_b: [B, H], float32, natural logarithm, -inf where the part is empty.
    Returns out [B, H, Dv] in the dtype of out_a and lse [B, H], float32; 0 and -inf where both are empty.

    The traps: the base of the logarithm; what an empty part holds; exp of a large lse.
    """
    ### BEGIN SOLUTION
    lse = torch.logaddexp(lse_a, lse_b)
    base = torch.maximum(lse_a, lse_b)
    base = base.masked_fill(base == -math.inf, 0.0)
    out = total = 0.0
    for part, part_lse in ((out_a, lse_a), (out_b, lse_b)):
        weight = torch.exp(part_lse - base)[..., None]
        out = out + torch.where(weight > 0, weight * part.float(), 0.0)
        total = total + weight
    out = out / torch.where(total > 0, total, 1.0)
    return out.to(out_a.dtype), lse
    ### END SOLUTION


# %% check="merge_two"
check("merge_two")

# %% [markdown]
# **The base matters.** FlashInfer, which TyphoonMLA's GPU version is built on, returns log-sum-exps to base 2. The
# public TyphoonMLA code combines them with `exp`, as if they were natural, and its test never runs the merge.
# Nothing fails; the result is off. The next cell makes that mistake with your `merge_two`: a prefix of 4096 tokens,
# own tokens of several lengths.

# %%
def attend(q, k, v):
    """Attention and natural lse of q [B, H, D] over k, v [T, H, ...]."""
    scores = torch.einsum("bhd,thd->bht", q, k) * q.shape[-1] ** -0.5
    return torch.einsum("bht,thv->bhv", scores.softmax(-1), v), scores.logsumexp(-1)


torch.manual_seed(9)
q, k, v = torch.randn(8, 4, 192), torch.randn(4096 + 1024, 4, 192), torch.randn(4096 + 1024, 4, 128)
for own in (64, 256, 1024):
    parts = (*attend(q, k[:4096], v[:4096]), *attend(q, k[4096 : 4096 + own], v[4096 : 4096 + own]))
    right, _ = attend(q, k[: 4096 + own], v[: 4096 + own])
    wrong, _ = merge_two(parts[0], parts[1] / math.log(2), parts[2], parts[3] / math.log(2))
    merged, _ = merge_two(*parts)
    off, off_2 = (((out - right).norm() / right.norm()).item() for out in (merged, wrong))
    print(f"{own:4} own tokens: merged {off:.0e} off, with base-2 lse taken for natural ones {off_2:.0%}")

# %% [markdown]
# ## Exercise: prefix_decode
#
# Algorithm 1, one new token per sequence, with its line 2: the query arrives unrotated. `rotate` below is the RoPE
# of lesson 02, for one position a sequence.

# %% setup="rotate"
def rotate(x, cos, sin):
    """Rotate the neighbouring pairs of x [B, H, Dr] by angles of cos, sin [B, Dr/2], one position a sequence."""
    a, b = x[..., 0::2], x[..., 1::2]
    cos, sin = cos[:, None], sin[:, None]
    return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2)


# %% [markdown]
# | | shape | |
# |---|---|---|
# | `q_nope`, `q_rope` | [B, H, Dn], [B, H, Dr] | not rotated |
# | `k`, `v` | [L, H, Dn+Dr], [L, H, Dv] | the prefix, expanded; keys rotated; L may be 0 |
# | `c_kv`, `k_rope` | [B, T, R], [B, T, Dr] | cache, **places 0 to L − 1 the prefix**; keys rotated |
# | `w_uk`, `w_uv` | [H, Dn, R], [H, Dv, R] | |
# | `cos`, `sin` | [T, Dr/2] | angles of every position |
# | `seq_lens` | [B], int32 | lengths of whole contexts, prefix and new token included: L to T, 1 at least |
# | returns `out`, `lse` | [B, H, Dv], [B, H] | over the whole context |
#
# Floats are float32. The new token is the last one of its context, so its position is `seq_lens[b] - 1`. What the
# cache holds behind a sequence's length is old. The softmax scale is 1/√(Dn+Dr) in both parts. A sequence may have
# no own tokens.
#
# (A serving engine keeps pages, and the pages of the prefix exist once. Its table begins with them in every row. These
# are the tokens that you leave out here, places 0 to L − 1.)
#
# The work is counted: your products may take twice the FLOPs of Algorithm 1. To expand every sequence's own tokens
# takes more, and so does absorb over a long prefix: its tokens go through `k` and `v`. `merge_two` may be called;
# the grader supplies a right one.
#
# <details><summary>Hint 1</summary>
#
# Four blocks: rotate the query; naive over `k` and `v`; absorb over `c_kv[:, L:]` and `k_rope[:, L:]`; merge.
#
# </details>
# <details><summary>Hint 2</summary>
#
# In absorb the query becomes `q_latent = torch.einsum("bhd,hdr->bhr", q_nope, w_uk)`, and the result returns
# through `w_uv`. Place L + t of a sequence counts if t < seq_lens[b] − L: set the other scores to −inf.
#
# </details>
# <details><summary>Hint 3</summary>
#
# For a part with scores [B, H, n]: `lse = scores.logsumexp(-1)` and weights `torch.exp(scores - lse[..., None])`.
# Where a sequence has no own tokens that is NaN, and lse is −inf: just what `merge_two` leaves out. The prefix is
# `torch.einsum("bhd,lhd->bhl", q, k)`: one product a head, for all users. About fifteen lines.
#
# </details>

# %% solution="prefix_decode"
def prefix_decode(q_nope, q_rope, k, v, c_kv, k_rope, w_uk, w_uv, cos, sin, seq_lens):
    """One decode step over a shared prefix: naive over its L tokens, absorb over each sequence's own, merged.

    q_nope, q_rope: [B, H, Dn], [B, H, Dr], not rotated; k, v: [L, H, Dn+Dr], [L, H, Dv], the prefix;
    c_kv, k_rope: [B, T, R], [B, T, Dr], whole contexts, the prefix first; w_uk, w_uv: [H, Dn, R], [H, Dv, R];
    cos, sin: [T, Dr/2]; seq_lens: [B], int32, whole contexts, L to T and 1 at least. All floats are float32.
    Returns out [B, H, Dv] and lse [B, H] over the whole context. Calls merge_two.

    The traps: what counts from the start of the context, and what from the end of the prefix; 1/√(Dn+Dr) in both.
    """
    ### BEGIN SOLUTION
    L, scale = k.shape[0], k.shape[-1] ** -0.5
    position = seq_lens.long() - 1
    q_rope = rotate(q_rope, cos[position], sin[position])
    q = torch.cat((q_nope, q_rope), -1)
    scores = torch.einsum("bhd,lhd->bhl", q, k) * scale
    lse = scores.logsumexp(-1)
    out = torch.einsum("bhl,lhv->bhv", torch.exp(scores - lse[..., None]), v)

    own_c, own_k = c_kv[:, L:], k_rope[:, L:]
    q_latent = torch.einsum("bhd,hdr->bhr", q_nope, w_uk)
    scores = torch.einsum("bhr,btr->bht", q_latent, own_c) + torch.einsum("bhd,btd->bht", q_rope, own_k)
    beyond = torch.arange(own_c.shape[1], device=q.device) >= (seq_lens - L)[:, None]
    scores = (scores * scale).masked_fill(beyond[:, None], -math.inf)
    own_lse = scores.logsumexp(-1)
    latent = torch.einsum("bht,btr->bhr", torch.exp(scores - own_lse[..., None]), own_c)
    own_out = torch.einsum("bhr,hvr->bhv", latent, w_uv)
    return merge_two(out, lse, own_out, own_lse)
    ### END SOLUTION


# %% check="prefix_decode"
check("prefix_decode")

# %% [markdown]
# It is mathematically the same as absorb alone, so a server may change from one to the other between two steps. To
# absorb everything, call it without a prefix:

# %%
torch.manual_seed(9)
B, H, L, T, Dn, Dr, Dv, R = 4, 8, 600, 700, 128, 64, 128, 512
w_uk, w_uv = torch.randn(H, Dn, R) * R**-0.5, torch.randn(H, Dv, R) * R**-0.5
latents, keys = torch.randn(B, T, R), torch.randn(B, T, Dr)
latents[:, :L], keys[:, :L] = latents[0, :L].clone(), keys[0, :L].clone()
turns = torch.arange(T)[:, None] * torch.logspace(0, -3, Dr // 2)
cache = latents, keys, w_uk, w_uv, turns.cos(), turns.sin(), torch.tensor([700, 650, 601, 600], dtype=torch.int32)
queries = torch.randn(B, H, Dn), torch.randn(B, H, Dr)
expanded = torch.cat((torch.einsum("tr,hdr->thd", latents[0, :L], w_uk), keys[0, :L, None].expand(L, H, Dr)), -1)
values = torch.einsum("tr,hvr->thv", latents[0, :L], w_uv)
mixed, _ = prefix_decode(*queries, expanded, values, *cache)
absorbed, _ = prefix_decode(*queries, expanded[:0], values[:0], *cache)
print(f"mixed and absorb alone differ by {((mixed - absorbed).norm() / absorbed.norm()).item():.0e}")

# %% [markdown]
# ## Predict: choose_form
#
# With few users the expanded prefix is read for little work, and absorb alone is faster. TyphoonMLA falls back to
# it below a threshold. Lesson 08 gave the equation: at the **switch point** $B_\theta$ reading the expanded prefix
# takes as long as absorb's arithmetic over it. Now from the figures that a data sheet prints. NVIDIA's newer ones
# print rates with structured sparsity: 1,979 TFLOP/s for an H100 and an H200 in bfloat16. Dense products reach half
# of it at best.
#
# Return three things, for the prefix alone:
#
# - `switch_point`: $B_\theta$, a float. S query tokens a sequence count.
# - `form`: `"naive"` from the switch point on (B ≥ $B_\theta$), `"absorb"` below it, and where there is no prefix.
# - `gain`: the time of absorb over that of the chosen form, by the roofline; 1 where absorb is chosen. The time of
#   a form is the longer of reading its words once and computing its MACs.
#
# <details><summary>Hint 1</summary>
#
# Per token of the prefix, naive reads H(Dn+Dr+Dv) words and absorb R+Dr. Per token, sequence and query token, they
# take H(Dn+Dr+Dv) and H(2R+Dr) MACs.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Four times in seconds: `itemsize` bytes a word over `tb_per_s * 1e12`, 2 FLOPs a MAC over the dense rate. L
# cancels in every ratio.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `switch_point` is naive's reading over absorb's arithmetic for one sequence. `gain = max(absorb's two) /
# max(naive's two)`. About ten lines.
#
# </details>

# %% solution="choose_form"
def choose_form(B, S, L, sizes, itemsize, sparse_tflops, tb_per_s):
    """Choose the form of a prefix that B sequences share.

    B, S: int, sequences and query tokens of each; L: int, tokens of the prefix, 0 or more; sizes: dict of int with
    H, Dn, Dr, Dv and R; itemsize: int, bytes of a cached word; sparse_tflops: 10^12 FLOP/s, a data sheet's figure with
    sparsity; tb_per_s: 10^12 bytes/s.

    Returns a dict:
      switch_point  float, the batch from which on naive is faster
      form          "naive" or "absorb"
      gain          float, absorb's time over the chosen form's, 1.0 for absorb
    The traps: the rate of a dense product; a fall-back below the switch point.
    """
    ### BEGIN SOLUTION
    rate, bandwidth = sparse_tflops / 2 * 1e12, tb_per_s * 1e12
    words = sizes["H"] * (sizes["Dn"] + sizes["Dr"] + sizes["Dv"])
    macs = sizes["H"] * (2 * sizes["R"] + sizes["Dr"])
    reading = itemsize * words / bandwidth  # a token of the prefix, expanded
    computing = 2 * S * macs / rate  # the same token, absorbed, for one sequence
    switch_point = reading / computing
    if L == 0 or switch_point > B:
        return {"switch_point": switch_point, "form": "absorb", "gain": 1.0}
    naive = max(reading, 2 * B * S * words / rate)
    absorb = max(itemsize * (sizes["R"] + sizes["Dr"]) / bandwidth, B * computing)
    return {"switch_point": switch_point, "form": "naive", "gain": absorb / naive}
    ### END SOLUTION


# %% check="choose_form"
check("choose_form")

# %%
v3 = dict(H=128, Dn=128, Dr=64, Dv=128, R=512)
batches = [2**n for n in range(4, 11)]
lines = {}
npu = "the paper's NPU"
for name, sheet in {"H100": (1979, 3.35), "H200": (1979, 4.8), npu: (2 * 376, 1.8)}.items():
    chosen = [choose_form(B, 1, 26472, v3, 2, *sheet) for B in batches]
    lines[f"{name}: switch point {chosen[0]['switch_point']:.0f}"] = batches, [each["gain"] for each in chosen]
under = [label for label in lines if label.startswith(npu)]  # nearly the H200's line: dots on it
plots.curves({"DeepSeek-V3, the prefix alone": lines}, xlabel="users", ylabel="gain over absorb", log="x", dotted=under)

# %% [markdown]
# The gain grows with the users until naive is bound by its arithmetic too, and ends at 1088/320 = 3.4. Measured on
# an {{prefix_h200.device}}, both calls of `mla_ref`: the mixed step with the prefix naive, and absorb alone. 256
# own tokens each; the products with $W^{UK}$ and $W^{UV}$ are part of both times, and so is the merge of the mixed step
# (`benchmarks/prefix.py`).

# %%
# B, mixed and absorb in microseconds
SWITCH = "{{switch_rows}}"
h200 = choose_form(64, 1, 26472, v3, 2, 1979, 4.8)["switch_point"]
panels = {
    name: {form: ([row[0] for row in rows], [row[n] for row in rows]) for n, form in enumerate(("mixed", "absorb"), 1)}
    for name, rows in SWITCH.items()
}
limits = {"predicted": h200, "your guess": guess}
plots.curves(panels, xlabel="users", ylabel="microseconds, H200", log="y", verticals=limits)

# %% [markdown]
# {{switch}}
#
# The measured ceilings are {{rate}} TFLOP/s and {{bandwidth}} TB/s, of a plain product and a plain copy
# (`mla_ref.DEVICES`). All four crossings lie below what the data sheet predicts{{!below_sheet}}, and at most {{off}} %
# from what the ceilings predict. How long the prefix is moves them by at most {{by_length}} %; by the equation it does
# not matter. An equation with measured rates gives a good first value. Then comes a clock.
#
# ## Exercise: prefix_footprint
#
# The expanded prefix is kept beside the latents. For DeepSeek-V3 one layer of prompt A takes {{expanded_gb}} GB in
# bfloat16, and 61 layers {{all_layers_gb}} GB. One H200 has 141 GB. So the paper counts a cluster in FP8: 384 NPUs in
# 24 groups (`data`), each with sequences of its own; the 16 NPUs of a group share the work. The heads are divided by
# `tensor`, and the tokens of each sequence by `sequence`, 4 each. Kept simple, one device holds:
#
# - **weights**: `weight_bytes` over all `data · tensor · sequence` devices.
# - **latents**, R+Dr words a token and layer: those of the prefix once a group, and those of the own tokens, T − L
#   for each of the group's `B / data` sequences (no need to round). `sequence` divides them. `tensor` does not: all
#   heads read the same latent. The prefix's stay, since the fall-back reads them.
# - **expanded** prefix, H(Dn+Dr+Dv) words a token and layer, once a group. Both `tensor` and `sequence` divide it.
#
# The **overhead** is expanded over weights and latents: what naive adds to what absorb alone needs.
#
# <details><summary>Hint 1</summary>
#
# Three quantities in bytes, then a quotient. Which of the three factors divides which of them is all there is to
# it.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Tokens of latents in a group: `L + B / data * (T - L)`.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `latent = layers * (R + Dr) * itemsize * tokens / sequence`, and `expanded = layers * H * (Dn + Dr + Dv) *
# itemsize * L / (tensor * sequence)`. Six lines.
#
# </details>

# %% solution="prefix_footprint"
def prefix_footprint(B, T, L, layers, sizes, itemsize, weight_bytes, data, tensor, sequence):
    """Bytes of one device of a cluster that serves B sequences over a shared prefix.

    B: int, sequences of all groups; T: int, tokens of a context, the L shared ones included; layers: int; sizes: dict
    of int with H, Dn, Dr, Dv and R; itemsize: int, bytes of a cached word; weight_bytes: of the model; data, tensor,
    sequence: int, data-parallel groups, and devices of a group that share heads and tokens.

    Returns a dict of floats: "weights", "latent" and "expanded" in bytes, "overhead" as a fraction.
    The trap: each group expands a prefix of its own, and each device of a group has some heads of it.
    """
    ### BEGIN SOLUTION
    weights = weight_bytes / (data * tensor * sequence)
    tokens = L + B / data * (T - L)
    latent = layers * (sizes["R"] + sizes["Dr"]) * itemsize * tokens / sequence
    words = sizes["H"] * (sizes["Dn"] + sizes["Dr"] + sizes["Dv"])
    expanded = layers * words * itemsize * L / (tensor * sequence)
    return {"weights": weights, "latent": latent, "expanded": expanded, "overhead": expanded / (weights + latent)}
    ### END SOLUTION


# %% check="prefix_footprint"
check("prefix_footprint")

# %% [markdown]
# Figure 5 of the paper has batches of 4096 to 32768 and contexts of 32K to 256K tokens, prompt A as the prefix. By
# your model:

# %%
cloud = dict(layers=61, sizes=v3, itemsize=1, weight_bytes=671e9, data=24, tensor=4, sequence=4)
contexts, lines = [2**n * 1024 for n in range(5, 9)], {}
for B in (4096, 8192, 16384, 32768):
    each = [prefix_footprint(B, T, 26472, **cloud) for T in contexts]
    lines[f"B = {B}"] = contexts, [100 * one["overhead"] for one in each]
small = prefix_footprint(4096, 32768, 26472, **cloud)
for name in ("weights", "latent", "expanded"):
    print(f"B = 4096, 32K tokens: {name:8} {small[name] / 1e9:6.1f} GB a device")
full = small["expanded"] / (64e9 - small["expanded"])
print(f"where it all fills 64 GB a device, the overhead is {full:.0%}")
fill = small["expanded"] / 0.03 / 1e9
print(f"the overhead is 3 % where weights and latents take {fill:.0f} GB a device, {384 * fill / 1e3:.0f} TB in all")
lines["3 %"] = contexts, [3.0] * 4
plots.curves({"prompt A, 384 devices, FP8": lines}, xlabel="context", ylabel="overhead, %", log="xy", dotted=["3 %"])

# %% [markdown]
# The paper says "approximately 3 % across a wide range". Its NPU has 64 GB. In this simple model the overhead is
# larger on devices of that size, even when they are full. To come down to 3 % it takes the memory that the last
# printed line says. What holds in any
# model: the price is fixed. It grows neither with the users nor with their contexts, so it fades where these fill
# the memory. Before you expand, ask what else the memory could hold: another user's 4096 own tokens take 4096 · 576
# words a layer, as many as 58 expanded tokens.
#
# ## Exercise: shared_attention
#
# The naive part as a kernel. It is flash decoding (lesson 06) turned by a quarter: there the rows of a block were
# the heads of one sequence, which share a latent. Here each head has keys of its own, and the rows are **users**,
# who share them.

# %%
BLOCK, QUERY, STATE = "#E69F00", "#56B4E9", "#009E73"
plots.matrices(
    {
        "q of head h [B, Dn+Dr]": (7, 6, [(0, 0, 4, 6, QUERY, "BLOCK_M users"), (4, 0, 3, 6, "#FFFFFF", "others")]),
        "k of head h [L, Dn+Dr]": (9, 6, [(3, 0, 3, 6, BLOCK, "BLOCK_N tokens")]),
        "v of head h [L, Dv]": (9, 4, [(3, 0, 3, 4, BLOCK, "the same")]),
        "acc [BLOCK_M, Dv]": (4, 4, [(0, 0, 4, 4, STATE, "stays")]),
    },
    title="One program: a head, and a block of users",
)

# %% [markdown]
# | | shape | dtype |
# |---|---|---|
# | `q_nope`, `q_rope` | [B, H, Dn], [B, H, Dr], rotated | float16 or bfloat16 |
# | `k`, `v` | [L, H, Dn+Dr], [L, H, Dv], shared by all B | that of the query |
# | `scale` | above 0 | float |
# | returns `out`, `lse` | [B, H, Dv], and [B, H], natural logarithm | that of the query; float32 |
#
# All are contiguous. Dn, Dr and Dv are powers of two, 16 or more; Dn + Dr need not be one (192), so a key is loaded
# in two pieces, and the score is two products in one accumulator, as in lesson 06. B, H and L are any numbers from
# 1 on. One launch computes both results.
#
# Consecutive users of one head lie H rows apart, and so do consecutive tokens: row `b * H + h`. The programs of one
# head read the same keys. Number them so that they run side by side, the block of users in axis 0 of the grid: then
# the L2 serves all but the first. (That is for a GPU: the grader's model of an H100 takes the same time for both
# orders.)
#
# **Points for speed.** The case is B = 1024, H = 16, L = 2048, bfloat16, DeepSeek-V3's widths: the paper's largest
# batch, and the heads of one of 8 GPUs. The floor counts 22 µs for the arithmetic and 9 µs for the bytes. Half of
# the points: 0.15 of the floor's speed. All: 0.22 of it, and 4 times the speed of eager PyTorch. Blocks of 16 or 32
# users load the same keys too often, from the L2 at best, and do not reach the first bar.
#
# `block_sizes(B)` chooses users and tokens of a block, warps and stages by the shared memory there is.

# %% setup="block_sizes"
# KiB of shared memory for a program; without a GPU, those of the H100 that kernels are graded for
limits = {"max_shared_mem": 227 * 1024} if emulated else triton.runtime.driver.active.utils.get_device_properties(0)
shared_kib = limits["max_shared_mem"] // 1024


def block_sizes(rows):
    """Return rows and tokens of a block, warps and stages, for so many rows: what shared memory has room for."""
    if shared_kib < 96:  # T4, MI300X
        return 16, 16, 4, 1
    block = min(max(triton.next_power_of_2(rows), 16), 128)
    return block, 64, 8 if block == 128 else 4, 2


# %% [markdown]
# <details><summary>Hint 1</summary>
#
# Start from `latent_decode_kernel` of lesson 06. The grid is `(triton.cdiv(B, BLOCK_M), H)`; `offs_m` are users,
# and the head is a number. The value is a load of its own, `v`, where lesson 06 used the latent twice.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Rows of the query: `offs_m[:, None] * H + h`, masked by `offs_m[:, None] < B`. Row of a token: `offs_n[:, None] *
# H + h`, of width DN + DR in k, where the rotated piece begins at column DN. Mask by `offs_n[:, None] < L`, and set
# the scores of tokens from L on to −inf.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `qk = tl.dot(q_nope, tl.trans(k_nope))`, then `tl.dot(q_rope, tl.trans(k_rope), qk) * scale`. Every block has a
# token, so no maximum is −inf after the first turn. At the end `acc / l_i[:, None]`, and `m_i + tl.log(l_i)`.
#
# </details>

# %% solution="shared_attention"
@triton.jit
def shared_attention_kernel(
    q_nope_ptr, q_rope_ptr, k_ptr, v_ptr, out_ptr, lse_ptr, scale, B, H, L,
    DN: tl.constexpr, DR: tl.constexpr, DV: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):
    """One program: BLOCK_M users of one head.

    q_nope_ptr: [B, H, DN]; q_rope_ptr: [B, H, DR]; k_ptr: [L, H, DN + DR]; v_ptr: [L, H, DV]; out_ptr: [B, H, DV];
    lse_ptr: [B, H].
    """
    ### BEGIN SOLUTION
    h = tl.program_id(1).to(tl.int64)
    offs_m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_dn, offs_dr, offs_dv = tl.arange(0, DN), tl.arange(0, DR), tl.arange(0, DV)
    row = offs_m * H + h
    # [BLOCK_M, DN] and [BLOCK_M, DR]
    q_nope = tl.load(q_nope_ptr + row[:, None] * DN + offs_dn[None, :], mask=offs_m[:, None] < B, other=0.0)
    q_rope = tl.load(q_rope_ptr + row[:, None] * DR + offs_dr[None, :], mask=offs_m[:, None] < B, other=0.0)

    m_i = tl.full([BLOCK_M], float("-inf"), tl.float32)
    l_i = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, DV], tl.float32)
    for start in range(0, L, BLOCK_N):
        offs_n = start + tl.arange(0, BLOCK_N)
        token, inside = (offs_n * H + h)[:, None], offs_n[:, None] < L
        # [BLOCK_N, DN], [BLOCK_N, DR] and [BLOCK_N, DV]
        k_nope = tl.load(k_ptr + token * (DN + DR) + offs_dn[None, :], mask=inside, other=0.0)
        k_rope = tl.load(k_ptr + token * (DN + DR) + DN + offs_dr[None, :], mask=inside, other=0.0)
        v = tl.load(v_ptr + token * DV + offs_dv[None, :], mask=inside, other=0.0)
        qk = tl.dot(q_nope, tl.trans(k_nope))
        qk = tl.dot(q_rope, tl.trans(k_rope), qk) * scale
        qk = tl.where(offs_n[None, :] < L, qk, float("-inf"))  # [BLOCK_M, BLOCK_N]

        m_new = tl.maximum(m_i, tl.max(qk, axis=1))
        p = tl.exp(qk - m_new[:, None])
        alpha = tl.exp(m_i - m_new)
        l_i = l_i * alpha + tl.sum(p, axis=1)
        acc = tl.dot(p.to(v.dtype), v, acc * alpha[:, None])
        m_i = m_new

    tl.store(out_ptr + row[:, None] * DV + offs_dv[None, :], acc / l_i[:, None], mask=offs_m[:, None] < B)
    tl.store(lse_ptr + row, m_i + tl.log(l_i), mask=offs_m < B)
    ### END SOLUTION


def shared_attention(q_nope, q_rope, k, v, scale):
    """Attention of B users over keys and values that all of them share, in one launch.

    q_nope: [B, H, Dn]; q_rope: [B, H, Dr]; k: [L, H, Dn+Dr]; v: [L, H, Dv]; float16 or bfloat16, contiguous; Dn, Dr and
    Dv are powers of two; B, H, L from 1 on. scale: float, above 0.
    Returns out [B, H, Dv] in the dtype of the query and lse [B, H] in float32, natural logarithm. Launches
    shared_attention_kernel.

    The traps: the last block of tokens and the last block of users are not full; lse is natural.
    """
    ### BEGIN SOLUTION
    (B, H, Dn), Dr, (L, _, Dv) = q_nope.shape, q_rope.shape[-1], v.shape
    out = torch.empty((B, H, Dv), dtype=q_nope.dtype, device=q_nope.device)
    lse = torch.empty((B, H), dtype=torch.float32, device=q_nope.device)
    block_m, block_n, warps, stages = block_sizes(B)
    shared_attention_kernel[(triton.cdiv(B, block_m), H)](
        q_nope, q_rope, k, v, out, lse, scale, B, H, L,
        DN=Dn, DR=Dr, DV=Dv, BLOCK_M=block_m, BLOCK_N=block_n, num_warps=warps, num_stages=stages,
    )
    return out, lse
    ### END SOLUTION


# %% check="shared_attention"
check("shared_attention")

# %% speed="shared_attention"
check_speed("shared_attention")

# %% [markdown]
# ## Measure: one prompt under all
#
# On a GPU the next cell times your kernel; else it says so.

# %%
from mla_ref import bench

if not emulated:
    half = lambda *shape: torch.randn(shape, device=device).half()
    for B in (16, 64, 256):
        given = half(B, 128, 128), half(B, 128, 64), half(4096, 128, 192), half(4096, 128, 128), 192**-0.5
        print(f"B = {B:3}: {bench(lambda given=given: shared_attention(*given)).median * 1e6:.0f} µs")
else:
    print("kernels are emulated here, and there is nothing to time")

# %% [markdown]
# Whole decode steps on an H200: the paper's three prompts, own contexts drawn as continuous batching over MMLU leaves
# them, {{own_tokens}} tokens on average (`mla_ref.serving`). The mixed step is `mla_ref`'s: over the prefix the kernel
# of lesson 11's prefill or, for few users, one like the exercise's; pages for the rest. Against it stand our absorb and
# FlashMLA, DeepSeek's kernel in CUDA. For another model or prompt, edit the last line: `ONE_LEVEL` has Kimi K2 and
# DeepSeek-V3, each with prompts A, B and C.

# %%
# B, mixed, absorb and FlashMLA in microseconds
ONE_LEVEL = "{{one_level}}"


def draw_one_level(*names):
    """Tokens per second and layer over the batch."""
    panels = {}
    for name in names:
        rows = ONE_LEVEL[name]
        batches = [row[0] for row in rows]
        calls = enumerate(("mixed", "absorb", "FlashMLA"), 1)
        panels[name] = {call: (batches, [row[0] / row[n] for row in rows]) for n, call in calls}
    return plots.curves(panels, xlabel="users", ylabel="million tokens/s, one layer", log="xy")


draw_one_level("Kimi K2, prompt A", "Kimi K2, prompt C")

# %% [markdown]
# FlashMLA and our absorb differ by {{others_within}} % at most. At B = 1024 the gain over the faster of them grows with
# the prompt{{!longer_gains}}: {{gain}} for Kimi K2 and prompt A ({{gain_in_graphs}} in CUDA graphs, where calls follow
# each other without a pause). The least gain of all is {{least_gain}} ({{least_where}}): naive saves little with few
# users, and FlashMLA is faster than our absorb there{{!flash_faster}}.
#
# **Where the paper's 3.24 stands.** TyphoonMLA reports up to 3.24 times the throughput of the better of FlashMLA and
# FlashInfer, on a GPU of 3.3 TB/s. Here the mixed step has {{work}} times less arithmetic than absorb at Kimi K2,
# prompt A, B = 1024. It is {{absorb_gain}} times as fast as our absorb and {{flash_gain}} times as fast as FlashMLA.
# {{flash_gain}} is less than {{work}}: the two do not compute at one rate. FlashMLA reaches {{flash_rate}} TFLOP/s, and
# the mixed step {{prefix_rate}}{{!flash_rate_higher}}. Its two parts were also timed alone, in turns with the whole
# step. The prefix, its whole pages of {{whole_pages}} tokens, reaches {{alone_rate}} TFLOP/s in {{alone_us}} µs. The
# own contexts, with the {{left_tokens}} tokens of the prompt behind those pages, have {{own_share}} % of the arithmetic
# and take {{own_us}} µs. Own contexts are short: a program loads queries, works on some four blocks
# of tokens, and stores results. The products with W_UK and W_UV are part of these times, and not of the arithmetic. In
# these turns the whole step took {{step_us}} µs, and {{beside_us}} µs among the longer calls of FlashMLA and absorb:
# compare times of one measurement only.
#
# **A better baseline leaves less to gain.** Ask of every speed-up: over what, and how near to the ceiling is that?
#
# ## Exercise: tree_decode
#
# Services share more than a system prompt. Documents, tools and examples stand under branches of users; parallel
# reasoning forks and forks again. The shared parts make a tree, or several. The context of a request is the path
# from a root to its last node, then its own tokens.

# %%
plots.flow(
    {
        "0": (4, 3, "node 0: system prompt\nusers 0 1 2 3 4 5"), "1": (1, 2, "node 1: document\nusers 0 2"),
        "2": (6, 2, "node 2: document\nusers 1 3 4"), "a": (0, 1, "own tokens\nof 0"), "b": (2, 1, "own tokens\nof 2"),
        "c": (4, 1, "own tokens\nof 1"), "d": (6, 1, "own tokens\nof 3"), "e": (8, 1, "own tokens\nof 4"),
        "f": (9, 2, "own tokens\nof 5"),
    },
    [("0", "1"), ("0", "2"), ("1", "a"), ("1", "b"), ("2", "c"), ("2", "d"), ("2", "e"), ("0", "f")],
    groups={"shared: naive for its users": ["0", "1", "2"], "own: absorb": ["a", "b", "c", "d", "e", "f"]},
    title="parents = [-1, 0, 0], last = [1, 2, 1, 2, 2, 0]",
)

# %% [markdown]
# Each node is attended **once**, by the queries of its users alone, packed into one product. A request with n nodes
# on its path has n + 1 parts; to merge them node by node is as good as all at the end. Here every node is naive;
# `mla_ref.plan_prefixes` decides for each by its own count of users.
#
# | | shape | |
# |---|---|---|
# | `q` | [B, H, D] | whole queries, rotated; the scale is 1/√D |
# | `k`, `v` | [N, H, D], [N, H, Dv] | expanded tokens of all nodes, node 0's first, then node 1's, … |
# | `parents` | list of n ints | of each node the one before it, −1 for a root; a parent may have a larger number |
# | `lengths` | list of n ints | tokens of each node alone; 0 is possible, and so is a node without users |
# | `last` | list of B ints | the last node of each request, −1 for one that shares nothing |
# | `own_out`, `own_lse` | [B, H, Dv], [B, H] | own tokens, done by absorb; NaN and −inf for none |
# | returns `out`, `lse` | [B, H, Dv], [B, H] | over the whole context; 0 and −inf where there is none |
#
# Floats are float32, the lists are Python's. The work is counted: your products may take half more than all nodes
# with their users. In a tree of many branches every node with every query, and a mask behind it, takes more. Request
# by request over the whole path takes no more FLOPs, so it is accepted here; but it reads a node's keys once for each
# user, and that is what a GPU would wait for. `merge_two` is there for you.
#
# <details><summary>Hint 1</summary>
#
# First the users of each node: walk from every request's last node to its root, and note the request at each node
# that you pass.
#
# </details>
# <details><summary>Hint 2</summary>
#
# A node's tokens begin at `sum(lengths[:n])`, whatever its place in the tree. Its queries are `q[users]`. Put its
# results into rows of a part [B, H, Dv] whose lse is −inf everywhere else: then `merge_two` leaves the others
# alone.
#
# </details>
# <details><summary>Hint 3</summary>
#
# Start with `out, lse = own_out, own_lse`. For each node with users and tokens: `part = torch.zeros_like(own_out)`,
# `part_lse = torch.full_like(own_lse, -math.inf)`, `part[users], part_lse[users] = …`, and merge. `merge_two` is
# exact, so one merge at the end and one after each node are the same; a kernel does it once. To end with zeros
# where there is no context, merge once with an empty part, even if there is no node. About fifteen lines.
#
# </details>

# %% solution="tree_decode"
def tree_decode(q, k, v, parents, lengths, last, own_out, own_lse):
    """Attention over a tree of shared prefixes, each node for its users, merged with each request's own part.

    q: [B, H, D]; k, v: [N, H, D], [N, H, Dv], the nodes' tokens one behind the other; parents, lengths: lists of n
    ints; last: list of B ints, -1 for none; own_out, own_lse: [B, H, Dv], [B, H], undefined and -inf where there are
    no own tokens. All floats are float32.
    Returns out [B, H, Dv] and lse [B, H], natural logarithm; 0 and -inf where a request has no context. Calls
    merge_two.

    The traps: a user of a node is a user of its parents, and not of its siblings; a node may have no tokens.
    """
    ### BEGIN SOLUTION
    users = [[] for _ in parents]
    for request, node in enumerate(last):
        while node != -1:
            users[node].append(request)
            node = parents[node]
    # a request without any part: zeros
    out, lse = merge_two(own_out, own_lse, torch.zeros_like(own_out), torch.full_like(own_lse, -math.inf))
    for node, mine in enumerate(users):
        if not mine or not lengths[node]:
            continue
        first = sum(lengths[:node])
        keys, values = k[first : first + lengths[node]], v[first : first + lengths[node]]
        scores = torch.einsum("bhd,lhd->bhl", q[mine], keys) * q.shape[-1] ** -0.5
        node_lse = scores.logsumexp(-1)
        part, part_lse = torch.zeros_like(own_out), torch.full_like(own_lse, -math.inf)
        part[mine] = torch.einsum("bhl,lhv->bhv", torch.exp(scores - node_lse[..., None]), values)
        part_lse[mine] = node_lse
        out, lse = merge_two(out, lse, part, part_lse)
    return out, lse
    ### END SOLUTION


# %% check="tree_decode"
check("tree_decode")

# %% [markdown]
# ## Measure: a tree
#
# Kimi K2 on an H200, three levels: a root under all, branches under equal shares of the users, own tokens. In *root
# alone* the branches are absorbed with the own tokens, as in TyphoonMLA, which has one level.
#
# {{levels}}
#
# The tree is far ahead of both that absorb all{{!tree_wins}}. Over the root alone it gains where many users share a
# branch, and hardly where their number is near the switch point{{!branches_pay}}. Over {{trees}} random trees of up to
# three levels, several roots, and requests that share nothing, `plan_prefixes` found something to expand in
# {{planned}}. There the step was {{median_tree}} times as fast as our absorb in the median, {{best_tree}} times at
# best, {{worst_planned}} at least. It leaves all to absorb where the parts save less than the merge and another launch
# take: a plan must know when not to.
#
# ## What a user sees of it
#
# A layer's attention is not the whole step. The paper's Table 3 adds {{other}} ms for everything else, DeepSeek's
# own profile, to 61 layers of DeepSeek-V3 with B = 128 over MMLU. The table has the paper's figures, and our times
# of an H200 with the same {{other}} ms. The columns in ms are the attention of all 61 layers alone; rates and gain
# include the {{other}} ms. That time is not ours, and a step on an H200 would have another.
#
# {{token_rates}}
#
# A gain of 2 in the attention becomes less for the user, and how much less depends on {{other}} ms that this lesson
# cannot make faster.
#
# ## What to take along
#
# - Attention over disjoint parts merges exactly, by natural log-sum-exps. Parts may come from different forms,
#   kernels and libraries; then check the base.
# - Share: naive, read once for all users. Own: absorb. Below the switch point: absorb alone.
# - The switch point is an equation with the kernels' rates in it. With the data sheet's it comes out too high.
# - Expanded prefixes cost memory that does not grow with the users.
# - A tree needs no new mathematics: users per node, packed queries, one merge.
#
# Figures: {{records}}.

# %% [markdown]
# <details><summary>Appendix: in the field</summary>
#
# **Which logarithm.** FlashInfer's LSE is base 2. FlashMLA's is base e in its dense decode and base 2 in its sparse
# prefill. sglang #35045 merged one as the other: the largest error was 0.105, and 0.0005 once fixed (flashinfer
# #2113 and #4485 are others). Empty rows are +inf in one library and −inf in another; a +inf that meets your merge
# gives NaN.
#
# **Which scale.** FlashMLA's default is 1/√576, the width of the latent key. Merged with a naive part that has
# 1/√192 the result is wrong in one half, and no shape tells.
#
# **Whose tokens.** Algorithm 1 prints the shared cache as [B, L, D_qk], with a batch and without heads. Its Table 1
# counts L · H · D_qk words, once for the batch: what you built.
#
# **What else shares.** FlashInfer's cascade, Hydragen and ChunkAttention share prefixes for multi-head attention,
# where both parts have one form. There sharing saves bytes. In MLA the absorbed form has few bytes to save, and
# sharing pays only because the form changes.
#
# **When a prefix changes.** Expanded keys are a cache of a cache. They must go with the last user, and move when
# pages do: `mla_ref.ExpandedPrefixes` expands a part when a plan first has it and releases it with the first plan
# that does not. A CUDA graph that has captured the old tensors is void then.
#
# </details>
