"""Enter verdicts in nbgrader's gradebook. A submission's record is written last: what was interrupted is done again."""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import time_ns
from typing import Any

import nbformat
from nbformat import NotebookNode
from traitlets.config import Config

from autograder.classroom import extension
from autograder.classroom.build import BuildError, register
from autograder.classroom.config import configure, own_settings
from autograder.classroom.database import gradebook_file
from autograder.classroom.extension import Extensions
from autograder.classroom.grader import Job
from autograder.classroom.history import Attempt, History, digest_of, now
from autograder.classroom.restore import REMARKS, code_cells
from autograder.classroom.revision import RevisionError, revise
from autograder.course.course import Course
from autograder.course.lesson import Lesson, verdict_name
from autograder.files import ROOM, composed, require_space, write_whole
from autograder.judging.verdict import Outcome, Verdict
from autograder.text import one_line

WRITTEN = ("autograded", "graded", "history", "source")  # in a classroom: what entering a verdict writes to


@dataclass
class Graded:
    """One student's result in one lesson. `problem` says why nbgrader could not record it, if so.

    `counts` is the score in the gradebook: the judge's, unless a person changed it or the submission came late. The
    verdicts are those on attempt number `attempt` of `attempts`; `better` is the score of an earlier one that had more,
    said when it is graded. What is `withdrawn` was graded and is no longer there; `same` are who handed in the same.
    """

    student: str
    lesson: str
    verdicts: list[Verdict] = field(default_factory=list)
    fresh: bool = False
    problem: str | None = None
    counts: float | None = None
    attempt: int = 0
    attempts: int = 0
    better: float | None = None
    withdrawn: bool = False
    same: tuple[str, ...] = ()

    @property
    def points(self) -> float:
        """The points that could be had."""
        return sum(v.points for v in self.verdicts)

    @property
    def score(self) -> float | None:
        """The points earned; None while a grader fault is open."""
        scores = [v.score for v in self.verdicts]
        return None if None in scores else float(sum(scores))

    @property
    def changed(self) -> bool:
        """Whether something else counts than the judge's score."""
        pair = self.score, self.counts
        if self.withdrawn and self.counts is None:  # it is in the gradebook no more
            return False
        if self.problem or None in pair:
            return not self.problem and pair != (None, None)
        return not math.isclose(*pair, abs_tol=1e-6)


@dataclass(frozen=True)
class Recorded:
    """What was noted of a graded submission: `digest` is of the attempt that counts, number `attempt` of `attempts`."""

    fingerprint: str = ""
    verdicts: tuple[Verdict, ...] = ()
    digest: str = ""
    attempt: int = 0
    attempts: int = 0


@dataclass(frozen=True)
class Held:
    """What nbgrader's gradebook holds of a submission: its time, and the judge's score and the points by verdict."""

    time: str | None
    scores: dict[str, tuple[float | None, float]] = field(default_factory=dict)

    def agrees(self, verdicts: Sequence[Verdict]) -> bool:
        """Return whether these verdicts were entered: not in an older backup that was put back."""
        own = {verdict.exercise: (verdict.score, verdict.points) for verdict in verdicts}
        return self.scores.keys() == own.keys() and all(map(_same, self.scores.values(), map(own.get, self.scores)))


@dataclass(frozen=True)
class Entry:
    """A submission as found: the notebook to grade and its jobs."""

    student: str
    lesson: Lesson
    notebook: NotebookNode
    jobs: list[Job]
    timestamp: str | None
    terms: tuple[str, str]  # due date and penalty for lateness
    secret: str | None = None  # of nbgrader's exchange (see `grade.SECRET`)

    def seconds_late(self) -> float:
        """Return by how much it was handed in after the due date."""
        from nbgrader.utils import parse_utc

        end = self.terms[0]
        if not self.timestamp or end in ("", "None"):
            return 0.0
        return max((parse_utc(self.timestamp) - parse_utc(end)).total_seconds(), 0.0)

    def fingerprint(self) -> str:
        """Return a digest of all that the result depends on."""
        settled = [[job.key, job.settled and job.settled.to_json()] for job in self.jobs]
        cells = [[cell["id"], cell.source] for cell in self.notebook.cells]
        late = self.timestamp and [self.timestamp, *self.terms]
        content = json.dumps([settled, cells, self.notebook.metadata.get(REMARKS), late, self.secret])
        return hashlib.sha256(content.encode()).hexdigest()

    def digest(self) -> str:
        """Return the digest of the student's code as it was judged (see `history.digest_of`)."""
        if reason := self.notebook.metadata.get(REMARKS, {}).get("reason"):
            return digest_of([("", str(reason))])  # there was no notebook to read
        own = {cell.name: cell.source for cell in code_cells(self.notebook, self.lesson)}
        jobs = [each for job in self.jobs for each in (job, *job.choices)]
        ran = {each.cell for each in jobs} | {each.name for job in jobs for each in job.program}
        solutions = [(name, own.get(name, "")) for name in self.lesson.solutions]
        return digest_of([*solutions, *(("", own[name]) for name in own if name in ran - set(self.lesson.solutions))])


