"""nbgrader's configuration: where things lie, and the preprocessors that put the judge in place of Execute."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from traitlets.config import Config, PyFileConfigLoader

from autograder.classroom.database import GRADEBOOK, gradebook_url
from autograder.course.course import Course, find_course
from autograder.judging.exercise import STUB
from autograder.text import NO_UTF8


def configure(
    c: Config, course: Course | None = None, classroom: Path | None = None, release: Path | None = None
) -> Config:
    """Fill in a configuration for a course, by default the one at work, and a classroom, which is made if absent.

    In the environment `MLA_CLASSROOM` names the classroom, by default `classroom/` beside the lessons, and
    `MLA_GRADEBOOK` another database than the classroom's `gradebook.db`, as an SQLAlchemy URL; the sample class stays
    out of that one. `MLA_EXCHANGE` names another exchange than nbgrader's own, which is made if absent. `release` is
    where the students' notebooks go, by default `course/` beside the lessons.
    """
    from nbconvert.preprocessors import CSSHTMLHeaderPreprocessor
    from nbgrader.preprocessors import (
        AssignLatePenalties,
        ClearOutput,
        DeduplicateIds,
        LimitOutput,
        OverwriteCells,
        OverwriteKernelspec,
    )

    from autograder.classroom.guard import Unopened, guard
    from autograder.classroom.preprocessors import CheckMarks, GetVerdicts, Judge, Restore, SaveVerdicts

    if (encoding := sys.getfilesystemencoding()) != "utf-8":  # nbgrader's own commands begin here
        sys.exit(NO_UTF8.format(encoding))
    find_tools()
    guard()
    course = course or find_course()
    classroom = Path(classroom or os.environ.get("MLA_CLASSROOM") or course.home / "classroom").resolve()
    classroom.mkdir(parents=True, exist_ok=True)  # `nbgrader db` may be the first to write there
    c.CourseDirectory.root = str(course.home)
    c.CourseDirectory.course_id = course.name
    c.CourseDirectory.db_url = gradebook_url(classroom)
    if exchange := os.environ.get("MLA_EXCHANGE"):
        Path(exchange).mkdir(parents=True, exist_ok=True)
        c.Exchange.root = str(Path(exchange).resolve())
    c.CourseDirectory.source_directory = str(classroom / "source")
    c.CourseDirectory.release_directory = str(release or course.home / "course")
    c.CourseDirectory.submitted_directory = str(classroom / "submitted")
    c.CourseDirectory.autograded_directory = str(classroom / "autograded")
    c.CourseDirectory.feedback_directory = str(classroom / "feedback")
    c.ClearSolutions.code_stub = {"python": STUB}
    c.Autograde.sanitize_preprocessors = [
        Restore,
        ClearOutput,
        DeduplicateIds,
        OverwriteKernelspec,
        OverwriteCells,
        CheckMarks,
    ]
    c.Autograde.exporter_class = Unopened
    c.Autograde.autograde_preprocessors = [Judge, LimitOutput, SaveVerdicts, AssignLatePenalties, CheckMarks]
    c.OverwriteCells.add_missing_cells = False
    c.OfCourse.course = str(course.root)
    c.Restore.enabled = True
    c.Judge.enabled = True
    c.Judge.classroom = str(classroom)
    c.SaveVerdicts.enabled = True
    c.GenerateFeedback.preprocessors = [GetVerdicts, CSSHTMLHeaderPreprocessor]
    c.GetVerdicts.enabled = True
    own = c.HTMLExporter.get("filters") or {}
    c.HTMLExporter.filters = {"highlight_code": "autograder.classroom.converters.highlight_code", **own}
    return c


def gradebook_name() -> str:
    """Return what names the gradebook in a message: no password."""
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    url = os.environ.get(GRADEBOOK)
    try:
        return make_url(url).render_as_string() if url else "gradebook.db"
    except ArgumentError:
        return f"that {GRADEBOOK} names"


def own_settings(course: Course) -> Config:
    """Return what the instructor's `nbgrader_config.py` sets; it lies here or beside the course, as nbgrader looks."""
    config = Config()
    for folder in dict.fromkeys((Path.cwd(), course.root)):
        if (folder / "nbgrader_config.py").is_file():
            if str(folder) not in sys.path:
                sys.path.append(str(folder))  # for a plug-in that lies beside it
            config.merge(PyFileConfigLoader("nbgrader_config.py", str(folder)).load_config())
    return config


def find_tools() -> None:
    """Put this environment's commands on PATH: nbgrader runs `alembic` by name, also where nothing is activated."""
    folder = str(Path(sys.executable).parent)
    paths = os.environ.get("PATH", "").split(os.pathsep)
    if folder not in paths:
        os.environ["PATH"] = os.pathsep.join([folder, *paths])
