"""What stands in nbgrader's gradebook, as rows: for a CSV file, a program, or a reader."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from autograder.classroom.grade import Classroom
from autograder.classroom.record import grades_of, score_of, submissions_of
from autograder.course.lesson import verdict_name


def overruled(room: Classroom) -> list[str]:
    """Return a sentence for every score that a person has set in place of the judge's, or that lateness lowers."""
    from nbgrader.api import Grade, SubmittedNotebook

    found = []
    with room.records.gradebook() as gradebook:
        for grade in gradebook.db.query(Grade).filter(Grade.manual_score.is_not(None)):
            if grade.manual_score != grade.auto_score:
                line = f"{grade.notebook.name} {grade.notebook.student.id}: {verdict_name(grade.name)} counts "
                line += f"{grade.manual_score:g}, set by hand"
                if grade.auto_score is not None:
                    line += f"; the judge now gives {grade.auto_score:g}; clear the field in formgrader to take it"
                found.append(line)
        for late in gradebook.db.query(SubmittedNotebook).filter(SubmittedNotebook.late_submission_penalty > 0):
            hours, less = late.assignment.total_seconds_late / 3600, late.late_submission_penalty
            found.append(f"{late.name} {late.student.id}: {hours:.4g} hours late, {less:g} points less")
    return sorted(found)


def rows(room: Classroom, per_exercise: bool = False) -> list[dict[str, Any]]:
    """Return the gradebook as a row a submission, or an exercise. A score that is still open is None.

    `late` is in hours, None if in time; the penalty for it is taken off the score of a submission. `isolation` is what
    the programs ran under, "bubblewrap" or "process"; empty where nothing had to run.
    """
    if not (room.folder / "graded").is_dir():
        raise FileNotFoundError(f"nothing is graded in {room.folder} yet: run `mla-course grade` first")
    with room.records.gradebook() as gradebook:
        return [row for lesson in room.course.lesson_names() for row in _rows(room, gradebook, lesson, per_exercise)]


def export(room: Classroom, target: Path, per_exercise: bool = False) -> int:
    """Write the rows as CSV and return their number. Text that a spreadsheet would take for a formula gets a "'"."""
    head = ["student", "lesson", *(["exercise"] if per_exercise else []), "score", "max_score", "late", "status"]
    head.append("isolation")
    found = rows(room, per_exercise)
    with open(target, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, head)
        writer.writeheader()
        writer.writerows({key: _cell(value) for key, value in row.items()} for row in found)
    return len(found)


def _cell(value: Any) -> Any:
    return f"'{value}" if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r", "\n")) else value


def _rows(room: Classroom, gradebook: Any, lesson: str, per_exercise: bool) -> Iterator[dict[str, Any]]:
    """Yield the rows of a lesson; of a lesson that anybody handed in, also those of students who did not."""
    found = {submission.student_id: submission for submission in submissions_of(gradebook, lesson)}
    for student in sorted(student.id for student in gradebook.students) if found else ():
        submission, who = found.get(student), {"student": student, "lesson": lesson}
        if submission is None:
            if not per_exercise:
                top = gradebook.find_assignment(lesson).max_score
                yield {**who, "score": 0.0, "max_score": top, "late": None, "status": "not handed in", "isolation": ""}
            continue
        late = round(submission.total_seconds_late / 3600, 2) or None
        under = {verdict.exercise: verdict.isolation for verdict in room.records.read(student, lesson)[1]}
        penalty = 0.0 if per_exercise else submission.late_submission_penalty
        for grades in [[grade] for grade in grades_of(submission)] if per_exercise else [grades_of(submission)]:
            what = {"exercise": verdict_name(grades[0].name)} if per_exercise else {}
            score, top, status = score_of(grades, penalty)
            names = {under.get(what["exercise"], "")} if what else set(under.values())
            row = {**who, **what, "score": score, "max_score": top, "late": late, "status": status}
            yield {**row, "isolation": " ".join(sorted(names - {""}))}
