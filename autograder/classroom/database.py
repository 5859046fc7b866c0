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
    url = os.environ.get(GRADEBOOK)
    if not url or (classroom / MARK).is_file():
        return f"sqlite:///{classroom / 'gradebook.db'}"
    return re.sub("^postgres(ql)?:", "postgresql+psycopg:", url)
