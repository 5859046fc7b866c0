"""A course of one small lesson, so that these tests depend on no lesson of the real one."""

import json
import shutil
import textwrap
import uuid
from pathlib import Path

from autograder.classroom.build import release
from autograder.course.course import Course
from autograder.judging.judge import judge
from autograder.judging.program import Cell, build_program

NAME = "90_tiny"
FOLDER = Path(__file__).parent / "courses" / "tiny"
SETUP = Cell("imports", "import math, os, sys\nimport torch", True)
DOUBLE, QUAD = Course.at(FOLDER).exercises(NAME)
LESSON = Course.at(FOLDER).lesson(NAME)
RIGHT = {"double": "def double(x): return 2 * x", "quad": "def quad(x): return double(double(x))"}
WRONG = {"double": "def double(x): return x / 2", "quad": RIGHT["quad"]}


def write(folder, kind="exercises", changes=None):
    """Write the course to `folder/course`, in one of the lesson's files each text replaced by another; return it."""
    root = folder / "course"
    shutil.copytree(FOLDER, root, ignore=shutil.ignore_patterns("__pycache__"))
    file = root / "solutions" / NAME / f"{kind}.py"
    text = file.read_text()
    for old, new in (changes or {}).items():
        assert old in text, old
        text = text.replace(old, new)
    file.write_text(text)
    return Course.at(root)


def without_script(folder, changes=None):
    """Write the course to `folder/course` as a release has it, its lesson without a script; return it."""
    course = write(folder, "lesson", changes)
    script = course.folder(NAME) / "lesson.py"
    (script.parent / "handed_out.ipynb").write_bytes(release(course, NAME, folder).read_bytes())
    script.unlink()
    return Course.at(course.root)


def verdict(box, source, exercise=DOUBLE, helpers=(), seed="seed", references=()):
    """Judge one cell, with helper cells of the student's before it."""
    solution = Cell(exercise.name, textwrap.dedent(source).strip("\n"))
    own = [*(Cell(f"own-{n}", textwrap.dedent(text)) for n, text in enumerate(helpers)), solution]
    return judge(exercise, build_program([SETUP], list(references), own, solution), seed, box)


def notebook(**sources):
    """Return the tiny lesson's notebook as a student would hand it in, with these cells in place of the solutions."""
    plain = json.loads(json.dumps(LESSON.notebook))
    for name, source in sources.items():
        cell(plain, name)["source"] = textwrap.dedent(source).strip("\n")
    return plain


def hand_in(folder, **students):
    """Put each student's notebook, or bytes, where a classroom in `folder` looks for it."""
    for student, plain in students.items():
        path = folder / "submitted" / student / NAME / f"{NAME}.ipynb"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(plain if isinstance(plain, bytes) else json.dumps(plain).encode())


def cell(plain, cell_id):
    """Return a cell of a notebook."""
    return next(each for each in plain["cells"] if each["id"] == cell_id)


def own_cell(source, **keys):
    """Return a code cell as JupyterLab writes it."""
    return (
        dict(cell_type="code", id=uuid.uuid4().hex[:8], metadata={}, outputs=[], execution_count=None, source=source)
        | keys
    )
