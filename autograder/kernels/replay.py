"""Run recorded calls again in a clean process, on the judge's own data, with every access checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch

from autograder.isolation.worker.layout import is_gapped
from autograder.isolation.worker.running import FURTHER_IS_UP, TIME_IS_UP
from autograder.isolation.worker.trees import by_name
from autograder.isolation.worker.wire import bytes_of
from autograder.kernels.record import Recording
from autograder.kernels.worker.hosting import views_in
from autograder.kernels.workers import KernelFailure, KernelWorkers, LimitReached, ended, sentence
from autograder.text import quoted

LONG = ": does it write out a loop of many turns, by tl.static_range? A loop over range(n) is compiled once"
# Of a kernel: its name, the text of a line, and a column.
Place = tuple[str, str, int]


class Fault(KernelFailure):
    """What went wrong in a call that was run again: `error` as the worker describes it."""

    def __init__(self, error: Mapping[str, Any]):
        super().__init__(sentence(error))
        self.error = dict(error)


@dataclass(frozen=True)
class Replayed:
    """What a call did in a clean process.

    Attributes
    ----------
    counts
        Of each launch: see `kernels.worker.counting`.
    result
        The tensors of the result.
    again
        The same, some times, each where programs or threads take other turns; empty where that cannot matter.
    changed
        The arguments that hold something else afterwards.
    unwritten
        Sentences on reads of memory that nothing had written.
    taken
        Of what was there before the call, or comes of operations that are not done again, sentences on such reads.
    blank
        For each tensor of the result how many elements are NaN and lie where nothing wrote.
    filled
        A sentence on a masked load of which what the mask leaves out reaches the results, if any does; None if that is
        not known.
    otherwise
        The same, some times, each with other numbers in what is undefined, which nothing wrote or a mask leaves out of
        a load; empty where that cannot matter.
    left_out
        A sentence on each load that left places out where it can.
    kept
        Of storages that are kept between calls, which launches leave something else in them, and by which parameter.
    later
        The result of a call after one on other data has left that there; empty if nothing is left, or where it fails.
    picks
        Of a sample, for each tensor of the result parts of its rows: index, first element, values, which of them count.
    written
        Of a sample, by the number of each storage of a result that launches write: the bytes of results that they do.
    """

    counts: list[dict[str, Any]]
    result: list[torch.Tensor] = field(default_factory=list)
    again: list[list[torch.Tensor]] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    unwritten: list[str] = field(default_factory=list)
    taken: list[str] = field(default_factory=list)
    blank: list[int] = field(default_factory=list)
    filled: list[str] | None = None
    otherwise: list[list[torch.Tensor]] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    later: list[list[torch.Tensor]] = field(default_factory=list)
    picks: list[list[Any]] = field(default_factory=list)
    written: dict[str, float] = field(default_factory=dict)

    def places(self, source: str, recording: Recording) -> set[Place]:
        """Return the places of the kernels in `source` at which an operation ran."""
        lines = source.splitlines()
        return {
            (launch["kernel"], lines[line - 1].strip(), column)
            for launch, counts in zip(recording.launches, self.counts, strict=True)
            for line, column in counts["ran"]
            if line  # else it is the compiler's own
        }


def replay(workers: KernelWorkers, source: str, request: Mapping[str, Any], seconds: float | None = None) -> Replayed:
    """Run one call again. Raises KernelFailure, LimitReached."""
    (found,) = replays(workers, source, [request], seconds or workers.limits.seconds)
    if isinstance(found, Exception):
        raise found
    return found


def replays(
    workers: KernelWorkers, source: str, requests: Sequence[Mapping[str, Any]], seconds: float, further: float = 0.0
) -> list[Replayed | KernelFailure | LimitReached]:
    """Run several calls again, each on memory of its own, in one process (see `replay_request`).

    `further` times the seconds are for runs in other orders and with other values.

    Of each: what it did, or why there is nothing. Raises KernelFailure for more than a worker takes.
    """
    request = {"task": "replay", "source": source, "replays": list(requests), "seconds": seconds}
    reply, limits = workers.perform(request, (1.0 + further) * seconds)
    limits = replace(limits, seconds=seconds)
    found: list[Any] = []
    for answer in reply.messages[: len(requests)]:
        said = answer["error"].get("message") if "error" in answer else None
        if said == TIME_IS_UP:
            kernel = quoted(answer["error"].get("kernel"), 80)
            most = f", most of it to compile {kernel}{LONG}" if kernel else ""
            found.append(LimitReached(f"running its kernels took more than {seconds:g} s{most}"))
        elif said == FURTHER_IS_UP:
            found.append(LimitReached(f"running its kernels in other orders took more than {further * seconds:g} s"))
        elif "error" in answer:
            found.append(Fault(answer["error"]))
        else:
            names = [each.name for each in fields(Replayed) if each.name not in ("counts", "filled")]
            found.append(Replayed(answer["launches"], **{name: answer[name] for name in names if name in answer}))
    for answer in reply.messages[len(requests) :]:
        if "filled" in answer:
            found[answer["of"]] = replace(found[answer["of"]], filled=answer["filled"])
    rest = ended(reply, limits, "running its kernels")
    if found and reply.messages[-1].get("event") == "failed":
        rest = found[-1]
    return found + [rest] * (len(requests) - len(found))


def replay_request(
    recording: Recording,
    arguments: Mapping[str, Any],
    compiled: Sequence[Mapping[str, Any]] = (),
    drawn: Mapping[str, Sequence[Any]] | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Return the request of a replay on these arguments.

    Parameters
    ----------
    compiled
        What the compiler said of each launch: what is counted depends on it, and the module that it compiled runs.
    drawn
        Of arguments of device "meta", how they are drawn: what `worker.generated.Generated` takes.
    options
        `sample`: about as many programs of a launch run, and are counted; `count`: all run, and are counted;
        `secret`: decides which programs those are; `picks`: parts of rows of each result that are wanted; `kept`: the
        storages that are kept between calls.

    Raises KernelFailure if the recording is of other arguments.
    """
    events, number, inputs = [], 0, by_name(dict(arguments))
    for event in recording.events:
        if event["kind"] == "host":
            if event["args"] is not None:
                events.append({key: event[key] for key in ("op", "args", "kwargs", "out")})
            else:
                events.append({"lost": sorted({n for n, _ in event["writes"]})})
            continue
        known = compiled[number] if compiled else {"sites": [], "warps": event["options"].get("num_warps", 4)}
        facts = {"sites": known["sites"], "warps": known["warps"], "stages": event["options"].get("num_stages", 3)}
        facts |= {key: known[key] for key in ("module", "places", "parameters") if key in known}
        events.append({**event, **facts})
        number += 1
    seen = [view for event in recording.events if event["kind"] == "host" and event["args"] is not None
            for view in (*views_in(event["args"]), *event["out"])]  # fmt: skip
    dtypes = {view["storage"]: view["dtype"] for view in (*seen, *recording.views())}
    storages = [
        {**_stored(storage, inputs, drawn or {}), "dtype": dtypes.get(number)}
        for number, storage in enumerate(recording.storages)
    ]
    return {"events": events, "storages": storages, "result": recording.result, **options}


def _stored(
    storage: Mapping[str, Any], inputs: Mapping[str, torch.Tensor], drawn: Mapping[str, Sequence[Any]]
) -> dict[str, Any]:
    """Return a storage as a replay makes it: its size, and of an argument the content, as the judge has it."""
    found = {"bytes": storage["bytes"]}
    if "content" in storage:
        return {**found, "content": storage["content"]}
    if "input" not in storage:
        return found
    tensor = inputs.get(storage["input"])
    gapped = tensor is not None and is_gapped(tensor)
    if tensor is None or storage["bytes"] != (tensor.untyped_storage().nbytes() if gapped else tensor.nbytes):
        raise KernelFailure("the arguments that were noted are not those of the call")
    found["input"] = storage["input"]
    if storage["input"] in drawn:
        found["drawn"] = list(drawn[storage["input"]])
    elif tensor.device.type != "meta":
        found |= {"content": bytes_of(tensor), "integers": not tensor.is_floating_point()}
    if gapped:
        found["elements"] = [list(tensor.shape), list(tensor.stride()), tensor.element_size()]
    return found
