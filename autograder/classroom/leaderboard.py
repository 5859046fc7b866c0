"""A leaderboard: the right kernels of an exercise, by the geometric mean of their times over the cases it names.

Times are the judge's: measured where it has a GPU, modelled elsewhere. Those of one kind and device are ranked among
themselves, never with others. What is not right is not ranked.
"""

from __future__ import annotations

import csv
import dataclasses
import hashlib
import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from autograder.classroom.grade import Classroom, isolation_for, restored
from autograder.classroom.grader import Grader
from autograder.course.course import Course, UnknownExercise
from autograder.course.lesson import LessonError
from autograder.judging.exercise import Exercise
from autograder.judging.verdict import Outcome
from autograder.kernels import measure, speed
from autograder.kernels.measure import GpuWorker
from autograder.kernels.workers import KernelWorkers
from autograder.text import listed, one_line


@dataclass(frozen=True)
class Time:
    """Seconds of one case: median, 20th and 80th percentile; all the same where the time is modelled."""

    seconds: float
    low: float
    high: float
    how: str
    device: str


@dataclass(frozen=True)
class Result:
    """What the judge found of one student: a time for each case, or why there is none; a fault is the judge's."""

    student: str
    times: tuple[Time, ...] = ()
    why: str = ""
    fault: bool = False


@dataclass(frozen=True)
class Place:
    """A line of a table. The mean is geometric, in seconds, and so are its bounds by the noise; ties share a place."""

    place: int
    tied: bool
    student: str
    mean: float
    low: float
    high: float
    times: tuple[float, ...]


Tables = Mapping[tuple[str, str], Sequence[Place]]  # by how and device


def ranked_exercise(course: Course, name: str | None = None) -> str:
    """Return the exercise to rank, by name. Raises UnknownExercise, or LessonError where there is none or several."""
    known = [each.name for lesson in course.lesson_names() for each in course.exercises(lesson) if _cases(each)]
    if name is None and len(known) == 1:
        return known[0]
    if name is None:
        raise LessonError(
            f"say which exercise to rank; those with a leaderboard are {listed(known) if known else 'none'}"
        )
    if not _cases(course.locate(name)[1]):
        raise UnknownExercise(
            f"{name} has no leaderboard; those that have one are {listed(known) if known else 'none'}"
        )
    return name


def _cases(exercise: Exercise) -> Sequence[Mapping[str, Any]]:
    return exercise.speed.ranked if exercise.speed else ()


def collect(
    course: Course,
    folder: Path,
    name: str,
    progress: Callable[[str, int, int], None] = lambda stage, done, total: None,
    modelled: bool = False,
) -> list[Result]:
    """Judge an exercise of all who handed its lesson in, and time those that are right, one at a time.

    Verdicts and times are kept in the classroom, as `grade` keeps them. Raises FileNotFoundError where there is no
    class, and as `grade.isolation_for`.
    """
    lesson_name, exercise = course.locate(name)
    lesson = course.lesson(lesson_name)
    handed_in = [each for each in Classroom(course, folder).found()[0] if each[1] == lesson_name]
    students, found = [student for student, _ in handed_in], []
    with Grader(course, folder, isolation=isolation_for(folder, handed_in), modelled=modelled) as grader:
        kind = GpuWorker if measure.timing(exercise, grader.place.gpu) else KernelWorkers
        with kind(grader.isolation, helpers=course.helpers, hidden=(course.root, folder)) as worker:
            for done, student in enumerate(students):
                progress("timing", done, len(students))
                notebook = restored(lesson, folder / "submitted" / student / lesson_name)
                job = next(j for j in grader.jobs(lesson, notebook) if j.exercise.name == name and j.answers)
                found.append(_timed(grader, lesson, job, exercise, worker, student))
            progress("timing", len(students), len(students))
    return found


def _timed(grader: Grader, lesson: Any, job: Any, exercise: Exercise, worker: Any, student: str) -> Result:
    answers = grader.verdict(lesson, job.answers)
    if answers.outcome is not Outcome.PASSED:
        return Result(student, (), f"{answers.outcome}: {answers.reason}", answers.outcome is Outcome.FAULT)
    job, times = grader.chosen(lesson, job), []
    for case in _cases(exercise):
        key = hashlib.sha256(f"ranked {job.key} {sorted(case.items(), key=str)}".encode()).hexdigest()
        verdict = grader.store.get(key) if grader.store else None
        if verdict is None:
            small = {k: v for k, v in (exercise.speed.small or {}).items() if k in case} or None
            of_case = dataclasses.replace(exercise, speed=dataclasses.replace(exercise.speed, case=case, small=small))
            verdict = speed.judge_speed(of_case, job.program, worker, grader.seed)
            if grader.store:
                grader.store.put(key, verdict)
        if verdict.speed is None:
            return Result(student, (), f"{verdict.outcome}: {verdict.reason}", verdict.outcome is Outcome.FAULT)
        low, high = verdict.speed.get("noise") or (verdict.speed["seconds"],) * 2
        times.append(Time(verdict.speed["seconds"], low, high, verdict.speed["how"], verdict.speed["device"]))
    return Result(student, tuple(times))


def checked(result: Result) -> Result:
    """Return the result; one with a time that no clock gives, or with times of several kinds, as a fault."""
    for time in result.times:
        values = time.low, time.seconds, time.high
        if not all(math.isfinite(v) and v >= sys.float_info.min for v in values) or list(values) != sorted(values):
            why = f"the time {time.seconds!r} s, between {time.low!r} and {time.high!r}, is none: time it again"
            return dataclasses.replace(result, times=(), why=why, fault=True)
    if len({(time.how, time.device) for time in result.times}) > 1:
        why = "its cases were timed in several ways or on several devices: time them again on one"
        return dataclasses.replace(result, times=(), why=why, fault=True)
    return result


