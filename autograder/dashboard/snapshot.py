"""Read what is recorded of a class, fast, and write nothing but a cache beside it.

A class of 1,000 has 11,000 records and as many notebooks. They are read once: `CACHE` in the classroom holds what the
dashboard needs of each lesson, and of each record by when it was written. Where that folder cannot be written, all is
read anew each time. No student's code runs here, and what the files hold is data.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autograder.classroom.database import gradebook_file, gradebook_url
from autograder.files import changed, composed, write_whole
from autograder.judging.verdict import Outcome
from autograder.kernels.advice import advice
from autograder.text import one_line

if TYPE_CHECKING:
    from autograder.course.course import Course

CACHE = ".dashboard"
VERSION = [6, *map(str, Outcome)]  # of what the cache holds: outcomes are kept as places in their list
LESSON = re.compile(r"\d\d_.+")
REASON = 600  # characters of a reason that are kept
SPEED = ("how", "device", "seconds", "floor", "baseline", "bytes", "flops", "bandwidth", "rate", "fraction", "ratio")
MOST_HISTORY = 16 << 20  # bytes of a student's history of a lesson that are read
OUTCOMES = frozenset(Outcome)

Progress = Callable[[str, int, int], None]
# What is kept of a verdict, in this order: exercise, points, score, outcome, reason with what bounds a slow kernel,
# mistake, its parts as
# [name, points, score, case that failed], seconds, isolation, speed as a list in the order of `SPEED`, or None
Row = list[Any]
NAME, POINTS, SCORE, OUTCOME, WHY, MISTAKE, PARTS, SECONDS, ISOLATION, ATTAINED = range(10)


@dataclass
class Sheet:
    """What is recorded of a lesson, as lists over [students, names] of verdicts; None where there is nothing.

    Attributes
    ----------
    graded, first, times
        For each student: when the record was written, when the first attempt was handed in (both in seconds since
        1970), and the number of attempts that are kept; 0 where there is no history.
    score, outcome, seconds
        The judge's.
    tries, began, full
        Attempts up to the first with all points, all if none had; the share of the points at the first; when all
        points were first handed in.
    kept
        The rows of each name, as JSON text of {student: row}: they are many, and few are looked at.
    """

    students: list[str]
    names: list[str]
    points: list[float]
    graded: list[float]
    first: list[float | None]
    times: list[int]
    score: list[list[float | None]]
    outcome: list[list[int]]
    seconds: list[list[float | None]]
    tries: list[list[int | None]]
    began: list[list[float | None]]
    full: list[list[float | None]]
    kept: dict[str, str]
    _rows: dict[str, dict[str, Row]] = field(default_factory=dict)

    def rows(self, name: str) -> dict[str, Row]:
        """Return what is kept of the verdicts of one name, by student."""
        if name not in self._rows:
            self._rows[name] = json.loads(self.kept[name])
        return self._rows[name]


@dataclass
class Book:
    """What nbgrader's gradebook knows and the records do not.

    Attributes
    ----------
    students
        Names for people by id; the id where the gradebook has no name.
    handed_in
        The times of submissions as ISO text, "" without one, by lesson and student.
    ids
        The gradebook's ids of submitted notebooks, by lesson and student: formgrader's pages have them.
    counts
        The score that counts in place of the judge's, by lesson, student and verdict.
    penalties
        Points off for lateness, by lesson and student.
    """

    students: dict[str, str] = field(default_factory=dict)
    handed_in: dict[tuple[str, str], str] = field(default_factory=dict)
    ids: dict[tuple[str, str], str] = field(default_factory=dict)
    counts: dict[tuple[str, str, str], float] = field(default_factory=dict)
    penalties: dict[tuple[str, str], float] = field(default_factory=dict)


@dataclass
class Snapshot:
    """A class at a moment: sheets by lesson, the gradebook, what could not be read as sentences, and a digest of it."""

    folder: Path
    lessons: dict[str, Sheet]
    book: Book
    problems: list[str]
    digest: str = ""

    def record(self, lesson: str, student: str) -> list[Row]:
        """Return what is kept of a submission's verdicts."""
        try:
            return _rows(self.folder / "graded" / lesson / f"{student}.json")
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            sheet = self.lessons[lesson]
            return [rows[student] for name in sheet.names if student in (rows := sheet.rows(name))]


