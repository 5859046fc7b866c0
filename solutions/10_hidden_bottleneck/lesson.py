# %% [markdown]
# # Lesson 10: the hidden bottleneck
#
# Absorbed attention has two products that lessons 06 to 09 left out: the query goes into the latent, and the result
# comes back out of it. An article measured them: *The Hidden Bottleneck in MLA Serving: Reconstruction GEMMs and the
# L2 Cache Barrier* ("the article"). It says that they take **61 %** of the attention layer, and that weights of four
# bits make them *slower*. You predict what they cost, pack their weights into INT4, write the kernel that reads them,
# and find out what the article's clock showed. Allow five hours: one to read, four for the exercises.
#
# | exercise | you write | points right | points fast |
# |---|---|---|---|
# | `reconstruction_bytes` | bytes, intensity and floor of both products | 3 | |
# | `quantize_int4` | weights in groups, four bits each | 4 | |
# | `dequantize_int4` | the way back | 3 | |
# | `absorb_query_int4` | the kernel that multiplies with packed weights | 5 | 3 |
# | `which_clock` | what each of four clocks says | 3 | |
#
# Each exercise may take 10 s and 512 MiB for all its cases; hidden cases have odd sizes. Speed is that of an H100.
#
# | symbol | meaning | DeepSeek-V3 |
# |---|---|---|
# | B, T | requests in the batch, one new token each; tokens of context of each | |
# | H | heads | 128 |
# | Dn, Dr, Dv | width per head: without position, with position (RoPE), value | 128, 64, 128 |
# | R | width of the latent | 512 |
# | group | weights in a row that share a scale | 32, 64 or 128 |

# %% setup="imports"
import torch
from autograder import check, check_speed
from mla_ref.hardware import emulator

emulated = emulator.prepare()  # whether kernels run on the CPU, for lack of a GPU

import triton
import triton.language as tl

device = "cpu" if emulated else "cuda"

# %% [markdown]
# ## Why: what a layer reads
#
# A decode step of one layer, absorbed (lesson 03):
#
# 1. **into the query**: `q_nope` [B, H, Dn] times `w_uk` [H, Dn, R] gives `q_latent` [B, H, R];
# 2. **attention** over the latent cache, T tokens of R + Dr words for each request;
# 3. **value reconstruction**: its result [B, H, R] times `w_uv` [H, Dv, R] gives [B, H, Dv].
#
# Steps 1 and 3 are batched matrix products, one for each head. The article calls them reconstruction GEMMs. Their
# weights are the same whatever B and T are. The picture has the bytes that one request reads, in 16-bit words.

# %%
from mla_ref import DEVICES, plots

H, Dn, Dr, Dv, R = 128, 128, 64, 128, 512
weights = {"w_uk": 2 * H * Dn * R / 1e6, "w_uv": 2 * H * Dv * R / 1e6}
rows = {f"one request, T = {T}": weights | {"cache": 2 * T * (R + Dr) / 1e6} for T in (1024, 4096, 16384, 65536)}
plots.stacked(rows, unit="MB read by one layer", title="DeepSeek-V3, B = 1")

# %% [markdown]
# With one request the weights are more than the cache up to 29,000 tokens of context. The article is right about
# that: who times attention alone leaves out most of what is read. With B requests the weights are still read once,
# and there are B caches.

# %% [markdown]
# ## Predict: bytes, intensity, floor
#
# Count both products of one decode step. Rules, as in lesson 08:
#
# - Weights are read once for the whole batch. The rows that go in are read, and the results are written. All words
#   have two bytes.
# - One multiply-accumulate is two FLOPs. Intensity is FLOPs per byte moved.
# - The **floor** is the longer of two times: bytes over bandwidth, FLOPs over rate.
# - For the attention take the time to read the caches, 2·B·T·(R+Dr) bytes, and nothing else. The **share** is what
#   part of products and attention together the products are.
# - With INT4, a weight has half a byte, and each group of weights has a scale of two bytes. Rows and results stay as
#   they are. The **gain** is how many times fewer bytes both products then move.
#
# <details><summary>Hint 1</summary>
#
# Each head multiplies a row of Dn with [Dn, R], and a row of R with [R, Dv]. So there are H·R·(Dn+Dv) weights, and as
# many multiply-accumulates for each request.
#
# </details>
# <details><summary>Hint 2</summary>
#
# For each request and head, Dn words go in and R come out of the first product; R go in and Dv come out of the second.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `weights = H * R * (Dn + Dv)`, `rows = 2 * B * H * (Dn + R + R + Dv)`, `size = 2 * weights + rows`, `flops = 2 * B *
# weights`. With INT4 the weights take `weights / 2 + 2 * weights / group` bytes. About ten lines.
#
# </details>

