"""The demo keeps to itself: no gradebook and no classroom of anybody else's is touched."""

import shutil

import pytest

from autograder.classroom.demo import run
from autograder.classroom.grade import Classroom
from autograder.classroom.record import Records
from autograder.course.course import Course, CourseError

from ..tiny_course import NAME, write

SAMPLE = """
from autograder.course.sample import Expected, Submission, unfinished
from autograder.judging.verdict import Outcome

SUBMISSIONS = (
    Submission("ada", "the solution as it stands"),
    Submission("ben", "half", (unfinished("quad"),), {"quad": Expected(0, Outcome.UNFINISHED)}),
)
DEMO = ("ada",)
"""


@pytest.fixture
def course(tmp_path):
    found = write(tmp_path)
    (found.folder(NAME) / "sample_class.py").write_text(SAMPLE)
    return found


def demo(course, folder, everything=True):
    return run(course, folder, 1, lambda *_: None, everything)


def students(course, folder):
    with Records(course, folder).gradebook() as gradebook:
        return {student.id for student in gradebook.students}


def test_it_has_a_gradebook_of_its_own(course, tmp_path, monkeypatch, capsys):
    from rich.console import Console

    elsewhere = tmp_path / "everybody.db"
    monkeypatch.setenv("MLA_GRADEBOOK", f"sqlite:///{elsewhere}")
    with Records(course, tmp_path / "own").gradebook() as gradebook:
        gradebook.add_student("zoe")
    result = demo(course, tmp_path / "demo")
    assert result.as_expected, result.surprises
    assert students(course, tmp_path / "own") == {"zoe"}
    assert (tmp_path / "demo" / "gradebook.db").is_file()
    assert students(course, tmp_path / "demo") == {"ada", "ben"}
    result.show(Console(width=200))
    said = " ".join(capsys.readouterr().out.split())
    assert "MLA_GRADEBOOK was left alone" in said
    assert f"an SQLite file of its own, {tmp_path / 'demo' / 'gradebook.db'}" in said
    assert f"mla-course dashboard --classroom {tmp_path / 'demo'}" in said


def test_it_grades_the_lessons_that_the_course_names(course, tmp_path):
    shutil.copytree(course.folder(NAME), course.solutions / "98_more")
    settings = course.solutions / "course.toml"
    settings.write_text(f'demo = ["{NAME}"]\n')
    found = demo(Course(course.root), tmp_path / "demo", everything=False)
    assert {each.lesson for each in found.results} == {NAME}
    settings.write_text('demo = ["99_none"]\n')
    with pytest.raises(CourseError, match="'99_none' under demo"):
        demo(Course(course.root), tmp_path / "demo", everything=False)


@pytest.mark.thorough
def test_what_is_graded_later_in_its_folder_stays_there(course, tmp_path, monkeypatch):
    demo(course, tmp_path / "demo")
    monkeypatch.setenv("MLA_GRADEBOOK", f"sqlite:///{tmp_path / 'everybody.db'}")
    Classroom(course, tmp_path / "demo").grade()
    assert not (tmp_path / "everybody.db").exists()


def _submission(course, folder):
    (folder / "submitted" / "zoe" / NAME).mkdir(parents=True)


def _enrolled(course, folder):
    with Records(course, folder).gradebook() as gradebook:
        gradebook.add_student("zoe")


@pytest.mark.thorough
@pytest.mark.parametrize("after_a_demo", [False, True])
@pytest.mark.parametrize("there", [_submission, _enrolled])
def test_a_classroom_with_another_student_is_left_as_it_is(course, tmp_path, there, after_a_demo):
    folder = tmp_path / "class"
    if after_a_demo:
        demo(course, folder)
    folder.mkdir(exist_ok=True)
    there(course, folder)
    before = {path: path.is_file() and path.read_bytes() for path in folder.rglob("*")}
    with pytest.raises(FileExistsError, match="the demo leaves it alone"):
        demo(course, folder, everything=False)
    assert {path: path.is_file() and path.read_bytes() for path in folder.rglob("*")} == before


def test_another_choice_of_the_sample_class_takes_the_place_of_the_last(course, tmp_path):
    assert len(demo(course, tmp_path / "demo").results) == 2
    assert len(demo(course, tmp_path / "demo", everything=False).results) == 1
    assert students(course, tmp_path / "demo") == {"ada"}