def read(folder: Path, progress: Progress = lambda stage, done, total: None) -> Snapshot:
    """Return what is recorded of the class in `folder`, and bring the cache up to date if it can be written.

    Raises FileNotFoundError if nothing is graded there.
    """
    graded = folder / "graded"
    names = sorted(each.name for each in graded.iterdir() if each.is_dir()) if graded.is_dir() else []
    if not names:
        raise FileNotFoundError(f"nothing is graded in {folder} yet: run `mla-course grade` first")
    problems: list[str] = []
    lessons, stamps = {}, []
    for name in names:
        lessons[name] = _lesson(folder, name, problems, progress, stamps)
    try:
        book = read_book(folder)
    except Exception as error:  # the driver's own errors; the records are there without the gradebook
        book = Book()
        why = one_line(str(error).splitlines()[0] if str(error) else type(error).__name__, 200)
        problems.append(f"the gradebook cannot be read ({why}): scores set by hand, times and lateness are missing")
    told = [
        VERSION,
        stamps,
        sorted(book.students),
        sorted(map(str, book.counts.items())),
        sorted(book.handed_in.items()),
    ]
    return Snapshot(folder, lessons, book, problems, hashlib.sha256(json.dumps(told).encode()).hexdigest())


def _lesson(folder: Path, lesson: str, problems: list[str], progress: Progress, told: list) -> Sheet:
    path, stamps = folder / CACHE / f"{lesson}.json", _stamps(folder, lesson)
    told.append(stamps)
    data, old = load(path), None
    with contextlib.suppress(KeyError, TypeError):
        old = Sheet(**data["sheet"])
        if data["stamps"] == stamps:
            return old
    known: dict[str, list[Row]] = {}
    for name in old.names if old else ():
        for student, row in old.rows(name).items():
            known.setdefault(student, []).append(row)
    before, entries = data.get("stamps", {}), {}
    for done, (student, stamp) in enumerate(stamps.items(), start=1):
        try:
            if before.get(student) != stamp or student not in known:
                known[student] = _rows(folder / "graded" / lesson / f"{student}.json")
            entries[student] = known[student], stamp[0] / 1e9, history(folder, lesson, student)
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            problems.append(f"graded/{lesson}/{student}.json cannot be read ({type(error).__name__}): grade again")
        progress(f"reading {lesson}", done, len(stamps))
    sheet = sheet_of(entries)
    if len(entries) == len(stamps):  # else the problem would be told once, and never again
        save(path, {"stamps": stamps, "sheet": {k: v for k, v in vars(sheet).items() if k != "_rows"}})
    return sheet


def sheet_of(entries: dict[str, tuple[list[Row], float, list[dict[str, Any]]]]) -> Sheet:
    """Return the sheet of a lesson of rows, when they were graded, and the history (see `history`), by student."""
    points = {row[NAME]: row[POINTS] for rows, _, _ in entries.values() for row in rows}
    sheet = Sheet(list(entries), list(points), list(points.values()), *([] for _ in range(9)), {})
    kept: dict[str, dict[str, Row]] = {name: {} for name in points}
    codes = {str(each): n for n, each in enumerate(Outcome)}
    for student, (rows, graded, attempts) in entries.items():
        mine = {row[NAME]: row for row in rows}
        for name, row in mine.items():
            kept[name][student] = row
        times = [seconds_of(each.get("submitted")) for each in attempts]
        sheet.graded.append(graded)
        sheet.first.append(min((time for time in times if time is not None), default=None))
        sheet.times.append(len(attempts))
        sheet.score.append([mine[name][SCORE] if name in mine else None for name in points])
        sheet.outcome.append([codes[mine[name][OUTCOME]] if name in mine else -1 for name in points])
        sheet.seconds.append([mine[name][SECONDS] if name in mine else None for name in points])
        scores = [{row[NAME]: row[SCORE] for row in each["rows"]} for each in attempts]
        followed = [_follow(name, top, scores, times) for name, top in points.items()]
        for column, values in zip((sheet.tries, sheet.began, sheet.full), zip(*followed, strict=True), strict=True):
            column.append(list(values))
    sheet.kept = {name: json.dumps(rows, separators=(",", ":")) for name, rows in kept.items()}
    return sheet


def _follow(name: str, top: float, scores: list[dict[str, float | None]], times: list[float | None]) -> tuple:
    """Return attempts up to the first with all points, the share at the first, and when all points were handed in."""
    tries = [n for n, each in enumerate(scores) if each.get(name) is not None]
    if not tries:
        return None, None, None
    full = next((n for n in tries if scores[n][name] >= top), None)
    share = scores[tries[0]][name] / top if top else None
    return (len(scores) if full is None else full + 1), share, None if full is None else times[full]


