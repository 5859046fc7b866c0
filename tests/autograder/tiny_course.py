"""A course of one small lesson, so that these tests depend on no lesson of the real one."""

import importlib
import json
import sys
import textwrap
import uuid
from contextlib import contextmanager

import pytest

import autograder.exercises
from autograder import grading, lesson
from autograder.exercise import Exercise, Mistake, Part, randn
from autograder.judge import judge
from autograder.program import Cell, build_program
from autograder.sandbox import Limits

NAME = "90_tiny"
SETUP = Cell("imports", "import math, os, sys\nimport torch", True)

SCRIPT = '''
# %% [markdown]
# # Lesson 90: twice
#
# Some words on the matter.

# %% setup="imports"
import math

import torch
from autograder import check

# %%
print("the lesson's own words")

# %% solution="double"
def double(x):
    """Return 2x."""
    ### BEGIN SOLUTION
    return _twice(x)


def _twice(x):
    return 2 * x
    ### END SOLUTION

# %% check="double"
check("double")

# %% solution="quad"
def quad(x):
    """Return 4x."""
    ### BEGIN SOLUTION
    return double(double(x))
    ### END SOLUTION

# %% check="quad"
check("quad")
'''

EXERCISES = """
from dataclasses import replace

from tiny_course import DOUBLE, QUAD

inputs, oracle = DOUBLE.inputs, DOUBLE.oracle
EXERCISES = (DOUBLE, QUAD)
"""


def _inputs(generator, n):
    return {"x": randn(generator, n, 4)}


DOUBLE = Exercise(
    name="double",
    title="twice",
    parts=(
        Part("small", 2, [dict(n=3)], lambda r: [dict(n=r.randint(10, 30))]),
        Part("large", 1, [dict(n=70)]),
    ),
    inputs=_inputs,
    oracle=lambda x: 2 * x,
    mistakes=(Mistake("half", "it is halved, expected doubled", lambda x: x / 2),),
    limits=Limits(seconds=5.0, memory=256 << 20),
)
QUAD = Exercise("quad", "four times", (Part("all", 2, [dict(n=5)]),), _inputs, lambda x: 4 * x, needs=("double",))


@contextmanager
def course(folder):
    """Put the tiny course in place of the real one; yields the folder of its scripts."""
    scripts, specs = folder / "solutions", folder / "specs"
    scripts.mkdir()
    specs.mkdir()
    (scripts / f"{NAME}.py").write_text(SCRIPT.lstrip())
    (specs / f"lesson_{NAME}.py").write_text(EXERCISES)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lesson, "solutions_folder", lambda: scripts)
        patch.setattr(autograder.exercises, "__path__", [str(specs)])
        patch.delitem(sys.modules, f"autograder.exercises.lesson_{NAME}", raising=False)
        importlib.invalidate_caches()
        grading.version.cache_clear()
        yield scripts
        grading.shared.cache_clear()
        sys.modules.pop(f"autograder.exercises.lesson_{NAME}", None)


def verdict(box, source, exercise=DOUBLE, helpers=(), seed="seed", references=()):
    """Judge one cell, with helper cells of the student's before it."""
    solution = Cell(exercise.name, textwrap.dedent(source).strip("\n"))
    own = [*(Cell(f"own-{n}", textwrap.dedent(text)) for n, text in enumerate(helpers)), solution]
    return judge(exercise, build_program([SETUP], list(references), own, solution), seed, box)


def notebook(**sources):
    """Return the tiny lesson's notebook as a student would hand it in, with these cells in place of the solutions."""
    plain = json.loads(json.dumps(lesson.load_lesson(NAME).notebook))
    for name, source in sources.items():
        cell(plain, name)["source"] = textwrap.dedent(source).strip("\n")
    return plain


def cell(plain, cell_id):
    """Return a cell of a notebook."""
    return next(each for each in plain["cells"] if each["id"] == cell_id)


def own_cell(source, **keys):
    """Return a code cell as JupyterLab writes it."""
    return (
        dict(cell_type="code", id=uuid.uuid4().hex[:8], metadata={}, outputs=[], execution_count=None, source=source)
        | keys
    )
