"""Compile launches for a named GPU, in a worker of their own: no GPU is needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from autograder.kernels import cost_model
from autograder.kernels.cost_model import DoesNotFit
from autograder.kernels.extract import Kernels
from autograder.kernels.record import Recording
from autograder.kernels.workers import KernelFailure, KernelWorkers, ended, refused
from mla_ref.hardware.devices import DEVICES


def compile_launches(
    workers: KernelWorkers, kernels: Kernels, recording: Recording, device: str
) -> list[dict[str, Any]]:
    """Compile each launch of a program's kernels for a device and return what the compiler says of it.

    Raises KernelFailure for a kernel that does not compile or does not fit.
    """
    found = _compile(workers, kernels, recording.launches, device)
    for launch, compiled in zip(recording.launches, found, strict=True):
        try:
            cost_model.resident_blocks(compiled, DEVICES[device])
        except DoesNotFit as error:
            raise KernelFailure(f"{launch['kernel']}: {error}") from None
    return found


def _compile(
    workers: KernelWorkers, kernels: Kernels, launches: Sequence[Mapping[str, Any]], device: str
) -> list[dict[str, Any]]:
    backend, number, warp_size = DEVICES[device].target
    request = {
        "task": "compile",
        "source": kernels.source,
        "launches": [_bare(launch) for launch in launches],
        "target": {"backend": backend, "arch": number, "warp_size": warp_size},
    }
    reply, limits = workers.perform(request, workers.limits.seconds)
    if not reply.messages:
        raise ended(reply, limits, "compiling")
    if reply.messages[0].get("event") == "failed":
        raise refused(reply.messages[0]["error"])
    found = reply.messages[0]["launches"]
    for launch, compiled in zip(launches, found, strict=True):
        if "error" in compiled:
            said = kernels.told(compiled["error"])
            raise KernelFailure(f"{launch['kernel']} does not compile for {DEVICES[device].name}: {said}")
    return found


def _bare(launch: Mapping[str, Any]) -> dict[str, Any]:
    return {key: launch[key] for key in ("kernel", "args", "options")}
