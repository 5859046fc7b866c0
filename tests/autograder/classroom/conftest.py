import os
import shutil
import subprocess
import unicodedata

import pytest

from autograder.classroom import grader
from autograder.classroom.grade import Classroom
from autograder.classroom.grader import Job
from autograder.classroom.record import Entry, Records
from autograder.classroom.restore import StudentCell, restore
from autograder.course.course import Course, find_course
from autograder.judging import judge
from autograder.judging.verdict import Outcome, Verdict

from .. import tiny_course

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


@pytest.fixture(scope="session")
def judged_class(tmp_path_factory):
    """A class of the tiny course whose judge knows the right and the wrong notebook; nobody is in it any more."""
    room = Classroom(Course.at(tiny_course.FOLDER), tmp_path_factory.mktemp("judged") / "class")
    right, wrong = (tiny_course.notebook(**each) for each in (tiny_course.RIGHT, tiny_course.WRONG))
    tiny_course.hand_in(room.folder, ada=right, ben=wrong)
    room.grade()
    for name in ("submitted", "graded", "autograded", "history"):
        shutil.rmtree(room.folder / name)
    (room.folder / "gradebook.db").unlink()
    with room.records.gradebook():
        return room.folder


@pytest.fixture
def tiny_room(judged_class, tmp_path, monkeypatch):
    """An empty class of the tiny course, in which the right and the wrong notebook are graded without a worker."""
    monkeypatch.chdir(tmp_path)
    yield Classroom(Course.at(tiny_course.FOLDER), shutil.copytree(judged_class, tmp_path / "class"))
    grader.shared.cache_clear()


@pytest.fixture
def folding(tiny_room, monkeypatch):
    """Have `submitted/` be as on a Mac: upper case is lower there, and accents are listed decomposed."""
    listed, top = os.listdir, tiny_room.submitted
    top.mkdir()

    def apart(name):
        return unicodedata.normalize("NFD", name)

    def there(path):
        if not isinstance(path, str | os.PathLike) or not os.fspath(path).startswith(f"{top}/"):
            return path
        here = str(top)
        for part in os.path.relpath(path, top).split("/"):
            names = listed(here) if os.path.isdir(here) else []
            same = (name for name in names if apart(name).casefold() == apart(part).casefold())
            here = f"{here}/{next(same, apart(part))}"
        return here

    def folded(call):
        return lambda *args, **keys: call(*map(there, args), **keys)

    for name in ("lstat", "mkdir", "open", "replace", "scandir", "stat", "unlink"):
        monkeypatch.setattr(os, name, folded(getattr(os, name)))
    monkeypatch.setattr(os, "listdir", lambda path: listed(there(path)))


@pytest.fixture
def deepen():
    """Put 1200 folders into one another in a folder. They are removed in the end, which pytest cannot."""
    tops = []

    def deepen(folder):
        tops.append(folder / "a")
        here = os.open(folder, os.O_RDONLY)
        for _ in range(1200):
            os.mkdir("a", dir_fd=here)
            here, above = os.open("a", os.O_RDONLY, dir_fd=here), here
            os.close(above)
        os.close(here)

    yield deepen
    subprocess.run(["rm", "-rf", *tops], check=True)


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
