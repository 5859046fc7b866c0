# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown]
# # Lesson 08: roofline, naive versus absorb
#
# Lesson 03 ended with a rule: absorb for decoding, naive for prefill. It also named an exception. Where several
# sequences *share* the beginning of their context, one expanded copy of that beginning serves them all.
#
# This is the usual case in a service. Every request starts with the same system prompt, and some are long: one of
# Claude-4 has 26,472 tokens (table 2 of the TyphoonMLA paper, arXiv:2509.21081). With 20 such requests in a batch, is
# it faster to read the prompt expanded, or latent? With 200?
#
# This lesson answers by calculation, on any device, before anything runs. Then it compares with measurements, and
# looks for the reasons where they differ. At the end you
#
# - can derive what both forms cost, and the batch at which they change places (equation 1 of the paper);
# - have predicted that batch for an NPU and, by two kinds of ceilings, for an H100;
# - can read a table of measured times: where lines cross, which bandwidth and which rate were reached;
# - know what a roofline leaves out, with a number for each.
#
# The lesson takes about two hours and needs no GPU. 20 points. Everything here is arithmetic on Python numbers;
# `mla_ref.roofline` holds the same model, so write yours before you look there.
#
# | symbol | meaning | DeepSeek-V3 |
# |---|---|---|
# | B, S | sequences in the batch, new query tokens per sequence | |
# | T | context of one sequence, in tokens: prefix, own tokens and the S new ones | |
# | L | how many of the T tokens all B sequences share, the **prefix**; T − L are a sequence's **own** | |
# | H | heads | 128 |
# | Dn, Dr, Dv | width per head: without position, with position (RoPE), value | 128, 64, 128 |
# | R | width of the latent | 512 |
#
# The paper writes $L_s$ for L, $L_n$ for T − L, $D_l$ for R and $D_{qk}$ for Dn + Dr.
#
# A **word** is one stored number of `itemsize` bytes. A **MAC** is one multiply-accumulate, two FLOPs. **naive**
# means that keys and values of all heads are *stored expanded*, as multi-head attention reads them. **absorb** means
# attention straight from the latent cache. Both are attention alone: the expansion of the naive form was paid once,
# at prefill, and the two small projections of the absorbed form (lesson 03) are left out, as in the paper.
#
# Limits of every exercise: 10 s and 512 MiB for all its cases.

# %% setup="imports"
from autograder import check

# %% [markdown]
# ## Why: what a batch shares
#
# Arithmetic intensity is FLOPs per byte moved. Left of a device's ridge the memory decides, right of it the
# arithmetic does (lesson 00). The picture shows where both forms stand as the batch grows, for DeepSeek-V3 in 16-bit
# words.

# %%
import matplotlib.pyplot as plt
from mla_ref import DEVICES, MLAConfig, attention_cost, plots

v3, h100, ascend = MLAConfig.preset("deepseek_v3"), DEVICES["h100"], DEVICES["ascend_910b"]
FORMS = {"naive": plots.PALETTE[0], "absorb": plots.PALETTE[1]}
batches = [2**n for n in range(11)]

with plt.rc_context(plots.STYLE):
    figure, panels = plt.subplots(1, 2, figsize=(10, 3.6), sharey=True, layout="constrained")
    titles = ("all 4096 tokens shared", "4096 tokens of its own")
    for axes, shared, title in zip(panels, (4096, 0), titles, strict=True):
        for form, color in FORMS.items():
            costs = [attention_cost(form, v3, batch=B, context=4096, shared_prefix=shared) for B in batches]
            axes.loglog(batches, [cost.intensity for cost in costs], "o-", color=color, label=form)
        axes.axhline(h100.ridge(), color="black", linestyle="--", label="ridge of an H100, data sheet")
        axes.axhline(ascend.ridge(), color="grey", linestyle=":", label="ridge of the paper's NPU")
        axes.set_xscale("log", base=2)
        axes.set_xticks(batches, batches)
        axes.set(title=f"each sequence: {title}", xlabel="batch B", ylabel="FLOP per byte")
    panels[1].legend(loc="upper right")
    plt.show()

# %% [markdown]
# Right: without sharing, a batch changes nothing. Every sequence brings its own bytes and its own FLOPs, and the
# ratio stays at 1 for naive and 242 for absorb. Naive waits for memory, whatever the batch.
#
# Left: what is shared is read once and multiplied with the queries of all B sequences. Both intensities grow with the
# batch. From the second sequence on, absorb is beyond the ridge: more sharing does not help it any more. Naive does
# 3.4 times *less* arithmetic per query (lesson 03) and climbs towards the ridge. Somewhere on the way it must become
# the faster one.

# %% [markdown]
# ## Build: MACs and words with a shared prefix
#
# Count one decode step of one layer for the whole batch:
#
# - **MACs**: every one of the B·S query tokens meets every one of its T context tokens, shared or not. The causal
#   mask among the S new tokens saves nothing here.
# - **words**: every *stored* context token is read once, whatever number of queries multiplies with it. L tokens are
#   stored once for the batch, T − L for each sequence.
#
# What one pair of query and context token costs, and what one stored token holds, is your `predict_macs` of lesson
# 03.
#
# Write `prefix_costs`. Queries, outputs, softmax and projections are left out.
#
# <details><summary>Hint 1</summary>
#
# First count pairs and stored tokens; both counts are the same for the two forms. Then four products.
#
# </details>
# <details><summary>Hint 2</summary>
#
# The prefix appears in one of the two counts without B. It appears in the other with B and S, like any context.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `pairs = B * S * T` and `stored = L + B * (T - L)`. Per pair, naive takes H(Dn+Dr+Dv) MACs and absorb H(R+Dr+R). Per
# stored token, naive reads H(Dn+Dr+Dv) words and absorb R+Dr. Six lines.
#
# </details>

# %% solution="prefix_costs"
def prefix_costs(B, S, T, L, H, Dn, Dr, Dv, R):
    """Count the arithmetic and the traffic of one decode step, in both forms.

    B, S: int, sequences and new tokens of each; T: int, context of each, prefix and new tokens
    included; L: int, 0 to T, how many of the T tokens all sequences share; H, Dn, Dr, Dv, R: int, the
    layer's sizes.

    Returns a dict of four numbers, each for the whole batch:
        "naive_macs", "absorb_macs": multiply-accumulates (not FLOPs);
        "naive_words", "absorb_words": cached words that are read (not bytes).
    Trap: the prefix is read once, and computed with B·S times.
    """
    ### BEGIN SOLUTION
    pairs = B * S * T
    stored = L + B * (T - L)
    return {
        "naive_macs": pairs * H * (Dn + Dr + Dv),
        "absorb_macs": pairs * H * (R + Dr + R),
        "naive_words": stored * H * (Dn + Dr + Dv),
        "absorb_words": stored * (R + Dr),
    }
    ### END SOLUTION


# %% check="prefix_costs"
check("prefix_costs")

# %% [markdown]
# Compare with Table 1 of the paper. Its last column gives DeepSeek-V3 in units of 1024: how much each token of the
# prefix and each own token costs.

