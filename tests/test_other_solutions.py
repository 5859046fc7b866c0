"""Right solutions of other shapes than the lessons' own: none is refused, and each exercise has five.

A file of `other_solutions/` holds those of one lesson, below lines "# %% exercise: how it differs". It is read, never
imported. Lines "#: old => new" are edits of the lesson's own solution, in which a backslash and n stand for a new line;
what else there is stands in front of it. Without edits the lines are the whole cell.
"""

import collections
import json
import re
from pathlib import Path

import pytest

from autograder.classroom.grader import Grader
from autograder.classroom.restore import clean_cells, restore
from autograder.course.course import Course
from autograder.course.lesson import without_marks
from autograder.course.sample import Submission, find_cell, render, rewrite, submissions
from autograder.judging.verdict import Outcome

FOLDER = Path(__file__).parent
COURSE = Course.at(FOLDER.parent)
STYLES = ("ben", "chloe")  # who write in other styles, in the lessons' sample classes


def read(path):
    """Return the cells of a file: [exercise, how it differs, source]."""
    parts = re.split(r"^# %% (\w+): (.+)\n", path.read_text(), flags=re.MULTILINE)
    assert parts[0].strip() == ""
    return list(zip(parts[1::3], parts[2::3], parts[3::3], strict=True))


def whole(exercise, source):
    """Return the cell that such lines stand for."""
    if not (edits := re.findall(r"^#: (.+?) =>(?: (.*))?$", source, flags=re.MULTILINE)):
        return source
    lesson = COURSE.lesson(COURSE.locate(exercise)[0])
    cell = without_marks(lesson.solutions[exercise])
    for old, new in ((each.replace("\\n", "\n") for each in edit) for edit in edits):
        assert old in cell, f"{exercise} has no {old!r}"
        cell = cell.replace(old, new)
    return re.sub(r"^#: .*\n?", "", source, flags=re.MULTILINE) + cell


OTHERS = [each for path in sorted(FOLDER.glob("other_solutions/*.py")) for each in read(path)]


def job(grader, exercise, about, source):
    lesson = COURSE.lesson(COURSE.locate(exercise)[0])
    plain = render(lesson, Submission("student", about, (rewrite(exercise, whole(exercise, source)),)))
    notebook = restore(lesson, list(clean_cells(json.loads(plain)["cells"])))
    return lesson, next(each for each in grader.jobs(lesson, notebook) if each.name == exercise)


@pytest.fixture(scope="module")
def grader():
    pytest.importorskip("triton")
    with Grader(COURSE, None, modelled=True) as grader:
        grader.seed = "seed 9"
        yield grader


@pytest.fixture(scope="module")
def jobs(request, grader):
    """The jobs of those that are asked for, all judged: several at a time."""
    asked = [each.callspec.params["other"] for each in request.session.items if each.fspath == request.path]
    found = {other[:2]: job(grader, *other) for other in asked}
    grader.judge_all(found.values(), lambda done: None)
    return found


@pytest.mark.parametrize("other", OTHERS, ids=lambda other: f"{other[0]}: {other[1]}")
def test_a_right_solution_of_another_shape_earns_its_marks(grader, jobs, other):
    verdict = grader.verdict(*jobs[other[:2]])
    assert (verdict.outcome, verdict.score) == (Outcome.PASSED, verdict.points), verdict.reason
