"""Grading a class: nobody is missing, nothing is graded twice, nothing is lost."""

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from autograder.classroom import grader as grading
from autograder.classroom.converters import Recorder
from autograder.classroom.export import export, overruled
from autograder.classroom.feedback import write_feedback
from autograder.classroom.grade import MARK, SEED, Classroom, read_time
from autograder.cli import app
from autograder.course.course import Course
from autograder.course.sample import render, submissions
from autograder.dashboard import snapshot
from autograder.isolation import sandbox
from autograder.isolation.sandbox import SandboxError
from autograder.judging import judge
from autograder.judging.verdict import Outcome

from ..tiny_course import NAME as TINY
from ..tiny_course import RIGHT, WRONG, hand_in, notebook

pytestmark = pytest.mark.xdist_group("graded class")  # which is graded once

COURSE = Course.at(Path(__file__).parents[3])
NAME = "00_start_here"
STUDENTS = ("ada", "eli", "hana")


def _hand_in(folder, students=STUDENTS):
    lesson = COURSE.lesson(NAME)
    for each in submissions(COURSE, NAME):
        if each.student in students:
            path = folder / "submitted" / each.student / NAME / f"{NAME}.ipynb"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(render(lesson, each))


def _scores(results):
    return {result.student: result.score for result in results}


def _gradebook(room):
    with room.records.gradebook() as gradebook:
        return {s.student_id: s.score for s in gradebook.find_assignment(NAME).submissions}


@pytest.fixture(scope="module")
def graded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("class")
    _hand_in(folder)
    (folder / "submitted" / "corrupt" / NAME).mkdir(parents=True)
    (folder / "submitted" / "corrupt" / NAME / f"{NAME}.ipynb").write_text('{"cells": [')
    (folder / "submitted" / "absent" / NAME).mkdir(parents=True)
    Classroom(COURSE, folder).grade()
    return folder


@pytest.fixture
def room(graded, tmp_path):
    return Classroom(COURSE, shutil.copytree(graded, tmp_path / "class"))


def test_everybody_is_graded_and_the_gradebook_says_the_same(room):
    results = room.grade()
    scores = _scores(results)
    assert set(scores) == {*STUDENTS, "corrupt", "absent"}
    assert scores["ada"] == sum(each.points for each in COURSE.exercises(NAME))
    assert scores["corrupt"] == scores["absent"] == 0 < scores["hana"] < scores["ada"]
    assert _gradebook(room) == scores


def test_a_second_run_grades_nothing(room):
    assert not any(result.fresh for result in room.grade())


def test_only_what_changed_is_graded_again(room):
    shutil.copy(room.submitted / "ada" / NAME / f"{NAME}.ipynb", room.submitted / "eli" / NAME / f"{NAME}.ipynb")
    results = room.grade()
    assert [result.student for result in results if result.fresh] == ["eli"]
    assert _scores(results)["eli"] == _gradebook(room)["eli"] == _scores(results)["ada"]


def test_a_lost_gradebook_is_filled_again_from_the_verdicts(room, monkeypatch):
    before = _gradebook(room)
    (room.folder / "gradebook.db").unlink()
    monkeypatch.setattr(judge, "judge", lambda *args: pytest.fail("a verdict was reached again"))
    assert all(result.fresh for result in room.grade())
    assert _gradebook(room) == before


def test_an_older_gradebook_put_back_is_brought_up_to_date_and_keeps_scores_by_hand(tiny_room, tmp_path):
    from autograder.classroom.export import rows, unentered
    from autograder.classroom.record import grades_of

    right, wrong = notebook(**RIGHT), notebook(**WRONG)
    hand_in(tiny_room.folder, ada=right, ben=wrong, cid=wrong)
    tiny_room.grade()
    with tiny_room.records.gradebook() as gradebook:
        by_hand = grades_of(gradebook.find_submission(TINY, "ben"))[0]
        by_hand.manual_score = 1.5
        others = sum(grade.auto_score for grade in grades_of(gradebook.find_submission(TINY, "ben"))[1:])
        gradebook.db.commit()
    shutil.copy(tiny_room.folder / "gradebook.db", tmp_path / "backup.db")
    hand_in(tiny_room.folder, ada=wrong)
    (tiny_room.submitted / "cid" / TINY / "timestamp.txt").write_text("2026-12-25 10:00:00 UTC")
    tiny_room.grade()
    assert not unentered(tiny_room, rows(tiny_room))
    shutil.copy(tmp_path / "backup.db", tiny_room.folder / "gradebook.db")
    (said,) = unentered(tiny_room, rows(tiny_room))
    assert said.startswith(f"{TINY} ada: the gradebook has other scores")
    assert {each.student: each.counts for each in tiny_room.grade() if each.fresh} == {"ada": 2.0, "cid": 2.0}
    assert {row["student"]: row["score"] for row in rows(tiny_room)} == {"ada": 2.0, "ben": 1.5 + others, "cid": 2.0}
    assert not any(each.fresh for each in tiny_room.grade())