def rank(results: Sequence[Result]) -> tuple[Tables, list[Result]]:
    """Return tables of the right, fastest first, by how and on what they were timed; and who is in none.

    Who lies within the noise of the first of a place shares it.
    """
    results = [checked(each) for each in results]
    groups: dict[tuple[str, str], list[Result]] = {}
    for each in results:
        if each.times:
            groups.setdefault((each.times[0].how, each.times[0].device), []).append(each)
    tables = {key: _places(group) for key, group in sorted(groups.items())}
    return tables, [each for each in results if not each.times]


def _places(group: Sequence[Result]) -> list[Place]:
    def mean(values: Sequence[float]) -> float:
        return math.exp(math.fsum(map(math.log, values)) / len(values))

    found = []
    for each in group:
        means = (mean([getattr(time, name) for time in each.times]) for name in ("seconds", "low", "high"))
        found.append(Place(0, False, each.student, *means, tuple(time.seconds for time in each.times)))
    found.sort(key=lambda each: (each.mean, each.student))
    places: list[Place] = []
    first = None
    for number, each in enumerate(found, 1):
        if first is None or each.low > first.high:
            first = dataclasses.replace(each, place=number)
        places.append(dataclasses.replace(each, place=first.place))
    shared = [each.place for each in places]
    return [dataclasses.replace(each, tied=shared.count(each.place) > 1) for each in places]


def renamed(results: Sequence[Result], aliases: Path) -> list[Result]:
    """Return the results under the aliases of a CSV file with the columns student and alias.

    Raises LessonError unless each student has an alias, and no two the same: nothing is shown then.
    """
    with open(aliases, newline="", encoding="utf-8-sig") as file:
        rows = csv.DictReader(file)
        if not {"student", "alias"} <= set(rows.fieldnames or ()):
            raise LessonError(f"{aliases} has columns {rows.fieldnames}, expected student and alias")
        known = {row["student"].strip(): one_line(row["alias"] or "", 60).strip() for row in rows}
    if missing := [each.student for each in results if not known.get(each.student)]:
        raise LessonError(f"{aliases} has no alias for {listed(missing)}: add a line for each")
    shown = [known[each.student] for each in results]
    if len(set(shown)) < len(shown):
        raise LessonError(f"{aliases} gives several students the alias {max(shown, key=shown.count)}: make them differ")
    return [dataclasses.replace(each, student=alias) for each, alias in zip(results, shown, strict=True)]


# --- how it is shown --------------------------------------------------------------------------------------------------


def _micro(seconds: float) -> str:
    return f"{1e6 * seconds:,.1f} µs"


def _cells(each: Place) -> list[str]:
    noise = f"{_micro(each.low)} to {_micro(each.high)}" if each.low < each.high else "–"
    place = f"{each.place}, tied" if each.tied else str(each.place)
    return [place, each.student, _micro(each.mean), noise, *map(_micro, each.times)]


def _head(places: Sequence[Place]) -> list[str]:
    return ["place", "name", "geometric mean", "noise", *(f"case {n}" for n in range(1, len(places[0].times) + 1))]


def _title(name: str, key: tuple[str, str]) -> str:
    how, device = key
    return f"{name}, {how} on {device}" if how == "measured" else f"{name}, {how} for {device}: no clock has seen it"


def _unranked(rest: Sequence[Result]) -> list[str]:
    return [f"{each.student}: {'fault, ' if each.fault else ''}{each.why}" for each in rest]


def as_text(name: str, tables: Tables, rest: Sequence[Result]) -> str:
    """Return the tables for a terminal."""
    lines = []
    for key, places in tables.items():
        rows = [_head(places), *map(_cells, places)]
        widths = [max(len(row[n]) for row in rows) for n in range(len(rows[0]))]
        lines += [_title(name, key)]
        lines += [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
        ]
        lines += [""]
    if rest:
        lines += ["not ranked", *(f"  {line}" for line in _unranked(rest))]
    return "\n".join(lines).rstrip() or f"nobody has handed in {name}"


STYLE = """body{font-family:sans-serif;margin:2em;max-width:70em}table{border-collapse:collapse}
td,th{padding:.3em .8em;text-align:left;border-bottom:1px solid #ccc}"""


def as_html(name: str, tables: Tables, rest: Sequence[Result]) -> str:
    """Return the tables as a page that stands alone."""

    def row(cells: Sequence[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells) + "</tr>"

    parts = [f"<!doctype html><html lang=en><meta charset=utf-8><title>{escape(name)}</title><style>{STYLE}</style>"]
    parts += [f"<h1>Leaderboard: {escape(name)}</h1>"]
    for key, places in tables.items():
        rows = "".join(row(_cells(each), "td") for each in places)
        parts += [f"<h2>{escape(_title(name, key))}</h2><table>{row(_head(places), 'th')}{rows}</table>"]
    parts += ["<p>Of equal place is who lies within the noise of the first there.</p>"] if tables else []
    if rest:
        items = "".join(f"<li>{escape(line)}</li>" for line in _unranked(rest))
        parts += [f"<h2>Not ranked</h2><ul>{items}</ul>"]
    return "\n".join(parts) + "</html>\n"


def to_json(name: str, tables: Tables, rest: Sequence[Result]) -> dict[str, Any]:
    """Return the tables as plain data."""
    found = [
        {"how": how, "device": device, "places": [dataclasses.asdict(each) for each in places]}
        for (how, device), places in tables.items()
    ]
    return json.loads(
        json.dumps({"exercise": name, "tables": found, "unranked": [dataclasses.asdict(r) for r in rest]})
    )
