"""The batched products with INT4 weights: integers become floats in registers, each group's sum is scaled once.

Low and high nibbles are the even and the odd weights of a row. The row of ``x`` is split alike, so that no nibble has
to move: a sum is that of two products.
"""

import triton
import triton.language as tl


@triton.jit
def place(M, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Return a program's first row, head and block of columns: those that read the same weights are neighbours."""
    rows, columns = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    pid = tl.program_id(0)
    return pid % rows * BLOCK_M, (pid // rows // columns).to(tl.int64), (pid // rows % columns).to(tl.int64)


@triton.jit
def _nibbles_to_float(nibbles):
    """Return nibbles 0 to 15 in two's complement as float32 -8 to 7.

    They become the last bits of 2²³, whose unit is 1: a conversion by the arithmetic units alone. Flipping the sign bit
    adds 8.
    """
    return (nibbles.to(tl.int32) ^ 0x4B000008).to(tl.float32, bitcast=True) - 8388616.0


@triton.jit
def _few_rows_int4(
    x_ptr, packed_ptr, scales_ptr, out_ptr, M, S, N,
    stride_xb, stride_xs, stride_xh, stride_xd, stride_ob, stride_os, stride_oh, stride_od,
    K: tl.constexpr, GROUP: tl.constexpr, OVERLAP: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    if OVERLAP:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    start_m, h, block_n = place(M, N, BLOCK_M, BLOCK_N)
    offs_n = block_n * BLOCK_N + tl.arange(0, BLOCK_N)
    offs_i, offs_g = tl.arange(0, BLOCK_K // 2), tl.arange(0, BLOCK_K // GROUP)
    # [BLOCK_N, BLOCK_K / 2] and [BLOCK_N, BLOCK_K / GROUP]
    packed_ptrs = packed_ptr + h * N * (K // 2) + offs_n[:, None] * (K // 2) + offs_i[None, :]
    packed = tl.load(packed_ptrs, mask=(offs_n < N)[:, None] & (offs_i < K // 2)[None, :], other=0)
    scales_ptrs = scales_ptr + h * N * (K // GROUP) + offs_n[:, None] * (K // GROUP) + offs_g[None, :]
    scales = tl.load(scales_ptrs, mask=(offs_n < N)[:, None] & (offs_g < K // GROUP)[None, :], other=0.0)
    low, high = _nibbles_to_float(packed & 0xF), _nibbles_to_float(packed >> 4)
    for i in tl.static_range(BLOCK_M):
        m = start_m + i
        b, s = (m // S).to(tl.int64), (m % S).to(tl.int64)
        offs_k = tl.arange(0, BLOCK_K).to(tl.int64)
        # [BLOCK_K]
        x_ptrs = x_ptr + b * stride_xb + s * stride_xs + h * stride_xh + offs_k * stride_xd
        x = tl.load(x_ptrs, mask=(offs_k < K) & (m < M), other=0.0).to(tl.float32)
        even, odd = tl.split(tl.reshape(x, [BLOCK_K // 2, 2]))
        products = low * even[None, :] + high * odd[None, :]
        groups = tl.sum(tl.reshape(products, [BLOCK_N, BLOCK_K // GROUP, GROUP // 2]), 2)
        acc = tl.sum(groups * scales.to(tl.float32), 1)
        out_ptrs = out_ptr + b * stride_ob + s * stride_os + h * stride_oh + offs_n * stride_od
        tl.store(out_ptrs, acc.to(out_ptr.dtype.element_ty), mask=(offs_n < N) & (m < M))


@triton.jit
def _many_rows_int4(
    x_ptr, packed_ptr, scales_ptr, out_ptr, M, S, N,
    stride_xb, stride_xs, stride_xh, stride_xd, stride_ob, stride_os, stride_oh, stride_od,
    K: tl.constexpr, GROUP: tl.constexpr, OVERLAP: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    if OVERLAP:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    start_m, h, block_n = place(M, N, BLOCK_M, BLOCK_N)
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
        low, high = _nibbles_to_float(packed & 0xF).to(x.dtype), _nibbles_to_float(packed >> 4).to(x.dtype)
        sums = tl.dot(even, tl.trans(low), input_precision="ieee")
        sums = tl.dot(odd, tl.trans(high), sums, input_precision="ieee")
        acc += sums * scales[None, :]
    out_ptrs = out_ptr + (b * stride_ob + s * stride_os + h * stride_oh)[:, None] + offs_n * stride_od
    tl.store(out_ptrs, acc.to(out_ptr.dtype.element_ty), mask=(offs_m < M)[:, None] & (offs_n < N)[None, :])
