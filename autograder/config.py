"""nbgrader's configuration: where things lie, and the preprocessors that put the judge in place of Execute."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from traitlets.config import Config, PyFileConfigLoader

from autograder.lesson import STUB

ROOT = Path(__file__).resolve().parent.parent


def configure(c: Config, root: Path = ROOT, classroom: Path | None = None, course: Path | None = None) -> Config:
    """Fill in a configuration for a course whose classroom is `classroom`, by default `root/classroom`; made if absent.

    In the environment `MLA_CLASSROOM` names another default, and `MLA_GRADEBOOK` another database than the classroom's
    `gradebook.db`, as an SQLAlchemy URL.
    """
    from nbconvert.preprocessors import CSSHTMLHeaderPreprocessor
    from nbgrader.preprocessors import (
        AssignLatePenalties,
        CheckCellMetadata,
        ClearOutput,
        DeduplicateIds,
        LimitOutput,
        OverwriteCells,
        OverwriteKernelspec,
    )

    from autograder.preprocessors import GetVerdicts, Judge, Restore, SaveVerdicts

    find_tools()
    classroom = Path(classroom or os.environ.get("MLA_CLASSROOM") or root / "classroom").resolve()
    classroom.mkdir(parents=True, exist_ok=True)  # `nbgrader db` may be the first to write there
    c.CourseDirectory.root = str(root)
    c.CourseDirectory.course_id = "mla-course"
    c.CourseDirectory.db_url = os.environ.get("MLA_GRADEBOOK") or f"sqlite:///{classroom / 'gradebook.db'}"
    c.CourseDirectory.source_directory = str(classroom / "source")
    c.CourseDirectory.release_directory = str(course or root / "course")
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
        CheckCellMetadata,
    ]
    c.Autograde.autograde_preprocessors = [Judge, LimitOutput, SaveVerdicts, AssignLatePenalties, CheckCellMetadata]
    c.OverwriteCells.add_missing_cells = False
    c.Restore.enabled = True
    c.Judge.enabled = True
    c.Judge.classroom = str(classroom)
    c.SaveVerdicts.enabled = True
    c.GenerateFeedback.preprocessors = [GetVerdicts, CSSHTMLHeaderPreprocessor]
    c.GetVerdicts.enabled = True
    return c


def own_settings() -> Config:
    """Return what the instructor's `nbgrader_config.py` sets; it lies here or beside the course, as nbgrader looks."""
    config = Config()
    for folder in dict.fromkeys((Path.cwd(), ROOT)):
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
