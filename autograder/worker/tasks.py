"""What a worker does beside running a program: note its launches, compile kernels, replay them."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch

from autograder.worker import compiling, recording, replaying, running, wire


def perform(request: dict[str, Any]) -> bytes:
    """Do `request["task"]`, "compile" or "replay"; return one message."""
    try:
        if request["task"] == "compile":
            return wire.encode({"event": "compiled", "launches": compiling.compile_launches(request)})
        return wire.encode({"event": "replayed", **replaying.replay(request)})
    except BaseException as error:
        return wire.encode({"event": "failed", "error": running.describe_error(innermost(error))})


def record(request: dict[str, Any], message: dict[str, Any], entry: Any, arguments: dict[str, Any]) -> bytes:
    """Call the entry with its launches noted; return the message of the case.

    With `request["record"]` "launches" no kernel runs, and the result is not sent: it was never written.
    """
    execute = request["record"] == "execution"
    arguments = materialised(arguments)
    given = running.copied(arguments) if execute else {}
    try:
        with (
            running.forbidding(request["forbidden"]),
            running.poisoned() if execute else nullcontext(),
            recording.recording(arguments, execute) as recorder,
        ):
            result = running.DRIVERS[request["driver"]](entry, arguments)
        notes = recorder.notes(result)
        if not execute:
            return wire.encode({**message, "notes": notes})
        return wire.encode({**message, "notes": notes, "result": result, "changed": running.changed(given, arguments)})
    except wire.WireError as error:
        return wire.encode({**message, "unsupported": str(error)})
    except BaseException as error:
        return wire.encode({**message, "error": running.describe_error(innermost(error))})


def materialised(value: Any) -> Any:
    """Return arguments with memory for the tensors that came as a shape: `{"$empty": [dtype, shape]}`."""
    if isinstance(value, dict) and value.keys() == {"$empty"}:
        dtype, shape = value["$empty"]
        return torch.empty(shape, dtype=wire.DTYPES[dtype])
    if isinstance(value, dict):
        return {k: materialised(v) for k, v in value.items()}
    return type(value)(map(materialised, value)) if isinstance(value, list | tuple) else value


def innermost(error: BaseException) -> BaseException:
    """Return what the interpreter's own errors wrap."""
    while type(error).__name__ == "InterpreterError" and error.__cause__ is not None:
        error = error.__cause__
    return error
