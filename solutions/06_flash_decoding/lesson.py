# %% [markdown]
# # Lesson 06: flash decoding
#
# A decode step has one new query per sequence and a long cache. In this lesson one kernel reads the cache once
# and leaves the result, and writes no score: **flash decoding**. Then you split the context, so that a single
# sequence keeps a whole GPU busy. Allow six hours: one to read, five for the exercises.
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
# Each exercise may take 10 s and 512 MiB for all its cases; speed has a limit of its own. It is that of an H100.
#
# | symbol | meaning | DeepSeek-V3 |
# |---|---|---|
# | B, S, T | sequences, new query tokens per sequence (S = 1 at first), tokens of context, the new ones included | |
# | H | heads | 128, or fewer where several GPUs share them |
# | R, Dr | width of the latent, and of the part with position (RoPE) | 512, 64 |

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
# ## Why: 132 multiprocessors
#
# All heads of a sequence read the same cache, so they belong into one program. With fewer than 16 rows `tl.dot`
# leaves tensor cores idle; here, and in the prediction below, a block has 16 heads. A step then has B · ⌈H/16⌉
# programs. A GPU gives each program to one multiprocessor (**SM**), and an H100 has 132. The picture has a
# square for each SM, coloured if it has a program.

# %%
from mla_ref import DEVICES, plots

