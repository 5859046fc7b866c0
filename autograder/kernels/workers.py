"""The worker that kernels need where there is no GPU: it emulates and compiles them, and holds no secret."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from autograder.isolation.sandbox import Kind, Limits, Reply, Sandbox
from autograder.isolation.worker import wire
from autograder.isolation.worker.trees import tensors_in
from autograder.judging.judge import FAULTS
from autograder.text import quoted

TASKS = "autograder.kernels.worker.tasks"
EMULATOR = Kind(TASKS, {"TRITON_INTERPRET": "0", "MLA_EMULATE": "1"})
REPLY_BYTES = 1 << 30
KEPT, KEPT_BYTES = 256, 1 << 20  # replies that are kept for the next who asks the same, and the bytes of one's tensors
ADDRESSES = 64 << 30  # bytes that a replay may map: large storages are touched in few places


class KernelFailure(RuntimeError):
    """The kernels cannot be modelled, and why: a sentence for the student."""


class Unchecked(KernelFailure):
    """The kernels do something that they did in no call whose answer was compared."""


class LimitReached(RuntimeError):
    """A step took more time or memory than it may."""


class KernelWorkers:
    """A sandbox in which kernels run and compile; it starts on first use. For one thread."""

    def __init__(
        self,
        isolation: str | None = None,
        limits: Limits | None = None,
        helpers: Sequence[str] = (),
        hidden: Sequence[Path] = (),
    ):
        self.limits = limits or Limits(seconds=60.0, memory=8 << 30)
        self.sandbox = Sandbox(isolation, EMULATOR, helpers, hidden)
        self._kept: dict[bytes, Reply] = {}

    def __enter__(self) -> KernelWorkers:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """End the worker."""
        self.sandbox.close()

    def forget(self) -> None:
        """Drop the replies that are kept."""
        self._kept.clear()

    def perform(self, request: dict[str, Any], seconds: float) -> tuple[Reply, Limits]:
        """Have a task done that runs no code of the student's but kernels; return the reply and the limits it had.

        The reply depends on the request alone, which holds the kernels' source, so for the same one it is kept.

        Raises KernelFailure for a request that no worker takes: what it holds of calls is the student's process's.
        """
        limits = dataclasses.replace(
            self.limits, seconds=seconds, memory=ADDRESSES, held=self.limits.memory, reply_bytes=REPLY_BYTES
        )
        try:
            message = wire.encode(request)
        except wire.WireError as error:
            raise KernelFailure(f"what its calls do is too much to be run again: {error}") from None
        key = hashlib.sha256(message).digest()
        reply = self._kept.pop(key, None) or self.sandbox.run_encoded(message, limits)
        if _worth_keeping(request, reply):
            self._kept[key] = reply  # the latest last
            if len(self._kept) > KEPT:
                del self._kept[next(iter(self._kept))]
        return reply, limits


def _worth_keeping(request: Mapping[str, Any], reply: Reply) -> bool:
    """Return whether a reply is whole, tells of no error, and is small."""
    parts = [part for message in reply.messages for part in (message, *message.get("launches", []))]
    whole = reply.ended == "exit" and len(reply.messages) == len(request.get("replays", [None]))
    small = sum(tensor.nbytes for tensor in tensors_in(reply.messages)) <= KEPT_BYTES
    return whole and small and not any("error" in part for part in parts)


def refused(error: Mapping[str, Any]) -> KernelFailure:
    """Return the failure for an error that a task met. Lines are given by their text: the program was cut."""
    kernel, source = error.get("kernel", ""), (error.get("where") or {}).get("source", "")
    place = f" in `{source}`" if source else ""
    if error["type"] in FAULTS:
        return KernelFailure(f"{kernel}{place}: {error['message']}")
    return KernelFailure(f"{f'{kernel} does not run: ' if kernel else ''}{error['type']}{place}: {error['message']}")


def sentence(error: Any) -> str:
    """Return an error that a worker described as one sentence."""
    if isinstance(error, dict):
        where = error.get("where")
        place = where if isinstance(where, dict) else {}
        line = f" in line {quoted(place.get('line'), 8)} (`{quoted(place.get('source'), 120)}`)" if place else ""
        kind = quoted(error.get("type", "error"), 80)
        name = quoted(error.get("kernel", "error"), 80) if kind in FAULTS else kind
        return f"{name}{line}: {quoted(error.get('message', ''), 500)}"
    return quoted(error, 500)


def ended(reply: Reply, limits: Limits, what: str) -> Exception:
    """Return the failure for a reply that ended before its answer."""
    if reply.malformed:
        return KernelFailure(f"the worker's reply could not be read: {reply.malformed}")
    if reply.ended == "time" or reply.signal == 24:
        return LimitReached(f"{what} took more than {limits.seconds:g} s")
    if reply.ended == "memory":
        return LimitReached(f"{what} took more than {(limits.held or limits.memory) >> 20} MiB of memory")
    if reply.ended in ("flood", "crowd"):
        return LimitReached(f"{what} gave more than {limits.reply_bytes >> 20} MiB or too many processes")
    return KernelFailure(f"{what} ended without an answer (signal {reply.signal})")
