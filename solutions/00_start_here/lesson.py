# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown]
# # Lesson 00: start here
#
# In this course you build the inference path of Multi-head Latent Attention (MLA), the attention of DeepSeek-V3 and
# Kimi K2, from plain attention to GPU kernels. A **kernel** is one function that runs on the device, from reading its
# inputs to writing its outputs. You need PyTorch at the level of "I can multiply two matrices", and no GPU.
#
# In this first lesson you calculate the least time that an operation can take, and compare it with your machine's
# clock. It takes about 75 minutes.
#
# | exercise | you write | points |
# |---|---|---|
# | `tensor_bytes` | the bytes of a tensor | 3 |
# | `matmul_cost` | FLOPs and bytes of a matrix product | 3 |
# | `roofline_time` | the least time of a piece of work, and what sets it | 3 |
# | `predict_h100` | the least time of a copy and of a product on an H100 | 3 |
# | `ridge_rows` | from how many rows on arithmetic, and not memory, sets a layer's time | 3 |

# %% setup="imports"
import math

import torch
from autograder import check

# %% [markdown]
# If the cell above fails with `ModuleNotFoundError`, the notebook runs in another environment than the course's. Set
# that environment up as the README says, then choose its kernel (top right in JupyterLab).

# %%
gpu = torch.cuda.is_available()
device = "cuda" if gpu else "cpu"
print("PyTorch", torch.__version__, "on", torch.get_num_threads(), "CPU threads")
print("GPU:", torch.cuda.get_device_name() if gpu else "none, and none is needed")

# %% [markdown]
# ## Why: three numbers decide how fast a kernel can be
#
# 1. **Bytes moved** between the device and its main memory (DRAM).
# 2. **FLOPs**, floating-point operations. One multiply-accumulate (MAC) is two: a multiplication and an addition.
# 3. **Launches**, the number of kernels started. Each has a fixed cost, however little it computes.
#
# Data moves while arithmetic runs. So the least time of a kernel is the *longer* of two times: the bytes divided by
# the **bandwidth** (bytes/s), and the FLOPs divided by the **peak rate** (FLOP/s).
#
# FLOPs divided by bytes is the **arithmetic intensity** of the work, in FLOP/byte. The **roofline** (Williams, Waterman
# and Patterson, 2009) is the best possible FLOP/s, drawn against the intensity. On the slope the work waits for memory
# and is "memory-bound". On the flat part it waits for arithmetic and is "compute-bound". They meet at the **ridge**:
# peak rate divided by bandwidth.

# %%
from mla_ref import DEVICES, MLAConfig, attention_cost, plots

config = MLAConfig.preset("deepseek_v3")
h100 = DEVICES["h100"]
ways = {
    "keys and values of every head": attention_cost("naive", config, batch=1, context=8192),
    "one shared latent": attention_cost("absorb", config, batch=1, context=8192),
    "one shared latent, 4 new tokens": attention_cost("absorb", config, batch=1, context=8192, q_len=4),
}
for label, cost in ways.items():
    print(f"{label:32}{cost.intensity:5.0f} FLOP/byte")
print(f"{'ridge of an H100':32}{h100.ridge():5.0f} FLOP/byte")
plots.roofline(h100, ways, title="DeepSeek-V3's attention over 8192 cached tokens, on an H100")

# %% [markdown]
# The first two points are the *same* attention with the same result, computed in two ways. One reads keys and values
# for each of 128 heads: 1 FLOP per byte. The other reads a **latent**, one short vector per token that all heads share:
# 242 FLOP/byte, close to the ridge at 295. With four new tokens at once it is past the ridge. Lesson 01 explains heads,
# keys and values; lessons 02 and 03 build both ways and show that they agree.
#
# These points are calculated, so they lie on the roof. The roof is from the data sheet of an H100 with 80 GB of HBM3.
# In this lesson you write the functions behind such a picture.

