"""Decode over shared prefixes: each shared part once for all of its users, each sequence's rest by absorption.

A program of the naive kernel takes a head, a block of the queries of a part's users, and a share of the part's tokens.
A second kernel merges what a sequence's parts and its rest have found. Which programs there are is a table that the
host makes once a plan.
"""

import functools
from contextlib import contextmanager

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from .._operands import check_mla
from ..attention import default_scale
from ..prefix import ExpandedPrefixes, PrefixPlan, check_plan
from ._decode import Tile, block_width, limits
from ._launch import check_operands, check_scale, on_device_of, result_for
from ._sizes import ceil_div, power_of_2
from .decoders import DECODERS, FASTEST
from .masked_softmax import finite, nonzero
from .ragged_attention import LOG2_E, MANY, attend_block, choose_tile

MERGED, ROWS = 16, 64  # rows of a program that merges, and of one of absorb
# By rows of a program, microseconds of a block of tokens, and what a program takes besides, in blocks.
BLOCK, START = {128: 1.3, 64: 0.87, 16: 0.5}, {128: 6, 64: 2, 16: 2}
# Microseconds: reading a block, for each multiprocessor that does; absorb's products of a query, a token and a head on
# one multiprocessor, and what absorb takes at least; writing and merging a share.
READ, ABSORB, LATENCY, MERGE = 0.01, 8.7e-4, 10.0, 2.0


@triton.jit
def _prefix_attention(
    q_nope_ptr, q_rope_ptr, k_ptr, v_ptr, k_nope_desc, k_rope_desc, v_desc, users_ptr, work_ptr, out_ptr, lse_ptr,
    scale, S,
    stride_qb, stride_qs, stride_qh, stride_qd, stride_rb, stride_rs, stride_rh, stride_rd,
    stride_kt, stride_kh, stride_vt, stride_vh,
    stride_op, stride_ob, stride_os, stride_oh, stride_od, stride_lp, stride_lb, stride_ls, stride_lh,
    DN: tl.constexpr, DR: tl.constexpr, DV: tl.constexpr,
    BLOCK_DN: tl.constexpr, BLOCK_DR: tl.constexpr, BLOCK_DV: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, TMA: tl.constexpr,
):  # fmt: skip
    work_ptr += tl.program_id(0) * 6
    h, first, rows = tl.load(work_ptr), tl.load(work_ptr + 1), tl.load(work_ptr + 2)
    start, end, slot = tl.load(work_ptr + 3), tl.load(work_ptr + 4), tl.load(work_ptr + 5)
    offs_m = tl.arange(0, BLOCK_M)
    exists = offs_m < rows
    b = tl.load(users_ptr + (first + offs_m) // S, mask=exists, other=0).to(tl.int64)
    s, h = ((first + offs_m) % S).to(tl.int64), h.to(tl.int64)
    offs_n, offs_dn, offs_dr = tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_DN), tl.arange(0, BLOCK_DR)
    offs_dv = tl.arange(0, BLOCK_DV)

    # [BLOCK_M, Dn] and [BLOCK_M, Dr]
    q_rows = (b * stride_qb + s * stride_qs + h * stride_qh)[:, None]
    q_ptrs = q_nope_ptr + q_rows + offs_dn.to(tl.int64)[None, :] * stride_qd
    q_nope = tl.load(q_ptrs, mask=exists[:, None] & (offs_dn < DN), other=0.0)
    q_rows = (b * stride_rb + s * stride_rs + h * stride_rh)[:, None]
    q_ptrs = q_rope_ptr + q_rows + offs_dr.to(tl.int64)[None, :] * stride_rd
    q_rope = tl.load(q_ptrs, mask=exists[:, None] & (offs_dr < DR), other=0.0)

    m_i = tl.full([BLOCK_M], float("-inf"), tl.float32)
    l_i = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_DV], tl.float32)
    k_ptr += h * stride_kh
    v_ptr += h * stride_vh
    tail = start + (end - start) // BLOCK_N * BLOCK_N  # from here on less than a block
    first_k, first_v = (h * stride_kh).to(tl.int32), (h * stride_vh).to(tl.int32)
    for start_n in range(start, tail, BLOCK_N):
        if TMA:
            k_nope = k_nope_desc.load([start_n, first_k])
            k_rope = k_rope_desc.load([start_n, first_k + DN])
            v = v_desc.load([start_n, first_v])
        else:
            tokens = (start_n + offs_n).to(tl.int64)[:, None]
            k_nope = tl.load(k_ptr + tokens * stride_kt + offs_dn[None, :], mask=(offs_dn < DN)[None, :], other=0.0)
            k_ptrs = k_ptr + tokens * stride_kt + DN + offs_dr[None, :]
            k_rope = tl.load(k_ptrs, mask=(offs_dr < DR)[None, :], other=0.0)
            v = tl.load(v_ptr + tokens * stride_vt + offs_dv[None, :], mask=(offs_dv < DV)[None, :], other=0.0)
        acc, m_i, l_i = attend_block(q_nope, q_rope, k_nope, k_rope, v, offs_n, acc, m_i, l_i, scale, False, True, 0)
    if tail < end:
        inside = tail + offs_n < end
        tokens = (tail + offs_n).to(tl.int64)[:, None]
        column = inside[:, None]
        k_nope = tl.load(k_ptr + tokens * stride_kt + offs_dn[None, :], mask=column & (offs_dn < DN), other=0.0)
        k_rope = tl.load(k_ptr + tokens * stride_kt + DN + offs_dr[None, :], mask=column & (offs_dr < DR), other=0.0)
        v = tl.load(v_ptr + tokens * stride_vt + offs_dv[None, :], mask=column & (offs_dv < DV), other=0.0)
        seen = inside[None, :]
        acc, m_i, l_i = attend_block(q_nope, q_rope, k_nope, k_rope, v, seen, acc, m_i, l_i, scale, True, True, 0)

    slot = slot.to(tl.int64)
    out = (acc / l_i[:, None]).to(out_ptr.dtype.element_ty)
    out_rows = (slot * stride_op + b * stride_ob + s * stride_os + h * stride_oh)[:, None]
    out_ptrs = out_ptr + out_rows + offs_dv.to(tl.int64)[None, :] * stride_od
    tl.store(out_ptrs, out, mask=exists[:, None] & (offs_dv < DV))
    lse_rows = slot * stride_lp + b * stride_lb + s * stride_ls + h * stride_lh
    tl.store(lse_ptr + lse_rows, (m_i + tl.log2(l_i)) * 0.6931471805599453, mask=exists)


