"""Count what the programs of a launch do to memory, as a GPU's caches would see it.

The emulator runs programs side by side; here what each did is gone through program by program. Accesses that differ in
their first address alone are one pattern, which is looked at once.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from autograder.isolation.worker.layout import blank
from autograder.kernels.worker.arithmetic import Work, work_of
from autograder.kernels.worker.generated import Generated
from mla_ref.hardware.emulator.access import ACQUIRE_RELEASE, CTA, KINDS, RELAXED, SYSTEM
from mla_ref.hardware.emulator.machine import Kernel, Machine, Touched, Watch
from mla_ref.hardware.emulator.ttir import Block, Op

SECTOR = 32  # bytes that an L2 cache moves at least; four to a line
LINE = 4 * SECTOR
WIDE = 16  # bytes: an asynchronous copy of so many a thread passes by the L1 cache (LDGSTS.BYPASS)
LEAST = 3  # sectors of a line that memory takes as long for as for fewer
WORD = 4  # bytes: a sector of which more than two words are written in part is written in pieces
BINS = 40  # powers of two of reuse distances in bytes; the last bin is for what a program had not touched before
NEW = BINS - 1
FAR = 20  # a distance that no L1 cache spans
PASSING = (3, 7)  # the cache modifiers .cg and .cv in Triton's enumeration: their loads find nothing in the L1 cache
ALIKE = 1.1  # times as many sectors as another program's may take one that stands for it: rows begin within sectors
USUAL = 1.02  # and times as many as they take on average: else a time hangs on which one chance has chosen
AT_ONCE, TOGETHER = 128, 1 << 23  # programs, and bytes that they touch, between which time is short
FEW = 1 / 16  # of the sectors: so few that lack to lines do not matter
MARKS = {"load": ("read",), "store": ("write",), "atomic": ("read", "write")}
WAITS = ("program", "gpu", "system")  # whom a barrier, or the fence of an ordered atomic operation, waits for
TILE = (16, 8)  # rows and columns of what a warp's instruction multiplies at the least
BY_LINE = ("executions", "turns", "runs", "chances")
LONG = 16  # accesses from which on a program is long, and few of its kind are run
LONG_FLOW = 1 << 28  # elements that a kernel's control flow may make
BLOCK_RUN = 1 << 14  # as so many counts a block that it runs, beside its own
SHORT_NAMES = {"f16": "fp16", "bf16": "bf16", "f32": "fp32", "f64": "fp64", "f8E4M3FN": "fp8e4nv", "f8E5M2": "fp8e5"}
IN_PARTS = {1: "x3", 3: "x3", 4: "x6"}  # how many products stand for one, by the precision asked of a float32 tl.dot
LOOPS = ("scf.for", "scf.while")
# What stays where a kernel's text has it, whatever the compiler knows of its arguments
WARPGROUP_DOT = "ttng.warp_group_dot"
PLACED = ("tt.load", "tt.store", "tt.atomic", "tt.dot", "tt.reduce", "tt.scan", "tt.gather", "math.", "scf.")


class Sectors:
    """What was done to the sectors of the storages of a replay, over all its launches."""

    def __init__(self, sizes: Sequence[int]):
        self.sizes = list(sizes)
        self.clock = 0
        self.touched: set[int] = set()
        self.last = [blank(8 * -(-size // SECTOR)).view(np.int64) for size in sizes]
        self.written = [blank(-(-size // SECTOR)).view(bool) for size in sizes]

    def forget(self, number: int) -> None:
        """Note that the host has filled a storage: what it holds is no kernel's."""
        self.written[number][:] = False
        self.touched.discard(number)


class Pattern:
    """Accesses of one program by one operation, up to a shift by whole lines."""

    def __init__(self, offsets: np.ndarray, mask: np.ndarray, figures: tuple[int, ...], distinct: np.ndarray):
        self.offsets, self.mask, self.distinct = offsets, mask, distinct
        self.instructions, self.sectors, self.partial, self.lines, self.runs = self.figures = figures
        self.active = int(mask.sum())
        lines, sectors = np.unique(distinct >> 2, return_counts=True)
        self.in_part = bool((sectors < LEAST).any())
        self.repeats = self.sectors - len(distinct), self.lines - len(lines)  # that several instructions ask for


