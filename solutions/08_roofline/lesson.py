# %% [markdown]
# # Lesson 08: roofline, naive versus absorb
#
# Lesson 03 ended with a rule: absorb for decoding, naive for prefill. Where several sequences *share* the
# beginning of their context, the rule has an exception. Every request to a service starts with the same system
# prompt; one of Claude-4 has 26,472 tokens (table 2 of the TyphoonMLA paper, arXiv:2509.21081). With 20 such
# requests in a batch, is it faster to read the prompt expanded, or latent? With 200? This lesson answers by
# calculation, and then compares with measurements. It takes about three hours and needs no GPU.
#
# | exercise | you write | points |
# |---|---|---|
# | `prefix_costs` | MACs and words of both forms, with a shared prefix | 4 |
# | `break_even` | the batch from which naive wins, on any device | 3 |
# | `predict_crossovers` | this batch on the paper's NPU and on an H100 | 3 |
# | `step_time` | time and bound of a decode step, by the roofline | 3 |
# | `choose_forms` | which form for which part of the context | 4 |
# | `read_measurements` | crossover and rates from a measured table | 3 |
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
# A **word** is one stored number of `itemsize` bytes. A **MAC** is one multiply-accumulate, two FLOPs. **naive**:
# keys and values of all heads are *stored expanded*, as multi-head attention reads them. **absorb**: attention
# straight from the latent cache. Both are attention alone, as in the paper: the expansion was paid at prefill,
# and absorb's two small projections (lesson 03) are left out. Each exercise may take 10 s and 512 MiB for all its
# cases.

# %% setup="imports"
from autograder import check

# %% [markdown]
# ## Why: what a batch shares
#
# Arithmetic intensity is FLOPs per byte moved. Left of a device's ridge the memory decides, right of it the
# arithmetic (lesson 00). The picture shows both forms as the batch grows, for DeepSeek-V3 in 16-bit words. The
# paper measures on an NPU, a Huawei Ascend.

# %%
from mla_ref import DEVICES, MLAConfig, attention_cost, plots

v3, h100, ascend = MLAConfig.preset("deepseek_v3"), DEVICES["h100"], DEVICES["ascend_910b"]
FORMS, batches, panels = ("naive", "absorb"), [2**n for n in range(11)], {}
ridges = {"ridge of an H100": h100.ridge(), "ridge of the paper's NPU": ascend.ridge()}
for title, shared in (("all 4096 tokens shared", 4096), ("4096 tokens of its own", 0)):
    cost = lambda form, B, L=shared: attention_cost(form, v3, batch=B, context=4096, shared_prefix=L).intensity
    lines = {form: (batches, [cost(form, B) for B in batches]) for form in FORMS}
    panels[f"each sequence: {title}"] = lines | {name: (batches, [x] * 11) for name, x in ridges.items()}
plots.curves(panels, xlabel="batch B", ylabel="FLOP per byte", log="xy", dotted=list(ridges))

# %% [markdown]
# Right: without sharing, a batch changes nothing. Every sequence brings its own bytes and its own FLOPs: 1 FLOP
# per byte for naive, 242 for absorb.
#
# Left: what is shared is read once and multiplied with the queries of all B sequences, so both intensities grow.
# From the second sequence on, absorb is beyond both ridges: its arithmetic decides, which sharing does not
# reduce. Naive does 3.4 times *less* arithmetic per query (lesson 03) and climbs towards the ridge. Somewhere on
# the way it becomes the faster one.

# %% [markdown]
# ## Build: MACs and words with a shared prefix
#
# Count one decode step of one layer for the whole batch. What one pair of query and context token costs, and what
# one stored token holds, is your `predict_macs` of lesson 03.
#
# - **MACs**: every one of the B·S query tokens meets every one of its T context tokens, shared or not. The causal
#   mask among the S new tokens saves nothing here.
# - **words**: every *stored* context token is read once, whatever number of queries multiplies with it. L tokens
#   are stored once for the batch, T − L for each sequence.
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
# The digits agree (0.56 is 576/1024 = 0.5625). Table 1 has a third row, TyphoonMLA, which takes the naive numbers
# for the prefix and the absorbed ones for the rest. You will find that row yourself below. (Algorithm 1 of the
# paper gives the shared cache the shape [B, L, D_qk], with a batch and without heads; Table 1 counts L·H·D_qk
# words. Table 1 is right.)

