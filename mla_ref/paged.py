"""Paged cache: pages of ``page_size`` tokens from one pool, and a table of the pages that each sequence holds.

A page serves any sequence, so the pool never has to be put in order. Sequences with a common beginning share its pages;
the one that writes into a shared page first takes a copy of it.
"""

from collections import Counter
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from ._operands import check_gather, check_gathered, check_places, check_update
from ._validate import check_counts, check_integers, check_positive, check_tensors
from .cache import check_detached, check_kept

HOLE = -1  # table entry without a page; nothing reads past a sequence's length


class OutOfPages(ValueError):
    """The pool has too few free pages."""


class PagePool:
    """Pages by number, and how many sequences hold each: bookkeeping without storage.

    A call that raises changes nothing. The page freed last is handed out first, and a page never used comes last, so
    that storage has to reach only as far as the most pages ever held at once.

    Parameters
    ----------
    num_pages
        Pages are 0 to ``num_pages - 1``.

    Examples
    --------
    >>> pool = PagePool(4)
    >>> pool.allocate(3)
    [0, 1, 2]
    >>> pool.share([0])
    >>> pool.release([0, 1])
    >>> pool.num_free, pool.num_used, pool.holders(0)
    (2, 2, 1)
    """

    def __init__(self, num_pages: int):
        check_positive(num_pages=num_pages)
        self.num_pages = num_pages
        self._holders = [0] * num_pages
        self._free = list(reversed(range(num_pages)))

    @property
    def num_free(self) -> int:
        """Pages that nobody holds."""
        return len(self._free)

    @property
    def num_used(self) -> int:
        """Pages held, each counted once however many hold it."""
        return self.num_pages - self.num_free

    def holders(self, page: int) -> int:
        """Return how many hold ``page``."""
        self._check([page])
        return self._holders[page]

    def allocate(self, count: int) -> list[int]:
        """Take ``count`` free pages, held once each.

        Raises
        ------
        TypeError, ValueError
            ``count`` is no number of pages.
        OutOfPages
            A ValueError: fewer are free.
        """
        if not isinstance(count, int) or isinstance(count, bool):
            raise TypeError(f"count is {count!r}, expected an int")
        if count < 0:
            raise ValueError(f"count is {count}, expected 0 or more")
        if count > self.num_free:
            raise OutOfPages(f"{count} pages needed, {self.num_free} of {self.num_pages} free: none was taken")
        pages = [self._free.pop() for _ in range(count)]
        for page in pages:
            self._holders[page] = 1
        return pages

    def share(self, pages: Iterable[int]) -> None:
        """Count one holder more for each page.

        Raises
        ------
        TypeError, ValueError
            A number that is no page of the pool, or a page that nobody holds.
        """
        for page, times in self._check_held(pages).items():
            self._holders[page] += times

    def release(self, pages: Iterable[int]) -> None:
        """Count one holder less for each page; those without any are free again.

        Raises
        ------
        TypeError, ValueError
            A number that is no page of the pool, or more releases than holders.
        """
        counts = self._check_held(pages)
        for page, times in counts.items():
            if times > self._holders[page]:
                raise ValueError(f"page {page} is released {times} times and held by {self._holders[page]}")
        for page, times in reversed(counts.items()):
            self._holders[page] -= times
            if not self._holders[page]:
                self._free.append(page)

    def _check_held(self, pages):
        counts = Counter(self._check(list(pages)))
        for page in counts:
            if not self._holders[page]:
                raise ValueError(f"page {page} is free: it was released before, or never allocated")
        return counts

    def _check(self, pages):
        for page in pages:
            _check_index("page", page, self.num_pages)
        return pages


