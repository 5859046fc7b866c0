"""Who may have copied from whom, and answers that the judge refused. It says how sure it is; people decide.

Two honest answers may have one shape: the exercise is short, or there is one obvious way. So a shared shape is weighed
in bits: how unlikely it is that two who never met wrote it both. A pair's bits are added up over all exercises, and
held against what honest pairs get by chance and against the number of pairs there are.
"""

from __future__ import annotations

import functools
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import Any

import numpy as np

from autograder.dashboard.figures import Group
from autograder.dashboard.shapes import shape_of_source
from autograder.dashboard.snapshot import OUTCOME, WHY, Row, Shapes, attempted, graded_notebook, source_in
from autograder.judging.verdict import Outcome

BITS = 0.1  # a token of an answer; measured on right answers that differ, see tests/autograder/dashboard
TEXT = 2.0  # times as many where names, comments and layout are the same too
MOST = 40.0  # of one exercise
TELLING = 2.0  # from which a shared answer is named
OWN = 0.25  # of an answer that has the shape of the lesson's own solution
TILTS = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95)  # of Chernoff's bound
SURE = ((30.0, "almost certain"), (15.0, "very likely"), (5.0, "possible"))  # by bits beyond chance
LONG = 60  # tokens beyond the starter's from which the lesson's own solution is not come upon by chance


