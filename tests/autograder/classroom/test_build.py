"""`mla-course build`: course/ is what solutions/ says, and the check notices when it is not."""

import json
import shutil

import pytest

from autograder.classroom.build import build, find_drift, release
from autograder.course.course import Course

from ..tiny_course import FOLDER, LESSON, NAME, write


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    folder = tmp_path_factory.mktemp("built") / "course"
    build(Course.at(FOLDER), folder)
    return folder


@pytest.fixture
def notebooks(built, tmp_path):
    return shutil.copytree(built, tmp_path / "notebooks")


def test_students_get_no_solution(notebooks):
    cells = {
        cell["id"]: "".join(cell["source"])
        for cell in json.loads((notebooks / NAME / f"{NAME}.ipynb").read_text())["cells"]
    }
    for exercise, source in LESSON.solutions.items():
        hidden = source.split("### BEGIN SOLUTION")[1].split("### END SOLUTION")[0].strip()
        assert hidden not in cells[exercise]
        assert "NotImplementedError" in cells[exercise]
        assert "SOLUTION" not in cells[exercise]


def test_no_drift_right_after_a_build(notebooks, tiny):
    assert find_drift(tiny, notebooks) == []


@pytest.mark.parametrize("damage", ["edited", "missing", "extra"])
def test_drift_is_found_and_named(notebooks, tiny, damage):
    notebook = notebooks / NAME / f"{NAME}.ipynb"
    if damage == "edited":
        notebook.write_text(notebook.read_text().replace("Some words", "Any words", 1))
    elif damage == "missing":
        notebook.unlink()
    else:
        shutil.copy(notebook, notebooks / "stray.ipynb")
    (found,) = find_drift(tiny, notebooks)
    assert ("stray" if damage == "extra" else NAME) in found


def test_a_check_leaves_nothing_behind(notebooks, tiny, tmp_path):
    before = sorted(tmp_path.rglob("*"))
    find_drift(tiny, notebooks)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_changed_word_is_a_changed_line(built, tmp_path):
    changed = write(tmp_path, "lesson", {"Some words": "Any words"})
    (tmp_path / "scratch").mkdir()
    fresh = release(changed, NAME, tmp_path / "scratch").read_text().splitlines()
    old = (built / NAME / f"{NAME}.ipynb").read_text().splitlines()
    assert len(fresh) == len(old)
    assert sum(a != b for a, b in zip(fresh, old, strict=True)) == 1
