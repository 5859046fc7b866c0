# %% [markdown]
# # Lesson 05: fused scores and softmax
#
# Lesson 04 fused the norm and the rotation, and the layer of the report gained less than one percent from it: both
# are small. The large tensor of attention is the **scores**, one number for each query, head and token of context.
# In a prefill they are larger than everything else together, and PyTorch writes and reads them again and again.
#
# In this lesson you write the kernel that makes them, and the one that turns them into weights. Then you take the
# report's ablation apart: what did each fusion gain, and why did all of them together gain more than their sum?
#
# | exercise | you write | points right | points fast |
# |---|---|---|---|
# | `predict_score_bytes` | the bytes of scores and softmax, eager and fused | 2 | |
# | `scaled_matmul` | a tile of a matrix product, with `tl.dot` | 2 | 1 |
# | `attention_score` | both products and the scale in one kernel (ASF) | 4 | 3 |
# | `masked_softmax` | mask, maximum, exponential, sum in one kernel (SF) | 4 | 3 |
# | `long_softmax` | the same for rows that are longer than a block | 3 | 2 |
# | `predict_ablation` | what each fusion gains, and all of them | 2 | |
#
# As in lesson 04, kernels are graded for the answer and for the time they would take on an H100. The limits of an
# exercise are 10 s and 512 MiB for all its cases. Hidden cases have odd sizes.
#
# | symbol | meaning | DeepSeek-V3 |
# |---|---|---|
# | B, S, T | sequences, new tokens (queries) per sequence, tokens of context, the new ones included | |
# | H | heads | 128 |
# | Dn, Dr | width of a head without position, and of the part with position (RoPE) | 128, 64 |
# | R | width of the latent | 512 |
#
# | tensor | shape | what it is |
# |---|---|---|
# | `q_latent`, `q_rope` | [B, S, H, R], [B, S, H, Dr] | absorbed query (lesson 03), and its rotated part |
# | `c_kv`, `k_rope` | [B, T, R], [B, T, Dr] | the cache: latents and rotated keys, shared by all heads |
# | scores, weights | [B, S, H, T] | before and after the softmax |
#
# The source is the report *Optimizing Multi-head Latent Attention for Efficient Inference* ("the report"), sections
# 3.2.1, 3.2.2 and 4, and its public code.

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
# This is the attention of lesson 03 up to the weights, as the baseline in the report's public code computes it:

# %%
def eager_scores(q_latent, q_rope, c_kv, k_rope, scale):
    nope = torch.einsum("bshr,btr->bsht", q_latent, c_kv)  # [B, S, H, T]
    rope = torch.einsum("bshr,btr->bsht", q_rope, k_rope)  # [B, S, H, T]
    return (nope + rope) * scale


def eager_softmax(scores, mask):
    """mask: [S, T], 0 where a query sees a position, -inf elsewhere."""
    return (scores + mask[:, None]).softmax(-1)


# %% [markdown]
# The next cell compares the size of the scores with what they are made of: for the layer of the report, which
# processes 4 prompts of 4096 tokens at once with 16 heads, and for a decode step of DeepSeek-V3.

# %%
from IPython.display import display
from mla_ref import DEVICES, Cost
from mla_ref.plots import bars

h100 = DEVICES["h100"]
R, Dr = 512, 64
for title, B, S, H, T in (
    ("prefill in the report's layer: B=4, S=T=4096, H=16", 4, 4096, 16, 4096),
    ("decode step of DeepSeek-V3: B=32, S=1, H=128, T=4096", 32, 1, 128, 4096),
):
    numbers = {"cache": B * T * (R + Dr), "queries": B * S * H * (R + Dr), "scores": B * S * H * T}
    figure = bars(
        {name: 2 * count / 1e6 for name, count in numbers.items()}, unit="MB in 16 bits", title=title, log=True
    )
    display(figure)

# %% [markdown]
# In the prefill the scores have 2.1 GB, 114 times the cache. In the decode step they are a fifth of it. So what
# fusion can save here depends on S·H: with S·H = R + Dr, a token of context has as many scores as it has numbers in
# the cache.

# %% [markdown]
# ## Predict: bytes from operands to weights
#
# Count the bytes that move between the chip and memory, from the operands to the weights. Rules, as in lesson 04:
#
# - every operation reads each of its inputs once and writes its result once;
# - only tensors of the size of the scores count, [B, S, H, T]. Queries, cache and the mask [S, T] are left out;
# - all tensors have `itemsize` bytes per number;
# - `softmax` counts as one operation.
#
# Four variants: all eager as above; the scores made by one kernel (ASF) and the softmax eager; the scores eager, mask
# and softmax in one kernel (SF); both fused. And once more, for comparison, the bytes of the cache.
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
      eager_bytes          eager_scores and eager_softmax above
      score_fused_bytes    one kernel in place of eager_scores
      softmax_fused_bytes  one kernel in place of eager_softmax
      both_fused_bytes     two kernels
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
# Now count. The recorder of lesson 04 notes what each operation of PyTorch reads and writes, on tensors without data.

# %%
import matplotlib.pyplot as plt
from autograder.kernels.worker.recording import recording
from mla_ref.plots import PALETTE