# %% [markdown]
# ## Exercise 1: the bytes of a tensor
#
# A tensor of shape $[d_0, d_1, \dots]$ holds $d_0 \cdot d_1 \cdots$ elements of `itemsize` bytes each.
# float32 has an item size of 4, bfloat16 and float16 of 2, float8 of 1.
#
# | argument | meaning |
# |---|---|
# | `shape` | a tuple of ints; any number of them may be 0; it may be empty |
# | `itemsize` | bytes of one element |
#
# Return the number of bytes, an int. Two traps: the shape `()` is a single number, not nothing. And do not create the
# tensor to measure it: one of the shapes holds more than 4 billion elements.
#
# <details><summary>Hint 1</summary>The gap is one line.</details>
# <details><summary>Hint 2</summary>The product of no numbers at all is 1, as the sum of none is 0.</details>
# <details><summary>Hint 3</summary><code>math.prod</code> multiplies the entries of a tuple. <code>math</code> is
# imported at the top.</details>

# %% solution="tensor_bytes"
def tensor_bytes(shape, itemsize):
    """Return the bytes that a tensor's elements take.

    shape: tuple of ints, () for a single number; itemsize: bytes of one element.
    """
    ### BEGIN SOLUTION
    return math.prod(shape) * itemsize
    ### END SOLUTION


# %% check="tensor_bytes"
check("tensor_bytes")

# %% [markdown]
# ## How your work is graded
#
# An exercise is a description, a cell for your code, and a **check cell**. The check is for you: it answers at once,
# and its result counts for nothing. If something is wrong it says what, and raises an error.
#
# The **judge** gives the points. It runs your function on the same cases, in which tensors hold other numbers, and on
# hidden cases. Each **part** of an exercise is a group of cases, and gives its points when all of them are right. Where
# an answer is wrong in a known way, the verdict names the mistake.
#
# Here is a wrong attempt at Exercise 1. It counts elements where bytes were asked for.

# %%
from autograder.checking import CheckFailed


def wrong_attempt(shape, itemsize):
    return math.prod(shape)


try:
    # exec checks this function in place of yours. In an exercise the check is one line.
    exec('check("tensor_bytes")', {"check": check, "tensor_bytes": wrong_attempt})
except CheckFailed as error:
    print("CheckFailed:", error)

# %% [markdown]
# One part of three is right, since elements of one byte are as many as their bytes. The message names the mistake, and
# the case that showed it.
#
# **What the judge runs.** It runs your solution cell in a process of its own. Functions, classes, imports and
# assignments that the solution uses from your other cells come along; plots, measurements and experiments do not.
# `check` runs that program, too, on the cases that it shows, and says so if it fails where your notebook does not.
# Files of yours and packages that the course does not install are not there. If several cells define the same function,
# the judge tries the exercise's own cell and the last three others, and counts the best. A broken cell costs only the
# exercises that need it. Where an exercise builds on an earlier one, the grader supplies the right earlier answer, so
# one mistake is counted once.
#
# From lesson 01 on, compute with torch's operations. In most exercises a result that Python or NumPy computed from a
# tensor's numbers does not count. The check says so.
#
# **Its limits.** One exercise has 10 s of the processor's time and 512 MiB of memory beyond what PyTorch takes itself.
# Where you write kernels, a call may have 8192 of torch's operations, all calls of an exercise together 32768.
#
# | kind | outcomes | points |
# |---|---|---|
# | your answer | passed, partial, wrong, error, unfinished, missing | those of the parts that are right |
# | a limit | time limit, memory limit, ended early | those of the parts that are right |
# | the grader's own fault | grader fault | no score, never a zero: a person looks at it |
#
# **The full verdict:** save the notebook, and in a terminal (*File → New → Terminal* in JupyterLab) run
# `mla-course check course/00_start_here/00_start_here.ipynb`. It judges as the instructor's grader does, on hidden
# cases that it draws afresh. Where the course came without solutions, `check` and `mla-course check` have no right
# earlier answers to supply, and take yours.
#
# `mla-course doctor` says what your machine has, what it lacks, and what to do. In a terminal outside JupyterLab both
# commands are at `.venv/bin/mla-course`, at the top of the course's folder.

