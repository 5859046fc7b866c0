"""Grade a class: find what was handed in, judge it, record it, lose nothing on the way.

Layout of a classroom folder: `submitted/STUDENT/LESSON/LESSON.ipynb` comes in; `gradebook.db`, `autograded/` and
`feedback/` are nbgrader's; `seed`, `verdicts/` and `graded/` are the judge's.
"""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from autograder.classroom import grader as graders
from autograder.classroom.grader import Grader
from autograder.classroom.record import Entry, Graded, Records
from autograder.classroom.restore import SubmissionError, placeholder, read_cells, restore, safe_name
from autograder.course.course import Course
from autograder.judging.verdict import Outcome

PATTERN = "STUDENT/LESSON/LESSON.ipynb"
MARK = ".sample-class"  # lists the submissions of the sample class as STUDENT/LESSON
SEED = "the same cases in every run"  # of the sample class: no secret, as its students are made up


@dataclass
class Classroom:
    """A folder with a class in it."""

    course: Course
    folder: Path
    seconds: float | None = None

    @property
    def submitted(self) -> Path:
        """Where submissions come in."""
        return self.folder / "submitted"

    @property
    def records(self) -> Records:
        """What is recorded of the class."""
        return Records(self.course, self.folder, self.seconds)

    def found(self) -> tuple[list[tuple[str, str]], list[str]]:
        """Return the submissions as (student, lesson), and a sentence for everything in `submitted/` that is none."""
        if not self.submitted.is_dir():
            raise FileNotFoundError(f"there is no class in {self.folder}: submissions go to {self.submitted}/{PATTERN}")
        lessons, pairs, strange = self.course.lesson_names(), [], []
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
            self.course.folder(name)
        wanted = [pair for pair in self.found()[0] if not lessons or pair[1] in lessons]
        self._refuse_public_seed(wanted)
        with self._locked():
            grader, records = graders.shared(str(self.course.root), str(self.folder), self.seconds), self.records
            deadlines, penalty = records.deadlines(), records.penalty()
            terms = {(s, n): (deadlines.get((n, s)) or deadlines.get((n, ""), ""), penalty) for s, n in wanted}
            entries = [self._entry(grader, *pair, terms[pair]) for pair in wanted]
            results = {
                (e.student, e.lesson.name): records.entered(e)
                if not again and (e.lesson.name, e.student) in deadlines
                else None
                for e in entries
            }
            todo = [e for e in entries if results[e.student, e.lesson.name] is None]
            work = [(entry.lesson, job) for entry in todo for job in entry.jobs]
            grader.judge_all(work, workers, lambda done, total: progress("judging", done, total))
            with records.staged(todo) as recorder:
                for done, entry in enumerate(todo, start=1):
                    verdicts = [grader.verdict(entry.lesson, job) for job in entry.jobs]
                    results[entry.student, entry.lesson.name] = records.enter(recorder, entry, verdicts)
                    progress("recording", done, len(todo))
            found = [result for result in results.values() if result]
            records.count(found)
        return found

    def _refuse_public_seed(self, pairs: Sequence[tuple[str, str]]) -> None:
        """Raise FileExistsError where real submissions would be judged on cases that everybody can draw."""
        seed, mark = self.folder / "seed", self.folder / MARK
        if not seed.is_file() or seed.read_text().strip() != SEED:
            return
        sample = mark.read_text().splitlines() if mark.is_file() else []
        if others := sorted("/".join(pair) for pair in pairs if "/".join(pair) not in sample):
            raise FileExistsError(
                f"{seed} is the sample class's, which is public, and {others[0]} is not of that class: remove "
                f"{self.folder}/seed and what the demo left, or grade in another folder"
            )

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

    def _entry(self, grader: Grader, student: str, name: str, terms: tuple[str, str]) -> Entry:
        lesson, folder = self.course.lesson(name), self.submitted / student / name
        try:
            notebook = restore(lesson, read_cells(_find_notebook(folder)), {"others": _others(folder)})
        except SubmissionError as problem:
            notebook = placeholder(lesson, problem)
        return Entry(student, lesson, notebook, grader.jobs(lesson, notebook), _timestamp(folder)[0], terms)


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
