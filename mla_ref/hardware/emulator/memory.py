"""The memory that a launch may touch, and who touched what."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

MANY = -1  # more than one program has read an element
DENSE, PAGE = 1 << 24, 1 << 12  # bytes of a storage from which on it is kept by pages; units of one
BITS = 20  # of an operation's number: with a program's it makes one number
OPS = 1 << BITS
Kept = Callable[[], torch.Tensor]
TENSORS = (torch.Tensor, torch.nn.Parameter)


@dataclass(eq=False)
class Region:
    """The storage of a tensor that a launch was given.

    Attributes
    ----------
    name, shape
        Of the parameter.
    start
        Address of the tensor's first element.
    low
        Address of the storage.
    raw
        uint8 ``[bytes]``, the storage itself.
    written
        bool ``[bytes]``: which bytes hold what something wrote; None if all.
    reports
        Where reads of other bytes are told.
    """

    name: str
    shape: tuple[int, ...]
    start: int
    low: int
    raw: torch.Tensor
    written: torch.Tensor | None = None
    reports: list[str] = field(default_factory=list)
    views: dict[torch.dtype, torch.Tensor] = field(default_factory=dict)

    @property
    def high(self) -> int:
        return self.low + self.raw.numel()

    def view(self, dtype: torch.dtype) -> torch.Tensor:
        """Return the storage as elements of a type, as many as it holds whole."""
        if dtype not in self.views:
            whole = self.raw.numel() // dtype.itemsize * dtype.itemsize
            self.views[dtype] = self.raw[:whole].view(dtype)
        return self.views[dtype]

    @classmethod
    def of(cls, name: str, tensor: torch.Tensor) -> Region:
        """Return the region of a tensor on the CPU. Nothing of an empty one may be touched."""
        storage, start = tensor.untyped_storage(), tensor.data_ptr()
        raw = torch.empty(0, dtype=torch.uint8)
        if tensor.numel():
            raw = raw.set_(storage)
        found = cls(name, tuple(tensor.shape), start, storage.data_ptr() if tensor.numel() else start, raw)
        if Blanks.current is not None:
            found.written, found.reports = Blanks.current.written.get(found.low), Blanks.current.reports
        return found


class Blanks:
    """Storages that hold nothing yet, in the body of a `with`: launches tell of reads of what nothing wrote.

    Attributes
    ----------
    reports
        A sentence for each operation that read such memory.
    """

    current: Blanks | None = None
    LARGEST = 1 << 26  # bytes of a storage that is looked after

    def __init__(self):
        self.written: dict[int, torch.Tensor] = {}
        self.reports: list[str] = []
        self.kept: list[torch.UntypedStorage] = []

    def __enter__(self) -> Blanks:
        self.outer, Blanks.current = Blanks.current, self
        return self

    def __exit__(self, *exc_info: object) -> None:
        Blanks.current = self.outer

    def add(self, tensor: torch.Tensor) -> None:
        """Say that a tensor's storage is new and empty."""
        storage = tensor.untyped_storage()
        if 0 < storage.nbytes() <= self.LARGEST:
            self.kept.append(storage)  # so that no other gets its address
            self.written[storage.data_ptr()] = torch.zeros(storage.nbytes(), dtype=torch.bool)

    def fill(self, tensor: torch.Tensor) -> None:
        """Say that something other than a kernel wrote to a tensor's storage."""
        self.written.pop(tensor.untyped_storage().data_ptr(), None)


class Memory:
    """The regions of one launch.

    Parameters
    ----------
    regions
        By the number of the parameter; parameters may share one storage.

    Attributes
    ----------
    others
        Returns what pointers that a kernel reads from memory may reach besides; None means nothing.
    """

    def __init__(self, regions: dict[int, Region]):
        self.regions = regions
        self.known: dict[frozenset[int] | None, list[Region]] = {}
        self.others: Callable[[], list[Region]] | None = None
        self.sorted: list[Region] | None = None

    def candidates(self, roots: frozenset[int] | None) -> list[Region]:
        """Return the regions that pointers from these parameters may reach, each storage once."""
        if roots not in self.known:
            found: dict[tuple[int, int], Region] = {}
            for number in sorted(self.regions if roots is None else roots.intersection(self.regions)):
                region = self.regions[number]
                found.setdefault((region.low, region.high), region)
            self.known[roots] = sorted(found.values(), key=lambda region: region.low)
        return self.known[roots]

    def discover(self, addresses: torch.Tensor) -> bool:
        """Add what lies at these addresses to the candidates of unknown pointers; return whether there is anything."""
        if self.others is None:
            return False
        if self.sorted is None:
            self.sorted = sorted(self.others(), key=lambda region: region.low)
        known, lows = self.candidates(None), torch.tensor([region.low for region in self.sorted])
        before = {(region.low, region.high) for region in known}
        for number in torch.searchsorted(lows, addresses, right=True).unique().tolist():
            region = self.sorted[number - 1]
            if number and (region.low, region.high) not in before:
                known.insert(0, region)
        return len(known) > len(before)


def tensors() -> list[Region]:
    """Return the storages of all tensors on the CPU that Python knows."""
    found = {}
    for each in gc.get_objects():
        if type(each) in TENSORS and each.device.type == "cpu" and each.layout is torch.strided and each.numel():
            found.setdefault(each.untyped_storage().data_ptr(), each)
    return [Region.of("a tensor that is no argument", each) for each in found.values()]


