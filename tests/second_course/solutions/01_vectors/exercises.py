"""Lesson 01: means, spreads, and a kernel."""

from autograder.judging.exercise import Exercise, Mistake, Part, Speed, randn
from mla_ref.hardware.cost import Cost

from ..oracles import mean


def _rows(generator, n, d):
    return {"x": randn(generator, n, d)}


def _vectors(generator, n):
    return {"a": 2.5, "x": randn(generator, n), "y": randn(generator, n)}


MEAN = Exercise(
    name="mean",
    title="the mean of each row",
    parts=(Part("all", 2, [dict(n=3, d=5)], lambda r: [dict(n=r.randint(1, 9), d=r.randint(2, 40))]),),
    inputs=_rows,
    oracle=mean,
    mistakes=(Mistake("columns", "it is the mean of each column, expected of each row", lambda x: x.mean(0)),),
)
SPREAD = Exercise(
    name="spread",
    title="the variance of each row",
    parts=(Part("all", 3, [dict(n=3, d=5)], lambda r: [dict(n=r.randint(1, 9), d=r.randint(2, 40))]),),
    inputs=_rows,
    oracle=lambda x: mean((x - mean(x)[:, None]) ** 2),
    needs=("mean",),
    mistakes=(Mistake("unbiased", "it divides by D - 1, expected D", lambda x: x.var(-1)),),
)
SAXPY = Exercise(
    name="saxpy",
    title="a x + y in Triton",
    parts=(Part("any length", 2, [dict(n=1000), dict(n=1)], lambda r: [dict(n=r.randint(2, 5000))]),),
    inputs=_vectors,
    oracle=lambda a, x, y: a * x + y,
    kernel=True,
    speed=Speed(
        points=2,
        case=dict(n=1 << 24),
        small=dict(n=1 << 14),
        floor=lambda n: Cost(bytes=3 * 4 * n, flops=2 * n),
        bars=((0.5, 0.5), (0.75, 1.0)),
        baseline=lambda a, x, y: a * x + y,
        device="l4",
    ),
)
EXERCISES = (MEAN, SPREAD, SAXPY)