def check_table(block_table: Tensor, *, seq_lens: Tensor, num_pages: int, page_size: int) -> None:
    """Check that every token of every sequence lies in a page of the pool.

    For what reads pages unchecked, as kernels on a GPU do: an entry that is no page sends them to foreign memory.
    Reading the values waits for the device. Entries beyond a sequence's length may be anything, and sequences may share
    pages.

    Parameters
    ----------
    block_table
        int32 or int64 ``[B, max_pages]``: position ``t`` of sequence ``b`` is in slot ``t % page_size`` of page
        ``block_table[b, t // page_size]``.
    seq_lens
        int32 or int64 ``[B]``, tokens of each sequence.
    num_pages, page_size
        Pages are 0 to ``num_pages - 1``, of ``page_size`` tokens each: the first two dimensions of the pool.

    Raises
    ------
    TypeError
        Not an int32 or int64 tensor, or no int.
    ValueError
        Shapes or devices that do not agree, a length below 0 or beyond max_pages × page_size, or an entry within a
        sequence's length that is no page.

    Examples
    --------
    >>> import torch
    >>> table = torch.tensor([[3, 1, -1], [0, -1, -1]])
    >>> check_table(table, seq_lens=torch.tensor([8, 0]), num_pages=4, page_size=4)
    >>> check_table(table, seq_lens=torch.tensor([8, 5]), num_pages=4, page_size=4)
    Traceback (most recent call last):
    ValueError: block_table[1, 1] is -1, expected 0 <= page < 4: positions 4 to 4 of sequence 1 have no page
    """
    check_positive(page_size=page_size)
    device = block_table.device if isinstance(block_table, Tensor) else torch.device("cpu")
    size = check_integers(device, {}, block_table=(block_table, "B max_pages"))
    room = size["max_pages"] * page_size
    seq_lens = check_counts("seq_lens", seq_lens, batch=size["B"], low=0, high=room, device=device)
    check_places(block_table, torch.zeros_like(seq_lens), seq_lens, num_pages, page_size)


def paged_update(
    c_kv: Tensor,
    k_rope: Tensor,
    c_kv_pages: Tensor,
    k_rope_pages: Tensor,
    block_table: Tensor,
    *,
    starts: Tensor,
    lengths: Tensor | None = None,
) -> None:
    """Write new tokens of all sequences into their pages.

    Token s of sequence b goes to position ``starts[b] + s``, which is slot ``position % page_size`` of page
    ``block_table[b, position // page_size]``. A position outside the table, or one whose table entry is no page, is
    left out. No two tokens may have the same slot.

    Parameters
    ----------
    c_kv, k_rope
        ``[B, S, R]`` and ``[B, S, Dr]``, any layout.
    c_kv_pages, k_rope_pages
        ``[num_pages, page_size, R]`` and ``[num_pages, page_size, Dr]``, any layout; written in place.
    block_table
        int32 or int64 ``[B, max_pages]``.
    starts
        int32 or int64 ``[B]``, position of each sequence's first new token.
    lengths
        int32 or int64 ``[B]``, how many of the S tokens are real, from the first on; all by default.

    Raises
    ------
    TypeError, ValueError
        Shapes, dtypes or devices that do not agree.
    """
    size = check_update(c_kv, k_rope, c_kv_pages, k_rope_pages, block_table, starts, lengths)
    if not size["num_pages"] * size["max_pages"]:
        return
    real, page, slot = _places(size, block_table, starts, lengths)
    sequence, token = real.nonzero(as_tuple=True)
    page, slot = page[real], slot[real]
    c_kv_pages[page, slot] = c_kv[sequence, token]
    k_rope_pages[page, slot] = k_rope[sequence, token]