# %%
sizes = dict(H=128, Dn=128, Dr=64, Dv=128, R=512)  # as in v3
own, shared = prefix_costs(B=1, S=1, T=1, L=0, **sizes), prefix_costs(B=1, S=1, T=1, L=1, **sizes)
assert own == shared  # one sequence: it shares with nobody
printed = {"naive_macs": 40, "absorb_macs": 136, "naive_words": 40, "absorb_words": 0.56}
print("per token, × 1024     yours    printed")
for name, value in own.items():
    print(f"{name:16} {value / 1024:10.4f} {printed[name]:10}")

B, L, T = 64, 4096, 4352
counts = prefix_costs(B, 1, T, L, **sizes)
by_hand = 1024 * (40 * L + 40 * B * (T - L))
print(f"\nB = {B}, L = {L}, {T - L} own tokens: naive reads {counts['naive_words']:,} words, Table 1 says {by_hand:,}")

# %% [markdown]
# The digits agree (0.56 is 576/1024 = 0.5625). Table 1 has a third row, TyphoonMLA, which takes the naive numbers for
# the prefix and the absorbed ones for the rest. You will find that row yourself below.
#
# One slip in the paper is worth knowing, because it is the mistake that this exercise is about. Algorithm 1 gives the
# shared cache the shape [B, L, D_qk], with a batch and without heads. Table 1 counts L·H·D_qk words: with heads,
# without a batch. Table 1 is right.

# %% [markdown]
# ## Predict: the break-even batch
#
# Take the prefix alone, T = L. Two times matter:
#
# - naive, small batch: **reading** L·H(Dn+Dr+Dv) words. It takes the same time for any B.
# - absorb: **computing** B·S·L·H(2R+Dr) MACs. It grows with B.
#
# They are equal at the break-even batch $B_\theta$. The paper prints (equation 1), with throughput $T$ and memory
# bandwidth $M$:
#
# $$\frac{L_s H (D_{qk} + D_v)}{M} = \frac{B_\theta S_q L_s H (2D_l + D_r)}{T} \;\Longrightarrow\;
# B_\theta = \frac{D_{qk} + D_v}{S_q (2D_l + D_r)} \cdot \frac{T}{M}$$
#
# Look at the units. On the left words are divided by bytes per second, on the right MACs by operations per second.
# That is off by 2 on both sides when a word has two bytes, and the twos cancel. With 8-bit or 32-bit words they do
# not. Write the equation with `itemsize` bytes per word and 2 FLOPs per MAC.
#
# <details><summary>Hint 1</summary>
#
# Write both times in seconds: bytes over bandwidth, FLOPs over rate. Then solve for B. L cancels.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Reading: itemsize·H(Dn+Dr+Dv) / bandwidth per prefix token. Computing: 2·S·H(2R+Dr) / rate per prefix token and
# sequence. One more argument cancels.
#
# </details>
# <details><summary>Hint 3</summary>
#
# One line: the reading time over the computing time. `prefix_costs(1, S, 1, 1, H, Dn, Dr, Dv, R)` has both counts, if
# you prefer to use it.
#
# </details>

# %% solution="break_even"
def break_even(S, H, Dn, Dr, Dv, R, itemsize, rate, bandwidth):
    """Return the batch at which reading the prefix expanded takes as long as absorb's arithmetic over it.

    S: int, new tokens per sequence; H, Dn, Dr, Dv, R: int, the layer's sizes; itemsize: int, bytes of a
    cached word; rate: FLOP/s; bandwidth: bytes/s.

    Returns a float: naive is faster for larger batches. Not every argument has a part in it.
    Trap: the printed equation holds for words of two bytes.
    """
    ### BEGIN SOLUTION
    reading = itemsize * (Dn + Dr + Dv) / bandwidth
    computing = 2 * S * (2 * R + Dr) / rate
    return reading / computing
    ### END SOLUTION


# %% check="break_even"
check("break_even")

# %% [markdown]
# **Why only these two times?** Each form has two, so four could matter. At the break-even naive computes for less
# time than absorb does, since it has fewer MACs, so its reading is the longer of its two. Absorb reads less than
# naive does (576 words against 40960), so its arithmetic is the longer of its two. The other two times play no part.
#
# The second argument fails where a device holds a single head: there naive has 320 words a token and the latent 576,
# so naive wins at every batch. No published model is like that. A model that is split over as many GPUs as it has
# heads is.

# %% [markdown]
# ## Predict: 61, and two numbers for an H100
#
# Now the prediction. DeepSeek-V3, one new token, 16-bit words. From which batch on is naive faster over the prefix?
#
# | device | rate | bandwidth | where the figures come from |
# |---|---|---|---|
# | Ascend NPU | 376 TOPS/s in FP16 | 1.8 TB/s | TyphoonMLA, section 4 |
# | H100 SXM, **data sheet** | 1,979 TFLOP/s in bfloat16, "with sparsity" | 3.35 TB/s | NVIDIA |
# | H100 SXM, **measured** | {{rate}} TFLOP/s, 8192³ product | {{copy}} GB/s, copy, read + written | `mla_ref.DEVICES` |
#
# A data sheet says what a chip could do at its nominal clock. A measured ceiling says what a plain
# copy and a plain product reached. A prediction should say which of the two it is from, so give both.
#
# Each entry may be off by 2 %. `break_even` may be called; the judge supplies a right one.
#
# <details><summary>Hint 1</summary>
#
# Mind the row with the quotation marks. Lesson 00 met it: half of the products with structured sparsity are never
# computed.
#
# </details>
# <details><summary>Hint 2</summary>
#
# TOPS and TFLOP/s are 10¹² operations per second, TB/s are 10¹² bytes per second. A copy's bytes are counted as they
# pass the memory's pins, in either direction; do not halve them.
#
# </details>
# <details><summary>Hint 3</summary>
#
# 0.294 times each row's ridge, with 989.5 in place of 1,979. The three numbers lie between 60 and 90, and the
# measured one of the H100 is the smaller of its two.
#
# </details>

# %% solution="predict_crossovers"
def predict_crossovers():
    """Predict the break-even batch of DeepSeek-V3 with S = 1 and words of two bytes.

    Returns a dict of three numbers: "ascend", "h100_data_sheet", "h100_measured".
    Trap: a dense product never reaches the rate with sparsity.
    """
    ### BEGIN SOLUTION
    layer = dict(S=1, H=128, Dn=128, Dr=64, Dv=128, R=512, itemsize=2)
    return {
        "ascend": break_even(**layer, rate=376e12, bandwidth=1.8e12),
        "h100_data_sheet": break_even(**layer, rate=1979e12 / 2, bandwidth=3.35e12),
        "h100_measured": break_even(**layer, rate=744e12, bandwidth=3.019e12),
    }
    ### END SOLUTION


# %% check="predict_crossovers"
check("predict_crossovers")

# %% [markdown]
# The paper prints 61 for its NPU. For its GPU, "1 PetaFLOPS/s" and 3.3 TB/s, it prints none; the same equation gives
# 89.
#
# The last row of the table stays as it was measured once, and this lesson calculates with it throughout. A later run of
# the same two ceilings, on another H100 of the same type, came to {{again_rate}} TFLOP/s and {{again_bandwidth}} GB/s
# (`benchmarks/ceilings_h100.json`): {{again_batch}} instead of {{batch}}. The rate of a large product depends on the
# chip, its temperature and its power, so take the last digit lightly.
#
# Here is your equation for every device that `mla_ref` knows, by data sheet, dense.

