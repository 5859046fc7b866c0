"""Grade the sample class from scratch, and compare every verdict with the one that it should get."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from autograder.classroom import Classroom, Graded
from autograder.sample import expected, hand_in, sample_lessons, submissions
from autograder.scoreboard import as_rows, print_scoreboard

SECONDS = 3.0
MARK = ".sample-class"


@dataclass
class DemoResult:
    """What the demo found: results, and a sentence for every verdict that is not the expected one."""

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
        return {"results": as_rows(self.results), "surprises": self.surprises, "feedback_pages": self.pages}

    def show(self, console: Console) -> None:
        """Print the scoreboard and what to open next."""
        print_scoreboard(console, self.results)
        for line in self.surprises:
            console.print(f"NOT EXPECTED: {line}", style="red", highlight=False, markup=False)
        exercises = sum(len(result.verdicts) for result in self.results)
        if self.as_expected:
            console.print(f"{len(self.results)} submissions, {exercises} exercises: every verdict is the expected one.")
        folder = self.classroom
        console.print("What to open:", highlight=False)
        for what, where in (
            ("the course", "make lab, then course/00_start_here/00_start_here.ipynb"),
            ("the gradebook", f"make lab, then the menu Nbgrader > Formgrader; it lies in {folder / 'gradebook.db'}"),
            ("feedback pages", f"{folder / 'feedback'}/STUDENT/LESSON/LESSON.html, {self.pages} of them"),
            ("the grades", str(folder / "grades.csv")),
        ):
            console.print(f"  {what:15} {where}", highlight=False, soft_wrap=True)


def run(folder: Path, workers: int, progress: Callable[[str, int, int], None]) -> DemoResult:
    """Hand in, grade, write feedback and export.

    Raises FileExistsError if the folder holds a class that is not the sample's.
    """
    _prepare(folder)
    hand_in(folder / "submitted")
    room = Classroom(folder, SECONDS)
    with room.gradebook() as gradebook:
        for student in sorted({each.student for lesson in sample_lessons() for each in submissions(lesson)}):
            gradebook.update_or_create_student(student, first_name=student.capitalize(), last_name="Sample")
    results = room.grade(sample_lessons(), workers, progress=progress)
    pages, problems = room.feedback(progress=progress)
    room.export(folder / "grades.csv")
    return DemoResult(folder, results, [*compare(results, sample_lessons()), *problems], len(pages))


def _prepare(folder: Path) -> None:
    """Make the folder, or empty it if it holds another version of the sample class."""
    wanted = sorted(f"{each.student}/{lesson}" for lesson in sample_lessons() for each in submissions(lesson))
    there = sorted("/".join(path.parts[-2:]) for path in (folder / "submitted").glob("*/*"))
    mark = folder / MARK
    ours = set(mark.read_text().splitlines()) if mark.exists() else set()
    if set(there) - ours or (folder.exists() and any(folder.iterdir()) and not mark.exists()):
        raise FileExistsError(f"{folder} holds a class: the demo leaves it alone; give another folder with --classroom")
    if set(there) - set(wanted):
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    mark.write_text("\n".join(wanted) + "\n")


def compare(results: list[Graded], lessons: list[str]) -> list[str]:
    """Return a sentence for every verdict of the lessons' sample class that is missing or not the expected one."""
    found = {(result.student, result.lesson): result for result in results}
    surprises = []
    for lesson in lessons:
        for each in submissions(lesson):
            result = found.get((each.student, lesson))
            if result is None or result.problem:
                surprises.append(f"{each.student} in {lesson}: {result.problem if result else 'not graded'}")
                continue
            verdicts = {verdict.exercise: verdict for verdict in result.verdicts}
            for name, wanted in expected(lesson, each).items():
                got = verdicts[name]
                if (got.score, got.outcome) != (wanted.score, wanted.outcome) or wanted.says not in got.reason:
                    surprises.append(
                        f"{each.student} in {lesson}, {name}: {got.outcome}, {got.score} points, {got.reason!r}; "
                        f"expected {wanted.outcome}, {wanted.score} points, {wanted.says!r}"
                    )
    return surprises
