"""Fit the constants of `autograder.kernels.cost_model` to measured times, and say how far off they leave the model."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from autograder.kernels import cost_model
from autograder.kernels.cost_model import Constants
from autograder.kernels.model import in_order
from autograder.kernels.record import Recording
from autograder.kernels.replay import Replayed
from mla_ref.hardware.devices import Device

Case = tuple[str, str, str]  # task, size, variant
Launched = tuple[list[tuple], list[int]]  # a case as `cost_model.total_time` takes it

FIXED = (
    "host_product",
    "block",
)  # measured by itself: a million empty blocks take 0.606 ns each
SHARES = ("dram", "issue", "tensor", "keep", "foreign")
PULL = 0.001  # of a constant towards the value guessed before the fit, per squared logarithm
FAR = 0.4  # from which on an error, a logarithm, counts as such and no longer squared
CONFLICTS = "in float32"  # products bound by conflicts of banks, which the model says it cannot see: not fitted
STEP = 0.01
STEPS = 25


def launched(found: Mapping[Case, Mapping[str, Any]]) -> dict[Case, Launched]:
    """Return what was counted of each case as the model takes it."""
    return {
        case: in_order(Recording(**each["recording"]), Replayed(each["counts"]), each["compiled"])
        for case, each in found.items()
    }


def seconds(each: Launched, constants: Constants, device: Device) -> float:
    """Return the modelled time of one case."""
    events, sizes = each
    return cost_model.total_time(events, device, constants, sizes)[0]


def microseconds(found: Mapping[Case, Launched], constants: Constants, device: Device) -> dict[Case, float]:
    """Return the modelled time of each case."""
    return {case: seconds(each, constants, device) * 1e6 for case, each in found.items()}


def fit(
    found: Mapping[Case, Launched],
    measured: Mapping[Case, float],
    device: Device,
    start: Constants | None = None,
    names: Collection[str] = (),
    pull: float = PULL,
    far: float = FAR,
) -> Constants:
    """Return the constants of the least mean squared logarithm of modelled over measured, and of the pull.

    Large errors count less than squared. Steps are those of Levenberg and Marquardt, in logarithms.

    Parameters
    ----------
    found, measured
        The cases to fit to, and microseconds of at least these.
    start
        Where to begin and what to be pulled to: the guesses made before any fit by default.
    names
        Of the constants to fit; all but `FIXED` by default.
    pull, far
        See `PULL` and `FAR`.
    """
    start = start or Constants()
    names = [field.name for field in dataclasses.fields(Constants) if field.name in (names or _all())]
    cases = [case for case in found if not case[2].endswith(CONFLICTS)]
    origin = np.log([getattr(start, name) for name in names])
    most = np.array([0.0 if name in SHARES else np.inf for name in names])
    target = np.log([measured[case] for case in cases])

    def at(x: np.ndarray) -> Constants:
        return dataclasses.replace(start, **dict(zip(names, np.exp(x).tolist(), strict=True)))

    def off(x: np.ndarray) -> np.ndarray:
        constants = at(x)
        return np.log([seconds(found[case], constants, device) * 1e6 for case in cases]) - target

    def loss(errors: np.ndarray, x: np.ndarray) -> float:
        size = np.abs(errors)
        robust = np.where(size < far, size**2, 2 * far * size - far**2)
        return float(robust.mean() + pull * ((x - origin) ** 2).sum())

    x, damping = np.minimum(origin, most), 1e-3
    errors = off(x)
    least = loss(errors, x)
    for _ in range(STEPS):
        sides = np.where(x + STEP <= most, STEP, -STEP)
        units = zip(sides, np.eye(len(x)), strict=True)
        slopes = np.stack([(off(x + side * unit) - errors) / side for side, unit in units], 1)
        weights = np.minimum(1.0, far / np.maximum(np.abs(errors), 1e-9)) / len(errors)
        curvature = (slopes.T * weights) @ slopes + pull * np.eye(len(x))
        gradient = (slopes.T * weights) @ errors + pull * (x - origin)
        before = least
        while damping < 1e3:
            way = np.linalg.solve(curvature + damping * np.diag(np.diag(curvature)), -gradient)
            there = np.minimum(x + np.clip(way, -0.5, 0.5), most)
            found_there = off(there)
            if (now := loss(found_there, there)) < least:
                x, errors, least, damping = there, found_there, now, max(damping / 5, 1e-6)
                break
            damping *= 5
        if before - least < 1e-7:
            break
    return dataclasses.replace(start, **{name: float(f"{getattr(at(x), name):.3g}") for name in names})


def _all() -> list[str]:
    return [field.name for field in dataclasses.fields(Constants) if field.name not in FIXED]


def left_out(
    found: Mapping[Case, Launched], measured: Mapping[Case, float], device: Device, start: Constants, **options: Any
) -> dict[Case, float]:
    """Return the modelled time of each case, with constants fitted to the cases of the other tasks."""
    modelled: dict[Case, float] = {}
    for task in dict.fromkeys(case[0] for case in found):
        others = {case: each for case, each in found.items() if case[0] != task}
        constants = fit(others, measured, device, start, **options)
        modelled |= microseconds({case: found[case] for case in found if case[0] == task}, constants, device)
    return modelled


def errors(modelled: Mapping[Case, float], measured: Mapping[Case, float]) -> list[float]:
    """Return how far off each case is, as logarithms, the least first."""
    return sorted(abs(math.log(modelled[case] / measured[case])) for case in modelled)


def median_error(modelled: Mapping[Case, float], measured: Mapping[Case, float]) -> float:
    """Return the median error: 0.05 for 5 %."""
    found = errors(modelled, measured)
    return math.exp(found[len(found) // 2]) - 1


def mean_error(modelled: Mapping[Case, float], measured: Mapping[Case, float]) -> float:
    """Return the geometric mean of the errors: 0.05 for 5 %."""
    found = errors(modelled, measured)
    return math.exp(math.fsum(found) / len(found)) - 1