# %%
def half_precision(device, measured=False):
    """Return rate and bandwidth of a device in its 16-bit type."""
    return dict(rate=device.rate(measured=measured), bandwidth=device.bandwidth(measured))


found = {d.name: break_even(1, **sizes, itemsize=2, **half_precision(d)) for d in DEVICES.values()}
found["H100, measured ceilings"] = break_even(1, **sizes, itemsize=2, **half_precision(h100, measured=True))
plots.bars(
    dict(sorted(found.items(), key=lambda item: item[1])),
    unit="break-even batch, one new token, 16-bit words",
    title="From which batch on naive reads a shared prefix faster",
)

# %% [markdown]
# Neither the model's width nor its number of heads matters, so Kimi K2 and DeepSeek-V2-Lite have the same bars. What
# matters is the device's ridge. The H200 computes as the H100 does and reads faster, so its bar is shorter: 61.
#
# Speculative decoding with S = 4 divides every bar by four: then 22 sequences are enough on an H100, by the data
# sheet.

# %% [markdown]
# ## Build: the time of a step
#
# The roofline of one step: the longer of two times, and which of them it was. Use `prefix_costs`; the judge supplies
# a right one.
#
# | argument | meaning |
# |---|---|
# | `form` | `"naive"` or `"absorb"`, for all T tokens |
# | `B`, `S`, `T`, `L` | as above |
# | `sizes` | dict of H, Dn, Dr, Dv, R |
# | `itemsize` | bytes of a cached word |
# | `rate`, `bandwidth` | FLOP/s and bytes/s |
#
# A service counts **query tokens per second**: all tokens that a step serves, divided by its time.
#
# <details><summary>Hint 1</summary>
#
# `prefix_costs(B, S, T, L, **sizes)` has keys that start with the form's name. Turn its counts into bytes and FLOPs
# first.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Two quotients, in seconds. The longer one is the time, and its name is the bound.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `memory = itemsize * costs[f"{form}_words"] / bandwidth` and `compute = 2 * costs[f"{form}_macs"] / rate`. A step
# serves B·S query tokens. Five lines.
#
# </details>

# %% solution="step_time"
def step_time(form, B, S, T, L, sizes, itemsize, rate, bandwidth):
    """Return the least time of a decode step by the roofline.

    form: "naive" or "absorb"; B, S, T, L: int, as in prefix_costs, T at least 1; sizes: dict of int
    with H, Dn, Dr, Dv and R; itemsize: int, bytes of a cached word; rate: FLOP/s; bandwidth: bytes/s.

    Returns a dict:
        "seconds": float;
        "bound": "memory" or "compute", the one that takes longer;
        "tokens_per_s": float, query tokens served per second.
    Trap: reading and computing overlap, so their times do not add.
    """
    ### BEGIN SOLUTION
    costs = prefix_costs(B, S, T, L, **sizes)
    memory = itemsize * costs[f"{form}_words"] / bandwidth
    compute = 2 * costs[f"{form}_macs"] / rate
    seconds = max(memory, compute)
    bound = "memory" if memory >= compute else "compute"
    return {"seconds": seconds, "bound": bound, "tokens_per_s": B * S / seconds}
    ### END SOLUTION


# %% check="step_time"
check("step_time")

# %% [markdown]
# ### Figure 6 of the paper
#
# Query tokens per second against the batch, for a prefix that all share. The figure assumes 1.8 TB/s and *400*
# TFLOP/s, not the 376 of section 3.2, so its lines cross at 65 instead of 61. It does not give L; here L = 4096.
# Another L would scale the vertical axis and leave the shape as it is.

# %%
kimi = sizes | dict(H=64)
paper = dict(itemsize=2, rate=400e12, bandwidth=1.8e12)
batches = [2**n for n in range(11)]

with plt.rc_context(plots.STYLE):
    figure, panels = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
    for axes, (name, layer) in zip(panels, {"DeepSeek-V3": sizes, "Kimi K2": kimi}.items(), strict=True):
        for form, color in FORMS.items():
            rates = [step_time(form, B, 1, 4096, 4096, layer, **paper)["tokens_per_s"] for B in batches]
            axes.loglog(batches, rates, "o-", color=color, label=form)
        axes.axvline(break_even(1, **layer, **paper), color="grey", linewidth=1, label="break-even")
        axes.set_xscale("log", base=2)
        axes.set_xticks(batches, batches)
        axes.set(title=name, xlabel="batch B", ylabel="query tokens/s, one layer")
        axes.legend()
    plt.show()

for name, layer in {"DeepSeek-V3": sizes, "Kimi K2": kimi}.items():
    steps = {B: step_time("absorb", B, 1, 4096, 4096, layer, **paper) for B in batches}
    first = next(B for B, step in steps.items() if step["bound"] == "compute")
    top = {form: step_time(form, 1024, 1, 4096, 4096, layer, **paper)["tokens_per_s"] for form in FORMS}
    gain = top["naive"] / top["absorb"]
    print(f"{name}: absorb is flat from B = {first} on; at B = 1024 naive is {gain:.1f} times faster")

# %% [markdown]
# The same as in the paper: absorb is flat from the first sequence on for DeepSeek-V3 and from the second for Kimi K2,
# naive overtakes it beyond 64, and ends 3.4 times higher.
#
# How flat depends on the device. On an H100 the ridge is 295, and DeepSeek-V3's absorb has 242 FLOP per byte with one
# query per token: **bound by memory, barely**. Without a shared prefix it stays there for every batch, and that is
# why decode kernels for it are judged by GB/s *and* by TFLOP/s.

# %% [markdown]
# ## Build: which form for which part
#
# A context has two parts: the prefix, L tokens that all share, and T − L own tokens. Attention over both can be
# computed apart and merged by the log-sum-exp (lesson 01). So each part may have the form that suits it. This is
# TyphoonMLA's idea, and lesson 09 builds it; here you choose.
#
# Each part is a kernel of its own, one after the other, so their times add. Merging is left out.
#
# Write `choose_forms`. For each part take the form with the shorter `step_time`, absorb where both are equal. A part
# without tokens takes 0 seconds and counts as absorb: nothing is expanded for it. `step_time` cannot time it, since
# it divides by the time.
#
# <details><summary>Hint 1</summary>
#
# The prefix alone is a step with T = L. The own part alone is a step with a shorter T and no prefix. Call `step_time`
# for both forms of each.
#
# </details>
# <details><summary>Hint 2</summary>
#
# A helper inside the function saves repetition: given the tokens of a part and how many of them are shared, it
# returns the form and the seconds, and `("absorb", 0.0)` for no tokens.
#
# </details>
# <details><summary>Hint 3</summary>
#
# About nine lines. In the helper, `times = {form: step_time(form, B, S, tokens, prefix, sizes, itemsize, rate,
# bandwidth)["seconds"] for form in ("absorb", "naive")}`; then `min(times, key=times.get)` takes the first of equal
# ones. Call it with `(L, L)` and with `(T - L, 0)`.
#
# </details>

