"""Which attempt counts, more time, and what becomes of a submission that is no longer there."""

import json
import shutil
from datetime import datetime

import pytest

from autograder.classroom import extension
from autograder.classroom.export import rows
from autograder.classroom.extension import ExtensionError, grant
from autograder.classroom.record import Graded, Records
from autograder.classroom.scoreboard import remarks
from autograder.judging import judge

from ..tiny_course import NAME, RIGHT, WRONG, hand_in, notebook

LATE = """
c = get_config()
c.LateSubmissionPlugin.penalty_method = "zero"
"""
HALF = """
from nbgrader.plugins import BasePlugin

class Half(BasePlugin):
    def late_submission_penalty(self, student_id, score, total_seconds_late):
        return score / 2

c = get_config()
c.AssignLatePenalties.plugin_class = Half
"""
BROKEN = HALF.replace("score / 2", "1 / 0")
BOOKS = {"right": notebook(**RIGHT), "wrong": notebook(**WRONG)}


def _hand_in(room, kind, day=None, student="ada", secret=None):
    hand_in(room.folder, **{student: BOOKS[kind]})
    folder = room.submitted / student / NAME
    for name, text in (("timestamp.txt", day and f"2026-12-{day} 10:00:00 UTC"), ("submission_secret.txt", secret)):
        (folder / name).unlink(missing_ok=True)
        if text:
            (folder / name).write_text(text)


def _row(room, student="ada"):
    return next(row for row in rows(room) if row["student"] == student)


@pytest.fixture
def room(tiny_room, tmp_path):
    """A class that takes all points from what is late; its lesson is due at the end of the 24th once it is known."""
    (tmp_path / "nbgrader_config.py").write_text(LATE)
    return tiny_room


def _due(room, day=24):
    _hand_in(room, "wrong", student="zoe")
    room.grade()
    shutil.rmtree(room.submitted / "zoe")
    with room.records.gradebook() as gradebook:
        gradebook.find_assignment(NAME).duedate = datetime(2026, 12, day, 23, 59, 59)
        gradebook.db.commit()


def _graded(room, **keys):
    return next(result for result in room.grade(**keys) if result.student == "ada")


def test_the_last_attempt_counts_and_the_output_says_that_another_was_better(room):
    _hand_in(room, "right")
    room.grade()
    _hand_in(room, "wrong")
    result = _graded(room)
    assert (result.counts, result.attempt, result.attempts) == (2, 2, 2)
    assert remarks([result]) == [
        f"{NAME} ada: attempt 2 of 2 counts, with 2 points; an earlier one had 5: --best has the best attempts count"
    ]
    assert _row(room)["status"] == "graded"


def test_the_best_attempt_counts_where_that_is_asked_for(room):
    _hand_in(room, "right", secret="first")
    room.grade()
    _hand_in(room, "wrong", secret="second")
    room.grade()
    result = _graded(room, best=True)
    assert (result.counts, result.attempt, result.attempts, result.fresh) == (5, 1, 2, True)
    assert remarks([result]) == [f"{NAME} ada: attempt 1 of 2 counts, the best one"]
    assert (_row(room)["score"], _row(room)["status"]) == (5, "graded, attempt 1 of 2 counts")
    graded = room.folder / "autograded" / "ada" / NAME
    assert "return 2 * x" in (graded / f"{NAME}.ipynb").read_text()
    assert (graded / "submission_secret.txt").read_text() == "first"
    assert not _graded(room, best=True).fresh
    assert _graded(room).counts == 2


def test_who_hands_in_an_earlier_attempt_again_while_the_class_is_graded_stops_nobody(room, monkeypatch):
    _hand_in(room, "right")
    room.grade()
    _hand_in(room, "wrong")
    staged = Records.staged

    def later(self, todo):
        _hand_in(room, "right")
        return staged(self, todo)

    monkeypatch.setattr(Records, "staged", later)
    assert _graded(room, best=True).counts == 5


