"""The modelled time of a call: record its launches, compile them, replay them, add up. No GPU is needed.

    with KernelWorkers() as workers:
        modelled = model_call(workers, program, "rms_norm", arguments, floor=cost, device="h100")
    modelled.seconds, modelled.fraction, modelled.table()

No step runs where the judge's secrets are. The student's own code runs in the first step only, and what it says about
itself is not believed: the kernels that it names are cut from the notebook's source, compiled, and replayed in a clean
process on the judge's own inputs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from autograder.judging.program import Cell
from autograder.kernels import cost_model
from autograder.kernels.compile import compile_launches
from autograder.kernels.cost_model import Constants, LaunchTime
from autograder.kernels.explain import data_of, explained
from autograder.kernels.extract import GLUON_HEADER
from autograder.kernels.full_size import FullSize
from autograder.kernels.record import Recording, kernels_of, record
from autograder.kernels.replay import Fault, Place, Replayed, replay, replay_request
from autograder.kernels.worker import hosting
from autograder.kernels.workers import KernelFailure, KernelWorkers, Unchecked, sentence
from mla_ref.hardware.cost import Cost
from mla_ref.hardware.devices import DEVICES

SAMPLE = 24  # programs of a launch that are run to count what it does: one of no more is counted exactly
LONGEST_CYCLE = 12  # events that a call repeats, for each sequence, say
NEARLY = 0.9  # of the compulsory work: what is counted from a sample of programs may be a little off
ROUGHLY = 0.85  # of it, where the programs of a sample are not alike


class Timed:
    """A time beside its floor, the least there can be, and beside an eager baseline's if there is one. In seconds."""

    seconds: float
    floor: float
    baseline: float

    @property
    def fraction(self) -> float:
        """The floor's share of the time: 1 is a kernel at the limit."""
        return min(1.0, self.floor / self.seconds) if self.seconds else 0.0

    @property
    def ratio(self) -> float:
        """How many times as fast as the baseline it is."""
        return self.baseline / self.seconds


@dataclass(frozen=True)
class Modelled(Timed):
    """The modelled time of a call.

    Attributes
    ----------
    seconds, floor
        Modelled, and the least that the compulsory bytes and FLOPs take on the device's data sheet.
    steps
        Each launch and each pass of the host, in order.
    counts, compiled
        What the replay and the compiler reported of each launch.
    notes
        What the reader should know: sampled launches, passes on the host, spills.
    dtype
        Whose rate the floor takes: None for the device's 16-bit one, of the matrix units.
    """

    device: str
    seconds: float
    floor: float
    steps: tuple[LaunchTime, ...]
    counts: tuple[Mapping[str, Any], ...]
    compiled: tuple[Mapping[str, Any], ...]
    notes: tuple[str, ...]
    dtype: str | None = None

    @property
    def overhead(self) -> float:
        """Seconds that launching takes, apart from the steps."""
        return self.seconds - math.fsum(step.seconds for step in self.steps)

    def table(self) -> list[dict[str, Any]]:
        """Return a row for each step: name, microseconds, what bounds it, and of launches what explains it."""
        rows, launches = [], iter(zip(self.counts, self.compiled, strict=True))
        for step in self.steps:
            row = {
                "step": step.name,
                "us": round(step.seconds * 1e6, 3),
                "bound": step.bound,
                "bound_us": round(step.parts[step.bound] * 1e6, 3),
            }
            if step.host:
                row |= {"host": True, "line": step.line}
            else:
                counts, compiled = next(launches)
                moved = counts["distinct"].values()
                distinct = sum(sum(marks.values()) for marks in moved)
                issued = sum(counts["access"][kind]["bytes"] for kind in counts["access"])
                others = {name: time for name, time in step.parts.items() if name != step.bound}
                beside = max(others, key=others.get, default=None)
                row |= {
                    "next": [beside, round(others[beside] * 1e6, 3)] if beside else None,
                    "multiprocessors": DEVICES[self.device].sms,
                    "programs": counts["programs"],
                    "warps": compiled["warps"],
                    "distinct_bytes": distinct,
                    "issued_bytes": max(issued, distinct),  # both are estimates where lengths differ
                    "distinct_loaded_bytes": sum(marks.get("read", 0) for marks in moved),
                    "loaded_bytes": counts["access"]["load"]["bytes"],
                    "again_bytes": round(step.again),
                    "registers": compiled["registers"],
                    "spill_bytes": compiled["stack_bytes"],
                    "shared_bytes": compiled["shared"],
                    "tensor_instructions": compiled["instructions"].get("tensor", 0),
                    "load_widths": dict(compiled["widths"]["load"]),
                    "blocks_per_sm": step.resident,
                }
            rows.append(row)
        return rows


