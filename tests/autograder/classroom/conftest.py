import shutil

import pytest

from autograder.classroom.grader import Job
from autograder.classroom.record import Entry, Records
from autograder.classroom.restore import StudentCell, restore
from autograder.course.course import find_course
from autograder.judging import judge
from autograder.judging.verdict import Outcome, Verdict

LESSON = "00_start_here"


@pytest.fixture(scope="session")
def empty_class(tmp_path_factory):
    """A class with an empty gradebook: nbgrader takes seconds to make one."""
    folder = tmp_path_factory.mktemp("empty") / "class"
    with Records(find_course(), folder).gradebook():
        return folder


@pytest.fixture
def records(empty_class, tmp_path, monkeypatch):
    """The records of an empty class; an nbgrader_config.py in this folder is the instructor's own."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(empty_class, tmp_path / "class")
    return Records(find_course(), tmp_path / "class")


@pytest.fixture
def entry():
    """Make a submission with these cells of the student's own and a verdict an exercise: full marks, half, none, ..."""

    def make(student, *own, timestamp=None, code=""):
        lesson = find_course().lesson(LESSON)
        cells = [StudentCell(name, name, "code", source) for name, source in lesson.solutions.items()]
        cells += [StudentCell(f"text-{n}", "", "markdown", source) for n, source in enumerate(own)]
        notebook = restore(lesson, [*cells, *([StudentCell("code", "", "code", code)] if code else [])], {"others": []})
        verdicts = [_verdict(n, exercise) for n, exercise in enumerate(lesson.exercises)]
        jobs = [Job(e, (), "", verdict) for e, verdict in zip(lesson.exercises, verdicts, strict=True)]
        return Entry(student, lesson, notebook, jobs, timestamp, ("", ""))

    return make


def _verdict(n, exercise):
    if n % 3 == 2:
        return judge.zero(exercise, Outcome.WRONG, "these are <elements>, expected bytes")
    score = exercise.points / (1, 2)[n % 3]
    return Verdict(exercise.name, exercise.points, score, (Outcome.PASSED, Outcome.PARTIAL)[n % 3], "")
