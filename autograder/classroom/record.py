"""Enter verdicts in nbgrader's gradebook. A submission's record is written last: what was interrupted is done again."""

from __future__ import annotations

import hashlib
import json
import math
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode
from traitlets.config import Config

from autograder.classroom.build import register
from autograder.classroom.config import configure, own_settings
from autograder.classroom.grader import Job
from autograder.classroom.history import Attempt, History, digest_of, now
from autograder.classroom.restore import REMARKS, code_cells
from autograder.course.course import Course
from autograder.course.lesson import Lesson
from autograder.files import require_space
from autograder.judging.verdict import Outcome, Verdict, write_atomically
from autograder.text import one_line


@dataclass
class Graded:
    """One student's result in one lesson. `problem` says why nbgrader could not record it, if so.

    `counts` is the score in the gradebook: the judge's, unless a person changed it or the submission came late.
    """

    student: str
    lesson: str
    verdicts: list[Verdict] = field(default_factory=list)
    fresh: bool = False
    problem: str | None = None
    counts: float | None = None

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
        if self.problem or None in pair:
            return not self.problem and pair != (None, None)
        return not math.isclose(*pair, abs_tol=1e-6)


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
        ran = {each.name for job in self.jobs for each in job.program}
        solutions = [(name, own.get(name, "")) for name in self.lesson.solutions]
        return digest_of([*solutions, *(("", own[name]) for name in own if name in ran - set(self.lesson.solutions))])


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

    def deadlines(self) -> dict[tuple[str, str], str]:
        """Return when a submission in the gradebook is due, by lesson and student; for the student "", any other."""
        found = {}
        with self.gradebook() as gradebook:
            for lesson in gradebook.assignments:
                found[lesson.name, ""] = str(lesson.duedate)
                found |= {(lesson.name, each.student_id): str(each.duedate) for each in lesson.submissions}
        return found

    def penalty(self) -> str:
        """Return how the instructor has nbgrader take points off for lateness."""
        config = self.config()
        return str([config.get("AssignLatePenalties"), config.get("LateSubmissionPlugin")])

    @contextmanager
    def staged(self, todo: Mapping[tuple[str, str], str | None]) -> Iterator[Any]:
        """Make a folder where nbgrader will find restored notebooks, and have it know their lessons.

        `todo` has the time of each submission, None without one, by student and lesson.
        """
        from autograder.classroom.converters import Recorder, shared_connections

        with tempfile.TemporaryDirectory(prefix=".staging-", dir=self.folder) as stage:
            config = self.config(Path(stage))
            config.CourseDirectory.release_directory = str(Path(stage) / ".release")
            for name in sorted({lesson for _, lesson in todo}):
                register(self.course.lesson(name), config)
            self._forget_times({(lesson, student) for (student, lesson), time in todo.items() if time is None})
            with shared_connections():
                yield Recorder(config)

    def _forget_times(self, wanted: set[tuple[str, str]]) -> None:
        """Drop the times of these submissions, by lesson and student; nbgrader would keep what earlier runs entered."""
        with self.gradebook() as gradebook:
            for lesson in {lesson for lesson, _ in wanted}:
                for submission in submissions_of(gradebook, lesson):
                    if (lesson, submission.student_id) in wanted:
                        submission.timestamp = None
            gradebook.db.commit()

    def enter(self, recorder: Any, entry: Entry, verdicts: list[Verdict]) -> Graded:
        """Have nbgrader enter the verdicts of a submission, and note that it has."""
        name = entry.lesson.name
        result = Graded(entry.student, name, verdicts, fresh=True)
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
            require_space(self.folder, *self._database())
            log = str(answer.get("error") or answer.get("log", "")).strip()
            result.problem = f"nbgrader could not record it: {one_line(log.splitlines()[-1]) if log else 'no message'}"
            return result
        self._keep(entry, verdicts)
        self.note(entry.student, name, verdicts, entry.fingerprint())
        return result

    def history(self, student: str, lesson: str) -> list[Attempt]:
        """Return a student's graded attempts at a lesson, oldest first."""
        return self.attempts.read(student, lesson)

    def _keep(self, entry: Entry, verdicts: Sequence[Verdict]) -> None:
        """Add an attempt to the history, unless the grader could not even read it."""
        if entry.notebook.metadata.get(REMARKS, {}).get("outcome") != Outcome.FAULT:
            attempt = Attempt(entry.timestamp, now(), entry.digest(), tuple(verdicts))
            self.attempts.add(entry.student, entry.lesson, entry.notebook, attempt)

    def _database(self) -> list[Path]:
        """Return the folder of the gradebook, if it is a file."""
        scheme, _, path = self.config().CourseDirectory.db_url.partition(":///")
        return [Path(path).parent] if scheme.startswith("sqlite") and path else []

    def note(self, student: str, lesson: str, verdicts: Sequence[Verdict], fingerprint: str = "") -> None:
        """Write a submission's record. Without a fingerprint, as when nbgrader grades, the next run enters it again."""
        record = {"fingerprint": fingerprint, "verdicts": [v.to_json() for v in verdicts]}
        write_atomically(self._record_path(student, lesson), json.dumps(record, indent=1) + "\n")

    def entered(self, entry: Entry) -> Graded | None:
        """Return the result of an earlier run, which the gradebook has, if it still holds."""
        name = entry.lesson.name
        fingerprint, verdicts = self.read(entry.student, name)
        notebook = self.folder / "autograded" / entry.student / name / f"{name}.ipynb"
        faults = any(v.outcome is Outcome.FAULT for v in verdicts)
        if faults or fingerprint != entry.fingerprint() or not notebook.exists() or not self._kept(entry):
            return None
        return Graded(entry.student, name, verdicts)

    def _kept(self, entry: Entry) -> bool:
        last = self.history(entry.student, entry.lesson.name)[-1:]
        return [entry.digest()] == [attempt.digest for attempt in last]

    def read(self, student: str, lesson: str) -> tuple[str, list[Verdict]]:
        """Return the fingerprint and the verdicts recorded of a submission; "" and none where there is no record."""
        try:
            record = json.loads(self._record_path(student, lesson).read_text())
            return str(record["fingerprint"]), [Verdict.from_json(v) for v in record["verdicts"]]
        except (OSError, ValueError, KeyError, TypeError):
            return "", []

    def _record_path(self, student: str, lesson: str) -> Path:
        return self.folder / "graded" / lesson / f"{student}.json"

    def count(self, results: list[Graded]) -> None:
        """Set what counts in the gradebook for each result."""
        with self.gradebook() as gradebook:
            found = {
                (submission.student_id, lesson): score_of(grades_of(submission), submission.late_submission_penalty)[0]
                for lesson in {result.lesson for result in results}
                for submission in submissions_of(gradebook, lesson)
            }
        for result in results:
            result.counts = found.get((result.student, result.lesson))


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
