"""Grade a class: find what was handed in, judge it, enter it in nbgrader's gradebook, lose nothing on the way.

Layout of a classroom folder: `submitted/STUDENT/LESSON/LESSON.ipynb` comes in; `gradebook.db`, `autograded/` and
`feedback/` are nbgrader's; `seed`, `verdicts/` and `graded/` are the judge's. A file in `graded/` is written last, so a
run that was interrupted leaves no submission half graded: the next run does it again.
"""

from __future__ import annotations

import csv
import hashlib
import json
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
from autograder.config import configure
from autograder.grading import Grader, Job
from autograder.lesson import Lesson, lesson_names, load_lesson, verdict_name
from autograder.submission import SubmissionError, read_cells, restore, safe_name, stand_in
from autograder.verdict import Outcome, Verdict, write_atomically


@dataclass
class Graded:
    """One student's result in one lesson. `problem` says why nbgrader could not record it, if so."""

    student: str
    lesson: str
    verdicts: list[Verdict] = field(default_factory=list)
    fresh: bool = False
    problem: str | None = None

    @property
    def points(self) -> float:
        """The points that could be had."""
        return sum(v.points for v in self.verdicts)

    @property
    def score(self) -> float | None:
        """The points earned; None while a grader fault is open."""
        scores = [v.score for v in self.verdicts]
        return None if None in scores else float(sum(scores))


@dataclass(frozen=True)
class _Entry:
    """A submission as found: the notebook to grade and its jobs."""

    student: str
    lesson: Lesson
    notebook: NotebookNode
    jobs: list[Job]

    def fingerprint(self) -> str:
        """Return a digest of all that the result depends on."""
        settled = [[job.key, job.settled and job.settled.reason] for job in self.jobs]
        cells = [[cell["id"], cell.source] for cell in self.notebook.cells]
        return hashlib.sha256(json.dumps([settled, cells]).encode()).hexdigest()


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
        """Return nbgrader's configuration for this classroom."""
        config = configure(Config(), classroom=self.folder)
        config.Judge.seconds = self.seconds
        if submitted:
            config.CourseDirectory.submitted_directory = str(submitted)
        return config

    def found(self) -> tuple[list[tuple[str, str]], list[str]]:
        """Return the submissions as (student, lesson), and a sentence for everything in `submitted/` that is none."""
        lessons, pairs, strange = lesson_names(), [], []
        for student in sorted(p for p in self.submitted.glob("*") if not p.name.startswith(".")):
            if not student.is_dir() or not safe_name(student.name):
                strange.append(f"submitted/{student.name} is not a student's folder and was left alone")
                continue
            for folder in sorted(p for p in student.iterdir() if not p.name.startswith(".")):
                if folder.name in lessons:
                    pairs.append((student.name, folder.name))
                else:
                    strange.append(f"submitted/{student.name}/{folder.name} is not a lesson and was left alone")
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
        grader = grading.shared(str(self.folder), self.seconds)
        entries = [self._entry(grader, student, lesson) for student, lesson in wanted]
        results = {(e.student, e.lesson.name): None if again else self._recorded(e) for e in entries}
        todo = [e for e in entries if results[e.student, e.lesson.name] is None]
        self._judge(grader, todo, workers, progress)
        with self._staged(todo) as api:
            for done, entry in enumerate(todo, start=1):
                results[entry.student, entry.lesson.name] = self._record(api, grader, entry)
                progress("recording", done, len(todo))
        return [result for result in results.values() if result]

    def _entry(self, grader: Grader, student: str, name: str) -> _Entry:
        lesson = load_lesson(name)
        try:
            notebook = restore(lesson, read_cells(self.submitted / student / name / f"{name}.ipynb"))
        except SubmissionError as problem:
            notebook = stand_in(lesson, problem)
        return _Entry(student, lesson, notebook, grader.jobs(lesson, notebook))

    def _judge(self, grader: Grader, entries: list[_Entry], workers: int, progress: Callable[..., None]) -> None:
        work = [(entry.lesson, job) for entry in entries for job in entry.jobs]
        count = iter(range(1, len(work) + 1))
        grader.judge_all(work, workers, lambda: progress("judging", next(count), len(work)))

    @contextmanager
    def _staged(self, entries: list[_Entry]) -> Iterator[Any]:
        """Write the restored notebooks where nbgrader will find them, and have it know their lessons."""
        from nbgrader.apps import NbGraderAPI
        from nbgrader.coursedir import CourseDirectory

        self.folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".staging-", dir=self.folder) as stage:
            for entry in entries:
                name = entry.lesson.name
                folder = Path(stage) / entry.student / name
                folder.mkdir(parents=True)
                nbformat.write(entry.notebook, folder / f"{name}.ipynb")
                timestamp = self.submitted / entry.student / name / "timestamp.txt"
                if timestamp.is_file():
                    shutil.copy(timestamp, folder)
            config = self.config(Path(stage))
            config.CourseDirectory.release_directory = str(Path(stage) / ".release")
            for name in sorted({entry.lesson.name for entry in entries}):
                register(name, config)
            yield NbGraderAPI(CourseDirectory(config=config), config=config)

    def _record(self, api: Any, grader: Grader, entry: _Entry) -> Graded:
        verdicts = [grader.verdict(entry.lesson, job) for job in entry.jobs]
        result = Graded(entry.student, entry.lesson.name, verdicts, fresh=True)
        answer = api.autograde(entry.lesson.name, entry.student, force=True)
        if not answer["success"]:
            log = str(answer.get("error") or answer.get("log", "")).strip()
            result.problem = f"nbgrader could not record it: {log.splitlines()[-1] if log else 'no message'}"
            return result
        record = {"fingerprint": entry.fingerprint(), "verdicts": [v.to_json() for v in verdicts]}
        write_atomically(self._record_path(entry), json.dumps(record, indent=1) + "\n")
        return result

    def _recorded(self, entry: _Entry) -> Graded | None:
        """Return the result of an earlier run if it still holds."""
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
        with self.gradebook() as gradebook:
            known = any(s.student_id == entry.student for s in _submissions(gradebook, name))
        return Graded(entry.student, name, verdicts) if known else None

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
        config = self.config()
        quieten_nbgrader()
        api = NbGraderAPI(CourseDirectory(config=config), config=config)
        graded = sorted((self.folder / "autograded").glob("*/*/*.ipynb"))
        graded = [path for path in graded if not lessons or path.stem in lessons]
        pages, problems = [], []
        for done, path in enumerate(graded, start=1):
            student, lesson = path.parts[-3], path.stem
            page = self.folder / "feedback" / student / lesson / f"{lesson}.html"
            if not page.exists() or page.stat().st_mtime < path.stat().st_mtime:
                answer = api.generate_feedback(lesson, student, force=True)
                if not answer["success"]:
                    problems.append(
                        f"no feedback for {student} in {lesson}: {answer.get('error') or answer.get('log')}"
                    )
                    continue
            pages.append(page)
            progress("writing feedback", done, len(graded))
        return pages, problems

    def export(self, target: Path, per_exercise: bool = False) -> int:
        """Write the gradebook as CSV and return the number of rows. A score that is still open is left blank."""
        head = ["student", "lesson", *(["exercise"] if per_exercise else []), "score", "max_score", "status"]
        with self.gradebook() as gradebook:
            rows = [row for lesson in lesson_names() for row in _rows(gradebook, lesson, per_exercise)]
        with open(target, "w", newline="") as file:
            csv.writer(file).writerows([head, *rows])
        return len(rows)


