"""What a student is told of the own progress: what checks said last, and nothing that a damaged note could break."""

import json
import os
import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from typer.testing import CliRunner

from autograder import progress
from autograder.cli import app
from autograder.course.course import Course
from autograder.judging.verdict import Outcome, PartVerdict, Verdict

from .tiny_course import NAME, RIGHT, WRONG

PASSED = Verdict("double", 3, 3, Outcome.PASSED)
HALF = Verdict("double", 3, 1, Outcome.PARTIAL, "halved")


def run(*arguments):
    return CliRunner().invoke(app, ["progress", *map(str, arguments)])


@pytest.fixture(autouse=True)
def at_work(tiny, monkeypatch, tmp_path):
    """The tiny course is the one at work, and the student stands in a folder of the own."""
    monkeypatch.setenv("MLA_COURSE", str(tiny.root))
    monkeypatch.chdir(tmp_path)


def test_at_the_start_nothing_is_done_and_the_first_exercise_is_next(tmp_path):
    said = run(tmp_path).output
    assert re.search(rf"{NAME} +0 of 2 +0 of 5", said)
    assert f'Next: double in lesson {NAME}, then check("double") under it.' in said
    assert "Only the judge's verdict counts" in said


def test_the_last_check_of_all_folders_counts(tmp_path, tiny):
    progress.note(HALF, tmp_path / NAME)
    assert "Next: double in lesson 90_tiny: partial: halved" in run(tmp_path).output
    progress.note(PASSED, tmp_path / "a copy")
    said = run(tmp_path).output
    assert re.search(rf"{NAME} +1 of 2 +3 of 5", said) and "Next: quad" in said
    progress.note(HALF, tmp_path / NAME)
    assert re.search(rf"{NAME} +0 of 2 +1 of 5", run(tmp_path).output)
    assert run(tmp_path / NAME).output == run(tmp_path).output, "of a lesson's folder, those beside it count too"


def test_when_all_is_done_the_judge_is_next(tmp_path, tiny):
    for exercise in tiny.exercises(NAME):
        progress.note(Verdict(exercise.name, exercise.points, exercise.points, Outcome.PASSED), tmp_path)
    assert "mla-course check NOTEBOOK" in run(tmp_path).output
    found = json.loads(run(tmp_path, "--json").output)
    assert [(each["name"], each["score"], each["done"]) for each in found["exercises"]] == [
        ("double", 3, True), ("quad", 2, True)
    ]  # fmt: skip


def test_after_a_gap_one_goes_on_and_comes_back_at_the_end(tmp_path, tiny):
    progress.note(Verdict("quad", 2, 2, Outcome.PASSED), tmp_path)
    assert "Next: double" in run(tmp_path).output


def test_what_the_next_one_needs_and_is_wrong_comes_first(tmp_path):
    course = Course.at(Path(__file__).parents[2])
    lesson, exercise = course.locate("grouped_attention")
    assert exercise.needs == ("attention",)
    progress.note(Verdict("attention", 5, 2, Outcome.PARTIAL, "halved"), tmp_path)
    progress.note(Verdict("predict_cache_bytes", 2, 2, Outcome.PASSED), tmp_path)
    progress.note(Verdict(exercise.name, 4, 2, Outcome.PARTIAL, "quartered"), tmp_path)
    assert f"Next: attention in lesson {lesson}: partial: halved" in progress.as_text(
        progress.entries(course, tmp_path)
    )
    progress.note(Verdict("attention", 5, 5, Outcome.PASSED), tmp_path)
    assert f"Next: {exercise.name} in lesson {lesson}" in progress.as_text(progress.entries(course, tmp_path))


