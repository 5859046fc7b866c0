"""Replay recorded launches under Triton's interpreter, with every access to memory counted and its address checked.

The process holds the kernel program and nothing else of the student's. Storages that are neither inputs nor made on the
host start as NaN. A launch of many programs may be sampled: the programs at the ends of each axis of the grid stand for
themselves, those between for their share, so that sums are exact where programs between the ends are alike.
"""

from __future__ import annotations

import hashlib
import itertools
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from autograder.isolation.worker import running
from autograder.isolation.worker.layout import blank, window
from autograder.kernels.worker.recording import NAMED
from mla_ref.hardware.interpreter import patched

SECTOR = 32  # bytes that an L2 cache moves at least; four to a line
BINS = 40  # powers of two of reuse distances in bytes; the last bin is for what a program had not touched before
NEW = BINS - 1
LONG = 16  # accesses from which on a program is long, and few of its kind are run
GUARD = 1 << 12
KERNELS = running.CELL.format("kernels")


class OutOfBounds(RuntimeError):
    """A kernel touched what no argument holds."""


class Memory:
    """The storages of one replay, and what was done to their sectors."""

    def __init__(self, storages: list[dict[str, Any]], lazy: bool, watched: list[int] | None = None):
        self.storages = storages
        self.covered = {number: blank(storages[number]["bytes"]).view(bool) for number in watched or []}
        self.clock = 0
        self.touched: set[int] = set()
        self.buffers: list[np.ndarray] = []
        self.bases: list[int] = []
        self.last: list[np.ndarray] = []
        self.written: list[np.ndarray] = []
        for storage in storages:
            size = storage["bytes"]
            buffer = blank(size + 2 * GUARD)
            start = GUARD - buffer.ctypes.data % GUARD
            self.buffers.append(buffer[start : start + size])
            self.bases.append(buffer.ctypes.data + start)
            if "content" in storage:
                self.fill(len(self.buffers) - 1, storage["content"])
            elif not lazy:
                self.buffers[-1][:] = 0xFF  # NaN in every floating type
            sectors = -(-size // SECTOR)
            self.last.append(blank(8 * sectors).view(np.int64))
            self.written.append(blank(sectors).view(bool))

    def fill(self, number: int, content: torch.Tensor) -> None:
        """Put what the host left into a storage."""
        held = self._held(number, torch.from_numpy(self.buffers[number]))
        held.copy_(content.view(held.shape))
        if number < len(self.written):  # no kernel's any more
            self.written[number][:] = False
            self.touched.discard(number)

    def content(self, number: int) -> torch.Tensor:
        """Return the bytes of a storage; of a gapped tensor's those of its elements."""
        return self._held(number, torch.from_numpy(self.buffers[number])).flatten().clone()

    def coverage(self, number: int) -> torch.Tensor:
        """Return which of these bytes kernels wrote."""
        return self._held(number, torch.from_numpy(self.covered[number])).flatten().clone()

    def _held(self, number: int, raw: torch.Tensor) -> torch.Tensor:
        elements = self.storages[number].get("elements")
        return window(raw, *elements) if elements else raw

    def find(self, low: int, high: int) -> int | None:
        """Return the storage that holds the bytes from `low` up to `high`, or None."""
        for number, base in enumerate(self.bases):
            if base <= low and high <= base + len(self.buffers[number]):
                return number
        return None


class Counter:
    """What the programs of one launch do, weighted by the number of programs that each stands for."""

    def __init__(self, memory: Memory, launch: dict[str, Any], sites: list[dict[str, Any]], exact: bool):
        self.memory, self.launch, self.exact = memory, launch, exact
        self.weight = 1
        self.layouts = _Layouts(sites)
        self.cache: dict[tuple, tuple] = {}
        unit = ("elements", "masked", "bytes", "instructions", "sectors", "partial", "lines", "runs")
        self.totals = {kind: dict.fromkeys(unit, 0) for kind in ("load", "store", "atomic")}
        self.fetched = {"sectors": [0] * BINS, "requests": [0] * BINS}
        self.rounds = [0] * BINS
        self.dots: dict[str, int] = {}
        self.barriers = 0
        self.executions: dict[str, int] = {}
        self.sums: dict[tuple[int, str], int] = {}
        self.distinct: dict[tuple[int, str], int] = {}
        self.extent: dict[tuple[int, str], list[int]] = {}
        self.seen: dict[tuple[int, str], np.ndarray] = {}
        self.unwritten: set[int] = set()
        self.ran: set[tuple[int, int]] = set()

    # One program

    def begin(self, weight: int) -> None:
        """Start a program that stands for `weight` programs."""
        self.memory.clock += 1
        self.weight, self.started = weight, self.memory.clock
        self.round: dict[Any, int] = {}
        self.level = -1
        self.count = 0
        self.signature: list[tuple] = []
        self.traffic: list[tuple] = []

    def end(self) -> None:
        """Close the program's last round."""
        self._close()

    def _close(self) -> None:
        if self.level >= 0:
            self.rounds[self.level] += self.weight
        self.round, self.level = {}, -1

    def barrier(self) -> None:
        """Note a reduction, a scan or a dot: where warps exchange data, no later load starts before it."""
        self.barriers += self.weight
        if self.launch["warps"] > 1:
            self._close()

    def dot(self, dtype: str, flops: int) -> None:
        """Note a matrix product."""
        self.dots[dtype] = self.dots.get(dtype, 0) + flops * self.weight

    def access(self, kind: str, handle: Any, mask: np.ndarray, itemsize: int) -> None:
        """Count one access, and refuse it where an address lies in no storage."""
        addresses = np.ascontiguousarray(
            np.broadcast_to(handle.data, np.broadcast_shapes(handle.data.shape, mask.shape))
        )
        mask = np.ascontiguousarray(np.broadcast_to(mask, addresses.shape)).reshape(-1)
        shape, addresses = addresses.shape, addresses.reshape(-1).astype(np.int64)
        line, order = _caller()
        self.count += 1
        active = int(mask.sum())
        total = self.totals[kind]
        total["masked"] += (addresses.size - active) * self.weight
        site = self.layouts.site(kind, line, order, shape)
        key = f"{kind}:{line}"
        per_warp = self.layouts.per_warp(site, itemsize)
        self.executions[key] = self.executions.get(key, 0) + per_warp * self.weight
        self.signature.append((kind, line, order, active))
        if not active:
            return
        live = addresses if active == addresses.size else addresses[mask]
        low, high = int(live.min()), int(live.max()) + itemsize
        number = self.memory.find(low, high)
        groups = [(number, mask)] if number is not None else self._split(kind, handle, addresses, mask, itemsize)
        for number, part in groups:
            self._count(kind, site, number, addresses, part, itemsize)
            if kind != "load" and number in self.memory.covered:
                first = addresses[part] - self.memory.bases[number]
                for byte in range(itemsize):
                    self.memory.covered[number][first + byte] = True

    def _split(self, kind, handle, addresses, mask, itemsize) -> list[tuple[int, np.ndarray]]:
        found, left = [], mask.copy()
        for number, base in enumerate(self.memory.bases):
            size = len(self.memory.buffers[number])
            here = left & (addresses >= base) & (addresses + itemsize <= base + size)
            if here.any():
                found.append((number, here))
                left &= ~here
        if left.any():
            raise OutOfBounds(self._outside(kind, handle, int(addresses[left][0]), itemsize))
        return found

    def _outside(self, kind: str, handle: Any, address: int, itemsize: int) -> str:
        verb = {"load": "reads", "store": "writes", "atomic": "updates"}[kind]
        name = getattr(handle, "origin", None)
        views = {n: a["tensor"] for n, a in self.launch["args"].items() if "tensor" in a}
        if name not in views:
            return f"{self.launch['kernel']} {verb} an address that belongs to no argument"
        view = views[name]
        index = (address - self.memory.bases[view["storage"]]) // itemsize - view["offset"]
        size = (self.memory.storages[view["storage"]]["bytes"]) // itemsize - view["offset"]
        shape = "x".join(map(str, view["shape"]))
        return (
            f"{self.launch['kernel']} {verb} element {index} of {name}, which holds {size} (shape {shape}): "
            f"is the mask missing, or an offset wrong?"
        )

    def _count(self, kind: str, site: Any, number: int, addresses: np.ndarray, mask: np.ndarray, itemsize: int) -> None:
        base = self.memory.bases[number]
        origin = int(addresses[mask.argmax()]) - base
        shift = origin % (4 * SECTOR)
        moved = addresses - (base + origin) + shift
        key = (
            kind,
            id(site),
            number,
            shift,
            hashlib.blake2b(moved.tobytes() + mask.tobytes(), digest_size=16).digest(),
        )
        if key not in self.cache:
            self.cache[key] = (
                *self.layouts.transactions(site, kind, moved, mask, itemsize),
                _sectors(moved[mask], itemsize),
            )
        instructions, sectors, partial, lines, runs, distinct = self.cache[key]
        self.traffic.append(self.cache[key][:-1])
        total, weight, active = self.totals[kind], self.weight, int(mask.sum())
        total["elements"] += active * weight
        total["bytes"] += active * itemsize * weight
        for name, value in zip(
            ("instructions", "sectors", "partial", "lines", "runs"),
            (instructions, sectors, partial, lines, runs),
            strict=True,
        ):
            total[name] += value * weight
        where = distinct + (origin - shift) // SECTOR
        self._touch(kind, number, where)

    def _touch(self, kind: str, number: int, where: np.ndarray) -> None:
        last, written = self.memory.last[number], self.memory.written[number]
        if kind != "store":
            if not (written[where].all() if self.exact else number in self.memory.touched):
                self.unwritten.add(number)
            before = last[where]
            old = before >= self.started
            fresh = where[~old]
            self._fetch(fresh, NEW)
            if old.any():
                distance = (self.memory.clock - before[old]) * SECTOR
                bins = np.minimum(np.frexp(distance.astype(np.float64))[1], BINS - 2)
                for each in np.unique(bins):
                    self._fetch(where[old][bins == each], int(each))
        mark = "write" if kind == "store" else "read"
        self._mark(number, mark, where)
        if kind == "atomic":
            self._mark(number, "write", where)
        if kind != "load":
            written[where] = True
            self.memory.touched.add(number)
        self.memory.clock += len(where)
        last[where] = self.memory.clock

    def _fetch(self, where: np.ndarray, level: int) -> None:
        if len(where):
            self.fetched["sectors"][level] += len(where) * self.weight
            self.fetched["requests"][level] += len(np.unique(where >> 2)) * self.weight
            self.level = max(self.level, level)

    def _mark(self, number: int, mark: str, where: np.ndarray) -> None:
        key = (number, mark)
        if key not in self.seen:
            self.seen[key] = blank(8 * len(self.memory.last[number])).view(np.int64)
            self.extent[key] = [int(where[0]), int(where[-1])]
            self.sums[key] = self.distinct[key] = 0
        seen = self.seen[key]
        before = seen[where]
        self.sums[key] += int((before < self.started).sum()) * self.weight
        self.distinct[key] += int((before == 0).sum())
        seen[where] = self.memory.clock
        extent = self.extent[key]
        extent[0], extent[1] = min(extent[0], int(where[0])), max(extent[1], int(where[-1]))

    def before_load(self, line: int, order: int, shape: tuple[int, ...]) -> None:
        """Close the round if the load that is about to run has to wait.

        Loads of one round are under way together. A line of a loop may load again in the same round as often as the
        compiler has unrolled or pipelined the loop; the next time it waits.
        """
        site = self.layouts.site("load", line, order, shape)
        place = (line, order)
        if self.round.get(place, 0) >= self.layouts.depth(site, self.launch):
            self._close()
        self.round[place] = self.round.get(place, 0) + 1

    # The launch

    def scattered(self) -> bool:
        """Return whether programs share what they touch, and those that ran do not show how far it reaches."""
        extents = {key: high - low + 1 for key, (low, high) in self.extent.items()}
        sizes = {key: len(self.memory.last[key[0]]) for key in extents}
        return any(self.sums[key] > extent and extent < sizes[key] for key, extent in extents.items())

    def summary(self, alike: bool, sampled: int, programs: int) -> dict[str, Any]:
        """Return the launch's figures as plain data."""
        distinct: dict[str, dict[str, int]] = {}
        spans: dict[str, list[int]] = {}
        for (number, mark), (low, high) in sorted(self.extent.items()):
            estimate = min(self.sums[number, mark], high - low + 1)
            sectors = self.distinct[number, mark] if self.exact else estimate
            distinct.setdefault(str(number), {})[mark] = min(sectors * SECTOR, self.memory.storages[number]["bytes"])
            before = spans.get(str(number), (low, high))
            spans[str(number)] = [min(low, before[0]), max(high, before[1])]
        return {
            "programs": programs,
            "sampled": sampled,
            "exact": self.exact,
            "alike": alike,
            "access": self.totals,
            "fetched": self.fetched,
            "rounds": self.rounds,
            "dots": self.dots,
            "barriers": self.barriers,
            "executions": self.executions,
            "distinct": distinct,
            "spans": spans,
            "unwritten": sorted(self.unwritten),
            "ran": [list(place) for place in sorted(self.ran)],
        }


class _Layouts:
    """Which elements of a block each instruction of each warp touches."""

    def __init__(self, sites: list[dict[str, Any]]):
        self.by_line: dict[tuple[str, int], list[dict[str, Any]]] = {}
        for site in sites:
            self.by_line.setdefault((site["kind"], site["line"]), []).append(site)
        self.orders: dict[tuple[str, int], list[int]] = {}
        self.permutations: dict[int, Any] = {}

    def site(self, kind: str, line: int, order: int, shape: tuple[int, ...]) -> dict[str, Any] | None:
        """Return the compiled access for the one at this place: by rank on its line."""
        sites = self.by_line.get((kind, line))
        if not sites:
            return None
        orders = self.orders.setdefault((kind, line), [])
        if order not in orders:
            orders.append(order)
            orders.sort()
        match = [s for s in sites if s["shape"] == [n for n in shape if shape != (1,)]] or sites
        return match[min(orders.index(order), len(match) - 1)]

    def per_warp(self, site: dict[str, Any] | None, itemsize: int) -> int:
        """Return the instructions that a warp issues for one access."""
        if site is None or site["bases"] is None:
            return 1
        registers = 1 << len(site["bases"]["register"])
        return max(1, registers * itemsize // max(site["width"], itemsize))

    def depth(self, site: dict[str, Any] | None, launch: dict[str, Any]) -> int:
        """Return how many executions of a load are under way at once: unrolled or pipelined loops."""
        if site is None:
            return 1
        if site["async"]:
            return max(1, launch["stages"] - 1)
        return max(1, site["unroll"])

    def transactions(
        self, site: dict[str, Any] | None, kind: str, addresses: np.ndarray, mask: np.ndarray, itemsize: int
    ) -> tuple[int, int, int, int, int]:
        """Return warp instructions, sectors and lines they touch, sectors they touch in part, and runs of bytes."""
        index = self._permutation(site, kind, addresses.size, itemsize)
        live = mask[index]
        at = np.where(live, addresses[index], np.iinfo(np.int64).max)
        at.sort(axis=1)
        live = at != np.iinfo(np.int64).max
        instructions = int(live.any(axis=1).sum())
        row = np.broadcast_to(np.arange(len(at))[:, None], at.shape)[live]
        flat = at[live]
        sector = flat // SECTOR
        starts = _starts(row, sector)
        used = np.diff(np.append(starts, len(flat))) * itemsize
        repeats = np.zeros(len(flat), bool)
        repeats[1:] = (flat[1:] == flat[:-1]) & (row[1:] == row[:-1])
        used = used - np.add.reduceat(repeats * itemsize, starts) if len(starts) else used
        partial = int((used < SECTOR).sum())
        lines = len(_starts(row, flat // (4 * SECTOR)))
        gap = np.ones(len(flat), bool)
        gap[1:] = (np.diff(flat) > itemsize) | (np.diff(row) != 0)
        return instructions, len(starts), partial, lines, int(gap.sum())

    def _permutation(self, site: dict[str, Any] | None, kind: str, elements: int, itemsize: int) -> np.ndarray:
        key = (id(site), kind, elements, itemsize)
        if key not in self.permutations:
            self.permutations[key] = _permutation(site, kind, elements, itemsize)
        return self.permutations[key]


def _permutation(site: dict[str, Any] | None, kind: str, elements: int, itemsize: int) -> np.ndarray:
    """Return, for each instruction of each warp, the elements that its lanes touch. Without a layout: in order."""
    if site is None or site["bases"] is None or int(np.prod(site["shape"])) != elements:
        width = 32 * max(1, (site["width"] if site else 0) // itemsize)
        return (
            np.arange(elements).reshape(-1, min(width, elements))
            if elements % width == 0
            else np.arange(elements)[None]
        )
    bases, shape = site["bases"], site["shape"]
    strides = [int(np.prod(shape[d + 1 :])) for d in range(len(shape))]
    once = kind != "load"  # of threads that hold the same element only one writes it

    def span(unit: str) -> np.ndarray:
        positions = np.zeros((1, len(shape)), np.int64)
        for base in bases[unit]:
            if any(base) or not once:
                positions = np.concatenate([positions, positions ^ np.array(base)])
        return positions

    register, lane, warp = span("register"), span("lane"), span("warp")
    vector = min(len(register), max(1, site["width"] // itemsize))
    register = register.reshape(-1, vector, len(shape))
    position = warp[:, None, None, None, :] ^ register[None, :, None, :, :] ^ lane[None, None, :, None, :]
    flat = (position * np.array(strides)).sum(-1)
    return flat.reshape(flat.shape[0] * flat.shape[1], -1)


def _starts(row: np.ndarray, value: np.ndarray) -> np.ndarray:
    if not len(value):
        return np.zeros(0, np.int64)
    return np.flatnonzero(np.append(True, (np.diff(value) != 0) | (np.diff(row) != 0)))


def _sectors(addresses: np.ndarray, itemsize: int) -> np.ndarray:
    first = addresses // SECTOR
    last = (addresses + itemsize - 1) // SECTOR
    return np.unique(first) if (first == last).all() else np.unique(np.concatenate([first, last]))


def _caller() -> tuple[int, int]:
    """Return line and instruction of the innermost frame in the kernel program."""
    frame = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename != KERNELS:
        frame = frame.f_back
    return (frame.f_lineno, frame.f_lasti) if frame else (0, 0)


# Programs to run


def sample(grid: list[int], per_axis: int) -> Iterator[tuple[tuple[int, int, int], int]]:
    """Return program ids, each with the number of programs that it stands for.

    On an axis longer than `per_axis`, the first and the last stand for themselves and the others for equal shares.
    """
    axes = []
    for size in grid:
        if size <= per_axis:
            axes.append([(n, 1) for n in range(size)])
            continue
        inner = per_axis - 2
        bounds = [1 + (size - 2) * n // inner for n in range(inner + 1)]
        middle = [((a + b) // 2, b - a) for a, b in itertools.pairwise(bounds)]
        axes.append([(0, 1), *middle, (size - 1, 1)])
    for (x, a), (y, b), (z, c) in itertools.product(*axes):
        yield (x, y, z), a * b * c


def _sizes(grid: list[int], limit: int | None) -> int:
    """Return the most programs per axis, so that the sample stays under the limit."""
    long = [n for n in grid if n > 1]
    if limit is None or int(np.prod([float(n) for n in grid])) <= limit:
        return max(grid)
    per_axis = 3
    while per_axis < 64 and int(np.prod([min(n, per_axis + 1) for n in long])) <= limit:
        per_axis += 1
    return per_axis


# The replay


def replay(request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Run each of `request["replays"]` on storages of its own; yield what the launches did, and final bytes asked for.

    An access out of bounds gives `{"error": OutOfBounds}` with a sentence that names kernel, argument and element.
    """
    namespace: dict[str, Any] = {"__name__": "kernels"}
    running.run_cell("kernels", request["source"], namespace)
    with patched():
        for each in request["replays"]:
            try:
                yield _replay(namespace, each)
            except Exception as error:
                yield {"error": error}


def _replay(namespace: dict[str, Any], request: dict[str, Any]) -> dict[str, Any]:
    limit = request.get("sample")
    memory = Memory(request["storages"], limit is not None, request.get("return"))
    results = []
    for launch in request["launches"]:
        for number, content in launch.get("content", []):
            memory.fill(number, content)
        results.append(_launch(namespace[launch["kernel"]], launch, memory, limit, request.get("trace", False)))
    content = {str(n): memory.content(n) for n in memory.covered}
    covered = {str(n): memory.coverage(n) for n in memory.covered}
    return {"launches": results, "content": content, "covered": covered}


def _launch(function: Any, launch: dict[str, Any], memory: Memory, limit: int | None, trace: bool) -> dict[str, Any]:
    grid = launch["grid"]
    programs = grid[0] * grid[1] * grid[2]
    per_axis = _sizes(grid, limit)
    exact = programs <= per_axis or all(n <= per_axis for n in grid)
    arguments = {name: _value(arg, name, memory) for name, arg in launch["args"].items()}

    def run(chosen: list[tuple[tuple[int, int, int], int]], exact: bool, few: bool) -> dict[str, Any] | None:
        """Run programs; return their counts. With `few`, None unless they are long and alike but for masks."""
        counter = Counter(memory, launch, launch.get("sites", []), exact)
        signatures: list[tuple] = []
        traffic: list[list[tuple]] = []
        with _watching(counter, trace) as builder:
            for program, weight in chosen:
                counter.begin(weight)
                builder.real_program, builder.real_grid = program, tuple(grid)
                function[(1,)](**arguments)
                counter.end()
                signatures.append(tuple(counter.signature))
                traffic.append(counter.traffic)
                if few and counter.count <= LONG:
                    return None
        same = few and (signatures[0], traffic[0]) == (signatures[1], traffic[1])
        if few and (not same or len(signatures[2]) != len(signatures[0]) or counter.scattered()):
            return None
        shares: dict[tuple, int] = {}
        for signature, (_, weight) in zip(signatures, chosen, strict=True):
            shares[signature] = shares.get(signature, 0) + weight
        alike = max(shares.values(), default=0) * 2 >= programs or len(shares) == 1
        return counter.summary(alike, len(chosen), programs)

    chosen = list(sample(grid, per_axis))
    if limit is not None and len(chosen) > 3:
        middle, last = chosen[len(chosen) // 2][0], tuple(n - 1 for n in grid)
        if found := run([chosen[0], (middle, programs - 2), (last, 1)], False, True):
            return found
    return run(chosen, exact, False)


def _value(arg: dict[str, Any], name: str, memory: Memory) -> Any:
    import triton.language as tl
    from triton.runtime.interpreter import TensorHandle

    if type(arg.get("value")) is int and arg["value"] == 1:
        return tl.constexpr(1)  # a constant to the compiler
    if "tensor" not in arg:
        return tl.core.dtype(arg["dtype"]) if "dtype" in arg else arg.get("constant", arg.get("value"))
    view = arg["tensor"]
    address = memory.bases[view["storage"]] + view["offset"] * NAMED[view["dtype"]].itemsize
    kind = tl.str_to_ty("*" + view["dtype"], None)
    handle = TensorHandle(np.array([address], dtype=np.uint64), kind)
    handle.origin = name
    return tl.tensor(handle, kind)


class _watching:
    """Wrap the interpreter's builder for the length of a launch."""

    POINTERS = (
        "create_addptr create_splat create_broadcast create_expand_dims create_reshape create_trans create_bitcast"
    )

    def __init__(self, counter: Counter, trace: bool):
        from triton.runtime import interpreter

        self.interpreter_builder = interpreter.interpreter_builder
        self.builder = interpreter.InterpreterBuilder
        self.reductions = (interpreter.ReduceOps, interpreter.ScanOps)
        self.counter, self.trace = counter, trace
        self.saved: list[tuple[Any, str, Any]] = []

    def __enter__(self) -> Any:
        counter, builder = self.counter, self.builder
        for name in self.POINTERS.split():
            self._wrap(builder, name, self._keep_origin)

        def item(pointers: Any) -> int:
            return max(1, pointers.get_element_ty().primitive_bitwidth // 8)

        def load(original):
            def wrapped(self, ptrs, mask, *rest, **named):
                line, order = _caller()
                counter.before_load(line, order, ptrs.data.shape)
                counter.access("load", ptrs, mask.data, item(ptrs))
                return original(self, ptrs, mask, *rest, **named)

            return wrapped

        def store(original):
            def wrapped(self, ptrs, value, mask, *rest, **named):
                counter.access("store", ptrs, mask.data, item(ptrs))
                counter._close()
                return original(self, ptrs, value, mask, *rest, **named)

            return wrapped

        def atomic(original):
            def wrapped(self, op, ptr, value, mask, *rest, **named):
                counter.access("atomic", ptr, mask.data, item(ptr))
                counter._close()
                return original(self, op, ptr, value, mask, *rest, **named)

            return wrapped

        def exchange(original):
            def wrapped(self, ptr, *rest, **named):
                counter.access("atomic", ptr, np.ones(ptr.data.shape, bool), item(ptr))
                counter._close()
                return original(self, ptr, *rest, **named)

            return wrapped

        def dot(original):
            def wrapped(self, a, b, d, precision, *rest, **named):
                name = str(a.dtype.scalar)
                batch, (m, k), n = int(np.prod(a.data.shape[:-2])), a.data.shape[-2:], b.data.shape[-1]
                counter.dot(name, 2 * batch * m * n * k)
                return original(self, a, b, d, precision, *rest, **named)

            return wrapped

        def reduction(original):
            def wrapped(self, *args, **named):
                counter.barrier()
                return original(self, *args, **named)

            return wrapped

        self._wrap(builder, "create_masked_load", load)
        self._wrap(builder, "create_masked_store", store)
        self._wrap(builder, "create_atomic_rmw", atomic)
        self._wrap(builder, "create_atomic_cas", exchange)
        self._wrap(builder, "create_dot", dot)
        self._wrap(
            builder, "set_grid_idx", lambda original: lambda self, x, y, z: setattr(self, "grid_idx", self.real_program)
        )
        self._wrap(
            builder, "set_grid_dim", lambda original: lambda self, x, y, z: setattr(self, "grid_dim", self.real_grid)
        )
        for operations in self.reductions:
            self._wrap(operations, "apply_impl", reduction)
        if self.trace:
            for name in dir(builder):
                if name.startswith("create_"):
                    self._wrap(builder, name, self._note_place)
        return self.interpreter_builder

    def __exit__(self, *exc_info: object) -> None:
        for owner, name, original in reversed(self.saved):
            setattr(owner, name, original)

    def _wrap(self, owner: Any, name: str, make: Any) -> None:
        original = getattr(owner, name, None)
        if original is not None:
            self.saved.append((owner, name, original))
            setattr(owner, name, make(original))

    def _note_place(self, original):
        def wrapped(*args, **named):
            self.counter.ran.add(_caller())
            return original(*args, **named)

        return wrapped

    @staticmethod
    def _keep_origin(original):
        def wrapped(self, *args, **named):
            out = original(self, *args, **named)
            origin = next((a.origin for a in args if hasattr(a, "origin")), None)
            if origin is not None and hasattr(out, "data"):
                out.origin = origin
            return out

        return wrapped
