"""From notebook to gradebook, on a course of one small lesson: what is kept, tried again, and nobody's zero."""

import csv
import dataclasses
import json
import re
import shutil
import time
import types

import nbformat
import pytest
from rich.console import Console

from autograder.classroom import grader as grading
from autograder.classroom import scale
from autograder.classroom.export import export, overruled, rows
from autograder.classroom.feedback import write_feedback
from autograder.classroom.grade import Classroom
from autograder.classroom.grader import Grader
from autograder.classroom.preprocessors import Restore
from autograder.classroom.record import Graded, Records
from autograder.classroom.restore import REMARKS, clean_cells, restore
from autograder.classroom.scoreboard import print_scoreboard
from autograder.course.course import Course, find_course
from autograder.course.digest import transitive
from autograder.course.lesson import LessonError
from autograder.isolation.sandbox import Sandbox, SandboxError, default_isolation
from autograder.judging import judge
from autograder.judging.verdict import Outcome, Verdict

from .. import tiny_course
from ..tiny_course import DOUBLE, LESSON, NAME, RIGHT, WRONG, cell, hand_in, notebook, own_cell


def restored(plain):
    return restore(LESSON, list(clean_cells(plain["cells"])))


def in_gradebook(folder):
    """Return each grade in nbgrader's gradebook: score, and whether a person is asked to look."""
    with Records(Course.at(tiny_course.FOLDER), folder).gradebook() as gradebook:
        return {
            (submission.student_id, grade.name): (grade.auto_score, grade.needs_manual_grade)
            for submission in gradebook.find_assignment(NAME).submissions
            for book in submission.notebooks
            for grade in book.grades
        }


@pytest.fixture
def judged(monkeypatch):
    """The names of the exercises that the judge has run, as it runs them."""
    names, real = [], judge.judge

    def counting(exercise, *rest):
        names.append(exercise.name)
        return real(exercise, *rest)

    monkeypatch.setattr(judge, "judge", counting)
    return names


def test_a_verdict_is_reached_once_and_again_only_when_something_changed(tiny, tmp_path, judged):
    with Grader(tiny, tmp_path) as grader:
        first = grader.verdicts(LESSON, restored(notebook(**RIGHT)))
        assert [v.outcome for v in first.values()] == [Outcome.PASSED] * 2
        assert judged == ["double", "double", "quad", "quad"], "each after the lesson's own solution"
        assert grader.verdicts(LESSON, restored(notebook(**RIGHT))) == first
    with Grader(tiny, tmp_path) as grader:
        assert grader.verdicts(LESSON, restored(notebook(**RIGHT))) == first
        assert len(judged) == 4
        explored = notebook(**RIGHT)
        explored["cells"].append(own_cell("1 / 0"))
        assert grader.verdicts(LESSON, restored(explored)) == first
        assert len(judged) == 4
        grader.verdicts(LESSON, restored(notebook(**WRONG)))
        assert judged[4:] == ["double"]
    with Grader(tiny, tmp_path, seconds=1.5) as grader:
        grader.verdicts(LESSON, restored(notebook(**RIGHT)))
    assert len(judged) > 5, "another limit may mean another verdict"


def test_other_peoples_mistakes_do_not_change_a_verdict(tiny, tmp_path):
    hostile = notebook(double="import os\ndef double(x): os._exit(0)", quad="def quad(x):\n    x.zero_()\n    return x")
    alone, among = [], []
    with Grader(tiny, tmp_path / "a", seconds=1.5) as grader:
        alone.append(grader.verdicts(LESSON, restored(notebook(**RIGHT))))
    with Grader(tiny, tmp_path / "a", seconds=1.5) as grader:
        grader.store = None
        for plain in (hostile, notebook(**RIGHT), hostile):
            among.append(grader.verdicts(LESSON, restored(plain)))
    assert among[1] == alone[0]
    assert among[0] == among[2]


