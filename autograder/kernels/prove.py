"""The proof that a right answer came from the student's kernels, and not from torch or from an earlier answer.

What the student's process says of its launches is not believed. The kernels are cut from the notebook's source and
launched again in a clean process that holds nothing else of the student's. They must give the same bytes there, out of
the arguments and what a host may prepare: copies, casts, constants and indices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from autograder.isolation.worker.trees import by_name, tensors_in
from autograder.judging.cases import Case
from autograder.judging.exercise import Exercise, upcast
from autograder.judging.judge import Failure, broken_terms
from autograder.judging.program import Cell
from autograder.judging.verdict import Outcome
from autograder.kernels import record
from autograder.kernels.record import Recording
from autograder.kernels.replay import Place, Replayed, places, raw_bytes, replay_executions
from autograder.kernels.worker.recording import NAMED
from autograder.kernels.workers import KernelFailure, KernelWorkers, LimitReached

LARGEST_INDEX = 1 << 24  # integers beyond it may be other numbers' bits
PLAIN_VALUES = (0.0, 1.0, -1.0, float("inf"), -float("inf"))


def prove(
    exercise: Exercise,
    program: Sequence[Cell],
    workers: KernelWorkers,
    cases: Sequence[Case],
    messages: Mapping[int, Mapping[str, Any]],
    ran: set[Place] | None = None,
) -> dict[int, Failure]:
    """Return the cases whose result the kernels do not explain.

    `messages` holds the worker's message on each case whose result is right, with its recorded execution. To `ran` are
    added the places of kernels that ran for a result which they explain.
    """
    failures: dict[int, Failure] = {}
    recordings: dict[int, Recording] = {}
    for number, message in messages.items():
        try:
            recordings[number] = found = record.checked(message.get("notes"), message.get("result"))
            owners = [found.storages[view["storage"]].get("input") for view in found.result]
            if failure := broken_terms(exercise, cases[number], len(found.launches), owners):
                failures[number] = failure
        except (KernelFailure, LimitReached) as error:
            failures[number] = _failure(error, cases[number])
    recordings = {number: found for number, found in recordings.items() if number not in failures}
    if not recordings:
        return failures
    try:
        source = record.kernels_of(program, *recordings.values())
    except (KernelFailure, LimitReached) as error:
        return failures | {number: _failure(error, cases[number]) for number in recordings}
    for earlier, number in _repetitions(cases):
        both = recordings.get(earlier), recordings.get(number)
        if None not in both and not _alike(*both, cases[number].arguments):
            reason = "a kernel gets as numbers what was computed outside from the values of the arguments"
            failures[number] = _failure(KernelFailure(reason), cases[number])
    left = {number: (found, cases[number].arguments) for number, found in recordings.items() if number not in failures}
    for number, replayed in zip(left, replay_executions(workers, source, list(left.values())), strict=True):
        recording, arguments = left[number]
        if isinstance(replayed, Exception):
            failures[number] = _failure(replayed, cases[number])
            continue
        reason = unexplained(recording, replayed, arguments)
        if reason := reason or computed_outside(exercise, arguments, recording, replayed):
            failures[number] = _failure(KernelFailure(reason), cases[number])
        elif ran is not None:
            ran |= places(source, recording, replayed)
    return failures


def _repetitions(cases: Sequence[Case]) -> list[tuple[int, int]]:
    """Return pairs of cases that differ in their data alone (see `judging.cases.draw_cases`)."""
    return [
        (n, m)
        for m, later in enumerate(cases)
        for n, earlier in enumerate(cases[:m])
        if later.part == earlier.part and later.params is earlier.params
    ]


def _alike(one: Recording, other: Recording, arguments: Mapping[str, Any]) -> bool:
    """Return whether two calls launch the same on the same integers, or on integers that are the arguments' own."""
    bare = [[{k: v for k, v in launch.items() if k != "content"} for launch in each.launches] for each in (one, other)]
    if bare[0] != bare[1]:
        return False
    own = [t.flatten().long() for t in tensors_in(dict(arguments)) if not t.is_floating_point()]
    given = torch.cat([torch.zeros(1, dtype=torch.long), *own])
    for launch, again in zip(one.launches, other.launches, strict=True):
        views = [argument["tensor"] for argument in launch["args"].values() if "tensor" in argument]
        mine, theirs = dict(launch["content"]), dict(again["content"])
        for number, dtype in {(view["storage"], NAMED[view["dtype"]]) for view in views}:
            if dtype.is_floating_point or number not in {*mine, *theirs}:
                continue
            if number in mine and number in theirs and torch.equal(mine[number], theirs[number]):
                continue
            if number not in theirs or not torch.isin(theirs[number].view(dtype).long(), given).all():
                return False
    return True


def _failure(error: Exception, case: Case) -> Failure:
    return Failure(Outcome.TIME if isinstance(error, LimitReached) else Outcome.WRONG, str(error), case=str(case))


