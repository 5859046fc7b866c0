"""What is read of a class, and what is left alone."""

import json
import sqlite3

import pytest

from autograder.classroom.database import MARK
from autograder.classroom.grade import Classroom
from autograder.dashboard import figures, findings, pages, snapshot
from autograder.judging.verdict import Outcome, Verdict

from ..tiny_course import NAME, RIGHT, WRONG, hand_in, notebook, own_cell


@pytest.fixture(scope="module")
def graded(tiny, tmp_path_factory):
    """The tiny course's class of two, graded."""
    room = Classroom(tiny, tmp_path_factory.mktemp("room"), isolation="process")
    hand_in(room.folder, ada=notebook(**RIGHT), ben=notebook(**WRONG))
    room.grade()
    return room


def _files(folder):
    return {
        path: (path.stat().st_mtime_ns, path.read_bytes())
        for path in folder.rglob("*")
        if path.is_file() and snapshot.CACHE not in path.parts
    }


def test_a_graded_class_is_read_as_it_was_graded_and_nothing_of_it_is_written(graded):
    before = _files(graded.folder)
    group = findings.sum_up(graded.course, graded.folder)
    assert group.students == ["ada", "ben"]
    assert [(item.lesson, item.name, item.points) for item in group.items] == [(NAME, "double", 3), (NAME, "quad", 2)]
    assert group.score.tolist() == [[3, 2], [0, 2]]
    assert [row[snapshot.MISTAKE] for _, row in group.rows(group.items[0])] == [None, "half"]
    assert _files(graded.folder) == before


def test_a_score_set_by_hand_and_a_penalty_count(graded):
    with sqlite3.connect(graded.folder / "gradebook.db") as book:
        book.execute("UPDATE grade SET manual_score = 1 WHERE auto_score = 0")
        book.execute("UPDATE submitted_notebook SET late_submission_penalty = 2")
    try:
        group = figures.gather(snapshot.read(graded.folder))
        assert group.score.tolist() == [[3, 2], [1, 2]]
        assert group.total.tolist() == [3, 1]
    finally:
        with sqlite3.connect(graded.folder / "gradebook.db") as book:
            book.execute("UPDATE grade SET manual_score = NULL")
            book.execute("UPDATE submitted_notebook SET late_submission_penalty = 0")


def test_what_waits_is_what_was_handed_in_and_not_graded_since(graded):
    assert snapshot.queue(snapshot.read(graded.folder)) == []
    hand_in(graded.folder, ada=notebook(**RIGHT), eve=notebook(**RIGHT))
    waiting = snapshot.queue(snapshot.read(graded.folder))
    assert waiting == [(NAME, "ada", "changed since it was graded"), (NAME, "eve", "not graded yet")]


def _record(folder, student, score, lesson="01_x", **more):
    path = folder / "graded" / lesson / f"{student}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    verdict = Verdict("double", 3, score, Outcome.PASSED if score == 3 else Outcome.WRONG, **more)
    path.write_text(json.dumps({"fingerprint": "", "verdicts": [verdict.to_json()]}))


def test_a_record_that_changes_is_read_again_and_one_that_goes_is_gone(tmp_path):
    _record(tmp_path, "ada", 3)
    _record(tmp_path, "ben", 0)
    assert figures.gather(snapshot.read(tmp_path)).score.tolist() == [[3], [0]]
    _record(tmp_path, "ben", 3, reason="looked at again")
    assert figures.gather(snapshot.read(tmp_path)).score.tolist() == [[3], [3]]
    (tmp_path / "graded" / "01_x" / "ada.json").unlink()
    assert figures.gather(snapshot.read(tmp_path)).students == ["ben"]


def test_without_a_cache_the_same_is_read(tmp_path):
    _record(tmp_path, "ada", 3)
    (tmp_path / snapshot.CACHE).write_text("a file where a folder cannot be made then")
    for _ in range(2):
        assert figures.gather(snapshot.read(tmp_path)).score.tolist() == [[3]]


@pytest.mark.parametrize(
    "damage", ["", "{}", '{"version": 2}', '{"version": 2, "stamps": {}, "sheet": {"students": 3}}']
)
def test_a_damaged_cache_is_none(tmp_path, damage):
    _record(tmp_path, "ada", 3)
    snapshot.read(tmp_path)
    (tmp_path / snapshot.CACHE / "01_x.json").write_text(damage)
    assert figures.gather(snapshot.read(tmp_path)).score.tolist() == [[3]]