# %% [markdown]
# ## Predict: the break-even batch
#
# Take the prefix alone, T = L. Two times matter:
#
# - naive, small batch: **reading** L·H(Dn+Dr+Dv) words. It takes the same time for any B.
# - absorb: **computing** B·S·L·H(2R+Dr) MACs. It grows with B.
#
# Absorb gets slower with every sequence, and naive does not. The two times are equal at the break-even batch
# $B_\theta$. The paper prints (equation 1), with throughput $T$ and memory bandwidth $M$:
#
# $$\frac{L_s H (D_{qk} + D_v)}{M} = \frac{B_\theta S_q L_s H (2D_l + D_r)}{T} \;\Longrightarrow\;
# B_\theta = \frac{D_{qk} + D_v}{S_q (2D_l + D_r)} \cdot \frac{T}{M}$$
#
# Look at the units. On the left words are divided by bytes per second, on the right MACs by operations per
# second. Each side then lacks a factor of 2 when a word has two bytes, and the twos cancel. With 8-bit or 32-bit
# words they do not. Write the equation with `itemsize` bytes per word and 2 FLOPs per MAC.
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
# One line: the reading time over the computing time. `prefix_costs(1, S, S, S, H, Dn, Dr, Dv, R)` has both counts, if
# you prefer to use it.
#
# </details>

