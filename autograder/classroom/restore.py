"""Read what a student handed in, however damaged, and restore the lesson's notebook around their solutions."""

from __future__ import annotations

import json
import os
import re
import stat
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode

from autograder.course.course import Course
from autograder.course.lesson import Lesson, clear_solution, is_unwritten
from autograder.judging.program import (
    MAX_CODE,
    Cell,
    is_broken,
    names_bound,
    names_defined,
    statements_beside,
    without_magics,
)
from autograder.judging.verdict import Outcome
from autograder.text import UNSEEN, one_line, visible

MAX_BYTES = 32 << 20
MAX_VALUES = 1 << 20  # lists and dicts in a file: each takes some hundred bytes of memory, for as few as three in it
MAX_SOURCE = 8 << 20  # characters of a cell
MAX_TEXT = 1 << 20  # characters of all text together, of which the rest is left out
PICTURE = re.compile(r"data:image/[\w.+-]{1,40};base64,[A-Za-z0-9+/=]{1000,}", re.ASCII)
CUT_OFF = "\n[cut off here]"
MAX_CELLS = 2000
MAX_ID = 200
MAX_NAME = 200  # bytes of a student's name, which is part of file names of at most 255
REMARKS = "mla_course"
OWN_TEXT = "**The student's own text**"


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
    name = one_line(path.name, 100)
    try:
        content = read_file(path, MAX_BYTES + 1)
        large = len(content) > MAX_BYTES or content.count(b"[") + content.count(b"{") > MAX_VALUES
        data = None if large else json.loads(content)
    except FileNotFoundError:
        raise SubmissionError(Outcome.ABSENT, f"no {name} was handed in") from None
    except PermissionError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        raise SubmissionError(
            Outcome.UNREADABLE,
            f"{name} is not a notebook that can be read ({type(error).__name__}): open it in JupyterLab, save it, "
            "and hand it in again",
        ) from None
    if large:
        told = f"{name} is larger than {MAX_BYTES >> 20} MiB, or holds more than {MAX_VALUES} lists and tables"
        raise SubmissionError(Outcome.UNREADABLE, f"{told}: clear its outputs and hand it in again")
    cells = data.get("cells") if isinstance(data, dict) else None
    if not isinstance(cells, list):
        raise SubmissionError(
            Outcome.UNREADABLE, f"{name} is not a notebook of format 4: save it in JupyterLab and hand it in again"
        )
    if len(cells) > MAX_CELLS:
        raise SubmissionError(Outcome.UNREADABLE, f"{name} has {len(cells)} cells, more than {MAX_CELLS}")
    clean = list(clean_cells(cells))
    code = [cell.source for cell in clean if cell.kind == "code"]
    if sum(map(len, code)) > MAX_CODE:
        longest = max(code, key=len)
        told = (
            f"{name} holds more than {MAX_CODE >> 10} KiB of code, {len(longest) >> 10} of them in the cell that "
            f"begins with {one_line(longest.strip(), 60)!r}: take out what no exercise needs and hand it in again"
        )
        raise SubmissionError(Outcome.UNREADABLE, told)
    most = MAX_TEXT // max(len(clean) - len(code), 1)  # text decides no verdict
    return [cell if cell.kind == "code" else replace(cell, source=_shortened(cell.source, most)) for cell in clean]


def _shortened(text: str, most: int) -> str:
    """Return text without the pictures that were pasted into it, and cut off where it is too long."""
    text = PICTURE.sub("[a picture, left out]", text)
    return text if len(text) <= most else text[:most] + CUT_OFF


def read_file(path: Path, limit: int) -> bytes:
    """Return a file's first `limit` bytes. Raises OSError for what is none: no link is followed, no pipe waited for."""

    def opened(name: str, flags: int) -> int:
        return os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK)

    with open(path, "rb", opener=opened) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError("not a file")
        return file.read(limit)


