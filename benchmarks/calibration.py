"""Calibrate the model of kernels' times to a GPU: what `mla-course bench --calibrate` does.

A sweep takes each of `model_variants` at one size. The constants that say how fast the GPU's parts are and how long
they wait are fitted to it, starting from those fitted to an H100. What decides, and what is told, is the error on
kernels of a task that the fit has not seen. Where the fit does not make that less, the constants stay as they are.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import model_fit
import model_variants as variants
import torch
from model_fit import CONFLICTS, Case, Launched

from autograder.kernels.cost_model import Constants
from mla_ref.hardware.devices import DEVICES, HardwareError, find_device

FITTED = (
    *("dram", "sector", "request", "partial", "dram_wait", "l2_wait", "l1_wait", "start"),
    *("issue", "tensor", "host", "launch", "next_launch"),
)
FAR = 0.05  # kernels that the model does not see must not pull: beyond that an error no longer counts as squared
PULL = 0.01  # towards the constants of an H100
ENOUGH = 10  # cases of a sweep

Steps = Callable[[int], AbstractContextManager[Callable[[str], None]]]


def sweep() -> list[Case]:
    """Return each variant at one of its sizes, without those that take long or that the model cannot see."""
    found = []
    for number, (task, name, *_) in enumerate(variants.VARIANTS):
        sizes = list(variants.TASKS[task])
        if not name.startswith("columns") and not name.endswith(CONFLICTS):
            found.append((task, sizes[number % len(sizes)], name))
    return found


def calibrate(
    found: Mapping[Case, Launched], measured: Mapping[Case, float], key: str, start: Constants
) -> tuple[Constants, dict[str, Any]]:
    """Return constants fitted to measured times of a device, and what that gains.

    The errors are of the constants to start from (`before`), of the fit on its own cases (`fitted`), and of fits to the
    other tasks (`task_left_out`). Of these the mean, which hangs less on chance, decides whether the fit is `taken`.
    """
    device = DEVICES[key]
    options = {"names": FITTED, "pull": PULL, "far": FAR}
    before = model_fit.microseconds(found, start, device)
    constants = model_fit.fit(found, measured, device, start, **options)
    fitted = model_fit.microseconds(found, constants, device)
    left_out = model_fit.left_out(found, measured, device, start, **options)
    made = {"before": before, "fitted": fitted, "task_left_out": left_out}
    medians = {name: round(model_fit.median_error(each, measured), 4) for name, each in made.items()}
    means = {name: round(model_fit.mean_error(each, measured), 4) for name, each in made.items()}
    taken = means["task_left_out"] < means["before"]
    report = {"cases": len(found), "median_error": medians, "mean_error": means, "taken": taken}
    return constants if taken else start, report


def of(
    key: str,
    origin: Mapping[str, Any],
    measured: Mapping[Case, float],
    ceilings: Mapping[str, Any],
    steps: Steps,
) -> dict[str, Any]:
    """Return the content of the file of a calibrated GPU: see `mla_ref.hardware.devices.hardware_file`."""
    from model_validation import counted

    cases = [case for case in sweep() if case in measured]
    if len(cases) < ENOUGH or len({case[0] for case in cases}) < 2:
        raise HardwareError(f"{len(cases)} cases of the sweep are in the record, and {ENOUGH} of two tasks are needed")
    with steps(len(cases)) as step:
        found = model_fit.launched(counted(cases, key, lambda case: step(" ".join(case))))
    start = Constants.load()
    constants, report = calibrate(found, measured, key, start)
    changed = {
        field.name: [getattr(start, field.name), getattr(constants, field.name)]
        for field in dataclasses.fields(Constants)
        if getattr(start, field.name) != getattr(constants, field.name)
    }
    return {
        "hardware": key,
        "measured": dict(origin),
        **report,
        "changed": changed,
        "ceilings": dict(ceilings),
        "constants": dataclasses.asdict(constants),
    }


def from_record(path: Path, steps: Steps) -> dict[str, Any]:
    """Calibrate from times that `model_measure.py` has recorded on a GPU.

    Raises HardwareError for a record that is none, or of a GPU that is not in the table.
    """
    try:
        stored = json.loads(path.read_text())
        measured = {(c["task"], c["size"], c["variant"]): float(c["graph"]["us"]) for c in stored["cases"]}
        origin = {name: stored[name] for name in ("device", "date", "versions")}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise HardwareError(f"{path} is no record of benchmarks/model_measure.py: {error!r}") from None
    return of(_key(origin["device"]), origin, measured, stored.get("ceilings", {}), steps)


def from_gpu(steps: Steps) -> dict[str, Any]:
    """Calibrate from a sweep on this GPU. Raises HardwareError where there is none, or none of the table."""
    if not torch.cuda.is_available():
        raise HardwareError("this needs a GPU, and there is none: --from takes times that were recorded on one")
    import record
    from model_measure import rows

    from mla_ref.hardware.timing import measure_copy_bandwidth, measure_matmul_rate

    origin = record.origin(("triton",))
    key = _key(origin["device"])
    launchers = {(task, name): rest for task, name, *rest in variants.VARIANTS}
    cases = [(task, size, name, *launchers[task, name]) for task, size, name in sweep()]
    measured = {(c["task"], c["size"], c["variant"]): c["graph"]["us"] for c in rows(cases)}
    half = DEVICES[key].half_dtype
    ceilings = {
        "measured_dram_bandwidth": measure_copy_bandwidth("cuda"),
        "measured_flops": {half: measure_matmul_rate("cuda", getattr(torch, half))},
    }
    return of(key, origin, measured, ceilings, steps)


def _key(driver_name: str) -> str:
    key = find_device(driver_name)
    if key is None or DEVICES[key].sm is None:
        known = ", ".join(name for device in DEVICES.values() for name in device.driver_names)
        raise HardwareError(
            f"{driver_name} is not in the table of mla_ref/hardware/devices.py, which has {known}: add its data sheet "
            f"there first"
        )
    return key


def told(found: Mapping[str, Any]) -> list[str]:
    """Return what a calibration found, for people."""
    errors = {name: f"{100 * error:.1f} %" for name, error in found["median_error"].items()}
    lines = [
        f"{DEVICES[found['hardware']].name}, {found['cases']} kernels: the modelled time is off by {errors['before']} "
        f"in the median with the constants of an H100",
        f"by {errors['task_left_out']} with constants fitted to the other tasks than the kernel's, by "
        f"{errors['fitted']} with constants fitted to all",
    ]
    if not found["taken"]:
        return [*lines, "a fit does not help with kernels that it has not seen: the constants stay as they are"]
    return lines + [f"{name}: {before:.3g} is now {now:.3g}" for name, (before, now) in found["changed"].items()]