def fingerprint_of(entries: Sequence[Entry]) -> str:
    """Return a digest of all that the choice of one of these attempts, and its result, depends on."""
    several = [entry.fingerprint() for entry in entries]
    return several[0] if len(several) == 1 else hashlib.sha256("".join(several).encode()).hexdigest()


def _attempt(entry: Entry, verdicts: Sequence[Verdict]) -> Attempt:
    return Attempt(entry.timestamp, now(), entry.digest(), tuple(verdicts))


class Records:
    """What is recorded of a class: nbgrader's gradebook and notebooks, and the judge's `graded/`."""

    def __init__(self, course: Course, folder: Path, seconds: float | None = None):
        self.course, self.folder, self.seconds = course, folder, seconds

    def config(self, submitted: Path | None = None) -> Config:
        """Return nbgrader's configuration for this class: the instructor's own, with the course's on top."""
        config = configure(own_settings(self.course), self.course, classroom=self.folder)
        config.Judge.seconds = self.seconds
        if submitted:
            config.CourseDirectory.submitted_directory = str(submitted)
        return config

    @property
    def attempts(self) -> History:
        """What was handed in over time."""
        return History(self.folder / "history")

    @contextmanager
    def gradebook(self) -> Iterator[Any]:
        """Open nbgrader's gradebook."""
        from nbgrader.api import Gradebook

        self.folder.mkdir(parents=True, exist_ok=True)
        with Gradebook(self.config().CourseDirectory.db_url, self.course.name) as gradebook:
            yield gradebook

    @property
    def extensions(self) -> Extensions:
        """More time that students were granted."""
        return Extensions(self.folder)

    def deadlines(self) -> dict[tuple[str, str], str]:
        """Return when a submission in the gradebook is due, by lesson and student; for the student "", any other."""
        found, times = {}, self.extensions.read()
        with self.gradebook() as gradebook:
            extension.enter(gradebook, times)
            for lesson in gradebook.assignments:
                found[lesson.name, ""] = str(lesson.duedate)
                found |= {(lesson.name, each.student_id): str(each.duedate) for each in lesson.submissions}
        return found

    def held(self, lessons: Collection[str]) -> dict[tuple[str, str], Held]:
        """Return what the gradebook holds of the submissions of these lessons, by student and lesson, in one query."""
        from nbgrader.api import Assignment, Grade, GradeCell, SubmittedAssignment, SubmittedNotebook

        found: dict[tuple[str, str], Held] = {}
        with self.gradebook() as gradebook:
            query = gradebook.db.query(
                SubmittedAssignment.student_id,
                Assignment.name,
                SubmittedAssignment.timestamp,
                GradeCell.name,
                Grade.auto_score,
                GradeCell.max_score,
            )
            query = query.join(Assignment, SubmittedAssignment.assignment_id == Assignment.id)
            query = query.join(SubmittedNotebook, SubmittedNotebook.assignment_id == SubmittedAssignment.id)
            query = query.join(Grade, Grade.notebook_id == SubmittedNotebook.id)
            query = query.join(GradeCell, GradeCell.id == Grade.cell_id).filter(Assignment.name.in_(lessons))
            for student, lesson, time, cell, score, top in query:
                held = found.setdefault((student, lesson), Held(f"{time} UTC" if time else None))
                held.scores[sys.intern(verdict_name(cell))] = score, top
        return found

    def penalty(self) -> str:
        """Return how the instructor has nbgrader take points off for lateness."""
        config = self.config()
        return str([config.get("AssignLatePenalties"), config.get("LateSubmissionPlugin")])

    def late_penalty(self) -> Callable[[str, float, float], float]:
        """Return a function that says what is taken off a student's score for so many seconds, as nbgrader will."""
        from nbgrader.preprocessors import AssignLatePenalties

        rules = AssignLatePenalties(config=self.config())
        rules.init_plugin()

        def less(student: str, score: float, seconds: float) -> float:
            if seconds <= 0 or score <= 0:
                return 0.0
            return min(max(rules.plugin_inst.late_submission_penalty(student, score, seconds) or 0.0, 0.0), score)

        return less

    @contextmanager
    def staged(self, todo: Mapping[tuple[str, str], str | None]) -> Iterator[Any]:
        """Make a folder where nbgrader will find restored notebooks, and have it know their lessons.

        `todo` has the time of each submission, None without one, by student and lesson. The recorder's `refused` says
        by lesson why nothing can be recorded of it.
        """
        from autograder.classroom.converters import Recorder, shared_connections
        from autograder.classroom.guard import REGISTERING, alone

        with tempfile.TemporaryDirectory(prefix=".staging-", dir=self.folder) as stage:
            config = self.config(Path(stage))
            config.CourseDirectory.release_directory = str(Path(stage) / ".release")
            refused: dict[str, str] = {}
            with alone(config.CourseDirectory.db_url, REGISTERING):
                for name in sorted({lesson for _, lesson in todo}):
                    lesson = self.course.lesson(name)
                    try:
                        with self.gradebook() as gradebook:
                            revise(gradebook, lesson, {student for student, n in todo if n == name})
                        register(lesson, config)
                    except (BuildError, RevisionError) as error:  # one lesson stops no other
                        self.require_writable(ROOM)
                        refused[name] = str(error)
                try:
                    self._prepare({pair: time for pair, time in todo.items() if pair[1] not in refused})
                except Exception:  # of nbgrader's, for a full disk too
                    self.require_writable(ROOM)
                    raise
            with shared_connections(), self.gradebook() as gradebook:
                yield Recorder(config, refused, gradebook)

    def _prepare(self, todo: Mapping[tuple[str, str], str | None]) -> None:
        """Enter a first submission a lesson, grant extensions, and drop the times of submissions that have none.

        A lesson without submissions nbgrader makes anew when it is registered again, as another grader may do while
        this one enters its first. The times that earlier runs entered it would keep.
        """
        times, begun = self.extensions.read(), set()
        with self.gradebook() as gradebook:
            for student, lesson in todo:
                if (lesson, student) in times or lesson not in begun:
                    begun.add(lesson)
                    gradebook.update_or_create_student(student)
                    gradebook.update_or_create_submission(lesson, student)
            extension.enter(gradebook, times)
            for lesson in {lesson for _, lesson in todo}:
                for submission in submissions_of(gradebook, lesson):
                    if todo.get((submission.student_id, lesson), "") is None:
                        submission.timestamp = None
            gradebook.db.commit()

    def enter(
        self,
        recorder: Any,
        entry: Entry,
        verdicts: list[Verdict],
        attempts: Sequence[tuple[Entry, list[Verdict]]] = (),
    ) -> Graded:
        """Have nbgrader enter the verdicts of a submission, and note that it has.

        `attempts` are all that were judged to choose this one, the submission that is there first.
        """
        name, attempts = entry.lesson.name, attempts or [(entry, verdicts)]
        result = Graded(entry.student, name, verdicts, fresh=True, problem=recorder.refused.get(name))
        if result.problem:
            return result
        self.require_writable(gradebook=recorder.gradebook)  # else the old score would stand there without its record
        self._record_path(entry.student, name).unlink(missing_ok=True)
        named = {job.name: verdict for job, verdict in zip(entry.jobs, verdicts, strict=True)}
        folder = Path(recorder.coursedir.submitted_directory) / entry.student / name
        folder.mkdir(parents=True)
        nbformat.write(entry.notebook, folder / f"{name}.ipynb")
        for note, text in (("timestamp.txt", entry.timestamp), ("submission_secret.txt", entry.secret)):
            if text:
                (folder / note).write_text(text)
        answer = recorder.record(name, entry.student, named)
        shutil.rmtree(folder)
        if not answer["success"]:
            self.require_writable(ROOM)
            if answer.get("lost"):  # the others would fail too
                raise answer["lost"]
            log = str(answer.get("error") or answer.get("log", "")).strip()
            result.problem = f"nbgrader could not record it: {one_line(log.splitlines()[-1]) if log else 'no message'}"
            return result
        for earlier in attempts[1:]:
            self.attempts.replace(entry.student, name, _attempt(*earlier))
        self._keep(*attempts[0])
        open_still = any(v.outcome is Outcome.FAULT for _, each in attempts for v in each)
        fingerprint = "" if open_still else fingerprint_of([each for each, _ in attempts])
        digest = entry.digest()
        self._number(result, digest)
        self.note(entry.student, name, Recorded(fingerprint, tuple(verdicts), digest, result.attempt, result.attempts))
        return result

    def history(self, student: str, lesson: str) -> list[Attempt]:
        """Return a student's graded attempts at a lesson, oldest first."""
        return self.attempts.read(student, lesson)

    def _keep(self, entry: Entry, verdicts: Sequence[Verdict]) -> None:
        """Add an attempt to the history, unless the grader could not even read it."""
        if entry.notebook.metadata.get(REMARKS, {}).get("outcome") != Outcome.FAULT:
            self.attempts.add(entry.student, entry.lesson, entry.notebook, _attempt(entry, verdicts), entry.secret)

    def _number(self, result: Graded, digest: str) -> None:
        """Say which attempt a result is of, and whether an earlier one had more points."""
        history = self.history(result.student, result.lesson)
        digests = [attempt.digest for attempt in history]
        result.attempts = len(history)
        result.attempt = digests.index(digest) + 1 if digest in digests else 0
        most = max((a.score for a in history[: max(result.attempt - 1, 0)] if a.score is not None), default=0.0)
        result.better = most if result.score is not None and most > result.score else None

    def attempted(self, entry: Entry) -> list[tuple[NotebookNode, str | None, str | None]]:
        """Return the notebooks of a student's other attempts at a lesson, with the time and the secret of each.

        The same code that was there at another time before is one of them; without a time it is this one.
        """
        digest, same = entry.digest(), (None, entry.timestamp)
        history = self.history(entry.student, entry.lesson.name)
        earlier = [each for each in history if each.digest != digest or each.submitted not in same]
        kept = [(a, self.attempts.notebook(entry.student, entry.lesson, a.digest)) for a in earlier]
        return [(found[0], attempt.submitted, found[1]) for attempt, found in kept if found]

    def require_writable(self, room: int = 0, gradebook: Any = None) -> None:
        """Raise, as writing does, unless the gradebook can be written, and all folders that a record goes to.

        `room` are bytes that each of these has to take. The gradebook is opened, unless one is given.
        """
        from sqlalchemy import text

        file = gradebook_file(self.folder)
        places = [self.folder, *(self.folder / name for name in WRITTEN)]
        require_space(*places, *([file.parent] if file else []), room=room)
        with nullcontext(gradebook) if gradebook else self.gradebook() as opened:
            opened.db.execute(text("UPDATE course SET id = id"))  # nothing changes; a lock, or a right, is asked for
            opened.db.rollback()

    def note(self, student: str, lesson: str, record: Recorded) -> None:
        """Write a submission's record. Without a fingerprint, as when nbgrader grades, the next run enters it again."""
        plain = {**vars(record), "verdicts": [v.to_json() for v in record.verdicts]}
        write_whole(self._record_path(student, lesson), json.dumps(plain, indent=1) + "\n")

    def entered(self, entries: Sequence[Entry], held: Held | None) -> Graded | None:
        """Return the result of an earlier run, if it still holds and is what the gradebook holds.

        `entries` are the attempts to choose from, the submission that is there first.
        """
        entry, name = entries[0], entries[0].lesson.name
        found = self.recorded(entry.student, name)
        notebook = self.folder / "autograded" / entry.student / name / f"{name}.ipynb"
        faults = any(v.outcome is Outcome.FAULT for v in found.verdicts)
        if faults or found.fingerprint != fingerprint_of(entries) or not is_whole(notebook):
            return None
        if self.attempts.last(entry.student, name) != entry.digest():
            return None
        if held is None or held.time not in {each.timestamp for each in entries} or not held.agrees(found.verdicts):
            return None
        return Graded(entry.student, name, list(found.verdicts), attempt=found.attempt, attempts=found.attempts)

    def seen(self, student: str, lesson: str, time: int) -> None:
        """Have a record be as new as the files of its submission, of which nothing that counts has changed.

        The dashboard goes by that (see `dashboard.snapshot.queue`).
        """
        path, time = self._record_path(student, lesson), min(time, time_ns())
        with suppress(OSError):  # another instructor's
            if path.stat().st_mtime_ns < time:
                os.utime(path, ns=(time, time))

    def withdrawn(self, lesson: str, there: Collection[str]) -> list[Graded]:
        """Return the results of students who were graded in a lesson, and whose submission is no longer there."""
        files = sorted((self.folder / "graded" / lesson).glob("*.json"))
        gone = [student for student in (composed(path.stem) for path in files) if student not in there]
        by_digest: dict[str, list[str]] = {}
        for student in sorted(there) if gone else ():
            by_digest.setdefault(self.recorded(student, lesson).digest, []).append(student)
        found = []
        for student in gone:
            record = self.recorded(student, lesson)
            result = Graded(student, lesson, list(record.verdicts), attempt=record.attempt, attempts=record.attempts)
            result.withdrawn, result.same = True, tuple(by_digest.get(record.digest, ()) if result.score else ())
            found.append(result)
        return found

    def read(self, student: str, lesson: str) -> tuple[str, list[Verdict]]:
        """Return the fingerprint and the verdicts recorded of a submission; "" and none where there is no record."""
        found = self.recorded(student, lesson)
        return found.fingerprint, list(found.verdicts)

    def recorded(self, student: str, lesson: str) -> Recorded:
        """Return what is noted of a submission; of one that was never graded, and of a damaged file, nothing."""
        try:
            plain = json.loads(self._record_path(student, lesson).read_text())
            verdicts = tuple(Verdict.from_json(each) for each in plain["verdicts"])
            return Recorded(**{**plain, "verdicts": verdicts})
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return Recorded()

    def _record_path(self, student: str, lesson: str) -> Path:
        return self.folder / "graded" / lesson / f"{student}.json"

    def count(self, results: list[Graded]) -> None:
        """Set what counts in the gradebook for each result, with what is off for lateness of a score by hand too.

        nbgrader takes that off as it grades, and not where a person changes a score afterwards.
        """
        from sqlalchemy.exc import SQLAlchemyError

        less = self.late_penalty()
        with self.gradebook() as gradebook:
            found = {
                (submission.student_id, lesson): submission
                for lesson in {result.lesson for result in results}
                for submission in submissions_of(gradebook, lesson)
            }
            for result in results:
                if not (submission := found.get((result.student, result.lesson))):
                    continue
                penalty = submission.late_submission_penalty
                if penalty or submission.total_seconds_late > 0:
                    try:
                        penalty = _penalize(submission, less)
                    except SQLAlchemyError:
                        raise
                    except Exception as error:  # of a plug-in of the instructor's
                        why = one_line(error) or type(error).__name__
                        result.problem = result.problem or f"its penalty for lateness could not be reckoned: {why}"
                result.counts = score_of(grades_of(submission), penalty)[0]
            gradebook.db.commit()


