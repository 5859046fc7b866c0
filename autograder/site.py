"""The course as a static site: the students' lessons with executed outputs, a search, and a light and a dark theme.

A lesson runs with its solutions, and what each cell put out goes under the student's cell. No solution leaves this
process: outputs alone are kept, and the pages are made of the notebook as it is handed out. A page asks no other host.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode

from autograder.course.colab import OPENING
from autograder.course.course import PACKAGE, Course
from autograder.course.digest import OWN, digest, imported
from autograder.course.lesson import Lesson, without_marks
from autograder.files import write_whole
from autograder.judging.program import without_magics

CACHE = ".site-cache"
WIDGET = "application/vnd.jupyter.widget-view+json"
SLIDERS = "<p><em>Controls to play with stand here when the lesson runs in JupyterLab or Colab.</em></p>"
SECONDS = 600  # for one cell

Outputs = dict[str, list[dict[str, Any]]]


class SiteError(RuntimeError):
    """A lesson did not run, or its pages could not be made."""


def build(
    course: Course,
    target: Path,
    lessons: Sequence[str] = (),
    step: Callable[[str], None] = lambda name: None,
) -> Path:
    """Write the site of these lessons, by default of all, to the folder `target`; return its first page.

    What was there before is replaced once the new site is whole. `target` is made if absent; FileExistsError if it
    holds what is no site. What a lesson put out is kept in the course's `.site-cache/` until the lesson, or the code
    that it runs, changes.

    Raises SiteError with the cell's error if a lesson fails, LessonError for one that there is not.
    """
    names = list(lessons) or course.lesson_names()
    plans = [course.lesson(name) for name in names]
    if target.is_dir() and any(target.iterdir()) and not (target / "searchindex.js").exists():
        raise FileExistsError(f"{target} holds something else than a site: give another folder")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".site-", dir=target.parent) as scratch:
        source, made = Path(scratch, "source"), Path(scratch, "site")
        source.mkdir()
        for plan in plans:
            step(plan.name)
            page = _page(plan, outputs(course, plan))
            nbformat.write(page, source / f"{plan.name}.ipynb")
        (source / "index.md").write_text(_index(course, plans))
        step("pages")
        _render(course, source, made, Path(scratch, "doctrees"))
        if target.exists():
            target.rename(Path(scratch, "before"))
        made.rename(target)
    return target / "index.html"


def outputs(course: Course, lesson: Lesson) -> Outputs:
    """Return what each code cell of a lesson puts out when it runs with the solutions, by cell id; from the cache if
    nothing has changed that the lesson runs.

    Raises SiteError if a cell fails.
    """
    folder = course.root / CACHE
    kept = folder / f"{lesson.name}-{_digest(course, lesson)[:24]}.json"
    try:
        return json.loads(kept.read_text())
    except (OSError, ValueError):
        found = _run(course, lesson)
    for old in folder.glob(f"{lesson.name}-*.json"):
        old.unlink(missing_ok=True)
    write_whole(kept, json.dumps(found))
    return found


def _digest(course: Course, lesson: Lesson) -> str:
    """Return a digest of what a lesson's outputs depend on: its cells, the code they import, versions."""
    import torch

    cells = [[cell["id"], cell.source] for cell in lesson.notebook.cells if cell.cell_type == "code"]
    files = {lesson.folder / "exercises.py", PACKAGE / "checking.py"}
    files.update(path for _, source in cells for path in imported(without_magics(source), OWN))
    content = json.dumps([cells, digest(files), torch.__version__])
    return hashlib.sha256(content.encode()).hexdigest()


def _run(course: Course, lesson: Lesson) -> Outputs:
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError

    notebook = nbformat.from_dict(json.loads(json.dumps(lesson.notebook)))
    for cell in notebook.cells:
        cell.source = without_marks(cell.source)
    environment = {**os.environ, "MLA_COURSE": str(course.root)}
    with tempfile.TemporaryDirectory(prefix="mla-site-") as folder:
        client = NotebookClient(notebook, timeout=SECONDS, resources={"metadata": {"path": folder}})
        try:
            client.execute(env=environment)
        except CellExecutionError as error:
            raise SiteError(f"lesson {lesson.name} does not run with its solutions: {error}") from None
    plain = json.loads(json.dumps(notebook))
    return {cell["id"]: cell["outputs"] for cell in plain["cells"] if cell.get("outputs")}


def _shown(found: Sequence[dict[str, Any]]) -> list[NotebookNode]:
    """Return a cell's outputs as a page can show them: no widget, which needs a kernel, and no warning on stderr."""
    controls = {"output_type": "display_data", "data": {"text/html": SLIDERS}, "metadata": {}}
    fit = (each for each in found if each.get("name") != "stderr")
    return [nbformat.from_dict(controls if WIDGET in each.get("data", {}) else each) for each in fit]