class Shadow:
    """Who wrote and read the elements of the storages in one launch, to find races.

    An element is written in one program only and read by others only where an atomic operation that releases, in the
    writer, comes before one that acquires, in the reader. Writes of the same value do not count.
    """

    def __init__(self, programs: int, unit: int, ordered: bool):
        self.unit = unit
        self.writers: dict[int, torch.Tensor] = {}
        self.readers: dict[int, torch.Tensor] = {}
        self.written_at: dict[int, torch.Tensor] = {}
        self.read_at: dict[int, torch.Tensor] = {}
        self.pages: dict[int, tuple[torch.Tensor, int]] = {}
        self.clock = 1
        self.synced = torch.zeros(programs + 1, dtype=torch.int64) if ordered else None

    def _of(self, store: dict[int, torch.Tensor], region: Region) -> torch.Tensor:
        """Return what is known of each unit of a storage, or of its pages that were touched."""
        known = store.get(region.low)
        pages = self.pages.get(region.low)
        count = -(-region.raw.numel() // self.unit) if pages is None else pages[1] * PAGE
        if known is None:
            store[region.low] = torch.zeros(count, dtype=torch.int64)
        elif len(known) < count:
            store[region.low] = torch.cat(
                [known, torch.zeros(max(count, 2 * len(known)) - len(known), dtype=torch.int64)]
            )
        return store[region.low]

    def _packed(self, region: Region, units: torch.Tensor) -> torch.Tensor:
        """Return where units of a storage are kept: of a large one only the pages that are touched are."""
        if region.raw.numel() <= DENSE:
            return units
        table, used = self.pages.get(region.low) or (torch.full([region.raw.numel() // PAGE + 1], -1), 0)
        pages = units // PAGE
        fresh = pages[table[pages] < 0].unique()
        table[fresh] = used + torch.arange(len(fresh))
        self.pages[region.low] = table, used + len(fresh)
        return table[pages] * PAGE + units % PAGE

    def sync(self, programs: torch.Tensor) -> None:
        """Note an atomic operation of programs, numbered from 1, which take their turns in order."""
        self.synced[programs] = self.clock + 1 + torch.arange(len(programs))
        self.clock += len(programs)

    def load(self, region: Region, units: torch.Tensor, programs: torch.Tensor, op: int) -> tuple | None:
        """Note reads; return place, other program and other operation of a race, or None."""
        self.clock += 1
        units = self._packed(region, units)
        if region.low in self.writers:
            writers = self._of(self.writers, region).index_select(0, units)
            if found := self._conflict(region, units, writers, programs, self.written_at):
                return found
        readers = self._of(self.readers, region)
        before, mine = readers.index_select(0, units), programs * OPS + op
        if torch.count_nonzero(before):
            before = before >> BITS
            alone = (before == 0) | (before == programs)
            if self.synced is not None:
                alone |= self._comes_before(region, units, before, programs, self.read_at)
            mine = torch.where(alone, mine, MANY * OPS + op)
        if self.synced is not None:
            self._of(self.read_at, region)[units] = self.clock
        readers.scatter_(0, units, mine)
        after = readers.index_select(0, units)
        if not torch.equal(after, mine):
            readers[units[after != mine]] = MANY * OPS + op
        return None

    def store(
        self, region: Region, units: torch.Tensor, programs: torch.Tensor, op: int, kept: Kept, held: Kept
    ) -> tuple | None:
        """Note writes; return place, other program and other operation of a race, or None.

        ``kept`` and ``held`` tell, after the writes, at which places memory held the value before and holds it now.
        """
        self.clock += 1
        units, found = self._packed(region, units), None
        for noted, times in ((self.writers, self.written_at), (self.readers, self.read_at)):
            if found is None and region.low in noted:
                before = self._of(noted, region).index_select(0, units)
                found = self._conflict(region, units, before, programs, times, kept)
        writers, mine = self._of(self.writers, region), programs * OPS + op
        writers.scatter_(0, units, mine)
        if self.synced is not None:
            self._of(self.written_at, region)[units] = self.clock
        other = writers.index_select(0, units)
        if found is None and not torch.equal(other, mine):
            lost = (other != mine) & ~held()
            if lost.any():
                at = int(lost.to(torch.uint8).argmax())
                found = at, int(other[at]) // OPS, op
        return found

    def _comes_before(self, region, units, who, programs, times):
        """Return where `who`, other programs, released after what they did, and this program acquired after that."""
        done, released, acquired = self._of(times, region)[units], self.synced[who.clamp(min=0)], self.synced[programs]
        first = last = released
        if bool((who == MANY).any()):  # all others must have released: their first and their last sync decide
            order = self.synced[1:].sort()[0]
            first = torch.where(acquired == order[0], order[1], order[0])
            last = torch.where(acquired == order[-1], order[-2], order[-1])
            first, last = (torch.where(who == MANY, each, released) for each in (first, last))
        return (first > done) & (acquired >= last)

    def _conflict(self, region, units, before, programs, times, kept=None):
        if not torch.count_nonzero(before):  # mostly nothing was there
            return None
        who = before >> BITS
        wrong = (who != 0) & (who != programs)
        if kept is not None:
            wrong &= ~kept()
        if not wrong.any():
            return None
        if self.synced is not None:
            wrong &= ~self._comes_before(region, units, who, programs, times)
            if not wrong.any():
                return None
        at = int(wrong.to(torch.uint8).argmax())
        return at, int(who[at]), int(before[at]) % OPS
