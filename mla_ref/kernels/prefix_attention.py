"""Decode over shared prefixes: each shared part once for all of its users, each sequence's rest by absorption.

A program of the naive kernel takes a head, a block of the queries of a part's users, and a share of the part's tokens,
a piece. A second kernel merges what a sequence's pieces and its rest have found. Which pieces there are is a table that
the host makes once a plan. On an H100 or H200 the naive kernel is that of ragged prefill, to which a piece is a
sequence.
"""

import functools
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from .._operands import check_mla
from ..attention import default_scale
from ..prefix import ExpandedPrefixes, PrefixPlan, check_plan
from . import ragged_hopper
from ._decode import Tile, block_width, limits
from ._launch import check_operands, check_scale, on_device_of, result_for
from ._sizes import ceil_div, power_of_2
from .decoders import DECODERS, FASTEST
from .masked_softmax import finite, nonzero
from .ragged_attention import LOG2_E, attend_block, choose_tile

MERGED, ROWS = 16, 64  # rows of a program that merges, and of one of absorb
# The kernel for Hopper is faster for parts of more queries, whose products take longer than reading the part, and of
# more tokens, in the mean over queries.
MANY_QUERIES, MANY_TOKENS = 64, 2400
HOPPER = Tile(ragged_hopper.BLOCK_M, ragged_hopper.BLOCK_N, 4, 2)
# By rows of a program, microseconds of a block of tokens, and what a program takes besides, in blocks.
BLOCK, START = {HOPPER: 1.9, 128: 1.3, 64: 0.87, 16: 0.5}, {HOPPER: 5, 128: 6, 64: 2, 16: 2}
# Microseconds: reading a token, for each multiprocessor that does; absorb's products of a query, a token and a head on
# one multiprocessor, and what absorb takes at least; writing and merging pieces at all, and a row of them.
READ, ABSORB, LATENCY, MERGE, MERGE_ROW = 1.6e-4, 8.7e-4, 10.0, 2.0, 1.2e-4
MOST_SPLITS = 16


@triton.jit
def _prefix_attention(
    q_nope_ptr, q_rope_ptr, k_ptr, v_ptr, k_nope_desc, k_rope_desc, v_desc, users_ptr, work_ptr, out_ptr, lse_ptr,
    scale, S,
    stride_qb, stride_qs, stride_qh, stride_qd, stride_rb, stride_rs, stride_rh, stride_rd,
    stride_kt, stride_kh, stride_vt, stride_vh, stride_ot, stride_oh, stride_lt,
    DN: tl.constexpr, DR: tl.constexpr, DV: tl.constexpr,
    BLOCK_DN: tl.constexpr, BLOCK_DR: tl.constexpr, BLOCK_DV: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, TMA: tl.constexpr,
):  # fmt: skip
    work_ptr += tl.program_id(0) * 6
    h, first, rows = tl.load(work_ptr), tl.load(work_ptr + 1), tl.load(work_ptr + 2)
    start, end, row = tl.load(work_ptr + 3), tl.load(work_ptr + 4), tl.load(work_ptr + 5)
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

    out = (acc / l_i[:, None]).to(out_ptr.dtype.element_ty)
    offs_r = (row + offs_m).to(tl.int64)
    out_ptrs = out_ptr + (offs_r * stride_ot + h * stride_oh)[:, None] + offs_dv[None, :]
    tl.store(out_ptrs, out, mask=exists[:, None] & (offs_dv < DV))
    tl.store(lse_ptr + offs_r * stride_lt + h, (m_i + tl.log2(l_i)) * 0.6931471805599453, mask=exists)


