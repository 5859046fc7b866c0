# %% [markdown]
# # Lesson 06: flash decoding
#
# A decode step has one new query per sequence and a long cache. Lesson 03 gave its mathematics, `latent_attention`.
# Lesson 05 fused the scores, and then the softmax, and wrote both to memory. In this lesson nothing of the size of the
# scores is written any more: one kernel reads the cache once and leaves the result. This is **flash decoding**.
#
# That kernel then shows the next limit. Each sequence is one program, and an H100 has 132 multiprocessors. A single
# sequence keeps one of them busy. So you split the context, run the parts side by side, and combine them.
#
# | exercise | you write | points right | points fast |
# |---|---|---|---|
# | `predict_splits` | programs, and the bytes that a split costs | 2 | |
# | `online_update` | online softmax in PyTorch: one block into the state | 3 | |
# | `latent_decode` | the decode kernel | 4 | 3 |
# | `split_decode` | the same for a part of the context: split-KV | 4 | 3 |
# | `combine_splits` | partial results into one | 3 | 2 |
# | `predict_fold` | how many query tokens share a block | 2 | |
# | `folded_decode` | several query tokens, folded into the heads | 4 | 3 |
#
# Kernels are graded for the answer and for the time they would take on an H100, as before. The limits of an exercise
# are 10 s and 512 MiB for all its cases.
#
# | symbol | meaning | DeepSeek-V3 |
# |---|---|---|
# | B, S, T | sequences, new query tokens per sequence, tokens of context, the new ones included | |
# | H | heads | 128, or fewer where several GPUs share them |
# | R, Dr | width of the latent, and of the part with position (RoPE) | 512, 64 |
#
# | tensor | shape | what it is |
# |---|---|---|
# | `q_latent`, `q_rope` | [B, H, R], [B, H, Dr] | absorbed query (lesson 03), and its rotated part; S = 1 at first |
# | `c_kv`, `k_rope` | [B, T, R], [B, T, Dr] | the cache: latents, and rotated keys, shared by all heads |
# | `seq_lens` | [B], int32 | how many tokens of each sequence count, 0 to T |
# | out, lse | [B, H, R], [B, H] | result, still to be multiplied by W_UV, and natural log-sum-exp in float32 |
#
# Sources: TokenSpeed-MLA (its decode is two kernels, split-KV and a reduction, and it folds query tokens into heads);
# the name and the split are from *Flash-Decoding for long-context inference* (Dao, Haziza, Massa, Sizov, 2023).

# %% setup="imports"
import math

import torch
from autograder import check, check_speed
from mla_ref.hardware import emulator

emulated = emulator.prepare()  # whether kernels run on the CPU, for lack of a GPU

import triton
import triton.language as tl

device = "cpu" if emulated else "cuda"
# KiB of shared memory for a program; without a GPU, those of the H100 that kernels are graded for
limits = {"max_shared_mem": 227 * 1024} if emulated else triton.runtime.driver.active.utils.get_device_properties(0)
shared_kib = limits["max_shared_mem"] // 1024


def block_sizes(rows):
    """Return rows and tokens of a block, and stages, for so many rows: what shared memory has room for."""
    if shared_kib < 96:  # T4, MI300X
        return 8, 16, 1
    most = 64 if shared_kib > 160 else 16  # A100, H100, B200
    block = min(max(triton.next_power_of_2(rows), 16), most)
    return block, 64 if block <= 32 else 32, 2


# %% [markdown]
# ## Why: scores need not exist
#
# The decode step of lesson 03, as PyTorch runs it:

# %%
def eager_decode(q_latent, q_rope, c_kv, k_rope, seq_lens, scale):
    scores = (q_latent @ c_kv.mT + q_rope @ k_rope.mT).float() * scale  # [B, H, T]
    beyond = torch.arange(c_kv.shape[1], device=scores.device) >= seq_lens[:, None, None]
    scores = scores.masked_fill(beyond, -math.inf)
    lse = scores.logsumexp(-1)
    weights = (scores - lse[..., None]).exp().to(c_kv.dtype)
    return weights @ c_kv, lse


# %% [markdown]
# The recorder of lesson 04 counts its bytes, on tensors without data. The next cell divides them by the tokens of
# context, and tells the cache from everything else.

# %%
import matplotlib.pyplot as plt
from autograder.kernels.worker.recording import recording
from mla_ref import DEVICES, plots
from mla_ref.plots import PALETTE

h100 = DEVICES["h100"]
R, Dr = 512, 64
empty = lambda *shape, dtype=torch.bfloat16: torch.empty(shape, dtype=dtype, device="meta")


def step(B, H, T):
    """The operands of a decode step, without data."""
    seq_lens = empty(B, dtype=torch.int32)
    return dict(
        q_latent=empty(B, H, R), q_rope=empty(B, H, Dr), c_kv=empty(B, T, R), k_rope=empty(B, T, Dr), seq_lens=seq_lens
    )


def bytes_per_token(B, H, T):
    """Bytes of the cache and of the rest that eager_decode moves, per token of context."""
    given = step(B, H, T)
    with recording(given) as recorder:
        eager_decode(**given, scale=1.0)
    names = [storage.get("input") for storage in recorder.storages]
    moved = [pair for event in recorder.events for pair in (*event["reads"], *event["writes"])]
    cache = sum(size for number, size in moved if names[number] in ("c_kv", "k_rope"))
    return cache / (B * T), (sum(size for _, size in moved) - cache) / (B * T)


with plt.rc_context(plots.STYLE):
    _, axes = plt.subplots(figsize=(8, 2.2), layout="constrained")
    cases = {f"eager, H = {H}": bytes_per_token(4, H, 4096) for H in (128, 16)}
    cases["one kernel, any H"] = (2 * (R + Dr), 0)
    for label, (cache, scores) in cases.items():
        axes.barh(label, cache, color=PALETTE[0])
        axes.barh(label, scores, left=cache, color=PALETTE[4])
        axes.text(cache + scores, label, f"  {cache + scores:,.0f}", va="center")
    axes.barh([0], [0], color=PALETTE[0], label="cache")
    axes.barh([0], [0], color=PALETTE[4], label="scores and weights, written and read")
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.set(xlabel="bytes per token of context, bfloat16", title="A decode step of MLA")
    axes.legend(loc="lower right")
    plt.show()

# %% [markdown]
# Even the cache is read twice, once as keys and once as values. A kernel that meets each token once reads 1152 bytes
# for it: 576 words of 2 bytes. For that it must use a token's latent for the score and, at once, as the value, before
# it knows the maximum and the sum of the softmax. Lesson 05 had that difficulty and solved half of it.
#
# ## Why: 132 multiprocessors
#
# All heads of a sequence read the same cache, so they belong into one program: a block of 16 heads, as `tl.dot` wants
# it. A step with B sequences has B · ⌈H/16⌉ programs. A GPU gives each program to one multiprocessor (**SM**), and an
# H100 has 132 of them. The picture has a square for each, coloured if it has something to do.