@triton.jit
def _merge(
    rest_ptr, rest_lse_ptr, parts_ptr, part_lses_ptr, counts_ptr, out_ptr, lse_ptr, rows, S, H, P,
    stride_rb, stride_rs, stride_rh, stride_rd, stride_nb, stride_ns, stride_nh,
    stride_pp, stride_pb, stride_ps, stride_ph, stride_pd, stride_mp, stride_mb, stride_ms, stride_mh,
    stride_ob, stride_os, stride_oh, stride_od, stride_lb, stride_ls, stride_lh,
    DV: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_DV: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * BLOCK_R + tl.arange(0, BLOCK_R)
    offs_d = tl.arange(0, BLOCK_DV).to(tl.int64)
    b, s, h = row // H // S, row // H % S, row % H
    exists, wide = row < rows, (offs_d < DV)[None, :]
    count = tl.load(counts_ptr + b, mask=exists, other=0)

    m_i = tl.load(rest_lse_ptr + b * stride_nb + s * stride_ns + h * stride_nh, mask=exists, other=float("-inf"))
    rest_ptrs = rest_ptr + (b * stride_rb + s * stride_rs + h * stride_rh)[:, None] + offs_d[None, :] * stride_rd
    acc = tl.load(rest_ptrs, mask=exists[:, None] & wide, other=0.0).to(tl.float32)
    seen = m_i > float("-inf")
    l_i = tl.where(seen, 1.0, 0.0)
    acc = tl.where(seen[:, None], acc, 0.0)
    for p in range(P):
        has = exists & (p < count)
        part_lse_ptrs = part_lses_ptr + p * stride_mp + b * stride_mb + s * stride_ms + h * stride_mh
        part_lse = tl.load(part_lse_ptrs, mask=has, other=float("-inf"))
        part_rows = p * stride_pp + b * stride_pb + s * stride_ps + h * stride_ph
        part_ptrs = parts_ptr + part_rows[:, None] + offs_d[None, :] * stride_pd
        part = tl.load(part_ptrs, mask=has[:, None] & wide, other=0.0).to(tl.float32)
        m_ij = tl.maximum(m_i, part_lse)
        base = finite(m_ij)
        alpha, beta = tl.exp(m_i - base), tl.exp(part_lse - base)
        acc, l_i, m_i = acc * alpha[:, None] + part * beta[:, None], l_i * alpha + beta, m_ij

    l_i = nonzero(l_i)
    out = (acc / l_i[:, None]).to(out_ptr.dtype.element_ty)
    out_ptrs = out_ptr + (b * stride_ob + s * stride_os + h * stride_oh)[:, None] + offs_d[None, :] * stride_od
    tl.store(out_ptrs, out, mask=exists[:, None] & wide)
    tl.store(lse_ptr + b * stride_lb + s * stride_ls + h * stride_lh, m_i + tl.log(l_i), mask=exists)


def prefix_attention(
    q_nope: Tensor,
    q_rope: Tensor,
    c_kv: Tensor,
    k_rope: Tensor,
    w_uk: Tensor,
    w_uv: Tensor,
    plan: PrefixPlan,
    expanded: ExpandedPrefixes | None = None,
    *,
    seq_lens: Tensor,
    block_table: Tensor,
    scale: float | None = None,
    causal: bool = True,
    out: Tensor | None = None,
    lse: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """MLA over pages, naive over the shared parts of a plan: :func:`mla_ref.prefix_attention` in a few launches.

    A part whose users fill the GPU goes to cuDNN's attention where there is one, which is faster than this kernel
    there; all others go to one launch. Without a part to compute naively this is absorb.

    Parameters
    ----------
    q_nope, q_rope, c_kv, k_rope, w_uk, w_uv, plan, expanded, seq_lens, block_table, scale, causal
        As in the twin. The values of ``seq_lens`` and ``block_table`` stay on the device and are not checked there.
    out, lse
        Where the results go.

    Returns
    -------
    out, lse
        ``[B, S, H, Dv]`` in the dtype of ``q_nope`` and float32 ``[B, S, H]``.

    Raises
    ------
    TypeError, ValueError, RuntimeError
        As :func:`mla_ref.kernels.latent_attention`, or a plan of another batch, page size or number of new tokens.

    References
    ----------
    TyphoonMLA, algorithm 1.
    """
    size = check_mla(q_nope, q_rope, c_kv, k_rope, w_uk, w_uv, seq_lens=seq_lens, block_table=block_table)
    check_operands("mla_ref.prefix_attention", q_nope=q_nope, q_rope=q_rope, c_kv=c_kv, w_uk=w_uk, w_uv=w_uv)
    check_plan(plan, size)
    B, S, H, Dv = *q_nope.shape[:3], w_uv.shape[1]
    scale = default_scale(size) if scale is None else check_scale(scale)
    out = result_for(out, "out", (B, S, H, Dv), (q_nope.dtype,), q_nope.device)
    lse = result_for(lse, "lse", (B, S, H), (torch.float32,), q_nope.device)
    if expanded is None:
        expanded = ExpandedPrefixes(w_uk, w_uv)
        expanded.update(plan, c_kv, k_rope)
    expanded.check(plan)
    if out.numel() == 0:
        return out, lse
    decode = DECODERS[FASTEST].paged

    def absorbed(rest, rest_lse):
        q_latent = torch.einsum("bshd,hdr->bshr", q_nope, w_uk)
        own_lens = seq_lens - plan.starts if plan.nodes else seq_lens
        queries, where = (q_latent, q_rope), {"block_table": plan.own_table(block_table), "seq_lens": own_lens}
        options = {"scale": scale, "causal": causal}
        if not (long := _long(plan, S * H, q_nope.device)):
            o_latent, _ = decode(*queries, c_kv, k_rope, **where, **options, lse=rest_lse)
        else:  # in a launch of their own, which splits them
            long = _indices(long, q_nope.device)
            others = {**where, "seq_lens": own_lens.index_fill(0, long, 0)}
            o_latent, _ = decode(*queries, c_kv, k_rope, **others, **options, lse=rest_lse, num_splits=1)
            queries, where = (x[long] for x in queries), {name: x[long] for name, x in where.items()}
            found = decode(*queries, c_kv, k_rope, **where, **options)
            for whole, each in zip((o_latent, rest_lse), found, strict=True):
                whole.index_copy_(0, long, each)
        dense = rest if rest.is_contiguous() else rest.new_empty(rest.shape)
        torch.bmm(_heads_first(o_latent), w_uv.mT, out=_heads_first(dense))
        if dense is not rest:
            rest.copy_(dense)

    with on_device_of(q_nope):
        if not plan.nodes:
            absorbed(out, lse)
            return out, lse
        rest, rest_lse = out.new_empty(out.shape), lse.new_empty(lse.shape)
        with _beside(q_nope.device, first=_crowded(q_nope, q_rope, plan, expanded.v.shape[2])) as join:
            absorbed(rest, rest_lse)
        parts, part_lses, counts = naive_parts(q_nope, q_rope, plan, expanded, scale)
        join()
        launch_merge(rest, rest_lse, parts, part_lses, counts, out, lse)
    return out, lse


def _heads_first(x):
    """Return contiguous ``[B, S, H, D]`` as ``[H, B*S, D]``, a view."""
    return x.view(-1, *x.shape[2:]).transpose(0, 1)


@contextmanager
def _beside(device, first):
    """Start what is launched here beside what follows, which ``join()`` has wait for it; in turn on a CPU.

    ``first``: its programs go first where a multiprocessor gets free.
    """
    if device.type != "cuda":
        yield lambda: None
        return
    side, main = _side_stream(device, first), torch.cuda.current_stream(device)
    side.wait_stream(main)
    with torch.cuda.stream(side):
        yield lambda: main.wait_stream(side)


@functools.cache
def _side_stream(device, first):
    return torch.cuda.Stream(device, priority=-1 if first else 0)


def _crowded(q_nope, q_rope, plan, Dv):
    """Return whether the naive parts have more programs than the GPU runs at once."""
    S, H = q_nope.shape[1:3]
    if any(prefers_cudnn(q_nope, q_rope, Dv, len(node.users)) for node in plan.nodes):
        return True
    tile = tile_for(q_nope, q_rope, Dv, max(len(node.users) for node in plan.nodes))
    return len(_work(plan, (), H, S, tile, q_nope.device)[0]) > limits(q_nope.device).multiprocessors


def naive_parts(
    q_nope: Tensor, q_rope: Tensor, plan: PrefixPlan, expanded: ExpandedPrefixes, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the parts: outputs ``[P, B, S, H, Dv]``, LSEs ``[P, B, S, H]``, and how many each sequence has, ``[B]``.

    What is beyond that number is left unwritten.
    """
    B, S, H = q_nope.shape[:3]
    Dv = expanded.v.shape[2]
    device = q_nope.device
    large = [node for node in plan.nodes if prefers_cudnn(q_nope, q_rope, Dv, len(node.users))]
    if large and len(plan.nodes) == 1 and len(large[0].users) == B:
        parts, part_lses = cudnn_part(q_nope, q_rope, expanded, large[0], scale)
        return parts, part_lses, _counts(plan, (), device)
    tile = tile_for(q_nope, q_rope, Dv, max(len(node.users) for node in plan.nodes))
    work, users, splits = _work(plan, tuple(large), H, S, tile, device)
    slots = max((base + split for base, split in splits.values()), default=0)
    parts, part_lses = q_nope.new_empty(slots, B, S, H, Dv), q_nope.new_empty(slots, B, S, H, dtype=torch.float32)
    for node in large:
        out, node_lse = cudnn_part(q_nope, q_rope, expanded, node, scale)
        where = slice(None) if len(node.users) == B else _indices(node.users, device)
        parts[splits[node][0], where], part_lses[splits[node][0], where] = out[0], node_lse[0]
    if len(work):
        launch(q_nope, q_rope, expanded, users, work, parts, part_lses, scale, tile)
    return parts, part_lses, _counts(plan, tuple(splits.items()), device)


def prefers_cudnn(q_nope: Tensor, q_rope: Tensor, Dv: int, users: int) -> bool:
    """Return whether cuDNN's attention is faster for a part: on Hopper, where its blocks fill the multiprocessors."""
    S, H, Dn = q_nope.shape[1:]
    limit = limits(q_nope.device)
    return (
        q_nope.is_cuda
        and limit.hopper
        and q_nope.element_size() == 2
        and (Dn + q_rope.shape[3]) % 8 == Dv % 8 == 0
        and Dn + q_rope.shape[3] <= 256
        and Dv <= 256
        and H * ceil_div(users * S, MANY[0].block_m) >= limit.multiprocessors
    )


def cudnn_part(q_nope: Tensor, q_rope: Tensor, expanded: ExpandedPrefixes, node, scale: float) -> tuple[Tensor, Tensor]:
    """Compute a part by cuDNN: outputs ``[1, U, S, H, Dv]`` and LSEs ``[1, U, S, H]`` of its U users."""
    S = q_nope.shape[1]
    q = _whole(q_nope, q_rope)
    if len(node.users) < len(q):
        q = q[_indices(node.users, q.device)]
    place = slice(node.offset, node.offset + node.tokens)
    heads_first = (x.transpose(0, 1)[None] for x in (q.flatten(0, 1), expanded.k[place], expanded.v[place]))
    found = torch.ops.aten._scaled_dot_product_cudnn_attention(*heads_first, None, True, 0.0, False, False, scale=scale)
    out, lse = found[0][0].transpose(0, 1), found[1].reshape(found[0].shape[1:3]).transpose(0, 1)
    return out.unflatten(0, (-1, S))[None], lse.unflatten(0, (-1, S))[None]


def _whole(q_nope, q_rope):
    """Return ``[B, S, H, Dn+Dr]``: the tensor of which both are views, if there is one, else a copy."""
    Dn, width = q_nope.shape[3], q_nope.shape[3] + q_rope.shape[3]
    if (
        q_nope.stride() == q_rope.stride()
        and q_nope.stride(3) == 1
        and q_nope.stride(2) >= width
        and q_rope.data_ptr() == q_nope.data_ptr() + Dn * q_nope.element_size()
    ):
        return q_nope.as_strided((*q_nope.shape[:3], width), q_nope.stride())
    return torch.cat((q_nope, q_rope), -1)


def tile_for(q_nope: Tensor, q_rope: Tensor, Dv: int, users: int) -> Tile:
    """Return the block sizes for parts of at most so many users. Raises ValueError as :func:`choose_tile`."""
    key = block_width(q_nope.shape[3]) + block_width(q_rope.shape[3])
    return choose_tile(q_nope, key, block_width(Dv), users * q_nope.shape[1])


def launch(
    q_nope: Tensor,
    q_rope: Tensor,
    expanded: ExpandedPrefixes,
    users: Tensor,
    work: Tensor,
    parts: Tensor,
    part_lses: Tensor,
    scale: float,
    tile: Tile,
) -> None:
    """Start the naive kernel, a program for each line of ``work``."""
    k, v, Dn, Dr, Dv = expanded.k, expanded.v, q_nope.shape[3], q_rope.shape[3], expanded.v.shape[2]
    tma = fits(q_nope, k, v, Dn, Dr)
    descriptors = (None, None, None)
    if tma:
        flat_k, flat_v = k.flatten(1), v.flatten(1)
        descriptors = (
            TensorDescriptor.from_tensor(flat_k, [tile.block_n, Dn]),
            TensorDescriptor.from_tensor(flat_k, [tile.block_n, Dr]),
            TensorDescriptor.from_tensor(flat_v, [tile.block_n, Dv]),
        )
    _prefix_attention[(len(work),)](
        q_nope, q_rope, k, v, *descriptors, users, work, parts, part_lses, scale * LOG2_E, q_nope.shape[1],
        *q_nope.stride(), *q_rope.stride(), *k.stride()[:2], *v.stride()[:2], *parts.stride(), *part_lses.stride(),
        Dn, Dr, Dv, block_width(Dn), block_width(Dr), block_width(Dv), tile.block_m, tile.block_n, tma,
        num_warps=tile.num_warps, num_stages=tile.num_stages,
    )  # fmt: skip


def fits(q: Tensor, k: Tensor, v: Tensor, Dn: int, Dr: int) -> bool:
    """Return whether TMA can read keys and values in blocks."""
    return (
        limits(q.device).hopper
        and q.element_size() == 2
        and all(width == max(power_of_2(width), 16) for width in (Dn, Dr, v.shape[2]))
        and all(x.shape[0] > 0 and x.shape[1] * x.shape[2] * 2 % 16 == 0 for x in (k, v))
    )


@functools.lru_cache(32)
def _work(plan, elsewhere, H, S, tile, device):
    """Return the programs, int32 ``[N, 6]``, the users of all parts, and of each part its first slot and its splits.

    A program: its head, the first of its rows among those of all parts, how many, its first token and the one behind
    its last, its slot.
    """
    own = [node for node in plan.nodes if node not in elsewhere]
    longest = max((node.tokens for node in own), default=0)
    split = _choose_split(plan, own, longest, H, S, tile, limits(device).multiprocessors)
    share = ceil_div(ceil_div(longest, split), tile.block_n) * tile.block_n
    splits, lines, users = {}, [], []
    ends: dict[int, int] = {}  # slots on the path of a sequence so far
    for node in plan.nodes:
        pieces = 1 if node in elsewhere else ceil_div(node.tokens, share)
        base = ends.get(node.users[0], 0)
        splits[node] = base, pieces
        ends.update(dict.fromkeys(node.users, base + pieces))
        if node in elsewhere:
            continue
        for piece, h, block in np.ndindex(pieces, H, ceil_div(len(node.users) * S, tile.block_m)):
            first = block * tile.block_m
            rows = min(tile.block_m, len(node.users) * S - first)
            start = node.offset + piece * share
            end = min(start + share, node.offset + node.tokens)
            lines.append((h, len(users) * S + first, rows, start, end, base + piece))
        users += node.users
    lines.sort(key=lambda line: line[3] - line[4])  # the longest first
    as_tensor = functools.partial(torch.tensor, dtype=torch.int32)
    return as_tensor(lines).reshape(-1, 6).to(device), as_tensor(users).to(device), splits


def _choose_split(plan, own, longest, H, S, tile, multiprocessors):
    """Return into how many shares the longest part is split: the fastest beside absorb, which goes on meanwhile.

    A block of tokens takes a program as long as its products, or as its share of the memory's bandwidth. Absorb finds
    multiprocessors that are free all the time, or none before the naive programs end, or its turn among more of these
    than run at once. Times are in microseconds, measured on an H200 at DeepSeek-V3's widths; the choice is about
    multiprocessors and holds elsewhere.
    """
    row_blocks = [ceil_div(len(node.users) * S, tile.block_m) for node in own]
    programs, most = H * sum(row_blocks), max(row_blocks, default=1)
    load = sum(plan.own) * H * S / multiprocessors * ABSORB
    absorb = LATENCY + max(load, max(plan.own) * min(H * S, ROWS) * ABSORB)

    def time(split):
        count, share = programs * split, ceil_div(ceil_div(longest, tile.block_n), split)
        share += START[tile.block_m]
        block = max(BLOCK[tile.block_m], min(count, multiprocessors) * READ / most)
        one, waves = share * block, ceil_div(count, multiprocessors)
        if count <= 0.6 * multiprocessors:
            together = max(one, absorb, count * one / multiprocessors + load)
        elif count <= multiprocessors:
            together = one + 1.1 * absorb
        else:
            together = waves * one + one / 2 + absorb / 3
        return together + MERGE * split

    return min(range(1, 17), key=time)


@functools.lru_cache(32)
def _long(plan, rows, device):
    """Return the sequences of which one program would take longer than all others on average, where programs abound."""
    blocks, multiprocessors = ceil_div(rows, ROWS), limits(device).multiprocessors
    if len(plan.own) * blocks < 2 * multiprocessors:  # too few for all to be busy: each sequence is split
        return ()
    load = sum(plan.own) * blocks / multiprocessors
    return tuple(sequence for sequence, tokens in enumerate(plan.own) if tokens > load)


@functools.lru_cache(32)
def _indices(users, device):
    return torch.tensor(users).to(device)


@functools.lru_cache(32)
def _counts(plan, splits, device):
    counts = [0] * len(plan.starts)
    for node, (base, pieces) in splits or tuple((node, (0, 1)) for node in plan.nodes):
        for user in node.users:
            counts[user] = max(counts[user], base + pieces)
    return torch.tensor(counts, dtype=torch.int32).to(device)


def launch_merge(
    rest: Tensor, rest_lse: Tensor, parts: Tensor, part_lses: Tensor, counts: Tensor, out: Tensor, lse: Tensor
) -> None:
    """Start the merging kernel, a program for a block of rows."""
    B, S, H, Dv = out.shape
    _merge[(ceil_div(B * S * H, MERGED),)](
        rest, rest_lse, parts, part_lses, counts, out, lse, B * S * H, S, H, len(parts),
        *rest.stride(), *rest_lse.stride(), *parts.stride(), *part_lses.stride(), *out.stride(), *lse.stride(),
        Dv, MERGED, block_width(Dv), num_warps=4,
    )  # fmt: skip
