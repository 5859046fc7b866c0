"""The batched products with INT4 weights: integers become floats in registers, each group's sum is scaled once.

No nibble has to move to meet its factor: what lies at the same place of every byte or word is one operand, and every
second or eighth value of ``x`` is the other.
"""

import triton
import triton.language as tl

ZERO = 150 << 23 | 8  # bits of the float32 2^23 + 8


@triton.jit
def place(OVERLAP: tl.constexpr, BLOCK_M: tl.constexpr):
    """Return a program's first row, head and block of columns: those that read the same weights are neighbours."""
    if OVERLAP:  # programs are there before the kernel ahead of this one has ended, and wait for that
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    return tl.program_id(0) * BLOCK_M, tl.program_id(2).to(tl.int64), tl.program_id(1).to(tl.int64)


@triton.jit
def nibble_to_float(words, zero, SHIFT: tl.constexpr):
    """Return the nibble of int32 words that begins at bit SHIFT as float32 -8 to 7.

    Where it is, up to bit 19, it becomes the end of the mantissa of 2^(23 - SHIFT), where its unit is 1: no shift of
    its own, no conversion. Flipping its sign bit adds 8. ``zero`` is :data:`ZERO`, as an argument of the kernel and no
    constant: then one instruction takes the nibble out and puts the exponent in, which with two constants are two.
    """
    PLACE: tl.constexpr = SHIFT - 16 if SHIFT > 19 else SHIFT
    bits = ((words >> (SHIFT - PLACE)) & (0xF << PLACE)) ^ (zero + ((8 << PLACE) - 8 - (PLACE << 23)))
    return bits.to(tl.float32, bitcast=True) - ((1 << (23 - PLACE)) + 8)


@triton.jit
def every_eighth(x, LENGTH: tl.constexpr):
    """Return x ``[8 LENGTH]`` as eight vectors ``[LENGTH]``, that with ``x[j]``, ``x[8 + j]``, ... as the one at j.

    One load of ``x`` as it lies, in 16 bytes at a time, instead of eight that wait for one another.
    """
    even, odd = tl.split(tl.reshape(x, [LENGTH, 4, 2]))
    even_0, even_1 = tl.split(tl.reshape(even, [LENGTH, 2, 2]))
    odd_0, odd_1 = tl.split(tl.reshape(odd, [LENGTH, 2, 2]))
    x0, x4 = tl.split(even_0)
    x2, x6 = tl.split(even_1)
    x1, x5 = tl.split(odd_0)
    x3, x7 = tl.split(odd_1)
    return x0, x1, x2, x3, x4, x5, x6, x7


@triton.jit
def _one_row_int4(
    x_ptr, words_ptr, scales_ptr, zero, out_ptr, S, N,
    stride_xb, stride_xs, stride_xh, stride_xd, stride_ob, stride_os, stride_oh, stride_od,
    K: tl.constexpr, GROUP: tl.constexpr, OVERLAP: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    m, h, block_n = place(OVERLAP, 1)
    b, s = (m // S).to(tl.int64), (m % S).to(tl.int64)
    offs_n = block_n * BLOCK_N + tl.arange(0, BLOCK_N)
    offs_i, offs_g = tl.arange(0, BLOCK_K // 8), tl.arange(0, BLOCK_K // GROUP)
    offs_k = tl.arange(0, BLOCK_K).to(tl.int64)
    # [BLOCK_N, BLOCK_K / 8], eight weights each, [BLOCK_K] and [BLOCK_N, BLOCK_K / GROUP]
    words_ptrs = words_ptr + (h * N + offs_n)[:, None] * (K // 8) + offs_i[None, :]
    words = tl.load(words_ptrs, mask=(offs_n < N)[:, None] & (offs_i < K // 8)[None, :], other=0)
    x_ptrs = x_ptr + b * stride_xb + s * stride_xs + h * stride_xh + offs_k * stride_xd
    x = tl.load(x_ptrs, mask=offs_k < K, other=0.0)
    scales_ptrs = scales_ptr + (h * N + offs_n)[:, None] * (K // GROUP) + offs_g[None, :]
    scales = tl.load(scales_ptrs, mask=(offs_n < N)[:, None] & (offs_g < K // GROUP)[None, :], other=0.0)
    tl.debug_barrier()  # or the compiler has a load wait for the use of the one before
    factors = every_eighth(x, BLOCK_K // 8)
    sums = tl.zeros([BLOCK_N, BLOCK_K // 8], tl.float32)
    for j in tl.static_range(8):
        sums += nibble_to_float(words, zero, 4 * j) * factors[j].to(tl.float32)[None, :]
    groups = tl.sum(tl.reshape(sums, [BLOCK_N, BLOCK_K // GROUP, GROUP // 8]), 2)
    acc = tl.sum(groups * scales.to(tl.float32), 1)
    out_ptrs = out_ptr + b * stride_ob + s * stride_os + h * stride_oh + offs_n * stride_od
    tl.store(out_ptrs, acc.to(out_ptr.dtype.element_ty), mask=offs_n < N)


@triton.jit
def _many_rows_int4(
    x_ptr, packed_ptr, scales_ptr, zero, out_ptr, M, S, N,
    stride_xb, stride_xs, stride_xh, stride_xd, stride_ob, stride_os, stride_oh, stride_od,
    K: tl.constexpr, GROUP: tl.constexpr, OVERLAP: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    start_m, h, block_n = place(OVERLAP, BLOCK_M)
    offs_m = start_m + tl.arange(0, BLOCK_M)
    b, s = (offs_m // S).to(tl.int64), (offs_m % S).to(tl.int64)
    offs_n = block_n * BLOCK_N + tl.arange(0, BLOCK_N)
    offs_i, offs_k = tl.arange(0, GROUP // 2), tl.arange(0, GROUP).to(tl.int64)
    x_rows = x_ptr + b * stride_xb + s * stride_xs + h * stride_xh
    packed_rows = packed_ptr + h * N * (K // 2) + offs_n * (K // 2)
    scales_rows = scales_ptr + h * N * (K // GROUP) + offs_n * (K // GROUP)

    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for g in range(K // GROUP):
        # [BLOCK_M, GROUP], [BLOCK_N, GROUP / 2] and [BLOCK_N]
        x = tl.load(x_rows[:, None] + (g * GROUP + offs_k)[None, :] * stride_xd, mask=(offs_m < M)[:, None], other=0.0)
        packed_ptrs = packed_rows[:, None] + (g * (GROUP // 2) + offs_i)[None, :]
        packed = tl.load(packed_ptrs, mask=(offs_n < N)[:, None], other=0)
        scales = tl.load(scales_rows + g, mask=offs_n < N, other=0.0).to(tl.float32)
        even, odd = tl.split(tl.reshape(x, [BLOCK_M, GROUP // 2, 2]))
        words = packed.to(tl.int32)
        low = nibble_to_float(words, zero, 0).to(x.dtype)
        high = nibble_to_float(words, zero, 4).to(x.dtype)
        sums = tl.dot(even, tl.trans(low), input_precision="ieee")
        sums = tl.dot(odd, tl.trans(high), sums, input_precision="ieee")
        acc += sums * scales[None, :]
    out_ptrs = out_ptr + (b * stride_ob + s * stride_os + h * stride_oh)[:, None] + offs_n * stride_od
    tl.store(out_ptrs, acc.to(out_ptr.dtype.element_ty), mask=(offs_m < M)[:, None] & (offs_n < N)[None, :])
