"""What decides a verdict counts, wherever it stands; nothing else does."""

import shutil
import sys
from pathlib import Path

import pytest

import mla_ref
from autograder.classroom.grader import Grader
from autograder.classroom.scale import REPLAY_RULES, RULES, SPEED_RULES
from autograder.classroom.restore import clean_cells, restore
from autograder.course.course import Course
from autograder.course.digest import OWN, digest, imported, transitive

from ..tiny_course import FOLDER, NAME, RIGHT, notebook

REPOSITORY = Path(__file__).parents[3]
REFERENCE = Path(mla_ref.__file__).parent
OTHER = "91_other"


@pytest.fixture
def keys(tmp_path):
    """A function that writes two tiny lessons with a module that they share, and returns the keys of their verdicts."""

    def keys(name, shared="FACTOR = 2\n", stray="X = 1\n"):
        root = tmp_path / name
        shutil.copytree(FOLDER, root, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copytree(root / "solutions" / NAME, root / "solutions" / OTHER)
        (root / "solutions" / "shared.py").write_text(shared)
        (root / "solutions" / "stray.py").write_text(stray)
        for lesson in (NAME, OTHER):
            file = root / "solutions" / lesson / "exercises.py"
            text = file.read_text().replace("lambda x: 2 * x", "lambda x: FACTOR * x")
            file.write_text(text.replace("\n\n\ndef _inputs", "\nfrom ..shared import FACTOR\n\n\ndef _inputs"))
        course, found = Course.at(root), {}
        with Grader(course, tmp_path / "class") as grader:
            for lesson in map(course.lesson, course.lesson_names()):
                assert lesson.exercise("double").oracle(3) == 6 if "2" in shared else True
                plain = restore(lesson, list(clean_cells(notebook(**RIGHT)["cells"])))
                found |= {(lesson.name, job.name): job.key for job in grader.jobs(lesson, plain)}
        assert len(found) == 4 and all(found.values())
        return found

    return keys


def test_a_module_that_two_lessons_share_counts_for_both(keys):
    before, after = keys("before"), keys("after", shared="FACTOR = 3\n")
    assert [name for name in before if before[name] == after[name]] == []


def test_a_module_that_nothing_imports_does_not_count(keys):
    assert keys("before") == keys("after", stray="X = 2\n")


def test_a_comment_does_not_count(keys):
    assert keys("before") == keys("after", shared="# twice\n\nFACTOR = (2)  # as the lesson says\n")


def test_names_that_load_lazily_lead_to_their_modules():
    assert REFERENCE / "attention.py" in imported("from mla_ref import sdpa", OWN)
    assert REFERENCE / "kernels" / "__init__.py" in imported("from mla_ref import kernels", OWN)
    assert REFERENCE / "hardware" / "cost.py" in imported("from mla_ref import Cost", OWN)
    assert REFERENCE / "attention.py" not in imported("from mla_ref import Cost", OWN)


@pytest.mark.parametrize(
    "source",
    [
        "import mla_ref.attention",
        "from mla_ref.attention import sdpa",
        "from mla_ref import attention as a",
        "def f():\n    from mla_ref import sdpa",
        "import torch, mla_ref.attention",
    ],
)
def test_an_import_is_found_however_it_is_written(source):
    assert REFERENCE / "attention.py" in imported(source, OWN)


@pytest.mark.parametrize("source", ["import torch", "def f(:", "x = 1\0", "from nowhere import x", "from . import x"])
def test_what_imports_nothing_of_ours_leads_nowhere(source):
    assert imported(source, OWN) == ()


@pytest.mark.parametrize(
    "source",
    [
        "import mla_ref." + "a" * 300,
        "from mla_ref" + ".a" * 90 + " import " + ",".join("xyz"),
        "import " + ",".join(["mla_ref.attention.a"] * 1000),
        "from mla_ref import " + ",".join(f"a{n}" for n in range(1000)),
    ],
    ids=["long", "deep", "many", "many of one"],
)
def test_names_from_outside_are_looked_up_in_a_list_and_not_in_the_file_system(source, monkeypatch):
    imported("import mla_ref", OWN)  # lists the package's modules
    looks, named = 0, sys.getprofile()

    def count(frame, event, what):
        nonlocal looks
        looks += event == "c_call" and what.__name__ in ("stat", "lstat", "open", "scandir", "listdir")

    sys.setprofile(count)
    try:
        found = imported(source, OWN)
    finally:
        sys.setprofile(named)
    assert REFERENCE / "__init__.py" in found
    assert looks < 50


def test_modules_that_import_each_other_are_followed_once(tmp_path):
    (tmp_path / "a.py").write_text("from . import b")
    (tmp_path / "b.py").write_text("from .a import x")
    assert transitive([tmp_path / "a.py"]) == {tmp_path / "a.py", tmp_path / "b.py"}


def test_a_file_that_changes_while_the_process_lives_is_read_again(tmp_path):
    file = tmp_path / "a.py"
    file.write_text("X = 1")
    before = digest([file])
    file.write_text("X = 22")
    assert digest([file]) != before


@pytest.mark.parametrize("name", Course.at(REPOSITORY).lesson_names())
def test_pictures_decide_no_verdict(name):
    course = Course.at(REPOSITORY)
    lesson = course.lesson(name)
    with Grader(course, None) as grader:
        for exercise in lesson.exercises:
            program = grader.reference_job(lesson, exercise.name).program
            used = [path for cell in program for path in imported(cell.source, ("mla_ref",))]
            found = transitive([lesson.folder / "exercises.py", *RULES, *REPLAY_RULES, *SPEED_RULES, *used])
            assert lesson.folder / "exercises.py" in found
            assert [path for path in found if path.name in ("plots.py", "figures.py", "sample_class.py")] == []
