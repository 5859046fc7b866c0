"""Launch recorded kernels again in a clean process, on the judge's own data, with every access checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

import torch

from autograder.isolation.worker.layout import is_gapped
from autograder.isolation.worker.trees import by_name
from autograder.kernels.record import MAX_LAUNCHES, Execution, Recording, result_storages
from autograder.kernels.workers import KernelFailure, KernelWorkers, LimitReached, ended, refused

# Of a kernel: its name, the text of a line, and a column.
Place = tuple[str, str, int]


@dataclass(frozen=True)
class Replayed:
    """What launches did in a clean process.

    Attributes
    ----------
    counts
        Of each launch: see `kernels.worker.counting`.
    content, covered
        Of each storage that was asked for, its final bytes, and which of them kernels wrote.
    gapped
        Storages of arguments with gaps between their elements: their bytes are those of the elements alone.
    """

    counts: list[dict[str, Any]]
    content: dict[int, torch.Tensor] = field(default_factory=dict)
    covered: dict[int, torch.Tensor] = field(default_factory=dict)
    gapped: Set[int] = frozenset()


def places(source: str, recording: Recording, replayed: Replayed) -> set[Place]:
    """Return the places of the kernels in `source` at which an operation ran."""
    lines = source.splitlines()
    return {
        (launch["kernel"], lines[line - 1].strip() if line else "", column)
        for launch, counts in zip(recording.launches, replayed.counts, strict=True)
        for line, column in counts["ran"]
    }


def replay(
    workers: KernelWorkers,
    source: str,
    recording: Recording,
    arguments: Mapping[str, Any],
    compiled: Sequence[Mapping[str, Any]] = (),
    sample: int | None = None,
    contents: Sequence[int] = (),
) -> Replayed:
    """Run the launches in a clean process, on the judge's own arguments, and count what they do.

    With `sample` no more than about that many programs of a launch run. Raises KernelFailure for an access out of
    bounds.
    """
    request = replay_request(recording, arguments, compiled, sample, contents)
    (found,) = replays(workers, source, [request if isinstance(request, Exception) else {**request, "count": True}])
    if isinstance(found, Exception):
        raise found
    return found


def replay_executions(
    workers: KernelWorkers, source: str, executions: Sequence[Execution]
) -> list[Replayed | KernelFailure | LimitReached]:
    """Run the launches of several executions, every program, in one clean process.

    Of each: what it did, with the bytes of the result, or why there is nothing.
    """
    return replays(
        workers, source, [replay_request(each, args, contents=result_storages(each)) for each, args in executions]
    )


def replays(
    workers: KernelWorkers, source: str, wanted: Sequence[dict[str, Any] | KernelFailure]
) -> list[Replayed | KernelFailure | LimitReached]:
    """Make replays, in the order of `wanted` (see `replay_request`). A failure among them stays one."""
    found: list[Any] = list(wanted)
    todo = [n for n, each in enumerate(wanted) if isinstance(each, dict)]
    while todo:
        size, group = 0, []
        while todo and (not group or size + len(wanted[todo[0]]["launches"]) <= MAX_LAUNCHES):
            size += len(wanted[todo[0]]["launches"])
            group.append(todo.pop(0))
        for number, each in zip(group, _group(workers, source, [wanted[n] for n in group]), strict=True):
            found[number] = each
    return found


def _group(
    workers: KernelWorkers, source: str, group: list[dict[str, Any]]
) -> list[Replayed | KernelFailure | LimitReached]:
    request = {"task": "replay", "source": source, "replays": group}
    reply, limits = workers.perform(request, workers.limits.seconds * min(len(group), 3))
    found: list[Any] = []
    for answer, each in zip(reply.messages, group, strict=False):
        if "error" in answer:
            found.append(refused(answer["error"]))
            continue
        parts = [{int(n): raw for n, raw in answer[key].items()} for key in ("content", "covered")]
        gapped = {number for number, storage in enumerate(each["storages"]) if "elements" in storage}
        found.append(Replayed(answer["launches"], *parts, gapped))
    rest = ended(reply, limits, "replaying the launches")
    if found and reply.messages[-1].get("event") == "failed":
        rest = found[-1]
    return found + [rest] * (len(group) - len(found))


def replay_request(
    recording: Recording,
    arguments: Mapping[str, Any],
    compiled: Sequence[Mapping[str, Any]] = (),
    sample: int | None = None,
    contents: Sequence[int] = (),
) -> dict[str, Any] | KernelFailure:
    """Return the request of a replay, or why there can be none."""
    launches, inputs = [], by_name(arguments)
    for number, launch in enumerate(recording.launches):
        sites = compiled[number]["sites"] if compiled else []
        warps = compiled[number]["warps"] if compiled else launch["options"].get("num_warps", 4)
        launches.append({**launch, "sites": sites, "warps": warps, "stages": launch["options"].get("num_stages", 3)})
    try:
        storages = [_stored(storage, inputs) for storage in recording.storages]
    except KernelFailure as error:
        return error
    for number, raw in (pair for launch in launches for pair in launch["content"]):
        if len(raw) != len(storages[number].get("content", raw)):
            return KernelFailure("the storages that were noted are not those of the arguments")
    return {"launches": launches, "storages": storages, "sample": sample, "return": list(contents)}


def _stored(storage: Mapping[str, Any], inputs: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    """Return a storage as a replay makes it: its size, and of an argument the content, as the judge has it."""
    found = {"bytes": storage["bytes"]}
    if "input" not in storage:
        return found
    tensor = inputs.get(storage["input"])
    gapped = tensor is not None and is_gapped(tensor)
    if tensor is None or storage["bytes"] != (tensor.untyped_storage().nbytes() if gapped else tensor.nbytes):
        raise KernelFailure("the storages that were noted are not those of the arguments")
    if tensor.device.type != "meta":
        found["content"] = raw_bytes(tensor)
    if gapped:
        found["elements"] = [list(tensor.shape), list(tensor.stride()), tensor.element_size()]
    return found


def raw_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Return the bytes of a tensor's elements, in order."""
    return tensor.contiguous().reshape(-1).view(torch.uint8)