def computed_outside(
    exercise: Exercise, arguments: Mapping[str, Any], recording: Recording, replayed: Replayed
) -> str | None:
    """Return which kernel reads what was computed outside the kernels, or None if none does.

    A host may hand a kernel copies and casts of the arguments, constants and small integers, but not the answer.
    """
    answers = tensors_in(exercise.oracle(**upcast(dict(arguments))))
    given = [tensor for tensor in tensors_in(dict(arguments)) if tensor.is_floating_point()]
    held: dict[int, torch.Tensor] = {}
    for launch, counts in zip(recording.launches, replayed.counts, strict=True):
        brought = dict(launch["content"])
        held |= brought
        old = {n for n in brought if "input" in recording.storages[n]}  # an argument that the host has changed
        suspect = held.keys() & ({*counts["unwritten"]} | old)
        for name, view in ((name, a["tensor"]) for name, a in launch["args"].items() if "tensor" in a):
            if view["storage"] not in suspect:
                continue
            values = held[view["storage"]].view(NAMED[view["dtype"]])
            if any(_same(values, answer) and not any(_same(x, answer) for x in given) for answer in answers):
                return f"{launch['kernel']} only copies: what it reads as {name} is the answer already"
            if not _prepared(values, given if exercise.copies else []):
                return (
                    f"{launch['kernel']} reads as {name} what was computed outside the kernels: only copies and casts "
                    f"of the arguments, constants and indices may come from torch"
                )
    return None


def _same(values: torch.Tensor, answer: torch.Tensor) -> bool:
    values = values.flatten()
    if not values.is_floating_point() or values.numel() < answer.numel() or not answer.numel():
        return False
    return torch.allclose(values[: answer.numel()].double(), answer.flatten().double(), rtol=1e-2, atol=1e-6)


def _prepared(values: torch.Tensor, given: Sequence[torch.Tensor]) -> bool:
    """Return whether the values are one constant, small integers, or each found in an argument."""
    if not values.numel() or bool((values == values[0]).all()):
        return True
    if not values.is_floating_point():
        return bool((values.long().abs() <= LARGEST_INDEX).all())
    known = torch.cat([torch.tensor(PLAIN_VALUES), *(x.flatten().to(values.dtype).float() for x in given)])
    return bool(torch.isin(values.float().nan_to_num(nan=0.0), known.nan_to_num(nan=0.0)).all())


def may_carry_data(value: Any) -> bool:
    """Return whether a number that a kernel gets could be a result: no small integer."""
    return isinstance(value, float) or (isinstance(value, int) and abs(value) > LARGEST_INDEX)


def unexplained(recording: Recording, replayed: Replayed, arguments: Mapping[str, Any]) -> str | None:
    """Return why the replay does not account for the result, or None: the proof that the kernels computed it.

    The recording must be of an execution, and the replay have returned the storages of `result_storages`. Where the
    result is an argument, what it held before needs no kernel.
    """
    inputs = by_name(arguments)
    written = {number for counts in replayed.counts for number in counts["written"]}
    returned = tensors_in(recording.returned)
    if len(returned) != len(recording.result):
        return "the result does not match what was noted of it"
    for tensor, view in zip(returned, recording.result, strict=True):
        if view["storage"] not in written:
            return "the result was not written by a kernel: what torch makes last, a cast say, belongs into the kernel"
        if view["storage"] in replayed.gapped:
            view = _dense(view)
        again = _read(replayed.content[view["storage"]], view)
        if again.shape != tensor.shape or again.dtype != tensor.dtype:
            return "the result does not match what was noted of it"
        if not torch.equal(again.nan_to_num(), tensor.nan_to_num()):
            return "the kernels, launched again on the same arguments, do not give this result"
        unwritten = ~_written(replayed.covered[view["storage"]], view) & (again != 0)
        if (before := inputs.get(recording.storages[view["storage"]].get("input"))) is not None:
            unwritten &= again != _read(raw_bytes(before), view)
        missed = int(unwritten.sum())
        if missed:
            return f"{missed} of {again.numel()} elements of the result were not written by a kernel"
    return None


def _dense(view: Mapping[str, Any]) -> dict[str, Any]:
    """Return the view of an argument with gaps, as a view of its elements alone."""
    strides = torch.empty(view["shape"], device="meta").stride()
    return {**view, "strides": list(strides), "offset": 0}


def _read(raw: torch.Tensor, view: Mapping[str, Any]) -> torch.Tensor:
    return raw.view(NAMED[view["dtype"]]).as_strided(view["shape"], view["strides"], view["offset"])


def _written(covered: torch.Tensor, view: Mapping[str, Any]) -> torch.Tensor:
    whole = covered.view(-1, NAMED[view["dtype"]].itemsize).all(dim=1)
    return whole.as_strided(view["shape"], view["strides"], view["offset"])
