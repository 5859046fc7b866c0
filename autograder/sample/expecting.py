"""What the made-up students of kernel lessons should get."""

from __future__ import annotations

from collections.abc import Mapping

from autograder.sample import Expected, Patch, unfinished
from autograder.verdict import Outcome


def not_right(exercise: str, says: str, score: float = 0, outcome: Outcome = Outcome.WRONG) -> Mapping[str, Expected]:
    """Return what a wrong kernel gets: its verdict, and none of the points for speed."""
    outcome = Outcome.PARTIAL if score else outcome
    return {
        exercise: Expected(score, outcome, says),
        f"{exercise}:speed": Expected(0, outcome, "once the answer is right"),
    }


def says(exercise: str, words: str, score: float = 0) -> Mapping[str, Expected]:
    """Return what a wrong answer gets where no kernel is asked for."""
    return {exercise: Expected(score, Outcome.PARTIAL if score else Outcome.WRONG, words)}


def slow(exercise: str, score: float = 0, says: str = "of the floor") -> Mapping[str, Expected]:
    """Return what a right kernel gets that reaches the lower bar, or none."""
    return {f"{exercise}:speed": Expected(score, Outcome.PARTIAL if score else Outcome.SLOW, says)}


def left_out(*kernels: str) -> tuple[tuple[Patch, ...], Mapping[str, Expected]]:
    """Return patches and verdicts of kernels that are handed in as they were handed out."""
    verdicts: dict[str, Expected] = {}
    for name in kernels:
        verdicts |= not_right(name, "as it was handed out", outcome=Outcome.UNFINISHED)
    return tuple(unfinished(name) for name in kernels), verdicts
