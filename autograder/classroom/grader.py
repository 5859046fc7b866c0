"""Grade notebooks of a classroom: which program to judge for each exercise, and what is known of it already."""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import math
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from nbformat import NotebookNode

from autograder.classroom.restore import REMARKS, code_cells
from autograder.classroom.scale import Cluster, Here, Task, rules_of
from autograder.course.course import Course
from autograder.course.lesson import Lesson, without_marks
from autograder.files import write_whole
from autograder.isolation import sandbox
from autograder.judging import judge
from autograder.judging.exercise import Exercise
from autograder.judging.program import Cell, build_program, defining
from autograder.judging.verdict import Outcome, Verdict, VerdictStore
from autograder.kernels import measure
from autograder.text import one_line

EMULATED = 10  # times the limit that the caller sets, for kernels, which run emulated
OTHERS = 3  # cells that define an exercise's function beside the one in its place, and may count in its stead
PENDING = "counts once the answer is right"  # what is said of the speed of an answer that is not
NOTHING = Outcome.ABSENT, Outcome.UNREADABLE, Outcome.OTHER  # of the whole notebook: no exercise of it can be judged
FAULT_SECONDS = 60.0  # for which a grader fault stands; a later look tries again


@dataclass(frozen=True)
class Job:
    """One exercise of one notebook, or the speed of one: what to run, or the verdict that needs no run.

    A job on speed has the job on the answers that come first, as `answers`. Where several cells define the exercise's
    function, `choices` holds a job for each, with the name of its `cell`, and the best of their verdicts counts.
    """

    exercise: Exercise
    program: tuple[Cell, ...]
    key: str
    settled: Verdict | None = None
    answers: Job | None = None
    choices: tuple[Job, ...] = ()
    cell: str = ""

    @property
    def name(self) -> str:
        """The name of its verdict."""
        return self.exercise.graded(of_speed=self.answers is not None)[0]