def seconds_of(time: Any) -> float | None:
    """Return a time as `timestamp.txt`, a history or the gradebook has it, in seconds; None for what is none."""
    try:
        read = datetime.fromisoformat(time.strip().removesuffix(" UTC").replace("Z", "+00:00"))
        return (read if read.tzinfo else read.replace(tzinfo=UTC)).timestamp()
    except (AttributeError, ValueError, OverflowError):
        return None


def _stamps(folder: Path, lesson: str) -> dict[str, list[int]]:
    """Return when each student's record and history were written, and their sizes."""
    found = {name: list(_stamp(each)) for name, each in _files(folder / "graded" / lesson, ".json")}
    histories = {name: _stamp(each) for name, each in _files(folder / "history" / lesson, ".jsonl")}
    return {name: [*stamp, *histories.get(name, (0, 0))] for name, stamp in sorted(found.items())}


def _stamp(entry: os.DirEntry) -> tuple[int, int]:
    status = entry.stat(follow_symlinks=False)
    return status.st_mtime_ns, status.st_size


def _files(folder: Path, suffix: str) -> Iterator[tuple[str, os.DirEntry]]:
    with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
        for each in entries:
            if each.name.endswith(suffix) and not each.name.startswith(".") and each.is_file(follow_symlinks=False):
                yield composed(each.name.removesuffix(suffix)), each


def _rows(path: Path) -> list[Row]:
    """Return the verdicts of a record. Raises ValueError, KeyError or TypeError for a file that is no record."""
    return [row_of(verdict) for verdict in json.loads(path.read_bytes())["verdicts"]]


def row_of(verdict: dict[str, Any]) -> Row:
    """Return what is kept of a verdict's plain data (`Verdict.to_json`). Raises KeyError, TypeError, ValueError."""
    if verdict["outcome"] not in OUTCOMES:
        raise ValueError(f"there is no outcome {verdict['outcome']!r}")
    score, speed, why = verdict["score"], verdict.get("speed"), verdict.get("reason", "")
    with contextlib.suppress(KeyError, TypeError, ValueError, ZeroDivisionError):  # a hint, without which it counts too
        if speed and verdict["outcome"] != Outcome.PASSED and (what := advice(speed)):
            why = f"{why}. What to look at: {what}"
    return [
        one_line(verdict["exercise"], 200),
        float(verdict["points"]),
        None if score is None else float(score),
        verdict["outcome"],
        one_line(why, REASON),
        one_line(verdict["mistake"], 200) if verdict.get("mistake") else None,
        [[part["name"], part["points"], part["score"], part.get("case", "")] for part in verdict.get("parts", ())],
        float(verdict.get("seconds", 0.0)),
        verdict.get("isolation", ""),
        [speed[key] for key in SPEED] if speed else None,
    ]


def history(folder: Path, lesson: str, student: str) -> list[dict[str, Any]]:
    """Return a student's graded attempts at a lesson as they were written, oldest first; a damaged line is left out."""
    try:
        with open(folder / "history" / lesson / f"{student}.jsonl", "rb") as file:
            lines = file.read(MOST_HISTORY).splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        with contextlib.suppress(ValueError, KeyError, TypeError, RecursionError):
            attempt = json.loads(line)
            found.append({**attempt, "rows": [row_of(verdict) for verdict in attempt["verdicts"]]})
    return found


def attempted(folder: Path, lesson: str, student: str, exercise: str) -> list[tuple[float | None, str | None]]:
    """Return when each graded attempt was handed in, and the source of its cell for an exercise; None where unknown."""
    cells = folder / "history" / lesson / ".cells" / student
    attempts = history(folder, lesson, student)
    return [(seconds_of(a.get("submitted")), source_in(cells / f"{a.get('digest')}.ipynb", exercise)) for a in attempts]


def source_in(notebook: Path, exercise: str) -> str | None:
    """Return the source of an exercise's cell in a notebook that was kept or graded; None where there is none."""
    try:
        cells = json.loads(notebook.read_bytes())["cells"]
        return _text(next(cell["source"] for cell in cells if cell.get("id") == exercise))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, StopIteration):
        return None


def load(path: Path) -> dict[str, Any]:
    """Return what a file of the cache holds; nothing if it is absent, damaged or of another version."""
    try:
        data = json.loads(path.read_bytes())
        return data if data["version"] == VERSION else {}
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return {}


def save(path: Path, data: dict[str, Any]) -> None:
    """Write a file of the cache; where that cannot be done, do without."""
    with contextlib.suppress(OSError):
        write_whole(path, json.dumps({"version": VERSION, **data}, separators=(",", ":")))


# The gradebook

