"""What stands in nbgrader's gradebook, as rows and tables: for a CSV file, a program, a learning platform, a reader."""

from __future__ import annotations

import csv
import io
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from autograder.classroom.feedback import GONE
from autograder.classroom.grade import Classroom
from autograder.classroom.grader import PENDING
from autograder.classroom.record import Held, grades_of, score_of, submissions_of
from autograder.course.lesson import verdict_name
from autograder.files import composed, write_whole
from autograder.judging.verdict import Outcome, Verdict
from autograder.text import listed

ABOVE = "above the maximum"
ABSENT = "not handed in"
WITHDRAWN = "withdrawn since it was graded"
UNTOUCHED = "untouched"  # a lesson handed in as it was handed out
LONGEST = 1000  # characters of a lesson's reasons
# What a spreadsheet may take for the start of a formula, also behind a line end or the separator of its other locale.
FORMULA = re.compile('(^|;|\r?\n|\r)(?=[\\s"]*[=+\\-@\uff1d\uff0b\uff0d\uff20]|[\t\r\n])')

LAYOUTS = ROWS, WIDE, CANVAS, MOODLE = "rows", "wide", "canvas", "moodle"
Table = list[list[Any]]


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
    the programs ran under, "bubblewrap" or "process"; empty where nothing had to run. `outcome`, `reason` and `mistake`
    are the judge's; of a submission the one outcome of all its exercises, else how many have which, and the reasons.
    """
    if not (room.folder / "graded").is_dir():
        raise FileNotFoundError(f"nothing is graded in {room.folder} yet: run `mla-course grade` first")
    with room.records.gradebook() as gradebook:
        return [row for lesson in room.course.lesson_names() for row in _rows(room, gradebook, lesson, per_exercise)]


def table(room: Classroom, layout: str = ROWS, per_exercise: bool = False) -> Table:
    """Return the gradebook as lines of cells, the first of them the names of the columns.

    `rows` has a line a submission, or an exercise; the others have one a student and a column a lesson that anybody
    handed in: `wide` for people, with remarks; `canvas` and `moodle` as these platforms import grades. There, a
    student's name in the gradebook is the login.

    Raises ValueError for a layout that there is not, and for exercises in another one than `rows`.
    """
    if layout not in LAYOUTS:
        raise ValueError(f"there is no layout {layout!r}: expected one of {', '.join(LAYOUTS)}")
    if per_exercise and layout != ROWS:
        raise ValueError(f"the layout {layout} has a column a lesson: leave out --exercises, or --layout")
    found = rows(room, per_exercise)
    if layout == ROWS:
        head = ["student", "lesson", *(["exercise"] if per_exercise else []), "score", "max_score", "late", "status"]
        head += ["isolation", "outcome", "reason", "mistake"]
        return [head, *([row[key] for key in head] for row in found)]
    return _by_student(layout, found, _people(room))


def export(room: Classroom, target: Path, per_exercise: bool = False, layout: str = ROWS) -> int:
    """Write the table as CSV, whole or not at all, and return its number of rows.

    Text that a spreadsheet would take for a formula gets a "'". Raises as `table`.
    """
    lines, text = table(room, layout, per_exercise), io.StringIO()
    csv.writer(text).writerows([_cell(value) for value in line] for line in lines)
    write_whole(target, text.getvalue(), public=True)
    return len(lines) - 1 - (layout == CANVAS)


def remarks(found: Sequence[dict[str, Any]]) -> list[str]:
    """Return a sentence for each of these rows whose score is open or above the maximum: no number says that."""
    told = ((row, "still open, so left blank" if row["score"] is None else ABOVE) for row in found)
    return [f"{row['student']} in {row['lesson']}: {what}" for row, what in told if what != ABOVE or _above(row)]


def unentered(room: Classroom, found: Sequence[dict[str, Any]]) -> list[str]:
    """Return a sentence for each lesson of whose results the gradebook, or who asks, lacks some.

    That is of these rows, of the scores, or of what was recorded of them, which its owner alone may read.
    """
    there, told = {(row["lesson"], row["student"]) for row in found}, []
    for lesson in room.course.lesson_names():
        files = sorted((room.folder / "graded" / lesson).glob("*.json"))
        graded = [composed(path.stem) for path in files]
        held = room.records.held([lesson]) if graded else {}
        if lost := [student for student in graded if (lesson, student) not in there]:
            line = f"{lesson} {listed(lost)}: graded, and not in the gradebook any more, so no row"
            told.append(f"{line}; `mla-course grade` enters what is there")
        if hidden := [path.stem for path in files if not os.access(path, os.R_OK)]:
            line = f"{lesson} {listed(hidden)}: you may not read what the judge said, so outcome and reason are blank"
            told.append(line)
        if other := [student for student in graded if _outdated(room, student, lesson, held)]:
            line = (
                f"{lesson} {listed(other)}: the gradebook has other scores than the judge gave, as an older backup has"
            )
            told.append(f"{line}; `mla-course grade` enters them again")
    return told


def unknown(room: Classroom) -> list[str]:
    """Return a sentence for each lesson that was handed in and that the course has not: no row tells of it."""
    lessons, told = room.course.lesson_names(), []
    with room.records.gradebook() as gradebook:
        for lesson in gradebook.assignments:
            if lesson.name not in lessons and (count := len(lesson.submissions)):
                told.append(
                    f"{lesson.name}: the gradebook holds {count} submissions of it, and the course {GONE}: they are "
                    "left out; give the lesson its old name again to have them"
                )
    return told


def _outdated(room: Classroom, student: str, lesson: str, held: dict[tuple[str, str], Held]) -> bool:
    """Return whether the gradebook has another score than was recorded of a submission that is still there."""
    if (student, lesson) not in held or not (room.submitted / student / lesson).is_dir():
        return False
    verdicts = room.records.recorded(student, lesson).verdicts
    return bool(verdicts) and not held[student, lesson].agrees(verdicts)


def unnumbered(room: Classroom) -> list[str]:
    """Return a sentence where the gradebook lacks the numbers by which a platform's import finds students."""
    without = sorted(student for student, who in _people(room).items() if not who["lms_user_id"])
    if not without:
        return []
    return [
        f"{len(without)} of the students have no number of the platform's, {without[0]} the first: it finds them by "
        "the login alone, taken to be their name here. Where it is not, say who is who by `collect --mapping`, or "
        "give the number: `nbgrader db student add NAME --lms-user-id=NUMBER`"
    ]


