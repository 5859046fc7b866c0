"""What nbgrader's own commands, and formgrader, may open and copy of a submission: nothing but through our readers.

nbgrader opens notebooks and times as they are, and copies all that lies beside them, from where links lead to. It has a
setting for its exporter alone, so that the rest is replaced in its classes. So is how it opens a gradebook: of an empty
database it makes the tables, which two that come at once would both do.
"""

from __future__ import annotations

from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from typing import Any

import nbformat
from nbconvert.exporters import NotebookExporter
from nbconvert.exporters.exporter import ResourcesDict
from nbformat import NotebookNode
from nbgrader.api import Gradebook
from nbgrader.apps.api import NbGraderAPI
from nbgrader.converters import Autograde, GenerateFeedback
from nbgrader.converters.base import BaseConverter
from nbgrader.coursedir import CourseDirectory
from nbgrader.utils import parse_utc
from sqlalchemy import create_engine, make_url, text

from autograder.classroom.grade import read_time
from autograder.classroom.preprocessors import VERDICTS

_copy_all = BaseConverter.init_assignment
_open = Gradebook.__init__
LOCK = 0x6D6C61  # in PostgreSQL, of those who open a gradebook


def guard() -> None:
    """Replace what nbgrader copies of a submission, how it reads its time and opens a gradebook, in this process."""
    if Gradebook.__init__ is _open:  # else it is replaced already, or for a while
        Gradebook.__init__ = _open_alone
    BaseConverter.init_assignment = _copy_time
    CourseDirectory.get_existing_timestamp = _time
    NbGraderAPI.get_submitted_timestamp = _time_submitted


class Unopened(NotebookExporter):
    """NotebookExporter that opens no notebook that was handed in: the first sanitizer reads it (`Restore`)."""

    def from_filename(
        self, filename: str, resources: dict[str, Any] | None = None, **kw: Any
    ) -> tuple[NotebookNode, dict[str, Any]]:
        """Convert a notebook; one that was handed in is empty until `Restore` has read it."""
        if not self.parent._sanitizing or VERDICTS in resources["nbgrader"]:  # we have written it
            return super().from_filename(filename, resources, **kw)
        path = Path(filename)
        resources["metadata"] = ResourcesDict(name=path.stem, path=str(path.parent))
        return self.from_notebook_node(nbformat.v4.new_notebook(), resources, **kw)


def _open_alone(self: Gradebook, db_url: str, *args: Any, **keys: Any) -> None:
    """In place of `Gradebook.__init__`: of a database of PostgreSQL, one process at a time makes the tables."""
    with ExitStack() as stack:
        if make_url(db_url).get_backend_name() == "postgresql":
            engine = create_engine(db_url)
            stack.callback(engine.dispose)
            connection = stack.enter_context(engine.connect())  # the lock goes with it
            connection.execute(text(f"SELECT pg_advisory_lock({LOCK})"))
        _open(self, db_url, *args, **keys)


def _copy_time(self: BaseConverter, assignment_id: str, student_id: str) -> None:
    """In place of `BaseConverter.init_assignment`: of a submission, and of a graded one, copy only its time."""
    if not isinstance(self, (Autograde, GenerateFeedback)):  # a lesson, which is the instructor's
        _copy_all(self, assignment_id, student_id)
    elif time := read_time(Path(self._format_source(assignment_id, student_id)))[0]:
        copy = Path(self._format_dest(assignment_id, student_id)) / "timestamp.txt"
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.unlink(missing_ok=True)  # nbgrader leaves files that can only be read
        copy.write_text(time)


def _time(self: CourseDirectory, dest_path: str) -> datetime | None:
    """In place of `CourseDirectory.get_existing_timestamp`: a time that cannot be read is none, and no error."""
    return parse_utc(read_time(Path(dest_path))[0])


def _time_submitted(self: NbGraderAPI, assignment_id: str, student_id: str) -> datetime | None:
    """In place of `NbGraderAPI.get_submitted_timestamp`, for formgrader's list of submissions."""
    folder = self.coursedir.format_path(self.coursedir.submitted_directory, student_id, assignment_id)
    return self.coursedir.get_existing_timestamp(folder)