def model_call(
    workers: KernelWorkers,
    program: Sequence[Cell],
    entry: str,
    arguments: Mapping[str, Any],
    floor: Cost,
    device: str = "h100",
    known: Known | None = None,
    full: FullSize | None = None,
    copies: bool = True,
) -> Modelled:
    """Return the modelled time of one call on a device of `mla_ref.hardware.devices.DEVICES`.

    Tensors of device "meta" among the arguments stand for a shape: full sizes cost nothing. Kernels read zeros there,
    or what `full` draws, which then compares what they write. Given what ran in calls whose answers were compared,
    `known`, nothing else may run.

    Raises
    ------
    KernelFailure, LimitReached
        The student's, with a sentence. Failures of the workers themselves raise SandboxError.
    """
    found = explained(record(workers, program, entry, arguments), data_of(arguments), copies)
    if found.untimed:
        raise KernelFailure(found.untimed)
    recording = found.recording
    kernels = kernels_of(program, recording)
    source = kernels.source
    if known is not None and form_of(recording) not in known.forms:
        raise Unchecked(
            f"{', '.join(form_of(recording))} follow one another here, and did in no call whose answer was compared: "
            "where a launcher chooses kernels by the sizes, those are timed alone that small sizes take, too"
        )
    if GLUON_HEADER in source:
        raise KernelFailure(
            "the kernels are in Gluon, of which no model tells the time: where there is a GPU, their speed is measured"
        )
    for event in recording.events:
        if event["kind"] == "host" and not cost_model.is_timed(*event["op"]):
            name, where = event["op"][0].strip("_"), f" in {event['line']}" if event["line"] else ""
            raise KernelFailure(f"no model tells the time of torch's `{name}`{where}, only a GPU: leave it out")
    compiled = compile_launches(workers, kernels, recording, device)
    options = full.options if full else {}
    request = replay_request(recording, arguments, compiled, sample=SAMPLE, **options)
    try:
        replayed = replay(workers, "", request)  # the modules that were compiled, and no Python
    except Fault as fault:
        raise KernelFailure(sentence(kernels.in_cells(fault.error))) from None
    modelled = add_up(recording, replayed, compiled, floor, device)
    if reason := shortfall(modelled, floor) or (full.wrong(replayed, recording) if full else None):
        raise KernelFailure(found.reason or reason)
    if known is not None and (new := sorted(replayed.places(source, recording) - known.places)):
        kernel, text, _ = new[0]
        loop = "; where its number of turns is an argument of 1, Triton leaves the loop out: compute it in the kernel"
        raise Unchecked(
            f"{kernel} runs `{text}` here, and ran it in no call whose answer was compared: kernels are timed for what "
            f"was found right{loop if text.startswith('for ') else ''}"
        )
    return modelled


def form_of(recording: Recording) -> tuple[str, ...]:
    """Return what a call does, in order, whatever the numbers: kernels and operations of torch, repeats left out."""
    names = [event["kernel"] if event["kind"] == "launch" else ".".join(event["op"]) for event in recording.events]
    for length in range(1, LONGEST_CYCLE + 1):
        found: list[str] = []
        for name in names:
            found.append(name)
            if len(found) >= 2 * length and found[-length:] == found[-2 * length : -length]:
                del found[-length:]
        names = found
    return tuple(names)


@dataclass(frozen=True)
class Known:
    """What ran in calls whose answers were compared: places of kernels, and what calls did in order."""

    places: Set[Place]
    forms: Set[tuple[str, ...]]

    def __or__(self, other: Known) -> Known:
        return Known(self.places | other.places, self.forms | other.forms)