def test_speed_is_held_against_its_bars(tmp_path):
    course = Course.at(Path(__file__).parents[2])
    lesson, exercise = course.locate("scale_add")
    points, bars = exercise.speed.points, exercise.speed.bars
    parts = (PartVerdict("bar", points, 0.0, "slow"),)
    slow = Verdict(f"{exercise.name}:speed", points, 0.0, Outcome.SLOW, "slow", parts=parts, speed={"fraction": 0.234})
    progress.note(Verdict(exercise.name, exercise.points, exercise.points, Outcome.PASSED), tmp_path)
    progress.note(slow, tmp_path)
    found = progress.entries(course, tmp_path)
    for shown in (progress.as_text(found), progress.as_html(found)):
        assert f"{exercise.name} 23% of the floor" in shown
        assert f"bars at {', '.join(f'{bar:.0%}' for bar, _ in bars)}" in shown
        assert f"Next: the speed of {exercise.name} in lesson {lesson}: slow" in shown
    (line,) = (line for line in progress.as_text(found).splitlines() if line.startswith(lesson))
    assert line.split()[1] == "0", "an exercise is done with its speed"


HUGE = int("9" * 400)


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", "null", "{", "[" * 100_000, '{"time": 1, "verdict": {}}', '{"time": "2026-01-01"}'),
        json.dumps({"time": "2026-01-01", "verdict": {**PASSED.to_json(), "outcome": "first"}}),
        json.dumps({"time": "2026-01-01", "verdict": {**PASSED.to_json(), "score": HUGE}}),
        json.dumps({"time": "2026-01-01", "verdict": {**PASSED.to_json(), "speed": {"fraction": HUGE}}}),
        json.dumps({"time": "2026-01-01", "verdict": {**PASSED.to_json(), "speed": "fast"}}),
        json.dumps({"time": "2026-01-01", "verdict": {**PASSED.to_json(), "more": 1}}),
    ],
)
def test_a_damaged_note_counts_as_none(tmp_path, text):
    progress.note(PASSED, tmp_path)
    (file,) = (tmp_path / ".progress").iterdir()
    file.write_text(text)
    result = run(tmp_path)
    assert result.exit_code == 0
    assert re.search(rf"{NAME} +0 of 2 +0 of 5", result.output)


def test_a_forged_note_is_shown_as_text_and_within_bounds(tmp_path, tiny):
    said = "<script>alert(1)</script>\x1b[2J"
    forged = {**HALF.to_json(), "score": 1e9, "reason": said}
    progress.note(HALF, tmp_path)
    (file,) = (tmp_path / ".progress").iterdir()
    file.write_text(json.dumps({"time": "2026-01-01", "verdict": forged}))
    assert re.search(rf"{NAME} +0 of 2 +3 of 5", run(tmp_path).output)
    assert "\x1b" not in run(tmp_path).output
    html = progress.as_html(progress.entries(tiny, tmp_path))
    assert "<script>" not in html and "&lt;script&gt;" in html


def test_a_disk_that_takes_nothing_stops_no_check(tmp_path, monkeypatch):
    (tmp_path / ".progress").touch()  # where the folder would go
    progress.note(PASSED, tmp_path)

    def refuse(*_, **__):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(os, "mkdir", refuse)
    progress.note(PASSED, tmp_path / "elsewhere")
    assert not (tmp_path / "elsewhere").exists()


def test_a_folder_that_there_is_not_is_named(tmp_path):
    result = run(tmp_path / "none")
    assert isinstance(result.exception, FileNotFoundError)
    assert "name the one that holds your notebooks" in str(result.exception)


def test_a_notebooks_checks_are_noted_and_the_panel_shows_them(tmp_path, tiny):
    folder = tmp_path / NAME
    folder.mkdir()
    attempt = "exec('check(\"double\")', {'check': check, 'double': lambda x: x})"
    sources = [
        "import torch\nfrom autograder import check\nfrom autograder.checking import progress",
        *(RIGHT["double"], 'check("double")', attempt, "progress()"),
        *(WRONG["double"], 'check("double")', "progress()"),
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in sources])
    NotebookClient(notebook, allow_errors=True, resources={"metadata": {"path": str(folder)}}).execute()
    panels = [cell.outputs[0].data for cell in notebook.cells if cell.source == "progress()"]
    assert [re.search(r"of 2 +(\d) of 5", panel["text/plain"])[1] for panel in panels] == ["3", "0"]
    assert "<table>" in panels[0]["text/html"]
    assert re.search(rf"{NAME} +0 of 2", run(tmp_path).output)