# %% solution="reconstruction_bytes"
def reconstruction_bytes(B, T, H, Dn, Dr, Dv, R, group, rate, bandwidth):
    """What the two products of a decode step move, and what that takes at least.

    B, T: int, requests and tokens of context of each; H, Dn, Dr, Dv, R: int, the layer's sizes; group: int,
    INT4 weights that share a scale; rate: FLOP/s; bandwidth: bytes/s. Words have two bytes.

    Returns a dict of numbers, for both products together:
      weight_bytes  of w_uk and w_uv
      bytes         weights, rows that go in, results
      intensity     FLOPs per byte
      floor_us      microseconds: the longer of reading and computing
      share         floor over floor and reading of the caches, 0 to 1
      int4_gain     bytes over bytes with INT4 weights

    The traps: there are two products; scales are bytes too.
    """
    ### BEGIN SOLUTION
    weights = H * R * (Dn + Dv)
    rows = 2 * B * H * (Dn + R + R + Dv)
    size, flops = 2 * weights + rows, 2 * B * weights
    floor = max(size / bandwidth, flops / rate)
    attention = 2 * B * T * (R + Dr) / bandwidth
    return {
        "weight_bytes": 2 * weights,
        "bytes": size,
        "intensity": flops / size,
        "floor_us": 1e6 * floor,
        "share": floor / (floor + attention),
        "int4_gain": size / (weights / 2 + 2 * weights / group + rows),
    }
    ### END SOLUTION


# %% check="reconstruction_bytes"
check("reconstruction_bytes")

# %% [markdown]
# Now hold the article's figures against yours. It has an H100, whose memory gives 3.35 TB/s.

# %%
h100, h200 = DEVICES["h100"], DEVICES["h200"]
layer = dict(H=H, Dn=Dn, Dr=Dr, Dv=Dv, R=R, group=128)
ceilings = {name: dict(rate=gpu.rate(), bandwidth=gpu.bandwidth()) for name, gpu in (("H100", h100), ("H200", h200))}
print("   B   MB moved   FLOP/byte   floor H100   floor H200   share at T = 4096   INT4 gain")
for B in (1, 16, 64, 128, 256):
    one, other = (reconstruction_bytes(B, 4096, **layer, **each) for each in ceilings.values())
    line = f"{B:4} {one['bytes'] / 1e6:10.1f} {one['intensity']:11.1f} {one['floor_us']:9.1f} µs"
    print(line + f" {other['floor_us']:9.1f} µs {one['share']:19.0%} {one['int4_gain']:11.2f}")

article_us = 35.6  # both products, B = 1
one = reconstruction_bytes(1, 4096, **layer, **ceilings["H100"])
print(f"\nthe article's {article_us} µs: {one['bytes'] / article_us / 1e3:.0f} GB/s; your floor: {one['floor_us']:.1f} µs")

