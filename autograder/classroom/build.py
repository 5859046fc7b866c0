"""Make the students' notebooks: `solutions/` turned into `course/`, released by nbgrader."""

from __future__ import annotations

import logging
import re
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
from traitlets.config import Config

from autograder.classroom.config import configure
from autograder.classroom.database import sqlite_url
from autograder.course.course import Course
from autograder.course.lesson import Lesson
from autograder.files import require_space, write_whole
from autograder.text import one_line


class BuildError(RuntimeError):
    """A lesson could not be released."""


def build(course: Course, target: Path, step: Callable[[str], None] = lambda name: None) -> None:
    """Write the released notebooks of the lessons to `target/NAME/NAME.ipynb`."""
    with tempfile.TemporaryDirectory(prefix="mla-build-") as scratch:
        for name in course.lesson_names():
            step(name)
            notebook = release(course, name, Path(scratch))
            built = target / name / notebook.name
            if not built.exists() or built.read_bytes() != notebook.read_bytes():
                write_whole(built, notebook.read_bytes(), public=True)


def find_drift(course: Course, target: Path, step: Callable[[str], None] = lambda name: None) -> list[str]:
    """Return what in `target` differs from what the lessons generate, one sentence each."""
    found, names = [], course.lesson_names()
    with tempfile.TemporaryDirectory(prefix="mla-build-") as scratch:
        for name in names:
            step(name)
            fresh = release(course, name, Path(scratch))
            built = target / name / fresh.name
            if not built.exists():
                found.append(f"{built} is missing")
            elif built.read_bytes() != fresh.read_bytes():
                found.append(f"{built} is not what solutions/{name}/ generates")
    expected = {f"{name}/{name}.ipynb" for name in names}
    for path in sorted(target.rglob("*.ipynb")):
        relative = path.relative_to(target).as_posix()
        if relative not in expected and ".ipynb_checkpoints" not in path.parts:
            found.append(f"{path} belongs to no lesson in solutions/")
    return found


def release(course: Course, name: str, scratch: Path) -> Path:
    """Release one lesson with a database of its own under `scratch`; return the notebook's path there."""
    config = configure(Config(), course, classroom=scratch, release=scratch / "release")
    config.CourseDirectory.root = str(scratch)
    config.CourseDirectory.db_url = sqlite_url(scratch / "scratch.db")
    lesson = course.lesson(name)
    register(lesson, config)
    notebook = scratch / "release" / name / f"{name}.ipynb"
    _verify(lesson, notebook)
    return notebook


def register(lesson: Lesson, config: Config) -> None:
    """Write a lesson's source notebook and have nbgrader release it and enter it in the gradebook.

    Raises BuildError with the error in nbgrader's log if that fails, OSError if the disk is at fault.
    """
    from nbgrader.apps import NbGraderAPI
    from nbgrader.coursedir import CourseDirectory

    from autograder.classroom.converters import uninterrupted

    name = lesson.name
    source = Path(config.CourseDirectory.source_directory) / name / f"{name}.ipynb"
    source.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(lesson.notebook, source)
    quieten_nbgrader()
    api = NbGraderAPI(CourseDirectory(config=config), config=config)
    result = uninterrupted(api.generate_assignment(name, force=True))
    if not result["success"]:
        require_space(source.parent)
        raise BuildError(f"nbgrader could not release {name}: {_reason(result)}")


def _reason(result: dict[str, Any]) -> str:
    """Return the error that nbgrader's log holds: the line that ends its traceback, else its last line."""
    lines = [line for line in f"{result.get('log') or ''}\n{result.get('error') or ''}".splitlines() if line.strip()]
    errors = [line for line in lines if re.match(r"[A-Za-z_][\w.]*(Error|Exception|Entry)\b", line)]
    return one_line((errors or lines or ["no message"])[0 if errors else -1])


def quieten_nbgrader() -> None:
    """Leave nbgrader's log to what its API returns, and hide the warnings of its gradebook's own queries."""
    logging.getLogger("traitlets").setLevel(logging.CRITICAL)
    warnings.filterwarnings("ignore", message="Object of type .* not in session")


def _verify(lesson: Lesson, notebook: Path) -> None:
    """Make sure that what the judge takes for the starter is what the student gets."""
    released = {cell["id"]: cell.source for cell in nbformat.read(notebook, as_version=4).cells}
    for exercise in lesson.solutions:
        if released[exercise] != lesson.starter(exercise):
            raise BuildError(f"{lesson.name}: nbgrader and the judge disagree on the starter of {exercise}")
