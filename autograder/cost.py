"""The modelled speed of a student's kernels: record the launches, compile them, replay them, add up.

    with Bench() as bench:
        modelled = bench.measure(program, "rms_norm", arguments, floor=cost, device="h100")
    modelled.seconds, modelled.fraction, modelled.table()

No step runs where the judge's secrets are. The student's own code runs in the first step only, and what it says about
itself is not believed: the kernels that it names are cut from the notebook's source, compiled, and replayed in a clean
process on the judge's own inputs.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

import torch

from autograder import cost_model
from autograder.cost_model import ARCHS, Constants, DoesNotFit, LaunchTime
from autograder.kernel_program import NotAKernel, kernel_program
from autograder.program import Cell
from autograder.sandbox import Limits, Reply, Sandbox
from autograder.worker.layout import is_wide, stood_in
from autograder.worker.recording import NAMED
from autograder.worker.trees import by_name, tensors_in
from mla_ref.devices import DEVICES
from mla_ref.roofline import Cost

SAMPLE = 24  # programs of a launch that are run to count what it does
NEARLY = 0.9  # of the compulsory work: what is counted from a sample of programs may be a little off
ROUGHLY = 0.85  # of it, where the programs of a sample are not alike
LARGEST_INDEX = 1 << 24  # integers beyond it may be other numbers' bits
MAX_LAUNCHES = 256
MAX_BYTES = 4 << 30  # of what a call makes
MOST_BYTES = 1 << 40  # of any tensor
REPLY_BYTES = 1 << 30
ADDRESSES = 64 << 30  # bytes that a replay may map: large storages are touched in few places


class KernelFailure(RuntimeError):
    """The kernels cannot be modelled, and why: a sentence for the student."""


class Unchecked(KernelFailure):
    """The kernels do something that they did in no call whose answer was compared."""


class LimitReached(RuntimeError):
    """A step took more time or memory than it may."""


# An execution whose answer was compared, and its arguments.
Execution = tuple["Recording", Mapping[str, Any]]


@dataclass(frozen=True)
class Recording:
    """What a call launched, by its own account: checked for form, not for truth."""

    launches: list[dict[str, Any]]
    events: list[dict[str, Any]]
    storages: list[dict[str, Any]]
    result: list[dict[str, Any]]
    returned: Any = None
    changed: Any = None


@dataclass(frozen=True)
class Replayed:
    """What the launches did in a clean process: the counts of each, and of the storages asked for the final bytes and
    which of them kernels wrote. Of `wide` storages these are the bytes of the argument's elements."""

    counts: list[dict[str, Any]]
    content: dict[int, torch.Tensor] = field(default_factory=dict)
    covered: dict[int, torch.Tensor] = field(default_factory=dict)
    wide: Set[int] = frozenset()


class Timed:
    """What a time says beside its floor and, where there is one, beside a baseline's time. In seconds."""

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
            row = {"step": step.name, "us": round(step.seconds * 1e6, 3), "bound": step.bound}
            if not step.host:
                counts, compiled = next(launches)
                moved = counts["distinct"].values()
                row |= {
                    "programs": counts["programs"],
                    "distinct_bytes": sum(sum(marks.values()) for marks in moved),
                    "issued_bytes": sum(counts["access"][kind]["bytes"] for kind in counts["access"]),
                    "registers": compiled["registers"],
                    "spill_bytes": compiled["stack_bytes"],
                    "shared_bytes": compiled["shared"],
                    "tensor_instructions": compiled["instructions"].get("tensor", 0),
                    "load_widths": dict(compiled["widths"]["load"]),
                    "blocks_per_sm": step.resident,
                }
            rows.append(row)
        return rows


