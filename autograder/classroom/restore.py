"""Read what a student handed in, however damaged, and restore the lesson's notebook around their solutions."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode

from autograder.course.lesson import Lesson, clear_solution
from autograder.judging.program import Cell, is_broken, names_bound, without_magics
from autograder.judging.verdict import Outcome

MAX_BYTES = 32 << 20
MAX_SOURCE = 1 << 20
MAX_CELLS = 2000
MAX_ID = 200
REMARKS = "mla_course"


class SubmissionError(ValueError):
    """A submission that cannot be graded as it is; `outcome` says whether it is absent or unreadable."""

    def __init__(self, outcome: Outcome, message: str):
        super().__init__(message)
        self.outcome = outcome


@dataclass(frozen=True)
class StudentCell:
    """A cell of the submitted notebook, reduced to what may be trusted to be text."""

    id: str
    grade_id: str
    kind: str
    source: str


def read_cells(path: Path) -> list[StudentCell]:
    """Return the cells of a submitted notebook.

    Raises SubmissionError with a sentence for the student if the file is absent or is not a notebook, and
    PermissionError if it is there and may not be read, which is not the student's doing.
    """
    try:
        if path.exists() and not path.is_file():
            raise OSError("not a file")
        size = path.stat().st_size
        data = json.loads(path.read_bytes()) if size <= MAX_BYTES else None
    except FileNotFoundError:
        raise SubmissionError(Outcome.ABSENT, f"no {path.name} was handed in") from None
    except (OSError, ValueError, RecursionError) as error:
        raise SubmissionError(
            Outcome.UNREADABLE,
            f"{path.name} is not a notebook that can be read ({type(error).__name__}): open it in JupyterLab, save it, "
            "and hand it in again",
        ) from None
    if size > MAX_BYTES:
        raise SubmissionError(
            Outcome.UNREADABLE,
            f"{path.name} is larger than {MAX_BYTES >> 20} MiB: clear its outputs and hand it in again",
        )
    cells = data.get("cells") if isinstance(data, dict) else None
    if not isinstance(cells, list):
        raise SubmissionError(
            Outcome.UNREADABLE, f"{path.name} is not a notebook of format 4: save it in JupyterLab and hand it in again"
        )
    if len(cells) > MAX_CELLS:
        raise SubmissionError(Outcome.UNREADABLE, f"{path.name} has {len(cells)} cells, more than {MAX_CELLS}")
    return list(clean_cells(cells))


def clean_cells(cells: Sequence[Any]) -> Iterator[StudentCell]:
    """Yield the cells that are code or text, whatever else a notebook may hold."""
    for cell in cells:
        if not isinstance(cell, dict) or cell.get("cell_type") not in ("code", "markdown"):
            continue
        source = cell.get("source", "")
        if isinstance(source, list):
            source = "".join(line for line in source if isinstance(line, str))
        if not isinstance(source, str) or len(source) > MAX_SOURCE:
            continue
        source = source.replace("\r\n", "\n").replace("\r", "\n").encode(errors="replace").decode()
        metadata = cell.get("metadata") if isinstance(cell.get("metadata"), dict) else {}
        marks = metadata.get("nbgrader") if isinstance(metadata.get("nbgrader"), dict) else {}
        cell_id, grade_id = (str(each)[:MAX_ID] for each in (cell.get("id", ""), marks.get("grade_id", "")))
        yield StudentCell(cell_id, grade_id, cell["cell_type"], source)


def restore(lesson: Lesson, cells: Sequence[StudentCell], remarks: dict[str, Any] | None = None) -> NotebookNode:
    """Return the lesson's notebook with the student's solutions, and the student's own cells where they stood.

    A solution cell is found by its id or its nbgrader name, wherever it stands; where that one is untouched, absent, or
    defines something else, by the name that a cell defines. Of several, the last one that is not the untouched starter
    counts. What was repaired is listed in the notebook's metadata under "mla_course".
    """
    notebook = nbformat.from_dict(lesson.notebook)
    known = {cell["id"]: cell for cell in notebook.cells}
    bound = {n: names_bound(without_magics(c.source)) for n, c in enumerate(cells) if _is_students(c, known)}
    sources: dict[str, str] = {}
    repaired: dict[str, list[str]] = {"missing": [], "copied": []}
    taken: set[int] = set()
    for exercise, solution in lesson.solutions.items():
        starter = clear_solution(solution)
        marked = [n for n, c in enumerate(cells) if c.kind == "code" and exercise in (c.id, c.grade_id)]
        edited = [n for n in marked if cells[n].source.strip() != starter.strip()]
        fitting = [n for n in edited if exercise in bound.get(n, ()) or is_broken(cells[n].source)]
        elsewhere = [n for n, names in bound.items() if exercise in names and n not in marked]
        found = fitting or elsewhere or edited or marked
        taken.update(marked, found)
        sources[exercise] = cells[found[-1]].source if found else starter
        if len(edited) > 1:
            repaired["copied"].append(exercise)
        if not found:
            repaired["missing"].append(exercise)
    for exercise, source in sources.items():
        known[exercise].source = source
    following: dict[str, list[NotebookNode]] = {}
    anchor = ""
    for n, cell in enumerate(cells):
        if cell.id in known:
            anchor = cell.id
            if "nbgrader" not in known[cell.id].metadata and known[cell.id].cell_type == "code" == cell.kind:
                known[cell.id].source = cell.source
        elif n not in taken and _is_own(cell, known):
            following.setdefault(anchor, []).append(_own_cell(cell, f"own-{n}"))
    notebook.cells = [
        *following.get("", []),
        *(each for cell in notebook.cells for each in (cell, *following.get(cell["id"], []))),
    ]
    for name in repaired:
        earlier = (remarks or {}).get(name)
        if isinstance(earlier, list):
            repaired[name] = [e for e in lesson.solutions if e in repaired[name] or e in earlier]
    notebook.metadata[REMARKS] = NotebookNode({**(remarks or {}), **repaired})
    return notebook


def _is_students(cell: StudentCell, known: dict[str, NotebookNode]) -> bool:
    """Return whether a code cell may hold what the student wrote: not a locked one, nor text as it was handed out."""
    original = known.get(cell.id) or known.get(cell.grade_id)
    if cell.kind != "code" or original is None:
        return cell.kind == "code"
    marks = original.metadata.get("nbgrader", {})
    return marks.get("solution", False) or (not marks and cell.source != original.source)


def _is_own(cell: StudentCell, known: dict[str, NotebookNode]) -> bool:
    return cell.id not in known and cell.grade_id not in known


def _own_cell(cell: StudentCell, name: str) -> NotebookNode:
    new = nbformat.v4.new_code_cell if cell.kind == "code" else nbformat.v4.new_markdown_cell
    return new(cell.source, id=name)


def placeholder(lesson: Lesson, problem: SubmissionError) -> NotebookNode:
    """Return the notebook that is graded in place of one that is absent or cannot be read."""
    notebook = restore(lesson, [])
    notebook.metadata[REMARKS] = NotebookNode({"outcome": str(problem.outcome), "reason": str(problem)})
    return notebook


def code_cells(notebook: NotebookNode, lesson: Lesson) -> list[Cell]:
    """Return the student's code cells of a restored notebook, by id: all but set-up and checks."""
    locked = {cell["id"] for cell in lesson.notebook.cells if cell.metadata.get("nbgrader", {}).get("locked")}
    return [
        Cell(cell["id"], cell.source)
        for cell in notebook.cells
        if cell.cell_type == "code" and cell["id"] not in locked
    ]


def safe_name(name: str) -> bool:
    """Return whether a folder's name can be a student's id."""
    return re.fullmatch(r"[\w@+-][\w@.+-]{0,127}", name) is not None