class Grader:
    """Verdicts for notebooks, from the store or from the judge.

    Parameters
    ----------
    course
        Whose lessons the notebooks are of.
    classroom
        Folder that holds the secret seed and the verdicts; made if absent. None keeps nothing and draws a fresh seed.
    seconds
        Time limit of an exercise (see `Limits`), in place of the exercises' own; kernels get ten times as much.
    isolation
        "bubblewrap" or "process"; by default the best there is.
    modelled
        Model the speed of kernels even where there is a GPU to measure it.
    place
        Where programs are judged, with that isolation; by default in this process.
    """

    def __init__(
        self,
        course: Course,
        classroom: Path | None,
        seconds: float | None = None,
        isolation: str | None = None,
        modelled: bool = False,
        place: Here | Cluster | None = None,
    ):
        self.course = course
        self.seconds = seconds
        self.isolation = isolation or sandbox.default_isolation()
        self.hidden = (classroom.resolve(),) if classroom else ()
        self.place = place or Here(course, self.isolation, modelled, self.hidden)
        self.seed = read_seed(classroom) if classroom else secrets.token_hex(16)
        self.store = VerdictStore(classroom / "verdicts") if classroom else None
        self._memory: dict[str, Verdict] = {}
        self._stored = True  # whether the store's verdicts count
        self._faults: dict[str, tuple[float, Verdict]] = {}
        self._lock = threading.Lock()
        self._under_way: dict[str, Future[Verdict]] = {}

    def __enter__(self) -> Grader:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """End the workers."""
        self.place.close()

    def jobs(self, lesson: Lesson, notebook: NotebookNode) -> list[Job]:
        """Return the jobs of a restored notebook: one an exercise, and one for each speed."""
        remarks = notebook.metadata.get(REMARKS, {})
        cells = code_cells(notebook, lesson)
        found = []
        for each in lesson.exercises:
            found.append(self._safe_job(lesson, each, cells, remarks))
            if each.speed:
                found.append(self._speed_job(found[-1]))
        return found

    def _speed_job(self, answers: Job) -> Job:
        if answers.choices:
            return replace(_best_of([self._speed_job(each) for each in answers.choices]), answers=answers)
        each, settled = answers.exercise, answers.settled
        if settled:
            settled = _speed_after(each, settled)
        gpu = measure.timing(each, self.place.gpu)
        where = f"measured on {gpu}" if gpu else f"modelled on {each.speed.device}"
        key = hashlib.sha256(f"speed {answers.key} {where}".encode()).hexdigest() if answers.key else ""
        return Job(each, answers.program, key, settled, answers, cell=answers.cell)

    def _safe_job(self, lesson: Lesson, each: Exercise, cells: list[Cell], remarks: dict) -> Job:
        try:
            return self._job(lesson, each, cells, remarks)
        except Exception as error:  # one notebook that the grader trips over must not stop the class
            return Job(each, (), "", judge.fault(each, f"no program could be cut from the notebook: {error!r}"))

    def reference_job(self, lesson: Lesson, name: str) -> Job:
        """Return the job for the verdict `name` on the lesson's own solution."""
        exercise_name, _, of_speed = name.partition(":")
        each = self._limited(lesson.exercise(exercise_name))
        cells = [Cell(n, without_marks(s)) for n, s in lesson.solutions.items()]
        job = self._cut(lesson, each, cells, next(cell for cell in cells if cell.name == each.name))
        return self._speed_job(job) if of_speed else job

    def _limited(self, each: Exercise) -> Exercise:
        if self.seconds is None:
            return each
        seconds = self.seconds * (EMULATED if each.kernel else 1)
        return replace(each, limits=replace(each.limits, seconds=seconds))

    def _job(self, lesson: Lesson, each: Exercise, cells: list[Cell], remarks: dict) -> Job:
        each = self._limited(each)
        if remarks.get("outcome") in NOTHING:
            return Job(each, (), "", judge.zero(each, Outcome(remarks["outcome"]), str(remarks.get("reason", ""))))
        if remarks.get("outcome") == Outcome.FAULT:
            return Job(each, (), "", judge.fault(each, str(remarks.get("reason", ""))))
        if each.name in remarks.get("text", []):
            said = f"the cell of {each.name} is text, not code: make it a code cell again (Esc, then Y, in JupyterLab)"
            return Job(each, (), "", judge.zero(each, Outcome.MISSING, said))
        if each.name in remarks.get("missing", []):
            return Job(
                each, (), "", judge.zero(each, Outcome.MISSING, f"the cell of {each.name} is not in the notebook")
            )
        source = next(cell.source for cell in cells if cell.name == each.name)
        if source.strip() == lesson.starter(each.name).strip():
            return Job(each, (), "", judge.zero(each, Outcome.UNFINISHED, "the cell is as it was handed out"))
        given = {cell["id"]: cell.source for cell in lesson.notebook.cells}
        others = {}  # by source, the last cell that has it
        for cell in defining(each.name, cells):
            handed_out = given.get(cell.name), lesson.starter(each.name)
            if cell.name != each.name and cell.source not in (source, *handed_out):
                others.pop(cell.source, None)
                others[cell.source] = cell
        found = [self._cut(lesson, each, cells, Cell(each.name, source), last) for last in (False, True)]
        for cell in list(others.values())[-OTHERS:]:
            changed = {each.name: f"{each.name} in its place", cell.name: each.name}
            renamed = [replace(one, name=changed.get(one.name, one.name)) for one in cells]
            cut = self._cut(lesson, each, renamed, Cell(each.name, cell.source), last=True)
            found.append(replace(cut, cell=cell.name))
        return _best_of(found)

    def _cut(self, lesson: Lesson, each: Exercise, cells: Sequence[Cell], solution: Cell, last: bool = False) -> Job:
        """Return the job for an exercise with this cell as its solution (`last` as of `build_program`)."""
        cut = tuple(build_program(lesson.setup, lesson.references(each.needs), cells, solution, last))
        words = (
            [[c.name, c.source] for c in cut],
            each.name,
            rules_of(self.course, lesson.name, cut),
            self.seed,
            self.isolation,
            str(each.limits),
        )
        return Job(each, cut, hashlib.sha256(json.dumps(words).encode()).hexdigest())

    def verdict(self, lesson: Lesson, job: Job) -> Verdict:
        """Return the verdict of a job: known, or reached now. Threads that ask for the same one wait for one of them.

        Before the first verdict on an exercise its own solution is judged, where that is here; unless that earns every
        point, the fault lies with the grader and no student is given a score.
        """
        with self._lock:
            if known := self.known(job):
                return known
            mine = job.key not in self._under_way
            under_way = self._under_way.setdefault(job.key, Future())
        if not mine:
            return under_way.result()
        try:
            under_way.set_result(self._reach(lesson, job))
        except BaseException as error:
            under_way.set_exception(error)
        finally:
            del self._under_way[job.key]
        return under_way.result()

    def _reach(self, lesson: Lesson, job: Job) -> Verdict:
        if job.choices:
            best = self.verdict(lesson, self.chosen(lesson, job))
            if best.outcome is Outcome.FAULT:
                return best
            return self._keep(job, replace(best, notes=(*best.notes, *self._note(lesson, job))))
        if job.answers:
            answers = self.verdict(lesson, job.answers)
            if answers.outcome is not Outcome.PASSED:
                return _speed_after(job.exercise, answers)
        control = None if lesson.handed_out else self.reference_job(lesson, job.name)
        if control and job.key != control.key:
            check = self.verdict(lesson, control)
            if check.outcome is not Outcome.PASSED:
                return check
        verdict = self._run(lesson, job)
        if control and job.key == control.key and verdict.outcome not in (Outcome.PASSED, Outcome.FAULT):
            reason = f"the lesson's own solution of {job.name} is {verdict.outcome}: {verdict.reason}"
            verdict = judge.fault(job.exercise, reason, of_speed=job.answers is not None)
        if verdict.outcome is Outcome.FAULT:
            self._faults[job.key] = time.monotonic(), verdict
            return verdict
        return self._keep(job, verdict)

    def chosen(self, lesson: Lesson, job: Job) -> Job:
        """Return the job whose verdict counts: the first that passes, else one with a fault of the grader, or the best.

        What comes behind one that passes is not judged.
        """
        best, most = job, None
        for each in job.choices:
            verdict, answers = self.verdict(lesson, each), each.answers and self.verdict(lesson, each.answers)
            if verdict.outcome is Outcome.PASSED:
                return each
            right = answers is not None and answers.outcome is Outcome.PASSED
            points = verdict.outcome is Outcome.FAULT, right, verdict.score or 0.0
            if most is None or points > most:
                best, most = each, points
        return best

    def _note(self, lesson: Lesson, job: Job) -> list[str]:
        """Return what is to be said of the choice, if anything is: nothing where the first one passes."""
        first, chosen, name = job.choices[0], self.chosen(lesson, job), job.exercise.name
        if chosen is first and self.verdict(lesson, first).outcome is Outcome.PASSED:
            return []
        source = next((cell.source for cell in chosen.program if cell.name == name), "")
        line = next((line for line in source.split("\n") if line.strip()), "")
        which = "its own cell" if chosen is first else "its own cell, with what it needs as it is defined last,"
        which = f"the cell that begins with `{one_line(line.strip(), 60)}`" if chosen.cell else which
        ways = f"{len(job.choices)} ways were judged, and {which} counts"
        return [f"{name}, or what it needs, is defined more than once: {ways}"]

    def _keep(self, job: Job, verdict: Verdict) -> Verdict:
        self._memory[job.key] = verdict
        if self.store:
            self.store.put(job.key, verdict)
        return verdict

    def _run(self, lesson: Lesson, job: Job) -> Verdict:
        of_speed, each = job.answers is not None, job.exercise
        rules = rules_of(self.course, lesson.name, job.program)
        gpu = measure.timing(each, self.place.gpu) if of_speed else None
        what = lesson.name, each.name, of_speed, job.program
        return self.place.run(Task(*what, self.seed, each.limits, self.isolation, rules, gpu, self.hidden))

    def known(self, job: Job) -> Verdict | None:
        """Return the verdict of a job if no run is needed for it."""
        since, fault = self._faults.get(job.key, (-math.inf, None))
        if fault and time.monotonic() - since < FAULT_SECONDS:
            return fault
        return (
            job.settled
            or self._memory.get(job.key)
            or (self.store.get(job.key) if self.store and self._stored else None)
        )

    @contextmanager
    def anew(self) -> Iterator[None]:
        """Have verdicts that were reached before count for nothing in the body of a `with`."""
        self.forget()
        self._stored = False
        try:
            yield
        finally:
            self._stored = True

    def forget(self) -> None:
        """Drop the verdicts held in memory; those in the store stay."""
        self._memory.clear()
        self._faults.clear()

    def verdicts(self, lesson: Lesson, notebook: NotebookNode) -> dict[str, Verdict]:
        """Return the verdicts on a restored notebook by name: "rms_norm", "rms_norm:speed"."""
        return {job.name: self.verdict(lesson, job) for job in self.jobs(lesson, notebook)}

    def judge_all(
        self, work: Iterable[tuple[Lesson, Job]], progress: Callable[[int], None], at_once: int | None = None
    ) -> dict[str, Verdict]:
        """Reach the verdicts of many jobs, `at_once` at a time, and call `progress(done)` after each.

        `work` is drawn from as there is room: it may be longer than what fits in memory. What was judged is known
        afterwards; grader faults, which are not kept, are returned by the jobs' keys.
        """
        faults: dict[str, Verdict] = {}
        count, seats = itertools.count(1), at_once or self.place.seats
        waiting: set[Future[None]] = set()

        def one(lesson: Lesson, job: Job) -> None:
            verdict = self.verdict(lesson, job)
            if verdict.outcome is Outcome.FAULT and not job.settled:
                faults[job.key] = verdict
            progress(next(count))

        with ThreadPoolExecutor(seats) as pool:
            try:
                for item in work:
                    if len(waiting) >= 2 * seats:
                        waiting = _settled(waiting)
                    waiting.add(pool.submit(one, *item))
                while waiting:
                    waiting = _settled(waiting)
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                self.place.abandon()
                raise
        self.place.rest()
        return faults