def test_a_fault_of_the_grader_is_blank_and_asks_for_a_person(tmp_path):
    wrong = tiny_course.write(tmp_path, changes={"lambda x: 2 * x": "lambda x: 4 * x"})  # and the lesson's own solution
    room = Classroom(wrong, tmp_path / "class")
    hand_in(room.folder, ada=notebook(**RIGHT), ben=notebook(**WRONG), eve=b"{")
    results = {result.student: result for result in room.grade()}
    for student in ("ada", "ben"):
        double, quad = results[student].verdicts
        assert (double.outcome, double.score) == (Outcome.FAULT, None)
        assert quad.outcome is Outcome.PASSED, "the other exercise is graded all the same"
        assert results[student].score is None
    assert results["eve"].score == 0
    grades = in_gradebook(room.folder)
    assert grades["ada", "check-double"] == grades["ben", "check-double"] == (None, True)
    assert grades["ada", "check-quad"] == (2.0, False)
    assert grades["eve", "check-double"] == (0.0, False)
    export(room, tmp_path / "grades.csv")
    exported = {row["student"]: row for row in csv.DictReader((tmp_path / "grades.csv").read_text().splitlines())}
    assert exported["ada"]["score"] == exported["ben"]["score"] == ""
    assert float(exported["eve"]["score"]) == 0


def test_a_sandbox_that_does_not_start_is_nobodys_zero_and_is_tried_again(tiny, tmp_path, monkeypatch):
    hand_in(tmp_path, ada=notebook(**RIGHT))
    grading.shared.cache_clear()
    with monkeypatch.context() as patch:
        starts = []

        def start(self):
            starts.append(1)
            raise SandboxError("no user namespaces")

        patch.setattr(Sandbox, "_start", start)
        (result,) = Classroom(tiny, tmp_path).grade()
        assert [v.outcome for v in result.verdicts] == [Outcome.FAULT] * 2
        assert "no user namespaces" in result.verdicts[0].reason
        assert len(starts) <= 4, "a fault stands for a while: a class of hundreds is not kept waiting"
    assert in_gradebook(tmp_path)["ada", "check-double"] == (None, True)
    monkeypatch.setattr(grading, "FAULT_SECONDS", 0.0)
    (result,) = Classroom(tiny, tmp_path).grade()
    assert result.score == 5
    assert in_gradebook(tmp_path)["ada", "check-double"] == (3.0, False)
    grading.shared.cache_clear()


def test_one_notebook_that_the_grader_trips_over_does_not_stop_the_class(tiny, tmp_path, monkeypatch):
    real = grading.build_program

    def trip(setup, references, own, solution, *rest):
        if "trip()" in solution.source:
            raise RuntimeError("a bug of ours")
        return real(setup, references, own, solution, *rest)

    monkeypatch.setattr(grading, "build_program", trip)
    with Grader(tiny, tmp_path) as grader:
        verdicts = grader.verdicts(LESSON, restored(notebook(double="trip()", quad=RIGHT["quad"])))
    assert (verdicts["double"].outcome, verdicts["double"].score) == (Outcome.FAULT, None)
    assert verdicts["quad"].outcome is Outcome.PASSED


def test_what_a_students_helper_is_called_does_not_matter(tiny, tmp_path):
    """The lesson's own solution of `double` has a helper `_twice` too."""
    plain = notebook(
        double="def _twice(x, by):\n    return by * x\n\ndef double(x): return _twice(x, 2)",
        quad="def quad(x): return _twice(double(x), 2)",
    )
    with Grader(tiny, tmp_path) as grader:
        verdicts = grader.verdicts(LESSON, restored(plain))
    assert {name: (v.outcome, v.reason) for name, v in verdicts.items()} == dict.fromkeys(RIGHT, (Outcome.PASSED, ""))


def test_an_exercise_is_not_punished_for_an_earlier_one(tiny, tmp_path):
    with Grader(tiny, tmp_path) as grader:
        verdicts = grader.verdicts(LESSON, restored(notebook(**WRONG)))
    assert verdicts["double"].mistake == "half"
    assert verdicts["quad"].outcome is Outcome.PASSED