class Bench:
    """The two workers that modelling needs, one that interprets kernels and one that compiles them."""

    def __init__(self, isolation: str | None = None, limits: Limits | None = None):
        self.limits = limits or Limits(seconds=60.0, memory=8 << 30)
        self.interpreter = Sandbox(isolation, "interpreter")
        self.compiler = Sandbox(isolation, "compiler")

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """End the workers."""
        self.interpreter.close()
        self.compiler.close()

    def measure(
        self,
        program: Sequence[Cell],
        entry: str,
        arguments: Mapping[str, Any],
        floor: Cost,
        device: str = "h100",
        forbidden: Sequence[str] = (),
        constants: Constants | None = None,
        compared: Sequence[Execution] = (),
    ) -> Modelled:
        """Return the modelled time of one call on a device of `mla_ref.DEVICES`.

        Tensors of device "meta" among the arguments stand for a shape: full sizes cost nothing, and kernels read zeros.
        Given executions whose answers were `compared`, the kernels may do nothing that they did in none of them.

        Raises
        ------
        KernelFailure, LimitReached
            The student's, with a sentence. Failures of the workers themselves raise SandboxError.
        """
        recording = self.record(program, entry, arguments, execute=False, forbidden=forbidden)
        source = kernels_of(program, recording, *(each for each, _ in compared))
        compiled = self.compile(source, recording, device)
        replayed = self.replay(source, recording, arguments, compiled, sample=SAMPLE, trace=bool(compared))
        found = modelled(recording, replayed, compiled, floor, device, constants)
        if reason := shortfall(found, floor):
            raise KernelFailure(reason)
        if compared:
            known = self.replays(source, [_replay(each, given, trace=True) for each, given in compared])
            _check_compared(source, (recording, replayed), [(r, k) for (r, _), k in zip(compared, known, strict=True)])
        return found

    def record(
        self,
        program: Sequence[Cell],
        entry: str,
        arguments: Mapping[str, Any],
        execute: bool,
        forbidden: Sequence[str] = (),
        limits: Limits | None = None,
    ) -> Recording:
        """Run the student's program and function once, its launches noted; with `execute`, kernels run too.

        Raises KernelFailure with what the program raised, LimitReached.
        """
        request = {
            "program": [dataclasses.asdict(cell) for cell in program],
            "entry": entry,
            "driver": "call",
            "forbidden": list(forbidden),
            "cases": [stood_in(dict(arguments))],
            "record": "execution" if execute else "launches",
        }
        limits = limits or self.limits
        reply = self.interpreter.run(request, limits)
        case = next((message for message in reply.messages if message.get("event") == "case"), None)
        if case is None and any(message.get("event") == "missing" for message in reply.messages):
            raise KernelFailure(f"the program defines no function called {entry}")
        for message in [case] if case else reply.messages:
            for key in ("error", "unsupported"):
                if key in message:
                    raise KernelFailure(sentence(message[key]))
        if case is None:
            raise _ended(reply, limits, "the call")
        return checked(case.get("notes"), case.get("result"), case.get("changed"))

    def compile(self, source: str, recording: Recording, device: str) -> list[dict[str, Any]]:
        """Compile each launch for a device and return what the compiler says of it.

        Raises KernelFailure for a kernel that does not compile or does not fit.
        """
        found = self._compile(source, recording.launches, device)
        for launch, compiled in zip(recording.launches, found, strict=True):
            try:
                cost_model.resident_blocks(compiled, DEVICES[device], ARCHS[device])
            except DoesNotFit as error:
                raise KernelFailure(f"{launch['kernel']}: {error}") from None
        return found

    def check_compiles(self, source: str, launches: Sequence[Mapping[str, Any]], device: str) -> None:
        """Raise KernelFailure unless the compiler takes the launches for Triton: the interpreter runs any Python."""
        self._compile(source, launches, device, only_check=True)

    def _compile(
        self, source: str, launches: Sequence[Mapping[str, Any]], device: str, only_check: bool = False
    ) -> list[dict[str, Any]]:
        backend, number, warp_size = ARCHS[device].target
        request = {
            "task": "compile",
            "source": source,
            "launches": [_bare(launch) for launch in launches],
            "target": {"backend": backend, "arch": number, "warp_size": warp_size},
            "only_check": only_check,
        }
        found = self._perform(self.compiler, request, "compiling")["launches"]
        for launch, compiled in zip(launches, found, strict=True):
            if "error" in compiled:
                raise KernelFailure(
                    f"{launch['kernel']} does not compile for {DEVICES[device].name}: {compiled['error']}"
                )
        return found

    def replay(
        self,
        source: str,
        recording: Recording,
        arguments: Mapping[str, Any],
        compiled: Sequence[Mapping[str, Any]] = (),
        sample: int | None = None,
        contents: Sequence[int] = (),
        trace: bool = False,
    ) -> Replayed:
        """Run the launches in a clean process, on the judge's own arguments; sampled, or every program.

        With `trace` the counts say which operations ran. Raises KernelFailure for an access out of bounds.
        """
        (found,) = self.replays(source, [_replay(recording, arguments, compiled, sample, contents, trace)])
        if isinstance(found, Exception):
            raise found
        return found

    def prove(self, source: str, executions: Sequence[Execution]) -> list[Replayed | KernelFailure | LimitReached]:
        """Run the launches of several executions, every program, in one clean process.

        Of each: what it did, with the bytes of the result, or why there is nothing.
        """
        return self.replays(source, [_replay(each, args, contents=result_storages(each)) for each, args in executions])

    def replays(
        self, source: str, wanted: Sequence[dict[str, Any] | KernelFailure]
    ) -> list[Replayed | KernelFailure | LimitReached]:
        """Have replays made, in the order of `wanted`: see `_replay`. What is a failure already stays one."""
        found: list[Any] = list(wanted)
        todo = [n for n, each in enumerate(wanted) if isinstance(each, dict)]
        while todo:
            size, group = 0, []
            while todo and (not group or size + len(wanted[todo[0]]["launches"]) <= MAX_LAUNCHES):
                size += len(wanted[todo[0]]["launches"])
                group.append(todo.pop(0))
            for number, each in zip(group, self._group(source, [wanted[n] for n in group]), strict=True):
                found[number] = each
        return found

    def _group(self, source: str, group: list[dict[str, Any]]) -> list[Replayed | KernelFailure | LimitReached]:
        request = {"task": "replay", "source": source, "replays": group}
        reply, limits = self._run(self.interpreter, request, self.limits.seconds * min(len(group), 3))
        found: list[Any] = []
        for answer, each in zip(reply.messages, group, strict=False):
            if "error" in answer:
                found.append(_refused(answer["error"]))
                continue
            parts = [{int(n): raw for n, raw in answer[key].items()} for key in ("content", "covered")]
            wide = {number for number, storage in enumerate(each["storages"]) if "elements" in storage}
            found.append(Replayed(answer["launches"], *parts, wide))
        rest = _ended(reply, limits, "replaying the launches")
        if found and reply.messages[-1].get("event") == "failed":
            rest = found[-1]
        return found + [rest] * (len(group) - len(found))

    def _perform(self, sandbox: Sandbox, request: dict[str, Any], what: str) -> dict[str, Any]:
        reply, limits = self._run(sandbox, request, self.limits.seconds)
        for message in reply.messages:
            if message.get("event") == "failed":
                raise _refused(message["error"])
            return message
        raise _ended(reply, limits, what)

    def _run(self, sandbox: Sandbox, request: dict[str, Any], seconds: float) -> tuple[Reply, Limits]:
        limits = dataclasses.replace(self.limits, seconds=seconds, memory=ADDRESSES, reply_bytes=REPLY_BYTES)
        return sandbox.run(request, limits), limits


