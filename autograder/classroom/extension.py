"""More time for a student: kept in the classroom, also before they hand in, and entered in nbgrader's gradebook."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, astuple, dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autograder.classroom.restore import safe_name
from autograder.files import write_whole
from autograder.text import one_line

if TYPE_CHECKING:
    from autograder.classroom.grade import Classroom

MOST = 3650  # days

Times = dict[tuple[str, str], timedelta]


class ExtensionError(ValueError):
    """An extension that cannot be granted: a sentence with what to do."""


@dataclass(frozen=True)
class Extension:
    """A student's extension for a lesson. `due` is when that ends, in UTC; "" where the lesson has no due date."""

    student: str
    lesson: str
    days: float
    due: str

    def to_json(self) -> dict[str, Any]:
        """Return it as plain data."""
        return asdict(self)


class Extensions:
    """The extensions of a class, in its folder's `extensions.json`."""

    def __init__(self, folder: Path):
        self.path = folder / "extensions.json"

    def read(self) -> Times:
        """Return them by lesson and student. Raises ExtensionError if the file is damaged."""
        try:
            found = json.loads(self.path.read_text())
            return {(n, s): timedelta(days=days) for n, by_student in found.items() for s, days in by_student.items()}
        except FileNotFoundError:
            return {}
        except (ValueError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise ExtensionError(f"{self.path} is damaged ({error}): mend or remove it") from None

    def set(self, student: str, lesson: str, days: float | None) -> bool:
        """Grant so many days, in place of what was granted before; None grants none. Return whether there was any.

        Raises ExtensionError for days that are none.
        """
        if days is not None and not 0 < days <= MOST:
            raise ExtensionError(f"an extension of {days:g} days: expected more than 0 and at most {MOST}, or --remove")
        found = self.read()
        before = found.pop((lesson, student), None)
        if days is not None:
            found[lesson, student] = timedelta(days=days)
        plain: dict[str, dict[str, float]] = {}
        for (name, who), time in sorted(found.items()):
            plain.setdefault(name, {})[who] = time / timedelta(days=1)
        write_whole(self.path, json.dumps(plain, indent=1) + "\n")
        return before is not None


def enter(gradebook: Any, times: Times, gone: tuple[str, str] | None = None) -> None:
    """Enter extensions in nbgrader's gradebook, where there is a submission, and drop the one that is `gone`.

    A lesson without a due date gets none, and none reaches past the calendar: nbgrader fails at the sum.
    """
    for lesson in gradebook.assignments:
        for submission in lesson.submissions:
            key = lesson.name, submission.student_id
            wanted = times.get(key, None if key == gone else submission.extension)
            end = lesson.duedate
            submission.extension = _later(end, wanted) - end if wanted and end else None
    gradebook.db.commit()


def due(base: str, time: timedelta | None) -> str:
    """Return when something is due, given when it is for all, as the gradebook says it."""
    return base if time is None or base in ("", "None") else str(_later(datetime.fromisoformat(base), time))


def _later(end: datetime, time: timedelta) -> datetime:
    """Return a due date and so much more; the date itself where the calendar ends before: 9999 means never."""
    try:
        return end + time
    except OverflowError:
        return end


def listed(gradebook: Any, times: Mapping[tuple[str, str], timedelta]) -> list[Extension]:
    """Return all extensions: of the classroom, and what else nbgrader's gradebook has."""
    dates, found = {lesson.name: lesson.duedate for lesson in gradebook.assignments}, dict(times)
    for lesson in gradebook.assignments:
        for submission in lesson.submissions:
            if submission.extension:
                found.setdefault((lesson.name, submission.student_id), submission.extension)
    ends = {key: f"{_later(end, time)} UTC" for key, time in found.items() if (end := dates.get(key[0]))}
    return [
        Extension(student, lesson, time / timedelta(days=1), ends.get((lesson, student), ""))
        for (lesson, student), time in sorted(found.items())
    ]


def grant(
    room: Classroom, student: str | None = None, lesson: str | None = None, days: float | None = None
) -> tuple[list[Extension], list[str]]:
    """Grant a student more days for a lesson, or none any more; return extensions, and what to see to.

    These are all that a student has; of all students without one. Without a lesson nothing is granted.

    Raises
    ------
    ExtensionError
        The days or the student's name are none; the classroom's file of extensions is damaged.
    LessonError
        There is no such lesson.
    """
    remarks, records = [], room.records
    if lesson is None:
        with records.gradebook() as gradebook:
            found = listed(gradebook, records.extensions.read())
        return [each for each in found if student in (None, each.student)], []
    room.course.folder(lesson)
    if not safe_name(student):
        raise ExtensionError(
            f"{one_line(student, 100)} cannot be a student's name: letters, digits and _ @ + - . alone"
        )
    with room.locked():
        records.require_writable()  # else it would be granted by half
        had = records.extensions.set(student, lesson, days)
        with records.gradebook() as gradebook:
            had = had or any(each[:2] == (student, lesson) for each in map(astuple, listed(gradebook, {})))
            enter(gradebook, records.extensions.read(), gone=(lesson, student) if days is None else None)
            found = [each for each in listed(gradebook, records.extensions.read()) if each.student == student]
            names = {each.id for each in gradebook.students}
    if days is None and not had:
        remarks.append(f"{lesson} {student}: there was no extension to remove")
    if days is not None and student not in names and not (room.submitted / student).is_dir():
        remarks.append(f"{student} is neither in the gradebook nor in {room.submitted}: see that the name is right")
    return found, remarks
