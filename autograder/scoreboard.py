"""Show a class's results in a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
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
    """Print a table of students by lessons, then a line for every exercise that did not earn all its points."""
    if not results:
        return
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
        table.add_row(student, *(number(row[x].score) if x in row else "" for x in lessons))
    console.print(table)
    reasons = Table(title="Why points are missing", title_justify="left")
    for column in ("student", "lesson", "exercise", "points", "outcome"):
        reasons.add_column(column, no_wrap=True)
    reasons.add_column("reason")
    for result in sorted(results, key=lambda r: (r.student, r.lesson)):
        for row in _reasons(result):
            reasons.add_row(result.student, result.lesson, *(escape(text) for text in row))
    if reasons.row_count:
        console.print(reasons)


def _reasons(result: Graded) -> list[tuple[str, str, str, str]]:
    """Return a row an exercise, or one row for all of them where they share their reason."""
    lost = [verdict for verdict in result.verdicts if verdict.outcome is not Outcome.PASSED]
    if result.problem:
        return [("all", "–", "grader fault", result.problem)]
    if len(lost) > 1 and len({verdict.reason for verdict in lost}) == 1 == len({v.outcome for v in lost}):
        points = f"{number(result.score)}/{number(result.points)}"
        return [
            (
                "all" if len(lost) == len(result.verdicts) else f"{len(lost)}",
                points,
                str(lost[0].outcome),
                lost[0].reason,
            )
        ]
    return [(v.exercise, f"{number(v.score)}/{number(v.points)}", str(v.outcome), v.reason) for v in lost]
