"""Grade the sample class, or its telling part, and compare every verdict with the one that it should get."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from autograder.classroom.database import GRADEBOOK, MARK
from autograder.classroom.export import export
from autograder.classroom.feedback import write_feedback
from autograder.classroom.grade import SEED, Classroom
from autograder.classroom.record import Graded
from autograder.classroom.scoreboard import as_rows, print_scoreboard
from autograder.course.course import Course, CourseError
from autograder.course.sample import Expected, Submission, expected, hand_in, sample_lessons, submissions
from autograder.files import write_whole
from autograder.judging.verdict import Verdict
from autograder.text import listed

SECONDS = 3.0


@dataclass
class DemoResult:
    """What the demo found: results, and a sentence for every verdict that is not the expected one."""

    course: Course
    classroom: Path
    results: list[Graded]
    surprises: list[str] = field(default_factory=list)
    pages: int = 0

    @property
    def as_expected(self) -> bool:
        """Whether every submission got the verdicts that it should."""
        return not self.surprises

    def to_json(self) -> dict[str, Any]:
        """Return the result as plain data."""
        told = {"results": as_rows(self.results), "surprises": self.surprises, "feedback_pages": self.pages}
        return {**told, "gradebook": str(self.classroom / "gradebook.db")}

    def show(self, console: Console) -> None:
        """Print the scoreboard and what to open next."""
        print_scoreboard(console, self.results)
        for line in self.surprises:
            console.print(f"NOT EXPECTED: {line}", style="red", highlight=False, markup=False)
        if os.environ.get(GRADEBOOK):
            console.print(f"{GRADEBOOK} was left alone: the demo has a gradebook of its own.", highlight=False)
        exercises = sum(len(result.verdicts) for result in self.results)
        if self.as_expected:
            console.print(f"{len(self.results)} submissions, {exercises} exercises: every verdict is the expected one.")
        folder, first = self.classroom, self.course.lesson_names()[0]
        console.print("What to open:", highlight=False)
        for what, where in (
            ("the course", f"make lab, then course/{first}/{first}.ipynb"),
            (
                "the gradebook",
                f"make lab, then Nbgrader > Formgrader; an SQLite file of its own, {folder / 'gradebook.db'}",
            ),
            ("feedback pages", f"{folder / 'feedback'}/STUDENT/LESSON/LESSON.html, {self.pages} of them"),
            ("the grades", str(folder / "grades.csv")),
            ("the dashboard", f"mla-course dashboard --classroom {folder}: the hardest exercises, and who copied"),
        ):
            console.print(f"  {what:15} {where}", highlight=False, soft_wrap=True)


def run(
    course: Course,
    folder: Path,
    jobs: int | None,
    progress: Callable[[str, int, int], None],
    everything: bool = False,
    early: Callable[[list[Graded]], None] = lambda results: None,
) -> DemoResult:
    """Hand in, grade, write feedback and export. The gradebook is an SQLite file in the folder, whatever else is set.

    Parameters
    ----------
    everything
        The whole sample class; by default the telling submissions of each lesson that `course.toml` names.
    early
        Called with the results of the lessons without kernels, which take seconds, before the others are judged.

    Raises FileExistsError if the folder holds anything of a class that is not the sample's.
    """
    lessons = sample_lessons(course)
    if not lessons:
        raise CourseError(f"{course.root} has no sample class: no lesson has a sample_class.py")
    if course.demo and not everything:
        if unknown := set(course.demo) - set(lessons):
            raise CourseError(f"course.toml names {min(unknown)!r} under demo: it is no lesson with a sample class")
        lessons = [name for name in lessons if name in course.demo]
    chosen = {name: submissions(course, name, telling=not everything) for name in lessons}
    _prepare(course, folder, sorted(f"{each.student}/{name}" for name in lessons for each in chosen[name]))
    hand_in(course, folder / "submitted", lessons, telling=not everything)
    room = Classroom(course, folder, SECONDS)
    with room.records.gradebook() as gradebook:
        for student in sorted({each.student for found in chosen.values() for each in found}):
            gradebook.update_or_create_student(student, first_name=student.capitalize(), last_name="Sample")
    quick = [name for name in lessons if not any(each.kernel for each in course.exercises(name))]
    if 0 < len(quick) < len(lessons):
        early(room.grade(quick, jobs, progress=progress))
    results = room.grade(lessons, jobs, progress=progress)
    pages, problems = write_feedback(room, progress=progress)
    export(room, folder / "grades.csv")
    surprises = [line for name in lessons for line in compare(course, name, chosen[name], results)]
    return DemoResult(course, folder, results, [*surprises, *problems], len(pages))


def _prepare(course: Course, folder: Path, wanted: list[str]) -> None:
    """Make the folder, or empty it if it holds another version of the sample class.

    Raises FileExistsError if it holds anything of another class: submissions, or students in its gradebook.
    """
    there = sorted("/".join(path.parts[-2:]) for path in (folder / "submitted").glob("*/*"))
    mark = folder / MARK
    ours = set(mark.read_text().splitlines()) if mark.exists() else set()
    others = sorted(set(there) - ours)
    if folder.exists() and any(folder.iterdir()) and not mark.exists():
        others = others or ["what it holds"]
    others = others or _strangers(course, folder)
    if others:
        raise FileExistsError(
            f"{folder} holds a class ({listed(others, 1)} is not of the sample class): the demo leaves it alone; give "
            "another folder with --classroom"
        )
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.iterdir() if set(there) - set(wanted) else ():
        if path.is_dir() and path.name != "verdicts":  # those that still hold are found by their keys
            shutil.rmtree(path)
        elif path.is_file() and path != mark:
            path.unlink()
    write_whole(mark, "\n".join(wanted) + "\n", public=True)
    write_whole(folder / "seed", SEED + "\n", public=True)


def _strangers(course: Course, folder: Path) -> list[str]:
    """Return the students in the folder's own gradebook, if it has one, who are not of the sample class."""
    if not (folder / "gradebook.db").is_file():
        return []
    sample = {each.student for name in sample_lessons(course) for each in submissions(course, name)}
    with Classroom(course, folder).records.gradebook() as gradebook:
        return sorted({student.id for student in gradebook.students} - sample)


def compare(course: Course, lesson: str, handed_in: Sequence[Submission], results: Sequence[Graded]) -> list[str]:
    """Return a sentence for every verdict on these submissions that is missing or not the expected one."""
    found = {(result.student, result.lesson): result for result in results}
    surprises = []
    for each in handed_in:
        result = found.get((each.student, lesson))
        if result is None or result.problem:
            surprises.append(f"{each.student} in {lesson}: {result.problem if result else 'not graded'}")
            continue
        verdicts = {verdict.exercise: verdict for verdict in result.verdicts}
        for name, wanted in expected(course.lesson(lesson), each).items():
            if said := surprise(verdicts[name], wanted):
                surprises.append(f"{each.student} in {lesson}, {name}: {said}")
    return surprises


def surprise(got: Verdict, wanted: Expected) -> str:
    """Return how a verdict differs from the one that is expected: "" if it does not."""
    if (got.score, got.outcome) == (wanted.score, wanted.outcome) and wanted.says in got.reason:
        return ""
    return (
        f"{got.outcome}, {got.score} points, {got.reason!r}; "
        f"expected {wanted.outcome}, {wanted.score} points, {wanted.says!r}"
    )