def operations(function, **arguments):
    """Return [name, bytes read, bytes written] for every operation of PyTorch that the function runs."""
    with recording(arguments) as recorder:
        function(*arguments.values())
    size = lambda tensors: sum(count for _, count in tensors)
    return [[e["op"][0], size(e["reads"]), size(e["writes"])] for e in recorder.events if e["kind"] == "host"]


empty = lambda *shape, dtype=torch.bfloat16: torch.empty(shape, dtype=dtype, device="meta")
B, S, H, T = 4, 4096, 16, 4096
operands = {
    "q_latent": empty(B, S, H, R), "q_rope": empty(B, S, H, Dr), "c_kv": empty(B, T, R), "k_rope": empty(B, T, Dr)
}
rows = operations(eager_scores, **operands, scale=1.0)
rows += operations(eager_softmax, scores=empty(B, S, H, T), mask=empty(S, T))

_, axes = plt.subplots(figsize=(7.5, 2.6), layout="constrained")
names = [f"{number}. {name.strip('_')}" for number, (name, _, _) in enumerate(rows, start=1)]
read, written = ([row[column] / 1e9 for row in rows] for column in (1, 2))
axes.barh(names, read, color=PALETTE[0], label="read")
axes.barh(names, written, left=read, color=PALETTE[4], label="written")
axes.invert_yaxis()
axes.set(xlabel="GB", title="From operands to weights, B=4, S=T=4096, H=16, bfloat16: one row per kernel")
axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
plt.show()

mine = predict_score_bytes(B, S, H, T, R, Dr, 2)
counted = sum(read + written for _, read, written in rows)
print(f"predicted {mine['eager_bytes'] / 1e9:.1f} GB of scores, counted {counted / 1e9:.1f} GB with the operands")

# %% [markdown]
# Two products are work, and four more operations are little else than passes. The next cell puts a time to them on an
# H100, by its data sheet. The products are 1.2 TFLOP. That is arithmetic that no fusion removes.

# %%
products = Cost(flops=2 * B * S * H * T * (R + Dr))
times = {"both products, arithmetic": products.compute_time(h100)}
for name, label in (
    ("eager", "eager, bytes"),
    ("score_fused", "scores fused, bytes"),
    ("softmax_fused", "softmax fused, bytes"),
    ("both_fused", "both fused, bytes"),
):
    times[label] = mine[f"{name}_bytes"] / h100.bandwidth()
bars(
    {label: time * 1e3 for label, time in times.items()},
    unit="ms on an H100 by its data sheet",
    title="B=4, S=T=4096, H=16, bfloat16",
)

# %% [markdown]
# By bytes, fusing the scores saves three times as much as fusing the softmax: 6 passes against 2. And with both fused
# there are 3 passes left: the scores are written, read, and the weights are written. The weighted sum reads those
# again. To remove these four as well, one kernel would have to do everything up to the weighted sum. Lesson 06 does
# that.

# %% [markdown]
# Passes can be timed on this machine, too. The next cell takes 4 million scores, and gives each operation a place for
# its result.

# %%
from mla_ref import bench

torch.set_num_threads(1)  # times waver less
scores, other = (torch.randn(1, 128, 16, 2048, device=device) for _ in range(2))
mask, target = torch.zeros(128, 2048, device=device), torch.empty_like(scores)
for name, passes, run in (
    ("copy", 2, lambda: target.copy_(scores)),
    ("sum of the products", 3, lambda: torch.add(scores, other, out=target)),
    ("times scale", 2, lambda: torch.mul(scores, 0.07, out=target)),
    ("add the mask", 2, lambda: torch.add(scores, mask[:, None], out=target)),
    ("softmax", 2, lambda: torch.softmax(scores, -1, out=target)),
):
    time = bench(run, repeat=9).median * 1e3
    print(f"{name:20} {time:6.2f} ms, {time / passes:5.2f} ms a pass")

# %% [markdown]
# A pass takes about as long whatever is computed in it. (On one core of a CPU the softmax is an exception, as an
# exponential costs more there than the number's way to memory.)

# %% [markdown]
# ## A tile and its strips
#
# The kernels of lesson 04 worked on rows. A matrix product has two sides, so a program computes a **tile** of the
# result. Three things are new. The first exercise has all three, and nothing else.
#
# **1. The tile.** Program (i, j) of a two-dimensional grid computes `BLOCK_M` rows and `BLOCK_N` columns of the
# result $x\,y^\top$. It needs a strip of $x$ and a strip of $y$.

# %%
from matplotlib.patches import Rectangle

GREY, STRIP, TURN, TILE = "#EDEDED", PALETTE[5], PALETTE[4], PALETTE[2]


def draw_matrix(axes, left, bottom, width, height, title, marked=()):
    axes.add_patch(Rectangle((left, bottom), width, height, facecolor=GREY, edgecolor="#555555"))
    for x, y, w, h, color in marked:
        axes.add_patch(Rectangle((left + x, bottom + y), w, h, facecolor=color, edgecolor="#555555"))
    axes.text(left + width / 2, bottom + height + 0.25, title, ha="center", fontsize=9)


