"""`mla-course build`: course/ is what solutions/ says, and the check notices when it is not."""

import json
import shutil

import pytest

from autograder.build import build, find_drift, release
from autograder.lesson import LessonError, load_lesson, solutions_folder

NAME = "01_mha"


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    course = tmp_path_factory.mktemp("built") / "course"
    build([NAME], course)
    return course


@pytest.fixture
def course(built, tmp_path):
    return shutil.copytree(built, tmp_path / "course")


@pytest.fixture
def scripts(tmp_path):
    folder = tmp_path / "solutions"
    folder.mkdir()
    shutil.copy(solutions_folder() / f"{NAME}.py", folder)
    return folder


def test_students_get_no_solution(course):
    cells = {
        cell["id"]: "".join(cell["source"])
        for cell in json.loads((course / NAME / f"{NAME}.ipynb").read_text())["cells"]
    }
    for exercise, source in load_lesson(NAME).solutions.items():
        hidden = source.split("### BEGIN SOLUTION")[1].split("### END SOLUTION")[0].strip()
        assert hidden not in cells[exercise]
        assert "NotImplementedError" in cells[exercise]
        assert "SOLUTION" not in cells[exercise]


def test_no_drift_right_after_a_build(course, scripts):
    assert find_drift(course, scripts) == []


@pytest.mark.parametrize("damage", ["edited", "missing", "extra"])
def test_drift_is_found_and_named(course, scripts, damage):
    notebook = course / NAME / f"{NAME}.ipynb"
    if damage == "edited":
        notebook.write_text(notebook.read_text().replace("cache", "cash", 1))
    elif damage == "missing":
        notebook.unlink()
    else:
        shutil.copy(notebook, course / "stray.ipynb")
    (found,) = find_drift(course, scripts)
    assert ("stray" if damage == "extra" else NAME) in found


def test_no_lesson_at_all_is_an_error_and_not_a_success(course, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(LessonError, match="no lesson"):
        find_drift(course, tmp_path / "empty")


def test_a_check_leaves_nothing_behind(course, scripts, tmp_path):
    before = sorted(tmp_path.rglob("*"))
    find_drift(course, scripts)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_changed_word_is_a_changed_line(built, scripts, tmp_path):
    script = scripts / f"{NAME}.py"
    text = script.read_text()
    place = text.index("# %% [markdown]", text.index("# %% [markdown]") + 1)
    word = text.index(" the ", place)
    script.write_text(text[:word] + " that " + text[word + 5 :])
    (tmp_path / "scratch").mkdir()
    fresh = release(NAME, tmp_path / "scratch", scripts).read_text().splitlines()
    old = (built / NAME / f"{NAME}.ipynb").read_text().splitlines()
    assert len(fresh) == len(old)
    assert sum(a != b for a, b in zip(fresh, old, strict=True)) == 1


def test_two_cells_never_share_an_id():
    ids = [cell["id"] for cell in load_lesson(NAME).notebook.cells]
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize(
    ("header", "complaint"),
    [
        ('# %% solution="attention" check="attention"', "one role"),
        ('# %% solutoin="attention"', "one role"),
    ],
)
def test_a_wrong_header_is_refused(scripts, header, complaint):
    script = scripts / f"{NAME}.py"
    script.write_text(script.read_text().replace('# %% solution="attention"', header))
    with pytest.raises(LessonError, match=complaint):
        load_lesson(NAME, scripts)


def test_a_solution_without_its_check_is_refused(scripts):
    script = scripts / f"{NAME}.py"
    script.write_text(script.read_text().replace('# %% check="attention"\ncheck("attention")\n', ""))
    with pytest.raises(LessonError, match="graded cells"):
        load_lesson(NAME, scripts)


def test_an_unknown_lesson_is_answered_with_those_there_are():
    with pytest.raises(LessonError, match="01_mha"):
        load_lesson("99_none")