STUDENTS = "SELECT id, first_name, last_name FROM student"
SUBMISSIONS = """
    SELECT a.name, s.student_id, s.timestamp, n.id, n.late_submission_penalty
    FROM submitted_assignment s JOIN assignment a ON a.id = s.assignment_id
    LEFT JOIN submitted_notebook n ON n.assignment_id = s.id
"""
CHANGED = """
    SELECT a.name, s.student_id, c.name, g.auto_score, g.manual_score, g.extra_credit
    FROM grade g JOIN base_cell c ON c.id = g.cell_id JOIN submitted_notebook n ON n.id = g.notebook_id
    JOIN submitted_assignment s ON s.id = n.assignment_id JOIN assignment a ON a.id = s.assignment_id
    WHERE g.manual_score IS NOT NULL OR (g.extra_credit IS NOT NULL AND g.extra_credit <> 0)
"""


def read_book(folder: Path) -> Book:
    """Return what the gradebook knows. Its file, or the database that `MLA_GRADEBOOK` names, is opened to read alone.

    nbgrader's own classes are left out: to import them takes longer than all the rest, and they write when they open.
    """
    students, submissions, changed = _query(folder, (STUDENTS, SUBMISSIONS, CHANGED))
    book = Book({row[0]: one_line(" ".join(filter(None, row[1:])) or row[0], 200) for row in students})
    for lesson, student, time, notebook, penalty in submissions:
        book.handed_in[lesson, student] = str(time)[:19] if time else ""
        if notebook:
            book.ids[lesson, student] = notebook
        if penalty:
            book.penalties[lesson, student] = penalty
    for lesson, student, cell, auto, manual, extra in changed:
        role, _, exercise = cell.partition("-")  # as `course.lesson.verdict_name` has it
        name = exercise if role == "check" else f"{exercise}:speed"
        score = auto if manual is None else manual
        if score is not None:
            book.counts[lesson, student, name] = score + (extra or 0.0)
    return book


def _query(folder: Path, questions: Sequence[str]) -> list[list[tuple[Any, ...]]]:
    if file := gradebook_file(folder):
        with contextlib.closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True, timeout=5)) as book:
            return [book.execute(question).fetchall() for question in questions]
    from sqlalchemy import create_engine, text

    engine = create_engine(gradebook_url(folder))
    try:
        with engine.connect().execution_options(postgresql_readonly=True) as connection:
            return [[tuple(row) for row in connection.execute(text(question))] for question in questions]
    finally:
        engine.dispose()


# What was handed in and waits


def queue(snapshot: Snapshot) -> list[tuple[str, str, str]]:
    """Return the submissions that wait for `mla-course grade`, as (lesson, student, why)."""
    found = []
    graded = {
        (lesson, student): when
        for lesson, sheet in snapshot.lessons.items()
        for student, when in zip(sheet.students, sheet.graded, strict=True)
    }
    for folder in _folders(snapshot.folder / "submitted"):
        student = composed(folder.name)
        for lesson in _folders(Path(folder.path)):
            if LESSON.fullmatch(lesson.name):
                when = graded.get((lesson.name, student))
                if when is None:
                    found.append((lesson.name, student, "not graded yet"))
                elif changed(Path(lesson.path)) / 1e9 > when:
                    found.append((lesson.name, student, "changed since it was graded"))
    return sorted(found)


def _folders(path: Path) -> list[os.DirEntry]:
    try:
        with os.scandir(path) as entries:
            return [each for each in entries if each.name[0] != "." and each.is_dir(follow_symlinks=False)]
    except OSError:
        return []


# Shapes of answers


@dataclass
class Shapes:
    """The shapes of a class's answers, by lesson and exercise.

    Attributes
    ----------
    answers
        [shape, text] by student (see `shapes.Shape`); a cell as it was handed out is left out.
    tokens
        Of each shape; the starter's, and those beyond it that the lesson's own solution does not have.
    family
        Of each shape that has near relatives, the one that stands for them.
    starter, own
        Tokens of the cell as it is handed out, and the shape of the lesson's own solution.
    """

    answers: dict[tuple[str, str], dict[str, list[str]]] = field(default_factory=dict)
    tokens: dict[str, int] = field(default_factory=dict)
    family: dict[tuple[str, str], dict[str, str]] = field(default_factory=dict)
    starter: dict[tuple[str, str], int] = field(default_factory=dict)
    own: dict[tuple[str, str], str] = field(default_factory=dict)