# %% solution="choose_forms"
def choose_forms(B, S, T, L, sizes, itemsize, rate, bandwidth):
    """Choose the faster form for the shared part and for the own part of the context.

    The arguments are those of step_time.

    Returns a dict:
        "shared", "own": "naive" or "absorb", each for its part; "absorb" for a part without tokens;
        "seconds": float, both parts together, one after the other.
    Trap: the own tokens of one sequence serve S queries, those of the prefix B·S.
    """
    ### BEGIN SOLUTION
    def fastest(tokens, prefix):
        if tokens == 0:
            return "absorb", 0.0
        rest = (sizes, itemsize, rate, bandwidth)
        times = {form: step_time(form, B, S, tokens, prefix, *rest)["seconds"] for form in ("absorb", "naive")}
        form = min(times, key=times.get)
        return form, times[form]

    shared, shared_seconds = fastest(L, L)
    own, own_seconds = fastest(T - L, 0)
    return {"shared": shared, "own": own, "seconds": shared_seconds + own_seconds}
    ### END SOLUTION


# %% check="choose_forms"
check("choose_forms")

# %% [markdown]
# ### Figure 7 of the paper
#
# The time of the shared part, of the own part, and of both, on the NPU. The paper gives no lengths for this figure;
# those of its figure 8 are 4096 shared and 128 own tokens.

# %%
npu = dict(itemsize=2, **half_precision(ascend))
L, own = 4096, 128


def part_times(form, B):
    """Return milliseconds of the shared and of the own part."""
    parts = (L, L), (own, 0)
    return [1e3 * step_time(form, B, 1, tokens, prefix, sizes, **npu)["seconds"] for tokens, prefix in parts]


batches = [2**n for n in range(3, 11)]
with plt.rc_context(plots.STYLE):
    figure, panels = plt.subplots(1, 3, figsize=(11, 3.4), layout="constrained")
    for form, color in FORMS.items():
        shared, apart = zip(*(part_times(form, B) for B in batches), strict=True)
        both = [a + b for a, b in zip(shared, apart, strict=True)]
        for axes, times in zip(panels, (shared, apart, both), strict=True):
            axes.loglog(batches, times, "o-", color=color, label=form)
    chosen = [1e3 * choose_forms(B, 1, L + own, L, sizes, **npu)["seconds"] for B in batches]
    panels[2].loglog(batches, chosen, "k--", linewidth=2, label="chosen by part")
    for axes, title in zip(panels, (f"shared part, {L} tokens", f"own part, {own} tokens", "both"), strict=True):
        axes.set_xscale("log", base=2)
        axes.set_xticks(batches, batches)
        axes.set(title=title, xlabel="batch B", ylabel="milliseconds")
    panels[2].legend()
    plt.show()

for B in (64, 128, 512):
    choice = choose_forms(B, 1, L + own, L, sizes, **npu)
    times = f"{1e3 * choice['seconds']:.2f} ms, absorb alone {sum(part_times('absorb', B)):.2f} ms"
    print(f"B = {B:3}: shared {choice['shared']}, own {choice['own']}: {times}")
print(f"naive's shared part leaves its flat stretch at B = {ascend.ridge():.0f}")

# %% [markdown]
# Three statements of the paper, checked against your model:
#
# - Naive's shared part is flat "until the batch size of 128". The knee is at the ridge, 209; 128 is the last power of
#   two before it.
# - The own part is faster in absorb at every batch. It must be: its intensity in naive is 1 FLOP per byte (the right
#   panel of the first picture), and absorb reads 71 times less.
# - At B = 512 the choice is 3.2 times faster than absorb alone. The paper measured "up to 2×" there (figure 8). Keep
#   that difference in mind.
#
# The chosen row is Table 1's third. Its fall-back is in your code too: below the break-even the prefix is absorb, and
# TyphoonMLA is the absorbed kernel.

# %% [markdown]
# ## Explore
#
# The same two pictures for any layer and device. Left, figure 6: throughput over the prefix, with your batch as a
# dot. Right, figure 7 at your batch: the time of each form, split into its parts.
#
# H is the number of heads *on one device*. Tensor parallelism over four GPUs leaves 32 of DeepSeek-V3's 128 heads to
# each, with the whole latent. Words and arithmetic may have different types: an 8-bit cache that is multiplied in 16
# bits halves the bytes and leaves the FLOP/s alone; 8 bits in both also doubles the rate, where a device can.

# %%
PRECISIONS = {"16 bits": (2, False), "8-bit cache, 16-bit arithmetic": (1, False), "8 bits in both": (1, True)}


def ceilings(device, precision, measured):
    """Return itemsize, rate and bandwidth, or None where the device or the record has no such figure."""
    itemsize, narrow = PRECISIONS[precision]
    dtypes = [name for name in device.flops if name.startswith("float8")] if narrow else [device.half_dtype]
    try:
        return dict(itemsize=itemsize, rate=device.rate(dtypes[0], measured), bandwidth=device.bandwidth(measured))
    except (IndexError, ValueError):
        return None


def explorer(
    preset="deepseek_v3", device="h100", precision="16 bits", measured=False, B=128, S=1, H=128, L=4096, own=256
):
    """Draw throughput over the batch, and times at one batch."""
    config, limits = MLAConfig.preset(preset), ceilings(DEVICES[device], precision, measured)
    if limits is None:
        kind = "measured" if measured else "data-sheet"
        print(f"no {kind} figure for {precision} on {DEVICES[device].name}")
        return
    widths = config.qk_nope_head_dim, config.qk_rope_head_dim, config.v_head_dim, config.kv_lora_rank
    layer = dict(zip(("H", "Dn", "Dr", "Dv", "R"), (H, *widths), strict=True))
    batch, line = break_even(S, **layer, **limits), [2**n for n in range(11)]
    with plt.rc_context(plots.STYLE):
        _, (left, right) = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
        for form, color in FORMS.items():
            rates = [step_time(form, n, S, L, L, layer, **limits)["tokens_per_s"] for n in (*line, B)]
            left.loglog(line, rates[:-1], color=color, label=form)
            left.plot(B, rates[-1], "o", color=color)
        left.axvline(batch, color="grey", linewidth=1, label=f"break-even: {batch:.1f}")
        left.set_xscale("log", base=2)
        left.set(title=f"prefix of {L} tokens, S = {S}", xlabel="batch B", ylabel="query tokens/s, one layer")
        left.legend(loc="lower right")

        parts = {"shared": (L, L), "own": (own, 0)}
        choice = choose_forms(B, S, L + own, L, layer, **limits)
        bars = {form: dict.fromkeys(parts, form) for form in FORMS} | {"chosen": choice}
        start = dict.fromkeys(bars, 0.0)
        for (part, (tokens, prefix)), color in zip(parts.items(), plots.PALETTE[4:], strict=False):
            times = {
                name: 1e6 * step_time(forms[part], B, S, tokens, prefix, layer, **limits)["seconds"]
                for name, forms in bars.items()
            }
            right.barh(list(bars), list(times.values()), left=list(start.values()), color=color, label=part)
            start = {name: start[name] + times[name] for name in bars}
        right.invert_yaxis()
        right.grid(axis="y", visible=False)
        right.set(title=f"B = {B}: prefix {choice['shared']}, own {choice['own']}", xlabel="microseconds")
        right.legend(loc="lower right")
        plt.show()


explorer()