# %% [markdown]
# ## Exercise 2: what a matrix product costs
#
# $C = AB$ with $A$ of shape `[m, k]`, $B$ of shape `[k, n]` and $C$ of shape `[m, n]`. Each of the $mn$ entries of
# $C$ is a sum of $k$ products.
#
# The **compulsory bytes** are what no kernel can avoid: each input is read once, and the output is written once. An
# entry of $A$ is used $n$ times, but a good kernel fetches it from DRAM once and then keeps it close by.
#
# Return a dict with two entries. You may call `tensor_bytes`.
#
# | entry | meaning |
# |---|---|
# | `"flops"` | floating-point operations, two for each multiply-accumulate |
# | `"bytes"` | compulsory bytes, each element of `itemsize` bytes |
#
# <details><summary>Hint 1</summary>The gap is three lines or fewer. Begin with the number of
# multiply-accumulates.</details>
# <details><summary>Hint 2</summary>There are m·n·k multiply-accumulates, and three tensors to move.</details>
# <details><summary>Hint 3</summary>Three calls of <code>tensor_bytes</code>, with the shapes <code>(m, k)</code>,
# <code>(k, n)</code> and <code>(m, n)</code>.</details>

# %% solution="matmul_cost"
def matmul_cost(m, n, k, itemsize):
    """Return {"flops": ..., "bytes": ...} of the product [m, k] @ [k, n] -> [m, n].

    flops: two per multiply-accumulate. bytes: compulsory, both inputs read once and the output
    written once, every element of itemsize bytes.
    """
    ### BEGIN SOLUTION
    moved = sum(tensor_bytes(shape, itemsize) for shape in ((m, k), (k, n), (m, n)))
    return {"flops": 2 * m * n * k, "bytes": moved}
    ### END SOLUTION


# %% check="matmul_cost"
check("matmul_cost")

# %%
for size in (64, 512, 4096):
    cost = matmul_cost(size, size, size, itemsize=2)
    print(f"{size:5}³ in 16 bits: {cost['flops'] / cost['bytes']:7.1f} FLOP/byte")

# %% [markdown]
# The intensity of a square product grows with its size: $2n^3$ FLOPs over $3n^2$ elements. On an H100, with its ridge
# at 295, the largest of the three is compute-bound and the other two are not.

# %% [markdown]
# ## Exercise 3: the roofline as a function
#
# Return the least time and what sets it, as a tuple `(seconds, bound)`:
#
# $$t_{\min} = \max\left(\frac{\text{nbytes}}{\text{bandwidth}},\ \frac{\text{flops}}{\text{peak rate}}\right)$$
#
# `bound` is the string `"memory"` or `"compute"`, whichever time is the longer. When both are equal it is `"memory"`.
# `flops` may be 0: a copy computes nothing.
#
# <details><summary>Hint 1</summary>The gap is about five lines. Work out both times first.</details>
# <details><summary>Hint 2</summary>Data moves while arithmetic runs, so the times are not added. The longer one is
# what you wait for.</details>
# <details><summary>Hint 3</summary>Compare with <code>&gt;=</code>, memory first: that decides the equal case too.
# Return each time together with its own name.</details>

# %% solution="roofline_time"
def roofline_time(flops, nbytes, peak_flops, bandwidth):
    """Return (seconds, bound): the least time of the work, and "memory" or "compute", whichever sets it.

    flops, nbytes: the work; peak_flops: FLOP/s; bandwidth: bytes/s. The two times overlap: they are
    not added. Where both are equal, bound is "memory".
    """
    ### BEGIN SOLUTION
    memory = nbytes / bandwidth
    compute = flops / peak_flops
    if memory >= compute:
        return memory, "memory"
    return compute, "compute"
    ### END SOLUTION


# %% check="roofline_time"
check("roofline_time")

# %% [markdown]
# ## Exercise 4: predict an H100
#
# Predict two times on an H100 (SXM, 80 GB of HBM3). These lines are in NVIDIA's data sheet. "Tera" is $10^{12}$:
#
# | | H100 SXM |
# |---|---|
# | BFLOAT16 Tensor Core | 1,979 teraFLOPS* |
# | FP8 Tensor Core | 3,958 teraFLOPS* |
# | FP32 | 67 teraFLOPS |
# | GPU memory bandwidth | 3.35 TB/s |
#
# The star says "with sparsity": two of every four neighbouring numbers in one matrix are zero, and the chip skips
# them. Ours are dense matrices of random numbers.
#
# | entry to return | meaning |
# |---|---|
# | `"copy_us"` | microseconds to copy `copied` bytes from one place in DRAM to another |
# | `"matmul_us"` | microseconds of a product of two `size` × `size` matrices in bfloat16 (2 bytes) |
#
# You may call your earlier functions. Figures within 1 % are right.
#
# <details><summary>Hint 1</summary>The gap is about five lines, of which two write down the data sheet: a bandwidth
# and a rate.</details>
# <details><summary>Hint 2</summary>A copied byte moves twice: it is read, and it is written. The dense rate
# is half of the sparse one.</details>
# <details><summary>Hint 3</summary><code>roofline_time(0, 2 * copied, …)</code> for the copy. For the product
# <code>roofline_time</code> with what <code>matmul_cost</code> returns, since a small one may be memory-bound. Both
# give seconds.</details>