def test_lateness_is_taken_off_before_the_best_is_chosen(room):
    _due(room)
    for kind, day in (("wrong", 23), ("right", 26)):
        _hand_in(room, kind, day)
        room.grade()
    result = _graded(room, best=True)
    assert (result.counts, result.attempt) == (2, 1)
    assert _row(room)["late"] is None
    grant(room, "ada", NAME, 3)
    assert (_graded(room, best=True).counts, _graded(room, best=True).attempt) == (5, 2)


@pytest.mark.thorough
def test_the_same_code_handed_in_once_more_keeps_its_time_where_the_best_counts(room):
    _due(room)
    for day in (23, 26):
        _hand_in(room, "right", day)
        room.grade()
    assert _graded(room).counts == 0
    assert _graded(room, best=True).counts == 5
    assert _graded(room, again=True).counts == 0
    assert _graded(room, best=True).counts == 5
    assert len(room.records.history("ada", NAME)) == 1


def test_a_time_that_is_put_in_after_the_first_grading_counts_where_the_best_does(room):
    _due(room)
    _hand_in(room, "right")
    assert _graded(room, best=True).counts == 5
    _hand_in(room, "right", 26)
    assert _graded(room, best=True).counts == 0, "it is no earlier attempt in time"
    assert _row(room)["late"] == 34
    room.grade()
    assert _graded(room, best=True).counts == 0


@pytest.mark.thorough
def test_a_fault_of_the_grader_in_an_earlier_attempt_leaves_the_choice_open(room, monkeypatch):
    _hand_in(room, "right")
    room.grade()
    _hand_in(room, "wrong")
    room.grade()
    right = room.records.history("ada", NAME)[0]
    with monkeypatch.context() as patched:
        fault = judge.fault(room.course.exercises(NAME)[0], "it broke")
        real = type(room.records).attempted

        def broken(records, entry):
            return [(real(records, entry)[0][0], None, None)]

        patched.setattr(type(room.records), "attempted", broken)
        patched.setattr("autograder.classroom.grader.Grader.known", lambda self, job: fault)
        assert _graded(room, best=True).score is None
    result = _graded(room, best=True)
    assert (result.counts, result.attempt) == (5, 1)
    assert room.records.history("ada", NAME)[0].digest == right.digest


def test_what_is_withdrawn_keeps_its_score_and_is_marked(room):
    for student in ("ada", "ben"):
        _hand_in(room, "right", student=student)
    room.grade()
    shutil.rmtree(room.submitted / "ada")
    result = _graded(room)
    assert (result.withdrawn, result.counts, result.fresh) == (True, 5, False)
    assert "withdrawn since it was graded; 5 points stay" in remarks([result])[0]
    assert (_row(room)["score"], _row(room)["status"]) == (5, "graded, withdrawn since it was graded")
    assert _row(room, "ben")["status"] == "graded"
    _hand_in(room, "right")
    assert not _graded(room).withdrawn


@pytest.mark.parametrize("when", ["read", "judged"])
def test_what_is_taken_away_while_the_class_is_graded_keeps_its_score(room, monkeypatch, when):
    for student in ("ada", "ben"):
        _hand_in(room, "right", 20, student=student)
    room.grade()
    for student in ("ada", "ben"):
        _hand_in(room, "wrong", 21, student=student)
    found = room.found()

    def found_before():
        shutil.rmtree(room.submitted / "ada")
        return found

    def progress(stage, done, total):
        if when == "judged":
            shutil.rmtree(room.submitted / "ada", ignore_errors=True)

    if when == "read":
        monkeypatch.setattr(room, "found", found_before)
    results = {result.student: result for result in room.grade(progress=progress)}
    assert {student: (each.withdrawn, each.counts) for student, each in results.items()} == {
        "ada": (True, 5),
        "ben": (False, 2),
    }
    assert [attempt.score for attempt in room.records.history("ada", NAME)] == [5]


def test_a_folder_that_was_renamed_is_marked_as_such(room):
    _hand_in(room, "right")
    room.grade()
    (room.submitted / "ada").rename(room.submitted / "ada.lovelace")
    assert "ada.lovelace handed in the same: was the folder renamed?" in remarks(room.grade())[0]


