# %% [markdown]
# # Lesson 14: the last factor of two
#
# The kernels of the lessons before are written in Triton, and Triton decides when a copy is started and when a product
# is waited for. On an H100 or H200 that has a price: in our best decode kernel in Triton the tensor cores, which
# compute the matrix products, are busy {{tma_busy}} % of the time. Here you decide yourself, in **Gluon**, a language
# below Triton that comes with it. You write two kernels that keep the tensor cores busy, and read the one that
# `mla_ref` decodes with. Allow four hours: one to read, three for the exercises.
#
# | exercise | you write | points right | points fast |
# |---|---|---|---|
# | `piped_product` | a matrix product: tiles fetched ahead, a product always under way | 3 | 3 |
# | `two_warpgroups` | attention by three partitions: two compute, one loads | 3 | 3 |
#
# Each exercise may take 30 s and 512 MiB for all its cases. Without an H100 or H200, also on other GPUs, the kernels
# run in the emulator. It reports every read of data that have not arrived. No model tells the time of a kernel in
# Gluon. So points for speed come from the machine code, or, on an H100 or H200, from the clock.
#
# | symbol | meaning |
# |---|---|
# | M, N, K | sizes of a product: C [M, N] is A [M, K] times B [N, K] transposed |
# | H, S, T | heads, tokens of queries, tokens of keys and values |
# | SM | multiprocessor: an H200 has 132 |
# | warp, warpgroup | 32 threads; four neighbouring warps, 128 threads |

# %% setup="imports"
import torch
from autograder import check, check_speed
from mla_ref.hardware import emulator

emulated = emulator.prepare(capability=(9, 0))  # whether kernels run on the CPU, for lack of a Hopper GPU

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

device = "cpu" if emulated else "cuda"


def described(x, block):
    """Return a matrix as TMA copies it, a block at a time, into shared memory as wgmma reads it there."""
    return TensorDescriptor.from_tensor(x, block, gl.NVMMASharedLayout.get_default_for(block, gl.bfloat16))

# %% [markdown]
# ## Why: who waits?
#
# One token for each of 128 requests, T = 4096, takes one layer of DeepSeek-V3's attention {{decode_gflop}} GFLOP. The
# tensor cores of an {{hopper_steps_h200.device}} do 989 TFLOP/s by the data sheet. The picture has three kernels of
# `mla_ref` with the same result, and how busy the hardware's counters say that the tensor cores are.

# %%
from mla_ref import DEVICES, plots

DECODE = "{{decode_forms}}"
plots.bars(
    {f"{name}: tensor cores busy {busy} %": rate for name, (rate, busy) in DECODE.items()},
    unit="TFLOP/s (dashed: by the data sheet)", reference=DEVICES["h200"].rate() / 1e12,
    title="decode, B = 128, H = 128, T = 4096",
)

# %% [markdown]
# The three differ in what happens at the same time. Hopper has three means for that:
#
# - **TMA**, a unit that copies a block of a tensor into shared memory. One thread starts the copy, and nobody waits
#   for it before the block is needed.
# - **wgmma**, products that a warpgroup starts and that run beside what it does next. The second factor comes from
#   shared memory, the first one from there or from registers; the sum is in registers.
# - **Partitions** of a program: warps with different code and different numbers of registers. One can load while
#   others compute.
#
# ## Gluon in one kernel
#
# In Gluon a block of numbers has a **layout**, which says which thread holds which element. Shared memory is yours to
# divide. A block in shared memory is not there when a copy has been started; it is there when its **barrier** says so.
#
# | | |
# |---|---|
# | `gl.allocate_shared_memory(dtype, shape, layout)` | a place in shared memory; `.index(i)` is one of several |
# | `mbarrier.init(bar, count=1)` | a barrier: a **phase** of it ends with `count` arrivals and all expected bytes |
# | `mbarrier.expect(bar, bytes)` | one arrival, and so many bytes to come |
# | `tma.async_copy_global_to_shared(desc, [row, column], bar, place)` | start a copy; its bytes count for `bar` |
# | `mbarrier.wait(bar, phase)` | wait until the phase of this parity has ended: 0 for the first, 1 for the next |
# | `mbarrier.arrive(bar)` | one arrival, without bytes |
# | `warpgroup_mma(a, b, acc, is_async=True)` | start `acc + a·b`; `b` is [K, N] |
# | `warpgroup_mma_wait(n, deps=(acc,))` | wait until at most n products are under way; gives `acc` back |
#
# The cell below is a whole kernel. A program makes a tile of 64 × 256 of C. It goes over K in blocks of 64, and does
# one thing after the other: fetch the block of A and of B, wait for them, multiply, wait for the product.
#
# - `IN_TURN` is the layout in which wgmma leaves its sum: 16 × 256 for each warp, four warps below each other.
# - `described(x, block)` of the cell with the imports is a **tensor descriptor**: what TMA needs to know of a matrix.
#   What lies beyond its edge arrives as 0, and is not written on the way back. So tails take no masks here.
# - `.permute((1, 0))` looks at a block of B, [256, 64], as its transpose.
# - `fence_async_shared()` stands between an ordinary store to shared memory and a unit that reads it by itself, as TMA
#   does when it copies the result out.

