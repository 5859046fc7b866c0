"""What a call launches: asked of the student's process, and checked for form, not for truth."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NotRequired

import torch
from pydantic import ConfigDict, Field, Strict, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from autograder.isolation.sandbox import Limits
from autograder.isolation.worker.layout import packed
from autograder.judging.program import Cell
from autograder.kernels.extract import NotAKernel, kernel_program
from autograder.kernels.worker.recording import NAMED
from autograder.kernels.workers import KernelFailure, KernelWorkers, LimitReached, ended, sentence

MAX_LAUNCHES = 256
MAX_BYTES = 4 << 30  # of what a call makes
MOST = 4096  # storages, events, changes of content in the notes of a call
MOST_BYTES = 1 << 40  # of any tensor


@dataclass(frozen=True)
class Recording:
    """What a call launched, by its own account: checked for form, not for truth."""

    launches: list[dict[str, Any]]
    events: list[dict[str, Any]]
    storages: list[dict[str, Any]]
    result: list[dict[str, Any]]
    returned: Any = None


# An execution and its arguments.
Execution = tuple[Recording, Mapping[str, Any]]


def record(
    workers: KernelWorkers,
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
        "cases": [packed(dict(arguments))],
        "record": "execution" if execute else "launches",
    }
    limits = limits or workers.limits
    reply = workers.sandbox.run(request, limits)
    case = next((message for message in reply.messages if message.get("event") == "case"), None)
    if case is None and any(message.get("event") == "missing" for message in reply.messages):
        raise KernelFailure(f"the program defines no function called {entry}")
    for message in [case] if case else reply.messages:
        for key in ("error", "unsupported"):
            if key in message:
                raise KernelFailure(sentence(message[key]))
    if case is None:
        raise ended(reply, limits, "the call")
    return checked(case.get("notes"), case.get("result"))


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


def result_storages(recording: Recording) -> list[int]:
    """Return the storages in which the result lives."""
    return sorted({view["storage"] for view in recording.result})


# What comes from the student's process is checked before anything is made of it

STRICT = ConfigDict(strict=True, extra="forbid", arbitrary_types_allowed=True)
Size = Annotated[int, Field(ge=0, le=MOST_BYTES)]
Index = Annotated[int, Field(ge=0, le=MOST)]  # of a storage
Pair = Annotated[list[Size], Field(min_length=2, max_length=2)]  # a storage and the bytes of a tensor in it
Number = bool | int | float | str | None


class Storage(TypedDict):
    """A storage: its size, and of an argument's the argument's name."""

    __pydantic_config__ = STRICT
    bytes: Size
    input: NotRequired[str]


class View(TypedDict):
    """A tensor in a storage; offset and strides in elements."""

    __pydantic_config__ = STRICT
    storage: Index
    offset: Size
    shape: Annotated[list[Size], Field(max_length=16)]
    strides: Annotated[list[Size], Field(max_length=16)]
    dtype: Literal[*NAMED]


class TensorArgument(TypedDict):
    """A kernel's argument that is a tensor; the next ones are other kinds."""

    __pydantic_config__ = STRICT
    tensor: View


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
    num_ctas: Annotated[int, Field(ge=1, le=16)]
    maxnreg: Annotated[int, Field(ge=1, le=1024)]


class Host(TypedDict):
    """An operation of torch: what it reads and writes."""

    __pydantic_config__ = STRICT
    kind: Literal["host"]
    op: Annotated[str, Field(max_length=80)]
    flops: Annotated[int, Field(ge=0, le=1 << 60)]
    reads: Annotated[list[Pair], Field(max_length=64)]
    writes: Annotated[list[Pair], Field(max_length=64)]


class Launch(TypedDict):
    """A launch, with the bytes `content` of storages that the host has changed since the last one."""

    __pydantic_config__ = STRICT
    kind: Literal["launch"]
    kernel: str
    grid: Annotated[list[Annotated[int, Field(ge=0, le=1 << 31)]], Field(max_length=3)]
    args: dict[str, TensorArgument | DtypeArgument | ConstantArgument | ValueArgument]
    options: Options
    content: Annotated[list[Annotated[tuple[Index, torch.Tensor], Strict(False)]], Field(max_length=MOST)]


class Notes(TypedDict):
    """What `kernels.worker.recording.Recorder` notes of a call."""

    __pydantic_config__ = STRICT
    storages: Annotated[list[Storage], Field(max_length=MOST)]
    events: Annotated[list[Annotated[Host | Launch, Field(discriminator="kind")]], Field(max_length=MOST)]
    result: Annotated[list[View], Field(max_length=64)]


FORM = TypeAdapter(Notes)


def checked(notes: Any, returned: Any = None) -> Recording:
    """Return the notes of a worker as a recording.

    Raises KernelFailure if they are malformed or hold more than `MAX_LAUNCHES` launches, LimitReached if the tensors of
    the call are too large.
    """
    try:
        found = FORM.validate_python(notes)
        events, storages = found["events"], found["storages"]
        launches = [event for event in events if event["kind"] == "launch"]
        hosts = [event for event in events if event["kind"] == "host"]
        numbers = [n for event in hosts for side in ("reads", "writes") for n, _ in event[side]]
        if any(number >= len(storages) for number in numbers):
            raise ValueError("a storage that was not noted")
        views = [arg["tensor"] for launch in launches for arg in launch["args"].values() if "tensor" in arg]
        for view in [*views, *found["result"]]:
            _check_view(view, storages)
        for number, raw in (pair for launch in launches for pair in launch["content"]):
            _check_content(raw, storages[number])
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))[:80]
        raise KernelFailure(f"what was noted of the launches is malformed: {where}: {first['msg']}") from None
    except (ValueError, IndexError) as error:
        raise KernelFailure(f"what was noted of the launches is malformed: {error}") from None
    if sum(storage["bytes"] for storage in storages if "input" not in storage) > MAX_BYTES:
        raise LimitReached(f"the tensors of one call exceed {MAX_BYTES >> 30} GiB")
    if len(launches) > MAX_LAUNCHES:
        raise KernelFailure(f"one call launches {len(launches)} kernels; at most {MAX_LAUNCHES} are graded")
    return Recording(launches, events, storages, found["result"], returned)


def _check_view(view: View, storages: list[Storage]) -> None:
    last = view["offset"] + sum((n - 1) * s for n, s in zip(view["shape"], view["strides"], strict=True))
    size = (last + 1) * NAMED[view["dtype"]].itemsize
    if storages[view["storage"]]["bytes"] < size and math.prod(view["shape"]):
        raise ValueError("a tensor that exceeds its storage")


def _check_content(raw: torch.Tensor, storage: Storage) -> None:
    if raw.dtype != torch.uint8 or raw.dim() != 1:
        raise ValueError("content that is no bytes")
    if len(raw) != storage["bytes"] and "input" not in storage:  # an argument's size is checked in `replay`
        raise ValueError("content that is not its storage's")