def _page(lesson: Lesson, found: Outputs) -> NotebookNode:
    """Return the student's notebook with these outputs."""
    notebook = nbformat.from_dict(json.loads(json.dumps(lesson.notebook)))
    notebook.cells = [cell for cell in notebook.cells if cell["id"] not in OPENING]  # a badge is of another host
    for cell in notebook.cells:
        if cell["id"] in lesson.solutions:
            cell.source = lesson.starter(cell["id"])
        hidden = cell.metadata.get("jupyter", {}).get("source_hidden", False)
        cell.metadata = NotebookNode({"tags": ["hide-input"]} if hidden else {})
        if cell.cell_type == "code":
            cell.outputs = _shown(found.get(cell["id"], []))
    return notebook


def _index(course: Course, lessons: Sequence[Lesson]) -> str:
    rows = []
    for lesson in lessons:
        points = sum(each.points + (each.speed.points if each.speed else 0) for each in lesson.exercises)
        titles = ", ".join(each.title for each in lesson.exercises)
        rows.append(f"| [{lesson.title}]({lesson.name}.ipynb) | {titles} | {points:g} |")
    return "\n".join(
        [
            f"# {course.name}",
            "",
            "The lessons as students get them, with what the cells put out when the exercises are solved.",
            "",
            *("| lesson | exercises | points |", "|---|---|---|", *rows, ""),
            *("```{toctree}", ":hidden:", "", *(lesson.name for lesson in lessons), "```", ""),
        ]
    )


def _render(course: Course, source: Path, target: Path, scratch: Path) -> None:
    """Have Sphinx make the pages. Raises SiteError with its warnings if it fails."""
    from io import StringIO

    import jupyter_server_mathjax
    from sphinx.application import Sphinx
    from sphinx.errors import SphinxError
    from sphinx.util.docutils import docutils_namespace, patch_docutils

    (source / "_templates").mkdir()
    (source / "_templates" / "lessons.html").write_text(LESSONS)
    static = source / "_static"
    shutil.copytree(Path(jupyter_server_mathjax.__file__).parent / "static", static / "mathjax")
    (static / "site.css").write_text(STYLE)
    said = StringIO()
    settings = {**SETTINGS, "project": course.name, "html_title": course.name, "html_static_path": [str(static)]}
    try:
        with patch_docutils(), docutils_namespace():
            app = Sphinx(source, None, target, scratch, "html", settings, status=None, warning=said)
            app.build()
    except SphinxError as error:
        raise SiteError(f"the pages could not be made: {error}\n{said.getvalue()}") from error
    if app.statuscode:
        raise SiteError(f"the pages could not be made:\n{said.getvalue()}")
    shutil.rmtree(target / ".doctrees", ignore_errors=True)
    (target / ".nojekyll").touch()  # else GitHub's pages leave out folders such as _static


SETTINGS: dict[str, Any] = {
    "extensions": ["myst_nb", "sphinx.ext.mathjax"],
    "html_theme": "pydata_sphinx_theme",
    "html_theme_options": {"navigation_with_keys": False, "navbar_center": [], "footer_start": [], "footer_end": []},
    "html_sidebars": {"**": ["lessons.html"]},
    "templates_path": ["_templates"],
    "html_css_files": ["site.css"],
    "html_copy_source": False,
    "html_show_sourcelink": False,
    "html_show_sphinx": False,
    "nb_execution_mode": "off",
    "nb_ipywidgets_js": {},
    "myst_enable_extensions": ["dollarmath", "amsmath"],
    "suppress_warnings": ["myst.header", "mystnb.unknown_mime_type"],
    "mathjax_path": "mathjax/MathJax.js",
    "mathjax2_config": {
        "config": ["TeX-AMS-MML_HTMLorMML-full.js"],
        "jax": ["input/TeX", "output/HTML-CSS"],
        "extensions": ["tex2jax.js", "AssistiveMML.js"],
        "tex2jax": {"inlineMath": [["\\(", "\\)"]], "displayMath": [["\\[", "\\]"]], "processClass": "math"},
        "HTML-CSS": {"availableFonts": [], "webFont": "STIX-Web", "imageFont": None},
        "messageStyle": "none",
        "showMathMenu": False,
    },
}

STYLE = """
.bd-main .bd-content .bd-article-container { max-width: 72em }
.bd-article details { margin: 0.4rem 0 }
.bd-article span.math { display: inline; overflow: visible }
"""
LESSONS = "<nav aria-label='Lessons'>{{ toctree(maxdepth=1, includehidden=True) }}</nav>\n"
