"""Exercises that an instructor should look at: what the class's answers say against them, and why."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from autograder.dashboard.figures import ATTAINED, FEW, MISTAKE, OUTCOME, PARTS, PASSED, WHY, Group, bar_of, correlation
from autograder.dashboard.integrity import LONG
from autograder.dashboard.snapshot import Row, Shapes
from autograder.judging.verdict import Outcome

ENOUGH = 20  # students, below which nothing is said
EASY = 0.97  # all points at the first hand-in
COMMON = 0.05  # of those who tried gave the same wrong answer
RISES = 0.05  # correlation of that answer with ability that is no accident; it falls where the answer is a mistake
REJECTED = 0.2  # of the upper quarter have all points: less means that right answers are refused
OUT_OF_REACH, IN_REACH = 0.02, 0.98  # of the right answers reach a bar
SPREAD = 2.5  # times the speed of a slow answer (the 5th percentile) that the median has, where a bar should part them
LEAKED, TIMES = 0.2, 3.0  # of the answers have the solution's shape, and so many times what is usual in this class


@dataclass(frozen=True)
class Flag:
    """Something wrong with an exercise: `kind` in a word or two, and the reason as a sentence."""

    lesson: str
    exercise: str
    kind: str
    reason: str


def flags(group: Group, shapes: Shapes) -> list[Flag]:
    """Return what is wrong with exercises. An exercise that fewer than `ENOUGH` tried is left out."""
    found = []
    leaked = _leaked(shapes)
    for n, item in enumerate(group.items):
        if (who := group.tried[:, n]).sum() < ENOUGH:
            continue
        rows = {student: row for student, row in group.rows(item) if who[group.number[student]]}
        if item.of_speed:
            told = _bars(rows)
        else:
            told = leaked.get((item.lesson, item.exercise)) or _easy(group, n) or _answers(group, n, rows)
        if told:
            found.append(Flag(item.lesson, item.name, *told))
    return found


def _easy(group: Group, n: int) -> tuple[str, str] | None:
    first = group.first[group.tried[:, n], n]
    share = float((first >= 1).mean())
    if share < EASY:
        return None
    return "too easy", f"{share:.0%} of {len(first)} have all points at their first hand-in: it tells nobody anything"


def _answers(group: Group, n: int, rows: dict[str, Row]) -> tuple[str, str] | None:
    """Look for a wrong answer that the able give more than the others: a second reading, or the right one."""
    same: dict[str, list[str]] = defaultdict(list)
    for student, row in rows.items():
        if row[OUTCOME] in (Outcome.WRONG, Outcome.PARTIAL):
            same[answer_of(row)].append(student)
    tried, ability, found = group.tried[:, n], group.ability[:, n], []
    for answer, givers in same.items():
        if len(givers) >= max(FEW, COMMON * tried.sum()):
            gave = np.isin(np.arange(len(group.students)), [group.number[student] for student in givers])
            rises, error = correlation(gave.astype(float), ability, tried)
            if rises - error >= RISES:
                found.append((rises, answer, gave))
    if not found:
        return None
    _, answer, gave = max(found, key=lambda each: each[:2])
    givers = same[answer]
    upper = group.quarters(n)[1]
    right = float((group.outcome[upper, n] == PASSED).mean())
    gives = float(gave[upper].mean())
    told = (
        f"{right:.0%} of the upper quarter have it right and {gives:.0%} give one and the same other answer "
        f"({len(givers)} of {int(tried.sum())} in all), the able more often than the rest: {rows[givers[0]][WHY]}"
    )
    return ("wrong oracle" if right < REJECTED else "ambiguous"), told


def answer_of(row: Row) -> str:
    """Return what tells a wrong answer from others, as far as a verdict says: the mistake, or its numbers roughly."""
    if row[MISTAKE]:
        return f"mistake {row[MISTAKE]}"
    lost = next((part for part in row[PARTS] if part[2] < part[1]), None)
    rough = re.sub(r"\d+\.\d+(e[+-]?\d+)?", lambda number: f"{float(number[0]):.2g}", row[WHY])
    return f"{lost and lost[0]}: {rough}"


def _bars(rows: dict[str, Row]) -> tuple[str, str] | None:
    timed = [row for row in rows.values() if row[ATTAINED]]
    if len(timed) < ENOUGH:
        return None
    fractions = np.array([row[ATTAINED][-2] for row in timed])
    bars: dict[str, list[bool]] = defaultdict(list)
    for row in timed:
        for name, points, score, _ in row[PARTS]:
            bars[name].append(score >= points)
    best, middle, slow = fractions.max(), np.median(fractions), np.percentile(fractions, 5)
    for name, reached in bars.items():
        asks = bar_of(name)
        told = f"of {len(reached)} right answers {sum(reached)} reach the bar “{name}”"
        if np.mean(reached) <= OUT_OF_REACH:
            return "slow bar", f"{told}; the fastest has {best:.0%} of the floor's speed: the bar is out of reach"
        if name == list(bars)[-1] and np.mean(reached) >= IN_REACH and middle >= SPREAD * slow and asks:
            return "slow bar", (
                f"{told}, though half of them are {middle / slow:.1f} times as fast as the slowest twentieth: the bar "
                f"asks for {asks:.0%} of the floor's speed and tells them not apart"
            )
    return None


def _leaked(shapes: Shapes) -> dict[tuple[str, str], tuple[str, str]]:
    """Look for exercises in which far more than elsewhere have the lesson's own solution, or one long answer."""
    shares, most = {}, {}
    for key, answers in shapes.answers.items():
        if len(answers) < ENOUGH:
            continue
        near = shapes.family.get(key, {})
        counts: dict[str, int] = defaultdict(int)
        for shape, _ in answers.values():
            counts[near.get(shape, shape)] += 1
        if long := {f: c for f, c in counts.items() if shapes.tokens.get(f, 0) - shapes.starter[key] >= LONG}:
            most[key] = max(long, key=lambda f: (long[f], f))
            shares[key] = long[most[key]] / len(answers), len(answers)
    if not shares:
        return {}
    usual = float(np.median([share for share, _ in shares.values()]))
    found = {}
    for key, (share, size) in shares.items():
        error = 2 * np.sqrt(share * (1 - share) / size)
        if share >= LEAKED and share - error > TIMES * usual:
            tokens = shapes.tokens[most[key]] - shapes.starter[key]
            whose = "the lesson's own solution" if most[key] == shapes.own[key] else "one and the same answer"
            found[key] = (
                "leaked",
                (
                    f"{share:.0%} of {size} hand in {whose}, names aside, which is {tokens} tokens long; in "
                    f"other exercises {usual:.0%} share one: a solution may be going round"
                ),
            )
    return found