@triton.jit
def _merge(
    rest_ptr, rest_lse_ptr, parts_ptr, part_lses_ptr, part_rows_ptr, out_ptr, lse_ptr, rows, B, S, H, P,
    stride_rb, stride_rs, stride_rh, stride_rd, stride_nb, stride_ns, stride_nh, stride_pt, stride_ph, stride_mt,
    stride_ob, stride_os, stride_oh, stride_od, stride_lb, stride_ls, stride_lh,
    DV: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_DV: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * BLOCK_R + tl.arange(0, BLOCK_R)
    offs_d = tl.arange(0, BLOCK_DV).to(tl.int64)
    b, s, h = row // H // S, row // H % S, row % H
    exists, wide = row < rows, (offs_d < DV)[None, :]

    m_i = tl.load(rest_lse_ptr + b * stride_nb + s * stride_ns + h * stride_nh, mask=exists, other=float("-inf"))
    rest_ptrs = rest_ptr + (b * stride_rb + s * stride_rs + h * stride_rh)[:, None] + offs_d[None, :] * stride_rd
    acc = tl.load(rest_ptrs, mask=exists[:, None] & wide, other=0.0).to(tl.float32)
    seen = m_i > float("-inf")
    l_i = tl.where(seen, 1.0, 0.0)
    acc = tl.where(seen[:, None], acc, 0.0)
    for p in range(P):
        first = tl.load(part_rows_ptr + p * B + b, mask=exists, other=-1).to(tl.int64)
        has, part_row = first >= 0, first + s
        part_lse = tl.load(part_lses_ptr + part_row * stride_mt + h, mask=has, other=float("-inf"))
        part_ptrs = parts_ptr + (part_row * stride_pt + h * stride_ph)[:, None] + offs_d[None, :]
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

    All naive parts are one launch. Without a part to compute naively this is absorb.

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
        q = queries_for_hopper(q_nope, q_rope, plan, expanded, scale)
        work = plan_work(q_nope, q_rope, plan, expanded, hopper=q is not None)
        with _beside(q_nope.device, first=work.programs > limits(q_nope.device).multiprocessors) as join:
            absorbed(rest, rest_lse)
        parts, part_lses = naive_parts(q_nope, q_rope, q, work, expanded, scale)
        join()
        launch_merge(rest, rest_lse, parts, part_lses, work.rows, out, lse)
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


@dataclass(frozen=True, eq=False)
class Work:
    """What the naive kernel does: pieces, each a share of a part's tokens for all users of the part.

    Attributes
    ----------
    tile
        Block sizes; ``HOPPER`` is the kernel of that name.
    users
        int32 ``[U]``: the sequences that share a part, one part's behind another's.
    rows
        int32 ``[P, B]``: of each sequence's pieces the row of its first query among all results; -1: it has fewer.
    results
        How many rows there are, one for each query of each piece.
    programs
        How many programs do something.
    table
        int32 ``[N, 6]``, a line for each program: its head, the first of its queries among those of ``users``, how
        many, its first token and the one behind its last, its first row. For ``HOPPER`` the offsets that
        :func:`mla_ref.kernels.ragged_hopper.launch` takes.
    gathered
        Whether queries are those of ``users`` in turn, and not those of the batch.
    """

    tile: Tile
    users: Tensor
    rows: Tensor
    results: int
    programs: int
    table: Tensor | tuple[Tensor, ...]
    gathered: bool


def plan_work(q_nope: Tensor, q_rope: Tensor, plan: PrefixPlan, expanded: ExpandedPrefixes, hopper: bool) -> Work:
    """Return what there is to do. Raises ValueError as :func:`choose_tile`."""
    (S, H, Dn), Dr, Dv = q_nope.shape[1:], q_rope.shape[3], expanded.v.shape[2]
    key = block_width(Dn) + block_width(Dr)
    tile = HOPPER if hopper else choose_tile(q_nope, key, block_width(Dv), _most_queries(plan, S))
    return _work(plan, H, S, tile, q_nope.device)


def _most_queries(plan, S):
    return S * max(len(node.users) for node in plan.nodes)


def queries_for_hopper(
    q_nope: Tensor, q_rope: Tensor, plan: PrefixPlan, expanded: ExpandedPrefixes, scale: float
) -> Tensor | None:
    """Return ``[B, S, H, Dn+Dr]`` where the kernel for Hopper takes the parts, else None."""
    tokens = sum(len(node.users) * node.tokens for node in plan.nodes) / sum(len(node.users) for node in plan.nodes)
    long = _most_queries(plan, q_nope.shape[1]) > MANY_QUERIES and tokens >= MANY_TOKENS
    if not (long and q_nope.is_cuda and q_nope.shape[3] + q_rope.shape[3] == ragged_hopper.D + ragged_hopper.REST):
        return None
    q = _whole(q_nope, q_rope)
    return q if ragged_hopper.fits(q.flatten(0, 1), expanded.k, expanded.v, scale, len(plan.nodes)) else None


def naive_parts(
    q_nope: Tensor, q_rope: Tensor, q: Tensor | None, work: Work, expanded: ExpandedPrefixes, scale: float
) -> tuple[Tensor, Tensor]:
    """Compute the pieces: outputs ``[N, H, Dv]`` and LSEs ``[N, H]`` of their rows; ``q`` is for the Hopper kernel."""
    H, Dv = q_nope.shape[2], expanded.v.shape[2]
    parts, part_lses = q_nope.new_empty(work.results, H, Dv), q_nope.new_empty(work.results, H, dtype=torch.float32)
    if q is None:
        launch(q_nope, q_rope, expanded, work, parts, part_lses, scale)
        return parts, part_lses
    q = (q.index_select(0, work.users) if work.gathered else q).flatten(0, 1)
    options = {"scale": scale * LOG2_E, "causal": False, "bottom_right": False, "stay": False}
    ragged_hopper.launch(q, expanded.k, expanded.v, work.table, parts, part_lses, **options)
    return parts, part_lses


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


def launch(
    q_nope: Tensor,
    q_rope: Tensor,
    expanded: ExpandedPrefixes,
    work: Work,
    parts: Tensor,
    part_lses: Tensor,
    scale: float,
) -> None:
    """Start the naive kernel in Triton, a program for each line of the table."""
    k, v, Dn, Dr, Dv = expanded.k, expanded.v, q_nope.shape[3], q_rope.shape[3], expanded.v.shape[2]
    tile = work.tile
    tma = fits(q_nope, k, v, Dn, Dr)
    descriptors = (None, None, None)
    if tma:
        flat_k, flat_v = k.flatten(1), v.flatten(1)
        descriptors = (
            TensorDescriptor.from_tensor(flat_k, [tile.block_n, Dn]),
            TensorDescriptor.from_tensor(flat_k, [tile.block_n, Dr]),
            TensorDescriptor.from_tensor(flat_v, [tile.block_n, Dv]),
        )
    _prefix_attention[(len(work.table),)](
        q_nope, q_rope, k, v, *descriptors, work.users, work.table, parts, part_lses, scale * LOG2_E, q_nope.shape[1],
        *q_nope.stride(), *q_rope.stride(), *k.stride()[:2], *v.stride()[:2], *parts.stride()[:2], part_lses.stride(0),
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
def _work(plan, H, S, tile, device):
    longest = max(node.tokens for node in plan.nodes)
    split = _choose_split(plan, H, S, tile, limits(device).multiprocessors)
    share = ceil_div(ceil_div(longest, split), tile.block_n) * tile.block_n
    users, pieces = [], []
    for node in plan.nodes:
        for start in range(0, node.tokens, share):
            end = node.offset + min(start + share, node.tokens)
            pieces.append((end - node.offset - start, node.offset + start, end, node, len(users)))
        users += node.users
    pieces.sort(key=lambda piece: piece[0])
    gathered = any(node.users != tuple(range(node.users[0], node.users[0] + len(node.users))) for node in plan.nodes)

    rows, taken = np.full((len(pieces), len(plan.starts)), -1), np.zeros(len(plan.starts), np.int64)
    lines, offsets, row = [], [], 0
    for _, start, end, node, first in pieces:
        mine, count = np.array(node.users), len(node.users) * S
        rows[taken[mine], mine] = row + np.arange(len(mine)) * S
        taken[mine] += 1
        offsets.append((row, (first if gathered else node.users[0]) * S, start, end))
        for h, block in np.ndindex(H, ceil_div(count, tile.block_m)):
            done = block * tile.block_m
            lines.append((h, first * S + done, min(tile.block_m, count - done), start, end, row + done))
        row += count
    lines.reverse()  # the longest first
    as_tensor = functools.partial(torch.tensor, dtype=torch.int32, device=device)
    if tile is HOPPER:
        first_rows, *others = zip(*offsets, strict=True)
        table = as_tensor((*first_rows, row)), *map(as_tensor, others)
    else:
        table = as_tensor(lines)
    return Work(tile, as_tensor(users), as_tensor(rows[: taken.max()]), row, len(lines), table, gathered)


def _choose_split(plan, H, S, tile, multiprocessors):
    """Return into how many shares the longest part is split: the fastest beside absorb, which goes on meanwhile.

    A block of tokens takes a program as long as its products, or as its share of the memory's bandwidth. Absorb finds
    multiprocessors that are free all the time, or none before the naive programs end, or its turn among more of these
    than run at once. Times are in microseconds, measured on an H200 at DeepSeek-V3's widths; the choice is about
    multiprocessors and holds elsewhere.
    """
    row_blocks = [ceil_div(len(node.users) * S, tile.block_m) for node in plan.nodes]
    blocks = [ceil_div(node.tokens, tile.block_n) for node in plan.nodes]
    products, start = (costs[tile if tile is HOPPER else tile.block_m] for costs in (BLOCK, START))
    load = sum(plan.own) * H * S / multiprocessors * ABSORB
    absorb = LATENCY + max(load, max(plan.own) * min(H * S, ROWS) * ABSORB)
    merge = MERGE + MERGE_ROW * len(plan.own) * H * S

    def time(split):
        share = ceil_div(max(blocks), split)
        pieces = [ceil_div(each, share) for each in blocks]
        count = H * sum(rows * each for rows, each in zip(row_blocks, pieces, strict=True))
        block = max(products, min(count, multiprocessors) * READ * tile.block_n / max(row_blocks))
        one = (share + start) * block
        all_blocks = sum(rows * (n + start * each) for rows, n, each in zip(row_blocks, blocks, pieces, strict=True))
        mean = H * all_blocks * block / multiprocessors
        if count <= 0.6 * multiprocessors:
            together = max(one, absorb, mean + load)
        elif count <= multiprocessors:
            together = one + 1.1 * absorb
        elif len(blocks) == 1:  # all programs are alike
            together = ceil_div(count, multiprocessors) * one + absorb / 3
        else:
            together = mean + one / 2 + absorb / 3
        return together + merge * split

    most_splits = min(MOST_SPLITS, max(ragged_hopper.MOST_SEQUENCES // len(plan.nodes), 1))
    return min(range(1, most_splits + 1), key=time)


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


def launch_merge(
    rest: Tensor, rest_lse: Tensor, parts: Tensor, part_lses: Tensor, rows: Tensor, out: Tensor, lse: Tensor
) -> None:
    """Start the merging kernel, a program for a block of rows."""
    B, S, H, Dv = out.shape
    _merge[(ceil_div(B * S * H, MERGED),)](
        rest, rest_lse, parts, part_lses, rows, out, lse, B * S * H, B, S, H, len(rows),
        *rest.stride(), *rest_lse.stride(), *parts.stride()[:2], part_lses.stride(0), *out.stride(), *lse.stride(),
        Dv, MERGED, block_width(Dv), num_warps=4,
    )  # fmt: skip