def _replay(
    recording: Recording,
    arguments: Mapping[str, Any],
    compiled: Sequence[Mapping[str, Any]] = (),
    sample: int | None = None,
    contents: Sequence[int] = (),
    trace: bool = False,
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
    return {"launches": launches, "storages": storages, "sample": sample, "return": list(contents), "trace": trace}


def _refused(error: Mapping[str, Any]) -> KernelFailure:
    return KernelFailure(error["message"] if error["type"] == "OutOfBounds" else sentence(error))


def kernels_of(program: Sequence[Cell], *recordings: Recording) -> str:
    """Return the program of all kernels that the recordings name.

    Raises KernelFailure if there are no launches, or if the kernels cannot be cut out.
    """
    names = [launch["kernel"] for recording in recordings for launch in recording.launches]
    if not names:
        raise KernelFailure("no Triton kernel was launched")
    try:
        return kernel_program([cell.source for cell in program], names)
    except NotAKernel as error:
        raise KernelFailure(str(error)) from None


def modelled(
    recording: Recording,
    replayed: Replayed,
    compiled: Sequence[Mapping[str, Any]],
    floor: Cost,
    device: str = "h100",
    constants: Constants | None = None,
) -> Modelled:
    """Return the modelled time of recorded, compiled and replayed launches."""
    target, arch = DEVICES[device], ARCHS[device]
    events, notes, number = [], [], 0
    made = {n for event in recording.events if event["kind"] == "host" for n, _ in event["writes"]}
    for event in recording.events:
        if event["kind"] == "host":
            events.append((event["op"], event, None))
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
    seconds, steps = cost_model.total_time(events, target, arch, constants or Constants.load())
    hosts = [name for name, _, what in events if what is None]
    if hosts:
        notes.append(f"{len(hosts)} passes on the host: {', '.join(hosts[:6])}")
    for event, counts, report in zip(recording.launches, replayed.counts, compiled, strict=True):
        if not counts["exact"]:
            how = "alike" if counts["alike"] else "not alike, so the figures are estimates"
            notes.append(
                f"{event['kernel']}: {counts['sampled']} of {counts['programs']} programs were run; they are {how}"
            )
        if report["stack_bytes"]:
            notes.append(f"{event['kernel']} spills: {report['stack_bytes']} bytes of stack a thread")
    dtype = floor_dtype(any(each["dots"] for each in replayed.counts), device)
    least = floor.time(target, dtype=dtype)
    return Modelled(device, seconds, least, tuple(steps), tuple(replayed.counts), tuple(compiled), tuple(notes), dtype)


def shortfall(found: Modelled, floor: Cost) -> str | None:
    """Return what of the compulsory work the launches leave out, or None.

    No result is computed at full size, so a function could do less there than where its answers were compared.
    """
    enough = NEARLY if all(counts["alike"] or counts["exact"] for counts in found.counts) else ROUGHLY
    moved = sum(sum(marks.values()) for counts in found.counts for marks in counts["distinct"].values())
    if moved < enough * floor.bytes:
        return f"the kernels touch {moved / 1e6:.4g} MB, and the work takes {floor.bytes / 1e6:.4g} MB at least"
    products = sum(sum(counts["dots"].values()) for counts in found.counts)
    arch = ARCHS[found.device]
    if not products:  # multiplied and added outside the matrix units, two halves at a time
        products = sum(
            4 * cost_model.executed(counts, compiled)[0] * compiled["warps"] * arch.warp_size * counts["programs"]
            for counts, compiled in zip(found.counts, found.compiled, strict=True)
        )
    if products < enough * floor.flops:
        return f"the products in the kernels are {products / 1e9:.4g} GFLOP, and the work takes {floor.flops / 1e9:.4g}"
    return None


def _check_compared(
    source: str, full: tuple[Recording, Replayed], compared: Sequence[tuple[Recording, Replayed | Exception]]
) -> None:
    """Raise Unchecked if an operation of a kernel runs at full size that ran in no call whose answer was compared."""

    def places(recording: Recording, replayed: Replayed) -> set[tuple[str, int, int]]:
        pairs = zip(recording.launches, replayed.counts, strict=True)
        return {(launch["kernel"], *place) for launch, counts in pairs for place in counts["ran"]}

    known = set().union(*(places(r, found) for r, found in compared if isinstance(found, Replayed)))
    if new := sorted(places(*full) - known):
        kernel, line, _ = new[0]
        text = source.splitlines()[line - 1].strip() if line else ""
        raise Unchecked(
            f"{kernel} runs `{text}` here, and ran it in no call whose answer was compared: kernels are timed for what "
            f"was found right"
        )


def _made_on_host(storage: int, recording: Recording) -> tuple[str, dict[str, Any], None]:
    """Return the charge for a storage whose making was not noted: a pass that reads as much, from elsewhere, as it
    writes."""
    size = recording.storages[storage]["bytes"]
    event = {"op": "made on the host", "reads": [[-1 - storage, size]], "writes": [[storage, size]]}
    return event["op"], event, None


def floor_dtype(dots: bool, device: str) -> str | None:
    """Return the type whose rate a floor takes: None, the matrix units' 16 bits, for `tl.dot` where it runs on them."""
    return None if dots and ARCHS[device].matrix else "float32"


def may_carry_data(value: Any) -> bool:
    """Return whether a number that a kernel gets could be a result: no small integer."""
    return isinstance(value, float) or (isinstance(value, int) and abs(value) > LARGEST_INDEX)


def _stored(storage: Mapping[str, Any], inputs: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    """Return a storage as a replay makes it: its size, and of an argument the content, as the judge has it."""
    found = {"bytes": storage["bytes"]}
    if "input" not in storage:
        return found
    tensor = inputs.get(storage["input"])
    wide = tensor is not None and is_wide(tensor)
    if tensor is None or storage["bytes"] != (tensor.untyped_storage().nbytes() if wide else tensor.nbytes):
        raise KernelFailure("the storages that were noted are not those of the arguments")
    if tensor.device.type != "meta":
        found["content"] = _raw(tensor)
    if wide:
        found["elements"] = [list(tensor.shape), list(tensor.stride()), tensor.element_size()]
    return found


def unexplained(recording: Recording, replayed: Replayed, arguments: Mapping[str, Any]) -> str | None:
    """Return why the replay does not account for the result, or None: the proof that the kernels computed it.

    The recording must be of an execution, and the replay have returned the storages of `result_storages`. Where the
    result is an argument, what it held before needs no kernel.
    """
    inputs = by_name(arguments)
    written = {int(n) for counts in replayed.counts for n, marks in counts["distinct"].items() if "write" in marks}
    returned = tensors_in(recording.returned)
    if len(returned) != len(recording.result):
        return "the result does not match what was noted of it"
    for tensor, view in zip(returned, recording.result, strict=True):
        if view["storage"] not in written:
            return "the result was not written by a kernel: what torch makes last, a cast say, belongs into the kernel"
        if view["storage"] in replayed.wide:
            view = _dense(view)
        again = _read(replayed.content[view["storage"]], view)
        if again.shape != tensor.shape or again.dtype != tensor.dtype:
            return "the result does not match what was noted of it"
        if not torch.equal(again.nan_to_num(), tensor.nan_to_num()):
            return "the kernels, launched again on the same arguments, do not give this result"
        unwritten = ~_written(replayed.covered[view["storage"]], view) & (again != 0)
        if (before := inputs.get(recording.storages[view["storage"]].get("input"))) is not None:
            unwritten &= again != _read(_raw(before), view)
        missed = int(unwritten.sum())
        if missed:
            return f"{missed} of {again.numel()} elements of the result were not written by a kernel"
    return None


def result_storages(recording: Recording) -> list[int]:
    """Return the storages in which the result lives."""
    return sorted({view["storage"] for view in recording.result})


def host_made(recording: Recording, replayed: Replayed) -> list[dict[str, Any]]:
    """Return what the kernels read that is neither an argument nor a kernel's output: its bytes and first reader."""
    found: dict[int, dict[str, Any]] = {}
    for launch, counts in zip(recording.launches, replayed.counts, strict=True):
        for number in counts["unwritten"]:
            if "input" in recording.storages[number] or number in found:
                continue
            names = [n for n, a in launch["args"].items() if a.get("tensor", {}).get("storage") == number]
            found[number] = {
                "bytes": recording.storages[number]["bytes"],
                "kernel": launch["kernel"],
                "argument": names[0] if names else "",
            }
    return list(found.values())


def _raw(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def _dense(view: Mapping[str, Any]) -> dict[str, Any]:
    """Return the view of a wide argument as one of its elements alone."""
    strides = torch.empty(view["shape"], device="meta").stride()
    return {**view, "strides": list(strides), "offset": 0}


def _read(raw: torch.Tensor, view: Mapping[str, Any]) -> torch.Tensor:
    return raw.view(NAMED[view["dtype"]]).as_strided(view["shape"], view["strides"], view["offset"])


def _written(covered: torch.Tensor, view: Mapping[str, Any]) -> torch.Tensor:
    whole = covered.view(-1, NAMED[view["dtype"]].itemsize).all(dim=1)
    return whole.as_strided(view["shape"], view["strides"], view["offset"])


# What comes from the student's process is checked before anything is made of it


def checked(notes: Mapping[str, Any], returned: Any = None, changed: Any = None) -> Recording:
    """Return the notes of a worker as a recording.

    Raises KernelFailure if they are not of the form that the recorder gives them.
    """
    try:
        storages = [_storage(each) for each in _list(notes["storages"], 4096)]
        if sum(storage["bytes"] for storage in storages if "input" not in storage) > MAX_BYTES:
            raise LimitReached(f"the tensors of one call exceed {MAX_BYTES >> 30} GiB")
        events = [_event(each, storages) for each in _list(notes["events"], 4096)]
        result = [_view(each, storages) for each in _list(notes["result"], 64)]
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise KernelFailure(f"what was noted of the launches is malformed: {error}") from None
    launches = [event for event in events if event["kind"] == "launch"]
    if len(launches) > MAX_LAUNCHES:
        raise KernelFailure(f"one call launches {len(launches)} kernels; at most {MAX_LAUNCHES} are modelled")
    return Recording(launches, events, storages, result, returned, changed)


def _list(value: Any, most: int) -> list[Any]:
    if type(value) is not list or len(value) > most:
        raise ValueError("a list was expected, or a shorter one")
    return value


def _int(value: Any, low: int, high: int) -> int:
    if type(value) is not int or not low <= value <= high:
        raise ValueError(f"{str(value)[:20]} is not a number from {low} to {high}")
    return value


def _storage(value: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"bytes": _int(value["bytes"], 0, MOST_BYTES)}
    if "input" in value:
        found["input"] = str(value["input"])
    return found


def _view(value: Any, storages: list[dict[str, Any]]) -> dict[str, Any]:
    view = {
        "storage": _int(value["storage"], 0, len(storages) - 1),
        "offset": _int(value["offset"], 0, MOST_BYTES),
        "shape": [_int(n, 0, MOST_BYTES) for n in _list(value["shape"], 16)],
        "strides": [_int(n, 0, MOST_BYTES) for n in _list(value["strides"], 16)],
        "dtype": str(value["dtype"]),
    }
    last = view["offset"] + sum((n - 1) * s for n, s in zip(view["shape"], view["strides"], strict=True))
    if math.prod(view["shape"]) and (last + 1) * NAMED[view["dtype"]].itemsize > storages[view["storage"]]["bytes"]:
        raise ValueError("a tensor that exceeds its storage")
    return view


def _event(value: Any, storages: list[dict[str, Any]]) -> dict[str, Any]:
    if value["kind"] == "host":
        pairs = {
            side: [[_int(n, 0, len(storages) - 1), _int(b, 0, MOST_BYTES)] for n, b in _list(value[side], 64)]
            for side in ("reads", "writes")
        }
        return {"kind": "host", "op": str(value["op"])[:80], "flops": _int(value["flops"], 0, 1 << 60), **pairs}
    args = {str(name): _argument(arg, storages) for name, arg in value["args"].items()}
    content = [[_int(n, 0, len(storages) - 1), raw] for n, raw in _list(value["content"], 4096)]
    for number, raw in content:
        given = "input" in storages[number]  # the judge knows their size: see `_stored`
        if not isinstance(raw, torch.Tensor) or raw.dtype != torch.uint8 or raw.dim() != 1:
            raise ValueError("content that is no bytes")
        if len(raw) != storages[number]["bytes"] and not given:
            raise ValueError("content that is not its storage's")
    most = {"num_warps": 64, "num_stages": 64, "num_ctas": 16, "maxnreg": 1024}
    return {
        "kind": "launch",
        "kernel": str(value["kernel"]),
        "grid": [_int(n, 0, 1 << 31) for n in _list(value["grid"], 3)],
        "args": args,
        "options": {k: _int(v, 1, most[k]) for k, v in value["options"].items()},
        "content": content,
    }


def _argument(value: Any, storages: list[dict[str, Any]]) -> dict[str, Any]:
    ((kind, content),) = value.items()
    if kind == "tensor":
        return {"tensor": _view(content, storages)}
    if kind == "dtype":
        return {"dtype": str(content)[:20]}
    if kind in ("constant", "value") and (content is None or isinstance(content, bool | int | float | str)):
        return {kind: content}
    raise ValueError("an argument of no known kind")


def _bare(launch: Mapping[str, Any]) -> dict[str, Any]:
    return {key: launch[key] for key in ("kernel", "args", "options")}


def sentence(error: Any) -> str:
    """Return an error that a worker described as one sentence."""
    if isinstance(error, dict):
        where = error.get("where")
        line = f" in line {where.get('line')} (`{str(where.get('source'))[:120]}`)" if isinstance(where, dict) else ""
        return f"{str(error.get('type', 'error'))[:80]}{line}: {str(error.get('message', ''))[:500]}"
    return str(error)[:500]


def _ended(reply: Reply, limits: Limits, what: str) -> Exception:
    if reply.malformed:
        return KernelFailure(f"the worker's reply could not be read: {reply.malformed}")
    if reply.ended == "time" or reply.signal == 24:
        return LimitReached(f"{what} took more than {limits.seconds:g} s")
    if reply.ended in ("flood", "crowd"):
        return LimitReached(f"{what} gave more than {limits.reply_bytes >> 20} MiB or too many processes")
    return KernelFailure(f"{what} ended without an answer (signal {reply.signal})")
