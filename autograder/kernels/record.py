"""The program of a call, operations of torch and launches: asked of the student's process, checked for form alone."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NotRequired

import torch
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from autograder.isolation.sandbox import Limits
from autograder.isolation.worker.layout import packed
from autograder.isolation.worker.trees import mapped, tensors_in
from autograder.judging.program import MAX_CODE, Cell
from autograder.kernels.extract import Kernels, NotAKernel, check_definitions, check_uses, cut_kernels
from autograder.kernels.worker import hosting, uses
from autograder.kernels.worker.recording import MAX_AXES, MAX_LAUNCHES, MOST, NAMED
from autograder.kernels.workers import KernelFailure, KernelWorkers, LimitReached, ended, sentence

MAX_BYTES = 4 << 30  # of what a call makes
MOST_BYTES = 1 << 40  # of any tensor
ALIGNMENT = 16  # bytes, of what a tensor descriptor is made of


@dataclass(frozen=True)
class Recording:
    """What a call does, as a program, by its process's own account: checked for form, not for truth.

    Attributes
    ----------
    events
        Launches of kernels and operations of torch, in order.
    storages
        Each with its size; an argument's with the argument's name; with the content, if that was there before the call.
    result
        Where the tensors of the result lie.
    form
        The result, with `{"$view": n}` for each tensor.
    uses
        What Triton takes the launched kernels and their helpers for (see `worker.uses`).
    """

    events: list[dict[str, Any]]
    storages: list[dict[str, Any]]
    result: list[dict[str, Any]]
    form: Any = None
    uses: list[dict[str, Any]] = field(default_factory=list)

    @property
    def launches(self) -> list[dict[str, Any]]:
        """The events that are launches."""
        return [event for event in self.events if event["kind"] == "launch"]

    def filled(self, tensors: Sequence[torch.Tensor]) -> Any:
        """Return the result with these tensors."""
        return mapped(self.form, lambda leaf: tensors[leaf["$view"]], stand_ins=("$view",))

    def views(self) -> list[dict[str, Any]]:
        """Return where the tensors lie that launches take and that are returned."""
        taken = [arg["tensor"] for launch in self.launches for arg in launch["args"].values() if "tensor" in arg]
        return [*self.result, *taken]


def record(
    workers: KernelWorkers,
    program: Sequence[Cell],
    entry: str,
    arguments: Mapping[str, Any],
    limits: Limits | None = None,
) -> Recording:
    """Run the student's program and have one call of its function noted. No kernel runs.

    Raises KernelFailure with what the program raised, LimitReached.
    """
    request = {
        "program": [dataclasses.asdict(cell) for cell in program],
        "entry": entry,
        "driver": "call",
        "forbidden": [],
        "cases": [packed(dict(arguments))],
        "record": True,
    }
    limits = limits or workers.limits
    reply = workers.sandbox.run(request, limits)
    case = next((message for message in reply.messages if message.get("event") == "case"), None)
    if case is None and any(message.get("event") == "missing" for message in reply.messages):
        raise KernelFailure(f"the program defines no function called {entry}")
    for message in [case] if case else reply.messages:
        for key in ("error", "unsupported", "beyond"):
            if key in message:
                raise KernelFailure(sentence(message[key]))
    if case is None:
        raise ended(reply, limits, "the call")
    return checked(case.get("notes"))


def kernels_of(program: Sequence[Cell], *recordings: Recording) -> Kernels:
    """Return the program of all kernels that the recordings name.

    Raises KernelFailure if there are no launches, or if the kernels cannot be cut out.
    """
    launched = {(each["kernel"], *each["defined"]) for recording in recordings for each in recording.launches}
    if not launched:
        raise KernelFailure("no Triton kernel was launched")
    try:
        check_definitions(program, sorted(launched, key=str))
        kernels = cut_kernels(program, sorted({name for name, *_ in launched}))
        check_uses(program, [each for recording in recordings for each in recording.uses])
        return kernels
    except NotAKernel as error:
        raise KernelFailure(str(error)) from None


# What comes from the student's process is checked before anything is made of it

STRICT = ConfigDict(strict=True, extra="forbid", arbitrary_types_allowed=True)
Size = Annotated[int, Field(ge=0, le=MOST_BYTES)]
Index = Annotated[int, Field(ge=0, le=MOST)]  # of a storage
Pair = Annotated[list[Size], Field(min_length=2, max_length=2)]  # a storage and the bytes of a tensor in it
Name = Annotated[str, Field(max_length=1000)]
Place = Annotated[list[Name | Size], Field(min_length=2, max_length=2)]  # a cell and a line in it
Texts = Annotated[list[Name], Field(min_length=1, max_length=uses.MOST)]  # of one value
Number = bool | int | float | str | None


class Storage(TypedDict):
    """A storage: its size; of an argument's the argument's name; what it held before the call, its dtype, and which
    storage of the call before it is."""

    __pydantic_config__ = STRICT
    bytes: Size
    input: NotRequired[str]
    content: NotRequired[torch.Tensor]
    dtype: NotRequired[Literal[*NAMED]]
    unknown: NotRequired[bool]
    before: NotRequired[Index]


class View(TypedDict):
    """A tensor in a storage; offset and strides in elements."""

    __pydantic_config__ = STRICT
    storage: Index
    offset: Size
    shape: Annotated[list[Size], Field(max_length=MAX_AXES)]
    strides: Annotated[list[Size], Field(max_length=MAX_AXES)]
    dtype: Literal[*NAMED]


class Descriptor(TypedDict):
    """What a tensor descriptor says of the tensor that it is made of; sizes and strides in elements."""

    __pydantic_config__ = STRICT
    shape: Annotated[list[Annotated[int, Field(ge=1, lt=1 << 31)]], Field(min_length=1, max_length=5)]
    strides: Annotated[list[Size], Field(min_length=1, max_length=5)]
    block_shape: Annotated[list[Annotated[int, Field(ge=1, le=1 << 20)]], Field(min_length=1, max_length=5)]
    padding: Literal["zero", "nan"]
    gluon: bool


class TensorArgument(TypedDict):
    """A kernel's argument that is a tensor, or a descriptor of one; the next ones are other kinds."""

    __pydantic_config__ = STRICT
    tensor: View
    descriptor: NotRequired[Descriptor]