_, axes = plt.subplots(figsize=(9, 3.6), layout="constrained")
draw_matrix(axes, 0, 0, 6, 4, "x  [M, K]", [(0, 1, 6, 1, STRIP), (2, 1, 1, 1, TURN)])
draw_matrix(axes, 8, 0, 6, 4, "y  [N, K]", [(0, 2, 6, 1, STRIP), (2, 2, 1, 1, TURN)])
draw_matrix(axes, 17, 0, 4, 4, "out  [M, N]", [(1, 1, 1, 1, TILE)])
for x, y, text in (
    (3, -0.6, "BLOCK_M rows, in turns\nof BLOCK_K columns"),
    (11, -0.6, "BLOCK_N rows, in turns\nof BLOCK_K columns"),
    (19, -0.6, "one program's tile,\nin its accumulator"),
    (15.5, 2, "→"),
    (7, 2, "·"),
):
    axes.text(x, y, text, ha="center", va="center" if text in "→·" else "top", fontsize=9 if len(text) > 1 else 14)
axes.set(xlim=(-0.3, 21.3), ylim=(-1.9, 4.8))
axes.set_title("One program: a strip of x, a strip of y, a tile of the result (blue: strips, orange: one turn)")
axes.axis("off")
plt.show()

# %% [markdown]
# **2. `tl.dot`.** `tl.dot(a, b)` multiplies two blocks, `[BLOCK_M, BLOCK_K]` and `[BLOCK_K, BLOCK_N]`, on the matrix
# units of the GPU. All three sides are powers of two, 16 or more. Smaller matrices are padded with masked places that
# read as 0.
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
# **3. The accumulator.** The strips are long, R = 512 numbers, and do not fit into registers. So a program walks
# along them in turns of `BLOCK_K` columns, and adds each turn's product to a tile that stays in registers, the
# **accumulator**:
#
# ```python
# acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
# for start in range(0, K, BLOCK_K):
#     ...                        # load x and y of this turn
#     acc = tl.dot(x, y, acc)    # acc + x · y
# ```
#
# The accumulator is float32, whatever the operands are. That costs nothing: the matrix units add in float32 anyway.
# A sum of 576 products can exceed 65504, the largest float16, long before the scale makes it small.
#
# **What the emulator does not see.** A GPU multiplies *float32* operands in TF32, with 10 bits of mantissa, unless it
# is told `tl.dot(x, y, acc, input_precision="ieee")`. The emulator multiplies them in float32 either way. For operands
# of 16 bits the option changes nothing, so write it.
#
# While the matrix units compute one turn, the next ones can be on their way. `num_stages=3` at the launch lets the
# compiler load ahead so that three turns are in **shared memory** at a time. Each stage holds its two blocks: 3 ·
# (128 · 64 + 64 · 128) · 2 bytes are 96 KiB. A program on an H100 can have 227 KiB, on a T4 64 KiB.
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
# M, N and K are any numbers from 1 on. Three masks follow: rows of x, rows of y, and columns in the last turn.
#
# The points for speed: M = 128, N = 65536, K = 512 in bfloat16. Half of them from a fraction of 0.25 of the floor's
# speed on, all from 0.45.
#
# <details><summary>Hint 1</summary>
#
# The grid is `(triton.cdiv(M, BLOCK_M), triton.cdiv(N, BLOCK_N))`. `offs_m = tl.program_id(0) * BLOCK_M + tl.arange(0,
# BLOCK_M)`, `offs_n` likewise with `tl.program_id(1)`. About ten lines of kernel.
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
# After the loop one store, of `acc * scale`, to `out_ptr + offs_m[:, None] * N + offs_n[None, :]`; it converts. Tiles
# of 128 × 128, 8 warps, 3 stages, turns of `128 // x.element_size()` columns: 128 bytes of each row. For small M or N
# take `max(16, triton.next_power_of_2(M))` instead of 128.
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
    Returns a new tensor [M, N] of the dtype of x. Launches scaled_matmul_kernel.

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
# All heads of a sequence meet the same keys. So head and query need not be axes of their own: `q_latent[b]` is
# stored as [S, H, R], which is also a matrix of S·H rows, row $m = s \cdot H + h$. The scores of a sequence are one
# matrix [S·H, T], and they are stored just so. What is left is `scaled_matmul` with a batch, and a second product
# for the same accumulator.

# %%
_, axes = plt.subplots(figsize=(9, 3.7), layout="constrained")
heads = [PALETTE[n] for n in (5, 4, 2, 3)]
queries = [(0, 3.5 - 0.5 * n, 5, 0.5, heads[n % 4]) for n in range(8)]
draw_matrix(axes, 0, 0, 5, 4, "q_latent  [S·H, R]", queries)
draw_matrix(axes, 5.3, 0, 1.2, 4, "q_rope", [(0, y, 1.2, h, color) for _, y, _, h, color in queries])
draw_matrix(axes, 8.5, 0, 6, 4, "c_kvᵀ  [R, T]", [(1.5, 0, 1.5, 4, "#C9C9C9")])
draw_matrix(axes, 8.5, -1.3, 6, 1, "", [(1.5, 0, 1.5, 1, "#C9C9C9")])
axes.text(8.2, -0.8, "k_ropeᵀ", fontsize=9, ha="right", va="center")
draw_matrix(
    axes, 17, 0, 6, 4, "scores  [S·H, T]", [(1.5, y, 1.5, h, color) for _, y, _, h, color in queries]
)
for n in range(8):
    axes.text(-0.2, 3.75 - 0.5 * n, f"query {n // 4}, head {n % 4}", ha="right", va="center", fontsize=8)
