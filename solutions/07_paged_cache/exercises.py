"""Lesson 07: the paged cache. Pages counted, a manager token by token, then update, gather and decode in Triton."""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from autograder.judging.exercise import Arguments, Exercise, Mistake, Part, Speed, far_apart, randn
from mla_ref.attention import latent_attention
from mla_ref.hardware.cost import Cost

from ..drawing import BF16, FAR_BELOW_0, HALF, set_level
from ..oracles import (
    OF_A_STEP,
    decode_floor,
    eager_decode,
    empty_mistakes,
    finite_mask,
    in_blocks,
    slips,
)

BLOCKS = (16, 32, 64)  # tokens in a block of decode: what a mistake gives may depend on it
BOTH = (True, False)
FEW = (2, 4, 8, 16)  # tokens in a block of a copy: the first cases have 16 at most
SIDE_BY_SIDE = ((False, False), (False, True), (True, False))  # which pages are known to lie apart: latents, keys
GAP = 3  # only every third page of a small pool is held: what runs on behind a page meets no other sequence
WILD = 10**6 + 7  # a page that no pool here has

# --- predict_pages ----------------------------------------------------------------------------------------------------


def _lengths(_: torch.Generator, lengths: Sequence[int], page_size: int, batch: int, longest: int) -> Arguments:
    return {"lengths": list(lengths), "page_size": page_size, "max_batch": batch, "max_seq_len": longest}


