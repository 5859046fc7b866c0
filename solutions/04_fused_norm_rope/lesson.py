# %% [markdown]
# # Lesson 04: first kernels: RMSNorm and RoPE
#
# So far you called PyTorch's operations. On a GPU each of them starts a **kernel**: a function that runs on the
# GPU, reads its inputs from memory, computes, and writes its result to memory. Starting one is a **launch**. PyTorch
# that runs one operation after the other is called **eager**.
#
# In this lesson you write kernels in Triton, a language for GPU kernels inside Python. One kernel does all steps of an
# RMSNorm, another all steps of RoPE: each reads its input once and writes its result once. This is called **fusion**.
# You need no GPU, and you need not have written a kernel before. The lesson takes about four hours.
#
# Kernels are graded twice. `check` asks whether the result is right. `check_speed` asks how long the kernel takes at
# full size: with a GPU it measures, without one it works out the time on an H100. The limits of an exercise are 10 s
# and 512 MiB for all its cases. Hidden cases have odd sizes.
#
# | exercise | you write | points right | points fast |
# |---|---|---|---|
# | `predict_norm_bytes` | the bytes that an RMSNorm moves, eager and fused | 2 | |
# | `scale_add` | a first kernel: alpha · x + y | 2 | 1 |
# | `rms_norm` | an RMSNorm in one kernel | 4 | 3 |
# | `apply_rope` | RoPE in one kernel | 4 | 3 |
# | `rope_query_key` | RoPE of queries and of the key that all heads share, in one launch | 3 | 2 |
#
# | symbol | meaning | DeepSeek-V3 |
# |---|---|---|
# | B, S, H | sequences in the batch, new tokens per sequence, heads | H = 128 |
# | Dr, P | width of the part that carries the position (RoPE), and its pairs: P = Dr/2 | 64, 32 |
# | R | width of the latent for keys and values | 512 |
# | N, D | rows, and numbers per row that a norm runs over | D = 7168 for the hidden state |
#
# Where a text says "the report", it is *Optimizing Multi-head Latent Attention for Efficient Inference*.

# %% setup="imports"
import torch
from autograder import check, check_speed
from mla_ref.hardware import emulator

emulated = emulator.prepare()  # whether kernels run on the CPU, for lack of a GPU

import triton
import triton.language as tl

device = "cpu" if emulated else "cuda"

# %% [markdown]
# ## Why: the way to memory
#
# This is the RMSNorm of lesson 02 in eager PyTorch. Each operation is one kernel.

# %%
def eager_rms_norm(x, weight, eps=1e-6):
    """x: [N, D] in 16 bits; weight: [D]."""
    y = x.float()
    squares = y.square()
    mean = squares.mean(-1, keepdim=True)  # [N, 1]
    rstd = torch.rsqrt(mean + eps)  # [N, 1], 1 / root mean square; the name is LayerNorm's, of 1 / standard deviation
    y = y * rstd
    y = y * weight
    return y.to(x.dtype)


# %% [markdown]
# The norm has about 4 FLOPs for each number: square, add, two products. The next cell compares the time of this
# arithmetic on an H100 with the time of reading the input once and writing the result once, both by the data sheet.

# %%
from mla_ref import DEVICES, Cost
from mla_ref.plots import bars, flow, squares, stacked

h100 = DEVICES["h100"]
N, D = 16384, 7168
once = Cost(bytes=2 * N * D * 2, flops=4 * N * D)
bars(
    {
        "arithmetic, float32": once.compute_time(h100, "float32") * 1e6,
        "read the input once, write the result once": once.memory_time(h100) * 1e6,
    },
    unit="µs on an H100 by its data sheet",
    title=f"RMSNorm of {N} rows of {D}, bfloat16",
)

# %% [markdown]
# Memory takes 20 times as long as the arithmetic, even if every number is read once and every result written once.
# Eager PyTorch moves more: each operation writes its whole result to memory, and the next one reads it back.

# %% [markdown]
# ## Predict: bytes of an RMSNorm
#
# Count the bytes that `eager_rms_norm` moves, and those of one fused kernel. Rules:
#
# - every operation reads each of its inputs once and writes its result once;
# - only tensors of the full size `[N, D]` count. The weight, and the tensors with one number per row, are left out;
# - `itemsize` is the bytes of one number of `x`: 2 for bfloat16, 1 for an 8-bit type. What `float()` makes has 4.
#   A product of float32 and a 16-bit weight is float32;
# - the fused kernel reads `x` once and writes the result once.
#
# <details><summary>Hint 1</summary>
#
# Go through the function line by line and write down, for each operation, how many bytes per number it reads and how
# many it writes. There are six operations with a tensor of the full size.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `float()` reads `itemsize` and writes 4. `square()` reads 4 and writes 4. `mean` reads 4 and writes next to nothing.
# Three more to go: two products and `to()`.
#
# </details>
# <details><summary>Hint 3</summary>
#
# The six, per number: `itemsize + 4`, 8, 4, 8, 8, `4 + itemsize`. Add them and multiply by `rows * width`. Three
# lines.
#
# </details>

# %% solution="predict_norm_bytes"
def predict_norm_bytes(rows, width, itemsize):
    """Bytes that an RMSNorm of [rows, width] moves between the chip and memory.

    rows, width: int; itemsize: int, bytes of one number of x.

    Returns a dict of numbers:
      eager_bytes  operation by operation, as in eager_rms_norm above
      fused_bytes  in one kernel
      ratio        eager_bytes / fused_bytes

    The trap: between float() and to() a number has 4 bytes, whatever itemsize is.
    """
    ### BEGIN SOLUTION
    per_number = (itemsize + 4) + (4 + 4) + 4 + (4 + 4) + (4 + 4) + (4 + itemsize)
    eager, fused = rows * width * per_number, rows * width * 2 * itemsize
    return {"eager_bytes": eager, "fused_bytes": fused, "ratio": eager / fused}
    ### END SOLUTION

# %% check="predict_norm_bytes"
check("predict_norm_bytes")

# %% [markdown]
# Now count. The grader has a recorder that notes every operation of PyTorch with the bytes it reads and writes. The
# next cell runs `eager_rms_norm` under it. The input is a tensor on the device "meta": it has a shape and a dtype and
# no data, so the full size costs nothing.

# %%
from autograder.kernels.worker.recording import recording


def operations(function, **arguments):
    """Return [name, bytes read, bytes written] for every operation of PyTorch that the function runs."""
    with recording(arguments) as recorder:
        function(*arguments.values())
    size = lambda tensors: sum(count for _, count in tensors)
    return [[e["op"][0], size(e["reads"]), size(e["writes"])] for e in recorder.events if e["kind"] == "host"]


def draw_operations(rows, numbers, title):
    shown = {f"{n}. {name.strip('_')}": (read, written) for n, (name, read, written) in enumerate(rows, start=1)}
    parts = {name: {"read": read / numbers, "written": written / numbers} for name, (read, written) in shown.items()}
    return stacked(parts, unit="bytes per number of x", title=title)


empty = lambda *shape, dtype=torch.bfloat16: torch.empty(shape, dtype=dtype, device="meta")
norm_operations = operations(eager_rms_norm, x=empty(N, D), weight=empty(D), eps=1e-6)
counted = sum(read + written for _, read, written in norm_operations)
mine = predict_norm_bytes(N, D, 2)
print(f"eager: predicted {mine['eager_bytes'] / 1e9:.3f} GB, counted {counted / 1e9:.3f} GB "
      f"in {len(norm_operations)} kernels")
