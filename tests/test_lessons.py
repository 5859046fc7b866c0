"""The lessons as students and the grader meet them."""

import builtins
import dis
import itertools
import re
from pathlib import Path
from random import Random
from types import CodeType, SimpleNamespace

import nbformat
import pytest
import torch
from IPython.core.inputtransformer2 import TransformerManager
from nbclient import NotebookClient

from autograder.classroom.database import MARK
from autograder.classroom.demo import SECONDS, surprise
from autograder.classroom.grade import SEED
from autograder.classroom.grader import Grader
from autograder.classroom.restore import SubmissionError, placeholder, read_cells, restore
from autograder.course.course import Course
from autograder.course.lesson import without_marks
from autograder.course.sample import expected, render, sample_lessons, submissions
from autograder.isolation.worker.trees import tensors_in
from autograder.judging.cases import draw_cases
from autograder.judging.compare import Calls, assess
from autograder.judging.exercise import upcast
from autograder.judging.program import Cell, build_program

COURSE = Course.at(Path(__file__).parents[1])
LESSONS = COURSE.lesson_names()
LONG_TO_JUDGE = ("05", "07", "09", "11", "13")  # lessons


def test_every_lesson_has_exercises_and_a_sample_class():
    assert LESSONS
    assert sample_lessons(COURSE) == LESSONS
    for name in LESSONS:
        assert [each.name for each in COURSE.exercises(name)] == list(COURSE.lesson(name).solutions)


def test_no_two_exercises_share_a_name():
    names = [each.name for lesson in LESSONS for each in COURSE.exercises(lesson)]
    assert len(names) == len(set(names))


def test_the_first_lesson_names_every_lesson():
    (table,) = (c.source for c in COURSE.lesson("00_start_here").notebook.cells if "The course at a glance" in c.source)
    assert re.findall(r"^\| (\d\d) ", table, re.MULTILINE) == [name[:2] for name in LESSONS]


def test_who_takes_the_last_slow_step_for_the_knee_is_told_so_and_not_0_over_0():
    """The first case of each part, whose reason the student reads, has a row behind its last slow step."""
    _, exercise = COURSE.locate("l2_knee")
    for part in exercise.parts:
        case = exercise.inputs(None, **part.visible[0])
        (low, before), (high, after) = case["rows"][-2:]
        assert 1e6 * (high - low) / (after - before) > case["bandwidth"], part.name


def test_a_launch_that_the_starter_asks_for_is_the_only_one_that_is_right():
    kernels = [(COURSE.lesson(name), each) for name in LESSONS for each in COURSE.exercises(name) if each.kernel]
    asked = [each for lesson, each in kernels if "in one launch" in lesson.solutions[each.name]]
    assert len(asked) > 12
    assert {each.name for each in asked if each.launches != 1} == set()


FOUR_BITS = COURSE.locate("dequantize_int4")[1].oracle  # packed, scales, axis -> weight


def _scaled_first(q_nope, packed, scales):
    weight = FOUR_BITS(packed, scales, 2).to(q_nope.dtype)
    return torch.einsum("bhd,hrd->bhr", q_nope.double(), weight.double()).to(q_nope.dtype)


def _one_after_the_other(q_latent, q_rope, c_kv, k_rope, Dn):
    query, keys = torch.cat((q_latent, q_rope), -1), torch.cat((c_kv, k_rope), -1)
    return (query[:, :, :, None] * keys[:, None, None]).cumsum(-1)[..., -1] * (Dn + q_rope.shape[-1]) ** -0.5


REORDERED = {"absorb_query_int4": _scaled_first, "attention_score": _one_after_the_other}