def _rows(gradebook: Any, lesson: str, per_exercise: bool) -> Iterator[list[Any]]:
    """Yield the rows of a lesson; of a lesson that anybody handed in, also those of students who did not."""
    found = {submission.student_id: submission for submission in _submissions(gradebook, lesson)}
    for student in sorted(student.id for student in gradebook.students) if found else ():
        submission = found.get(student)
        if submission is None:
            if not per_exercise:
                yield [student, lesson, 0.0, gradebook.find_assignment(lesson).max_score, "not handed in"]
            continue
        grades = [grade for notebook in submission.notebooks for grade in notebook.grades]
        if per_exercise:
            for grade in grades:
                yield [student, lesson, verdict_name(grade.name), *_score([grade])]
        else:
            yield [student, lesson, *_score(grades, submission.late_submission_penalty)]


def _submissions(gradebook: Any, lesson: str) -> list[Any]:
    from nbgrader.api import MissingEntry

    try:
        return list(gradebook.find_assignment(lesson).submissions)
    except MissingEntry:
        return []


def _score(grades: Sequence[Any], penalty: float | None = None) -> tuple[Any, float, str]:
    """Return the score, the maximum and the status of some grades in nbgrader's gradebook."""
    top = sum(grade.max_score for grade in grades)
    if any(grade.auto_score is None and grade.manual_score is None for grade in grades):
        return "", top, "needs manual grading"
    return max(0.0, sum(grade.score for grade in grades) - (penalty or 0.0)), top, "graded"