plots.processors({f"B = {B}, H = {H}": B * -(-H // 16) for B, H in ((1, 16), (1, 128), (16, 16), (128, 16))})

# %% [markdown]
# One sequence with 16 heads leaves 131 SMs idle. And a single SM cannot draw 3.35 TB/s from memory, since it
# waits for each block that it asks for. Measured on an H100: 8 sequences of 4096 tokens with 16 heads, one
# program each, take {{one_program_us}} µs. Their 38 MB need 11 µs at 3.35 TB/s.
#
# The way out is **split-KV**: cut the context into `num_splits` parts, and give each to a program of its own.
# Each part yields its own out and its own log-sum-exp (lse), which lesson 01 merged. The price: these partial
# results go to memory and come back, in float32.

# %% [markdown]
# ## Predict: programs and partial bytes
#
# - A program takes up to 16 heads of one sequence, and one of `num_splits` parts of its context.
# - An SM is busy if it has a program; there are 132.
# - R = 512, Dr = 64. The cache has 2 bytes a word and is read once: programs that share it meet it in the L2.
# - A partial result is, for each head, R numbers and its lse, in float32. One kernel writes it, the next one
#   reads it. A split without tokens writes and reads one all the same. With one split there are none: the kernel
#   writes the result itself.
#
# The last number asked for is the point where a split no longer pays in bytes: at how many tokens per split do
# the partial results move as many bytes as the cache?
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
      partial_bytes  of partial results, written and read, also of splits that get no token; 0 for one split
      even_tokens    tokens per split at which a split's partial results and its part of the cache move equally
                     many bytes, a float; count partial results even for num_splits = 1

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
splits, SIZES = [2**n for n in range(9)], ((1, 16), (16, 16), (1, 128))
steps = {f"B = {B} · H = {H}": [predict_splits(B, H, 8192, n) for n in splits] for B, H in SIZES}
busy = {label: (splits, [step["busy_sms"] for step in each]) for label, each in steps.items()}
plots.curves({"T = 8192: what splits gain": busy}, xlabel="splits", ylabel="busy SMs of 132", log="x")

# %%
ratio = {}
for label in ("B = 1 · H = 16", "B = 1 · H = 128"):
    even = steps[label][0]["even_tokens"]
    values = [step["partial_bytes"] / step["cache_bytes"] for step in steps[label]]
    ratio[f"{label}: equal at {even:.0f} tokens a split"] = splits, values
ratio = {label: (ns[1:], costs[1:]) for label, (ns, costs) in ratio.items()}  # one split costs nothing
plots.curves({"T = 8192: what splits cost": ratio}, xlabel="splits", ylabel="partial bytes / cache bytes", log="xy")

# %% [markdown]
# For 16 heads there is room: with 32 or 64 splits the partial results are still a fraction of the cache. For 128
# heads there is less room, and less need, since 8 blocks of heads are 8 programs already.
#
# ## Scores need not exist
#
# The decode step of lesson 03, as PyTorch runs it:

# %%
def eager_decode(q_latent, q_rope, c_kv, k_rope, seq_lens, scale):
    scores = (q_latent @ c_kv.mT + q_rope @ k_rope.mT).float() * scale  # [B, H, T]
    beyond = torch.arange(c_kv.shape[1], device=scores.device) >= seq_lens[:, None, None]
    scores = scores.masked_fill(beyond, -math.inf)
    return scores.softmax(-1).to(c_kv.dtype) @ c_kv, scores.logsumexp(-1)


# %% [markdown]
# The recorder of lesson 04 counts its bytes, on tensors without data. The next cell divides them by the tokens of
# context, and tells the cache from everything else.

# %%
from autograder.kernels.worker.recording import recording

R, Dr = 512, 64
empty = lambda *shape, dtype=torch.bfloat16: torch.empty(shape, dtype=dtype, device="meta")


def bytes_per_token(B, H, T):
    """Bytes that eager_decode moves per token of context: of the cache, and of all else."""
    given = dict(q_latent=empty(B, H, R), q_rope=empty(B, H, Dr), c_kv=empty(B, T, R), k_rope=empty(B, T, Dr))
    given["seq_lens"] = empty(B, dtype=torch.int32)
    with recording(given) as recorder:
        eager_decode(**given, scale=1.0)
    names = [storage.get("input") for storage in recorder.storages]
    moved = [pair for event in recorder.events for pair in (*event["reads"], *event["writes"])]
    cache = sum(size for number, size in moved if names[number] in ("c_kv", "k_rope"))
    return {"cache": cache / (B * T), "scores and weights": (sum(size for _, size in moved) - cache) / (B * T)}


rows = {f"eager, H = {H}": bytes_per_token(4, H, 4096) for H in (128, 16)} | {"one kernel": {"cache": 2 * (R + Dr)}}
plots.stacked(rows, unit="bytes per token of context, bfloat16", title="A decode step of MLA")

# %% [markdown]
# `c_kv` is read twice, as keys and as values. A kernel that meets each token once reads 1152 bytes for
# it: 576 words of 2 bytes. It must use a token's latent for the score and, at once, as the value, before it knows
# the maximum and the sum of the softmax.
#
# ## Online softmax
#
# Lesson 05 kept a running maximum $m$ and a sum $\ell$ for each row. It walked twice, because weights can be
# written only when the sum is known. But nobody needs the weights. What is needed is the weighted sum of the
# values, and it can be kept relative to the running maximum as well. It is the third part of the state, the
# **accumulator** $o$, a row of R numbers. A block brings scores $s_t$ and values $v_t$:
#
# $$m' = \max(m, \max_t s_t), \qquad \alpha = e^{m - m'}$$
# $$\ell' = \alpha\,\ell + \sum_t e^{s_t - m'}, \qquad o' = \alpha\,o + \sum_t e^{s_t - m'}\, v_t$$
#
# Begin with $m = -\infty$, $\ell = 0$, $o = 0$. At the end $\text{out} = o / \ell$ and
# $\text{lse} = m + \ln \ell$. The factor $\alpha$ turns every weight from $e^{s - m}$ into $e^{s - m'}$; no score
# has to be seen again. In the picture three blocks of four tokens arrive (orange). Grey weights are older. A
# block with a larger maximum shrinks them all by the same α, from the dashed height:

# %%
torch.manual_seed(6)
plots.rescaling(torch.randn(12) + torch.linspace(0, 3, 12), 4, title="weights e^(s - m) after each block")

# %% [markdown]
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
# A head may see nothing of a block, and may have seen nothing before. Its maximum is then still −inf, and −inf −
# (−inf) is NaN. In exponents, put 0 in place of such a maximum: all its scores are −inf, and
# $e^{-\infty - 0} = 0$ is right.
#
# (The running sum is from *Online normalizer calculation for softmax*, Milakov and Gimelshein, arXiv:1805.02867.)
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
# The next cell walks along 4096 tokens in blocks of 64, and prints how far the result so far is from the softmax
# over all of them.

# %%
torch.manual_seed(6)
scores = 2 * torch.randn(1, 4096, dtype=torch.float64) + torch.linspace(0, 3, 4096, dtype=torch.float64)
values = torch.randn(4096, 8, dtype=torch.float64)
right = scores.softmax(-1) @ values

state = torch.full((1,), -math.inf).double(), torch.zeros(1).double(), torch.zeros(1, 8).double()
for block, (s, v) in enumerate(zip(scores.split(64, -1), values.split(64), strict=True), 1):
    state = m_i, l_i, acc = online_update(*state, s, v)
    if block in (1, 4, 16, 32, 63, 64):
        error = (acc / l_i[:, None] - right).norm() / right.norm()
        print(f"{64 * block:4} tokens seen: maximum {m_i.item():5.2f}, relative distance {error.item():.1e}")

# %% [markdown]
# Before the last block the result is that of a softmax over fewer tokens. After it, it is exact up to rounding.
#
# ## A step before the kernel: one block, used twice
#
# The kernel is `online_update` in a loop over blocks of tokens. First one turn of that loop, with no loop around
# it: 16 heads, and a context of at most `BLOCK_N` tokens. No points; the cell checks itself. The block of latents
# is loaded once and multiplied twice:

# %%
BLOCK, QUERY, STATE = "#E69F00", "#56B4E9", "#009E73"
plots.matrices(
    {
        "q [16, R]": (4, 8, [(0, 0, 4, 8, QUERY, "stays on the chip")]),
        "c_kv [T, R] in memory": (8, 8, [(2, 0, 3, 8, BLOCK, "block [BLOCK_N, R], loaded once")]),
        "qk = q · blockᵀ": (4, 3, [(0, 0, 4, 3, "#FFFFFF", "[16, BLOCK_N]")]),
        "acc += p · block": (4, 8, [(0, 0, 4, 8, STATE, "[16, R], stays on the chip")]),
    },
    title="One block of latents: as keys, and again as values",
)

# %% [markdown]
# Three lines are marked. What you need beside lesson 05:
#
# | function | gives |
# |---|---|
# | `tl.trans(x)` | the block with its axes exchanged, without another load |
# | `tl.max(x, axis=1)`, `tl.sum(x, axis=1)` | [M] from [M, N] |
# | `p.to(c.dtype)` | both operands of `tl.dot` must have one dtype; its accumulator stays float32 |
#
# <details><summary>The three lines</summary>
#
# `qk = tl.where(offs_n[None, :] < T, tl.dot(q, tl.trans(c)) * scale, float("-inf"))`. A masked load gives tokens
# of 0, whose score is 0 and not −∞: hence `tl.where`.
#
# `p = tl.exp(qk - tl.max(qk, axis=1)[:, None])`, and `l_i = tl.sum(p, axis=1)`.
#
# </details>

# %%
@triton.jit
def one_block_kernel(q_ptr, c_ptr, out_ptr, T, scale, R: tl.constexpr, BLOCK_N: tl.constexpr):
    """out = softmax(scale * q @ c.T) @ c. q_ptr, out_ptr: [16, R]; c_ptr: [T, R], T <= BLOCK_N."""
    offs_h, offs_n, offs_r = tl.arange(0, 16), tl.arange(0, BLOCK_N), tl.arange(0, R)
    q = tl.load(q_ptr + offs_h[:, None] * R + offs_r[None, :])  # [16, R]
    c = tl.load(c_ptr + offs_n[:, None] * R + offs_r[None, :], mask=offs_n[:, None] < T, other=0.0)  # [BLOCK_N, R]
    qk = tl.dot(q, tl.trans(c))  # [16, BLOCK_N]; 1. complete: scaled, and -inf for tokens from T on
    p = qk  # 2. replace: e^(score - maximum of its row)
    l_i = tl.full([16], 1.0, tl.float32)  # 3. replace: the sum of each row's weights
    acc = tl.dot(p.to(c.dtype), c)  # [16, R]
    tl.store(out_ptr + offs_h[:, None] * R + offs_r[None, :], acc / l_i[:, None])


torch.manual_seed(6)
q, c = torch.randn(16, 64, device=device).half(), torch.randn(27, 64, device=device).half()
out = torch.empty(16, 64, device=device)
one_block_kernel[(1,)](q, c, out, len(c), 0.2, R=64, BLOCK_N=32)
expected = (q.float() @ c.float().T * 0.2).softmax(-1) @ c.float()
error = ((out - expected).norm() / expected.norm()).item()
print("right" if error < 1e-2 else f"not yet: off by {error:.0%}")

# %% [markdown]
# ## Exercise: latent_decode
#
# Now the loop. One program has a block of heads of one sequence. Its query and its state (`m_i`, `l_i`, `acc`)
# stay on the chip. Each turn loads `BLOCK_N` tokens, latents and rotated keys, and does what one block did, with
# the factor α of `online_update`.
#
# | | shape | dtype |
# |---|---|---|
# | `q_latent`, `q_rope` | [B, H, R], [B, H, Dr]: the query, absorbed (lesson 03) and rotated | float16 or bfloat16 |
# | `c_kv`, `k_rope` | [B, T, R], [B, T, Dr]: latents and rotated keys | that of the query |
# | `seq_lens` | [B]; what the cache holds behind a sequence's length must not count: it is old, or NaN | int32 |
# | `scale` | | float |
# | returns `out` | [B, H, R]; zeros for a sequence of length 0 | that of the query |
# | returns `lse` | [B, H], natural logarithm; −inf for length 0 | float32 |
#
# All are contiguous. R and Dr are powers of two, 16 or more, so a whole row is one block: `R: tl.constexpr`. H
# and T are any numbers from 1 on. More than 128 sequences of 32,768 tokens have more than $2^{31}$ words of latents.
# No case here is as large, but your offsets reach as far: `b = tl.program_id(1).to(tl.int64)`. One launch computes both
# results. A store converts to the dtype of what it writes to; a cast behind the kernel is right as well, and takes
# the time of its bytes. `tl.full([M], float("-inf"), tl.float32)` makes a block of one number; `range(0, length,
# BLOCK_N)` may end at a number that was loaded.
#
# **What fits.** While `tl.dot` works, its operands lie in shared memory: the query during the whole loop, and a
# block of tokens. For 16 heads and 64 tokens that is (16 + 64) · 576 · 2 bytes, 90 KiB. With `num_stages=2`
# Triton 3.7 takes 92 KiB for it, on an L4, an A100 or an H100. More rows mean that fewer programs read the same
# token; more tokens mean fewer turns that wait for memory. The next cell chooses for you: `block_sizes(H)`
# returns BLOCK_H, BLOCK_N and `num_stages`.
#
# The accumulator, BLOCK_H × 512 numbers in float32, lies in the registers of the program's threads, and a thread has
# 255 at most. A warp is 32 threads. With 4 warps, Triton's default, 64 rows are 256 numbers a thread, more than fit:
# take `num_warps=8`. For 16 rows 4 will do, too. (On a T4 Triton multiplies without matrix units and holds operands in
# float32, so its blocks are small.)

# %% setup="block_sizes"
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
# A weight of 0 does not keep out a NaN behind the length: 0 · NaN is NaN inside `tl.dot`. So mask the loads by the
# length too, not by T alone.
#
# Every block that the loop visits has a token of the sequence, so no maximum is −inf after the first turn. A
# sequence of length 0 does not enter the loop: `l_i` is 0, and 0/0 is NaN unless you prevent it.
#
# **Points for speed.** The case is B = 128, H = 16, T = 4096 in bfloat16. Half of the points: 0.3 of the floor's
# speed. All: 0.5 of it, and 2 times the speed of eager PyTorch.
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
# length 0 that is 0 and −inf. In the launcher `block_h, block_n, stages = block_sizes(H)`, and 8 warps
# (for 16 rows 4 will do).
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
    contiguous; R and Dr are powers of two. seq_lens: [B], int32, 0 to T; scale: float, above 0.
    Returns out [B, H, R] in the dtype of the query and lse [B, H] in float32, natural logarithm; 0 and -inf for a
    sequence of length 0. Launches latent_decode_kernel once.

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
# The floor is the cache, read once at 3.35 TB/s, and 1 % for queries and results. Measured on an H100, same shape,
# with the L2 emptied before each call (`benchmarks/decode_h100.json`). `latent_attention` of this course's reference
# is a kernel such as yours; `latent_attention_tma` loads tokens by tensor descriptors, which let hardware compute the
# addresses. vLLM is a serving engine, whose kernel is Triton too. FlashMLA is DeepSeek's own, in CUDA.

# %%
from IPython.display import display
from mla_ref.hardware.cost import Cost

# B, H, T: µs
H100_DECODE = "{{steps}}"


h100 = DEVICES["h100"]


def draw_measured(B, H, T):
    """Bars of what was measured, and of the floor."""
    floor = Cost(bytes=2 * B * T * (R + Dr), flops=2 * B * H * T * (2 * R + Dr)).time(h100) * 1e6
    times = {"floor, data sheet": floor} | H100_DECODE[B, H, T]
    display(plots.bars(times, unit="µs on an H100, measured", title=f"Decode step, B={B}, H={H}, T={T}, bfloat16"))


draw_measured(128, 16, 4096)
draw_measured(128, 128, 4096)

# %% [markdown]
# With 16 heads all take {{above_the_floor}} longer than the floor. With 128 heads the block decides. With 16 heads in a
# block, as in vLLM's kernel, 128 heads read the cache 8 times, from the L2 at best. The reference has 32 heads in a
# block without descriptors, and 64 with them. The floor is still the cache, but barely: 128 heads on one token
# are 278,528 FLOPs for 1152 bytes, 242 FLOPs a byte, and from 295 on the arithmetic takes longer.
#
# ## Split-KV
#
# Now B = 1. A third axis of the grid counts the splits. Split $i$ of a sequence takes `share` tokens, from `i ·
# share` on, where `share` is the sequence's own length divided by `num_splits`, rounded up. The last split that
# has any may have fewer, and after it there may be splits with none. For 4 splits, and sequences of 41, 23 and 3 tokens
# in a cache of T = 44:

# %%
for length in (41, 23, 3):
    share = -(-length // 4)
    tokens = [len(range(length)[i * share : (i + 1) * share]) for i in range(4)]
    print(f"length {length:2}, share {share:2}, tokens of the splits {tokens}")

# %% [markdown]
# `share` depends on the length, not on T. The launcher cannot know the lengths: they are on the GPU, and reading
# them would make the host wait. So it chooses the number of splits from the shapes, and each program works out
# its share.
#
# ## Exercise: split_decode
#
# | | shape | dtype |
# |---|---|---|
# | arguments | as for `latent_decode`, and `num_splits`, an int from 1 on | |
# | returns `partial_out` | [num_splits, B, H, R], divided by its own `l_i`; 0 where a split has no token | float32 |
# | returns `partial_lse` | [num_splits, B, H], natural logarithm; −inf where a split has no token | float32 |
#
# Partial results stay in float32. Rounding them to 16 bits would add an error for every split, and an error in
# lse is a factor on everything. One launch for all splits.
#
# **Points for speed.** The case is B = 1, H = 16, T = 8192, 64 splits. The floor counts 2.8 µs for the cache and
# 0.6 µs for the partial results; a launch alone takes longer, so the bars are low. Half of the points: 0.12 of
# the floor's speed. All: 0.16 of it, and 3 times the speed of eager PyTorch.
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
    contiguous; R and Dr are powers of two. seq_lens: [B], int32, 0 to T; scale: float, above 0; num_splits: int.
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
# Part $i$ has the result $o_i$ and the log-sum-exp $z_i$ of its own tokens. The sum of all weights is the sum of
# the $e^{z_i}$. So
#
# $$z = \ln \sum_i e^{z_i}, \qquad o = \sum_i e^{z_i - z}\, o_i .$$
#
# It is a softmax over the parts. Two parts were merged so in lesson 01. Large $z_i$ overflow as scores do, hence
# the maximum again: $e^{z_i - \max}$, divided by the sum.
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
# The caller brings `out`, as serving engines do: they own their memory, and so the result gets the dtype they
# want. R is a power of two, P is any number from 1 to 256. One launch is enough; more are right, and slower.
#
# **Points for speed.** The case is P = 8, B = 32, H = 128, R = 512 into bfloat16. Half of the points: 0.3 of the
# floor's speed. All: 0.45 of it, and 2 times the speed of eager PyTorch.
#
# <details><summary>Hint 1</summary>
#
# B and H can be one axis: row `b * H + h` of M = B · H rows, and part p of it lies p · M rows further. One program
# takes all parts of a row, `[BLOCK_P, R]`, or a piece of its columns. About ten lines.
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
    """Merge the results of the parts of a context.

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
# More splits shorten the chain of blocks that each program works through, until the SMs are full or memory is.
# And every split costs a partial result, and the combine its launch. A rough model, with constants measured on an
# H100: a program of 16 heads needs {{block_us}} µs for a block of 64 tokens, and 1 µs besides; an SM holds two of them;
# memory gives {{copy_tb_per_s}} TB/s; a launch takes {{launch_us}} µs and a further one {{next_launch_us}} µs
# (the grader's constants); a combine takes 2 µs beside its bytes.

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
lines = {}
for B, T in ((1, 8192), (8, 4096), (128, 1024)):
    lines[f"B = {B} T = {T}, model"] = splits, [sum(step_time(B, 16, T, n).values()) for n in splits]
    if B in H100_SPLITS:
        lines[f"B = {B} T = {T}, measured"] = list(H100_SPLITS[B]), list(H100_SPLITS[B].values())
measured = [label for label in lines if "measured" in label]
plots.curves({"H = 16: decode step with its combine": lines}, xlabel="splits", ylabel="µs", log="xy", points=measured)

# %% [markdown]
# The marks that no line joins are measured on an H100, in blocks of 64 tokens (`model_measured.json`). Each has the
# colour of its model: the star at 16 splits is of B = 8, though it lies on the line of B = 1.
# The rough model is off by {{off_by}} of what was measured. Eight sequences are six times as fast with 16 splits as
# with one{{!six_times}}. 128 sequences are {{slower}} times as slow: they filled the GPU already, and 1024 tokens in
# 16 splits are 64 tokens each, near the 57 at which partial results move as many bytes as the cache.
#
# The next cell takes the model's time apart. Find where waiting disappears, and where the combine begins to show.

# %%
rows = {f"{n} splits": step_time(4, 16, 8192, n) for n in (4, 8, 16, 32, 64, 128, 256)}
plots.stacked(rows, unit="µs by the rough model", title="B = 4, H = 16, T = 8192")

# %% [markdown]
# So a launcher chooses: as many splits as fit into one program an SM (rounded down), at most one for every 128 tokens
# of T begun, and at least one. It can use shapes only. With B sequences and ⌈H/BLOCK_H⌉ blocks of heads,
#
# $$\text{num\_splits} = \max\Big(1,\ \min\big(\lfloor 132 / (B \cdot \lceil H / \text{BLOCK\_H}\rceil) \rfloor,\
# \lceil T / 128 \rceil\big)\Big).$$
#
# ## Fold query tokens into heads
#
# A step may have several query tokens: speculative decoding checks a few guessed tokens at once. With S tokens
# there are S · H queries per sequence, and all meet the same cache. One program per token reads the cache S
# times. And where 128 heads are shared by 8 or 16 GPUs, 16 or 8 are left on each: a block of 16 rows is just
# full, or half empty.
#
# Lesson 05 has the remedy: heads are rows. Row $m = s \cdot H + h$ of a sequence is head h of token s. The
# queries lie in memory in just this order, [S, H, R]. Nothing is moved: **folding** is to call S · H the number
# of heads.
#
# TokenSpeed-MLA, a set of MLA kernels for NVIDIA's Blackwell GPUs, folds so. There a block has 128 rows. Its
# kernel runs over groups of tokens that are all alike, so it takes the largest factor F that divides S and for
# which F · H is at most 128. F tokens share a block, and S / F groups remain, each of which reads the cache.
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
# 5 tokens have no factor but 1 and 5: with 32 heads, 4 tokens read the cache once, and 5 tokens read it 5 times.
#
# ## Causal inside the fold
#
# The S query tokens are the last of the context: token s stands at position length − S + s and sees positions up
# to its own. That is length − S + s + 1 positions, and s is m // H. So each row of the block has an end of its
# own. The picture has S = 3, H = 2 and a sequence of length 10.

# %%
S, H, length = 3, 2, 10
offs_m = torch.arange(S * H)[:, None]
seen = torch.arange(length + 2)[None, :] < length - S + offs_m // H + 1
plots.matrix(seen, title="Bright: what row m = s·H + h sees (token m // H)", xlabel="position", ylabel="row m")

# %% [markdown]
# This has a consequence for the online softmax. Take a split that holds only position 9. The rows of tokens 0 and
# 1 see nothing in it, while others do. Their maximum stays −inf, −inf − (−inf) is NaN, and so are their weights,
# sum and accumulator.
#
# In the kernel of `split_decode` such a row would end with a sum of NaN. If you wrote your guard against 0/0 as
# `l_i > 0`, it is false for NaN and takes 1 for the sum. The row's maximum is −inf, so its lse is −inf + ln 1 = −inf,
# and `combine_splits` does not read what an empty part holds. A kernel that writes its result itself, or another
# combine, would hand the NaN on. So use the stand-in of `online_update`: it costs a line.
#
# ## Exercise: folded_decode
#
# Everything together: fold, split, combine. You choose the number of splits. Shapes are enough for that. To read the
# lengths would have the host wait for the GPU, which no modelled time shows. `combine_splits` may be called; the grader
# supplies a right one, and that takes any number of splits. Make `out` [B, S, H, R] and pass `out.view(B, S * H, R)`.
# Partial results are [num_splits, B, S · H, R] and [num_splits, B, S · H], float32.
#
# | | shape | dtype |
# |---|---|---|
# | `q_latent`, `q_rope` | [B, S, H, R], [B, S, H, Dr], contiguous | float16 or bfloat16 |
# | `c_kv`, `k_rope`, `seq_lens`, `scale` | as before; lengths count the S new tokens, and may be less than S | |
# | returns `out` | [B, S, H, R]; zeros for a query that sees nothing | that of the query |
# | returns `lse` | [B, S, H]; −inf for a query that sees nothing | float32 |
#
# S · H need not be a power of two, nor divide 128: rows that do not exist are masked, as heads were. So any S can
# be folded, and F is not needed.
#
# **Points for speed.** The case is B = 4, S = 4, H = 16, T = 16384; TokenSpeed's benchmark has these B, S and H.
# Half of the points: 0.15 of the floor's speed. All: 0.19 of it, and 2.3 times the speed of eager PyTorch. Blocks
# of 16 rows read the cache 4 times: with the splits of the formula they do not reach the second bar.
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
    """A decode step of S query tokens, folded into the heads, split and combined.

    q_latent: [B, S, H, R]; q_rope: [B, S, H, Dr]; c_kv: [B, T, R]; k_rope: [B, T, Dr]; float16 or bfloat16,
    contiguous; R and Dr are powers of two. seq_lens: [B], int32, 0 to T, the S new tokens included; scale: float,
    above 0.
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
# ## Your code in the model
#
# The trained model of lesson 02 reads the prompt its own way. From then on your `latent_decode` attends for it, in
# float16, one byte at a time. Emulated, that takes up to a minute.

# %%
from mla_ref import playground

playground.write("class Cache:\n    ", decode=latent_decode, new=40, device=device)

# %% [markdown]
# ## Measure
#
# On a GPU the next cell times your kernels, in float16. (On a T4 they are slow: small blocks, and Triton
# does not use its matrix units.)

# %%
from mla_ref import bench
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
# For one sequence no implementation comes near the floor{{!far_from_the_floor}}: latency decides. 9.4 MB take
# 2.8 µs at full bandwidth; before any of them arrives a launch, an address and a trip to memory have to pass,
# twice with a combine. In a CUDA graph, where a launch is cheaper and the cache stays in the L2, `latent_attention`
# takes {{graph_us}} µs. At B = 16 the bytes weigh more: the best time is {{best_16_us}} µs, over a floor of
# {{floor_16_us}} µs.
#
# Four query tokens, folded, over TokenSpeed's 81920 tokens (B = 4, H = 16): `latent_attention_tma` takes
# {{folded_us}} µs. The floor is 113 µs.
#
# ## What you have now
#
# - A decode step whose scores never leave the chip, and whose cache is read once.
# - Two limits of small problems, and a remedy for each: too few programs (split the context), too few rows (fold
#   the tokens).
# - A combine of partial attention that does not care where the parts come from. Lesson 09 uses it for parts that
#   are computed by two different kernels.
# - A cache that is contiguous. Serving engines keep it in pages: lesson 07.
#
# Figures: {{records}}.

# %% [markdown]
# <details><summary>Appendix: what went wrong elsewhere, and where this comes from</summary>
#
# **Sources.** Name and split are from *Flash-Decoding for long-context inference* (Dao, Haziza, Massa, Sizov,
# 2023); two kernels and the fold are TokenSpeed-MLA's.
#
# **Two kernels or one.** TokenSpeed's decode is two kernels: split-KV, and a second one that reduces the partial
# results. TensorRT-LLM, by TokenSpeed's account, has a single one. A second launch costs a few microseconds, less
# in a CUDA graph, and still less where the second kernel may start before the first has ended.
#
# **Which logarithm.** GPUs compute $2^x$, so kernels multiply the scale by $\log_2 e$ and work in base 2. Some
# return the lse so. FlashInfer's is base 2. FlashMLA's is base e in its dense decode and base 2 in its sparse
# prefill. Combining one as the other gives no error message, only a result that is off: 0.105 at most in one such
# case, 0.0005 once corrected (sglang #35045; flashinfer #2113 and #4485 are others). The public TyphoonMLA code
# combines base-2 values with `exp`, and its test never runs the merge.
#
# **Empty rows.** −inf in one library, +inf in another. A +inf that meets your combine gives NaN.
#
# **What lies behind the length.** A cache is not cleared. Behind a sequence's last token lie old ones, or memory
# that was never written, which may hold NaN. A weight of 0 does not help: 0 · NaN is NaN inside `tl.dot`. So the
# loads are masked as well as the scores.
#
# **The number of splits.** Where it decides over shared memory, changing it broke kernels (vllm #46728, sglang
# #27786). One serving kernel fixes it at 4 and keeps its lse in the query's dtype. In bfloat16 an lse of 10 is
# rounded by up to 0.03, a factor of 3 % on that part.
#
# **Few heads.** With tensor parallelism fewer than 16 heads per GPU do not fill a block (aiter #2577, vllm
# #50578), and padding 16 of them to 64 makes 4 times the arithmetic. One engine padded 32 to 128 (sglang #27954).
# Folding fills the block where there are several tokens.
#
# **Offsets.** Token 3.73 million of a cache with 576 words each lies beyond $2^{31}$ words, and 32-bit offsets
# wrap there (vllm #47671, sglang #14224, tokenspeed #501). Your kernels should multiply `b * T` in 64 bits.
#
# **Larger blocks.** 64 rows with 64 tokens would take 216 KiB by Triton 3.7 on an H100, and more than there is on
# a B200.
#
# </details>
