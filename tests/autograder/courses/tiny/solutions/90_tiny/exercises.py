"""Lesson 90: twice, and four times."""

from autograder.isolation.sandbox import Limits
from autograder.judging.exercise import Exercise, Mistake, Part, randn


def _inputs(generator, n):
    return {"x": randn(generator, n, 4)}


DOUBLE = Exercise(
    name="double",
    title="twice",
    parts=(
        Part("small", 2, [dict(n=3)], lambda r: [dict(n=r.randint(10, 30))]),
        Part("large", 1, [dict(n=70)]),
    ),
    inputs=_inputs,
    oracle=lambda x: 2 * x,
    mistakes=(Mistake("half", "it is halved, expected doubled", lambda x: x / 2, at_times=True),),
    limits=Limits(seconds=5.0, memory=256 << 20),
)
QUAD = Exercise("quad", "four times", (Part("all", 2, [dict(n=5)]),), _inputs, lambda x: 4 * x, needs=("double",))

EXERCISES = (DOUBLE, QUAD)