def test_what_was_not_worked_on_needs_no_run(tiny, tmp_path, judged):
    starters = {name: LESSON.starter(name) for name in LESSON.solutions}
    with Grader(tiny, tmp_path) as grader:
        verdicts = grader.verdicts(LESSON, restored(notebook(**starters)))
    assert {v.outcome for v in verdicts.values()} == {Outcome.UNFINISHED}
    assert judged == []


def test_a_student_makes_no_remarks_on_their_own_notebook(tiny, tmp_path):
    plain = nbformat.from_dict(notebook(**WRONG))
    plain.metadata[REMARKS] = {"outcome": "grader fault", "reason": "mark this by hand", "others": 5}
    hand_in(tmp_path, eve=plain)
    where = {"nbgrader": {"assignment": NAME}, "metadata": {"path": str(tmp_path / "submitted" / "eve" / NAME)}}
    once, _ = Restore(course=str(tiny.root)).preprocess(plain, where)
    assert once.metadata[REMARKS] == {"others": [], "missing": [], "text": []}
    with Grader(tiny, tmp_path) as grader:
        assert grader.verdicts(LESSON, once)["double"].outcome is Outcome.WRONG


def hostile_class():
    """Return submissions that trouble a grader, by student, with the score that each should get."""
    right = notebook(**RIGHT)
    no_metadata, weird, crowded, stray, long, many = (json.loads(json.dumps(right)) for _ in range(6))
    for each in no_metadata["cells"]:
        del each["metadata"]
    weird["metadata"] = [1]
    weird["cells"] += [None, 7, {"cell_type": "code"}]
    crowded["cells"] += [own_cell(f"x{n} = {n}") for n in range(60)]
    stray["cells"].insert(0, own_cell("from nowhere import *\n%%bash\nrm -rf /"))
    long["cells"] += [own_cell("x = 1\n" * 30_000)]
    many["cells"] += [own_cell("pass") for _ in range(2500)]
    copied, forged, bare = (json.loads(json.dumps(right)) for _ in range(3))
    copied["cells"] += json.loads(json.dumps(copied["cells"]))
    for each in forged["cells"]:
        if "nbgrader" in each["metadata"]:
            each["metadata"]["nbgrader"] |= {"points": 1000, "locked": False}
        each["metadata"]["mla_course_fault"] = True
    forged["metadata"]["mla_course"] = {"copied": 5, "missing": [], "reason": []}
    bare["cells"] = [cell(bare, "double"), cell(bare, "quad")]
    return {
        "surrogates": (notebook(double=RIGHT["double"] + "  # \ud800", quad=RIGHT["quad"]), 5),
        "odd_message": (
            notebook(double='def double(x): raise ValueError("\\ud800\\x1b[2J<script>")', quad=RIGHT["quad"]),
            2,
        ),
        "magics": (notebook(double="!ls\n" * 700 + RIGHT["double"], quad=RIGHT["quad"]), 5),
        "no_metadata": (no_metadata, 5),
        "weird": (weird, 5),
        "crowded": (crowded, 5),
        "stray": (stray, 5),
        "long": (long, 0),
        "many": (many, 0),
        "exits": (notebook(double="import os\nos._exit(0)", quad=RIGHT["quad"]), 2),
        "truncated": (json.dumps(right).encode()[:-300], 0),
        "binary": (b"\0\1\2", 0),
        "lists": (b'{"cells": [], "metadata": [' + b"[]," * (1 << 20) + b"0]}", 0),
        "copied": (copied, 5),
        "forged": (forged, 5),
        "bare": (bare, 5),
        "plain": (right, 5),
    }


@pytest.fixture(scope="module")
def troubled(tiny, tmp_path_factory):
    """A classroom with the hostile class in it, graded."""
    folder = tmp_path_factory.mktemp("troubled")
    grading.shared.cache_clear()
    hand_in(folder, **{student: content for student, (content, _) in hostile_class().items()})
    return folder, Classroom(tiny, folder).grade()


