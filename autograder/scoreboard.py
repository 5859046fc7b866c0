"""Show a class's results in a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from autograder.classroom import Graded
from autograder.report import number
from autograder.verdict import Outcome


def as_rows(results: Sequence[Graded]) -> list[dict[str, Any]]:
    """Return the results as plain data."""
    return [
        {
            "student": result.student,
            "lesson": result.lesson,
            "score": result.score,
            "points": result.points,
            "problem": result.problem,
            "verdicts": [verdict.to_json() for verdict in result.verdicts],
        }
        for result in results
    ]


def print_scoreboard(console: Console, results: Sequence[Graded]) -> None:
    """Print why points are missing, an exercise a line, then a table of students by lessons."""
    if not results:
        return
    console.print("Why points are missing", style="bold")
    for result in sorted(results, key=lambda r: (r.lesson, r.student)):
        for line in _reasons(result):
            console.print(f"{result.lesson} {result.student}: {line}", markup=False, highlight=False, soft_wrap=True)
    lessons = sorted({result.lesson for result in results})
    table = Table(title="Scores", title_justify="left")
    table.add_column("student")
    for lesson in lessons:
        points = next(result.points for result in results if result.lesson == lesson)
        table.add_column(f"{lesson}\n(of {number(points)})", justify="right")
    by_student: dict[str, dict[str, Graded]] = {}
    for result in results:
        by_student.setdefault(result.student, {})[result.lesson] = result
    for student in sorted(by_student):
        row = by_student[student]
        table.add_row(student, *(number(row[lesson].score) if lesson in row else "" for lesson in lessons))
    console.print(table)


def _reasons(result: Graded) -> list[str]:
    """Return a line for each exercise that lost points, or one line where all lost them for the same reason."""
    lost = [verdict for verdict in result.verdicts if verdict.outcome is not Outcome.PASSED]
    if result.problem:
        return [result.problem]
    if len(lost) > 1 and len({(verdict.outcome, verdict.reason) for verdict in lost}) == 1:
        names = "all" if len(lost) == len(result.verdicts) else ", ".join(verdict.exercise for verdict in lost)
        return [f"{names}: {lost[0].outcome}: {lost[0].reason}"]
    return [f"{v.exercise} {number(v.score)}/{number(v.points)}, {v.outcome}: {v.reason}" for v in lost]