axes.text(20, -0.5, "one tile: every head of both queries\nmeets a block of T", ha="center", va="top", fontsize=9)
axes.set(xlim=(-4.2, 23.2), ylim=(-1.6, 4.8))
axes.set_title("One sequence with S = 2 queries and H = 4 heads")
axes.axis("off")
plt.show()

# %% [markdown]
# A program reads its block of the cache once for all rows of its tile. With `BLOCK_M` rows per tile, the cache is
# read S·H / BLOCK_M times. A program per head would read it S·H times: that is what becomes of a grid over heads.
#
# Where H is small the tile is not full. `tl.dot` wants 16 rows, and a decode step with H = 8 fills half of them.
#
# **The scale** is $1/\sqrt{Dn + Dr}$, the width of a head before absorption: 1/√192 in DeepSeek-V3. Absorption only
# brackets the same product differently (lesson 03), so it changes no score. The operands that arrive here are R and
# Dr wide. Dn cannot be read off them, and must be given.
#
# ## Exercise: attention_score
#
# | | shape | dtype |
# |---|---|---|
# | `q_latent`, `q_rope` | [B, S, H, R], [B, S, H, Dr], contiguous | float32, float16 or bfloat16 |
# | `c_kv`, `k_rope` | [B, T, R], [B, T, Dr], contiguous | that of `q_latent` |
# | `Dn` | | int |
# | returns | [B, S, H, T], no mask | that of `q_latent` |
#
# Both products and the scale in one launch. R and Dr are any numbers; the same loop serves both, as a function of its
# own that is given the accumulator and returns it.
#
# The case for speed is the decode step of the first picture: B = 32, S = 1, H = 128, T = 4096 in bfloat16. Half of
# the points from a fraction of 0.3 on, all from 0.5 and 1.5 times the speed of eager PyTorch.
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
    """Scores of absorbed queries, (q_latent · c_kv + q_rope · k_rope) / √(Dn + Dr), in one launch.

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
# "Issued" is more than "distinct": each tile loads its strips itself, and other tiles load the same ones. Issued
# bytes go to the L2 cache, which is faster than DRAM, but not without limit. How many they are depends on the tile
# alone:

# %%
B, M, T = 32, 128, 4096
print("tile          bytes asked for   times the distinct ones")
distinct = 2 * B * (T * 576 + M * 576 + M * T)
for block_m, block_n in ((1, 64), (16, 64), (16, 128), (64, 64), (64, 128), (128, 128)):
    tiles = B * (M // block_m) * (T // block_n)
    asked = 2 * (tiles * (block_m + block_n) * 576 + B * M * T)
    print(f"{block_m:4} × {block_n:<4} {asked / 1e6:14,.0f} MB {asked / distinct:17.1f}")

# %% [markdown]
# Measured on an H100 with Triton {{model_measured.triton}}, kernels that differ in their tile
# (`benchmarks/model_measured.json`: B = 32, H = 128, T = 1024, one product of width 576, result in float32):

# %%
H100_TILES = "{{tiles}}"  # µs
floor = Cost(bytes=32 * ((1024 + 128) * 576 * 2 + 128 * 1024 * 4)).memory_time(h100) * 1e6
bars(
    H100_TILES | {"floor, data sheet": floor},
    unit="µs on an H100, measured",
    title="Scores with tiles of several sizes, B=32, H=128, T=1024, bfloat16",
)

# %% [markdown]
# A program per head, which multiplies without `tl.dot`, took {{one_head_us}} µs.
#
# ## What a query sees
#
# The second kernel turns scores into weights. A batch holds sequences of different lengths, so of the T positions of
# sequence b only the first `seq_lens[b]` are real. And a query sees nothing that comes after it. The S queries are
# the *last* ones of the sequence: query s stands at position `seq_lens[b]` − S + s, and sees what comes before and
# itself.
#
# Both rules are one number for a row. It sees the first
#
# $$\text{seen} = \text{seq\_lens}_b - (S - 1 - s)$$
#
# positions, and none if that is not positive. No mask needs to be stored or read. The picture has B = 2 sequences of
# length 8 and 5, S = 3 queries and T = 8:

# %%
lens, S, T = torch.tensor([8, 5]), 3, 8
seen = lens[:, None] - torch.arange(S - 1, -1, -1)  # [B, S]
_, both = plt.subplots(1, 2, figsize=(9, 1.9), layout="constrained")
for axes, length, limits in zip(both, lens.tolist(), seen, strict=True):
    axes.imshow(torch.arange(T) < limits[:, None], cmap="Blues", vmin=0, vmax=1.4)
    axes.set(xlabel="position t", yticks=range(S), yticklabels=[f"query {s}" for s in range(S)])
    axes.set_title(f"seq_lens[b] = {length}: seen = {limits.tolist()}", fontsize=10)
    axes.set_xticks([n - 0.5 for n in range(T + 1)], minor=True)
    axes.set_yticks([n - 0.5 for n in range(S + 1)], minor=True)
    axes.grid(which="minor", color="white", linewidth=2)
    axes.tick_params(which="minor", length=0)
plt.show()

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
# **The mask** comes first. A position that is not seen must touch neither the maximum nor the sum. What is stored
# there is left over from somebody else: it can be huge, and it can be NaN. Loaded with `other=float("-inf")` all is
# well at once: −∞ is never the maximum, and its exponential is 0. That holds for the places between T and the block,
# too. 0 in place of −∞ is wrong, as $e^0 = 1$.
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
# T is at most 16384. Compute in float32.
#
# The case for speed has B = 2 sequences of 2500 and 4096 tokens, S = 1024 queries, H = 16, T = 4096 in bfloat16.
# Half of the points from a fraction of 0.4 on, all from 0.55 and 2 times the speed of eager PyTorch. The floor counts
# scores that are seen, and all weights.
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
# divide by `tl.where(l_i == 0, 1.0, l_i)`. `BLOCK_N` is the next power of two of T; 1024 numbers per warp.
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
    """Softmax of each row over the positions that its query sees, in one launch.

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
# The scores are read once and the weights written once: as many bytes as a copy of what is seen.
#
# A load moves 2 bytes, not 16. Where the mask ends is known at run time only, so the compiler cannot tell that 8
# neighbours are in or out together. The other way is to load all T scores, whose number it does know, and to choose
# with `tl.where(offs_n < seen, x, float("-inf"))`. Loads are wide then, and read what nobody sees. Here the model gives
# both about the same time.
#
# ## Rows longer than a block
#
# A context of 100,000 tokens is a row of 100,000 scores. One block of 131072 numbers would be 128 for each of 1024
# threads, and a thread of such a program has at most 64 registers. It would spill. So a program walks along its row
# in blocks of 4096.
#
# Written down as above that takes three loops: one for the maximum, one for the sum, one for the weights. The row is
# read three times, from memory each time, as the rows of all programs together do not fit into the L2.
#
# The first two loops can be one. Keep a **running maximum**, and the sum of exponentials relative to it. When a block
# brings a larger maximum, all earlier terms were relative to the old one, and one factor, α, puts them right:
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
# Two loops remain, and two reads: the weights can only be written when the sum is known. Lesson 06 gets rid of the
# second one, by never writing weights.
#
# ## Exercise: long_softmax
#
# As `masked_softmax`, with rows of any length in blocks of `LONG_BLOCK`.
#
# | | shape | dtype |
# |---|---|---|
# | `scores` | [B, S, H, T], contiguous, scaled | float32, float16 or bfloat16 |
# | `seq_lens` | [B], 0 to T | int32 |
# | returns | [B, S, H, T], zeros where nothing is seen | that of `scores` |
#
# The case for speed: B = 4 sequences of up to 98304 tokens, S = 1, H = 128, scores in float32. Three loops reach the
# first bar, a fraction of 0.35, and half of the points. All of them start at 0.49, with two, and take 1.3 times the
# speed of eager PyTorch.
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
LONG_BLOCK = 4096  # leave as it is


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
    Returns a new tensor of the shape and dtype of scores, zeros where nothing is seen. Launches long_softmax_kernel.

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
# The report switches its fusions on one at a time, and then all together (its Table 3). It measures **throughput**,
# tokens per second of a layer, on 4 prompts of 4096 tokens, and states gains over the layer with none:
#
# | | ASF (scores) | SF (softmax) | RF (norm) | RPEF (RoPE) | sum | all together |
# |---|---|---|---|---|---|---|
# | gain | 46.23 % | 9.37 % | 0.25 % | 0.61 % | 56.46 % | 73.02 % |
#
# All together gain more than the sum of the parts. The report is "still investigating the specific mechanisms". Do
# the fusions help each other? Before that question comes another one: what should they gain together if they do
# *not*?
#
# ## Predict: the ablation
#
# A layer takes `total`. Some pieces of it take `before` while they are eager, and `after` when they are fused. They
# run one after the other, and fusing one leaves the others as they are. Return the gain in throughput from each
# fusion alone, the sum of these gains, and the gain from all of them.
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
# Now the report's figures. The layer took 4 · 4096 tokens over 1.53 · 10⁵ tokens per second. From each gain follows
# the time that the fusion saved alone, and from these times the gain to expect from all.

