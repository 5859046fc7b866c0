"""nbgrader's converters kept for a whole class; nbgrader itself makes a new one for each submission."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from html import escape
from pathlib import Path
from typing import Any
from unittest.mock import patch

import nbconvert.exporters.html
from bs4 import BeautifulSoup
from jinja2 import pass_context
from jinja2.runtime import Context
from nbconvert.exporters import HTMLExporter
from nbconvert.filters import Highlight2HTML
from nbconvert.writers import FilesWriter
from nbformat import NotebookNode
from nbgrader.api import Gradebook
from nbgrader.converters import Autograde, GenerateFeedback
from nbgrader.converters.base import BaseConverter
from nbgrader.coursedir import CourseDirectory
from nbgrader.utils import capture_log, chdir, rmtree, temp_attrs
from sqlalchemy import Engine
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import scoped_session, sessionmaker
from traitlets.config import Config

from autograder.classroom.preprocessors import VERDICTS
from autograder.judging.verdict import Verdict
from autograder.text import visible

REMEMBERED = 2_000  # pieces of text, and of code, whose HTML is kept
LONGEST = 10_000  # characters of code that is highlighted
ODD = re.compile(r"\s{100}|.{200}")  # code that is shown as it is

# What nbconvert looks for on a page that it has written: images without a description, and templates for JupyterLab.
REPAIRED = "<img", "jp-Notebook"

MATHJAX = "https://cdnjs.cloudflare.com/ajax/libs/mathjax/"  # where nbconvert's pages have it from
POLICY = (
    "<meta http-equiv='Content-Security-Policy' content=\"default-src 'none'; base-uri 'none'; form-action 'none'; "
    f"img-src data:; style-src 'unsafe-inline'; font-src {MATHJAX}; script-src {MATHJAX} 'unsafe-eval'\">"
)


class Kept(BaseConverter):
    """A converter whose exporter serves one submission after the other."""

    def __init__(self, config: Config):
        super().__init__(coursedir=CourseDirectory(config=config), config=config)
        if "optimistic_validation" not in self.config.Exporter:
            self.update_config(Config(Exporter={"optimistic_validation": True}))  # of the result, not of every step
        self.force = True
        self.ready = False
        self.lost: OperationalError | None = None

    def convert(self, lesson: str, student: str) -> dict[str, Any]:
        """Convert one submission; return what nbgrader's API would answer: "success", and "error" or "log".

        "lost" is the error of a gradebook that could not be used, which nbgrader takes for one of an older version.
        """
        self.lost = None
        with temp_attrs(self.coursedir, assignment_id=lesson, student_id=student):
            return {**uninterrupted(capture_log(self)), "lost": self.lost}

    def start(self) -> None:
        """Convert the submission that the course directory names; as `BaseConverter.start`, with what is at hand."""
        self.init_notebooks()
        if not self.ready:
            self.writer = FilesWriter(parent=self, config=self.config)
            self.exporter = self.exporter_class(parent=self, config=self.config)
            for each in self.preprocessors:
                self.exporter.register_preprocessor(each)
            self.ready = True
        with chdir(self.coursedir.root):
            try:
                self.convert_notebooks()
            except Exception as error:
                self.lost = error.__context__ if isinstance(error.__context__, OperationalError) else None
                raise


class Recorder(Kept, Autograde):
    """`nbgrader autograde` with verdicts that are known, entered in `gradebook`.

    `refused` are lessons that cannot be recorded, and why.
    """

    def __init__(self, config: Config, refused: Mapping[str, str], gradebook: Gradebook):
        super().__init__(config)
        self.refused, self.gradebook = refused, gradebook
        self.verdicts: dict[str, Verdict] = {}
        self.stages: dict[bool, list[Any]] = {}

    def record(self, lesson: str, student: str, verdicts: dict[str, Verdict]) -> dict[str, Any]:
        """Grade one submission with these verdicts, by name."""
        self.verdicts = verdicts
        return self.convert(lesson, student)

    def init_single_notebook_resources(self, notebook_filename: str) -> dict[str, Any]:
        """Hand the verdicts to the preprocessors."""
        resources = super().init_single_notebook_resources(notebook_filename)
        resources["nbgrader"][VERDICTS] = self.verdicts
        return resources

    def _init_preprocessors(self) -> None:
        if self._sanitizing not in self.stages:
            super()._init_preprocessors()
            self.stages[self._sanitizing] = self.exporter._preprocessors
        self.exporter._preprocessors = self.stages[self._sanitizing]


class Pages(Kept, GenerateFeedback):
    """`nbgrader generate_feedback`."""

    def __init__(self, config: Config):
        super().__init__(config)
        if self.exporter_class is HTMLExporter:  # unless the instructor has another
            self.exporter_class = Page
        # as nbgrader's API does: the setting is for its other pages
        self.update_config(Config(HTMLExporter={"template_name": "feedback"}))

    def convert(self, lesson: str, student: str) -> dict[str, Any]:
        """Convert one submission. The page there, which nbgrader removes first, stays if none takes its place."""
        place = Path(self.coursedir.format_path(self.coursedir.feedback_directory, student, lesson))
        aside = place.with_name(f".{lesson}")
        if place.exists():
            if aside.exists():
                rmtree(aside)
            place.rename(aside)
        try:
            return super().convert(lesson, student)
        finally:
            if aside.exists() and not any(place.glob("*.html")):
                if place.exists():
                    rmtree(place)
                aside.rename(place)
            elif aside.exists():
                rmtree(aside)


class Page(HTMLExporter):
    """HTMLExporter that renders once what many pages have in common, and parses a page only if it has to be repaired.

    nbconvert parses every page that it has written. The page fetches nothing but MathJax, and runs no other script.
    """

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self._text = functools.lru_cache(REMEMBERED)(self._render_text)

    def from_notebook_node(
        self, nb: NotebookNode, resources: dict[str, Any] | None = None, **kw: Any
    ) -> tuple[str, dict[str, Any]]:
        """Convert a notebook as HTMLExporter does."""
        with patch.object(nbconvert.exporters.html, "BeautifulSoup", _parsed_if_needed):
            html, resources = super().from_notebook_node(nb, resources, **kw)
        return html.replace("<head>", f"<head>\n{POLICY}", 1), resources

    @pass_context
    def markdown2html(self, context: Context, source: str) -> str:
        """Render text; anew each time where the result depends on files."""
        if self.embed_images or context.get("cell", {}).get("attachments"):
            return super().markdown2html(context, source)
        return self._text(source)

    def _render_text(self, source: str) -> str:
        return super().markdown2html({}, source)


@functools.lru_cache(REMEMBERED)
def highlight(source: str, language: str | None = None, magics: str | None = None) -> str:
    """Return code as HTML, in the order in which Python reads it, in colours if the highlighter takes little time.

    Its patterns take the third power of the length of a run of spaces, the second of that of a line.
    """
    source = visible(source)
    if len(source) > LONGEST or ODD.search(source):
        return f'<div class="highlight"><pre>{escape(source)}</pre></div>'
    return Highlight2HTML()(source, language, {"magics_language": magics} if magics else None)


def highlight_code(source: str, language: str | None = None, metadata: Mapping[str, Any] | None = None) -> str:
    """Return a cell's code as HTML, for the templates of nbgrader's pages (see `config.configure`)."""
    return highlight(source, language, (metadata or {}).get("magics_language"))


class _Unparsed(str):
    """A page that nbconvert has nothing to change in."""

    def select(self, selector: str) -> list:
        return []


def _parsed_if_needed(html: str, features: str) -> BeautifulSoup | _Unparsed:
    return BeautifulSoup(html, features=features) if any(each in html for each in REPAIRED) else _Unparsed(html)


@contextmanager
def shared_connections() -> Iterator[None]:
    """Have the gradebooks of one database share its connections, and the SQL that was compiled for it.

    nbgrader opens the gradebook ten times a submission, and looks each time whether all tables are there. Here it looks
    the first time. Every gradebook has a session of its own, as before.
    """
    engines: dict[tuple[str, str], Engine] = {}
    first_open = Gradebook.__init__

    def reopen(self: Gradebook, db_url: str, course_id: str = "default_course", authenticator: Any = None) -> None:
        key = db_url, course_id
        if key not in engines:
            first_open(self, db_url, course_id, authenticator)
            engines[key] = self.engine
            engines[key].dispose = lambda: None  # what closing a gradebook calls
            return
        self.engine, self.course_id, self.authenticator = engines[key], course_id, authenticator
        self.db = scoped_session(sessionmaker(autoflush=True, bind=self.engine, future=True))

    with patch.object(Gradebook, "__init__", reopen):
        try:
            yield
        finally:
            for engine in engines.values():
                Engine.dispose(engine)


def uninterrupted(answer: dict[str, Any]) -> dict[str, Any]:
    """Return what nbgrader answered. It takes Ctrl-C for an error of the submission; raise it again."""
    if str(answer.get("error")).splitlines()[-1:] == ["KeyboardInterrupt"]:
        raise KeyboardInterrupt
    return answer
