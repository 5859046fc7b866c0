"""What Triton's compiler finds wrong with a module: it says so on the process's standard error alone."""

from __future__ import annotations

import linecache
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

REFUSED = "error encountered during parsing"
FOUND = re.compile(r"^(?P<file>.+):(?P<line>\d+):\d+: error: (?P<said>.*)$", re.MULTILINE)


class CompilationError(RuntimeError):
    """What the compiler found, in `said`, and file, line and source of where, in `at`."""

    def __init__(self, file: str, line: int, said: str):
        self.at, self.said = (file, line, linecache.getline(file, line).strip()), said
        super().__init__(f"`{self.at[2]}`: {said}")


@contextmanager
def diagnosed() -> Iterator[None]:
    """Raise CompilationError where Triton has a RuntimeError that says nothing of what is wrong.

    What the body writes to standard error otherwise comes there after it.
    """
    sys.stderr.flush()
    kept, refused = os.dup(2), None
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)
        try:
            yield
        except RuntimeError as error:
            if REFUSED not in str(error):
                raise
            refused = error
        finally:
            sys.stderr.flush()
            os.dup2(kept, 2)
            os.close(kept)
            file.seek(0)
            text = file.read().decode(errors="replace")
            found = FOUND.search(text) if refused else None
            if not found:
                sys.stderr.write(text)
    if found:
        raise CompilationError(found["file"], int(found["line"]), found["said"]) from None
    if refused:
        raise refused