def clean_cells(cells: Sequence[Any]) -> Iterator[StudentCell]:
    """Yield the cells that are code or text, whatever else a notebook may hold."""
    for cell in cells:
        if not isinstance(cell, dict) or cell.get("cell_type") not in ("code", "markdown", "raw"):
            continue
        source = cell.get("source", "")
        if isinstance(source, list):
            source = "".join(line for line in source if isinstance(line, str))
        if not isinstance(source, str) or len(source) > MAX_SOURCE:
            continue
        source = source.replace("\r\n", "\n").replace("\r", "\n").encode(errors="replace").decode()
        metadata = cell.get("metadata") if isinstance(cell.get("metadata"), dict) else {}
        marks = metadata.get("nbgrader") if isinstance(metadata.get("nbgrader"), dict) else {}
        names = cell.get("id"), marks.get("grade_id")
        cell_id, grade_id = (name[:MAX_ID] if isinstance(name, str) else "" for name in names)
        yield StudentCell(cell_id, grade_id, "code" if cell["cell_type"] == "code" else "markdown", source)


def lesson_of(course: Course, cells: Sequence[StudentCell]) -> str | None:
    """Return the lesson that has most of these cells, by their marks; None where no lesson has any, or two as many."""
    marked = {name for cell in cells for name in (cell.id, cell.grade_id)}
    counts = {
        name: sum(each.name in marked for each in course.exercises(name)) for name in course.lesson_names() if marked
    }
    most = max(counts.values(), default=0)
    found = [name for name, count in counts.items() if count == most]
    return found[0] if most and len(found) == 1 else None


def refuse_other_lesson(lesson: Lesson, cells: Sequence[StudentCell]) -> None:
    """Raise SubmissionError for a notebook that holds nothing of this lesson's exercises, but another one's."""
    marked = {name for cell in cells for name in (cell.id, cell.grade_id)}
    if marked & set(lesson.solutions) or any(
        set(lesson.solutions) & names_bound(without_magics(cell.source)) for cell in cells if cell.kind == "code"
    ):
        return
    if found := lesson_of(Course.at(lesson.folder.parents[1]), cells):
        raise SubmissionError(
            Outcome.OTHER, f"the notebook of {found} was handed in as {lesson.name}: hand in that of {lesson.name}"
        )


def restore(lesson: Lesson, cells: Sequence[StudentCell], remarks: dict[str, Any] | None = None) -> NotebookNode:
    """Return the lesson's notebook with the student's solutions, and the student's own cells where they stood.

    A solution cell is found by its id or its nbgrader name, wherever it stands; where that one is untouched, absent, or
    defines something else, by the name that a cell defines. Of several, the last one that is not the untouched starter
    stands in its place; the others are the student's own, copies as well as parts of a cell that was split. Where
    tools have taken the ids away, the lesson's cells are found by their nbgrader names and by their text. What was
    added to a cell that the lesson restores and defines names, an import say, is the student's own cell below it.
    What was repaired is listed in the notebook's metadata under "mla_course". The student's own text is in the result
    as text, not as markup (see `as_text`).
    """
    notebook = nbformat.from_dict(lesson.notebook)
    known = {cell["id"]: cell for cell in notebook.cells}
    given = set().union(*(names_bound(cell.source) for cell in lesson.setup))
    cells = list(_with_added(cells, known, given))
    defined = {n: names_defined(c.source) for n, c in enumerate(cells) if _is_students(c, known)}
    sources: dict[str, str] = {}
    repaired: dict[str, list[str]] = {"missing": [], "text": []}
    taken: set[int] = set()
    parts: set[int] = set()
    for exercise, solution in lesson.solutions.items():
        starter = clear_solution(solution)
        marked = [n for n, c in enumerate(cells) if c.kind == "code" and exercise in (c.id, c.grade_id)]
        edited = [n for n in marked if cells[n].source.strip() != starter.strip()]
        fitting = [n for n in edited if exercise in defined.get(n, ()) or is_broken(cells[n].source)]
        elsewhere = [n for n, names in defined.items() if exercise in names and n not in marked]
        if elsewhere:  # not a starter to which something was added
            fitting = [n for n in fitting if not is_unwritten(cells[n].source)]
        found = fitting or elsewhere or edited or marked
        taken.update(marked, found[-1:])
        sources[exercise] = cells[found[-1]].source if found else starter
        parts.update(n for n in edited if cells[n].source != sources[exercise])
        if not found:
            is_text = any(exercise in (c.id, c.grade_id) for c in cells)
            repaired["text" if is_text else "missing"].append(exercise)
    for exercise, source in sources.items():
        known[exercise].source = source
    following: dict[str, list[NotebookNode]] = {}
    anchor = ""
    for n, (cell, place) in enumerate(zip(cells, _places(cells, known, parts), strict=True)):
        if place:
            anchor = place
            if known[place].cell_type == "code" == cell.kind and "nbgrader" not in known[place].metadata:
                known[place].source = cell.source
        if n in parts or (not place and n not in taken and cell.grade_id not in known):
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