def test_a_hostile_class_is_graded_whole(tiny, troubled):
    folder, results = troubled
    wanted = {student: score for student, (_, score) in hostile_class().items()}
    assert {result.student: result.score for result in results} == wanted
    assert [result.problem for result in results if result.problem] == []
    totals = dict.fromkeys(wanted, 0)
    for (student, _), (score, _) in in_gradebook(folder).items():
        totals[student] += score
    assert totals == wanted
    assert not any(result.fresh for result in Classroom(tiny, folder).grade())


def test_feedback_shows_a_students_text_and_runs_none_of_it(tiny, troubled):
    folder, _ = troubled
    pages, problems = write_feedback(Classroom(tiny, folder))
    assert (len(pages), problems) == (len(hostile_class()), [])
    page = next(page for page in pages if "odd_message" in page.parts).read_text()
    assert "ValueError in line 1" in page
    assert "&lt;script&gt;" in page
    assert "2J<script>" not in page
    assert "\x1b" not in page


@pytest.mark.filterwarnings("ignore:Non-unique cell id")
def test_the_button_in_formgrader_gives_the_same_scores(tiny, troubled):
    """Formgrader runs nbgrader's own `autograde` on what was handed in, with the course's configuration."""
    from nbgrader.apps import NbGraderAPI
    from nbgrader.coursedir import CourseDirectory

    folder, _ = troubled
    before = in_gradebook(folder)
    shutil.rmtree(folder / "autograded")
    config = Classroom(tiny, folder).records.config()
    api = NbGraderAPI(CourseDirectory(config=config), config=config)
    for student in ("plain", "copied", "forged", "bare", "exits", "stray", "odd_message", "long", "many"):
        answer = api.autograde(NAME, student, force=True)
        assert answer["success"], f"{student}: {answer.get('error') or answer.get('log')}"
        assert (folder / "autograded" / student / NAME / f"{NAME}.ipynb").exists()
    assert in_gradebook(folder) == before


@pytest.mark.thorough
def test_what_the_button_has_entered_does_not_outlast_the_next_run(tiny, tmp_path):
    from nbgrader.apps import NbGraderAPI
    from nbgrader.coursedir import CourseDirectory

    hand_in(tmp_path, eve=notebook(**RIGHT))
    room = Classroom(tiny, tmp_path)
    room.grade()
    hand_in(tmp_path, eve=notebook(**WRONG))
    config = room.records.config()
    assert NbGraderAPI(CourseDirectory(config=config), config=config).autograde(NAME, "eve")["success"]
    (row,) = rows(room)
    assert (row["score"], row["isolation"]) == (2, default_isolation())
    hand_in(tmp_path, eve=notebook(**RIGHT))
    (eve,) = room.grade()
    assert (eve.score, eve.counts, eve.fresh) == (5, 5, True)
    assert [row["score"] for row in rows(room)] == [5]
    assert not room.grade()[0].fresh


def test_lateness_costs_what_nbgraders_configuration_says_in_every_run(tiny, tmp_path, monkeypatch):
    hand_in(tmp_path, ada=notebook(**RIGHT), ben=notebook(**RIGHT))
    stamp = tmp_path / "submitted" / "ada" / NAME / "timestamp.txt"
    stamp.write_text("2026-12-25 12:00:00 UTC")
    room = Classroom(tiny, tmp_path)
    assert [result.counts for result in room.grade()] == [5, 5]
    with room.records.gradebook() as gradebook:
        gradebook.update_or_create_assignment(NAME, duedate="2026-12-25 10:30:00 UTC")
    (tmp_path / "nbgrader_config.py").write_text('c.LateSubmissionPlugin.penalty_method = "zero"\n')
    monkeypatch.chdir(tmp_path)
    for again in (False, True, False):
        ada, ben = room.grade(again=again)
        assert (ada.score, ada.counts, ada.changed) == (5, 0, True)
        assert (ben.score, ben.counts, ben.changed) == (5, 5, False)
        assert ben.fresh == again
    late, on_time = rows(room)
    assert (late["score"], late["late"], late["status"]) == (0, 1.5, "graded, 5 off for lateness")
    assert (on_time["score"], on_time["late"], on_time["status"]) == (5, None, "graded")
    assert overruled(room) == [f"{NAME} ada: 1.5 hours late, 5 points less"]
    stamp.unlink()
    assert [result.counts for result in room.grade()] == [5, 5], "without a time it counts as in time"


