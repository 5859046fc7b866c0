"""Lessons as they are written: one jupytext percent script each, in `solutions/`.

Four keys in a cell's header give it a role; every other cell is the lesson's text and pictures.

    # %% setup="imports"        a locked cell, run before every exercise is judged
    # %% solution="rms_norm"    the student's cell; what stands between the solution marks is cleared
    # %% check="rms_norm"       one line, `check("rms_norm")`; carries the points for a right answer
    # %% speed="rms_norm"       one line, `check_speed("rms_norm")`; carries the points for a fast one
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from autograder.program import Cell
from autograder.worker.running import REFERENCE

BEGIN, END = "### BEGIN SOLUTION", "### END SOLUTION"
STUB = 'raise NotImplementedError("write your code here")'
KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}


class LessonError(ValueError):
    """A lesson that does not exist or is not well formed."""


def solutions_folder() -> Path:
    """Return the folder of the lessons' scripts: the repository's, or the copy inside an installed package."""
    package = Path(__file__).parent
    for folder in (package.parent / "solutions", package / "_solutions"):
        if folder.is_dir():
            return folder
    raise LessonError(f"no lessons: neither {package.parent / 'solutions'} nor {package / '_solutions'} exists")


def lesson_names(folder: Path | None = None) -> list[str]:
    """Return the lessons' names in order, such as "01_mha"."""
    return sorted(path.stem for path in (folder or solutions_folder()).glob("[0-9][0-9]_*.py"))


@dataclass(frozen=True)
class Lesson:
    """A lesson's notebook with solutions, and its parts by role."""

    name: str
    title: str
    notebook: NotebookNode
    setup: tuple[Cell, ...]
    solutions: dict[str, str]
    checks: tuple[str, ...]

    @property
    def graded(self) -> dict[str, str]:
        """The verdict that each graded cell shows, by cell id: "rms_norm", or "rms_norm:speed"."""
        return {cell_id: verdict_name(cell_id) for cell_id in self.checks}

    def starter(self, exercise: str) -> str:
        """Return the solution cell as the student first sees it."""
        return clear_solution(self.solutions[exercise])

    def references(self, exercises: tuple[str, ...]) -> list[Cell]:
        """Return the right solutions of these exercises as cells, in the lesson's order."""
        return [
            Cell(f"{name}{REFERENCE}", source, True, gives=name)
            for name, source in self.solutions.items()
            if name in exercises
        ]


def load_lesson(name: str, folder: Path | None = None) -> Lesson:
    """Return a lesson. Raises LessonError, naming the lessons there are, if there is none of that name."""
    folder = folder or solutions_folder()
    path = folder / f"{name}.py"
    if name not in lesson_names(folder):
        raise LessonError(f"there is no lesson {name!r}; the lessons are {', '.join(lesson_names(folder)) or 'none'}")
    return _load(path, path.stat().st_mtime_ns)


@functools.cache
def _load(path: Path, _modified: int) -> Lesson:
    import jupytext

    notebook = nbformat.from_dict(jupytext.read(path, fmt="py:percent"))
    name, roles = path.stem, Roles(path.stem)
    title, section, used = name, "top", Counter()
    for cell in notebook.cells:
        role = roles.take(cell)
        if cell.cell_type == "markdown" and (heading := re.match(r"#+ +(.+)", cell.source)):
            title = heading.group(1) if title == name else title
            section = _slug(heading.group(1))
        used[section] += 1
        cell["id"] = role or f"{section}-{used[section]}"
        cell.source = cell.source.strip("\n")
    duplicates = [i for i, n in Counter(cell["id"] for cell in notebook.cells).items() if n > 1]
    if duplicates:
        raise LessonError(f"{path.name}: two cells would have the id {duplicates[0]!r}; give one heading another name")
    notebook.metadata = nbformat.from_dict({"kernelspec": KERNEL, "language_info": {"name": "python"}})
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    roles.verify()
    return Lesson(name, title, notebook, tuple(roles.setup), roles.solutions, tuple(roles.checks))


def verdict_name(cell_id: str) -> str:
    """Return the name of the verdict that belongs to the check cell of that id."""
    role, _, exercise = cell_id.partition("-")
    return exercise if role == "check" else f"{exercise}:speed"


ROLES = ("setup", "solution", "check", "speed")


class Roles:
    """Collects the cells that have a role while a script is read, and turns the role into nbgrader's metadata."""

    def __init__(self, lesson: str):
        self.lesson = lesson
        self.setup: list[Cell] = []
        self.solutions: dict[str, str] = {}
        self.checks: list[str] = []

    def take(self, cell: NotebookNode) -> str | None:
        """Set the cell's metadata and return its id, or None if it has no role."""
        metadata = dict(cell.metadata)
        cell.metadata = NotebookNode({k: v for k, v in metadata.items() if k == "tags"})
        found = [(role, metadata[role]) for role in ROLES if role in metadata]
        unknown = set(metadata) - {*ROLES, "tags", "lines_to_next_cell", "cell_marker"}
        if len(found) > 1 or unknown:
            raise LessonError(f"{self.lesson}: a cell header with {sorted(metadata)}; it may have one role, and tags")
        if not found:
            return None
        role, name = found[0]
        cell_id = name if role == "solution" else f"{role}-{name}"
        cell_id = cell_id.replace("_", "-") if role == "setup" else cell_id
        marks = {"schema_version": 3, "grade_id": cell_id, "task": False, "grade": False, "solution": False}
        if role == "setup":
            self.setup.append(Cell(name, cell.source, True))
            marks["locked"] = True
        elif role == "solution":
            self.solutions[name] = cell.source
            marks |= {"solution": True, "locked": False}
        else:
            self.checks.append(cell_id)
            marks |= {"grade": True, "locked": True, "points": self._points(name, role)}
        cell.metadata["nbgrader"] = NotebookNode(marks)
        return cell_id

    def _points(self, name: str, role: str) -> float:
        from autograder.exercises import find

        each = find(self.lesson, name)
        if role == "check":
            return each.points
        if each.speed is None:
            raise LessonError(f"{self.lesson}: {name} has a speed cell, but no speed in its exercise")
        return each.speed.points

    def verify(self) -> None:
        """Raise LessonError unless every exercise has a solution with marks, and its checks after it."""
        from autograder.exercises import find

        for name, source in self.solutions.items():
            if source.count(BEGIN) != source.count(END) or BEGIN not in source:
                raise LessonError(f"{self.lesson}: the solution of {name} needs {BEGIN!r} and {END!r}")
        wanted = []
        for name in self.solutions:
            wanted += [f"check-{name}"] + ([f"speed-{name}"] if find(self.lesson, name).speed else [])
        if wanted != self.checks:
            raise LessonError(f"{self.lesson}: its graded cells are {self.checks}, expected {wanted}")


def clear_solution(source: str) -> str:
    """Return a solution cell with the marked regions replaced by the stub, as nbgrader's ClearSolutions does."""
    lines, inside = [], False
    for line in source.split("\n"):
        if BEGIN in line:
            inside = True
            lines.append(line[: len(line) - len(line.lstrip())] + STUB)
        elif END in line:
            inside = False
        elif not inside:
            lines.append(line)
    return "\n".join(lines)


def _slug(heading: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", heading.lower()).strip("-")[:48] or "section"