# %% [markdown]
# With ipywidgets installed you can turn the knobs yourself. Try:
#
# 1. H from 128 to 16: the break-even does not move. What does?
# 2. "8-bit cache, 16-bit arithmetic": which way does the break-even go, and why does "8 bits in both" bring it back?
# 3. S = 4 at B = 32.
# 4. The own part at 4096 tokens: how much of the gain is left?
#
# <details><summary>What you should see</summary>
#
# 1. The intensity of absorb falls with H, from 242 to 30 FLOP per byte and sequence, so absorb is bound by memory up
#    to a batch of 9. Every time falls with H, except that of reading the latent.
# 2. Half the bytes let naive read in half the time: 43. With the doubled rate absorb computes in half the time too:
#    87.
# 3. The break-even is 22, so the prefix is naive already at 32.
# 4. At B = 128 the choice gains 1.43 over absorb alone with 256 own tokens, and 1.17 with 4096.
#
# </details>

# %%
try:
    from ipywidgets import Dropdown, IntSlider, SelectionSlider, interact
except ImportError:
    print("no ipywidgets here: call explorer(B=..., H=..., device=...) with other values instead")
else:
    powers = lambda low, high, value: SelectionSlider(
        options=[2**n for n in range(low, high)], value=value, continuous_update=False
    )
    interact(
        explorer,
        preset=Dropdown(options=["deepseek_v3", "kimi_k2", "deepseek_v2_lite", "report"], value="deepseek_v3"),
        device=Dropdown(options=list(DEVICES), value="h100"),
        precision=Dropdown(options=list(PRECISIONS)),
        measured=False,
        B=powers(0, 11, 128),
        S=IntSlider(value=1, min=1, max=8, continuous_update=False),
        H=powers(2, 8, 128),
        L=powers(8, 16, 4096),
        own=powers(4, 14, 256),
    )

# %% [markdown]
# ## Measure: both forms on this machine
#
# The prefix alone, 16 heads of DeepSeek-V3's widths, 8192 tokens in float32, on one thread. The queries of all B
# sequences are rows of one matrix: per head for naive, of all heads together for absorb.
#
# A CPU has less arithmetic for its bandwidth than a GPU, but its words have four bytes. First the prediction.

# %%
import torch
from mla_ref import bench, measure_copy_bandwidth, measure_matmul_rate

threads = torch.get_num_threads()
torch.set_num_threads(1)
rate, bandwidth = measure_matmul_rate("cpu"), measure_copy_bandwidth("cpu")
here, L = dict(itemsize=4, rate=rate, bandwidth=bandwidth), 8192
few = sizes | dict(H=16)
print(f"one thread: {rate / 1e9:.0f} GFLOP/s, {bandwidth / 1e9:.1f} GB/s, ridge {rate / bandwidth:.1f} FLOP/byte")
print(f"predicted break-even here: {break_even(1, **few, **here):.1f}")

# %% [markdown]
# Then the clock. What do you expect where: at B = 1, where each form reads its prefix, and at B = 32?

# %%
def prefix_attention(B, L, H, Dn, Dr, Dv, R, **on):
    """Return calls of naive and absorb over one prefix, for random queries of B sequences; `on`: dtype and device."""
    q, k, v = (torch.randn(H, rows, width, **on) for rows, width in ((B, Dn + Dr), (L, Dn + Dr), (L, Dv)))
    q_latent, cache = torch.randn(B * H, R + Dr, **on), torch.randn(L, R + Dr, **on)
    scale = (Dn + Dr) ** -0.5
    return {
        "naive": lambda: torch.bmm((torch.bmm(q, k.mT) * scale).softmax(-1), v),  # [H, B, Dv]
        "absorb": lambda: (q_latent @ cache.T * scale).softmax(-1) @ cache[:, :R],  # [B*H, R]
    }


batches, measured = [1, 2, 4, 8, 16, 32], {form: [] for form in FORMS}
for B in batches:
    for form, call in prefix_attention(B, L, **few).items():
        measured[form].append(1e3 * bench(call, warmup=1, repeat=7, device="cpu").median)

with plt.rc_context(plots.STYLE):
    figure, axes = plt.subplots(figsize=(7, 3.6), layout="constrained")
    for form, color in FORMS.items():
        model = [1e3 * step_time(form, B, 1, L, L, few, **here)["seconds"] for B in batches]
        axes.loglog(batches, measured[form], "o-", color=color, label=f"{form}, measured")
        axes.loglog(batches, model, ":", color=color, label=f"{form}, roofline")
    axes.axvline(break_even(1, **few, **here), color="grey", linewidth=1)
    axes.set_xscale("log", base=2)
    axes.set_xticks(batches, batches)
    axes.set(title="prefix of 8192 tokens, 16 heads, float32, one CPU thread", xlabel="batch B", ylabel="milliseconds")
    axes.legend()
    plt.show()

for B, naive_ms, absorb_ms in zip(batches, *measured.values(), strict=True):
    print(f"B = {B:2}: naive {naive_ms:6.1f} ms, absorb {absorb_ms:6.1f} ms")
torch.set_num_threads(threads)

# %% [markdown]
# Where the lines cross depends on your machine and on what else it does. In four runs, on two servers, the prediction
# was between 5 and 12, and the lines crossed between B = 8 and 17: the right order of magnitude, and late.
#
# The rest of the picture says why. At B = 1 naive is a product of a matrix and a vector per head, and reaches less
# than the copy bandwidth, or more where a processor's own cache holds part of the prefix. The softmax, which neither
# count contains, makes passes of its own over the scores. A GPU has the same troubles under other names.

# %% [markdown]
# ## Measure: on your GPU, if there is one
#
# The same on a GPU with a 4096-token prefix and all 128 heads: for naive PyTorch's `scaled_dot_product_attention`,
# for absorb the decode kernel of `mla_ref`, in 16 bits. Queries of all sequences are folded into one, so both kernels
# know that the prefix is shared. `bench` empties the L2 cache before each call.
#
# The long wait in `clock` fills the GPU's queue before the first call is timed. Without it the time of a short kernel
# would be the time that Python takes to start it. For absorb with 128 heads and B = 1 over 8192 tokens that is
# {{host_us}} µs on a machine with an H100, where the GPU needs {{device_us}} (`benchmarks/decode_h100.json`).

# %%
def gpu_forms(B, L, H, Dn, Dr, Dv, R, dtype):
    """Return calls of naive and absorb over one prefix on the GPU, for random queries of B sequences."""
    import torch.nn.functional as F
    from mla_ref import kernels

    on = dict(dtype=dtype, device="cuda")
    q, k, v = (torch.randn(1, H, rows, width, **on) for rows, width in ((B, Dn + Dr), (L, Dn + Dr), (L, Dv)))
    q_latent, q_rope = torch.randn(1, B, H, R, **on), torch.randn(1, B, H, Dr, **on)
    cache, scale = torch.randn(1, L, R + Dr, **on), (Dn + Dr) ** -0.5
    views = cache[..., :R], cache[..., R:]
    return {
        "naive": lambda: F.scaled_dot_product_attention(q, k, v, scale=scale),
        "absorb": lambda: kernels.latent_attention_tma(q_latent, q_rope, *views, scale=scale, causal=False),
    }


