"""What nbgrader's own commands, and formgrader, may open and copy of a submission: nothing but through our readers.

nbgrader opens notebooks and times as they are, and copies all that lies beside them, from where links lead to. It has a
setting for its exporter alone, so that the rest is replaced in its classes. So is how it opens a gradebook: it makes
the tables of an empty database, which two that come at once would both do, and starts a process to learn their version.
So is how it looks for files: the path of a class, such as "c++" or "Kurs (WS26)", means itself in a pattern.
"""

from __future__ import annotations

import glob
import logging
import os
import pwd
import re
import stat
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime
from fnmatch import fnmatch
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import nbformat
import nbgrader.api
import nbgrader.apps.api
import nbgrader.converters.base
import nbgrader.exchange.default.list
import nbgrader.utils
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
from nbgrader.exchange.default import (
    ExchangeCollect,
    ExchangeReleaseFeedback,
    collect,
    exchange,
    fetch_feedback,
    release_feedback,
)
from nbgrader.utils import parse_utc
from sqlalchemy import create_engine, make_url, text

from autograder.classroom.archives import LONG, MAX_FOLDERS, MAX_MEMBERS, MAX_PATH, is_notebook
from autograder.classroom.grade import SECRET, read_secret, read_time
from autograder.classroom.preprocessors import VERDICTS
from autograder.classroom.restore import safe_name
from autograder.text import one_line

_copy_all = BaseConverter.init_assignment
_release_all = ExchangeReleaseFeedback.copy_files
_record_of = ExchangeCollect._path_to_record
_open = Gradebook.__init__
_path_of = CourseDirectory.format_path
LOOKING = (  # by patterns, for files
    nbgrader.utils,
    nbgrader.apps.api,
    nbgrader.converters.base,
    nbgrader.exchange.default.list,
    collect,
    exchange,
    fetch_feedback,
    release_feedback,
)
READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK  # no link is followed, no pipe waited for
MOST_NAMED = 5  # files left out of a submission
OPENING, REGISTERING = 0x6D6C61, 0x6D6C62  # of a gradebook, of lessons in one; who holds the second may take the first


def guard() -> None:
    """Replace what nbgrader copies of a submission, how it reads its time and opens a gradebook, in this process."""
    logging.getLogger("tornado.application").addFilter(_is_news)
    if Gradebook.__init__ is _open:  # else it is replaced already, or for a while
        Gradebook.__init__ = _open_alone
    nbgrader.api.get_alembic_version = _newest_tables
    BaseConverter.init_assignment = _copy_notes
    ExchangeCollect._path_to_record, ExchangeCollect.copy_files = _record, _copy_collected
    ExchangeReleaseFeedback.copy_files = _release
    CourseDirectory.get_existing_timestamp = _time
    CourseDirectory.format_path = _path
    for module in LOOKING:
        module.glob = SimpleNamespace(glob=_found)
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


def _path(self: CourseDirectory, nbgrader_step: str, student_id: str, assignment_id: str, escape: bool = False) -> str:
    """In place of `CourseDirectory.format_path`: in a regular expression the folder of a step means itself."""
    return _path_of(self, re.escape(nbgrader_step) if escape else nbgrader_step, student_id, assignment_id, escape)


def _found(pattern: str) -> list[str]:
    """In place of `glob.glob`, where nbgrader looks for files: what is there means itself, and no pattern."""
    there = os.path.dirname(pattern)
    while there and not os.path.isdir(there):
        there = os.path.dirname(there)
    return glob.glob(glob.escape(there) + pattern.removeprefix(there))


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
    """In place of `ExchangeCollect.copy_files`: what cannot be copied stops nobody else."""
    lesson, course = self.coursedir.assignment_id, self.coursedir.course_id
    records = [record for record in self.src_records if record["username"]]
    if records:
        self.log.info("Processing %d submissions of '%s' for course '%s'", len(records), lesson, course)
    else:
        self.log.warning("No submissions of '%s' for course '%s' to collect", lesson, course)
    for record in records:
        target = Path(self.coursedir.format_path(self.coursedir.submitted_directory, record["username"], lesson))
        shown = one_line(record["filename"], 200)
        try:
            if not _asked_for(self, record, target):
                continue
            left = [f"{one_line(path, 100)}: {why}" for path, why in _collect(self, record, target).items()]
            if left:
                more = " and more" if len(left) > MOST_NAMED else ""
                self.log.warning("Left out of %s: %s%s", shown, "; ".join(left[:MOST_NAMED]), more)
        except OSError as error:
            self.log.error("Not collected: %s: %s", shown, one_line(error, 500))