print(f"at 3.35 TB/s: eager {counted / h100.bandwidth() * 1e6:.0f} µs, "
      f"fused {mine['fused_bytes'] / h100.bandwidth() * 1e6:.0f} µs")
draw_operations(norm_operations, N * D, f"eager_rms_norm, {N} × {D}, bfloat16: a kernel each")

# %% [markdown]
# The names are PyTorch's own: `to_copy` is `float()` and `to()`, `pow` is `square()`, `mul` a product. The two kernels
# with no visible bar work on one number per row. They still have to be launched.
#
# By bytes alone, fusion makes the norm ten times as fast.

# %% [markdown]
# ## What a Triton program is
#
# A kernel is launched as many **programs**. All of them run the same code, and they differ in one number: their
# **program id**. Each program works on a **block** of numbers at once. The number of programs is the **grid**.
#
# The picture shows a vector of 22 numbers and blocks of 8. Three programs cover it, a row each. The last block reaches
# beyond the end. Those 2 places are **masked**: nothing is read or written there.

# %%
offsets = torch.arange(3)[:, None] * 8 + torch.arange(8)  # pid * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
title = "offsets of 3 programs"
squares(
    {title: (offsets < 22).int()},
    ("masked: offsets < 22 is False", "read and written"),
    xlabel="place in the block",
    ylabel="program",
    texts={title: offsets.tolist()},
)

# %% [markdown]
# Here is the kernel for that picture, complete. It doubles a vector.

# %%
@triton.jit
def double_kernel(x_ptr, out_ptr, n, BLOCK_SIZE: tl.constexpr):
    pid = tl.program_id(0)  # 0, 1, 2
    offsets = pid * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)  # [BLOCK_SIZE] whole numbers
    mask = offsets < n  # [BLOCK_SIZE] True or False
    x = tl.load(x_ptr + offsets, mask=mask)  # [BLOCK_SIZE] numbers, from memory
    tl.store(out_ptr + offsets, 2 * x, mask=mask)  # to memory


x = torch.arange(22.0, device=device)
out = torch.full_like(x, -1)
double_kernel[(3,)](x, out, 22, BLOCK_SIZE=8)
print(out.tolist())

# %% [markdown]
# Line by line:
#
# | in the kernel | meaning |
# |---|---|
# | `@triton.jit` | this function is a kernel: it is translated by Triton, not run by Python |
# | `x_ptr` | where the tensor `x` begins in memory; a tensor that is passed in arrives as its address |
# | `tl.program_id(0)` | which program this is, along the grid's first axis |
# | `tl.arange(0, BLOCK_SIZE)` | the numbers 0 to BLOCK_SIZE − 1; BLOCK_SIZE must be a power of two |
# | `x_ptr + offsets` | a block of addresses, counted in elements, not in bytes |
# | `tl.load(…, mask=mask)` | reads where the mask is True |
# | `tl.store(…)` | writes, and converts to the dtype of the target |
# | `BLOCK_SIZE: tl.constexpr` | known when the kernel is translated, like every shape of a block |
#
# The launch is `double_kernel[grid](arguments)`. The grid is a tuple of up to three numbers, here `(3,)`. A function
# around it, the **launcher**, makes the output tensor, computes the grid, and launches:

# %%
def double(x, block=1024, warps=4):
    out = torch.empty_like(x)
    grid = (triton.cdiv(x.numel(), block),)
    double_kernel[grid](x, out, x.numel(), BLOCK_SIZE=block, num_warps=warps)
    return out


print(double(torch.ones(5, device=device)).tolist())

# %% [markdown]
# A GPU consists of **multiprocessors** (SM), 132 of them on an H100. Each holds several programs at a time, and
# computes with one while another waits for memory. Within a program **threads** share the work, in **warps** of 32
# threads that move together. `num_warps` is the number of warps of a program, 4 if nothing is said. Of a block of 1024
# numbers on 4 warps, each of the 128 threads holds 8.
#
# What lies between a load and a store does not go to memory, as long as it fits into the **registers**, the storage of
# each thread next to the arithmetic units. So fusion is: more lines between load and store.

# %% [markdown]
# ## What runs a kernel where there is no GPU
#
# Triton's compiler works in steps. The first checks the kernel and writes it down as a list of operations on blocks,
# called **TTIR** ("Triton's intermediate representation"). The further steps make machine code of that list for one
# kind of GPU. Without a GPU only the first step is taken, and an **emulator** runs the list with PyTorch on CPU
# tensors, each operation for all programs of the grid at once. `emulator.prepare()` in the set-up cell chose it if
# there is no GPU here.
#
# A launch returns the compiled kernel, with its TTIR in `asm["ttir"]`. Try to find each line of `double_kernel` in it.

# %%
import re

compiled = double_kernel[(3,)](x, out, 22, BLOCK_SIZE=8)
for line in compiled.asm["ttir"].splitlines():
    if line.startswith("    "):  # an operation
        print(re.sub(r" loc\(.*", "", line).strip())

# %% [markdown]
# One line is one operation. Names with `%` are its operands and its result. `tensor<8xf32>` is a block of 8 numbers in
# float32. `tt.splat` turns one number into a block that holds it everywhere.
#
# What this first step refuses does not run here either: a function of NumPy or PyTorch on a block, an `if` on a block,
# a `tl.arange` whose size is no power of two. The error is the compiler's own.
#
# ### What the emulator finds
#
# A GPU checks no address. A kernel without a mask reads what lies behind the tensor, and writes there.
#
# The kernel in the next cell adds 1 to each number of a vector, without a mask, with three programs of 8 numbers. The
# first vector has 22 numbers of its own. The second is the first 22 numbers of a longer one. `emulator.emulating()`
# takes the emulator even where there is a GPU. What do you expect of the first, and what of the second?