def paged_gather(
    c_kv_pages: Tensor,
    k_rope_pages: Tensor,
    block_table: Tensor,
    *,
    starts: Tensor | None = None,
    lengths: Tensor,
    out: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """Copy tokens of all sequences from their pages to contiguous memory: the way back of :func:`paged_update`.

    Parameters
    ----------
    c_kv_pages, k_rope_pages
        ``[num_pages, page_size, R]`` and ``[num_pages, page_size, Dr]``, any layout.
    block_table
        int32 or int64 ``[B, max_pages]``; entries that no token to copy needs are not used.
    starts
        int32 or int64 ``[B]``, position of each sequence's first token to copy; 0 by default.
    lengths
        int32 or int64 ``[B]``, tokens to copy.
    out
        ``[B, T, R]`` and ``[B, T, Dr]``: where the results go, cut off at T. What lies beyond ``lengths`` stays as it
        is.

    Returns
    -------
    c_kv, k_rope
        ``out``, or new tensors of T = max(``lengths``), zero beyond ``lengths``. Reading T waits for the device: pass
        ``out`` where that is not wanted.

    Raises
    ------
    TypeError, ValueError
        Shapes, dtypes or devices that do not agree, or a token to copy that is in no page: its position is outside the
        table, or the entry there is no page of the pool.
    """
    size, out = check_gather(c_kv_pages, k_rope_pages, block_table, starts, lengths, out)
    if starts is None:
        starts = torch.zeros_like(lengths)
    if not torch.compiler.is_compiling():
        check_gathered(size, block_table, starts, lengths)
    if not size["num_pages"] * size["max_pages"]:
        return out
    real, page, slot = _places(size, block_table, starts, lengths)
    for each, pages in zip(out, (c_kv_pages, k_rope_pages), strict=True):
        each.copy_(torch.where(real[..., None], pages[page, slot], each))
    return out


class PagedCache:
    """A latent cache in pages, with the interface of :class:`mla_ref.LatentCache`.

    The pages of each sequence are known on the host too. With the ``update`` and ``gather`` of :mod:`mla_ref.kernels`
    no call but one with ``lengths`` waits for the device; their PyTorch twins, the defaults, count the tokens there and
    wait. What the host does is not part of a CUDA graph: append outside of one, and let it read pages made at once
    (``slab_pages=None``), the block table, and a copy of ``seq_lens`` at an address of its own.

    Parameters
    ----------
    batch, capacity
        B, and the most tokens a sequence can hold.
    kv_lora_rank, qk_rope_head_dim
        R and Dr.
    dtype, device
        Of the pages.
    page_size
        Tokens a page.
    num_pages
        The most pages the pool can have; by default as many as B full sequences hold.
    slab_pages
        None makes all pages at once. A number makes a pool that begins empty and grows when it has to, by a multiple of
        so many pages. It grows by moving: for a moment both storages exist, and the addresses that a CUDA graph has
        captured are void.
    update, gather
        Functions with the signatures of :func:`paged_update` and :func:`paged_gather`, for example those of
        :mod:`mla_ref.kernels`.

    Attributes
    ----------
    c_kv, k_rope
        Pages, ``[pages made, page_size, R]`` and ``[pages made, page_size, Dr]``.
    block_table
        int32 ``[B, max_pages]``, changed in place; -1 where a sequence holds no page.
    seq_lens
        int32 ``[B]``, tokens held per sequence. Every change replaces the tensor, none is in place.
    pool
        The :class:`PagePool`.

    References
    ----------
    PagedAttention, Kwon et al. 2023, arXiv:2309.06180; "Optimizing Multi-head Latent Attention for Efficient
    Inference", section 3.3.

    Examples
    --------
    >>> import torch
    >>> cache = PagedCache(batch=2, capacity=8, kv_lora_rank=4, qk_rope_head_dim=2, page_size=2)
    >>> cache.append(torch.randn(2, 3, 4), torch.randn(2, 3, 2), lengths=torch.tensor([3, 0]))
    >>> cache.fork(0, 1)
    >>> cache.seq_lens.tolist(), cache.used_pages
    ([3, 3], 2)
    >>> cache.append(torch.randn(2, 1, 4), torch.randn(2, 1, 2))
    >>> cache.block_table.tolist(), cache.used_pages
    ([[0, 2, -1, -1], [0, 1, -1, -1]], 3)
    """

    def __init__(
        self,
        batch: int,
        capacity: int,
        kv_lora_rank: int,
        qk_rope_head_dim: int,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        *,
        page_size: int = 64,
        num_pages: int | None = None,
        slab_pages: int | None = None,
        update: Callable[..., None] = paged_update,
        gather: Callable[..., tuple[Tensor, Tensor]] = paged_gather,
    ):
        check_positive(batch=batch, capacity=capacity, page_size=page_size)
        check_positive(kv_lora_rank=kv_lora_rank, qk_rope_head_dim=qk_rope_head_dim)
        max_pages = -(-capacity // page_size)
        num_pages = batch * max_pages if num_pages is None else num_pages
        slab_pages = num_pages if slab_pages is None else slab_pages
        check_positive(num_pages=num_pages, slab_pages=slab_pages)
        self.batch, self.capacity, self.page_size = batch, capacity, page_size
        self._slab_pages = slab_pages
        self._update, self._gather = update, gather
        self.pool = PagePool(num_pages)
        made = num_pages if slab_pages >= num_pages else 0
        self.c_kv = torch.zeros(made, page_size, kv_lora_rank, dtype=dtype, device=device)
        self.k_rope = torch.zeros(made, page_size, qk_rope_head_dim, dtype=dtype, device=device)
        self.block_table = torch.full((batch, max_pages), HOLE, dtype=torch.int32, device=device)
        self.seq_lens = torch.zeros(batch, dtype=torch.int32, device=device)
        self._held = [0] * batch
        self._pages: list[list[int]] = [[] for _ in range(batch)]

    @property
    def nbytes(self) -> int:
        """Bytes of the pages made, used or not."""
        return self.c_kv.nbytes + self.k_rope.nbytes

    @property
    def used_pages(self) -> int:
        """Pages that sequences hold; one that several share counts once."""
        return self.pool.num_used

    def saving_ratio(self, preallocated_tokens: int | None = None) -> float:
        """Return the share of preallocated memory that the used pages do without.

        Parameters
        ----------
        preallocated_tokens
            What to compare with; B × capacity by default, as a contiguous cache has.

        References
        ----------
        Optimizing Multi-head Latent Attention for Efficient Inference, equations 17 to 19.
        """
        preallocated = self.batch * self.capacity if preallocated_tokens is None else preallocated_tokens
        check_positive(preallocated_tokens=preallocated)
        return 1 - self.used_pages * self.page_size / preallocated

    def append(self, c_kv: Tensor, k_rope: Tensor, *, lengths: Tensor | None = None) -> None:
        """Write new tokens behind those each sequence holds.

        Parameters
        ----------
        c_kv, k_rope
            ``[B, S, R]`` after its RMSNorm, and ``[B, S, Dr]`` after rotation.
        lengths
            int32 or int64 ``[B]``, how many of the S tokens are real, from the first on; all by default.

        Raises
        ------
        TypeError, ValueError
            Shape, dtype or device that is not the cache's, or no room in a sequence. Nothing has changed then.
        OutOfPages
            A ValueError: no room in the pool. Nothing has changed then.
        RuntimeError
            An entry requires a gradient.
        """
        counts, lengths = self._check_append(c_kv, k_rope, lengths)
        changes = self._plan(counts)
        pages = self.pool.allocate(len(changes))
        replaced = [(old, page) for (_, _, old), page in zip(changes, pages, strict=True) if old != HOLE]
        try:
            self._make(max(pages, default=-1) + 1)
            self._set_table([(b, entry, page) for (b, entry, _), page in zip(changes, pages, strict=True)])
            self._copy_pages(replaced)
            where = {"starts": self.seq_lens, "lengths": lengths}
            self._update(c_kv, k_rope, self.c_kv, self.k_rope, self.block_table, **where)
        except BaseException:
            self._set_table(changes)
            self.pool.release(pages)
            raise
        self.pool.release(old for old, _ in replaced)
        for (b, entry, _), page in zip(changes, pages, strict=True):
            self._pages[b][entry:] = [page]
        self._held = [held + count for held, count in zip(self._held, counts, strict=True)]
        self.seq_lens = (self.seq_lens + (c_kv.shape[1] if lengths is None else lengths)).to(torch.int32)

    def filled(self) -> tuple[Tensor, Tensor]:
        """Return copies of the first ``max(seq_lens)`` positions, ``[B, T, R]`` and ``[B, T, Dr]``.

        Shorter sequences hold values without meaning beyond their own length: pass ``seq_lens`` along.
        """
        longest = max(self._held)
        shape, ragged = (self.batch, longest), min(self._held) < longest
        out = tuple(pages.new_empty(*shape, pages.shape[-1]) for pages in (self.c_kv, self.k_rope))
        if ragged:
            for each in out:
                each.zero_()
        return self._gather(self.c_kv, self.k_rope, self.block_table, lengths=self.seq_lens, out=out)

    def fork(self, source: int, target: int) -> None:
        """Let sequence ``target``, which holds nothing, hold what ``source`` holds, without a copy.

        Raises
        ------
        TypeError, ValueError
            A number that is no sequence, a source that holds nothing, or a target that holds something. Nothing has
            changed then.
        """
        self._check_holds("source", source)
        _check_index("target", target, self.batch)
        if self._held[target]:
            raise ValueError(f"target {target} holds {self._held[target]} tokens, expected a sequence that is free")
        self.pool.share(self._pages[source])
        self._pages[target] = list(self._pages[source])
        self.block_table[target] = self.block_table[source]
        self._set_held(target, self._held[source])

    def free(self, sequence: int) -> None:
        """Forget the tokens of a sequence; pages that no other one holds return to the pool.

        Raises
        ------
        TypeError, ValueError
            A number that is no sequence, or a sequence that holds nothing. Nothing has changed then.
        """
        self._check_holds("sequence", sequence)
        self.pool.release(self._pages[sequence])
        self._pages[sequence] = []
        self.block_table[sequence].fill_(HOLE)
        self._set_held(sequence, 0)

    def truncate(self, lengths: Tensor) -> None:
        """Forget all but the first ``lengths`` tokens of each sequence, int32 or int64 ``[B]``.

        Pages that a sequence no longer needs, and that no other one holds, return to the pool.

        Raises
        ------
        TypeError, ValueError
            No counts, or more tokens than a sequence holds. Nothing has changed then.
        """
        lengths = check_kept(lengths, self.seq_lens)
        self._held = lengths.tolist()
        dropped = []
        for b, held in enumerate(self._held):
            needed = -(-held // self.page_size)
            dropped += [(b, entry, page) for entry, page in enumerate(self._pages[b][needed:], needed)]
            del self._pages[b][needed:]
        self.pool.release(page for _, _, page in dropped)
        self._set_table([(b, entry, HOLE) for b, entry, _ in dropped])
        self.seq_lens = lengths.to(torch.int32)

    def reset(self) -> None:
        """Forget every token; the pages made stay."""
        self.pool = PagePool(self.pool.num_pages)
        self._held = [0] * self.batch
        self._pages = [[] for _ in range(self.batch)]
        self.block_table.fill_(HOLE)
        self.seq_lens = torch.zeros_like(self.seq_lens)

    def _check_append(self, c_kv, k_rope, lengths):
        new = check_tensors(
            pages=(self.c_kv, "_ _ R"),
            c_kv=(c_kv, f"{self.batch} S R"),
            k_rope=(k_rope, f"{self.batch} S {self.k_rope.shape[-1]}"),
        )["S"]
        check_detached(c_kv=c_kv, k_rope=k_rope)
        counts = [new] * self.batch
        if lengths is not None:
            lengths = check_counts("lengths", lengths, batch=self.batch, low=0, high=new, device=c_kv.device)
            counts = lengths.tolist()
        for b, (held, count) in enumerate(zip(self._held, counts, strict=True)):
            if held + count > self.capacity:
                raise ValueError(
                    f"sequence {b} holds {held} of {self.capacity} tokens, no room for {count} more: "
                    f"nothing was appended"
                )
        return counts, lengths

    def _plan(self, counts):
        """Return what gets a new page, as (sequence, table entry, page there before)."""
        changes, given_up = [], Counter()
        for b, (pages, held, count) in enumerate(zip(self._pages, self._held, counts, strict=True)):
            if not count:
                continue
            if held % self.page_size:
                last = pages[-1]
                # The last of several that write into a shared page keeps it.
                if self.pool.holders(last) - given_up[last] > 1:
                    given_up[last] += 1
                    changes.append((b, len(pages) - 1, last))
            needed = -(-(held + count) // self.page_size)
            changes += [(b, entry, HOLE) for entry in range(len(pages), needed)]
        return changes

    def _make(self, pages):
        """Make storage for at least so many pages."""
        made = len(self.c_kv)
        if pages <= made:
            return
        pages = min(-(-pages // self._slab_pages) * self._slab_pages, self.pool.num_pages)
        c_kv, k_rope = (old.new_zeros(pages, *old.shape[1:]) for old in (self.c_kv, self.k_rope))
        c_kv[:made], k_rope[:made] = self.c_kv, self.k_rope
        self.c_kv, self.k_rope = c_kv, k_rope

    def _set_table(self, entries):
        if entries:
            b, entry, page = torch.tensor(entries, dtype=torch.int32).T.to(self.block_table.device, non_blocking=True)
            self.block_table[b, entry] = page

    def _copy_pages(self, pairs):
        if pairs:
            source, target = torch.tensor(pairs, dtype=torch.int32).T.to(self.c_kv.device, non_blocking=True)
            for pages in (self.c_kv, self.k_rope):
                pages[target] = pages[source]

    def _set_held(self, sequence, tokens):
        self._held[sequence] = tokens
        self.seq_lens = self.seq_lens.clone()
        self.seq_lens[sequence].fill_(tokens)  # an assignment would wait for the device

    def _check_holds(self, name, sequence):
        _check_index(name, sequence, self.batch)
        if not self._held[sequence]:
            raise ValueError(f"{name} {sequence} holds nothing: it was freed before, or never filled")


def _places(size, block_table, starts, lengths):
    """Return of every token whether it has a place, its page and its slot, each [B, S]; page 0 where it has none."""
    token = torch.arange(size["S"], device=starts.device)
    position = starts[:, None].long() + token
    entry = position // size["page_size"]
    real = (position >= 0) & (entry < block_table.shape[1])
    if lengths is not None:
        real &= token < lengths[:, None]
    page = block_table.gather(1, entry.masked_fill(~real, 0)).long()
    real = real & (page >= 0) & (page < size["num_pages"])
    return real, page.masked_fill(~real, 0), position % size["page_size"]


def _check_index(name, index, size):
    if not isinstance(index, int) or isinstance(index, bool):
        raise TypeError(f"{name} is {index!r}, expected an int")
    if not 0 <= index < size:
        raise ValueError(f"{name} is {index}, expected 0 <= {name} < {size}")
