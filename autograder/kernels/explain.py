"""Which of torch's operations in a call's program count, and what it is that does not."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from autograder.isolation.worker.running import forbidden_word
from autograder.isolation.worker.trees import by_name
from autograder.judging.exercise import is_data
from autograder.kernels.record import Recording
from autograder.kernels.worker.hosting import (
    ALIKE,
    LARGEST_FLOAT_CONSTANT,
    control,
    fills,
    flops,
    may_run,
    places_written,
    views_in,
    written_by,
)
from autograder.kernels.worker.recording import LARGEST_CONSTANT, NAMED
from autograder.kernels.workers import KernelFailure
from autograder.text import one_line
from mla_ref.hardware.cost import Cost

FEW = 8  # numbers of a constant
KEPT = "the result is no tensor of this call: is it one that an earlier call returned?"
COPIED = (
    "reshape, flatten and contiguous copy what does not lie side by side, and what a kernel writes to a copy is lost; "
    "pass the tensor itself, and its strides"
)
PLAIN, DATA = "plain", "data"  # what a storage holds: numbers that are known beforehand, or what comes from data


@dataclass(frozen=True)
class Explained:
    """A program without what may not be part of it.

    Attributes
    ----------
    recording
        The program. Of an operation that does not count the `args` are None: what it makes is never there.
    changed
        Arguments that such operations change in place.
    reason
        What of that reaches a kernel or the result, or that data was read in Python; None if nothing does.
    untimed
        Why no model tells how long the call takes on real data, where sizes alone are known; None if one may.
    frozen
        Where Python reads floats that come from data, or torch takes some that none of its operations made: they stay
        what they are on the data of this call. None if there are none, or if that is a `reason`.
    """

    recording: Recording
    reason: str | None = None
    changed: Collection[str] = ()
    frozen: str | None = None
    untimed: str | None = None


def is_kept(recording: Recording) -> bool:
    """Return whether a tensor of the result is neither an argument nor made in the call."""
    return any({"content", "unknown"} & recording.storages[view["storage"]].keys() for view in recording.result)


def data_of(arguments: Mapping[str, Any]) -> set[str]:
    """Return the names of the arguments that are data, or of all tensors where none is."""
    named = by_name(dict(arguments))
    return {name for name, tensor in named.items() if is_data(tensor)} or set(named)


def explained(recording: Recording, data: Collection[str], copies: bool = True) -> Explained:
    """Leave out of a program what torch computes from data.

    Parameters
    ----------
    data
        Names of the arguments that hold data.
    copies
        Whether torch may move data in every way; if not, whole arguments may be cast and copied.
    """
    flow = _Flow(recording, data, copies)
    steps = {"launch": flow.launch, "host": flow.operation}
    events = [steps[event["kind"]](event) for event in recording.events]
    return Explained(replace(recording, events=events), flow.reason(recording), flow.changed, untimed=flow.untimed)


class _Flow:
    """What the storages of a program hold as it goes on.

    Attributes
    ----------
    holds
        By number of the storage: PLAIN, DATA, or a clause that says what else it is.
    empty
        Storages into which nothing was written yet.
    given, left
        Storages that launches were given, and those that hold results of kernels or copies of them.
    changed
        Arguments that operations change which do not count.
    untimed
        As in `Explained`.
    """

    def __init__(self, recording: Recording, data: Collection[str], copies: bool):
        self.storages, self.copies = recording.storages, copies
        floats = {view["storage"] for view in _seen(recording) if not _is_integer(view)}
        self.holds = {n: _beginning(storage, data, n in floats) for n, storage in enumerate(self.storages)}
        self.empty = {n for n, each in enumerate(self.storages) if not {"input", "content", "unknown"} & each.keys()}
        self.given: set[int] = set()
        self.left: set[int] = set()
        self.changed: set[str] = set()
        self.untimed: str | None = None
        self._lost: set[int] = set()
        self._doubted: set[int] = set()  # given to launches that may write over what does not count
        self._reasons: list[str] = []
        self._reads: list[str] = []

    def launch(self, event: dict[str, Any]) -> dict[str, Any]:
        """Follow a launch, which may write to all that it is given."""
        views = {name: arg["tensor"] for name, arg in event["args"].items() if "tensor" in arg}
        made = {view["storage"] for view in views.values() if "input" not in self.storages[view["storage"]]}
        strange = set()
        for name, view in views.items():
            if (found := self.holds[view["storage"]]) not in (PLAIN, DATA):
                strange.add(view["storage"])
                self._reasons.append(f"{event['kernel']} takes as {name} what {found}")
                self.untimed = self.untimed or (self._reasons[-1] if view["storage"] in self._lost else None)
            elif view["storage"] in made:  # a replay ends where integers of an argument change
                self.holds[view["storage"]] = DATA
        self.given |= {view["storage"] for view in views.values()}
        self.left |= made
        self.empty -= made
        new, self._doubted = strange - self._doubted, self._doubted | strange
        return {**event, "strange": sorted(new)} if new else event

    def operation(self, event: dict[str, Any]) -> dict[str, Any]:
        """Follow an operation of torch; return it, without its arguments if it does not count."""
        reads, targets = ({number for number, _ in event[kind]} for kind in ("reads", "writes"))
        if (anew := _overwritten(event, self.storages)) is not None:  # as if it had just been made
            reads.discard(anew)
            self.given.discard(anew)
            self.left.discard(anew)
            self.empty.add(anew)
            self.holds[anew] = PLAIN
        held = {self.holds[number] for number in reads}
        where = f" in {event['line']}" if event["line"] else ""
        if not targets and held - {PLAIN}:
            self._reads.append(f"numbers of a tensor are read in Python{where}")
            waits = "the call waits for the GPU there, and no model tells what it does then: take it out"
            self.untimed = self.untimed or f"{self._reads[-1]}: {waits}"
        ruled = control(event) if event["args"] is not None else ()
        looked_at = reads - {view["storage"] for view in ruled}
        moved = looked_at & {number for number, size in event["reads"] if size}  # what has no elements mends nothing
        counts = event["args"] is not None and self._counts(event, held, moved, targets)
        first = (self.holds[number] for number, _ in event["reads"] if number in reads)
        strange = next((each for each in first if each not in (PLAIN, DATA)), None)
        if not counts:
            of = " from data" if held - {PLAIN} else " with floats" * _takes_floats(event)
            what = f"torch computes{of} outside the kernels: `{event['op'][0].strip('_')}`{where}"
            if event["op"][0] == "clone" and where and "clone" not in where:
                what = f"torch copies outside the kernels{where}: {COPIED}"
            what = strange or what
            self.holds.update(dict.fromkeys(targets, what))
            self._lost |= targets
            self._doubted -= targets
            self.changed |= {self.storages[n]["input"] for n in targets if "input" in self.storages[n]}
        else:
            if {self.holds[number] for number in reads - targets} - {PLAIN, DATA}:  # it moves more of that
                self._doubted -= targets
            for number in targets:
                self.holds[number] = strange or self._after(self.holds[number], held, event)
            self.left |= targets if looked_at & self.left else set()
        self.empty -= targets
        return event if counts else {**event, "args": None}

    def _counts(self, event: dict[str, Any], held: set[str], moved: set[int], targets: set[int]) -> bool:
        """Return whether an operation is part of the program: it moves, or computes with what no data reaches."""
        if not (self.copies or held <= {PLAIN} or event["op"][0] in ALIKE or _takes_all(event, self.storages)):
            return False
        mends = moved & self.left and (moved - self.left - (self.empty & targets) or fills(event))
        if mends or (self.given | self.left) & targets:  # what a kernel has left stays as it is
            return False
        return may_run(event, lambda view: self.holds[view["storage"]] != PLAIN, _is_integer)

    @staticmethod
    def _after(before: str, held: set[str], event: dict[str, Any]) -> str:
        """Return what a storage holds into which something was moved that is not strange."""
        if before in (PLAIN, DATA):
            return DATA if DATA in held else before
        return DATA if event["out"] else before  # what it held before may be there still

    def reason(self, recording: Recording) -> str | None:
        """Return the first of what does not count and reaches a kernel or the result, or that data was read."""
        found = [*self._reasons, *([KEPT] if is_kept(recording) else [])]
        results = (self.holds[view["storage"]] for view in recording.result)
        found += [f"the result is what {each}" for each in results if each not in (PLAIN, DATA)]
        rest = "and what depends on them does not count: compute with them in a kernel"
        found += [f"{each}, {rest}" for each in self._reads[:1]]
        return next(iter(found), None)


def _seen(recording: Recording) -> Iterator[Mapping[str, Any]]:
    """Yield the views through which a program looks at its storages."""
    yield from recording.views()
    for event in recording.events:
        if event["kind"] == "host":
            yield from (*views_in(event["args"] or ()), *event["out"])


def _overwritten(step: Mapping[str, Any], storages: Sequence[Mapping[str, Any]]) -> int | None:
    """Return the storage that an operation writes from end to end, if it is none of an argument's."""
    if step["op"][0] not in ("copy_", "fill_", "zero_") or step["args"] is None:
        return None
    target, *others = views_in(step["args"])
    number, size = target["storage"], math.prod(target["shape"]) * NAMED[target["dtype"]].itemsize
    dense = list(itertools.accumulate(target["shape"][:0:-1], operator.mul, initial=1))[::-1] == target["strides"]
    of_it_all = dense and size == storages[number]["bytes"] and "input" not in storages[number]
    return number if of_it_all and all(view["storage"] != number for view in others) else None