# %%
@triton.jit
def careless_kernel(x_ptr, BLOCK_SIZE: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    x = tl.load(x_ptr + offsets)
    tl.store(x_ptr + offsets, x + 1)


longer = torch.zeros(26)
for ours in (torch.zeros(22), longer[:22]):
    with emulator.emulating():
        try:
            careless_kernel[(3,)](ours, BLOCK_SIZE=8)
            print("no fault; behind ours:", longer[22:].tolist())
        except emulator.OutOfBounds as fault:
            print(fault)

# %% [markdown]
# The emulator stops at the first access outside the memory that PyTorch allocated for the tensor. Its message has the
# line of the cell, the argument, the element and the program. The second vector is a part of a larger allocation: there
# the kernel has changed two numbers that are not its own, and nobody complained. The tensors that the grader passes in
# are not parts of larger ones.
#
# The next kernel moves each number one place to the left, in place: $x_i$ becomes $x_{i+1}$, and the last one stays.
# It has its mask. A vector of 8 numbers takes one program, a vector of 22 takes three. Is the result right for both?

# %%
@triton.jit
def shift_kernel(x_ptr, n, BLOCK_SIZE: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    inside = offsets + 1 < n
    following = tl.load(x_ptr + offsets + 1, mask=inside)
    tl.store(x_ptr + offsets, following, mask=inside)


for n in (8, 22):
    ours = torch.arange(float(n))
    with emulator.emulating():
        try:
            shift_kernel[(triton.cdiv(n, 8),)](ours, n, BLOCK_SIZE=8)
            print(f"{n} numbers:", ours.tolist())
        except emulator.Race as fault:
            print(f"{n} numbers:", fault)

# %% [markdown]
# Here one program loads all 8 numbers before it stores any. With a block over several warps even that is not
# promised (see below). And programs have no order. Program 0 needs element 8, and
# program 1 overwrites it: the result depends on which of them comes first. This is called a **race**. On a GPU the
# result may be right in one run and wrong in the next. The remedy here is a second tensor for the result.
#
# The emulator also stops a loop that turns without changing anything. And it shows what a mask has left out: **masked
# places** of a load hold anything on a GPU, unless the load says `other=0.0`. In the emulator they hold NaN, so that a
# sum in which they take part shows it. (Integers have no NaN. There they hold a large number, 1515870810 in 32 bits.)
#
# ### What it does not see
#
# - **Rounding**: the order in which a sum is added, and the last bits of `tl.exp`, `tl.log`, `tl.sin` and of a
#   division. So the last digits of a result may differ from a GPU's.
# - **Some races within a program.** Its threads share the work. The emulator sees where one reads what another has
#   stored. It does not see where one stores over what another has still to read.
# - **The further steps of the compiler, caches and time.** `check_speed` is for these.
#
# ### Looking inside
#
# `tl.device_print` prints a block, with the program and the place of each number. The next cell loads 3 numbers with 2
# programs of 2. What will the fourth place show?

# %%
@triton.jit
def show_kernel(x_ptr, n, BLOCK_SIZE: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    x = tl.load(x_ptr + offsets, mask=offsets < n)
    tl.device_print("x", x)


with emulator.emulating():
    show_kernel[(2,)](torch.arange(3.0), 3, BLOCK_SIZE=2)

# %% [markdown]
# The fourth place is masked: NaN.
#
# To go through a kernel line by line, copy it with a launch on CPU tensors into a file, and run that
# file as `TRITON_INTERPRET=1 python FILE`. Triton then runs kernels in an interpreter of its own: as Python, one
# program after the other, each block a NumPy array. `print(x)` and `breakpoint()` work inside the kernel. The
# interpreter checks no address and looks for no race, and masked places read as 0 there.
#
# How long a launch takes in the emulator says nothing about a GPU, which runs thousands of programs at the same time.
#
# ## Exercise: scale_add
#
# Your first kernel: $\text{out}_i = \alpha\, x_i + y_i$.
#
# | | shape | dtype |
# |---|---|---|
# | `x`, `y` | [n], contiguous | float32, float16 or bfloat16 |
# | `alpha` | | float |
# | returns | [n] | that of `x` |
#
# Any n from 1 on. The answer must come from a Triton kernel: a launcher may make tensors (`torch.empty_like`) and
# compute numbers, and a result that PyTorch computed counts as none. Write kernel and launcher into the same cell;
# the kernel may have any name. Choose `BLOCK_SIZE` and `num_warps`.
#
# <details><summary>Hint 1</summary>
#
# It is `double_kernel` with one more load, two more arguments, and another line between load and store. Five lines of
# kernel, four of launcher.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Kernel arguments: `x_ptr, y_ptr, out_ptr, alpha, n, BLOCK_SIZE: tl.constexpr`. A float is passed like any other
# argument. Both loads and the store take the same offsets and the same mask.
#
# </details>
# <details><summary>Hint 3</summary>
#
# The grid is `(triton.cdiv(n, BLOCK_SIZE),)`: rounded up, so that the tail has a program. `n // BLOCK_SIZE` would
# leave it out. `x.numel()` is n. A block of 1024 with 4 warps is a good start.
#
# </details>


# %% solution="scale_add"
@triton.jit
def scale_add_kernel(x_ptr, y_ptr, out_ptr, alpha, n, BLOCK_SIZE: tl.constexpr):
    """One program: BLOCK_SIZE numbers of out = alpha * x + y. x_ptr, y_ptr, out_ptr: [n]."""
    ### BEGIN SOLUTION
    offsets = tl.program_id(0) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask)
    y = tl.load(y_ptr + offsets, mask=mask)
    tl.store(out_ptr + offsets, alpha * x + y, mask=mask)
    ### END SOLUTION


def scale_add(x, y, alpha):
    """Return alpha * x + y.

    x, y: [n], contiguous, one floating dtype; alpha: float.
    Returns a new tensor [n] of the dtype of x. Launches scale_add_kernel.

    The trap: n need not be a multiple of the block.
    """
    ### BEGIN SOLUTION
    n, block = x.numel(), 1024
    out = torch.empty_like(x)
    scale_add_kernel[(triton.cdiv(n, block),)](x, y, out, alpha, n, BLOCK_SIZE=block, num_warps=4)
    return out
    ### END SOLUTION

# %% check="scale_add"
check("scale_add")

# %% [markdown]
# ## How fast is it
#
# The next cell gives the time of your kernel at full size, $n = 2^{26}$ in bfloat16. Without a GPU the grader
#
# 1. runs your function once on tensors without data, and **records** what it does: launches with grid and arguments,
#    and what torch does around them;
# 2. **cuts** the kernels out of your cells, and leaves everything else behind;
# 3. **compiles** each kernel for the H100, and reads from the machine code how many registers it takes and how wide its
#    loads are;
# 4. **replays** some of the programs in the emulator, counts every access to memory, and compares what they write;
# 5. puts what steps 3 and 4 found into a **model** of the GPU, with constants fitted to kernels measured on an H100.
#
# On the same data the same kernel always gets the same modelled time. It is compared with the **floor**: the bytes that
# any kernel has to move, divided by the 3.35 TB/s of the data sheet. No kernel is faster. A plain copy, measured on an
# H100, moves its bytes at about {{copy_share}} % of that, and has to be launched. Little can be won beyond its speed.
#
# Work out the floor before you run the cell: x and y are read, the result is written, 2 bytes a number.
#
# A kernel at 40 % of the floor's speed earns half of the points for speed. A kernel at 70 % that is also 1.3 times as
# fast as eager PyTorch earns all of them.

# %% speed="scale_add"
check_speed("scale_add")

# %% [markdown]
# What the verdict says:
#
# | where | meaning |
# |---|---|
# | eager baseline | the time of the same work in eager PyTorch, from the same model |
# | step | a kernel, or an operation of PyTorch in your launcher |
# | launching | what launches cost beside that: {{launch_us}} µs for the first, {{next_us}} µs for each further one |
# | bound by | what takes longest in this step; the sentence under the table says what to do about it |
# | distinct MB | bytes touched, each counted once, however often it is read; an estimate, from some of the programs |
# | issued MB | all bytes asked for. More than the distinct ones: something is read again |
# | bytes a load | that a thread loads with one instruction, 16 at most; several numbers if the loads differ |
# | matrix instr. | instructions of the tensor cores in the machine code; from lesson 05 on |
# | registers | per thread, 255 at most. An SM has 65536 for all its threads |
# | spills, bytes | of each thread, that did not fit into its registers and went to memory |
# | programs were run | those that were replayed; the others are taken to be like them |
# | shared, KiB | shared memory: storage of an SM through which the threads of a program exchange numbers |
# | blocks per SM | programs that an SM holds at a time (CUDA calls a program a *thread block*) |
#
# Columns without an entry are left out. In front of the DRAM is a cache, the L2, of 50 MB on an H100. What is read
# again may still lie there. The least that memory moves is a **sector**, 32 bytes. These are the words under
# "bound by":
#
# | bound by | the kernel |
# |---|---|
# | DRAM | waits for its bytes from and to memory: compare them with the floor's |
# | L2 | asks its cache for too much: the same again (see issued MB), or a whole sector for 2 bytes (see bytes a load) |
# | load and store units | takes too many loads or stores for its bytes |
# | instructions | computes too much for each byte; "matrix units" means the same for matrix products |
# | waiting | asks for too few bytes at a time, and waits for each |
# | handing out blocks | has too many programs, each too short |
#
# The picture is the roofline of lesson 00. Green is the floor, on the roof. Red is your kernel. Where it takes about as
# long as a copy, its launch included, the sentence under the table says that it is at the limit. Then you can stop.
#
# Before it times a kernel, `check_speed` compares its result in one small call. A kernel that is wrong elsewhere may
# pass there: in the grade, speed counts only once every case is right.
#
# ## Exercise: rms_norm
#
# $$y_i = \frac{x_i}{\sqrt{\frac{1}{D}\sum_{k} x_k^2 + \epsilon}}\; w_i$$
#
# One program per row. It loads the whole row, so the sum, the root and the product all happen in registers. The row
# need not have a power of two of numbers, and the block must: take the next power of two, and mask.
#
# | | shape | dtype |
# |---|---|---|
# | `x` | [N, W], contiguous, W ≥ D | float32, float16 or bfloat16 |
# | `weight` | [D] | that of `x` |
# | `eps` | | float |
# | returns | [N, D] | that of `x` |
#
# Often W = D. But the latent of lesson 02 arrives beside its RoPE key, in rows of W = R + Dr = 576 numbers, of which
# only the first R = 512 are normalised. Cutting them out first would be a copy, so the norm runs over the first
# D = `len(weight)` columns. Rows are W apart in `x`.
#
# Values reach 800 in float16, whose largest number is 65504. Rows may be nearly zero. D is at most 8192.
#
# A block is not a tensor, and has few of a tensor's methods:
#
# | in PyTorch | in a kernel |
# |---|---|
# | `x.float()` | `x.to(tl.float32)` |
# | `x.square()`, `x**2` | `x * x` |
# | `x.sum()` | `tl.sum(x)`: one number for the program |
# | `x.mean()` | `tl.sum(x) / D` |
# | `torch.rsqrt(m)` | `tl.rsqrt(m)`, which is `1 / tl.sqrt(m)` |
# | `x[2:5]` | no slices: load with other offsets |
# | `if` on values of a block | a mask, or `tl.where(condition, a, b)` |
#
# The case for speed is the one that you predicted: 16384 rows of 7168, the first columns of an `x` with 512 more. Half
# of the points: 40 % of the floor's speed. All: 70 %, and 4 times eager PyTorch's speed. The floor is the 140 µs of
# "fused". To read `x` from memory a second time would take half as much again.
#
# One launch is enough. Several are right too, and each of them takes its time, as does a cast of the result behind
# them. Where an exercise says "in one launch", more are refused.
#
# <details><summary>Hint 1</summary>
#
# The grid is `(N,)`. `tl.program_id(0)` is the row, `tl.arange(0, BLOCK_D)` are its columns, `BLOCK_D` is
# `triton.next_power_of_2(D)`. About eight lines of kernel.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `tl.load(x_ptr + row * W + offs_d, mask=offs_d < D, other=0.0).to(tl.float32)`: convert right after the load, before
# squaring. Masked places are 0 and add nothing to `tl.sum(x * x)`. Divide by D, not by BLOCK_D.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `rstd = tl.rsqrt(tl.sum(x * x) / D + eps)`, then store `x * rstd * weight` at `out_ptr + row * D + offs_d`. The store
# converts to the dtype of `out`. A row of 7168 in a block of 8192 wants 8 warps: 32 numbers for each of 256 threads.
#
# </details>


# %% solution="rms_norm"
@triton.jit
def rms_norm_kernel(x_ptr, weight_ptr, out_ptr, W, D, eps, BLOCK_D: tl.constexpr):
    """One program: one row.

    x_ptr: [N, W]; weight_ptr: [D]; out_ptr: [N, D]; BLOCK_D: a power of two, at least D.
    """
    ### BEGIN SOLUTION
    row = tl.program_id(0).to(tl.int64)
    offs_d = tl.arange(0, BLOCK_D)
    mask = offs_d < D
    x = tl.load(x_ptr + row * W + offs_d, mask=mask, other=0.0).to(tl.float32)  # [BLOCK_D]
    weight = tl.load(weight_ptr + offs_d, mask=mask, other=0.0).to(tl.float32)  # [BLOCK_D]
    rstd = tl.rsqrt(tl.sum(x * x) / D + eps)
    tl.store(out_ptr + row * D + offs_d, x * rstd * weight, mask=mask)
    ### END SOLUTION


def rms_norm(x, weight, eps=1e-6):
    """RMSNorm of the first D columns of each row.

    x: [N, W], contiguous; weight: [D], D <= W and D <= 8192, same dtype; eps: float.
    Returns a new tensor [N, D] of the dtype of x. Launches rms_norm_kernel.

    The traps: float16 must be squared and summed in float32; the mean runs over D, not over the
    block; rows of x are W apart.
    """
    ### BEGIN SOLUTION
    (N, W), D = x.shape, weight.numel()
    out = torch.empty((N, D), dtype=x.dtype, device=x.device)
    block = triton.next_power_of_2(D)
    warps = min(max(block // 1024, 1), 8)
    rms_norm_kernel[(N,)](x, weight, out, W, D, eps, BLOCK_D=block, num_warps=warps)
    return out
    ### END SOLUTION

# %% check="rms_norm"
check("rms_norm")

# %% speed="rms_norm"
check_speed("rms_norm")

# %% [markdown]
# More bytes are issued than are distinct: each of the 16384 programs reads the weight again. Those reads end in the L2,
# which is faster than DRAM, so they cost little here.
#
# The next cell sets your prediction beside measurements: on an {{norm_rope_h100.device}} with Triton
# {{norm_rope_h100.triton}}, L2 emptied before each call (`benchmarks/norm_rope_h100.json`). The kernel is that of the
# course's reference, `mla_ref.kernels`. By bytes, fusion is worth a factor of ten. How much did it bring?

# %%
bars(
    {
        "eager, bytes at 3.35 TB/s": mine["eager_bytes"] / h100.bandwidth() * 1e6,
        "eager, measured": "{{norm_eager_us}}",
        "F.rms_norm of PyTorch, measured": "{{norm_torch_us}}",
        "fused, bytes at 3.35 TB/s": mine["fused_bytes"] / h100.bandwidth() * 1e6,
        "fused in Triton, measured": "{{norm_fused_us}}",
        "copy of x, measured": "{{norm_copy_us}}",
    },
    unit="µs on an H100",
    title=f"RMSNorm of {N} rows of {D}, bfloat16",
)

# %% [markdown]
# Fusion brought a factor of {{norm_gain}}. The fused norm takes as long as a copy{{!like_a_copy}}.
#
# ## Choosing a configuration
#
# Block size and `num_warps` change no result, only the time. Triton's decorator `@triton.autotune` measures a few
# configurations at the first call, and keeps the fastest. So it needs a GPU, and two runs may choose differently. The
# grader wants one configuration that is settled, and refuses `autotune`.
#
# Without a GPU the model stands in for the measurement. The next cell models four configurations of `double`, at
# $2^{26}$ numbers in bfloat16. Guess first: which of the four is fastest, and what is wrong with the others?

# %%
import inspect

from autograder.judging.program import Cell
from autograder.kernels.model import model_call
from autograder.kernels.workers import KernelWorkers

source = "import torch, triton\nimport triton.language as tl\n\n"
source += inspect.getsource(double_kernel.fn) + "\n" + inspect.getsource(double)
tried = {}
print(" block  warps  numbers a thread   programs  bytes a load  registers  spills, bytes       time  of the floor")
with KernelWorkers() as workers:
    for block, warps in ((32, 1), (256, 4), (2048, 4), (131072, 4)):
        arguments = {"x": empty(1 << 26), "block": block, "warps": warps}
        program = [Cell("double", source, required=True)]
        found = model_call(workers, program, "double", arguments, Cost(bytes=4 << 26))
        tried[block, warps], step = found.seconds, found.table()[0]
        width = max(map(int, step["load_widths"]))
        print(f"{block:6} {warps:6} {block // (32 * warps):17} {step['programs']:10,} {width:13} "
              f"{step['registers']:10} {step['spill_bytes']:14} {found.seconds * 1e6:7.0f} µs {found.fraction:13.0%}")
print("chosen: block, warps =", min(tried, key=tried.get))

# %% [markdown]
# - **Too small.** With one number per thread a load moves 2 bytes, with two it moves 4. And there are many programs to
#   hand out, two million in the first line.
# - **Large enough.** 8 numbers of bfloat16 per thread are one load of 16 bytes, the widest there is.
# - **Too large.** A register has 4 bytes, so 1024 numbers per thread would take 512 of them, and there are 255. The
#   compiler keeps the numbers in memory instead, 3088 bytes of it for each thread. This is called **spilling**, and
#   fusion was to avoid just that traffic. The 32 registers of the table are those that each thread still uses.
#
# So for kernels bound by memory a rule of thumb is enough: 8 to 32 numbers per thread, 4 or 8 warps. For your own
# kernels, change the numbers in the launcher and run `check_speed` again.
#
# ## RoPE in one kernel
#
# Lesson 02 turned each pair of neighbours $(a, b)$ by the angle of its token:
# $(a\cos - b\sin,\; a\sin + b\cos)$. The next cell has it in eager PyTorch, and counts its bytes as above. A fused
# kernel moves 4 bytes per number of x in bfloat16. Guess first: how many does eager PyTorch move?

# %%
def eager_rope(x, cos, sin):
    """x: [B, S, H, Dr] in 16 bits; cos, sin: [S, Dr/2] in float32."""
    a, b = x[..., 0::2].float(), x[..., 1::2].float()
    cos, sin = cos[:, None], sin[:, None]  # [S, 1, Dr/2]
    return torch.stack((a * cos - b * sin, a * sin + b * cos), dim=-1).flatten(-2).to(x.dtype)


B, S, H, Dr = 4, 4096, 128, 64
tables = {"cos": empty(S, Dr // 2, dtype=torch.float32), "sin": empty(S, Dr // 2, dtype=torch.float32)}
rope_operations = operations(eager_rope, x=empty(B, S, H, Dr), **tables)
counted = sum(read + written for _, read, written in rope_operations)
fused = Cost(bytes=2 * B * S * H * Dr * 2 + S * Dr * 4)
print(f"per number of x: eager {counted / (B * S * H * Dr):.1f} bytes in {len(rope_operations)} kernels, "
      f"fused {fused.bytes / (B * S * H * Dr):.1f} in one: {counted / fused.bytes:.1f} times fewer")
draw_operations(rope_operations, B * S * H * Dr, f"eager_rope, B={B}, S={S}, H={H}, Dr={Dr}, bfloat16")

# %% [markdown]
# ### How to reach the pairs
#
# A kernel needs $a$ and $b$ as two blocks. There are two ways, and both give the right result.
#
# 1. **Load every other number**: offsets 0, 2, 4, … for $a$ and 1, 3, 5, … for $b$.
# 2. **Load the row as it lies**, and take it apart in registers.
#
# Memory moves in sectors, and a thread loads up to 16 bytes at once if they are neighbours. In the first
# way no two numbers of a load are neighbours. A thread loads 2 bytes at a time, and each sector is asked for twice or
# more. The second way loads 16 bytes at a time. In Triton it takes three functions:
#
# | function | from | to |
# |---|---|---|
# | `tl.reshape(x, (M, P, 2))` | [M, 2·P] | [M, P, 2]: pair and element become axes of their own |
# | `a, b = tl.split(x)` | [M, P, 2] | two of [M, P]: the last axis taken apart |
# | `tl.join(a, b)` | two of [M, P] | [M, P, 2], the reverse of split |
#
# These move nothing through memory: they say which thread holds what. The picture shows one row with Dr = 8.

# %%
flow(
    {
        "x": (0, 1, "x0 x1 x2 x3 x4 x5 x6 x7"), "a": (3, 1.7, "a: x0 x2 x4 x6"), "b": (3, 0.3, "b: x1 x3 x5 x7"),
        "a'": (6, 1.7, "a·cos − b·sin"), "b'": (6, 0.3, "a·sin + b·cos"), "y": (9, 1, "y0 y1 y2 y3 y4 y5 y6 y7"),
    },
    [
        ("x", "a", "reshape, split"), ("x", "b", "reshape, split"), ("a", "a'"), ("b", "a'"), ("a", "b'"), ("b", "b'"),
        ("a'", "y", "join, reshape"), ("b'", "y", "join, reshape"),
    ],
    groups={
        "in memory, as it lies": ["x", "y"],
        "in registers: pair i turns by column i of cos and sin": ["a", "b", "a'", "b'"],
    },
    title="One row of 8: four pairs",
    size=(10.0, 2.8),
)  # fmt: skip

# %% [markdown]
# ### Three puzzles: a tile of addresses
#
# A **tile** is a block with two axes. The next exercise loads one: some heads of one token, each with its Dr numbers.
# You need three things for it: the offsets of both axes, the mask, and the addresses. Find them first on a small
# tensor. The puzzles are not graded. `torch.arange` stands in for `tl.arange`, and both broadcast alike.
#
# The tensor has shape [2, 3, 6, 6]: 2 sequences of 3 tokens, 6 heads of 6 numbers. It is contiguous, so its numbers lie
# in memory one after the other: token after token, in each token head after head. Each number here is its own address.
# A tile has 4 heads and 8 columns, since blocks have powers of two. So two programs cover a token. The picture shows
# both tiles of token 0: the places that exist, and those that do not.

# %%
small = torch.arange(2 * 3 * 6 * 6).view(2, 3, 6, 6)  # [sequences, tokens, heads, columns]
def solved(puzzle, answer, right):
    """Print whether an answer is right; it is None before you wrote it."""
    found = "still open" if answer is None else "right" if right(torch.as_tensor(answer)) else f"not yet: {answer}"
    print(f"puzzle {puzzle}: {found}")


tiles = {f"program (0, {n}): heads {4 * n} to {4 * n + 3}": torch.zeros(4, 8, dtype=torch.int) for n in range(2)}
for n, tile in enumerate(tiles.values()):
    tile[: 6 - 4 * n, :6] = 1
squares(tiles, ("masked", "a number of the tensor"), xlabel="column of the tile", ylabel="row of the tile")


# %% [markdown]
# **Puzzle 1: offsets of both axes.** Which heads and which columns does program (4, 1) hold, the one of token 4 and the
# second block of heads? Write two blocks that broadcast against each other: heads of shape [4, 1], columns of shape
# [1, 8]. Heads that do not exist are among them.
#
# <details><summary>Answer</summary>
#
# `1 * 4 + torch.arange(4)[:, None]` are the heads 4 to 7: the block's number times its height, plus the place in it.
# `torch.arange(8)[None, :]` are the columns.
#
# </details>

# %%
tile_heads = None  # [4, 1]
tile_columns = None  # [1, 8]

solved("1, heads", tile_heads, lambda answer: answer.tolist() == [[4], [5], [6], [7]])
solved("1, columns", tile_columns, lambda answer: answer.tolist() == [list(range(8))])

# %% [markdown]
# **Puzzle 2: the mask.** Which places of this tile exist? Write a [4, 8] block of True and False from the two blocks of
# puzzle 1.
#
# <details><summary>Answer</summary>
#
# `(tile_heads < 6) & (tile_columns < 6)`: a place needs a head *and* a column. `&` is for blocks, `and` for
# single values.
#
# </details>

# %%
tile_mask = None  # [4, 8]

solved("2", tile_mask, lambda answer: answer.shape == (4, 8) and answer.nonzero().tolist() == [
    [row, column] for row in range(2) for column in range(6)
])  # fmt: skip

# %% [markdown]
# **Puzzle 3: the addresses.** Where do the numbers of this tile lie? Write a [4, 8] block of addresses from the two
# blocks of puzzle 1. A token has 6 heads, a head has 6 numbers, and 4 tokens come before this one. Masked places may
# have any address.
#
# <details><summary>Answer</summary>
#
# `(4 * 6 + tile_heads) * 6 + tile_columns`: the heads before this one, those of 4 whole tokens included, times the
# width of a head, plus the column. Token 4 of the batch is token 4 % 3 = 1 of sequence 4 // 3 = 1, and needs the angles
# of position 1.
#
# </details>

# %%
tile_places = None  # [4, 8]

solved("3", tile_places, lambda answer: answer.shape == (4, 8) and answer[:2, :6].equal(small[1, 1, 4:]))

# %% [markdown]
# ## Exercise: apply_rope
#
# One program turns some heads of one token: a tile of `[BLOCK_H, 2·BLOCK_P]`. All of its heads use the same angles, so
# a program loads one row of `cos` and one of `sin`.
#
# | | shape | dtype |
# |---|---|---|
# | `x` | [B, S, H, Dr], contiguous | float32, float16 or bfloat16 |
# | `cos`, `sin` | [S, Dr/2]; row s belongs to token s of every sequence | float32 |
# | returns | [B, S, H, Dr], pairs in their places | that of `x` |
#
# The grid has two axes too: `(B * S, triton.cdiv(H, BLOCK_H))`. Program `tl.program_id(0)` is token $b \cdot S + s$,
# counted through all sequences, and `tl.program_id(1)` is the block of heads. Offsets, mask and addresses are those of
# the puzzles, with `tl.arange`. Dr is even and at most 128. P = Dr/2 need not be a power of two; `BLOCK_P` is the next
# one.
#
# A kernel at 60 % of the floor's speed earns half of the points for speed. One at 70 % that is also 3 times as fast as
# eager PyTorch earns all. You may write the first way first: see what `check_speed` says of it under "bytes a load" and
# "bound by".
#
# <details><summary>Hint 1</summary>
#
# Position: `s = tl.program_id(0) % S`. Angles: `tl.load(cos_ptr + s * P + offs_p, mask=offs_p < P, other=0.0)` with
# `offs_p = tl.arange(0, BLOCK_P)`: a block of `[BLOCK_P]`, which broadcasts against `[BLOCK_H, BLOCK_P]`. About twelve
# lines of kernel.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `offs_h = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)[:, None]`, `offs_d = tl.arange(0, 2 * BLOCK_P)[None,
# :]`. The numbers of the block lie at `(token * H + offs_h) * 2 * P + offs_d`. Mask both axes: `(offs_h < H) &
# (offs_d < 2 * P)`. Convert to float32 after the load.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `a, b = tl.split(tl.reshape(x, (BLOCK_H, BLOCK_P, 2)))`, then `y = tl.join(a * cos - b * sin, a * sin + b * cos)`,
# and store `tl.reshape(y, (BLOCK_H, 2 * BLOCK_P))` with the same offsets and mask. A block of 32 heads with 4 warps
# gives each thread 16 numbers.
#
# </details>


# %% solution="apply_rope"
@triton.jit
def rope_kernel(x_ptr, cos_ptr, sin_ptr, out_ptr, S, H, P, BLOCK_H: tl.constexpr, BLOCK_P: tl.constexpr):
    """One program: BLOCK_H heads of one token.

    x_ptr, out_ptr: [B, S, H, 2P]; cos_ptr, sin_ptr: [S, P]; BLOCK_P: a power of two, at least P.
    """
    ### BEGIN SOLUTION
    token = tl.program_id(0).to(tl.int64)
    offs_p = tl.arange(0, BLOCK_P)
    angle = (token % S) * P + offs_p
    cos = tl.load(cos_ptr + angle, mask=offs_p < P, other=0.0)  # [BLOCK_P]
    sin = tl.load(sin_ptr + angle, mask=offs_p < P, other=0.0)  # [BLOCK_P]

    offs_h = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)[:, None]
    offs_d = tl.arange(0, 2 * BLOCK_P)[None, :]
    offsets = (token * H + offs_h) * 2 * P + offs_d
    mask = (offs_h < H) & (offs_d < 2 * P)
    x = tl.load(x_ptr + offsets, mask=mask, other=0.0).to(tl.float32)  # [BLOCK_H, 2 * BLOCK_P]
    a, b = tl.split(tl.reshape(x, (BLOCK_H, BLOCK_P, 2)))  # [BLOCK_H, BLOCK_P] each
    y = tl.join(a * cos - b * sin, a * sin + b * cos)
    tl.store(out_ptr + offsets, tl.reshape(y, (BLOCK_H, 2 * BLOCK_P)), mask=mask)
    ### END SOLUTION


def apply_rope(x, cos, sin):
    """Turn each pair (x[2i], x[2i+1]) by the angle of its token.

    x: [B, S, H, Dr], contiguous; cos, sin: [S, Dr/2], float32.
    Returns a new tensor of the shape and dtype of x. Launches rope_kernel.

    The traps: the position is the token modulo S; loading every other number is right and slow.
    """
    ### BEGIN SOLUTION
    B, S, H, Dr = x.shape
    out = torch.empty_like(x)
    block_h, block_p = min(triton.next_power_of_2(H), 32), triton.next_power_of_2(Dr // 2)
    grid = (B * S, triton.cdiv(H, block_h))
    rope_kernel[grid](x, cos, sin, out, S, H, Dr // 2, BLOCK_H=block_h, BLOCK_P=block_p, num_warps=4)
    return out
    ### END SOLUTION

# %% check="apply_rope"
check("apply_rope")

# %% speed="apply_rope"
check_speed("apply_rope")

# %% [markdown]
# By bytes, the fused kernel should be 12 times as fast as eager PyTorch. The next picture was measured on an H100 with
# Triton {{norm_rope_h100.triton}} (`benchmarks/norm_rope_h100.json`), for a query of this size and a key of one head
# together:

# %%
bars(
    "{{rope_us}}",
    unit="µs on an H100, measured",
    title=f"RoPE of query and key, B={B}, S={S}, H={H}, Dr={Dr}, bfloat16",
)

# %% [markdown]
# The fused kernels are {{rope_gain}} times as fast as eager PyTorch with a launch for each tensor, {{rope_gain_one}}
# times with one launch for both. That is more than the bytes say: the slices `x[..., 0::2]` of the eager form load
# every other number too.
#
# Loading every other number takes {{every_other}} times as long as loading rows as they lie, for the same result. That
# is Triton 3.6{{!by_triton_3_6}}, which puts the threads of a warp on different rows. The second way does not depend on
# how Triton places the threads. The model underestimates how slow the first way is: by `check_speed` it takes 5 to 7
# times as long, not {{every_other}}.
#
# ## Query and key in one launch
#
# In a decode step 128 sequences with one new token each have a query of 128 × 128 × 64 numbers, 2 MB. A launch took
# {{launch_us}} µs in the verdicts above. Guess first: do the bytes take more or less?

# %%
decode = Cost(bytes=2 * 128 * (128 + 1) * 64 * 2)
print(f"read and write query and key of a decode step: {decode.bytes / 1e6:.1f} MB, "
      f"{decode.time(h100) * 1e6:.1f} µs at 3.35 TB/s")

# %% [markdown]
# Measured on an H100 (`benchmarks/norm_rope_h100.json`):
#
# | RoPE of a decode step, 128 sequences | µs | µs in a CUDA graph |
# |---|---|---|
# | one launch for query and key | {{one_us}} | {{one_graph_us}} |
# | a launch for each | {{each_us}} | {{each_graph_us}} |
# | eager PyTorch | {{eager_us}} | {{eager_graph_us}} |
#
# A launch costs more than the bytes{{!more_than_bytes}}. The key is 1/129 of the work, and a launch of its own takes
# {{more_us}} µs more, in each of 61 layers, at every token. (A CUDA graph is a recording of launches that the GPU
# replays without the host. It makes a launch cheaper, not free. In those figures the data also stays in the L2.)
#
# So the last exercise rotates both in one launch.
#
# | | shape | dtype |
# |---|---|---|
# | `q_rope` | [B, S, H, Dr], contiguous | float32, float16 or bfloat16 |
# | `k_rope` | [B, S, Dr], contiguous: one key for all heads | that of `q_rope` |
# | `cos`, `sin` | [S, Dr/2] | float32 |
# | returns | rotated query, rotated key; shapes as given | that of `q_rope` |
#
# A kernel may call another function that is decorated with `@triton.jit`; it is inlined, at no cost. An `if` on
# `tl.program_id` is decided once for the whole program, so it works, and costs next to nothing. A name that both of its
# branches set needs the same shape and dtype in both. Without the `if` every
# program of a token would turn the key. The result is right, as all of them store the same numbers, and the key is
# loaded, turned and stored once for each block of heads. At the size that is timed here, the difference is too small to
# be seen.
#
# The case for speed is that decode step: B = 128, S = 1, H = 128. The floor counts bytes alone, and the launch takes
# longer than those. So the bars are low. A kernel at 10 % of the floor's speed earns half of the points for speed. One
# at 12 % that is also 3 times as fast as eager PyTorch earns all.
#
# <details><summary>Hint 1</summary>
#
# The grid of `apply_rope` will do. Each program turns its block of heads, and those with `tl.program_id(1) == 0` turn
# the key of their token as well: a block with a single head.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `turn_block` is what both have in common: the last four lines of `rope_kernel`, for a block with any number of rows.
# Key offsets are `token * 2 * P + offs_d`, of shape `[1, 2 * BLOCK_P]`; the mask of the key is `offs_d < 2 * P`.
#
# </details>
# <details><summary>Hint 3</summary>
#
# The kernel begins like `rope_kernel`: token, angles, offsets of the query. Then it calls `turn_block(q_ptr,
# q_out_ptr, offsets, mask, cos, sin, BLOCK_H, BLOCK_P)` and, inside `if tl.program_id(1) == 0:`, `turn_block(k_ptr,
# k_out_ptr, …, 1, BLOCK_P)`. The launcher makes two output tensors and returns both.
#
# </details>


# %% solution="rope_query_key"
@triton.jit
def turn_block(x_ptr, out_ptr, offsets, mask, cos, sin, ROWS: tl.constexpr, BLOCK_P: tl.constexpr):
    """Turn the pairs of a block. offsets, mask: [ROWS, 2 * BLOCK_P]; cos, sin: [BLOCK_P]."""
    ### BEGIN SOLUTION
    x = tl.load(x_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    a, b = tl.split(tl.reshape(x, (ROWS, BLOCK_P, 2)))
    y = tl.join(a * cos - b * sin, a * sin + b * cos)
    tl.store(out_ptr + offsets, tl.reshape(y, (ROWS, 2 * BLOCK_P)), mask=mask)
    ### END SOLUTION


@triton.jit
def rope_query_key_kernel(
    q_ptr, k_ptr, cos_ptr, sin_ptr, q_out_ptr, k_out_ptr, S, H, P,
    BLOCK_H: tl.constexpr, BLOCK_P: tl.constexpr,
):
    """One program: BLOCK_H heads of one token's query; the first program of a token also turns its key.

    q_ptr, q_out_ptr: [B, S, H, 2P]; k_ptr, k_out_ptr: [B, S, 2P]; cos_ptr, sin_ptr: [S, P].
    """
    ### BEGIN SOLUTION
    token = tl.program_id(0).to(tl.int64)
    offs_p = tl.arange(0, BLOCK_P)
    angle = (token % S) * P + offs_p
    cos = tl.load(cos_ptr + angle, mask=offs_p < P, other=0.0)
    sin = tl.load(sin_ptr + angle, mask=offs_p < P, other=0.0)

    offs_d = tl.arange(0, 2 * BLOCK_P)[None, :]
    offs_h = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)[:, None]
    offsets = (token * H + offs_h) * 2 * P + offs_d
    turn_block(q_ptr, q_out_ptr, offsets, (offs_h < H) & (offs_d < 2 * P), cos, sin, BLOCK_H, BLOCK_P)
    if tl.program_id(1) == 0:
        turn_block(k_ptr, k_out_ptr, token * 2 * P + offs_d, offs_d < 2 * P, cos, sin, 1, BLOCK_P)
    ### END SOLUTION


def rope_query_key(q_rope, k_rope, cos, sin):
    """RoPE of the queries and of the key that all heads share, in one launch.

    q_rope: [B, S, H, Dr]; k_rope: [B, S, Dr], same dtype; cos, sin: [S, Dr/2], float32. All contiguous.
    Returns (rotated query, rotated key), new tensors of their dtype. Launches rope_query_key_kernel once.

    The trap: the key has no head axis; its row of token b·S + s begins at (b·S + s)·Dr.
    """
    ### BEGIN SOLUTION
    B, S, H, Dr = q_rope.shape
    q_out, k_out = torch.empty_like(q_rope), torch.empty_like(k_rope)
    block_h, block_p = min(triton.next_power_of_2(H), 16), triton.next_power_of_2(Dr // 2)
    rope_query_key_kernel[(B * S, triton.cdiv(H, block_h))](
        q_rope, k_rope, cos, sin, q_out, k_out, S, H, Dr // 2, BLOCK_H=block_h, BLOCK_P=block_p, num_warps=4
    )
    return q_out, k_out
    ### END SOLUTION

# %% check="rope_query_key"
check("rope_query_key")

# %% speed="rope_query_key"
check_speed("rope_query_key")

# %% [markdown]
# ## Your code in the model
#
# The trained model of lesson 02 again, with your `rms_norm` in place of all its norms and your `rope_query_key` in all
# layers. Emulated kernels take their time, so it writes a few bytes only.

# %%
from mla_ref import playground

few = 8 if emulated else 40
playground.write("class Cache:\n    ", norm=rms_norm, rope=rope_query_key, new=few, device=device)

# %% [markdown]
# ## Why the report gained so little
#
# The report measured each fusion alone: one layer on an RTX 4090, 4 sequences of 4096 tokens (its Table 3).
#
# | fused | tokens per second | gain |
# |---|---|---|
# | nothing, DeepSeek's code | $1.53 \times 10^5$ | |
# | attention scores (lesson 05) | $2.24 \times 10^5$ | 46.23 % |
# | masked softmax (lesson 05) | $1.68 \times 10^5$ | 9.37 % |
# | RMSNorm | $1.54 \times 10^5$ | 0.25 % |
# | RoPE | $1.54 \times 10^5$ | 0.61 % |
#
# Your fused norm moves a tenth of the bytes. Why does the layer not get faster? Guess first, it is not graded: which
# share of the layer's time did the two norms take, before they were fused?

# %%
my_share = 0.10  # of the layer's time

# %% [markdown]
# The layer has H = 16 heads and latents of 512. An RTX 4090 moves 1.008 TB/s by its data sheet. DeepSeek's code
# computes RoPE with complex numbers. For the norm it calls `F.rms_norm`, which ran operation by operation in the
# report's PyTorch 2.5.1; `eager_rms_norm` stands in for it.

# %%
from mla_ref import MLAConfig


def complex_rope(x, cos, sin):
    pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * torch.complex(cos, sin)[:, None]).flatten(-2).to(x.dtype)


def traffic(function, **arguments):
    return sum(read + written for _, read, written in operations(function, **arguments))


report, gpu, batch, context = MLAConfig.preset("report"), DEVICES["rtx4090"], 4, 4096
heads, rope_width, tokens = report.num_attention_heads, report.qk_rope_head_dim, batch * context
layer = tokens / 1.53e5  # seconds
widths = [report.q_lora_rank, report.kv_lora_rank]
angles = {name: empty(context, rope_width // 2, dtype=torch.float32) for name in ("cos", "sin")}
rotated = [empty(batch, context, count, rope_width) for count in (heads, 1)]  # query, shared key
eager_norms = sum(traffic(eager_rms_norm, x=empty(tokens, width), weight=empty(width), eps=1e-6) for width in widths)
eager_ropes = sum(traffic(complex_rope, x=x, **angles) for x in rotated)

print(f"one pass of the layer: {layer * 1e3:.0f} ms; your guess for the norms: {my_share:.0%} of it\n")
print("                             eager    fused  share of layer  gain by bytes  published")
for part, eager, fused, gain in (
    ("two norms", eager_norms, 4 * tokens * sum(widths), "0.25%"),
    ("RoPE, query and key", eager_ropes, 4 * tokens * (heads + 1) * rope_width, "0.61%"),
):
    share, saved = (count / gpu.bandwidth() / layer for count in (eager, eager - fused))
    print(f"{part:26} {eager / 1e9:4.2f} GB  {fused / 1e9:4.2f} GB {share:15.2%} {saved / (1 - saved):14.2%}"
          f" {gain:>10}")
scores = batch * heads * context**2
print(f"\nattention scores: {scores / 1e9:.2f} G numbers; "
      f"writing them once in 16 bits and reading them back moves {4 * scores / 1e9:.1f} GB")

# %% [markdown]
# A part that takes less than one percent of the time cannot gain more than about one percent, however fast it becomes.
# By bytes both gains are a fraction of a percent, as published. The scores are the large tensor here: a single pass
# over them moves several times the bytes of both norms.
#
# In a decode step the shares are others: there is one token, no score matrix, and every launch counts. For 128
# sequences on an H100, in a CUDA graph, with the data in the L2 (`benchmarks/norm_rope_h100.json`):
#
# | | eager, µs | fused, µs |
# |---|---|---|
# | RMSNorm of the latent, R = 512 | {{step_norm_eager_us}} | {{step_norm_us}} |
# | RoPE of query and key, H = 128 | {{eager_graph_us}} | {{one_graph_us}} |
#
# That saves {{saved_us}} µs per layer and step. The attention of that step over 4096 tokens takes {{attention_us}} µs
# in DeepSeek's kernel FlashMLA, on the same kind of GPU. So the two fusions save more than a
# fifth{{!more_than_a_fifth}} of what the attention of a decode step takes.

# %% [markdown]
# ## What you have now
#
# - Four kernels. Three of them wait for memory at full size; the fourth takes less time than launching it.
# - A way to know a kernel's speed without the GPU: count what it must move, count what it does move, and look at what
#   the compiler made of it.
# - The rule of the next lessons: find the largest tensor that is written and read again, and do not write it. For
#   attention that is the scores. Lesson 05 fuses them.
#
# <details><summary><b>Appendix: what the model cannot see, and what was seen in the field</b></summary>
#
# **How good is the model?** {{cases}} measurements of fast and slow kernels on an H100 were halved at random,
# {{splits}} times. With constants fitted to one half, the modelled time is off by {{median_error}} % in the median on
# the other, and the order of the variants of one kernel has a rank correlation of {{spearman}} (1 would be the same
# order). Both are the median of the {{splits}}. With the grader's constants, fitted to both halves, no pair of
# variants{{!none_inverted}} is measured a factor of two apart and modelled in the wrong order, and times on an H200, to
# which nothing is fitted, are off by {{other_error}} % (`benchmarks/model_validation.json`). The model knows nothing of
#
# - **bank conflicts**: shared memory has 32 banks, and threads that want the same bank wait for each other;
# - **crowds**: many atomic additions to the same address wait for each other;
# - **the order of programs**: what several programs read is taken to come from memory once, also where it has left the
#   cache before the last of them reads it;
# - **the clock**: a GPU slows down when it gets hot or draws too much power;
# - **the host**: the time that Python takes between two launches. For the one launch of the decode step above, the
#   launcher of the reference took {{host_us}} µs outside a CUDA graph, more than the kernel
#   itself{{!longer_than_the_kernel}}.
#
# **Squares in float16.** The report's RMSNorm kernel squares in the dtype of its input. From 256 on the square of a
# float16 is infinite, and the row becomes zero.
#
# **Loaded only once?** Section 3.2.3 of the report tiles a row into segments, makes two passes over it, and says that
# each element is loaded from memory only once. Two passes with one load are possible only if the row fits into one
# block, as in your kernel. A loop over segments loads the row twice, the second time from a cache at best. Measured on
# an H100 with 16384 rows of 7168: {{one_block_us}} µs in one block, {{loop_us}} µs in a loop over segments of 1024
# (`benchmarks/model_measured.json`).
#
# **Every other number.** Liger-Kernel's `llama4_rope` loads the even and the odd elements apart, one head per program.
# It took {{llama4_us}} µs for the query and key above, in place. Its kernel for half rotation, where both elements of a
# pair lie in runs of neighbours, took {{halves_us}} µs (`benchmarks/norm_rope_h100.json`).
#
# **Offsets of 32 bits.** `tl.program_id` is a 32-bit number, and so is its product with a row's width: from $2^{31}$
# elements on it wraps, and the kernel writes somewhere else. For 7168 columns that is row 299593. An RMSNorm kernel of
# Liger-Kernel did so (Liger-Kernel #1483). The remedy is `.to(tl.int64)` on the program id.
# Do not put it on an argument: Triton makes an argument of value 1 a constant, and that has no `.to`.
#
# **Fusing further.** FlashInfer's `mla_rope_quantize_fp8` rotates query and key and converts all four parts to 8 bits
# in one kernel. A change proposed for vLLM normalises both latents and quantises the query's in one kernel: 8.04 µs
# before, 4.80 µs after, per layer in decoding, on AMD GPUs (vllm #54857).
#
# </details>
#
# Figures: {{records}}.
