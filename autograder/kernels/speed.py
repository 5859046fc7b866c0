"""The verdict on a kernel's speed: its time beside the least a GPU can take and beside an eager baseline.

Where there is no GPU the time is modelled (see `kernels.model`). Where there is one it is measured (see
`kernels.measure`). Both say so. No model tells the time of kernels in Gluon: without a GPU their machine code is looked
at for facts, which an exercise names.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

from autograder.isolation.sandbox import SandboxError
from autograder.judging import judge
from autograder.judging.exercise import Exercise, Part
from autograder.judging.program import Cell, digest_of
from autograder.judging.verdict import Outcome, PartVerdict, Verdict
from autograder.kernels import cost_model
from autograder.kernels.answers import Answers
from autograder.kernels.compile import compile_launches
from autograder.kernels.cost_model import Constants
from autograder.kernels.explain import data_of, explained
from autograder.kernels.full_size import FullSize
from autograder.kernels.measure import BAND, GpuWorker
from autograder.kernels.model import NEARLY, Known, Modelled, Timed, floor_dtype, form_of, model_call
from autograder.kernels.record import Recording, kernels_of, record
from autograder.kernels.worker import recording
from autograder.kernels.workers import KernelFailure, KernelWorkers, LimitReached, Unchecked
from autograder.text import percent_below
from mla_ref.hardware.devices import DEVICES, Device, find_device

SAMPLED = 0.02  # of a modelled time: by so much it may hang on which programs a secret seed chooses
MORE = 1.1  # of the compulsory FLOPs, as tails are multiplied with what lies beyond them
ALONE = 0.5  # of them, in one program of a small call
FED = 64.0  # bytes that a multiprocessor of Hopper takes from the L2 cache in a cycle, at most
MULTIPLIED = 4096.0  # and the FLOPs of its tensor cores in 16 bits, at most


@dataclass(frozen=True)
class Attained(Timed):
    """A time and what to hold it against, in seconds.

    Attributes
    ----------
    how, device
        "modelled" or "measured", and on what: a name for people.
    seconds, noise
        Of a call; measured, with the 20th and 80th percentile.
    floor, baseline
        The least by the device's bandwidth and rate, and what the eager baseline takes.
    bytes, flops, bandwidth, rate
        Of the work, and the device's ceilings in bytes and FLOP a second: the roofline picture needs them.
    steps
        A row for each launch and each pass of torch.
    copy
        What a copy of the work's bytes takes, if they are what bounds it; else 0.
    slack
        The share of a bar that noise may hide: within it a bar is reached. Below 0, by how much it has to be exceeded.
    unequal_units
        Whether the baseline has units that Triton does not use on this device: then it is no bar.
    """

    how: str
    device: str
    seconds: float
    floor: float
    baseline: float
    bytes: float
    flops: float
    bandwidth: float
    rate: float
    steps: tuple[Mapping[str, Any], ...] = ()
    notes: tuple[str, ...] = ()
    noise: tuple[float, float] | None = None
    copy: float = 0.0
    slack: float = 0.0
    unequal_units: bool = False


def judge_speed(
    exercise: Exercise, program: Sequence[Cell], worker: KernelWorkers | GpuWorker, seed: str = ""
) -> Verdict:
    """Return the verdict on the speed of a program whose answers are right, modelled or measured as the worker does.

    Never raises for what the program does. What is modelled is compared in a small call, on data drawn from `seed`.
    """
    started = time.monotonic()
    try:
        if isinstance(worker, GpuWorker):
            verdict = verdict_on(exercise, measure(exercise, program, worker))
        elif exercise.speed.facts:
            compared = compiled_and_compared(exercise, program, worker, seed)
            verdict = by_facts(exercise, compared, compiled_at_full_size(exercise, program, worker, compared))
        else:
            verdict = verdict_on(exercise, model(exercise, program, worker, seed))
    except KernelFailure as error:
        verdict = judge.zero(exercise, Outcome.ERROR, str(error), of_speed=True)
    except LimitReached as error:
        verdict = judge.zero(exercise, Outcome.TIME, str(error), of_speed=True)
    except SandboxError as error:
        verdict = judge.fault(exercise, str(error), of_speed=True)
    except Exception as error:  # whatever the model trips over, it is not the student's zero
        verdict = judge.fault(exercise, repr(error), of_speed=True)
    return replace(verdict, seconds=round(time.monotonic() - started, 4))


def model(exercise: Exercise, program: Sequence[Cell], workers: KernelWorkers, seed: str = "") -> Attained:
    """Return the modelled time of the exercise's case at full size.

    What the kernels do there is held against calls of which the answer is compared, and rows of the results against the
    oracle.

    Raises KernelFailure, LimitReached, SandboxError.
    """
    speed = exercise.speed
    arguments = exercise.inputs(None, **speed.case)
    floor = speed.floor(**speed.case)
    slack = 0.0 if seed else -SAMPLED  # what a check, which has none, finds fast enough a grader does

    own = f"{seed} {digest_of(program)}"  # what a verdict says of the places that were looked at is of no use to others
    full = FullSize(exercise, own) if speed.axes else None

    @_at_full_size()
    def timed(known: Known | None) -> Modelled:
        return model_call(workers, program, exercise.name, arguments, floor, speed.device, known, full, exercise.copies)

    if speed.small is None:
        return attained(exercise, timed(None), slack)
    known = _known(_compared(_small(exercise), program, workers, seed))
    try:
        return attained(exercise, timed(known), slack)
    except Unchecked:  # unless the cases of the parts go where the small call does not
        known |= _known(_compared(exercise, program, workers, seed))
    try:
        return attained(exercise, timed(known), slack)
    except Unchecked as error:
        here, there = (
            ", ".join(f"{name}={sizes[name]}" for name in speed.small) for sizes in (speed.case, speed.small)
        )
        said = f"Here {here}; compared were {there} and the exercise's cases"
        raise Unchecked(f"{error}. {said}: one of these has to do what is done here, with smaller tiles, say") from None


@dataclass(frozen=True)
class Compiled:
    """What the compiler says of a call's launches, what it does in order, and why no fact counts; "" if they do.

    The tensor cores can be busy for a `share` of the time, at most, for the reason that is `held`. They do so many
    FLOPs `per_byte` that is fetched.
    """

    launches: Sequence[Mapping[str, Any]]
    form: tuple[str, ...]
    reason: str
    share: float = 1.0
    held: str = ""
    per_byte: float = 0.0


def compiled_and_compared(
    exercise: Exercise, program: Sequence[Cell], workers: KernelWorkers, seed: str = ""
) -> Compiled:
    """Return what is said of the small call, the answer of which is compared.

    `warpgroup_mma` has to do its compulsory FLOPs, hardly any more, and not most of them in one program.

    Raises KernelFailure, LimitReached, SandboxError.
    """
    speed = exercise.speed
    answers = _compared(_small(exercise), program, workers, seed)
    ((number, recording),) = answers.recordings.items()
    compiled = compile_launches(workers, kernels_of(program, recording), recording, speed.device)
    every, most = answers.warpgroup_flops[number]
    share = every / speed.floor(**{**speed.case, **speed.small}).flops
    reason = ""
    if share < NEARLY:
        reason = f"warpgroup_mma does {share:.0%} of the FLOPs that the work takes: do the products by it"
    elif share > MORE:
        reason = f"warpgroup_mma does {share:.0%} of the FLOPs that the work takes: leave out what nobody needs"
    elif most > ALONE * every:
        reason = f"one program does {most / every:.0%} of the products, while others wait: share them out"
    per_byte = every / max(answers.copied[number], 1)
    share, held = min([_fed(per_byte), *_shares(recording, compiled, DEVICES[speed.device], per_byte)])
    return Compiled(compiled, form_of(recording), reason, share, held, per_byte)


def _shares(
    recording: Recording, compiled: Sequence[Mapping[str, Any]], device: Device, per_byte: float
) -> Iterator[tuple[float, str]]:
    """Yield for each loop with products or copies `(share, held)` as in `Compiled`."""
    for launch, each in zip(recording.launches, compiled, strict=True):
        blocks = cost_model.resident_blocks(each, device)
        for loop in each["product_loops"]:
            yield _busy(loop, max(1, blocks * each["warps"] // 4))
        largest = max(map(_box_bytes, launch["args"].values()), default=0)
        for loop in each["copy_loops"]:
            yield _fetched(loop, blocks * loop["copies"] * largest * per_byte / MULTIPLIED)


def _box_bytes(argument: Mapping[str, Any]) -> int:
    """Return the bytes that a copy by an argument brings: 0 if it is no descriptor."""
    if "descriptor" not in argument:
        return 0
    return math.prod(argument["descriptor"]["block_shape"]) * recording.NAMED[argument["tensor"]["dtype"]].itemsize


def _fed(per_byte: float) -> tuple[float, str]:
    """Return the share of the time for which tensor cores are busy that get a byte for so many FLOPs, and why."""
    held = f"{per_byte:.3g} FLOPs for each byte that is fetched leave the tensor cores {{}} of the time, as a"
    held += f" multiprocessor takes {FED:.0f} bytes a cycle from the L2 cache at most: multiply larger tiles"
    return min(1.0, per_byte * FED / MULTIPLIED), held


def _busy(loop: Mapping[str, Any], groups: int) -> tuple[float, str]:
    """Return the share of the time for which so many warpgroups have the tensor cores busy in a loop, and why."""
    if loop["inner"]:
        return 0.0, "a loop turns within the one with products, and nothing tells how long: unroll it (static_range)"
    cycles, beside = loop["cycles"], max(loop["beside"], loop["turn"] // groups)
    held = f"the products of a turn take {cycles} cycles, and what is beside them {beside} at the least"
    return min(1.0, cycles / max(beside, 1)), f"{held}: the tensor cores are {{}} of the time"


def _fetched(loop: Mapping[str, Any], cycles: float) -> tuple[float, str]:
    """Return the share of the time for which the tensor cores have what a loop fetches, and why.

    What a turn brings takes them so many `cycles`, at most.
    """
    if loop["inner"]:
        return 0.0, "a loop turns within the one that fetches, and nothing tells how long: unroll it (static_range)"
    held = f"a turn of the loop that fetches takes {loop['turn']} cycles at the least, and the products of what it"
    return min(1.0, cycles / max(loop["turn"], 1)), f"{held} brings {cycles:.0f}: the tensor cores are {{}} of the time"


def compiled_at_full_size(
    exercise: Exercise, program: Sequence[Cell], workers: KernelWorkers, small: Compiled
) -> Compiled:
    """Return what is said of the call at full size, which does in order what the `small` one did, that was compared.

    A launch that multiplies has to have a program for nearly each of the device's multiprocessors. No kernel runs.

    Raises KernelFailure, LimitReached, SandboxError.
    """
    speed, device = exercise.speed, DEVICES[exercise.speed.device]
    arguments = exercise.inputs(None, **speed.case)
    with _at_full_size():
        found = explained(record(workers, program, exercise.name, arguments), data_of(arguments), exercise.copies)
        if found.untimed:
            raise KernelFailure(found.untimed)
        recording = found.recording
        if form_of(recording) != small.form:
            raise KernelFailure(
                f"{', '.join(form_of(recording))} follow one another, and did not where it was compared"
            )
        compiled = compile_launches(workers, kernels_of(program, recording), recording, speed.device)
    programs = [
        math.prod(launch["grid"])
        for launch, each in zip(recording.launches, compiled, strict=True)
        if each["product_loops"]
    ]
    reason = ""
    if min(programs, default=device.sms) < NEARLY * device.sms:
        reason = f"at full size {min(programs)} programs multiply, and {device.name} has {device.sms} multiprocessors"
    share, held = min(_shares(recording, compiled, device, small.per_byte), default=(1.0, ""))
    return Compiled(compiled, small.form, reason, share, held, small.per_byte)


def by_facts(exercise: Exercise, *calls: Compiled) -> Verdict:
    """Hold what the compiler says of each call's launches against the exercise's facts.

    They earn no more than the last bar that the tensor cores can reach.
    """
    speed, parts = exercise.speed, []
    reason = next((call.reason for call in calls if call.reason), "")
    slowest = min(calls, key=lambda call: call.share)
    left = speed.points * max((earns for bar, earns in speed.bars if slowest.share >= bar), default=0.0)
    for fact in speed.facts:
        reason = reason or next(filter(None, (fact.missing(call.launches) for call in calls)), "")
        points = speed.points * fact.share
        earned = 0.0 if reason else min(points, left)
        if not reason and points > left:
            reason = slowest.held.format(f"busy at most {slowest.share:.0%}")
        parts.append(PartVerdict(fact.name, points, earned, reason))
        left -= earned
    score = sum(part.score for part in parts)
    outcome = Outcome.PASSED if not reason else Outcome.PARTIAL if score else Outcome.SLOW
    notes = [f"by the machine code for {DEVICES[speed.device].name}: where there is a GPU, the clock decides"]
    notes += dict.fromkeys(note for call in calls for each in call.launches for note in _of_pipelines(each))
    return Verdict(*exercise.graded(of_speed=True), score, outcome, reason, None, tuple(parts), tuple(notes))


def _of_pipelines(compiled: Mapping[str, Any]) -> list[str]:
    """Return what the compiler says of a launch that starts products and goes on, as sentences."""
    found = [f"{compiled['registers']} registers a thread and {compiled['shared'] / 1024:.4g} KiB of shared memory"]
    for loop in compiled["product_loops"]:
        said = f"a loop starts products by {loop['products']} instructions"
        said += f", with {loop['registers']} registers a thread" if loop["registers"] else ""
        for name in ("exponentials", "copies", "spills"):
            beside, every = loop[name]
            said += f"; {beside} of {every} {name} stand where a product is under way" if every else ""
        found.append(said)
    return list(dict.fromkeys(found))


@contextmanager
def _at_full_size() -> Iterator[None]:
    """Say of what fails in the body that it did at full size."""
    try:
        yield
    except (KernelFailure, LimitReached) as error:
        raise type(error)(f"at full size: {error}") from None


def _small(exercise: Exercise) -> Exercise:
    """Return the exercise with one case: the small call."""
    speed = exercise.speed
    return replace(exercise, parts=(Part("small", speed.points, [{**speed.case, **speed.small}]),))


def _known(answers: Answers) -> Known:
    return Known(answers.ran, {form_of(recording) for recording in answers.recordings.values()})


def _compared(exercise: Exercise, program: Sequence[Cell], workers: KernelWorkers, seed: str) -> Answers:
    """Return the answers of the exercise's cases, all found right.

    Raises KernelFailure, LimitReached, SandboxError.
    """
    answers = Answers(exercise, program, workers)
    found = judge.judge(exercise, program, seed, workers.sandbox, answers)
    if found.outcome is Outcome.FAULT:
        raise SandboxError(found.reason)
    if found.outcome is not Outcome.PASSED:
        kind = LimitReached if found.outcome is Outcome.TIME else KernelFailure
        raise kind(f"before it is timed: {found.reason}")
    return answers


def measure(exercise: Exercise, program: Sequence[Cell], worker: GpuWorker) -> Attained:
    """Return the measured time of the exercise's case at full size.

    Raises KernelFailure, LimitReached, SandboxError.
    """
    with _at_full_size():
        found = worker.measure(program, exercise)
    work = exercise.speed.floor(**exercise.speed.case)
    key = find_device(found.device)
    known = DEVICES[key] if key else None
    bandwidth = known.bandwidth() if known else work.bytes / found.floor
    return Attained(
        how="measured",
        device=found.device,
        seconds=found.seconds,
        floor=found.floor,
        baseline=found.baseline,
        bytes=work.bytes,
        flops=work.flops,
        bandwidth=bandwidth,
        rate=known.rate(floor_dtype(key)) if known else max(work.flops / found.floor, 200 * bandwidth),
        steps=tuple(found.table()),
        notes=(f"{found.calls} calls were timed, each on data of its own", *found.notes),
        noise=found.noise,
        slack=BAND,
        unequal_units=bool(known and found.dots and not known.sm.matrix_units),
    )


def attained(exercise: Exercise, found: Modelled, slack: float = 0.0) -> Attained:
    """Return a modelled time beside the floor and the baseline. Raises RuntimeError for a time below the floor."""
    speed, device = exercise.speed, DEVICES[found.device]
    floor = speed.floor(**speed.case)
    if found.seconds < found.floor:
        raise RuntimeError(f"the modelled {found.seconds:.3g} s are less than any kernel takes: {found.floor:.3g} s")
    k = Constants.load(found.device)
    by_memory = floor.memory_time(device) >= floor.compute_time(device, found.dtype)
    return Attained(
        how="modelled",
        device=device.name,
        seconds=found.seconds,
        floor=found.floor,
        baseline=baseline_seconds(exercise),
        bytes=floor.bytes,
        flops=floor.flops,
        bandwidth=device.bandwidth(),
        rate=device.rate(found.dtype),
        steps=(
            *found.table(),
            {"step": "launching", "us": round(found.overhead * 1e6, 3), "further": k.next_launch * 1e6},
        ),
        notes=found.notes,
        copy=cost_model.copy_time(floor.bytes, device, k) if by_memory else 0.0,
        unequal_units=not device.sm.matrix_units and any(counts["dots"] for counts in found.counts),
        slack=slack,
    )


def baseline_seconds(exercise: Exercise) -> float:
    """Return the modelled time of the exercise's baseline: a pass over memory for each operation of torch."""
    speed = exercise.speed
    arguments = exercise.inputs(None, **speed.case)
    with recording.recording(arguments) as recorder:
        speed.baseline(*arguments.values())
    events = [(event["op"][0], event, None) for event in recorder.events]
    sizes = [storage["bytes"] for storage in recorder.storages]
    seconds, _ = cost_model.total_time(events, DEVICES[speed.device], Constants.load(speed.device), sizes)
    return seconds