def _takes_all(step: Mapping[str, Any], storages: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether an operation casts or copies a whole argument."""
    if step["op"][0] not in ("_to_copy", "clone"):
        return False
    return all(size == storages[number]["bytes"] and "input" in storages[number] for number, size in step["reads"])


def _beginning(storage: Mapping[str, Any], data: Collection[str], floats: bool = True) -> str:
    """Return what a storage holds at first; `floats` says whether it is ever looked at as floats."""
    if "input" in storage:
        return DATA if storage["input"] in data else PLAIN
    strange = (
        "was there before the call: it is no argument, and no operation of this call made it, as far as this thread "
        "can see (a custom operator shows nothing of what it does)"
    )
    if "content" not in storage:
        return strange if storage.get("unknown") else PLAIN
    return PLAIN if storage["bytes"] <= (LARGEST_CONSTANT, 8 * LARGEST_FLOAT_CONSTANT)[floats] else strange


def _takes_floats(event: Mapping[str, Any]) -> bool:
    return not all(map(_is_integer, (*views_in(event["args"] or ()), *event["out"])))


def _is_integer(view: Mapping[str, Any]) -> bool:
    dtype = NAMED[view["dtype"]]
    return not (dtype.is_floating_point or dtype.is_complex)


def _is_made_elsewhere(storage: Mapping[str, Any], view: Mapping[str, Any]) -> bool:
    """Return whether a view shows numbers that may be NumPy's: floats of no argument, more than a constant's few."""
    return "content" in storage and "input" not in storage and not _is_integer(view) and math.prod(view["shape"]) > FEW


def torch_alone(recording: Recording, forbidden: Sequence[str], most: Cost | None = None) -> Explained:
    """Leave out of a program of torch's operations what is none of its mathematics.

    Raises Forbidden for an operation of which the name has one of the forbidden words, and for a program that writes
    more bytes or takes more FLOPs for products than `most`; KernelFailure for products of what cannot be multiplied.
    """
    storages = recording.storages
    strange = {n for n, storage in enumerate(storages) if _beginning(storage, ()) not in (PLAIN, DATA)}
    from_data = {n for n, storage in enumerate(storages) if "input" in storage}
    events, reason, frozen = [], None, None
    for event in recording.events:
        runs = event["kind"] == "host" and event["args"] is not None
        name, where = event["op"][0] if event["kind"] == "host" else event["kernel"], event.get("line")
        if word := forbidden_word(name, forbidden):
            raise Forbidden(
                f"this exercise may not call {word}{f', as it does in {where}' if where else ''}: write it out"
            )
        for number, _ in event.get("writes", ()) if not runs else ():
            strange.add(number)
            reason = reason or f"what `{name.strip('_')}` makes{f' in {where}' if where else ''} does not count"
        if from_data & {number for number, _ in event.get("reads", ())}:
            from_data |= {number for number, _ in event["writes"]}
            if not event["writes"] and not all(map(_is_integer, views_in(event["args"] or ()))):
                frozen = frozen or f"numbers of a tensor are read in Python{f' in {where}' if where else ''}"
        if any(_is_made_elsewhere(storages[view["storage"]], view) for view in views_in(event["args"] or ())):
            what = "takes numbers that no operation of torch in this call made, as far as this thread can see"
            frozen = frozen or f"`{name.strip('_')}`{f' in {where}' if where else ''} {what}"
        events.append(event if runs or event["kind"] != "host" else {**event, "args": None})
    if most is not None:
        _check_cost(events, most)
    strange |= {v["storage"] for v in recording.result if "content" in storages[v["storage"]] and not _is_integer(v)}
    if reason is None and any(view["storage"] in strange for view in recording.result):
        reason = (
            "the result holds what no operation of torch in this call made, as far as this thread can see: what an "
            "earlier call or another object has left, or Python or NumPy computes from data, does not count"
        )
    return Explained(replace(recording, events=[e for e in events if e["kind"] == "host"]), reason, frozen=frozen)


def _cost(event: Mapping[str, Any], count: Callable[[Mapping[str, Any]], int]) -> int:
    try:
        return count(event)
    except Exception as error:  # no operation that ran has such operands
        said = f"{event['op'][0]}: {one_line(error, 200)}"
        raise KernelFailure(f"what was noted of the call is malformed: {said}") from None


def _bytes_written(event: Mapping[str, Any]) -> int:
    """Return the bytes that an operation writes: in place those at its indices alone."""
    changed = [*views_in(written_by(event["op"], event["args"], event["kwargs"]))]
    if not changed:
        return sum(size for _, size in event["writes"])
    return sum(places_written(event["op"], event["args"], v) * NAMED[v["dtype"]].itemsize for v in changed)


def _check_cost(events: Sequence[Mapping[str, Any]], most: Cost) -> None:
    hosts = [event for event in events if event["kind"] == "host" and event["args"] is not None]
    for limit, what, unit, count in (
        (most.bytes, "torch's operations write", "bytes", _bytes_written),
        (most.flops, "the products of torch's operations take", "FLOPs", flops),
    ):
        by_place: dict[str, int] = {}
        for event in hosts:
            place = f"`{event['op'][0].strip('_')}`" + (f" in {event['line']}" if event["line"] else "")
            by_place[place] = by_place.get(place, 0) + _cost(event, count)
        if (total := sum(by_place.values())) > limit:
            place = max(by_place, key=by_place.get)
            raise Forbidden(
                f"{what} {total:,} {unit} in this case, and {limit:,.0f} are plenty: "
                f"{by_place[place]:,} of them by {place}"
            )


class Forbidden(ValueError):
    """An operation that the student was asked to write was called instead: a sentence."""