def test_notebooks_beside_the_graded_one_are_named(tiny, tmp_path):
    hand_in(tmp_path, eve=notebook(**WRONG), ada=notebook(**RIGHT))
    folder = tmp_path / "submitted" / "eve" / NAME
    (folder / f"{NAME} (1).ipynb").write_text(json.dumps(notebook(**RIGHT)))
    (folder / f"._{NAME}.ipynb").write_text("what a Mac packs beside a file")
    room = Classroom(tiny, tmp_path)
    assert room.found()[1] == [f"submitted/eve/{NAME} holds other notebooks that were not graded: {NAME} (1).ipynb"]
    room.grade()
    pages = {page.parts[-3]: page.read_text() for page in write_feedback(room)[0]}
    assert f"not graded: {NAME} (1).ipynb" in pages["eve"]
    assert "not graded" not in pages["ada"]


def test_a_feedback_page_opens_with_what_went_wrong(tiny, tmp_path):
    half = "def double(x): return 2 * x if len(x) < 40 else x / 2"
    hand_in(tmp_path, eve=notebook(double=half, quad="def quad(x): return '<i>' * len(x)"))
    room = Classroom(tiny, tmp_path)
    (result,) = room.grade()
    assert [verdict.score for verdict in result.verdicts] == [2, 0]
    with room.records.gradebook() as gradebook:
        gradebook.find_grade("check-quad", NAME, NAME, "eve").manual_score = 0.5
        gradebook.find_comment("quad", NAME, NAME, "eve").manual_comment = "see me"
        gradebook.db.commit()
    page = write_feedback(room)[0][0].read_text()
    opening = page[page.index("<body>") : page.index("Some words on the matter")]
    for words in ("#check-double", "2 / 3", "partial", "it is halved", "0.5 / 2", "the judge: 0", "#comment-quad"):
        assert words in opening, words
    assert "see me" in page
    assert "Out[" not in page, "the number that nbgrader scores by is not for people"
    assert "2 / 3" not in page[page.index("Some words on the matter") :]


def test_the_speed_of_an_answer_that_is_not_right_is_put_off_and_no_line_of_its_own():
    exercise = dataclasses.replace(DOUBLE, speed=types.SimpleNamespace(points=1))
    for outcome in (Outcome.UNFINISHED, Outcome.ERROR, Outcome.WRONG):
        answers = Verdict("double", 3, 0, outcome, "the cell is as it was handed out")
        speed = grading._speed_after(exercise, answers)
        assert (speed.outcome, speed.score, speed.reason) == (outcome, 0, "counts once the answer is right")
    console = Console(width=200, record=True)
    print_scoreboard(console, [Graded("ada", NAME, [answers, speed])])
    assert "double 0/3, wrong: the cell is as it was handed out" in (text := console.export_text())
    assert "double:speed" not in text


@pytest.mark.thorough
def test_what_counts_stands_on_the_scoreboard_with_a_mark(tiny, tmp_path):
    hand_in(tmp_path, ada=notebook(**RIGHT), ben=notebook(**RIGHT))
    room = Classroom(tiny, tmp_path)
    room.grade()
    with room.records.gradebook() as gradebook:
        gradebook.find_grade("check-double", NAME, NAME, "ada").manual_score = 1.5
        gradebook.find_grade("check-quad", NAME, NAME, "ada").extra_credit = 1
        gradebook.db.commit()
    ada, ben = results = room.grade(again=True)
    assert (ada.score, ada.counts, ben.counts) == (5, 4.5, 5)
    assert [row["score"] for row in rows(room)] == [4.5, 5]
    (line,) = overruled(room)
    assert line.endswith(
        "double counts 1.5, set by hand; the judge now gives 3; clear the field in formgrader to take it"
    )
    console = Console(width=200, record=True)
    print_scoreboard(console, results)
    assert "4.5*" in (text := console.export_text())
    assert "5*" not in text.replace("4.5*", "")


