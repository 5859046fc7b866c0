# %% [markdown]
# # Lesson 12: the decode challenge
#
# A public competition asked for one thing: a decode step of DeepSeek-V3's attention layer, for 128 sequences, as fast
# as an accelerator can. Its checker compares every number of the output and of the cache, so that a fast step has to
# follow the reference's conventions first. Here you build that layer from naive to absorbed to fused, look at what
# each form moves, and write a file for the competition's own checker. Allow five hours: one to read, four for the
# exercises.
#
# | exercise | you write | points right | points fast |
# |---|---|---|---|
# | `challenge_bytes` | the cache, what naive makes of it, and the floor | 3 | |
# | `challenge_angles` | angles in bfloat16 | 3 | |
# | `naive_step` | the whole layer, keys and values expanded | 4 | |
# | `absorbed_step` | the whole layer, nothing expanded | 4 | |
# | `rotating_decode` | the kernel that rotates the cached keys as it reads them | 5 | 3 |
# | `challenge_step` | the layer with your kernel in it | 5 | |
#
# Each exercise may take 10 s and 512 MiB for all its cases; hidden cases have other widths, and lengths on both sides
# of 256. Speed has a limit of its own. It is that of an H100.
#
# | symbol | meaning | the challenge |
# |---|---|---|
# | B, D | sequences, one new token each; width of the model | 128, 7168 |
# | T | tokens that are attended to, the new one included | 513, 2049, 4097, 6145 |
# | H | heads | 128 |
# | Rq, R | width of the query's latent, and of the cached one | 1536, 512 |
# | Dn, Dr, Dv | width per head: without position, with position (RoPE), value | 128, 64, 128 |

# %% setup="imports"

import torch
from autograder import check, check_speed
from mla_ref.hardware import emulator

emulated = emulator.prepare()  # whether kernels run on the CPU, for lack of a GPU

import triton
import triton.language as tl

device = "cpu" if emulated else "cuda"

# %% [markdown]
# ## Why: one layer, four differences
#
# The layer is lesson 02's with five weight matrices: the query goes down and up, the token goes down to a latent and a
# key for positions, the latent goes up to keys and values, and the heads' results go out. Four things differ from a
# DeepSeek model:
#
# 1. there are **no norms** between down and up;
# 2. the cache is **one buffer**, [B, capacity, R + Dr]: latent and key side by side, 576 words a token;
# 3. the key is cached **as it was projected**, and the whole cache is rotated again at every step;
# 4. the rotation pairs **halves**, element i with i + Dr/2, by **angles in bfloat16**.
#
# The reference of the competition is naive: it expands keys and values for all heads. The picture has what it holds
# next to the cache, in gigabytes.

# %%
from mla_ref import DEVICES, plots

B, D, H, Rq, R, Dn, Dr, Dv = 128, 7168, 128, 1536, 512, 128, 64, 128
rows = {}
for T in (513, 2049, 4097, 6145):
    expanded = {"keys": B * T * H * (Dn + Dr) * 2 / 1e9, "values": B * T * H * Dv * 2 / 1e9}
    rows[f"T = {T}"] = {"cache": B * T * (R + Dr) * 2 / 1e9} | expanded
plots.stacked(rows, unit="GB, bfloat16", title="128 sequences of DeepSeek-V3: one layer")

# %% [markdown]
# At the last length a naive step holds what `kv_up` gives and the keys that are joined from it, both at once: more than
# a GPU of 80 GB has. So whoever checks a fast step by the naive one must do so in parts, a few sequences at a time.
#
# ## Predict: bytes and the floor
#
# Count one step of the whole layer.
#
# - All words have two bytes. T is the number of tokens attended to, the new one included.
# - `cache_bytes`: the T tokens of all sequences, each once.
# - `expanded_bytes`: what naive makes: for each head keys of Dn + Dr values, the rotated part copied, and values of Dv.
# - `weight_bytes`: the five matrices: D to Rq, Rq to H·(Dn+Dr), D to R + Dr, R to H·(Dn+Dv), and H·Dv to D.
# - `flops` of an **absorbed** step: each weight is met once by each sequence (the two halves of `kv_up` too, by query
#   and result); and each token, head and sequence takes R + Dr multiply-accumulates for the score and R for the value.
# - `floor_us`: the longer of two times, reading weights and cache at full bandwidth, or all FLOPs at full rate.
#   Everything else is small and left out.
#
# <details><summary>Hint 1</summary>
#
# One multiply-accumulate is two FLOPs. Bytes of weights and cache add up before they are divided by the bandwidth.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `weights = D * (Rq + R + Dr) + Rq * H * (Dn + Dr) + H * R * (Dn + Dv) + H * Dv * D`.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `flops = 2 * B * weights + 2 * B * T * H * (2 * R + Dr)`. About ten lines with the dict.
#
# </details>