def add_up(
    recording: Recording,
    replayed: Replayed,
    compiled: Sequence[Mapping[str, Any]],
    floor: Cost,
    device: str = "h100",
    constants: Constants | None = None,
) -> Modelled:
    """Return the modelled time of recorded, compiled and replayed launches."""
    target, notes = DEVICES[device], []
    events, sizes = in_order(recording, replayed, compiled)
    seconds, steps = cost_model.total_time(events, target, constants or Constants.load(device), sizes)
    hosts = [name for name, _, what in events if what is None]
    if hosts:
        passes = "pass" if len(hosts) == 1 else "passes"
        notes.append(f"{len(hosts)} {passes} on the host: {', '.join(hosts[:6])}")
    if "_local_scalar_dense" in hosts:
        notes.append("a number of a tensor is read in Python: the host waits for the GPU, which the time leaves out")
    for event, counts, report in zip(recording.launches, replayed.counts, compiled, strict=True):
        if not counts["exact"]:
            how = "alike" if counts["alike"] else "not alike, so the figures are estimates"
            notes.append(
                f"{event['kernel']}: {counts['sampled']} of {counts['programs']} programs were run; they are {how}"
            )
        if report["stack_bytes"]:
            notes.append(f"{event['kernel']} spills: {report['stack_bytes']} bytes of stack a thread")
    dtype = floor_dtype(device)
    least = floor.time(target, dtype=dtype)
    return Modelled(device, seconds, least, tuple(steps), tuple(replayed.counts), tuple(compiled), tuple(notes), dtype)


def in_order(
    recording: Recording, replayed: Replayed, compiled: Sequence[Mapping[str, Any]]
) -> tuple[list[tuple[str, Mapping[str, Any], Mapping[str, Any] | None]], list[int]]:
    """Return launches and operations of the host as `cost_model.total_time` takes them, and the storages' sizes."""
    events, number = [], 0
    made = {n for event in recording.events if event["kind"] == "host" for n, _ in event["writes"]}
    for event in recording.events:
        if event["kind"] == "host":
            events.append((event["op"][0], event, None))
            continue
        counts = replayed.counts[number]
        for storage in counts["unwritten"]:
            if "input" not in recording.storages[storage] and storage not in made:
                made.add(storage)
                events.append(_made_on_host(storage, recording))
        events.append((event["kernel"], counts, compiled[number]))
        number += 1
    written = {int(n) for counts in replayed.counts for n, marks in counts["distinct"].items() if "write" in marks}
    for view in recording.result:
        storage = view["storage"]
        if storage not in written | made and "input" not in recording.storages[storage]:
            made.add(storage)
            events.append(_made_on_host(storage, recording))
    return events, [storage["bytes"] for storage in recording.storages]


# Of torch what fills, by the name of its step
FILLED = {name.strip("_"): name for name in (*hosting.ALIKE, *dict(hosting.FILLING), "full", "ones", "zeros")}


def shortfall(found: Modelled, floor: Cost) -> str | None:
    """Return what of the compulsory work the launches leave out, or None.

    No result is computed at full size, so a function could do less there than where its answers were compared.
    """
    enough = NEARLY if all(counts["alike"] or counts["exact"] for counts in found.counts) else ROUGHLY
    moved = sum(sum(marks.values()) for counts in found.counts for marks in counts["distinct"].values())
    if moved < enough * floor.bytes:
        reason = f"the kernels touch {moved / 1e6:.4g} MB, and the work takes {floor.bytes / 1e6:.4g} MB at least"
        filled = ", ".join(FILLED[step.name] for step in found.steps if step.name in FILLED)
        return f"{reason}: have them store what `{filled}` of torch fills in, too" if filled else reason
    products = sum(sum(counts["dots"].values()) for counts in found.counts)
    if not products:  # multiplied and added outside the matrix units, two halves at a time
        products = sum(
            4
            * cost_model.executed(counts, compiled)["count"]
            * compiled["warps"]
            * DEVICES[found.device].sm.warp_size
            * counts["programs"]
            for counts, compiled in zip(found.counts, found.compiled, strict=True)
        )
    if products < enough * floor.flops:
        return f"the products in the kernels are {products / 1e9:.4g} GFLOP, and the work takes {floor.flops / 1e9:.4g}"
    return None


def _made_on_host(storage: int, recording: Recording) -> tuple[str, dict[str, Any], None]:
    """Return an event for a storage whose making was not noted.

    It is charged as a pass that reads as many bytes from elsewhere as it writes.
    """
    size = recording.storages[storage]["bytes"]
    event = {"op": "made on the host", "reads": [[-1 - storage, size]], "writes": [[storage, size]]}
    return event["op"], event, None


def floor_dtype(device: str) -> str | None:
    """Return the type whose rate a floor takes: None, the matrix units' 16 bits, where `tl.dot` runs on them.

    Also of a kernel without `tl.dot`: the floor is the work's.
    """
    return None if DEVICES[device].sm.matrix_units else "float32"
