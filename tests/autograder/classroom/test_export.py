"""What `export` writes: what happened to a submission, a layout that a platform takes, nothing a spreadsheet runs."""

import csv
import re

import pytest
from typer.testing import CliRunner

from autograder.classroom.export import export, remarks, rows, table, unentered, unknown, unnumbered
from autograder.classroom.grade import Classroom
from autograder.cli import app
from autograder.judging.judge import zero
from autograder.judging.verdict import Outcome, Verdict

from ..tiny_course import DOUBLE, LESSON, NAME, QUAD, RIGHT, WRONG, hand_in, notebook, write

pytestmark = pytest.mark.xdist_group("exported class")  # which is graded once


@pytest.fixture(scope="module")
def room(tiny, tmp_path_factory):
    """A graded class with everything that can happen to a submission."""
    folder = tmp_path_factory.mktemp("class")
    none = notebook()
    none["cells"] = [cell for cell in none["cells"] if cell["cell_type"] == "markdown"]
    untouched = {name: LESSON.starter(name) for name in RIGHT}
    hand_in(folder, ada=notebook(**RIGHT), ben=notebook(**WRONG), cid=b"{", eve=notebook(**untouched), fay=none)
    (folder / "submitted" / "dan" / NAME).mkdir(parents=True)
    room = Classroom(tiny, folder)
    room.grade()
    with room.records.gradebook() as gradebook:
        gradebook.update_or_create_student("ada", first_name="=Ada", last_name="Love", email="a@b.c", lms_user_id="17")
        gradebook.add_student("gil", first_name="Gil")
        gradebook.find_grade("check-quad", NAME, NAME, "ada").extra_credit = 2
        gradebook.db.commit()
    return room


def read(path):
    with open(path, newline="") as file:
        return list(csv.reader(file))


def test_a_lesson_says_what_happened_to_it(room):
    found = {row["student"]: row for row in rows(room)}
    outcomes = {student: row["outcome"] for student, row in found.items()}
    assert outcomes == {
        "ada": "passed",
        "ben": "1 wrong, 1 passed",
        "cid": "unreadable",
        "dan": "absent",
        "eve": "untouched",
        "fay": "missing",
        "gil": "absent",
    }
    assert found["gil"]["status"] == "not handed in" != found["dan"]["status"]
    assert found["ben"]["reason"].startswith("double: ") and "it is halved" in found["ben"]["reason"]
    assert found["ben"]["mistake"]
    assert "not a notebook that can be read" in found["cid"]["reason"]
    assert found["cid"]["reason"].count("can be read") == 1, "one reason for all exercises is said once"


def test_an_exercise_has_its_outcome_reason_and_mistake(room):
    found = {(row["student"], row["exercise"]): row for row in rows(room, per_exercise=True)}
    wrong = found["ben", "double"]
    assert (wrong["outcome"], wrong["score"]) == ("wrong", 0)
    assert "it is halved" in wrong["reason"] and wrong["mistake"]
    assert found["eve", "quad"]["outcome"] == "unfinished"


def test_a_score_above_the_maximum_is_marked(room):
    (ada,) = (row for row in rows(room) if row["student"] == "ada")
    assert ada["score"] == 7 > ada["max_score"] == 5
    assert ada["status"] == "graded, above the maximum"
    assert remarks(rows(room)) == [f"ada in {NAME}: above the maximum"]


def test_what_is_open_is_left_blank_and_said(room):
    row = {"student": "ada", "lesson": NAME, "score": None, "max_score": 5}
    assert remarks([row]) == [f"ada in {NAME}: still open, so left blank"]


def test_wide_has_a_row_a_student_with_names_and_remarks(room, tmp_path):
    assert export(room, tmp_path / "grades.csv", layout="wide") == 7
    head, *lines = read(tmp_path / "grades.csv")
    assert head == ["student", "last_name", "first_name", "email", NAME, "total", "max_total", "remarks"]
    assert lines[0] == ["ada", "Love", "'=Ada", "a@b.c", "7.0", "7.0", "5.0", f"{NAME}: graded, above the maximum"]
    assert lines[-1] == ["gil", "", "Gil", "", "0.0", "0.0", "5.0", f"{NAME}: not handed in"]


def test_canvas_gets_its_columns_and_points_possible(room, tmp_path):
    assert export(room, tmp_path / "grades.csv", layout="canvas") == 7
    head, points, ada, ben, *_ = read(tmp_path / "grades.csv")
    assert head == ["Student", "ID", "SIS User ID", "SIS Login ID", "Section", NAME]
    assert points == ["Points Possible", "", "", "", "", "5.0"]
    assert ada == ["Love, =Ada", "17", "", "ada", "", "7.0"]
    assert ben == ["ben", "", "", "ben", "", "2.0"]