# %% solution="challenge_bytes"
def challenge_bytes(B, T, D, H, Rq, R, Dn, Dr, Dv, rate, bandwidth):
    """What one step of the layer holds, moves and computes.

    B, T: int, sequences and tokens attended to by each; D, H, Rq, R, Dn, Dr, Dv: int, the layer's sizes; rate: FLOP/s;
    bandwidth: bytes/s. Words have two bytes.

    Returns a dict of numbers:
      cache_bytes     of the T tokens of all sequences
      expanded_bytes  of the keys and values that naive makes of them, for all heads
      weight_bytes    of the five matrices
      flops           of an absorbed step
      floor_us        microseconds: the longer of reading weights and cache, and computing

    The traps: heads share a cache, but not an expansion; two times that can overlap do not add.
    """
    ### BEGIN SOLUTION
    weights = D * (Rq + R + Dr) + Rq * H * (Dn + Dr) + H * R * (Dn + Dv) + H * Dv * D
    cache = 2 * B * T * (R + Dr)
    flops = 2 * B * weights + 2 * B * T * H * (2 * R + Dr)
    return {
        "cache_bytes": cache,
        "expanded_bytes": 2 * B * T * H * (Dn + Dr + Dv),
        "weight_bytes": 2 * weights,
        "flops": flops,
        "floor_us": 1e6 * max((2 * weights + cache) / bandwidth, flops / rate),
    }
    ### END SOLUTION


# %% check="challenge_bytes"
check("challenge_bytes")

# %%
sizes = dict(D=D, H=H, Rq=Rq, R=R, Dn=Dn, Dr=Dr, Dv=Dv)
h200 = DEVICES["h200"]
print("    T   cache GB   expanded GB   weights GB   GFLOP   floor on an H200")
for T in (513, 2049, 4097, 6145):
    said = challenge_bytes(B, T, **sizes, rate=h200.rate(), bandwidth=h200.bandwidth())
    size = [said[f"{name}_bytes"] / 1e9 for name in ("cache", "expanded", "weight")]
    line = f"{T:5} {size[0]:10.2f} {size[1]:13.1f} {size[2]:12.2f} {said['flops'] / 1e9:7.0f}"
    print(f"{line} {said['floor_us']:15.0f} µs")

# %% [markdown]
# On an H200 the two times are close, and at the last length arithmetic takes longer than reading: memory alone does
# not set the floor.
#
# ## Angles that are shared
#
# RoPE turns pair i at position n by the angle $n \cdot 10000^{-i/(Dr/2)}$. Lesson 02 computed angles in float64. The
# challenge computes them in bfloat16, which keeps eight significant bits. Whole numbers are exact up to 256; beyond,
# the step is 2, then 4 from 512 on, and 32 from 4096 on:

# %%
positions = torch.arange(248, 281)
held = {"in bfloat16": (positions.tolist(), positions.bfloat16().tolist())}
exact = {"exact": (positions.tolist(), positions.tolist())}
plots.curves({"positions as the angles see them": exact | held}, xlabel="position", ylabel="value", dotted=["exact"])

# %% [markdown]
# So neighbours share all their angles. A model trained with exact angles would not want that. But the checker's
# reference does it, and whoever computes exact angles is right and fails. It is a rule of any port: **match the
# arithmetic of the reference, not its intention.**
#
# ## Exercise: challenge_angles
#
# cos and sin for some positions. Everything is bfloat16, in this order: the pair's number i; the frequency
# `10000 ** (-i / (dim/2))`; the position; their product, the angle; its cos and sin. PyTorch rounds after each
# operation on bfloat16 tensors, so this is a matter of dtypes. The base is rounded too: bfloat16 has no 10000, and
# PyTorch takes 9984. So leave the power to a bfloat16 tensor.
#
# <details><summary>Hint 1</summary>
#
# `torch.arange(dim // 2, dtype=torch.bfloat16, device=positions.device)`, and `10000 ** (-pair / (dim // 2))`.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `positions.to(torch.bfloat16)[:, None] * frequencies` is [T, dim/2].
#
# </details>
# <details><summary>Hint 3</summary>
#
# `return angles.cos(), angles.sin()`. Three lines before it, none with `.float()`.
#
# </details>