# %%
def draw_sms(axes, programs, title):
    """132 squares, those with a program in colour."""
    for sm in range(132):
        color = PALETTE[0] if sm < programs else "#EDEDED"
        axes.add_patch(plt.Rectangle((sm % 12, 10 - sm // 12), 0.86, 0.86, facecolor=color))
    axes.set(xlim=(-0.2, 12.1), ylim=(-0.3, 11.2), aspect="equal", title=title)
    axes.axis("off")


_, panels = plt.subplots(1, 4, figsize=(10, 2.8), layout="constrained")
for axes, (B, H) in zip(panels, ((1, 16), (1, 128), (16, 16), (128, 16)), strict=True):
    programs = B * -(-H // 16)
    draw_sms(axes, programs, f"B = {B}, H = {H}\n{programs} program{'s' if programs > 1 else ''}")
plt.show()

# %% [markdown]
# B = 128 is fine. One sequence with 16 heads is not: 131 of 132 SMs watch. And a single SM cannot draw 3.35 TB/s from
# memory, since it waits for each block it asks for. Measured on an H100: 8 sequences of 4096 tokens, one program each,
# take {{one_program_us}} µs (`benchmarks/model_measured.json`, 16 heads in blocks of 64 tokens). Their 38 MB need 11 µs
# at 3.35 TB/s.
#
# The way out is **split-KV**. Cut the context into `num_splits` parts, and give each to a program of its own. A part
# yields its own out and its own lse, which lesson 01 could merge. The price is that these partial results, in float32,
# go to memory and come back.

# %% [markdown]
# ## Predict: programs and partial bytes
#
# Rules:
#
# - a program takes up to 16 heads of one sequence, and one of `num_splits` parts of its context;
# - an SM is busy if it has a program; there are 132;
# - R = 512, Dr = 64; the cache has 2 bytes a number and is read once, as long as all programs that share it meet it in
#   the L2;
# - a partial result is, for each head, R numbers and its lse, in float32. It is written by one kernel and read by the
#   next. With one split there are none: the kernel writes the result itself.
#
# The last number asked for is the point where a split no longer pays in bytes. Fewer tokens in each split mean more
# splits, so more partial results. At how many tokens per split do the partial results move as many bytes as the cache?
#
# <details><summary>Hint 1</summary>
#
# `-(-H // 16)` rounds up. Programs beyond 132 wait for their turn; they make no further SM busy.
#
# </details>
# <details><summary>Hint 2</summary>
#
# One split of one sequence has H partial results of 513 numbers of 4 bytes, and they move twice. That does not depend
# on how many tokens the split has.
#
# </details>
# <details><summary>Hint 3</summary>
#
# One split of n tokens reads n · 1152 bytes of cache. Set this equal to `2 * H * 513 * 4`, and solve for n. Five lines
# in all, one for each number.
#
# </details>


# %% solution="predict_splits"
def predict_splits(B, H, T, num_splits):
    """What a decode step with split-KV runs and moves on an H100.

    B, H, T: int, sequences, heads and tokens of context; num_splits: int, parts of each context.

    Returns a dict of numbers:
      programs       of the decode kernel
      busy_sms       multiprocessors that have at least one
      cache_bytes    of the cache, read once
      partial_bytes  of partial results, written and read; 0 for one split
      even_tokens    tokens in a split at which its partial results, if there are any, move as many bytes as its
                     cache: a float, which does not depend on B, T or num_splits

    The trap: the heads share one cache, but each has partial results of its own.
    """
    ### BEGIN SOLUTION
    programs = B * -(-H // 16) * num_splits
    partial = 2 * B * H * (512 + 1) * 4  # of one split
    return {
        "programs": programs,
        "busy_sms": min(programs, 132),
        "cache_bytes": B * T * (512 + 64) * 2,
        "partial_bytes": num_splits * partial if num_splits > 1 else 0,
        "even_tokens": partial / (B * (512 + 64) * 2),
    }
    ### END SOLUTION


# %% check="predict_splits"
check("predict_splits")

# %% [markdown]
# What you predict, over the number of splits:

# %%
splits = [2**n for n in range(9)]
with plt.rc_context(plots.STYLE):
    _, (left, right) = plt.subplots(1, 2, figsize=(9.5, 3.2), layout="constrained")
    for color, (B, H) in zip(PALETTE, ((1, 16), (16, 16), (1, 128)), strict=False):
        steps = [predict_splits(B, H, 8192, n) for n in splits]
        left.plot(splits, [s["busy_sms"] for s in steps], "o-", color=color, label=f"B = {B}, H = {H}")
    for color, H in ((PALETTE[0], 16), (PALETTE[2], 128)):
        steps = [predict_splits(1, H, 8192, n) for n in splits]
        ratio = [s["partial_bytes"] / s["cache_bytes"] for s in steps]
        even = steps[0]["even_tokens"]
        right.plot(splits, ratio, "o-", color=color, label=f"H = {H}: equal at {even:.0f} tokens a split")
    right.axhline(1, color=PALETTE[1], linestyle="--")
    for axes in (left, right):
        axes.set_xscale("log", base=2)
        axes.set_xlabel("splits")
    left.legend(loc="lower right")
    right.legend(loc="upper left")
    left.set(ylabel="busy SMs of 132", title="T = 8192: what splits gain")
    right.set(ylabel="partial bytes / cache bytes", title="T = 8192: what they cost")
    plt.show()

# %% [markdown]
# For 16 heads there is room: 32 or 64 splits, and the partial results are still a fraction of the cache. For 128 heads
# there is less, and less need, since 8 blocks of heads are 8 programs already.

# %% [markdown]
# ## Online softmax
#
# Lesson 05 kept two numbers per row while it walked along the scores, a running maximum $m$ and a sum $\ell$. It had to
# walk twice, because weights can be written only when the sum is known. But nobody needs the weights. What is needed is
# the weighted sum of the values, and that can be kept relative to the running maximum as well. It is a third part of
# the state, the **accumulator** $o$, a row of R numbers.
#
# A block brings scores $s_t$ and values $v_t$:
#
# $$m' = \max(m, \max_t s_t), \qquad \alpha = e^{m - m'}$$
# $$\ell' = \alpha\,\ell + \sum_t e^{s_t - m'}, \qquad o' = \alpha\,o + \sum_t e^{s_t - m'}\, v_t$$
#
# Begin with $m = -\infty$, $\ell = 0$, $o = 0$. At the end $\text{out} = o / \ell$ and $\text{lse} = m + \ln \ell$. The
# factor $\alpha$ turns every weight from $e^{s - m}$ into $e^{s - m'}$; no score has to be seen again.
#
# (The running sum is from *Online normalizer calculation for softmax*, Milakov and Gimelshein, arXiv:1805.02867.)
#
# ## Exercise: online_update
#
# In PyTorch, one block into the state, for H heads at once:
#
# | | shape | |
# |---|---|---|
# | `m_i` | [H] | maximum so far, −inf at the start |
# | `l_i` | [H] | sum of weights so far |
# | `acc` | [H, R] | weighted sum of values so far, not divided |
# | `qk` | [H, n] | scores of the block; −inf where a head does not see a token |
# | `v` | [n, R] | values of the block, the same for all heads |
# | returns | | new `m_i`, `l_i`, `acc` |
#
# A head may see nothing of a block, and may have seen nothing before. Its maximum is then still −inf, and −inf − (−inf)
# is NaN. In exponents, put 0 in place of such a maximum: all its scores are −inf, and $e^{-\infty - 0} = 0$ is right.
#
# <details><summary>Hint 1</summary>
#
# Six lines: new maximum, a finite stand-in for it, weights, factor, new sum, new accumulator.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `m_new = torch.maximum(m_i, qk.amax(-1))` and `base = m_new.masked_fill(m_new == -math.inf, 0.0)`. Use
# `base` in both exponents, return `m_new`.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `p = torch.exp(qk - base[:, None])`, `alpha = torch.exp(m_i - base)`. Then `l_i * alpha + p.sum(-1)`
# and `acc * alpha[:, None] + p @ v`.
#
# </details>


# %% solution="online_update"
def online_update(m_i, l_i, acc, qk, v):
    """Take one block of tokens into the state of an online softmax.

    m_i, l_i: [H]; acc: [H, R]; qk: [H, n], n >= 1; v: [n, R]. One floating dtype.
    Returns (m_i, l_i, acc) after the block; the arguments stay as they are.

    The traps: sum and accumulator both hold weights under the old maximum; a head that has seen nothing has a
    maximum of -inf.
    """
    ### BEGIN SOLUTION
    m_new = torch.maximum(m_i, qk.amax(-1))
    base = m_new.masked_fill(m_new == -math.inf, 0.0)
    p = torch.exp(qk - base[:, None])  # [H, n]
    alpha = torch.exp(m_i - base)  # [H]
    return m_new, l_i * alpha + p.sum(-1), acc * alpha[:, None] + p @ v
    ### END SOLUTION


# %% check="online_update"
check("online_update")

# %% [markdown]
# The next cell walks along 4096 tokens in blocks of 64. It draws the maximum and the log-sum-exp of what has been seen,
# and how far the result so far is from the softmax over everything.

# %%
torch.manual_seed(6)
H, T = 1, 4096
scores = 2 * torch.randn(H, T, dtype=torch.float64) + torch.linspace(0, 3, T, dtype=torch.float64)
values = torch.randn(T, 8, dtype=torch.float64)
right = scores.softmax(-1) @ values

state = [torch.full((H,), -math.inf, dtype=torch.float64), torch.zeros(H).double(), torch.zeros(H, 8).double()]
maxima, lses, errors = [], [], []
for s, v in zip(scores.split(64, -1), values.split(64), strict=True):
    state = online_update(*state, s, v)
    m_i, l_i, acc = state
    maxima.append(m_i.item())
    lses.append((m_i + l_i.log()).item())
    errors.append(((acc / l_i[:, None] - right).norm() / right.norm()).item())

with plt.rc_context(plots.STYLE):
    _, (left, middle) = plt.subplots(1, 2, figsize=(9.5, 2.8), layout="constrained")
    seen = [64 * (n + 1) for n in range(len(maxima))]
    left.plot(seen, lses, color=PALETTE[0], label="log-sum-exp")
    left.plot(seen, maxima, color=PALETTE[1], drawstyle="steps-post", label="maximum")
    left.set(xlabel="tokens seen", title="The state moves")
    left.legend()
    middle.semilogy(seen, errors, color=PALETTE[2])
    middle.set(xlabel="tokens seen", title="Relative distance from the softmax over all 4096")
    plt.show()
print(f"after the last block: {errors[-1]:.1e}")

# %% [markdown]
# Before the last block the result is that of a softmax over fewer tokens. After it, the result is exact up to rounding.
#
# ## Exercise: latent_decode
#
# The kernel is `online_update` in a loop over blocks of tokens. One program has a block of heads of one sequence. Its
# query stays in registers, and so does its state. Each block of latents is loaded once and used twice.

# %%
from matplotlib.patches import Rectangle

TOKENS, BLOCK, QUERY, STATE = "#EDEDED", PALETTE[4], PALETTE[5], PALETTE[2]


def box(axes, x, y, width, height, color, text="", **look):
    axes.add_patch(Rectangle((x, y), width, height, facecolor=color, edgecolor="#555555", **look))
    axes.text(x + width / 2, y + height / 2, text, ha="center", va="center", fontsize=8.5)


def arrow(axes, start, end, text="", shift=0.0):
    axes.annotate("", end, start, arrowprops=dict(arrowstyle="-|>", color="#555555"))
    if text:
        axes.text((start[0] + end[0]) / 2, (start[1] + end[1]) / 2 + shift, text, ha="center", fontsize=8.5)


_, axes = plt.subplots(figsize=(9.5, 4.1), layout="constrained")
for n in range(9):
    box(axes, 0, 7.2 - 0.9 * n, 3.4, 0.9, BLOCK if n == 3 else TOKENS, "BLOCK_N tokens" if n == 3 else "")
    box(axes, 3.5, 7.2 - 0.9 * n, 0.9, 0.9, BLOCK if n == 3 else TOKENS)
axes.text(1.7, 8.3, "c_kv [T, R]", ha="center", fontsize=9)
axes.text(4.2, 8.3, "k_rope", ha="center", fontsize=9)
arrow(axes, (-0.5, 8), (-0.5, 0.2))
axes.text(-0.8, 4, "loop", rotation=90, va="center", fontsize=9)
box(axes, 7, 6.4, 4, 1.2, QUERY, "q_latent [BLOCK_H, R]")
box(axes, 11.1, 6.4, 1.4, 1.2, QUERY, "q_rope")
box(axes, 7.6, 3.7, 3.6, 1.2, "#FFFFFF", "qk, then p\n[BLOCK_H, BLOCK_N]")
box(axes, 7, 0.6, 4, 1.2, STATE, "acc [BLOCK_H, R]")
box(axes, 11.1, 0.6, 1.4, 1.2, STATE, "m_i\nl_i")
arrow(axes, (4.5, 5.0), (7.5, 4.5), "as keys, turned", 0.35)
arrow(axes, (4.5, 4.7), (6.9, 1.3), "as values", -0.9)
arrow(axes, (9, 6.3), (9, 5.0))
arrow(axes, (9, 3.6), (9, 1.9))
box(axes, 13.8, 3.7, 3.4, 1.2, "#FFFFFF", "out = acc / l_i\nlse = m_i + ln l_i")
arrow(axes, (12.6, 1.4), (14.6, 3.6), "at the end", -0.9)
axes.set(xlim=(-1.2, 17.4), ylim=(-0.4, 8.9))
axes.set_title("One program. Grey and orange lie in memory, the rest is on the chip")
axes.axis("off")
plt.show()

# %% [markdown]
# | | shape | dtype |
# |---|---|---|
# | `q_latent`, `q_rope` | [B, H, R], [B, H, Dr], contiguous | float16 or bfloat16 |
# | `c_kv`, `k_rope` | [B, T, R], [B, T, Dr], contiguous | that of the query |
# | `seq_lens` | [B]; what the cache holds behind a sequence's length is old and must not count | int32 |
# | `scale` | | float |
# | returns `out` | [B, H, R]; zeros for a sequence of length 0 | that of the query |
# | returns `lse` | [B, H], natural logarithm; −inf for length 0 | float32 |
#
# R and Dr are powers of two, 16 or more, so a whole row is one block: `R: tl.constexpr`. H and T are any numbers from 1
# on. Both results must be written by the kernel.
#
# What you need beside lesson 05:
#
# | function | gives |
# |---|---|
# | `tl.trans(x)` | the block with its axes exchanged, without another load |
# | `tl.max(x, axis=1)`, `tl.sum(x, axis=1)` | [M] from [M, N] |
# | `tl.full([M], float("-inf"), tl.float32)` | a block of one number |
# | `range(0, length, BLOCK_N)` | a loop whose end is a number that was loaded |
# | `p.to(c_kv.dtype)` | the operands of `tl.dot` must have one dtype; its accumulator stays float32 |
#
# **What fits.** While `tl.dot` works, its blocks lie in shared memory (lesson 05): the query during the whole loop, and
# a block of tokens. That is (BLOCK_H + BLOCK_N) · 576 · 2 bytes at least, and the compiler may add copies in other
# layouts. More rows mean that fewer programs read the same token, more tokens that fewer rounds wait for memory.
# `block_sizes(H)`, in the first cell, returns BLOCK_H, BLOCK_N and `num_stages`:
#
# | a program's shared memory | for example | heads | BLOCK_H | BLOCK_N | `num_stages` | bytes at least |
# |---|---|---|---|---|---|---|
# | 64 KiB | T4, MI300X | any | 8 | 16 | 1 | 27 KiB, on a T4 54 |
# | 99 KiB | L4, RTX 4090 | any | 16 | 64 | 2 | 90 KiB |
# | 163 KiB and more | A100, H100, B200 | up to 32 | 16 or 32 | 64 | 2 | 90 or 108 KiB |
# | | | more | 64 | 32 | 2 | 108 KiB |
#
# A T4 takes twice the bytes: Triton multiplies there without matrix units, and holds operands in float32. (That is why
# 8 rows are enough for `tl.dot`.) 64 rows with 64 tokens would be 144 KiB by this count. Triton 3.7 makes 216 KiB of it
# on an H100, and more than there is on a B200.
#
# Inside a sequence every block that the loop visits has a token, so no maximum is −inf after the first block. A
# sequence of length 0 does not enter the loop: `l_i` is 0, and 0/0 is NaN unless you prevent it.
#
# For the points for speed: B = 128, H = 16, T = 4096 in bfloat16, half of them from a fraction of 0.3 of the floor's
# speed on, all from 0.5 and 2 times the speed of eager PyTorch.
#
# <details><summary>Hint 1</summary>
#
# The grid is `(triton.cdiv(H, BLOCK_H), B)`. Heads of the program: `offs_h = tl.program_id(0) * BLOCK_H +
# tl.arange(0, BLOCK_H)`, rows of the query `row = b * H + offs_h`. The loop has about a dozen lines: two loads, two
# products, a mask, and the six lines of `online_update`.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `qk = tl.dot(q_latent, tl.trans(c_kv))`, then `tl.dot(q_rope, tl.trans(k_rope), qk) * scale`: one accumulator for
# both. Load with `mask=offs_n[:, None] < length, other=0.0`, and after the product set the scores of `offs_n >=
# length` to −inf with `tl.where`. The new accumulator is `tl.dot(p.to(c_kv.dtype), c_kv, acc * alpha[:, None])`.
#
# </details>
# <details><summary>Hint 3</summary>
#
# At the end `l_i = tl.where(l_i > 0, l_i, 1.0)`, then `acc / l_i[:, None]` and `m_i + tl.log(l_i)`: for
# length 0 that is 0 and −inf. In the launcher `block_h, block_n, stages = block_sizes(H)`, and 8 warps.
#
# </details>


# %% solution="latent_decode"
@triton.jit
def latent_decode_kernel(
    q_latent_ptr, q_rope_ptr, c_kv_ptr, k_rope_ptr, seq_lens_ptr, out_ptr, lse_ptr, scale, H, T,
    R: tl.constexpr, DR: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_N: tl.constexpr,
):
    """One program: BLOCK_H heads of one sequence.

    q_latent_ptr, out_ptr: [B, H, R]; q_rope_ptr: [B, H, DR]; c_kv_ptr: [B, T, R]; k_rope_ptr: [B, T, DR];
    seq_lens_ptr: [B]; lse_ptr: [B, H].
    """
    ### BEGIN SOLUTION
    b = tl.program_id(1).to(tl.int64)
    offs_h = tl.program_id(0) * BLOCK_H + tl.arange(0, BLOCK_H)
    offs_r, offs_d = tl.arange(0, R), tl.arange(0, DR)
    row = b * H + offs_h
    # [BLOCK_H, R] and [BLOCK_H, DR]
    q_latent = tl.load(q_latent_ptr + row[:, None] * R + offs_r[None, :], mask=offs_h[:, None] < H, other=0.0)
    q_rope = tl.load(q_rope_ptr + row[:, None] * DR + offs_d[None, :], mask=offs_h[:, None] < H, other=0.0)
    length = tl.load(seq_lens_ptr + b)

    m_i = tl.full([BLOCK_H], float("-inf"), tl.float32)
    l_i = tl.zeros([BLOCK_H], tl.float32)
    acc = tl.zeros([BLOCK_H, R], tl.float32)
    for start in range(0, length, BLOCK_N):
        offs_n = start + tl.arange(0, BLOCK_N)
        # [BLOCK_N, R] and [BLOCK_N, DR]
        c_kv = tl.load(
            c_kv_ptr + (b * T + offs_n)[:, None] * R + offs_r[None, :], mask=offs_n[:, None] < length, other=0.0
        )
        k_rope = tl.load(
            k_rope_ptr + (b * T + offs_n)[:, None] * DR + offs_d[None, :], mask=offs_n[:, None] < length, other=0.0
        )
        qk = tl.dot(q_latent, tl.trans(c_kv))
        qk = tl.dot(q_rope, tl.trans(k_rope), qk) * scale
        qk = tl.where(offs_n[None, :] < length, qk, float("-inf"))  # [BLOCK_H, BLOCK_N]

        m_new = tl.maximum(m_i, tl.max(qk, axis=1))
        p = tl.exp(qk - m_new[:, None])
        alpha = tl.exp(m_i - m_new)
        l_i = l_i * alpha + tl.sum(p, axis=1)
        acc = tl.dot(p.to(c_kv.dtype), c_kv, acc * alpha[:, None])
        m_i = m_new

    l_i = tl.where(l_i > 0, l_i, 1.0)  # for length 0: out 0, and lse the maximum, -inf
    tl.store(out_ptr + row[:, None] * R + offs_r[None, :], acc / l_i[:, None], mask=offs_h[:, None] < H)
    tl.store(lse_ptr + row, m_i + tl.log(l_i), mask=offs_h < H)
    ### END SOLUTION


def latent_decode(q_latent, q_rope, c_kv, k_rope, seq_lens, scale):
    """One decode step over the latent cache, in one launch.

    q_latent: [B, H, R]; q_rope: [B, H, Dr]; c_kv: [B, T, R]; k_rope: [B, T, Dr]; float16 or bfloat16,
    contiguous; R and Dr are powers of two. seq_lens: [B], int32, 0 to T; scale: float.
    Returns out [B, H, R] in the dtype of the query and lse [B, H] in float32, natural logarithm; 0 and -inf for a
    sequence of length 0. Launches latent_decode_kernel.

    The traps: acc and l_i both have to be rescaled; a masked load gives a score of 0, not of -inf; 0/0.
    """
    ### BEGIN SOLUTION
    (B, H, R), (_, T, Dr) = q_latent.shape, k_rope.shape
    out = torch.empty_like(q_latent)
    lse = torch.empty((B, H), dtype=torch.float32, device=out.device)
    block_h, block_n, stages = block_sizes(H)
    latent_decode_kernel[(triton.cdiv(H, block_h), B)](
        q_latent, q_rope, c_kv, k_rope, seq_lens, out, lse, scale, H, T,
        R=R, DR=Dr, BLOCK_H=block_h, BLOCK_N=block_n, num_warps=8, num_stages=stages,
    )
    return out, lse
    ### END SOLUTION


# %% check="latent_decode"
check("latent_decode")

# %% speed="latent_decode"
check_speed("latent_decode")

# %% [markdown]
# The floor is the cache, read once at 3.35 TB/s. Measured on an H100, same shape, with the L2 emptied before each call
# (`benchmarks/decode_h100.json`; names in code are of this course's reference, `mla_ref.kernels`):

# %%
from IPython.display import display
from mla_ref.hardware.cost import Cost

# B, H, T: µs
H100_DECODE = "{{steps}}"


def draw_measured(B, H, T):
    """Bars of what was measured, and of the floor."""
    floor = Cost(bytes=2 * B * T * (R + Dr), flops=2 * B * H * T * (2 * R + Dr)).time(h100) * 1e6
    times = {"floor, data sheet": floor} | H100_DECODE[B, H, T]
    display(plots.bars(times, unit="µs on an H100, measured", title=f"Decode step, B={B}, H={H}, T={T}, bfloat16"))


draw_measured(128, 16, 4096)

# %% [markdown]
# `latent_attention` is a kernel such as yours. The other one of the reference loads tokens by tensor descriptors, a way
# to let hardware compute the addresses. vLLM's kernel is Triton as well, FlashMLA is not.
#
# There is no score matrix, and no softmax kernel. With 16 heads all are near the floor{{!near_the_floor}}. With 128
# heads the block decides:

# %%
draw_measured(128, 128, 4096)

# %% [markdown]
# A block of 16 heads reads the cache 8 times for 128 heads, from the L2 at best: vLLM's kernel does. The reference has
# 32 heads in a block without descriptors, and 64 with them. The floor is still the cache, but barely: 128 heads on one
# token are 278,528 FLOPs for 1152 bytes. That is 242 FLOPs a byte, and from 295 on the arithmetic takes longer.
#
# ## Split-KV
#
# Now B = 1. A third axis of the grid counts the splits. Split $i$ of a sequence takes `share` tokens, from `i · share`
# on, where `share` is the sequence's own length divided by `num_splits`, rounded up. The last split that has any may
# have fewer, and after it there may be splits with none.

# %%
lengths, num_splits = (41, 23, 3), 4
_, axes = plt.subplots(figsize=(9, 2.2), layout="constrained")
for b, length in enumerate(lengths):
    share = -(-length // num_splits)
    for t in range(44):
        color = PALETTE[(5, 4, 2, 3)[t // share]] if t < length else "#FFFFFF"
        axes.add_patch(Rectangle((t, -b), 0.9, 0.8, facecolor=color, edgecolor="#CCCCCC", linewidth=0.5))
    axes.text(-0.5, 0.4 - b, f"length {length}, share {share}", ha="right", va="center", fontsize=9)
for split in range(num_splits):
    axes.add_patch(Rectangle((6 * split, -3.2), 0.9, 0.8, facecolor=PALETTE[(5, 4, 2, 3)[split]]))
    axes.text(6 * split + 1.2, -2.8, f"split {split}", va="center", fontsize=9)
axes.set(xlim=(-9, 44.2), ylim=(-3.4, 1))
axes.set_title("T = 44, 4 splits, three sequences. The third has no token for split 3")
axes.axis("off")
plt.show()

# %% [markdown]
# `share` depends on the length, not on T. The launcher cannot know the lengths: they are on the GPU, and reading them
# would make the host wait. So it chooses the number of splits from the shapes, and each program works out its share.
#
# ## Exercise: split_decode
#
# | | shape | dtype |
# |---|---|---|
# | arguments | as for `latent_decode`, and `num_splits`, an int from 1 on | |
# | returns `partial_out` | [num_splits, B, H, R], divided by its own `l_i`; 0 where a split has no token | float32 |
# | returns `partial_lse` | [num_splits, B, H], natural logarithm; −inf where a split has no token | float32 |
#
# Partial results stay in float32: rounding them to 16 bits would add an error for every split, and an error in lse is a
# factor on everything. One launch for all splits.
#
# For the points for speed: B = 1, H = 16, T = 8192, 64 splits. The floor counts 2.8 µs for the cache and 0.6 µs for
# the partial results; a launch alone takes longer. So the bars are low: a fraction of 0.12 for half of the points,
# 0.2 and 3 times the speed of eager PyTorch for all.
#
# <details><summary>Hint 1</summary>
#
# Three things change in the kernel: where the loop begins and ends, what the masks compare with, and where the results
# go.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `split = tl.program_id(2)`, `share = tl.cdiv(length, num_splits)`, `end = tl.minimum((split + 1) * share, length)`.
# The loop is `range(split * share, end, BLOCK_N)`. The masks are `offs_n < end`: a block at the end of a split would
# otherwise take tokens of the next one.
#
# </details>
# <details><summary>Hint 3</summary>
#
# Row of the results: `split.to(tl.int64) * B * H + b * H + offs_h`, so the kernel needs B as an argument. The grid is
# `(triton.cdiv(H, BLOCK_H), B, num_splits)`. Where `split * share` is beyond the length the loop does not run, and the
# guard against 0/0 does the rest.
#
# </details>


# %% solution="split_decode"
@triton.jit
def split_decode_kernel(
    q_latent_ptr, q_rope_ptr, c_kv_ptr, k_rope_ptr, seq_lens_ptr, partial_out_ptr, partial_lse_ptr,
    scale, B, H, T, num_splits,
    R: tl.constexpr, DR: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_N: tl.constexpr,
):
    """One program: BLOCK_H heads of one sequence, one part of its context.

    partial_out_ptr: [num_splits, B, H, R]; partial_lse_ptr: [num_splits, B, H]; the others as in latent_decode_kernel.
    """
    ### BEGIN SOLUTION
    split, b = tl.program_id(2), tl.program_id(1).to(tl.int64)
    offs_h = tl.program_id(0) * BLOCK_H + tl.arange(0, BLOCK_H)
    offs_r, offs_d = tl.arange(0, R), tl.arange(0, DR)
    row = b * H + offs_h
    # [BLOCK_H, R] and [BLOCK_H, DR]
    q_latent = tl.load(q_latent_ptr + row[:, None] * R + offs_r[None, :], mask=offs_h[:, None] < H, other=0.0)
    q_rope = tl.load(q_rope_ptr + row[:, None] * DR + offs_d[None, :], mask=offs_h[:, None] < H, other=0.0)
    length = tl.load(seq_lens_ptr + b)
    share = tl.cdiv(length, num_splits)
    end = tl.minimum((split + 1) * share, length)

    m_i = tl.full([BLOCK_H], float("-inf"), tl.float32)
    l_i = tl.zeros([BLOCK_H], tl.float32)
    acc = tl.zeros([BLOCK_H, R], tl.float32)
    for start in range(split * share, end, BLOCK_N):
        offs_n = start + tl.arange(0, BLOCK_N)
        # [BLOCK_N, R] and [BLOCK_N, DR]
        c_kv = tl.load(
            c_kv_ptr + (b * T + offs_n)[:, None] * R + offs_r[None, :], mask=offs_n[:, None] < end, other=0.0
        )
        k_rope = tl.load(
            k_rope_ptr + (b * T + offs_n)[:, None] * DR + offs_d[None, :], mask=offs_n[:, None] < end, other=0.0
        )
        qk = tl.dot(q_latent, tl.trans(c_kv))
        qk = tl.dot(q_rope, tl.trans(k_rope), qk) * scale
        qk = tl.where(offs_n[None, :] < end, qk, float("-inf"))  # [BLOCK_H, BLOCK_N]

        m_new = tl.maximum(m_i, tl.max(qk, axis=1))
        p = tl.exp(qk - m_new[:, None])
        alpha = tl.exp(m_i - m_new)
        l_i = l_i * alpha + tl.sum(p, axis=1)
        acc = tl.dot(p.to(c_kv.dtype), c_kv, acc * alpha[:, None])
        m_i = m_new

    l_i = tl.where(l_i > 0, l_i, 1.0)  # where nothing is seen: out 0, and lse the maximum, -inf
    part = split.to(tl.int64) * B * H + row
    tl.store(partial_out_ptr + part[:, None] * R + offs_r[None, :], acc / l_i[:, None], mask=offs_h[:, None] < H)
    tl.store(partial_lse_ptr + part, m_i + tl.log(l_i), mask=offs_h < H)
    ### END SOLUTION


def split_decode(q_latent, q_rope, c_kv, k_rope, seq_lens, scale, num_splits):
    """Partial results of a decode step, each context in num_splits parts, in one launch.

    q_latent: [B, H, R]; q_rope: [B, H, Dr]; c_kv: [B, T, R]; k_rope: [B, T, Dr]; float16 or bfloat16,
    contiguous; R and Dr are powers of two. seq_lens: [B], int32, 0 to T; scale: float; num_splits: int.
    Split i of sequence b: tokens from i * share up to (i + 1) * share, share = ceil(seq_lens[b] / num_splits).
    Returns partial_out [num_splits, B, H, R] and partial_lse [num_splits, B, H], float32; 0 and -inf where a split
    has no token. Launches split_decode_kernel once.

    The traps: a block may reach into the next split; a split may have no token; the share is rounded up.
    """
    ### BEGIN SOLUTION
    (B, H, R), (_, T, Dr) = q_latent.shape, k_rope.shape
    partial_out = torch.empty((num_splits, B, H, R), dtype=torch.float32, device=q_latent.device)
    partial_lse = torch.empty((num_splits, B, H), dtype=torch.float32, device=q_latent.device)
    block_h, block_n, stages = block_sizes(H)
    split_decode_kernel[(triton.cdiv(H, block_h), B, num_splits)](
        q_latent, q_rope, c_kv, k_rope, seq_lens, partial_out, partial_lse, scale, B, H, T, num_splits,
        R=R, DR=Dr, BLOCK_H=block_h, BLOCK_N=block_n, num_warps=8, num_stages=stages,
    )
    return partial_out, partial_lse
    ### END SOLUTION


# %% check="split_decode"
check("split_decode")

# %% speed="split_decode"
check_speed("split_decode")

# %% [markdown]
# ## The combine
#
# Part $i$ has the result $o_i$ and the log-sum-exp $z_i$ of its own tokens. The sum of all weights is the sum of the
# $e^{z_i}$. So
#
# $$z = \ln \sum_i e^{z_i}, \qquad o = \sum_i e^{z_i - z}\, o_i .$$
#
# It is a softmax over the parts. Two parts were merged so in lesson 01. Large $z_i$ overflow as scores do, hence the
# maximum again: $e^{z_i - \max}$, divided by the sum.
#
# ## Exercise: combine_splits
#
# | | shape | dtype |
# |---|---|---|
# | `partial_out` | [P, B, H, R], contiguous; what it holds where a part is empty is undefined, NaN included | float32 |
# | `partial_lse` | [P, B, H], contiguous; −inf where a part is empty | float32 |
# | `out` | [B, H, R], contiguous: where the result goes; 0 where all parts are empty | any floating |
# | returns | `out` itself, and a new lse [B, H]; −inf where all parts are empty | lse: float32 |
#
# The caller brings `out`, as serving engines do: they own their memory, and so the result gets the dtype they want. R
# is a power of two, P is any number from 1 to 256.
#
# For the points for speed: P = 8, B = 32, H = 128, R = 512 into bfloat16. 0.3 of the floor's speed for half of the
# points, 0.45 and 2 times the speed of eager PyTorch for all.
#
# <details><summary>Hint 1</summary>
#
# B and H can be one axis: row `b * H + h` of M = B · H rows, and part p of it lies M rows further. One program takes
# all parts of a row, `[BLOCK_P, R]`, or a piece of its columns. About ten lines.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Load the lse of all parts with `other=float("-inf")`: places beyond P then count as empty parts. If all are empty the
# maximum is −inf: put 0 in its place, as in `online_update`. The weights of empty parts are 0, but 0 · NaN is NaN: give
# the load of the parts a mask that leaves them out.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `weights = tl.exp(lses - tl.where(m_i == float("-inf"), 0.0, m_i))`, with `m_i = tl.max(lses)`. Load the parts
# with `mask=(weights > 0)[:, None]` (a weight that has underflowed to 0 may be left out too). The result is
# `tl.sum(parts * weights[:, None], axis=0) / l_i`, with 1 for a sum of 0. The lse is `m_i + tl.log(l_i)`,
# stored by one program of the row.
#
# </details>


# %% solution="combine_splits"
@triton.jit
def combine_kernel(
    partial_out_ptr, partial_lse_ptr, out_ptr, lse_ptr, P, M,
    R: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_R: tl.constexpr,
):
    """One program: BLOCK_R columns of one row, all parts.

    partial_out_ptr: [P, M, R]; partial_lse_ptr: [P, M]; out_ptr: [M, R]; lse_ptr: [M]; BLOCK_P: at least P.
    """
    ### BEGIN SOLUTION
    row = tl.program_id(0).to(tl.int64)
    offs_p = tl.arange(0, BLOCK_P)
    offs_r = tl.program_id(1) * BLOCK_R + tl.arange(0, BLOCK_R)
    lses = tl.load(partial_lse_ptr + offs_p * M + row, mask=offs_p < P, other=float("-inf"))  # [BLOCK_P]
    m_i = tl.max(lses)
    weights = tl.exp(lses - tl.where(m_i == float("-inf"), 0.0, m_i))
    l_i = tl.sum(weights)
    l_i = tl.where(l_i > 0, l_i, 1.0)
    # [BLOCK_P, BLOCK_R]
    parts = tl.load(
        partial_out_ptr + (offs_p[:, None] * M + row) * R + offs_r[None, :], mask=(weights > 0)[:, None], other=0.0
    )
    tl.store(out_ptr + row * R + offs_r, tl.sum(parts * weights[:, None], axis=0) / l_i)
    if tl.program_id(1) == 0:
        tl.store(lse_ptr + row, m_i + tl.log(l_i))
    ### END SOLUTION


def combine_splits(partial_out, partial_lse, out):
    """Merge the results of the parts of a context, in one launch.

    partial_out: [P, B, H, R], float32, undefined where a part is empty; partial_lse: [P, B, H], float32, -inf where
    a part is empty; out: [B, H, R], any floating dtype, is overwritten. All contiguous; R is a power of two.
    Returns (out, lse), lse: [B, H], float32; 0 and -inf where all parts are empty. Launches combine_kernel.

    The traps: what an empty part holds; a row with nothing but empty parts; exp of a large lse.
    """
    ### BEGIN SOLUTION
    P, B, H, R = partial_out.shape
    lse = torch.empty((B, H), dtype=torch.float32, device=out.device)
    block_p = triton.next_power_of_2(P)
    block_r = min(R, max(8192 // block_p, 16))
    combine_kernel[(B * H, R // block_r)](
        partial_out, partial_lse, out, lse, P, B * H, R=R, BLOCK_P=block_p, BLOCK_R=block_r, num_warps=4
    )
    return out, lse
    ### END SOLUTION


# %% check="combine_splits"
check("combine_splits")

# %% speed="combine_splits"
check_speed("combine_splits")

# %% [markdown]
# Both kernels together must give what one gave, whatever the number of splits:

# %%
torch.manual_seed(7)
half = lambda *shape: torch.randn(shape).half().to(device)
B, H, T = 3, 8, 200
lens = torch.tensor([200, 37, 0], dtype=torch.int32, device=device)
operands = half(B, H, 32), half(B, H, 16), half(B, T, 32), half(B, T, 16), lens, 0.25
whole, whole_lse = latent_decode(*operands)
print("splits   largest difference of out   of lse   NaN")
for num_splits in (1, 2, 7, 64):
    out, lse = combine_splits(*split_decode(*operands, num_splits), torch.empty_like(whole))
    off, off_lse = (out - whole).abs().max(), (lse[:2] - whole_lse[:2]).abs().max()
    print(f"{num_splits:6} {off.item():27.1e} {off_lse.item():8.1e} {out.isnan().any().item()!s:>5}")

# %% [markdown]
# The differences are those of float16 and of the order of sums.
#
# ## How many splits
#
# Two effects pull in opposite directions. More splits shorten the chain of blocks that each program works through,
# until the SMs are full or memory is. And every split costs a partial result, and the combine its launch.
#
# A rough model, with constants measured on an H100: a program of 16 heads needs {{block_us}} µs for a block of 64
# tokens ({{one_program_us}} µs for 64 blocks, `model_measured.json`); an SM holds two such programs; memory gives
# {{copy_tb_per_s}} TB/s; a launch takes {{launch_us}} µs and a further one {{next_launch_us}} µs (the grader's
# constants).

# %%
def step_time(B, H, T, num_splits):
    """Microseconds of a decode step by the rough model, in four parts."""
    cost = predict_splits(B, H, T, num_splits)
    share = -(-T // num_splits)
    rounds = -(-cost["programs"] // (2 * 132))
    chain = rounds * (1 + "{{block_us}}" * -(-share // 64))
    stream = (cost["cache_bytes"] + cost["partial_bytes"] / 2) / ("{{copy_tb_per_s}}" * 1e12) * 1e6
    combine = 2 + cost["partial_bytes"] / 2 / ("{{copy_tb_per_s}}" * 1e12) * 1e6 if num_splits > 1 else 0.0
    return {
        "launches": "{{launch_us}}" + "{{next_launch_us}}" * (num_splits > 1),
        "memory": stream,
        "waiting for blocks": max(0.0, chain - stream),
        "combine": combine,
    }


H100_SPLITS = "{{splits}}"  # B: µs by the number of splits
STEPS = ((1, 16, 8192), (8, 16, 4096), (16, 16, 8192), (128, 16, 1024))
with plt.rc_context(plots.STYLE):
    _, axes = plt.subplots(figsize=(8, 3.6), layout="constrained")
    for color, (B, H, T) in zip(PALETTE, STEPS, strict=False):
        times = [sum(step_time(B, H, T, n).values()) for n in splits]
        axes.plot(splits, times, "o-", color=color, label=f"B = {B}, T = {T}")
    for B, points in H100_SPLITS.items():
        color = PALETTE[[s[0] for s in STEPS].index(B)]
        axes.plot(points.keys(), points.values(), "*", color=color, markersize=13, markeredgecolor="black")
    axes.plot([], [], "*", color="white", markeredgecolor="black", markersize=13, label="measured on an H100")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set(xlabel="splits", ylabel="µs", title="H = 16: decode step with its combine, rough model")
    axes.legend()
    plt.show()

# %% [markdown]
# The stars are measured, in blocks of 64 tokens with 8 warps (`model_measured.json`). Eight sequences are six times as
# fast with 16 splits as with one{{!six_times}}. 128 sequences are {{slower}} times as slow: they filled the GPU
# already, and 1024 tokens in 16 splits are 64 tokens each, where partial results move about as many bytes as the cache.
#
# With ipywidgets installed you can move the number of splits yourself. Look for three things: where waiting
# disappears, where the combine begins to show, and what happens when the programs no longer fit on the GPU at once
# (264 at a time here).

# %%
def explore(num_splits, B, T, H=16):
    parts, cost = step_time(B, H, T, num_splits), predict_splits(B, H, T, num_splits)
    with plt.rc_context(plots.STYLE):
        _, (left, right) = plt.subplots(1, 2, figsize=(9, 2.7), width_ratios=(1, 2.4), layout="constrained")
        draw_sms(left, cost["programs"], f"{cost['programs']} programs")
        edge = 0.0
        for color, (name, size) in zip((PALETTE[7], PALETTE[0], PALETTE[4], PALETTE[3]), parts.items(), strict=True):
            right.barh([0], [size], left=edge, color=color, label=f"{name} {size:.1f} µs")
            edge += size
        title = f"B = {B}, H = {H}, T = {T}, splits: {num_splits}, {edge:.0f} µs"
        right.set(xlabel="µs", yticks=[], ylim=(-0.6, 1.2), title=title)
        right.legend(ncols=2, loc="upper left")
        plt.show()


explore(1, B=4, T=8192)
explore(32, B=4, T=8192)

# %%
try:
    from ipywidgets import SelectionSlider, interact
except ImportError:
    print("no ipywidgets here: call explore(num_splits, B, T) with other values instead")
else:
    slider = SelectionSlider(
        options=[1, 2, 4, 8, 16, 32, 33, 64, 66, 67, 128, 256], value=8, description="splits", continuous_update=False
    )
    interact(lambda num_splits: explore(num_splits, B=4, T=8192), num_splits=slider)

# %% [markdown]
# So a launcher chooses: enough splits that every SM has a program, and no split shorter than some hundred tokens. It
# can use shapes only. With B sequences and ⌈H/BLOCK_H⌉ blocks of heads,
#
# $$\text{num\_splits} = \max\Big(1,\ \min\big(\lfloor 132 / (B \cdot \lceil H / \text{BLOCK\_H}\rceil) \rfloor,\
# \lceil T / 128 \rceil\big)\Big).$$
#
# ## Fold query tokens into heads
#
# A step may have several query tokens. Speculative decoding checks a few guessed tokens at once, and a serving engine
# may process the last tokens of a prompt so. With S tokens there are S · H queries per sequence, and all meet the same
# cache. One program per token reads the cache S times. And where 128 heads are shared by 8 or 16 GPUs, 16 or 8 are
# left on each: a block of 16 rows is just full, or half empty.
#
# Lesson 05 has the remedy: heads are rows. Row $m = s \cdot H + h$ of a sequence is head h of token s. The queries lie
# in memory in just this order, [S, H, R]. Nothing is moved: **folding** is to call S · H the number of heads.
#
# TokenSpeed folds so on Blackwell, where a block has 128 rows. Its kernel runs over groups of tokens that are all
# alike, so it takes the largest factor F that divides S and for which F · H is at most 128. F tokens share a block, and
# S / F groups remain, each of which reads the cache.
#
# ## Exercise: predict_fold
#
# Write TokenSpeed's rule.
#
# <details><summary>Hint 1</summary>
#
# Try all factors from 1 to q_len.
#
# </details>
# <details><summary>Hint 2</summary>
#
# If no factor beyond 1 qualifies nothing is folded: the factor is 1. 7 tokens cannot be folded by 4, although 4 would
# fit.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `max(f for f in range(1, q_len + 1) if q_len % f == 0 and H * f <= 128)`. H is 128 at most, so 1 always qualifies. Two
# lines.
#
# </details>


# %% solution="predict_fold"
def predict_fold(q_len, H):
    """How TokenSpeed folds q_len query tokens of H heads.

    q_len: int, from 1 on; H: int, 1 to 128.

    Returns a dict of numbers:
      factor       the largest that divides q_len, with factor * H at most 128
      rows         of a block that are in use
      cache_reads  how often the cache of a sequence is read, once for each group of tokens

    The trap: a factor may fit and not divide.
    """
    ### BEGIN SOLUTION
    factor = max(f for f in range(1, q_len + 1) if q_len % f == 0 and H * f <= 128)
    return {"factor": factor, "rows": H * factor, "cache_reads": q_len // factor}
    ### END SOLUTION


# %% check="predict_fold"
check("predict_fold")

# %%
print("rows in use of a block of 128, and reads of the cache\n")
print("heads     " + "".join(f"{q} token{'s' * (q > 1)}".rjust(14) for q in (1, 2, 3, 4, 5)))
for H in (128, 64, 32, 16, 8):
    folds = [predict_fold(q, H) for q in (1, 2, 3, 4, 5)]
    print(f"{H:5}     " + "".join(f"{f['rows']:9} · {f['cache_reads']:2}" for f in folds))

# %% [markdown]
# The same as a picture: a column is a block of 128 rows, for which the cache is read once; a colour is a query token.
# With 32 heads, how often is the cache read for 4 tokens, and how often for 5? Guess before you move the slider. Then
# find the worst number of tokens for 24 heads.

# %%
def explore_fold(q_len, H):
    fold = predict_fold(q_len, H)
    with plt.rc_context(plots.STYLE):
        _, axes = plt.subplots(figsize=(7, 2.8), layout="constrained")
        for token in range(q_len):
            block, place = divmod(token, fold["factor"])
            axes.bar(block, H, bottom=place * H, width=0.8, color=PALETTE[token % len(PALETTE)], edgecolor="white")
        axes.bar(range(fold["cache_reads"]), 128, width=0.8, fill=False, edgecolor="0.6")
        axes.set(xticks=range(fold["cache_reads"]), xlabel="block", ylabel="row", xlim=(-0.6, 7.6), ylim=(128, 0))
        axes.set_title(f"q_len {q_len}, H {H}: {fold['rows']} of 128 rows, cache read {fold['cache_reads']}×")
        plt.show()


try:
    from ipywidgets import IntSlider, SelectionSlider, interact
except ImportError:
    explore_fold(4, 32)
    explore_fold(5, 32)
else:
    interact(
        explore_fold,
        q_len=IntSlider(4, 1, 8, description="q_len", continuous_update=False),
        H=SelectionSlider(options=[8, 16, 24, 32, 64, 128], value=32, description="H", continuous_update=False),
    )

# %% [markdown]
# ## Causal inside the fold
#
# The S query tokens are the last of the context: token s stands at position length − S + s and sees positions up to
# its own. That is length − S + s + 1 positions, and s is m // H. So each row of the block has an end of its own. The
# picture has S = 3, H = 2 and a sequence of length 10.

# %%
S, H, length = 3, 2, 10
offs_m = torch.arange(S * H)[:, None]
seen = torch.arange(length + 2)[None, :] < length - S + offs_m // H + 1
plots.matrix(seen, title="Bright: what row m = s·H + h sees (token m // H)", xlabel="position", ylabel="row m")

# %% [markdown]
# This has a consequence for the online softmax. Take a split that holds only position 9. The rows of tokens 0 and 1
# see nothing in it, while others do. Their maximum stays −inf, −inf − (−inf) is NaN, and so are their weights and their
# sum. `latent_decode` could do without the stand-in of `online_update`: there, a program whose loop runs has a token
# for every row. Here you need it.
#
# ## Exercise: folded_decode
#
# Everything together: fold, split, combine. You choose the number of splits, from shapes alone. `combine_splits` is
# there for you, the right one where yours is not.
#
# | | shape | dtype |
# |---|---|---|
# | `q_latent`, `q_rope` | [B, S, H, R], [B, S, H, Dr], contiguous | float16 or bfloat16 |
# | `c_kv`, `k_rope`, `seq_lens`, `scale` | as before; lengths count the S new tokens, and may be less than S | |
# | returns `out` | [B, S, H, R]; zeros for a query that sees nothing | that of the query |
# | returns `lse` | [B, S, H]; −inf for a query that sees nothing | float32 |
#
# S · H need not be a power of two, nor divide 128: rows that do not exist are masked, as heads were. So any S can be
# folded, and F is not needed.
#
# For the points for speed: B = 4, S = 4, H = 16, T = 16384. TokenSpeed's benchmark has these B, S and H. Half of the
# points from a fraction of 0.15 on, all from 0.25 and 1.8 times the speed of eager PyTorch. Blocks of 16 rows read the
# cache 4 times and do not reach the second bar.
#
# <details><summary>Hint 1</summary>
#
# Start from `split_decode_kernel` with M = S · H in place of H. Two lines change: the mask of the scores, and the
# stand-in for a maximum of −inf.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `seen = length - S + offs_m // H + 1`, a block of `[BLOCK_M]`. The mask is `(offs_n[None, :] < end) & (offs_n[None,
# :] < seen[:, None])`. With `base = tl.where(m_new == float("-inf"), 0.0, m_new)`, both exponents use `base`, and
# `m_i = m_new` stays.
#
# </details>
# <details><summary>Hint 3</summary>
#
# The launcher: `block_m, block_n, stages = block_sizes(S * H)`, splits by the formula above with S · H for H, partial
# results [num_splits, B, S · H, …]. `combine_splits` takes `out.view(B, S * H, R)` and returns it and an lse, of which
# you return `.view(B, S, H)`. 8 warps.
#
# </details>


# %% solution="folded_decode"
@triton.jit
def folded_decode_kernel(
    q_latent_ptr, q_rope_ptr, c_kv_ptr, k_rope_ptr, seq_lens_ptr, partial_out_ptr, partial_lse_ptr,
    scale, B, S, H, T, num_splits,
    R: tl.constexpr, DR: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):
    """One program: BLOCK_M rows of one sequence, one part of its context. Row m: token m // H, head m % H.

    q_latent_ptr: [B, S, H, R]; q_rope_ptr: [B, S, H, DR]; c_kv_ptr: [B, T, R]; k_rope_ptr: [B, T, DR];
    seq_lens_ptr: [B]; partial_out_ptr: [num_splits, B, S * H, R]; partial_lse_ptr: [num_splits, B, S * H].
    """
    ### BEGIN SOLUTION
    M = S * H
    split, b = tl.program_id(2), tl.program_id(1).to(tl.int64)
    offs_m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_r, offs_d = tl.arange(0, R), tl.arange(0, DR)
    row = b * M + offs_m
    # [BLOCK_M, R] and [BLOCK_M, DR]
    q_latent = tl.load(q_latent_ptr + row[:, None] * R + offs_r[None, :], mask=offs_m[:, None] < M, other=0.0)
    q_rope = tl.load(q_rope_ptr + row[:, None] * DR + offs_d[None, :], mask=offs_m[:, None] < M, other=0.0)
    length = tl.load(seq_lens_ptr + b)
    share = tl.cdiv(length, num_splits)
    end = tl.minimum((split + 1) * share, length)
    seen = length - S + offs_m // H + 1  # [BLOCK_M]

    m_i = tl.full([BLOCK_M], float("-inf"), tl.float32)
    l_i = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, R], tl.float32)
    for start in range(split * share, end, BLOCK_N):
        offs_n = start + tl.arange(0, BLOCK_N)
        # [BLOCK_N, R] and [BLOCK_N, DR]
        c_kv = tl.load(
            c_kv_ptr + (b * T + offs_n)[:, None] * R + offs_r[None, :], mask=offs_n[:, None] < end, other=0.0
        )
        k_rope = tl.load(
            k_rope_ptr + (b * T + offs_n)[:, None] * DR + offs_d[None, :], mask=offs_n[:, None] < end, other=0.0
        )
        qk = tl.dot(q_latent, tl.trans(c_kv))
        qk = tl.dot(q_rope, tl.trans(k_rope), qk) * scale
        mask = (offs_n[None, :] < end) & (offs_n[None, :] < seen[:, None])
        qk = tl.where(mask, qk, float("-inf"))  # [BLOCK_M, BLOCK_N]

        m_new = tl.maximum(m_i, tl.max(qk, axis=1))
        base = tl.where(m_new == float("-inf"), 0.0, m_new)  # of a row that has seen nothing
        p = tl.exp(qk - base[:, None])
        alpha = tl.exp(m_i - base)
        l_i = l_i * alpha + tl.sum(p, axis=1)
        acc = tl.dot(p.to(c_kv.dtype), c_kv, acc * alpha[:, None])
        m_i = m_new

    l_i = tl.where(l_i > 0, l_i, 1.0)  # where nothing is seen: out 0, and lse the maximum, -inf
    part = split.to(tl.int64) * B * M + row
    tl.store(partial_out_ptr + part[:, None] * R + offs_r[None, :], acc / l_i[:, None], mask=offs_m[:, None] < M)
    tl.store(partial_lse_ptr + part, m_i + tl.log(l_i), mask=offs_m < M)
    ### END SOLUTION


def folded_decode(q_latent, q_rope, c_kv, k_rope, seq_lens, scale):
    """A decode step of S query tokens, folded into the heads, split and combined: two launches.

    q_latent: [B, S, H, R]; q_rope: [B, S, H, Dr]; c_kv: [B, T, R]; k_rope: [B, T, Dr]; float16 or bfloat16,
    contiguous; R and Dr are powers of two. seq_lens: [B], int32, 0 to T, the S new tokens included; scale: float.
    Returns out [B, S, H, R] in the dtype of the query and lse [B, S, H] in float32; 0 and -inf for a query that sees
    nothing. Launches folded_decode_kernel, and calls combine_splits.

    The traps: row m is token m // H; token s sees length - S + s + 1 positions; a row may see nothing of a block.
    """
    ### BEGIN SOLUTION
    (B, S, H, R), (_, T, Dr), M = q_latent.shape, k_rope.shape, q_latent.shape[1] * q_latent.shape[2]
    block_m, block_n, stages = block_sizes(M)
    blocks = triton.cdiv(M, block_m)
    num_splits = max(1, min(132 // (B * blocks), triton.cdiv(T, 128)))
    partial_out = torch.empty((num_splits, B, M, R), dtype=torch.float32, device=q_latent.device)
    partial_lse = torch.empty((num_splits, B, M), dtype=torch.float32, device=q_latent.device)
    folded_decode_kernel[(blocks, B, num_splits)](
        q_latent, q_rope, c_kv, k_rope, seq_lens, partial_out, partial_lse, scale, B, S, H, T, num_splits,
        R=R, DR=Dr, BLOCK_M=block_m, BLOCK_N=block_n, num_warps=8, num_stages=stages,
    )
    out = torch.empty_like(q_latent)
    _, lse = combine_splits(partial_out, partial_lse, out.view(B, M, R))
    return out, lse.view(B, S, H)
    ### END SOLUTION


# %% check="folded_decode"
check("folded_decode")

# %% speed="folded_decode"
check_speed("folded_decode")

# %% [markdown]
# ## Measure
#
# First on this machine, without Triton: the same step in PyTorch, the scores in one piece or block by block through
# your `online_update`. One sequence, 16 heads, 8192 tokens in float32, the RoPE part left out, on one core.

# %%
from mla_ref import bench

torch.set_num_threads(1)  # times waver less
torch.manual_seed(8)
query, cache = torch.randn(16, R) / 16, torch.randn(8192, R)


def in_one_piece():
    return (query @ cache.T).softmax(-1) @ cache


def block_by_block(size):
    state = torch.full((16,), -math.inf), torch.zeros(16), torch.zeros(16, R)
    for c in cache.split(size):
        state = online_update(*state, query @ c.T, c)
    return state[2] / state[1][:, None]


once = bench(in_one_piece, repeat=9, device="cpu").median
print(f"in one piece        {once * 1e3:6.2f} ms")
for size in (4096, 512, 64):
    time = bench(lambda size=size: block_by_block(size), repeat=9, device="cpu").median
    off = (block_by_block(size) - in_one_piece()).abs().max()
    print(f"blocks of {size:4} tokens {time * 1e3:6.2f} ms, largest difference {off:.0e}")

# %% [markdown]
# In PyTorch blocks gain nothing, and small ones cost: each line of `online_update` is an operation of its own. In a
# kernel the state stays in registers.
#
# On a GPU the next cell times your kernels, in float16. Without one it says so. (On a T4 they are slow: small blocks,
# and no matrix units.)

# %%
from functools import partial

if not emulated:
    print("  B       T   eager      one program each   16 splits   64 splits")
    for B, T in ((1, 8192), (16, 8192), (64, 4096)):
        lens = torch.full((B,), T, dtype=torch.int32, device=device)
        given = half(B, 16, R) / 8, half(B, 16, Dr) / 8, half(B, T, R), half(B, T, Dr), lens, 192**-0.5
        out = torch.empty_like(given[0])
        in_splits = lambda n, given, out: combine_splits(*split_decode(*given, n), out)
        calls = [partial(eager_decode, *given), partial(latent_decode, *given)]
        calls += [partial(in_splits, n, given, out) for n in (16, 64)]
        print(f"{B:3} {T:7}" + "".join(f"{bench(call).median * 1e6:12.0f} µs" for call in calls))
else:
    print("kernels are emulated here, and there is nothing to time")

# %% [markdown]
# And on an H100, decode steps with 16 heads over 8192 tokens, L2 emptied before each call, combine included
# (`benchmarks/decode_h100.json`; vLLM's time for one sequence is of an earlier run{{!earlier_run}}):

# %%
draw_measured(1, 16, 8192)
draw_measured(16, 16, 8192)

# %% [markdown]
# For one sequence no implementation comes near the floor{{!far_from_the_floor}}. 9.4 MB take 2.8 µs at full bandwidth,
# and before any of them arrives a launch, an address and a trip to memory have to pass, twice with a combine. In a CUDA
# graph, where a launch is cheaper, `latent_attention` takes {{graph_us}} µs. Here latency decides. At B = 16 it is
# bandwidth.
#
# Four query tokens, folded, over TokenSpeed's 81920 tokens (B = 4, H = 16): `latent_attention_tma` takes {{folded_us}}
# µs. The floor is 113 µs.

# %% [markdown]
# ## In the field
#
# **Two kernels or one.** TokenSpeed's decode on Blackwell is two kernels: split-KV, and a second one that reduces the
# partial results. TensorRT-LLM, by TokenSpeed's account, has a single one. A second launch costs a few microseconds,
# less in a CUDA graph, and still less where the second kernel may start before the first has ended.
#
# **Which logarithm.** GPUs compute $2^x$, so kernels multiply the scale by $\log_2 e$ and work in base 2. Some return
# the lse so. FlashInfer's is base 2. FlashMLA's is base e in its dense decode and base 2 in its sparse prefill.
# Combining one as the other gives no error, only a result that is off: 0.105 at most in one such case, 0.0005 once
# corrected (sglang #35045; flashinfer #2113 and #4485 are others). The public TyphoonMLA code combines base-2 values
# with `exp`, and its test never runs the merge. Try it:

# %%
torch.manual_seed(9)
parts, lses = torch.randn(4, 1, 16, R), torch.randn(4, 1, 16)
out, _ = combine_splits(parts.to(device), lses.to(device), torch.empty(1, 16, R, device=device))
mixed, _ = combine_splits(parts.to(device), (lses / math.log(2)).to(device), torch.empty(1, 16, R, device=device))
print(f"base-2 values combined with exp: {((mixed - out).norm() / out.norm()).item():.0%} off")

# %% [markdown]
# **Empty rows.** −inf in one library, +inf in another. A +inf that meets your combine gives NaN.
#
# **What lies behind the length.** A cache is not cleared. Behind a sequence's last token lie old ones, or memory that
# was never written, which may hold NaN. A weight of 0 does not help: 0 · NaN is NaN inside `tl.dot`. So the loads are
# masked as well as the scores.
#
# **The number of splits.** Where it decides over shared memory, changing it broke kernels (vllm #46728, sglang #27786).
# One serving kernel fixes it at 4 and keeps its lse in the query's dtype. In bfloat16 an lse of 10 is rounded by up to
# 0.03, a factor of 3 % on that part.
#
# **Few heads.** With tensor parallelism fewer than 16 heads per GPU do not fill a block (aiter #2577, vllm #50578), and
# padding them to 64 wastes 4 times the arithmetic (sglang #27954). Folding fills the block where there are several
# tokens.
#
# **Offsets.** Token 3.7 million of a cache with 576 words each lies beyond $2^{31}$ words, and 32-bit offsets wrap
# there (vllm #47671, sglang #14224, tokenspeed #501). Your kernels should multiply `b * T` in 64 bits.
#
# ## What you have now
#
# - A decode step whose scores never leave the chip, and whose cache is read once.
# - Two limits of small problems, and a remedy for each: too few programs (split the context), too few rows (fold the
#   tokens).
# - A combine of partial attention that does not care where the parts come from. Lesson 09 uses it for parts that are
#   computed by two different kernels.
# - A cache that is contiguous. Serving engines keep it in pages: lesson 07.
#
# Figures: {{records}}.
