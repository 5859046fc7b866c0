"""Predict the time of launches on a named GPU from what a replay counted and a compiler reported.

A launch takes the longest of several times, softened where two of them compete: bytes that must come from DRAM or go
there, requests to the L2 cache, instructions, matrix products, blocks to hand out, and the chain of waits that a block
cannot shorten, once for every round of blocks that the GPU holds at a time. Before the first bytes come and behind the
last there is nothing to do but wait: a share of that chain comes on top. All of it is arithmetic on integers and
constants: the same input gives the same bits.

What it cannot see: in which order programs run, so that what several of them read is taken to come from DRAM once;
conflicts between the banks of shared memory, many atomics on one address, the host's own time between launches, and
clocks that sink under load. `benchmarks/model_validation.json` has the figures: of a float32 `tl.dot` without matrix
units, of which an operand is transposed, up to 3.2 times what is predicted. By the addresses in its PTX, each load of
that operand, or of a tall one as in `[128, 64] * [64, 1]`, takes as long as up to eight without conflicts.
"""

from __future__ import annotations

import bisect
import itertools
import json
import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry

from autograder.kernels.worker import hosting
from autograder.kernels.worker.compiling import MEASURES
from autograder.kernels.worker.hosting import control, places_written, read_by, views_in, written_by
from autograder.kernels.worker.recording import NAMED
from mla_ref.hardware.devices import Device, HardwareError, hardware_file

SECTOR = 32
WIDE = 16  # bytes that a thread moves with one instruction
SPECIAL = 16  # exponentials, roots, sines and their like that a multiprocessor computes in a cycle
# Measured on an H200, benchmarks/model_corners_h200.json: cycles that a barrier takes for each warp; seconds that a
# tensor descriptor, and an ordered atomic operation by its reach, take one after the other, and of several programs on
# one multiprocessor; and elements that a multiprocessor makes in a cycle in a pass of torch that reads with long
# strides, adds up or sorts.
BARRIER = 2.0
DESCRIPTOR, DESCRIPTORS = 0.38e-6, 0.19e-6
# Measured on an H100, benchmarks/model_corners_h100.json: bytes that a multiprocessor writes into the L2 in a cycle,
# and seconds that it takes for a box of a tensor descriptor.
WRITTEN, BOX = 17.5, 45e-9
FENCES = {"gpu": (0.5e-6, 12e-9), "system": (0.8e-6, 29e-9)}
TURNED = 0.57
PACES = {
    **dict.fromkeys(("cumsum", "cumprod", "cummax", "cummin", "logcumsumexp"), 0.3),
    **dict.fromkeys(("sort", "argsort", "unique2"), 0.06),
    # These on an H100, benchmarks/model_corners_h100.json
    **dict.fromkeys(("searchsorted", "bucketize", "topk"), 0.08),
    **dict(bincount=0.11, unique_consecutive=0.16, isin=0.005),
}
ASKED = ("searchsorted", "bucketize")  # whose time goes by what is looked for, not by where
LOOK_UPS = ("index", "index_select", "take", "gather", "embedding")
ONE_BY_ONE = ("flip", "roll")  # that torch moves by elements, as what it converts
# What takes as long as its bytes, or as PACES say; so does what is pointwise, and products have their FLOPs
PASSES = {*hosting.MOVING, *hosting.ON_INTEGERS, *hosting.VECTORS, *hosting.REDUCING, *hosting.DRAWING}
NEW = 39  # the bin of what a program had not touched before: see `kernels.worker.replaying`
# Measured on an H100, benchmarks/model_corners_h100.json: the share of the time for what a line lacks that is lost
# though other programs fetch it at about the same time. That time is the whole where they do not: see
# `kernels.worker.counting.LEAST`.
NEARBY = 0.15
FITTED = Path(__file__).parent / "cost_constants.json"


