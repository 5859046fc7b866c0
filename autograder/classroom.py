"""Grade a class: find what was handed in, judge it, enter it in nbgrader's gradebook, lose nothing on the way.

Layout of a classroom folder: `submitted/STUDENT/LESSON/LESSON.ipynb` comes in; `gradebook.db`, `autograded/` and
`feedback/` are nbgrader's; `seed`, `verdicts/` and `graded/` are the judge's. A file in `graded/` is written last, so a
run that was interrupted leaves no submission half graded: the next run does it again.
"""

from __future__ import annotations

import csv
import fcntl
import hashlib
import json
import math
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode
from traitlets.config import Config

from autograder import grading
from autograder.build import quieten_nbgrader, register
from autograder.config import configure, own_settings
from autograder.grading import Grader, Job
from autograder.lesson import Lesson, lesson_names, load_lesson, verdict_name
from autograder.submission import REMARKS, SubmissionError, read_cells, restore, safe_name, stand_in
from autograder.verdict import Outcome, Verdict, write_atomically

PATTERN = "STUDENT/LESSON/LESSON.ipynb"


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
class _Entry:
    """A submission as found: the notebook to grade and its jobs."""

    student: str
    lesson: Lesson
    notebook: NotebookNode
    jobs: list[Job]
    timestamp: str | None
    terms: tuple[str, str]  # due date and penalty for lateness

    def fingerprint(self) -> str:
        """Return a digest of all that the result depends on."""
        settled = [[job.key, job.settled and job.settled.to_json()] for job in self.jobs]
        cells = [[cell["id"], cell.source] for cell in self.notebook.cells]
        late = self.timestamp and [self.timestamp, *self.terms]
        content = json.dumps([settled, cells, self.notebook.metadata.get(REMARKS), late])
        return hashlib.sha256(content.encode()).hexdigest()