def test_ctrl_c_while_nbgrader_records_ends_the_run(tiny, tmp_path, monkeypatch):
    from nbgrader.converters import Autograde

    def interrupted(self, notebook):
        raise KeyboardInterrupt

    hand_in(tmp_path, ada=notebook(**RIGHT))
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Autograde, "convert_single_notebook", interrupted)
        Classroom(tiny, tmp_path).grade()
    (result,) = Classroom(tiny, tmp_path).grade()
    assert (result.fresh, result.counts) == (True, 5)


@pytest.mark.thorough
def test_a_thread_pool_gives_the_verdicts_that_one_thread_gives(tiny, tmp_path):
    scores = []
    books = [restored(notebook(double=f"def double(x): return {n} * x", quad=RIGHT["quad"])) for n in range(6)]
    for workers in (1, 3):
        done = []
        with Grader(tiny, tmp_path / str(workers)) as grader:
            work = [(LESSON, job) for book in books for job in grader.jobs(LESSON, book)]
            assert grader.judge_all(work, done.append, workers) == {}
            scores.append([grader.known(job).score for _, job in work])
        assert sorted(done) == list(range(1, len(work) + 1)), "progress counts to its end"
    assert scores[0] == scores[1]
    assert scores[0][::2] == [0, 0, 3, 0, 0, 0]


def test_a_change_of_an_oracle_or_of_the_lessons_own_solution_means_another_verdict(tmp_path):
    def key(name, kind="exercises", **changes):
        course = tiny_course.write(tmp_path / name, kind, changes.get("changes"))
        with Grader(course, tmp_path / "class") as grader:
            return {job.name: job.key for job in grader.jobs(course.lesson(NAME), restored(notebook(**RIGHT)))}

    before = key("before")
    assert key("same") == before
    assert key("comment", changes={"DOUBLE = ": "# why\nDOUBLE = "}) == before
    other = key("oracle", changes={"lambda x: 2 * x": "lambda x: 2.0 * x"})
    assert other["double"] != before["double"] and other["quad"] != before["quad"]
    other = key("solution", "lesson", changes={"return 2 * x": "return x + x"})
    assert other["double"] == before["double"], "the student's program has nothing of it"
    assert other["quad"] != before["quad"], "which has the lesson's own double in it"


def test_the_judges_code_decides_and_what_only_shows_or_records_verdicts_does_not():
    found = transitive((*scale.RULES, *scale.REPLAY_RULES, *scale.SPEED_RULES))
    assert [path for path in found if path.parent.name in ("classroom", "course") or path.name == "checking.py"] == []
    names = {path.name for path in transitive(scale.RULES)}
    assert {"judge.py", "compare.py", "exercise.py", "sandbox.py", "wire.py", "running.py"} <= names
    assert {"answers.py", "replaying.py", "hosting.py"} <= {path.name for path in transitive(scale.REPLAY_RULES)}
    assert {"speed.py", "model.py", "cost_model.py"} <= {path.name for path in transitive(scale.SPEED_RULES)}


@pytest.mark.parametrize("name", find_course().lesson_names())
def test_what_reaches_an_answer_is_in_the_digest_of_a_lesson(name):
    code = {path.name for path in transitive(scale._files(find_course(), name))}
    assert ({"answers.py", "replaying.py"} <= code) == any(each.replayed for each in find_course().exercises(name))
    assert ({"speed.py", "cost_model.py"} <= code) == any(each.speed for each in find_course().exercises(name))


def test_grading_a_lesson_that_is_not_there_says_which_there_are(tiny, tmp_path):
    with pytest.raises(LessonError, match=NAME):
        Classroom(tiny, tmp_path).grade(["77_none"])


def test_closing_ends_the_workers(tiny, tmp_path):
    with Grader(tiny, tmp_path) as grader:
        grader.verdicts(LESSON, restored(notebook(**RIGHT)))
        (box,) = grader.place.workers
        process = box._process
    assert process.poll() is not None


