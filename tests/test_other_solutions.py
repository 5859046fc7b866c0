"""Right solutions of other shapes than the lessons' own: none is refused, and each exercise has five.

A file of `other_solutions/` holds those of one lesson, below lines "# %% exercise: how it differs". It is read, never
imported. Lines "#: old => new" are edits of the lesson's own solution, in which a backslash and n stand for a new line;
what else there is stands in front of it. Without edits the lines are the whole cell. Where the line above them ends
with "; at full size", the speed is judged too: it may be slow, but no error.
"""

import collections
import json
import re
from pathlib import Path

import pytest

from autograder import checking
from autograder.classroom.grader import Grader
from autograder.classroom.restore import clean_cells, restore
from autograder.course.course import Course
from autograder.course.lesson import without_marks
from autograder.course.sample import Submission, find_cell, render, rewrite, submissions
from autograder.isolation.worker import running
from autograder.judging.cases import draw_cases
from autograder.judging.judge import read_case
from autograder.judging.verdict import Outcome

pytestmark = pytest.mark.xdist_group("other solutions")  # which are judged once, all together
FULL_SIZE = "; at full size"
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


def of_sample_class(lesson):
    """Yield the exercises of a lesson that students of the sample class solve rightly in another way."""
    for each in submissions(COURSE, lesson.name):
        if each.student in STYLES:
            notebook = json.loads(render(lesson, each))
            cells = {name: find_cell(notebook, name)["source"] for name in lesson.solutions if name not in each.expect}
            yield from (name for name, cell in cells.items() if cell != without_marks(lesson.solutions[name]))


def jobs_of(grader, exercise, about, source):
    """Return the jobs on one of the cells: on its answers, and on its speed where that is asked for."""
    lesson = COURSE.lesson(COURSE.locate(exercise)[0])
    plain = render(lesson, Submission("student", about, (rewrite(exercise, whole(exercise, source)),)))
    notebook = restore(lesson, list(clean_cells(json.loads(plain)["cells"])))
    found = [(lesson, job) for job in grader.jobs(lesson, notebook) if job.exercise.name == exercise]
    return found[: 1 + about.endswith(FULL_SIZE)]


def test_each_exercise_has_five():
    count = collections.Counter(exercise for exercise, _, _ in OTHERS)
    for twin in FOLDER.glob("attacks/honest/*.py"):
        count.update(re.findall(r'^EXERCISE = "(\w+)"', twin.read_text(), flags=re.MULTILINE))
    lessons = [COURSE.lesson(name) for name in COURSE.lesson_names()]
    for lesson in lessons:
        count.update(of_sample_class(lesson))
    few = {each.name: count[each.name] for lesson in lessons for each in lesson.exercises if count[each.name] < 5}
    assert len(lessons) == 15
    assert not few
    assert len({(exercise, whole(exercise, source)) for exercise, _, source in OTHERS}) == len(OTHERS)


@pytest.fixture(scope="module")
def grader(judged):
    pytest.importorskip("triton")
    with Grader(COURSE, judged, modelled=True) as grader:
        yield grader


@pytest.fixture(scope="module")
def jobs(request, grader):
    """The jobs on those that are asked for, all judged: several at a time."""
    items = (each for each in request.session.items if each.path == request.path and hasattr(each, "callspec"))
    mine = (each for each in items if not each.get_closest_marker("skip"))
    found = {other[:2]: jobs_of(grader, *other) for other in (each.callspec.params["other"] for each in mine)}
    grader.judge_all((pair for pairs in found.values() for pair in pairs), lambda done: None)
    return found


@pytest.mark.thorough(but=6)
@pytest.mark.parametrize("other", OTHERS, ids=lambda other: f"{other[0]}: {other[1]}")
def test_a_right_solution_of_another_shape_earns_its_marks(grader, jobs, other):
    answers, *speed = (grader.verdict(*pair) for pair in jobs[other[:2]])
    assert (answers.outcome, answers.score) == (Outcome.PASSED, answers.points), answers.reason
    for verdict in speed:
        assert verdict.outcome in (Outcome.PASSED, Outcome.PARTIAL, Outcome.SLOW), verdict.reason


BUILDS = {
    each.name: [one.name for one in COURSE.exercises(name) if each.name in one.needs and one.replayed]
    for name in COURSE.lesson_names()
    for each in COURSE.exercises(name)
}


@pytest.mark.parametrize(
    "other", [each for each in OTHERS if BUILDS[each[0]]], ids=lambda other: f"{other[0]}: {other[1]}"
)
def test_what_builds_on_a_right_solution_of_another_shape_is_right(other):
    """As in a release, where a student's own answers stand in: what one exercise allows none behind it refuses."""
    name, exercises = COURSE.locate(other[0])[0], BUILDS[other[0]]
    lesson = COURSE.lesson(name)
    for exercise in map(lesson.exercise, exercises):
        namespace = {}
        sources = [without_marks(lesson.solutions[each]) for each in (*exercise.needs, exercise.name)]
        for n, source in enumerate((*(cell.source for cell in lesson.setup), *sources, whole(other[0], other[2]))):
            running.run_cell(f"{other[0]} {n}", source, namespace)
        case = draw_cases(exercise, "seed", hidden=False)[0]
        message, _, call = checking.run_case(exercise, namespace[exercise.name], case)
        assert read_case(exercise, case, message) is None, exercise.name
        assert not (call and call.reason), exercise.name
