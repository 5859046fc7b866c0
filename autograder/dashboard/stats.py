"""A class's figures for a terminal and as plain data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from autograder.course.course import Course
from autograder.dashboard import figures, snapshot
from autograder.dashboard.findings import find, sum_up
from autograder.text import one_line

MOST = 10  # rows of a table about students


def collect(
    course: Course, folder: Path, lessons: Sequence[str], progress: snapshot.Progress = lambda stage, done, total: None
) -> dict[str, Any]:
    """Return the class's figures as plain data, of these lessons or of all.

    Raises LessonError for a lesson that there is not, FileNotFoundError if nothing is graded.
    """
    for name in lessons:
        course.folder(name)
    group = sum_up(course, folder, progress)
    looks = find(group)
    wanted = set(lessons or group.lessons)
    found = [
        asdict(figures.detailed(group, n, each))
        for n, each in enumerate(figures.overview(group))
        if each.lesson in wanted
    ]
    score, points = group.by_lesson
    return {
        "students": len(group.students),
        "lessons": {
            name: {"points": float(points[n]), "handed_in": int((score[:, n] == score[:, n]).sum())}
            for n, name in enumerate(group.lessons)
            if name in wanted
        },
        "exercises": found,
        "flags": [asdict(flag) for flag in looks.flags if flag.lesson in wanted],
        "lost": [asdict(each) for each in figures.lost(group)],
        "integrity": {
            "alike": [
                each.to_json()
                for each in looks.alike
                if not lessons or wanted & {lesson for lesson, _, _ in each.exercises}
            ],
            "own_solution": [asdict(each) for each in looks.own if each.lesson in wanted],
            "refused": [asdict(each) for each in looks.refused if each.lesson in wanted],
        },
        "operations": {
            "lessons": [each for each in figures.operations(group) if each["lesson"] in wanted],
            "waiting": [list(each) for each in snapshot.queue(group.snapshot) if each[0] in wanted],
        },
        "problems": group.snapshot.problems,
    }


def show(console: Console, found: dict[str, Any]) -> None:
    """Print the figures as tables."""
    _table(
        console,
        f"Exercises, {found['students']} students; hours from the class's first hand-in of a lesson",
        ("exercise", "tried", "some", "all", "at once", "discr.", "tries", "hours"),
        [
            (
                f"{each['lesson'][:2]} {each['exercise']}{' (speed)' if each['of_speed'] else ''}",
                *(_percent(each[key]) for key in ("submitted", "nonzero", "perfect", "first_try")),
                *(_short(each[key]) for key in ("discrimination", "attempts", "hours")),
            )
            for each in found["exercises"]
        ],
    )
    mistakes = [
        (m["students"], f"{each['exercise']}: {m['students']}× {m['mistake']}: {m['reason']}")
        for each in found["exercises"]
        for m in each["mistakes"]
    ]
    _lines(console, "Named mistakes", [line for _, line in sorted(mistakes, key=lambda m: -m[0])])
    rows = [
        (
            f"{each['lesson'][:2]} {each['exercise']}",
            *(f"{each['speed'][key] * 1e6:.4g}" for key in ("fastest", "median", "slowest", "floor", "baseline")),
            ", ".join(f"{bar['reached']}/{bar['of']}" for bar in each["speed"]["bars"]),
        )
        for each in found["exercises"]
        if each["speed"]
    ]
    _table(console, "Speed, µs", ("kernel", "fastest", "median", "slowest", "roof", "baseline", "bars"), rows)
    _lines(
        console, "Exercises that need a look", [f"{f['exercise']}: {f['kind']}. {f['reason']}" for f in found["flags"]]
    )
    _lines(console, "Students who need a look", [f"{each['student']} {each['why']}" for each in found["lost"]])
    alike = [
        f"{', '.join(each['students'][:8])}: {each['sure']}, {len(each['exercises'])} exercises"
        + (f"; {each['first']} handed in first" if each["first"] else "")
        for each in found["integrity"]["alike"]
    ]
    _lines(console, "Answers alike beyond chance: grounds to ask, not findings", alike)
    own = [
        f"{each['lesson'][:2]} {each['exercise']}: {len(each['students'])} of {each['of']}"
        for each in found["integrity"]["own_solution"]
    ]
    _lines(console, "The lesson's own solution, names aside", own)
    refused = [f"{each['student']} {each['exercise']}: {each['what']}" for each in found["integrity"]["refused"]]
    _lines(console, "Refused answers", refused)
    work = found["operations"]
    rows = [
        (
            w["lesson"],
            str(w["submissions"]),
            f"{w['seconds']:.4g}",
            _short(w["median"]),
            str(sum(w["limits"].values())),
            str(w["faults"]),
        )
        for w in work["lessons"]
    ]
    _table(console, "Grading", ("lesson", "submissions", "seconds", "median, s", "limits met", "faults"), rows)
    _lines(console, "Waiting for `mla-course grade`", [f"{s} {lesson}: {why}" for lesson, s, why in work["waiting"]])
    _lines(console, "Not read", found["problems"])


def _table(console: Console, title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    if not rows:
        return
    made = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for n, each in enumerate(head):
        made.add_column(each, justify="right" if n else "left", no_wrap=not n)
    for row in rows:
        made.add_row(*(one_line(each, 80).replace("[", "\\[") for each in row))
    console.print(made)


def _lines(console: Console, title: str, lines: Sequence[str]) -> None:
    if lines:
        console.print(title, style="bold")
    for line in lines[:MOST]:
        console.print(f"  {one_line(line)}", markup=False, highlight=False, soft_wrap=True)
    if len(lines) > MOST:
        console.print(f"  and {len(lines) - MOST} more: --json has them all", highlight=False)


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.0%}"


def _short(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}"