# %% solution="break_even"
def break_even(S, H, Dn, Dr, Dv, R, itemsize, rate, bandwidth):
    """Return the batch at which reading the prefix expanded takes as long as absorb's arithmetic over it.

    S: int, new tokens per sequence; H, Dn, Dr, Dv, R: int, the layer's sizes; itemsize: int, bytes of a
    cached word; rate: FLOP/s; bandwidth: bytes/s.

    Returns a float: naive is faster for larger batches. Some arguments cancel.
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
# **Why only these two times?** Each form has two, so four could matter. At the break-even naive has fewer MACs
# than absorb, so its reading is the longer of its two times. Absorb reads fewer words than naive (576 a token
# against 40960), so its arithmetic is the longer of its two. (Where a device holds a single head, naive has 320
# words a token and wins at every batch.)

# %% [markdown]
# ## Predict: 61, and two numbers for an H100
#
# Now the prediction. DeepSeek-V3, one new token, 16-bit words. From which batch on is naive faster over the prefix?
#
# | device | rate | bandwidth | where the figures come from |
# |---|---|---|---|
# | Ascend NPU | 376 TOPS/s in FP16 | 1.8 TB/s | TyphoonMLA, sections 3.2 and 4 |
# | H100 SXM, **data sheet** | 1,979 TFLOP/s in bfloat16, "with sparsity" | 3.35 TB/s | NVIDIA |
# | H100 SXM, **measured** | {{rate}} TFLOP/s, 8192³ product | {{copy}} GB/s, copy, read + written | `mla_ref.DEVICES` |
#
# A data sheet says what a chip could do at its nominal clock. A measured ceiling says what a plain
# copy and a plain product reached. A prediction should say which of the two it is from, so give both.
#
# Each entry may be off by 2 %. `break_even` may be called; the grader supplies a right one.
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
# The paper prints 61 for its NPU. For its GPU, "1 PetaFLOPS/s" and 3.3 TB/s, it prints none; the same equation
# gives 89.
#
# This lesson calculates with the measured row of the table throughout. A later run of the same two ceilings, on
# another H100 of the same type, came to {{again_rate}} TFLOP/s and {{again_bandwidth}} GB/s
# (`benchmarks/ceilings_h100.json`), which gives {{again_batch}} instead of {{batch}}. The rate of a large product
# depends on the chip, its temperature and its power: take the last digit lightly.
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
# Neither the hidden size nor the number of heads is in the equation. Kimi K2 and DeepSeek-V2-Lite have DeepSeek-V3's
# Dn, Dr, Dv and R, so they have the same bars. What matters is the device's ridge. The H200 computes as the H100
# does and reads faster, so its bar is shorter: 61.
#
# Speculative decoding with S = 4 divides every bar by four: then 22 sequences are enough on an H100, by the data
# sheet.

# %% [markdown]
# ## Build: the time of a step
#
# The roofline of one step: the longer of two times, and which of them it was. Use `prefix_costs`; the grader
# supplies a right one.
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
# Another L would scale the vertical axis.

# %%
kimi = sizes | dict(H=64)
paper = dict(itemsize=2, rate=400e12, bandwidth=1.8e12)
layers, batches = {"DeepSeek-V3": sizes, "Kimi K2": kimi}, [2**n for n in range(11)]

panels = {}
for name, layer in layers.items():
    steps = {form: [step_time(form, B, 1, 4096, 4096, layer, **paper) for B in batches] for form in FORMS}
    panels[name] = {form: (batches, [step["tokens_per_s"] for step in each]) for form, each in steps.items()}
    first = next(B for B, step in zip(batches, steps["absorb"], strict=True) if step["bound"] == "compute")
    gain = steps["naive"][-1]["tokens_per_s"] / steps["absorb"][-1]["tokens_per_s"]
    print(f"{name}: absorb is flat from B = {first} on; at B = 1024 naive is {gain:.1f} times as fast")
limit = {"break-even": break_even(1, **sizes, **paper)}
plots.curves(panels, xlabel="batch B", ylabel="query tokens/s, one layer", log="xy", verticals=limit)

# %% [markdown]
# The same as in the paper: absorb is flat from the first sequence on for DeepSeek-V3 and from the second for Kimi
# K2, naive overtakes it beyond 64, and ends 3.4 times higher. How flat depends on the device. On an H100 the
# ridge is 295, and DeepSeek-V3's absorb has 242 FLOP per byte with one query per token: **bound by memory,
# barely**. Without a shared prefix it stays there for every batch.

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
# those of its figure 8 are 4096 shared tokens and, as we read its "query length", 128 own ones.

# %%
npu = dict(itemsize=2, **half_precision(ascend))
L, own, batches = 4096, 128, [2**n for n in range(3, 11)]


def part_ms(form, B, tokens, prefix):
    return 1e3 * step_time(form, B, 1, tokens, prefix, sizes, **npu)["seconds"]


shared = {form: [part_ms(form, B, L, L) for B in batches] for form in FORMS}
apart = {form: [part_ms(form, B, own, 0) for B in batches] for form in FORMS}
both = {form: [x + y for x, y in zip(shared[form], apart[form], strict=True)] for form in FORMS}
choices = {B: choose_forms(B, 1, L + own, L, sizes, **npu) for B in batches}
both["chosen by part"] = [1e3 * choice["seconds"] for choice in choices.values()]
titles = {f"shared part, {L} tokens": shared, f"own part, {own} tokens": apart, "both": both}
panels = {title: {form: (batches, ms) for form, ms in each.items()} for title, each in titles.items()}
for B in (64, 128, 512):
    choice, absorb = choices[B], both["absorb"][batches.index(B)]
    times = f"{1e3 * choice['seconds']:.2f} ms, absorb for both {absorb:.2f} ms"
    gain = f"{absorb / 1e3 / choice['seconds']:.1f} times as fast"
    print(f"B = {B:3}: shared {choice['shared']}, own {choice['own']}: {times}, {gain}")
print(f"naive's shared part leaves its flat stretch at B = {ascend.ridge():.0f}")
plots.curves(panels, xlabel="batch B", ylabel="milliseconds", log="xy", dotted=["chosen by part"])

# %% [markdown]
# Three statements of the paper, checked against your model:
#
# - Naive's shared part is flat "until the batch size of 128". The knee is at the ridge, 209; 128 is the last
#   power of two before it.
# - The own part is faster in absorb at every batch. Its intensity in naive is 1 FLOP per byte (the right panel of
#   the first picture), and absorb reads 71 times less.
# - At B = 512 the choice is 3.2 times as fast as absorb for both parts. The paper measured "up to 2×" there (figure 8).
#
# The chosen row is Table 1's third. Below the break-even the prefix is absorb: TyphoonMLA is then the absorbed
# kernel.
#
# ## Explore
#
# The same two pictures for any layer and device. H is the number of heads *on one device*: tensor parallelism
# over four GPUs leaves 32 of DeepSeek-V3's 128 heads to each, with the whole latent. Words and arithmetic may
# have different types: an 8-bit cache that is multiplied in 16 bits halves the bytes and leaves the FLOP/s alone;
# 8 bits in both also doubles the rate, where a device can.

# %%
from IPython.display import display

PRECISIONS = {"16 bits": (2, False), "8-bit cache, 16-bit arithmetic": (1, False), "8 bits in both": (1, True)}


def ceilings(device, precision):
    """Return itemsize, rate and bandwidth by data sheet, or None where a device has no rate in float8."""
    itemsize, narrow = PRECISIONS[precision]
    dtypes = [name for name in device.flops if name.startswith("float8")] if narrow else [device.half_dtype]
    return dict(itemsize=itemsize, rate=device.rate(dtypes[0]), bandwidth=device.bandwidth()) if dtypes else None


def explorer(device="h100", precision="16 bits", B=128, S=1, H=128, L=4096, own=256):
    """Show throughput over the batch, and times at one batch, for heads as wide as DeepSeek-V3's."""
    limits, layer, line = ceilings(DEVICES[device], precision), sizes | dict(H=H), [2**n for n in range(11)]
    if limits is None:
        print(f"{DEVICES[device].name} has no rate in float8")
        return
    step = lambda form, n, tokens, prefix: step_time(form, n, S, tokens, prefix, layer, **limits)
    rates = {form: (line, [step(form, n, L, L)["tokens_per_s"] for n in line]) for form in FORMS}
    batch = break_even(S, **layer, **limits)
    title, limit = f"prefix of {L} tokens, S = {S}", {f"break-even: {batch:.1f}": batch}
    display(plots.curves({title: rates}, xlabel="batch B", ylabel="query tokens/s", log="xy", verticals=limit))
    choice = choose_forms(B, S, L + own, L, layer, **limits)
    forms = {form: (form, form) for form in FORMS} | {"chosen": (choice["shared"], choice["own"])}
    rows = {
        name: {"shared": 1e6 * step(one, B, L, L)["seconds"], "own": 1e6 * step(two, B, own, 0)["seconds"]}
        for name, (one, two) in forms.items()
    }
    title = f"B = {B}, H = {H}: prefix {choice['shared']}, own {choice['own']}"
    display(plots.stacked(rows, unit="microseconds", title=title))


