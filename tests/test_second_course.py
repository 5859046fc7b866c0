"""Another course, a plain folder that has nothing to do with attention, is served by the same commands."""

import json
import os
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from autograder.classroom.demo import compare
from autograder.cli import app
from autograder.course.course import VARIABLE, Course
from autograder.course.sample import hand_in, submissions

pytestmark = pytest.mark.xdist_group("second course")
LESSON = "01_vectors"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A copy of the course, as somebody would keep it."""
    folder = tmp_path_factory.mktemp("courses") / "vectors"
    shutil.copytree(Path(__file__).parent / "second_course", folder)
    return folder


@pytest.fixture
def run(folder):
    """Return a function that runs `mla-course --course FOLDER ...` and returns its exit status and output."""

    def command(*arguments):
        before = os.environ.get(VARIABLE)
        result = CliRunner().invoke(app, ["--course", str(folder), *map(str, arguments)], catch_exceptions=False)
        assert os.environ.get(VARIABLE) == before, "a command leaves no course behind"
        return result.exit_code, result.stdout

    return command


def test_its_notebooks_are_built_and_drift_is_found(folder, run):
    assert run("build") == (0, "1 lessons are up to date\n")
    assert (folder / "course" / LESSON / f"{LESSON}.ipynb").is_file()
    assert run("build", "--check")[0] == 0
    (folder / "course" / LESSON / f"{LESSON}.ipynb").unlink()
    status, output = run("build", "--check")
    assert status == 1 and "is missing" in " ".join(output.split())  # which is wrapped somewhere


def test_its_class_is_checked_graded_and_exported(folder, run):
    pytest.importorskip("triton")
    course = Course.at(folder)
    hand_in(course, folder / "classroom" / "submitted")
    status, output = run("grade", "--json")
    assert status == 0
    results = json.loads(output)["results"]
    graded = [_graded(each) for each in results]
    assert compare(course, LESSON, submissions(course, LESSON), graded) == []
    status, output = run("export", "--json")
    assert status == 0
    assert {row["student"]: row["score"] for row in json.loads(output)} == {"ada": 9, "ben": 7, "cleo": 8, "dan": 5}
    status, output = run("check", folder / "classroom" / "submitted" / "ben" / LESSON / f"{LESSON}.ipynb")
    assert status == 1 and "mean of each column" in output.replace("\n", " ")


def _graded(row):
    from autograder.classroom.record import Graded
    from autograder.judging.verdict import Verdict

    return Graded(row["student"], row["lesson"], [Verdict.from_json(verdict) for verdict in row["verdicts"]])