# %% solution="predict_h100"
def predict_h100(copied, size):
    """Return {"copy_us": ..., "matmul_us": ...}: least times on an H100 by its data sheet.

    copied: bytes to copy within DRAM; size: rows and columns of the two dense bfloat16 matrices that
    are multiplied. Both times are in microseconds.
    """
    ### BEGIN SOLUTION
    peak_flops, bandwidth = 1979e12 / 2, 3.35e12
    cost = matmul_cost(size, size, size, itemsize=2)
    copy, _ = roofline_time(0, 2 * copied, peak_flops, bandwidth)
    matmul, _ = roofline_time(cost["flops"], cost["bytes"], peak_flops, bandwidth)
    return {"copy_us": 1e6 * copy, "matmul_us": 1e6 * matmul}
    ### END SOLUTION


# %% check="predict_h100"
check("predict_h100")

# %% [markdown]
# `DEVICES` holds the data-sheet figures and, beside them, **measured ceilings**: what PyTorch's own copy and matrix
# product reached on an H100.

# %%
predicted = predict_h100(copied=2**30, size=8192)
reached = {
    "copy_us": 1e6 * 2 * 2**30 / h100.bandwidth(measured=True),
    "matmul_us": 1e6 * 2 * 8192**3 / h100.rate("bfloat16", measured=True),
}
for entry, label in (("copy_us", "copy of 1 GiB"), ("matmul_us", "8192³ product")):
    least, real = predicted[entry], reached[entry]
    print(f"{label}: {least:5.0f} µs by the data sheet, {real:5.0f} µs at the measured rate: {least / real:.0%}")

# %% [markdown]
# The copy reached {{copy_share}} % of the data sheet's bandwidth, and the product of random matrices
# {{product_share}} % of its dense rate: {{kept_gb_per_s}} GB/s and {{kept_tflop_per_s}} TFLOP/s. The course compares
# kernels with these ceilings. They stay fixed. A later run on another H100 gave {{copy_gb_per_s}} GB/s and
# {{product_tflop_per_s}} TFLOP/s (`benchmarks/ceilings_h100.json`).
#
# Against 1,979 teraFLOPS the same product is at {{sparse_share}} %. When you read a percentage of the peak, find out
# which peak. A user asked the authors of FlashMLA, DeepSeek's MLA kernels, why they take 990 TFLOP/s when the chip does
# 1979 (`deepseek-ai/FlashMLA` issue #75): 1979 is for sparse matrices. PyTorch Lightning's table of peaks held dense
# figures for some Hopper GPUs and sparse ones for others (`Lightning-AI/pytorch-lightning` pull request #21743).

# %% [markdown]
# ## Measure: this machine's own roofline
#
# Guess first. Nobody grades it.

# %%
guess = {"copy, GB/s": 10, "matmul, GFLOP/s": 100}  # change both before you run on

# %% [markdown]
# The two functions below time a copy (128 MiB on a CPU, 1 GiB on a GPU) and a square matrix product (1024³ in float32
# on a CPU, 8192³ in 16 bits on a GPU). The copy counts bytes read *plus* bytes written. Some tools count one direction
# only, and their figure is half of this one.

# %%
from mla_ref import measure_copy_bandwidth, measure_matmul_rate

here_bandwidth, here_rate = measure_copy_bandwidth(), measure_matmul_rate()
measured = {"copy, GB/s": here_bandwidth / 1e9, "matmul, GFLOP/s": here_rate / 1e9}
beside = {"copy, GB/s": h100.bandwidth(True) / 1e9, "matmul, GFLOP/s": h100.rate("bfloat16", True) / 1e9}

