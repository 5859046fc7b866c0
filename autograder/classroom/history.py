"""The attempts of a student at a lesson: what was handed in each time, and its verdicts.

history/LESSON/STUDENT.jsonl             a line an attempt, oldest first
history/LESSON/.cells/STUDENT/DIGEST.ipynb   the student's code of that attempt
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode

from autograder.classroom.restore import REMARKS, SubmissionError, code_cells, read_cells, restore
from autograder.course.lesson import Lesson
from autograder.files import write_whole
from autograder.judging.verdict import Verdict

SECRET = "secret"  # in the notebook's metadata


@dataclass(frozen=True)
class Attempt:
    """One submission of a student that was graded.

    `submitted` is its time as `timestamp.txt` had it, None without one; `graded` when it was graded last, in UTC as ISO
    has it; `digest` stands for the student's code (see `digest_of`).
    """

    submitted: str | None
    graded: str
    digest: str
    verdicts: tuple[Verdict, ...]

    @property
    def score(self) -> float | None:
        """The points earned, before any lateness; None while a grader fault is open."""
        scores = [verdict.score for verdict in self.verdicts]
        return None if None in scores else float(sum(scores))

    def to_json(self) -> dict[str, Any]:
        """Return the attempt as plain data."""
        return {**vars(self), "verdicts": [verdict.to_json() for verdict in self.verdicts]}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Attempt:
        """Return the attempt that `to_json` wrote."""
        verdicts = tuple(Verdict.from_json(each) for each in data["verdicts"])
        return cls(data["submitted"], data["graded"], data["digest"], verdicts)


def now() -> str:
    """Return the time in UTC, to the second, as ISO has it."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def digest_of(sources: Sequence[tuple[str, str]]) -> str:
    """Return the digest of an attempt: of the solution cells' sources, and of the student's other code that runs."""
    return hashlib.sha256(json.dumps(sources).encode()).hexdigest()[:32]


class History:
    """The attempts of a class, in its folder `history/`. A file is written whole or not at all."""

    def __init__(self, folder: Path):
        self.folder = folder

    def read(self, student: str, lesson: str) -> list[Attempt]:
        """Return a student's attempts at a lesson, oldest first. A damaged line is left out."""
        try:
            lines = self._path(student, lesson).read_bytes().splitlines()
        except OSError:
            return []
        return [attempt for attempt in map(_attempt, lines) if attempt]

    def last(self, student: str, lesson: str) -> str | None:
        """Return the digest of a student's last attempt at a lesson; None without any."""
        try:
            return json.loads(self._path(student, lesson).read_bytes().splitlines()[-1])["digest"]
        except (OSError, ValueError, KeyError, TypeError, IndexError, RecursionError):
            return None

    def add(
        self, student: str, lesson: Lesson, notebook: NotebookNode, attempt: Attempt, secret: str | None = None
    ) -> None:
        """Note an attempt, with the restored notebook that was graded, as the last one.

        It takes the place of an earlier one with the same code, and its time where that was before: one without a time
        is the same submission, before its time was known. `secret` names its feedback in nbgrader's exchange.
        """
        from nbgrader.utils import parse_utc

        remarks = notebook.metadata.get(REMARKS, {})
        if "outcome" not in remarks:
            own = [nbformat.v4.new_code_cell(c.source, id=c.name) for c in code_cells(notebook, lesson)]
            kept = nbformat.v4.new_notebook(cells=own, metadata={REMARKS: remarks, SECRET: secret})
            write_whole(self._cells(student, lesson.name, attempt.digest), nbformat.writes(kept))
        before = self.read(student, lesson.name)
        times = [each.submitted for each in (attempt, *before) if each.digest == attempt.digest and each.submitted]
        attempt = replace(attempt, submitted=min(times, key=parse_utc, default=None))
        self._write(student, lesson.name, [*(each for each in before if each.digest != attempt.digest), attempt])

    def replace(self, student: str, lesson: str, attempt: Attempt) -> None:
        """Put an attempt in the place of the one with the same code, which was judged again."""
        before = self.read(student, lesson)
        self._write(student, lesson, [attempt if each.digest == attempt.digest else each for each in before])

    def notebook(self, student: str, lesson: Lesson, digest: str) -> tuple[NotebookNode, str | None] | None:
        """Return the lesson's notebook with the code of an attempt, and its secret; None where none was kept.

        None is kept of what could not be read.
        """
        path = self._cells(student, lesson.name, digest)
        try:
            notes = json.loads(path.read_text())["metadata"]
            return restore(lesson, read_cells(path), notes[REMARKS]), notes.get(SECRET)
        except (OSError, ValueError, KeyError, TypeError, RecursionError, SubmissionError):
            return None

    def _write(self, student: str, lesson: str, attempts: Sequence[Attempt]) -> None:
        lines = [json.dumps(each.to_json()) + "\n" for each in attempts]
        write_whole(self._path(student, lesson), "".join(lines))

    def _path(self, student: str, lesson: str) -> Path:
        return self.folder / lesson / f"{student}.jsonl"

    def _cells(self, student: str, lesson: str, digest: str) -> Path:
        return self.folder / lesson / ".cells" / student / f"{digest}.ipynb"


def _attempt(line: bytes) -> Attempt | None:
    try:
        return Attempt.from_json(json.loads(line))
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
