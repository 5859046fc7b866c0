"""The memory that a launch may touch."""

from __future__ import annotations

import gc
import math
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

import torch

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
        """Say that a tensor's storage is new and empty. One on a GPU is nothing that the emulator sees."""
        storage = tensor.untyped_storage()
        if tensor.device.type != "cuda" and 0 < storage.nbytes() <= self.LARGEST:
            self.kept.append(storage)  # so that no other gets its address
            self.written[storage.data_ptr()] = torch.zeros(storage.nbytes(), dtype=torch.bool)

    def lacks(self, tensor: torch.Tensor) -> bool:
        """Return whether nothing wrote some of a tensor's elements."""
        written = self.written.get(tensor.untyped_storage().data_ptr())
        return written is not None and not bool(written_elements(tensor, written).all())

    def nans(self, tensors: Sequence[torch.Tensor]) -> list[int]:
        """Return of each tensor how many elements are NaN and lie where nothing wrote."""
        known = [self.written.get(each.untyped_storage().data_ptr()) for each in tensors]
        return [0 if w is None else blank_nans(each, w) for each, w in zip(tensors, known, strict=True)]

    def fill(self, tensor: torch.Tensor) -> None:
        """Say that something other than a kernel wrote to a tensor."""
        written = self.written.get(tensor.untyped_storage().data_ptr())
        if written is not None:
            size = tensor.element_size()
            places = written[: len(written) // size * size].view(-1, size)
            strides = [*(n * size for n in tensor.stride()), 1]
            places.as_strided([*tensor.shape, size], strides, tensor.storage_offset() * size).fill_(True)


def blank_nans(tensor: torch.Tensor, written: torch.Tensor) -> int:
    """Return how many elements of a tensor are NaN and lie where nothing wrote; ``written`` is as in `Region`."""
    if not tensor.is_floating_point():
        return 0
    return int((tensor.isnan() & ~written_elements(tensor, written)).sum())


def written_elements(tensor: torch.Tensor, written: torch.Tensor) -> torch.Tensor:
    """Return of each element of a tensor whether something wrote all its bytes; ``written`` is as in `Region`."""
    size = tensor.element_size()
    known = written[: len(written) // size * size].view(-1, size).all(1)
    return known.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


Load = tuple[str, tuple[str, int, int]]  # a kernel, and the place of one of its loads


Undefined = Callable[[Sequence[int], torch.dtype], torch.Tensor]


class Fills:
    """What loads give in the body of a `with` where their mask leaves places out and they say no `other`.

    So do atomic operations whose results are used, and functions that end without a return.

    Parameters
    ----------
    zero
        The loads that give 0 there; others give NaN, or a large integer.
    other
        What gives something else instead, by shape and dtype: `large`, or one of `ordinary`.

    Attributes
    ----------
    loads
        Those that ran, each with a sentence on it that says what such a place holds.
    integers
        Those of integers.
    drops_nan
        Whether a kernel that ran may take NaN and store numbers.
    ordered
        Whether the order of programs or of threads may give a call several results.
    asked
        Whether memory that nothing wrote may.
    kinds
        What kernels took the elements of each storage for. A number of one type that is NaN need not be of another.
    """

    current: Fills | None = None

    def __init__(self, zero: Collection[Load] = (), other: Undefined | None = None):
        self.zero, self.other = zero, other
        self.loads: dict[Load, str] = {}
        self.kinds: dict[int, set[torch.dtype]] = defaultdict(set)
        self.integers: set[Load] = set()
        self.drops_nan = self.ordered = self.asked = False

    @property
    def open(self) -> bool:
        """Whether there may be other results than those of one run, though they hold no NaN."""
        return self.ordered or self.undefined

    @property
    def undefined(self) -> bool:
        """Whether there may be other results where other numbers stand for what is undefined."""
        drops = self.drops_nan or any(len(kinds) > 1 for kinds in self.kinds.values())
        return self.asked or bool(self.integers) or (bool(self.loads) and drops)

    def __enter__(self) -> Fills:
        self.outer, Fills.current = Fills.current, self
        return self

    def __exit__(self, *exc_info: object) -> None:
        Fills.current = self.outer

    def reaching(self, run: Callable[[], Sequence[torch.Tensor]], results: Sequence[torch.Tensor]) -> list[str]:
        """Return the sentence on the first load of which what its mask leaves out reaches the results, if any does.

        Kernels run again by ``run``, which returns what ``results`` are, until that is found: a load is told when the
        results are others than with zeros in all such places. Where they hold no NaN, no load of floats is looked for.
        """

        def others(zero: Collection[Load]) -> bool:
            with Fills(zero):
                return not all(map(_alike, run(), plain))

        if not self.loads or not (self.integers or any(bool(each.isnan().any()) for each in results)):
            return []
        with Fills(self.loads.keys()):
            plain = run()
        if all(map(_alike, results, plain)):
            return []
        told = (said for load, said in self.loads.items() if others(self.loads.keys() - {load}))
        return [f"{said}, and it reaches the result" for said in (next(told, None),) if said]


def ordinary(seed: int) -> Undefined:
    """Return what gives numbers for undefined places as a GPU's memory holds them: zeros, and some like data."""
    generator = torch.Generator().manual_seed(seed)

    def numbers(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        found = torch.randn(tuple(shape), generator=generator, dtype=torch.float64)
        found = torch.where(torch.rand(tuple(shape), generator=generator) < 0.5, 0.0, found)
        if dtype == torch.bool:
            return found > 0
        return found.to(dtype) if dtype.is_floating_point or dtype.is_complex else (4 * found.abs()).to(dtype)

    return numbers


def large(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Return other numbers for undefined places: large ones of both signs, or the least integer."""
    if not (dtype.is_floating_point or dtype.is_complex):
        return torch.full(tuple(shape), torch.iinfo(dtype).min if dtype != torch.bool else 0, dtype=dtype)
    found = torch.full((math.prod(shape),), torch.finfo(dtype).max / 4, dtype=torch.float64)
    found[1::2] *= -1
    return found.to(dtype).view(tuple(shape))


def _alike(a: torch.Tensor, b: torch.Tensor) -> bool:
    a, b = (x.double() if x.dtype.itemsize == 1 else x for x in (a, b))  # nothing compares numbers of 8 bits
    return bool(((a == b) | (a != a) & (b != b)).all())


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
