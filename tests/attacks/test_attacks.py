"""Each file below is what a student hands in for one exercise: attacks by root, and their honest twins.

A file begins with what it tries and why it must fail, names its exercise, says by `SPEED` whether it is after the
points for speed, and holds the cell below a mark. It is read, never imported.
"""

import ast
import dataclasses
import json
import re
from pathlib import Path

import pytest

from autograder.classroom.grader import Grader
from autograder.classroom.restore import clean_cells, restore
from autograder.course.course import Course
from autograder.course.sample import Submission, render, rewrite
from autograder.judging.verdict import Outcome

FOLDER = Path(__file__).parent
COURSE = Course.at(FOLDER.parents[1])
MARK = "\n# The cell:\n"
HONEST = sorted(FOLDER.glob("honest/*.py"))
ATTACKS = sorted(set(FOLDER.glob("*/*.py")) - set(HONEST))


def name(path):
    return f"{path.parent.name}/{path.stem}"


@dataclasses.dataclass(frozen=True)
class Entry:
    """One file: what it says of itself, and the cell."""

    about: str
    cell: str
    exercise: str
    speed: bool = False
    long: bool = False  # to judge: for `make test-all`
    expect: str | tuple[str, ...] = ""  # in the reason; of several one


def read(path):
    head, mark, cell = path.read_text().partition(MARK)
    assert mark, f"{name(path)} has no line {MARK.strip()!r} above its cell"
    tree = ast.parse(head)
    said = {each.targets[0].id.lower(): ast.literal_eval(each.value) for each in tree.body if hasattr(each, "targets")}
    return Entry(ast.get_docstring(tree), cell, **said)


def entries(paths):
    """Return the parameters of a test of what these files hold."""
    of = {path: read(path) for path in paths}
    return [pytest.param(of[path], id=name(path), marks=[pytest.mark.thorough] * of[path].long) for path in paths]


@pytest.fixture(scope="session")
def grader(judged):
    pytest.importorskip("triton")
    with Grader(COURSE, judged, modelled=True) as grader:
        yield grader


def jobs_of(grader, entry):
    """Return the lesson of an entry, and the jobs on its exercise: on the answers, and on their speed if it has one."""
    lesson_name, exercise = COURSE.locate(entry.exercise)
    lesson = COURSE.lesson(lesson_name)
    plain = render(lesson, Submission("student", entry.about, (rewrite(exercise.name, entry.cell),)))
    notebook = restore(lesson, list(clean_cells(json.loads(plain)["cells"])))
    jobs = [job for job in grader.jobs(lesson, notebook) if job.exercise.name == exercise.name]
    return lesson, jobs[: 1 + entry.speed]


def judged(grader, entry):
    """Return the verdicts on the exercise of an entry."""
    lesson, jobs = jobs_of(grader, entry)
    return [grader.verdict(lesson, job) for job in jobs]


def test_there_are_as_many_as_promised():
    assert len(ATTACKS) >= 80
    assert len(HONEST) >= 40


@pytest.mark.parametrize("path", [*ATTACKS, *HONEST], ids=name)
def test_a_file_says_what_it_is(path):
    entry = read(path)
    assert 1 <= len(re.findall(r"\.(?=\s|$)", entry.about)) <= 4
    assert COURSE.locate(entry.exercise)


@pytest.mark.thorough(but=15)
@pytest.mark.parametrize("entry", entries(ATTACKS))
def test_an_attack_fails(grader, entry):
    verdict = judged(grader, entry)[-1]
    assert verdict.outcome is not Outcome.FAULT, verdict.reason
    assert verdict.score < verdict.points, verdict
    reasons = (entry.expect,) if isinstance(entry.expect, str) else entry.expect
    assert any(each in verdict.reason for each in reasons), verdict.reason


@pytest.mark.thorough(but=10)
@pytest.mark.parametrize("entry", entries(HONEST))
def test_an_honest_twin_earns_its_marks(grader, entry):
    answers, *speed = judged(grader, entry)
    assert (answers.outcome, answers.score) == (Outcome.PASSED, answers.points), answers.reason
    for verdict in speed:
        assert verdict.outcome in (Outcome.PASSED, Outcome.PARTIAL, Outcome.SLOW), verdict.reason
