"""All commands together, and the errors that a user can act on as sentences."""

from __future__ import annotations

import re
import sys
from typing import NoReturn

from autograder.cli import STOPPED, lessons, teaching, watching  # noqa: F401  which register their commands
from autograder.cli.terminal import app, err
from autograder.course.lesson import LessonError
from autograder.files import disk_trouble

EXTRAS = {
    "distributed": "scale",
    "dask": "scale",
    "psycopg": "postgres",
    "psycopg2": "postgres",
    "voila": "dashboard",
} | dict.fromkeys(
    ("nbgrader", "nbconvert", "jupyterlab", "bs4", "jinja2", "sqlalchemy", "alembic", "jupytext"), "grading"
)
EXTRAS |= dict.fromkeys(("sphinx", "myst_nb", "pydata_sphinx_theme", "jupyter_server_mathjax", "nbclient"), "site")

OLD = re.compile(r"no such (column|table)|(column|relation) .*does not exist")  # of an older nbgrader's gradebook


def run() -> None:
    """Run the command line; turn the errors that a user can act on into a sentence and exit status 2."""
    try:
        app()
    except SystemExit as end:
        if end.code == STOPPED:
            err.print("mla-course: stopped", style="red", highlight=False)
        raise
    except OSError as error:
        _stop(disk_trouble(error) or str(error))
    except _expected() as error:
        _stop(str(error))
    except ImportError as error:  # psycopg without a library of PostgreSQL's names none
        words = [(error.name or "").split(".")[0], *re.findall(r"\w+", str(error))]
        missing = next((word for word in words if word in EXTRAS), None)
        if missing is None:
            raise
        _stop(f"this needs {missing}: install the extra with `pip install 'mla-course[{EXTRAS[missing]}]'`")
    except Exception as error:
        if (said := _of_the_gradebook(error)) is None:
            raise
        _stop(said)


def _expected() -> tuple[type[Exception], ...]:
    """Return the errors whose text is a sentence for the user. They are loaded where one was raised."""
    from autograder.classroom.build import BuildError
    from autograder.classroom.collect import CollectError
    from autograder.classroom.extension import ExtensionError
    from autograder.classroom.restore import SubmissionError
    from autograder.classroom.scale import SchedulerError
    from autograder.course.course import UnknownExercise
    from autograder.isolation.sandbox import SandboxError
    from autograder.site import SiteError
    from mla_ref.hardware.devices import HardwareError

    return (
        BuildError,
        CollectError,
        ExtensionError,
        HardwareError,
        LessonError,
        SandboxError,
        SchedulerError,
        SiteError,
        SubmissionError,
        UnknownExercise,
    )


def _stop(sentence: str) -> NoReturn:
    err.print(f"mla-course: {sentence}", style="red", highlight=False, markup=False, soft_wrap=True)
    sys.exit(2)


def _of_the_gradebook(error: Exception) -> str | None:
    """Return a sentence for an error of the database, which is not loaded unless a command needs it; else None."""
    from autograder.classroom.config import gradebook_name

    databases = sys.modules.get("sqlalchemy.exc")
    if type(error).__name__ == "InvalidEntry":  # which nbgrader makes of any
        error = error.__context__
    if databases is None or not isinstance(error, databases.DBAPIError | databases.ArgumentError):
        return None
    line = str(getattr(error, "orig", None) or error).strip().splitlines()[0]
    what = "bring it up to date by `nbgrader db upgrade`" if OLD.search(line) else "see to it"
    return f"the gradebook {gradebook_name()} cannot be used ({line}): {what} and run the command again"
