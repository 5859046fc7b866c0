"""What nbgrader's own commands, and formgrader, may open and copy of a submission: nothing but through our readers.

nbgrader opens notebooks and times as they are, and copies all that lies beside them, from where links lead to. It has a
setting for its exporter alone, so that the rest is replaced in its classes. So is how it opens a gradebook: it makes
the tables of an empty database, which two that come at once would both do, and starts a process to learn their version.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import nbformat
import nbgrader.api
from alembic.config import Config
from alembic.script import ScriptDirectory
from nbconvert.exporters import NotebookExporter
from nbconvert.exporters.exporter import ResourcesDict
from nbformat import NotebookNode
from nbgrader.api import Gradebook
from nbgrader.apps.api import NbGraderAPI
from nbgrader.converters import Autograde, GenerateFeedback
from nbgrader.converters.base import BaseConverter
from nbgrader.coursedir import CourseDirectory
from nbgrader.dbutil import ALEMBIC_DIR
from nbgrader.exchange.default import ExchangeCollect, ExchangeReleaseFeedback
from nbgrader.utils import ignore_patterns, parse_utc
from sqlalchemy import create_engine, make_url, text

from autograder.classroom.grade import SECRET, read_secret, read_time
from autograder.classroom.preprocessors import VERDICTS

_copy_all = BaseConverter.init_assignment
_release_all = ExchangeReleaseFeedback.copy_files
_open = Gradebook.__init__
OPENING, REGISTERING = 0x6D6C61, 0x6D6C62  # of a gradebook, of lessons in one; who holds the second may take the first


def guard() -> None:
    """Replace what nbgrader copies of a submission, how it reads its time and opens a gradebook, in this process."""
    logging.getLogger("tornado.application").addFilter(_is_news)
    if Gradebook.__init__ is _open:  # else it is replaced already, or for a while
        Gradebook.__init__ = _open_alone
    nbgrader.api.get_alembic_version = _newest_tables
    BaseConverter.init_assignment = _copy_notes
    ExchangeCollect.do_copy = _collect
    ExchangeReleaseFeedback.copy_files = _release
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


def _is_news(record: logging.LogRecord) -> bool:
    """Return whether a line of the log says more than the error that nbgrader raises next."""
    return not str(record.msg).startswith("Rolling back session due to database error")


def _open_alone(self: Gradebook, db_url: str, *args: Any, **keys: Any) -> None:
    """In place of `Gradebook.__init__`: one process at a time makes the tables."""
    with alone(db_url, OPENING):
        _open(self, db_url, *args, **keys)


def _newest_tables() -> str:
    """In place of `nbgrader.api.get_alembic_version`: return the revision of the tables, without another process."""
    config = Config()
    config.set_main_option("script_location", ALEMBIC_DIR)
    return ScriptDirectory.from_config(config).get_current_head()


@contextmanager
def alone(db_url: str, purpose: int) -> Iterator[None]:
    """Keep other processes out that come for the same purpose, if the database is one of PostgreSQL."""
    with ExitStack() as stack:
        if make_url(db_url).get_backend_name() == "postgresql":
            engine = create_engine(db_url)
            stack.callback(engine.dispose)
            connection = stack.enter_context(engine.connect())  # the lock goes with it
            connection.execute(text(f"SELECT pg_advisory_lock({purpose})"))
        yield


def _copy_notes(self: BaseConverter, assignment_id: str, student_id: str) -> None:
    """In place of `BaseConverter.init_assignment`: of a submission, and of a graded one, copy its time and its secret.

    nbgrader's exchange names a released page by that secret, which the student's copy of the submission has too.
    """
    if not isinstance(self, (Autograde, GenerateFeedback)):  # a lesson, which is the instructor's
        _copy_all(self, assignment_id, student_id)
        return
    source, copies = (Path(path(assignment_id, student_id)) for path in (self._format_source, self._format_dest))
    for name, said in (("timestamp.txt", read_time(source)[0]), (SECRET, read_secret(source))):
        if said:
            copies.mkdir(parents=True, exist_ok=True)
            (copies / name).unlink(missing_ok=True)  # nbgrader leaves files that can only be read
            (copies / name).write_text(said)


def _collect(self: ExchangeCollect, src: str, dest: str, log: Any = None) -> None:
    """In place of `Exchange.do_copy`, to collect: links stay links, and what cannot be copied stops nobody else.

    nbgrader follows links, with which a student hands in any file that the instructor can read.
    """
    rules = self.coursedir
    skip = ignore_patterns(rules.ignore, rules.include, rules.max_file_size, self.log)
    try:
        if self.get_size(src) > 1000 * rules.max_dir_size:
            raise OSError(f"it is larger than {rules.max_dir_size} KB")
        shutil.copytree(src, dest, symlinks=True, ignore=skip)
    except OSError as error:
        shutil.rmtree(dest, ignore_errors=True)
        self.log.error("Not collected: %s: %s", src, error)


def _release(self: ExchangeReleaseFeedback) -> None:
    """In place of `ExchangeReleaseFeedback.copy_files`: leave out whose submission did not come by the exchange.

    nbgrader stops at the first of them.
    """
    own = self.coursedir.student_id_exclude
    pages = Path(self.coursedir.format_path(self.coursedir.feedback_directory, "-", self.coursedir.assignment_id))
    pages = sorted(pages.parents[1].glob(f"*/{pages.name}"))
    others = [page.parent.name for page in pages if not all((page / f).is_file() for f in ("timestamp.txt", SECRET))]
    if others:
        self.log.warning("Not handed in by the exchange, so that no feedback is released: %s", ", ".join(others))
    self.coursedir.student_id_exclude = ",".join(filter(None, [own, *others]))
    try:
        _release_all(self)
    finally:
        self.coursedir.student_id_exclude = own


def _time(self: CourseDirectory, dest_path: str) -> datetime | None:
    """In place of `CourseDirectory.get_existing_timestamp`: a time that cannot be read is none, and no error."""
    return parse_utc(read_time(Path(dest_path))[0])


def _time_submitted(self: NbGraderAPI, assignment_id: str, student_id: str) -> datetime | None:
    """In place of `NbGraderAPI.get_submitted_timestamp`, for formgrader's list of submissions."""
    folder = self.coursedir.format_path(self.coursedir.submitted_directory, student_id, assignment_id)
    return self.coursedir.get_existing_timestamp(folder)
