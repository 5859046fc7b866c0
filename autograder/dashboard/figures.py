"""A class as arrays, and the figures of its exercises and students."""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from autograder.dashboard.snapshot import (
    ATTAINED,
    MISTAKE,
    OUTCOME,
    PARTS,
    SPEED,
    WHY,
    Row,
    Snapshot,
    seconds_of,
)
from autograder.judging.verdict import Outcome

OUTCOMES = list(Outcome)
NOTHING = -1  # of an exercise that is in no record of the student
NONE = Outcome.UNFINISHED, Outcome.MISSING, Outcome.UNREADABLE, Outcome.ABSENT, Outcome.OTHER
UNTRIED = [OUTCOMES.index(each) for each in NONE]
FAULT = OUTCOMES.index(Outcome.FAULT)
PASSED = OUTCOMES.index(Outcome.PASSED)
LIMITS = (Outcome.TIME, Outcome.MEMORY, Outcome.ENDED)
OF_SPEED = ":speed"  # ends the name of a verdict on speed, as `judging.exercise.SPEED`
BINS = 10
FEW = 5  # students by whom nothing is said of an exercise
EXAMPLES = 3
BEHIND = 0.4  # times the median share of the points
BAR = re.compile(r"(\d+)% of the floor's speed")


@dataclass(frozen=True)
class Item:
    """An exercise, or the speed of one: what a verdict is on."""

    lesson: str
    name: str
    points: float

    @property
    def exercise(self) -> str:
        """The exercise's name, also of its speed."""
        return self.name.removesuffix(OF_SPEED)

    @property
    def of_speed(self) -> bool:
        """Whether it is the speed of an exercise."""
        return self.name.endswith(OF_SPEED)


