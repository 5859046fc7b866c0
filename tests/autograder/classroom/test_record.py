"""Recording does what `nbgrader autograde` does."""

import shutil
import sqlite3
import subprocess
import sys
from contextlib import nullcontext
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace

import nbformat
import pytest
from nbgrader.api import Gradebook
from nbgrader.dbutil import _temp_alembic_ini

from autograder.classroom import converters, grader
from autograder.classroom.guard import guard
from autograder.classroom.record import Records, grades_of, submissions_of

LESSON = "00_start_here"
LATE = """
c = get_config()
c.LateSubmissionPlugin.penalty_method = "zero"
"""


def times(entries):
    return {(entry.student, entry.lesson.name): entry.timestamp for entry in entries}


def _rows(records):
    with records.gradebook() as gradebook:
        return {
            each.student_id: (
                each.timestamp,
                each.total_seconds_late,
                each.late_submission_penalty,
                sorted((g.name, g.auto_score, g.manual_score, g.needs_manual_grade) for g in grades_of(each)),
                sorted((c.name, str(c.auto_comment)) for c in each.notebooks[0].comments),
            )
            for each in submissions_of(gradebook, LESSON)
        }


def _due(records, when):
    with records.gradebook() as gradebook:
        gradebook.find_assignment(LESSON).duedate = when
        gradebook.db.commit()


def test_the_gradebook_and_the_notebooks_are_as_nbgrader_leaves_them(
    records, entry, empty_class, tmp_path, monkeypatch
):
    (tmp_path / "nbgrader_config.py").write_text(LATE)
    entries = [entry("ada", "a note", timestamp="2026-12-25 10:00:00 UTC"), entry("ben")]
    with records.staged(times(entries)) as recorder:
        _due(records, datetime(2026, 12, 24))
        for each in entries:
            assert records.enter(recorder, each, [job.settled for job in each.jobs]).problem is None

    from nbgrader.apps import NbGraderAPI

    known = {job.name: job.settled for job in entries[0].jobs}
    monkeypatch.setattr(grader, "shared", lambda *args: SimpleNamespace(verdicts=lambda lesson, notebook: known))
    monkeypatch.setattr(converters, "shared_connections", nullcontext)
    own = Records(records.course, shutil.copytree(empty_class, tmp_path / "nbgrader's"))
    with own.staged(times(entries)) as recorder:
        _due(own, datetime(2026, 12, 24))
        api = NbGraderAPI(recorder.coursedir, config=recorder.coursedir.config)
        for each in entries:
            folder = Path(recorder.coursedir.submitted_directory) / each.student / LESSON
            folder.mkdir(parents=True)
            nbformat.write(each.notebook, folder / f"{LESSON}.ipynb")
            if each.timestamp:
                (folder / "timestamp.txt").write_text(each.timestamp)
            assert api.autograde(LESSON, each.student)["success"]

    assert _rows(records) == _rows(own)
    assert _rows(records)["ada"][2] > 0, "the penalty for lateness"
    for each in entries:
        path = f"autograded/{each.student}/{LESSON}/{LESSON}.ipynb"
        assert (records.folder / path).read_bytes() == (own.folder / path).read_bytes()


def test_what_is_interrupted_is_not_recorded(records, entry, monkeypatch):
    ada = entry("ada")
    verdicts = [job.settled for job in ada.jobs]
    with records.staged(times([ada])) as recorder:
        records.enter(recorder, ada, verdicts)
        assert records.entered([ada], records.held([LESSON]).get(("ada", LESSON)))
        monkeypatch.setattr(recorder, "convert_notebooks", lambda: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            records.enter(recorder, ada, verdicts)
    assert records.entered([ada], records.held([LESSON]).get(("ada", LESSON))) is None


def test_a_submission_that_nbgrader_cannot_record_does_not_stop_the_next(records, entry, monkeypatch):
    ada, ben = entry("ada"), entry("ben")
    verdicts = [job.settled for job in ada.jobs]
    with records.staged(times([ada, ben])) as recorder:
        with monkeypatch.context() as patched:
            patched.setattr(nbformat, "write", lambda notebook, path: path.write_text("{"))
            assert records.enter(recorder, ada, verdicts).problem
        assert records.enter(recorder, ben, verdicts).problem is None


def test_a_lesson_is_not_made_anew_under_a_grader_that_is_about_to_enter(records, entry, monkeypatch):
    ada, ben = entry("ada"), entry("ben")
    removed = []
    with records.staged(times([ada])) as recorder:
        monkeypatch.setattr(Gradebook, "remove_notebook", lambda self, name, lesson: removed.append(name))
        with records.staged(times([ben])):  # as another grader with the same gradebook
            assert not removed
        assert records.enter(recorder, ada, [job.settled for job in ada.jobs]).problem is None


def test_a_new_gradebook_has_the_version_that_nbgrader_gives_it(tmp_path):
    guard()
    with Gradebook(f"sqlite:///{tmp_path / 'gradebook.db'}", "a course"):
        pass
    with sqlite3.connect(tmp_path / "gradebook.db") as database:
        ((version,),) = database.execute("SELECT version_num FROM alembic_version").fetchall()
    with _temp_alembic_ini("sqlite://") as settings:
        alembic = Path(sys.executable).with_name("alembic")
        said = subprocess.run([alembic, "-c", settings, "heads"], capture_output=True, text=True, check=True).stdout
    assert said.split()[0] == version