def clock(call):
    """Return microseconds of the device for one call."""
    call()
    torch.cuda._sleep(20_000_000)  # clock cycles, about 10 ms
    return 1e6 * bench(call, warmup=0, repeat=15, device="cuda").median


my_rows = []
if torch.cuda.is_available():
    half = torch.bfloat16 if torch.cuda.get_device_capability() >= (8, 0) else torch.float16
    mine = dict(rate=measure_matmul_rate(dtype=half), bandwidth=measure_copy_bandwidth())
    print(f"{torch.cuda.get_device_name()}: {mine['rate'] / 1e12:.0f} TFLOP/s, {mine['bandwidth'] / 1e9:.0f} GB/s")
    print(f"predicted from these: {break_even(1, **sizes, itemsize=2, **mine):.0f}")
    for B in (1, 4, 16, 32, 48, 64, 96, 128, 256):
        calls = gpu_forms(B, 4096, **sizes, dtype=half)
        my_rows.append([B, clock(calls["naive"]), clock(calls["absorb"])])
        print(f"B = {B:4}: naive {my_rows[-1][1]:8.1f} µs, absorb {my_rows[-1][2]:8.1f} µs")
else:
    print("no GPU here: the points below were measured on an H100")

# %% [markdown]
# ## Measure: an H100, and your guess
#
# Predicted were {{sheet_batch}} by the data sheet and {{batch}} by measured ceilings{{!ceilings_say_so}}. Which is
# nearer to what two real kernels do? Or neither? Write your number down before you go on.

# %%
guess = 72  # the batch at which the measured lines cross: put your own number here

# %% [markdown]
# The rows were measured on an {{crossover_h100.device}} (`benchmarks/crossover.py` and `crossover_h100.json`):
# bfloat16, a prefix of 4096 tokens, one new token per sequence, L2 emptied before each call. Each number is the median
# of seven rounds; no rounds of a fastest call were more than 3 % apart{{!rounds_together}}. Each form has the fastest
# of several calls: for naive cuDNN's attention, whole or in parts; for absorb the decode kernels of `mla_ref`, and two
# cuBLAS products with a softmax between them. All were first compared with `mla_ref.naive` in float64. The clock shows
# {{empty_us}} µs for a kernel that does nothing.

# %%
# B, naive and absorb in microseconds
H100_ROWS = "{{rows}}"
layers = {"DeepSeek-V3": sizes, "Kimi K2": kimi}


def draw_rows(axes, rows, layer, ceilings, label):
    """Draw a table of measured times, and the roofline of both forms."""
    batches = [B for B, *_ in rows]
    for column, (form, color) in enumerate(FORMS.items(), 1):
        axes.loglog(batches, [row[column] for row in rows], "o-", color=color, label=f"{form}, measured")
        model = [1e6 * step_time(form, B, 1, 4096, 4096, layer, **ceilings)["seconds"] for B in batches]
        axes.loglog(batches, model, ":", color=color, label=f"{form}, {label}")
    axes.set_xscale("log", base=2)
    axes.set(xlabel="batch B", ylabel="microseconds")


by_ceilings = dict(itemsize=2, **half_precision(h100, measured=True))
with plt.rc_context(plots.STYLE):
    figure, panels = plt.subplots(1, 2, figsize=(11, 4), sharey=True, layout="constrained")
    for axes, (name, rows) in zip(panels, H100_ROWS.items(), strict=True):
        draw_rows(axes, rows, layers[name], by_ceilings, "roofline of measured ceilings")
        axes.axvline(break_even(1, **layers[name], **by_ceilings), color="grey", linewidth=1)
        axes.set_title(f"{name}, H100, prefix of 4096 tokens")
    panels[0].legend()
    plt.show()

# %% [markdown]
# ## Build: read a measured table
#
# Turn such a table into three numbers, all of them for a step in which the whole context is the prefix, T = L:
#
# - `crossover`: the batch at which the two lines cross. Between the last row in which absorb is faster and the next
#   row, take both times as straight lines in B.
# - `naive_gb_per_s`: the bandwidth that naive reached in the **first** row, where it waits for memory. Compulsory
#   bytes over time, in 10⁹ bytes per second.
# - `absorb_tflop_per_s`: the rate that absorb reached in the **last** row, in 10¹² FLOP per second.
#
# Rows ascend in B. Absorb is the faster one in the first row, naive in the last, and the lines cross once.
#
# <details><summary>Hint 1</summary>
#
# Find the first row in which naive is faster. It and the row before it hold the crossing.
#
# </details>
# <details><summary>Hint 2</summary>
#
# In the row before, naive is behind by some time; in the row after it is ahead by some time. The crossing divides the
# step from one batch to the other in the ratio of these two.
#
# </details>
# <details><summary>Hint 3</summary>
#
# With `behind = naive_low - absorb_low` and `ahead = absorb_high - naive_high`: `low + (high - low) * behind /
# (behind + ahead)`. Words and MACs are those of `prefix_costs(B, S, L, L, **sizes)` in the first and in the last row;
# a microsecond is 10⁻⁶ s. About eleven lines.
#
# </details>

# %% solution="read_measurements"
def read_measurements(rows, S, L, sizes, itemsize):
    """Read the crossover and the rates that were reached from a table of measured times.

    rows: list of [B, naive_us, absorb_us], B ascending, times in microseconds; S: int, new tokens per
    sequence; L: int, tokens of the prefix, which is the whole context; sizes: dict of int with H, Dn,
    Dr, Dv and R; itemsize: int, bytes of a cached word.

    Returns a dict of three floats:
        "crossover": the batch at which the lines cross, interpolated between two rows;
        "naive_gb_per_s": of the first row, 10^9 bytes/s;
        "absorb_tflop_per_s": of the last row, 10^12 FLOP/s.
    Trap: rates count compulsory work, the prefix once and two FLOPs per MAC.
    """
    ### BEGIN SOLUTION
    after = next(i for i, (_, naive, absorb) in enumerate(rows) if naive < absorb)
    low, naive_low, absorb_low = rows[after - 1]
    high, naive_high, absorb_high = rows[after]
    behind, ahead = naive_low - absorb_low, absorb_high - naive_high
    first, naive_us, _ = rows[0]
    last, _, absorb_us = rows[-1]
    read = itemsize * prefix_costs(first, S, L, L, **sizes)["naive_words"]
    computed = 2 * prefix_costs(last, S, L, L, **sizes)["absorb_macs"]
    return {
        "crossover": low + (high - low) * behind / (behind + ahead),
        "naive_gb_per_s": read / (naive_us * 1e-6) / 1e9,
        "absorb_tflop_per_s": computed / (absorb_us * 1e-6) / 1e12,
    }
    ### END SOLUTION


# %% check="read_measurements"
check("read_measurements")

# %%
readings = {name: read_measurements(rows, 1, 4096, layers[name], 2) for name, rows in H100_ROWS.items()}
if my_rows and my_rows[0][1] > my_rows[0][2] and my_rows[-1][1] < my_rows[-1][2]:
    readings["DeepSeek-V3, your GPU"] = read_measurements(my_rows, 1, 4096, sizes, 2)
