"""A student at work in JupyterLab, as `make lab` starts it."""

import json
import re

import nbformat
import pytest

from autograder.course.course import Course
from autograder.course.lesson import without_marks
from autograder.judging.program import Cell, build_program

from .conftest import ROOT

COURSE = Course.at(ROOT)
EXERCISE = "predict_cache_bytes"


def opened(page, lab, path=""):
    """Open a notebook, once its kernel is ready; return its panel."""
    page.goto(lab(path and f"lab/tree/{path}?reset"))
    panel = page.locator(".jp-NotebookPanel:not(.lm-mod-hidden)")
    panel.locator(".jp-Notebook .jp-Cell").first.wait_for()
    panel.locator(".jp-Notebook-ExecutionIndicator[data-status=idle]").wait_for()
    return panel


def cell(panel, text):
    """Return the code cell that holds this text."""
    return panel.locator(".jp-CodeCell").filter(has_text=text).first


def dismiss(page):
    """Close a dialog that JupyterLab opens where its server was slow to answer, and say which it was."""
    for dialog in page.locator(".jp-Dialog").all():
        print("closed a dialog:", dialog.inner_text())
        page.keyboard.press("Escape")
        dialog.wait_for(state="hidden")


def run(page, one):
    """Run a cell and wait until it is done."""
    prompt = one.locator(".jp-InputPrompt")
    before = prompt.inner_text()
    for _ in range(5):  # until the kernel is connected, JupyterLab forgets what it should run
        dismiss(page)
        one.locator(".cm-content").click()
        page.keyboard.press("Control+Enter")
        page.wait_for_timeout(500)
        if prompt.inner_text() != before:
            break
    prompt.filter(has_text=re.compile(r"\[\d+\]"), has_not_text=before).wait_for()
    return one.locator(".jp-OutputArea")


def notebook(folder, name, sources):
    """Write a notebook of these code cells, by id."""
    cells = [nbformat.v4.new_code_cell(source, id=key) for key, source in sources.items()]
    made = nbformat.v4.new_notebook(cells=cells)
    made.metadata["kernelspec"] = {"display_name": "Python 3", "language": "python", "name": "python3"}
    (folder / "course" / name).mkdir(exist_ok=True)
    nbformat.write(made, folder / "course" / name / f"{name}.ipynb")
    return f"course/{name}/{name}.ipynb"


def test_it_opens_at_lesson_00_and_lists_no_solutions(new_page, lab, shoot):
    page = new_page()
    panel = opened(page, lab)
    assert panel.locator("h1").first.inner_text().startswith("Lesson 00")
    page.locator(".jp-BreadCrumbs-home").click()
    listed = page.locator(".jp-DirListing-itemName")
    listed.filter(has_text="course").wait_for()
    names = listed.all_inner_texts()
    assert "course" in names and not {"solutions", "tests"} & set(names)
    shoot(page, "lab_first")


def test_a_student_solves_an_exercise(new_page, lab, shoot, serious, checkout):
    page = new_page()
    panel = opened(page, lab, "course/01_mha/01_mha.ipynb")
    run(page, cell(panel, "from autograder import check"))
    check = cell(panel, f'check("{EXERCISE}")')
    shown = run(page, check)
    assert "CheckFailed: there is no function" in shown.inner_text()

    answer = cell(panel, f"def {EXERCISE}")
    answer.locator(".cm-content").click()
    page.keyboard.press("Control+A")
    page.keyboard.insert_text(without_marks(COURSE.lesson("01_mha").solutions[EXERCISE]).replace("* itemsize", ""))
    run(page, answer)
    shown = run(page, check)
    shown.get_by_text("what was found").wait_for()
    assert "0 of 2 points" in shown.inner_text() and "✗ wrong" in shown.inner_text()

    answer.locator(".cm-content").click()
    page.keyboard.press("Control+A")
    page.keyboard.insert_text(without_marks(COURSE.lesson("01_mha").solutions[EXERCISE]))
    run(page, answer)
    shown = run(page, check)
    shown.get_by_text("passed").wait_for()
    assert "2 of 2 points" in shown.inner_text()
    shoot(page, "lab_passed")
    noted = json.loads((checkout / "course" / "01_mha" / ".progress" / f"{EXERCISE}.json").read_text())
    assert noted["verdict"]["outcome"] == "passed"


