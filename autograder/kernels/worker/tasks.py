"""What a worker does beside running a program: note its launches, compile kernels, replay them."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from typing import Any

from autograder.isolation.worker import running, wire
from autograder.isolation.worker.trees import mapped, tensors_in
from autograder.kernels.worker import compiling, recording, replaying, uses
from mla_ref.hardware import emulator

UNCHECKED = (
    "the grader notes what a call does before it runs kernels, on other data: an assertion about what a kernel wrote "
    "belongs in a cell of its own"
)
MOST = 1 << 15  # operations and launches of all calls of an exercise
_noted = 0  # of this process, which runs one exercise


def warm_up() -> None:
    """Import Triton with what it leaves until first use, and compute what it keeps."""
    if os.environ.get("MLA_GPU") != "1":  # a look at the GPU here would bar the forks from it
        emulator.prepare()
    import numpy.ma  # noqa: F401
    import triton.compiler.code_generator  # noqa: F401
    from triton.runtime import cache

    getattr(cache, "triton_key", int)()  # a digest of its own files
    uses.originals()
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
                found["error"] = running.describe_error(found["error"])
            send(wire.encode({"event": "replayed", **found}))
    except BaseException as error:
        send(wire.encode({"event": "failed", "error": running.describe_error(error)}))


def _measure(request: dict[str, Any], out: int, send: Callable[[bytes], None]) -> None:
    from autograder.kernels.worker import measuring

    said: list[bytes] = []
    entry = running.entry_of(request, said.append) if "program" in request else None
    if "program" in request and entry is None:
        send(said[-1])
    else:
        measuring.converse(socket.socket(fileno=out), request, entry)


def record(request: dict[str, Any], message: dict[str, Any], entry: Any, arguments: dict[str, Any]) -> bytes:
    """Have a call of the entry noted; return the message of the case. No kernel runs.

    With `request["first"]`, other arguments of each case, it is a later call that counts: what it keeps from earlier
    ones is none of its own making. The first of these has other integers too, so that what is kept of them shows. What
    is noted of the second comes too. Each call has lists and dicts of its own. That they hold other things after it, of
    what they held, is all that it can have `changed` without an operation.
    """
    global _noted
    driver, recorder, result, before = running.DRIVERS[request["driver"]], None, None, {}
    try:
        with running.stopped_in_time(replaying.EARLY), running.forbidding(request["forbidden"]):
            if request["first"]:
                other = request["first"][message["index"]]
                if any(tensor.dtype in running.INTEGERS for tensor in tensors_in(other)):
                    smaller = running.earlier(other)
                    with running.unheeded(), recording.recording(smaller):
                        oldest = driver(entry, smaller)  # noqa: F841 (so that nothing later takes its place)
                with recording.recording(other) as recorder:
                    kept = driver(entry, _apart(other))
                first = recorder.notes(kept)
                before = {"first": {**first, "events": [each for each in first["events"] if each["kind"] == "launch"]}}
            given = _apart(arguments)
            held = running.copied(arguments) if request["first"] else arguments
            with recording.recording(arguments, earlier=recorder) as recorder:
                result = driver(entry, given)
        notes = recorder.notes(result)
        _noted += len(notes["events"])
        if _noted > MOST:
            raise recording.TooMany(f"the calls of an exercise have more than {MOST} operations and launches together")
        return wire.encode({**message, **before, "notes": notes, "changed": running.changed(held, given)})
    except recording.TooMany as error:
        return wire.encode({**message, "beyond": str(error)})
    except wire.WireError as error:
        return wire.encode({**message, "unsupported": wire.refusal(error, result)})
    except BaseException as error:
        found = running.describe_error(error)
        launched = recorder is not None and any(event["kind"] == "launch" for event in recorder.events)
        raised = (found.get("where") or {}).get("source", "").strip().startswith("raise ")
        no_gpu = "CUDA" in running.said_by(error) or found["message"] == running.NO_GPU  # that lacks it, or is asked
        if isinstance(error, AssertionError) and launched and not no_gpu:
            found["message"] = UNCHECKED
        elif raised and launched and not isinstance(error, NotImplementedError):
            found["message"] = f"{found['message']} ({UNCHECKED})".lstrip()
        return wire.encode({**message, "error": found})


def _apart(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments in lists and dicts of their own, with the same tensors."""
    return mapped(arguments, lambda tensor: tensor)
