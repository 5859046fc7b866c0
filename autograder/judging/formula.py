"""How wrong numbers hang on the arguments of their calls: a factor too much or too few, or a term."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

Sizes = Mapping[str, float]
Guess = tuple[str, Callable[[Sizes], float]]

SMALL = (2, 3, 4, 8)
MOST = 0.6  # of the right number that a term may be: who has less of it did not lose one
CLOSE = 1e-6


@dataclass(frozen=True)
class Answer:
    """The number that a call gave, the right one, and the numbers among the call's arguments."""

    got: float
    right: float
    sizes: Sizes


def explained(answers: Sequence[Answer]) -> str | None:
    """Return the one thing that makes the given numbers of the right ones in all calls, in a few words, or None.

    It is a factor (a small number, an argument, or a quotient of two) or a term (a product of arguments). More than one
    thing may fit: then none is told. That takes calls with other arguments to see, so one call tells nothing.
    """
    if len({tuple(each.sizes.items()) for each in answers}) < 2 or not all(each.right for each in answers):
        return None
    names = [name for name in answers[0].sizes if all(name in each.sizes for each in answers)]
    ratios = [each.got / each.right for each in answers]
    differences = [each.got - each.right for each in answers]
    for guesses in _factors([name for name in names if all(each.sizes[name] for each in answers)]):
        fitting = [told for told, value in guesses if _fits(value, answers, ratios)]
        if fitting:
            return f"it is {fitting[0]}" if len(fitting) == 1 else None
    if any(abs(ratio - 1) > MOST for ratio in ratios):
        return None
    for number in (1, *SMALL):
        fitting = [
            f"{told} {'is missing' if sign < 0 else 'is too much'}"
            for told, value in _terms(names, number)
            for sign in (-1, 1)
            if _fits(value, answers, [sign * each for each in differences])
        ]
        if fitting:
            return fitting[0] if len(fitting) == 1 else None
    return None


def _fits(value: Callable[[Sizes], float], answers: Sequence[Answer], numbers: Sequence[float]) -> bool:
    """Whether the value that is guessed from each call's sizes is that call's number."""
    return all(
        math.isclose(value(each.sizes), number, rel_tol=CLOSE) for each, number in zip(answers, numbers, strict=True)
    )


def _factors(names: Sequence[str]) -> Iterable[list[Guess]]:
    """Yield guesses at a factor, the simple ones before the others."""
    yield [(f"{n} times the right one", lambda sizes, n=n: n) for n in SMALL] + [
        (f"1/{n} of the right one", lambda sizes, n=n: 1 / n) for n in SMALL
    ]
    yield [(f"{a} times the right one", lambda sizes, a=a: sizes[a]) for a in names] + [
        (f"the right one divided by {a}", lambda sizes, a=a: 1 / sizes[a]) for a in names
    ]
    yield [
        (f"{a} / {b} times the right one", lambda sizes, a=a, b=b: sizes[a] / sizes[b])
        for a, b in itertools.permutations(names, 2)
    ] + [
        (f"{n} / {a} times the right one", lambda sizes, n=n, a=a: n / sizes[a])
        for n, a in itertools.product(SMALL, names)
    ]


def _terms(names: Sequence[str], number: int) -> Iterable[Guess]:
    """Yield guesses at a term: products of arguments, and of a small number other than 1."""
    for count in range(1, len(names) + 1):
        for chosen in itertools.combinations(names, count):
            told = " · ".join([str(number)] * (number != 1) + list(chosen))
            yield told, lambda sizes, chosen=chosen: number * math.prod(sizes[name] for name in chosen)