class Slow:
    """A place where every program is right, after a moment; `ran` has their sources."""

    gpu, seats = None, 2

    def __init__(self):
        self.ran = []

    def run(self, task):
        time.sleep(0.01)
        self.ran.append(task.program[-1].source)
        each = next(each for each in (DOUBLE, tiny_course.QUAD) if each.name == task.exercise)
        return Verdict(each.name, each.points, each.points, Outcome.PASSED)

    def rest(self):
        pass

    abandon = close = rest


def test_a_class_is_read_as_there_is_room_and_a_program_is_judged_once(tiny, tmp_path):
    place, ahead, read = Slow(), [], 0

    def work():
        nonlocal read
        for n in range(40):
            for job in grader.jobs(LESSON, restored(notebook(double=f"def double(x): return {n // 4} * x"))):
                read += 1
                ahead.append(read - len(done))
                yield LESSON, job

    with Grader(tiny, tmp_path, place=place) as grader:
        done = []
        assert grader.judge_all(work(), done.append, 4) == {}
    assert len(done) == read == 80
    assert max(ahead) <= 2 * 4 + 1, "more is held than what is about to be judged"
    assert len(place.ran) == len(set(place.ran)) == 10 + 1 + 2, "ten of double and one of quad, and the controls"


def test_a_fault_that_needed_no_run_is_no_other_jobs(tiny, tmp_path):
    settled = [Verdict("double", 3, None, Outcome.FAULT), Verdict("double", 3, 0.0, Outcome.UNFINISHED)]
    with Grader(tiny, tmp_path, place=Slow()) as grader:
        work = [(LESSON, grading.Job(DOUBLE, (), "", verdict)) for verdict in settled]
        assert grader.judge_all(work, lambda done: None) == {}
        assert [grader.verdict(*each) for each in work] == settled


STARTER = LESSON.starter("double")
LINE = "double = lambda x: 2 * x; y = double(torch.ones(2))"
RECURSIVE = "if True:\n    def double(x): return 2 * x if len(x) else double(x)"
STUB = 'raise NotImplementedError("write your code here")'
DRAFT = "def double(x): return x / 2"
TWO = "def two(): return {}"
BY_K = "def double(x, k=K): return k * x"
BY_T = "base = 2\ndef double(x): return k * x"
BY_TWO = "def double(x): return two() * x"
SEVERAL = {  # the cell of the exercise, cells above and below it; points, and the cell that counts
    "a draft in its place": (DRAFT, [], [RIGHT["double"]], 3, "`def double"),
    "an old attempt below": (RIGHT["double"], [], [DRAFT], 3, None),
    "many old attempts": (RIGHT["double"], [], [f"{DRAFT}  # {n}" for n in range(9)], 3, None),
    "the same attempt many times": (DRAFT, [RIGHT["double"]], [DRAFT, f"{DRAFT} ", *[DRAFT] * 5], 3, "`def double"),
    "the best of three": ("def double(x): return x", [], [RIGHT["double"], "double = abs"], 3, "`def double"),
    "none is right": (DRAFT, [], ["def double(x): return x / 3"], 0, "its own cell"),
    "made faster below": (RIGHT["double"], [], ["double = torch.no_grad()(double)"], 3, None),
    "a helper in its place": ("def two(): return 2", [], [BY_TWO], 3, None),
    "the same again": (RIGHT["double"], [], [RIGHT["double"]], 3, None),
    "a starter below": (RIGHT["double"], [], [STARTER], 3, None),
    "a right one that has the starter's line": (f"{DRAFT}\ndef other(x): {STUB}", [DRAFT + " "], [], 0, "its own cell"),
    "the starter's line in another": (f"{RIGHT['double']}\ndef other(x): {STUB}", [DRAFT], [], 3, "`def double"),
    "in another exercise's cell": (DRAFT, [], [], 3, "`def double"),
    "two of a helper, the later one right": (BY_TWO, [TWO.format(3)], [TWO.format(2)], 3, "its own cell, with"),
    "a helper as it was at first": (BY_TWO, [TWO.format(2), TWO.format(3), TWO.format(2)], [], 3, None),
    "a number that grows twice": ("def double(x): return k * x", ["k = 0.5", "k *= 2", "k *= 2"], [], 3, None),
    "below, where its own cell imports": (f"import torch\n{BY_K}", [], ["K = torch.tensor(2.0)"], 3, None),
    "below, called as in its own test": (f"{BY_K}\nx = double(torch.ones(2))", [], ["x = 2\nK = x"], 3, None),
    "in order, with what its own cell gives": (
        BY_T,
        ["T = {}"],
        ["T['k'] = base", "k = T['k']"],
        3,
        "its own cell, with",
    ),
    "two of a helper, the earlier one right": (BY_TWO, [TWO.format(2)], [TWO.format(3)], 3, None),
    "what its cell needs when it runs, below": ("def double(x, k=K): return k * x", [], ["K = 2"], 3, None),
    "below, made of it": (f"{RIGHT['double']}\nK = 2", [], ["twofold = lambda x: K * double(x)"], 3, None),
    "defined under a condition": (STARTER, [RECURSIVE], [], 3, None),
    "defined on a line with its use": (STARTER, [LINE], [], 3, None),
}