class Counter(Watch):
    """What the programs of one launch do, weighted by the number of programs that each stands for.

    Parameters
    ----------
    launch
        The recorded launch, with what the compiler said of its accesses, `sites`.
    numbers
        Storages by the address at which they begin.
    weights
        Of programs by number.
    exact
        Whether all programs run.
    """

    def __init__(
        self, sectors: Sectors, launch: dict[str, Any], numbers: dict[int, int], weights: dict[int, int], exact: bool
    ):
        self.memory, self.launch, self.numbers, self.weights, self.exact = sectors, launch, numbers, weights, exact
        self.layouts = _Layouts(launch.get("sites", []))
        self.patterns: dict[tuple, list[Pattern]] = {}
        unit = ("elements", "masked", "bytes", "instructions", "sectors", "partial", "lines", "runs")
        self.totals = {kind: dict.fromkeys(unit, 0) for kind in ("load", "store", "atomic")}
        self.fetched = {"sectors": [0] * BINS, "requests": [0] * BINS}
        self.passing = {"sectors": [0] * BINS, "requests": [0] * BINS}  # of what was fetched before, past the L1 cache
        self.again: dict[int, list[int]] = {}  # sectors fetched before by the same program, by storage
        self.rounds = [0] * BINS
        self.dots: dict[str, int] = {}
        self.in_tiles: dict[str, float] = {}  # what the matrix units do for these
        self.barriers = 0  # of exchanges between threads
        self.met_by = dict.fromkeys(WAITS, 0)  # barriers that the kernel asks for, and fences by reach
        self.work: Work = {}  # arithmetic at the least, by block
        self.arithmetic = [0.0, 0.0, 0.0]  # and of what ran
        self.executions: dict[str, int] = {}
        self.turns: dict[str, int] = {}  # how often bodies of loops ran, by the lines in them
        self.runs: dict[str, int] = {}  # how often lines in loops ran, in a kernel with branches there
        self.chances: dict[str, float] = {}  # and how often if each branch in a loop were taken
        self.sums: dict[tuple[int, str], int] = {}
        self.each: dict[tuple[int, str], dict[int, int]] = {}  # by program
        self.distinct: dict[tuple[int, str], int] = {}
        self.extent: dict[tuple[int, str], list[int]] = {}
        self.seen: dict[tuple[int, str], np.ndarray] = {}
        self.parts: dict[int, dict[tuple[int, str], list[np.ndarray]]] = {}  # by program: new sectors in parts of lines
        self.lacking: dict[tuple[int, str], float] = {}  # sectors that those lack to `LEAST`, taken together
        self.late: dict[tuple[int, str], list[float]] = {}  # and lack more as a program takes them apart, by distance
        self.longest: dict[str, Any] | None = None
        self.unwritten: set[int] = set()
        self.signatures: dict[int, tuple] = {}
        self.traffic: dict[int, list[tuple]] = {}

    # What the emulator says, for all programs of a group

    def begin(self, machine: Machine) -> None:
        self.logs: dict[int, list[tuple]] = {number: [] for number in machine.numbers.tolist()}
        loops = [op for op in machine.kernel.module.ops if op.name in LOOPS]
        inside = [block for op in loops for region in op.regions for block in region]  # of while the condition too
        self.bodies = {id(block): {str(op.key) for op in _inside(block)} for block in inside}
        self.stages = {
            inner.number: op.attrs["tt.num_stages"]
            for op in loops
            if "tt.num_stages" in op.attrs
            for block in op.regions[-1]
            for inner in _inside(block)
        }
        self.gone: dict[tuple[int, int], int] = {}
        self.met: dict[tuple[int, str], int] = {}
        self.work = self.work or work_of(machine.kernel.module)
        self.branched = any(map(_branches, inside))
        self.main = machine.kernel.module.main

    def access(self, machine: Machine, op: Op, mask: torch.Tensor | None, touched: Sequence[Touched]) -> None:
        site, itemsize = self._site(op), _itemsize(op)
        whole = torch.ones(1, dtype=torch.bool) if mask is None else mask
        active = whole.expand(machine.size, *op.ins[0].shape).reshape(machine.size, -1).sum(1).tolist()
        found = self.found(machine, op, active, touched)
        for program, log in self._logs(machine):
            log.append((op, site, itemsize, active[program], found[program]))
        if reach := _reach(op):
            self._meet(machine, reach)

    def _site(self, op: Op) -> dict[str, Any] | None:
        return self.layouts.site(KINDS[op.name], op.key, op.ins[0].shape)

    def found(
        self, machine: Machine, op: Op, active: Sequence[int], touched: Sequence[Touched]
    ) -> list[list[tuple[int, int, Pattern]]]:
        """Return of each program what an access touches: storage, bytes of whole lines before, pattern."""
        full, site, itemsize = (machine.size, *op.ins[0].shape), self._site(op), _itemsize(op)
        found: list[list[tuple[int, int, Pattern]]] = [[] for _ in range(machine.size)]
        for region, index, here in touched:
            index = index.expand(full).reshape(machine.size, -1).numpy()
            here = None if here is None else here.expand(full).reshape(machine.size, -1).numpy()
            number = self.numbers[region.low]
            for program in range(machine.size):
                live = None if here is None else here[program]
                if active[program] and (live is None or live.any()):
                    found[program].append((number, *self._pattern(op, site, number, index[program], live, itemsize)))
        return found

    def block(self, machine: Machine, block: Block) -> None:
        if id(block) in self.work:
            for number in machine.numbers[machine.programs_on()].tolist():
                self.gone[number, id(block)] = self.gone.get((number, id(block)), 0) + 1

    def product(self, machine: Machine, op: Op) -> None:
        flops = 2 * math.prod(op.ins[0].shape) * op.ins[1].shape[-1]
        for _, log in self._logs(machine):
            log.append((op, None, flops, 0, None))

    def _filled_up(self, op: Op) -> float:
        """Return how often matrix units do a product's work: tiles are filled up, and each warp has one."""
        *batch, rows, _ = op.ins[0].shape
        columns = op.ins[1].shape[-1]
        high, wide = -(-rows // TILE[0]), -(-columns // TILE[1])
        tiles = math.prod(batch) * high * wide
        return high * TILE[0] / rows * wide * TILE[1] / columns * max(1.0, self.launch["warps"] / tiles)

    def exchange(self, machine: Machine, op: Op) -> None:
        for _, log in self._logs(machine):
            log.append((op, None, 0, 0, None))

    def barrier(self, machine: Machine, op: Op) -> None:
        self._meet(machine, "program")

    def _meet(self, machine: Machine, whom: str) -> None:
        for number in machine.numbers[machine.programs_on()].tolist():
            self.met[number, whom] = self.met.get((number, whom), 0) + 1

    def _logs(self, machine: Machine) -> Iterator[tuple[int, list[tuple]]]:
        """Yield the places and logs of the programs that take part: others may wait, or have ended."""
        on = machine.programs_on().tolist()
        for place, number in enumerate(machine.numbers.tolist()):
            if on[place]:
                yield place, self.logs[number]

    def end(self, machine: Machine) -> None:
        """Go through what each program of the group did."""
        for number, log in self.logs.items():
            before = (
                list(self.rounds),
                self.barriers,
                dict(self.met_by),
                list(self.arithmetic),
                *(dict(getattr(self, name)) for name in BY_LINE),
            )
            self.number = number
            self._begin(self.weights[number])
            for at, lines in self.bodies.items():
                for line in lines:
                    self.turns[line] = self.turns.get(line, 0) + self.gone.get((number, at), 0) * self.weight
            self._count_arithmetic(number)
            for whom in WAITS:
                self.met_by[whom] += self.met.get((number, whom), 0) * self.weight
            if self.branched:
                for block in self.main.blocks:
                    self._count_runs(number, block, False, 1, 1.0)
            for op, site, size, active, found in log:
                if op.name == "tt.dot":
                    name = SHORT_NAMES.get(op.ins[0].element, op.ins[0].element)
                    name += IN_PARTS.get(op.attrs.get("inputPrecision"), "") if name == "fp32" else ""
                    self.dots[name] = self.dots.get(name, 0) + size * self.weight
                    self.in_tiles[name] = self.in_tiles.get(name, 0) + size * self.weight * self._filled_up(op)
                elif found is None:
                    self.barriers += self.weight
                    if self.launch["warps"] > 1:
                        self._close()
                else:
                    self._access(op, site, size, active, found)
            self._close()
            self._count_lines()
            self.signatures[number], self.traffic[number] = tuple(self.signature), self.passed
            self._compare(*before)

    def _count_arithmetic(self, number: int) -> None:
        for at, parts in self.work.items():
            for home, amounts in parts.items():
                times = min(self.gone.get((number, at), 0), self.gone.get((number, home), 0)) * self.weight
                self.arithmetic = [a + times * b for a, b in zip(self.arithmetic, amounts, strict=True)]

    def _count_runs(self, number: int, block: Block, looped: bool, ran: int, chances: float) -> None:
        """Note how often each line in a loop ran, and how often if each branch in a loop were taken."""
        for op in block.ops:
            if looped:
                line = str(op.key)
                self.runs[line] = self.runs.get(line, 0) + ran * self.weight
                self.chances[line] = self.chances.get(line, 0) + chances * self.weight
            for inner in (each for region in op.regions for each in region):
                if op.name not in (*LOOPS, "scf.if"):
                    self._count_runs(number, inner, looped, ran, chances)
                    continue
                went = self.gone.get((number, id(inner)), 0)
                entered = went if not looped else chances
                if op.name in LOOPS:
                    entered = chances * went / ran if ran else 0
                self._count_runs(number, inner, looped or op.name in LOOPS, went, entered)

    def _compare(
        self,
        rounds: list[int],
        barriers: int,
        met: dict[str, int],
        arithmetic: list[float],
        *by_line: dict[str, float],
    ) -> None:
        """Keep what the program did that was just gone through, if none did more. The totals before it are given."""
        own = {
            "programs": 1,
            "rounds": [(now - then) / self.weight for now, then in zip(self.rounds, rounds, strict=True)],
            "barriers": (self.barriers - barriers) / self.weight,
            "waits": {whom: (now - met[whom]) / self.weight for whom, now in self.met_by.items()},
            "arithmetic": [(now - then) / self.weight for now, then in zip(self.arithmetic, arithmetic, strict=True)],
        }
        for name, before in zip(BY_LINE, by_line, strict=True):
            own[name] = {key: (n - before.get(key, 0)) / self.weight for key, n in getattr(self, name).items()}
        if self.longest is None or _length(own) > _length(self.longest):
            self.longest = own

    # One program

    def _begin(self, weight: int) -> None:
        self.memory.clock += 1
        self.weight, self.started = weight, self.memory.clock
        self.round: dict[Any, int] = {}
        self.level = -1
        self.signature: list[tuple] = []
        self.passed: list[tuple] = []
        self.parts[self.number] = {}
        self.times: dict[tuple[int, str], list[int]] = {}

    def _close(self) -> None:
        """End a round: loads that are under way together."""
        if self.level >= 0:
            self.rounds[self.level] += self.weight
        self.round, self.level = {}, -1

    def _access(self, op: Op, site: Any, itemsize: int, active: int, found: list[tuple[int, int, Pattern]]) -> None:
        kind, weight, line = KINDS[op.name], self.weight, op.key
        if kind == "load":
            self._before_load(op, site)
        total = self.totals[kind]
        total["masked"] += (max(1, math.prod(op.ins[0].shape)) - active) * weight
        key = f"{kind}:{line}"
        self.executions[key] = self.executions.get(key, 0) + self.layouts.per_warp(site, itemsize) * weight
        self.signature.append((op.number, active))
        for number, origin, pattern in found:
            self.passed.append(pattern.figures)
            total["elements"] += pattern.active * weight
            total["bytes"] += pattern.active * itemsize * weight
            for name in ("instructions", "sectors", "partial", "lines", "runs"):
                total[name] += getattr(pattern, name) * weight
            passes = kind == "load" and _passes(op, site)
            self._touch(kind, number, pattern.distinct + origin // SECTOR, passes, pattern.in_part)
            if passes and not _by_box(op, site):
                self._count_fetched(*pattern.repeats, 0, passes)
        if kind != "load":
            self._close()

    def _before_load(self, op: Op, site: Any) -> None:
        """Close the round if the load that is about to run has to wait.

        Loads of one round are under way together. A load in a loop may run again in the same round as often as the
        compiler has unrolled or pipelined the loop; the next time it waits.
        """
        stages = self.stages.get(op.number, self.launch["stages"])
        if self.round.get(op.number, 0) >= self.layouts.depth(site, stages):
            self._close()
        self.round[op.number] = self.round.get(op.number, 0) + 1

    def _pattern(
        self, op: Op, site: Any, number: int, index: np.ndarray, mask: np.ndarray | None, itemsize: int
    ) -> tuple[int, Pattern]:
        """Return the bytes of whole lines before an access, and its pattern."""
        if mask is None:
            mask = np.ones(index.shape, bool)
        origin = int(index[mask.argmax()]) * itemsize
        shift = origin % LINE
        offsets = np.where(mask, index * itemsize - origin, 0) + shift
        known = self.patterns.setdefault((op.number, number, shift), [])
        for pattern in known[-8:]:
            if np.array_equal(pattern.offsets, offsets) and np.array_equal(pattern.mask, mask):
                return origin - shift, pattern
        figures = self.layouts.transactions(site, KINDS[op.name], offsets, mask, itemsize)
        pattern = Pattern(offsets, mask, figures, _sectors(offsets[mask], itemsize))
        known.append(pattern)
        return origin - shift, pattern

    def _touch(self, kind: str, number: int, where: np.ndarray, passes: bool, in_part: bool) -> None:
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
                    again = where[old][bins == each]
                    self._fetch(again, int(each), passes)
                    self.again.setdefault(number, [0] * BINS)[each] += len(again) * self.weight
        self._mark(number, "write" if kind == "store" else "read", where, in_part)
        if kind == "atomic":
            self._mark(number, "write", where, in_part)
        if kind != "load":
            written[where] = True
            self.memory.touched.add(number)
        self.memory.clock += len(where)
        last[where] = self.memory.clock

    def _fetch(self, where: np.ndarray, level: int, passes: bool = False) -> None:
        if len(where):
            self._count_fetched(len(where), len(np.unique(where >> 2)), level, passes)
            self.level = max(self.level, level, FAR if passes else level)

    def _count_fetched(self, sectors: int, requests: int, level: int, passes: bool) -> None:
        for counted in (self.fetched, self.passing) if passes else (self.fetched,):
            counted["sectors"][level] += sectors * self.weight
            counted["requests"][level] += requests * self.weight

    def _mark(self, number: int, mark: str, where: np.ndarray, in_part: bool) -> None:
        key = (number, mark)
        if key not in self.seen:
            self.seen[key] = blank(8 * len(self.memory.last[number])).view(np.int64)
            self.extent[key] = [int(where[0]), int(where[-1])]
            self.sums[key] = self.distinct[key] = 0
            self.each[key] = dict.fromkeys(self.weights, 0)
        seen = self.seen[key]
        before = seen[where]
        mine = int((before < self.started).sum())
        if in_part and mine:
            self.parts[self.number].setdefault(key, []).append(where[before < self.started])
            self.times.setdefault(key, []).append(self.memory.clock)
        self.sums[key] += mine * self.weight
        self.each[key][self.number] += mine
        self.distinct[key] += int((before == 0).sum())
        seen[where] = self.memory.clock
        extent = self.extent[key]
        extent[0], extent[1] = min(extent[0], int(where[0])), max(extent[1], int(where[-1]))

    def _count_lines(self) -> None:
        """Go through the lines that the program has touched in part: what it touches of one at a time is one part."""
        for key, parts in self.parts[self.number].items():
            lines, times = np.concatenate(parts) >> 2, np.repeat(self.times[key], [len(part) for part in parts])
            order = np.argsort(lines, kind="stable")
            lines, times = lines[order], times[order]
            first = np.flatnonzero(np.append(True, np.diff(lines) != 0))
            begin = np.flatnonzero(np.append(True, (np.diff(lines) != 0) | (np.diff(times) != 0)))
            lack = np.maximum(0, LEAST - np.diff(np.append(first, len(lines))))
            self.lacking[key] = self.lacking.get(key, 0) + int(lack.sum()) * self.weight
            if len(begin) == len(first):
                continue
            at = np.searchsorted(begin, first)  # of each line's first part among all
            each = np.maximum(0, LEAST - np.diff(np.append(begin, len(lines))))
            more = np.add.reduceat(each, at) - lack
            gaps = np.diff(times[begin], prepend=times[0]) * SECTOR
            gaps[at] = 0
            bins = np.frexp(np.maximum.reduceat(gaps, at).astype(np.float64))[1]
            late = self.late.setdefault(key, [0] * BINS)
            for level in np.unique(bins[more > 0]):
                late[min(int(level), BINS - 2)] += int(more[bins == level].sum()) * self.weight

    # The launch

    def neighbours(self, grid: Sequence[int], programs: int) -> set[int]:
        """Return the programs that may touch the rest of the lines that others have touched in part.

        They are those near the one that has the most of them, on any axis and in groups of four or eight, if they run
        at about the same time. None are if such lines are few.
        """
        if sum(self.lacking.values()) <= FEW * sum(self.sums.values()):
            return set()
        number, far = self._in_part(), max(AT_ONCE, TOGETHER * programs // (SECTOR * sum(self.sums.values())))
        steps = {a * b for a in (1, grid[0], grid[0] * grid[1]) for n in (1, 2, 3, 4, 8, 12, 16, 24) for b in (-n, n)}
        return {number + step for step in steps if abs(step) <= far and 0 <= number + step < programs}

    def _in_part(self) -> int:
        """Return the program that has touched the most sectors of lines in part."""
        return max(self.weights, key=lambda n: sum(len(part) for parts in self.parts[n].values() for part in parts))

    def alone(self, key: tuple[int, str]) -> float:
        """Return the share of what is lacking that no program nearby touches."""
        if sum(self.lacking.values()) <= FEW * sum(self.sums.values()):
            return 0.0
        own = self.parts[self._in_part()].get(key)
        if own is None:
            return 1.0
        lines, count = np.unique(np.concatenate(own) >> 2, return_counts=True)
        there = np.unique(np.concatenate([part for each in self.parts.values() for part in each.get(key, ())]))
        found = np.searchsorted(there, 4 * lines + 4) - np.searchsorted(there, 4 * lines)
        lacking = np.maximum(0, LEAST - count).sum()
        return float((np.maximum(0, LEAST - found) * count / found).sum() / lacking) if lacking else 0.0

    def long_and_alike(self, first: int, second: int, last: int) -> bool:
        """Return whether three programs are long, and alike but for masks: then they show what all do."""
        one, two, three = (self.signatures[number] for number in (first, second, last))
        if min(map(len, (one, two, three))) <= LONG:
            return False
        same = (one, self.traffic[first]) == (two, self.traffic[second])
        return same and len(three) == len(one) and not self._scattered()

    def _scattered(self) -> bool:
        """Return whether programs share what they touch, and those that ran do not show how far it reaches."""
        extents = {key: high - low + 1 for key, (low, high) in self.extent.items()}
        sizes = {key: len(self.memory.last[key[0]]) for key in extents}
        return any(self.sums[key] > extent and extent < sizes[key] for key, extent in extents.items())

    def summary(self, programs: int) -> dict[str, Any]:
        """Return the launch's figures as plain data."""
        distinct: dict[str, dict[str, int]] = {}
        spans: dict[str, list[int]] = {}
        for (number, mark), (low, high) in sorted(self.extent.items()):
            own = sum(self.each[number, mark].values())
            shared = own > self.distinct[number, mark]  # then they share all that they reach
            most = high - low + 1 if shared else len(self.memory.last[number])
            estimate = min(self.sums[number, mark], most)
            sectors = self.distinct[number, mark] if self.exact else estimate
            distinct.setdefault(str(number), {})[mark] = min(sectors * SECTOR, self.memory.sizes[number])
            before = spans.get(str(number), (low, high))
            spans[str(number)] = [min(low, before[0]), max(high, before[1])]
        again = [0.0] * BINS  # what several programs read again, one of them brings back for all
        for number, levels in self.again.items():
            alone = distinct[str(number)]["read"] / self.sums[number, "read"]
            again = [all_of_it + n * alone for all_of_it, n in zip(again, levels, strict=True)]
        shares: dict[tuple, int] = {}
        for number, signature in self.signatures.items():
            shares[signature] = shares.get(signature, 0) + self.weights[number]
        return {
            "programs": programs,
            "sampled": len(self.signatures),
            "exact": self.exact,
            "alike": max(shares.values(), default=0) * 2 >= programs or len(shares) == 1,
            "access": self.totals,
            "fetched": self.fetched,
            "passing": self.passing,
            "again": again,
            "rounds": self.rounds,
            "dots": self.dots,
            "in_tiles": self.in_tiles,
            "barriers": self.barriers,
            "waits": self.met_by,
            "arithmetic": self.arithmetic,
            "executions": self.executions,
            "turns": self.turns,
            "runs": self.runs,
            "chances": self.chances,
            "longest": self.longest,
            "distinct": distinct,
            "spans": spans,
            "in_part": self._shares_in_part(),
            "unwritten": sorted(self.unwritten),
        }

    def _shares_in_part(self) -> dict[str, dict[str, list[Any]]]:
        """Return by storage and mark what lines touched in part lack, as a share of the sectors that are touched.

        That is the share of all that programs lack, of what no program nearby touches, and, by distance, what each
        program touches apart.
        """
        found: dict[str, dict[str, list[Any]]] = {}
        for key, lacking in sorted(self.lacking.items()):
            late = {str(level): n / self.sums[key] for level, n in enumerate(self.late.get(key, ())) if n}
            share = lacking / self.sums[key]
            if lacking or late:
                found.setdefault(str(key[0]), {})[key[1]] = [share, self.alone(key) * share, late]
        return found


def _inside(block: Block) -> Iterator[Op]:
    """Yield the operations of a block, and those of its branches, but not of loops in it."""
    for op in block.ops:
        yield op
        for region in op.regions if op.name not in LOOPS else ():
            for inner in region:
                yield from _inside(inner)


def _branches(block: Block) -> bool:
    """Return whether a block has a branch, also in loops in it."""
    inner = (each for op in block.ops for region in op.regions for each in region)
    return any(op.name == "scf.if" for op in block.ops) or any(map(_branches, inner))


def _reach(op: Op) -> str | None:
    """Return for whom an atomic operation orders what its program did: the GPU's programs, or the machine's."""
    ordered = op.name.startswith("tt.atomic") and op.attrs.get("sem", ACQUIRE_RELEASE) != RELAXED
    return {CTA: None, SYSTEM: "system"}.get(op.attrs.get("scope"), "gpu") if ordered else None


def _passes(op: Op, site: dict[str, Any] | None) -> bool:
    """Return whether a load finds nothing in the L1 cache: as it asks, or as the compiler makes a copy of it."""
    copied = site is not None and site["async"] and site["width"] >= WIDE
    return bool(op.attrs.get("isVolatile")) or op.attrs.get("cache") in PASSING or copied or _by_box(op, site)


def _by_box(op: Op, site: dict[str, Any] | None) -> bool:
    """Return whether a load is one copy of a tensor descriptor's box, by TMA, and not one of each warp."""
    return op.described and (site is None or site["bases"] is None)


def _length(program: dict[str, Any]) -> float:
    return sum(program["rounds"]) + sum(program["executions"].values()) + sum(program["turns"].values())


def _work(op: Op) -> int:
    """Return the elements of an operation's largest block, of a product the multiplications."""
    elements = max((math.prod(kind.shape) for kind in (*op.ins, *op.outs)), default=1)
    return elements * op.ins[0].shape[-1] if op.name == "tt.dot" else elements


class LongFlow(Exception):
    """A kernel's control flow takes long by itself, or one program does more than any may."""


class Together(Watch):
    """Several watches that see the same."""

    def __init__(self, *watches: Watch):
        for name in ("begin", "end", "access", "block", "product", "exchange", "barrier"):
            calls = [getattr(each, name) for each in watches if getattr(type(each), name) is not getattr(Watch, name)]
            setattr(self, name, functools.partial(_all, calls))


def _all(calls: Sequence[Any], *args: Any) -> None:
    for call in calls:
        call(*args)


class Ran(Watch):
    """Which places of a kernel's text ran, as lines and columns.

    Of programs in Gluon the FLOPs of `warpgroup_mma`, by program, and the bytes that they have TMA fetch, `copied`.
    """

    def __init__(self):
        self.places: set[tuple[int, int]] = set()
        self.flops: dict[int, int] = {}
        self.copied = 0

    def access(self, machine: Machine, op: Op, mask: torch.Tensor | None, touched: Sequence[Touched]) -> None:
        if op.described and op.name == "tt.load":
            self.copied += math.prod(op.ins[0].shape) * _itemsize(op)

    def block(self, machine: Machine, block: Block) -> None:
        self.places.update((op.line, op.place[2]) for op in block.ops if op.name.startswith(PLACED))

    def product(self, machine: Machine, op: Op) -> None:
        if op.name == WARPGROUP_DOT:
            (program,) = machine.numbers.tolist()
            flops = 2 * math.prod(op.ins[0].shape) * op.ins[1].shape[-1]
            self.flops[program] = self.flops.get(program, 0) + flops


class Turns(Watch):
    """How much each program does: the elements of all blocks that it makes. And how many sectors its accesses take.

    Sectors are counted once `counter` is set, which knows how threads lie.
    """

    def __init__(self):
        self.counts: dict[int, int] = {}
        self.sectors: dict[int, int] = {}
        self.counter: Counter | None = None
        self.work: dict[int, int] = {}  # of a kernel's blocks, by identity

    def block(self, machine: Machine, block: Block) -> None:
        work = self.work.get(id(block))
        if work is None:
            work = self.work[id(block)] = 1 + sum(map(_work, block.ops))
        for number in machine.numbers[machine.programs_on()].tolist():
            self.counts[number] = self.counts.get(number, 0) + work

    def access(self, machine: Machine, op: Op, mask: torch.Tensor | None, touched: Sequence[Touched]) -> None:
        if self.counter is not None:
            found = self.counter.found(machine, op, machine.programs_on().tolist(), touched)
            for number, each in zip(machine.numbers.tolist(), found, strict=True):
                self.sectors[number] = self.sectors.get(number, 0) + sum(pattern.sectors for *_, pattern in each)

    def alike(self, shown: int) -> bool:
        """Return whether all programs have done as much, and move hardly more sectors than the one that is shown."""
        most = max(self.sectors.values(), default=0)
        return len(set(self.counts.values())) <= 1 and most <= ALIKE * self._moved(shown)

    def typical(self, shown: int) -> bool:
        """Return whether the one that is shown moves hardly more sectors than programs do on average."""
        return self._moved(shown) * len(self.sectors) <= USUAL * sum(self.sectors.values())

    def _moved(self, shown: int) -> int:
        return sum(sectors for _, sectors, *_ in self.counter.traffic[shown])


class Flow(Watch):
    """How much each of a launch's programs does, ``[programs]``, where a kernel's control flow runs alone.

    Parameters
    ----------
    lean, was
        That kernel, and the whole one's blocks (see `mla_ref.hardware.emulator.control`).
    most
        What a program may do at most. Without it all of them together may not take long.
    """

    def __init__(self, programs: int, lean: Kernel, was: dict[int, Block], most: float = math.inf):
        self.counts = torch.zeros(programs, dtype=torch.int64)
        self.open = torch.ones(programs, dtype=torch.bool)  # of which it is not known yet
        self.on = torch.empty(0, dtype=torch.int64)  # those that ran last
        self.work = {number: 1 + sum(map(_work, block.ops)) for number, block in was.items()}
        self.widest, self.most, self.left = lean.widest, most, LONG_FLOW if most == math.inf else math.inf

    def block(self, machine: Machine, block: Block) -> None:
        self.on = machine.numbers if machine.active is None else machine.numbers[machine.active]
        self.counts[self.on] += self.work[id(block)]
        self.left -= BLOCK_RUN + machine.size * self.widest
        if self.left < 0 or (self.most < math.inf and int(self.counts[self.on].max()) > self.most):
            raise LongFlow

    def end(self, machine: Machine) -> None:
        self.open[machine.numbers] = False


class Lines(Watch):
    """Which sectors other programs than those that were counted touch, for `Counter.alone`."""

    def __init__(self, counter: Counter, programs: Collection[int]):
        self.counter, self.programs = counter, programs

    def access(self, machine: Machine, op: Op, mask: torch.Tensor | None, touched: Sequence[Touched]) -> None:
        on = machine.programs_on().tolist()
        found = self.counter.found(machine, op, on, touched)
        for number, each in zip(machine.numbers.tolist(), found, strict=True):
            parts = self.counter.parts.setdefault(number, {}) if number in self.programs else {}
            for storage, origin, pattern in each:
                for mark in MARKS[KINDS[op.name]]:
                    parts.setdefault((storage, mark), []).append(pattern.distinct + origin // SECTOR)


class Writes(Watch):
    """Which bytes launches write; `bytes` of each storage, each counted once.

    Parameters
    ----------
    covered
        Of each storage bool ``[bytes]``, to be set.
    numbers
        Storages by the address at which they begin.
    """

    def __init__(self, covered: Sequence[np.ndarray], numbers: dict[int, int]):
        self.covered = [torch.from_numpy(each) for each in covered]
        self.numbers = numbers
        self.bytes: dict[int, int] = {}

    def access(self, machine: Machine, op: Op, mask: torch.Tensor | None, touched: Sequence[Touched]) -> None:
        size = _itemsize(op)
        for region, index, here in touched if op.name != "tt.load" else ():
            number = self.numbers[region.low]
            rows, chosen = _rows(self.covered[number], size), _chosen(index, here).unique()
            self.bytes[number] = self.bytes.get(number, 0) + int((~rows[chosen]).sum())
            rows[chosen] = True


class Shares(Writes):
    """How many bytes of results each program writes, `own` by storage and program; of several the first one's.

    Parameters
    ----------
    within
        Gives of a storage which bytes results show, bool ``[bytes]``; None for all.
    """

    def __init__(
        self,
        covered: Sequence[np.ndarray],
        numbers: dict[int, int],
        within: Callable[[int], np.ndarray | None],
    ):
        super().__init__(covered, numbers)
        self.within = within
        self.own: dict[tuple[int, int], int] = {}

    def access(self, machine: Machine, op: Op, mask: torch.Tensor | None, touched: Sequence[Touched]) -> None:
        full, size = (machine.size, *op.ins[0].shape), _itemsize(op)
        for region, index, here in touched if op.name != "tt.load" else ():
            storage = self.numbers[region.low]
            index, here = index.expand(full), None if here is None else here.expand(full)
            rows, shown = _rows(self.covered[storage], size), self.within(storage)
            shown = None if shown is None else _rows(torch.from_numpy(shown), size)
            for place, number in enumerate(machine.numbers.tolist()):
                chosen = _chosen(index[place], None if here is None else here[place]).unique()
                fresh = ~rows[chosen]
                if shown is not None:
                    fresh &= shown[chosen]
                rows[chosen] = True
                self.own[storage, number] = self.own.get((storage, number), 0) + int(fresh.sum())


class Drawn(Watch):
    """Has what a kernel touches drawn before it is touched (see `generated`)."""

    def __init__(self, drawn: dict[int, Generated], numbers: dict[int, int]):
        self.drawn, self.numbers = drawn, numbers

    def access(self, machine: Machine, op: Op, mask: torch.Tensor | None, touched: Sequence[Touched]) -> None:
        for region, index, here in touched:
            if drawn := self.drawn.get(self.numbers[region.low]):
                drawn.touch(_chosen(index, here), _itemsize(op))


def _chosen(index: torch.Tensor, here: torch.Tensor | None) -> torch.Tensor:
    """Return the indices that count."""
    if here is not None:
        index, here = torch.broadcast_tensors(index, here)
        index = index[here]
    return index.reshape(-1)


def _rows(raw: torch.Tensor, size: int) -> torch.Tensor:
    """Return a storage's bytes by elements of a size."""
    return raw[: len(raw) // size * size].view(-1, size)


def _itemsize(op: Op) -> int:
    from mla_ref.hardware.emulator.arithmetic import storage_dtype

    return storage_dtype(op.ins[0].pointee).itemsize


class _Layouts:
    """Which elements of a block each instruction of each warp touches."""

    def __init__(self, sites: list[dict[str, Any]]):
        self.by_line: dict[tuple[str, int], list[dict[str, Any]]] = {}
        for site in sites:
            self.by_line.setdefault((site["kind"], site["line"]), []).append(site)
        self.permutations: dict[tuple, np.ndarray] = {}

    def site(self, kind: str, line: int, shape: tuple[int, ...]) -> dict[str, Any] | None:
        """Return the compiled access for the one on this line, of this shape if there is one."""
        return min(self.by_line.get((kind, line), ()), key=lambda site: site["shape"] != list(shape), default=None)

    def per_warp(self, site: dict[str, Any] | None, itemsize: int) -> int:
        """Return the instructions that a warp issues for one access."""
        if site is None or site["bases"] is None:
            return 1
        registers = 1 << len(site["bases"]["register"])
        return max(1, registers * itemsize // max(site["width"], itemsize))

    def depth(self, site: dict[str, Any] | None, stages: int) -> int:
        """Return how many executions of a load are under way at once: unrolled or pipelined loops."""
        if site is None:
            return 1
        if site["async"]:
            return max(1, stages - 1)
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
        lines = len(_starts(row, flat // (4 * SECTOR)))
        if kind == "load" or itemsize >= WORD:
            again = np.zeros(len(starts), np.int64)
        else:
            again = _pieces(row, flat, itemsize, starts) - 1
            lines += int(again.sum())
        partial = int((used < SECTOR).sum() + again.sum())
        gap = np.ones(len(flat), bool)
        gap[1:] = (np.diff(flat) > itemsize) | (np.diff(row) != 0)
        return instructions, len(starts) + int(again.sum()), partial, lines, int(gap.sum())

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
    once = kind != "load" or site["async"]  # of threads that hold the same element only one writes it

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


def _pieces(row: np.ndarray, flat: np.ndarray, itemsize: int, starts: np.ndarray) -> np.ndarray:
    """Return in how many pieces each sector is written: one for each two words of it that are written in part."""
    words = _starts(row, flat // WORD)
    parts = np.diff(np.append(words, len(flat))) * itemsize < WORD
    before = np.append(0, np.cumsum(parts))
    edges = np.searchsorted(words, np.append(starts, len(flat)))
    return np.maximum(1, -(-np.diff(before[edges]) // 2))


def _sectors(addresses: np.ndarray, itemsize: int) -> np.ndarray:
    first = addresses // SECTOR
    last = (addresses + itemsize - 1) // SECTOR
    return np.unique(first) if (first == last).all() else np.unique(np.concatenate([first, last]))