@dataclass
class Group:
    """A class as arrays over [students, items]. NaN and `NOTHING` stand where there is no verdict.

    Attributes
    ----------
    score
        What counts: the judge's score, or a person's in place of it.
    outcome
        Index into `OUTCOMES`.
    attempts, first
        Hand-ins up to the one that first had all points, all if none had; the share of the points at the first.
    hours
        From the lesson's first hand-in to the student's that first had all points.
    seconds
        That judging took.
    """

    snapshot: Snapshot
    students: list[str]
    items: list[Item]
    score: np.ndarray
    outcome: np.ndarray
    attempts: np.ndarray
    first: np.ndarray
    hours: np.ndarray
    seconds: np.ndarray

    @cached_property
    def points(self) -> np.ndarray:
        """Points of each item."""
        return np.array([item.points for item in self.items])

    @cached_property
    def share(self) -> np.ndarray:
        """The share of the points that counts, over [students, items]."""
        return self.score / np.where(self.points > 0, self.points, 1.0)

    @cached_property
    def tried(self) -> np.ndarray:
        """Whether a student's own answer was judged, over [students, items]; its speed, if the answer was right."""
        found = (self.outcome != NOTHING) & ~np.isin(self.outcome, [*UNTRIED, FAULT])
        for n, item in enumerate(self.items):
            if item.of_speed and (answer := self.place.get((item.lesson, item.exercise))) is not None:
                found[:, n] &= self.outcome[:, answer] == PASSED
        return found

    @cached_property
    def ability(self) -> np.ndarray:
        """For each item the mean share of the points of all others that a student tried, over [students, items].

        An exercise and its speed leave each other out. NaN for who tried nothing else.
        """
        known = self.tried & ~np.isnan(self.score)
        share, count = np.where(known, np.clip(self.share, 0, 1), 0.0), known.astype(float)
        both: dict[tuple[str, str], list[int]] = {}
        for n, item in enumerate(self.items):
            both.setdefault((item.lesson, item.exercise), []).append(n)
        mine = [both[item.lesson, item.exercise] for item in self.items]
        rest, of = (
            each.sum(axis=1, keepdims=True) - np.stack([each[:, its].sum(axis=1) for its in mine], axis=1)
            for each in (share, count)
        )
        return np.where(of > 0, rest / np.maximum(of, 1), np.nan)

    @cached_property
    def lessons(self) -> list[str]:
        """The lessons' names, in order."""
        return list(self.snapshot.lessons)

    @cached_property
    def by_lesson(self) -> tuple[np.ndarray, np.ndarray]:
        """Score that counts over [students, lessons], NaN where nothing was handed in, and each lesson's points."""
        score = np.full((len(self.students), len(self.lessons)), np.nan)
        points = np.zeros(len(self.lessons))
        for column, lesson in enumerate(self.lessons):
            its = self.of_lesson(lesson)
            points[column] = self.points[its].sum()
            there = (self.outcome[:, its] != NOTHING).any(axis=1)
            score[there, column] = np.nansum(self.score[there][:, its], axis=1)
        for (lesson, student), less in self.snapshot.book.penalties.items():
            if lesson in self.lessons and student in self.number:
                place = self.number[student], self.lessons.index(lesson)
                score[place] = max(0.0, score[place] - less)
        return score, points

    @cached_property
    def total(self) -> np.ndarray:
        """Points that count, of all lessons."""
        return np.nansum(self.by_lesson[0], axis=1)

    @cached_property
    def number(self) -> dict[str, int]:
        """Places of the students."""
        return {student: n for n, student in enumerate(self.students)}

    @cached_property
    def place(self) -> dict[tuple[str, str], int]:
        """Places of the items, by lesson and name."""
        return {(item.lesson, item.name): n for n, item in enumerate(self.items)}

    def of_lesson(self, lesson: str) -> list[int]:
        """Return the places of a lesson's items."""
        return [n for n, item in enumerate(self.items) if item.lesson == lesson]

    def row(self, student: str, item: Item) -> Row | None:
        """Return what is kept of a verdict (see `snapshot.Row`)."""
        return self.snapshot.lessons[item.lesson].rows(item.name).get(student)

    def rows(self, item: Item) -> list[tuple[str, Row]]:
        """Return the students with a verdict on an item, and what is kept of it."""
        return list(self.snapshot.lessons[item.lesson].rows(item.name).items())

    def shown(self, student: str, hidden: bool = False) -> str:
        """Return a student's name for people, or a number in place of it."""
        return f"student {self.number[student] + 1}" if hidden else self.snapshot.book.students.get(student, student)

    @cached_property
    def discrimination(self) -> tuple[np.ndarray, np.ndarray]:
        """For each item the correlation of its score with that of all others, and twice its standard error.

        NaN where fewer than `FEW` tried it, or all did alike.
        """
        pairs = [correlation(np.clip(self.share[:, n], 0, 1), self.ability[:, n], self.tried[:, n]) for n in self.range]
        return tuple(np.array(each) for each in zip(*pairs, strict=True)) if pairs else (np.empty(0), np.empty(0))

    @property
    def range(self) -> range:
        """Places of the items."""
        return range(len(self.items))

    def quarters(self, n: int) -> tuple[np.ndarray, np.ndarray]:
        """Return who is in the lower and in the upper quarter of those who tried an item, by all others."""
        who = np.flatnonzero(self.tried[:, n] & ~np.isnan(self.ability[:, n]))
        order = who[np.argsort(self.ability[who, n], kind="stable")]
        size = max(1, len(order) // 4)
        return order[:size], order[-size:]


def correlation(one: np.ndarray, other: np.ndarray, who: np.ndarray) -> tuple[float, float]:
    """Return the correlation of two figures of some students, and twice its standard error; NaN if there is none."""
    who = who & ~np.isnan(one) & ~np.isnan(other)
    one, other = one[who], other[who]
    if len(one) < FEW or np.ptp(one) == 0 or np.ptp(other) == 0:
        return np.nan, np.nan
    value = np.corrcoef(one, other)[0, 1]
    return value, 2 * (1 - value**2) / np.sqrt(len(one) - 2)


def gather(snapshot: Snapshot) -> Group:
    """Return the arrays of a snapshot."""
    sheets = snapshot.lessons
    students = sorted(set(snapshot.book.students).union(*(sheet.students for sheet in sheets.values())))
    number = {student: n for n, student in enumerate(students)}
    items = [
        Item(lesson, *pair) for lesson, sheet in sheets.items() for pair in zip(sheet.names, sheet.points, strict=True)
    ]
    size = len(students), len(items)
    found = Group(snapshot, students, items, *(np.full(size, np.nan) for _ in range(6)))
    found.outcome = np.full(size, NOTHING, np.int8)
    for lesson, sheet in sheets.items():
        if not sheet.students or not sheet.names:
            continue
        where = np.ix_([number[student] for student in sheet.students], found.of_lesson(lesson))
        score, tries, began, full, seconds = (
            np.array(each, float) for each in (sheet.score, sheet.tries, sheet.began, sheet.full, sheet.seconds)
        )
        found.score[where], found.outcome[where], found.seconds[where] = score, sheet.outcome, seconds
        there, all_points = np.array(sheet.outcome) != NOTHING, score >= np.array(sheet.points)
        share = score / np.where(np.array(sheet.points) > 0, sheet.points, 1.0)
        found.attempts[where] = np.where(there & np.isnan(tries), 1, tries)
        found.first[where] = np.where(np.isnan(began), share, began)
        # Where no history is kept, the gradebook has the time of the one submission
        handed = [snapshot.book.handed_in.get((lesson, student)) for student in sheet.students]
        only = np.array([np.nan if (at := seconds_of(each)) is None else at for each in handed])
        first = np.where(np.array(sheet.times) > 0, np.array(sheet.first, float), only)
        when = np.where((np.array(sheet.times) == 0)[:, None] & all_points, only[:, None], full)
        if not np.isnan(first).all():
            found.hours[where] = (when - np.nanmin(first)) / 3600
    for (lesson, student, name), score in snapshot.book.counts.items():
        if (place := found.place.get((lesson, name))) is not None and student in number:
            found.score[number[student], place] = score
    return found


# Exercises


@dataclass
class Figures:
    """What the class made of an exercise, or of its speed. Shares are of all students; None where nothing is known."""

    lesson: str
    exercise: str
    of_speed: bool
    points: float
    students: int
    submitted: float
    nonzero: float
    perfect: float
    mean: float | None
    discrimination: float | None
    attempts: float | None
    first_try: float | None
    hours: float | None
    histogram: list[int] = field(default_factory=list)
    outcomes: dict[str, int] = field(default_factory=dict)
    mistakes: list[dict[str, Any]] = field(default_factory=list)
    reasons: list[dict[str, Any]] = field(default_factory=list)
    cases: list[dict[str, Any]] = field(default_factory=list)
    speed: dict[str, Any] | None = None


def overview(group: Group) -> list[Figures]:
    """Return the figures of all items that take no look at single verdicts."""
    size = max(1, len(group.students))
    value = group.discrimination[0]
    with warnings.catch_warnings(), np.errstate(invalid="ignore"):
        warnings.simplefilter("ignore", RuntimeWarning)  # means of nothing
        tried, share = group.tried, np.where(group.tried, group.share, np.nan)
        columns = [
            tried.sum(axis=0) / size,
            (share > 0).sum(axis=0) / size,
            (share >= 1).sum(axis=0) / size,
            np.nanmean(share, axis=0),
            value,
            np.nanmean(np.where(tried, group.attempts, np.nan), axis=0),
            np.nanmean(np.where(tried, group.first >= 1, np.nan), axis=0),
            np.nanmedian(group.hours, axis=0),
        ]
    return [
        Figures(
            item.lesson, item.exercise, item.of_speed, item.points, len(group.students),
            *(_number(column[n]) for column in columns),
        )
        for n, item in enumerate(group.items)
    ]  # fmt: skip


def hardest(found: Sequence[Figures]) -> list[Figures]:
    """Return these figures with the lowest mean first; what nobody tried comes last."""
    return sorted(found, key=lambda each: (each.mean is None, each.mean))


def _number(value: float) -> float | None:
    return None if np.isnan(value) else round(float(value), 4)


def detailed(group: Group, n: int, figures: Figures) -> Figures:
    """Fill in the figures of an item what single verdicts say: outcomes, mistakes, hardest cases, speed."""
    item = group.items[n]
    tried = group.tried[:, n]
    shares = np.clip(group.share[tried, n], 0, 1)
    figures.histogram = np.histogram(shares[~np.isnan(shares)], BINS, (0, 1))[0].tolist()
    rows = list(group.rows(item))
    figures.outcomes = dict(Counter(row[OUTCOME] for _, row in rows).most_common())
    named: dict[str, list[tuple[str, Row]]] = {}
    others: dict[str, list[tuple[str, Row]]] = {}
    cases: Counter[tuple[str, str]] = Counter()
    for student, row in rows:
        if row[OUTCOME] in (Outcome.PASSED, Outcome.FAULT) or not tried[group.number[student]]:
            continue
        named.setdefault(row[MISTAKE], []).append((student, row)) if row[MISTAKE] else (
            others.setdefault(alike(row[WHY]), []).append((student, row))
        )
        failed = [(part[0], part[3]) for part in row[PARTS] if part[2] < part[1]]
        cases.update(failed[:1] if item.of_speed else failed)
    figures.mistakes = [{"mistake": name, **_examples(found)} for name, found in _by_number(named)]
    figures.reasons = [_examples(found) for _, found in _by_number(others)][:BINS]
    figures.cases = [{"part": part, "case": case, "students": count} for (part, case), count in cases.most_common(BINS)]
    figures.speed = _speed(group, item, rows) if item.of_speed else None
    return figures


def alike(reason: str) -> str:
    """Return a reason without what differs from one student to the next: numbers, quotes of code, lines."""
    return re.sub(r"\d[\d.,e+-]*", "#", re.sub(r"`[^`]*`", "`…`", reason))[:160]


def _by_number(found: dict[str, list]) -> list[tuple[str, list]]:
    return sorted(found.items(), key=lambda each: (-len(each[1]), each[0]))


def _examples(found: Sequence[tuple[str, Row]]) -> dict[str, Any]:
    return {
        "students": len(found),
        "reason": found[0][1][WHY],
        "examples": [{"student": student, "reason": row[WHY]} for student, row in found[:EXAMPLES]],
    }


def attained(row: Row) -> dict[str, Any] | None:
    """Return the time of a verdict on speed by the names in `SPEED`, or None."""
    return dict(zip(SPEED, row[ATTAINED], strict=True)) if row[ATTAINED] else None


def _speed(group: Group, item: Item, rows: Sequence[tuple[str, Row]]) -> dict[str, Any] | None:
    """Return times in seconds of all that were timed: the least, the median, the most; what they are held against."""
    timed = [(student, row, found) for student, row in rows if (found := attained(row))]
    if not timed:
        return None
    fractions = np.array([found["fraction"] for _, _, found in timed])
    seconds = np.array([found["seconds"] for _, _, found in timed])
    bars: dict[str, list[bool]] = {}
    for _, row, _ in timed:
        for name, points, score, _ in row[PARTS]:
            bars.setdefault(name, []).append(score >= points)
    last = timed[0][2]
    return {
        "timed": len(timed),
        "how": sorted({found["how"] for _, _, found in timed}),
        "device": sorted({found["device"] for _, _, found in timed}),
        "fastest": float(seconds.min()),
        "median": float(np.median(seconds)),
        "slowest": float(seconds.max()),
        "floor": last["floor"],
        "baseline": last["baseline"],
        "fractions": [round(float(each), 4) for each in np.sort(fractions)],
        "bars": [
            {"bar": name, "fraction": bar_of(name), "reached": sum(reached), "of": len(reached)}
            for name, reached in bars.items()
        ],
    }


def bar_of(name: str) -> float | None:
    """Return the share of the floor's speed that a part's name asks for."""
    found = BAR.match(name)
    return int(found[1]) / 100 if found else None


# Students


@dataclass(frozen=True)
class Lost:
    """A student who needs a look: why, and how much, from 0 to 1."""

    student: str
    why: str
    weight: float


def lost(group: Group) -> list[Lost]:
    """Return the students who have come off the course's track, those first who need help most."""
    score, points = group.by_lesson
    if not len(group.students) or not len(points):
        return []
    handed = ~np.isnan(score)
    given = np.flatnonzero((handed.mean(axis=0) >= 0.5) & (points > 0))  # lessons that the class is through with
    if not len(given):
        return []
    share = np.nan_to_num(score[:, given]) / points[given]
    there = handed[:, given]
    middle = np.median(share.mean(axis=1))
    found = []
    for n, student in enumerate(group.students):
        missing = len(given) - there[n].sum()
        behind = 0  # lessons in a row up to now that were not handed in
        while behind < len(given) and not there[n, -1 - behind]:
            behind += 1
        mine, recent = share[n].mean(), share[n, -2:].mean()
        weight = float(np.clip(1 - mine / middle, 0, 1)) if middle else 0.0
        if missing == len(given):
            what = "none of the lessons that half the class has" if handed[n].any() else "nothing"
            found.append(Lost(student, f"has handed in {what}", 0.95 if handed[n].any() else 1.0))
        elif behind >= 2:
            found.append(Lost(student, f"has not handed in the last {behind} lessons", max(weight, 0.9)))
        elif mine < BEHIND * middle:
            found.append(
                Lost(student, f"has {mine:.0%} of the points; half the class has {middle:.0%} or more", weight)
            )
        elif len(given) >= 4 and recent < 0.5 * share[n, :-2].mean() and recent < 0.5 * np.median(share[:, -2:]):
            fell = f"fell from {share[n, :-2].mean():.0%} of the points to {recent:.0%} in the last two lessons"
            found.append(Lost(student, fell, max(weight, 0.6)))
    return sorted(found, key=lambda each: (-each.weight, each.student))


# The grader's work


def operations(group: Group) -> list[dict[str, Any]]:
    """Return for each lesson how many submissions were judged, the seconds it took, limits met and grader faults."""
    limits = [OUTCOMES.index(each) for each in LIMITS]
    found = []
    for lesson in group.lessons:
        its = group.of_lesson(lesson)
        outcome, seconds = group.outcome[:, its], group.seconds[:, its]
        there = (outcome != NOTHING).any(axis=1)
        each = np.nansum(seconds[there], axis=1)
        found.append(
            {
                "lesson": lesson,
                "submissions": int(there.sum()),
                "seconds": round(float(each.sum()), 2),
                "median": round(float(np.median(each)), 3) if len(each) else None,
                "most": round(float(each.max()), 3) if len(each) else None,
                "limits": {str(OUTCOMES[code]): int((outcome == code).sum()) for code in limits},
                "faults": int((outcome == FAULT).sum()),
            }
        )
    return found


def verdicts_with(group: Group, outcomes: Sequence[Outcome], most: int) -> list[tuple[str, str, Row]]:
    """Return the first verdicts with one of these outcomes, as (lesson, student, row)."""
    codes = [OUTCOMES.index(each) for each in outcomes]
    return [
        (group.items[n].lesson, group.students[s], row)
        for s, n in np.argwhere(np.isin(group.outcome, codes))[:most].tolist()
        if (row := group.row(group.students[s], group.items[n]))
    ]