# %% solution="challenge_angles"
def challenge_angles(positions, dim):
    """Return cos and sin of the challenge's angles.

    positions: [T], int64; dim: int, Dr, even.
    Returns cos, sin: [T, dim/2], bfloat16.

    The trap: positions, frequencies and angles are rounded to bfloat16, each.
    """
    ### BEGIN SOLUTION
    pair = torch.arange(dim // 2, dtype=torch.bfloat16, device=positions.device)
    frequencies = 10000 ** (-pair / (dim // 2))
    angles = positions.to(torch.bfloat16)[:, None] * frequencies
    return angles.cos(), angles.sin()
    ### END SOLUTION


# %% check="challenge_angles"
check("challenge_angles")

# %%
cos, sin = challenge_angles(torch.arange(6145), 64)
different = len(torch.cat((cos, sin), -1).unique(dim=0))
print(f"6145 positions, {different} different rows of angles")
OFF = "{{off}}"  # by tokens before the step: share of the output that exact angles put beyond the checker's tolerance
for length, share in (OFF or {}).items():
    print(f"{length} tokens, exact angles: {share:.1%} of the output is beyond the tolerance (measured)")

# %% [markdown]
# The rotation itself is given. It takes what broadcasts: keys [B, T, Dr] with angles [T, Dr/2], or queries
# [B, 1, H, Dr] with those of one position, [Dr/2].

# %% setup="rotation"
def rotate_halves(x, cos, sin):
    """Rotate element i of the last axis with element i + Dr/2. x: [..., Dr]; cos, sin: [..., Dr/2], which broadcast."""
    first, second = x.chunk(2, -1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)

# %% [markdown]
# ## Exercise: naive_step
#
# The whole layer, as the competition's checker computes it. (The code in its published text transposes no heads.) All
# arguments are bfloat16.
#
# | | shape | |
# |---|---|---|
# | `x` | [B, 1, D] | the new token of each sequence |
# | `cache` | [B, capacity, R + Dr] | latents and keys, not rotated; places 0 to `length` − 1 are filled |
# | `length` | int | the position of the new token |
# | `q_down`, `q_up` | [Rq, D], [H·(Dn+Dr), Rq] | of each head the part without position first |
# | `kv_down` | [R+Dr, D] | latent first |
# | `kv_up` | [H·(Dn+Dv), R] | of each head the key first, then the value |
# | `wo` | [D, H·Dv] | |
# | returns | [B, 1, D], and `cache` | the new token's R + Dr words in place `length`, written in place |
#
# All widths follow from the shapes and `heads`. The new token sees `length` + 1 tokens, itself among them. The scale is
# 1/√(Dn + Dr). Take the scores to float32 before the softmax. In bfloat16 it adds an error as large as the result's own
# rounding, which the tolerance lets pass.
#
# <details><summary>Hint 1</summary>
#
# `Dv = wo.shape[1] // heads`, `R = kv_up.shape[1]`, `Dr = kv_down.shape[0] - R`, `Dn = kv_up.shape[0] // heads - Dv`.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `cache[:, length] = (x @ kv_down.T)[:, 0]` comes first. Then `latents, keys = cache[:, : length + 1].split((R, Dr),
# -1)`, and both the keys and the query's RoPE part are rotated: the query by the angles of position `length`.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `(latents @ kv_up.T).unflatten(-1, (heads, Dn + Dv)).split((Dn, Dv), -1)` gives keys and values, [B, T, H, …]. The
# rotated keys join by `keys[:, :, None].expand(-1, -1, heads, -1)`. Scores: `torch.einsum("bshd,bthd->bhst", q, k)`.
#
# </details>

# %% solution="naive_step"
def naive_step(x, cache, length, q_down, q_up, kv_down, kv_up, wo, heads):
    """One decode step of the layer; keys and values are expanded for all heads.

    x: [B, 1, D]; cache: [B, capacity, R + Dr], changed in place; length: int, tokens in it before; q_down: [Rq, D];
    q_up: [H (Dn + Dr), Rq]; kv_down: [R + Dr, D]; kv_up: [H (Dn + Dv), R]; wo: [D, H Dv]; heads: int, H. bfloat16.
    Returns the output [B, 1, D] in the dtype of x, and the cache with the new token.

    The traps: halves, not neighbours; bfloat16 angles; the cache keeps keys as they were projected; no norms.
    """
    ### BEGIN SOLUTION
    R, Dv = kv_up.shape[1], wo.shape[1] // heads
    Dr, Dn = kv_down.shape[0] - R, kv_up.shape[0] // heads - Dv
    cache[:, length] = (x @ kv_down.T)[:, 0]
    q_nope, q_rope = (x @ q_down.T @ q_up.T).unflatten(-1, (heads, Dn + Dr)).split((Dn, Dr), -1)  # [B, 1, H, ...]
    latents, keys = cache[:, : length + 1].split((R, Dr), -1)
    cos, sin = challenge_angles(torch.arange(length + 1, device=x.device), Dr)
    q_rope, keys = rotate_halves(q_rope, cos[length], sin[length]), rotate_halves(keys, cos, sin)

    k_nope, v = (latents @ kv_up.T).unflatten(-1, (heads, Dn + Dv)).split((Dn, Dv), -1)  # [B, T, H, ...]
    q = torch.cat((q_nope, q_rope), -1)
    k = torch.cat((k_nope, keys[:, :, None].expand(-1, -1, heads, -1)), -1)
    scores = torch.einsum("bshd,bthd->bhst", q, k).float() * (Dn + Dr) ** -0.5
    out = torch.einsum("bhst,bthv->bshv", scores.softmax(-1).to(x.dtype), v)
    return out.flatten(2) @ wo.T, cache
    ### END SOLUTION


# %% check="naive_step"
check("naive_step")

# %% [markdown]
# What does it move? The recorder of lesson 04 counts, on tensors without data, at the challenge's sizes. Weights and
# cache are apart from everything that the step makes.

# %%
from autograder.kernels.worker.recording import recording

empty = lambda *shape: torch.empty(shape, dtype=torch.bfloat16, device="meta")


def profile(step, T):
    """Gigabytes that a step moves: of weights, of the cache, of what it makes."""
    weights = dict(q_down=empty(Rq, D), q_up=empty(H * (Dn + Dr), Rq), kv_down=empty(R + Dr, D))
    weights |= dict(kv_up=empty(H * (Dn + Dv), R), wo=empty(D, H * Dv))
    given = dict(x=empty(B, 1, D), cache=empty(B, 8192, R + Dr), length=T - 1) | weights
    with recording(given) as recorder:
        step(**given, heads=H)
    names = [storage.get("input") for storage in recorder.storages]
    moved = dict.fromkeys(("weights", "cache", "made on the way"), 0.0)
    for event in recorder.events:
        for number, size in (*event["reads"], *event["writes"]):
            kind = "weights" if names[number] in weights else "cache" if names[number] == "cache" else "made on the way"
            moved[kind] += size / 1e9
    return moved


forms = {f"naive, T = {T}": profile(naive_step, T) for T in (513, 6145)}
plots.stacked(forms, unit="GB moved, counted", title="A step of the challenge", log=True)

# %% [markdown]
# ## Exercise: absorbed_step
#
# The same layer, same arguments, same results. Keys and values are not expanded: the query goes into the latent
# through the key half of `kv_up`, and what attention finds there comes out through the value half (lesson 03).
#
# The judge counts: at most twice the FLOPs of an absorbed step. Behind a few hundred tokens an expansion takes more.
#
# <details><summary>Hint 1</summary>
#
# `w_uk, w_uv = kv_up.unflatten(0, (heads, -1)).split((Dn, Dv), 1)`, [H, Dn, R] and [H, Dv, R]. All up to the rotated
# keys stays as it was.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `q_latent = torch.einsum("bhd,hdr->bhr", q_nope[:, 0], w_uk)`. Scores are `q_latent @ latents.mT + q_rope[:, 0] @
# keys.mT`, [B, H, T]: all heads of a sequence in one product.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `found = weights @ latents`, [B, H, R]; `torch.einsum("bhr,hvr->bhv", found, w_uv)`; flatten the heads, and `wo`. The
# scale stays 1/√(Dn + Dr), though the rows have R + Dr values.
#
# </details>

# %% solution="absorbed_step"
def absorbed_step(x, cache, length, q_down, q_up, kv_down, kv_up, wo, heads):
    """One decode step of the layer; attention is to the latents themselves.

    Arguments and results are those of naive_step.

    The traps: the scale does not change; neither does the order of key and value in kv_up.
    """
    ### BEGIN SOLUTION
    R, Dv = kv_up.shape[1], wo.shape[1] // heads
    Dr, Dn = kv_down.shape[0] - R, kv_up.shape[0] // heads - Dv
    w_uk, w_uv = kv_up.unflatten(0, (heads, -1)).split((Dn, Dv), 1)
    cache[:, length] = (x @ kv_down.T)[:, 0]
    q_nope, q_rope = (x @ q_down.T @ q_up.T).unflatten(-1, (heads, Dn + Dr)).split((Dn, Dr), -1)  # [B, 1, H, ...]
    latents, keys = cache[:, : length + 1].split((R, Dr), -1)
    cos, sin = challenge_angles(torch.arange(length + 1, device=x.device), Dr)
    q_rope, keys = rotate_halves(q_rope, cos[length], sin[length]), rotate_halves(keys, cos, sin)

    q_latent = torch.einsum("bhd,hdr->bhr", q_nope[:, 0], w_uk)
    scores = (q_latent @ latents.mT + q_rope[:, 0] @ keys.mT).float() * (Dn + Dr) ** -0.5  # [B, H, T]
    found = scores.softmax(-1).to(x.dtype) @ latents
    out = torch.einsum("bhr,hvr->bhv", found, w_uv)
    return out.flatten(1)[:, None] @ wo.T, cache
    ### END SOLUTION


# %% check="absorbed_step"
check("absorbed_step")

# %%
forms |= {f"absorbed, T = {T}": profile(absorbed_step, T) for T in (513, 6145)}
plots.stacked(forms, unit="GB moved, counted", title="A step of the challenge", log=True)

# %% [markdown]
# What is left on the way: scores, their softmax in float32, and the rotated keys. A kernel keeps all of it on the chip.
#
# ## Exercise: rotating_decode
#
# The kernel of lesson 06, on one buffer, rotating as it reads. A block's keys come as two halves, x and y; turned, they
# are $x\cos - y\sin$ and $y\cos + x\sin$. There is no need to join them: the score is a sum over the latent, the first
# half and the second, so each is a product of its own. In the picture, one block of the buffer:

# %%
LATENT, FIRST, SECOND, ANGLE = "#56B4E9", "#E69F00", "#F0E442", "#CCCCCC"
buffer = [(0, 0, 4, 8, LATENT, "latents [BLOCK_N, R]"), (0, 8, 4, 2, FIRST, "x"), (0, 10, 4, 2, SECOND, "y")]
plots.matrices(
    {
        "576 words a token": (4, 12, buffer),
        "cos, sin": (4, 4, [(0, 0, 4, 2, ANGLE, "cos"), (0, 2, 4, 2, ANGLE, "sin")]),
        "q_latent, q_rope": (3, 12, [(0, 0, 3, 8, LATENT, ""), (0, 8, 3, 2, FIRST, ""), (0, 10, 3, 2, SECOND, "")]),
    },
    title="Three products to one block of scores; the latents are used again, as values",
)

# %% [markdown]
# | | shape | |
# |---|---|---|
# | `q_latent`, `q_rope` | [B, H, R], [B, H, Dr] | the query in the latent; its RoPE part, rotated already |
# | `cache` | [B, capacity, R + Dr] | keys not rotated |
# | `cos`, `sin` | [capacity, Dr/2] | the angles of all places, in the dtype of the cache |
# | `length` | int | tokens attended to, 1 to capacity; behind them the cache may hold anything, NaN included |
# | `scale` | float | above 0 |
# | returns | [B, H, R] | in the dtype of the query |
#
# All are contiguous, float16 or bfloat16; R and Dr are powers of two, R from 16 and Dr from 32 on. One launch. Sizes of
# blocks are those of lesson 06:

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
# **Points for speed.** The case is the challenge's second: B = 128, H = 128, T = 2049 in bfloat16. Half of the points:
# 0.05 of the floor's speed. All: 0.1 of it. These bars are low on purpose: a kernel that computes each address by hand
# is far from the floor.
#
# <details><summary>Hint 1</summary>
#
# Begin with `latent_decode` of lesson 06. A token's row is at `cache_ptr + (b * capacity + offs_n)[:, None] * (R +
# DR)`; the latent is at columns 0 to R − 1, x from R on, y from R + DR // 2 on. Angles are at `offs_n[:, None] * (DR //
# 2)`.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Turn in float32, then cast to the dtype of the latents: `(x * cos - y * sin).to(c_kv.dtype)`. Three products into one
# accumulator: `tl.dot(q_latent, tl.trans(c_kv))`, then `tl.dot(q_first, tl.trans(first), qk)` and the second half.
#
# </details>
# <details><summary>Hint 3</summary>
#
# All loads of tokens have `mask=offs_n[:, None] < length, other=0.0`, and scores behind the length are −inf. From there
# on it is lesson 06: new maximum, weights, factor, sum, accumulator. No lse is asked for.
#
# </details>

# %% solution="rotating_decode"
@triton.jit
def rotating_decode_kernel(
    q_latent_ptr, q_rope_ptr, cache_ptr, cos_ptr, sin_ptr, out_ptr, scale, H, length, capacity,
    R: tl.constexpr, DR: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_N: tl.constexpr,
):
    """One program: BLOCK_H heads of one sequence.

    q_latent_ptr, out_ptr: [B, H, R]; q_rope_ptr: [B, H, DR]; cache_ptr: [B, capacity, R + DR];
    cos_ptr, sin_ptr: [capacity, DR / 2].
    """
    ### BEGIN SOLUTION
    b = tl.program_id(1).to(tl.int64)
    offs_h = tl.program_id(0) * BLOCK_H + tl.arange(0, BLOCK_H)
    offs_r, offs_d = tl.arange(0, R), tl.arange(0, DR // 2)
    row, some = b * H + offs_h, offs_h[:, None] < H
    # [BLOCK_H, R] and twice [BLOCK_H, DR / 2]
    q_latent = tl.load(q_latent_ptr + row[:, None] * R + offs_r[None, :], mask=some, other=0.0)
    q_first = tl.load(q_rope_ptr + row[:, None] * DR + offs_d[None, :], mask=some, other=0.0)
    q_second = tl.load(q_rope_ptr + row[:, None] * DR + DR // 2 + offs_d[None, :], mask=some, other=0.0)

    m_i = tl.full([BLOCK_H], float("-inf"), tl.float32)
    l_i = tl.zeros([BLOCK_H], tl.float32)
    acc = tl.zeros([BLOCK_H, R], tl.float32)
    for start in range(0, length, BLOCK_N):
        offs_n = start + tl.arange(0, BLOCK_N)
        there = offs_n[:, None] < length
        tokens = cache_ptr + (b * capacity + offs_n)[:, None] * (R + DR)
        angles = offs_n[:, None] * (DR // 2) + offs_d[None, :]
        # [BLOCK_N, R] and [BLOCK_N, DR / 2]
        c_kv = tl.load(tokens + offs_r[None, :], mask=there, other=0.0)
        x = tl.load(tokens + R + offs_d[None, :], mask=there, other=0.0).to(tl.float32)
        y = tl.load(tokens + R + DR // 2 + offs_d[None, :], mask=there, other=0.0).to(tl.float32)
        cos = tl.load(cos_ptr + angles, mask=there, other=0.0).to(tl.float32)
        sin = tl.load(sin_ptr + angles, mask=there, other=0.0).to(tl.float32)
        first, second = (x * cos - y * sin).to(c_kv.dtype), (y * cos + x * sin).to(c_kv.dtype)

        qk = tl.dot(q_latent, tl.trans(c_kv))
        qk = tl.dot(q_first, tl.trans(first), qk)
        qk = tl.dot(q_second, tl.trans(second), qk) * scale
        qk = tl.where(offs_n[None, :] < length, qk, float("-inf"))  # [BLOCK_H, BLOCK_N]

        m_new = tl.maximum(m_i, tl.max(qk, axis=1))
        p = tl.exp(qk - m_new[:, None])
        alpha = tl.exp(m_i - m_new)
        l_i = l_i * alpha + tl.sum(p, axis=1)
        acc = tl.dot(p.to(c_kv.dtype), c_kv, acc * alpha[:, None])
        m_i = m_new
    tl.store(out_ptr + row[:, None] * R + offs_r[None, :], acc / l_i[:, None], mask=some)
    ### END SOLUTION


def rotating_decode(q_latent, q_rope, cache, cos, sin, length, scale):
    """Attend to the first `length` tokens of a cache whose keys are not rotated, in one launch.

    q_latent: [B, H, R]; q_rope: [B, H, Dr], rotated; cache: [B, capacity, R + Dr]; cos, sin: [capacity, Dr/2]; float16
    or bfloat16, contiguous, R and Dr powers of two. length: int, 1 to capacity; scale: float, above 0.
    Returns [B, H, R] in the dtype of the query. Launches rotating_decode_kernel.

    The traps: halves, not neighbours; what lies behind the length may be NaN; acc and l_i are rescaled.
    """
    ### BEGIN SOLUTION
    (B, H, R), Dr, capacity = q_latent.shape, q_rope.shape[2], cache.shape[1]
    out = torch.empty_like(q_latent)
    block_h, block_n, stages = block_sizes(H)
    rotating_decode_kernel[(triton.cdiv(H, block_h), B)](
        q_latent, q_rope, cache, cos, sin, out, scale, H, length, capacity,
        R=R, DR=Dr, BLOCK_H=block_h, BLOCK_N=block_n, num_warps=8, num_stages=stages,
    )
    return out
    ### END SOLUTION


# %% check="rotating_decode"
check("rotating_decode")

# %% speed="rotating_decode"
check_speed("rotating_decode")

# %% [markdown]
# ## Exercise: challenge_step
#
# Put it together: projections and both products with `kv_up` by PyTorch, attention by your kernel. Arguments and
# results are those of `naive_step`; widths are powers of two where the kernel wants them. Right comes first: this is
# the function that the competition's checker will call. The grader compares what it returns; what it calls for that it
# does not see.
#
# <details><summary>Hint 1</summary>
#
# It is `absorbed_step` without its scores. The kernel wants the angles of all places: `torch.arange(cache.shape[1])`.
#
# </details>
# <details><summary>Hint 2</summary>
#
# The kernel's `length` counts the new token: pass `length + 1`. What `split` gives is not contiguous.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `found = rotating_decode(q_latent.contiguous(), q_rope[:, 0].contiguous(), cache, cos, sin, length + 1, (Dn + Dr) **
# -0.5)`. Then as before.
#
# </details>

# %% solution="challenge_step"
def challenge_step(x, cache, length, q_down, q_up, kv_down, kv_up, wo, heads):
    """One decode step of the layer, attention by rotating_decode.

    Arguments and results are those of naive_step. The cache is contiguous; R and Dr are powers of two, Dr from 32 on.

    The traps: the kernel counts the new token, so that has to be in the cache before; rows that are contiguous.
    """
    ### BEGIN SOLUTION
    R, Dv = kv_up.shape[1], wo.shape[1] // heads
    Dr, Dn = kv_down.shape[0] - R, kv_up.shape[0] // heads - Dv
    w_uk, w_uv = kv_up.unflatten(0, (heads, -1)).split((Dn, Dv), 1)
    cache[:, length] = (x @ kv_down.T)[:, 0]
    q_nope, q_rope = (x @ q_down.T @ q_up.T).unflatten(-1, (heads, Dn + Dr)).split((Dn, Dr), -1)  # [B, 1, H, ...]
    cos, sin = challenge_angles(torch.arange(cache.shape[1], device=x.device), Dr)
    q_rope = rotate_halves(q_rope, cos[length], sin[length])

    q_latent = torch.einsum("bhd,hdr->bhr", q_nope[:, 0], w_uk).contiguous()
    found = rotating_decode(q_latent, q_rope[:, 0].contiguous(), cache, cos, sin, length + 1, (Dn + Dr) ** -0.5)
    out = torch.einsum("bhr,hvr->bhv", found, w_uv)
    return out.flatten(1)[:, None] @ wo.T, cache
    ### END SOLUTION


# %% check="challenge_step"
check("challenge_step")

# %% [markdown]
# ## Hand it in, twice
#
# `mla-course submission NOTEBOOK` writes `submission.py`: your solution cells and what they need, with the
# `custom_kernel(data)` that the competition calls, and nothing of this course. `mla-course leaderboard` ranks a class:
# the time of `rotating_decode` at the four lengths, of those whose answers are right, by the geometric mean.
#
# ## Measure: where the time goes
#
# By count first. The next cell counts weights and cache once, and the results of each product. It holds these bytes
# against those of the two other forms, and models nothing else.

# %%
for T in (513, 6145):
    said = challenge_bytes(B, T, **sizes, rate=h200.rate(), bandwidth=h200.bandwidth())
    between = B * H * (2 * (Dn + Dr) + 4 * R + 2 * Dv) * 2 / 1e9  # queries and results, written and read
    moved = {name: said[f"{key}_bytes"] / 1e9 for name, key in (("weights", "weight"), ("cache", "cache"))}
    forms[f"fused, T = {T}"] = moved | {"made on the way": between}
order = [f"{form}, T = {T}" for T in (513, 6145) for form in ("naive", "absorbed", "fused")]
plots.stacked({name: forms[name] for name in order[3:]}, unit="GB moved, counted", title="T = 6145", log=True)

# %% [markdown]
# And by the clock, on an {{challenge_h200.device}} (`benchmarks/challenge.py`): our kernels in a CUDA graph, PyTorch's
# naive and absorbed form call by call. Each form's output and cache were held against a float64 oracle first, by the
# competition's tolerance. A form that does not fit into memory has no time. `mla_ref` has a kernel that does what yours
# does, through tensor descriptors. On an H100 or H200 it takes another way: a pass turns all cached keys, a ninth of
# the cache, and a kernel in Gluon attends to the cache, in which two groups of warps share the accumulator. That gains
# more than the pass costs.

# %%
H200_STEPS = "{{steps}}"  # microseconds by tokens before the step
H200_PARTS = "{{parts}}"  # of a step by mla_ref's kernels
for length, times in (H200_STEPS or {}).items():
    said = challenge_bytes(B, length + 1, **sizes, rate=h200.rate(), bandwidth=h200.bandwidth())
    line = ", ".join(f"{name} {us:,.0f} µs" if us else f"{name}: no time" for name, us in times.items())
    ours = times["mla_ref's kernels"]
    share = f"; mla_ref's kernels reach {said['floor_us'] / ours:.0%} of your floor's speed" if ours else ""
    print(f"{length} tokens: {line}{share}")
bars = {f"{length} tokens": each for length, each in (H200_PARTS or {}).items()}
title = "A step by mla_ref's kernels: each part alone in a CUDA graph"
plots.stacked(bars, unit="µs on an H200, measured", title=title) if bars else print("no record of an H200 yet")

# %% [markdown]
# On a GPU the next cell times your three steps, each behind 512 tokens.

# %%
from functools import partial

from mla_ref import bench

if emulated:
    print("kernels are emulated here, and there is nothing to time")
else:
    draw = lambda *shape: (torch.randn(shape, device=device) / shape[-1] ** 0.5).bfloat16()
    weights = (draw(Rq, D), draw(H * (Dn + Dr), Rq), draw(R + Dr, D), draw(H * (Dn + Dv), R), draw(D, H * Dv))
    given = draw(B, 1, D) * D**0.5, draw(B, 600, R + Dr) * (R + Dr) ** 0.5, 512
    for step in (naive_step, absorbed_step, challenge_step):
        print(f"{step.__name__}: {1e6 * bench(partial(step, *given, *weights, H)).median:,.0f} µs")

# %% [markdown]
# ## In the field
#
# - **Ports fail on conventions.** Halves or neighbours, rotated before the cache or after, angles in which dtype: each
#   gives numbers that look right. A test at the first few positions may pass; one at hundreds does not.
# - **The oracle must fit.** A checker that expands keys and values needs more memory than what it checks. A chunked one
#   costs time only.
# - **A kernel by hand-made addresses is not the end.** On an H100, 128 sequences of 4096 tokens with 128 heads:
#   absorbed attention by pointers takes {{pointers_us}} µs, by tensor descriptors {{tma_us}}{{!descriptors_faster}}.
#   The copy engine computes the addresses, and the registers are left to the accumulator.
# - **A cache that keeps keys as they were projected** can move a sequence to other positions. The price is what you
#   built here: a rotation at every read.
#
# Figures: {{records}}.

# %% [markdown]
# <details><summary>Appendix: what mla_ref does more</summary>
#
# **Keys a block ahead.** In `mla_ref/kernels/decode_rotating.py` latents come by descriptors, two blocks of them in
# shared memory, which leaves no room for keys and angles. Those are loaded into registers, a block ahead, and turned
# behind the products of the block before.
#
# **Splits.** With 128 sequences and 128 heads there are more programs than multiprocessors. With few sequences
# lesson 06's split-KV is needed; the kernel of `mla_ref` has it.
#
# **CUDA graphs.** A step of this layer is about ten launches. Started one by one from Python they can take longer than
# the GPU needs for a short context: capture them.
#
# </details>
