"""Where lessons are found, and what is said of a folder or a file that cannot be used."""

import json

import pytest

from autograder.course.course import Course, CourseError, UnknownExercise, find_course
from autograder.course.lesson import LessonError

from ..tiny_course import FOLDER, NAME, write


@pytest.fixture
def written(tmp_path):
    """A copy of the tiny course; the folder of its lesson."""
    course = write(tmp_path)
    return course, course.folder(NAME)


def refused(call, names):
    """Return the one sentence that a call is refused with; it names the file or folder."""
    with pytest.raises(LessonError) as caught:
        call()
    said = str(caught.value)
    assert str(names) in said and "\n" not in said
    return said


def test_a_course_is_its_folder(written):
    course, folder = written
    assert (course.name, course.helpers, course.lesson_names()) == ("tiny", (), [NAME])
    assert [each.name for each in course.exercises(NAME)] == ["double", "quad"]
    assert course.lesson(NAME).folder == folder
    assert course.locate("quad")[1] == course.lesson(NAME).exercise("quad")
    assert course.locate("double")[0] == NAME
    assert course.home == course.root


def test_a_folder_has_one_course():
    assert Course.at(FOLDER) is Course.at(str(FOLDER))


def test_the_settings_may_be_left_out(written):
    course, _ = written
    (course.solutions / "course.toml").unlink()
    assert (Course(course.root).name, Course(course.root).helpers) == (course.root.name, ())


def test_two_courses_share_no_modules(tmp_path):
    one, other = (write(tmp_path / name, changes={'title="twice"': f'title="{name}"'}) for name in ("one", "other"))
    assert [course.locate("double")[1].title for course in (one, other, one)] == ["one", "other", "one"]


def test_the_course_at_work_is_named_or_around_this_folder_or_came_along(written, tmp_path, monkeypatch):
    course, folder = written
    monkeypatch.delenv("MLA_COURSE", raising=False)
    monkeypatch.chdir(folder)
    assert find_course() is course
    monkeypatch.chdir(tmp_path)
    assert "00_start_here" in find_course().lesson_names()
    monkeypatch.setenv("MLA_COURSE", str(FOLDER))
    assert find_course() is Course.at(FOLDER)


def test_an_unknown_folder_is_no_course(tmp_path, monkeypatch):
    monkeypatch.setenv("MLA_COURSE", str(tmp_path / "nowhere"))
    assert "is no course" in refused(find_course, tmp_path / "nowhere" / "solutions")


def test_a_folder_without_lessons_is_no_course(tmp_path):
    (tmp_path / "solutions" / "drafts").mkdir(parents=True)
    (tmp_path / "solutions" / "drafts" / "exercises.py").touch()
    assert "expected lessons" in refused(lambda: Course(tmp_path), tmp_path / "solutions")


@pytest.mark.parametrize(
    "text",
    ["name = ", "name = 'tiny'\nname = 'other'", "helpers = 'mla_ref'", "helpers = 5", "helpers = [1]", "name = []", "plots = [1]"],
)
def test_settings_that_cannot_be_used_are_refused(written, text):
    course, _ = written
    (course.solutions / "course.toml").write_text(text)
    refused(lambda: Course(course.root), course.solutions / "course.toml")


def test_settings_that_are_no_text_are_refused(written):
    course, _ = written
    (course.solutions / "course.toml").write_bytes(b"\xff\xfe")
    refused(lambda: Course(course.root), course.solutions / "course.toml")


@pytest.mark.parametrize("text", ["", "EXERCISES = ()", "EXERCISES = (1,)", "EXERCISES = 'double'"])
def test_a_lesson_without_exercises_is_refused(written, text):
    course, folder = written
    (folder / "exercises.py").write_text(text)
    assert "EXERCISES" in refused(lambda: course.exercises(NAME), folder / "exercises.py")
    refused(lambda: course.lesson(NAME), folder / "exercises.py")


def test_an_exercise_that_needs_what_there_is_not_is_refused(tmp_path):
    course = write(tmp_path, changes={'needs=("double",)': 'needs=("twice",)'})
    said = refused(lambda: course.exercises(NAME), course.folder(NAME) / "exercises.py")
    assert "quad needs 'twice'" in said


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("import nowhere", "ModuleNotFoundError: No module named 'nowhere'"),
        ("from ..nowhere import x", "ModuleNotFoundError"),
        ("def f(:", "SyntaxError"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("raise ValueError('one\\ntwo')", "ValueError: one two"),
    ],
)
def test_exercises_that_cannot_be_imported_are_refused(written, text, says):
    course, folder = written
    (folder / "exercises.py").write_text(text)
    assert says in refused(lambda: course.exercises(NAME), folder / "exercises.py")


def test_exercises_that_are_missing_are_refused(written):
    course, folder = written
    (folder / "exercises.py").unlink()
    assert "is missing" in refused(lambda: course.exercises(NAME), folder / "exercises.py")


def test_a_lesson_without_its_script_is_refused_and_its_exercises_are_there(written):
    course, folder = written
    (folder / "lesson.py").unlink()
    assert "is missing" in refused(lambda: course.lesson(NAME), folder / "lesson.py")
    assert course.exercises(NAME) and not course.has(NAME, "lesson")


def test_a_script_that_was_changed_is_read_again(written):
    course, folder = written
    assert course.lesson(NAME) is course.lesson(NAME)
    script = folder / "lesson.py"
    script.write_text(script.read_text().replace("Some words", "Any words"))
    assert "Any words" in json.dumps(course.lesson(NAME).notebook)


def test_an_unknown_lesson_is_answered_with_those_there_are(written):
    course, _ = written
    for call in (course.folder, course.lesson, course.exercises):
        refused(lambda call=call: call("99_none"), f"no lesson '99_none'; the lessons are {NAME}")


def test_an_unknown_exercise_is_answered_with_those_there_are(written):
    course, _ = written
    with pytest.raises(UnknownExercise, match="no exercise 'triple'.*double, quad"):
        course.locate("triple")


def test_a_course_error_is_a_lesson_error():
    assert issubclass(CourseError, LessonError), "which commands turn into a sentence"
