"""Lesson 92: pages of a pool, dense or with rows far apart. It has no script: where a course is installed, none has."""

import torch

from autograder.isolation.sandbox import Limits
from autograder.judging.exercise import Exercise, Part, far_apart, randn


def _inputs(generator, pages, wide):
    pool = randn(generator, pages, 4, 16, dtype=torch.float16)
    chosen = torch.randperm(pages, generator=generator, dtype=torch.int32)[: pages - 1]
    chosen[-1] = pages - 1
    return {"pool": far_apart(pool) if wide else pool, "pages": chosen}


def _cleared(pool, pages):
    pool[pages.long()] = 0
    return pool


CASES = [dict(pages=3, wide=False), dict(pages=5, wide=True)]
GATHERED = Exercise(
    name="gather",
    title="pages of a pool",
    parts=(Part("all", 2, CASES),),
    inputs=_inputs,
    oracle=lambda pool, pages: pool[pages.long()],
    limits=Limits(seconds=30.0),
    kernel=True,
)
CLEARED = Exercise(
    name="clear",
    title="pages set to zero",
    parts=(Part("all", 2, CASES),),
    inputs=_inputs,
    oracle=_cleared,
    returns=("pool",),
    may_change=("pool",),
    limits=Limits(seconds=30.0),
    kernel=True,
)

EXERCISES = (GATHERED, CLEARED)
