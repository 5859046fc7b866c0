"""Decode over prefixes that sequences share: naive where many do, absorb over the rest, merged by LSE.

A prefix shared by all is the simplest case. In general the shared parts make a tree: a system prompt under everyone,
documents under branches, each sequence's own tokens as its leaf. :class:`PrefixTree` says who shares what,
:func:`plan_prefixes` which parts are worth expanding, :class:`ExpandedPrefixes` holds their keys and values, and
:func:`prefix_attention` computes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ._operands import check_mla
from ._validate import check_counts, check_positive, check_tensors
from .attention import absorb, combine, default_scale, sdpa
from .paged import check_table

PROGRAM_TOKENS = 256


@dataclass(frozen=True)
class PrefixTree:
    """Who shares which tokens: a forest whose inner nodes are shared parts and whose leaves are sequences.

    Parameters
    ----------
    parents
        Of each node the node before it, -1 for a root.
    lengths
        Tokens of each node alone.
    leaves
        Of each sequence the last node on its path, -1 for one that shares nothing. Its own tokens follow.

    Raises
    ------
    TypeError, ValueError
        A number that is no node, a cycle, a node of no tokens, or one that no sequence's path passes.

    Examples
    --------
    A system prompt of 512 tokens under everyone but the last, and a document of 256 under the first two:

    >>> tree = PrefixTree(parents=[-1, 0], lengths=[512, 256], leaves=[1, 1, 0, -1])
    >>> tree.users
    ((0, 1, 2), (0, 1))
    >>> tree.ends
    (512, 768)
    """

    parents: Sequence[int]
    lengths: Sequence[int]
    leaves: Sequence[int]

    def __post_init__(self):
        for name in ("parents", "lengths", "leaves"):
            values = tuple(getattr(self, name))
            for i, value in enumerate(values):
                if not isinstance(value, int) or isinstance(value, bool):
                    raise TypeError(f"{name}[{i}] is {value!r}, expected an int")
            object.__setattr__(self, name, values)
        count = len(self.parents)
        if len(self.lengths) != count:
            raise ValueError(f"lengths has {len(self.lengths)} entries, expected {count}, one for each of parents")
        for name in ("parents", "leaves"):
            for i, node in enumerate(getattr(self, name)):
                if not -1 <= node < count:
                    raise ValueError(f"{name}[{i}] is {node}, expected a node from 0 to {count - 1}, or -1 for none")
        for node, length in enumerate(self.lengths):
            if length < 1:
                raise ValueError(f"lengths[{node}] is {length}, expected at least 1 token: leave the node out")
            self._check_path(node)
        for node, users in enumerate(self.users):
            if not users:
                raise ValueError(f"node {node} has no users: the path of no sequence in leaves passes it")

    def _check_path(self, node):
        path = [node]
        while (node := self.parents[node]) != -1:
            if node in path:
                path = [*path[path.index(node) :], node]
                raise ValueError(f"parents has a cycle: {' -> '.join(map(str, path))}, expected a root, -1, at its end")
            path.append(node)

    @property
    def users(self) -> tuple[tuple[int, ...], ...]:
        """Of each node the sequences whose path passes it, ascending."""
        users: list[list[int]] = [[] for _ in self.parents]
        for sequence, node in enumerate(self.leaves):
            while node != -1:
                users[node].append(sequence)
                node = self.parents[node]
        return tuple(map(tuple, users))

    @property
    def ends(self) -> tuple[int, ...]:
        """Of each node the tokens from position 0 to its end."""
        ends = []
        for node in range(len(self.parents)):
            end = 0
            while node != -1:
                end, node = end + self.lengths[node], self.parents[node]
            ends.append(end)
        return tuple(ends)

    @classmethod
    def from_table(cls, block_table: Tensor, *, seq_lens: Tensor, page_size: int, q_len: int = 1) -> PrefixTree:
        """Return who shares what according to the pages: sequences whose tables begin alike share these pages.

        Only whole pages count, and none that holds one of a sequence's last ``q_len`` tokens. Reading the table waits
        for the device.

        Parameters
        ----------
        block_table, seq_lens
            int32 or int64 ``[B, max_pages]`` and ``[B]``, tokens of each sequence.
        page_size
            Tokens a page.
        q_len
            S, how many of the tokens are new.

        Raises
        ------
        TypeError, ValueError
            Shapes, dtypes or devices that do not agree, or a length that the table has no room for.
        """
        table, whole = _host_table(block_table, seq_lens, page_size, q_len)
        parents, lengths, leaves = [], [], [-1] * len(table)
        groups = [(list(range(len(table))), 0, -1)]  # sequences alike before a page, that page, the node before it
        while groups:
            sequences, first, parent = groups.pop()
            beside: dict[int, list[int]] = {}
            for sequence in sequences:
                if whole[sequence] > first:
                    beside.setdefault(int(table[sequence, first]), []).append(sequence)
            for group in beside.values():
                if len(group) > 1:
                    rows = table[group, first : whole[group].min()]
                    alike = (rows == rows[0]).all(0)
                    common = alike.size if alike.all() else int(alike.argmin())
                    parents.append(parent)
                    lengths.append(common * page_size)
                    for sequence in group:
                        leaves[sequence] = len(parents) - 1
                    groups.append((group, first + common, len(parents) - 1))
        return cls(parents, lengths, leaves)


@dataclass(frozen=True)
class PrefixNode:
    """A shared part that is computed naively: its pages, the position of its first token, and who shares it.

    ``slot`` is how many such parts come before it on the path of its users, ``offset`` where its tokens begin among
    those of :class:`ExpandedPrefixes`.
    """

    pages: tuple[int, ...]
    start: int
    tokens: int
    users: tuple[int, ...]
    slot: int
    offset: int


@dataclass(frozen=True, eq=False)
class PrefixPlan:
    """Which shared parts a batch computes naively: what :func:`plan_prefixes` returns.

    It holds for all layers of a model, and until a sequence comes, goes, or lets go of a shared page.

    Attributes
    ----------
    nodes
        The parts computed naively, a parent before its children.
    starts
        int32 ``[B]``: tokens of each sequence that they cover. Absorb begins there, at the first slot of a page.
    page_size, q_len
        Tokens a page, and the most new tokens of a sequence.
    common_start
        The value of ``starts`` if it is one for all, else None.
    own
        Of each sequence the tokens left to absorb when the plan was made.
    """

    nodes: tuple[PrefixNode, ...]
    starts: Tensor
    page_size: int
    q_len: int
    common_start: int | None
    own: tuple[int, ...]

    @property
    def tokens(self) -> int:
        """Tokens to expand."""
        return sum(node.tokens for node in self.nodes)

    @property
    def slots(self) -> int:
        """The most parts on a sequence's path."""
        return max((node.slot + 1 for node in self.nodes), default=0)

    def own_table(self, block_table: Tensor) -> Tensor:
        """Return the rows of a table ``[B, max_pages]`` from each sequence's first page of its own on.

        A view where all begin at one page, else a copy that is as wide as the table, without meaning at the end.
        """
        if self.common_start is not None:
            return block_table[:, self.common_start // self.page_size :]
        entries = torch.arange(block_table.shape[1], device=block_table.device)
        entries = entries + (self.starts // self.page_size)[:, None]
        return block_table.gather(1, entries.clamp(max=block_table.shape[1] - 1))


def plan_prefixes(
    block_table: Tensor,
    *,
    seq_lens: Tensor,
    page_size: int,
    switch_point: float,
    q_len: int = 1,
    tree: PrefixTree | None = None,
    min_saving: int = 2**15,
    merging: int = 512,
) -> PrefixPlan:
    """Choose the form of every shared part: naive where enough sequences share it, absorb elsewhere.

    Fewer share a child than its parent, so that what is naive is the beginning of every sequence. Parts end with a
    page: tokens of a last page that is not full are left to absorb. Reading the table waits for the device; a plan
    serves until the batch changes.

    Parameters
    ----------
    block_table, seq_lens
        int32 or int64 ``[B, max_pages]`` and ``[B]``, tokens of each sequence, the new ones included.
    page_size
        Tokens a page.
    switch_point
        B_θ: the least number of sequences for which a part is naive, :func:`mla_ref.break_even_batch` for example.
        Infinity leaves all to absorb. A part too short to save anything is left to it too.
    q_len
        S, new tokens of each sequence. The shared parts come before them.
    tree
        Who shares what; by default what the table says, :meth:`PrefixTree.from_table`.
    min_saving, merging
        All is left to absorb where the naive parts save less than these take. Both are in tokens times queries, the
        time that absorb takes for them: another launch at all, and merging for each query. They are fitted to random
        trees on an H200 with 64 heads, where 2**15 of them take about 7 µs.

    Raises
    ------
    TypeError, ValueError
        Shapes, dtypes or devices that do not agree, a tree of another number of sequences, a path that is longer than
        its sequence, or sequences that do not share the pages of their path.

    References
    ----------
    TyphoonMLA, algorithm 1, its fall-back to absorb, and equation 1.
    """
    if not switch_point > 0:
        raise ValueError(f"switch_point is {switch_point}, expected more than 0 sequences")
    table, whole = _host_table(block_table, seq_lens, page_size, q_len)
    if tree is None:
        tree = PrefixTree.from_table(block_table, seq_lens=seq_lens, page_size=page_size, q_len=q_len)
    elif len(tree.leaves) != len(table):
        raise ValueError(f"tree has leaves for {len(tree.leaves)} sequences, expected {len(table)} as block_table")
    all_users, ends = tree.users, tree.ends
    for sequence, leaf in enumerate(tree.leaves):
        room = int(whole[sequence]) * page_size
        if leaf != -1 and ends[leaf] // page_size * page_size > room:
            raise ValueError(
                f"the path of sequence {sequence} ends at token {ends[leaf]}, expected at most {room}: "
                f"its whole pages before the last {q_len} of its tokens"
            )
    chosen = {node for node, users in enumerate(all_users) if len(users) >= switch_point}
    by_depth = sorted(chosen, key=lambda node: ends[node])
    savings = {node: _saving(tree.lengths[node], len(all_users[node]), switch_point) for node in by_depth}
    for node in reversed(by_depth):  # what saves nothing, and has nothing behind it that does
        if savings[node] < 0 and not any(tree.parents[child] == node for child in chosen):
            chosen.discard(node)
    saved = sum(savings[node] for node in chosen)
    if (saved - merging * len(table)) * q_len < min_saving:
        chosen.clear()
    by_depth = [node for node in by_depth if node in chosen]

    nodes, slots, offset = [], {-1: 0}, 0
    starts = np.zeros(len(table), np.int32)
    for node in by_depth:
        first, last = (end // page_size for end in (ends[node] - tree.lengths[node], ends[node]))
        parent = tree.parents[node]
        if first == last:  # within a page
            slots[node] = slots[parent]
            continue
        users = all_users[node]
        pages = table[users[0], first:last]
        for user in users:
            if differs := np.flatnonzero(table[user, first:last] != pages).tolist():
                page = first + differs[0]
                raise ValueError(
                    f"block_table[{user}, {page}] is {table[user, page]}, expected {pages[differs[0]]} as of "
                    f"sequence {users[0]}: both share node {node} of the tree"
                )
        slot = slots[parent]
        nodes.append(PrefixNode(tuple(pages.tolist()), first * page_size, len(pages) * page_size, users, slot, offset))
        slots[node] = slot + 1
        offset += nodes[-1].tokens
        starts[list(users)] = last * page_size
    common = int(starts[0]) if len(starts) and (starts == starts[0]).all() else None
    own = tuple((seq_lens.cpu().numpy() - starts).tolist())
    return PrefixPlan(tuple(nodes), torch.from_numpy(starts).to(seq_lens.device), page_size, q_len, common, own)


def _saving(tokens, users, switch_point):
    """Return what absorb does and the naive form need not, in tokens times queries.

    Reading keys and values takes as long as absorb with ``switch_point`` users, and a third of absorb's products are
    left. A program loads queries and stores results in the time of some tokens.
    """
    return users * tokens - (tokens + PROGRAM_TOKENS) * max(switch_point, users / 3)


class ExpandedPrefixes:
    """Keys and values of every head for the shared parts of a plan, of one layer.

    A part is expanded once, when a plan first has it, and released with the first plan that does not. Both tensors
    move then: what a CUDA graph has captured is void.

    Parameters
    ----------
    w_uk, w_uv
        ``[H, Dn, R]`` and ``[H, Dv, R]``.

    Attributes
    ----------
    k, v
        ``[tokens, H, Dn+Dr]`` and ``[tokens, H, Dv]``: the parts of the plan one behind the other.

    References
    ----------
    TyphoonMLA, section 3.1: the prefill has computed these keys and values anyway.
    """

    def __init__(self, w_uk: Tensor, w_uv: Tensor):
        check_tensors(w_uk=(w_uk, "H Dn R"), w_uv=(w_uv, "H Dv R"))
        self._w_uk, self._w_uv = w_uk, w_uv
        self._offsets: dict[tuple[int, ...], int] = {}
        self.k: Tensor | None = None
        self.v: Tensor | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of keys and values."""
        return 0 if self.k is None or self.v is None else self.k.nbytes + self.v.nbytes

    def update(self, plan: PrefixPlan, c_kv: Tensor, k_rope: Tensor) -> None:
        """Hold the parts of ``plan`` and no others.

        Parameters
        ----------
        plan
            From :func:`plan_prefixes`.
        c_kv, k_rope
            ``[num_pages, page_size, R]`` and ``[num_pages, page_size, Dr]``.

        Raises
        ------
        TypeError, ValueError
            Shapes, dtypes or devices that do not agree. Nothing has changed then.
        """
        size = check_tensors(
            w_uk=(self._w_uk, "H Dn R"),
            c_kv=(c_kv, f"num_pages {plan.page_size} R"),
            k_rope=(k_rope, f"num_pages {plan.page_size} Dr"),
        )
        Dn, width = size["Dn"], size["Dn"] + size["Dr"]
        k = c_kv.new_empty(plan.tokens, size["H"], width)
        v = c_kv.new_empty(plan.tokens, size["H"], self._w_uv.shape[1])
        for node in plan.nodes:
            place = slice(node.offset, node.offset + node.tokens)
            if (old := self._offsets.get(node.pages)) is not None:
                held = slice(old, old + node.tokens)
                k[place], v[place] = self.k[held], self.v[held]
                continue
            pages = torch.tensor(node.pages, device=c_kv.device)
            latent = c_kv[pages].flatten(0, 1)
            k[place, :, :Dn] = torch.einsum("tr,hdr->thd", latent, self._w_uk)
            k[place, :, Dn:] = k_rope[pages].flatten(0, 1)[:, None]
            v[place] = torch.einsum("tr,hvr->thv", latent, self._w_uv)
        self._offsets = {node.pages: node.offset for node in plan.nodes}
        self.k, self.v = k, v

    def check(self, plan: PrefixPlan) -> None:
        """Raise ValueError unless these are the parts of ``plan``."""
        if self._offsets != {node.pages: node.offset for node in plan.nodes}:
            raise ValueError("expanded does not hold the parts of plan: call expanded.update(plan, c_kv, k_rope) first")


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
) -> tuple[Tensor, Tensor]:
    """MLA over pages, naive over the shared parts of ``plan``, absorb over each sequence's rest, merged by LSE.

    Each shared part meets the queries of all its users in one product. The result is that of :func:`mla_ref.naive` and
    :func:`mla_ref.absorb`.

    Parameters
    ----------
    q_nope, q_rope, w_uk, w_uv, scale, causal
        As in :func:`mla_ref.naive`; S is at most the plan's ``q_len``.
    c_kv, k_rope
        ``[num_pages, page_size, R]`` and ``[num_pages, page_size, Dr]``.
    plan
        From :func:`plan_prefixes`, for this batch and these pages. The tokens that sequences have got since are their
        own.
    expanded
        Keys and values of the plan's parts; by default they are made, and released at the end.
    seq_lens, block_table
        int32 or int64 ``[B]`` and ``[B, max_pages]``, as in :func:`mla_ref.naive`.

    Returns
    -------
    out, lse
        ``[B, S, H, Dv]`` and ``[B, S, H]``, natural logarithm, as in :func:`mla_ref.sdpa`.

    Raises
    ------
    TypeError, ValueError
        As in :func:`mla_ref.naive`, or a plan of another batch, page size or number of new tokens.

    References
    ----------
    TyphoonMLA, algorithm 1. Its public ``combine_lse`` takes base-2 LSEs for natural ones, which shifts the weights of
    the parts.
    """
    size = check_mla(q_nope, q_rope, c_kv, k_rope, w_uk, w_uv, seq_lens=seq_lens, block_table=block_table)
    check_plan(plan, size)
    scale = default_scale(size) if scale is None else scale
    seq_lens = check_counts("seq_lens", seq_lens, batch=size["B"], low=0, high=size["T"], device=q_nope.device)
    if expanded is None:
        expanded = ExpandedPrefixes(w_uk, w_uv)
        expanded.update(plan, c_kv, k_rope)
    expanded.check(plan)
    own = {"seq_lens": seq_lens - plan.starts, "block_table": plan.own_table(block_table)}
    rest, rest_lse = absorb(q_nope, q_rope, c_kv, k_rope, w_uk, w_uv, scale=scale, causal=causal, **own)
    q = torch.cat((q_nope, q_rope), -1)
    outs = rest.new_zeros(plan.slots, *rest.shape)
    lses = rest_lse.new_full((plan.slots, *rest_lse.shape), -math.inf)
    for node in plan.nodes:
        users = torch.tensor(node.users, device=q.device)
        place = slice(node.offset, node.offset + node.tokens)
        k, v = (x[None, place].to(q.dtype) for x in (expanded.k, expanded.v))
        out, lse = sdpa(q[users].flatten(0, 1)[None], k, v, scale=scale, causal=False)
        outs[node.slot, users] = out[0].unflatten(0, (len(users), -1))
        lses[node.slot, users] = lse[0].unflatten(0, (len(users), -1))
    return combine((rest, *outs), (rest_lse, *lses))


def check_plan(plan: PrefixPlan, size: dict[str, int]) -> None:
    """Raise ValueError unless the plan is one for B sequences, these pages and at least S new tokens."""
    for name, has, wants in (("B", len(plan.starts), "B"), ("page_size", plan.page_size, "page_size")):
        if has != size[wants]:
            raise ValueError(f"plan has {name} = {has}, expected {size[wants]}: make one for this batch")
    if size["S"] > plan.q_len:
        raise ValueError(f"q_nope has S = {size['S']}, and the plan is for at most {plan.q_len}: pass q_len to it")


def _host_table(block_table, seq_lens, page_size, q_len):
    """Check a table, and return its rows and the whole pages before each sequence's new tokens as arrays."""
    check_positive(page_size=page_size, q_len=q_len)
    num_pages = int(block_table.max()) + 1 if isinstance(block_table, Tensor) and block_table.numel() else 1
    check_table(block_table, seq_lens=seq_lens, num_pages=max(num_pages, 1), page_size=page_size)
    whole = (seq_lens.cpu().numpy().astype(np.int64) - q_len).clip(min=0) // page_size
    return block_table.cpu().numpy(), whole