@dataclass
class Classroom:
    """A folder with a class in it."""

    folder: Path
    seconds: float | None = None

    @property
    def submitted(self) -> Path:
        """Where submissions come in."""
        return self.folder / "submitted"

    def config(self, submitted: Path | None = None) -> Config:
        """Return nbgrader's configuration for this classroom: the instructor's own, with the course's on top."""
        config = configure(own_settings(), classroom=self.folder)
        config.Judge.seconds = self.seconds
        if submitted:
            config.CourseDirectory.submitted_directory = str(submitted)
        return config

    def found(self) -> tuple[list[tuple[str, str]], list[str]]:
        """Return the submissions as (student, lesson), and a sentence for everything in `submitted/` that is none."""
        if not self.submitted.is_dir():
            raise FileNotFoundError(f"there is no class in {self.folder}: submissions go to {self.submitted}/{PATTERN}")
        lessons, pairs, strange = lesson_names(), [], []
        for student in _visible(self.submitted):
            if not student.is_dir() or student.is_symlink():
                strange.append(f"submitted/{student.name} is not a student's folder and was left alone")
            elif not safe_name(student.name):
                strange.append(
                    f"submitted/{student.name!r} cannot be a student's name and was left alone: rename it, with "
                    "letters, digits and _ @ + - . alone (no spaces; accents composed, as Unicode NFC has them)"
                )
            else:
                folders = _visible(student)
                known = [f for f in folders if f.name in lessons and f.is_dir() and not f.is_symlink()]
                pairs += [(student.name, folder.name) for folder in known]
                strange += [problem for folder in known if (problem := _timestamp(folder)[1])]
                strange += [
                    f"submitted/{student.name}/{folder.name} holds other notebooks that were not graded: {names}"
                    for folder in known
                    if (names := ", ".join(_others(folder)))
                ]
                others = [
                    f"submitted/{student.name}/{f.name} is not a lesson's folder" for f in folders if f not in known
                ]
                strange += [f"{text} and was left alone" for text in others or ([] if known else [_nothing(student)])]
        return pairs, strange

    def grade(
        self,
        lessons: Sequence[str] = (),
        workers: int = 2,
        again: bool = False,
        progress: Callable[[str, int, int], None] = lambda stage, done, total: None,
    ) -> list[Graded]:
        """Grade what is not graded yet, or has changed, and return the results of all.

        Parameters
        ----------
        lessons
            Only these; all that were handed in by default. LessonError for one that does not exist.
        again
            Grade everything anew, also what has not changed.
        progress
            Called with the stage ("judging" or "recording"), steps done and steps in all.
        """
        for name in lessons:
            load_lesson(name)
        wanted = [pair for pair in self.found()[0] if not lessons or pair[1] in lessons]
        with self._locked():
            grader = grading.shared(str(self.folder), self.seconds)
            deadlines, penalty = self._deadlines(), self._penalty()
            terms = {(s, n): (deadlines.get((n, s)) or deadlines.get((n, ""), ""), penalty) for s, n in wanted}
            entries = [self._entry(grader, *pair, terms[pair]) for pair in wanted]
            results = {
                (e.student, e.lesson.name): self._recorded(e)
                if not again and (e.lesson.name, e.student) in deadlines
                else None
                for e in entries
            }
            todo = [e for e in entries if results[e.student, e.lesson.name] is None]
            work = [(entry.lesson, job) for entry in todo for job in entry.jobs]
            grader.judge_all(work, workers, lambda done, total: progress("judging", done, total))
            with self._staged(todo) as api:
                for done, entry in enumerate(todo, start=1):
                    results[entry.student, entry.lesson.name] = self._record(api, grader, entry)
                    progress("recording", done, len(todo))
            found = [result for result in results.values() if result]
            self._count(found)
        return found

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Keep other graders out of the classroom. The lock goes with the process, however that ends."""
        with open(self.folder / ".lock", "w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise BlockingIOError(f"another run is grading {self.folder}: wait for it") from None
            for leftover in self.folder.glob(".staging-*"):
                shutil.rmtree(leftover, ignore_errors=True)
            yield

    def _entry(self, grader: Grader, student: str, name: str, terms: tuple[str, str]) -> _Entry:
        lesson, folder = load_lesson(name), self.submitted / student / name
        try:
            notebook = restore(lesson, read_cells(_find_notebook(folder)), {"others": _others(folder)})
        except SubmissionError as problem:
            notebook = stand_in(lesson, problem)
        return _Entry(student, lesson, notebook, grader.jobs(lesson, notebook), _timestamp(folder)[0], terms)

    def _deadlines(self) -> dict[tuple[str, str], str]:
        """Return when a submission in the gradebook is due, by lesson and student; for the student "", any other."""
        found = {}
        with self.gradebook() as gradebook:
            for lesson in gradebook.assignments:
                found[lesson.name, ""] = str(lesson.duedate)
                found |= {(lesson.name, each.student_id): str(each.duedate) for each in lesson.submissions}
        return found

    def _penalty(self) -> str:
        """Return how the instructor has nbgrader take points off for lateness."""
        config = self.config()
        return str([config.get("AssignLatePenalties"), config.get("LateSubmissionPlugin")])

    def _count(self, results: list[Graded]) -> None:
        """Enter what counts in the gradebook."""
        with self.gradebook() as gradebook:
            found = {
                (submission.student_id, lesson): _score(_grades(submission), submission.late_submission_penalty)[0]
                for lesson in {result.lesson for result in results}
                for submission in _submissions(gradebook, lesson)
            }
        for result in results:
            result.counts = found.get((result.student, result.lesson))

    @contextmanager
    def _staged(self, entries: list[_Entry]) -> Iterator[Any]:
        """Write the restored notebooks where nbgrader will find them, and have it know their lessons."""
        from nbgrader.apps import NbGraderAPI
        from nbgrader.coursedir import CourseDirectory

        with tempfile.TemporaryDirectory(prefix=".staging-", dir=self.folder) as stage:
            for entry in entries:
                name = entry.lesson.name
                folder = Path(stage) / entry.student / name
                folder.mkdir(parents=True)
                nbformat.write(entry.notebook, folder / f"{name}.ipynb")
                if entry.timestamp:
                    (folder / "timestamp.txt").write_text(entry.timestamp)
            config = self.config(Path(stage))
            config.CourseDirectory.release_directory = str(Path(stage) / ".release")
            for name in sorted({entry.lesson.name for entry in entries}):
                register(name, config)
            self._forget_times({(e.lesson.name, e.student) for e in entries if e.timestamp is None})
            yield NbGraderAPI(CourseDirectory(config=config), config=config)

    def _forget_times(self, wanted: set[tuple[str, str]]) -> None:
        """Drop the times of these submissions, by lesson and student; nbgrader would keep what earlier runs entered."""
        with self.gradebook() as gradebook:
            for lesson in {lesson for lesson, _ in wanted}:
                for submission in _submissions(gradebook, lesson):
                    if (lesson, submission.student_id) in wanted:
                        submission.timestamp = None
            gradebook.db.commit()

    def _record(self, api: Any, grader: Grader, entry: _Entry) -> Graded:
        verdicts = [grader.verdict(entry.lesson, job) for job in entry.jobs]
        result = Graded(entry.student, entry.lesson.name, verdicts, fresh=True)
        answer = _uninterrupted(api.autograde(entry.lesson.name, entry.student, force=True))
        if not answer["success"]:
            log = str(answer.get("error") or answer.get("log", "")).strip()
            result.problem = f"nbgrader could not record it: {log.splitlines()[-1] if log else 'no message'}"
            return result
        record = {"fingerprint": entry.fingerprint(), "verdicts": [v.to_json() for v in verdicts]}
        write_atomically(self._record_path(entry), json.dumps(record, indent=1) + "\n")
        return result

    def _recorded(self, entry: _Entry) -> Graded | None:
        """Return the result of an earlier run, which the gradebook has, if it still holds."""
        try:
            record = json.loads(self._record_path(entry).read_text())
            verdicts = [Verdict.from_json(v) for v in record["verdicts"]]
        except (OSError, ValueError, KeyError, TypeError):
            return None
        name = entry.lesson.name
        notebook = self.folder / "autograded" / entry.student / name / f"{name}.ipynb"
        faults = any(v.outcome is Outcome.FAULT for v in verdicts)
        if faults or record["fingerprint"] != entry.fingerprint() or not notebook.exists():
            return None
        return Graded(entry.student, name, verdicts)

    def _record_path(self, entry: _Entry) -> Path:
        return self.folder / "graded" / entry.lesson.name / f"{entry.student}.json"

    @contextmanager
    def gradebook(self) -> Iterator[Any]:
        """Open nbgrader's gradebook."""
        from nbgrader.api import Gradebook

        self.folder.mkdir(parents=True, exist_ok=True)
        with Gradebook(self.config().CourseDirectory.db_url, "mla-course") as gradebook:
            yield gradebook

    def feedback(
        self, lessons: Sequence[str] = (), progress: Callable[[str, int, int], None] = lambda stage, done, total: None
    ) -> tuple[list[Path], list[str]]:
        """Write a feedback page for every graded submission; return the pages and what went wrong."""
        from nbgrader.apps import NbGraderAPI
        from nbgrader.coursedir import CourseDirectory

        for name in lessons:
            load_lesson(name)
        graded = sorted((self.folder / "autograded").glob("*/*/*.ipynb"))
        graded = [path for path in graded if not lessons or path.stem in lessons]
        if not graded:
            raise FileNotFoundError(f"nothing is graded in {self.folder} yet: run `mla-course grade` first")
        config = self.config()
        quieten_nbgrader()
        api = NbGraderAPI(CourseDirectory(config=config), config=config)
        with self.gradebook() as gradebook:
            digests = {path: _feedback_digest(gradebook, path) for path in graded}
        pages, problems = [], []
        for done, path in enumerate(graded, start=1):
            student, lesson = path.parts[-3], path.stem
            page = self.folder / "feedback" / student / lesson / f"{lesson}.html"
            stamp = self.folder / "graded" / lesson / f"{student}.feedback"
            if not page.exists() or not stamp.exists() or stamp.read_text() != digests[path]:
                answer = _uninterrupted(api.generate_feedback(lesson, student, force=True))
                if not answer["success"]:
                    log = answer.get("error") or answer.get("log")
                    problems.append(f"no feedback for {student} in {lesson}: {log}")
                    continue
                write_atomically(stamp, digests[path])
            pages.append(page)
            progress("writing feedback", done, len(graded))
        return pages, problems

    def overruled(self) -> list[str]:
        """Return a sentence for every score that a person has set in place of the judge's, or that lateness lowers."""
        from nbgrader.api import Grade, SubmittedNotebook

        found = []
        with self.gradebook() as gradebook:
            for grade in gradebook.db.query(Grade).filter(Grade.manual_score.is_not(None)):
                if grade.manual_score != grade.auto_score:
                    line = f"{grade.notebook.name} {grade.notebook.student.id}: {verdict_name(grade.name)} counts "
                    line += f"{grade.manual_score:g}, set by hand"
                    if grade.auto_score is not None:
                        line += f"; the judge now gives {grade.auto_score:g}; clear the field in formgrader to take it"
                    found.append(line)
            for late in gradebook.db.query(SubmittedNotebook).filter(SubmittedNotebook.late_submission_penalty > 0):
                hours, less = late.assignment.total_seconds_late / 3600, late.late_submission_penalty
                found.append(f"{late.name} {late.student.id}: {hours:.4g} hours late, {less:g} points less")
        return sorted(found)

    def rows(self, per_exercise: bool = False) -> list[dict[str, Any]]:
        """Return the gradebook as a row a submission, or an exercise. A score that is still open is None.

        `late` is in hours, None if in time; the penalty for it is taken off the score of a submission.
        """
        if not (self.folder / "graded").is_dir():
            raise FileNotFoundError(f"nothing is graded in {self.folder} yet: run `mla-course grade` first")
        with self.gradebook() as gradebook:
            return [row for lesson in lesson_names() for row in _rows(gradebook, lesson, per_exercise)]

    def export(self, target: Path, per_exercise: bool = False) -> int:
        """Write the rows as CSV and return their number."""
        head = ["student", "lesson", *(["exercise"] if per_exercise else []), "score", "max_score", "late", "status"]
        rows = self.rows(per_exercise)
        with open(target, "w", newline="") as file:
            writer = csv.DictWriter(file, head)
            writer.writeheader()
            writer.writerows(rows)
        return len(rows)


