# %% [markdown]
# # Lesson 05: fused scores and softmax
#
# The largest tensor of attention is the **scores**: one number for each query, head and token of context. On the
# way to the weights, eager PyTorch passes over it eleven times. You write the kernel that makes the scores, and
# the kernel that turns them into weights. Allow four hours: one to read, three for the exercises.
#
# | exercise | you write | points right | points fast |
# |---|---|---|---|
# | `predict_score_bytes` | the bytes of scores and softmax, eager and fused | 2 | |
# | `scaled_matmul` | a tile of a matrix product, with `tl.dot` | 2 | 1 |
# | `attention_score` | both products and the scale in one kernel | 4 | 3 |
# | `masked_softmax` | mask, maximum, exponential and sum in one kernel | 4 | 3 |
# | `long_softmax` | the same for rows that are longer than a block | 3 | 2 |
# | `predict_ablation` | what each fusion gains, and what all of them gain | 2 | |
#
# Each exercise may take 10 s and 512 MiB for all its cases; hidden cases have odd sizes. Speed is that of an
# H100. The source is the report *Optimizing Multi-head Latent Attention for Efficient Inference* ("the report"),
# sections 3.2 and 4. Its names: **ASF**, attention score fusion; **SF**, softmax fusion.
#
# | symbol | meaning | DeepSeek-V3 |
# |---|---|---|
# | B, S, T | sequences, new tokens (queries) per sequence, tokens of context, the new ones included | |
# | H | heads | 128 |
# | Dn, Dr | width of a head without position, and of the part with position (RoPE) | 128, 64 |
# | R | width of the latent | 512 |

# %% setup="imports"
import torch
from autograder import check, check_speed
from mla_ref.hardware import emulator

emulated = emulator.prepare()  # whether kernels run on the CPU, for lack of a GPU

import triton
import triton.language as tl

device = "cpu" if emulated else "cuda"

# %% [markdown]
# ## Why: the largest tensor
#
# This is the attention of lesson 03 up to the weights, as the report's public code has it in its baseline:

# %%
def eager_scores(q_latent, q_rope, c_kv, k_rope, scale):
    nope = torch.einsum("bshr,btr->bsht", q_latent, c_kv)  # [B, S, H, T]
    rope = torch.einsum("bshr,btr->bsht", q_rope, k_rope)  # [B, S, H, T]
    return (nope + rope) * scale


def eager_softmax(scores, mask):
    """mask: [S, T], 0 where a query sees a position, -inf elsewhere."""
    return (scores + mask[:, None]).softmax(-1)


# %%
from mla_ref import DEVICES, Cost
from mla_ref.plots import bars, matrices, squares, stacked

B, S, H, T, R, Dr = 4, 4096, 16, 4096, 512, 64  # a prefill in the report's layer
words = {"cache": B * T * (R + Dr), "queries": B * S * H * (R + Dr), "scores": B * S * H * T}
megabytes = {name: 2 * n / 1e6 for name, n in words.items()}
bars(megabytes, unit="MB in 16 bits", title="A prefill: B=4, S=T=4096, H=16")

# %% [markdown]
# In this prefill the scores have 2.1 GB, 114 times the cache. In a decode step (S = 1, H = 128) they are a fifth
# of the cache. Per token of context there are S · H scores, and R + Dr words in the cache. (A **word** is one
# stored number.)

# %% [markdown]
# ## Predict: bytes from operands to weights
#
# Count the bytes that move between the chip and memory, from the operands to the weights. Rules, as in lesson 04:
#
# - Every operation reads each of its inputs once and writes its result once. `softmax` is one operation.
# - Only tensors of the size of the scores, [B, S, H, T], count. Queries, cache and the mask [S, T] do not.
# - All tensors have `itemsize` bytes per word.
#
# Four variants: all eager; the scores made by one kernel (ASF), the softmax eager; the scores eager, mask and
# softmax in one kernel (SF); both fused. For comparison, also return the bytes of the cache.
#
# <details><summary>Hint 1</summary>
#
# Count **passes**: one for each time that a tensor of the size of the scores is read or written. A matrix product
# writes one. The sum of two tensors reads two and writes one.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `eager_scores` has four operations: 1, 1, 3 and 2 passes. `eager_softmax` has two: 2 passes each. A fused kernel
# reads what it needs once and writes its result once.
#
# </details>
# <details><summary>Hint 3</summary>
#
# 7 + 4 passes in all. Fused scores are 1 pass in place of 7, the fused softmax 2 in place of 4. A pass is
# `B * S * H * T * itemsize` bytes. Two lines and the dict.
#
# </details>

# %% solution="predict_score_bytes"
def predict_score_bytes(B, S, H, T, R, Dr, itemsize):
    """Bytes that scores and softmax move, passes over the scores alone.

    B, S, H, T, R, Dr: int, as in the table; itemsize: int, bytes of one number.

    Returns a dict of numbers:
      eager_bytes          eager_scores, then eager_softmax
      score_fused_bytes    one kernel in place of eager_scores, then eager_softmax
      softmax_fused_bytes  eager_scores, then one kernel in place of eager_softmax
      both_fused_bytes     one kernel, then another
      cache_bytes          the size of c_kv and k_rope

    The trap: the mask is [S, T]; adding it reads and writes the scores, and nothing else of their size.
    """
    ### BEGIN SOLUTION
    one_pass = B * S * H * T * itemsize
    passes = {"eager_bytes": 11, "score_fused_bytes": 5, "softmax_fused_bytes": 9, "both_fused_bytes": 3}
    return {name: count * one_pass for name, count in passes.items()} | {"cache_bytes": B * T * (R + Dr) * itemsize}
    ### END SOLUTION


# %% check="predict_score_bytes"
check("predict_score_bytes")

# %% [markdown]
# Now count. The recorder of lesson 04 notes what each operation of PyTorch reads and writes, on tensors without
# data.

# %%
from autograder.kernels.worker.recording import recording

empty = lambda *shape: torch.empty(shape, dtype=torch.bfloat16, device="meta")
given = {
    "q_latent": empty(B, S, H, R), "q_rope": empty(B, S, H, Dr), "c_kv": empty(B, T, R), "k_rope": empty(B, T, Dr),
    "scores": empty(B, S, H, T), "mask": empty(S, T),
}
with recording(given) as recorder:
    eager_scores(*list(given.values())[:4], scale=1.0)
    eager_softmax(given["scores"], given["mask"])
size = lambda tensors: sum(count for _, count in tensors) / 1e9
rows = {}
for number, event in enumerate((e for e in recorder.events if e["kind"] == "host"), 1):
    name = f"{number}. {event['op'][0].strip('_')}"
    rows[name] = {"read": size(event["reads"]), "written": size(event["writes"])}