# %%
total = 4 * 4096 / 1.53e5 * 1e3  # ms
published = {"ASF": 0.4623, "SF": 0.0937, "RF": 0.0025, "RPEF": 0.0061}
saved = {name: total - total / (1 + gain) for name, gain in published.items()}
expected = predict_ablation(total, list(saved.values()), [0.0] * 4)

print(f"one pass of the layer: {total:.0f} ms")
print("saved alone, ms:", {name: round(time, 1) for name, time in saved.items()})
bars(
    {
        "sum of the gains": 100 * sum(published.values()),
        "expected, times saved added up": 100 * expected["combined_gain"],
        "published": 73.02,
    },
    unit="gain in throughput (%)",
    title="All four fusions of the report",
)

# %% [markdown]
# Most of the surprise is arithmetic. Gains in throughput do not add up, because each is relative to a time that the
# others have not yet shortened: 34 ms saved out of 107 are a gain of 46 %, and the same 34 ms out of 60 would be one
# of 130 %. 70 % was to be expected of fusions that know nothing of each other. What is left to explain is 1 ms of
# 107.
#
# ### Longer prompts gain more
#
# Table 2 has other lengths. The next cell turns its throughputs into the time that a token takes.

# %%
import numpy as np

lengths = np.array([512, 1024, 2048, 4096])
throughput = {"DeepSeek's code": np.array([7.25, 4.83, 2.88, 1.53]) * 1e5,
              "all fused": np.array([10.2, 7.41, 4.67, 2.65]) * 1e5}