print(f"{'':17}{'your guess':>12}{'measured':>12}{'an H100':>12}")
for label in guess:
    print(f"{label:17}{guess[label]:12,.0f}{measured[label]:12,.0f}{beside[label]:12,.0f}")
print(f"ridge: {here_rate / here_bandwidth:.1f} FLOP/byte here, {h100.ridge(measured=True):.0f} on the H100")

# %% [markdown]
# ## Can you trust one measurement?
#
# No. The next cell times the same copy of 32 MiB 40 times, each alone, the very first call included.

# %%
from statistics import mean, median

from mla_ref import bench

source = torch.ones(2**23, device=device)
target = torch.empty_like(source)
samples = [1e3 * bench(lambda: target.copy_(source), warmup=0, repeat=1).median for _ in range(40)]
calls = range(1, 41)
times = {"one call": (calls, samples), "median": (calls, 40 * [median(samples)]), "mean": (calls, 40 * [mean(samples)])}
plots.curves({"40 copies of 32 MiB": times}, xlabel="call", ylabel="time (ms)", dotted=("median", "mean"))

# %% [markdown]
# - **Warm-up.** The first calls often pay for what later ones do not: memory is handed out, code is loaded, a library
#   chooses its algorithm, a GPU raises its clock. Run the work a few times before the clock starts.
# - **Median.** Another program or an interrupt adds time to some calls. A few such calls raise the mean and hardly
#   change the median.
# - **Noise.** Report the spread too. `mla_ref.bench` returns the median with the 20th and 80th percentile. If two
#   kernels differ by less than that spread, you do not know which is the faster.
#
# The next cell copies one byte and five larger amounts. On a CPU it uses one core.

# %%
def copy_seconds(nbytes):
    source = torch.ones(nbytes, dtype=torch.uint8, device=device)
    target = torch.zeros_like(source)
    return bench(lambda: target.copy_(source), repeat=9).median


sizes = {"1 KiB": 2**10, "32 KiB": 2**15, "1 MiB": 2**20, "8 MiB": 2**23, "128 MiB": 2**27}
threads = torch.get_num_threads()
torch.set_num_threads(1)
seconds = {label: copy_seconds(nbytes) for label, nbytes in sizes.items()}
byte = copy_seconds(1)
torch.set_num_threads(threads)
print(f"copying 1 byte takes {1e6 * byte:.2f} µs, 1 KiB {1e6 * seconds['1 KiB']:.2f} µs")
plots.bars(
    {label: 2 * nbytes / seconds[label] / 1e9 for label, nbytes in sizes.items()},
    unit="GB/s, read plus written",
    title=f"One copy, five sizes, {'the GPU' if gpu else 'one core'} of this machine",
)

# %% [markdown]
# - **Fixed cost.** On an idle machine, copying 1 KiB takes hardly longer than copying 1 byte. Nearly all of that time
#   is the fixed cost of a call; on a GPU that is the launch.
# - **Caches.** On a CPU, the sizes in the middle usually run above the rate of 128 MiB: they stay in a cache, close to
#   the cores, and hardly touch DRAM. In a model, other layers run between two calls of a kernel, and replace what the
#   cache held. So a benchmark must **flush the caches** between calls. On a GPU `bench` does: it
#   writes twice the size of the L2, the last cache before DRAM. On a CPU it does not; use data larger than the cache.

# %% [markdown]
# ## Exercise 5: how many rows until arithmetic matters?
#
# A model's weight matrix `[k, n]` is multiplied with `m` rows, one for each token. With one row, every weight is read
# and used for a single multiply-accumulate: memory-bound, on nearly every CPU and GPU. More rows use the same weights
# again.
#
# Return the smallest number of rows `m`, an int, for which `roofline_time` of `[m, k] @ [k, n]` is `"compute"`-bound.
# The rows themselves are read and the results written, as `matmul_cost` counts them. In every case here there is such
# an `m`, and it is below 2000.
#
# <details><summary>Hint 1</summary>The gap is about five lines if you try m = 1, 2, 3, …</details>
# <details><summary>Hint 2</summary>For each m, give the result of <code>matmul_cost(m, n, k, itemsize)</code> to
# <code>roofline_time</code> and look at the second value that comes back.</details>
# <details><summary>Hint 3</summary><code>m = 1</code>, then a <code>while True</code> loop: return <code>m</code> if
# the bound is <code>"compute"</code>, otherwise add 1.</details>