def _rows(gradebook: Any, lesson: str, per_exercise: bool) -> Iterator[dict[str, Any]]:
    """Yield the rows of a lesson; of a lesson that anybody handed in, also those of students who did not."""
    found = {submission.student_id: submission for submission in _submissions(gradebook, lesson)}
    for student in sorted(student.id for student in gradebook.students) if found else ():
        submission, who = found.get(student), {"student": student, "lesson": lesson}
        if submission is None:
            if not per_exercise:
                top = gradebook.find_assignment(lesson).max_score
                yield {**who, "score": 0.0, "max_score": top, "late": None, "status": "not handed in"}
            continue
        late = round(submission.total_seconds_late / 3600, 2) or None
        penalty = 0.0 if per_exercise else submission.late_submission_penalty
        for grades in [[grade] for grade in _grades(submission)] if per_exercise else [_grades(submission)]:
            what = {"exercise": verdict_name(grades[0].name)} if per_exercise else {}
            score, top, status = _score(grades, penalty)
            yield {**who, **what, "score": score, "max_score": top, "late": late, "status": status}


def _visible(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if not path.name.startswith("."))


def _timestamp(folder: Path) -> tuple[str | None, str | None]:
    """Return the time of a submission as its file has it, and what is wrong with that file."""
    from nbgrader.utils import parse_utc

    path = folder / "timestamp.txt"
    if not path.is_file():
        return None, None
    text = path.read_text(errors="replace").strip()
    try:
        parse_utc(text)
    except (ValueError, OverflowError):
        where = "/".join(path.parts[-4:])
        return None, f"{where} holds no time such as 2026-12-25 10:00:00 UTC, so the submission counts as in time"
    return text, None