sheet, plain = found[h100.name], found["H100, measured ceilings"]
print(f"your guess {guess}; predicted {sheet:.0f} by the data sheet, {plain:.0f} by measured ceilings")
for name, reading in readings.items():
    reached = dict(rate=1e12 * reading["absorb_tflop_per_s"], bandwidth=1e9 * reading["naive_gb_per_s"])
    rates = f"naive {reading['naive_gb_per_s']:.0f} GB/s, absorb {reading['absorb_tflop_per_s']:.0f} TFLOP/s"
    again = break_even(1, **sizes, itemsize=2, **reached)
    print(f"{name}: measured {reading['crossover']:.0f}; reached: {rates}; equation 1 with these: {again:.0f}")

# %% [markdown]
# Measured: **{{v3_crossing}}** for DeepSeek-V3 and **{{k2_crossing}}** for Kimi K2, where the data sheet said
# {{sheet_batch}} and the ceilings {{batch}}. (Both lie on a straight line between the rows of 32 and
# 48{{!between_32_and_48}}; nothing between was measured.) Off by a factor of two is no disgrace for a model with two
# numbers in it. But a fall-back that switches at {{batch}} would choose wrongly for every batch between. The equation
# is right. The two numbers that went into it are not those of the kernels.

# %% [markdown]
# ## Where the model is wrong, and why
#
# **1. Rates are those of kernels, not of devices.** With the rates that both kernels reached, the equation says
# {{reached_batch}} for DeepSeek-V3. Absorb falls further short of the product's {{rate}} TFLOP/s than naive does of the
# copy's {{copy}} GB/s{{!further_short}}: a query of 576 and an accumulator of 512 per row leave little room on the chip
# for anything else (lesson 06). A better absorbed kernel moves the break-even *up*, a better naive one moves it down.

# %%
for name, reading in readings.items():
    rate, bandwidth = reading["absorb_tflop_per_s"] * 1e12, reading["naive_gb_per_s"] * 1e9
    shares = rate / h100.rate(measured=True), bandwidth / h100.bandwidth(measured=True)
    print(f"{name}: absorb at {shares[0]:.0%} and naive at {shares[1]:.0%} of the measured ceilings, "
          f"{plain:.0f} × {shares[0] / shares[1]:.2f} = {plain * shares[0] / shares[1]:.0f}")

# %% [markdown]
# **2. Work comes in whole tiles.** Look at the measured absorb line again, in the next cell, on straight axes. It is a
# staircase. The kernel gives 64 rows, each a head of a query, to one program, and a multiprocessor runs one program at
# a time. DeepSeek-V3 needs 2·B programs, and the H100 has 132 multiprocessors. 48 sequences keep 96 of them busy and
# take nearly as long as 64{{!nearly_as_64}}. With 80 there are 160 programs, more than fit at once. The kernel softens
# the steps by splitting the context (32 sequences in two parts are 128 programs), but each split costs a merge. The
# crossing falls onto the rise from 32 to 48, where the rate drops from {{rate_32}} to {{rate_48}} TFLOP/s. Far out it
# is {{reached}}.

# %%
with plt.rc_context(plots.STYLE):
    figure, axes = plt.subplots(figsize=(7, 3.6), layout="constrained")
    rows = [row for row in H100_ROWS["DeepSeek-V3"] if row[0] <= 192]
    for column, (form, color) in enumerate(FORMS.items(), 1):
        axes.plot([row[0] for row in rows], [row[column] for row in rows], "o-", color=color, label=f"{form}, measured")
    model = [1e6 * step_time("absorb", B, 1, 4096, 4096, sizes, **by_ceilings)["seconds"] for B, *_ in rows]
    axes.plot([row[0] for row in rows], model, ":", color=FORMS["absorb"], label="absorb, measured ceilings")
    for B in (66, 132):
        axes.axvline(B, color="grey", linewidth=1)
    axes.set(title="DeepSeek-V3; grey: 132 and 264 programs", xlabel="batch B", ylabel="microseconds", ylim=(0, None))
    axes.legend()
    plt.show()
for B, _, absorb_us in rows:
    flops = 2 * prefix_costs(B, 1, 4096, 4096, **sizes)["absorb_macs"]
    print(f"B = {B:3}: {2 * B:3} programs, {flops / absorb_us / 1e6:4.0f} TFLOP/s")

# %% [markdown]
# Naive has tiles too. Its times fit programs of 128 queries of one head: any batch up to 128 takes the same
# time{{!same_time}}. With the 64 heads of Kimi K2 that is 64 programs for 132 multiprocessors: {{k2_naive_us}} µs at B
# = 80, where the copy bandwidth would allow 56. Cutting the context into two parts makes 128 programs, and helps while
# the merge is small.
#
# **3. Starting costs time.** At B = 1 absorb takes {{absorb_1_us}} µs where the model says less than 2{{!less_than_2}}.
# The kernel is split into many short programs, followed by a second launch that merges them; loading, waiting and
# merging take longer than the 4.7 MB. The two lines cannot cross down there, so the break-even does not feel it. A
# short prefix would.
#
# **4. Caches.** The model counts bytes of DRAM. The whole latent prefix is 4.7 MB and the L2 holds 50 MB. A kernel that
# does *not* know that the prefix is shared reads it once per sequence, 604 MB at B = 128, almost all from the L2. It
# took {{each_us}} µs where the same kernel with folded queries took {{folded_us}}. That is the paper's starting point:
# absorb has nothing to gain from sharing, because it waits for its arithmetic.
#
# **5. The exponential.** Each pair of query head and token needs one, in both forms, and the count leaves it out. The
# FlashAttention-3 paper (arXiv:2407.08608) gives an H100 3.9 · 10¹² exponentials per second. Naive spends 320 MACs
# per exponential and absorb 1088, so naive suffers more.

# %%
for form, macs in (("naive", 320), ("absorb", 1088)):
    product, exponential = 2 * macs / h100.rate(), 1 / 3.9e12
    print(f"{form:6}: exponentials take {exponential / product:.0%} of the time of the products, data sheet")

# %% [markdown]
# Good kernels overlap the two. cuDNN's naive reached {{cudnn}} TFLOP/s at B = 1024, {{cudnn_share}} % of the data
# sheet's 989, and absorb {{reached}}.
#
# **6. Peak figures, and why ratios survive.** The paper measured its NPU in figure 4: Kimi K2, 4096 shared and 512
# own tokens, B = 1024. Over the prefix absorb took 5.37 ms and naive 1.63 ms; the own part took 1.06 ms. Compare with
# your model.

# %%
measured_ms = {"naive": 1.63, "absorb": 5.37}
for form, measured_time in measured_ms.items():
    step = step_time(form, 1024, 1, 4096, 4096, kimi, **npu)
    model_ms = 1e3 * step["seconds"]
    share = f"reached {model_ms / measured_time:.0%} of it"
    print(f"{form:6}: {measured_time} ms, roofline {model_ms:.2f} ms ({step['bound']}), {share}")
naive_s, absorb_s = (step_time(form, 1024, 1, 4096, 4096, kimi, **npu)["seconds"] for form in FORMS)
own_s = step_time("absorb", 1024, 1, 512, 0, kimi, **npu)["seconds"]
print(f"own    : 1.06 ms, roofline {1e3 * own_s:.2f} ms (memory), reached {1e3 * own_s / 1.06:.0%} of it")
print(f"gain over the prefix: {5.37 / 1.63:.1f} measured, {absorb_s / naive_s:.1f} by the model")
both = (absorb_s + own_s) / (naive_s + own_s)
print(f"gain of both parts:   {(5.37 + 1.06) / (1.63 + 1.06):.1f} measured, {both:.1f} by the model")