# %% solution="ridge_rows"
def ridge_rows(n, k, itemsize, peak_flops, bandwidth):
    """Return the smallest m for which [m, k] @ [k, n] is compute-bound, an int.

    [k, n]: shape of the weights; itemsize: bytes of every element; peak_flops: FLOP/s; bandwidth:
    bytes/s; these two may be floats. The m rows read and the m results written count too.
    """
    ### BEGIN SOLUTION
    m = 1
    while True:
        cost = matmul_cost(m, n, k, itemsize)
        _, bound = roofline_time(cost["flops"], cost["bytes"], peak_flops, bandwidth)
        if bound == "compute":
            return m
        m += 1
    ### END SOLUTION


# %% check="ridge_rows"
check("ridge_rows")

# %%
on_h100 = {"peak_flops": h100.rate("bfloat16"), "bandwidth": h100.bandwidth()}
print("7168 × 7168 weights in bfloat16 on an H100, by its data sheet")
for m in (1, 16, 128, ridge_rows(n=7168, k=7168, itemsize=2, **on_h100), 1024):
    cost = matmul_cost(m, 7168, 7168, itemsize=2)
    seconds, bound = roofline_time(cost["flops"], cost["bytes"], **on_h100)
    print(f"{m:6} rows: {1e6 * seconds:5.1f} µs, {bound}-bound")

# %% [markdown]
# By the model, 16 rows take as long as one, to within half a percent. In **decoding**, each sequence adds one token
# at a time, so a batch of 16 sequences is 16 rows: memory-bound, far from the ridge. This is why bytes come first in
# this course.

# %% [markdown]
# ## Measure: does the model hold?
#
# Your functions predict the time of a `[m, 4096] @ [4096, 4096]` product on this machine, from the two rates that you
# measured. Before you run the cell: up to which m do you expect a product to take as long as with one row?

# %%
from mla_ref import Cost, Device

n = k = 4096
dtype = torch.float32
if gpu:
    dtype = torch.bfloat16 if torch.cuda.get_device_capability() >= (8, 0) else torch.float16
weights = torch.randn(k, n, device=device).to(dtype)


def product_seconds(m):
    x = torch.randn(m, k, device=device).to(dtype)
    out = torch.empty(m, n, device=device, dtype=dtype)
    return bench(lambda: torch.mm(x, weights, out=out), warmup=2, repeat=7).median


points = {}
knee = ridge_rows(n, k, dtype.itemsize, here_rate, here_bandwidth)
print(f"predicted: compute-bound from {knee} rows on")
print(f"{'rows':>6}{'bound':>10}{'predicted':>14}{'measured':>14}{'ratio':>8}")
for m in (1, 16, 128, 512, 2048) if gpu else (1, 4, 16, 64, 256):
    cost = matmul_cost(m, n, k, dtype.itemsize)
    least, bound = roofline_time(cost["flops"], cost["bytes"], here_rate, here_bandwidth)
    real = product_seconds(m)
    points[f"m = {m}"] = (Cost(**cost), real)
    print(f"{m:6}{bound:>10}{1e3 * least:11.3f} ms{1e3 * real:11.3f} ms{real / least:8.2f}")

# %%
here = Device(
    name=f"this machine, measured in {str(dtype).removeprefix('torch.')}",
    target=None,
    dram_bandwidth=here_bandwidth,
    flops={"bfloat16": here_rate},  # the picture draws each device's 16-bit rate; ours stands in for it
    dram_bytes=0,
    sms=0,
    source={"": "measured above"},
)
title = "The products above; this machine's roof, and an H100's in bfloat16"
plots.roofline([here, h100], points, title=title)

# %% [markdown]
# A point on the roof is as fast as the model allows. A point *below* it has something to gain: a few rows do not keep
# every core busy, or the library has no good kernel for that shape. A point *above* it means that the model or the
# measurement is off. On a CPU there are three usual reasons: part of the weights stayed in the cache; the bandwidth was
# measured with a copy, whose writes can cost more than its reads; or the machine was busy when the roof was measured.
#
# On a shared or small machine expect a factor of two or three, for a few rows even more. The H100 of Exercise 4 was
# within {{copy_gap}} % and {{product_gap}} % of its data sheet, on large work that had the chip to itself.