# %%
IN_TURN = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 256, 16]))


@gluon.jit
def product_in_turn(a_desc, b_desc, c_desc, blocks):
    a = gl.allocate_shared_memory(gl.bfloat16, [64, 64], a_desc.layout)
    b = gl.allocate_shared_memory(gl.bfloat16, [256, 64], b_desc.layout)
    c = gl.allocate_shared_memory(gl.bfloat16, [64, 256], c_desc.layout)
    full = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(full, count=1)
    row, column = 64 * gl.program_id(0), 256 * gl.program_id(1)
    acc = gl.zeros([64, 256], gl.float32, IN_TURN)
    for i in range(blocks):
        mbarrier.expect(full, (64 + 256) * 64 * 2)  # bytes
        tma.async_copy_global_to_shared(a_desc, [row, 64 * i], full, a)
        tma.async_copy_global_to_shared(b_desc, [column, 64 * i], full, b)
        mbarrier.wait(full, i & 1)
        acc = warpgroup_mma(a, b.permute((1, 0)), acc, is_async=True)
        acc = warpgroup_mma_wait(0, deps=(acc,))
    c.store(acc.to(gl.bfloat16))
    fence_async_shared()
    tma.async_copy_shared_to_global(c_desc, [row, column], c)
    tma.store_wait(0)


torch.manual_seed(14)
a, b = torch.randn(64, 200).bfloat16().to(device), torch.randn(256, 200).bfloat16().to(device)
c = torch.empty(64, 256, dtype=torch.bfloat16, device=device)
matrices = described(a, [64, 64]), described(b, [256, 64]), described(c, [64, 256])
product_in_turn[(1, 1)](*matrices, 4, num_warps=4)  # 200 columns are four blocks of 64
exact = a.double() @ b.double().T
print(f"relative error: {(c - exact).norm() / exact.norm():.1e}")

# %% [markdown]
# Leave out `mbarrier.wait(full, i & 1)`, run the cell again without a GPU, and read what the emulator says. Then put it
# back. A GPU says nothing.
#
# ## Predict: how busy?
#
# With M = N = K = 4096 such a kernel has 1024 programs. An SM runs one of them at a time: the kernel of the exercise
# takes 192 KiB of its shared memory, and the three forms asked for below are forms of that one. In a turn of the loop
# 40 KiB arrive, and 64·256·64·2 FLOP are done, which takes an SM of the H200
#
# $$\frac{2 \cdot 64 \cdot 256 \cdot 64}{989 \cdot 10^{12} / 132} = 0.28\ \text{µs}.$$
#
# A block that TMA fetches arrives here about 1 µs after it was asked for. Write down: what share of the
# time do the tensor cores multiply
#
# 1. if a turn fetches, waits, multiplies and waits,
# 2. if blocks are fetched three turns ahead, and each product is waited for,
# 3. if, besides, a product is always under way when the next is started?

# %%
guess = {"one after the other": 50, "tiles fetched ahead": 60, "a product under way, too": 70}  # %: put your own here

# %% [markdown]
# What the three look like in time, if a block takes 1 µs to arrive, a product 0.28 µs, and if waiting for its own
# product costs a turn 0.2 µs:

