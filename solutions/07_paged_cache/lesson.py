# %% [markdown]
# # Lesson 07: paged cache
#
# The caches of lessons 01 and 02 reserve memory for every sequence, up to a longest length. Here a sequence gets
# memory when it has tokens to put there, a **page** at a time. You write the manager of pages, token by token;
# its two slow parts as kernels, update and gather; and a decode kernel that reads the pages where they are. Allow
# five hours: one to read, four for the exercises.
#
# | exercise | you write | points right | points fast |
# |---|---|---|---|
# | `predict_pages` | pages, and what they save | 2 | |
# | `BasicPagedCache` | a manager of pages, one token at a time | 4 | |
# | `token_offsets` | where a token lies: the arithmetic, as a kernel | 3 | |
# | `paged_update` | new tokens of all sequences into their pages | 3 | 2 |
# | `paged_gather` | the tokens of all sequences back into rows | 3 | 2 |
# | `paged_decode` | the decode kernel of lesson 06, from pages | 4 | 3 |
#
# Each exercise may take 10 s and 512 MiB for all its cases. Speed is that of an H100. B, S, T: sequences, new
# tokens of each, tokens of context. H: heads, 128 in DeepSeek-V3. R, Dr: width of the latent, 512, and of the key
# with position (RoPE), 64. So a cached token has 576 words, 1152 bytes in 16 bits. The source is the report
# *Optimizing Multi-head Latent Attention for Efficient Inference* ("the report"), sections 3.3, 4.3 and 5.2.

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
# ## Why: reserved for the longest
#
# MMLU is a test of 14,042 questions. Kimi K2, a model with MLA, answered them; the next cell has quantiles of the
# tokens of question and reply. (Its record `kimik2_mmlu.json` does not name an author.) A reply ends
# by itself or after 16,384 tokens; one did the latter. Take a batch of 32, with lengths drawn between these
# quantiles. Nobody knows beforehand which sequence will be long, so a contiguous cache has room for 16,567 tokens
# in every row.

# %%
import random

import numpy as np
from mla_ref import plots

QUANTILES = {0: 65, 10: 87, 25: 105, 50: 169, 75: 315, 90: 486, 99: 943, 100: 16567}  # per cent: tokens


def draw_length(rng):
    """A random length: between two quantiles all lengths are equally likely."""
    return round(np.interp(rng.uniform(0, 100), list(QUANTILES), list(QUANTILES.values())))


rng = random.Random(7)
capacity, lengths = max(QUANTILES.values()), [draw_length(rng) for _ in range(32)]
megabytes = {"reserved": 32 * capacity * 1152 / 1e6, "in use": sum(lengths) * 1152 / 1e6}
plots.bars(megabytes, unit="MB, a layer of DeepSeek-V3 in 16 bits", title="A contiguous cache for 32 sequences")

# %% [markdown]
# About 1 % of what is reserved holds a token. DeepSeek-V3 has 61 layers, so this batch reserves 37 GB. The cost
# is the sequences that could have run beside these.
#
# ## Pages
#
# An operating system has the same problem with its processes. Its answer: cut the memory into pages of one size,
# give a process any free page when it needs one, and keep a table that says which.
#
# - The **pool** holds `num_pages` pages of `page_size` tokens each. Room for one token in a page is a **slot**.
# - The **block table** has a row for each sequence. Entry 0 of the row is the number of the page with the
#   sequence's first `page_size` tokens, entry 1 that of the next page, and so on.
# - Page numbers that nobody holds are in the **free pool**.

# %%
plots.page_table([[5, 0, 9], [2, 7], [11]], [10, 8, 1], page_size=4, num_pages=12, title="block table")

# %% [markdown]
# The small number beside a page is its own. A sequence wastes at most the empty slots of its last page.
#
# ## Predict: pages and savings
#
# The report counts like this (its equations 17 to 19):
#
# $$\text{saving} = 1 - \frac{\text{used pages} \times \text{page size}}
# {\text{max batch size} \times \text{max sequence length}}$$
#
# The denominator is what a contiguous cache reserves. A page belongs to one sequence (for now), and counts whole.
#
# <details><summary>Hint 1</summary>
#
# A sequence of n tokens needs n / page_size pages, rounded up. A sequence of 0 tokens needs none.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `-(-n // page_size)` rounds up in integers. Sum it over the sequences; rounding up the sum is something else.
#
# </details>
# <details><summary>Hint 3</summary>
#
# With `slots = pages * page_size`: `empty_slots` is `slots - sum(lengths)`, and `page_bytes` is `slots * (512 + 64) *
# 2`. Seven lines at most.
#
# </details>