explorer()

# %% [markdown]
# Call `explorer` with other values, or move the sliders below if you have ipywidgets. Try:
#
# 1. H from 128 to 16: the break-even does not move. What does?
# 2. "8-bit cache, 16-bit arithmetic": which way does the break-even go, and why does "8 bits in both" bring it
#    back?
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
# 4. At B = 128 the choice gains 1.43 over absorb for both parts, as two kernels, with 256 own tokens, and 1.17 with
#    4096.
#
# </details>

# %%
try:
    from ipywidgets import Dropdown, IntSlider, SelectionSlider, interact
except ImportError:
    print("no ipywidgets here: call explorer(B=..., H=..., device=...) instead")
else:
    powers = lambda low, high, value: SelectionSlider(options=[2**n for n in range(low, high)], value=value)
    interact(
        explorer, device=Dropdown(options=list(DEVICES), value="h100"), precision=list(PRECISIONS),
        B=powers(0, 11, 128), S=IntSlider(value=1, min=1, max=8), H=powers(2, 8, 128), L=powers(8, 16, 4096),
        own=powers(4, 14, 256),
    )

# %% [markdown]
# ## Measure: both forms on this machine
#
# The prefix alone, 16 heads of DeepSeek-V3's widths, 8192 tokens in float32, on one thread. The queries of all B
# sequences are rows of one matrix: per head for naive, of all heads together for absorb. First the prediction.

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