def verdict_on(exercise: Exercise, found: Attained) -> Verdict:
    """Hold an attained time against the exercise's bars."""
    speed, parts, before = exercise.speed, [], 0.0
    if found.unequal_units and speed.ratio > 1:
        note = f"on {found.device} the baseline may use matrix units, and Triton does not: it is no bar"
        found = replace(found, notes=(*found.notes, note))
    for number, (fraction, share) in enumerate(speed.bars):
        last = number == len(speed.bars) - 1
        needs_ratio = last and speed.ratio > 1 and not found.unequal_units
        name = f"{fraction:.0%} of the floor's speed" + (f", {speed.ratio:g}× the baseline's" if needs_ratio else "")
        points = speed.points * (share - before)
        needs = [(found.fraction, fraction), *[(found.ratio, speed.ratio)] * needs_ratio]
        reached = all(has >= bar * (1 - found.slack) for has, bar in needs)
        below = percent_below(found.fraction)
        reason = "" if reached else f"{below} of the floor's speed, {found.ratio:.2g}× the baseline's"
        if not reached and all(has >= bar for has, bar in needs):
            reason += " (so near a bar that it hangs on which programs the grader counts)"
        parts.append(PartVerdict(name, points, points if reached else 0.0, reason))
        before = share
    score = sum(part.score for part in parts)
    missed = next((part for part in parts if not part.score), None)
    outcome = Outcome.PASSED if missed is None else Outcome.PARTIAL if score else Outcome.SLOW
    reason = ""
    if missed:
        reason = f"{found.how} on {found.device}: {missed.reason}; the next points take {missed.name}"
        reason += "".join(f"; {note}" for note in found.notes if "spills" in note)
    return Verdict(
        *exercise.graded(of_speed=True), score, outcome, reason, None, tuple(parts), found.notes, as_dict(found)
    )


def as_dict(found: Attained) -> dict[str, Any]:
    """Return an attained time as plain data."""
    data = {**asdict(found), "fraction": found.fraction, "ratio": found.ratio}
    return json.loads(json.dumps(data))  # as the store will give it back
