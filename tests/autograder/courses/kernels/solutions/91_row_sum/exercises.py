"""Lesson 91: one small kernel."""

from autograder.isolation.sandbox import Limits
from autograder.judging.exercise import Exercise, Part, randn


def _inputs(generator, rows, width):
    return {"x": randn(generator, rows, width), "alpha": 1.5}


ROW_SUM = Exercise(
    name="row_sum",
    title="alpha times the sum of each row",
    parts=(Part("all", 2, [dict(rows=3, width=20)], lambda r: [dict(rows=r.randint(2, 5), width=r.randint(2, 40))]),),
    inputs=_inputs,
    oracle=lambda x, alpha: alpha * x.sum(-1),
    tolerance=1e-5,
    limits=Limits(seconds=20.0),
    kernel=True,
)

EXERCISES = (ROW_SUM,)