# %%
def turns(product_us, ahead, waiting_us=0.0, count=7, fetch_us=1.0):
    """Bars of a timeline: block i is asked for `ahead` turns before its product, which then takes its time."""
    bars, asked, done = [], [0.0] * max(ahead, 1), 0.0
    for i in range(count):
        start = max(asked[i] + fetch_us, done)
        bars.append((f"fetch\n{i}", i % max(ahead, 1), asked[i], fetch_us))
        bars.append((f"multiply\n{i}", max(ahead, 1), start, product_us))
        done = start + product_us + waiting_us
        asked.append(start if ahead else done)
    return bars


plots.timeline(
    {
        "one after the other": turns(0.28, 0, count=4),
        "tiles fetched ahead": turns(0.28, 3, 0.2),
        "a product under way, too": turns(0.28, 3),
    }
)

# %% [markdown]
# ## Exercise: piped_product
#
# A **ring** of `STAGES` = 4 places holds blocks of A and B. Block i goes to place i mod 4. Before the loop the first
# three blocks are asked for. In its turn i the loop
#
# 1. waits until block i is there,
# 2. starts its product,
# 3. waits until **one** product is left under way, which is the one that it just started: product i − 1 is then done,
#    and nobody reads its place any more,
# 4. asks for block i + 3, which goes to that place.
#
# Behind the loop the last product is waited for.
#
# A place is used again every 4 blocks, and each use is a phase of its barrier. The first use of a place ends phase 0,
# the second phase 1, the third phase 0 again: block i waits for phase `i // STAGES & 1`.
#
# Given are the ring, `fetch`, the way out, and the launch. You write the middle of the kernel. M is any number, N and K
# are multiples of 8, as TMA wants rows that begin at multiples of 16 bytes. K may have fewer blocks than the ring has
# places.
#
# Speed on a Hopper GPU: half of the points from 40 % of 989 TFLOP/s on, all from 57 % on.
#
# <details><summary>Hint 1</summary>
#
# Before the loop: `for i in range(gl.minimum(STAGES - 1, blocks))`, and `fetch` for each.
#
# </details>
# <details><summary>Hint 2</summary>
#
# The turn: `mbarrier.wait(full.index(place), i // STAGES & 1)`, then `warpgroup_mma` of `a.index(place)` and
# `b.index(place).permute((1, 0))`, then `warpgroup_mma_wait(1, deps=(acc,))`.
#
# </details>
# <details><summary>Hint 3</summary>
#
# Last in the turn: `if i + STAGES - 1 < blocks: fetch(…, i + STAGES - 1)`. Behind the loop `acc =
# warpgroup_mma_wait(0, deps=(acc,))`. Ten lines in all.
#
# </details>

# %% solution="piped_product"
STAGES = gl.constexpr(4)  # places of the ring
BLOCK_M = gl.constexpr(64)
BLOCK_N = gl.constexpr(256)
BLOCK_K = gl.constexpr(64)
ACC = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 256, 16]))


@gluon.jit
def fetch(a_desc, b_desc, a, b, full, row, column, i):
    """Start to bring block i of K to its place of the ring."""
    place = i % STAGES
    mbarrier.expect(full.index(place), (BLOCK_M + BLOCK_N) * BLOCK_K * 2)
    tma.async_copy_global_to_shared(a_desc, [row, BLOCK_K * i], full.index(place), a.index(place))
    tma.async_copy_global_to_shared(b_desc, [column, BLOCK_K * i], full.index(place), b.index(place))


