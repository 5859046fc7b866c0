"""A class of made-up students with known scores: it shows the grader at work, and it tests it.

A submission is a few small patches on a lesson's solution. `sample/lesson_01_mha.py` holds those of lesson 01.
"""

from __future__ import annotations

import importlib
import json
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from autograder.exercises import exercises
from autograder.lesson import BEGIN, END, Lesson, clear_solution, load_lesson
from autograder.verdict import Outcome

Notebook = dict[str, Any]
Patch = Callable[[Notebook], "Notebook | bytes | None"]


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


def sample_lessons() -> list[str]:
    """Return the lessons that have a sample class."""
    names = (module.name for module in pkgutil.iter_modules(__path__))
    return sorted(name.removeprefix("lesson_") for name in names if name.startswith("lesson_"))


def submissions(lesson: str) -> tuple[Submission, ...]:
    """Return the sample submissions of a lesson; one lesson has those that trouble a grader too."""
    own = importlib.import_module(f"{__name__}.lesson_{lesson}").SUBMISSIONS
    trouble = importlib.import_module(f"{__name__}.trouble")
    return (*own, *trouble.SUBMISSIONS) if lesson == trouble.LESSON else own


def expected(lesson: str, submission: Submission) -> dict[str, Expected]:
    """Return the verdicts that a submission should get, by name: "rms_norm", "rms_norm:speed"."""
    full = {each.name: Expected(each.points, Outcome.PASSED) for each in exercises(lesson)}
    full |= {
        f"{each.name}:speed": Expected(each.speed.points, Outcome.PASSED) for each in exercises(lesson) if each.speed
    }
    if unknown := set(submission.expect) - set(full):
        raise ValueError(f"sample class: {submission.student} expects verdicts on {', '.join(unknown)}")
    return {**full, **submission.expect}


def render(lesson: Lesson, submission: Submission) -> bytes | None:
    """Return the file that the student hands in, or None if nothing is."""
    notebook: Notebook | bytes | None = json.loads(json.dumps(lesson.notebook))
    for patch in submission.patches:
        notebook = patch(notebook)
    for cell in notebook["cells"] if isinstance(notebook, dict) else ():
        cell["source"] = "\n".join(line for line in cell["source"].split("\n") if line.strip() not in (BEGIN, END))
    return json.dumps(notebook, indent=1).encode() if isinstance(notebook, dict) else notebook


def hand_in(submitted: Path, lessons: list[str] | None = None) -> int:
    """Write the sample class to `submitted/STUDENT/LESSON/LESSON.ipynb`; return the number of submissions."""
    count = 0
    for name in lessons or sample_lessons():
        lesson = load_lesson(name)
        for each in submissions(name):
            folder = submitted / each.student / name
            folder.mkdir(parents=True, exist_ok=True)
            content = render(lesson, each)
            if content is not None:
                (folder / f"{name}.ipynb").write_bytes(content)
            count += 1
    return count