_, axes = plt.subplots(figsize=(7, 3), layout="constrained")
slopes = {}
for (name, values), color in zip(throughput.items(), PALETTE, strict=False):
    per_token = 1e6 / values  # µs
    slopes[name], start = np.polyfit(lengths, per_token, 1)
    axes.plot(lengths, per_token, "o", color=color, label=name)
    axes.plot([0, 4096], [start, start + 4096 * slopes[name]], color=color)
    print(f"{name:15} {start:.2f} µs a token, and {slopes[name] * 1e3:.2f} ns for each position of its context")
axes.set(xlabel="length of the prompt, L", ylabel="µs per token", ylim=0)
axes.set_title("Table 2 of the report: batch 4, RTX 4090")
axes.legend(frameon=False)
plt.show()
eager, fused = slopes.values()
print(f"gain at L = 512: 40 %, at 4096: 73 %, at most: {eager / fused - 1:.0%}")

# %% [markdown]
# Two straight lines. Projections and norms cost the same for every token, and all fusions together hardly change
# that: 0.60 and 0.56 µs. Scores and weights cost the same for every *pair* of tokens, and that was cut by half. The
# longer the prompt, the more of the time is pairs.
#
# ### Which bytes
#
# A pair is H = 16 scores. In the eager form each has 11 passes, and the weighted sum reads it once more. Does that
# explain 1.44 ns? The report does not say in which type it computed. So the next cell takes both, with the data
# sheet of the RTX 4090.

# %%
rtx = DEVICES["rtx4090"]
flops = 2 * 16 * (R + Dr + R)  # scores and weighted sum, of a pair
for dtype, itemsize in (("float16", 2), ("float32", 4)):
    memory = {n: n * 16 * itemsize / rtx.bandwidth() * 1e9 for n in (12, 4)}
    compute = flops / rtx.rate(dtype) * 1e9
    for form, passes in (("eager", 12), ("fused", 4)):
        print(f"{dtype} {form}: {memory[passes]:.2f} ns of passes + {compute:.2f} ns of arithmetic = "
              f"{memory[passes] + compute:.2f} ns")
print(f"Table 2: eager {eager * 1e3:.2f} ns, fused {fused * 1e3:.2f} ns")

one_pass = 4 * 16 * 4096**2 * 4 / rtx.bandwidth() * 1e3  # ms, float32
by_bytes = predict_ablation(total, [7 * one_pass, 4 * one_pass], [one_pass, 2 * one_pass])
for name, gain in zip(("ASF", "SF"), by_bytes["gains"], strict=True):
    print(f"{name:4} by bytes in float32 {gain:6.1%}, published {published[name]:6.1%}")

# %% [markdown]
# float32 fits and float16 does not. The public code of the report agrees: when its ablation was added, its benchmark
# ran in float32 (the comment beside it reads "FLOAT16 IS BUG").
#
# The softmax gains what its bytes are worth. The scores gain more, 34 ms in place of 26. Something besides the
# passes became faster, and there is a candidate: PyTorch multiplies float32 exactly unless it is told otherwise, and
# `tl.dot` in TF32 unless it is told otherwise. On this, nothing was measured here.
#
# ## Your kernels in a layer
#
# `mla_ref.FusedMLA` is an MLA layer whose steps can be exchanged. The next cell puts your kernels into a tiny one,
# and compares it with a layer that expands keys and values (lesson 02).

# %%
from mla_ref import MLA, FusedMLA, MLAConfig

torch.manual_seed(0)
dtype = torch.float32 if emulated else torch.float16
layer = MLA(MLAConfig.preset("tiny"), device=device, dtype=dtype)
Dn = layer.config.qk_nope_head_dim


def my_scores(q_latent, q_rope, c_kv, k_rope, scale):
    return attention_score(*(x.contiguous() for x in (q_latent, q_rope, c_kv, k_rope)), Dn)


def my_softmax(scores):
    B, _, _, T = scores.shape
    return masked_softmax(scores, torch.full((B,), T, dtype=torch.int32, device=scores.device))


mine = FusedMLA(layer, score=my_scores, softmax=my_softmax)
x = torch.randn(2, 21, layer.config.hidden_size, device=device, dtype=dtype)
with torch.no_grad():
    expected = layer(x, impl="naive")
    cache = layer.make_cache(2, 21)
    chunks = ((0, 13), (13, 20), (20, 21))  # a prefill, a second chunk of it, a decode step
    got = [mine(x[:, a:b], cache.c_kv, cache.k_rope, mine.step(a, b - a)) for a, b in chunks]
    got = torch.cat(got, 1)
print(f"relative difference from the expanded form: {((got - expected).norm() / expected.norm()).item():.1e}")