mine = predict_score_bytes(B, S, H, T, R, Dr, 2)
counted = sum(sum(row.values()) for row in rows.values())
print(f"predicted {mine['eager_bytes'] / 1e9:.1f} GB of scores, counted {counted:.1f} GB with the operands")
stacked(rows, unit="GB", title="From operands to weights, B=4, S=T=4096, H=16, bfloat16: one row per operation")

# %% [markdown]
# Operations 1 and 2 are the products, 1.2 TFLOP that no fusion removes. The other four do little but pass over
# the scores. The next cell turns products and passes into times on an H100, by its data sheet.

# %%
h100 = DEVICES["h100"]
products = Cost(flops=2 * B * S * H * T * (R + Dr))
times = {"both products, arithmetic": products.compute_time(h100)}
for name in ("eager", "score_fused", "softmax_fused", "both_fused"):
    times[f"{name}, bytes"] = mine[f"{name}_bytes"] / h100.bandwidth()
bars(
    {label: time * 1e3 for label, time in times.items()},
    unit="ms on an H100 by its data sheet",
    title="B=4, S=T=4096, H=16, bfloat16",
)

# %% [markdown]
# Fusing the scores saves 6 passes, fusing the softmax 2. With both fused, 3 passes are left: the scores are
# written, they are read, the weights are written. The weighted sum then reads the weights: a fourth. Lesson 06
# removes all four, with one kernel from the queries to the weighted sum.

# %% [markdown]
# ## A tile and its strips
#
# The kernels of lesson 04 worked on rows. A matrix product has two sides, so a program computes a **tile** of the
# result. Three things are new. The first exercise has all three, and nothing else.
#
# **1. The tile.** Program (i, j) of a two-dimensional grid computes `BLOCK_M` rows and `BLOCK_N` columns of the
# result $x\,y^\top$. It needs a strip of $x$ and a strip of $y$ (blue), which it loads in turns of `BLOCK_K`
# columns (orange).

# %%
STRIP, TURN, TILE = "#56B4E9", "#E69F00", "#009E73"
matrices(
    {
        "x [M, K]": (4, 6, [(2, 0, 1, 6, STRIP, ""), (2, 2, 1, 1, TURN, "turn")]),
        "y [N, K]": (4, 6, [(1, 0, 1, 6, STRIP, ""), (1, 2, 1, 1, TURN, "turn")]),
        "out [M, N]": (4, 4, [(2, 1, 1, 1, TILE, "tile")]),
    },
    title="One program: a strip of x, a strip of y, a tile of the result",
)

# %% [markdown]
# **2. `tl.dot`.** `tl.dot(a, b)` multiplies two blocks, `[BLOCK_M, BLOCK_K]` and `[BLOCK_K, BLOCK_N]`, on the matrix
# units of the GPU, its tensor cores. All three sides are powers of two, 16 or more. (Triton fills up a BLOCK_M or
# BLOCK_N below 16 itself; BLOCK_K must be 16 or more.) Smaller matrices are padded with masked places that read as 0.
#
# `b` is $y^\top$, but nothing is transposed in memory. A block is whatever its addresses say: number $(k, n)$ of the
# block is number $k$ of row $n$ of `y`, at `y_ptr + n * K + k`. With `k` running down, `[:, None]`, and `n` across,
# `[None, :]`, the block comes out transposed. Here is one tile of 16 × 16:

# %%
@triton.jit
def one_tile_kernel(x_ptr, y_ptr, out_ptr, K: tl.constexpr):
    offs = tl.arange(0, 16)
    offs_k = tl.arange(0, K)
    x = tl.load(x_ptr + offs[:, None] * K + offs_k[None, :])  # [16, K]
    y = tl.load(y_ptr + offs[None, :] * K + offs_k[:, None])  # [K, 16]
    tl.store(out_ptr + offs[:, None] * 16 + offs[None, :], tl.dot(x, y))


x, y = (torch.randn(16, 32, device=device).half() for _ in range(2))
out = torch.empty(16, 16, device=device)
one_tile_kernel[(1,)](x, y, out, K=32)
print("largest difference from PyTorch:", (out - x.float() @ y.float().T).abs().max().item())

# %% [markdown]
# **A puzzle: the transposed block and its mask** (not graded; `torch.arange` stands in for `tl.arange`). Here `y`
# has N = 5 rows of K = 6 numbers, and each number is its own address. The tile begins at row 4 of `y`, the turn at
# column 4, and both have 4 places. So most places of the block do not exist. Write the block of addresses, k down
# and n across, and its mask. Masked places may have any address.
#
# <details><summary>Answer</summary>
#
# Addresses: `offs_n[None, :] * 6 + offs_k[:, None]`. Mask: `(offs_n < 5)[None, :] & (offs_k < 6)[:, None]`. Two
# numbers exist, columns 4 and 5 of row 4, and they stand one below the other.
#
# </details>

# %%
y = torch.arange(5 * 6).view(5, 6)  # [N, K]
offs_n, offs_k = 4 + torch.arange(4), 4 + torch.arange(4)
block_places = None  # [4, 4]
block_mask = None  # [4, 4], True and False

if block_places is None or block_mask is None:
    print("puzzle: still open")
elif block_mask.shape == (4, 4) and block_mask.nonzero().tolist() == [[0, 0], [1, 0]]:
    right = block_places[block_mask].tolist() == [28, 29]
    print("puzzle:", "right" if right else "the mask is right, not the addresses")
else:
    print(f"puzzle: not this mask: {block_mask}")

