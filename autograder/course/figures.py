"""Figures that stem from records of measurements, written into a lesson when it is built.

A lesson marks the places, and its `figures.py` says what belongs there:

    {{launch_us}}         in a text: the figure of that name, a string or a number
    TILES = "{{tiles}}"   in code: the figure as Python, any literal; the quotes go
    {{!twice}}            nothing, but the record must bear out the words in front of it
    {{decode.device}}     of every record: date, device, and the versions it has, such as torch
    {{records}}           the records that the lesson's figures are from; wanted wherever there is a `figures.py`

    def figures(record) -> dict[str, Any]       # `record("decode")` is the parsed `decode.json`
    def claims(record) -> dict[str, bool]
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from nbformat import NotebookNode

PLACEHOLDER = re.compile(r"""(["']?)\{\{(!?[a-z][\w.]*)\}\}\1""")
PACKAGES = {"torch": "torch", "triton": "Triton"}  # whose versions stand beside a record
WIDTH = 120  # of code


class FigureError(ValueError):
    """A lesson whose figures cannot be filled in as its text has them."""


def fill(notebook: NotebookNode, module: ModuleType | None, records: Sequence[Path], where: str | Path) -> None:
    """Fill in the placeholders of a lesson.

    Parameters
    ----------
    notebook
        Its cells' sources are changed in place.
    module
        The lesson's `figures.py`, imported; None if it has none.
    records
        Folders of records, in the order in which they are searched.
    where
        The lesson's folder, for messages.

    Raises
    ------
    FigureError
        In one sentence that names the file: a placeholder without a figure, a figure without a placeholder, words that
        the record does not bear out, a record that does not exist, an error of `figures.py`.
    """
    marks = [(cell, mark) for cell in notebook.cells for mark in PLACEHOLDER.finditer(cell.source)]
    if module is None and not marks:
        return
    record = Records(records)
    figures, claims = (_call(module, name, record, where) for name in ("figures", "claims"))
    defined = figures | {f"!{name}": holds for name, holds in claims.items()}
    if module is not None:
        defined["records"] = None

    for cell, mark in marks:
        name = mark[2]
        if "." in name:
            defined[name] = _origin(name, record, f"{where}/lesson.py")
        elif name not in defined and name != "records":
            raise FigureError(f"{where}/lesson.py: {{{{{name}}}}} after {_before(mark)} is not in figures.py")
        elif name.startswith("!") and not defined[name]:
            raise FigureError(f"{where}/lesson.py: the record does not bear out {_before(mark)} ({name[1:]})")
        elif cell.cell_type != "code" and isinstance(defined.get(name), dict | list | tuple):
            raise FigureError(f"{where}/lesson.py: {name} is data, and stands in a text, after {_before(mark)}")
    unused = sorted(set(defined) - {mark[2] for _, mark in marks})
    if unused:
        raise FigureError(f"{where}/figures.py: no cell of lesson.py uses {', '.join(unused)}")

    defined["records"] = sources(record)
    for cell in {id(cell): cell for cell, _ in marks}.values():
        write = _code if cell.cell_type == "code" else _text
        cell.source = PLACEHOLDER.sub(lambda mark, write=write: write(mark, defined[mark[2]]), cell.source)


class Records:
    """Reads records by name, and keeps those that were asked for."""

    def __init__(self, folders: Sequence[Path]):
        self.folders = folders
        self.read: dict[str, Any] = {}

    def __call__(self, name: str) -> Any:
        """Return the parsed `NAME.json`."""
        if name not in self.read:
            found = [path for folder in self.folders if (path := Path(folder) / f"{name}.json").is_file()]
            if not found:
                raise FigureError(f"there is no record {name}.json in {' or '.join(map(str, self.folders))}")
            self.read[name] = json.loads(found[0].read_text(encoding="utf-8"))
        return self.read[name]


def sources(record: Records) -> str:
    """Return the records that were asked for, those of one machine and day together."""
    names: dict[str, list[str]] = {}
    for name, each in record.read.items():
        fields = _fields(each)
        packages = (f"{label} {fields[package]}" for package, label in PACKAGES.items() if package in fields)
        origin = ", ".join([*(fields[key] for key in ("device", "date") if key in fields), *packages])
        names.setdefault(origin, []).append(f"`{name}.json`")
    return "; ".join(f"{', '.join(each)}: {origin}" for origin, each in names.items())


def literal(value: Any, column: int = 0, indent: int = 0) -> str:
    """Return a value as Python that begins in a column; over several lines if it has to be, as a formatter would."""
    line = _line(value)
    if column + len(line) <= WIDTH or not isinstance(value, dict | list | tuple) or not value:
        return line
    inner = indent + 4
    keys = [f"{_line(key)}: " for key in value] if isinstance(value, dict) else [""] * len(value)
    values = value.values() if isinstance(value, dict) else value
    items = [key + literal(each, inner + len(key) + 1, inner) for key, each in zip(keys, values, strict=True)]
    labelled = isinstance(value, dict) and all(isinstance(key, str) for key in value)
    lines: list[str] = []
    for item in items:
        full = not lines or labelled or "\n" in lines[-1] + item or len(lines[-1]) + len(item) + 2 > WIDTH
        if full:
            lines.append(f"{' ' * inner}{item},")
        else:
            lines[-1] += f" {item},"
    start, end = _brackets(value)
    return "\n".join([start, *lines, " " * indent + end])


def _line(value: Any) -> str:
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_line(key)}: {_line(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list | tuple):
        start, end = _brackets(value)
        return start + ", ".join(map(_line, value)) + ("," if value and (start, len(value)) == ("(", 1) else "") + end
    return repr(value)


def _brackets(value: Any) -> str:
    return "{}" if isinstance(value, dict) else "[]" if isinstance(value, list) else "()"


def _call(module: ModuleType | None, name: str, record: Records, where: str | Path) -> dict[str, Any]:
    function = getattr(module, name, None)
    if function is None:
        return {}
    try:
        return function(record)
    except FigureError as error:
        raise FigureError(f"{where}/figures.py: {error}") from None
    except Exception as error:
        raise FigureError(f"{where}/figures.py: {name}() fails with {type(error).__name__}: {error}") from error


def _fields(record: Any) -> dict[str, str]:
    """Return when, on what and with what a record was measured; it may say so in a part of its own."""
    origin = record if "device" in record else record.get("measured", {})
    return {**origin.get("versions", {}), **{key: origin[key] for key in ("device", "date") if key in origin}}


def _origin(name: str, record: Records, where: str) -> str:
    of, _, key = name.partition(".")
    try:
        fields = _fields(record(of))
    except FigureError as error:
        raise FigureError(f"{where}: {error}") from None
    if key not in fields:
        raise FigureError(f"{where}: {of}.json has no {key}; it has {', '.join(sorted(fields)) or 'no origin'}")
    return fields[key]


def _before(mark: re.Match) -> str:
    words = " ".join(PLACEHOLDER.sub("", mark.string[: mark.start()]).split())
    return f'"{words[-60:]}"'


def _text(mark: re.Match, value: Any) -> str:
    return mark[1] + ("" if mark[2].startswith("!") else str(value)) + mark[1]


def _code(mark: re.Match, value: Any) -> str:
    if isinstance(value, str) or mark[2].startswith("!"):
        return _text(mark, value)
    line = mark.string.rfind("\n", 0, mark.start()) + 1
    head, tail = mark.string[line : mark.start()], mark.string[mark.end() :].partition("\n")[0]
    return literal(value, len(head) + len(tail), len(head) - len(head.lstrip()))
