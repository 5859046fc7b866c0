"""Figures of records come into a lesson as its text has them, or a sentence says what is wrong."""

import json
from pathlib import Path
from types import SimpleNamespace

import jupytext
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from autograder.course.course import Course
from autograder.course.figures import PLACEHOLDER, FigureError, fill, literal

COURSE = Course.at(Path(__file__).parents[3])
KERNELS = COURSE.root / "autograder" / "kernels"  # cost_constants.json

RECORD = {
    "date": "2026-01-02",
    "device": "Some GPU",
    "versions": {"torch": "2.1", "triton": "3.1", "driver": "5"},
    "us": {"ours": 12.34, "theirs": 25.0},
}


@pytest.fixture
def records(tmp_path):
    """Two folders with a record each; the second folder has one of the first's name too."""
    first, second = tmp_path / "first", tmp_path / "second"
    for folder, name, content in (
        (first, "speed", RECORD),
        (second, "speed", {}),
        (second, "fitted", {"measured": RECORD, "launch_us": 4.5}),
    ):
        folder.mkdir(exist_ok=True)
        (folder / f"{name}.json").write_text(json.dumps(content))
    return first, second


def module(figures=None, claims=None):
    given = {"figures": figures, "claims": claims}
    return SimpleNamespace(**{name: (lambda record, f=f: f(record)) for name, f in given.items() if f})


def filled(records, figures=None, claims=None, text="", code="", where="solutions/01_x"):
    cells = [new_markdown_cell(text + "\n\nFigures: {{records}}."), new_code_cell(code)]
    notebook = new_notebook(cells=cells)
    fill(notebook, module(figures, claims), records, where)
    return [cell.source for cell in notebook.cells]


def test_figures_stand_in_the_text_and_in_code(records):
    text, code = filled(
        records,
        lambda record: {"ours": f"{record('speed')['us']['ours']:.1f}", "n": 3, "us": {"a": [1, 2.5], (1, "µ"): (4,)}},
        lambda record: {"twice": record("speed")["us"]["theirs"] > 2 * record("speed")["us"]["ours"]},
        text="Ours takes {{ours}} µs, half as long{{!twice}}, {{n}} runs on {{speed.device}}, torch {{speed.torch}}.",
        code='US = "{{us}}"  # µs\nprint("{{ours}}", f"{{n}} {{{n}}}", "{{n}}" + 1)',
    )
    assert text.startswith("Ours takes 12.3 µs, half as long, 3 runs on Some GPU, torch 2.1.")
    assert code == 'US = {"a": [1, 2.5], (1, "µ"): (4,)}  # µs\nprint("12.3", f"3 {3}", 3 + 1)'


def test_braces_that_are_no_placeholders_stay(records):
    latex = r"$\frac{{q_i}^\top k}{{2}}$"
    notebook = new_notebook(cells=[new_markdown_cell(latex), new_code_cell('f"{{}} {{ n }} {{1}}"')])
    fill(notebook, None, records, "01_x")
    assert [cell.source for cell in notebook.cells] == [latex, 'f"{{}} {{ n }} {{1}}"']


def test_the_records_that_were_asked_for_are_named_with_where_they_are_from(records):
    figures = lambda record: {"n": len(record("speed")) + record("fitted")["launch_us"]}
    text, _ = filled(records, figures, text="{{n}}")
    assert text.endswith("Figures: `speed.json`, `fitted.json`: Some GPU, 2026-01-02, torch 2.1, Triton 3.1.")


def test_folders_are_searched_in_order(records):
    asked = []
    filled(records, lambda record: asked.append(record("speed")) or {})
    assert asked == [RECORD]


@pytest.mark.parametrize(
    ("figures", "claims", "text", "message"),
    [
        (None, None, "a {{b}}", '01_x/lesson.py: {{b}} after "a" is not in figures.py'),
        (None, None, "a {{!b}}", '01_x/lesson.py: {{!b}} after "a" is not in figures.py'),
        (lambda r: {"b": 1, "c": 2}, None, "{{c}}", "01_x/figures.py: no cell of lesson.py uses b"),
        (None, lambda r: {"b": True}, "", "01_x/figures.py: no cell of lesson.py uses !b"),
        (
            lambda r: {"n": 1},
            lambda r: {"b": False},
            "Of {{n}}, it is twice as fast{{!b}}.",
            '01_x/lesson.py: the record does not bear out "Of , it is twice as fast" (b)',
        ),
        (lambda r: {"b": [1]}, None, "a {{b}}", '01_x/lesson.py: b is data, and stands in a text, after "a"'),
        (lambda r: {"b": r("gone")}, None, "{{b}}", "01_x/figures.py: there is no record gone.json in "),
        (None, None, "{{gone.date}}", "01_x/lesson.py: there is no record gone.json in "),
        (None, None, "{{speed.lua}}", "01_x/lesson.py: speed.json has no lua; it has date, device, driver, torch, "),
        (lambda r: r("speed")["x"], None, "", "01_x/figures.py: figures() fails with KeyError: 'x'"),
        (None, lambda r: 1 / 0, "", "01_x/figures.py: claims() fails with ZeroDivisionError: division by zero"),
    ],
)
def test_what_is_wrong_is_said_in_a_sentence(records, figures, claims, text, message):
    with pytest.raises(FigureError) as caught:
        filled(records, figures, claims, text=text)
    assert str(caught.value).startswith(f"solutions/{message}")


def test_a_lesson_with_figures_names_its_records(records):
    notebook = new_notebook(cells=[new_markdown_cell("{{b}}")])
    with pytest.raises(FigureError, match=r"01_x/figures\.py: no cell of lesson\.py uses records"):
        fill(notebook, module(lambda record: {"b": 1}), records, "01_x")


def test_long_data_is_laid_out_as_a_formatter_would():
    value = {"rows": [[n, n + 0.25] for n in range(20)], "some words": (1,)}
    text = literal(value, column=10)
    assert eval(text) == value
    assert max(map(len, text.split("\n"))) <= 120
    assert text.startswith('{\n    "rows": [\n        [0, 0.25], [1, 1.25], ')
    assert text.endswith('],\n    ],\n    "some words": (1,),\n}')


@pytest.mark.parametrize("lesson", COURSE.lesson_names())
def test_every_lesson_of_the_course_is_filled_from_the_records(lesson):
    notebook = jupytext.read(COURSE.folder(lesson) / "lesson.py", fmt="py:percent")
    module = COURSE.module(lesson, "figures") if COURSE.has(lesson, "figures") else None
    fill(notebook, module, [COURSE.root / "benchmarks", KERNELS], COURSE.folder(lesson))
    assert not any(PLACEHOLDER.search(cell.source) for cell in notebook.cells)