lines = {f"{form}, measured": (batches, measured[form]) for form in FORMS}
for form in FORMS:
    model = [1e3 * step_time(form, B, 1, L, L, few, **here)["seconds"] for B in batches]
    lines[f"{form}, roofline"] = batches, model
torch.set_num_threads(threads)
for B, naive_ms, absorb_ms in zip(batches, *measured.values(), strict=True):
    print(f"B = {B:2}: naive {naive_ms:6.1f} ms, absorb {absorb_ms:6.1f} ms")
plots.curves(
    {"prefix of 8192 tokens, 16 heads, float32, one CPU thread": lines},
    xlabel="batch B", ylabel="milliseconds", log="xy", dotted=[label for label in lines if "roofline" in label],
    verticals={"predicted break-even": break_even(1, **few, **here)},
)

# %% [markdown]
# Where the lines cross depends on your machine and on what else it does. In seven runs on servers the prediction
# was between 1.5 and 12, and the lines crossed between B = 4 and 17. The rest of the picture says why. At B = 1
# naive is a product of a matrix and a vector per head, which reaches another bandwidth than a copy. The softmax,
# which neither count contains, makes passes of its own over the scores.
#
# ## Measure: on your GPU, if there is one
#
# The same on a GPU with a 4096-token prefix and all 128 heads: for naive PyTorch's
# `scaled_dot_product_attention`, for absorb the decode kernel of `mla_ref` with tensor descriptors, in 16 bits.
# Queries of all sequences are folded into one, so both kernels know that the prefix is shared. `bench` empties
# the L2 cache before each call. The long wait in `clock` fills the GPU's queue, or the time of a short kernel
# would be the time that Python takes to start it: for absorb with 128 heads and B = 1 over 8192 tokens
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
# The rows were measured on an {{crossover_h100.device}} (`benchmarks/crossover_h100.json`): bfloat16, a prefix of
# 4096 tokens, one new token per sequence, L2 emptied before each call. Each number is the median of seven rounds; of
# a fastest call the slowest round took at most 3 % longer than the fastest{{!rounds_together}}. Each form has the
# fastest of several calls: for naive cuDNN's attention, whole or in parts; for absorb the decode kernels of
# `mla_ref`, and two cuBLAS products with a softmax between them. All were first compared with `mla_ref.naive` in
# float64. The clock shows {{empty_us}} µs for a kernel that does nothing.

# %%
# B, naive and absorb in microseconds
H100_ROWS = "{{rows}}"

by_ceilings = dict(itemsize=2, **half_precision(h100, measured=True))
panels = {}
for name, rows in H100_ROWS.items():
    lines, batches = {}, [B for B, *_ in rows]
    for column, form in enumerate(FORMS, 1):
        lines[f"{form}, measured"] = batches, [row[column] for row in rows]
        model = [1e6 * step_time(form, B, 1, 4096, 4096, layers[name], **by_ceilings)["seconds"] for B in batches]
        lines[f"{form}, roofline"] = batches, model
    panels[f"{name}, H100, prefix of 4096 tokens"] = lines