@pytest.mark.thorough
@pytest.mark.parametrize("theme", ["JupyterLab Light", "JupyterLab Dark"])
def test_pictures_and_verdicts_are_accessible_in_both_themes(new_page, lab, shoot, serious, checkout, theme):
    sources = {
        "draw": "from mla_ref import plots\nplots.bars({'naive': 3, 'absorb': 1}, unit='µs', title='a step')",
        "check": "from autograder.checking import show\nfrom autograder.judging.verdict import *\n"
        "for outcome in Outcome:\n"
        "    show(Verdict('double', 3, 1, outcome, 'halved', parts=(PartVerdict('small', 3, 1, 'halved'),)))",
        "progress": "from autograder.checking import progress\nprogress()",
    }
    page = new_page()
    page.goto(lab("lab?reset"))
    page.locator(".jp-BreadCrumbs-home").wait_for()
    page.evaluate(
        """async ([url, theme]) => {
            const headers = {'X-XSRFToken': (document.cookie.match(/_xsrf=([^;]*)/) || [])[1]};
            const body = JSON.stringify({raw: JSON.stringify({theme})});
            const done = await fetch(url, {method: 'PUT', body, headers});
            if (!done.ok) throw done.status;
        }""",
        [lab("lab/api/settings/@jupyterlab/apputils-extension:themes"), theme],
    )
    panel = opened(page, lab, notebook(checkout, "90_looks", sources))
    page.wait_for_function("theme => document.body.dataset.jpThemeName === theme", arg=theme)
    for key in sources:
        run(page, cell(panel, sources[key].splitlines()[0]))
    image = panel.locator("img[alt^='a step']")
    image.wait_for()
    assert image.get_attribute("alt") == "a step. Bars in µs. naive: 3. absorb: 1."
    assert panel.locator(".jp-OutputArea img").count() == 1
    for width in (1280, 800):
        page.set_viewport_size({"width": width, "height": 1400})
        shoot(page, f"lab_verdicts_{theme.split()[1]}")
    assert serious(page, ".jp-NotebookPanel:not(.lm-mod-hidden) .jp-OutputArea-output") == []


@pytest.mark.thorough
def test_a_widget_moves_its_picture(new_page, lab, shoot, checkout):
    lesson = COURSE.lesson("08_roofline")
    own = [Cell(c["id"], without_marks(c.source)) for c in lesson.notebook.cells if c.cell_type == "code"]
    sliders = next(each for each in own if "import Dropdown" in each.source)
    before = own[: own.index(sliders)]
    program = build_program((), (), [*before, sliders], sliders)
    sources = {each.name: each.source for each in program}
    page = new_page(height=1600)
    panel = opened(page, lab, notebook(checkout, "91_widget", sources))
    for n in range(len(sources)):
        output = run(page, panel.locator(".jp-CodeCell").nth(n))
    image = output.locator("img").first
    image.wait_for()
    assert "prefix of 4096 tokens, S = 1" in image.get_attribute("alt")
    handle = output.locator(".widget-hslider").filter(has_text="S").first.locator(".noUi-handle")
    handle.focus()
    page.keyboard.press("ArrowRight")
    output.locator("img[alt*='S = 2']").first.wait_for()
    shoot(page, "lab_widget")


@pytest.mark.thorough
def test_validate_says_whether_the_checks_pass(new_page, lab, checkout):
    lesson = COURSE.lesson("00_start_here")
    keep = ("setup-imports", "tensor_bytes", "check-tensor_bytes")
    made = nbformat.from_dict(json.loads(json.dumps(lesson.notebook)))
    made.cells = [each for each in made.cells if each["id"] in keep]
    for each in made.cells:
        each.source = without_marks(each.source)
    (checkout / "course" / "92_valid").mkdir()
    nbformat.write(made, checkout / "course" / "92_valid" / "92_valid.ipynb")
    page = new_page()
    panel = opened(page, lab, "course/92_valid/92_valid.ipynb")
    panel.locator(".jp-Toolbar").get_by_text("Validate").click()
    page.get_by_text("Success! Your notebook passes all the tests.").wait_for()


def test_the_list_of_assignments_opens(new_page, lab, shoot):
    page = new_page()
    opened(page, lab)
    page.get_by_role("menuitem", name="Nbgrader").click()
    page.get_by_text("Assignment List").click()
    # In front or not: a notebook that opens slowly comes to the front late.
    told = page.locator("#released_assignments_list_placeholder")
    told.filter(has_text="There are no assignments to fetch").wait_for(state="attached")
    page.wait_for_function("() => !document.getElementById('released_assignments_list_placeholder').hidden")
    assert page.get_by_text("exchange directory does not exist").count() == 0
    shoot(page, "lab_assignments")