def _pages(
    lengths: list[int],
    page_size: int,
    max_batch: int,
    max_seq_len: int,
    *,
    pages: Callable[[list[int], int], int] = lambda lengths, size: sum(-(-n // size) for n in lengths),
    token_bytes: int = 1152,
    by_tokens: bool = False,
    percent: bool = False,
    used: bool = False,
    full: bool = False,
    held: bool = False,
    floor: float | None = None,
) -> dict[str, float]:
    """Return the right numbers. Each keyword puts a wrong one in place of a right one."""
    count, tokens, preallocated = pages(lengths, page_size), sum(lengths), max_batch * max_seq_len
    slots = count * page_size
    share = (tokens if by_tokens else slots) / preallocated
    saving = share if used else 1 - share
    return {
        "pages": count,
        "empty_slots": slots - tokens,
        "saving": (100 if percent else 1) * (saving if floor is None else max(floor, saving)),
        "page_bytes": (tokens if full else slots) * token_bytes,
        "preallocated_bytes": (len(lengths) * max_seq_len if held else preallocated) * token_bytes,
    }


_pages_slip = slips(_pages)

PREDICT = Exercise(
    name="predict_pages",
    title="prediction: pages, and what they save",
    parts=(
        Part("full pages", 1, visible=[dict(lengths=(512, 512, 512), page_size=64, batch=8, longest=4096)]),
        Part(
            "any lengths",
            1,
            visible=[
                dict(lengths=(96, 0, 1000, 65, 1), page_size=48, batch=5, longest=1000),
                dict(lengths=(30, 31), page_size=64, batch=2, longest=40),  # pages that hold more than is preallocated
            ],
            hidden=lambda r: (
                [dict(lengths=(r.randint(1, 20), 17), page_size=64, batch=2, longest=20)]
                + [
                    dict(
                        lengths=[r.choice([0, size, r.randint(1, 999)]) for _ in range(r.randint(1, 9))],
                        page_size=size,
                        batch=9,
                        longest=1024,
                    )
                    for size in (1, 16, r.randint(2, 128))
                ]
            ),
        ),
    ),
    inputs=_lengths,
    oracle=_pages,
    returns=("prediction",),
    mistakes=(
        _pages_slip(
            "pages of the sum",
            "pages are counted on the sum of the lengths: a page belongs to one sequence, so round up for each",
            pages=lambda lengths, size: -(-sum(lengths) // size),
        ),
        _pages_slip(
            "a page too many",
            "a sequence that ends on a page boundary, or holds nothing, gets a page too many: "
            "ceil(length / page_size), not length // page_size + 1",
            pages=lambda lengths, size: sum(n // size + 1 for n in lengths),
        ),
        _pages_slip(
            "a page for nothing",
            "a sequence of 0 tokens gets a page: it needs none",
            pages=lambda lengths, size: sum(max(1, -(-n // size)) for n in lengths),
        ),
        _pages_slip(
            "pages rounded down",
            "the last page of a sequence is left out where it is not full: ceil(length / page_size) pages",
            pages=lambda lengths, size: sum(n // size for n in lengths),
        ),
        _pages_slip(
            "tokens in place of slots",
            "saving compares tokens: a page counts whole, with its empty slots (equation 18)",
            by_tokens=True,
        ),
        *(
            _pages_slip(
                "sequences there are",
                "the sequences there are count as preallocated: a preallocated cache has room for max_batch of them, "
                "max_seq_len tokens each",
                slip,
            )
            for slip in (lambda **_: {"held": True}, lambda lengths, **_: {"max_batch": len(lengths)})
        ),
        _pages_slip("per cent", "saving is in per cent: expected is a fraction, as equation 17 gives it", percent=True),
        _pages_slip(
            "no saving below 0",
            "saving is 0 at least: equation 17 is negative where the pages hold more than is preallocated",
            floor=0.0,
        ),
        _pages_slip("share in use", "saving is the share that is used: expected 1 less this share", used=True),
        _pages_slip(
            "bytes of tokens",
            "page_bytes are those of the tokens: a page counts whole, with its empty slots",
            full=True,
        ),
        _pages_slip("words for bytes", "the bytes are words: a token's 576 words have 2 bytes each", token_bytes=576),
        _pages_slip(
            "latent alone", "a token has 1152 bytes: 512 words of latent, and 64 of the rotated key", token_bytes=1024
        ),
    ),
)

# --- BasicPagedCache --------------------------------------------------------------------------------------------------


def _session(
    g: torch.Generator, num_pages: int, page_size: int, calls: str, R: int = 4, Dr: int = 2, times: int = 1
) -> dict[str, list[Any]]:
    """Build the calls, written as "append 3 to 0, read 0, table 0, free 0"; after each one, the pages in use.

    With "reuse" the caller changes in place all that was appended, and back with the next one.
    """
    steps: list[Any] = [["used_pages", []]]
    for call in calls.split(", ") * times:
        if call == "reuse":
            steps.append(["", [n for n, (method, _) in enumerate(steps) if method == "append"]])
            continue
        method, *tokens, sequence = call.replace(" to", "").split()
        steps.append([method, [int(sequence), *(randn(g, int(n), width) for n in tokens for width in (R, Dr))]])
        steps.append(["used_pages", []])
    return {"init": [num_pages, page_size, R, Dr], "steps": steps}


def _held(
    init: list[int],
    steps: list[Any],
    *,
    early: bool = False,
    anew: bool = False,
    whole: bool = False,
    keeps_pages: bool = False,
    loses_pages: bool = False,
    partial: bool = False,
    takes_first: bool = False,
    leaks: bool = False,
    drops: bool = False,
    shared: bool = False,
    own_list: bool = False,
    frees_any: bool = False,
    left_behind: bool = False,
    refused: bool = False,
    begun: bool = False,
    looked_up: bool = False,
    views: bool = False,
    last: bool = False,
    lent: bool = False,
) -> list[Any]:
    """Return what each call returns, from the tokens of each sequence and a count of its pages.

    Each keyword makes one mistake:

      early        a page is taken as soon as the one before is full
      anew         an append takes pages for its own tokens, whatever the last page has room for
      whole        `read` returns whole pages
      keeps_pages  `free` forgets the tokens and keeps the pages
      loses_pages  the same, and nobody counts them as used
      partial      a refused append keeps the tokens that fit
      takes_first  a refused append keeps the free pages
      leaks        a refused append loses the free pages
      drops        the same, and nobody counts them as used
      shared       all sequences share one table
      own_list     `table` returns the manager's own list, which grows later
      frees_any    `free` accepts every sequence that holds nothing
      left_behind  `free` accepts a sequence that holds nothing after an append, refused or of 0 tokens
      refused      `free` accepts a sequence that holds nothing after an append that was refused
      begun        `free` accepts a sequence that holds nothing after an append of 0 tokens
      looked_up    `free` accepts a sequence that holds nothing after `read` or `table`
      views        `read` returns views of the pool, here of its only page
      last         an append is refused that would take the last free page, or no page where none is free
      lent         what was appended changes with the caller's tensors
    """
    num_pages, page_size, *widths = init
    empty = tuple(torch.zeros(0, width, dtype=torch.float64) for width in widths)
    tokens: dict[int, tuple[Tensor, ...]] = {}
    rows: dict[int, tuple[Tensor, ...]] = {}  # of a table that all share: what lies at each position
    pages: dict[int, int] = {}
    lists: dict[int, list[None]] = {}
    met: set[int] = set()
    entries: set[int] = set()
    shown: dict[int, int] = {}
    lost, gone, results = 0, 0, []

    def need(n: int) -> int:
        return n // page_size + 1 if early and n else -(-n // page_size)

    def used() -> int:
        return need(len(rows)) if shared else lost + sum(pages.values())

    for method, arguments in steps:
        if method == "used_pages":
            results.append(used())
            continue
        if not method:
            tokens = {b: tuple(-x for x in each) if lent else each for b, each in tokens.items()}
            results.append(None)
            continue
        b, *new = arguments
        old = tokens.get(b, empty)
        if looked_up and method in ("read", "table"):
            entries.add(b)
        if method == "table":  # which pages these are is up to the manager
            results.append([None] * (need(len(rows)) if shared else pages.get(b, 0)))
            if own_list:
                results[-1] = lists[b] = lists.get(b, results[-1])
        elif method == "append":
            length = len(old[0]) + len(new[0])
            free = num_pages - used() + pages.get(b, 0) - gone
            if anew:
                free -= pages.get(b, 0)
            if (need(len(new[0])) if anew else need(length)) > free - last and not shared:
                results.append("ValueError")
                if left_behind or refused:
                    (met if left_behind else entries).add(b)
                if takes_first:
                    pages[b] = free
                lost, gone = (count + how * (free - pages.get(b, 0)) for count, how in ((lost, leaks), (gone, drops)))
                if not partial:
                    continue
                fits = free * page_size - len(old[0])
                new = [x[:fits] for x in new]
            else:
                results.append(None)
            for position, row in enumerate(zip(*new, strict=True), start=len(old[0])):
                rows[position] = row
            tokens[b] = tuple(torch.cat(pair) for pair in zip(old, new, strict=True))
            pages[b] = pages.get(b, 0) + need(len(new[0])) if anew else max(pages.get(b, 0), need(len(tokens[b][0])))
            lists.get(b, []).extend([None] * (pages[b] - len(lists.get(b, []))))
            met.add(b)
        elif method == "read":
            if shared and len(old[0]):
                found = [rows[position] for position in range(len(old[0]))]
                old = tuple(map(torch.stack, zip(*found, strict=True)))
            fill = -len(old[0]) % page_size if whole else 0
            results.append(tuple(torch.nn.functional.pad(x, (0, 0, 0, fill)) for x in old))
            if views and num_pages == 1:
                shown[len(results) - 1] = len(old[0])
        elif len(old[0]) or frees_any or ((left_behind or begun) and b in met) or b in entries:
            held_pages = pages.pop(b, 0)
            lost, gone = lost + keeps_pages * held_pages, gone + loses_pages * held_pages
            for held in (tokens, lists):
                held.pop(b, None)
            for known in (met, entries):
                known.discard(b)
            results.append(None)
        else:
            results.append("ValueError")
    for number, length in shown.items() if rows else ():
        results[number] = tuple(torch.stack(each[:length]) for each in zip(*map(rows.get, sorted(rows)), strict=True))
    return results


def _pages_named(results: list[Any], init: list[int], steps: list[Any]) -> str | None:
    """Return what no manager may say of its pages: which one it takes is its own choice."""
    named: dict[int, list[int]] = {}
    count = 0
    for (method, arguments), result in zip(steps, results, strict=True):
        if method == "free" and not (isinstance(result, str) and result.startswith("ValueError")):
            named.pop(arguments[0], None)
        if method != "table":
            continue
        sequence, count = arguments[0], count + 1
        call = f"call {count} of table, for sequence {sequence},"
        try:
            pages = [operator.index(page) for page in result]
        except TypeError:
            return f"{call} returns {str(result)[:100]}, expected the numbers of pages"
        before = named.get(sequence, [])
        for page in pages:
            if not 0 <= page < init[0]:
                return f"{call} names page {page}: the pool has the pages 0 to {init[0] - 1}"
            if pages.count(page) > 1:
                return f"{call} names page {page} twice: a page holds other tokens of a sequence than the others do"
            if holder := [str(b) for b, held in named.items() if b != sequence and page in held]:
                return f"{call} names page {page}, which sequence {holder[0]} holds"
        if pages[: len(before)] != before:
            return (
                f"{call} begins with the pages {pages[: len(before)]}, and was {before} earlier: what was written "
                "stays where it is, in the order of the tokens"
            )
        named[sequence] = pages
    return None


def _moved(init: list[int], steps: list[Any]) -> Cost:
    """Four times: the pool made, each new token written, and at each read the pages of all tokens that may be there."""
    num_pages, page_size, R, Dr = init
    new: dict[int, int] = {}
    tokens = num_pages * page_size
    for method, (b, *given) in ((method, given) for method, given in steps if method and given):
        if method == "append":
            new[b] = new.get(b, 0) + len(given[0])
            tokens += len(given[0])
        elif method == "read":
            tokens += min(new.get(b, 0) + page_size, num_pages * page_size)
    return Cost(bytes=4 * 4 * (R + Dr) * tokens + 4096, flops=0)


_basic_slip = slips(_held)

BASIC = Exercise(
    name="BasicPagedCache",
    title="a paged cache, token by token",
    parts=(
        Part(
            "tokens come back",
            1,
            visible=[
                dict(num_pages=6, page_size=4, calls="append 3 to 0, read 0, append 3 to 0, read 0"),
                dict(num_pages=2, page_size=4, calls="append 3 to 1000, read 1000"),
                dict(num_pages=4, page_size=4, calls="append 3 to 0, append 6 to 0, reuse, read 0, reuse"),
                dict(num_pages=21, page_size=4, R=16, calls="append 1 to 0", times=80),
                dict(
                    num_pages=6,
                    page_size=4,
                    calls="append 4 to 0, append 2 to 1, append 2 to 0, read 0, read 1, read 2",
                ),
            ],
            hidden=lambda r: [
                dict(
                    num_pages=40,
                    page_size=r.choice([1, 3, 8]),
                    R=r.choice([1, 6]),
                    calls=", ".join(f"append {r.randint(1, 9)} to {r.randint(0, 3)}" for _ in range(4))
                    + ", read 0, read 1, read 2, read 3",
                ),
                dict(
                    num_pages=9,
                    page_size=r.choice([1, 3]),
                    calls=f"append {r.randint(1, 3)} to 1, append {r.randint(1, 6)} to 1, reuse, read 1, reuse",
                ),
            ],
        ),
        Part(
            "pages are taken and given back",
            1,
            visible=[
                dict(num_pages=6, page_size=4, calls="append 4 to 0, append 1 to 0, append 3 to 0, read 0"),
                dict(num_pages=6, page_size=4, calls="append 3 to 0, table 0, append 6 to 0, table 0, table 1"),
                dict(
                    num_pages=6,
                    page_size=4,
                    calls="append 3 to 0, append 6 to -1, table 0, table -1, free 0, append 4 to -1, table -1, "
                    "append 4 to -1, table -1",
                ),
                dict(num_pages=4, page_size=4, calls="append 9 to 0, free 0, append 13 to 1, read 1, read 0"),
                dict(num_pages=1, page_size=4, calls="append 3 to 0, read 0, free 0, append 2 to 1, read 1"),
                dict(num_pages=3, page_size=4, calls="append 6 to 0, free 0, append 2 to 0, read 0, table 0"),
            ],
            hidden=lambda r: (
                [
                    dict(
                        num_pages=3, page_size=2, calls=f"append 2 to 5, append {n} to 7, free 5, append 2 to 7, read 7"
                    )
                    for n in (1, 2)
                ]
                + [
                    dict(
                        num_pages=4, page_size=3, calls=f"append {r.randint(2, 9)} to 2, free 2, append 4 to 2, read 2"
                    )
                ]
            ),
        ),
        Part(
            "refusals change nothing",
            2,
            visible=[
                dict(
                    num_pages=3,
                    page_size=4,
                    calls="append 6 to 0, append 5 to 1, read 1, append 3 to 1, read 1, read 0",
                ),
                dict(num_pages=3, page_size=4, calls="append 6 to 0, free 0, free 0, append 9 to 1, free 2"),
                dict(
                    num_pages=3,
                    page_size=4,
                    calls="append 6 to 0, append 5 to 1, free 1, append 0 to 2, free 2, free 3",
                ),
                dict(num_pages=3, page_size=4, calls="read 2, free 2, append 6 to 0, free 0, read 0, free 0"),
                dict(num_pages=3, page_size=4, calls="append 6 to 0, table 1, free 1"),
                # What is left of the last page is room, too.
                dict(num_pages=2, page_size=3, calls="append 4 to 0, append 2 to 0, read 0, append 1 to 0, read 0"),
            ],
            hidden=lambda r: [
                dict(
                    num_pages=2,
                    page_size=3,
                    calls=f"append 4 to 0, append 3 to 0, read 0, append {n} to 0, read 0, append 1 to 1, free 1",
                )
                for n in (1, 2)
            ],
        ),
    ),
    inputs=_session,
    oracle=_held,
    returns=("the result",),
    consistent=_pages_named,
    mistakes=(
        _basic_slip(
            "page taken early",
            "append takes a page too early, as soon as the one before is full: a page is due with its first token, at "
            "position 0, page_size, 2 · page_size and so on",
            early=True,
        ),
        _basic_slip(
            "pages for its own tokens",
            "append takes pages for its new tokens alone: the last page of the sequence may have room for some of them",
            anew=True,
        ),
        _basic_slip(
            "page tail",
            "read returns whole pages: the slots behind the last token of a sequence are not its own",
            whole=True,
        ),
        *(
            _basic_slip("pages not given back", "free forgets the tokens, and their pages stay taken for ever", **how)
            for how in ({"keeps_pages": True}, {"loses_pages": True})
        ),
        _basic_slip(
            "the last page refused",
            "an append is refused though there are just enough free pages for it: refuse it where it needs more",
            last=True,
        ),
        _basic_slip(
            "half an append",
            "an append that is refused has stored some of its tokens: count the pages it needs before taking one",
            partial=True,
        ),
        _basic_slip(
            "pages of a refusal",
            "an append that is refused has taken pages: count those it needs before taking one",
            takes_first=True,
        ),
        *(
            _basic_slip(
                "pages of a refusal",
                "an append that is refused kept pages that it had taken: count those it needs before taking one",
                **how,
            )
            for how in ({"leaks": True}, {"drops": True})
        ),
        _basic_slip(
            "table of another sequence",
            "all sequences share one table, so they overwrite each other: the page depends on sequence and position",
            shared=True,
        ),
        _basic_slip(
            "free of nothing",
            "free accepts a sequence that holds nothing: a second free is a mistake of the caller, raise ValueError",
            frees_any=True,
        ),
        *(
            _basic_slip(
                "left by a refusal",
                "free accepts a sequence whose only append was refused: it holds nothing, so it must not have an "
                "entry; look before you make one",
                **how,
            )
            for how in ({"left_behind": True}, {"refused": True})
        ),
        _basic_slip(
            "free of no tokens",
            "free accepts a sequence with an append of 0 tokens: it holds nothing, raise ValueError",
            begun=True,
        ),
        _basic_slip(
            "left by a look",
            "free accepts a sequence that was only looked up, by read or table: it holds nothing, so neither may make "
            "an entry, as a defaultdict does at each look-up; .get(sequence, []) makes none",
            looked_up=True,
        ),
        _basic_slip(
            "views of the pool",
            "what read has returned changes when its page is written again: return copies of the tokens, not views",
            views=True,
        ),
        _basic_slip(
            "the caller's tensors",
            "what was appended changes when the caller writes to these tensors again: copy the tokens into the pool",
            lent=True,
        ),
        _basic_slip(
            "the manager's own list",
            "a list that table returned changed with a later append: it is the manager's own, return a copy of it",
            own_list=True,
        ),
    ),
    driver="session",
    most=_moved,
)

# --- tables -----------------------------------------------------------------------------------------------------------


def _table(
    g: torch.Generator | None,
    ends: Sequence[int],
    page_size: int,
    max_pages: int,
    rubbish_behind: bool,
    first_page: int = 0,
) -> tuple[Tensor, int]:
    """Return a block table, int32 [B, max_pages], for sequences that reach `ends`, and the pages of its pool.

    The pages are in random order. Entries that no position needs name pages that no sequence holds. With
    `rubbish_behind` they name no page at all.
    """
    needed = [-(-end // page_size) for end in ends]
    if g is None or min(needed) == max_pages:  # whole pools, all pages held
        order = torch.randperm(sum(needed), generator=g or torch.Generator().manual_seed(0))
        return order.to(torch.int32).view(len(ends), -1), len(order)
    order = first_page + GAP * torch.randperm(len(ends) * max_pages, generator=g).view(len(ends), max_pages)
    table = order.to(torch.int32)
    if rubbish_behind:
        for b, count in enumerate(needed):
            table[b, count:] = torch.tensor([WILD, -1])[torch.arange(max_pages - count) % 2]
    return table, first_page + GAP * (len(ends) * max_pages + 1)


# Table, sequence, tokens, start, page size -> page and slot of each token.
LookUp = Callable[[Tensor, int, Tensor, int, int], tuple[Tensor, Tensor]]


def _row(table: Tensor, b: int, token: Tensor, start: int, size: int) -> tuple[Tensor, Tensor]:
    """Look up every token's own page."""
    position = start + token
    entry = (position // size).clamp(max=table.shape[1] - 1)  # beyond it only the mistakes look
    return table[b, entry].long(), position % size


def _next_row(table: Tensor, b: int, token: Tensor, start: int, size: int) -> tuple[Tensor, Tensor]:
    return _row(table, b, token, start + 1, size)


def _from_zero(table: Tensor, b: int, token: Tensor, start: int, size: int) -> tuple[Tensor, Tensor]:
    return _row(table, b, token, 0, size)


def _first_table(table: Tensor, b: int, token: Tensor, start: int, size: int) -> tuple[Tensor, Tensor]:
    return _row(table, 0, token, start, size)


def _runs_on(table: Tensor, b: int, token: Tensor, start: int, size: int) -> tuple[Tensor, Tensor]:
    """The table is read once for a sequence. Its tokens run on through the pool from there."""
    return table[b, start // size].long(), start % size + token


def _whole_position(table: Tensor, b: int, token: Tensor, start: int, size: int) -> tuple[Tensor, Tensor]:
    """The page is right. The slot is the whole position."""
    return _row(table, b, token, start, size)[0], start + token


def _slot_of_new(table: Tensor, b: int, token: Tensor, start: int, size: int) -> tuple[Tensor, Tensor]:
    """The page is right. The slot is that of a sequence without old tokens."""
    return _row(table, b, token, start, size)[0], token % size


def _exchanged(table: Tensor, b: int, token: Tensor, start: int, size: int) -> tuple[Tensor, Tensor]:
    """The rest is taken for the entry, and the quotient for the slot."""
    position = start + token
    return table[b, (position % size).clamp(max=table.shape[1] - 1)].long(), position // size


def _start_of_0(oracle: Callable[..., Any]) -> Callable[..., Any]:
    """Every sequence is taken to begin where sequence 0 does."""
    return lambda starts, **given: oracle(starts=starts[:1].expand_as(starts), **given)


def _in(pages: Tensor, where: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Return a page and a slot that the pool has, wherever a mistake leads."""
    (page, slot), (count, size) = where, pages.shape[:2]
    return (page + slot // size).clamp(0, count - 1), slot % size


KeyRow = Callable[[Tensor, Tensor, int, int, int], Tensor]  # page, slot, page_size, R, Dr -> row of the key's pool


def _page_of_latents(page: Tensor, slot: Tensor, size: int, R: int, Dr: int) -> Tensor:
    """The key's page begins where that of the latents would."""
    return page * size * R // Dr + slot


def _slot_of_latents(page: Tensor, slot: Tensor, size: int, R: int, Dr: int) -> Tensor:
    """The key lies in its page where the latent would."""
    return page * size + slot * R // Dr


def _each_pool(
    pools: Sequence[Tensor], where: tuple[Tensor, Tensor], key_row: KeyRow | None
) -> tuple[tuple[Tensor, Tensor], ...]:
    """Return page and slot in the pool of the latents and in that of the keys, which `key_row` may put elsewhere."""
    (page, slot), (_, size, R), Dr = where, pools[0].shape, pools[1].shape[-1]
    return where, _in(pools[1], (0 * page, key_row(page, slot, size, R, Dr))) if key_row else where


def _no_table(table: Tensor, b: int, token: Tensor, start: int, size: int) -> tuple[Tensor, Tensor]:
    position = start + token
    return b * table.shape[1] + position // size, position % size


def _one_page(block: int, modulo: bool) -> LookUp:
    """Every block takes the page of its first token, even where that page ends inside the block.

    Its slots run on behind the page. With `modulo` they begin again at slot 0.
    """

    def look_up(table: Tensor, b: int, token: Tensor, start: int, size: int) -> tuple[Tensor, Tensor]:
        first = start + token // block * block
        return table[b, first // size].long(), (start + token) % size if modulo else first % size + token % block

    return look_up


def _read(pages: Tensor, where: tuple[Tensor, Tensor], apart: bool = True) -> Tensor:
    """Read pages. Without `apart` they are taken to lie side by side: page 0 is found, the others are read as zeros."""
    return pages[where] * (apart | (where[0] == 0))[:, None]


def _as_taken(apart: tuple[bool, bool], table: Tensor) -> tuple[bool, bool]:
    """Return `apart` if a sequence holds page 0, otherwise True for both. Page 0 is held where pages lie far apart."""
    return apart if bool((table == 0).any()) else (True, True)


START = "the start is ignored: token s of sequence b is at position starts[b] + s, not s"
START_OF_0 = "starts[0] is taken for every sequence: load starts_ptr + b"
OTHER_ROW = "all sequences use the table's first row: row b begins b · max_pages entries on"
RUNS_ON = (
    "tokens run past the end of a page into the one behind it in the pool: each position looks up "
    "table[position // page_size]"
)
ONE_TOO_FAR = (
    "tokens lie one position too far: a sequence of n tokens has its next at position n, in slot n % page_size"
)
NO_MODULO = "the slot is not position % page_size: that is where a token is within its page"
SLOT_OF_NEW = "the slot is s % page_size: it is that of the position, (starts[b] + s) % page_size"
STRIDE = (
    "pages are taken to lie side by side, or as those of the other pool: page p begins p · stride(0) words behind the "
    "first, with the stride of its own pool"
)
EXCHANGED = "quotient and rest are exchanged: table[position // page_size] is the page, position % page_size the slot"
KEY_SLOT = "a slot of the rotated keys is counted at R words: slot s begins s · Dr words behind the first of its page"
INSIDE = "a block of tokens takes one page, and a page ends inside it: look up a page for each token"
NO_TABLE = "the table is ignored: entry position // page_size of a row holds the page, it is not the page"

FAR = "pages far apart: offsets beyond 2³¹ words"

# --- token_offsets ----------------------------------------------------------------------------------------------------


def _offset_case(
    g: torch.Generator,
    starts: Sequence[int],
    lengths: Sequence[int],
    S: int,
    page_size: int,
    width: int,
    max_pages: int = 5,
    layers_in_pool: int = 1,
    first_page: int = 0,
    rubbish_behind: bool = False,
) -> Arguments:
    """Return the arguments. Layers share the pool: a page begins `layers_in_pool` pages behind the one before."""
    ends = [start + n if n else 0 for start, n in zip(starts, lengths, strict=True)]
    table, _ = _table(g, ends, page_size, max_pages, rubbish_behind, first_page)
    integers = (torch.tensor(x, dtype=torch.int32) for x in (starts, lengths))
    return {
        "block_table": table,
        **dict(zip(("starts", "lengths"), integers, strict=True)),
        "S": S,
        "page_size": page_size,
        "page_stride": layers_in_pool * page_size * width,
        "width": width,
    }


UNWRITTEN = torch.iinfo(torch.int64).max  # what torch.empty holds while a kernel is judged
Stride = Callable[[int, int, int], int]


def _offsets(
    look_up: LookUp = _row,
    padding: int | None = -1,
    width_counts: bool = True,
    stride: Stride = lambda stride, size, width: stride,
    bits: int = 64,
    sequences: int | None = None,
) -> Any:
    """Return an oracle.

    Tokens that are not real get the value `padding`. If that is None they get offsets like real ones. With `sequences`
    only so many sequences are written.
    """

    def oracle(block_table, starts, lengths, S, page_size, page_stride, width):
        out = torch.full((len(starts), S), UNWRITTEN)
        for b, (start, n) in enumerate(zip(starts.tolist()[:sequences], lengths.tolist(), strict=False)):
            out[b] = -1 if padding is None else padding
            token = torch.arange(S if padding is None else n)
            page, slot = look_up(block_table, b, token, start, page_size)
            begins = page * stride(page_stride, page_size, width)
            out[b, : len(token)] = begins + slot * (width if width_counts else 1)
        return (out + 2 ** (bits - 1)) % 2**bits - 2 ** (bits - 1) if bits < 64 else out

    return oracle


def _padding_on_page_0(
    block_table: Tensor, starts: Tensor, lengths: Tensor, S: int, page_size: int, page_stride: int, width: int
) -> Tensor:
    """Tokens that are not real get offsets on the page that a masked look-up puts in place of theirs."""
    right = _offsets()(block_table, starts, lengths, S, page_size, page_stride, width)
    return right.where(right >= 0, (starts[:, None].long() + torch.arange(S)) % page_size * width)


def _up_to_lengths(
    block_table: Tensor, starts: Tensor, lengths: Tensor, S: int, page_size: int, page_stride: int, width: int
) -> Tensor:
    """Tokens whose position is beyond `lengths` get -1."""
    right = _offsets()(block_table, starts, lengths, S, page_size, page_stride, width)
    return right.where(starts[:, None] + torch.arange(S) < lengths[:, None], -1)


OFFSETS = Exercise(
    name="token_offsets",
    title="where a token lies: page, slot, offset",
    parts=(
        Part(
            "one page",
            1,
            visible=[
                dict(starts=(0,), lengths=(3,), S=3, page_size=4, width=1, max_pages=3),
                dict(starts=(0,) * 3, lengths=(130,) * 3, S=130, page_size=256, width=2, max_pages=1),
                dict(starts=(0,), lengths=(1,), S=1, page_size=1, width=1, max_pages=1),
            ],
            hidden=lambda r: (
                [
                    dict(starts=(0, 0), lengths=(n, n), S=n, page_size=8, width=r.randint(2, 9), max_pages=2)
                    for n in (1, r.randint(2, 8))
                ]
                + [dict(starts=(0,), lengths=(n,), S=n, page_size=256, width=2, max_pages=1) for n in (65, 129)]
            ),
        ),
        Part(
            "any start, across boundaries, ragged",
            1,
            visible=[
                dict(starts=(0, 5, 3), lengths=(5, 4, 1), S=5, page_size=4, width=6),
                dict(starts=(1, 7), lengths=(5, 5), S=5, page_size=4, width=6, layers_in_pool=3),
                dict(starts=(15, 80), lengths=(2, 70), S=70, page_size=1, width=6, max_pages=150),
                dict(starts=(11,), lengths=(5000,), S=5000, page_size=48, width=2, max_pages=105),
                dict(starts=(0, 3), lengths=(255, 250), S=255, page_size=16, width=2, max_pages=17),
                dict(starts=(11, 0), lengths=(34001, 9), S=34001, page_size=48, width=2, max_pages=710),
                dict(starts=[n % 17 for n in range(281)], lengths=[4] * 281, S=5, page_size=4, width=6),
                # The padding of the last sequence lies behind the table.
                dict(starts=(3, 7), lengths=(2, 0), S=2, page_size=4, width=6, max_pages=2, rubbish_behind=True),
            ],
            hidden=lambda r: (
                [
                    dict(
                        starts=(r.randint(0, 99), size - 1, 0),
                        lengths=(r.randint(0, 70), 2, 70),
                        S=70,
                        page_size=size,
                        width=r.randint(2, 40),
                        layers_in_pool=r.randint(1, 3),
                        max_pages=-(-170 // size),
                        rubbish_behind=True,
                    )
                    for size in (1, 16, r.choice([n for n in range(3, 64) if n & (n - 1)]))
                ]
                + [dict(starts=(7,), lengths=(n,), S=n, page_size=48, width=2, max_pages=190) for n in (4200, 9000)]
            ),
        ),
        Part(
            "a pool of ten million tokens",
            1,
            visible=[dict(starts=(0, 62), lengths=(3, 3), S=3, page_size=64, width=512, first_page=150_000)],
            hidden=lambda r: [
                dict(
                    starts=(r.randint(0, 99),),
                    lengths=(9,),
                    S=9,
                    page_size=16,
                    width=512,
                    max_pages=8,
                    first_page=r.randint(400_000, 900_000),
                )
            ],
        ),
    ),
    inputs=_offset_case,
    oracle=_offsets(),
    returns=("offsets",),
    mistakes=(
        Mistake("start ignored", START, _offsets(_from_zero)),
        Mistake("start of sequence 0", START_OF_0, _start_of_0(_offsets())),
        Mistake("table row of another sequence", OTHER_ROW, _offsets(_first_table)),
        Mistake("past the end of a page", RUNS_ON, _offsets(_runs_on)),
        Mistake("one position too far", ONE_TOO_FAR, _offsets(_next_row)),
        Mistake("slot without modulo", NO_MODULO, _offsets(_whole_position)),
        Mistake("slot without the start", SLOT_OF_NEW, _offsets(_slot_of_new)),
        Mistake("page and slot exchanged", EXCHANGED, _offsets(_exchanged)),
        Mistake(
            "lengths of the context",
            "lengths[b] is taken for the end of the context: it counts new tokens, s < lengths[b] is real",
            _up_to_lengths,
        ),
        Mistake(
            "page stride",
            "pages are taken to lie side by side: page p begins at p · page_stride, not at p · page_size · width",
            _offsets(stride=lambda stride, size, width: size * width),
        ),
        *(
            Mistake(
                "page stride multiplied",
                "pages lie too far apart: page_stride is counted in words, page p begins at p · page_stride",
                _offsets(stride=times),
            )
            for times in (
                lambda stride, size, width: stride * size,
                lambda stride, size, width: stride * width,
                lambda stride, size, width: stride * size * width,
                lambda stride, size, width: stride * 2,
            )
        ),
        Mistake(
            "padding has an offset",
            "tokens behind lengths[b] have an offset: they do not exist, expected −1",
            _offsets(padding=None),
        ),
        Mistake(
            "padding has an offset",
            "tokens behind lengths[b] have an offset: they do not exist, expected −1",
            _padding_on_page_0,
        ),
        Mistake(
            "padding not written",
            "tokens behind lengths[b] are not written: expected −1; the store takes the mask offs_s < S",
            _offsets(padding=UNWRITTEN),
        ),
        Mistake(
            "nothing written",
            "no offset is written: the grid has a program for each block of tokens, the last one too, "
            "triton.cdiv(S, BLOCK_S) for each of B sequences",
            _offsets(sequences=0),
        ),
        Mistake(
            "one sequence written",
            "the first sequence alone has offsets: grid (x, y) gives program_id(0) the numbers below x and "
            "program_id(1) those below y; one counts blocks, the other sequences",
            _offsets(sequences=1),
        ),
        Mistake(
            "rows for words",
            "the slot is counted in tokens: a token has `width` words, multiply by it",
            _offsets(width_counts=False),
        ),
        Mistake(
            "int32 overflow",
            "the offsets have wrapped around at 2^31: page is int32, and so is its product; "
            "page.to(tl.int64) before it is multiplied",
            _offsets(bits=32),
        ),
    ),
    like=(torch.int64,),
    kernel=True,
    launches=1,
)

# --- paged_update -----------------------------------------------------------------------------------------------------


def _update_case(
    g: torch.Generator | None,
    S: int,
    page_size: int,
    starts: Sequence[int] | int,
    lengths: Sequence[int] | int,
    B: int = 0,
    R: int = 32,
    Dr: int = 16,
    max_pages: int = 4,
    rubbish_behind: bool = False,
    pages_far_apart: bool = False,
    dtype: torch.dtype = HALF,
) -> Arguments:
    """Return new tokens, and a pool with old ones. A single start or length holds for all B sequences."""
    starts, lengths = ([x] * B if isinstance(x, int) else list(x) for x in (starts, lengths))
    ends = [start + n if n else 0 for start, n in zip(starts, lengths, strict=True)]
    table, num_pages = _table(g, ends, page_size, max_pages, rubbish_behind, first_page=1)  # 0 is nobody's
    new = [randn(g, len(starts), S, width, dtype=dtype) for width in (R, Dr)]
    pages = [randn(g, num_pages, page_size, width, dtype=dtype) for width in (R, Dr)]
    pages = [far_apart(x) for x in pages] if pages_far_apart else pages
    integers = (torch.tensor(x, dtype=torch.int32) for x in (starts, lengths))
    names = ("c_kv", "k_rope", "c_kv_pages", "k_rope_pages", "block_table", "starts", "lengths")
    return dict(zip(names, (*new, *pages, table, *integers), strict=True))


def _updated(
    look_up: LookUp = _row,
    padding: tuple[bool, bool | None] | None = None,
    padded: tuple[bool, bool] = (True, True),
    key: bool = True,
    apart: tuple[bool, bool] = (True, True),
    key_row: KeyRow | None = None,
) -> Any:
    """Return an oracle that writes each token to the page and slot from `look_up`. Without `key` no keys are written.

    With `padding`, tokens that are not real are written too. Its first entry says whether they go to their own page or
    to page 0. Its second entry says whether their values or zeros are written, or NaN if it is None. `padded` are the
    pools in which that happens. Where pages lie far apart and are not taken to be `apart`, only what lies on page 0
    arrives.
    """

    def oracle(c_kv, k_rope, c_kv_pages, k_rope_pages, block_table, starts, lengths):
        S, size, taken = c_kv.shape[1], c_kv_pages.shape[1], _as_taken(apart, block_table)
        pools = tuple(zip((c_kv_pages, k_rope_pages), (c_kv, k_rope), taken, padded, strict=True))[: 1 + key]
        for b, (start, n) in enumerate(zip(starts.tolist(), lengths.tolist(), strict=True)):
            for n_pool, (pages, new, far, more) in enumerate(pools):
                token = torch.arange(S if padding and more else n)
                if not len(token):
                    continue
                real = token < n
                where = _in(c_kv_pages, look_up(block_table, b, token, start, size))
                page, slot = _each_pool((c_kv_pages, k_rope_pages), where, key_row)[n_pool]
                if padding and not padding[0]:
                    page = page.where(real, 0)
                rows = new[b, token] * (real[:, None] | bool(padding and padding[1]))
                if padding and padding[1] is None:
                    rows = rows.masked_fill(~real[:, None], math.nan)
                there = far | (page == 0)
                pages[page[there], slot[there]] = rows[there]
        return c_kv_pages, k_rope_pages

    return oracle


def _eager_update(
    c_kv: Tensor,
    k_rope: Tensor,
    c_kv_pages: Tensor,
    k_rope_pages: Tensor,
    block_table: Tensor,
    starts: Tensor,
    lengths: Tensor,
) -> tuple[Tensor, Tensor]:
    """All sequences at once by `index_put`, without padding."""
    size = c_kv_pages.shape[1]
    position = starts[:, None].long() + torch.arange(c_kv.shape[1])
    row = block_table.long().gather(1, position // size) * size + position % size
    row = row.flatten().to(c_kv.device)
    for pages, new in ((c_kv_pages, c_kv), (k_rope_pages, k_rope)):
        pages.flatten(0, 1)[row] = new.flatten(0, 1)
    return c_kv_pages, k_rope_pages


def _copy_floor(tokens: int, R: int, Dr: int, dtype: torch.dtype) -> Cost:
    """Every token is read once and written once. The table is next to nothing."""
    return Cost(bytes=2 * tokens * (R + Dr) * dtype.itemsize, flops=0)


UPDATE = Exercise(
    name="paged_update",
    title="update: new tokens into their pages",
    parts=(
        Part(
            "any start, across boundaries",
            1,
            visible=[
                dict(S=3, page_size=4, starts=(0,), lengths=(3,)),
                dict(S=5, page_size=4, starts=(0, 5), lengths=(5, 5)),
                dict(S=1, page_size=4, starts=(3, 4), lengths=(1, 1)),
                dict(S=70, page_size=64, starts=(50, 63), lengths=(70, 70), R=512, Dr=64, max_pages=3, dtype=BF16),
            ],
            hidden=lambda r: [
                dict(
                    S=n,
                    page_size=size,
                    starts=(r.randint(0, 9), size - 1),
                    lengths=(n, n),
                    R=r.choice([16, 64]),
                    Dr=r.choice([32, 64]),
                    max_pages=-(-(n + 64) // size),
                )
                for n, size in ((1, 16), (70, r.randint(1, 64)))
            ],
        ),
        Part(
            "lengths of their own; table entries that name no page",
            1,
            visible=[
                dict(S=5, page_size=4, starts=(0, 6), lengths=(2, 5)),
                # The padding of the last sequence goes on behind the table.
                dict(S=6, page_size=4, starts=(2, 4, 12), lengths=(0, 4, 3), rubbish_behind=True),
                dict(S=9, page_size=6, starts=(4, 11), lengths=(9, 7), Dr=32, max_pages=4),
                dict(S=40, page_size=1, starts=(20, 0), lengths=(33, 0), max_pages=80, rubbish_behind=True),
                dict(S=255, page_size=16, starts=(0, 9), lengths=(255, 240), max_pages=17),
                dict(S=2101, page_size=16, starts=(0, 9), lengths=(2101, 3), max_pages=132),
                dict(S=5, page_size=4, starts=[n % 9 for n in range(281)], lengths=[5, *[0] * 279, 4]),
            ],
            hidden=lambda r: [
                dict(
                    S=40,
                    page_size=16,
                    starts=(r.randint(0, 40), 0, 16),
                    lengths=(r.randint(1, 39), 0, 16),
                    max_pages=5,
                    rubbish_behind=True,
                    dtype=BF16,
                )
            ],
        ),
        Part(FAR, 1, visible=[dict(S=16, page_size=4, starts=(0, 0), lengths=(16, 16), pages_far_apart=True)]),
    ),
    inputs=_update_case,
    oracle=_updated(),
    returns=("c_kv_pages", "k_rope_pages"),
    mistakes=(
        Mistake("start ignored", START, _updated(_from_zero)),
        Mistake("start of sequence 0", START_OF_0, _start_of_0(_updated())),
        Mistake("table row of another sequence", OTHER_ROW, _updated(_first_table)),
        Mistake("past the end of a page", RUNS_ON, _updated(_runs_on)),
        Mistake("one position too far", ONE_TOO_FAR, _updated(_next_row)),
        Mistake("slot without modulo", NO_MODULO, _updated(_whole_position)),
        Mistake("slot without the start", SLOT_OF_NEW, _updated(_slot_of_new)),
        Mistake("page and slot exchanged", EXCHANGED, _updated(_exchanged)),
        Mistake("page stride", STRIDE, _updated(key_row=_page_of_latents)),
        Mistake("slot of the latents", KEY_SLOT, _updated(key_row=_slot_of_latents)),
        *(Mistake("one page for a block", INSIDE, _updated(_one_page(*way))) for way in itertools.product(FEW, BOTH)),
        *(Mistake("page stride", STRIDE, _updated(apart=apart)) for apart in SIDE_BY_SIDE),
        Mistake("table ignored", NO_TABLE, _updated(_no_table)),
        *(
            Mistake(
                "padding written",
                "tokens behind lengths[b] are written as well: they are padding, and overwrite what others hold",
                _updated(padding=padding, padded=padded),
                unwritten=padding[1] is None,
            )
            for padding in itertools.product(BOTH, (*BOTH, None))
            for padded in ((True, True), (True, False), (False, True))
        ),
        Mistake("key not written", "k_rope_pages stays as it was: the rotated key is cached too", _updated(key=False)),
    ),
    like=("c_kv_pages", "k_rope_pages"),
    may_change=("c_kv_pages", "k_rope_pages"),
    copies=False,
    kernel=True,
    launches=1,
    speed=Speed(
        points=2,
        case=dict(B=16, S=4096, page_size=64, starts=0, lengths=4096, max_pages=64, R=512, Dr=64, dtype=BF16),
        small=dict(B=2, S=128, lengths=128, max_pages=2),
        axes=dict(
            c_kv="b", k_rope="b", c_kv_pages="@block_table", k_rope_pages="@block_table", starts="b", lengths="b"
        ),
        floor=lambda B, S, R, Dr, dtype, **_: _copy_floor(B * S, R, Dr, dtype),
        bars=((0.4, 0.5), (0.65, 1.0)),
        baseline=_eager_update,
        ratio=1.5,
    ),
)

# --- paged_gather -----------------------------------------------------------------------------------------------------


def _poisoned(pages: Tensor, table: Tensor, lens: Sequence[int], poison: float) -> Tensor:
    """Multiply what lies behind the last token of each sequence, and in pages that no sequence holds."""
    held = torch.zeros(pages.shape[:2], dtype=torch.bool)
    for b, n in enumerate(lens):
        held[_row(table, b, torch.arange(n), 0, pages.shape[1])] = True
    return torch.where(held[..., None], pages, poison * pages)


def _pool(
    g: torch.Generator | None,
    lens: Sequence[int],
    page_size: int,
    max_pages: int,
    widths: tuple[int, int],
    rubbish_behind: bool,
    pages_far_apart: bool,
    dtype: torch.dtype,
) -> tuple[list[Tensor], Tensor]:
    """Return pages and table. Slots without a token hold values four times as large, or NaN with `rubbish_behind`."""
    table, num_pages = _table(g, lens, page_size, max_pages, rubbish_behind, first_page=1)  # 0 is nobody's
    pages = [randn(g, num_pages, page_size, width, dtype=dtype) for width in widths]
    if g is not None and min(lens) < max_pages * page_size:
        pages = [_poisoned(x, table, lens, math.nan if rubbish_behind else 4.0) for x in pages]
    return [far_apart(x) for x in pages] if pages_far_apart else pages, table


def _gather_case(
    g: torch.Generator | None,
    lengths: Sequence[int] | int,
    T: int,
    page_size: int,
    B: int = 0,
    R: int = 32,
    Dr: int = 16,
    max_pages: int = 4,
    rubbish_behind: bool = False,
    pages_far_apart: bool = False,
    dtype: torch.dtype = HALF,
) -> Arguments:
    lens = [lengths] * B if isinstance(lengths, int) else list(lengths)
    pages, table = _pool(g, lens, page_size, max_pages, (R, Dr), rubbish_behind, pages_far_apart, dtype)
    lengths = torch.tensor(lens, dtype=torch.int32)
    return {"c_kv_pages": pages[0], "k_rope_pages": pages[1], "block_table": table, "lengths": lengths, "T": T}


def _gathered(
    look_up: LookUp = _row,
    count: Callable[[int, int], int] = lambda n, size: n,
    page_0: bool = False,
    apart: tuple[bool, bool] = (True, True),
    key_row: KeyRow | None = None,
) -> Any:
    """Return an oracle that reads `count` tokens of each sequence, from the page and slot that `look_up` gives.

    With `page_0`, tokens behind a sequence's length come from page 0.
    """

    def oracle(c_kv_pages, k_rope_pages, block_table, lengths, T):
        out = [pages.new_zeros(len(lengths), T, pages.shape[-1]) for pages in (c_kv_pages, k_rope_pages)]
        size, taken = c_kv_pages.shape[1], _as_taken(apart, block_table)
        for b, n in enumerate(lengths.tolist()):
            token = torch.arange(min(count(n, size), T))
            if not len(token):
                continue
            page, slot = _in(c_kv_pages, look_up(block_table, b, token, 0, size))
            page = page.where(token < n, 0) if page_0 else page
            pools = c_kv_pages, k_rope_pages
            for x, *place in zip(out, pools, _each_pool(pools, (page, slot), key_row), taken, strict=True):
                x[b, : len(token)] = _read(*place)
        return tuple(out)

    return oracle


def _eager_gather(
    c_kv_pages: Tensor, k_rope_pages: Tensor, block_table: Tensor, lengths: Tensor, T: int
) -> list[Tensor]:
    """Whole pages by indexing, then zeros behind the lengths."""
    table = block_table.to(c_kv_pages.device)
    beyond = (torch.arange(T) >= lengths[:, None])[..., None].to(c_kv_pages.device)
    return [pages[table].flatten(1, 2)[:, :T].masked_fill(beyond, 0) for pages in (c_kv_pages, k_rope_pages)]


TAIL = "slots behind the last token of a sequence are copied: offs_n < lengths[b], what the page holds there is old"

ALL_OLD = (
    "all T positions are loaded from pages: from lengths[b] on a sequence has no tokens, and what lies there is "
    "somebody's; load with the mask offs_n < lengths[b] and other=0.0"
)
EVERYTHING = 1 << 30  # tokens: as many as T asks for

GATHER = Exercise(
    name="paged_gather",
    copies=False,
    title="gather: tokens back into a row",
    parts=(
        Part(
            "full pages",
            1,
            visible=[
                dict(lengths=(8, 8), T=8, page_size=4),
                dict(lengths=(128, 128), T=128, page_size=64, R=512, Dr=64, dtype=BF16),
                dict(lengths=(1,), T=1, page_size=1, R=64),
            ],
            hidden=lambda r: [
                dict(lengths=(size * 2,) * 3, T=size * 2, page_size=size, R=64, Dr=32) for size in (1, 16)
            ],
        ),
        Part(
            "lengths of their own; NaN behind them, table entries that name no page",
            1,
            visible=[
                dict(lengths=(9, 4, 0, 1), T=11, page_size=6),
                dict(lengths=(3, 8, 0), T=18, page_size=4, max_pages=3, rubbish_behind=True),
                dict(lengths=(70, 50), T=75, page_size=50, Dr=32, max_pages=2, rubbish_behind=True),
                dict(lengths=(255, 130), T=255, page_size=16, max_pages=16),
                dict(lengths=(2101, 130), T=2101, page_size=16, max_pages=132),
                dict(lengths=[9, *[0] * 279, 4], T=11, page_size=6),
            ],
            hidden=lambda r: [
                dict(
                    lengths=(r.randint(0, 75), size, 75),
                    T=75,
                    page_size=size,
                    max_pages=-(-75 // size),
                    rubbish_behind=True,
                )
                for size in (16, r.randint(1, 64))
            ],
        ),
        Part(FAR, 1, visible=[dict(lengths=(16, 16), T=16, page_size=4, pages_far_apart=True)]),
    ),
    inputs=_gather_case,
    oracle=_gathered(),
    returns=("c_kv", "k_rope"),
    mistakes=(
        Mistake("table row of another sequence", OTHER_ROW, _gathered(_first_table)),
        Mistake("past the end of a page", RUNS_ON, _gathered(_runs_on)),
        Mistake("table ignored", NO_TABLE, _gathered(_no_table)),
        Mistake("one position too far", ONE_TOO_FAR, _gathered(_next_row)),
        Mistake("slot without modulo", NO_MODULO, _gathered(_whole_position)),
        Mistake("page and slot exchanged", EXCHANGED, _gathered(_exchanged)),
        Mistake("page stride", STRIDE, _gathered(key_row=_page_of_latents)),
        Mistake("slot of the latents", KEY_SLOT, _gathered(key_row=_slot_of_latents)),
        *(Mistake("one page for a block", INSIDE, _gathered(_one_page(*way))) for way in itertools.product(FEW, BOTH)),
        *(Mistake("page stride", STRIDE, _gathered(apart=apart)) for apart in SIDE_BY_SIDE),
        *(
            Mistake("length ignored", ALL_OLD, _gathered(count=lambda n, size: EVERYTHING, page_0=page_0))
            for page_0 in BOTH
        ),
        Mistake("page tail", TAIL, _gathered(count=lambda n, size: -(-n // size) * size)),
        Mistake(
            "last page left out",
            "the last page is missing where it is not full: round the number of pages up",
            _gathered(count=lambda n, size: n // size * size),
        ),
    ),
    like=("c_kv_pages", "k_rope_pages"),
    kernel=True,
    launches=1,
    speed=Speed(
        points=2,
        case=dict(B=16, lengths=4096, T=4096, page_size=64, max_pages=64, R=512, Dr=64, dtype=BF16),
        small=dict(B=2, T=128, lengths=128, max_pages=2),
        axes=dict(c_kv_pages="@block_table", k_rope_pages="@block_table", lengths="b", c_kv="b", k_rope="b"),
        floor=lambda B, T, R, Dr, dtype, **_: _copy_floor(B * T, R, Dr, dtype),
        bars=((0.4, 0.5), (0.65, 1.0)),
        baseline=_eager_gather,
        ratio=1.5,
    ),
)

# --- paged_decode -----------------------------------------------------------------------------------------------------


def _decode_case(
    g: torch.Generator | None,
    H: int,
    lens: Sequence[int] | int,
    page_size: int,
    B: int = 0,
    R: int = 32,
    Dr: int = 16,
    max_pages: int = 4,
    rubbish_behind: bool = False,
    pages_far_apart: bool = False,
    sharp: float = 1.0,
    level: float = 0.0,
    scale: float = 0.25,
    dtype: torch.dtype = HALF,
) -> Arguments:
    """Return the operands of a step; `sharp` is the size of the queries, `level` is added to all scores."""
    lens = [lens] * B if isinstance(lens, int) else list(lens)
    query = [randn(g, len(lens), H, width, scale=sharp, dtype=dtype) for width in (R, Dr)]
    pages, table = _pool(g, lens, page_size, max_pages, (R, Dr), rubbish_behind, pages_far_apart, dtype)
    if level:
        set_level(query[1], pages[1], level, scale)
    names = ("q_latent", "q_rope", "c_kv_pages", "k_rope_pages", "block_table", "seq_lens", "scale")
    return dict(zip(names, (*query, *pages, table, torch.tensor(lens, dtype=torch.int32), scale), strict=True))


def _attended(
    look_up: LookUp = _row,
    sight: Callable[[int, int], int] = lambda n, size: n,
    block: int = 0,
    step: int = 0,
    apart: tuple[bool, bool] = (True, True),
    key_row: KeyRow | None = None,
) -> Any:
    """Return an oracle that attends to `sight` tokens, at the page and slot that `look_up` gives.

    With `block`, zeros fill the last block. With `step`, only so many tokens at the beginning of each page are seen.
    """

    def oracle(q_latent, q_rope, c_kv_pages, k_rope_pages, block_table, seq_lens, scale):
        out, lse = torch.zeros_like(q_latent), torch.full_like(q_latent[..., 0], -math.inf)
        size, taken = c_kv_pages.shape[1], _as_taken(apart, block_table)
        for b, n in enumerate(seq_lens.tolist()):
            token = torch.arange(sight(n, size))
            token = token[token % size < (step or size)]
            if not len(token):
                continue
            where = _in(c_kv_pages, look_up(block_table, b, token, 0, size))
            fill = -len(token) % block if block else 0
            pools = c_kv_pages, k_rope_pages
            c_kv, k_rope = (
                torch.nn.functional.pad(_read(*place), (0, 0, 0, fill))[None]
                for place in zip(pools, _each_pool(pools, where, key_row), taken, strict=True)
            )
            found = latent_attention(
                q_latent[b : b + 1, None], q_rope[b : b + 1, None], c_kv, k_rope, scale=scale, causal=False
            )
            out[b], lse[b] = (x[0, 0] for x in found)
        return out, lse

    return oracle


def _over_rows(oracle: Callable[..., Any]) -> Callable[..., Any]:
    """Return lesson 06's oracle on the rows that the pages hold."""

    def paged(q_latent, q_rope, c_kv_pages, k_rope_pages, block_table, seq_lens, scale):
        c_kv, k_rope = (
            pages.new_zeros(len(seq_lens), int(seq_lens.max()), pages.shape[-1]) for pages in (c_kv_pages, k_rope_pages)
        )
        for b, n in enumerate(seq_lens.tolist()):
            where = _row(block_table, b, torch.arange(n), 0, c_kv_pages.shape[1])
            c_kv[b, :n], k_rope[b, :n] = c_kv_pages[where], k_rope_pages[where]
        return oracle(q_latent=q_latent, q_rope=q_rope, c_kv=c_kv, k_rope=k_rope, seq_lens=seq_lens, scale=scale)

    return paged


def _first_of_page(block: int) -> LookUp:
    """Every block reads the first tokens of its page."""

    def look_up(table: Tensor, b: int, token: Tensor, start: int, size: int) -> tuple[Tensor, Tensor]:
        return table[b, token // size].long(), token % size % min(block, size)

    return look_up


def _page_before(block: int) -> LookUp:
    """Every block but the first reads from the page of the block before."""

    def look_up(table: Tensor, b: int, token: Tensor, start: int, size: int) -> tuple[Tensor, Tensor]:
        step = min(block, size)
        return table[b, (token - step).clamp(min=0) // size].long(), token % size

    return look_up


def _page_behind(block: int, masked: bool) -> LookUp:
    """Every block reads from the page of the block behind it. With a `masked` look-up the last one reads page 0."""

    def look_up(table: Tensor, b: int, token: Tensor, start: int, size: int) -> tuple[Tensor, Tensor]:
        step = min(block, size)
        ahead = (token // step + 1) * step
        page = table[b, (ahead // size).clamp(max=table.shape[1] - 1)].long()
        return page.where(ahead < len(token), 0) if masked else page, token % size

    return look_up


def _exchanged_in(block: int) -> LookUp:
    """Rest and quotient are exchanged, for the entry of a block and for the slots of its tokens."""

    def look_up(table: Tensor, b: int, token: Tensor, start: int, size: int) -> tuple[Tensor, Tensor]:
        step = min(block, size)
        return table[b, (token // step * step % size).clamp(max=table.shape[1] - 1)].long(), token // size

    return look_up


def _first_page(table: Tensor, b: int, token: Tensor, start: int, size: int) -> tuple[Tensor, Tensor]:
    return table[b, torch.zeros_like(token)].long(), token % size


def _entry_of_block(block: int) -> LookUp:
    """The table is taken to have an entry for each block."""

    def look_up(table: Tensor, b: int, token: Tensor, start: int, size: int) -> tuple[Tensor, Tensor]:
        return table[b, (token // min(block, size)).clamp(max=table.shape[1] - 1)].long(), token % size

    return look_up


_in_blocks = functools.partial(in_blocks, blocks=BLOCKS)


def _eager_decode(
    q_latent: Tensor,
    q_rope: Tensor,
    c_kv_pages: Tensor,
    k_rope_pages: Tensor,
    block_table: Tensor,
    seq_lens: Tensor,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """A gather of whole pages, then the eager decode step of lesson 06."""
    table = block_table.to(q_latent.device)
    c_kv, k_rope = (pages[table].flatten(1, 2) for pages in (c_kv_pages, k_rope_pages))
    return eager_decode(q_latent, q_rope, c_kv, k_rope, seq_lens, scale)


DECODE_TAIL = (
    "slots behind the last token count: what the last page holds there is old, or a load's 0 whose exp(0) is 1; "
    "mask loads and scores with offs_n < length"
)

DECODE = Exercise(
    name="paged_decode",
    title="decode straight from the pages",
    parts=(
        Part(
            "one page",
            1,
            visible=[
                dict(H=5, lens=(16, 16), page_size=16, max_pages=2),
                dict(H=128, lens=(16, 16), page_size=16, max_pages=1, R=512, Dr=64, scale=192**-0.5, dtype=BF16),
                dict(H=1, lens=(16,), page_size=16, max_pages=1),
            ],
            hidden=lambda r: [
                dict(
                    H=r.choice([18, 20]), lens=(32,), page_size=32, max_pages=2, R=64, Dr=r.choice([32, 64]), scale=0.15
                ),
                dict(H=r.randint(130, 140), lens=(16,), page_size=16, max_pages=1),
                dict(H=r.randint(114, 127), lens=(16, 16), page_size=16, max_pages=1),
            ],
        ),
        Part(
            "many pages in any order",
            1,
            visible=[
                dict(H=3, lens=(96, 64), page_size=16, max_pages=6),
                dict(H=120, lens=(16, 32), page_size=16, max_pages=2),
                dict(H=3, lens=(128,), page_size=128, Dr=32, max_pages=2, scale=0.1),
                dict(H=3, lens=(256, 128), page_size=128, Dr=32, max_pages=2, scale=0.1),
                dict(H=3, lens=(300, 2500), page_size=512, max_pages=5, level=-150.0),
                dict(H=300, lens=(16, 32), page_size=16, max_pages=2),
            ],
            hidden=lambda r: [
                dict(
                    H=r.randint(1, 17),
                    lens=(size * 2, size),
                    page_size=size,
                    Dr=size,
                    max_pages=3,
                    scale=0.1,
                    dtype=BF16,
                )
                for size in (32, 64)
            ],
        ),
        Part(
            "lengths of their own; NaN behind them, table entries that name no page",
            1,
            visible=[
                dict(H=3, lens=(40, 17, 0, 1), page_size=16),
                dict(H=3, lens=(40, *[0] * 279, 17), page_size=16),
                dict(H=2, lens=(33, 0, 64), page_size=32, Dr=32, max_pages=2, rubbish_behind=True, scale=0.4),
                dict(H=2, lens=(37,), page_size=16, **FAR_BELOW_0),
            ],
            hidden=lambda r: [
                dict(
                    H=2, lens=(r.randint(1, 63), 16 * r.randint(0, 4)), page_size=16, max_pages=4, rubbish_behind=True
                ),
                dict(H=2, lens=(r.randint(65, 127),), page_size=64, max_pages=2, rubbish_behind=True),
                dict(H=r.randint(1, 5), lens=(2 * r.randint(8, 31) + 1,), page_size=16, **FAR_BELOW_0),
            ],
        ),
        Part(FAR, 1, visible=[dict(H=2, lens=(64, 64), page_size=16, pages_far_apart=True)]),
    ),
    inputs=_decode_case,
    oracle=_attended(),
    returns=("out", "lse"),
    mistakes=(
        Mistake("table row of another sequence", OTHER_ROW, _attended(_first_table)),
        Mistake("table ignored", NO_TABLE, _attended(_no_table)),
        Mistake("past the end of a page", RUNS_ON, _attended(_runs_on)),
        Mistake("slot without modulo", NO_MODULO, _attended(_whole_position)),
        *_in_blocks("page and slot exchanged", EXCHANGED, lambda block: _attended(_exchanged_in(block))),
        Mistake("page stride", STRIDE, _attended(key_row=_page_of_latents)),
        Mistake("slot of the latents", KEY_SLOT, _attended(key_row=_slot_of_latents)),
        *(Mistake("page stride", STRIDE, _attended(apart=apart)) for apart in SIDE_BY_SIDE),
        Mistake("page tail", DECODE_TAIL, _attended(sight=lambda n, size: -(-n // size) * size)),
        Mistake(
            "last page left out",
            "the last page is ignored where it is not full: go on to the length, not to length // page_size pages",
            _attended(sight=lambda n, size: n // size * size),
        ),
        *empty_mistakes("a sequence of length 0", _attended()),
        *_in_blocks("page tail", DECODE_TAIL, lambda block: _attended(block=block)),
        *_in_blocks(
            "page of the block before",
            "every block reads from the page of the block before: look up the page of its own first token",
            lambda block: _attended(_page_before(block)),
        ),
        Mistake(
            "first page for all blocks",
            "all blocks read the first page: hand the next page on at the end of the loop, and keep BLOCK_N at "
            "page_size at most",
            _attended(_first_page),
        ),
        *_in_blocks(
            "entry of a block",
            "the table has an entry for each page, not for each block: with several blocks in a page, the next one's "
            "is ahead // page_size",
            lambda block: _attended(_entry_of_block(block)),
        ),
        *(
            Mistake(
                "page of the block behind",
                "every block reads from the page of the block behind it: use the page before the next one takes its "
                "place",
                _attended(_page_behind(block, masked)),
            )
            for block in BLOCKS
            for masked in BOTH
        ),
        *_in_blocks(
            "tokens left out",
            "of each page only the first block is read: the loop goes on by BLOCK_N, not by a page",
            lambda block: _attended(step=block),
        ),
        *_in_blocks(
            "slot in the page",
            "every block reads the first tokens of its page: add the token's position % page_size to the page's first "
            "row",
            lambda block: _attended(_first_of_page(block)),
        ),
        *(
            Mistake(
                "block longer than a page",
                "a block of tokens looks up one page and is longer than it: BLOCK_N is page_size at most",
                _attended(_one_page(block, modulo)),
            )
            for block in BLOCKS[1:]
            for modulo in BOTH
        ),
        *(replace(each, oracle=_over_rows(each.oracle)) for each in OF_A_STEP),
        finite_mask(_attended()),
    ),
    like=("q_latent", torch.float32),
    kernel=True,
    launches=1,
    speed=Speed(
        points=3,
        case=dict(B=256, H=16, lens=1024, page_size=64, max_pages=16, R=512, Dr=64, scale=192**-0.5, dtype=BF16),
        small=dict(B=2, lens=256, max_pages=4),
        axes=dict(
            q_latent="bh",
            q_rope="bh",
            c_kv_pages="@block_table",
            k_rope_pages="@block_table",
            seq_lens="b",
            out="bh",
            lse="bh",
        ),
        floor=lambda B, H, lens, R, Dr, dtype, **_: decode_floor(B, H, lens, dtype, R, Dr),
        bars=((0.35, 0.5), (0.5, 1.0)),
        baseline=_eager_decode,
        ratio=2.0,
    ),
)

EXERCISES = (PREDICT, BASIC, OFFSETS, UPDATE, GATHER, DECODE)