@dataclass(frozen=True)
class Constants:
    """What no data sheet says, fitted to kernels measured on an H100. Times in seconds, rates relative to the device.

    Attributes
    ----------
    dram
        Share of the data sheet's bandwidth that a long stream reaches.
    sector, request
        Time of the L2 for one sector of 32 bytes, and for one request (up to four sectors of a line), as a multiple of
        the time that 32 bytes take at the L2's bandwidth.
    partial
        Further such time for a sector written in part, of at most two in a request.
    piece
        Cycles that such a sector takes of the load and store units.
    atomic
        The same for a sector of an atomic operation.
    dram_wait, l2_wait, l1_wait
        From a load to its value, by where the value is; with the arithmetic that hangs on it.
    start
        From a block's first instruction to its first load, and from its last store to the next block.
    exchange
        One exchange between the warps of a block, for each doubling of their number.
    step
        Cycles from one instruction of a warp to its next.
    product, shared
        Cycles more from one instruction of the matrix units to its next, and from one access to shared memory.
    issue
        Share of the issue slots that a busy multiprocessor uses.
    tensor
        Share of the data sheet's matrix rate.
    host
        Elements that a multiprocessor makes in a cycle in a pass of torch that writes more or less than it reads: it
        converts or repeats them one by one.
    host_product
        Share of what a kernel can get from DRAM that a matrix product of torch gets.
    block
        Cycles to hand out one block.
    launch, next_launch
        The first launch, and each further one.
    keep
        Share of the L2 in which data still lies when it is read again.
    foreign
        Share of the L2's lines that someone else wrote, and that go to DRAM when ours come.
    idle
        Share of a block's time for which memory has nothing to do, as the last round of several runs dry. Of one round,
        in which all blocks go on to the end, that is a share of one of a block's turns.
    overlap, sharpness
        The power with which the times of units that work side by side are joined, and these with the time of waiting:
        high takes the longest alone.
    """

    dram: float = 0.92
    sector: float = 1.0
    request: float = 0.8
    partial: float = 2.0
    piece: float = 2.0
    atomic: float = 3.0
    dram_wait: float = 0.7e-6
    l2_wait: float = 0.3e-6
    l1_wait: float = 0.08e-6
    start: float = 0.4e-6
    exchange: float = 0.05e-6
    step: float = 3.0
    product: float = 12.0
    shared: float = 8.0
    issue: float = 0.7
    tensor: float = 0.5
    host: float = 1.6
    host_product: float = 0.69
    block: float = 1.2
    launch: float = 3.4e-6
    next_launch: float = 1.3e-6
    keep: float = 0.5
    foreign: float = 0.7
    idle: float = 0.5
    overlap: float = 3.0
    sharpness: float = 3.0

    @classmethod
    def load(cls, device: str | None = None) -> Constants:
        """Return the fitted constants; `benchmarks/model_validation.py` writes them.

        Of a device that was calibrated they are its own (see `mla_ref.hardware.devices.hardware_file`).
        """
        found = hardware_file() if device else {}
        if found.get("hardware") != device or device is None:
            found = json.loads(FITTED.read_text()) if FITTED.exists() else {"constants": asdict(cls())}
        stored, names = found.get("constants", {}), {field.name for field in fields(cls)}
        if missing := sorted(names - stored.keys()):
            raise HardwareError(f"the constants of {device} lack {', '.join(missing)}: calibrate it again")
        return cls(**{name: stored[name] for name in names})


@dataclass(frozen=True)
class LaunchTime:
    """One launch or pass of the host, with its line: its seconds, and the times that competed for them.

    `again` are the bytes that come from DRAM though the launch has read them before.
    """

    name: str
    seconds: float
    parts: Mapping[str, float]
    bound: str
    resident: int = 0
    host: bool = False
    line: str = ""
    again: float = 0.0


class DoesNotFit(ValueError):
    """A launch asks for more than the GPU has: a sentence."""