dotted, limit = ["naive, roofline", "absorb, roofline"], {"predicted": break_even(1, **sizes, **by_ceilings)}
plots.curves(panels, xlabel="batch B", ylabel="microseconds", log="xy", dotted=dotted, verticals=limit)

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
# 48{{!between_32_and_48}}.) A fall-back that switches at {{batch}} would choose wrongly for every batch between.
# The equation is right. The two numbers that went into it are not those of the kernels.
#
# ## Where the model is wrong, and why
#
# **1. Rates are those of kernels, not of devices.** With the rates that both kernels reached, the equation says
# {{reached_batch}} for DeepSeek-V3. Absorb falls further short of the product's {{rate}} TFLOP/s than naive does
# of the copy's {{copy}} GB/s{{!further_short}}: a query of 576 and an accumulator of 512 per row leave little
# room on the chip for anything else (lesson 06). FlashMLA, a faster absorbed kernel, reaches {{flash_mla_rate}}
# TFLOP/s at B = 128, where the kernels above came to {{rate_128}}. It takes {{flash_mla_32_us}} µs at
# B = 32 and {{flash_mla_128_us}} µs at 128, though its 4096 tokens were each sequence's own. On a straight line
# between these it crosses naive's {{naive_32_us}} to {{naive_128_us}} µs at {{flash_mla_crossing}}: nearer to the
# ceilings' {{batch}}{{!nearer}}.
#
# **2. Work comes in whole tiles.** The next cell has the absorb line again, on straight axes: a staircase. The
# kernel gives 64 rows, each a head of a query, to one program, and a multiprocessor runs one program at a time.
# DeepSeek-V3 needs 2·B programs, and the H100 has 132 multiprocessors.

# %%
rows = [row for row in H100_ROWS["DeepSeek-V3"] if row[0] <= 192]
batches = [B for B, *_ in rows]
lines = {f"{form}, measured": (batches, [row[n] for row in rows]) for n, form in enumerate(FORMS, 1)}
model = [1e6 * step_time("absorb", B, 1, 4096, 4096, sizes, **by_ceilings)["seconds"] for B in batches]
lines["absorb, roofline"] = batches, model
limits = {"132 programs": 66}
title = "DeepSeek-V3, prefix of 4096 tokens"
plots.curves({title: lines}, xlabel="batch B", ylabel="microseconds", dotted=["absorb, roofline"], verticals=limits)

# %% [markdown]
# The kernel splits the context where more programs fill rounds of 132 better; each split costs a merge. The programs
# are then 2·B·splits. With 32 sequences 64 programs become 128 in two splits: one round, over half of the context. With
# 48 sequences, two splits would make 192 programs: one round and a part of another. The kernel takes four, 384
# programs: three rounds over a quarter{{!rounds}}. That is nearly as long as 64 sequences take, 128 programs over all
# of it{{!nearly_as_64}}. With 80 there are 160 programs, more than fit at once. The crossing falls onto the rise from
# 32 to 48, where the rate drops from {{rate_32}} to {{rate_48}} TFLOP/s. Far out it is {{reached}}. Naive has tiles
# too: any batch up to 128 takes about the same time{{!same_time}}, and a larger one more, where the roofline is still
# flat.
#
# **3. Starting costs time.** At B = 1 absorb takes {{absorb_1_us}} µs where the model says less than
# 2{{!less_than_2}}: many short programs, then a second launch that merges them. The two lines cannot cross down
# there. With a short prefix they could.
#
# **4. Caches.** The model counts bytes of DRAM. The latent prefix is 4.7 MB, and the L2 holds 50 MB. So a kernel that
# does *not* know that the prefix is shared reads it B times, which the L2 can serve: `latent_attention` takes
# {{each_us}} µs when it does so, at B = 128, and {{folded_us}} µs with the queries of all sequences folded over one
# prefix{{!nearly_alike}}. (That is the slower of `mla_ref`'s two kernels. The faster one, `latent_attention_tma`, takes
# {{tma_us}} µs folded, and was not timed the other way.)
#
# **5. The exponential.** Each pair of query head and token needs one, in both forms, and the count leaves it out.
# An H100 does 3.9 · 10¹² of them a second (FlashAttention-3 paper, arXiv:2407.08608). By the data sheet they take
# {{exp_naive}} % of the time of the products in naive, and {{exp_absorb}} % in absorb. Good kernels overlap the
# two.
#
# **Contexts of their own.** Decode without sharing, DeepSeek-V3, 4096 own tokens per sequence, beside the
# roofline of measured ceilings:
#
# {{own}}
#
# Naive comes to 94 % of its roofline and better{{!ninety_four}}: large, even reads are what the model describes
# best. Absorb is bound by memory in the model, with 242 FLOP per byte below the measured ridge of {{ridge}}; at
# the {{reached}} TFLOP/s that this kernel reaches, its arithmetic takes longer than its reading. Sharing gains it
# something, but little: 64 sequences take {{own_64}} µs with contexts of their own and {{shared_64}} µs with a
# shared one, where naive goes from {{naive_own_64}} to {{naive_shared_64}}.
#
# No error in these tables would change the choice for own contexts: at B = 64 the naive form is {{own_ratio}} times
# slower.
# **Use a roofline for decisions with a margin, and a clock for the rest.**
#
# ## What to take along
#
# - A shared prefix is read once and computed with B·S times. Both intensities grow with the batch; without
#   sharing, neither does.
# - Naive reads 71 times more and computes 3.4 times less (DeepSeek-V3). Over a shared prefix it wins beyond
#   $B_\theta$: 61 on the paper's NPU, {{sheet_batch}} on an H100 by its data sheet, {{batch}} by measured
#   ceilings; measured here, between 32 and 48{{!in_between}}.
# - For own tokens, absorb wins at every batch, as long as a sequence has fewer than $B_\theta$ new tokens at once.
# - A roofline leaves out the rates kernels reach, tiles, launches, caches and the exponential. Say which ceilings
#   a prediction is from.
# - Lesson 09 builds the kernel that your `choose_forms` asks for.
#
# Figures: {{records}}.