@pytest.mark.parametrize("name", REORDERED)
def test_no_case_is_so_small_that_rounding_in_another_order_is_wrong_in_it(name):
    """A single number may be the sum of larger ones that cancel; among several, it is small beside the others."""
    _, exercise = COURSE.locate(name)
    small = [
        params
        for part in exercise.parts
        for params in part.visible
        if sum(tensor.numel() for tensor in tensors_in(exercise.inputs(None, **params))) < 500
    ]
    assert small
    for seed, params in itertools.product(range(600), small):
        given = exercise.inputs(torch.Generator().manual_seed(seed), **params)
        assert assess(exercise, given, REORDERED[name](**given)) is None, (seed, params)


def test_every_lessons_kernels_are_compared_before_they_are_timed():
    timed = [each for lesson in LESSONS for each in COURSE.exercises(lesson) if each.speed]
    assert len(timed) > 12
    for each in timed:
        assert each.speed.small is not None, each.name
        assert each.speed.small.keys() <= each.speed.case.keys(), each.name


KERNELS = [each for lesson in LESSONS for each in COURSE.exercises(lesson) if each.kernel]


@pytest.mark.parametrize("exercise", KERNELS, ids=lambda each: each.name)
def test_the_dtype_of_what_a_kernel_gives_is_part_of_the_answer(exercise):
    """What is written costs memory by its dtype, and rounding it to less, or to more, is another task."""
    cases = draw_cases(exercise, "seed")
    for case in cases[:: len(cases) - 1]:
        expected = exercise.oracle(**upcast(case.arguments))
        values = expected if isinstance(expected, tuple) else (expected,)
        wanted = [case.arguments[like].dtype if isinstance(like, str) else like for like in exercise.like]
        right = [value.to(dtype) for value, dtype in zip(values, wanted, strict=True)]
        assert assess(exercise, case.arguments, _as(expected, right)) is None
        for n, value in enumerate(values):
            other = [*right[:n], value.double(), *right[n + 1 :]]
            found = assess(exercise, case.arguments, _as(expected, other))
            assert found and f"expected {str(wanted[n]).removeprefix('torch.')}" in found.reason


@pytest.mark.parametrize("name", LESSONS)
def test_a_mistake_that_is_made_in_every_call_is_told_and_no_other(name):
    """Of numbers and choices, which several mistakes may have by chance. The sample class shows the others."""
    for each in COURSE.exercises(name):
        cases = draw_cases(each, "seed", hidden=False)
        if tensors_in([case.arguments for case in cases]):
            continue
        for mistake in each.mistakes:
            results = [mistake.oracle(**upcast(case.arguments)) for case in cases]
            calls = Calls(each, [(case.arguments, result) for case, result in zip(cases, results, strict=True)])
            found = (assess(each, case.arguments, result, calls) for case, result in zip(cases, results, strict=True))
            told = next((one.reason for one in found if one and one.mistake), mistake.message)
            assert told == mistake.message, (each.name, mistake.name)


def _as(expected, values):
    return tuple(values) if isinstance(expected, tuple) else values[0]


def texts(name):
    """Return each exercise with the text that leads to it."""
    cells = COURSE.lesson(name).notebook.cells
    places = {cell["id"]: n for n, cell in enumerate(cells)}
    ends = [places[each.name] for each in COURSE.exercises(name)]
    return [
        (each, "".join(cell.source for cell in cells[start:end]))
        for each, start, end in zip(COURSE.exercises(name), [0, *ends], ends, strict=False)
    ]


@pytest.mark.parametrize("name", LESSONS)
def test_a_lesson_opens_with_its_exercises_and_their_points(name):
    opening = next(cell.source for cell in COURSE.lesson(name).notebook.cells if cell.source.startswith("# Lesson"))
    rows = re.findall(r"^\| `(\w+)` \|.+?\| (\d+) \|(?: (\d*) ?\|)?$", opening, flags=re.MULTILINE)
    points = [
        (each.name, f"{each.points:g}", f"{each.speed.points:g}" if each.speed else "")
        for each in COURSE.exercises(name)
    ]
    assert rows == points


