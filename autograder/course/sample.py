"""A class of made-up students with known scores: it shows the grader at work, and it tests it.

A submission is a few small patches on a lesson's solution. `sample_class.py` in a lesson's folder holds the lesson's as
`SUBMISSIONS`, and in `DEMO` the names of the students who show most in little time.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from autograder.course.course import Course, CourseError
from autograder.course.lesson import Lesson, clear_solution, without_marks
from autograder.files import write_whole
from autograder.judging.verdict import Outcome

Notebook = dict[str, Any]
Patch = Callable[[Notebook], "Notebook | bytes | None"]
Told = Callable[[str, str, float], Mapping[str, "Expected"]]


@dataclass(frozen=True)
class Expected:
    """The verdict that one exercise should get: points, outcome, and a word of the reason."""

    score: float
    outcome: Outcome = Outcome.WRONG
    says: str = ""


@dataclass(frozen=True)
class Submission:
    """What one student hands in: the solution with `patches` applied. Exercises not in `expect` get full marks."""

    student: str
    about: str
    patches: tuple[Patch, ...] = ()
    expect: Mapping[str, Expected] = field(default_factory=dict)


def replace(exercise: str, old: str, new: str) -> Patch:
    """In the cell of `exercise`, put `new` for `old`, which must be there."""

    def patch(notebook: Notebook) -> Notebook:
        cell = find_cell(notebook, exercise)
        if old not in cell["source"]:
            raise ValueError(f"sample class: {old!r} is not in the solution of {exercise}")
        cell["source"] = cell["source"].replace(old, new)
        return notebook

    return patch


def rewrite(exercise: str, source: str) -> Patch:
    """Give the cell of `exercise` another source."""

    def patch(notebook: Notebook) -> Notebook:
        find_cell(notebook, exercise)["source"] = source.strip("\n")
        return notebook

    return patch


def unfinished(exercise: str) -> Patch:
    """Leave the cell of `exercise` as it was handed out."""

    def patch(notebook: Notebook) -> Notebook:
        cell = find_cell(notebook, exercise)
        cell["source"] = clear_solution(cell["source"])
        return notebook

    return patch


def add_cell(before: str, source: str) -> Patch:
    """Insert a code cell of the student's own before the cell with the id `before`."""

    def patch(notebook: Notebook) -> Notebook:
        place = notebook["cells"].index(find_cell(notebook, before))
        cell = {"cell_type": "code", "id": f"mine-{place}", "metadata": {}, "outputs": [], "execution_count": None}
        notebook["cells"].insert(place, {**cell, "source": source.strip("\n")})
        return notebook

    return patch


def find_cell(notebook: Notebook, cell_id: str) -> dict[str, Any]:
    """Return the cell with that id."""
    return next(cell for cell in notebook["cells"] if cell["id"] == cell_id)


# What students of lessons with kernels should get


def not_right(exercise: str, says: str, score: float = 0, outcome: Outcome = Outcome.WRONG) -> Mapping[str, Expected]:
    """Return what a wrong kernel gets: its verdict, and none of the points for speed."""
    outcome = Outcome.PARTIAL if score else outcome
    return {
        exercise: Expected(score, outcome, says),
        f"{exercise}:speed": Expected(0, outcome, "once the answer is right"),
    }


def says(exercise: str, words: str, score: float = 0) -> Mapping[str, Expected]:
    """Return what a wrong answer gets where no kernel is asked for."""
    return {exercise: Expected(score, Outcome.PARTIAL if score else Outcome.WRONG, words)}


def slip(
    student: str, about: str, exercise: str, changes: Mapping[str, str], words: str, score: float = 0, told: Told = says
) -> Submission:
    """Return a submission with one wrong answer: the solution with each key of `changes` replaced by its value.

    It gets what `told` returns: `says`, or where a kernel is asked for `not_right`.
    """
    patches = tuple(replace(exercise, old, new) for old, new in changes.items())
    return Submission(student, about, patches, told(exercise, words, score))


def slow(exercise: str, score: float = 0, says: str = "of the floor") -> Mapping[str, Expected]:
    """Return what a right kernel gets that reaches the lower bar, or none."""
    return {f"{exercise}:speed": Expected(score, Outcome.PARTIAL if score else Outcome.SLOW, says)}


def left_out(*kernels: str) -> tuple[tuple[Patch, ...], Mapping[str, Expected]]:
    """Return patches and verdicts of kernels that are handed in as they were handed out."""
    verdicts: dict[str, Expected] = {}
    for name in kernels:
        verdicts |= not_right(name, "as it was handed out", outcome=Outcome.UNFINISHED)
    return tuple(unfinished(name) for name in kernels), verdicts


# The class


def sample_lessons(course: Course) -> list[str]:
    """Return the lessons that have a sample class."""
    return [name for name in course.lesson_names() if course.has(name, "sample_class")]


def submissions(course: Course, lesson: str, telling: bool = False) -> tuple[Submission, ...]:
    """Return the sample submissions of a lesson; or the telling ones alone.

    Raises CourseError if sample_class.py has none, or names a student in `DEMO` that it does not have.
    """
    module = course.module(lesson, "sample_class")
    found = tuple(getattr(module, "SUBMISSIONS", ()))
    if not found:
        raise CourseError(f"{module.__file__} has no sample class: expected SUBMISSIONS, a tuple")
    demo = getattr(module, "DEMO", tuple(each.student for each in found))
    if unknown := set(demo) - {each.student for each in found}:
        raise CourseError(f"{module.__file__}: DEMO names {min(unknown)}, who hands nothing in")
    return tuple(each for each in found if each.student in demo) if telling else found


def expected(lesson: Lesson, submission: Submission) -> dict[str, Expected]:
    """Return the verdicts that a submission should get, by name: "rms_norm", "rms_norm:speed"."""
    full = {each.name: Expected(each.points, Outcome.PASSED) for each in lesson.exercises}
    full |= {f"{each.name}:speed": Expected(each.speed.points, Outcome.PASSED) for each in lesson.exercises if each.speed}
    if unknown := set(submission.expect) - set(full):
        raise ValueError(f"sample class: {submission.student} expects verdicts on {', '.join(unknown)}")
    return {**full, **submission.expect}


def render(lesson: Lesson, submission: Submission) -> bytes | None:
    """Return the file that the student hands in, or None if nothing is."""
    notebook: Notebook | bytes | None = json.loads(json.dumps(lesson.notebook))
    for patch in submission.patches:
        notebook = patch(notebook)
    for cell in notebook["cells"] if isinstance(notebook, dict) else ():
        cell["source"] = without_marks(cell["source"])
    return json.dumps(notebook, indent=1).encode() if isinstance(notebook, dict) else notebook


def hand_in(course: Course, submitted: Path, lessons: list[str] | None = None, telling: bool = False) -> int:
    """Write the sample class to `submitted/STUDENT/LESSON/LESSON.ipynb`; return the number of submissions."""
    count = 0
    for name in lessons or sample_lessons(course):
        lesson = course.lesson(name)
        for each in submissions(course, name, telling):
            folder = submitted / each.student / name
            folder.mkdir(parents=True, exist_ok=True)
            content = render(lesson, each)
            if content is not None:
                write_whole(folder / f"{name}.ipynb", content, public=True)
            count += 1
    return count