def test_an_extension_before_handing_in_and_after(room):
    _due(room)
    grant(room, "ada", NAME, 2)
    assert [(each.days, each.due) for each in grant(room, "ada")[0]] == [(2, "2026-12-26 23:59:59 UTC")]
    _hand_in(room, "right", 26)
    assert _graded(room).counts == 5
    assert not _graded(room).fresh
    grant(room, "ada", NAME, 1)
    assert _graded(room).counts == 0
    grant(room, "ada", NAME, 2.5)
    assert _graded(room).counts == 5
    assert grant(room, "ada", NAME, None)[0] == []
    assert _graded(room).counts == 0
    assert grant(room, "ada", NAME, None)[1], "there was none any more"


def test_an_extension_that_was_granted_in_the_gradebook_stays(room):
    _due(room)
    _hand_in(room, "right", 26)
    room.grade()
    with room.records.gradebook() as gradebook:
        gradebook.grant_extension(NAME, "ada", days=2)
    assert _graded(room).counts == 5
    assert [each.student for each in grant(room)[0]] == ["ada"]


def test_an_extension_past_the_end_of_the_calendar_stops_nothing(room):
    _due(room)
    with room.records.gradebook() as gradebook:
        gradebook.find_assignment(NAME).duedate = datetime(9999, 12, 31, 23, 59, 59)
        gradebook.db.commit()
    _hand_in(room, "right", 26)
    for _ in range(2):
        assert [each.due for each in grant(room, "ada", NAME, 2)[0]] == ["9999-12-31 23:59:59 UTC"]
        assert _graded(room).counts == 5
    assert [each.student for each in grant(room)[0]] == ["ada"]


def test_an_extension_without_a_due_date_stops_nothing(room):
    grant(room, "ada", NAME, 2)
    _hand_in(room, "right", 26)
    assert _graded(room).counts == 5
    assert [each.due for each in grant(room)[0]] == [""]


@pytest.mark.parametrize(("student", "days", "says"), [("ada", 0, "more than 0"), ("../ada", 2, "cannot be a student")])
def test_an_extension_that_is_none_is_refused(room, student, days, says):
    with pytest.raises(ExtensionError, match=says):
        grant(room, student, NAME, days)
    assert not (room.folder / "extensions.json").exists()


def test_a_damaged_file_of_extensions_is_said_and_kept(room):
    _hand_in(room, "right")
    path = extension.Extensions(room.folder).path
    for damage in (json.dumps({NAME: 3}), "[" * 100_000):
        path.write_text(damage)
        with pytest.raises(ExtensionError, match="is damaged"):
            room.grade()
        assert path.read_text() == damage


@pytest.mark.parametrize(("rule", "counts"), [(LATE, 0), (HALF, 1.75)], ids=["zero", "half"])
def test_what_is_off_for_lateness_follows_a_score_that_is_set_by_hand_afterwards(room, tmp_path, rule, counts):
    (tmp_path / "nbgrader_config.py").write_text(rule)
    _due(room)
    _hand_in(room, "wrong", 26)
    assert _graded(room).counts == (0 if rule == LATE else 1)
    with room.records.gradebook() as gradebook:
        grade = gradebook.find_grade("check-double", NAME, NAME, "ada")
        grade.manual_score, grade.extra_credit = 1.0, 0.5
        gradebook.db.commit()
    result = _graded(room)
    assert (result.counts, result.fresh) == (counts, False)
    assert _row(room)["score"] == counts
    assert _row(room)["status"] == f"set by hand, {3.5 - counts:g} off for lateness", "and not to be looked at again"


def test_a_penalty_that_cannot_be_reckoned_any_more_is_told_and_stays(room, tmp_path):
    _due(room)
    _hand_in(room, "right", 26)
    assert _graded(room).counts == 0
    records = room.records
    (tmp_path / "nbgrader_config.py").write_text(BROKEN)
    results = [Graded("ada", NAME)]
    records.count(results)
    assert (results[0].counts, "division by zero" in results[0].problem) == (0, True)
