"""One file of plain Python out of a notebook: what a public competition takes.

A lesson that feeds one holds a `submission.py`: lines "# %% in front" and "# %% behind" begin what is put in front of a
student's code and behind it. Of the notebook's cells, set-up and solutions, the statements come along that bind a name
which the part behind reads, directly or not, unless the part in front binds it.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from autograder.classroom.restore import SubmissionError, lesson_of, read_cells
from autograder.course.course import Course
from autograder.course.lesson import LessonError, is_unwritten, without_marks
from autograder.judging.program import Cell, build_program, parsed
from autograder.judging.verdict import Outcome

PACKAGES = frozenset(("torch", "triton"))
MARK = re.compile(r"^# %% (in front|behind)\n", re.MULTILINE)


def of_notebook(course: Course, path: Path, lesson: str | None = None) -> str:
    """Return the file of a student's notebook.

    Raises SubmissionError for a notebook that cannot be read, or whose code cannot stand alone; LessonError where it
    is of no lesson that feeds a competition.
    """
    cells = read_cells(path)
    name = lesson or (path.stem if path.stem in course.lesson_names() else lesson_of(course, cells))
    if name is None:
        raise LessonError(f"{path.name} is not of one lesson: say which with --lesson NAME")
    code = [Cell(each.id or f"cell {n}", each.source) for n, each in enumerate(cells, 1) if each.kind == "code"]
    return _file(course, name, code, path.name)


def of_solution(course: Course, lesson: str) -> str:
    """Return the file of a lesson's own solution. Raises LessonError where there is none, or no competition."""
    cells = course.lesson(lesson).notebook.cells
    code = [Cell(each["id"], each.source) for each in cells if each.cell_type == "code"]
    return _file(course, lesson, code, f"the solution of {lesson}")


def _file(course: Course, lesson: str, cells: Sequence[Cell], source: str) -> str:
    adapter = course.folder(lesson) / "submission.py"
    if not adapter.is_file():
        known = [name for name in course.lesson_names() if (course.folder(name) / "submission.py").is_file()]
        raise LessonError(f"{lesson} feeds no competition; lessons that do: {', '.join(known) or 'none'}")
    parts = MARK.split(adapter.read_text())
    if parts[1::2] != ["in front", "behind"]:
        raise LessonError(f"{adapter}: expected a part '# %% in front', then one '# %% behind'")
    front, behind = (part.strip("\n") for part in parts[2::2])
    last = Cell("behind", behind)
    kept = build_program([Cell("in front", front)], [], [*cells, last], last)
    chosen = [without_marks(cell.source).strip("\n") for cell in kept if cell.name != "in front"]
    text = (
        "\n\n\n".join([f'"""Written by mla-course from {source}."""', front, *(_compact(each) for each in chosen)])
        + "\n"
    )
    _check(text, lesson, course)
    return text


def _compact(source: str) -> str:
    """Return a cell without the gaps that left-out statements leave."""
    return re.sub(r"\n{4,}", "\n\n\n", source)


def _check(text: str, lesson: str, course: Course) -> None:
    """Raise SubmissionError unless the file can stand alone: no starter in it, entries there, no other imports."""
    tree = parsed(text)
    if tree is None:
        raise SubmissionError(
            Outcome.UNREADABLE, "the code that the submission needs is no Python, or too long: check it"
        )
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    names = {node.name for node in functions}
    for node in functions:
        said = ast.get_source_segment(text, node) or ""
        if node.name in {each.name for each in course.exercises(lesson)} and is_unwritten(said):
            raise SubmissionError(Outcome.UNFINISHED, f"{node.name} is as it was handed out: write it first")
    read = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    if missing := [each.name for each in course.exercises(lesson) if each.name in read - names]:
        raise SubmissionError(Outcome.MISSING, f"the notebook defines no {missing[0]}: write it as a function")
    for node in ast.walk(tree):
        modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        modules += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        for module in modules:
            if (top := module.split(".")[0]) not in PACKAGES | sys.stdlib_module_names:
                raise SubmissionError(
                    Outcome.ERROR,
                    f"line {node.lineno} imports {module}, which a competition may not have: a submission holds "
                    f"{' and '.join(sorted(PACKAGES))} alone, so write out what you need of {top}",
                )