# %% [markdown]
# (`.contiguous()` is a pass of its own. The kernels of `mla_ref` take strides and do without.)
#
# ## Measure: the ablation on an H100
#
# The same ablation was measured on an H100 with the kernels of `mla_ref`, in float16
# (`benchmarks/ablation_h100.json`). The baseline is DeepSeek's formulation, and gives the same output as their
# published code, bit by bit. Scores and softmax were also timed by themselves. So `predict_ablation` can foretell
# the layer from its pieces.

# %%
H100_PIECES = "{{pieces}}"  # µs by themselves: eager, fused
FORMS = ("baseline", "ASF", "SF", "RF", "RPEF", "All")
# µs a pass of each form: the host's share, started from Python, and replayed from a CUDA graph
H100_PASSES = "{{passes}}"
H100_ASF_AND_SF = "{{both}}"  # µs in a graph, 4 prompts of 4096

for piece, (old, new) in H100_PIECES.items():
    print(f"{piece} alone: eager {old / 1e3:5.2f} ms, fused {new / 1e3:.2f} ms")
times = dict(zip(FORMS, H100_PASSES["4 prompts of 4096"]["graph"], strict=True))
base, both = times["baseline"], H100_ASF_AND_SF
pieces = predict_ablation(base, *(list(column) for column in zip(*H100_PIECES.values(), strict=True)))
foretold = {"ASF": pieces["gains"][0], "SF": pieces["gains"][1], "ASF and SF": pieces["combined_gain"]}
report = {**published, "All": 0.7302}
percent = lambda gains, name: f"{gains[name]:.0%}" if name in gains else ""
print("\n               ms    gain   foretold   the report (RTX 4090)")
for name, time in {**times, "ASF and SF": both}.items():
    gain = f"{time / 1e3:6.2f} {base / time - 1:7.0%}"
    print(f"{name:10} {gain} {percent(foretold, name):>10} {percent(report, name):>12}")
independent = predict_ablation(base, [base - times[name] for name in published], [0.0] * 4)
print(f"\nsum of the four gains {independent['sum_of_gains']:.0%}, their times saved added up "
      f"{independent['combined_gain']:.0%}, measured {base / times['All'] - 1:.0%}")
print("\nwhat the fused softmax saves:")
for where, old, new in (("in the baseline", base, times["SF"]), ("after ASF", times["ASF"], both)):
    print(f"{where:16} {(old - new) / 1e3:.1f} ms of {old / 1e3:4.1f}, a gain of {old / new - 1:.0%}")

# %% [markdown]
# The pieces, timed by themselves, foretell what the layer gains: its time within 6 % for one fusion{{!within_6}},
# within 12 % for both{{!within_12}}.
#
# **Why do all gain more than the sum of the parts?** Again the sum is far too low, by more than in the report. The last
# two lines show the reason. The fused softmax saves nearly the same time in both layers{{!the_same_time}}. But the
# second layer is shorter already, so the same time is a larger part of it: more than half of a time
# saved{{!more_than_half}} is more than twice the throughput. The fusions do not help each other: their times saved,
# added up, come to a little more than was measured{{!a_little_more}}.
#
# But the order is another one: on the H100 the softmax gains most{{!softmax_gains_most}}. The next cell lists what the
# device ran in one pass, from 0.5 ms on; cuBLAS, NVIDIA's library of matrix products, in blue.

# %%
# ms of each kernel, in order
H100_KERNELS = "{{kernels}}"
_, panels = plt.subplots(1, 2, figsize=(9.5, 3), layout="constrained", sharex=True)
for axes, (name, ran) in zip(panels, H100_KERNELS.items(), strict=True):
    labels, places = [label for label, _ in ran], range(len(ran))
    colors = {"matrix product": PALETTE[0], "all others": "#BBBBBB"}
    axes.barh(places, [time for _, time in ran], color=[colors.get(label, PALETTE[1]) for label in labels])
    axes.set_yticks(places, labels)
    axes.invert_yaxis()
    axes.set(xlabel="ms on an H100, measured", title=name)
plt.show()

# %% [markdown]
# Three things can be read from it.
#
# - **Products do not get faster.** In float16 both forms use the matrix units. The fused kernel takes about as long as
#   the two products of cuBLAS{{!as_two_products}}. What ASF saves is the sum and the scale.
# - **DeepSeek's softmax is longer than the one above.** It goes through float32: the softmax writes 4 bytes a
#   number, and a conversion reads them. (It is two launches here, each with half of the numbers.)
# - **Not every pass runs at the speed of memory.** Adding the mask moves 4.3 GB, 1.3 ms by the data sheet. PyTorch's
#   kernel for operands of different shapes took about three times as long{{!three_times}}. Counting bytes gives the
#   least that a pass takes.
#
# The fused softmax reads only what is seen, half of the scores, so it takes less time than a copy of them
# would{{!less_than_a_copy}}.
#
# ### Short prompts: the host
#
# A pass was timed in two ways: started from Python, and replayed from a CUDA graph, which leaves the host out. The
# next cell compares the sum of the four gains with that of all, in both.

