"""What a worker does beside running a program: note its launches, compile kernels, replay them."""

from __future__ import annotations

import os
import socket
import traceback
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from autograder.isolation.worker import running, wire
from autograder.kernels.worker import compiling, recording, replaying
from mla_ref.hardware import interpreter


def warm_up() -> None:
    """Import Triton with what it leaves until first use, and compute what it keeps."""
    interpret = os.environ["TRITON_INTERPRET"] == "1"
    if interpret:
        interpreter.prepare()
    import numpy.ma  # noqa: F401
    import triton.compiler.code_generator  # noqa: F401

    if not interpret:
        from triton.runtime import cache

        getattr(cache, "triton_key", int)()  # a digest of its own files
    if os.environ.get("MLA_GPU") == "1":
        from autograder.kernels.worker import measuring

        measuring.warm_up()


def perform(request: dict[str, Any], out: int, send: Callable[[bytes], None]) -> None:
    """Do `request["task"]`: "compile", which gives one message, "replay", which gives one for each replay, or
    "measure", which converses."""
    if request["task"] == "measure":
        _measure(request, out, send)
        return
    try:
        if request["task"] == "compile":
            send(wire.encode({"event": "compiled", "launches": compiling.compile_launches(request)}))
            return
        for found in replaying.replay(request):
            if "error" in found:
                found["error"] = running.describe_error(innermost(found["error"]))
            send(wire.encode({"event": "replayed", **found}))
    except BaseException as error:
        send(wire.encode({"event": "failed", "error": running.describe_error(innermost(error))}))


def _measure(request: dict[str, Any], out: int, send: Callable[[bytes], None]) -> None:
    from autograder.kernels.worker import measuring

    said: list[bytes] = []
    entry = running.entry_of(request, said.append) if "program" in request else None
    if "program" in request and entry is None:
        send(said[-1])
    else:
        measuring.converse(socket.socket(fileno=out), request, entry)


def record(request: dict[str, Any], message: dict[str, Any], entry: Any, arguments: dict[str, Any]) -> bytes:
    """Call the entry with its launches noted; return the message of the case.

    With `request["record"]` "launches" no kernel runs, and the result is not sent: it was never written.
    """
    execute = request["record"] == "execution"
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


def innermost(error: BaseException) -> BaseException:
    """Return what the interpreter's own errors wrap, with the last traceback that passes through a cell."""
    while type(error).__name__ == "InterpreterError" and error.__cause__ is not None:
        outer, error = error, error.__cause__
        if not any(running.is_theirs(frame.filename) for frame in traceback.extract_tb(error.__traceback__)):
            error = error.with_traceback(outer.__traceback__)
    return error