# %% [markdown]
# **3. The accumulator.** The strips are too long to hold at once: R is 512. So a program walks along them in
# turns of `BLOCK_K` columns, and adds each turn's product to one tile, the **accumulator**:
#
# ```python
# acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
# for start in range(0, K, BLOCK_K):
#     ...                        # load x and y of this turn
#     acc = tl.dot(x, y, acc)    # acc + x · y
# ```
#
# The accumulator is float32, whatever the operands are. That costs nothing: the matrix units add in float32
# anyway. A float16 ends at 65504, and a sum of 576 products may be larger before the scale makes it small.
#
# **float32 operands.** A GPU multiplies them in TF32, which has 10 bits of mantissa, unless it is told `tl.dot(x, y,
# acc, input_precision="ieee")`. The other bits are cut off, and an operand is off by up to 1/1024 of itself. The
# emulator does the same. For operands of 16 bits the option changes nothing. So always write it. (Triton also turns a
# `tl.sum` over a product of two blocks into a `tl.dot`, in TF32.)
#
# **Loading ahead.** While the matrix units compute one turn, the next turns can be on their way. With `num_stages=3` at
# the launch, up to three turns lie in **shared memory** at a time. For tiles of 128 × 128 and turns of 64 columns that
# is 3 · (128 · 64 + 64 · 128) · 2 bytes, 96 KiB. A program on an H100 can have 227 KiB, on a T4 64 KiB. Only a `for`
# loop over a `range` loads ahead; in a `while` loop `num_stages` changes nothing. The scores that are
# measured below took {{one_stage_us}} µs on an H100 in tiles of 16 × 64 with one stage, and {{three_stages_us}} µs with
# three. (The grader's model shows less of that difference, and hardly one for tiles of 128 × 128.)
#
# ## Exercise: scaled_matmul
#
# $$\text{out}_{m,n} = \text{scale} \cdot \sum_k x_{m,k}\, y_{n,k}$$
#
# | | shape | dtype |
# |---|---|---|
# | `x` | [M, K], contiguous | float32, float16 or bfloat16 |
# | `y` | [N, K], contiguous | that of `x` |
# | `scale` | | float |
# | returns | [M, N] | that of `x` |
#
# One launch. M, N and K are any numbers from 1 on. So there are three masks: rows of x, rows of y, columns in the
# last turn.
#
# **Points for speed.** The case is M = 128, N = 65536, K = 512 in bfloat16. A kernel at 0.25 of the floor's speed
# gets half of the points, one at 0.45 gets all.
#
# <details><summary>Hint 1</summary>
#
# The grid is `(triton.cdiv(M, BLOCK_M), triton.cdiv(N, BLOCK_N))`. `offs_m = tl.program_id(0) * BLOCK_M + tl.arange(0,
# BLOCK_M)`, `offs_n` likewise with `tl.program_id(1)`. About ten lines of kernel. Tiles of 128 × 128, 8 warps, 3
# stages, turns of `128 // x.element_size()` columns: 128 bytes of each row. For small M or N take `max(16,
# triton.next_power_of_2(M))` instead of 128.
#
# </details>
# <details><summary>Hint 2</summary>
#
# In each turn `offs_k = start + tl.arange(0, BLOCK_K)`. The mask of x is `(offs_m < M)[:, None] & (offs_k < K)[None,
# :]`, that of y `(offs_n < N)[None, :] & (offs_k < K)[:, None]`, both with `other=0.0`: a masked column then adds
# nothing.
#
# </details>
# <details><summary>Hint 3</summary>
#
# After the loop one store, of `acc * scale`, to `out_ptr + offs_m[:, None] * N + offs_n[None, :]`; it converts. Its
# mask is `(offs_m < M)[:, None] & (offs_n < N)[None, :]`.
#
# </details>

# %% solution="scaled_matmul"
@triton.jit
def scaled_matmul_kernel(
    x_ptr, y_ptr, out_ptr, scale, M, N, K,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):
    """One program: a tile [BLOCK_M, BLOCK_N] of scale * x @ y.T.

    x_ptr: [M, K]; y_ptr: [N, K]; out_ptr: [M, N].
    """
    ### BEGIN SOLUTION
    offs_m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(0, K, BLOCK_K):
        offs_k = start + tl.arange(0, BLOCK_K)
        # [BLOCK_M, BLOCK_K] and [BLOCK_K, BLOCK_N]
        x = tl.load(
            x_ptr + offs_m[:, None] * K + offs_k[None, :], mask=(offs_m < M)[:, None] & (offs_k < K)[None, :], other=0.0
        )
        y = tl.load(
            y_ptr + offs_n[None, :] * K + offs_k[:, None], mask=(offs_n < N)[None, :] & (offs_k < K)[:, None], other=0.0
        )
        acc = tl.dot(x, y, acc, input_precision="ieee")
    tl.store(
        out_ptr + offs_m[:, None] * N + offs_n[None, :], acc * scale, mask=(offs_m < M)[:, None] & (offs_n < N)[None, :]
    )
    ### END SOLUTION


def scaled_matmul(x, y, scale):
    """Return scale * x @ y.T, in one launch.

    x: [M, K]; y: [N, K], same dtype; both contiguous. scale: float.
    Returns a new tensor [M, N] of the dtype of x. Launches scaled_matmul_kernel once.

    The traps: K need not be a multiple of the block; scale before the result becomes float16.
    """
    ### BEGIN SOLUTION
    (M, K), N = x.shape, len(y)
    out = torch.empty((M, N), dtype=x.dtype, device=x.device)
    block_m, block_n = (min(max(triton.next_power_of_2(size), 16), 128) for size in (M, N))
    grid = (triton.cdiv(M, block_m), triton.cdiv(N, block_n))
    scaled_matmul_kernel[grid](
        x, y, out, scale, M, N, K,
        BLOCK_M=block_m, BLOCK_N=block_n, BLOCK_K=128 // x.element_size(),
        num_warps=8 if block_m * block_n > 8192 else 4, num_stages=3,
    )
    return out
    ### END SOLUTION


# %% check="scaled_matmul"
check("scaled_matmul")

# %% speed="scaled_matmul"
check_speed("scaled_matmul")

# %% [markdown]
# ## Heads are rows
#
# $$x_{b,s,h,t} = \frac{\text{q\_latent}_{b,s,h} \cdot c_{b,t} + \text{q\_rope}_{b,s,h} \cdot k_{b,t}}{\sqrt{Dn + Dr}}$$
#
# All heads of a sequence meet the same keys: the cache is shared. And `q_latent[b]` is stored as [S, H, R], which
# is also a matrix of S·H rows, row $m = s \cdot H + h$. So the scores of a sequence are one matrix [S·H, T], and
# they are stored just so. What is left is `scaled_matmul` with a batch, and a second product for the same
# accumulator.

