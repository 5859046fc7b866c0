"""Write a feedback page for every graded submission."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from autograder.classroom.build import quieten_nbgrader
from autograder.classroom.grade import Classroom, read_secret, read_time
from autograder.classroom.record import is_whole
from autograder.files import composed, require_space, write_whole
from autograder.text import one_line

GONE = "has no such lesson any more"


def write_feedback(
    room: Classroom,
    lessons: Sequence[str] = (),
    progress: Callable[[str, int, int], None] = lambda stage, done, total: None,
) -> tuple[list[Path], list[str]]:
    """Write a feedback page for every graded submission; return the pages and what went wrong.

    Raises FileNotFoundError where nothing is graded, BlockingIOError while another run is at work in the classroom.
    """
    from autograder.classroom.converters import Pages, shared_connections

    for name in lessons:
        room.course.folder(name)
    if not _graded(room, lessons):
        raise FileNotFoundError(f"nothing is graded in {room.folder} yet: run `mla-course grade` first")
    quieten_nbgrader()
    converter = Pages(room.records.config())
    pages, problems = [], []
    written = room.folder / "feedback", room.folder / "graded"
    with room.locked(), shared_connections():  # `grade` replaces what is read here
        graded = _graded(room, lessons)
        with room.records.gradebook() as gradebook:
            digests = {path: _feedback_digest(gradebook, path) for path in graded}
        for done, path in enumerate(graded, start=1):
            student, lesson = path.parts[-3], path.stem
            if lesson not in room.course.lesson_names():
                problems.append(f"no feedback for {student} in {lesson}: the course {GONE}")
                continue
            if digests[path] is None:
                where = f"grade it again, or remove autograded/{student}/{lesson}"
                problems.append(f"no feedback for {student} in {lesson}: the gradebook has nothing of it; {where}")
                continue
            page = room.folder / "feedback" / student / lesson / f"{lesson}.html"
            stamp = room.folder / "graded" / lesson / f"{student}.feedback"
            if not page.exists() or not stamp.exists() or stamp.read_bytes() != digests[path].encode():
                require_space(*written, room=0)
                answer = converter.convert(lesson, student)
                if not answer["success"]:
                    require_space(*written)
                    if answer.get("lost"):  # the others would fail too
                        raise answer["lost"]
                    log = str(answer.get("error") or answer.get("log", "")).strip()
                    why = one_line(log.splitlines()[-1]) if log else "no message"
                    why = why if is_whole(path) else f"{path.relative_to(room.folder)} is damaged: grade it again"
                    problems.append(f"no feedback for {student} in {lesson}: {why}")
                    continue
                write_whole(stamp, digests[path])
            pages.append(page)
            progress("writing feedback", done, len(graded))
    return pages, problems


def _graded(room: Classroom, lessons: Sequence[str]) -> list[Path]:
    """Return the graded copies of these lessons; of all, if none is named."""
    found = sorted((room.folder / "autograded").glob("*/*/*.ipynb"))
    found = [room.folder / composed(str(path.relative_to(room.folder))) for path in found]
    return [path for path in found if not lessons or path.stem in lessons]


def _feedback_digest(gradebook: Any, notebook: Path) -> str | None:
    """Return a digest of what a feedback page shows: the graded notebook, scores and comments.

    None for what the gradebook does not have, as of a student who was removed from it.
    """
    from nbgrader.api import MissingEntry

    from autograder.classroom.preprocessors import grades_and_comments

    try:
        submission = gradebook.find_submission_notebook(notebook.stem, notebook.stem, notebook.parts[-3])
    except MissingEntry:
        return None
    by_cell = grades_and_comments(submission)
    grades = [[name, each.score, each.extra_credit] for name, each in by_cell[0].items()]
    comments = [[name, each.comment] for name, each in by_cell[1].items()]
    notes = read_time(notebook.parent)[0], read_secret(notebook.parent)
    content = [sorted(grades), sorted(comments, key=str), submission.late_submission_penalty, notes]
    content = json.dumps(content, default=str)
    return hashlib.sha256(content.encode() + notebook.read_bytes()).hexdigest()