def _asked_for(self: ExchangeCollect, record: dict[str, Any], target: Path) -> bool:
    """Return whether a submission is to be collected, and log it as nbgrader does."""
    student, time = record["username"], record["timestamp"]
    source, lesson = os.path.join(self.inbound_path, record["filename"]), self.coursedir.assignment_id
    if self.check_owner and student != (owner := _owner(source)):
        what = "cheating attempt? you may disable this warning by unsetting the option CollectApp.check_owner"
        claim = f"{one_line(source, 500)} claims to be submitted by {student} but is owned by {owner}"
        self.log.warning("%s; %s", claim, what)
    if not target.is_dir():
        self.log.info("Collecting submission: %s %s", student, lesson)
        return True
    before = self.coursedir.get_existing_timestamp(str(target))
    if (self.update and (before is None or time > before)) or (self.before_duedate and time != before):
        self.log.info("Updating submission: %s %s", student, lesson)
        return True
    what = "No newer submission to collect" if self.update else "Submission already exists, use --update to update"
    self.log.info("%s: %s %s", what, student, lesson)
    return False


def _collect(self: ExchangeCollect, record: dict[str, Any], target: Path) -> dict[str, str]:
    """Collect a submission, and return what is left out of it, and why. What was collected before stays until then.

    Raises OSError for one that is not collected.
    """
    folder = os.open(os.path.join(self.inbound_path, record["filename"]), READ | os.O_DIRECTORY)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=".collected-", dir=target.parent, ignore_cleanup_errors=True) as beside:
            new, old = Path(beside, "new"), Path(beside, "old")
            left = _Copy(self.coursedir).folder(folder, new)
            lost = [path for path in left if is_notebook(path) and "/" not in path]
            if lost and f"{self.coursedir.assignment_id}.ipynb" not in os.listdir(new):  # another may be taken for it
                raise OSError(f"{lost[0]}: {left[lost[0]]}")
            try:
                if target.is_dir():
                    target.rename(old)
                new.rename(target)
            finally:
                if old.exists() and not target.exists():
                    old.rename(target)
    finally:
        os.close(folder)
    return left


def _owner(path: str) -> str:
    try:
        return pwd.getpwuid(os.lstat(path).st_uid).pw_name
    except KeyError:
        return "unknown id"


class _Copy:
    """What is copied of a submission, by nbgrader's rules. Links stay links.

    It is opened from folder to folder, so that no link is followed that its student puts in a place meanwhile.
    """

    def __init__(self, rules: CourseDirectory):
        self.rules, self.room = rules, 1000 * rules.max_dir_size
        self.entries = 0
        self.left: dict[str, str] = {}

    def folder(self, source: int, to: Path, parts: tuple[str, ...] = ()) -> dict[str, str]:
        """Copy an open folder, and return why some of it is left out. Raises OSError for what is not copied at all."""
        to.mkdir()
        for name in sorted(os.listdir(source)):
            own = (*parts, name)
            if not _fits(name, self.rules.ignore) and (why := self._entry(source, to / name, own)):
                self.left["/".join(own)] = why
        return self.left

    def _entry(self, folder: int, to: Path, parts: tuple[str, ...]) -> str | None:
        if len(parts) > MAX_FOLDERS or len("/".join(parts)) > MAX_PATH:
            return LONG
        self.entries += 1
        if self.entries > MAX_MEMBERS:
            raise OSError(f"it holds more than {MAX_MEMBERS} files and folders")
        try:
            if stat.S_ISLNK(os.stat(to.name, dir_fd=folder, follow_symlinks=False).st_mode):
                return os.symlink(os.readlink(to.name, dir_fd=folder), to)
            source = os.open(to.name, READ, dir_fd=folder)
        except OSError as error:
            return error.strerror
        try:
            return self._opened(source, to, parts)
        finally:
            os.close(source)

    def _opened(self, source: int, to: Path, parts: tuple[str, ...]) -> str | None:
        status, most = os.fstat(source), self.rules.max_file_size
        if stat.S_ISDIR(status.st_mode):
            self.folder(source, to, parts)
        elif not stat.S_ISREG(status.st_mode):
            return "it is not a file"
        elif most and status.st_size > 1000 * most:
            return f"it is larger than {most} KB"
        elif not self.rules.include or _fits(to.name, self.rules.include):
            self.room -= status.st_size
            if self.room < 0:
                raise OSError(f"it is larger than {self.rules.max_dir_size} KB")
            with open(source, "rb", closefd=False) as file, open(to, "xb") as copy:
                copy.write(file.read(status.st_size))  # and no more, if it grows meanwhile
        return None


def _fits(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatch(name, each) for each in patterns)


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
