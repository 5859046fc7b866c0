# %% [markdown]
# # Lesson 11: prefill and FP8
#
# Until now a sequence brought one token, or a few. **Prefill** brings the whole prompt: the form is naive, arithmetic
# decides, and no two prompts are equally long. You plan the work of a packed batch, write its attention kernel, take a
# long prompt in chunks, and then put caches and keys into eight bits. Allow five hours: one to read, four for the
# exercises.
#
# | exercise | you write | points right | points fast |
# |---|---|---|---|
# | `prefill_work` | what padding and causality spare | 3 | |
# | `plan_tiles` | which rows of which sequence a program gets | 4 | |
# | `ragged_prefill` | the kernel: online softmax over packed sequences | 5 | 3 |
# | `chunked_prefill` | a context in chunks, merged by log-sum-exps | 4 | |
# | `quantize_cache` | latents in FP8: a scale for the tensor, a token, a tile | 4 | |
# | `pack_fp8` | the kernel: keys put together and everything cast, in one pass | 4 | 3 |
#
# Each exercise may take 10 s and 512 MiB for all its cases; speed has a limit of its own. Speed is
# that of an H100.
#
# | symbol | meaning | DeepSeek-V3 |
# |---|---|---|
# | B | sequences in the batch | |
# | S, T | of one sequence: new query tokens, and keys; the new ones are the last of them | |
# | Nq, Nkv | query tokens and keys of all sequences together | |
# | H | heads | 128 |
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
# ## Why: a batch is not a rectangle
#
# With S new tokens every head computes S·T scores, and lesson 08 showed what follows: the naive form takes 3.4 times
# fewer multiply-accumulates than absorb, so prefill expands the latents into keys of Dn+Dr = 192 and values of Dv =
# 128 for each head. What is left is the shape of the batch. A tensor [B, longest, H, D] holds **padding** behind
# every shorter prompt. The alternative is to **pack**: all rows one behind the other in [Nq, H, D], and beside it
# `cu_seqlens`, the offsets at which sequences begin, with the total at the end. Prompts of 3, 5 and 2 tokens have
# `cu_seqlens = [0, 3, 8, 10]`.
#
# Queries and keys need offsets of their own. A prompt may have a cached context before it: then its S queries attend
# to T > S keys. The picture has three sequences with S = 3, 5, 2 and T = 7, 5, 6. Bright: what a query sees.

# %%
from mla_ref import plots

packs = ((3, 7), (5, 5), (2, 6))  # S, T
seen, row, column = torch.zeros(10, 18), 0, 0
for S, T in packs:
    s, t = torch.arange(S)[:, None], torch.arange(T)
    seen[row : row + S, column : column + T] = (t < T - S + s + 1).float()
    row, column = row + S, column + T
plots.matrix(seen, title="cu_seqlens_q = [0, 3, 8, 10], cu_seqlens_kv = [0, 7, 12, 18]", xlabel="key", ylabel="query")

# %% [markdown]
# Two things are to be seen. No query sees a key of another sequence. And the triangles stand at the right: the
# **last** query of a sequence stands at its last key. The mask is *aligned bottom-right*: query s of S sees the T − S
# keys of the context and s + 1 new ones, T − S + s + 1 in all. Aligned top-left it would see the first s + 1 keys of
# the context.
#
# How much is padding? These are lengths of 256 questions of GSM8K, a set of school mathematics, in DeepSeek-V3's
# tokens (drawn from the quantiles in `mla_ref.WORKLOADS`).

# %%
import numpy as np
from mla_ref import DEVICES, WORKLOADS

gsm8k = WORKLOADS["deepseek_v3", "gsm8k"].draw(256, np.random.default_rng(0))[0].tolist()
rows = {"padded": {"tokens": sum(gsm8k), "padding": 256 * max(gsm8k) - sum(gsm8k)}, "packed": {"tokens": sum(gsm8k)}}
plots.stacked(rows, unit="rows of q, k and v", title=f"256 prompts, {min(gsm8k)} to {max(gsm8k)} tokens")

# %% [markdown]
# More than half of the rows are padding. Attention is worse off than that, since it works on *pairs* of rows. How much
# worse, you say:
#
# ## Predict: what padding and causality spare
#
# Write your guess first: how many times as many pairs has the padded batch, without a mask, as the packed one has
# pairs that are seen?

# %%
guess = 5  # put your own number here

# %% [markdown]
# Then count. Sequence b has `lengths_q[b]` queries, which are the last of its `lengths_kv[b]` tokens, and each sees
# all up to itself.
#
# - `padding` is the share of rows of a padded batch of queries that hold no token, 0 to 1.
# - A padded batch without a mask has B · longest S · longest T pairs.
# - One multiply-accumulate is two FLOPs. A pair takes, for each head, a score over Dn+Dr and a weighted value of Dv.
#
# <details><summary>Hint 1</summary>
#
# Query s of S sees T − S + s + 1 keys. The sum over s from 0 to S − 1 is S·T less the triangle that is hidden.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `S * T - S * (S - 1) // 2`. For S = T it is S(S+1)/2, for S = 1 it is T.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `slots = len(lengths_q) * max(lengths_q)`, `padding = 1 - sum(lengths_q) / slots`, `flops = 2 * pairs * H * (Dn + Dr
# + Dv)`. About eight lines.
#
# </details>

