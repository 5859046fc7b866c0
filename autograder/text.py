"""Text from outside, made fit for a terminal, a page and a file."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Sequence
from typing import Any

MARKS = 4  # on one letter; no script has more
JOINERS = "\u200c\u200d"  # which the letters of some scripts need between them
UNSEEN = "\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0"  # which show nothing, and count as letters or signs
NO_UTF8 = (
    "mla-course: names and text are {} here, in which not all students' names and answers can be written: set "
    "LC_ALL=C.UTF-8, or PYTHONUTF8=1, and run the command again"
)


def one_line(value: Any, limit: int = 2000) -> str:
    """Return text as one line of at most `limit` characters, with nothing in it that a terminal obeys.

    Line ends and spaces of any kind become a plain space. Of many in a row, behind which text would look like a line of
    its own, two are left; of many marks on a letter, which would cover other lines, four. What shows nothing (controls,
    marks of direction, characters of no width) and what UTF-8 cannot hold (the bytes of a file's name that are not
    UTF-8) becomes U+FFFD.
    """
    text = re.sub(" {3,}", "  ", "".join(_shown(c) for c in str(value)[:limit]))
    if text.isascii():
        return text
    found, marks = [], 0
    for c in text:
        marks = marks + 1 if unicodedata.category(c).startswith("M") else 0
        if marks <= MARKS:
            found.append(c)
    return "".join(found)


def _shown(c: str) -> str:
    if c.isprintable() and c not in UNSEEN:
        return c
    return " " if c.isspace() else "\N{REPLACEMENT CHARACTER}"


def visible(text: str) -> str:
    """Return text of any length with U+FFFD for what shows nothing, or changes the order in which text is shown."""
    hidden = {c for c in set(text) - set(JOINERS) if c in UNSEEN or unicodedata.category(c) == "Cf"}
    return text.translate(dict.fromkeys(map(ord, hidden), "\N{REPLACEMENT CHARACTER}"))


def quoted(value: Any, limit: int) -> str:
    """Return what a stranger's process gave as text, as `one_line` does; "" for what is neither text nor an integer.

    To write out a few megabytes of anything else, as a list that names one tensor very often, may take hours.
    """
    return one_line(value, limit) if isinstance(value, str | int) else ""


def listed(names: Sequence[str], most: int = 5) -> str:
    """Return the first names on one line, and whether there are more."""
    shown = ", ".join(one_line(name, 100) for name in names[:most])
    return f"{shown} and more" if len(names) > most else shown


def percent_below(share: float) -> str:
    """Return a share as whole per cent, rounded down: 29.9 % are not the 30 % that a bar may ask for."""
    return f"{math.floor(100 * share + 1e-9)}%"