def resident_blocks(compiled: Mapping[str, Any], device: Device) -> int:
    """Return how many blocks of a kernel a multiprocessor holds at once.

    Raises
    ------
    DoesNotFit
        Not one: shared memory or threads.
    """
    warps, shared, sm = compiled["warps"], compiled["shared"], device.sm
    if device.shared_bytes is not None and shared > device.shared_bytes:
        raise DoesNotFit(
            f"it needs {shared / 1024:.0f} KiB of shared memory, and a block on {device.name} can have "
            f"{device.shared_bytes / 1024:.0f} KiB: take smaller blocks or fewer stages"
        )
    if warps * sm.warp_size > 1024:
        raise DoesNotFit(f"{warps} warps are {warps * sm.warp_size} threads, and a block can have 1024")
    unit = 8 * sm.warp_size
    per_warp = -(-max(compiled["registers"], 16) * sm.warp_size // unit) * unit
    by_registers = 4 * (sm.registers // 4 // per_warp) // warps
    by_shared = sm.shared_bytes // (shared + sm.reserved_bytes) if shared else sm.blocks
    found = min(by_registers, by_shared, sm.warps // warps, sm.blocks)
    if found < 1:
        raise DoesNotFit(
            f"{compiled['registers']} registers × {warps} warps exceed the {sm.registers} of a multiprocessor of "
            f"{device.name}"
        )
    return found


Span = tuple[int, int]
NEAR = 32  # of the L2's size: what was touched within such a part of it was touched together
APART = 32  # places of a storage that are kept apart though they were touched together


class L2:
    """What an L2 cache holds of the storages, in the order in which launches touch them.

    The clock starts, as in `mla_ref.hardware.timing.bench`, with a cache full of lines that someone else wrote. They
    must go to DRAM before ours find room.

    Of what a launch touches of a storage, the bytes are known and the first and the last sector. Launches that touch
    parts of one stretch are taken to touch other parts, until there is no room for others in it.
    """

    def __init__(self, size: float, foreign: float):
        self.size = size
        self.clock = 0.0
        self.foreign = foreign
        self.touched: dict[int, list[tuple[float, Span, float]]] = {}  # when, where and how many bytes, latest last
        self.reached: dict[int, list[Span]] = {}  # of a storage all that launches may have touched, in order and apart
        self.room: dict[int, float] = {}  # the bytes of these
        self.brought: dict[int, float] = {}  # and the bytes of it that were found nowhere, in all

    def bytes_moved(
        self, reads: Mapping[int, float], writes: Mapping[int, float], spans: Mapping[int, Span] | None = None
    ) -> tuple[float, float]:
        """Return the bytes that one launch moves to or from DRAM, and those of them that it reads.

        `spans` are the first and the last sector that it touches of a storage; by default it touches its first bytes.
        """
        read, spans = 0.0, spans or {}
        for number in sorted({**reads, **writes}):
            size = max(reads.get(number, 0.0), writes.get(number, 0.0))
            first, last = spans.get(number, (0, 0))
            reach = (first, max(last, first + math.ceil(size / SECTOR) - 1))
            read += reads.get(number, 0.0) * (1.0 - self._touch(number, size, reach))
        written = sum(writes.values())
        room = read + written
        evicted = self.foreign * min(room, max(0.0, self.size - self.clock))
        self.clock += room
        back = written * max(0.0, 1.0 - self.size / self.clock) if self.clock else 0.0
        return read + evicted + back, read

    def _touch(self, number: int, size: float, span: Span) -> float:
        """Note that a launch touches so many bytes of a storage; return the share of them that the cache holds.

        A byte counts as touched by the latest that must have. What lies further back than the cache reaches is let go.
        """
        started, before = self.clock, self.touched.get(number, [])
        there = [touched * _shared(seen, span) for _, seen, touched in before]
        self.room[number] = self.room.get(number, 0.0) + _put(self.reached.setdefault(number, []), span)
        others = max(  # that the span, and all that launches may have touched, has room for
            _room(span) - math.fsum(there),
            self.room[number] - self.brought.get(number, 0.0),
        )
        left, hits, kept = max(0.0, size - max(0.0, others)), 0.0, []
        for (when, seen, touched), part in zip(reversed(before), reversed(there), strict=True):
            again = min(left, part)
            held = _held(started - when, self.size)
            left, hits = left - again, hits + again * held
            if held and touched > again:
                kept.insert(0, (when, seen, touched - again))
        # What came hardly earlier is one with it: a call may launch thousands of times.
        if kept and started - kept[-1][0] < self.size / NEAR and (_meet(kept[-1][1], span) or len(kept) > APART):
            when, seen, touched = kept.pop()
            kept.append((when, (min(seen[0], span[0]), max(seen[1], span[1])), touched + size))
        else:
            kept.append((started, span, size))
        self.touched[number] = kept
        self.brought[number] = self.brought.get(number, 0.0) + size - hits
        return hits / size if size else 0.0


def _room(span: Span) -> float:
    """Return the bytes from the first to the last sector."""
    return float(SECTOR * (span[1] - span[0] + 1))


def _meet(one: Span, other: Span) -> bool:
    """Return whether there is nothing between two spans."""
    return one[0] <= other[1] + 1 and other[0] <= one[1] + 1


def _put(spans: list[Span], span: Span) -> float:
    """Join one more to spans that are in order and apart; return the bytes that are new."""
    begin = bisect.bisect_left(spans, span[0] - 1, key=lambda each: each[1])
    end = bisect.bisect_right(spans, span[1] + 1, key=lambda each: each[0])
    near = spans[begin:end]
    joined = (min([span[0], *(first for first, _ in near)]), max([span[1], *(last for _, last in near)]))
    spans[begin:end] = [joined]
    return _room(joined) - math.fsum(map(_room, near))


def _shared(one: Span, other: Span) -> float:
    """Return the share of one span's sectors that lie in another."""
    return max(0, min(one[1], other[1]) - max(one[0], other[0]) + 1) / (one[1] - one[0] + 1)


def _held(between: float, size: float) -> float:
    """Return the share of what was touched `between` bytes ago that a cache of `size` still holds."""
    return min(1.0, max(0.0, 1.5 - between / size))


def launch_time(
    name: str,
    counts: Mapping[str, Any],
    compiled: Mapping[str, Any],
    device: Device,
    k: Constants,
    l2: L2,
) -> LaunchTime:
    """Return the modelled time of one launch, without the cost of launching."""
    programs, warps, sm = counts["programs"], compiled["warps"], device.sm
    if not programs:
        return LaunchTime(name, 0.0, {"waiting": 0.0}, "waiting")
    resident = resident_blocks(compiled, device)
    used = min(programs, device.sms)
    per_sm = -(-programs // device.sms)
    steps = -(-per_sm // resident)
    here = min(resident, per_sm)
    l2_bandwidth = device.l2_bandwidth or 2.3 * device.dram_bandwidth
    tick = SECTOR / l2_bandwidth

    reads = {int(n): marks.get("read", 0) for n, marks in counts["distinct"].items() if marks.get("read")}
    writes = {int(n): marks.get("write", 0) for n, marks in counts["distinct"].items() if marks.get("write")}
    moved, read = l2.bytes_moved(reads, writes, {int(n): span for n, span in counts["spans"].items()})

    # Where re-reads are found: in the L1 as long as all that the resident blocks touched in between still fits there.
    l1 = sm.l1_bytes - here * compiled["shared"]
    fetched, passing, beyond, again = counts["fetched"], counts.get("passing"), 0.0, 0.0
    for level in range(len(fetched["sectors"])):
        between = 2.0 ** (level - 0.5) * here
        missed = fetched if level == NEW or between > l1 else passing
        if missed:
            beyond += k.sector * missed["sectors"][level] + k.request * missed["requests"][level]
        if level != NEW and between > l1:
            lost = 1.0 - _held(between * used, k.keep * l2.size)
            again += lost * counts["again"][level]
    moved += again
    if counts.get("in_part"):
        moved += _in_part(counts, reads, writes, read, here * used, k.keep * l2.size)
    new = fetched["sectors"][NEW] * SECTOR
    share = min(1.0, read / new) if new else 0.0
    places = [k.l1_wait if 2.0 ** (level - 0.5) * here <= l1 else k.l2_wait for level in range(NEW)]
    places.append(share * k.dram_wait + (1.0 - share) * k.l2_wait)

    store, atomic = counts["access"]["store"], counts["access"]["atomic"]
    parted = min(store["partial"], 2 * store["lines"])  # no more than two in a request: the others go along
    beyond += k.sector * store["sectors"] + k.request * store["lines"] + k.partial * parted
    beyond += k.atomic * atomic["sectors"]
    done = executed(counts, compiled)
    threads = warps * sm.warp_size
    spilled = done["spill"] * threads * programs
    kept = compiled["stack_bytes"] * threads * here
    reload_wait = spilled / (16 * threads * programs) * (k.l1_wait if kept <= l1 else k.l2_wait) / 4
    through = spilled if kept > l1 else spilled / 2  # the half that is stored passes through the L1 in any case
    beyond += k.sector * through / SECTOR
    moved += through * (1.0 - _held(kept * used + resident * used * read / programs, k.keep * l2.size))
    cache = beyond * max(tick, SECTOR / (64 * used * sm.clock))
    cache = max(cache, store["sectors"] * SECTOR / (WRITTEN * used * sm.clock))
    dram = moved / (k.dram * device.dram_bandwidth)

    balance = per_sm * device.sms / programs if programs > device.sms else 1.0
    slots = used * 4 * sm.clock * k.issue
    pipes = max(done["alu"], done["imad"]) * 2 * k.issue  # each takes two warps' instructions in a cycle
    issue = max(done["count"], pipes) * warps * programs * balance / slots
    special = done["mufu"] * threads * programs * balance / (SPECIAL * used * sm.clock)
    waves = counts["access"]["load"]["lines"] + store["lines"] + k.piece * parted + atomic["sectors"]
    waves += done["passes"] * warps * programs + spilled / 128
    pipe = waves * balance / (used * sm.clock)
    waits = counts["waits"]
    met = waits["program"] * BARRIER * warps * balance / (used * sm.clock)
    fenced = sum(waits[reach] * each for reach, (_, each) in FENCES.items()) * balance / used
    described = done["descriptor"] * DESCRIPTORS * programs * balance / used
    boxes = done["box"] * BOX * programs * balance / used
    matrix = 0.0
    if compiled["instructions"].get("tensor"):
        for dtype, flops in sorted(counts["in_tiles"].items()):
            share = 1.0 if dtype == "fp64" else k.tensor  # those of float64 keep their units busy
            matrix += flops / (share * _matrix_rate(device, dtype) * used / device.sms)

    def chain(programs: Mapping[str, Any]) -> float:
        """Return the seconds that one program cannot do without, of several on average."""
        waits = sum(rounds * wait for rounds, wait in zip(programs["rounds"], places, strict=True))
        waits += programs["barriers"] * k.exchange * math.log2(2 * warps) if warps > 1 else 0.0
        waits += programs["waits"]["program"] * BARRIER * warps / sm.clock
        waits += sum(programs["waits"][reach] * wait for reach, (wait, _) in FENCES.items())
        ran = executed(programs, compiled)
        waits += ran["descriptor"] * DESCRIPTOR * programs["programs"]
        cycles = ran["count"] * k.step + ran["tensor"] * k.product + ran["shared"] / WIDE * k.shared
        return k.start + waits / programs["programs"] + reload_wait + cycles / sm.clock

    one = chain(counts)
    turns = max(1.0, sum(counts["rounds"]) / programs) if steps == 1 else 1.0
    parts = {
        "DRAM": dram,
        "L2": cache,
        "load and store units": pipe,
        "instructions": issue,
        "special functions": special,
        "barriers": met,
        "fences": fenced,
        "descriptors": described,
        "boxes": boxes,
        "matrix units": matrix,
        "waiting": max(steps * one, chain(counts["longest"])),
        "handing out blocks": programs * k.block / sm.clock,
    }
    alone = ("waiting", "handing out blocks")
    busy = _joined((time for part, time in parts.items() if part not in alone), k.overlap) + k.idle * one / turns
    seconds = max(parts["handing out blocks"], _joined((busy, parts["waiting"]), k.sharpness))
    return LaunchTime(name, seconds, parts, max(parts, key=parts.get), resident, again=again)


def _in_part(
    counts: Mapping[str, Any],
    reads: Mapping[int, float],
    writes: Mapping[int, float],
    read: float,
    running: int,
    held: float,
) -> float:
    """Return the bytes that memory could have moved while it served lines of which only a part is wanted at a time.

    The rest is no loss where another program wants it before the cache of `held` bytes has let the line go.
    `read` bytes come from DRAM, and so many programs are `running`.
    """
    late = {level: 1.0 - _held(2.0 ** (level - 0.5) * running, held) for level in range(NEW)}
    all_read, all_written = sum(reads.values()), sum(writes.values())
    lost = 1.0 - _held((all_read + all_written) / 2, held)
    found = 0.0
    for number, marks in counts["in_part"].items():
        for mark, (lacking, alone, apart) in marks.items():
            share = alone * lost + NEARBY * (lacking - alone) + sum(n * late[int(level)] for level, n in apart.items())
            size = reads.get(int(number), 0.0) * read / all_read if mark == "read" else writes.get(int(number), 0.0)
            found += share * size
    return found


def _joined(times: Iterable[float], power: float) -> float:
    """Return the time of units that work at once: the longest, and more where another takes nearly as long."""
    return math.fsum(time**power for time in times if time > 0) ** (1.0 / power)


def executed(counts: Mapping[str, Any], compiled: Mapping[str, Any]) -> dict[str, float]:
    """Return what a warp executes on average: its regions' sums of `MEASURES`.

    A loop turns as often as its accesses to global memory were executed in the replay, less those outside the loop. One
    without accesses turns as often as the loop that has its lines. Where all accesses of a loop are in branches that it
    does not always take, each line counts as often as it ran.
    """
    once: dict[str, int] = {}
    looped: dict[str, int] = {}
    for region in compiled["regions"]:
        counted = looped if region["loop"] else once
        for key, count in region["lines"].items():
            counted[key] = counted.get(key, 0) + count
    programs, runs, chances = max(1, counts["programs"]), counts["runs"], counts["chances"]

    def share(line: str) -> float:
        return runs[line] / chances[line] if chances.get(line) else 1.0

    def turned(key: str, times: float) -> float:
        return max(0.0, times / programs - once.get(key, 0)) / looped[key]

    executions = {key: counts["executions"].get(key, 0) for key in looped}
    beside: dict[tuple[str, str], int] = {}  # accesses in the loops that have a line: not all versions of a loop do
    for region in compiled["regions"] if runs else ():
        for key, count in region["lines"].items() if region["loop"] else ():
            for line in region["source"]:
                beside[key, line] = beside.get((key, line), 0) + count
    turns = {key: turned(key, times) for key, times in executions.items()}
    taken = {key: turned(key, n / share(key.split(":")[1])) for key, n in executions.items() if n}
    deepest = max(turns.values(), default=1.0)
    most = max(counts["turns"].values(), default=0) / programs
    sums = dict.fromkeys(MEASURES, 0.0)
    for region in compiled["regions"]:
        times, pace, paces = 1.0, 0.0, {}
        if region["loop"]:
            lines = [line for line in region["source"] if line != "0"]
            turning = max((counts["turns"].get(line, 0) / programs for line in lines), default=most)
            turning *= _share_of_turns(region, compiled["regions"])
            own = max(turning, deepest if region["tensor"] else 1.0)
            times = max((turns[key] for key in region["lines"]), default=own)
            ran = [key for key in region["lines"] if key in taken]
            pace = max((taken[key] for key in ran), default=turning) if runs else times
            paces = {
                line: max((taken[key] * looped[key] / beside[key, line] for key in ran), default=turning)
                for line in (region["source"] if runs else ())
            }
            pace = max(pace, *paces.values()) if paces else pace
        for measure in MEASURES:
            by_line = region[measure] * times
            if pace > times:
                by_line = math.fsum(
                    each.get(measure, 0)
                    * (min(paces[line] * share(line), runs[line] / programs) if line in runs else times)
                    for line, each in region["source"].items()
                )
            sums[measure] += max(region[measure] * times, by_line)
    least = _least(counts, compiled)
    return {measure: max(times, least.get(measure, 0.0)) for measure, times in sums.items()}


def _share_of_turns(region: Mapping[str, Any], regions: Sequence[Mapping[str, Any]]) -> float:
    """Return the share of a loop's turns that this one of its versions in the machine code takes; 1 if it is alone.

    A compiler writes a loop several times: for many turns at once, and for those that are left over. They have most
    lines in common. How many turns each takes is not known: together they execute as many bodies as there are turns,
    each as long as in the shortest version. A loop with accesses has their count.
    """
    own = region["source"].keys()
    versions = [
        each["count"]
        for each in regions
        if each["loop"]
        and not each["lines"]
        and 2 * len(own & each["source"].keys()) > len(own | each["source"].keys())
    ]
    return 1.0 if region["lines"] or len(versions) < 2 else min(versions) / (region["count"] * len(versions))


def _least(counts: Mapping[str, Any], compiled: Mapping[str, Any]) -> dict[str, float]:
    """Return what a warp executes at the least for the arithmetic that ran.

    The machine code may have less where a compiler takes for known, or for undefined, what the kernel hangs on.
    """
    if "arithmetic" not in counts or "lanes" not in compiled:
        return {}
    instructions, special, products = counts["arithmetic"]
    if not compiled["instructions"].get("tensor"):
        instructions += products / 4  # a product and a sum, of two 16-bit numbers each
    threads = compiled["lanes"] * compiled["warps"] * max(1, counts["programs"])
    return {"count": instructions / threads, "mufu": special / threads if compiled["lanes"] == 32 else 0.0}


def _matrix_rate(device: Device, dtype: str) -> float:
    dtype, _, parts = dtype.partition("x")
    if parts:  # as many products stand for one
        return _matrix_rate(device, dtype) / int(parts)
    if dtype == "fp64":  # as fast as float32 is without them, where they have it
        return device.flops["float32"]
    names = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32"}
    name = names.get(dtype, next((n for n in device.flops if n.startswith("float8")), "float16"))
    if name == "float32":  # tf32 where matrix units have it: half the rate of 16 bits
        half = device.flops.get("float16", 0.0)
        return half / 2 if "bfloat16" in device.flops else device.flops["float32"]
    return device.flops.get(name) or device.flops["float16"]


def is_timed(name: str, overload: str) -> bool:
    """Return whether the model tells the time of an operation of torch: of the pointwise, products and `PASSES`."""
    plain = name if name.endswith("__") else name.removesuffix("_")
    found = [getattr(getattr(torch.ops.aten, each, None), overload, None) for each in {name, plain}]
    if not any(isinstance(each, torch._ops.OpOverload) for each in found):
        return False
    pointwise = any(torch.Tag.pointwise in getattr(each, "tags", ()) for each in found)
    return pointwise or bool({name, plain} & PASSES) or getattr(torch.ops.aten, plain, None) in flop_registry


def host_time(event: Mapping[str, Any], device: Device, k: Constants, l2: L2, sizes: Sequence[int] = ()) -> LaunchTime:
    """Return the modelled time of one operation of torch: a pass over what it reads and writes.

    Of each storage that is what its operands show, and no more than its size, of `sizes`.
    """
    reads: dict[int, float] = {}
    writes: dict[int, float] = {}
    for target, pairs in ((reads, event["reads"]), (writes, event["writes"])):
        for number, size in pairs:
            most = sizes[number] if 0 <= number < len(sizes) else math.inf
            target[number] = min(target.get(number, 0.0) + size, float(most))
    moved, _ = l2.bytes_moved(reads, writes, _spans(event))
    read, written = sum(reads.values()), sum(writes.values())
    if not read:  # a fill: what it leaves in the cache goes to memory while the next launch runs
        moved = max(moved, written)
    stacks = _stacks(event)
    share = k.host_product if event.get("flops") or stacks else 1.0
    converts = read != written and not stacks and _name(event["op"]) != "index_select"
    parts = {"DRAM": moved / (share * k.dram * device.dram_bandwidth), "waiting": k.start + k.dram_wait}
    paid = {number: max(reads.get(number, 0.0), writes.get(number, 0.0)) for number in {**reads, **writes}}
    if read and not event.get("flops") and (cycles := _cycles(event, converts, k, paid)):
        parts["instructions"] = cycles / (device.sms * device.sm.clock)
    if event.get("flops"):
        parts["matrix units"] = event["flops"] / (k.tensor * device.rate())
    seconds = _joined(parts.values(), k.sharpness)
    return LaunchTime(
        _name(event["op"]), seconds, parts, max(parts, key=parts.get), host=True, line=event.get("line", "")
    )


def _spans(event: Mapping[str, Any]) -> dict[int, Span]:
    """Return the first and the last sector that an operation of torch touches of each storage, as far as it says."""
    found: dict[int, Span] = {}
    for view in (*views_in(event.get("args") or ()), *(event.get("out") or ())):
        if math.prod(view["shape"]):
            size, number = NAMED[view["dtype"]].itemsize, view["storage"]
            last = view["offset"] + sum((n - 1) * step for n, step in zip(view["shape"], view["strides"], strict=True))
            span = (view["offset"] * size // SECTOR, ((last + 1) * size - 1) // SECTOR)
            before = found.get(number, span)
            found[number] = (min(before[0], span[0]), max(before[1], span[1]))
    return found


def _stacks(event: Mapping[str, Any]) -> bool:
    """Return whether an operation puts tensors of one type side by side: many bytes at once, but no plain stream."""
    types = {view["dtype"] for view in (*views_in(event.get("args") or ()), *(event.get("out") or ()))}
    return _name(event["op"]) == "stack" and len(types) == 1


def _cycles(event: Mapping[str, Any], converts: bool, k: Constants, paid: Mapping[int, float]) -> float:
    """Return the cycles of one multiprocessor that an operation of torch takes; 0 if bytes bound it.

    By its storage's number, `paid` are the bytes that it moves. What goes over more elements does so one by one.

    A copy between two orders is made element by element. Where neighbours in what it writes lie far apart in what it
    reads, each takes a sector: of several operands in those of that operand, of one in all that are made of it.
    """
    name, made = _name(event["op"]), _elements(event)
    seen = [*views_in(event.get("args") or ())]
    if name in PACES:
        return max([made, *(math.prod(view["shape"]) for view in seen if name not in ASKED)]) / PACES[name]
    target, places = next(iter(event.get("out") or seen), None), [id(view) for view in (control(event) if seen else ())]
    data = [view for view in seen if id(view) not in places]
    orders = [(_order(view, target), math.prod(view["shape"])) for view in data]
    turned = sum(made if len(data) == 1 else size for order, size in orders if order == "turned")
    slowly = converts or name in ONE_BY_ONE or any(order != "alike" for order, _ in orders)
    return max(turned / TURNED + (max(0.0, made - turned) / k.host if slowly else 0.0), _again(event, paid) / k.host)


def _again(event: Mapping[str, Any], paid: Mapping[int, float]) -> float:
    """Return how many elements an operation goes over, if no view that has as many pays for them by its bytes; else 0.

    So do views that show a number many times, alone or in a sum. Of what is looked up only what is found counts.
    """
    if event.get("args") is None:
        return 0.0
    read = [*read_by(event)]
    found = [(view, math.prod(view["shape"])) for view in [*read[_name(event["op"]) in LOOK_UPS :], *event["out"]]]
    changed = written_by(event["op"], event["args"], event["kwargs"])
    changed = changed or (event["args"][:1] if _name(event["op"]) == "index_put" else [])
    found += [(view, places_written(event["op"], event["args"], view)) for view in views_in(changed)]
    most = max((number for _, number in found), default=0)
    covered = (min(n, paid.get(view["storage"], 0.0) / NAMED[view["dtype"]].itemsize) for view, n in found)
    return float(most) if most > max(covered, default=0.0) else 0.0


def _order(view: Mapping[str, Any], target: Mapping[str, Any]) -> str:
    """Return how a view lies beside what is made of it: `alike`, `apart`, or `turned`, with neighbours far apart.

    Axes are counted from the last, as the view may have fewer. One of another shape is alike if it has no gaps.
    """
    wanted = target["strides"]
    count = min(len(wanted), len(view["shape"]))
    axes = [axis for axis in range(-count, 0) if view["shape"][axis] > 1 and view["strides"][axis]]
    own = {axis: view["strides"][axis] for axis in sorted(axes, key=lambda axis: wanted[axis])}
    if not own or all(stride == wanted[axis] for axis, stride in own.items()):
        return "alike"
    made = (axis for axis in range(-count, 0) if target["shape"][axis] > 1)
    if own.get(min(made, key=lambda axis: wanted[axis], default=None), 0) * NAMED[view["dtype"]].itemsize >= SECTOR:
        return "turned"
    dense = itertools.accumulate((view["shape"][axis] for axis in own), operator.mul, initial=1)
    gapless = view["shape"] != target["shape"] and all(a == b for a, b in zip(own.values(), dense, strict=False))
    return "alike" if gapless else "apart"


def _elements(event: Mapping[str, Any]) -> float:
    """Return the elements that an operation makes; of one that does not say, four bytes for each."""
    made = max((math.prod(view["shape"]) for view in event.get("out") or ()), default=0)
    return made or max(sum(size for _, size in event[pairs]) for pairs in ("reads", "writes")) / 4


def total_time(
    events: Sequence[tuple[str, Mapping[str, Any], Mapping[str, Any] | None]],
    device: Device,
    k: Constants,
    sizes: Sequence[int] = (),
) -> tuple[float, list[LaunchTime]]:
    """Return the modelled seconds of a call and its steps.

    Parameters
    ----------
    events
        `(kernel, counts, compiled)` for a launch, `(op, event, None)` for an operation of the host, in order.
    sizes
        Of storages, by number, in bytes.
    """
    l2 = L2(device.l2_bytes or 1.0, k.foreign)
    steps = []
    for name, what, compiled in events:
        if compiled is None:
            steps.append(host_time(what, device, k, l2, sizes))
        else:
            steps.append(launch_time(name, what, compiled, device, k, l2))
    overhead = k.launch + k.next_launch * max(0, len(steps) - 1)
    return math.fsum([overhead, *(step.seconds for step in steps)]), steps


def _name(op: str | Sequence[str]) -> str:
    return op if isinstance(op, str) else op[0].strip("_")


def copy_time(size: float, device: Device, k: Constants) -> float:
    """Return the modelled seconds of one launch that moves `size` bytes in a long stream and does nothing else."""
    return k.launch + k.start + size / (k.dram * device.dram_bandwidth)