# %% [markdown]
# All three times are three to four times the model's, and the gains agree with it: 3.3 against 3.4, and 2.4 in both.
# The paper takes that as a confirmation of its analysis, and rightly. The errors cancel in a quotient.
#
# They do not always. The break-even sets one form's *bandwidth* against the other form's *rate*, and these two can be
# off by different factors, as above. And what takes time in both variants without being in the model, such as merging,
# pulls a measured gain towards 1. Figure 8's "up to 2×", where your model said 3.2, may be such a case; the paper does
# not break it down.
#
# ### With a faster absorbed kernel
#
# FlashMLA is a faster absorbed kernel. It was timed on the same kind of GPU with 4096 tokens for each sequence
# (`benchmarks/decode_h100.json`). They are each sequence's own, and so it reads more than the lesson's kernels. The
# next cell sets it against naive over a shared prefix of as many, and reads the crossing as before.

# %%
FLASHMLA_US = "{{flash_mla}}"  # B: microseconds, DeepSeek-V3
naive_us = {B: micros for B, micros, _ in H100_ROWS["DeepSeek-V3"]}
rows = [[B, naive_us[B], micros] for B, micros in FLASHMLA_US.items()]
for B, *times in rows:
    print(f"B = {B:3}: naive {times[0]:.0f} µs, FlashMLA {times[1]:.0f} µs")
again = read_measurements(rows, 1, 4096, sizes, 2)["crossover"]
print(f"crossing {again:.0f}, with the absorbed kernels above {readings['DeepSeek-V3']['crossover']:.0f}")

# %% [markdown]
# At B = 32 naive loses{{!loses_at_32}}, at B = 128 it wins{{!wins_at_128}}. The crossing is at
# {{flash_mla_crossing}}, on a straight line between batches that lie far apart. That is nearer to the ceilings'
# {{batch}}{{!nearer}}, as it should be: FlashMLA reaches {{flash_mla_rate}} TFLOP/s at B = 128, where the kernels
# above came to {{reached}} at most. The break-even moved *up*.
#
# ### Contexts of their own
#
# To be complete: decode without sharing, DeepSeek-V3, 4096 own tokens per sequence, from the same run.

# %%
H100_OWN = "{{own}}"  # B: naive and absorb in microseconds
for B, times in H100_OWN.items():
    for form, micros in zip(FORMS, times, strict=True):
        step = step_time(form, B, 1, 4096, 0, sizes, **by_ceilings)
        model_us = 1e6 * step["seconds"]
        share = f"reached {model_us / micros:.0%} of it"
        print(f"B = {B:2} {form:6}: {micros:7.1f} µs, roofline {model_us:7.1f} µs ({step['bound']}), {share}")

# %% [markdown]
# Naive comes to 94 % of its roofline and better{{!ninety_four}}: large, even reads are what the model describes best.
# Absorb is bound by memory in the model, {{ridge}} FLOP per byte being the measured ridge and 242 its intensity. In
# truth it waits for its arithmetic: no more than {{reached}} of {{rate}} TFLOP/s, see above. Near a ridge the second
# pipe is always close behind.
#
# Still, no error in these tables would change the choice for own contexts: {{own_ratio}} times slower stays slower.
# **Use a roofline for decisions with a margin, and a clock for the rest.**

# %% [markdown]
# ## In the field
#
# **The sparse figure.** Someone asked FlashMLA's authors why they compare with 990 TFLOP/s when the H800 is said to
# do 1979 (deepseek-ai/FlashMLA#75). PyTorch Lightning's own table of peaks held dense figures for the H100 SXM and
# sparse ones for the H200, so utilisation changed by a factor of two from one chip to the other
# (Lightning-AI/pytorch-lightning#21743).
#
# **GB/s as a yardstick for compute-bound work.** A user measured FlashMLA on an H20, with 64 heads, S = 3, B = 128
# and contexts of 8192 tokens, and asked how to raise its 129 TFLOP/s and 370 GB/s (deepseek-ai/FlashMLA#30). An H20
# has 4 TB/s and 148 TFLOP/s (figures from Dao-AILab/flash-attention#1310). Ask your model.

# %%
h20 = dict(itemsize=2, rate=148e12, bandwidth=4e12)
step = step_time("absorb", 128, 3, 8192, 0, kimi, **h20)
nbytes = 2 * prefix_costs(128, 3, 8192, 0, **kimi)["absorb_words"]
gb_per_s = nbytes / step["seconds"] / 1e9
print(f"H20: bound by {step['bound']}, at best {1e3 * step['seconds']:.2f} ms, which would be {gb_per_s:.0f} GB/s")
print(f"measured 3.407 ms: {1e3 * step['seconds'] / 3.407:.0%} of the roofline")
print(f"break-even batch of an H20: {break_even(1, **sizes, **h20):.1f}")

# %% [markdown]
# The kernel was at 87 % of what the chip can do. Bound by arithmetic, it could have shown 408 GB/s at the very best,
# a tenth of the bandwidth; moving fewer bytes would not have made it faster. On a chip with such a low ridge a shared
# prefix pays from 11 sequences on.
#
# **Heads that are not there.** With tensor parallelism a GPU has few heads, and many absorbed kernels are written for
# 64 heads or more. For a later DeepSeek model one serving engine padded 32 heads to 128 (sgl-project/sglang#27954),
# another 8 to 64 (vllm-project/vllm#48047). Padded heads are multiplied and thrown away. In your equation absorb's
# arithmetic grows by the padding, and naive's reading does not.

# %%
for heads, padded in ((32, 128), (32, 64), (8, 64)):
    moved = plain * heads / padded
    print(f"{heads:2} heads padded to {padded:3}: break-even {moved:4.1f} instead of {plain:.0f}")

# %% [markdown]
# **A threshold in the code.** TyphoonMLA falls back to absorb below "a predefined threshold" of the batch. Equation 1
# is a good first value. The condition also depends on S, on the word size, on padding, and on the two kernels that
# will run, and a new release of either moves it. Measure it where it runs.
#
# ## What to take along
#
# - A shared prefix is read once and computed with B·S times. Both intensities grow with the batch; without sharing,
#   neither does.
# - Naive reads 71 times more and computes 3.4 times less (DeepSeek-V3). Over a shared prefix it wins beyond $B_\theta =
#   \frac{\text{itemsize}}{2S} \cdot \frac{D_n + D_r + D_v}{2R + D_r} \cdot \frac{\text{rate}}{\text{bandwidth}}$: 61 on
#   the paper's NPU, {{sheet_batch}} on an H100 by its data sheet, {{batch}} by measured ceilings; measured here,
#   between 32 and 48{{!in_between}}.
# - For own tokens, absorb wins at every batch, until hundreds of new tokens arrive at once.
# - A roofline leaves out the rates kernels reach, tiles, launches, caches and the exponential. It decides where the
#   margin is wide. Say which ceilings a prediction is from.
# - Lesson 09 builds the kernel that your `choose_forms` asks for.
#
# Figures: {{records}}.