@pytest.mark.parametrize("name", LESSONS)
def test_each_exercise_has_three_hints(name):
    for each, text in texts(name):
        assert [text.count(f"<summary>Hint {n}</summary>") for n in (1, 2, 3)] == [1, 1, 1], each.name
        assert text.count("<details>") == text.count("</details>")


@pytest.mark.parametrize("name", LESSONS)
def test_a_cell_that_asks_for_a_number_of_ones_own_is_open(name):
    for cell in COURSE.lesson(name).notebook.cells:
        if re.search(r"put your own|change both", cell.source) and cell.cell_type == "code":
            assert not cell.metadata.get("jupyter", {}).get("source_hidden"), cell["id"]


def test_hidden_tensors_are_as_small_and_as_large_as_the_lessons_say():
    said = re.search(r"below\s+B = (\d+), S = (\d+), T = (\d+)\s+and H = (\d+)", "".join(t for _, t in texts("01_mha")))
    drawn = [
        case
        for each in COURSE.exercises("01_mha")
        if each.name in ("attention", "grouped_attention")
        for part in each.parts
        for seed in range(300)
        for case in part.hidden(Random(seed))
    ]
    for letter, bound in zip("BSTH", map(int, said.groups()), strict=True):
        assert max(case[letter] for case in drawn) < bound, letter
    _, exercise = COURSE.locate("absorbed_mla_attention")
    _, text = next(each for each in texts("03_absorption") if each[0].name == exercise.name)
    found = re.search(r"has ([\d,]+) tokens or more.*?= (\d+) MiB", text, re.DOTALL).groups()
    T, mib = (int(each.replace(",", "")) for each in found)
    assert round(T * 64 * 256 * 4 / 2**20) == mib
    long = [max(case["T"] for part in exercise.parts for case in part.hidden(Random(seed))) for seed in range(300)]
    assert T <= min(long) < T + 10


@pytest.mark.parametrize("name", LESSONS)
def test_the_bars_of_speed_are_published(name):
    found = [*texts(name), (None, "")]
    for (each, before), (_, behind) in itertools.pairwise(found):
        text = before + behind
        if each.speed and "the same bars" not in text:
            for fraction, _ in each.speed.bars:
                assert re.search(rf"(?<![\d.])({fraction:g}|{100 * fraction:.0f} %)(?!\d)", text), each.name
        if each.speed and each.speed.ratio > 1 and "the same bars." not in text:
            assert f"{each.speed.ratio:g} times" in text, each.name


def _names(code):
    """Return the names that a cell reads and has not set before, and those that it sets."""
    read, put = set(), set()
    for step in dis.get_instructions(code):
        if step.opname == "STORE_NAME":
            put.add(step.argval)
        elif step.opname == "LOAD_NAME" and step.argval not in put:
            read.add(step.argval)
    waiting = [code]
    while waiting:
        inner = [each for each in waiting.pop().co_consts if isinstance(each, CodeType)]
        waiting += inner
        steps = (step for each in inner for step in dis.get_instructions(each))
        read |= {step.argval for step in steps if step.opname == "LOAD_GLOBAL"} - put
    return read, put


@pytest.mark.parametrize("name", LESSONS)
def test_where_a_students_own_answers_stand_in_all_that_is_given_has_what_it_calls(name):
    """As in a release. Of an exercise that needs none, what the lesson gives may be of no use."""
    lesson = COURSE.lesson(name)
    cells = [Cell(each, without_marks(source)) for each, source in lesson.solutions.items()]
    for exercise in (each for each in lesson.exercises if each.needs):
        cut = build_program(lesson.setup, [], cells, next(cell for cell in cells if cell.name == exercise.name))
        read, put = _names(compile("\n".join(cell.source for cell in cut), name, "exec"))
        assert not read - put - set(dir(builtins)), exercise.name