def test_what_comes_with_an_older_time_waits_until_it_is_graded_or_seen_to_be_the_same(tiny_room):
    book, new = tiny_room.submitted / "ada" / TINY / f"{TINY}.ipynb", tiny_room.folder / "new.ipynb"
    hand_in(tiny_room.folder, ada=notebook(**RIGHT))
    tiny_room.grade()
    for sources, fresh in ((RIGHT, False), (WRONG, True)):
        assert snapshot.queue(snapshot.read(tiny_room.folder)) == []
        new.write_text(json.dumps(notebook(**sources)))
        os.utime(new, (1e9, 1e9))
        new.rename(book)  # as `unzip` and `rsync -a` do
        assert snapshot.queue(snapshot.read(tiny_room.folder)) == [(TINY, "ada", "changed since it was graded")]
        assert [result.fresh for result in tiny_room.grade()] == [fresh]
    assert snapshot.queue(snapshot.read(tiny_room.folder)) == []


def test_again_judges_anew(room, monkeypatch):
    """A verdict that the machine's fault decided, a kill for lack of memory say, does not stay for good."""
    for path in (room.folder / "verdicts").rglob("*.json"):
        path.write_text(path.read_text().replace('"passed"', '"ended early"'))
    judged, real = [], judge.judge
    monkeypatch.setattr(judge, "judge", lambda *args, **more: judged.append(args[0].name) or real(*args, **more))
    before = _gradebook(room)
    room.grade(again=True)
    assert judged
    assert _gradebook(room) == before
    judged.clear()
    room.grade()
    assert not judged


def test_stray_folders_are_reported_and_left_alone(room):
    (room.submitted / "ada" / "99_poetry").mkdir()
    (room.submitted / "no student; rm").mkdir()
    (room.submitted / "notes.txt").write_text("")
    pairs, strange = room.found()
    assert len(pairs) == len(STUDENTS) + 2
    assert len(strange) == 3, strange
    assert any("99_poetry" in line for line in strange)


def test_what_a_file_system_spells_otherwise_is_what_was_handed_in(tiny_room, folding):
    hand_in(tiny_room.folder, **dict.fromkeys(("ada", "Zoe\u0301"), notebook(**RIGHT)))
    ada = tiny_room.submitted / "ada"
    os.rename(ada / TINY / f"{TINY}.ipynb", ada / TINY / f"{TINY.title()}.ipynb")
    os.rename(ada / TINY, ada / TINY.title())
    assert [path.name for path in sorted(tiny_room.submitted.iterdir())] == ["Zoe\u0301", "ada"]
    assert tiny_room.found() == ([("Zoé", TINY), ("ada", TINY)], [])
    assert _scores(tiny_room.grade()) == {"Zoé": 5, "ada": 5}
    (ada / TINY / "another.ipynb").touch()
    (ada / "notes").mkdir()
    assert [line.split(" holds ")[1] for line in tiny_room.found()[1]] == [
        "other notebooks that were not graded: another.ipynb",
        "what is no lesson's folder and was left alone: notes",
    ]


def test_a_time_that_cannot_be_read_is_reported_and_costs_no_grade(room):
    (room.submitted / "ada" / NAME / "timestamp.txt").write_text("yesterday, around noon")
    (room.submitted / "eli" / NAME / "timestamp.txt").write_text("2026-12-25 10:00:00 UTC")
    (line,) = room.found()[1]
    assert "ada" in line
    results = {result.student: result for result in room.grade()}
    assert results["ada"].problem is results["eli"].problem is None
    assert results["eli"].fresh
    with room.records.gradebook() as gradebook:
        assert str(gradebook.find_submission(NAME, "eli").timestamp) == "2026-12-25 10:00:00"


