"""Kernels good and bad, on which the modelled time is compared with an H100's: seven tasks, 91 ways to do them.

Each launcher stands for a student's function. `VARIANTS` names the task, the variant, the launcher and its options;
`TASKS` the shapes. Some variants are slow on purpose: small or huge blocks, too few or too many warps, missing fusion,
strided access, spilled registers, masked waste, re-reads, passes on the host, atomics.
"""

import torch
import triton
import triton.language as tl

LOG2_THETA = tl.constexpr(13.287712379549449)


# RMSNorm: x[N, D], weight[D] -> [N, D]


@triton.jit
def norm_row(x_ptr, w_ptr, out_ptr, D, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    mask = cols < D
    x = tl.load(x_ptr + row * D + cols, mask=mask, other=0.0).to(tl.float32)
    w = tl.load(w_ptr + cols, mask=mask, other=0.0).to(tl.float32)
    rstd = tl.rsqrt(tl.sum(x * x) / D + eps)
    tl.store(out_ptr + row * D + cols, x * rstd * w, mask=mask)


@triton.jit(do_not_specialize=["D"])
def norm_row_unknown_width(x_ptr, w_ptr, out_ptr, D, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    mask = cols < D
    x = tl.load(x_ptr + row * D + cols, mask=mask, other=0.0).to(tl.float32)
    w = tl.load(w_ptr + cols, mask=mask, other=0.0).to(tl.float32)
    rstd = tl.rsqrt(tl.sum(x * x) / D + eps)
    tl.store(out_ptr + row * D + cols, x * rstd * w, mask=mask)


@triton.jit
def norm_loop(x_ptr, w_ptr, out_ptr, D, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    acc = tl.zeros([BLOCK], tl.float32)
    for start in range(0, D, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * D + cols, mask=cols < D, other=0.0).to(tl.float32)
        acc += x * x
    rstd = tl.rsqrt(tl.sum(acc) / D + eps)
    for start in range(0, D, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * D + cols, mask=cols < D, other=0.0).to(tl.float32)
        w = tl.load(w_ptr + cols, mask=cols < D, other=0.0).to(tl.float32)
        tl.store(out_ptr + row * D + cols, x * rstd * w, mask=cols < D)


@triton.jit
def norm_three_passes(x_ptr, w_ptr, out_ptr, D, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    largest = tl.zeros([BLOCK], tl.float32)
    for start in range(0, D, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * D + cols, mask=cols < D, other=0.0).to(tl.float32)
        largest = tl.maximum(largest, tl.abs(x))
    scale = tl.max(largest) + 1e-20
    acc = tl.zeros([BLOCK], tl.float32)
    for start in range(0, D, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * D + cols, mask=cols < D, other=0.0).to(tl.float32) / scale
        acc += x * x
    rstd = tl.rsqrt(tl.sum(acc) * scale * scale / D + eps)
    for start in range(0, D, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * D + cols, mask=cols < D, other=0.0).to(tl.float32)
        w = tl.load(w_ptr + cols, mask=cols < D, other=0.0).to(tl.float32)
        tl.store(out_ptr + row * D + cols, x * rstd * w, mask=cols < D)


@triton.jit
def norm_rows(x_ptr, w_ptr, out_ptr, N, D, eps, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    cols = tl.arange(0, BLOCK)[None, :]
    mask = (rows < N) & (cols < D)
    x = tl.load(x_ptr + rows * D + cols, mask=mask, other=0.0).to(tl.float32)
    w = tl.load(w_ptr + cols, mask=cols < D, other=0.0).to(tl.float32)
    rstd = tl.rsqrt(tl.sum(x * x, axis=1) / D + eps)[:, None]
    tl.store(out_ptr + rows * D + cols, x * rstd * w, mask=mask)


@triton.jit
def norm_persistent(x_ptr, w_ptr, out_ptr, N, D, eps, BLOCK: tl.constexpr):
    cols = tl.arange(0, BLOCK)
    mask = cols < D
    w = tl.load(w_ptr + cols, mask=mask, other=0.0).to(tl.float32)
    for row in range(tl.program_id(0), N, tl.num_programs(0)):
        x = tl.load(x_ptr + row * D + cols, mask=mask, other=0.0).to(tl.float32)
        rstd = tl.rsqrt(tl.sum(x * x) / D + eps)
        tl.store(out_ptr + row * D + cols, x * rstd * w, mask=mask)


@triton.jit
def norm_columns(x_ptr, w_ptr, out_ptr, N, D, eps, ROWS: tl.constexpr):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    mask = rows < N
    acc = tl.zeros([ROWS], tl.float32)
    for col in range(D):
        x = tl.load(x_ptr + rows * D + col, mask=mask, other=0.0).to(tl.float32)
        acc += x * x
    rstd = tl.rsqrt(acc / D + eps)
    for col in range(D):
        x = tl.load(x_ptr + rows * D + col, mask=mask, other=0.0).to(tl.float32)
        w = tl.load(w_ptr + col).to(tl.float32)
        tl.store(out_ptr + rows * D + col, x * rstd * w, mask=mask)


@triton.jit
def square(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n, other=0.0).to(tl.float32)
    tl.store(out_ptr + offs, x * x, mask=offs < n)


@triton.jit
def row_sum(x_ptr, out_ptr, D, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    acc = tl.zeros([BLOCK], tl.float32)
    for start in range(0, D, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        acc += tl.load(x_ptr + row * D + cols, mask=cols < D, other=0.0).to(tl.float32)
    tl.store(out_ptr + row, tl.sum(acc))


@triton.jit
def row_square_sum(x_ptr, out_ptr, D, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    acc = tl.zeros([BLOCK], tl.float32)
    for start in range(0, D, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * D + cols, mask=cols < D, other=0.0).to(tl.float32)
        acc += x * x
    tl.store(out_ptr + row, tl.sum(acc))


@triton.jit
def to_rstd(x_ptr, out_ptr, n, D, eps, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n, other=1.0)
    tl.store(out_ptr + offs, tl.rsqrt(x / D + eps), mask=offs < n)


@triton.jit
def scale_rows(x_ptr, rstd_ptr, w_ptr, out_ptr, D, BLOCK: tl.constexpr):
    row, cols = tl.program_id(0), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * D + cols, mask=cols < D, other=0.0).to(tl.float32)
    w = tl.load(w_ptr + cols, mask=cols < D, other=0.0).to(tl.float32)
    tl.store(out_ptr + row * D + cols, x * tl.load(rstd_ptr + row) * w, mask=cols < D)


@triton.jit
def scale_rows_from_sum(x_ptr, sum_ptr, w_ptr, out_ptr, D, eps, BLOCK: tl.constexpr):
    row, cols = tl.program_id(0), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * D + cols, mask=cols < D, other=0.0).to(tl.float32)
    w = tl.load(w_ptr + cols, mask=cols < D, other=0.0).to(tl.float32)
    rstd = tl.rsqrt(tl.load(sum_ptr + row) / D + eps)
    tl.store(out_ptr + row * D + cols, x * rstd * w, mask=cols < D)


def rms_norm_row(x, weight, pad, warps):
    out = torch.empty_like(x)
    block = triton.next_power_of_2(x.shape[1]) * pad
    norm_row[(x.shape[0],)](x, weight, out, x.shape[1], 1e-6, BLOCK=block, num_warps=warps)
    return out


def rms_norm_unknown_width(x, weight, warps):
    out = torch.empty_like(x)
    block = triton.next_power_of_2(x.shape[1])
    norm_row_unknown_width[(x.shape[0],)](x, weight, out, x.shape[1], 1e-6, BLOCK=block, num_warps=warps)
    return out


def rms_norm_loop(x, weight, block, warps):
    out = torch.empty_like(x)
    norm_loop[(x.shape[0],)](x, weight, out, x.shape[1], 1e-6, BLOCK=block, num_warps=warps)
    return out


def rms_norm_three_passes(x, weight, block, warps):
    out = torch.empty_like(x)
    norm_three_passes[(x.shape[0],)](x, weight, out, x.shape[1], 1e-6, BLOCK=block, num_warps=warps)
    return out


def rms_norm_rows(x, weight, rows, warps):
    out = torch.empty_like(x)
    block = triton.next_power_of_2(x.shape[1])
    grid = (triton.cdiv(x.shape[0], rows),)
    norm_rows[grid](x, weight, out, *x.shape, 1e-6, ROWS=rows, BLOCK=block, num_warps=warps)
    return out


def rms_norm_persistent(x, weight, programs, warps):
    out = torch.empty_like(x)
    block = triton.next_power_of_2(x.shape[1])
    norm_persistent[(min(programs, x.shape[0]),)](x, weight, out, *x.shape, 1e-6, BLOCK=block, num_warps=warps)
    return out


def rms_norm_columns(x, weight, rows, warps):
    out = torch.empty_like(x)
    norm_columns[(triton.cdiv(x.shape[0], rows),)](x, weight, out, *x.shape, 1e-6, ROWS=rows, num_warps=warps)
    return out


def rms_norm_two_launches(x, weight, block, warps):
    n, d = x.shape
    out, total = torch.empty_like(x), torch.empty(n, device=x.device)
    row_square_sum[(n,)](x, total, d, BLOCK=block, num_warps=warps)
    grid = (n, triton.cdiv(d, block))
    scale_rows_from_sum[grid](x, total, weight, out, d, 1e-6, BLOCK=block, num_warps=warps)
    return out


def rms_norm_four_launches(x, weight, block, warps):
    n, d = x.shape
    out, squares = torch.empty_like(x), torch.empty(n, d, device=x.device)
    total, rstd = torch.empty(n, device=x.device), torch.empty(n, device=x.device)
    square[(triton.cdiv(n * d, block),)](x, squares, n * d, BLOCK=block, num_warps=warps)
    row_sum[(n,)](squares, total, d, BLOCK=block, num_warps=warps)
    to_rstd[(triton.cdiv(n, 256),)](total, rstd, n, d, 1e-6, BLOCK=256)
    scale_rows[(n, triton.cdiv(d, block))](x, rstd, weight, out, d, BLOCK=block, num_warps=warps)
    return out


def rms_norm_host_upcast(x, weight, warps):
    wide, out = x.float(), torch.empty(x.shape, device=x.device)
    block = triton.next_power_of_2(x.shape[1])
    norm_row[(x.shape[0],)](wide, weight.float(), out, x.shape[1], 1e-6, BLOCK=block, num_warps=warps)
    return out.to(x.dtype)


def rms_norm_host_clone(x, weight, warps):
    return rms_norm_row(x.clone(), weight, 1, warps)


# RoPE, interleaved pairs: x[T, H, 64], cos[T, 32], sin[T, 32] -> [T, H, 64]


@triton.jit
def rope_tile(x_ptr, cos_ptr, sin_ptr, out_ptr, H, BLOCK_H: tl.constexpr, HALF: tl.constexpr):
    token = tl.program_id(0)
    heads = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)[:, None]
    pair = tl.arange(0, HALF)[None, :]
    offs = (token * H + heads) * (2 * HALF) + 2 * pair
    mask = heads < H
    cos = tl.load(cos_ptr + token * HALF + pair)
    sin = tl.load(sin_ptr + token * HALF + pair)
    a = tl.load(x_ptr + offs, mask=mask & (pair >= 0), other=0.0).to(tl.float32)
    b = tl.load(x_ptr + offs + 1, mask=mask & (pair >= 0), other=0.0).to(tl.float32)
    tl.store(out_ptr + offs, a * cos - b * sin, mask=mask & (pair >= 0))
    tl.store(out_ptr + offs + 1, a * sin + b * cos, mask=mask & (pair >= 0))


@triton.jit
def rope_split(x_ptr, cos_ptr, sin_ptr, out_ptr, H, BLOCK_H: tl.constexpr, HALF: tl.constexpr):
    token = tl.program_id(0)
    heads = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)[:, None]
    offs = (token * H + heads) * (2 * HALF) + tl.arange(0, 2 * HALF)[None, :]
    pair = tl.arange(0, HALF)[None, :]
    cos = tl.load(cos_ptr + token * HALF + pair)
    sin = tl.load(sin_ptr + token * HALF + pair)
    x = tl.load(x_ptr + offs, mask=heads < H, other=0.0).to(tl.float32)
    a, b = tl.split(tl.reshape(x, (BLOCK_H, HALF, 2)))
    y = tl.reshape(tl.join(a * cos - b * sin, a * sin + b * cos), (BLOCK_H, 2 * HALF))
    tl.store(out_ptr + offs, y, mask=heads < H)


@triton.jit
def rope_split_tokens(x_ptr, cos_ptr, sin_ptr, out_ptr, T, H, BLOCK_T: tl.constexpr, HALF: tl.constexpr):
    head = tl.program_id(0)
    tokens = tl.program_id(1) * BLOCK_T + tl.arange(0, BLOCK_T)[:, None]
    offs = (tokens * H + head) * (2 * HALF) + tl.arange(0, 2 * HALF)[None, :]
    pair = tl.arange(0, HALF)[None, :]
    cos = tl.load(cos_ptr + tokens * HALF + pair, mask=tokens < T, other=0.0)
    sin = tl.load(sin_ptr + tokens * HALF + pair, mask=tokens < T, other=0.0)
    x = tl.load(x_ptr + offs, mask=tokens < T, other=0.0).to(tl.float32)
    a, b = tl.split(tl.reshape(x, (BLOCK_T, HALF, 2)))
    y = tl.reshape(tl.join(a * cos - b * sin, a * sin + b * cos), (BLOCK_T, 2 * HALF))
    tl.store(out_ptr + offs, y, mask=tokens < T)


@triton.jit
def rope_one_side(x_ptr, cos_ptr, sin_ptr, out_ptr, H, SIDE: tl.constexpr, BLOCK_H: tl.constexpr, HALF: tl.constexpr):
    token = tl.program_id(0)
    heads = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)[:, None]
    pair = tl.arange(0, HALF)[None, :]
    offs = (token * H + heads) * (2 * HALF) + 2 * pair
    cos = tl.load(cos_ptr + token * HALF + pair)
    sin = tl.load(sin_ptr + token * HALF + pair)
    a = tl.load(x_ptr + offs, mask=heads < H, other=0.0).to(tl.float32)
    b = tl.load(x_ptr + offs + 1, mask=heads < H, other=0.0).to(tl.float32)
    if SIDE == 0:
        tl.store(out_ptr + offs, a * cos - b * sin, mask=heads < H)
    else:
        tl.store(out_ptr + offs + 1, a * sin + b * cos, mask=heads < H)


@triton.jit
def rope_pair_columns(x_ptr, cos_ptr, sin_ptr, out_ptr, T, H, BLOCK_T: tl.constexpr, HALF: tl.constexpr):
    head, pair = tl.program_id(0), tl.program_id(1)
    tokens = tl.program_id(2) * BLOCK_T + tl.arange(0, BLOCK_T)
    mask = tokens < T
    offs = (tokens * H + head) * (2 * HALF) + 2 * pair
    cos = tl.load(cos_ptr + tokens * HALF + pair, mask=mask, other=0.0)
    sin = tl.load(sin_ptr + tokens * HALF + pair, mask=mask, other=0.0)
    a = tl.load(x_ptr + offs, mask=mask, other=0.0).to(tl.float32)
    b = tl.load(x_ptr + offs + 1, mask=mask, other=0.0).to(tl.float32)
    tl.store(out_ptr + offs, a * cos - b * sin, mask=mask)
    tl.store(out_ptr + offs + 1, a * sin + b * cos, mask=mask)


@triton.jit
def rope_expanded(x_ptr, cos_ptr, sin_ptr, out_ptr, H, BLOCK_H: tl.constexpr, HALF: tl.constexpr):
    token = tl.program_id(0)
    heads = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)[:, None]
    pair = tl.arange(0, HALF)[None, :]
    offs = (token * H + heads) * (2 * HALF) + tl.arange(0, 2 * HALF)[None, :]
    cos = tl.load(cos_ptr + (token * H + heads) * HALF + pair, mask=heads < H, other=0.0)
    sin = tl.load(sin_ptr + (token * H + heads) * HALF + pair, mask=heads < H, other=0.0)
    x = tl.load(x_ptr + offs, mask=heads < H, other=0.0).to(tl.float32)
    a, b = tl.split(tl.reshape(x, (BLOCK_H, HALF, 2)))
    y = tl.reshape(tl.join(a * cos - b * sin, a * sin + b * cos), (BLOCK_H, 2 * HALF))
    tl.store(out_ptr + offs, y, mask=heads < H)


@triton.jit
def rope_own_angles(x_ptr, out_ptr, H, BLOCK_H: tl.constexpr, HALF: tl.constexpr):
    token = tl.program_id(0)
    heads = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)[:, None]
    offs = (token * H + heads) * (2 * HALF) + tl.arange(0, 2 * HALF)[None, :]
    x = tl.load(x_ptr + offs, mask=heads < H, other=0.0).to(tl.float32)
    pair = tl.arange(0, HALF)[None, :] + heads * 0
    angle = token * tl.exp2(pair * (-LOG2_THETA / HALF))
    cos, sin = tl.cos(angle), tl.sin(angle)
    a, b = tl.split(tl.reshape(x, (BLOCK_H, HALF, 2)))
    y = tl.reshape(tl.join(a * cos - b * sin, a * sin + b * cos), (BLOCK_H, 2 * HALF))
    tl.store(out_ptr + offs, y, mask=heads < H)


def rope_tiles(x, cos, sin, block_h, warps):
    t, h, d = x.shape
    out = torch.empty_like(x)
    rope_tile[(t, triton.cdiv(h, block_h))](x, cos, sin, out, h, BLOCK_H=block_h, HALF=d // 2, num_warps=warps)
    return out


def rope_splits(x, cos, sin, block_h, warps):
    t, h, d = x.shape
    out = torch.empty_like(x)
    rope_split[(t, triton.cdiv(h, block_h))](x, cos, sin, out, h, BLOCK_H=block_h, HALF=d // 2, num_warps=warps)
    return out


def rope_tokens(x, cos, sin, block_t, warps):
    t, h, d = x.shape
    out = torch.empty_like(x)
    grid = (h, triton.cdiv(t, block_t))
    rope_split_tokens[grid](x, cos, sin, out, t, h, BLOCK_T=block_t, HALF=d // 2, num_warps=warps)
    return out


def rope_two_launches(x, cos, sin, block_h, warps):
    t, h, d = x.shape
    out = torch.empty_like(x)
    grid = (t, triton.cdiv(h, block_h))
    for side in (0, 1):
        rope_one_side[grid](x, cos, sin, out, h, SIDE=side, BLOCK_H=block_h, HALF=d // 2, num_warps=warps)
    return out


def rope_columns(x, cos, sin, block_t, warps):
    t, h, d = x.shape
    out = torch.empty_like(x)
    grid = (h, d // 2, triton.cdiv(t, block_t))
    rope_pair_columns[grid](x, cos, sin, out, t, h, BLOCK_T=block_t, HALF=d // 2, num_warps=warps)
    return out


def rope_expanded_tables(x, cos, sin, block_h, warps):
    t, h, d = x.shape
    out = torch.empty_like(x)
    cos = cos[:, None, :].expand(t, h, d // 2).contiguous()
    sin = sin[:, None, :].expand(t, h, d // 2).contiguous()
    rope_expanded[(t, triton.cdiv(h, block_h))](x, cos, sin, out, h, BLOCK_H=block_h, HALF=d // 2, num_warps=warps)
    return out


def rope_angles(x, cos, sin, block_h, warps):
    t, h, d = x.shape
    out = torch.empty_like(x)
    rope_own_angles[(t, triton.cdiv(h, block_h))](x, out, h, BLOCK_H=block_h, HALF=d // 2, num_warps=warps)
    return out


def rope_host_upcast(x, cos, sin, block_h, warps):
    return rope_splits(x.float(), cos, sin, block_h, warps).to(x.dtype)


# Softmax of rows: x[N, C] -> [N, C], float32


@triton.jit
def softmax_row(x_ptr, out_ptr, C, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * C + cols, mask=cols < C, other=float("-inf"))
    e = tl.exp(x - tl.max(x))
    tl.store(out_ptr + row * C + cols, e / tl.sum(e), mask=cols < C)


@triton.jit
def softmax_rows(x_ptr, out_ptr, N, C, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    cols = tl.arange(0, BLOCK)[None, :]
    mask = (rows < N) & (cols < C)
    x = tl.load(x_ptr + rows * C + cols, mask=mask, other=0.0)
    e = tl.where(mask, tl.exp(x - tl.max(x, axis=1)[:, None]), 0.0)
    tl.store(out_ptr + rows * C + cols, e / tl.sum(e, axis=1)[:, None], mask=mask)


@triton.jit
def softmax_three_passes(x_ptr, out_ptr, C, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    top = tl.full([BLOCK], float("-inf"), tl.float32)
    for start in range(0, C, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        top = tl.maximum(top, tl.load(x_ptr + row * C + cols, mask=cols < C, other=float("-inf")))
    top = tl.max(top)
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, C, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        total += tl.exp(tl.load(x_ptr + row * C + cols, mask=cols < C, other=float("-inf")) - top)
    total = tl.sum(total)
    for start in range(0, C, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * C + cols, mask=cols < C, other=float("-inf"))
        tl.store(out_ptr + row * C + cols, tl.exp(x - top) / total, mask=cols < C)


@triton.jit
def softmax_online(x_ptr, out_ptr, C, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    top = tl.full([BLOCK], -1e30, tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, C, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * C + cols, mask=cols < C, other=-1e30)
        new = tl.maximum(top, x)
        total = total * tl.exp(top - new) + tl.exp(x - new)
        top = new
    row_top = tl.max(top)
    row_total = tl.sum(total * tl.exp(top - row_top))
    for start in range(0, C, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * C + cols, mask=cols < C, other=-1e30)
        tl.store(out_ptr + row * C + cols, tl.exp(x - row_top) / row_total, mask=cols < C)


@triton.jit
def softmax_columns(x_ptr, out_ptr, N, C, ROWS: tl.constexpr):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    mask = rows < N
    top = tl.full([ROWS], -1e30, tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    for col in range(C):
        x = tl.load(x_ptr + rows * C + col, mask=mask, other=0.0)
        new = tl.maximum(top, x)
        total = total * tl.exp(top - new) + tl.exp(x - new)
        top = new
    for col in range(C):
        x = tl.load(x_ptr + rows * C + col, mask=mask, other=0.0)
        tl.store(out_ptr + rows * C + col, tl.exp(x - top) / total, mask=mask)


@triton.jit
def row_max(x_ptr, out_ptr, C, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    top = tl.full([BLOCK], float("-inf"), tl.float32)
    for start in range(0, C, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        top = tl.maximum(top, tl.load(x_ptr + row * C + cols, mask=cols < C, other=float("-inf")))
    tl.store(out_ptr + row, tl.max(top))


@triton.jit
def exp_of_difference(x_ptr, top_ptr, out_ptr, C, BLOCK: tl.constexpr):
    row, cols = tl.program_id(0), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * C + cols, mask=cols < C, other=0.0)
    tl.store(out_ptr + row * C + cols, tl.exp(x - tl.load(top_ptr + row)), mask=cols < C)


@triton.jit
def exp_and_add_up(x_ptr, top_ptr, out_ptr, total_ptr, C, BLOCK: tl.constexpr):
    row, cols = tl.program_id(0), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * C + cols, mask=cols < C, other=float("-inf"))
    e = tl.exp(x - tl.load(top_ptr + row))
    tl.store(out_ptr + row * C + cols, e, mask=cols < C)
    tl.atomic_add(total_ptr + row, tl.sum(e))


@triton.jit
def divide_rows(x_ptr, total_ptr, out_ptr, C, BLOCK: tl.constexpr):
    row, cols = tl.program_id(0), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * C + cols, mask=cols < C, other=0.0)
    tl.store(out_ptr + row * C + cols, x / tl.load(total_ptr + row), mask=cols < C)


def softmax_fused(x, pad, warps):
    out = torch.empty_like(x)
    block = triton.next_power_of_2(x.shape[1]) * pad
    softmax_row[(x.shape[0],)](x, out, x.shape[1], BLOCK=block, num_warps=warps)
    return out


def softmax_tile(x, rows, warps):
    out = torch.empty_like(x)
    block = triton.next_power_of_2(x.shape[1])
    softmax_rows[(triton.cdiv(x.shape[0], rows),)](x, out, *x.shape, ROWS=rows, BLOCK=block, num_warps=warps)
    return out


def softmax_loops(x, block, warps):
    out = torch.empty_like(x)
    softmax_three_passes[(x.shape[0],)](x, out, x.shape[1], BLOCK=block, num_warps=warps)
    return out


def softmax_two_passes(x, block, warps):
    out = torch.empty_like(x)
    softmax_online[(x.shape[0],)](x, out, x.shape[1], BLOCK=block, num_warps=warps)
    return out


def softmax_strided(x, rows, warps):
    out = torch.empty_like(x)
    softmax_columns[(triton.cdiv(x.shape[0], rows),)](x, out, *x.shape, ROWS=rows, num_warps=warps)
    return out


def softmax_four_launches(x, block, warps):
    n, c = x.shape
    out, e = torch.empty_like(x), torch.empty_like(x)
    top, total = torch.empty(n, device=x.device), torch.empty(n, device=x.device)
    row_max[(n,)](x, top, c, BLOCK=block, num_warps=warps)
    exp_of_difference[(n, triton.cdiv(c, block))](x, top, e, c, BLOCK=block, num_warps=warps)
    row_sum[(n,)](e, total, c, BLOCK=block, num_warps=warps)
    divide_rows[(n, triton.cdiv(c, block))](e, total, out, c, BLOCK=block, num_warps=warps)
    return out


def softmax_atomics(x, block, warps):
    n, c = x.shape
    out, top, total = torch.empty_like(x), torch.empty(n, device=x.device), torch.zeros(n, device=x.device)
    row_max[(n,)](x, top, c, BLOCK=block, num_warps=warps)
    exp_and_add_up[(n, triton.cdiv(c, block))](x, top, out, total, c, BLOCK=block, num_warps=warps)
    divide_rows[(n, triton.cdiv(c, block))](out, total, out, c, BLOCK=block, num_warps=warps)
    return out


def softmax_host_copy(x, warps):
    return softmax_fused(x * 1.0, 1, warps)


# Sum of two tensors: a[n], b[n] -> [n]


@triton.jit
def add(a_ptr, b_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    tl.store(out_ptr + offs, tl.load(a_ptr + offs, mask=mask) + tl.load(b_ptr + offs, mask=mask), mask=mask)


@triton.jit(do_not_specialize=["n"])
def add_unknown_length(a_ptr, b_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    tl.store(out_ptr + offs, tl.load(a_ptr + offs, mask=mask) + tl.load(b_ptr + offs, mask=mask), mask=mask)


@triton.jit
def add_strided(a_ptr, b_ptr, out_ptr, n, stride, BLOCK: tl.constexpr):
    offs = tl.program_id(0) + tl.arange(0, BLOCK) * stride
    mask = offs < n
    tl.store(out_ptr + offs, tl.load(a_ptr + offs, mask=mask) + tl.load(b_ptr + offs, mask=mask), mask=mask)


@triton.jit
def add_persistent(a_ptr, b_ptr, out_ptr, n, BLOCK: tl.constexpr):
    for start in range(tl.program_id(0) * BLOCK, n, tl.num_programs(0) * BLOCK):
        offs = start + tl.arange(0, BLOCK)
        mask = offs < n
        tl.store(out_ptr + offs, tl.load(a_ptr + offs, mask=mask) + tl.load(b_ptr + offs, mask=mask), mask=mask)


@triton.jit
def copy(a_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + offs, tl.load(a_ptr + offs, mask=offs < n), mask=offs < n)


def add_blocks(a, b, block, warps):
    out, n = torch.empty_like(a), a.numel()
    add[(triton.cdiv(n, block),)](a, b, out, n, BLOCK=block, num_warps=warps)
    return out


def add_narrow(a, b, block, warps):
    out, n = torch.empty_like(a), a.numel()
    add_unknown_length[(triton.cdiv(n, block),)](a, b, out, n, BLOCK=block, num_warps=warps)
    return out


def add_far_apart(a, b, block, warps):
    out, n = torch.empty_like(a), a.numel()
    programs = triton.cdiv(n, block)
    add_strided[(programs,)](a, b, out, n, programs, BLOCK=block, num_warps=warps)
    return out


def add_grid_stride(a, b, programs, block, warps):
    out, n = torch.empty_like(a), a.numel()
    add_persistent[(min(programs, triton.cdiv(n, block)),)](a, b, out, n, BLOCK=block, num_warps=warps)
    return out


def add_two_launches(a, b, block, warps):
    out, n = torch.empty_like(a), a.numel()
    grid = (triton.cdiv(n, block),)
    copy[grid](a, out, n, BLOCK=block, num_warps=warps)
    add[grid](out, b, out, n, BLOCK=block, num_warps=warps)
    return out


def add_host_upcast(a, b, block, warps):
    return add_blocks(a.float(), b.float(), block, warps).to(a.dtype)


# Scores of latent attention: q[B, H, R], c[B, T, R] -> [B, H, T], R = 576


@triton.jit
def scores_dot(
    q_ptr, c_ptr, out_ptr, H, T, R,
    BLOCK_H: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_R: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    batch = tl.program_id(2)
    heads = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    tokens = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)
    acc = tl.zeros([BLOCK_H, BLOCK_T], tl.float32)
    for start in range(0, R, BLOCK_R):
        r = start + tl.arange(0, BLOCK_R)
        q_mask = (heads[:, None] < H) & (r[None, :] < R)
        c_mask = (tokens[None, :] < T) & (r[:, None] < R)
        q = tl.load(q_ptr + (batch * H + heads[:, None]) * R + r[None, :], mask=q_mask, other=0.0)
        c = tl.load(c_ptr + (batch * T + tokens[None, :]) * R + r[:, None], mask=c_mask, other=0.0)
        if PRECISION == "ieee":
            acc = tl.dot(q.to(tl.float32), c.to(tl.float32), acc, input_precision="ieee")
        else:
            acc = tl.dot(q, c, acc)
    offs = (batch * H + heads[:, None]) * T + tokens[None, :]
    tl.store(out_ptr + offs, acc, mask=(heads[:, None] < H) & (tokens[None, :] < T))


@triton.jit
def scores_one_head(q_ptr, c_ptr, out_ptr, H, T, R, BLOCK_T: tl.constexpr, BLOCK_R: tl.constexpr):
    head, batch = tl.program_id(1), tl.program_id(2)
    tokens = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)
    acc = tl.zeros([BLOCK_T], tl.float32)
    for start in range(0, R, BLOCK_R):
        r = start + tl.arange(0, BLOCK_R)
        q = tl.load(q_ptr + (batch * H + head) * R + r, mask=r < R, other=0.0).to(tl.float32)
        mask = (tokens[:, None] < T) & (r[None, :] < R)
        c = tl.load(c_ptr + (batch * T + tokens[:, None]) * R + r[None, :], mask=mask, other=0.0).to(tl.float32)
        acc += tl.sum(c * q[None, :], axis=1)
    tl.store(out_ptr + (batch * H + head) * T + tokens, acc, mask=tokens < T)


@triton.jit
def scores_split(q_ptr, c_ptr, out_ptr, H, T, R, BLOCK_H: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_R: tl.constexpr):
    batch, part = tl.program_id(2) // tl.cdiv(R, BLOCK_R), tl.program_id(2) % tl.cdiv(R, BLOCK_R)
    heads = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    tokens = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)
    r = part * BLOCK_R + tl.arange(0, BLOCK_R)
    q_mask = (heads[:, None] < H) & (r[None, :] < R)
    c_mask = (tokens[None, :] < T) & (r[:, None] < R)
    q = tl.load(q_ptr + (batch * H + heads[:, None]) * R + r[None, :], mask=q_mask, other=0.0)
    c = tl.load(c_ptr + (batch * T + tokens[None, :]) * R + r[:, None], mask=c_mask, other=0.0)
    offs = (batch * H + heads[:, None]) * T + tokens[None, :]
    tl.atomic_add(out_ptr + offs, tl.dot(q, c), mask=(heads[:, None] < H) & (tokens[None, :] < T))


def scores(q, c, block_h, block_t, block_r, precision, warps, stages):
    (b, h, r), t = q.shape, c.shape[1]
    out = torch.empty(b, h, t, device=q.device)
    grid = (triton.cdiv(t, block_t), triton.cdiv(h, block_h), b)
    scores_dot[grid](
        q, c, out, h, t, r, BLOCK_H=block_h, BLOCK_T=block_t, BLOCK_R=block_r, PRECISION=precision,
        num_warps=warps, num_stages=stages,
    )  # fmt: skip
    return out


def scores_by_head(q, c, block_t, block_r, warps):
    (b, h, r), t = q.shape, c.shape[1]
    out = torch.empty(b, h, t, device=q.device)
    grid = (triton.cdiv(t, block_t), h, b)
    scores_one_head[grid](q, c, out, h, t, r, BLOCK_T=block_t, BLOCK_R=block_r, num_warps=warps)
    return out


def scores_atomic(q, c, block_h, block_t, block_r, warps):
    (b, h, r), t = q.shape, c.shape[1]
    out = torch.zeros(b, h, t, device=q.device)
    grid = (triton.cdiv(t, block_t), triton.cdiv(h, block_h), b * triton.cdiv(r, block_r))
    scores_split[grid](q, c, out, h, t, r, BLOCK_H=block_h, BLOCK_T=block_t, BLOCK_R=block_r, num_warps=warps)
    return out


# Transpose: x[N, D] -> [D, N]. This task and the next took no part in making the model: see UNSEEN.


@triton.jit
def transpose_tile(x_ptr, out_ptr, N, D, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr):
    rows = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    cols = tl.program_id(0) * BLOCK_D + tl.arange(0, BLOCK_D)
    x = tl.load(x_ptr + rows[:, None] * D + cols[None, :], mask=(rows[:, None] < N) & (cols[None, :] < D), other=0.0)
    tl.store(out_ptr + cols[:, None] * N + rows[None, :], tl.trans(x), mask=(cols[:, None] < D) & (rows[None, :] < N))


@triton.jit
def transpose_line(x_ptr, out_ptr, x_stride, x_step, out_stride, out_step, n, BLOCK: tl.constexpr):
    line = tl.program_id(0)
    for start in range(0, n, BLOCK):
        offs = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + line * x_stride + offs * x_step, mask=offs < n, other=0.0)
        tl.store(out_ptr + line * out_stride + offs * out_step, x, mask=offs < n)


def transpose_tiles(x, block_n, block_d, warps):
    n, d = x.shape
    out = torch.empty(d, n, dtype=x.dtype, device=x.device)
    grid = (triton.cdiv(d, block_d), triton.cdiv(n, block_n))
    transpose_tile[grid](x, out, n, d, BLOCK_N=block_n, BLOCK_D=block_d, num_warps=warps)
    return out


def transpose_rows(x, block, warps):
    n, d = x.shape
    out = torch.empty(d, n, dtype=x.dtype, device=x.device)
    transpose_line[(n,)](x, out, d, 1, 1, n, d, BLOCK=block, num_warps=warps)
    return out


def transpose_columns(x, block, warps):
    n, d = x.shape
    out = torch.empty(d, n, dtype=x.dtype, device=x.device)
    transpose_line[(d,)](x, out, 1, d, n, 1, n, BLOCK=block, num_warps=warps)
    return out


# Latent attention of one new token: q[B, H, 576], c[B, T, 576] -> [B, H, 512]


@triton.jit
def decode_part(
    q_ptr, c_ptr, out_ptr, lse_ptr, H, T, scale, SPLITS: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_T: tl.constexpr
):
    heads, batch, part = tl.program_id(0) * BLOCK_H + tl.arange(0, BLOCK_H), tl.program_id(1), tl.program_id(2)
    r, rope = tl.arange(0, 512), 512 + tl.arange(0, 64)
    mask = heads[:, None] < H
    q = tl.load(q_ptr + (batch * H + heads[:, None]) * 576 + r[None, :], mask=mask, other=0.0)
    q_rope = tl.load(q_ptr + (batch * H + heads[:, None]) * 576 + rope[None, :], mask=mask, other=0.0)
    top = tl.full([BLOCK_H], -1e30, tl.float32)
    total = tl.zeros([BLOCK_H], tl.float32)
    acc = tl.zeros([BLOCK_H, 512], tl.float32)
    share = tl.cdiv(T, SPLITS)
    for start in range(part * share, (part + 1) * share, BLOCK_T):
        t = start + tl.arange(0, BLOCK_T)
        inside = (t < T) & (t < (part + 1) * share)
        c = tl.load(c_ptr + (batch * T + t[:, None]) * 576 + r[None, :], mask=inside[:, None], other=0.0)
        c_rope = tl.load(c_ptr + (batch * T + t[:, None]) * 576 + rope[None, :], mask=inside[:, None], other=0.0)
        s = tl.dot(q_rope, tl.trans(c_rope), tl.dot(q, tl.trans(c))) * scale
        s = tl.where(inside[None, :], s, -1e30)
        new = tl.maximum(top, tl.max(s, axis=1))
        p = tl.exp(s - new[:, None])
        total = total * tl.exp(top - new) + tl.sum(p, axis=1)
        acc = tl.dot(p.to(c.dtype), c, acc * tl.exp(top - new)[:, None])
        top = new
    at = (part * tl.num_programs(1) + batch) * H + heads
    tl.store(out_ptr + at[:, None] * 512 + r[None, :], acc / total[:, None], mask=mask)
    tl.store(lse_ptr + at, top + tl.log(total), mask=heads < H)


@triton.jit
def decode_join(part_ptr, lse_ptr, out_ptr, ROWS, SPLITS: tl.constexpr, BLOCK: tl.constexpr):
    row, cols = tl.program_id(0), tl.arange(0, BLOCK)
    lse = tl.load(lse_ptr + tl.arange(0, SPLITS) * ROWS + row)
    weight = tl.exp(lse - tl.max(lse))
    weight = weight / tl.sum(weight)
    parts = tl.load(part_ptr + (tl.arange(0, SPLITS)[:, None] * ROWS + row) * BLOCK + cols[None, :])
    tl.store(out_ptr + row * BLOCK + cols, tl.sum(parts * weight[:, None], axis=0))


@triton.jit
def weighted_sum(p_ptr, c_ptr, out_ptr, H, T, BLOCK_H: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_R: tl.constexpr):
    heads = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    r, batch = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R), tl.program_id(2)
    acc = tl.zeros([BLOCK_H, BLOCK_R], tl.float32)
    for start in range(0, T, BLOCK_T):
        t = start + tl.arange(0, BLOCK_T)
        p_mask = (heads[:, None] < H) & (t[None, :] < T)
        p = tl.load(p_ptr + (batch * H + heads[:, None]) * T + t[None, :], mask=p_mask, other=0.0)
        c = tl.load(c_ptr + (batch * T + t[:, None]) * 576 + r[None, :], mask=t[:, None] < T, other=0.0)
        acc = tl.dot(p.to(c.dtype), c, acc)
    tl.store(out_ptr + (batch * H + heads[:, None]) * 512 + r[None, :], acc, mask=heads[:, None] < H)


def decode_fused(q, c, splits, block_h, block_t, warps, stages):
    (b, h, _), t = q.shape, c.shape[1]
    parts, lse = torch.empty(splits, b, h, 512, device=q.device), torch.empty(splits, b, h, device=q.device)
    grid = (triton.cdiv(h, block_h), b, splits)
    decode_part[grid](
        q, c, parts, lse, h, t, 192**-0.5, SPLITS=splits, BLOCK_H=block_h, BLOCK_T=block_t,
        num_warps=warps, num_stages=stages,
    )  # fmt: skip
    if splits == 1:
        return parts[0]
    out = torch.empty(b, h, 512, device=q.device)
    decode_join[(b * h,)](parts, lse, out, b * h, SPLITS=splits, BLOCK=512)
    return out


def decode_unfused(q, c, block_t, warps):
    (b, h, _), t = q.shape, c.shape[1]
    p = softmax_fused((scores(q, c, 16, block_t, 64, "tf32", warps, 3) * 192**-0.5).view(b * h, t), 1, 4)
    out = torch.empty(b, h, 512, device=q.device)
    grid = (512 // 128, triton.cdiv(h, 16), b)
    weighted_sum[grid](p, c, out, h, t, BLOCK_H=16, BLOCK_T=block_t, BLOCK_R=128, num_warps=warps)
    return out


# Shapes and dtypes of the arguments, by task and size. All are drawn normal.
TASKS = {
    "rms_norm": {
        "128x7168": {"x": ((128, 7168), "bfloat16"), "weight": ((7168,), "bfloat16")},
        "8192x1536": {"x": ((8192, 1536), "bfloat16"), "weight": ((1536,), "bfloat16")},
        "16384x7168": {"x": ((16384, 7168), "bfloat16"), "weight": ((7168,), "bfloat16")},
    },
    "rope": {
        f"{t}x{h}": {"x": ((t, h, 64), "bfloat16"), "cos": ((t, 32), "float32"), "sin": ((t, 32), "float32")}
        for t, h in ((64, 128), (4096, 128), (16384, 16))
    },
    "softmax": {
        "512x4096": {"x": ((512, 4096), "float32")},
        "16384x2048": {"x": ((16384, 2048), "float32")},
        "8192x8000": {"x": ((8192, 8000), "float32")},
    },
    "add": {
        "1Mi": {"a": ((1 << 20,), "bfloat16"), "b": ((1 << 20,), "bfloat16")},
        "32Mi": {"a": ((1 << 25,), "bfloat16"), "b": ((1 << 25,), "bfloat16")},
    },
    "scores": {
        "4x16x1024": {"q": ((4, 16, 576), "bfloat16"), "c": ((4, 1024, 576), "bfloat16")},
        "16x16x4096": {"q": ((16, 16, 576), "bfloat16"), "c": ((16, 4096, 576), "bfloat16")},
        "32x128x1024": {"q": ((32, 128, 576), "bfloat16"), "c": ((32, 1024, 576), "bfloat16")},
    },
    "transpose": {f"{n}x{d}": {"x": ((n, d), "bfloat16")} for n, d in ((1024, 4096), (8192, 4096))},
    "decode": {
        f"{b}x16x{t}": {"q": ((b, 16, 576), "bfloat16"), "c": ((b, t, 576), "bfloat16")}
        for b, t in ((8, 4096), (128, 1024))
    },
}  # fmt: skip

UNSEEN = ("transpose", "decode")  # modelled before they were measured, with constants fitted on the other tasks


def _dot(block_h, block_t, block_r, precision, warps, stages):
    names = ("block_h", "block_t", "block_r", "precision", "warps", "stages")
    return dict(zip(names, (block_h, block_t, block_r, precision, warps, stages), strict=True))


def _part(splits, block_h, block_t, warps, stages):
    return {"splits": splits, "block_h": block_h, "block_t": block_t, "warps": warps, "stages": stages}


VARIANTS = [
    ("rms_norm", "row, 8 warps", "rms_norm_row", {"pad": 1, "warps": 8}),
    ("rms_norm", "row, 1 warp", "rms_norm_row", {"pad": 1, "warps": 1}),
    ("rms_norm", "row, 2 warps", "rms_norm_row", {"pad": 1, "warps": 2}),
    ("rms_norm", "row, 4 warps", "rms_norm_row", {"pad": 1, "warps": 4}),
    ("rms_norm", "row, 16 warps", "rms_norm_row", {"pad": 1, "warps": 16}),
    ("rms_norm", "row, 32 warps", "rms_norm_row", {"pad": 1, "warps": 32}),
    ("rms_norm", "row padded 4x, 8 warps", "rms_norm_row", {"pad": 4, "warps": 8}),
    ("rms_norm", "row of unknown width, 8 warps", "rms_norm_unknown_width", {"warps": 8}),
    ("rms_norm", "loop of 1024, 4 warps", "rms_norm_loop", {"block": 1024, "warps": 4}),
    ("rms_norm", "loop of 128, 4 warps", "rms_norm_loop", {"block": 128, "warps": 4}),
    ("rms_norm", "loop of 128, 1 warp", "rms_norm_loop", {"block": 128, "warps": 1}),
    ("rms_norm", "loop of 32, 1 warp", "rms_norm_loop", {"block": 32, "warps": 1}),
    ("rms_norm", "loop of 512, 16 warps", "rms_norm_loop", {"block": 512, "warps": 16}),
    ("rms_norm", "three passes of 512, 4 warps", "rms_norm_three_passes", {"block": 512, "warps": 4}),
    ("rms_norm", "4 rows, 8 warps", "rms_norm_rows", {"rows": 4, "warps": 8}),
    ("rms_norm", "8 rows, 4 warps", "rms_norm_rows", {"rows": 8, "warps": 4}),
    ("rms_norm", "persistent 264, 8 warps", "rms_norm_persistent", {"programs": 264, "warps": 8}),
    ("rms_norm", "persistent 66, 8 warps", "rms_norm_persistent", {"programs": 66, "warps": 8}),
    ("rms_norm", "columns, 128 rows, 4 warps", "rms_norm_columns", {"rows": 128, "warps": 4}),
    ("rms_norm", "columns, 32 rows, 1 warp", "rms_norm_columns", {"rows": 32, "warps": 1}),
    ("rms_norm", "two launches of 1024, 4 warps", "rms_norm_two_launches", {"block": 1024, "warps": 4}),
    ("rms_norm", "four launches of 1024, 4 warps", "rms_norm_four_launches", {"block": 1024, "warps": 4}),
    ("rms_norm", "upcast on the host", "rms_norm_host_upcast", {"warps": 8}),
    ("rms_norm", "clone on the host", "rms_norm_host_clone", {"warps": 8}),
    ("rope", "tile of 16 heads, 4 warps", "rope_tiles", {"block_h": 16, "warps": 4}),
    ("rope", "tile of 128 heads, 4 warps", "rope_tiles", {"block_h": 128, "warps": 4}),
    ("rope", "one head, 1 warp", "rope_tiles", {"block_h": 1, "warps": 1}),
    ("rope", "one head, 4 warps", "rope_tiles", {"block_h": 1, "warps": 4}),
    ("rope", "split, 16 heads, 4 warps", "rope_splits", {"block_h": 16, "warps": 4}),
    ("rope", "split, 64 heads, 8 warps", "rope_splits", {"block_h": 64, "warps": 8}),
    ("rope", "split, 4 heads, 1 warp", "rope_splits", {"block_h": 4, "warps": 1}),
    ("rope", "split, 128 heads, 1 warp", "rope_splits", {"block_h": 128, "warps": 1}),
    ("rope", "split, 64 tokens, 4 warps", "rope_tokens", {"block_t": 64, "warps": 4}),
    ("rope", "two launches", "rope_two_launches", {"block_h": 16, "warps": 4}),
    ("rope", "columns, 128 tokens, 4 warps", "rope_columns", {"block_t": 128, "warps": 4}),
    ("rope", "expanded tables", "rope_expanded_tables", {"block_h": 16, "warps": 4}),
    ("rope", "angles in the kernel", "rope_angles", {"block_h": 16, "warps": 4}),
    ("rope", "upcast on the host", "rope_host_upcast", {"block_h": 16, "warps": 4}),
    ("softmax", "fused, 4 warps", "softmax_fused", {"pad": 1, "warps": 4}),
    ("softmax", "fused, 1 warp", "softmax_fused", {"pad": 1, "warps": 1}),
    ("softmax", "fused, 8 warps", "softmax_fused", {"pad": 1, "warps": 8}),
    ("softmax", "fused, 32 warps", "softmax_fused", {"pad": 1, "warps": 32}),
    ("softmax", "fused, padded 4x, 8 warps", "softmax_fused", {"pad": 4, "warps": 8}),
    ("softmax", "4 rows, 8 warps", "softmax_tile", {"rows": 4, "warps": 8}),
    ("softmax", "three passes of 256, 4 warps", "softmax_loops", {"block": 256, "warps": 4}),
    ("softmax", "three passes of 64, 1 warp", "softmax_loops", {"block": 64, "warps": 1}),
    ("softmax", "online, 1024, 4 warps", "softmax_two_passes", {"block": 1024, "warps": 4}),
    ("softmax", "columns, 64 rows, 2 warps", "softmax_strided", {"rows": 64, "warps": 2}),
    ("softmax", "four launches of 1024", "softmax_four_launches", {"block": 1024, "warps": 4}),
    ("softmax", "atomics, blocks of 512", "softmax_atomics", {"block": 512, "warps": 4}),
    ("softmax", "pass on the host", "softmax_host_copy", {"warps": 4}),
    ("add", "blocks of 1024, 4 warps", "add_blocks", {"block": 1024, "warps": 4}),
    ("add", "blocks of 8192, 8 warps", "add_blocks", {"block": 8192, "warps": 8}),
    ("add", "blocks of 128, 4 warps", "add_blocks", {"block": 128, "warps": 4}),
    ("add", "blocks of 32, 1 warp", "add_blocks", {"block": 32, "warps": 1}),
    ("add", "blocks of 1024, 32 warps", "add_blocks", {"block": 1024, "warps": 32}),
    ("add", "blocks of 32768, 4 warps", "add_blocks", {"block": 32768, "warps": 4}),
    ("add", "unknown length, 1024, 4 warps", "add_narrow", {"block": 1024, "warps": 4}),
    ("add", "far apart, 1024, 4 warps", "add_far_apart", {"block": 1024, "warps": 4}),
    ("add", "persistent 1056, 1024, 4 warps", "add_grid_stride", {"programs": 1056, "block": 1024, "warps": 4}),
    ("add", "persistent 33, 1024, 4 warps", "add_grid_stride", {"programs": 33, "block": 1024, "warps": 4}),
    ("add", "two launches", "add_two_launches", {"block": 1024, "warps": 4}),
    ("add", "upcast on the host", "add_host_upcast", {"block": 1024, "warps": 4}),
    ("scores", "16x64x64, 4 warps", "scores", _dot(16, 64, 64, "tf32", 4, 3)),
    ("scores", "16x128x64, 4 warps", "scores", _dot(16, 128, 64, "tf32", 4, 3)),
    ("scores", "64x128x64, 8 warps", "scores", _dot(64, 128, 64, "tf32", 8, 3)),
    ("scores", "16x64x64, 4 warps, 1 stage", "scores", _dot(16, 64, 64, "tf32", 4, 1)),
    ("scores", "16x32x32, 4 warps", "scores", _dot(16, 32, 32, "tf32", 4, 3)),
    ("scores", "16x16x16, 1 warp", "scores", _dot(16, 16, 16, "tf32", 1, 2)),
    ("scores", "128x128x64, 8 warps", "scores", _dot(128, 128, 64, "tf32", 8, 3)),
    ("scores", "16x64x64 in float32", "scores", _dot(16, 64, 64, "ieee", 4, 3)),
    ("scores", "16x256x64, 4 warps", "scores", _dot(16, 256, 64, "tf32", 4, 2)),
    ("scores", "16x64x1024, 8 warps, 1 stage", "scores", _dot(16, 64, 1024, "tf32", 8, 1)),
    ("scores", "one head, no dot", "scores_by_head", {"block_t": 64, "block_r": 64, "warps": 4}),
    ("scores", "split with atomics", "scores_atomic", {"block_h": 16, "block_t": 64, "block_r": 64, "warps": 4}),
    ("transpose", "tile of 64x64, 4 warps", "transpose_tiles", {"block_n": 64, "block_d": 64, "warps": 4}),
    ("transpose", "tile of 32x32, 4 warps", "transpose_tiles", {"block_n": 32, "block_d": 32, "warps": 4}),
    ("transpose", "tile of 16x16, 1 warp", "transpose_tiles", {"block_n": 16, "block_d": 16, "warps": 1}),
    ("transpose", "tile of 128x128, 8 warps", "transpose_tiles", {"block_n": 128, "block_d": 128, "warps": 8}),
    ("transpose", "tile of 256x16, 4 warps", "transpose_tiles", {"block_n": 256, "block_d": 16, "warps": 4}),
    ("transpose", "tile of 4x512, 4 warps", "transpose_tiles", {"block_n": 4, "block_d": 512, "warps": 4}),
    ("transpose", "rows, 1024, 4 warps", "transpose_rows", {"block": 1024, "warps": 4}),
    ("transpose", "columns, 1024, 4 warps", "transpose_columns", {"block": 1024, "warps": 4}),
    ("decode", "16 heads, 32 tokens, 4 warps", "decode_fused", _part(1, 16, 32, 4, 2)),
    ("decode", "16 heads, 64 tokens, 8 warps", "decode_fused", _part(1, 16, 64, 8, 2)),
    ("decode", "16 heads, 16 tokens, 4 warps, 1 stage", "decode_fused", _part(1, 16, 16, 4, 1)),
    ("decode", "64 heads, 32 tokens, 8 warps", "decode_fused", _part(1, 64, 32, 8, 2)),
    ("decode", "8 splits, 32 tokens, 4 warps", "decode_fused", _part(8, 16, 32, 4, 2)),
    ("decode", "16 splits, 64 tokens, 8 warps", "decode_fused", _part(16, 16, 64, 8, 2)),
    ("decode", "32 splits, 16 tokens, 4 warps", "decode_fused", _part(32, 16, 16, 4, 2)),
    ("decode", "three launches and a pass", "decode_unfused", {"block_t": 64, "warps": 4}),
]  # fmt: skip
