"""The cases of an exercise: visible ones and hidden ones, with data drawn from a seed."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from random import Random
from typing import Any

import torch

from autograder.isolation.worker.layout import is_gapped, spread
from autograder.isolation.worker.trees import mapped, tensors_in
from autograder.judging.exercise import Arguments, Exercise, Params, is_data

MANY = 16  # more are not told one by one


@dataclass(frozen=True)
class Case:
    """One call to make: the part it counts for, its parameters, and the arguments drawn for it."""

    part: int
    params: Params
    arguments: Arguments

    def __str__(self) -> str:
        return ", ".join(f"{k}={_plain(v)}" for k, v in self.params.items())


def draw_cases(exercise: Exercise, seed: str, hidden: bool = True, own: str = "") -> list[Case]:
    """Return the exercise's cases with data drawn from `seed`: the visible ones and, if asked, hidden ones.

    All have these in common. One more hidden case of each part is drawn for `own`, the digest of a program: what an
    earlier one has found out of its cases is of no use to the next.
    """
    rng = Random(_digest(seed, exercise.name, "shapes"))
    cases = []
    for index, part in enumerate(exercise.parts):
        chosen = [*part.visible, *(part.hidden(rng) if hidden else ())]
        words = [str(number) for number in range(len(chosen))]
        if hidden and own and (more := part.hidden(Random(_digest(seed, exercise.name, part.name, own)))):
            new = [params for params in more if params not in chosen] or more
            chosen.append(new[_digest(seed, own) % len(new)])
            words.append(own)
        for word, params in zip(words, chosen, strict=True):
            generator = torch.Generator().manual_seed(_digest(seed, exercise.name, part.name, word))
            cases.append(Case(index, params, exercise.inputs(generator, **params)))
    return cases


def noise_for(exercise: Exercise, case: Case, seed: str, plain: bool = False) -> Arguments:
    """Return arguments with the same integers and other data; where there is no data, other integers.

    The data are drawn as those of the case, so that what a program asks of them has the same answer nearly always; what
    is not finite stays where it is. With `plain` they are normal noise instead, of which a program finds other answers.
    """
    generator = torch.Generator().manual_seed(_digest(seed, exercise.name, "noise"))
    if not any(map(is_data, tensors_in(case.arguments))):
        return exercise.inputs(generator, **case.params)
    others = [] if plain else tensors_in(exercise.inputs(generator, **case.params))
    alike = len(others) == len(tensors_in(case.arguments))

    def other(tensor: torch.Tensor) -> torch.Tensor:
        new = others.pop(0) if alike else None
        if not is_data(tensor):
            return tensor.clone()
        if not tensor.is_floating_point():
            return torch.randint(0, 256, tensor.shape, generator=generator).to(tensor.dtype)
        values, own = torch.randn(tensor.shape, generator=generator), tensor.double()
        if new is not None and new.shape == tensor.shape:
            new = new.double()
            finite = new.isfinite()
            size = new[finite].square().mean().sqrt().nan_to_num(1.0)
            new = new.where(finite, values * size).where(own.isfinite(), own)
            values = values * size if torch.equal(new, own) else new  # a table, say, that is the same in each drawing
        values = values.to(tensor.dtype).contiguous()
        return spread(values, tensor.stride()) if is_gapped(tensor) else values

    return mapped(case.arguments, other)


def without_bfloat16(params: Params) -> Params:
    """Return a case's parameters with float16 for bfloat16, which GPUs before compute capability 8.0 lack."""
    return {k: torch.float16 if v is torch.bfloat16 else v for k, v in params.items()}


def _plain(value: Any) -> str:
    if isinstance(value, list | tuple) and len(value) > MANY:
        return f"[{', '.join(map(str, value[:4]))}, …: {len(value)} of them]"
    return str(value).removeprefix("torch.")


def _digest(*words: str) -> int:
    return int.from_bytes(hashlib.sha256("\0".join(words).encode()).digest()[:8], "big") >> 1