@pytest.mark.parametrize(
    ("text", "hour"),
    [
        ("2026-12-25 10:00:00 UTC", 10),
        ("2026-12-25 10:00:00.123456 UTC", 10),
        ("2026-12-25 10:00", 10),
        ("2026-12-25T10:00:00Z", 10),
        ("2026-12-25 10:00:00 +0100", 9),
        ("2026-12-25 10:00:00 -05:00", 15),
        ("2026-12-25T10:00:00+01:00", 9),
        ("2026-12-25 10:00:00 Europe/Berlin", 9),
        ("2026-12-25 10:00:00 America/Port-au-Prince", 15),
        ("2026-12-25 10:00:00 Etc/GMT+5", 15),
        ("2026-12-25 10:00:00 GMT", 10),
        ("2026-12-25 10:00:00 Z", 10),
        ("2026-12-25 10:00:00 utc", 10),
        ("2026-12-25T10:00:00.123456 +02:00", 8),
        ("2026-12-25T10:00:00 Europe/Berlin", 9),
    ],
)
def test_a_time_may_have_an_offset_or_a_time_zone(tmp_path, text, hour):
    (tmp_path / "timestamp.txt").write_text(text)
    found, wrong = read_time(tmp_path)
    assert wrong is None
    assert found.startswith(f"2026-12-25 {hour:02}:00:00")


@pytest.mark.parametrize(
    "zone", ["CEST", "PDT", "EST", "CET", "IST", "UTC+2", "Europe/Atlantis", "europe/berlin", "EST5EDT", "X/Y5Z"]
)
def test_a_time_in_a_zone_that_is_of_several_or_of_none_is_refused_with_what_to_write(tmp_path, zone):
    (tmp_path / "timestamp.txt").write_text(f"2026-11-27 23:59:59 {zone}")
    found, wrong = read_time(tmp_path)
    assert found is None
    assert f'the time zone "{zone}", which may be several or none: write UTC, +02:00 or Europe/Berlin' in wrong


def test_the_class_is_told_of_a_time_zone_before_anything_is_graded(tmp_path):
    room = Classroom(COURSE, tmp_path)
    (room.submitted / "ada" / NAME).mkdir(parents=True)
    (room.submitted / "ada" / NAME / "timestamp.txt").write_text("2026-11-27 23:59:59 CEST\n")
    (line,) = room.found()[1]
    assert line.startswith(f'submitted/ada/{NAME}/timestamp.txt has the time zone "CEST"')


def test_a_fault_of_the_grader_is_not_a_zero(room, monkeypatch, tmp_path):
    def broken(*args, **kwargs):
        raise ZeroDivisionError("the oracle is broken")

    monkeypatch.setattr(judge, "assess", broken)
    grading.shared.cache_clear()
    shutil.rmtree(room.folder / "verdicts")
    shutil.rmtree(room.folder / "graded")
    results = {result.student: result for result in room.grade()}
    grading.shared.cache_clear()
    assert {v.outcome for v in results["ada"].verdicts} == {Outcome.FAULT}
    assert results["ada"].score is None
    assert results["corrupt"].score == 0, "what needs no judge is graded all the same"
    export(room, tmp_path / "grades.csv")
    rows = {row["student"]: row for row in csv.DictReader((tmp_path / "grades.csv").read_text().splitlines())}
    assert (rows["ada"]["score"], rows["ada"]["status"]) == ("", "needs manual grading")
    monkeypatch.undo()
    results = {result.student: result for result in room.grade()}
    assert results["ada"].fresh
    assert results["ada"].score == results["ada"].points


def test_feedback_tells_the_student_what_is_wrong(room):
    pages, problems = write_feedback(room)
    assert problems == []
    assert len(pages) == len(STUDENTS) + 2
    texts = {page.parts[-3]: page.read_text() for page in pages}
    assert "these are elements, expected bytes" in texts["eli"]
    assert "not a notebook that can be read" in texts["corrupt"]
    assert "was handed in" in texts["absent"]
    assert "not finished" in texts["hana"] or "as it was handed out" in texts["hana"]


def test_nbgraders_own_autograde_gives_the_same_score(room):
    from nbgrader.apps import NbGraderAPI
    from nbgrader.coursedir import CourseDirectory

    before = _gradebook(room)
    config = room.records.config()
    answer = NbGraderAPI(CourseDirectory(config=config), config=config).autograde(NAME, "eli", force=True)
    assert answer["success"], answer
    assert _gradebook(room) == before


