"""Show a class's results in a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from autograder.classroom.grader import PENDING
from autograder.classroom.record import Graded
from autograder.classroom.report import number
from autograder.judging.verdict import Outcome
from autograder.text import listed


def as_rows(results: Sequence[Graded]) -> list[dict[str, Any]]:
    """Return the results as plain data."""
    return [
        {
            "student": result.student,
            "lesson": result.lesson,
            "score": result.score,
            "counts": result.counts,
            "points": result.points,
            "fresh": result.fresh,
            "attempt": result.attempt,
            "attempts": result.attempts,
            "withdrawn": result.withdrawn,
            "problem": result.problem,
            "verdicts": [verdict.to_json() for verdict in result.verdicts],
        }
        for result in results
    ]


def print_scoreboard(console: Console, results: Sequence[Graded], everything: bool = True) -> None:
    """Print why points are missing, an exercise a line, then a table of students by lessons.

    Unless `everything`, print reasons only for what this run has graded.
    """
    if not results:
        return
    told = [result for result in results if (everything or result.fresh) and not result.withdrawn]
    alike: dict[tuple[str, str, str | None], list[str]] = {}
    for result in sorted(told, key=lambda r: (r.lesson, r.student)):
        for line in _reasons(result):
            key = result.lesson, line, None if result.problem else result.student
            alike.setdefault(key, []).append(result.student)
    reasons = [f"{lesson} {listed(students)}: {line}" for (lesson, line, _), students in alike.items()]
    if reasons:
        console.print("Why points are missing", style="bold")
    for line in reasons:
        console.print(line, markup=False, highlight=False, soft_wrap=True)
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
        table.add_row(student, *(_shown(row[lesson]) if lesson in row else "" for lesson in lessons))
    console.print(table)
    if any(result.changed for result in results):
        console.print("* what counts: set by hand, with extra credit, or late", markup=False, highlight=False)
    if any(result.withdrawn for result in results):
        console.print("† withdrawn since it was graded", markup=False, highlight=False)
    if any(result.problem for result in results):
        console.print("‡ as it was: the new result could not be recorded", markup=False, highlight=False)


def remarks(results: Sequence[Graded]) -> list[str]:
    """Return a sentence for each submission that was withdrawn, or of whose attempts another one counts or could."""
    found = []
    for result in results:
        who, each = f"{result.lesson} {result.student}: ", f"attempt {result.attempt} of {result.attempts} counts"
        if result.withdrawn:
            left = "no points" if result.counts is None else f"{number(result.counts)} points"
            line = f"{who}withdrawn since it was graded; {left} stay in the gradebook"
            if result.same:
                line += f"; {listed(result.same)} handed in the same: was the folder renamed?"
            found.append(line)
        elif result.attempt < result.attempts:
            found.append(f"{who}{each}, the best one")
        elif result.fresh and result.better is not None:
            line = f"{who}{each}, with {number(result.score)} points; an earlier one had {number(result.better)}"
            found.append(f"{line}: --best has the best attempts count")
    return sorted(found)


def _shown(result: Graded) -> str:
    """Return the score that counts, with a mark where it is not the judge's, and where nothing is there any more."""
    if result.problem:
        return f"{number(result.counts)}‡"
    score = result.counts if result.withdrawn else result.score  # none where the gradebook has lost it
    shown = f"{number(result.counts)}*" if result.changed else number(score)
    return f"{shown}†" if result.withdrawn else shown


def _reasons(result: Graded) -> list[str]:
    """Return a line for each exercise that lost points, or one line where all lost them for the same reason."""
    told = [verdict for verdict in result.verdicts if verdict.reason != PENDING]
    lost = [verdict for verdict in told if verdict.outcome is not Outcome.PASSED]
    if result.problem:
        return [result.problem]
    if len(lost) > 1 and len({(verdict.outcome, verdict.reason) for verdict in lost}) == 1:
        names = "all" if len(lost) == len(told) else ", ".join(verdict.exercise for verdict in lost)
        return [f"{names}: {lost[0].outcome}: {lost[0].reason}"]
    return [f"{v.exercise} {number(v.score)}/{number(v.points)}, {v.outcome}: {v.reason}" for v in lost]
