"""Recording does what `nbgrader autograde` does."""

import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing, nullcontext
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace

import nbformat
import pytest
from nbgrader.api import Gradebook
from nbgrader.dbutil import _temp_alembic_ini
from sqlalchemy.exc import OperationalError

from autograder.classroom import converters, extension, grader
from autograder.classroom.export import rows
from autograder.classroom.feedback import write_feedback
from autograder.classroom.grade import Classroom
from autograder.classroom.guard import guard
from autograder.classroom.record import Graded, Records, grades_of, submissions_of
from autograder.classroom.scoreboard import print_scoreboard

from .. import tiny_course
from ..tiny_course import NAME as TINY

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


TRI = 'Exercise("tri", "three times", (Part("all", 2, [dict(n=5)]),), _inputs, lambda x: 3 * x)'
TRI_CELLS = """

# %% solution="tri"
def tri(x):
    ### BEGIN SOLUTION
    return 3 * x
    ### END SOLUTION

# %% check="tri"
check("tri")
"""


def _course(folder, exercises, old="", new="", more=""):
    """Write the tiny course with its exercises and its lesson changed."""
    course = tiny_course.write(folder, changes=exercises)
    script = course.folder(TINY) / "lesson.py"
    script.write_text(script.read_text().replace(old, new) + more)
    return course


def _held(room):
    return {student: sorted(held.scores.items()) for (student, _), held in room.records.held([TINY]).items()}


@pytest.fixture
def changed(tiny_room):
    """The tiny class graded, ben with 1.5 points by hand for quad; cid has withdrawn."""
    right, wrong = (tiny_course.notebook(**each) for each in (tiny_course.RIGHT, tiny_course.WRONG))
    tiny_course.hand_in(tiny_room.folder, ada=right, ben=wrong, cid=right)
    tiny_room.grade()
    _by_hand(tiny_room, "double", 1.5)
    shutil.rmtree(tiny_room.submitted / "cid")
    return tiny_room


def _by_hand(room, exercise, score):
    with room.records.gradebook() as gradebook:
        gradebook.find_grade(f"check-{exercise}", TINY, TINY, "ben").manual_score = score
        gradebook.db.commit()


def test_an_exercise_added_to_a_lesson_that_was_handed_in_is_graded_and_scores_by_hand_stay(changed, tmp_path):
    room = Classroom(_course(tmp_path, {"(DOUBLE, QUAD)": f"(DOUBLE, QUAD, {TRI})"}, more=TRI_CELLS), changed.folder)
    found = {each.student: each for each in room.grade()}
    assert [each.problem for each in found.values()] == [None] * 3
    assert {student: each.counts for student, each in found.items()} == {"ada": 5, "ben": 3.5, "cid": 5}
    assert [name for name, _ in _held(room)["ada"]] == ["double", "quad", "tri"]
    assert {row["student"]: row["max_score"] for row in rows(room)} == dict.fromkeys(found, 7)
    assert not any(each.fresh for each in room.grade())


def test_an_exercise_renamed_or_removed_is_so_in_the_gradebook(changed, tmp_path):
    room = Classroom(_course(tmp_path / "renamed", {'"quad"': '"fourfold"'}, "quad", "fourfold"), changed.folder)
    assert {each.student: each.counts for each in room.grade()} == {"ada": 3, "ben": 1.5, "cid": 3}
    assert _held(room)["ada"] == [("double", (3, 3)), ("fourfold", (0, 2))]
    _, problems = write_feedback(room)
    assert problems == [], "cid's page too, whose copy still has the exercise"
    back = Classroom(changed.course, changed.folder)
    assert {each.student: each.counts for each in back.grade()} == {"ada": 5, "ben": 3.5, "cid": 3}


def test_a_removed_exercise_with_a_score_by_hand_is_a_sentence_and_stops_no_other_lesson(changed, tmp_path):
    course = _course(tmp_path, {'"double"': '"twice"'}, '"double"', '"twice"')
    script = course.folder(TINY) / "lesson.py"
    script.write_text(script.read_text().replace("def double", "def twice").replace("double(double(x))", "4 * x"))
    shutil.copytree(changed.course.folder(TINY), course.root / "solutions" / "91_other")
    other = changed.submitted / "ada" / "91_other"
    shutil.copytree(changed.submitted / "ada" / TINY, other)
    (other / f"{TINY}.ipynb").rename(other / "91_other.ipynb")
    room, before = Classroom(course, changed.folder), _held(changed)
    found = {(each.student, each.lesson): each for each in room.grade()}
    assert found["ada", "91_other"].problem is None
    assert found["ada", TINY].problem.startswith("double is in the lesson no more, and ben had a score or a comment")
    assert _held(room) == before
    _by_hand(room, "double", None)
    assert {each.problem for each in room.grade()} == {None}


def test_the_same_problem_of_many_students_is_one_line(capsys):
    from rich.console import Console

    results = [Graded(student, TINY, problem="it cannot be", fresh=True, counts=2.0) for student in ("ada", "ben")]
    print_scoreboard(Console(), results)
    said = capsys.readouterr().out
    assert f"{TINY} ada, ben: it cannot be" in said
    assert said.count("2‡") == 2


def test_a_gradebook_that_another_program_holds_stops_the_run_and_loses_no_record(changed):
    tiny_course.hand_in(changed.folder, ada=tiny_course.notebook(**tiny_course.WRONG))
    with closing(sqlite3.connect(changed.folder / "gradebook.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(OperationalError, match="database is locked"):
            changed.grade()
    assert changed.records.recorded("ada", TINY).fingerprint
    assert {each.student: each.counts for each in changed.grade() if each.fresh} == {"ada": 2}


def test_a_gradebook_that_is_taken_while_a_class_is_judged_loses_no_record(changed, monkeypatch):
    tiny_course.hand_in(changed.folder, ada=tiny_course.notebook(**tiny_course.WRONG))
    with closing(sqlite3.connect(changed.folder / "gradebook.db", isolation_level=None)) as other:
        enter = Records.enter

        def taken(*args):
            other.execute("BEGIN IMMEDIATE")
            return enter(*args)

        monkeypatch.setattr(Records, "enter", taken)
        with pytest.raises(OperationalError, match="database is locked"):
            changed.grade()
    assert changed.records.recorded("ada", TINY).fingerprint


def test_an_extension_is_not_granted_by_half(changed):
    with closing(sqlite3.connect(changed.folder / "gradebook.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(OperationalError, match="database is locked"):
            extension.grant(changed, "ada", TINY, 2)
    assert changed.records.extensions.read() == {}