@pytest.mark.parametrize("damage", ["", "[]", '{"verdicts": [{"exercise": "double"}]}', "[" * 100_000])
def test_a_damaged_record_is_named_each_time_and_the_others_are_read(tmp_path, damage):
    _record(tmp_path, "ada", 3)
    _record(tmp_path, "ben", 0)
    (tmp_path / "graded" / "01_x" / "ben.json").write_text(damage)
    for _ in range(2):
        read = snapshot.read(tmp_path)
        assert [each for each in read.problems if "01_x/ben.json" in each]
        assert read.lessons["01_x"].students == ["ada"]


def test_without_a_gradebook_the_records_are_shown_and_it_says_so(tmp_path):
    _record(tmp_path, "ada", 3)
    read = snapshot.read(tmp_path)
    assert any("gradebook cannot be read" in each for each in read.problems)
    assert "gradebook cannot be read" in pages.summary(pages.Look(figures.gather(read)), None)
    assert not (tmp_path / "gradebook.db").exists()


def test_attempts_tell_tries_and_time(tmp_path):
    _record(tmp_path, "ada", 3)
    _record(tmp_path, "ben", 3)
    wrong, right = (Verdict("double", 3, s, Outcome.WRONG if s < 3 else Outcome.PASSED).to_json() for s in (0, 3))
    (tmp_path / "history" / "01_x").mkdir(parents=True)
    lines = [
        {
            "submitted": "2026-09-01 10:00:00 UTC",
            "graded": "2026-09-01T11:00:00+00:00",
            "digest": "1",
            "verdicts": [wrong],
        },
        {
            "submitted": "2026-09-01 16:00:00 UTC",
            "graded": "2026-09-01T17:00:00+00:00",
            "digest": "2",
            "verdicts": [right],
        },
    ]
    text = "\n".join(map(json.dumps, lines)) + "\nno line of ours\n"
    (tmp_path / "history" / "01_x" / "ada.jsonl").write_text(text)
    group = figures.gather(snapshot.read(tmp_path))
    assert group.attempts.tolist() == [[2], [1]]
    assert group.first.tolist() == [[0], [1]]
    assert group.hours[0, 0] == 6
    page = pages.student_page(pages.Look(group), "ada", "", "", [])
    assert "double: wrong → passed" in page


def test_another_database_is_read_where_the_environment_names_one(tmp_path, monkeypatch):
    elsewhere = tmp_path / "elsewhere.db"
    with sqlite3.connect(elsewhere) as book:
        book.executescript(
            """CREATE TABLE student (id, first_name, last_name);
            INSERT INTO student VALUES ('ada', 'Ada', 'L'), ('zoe', NULL, NULL);
            CREATE TABLE assignment (id, name);
            CREATE TABLE submitted_assignment (id, assignment_id, student_id, timestamp);
            CREATE TABLE submitted_notebook (id, assignment_id, late_submission_penalty);
            CREATE TABLE grade (cell_id, notebook_id, auto_score, manual_score, extra_credit);
            CREATE TABLE base_cell (id, name);"""
        )
    monkeypatch.setenv("MLA_GRADEBOOK", f"sqlite:///{elsewhere}")
    _record(tmp_path, "ada", 3)
    assert snapshot.read(tmp_path).book.students == {"ada": "Ada L", "zoe": "zoe"}
    (tmp_path / MARK).write_text("ada/01_x\n")
    assert "zoe" not in snapshot.read(tmp_path).book.students, "the sample class has a gradebook of its own"


@pytest.mark.thorough
def test_an_answer_is_compared_with_the_helpers_that_it_uses_and_without_what_the_lesson_gives(tiny, tmp_path):
    room = Classroom(tiny, tmp_path, isolation="process")
    helped = {}
    for student, (value, helper) in {"ada": ("x", "twice"), "ben": ("number", "again")}.items():
        plain = notebook(double=f"def double({value}): return {helper}({value})  # {student}", quad=RIGHT["quad"])
        plain["cells"].insert(3, own_cell(f"def {helper}(a):\n    return a + a"))
        helped[student] = plain
    other = notebook(double="def double(x): return twice(x)", quad=RIGHT["quad"])
    other["cells"].insert(3, own_cell("def twice(a):\n    return 2 * a"))
    hand_in(room.folder, **helped, eve=other, zoe=notebook())
    room.grade()
    findings.sum_up(tiny, room.folder)
    shapes = snapshot.read_shapes(room.folder)
    found = {student: shape for student, (shape, _) in shapes.answers[NAME, "double"].items()}
    assert found["ada"] == found["ben"] != found["eve"]
    texts = [text for student, (_, text) in shapes.answers[NAME, "double"].items() if student in ("ada", "ben")]
    assert len(set(texts)) == 2
    quads = {shape for shape, _ in shapes.answers[NAME, "quad"].values()}
    assert shapes.own[NAME, "quad"] in quads
    assert shapes.own[NAME, "double"] == found["zoe"]
