"""Notebooks open in Colab: badges and installing follow one address, and elsewhere nothing happens.

`.ci/outside colab` runs them in an environment made like Colab's.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from IPython.core.inputtransformer2 import TransformerManager

from autograder.classroom.restore import clean_cells, code_cells, restore
from autograder.course.colab import BADGE, INSTALL
from autograder.course.course import Course, CourseError

from ..tiny_course import NAME, write

OURS = Course.at(Path(__file__).parents[3])
PUBLISHED = 'repository = "somebody/some-course"\ntag = "v2"\n'


@pytest.fixture
def published(tmp_path):
    course = write(tmp_path)
    settings = course.solutions / "course.toml"
    settings.write_text(settings.read_text() + PUBLISHED)
    return Course(course.root)


def cell(course, lesson, name):
    return next(cell for cell in course.lesson(lesson).notebook.cells if cell["id"] == name)


def test_the_address_of_every_notebook_is_the_one_in_course_toml(published):
    assert "github/somebody/some-course/blob/v2/course/90_tiny/90_tiny.ipynb" in cell(published, NAME, BADGE).source
    assert "git+https://github.com/somebody/some-course@v2" in cell(published, NAME, INSTALL).source


@pytest.mark.parametrize("name", OURS.lesson_names())
def test_the_notebooks_begin_with_badge_and_installing_from_that_address(name):
    notebook = json.loads((OURS.root / "course" / name / f"{name}.ipynb").read_text())
    badge, install = notebook["cells"][:2]
    assert (badge["id"], install["id"]) == (BADGE, INSTALL)
    place = f"{OURS.repository}/blob/{OURS.tag}/course/{name}/{name}.ipynb"
    assert f"https://colab.research.google.com/github/{place})" in "".join(badge["source"])
    assert f"git+https://github.com/{OURS.repository}@{OURS.tag}" in "".join(install["source"])
    assert (OURS.root / re.search("blob/[^/]+/(course/.*ipynb)", "".join(badge["source"])).group(1)).is_file()


def test_a_course_that_is_not_published_has_no_such_cells(tmp_path):
    assert not {BADGE, INSTALL} & {cell["id"] for cell in write(tmp_path).lesson(NAME).notebook.cells}


@pytest.mark.parametrize(
    "lines",
    ['repository = "a/b"', 'tag = "v1"', 'repository = "https://github.com/a/b"\ntag = "v1"', "repository = 1\ntag = 2"],
)
def test_a_place_that_is_none_is_refused(tmp_path, lines):
    course = write(tmp_path)
    (course.solutions / "course.toml").write_text(lines)
    with pytest.raises(CourseError, match="expected repository"):
        Course(course.root)


def test_elsewhere_the_cell_does_nothing(published):
    code = TransformerManager().transform_cell(cell(published, NAME, INSTALL).source)
    names = {}
    exec(code, names)
    assert names.keys() - {"__builtins__"} == {"sys"}


def test_in_colab_it_installs_from_there_with_colabs_own_packages_held(published, tmp_path):
    """The cell as IPython runs it, in a process that holds itself for Colab's; pip is only asked."""
    code = TransformerManager().transform_cell(cell(published, NAME, INSTALL).source)
    script = f"""
import sys, types
sys.modules["google.colab"] = types.ModuleType("google.colab")
asked = []
get_ipython = lambda: types.SimpleNamespace(run_line_magic=lambda *words: asked.append(words))
exec({code.replace("/tmp/kept.txt", str(tmp_path / "kept.txt"))!r}, dict(get_ipython=get_ipython))
print(asked)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=OURS.root, check=True)
    said, asked = done.stdout.splitlines()
    assert said.startswith("No GPU: kernels are emulated") or "kernels run on it" in said
    (call,) = eval(asked)
    assert call[0] == "pip"
    assert call[1].startswith("install --quiet --constraint")
    assert call[1].endswith('"mla-course @ git+https://github.com/somebody/some-course@v2"')
    held = {line.partition("==")[0] for line in (tmp_path / "kept.txt").read_text().splitlines()}
    assert held >= {"torch", "numpy", "ipython", "ipywidgets"}


def test_what_a_student_writes_into_that_cell_is_a_cell_of_their_own(published):
    plan = published.lesson(NAME)
    plain = json.loads(json.dumps(plan.notebook))
    next(cell for cell in plain["cells"] if cell["id"] == INSTALL)["source"] = "import os"
    restored = restore(plan, list(clean_cells(plain["cells"])))
    sources = {each["id"]: each.source for each in restored.cells}
    assert sources[INSTALL] == cell(published, NAME, INSTALL).source
    assert INSTALL not in {each.name for each in code_cells(restored, plan)}
    given = [each["id"] for each in plan.notebook.cells]
    assert [each["id"] for each in restored.cells if each["id"] in given] == given
    assert [each.source for each in restored.cells if each["id"] not in given] == ["import os"]


@pytest.mark.parametrize(("capability", "has"), [((7, 5), "float16, as it has no bfloat16"), ((8, 9), "and bfloat16")])
def test_the_type_of_a_gpu_is_said(monkeypatch, capability, has):
    import torch

    from autograder.doctor import describe_device

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Tesla T4")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    assert has in describe_device()


def test_on_a_t4_no_kernel_is_checked_in_bfloat16():
    import torch

    from autograder.judging.cases import without_bfloat16

    kernels = [each for name in OURS.lesson_names() for each in OURS.exercises(name) if each.kernel]
    cases = [case for each in kernels for part in each.parts for case in part.visible]
    assert any(torch.bfloat16 in case.values() for case in cases), "else there is nothing to change"
    for case in map(without_bfloat16, cases):
        assert torch.bfloat16 not in case.values()