# %%
HEADS = ["#56B4E9", "#E69F00", "#009E73", "#CC79A7"]
queries = lambda x, width, text: [(n, x, 1, width, HEADS[n % 4], text.format(n // 4, n % 4)) for n in range(8)]
matrices(
    {
        "q_latent [S·H, R]": (8, 7, queries(0, 7, "query {}, head {}")),
        "q_rope": (8, 2, queries(0, 2, "")),
        "c_kvᵀ [R, T]": (7, 8, [(0, 2, 7, 2, "#BBBBBB", "block")]),
        "k_ropeᵀ": (2, 8, [(0, 2, 2, 2, "#BBBBBB", "block")]),
        "scores [S·H, T]": (8, 8, queries(2, 2, "")),
    },
    title="One sequence, S = 2, H = 4. A tile (coloured, right): all heads of both queries meet a block of T",
)

# %% [markdown]
# A program reads its block of the cache once for all rows of its tile. With `BLOCK_M` rows per tile, the cache is
# read ⌈S·H / BLOCK_M⌉ times; a program for each head would read it S·H times. `tl.dot` wants 16 rows, so a decode
# step with H = 8 fills half of a tile.
#
# **The scale** is $1/\sqrt{Dn + Dr}$, the width of a head before absorption: 1/√192 in DeepSeek-V3. Absorption
# only brackets the same product differently (lesson 03), so it changes no score. The operands that arrive here
# are R and Dr wide. Dn cannot be read off them, so it is an argument.
#
# ## Exercise: attention_score
#
# | | shape | dtype |
# |---|---|---|
# | `q_latent`, `q_rope` | [B, S, H, R], [B, S, H, Dr]: the query, absorbed and rotated | float32, float16 or bfloat16 |
# | `c_kv`, `k_rope` | [B, T, R], [B, T, Dr]: latents and rotated keys | that of `q_latent` |
# | `Dn` | | int |
# | returns | [B, S, H, T], no mask | that of `q_latent` |
#
# All are contiguous. One launch is enough for both products and the scale; more are right, and slower. R and Dr are
# any numbers. The same loop serves both products, so it is a function of its own: it takes the accumulator and
# returns it.
#
# **Points for speed.** The case is a decode step: B = 32, S = 1, H = 128, T = 4096 in
# bfloat16. Half of the points: 0.3 of the floor's speed. All: 0.5 of it, and 1.5 times the speed of eager
# PyTorch.
#
# <details><summary>Hint 1</summary>
#
# A grid of three axes: blocks of S·H rows, blocks of T, and `B`. With `b = tl.program_id(2).to(tl.int64)`, the
# operands of sequence b begin at `q_latent_ptr + b * M * R` and `c_kv_ptr + b * T * R`, where M = S·H. The launcher
# computes the scale.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `add_product` is the loop of `scaled_matmul_kernel`: it is called once with the latents and R, once with the RoPE
# parts and Dr, and what the first call returned goes into the second. Then one store, of `acc * scale`.
#
# </details>
# <details><summary>Hint 3</summary>
#
# The store goes to `out_ptr + (b * M + offs_m[:, None]) * T + offs_n[None, :]`, with the mask `(offs_m < M)[:, None]
# & (offs_n < T)[None, :]`. `add_product(acc, q_ptr, k_ptr, offs_m, offs_n, M, T, D, BLOCK_D)` takes pointers that
# already point to sequence b. Tile, turns, warps and stages as before. Six lines in each kernel.
#
# </details>

# %% solution="attention_score"
@triton.jit
def add_product(acc, q_ptr, k_ptr, offs_m, offs_n, M, T, D: tl.constexpr, BLOCK_D: tl.constexpr):
    """Return acc + q @ k.T for rows offs_m and offs_n. acc: [BLOCK_M, BLOCK_N]; q_ptr: [M, D]; k_ptr: [T, D]."""
    ### BEGIN SOLUTION
    for start in range(0, D, BLOCK_D):
        offs_d = start + tl.arange(0, BLOCK_D)
        # [BLOCK_M, BLOCK_D] and [BLOCK_D, BLOCK_N]
        q = tl.load(
            q_ptr + offs_m[:, None] * D + offs_d[None, :], mask=(offs_m < M)[:, None] & (offs_d < D)[None, :], other=0.0
        )
        k = tl.load(
            k_ptr + offs_n[None, :] * D + offs_d[:, None], mask=(offs_n < T)[None, :] & (offs_d < D)[:, None], other=0.0
        )
        acc = tl.dot(q, k, acc, input_precision="ieee")
    return acc
    ### END SOLUTION


@triton.jit
def attention_score_kernel(
    q_latent_ptr, q_rope_ptr, c_kv_ptr, k_rope_ptr, out_ptr, scale, M, T, R: tl.constexpr, P: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):
    """One program: the scores of BLOCK_M rows and BLOCK_N positions of one sequence. M is S·H, P is Dr.

    q_latent_ptr, q_rope_ptr: [B, M, R], [B, M, P]; c_kv_ptr, k_rope_ptr: [B, T, R], [B, T, P]; out_ptr: [B, M, T].
    """
    ### BEGIN SOLUTION
    b = tl.program_id(2).to(tl.int64)
    offs_m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    acc = add_product(acc, q_latent_ptr + b * M * R, c_kv_ptr + b * T * R, offs_m, offs_n, M, T, R, BLOCK_D)
    acc = add_product(acc, q_rope_ptr + b * M * P, k_rope_ptr + b * T * P, offs_m, offs_n, M, T, P, BLOCK_D)
    out = out_ptr + (b * M + offs_m[:, None]) * T + offs_n[None, :]
    tl.store(out, acc * scale, mask=(offs_m < M)[:, None] & (offs_n < T)[None, :])
    ### END SOLUTION


def attention_score(q_latent, q_rope, c_kv, k_rope, Dn):
    """Scores of absorbed queries, (q_latent · c_kv + q_rope · k_rope) / √(Dn + Dr).

    q_latent: [B, S, H, R]; q_rope: [B, S, H, Dr]; c_kv: [B, T, R]; k_rope: [B, T, Dr]. All contiguous, of one dtype.
    Dn: int, the width of a head without position, before absorption.
    Returns a new tensor [B, S, H, T] of the dtype of q_latent. Launches attention_score_kernel.

    The traps: the scale is no 1/√(R + Dr), and it belongs to the sum of both products.
    """
    ### BEGIN SOLUTION
    (B, S, H, R), (T, P) = q_latent.shape, k_rope.shape[1:]
    out = torch.empty((B, S, H, T), dtype=q_latent.dtype, device=q_latent.device)
    M, block_n = S * H, 128
    block_m = min(max(triton.next_power_of_2(M), 16), 128)
    grid = (triton.cdiv(M, block_m), triton.cdiv(T, block_n), B)
    attention_score_kernel[grid](
        q_latent, q_rope, c_kv, k_rope, out, (Dn + P) ** -0.5, M, T, R, P,
        BLOCK_M=block_m, BLOCK_N=block_n, BLOCK_D=128 // q_latent.element_size(),
        num_warps=8 if block_m == 128 else 4, num_stages=3,
    )
    return out
    ### END SOLUTION


# %% check="attention_score"
check("attention_score")

# %% speed="attention_score"
check_speed("attention_score")

# %% [markdown]
# The verdict counts "issued" bytes and "distinct" ones. Each tile loads its strips itself, and other tiles load
# the same strips again. Issued bytes go to the L2 cache, which is faster than DRAM, but not without limit. With
# these shapes the tile alone decides how many they are:

# %%
batch, rows, context = 32, 128, 4096  # B, M, T
print("tile          bytes asked for   times the distinct ones")
distinct = 2 * batch * (context * 576 + rows * 576 + rows * context)
for block_m, block_n in ((1, 64), (16, 64), (16, 128), (64, 64), (64, 128), (128, 128)):
    tiles = batch * (rows // block_m) * (context // block_n)
    asked = 2 * (tiles * (block_m + block_n) * 576 + batch * rows * context)
    print(f"{block_m:4} × {block_n:<4} {asked / 1e6:14,.0f} MB {asked / distinct:17.1f}")

# %% [markdown]
# Measured on an H100 with Triton {{model_measured.triton}}: kernels that differ in their tile
# (`benchmarks/model_measured.json`: B = 32, H = 128, T = 1024, one product of width 576, result in float32).

# %%
H100_TILES = "{{tiles}}"  # µs
floor = Cost(bytes=32 * ((1024 + 128) * 576 * 2 + 128 * 1024 * 4)).memory_time(h100) * 1e6
bars(
    H100_TILES | {"floor, data sheet": floor},
    unit="µs on an H100",
    title="Scores, tiles measured: B=32, H=128, T=1024, bfloat16",
)

# %% [markdown]
# A program per head, which multiplies without `tl.dot`, took {{one_head_us}} µs.
#
# ## What a query sees
#
# The second kernel turns scores into weights. A batch holds sequences of different lengths: of the T positions of
# sequence b only the first `seq_lens[b]` are real. And a query sees nothing that comes after it. The S queries
# are the *last* ones of the sequence, so query s stands at position `seq_lens[b]` − S + s. It sees itself and
# what comes before. Both rules give one number for a row: it sees the first
#
# $$\text{seen} = \text{seq\_lens}_b - (S - 1 - s)$$
#
# positions, and none if that is not positive. No mask needs to be stored or read. For S = 3 queries and T = 8, a
# sequence of length 8 and one of length 5:

# %%
shown = {}
for length in (8, 5):
    seen = length - torch.arange(2, -1, -1)  # [S]
    shown[f"seq_lens[b] = {length}: seen = {seen.tolist()}"] = (torch.arange(8) < seen[:, None]).int()
squares(shown, ("not seen", "seen"), xlabel="position t", ylabel="query s")

# %% [markdown]
# ## The four steps of a softmax
#
# $$w_t = \frac{e^{x_t - m}}{\sum_{u\ \text{seen}} e^{x_u - m}}, \qquad m = \max_{u\ \text{seen}} x_u$$
#
# **The maximum** cancels, and is needed all the same: the next cell shows where the exponential overflows.

# %%
import math

for dtype in (torch.float16, torch.float32):
    print(f"{dtype!s:14} exp overflows beyond x = {math.log(torch.finfo(dtype).max):.1f}")
x = torch.tensor([100.0, 99.0, 98.0])
print("exp(x) / sum:          ", (x.exp() / x.exp().sum()).tolist())
p = (x - x.max()).exp()
print("the same, less maximum:", (p / p.sum()).tolist())

# %% [markdown]
# **The mask** comes first. A position that is not seen must touch neither the maximum nor the sum. What is stored there
# is left over from somebody else: it can be huge, and it can be NaN. Loaded with `other=float("-inf")` all is well at
# once: −∞ is the maximum of no row that sees anything, and its exponential is 0. That holds for the places between T
# and the block, too. 0 in place of −∞ is wrong: it may become the maximum, and adds $e^{0 - m}$ to the sum.
#
# **A row that sees nothing** has the maximum −∞, and −∞ − (−∞) is NaN. Its weights shall be zeros.
#
# ## Exercise: masked_softmax
#
# One program per row, as in `rms_norm`: load once, compute in registers, store once.
#
# | | shape | dtype |
# |---|---|---|
# | `scores` | [B, S, H, T], contiguous, scaled | float32, float16 or bfloat16 |
# | `seq_lens` | [B], 0 to T | int32 |
# | returns | [B, S, H, T], zeros where nothing is seen | that of `scores` |
#
# T is at most 16384. Compute in float32. One launch is enough; more are right, and slower.
#
# **Points for speed.** The case is B = 2 sequences of 2500 and 4096 tokens, S = 1024 queries, H = 16, T = 4096 in
# bfloat16. Half of the points: 0.4 of the floor's speed. All: 0.55 of it, and 2 times the speed of eager PyTorch.
# The floor counts the scores that are seen, and all weights. The kernel writes every weight; what torch fills in
# does not count.
#
# <details><summary>Hint 1</summary>
#
# The grid is `(B * S * H,)`. Row $(b \cdot S + s) \cdot H + h$ belongs to `b = row // (S * H)` and `s = row // H %
# S`. `tl.load(seq_lens_ptr + b)` is one number. About twelve lines of kernel.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `x = tl.load(scores_ptr + row * T + offs_n, mask=offs_n < seen, other=float("-inf")).to(tl.float32)`; `tl.max(x)`,
# `tl.exp`, `tl.sum`. The mask of the store is another: `offs_n < T`, since weights that are 0 must be written as
# well.
#
# </details>
# <details><summary>Hint 3</summary>
#
# For rows that see nothing: `m_i = tl.where(m_i == float("-inf"), 0.0, m_i)`, which makes all exponentials 0, and
# divide by `tl.where(l_i == 0, 1.0, l_i)`. `BLOCK_N` is the next power of two of T; 1024 numbers per warp, and at
# least one warp: `max(1, BLOCK_N // 1024)`.
#
# </details>

# %% solution="masked_softmax"
@triton.jit
def masked_softmax_kernel(scores_ptr, seq_lens_ptr, out_ptr, S, H, T, BLOCK_N: tl.constexpr):
    """One program: one row.

    scores_ptr, out_ptr: [B, S, H, T]; seq_lens_ptr: [B]; BLOCK_N: a power of two, at least T.
    """
    ### BEGIN SOLUTION
    row = tl.program_id(0).to(tl.int64)
    b, s = row // (S * H), row // H % S
    seen = tl.load(seq_lens_ptr + b) - (S - 1 - s)
    offs_n = tl.arange(0, BLOCK_N)
    x = tl.load(scores_ptr + row * T + offs_n, mask=offs_n < seen, other=float("-inf")).to(tl.float32)  # [BLOCK_N]
    m_i = tl.max(x)
    p = tl.exp(x - tl.where(m_i == float("-inf"), 0.0, m_i))
    l_i = tl.sum(p)
    tl.store(out_ptr + row * T + offs_n, p / tl.where(l_i == 0, 1.0, l_i), mask=offs_n < T)
    ### END SOLUTION


def masked_softmax(scores, seq_lens):
    """Softmax of each row over the positions that its query sees.

    scores: [B, S, H, T], contiguous, T <= 16384; seq_lens: [B], int32, 0 to T.
    Query s of sequence b sees the first seq_lens[b] - (S - 1 - s) positions. What scores hold elsewhere is not used.
    Returns a new tensor of the shape and dtype of scores, zeros where nothing is seen. Launches masked_softmax_kernel.

    The traps: mask before the maximum; rows that see nothing; the queries are the last of the sequence.
    """
    ### BEGIN SOLUTION
    B, S, H, T = scores.shape
    out = torch.empty_like(scores)
    block = triton.next_power_of_2(T)
    warps = min(max(block // 1024, 1), 16)
    masked_softmax_kernel[(B * S * H,)](scores, seq_lens, out, S, H, T, BLOCK_N=block, num_warps=warps)
    return out
    ### END SOLUTION


# %% check="masked_softmax"
check("masked_softmax")

# %% speed="masked_softmax"
check_speed("masked_softmax")

# %% [markdown]
# The kernel reads the scores that are seen, once, and writes all weights, once. That is no more than a copy of
# the scores moves.
#
# ## Rows longer than a block
#
# A context of 100,000 tokens is a row of 100,000 scores. One block of 131072 numbers would be 128 for each of
# 1024 threads, and a thread of such a program has at most 64 registers. The numbers would spill to memory. So a
# program walks along its row in blocks of 4096.
#
# Written down as above that takes three loops: one for the maximum, one for the sum, one for the weights. Each
# reads the row from memory, as the rows of all programs together do not fit into the L2.
#
# The first two loops can be one. Keep a **running maximum**, and the sum of exponentials relative to it. When a
# block brings a larger maximum, all earlier terms were relative to the old one. One factor, α, puts them right:
#
# $$m' = \max(m, \max_{t} x_t), \qquad \alpha = e^{m - m'}, \qquad \ell' = \alpha\,\ell + \sum_{t} e^{x_t - m'}$$
#
# The next cell walks along a row in three blocks.

# %%
torch.manual_seed(5)
row = torch.randn(12, dtype=torch.float64) + torch.linspace(0, 6, 12)
m_i, l_i = torch.tensor(-torch.inf, dtype=torch.float64), torch.tensor(0.0, dtype=torch.float64)
print("block maximum   running maximum    alpha   sum so far")
for block in row.split(4):
    m_new = torch.maximum(m_i, block.max())
    alpha = torch.exp(m_i - m_new)
    l_i = l_i * alpha + torch.exp(block - m_new).sum()
    m_i = m_new
    print(f"{block.max():13.3f} {m_i:17.3f} {alpha:8.4f} {l_i:12.4f}")
print(f"{row.max():31.3f} {'':8} {(row - row.max()).exp().sum():12.4f}   by definition")

# %% [markdown]
# The α of the first block is $e^{-\infty} = 0$, times a sum of 0. Nothing special has to be done for it.
#
# Two loops remain, and two reads: the weights can be written only when the sum is known. Lesson 06 gets rid of
# the second read, since it never writes weights.
#
# ## Exercise: long_softmax
#
# As `masked_softmax`, with rows of any length in blocks of `LONG_BLOCK`, in one launch.
#
# | | shape | dtype |
# |---|---|---|
# | `scores` | [B, S, H, T], contiguous, scaled | float32, float16 or bfloat16 |
# | `seq_lens` | [B], 0 to T | int32 |
# | returns | [B, S, H, T], zeros where nothing is seen | that of `scores` |
#
# **Points for speed.** The case is B = 4 sequences of up to 98304 tokens, S = 1, H = 128, scores in float32. Half
# of the points: 0.35 of the floor's speed, which three loops reach. All: 0.5 of it, which takes two loops, and also
# 1.3 times the speed of eager PyTorch. The kernel writes every weight; what torch fills in does not count.
#
# <details><summary>Hint 1</summary>
#
# Begin as in `masked_softmax`, up to `seen`. A loop `for start in range(0, seen, BLOCK_N)` visits the blocks in which
# the row sees anything, with `offs_n = start + tl.arange(0, BLOCK_N)`. Maximum and sum are plain numbers that the loop
# carries along.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Before the loop `m_i = float("-inf")` and `l_i = 0.0`. In it `m_new = tl.maximum(m_i, tl.max(x))`, `alpha =
# tl.exp(m_i - m_new)`, then `l_i = l_i * alpha + tl.sum(tl.exp(x - m_new))`, then `m_i = m_new`. Every block that the
# loop visits has a position that is seen, so `m_new` is finite.
#
# </details>
# <details><summary>Hint 3</summary>
#
# The second loop runs to T, since zeros are written too. It loads x again and stores `tl.exp(x - m_i) / l_i` under
# `offs_n < T`. Between the loops, for a row that sees nothing: `m_i = tl.where(seen > 0, m_i, 0.0)` and `l_i =
# tl.where(seen > 0, l_i, 1.0)` make its weights zeros. 8 warps.
#
# </details>

# %% solution="long_softmax"
LONG_BLOCK = 4096  # leave as it is: smaller blocks take the emulator too long


@triton.jit
def long_softmax_kernel(scores_ptr, seq_lens_ptr, out_ptr, S, H, T, BLOCK_N: tl.constexpr):
    """One program: one row, in blocks. scores_ptr, out_ptr: [B, S, H, T]; seq_lens_ptr: [B]."""
    ### BEGIN SOLUTION
    row = tl.program_id(0).to(tl.int64)
    b, s = row // (S * H), row // H % S
    seen = tl.load(seq_lens_ptr + b) - (S - 1 - s)
    m_i, l_i = float("-inf"), 0.0
    for start in range(0, seen, BLOCK_N):
        offs_n = start + tl.arange(0, BLOCK_N)
        x = tl.load(scores_ptr + row * T + offs_n, mask=offs_n < seen, other=float("-inf")).to(tl.float32)  # [BLOCK_N]
        m_new = tl.maximum(m_i, tl.max(x))
        alpha = tl.exp(m_i - m_new)
        l_i = l_i * alpha + tl.sum(tl.exp(x - m_new))
        m_i = m_new
    m_i, l_i = tl.where(seen > 0, m_i, 0.0), tl.where(seen > 0, l_i, 1.0)
    for start in range(0, T, BLOCK_N):
        offs_n = start + tl.arange(0, BLOCK_N)
        x = tl.load(scores_ptr + row * T + offs_n, mask=offs_n < seen, other=float("-inf")).to(tl.float32)
        tl.store(out_ptr + row * T + offs_n, tl.exp(x - m_i) / l_i, mask=offs_n < T)
    ### END SOLUTION


def long_softmax(scores, seq_lens):
    """Softmax of each row over the positions that its query sees, rows in blocks, in one launch.

    scores: [B, S, H, T], contiguous, any T; seq_lens: [B], int32, 0 to T; sight as in masked_softmax.
    Returns a new tensor of the shape and dtype of scores, zeros where nothing is seen. Launches long_softmax_kernel
    once.

    The traps: maximum and sum belong to the row, not to a block; the last block is not full.
    """
    ### BEGIN SOLUTION
    B, S, H, T = scores.shape
    out = torch.empty_like(scores)
    long_softmax_kernel[(B * S * H,)](scores, seq_lens, out, S, H, T, BLOCK_N=LONG_BLOCK, num_warps=8)
    return out
    ### END SOLUTION


# %% check="long_softmax"
check("long_softmax")

# %% speed="long_softmax"
check_speed("long_softmax")

# %% [markdown]
# ## What a fusion gains
#
# The report switches its fusions on one at a time, and then all together (its Table 3). RF is the fused RMSNorm,
# RPEF the fused RoPE of lesson 04. It measures **throughput**, tokens per second of a layer, on 4 prompts of 4096
# tokens, and states gains over the layer without fusions:
#
# | | ASF (scores) | SF (softmax) | RF (norm) | RPEF (RoPE) | sum | all together |
# |---|---|---|---|---|---|---|
# | gain | 46.23 % | 9.37 % | 0.25 % | 0.61 % | 56.46 % | 73.02 % |
#
# All together gain more than the sum of the parts. The report is "still investigating the specific mechanisms".
# Do the fusions help each other? First another question: what should they gain together if they do *not*?
#
# ## Predict: the ablation
#
# A layer takes `total`. Piece i of it takes `before[i]` while it is eager, and `after[i]` when it is fused. The
# pieces run one after the other, and fusing one leaves the others as they are. Return the gain in throughput from
# each fusion alone, the sum of these gains, and the gain from all fusions.
#
# <details><summary>Hint 1</summary>
#
# Throughput is tokens over time, and the tokens stay the same. So the gain is old time over new time, less 1.
#
# </details>
# <details><summary>Hint 2</summary>
#
# With one piece exchanged the layer takes `total - before[i] + after[i]`. With all of them it takes `total -
# sum(before) + sum(after)`.
#
# </details>
# <details><summary>Hint 3</summary>
#
# Three lines. For total 100, before [40, 20], after [10, 8] the gains are 100/70 − 1 = 0.43 and 100/88 − 1 = 0.14,
# and the combined gain is 100/58 − 1 = 0.72.
#
# </details>

# %% solution="predict_ablation"
def predict_ablation(total, before, after):
    """Gains in throughput from making pieces of a layer faster, one at a time and all together.

    total: float, time of the layer; before, after: lists of floats, times of its pieces, eager and fused.

    Returns a dict:
      gains          list: of the layer's throughput, as a fraction, with one piece exchanged
      sum_of_gains   their sum
      combined_gain  with all pieces exchanged

    The trap: throughput is 1 / time. Times saved add up; gains do not.
    """
    ### BEGIN SOLUTION
    saved = [old - new for old, new in zip(before, after, strict=True)]
    gains = [total / (total - each) - 1 for each in saved]
    return {"gains": gains, "sum_of_gains": sum(gains), "combined_gain": total / (total - sum(saved)) - 1}
    ### END SOLUTION


# %% check="predict_ablation"
check("predict_ablation")

# %% [markdown]
# Now the report's figures. The layer took 4 · 4096 tokens over 1.53 · 10⁵ tokens per second. Each gain gives the
# time that the fusion saved alone. These times give the gain to expect from all.

# %%
total = 4 * 4096 / 1.53e5 * 1e3  # ms
published = {"ASF": 0.4623, "SF": 0.0937, "RF": 0.0025, "RPEF": 0.0061}
saved = {name: total - total / (1 + gain) for name, gain in published.items()}
expected = predict_ablation(total, list(saved.values()), [0.0] * 4)

print(f"one pass of the layer: {total:.0f} ms")
print("saved alone, ms:", {name: round(time, 1) for name, time in saved.items()})
gains = {"sum of the gains": sum(published.values()), "times saved, added up": expected["combined_gain"]}
bars(
    {name: 100 * gain for name, gain in gains.items()} | {"published": 73.02},
    unit="gain in throughput (%)", title="All four fusions of the report",
)

# %% [markdown]
# Most of it is arithmetic. Each gain is relative to a time that the others have not yet shortened: 33.9 ms saved of
# 107 are a gain of 46 %; of a layer that took 60 they would be one of 130 %. Fusions that know nothing of each other
# would gain 70 % together. The rest, up to 73 %, is 1 ms of 107.
#
# ## Your kernels in a layer
#
# `mla_ref.FusedMLA` is an MLA layer whose steps can be exchanged. The next cell puts your kernels into a tiny
# one, and compares it with a layer that expands keys and values (lesson 02).

# %%
from mla_ref import MLA, FusedMLA, MLAConfig

torch.manual_seed(0)
dtype = torch.float32 if emulated else torch.float16
layer = MLA(MLAConfig.preset("tiny"), device=device, dtype=dtype)


def my_scores(q_latent, q_rope, c_kv, k_rope, scale):
    operands = (x.contiguous() for x in (q_latent, q_rope, c_kv, k_rope))  # the kernels of mla_ref take strides
    return attention_score(*operands, layer.config.qk_nope_head_dim)


def my_softmax(scores):
    lengths = torch.full(scores.shape[:1], scores.shape[-1], dtype=torch.int32, device=scores.device)
    return masked_softmax(scores, lengths)


fused_mla = FusedMLA(layer, score=my_scores, softmax=my_softmax)
x = torch.randn(2, 21, layer.config.hidden_size, device=device, dtype=dtype)
with torch.no_grad():
    expected, cache = layer(x, impl="naive"), layer.make_cache(2, 21)
    chunks = ((0, 13), (13, 20), (20, 21))  # a prefill, a second chunk of it, a decode step
    got = [fused_mla(x[:, a:b], cache.c_kv, cache.k_rope, fused_mla.step(a, b - a)) for a, b in chunks]
    got = torch.cat(got, 1)
print(f"relative difference from the expanded form: {((got - expected).norm() / expected.norm()).item():.1e}")

# %% [markdown]
# ## Measure: the ablation on an H100
#
# The same ablation with the kernels of `mla_ref`, in float16, 4 prompts of 4096 tokens, replayed from a CUDA
# graph (`benchmarks/ablation_h100.json`). The baseline is DeepSeek's formulation. "Foretold" is
# `predict_ablation` with scores and softmax timed by themselves. The report measured on an RTX 4090.
#
# {{ablation}}
#
# - The pieces foretell the layer: its time within 6 % for one fusion{{!within_6}}, within 12 % for
#   both{{!within_12}}.
# - The four gains add up to {{sum_of_gains}}, all together gain {{all_gain}}. The times saved, added up, come to
#   a little more than was measured{{!a_little_more}}: the fusions do not help each other.
# - The fused softmax saves nearly the same time before and after ASF{{!the_same_time}}: {{softmax_saves}}. After
#   ASF that is more than half of the layer's time{{!more_than_half}}, so it more than doubles the throughput.
# - On the H100 the softmax gains most{{!softmax_gains_most}}; in the report, the scores. The appendix says why.
#
# **The right form.** All of this was a prefill in the absorbed form, which is the form for decoding (lesson 03).
# The layer with keys and values expanded, through cuDNN's fused attention, takes {{expanded_ms}} ms as started
# from Python; absorbed with all fusions it takes {{all_ms}} ms. The best fusion of the wrong form loses to the
# right form{{!loses}}.
#
# ## What you have now
#
# - A tiled kernel with `tl.dot`, and a way to see how often a tile reads its operands again.
# - A softmax that is right for any mask, any length, and rows that see nothing.
# - The arithmetic of an ablation: times saved add up, gains do not.
# - Passes over the scores that nobody needs. Lesson 06 keeps a tile of scores on the chip, applies your running
#   maximum to it, multiplies it with the values, and never writes a score.
#
# Figures: {{records}}.

# %% [markdown]
# <details><summary>Appendix: longer prompts, bytes, the host, memory, and what went wrong elsewhere</summary>
#
# **Longer prompts gain more.** In the report's Table 2 (batch 4) the time of a token is a straight line in the
# length of the prompt: {{line_eager}} for DeepSeek's code, {{line_fused}} with all fusions. Projections and norms
# cost the same for every token, and the fusions hardly change them. Scores and weights cost the same for every
# *pair* of tokens, and that was nearly halved. So the gain grows with the length, up to about {{most}} % for very long
# prompts.
#
# **Which bytes.** A pair is 16 scores, and the eager form passes 12 times over each (11 and the weighted sum),
# the fused form 4 times. By the data sheet of the RTX 4090, passes and products together:
#
# {{pairs}}
#
# The float32 row is 82 to 87 % of Table 2, the float16 row 41 to 44 %. The report's public code agrees: when
# the ablation was added, its benchmark ran in float32 (the comment beside it reads "FLOAT16 IS BUG"). By bytes in
# float32, ASF would gain {{asf_by_bytes}} % and SF {{sf_by_bytes}} %, where 46 % and 9 % are published. So the
# scores gained from something else, too. A candidate: PyTorch multiplies float32 exactly unless it is told
# otherwise, `tl.dot` in TF32 unless it is told otherwise. We measured nothing on this.
#
# **Why the softmax gains most on an H100.** In float16 both forms use the matrix units: the fused score kernel
# takes about as long as the two products of cuBLAS, NVIDIA's library of matrix products{{!as_two_products}}, and
# ASF saves only the sum and the scale. DeepSeek's softmax goes through float32: it writes 4 bytes a number, and a
# conversion reads them. Adding the mask moves 4.3 GB, 1.3 ms by the data sheet; PyTorch's kernel took about three
# times as long{{!three_times}}. The fused softmax reads only what is seen, half of the scores, and takes less
# time than a copy of all{{!less_than_a_copy}}.
#
# **Short prompts: the host.** The table has the times of host and device with all fusions. Beside them are the sum
# of the four gains and the gain of all, started from Python and replayed from a CUDA graph, which leaves the host
# out.
#
# {{hosts}}
#
# In a graph all gain more than the sum at every length{{!at_every_length}}. Started from Python, all fusions beat
# the baseline from 1024 tokens on{{!from_1024_faster}}, at 1024 by {{from_python}} where the graph has
# {{in_a_graph}}. With 512 tokens, and in a decode step, the device is done before Python has started the next
# kernel: a pass takes as long as the host{{!as_the_host}}, and starting a kernel of Triton's takes Python longer
# than starting one of PyTorch's own{{!triton_starts_slower}}. With 1024 tokens the eager layer keeps the device
# busy{{!kept_busy}}, and with all fusions the layer takes as long as the host{{!ends_at_the_host}}. Say which of
# the two you measured.
#
# **Memory.** A pass of 8 prompts of 4096 tokens allocates {{peak}}. In the report's Table 2 both forms ran out of
# a card's 24 GB. In float32, twice as much, that explains the eager form; it does not explain the fused
# one{{!fused_would_fit}}.
#
# **The scale.** 1/√576 in place of 1/√192 is the most common error in absorbed attention, since a kernel sees
# keys 576 wide. FlashMLA (DeepSeek's decode kernels for MLA) takes 1/√576 unless a scale is given, and
# FlashInfer's own benchmark of MLA computes with it. Users met it in ollama (#13893) and Megatron (#1501). The
# report's public code scales its layer by 1/√192, and the test of its score kernel by 1/√576. With YaRN, which
# stretches RoPE to longer contexts, V3's scale is larger by a factor of 1.87; that factor was lost in Megatron
# (#1429), transformers (#47435) and TensorRT-LLM (#19112).
#
# **Few heads.** Split over 8 or 16 GPUs, 128 heads are 16 or 8 on each. Below 16 the tile of `tl.dot` is not full
# (aiter #2577, vllm #50578). Padding 16 heads to the 64 rows of another kernel makes 4 times the work.
#
# **"A single pass".** Section 3.2.2 of the report says that its softmax reads each operand once. Its public
# kernel has the three loops from above, and reads the mask three times as well. On an H100, float32, 8192 rows of
# 8000 take {{one_block_us}} µs in one block and {{three_loops_us}} µs in three loops of 256
# (`benchmarks/model_measured.json`).
#
# **One head a program.** The report's score kernel has a grid over heads, so each head reads the cache again. In
# a prefill 64 queries of a head share a block of keys. In a decode step there is one query, and 63 of 64 rows of
# the tile are masked.
#
# **Rows that see nothing** exist: sequences of length 0 in a padded batch, queries of padding. Libraries disagree
# on their log-sum-exp: +∞ in one, −∞ in another.
#
# **Numbers of 32 bits.** 8 prompts of 4096 tokens with 16 heads have 8 · 4096 · 16 · 4096 = $2^{31}$ scores.
# Signed 32-bit offsets reach no further. Hence `.to(tl.int64)` on the program id, as in lesson 04.
#
# </details>