def _cell(value: Any) -> Any:
    return FORMULA.sub(r"\1'", value) if isinstance(value, str) else value


def _above(row: dict[str, Any]) -> bool:
    return row["score"] is not None and row["score"] > row["max_score"] + 1e-6


def _by_student(layout: str, found: Sequence[dict[str, Any]], people: dict[str, Any]) -> Table:
    """Return a line for each student of these rows, a submission each."""
    tops = {row["lesson"]: row["max_score"] for row in found}
    by_student: dict[str, dict[str, dict[str, Any]]] = {}
    for row in found:
        by_student.setdefault(row["student"], {})[row["lesson"]] = row
    lines: Table = []
    for student, own in sorted(by_student.items()):
        who, scores = people[student], [own[lesson]["score"] for lesson in tops]
        first, last, mail, number = (str(who[key] or "") for key in ("first_name", "last_name", "email", "lms_user_id"))
        if layout == CANVAS:
            lines.append([", ".join(filter(None, (last, first))) or student, number, "", student, "", *scores])
        elif layout == MOODLE:
            lines.append([first, last, student, number, mail, *scores])
        else:
            total = None if None in scores else sum(scores)
            told = [f"{lesson}: {row['status']}" for lesson, row in own.items() if row["status"] != "graded"]
            lines.append([student, last, first, mail, *scores, total, sum(tops.values()), "; ".join(told)])
    if layout == CANVAS:
        head = ["Student", "ID", "SIS User ID", "SIS Login ID", "Section", *tops]
        return [head, ["Points Possible", *[""] * 4, *tops.values()], *lines]
    if layout == MOODLE:
        return [["First name", "Last name", "Username", "ID number", "Email address", *tops], *lines]
    return [["student", "last_name", "first_name", "email", *tops, "total", "max_total", "remarks"], *lines]


