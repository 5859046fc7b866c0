"""The cases of an exercise: visible ones and hidden ones, with data drawn from a seed."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from random import Random
from typing import Any

import torch

from autograder.isolation.worker.layout import is_gapped, spread
from autograder.isolation.worker.trees import mapped, tensors_in
from autograder.judging.exercise import Arguments, Exercise, Params


@dataclass(frozen=True)
class Case:
    """One call to make: the part it counts for, its parameters, and the arguments drawn for it."""

    part: int
    params: Params
    arguments: Arguments

    def __str__(self) -> str:
        return ", ".join(f"{k}={_plain(v)}" for k, v in self.params.items())


def draw_cases(exercise: Exercise, seed: str, hidden: bool = True) -> list[Case]:
    """Return the exercise's cases with data drawn from `seed`: the visible ones and, if asked, hidden ones.

    For kernels each case comes again with other data: a result kept from before is wrong there, and what a host
    computes from the data and hands over as integers differs.
    """
    rng = Random(_digest(seed, exercise.name, "shapes"))
    cases = []
    for index, part in enumerate(exercise.parts):
        chosen = [*part.visible, *(part.hidden(rng) if hidden else ())]
        for number, params in enumerate(chosen):
            generator = torch.Generator().manual_seed(_digest(seed, exercise.name, part.name, str(number)))
            cases.append(Case(index, params, exercise.inputs(generator, **params)))
            if exercise.kernel:
                cases.append(Case(index, params, _second_draw(exercise, cases[-1], generator)))
    return cases


def _second_draw(exercise: Exercise, case: Case, generator: torch.Generator) -> Arguments:
    """Return arguments with the same integers and other floats; where there are no floats, with other integers."""
    if not any(t.is_floating_point() for t in tensors_in(case.arguments)):
        return exercise.inputs(generator, **case.params)

    def other(tensor):
        if not tensor.is_floating_point():
            return tensor.clone()
        factor = torch.tensor([-1.0, -0.5, 0.5, 1.0])[torch.randint(4, tensor.shape, generator=generator)]
        values = (tensor * factor.where(tensor.isfinite(), 1.0)).to(tensor.dtype)
        return spread(values, tensor.stride()) if is_gapped(tensor) else values

    return mapped(case.arguments, other)


def _plain(value: Any) -> str:
    return str(value).removeprefix("torch.")


def _digest(*words: str) -> int:
    return int.from_bytes(hashlib.sha256("\0".join(words).encode()).digest()[:8], "big") >> 1