def _penalize(submission: Any, less: Callable[[str, float, float], float]) -> float:
    """Take off a submission in the gradebook what its lateness costs of the score that counts; return how much."""
    for notebook in submission.notebooks:
        penalty = less(submission.student_id, notebook.score, submission.total_seconds_late)
        if penalty != (notebook.late_submission_penalty or 0.0):
            notebook.late_submission_penalty = penalty
    return sum(notebook.late_submission_penalty or 0.0 for notebook in submission.notebooks)


def _same(one: tuple[float | None, float], other: tuple[float | None, float]) -> bool:
    """Return whether two scores with their points are the same; an open one is None."""
    return all(
        a == b or (None not in (a, b) and math.isclose(a, b, abs_tol=1e-6)) for a, b in zip(one, other, strict=True)
    )


def is_whole(notebook: Path) -> bool:
    """Return whether there is a notebook that can be read."""
    try:
        return "cells" in json.loads(notebook.read_bytes())
    except (OSError, ValueError, TypeError, RecursionError):
        return False


def submissions_of(gradebook: Any, lesson: str) -> list[Any]:
    """Return the submissions of a lesson in nbgrader's gradebook."""
    from nbgrader.api import MissingEntry

    try:
        return list(gradebook.find_assignment(lesson).submissions)
    except MissingEntry:
        return []


def grades_of(submission: Any) -> list[Any]:
    """Return the grades of a submission, a cell each."""
    return [grade for notebook in submission.notebooks for grade in notebook.grades]


def score_of(grades: Sequence[Any], penalty: float | None = None) -> tuple[float | None, float, str]:
    """Return the score, the maximum and the status of some grades in nbgrader's gradebook."""
    top = sum(grade.max_score for grade in grades)
    if any(grade.auto_score is None and grade.manual_score is None for grade in grades):
        return None, top, "needs manual grading"
    status = "graded"
    if any(grade.manual_score is not None for grade in grades):
        stale = any(grade.needs_manual_grade for grade in grades)
        status = "set by hand before the last grading: look again" if stale else "set by hand"
    if penalty:
        status += f", {penalty:g} off for lateness"
    return max(0.0, sum(grade.score for grade in grades) - (penalty or 0.0)), top, status
