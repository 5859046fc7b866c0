"""Turn `solutions/` into `course/`: the notebooks that students get, released by nbgrader."""

from __future__ import annotations

import logging
import shutil
import tempfile
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import nbformat
from traitlets.config import Config

from autograder.config import ROOT, configure
from autograder.lesson import LessonError, clear_solution, lesson_names, load_lesson


class BuildError(RuntimeError):
    """A lesson could not be released."""


def build(names: Sequence[str], course: Path, step: Callable[[str], None] = lambda name: None) -> None:
    """Write the released notebooks of the lessons to `course/NAME/NAME.ipynb`."""
    with tempfile.TemporaryDirectory(prefix="mla-build-") as scratch:
        for name in names:
            step(name)
            notebook = release(name, Path(scratch))
            target = course / name / notebook.name
            target.parent.mkdir(parents=True, exist_ok=True)
            if not target.exists() or target.read_bytes() != notebook.read_bytes():
                shutil.copyfile(notebook, target)


def find_drift(course: Path, folder: Path | None = None, step: Callable[[str], None] = lambda name: None) -> list[str]:
    """Return what in `course` differs from what the scripts generate, one sentence each.

    Raises LessonError if there is no lesson to compare.
    """
    names = lesson_names(folder)
    if not names:
        raise LessonError("there is no lesson to check")
    found = []
    with tempfile.TemporaryDirectory(prefix="mla-build-") as scratch:
        for name in names:
            step(name)
            fresh = release(name, Path(scratch), folder)
            built = course / name / fresh.name
            if not built.exists():
                found.append(f"{built} is missing")
            elif built.read_bytes() != fresh.read_bytes():
                found.append(f"{built} is not what solutions/{name}.py generates")
    expected = {f"{name}/{name}.ipynb" for name in names}
    for path in sorted(course.rglob("*.ipynb")):
        relative = path.relative_to(course).as_posix()
        if relative not in expected and ".ipynb_checkpoints" not in path.parts:
            found.append(f"{path} belongs to no lesson in solutions/")
    return found


def release(name: str, scratch: Path, folder: Path | None = None) -> Path:
    """Release one lesson with a database of its own under `scratch`; return the notebook's path there."""
    config = configure(Config(), root=ROOT, classroom=scratch, course=scratch / "release")
    config.CourseDirectory.root = str(scratch)
    config.CourseDirectory.db_url = f"sqlite:///{scratch / 'scratch.db'}"
    register(name, config, folder)
    notebook = scratch / "release" / name / f"{name}.ipynb"
    _verify(name, notebook, folder)
    return notebook


def register(name: str, config: Config, folder: Path | None = None) -> None:
    """Write a lesson's source notebook and have nbgrader release it and enter it in the gradebook.

    Raises BuildError with nbgrader's log if that fails.
    """
    from nbgrader.apps import NbGraderAPI
    from nbgrader.coursedir import CourseDirectory

    source = Path(config.CourseDirectory.source_directory) / name / f"{name}.ipynb"
    source.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(load_lesson(name, folder).notebook, source)
    quieten_nbgrader()
    api = NbGraderAPI(CourseDirectory(config=config), config=config)
    result = api.generate_assignment(name, force=True)
    if not result["success"]:
        raise BuildError(f"nbgrader could not release {name}:\n{result.get('log', '')}{result.get('error', '')}")


def quieten_nbgrader() -> None:
    """Leave nbgrader's log to what its API returns, and hide the warnings of its gradebook's own queries."""
    logging.getLogger("traitlets").setLevel(logging.CRITICAL)
    warnings.filterwarnings("ignore", message="Object of type .* not in session")


def _verify(name: str, notebook: Path, folder: Path | None) -> None:
    """Make sure that what the judge takes for the starter is what the student gets."""
    lesson = load_lesson(name, folder)
    released = {cell["id"]: cell.source for cell in nbformat.read(notebook, as_version=4).cells}
    for exercise, source in lesson.solutions.items():
        if released[exercise] != clear_solution(source):
            raise BuildError(f"{name}: nbgrader and the judge disagree on the starter of {exercise}")