def read_shapes(
    folder: Path, course: Course | None = None, progress: Progress = lambda stage, done, total: None
) -> Shapes:
    """Return the shapes of all answers. With a course they are brought up to date, which takes a while after a lesson
    was graded, and kept in the cache; without, they are what the cache has.

    Of a lesson that the course does not have, or cannot read, there is nothing new.
    """
    shapes, graded = Shapes(), folder / "graded"
    for lesson in sorted(each.name for each in graded.iterdir() if each.is_dir()) if graded.is_dir() else ():
        data = load(folder / CACHE / f"{lesson}.shapes.json")
        if course is not None:
            from autograder.course.lesson import LessonError

            with contextlib.suppress(LessonError):
                data = _compared(folder, course, lesson, data, progress)
        for exercise, (starter, tokens, own) in data.get("exercises", {}).items():
            key = lesson, exercise
            shapes.starter[key], shapes.own[key] = tokens, own
            shapes.family[key] = data["families"].get(exercise, {})
            shapes.answers[key] = {
                student: found[exercise]
                for student, (_, found) in data["students"].items()
                if exercise in found and found[exercise][0] != starter
            }
        shapes.tokens |= data.get("tokens", {})
    return shapes


def _compared(folder: Path, course: Course, name: str, data: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """Return what the cache should hold of the shapes in a lesson; write it if it did not."""
    from autograder.classroom.restore import code_cells
    from autograder.course.lesson import without_marks
    from autograder.dashboard.shapes import families, shape_of, tokens_of
    from autograder.judging.program import Cell

    lesson, stamps = course.lesson(name), _stamps(folder, name)
    sources = {each: [lesson.starter(each), without_marks(source)] for each, source in lesson.solutions.items()}
    known = data.get("students", {}) if data.get("sources") == sources else {}
    missing = {student for student, stamp in stamps.items() if known.get(student, [None])[0] != stamp}
    if known and not missing and known.keys() == stamps.keys():
        return data
    passages = load(folder / CACHE / f"{name}.passages.json").get("passages", {})
    tokens, exercises, students = dict(data.get("tokens", {})), {}, {}
    plain = code_cells(lesson.notebook, lesson)
    for exercise, pair in sources.items():
        starter, own = (
            shape_of(lesson, exercise, [Cell(c.name, source) if c.name == exercise else c for c in plain])
            for source in pair
        )
        if starter and own:
            exercises[exercise] = [starter.shape, starter.tokens, own.shape]
            for each in (starter, own):
                tokens[each.shape], passages[each.shape] = each.tokens, each.passages
    for student, stamp in stamps.items():
        if student not in missing and all(shape in passages for shape, _ in known[student][1].values()):
            students[student] = known[student]
            continue
        found: dict[str, list[str]] = {}
        cells = code_cells(_notebook(folder, name, student), lesson)
        for exercise in lesson.solutions:
            if shape := shape_of(lesson, exercise, cells):
                found[exercise] = [shape.shape, shape.text]
                passages[shape.shape] = shape.passages
                if exercise in exercises and shape.shape not in exercises[exercise]:
                    starter, base, own = exercises[exercise]
                    given = set(passages[starter]) | set(passages[own])
                    tokens[shape.shape] = min(shape.tokens, base + tokens_of(set(shape.passages) - given))
        students[student] = [stamp, found]
        progress(f"comparing {name}", len(students), len(stamps))
    near = {}
    for exercise, (starter, _, own) in exercises.items():
        shapes = {found[exercise][0] for _, found in students.values() if exercise in found} - {starter, own}
        near[exercise] = families({each: passages[each] for each in shapes}, [passages[starter], passages[own]])
    used = {shape for _, found in students.values() for shape, _ in found.values()}
    used |= {each for starter, _, own in exercises.values() for each in (starter, own)}
    tokens, passages = ({each: its[each] for each in sorted(used) if each in its} for its in (tokens, passages))
    data = {"sources": sources, "exercises": exercises, "families": near, "tokens": tokens, "students": students}
    save(folder / CACHE / f"{name}.shapes.json", data)
    save(folder / CACHE / f"{name}.passages.json", {"passages": passages})
    return data


def graded_notebook(folder: Path, lesson: str, student: str) -> Path:
    """Return where a submission's notebook lies as it was graded."""
    return folder / "autograded" / student / lesson / f"{lesson}.ipynb"


def _notebook(folder: Path, lesson: str, student: str) -> Any:
    """Return the graded notebook of a submission; one without cells if it cannot be read."""
    from nbformat import NotebookNode, from_dict

    path = graded_notebook(folder, lesson, student)
    try:
        notebook = json.loads(path.read_bytes())
        cells = [{**cell, "id": str(cell.get("id")), "source": _text(cell["source"])} for cell in notebook["cells"]]
        return from_dict({**notebook, "cells": cells})
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return NotebookNode(cells=[])


def _text(source: Any) -> str:
    return source if isinstance(source, str) else "".join(map(str, source))