class DtypeArgument(TypedDict):
    __pydantic_config__ = STRICT
    dtype: Annotated[str, Field(max_length=20)]


class ConstantArgument(TypedDict):
    __pydantic_config__ = STRICT
    constant: Number


class ValueArgument(TypedDict):
    __pydantic_config__ = STRICT
    value: Number


class Options(TypedDict, total=False):
    """What a launch asks for beside its arguments."""

    __pydantic_config__ = STRICT
    num_warps: Annotated[int, Field(ge=1, le=64)]
    num_stages: Annotated[int, Field(ge=1, le=64)]
    maxnreg: Annotated[int, Field(ge=1, le=1024)]
    enable_fp_fusion: Literal[0, 1]
    debug: Annotated[int, Field(ge=0, le=1)]


class Host(TypedDict):
    """An operation of torch, with what it makes. `args` are None for one that is not done again."""

    __pydantic_config__ = STRICT
    kind: Literal["host"]
    op: Annotated[list[Annotated[str, Field(max_length=80)]], Field(min_length=2, max_length=2)]
    line: Annotated[str, Field(max_length=200)]
    args: list[Any] | None
    kwargs: Annotated[dict[str, Any], Field(max_length=16)]
    out: Annotated[list[View], Field(max_length=64)]
    flops: Annotated[int, Field(ge=0, le=1 << 60)]
    reads: Annotated[list[Pair], Field(max_length=256)]
    writes: Annotated[list[Pair], Field(max_length=256)]


class Launch(TypedDict):
    """A launch."""

    __pydantic_config__ = STRICT
    kind: Literal["launch"]
    kernel: str
    defined: Place
    grid: Annotated[list[Annotated[int, Field(ge=0, le=1 << 31)]], Field(min_length=3, max_length=3)]
    args: dict[str, TensorArgument | DtypeArgument | ConstantArgument | ValueArgument]
    options: Options


class Use(TypedDict):
    """What a kernel, or a helper of one, is when it is launched: its source, and the texts of what its names mean."""

    __pydantic_config__ = STRICT
    kernel: Name
    function: Name
    defined: Place
    source: Annotated[str, Field(max_length=MAX_CODE)]
    names: dict[Name, Texts]
    defaults: dict[Name, Texts]


class Notes(TypedDict):
    """What `kernels.worker.recording.Recorder` notes of a call."""

    __pydantic_config__ = STRICT
    storages: Annotated[list[Storage], Field(max_length=MOST)]
    events: Annotated[list[Annotated[Host | Launch, Field(discriminator="kind")]], Field(max_length=MOST)]
    uses: Annotated[list[Use], Field(max_length=MAX_LAUNCHES)]
    result: Annotated[list[View], Field(max_length=64)]
    form: Any


FORM, VIEW = TypeAdapter(Notes), TypeAdapter(View)