def _nothing(student: Path) -> str:
    return f"submitted/{student.name} holds no lesson"


def _find_notebook(folder: Path) -> Path:
    """Return the notebook in a submission's folder: of the lesson's name, or the only one there is.

    Raises SubmissionError if that leaves a choice. Links are not followed.
    """
    path, files = folder / f"{folder.name}.ipynb", _notebooks(folder)
    if path in files or not files:
        return path if not path.is_symlink() else folder / "a link"
    if len(files) == 1:
        return files[0]
    names = ", ".join(file.name for file in files)
    raise SubmissionError(Outcome.ABSENT, f"no {path.name} was handed in, but {names}: which of them counts?")


def _notebooks(folder: Path) -> list[Path]:
    return [path for path in _visible(folder) if path.suffix == ".ipynb" and path.is_file() and not path.is_symlink()]


def _others(folder: Path) -> list[str]:
    """Return the names of the notebooks beside the one that bears the lesson's name."""
    names = [path.name for path in _notebooks(folder)]
    return [name for name in names if name != f"{folder.name}.ipynb"] if f"{folder.name}.ipynb" in names else []


def _uninterrupted(answer: dict[str, Any]) -> dict[str, Any]:
    """Return what nbgrader's API answered. It takes Ctrl-C for an error of the submission; raise it again."""
    if str(answer.get("error")).splitlines()[-1:] == ["KeyboardInterrupt"]:
        raise KeyboardInterrupt
    return answer


def _feedback_digest(gradebook: Any, notebook: Path) -> str:
    """Return a digest of what a feedback page shows: the graded notebook, scores and comments."""
    submission = gradebook.find_submission_notebook(notebook.stem, notebook.stem, notebook.parts[-3])
    grades = [[g.name, g.score, g.extra_credit] for g in submission.grades]
    comments = [[c.name, c.comment] for c in submission.comments]
    content = json.dumps([sorted(grades), sorted(comments, key=str), submission.late_submission_penalty], default=str)
    return hashlib.sha256(content.encode() + notebook.read_bytes()).hexdigest()


def _submissions(gradebook: Any, lesson: str) -> list[Any]:
    from nbgrader.api import MissingEntry

    try:
        return list(gradebook.find_assignment(lesson).submissions)
    except MissingEntry:
        return []


def _grades(submission: Any) -> list[Any]:
    return [grade for notebook in submission.notebooks for grade in notebook.grades]


def _score(grades: Sequence[Any], penalty: float | None = None) -> tuple[float | None, float, str]:
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