def _best_of(choices: Sequence[Job]) -> Job:
    """Return the job of which the best verdict of these counts; of one, that."""
    different: dict[str, Job] = {}
    for each in choices:
        different.setdefault(each.key, each)
    choices = list(different.values())
    if len(choices) == 1:
        return choices[0]
    words = ["best of", *(f"{each.key} {each.cell}" for each in choices)]
    key = hashlib.sha256(" ".join(words).encode()).hexdigest()
    return replace(choices[0], key=key, choices=tuple(choices))


def _settled(waiting: set[Future[None]]) -> set[Future[None]]:
    """Wait until some are done; return the others. Raises what one of them raised."""
    done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
    for each in done:
        each.result()
    return waiting


def _speed_after(exercise: Exercise, answers: Verdict) -> Verdict:
    """Return the verdict on the speed of answers that did not pass."""
    if answers.outcome is Outcome.FAULT:
        return judge.fault(exercise, answers.reason.removeprefix("the grader failed: "), of_speed=True)
    if answers.outcome in NOTHING:
        return judge.zero(exercise, answers.outcome, answers.reason, of_speed=True)
    return judge.zero(exercise, answers.outcome, PENDING, of_speed=True)


def read_seed(classroom: Path) -> str:
    """Return the classroom's secret seed; draw it on first use. Raises OSError for a damaged one."""
    path = classroom / "seed"
    try:
        if not path.exists() or not path.read_text().strip():
            write_whole(path, secrets.token_hex(16) + "\n")
        return path.read_text().strip()
    except ValueError:
        raise OSError(f"{path} is damaged: restore it, or remove it to have all judged anew on another") from None


@functools.cache
def shared(course: str, classroom: str, seconds: float | None, isolation: str) -> Grader:
    """Return the one grader of a classroom in this process, with nbgrader's preprocessors as its users."""
    return Grader(Course.at(course), Path(classroom), seconds, isolation)