# %% [markdown]
# <details><summary>Appendix: the paper's measurement, and what went wrong elsewhere</summary>
#
# **Peak figures, and why ratios survive.** The paper measured its NPU in figure 4: Kimi K2, 4096 shared and 512
# own tokens, B = 1024.
#
# {{npu}}
#
# The 5.37 ms are the paper's estimate: 6.43 ms for all of absorb, less 1.06 for the own part.
# The times are three to four times the model's, and the gains agree with it: over the prefix {{npu_prefix}}, over
# both parts {{npu_both}}. The errors cancel in a quotient. They do not always. The break-even sets one form's
# *bandwidth* against the other form's *rate*, and these two can be off by different factors. And what takes time
# in both variants without being in the model, such as merging, pulls a measured gain towards 1.
#
# **The sparse figure.** Someone asked FlashMLA's authors why they compare with 990 TFLOP/s when the H800 is said
# to do 1979 (deepseek-ai/FlashMLA#75). PyTorch Lightning's own table of peaks held dense figures for the H100 SXM
# and sparse ones for the H200, so utilisation changed by a factor of two from one chip to the other
# (Lightning-AI/pytorch-lightning#21743).
#
# **GB/s as a yardstick for compute-bound work.** A user measured FlashMLA on an H20, with 64 heads, S = 3, B =
# 128 and contexts of 8192 tokens, and asked how to raise its 129 TFLOP/s and 370 GB/s (deepseek-ai/FlashMLA#30).
# An H20 has 4 TB/s and 148 TFLOP/s (figures from Dao-AILab/flash-attention#1310). By your model the step is bound
# by arithmetic and takes {{h20_ms}} ms at best, which would be {{h20_gb}} GB/s. The user's 3.407 ms are
# {{h20_share}} % of that speed. Moving fewer bytes would not have made it faster. On a chip with such a low ridge
# a shared prefix pays from a batch of {{h20_batch}} on, with one new token each.
#
# **Heads that are not there.** With tensor parallelism a GPU has few heads, and many absorbed kernels are written
# for 64 heads or more. One serving engine padded 32 heads to 128 (sgl-project/sglang#27954), another 8 to 64
# (vllm-project/vllm#48047). In your equation absorb's arithmetic grows by the padding, and naive's reading does
# not: the break-even moves from {{batch}} to {{padded_4}}, and to {{padded_8}}.
#
# **A threshold in the code.** TyphoonMLA falls back to absorb below "a predefined threshold" of the batch.
# Equation 1 is a good first value. The condition also depends on S, on the word size, on padding, and on the two
# kernels that will run.
#
# </details>
