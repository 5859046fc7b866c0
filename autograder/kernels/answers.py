"""What a call answers: its program, run in a clean process on data that the student's process never saw.

The student's process is given noise in place of the data, and tells what its function does: operations of torch and
launches. The kernels are cut from the notebook's source. Nothing else of that process counts: not what it returned, and
not what it computed in another way.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch

from autograder.isolation.worker.running import INTEGERS, earlier
from autograder.isolation.worker.trees import tensors_in
from autograder.judging.cases import Case
from autograder.judging.compare import assess
from autograder.judging.exercise import Exercise
from autograder.judging.judge import Failure, broken_terms
from autograder.judging.program import Cell
from autograder.judging.verdict import Outcome
from autograder.kernels import record
from autograder.kernels.compile import compile_launches
from autograder.kernels.explain import KEPT, Explained, Forbidden, data_of, explained, is_kept, torch_alone
from autograder.kernels.extract import GLUON_HEADER, Kernels
from autograder.kernels.record import Recording
from autograder.kernels.replay import LONG, Fault, Place, replay_request, replays
from autograder.kernels.worker.recording import NAMED
from autograder.kernels.workers import KernelFailure, KernelWorkers, LimitReached
from autograder.text import one_line

GLUON_DEVICE = "h100"  # what kernels in Gluon are for: there they must compile, and fit
ORDER = (
    "the result depends on the order in which programs run, threads take their turns, or torch sorts what is equal, "
    "and a GPU keeps none: in another order it is wrong"
)

HANGS = "two calls on other numbers of the same shapes differ: what is launched may hang on shapes and integers alone"
FURTHER = 3.0  # times the seconds of an exercise: for runs of its kernels in other orders
FEWER = ". Launch fewer: larger blocks, and fewer splits where a context is short"
LEFT = "what {} from one call makes the next one wrong: set it back before it ends, or make it anew in each call"
TAKEN = (
    "the call takes what an earlier one with the same shapes had as {0}: two calls of the same shapes may differ in "
    "{0}, so keep nothing of it between calls"
)
UNDEFINED = "the result depends on what is undefined, and with other numbers there it is wrong"


class Answers:
    """The answers of one exercise's program, for `judging.judge.judge`.

    Of an exercise without kernels in which some of torch's operations are forbidden, the program is one of torch's
    operations alone, and none of these may be in it.

    Attributes
    ----------
    ran
        The places of kernels that ran for them.
    recordings
        The programs of the calls, by number of the case.
    warpgroup_flops
        By number of the case, what kernels in Gluon multiplied and added by `warpgroup_mma`: all programs, and the one
        that did most.
    copied
        By number of the case, the bytes that they had TMA fetch.
    """

    def __init__(self, exercise: Exercise, program: Sequence[Cell], workers: KernelWorkers):
        self.exercise, self.program, self.workers = exercise, program, workers
        self.ran: set[Place] = set()
        self.recordings: dict[int, record.Recording] = {}
        self.warpgroup_flops: dict[int, tuple[int, int]] = {}
        self.copied: dict[int, int] = {}

    def __call__(
        self, cases: Sequence[Case], messages: Mapping[int, Mapping[str, Any]]
    ) -> tuple[dict[int, dict[str, Any]], dict[int, Failure]]:
        """Return, by number of the case, messages with answers in place of programs, and the cases that failed.

        A message without a program stays if it says why there is none: a bare result does not count. A message with an
        answer holds `result`, `changed`, where NaN in it comes from, `unwritten`, `blank` and `filled` (see
        `replay.Replayed`), what does not count, `explained`, where Python reads numbers, `frozen`, and terms that are
        broken all the same, `terms`.
        """
        found = {n: dict(message) for n, message in messages.items() if not {"notes", "result"} & message.keys()}
        failures: dict[int, Failure] = {}
        programs: dict[int, Explained] = {}
        kept: dict[int, list[int]] = {}
        for n, message in messages.items():
            if "notes" not in message:
                continue
            try:
                self.recordings[n] = recording = record.checked(message["notes"])
                program = self._explained(recording, cases[n])
                if self.exercise.kernel:
                    first = record.checked(message.get("first"))
                    if said := _unlike(first, recording):
                        if not program.reason:  # what refuses the kernels may tell why, as @triton.autotune
                            record.kernels_of(self.program, recording)
                        raise KernelFailure(program.reason or said)
                    kept[n] = _kept(first, recording)
                programs[n] = program
            except (KernelFailure, LimitReached, Forbidden) as error:
                failures[n] = _failure(error, cases[n])
        if not programs:
            return found, failures
        try:
            kernels = Kernels("", {})
            if self.exercise.kernel:
                kernels = record.kernels_of(self.program, *(each.recording for each in programs.values()))
                if GLUON_HEADER in kernels.source:
                    calls = [event for each in programs.values() for event in each.recording.events]
                    compile_launches(self.workers, kernels, Recording(calls, [], []), GLUON_DEVICE)
            requests = [
                replay_request(each.recording, cases[n].arguments, kept=kept.get(n, [])) for n, each in programs.items()
            ]
            done = replays(self.workers, kernels.source, requests, self.exercise.limits.seconds, FURTHER)
        except (KernelFailure, LimitReached) as error:
            return found, failures | {n: _failure(error, cases[n]) for n in programs}
        for (n, program), replayed in zip(programs.items(), done, strict=True):
            if isinstance(replayed, Fault) and program.reason:  # what comes of that is no mistake of the kernel's
                failures[n] = Failure(Outcome.WRONG, program.reason, case=str(cases[n]))
            elif isinstance(replayed, Fault):
                found[n] = {"error": kernels.in_cells(replayed.error)}
            elif isinstance(replayed, Exception):
                failures[n] = _failure(replayed, cases[n], program.recording)
            else:
                recording = program.recording
                owners = [recording.storages[view["storage"]].get("input") for view in recording.result]
                terms = broken_terms(self.exercise, cases[n], len(recording.launches), owners)
                again = [recording.filled(each) for each in ([] if program.reason else replayed.again)]
                if any(assess(self.exercise, cases[n].arguments, each) for each in again):
                    terms = terms or Failure(Outcome.WRONG, ORDER, case=str(cases[n]))
                if replayed.taken:  # also where the result is right for what there is in its place
                    said = program.reason or kernels.told(replayed.taken[0])
                    terms = terms or Failure(Outcome.WRONG, said, case=str(cases[n]))
                others = [recording.filled(each) for each in replayed.otherwise]
                if any(assess(self.exercise, cases[n].arguments, each) for each in others):
                    told = [f": {kernels.told(said)}" for said in (*replayed.unwritten, *replayed.left_out)]
                    said = program.reason or "".join([UNDEFINED, *told[:1]])
                    terms = terms or Failure(Outcome.WRONG, said, case=str(cases[n]))
                result = recording.filled(replayed.result)
                later = [recording.filled(each) for each in replayed.later]
                bad = not later or any(assess(self.exercise, cases[n].arguments, each) for each in later)
                if replayed.kept and bad and not program.reason:
                    said = LEFT.format(" and ".join(replayed.kept[:2]))
                    terms = terms or Failure(Outcome.WRONG, said, case=str(cases[n]))
                changed = [name.split("[")[0] for name in (*replayed.changed, *program.changed)]
                found[n] = {
                    "result": result,
                    "changed": [*changed, *messages[n].get("changed", ())],
                    "unwritten": list(map(kernels.told, replayed.unwritten)),
                    "blank": replayed.blank,
                    "filled": None if replayed.filled is None else list(map(kernels.told, replayed.filled)),
                    "explained": program.reason or _taken_over(self.exercise, cases[n], recording, result),
                    "frozen": program.frozen,
                    "terms": terms,
                }
                self.ran |= replayed.places(kernels.source, recording)
                flops = [counts["warpgroup_flops"] for counts in replayed.counts]
                self.warpgroup_flops[n] = sum(every for every, _ in flops), max((most for _, most in flops), default=0)
                self.copied[n] = sum(counts["copied"] for counts in replayed.counts)
        return found, failures

    def _explained(self, recording: Recording, case: Case) -> Explained:
        if not self.exercise.kernel:
            most = self.exercise.most(**case.arguments) if self.exercise.most else None
            return torch_alone(recording, self.exercise.forbidden, most)
        if not recording.launches:
            raise KernelFailure(KEPT if is_kept(recording) else "no Triton kernel was launched")
        most = self.exercise.limits.reply_bytes
        if sum(math.prod(view["shape"]) * NAMED[view["dtype"]].itemsize for view in recording.result) > most:
            raise LimitReached(f"the results exceed {most >> 20} MiB")
        return explained(recording, data_of(case.arguments), self.exercise.copies)


def _taken_over(exercise: Exercise, case: Case, recording: Recording, result: Any) -> str | None:
    """Return of which arguments a wrong result takes the integers of the earlier call (see `running.earlier`)."""
    unnamed, arguments = replace(exercise, mistakes=()), case.arguments
    kept = [each for each in recording.storages if "content" in each and NAMED[each["dtype"]] in INTEGERS]
    if not kept or assess(unnamed, arguments, result) is None:
        return None
    smaller = earlier(arguments).items()
    others = {name: value for name, value in smaller if not torch.equal(_whole(value), _whole(arguments[name]))}

    def gives(part: Mapping[str, Any]) -> bool:
        with suppress(Exception):  # whatever an oracle makes of numbers that may not belong together
            return assess(unnamed, {**arguments, **part}, result) is None
        return False

    def holds(value: Any) -> bool:
        whole = _whole(value)
        same = (each for each in kept if each["bytes"] == len(whole) * NAMED[each["dtype"]].itemsize)
        contents = (each["content"].clone().view(NAMED[each["dtype"]]).long() for each in same)  # aligned
        return len(whole.unique()) > 1 and any(torch.equal(whole, each) for each in contents)

    taken = [name for name, value in others.items() if holds(value) or gives({name: value})]
    taken = taken or [*others] * gives(others)
    return TAKEN.format(" and ".join(taken)) if taken else None


def _whole(value: Any) -> torch.Tensor:
    """Return the integers of nested tensors, one after the other."""
    found = [each.flatten().long() for each in tensors_in(value) if each.dtype in INTEGERS]
    return torch.cat(found) if found else torch.empty(0, dtype=torch.long)


def _unlike(first: Recording, second: Recording) -> str | None:
    """Return what two calls on other data of the same shapes launch or return otherwise, as a sentence, or None."""
    for one, other in itertools.zip_longest(map(_shown, first.launches), map(_shown, second.launches)):
        if one != other:
            ways = (each or "nothing more" for each in (one, other))
            return f"{HANGS}: {one_line(' in one call, '.join(ways), 400)} in another"
    owners = [[[(n, name) for n, launch in enumerate(call.launches) for name, arg in launch["args"].items()
                if arg.get("tensor", {}).get("storage") == view["storage"]] for view in call.result]
              for call in (first, second)]  # fmt: skip
    return None if owners[0] == owners[1] else f"{HANGS}: they return other tensors"


def _kept(first: Recording, second: Recording) -> list[int]:
    """Return the storages that both calls give their launches in the same places; none if calls take turns in some."""
    found = set()
    for one, other in zip(first.launches, second.launches, strict=True):
        for name, arg in other["args"].items():
            view = arg.get("tensor", {})
            before = second.storages[view["storage"]].get("before") if view else None
            if before is None:
                continue
            if one["args"].get(name, {}).get("tensor") != {**view, "storage": before}:
                return []
            found.add(view["storage"])
    return sorted(found)


def _shown(launch: Mapping[str, Any]) -> str:
    """Return a launch as a text: kernel, grid, and what it is given besides tensors."""
    numbers = {name: next(iter(arg.values())) for name, arg in launch["args"].items() if "tensor" not in arg}
    given = ", ".join(f"{name}={value}" for name, value in {**numbers, **launch["options"]}.items())
    return f"{launch['kernel']}{launch['grid']}({given})"


def _failure(error: Exception, case: Case, recording: Recording | None = None) -> Failure:
    """Return the failure of a case by an error: of a limit that its recording reached, with the largest launch."""
    if not isinstance(error, LimitReached):
        return Failure(Outcome.WRONG, str(error), case=str(case))
    launches = recording.launches if recording and LONG not in str(error) else ()
    largest = max(((math.prod(each["grid"]), each["kernel"]) for each in launches), default=None)
    hint = ": the largest grid is that of {1}, of {0} programs".format(*largest) if largest else ""
    fewer = FEWER if hint and "took more" in str(error) and largest[0] > 1 else ""
    return Failure(Outcome.TIME, f"{error}{hint}{fewer}", case=str(case))