# %% solution="prefill_work"
def prefill_work(lengths_q, lengths_kv, H, Dn, Dr, Dv, rate):
    """What causal attention over a packed batch computes, and what a padded one would.

    lengths_q, lengths_kv: lists of int, query tokens and keys of each sequence, 1 <= lengths_q[b] <= lengths_kv[b];
    H, Dn, Dr, Dv: int, the layer's sizes; rate: FLOP/s.

    Returns a dict of numbers:
      tokens              queries in all
      padding             rows of the padded queries that hold none, over all of its rows: 0 to 1
      pairs               of a query and a key that it sees, of one head
      padded_over_pairs   pairs of the padded batch without a mask, over `pairs`
      flops               of all heads, for the pairs that are seen: scores and weighted values
      us                  microseconds that these take at the rate

    The trap: the last query stands at the last key.
    """
    ### BEGIN SOLUTION
    slots = len(lengths_q) * max(lengths_q)
    pairs = sum(S * T - S * (S - 1) // 2 for S, T in zip(lengths_q, lengths_kv, strict=True))
    flops = 2 * pairs * H * (Dn + Dr + Dv)
    return {
        "tokens": sum(lengths_q),
        "padding": 1 - sum(lengths_q) / slots,
        "pairs": pairs,
        "padded_over_pairs": slots * max(lengths_kv) / pairs,
        "flops": flops,
        "us": 1e6 * flops / rate,
    }
    ### END SOLUTION


# %% check="prefill_work"
check("prefill_work")

# %%
sizes, h200 = dict(H=128, Dn=128, Dr=64, Dv=128), DEVICES["h200"]
batches = {
    "256 questions of GSM8K": (gsm8k, gsm8k),
    "the same, all of one length": ([round(sum(gsm8k) / 256)] * 256,) * 2,
    "one prompt of 8192": ([8192], [8192]),
    "4 chunks of 512 behind 80K": ([512] * 4, [81920] * 4),
}
print("                              padding   padded over seen     GFLOP   least time, H200")
for label, (lengths_q, lengths_kv) in batches.items():
    said = prefill_work(lengths_q, lengths_kv, **sizes, rate=h200.rate())
    line = f"{label:29} {said['padding']:7.0%} {said['padded_over_pairs']:18.1f} {said['flops'] / 1e9:9,.0f}"
    print(line + f" {said['us']:11,.0f} µs")

# %% [markdown]
# A rectangle costs twice what causality leaves over, even where all lengths are equal. With lengths such as GSM8K's
# another factor comes on top, because the longest prompt sets both sides of every square. Chunks behind a long context
# have hardly anything to save: nearly all of their pairs are seen.
#
# ## Exercise: plan_tiles
#
# A kernel gives each program a **tile**: up to `block` query rows of one sequence. It must not reach across a
# boundary, since the next sequence has other keys. So a sequence of S rows has ⌈S/block⌉ tiles, the last one perhaps
# not full, and the batch has as many as their sum. In a table, one row a tile: which sequence, where in it the tile
# starts, and how many keys the program's loop has to visit. Causality ends the loop early: no row of the tile sees
# more than its last one does.

# %%
EVEN, ODD = "#E69F00", "#56B4E9"
plots.matrices(
    {
        "S = 5, T = 9, block 2: keys seen by row": (
            5, 9, [(s, 0, 1, 5 + s, (EVEN, ODD)[s // 2 % 2], f"row {s}: {5 + s}") for s in range(5)]
        ),
        "tiles": (
            3, 9, [(0, 0, 1, 6, EVEN, "start 0, keys 6"), (1, 0, 1, 8, ODD, "start 2, keys 8"),
                   (2, 0, 1, 9, EVEN, "start 4, keys 9")]
        ),
    },
    title="A loop ends with what the last row of a tile sees",
)  # fmt: skip

# %% [markdown]
# In PyTorch; a loop in Python is as good as a formula here. Sequences come in order, and so do the tiles of each.
#
# | | shape | dtype |
# |---|---|---|
# | `cu_seqlens_q`, `cu_seqlens_kv` | [B+1], from 0, never falling | int32 |
# | `block` | | int |
# | `causal` | False: every row sees all T keys of its sequence | bool |
# | returns `tiles` | [number of tiles, 3]: sequence, start, keys | int32 |
#
# A sequence without queries has no tile. `start` counts from the sequence's own first row. A sequence may have more
# queries than keys (S > T): then its first S − T rows see nothing, and a tile of such rows has 0 keys.
#
# <details><summary>Hint 1</summary>
#
# Lengths are differences: `cu_seqlens_q.diff()`. Row s of S sees T − S + s + 1 keys, and the last row of a tile is
# `min(start + block, S) - 1`.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `counts = (S + block - 1) // block` and `b = torch.repeat_interleave(torch.arange(len(S)), counts)` give each tile
# its sequence. Its number within the sequence is its number in all, less the tiles of the sequences before.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `first = counts.cumsum(0) - counts`, `start = (torch.arange(len(b)) - first[b]) * block`, `end = torch.minimum(start
# + block, S[b])`, `keys = (T[b] - S[b] + end).clamp(min=0)`. Then `torch.stack((b, start, keys), 1).int()`. Seven
# lines.
#
# </details>

# %% solution="plan_tiles"
def plan_tiles(cu_seqlens_q, cu_seqlens_kv, block, causal):
    """Cut the queries of packed sequences into tiles of up to `block` rows.

    cu_seqlens_q, cu_seqlens_kv: [B + 1], int32; block: int; causal: bool, aligned bottom-right.
    Returns tiles [number of tiles, 3], int32, in the order of the rows: the sequence, the first row counted from the
    sequence's own first one, and how many keys of the sequence the tile's last row sees.

    The traps: the last tile of a sequence is not full; a length is a difference; S may exceed T.
    """
    ### BEGIN SOLUTION
    S, T = cu_seqlens_q.diff(), cu_seqlens_kv.diff()
    counts = (S + block - 1) // block
    b = torch.repeat_interleave(torch.arange(len(S), device=S.device), counts)
    first = counts.cumsum(0) - counts
    start = (torch.arange(len(b), device=S.device) - first[b]) * block
    end = torch.minimum(start + block, S[b])
    keys = (T[b] - S[b] + end).clamp(min=0) if causal else T[b]
    return torch.stack((b, start, keys), 1).int()
    ### END SOLUTION


# %% check="plan_tiles"
check("plan_tiles")

# %%
offsets = lambda lengths: torch.tensor([0, *lengths]).cumsum(0).int()
for block in (16, 64, 128):
    tiles = plan_tiles(offsets(gsm8k), offsets(gsm8k), block, True)
    full = sum(gsm8k) / (len(tiles) * block)
    print(f"block {block:3}: {len(tiles):5} tiles, {full:4.0%} of their rows hold a query")

# %% [markdown]
# The padding has not gone altogether: it is in the tiles that are not full. With 128 rows a tile it is much of the
# batch again, for prompts as short as these. Nothing of it is in memory, though.
#
# An engine plans once for a batch, on the host, which knows the lengths, and all layers use the table.
# FlashAttention-2 does without: it launches as many tiles for every sequence as the *longest* one has, and a program
# whose tile does not exist ends at once.
#
# ## Exercise: ragged_prefill
#
# Now the kernel, in the simpler way: grid `(triton.cdiv(longest, BLOCK_M), H, B)`. A program has one tile of one
# sequence and one head. It loads the offsets of its sequence, ends if its tile does not exist, and loads its queries;
# then the loop of lesson 06 runs over the sequence's own keys, up to `keys` of `plan_tiles`, and the mask is that of
# `folded_decode` with tokens for rows. Keys come in two parts, so that every width is a power of two: `k_nope` is each
# head's own, `k_rope` is one row for all heads, as in the latent cache.
#
# | | shape | dtype |
# |---|---|---|
# | `q_nope`, `q_rope` | [Nq, H, Dn], [Nq, H, Dr], rotated | float16 or bfloat16 |
# | `k_nope`, `k_rope`, `v` | [Nkv, H, Dn], [Nkv, Dr], [Nkv, H, Dv] | that of the query |
# | `cu_seqlens_q`, `cu_seqlens_kv` | [B+1] | int32 |
# | `longest` | the most queries that a sequence has, 1 at least | int |
# | `scale`, `causal` | `scale` above 0 | float, bool |
# | returns `out` | [Nq, H, Dv]; zeros for a query that sees nothing | that of the query |
# | returns `lse` | [Nq, H], **natural** logarithm; −inf for a query that sees nothing | float32 |
#
# All are contiguous; Dn, Dr and Dv are powers of two from 16 on. A sequence may be empty on either side, and may have
# more queries than keys. (If you prefer a table, `plan_tiles` may be called; the grader supplies a right one. Its
# launches count.) What fits into shared memory, the next cell knows.

# %% setup="tile_sizes"
# KiB of shared memory for a program; without a GPU, those of the H100 that kernels are graded for
limits = {"max_shared_mem": 227 * 1024} if emulated else triton.runtime.driver.active.utils.get_device_properties(0)
shared_kib = limits["max_shared_mem"] // 1024


def tile_sizes():
    """Return BLOCK_M, BLOCK_N, num_warps and num_stages: what shared memory has room for."""
    return (128, 64, 8, 2) if shared_kib > 96 else (16, 32, 4, 1)  # A100, H100, B200; T4, MI300X


# %% [markdown]
# Three masks, of three different things. Rows behind the sequence's end belong to the next one: mask their loads and
# their stores by S. Keys behind the sequence's end belong to the next one too: mask by T, also where nothing is
# causal. And each row has its own limit, T − S + row + 1. With S > T, or beside a row that sees more, a row may see
# nothing of a block: use the stand-in for a maximum of −inf (lesson 06).
#
# **Which logarithm.** GPUs compute $2^x$, and a fast kernel multiplies the scale by $\log_2 e$ and works in base 2.
# That is its own affair, as long as the lse that it returns is natural: $\ln \ell = \ln 2 \cdot \log_2 \ell$. The next
# exercise merges by it.
#
# **Points for speed.** The case is what most of a long context is: two sequences, each of 512 queries against 2048
# tokens that all lie before them, so not causal; H = 64, DeepSeek-V3's widths, bfloat16. Arithmetic decides. Half of
# the points: 0.13 of the floor's speed. All: 0.24 of it, and 2 times the speed of a padded batch in eager PyTorch.
#
# <details><summary>Hint 1</summary>
#
# Four loads give the offsets: `first_q` and `first_k` from place b, and S and T as differences to place b + 1. `start
# = tl.program_id(0) * BLOCK_M`, and `if start >= S: return`. Row m of the tile is row `first_q + start + m` of the
# pack.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `offs_m = start + tl.arange(0, BLOCK_M)` are rows within the sequence; `(first_q + offs_m) * H + h` is where they
# lie, in units of Dn, Dr or Dv. Tokens: `first_k + offs_n`; k_nope and v lie at `tokens * H + h`, k_rope at `tokens`.
# Cast the first offsets to `tl.int64`.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `keys = T - S + tl.minimum(start + BLOCK_M, S)` if `CAUSAL`, else T; the loop is `range(0, keys, BLOCK_N)` and does
# not run for fewer than 1. `seen = offs_n[None, :] < T`, and with `CAUSAL` also `offs_n[None, :] < (T - S + offs_m +
# 1)[:, None]`. The rest is `folded_decode`'s loop: two products into one `qk`, the scale, `tl.where`, `m_new`,
# `base`, `p`, `alpha`, `l_i`, `acc`.
#
# </details>

# %% solution="ragged_prefill"
@triton.jit
def ragged_prefill_kernel(
    q_nope_ptr, q_rope_ptr, k_nope_ptr, k_rope_ptr, v_ptr, cu_q_ptr, cu_kv_ptr, out_ptr, lse_ptr, scale, H,
    CAUSAL: tl.constexpr, DN: tl.constexpr, DR: tl.constexpr, DV: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):
    """One program: one tile of queries, one head.

    q_nope_ptr: [Nq, H, DN]; q_rope_ptr: [Nq, H, DR]; k_nope_ptr: [Nkv, H, DN]; k_rope_ptr: [Nkv, DR];
    v_ptr: [Nkv, H, DV]; cu_q_ptr, cu_kv_ptr: [B + 1]; out_ptr: [Nq, H, DV]; lse_ptr: [Nq, H].
    """
    ### BEGIN SOLUTION
    start, h, b = tl.program_id(0) * BLOCK_M, tl.program_id(1), tl.program_id(2)
    first_q, first_k = tl.load(cu_q_ptr + b).to(tl.int64), tl.load(cu_kv_ptr + b).to(tl.int64)
    S = (tl.load(cu_q_ptr + b + 1) - first_q).to(tl.int32)
    T = (tl.load(cu_kv_ptr + b + 1) - first_k).to(tl.int32)
    if start >= S:
        return
    keys = T - S + tl.minimum(start + BLOCK_M, S) if CAUSAL else T  # that the tile's last row sees

    offs_m, offs_n = start + tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_N)
    offs_dn, offs_dr, offs_dv = tl.arange(0, DN), tl.arange(0, DR), tl.arange(0, DV)
    row = (first_q + offs_m) * H + h
    exists = offs_m[:, None] < S
    # [BLOCK_M, DN] and [BLOCK_M, DR]
    q_nope = tl.load(q_nope_ptr + row[:, None] * DN + offs_dn[None, :], mask=exists, other=0.0)
    q_rope = tl.load(q_rope_ptr + row[:, None] * DR + offs_dr[None, :], mask=exists, other=0.0)
    limit = T - S + offs_m + 1  # [BLOCK_M]

    m_i = tl.full([BLOCK_M], float("-inf"), tl.float32)
    l_i = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, DV], tl.float32)
    for first in range(0, keys, BLOCK_N):
        inside = (first + offs_n < T)[:, None]
        token = first_k + first + offs_n
        kv_row = (token * H + h)[:, None]
        # [BLOCK_N, DN], [BLOCK_N, DR] and [BLOCK_N, DV]
        k_nope = tl.load(k_nope_ptr + kv_row * DN + offs_dn[None, :], mask=inside, other=0.0)
        k_rope = tl.load(k_rope_ptr + token[:, None] * DR + offs_dr[None, :], mask=inside, other=0.0)
        v = tl.load(v_ptr + kv_row * DV + offs_dv[None, :], mask=inside, other=0.0)
        qk = tl.dot(q_nope, tl.trans(k_nope))
        qk = tl.dot(q_rope, tl.trans(k_rope), qk) * scale  # [BLOCK_M, BLOCK_N]
        seen = (first + offs_n)[None, :] < T
        if CAUSAL:
            seen = seen & ((first + offs_n)[None, :] < limit[:, None])
        qk = tl.where(seen, qk, float("-inf"))

        m_new = tl.maximum(m_i, tl.max(qk, axis=1))
        base = tl.where(m_new == float("-inf"), 0.0, m_new)  # of a row that has seen nothing
        p = tl.exp(qk - base[:, None])
        alpha = tl.exp(m_i - base)
        l_i = l_i * alpha + tl.sum(p, axis=1)
        acc = tl.dot(p.to(v.dtype), v, acc * alpha[:, None])
        m_i = m_new

    l_i = tl.where(l_i > 0, l_i, 1.0)  # where nothing is seen: out 0, and lse the maximum, -inf
    tl.store(out_ptr + row[:, None] * DV + offs_dv[None, :], acc / l_i[:, None], mask=exists)
    tl.store(lse_ptr + row, m_i + tl.log(l_i), mask=offs_m < S)
    ### END SOLUTION


def ragged_prefill(q_nope, q_rope, k_nope, k_rope, v, cu_seqlens_q, cu_seqlens_kv, longest, scale, causal):
    """Attention over packed sequences, in one launch.

    q_nope: [Nq, H, Dn]; q_rope: [Nq, H, Dr]; k_nope: [Nkv, H, Dn]; k_rope: [Nkv, Dr]; v: [Nkv, H, Dv]; float16 or
    bfloat16, contiguous; Dn, Dr and Dv are powers of two. cu_seqlens_q, cu_seqlens_kv: [B + 1], int32; longest: int,
    the most queries that a sequence has, 1 at least; scale: float, above 0; causal: bool, aligned bottom-right.
    Returns out [Nq, H, Dv] in the dtype of the query and lse [Nq, H] in float32, natural logarithm; 0 and -inf for a
    query that sees nothing. Launches ragged_prefill_kernel once.

    The traps: queries and keys have offsets of their own; a block goes further than a sequence; a row may see nothing.
    """
    ### BEGIN SOLUTION
    (Nq, H, Dn), Dr, Dv = q_nope.shape, q_rope.shape[2], v.shape[2]
    out = torch.empty((Nq, H, Dv), dtype=q_nope.dtype, device=q_nope.device)
    lse = torch.empty((Nq, H), dtype=torch.float32, device=q_nope.device)
    block_m, block_n, warps, stages = tile_sizes()
    ragged_prefill_kernel[(triton.cdiv(longest, block_m), H, len(cu_seqlens_q) - 1)](
        q_nope, q_rope, k_nope, k_rope, v, cu_seqlens_q, cu_seqlens_kv, out, lse, scale, H,
        CAUSAL=causal, DN=Dn, DR=Dr, DV=Dv, BLOCK_M=block_m, BLOCK_N=block_n, num_warps=warps, num_stages=stages,
    )
    return out, lse
    ### END SOLUTION


# %% check="ragged_prefill"
check("ragged_prefill")

# %% speed="ragged_prefill"
check_speed("ragged_prefill")

# %% [markdown]
# ## A prompt too long for its keys
#
# The latents of a context lie in the cache; its keys and values do not. For 80K tokens of DeepSeek-V3 they would be
# 81920 · 128 · (192 + 128) words, 6.7 GB in 16 bits, for every layer in turn. So an engine expands the context in
# **chunks**, attends to each, and merges. It is split-KV again (lesson 06), one part after the other:
#
# - a chunk of the context lies wholly *before* the new tokens: not causal;
# - the S new tokens are the last part: causal;
# - each part gives out and lse, and the lses say what each weighs.
#
# ## Exercise: chunked_prefill
#
# In PyTorch, float32. Sequence b has T − S tokens of context. Chunk n has of each sequence the context tokens from
# `n * chunk` up to `(n + 1) * chunk`, as far as there are any; there are as many chunks as the longest context needs.
# The part behind them is the new tokens. Expand each part by itself, which is what the chunks are for, though the check
# sees numbers alone, and not memory: a key is `w_uk` times the latent, and behind it the token's `k_rope`, **the same
# for every head**. `attend` is there for you:

# %% setup="attend"
def attend(q, k, v, cu_seqlens_q, cu_seqlens_kv, causal):
    """Attention over packed sequences, scale 1/√D. q: [Nq, H, D]; k: [Nkv, H, D]; v: [Nkv, H, Dv].

    Returns out [Nq, H, Dv] and lse [Nq, H], natural; 0 and -inf where a query sees nothing.
    """
    out, lse = q.new_zeros(*q.shape[:2], v.shape[2]), q.new_full(q.shape[:2], -math.inf)
    ends_q, ends_kv = cu_seqlens_q.tolist(), cu_seqlens_kv.tolist()
    for b in range(len(ends_q) - 1):
        rows, tokens = slice(ends_q[b], ends_q[b + 1]), slice(ends_kv[b], ends_kv[b + 1])
        scores = torch.einsum("shd,thd->sht", q[rows], k[tokens]) * q.shape[2] ** -0.5
        if causal:
            S, _, T = scores.shape
            scores = scores.masked_fill(torch.arange(T) > torch.arange(T - S, T)[:, None, None], -math.inf)
        lse[rows] = scores.logsumexp(-1)
        out[rows] = torch.einsum("sht,thv->shv", scores.softmax(-1).nan_to_num(), v[tokens])
    return out, lse


# %% [markdown]
# | | shape | |
# |---|---|---|
# | `q` | [Nq, H, Dn+Dr] | rotated |
# | `c_kv`, `k_rope` | [Nkv, R], [Nkv, Dr] | packed by `cu_seqlens_kv`; keys rotated |
# | `w_uk`, `w_uv` | [H, Dn, R], [H, Dv, R] | |
# | `cu_seqlens_q`, `cu_seqlens_kv` | [B+1], int32 | S ≤ T; S may be 0 |
# | `chunk` | int | tokens of context that a sequence has in a chunk |
# | returns `out`, `lse` | [Nq, H, Dv], [Nq, H] | over the whole context |
# | returns `part_lse` | [chunks + 1, Nq, H] | of each part; −inf where it has no token of the query's sequence |
#
# log-sum-exps may be in the hundreds.
#
# <details><summary>Hint 1</summary>
#
# Loop over the parts. Of each: from where to where in every sequence, the indices of these tokens, their offsets,
# their keys and values, `attend`. Behind the loop: stack, weigh, add.
#
# </details>
# <details><summary>Hint 2</summary>
#
# With `context = T - S`, chunk n goes from `context.clamp(max=n * chunk)` to `context.clamp(max=(n + 1) * chunk)`, the
# last part from `context` to T. `torch.cat([torch.arange(a, b) for a, b in zip(low, high)])` are indices if the
# sequence's first row is added to both ends; `(high - low).cumsum(0)` with a 0 in front are the part's offsets.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `k = torch.cat((torch.einsum("tr,hdr->thd", c, w_uk), r[:, None].expand(-1, H, -1)), -1)`. At the end `lse =
# part_lse.logsumexp(0)` and `weights = torch.exp(part_lse - lse)`: a query always sees itself, so lse is finite, and
# an empty part weighs $e^{-\infty} = 0$. About 16 lines.
#
# </details>

# %% solution="chunked_prefill"
def chunked_prefill(q, c_kv, k_rope, w_uk, w_uv, cu_seqlens_q, cu_seqlens_kv, chunk):
    """Prefill behind a cached context that is expanded in chunks, merged by log-sum-exps.

    q: [Nq, H, Dn+Dr]; c_kv: [Nkv, R]; k_rope: [Nkv, Dr]; w_uk: [H, Dn, R]; w_uv: [H, Dv, R], float32;
    cu_seqlens_q, cu_seqlens_kv: [B + 1], int32, S <= T; chunk: int, context tokens of a sequence in a chunk.
    Returns out [Nq, H, Dv], lse [Nq, H] and part_lse [chunks + 1, Nq, H]: the chunks' and, last, the new tokens'.
    Calls attend.

    The traps: what is causal and what is not; every head's key ends with k_rope; the logarithm is natural.
    """
    ### BEGIN SOLUTION
    first, S = cu_seqlens_kv[:-1], cu_seqlens_q.diff()
    T = cu_seqlens_kv.diff()
    context = T - S
    starts = range(0, int(context.max()), chunk)
    bounds = [(context.clamp(max=start), context.clamp(max=start + chunk)) for start in starts] + [(context, T)]
    outs, lses = [], []
    for n, (low, high) in enumerate(bounds):
        ends = zip((first + low).tolist(), (first + high).tolist(), strict=True)
        tokens = torch.cat([torch.arange(a, b) for a, b in ends])
        c, r = c_kv[tokens], k_rope[tokens]
        k = torch.cat((torch.einsum("tr,hdr->thd", c, w_uk), r[:, None].expand(-1, len(w_uk), -1)), -1)
        v = torch.einsum("tr,hvr->thv", c, w_uv)
        cu_seqlens = torch.nn.functional.pad((high - low).cumsum(0), (1, 0))
        out, lse = attend(q, k, v, cu_seqlens_q, cu_seqlens, causal=n == len(starts))
        outs.append(out)
        lses.append(lse)
    part_lse = torch.stack(lses)
    lse = part_lse.logsumexp(0)
    weights = torch.exp(part_lse - lse)
    return (weights[..., None] * torch.stack(outs)).sum(0), lse, part_lse
    ### END SOLUTION


# %% check="chunked_prefill"
check("chunked_prefill")

# %% [markdown]
# The size of the chunk changes the memory, and the result by rounding alone:

# %%
torch.manual_seed(11)
H, Dn, Dr, Dv, R = 4, 32, 16, 32, 64
cu_q, cu_kv = offsets([5, 9, 1]), offsets([700, 9, 310])
w_uk, w_uv = torch.randn(H, Dn, R) * R**-0.5, torch.randn(H, Dv, R) * R**-0.5
operands = torch.randn(15, H, Dn + Dr), torch.randn(1019, R), torch.randn(1019, Dr), w_uk, w_uv, cu_q, cu_kv
whole, _, _ = chunked_prefill(*operands, 1024)
print("chunk   parts   tokens expanded at a time   difference")
for chunk in (1024, 256, 64):
    out, _, part_lse = chunked_prefill(*operands, chunk)
    most = max(sum(min(chunk, T - S) for S, T in ((5, 700), (9, 9), (1, 310))), 15)
    print(f"{chunk:5} {len(part_lse):7} {most:27} {((out - whole).norm() / whole.norm()).item():12.0e}")

# %% [markdown]
# ## Eight bits: E4M3
#
# An FP8 number of the kind **E4M3** has a sign, four bits of exponent and three of fraction. So there are eight numbers
# from one power of two to the next, and rounding is off by a sixteenth at most. Below $2^{-6}$ the steps stay $2^{-9}$
# wide, which is the smallest number. The largest is **448**. There is no infinity: the pattern behind 448 is NaN. What
# the cast makes of 500 depends on who casts. NVIDIA's GPUs and Triton **saturate**, and give 448. PyTorch's own cast
# gave NaN for years, and saturates in newer versions. So hold the number within ±448 yourself, and it does not matter.

# %%
x = torch.tensor([0.0007, 0.001, 0.3, 1.06, 17.0, 18.0, 19.0, 448.0, 500.0, 1e6])
shown = x.clamp(-448, 448).to(torch.float8_e4m3fn).float()
print("\n".join(f"{before:10.4f} -> {after:10.6f}" for before, after in zip(x.tolist(), shown.tolist(), strict=True)))

# %% [markdown]
# 17 lies between 16 and 18, just in the middle, and goes to the *even* one of the two.
#
# Such a number needs a **scale**, what 1 stands for: the tensor is values times scale. Divide by the largest magnitude
# over 448 and the range is used up to its end. One scale for how many numbers? E4M3 brings an exponent of its own, so
# numbers of different size do not take each other's resolution, as they would in INT8, until one is so much larger
# that the others fall below $2^{-6}$, where the steps stay as wide as they are.
#
# ## Exercise: quantize_cache
#
# A row of the latent cache is R numbers of latent and Dr of the rotated key. The latent goes to FP8. **The key stays
# as it is**: its numbers decide about positions, they may be large, and it is a ninth of the row. So it has no part
# in the scale either.
#
# | | shape | dtype |
# |---|---|---|
# | `cache` | [N, R+Dr] | any floating |
# | `R` | | int |
# | `tile` | numbers in a row that share a scale, a divisor of R (R: a scale a token); None: one for all | int or None |
# | returns `values` | [N, R] | float8_e4m3fn |
# | returns `scales` | [N, R/tile], for None [1, 1]: largest magnitude over 448, 1 where all are 0 | float32 |
# | returns `k_rope` | [N, Dr] | that of the cache |
#
# Compute in float32. The way back is `values.float()` times its scale.
#
# <details><summary>Hint 1</summary>
#
# `cache[:, :R].float().unflatten(1, (-1, tile))` gives the tiles an axis of their own: [N, R/tile, tile]. None is one
# tile of N·R numbers.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `largest = tiles.abs().amax(-1, keepdim=True)`, and `torch.where(largest > 0, largest / 448, 1.0)` for the scales.
# Divide the tiles by it.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `(tiles / scales).clamp(-448, 448).to(torch.float8_e4m3fn).view(N, R)`. For None take `.view(1, 1, -1)` in place of
# `unflatten`; the scales lose their last axis in the end. About seven lines.
#
# </details>

# %% solution="quantize_cache"
def quantize_cache(cache, R, tile):
    """Convert the latents of a cache to FP8 with a scale for each tile.

    cache: [N, R+Dr], any floating dtype: latents, and behind them rotated keys; R: int; tile: int, a divisor of R,
    numbers in a row that share a scale, or None for one scale for all.
    Returns values [N, R], float8_e4m3fn; scales [N, R/tile], or [1, 1], float32: the largest magnitude over 448, 1 for
    a tile of zeros; k_rope [N, Dr], as it was.

    The traps: values are divided by the scale; the rotated key takes no part; 0/0.
    """
    ### BEGIN SOLUTION
    latent = cache[:, :R].float()
    tiles = latent.reshape(1, 1, -1) if tile is None else latent.unflatten(1, (-1, tile))
    largest = tiles.abs().amax(-1, keepdim=True)
    scales = torch.where(largest > 0, largest / 448, torch.ones_like(largest))
    values = (tiles / scales).clamp(-448, 448).to(torch.float8_e4m3fn)
    return values.view(len(cache), R), scales[..., 0], cache[:, R:]
    ### END SOLUTION


# %% check="quantize_cache"
check("quantize_cache")

# %% [markdown]
# What each choice costs in accuracy: the relative error of a token, the median over 511 tokens with normally
# distributed latents. In some rows of the table one token is larger than the others by a factor, in others one number
# of every token is; then the error is that of all other numbers.

# %%
torch.manual_seed(11)
plain = torch.randn(512, 512)
print("                            for the tensor   for a token   for 128 numbers")
for label, place, factor in (
    ("nothing large", (), 1),
    ("one token, 100 times", (0,), 1e2),
    ("one token, 10^6 times", (0,), 1e6),
    ("number 0, 100 times", (slice(None), 0), 1e2),
    ("number 0, 10^6 times", (slice(None), 0), 1e6),
):
    latent, line = plain.clone(), f"{label:27}"
    latent[place] *= factor
    small = torch.ones_like(latent)
    small[place] = 1.0 if factor == 1 else 0.0
    for tile in (None, 512, 128):
        values, scales, _ = quantize_cache(torch.cat((latent, torch.zeros(512, 64)), 1), 512, tile)
        held = values.float() * (scales if tile is None else scales.repeat_interleave(tile, 1))
        error = ((held - latent) * small).norm(dim=1)[1:] / (latent * small).norm(dim=1)[1:]
        line += f"{error.median().item():15.1%}"
    print(line)

# %% [markdown]
# A factor of 100 costs nothing: the exponent of each number does the work, and any scale will do. A factor of a
# million is more than E4M3's range. One scale for all then loses every token but the large one. A scale a token loses
# most of the other numbers of its token; with a scale for 128 that is one tile of four. DeepSeek-V3.2 and FlashMLA take
# tiles of 128. Your row then has 512 + 4 · 4 + 64 · 2 = 656 bytes, where 16 bits took 1152.
#
# ## Exercise: pack_fp8
#
# Prefill can multiply in FP8 too, at twice the rate of 16 bits on a Hopper GPU. Its keys must be one tensor then, as
# TokenSpeed's, cuDNN's and FlashAttention's kernels take them: [N, H, Dn+Dr]. In PyTorch that is `cat`, and two casts:
# what is concatenated is written in 16 bits and read again. In **one kernel** nothing is written in 16 bits: `kv` is
# read once, and every result is written once, as a byte.
#
# The inputs are what the layer has, and views of them have strides. One product with W_UK and W_UV side by side gives
# `kv`: of each token and head Dn numbers of the key, then Dv of the value. The rotated keys are the last Dr columns of
# the cache rows.
#
# | | shape | dtype |
# |---|---|---|
# | `kv` | [N, H, Dn+Dv], contiguous | float16 or bfloat16 |
# | `cache` | [N, R+Dr], contiguous | that of `kv` |
# | `Dn`, `R` | where the values begin in a row of `kv`, and the rotated key in a row of `cache` | int |
# | `k_scale`, `v_scale` | what 1 stands for in the results | float |
# | returns `k` | [N, H, Dn+Dr]: Dn numbers of the head's own, then the token's Dr | float8_e4m3fn |
# | returns `v` | [N, H, Dv] | float8_e4m3fn |
#
# All numbers are **divided** by their scale in float32, held within ±448 and rounded to the nearest, bit for bit.
# (Multiplying by the inverse, as the skeleton does, is as good: no quotient here hangs on the last bit of float32.) One
# launch; nothing may be copied in front of it, so the kernel works out the addresses. Dn, Dr and Dv are powers of two
# from 16 on; N, H and R are any numbers from 1 on.
#
# Beside lesson 05 you need `.to(tl.float8e4nv)`, which is E4M3, and `tl.clamp(x, -448.0, 448.0)`. A quotient that is
# rounded to 16 bits on its way is rounded twice: cast to `tl.float32` first. (A GPU before compute capability 8.9, such
# as a T4 or an A100, has no E4M3, and Triton refuses. Set `MLA_EMULATE=1` before Python starts; the kernel then runs on
# the CPU.)
#
# **Points for speed.** The case is N = 8192, H = 128, DeepSeek-V3's widths, in bfloat16. Memory decides. Half of the
# points: 0.5 of the floor's speed. All: 0.7 of it, and 2 times the speed of eager PyTorch.
#
# <details><summary>Hint 1</summary>
#
# A program takes one token and a block of heads: grid `(N, triton.cdiv(H, BLOCK_H))`. Three loads (two blocks and a
# row of Dr numbers), three stores. The row of Dr numbers goes into the keys of all heads.
#
# </details>
# <details><summary>Hint 2</summary>
#
# With `row = n * H + offs_h`: `kv_ptr + row[:, None] * (DN + DV)` begins the key's own part, DN further the value. The
# rotated key is at `cache_ptr + n * (R + DR) + R`. In the result a key begins at `k_ptr + row[:, None] * (DN + DR)`.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `tl.clamp(x.to(tl.float32) * k_inverse, -448.0, 448.0).to(tl.float8e4nv)`, with `1 / k_scale` from the launcher. To
# store the row of Dr for every head, `tl.broadcast_to(rope[None, :], [BLOCK_H, DR])`. BLOCK_H = 16 and 4 warps.
#
# </details>

# %% solution="pack_fp8"
@triton.jit
def pack_fp8_kernel(
    kv_ptr, cache_ptr, k_ptr, v_ptr, k_inverse, v_inverse, H, R,
    DN: tl.constexpr, DR: tl.constexpr, DV: tl.constexpr, BLOCK_H: tl.constexpr,
):
    """One program: BLOCK_H heads of one token.

    kv_ptr: [N, H, DN + DV]; cache_ptr: [N, R + DR]; k_ptr: [N, H, DN + DR]; v_ptr: [N, H, DV].
    """
    ### BEGIN SOLUTION
    n = tl.program_id(0).to(tl.int64)
    offs_h = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    offs_dn, offs_dr, offs_dv = tl.arange(0, DN), tl.arange(0, DR), tl.arange(0, DV)
    row, some = (n * H + offs_h)[:, None], (offs_h < H)[:, None]
    # [BLOCK_H, DN], [BLOCK_H, DV] and [DR]
    nope = tl.load(kv_ptr + row * (DN + DV) + offs_dn[None, :], mask=some, other=0.0)
    v = tl.load(kv_ptr + row * (DN + DV) + DN + offs_dv[None, :], mask=some, other=0.0)
    rope = tl.load(cache_ptr + n * (R + DR) + R + offs_dr)

    nope = tl.clamp(nope.to(tl.float32) * k_inverse, -448.0, 448.0).to(tl.float8e4nv)
    rope = tl.clamp(rope.to(tl.float32) * k_inverse, -448.0, 448.0).to(tl.float8e4nv)
    v = tl.clamp(v.to(tl.float32) * v_inverse, -448.0, 448.0).to(tl.float8e4nv)
    tl.store(k_ptr + row * (DN + DR) + offs_dn[None, :], nope, mask=some)
    tl.store(k_ptr + row * (DN + DR) + DN + offs_dr[None, :], tl.broadcast_to(rope[None, :], [BLOCK_H, DR]), mask=some)
    tl.store(v_ptr + row * DV + offs_dv[None, :], v, mask=some)
    ### END SOLUTION


def pack_fp8(kv, cache, Dn, R, k_scale, v_scale):
    """Put keys together and convert keys and values to FP8, in one launch.

    kv: [N, H, Dn+Dv] and cache: [N, R+Dr], float16 or bfloat16, contiguous; Dn, Dr and Dv are powers of two;
    Dn, R: int; k_scale, v_scale: float, what 1 stands for in the results.
    Returns k [N, H, Dn+Dr] and v [N, H, Dv], float8_e4m3fn. Launches pack_fp8_kernel once.

    The traps: all heads get the token's rotated key; the quotient is what must fit into ±448; float32 before it.
    """
    ### BEGIN SOLUTION
    (N, H, width), Dr = kv.shape, cache.shape[1] - R
    Dv = width - Dn
    k = torch.empty((N, H, Dn + Dr), dtype=torch.float8_e4m3fn, device=kv.device)
    v = torch.empty((N, H, Dv), dtype=torch.float8_e4m3fn, device=kv.device)
    block_h = min(triton.next_power_of_2(H), 16)
    pack_fp8_kernel[(N, triton.cdiv(H, block_h))](
        kv, cache, k, v, 1 / k_scale, 1 / v_scale, H, R, DN=Dn, DR=Dr, DV=Dv, BLOCK_H=block_h, num_warps=4
    )
    return k, v
    ### END SOLUTION


# %% check="pack_fp8"
check("pack_fp8")

# %% speed="pack_fp8"
check_speed("pack_fp8")

# %% [markdown]
# ## Measure: prefill
#
# On an {{prefill_h200.device}}, bfloat16 where nothing else is said, with the L2 emptied before each call; TFLOP/s by
# the pairs that are seen, as you counted them (`benchmarks/prefill_h200.json`). *Ours* is
# `mla_ref.kernels.ragged_attention`: for 16 bits a kernel in Gluon, Triton's language for one GPU's own instructions,
# for FP8 a Triton kernel like yours. cuDNN is NVIDIA's library, called through PyTorch on tensors [B, longest, H, D];
# FlashAttention-4 takes packed batches, and a date beside it is that of an earlier run.
#
# {{prefill_table}}
#
# The first four rows are arithmetic. Ours reaches {{long_share}} % of the fastest there. With GSM8K's lengths all are
# far below it, for another reason. Ask your prediction for the bytes too:

# %%
said = prefill_work(gsm8k, gsm8k, **sizes, rate=h200.rate())
words = said["tokens"] * sizes["H"] * 2 * (192 + 128)  # q and out, k and v
print(f"arithmetic {said['us']:.0f} µs, memory {2e6 * words / h200.bandwidth():.0f} µs at least")
H200_GSM8K = "{{gsm8k_us}}"  # microseconds
plots.bars(H200_GSM8K, unit="µs on an H200, measured", title="256 prompts of GSM8K's lengths, H = 128")

# %% [markdown]
# A prompt of 60 tokens moves 640 words for each row and head, for a few dozen pairs: the floor is memory's. No
# implementation is near it{{!far_from_floor}}. The padded batch took {{padded_over_ours}} times the time
# of our packed one, and nobody had copied the rows into it yet. Equal lengths of about as many tokens took ours
# {{equal_us}} µs, hardly less, though they have fewer pairs: pairs are not what takes the time here.
#
# **FP8** halves the bytes of q, k and v, and Hopper's matrix units multiply it at twice the rate. The Triton kernel
# took {{fp8_short}} times bfloat16's time for these short prompts, and {{fp8_long}} times for the one of 8192. Twice
# as fast it is nowhere{{!not_twice}}: a peak rate is no promise about a kernel. Out is off by {{fp8_error}} % there,
# by {{bf16_error}} % in bfloat16, on normally distributed data.
#
# ## Measure: pack
#
# {{pack_table}}
#
# "PyTorch" is `cat` and two casts, "torch.compile" the same two lines compiled. The compiler finds the one pass as
# well; whoever writes eager PyTorch in a serving loop pays {{eager_over_ours}} times.
#
# On a GPU the next cell times yours.

# %%
from mla_ref import bench

if emulated:
    print("kernels are emulated here, and there is nothing to time")
else:
    kv = torch.randn(8192, 128, 256, device=device, dtype=torch.bfloat16)
    cache = torch.randn(8192, 576, device=device, dtype=torch.bfloat16)
    seconds = bench(lambda: pack_fp8(kv, cache, 128, 512, 1.0, 1.0)).median
    print(f"pack_fp8 {seconds * 1e6:.0f} µs, {(kv.nbytes * 1.625 + 8192 * 128) / seconds / 1e9:,.0f} GB/s")

# %% [markdown]
# ## Measure: decode from FP8
#
# A decode step over pages of latents, in bfloat16 and as `quantize_cache` makes them, with the rotated keys in
# bfloat16. The kernel turns every block into 16 bits before it multiplies.
#
# {{decode_table}}
#
# The cache takes {{cache_share}} % of the bytes with a scale a token, {{cache_share_128}} % with one for 128:
# {{capacity}} and {{capacity_128}} times as many tokens fit. That much is certain. The time is another matter: in the
# first row it went to {{decode_time}} % of bfloat16's with a scale a token, and to {{decode_time_128}} % with one for
# 128. A conversion for every number that is read has to fit in beside the reading, and how well it does is the kernel's
# affair. The error hardly depends on the choice, as in your table where nothing is large{{!same_error}}.
#
# ## In the field
#
# - **Which corner.** FlashAttention changed from top-left to bottom-right in version 2.1 (flash-attention #951);
#   before, a chunk behind a context could not be asked for. PyTorch's `is_causal=True` is top-left.
# - **An empty chunk's lse.** In a batch, some sequences have no token in a later chunk. A backend left a finite lse
#   there, and the merge took what lay in memory for attention (vllm #49294). Your `attend` gives −inf.
# - **What a cast does beyond 448.** For years PyTorch gave NaN and Triton 448 (pytorch/ao #1912); PyTorch saturates
#   since 2026 (pytorch #178817), JAX's `ml_dtypes` gives NaN (#400). Whoever clamps does not need to know.
# - **What a scale means.** A reader took FP8 scales for powers of two and dropped their fractions; the writer meant
#   arbitrary ones. Tiles came back up to twice too small (vllm #54563).
# - **RoPE in eight bits or not.** Two layouts are in use: 576 bytes, all of it FP8 with one scale a tensor, and 656
#   bytes, a scale for 128 and the rotated key in bfloat16 (DeepSeek-V3.2's; flashinfer #2426). TokenSpeed's kernels
#   take the first.
#
# ## What you have now
#
# - A batch without padding: a plan of its tiles, a kernel that keeps to its sequence, an lse that can be merged.
# - A context of any length in bounded memory.
# - FP8 with a scale for what needs one, and keys packed in a single pass.
#
# Lesson 12 puts a whole decode layer together, against a clock.
#
# Figures: {{records}}.

# %% [markdown]
# <details><summary>Appendix: what the reference does beside, and sources</summary>
#
# **Two loops.** Blocks that every row of a tile sees need no mask. The Triton kernel of
# `mla_ref.kernels.ragged_attention` runs over them first, without `tl.where`, and has the hardware compute addresses
# there (TMA, tensor descriptors); a second loop goes across the diagonal, with masks. It works in base 2 and returns
# the natural lse. Each program finds its tile from the offsets by itself, with `tl.cumsum` over ⌈S/block⌉: your
# `plan_tiles` for one tile. The host reads nothing.
#
# **Order.** The last tile of a sequence sees most. Started first, it does not keep the others waiting at the end.
#
# **Weights in FP8.** The second product of FP8 attention has weights $e^{s-m}$ between 0 and 1 on its left. Half of
# E4M3's exponents lie above 1 and would never be used, so the reference keeps them $2^8$ times as large, and takes it
# back from the sum.
#
# **E5M2**, the other FP8, has five bits of exponent and two of fraction; it goes to 57344 and has infinities. Caches
# take E4M3 for its fraction.
#
# **Who gets the chunk.** vLLM divided its workspace evenly among requests: one with 60K of context beside 31 with 16
# tokens took 30 chunks, where everything would have fitted into one (vllm #50497, #50613).
#
# **Merging and strides.** A serving engine's merge read both of its inputs by the strides of the first. One part's
# values were padded to 192; every prompt beyond one workspace of 64K tokens came out as garbage, and none below
# (local-inference-lab/vllm #17).
#
# **Sources.** TokenSpeed-MLA's prefill (`tokenspeed_mla_prefill`: packed sequences, offsets of their own, masks
# aligned bottom-right, optional lse) and its fused "K/V pack + FP8 quantize". FlashAttention-2, Dao 2023,
# arXiv:2307.08691. FP8 formats: Micikevicius and others 2022, arXiv:2209.05433. vLLM's chunked context for MLA: vllm
# #12639.
#
# </details>