def _people(room: Classroom) -> dict[str, dict[str, Any]]:
    with room.records.gradebook() as gradebook:
        return {student.id: student.to_dict() for student in gradebook.students}


def _rows(room: Classroom, gradebook: Any, lesson: str, per_exercise: bool) -> Iterator[dict[str, Any]]:
    """Yield the rows of a lesson; of a lesson that anybody handed in, also those of students who did not."""
    found = {submission.student_id: submission for submission in submissions_of(gradebook, lesson)}
    for student in sorted(student.id for student in gradebook.students) if found else ():
        submission, who = found.get(student), {"student": student, "lesson": lesson}
        if submission is None:
            if not per_exercise:
                top = gradebook.find_assignment(lesson).max_score
                row = {**who, "score": 0.0, "max_score": top, "late": None, "status": ABSENT, "isolation": ""}
                yield {**row, "outcome": str(Outcome.ABSENT), "reason": "", "mistake": ""}
            continue
        late = round(submission.total_seconds_late / 3600, 2) or None
        record = room.records.recorded(student, lesson)
        verdicts = {verdict.exercise: verdict for verdict in record.verdicts}
        remarks_on = (
            [f"attempt {record.attempt} of {record.attempts} counts"] if record.attempt < record.attempts else []
        )
        if verdicts and room.submitted.is_dir() and not (room.submitted / student / lesson).is_dir():
            remarks_on.append(WITHDRAWN)
        penalty = 0.0 if per_exercise else submission.late_submission_penalty
        for grades in [[grade] for grade in grades_of(submission)] if per_exercise else [grades_of(submission)]:
            what = {"exercise": verdict_name(grades[0].name)} if per_exercise else {}
            score, top, status = score_of(grades, penalty)
            row = {**who, **what, "score": score, "max_score": top, "late": late, "status": status}
            row["status"] = ", ".join([status, *remarks_on, *([ABOVE] if _above(row) else [])])
            shown = [verdicts[what["exercise"]]] if what.get("exercise") in verdicts else []
            yield {**row, **(_judged(shown) if what else _judged(list(verdicts.values())))}


def _judged(verdicts: Sequence[Verdict]) -> dict[str, str]:
    """Return what the judge said: of one exercise, or of a lesson in short."""
    under = " ".join(sorted({verdict.isolation for verdict in verdicts} - {""}))
    named = "; ".join(dict.fromkeys(verdict.mistake for verdict in verdicts if verdict.mistake))
    outcomes = Counter(str(verdict.outcome) for verdict in verdicts)
    if len(verdicts) == 1:
        outcome, reason = str(verdicts[0].outcome), verdicts[0].reason
    elif len(outcomes) < 2:
        outcome = UNTOUCHED if Outcome.UNFINISHED in outcomes else next(iter(outcomes), "")
        reason = _reasons(verdicts)
    else:
        outcome, reason = ", ".join(f"{count} {name}" for name, count in outcomes.items()), _reasons(verdicts)
    return {"isolation": under, "outcome": outcome, "reason": reason, "mistake": named}


def _reasons(verdicts: Sequence[Verdict]) -> str:
    """Return the reasons of these exercises; once where they are all the same."""
    told = {v.exercise: v.reason for v in verdicts if v.reason and v.reason != PENDING}
    if len(set(told.values())) == 1 and len(told) > 1:
        return next(iter(told.values()))
    return "; ".join(f"{name}: {reason}" for name, reason in told.items())[:LONGEST]
