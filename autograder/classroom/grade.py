"""Grade a class: find what was handed in, judge it, record it, lose nothing on the way.

Layout of a classroom folder: `submitted/STUDENT/LESSON/LESSON.ipynb` comes in; `gradebook.db`, `autograded/` and
`feedback/` are nbgrader's; `seed`, `verdicts/`, `graded/` and `history/` are the judge's.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from datetime import UTC, tzinfo
from itertools import islice
from pathlib import Path

from nbformat import NotebookNode

from autograder.classroom import extension
from autograder.classroom import grader as graders
from autograder.classroom.archives import is_notebook
from autograder.classroom.database import MARK
from autograder.classroom.grader import Grader
from autograder.classroom.record import Entry, Graded, Records
from autograder.classroom.restore import (
    SubmissionError,
    placeholder,
    read_cells,
    read_file,
    refuse_other_lesson,
    restore,
    safe_name,
)
from autograder.classroom.scale import Cluster
from autograder.course.course import Course
from autograder.course.lesson import Lesson
from autograder.files import changed, composed, require_space, spelling
from autograder.isolation import sandbox
from autograder.isolation.sandbox import SandboxError
from autograder.judging.verdict import Outcome, Verdict
from autograder.text import listed, one_line

PATTERN = "STUDENT/LESSON/LESSON.ipynb"
MOST = 1000  # entries of a student's folder, or of a lesson's in it, that are looked at
# Date and time, then nothing, an offset or a time zone's name: of another the parser would open any file.
TIME = re.compile(
    r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d(?::\d\d(?:\.\d{1,6})?)?)"
    r"(?:(Z| ?[+-]\d\d:?\d\d)| ?([A-Z][\w+-]*(?:/[A-Z][\w+-]*)*))?",
    re.ASCII | re.IGNORECASE,
)
UTC_NAMES = ("", "UTC", "GMT", "Z")
SECRET = "submission_secret.txt"  # of nbgrader's exchange: names the feedback page that the student may fetch
YEARS = 1970, 2999  # of a submission's time; a time zone takes one at the very end of the calendar off it
SEED = "the same cases in every run"  # of the sample class: no secret, as its students are made up
ISOLATION = "MLA_ISOLATION"  # in the environment: how to isolate where nothing else says


@dataclass
class Classroom:
    """A folder with a class in it.

    `isolation` is what submissions run under (see `isolation_for`), `scheduler` the address of a dask scheduler whose
    workers judge, in place of this process.
    """

    course: Course
    folder: Path
    seconds: float | None = None
    isolation: str | None = None
    scheduler: str | None = None

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
        there = _visible(self.submitted)
        for student in there:
            name, plain = one_line(student.name, 100), student.with_name(composed(student.name))
            if plain not in there and os.path.lexists(plain):
                student = plain
            if student.is_symlink() or not student.is_dir():
                strange.append(f"submitted/{name} is not a student's folder and was left alone")
            elif not safe_name(student.name):
                strange.append(
                    f"submitted/{name} cannot be a student's name and was left alone: rename it, with letters, digits "
                    "and _ @ + - . alone (no spaces; accents composed, as Unicode NFC has them; 200 bytes at most)"
                )
            else:
                known, problems = _look(student, lessons)
                pairs += [(student.name, lesson) for lesson in known]
                strange += problems
        return pairs, strange

    def grade(
        self,
        lessons: Sequence[str] = (),
        jobs: int | None = None,
        again: bool = False,
        progress: Callable[[str, int, int], None] = lambda stage, done, total: None,
        best: bool = False,
    ) -> list[Graded]:
        """Grade what is not graded yet, or has changed, and return the results of all, and of what was withdrawn.

        Submissions are read one at a time, to judge them and again to record them, so that a large class takes no
        more memory than a small one.

        Parameters
        ----------
        lessons
            Only these; all that were handed in by default. LessonError for one that does not exist.
        jobs
            Exercises judged at a time; by default as many as there are cores, or as the scheduler's workers take.
        again
            Judge and grade everything anew, also what has not changed.
        progress
            Called with the stage ("judging" or "recording"), steps done and steps in all.
        best
            Have the best attempt of a student at a lesson count, what it loses for its lateness taken off, in place of
            the last one. All that are known are judged anew; of equal ones the last one counts.

        Raises
        ------
        ExtensionError
            The classroom's file of extensions is damaged.
        SandboxError, SchedulerError
            Submissions cannot be judged here as `isolation` has it, or not by the scheduler.
        OSError
            A disk is full or read-only. What is recorded stays, and the next run goes on from there.
        """
        wanted = self._wanted(lessons)
        self._refuse_public_seed(wanted)
        with self.locked(), self._grader(wanted) as grader, grader.anew() if again else nullcontext():
            records = self.records
            records.require_writable()  # before hours of judging
            deadlines, penalty = records.deadlines(), records.penalty()
            times = records.extensions.read()
            terms = {
                (s, n): (deadlines.get((n, s)) or extension.due(deadlines.get((n, ""), ""), times.get((n, s))), penalty)
                for s, n in wanted
            }
            plans = {name: self.course.lesson(name) for name in {name for _, name in wanted}}
            held = records.held(plans)
            total = sum(len(plans[name].graded) for _, name in wanted)
            results: dict[tuple[str, str], Graded | None] = {}
            todo: dict[tuple[str, str], str | None] = {}
            several: list[tuple[str, str]] = []

            def entries(pair: tuple[str, str]) -> list[Entry]:
                entry = self._entry(grader, pair[0], plans[pair[1]], terms[pair])
                others = records.attempted(entry) if best else []
                return [
                    entry,
                    *(
                        replace(entry, notebook=n, jobs=grader.jobs(entry.lesson, n), timestamp=t, secret=s)
                        for n, t, s in others
                    ),
                ]

            def work() -> Iterator[tuple[Lesson, graders.Job]]:
                nonlocal total
                for student, name in wanted:
                    time = changed(self.submitted / student / name)
                    found = entries((student, name))
                    if not self._there(student, name):
                        total -= len(plans[name].graded)
                        continue
                    known = None if again else records.entered(found, held.get((student, name)))
                    results[student, name] = known
                    total += len(plans[name].graded) * (-1 if known else len(found) - 1)
                    if known:
                        records.seen(student, name, time)
                    else:
                        todo[student, name] = found[0].timestamp
                        several.extend([(student, name)] * (len(found) > 1))
                        yield from ((entry.lesson, job) for entry in found for job in entry.jobs)

            def judged(entry: Entry) -> list[Verdict]:
                return [faults.get(job.key) or grader.verdict(entry.lesson, job) for job in entry.jobs]

            faults = grader.judge_all(work(), lambda done: progress("judging", done, total), jobs)
            if faults:
                require_space(Path(tempfile.gettempdir()))
            less = records.late_penalty()
            for pair in several:
                found = [(entry, judged(entry)) for entry in entries(pair)]
                todo[pair] = found[_best(found, less)][0].timestamp
            with records.staged(todo) as recorder:
                for done, pair in enumerate(todo, start=1):
                    attempts = [(entry, judged(entry)) for entry in entries(pair)]
                    if not self._there(*pair):  # taken away since it was judged: its score stays
                        continue
                    results[pair] = records.enter(recorder, *attempts[_best(attempts, less)], attempts)
                    progress("recording", done, len(todo))
            for name in lessons or self.course.lesson_names():
                gone = records.withdrawn(name, {s for s, lesson in wanted if lesson == name and results.get((s, name))})
                results |= {(result.student, name): result for result in gone}
            found = [result for result in results.values() if result]
            records.count(found)
        return found

    def isolated(self, lessons: Sequence[str] = ()) -> str:
        """Return what the submissions of these lessons, all by default, would run under. Raises as `isolation_for`."""
        return isolation_for(self.folder, self._wanted(lessons), self.isolation)

    def _wanted(self, lessons: Sequence[str]) -> list[tuple[str, str]]:
        for name in lessons:
            self.course.folder(name)
        return [pair for pair in self.found()[0] if not lessons or pair[1] in lessons]

    @contextmanager
    def _grader(self, wanted: Sequence[tuple[str, str]]) -> Iterator[Grader]:
        isolation = isolation_for(self.folder, wanted, self.isolation)
        if self.scheduler is None:
            yield graders.shared(str(self.course.root), str(self.folder), self.seconds, isolation)
            return
        place = Cluster(self.scheduler, self.course, sorted({name for _, name in wanted}), isolation)
        with Grader(self.course, self.folder, self.seconds, isolation, place=place) as grader:
            yield grader

    def _refuse_public_seed(self, pairs: Sequence[tuple[str, str]]) -> None:
        """Raise FileExistsError where real submissions would be judged on cases that everybody can draw."""
        seed = self.folder / "seed"
        if not _public(self.folder):
            return
        if others := _strangers(self.folder, pairs):
            raise FileExistsError(
                f"{seed} is the sample class's, which is public, and {others[0]} is not of that class: remove "
                f"{self.folder}/seed and what the demo left, or grade in another folder"
            )

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other runs that write out of the classroom. The lock goes with the process, however that ends."""
        with open(self.folder / ".lock", "w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise BlockingIOError(f"another run is at work in {self.folder}: wait for it") from None
            for leftover in self.folder.glob(".staging-*"):
                shutil.rmtree(leftover, ignore_errors=True)
            yield

    def _there(self, student: str, lesson: str) -> bool:
        """Return whether a submission that was found has not been taken away since."""
        return os.path.lexists(self.submitted / student / lesson)

    def _entry(self, grader: Grader, student: str, lesson: Lesson, terms: tuple[str, str]) -> Entry:
        folder = self.submitted / student / lesson.name
        notebook = restored(lesson, folder)
        notes = read_time(folder)[0], terms, read_secret(folder)
        return Entry(student, lesson, notebook, grader.jobs(lesson, notebook), *notes)


def _best(attempts: Sequence[tuple[Entry, list[Verdict]]], less: Callable[[str, float, float], float]) -> int:
    """Return which of a student's attempts counts: the one with most points, lateness taken off, or the first of those.

    A fault of the grader is no score: such an attempt counts where all have one.
    """
    if len(attempts) == 1:
        return 0
    scores = [[verdict.score for verdict in verdicts] for _, verdicts in attempts]
    sums = [-1.0 if None in each else float(sum(each)) for each in scores]
    late = [less(entry.student, score, entry.seconds_late()) for score, (entry, _) in zip(sums, attempts, strict=True)]
    left = [score - off for score, off in zip(sums, late, strict=True)]
    return left.index(max(left))


def restored(lesson: Lesson, folder: Path) -> NotebookNode:
    """Return the notebook that is graded of what lies in a submission's folder, whatever that is. Never raises."""
    try:
        if not all(_is(path, stat.S_ISDIR) for path in (folder.parent, folder)):
            link = ", but a link" if folder.is_symlink() or folder.parent.is_symlink() else ""
            raise SubmissionError(Outcome.ABSENT, f"no folder {one_line(folder.name, 100)} was handed in{link}")
        others = [one_line(name, 100) for name in _others(folder)]
        cells = read_cells(_find_notebook(folder))
        refuse_other_lesson(lesson, cells)
        return restore(lesson, cells, {"others": others})
    except SubmissionError as problem:
        return placeholder(lesson, problem)
    except Exception as error:  # one submission that the grader trips over must not stop the class
        why = f"the submission could not be read: {type(error).__name__}"
        return placeholder(lesson, SubmissionError(Outcome.FAULT, why))


def isolation_for(folder: Path, pairs: Sequence[tuple[str, str]], asked: str | None = None) -> str:
    """Return what submissions, as (student, lesson), run under: "bubblewrap" or "process".

    That is what was asked for, or `MLA_ISOLATION` says; else bubblewrap. The sample class of the demo, which no
    stranger wrote, takes process limits where there is no bubblewrap.

    Raises SandboxError for bubblewrap where it does not work, and for an isolation that there is not.
    """
    asked, best = asked or os.environ.get(ISOLATION), sandbox.default_isolation()
    if asked not in (None, "", "bubblewrap", "process"):
        raise SandboxError(f"there is no isolation {asked!r}: expected bubblewrap or process")
    if asked == "process" or best == "bubblewrap":
        return asked or best
    if asked or (others := _strangers(folder, pairs)):
        what = "bubblewrap was asked for" if asked else f"{others[0]} is a stranger's code"
        raise SandboxError(
            f"{what}, and bubblewrap does not work here: run `apt install bubblewrap`, or give `--isolation process`, "
            "with which submissions can read your files, the seed and other submissions among them, and use the network"
        )
    return best


def _strangers(folder: Path, pairs: Sequence[tuple[str, str]]) -> list[str]:
    """Return the submissions that are not of the sample class, whose folder has its seed too."""
    mark = folder / MARK
    sample = set(mark.read_text().splitlines() if mark.is_file() and _public(folder) else [])
    return sorted({"/".join(pair) for pair in pairs} - sample)


def _public(folder: Path) -> bool:
    """Return whether cases are drawn from the sample class's seed, which everybody can read."""
    seed = folder / "seed"
    return seed.is_file() and seed.read_bytes().strip() == SEED.encode()


def _visible(folder: Path, most: int | None = None) -> list[Path]:
    with os.scandir(folder) as entries:
        return sorted(folder / name for name in islice((e.name for e in entries if e.name[0] != "."), most))


def _look(student: Path, lessons: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the lessons in a student's folder, and a sentence for everything that is not as it should be there."""
    where = f"submitted/{student.name}"
    try:
        paths = _visible(student, MOST)
        known = [name for name in lessons if _is(student / name, stat.S_ISDIR)]
    except OSError as error:
        return [], [f"{where} cannot be read ({type(error).__name__}) and was left alone: see to its permissions"]
    problems = []
    for lesson in known:
        problems.append(read_time(student / lesson)[1])
        try:
            others = _others(student / lesson)
        except OSError as error:
            problems.append(f"{where}/{lesson} cannot be read ({type(error).__name__}): see to its permissions")
        except SubmissionError:  # said with its verdict
            continue
        else:
            if others:
                problems.append(f"{where}/{lesson} holds other notebooks that were not graded: {listed(others)}")
    names = {path.name for path in paths}
    if strangers := sorted(names - {spelling(student / name, names) for name in known}):
        problems.append(f"{where} holds what is no lesson's folder and was left alone: {listed(strangers)}")
    elif not known:
        problems.append(f"{where} holds no lesson and was left alone")
    return known, [problem for problem in problems if problem]


def _is(path: Path, kind: Callable[[int], bool]) -> bool:
    """Return whether there is a file of this kind; a link is none."""
    try:
        return kind(os.lstat(path).st_mode)
    except FileNotFoundError:
        return False


def read_time(folder: Path) -> tuple[str | None, str | None]:
    """Return the time of a submission that its file holds, in UTC, and what is wrong with that file."""
    from nbgrader.utils import parse_utc

    where = f"submitted/{folder.parent.name}/{folder.name}/timestamp.txt"
    try:
        text = read_file(folder / "timestamp.txt", 101).decode().strip()
        if len(text) > 100 or not (found := TIME.fullmatch(text)):
            raise ValueError
        clock, offset, zone = found.groups(default="")
        if (place := _place(zone)) is None:
            what = f'the time zone "{zone}", which may be several or none: write UTC, +02:00 or Europe/Berlin'
            return None, f"{where} has {what}; until then the submission counts as in time"
        time = parse_utc(parse_utc(clock + offset.strip()).replace(tzinfo=place))
        if not YEARS[0] <= time.year <= YEARS[1]:
            raise ValueError
        return f"{time} UTC", None
    except FileNotFoundError:
        return None, None
    except Exception:  # the parser has many ways to fail
        return None, f"{where} holds no time such as 2026-12-25 10:00:00 UTC, so the submission counts as in time"


def _place(zone: str) -> tzinfo | None:
    """Return the time zone of this name, UTC for none; None for one that is of several, as CST is, or of none."""
    from dateutil.tz import gettz, tzfile

    if zone.upper() in UTC_NAMES:
        return UTC
    place = gettz(zone) if "/" in zone else None
    return place if isinstance(place, tzfile) else None  # else it takes X/Y5 for a rule


def read_secret(folder: Path) -> str | None:
    """Return what nbgrader's exchange put beside a submission to name its feedback; None where there is nothing."""
    try:
        text = read_file(folder / SECRET, 1025).decode().strip()
    except (OSError, ValueError):
        return None
    return text if re.fullmatch(r"[!-~]{1,1024}", text) else None


def _find_notebook(folder: Path) -> Path:
    """Return the notebook in a submission's folder: of the lesson's name, or the only one there is.

    Raises SubmissionError if that leaves a choice, and OSError for a folder that cannot be read.
    """
    path, files = folder / f"{folder.name}.ipynb", _notebooks(folder)
    if path in files or not files:
        return path
    if len(files) == 1:
        return files[0]
    names = listed([file.name for file in files])
    raise SubmissionError(Outcome.ABSENT, f"no {path.name} was handed in, but {names}: which of them counts?")


def _notebooks(folder: Path) -> list[Path]:
    """Return the notebooks in a submission's folder. Raises SubmissionError if one would have to be searched for."""
    path, paths = folder / f"{folder.name}.ipynb", _visible(folder, MOST)
    own = spelling(path, {p.name for p in paths})
    others = (p for p in paths if p.name != own)
    found = sorted(p for p in {path, *others} if is_notebook(p.name) and _is(p, stat.S_ISREG))
    if len(paths) == MOST and path not in found:
        raise SubmissionError(Outcome.ABSENT, f"no {path.name} was handed in, but {MOST} other files or more")
    return found


def _others(folder: Path) -> list[str]:
    """Return the names of the notebooks beside the one that bears the lesson's name."""
    names = [path.name for path in _notebooks(folder)]
    return [name for name in names if name != f"{folder.name}.ipynb"] if f"{folder.name}.ipynb" in names else []
