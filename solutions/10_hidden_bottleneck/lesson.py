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
# | `l2_knee` | where a sweep of sizes leaves the L2 | 3 | |
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
# - The **floor** is the longer of two times: the bytes of both products together over bandwidth, or their FLOPs over
#   rate. It is no sum of a floor for each product.
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
      floor_us      microseconds: the longer of moving all bytes and computing all FLOPs
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
reached = one["bytes"] / article_us / 1e3
print(f"\nthe article's {article_us} µs: {reached:.0f} GB/s; your floor: {one['floor_us']:.1f} µs")

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
# are packed along different axes. Packed, both have rows along the axis that is summed over, which a kernel reads in
# runs:
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
            1, 11, [(0, k // 2 * 3 + 1 - k % 2, 1, 1, (LOW, HIGH)[k % 2], nibble) for k, nibble in enumerate(nibbles)]
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
# `low, high = values[..., ::2] & 0xF, values[..., 1::2] & 0xF`, then `low | high << 4`. `& 0xF` cuts off the sign
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
    low, high = values[..., ::2] & 0xF, values[..., 1::2] & 0xF
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
# ms, which is 8.6 µs for each of 256 launches. The kernel unpacks: weights that torch unpacked before the launch do not
# count.
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
# *behind* `tl.dot`, and add. (To scale the weights in front of it is accepted too. It takes a multiplication for each
# weight, and in 16 bits one more rounding, which the tolerance has room for.)
#
# **Points for speed.** The case is B = 16, H = 128, Dn = 128, R = 512, groups of 128, in bfloat16. The floor is 2 µs,
# and a launch alone takes longer, so the bars are low. Half of the points: 0.1 of the floor's speed. All: 0.12 of it,
# and the speed of a call of **cuBLAS with 16-bit weights**, of which the article's kernel had half. This second
# condition decides where a GPU times both; by the model of one, cuBLAS's call takes longer than 0.12 allows.
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
# `acc += sums * scale[None, :]`. BLOCK_B is a power of two from 16 to 64. BLOCK_R is 64 with 4 warps,
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
    q_rows = q_ptr + (offs_b * H + h)[:, None] * DN
    rows = h * R + offs_r

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
        acc += sums * scale[None, :]
    out_ptrs = out_ptr + (offs_b * H + h)[:, None] * R + offs_r[None, :]
    tl.store(out_ptrs, acc, mask=some_b & (offs_r < R)[None, :])
    ### END SOLUTION


def absorb_query_int4(q_nope, packed, scales):
    """Bring the queries to the latent with packed weights, in one launch for all heads.

    q_nope: [B, H, Dn], float16 or bfloat16; packed: [H, R, Dn/2], uint8; scales: [H, R, Dn/group] in the dtype of the
    query. All contiguous, of fewer than 2**31 numbers; group is 32, 64 or 128.
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
# On an H200, with the L2 emptied before each call, the INT4 kernel of `mla_ref` is {{graded_gain}} times as fast as
# cuBLAS in this case. It multiplies as yours does, and turns integers into floats in a way of its own (appendix). The
# article's took more than twice cuBLAS's time. Before you believe either, look at the clock.
#
# ## Four clocks
#
# The time of one call can be taken in at least four ways:
#
# | clock | what is timed | the L2 |
# |---|---|---|
# | **wall** | Python's clock, from the call until Python knows that the GPU is done | warm |
# | **events** | between two CUDA events around a call that starts on an idle GPU | warm |
# | **graph** | a call among 20 in a CUDA graph, which the GPU starts without Python | warm |
# | **flushed** | the same, each call behind a write that empties the L2; the write's time is subtracted | empty |
#
# *Warm* means that the call before has left its 16 MiB of weights in the L2. Here is what the clocks say on an
# {{reconstruction_h200.device}} about one request (`benchmarks/reconstruction_h200.json`): the two products by cuBLAS
# (`torch.bmm`), float16, and the attention of `mla_ref`.

# %%
# microseconds
H200_PRODUCTS = "{{products}}"
H200_ATTENTION = "{{attention}}"  # by tokens of context

names = {"wall": "wall", "events": "events", "graph": "graph, L2 warm", "flushed": "graph, L2 flushed"}
bars = {
    label: {name: times[clock] for name, times in H200_PRODUCTS.items()} | {"attention": H200_ATTENTION[4096][clock]}
    for clock, label in names.items()
}
plots.stacked(bars, unit="µs on an H200, measured", title="One request, T = 4096: one layer by four clocks")

# %% [markdown]
# Wall and events say {{wall_one}} and {{events_one}} µs for a product that the GPU does in
# {{graph_one}}{{!four_times}}. That wall and events agree{{!events_as_wall}} is no confirmation. The first event is
# due as soon as the GPU is idle, which it is; then the GPU waits for Python, PyTorch and the driver to start the
# kernel, and the second event counts that wait.
#
# ## Exercise: which_clock
#
# Two clocks say something when they differ in *one* thing. Turn a table like the one above into numbers:
#
# - the **share** of the products in the layer by each clock: products over products and attention;
# - `launch_share`: wall and graph differ in who starts the kernel. What part of the products' wall time does the
#   device not need?
# - `l2_share`: the two graphs differ in where the weights come from. What part of the flushed time does a warm L2
#   save?
# - `of_floor`: only in the flushed graph all weights come from DRAM. What part of that time would DRAM need for the
#   weights at its full bandwidth?
#
# The products run one after the other, so their times add. There may be any number of them.
#
# <details><summary>Hint 1</summary>
#
# Add up the products first, one sum for each clock.
#
# </details>
# <details><summary>Hint 2</summary>
#
# "What part of the wall time does the device not need" is 1 minus what it needs over the wall time. What it needs while
# the L2 is warm is the warm graph, because repeated calls by the wall clock have a warm L2 too.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `1 - graph / wall`, `1 - graph / flushed`, and `1e6 * weight_bytes / bandwidth / flushed`, all of sums. About nine
# lines.
#
# </details>

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

# %% [markdown]
# ## Measure: is it 61 %?

# %%
weight_bytes = reconstruction_bytes(1, 0, **layer, **ceilings["H200"])["weight_bytes"]
print("    T     wall   events    graph   flushed   by bytes alone")
for T, attention in H200_ATTENTION.items():
    said = which_clock(list(H200_PRODUCTS.values()), attention, weight_bytes, h200.bandwidth())
    shares = "".join(f"{said[f'{clock}_share']:9.0%}" for clock in names)
    print(f"{T:5}{shares}{reconstruction_bytes(1, T, **layer, **ceilings['H200'])['share']:17.0%}")
print(f"\nof the products' wall time the device does not need {said['launch_share']:.0%}")
print(f"of their flushed time a warm L2 saves {said['l2_share']:.0%}; DRAM's floor is {said['of_floor']:.0%} of it")
article_attention_us = 23.0  # the attention beside its 35.6 µs
print(f"the article: {article_us / (article_us + article_attention_us):.0%}")

# %% [markdown]
# Four clocks, four answers, for the same kernels.
#
# - **Wall and events: {{wall_share}} and {{events_share}} %.** They compare how long Python takes to start things. Our
#   attention takes {{wall_attention}} µs by the wall clock, and its kernels run for {{graph_attention}} of them. These
#   two give the products their smallest shares here{{!wall_lowest}}; with an attention that starts as fast as
#   `torch.bmm` the wall clock would give them two thirds.
# - **Warm graph: {{graph_share}} %.** This is the device's time, as long as nothing else uses the L2.
# - **Flushed graph: {{flushed_share}} %.** This is nearest to serving. An engine decodes in CUDA graphs, so it does
#   not pay Python for each kernel. And before a layer's turn comes again, the weights of all other layers have passed
#   through the L2.
#
# *By bytes alone* says far more, {{bytes_share}} % at 4096 tokens. It takes the attention for a reading of its cache:
# {{cache_mb}} MB, {{cache_us}} µs of DRAM. The attention in fact takes {{flushed_attention}} µs{{!attention_waits}}.
# One request is too little to fill the memory's pipes, and what is left is latency.
#
# So about half{{!about_half}}: {{flushed_short}} % at 1024 tokens and {{flushed_long}} % at 8192, less with more
# context{{!falls_with_context}}. The article's main point stands. **With one request the two products cost about as
# much as attention, and whoever times attention alone does not see them.** Its 35.6 µs do not stand as the time of a
# GPU. Over 61 layers it says 2.17 ms a token; here it is {{model_ms}} ms flushed.
#
# Where may 61 % come from? The article does not say which clock it used, nor how long its context was. Three things
# point at launches. Its time does not change from B = 1 to B = 64, where your count has 1.6 times the bytes. It is 3.5
# times your floor for an H100. And half of it, for one product, is near what the wall clock says here for one `bmm`,
# {{wall_again}} µs. If one takes our products by the wall clock and our attention by the flushed graph, the share is
# {{mixed_share}} %. Both times are right, and their quotient means nothing.
#
# ## Measure: INT4 against cuBLAS
#
# The product into the query, by both graphs. The INT4 kernel is `mla_ref.kernels.absorb_query`, groups of 128:

# %%
BATCHES = "{{batches}}"
H200_LINES = "{{lines}}"  # microseconds
panels = {
    title: {label.rpartition(",")[0]: (BATCHES, us) for label, us in H200_LINES.items() if label.endswith(clock)}
    for clock, title in (("graph", "L2 warm"), ("flushed", "L2 flushed"))
}
plots.curves(panels, xlabel="batch B", ylabel="µs on an H200, measured", log="x")

# %% [markdown]
# With one request INT4 is {{warm_gain}} times as fast with a warm L2 and {{flushed_gain}} times with an empty
# one{{!int4_faster}}{{!more_when_flushed}}. That is far from the 3.8 times fewer bytes of your table: at 3 to 5 µs
# a kernel is mostly start, one trip to memory, and end. INT4 wins up to B = {{wins_up_to}} with an empty L2 and up to
# {{warm_wins_up_to}} with a warm one. From B = {{loses_from}} on it loses by both clocks{{!loses_at_256}}. The bytes
# of your table say why it cannot gain much there: the rows are more and more of them. They do not explain a loss.
# That is work: each integer has to be turned into a float, once for every block of requests.
#
# So with few requests INT4 is not slower here than cuBLAS in 16 bits, in the product into the query; in the other one
# it is from B = {{value_loses}} on, while the L2 is warm. The article's kernel was slower, and its profiler said why:
# it computed. What helps against that is in the appendix. With INT4 in both products their share of the layer, flushed
# and at T = 4096, falls from {{flushed_share}} to {{int4_flushed_share}} %, and 61 layers take {{int4_model_ms}} ms
# instead of {{model_ms}}. The price is the error of the weights. For normally distributed ones the product is off by
# {{error_32}} % with groups of 32 and by {{error}} % with groups of 128. What that does to a model: this course's small
# trained one needs {{bits_plain}} bits for a byte of text that it never saw, and {{bits_32}} with INT4 in these two
# weights of every layer, in groups of 32.
#
# On a GPU the next cell times your kernel, between events, with the L2 emptied before each call.

# %%
from functools import partial

from mla_ref import bench

if emulated:
    print("kernels are emulated here, and there is nothing to time")
else:
    weight = torch.randn(H, Dn, R, device=device).half() / 50
    packed, scales = (each.contiguous() for each in quantize_int4(weight, 1, 128))
    for B in (1, 16, 64, 256):
        q = torch.randn(B, H, Dn, device=device).half()
        calls = partial(torch.bmm, q.transpose(0, 1), weight), partial(absorb_query_int4, q, packed, scales)
        half_us, int4_us = (1e6 * bench(call).median for call in calls)
        print(f"B = {B:3}: cuBLAS {half_us:6.1f} µs, yours {int4_us:6.1f} µs")

# %% [markdown]
# ## The L2 sweep
#
# The article explains its result by the L2: 16 MB stay there, so fewer bytes from DRAM gain nothing. To test it, it
# let the weights grow from 8 to 128 MB, by R from 256 to 4096, and found a knee at 40 to 48 MB on its H100. This is a
# good experiment: it changes one thing. The same sweep in a warm graph, one request:

# %%
# [bytes of the weights in 16 bits, microseconds]
H200_HALF = "{{sweep_16}}"
H200_INT4 = "{{sweep_4}}"

lines = {}
for label, rows in (("16 bits, ours", H200_HALF), ("INT4, ours", H200_INT4)):
    lines[label] = [row[0] / 2**20 for row in H200_HALF], [row[1] for row in rows]
limit = {"L2 of an H200, {{l2_mib}} MiB": "{{l2_mib_again}}"}
plots.curves({"warm graph, B = 1": lines}, xlabel="MiB of weights in 16 bits", ylabel="µs, measured", verticals=limit)

# %% [markdown]
# ## Exercise: l2_knee
#
# Bytes over time is a poor measure of a small call: the time holds a **fixed** part, for starting and ending. What one
# more row of the table adds says more. The **step bandwidth** between two neighbouring rows is bytes added over time
# added. While the L2 serves the reads it is above what DRAM can give; the knee is where it first falls below. Beyond
# it a step may be fast again: no measured line is straight.
#
# | | |
# |---|---|
# | `rows` | list of [bytes, µs], ascending; a step below `bandwidth`, not the first, has two rows behind |
# | `bandwidth` | bytes/s that a plain copy gets from DRAM |
# | `knee_bytes` | bytes of the row in front of the first step below `bandwidth` |
# | `l2_gb_per_s` | step bandwidth from the first row to the knee's, in 10⁹ bytes/s |
# | `dram_gb_per_s` | step bandwidth from the row *behind* the knee's to the last one: the step itself is a mixture |
# | `fixed_us` | time of the first row, less what its bytes take at the L2's bandwidth |
#
# <details><summary>Hint 1</summary>
#
# A helper that takes two rows and returns bytes per second does all three jobs.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `next(n for n in range(len(rows) - 1) if rate(rows[n], rows[n + 1]) < bandwidth)` is the knee's row.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `rate(rows[0], rows[n])` and `rate(rows[n + 1], rows[-1])`, over 1e9. The fixed time is `rows[0][1] - 1e6 *
# rows[0][0] / l2`, with the L2's bandwidth in bytes/s. About eight lines.
#
# </details>

# %% solution="l2_knee"
def l2_knee(rows, bandwidth):
    """Find where a sweep of sizes leaves the L2, and what serves it on both sides.

    rows: list of [bytes, us], ascending, of calls that read so many bytes; bandwidth: bytes/s of a copy from DRAM.

    Returns a dict of numbers:
      knee_bytes     the last size before a step whose bandwidth is below that of DRAM
      l2_gb_per_s    from the first row to the knee's
      dram_gb_per_s  from the row behind the knee's to the last
      fixed_us       what a call takes besides its bytes

    The traps: the time of a small call is not that of its bytes; the knee is at the first slow step, whatever
    follows, be it faster or slower still.
    """
    ### BEGIN SOLUTION
    def rate(low, high):
        return 1e6 * (high[0] - low[0]) / (high[1] - low[1])

    knee = next(n for n in range(len(rows) - 1) if rate(rows[n], rows[n + 1]) < bandwidth)
    l2 = rate(rows[0], rows[knee])
    return {
        "knee_bytes": rows[knee][0],
        "l2_gb_per_s": l2 / 1e9,
        "dram_gb_per_s": rate(rows[knee + 1], rows[-1]) / 1e9,
        "fixed_us": rows[0][1] - 1e6 * rows[0][0] / l2,
    }
    ### END SOLUTION


# %% check="l2_knee"
check("l2_knee")

# %%
copy = "{{copy_tb}}" * 1e12  # bytes/s, of 1 GiB, in the same run
said = l2_knee(H200_HALF, copy)
behind = next(size for size, _ in H200_HALF if size > said["knee_bytes"])
print(f"the knee: after {said['knee_bytes'] / 2**20:.0f} MiB, before {behind / 2**20:.0f} MiB")
print(f"L2 {said['l2_gb_per_s']:,.0f} GB/s, DRAM {said['dram_gb_per_s']:,.0f} GB/s, a copy {copy / 1e9:,.0f} GB/s")
print(f"fixed: {said['fixed_us']:.1f} µs a call")

ratios = "{{ratios}}"  # time of INT4 over cuBLAS's, by MiB of 16-bit weights
own = {size / 2**20: int4 / half for (size, half), (_, int4) in zip(H200_HALF, H200_INT4, strict=True)}
for name, each in (("cuBLAS", ratios), ("our 16 bits", own)):
    print(f"INT4 over {name}:", ", ".join(f"{mib:.0f} MiB {ratio:.2f}" for mib, ratio in each.items()))

# %% [markdown]
# There is a knee, and beyond it the 16-bit weights come at DRAM's pace ({{copy}} GB/s in a copy). It is between
# {{knee}} and {{behind_knee}} MiB, and the L2 has {{l2_mib}}{{!knee_below_l2}}: why it is so early is not measured
# here. INT4 weights are a quarter as large and stay in the L2 for longer. The ratio to our own 16 bits falls from
# {{own_16}} at 16 MiB to {{own_32}} at 32, in the L2, where fixed time counts less and less. It falls as much once more
# behind the knee, to {{own_128}} at 128 MiB: by {{own_fall}} in all{{!falls_too}}. The ratio to cuBLAS goes up and
# down, because cuBLAS's own times do. The article's falls from 1.86 to 1.08, by {{article_fall}}. The article saw the
# right thing, at another height: its ratios are above 1 because its kernel computed for too long, not because of the
# L2.
#
# ## In the field: how a measurement misleads
#
# The article names its shapes, publishes a table, changes one thing in its sweep, and states what it did not measure.
# That is why it can be checked. What stands of it, and what does not:
#
# | the article | here |
# |---|---|
# | the products are a bottleneck at one request that nobody profiles | stands: about half of the layer |
# | 35.6 µs, 61 %, 2.17 ms a token | not the GPU's time, probably that of launches; {{model_ms}} ms a token |
# | memory decides, at every batch | stands: your intensity stays below 103 FLOP per byte |
# | INT4 in these weights costs little quality: +0.051 perplexity | not measured here; it is the article's figure |
# | INT4 is twice as slow as cuBLAS | true of its kernel; one that computes less is faster |
# | the L2 hides the cost of 16-bit weights | stands for repeated calls; in serving the L2 holds other layers' |
# | a knee where the weights leave the L2 | stands |
#
# Four habits follow.
#
# - **Ask of every figure which clock it is from.** A time that stays when the work grows is not the work's.
# - **Compare clocks that differ in one thing**, and never take a quotient across two clocks.
# - **Warm or cold is a choice.** Say which, and which of them production has.
# - **A slow kernel does not show that an idea is slow.** Hold it against the floor first.
#
# Figures: {{records}}.

# %% [markdown]
# <details><summary>Appendix: traps elsewhere, and what made the kernel fast</summary>
#
# **The profiler has a clock of its own.** The article's profiler found DRAM busy at 35 % with 8 MB of weights, which
# would lie in the L2 if they were read twice. Nsight Compute empties all caches before each kernel that it replays,
# unless told otherwise (`--cache-control all` is its default). So its counters describe the flushed case, and the
# article's times the warm one: two clocks again.
#
# **`do_bench` and small kernels.** `triton.testing.do_bench` times between events. For a call of a few microseconds
# these hold more than the kernel. Lesson 00 has the same product both ways on an H100: {{do_bench}} µs by `do_bench`,
# with the L2 flushed, and {{in_graph}} µs in a graph, where the L2 is warm: that is part of the difference.
#
# **Turning integers into floats.** `mla_ref`'s kernel does not shift and convert. It puts the nibble where it is into
# the mantissa of a float whose unit is 1 there, and subtracts a constant: two bit operations and one subtraction for
# each weight (`nibble_to_float`). For one request it leaves the tensor cores out, reads four bytes at a time, and has
# all of its loads on the way before it waits for the first.
#
# **Transposing a packed weight.** It takes quantising again, from the source: groups along one axis are no groups
# along the other. Where an engine transposed packed weights on loading, its tokens changed (mlx-lm #1509). That is why
# `quantize_int4` takes the axis.
#
# **Absorbing beforehand.** One could multiply W_UQ by W_UK once and store the result, to save a product. It undoes the
# low rank: the result is larger than both (flashinfer #551).
#
# **Peak figures.** The ridge of an H100 is 295 FLOP per byte with the dense rate. Data sheets also print a rate with
# sparsity, which is twice that (FlashMLA #75).
#
# </details>