# %%
print("                           started from Python               in a CUDA graph")
print("                    host, µs   All, µs    sum    All     All, µs    sum    All")
for work, ways in H100_PASSES.items():
    line = f"{work:18} {ways['host'][-1]:9.0f}"
    for way in ("Python", "graph"):
        old, *each, new = ways[way]
        line += f"{new:10.0f} {sum(old / time - 1 for time in each):6.0%} {old / new - 1:6.0%}  "
    print(line)
H100_PEAK_MIB = "{{peak_mib}}"
print("\nallocated in a pass of 8 prompts of 4096 tokens:")
for name, mib in H100_PEAK_MIB.items():
    print(f"{name:10} {mib / 1024:5.1f} GiB, in float32 twice as much: {mib / 512:.1f} GiB")

# %% [markdown]
# In a graph, all gain more than the sum at every length{{!at_every_length}}: that is the arithmetic from above. From
# Python all fused is faster at 1024 and 4096 tokens alone{{!two_faster}}, and at 1024 by less than in a
# graph{{!by_less}}.
#
# With prompts of 512 tokens, and in a decode step, the device is done before Python has started the next kernel. A pass
# takes as long as the host{{!as_the_host}}. Fewer kernels are no help if each takes longer to start, and starting one
# of Triton's takes Python longer than one of PyTorch's own{{!triton_starts_slower}}. With 1024 tokens the eager layer
# keeps the device busy{{!kept_busy}}. All fused is faster than Python can start it, so its gain ends at the host's
# time{{!ends_at_the_host}}, and a slower host would have cut it further. A gain on short inputs says more about the
# host than about the kernel. Say which of the two you measured.
#
# Memory is the other gain. In the report's Table 2, 8 prompts of 4096 tokens ran out of memory in both forms, on a
# card with 24 GB. In float32 that is no surprise: weights, input and cache come on top of the figures above.
#
# ### And the right form
#
# All of this was a prefill in the **absorbed** form. Lesson 03 has shown that this is the form for decoding: it
# saves bytes of the cache and pays with arithmetic, which a prefill has none to spare of. The same layer, with keys
# and values expanded, through PyTorch's fused attention (cuDNN), which writes no scores:

# %%
H100_EXPANDED = "{{expanded}}"  # µs, as started from Python
eager, *_, fused = H100_PASSES["4 prompts of 4096"]["Python"]
bars(
    {"absorbed, eager": eager / 1e3, "absorbed, all fused": fused / 1e3, "expanded, cuDNN": H100_EXPANDED / 1e3},
    unit="ms for a pass on an H100, measured",
    title="4 prompts of 4096 tokens, float16",
)

# %% [markdown]
# The best fusion of the wrong form loses to the right form{{!loses}}. For decoding, the absorbed form *is* the right
# one, and lesson 06 fuses it to the end.
#
# ## In the field
#
# **The scale.** 1/√576 in place of 1/√192 is the most common error in absorbed attention, since a kernel sees keys
# 576 wide. FlashMLA takes 1/√576 unless a scale is given, and FlashInfer's own benchmark of MLA computes with it.
# Users met it in ollama (#13893) and Megatron (#1501). The public code of the report scales its layer by 1/√192, and
# the test of its score kernel by 1/√576, beside a comment that the two match. With YaRN, V3's scale is larger by a
# factor of 1.87, which was lost more than once (Megatron #1429, transformers #47435, TensorRT-LLM #19112).
#
# **Few heads.** Split over 8 or 16 GPUs, 128 heads are 16 or 8 on each. Below 16 the tile of `tl.dot` is not full
# (aiter #2577, vllm #50578). Padding to the 64 rows of another kernel does 4 times the work for 16
# heads (sglang #27954). Lesson 06 puts query tokens into the empty rows.
#
# **"A single pass".** Section 3.2.2 of the report says that its softmax reads each operand once. Its public kernel has
# the three loops from above, in blocks of 64 or 128, and reads the mask three times as well. On an H100, float32, a row
# of 8000 in one block against three loops of 256: {{one_block_us}} and {{three_loops_us}} µs for 8192 rows
# (`benchmarks/model_measured.json`).
#
# **One head a program.** Its score kernel has a grid over heads, so each head reads the cache again. That is
# harmless in a prefill, where a program has 64 queries of its head to share a block of keys. In a decode step there
# is one query: 63 of 64 rows of the tile would be masked.
#
# **Rows that see nothing** exist: sequences of length 0 in a padded batch, queries of padding. Libraries disagree on
# what comes out. Of their log-sum-exp, which the next lesson needs, one makes +∞ and another −∞.
#
# **Numbers of 32 bits.** B = 8 prompts of 4096 tokens with 16 heads have 8 · 4096 · 16 · 4096 = $2^{31}$ scores, the
# last that a signed 32-bit offset reaches. `.to(tl.int64)` on the program id, as in lesson 04.
#
# ## What you have now
#
# - A tiled kernel with `tl.dot`, and a way to see what its tile costs: how often it reads its operands again.
# - A softmax that is right for any mask, any length, and rows that see nothing.
# - The arithmetic of an ablation: times saved add up, gains do not.
# - And 3 passes over the scores that nobody needs. Lesson 06 keeps a tile of scores on the chip, applies your running
#   maximum to it, multiplies it with the values, and never writes a score.
#
# Figures: {{records}}.
