"""The command line `mla-course`. Exit status: 0 fine, 1 problems were found, 2 the command could not run."""

from __future__ import annotations

import sys

from autograder.cli import lessons, teaching, watching  # noqa: F401  which register their commands
from autograder.cli.terminal import app, err
from autograder.course.lesson import LessonError

EXTRAS = {"distributed": "scale", "dask": "scale", "psycopg": "postgres", "voila": "dashboard"} | dict.fromkeys(
    ("nbgrader", "nbconvert", "jupyterlab", "bs4", "jinja2", "sqlalchemy", "alembic"), "grading"
)


def main() -> None:
    """Run the command line; turn the errors that a user can act on into a sentence and exit status 2."""
    from autograder.classroom.build import BuildError
    from autograder.classroom.restore import SubmissionError
    from autograder.classroom.scale import SchedulerError
    from autograder.course.course import UnknownExercise
    from autograder.isolation.sandbox import SandboxError

    try:
        app()
    except (BuildError, LessonError, SandboxError, SchedulerError, SubmissionError, UnknownExercise, OSError) as error:
        err.print(f"mla-course: {error}", style="red", highlight=False, markup=False, soft_wrap=True)
        sys.exit(2)
    except ModuleNotFoundError as error:
        extra = EXTRAS.get((error.name or "").split(".")[0])
        if extra is None:
            raise
        err.print(
            f"mla-course: this needs {error.name}: install the extra with `pip install 'mla-course[{extra}]'`",
            markup=False,
            soft_wrap=True,
        )
        sys.exit(2)