# %% [markdown]
# ## In the field: the wrong time
#
# One operation on an H100, timed three ways: a batched product of MLA in float16, `[1, 128] @ [128, 512]` for each of
# 128 heads. `do_bench` is Triton's timing function. A CUDA graph is a recording of launches, which the GPU replays
# without the host. The dashed line is the floor that your functions give.

# %%
floor_us = 1e6 * 128 * matmul_cost(1, 512, 128, itemsize=2)["bytes"] / h100.bandwidth()
plots.bars(
    {
        "an article's, half of two": 35.6 / 2,
        "do_bench, caches flushed": "{{flushed_us}}",
        "CUDA graph, caches warm": "{{graph_us}}",
    },
    unit="µs",
    title=f"One product. Dashed: {floor_us:.1f} µs, the least from DRAM",
    reference=floor_us,
)

# %% [markdown]
# The first figure is of an article, "The Hidden Bottleneck in MLA Serving": it gives 35.6 µs for two such products, as
# lesson 10 shows. The other two were measured for this course with cuBLAS on an H100 80GB HBM3
# (`benchmarks/timing_traps_h100.json`).
#
# | trap | what it measures instead |
# |---|---|
# | `time.time()` around GPU work, without `torch.cuda.synchronize()` | Python: a launch returns before the kernel ran |
# | `triton.testing.do_bench` on a small kernel | the kernel with cold caches, and the two events around it |
# | replaying a CUDA graph | the kernel with warm caches: {{graph_us}} µs, *below* the floor{{!below_the_floor}} |
# | a CPU loop over one small input | the cache, as in your bars above |
#
# The weights are 16 MiB and the L2 holds 50 MiB, so they stay there from one replay to the next.
#
# **Before you hand in:** restart the kernel and run all cells, so that nothing depends on a cell you have deleted. Then
# save, and run `mla-course check` once.

# %% [markdown]
# ## Where you stand
#
# What your checks said last, in this lesson and in those beside it. Come back to this cell whenever you like. In a
# terminal, `mla-course progress` says the same.

# %%
from autograder.checking import progress

progress()

# %% [markdown]
# ## Appendix
#
# <details><summary><b>The course at a glance</b></summary>
#
# | lesson | you build |
# |---|---|
# | 00 start here | a roofline calculator, and this machine's roofline |
# | 01 multi-head attention | attention, its cache, one decode step; what the cache costs |
# | 02 naive MLA | latent projections, RMSNorm, RoPE, the latent cache |
# | 03 weight absorption | the same result straight from the latent |
# | 04 fused norm and RoPE | first Triton kernels |
# | 05 fused scores and softmax | attention scores and masked softmax as kernels |
# | 06 flash decoding | online softmax, split caches, one decode kernel |
# | 07 paged cache | page tables, and decoding straight from pages |
# | 08 roofline | naive against absorbed: predicted and measured |
# | 09 shared prefix | naive on what sequences share, absorbed on the rest |
# | 10 the hidden bottleneck | the two products of absorption, with 4-bit weights |
# | 11 prefill and FP8 | a prefill kernel for packed sequences, keys and values in 8 bits |
# | 12 the decode challenge | a whole decode layer against the clock |
# | 13 generate | attention over pages, and a model that writes text with it |
# | 14 the last factor of two | a matrix product and attention that keep an H100's tensor cores busy |
#
# Lessons 04 to 07, 09 to 12 and 14 use Triton, the language of their GPU kernels. It exists for Linux; on macOS the
# other lessons work without it. On Windows, use WSL.
#
# </details>
#
# <details><summary><b>On Google Colab</b></summary>
#
# The badge at the top opens this notebook in Colab. Run the first cell there: it installs the course and leaves
# Colab's PyTorch as it is. The free T4 GPU has no bfloat16; the lessons use float16 there, and lesson 14 the CPU. When
# you are done, choose *File → Download → Download .ipynb* and hand in that file, under the name that it had.
#
# </details>
#
# Figures: {{records}}.
