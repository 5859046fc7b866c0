"""The commands in one process on the tiny course: what they print for programs, and their exit statuses."""

import functools
import json
import zipfile

import pytest
from typer.testing import CliRunner

from autograder.cli import app
from autograder.isolation.sandbox import default_isolation

from .tiny_course import NAME, RIGHT, WRONG, hand_in, notebook, without_script


@pytest.fixture
def run(tiny, monkeypatch):
    """A function that runs a command on the tiny course: exit status, output."""
    monkeypatch.setenv("MLA_COURSE", "")  # put back afterwards: --course sets it
    return functools.partial(_run, tiny)


def _run(course, *arguments):
    result = CliRunner().invoke(app, ["--course", *map(str, (course.root, *arguments))])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout


def test_build_writes_the_course_and_its_check_finds_what_differs(run, tmp_path):
    course = tmp_path / "course"
    assert run("build", "--to", course)[0] == 0
    status, text = run("build", "--to", course, "--check", "--json")
    assert (status, json.loads(text)) == (0, {"lessons": [NAME], "drift": []})
    built = course / NAME / f"{NAME}.ipynb"
    built.write_text(built.read_text().replace("Some words", "Any words"))
    status, text = run("build", "--to", course, "--check", "--json")
    assert status == 1
    assert NAME in json.loads(text)["drift"][0]


def test_release_writes_what_students_get(run, tmp_path):
    status, text = run("release", tmp_path / "class", "--json")
    assert status == 0
    assert f"course/{NAME}/{NAME}.ipynb" in json.loads(text)["files"]
    status, text = run("release", tmp_path / "class")
    assert (status, "none with a solution" in text) == (0, True)


def test_check_prints_verdicts_and_points(run, tmp_path):
    path = tmp_path / f"{NAME}.ipynb"
    path.write_text(json.dumps(notebook(**RIGHT)))
    status, text = run("check", path)
    assert status == 0
    assert "5 of 5 points" in text
    path.write_text(json.dumps(notebook(**WRONG)))
    status, text = run("check", path, "--json")
    assert status == 1
    assert {v["exercise"]: v["score"] for v in json.loads(text)[str(path)]} == {"double": 0, "quad": 2}


def test_check_without_solutions_says_where_a_wrong_answer_of_ones_own_was_used(tmp_path, monkeypatch):
    monkeypatch.setenv("MLA_COURSE", "")
    path, course = tmp_path / f"{NAME}.ipynb", without_script(tmp_path)
    said = "note: Your own double was used here. The grader uses its own: where yours is wrong, this may be right"
    for answers, told in ((WRONG, 1), (RIGHT, 0), ({**WRONG, "quad": "def quad(x): return 4 * x"}, 0)):
        path.write_text(json.dumps(notebook(**answers)))
        assert _run(course, "check", path)[1].count(said) == told, answers


def test_grade_feedback_and_export_tell_the_same_scores(run, tmp_path):
    room = tmp_path / "class"
    hand_in(room, ada=notebook(**RIGHT), ben=notebook(**WRONG))
    stray = room / "submitted" / "ada" / "[bold]poetry"
    stray.mkdir()
    status, text = run("grade", "--classroom", room, "--json")
    told = json.loads(text)
    assert {r["student"]: r["score"] for r in told["results"]} == {"ada": 5, "ben": 2}
    assert (status, len(told["left_alone"])) == (1, 1)
    status, text = run("grade", "--classroom", room)
    assert status == 1
    assert "no lesson's folder and was left alone: [bold]poetry" in " ".join(text.split())
    stray.rmdir()
    status, text = run("grade", "--classroom", room)
    assert status == 0
    assert "2 submissions, 0 graded now" in text
    assert "it is halved" not in text, "that was said when it was graded"
    assert "it is halved" in run("grade", "--classroom", room, "--all")[1]
    status, text = run("feedback", "--classroom", room, "--json")
    assert (status, len(json.loads(text)["pages"])) == (0, 2)
    assert run("export", "--classroom", room)[0] == 0
    rows = (room / "grades.csv").read_text().splitlines()
    assert any(row.startswith(f"ben,{NAME},2.0,5.0,,graded,{default_isolation()},") for row in rows)
    assert run("export", room / "canvas.csv", "--classroom", room, "--layout", "canvas")[0] == 0
    assert (room / "canvas.csv").read_text().splitlines()[1] == "Points Possible,,,,,5.0"
    status, text = run("export", "--classroom", room, "--layout", "wide", "--json")
    assert (status, json.loads(text)[0][0]) == (0, "student")
    assert run("export", "--classroom", room, "--layout", "wide", "--exercises")[0] == 2
    status, text = run("export", "--classroom", room, "--json", "--exercises")
    assert status == 0
    assert {(r["student"], r["exercise"]): r["score"] for r in json.loads(text)}["ben", "double"] == 0


def test_a_class_from_an_archive_to_its_grades(run, tmp_path):
    room, archive = ("--classroom", tmp_path / "class"), tmp_path / "moodle.zip"
    with zipfile.ZipFile(archive, "w") as members:
        members.writestr(f"Ada Li_1_assignsubmission_file_/{NAME}.ipynb", json.dumps(notebook(**RIGHT)))
        members.writestr("Ben_2_assignsubmission_file_/essay.pdf", b"")
    status, text = run("collect", archive, *room, "--dry-run", "--json")
    assert (status, json.loads(text)[0]["to"]) == (1, f"submitted/Ada_Li/{NAME}/{NAME}.ipynb")
    assert not (tmp_path / "class" / "submitted").exists()
    status, text = run("collect", archive, *room)
    assert status == 1
    assert "Ben_2/essay.pdf -> refused: nothing of it is a notebook" in text
    assert "1 notebooks went into" in text
    assert run("grade", *room, "--best")[0] == 0
    (tmp_path / "class" / "submitted" / "Ada_Li").rename(tmp_path / "class" / "submitted" / "ada")
    status, text = run("grade", *room)
    assert status == 0
    assert "Ada_Li: withdrawn since it was graded; 5 points stay in the gradebook; ada handed in the same" in text


def test_extensions_are_granted_listed_and_removed(run, tmp_path):
    room = ("--classroom", tmp_path)
    (tmp_path / "submitted" / "ada").mkdir(parents=True)
    assert run("extension", *room) == (0, "no extensions\n")
    status, text = run("extension", "ada", NAME, "2.5", *room)
    assert (status, text) == (0, f"{NAME} ada: 2.5 days more, no due date is set\n")
    status, text = run("extension", "adda", NAME, "1", *room, "--json")
    assert status == 1
    assert "see that the name is right" in json.loads(text)["remarks"][0]
    assert [each["student"] for each in json.loads(run("extension", *room, "--json")[1])["extensions"]] == [
        "ada",
        "adda",
    ]
    assert run("extension", "adda", NAME, "--remove", *room) == (0, "no extensions\n")
    assert run("extension", "adda", NAME, "--remove", *room)[0] == 1
    assert run("extension", "ada", NAME, *room)[0] == 2
