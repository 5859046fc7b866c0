"""What nbgrader's own commands, and formgrader, may open and copy of a submission: nothing but through our readers.

nbgrader opens notebooks and times as they are, and copies all that lies beside them, from where links lead to. It has a
setting for its exporter alone, so that the rest is replaced in its classes. So is how it opens a gradebook: it makes
the tables of an empty database, which two that come at once would both do, and starts a process to learn their version.
"""

from __future__ import annotations

import logging
import os
import shutil
import stat
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
from autograder.classroom.restore import safe_name
from autograder.text import one_line

_copy_all = BaseConverter.init_assignment
_release_all = ExchangeReleaseFeedback.copy_files
_collect_all, _record_of = ExchangeCollect.copy_files, ExchangeCollect._path_to_record
_open = Gradebook.__init__
OPENING, REGISTERING = 0x6D6C61, 0x6D6C62  # of a gradebook, of lessons in one; who holds the second may take the first


def guard() -> None:
    """Replace what nbgrader copies of a submission, how it reads its time and opens a gradebook, in this process."""
    logging.getLogger("tornado.application").addFilter(_is_news)
    if Gradebook.__init__ is _open:  # else it is replaced already, or for a while
        Gradebook.__init__ = _open_alone
    nbgrader.api.get_alembic_version = _newest_tables
    BaseConverter.init_assignment = _copy_notes
    ExchangeCollect._path_to_record, ExchangeCollect.copy_files = _record, _copy_collected
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


def _record(self: ExchangeCollect, path: str) -> dict[str, Any]:
    """In place of `ExchangeCollect._path_to_record`: what a student put there that is no submission stops nobody else.

    nbgrader stops at a name without a time, and follows an entry that is a link: to another student's, say.
    """
    name = Path(path).name
    try:
        record = _record_of(self, path)
        if not safe_name(record["username"]):
            why = "that is no student's name"
        elif not stat.S_ISDIR(os.lstat(path).st_mode):
            why = "it is a link or a file, expected a folder"
        else:
            return record
    except Exception as error:  # the parser of times has many ways to fail
        why = one_line(error, 200)
    self.log.error("Not collected: %s: %s", one_line(name, 200), why)
    return {"username": None, "filename": name, "timestamp": datetime.min}


def _copy_collected(self: ExchangeCollect) -> None:
    """In place of `ExchangeCollect.copy_files`: leave out what `_record` refused."""
    self.src_records = [record for record in self.src_records if record["username"]]
    _collect_all(self)


def _collect(self: ExchangeCollect, src: str, dest: str, log: Any = None) -> None:
    """In place of `Exchange.do_copy`, to collect: links stay links, and what cannot be copied stops nobody else.

    nbgrader follows links, with which a student hands in any file that the instructor can read; also where the student
    puts a link in a folder's place meanwhile.
    """
    rules = self.coursedir
    skip = ignore_patterns(rules.ignore, rules.include, rules.max_file_size, self.log)
    try:
        folder = os.open(src, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            here = Path(f"/proc/self/fd/{folder}")
            here = f"{here}/" if here.exists() else src
            if self.get_size(here) > 1000 * rules.max_dir_size:
                raise OSError(f"it is larger than {rules.max_dir_size} KB")
            shutil.copytree(here, dest, symlinks=True, ignore=skip, copy_function=_copy_file)
        finally:
            os.close(folder)
        for each, _, _ in os.walk(dest):  # nbgrader deletes it when the student hands in again
            os.chmod(each, os.stat(each).st_mode | stat.S_IRWXU)
    except OSError as error:
        shutil.rmtree(dest, ignore_errors=True)
        self.log.error("Not collected: %s: %s", src, one_line(error, 500))


def _copy_file(src: str, dest: str) -> None:
    """Copy a file, which must be one: no link is followed, no pipe waited for."""

    def opened(name: str, flags: int) -> int:
        return os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK)

    with open(src, "rb", opener=opened) as file, open(dest, "wb") as copy:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(f"{src} is not a file")
        shutil.copyfileobj(file, copy)


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
