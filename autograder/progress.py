"""What a student's checks said last: noted beside the notebooks, and shown in a notebook and in a terminal.

A note is a file `.progress/EXERCISE.json` in the folder of the notebook that ran the check. It is the student's own and
counts for nothing.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Any

from autograder.classroom.report import PLAIN, chip, number
from autograder.classroom.restore import read_file
from autograder.course.course import Course
from autograder.files import write_whole
from autograder.judging.exercise import SPEED
from autograder.judging.verdict import Outcome, Verdict
from autograder.kernels.report import CELL
from autograder.text import percent_below

FOLDER = ".progress"
MAX_BYTES = 1 << 18
COUNTS = "This is what your own checks said last. Only the judge's verdict counts."


@dataclass(frozen=True)
class Entry:
    """An exercise, or its speed, and what its check said last; outcome and time are "" where none has run.

    `speed` is the share of the floor's speed that was reached, `bars` those that earn points; `needs` are the exercises
    whose answers this one calls.
    """

    lesson: str
    name: str
    points: float
    score: float = 0.0
    outcome: str = ""
    reason: str = ""
    time: str = ""
    speed: float | None = None
    bars: tuple[float, ...] = ()
    needs: tuple[str, ...] = ()

    @property
    def done(self) -> bool:
        """Whether its check passed."""
        return self.outcome == Outcome.PASSED


def note(verdict: Verdict, folder: Path) -> None:
    """Keep a verdict for the notebooks in `folder`. Where nothing can be written, nothing is kept."""
    now = datetime.now(UTC).isoformat(timespec="microseconds")
    with contextlib.suppress(OSError):
        write_whole(_file(folder, verdict.exercise), json.dumps({"time": now, "verdict": verdict.to_json()}) + "\n")


def entries(course: Course, folder: Path) -> list[Entry]:
    """Return all exercises of a course in order, with the latest note on each in `folder` or in a folder of it.

    Of a lesson's own folder the folders beside it are looked at too. A note that cannot be read counts as none.
    """
    folder = folder.resolve()
    if folder.name in course.lesson_names():
        folder = folder.parent
    try:
        places = [folder, *sorted(path for path in folder.iterdir() if path.is_dir())]
    except OSError:
        places = [folder]
    found = []
    for lesson in course.lesson_names():
        for exercise in course.exercises(lesson):
            for of_speed in (False, True) if exercise.speed else (False,):
                name, points = exercise.graded(of_speed)
                bars = tuple(fraction for fraction, _ in exercise.speed.bars) if of_speed else ()
                blank = Entry(lesson, name, points, bars=bars, needs=exercise.needs)
                found.append(max((_read(_file(place, name), blank) for place in places), key=lambda each: each.time))
    return found


def _file(folder: Path, name: str) -> Path:
    return folder / FOLDER / f"{name.replace(SPEED, '-speed')}.json"


def _read(file: Path, blank: Entry) -> Entry:
    """Return what a file notes on an exercise; `blank` where there is none that can be read."""
    try:
        data = json.loads(read_file(file, MAX_BYTES))
        time = datetime.fromisoformat(data["time"]).astimezone(UTC).isoformat(timespec="microseconds")
        verdict = Verdict.from_json(data["verdict"])
        score = min(max(_finite(verdict.score), 0.0), blank.points)
        speed = None if verdict.speed is None else _finite(verdict.speed["fraction"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError):
        return blank
    return replace(blank, score=score, outcome=str(verdict.outcome), reason=verdict.reason, time=time, speed=speed)


def _finite(value: Any) -> float:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else 0.0


def next_step(found: Sequence[Entry]) -> str:
    """Return what to do next: mend what was checked last, else go on behind it, else fill the first gap.

    What it needs comes first where its check has failed.
    """
    latest = max(range(len(found)), key=lambda n: found[n].time)
    open_ = [each for each in (*found[latest:], *found[:latest]) if not each.done]
    if not open_:
        return "Every check has passed. Let the judge look: mla-course check NOTEBOOK, in a terminal."
    needed = (each for each in open_ if each.name in open_[0].needs and each.outcome)
    entry = min(needed, key=found.index, default=open_[0])
    name, of_speed = entry.name.removesuffix(SPEED), entry.name.endswith(SPEED)
    what = f"the speed of {name}" if of_speed else name
    if entry.outcome:
        return f"Next: {what} in lesson {entry.lesson}: {entry.outcome}: {entry.reason}"
    call = f'check_speed("{name}")' if of_speed else f'check("{name}")'
    return f"Next: {what} in lesson {entry.lesson}, then {call} under it."


def _lessons(found: Sequence[Entry]) -> dict[str, list[Entry]]:
    return {lesson: [e for e in found if e.lesson == lesson] for lesson in dict.fromkeys(e.lesson for e in found)}


def _done(rows: Sequence[Entry]) -> tuple[int, int]:
    """Return how many exercises are done, speed and all, and how many there are."""
    names = {row.name.removesuffix(SPEED) for row in rows}
    left = {row.name.removesuffix(SPEED) for row in rows if not row.done}
    return len(names - left), len(names)


def _speeds(rows: Sequence[Entry]) -> list[str]:
    """Return, for each kernel of which the speed is known, how fast it is and which bars there are."""
    return [
        f"{row.name.removesuffix(SPEED)} {percent_below(row.speed)} of the floor's speed, "
        + (f"all bars reached ({bars})" if row.done else f"bars at {bars}")
        for row in rows
        if row.speed is not None
        for bars in [", ".join(f"{bar:.0%}" for bar in row.bars)]
    ]


def _totals(rows: Sequence[Entry]) -> tuple[str, str]:
    done, count = _done(rows)
    score, points = sum(row.score for row in rows), sum(row.points for row in rows)
    return f"{done} of {count}", f"{number(round(score, 2))} of {number(points)}"


def as_text(found: Sequence[Entry]) -> str:
    """Return progress as lines of text."""
    table = [("lesson", "done", "points"), *((name, *_totals(rows)) for name, rows in _lessons(found).items())]
    table.append(("all", *_totals(found)))
    widths = [max(len(row[n]) for row in table) for n in range(3)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table]
    return "\n".join([*lines, *_speeds(found), next_step(found), COUNTS])


def as_html(found: Sequence[Entry]) -> str:
    """Return progress as HTML, for a notebook."""
    lines = []
    for name, rows in _lessons(found).items():
        done, points = map(escape, _totals(rows))
        mark = f"{chip(Outcome.PASSED)} " if all(row.done for row in rows) else ""
        lines.append((escape(name), mark + done, points))
    lines.append(tuple(f"<b>{each}</b>" for each in ("all", *_totals(found))))
    look = CELL.replace("style='", "style='white-space:nowrap;")
    body = "".join("<tr>" + "".join(f"<td {look}>{each}</td>" for each in line) + "</tr>" for line in lines)
    head = "".join(f"<th {look}>{title}</th>" for title in ("lesson", "done", "points"))
    speeds = "".join(f"<br>{escape(line)}" for line in _speeds(found))
    table = f"<table><tr>{head}</tr>{body}</table>" + (f"<p>Speed:{speeds}</p>" if speeds else "")
    return f"<div class='{PLAIN}'>{table}<p><b>{escape(next_step(found))}</b></p><p>{COUNTS}</p></div>"


def to_json(found: Sequence[Entry]) -> dict[str, Any]:
    """Return progress as plain data."""
    return {"exercises": [{**asdict(each), "done": each.done} for each in found], "next": next_step(found)}