@gluon.jit
def piped_product_kernel(a_desc, b_desc, c_desc, blocks):
    a = gl.allocate_shared_memory(gl.bfloat16, [STAGES, BLOCK_M, BLOCK_K], a_desc.layout)
    b = gl.allocate_shared_memory(gl.bfloat16, [STAGES, BLOCK_N, BLOCK_K], b_desc.layout)
    c = gl.allocate_shared_memory(gl.bfloat16, [BLOCK_M, BLOCK_N], c_desc.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for j in gl.static_range(STAGES):
        mbarrier.init(full.index(j), count=1)
    row, column = BLOCK_M * gl.program_id(0), BLOCK_N * gl.program_id(1)
    acc = gl.zeros([BLOCK_M, BLOCK_N], gl.float32, ACC)
    ### BEGIN SOLUTION
    for i in range(gl.minimum(STAGES - 1, blocks)):
        fetch(a_desc, b_desc, a, b, full, row, column, i)
    for i in range(blocks):
        place = i % STAGES
        mbarrier.wait(full.index(place), i // STAGES & 1)
        acc = warpgroup_mma(a.index(place), b.index(place).permute((1, 0)), acc, is_async=True)
        acc = warpgroup_mma_wait(1, deps=(acc,))  # the product before is done, and its place free
        if i + STAGES - 1 < blocks:
            fetch(a_desc, b_desc, a, b, full, row, column, i + STAGES - 1)
    acc = warpgroup_mma_wait(0, deps=(acc,))
    ### END SOLUTION
    c.store(acc.to(gl.bfloat16))
    fence_async_shared()
    tma.async_copy_shared_to_global(c_desc, [row, column], c)
    tma.store_wait(0)


def piped_product(a, b):
    """Return a·bᵀ.

    a: [M, K], b: [N, K], bfloat16, contiguous; N and K are multiples of 8. Returns [M, N], bfloat16.
    """
    (M, K), N = a.shape, len(b)
    c = torch.empty(M, N, dtype=a.dtype, device=a.device)
    grid = -(-M // 64), -(-N // 256)
    blocks = -(-K // 64)
    piped_product_kernel[grid](
        described(a, [64, 64]), described(b, [256, 64]), described(c, [64, 256]), blocks, num_warps=4
    )
    return c

# %% check="piped_product"
check("piped_product")

# %% [markdown]
# Where there is no Hopper GPU, `check_speed` compiles your kernel for an H100 and reads the machine code. It looks for
# three facts, in this order; each counts only if those before it hold: the loop starts its products by wgmma (a quarter
# of the points); a product is under way from one turn to the next, and what the loop fetches is asked for meanwhile
# (half); the loop moves no register to memory and back (a quarter). None counts unless `warpgroup_mma` does 0.9 to 1.1
# times the products that are needed, no program does more than half of them, and there are programs for nine tenths of
# the multiprocessors.
#
# What the loop does besides bounds the points. In a cycle a multiprocessor takes at most 64 bytes from the L2 cache,
# and its tensor cores do at most 4096 FLOP. In a turn, every instruction takes a cycle at the least, and a special
# function eight. Where that keeps the tensor cores from being busy for 57 % of the time, half of the points is the
# most; below 40 %, none. Another loop within this one earns none either: unroll it with `gl.static_range`.

# %% speed="piped_product"
check_speed("piped_product")

# %% [markdown]
# What the three forms took on the {{hopper_steps_h200.device}} ({{hopper_steps_h200.date}}), and what cuBLAS takes,
# which is behind `a @ b.T`. *Busy* is the counter of the tensor cores. *Clock* is the SMs' in that run.
#
# {{product_table}}
#
# Compare with your guess:

# %%
MEASURED = "{{product_busy}}"
for name, busy in MEASURED.items():
    print(f"{name:26} guessed {guess[name]:3} %   busy {busy:3.0f} %")
turns = 8 * 64  # 1024 programs on 132 SMs are 8 rounds, of 64 blocks of K each
print(f"a turn, one after the other: {'{{in_turn_us}}' / turns:.2f} µs")

# %% [markdown]
# A turn takes 1.0 µs more than its product: that is the fetch. The first step hides most of it, and most is won. The
# second hides the time between two products. Then three turns take less than 1 µs if nobody waits, and the fetch shows
# again. cuBLAS's tile is 256 × 128, as its kernel's name says: there 48 KiB are enough for twice the products of our 40
# KiB.
#
# The last column is one reason why no kernel reaches 989 TFLOP/s. In the last three rows, the busier the tensor cores,
# the lower the clock: they draw more power, and the GPU stays within its limit. The data sheet's rate is that of 1.83
# GHz: 132 SMs, each with 4096 FLOP a cycle.
#
# ## Attention: the softmax is in the way
#
# In attention there are two products, with a softmax between them: scores, weights, values. The tensor cores have
# nothing to do while a warpgroup takes exponentials, unless somebody else has a product. So a program gets **two
# warpgroups** that compute, each with 64 rows of queries, and both read the same blocks of K and V. A third partition,
# the **loader**, does nothing but start copies.
#
# `gl.warp_specialize([(attend, (…)), (attend, (…)), (load, (…))], [4, 4], [240, 24])` starts the partitions. Each is a
# function with its arguments:
#
# - The first partition has the warps of the launch, `num_warps=4`. The list `[4, 4]` gives the warps of the others.
# - A program has 65,536 registers: 168, a multiple of 8, for each thread of three partitions of 4 warps, 504 for three
#   threads. The list `[240, 24]` gives those of the second and third partition; the first gets what is left, 240 here.
#   A loader needs few, and the others hold scores [64, 128], weights and `acc` [64, 128] in registers.
#
# Who copies and who computes agree by barriers, two for each place of K and of V:
#
# - `full`: the loader's copy has arrived. The warpgroups wait for it.
# - `free`: both warpgroups are done with the place, `count=2`. The loader waits for it. For block i it waits for phase
#   `(i // 2 & 1) ^ 1`, the phase *before* the one in which it fills the place. Of a new barrier that counts as ended:
#   at the beginning all places are free though nobody has arrived.
#
# A warpgroup could do one thing after the other: scores, wait, softmax, product with the values, wait. With two of them
# the other one's product often fills the gap. Still better is to have **two products at once**: the scores of block i
# are started together with the product of the weights of block i − 1 with their values.
#
# The picture has three blocks, and the warpgroups A and B. While A's softmax of block 1 runs, the tensor cores multiply
# A's values of block 0, and then what B has. The loader brings V 2 to the place of V 0 when both have multiplied that.

# %%
bars, free, ready = [], 0.0, {"A": 0.0, "B": 0.0}
for i in range(4):
    for lane, who in enumerate("AB", 1):
        begin = max(free, ready[who])
        products = [f"scores\n{who} {i}"] * (i < 3) + [f"values\n{who} {i - 1}"] * (i > 0)
        bars += [(each, 0, begin + 0.4 * n, 0.4) for n, each in enumerate(products)]
        bars += [(f"softmax\n{who} {i}", lane, begin + 0.4, 0.6)] * (i < 3)
        free = begin + 0.4 * len(products)
        ready[who] = max(begin + 1.0, free)
loads = {"K 0": -0.8, "V 0": -0.4, "K 1": 0.0, "V 1": 0.4, "K 2": 0.8, "V 2": 2.6}
bars += [(f"load\n{what}", 3, at, 0.4) for what, at in loads.items()]
plots.timeline({"from the top: the tensor cores, the softmax of A and of B, the loader": bars})

# %% [markdown]
# ## Exercise: two_warpgroups
#
# Three places are left out: the loader's loop, the warpgroup's loop, and the call that starts the partitions. There is
# no mask: every query sees all tokens, and lengths are multiples of 128.
#
# The warpgroup's loop, for blocks 1, 2, …; block 0 gets its scores and its softmax before it:
#
# 1. wait for the keys of block i, start the scores;
# 2. wait for the values of block i − 1, start `acc + weights·v`;
# 3. wait until **one** product is left under way. Products end in the order in which they were started, so the scores
#    are there. The keys' place is free;
# 4. softmax of block i, by `softmax_step`, which is lesson 06's online softmax; the new weights in a variable of their
#    own;
# 5. wait for the product with the values. Until then it reads `weights`. Their place is free, and `acc` can be
#    multiplied by `alpha`.
#
# Behind the loop the values of the last block are still to be multiplied.
#
# `gl.convert_layout(p.to(gl.bfloat16), WEIGHTS)` makes weights the first factor of a product, in registers.
# With `use_acc=False` a sum starts at 0, and the accumulator's argument is not read: pass `none`.
#
# Speed on a Hopper GPU: half of the points from 45 % of 989 TFLOP/s on, all from 59 % on.
#
# <details><summary>Hint 1</summary>
#
# The loader, for each block: `place, turn = i & 1, i >> 1 & 1`; wait for `k_free.index(place)` with `turn ^ 1`; expect
# `BLOCK_T * D * 2` bytes at `k_full.index(place)`; copy from `[first + BLOCK_T * i, 0]`. Then the same for V.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Scores: `warpgroup_mma(q.index(HALF), k.index(place).permute((1, 0)), none, use_acc=False, is_async=True)`. Wait for
# them by `qk = warpgroup_mma_wait(1, deps=(qk,))`, and then `mbarrier.arrive(k_free.index(place))`.
#
# </details>
# <details><summary>Hint 3</summary>
#
# The end of the turn: `acc, weights = warpgroup_mma_wait(0, deps=(acc, weights))`, which names what the product writes
# and what it reads; `mbarrier.arrive(v_free.index(before))`; `acc, weights = acc * alpha[:, None], fresh`. The
# partitions: `attend` twice, with 0 and 1 as its last argument, then `load`; `[4, 4]` and `[240, 24]`.
#
# </details>

# %% solution="two_warpgroups"
ROWS = gl.constexpr(64)  # of queries, for a warpgroup; a program has two
BLOCK_T = gl.constexpr(128)  # tokens
D = gl.constexpr(128)
TILE = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 128, 16]))  # of scores, and of acc
ROW = gl.constexpr(gl.SliceLayout(1, TILE))
COLUMN = gl.constexpr(gl.SliceLayout(0, TILE))
WEIGHTS = gl.constexpr(gl.DotOperandLayout(0, TILE, 2))  # registers as the first factor of a product


@gluon.jit
def softmax_step(qk, m_i, l_i, scale):
    """Return weights of a block, the new maximum and sum, and what acc is to be multiplied by."""
    m_new = gl.maximum(m_i, gl.max(qk, 1) * scale)
    p, alpha = gl.exp2(qk * scale - m_new[:, None]), gl.exp2(m_i - m_new)
    return p, m_new, l_i * alpha + gl.sum(p, 1), alpha


@gluon.jit
def load(q_desc, k_desc, v_desc, q, k, v, bars, row, first, blocks):
    """The loader: queries once, then keys and values of each block as soon as there is room."""
    q_full, k_full, k_free, v_full, v_free = bars
    mbarrier.expect(q_full, 2 * ROWS * D * 2)
    for half in gl.static_range(2):
        tma.async_copy_global_to_shared(q_desc, [row + ROWS * half, 0], q_full, q.index(half))
    ### BEGIN SOLUTION
    for i in range(blocks):
        place, turn = i & 1, i >> 1 & 1
        mbarrier.wait(k_free.index(place), turn ^ 1)
        mbarrier.expect(k_full.index(place), BLOCK_T * D * 2)
        tma.async_copy_global_to_shared(k_desc, [first + BLOCK_T * i, 0], k_full.index(place), k.index(place))
        mbarrier.wait(v_free.index(place), turn ^ 1)
        mbarrier.expect(v_full.index(place), BLOCK_T * D * 2)
        tma.async_copy_global_to_shared(v_desc, [first + BLOCK_T * i, 0], v_full.index(place), v.index(place))
    ### END SOLUTION


@gluon.jit
def attend(q, k, v, bars, out_ptr, row, blocks, scale, HALF: gl.constexpr):
    """A warpgroup: one half of the program's rows, and all blocks of tokens."""
    q_full, k_full, k_free, v_full, v_free = bars
    m_i = gl.full([ROWS], float("-inf"), gl.float32, ROW)
    l_i = gl.zeros([ROWS], gl.float32, ROW)
    acc = gl.zeros([ROWS, D], gl.float32, TILE)
    none = gl.zeros([ROWS, BLOCK_T], gl.float32, TILE)
    mbarrier.wait(q_full, 0)
    ### BEGIN SOLUTION
    mbarrier.wait(k_full.index(0), 0)
    qk = warpgroup_mma(q.index(HALF), k.index(0).permute((1, 0)), none, use_acc=False, is_async=True)
    qk = warpgroup_mma_wait(0, deps=(qk,))
    mbarrier.arrive(k_free.index(0))
    p, m_i, l_i, alpha = softmax_step(qk, m_i, l_i, scale)
    weights = gl.convert_layout(p.to(gl.bfloat16), WEIGHTS)
    for i in range(1, blocks):
        place, turn = i & 1, i >> 1 & 1
        before, its_turn = i - 1 & 1, i - 1 >> 1 & 1
        mbarrier.wait(k_full.index(place), turn)
        qk = warpgroup_mma(q.index(HALF), k.index(place).permute((1, 0)), none, use_acc=False, is_async=True)
        mbarrier.wait(v_full.index(before), its_turn)
        acc = warpgroup_mma(weights, v.index(before), acc, is_async=True)
        qk = warpgroup_mma_wait(1, deps=(qk,))  # the scores are there, the other product runs on
        mbarrier.arrive(k_free.index(place))
        p, m_i, l_i, alpha = softmax_step(qk, m_i, l_i, scale)
        fresh = gl.convert_layout(p.to(gl.bfloat16), WEIGHTS)
        acc, weights = warpgroup_mma_wait(0, deps=(acc, weights))  # until then it reads weights
        mbarrier.arrive(v_free.index(before))
        acc, weights = acc * alpha[:, None], fresh
    last = blocks - 1
    mbarrier.wait(v_full.index(last & 1), last >> 1 & 1)
    acc = warpgroup_mma(weights, v.index(last & 1), acc, is_async=True)
    acc, weights = warpgroup_mma_wait(0, deps=(acc, weights))
    ### END SOLUTION
    offs_m = row + ROWS * HALF + gl.arange(0, ROWS, layout=ROW)
    offs_d = gl.arange(0, D, layout=COLUMN)
    gl.store(out_ptr + offs_m[:, None] * D + offs_d[None, :], (acc / l_i[:, None]).to(gl.bfloat16))


@gluon.jit
def two_warpgroups_kernel(q_desc, k_desc, v_desc, out_ptr, S, T, scale):
    q = gl.allocate_shared_memory(gl.bfloat16, [2, ROWS, D], q_desc.layout)
    k = gl.allocate_shared_memory(gl.bfloat16, [2, BLOCK_T, D], k_desc.layout)
    v = gl.allocate_shared_memory(gl.bfloat16, [2, BLOCK_T, D], v_desc.layout)
    q_full = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    k_full = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    k_free = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    v_full = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    v_free = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    mbarrier.init(q_full, count=1)
    for j in gl.static_range(2):
        mbarrier.init(k_full.index(j), count=1)  # the loader's copies
        mbarrier.init(v_full.index(j), count=1)
        mbarrier.init(k_free.index(j), count=2)  # both warpgroups
        mbarrier.init(v_free.index(j), count=2)
    bars = q_full, k_full, k_free, v_full, v_free
    h, blocks = gl.program_id(1), T // BLOCK_T
    row, first = h * S + 2 * ROWS * gl.program_id(0), h * T
    ### BEGIN SOLUTION
    gl.warp_specialize(
        [
            (attend, (q, k, v, bars, out_ptr, row, blocks, scale, 0)),
            (attend, (q, k, v, bars, out_ptr, row, blocks, scale, 1)),
            (load, (q_desc, k_desc, v_desc, q, k, v, bars, row, first, blocks)),
        ],
        [4, 4],
        [240, 24],
    )
    ### END SOLUTION


def two_warpgroups(q, k, v, scale):
    """Return softmax(q·kᵀ·scale)·v of each head.

    q: [H, S, 128], k and v: [H, T, 128], bfloat16, contiguous; S and T are multiples of 128; scale: float, above 0.
    Returns [H, S, 128], bfloat16.
    """
    (H, S, _), T = q.shape, k.shape[1]
    out = torch.empty_like(q)
    matrices = [described(x.view(-1, 128), [rows, 128]) for x, rows in ((q, 64), (k, 128), (v, 128))]
    scale_of_2 = scale * 1.4426950408889634  # log2(e): the kernel's exponentials are powers of 2
    two_warpgroups_kernel[(S // 128, H)](*matrices, out, S, T, scale_of_2, num_warps=4)
    return out

# %% check="two_warpgroups"
check("two_warpgroups")

# %% [markdown]
# The facts in the machine code, without a GPU: products by wgmma (an eighth of the points); two loops with products, in
# partitions that copy nothing (an eighth); at least 200 registers a thread for them (two eighths); no register in
# memory (one); two products under way at once (three). What is beside the products bounds the points as before, at 59 %
# and 45 %.

# %% speed="two_warpgroups"
check_speed("two_warpgroups")

# %% [markdown]
# The steps, measured with H = 16 and S = T = 4096 in one run:
#
# {{attention_table}}
#
# - The second warpgroup brings the most. It has products when the first one has none.
# - Two products at once bring another {{two_at_once}} %. But they take registers for two sets of weights. With 168
#   registers a thread the loop does not fit: the compiler moves registers to memory and back, and the kernel is
#   **slower** than without the step.
# - The line above cuDNN's is the solution with the softmax kept where you wrote it. `ptxas`, which makes machine code,
#   may move it behind the wait for the values, because nothing in front of the wait needs it. It does so here: without
#   a GPU the note under `check_speed` says that 0 of 66 exponentials stand where a product is under way. One store to
#   shared memory that nobody reads, placed in front of the wait, holds the softmax there: then it is 66 of 66. The
#   kernel is then faster by {{held}} %. It is not more, as the other warpgroup had filled most of the gap already.
#
# Read that note before you believe a text. What runs is the machine code.
#
# ## Read: the decode kernel
#
# Decoding has a harder form of the problem. A block of 64 heads sums up 64 · 512 numbers: in float32 these are 256
# registers for each thread of a warpgroup, and a thread has 255 at most. So two warpgroups cannot have rows of their
# own. Each takes one **half of the latent's columns** of the same rows, and both need the weights of every block of
# tokens. `mla_ref` computes the scores of the even blocks in one warpgroup and those of the odd blocks in the other,
# and hands the weights on through shared memory. FlashMLA calls this schedule the seesaw. The cell prints what one of
# them does. It calls small functions of the same file: `_scores` starts Q Kᵀ, `_masked` puts −inf where no token is.

# %%
import importlib.util
import re
from pathlib import Path

file = Path(importlib.util.find_spec("mla_ref.kernels").origin).with_name("_decode_hopper.py")
print(re.search(r"@gluon.jit\ndef _odd.*?\n\n\n", file.read_text(), re.DOTALL)[0].rstrip())

# %% [markdown]
# Answer before you unfold.
#
# <details><summary>Why does it wait until one product is left, and which one is that?</summary>
#
# `P₀ V₀ right` was started last and runs on during the softmax of the odd block. The scores, which were started before,
# are done.
#
# </details>
# <details><summary>Why do maximum and weights have a barrier each, `ready.index(2)` and `ready.index(3)`?</summary>
#
# The other warpgroup rescales its accumulator as soon as it knows the maximum, while this one still takes
# exponentials.
#
# </details>
# <details><summary>Why does each block in shared memory have two barriers for being free, and not one?</summary>
#
# It lies there in two halves. Of the even block the left half is free before the right one is, and the loader can fill
# it already. With two blocks in shared memory, how soon a place is free again decides how far ahead the loader is.
#
# </details>
# <details><summary>What is `zero = i >> 24` for? It is always 0.</summary>
#
# The compiler does not know that. With a constant it computes the addresses of all operands before the loop and keeps
# them in registers, of which there are none left.
#
# </details>
#
# To see what a step is worth, take it back alone. The table does so for B = 128, H = 128, T = 4096, in one run with
# the kernel as it is (`benchmarks/hopper_steps.py`). Where a line has a minus, the kernel is faster without its step:
# equal shares of all tokens are for lengths that differ, and here all are alike.
#
# {{decode_table}}
#
# Which of the lines would you have expected to cost most? The most costly one has nothing to do with the schedule:
# registers went to memory. Its L2 hits give it away, {{spill_hits}} % in place of {{kernel_hits}} %: what is moved to
# memory and back is found in the L2.
#
# FlashMLA's kernel for the same work reached {{flash_mla}} TFLOP/s on such a GPU, this one {{ours}} in that run
# (`benchmarks/hopper_decode_h200.json`). With FlashMLA's the tensor cores are busy {{flash_mla_busy}} % of the time,
# with ours {{ours_busy}} %.
#
# ## In the field
#
# - **FlashAttention-3** (arXiv:2407.08608) has two warpgroups that take turns by barriers, and two products at once
#   within each. Our kernel for prefill, `mla_ref/kernels/_ragged_hopper.py`, follows it.
# - **FlashMLA** wrote the seesaw down (deepseek-ai/FlashMLA, `docs/20250422-new-kernel-deep-dive.md`). Its dense decode
#   for Hopper is what the kernel above is held against.
# - **`warpgroup_mma_wait`** waits for the products of its own warpgroup. With one warpgroup in each partition that is
#   enough.
# - **Weights in registers.** While a product reads them they must not change. The wait names them for that reason.
# - **Blackwell**, the next generation, has a memory of its own for accumulators in place of registers.
#
# ## What to take along
#
# - Count what runs at the same time. A tensor core that waits is invisible in the text and visible in one counter.
# - Fetch ahead first, then keep a product under way, then give the gaps to somebody else.
# - A step is worth what it brings in the same run as the kernel without it. Some bring nothing, and one made it slower.
# - The compiler has the last word. Read registers, spills and the order of instructions before the clock.
#
# Figures: {{records}}.