# %% [markdown]
# Three things can be read off before anybody measures.
#
# - The article prints 952 GB/s as its lowest bandwidth. That is your bytes over its 35.6 µs, so the 35.6 µs are both
#   products together.
# - All batches of the table are left of the ridge, 295 FLOP per byte on an H100: memory decides. The article says so
#   too. (It prints 93 FLOP per byte for B = 128, and does not say what it counts.)
# - The article's time at B = 64, 36 µs, is that at B = 1. By your count it moves 1.6 times the bytes, and computes
#   64 times as much. A time that does not change when the work does is not the work's. Keep this in mind.
#
# ## INT4 in groups
#
# Fewer bytes are the obvious remedy. The article evaluated what it costs in quality: with DeepSeek-V2-Lite on
# wikitext-2, INT4 in these two weights alone raises the perplexity from 5.727 to 5.777, and in all linear weights to
# 11.784. (These figures are the article's. This course has not measured them.)
#
# **Group-wise symmetric** means: the weights of a group are integers from −7 to 7 times one scale. The scale is the
# group's largest magnitude over 7. A group is a run of weights **along the axis that the product sums over**. Then
# the scale is a factor of a part of the sum, and it can be multiplied once for each group:
#
# $$\sum_k x_k w_k = \sum_g s_g \sum_{k \in g} x_k\, n_k, \qquad w_k \approx s_g\, n_k$$
#
# `w_uk` [H, Dn, R] is summed over Dn, the middle axis. `w_uv` [H, Dv, R] is summed over R, the last one. So the two
# are packed along different axes. In both cases what comes out is rows along the axis that is summed over, which a
# kernel reads in runs:
#
# | | shape | |
# |---|---|---|
# | `weight` | [H, K, N] with `axis=1`, [H, N, K] with `axis=2` | K is the width summed over, N that of the result |
# | `packed` | [H, N, K/2], uint8 | byte i of a row: weight 2i in the low nibble, 2i + 1 in the high one |
# | `scales` | [H, N, K/group], dtype of the weight | |
#
# A **nibble** is half a byte, four bits. Negative integers are in **two's complement**: −1 is 0xF, −7 is 0x9. In the
# picture a row of eight weights with a group of four becomes four bytes and two scales.