def test_a_comment_reaches_the_feedback_page(room):
    write_feedback(room)
    with room.records.gradebook() as gradebook:
        gradebook.find_comment("tensor_bytes", NAME, NAME, "eli").manual_comment = "see me after class"
        gradebook.db.commit()
    pages, _ = write_feedback(room)
    assert "see me after class" in next(page for page in pages if page.parts[-3] == "eli").read_text()


def test_a_browsers_file_name_is_no_zero_and_two_files_are_a_question(room):
    folder = room.submitted / "ada" / NAME
    (folder / f"{NAME}.ipynb").rename(folder / f"{NAME} (1).ipynb")
    assert _scores(room.grade())["ada"] == 15
    shutil.copy(folder / f"{NAME} (1).ipynb", folder / f"{NAME} (2).ipynb")
    (verdict, *_) = next(result for result in room.grade() if result.student == "ada").verdicts
    assert verdict.outcome is Outcome.ABSENT
    assert "(2).ipynb" in verdict.reason


def test_a_link_to_somebody_elses_notebook_is_not_followed(room):
    path = room.submitted / "hana" / NAME / f"{NAME}.ipynb"
    path.unlink()
    path.symlink_to(room.submitted / "ada" / NAME / f"{NAME}.ipynb")
    assert _scores(room.grade())["hana"] == 0


def test_two_runs_do_not_grade_one_class_at_once(room):
    with room.locked(), pytest.raises(BlockingIOError, match="another run"):
        Classroom(COURSE, room.folder).grade()


def test_a_manual_score_is_exported(room, tmp_path):
    with room.records.gradebook() as gradebook:
        grade = gradebook.find_grade("check-tensor_bytes", NAME, NAME, "eli")
        grade.manual_score = 3.0
        gradebook.db.commit()
    export(room, tmp_path / "grades.csv", per_exercise=True)
    rows = {
        (r["student"], r["exercise"]): r["score"]
        for r in csv.DictReader((tmp_path / "grades.csv").read_text().splitlines())
    }
    assert float(rows["eli", "tensor_bytes"]) == 3.0
    (line,) = overruled(room)
    assert "eli: tensor_bytes counts 3" in line


