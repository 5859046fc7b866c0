"""Which database holds a classroom's gradebook. Nothing is imported here, so that whoever only reads it starts fast."""

from __future__ import annotations

import os
import re
from pathlib import Path

GRADEBOOK = "MLA_GRADEBOOK"
MARK = ".sample-class"  # in a classroom: lists the submissions of the sample class as STUDENT/LESSON


def gradebook_url(classroom: Path) -> str:
    """Return the address of a classroom's gradebook. PostgreSQL is spoken to by the driver of the extra `postgres`.

    The sample class has its own file, whatever `MLA_GRADEBOOK` names.
    """
    if url := _named(classroom):
        return re.sub("^postgres(ql)?:", "postgresql+psycopg:", url)
    return sqlite_url(classroom / "gradebook.db")


def gradebook_file(classroom: Path) -> Path | None:
    """Return the file that holds a classroom's gradebook; None for a database on a server."""
    if not (url := _named(classroom)):
        return classroom / "gradebook.db"
    from sqlalchemy.engine import make_url

    named = make_url(url)
    return Path(named.database) if named.get_backend_name() == "sqlite" and named.database else None


def sqlite_url(file: Path) -> str:
    """Return the address of a file, whatever its path holds: a % or a ? means something in an address."""
    from sqlalchemy.engine import URL

    return URL.create("sqlite", database=str(file)).render_as_string(hide_password=False)


def _named(classroom: Path) -> str | None:
    """Return the address of another database than the classroom's own file, if one is set for it."""
    return None if (classroom / MARK).is_file() else os.environ.get(GRADEBOOK)