# %% solution="predict_pages"
def predict_pages(lengths, page_size, max_batch, max_seq_len):
    """What a paged cache takes, beside a contiguous one, for a layer with R = 512, Dr = 64 in 16 bits.

    lengths: list of int, tokens of each sequence, 0 or more; page_size: int; max_batch, max_seq_len: int, what the
    contiguous cache reserves for.

    Returns a dict of numbers:
      pages               used, by all sequences
      empty_slots         slots of these pages without a token
      saving              equation 17, as a fraction, not in per cent
      page_bytes          of the used pages, with their empty slots
      preallocated_bytes  of the contiguous cache

    The trap: pages are rounded up for each sequence.
    """
    ### BEGIN SOLUTION
    pages = sum(-(-n // page_size) for n in lengths)
    slots, preallocated = pages * page_size, max_batch * max_seq_len
    return {
        "pages": pages,
        "empty_slots": slots - sum(lengths),
        "saving": 1 - slots / preallocated,
        "page_bytes": slots * (512 + 64) * 2,
        "preallocated_bytes": preallocated * (512 + 64) * 2,
    }
    ### END SOLUTION


# %% check="predict_pages"
check("predict_pages")

# %% [markdown]
# Which page size? Small pages waste few slots, and need long tables. The batch from above:

# %%
print("page size   empty slots   table entries        MB")
for size in (1, 16, 64, 256, 1024):
    p = predict_pages(lengths, size, 32, capacity)
    waste = p["empty_slots"] / (p["pages"] * size)
    print(f"{size:9} {waste:12.0%} {p['pages']:15,} {p['page_bytes'] / 1e6:9.1f}")
print(f"contiguous {1 - sum(lengths) / (32 * capacity):11.0%} {p['preallocated_bytes'] / 1e6:25.1f}")

# %% [markdown]
# A table entry of 4 bytes stands for 18 kB of cache with pages of 16, and for 74 kB with pages of 64. The
# report's pages of 1024 are longer than any of these sequences.
#
# ## Predict: the report's Table 4
#
# The report fills B sequences with L tokens each, and compares with 32 sequences of 16,384 tokens. Its pages have
# 1024 tokens. Before you run the next cell: what does `predict_pages` say for B = 4, L = 512? Why is it the same
# for L = 1024?

# %%
PRINTED = "{{printed}}"

pool = math.ceil(32 * 16384 / 1024 * 1.1)
print(f"pages: 32 × 16384 tokens are {32 * 16384 // 1024}, the report's pool has {pool}\n")
print(" B     L   pages   equations 17-19   against its pool   printed")
for (B, L), printed in PRINTED.items():
    p = predict_pages([L] * B, 1024, 32, 16384)
    against_pool = 100 * (1 - p["pages"] / pool)
    print(f"{B:2} {L:5} {p['pages']:7} {100 * p['saving']:15.2f} % {against_pool:16.2f} % {printed:7.2f} %")

# %% [markdown]
# The printed numbers are those of the column "against its pool"{{!every_digit}}; none is in the column of the
# equations. The report's public code makes a pool of 564 pages, 512 × 1.1 rounded up. Its saving is the
# share of *that pool* which is not in use.
#
# But that pool exists whole from the start. These are the bytes that CUDA's allocator has given out for each kind
# of cache with B = 4, L = 512, measured on an H100 (`benchmarks/paged_h100.json`, `memory`):

# %%
HELD = "{{held}}"
plots.bars({name: size / 1e6 for name, size in HELD.items()}, unit="MB, log scale", log=True, title="Held, one layer")

# %% [markdown]
# The pool that saves 99.29 % of itself holds 10 % more than the contiguous cache{{!ten_more}}. It saves only if
# something else uses its free pages. A pool that grows with its tokens holds {{growing_share}} % of the
# contiguous one, with pages of 64 half of that{{!half_of_that}}: 512 tokens fill only half of a page of 1024.
# vLLM, a serving engine, does not grow: it takes a fixed share of the GPU's memory at the start and makes pages
# of it, and the number of pages decides how many sequences run.

# %% [markdown]
# ## Build: the basic manager
#
# The report begins with a table for each sequence and a free pool, in Python, and copies one token at a time. So
# do you.
#
# ## Exercise: BasicPagedCache
#
# Position p of a sequence lies in slot `p % page_size` of page `table[p // page_size]`. A page is taken when the
# first token for it arrives, and not before. `free` gives all pages of a sequence back.
#
# Two calls are refused with a ValueError, and a refused call changes nothing:
#
# - `append`, if the free pool has too few pages for *all* its tokens;
# - `free` of a sequence that holds nothing. A second `free` is a bug of the caller. If it were accepted, the same
#   page could be in the free pool twice, and later two sequences would write to it.
#
# A sequence **holds nothing** while it has no tokens: before its first append, after an append of 0 tokens or one
# that was refused, and after `free`.
#
# The grader compares what the calls return, and counts the bytes that they write: no append copies tokens that lie in
# their pages.
#
# <details><summary>Hint 1</summary>
#
# Keep two dictionaries, from sequence to its list of pages and to its length, and a list or set of free pages.
#
# </details>
# <details><summary>Hint 2</summary>
#
# In `append` do the arithmetic first: `needed = -(-(length + n) // page_size) - len(pages)`. Raise if the free pool has
# fewer. Only then take pages. With pages in place, a loop over the tokens copies.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `entry, slot = divmod(position, page_size)` finds a token. `read` walks from 0 to the length and copies the other way.
# For length 0 it has nothing to stack: begin with `new_empty(length, R)`. A refused `append` must not have made an
# entry for its sequence (`setdefault` would), and `table` hands out a copy, `list(pages)`.
#
# </details>

# %% solution="BasicPagedCache"
class BasicPagedCache:
    """Latents and rotated keys of any number of sequences, in pages of one pool."""

    def __init__(self, num_pages, page_size, R, Dr):
        """Make an empty pool: [num_pages, page_size, R] and [num_pages, page_size, Dr], float32."""
        ### BEGIN SOLUTION
        self.page_size = page_size
        self.c_kv = torch.zeros(num_pages, page_size, R)
        self.k_rope = torch.zeros(num_pages, page_size, Dr)
        self.free_pages = list(reversed(range(num_pages)))
        self.tables = {}
        self.lengths = {}
        ### END SOLUTION

    def used_pages(self):
        """Return how many pages the sequences hold (an int)."""
        ### BEGIN SOLUTION
        return len(self.c_kv) - len(self.free_pages)
        ### END SOLUTION

    def table(self, sequence):
        """Return the page numbers of a sequence in the order of its tokens: a list that later calls do not change.

        `[]` if the sequence holds nothing."""
        ### BEGIN SOLUTION
        return list(self.tables.get(sequence, []))
        ### END SOLUTION

    def append(self, sequence, c_kv, k_rope):
        """Write n new tokens behind those that the sequence holds.

        Parameters
        ----------
        sequence : int
            Any number; a sequence that holds nothing begins at position 0.
        c_kv, k_rope : [n, R], [n, Dr]

        Raises
        ------
        ValueError
            The free pool has too few pages for all n. Nothing has changed then.
        """
        ### BEGIN SOLUTION
        pages, length = self.table(sequence), self.lengths.get(sequence, 0)
        needed = -(-(length + len(c_kv)) // self.page_size) - len(pages)
        if needed > len(self.free_pages):
            raise ValueError(f"{needed} pages needed, {len(self.free_pages)} free")
        pages += [self.free_pages.pop() for _ in range(needed)]
        for s in range(len(c_kv)):
            entry, slot = divmod(length + s, self.page_size)
            self.c_kv[pages[entry], slot] = c_kv[s]
            self.k_rope[pages[entry], slot] = k_rope[s]
        self.tables[sequence], self.lengths[sequence] = pages, length + len(c_kv)
        ### END SOLUTION

    def read(self, sequence):
        """Return copies of all tokens of a sequence, [length, R] and [length, Dr]; length 0 if it holds nothing."""
        ### BEGIN SOLUTION
        pages, length = self.table(sequence), self.lengths.get(sequence, 0)
        c_kv, k_rope = (x.new_empty(length, x.shape[-1]) for x in (self.c_kv, self.k_rope))
        for s in range(length):
            entry, slot = divmod(s, self.page_size)
            c_kv[s] = self.c_kv[pages[entry], slot]
            k_rope[s] = self.k_rope[pages[entry], slot]
        return c_kv, k_rope
        ### END SOLUTION

    def free(self, sequence):
        """Forget a sequence and give its pages back. Raises ValueError if it holds nothing."""
        ### BEGIN SOLUTION
        if not self.lengths.get(sequence):
            raise ValueError(f"sequence {sequence} holds nothing")
        self.free_pages += self.tables.pop(sequence)
        del self.lengths[sequence]
        ### END SOLUTION


# %% check="BasicPagedCache"
check("BasicPagedCache")

# %% [markdown]
# Watch it at work, on 12 pages of 4 tokens. Each step below appends tokens to a sequence, or frees one. The last
# append asks for more than there is.

# %%
SCRIPT = [
    ("append", 0, 6), ("append", 1, 9), ("append", 0, 2), ("append", 2, 5), ("append", 1, 4), ("free", 0),
    ("append", 3, 11), ("append", 2, 4), ("free", 1), ("append", 0, 7), ("append", 3, 2), ("append", 2, 30),
]  # fmt: skip


def play(script, num_pages=12, page_size=4):
    """The state after each step: its title, tables and lengths."""
    cache, states = BasicPagedCache(num_pages, page_size, 1, 1), []
    for number, (what, sequence, *n) in enumerate(script, 1):
        title = f"step {number}: {what} sequence {sequence}" + "".join(f", {count} tokens" for count in n)
        try:
            if what == "free":
                cache.free(sequence)
            else:
                cache.append(sequence, torch.zeros(*n, 1), torch.zeros(*n, 1))
        except ValueError:
            title += ": refused"
        states.append((title, [cache.table(b) for b in range(4)], [len(cache.read(b)[0]) for b in range(4)]))
    return states


def show_step(step):
    title, tables, lengths = play(SCRIPT)[step - 1]
    return plots.page_table(tables, lengths, page_size=4, num_pages=12, title=title)


show_step(5)

# %%
show_step(11)

# %% [markdown]
# Pages have changed hands by step 11, and no slot is lost but in last pages. (Which page is whose depends on your
# free pool.) `show_step(1)` to `show_step(12)` show the other steps. Look for three things: an append that needs
# no page, a step after which old pages have new owners, and what the refused step leaves.

# %%
try:
    from IPython.display import display
    from ipywidgets import IntSlider, interact
except ImportError:
    print("no ipywidgets here: call show_step(step) with 1 to 12 instead")
else:
    slider = IntSlider(value=7, min=1, max=len(SCRIPT), description="step", continuous_update=False)
    interact(lambda step: display(show_step(step)), step=slider)

# %% [markdown]
# ## Where a token lies
#
# Kernels cannot use dictionaries. For them the block table is an int32 tensor [B, max_pages], a row for each
# sequence, and the pool is one piece of memory. Position $p$ of sequence $b$ is found in four steps:
#
# $$\text{entry} = \lfloor p / \text{page size} \rfloor, \quad \text{slot} = p \bmod \text{page size}, \quad
# \text{page} = \text{table}[b, \text{entry}],$$
# $$\text{offset} = \text{page} \cdot \text{page stride} + \text{slot} \cdot \text{width}.$$
#
# The offset is counted in words from the beginning of the pool, and width is R or Dr. The **page stride** is the
# distance between the beginnings of two neighbouring pages, in words. That is page size · width, or more: a pool may
# hold the pages of several layers side by side, and one layer is then a view of it. PyTorch knows the number,
# `c_kv_pages.stride(0)`.
#
# New token s of sequence b is at position `starts[b] + s`, where `starts[b]` is how many tokens the sequence
# holds already. vLLM computes once per step where each new token goes. It calls this the **slot mapping**.
#
# What a row of the table holds behind the pages in use has no meaning: −1, old pages, pages of others. It must
# never lead to an access.
#
# One line of this arithmetic has a trap. How many tokens of 512 words can a pool have, with every offset still in an
# int32, which has 31 bits and a sign? Say a number before you run the cell.

# %%
print(f"{2**31 // 512:,} tokens, {2**31 * 2 / 1e9:.1f} GB in 16 bits")
page = torch.tensor([65_535, 65_536, 150_000], dtype=torch.int32)  # pages of 64 tokens
print("int32:", (page * 64 * 512).tolist())
print("int64:", (page.long() * 64 * 512).tolist())

# %% [markdown]
# The int32 products wrap around without a word, to negative numbers or, worse, to positive ones. On a GPU with
# 80 GB a pool of one layer can be that large. Tests with small pools never see it. So this exercise asks for
# offsets, not for tokens: a pool of ten million tokens is then only numbers. In the next exercises the grader
# puts a few pages so far apart that the last begins beyond $2^{31}$ words. What lies between them costs no
# memory.
#
# ## Exercise: token_offsets
#
# | | shape | dtype |
# |---|---|---|
# | `block_table` | [B, max_pages], contiguous | int32 |
# | `starts`, `lengths` | [B]: position of the first new token, and how many of the S tokens are real, 0 to S | int32 |
# | `S`, `page_size`, `page_stride`, `width` | any numbers from 1 on | int |
# | returns | [B, S], the offset of each token's first word; −1 for tokens that are not real | int64 |
#
# The blocks of this kernel have one axis: one program takes a block of tokens of one sequence.
#
# <details><summary>Hint 1</summary>
#
# A program takes `BLOCK_S` tokens of one sequence, so the grid is `(triton.cdiv(S, BLOCK_S), B)`. The formula has four
# steps, and each is a line. Which tokens of the block are real is a mask.
#
# </details>
# <details><summary>Hint 2</summary>
#
# The look-up is the load that needs the mask: a token that is not real may lie behind its row. `other=0` gives it some
# page. A page is int32 when it comes. Which product must not be?
#
# </details>
# <details><summary>Hint 3</summary>
#
# `.to(tl.int64)` belongs directly behind the load. At the end there are two masks: `tl.where` chooses between offset
# and −1 by the one, the store takes the other, `offs_s < S`. Eight lines in all.
#
# </details>

# %% solution="token_offsets"
@triton.jit
def token_offsets_kernel(
    table_ptr, starts_ptr, lengths_ptr, offsets_ptr, S, max_pages, page_size, page_stride, width,
    BLOCK_S: tl.constexpr,
):
    """One program: BLOCK_S new tokens of one sequence.

    table_ptr: [B, max_pages]; starts_ptr, lengths_ptr: [B]; offsets_ptr: [B, S].
    """
    ### BEGIN SOLUTION
    b = tl.program_id(1).to(tl.int64)
    offs_s = tl.program_id(0) * BLOCK_S + tl.arange(0, BLOCK_S)
    real = offs_s < tl.load(lengths_ptr + b)
    position = tl.load(starts_ptr + b) + offs_s
    page = tl.load(table_ptr + b * max_pages + position // page_size, mask=real, other=0).to(tl.int64)
    offset = page * page_stride + position % page_size * width
    tl.store(offsets_ptr + b * S + offs_s, tl.where(real, offset, -1), mask=offs_s < S)
    ### END SOLUTION


def token_offsets(block_table, starts, lengths, S, page_size, page_stride, width):
    """Where the first word of each new token lies in its pool, in one launch.

    block_table: [B, max_pages], int32, contiguous; starts, lengths: [B], int32; S, page_size, page_stride, width: int.
    Returns offsets [B, S], int64; -1 for tokens s >= lengths[b]. Launches token_offsets_kernel.

    The traps: page * page_stride in int32; entries that no real token needs have no meaning.
    """
    ### BEGIN SOLUTION
    B, max_pages = block_table.shape
    offsets = torch.empty((B, S), dtype=torch.int64, device=block_table.device)
    token_offsets_kernel[(triton.cdiv(S, 64), B)](
        block_table, starts, lengths, offsets, S, max_pages, page_size, page_stride, width, BLOCK_S=64
    )
    return offsets
    ### END SOLUTION


# %% check="token_offsets"
check("token_offsets")

# %% [markdown]
# ## Exercise: paged_update
#
# Now the tokens themselves: one launch writes the new tokens of all sequences, latent and key. In a prefill these
# are S tokens of each sequence, in a decode step one. Sequences differ in where they begin (`starts`) and in how
# many of the S tokens are theirs (`lengths`); the rest is padding.
#
# | | shape | dtype |
# |---|---|---|
# | `c_kv`, `k_rope` | [B, S, R], [B, S, Dr], contiguous | float16 or bfloat16 |
# | `c_kv_pages` | [num_pages, page_size, R], written in place | that of the tokens |
# | `k_rope_pages` | [num_pages, page_size, Dr], written in place | that of the tokens |
# | `block_table`, `starts`, `lengths` | as in `token_offsets`; every real token has a page, no page is shared | int32 |
# | returns | `c_kv_pages`, `k_rope_pages`: the same tensors | |
#
# R and Dr are powers of two, `page_size` is any number from 1 on. The tokens of a page lie side by side, and
# pages lie `stride(0)` words apart, here and in the exercises that follow. So a pool of which the pages lie far apart
# has no `.view(-1, R)`, and `.reshape(-1, R)` makes a copy, in which what a kernel writes is lost. The manager on the
# host has taken the pages before.
#
# **Points for speed.** The case is B = 16, S = 4096, R = 512, Dr = 64, pages of 64 in random order. The floor
# reads every new token once and writes it once. Half of the points: 0.4 of the floor's speed. All: 0.65 of it,
# and 1.5 times the speed of PyTorch's `index_put`.
#
# <details><summary>Hint 1</summary>
#
# A program takes a few tokens of one sequence, all R and Dr columns. The arithmetic is that of `token_offsets`, once
# with R and once with Dr for the width, and with a page stride for each pool.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `page` and `slot` are blocks of [BLOCK_S], and so is where a token begins in a pool. With `[:, None]` on it and
# `[None, :]` on the columns it becomes a block with two axes, as in lesson 04. The new tokens lie in rows b · S + s,
# in int64 as well: with more than 128 sequences of 32,768 tokens they have more than $2^{31}$ words. Loads and
# stores have one mask. Load both parts before you store one: the kernel then waits once.
#
# </details>
# <details><summary>Hint 3</summary>
#
# 4 tokens for each program are 2048 words of latent, 16 for each of the 128 threads of 4 warps: two loads of 16 bytes.
# 16 or 64 tokens are as good here; 1 is slower. But for S = 1 take no more than 1,
# `min(triton.next_power_of_2(S), 4)`. 12 to 16 lines for the kernel.
#
# </details>

# %% solution="paged_update"
@triton.jit
def paged_update_kernel(
    c_kv_ptr, k_rope_ptr, c_pages_ptr, k_pages_ptr, table_ptr, starts_ptr, lengths_ptr,
    S, max_pages, page_size, c_stride, k_stride, R: tl.constexpr, DR: tl.constexpr, BLOCK_S: tl.constexpr,
):
    """One program: BLOCK_S new tokens of one sequence.

    c_kv_ptr: [B, S, R]; k_rope_ptr: [B, S, DR]; c_pages_ptr, k_pages_ptr: pages of [page_size, R] and [page_size, DR],
    c_stride and k_stride words apart; table_ptr: [B, max_pages]; starts_ptr, lengths_ptr: [B].
    """
    ### BEGIN SOLUTION
    b = tl.program_id(1).to(tl.int64)
    offs_s = tl.program_id(0) * BLOCK_S + tl.arange(0, BLOCK_S)
    offs_r, offs_d = tl.arange(0, R), tl.arange(0, DR)
    real = offs_s < tl.load(lengths_ptr + b)
    position = tl.load(starts_ptr + b) + offs_s
    page = tl.load(table_ptr + b * max_pages + position // page_size, mask=real, other=0).to(tl.int64)
    slot = position % page_size
    c_row, k_row = page * c_stride + slot * R, page * k_stride + slot * DR
    # [BLOCK_S, R] and [BLOCK_S, DR]
    c_kv = tl.load(c_kv_ptr + (b * S + offs_s)[:, None] * R + offs_r[None, :], mask=real[:, None])
    k_rope = tl.load(k_rope_ptr + (b * S + offs_s)[:, None] * DR + offs_d[None, :], mask=real[:, None])
    tl.store(c_pages_ptr + c_row[:, None] + offs_r[None, :], c_kv, mask=real[:, None])
    tl.store(k_pages_ptr + k_row[:, None] + offs_d[None, :], k_rope, mask=real[:, None])
    ### END SOLUTION


def paged_update(c_kv, k_rope, c_kv_pages, k_rope_pages, block_table, starts, lengths):
    """Write new tokens of all sequences into their pages, in one launch.

    c_kv: [B, S, R]; k_rope: [B, S, Dr], contiguous; c_kv_pages: [num_pages, page_size, R]; k_rope_pages: [num_pages,
    page_size, Dr], pages stride(0) apart; float16 or bfloat16; R and Dr are powers of two. block_table: [B, max_pages];
    starts, lengths: [B]; int32. Token s < lengths[b] of sequence b goes to position starts[b] + s.
    Returns c_kv_pages and k_rope_pages, written in place. Launches paged_update_kernel.

    The traps: padding must not be written; a page ends in the middle of a block of tokens; b * S + s in int32
    (no case is so large that it wraps).
    """
    ### BEGIN SOLUTION
    (B, S, R), Dr = c_kv.shape, k_rope.shape[-1]
    block_s = min(triton.next_power_of_2(S), 4)
    paged_update_kernel[(triton.cdiv(S, block_s), B)](
        c_kv, k_rope, c_kv_pages, k_rope_pages, block_table, starts, lengths,
        S, block_table.shape[1], c_kv_pages.shape[1], c_kv_pages.stride(0), k_rope_pages.stride(0),
        R=R, DR=Dr, BLOCK_S=block_s, num_warps=4,
    )
    return c_kv_pages, k_rope_pages
    ### END SOLUTION


# %% check="paged_update"
check("paged_update")

# %% speed="paged_update"
check_speed("paged_update")

# %% [markdown]
# A page serves like any other memory: the table costs a load of 4 bytes for each token, which the L1 cache
# answers for its neighbours. (The {{launch_us}} µs of launching are the GPU's part, with the host far ahead.)
#
# ## Exercise: paged_gather
#
# The way back: tokens 0 to `lengths[b]` − 1 of each sequence into a contiguous tensor, for an attention that
# knows nothing of pages.
#
# | | shape | dtype |
# |---|---|---|
# | `c_kv_pages`, `k_rope_pages` | [num_pages, page_size, R], [num_pages, page_size, Dr] | float16 or bfloat16 |
# | `block_table`, `lengths` | [B, max_pages], [B] | int32 |
# | `T` | at least the longest length; it may be more than a row of the table covers | int |
# | returns `c_kv`, `k_rope` | [B, T, R], [B, T, Dr]; 0 behind a sequence's length | that of the pages |
#
# The last page of a sequence has slots behind its last token. They may hold tokens of whoever had the page
# before, or NaN: they must not come along.
#
# **NaN here.** Two things give NaN in the emulator: a place of the result that no program wrote, and a place that
# a mask left out of a load without `other`. (On a GPU both hold whatever was there.) In `paged_update` the second
# went nowhere, since the store had the same mask. Here, and in `paged_decode`, such values are used: load with
# `other=0.0`.
#
# **Points for speed.** The case is B = 16, T = 4096, and otherwise as for `paged_update`. Half of the points: 0.4
# of the floor's speed. All: 0.65 of it, and 1.5 times the speed of PyTorch, which indexes whole pages with the
# table and puts zeros behind the lengths.
#
# <details><summary>Hint 1</summary>
#
# The kernel is `paged_update` with loads and stores exchanged, and no start.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Two masks. Loads, from the table as well, take `real = offs_n < length`. Stores take `offs_n < T`, so that the zeros
# of `other=0.0` are written too.
#
# </details>
# <details><summary>Hint 3</summary>
#
# The line that looks up the page, and those for the rows in the pools, are those of your update with `offs_n` for the
# position. What is new are the rows to write, b · T + t, and that the two masks differ. The row in int64 as well: with
# T = 32,768 and more than 128 sequences the output has more than $2^{31}$ words. Tokens and warps as before.
#
# </details>

# %% solution="paged_gather"
@triton.jit
def paged_gather_kernel(
    c_pages_ptr, k_pages_ptr, table_ptr, lengths_ptr, c_kv_ptr, k_rope_ptr,
    T, max_pages, page_size, c_stride, k_stride, R: tl.constexpr, DR: tl.constexpr, BLOCK_N: tl.constexpr,
):
    """One program: BLOCK_N positions of one sequence.

    c_pages_ptr, k_pages_ptr: pages of [page_size, R] and [page_size, DR], c_stride and k_stride words apart;
    table_ptr: [B, max_pages]; lengths_ptr: [B]; c_kv_ptr: [B, T, R]; k_rope_ptr: [B, T, DR].
    """
    ### BEGIN SOLUTION
    b = tl.program_id(1).to(tl.int64)
    offs_n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    offs_r, offs_d = tl.arange(0, R), tl.arange(0, DR)
    real = offs_n < tl.load(lengths_ptr + b)
    page = tl.load(table_ptr + b * max_pages + offs_n // page_size, mask=real, other=0).to(tl.int64)
    slot = offs_n % page_size
    c_row, k_row = page * c_stride + slot * R, page * k_stride + slot * DR
    # [BLOCK_N, R] and [BLOCK_N, DR]
    c_kv = tl.load(c_pages_ptr + c_row[:, None] + offs_r[None, :], mask=real[:, None], other=0.0)
    k_rope = tl.load(k_pages_ptr + k_row[:, None] + offs_d[None, :], mask=real[:, None], other=0.0)
    tl.store(c_kv_ptr + (b * T + offs_n)[:, None] * R + offs_r[None, :], c_kv, mask=offs_n[:, None] < T)
    tl.store(k_rope_ptr + (b * T + offs_n)[:, None] * DR + offs_d[None, :], k_rope, mask=offs_n[:, None] < T)
    ### END SOLUTION


def paged_gather(c_kv_pages, k_rope_pages, block_table, lengths, T):
    """Copy the tokens of all sequences out of their pages, in one launch.

    c_kv_pages: [num_pages, page_size, R]; k_rope_pages: [num_pages, page_size, Dr], pages stride(0) apart; float16 or
    bfloat16; R and Dr are powers of two. block_table: [B, max_pages], int32; lengths: [B], int32, 0 to T; T: int.
    Returns c_kv [B, T, R] and k_rope [B, T, Dr], 0 behind lengths[b]. Launches paged_gather_kernel.

    The traps: the slots behind the last token; T may be more than max_pages * page_size; b * T + t in int32
    (no case is so large that it wraps).
    """
    ### BEGIN SOLUTION
    (_, page_size, R), Dr, B = c_kv_pages.shape, k_rope_pages.shape[-1], len(block_table)
    c_kv, k_rope = (x.new_empty(B, T, x.shape[-1]) for x in (c_kv_pages, k_rope_pages))
    block_n = min(triton.next_power_of_2(T), 4)
    paged_gather_kernel[(triton.cdiv(T, block_n), B)](
        c_kv_pages, k_rope_pages, block_table, lengths, c_kv, k_rope,
        T, block_table.shape[1], page_size, c_kv_pages.stride(0), k_rope_pages.stride(0),
        R=R, DR=Dr, BLOCK_N=block_n, num_warps=4,
    )
    return c_kv, k_rope
    ### END SOLUTION


# %% check="paged_gather"
check("paged_gather")

# %% speed="paged_gather"
check_speed("paged_gather")

# %% [markdown]
# What update writes, gather must bring back, whatever the pages. The next cell appends to three sequences in chunks
# of several sizes, through a table in random order, and compares.

# %%
torch.manual_seed(7)
B, R, Dr, page_size, max_pages = 3, 32, 16, 4, 8
table = torch.randperm(B * max_pages).view(B, max_pages).to(torch.int32).to(device)
pages = [torch.zeros(B * max_pages, page_size, width, dtype=torch.float16, device=device) for width in (R, Dr)]
held, kept = torch.zeros(B, dtype=torch.int32, device=device), [[] for _ in range(B)]
for chunk in ((5, 0, 3), (1, 1, 1), (7, 2, 4), (1, 1, 0)):
    new = [torch.randn(B, max(chunk), width).half().to(device) for width in (R, Dr)]
    counts = torch.tensor(chunk, dtype=torch.int32, device=device)
    paged_update(*new, *pages, table, held, counts)
    held += counts
    for b, n in enumerate(chunk):
        kept[b].append(new[0][b, :n])
c_kv, _ = paged_gather(*pages, table, held, T=16)
same = [torch.equal(c_kv[b, : held[b]], torch.cat(kept[b])) for b in range(B)]
print("lengths", held.tolist(), "all tokens came back:", all(same))

# %%
plots.page_table(
    [row[: -(-n // page_size)] for row, n in zip(table.tolist(), held.tolist(), strict=True)],
    held.tolist(), page_size, B * max_pages, title="what the kernels filled",
)  # fmt: skip

# %% [markdown]
# ## Predict: what a gather costs
#
# Decode reads each cached byte once. A gather in front of it reads the byte too, and writes it. For B = 128 and T =
# 4096 a layer's cache has 604 MB. How long does a step take at least, without and with a gather, at the 3.35 TB/s of an
# H100's data sheet? And how long was each by the clock? Put down four numbers, then run. (H = 16, pages of 64 in random
# order, the reference's kernels.)

# %%
STEP_US = "{{step_us}}"  # on an H100, from paged_h100.json and decode_h100.json
cache_mb = 128 * 4096 * 1152 / 1e6
print(f"cache {cache_mb:.0f} MB: read and written by the gather, then read by decode: 3 × {cache_mb:.0f} MB")
print(f"floor at 3.35 TB/s: {cache_mb / 3.35:.0f} µs without a gather, {3 * cache_mb / 3.35:.0f} µs with it")
print(f"measured: {STEP_US['decode']:.0f} µs without, {sum(STEP_US.values()):.0f} µs with it")

# %% [markdown]
# The gather takes twice as long as the work it is for{{!twice_as_long}}. Nor do its rows come free: they are the
# contiguous cache that paging was to avoid. So the decode kernel should follow the table itself.
#
# ## Exercise: paged_decode
#
# Take `latent_decode` of lesson 06: a program has BLOCK_H heads of one sequence, and a loop over blocks of
# BLOCK_N tokens. With $q_c, q_r$ the query, $C, K$ a block's latents and keys, and $m, l, o$ (from
# $-\infty, 0, 0$ on) the program's `m_i`, `l_i` and `acc` so far, a turn of the loop makes scores $z$ and takes
# them in:
#
# $$z = \text{scale} \cdot (q_c C^\top + q_r K^\top), \quad m' = \max(m, \max_t z),$$
# $$\alpha = e^{m - m'}, \quad p = e^{z - m'}, \quad l' = \alpha\,l + \textstyle\sum_t p, \quad o' = \alpha\,o + p\,C.$$
#
# At the end out is $o / l$, and lse $m + \ln l$.
#
# There a block of tokens is found at `b * T + offs_n`. Now it is found through the table. If a block has at most
# `page_size` tokens and both are powers of two, then all tokens of a block lie on **one** page. So one number is
# looked up for each block, not one for each token.
#
# That number has to be known before the block's loads can start, and its own load takes its time: two trips to
# memory, one after the other, in each round of the loop. So look up a block **ahead**. While block i is
# loaded and multiplied, the page of block i + 1 is on its way.

# %%
def chain(ahead):
    """Three blocks of tokens: bars of look-up, loads and products, with the look-up a block ahead or not."""
    bars, at = [], 0.0
    for block in range(3):
        if block and ahead:
            bars.append((f"look up\n{block}", 1, at - 3.4, 1.0))  # while the block before is under way
        else:
            bars.append((f"look up\n{block}", 0, at, 1.0))
            at += 1.0
        bars += [(f"load tokens\n{block}", 0, at, 2.0), (f"multiply\n{block}", 0, at + 2.0, 1.4)]
        at += 3.4
    return bars


plots.timeline({"looked up when the block begins": chain(False), "looked up a block ahead": chain(True)})

# %% [markdown]
# (The compiler overlaps loads and products of neighbouring blocks as well. The picture leaves that out.)
#
# | | shape | dtype |
# |---|---|---|
# | `q_latent`, `q_rope` | [B, H, R], [B, H, Dr], contiguous | float16 or bfloat16 |
# | `c_kv_pages`, `k_rope_pages` | [num_pages, page_size, R], [num_pages, page_size, Dr] | that of the query |
# | `block_table` | [B, max_pages] | int32 |
# | `seq_lens` | [B], 0 to max_pages · page_size | int32 |
# | `scale` | | float |
# | returns `out` | [B, H, R]; zeros for a sequence of length 0 | that of the query |
# | returns `lse` | [B, H], natural logarithm; −inf for length 0 | float32 |
#
# `page_size` is a power of two from 16 on, R and Dr are powers of two from 16 on. One launch, no splits.
#
# A block of tokens has to fit into shared memory. `block_sizes(H)`, in the next cell, is that of lesson 06: it
# makes BLOCK_H, a number of tokens, and `num_stages`. For 16 heads:
#
# | a program's shared memory | for example | BLOCK_H | tokens | stages | `paged_decode` takes |
# |---|---|---|---|---|---|
# | 96 KiB or more | L4, A100, H100, B200 | 16 | 64 | 2 | 92 KiB |
# | less | T4, MI300X | 8 | 16 | 1 | 50 KiB on a T4, 32 on an MI300X in bfloat16 |
#
# BLOCK_N is that number of tokens, or the page size if it is less: a longer block would read on behind its page.
#
#

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
# **Points for speed.** The case is B = 256, H = 16, T = 1024 in bfloat16, pages of 64. The floor is that of
# contiguous decode: the cache once. Half of the points: 0.35 of the floor's speed. All: 0.5 of it, and 2 times
# the speed of eager PyTorch, which gathers whole pages by indexing and then takes lesson 06's eager step.
#
# <details><summary>Hint 1</summary>
#
# Copy `latent_decode_kernel` and its launcher. Only the rows of `c_kv` and `k_rope` change, and what finds them: one
# number, the page, which the loop hands on from block to block.
#
# </details>
# <details><summary>Hint 2</summary>
#
# The page of block 0 is looked up before the loop, and only if the sequence has tokens. In the loop, that of the block
# behind this one, only if there is one. Both are loads of one number with a mask. A row is page, slot and width, as in
# `paged_gather`, and the loads of tokens keep mask and `other=0.0`: a weight of 0 times NaN is NaN.
#
# </details>
# <details><summary>Hint 3</summary>
#
# With `ahead = start + BLOCK_N`, entry `ahead // PAGE` is the next block's, under the mask `ahead < length`; make it
# int64. For length 0 the sum is 0: put 1 in its place before you divide, and out is 0 and lse −∞ + ln 1. The launcher
# passes `BLOCK_N=min(block_n, page_size)`, the page strides, and 8 warps. About eight lines differ from lesson 06.
#
# </details>

# %% solution="paged_decode"
@triton.jit
def paged_decode_kernel(
    q_latent_ptr, q_rope_ptr, c_pages_ptr, k_pages_ptr, table_ptr, seq_lens_ptr, out_ptr, lse_ptr,
    scale, H, max_pages, c_stride, k_stride,
    PAGE: tl.constexpr, R: tl.constexpr, DR: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_N: tl.constexpr,
):
    """One program: BLOCK_H heads of one sequence. BLOCK_N divides PAGE, the page size.

    q_latent_ptr, out_ptr: [B, H, R]; q_rope_ptr: [B, H, DR]; c_pages_ptr, k_pages_ptr: pages of [PAGE, R] and [PAGE,
    DR], c_stride and k_stride words apart; table_ptr: [B, max_pages]; seq_lens_ptr: [B]; lse_ptr: [B, H].
    """
    ### BEGIN SOLUTION
    b = tl.program_id(1).to(tl.int64)
    offs_h = tl.program_id(0) * BLOCK_H + tl.arange(0, BLOCK_H)
    offs_r, offs_d = tl.arange(0, R), tl.arange(0, DR)
    # [BLOCK_H, R] and [BLOCK_H, DR]
    q_latent = tl.load(
        q_latent_ptr + (b * H + offs_h)[:, None] * R + offs_r[None, :], mask=offs_h[:, None] < H, other=0.0
    )
    q_rope = tl.load(q_rope_ptr + (b * H + offs_h)[:, None] * DR + offs_d[None, :], mask=offs_h[:, None] < H, other=0.0)
    length = tl.load(seq_lens_ptr + b)
    table_ptr += b * max_pages

    m_i = tl.full([BLOCK_H], float("-inf"), tl.float32)
    l_i = tl.zeros([BLOCK_H], tl.float32)
    acc = tl.zeros([BLOCK_H, R], tl.float32)
    page = tl.load(table_ptr, mask=length > 0, other=0).to(tl.int64)
    for start in range(0, length, BLOCK_N):
        offs_n = start + tl.arange(0, BLOCK_N)
        c_row, k_row = page * c_stride + offs_n % PAGE * R, page * k_stride + offs_n % PAGE * DR
        # [BLOCK_N, R] and [BLOCK_N, DR]
        c_kv = tl.load(c_pages_ptr + c_row[:, None] + offs_r[None, :], mask=offs_n[:, None] < length, other=0.0)
        k_rope = tl.load(k_pages_ptr + k_row[:, None] + offs_d[None, :], mask=offs_n[:, None] < length, other=0.0)
        ahead = start + BLOCK_N
        page = tl.load(table_ptr + ahead // PAGE, mask=ahead < length, other=0).to(tl.int64)
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
    tl.store(out_ptr + (b * H + offs_h)[:, None] * R + offs_r[None, :], acc / l_i[:, None], mask=offs_h[:, None] < H)
    tl.store(lse_ptr + b * H + offs_h, m_i + tl.log(l_i), mask=offs_h < H)
    ### END SOLUTION


def paged_decode(q_latent, q_rope, c_kv_pages, k_rope_pages, block_table, seq_lens, scale):
    """One decode step straight from the pages, in one launch.

    q_latent: [B, H, R]; q_rope: [B, H, Dr], contiguous; c_kv_pages: [num_pages, page_size, R]; k_rope_pages:
    [num_pages, page_size, Dr], pages stride(0) apart; float16 or bfloat16; R, Dr and page_size are powers of two from
    16 on. block_table: [B, max_pages], int32; seq_lens: [B], int32; scale: float, above 0.
    Returns out [B, H, R] in the dtype of the query and lse [B, H] in float32, natural logarithm; 0 and -inf for a
    sequence of length 0. Launches paged_decode_kernel.

    The traps: what the last page holds behind the last token; table entries behind the last page; 0/0.
    """
    ### BEGIN SOLUTION
    (B, H, R), (_, page_size, Dr) = q_latent.shape, k_rope_pages.shape
    out = torch.empty_like(q_latent)
    lse = torch.empty((B, H), dtype=torch.float32, device=out.device)
    block_h, block_n, stages = block_sizes(H)
    paged_decode_kernel[(triton.cdiv(H, block_h), B)](
        q_latent, q_rope, c_kv_pages, k_rope_pages, block_table, seq_lens, out, lse,
        scale, H, block_table.shape[1], c_kv_pages.stride(0), k_rope_pages.stride(0),
        PAGE=page_size, R=R, DR=Dr, BLOCK_H=block_h, BLOCK_N=min(block_n, page_size), num_warps=8, num_stages=stages,
    )
    return out, lse
    ### END SOLUTION


# %% check="paged_decode"
check("paged_decode")

# %% speed="paged_decode"
check_speed("paged_decode")

# %% [markdown]
# **Your code in the model.** The trained model of lesson 02 keeps its cache in pages of 16 tokens, the last one first.
# Your `paged_decode` finds them by their table. Emulated, that takes up to a minute.

# %%
from mla_ref import playground

playground.write("class Cache:\n    ", paged_decode=paged_decode, new=40, device=device)

# %% [markdown]
# By the model, looking ahead hardly matters: `check_speed` finds nearly the same whether a block's page is looked up
# when the block begins or a block ahead. In the model the look-up and the loads that need it run at the same time. On a
# GPU they cannot, and so a look-up for every token costs more there than the model says.
#
# ## Measure: what a table costs
#
# `paged_update` and `paged_gather` of the reference on an H100 (`benchmarks/paged_h100.json`), R = 512, Dr = 64,
# bfloat16, pages in random order. The update brings one token to each of 128 sequences, in replays of a CUDA
# graph, with all it touches in the L2. The gather has B = 128, T = 4096, and the L2 is emptied before it; a plain
# copy reaches {{copy_tb_per_s}} TB/s.
#
# {{page_sizes}}
#
# For the gather the page size hardly matters: even a page of a single token is a row of 1024 bytes and one of
# 128. The update takes a quarter longer with pages of 64 and more{{!a_quarter_longer}}; the record does not say
# why. With the L2 emptied the difference is 2 % at most{{!two_at_most}}. Called from Python without a graph, it takes
# {{host_us}} µs of the host's time, ten times the launching in the verdicts{{!ten_times}}.
#
# Now decode, contiguous and from pages of 64 (`benchmarks/decode_h100.json`, T = 4096, B = 128, bfloat16), by two
# kernels of the reference. "Per token" looks up a page for every token, and loads by pointers. "Ahead" looks up
# one page for each block, a block ahead, and loads by tensor descriptors, for which the hardware computes
# addresses.
#
# {{decode_steps}}
#
# With a look-up for each token, pages add {{added_16}} % for H = 16 and {{added_128}} % for H = 128, where by
# pointers the contiguous form is slow already{{!slow_already}}. Ahead and by descriptors they add 3 % at
# most{{!three_at_most}}. Look-up and loads have both changed, and the record does not say which did what. Your
# kernel is between the two: it looks ahead, and loads by pointers. A gather in front adds {{gather_adds}} % for
# H = 16. FlashMLA, DeepSeek's own kernel, knows only pages of 64; it is {{flash_mla_slower}} % slower than "ahead"
# for H = 16, and {{flash_mla_faster}} times as fast for H = 128.
#
# On a GPU the next cell times your kernel, in float16, beside a gather and a decode of the rows that it leaves.
# (Rows are pages too: one for each sequence, as long as T.)

# %%
from mla_ref import bench


def timed(B, T):
    """Return microseconds of decode from pages of 64 in random order, and of a gather with decode from its rows."""
    table = torch.randperm(B * T // 64, device=device).to(torch.int32).view(B, -1)
    half = lambda *shape: torch.randn(*shape, device=device).half()
    query, pages = (half(B, 16, 512) / 8, half(B, 16, 64)), (half(B * T // 64, 64, 512), half(B * T // 64, 64, 64))
    lens = torch.full((B,), T, dtype=torch.int32, device=device)
    own = torch.arange(B, dtype=torch.int32, device=device).view(B, 1)

    def direct():
        return paged_decode(*query, *pages, table, lens, 192**-0.5)

    def by_gather():
        return paged_decode(*query, *paged_gather(*pages, table, lens, T), own, lens, 192**-0.5)

    return [bench(run).median * 1e6 for run in (direct, by_gather)]


if emulated:
    print("kernels are emulated here, and there is nothing to time")
else:
    print("  B      T   pages of 64    gather, then one page each")
    for size in ((16, 4096), (64, 1024)):
        print("{:3} {:6} {:10.0f} µs {:22.0f} µs".format(*size, *timed(*size)))

# %% [markdown]
# **The report's Table 5** compares its basic manager with one whose copies are Triton kernels, and finds a gain
# of about 30 %. Here the same change gains {{gained}} % in a prefill, and kernels with a table that the host knows
# gain up to {{most_gained}} % in decode. That is no better kernel. It is a slow baseline: Python starts four small
# copies for each token, about {{copy_us}} µs each, and the GPU waits. The appendix has the tables.
#
# ## What you have now
#
# - A manager of pages whose refusals change nothing, and the report's Table 4 with the pool that its digits come
#   from.
# - Update and gather in one launch each, for any start, any length, and a table that holds rubbish behind it.
# - A decode kernel that needs no gather. In the reference's, paging costs 3 % at most{{!by_descriptors}}.
# - Offsets in 64 bits, tested without a large pool.
#
# Figures: {{records}}.

# %% [markdown]
# <details><summary>Appendix: growing, what a service gains, and what went wrong elsewhere</summary>
#
# **The report's Table 5.** The report compares its basic manager with one whose copies are Triton kernels, in a
# forward pass of its layer{{!table_5}}. Beside it a rerun on an H100 with this course's caches (pages of 1024).
# All columns are gains in throughput over **basic**, which copies every token by itself as your `BasicPagedCache`
# does. **Walked**: kernels copy, but the host asks the table on the GPU about every new token, as the report's
# public code does; this is what the report changed. **Batched**: kernels copy, and the host knows its table.
#
# {{table_5}}
#
# Per token, in a prefill with B = 4, L = 4096:
#
# {{per_token}}
#
# The basic cache makes four small copies for each token: in and out, latent and key. In the report's optimised
# version and in the walked one here, kernels move the tokens and Python still visits every one. The copying was
# never slow. The loop was. A gain depends on its baseline as much as on the new kernel: basic takes
# {{basic_us}} µs a token here and 23 there. Why, we do not know.
#
# **The idea** is from *Efficient memory management for large language model serving with PagedAttention* (Kwon et
# al., 2023).
#
# **Growing has a price.** Storage that grows has to move: for a moment the old one and the new one exist. So it
# grows by several pages at a time, by a **slab**. Eight sequences that decode from 512 to 4096 tokens, in pages
# of 64, each with room for 16,384, hold 37.7 MB of tokens:
#
# {{growth}}
#
# **A whole forward pass.** Is the paged cache still behind a contiguous one, as the report says of its own? From
# Python, a decode step with B = 8, L = 4096 takes {{batched_ms}} ms with batched kernels, and {{slices_ms}} ms
# with a contiguous cache that only slices. Both are times of the host. In decode the basic cache reads all L
# tokens again for one new one, so its rate halves as L doubles{{!halves}}.
#
# **Page sizes.** vLLM's default is 16 tokens (`CacheConfig.DEFAULT_BLOCK_SIZE`), and it takes 0.92 of the GPU's
# memory (`CacheConfig.gpu_memory_utilization`). FlashMLA takes 64, its own block of tokens, and only that
# (FlashMLA #84 asks why).
#
# **Tables and lengths.** Four cases have broken kernels: a table with a hole, a table longer than the sequence, a
# length that ends on a page boundary, and a length of 0 (vllm #27715, FlashMLA #126). The exercises had the last
# three.
#
# **The report's code** (`kernel.py` and `cache_manager.py` of github.com/Qingzheng-Wang/ShallowMLA). Its page
# kernels are given `start_pos` and do not use it: new token s always goes to position s. The update takes the
# number of new tokens for the page size, and the gather the true one, so for all pages but page 0 the two agree
# only if a chunk is as long as a page. The figures are of passes with `start_pos = 0`, where a clock notices
# nothing.
#
# **Offsets.** With latent and key in one buffer of 576 words, token 3.73 million lies beyond $2^{31}$ words. That
# is a buffer of 4.3 GB. Several kernels wrapped around there (vllm #47671, sglang #14224, tokenspeed #501).
#
# **Shared pages.** Two sequences with the same beginning can hold the same pages. The one that writes into a
# shared page first takes a copy of it. `mla_ref.PagedCache` does that (`fork`), and lesson 09 is about attention
# over such a beginning.
#
# </details>