# %%
row, group = torch.tensor([3.0, -1.0, 7.0, 0.0, -0.5, 0.2, 0.1, 0.35]), 4
scales = row.view(-1, group).abs().amax(-1) / 7
integers = (row.view(-1, group) / scales[:, None]).round().int().flatten()
nibbles = [f"{n & 0xF:X}" for n in integers.tolist()]
LOW, HIGH = "#56B4E9", "#E69F00"
plots.matrices(
    {
        f"integers, scales {scales[0]:.2f} and {scales[1]:.3f}": (
            1, 8, [(0, k, 1, 1, (LOW, HIGH)[k % 2], str(n)) for k, n in enumerate(integers.tolist())]
        ),
        "packed: hexadecimal": (
            1, 8, [(0, 2 * (k // 2) + 1 - k % 2, 1, 1, (LOW, HIGH)[k % 2], nibble) for k, nibble in enumerate(nibbles)]
        ),
    },
    title="low nibbles blue, high ones orange: a byte is written with its high nibble first",
)  # fmt: skip

# %% [markdown]
# ## Exercise: quantize_int4
#
# In PyTorch. For each group: the scale, the integers by rounding to the nearest, then the bytes. A group of zeros has
# no largest magnitude to divide by; its integers are 0, and its scale is 1.
#
# `axis` is 1 or 2, `group` is 32, 64 or 128 and divides K. The weight has any floating dtype; its scales have the
# same.
#
# <details><summary>Hint 1</summary>
#
# Turn the weight into rows first: `weight.mT` for `axis=1`. Then `.unflatten(-1, (-1, group))` gives the groups an
# axis of their own, [H, N, K/group, group].
#
# </details>
# <details><summary>Hint 2</summary>
#
# `largest = groups.abs().amax(-1)`, and `torch.where(largest > 0, largest / 7, 1.0)` for the scales. Integers:
# `(groups / scales[..., None]).round().to(torch.int8)`, flattened to rows again.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `low, high = values[..., 0::2] & 0xF, values[..., 1::2] & 0xF`, then `low | high << 4`. `& 0xF` cuts off the sign
# bits: −1 is 0xFF in eight bits. Do this in a type that holds 255, such as int32, and cast to uint8 at the end.
#
# </details>

# %% solution="quantize_int4"
def quantize_int4(weight, axis, group):
    """Quantise a weight to integers of -7 to 7, with a scale for each group, and pack them.

    weight: [H, K, N] with axis 1 or [H, N, K] with axis 2, any floating dtype; axis: int, the one that the product
    sums over; group: int, 32, 64 or 128, divides K.

    Returns packed [H, N, K/2], uint8, and scales [H, N, K/group] in the dtype of the weight. Weight k is its integer
    times scales[..., k // group]; byte i holds weight 2i in its low nibble, 2i + 1 in its high one, in two's
    complement. A group of zeros has scale 1.

    The traps: the axis of the groups; the sign bits of a low nibble; 0/0.
    """
    ### BEGIN SOLUTION
    rows = weight.mT if axis == 1 else weight  # [H, N, K]
    groups = rows.unflatten(-1, (-1, group))
    largest = groups.abs().amax(-1)
    scales = torch.where(largest > 0, largest / 7, torch.ones_like(largest))
    values = (groups / scales[..., None]).round().flatten(-2).to(torch.int32)
    low, high = values[..., 0::2] & 0xF, values[..., 1::2] & 0xF
    return (low | high << 4).to(torch.uint8), scales
    ### END SOLUTION


# %% check="quantize_int4"
check("quantize_int4")

# %% [markdown]
# ## Exercise: dequantize_int4
#
# The way back, which shows what a kernel has to do with every byte. A nibble of 8 to 15 stands for −8 to −1: **sign
# extension**. On an int8 a shift to the right keeps the sign; on a uint8 it brings in zeros.
#
# <details><summary>Hint 1</summary>
#
# The size of a group is in the shapes: `2 * packed.shape[-1] // scales.shape[-1]`.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `n ^ 8` flips the highest of the four bits, and `(n ^ 8) - 8` is the sign extension of a nibble n from 0 to 15, in a
# signed type. `torch.stack((low, high), -1).flatten(-2)` puts neighbours side by side again.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `packed.int() & 0xF` and `packed.int() >> 4`, extended and stacked; `.unflatten(-1, (-1, group)) * scales[..., None]`,
# flattened; `.mT` for `axis=1`. Five lines.
#
# </details>

# %% solution="dequantize_int4"
def dequantize_int4(packed, scales, axis):
    """Return the weight that packed integers and scales stand for.

    packed: [H, N, K/2], uint8; scales: [H, N, K/group]; axis: int, 1 or 2: all as quantize_int4 has them.

    Returns [H, K, N] with axis 1, [H, N, K] with axis 2, in the dtype of the scales.

    The traps: the sign of both nibbles; which one is first; which group a weight is in.
    """
    ### BEGIN SOLUTION
    group = 2 * packed.shape[-1] // scales.shape[-1]
    low, high = ((nibble ^ 8) - 8 for nibble in (packed.int() & 0xF, packed.int() >> 4))
    values = torch.stack((low, high), -1).flatten(-2)  # [H, N, K]
    rows = (values.unflatten(-1, (-1, group)) * scales[..., None]).flatten(-2)
    return rows.mT if axis == 1 else rows
    ### END SOLUTION


# %% check="dequantize_int4"
check("dequantize_int4")

# %% [markdown]
# What is lost, for normally distributed weights: the relative error of the weights, and of a product with them.

# %%
torch.manual_seed(10)
w_uk, x = torch.randn(4, 128, 256), torch.randn(16, 4, 128)
exact = torch.einsum("bhd,hdr->bhr", x, w_uk)
print("group   bits a weight   error of the weights   error of the product")
for group in (32, 64, 128):
    held = dequantize_int4(*quantize_int4(w_uk, 1, group), 1)
    off = (held - w_uk).norm() / w_uk.norm()
    product = (torch.einsum("bhd,hdr->bhr", x, held) - exact).norm() / exact.norm()
    print(f"{group:5} {4 + 16 / group:15.2f} {off:22.1%} {product:22.1%}")

# %% [markdown]
# The error of the product is that of the weights: K independent errors add up as K independent terms do. It is far
# above the rounding of 16 bits. What it does to a model is a question for a test of the model, such as the article's
# perplexity.
#
# ## The kernel: no nibble has to move
#
# The natural way to a product is to unpack a block of weights into [BLOCK_R, Dn], and to multiply. Unpacking then puts
# low and high nibbles side by side, between threads. But a sum may be taken in any order. Take the even and the odd
# weights apart:
#
# $$\sum_k x_k n_k = \sum_i x_{2i}\, \text{low}_i + \sum_i x_{2i+1}\, \text{high}_i$$
#
# All low nibbles of a block of bytes are one operand of `tl.dot`, all high ones are another. The query is loaded
# twice, its even columns and its odd ones. No nibble meets another.

# %%
BYTES, EVEN, ODD = "#CCCCCC", "#56B4E9", "#E69F00"
plots.matrices(
    {
        "q_nope [B, group]": (3, 8, [(0, k, 3, 1, (EVEN, ODD)[k % 2], "") for k in range(8)]),
        "bytes [BLOCK_R, group / 2]": (5, 4, [(0, 0, 5, 4, BYTES, "loaded once")]),
        "low": (5, 4, [(0, 0, 5, 4, EVEN, "times even")]),
        "high": (5, 4, [(0, 0, 5, 4, ODD, "times odd")]),
    },
    title="One group: two products, then one scale for each row",
)

# %% [markdown]
# ## Exercise: absorb_query_int4
#
# The product into the query, with packed weights. **Heads in the grid**: one launch for all heads, each program has
# one head, a block of results, and a block of requests. The article has this too; a launch for each head took it 2.19
# ms, which is 8.6 µs for each of 256 launches.
#
# | | shape | dtype |
# |---|---|---|
# | `q_nope` | [B, H, Dn] | float16 or bfloat16 |
# | `packed` | [H, R, Dn/2], what `quantize_int4(w_uk, 1, group)` gives | uint8 |
# | `scales` | [H, R, Dn/group] | that of the query |
# | returns `q_latent` | [B, H, R] | that of the query |
#
# All are contiguous. B and R are any numbers from 1 on; Dn is a multiple of the group, which is 32, 64 or 128. One
# launch. (Nibbles may be −8 too: the kernel does not know who packed them.)
#
# What you need beside lesson 05: bit operations work on blocks of integers, as in `dequantize_int4`. A block of uint8
# is best cast to `tl.int32` before them. `low.to(q.dtype)` is exact: 16-bit floats hold −8 to 7. With `tl.trans`, a
# block [BLOCK_R, group/2] is the second operand. The accumulator stays float32: multiply a group's sum by its scale
# *behind* `tl.dot`, and add.
#
# **Points for speed.** The case is B = 16, H = 128, Dn = 128, R = 512, groups of 128, in bfloat16. The floor is 2 µs,
# and a launch alone takes longer, so the bars are low. Half of the points: 0.12 of the floor's speed. All: 0.15 of it,
# and 1.15 times the speed of **cuBLAS with 16-bit weights**, which the article's kernel had half of.
#
# <details><summary>Hint 1</summary>
#
# The grid is `(triton.cdiv(R, BLOCK_R), H, triton.cdiv(B, BLOCK_B))`. Row r of head h is row `h * R + r` of `packed`
# and of `scales`; row b of the query is row `b * H + h`. The loop goes over the groups, `range(DN // GROUP)`.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `offs_i = tl.arange(0, GROUP // 2)` are the bytes of a group in a row. The even columns of the query are at `g *
# GROUP + 2 * offs_i`, the odd ones one further. `low = ((words & 0xF) ^ 8) - 8` and `high = ((words >> 4) ^ 8) - 8`,
# with `words = packed.to(tl.int32)`.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `sums = tl.dot(even, tl.trans(low.to(even.dtype)))`, then `sums = tl.dot(odd, tl.trans(high.to(odd.dtype)), sums)` and
# `acc += sums * scale[None, :].to(tl.float32)`. BLOCK_B is a power of two from 16 to 64. BLOCK_R is 64 with 4 warps,
# or 256 with 8.
#
# </details>

# %% solution="absorb_query_int4"
@triton.jit
def absorb_query_int4_kernel(
    q_ptr, packed_ptr, scales_ptr, out_ptr, B, H, R,
    DN: tl.constexpr, GROUP: tl.constexpr, BLOCK_B: tl.constexpr, BLOCK_R: tl.constexpr,
):
    """One program: BLOCK_R columns of the result of one head, for BLOCK_B requests.

    q_ptr: [B, H, DN]; packed_ptr: [H, R, DN / 2]; scales_ptr: [H, R, DN / GROUP]; out_ptr: [B, H, R].
    """
    ### BEGIN SOLUTION
    h = tl.program_id(1)
    offs_r = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)
    offs_b = tl.program_id(2) * BLOCK_B + tl.arange(0, BLOCK_B)
    offs_i = tl.arange(0, GROUP // 2)
    some_b, some_r = (offs_b < B)[:, None], (offs_r < R)[:, None]
    q_rows = q_ptr + (offs_b * H + h)[:, None].to(tl.int64) * DN
    rows = (h * R + offs_r).to(tl.int64)

    acc = tl.zeros([BLOCK_B, BLOCK_R], tl.float32)
    for g in range(DN // GROUP):
        # [BLOCK_R, GROUP / 2] and [BLOCK_R]
        words = tl.load(
            packed_ptr + rows[:, None] * (DN // 2) + g * (GROUP // 2) + offs_i[None, :], mask=some_r, other=0
        ).to(tl.int32)
        scale = tl.load(scales_ptr + rows * (DN // GROUP) + g, mask=offs_r < R, other=0.0)
        # [BLOCK_B, GROUP / 2]
        even = tl.load(q_rows + g * GROUP + 2 * offs_i[None, :], mask=some_b, other=0.0)
        odd = tl.load(q_rows + g * GROUP + 2 * offs_i[None, :] + 1, mask=some_b, other=0.0)
        low, high = ((words & 0xF) ^ 8) - 8, ((words >> 4) ^ 8) - 8
        sums = tl.dot(even, tl.trans(low.to(even.dtype)))
        sums = tl.dot(odd, tl.trans(high.to(odd.dtype)), sums)
        acc += sums * scale[None, :].to(tl.float32)
    out_ptrs = out_ptr + (offs_b * H + h)[:, None].to(tl.int64) * R + offs_r[None, :]
    tl.store(out_ptrs, acc, mask=some_b & (offs_r < R)[None, :])
    ### END SOLUTION


def absorb_query_int4(q_nope, packed, scales):
    """Bring the queries to the latent with packed weights, in one launch for all heads.

    q_nope: [B, H, Dn], float16 or bfloat16; packed: [H, R, Dn/2], uint8; scales: [H, R, Dn/group] in the dtype of the
    query. All contiguous; group is 32, 64 or 128.
    Returns q_latent [B, H, R] in the dtype of the query. Launches absorb_query_int4_kernel once.

    The traps: the sign of both nibbles; a scale for each group and row; B and R that no block divides.
    """
    ### BEGIN SOLUTION
    (B, H, Dn), R = q_nope.shape, packed.shape[1]
    q_latent = torch.empty((B, H, R), dtype=q_nope.dtype, device=q_nope.device)
    block_b, block_r = min(max(triton.next_power_of_2(B), 16), 64), 256
    absorb_query_int4_kernel[(triton.cdiv(R, block_r), H, triton.cdiv(B, block_b))](
        q_nope, packed, scales, q_latent, B, H, R,
        DN=Dn, GROUP=Dn // scales.shape[2], BLOCK_B=block_b, BLOCK_R=block_r, num_warps=8,
    )
    return q_latent
    ### END SOLUTION


# %% check="absorb_query_int4"
check("absorb_query_int4")

# %% speed="absorb_query_int4"
check_speed("absorb_query_int4")

# %% [markdown]
# ## Exercise: which_clock

# %% solution="which_clock"
def which_clock(products, attention, weight_bytes, bandwidth):
    """Read a layer's times by four clocks.

    products: list of dicts, one for each product; attention: dict. The dicts have microseconds for "wall", "events",
    "graph" and "flushed". weight_bytes: int, of all products together; bandwidth: bytes/s, of DRAM.

    Returns a dict of numbers, with the products one after the other:
      wall_share, events_share, graph_share, flushed_share   products over products and attention, by each clock
      launch_share   of the products' wall time: what the device does not need
      l2_share       of the products' flushed time: what a warm L2 saves
      of_floor       the time in which DRAM could give the weights, over the flushed time

    The trap: two clocks can be compared where they differ in one thing.
    """
    ### BEGIN SOLUTION
    clocks = ("wall", "events", "graph", "flushed")
    total = {clock: sum(each[clock] for each in products) for clock in clocks}
    shares = {f"{clock}_share": total[clock] / (total[clock] + attention[clock]) for clock in clocks}
    return shares | {
        "launch_share": 1 - total["graph"] / total["wall"],
        "l2_share": 1 - total["graph"] / total["flushed"],
        "of_floor": 1e6 * weight_bytes / bandwidth / total["flushed"],
    }
    ### END SOLUTION


# %% check="which_clock"
check("which_clock")