@pytest.fixture(scope="module")
def one_grader(tiny, tmp_path_factory):
    """A grader for many notebooks."""
    with Grader(tiny, tmp_path_factory.mktemp("class")) as grader:
        yield grader


@pytest.mark.thorough(but=3)
@pytest.mark.parametrize("name", SEVERAL)
def test_where_several_cells_define_a_function_the_best_counts_and_it_is_said(one_grader, name):
    """Whatever a student's session ran last, and so checked, is among them."""
    own, above, below, points, counts = SEVERAL[name]
    both = f"{RIGHT['double']}\n{RIGHT['quad']}" if name == "in another exercise's cell" else RIGHT["quad"]
    plain = notebook(double=own, quad=both)
    plain["cells"] = [*plain["cells"][:1], *map(own_cell, above), *plain["cells"][1:], *map(own_cell, below)]
    found = one_grader.verdicts(LESSON, restored(plain))
    assert (found["double"].score, found["quad"].score) == (points, 2)
    said = " ".join(found["double"].notes)
    assert ("ways were judged" in said) == (counts is not None), said
    assert counts is None or re.search(rf"and (the cell that begins with )?{counts}.* counts", said), said


def test_a_solution_that_defines_another_exercises_function_is_judged_like_any(tmp_path):
    both = {"    return double(double(x))": "    return double(double(x))\ndef double(x):\n    return 2 * x"}
    course = tiny_course.write(tmp_path, "lesson", both)
    with Grader(course, tmp_path / "class") as grader:
        found = grader.verdicts(course.lesson(NAME), restored(notebook(**RIGHT)))
    assert [each.score for each in found.values()] == [3, 2]


ADDED = {  # to a cell of the lesson: what is written into its place, and of which an answer makes use
    "an import and a number on one line": ("imports", "from autograder import check; k = 2", "k * x"),
    "a table that is filled": ("imports", "import math\ntable = {}\ntable['two'] = 2", "table['two'] * x"),
    "a condition": ("imports", "if True:\n    import torch\n    k = 2", "k * x"),
    "a long sum on the same line": (
        "imports",
        f"from autograder import check; k = {'+'.join('1' * 600)}",
        "k // 300 * x",
    ),
    "a list that grows": ("check-quad", "check('quad')\nsizes = []\nsizes.append(2)", "sizes[0] * x"),
}


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize("name", ADDED)
def test_what_was_added_to_a_locked_cell_is_there_with_all_that_was_done_to_it(one_grader, name):
    place, text, value = ADDED[name]
    plain = notebook(double=f"def double(x): return {value}", quad=RIGHT["quad"])
    next(each for each in plain["cells"] if each["id"] in (place, f"setup-{place}"))["source"] = text
    assert one_grader.verdicts(LESSON, restored(plain))["double"].score == 3
