"""The commands in one process on the tiny course: what they print for programs, and their exit statuses."""

import json

import pytest
from tiny_course import NAME, notebook
from typer.testing import CliRunner

from autograder import grading
from autograder.cli import app

pytestmark = pytest.mark.usefixtures("tiny")
RIGHT = {"double": "def double(x): return 2 * x", "quad": "def quad(x): return double(double(x))"}


def run(*arguments):
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout


def hand_in(folder, student, plain):
    path = folder / "submitted" / student / NAME / f"{NAME}.ipynb"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(plain))


def test_build_writes_the_course_and_its_check_finds_what_differs(tmp_path):
    course = tmp_path / "course"
    assert run("build", "--course", course)[0] == 0
    status, text = run("build", "--course", course, "--check", "--json")
    assert (status, json.loads(text)) == (0, {"lessons": [NAME], "drift": []})
    built = course / NAME / f"{NAME}.ipynb"
    built.write_text(built.read_text().replace("Some words", "Any words"))
    status, text = run("build", "--course", course, "--check", "--json")
    assert status == 1
    assert NAME in json.loads(text)["drift"][0]


def test_check_prints_verdicts_and_points(tmp_path):
    path = tmp_path / f"{NAME}.ipynb"
    path.write_text(json.dumps(notebook(**RIGHT)))
    status, text = run("check", path)
    assert status == 0
    assert "5 of 5 points" in text
    path.write_text(json.dumps(notebook(double="def double(x): return x / 2", quad=RIGHT["quad"])))
    status, text = run("check", path, "--json")
    assert status == 1
    assert {v["exercise"]: v["score"] for v in json.loads(text)[str(path)]} == {"double": 0, "quad": 2}


def test_grade_feedback_and_export_tell_the_same_scores(tmp_path):
    grading.shared.cache_clear()
    room = tmp_path / "class"
    hand_in(room, "ada", notebook(**RIGHT))
    hand_in(room, "ben", notebook(double="def double(x): return x / 2", quad=RIGHT["quad"]))
    stray = room / "submitted" / "ada" / "[bold]poetry"
    stray.mkdir()
    status, text = run("grade", "--classroom", room, "--json")
    told = json.loads(text)
    assert {r["student"]: r["score"] for r in told["results"]} == {"ada": 5, "ben": 2}
    assert (status, len(told["left_alone"])) == (1, 1)
    status, text = run("grade", "--classroom", room)
    assert status == 1
    assert "[bold]poetry is not a lesson" in " ".join(text.split())
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
    assert f"ben,{NAME},2.0,5.0,,graded" in rows
    status, text = run("export", "--classroom", room, "--json", "--exercises")
    assert status == 0
    assert {(r["student"], r["exercise"]): r["score"] for r in json.loads(text)}["ben", "double"] == 0
