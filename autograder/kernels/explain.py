"""Which of torch's operations in a call's program count, and what it is that does not."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from autograder.isolation.worker.trees import by_name
from autograder.kernels.record import Recording
from autograder.kernels.worker.hosting import LARGEST_FLOAT_CONSTANT, control, fills, may_run, shaped, views_in
from autograder.kernels.worker.recording import LARGEST_CONSTANT, NAMED

KEPT = "the result is no tensor of this call: is it one that an earlier call returned?"
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
    """

    recording: Recording
    reason: str | None = None
    changed: Collection[str] = ()


def is_kept(recording: Recording) -> bool:
    """Return whether a tensor of the result is neither an argument nor made in the call."""
    return any({"content", "unknown"} & recording.storages[view["storage"]].keys() for view in recording.result)


def data_of(arguments: Mapping[str, Any]) -> set[str]:
    """Return the names of the arguments that are data: tensors of floats, or all tensors where there are none."""
    named = by_name(dict(arguments))
    return {name for name, tensor in named.items() if tensor.is_floating_point()} or set(named)


def explained(recording: Recording, data: Collection[str], copies: bool = True) -> Explained:
    """Leave out of a program what torch computes from data.

    Parameters
    ----------
    data
        Names of the arguments that hold data.
    copies
        Whether torch may move data in every way; if not, whole arguments may be cast and copied.
    """
    storages = recording.storages
    floats = {view["storage"] for view in _seen(recording) if not _is_integer(view)}
    holds = {n: _beginning(storage, data, n in floats) for n, storage in enumerate(storages)}
    empty = {n for n, each in enumerate(storages) if not {"input", "content", "unknown"} & each.keys()}
    left: set[int] = set()  # what holds results of kernels, or copies of them
    reasons: list[str] = []
    reads: list[str] = []
    written: set[int] = set()
    changed: set[str] = set()
    events = []
    for event in recording.events:
        if event["kind"] == "launch":
            views = {name: arg["tensor"] for name, arg in event["args"].items() if "tensor" in arg}
            for name, view in views.items():
                if (found := holds[view["storage"]]) not in (PLAIN, DATA):
                    reasons.append(f"{event['kernel']} takes as {name} what {found}")
                elif "input" not in storages[view["storage"]]:  # a replay ends where integers of an argument change
                    holds[view["storage"]] = DATA
                written.add(view["storage"])
            left |= {view["storage"] for view in views.values() if "input" not in storages[view["storage"]]}
            empty -= left
            events.append(event)
            continue
        given = {holds[number] for number, _ in event["reads"]}
        runs = event["args"] is not None and (copies or given <= {PLAIN} or _takes_all(event, storages))
        targets = {number for number, _ in event["writes"]}
        ruled = control(event) if event["args"] is not None else ()
        takes = set() if shaped(event) else {n for n, _ in event["reads"]} - {view["storage"] for view in ruled}
        mended = takes & left and (takes - left - (empty & targets) or fills(event))
        runs = runs and not (written | left) & targets and not mended  # what a kernel has left stays as it is
        runs = runs and may_run(event, lambda view: holds[view["storage"]] != PLAIN, _is_integer)
        strange = next((each for each in given if each not in (PLAIN, DATA)), None)
        where = f" in {event['line']}" if event["line"] else ""
        of = "from data" if given - {PLAIN} else "with floats"
        what = f"torch computes {of} outside the kernels: `{event['op'][0].strip('_')}`{where}"
        if not event["writes"] and given - {PLAIN}:
            reads.append(f"numbers of a tensor are read in Python{where}")
        for number, _ in event["writes"]:
            if not runs:
                holds[number] = what
                changed |= {storages[number]["input"]} if "input" in storages[number] else set()
            elif strange:
                holds[number] = strange
            elif DATA in given and holds[number] in (PLAIN, DATA):
                holds[number] = DATA
            elif event["out"] and holds[number] not in (PLAIN, DATA):
                holds[number] = DATA  # what it held before may be there still
        left |= targets if runs and takes & left else set()
        empty -= targets
        events.append(event if runs else {**event, "args": None})
    if is_kept(recording):
        reasons.append(KEPT)
    for view in recording.result:
        if (found := holds[view["storage"]]) not in (PLAIN, DATA):
            reasons.append(f"the result is what {found}")
    if reads:
        reasons.append(f"{reads[0]}, and what depends on them does not count: compute with them in a kernel")
    return Explained(replace(recording, events=events), next(iter(reasons), None), changed)


def _seen(recording: Recording) -> Iterator[Mapping[str, Any]]:
    """Yield the views through which a program looks at its storages."""
    yield from recording.views()
    for event in recording.events:
        if event["kind"] == "host":
            yield from (*views_in(event["args"] or ()), *event["out"])


def _takes_all(step: Mapping[str, Any], storages: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether an operation casts or copies a whole argument."""
    if step["op"][0] not in ("_to_copy", "clone"):
        return False
    return all(size == storages[number]["bytes"] and "input" in storages[number] for number, size in step["reads"])


def _beginning(storage: Mapping[str, Any], data: Collection[str], floats: bool = True) -> str:
    """Return what a storage holds at first; `floats` says whether it is ever looked at as floats."""
    if "input" in storage:
        return DATA if storage["input"] in data else PLAIN
    strange = "was there before the call: it is no argument, and no operation of this call made it"
    if "content" not in storage:
        return strange if storage.get("unknown") else PLAIN
    return PLAIN if storage["bytes"] <= (LARGEST_CONSTANT, 8 * LARGEST_FLOAT_CONSTANT)[floats] else strange


def _is_integer(view: Mapping[str, Any]) -> bool:
    dtype = NAMED[view["dtype"]]
    return not (dtype.is_floating_point or dtype.is_complex)


def torch_alone(recording: Recording, forbidden: Sequence[str]) -> Explained:
    """Leave out of a program of torch's operations what is none of its mathematics.

    Raises Forbidden for an operation of which the name holds one of the forbidden words.
    """
    storages = recording.storages
    strange = {n for n, storage in enumerate(storages) if _beginning(storage, ()) not in (PLAIN, DATA)}
    events, reason = [], None
    for event in recording.events:
        runs = event["kind"] == "host" and event["args"] is not None
        name, where = event["op"][0] if event["kind"] == "host" else event["kernel"], event.get("line")
        if word := next((word for word in forbidden if word in name), None):
            raise Forbidden(
                f"this exercise may not call {word}{f', as it does in {where}' if where else ''}: write it out"
            )
        for number, _ in event.get("writes", ()) if not runs else ():
            strange.add(number)
            reason = reason or f"what `{name.strip('_')}` makes{f' in {where}' if where else ''} does not count"
        events.append(event if runs or event["kind"] != "host" else {**event, "args": None})
    if reason is None and any(view["storage"] in strange for view in recording.result):
        reason = "the result holds what no operation of torch in this call made, as far as this thread can see"
    return Explained(replace(recording, events=[e for e in events if e["kind"] == "host"]), reason)


class Forbidden(ValueError):
    """An operation that the student was asked to write was called instead: a sentence."""
