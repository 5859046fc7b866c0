"""Lessons as they are written: one jupytext percent script each, `solutions/NN_name/lesson.py`.

Four keys in a cell's header give it a role; every other cell is the lesson's text and pictures.

    # %% setup="imports"        a locked cell, run before every exercise is judged
    # %% solution="rms_norm"    the student's cell; what stands between the solution marks is cleared
    # %% check="rms_norm"       one line, `check("rms_norm")`; carries the points for a right answer
    # %% speed="rms_norm"       one line, `check_speed("rms_norm")`; carries the points for a fast one
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import nbformat
from nbformat import NotebookNode

from autograder.course.collapse import collapse
from autograder.course.figures import FigureError, fill
from autograder.isolation.worker.running import REFERENCE
from autograder.judging.exercise import SPEED, STUB, Exercise
from autograder.judging.program import Cell, parsed, without_magics

BEGIN, END = "### BEGIN SOLUTION", "### END SOLUTION"
KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}


class LessonError(ValueError):
    """A lesson that does not exist or is not well formed."""


@dataclass(frozen=True)
class Lesson:
    """A lesson's notebook with solutions, and its parts by role. Of one that was handed out, starters stand for them."""

    folder: Path
    title: str
    notebook: NotebookNode
    setup: tuple[Cell, ...]
    solutions: dict[str, str]
    checks: tuple[str, ...]
    exercises: tuple[Exercise, ...]
    handed_out: bool = False

    @property
    def name(self) -> str:
        """Its name, such as "01_mha"."""
        return self.folder.name

    def exercise(self, name: str) -> Exercise:
        """Return the exercise of that name, which must be one of the lesson's."""
        return next(each for each in self.exercises if each.name == name)

    @property
    def graded(self) -> dict[str, str]:
        """The verdict that each graded cell shows, by cell id: "rms_norm", or "rms_norm:speed"."""
        return {cell_id: verdict_name(cell_id) for cell_id in self.checks}

    def starter(self, exercise: str) -> str:
        """Return the solution cell as the student first sees it."""
        return clear_solution(self.solutions[exercise])

    def references(self, exercises: tuple[str, ...]) -> list[Cell]:
        """Return the right solutions of these exercises as cells, in the lesson's order; none where there are none."""
        if self.handed_out:
            return []
        return [
            Cell(f"{name}{REFERENCE}", source, True, gives=name)
            for name, source in self.solutions.items()
            if name in exercises
        ]


def load(
    script: Path,
    exercises: Sequence[Exercise],
    figures: ModuleType | None = None,
    records: Sequence[Path] = (),
    plots: Sequence[str] = (),
) -> Lesson:
    """Read the script of a lesson with these exercises, fill in its figures, and collapse cells that call `plots`.

    Raises LessonError if it is not well formed.
    """
    import jupytext

    notebook = nbformat.from_dict(jupytext.read(script, fmt="py:percent"))
    try:
        fill(notebook, figures, records, script.parent)
    except FigureError as error:
        raise LessonError(str(error)) from error
    name = script.parent.name
    roles = Roles(script, exercises)
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
        raise LessonError(f"{script}: two cells would have the id {duplicates[0]!r}; give one heading another name")
    notebook.metadata = nbformat.from_dict({"kernelspec": KERNEL, "language_info": {"name": "python"}})
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    collapse(notebook, plots)
    roles.verify()
    return Lesson(
        script.parent, title, notebook, tuple(roles.setup), roles.solutions, tuple(roles.checks), tuple(exercises)
    )


def load_handed_out(path: Path, exercises: Sequence[Exercise]) -> Lesson:
    """Read a lesson from the notebook that students get, which lies in the lesson's folder."""
    notebook = nbformat.read(path, as_version=4)
    notebook.metadata = nbformat.from_dict({"kernelspec": KERNEL, "language_info": {"name": "python"}})
    marked = [(cell, cell.metadata["nbgrader"]) for cell in notebook.cells if "nbgrader" in cell.metadata]
    setup = (cell for cell, marks in marked if marks.locked and marks.grade_id.startswith("setup-"))
    return Lesson(
        path.parent,
        path.parent.name,
        notebook,
        tuple(Cell(cell["id"].removeprefix("setup-"), cell.source, True) for cell in setup),
        {cell["id"]: cell.source for cell, marks in marked if marks.solution},
        tuple(cell["id"] for cell, marks in marked if marks.grade),
        tuple(exercises),
        handed_out=True,
    )


def verdict_name(cell_id: str) -> str:
    """Return the name of the verdict that belongs to the check cell of that id."""
    role, _, exercise = cell_id.partition("-")
    return exercise if role == "check" else f"{exercise}{SPEED}"


ROLES = ("setup", "solution", "check", "speed")


class Roles:
    """Collects the cells that have a role while a script is read, and turns the role into nbgrader's metadata."""

    def __init__(self, script: Path, exercises: Sequence[Exercise]):
        self.script = script
        self.exercises = {each.name: each for each in exercises}
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
            raise LessonError(f"{self.script}: a cell header with {sorted(metadata)}; it may have one role, and tags")
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
            self._exercise(name)
            self.solutions[name] = cell.source
            marks |= {"solution": True, "locked": False}
        else:
            self.checks.append(cell_id)
            marks |= {"grade": True, "locked": True, "points": self._points(name, role)}
        cell.metadata["nbgrader"] = NotebookNode(marks)
        return cell_id

    def _exercise(self, name: str) -> Exercise:
        if name not in self.exercises:
            names = ", ".join(self.exercises)
            raise LessonError(f"{self.script}: a cell of {name!r}, which is no exercise of exercises.py: {names}")
        return self.exercises[name]

    def _points(self, name: str, role: str) -> float:
        each = self._exercise(name)
        if role == "check":
            return each.points
        if each.speed is None:
            raise LessonError(f"{self.script}: {name} has a speed cell, but no speed in its exercise")
        return each.speed.points

    def verify(self) -> None:
        """Raise LessonError unless every exercise has a solution with marks, and its checks after it."""
        for name, source in self.solutions.items():
            if source.count(BEGIN) != source.count(END) or BEGIN not in source:
                raise LessonError(f"{self.script}: the solution of {name} needs {BEGIN!r} and {END!r}")
        if without := set(self.exercises) - set(self.solutions):
            raise LessonError(f"{self.script}: {min(without)} of exercises.py has no solution cell")
        wanted = []
        for name in self.solutions:
            wanted += [f"check-{name}"] + ([f"speed-{name}"] if self.exercises[name].speed else [])
        if wanted != self.checks:
            raise LessonError(f"{self.script}: its graded cells are {self.checks}, expected {wanted}")


def without_marks(source: str) -> str:
    """Return a solution cell without the lines that mark the solution."""
    return "\n".join(line for line in source.split("\n") if line.strip() not in (BEGIN, END))


def is_unwritten(source: str) -> bool:
    """Return whether a function of a cell, or a method, still ends in what the course handed out."""
    tree = parsed(without_magics(source))
    if tree is None:
        return STUB in source
    stub = ast.dump(ast.parse(STUB).body[0].exc)  # noqa: TID251 (ours)
    for node in ast.walk(tree):
        for each in node.body if isinstance(node, ast.FunctionDef) else ():
            if isinstance(each, ast.Return):
                break
            short = isinstance(each, ast.Raise) and isinstance(each.exc, ast.Call) and len(each.exc.args) == 1
            if short and isinstance(each.exc.args[0], ast.Constant) and ast.dump(each.exc) == stub:
                return True
    return False


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
