"""The lessons as students and the grader meet them."""

import itertools
import re

import nbformat
import pytest
from nbclient import NotebookClient

from autograder.classroom import Graded
from autograder.demo import SECONDS, compare
from autograder.exercises import exercises
from autograder.grading import Grader
from autograder.lesson import lesson_names, load_lesson
from autograder.sample import render, sample_lessons, submissions
from autograder.submission import SubmissionError, read_cells, restore, stand_in

LESSONS = lesson_names()


def test_every_lesson_has_exercises_and_a_sample_class():
    assert LESSONS
    assert sample_lessons() == LESSONS
    for name in LESSONS:
        assert [each.name for each in exercises(name)] == list(load_lesson(name).solutions)


def test_no_two_exercises_share_a_name():
    names = [each.name for lesson in LESSONS for each in exercises(lesson)]
    assert len(names) == len(set(names))


def texts(name):
    """Return each exercise with the text that leads to it."""
    cells = load_lesson(name).notebook.cells
    places = {cell["id"]: n for n, cell in enumerate(cells)}
    ends = [places[each.name] for each in exercises(name)]
    return [
        (each, "".join(cell.source for cell in cells[start:end]))
        for each, start, end in zip(exercises(name), [0, *ends], ends, strict=False)
    ]


@pytest.mark.parametrize("name", LESSONS)
def test_each_exercise_has_three_hints(name):
    for each, text in texts(name):
        assert [text.count(f"<summary>Hint {n}</summary>") for n in (1, 2, 3)] == [1, 1, 1], each.name
        assert text.count("<details>") == text.count("</details>")


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


@pytest.mark.parametrize("name", LESSONS)
def test_the_solution_notebook_runs_from_top_to_bottom(name, tmp_path):
    notebook = nbformat.from_dict(load_lesson(name).notebook)
    NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(tmp_path)}}).execute()
    checks = [cell for cell in notebook.cells if cell["id"].startswith("check-")]
    assert checks
    for cell in checks:
        shown = "".join(output.get("data", {}).get("text/plain", "") for output in cell.outputs)
        assert ": passed, " in shown, cell["id"]


@pytest.mark.parametrize("name", LESSONS)
def test_the_sample_class_gets_the_verdicts_it_should(name, tmp_path):
    lesson, found = load_lesson(name), []
    (tmp_path / "seed").write_text("the same cases in every run")
    with Grader(tmp_path, SECONDS) as grader:
        for each in submissions(name):
            path = tmp_path / each.student / f"{name}.ipynb"
            path.parent.mkdir()
            content = render(lesson, each)
            if content is not None:
                path.write_bytes(content)
            try:
                notebook = restore(lesson, read_cells(path))
            except SubmissionError as problem:
                notebook = stand_in(lesson, problem)
            found.append(Graded(each.student, name, list(grader.verdicts(lesson, notebook).values())))
    assert compare(found, [name]) == []
    shown = {(verdict.exercise, verdict.mistake) for result in found for verdict in result.verdicts}
    named = {(each.name, mistake.name) for each in exercises(name) for mistake in each.mistakes}
    assert named - shown == set(), "mistakes that no sample submission makes"