def checked(notes: Any) -> Recording:
    """Return the notes of a worker as a recording.

    Raises KernelFailure if they are malformed or hold more than `MAX_LAUNCHES` launches, LimitReached if the tensors of
    the call are too large.
    """
    try:
        found = FORM.validate_python(notes)
        events, storages = found["events"], found["storages"]
        for event in events:
            if event["kind"] == "host":
                _check_host(event, storages)
        launches = [event for event in events if event["kind"] == "launch"]
        for arg in (arg for launch in launches for arg in launch["args"].values() if "descriptor" in arg):
            _check_descriptor(arg)
        recording = Recording(events, storages, found["result"], found["form"], found["uses"])
        for view in recording.views():
            _check_view(view, storages)
        for storage in storages:
            _check_content(storage)
        stand_ins: list[Any] = []
        mapped(found["form"], lambda leaf: stand_ins.append(leaf["$view"]), stand_ins=("$view",))
        numbers = [n for n in stand_ins if type(n) is int]  # 0.0 and False are equal to 0
        if numbers != stand_ins or numbers != list(range(len(found["result"]))) or tensors_in(found["form"]):
            raise ValueError("a result that is not the one noted")
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))[:80]
        raise KernelFailure(f"what was noted of the call is malformed: {where}: {first['msg']}") from None
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise KernelFailure(f"what was noted of the call is malformed: {error}") from None
    if sum(storage["bytes"] for storage in storages if "input" not in storage) > MAX_BYTES:
        raise LimitReached(f"the tensors of one call exceed {MAX_BYTES >> 30} GiB")
    if len(launches) > MAX_LAUNCHES:
        raise KernelFailure(f"one call launches {len(launches)} kernels; at most {MAX_LAUNCHES} are graded")
    return recording


def _check_host(event: Host, storages: list[Storage]) -> None:
    """Check an operation of torch; what one costs that is done again follows from its operands."""
    for pair in (*event["reads"], *event["writes"]):
        storages[pair[0]]
    if event["args"] is None:
        return
    if not hosting.is_known(*event["op"]):
        raise ValueError(f"{event['op'][0]} is no operation of a call's program")
    if tensors_in([event["args"], event["kwargs"]]):
        raise ValueError("an operand that is no view")
    given = [*hosting.views_in(event["args"]), *hosting.views_in([*event["kwargs"].values()])]
    for view in [*given, *event["out"]]:
        _check_view(VIEW.validate_python(view), storages)
    hosting.control(event), hosting.fills(event)  # which read the operands by their places
    changed = [*hosting.views_in(hosting.written_by(event["op"], event["args"], event["kwargs"]))]
    alike = event["op"][0] in hosting.ALIKE
    event["reads"] = [[view["storage"], 0 if alike else _bytes(view)] for view in given]
    event["writes"] = [[view["storage"], _bytes(view)] for view in event["out"]]
    for view in changed:
        places = hosting.places_written(event["op"], event["args"], view)
        event["writes"].append([view["storage"], min(_bytes(view), places * NAMED[view["dtype"]].itemsize)])
    event["flops"] = 0


def _bytes(view: View) -> int:
    distinct = math.prod(n for n, stride in zip(view["shape"], view["strides"], strict=True) if stride)
    return distinct * NAMED[view["dtype"]].itemsize


def _check_view(view: View, storages: list[Storage]) -> None:
    last = view["offset"] + sum((n - 1) * s for n, s in zip(view["shape"], view["strides"], strict=True))
    size = (last + 1) * NAMED[view["dtype"]].itemsize
    if storages[view["storage"]]["bytes"] < size and math.prod(view["shape"]):
        raise ValueError("a tensor that exceeds its storage")


def _check_descriptor(arg: TensorArgument) -> None:
    """Check what a GPU's hardware asks of a descriptor."""
    view, made = arg["tensor"], arg["descriptor"]
    unit = NAMED[view["dtype"]].itemsize
    *outer, last = made["strides"]
    if not len(made["shape"]) == len(made["strides"]) == len(made["block_shape"]):
        raise ValueError("a tensor descriptor of which shape, strides and block_shape differ in length")
    if last != 1 or any(n * unit % ALIGNMENT for n in (*outer, view["offset"])):
        raise ValueError(
            f"a tensor descriptor with strides {made['strides']} from element {view['offset']}: the last stride has to "
            f"be 1, and the others and the start multiples of {ALIGNMENT} bytes"
        )
    if (row := made["block_shape"][-1] * unit) < ALIGNMENT:
        raise ValueError(
            f"a tensor descriptor with blocks of {made['block_shape']}: a row of them has {row} bytes, and needs "
            f"{ALIGNMENT} at least"
        )


def _check_content(storage: Storage) -> None:
    raw = storage.get("content")
    if raw is None:
        return
    if "input" in storage:
        raise ValueError("an argument with content of its own: the judge knows what it holds")
    if raw.dtype != torch.uint8 or raw.dim() != 1 or len(raw) != storage["bytes"] or "dtype" not in storage:
        raise ValueError("content that is not its storage's")