@pytest.mark.parametrize("name", LESSONS)
def test_a_cell_that_is_run_again_reads_what_it_read_before(name):
    """Who mends an exercise late runs a figure again, when all cells behind it have run."""
    sources = [cell.source for cell in COURSE.lesson(name).notebook.cells if cell.cell_type == "code"]
    python = TransformerManager().transform_cell
    cells = [_names(compile(python(without_marks(source)), name, "exec")) for source in sources]
    for n, (read, _) in enumerate(cells):
        before, later = (set().union(*(put for _, put in part)) for part in (cells[:n], cells[n + 1 :]))
        assert not read & before & later, sources[n]


@pytest.mark.thorough(but=2)
@pytest.mark.parametrize("name", LESSONS)
def test_the_solution_notebook_runs_from_top_to_bottom(name, tmp_path):
    notebook = nbformat.from_dict(COURSE.lesson(name).notebook)
    notebook.cells = [cell for cell in notebook.cells if not cell["id"].startswith("speed-")]  # judged with the class
    NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(tmp_path)}}).execute()
    checks = [cell for cell in notebook.cells if cell["id"].startswith("check-")]
    assert checks
    for cell in checks:
        shown = "".join(output.get("data", {}).get("text/plain", "") for output in cell.outputs)
        assert ": passed, " in shown, cell["id"]


def test_the_rough_model_of_lesson_06_is_as_far_off_as_the_text_says():
    """By the numbers that the lesson shows."""
    cells = [cell["source"] for cell in COURSE.lesson("06_flash_decoding").notebook["cells"]]
    said = next(re.search(r"off by\s+(\d+) to (\d+) %", cell) for cell in cells if "The rough model is off by" in cell)
    plots = SimpleNamespace(curves=lambda *_, **__: None)
    found = {"plots": plots, "splits": [1, 16]}
    for source in cells:
        if "def predict_splits" in source or "H100_SPLITS = " in source:
            exec(without_marks(source), found)
    measured = found["H100_SPLITS"]
    off = [
        abs(modelled / measured[B][n] - 1)
        for B, T in ((8, 4096), (128, 1024))
        for n, modelled in zip(*found["lines"][f"B = {B} T = {T}, model"], strict=True)
    ]
    assert said.groups() == (f"{100 * min(off):.0f}", f"{100 * max(off):.0f}")


@pytest.fixture(scope="module")
def grader(tmp_path_factory):
    folder = COURSE.root / "classroom"  # the demo's: what it has judged, by the same code on the same cases, stands
    if not (folder / MARK).exists() or (folder / "seed").read_text().strip() != SEED:
        folder = tmp_path_factory.mktemp("classroom")
        (folder / "seed").write_text(SEED)
    with Grader(COURSE, folder, SECONDS) as grader:
        yield grader


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.thorough] * (name[:2] in LONG_TO_JUDGE)) for name in LESSONS]
)
def test_the_sample_class_gets_the_verdicts_it_should(name, grader, tmp_path, thorough):
    """The telling part alone, which the demo shows too; the whole class where the tests are thorough."""
    lesson, surprises, shown = COURSE.lesson(name), [], set()
    for each in submissions(COURSE, name, telling=not thorough):
        path = tmp_path / each.student / f"{name}.ipynb"
        path.parent.mkdir()
        content = render(lesson, each)
        if content is not None:
            path.write_bytes(content)
        try:
            notebook = restore(lesson, read_cells(path))
        except SubmissionError as problem:
            notebook = placeholder(lesson, problem)
        wanted = expected(lesson, each)
        for job in grader.jobs(lesson, notebook):
            verdict = grader.verdict(lesson, job)
            shown.add((verdict.exercise, verdict.mistake))
            if said := surprise(verdict, wanted[job.name]):
                surprises.append(f"{each.student}, {job.name}: {said}")
    assert "\n".join(surprises) == ""
    named = {(each.name, mistake.name) for each in COURSE.exercises(name) for mistake in each.mistakes}
    assert not thorough or named - shown == set(), "mistakes that no sample submission makes"