def test_who_a_platform_may_not_find_is_said(room):
    (line,) = unnumbered(room)
    assert line.startswith("6 of the students have no number of the platform's, ben the first")


def test_moodle_gets_its_columns(room, tmp_path):
    assert export(room, tmp_path / "grades.csv", layout="moodle") == 7
    head, ada, *_ = read(tmp_path / "grades.csv")
    assert head == ["First name", "Last name", "Username", "ID number", "Email address", NAME]
    assert ada == ["'=Ada", "Love", "ada", "17", "a@b.c", "7.0"]


HOSTILE = ["=1+1", "+1", "-1", "@SUM(1)", "\t=1", "\r=1", "\n=1", " =1", "＝1", "＋1", "a;=1", "a; -1", 'a;"=1']
HOSTILE += ["a\n=1", "a\r\n -1", "a\r@SUM(1)"]


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize("layout", ["rows", "wide", "canvas", "moodle"])
def test_no_cell_begins_as_a_formula_in_any_layout(room, text, layout, tmp_path, monkeypatch):
    from autograder.classroom import export as module

    person = dict.fromkeys(("first_name", "last_name", "email", "lms_user_id"), text)
    row = {"student": text, "lesson": text, "score": 1.0, "max_score": 5.0, "late": None, "status": text}
    row |= dict.fromkeys(("isolation", "outcome", "reason", "mistake"), text)
    monkeypatch.setattr(module, "rows", lambda *_: [row])
    monkeypatch.setattr(module, "_people", lambda _: {text: person})
    export(room, tmp_path / "grades.csv", layout=layout)
    cells = [cell for line in read(tmp_path / "grades.csv") for cell in line]
    assert sum(text.strip() in cell or re.sub(r";|\r?\n|\r", r"\g<0>'", text) in cell for cell in cells) >= 4
    for cell in cells:
        for piece in re.split("[;\r\n]", cell):  # also behind the separator where the comma is for decimals
            assert not piece.lstrip(" ").startswith(("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")), (
                cell
            )


def test_what_only_the_owner_may_read_is_said_to_be_left_blank(room, monkeypatch):
    assert unentered(room, rows(room)) == []
    monkeypatch.setattr("os.access", lambda path, mode: path.stem != "ben")
    assert unentered(room, rows(room)) == [
        f"{NAME} ben: you may not read what the judge said, so outcome and reason are blank"
    ]


def test_a_lesson_that_was_renamed_takes_no_marks_along_without_a_word(tiny_room, tmp_path, monkeypatch):
    hand_in(tiny_room.folder, ada=notebook(**RIGHT), ben=notebook(**WRONG))
    tiny_room.grade()
    assert unknown(tiny_room) == []
    course = write(tmp_path / "course")
    for folder in (course.root / "solutions", course.root / "course"):
        if (folder / NAME).is_dir():
            (folder / NAME).rename(folder / "91_twice")
    monkeypatch.setenv("MLA_COURSE", str(course.root))
    said = f"{NAME}: the gradebook holds 2 submissions of it, and the course has no such lesson any more"
    for command in ("export", "grade"):
        output = CliRunner().invoke(app, [command, "--classroom", str(tiny_room.folder)]).output
        assert said in " ".join(output.split())
    output = CliRunner().invoke(app, ["feedback", "--classroom", str(tiny_room.folder)]).output
    assert f"no feedback for ada in {NAME}: the course has no such lesson any more" in output


def test_exercises_have_no_place_in_a_column_a_lesson(room, tmp_path):
    with pytest.raises(ValueError, match="leave out --exercises"):
        export(room, tmp_path / "grades.csv", per_exercise=True, layout="canvas")
    with pytest.raises(ValueError, match="no layout 'excel'"):
        table(room, "excel")
    assert not (tmp_path / "grades.csv").exists()


def test_a_notebook_of_another_lesson_and_what_needs_a_person_have_outcomes_of_their_own():
    from autograder.classroom.export import _judged

    told = "the notebook of 91_other was handed in as 90_tiny"
    found = _judged([zero(each, Outcome.OTHER, told) for each in (DOUBLE, QUAD)])
    assert (found["outcome"], found["reason"]) == ("other lesson", told)
    assert _judged([])["outcome"] == "", "graded by nbgrader's own button, say"


def test_many_reasons_are_one_cell_of_bounded_length():
    from autograder.classroom.export import _judged

    passed = Verdict(DOUBLE.name, DOUBLE.points, DOUBLE.points, Outcome.PASSED)
    lost = zero(QUAD, Outcome.ERROR, "x" * 5000)
    assert len(_judged([passed, lost])["reason"]) == 1000