@dataclass(frozen=True)
class Alike:
    """Students whose answers are alike beyond chance.

    Attributes
    ----------
    students
        Those who handed in what is shared first come first, as far as times are known.
    exercises
        [lesson, exercise, what is the same] of those that two or more share, "text" or "shape".
    bits
        By which the weakest link that holds the group together goes beyond chance: in a class like this, one such
        group comes up by chance in 2**bits classes.
    """

    students: tuple[str, ...]
    exercises: tuple[tuple[str, str, str], ...]
    bits: float
    first: str | None

    @property
    def sure(self) -> str:
        """How sure it is, in words."""
        return next((word for least, word in SURE if self.bits >= least), "chance")

    def to_json(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {**asdict(self), "sure": self.sure}


def alike(group: Group, shapes: Shapes) -> list[Alike]:
    """Return the groups of students whose answers are alike beyond chance, the surest first."""
    size = len(group.students)
    if size < 2 or not shapes.answers:
        return []
    single = np.zeros((size, size), np.float32)
    lessons = {lesson: [key for key in shapes.answers if key[0] == lesson] for lesson, _ in shapes.answers}
    total, there, bits = np.zeros_like(single), [], []
    beyond = np.full_like(single, -np.inf)
    for keys in lessons.values():
        weight, these, per = np.zeros_like(single), [], []
        for key in keys:
            blocks, who, length = _weigh(group, shapes, key)
            these.append(who)
            per.append(length)
            for members, value in blocks:
                place = np.ix_(members, members)
                single[place] = np.maximum(single[place], value)
            for members, value in _steps(blocks):
                weight[np.ix_(members, members)] += value
        beyond = np.maximum(beyond, _beyond(weight, np.array(these), per) - np.log2(len(lessons)))
        total += weight
        there += these
        bits += per
    beyond = np.maximum(beyond, _beyond(total, np.array(there), bits))
    beyond = np.maximum(beyond, single - np.log2(len(bits))) - np.log2(size * (size - 1) / 2)
    links = np.argwhere(np.triu(beyond >= SURE[-1][0], 1))
    return sorted(
        (_group(group, shapes, members, beyond) for members in _joined(links, beyond)),
        key=lambda each: (-each.bits, each.students),
    )


def _beyond(weight: np.ndarray, there: np.ndarray, bits: list[float]) -> np.ndarray:
    """Return by how many bits each pair's weight is beyond what honest pairs get by chance in these exercises.

    P(W >= w) <= E[2^(tW)] / 2^(tw) for any t, with W the weight of an honest pair.
    """
    beyond, there, each = np.full_like(weight, -np.inf), there.astype(np.float32), np.array(bits)
    for tilt in TILTS:
        expected = np.log2(1 + 2.0**-each * (2.0 ** (tilt * np.minimum(each, MOST)) - 1)).astype(np.float32)
        beyond = np.maximum(beyond, tilt * weight - (there.T * expected) @ there)
    return beyond


def _weigh(group: Group, shapes: Shapes, key: tuple[str, str]) -> tuple[list[tuple], np.ndarray, float]:
    """Return the students who share an answer to one exercise, with the bits of that; who answered; the bits of a
    match in general. Those who share the text come behind the family that they are in."""
    near, own = shapes.family.get(key, {}), shapes.own[key]
    by_family: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    there = np.zeros(len(group.students), bool)
    for student, (shape, text) in shapes.answers[key].items():
        if (n := group.number.get(student)) is not None:
            by_family[near.get(shape, shape)][text].append(n)
            there[n] = True
    size = int(there.sum())
    members = {family: [n for each in texts.values() for n in each] for family, texts in by_family.items()}
    lengths = {f: BITS * max(0, shapes.tokens.get(f, 0) - shapes.starter[key]) for f in by_family}
    matches = _pairs(members.values())
    # That many have the lesson's own solution does not make a match on another answer any likelier.
    other = {family: texts for family, texts in by_family.items() if family != own}
    found, differ = _pairs(members[family] for family in other), size - len(members.get(own, ()))
    verbatim = _pairs(same for texts in other.values() for same in texts.values())
    # Of a shape that no third one has nothing is known but how many others have one of their own (Good and Turing)
    unseen = sum(len(each) for each in members.values() if len(each) <= 2)
    blocks = []
    for family, texts in by_family.items():
        count = len(members[family])
        if count < 2:
            continue
        pairs, those = (matches, size) if family == own else (found, differ)
        rarity = _rarity(pairs - _pairs([members[family]]), those - count)
        rarity = max(rarity, -np.log2(unseen / size)) if count == 2 else min(rarity, -np.log2((count - 2) / (size - 2)))
        bits = min(lengths[family], MOST, rarity)
        if family == own:
            blocks.append((members[family], min(bits, OWN)))
            continue
        blocks.append((members[family], bits))
        for same in texts.values():
            rarity = _rarity(verbatim - _pairs([same]), differ - len(same))
            more = min(TEXT * lengths[family], rarity, MOST)
            if len(same) > 1 and more > bits:
                blocks.append((same, more))
    usual = min(float(np.median(list(lengths.values()))), _rarity(matches, size)) if lengths else 0.0
    return blocks, there, usual


def _steps(blocks: list[tuple]) -> Iterator[tuple[list[int], float]]:
    """Yield blocks with what each adds to the one that it lies in."""
    outer, before = frozenset(), 0.0
    for members, bits in blocks:
        if outer.issuperset(members):
            yield members, bits - before
        else:
            outer, before = frozenset(members), bits
            yield members, bits


def _pairs(groups: Any) -> int:
    return sum(len(each) * (len(each) - 1) for each in groups)


def _rarity(pairs: int, size: int) -> float:
    """Return the bits of a match by how often those outside the group match; without bound where none do."""
    return -np.log2(min(1.0, pairs / (size * (size - 1)))) if pairs and size > 1 else np.inf


def _joined(links: np.ndarray, beyond: np.ndarray) -> list[list[int]]:
    """Return the groups that links make: a student joins by the surest link, if most links to the group are there."""
    groups: list[set[int]] = []
    for one, other in sorted(links.tolist(), key=lambda pair: -beyond[tuple(pair)]):
        mine = [each for each in groups if one in each or other in each]
        if len(mine) == 1 and {one, other} <= mine[0]:
            continue
        merged = {one, other}.union(*mine)
        inside = (
            [beyond[pair] >= SURE[-1][0] for pair in combinations(sorted(merged), 2)] if len(merged) < 200 else [True]
        )
        if np.mean(inside) >= 0.5:
            groups = [each for each in groups if each not in mine] + [merged]
    return [sorted(each) for each in groups]


def _group(group: Group, shapes: Shapes, members: list[int], beyond: np.ndarray) -> Alike:
    names = [group.students[n] for n in members]
    shared, times = [], defaultdict(list)
    for (lesson, exercise), answers in shapes.answers.items():
        near = shapes.family.get((lesson, exercise), {})
        found = {s: (near.get(answers[s][0], answers[s][0]), answers[s][1]) for s in names if s in answers}
        count = Counter(family for family, _ in found.values())
        least = shapes.starter[lesson, exercise] + TELLING / BITS
        families = {family for family in count if count[family] > 1 and shapes.tokens.get(family, 0) >= least}
        families.discard(shapes.own[lesson, exercise])
        if families:
            texts = {student: text for student, (family, text) in found.items() if family in families}
            shared.append((lesson, exercise, "text" if len(set(texts.values())) < len(texts) else "shape"))
            for student, time in _first_times(group, lesson, exercise, list(texts)).items():
                times[student].append(time)
    when = {name: None if None in times[name] else min(times[name], default=None) for name in names}
    names.sort(key=lambda name: (when[name] is None, when[name] or 0, name))
    first = [when[name] for name in names]
    known = None not in first and len(set(first[:2])) == 2
    inside = beyond[np.ix_(members, members)].copy()
    np.fill_diagonal(inside, -np.inf)
    return Alike(tuple(names), tuple(shared), round(float(inside.max(axis=1).min()), 1), names[0] if known else None)


def _first_times(group: Group, lesson: str, exercise: str, students: list[str]) -> dict[str, float | None]:
    """Return when students who share an answer first handed one of its shapes in; None where that is not known.

    Of whom no attempt is kept that has it, that is the first attempt.
    """
    folder, sheet = group.snapshot.folder, group.snapshot.lessons.get(lesson)
    graded = (source_in(graded_notebook(folder, lesson, student), exercise) for student in students)
    shared = {_shape(source, exercise) for source in graded if source} - {None}
    found = dict(zip(sheet.students, sheet.first, strict=True)) if sheet else {}  # graded since they were read
    when = {student: found.get(student) for student in students}
    for student in students:
        tries = attempted(folder, lesson, student, exercise)
        if times := [time for time, source in tries if source and _shape(source, exercise) in shared]:
            when[student] = None if None in times else min(times)
    return when


@functools.lru_cache(2000)
def _shape(source: str, exercise: str) -> str | None:
    """Return the shape of an answer's cell alone."""
    made = shape_of_source(source, exercise)
    return made.shape if made else None


@dataclass(frozen=True)
class AsOwn:
    """Students who handed in the lesson's own solution, names aside, where it is too long to come upon by chance."""

    lesson: str
    exercise: str
    students: tuple[str, ...]
    tokens: int
    of: int


def as_own(shapes: Shapes) -> list[AsOwn]:
    """Return the exercises in which students handed in the lesson's own solution."""
    found = []
    for (lesson, exercise), answers in shapes.answers.items():
        own = shapes.own[lesson, exercise]
        tokens = shapes.tokens.get(own, 0) - shapes.starter[lesson, exercise]
        students = tuple(sorted(student for student, (shape, _) in answers.items() if shape == own))
        if students and tokens >= LONG:
            found.append(AsOwn(lesson, exercise, students, tokens, len(answers)))
    return sorted(found, key=lambda each: -len(each.students) / each.of)


# What the judge refused. Each pattern stands in the judge's own sentences (a test looks), where it names what was done
# in place of the work; the same words may come of a misunderstanding.
REFUSED = {
    "may not call": "called an operation that the exercise asks to write",
    "outside the kernels": "had torch compute in place of a kernel",
    "does not count": "computed with what does not count",
    "no Triton kernel was launched": "launched no kernel",
    "is it one that an earlier call returned": "returned a result kept from an earlier call",
    "no operation of torch in this call made": "returned what no operation of the call made",
    "are plenty": "expanded or copied far more than the work needs",
    "the worker's reply could not be read": "wrote into the judge's channel",
    "more processes than an answer needs": "started processes of its own",
    "and that was not said": "changed an argument and hid it",
    "which the grader does not replay": "used in a kernel what kernels have no use for",
    "a kernel keeps nothing but its own names": "kept something between the calls of a kernel",
}
_ANY = re.compile("|".join(map(re.escape, REFUSED)))


@dataclass(frozen=True)
class Refused:
    """An answer that the judge refused: what was done in place of the work, and the judge's words."""

    lesson: str
    exercise: str
    student: str
    what: str
    evidence: str


def refused_as(row: Row) -> str | None:
    """Return what was done in place of the work, by a verdict's reason; None if nothing was."""
    if row[OUTCOME] in (Outcome.PASSED, Outcome.FAULT):
        return None
    found = _ANY.search(row[WHY])
    return REFUSED[found[0]] if found else None


def refused(group: Group) -> list[Refused]:
    """Return the answers that the judge refused, by lesson and exercise."""
    found = []
    for item in group.items:
        for student, row in group.rows(item):
            if what := refused_as(row):
                found.append(Refused(item.lesson, item.name, student, what, row[WHY]))
    return sorted(found, key=lambda each: (each.lesson, each.exercise, each.student))