def _with_added(cells: Sequence[StudentCell], known: dict[str, NotebookNode], given: set[str]) -> Iterator[StudentCell]:
    """Yield the cells; behind one that the lesson restores, a cell of what the student added to it.

    That is what binds names, none of which is one of the `given`: those of the lesson's set-up.
    """
    for cell in cells:
        yield cell
        original = known.get(cell.id) or known.get(cell.grade_id)
        if cell.kind != "code" or original is None or cell.source == original.source:
            continue
        restored = original.metadata.get("nbgrader", {}).get("locked", False) or original.cell_type != "code"
        if restored and (more := statements_beside(given, cell.source)):
            yield StudentCell("", "", "code", more)


def _is_students(cell: StudentCell, known: dict[str, NotebookNode]) -> bool:
    """Return whether a code cell may hold what the student wrote: not a locked one, nor text as it was handed out."""
    original = known.get(cell.id) or known.get(cell.grade_id)
    if cell.kind != "code" or original is None:
        return cell.kind == "code"
    marks = original.metadata.get("nbgrader", {})
    return marks.get("solution", False) or (not marks and cell.source != original.source)


def _places(cells: Sequence[StudentCell], known: dict[str, NotebookNode], parts: set[int]) -> Iterator[str]:
    """Yield the id of the lesson's cell that each cell is; "" for what is none of them."""
    there = {cell.id for cell in cells}
    texts = {(each.cell_type, each.source): name for name, each in known.items() if "nbgrader" not in each.metadata}
    for n, cell in enumerate(cells):
        if cell.id in known:
            yield cell.id
        elif cell.grade_id in known:
            yield "" if cell.grade_id in there or n in parts else cell.grade_id
        else:
            name = texts.get((cell.kind, cell.source), "")
            yield "" if name in there else name


def _own_cell(cell: StudentCell, name: str) -> NotebookNode:
    if cell.kind == "code":
        return nbformat.v4.new_code_cell(cell.source, id=name)
    return nbformat.v4.new_markdown_cell(as_text(cell.source), id=name)


def as_text(source: str) -> str:
    """Return markdown that shows `source` as it was typed, and what is unseen, under a heading that says whose it is.

    Whoever renders it, nbgrader's pages or JupyterLab, finds no HTML, no formula and no link in it. Text that has this
    form already stays as it is.
    """
    source = visible(source)
    found = re.fullmatch(re.escape(OWN_TEXT) + r"\n\n(`{3,})text\n(.*)\n(`+)", source, re.DOTALL)
    if found and found[1] == found[3] and found[1] not in found[2]:
        return source
    fence = "`" * max(3, *(len(run) + 1 for run in re.findall("`+", source)), 0)
    return f"{OWN_TEXT}\n\n{fence}text\n{source}\n{fence}"


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


def is_letter(x: str, without: str = "") -> bool:
    """Return whether a character is one that a word has, in any script: a letter, a digit, `_`, or a mark on one."""
    mark = unicodedata.category(x).startswith("M") and not re.match(
        "[\u180b-\u180f\ufe00-\ufe0f\U000e0100-\U000e01ef]", x
    )
    return x not in without and x not in UNSEEN and (mark or re.fullmatch(r"\w", x) is not None)


def safe_name(name: str) -> bool:
    """Return whether a folder's name can be a student's id."""
    return (
        re.match(r"[\w@+-]", name) is not None
        and len(name) <= 128
        and all(is_letter(x) or x in "@.+-" for x in name)
        and len(name.encode()) <= MAX_NAME
        and unicodedata.is_normalized("NFC", name)  # else two names could look alike and not be equal
    )