def test_a_killed_run_is_finished_by_the_next(graded, tmp_path):
    folder = tmp_path / "class"
    _hand_in(folder)
    command = [sys.executable, "-m", "autograder.cli", "grade", "--classroom", str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while not list((folder / "graded").glob("*/*.json")) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    room = Classroom(COURSE, folder)
    results = room.grade()
    full = {student: score for student, score in _gradebook(Classroom(COURSE, graded)).items() if student in STUDENTS}
    assert _scores(results) == _gradebook(room) == full
    leftovers = [path for path in folder.iterdir() if path.name.startswith(".staging") and os.listdir(path)]
    assert len(leftovers) <= 1


def test_a_first_submission_that_cannot_be_recorded_is_said(tmp_path, monkeypatch):
    _hand_in(tmp_path, ("ada",))
    monkeypatch.setattr(Recorder, "record", lambda *args: {"success": False, "error": "the disk said no"})
    shown = CliRunner().invoke(app, ["grade", "--classroom", str(tmp_path)])
    assert (shown.exit_code, "nbgrader could not record it: the disk said no" in shown.stdout) == (1, True)


def test_real_submissions_are_not_judged_on_the_cases_of_the_sample_class(tmp_path):
    _hand_in(tmp_path, ("ada", "eli"))
    (tmp_path / "seed").write_text(SEED + "\n")
    (tmp_path / MARK).write_text(f"ada/{NAME}\n")
    with pytest.raises(FileExistsError, match=f"public, and eli/{NAME} is not of that class: remove .*seed"):
        Classroom(COURSE, tmp_path).grade()
    assert not (tmp_path / "graded").exists()
    (tmp_path / MARK).write_text(f"ada/{NAME}\neli/{NAME}\n")
    assert len(Classroom(COURSE, tmp_path).grade()) == 2


@pytest.fixture
def bare(monkeypatch):
    """A machine without bubblewrap, where nothing is said of isolation."""
    monkeypatch.setattr(sandbox, "default_isolation", lambda: "process")
    monkeypatch.delenv("MLA_ISOLATION", raising=False)


def test_strangers_code_does_not_run_without_bubblewrap_unless_that_is_said(bare, tmp_path, monkeypatch):
    _hand_in(tmp_path, ("ada",))
    says = f"ada/{NAME} is a stranger's code, and bubblewrap .* `apt install bubblewrap`, or .* `--isolation process`"
    with pytest.raises(SandboxError, match=says):
        Classroom(COURSE, tmp_path).grade()
    with pytest.raises(SandboxError, match="bubblewrap was asked for, and bubblewrap does not work here"):
        Classroom(COURSE, tmp_path, isolation="bubblewrap").grade()
    with pytest.raises(SandboxError, match="no isolation 'bwrap': expected bubblewrap or process"):
        Classroom(COURSE, tmp_path, isolation="bwrap").grade()
    assert not (tmp_path / "graded").exists() and not (tmp_path / "verdicts").exists()
    monkeypatch.setenv("MLA_ISOLATION", "process")
    assert Classroom(COURSE, tmp_path).isolated() == "process"


def test_the_sample_class_alone_may_run_without(bare, tmp_path):
    _hand_in(tmp_path, ("ada",))
    (tmp_path / MARK).write_text(f"ada/{NAME}\n")
    with pytest.raises(SandboxError):  # the seed is a secret: this is a class of somebody's
        Classroom(COURSE, tmp_path).isolated()
    (tmp_path / "seed").write_text(SEED + "\n")
    assert Classroom(COURSE, tmp_path).isolated() == "process"
    _hand_in(tmp_path, ("eli",))
    with pytest.raises(SandboxError, match=f"eli/{NAME} is a stranger's code"):
        Classroom(COURSE, tmp_path).isolated()


def test_what_submissions_ran_under_is_on_verdicts_and_export(bare, tmp_path):
    _hand_in(tmp_path, ("ada", "hana"))
    room = Classroom(COURSE, tmp_path, isolation="process")
    for result in room.grade():
        for verdict in result.verdicts:
            ran = verdict.outcome is not Outcome.UNFINISHED
            assert verdict.isolation == ("process" if ran else "")
    export(room, tmp_path / "grades.csv", per_exercise=True)
    rows = list(csv.DictReader((tmp_path / "grades.csv").read_text().splitlines()))
    assert {row["isolation"] for row in rows if row["student"] == "ada"} == {"process"}
    assert {row["isolation"] for row in rows if row["student"] == "hana"} == {"process", ""}
    export(room, tmp_path / "grades.csv")
    rows = list(csv.DictReader((tmp_path / "grades.csv").read_text().splitlines()))
    assert {row["isolation"] for row in rows} == {"process"}


def test_the_button_in_formgrader_follows_the_same_rule(bare, tmp_path):
    from nbgrader.apps import NbGraderAPI
    from nbgrader.coursedir import CourseDirectory

    _hand_in(tmp_path, ("ada",))
    Classroom(COURSE, tmp_path, isolation="process").grade()
    config = Classroom(COURSE, tmp_path).records.config()
    answer = NbGraderAPI(CourseDirectory(config=config), config=config).autograde(NAME, "ada", force=True)
    assert not answer["success"]
    assert "a stranger's code, and bubblewrap does not work here" in f"{answer.get('error')} {answer.get('log')}"
    config.Judge.isolation = "process"
    answer = NbGraderAPI(CourseDirectory(config=config), config=config).autograde(NAME, "ada", force=True)
    assert answer["success"], answer


@pytest.mark.parametrize("name", ["Kurs (WS26), c++", "a%20b?q=1", "[abc*^$|\\"])
def test_a_class_lies_in_a_folder_of_any_name(tiny_room, tmp_path, name):
    room = Classroom(tiny_room.course, tiny_room.folder.rename(tmp_path / name))
    hand_in(room.folder, ada=notebook(**RIGHT), ben=notebook(**WRONG))
    found = room.grade()
    assert {each.student: (each.counts, each.problem) for each in found} == {"ada": (5, None), "ben": (2, None)}
    pages, problems = write_feedback(room)
    assert (len(pages), problems) == (2, [])
    assert {path.name for path in tmp_path.iterdir()} == {name}, "the gradebook lies in the folder"
    assert snapshot.read(room.folder).problems == []
