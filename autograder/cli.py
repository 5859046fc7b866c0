"""The command line `mla-course`. Exit status: 0 fine, 1 problems were found, 2 the command could not run."""

from __future__ import annotations

import enum
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from autograder.course.course import VARIABLE, Course, find_course
from autograder.course.lesson import LessonError
from autograder.text import one_line

app = typer.Typer(
    help="Build, check and grade a course on kernels.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


class Terminal(Console):
    """A console that prints text as text: what a file's name or a student's error says, no terminal obeys."""

    def print(self, *objects: Any, **options: Any) -> None:
        """Print as a Console does; of text the lines, without controls and markup."""
        objects = tuple("\n".join(map(one_line, o.split("\n"))) if isinstance(o, str) else o for o in objects)
        super().print(*objects, **{"markup": False, **options})


out, err = Terminal(), Terminal(stderr=True)

Folder = Annotated[
    Path | None,
    typer.Option(
        "--classroom", envvar="MLA_CLASSROOM", help="The class's folder.", show_default="classroom/ beside the lessons"
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Seconds = Annotated[float | None, typer.Option(help="Time limit an exercise, in place of its own.", min=0.1)]
Modelled = Annotated[bool, typer.Option("--modelled", help="Model the speed of kernels, even where a GPU is.")]
Jobs = Annotated[
    int | None,
    typer.Option(
        "--jobs",
        "-j",
        "--workers",
        help="Exercises judged at a time.",
        show_default="as many as there are cores",
        min=1,
    ),
]


class Isolation(enum.StrEnum):
    """What submissions may run under."""

    bubblewrap = "bubblewrap"
    process = "process"


Isolated = Annotated[
    Isolation | None,
    typer.Option(
        "--isolation",
        help="What submissions run under. `process` limits their time and memory, and leaves your files and the "
        "network open to them; MLA_ISOLATION says it for `make lab` too.",
        show_default="bubblewrap",
    ),
]
UNDER = {
    "bubblewrap": "submissions run under bubblewrap: no network, none of your files",
    "process": "submissions run under process limits alone: your files and the network are open to them",
}
Lessons = Annotated[list[str] | None, typer.Argument(help="Lessons, such as 01_mha; all by default.")]
GOES_ON = "; `grade` goes on from here"
EXTRAS = {"distributed": "scale", "dask": "scale", "psycopg": "postgres"} | dict.fromkeys(
    ("nbgrader", "nbconvert", "jupyterlab", "bs4", "jinja2", "sqlalchemy", "alembic"), "grading"
)


@app.callback()
def course_at_work(
    course: Annotated[
        Path | None,
        typer.Option(
            "--course",
            envvar=VARIABLE,
            help="The course: a folder with solutions/.",
            show_default="the one around this folder, or the one installed",
        ),
    ] = None,
) -> None:
    if course is not None:
        Course.at(course.resolve())  # says so if it is none
        os.environ[VARIABLE] = str(course.resolve())


def at_work(classroom: Path | None) -> tuple[Course, Path]:
    """Return the course and the class's folder."""
    course = find_course()
    return course, (classroom or course.home / "classroom").resolve()


@app.command()
def build(
    check: Annotated[bool, typer.Option("--check", help="Change nothing; fail if course/ is out of date.")] = False,
    to: Annotated[
        Path | None, typer.Option(help="Where the notebooks go.", show_default="course/ beside the lessons")
    ] = None,
    as_json: Json = False,
) -> None:
    """Turn the scripts in solutions/ into the students' notebooks in course/."""
    from autograder.classroom.build import build as write
    from autograder.classroom.build import find_drift

    course = find_course()
    names, target = course.lesson_names(), to or course.home / "course"
    with steps("checking" if check else "building", len(names), as_json) as step:
        drift = find_drift(course, target, step) if check else write(course, target, step) or []
    if as_json:
        print(json.dumps({"lessons": names, "drift": drift}))
    else:
        for line in drift:
            out.print(line, highlight=False)
        out.print("course/ is out of date: run `mla-course build`" if drift else f"{len(names)} lessons are up to date")
    raise typer.Exit(1 if drift else 0)


@app.command()
def check(
    notebooks: Annotated[list[Path], typer.Argument(help="Notebooks of lessons, solved or in part.")],
    lesson: Annotated[str | None, typer.Option(help="The lesson, if the files have other names.")] = None,
    seconds: Seconds = None,
    jobs: Jobs = None,
    modelled: Modelled = False,
    as_json: Json = False,
) -> None:
    """Judge notebooks as the instructor's grader would, on data drawn afresh, and print the verdicts."""
    from autograder.classroom import report
    from autograder.classroom.grader import Grader
    from autograder.classroom.restore import read_cells, restore
    from autograder.judging.verdict import Outcome

    course, plans = find_course(), {}
    for path in notebooks:
        if not path.is_file():
            raise FileNotFoundError(f"there is no notebook {path}")
        if lesson is None and path.stem not in course.lesson_names():
            example = course.lesson_names()[0]
            raise LessonError(f"{path.name} is not named after a lesson: say which with --lesson {example}")
        plans[path] = course.lesson(lesson or path.stem)
    restored = {path: restore(plan, read_cells(path.resolve())) for path, plan in plans.items()}
    with Grader(course, None, seconds, modelled=modelled) as grader, bars(as_json) as progress, stoppable():
        cut = {path: grader.jobs(plan, restored[path]) for path, plan in plans.items()}
        work = [(plans[path], job) for path in plans for job in cut[path]]
        at_once = min(jobs or grader.place.seats, 1 + len(work) // 8)  # each takes seconds to start
        faults = grader.judge_all(work, lambda done: progress("judging", done, len(work)), at_once)
        found = {path: [faults.get(job.key) or grader.verdict(plans[path], job) for job in cut[path]] for path in plans}
    if as_json:
        print(json.dumps({str(path): [each.to_json() for each in verdicts] for path, verdicts in found.items()}))
    for path, verdicts in {} if as_json else found.items():
        for verdict in verdicts:
            out.print(report.as_text(verdict), highlight=False, markup=False, soft_wrap=True)
        score, points = (report.number(sum(v)) for v in zip(*((v.score or 0, v.points) for v in verdicts), strict=True))
        name = f"{path}, {plans[path].name}" if len(found) > 1 else plans[path].name
        out.print(f"{name}: {score} of {points} points", soft_wrap=True)
    passed = all(verdict.outcome is Outcome.PASSED for verdicts in found.values() for verdict in verdicts)
    raise typer.Exit(0 if passed else 1)


@app.command()
def grade(
    lessons: Lessons = None,
    classroom: Folder = None,
    seconds: Seconds = None,
    jobs: Jobs = None,
    scheduler: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS", help="Judge on the workers of this dask scheduler, such as tcp://HOST:8786, not here."
        ),
    ] = None,
    isolation: Isolated = None,
    again: Annotated[bool, typer.Option("--again", help="Also what has not changed since it was graded.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="Reasons also for what was graded earlier.")] = False,
    as_json: Json = False,
) -> None:
    """Grade what is in classroom/submitted and enter it in the gradebook. What is graded already stays as it is."""
    from autograder.classroom.export import overruled
    from autograder.classroom.grade import Classroom
    from autograder.classroom.scoreboard import as_rows, print_scoreboard

    room = Classroom(*at_work(classroom), seconds, isolation and isolation.value, scheduler)
    for name in lessons or ():
        room.course.folder(name)
    _, strange = room.found()
    under = room.isolated(lessons or ())
    err.print(UNDER[under], highlight=False, soft_wrap=True)
    with bars(as_json) as progress, stoppable(GOES_ON):
        results = room.grade(lessons or (), jobs, again, progress)
    if as_json:
        print(json.dumps({"isolation": under, "results": as_rows(results), "left_alone": strange}))
    else:
        print_scoreboard(out, results, everything)
        for line in [*overruled(room), *strange]:
            out.print(line, highlight=False, markup=False, soft_wrap=True)
        if results:
            fresh = sum(result.fresh for result in results)
            rest = "" if everything or fresh == len(results) else "; --all gives reasons for the others too"
            out.print(f"{len(results)} submissions, {fresh} graded now{rest}", highlight=False)
        else:
            out.print(f"nothing to grade in {room.submitted}", soft_wrap=True)
    raise typer.Exit(1 if strange or any(result.problem or result.score is None for result in results) else 0)


@app.command()
def feedback(lessons: Lessons = None, classroom: Folder = None, as_json: Json = False) -> None:
    """Write a feedback page for every graded submission to classroom/feedback."""
    from autograder.classroom.feedback import write_feedback
    from autograder.classroom.grade import Classroom

    room = Classroom(*at_work(classroom))
    with bars(as_json) as progress:
        pages, problems = write_feedback(room, lessons or (), progress)
    if as_json:
        print(json.dumps({"pages": [str(page) for page in pages], "problems": problems}))
    else:
        out.print(f"{len(pages)} feedback pages in {room.folder / 'feedback'}", soft_wrap=True)
        for line in problems:
            out.print(line, highlight=False, markup=False)
    raise typer.Exit(1 if problems else 0)


@app.command()
def export(
    target: Annotated[
        Path | None, typer.Argument(help="The CSV file to write.", show_default="grades.csv in the class's folder")
    ] = None,
    classroom: Folder = None,
    exercises: Annotated[bool, typer.Option("--exercises", help="A row an exercise, in place of a lesson.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the rows as JSON, in place of a file.")] = False,
) -> None:
    """Write the gradebook as CSV. A score that needs a person's look is left blank."""
    from autograder.classroom.export import export as write
    from autograder.classroom.export import rows
    from autograder.classroom.grade import Classroom

    room = Classroom(*at_work(classroom))
    if as_json:
        print(json.dumps(rows(room, exercises)))
    else:
        target = target or room.folder / "grades.csv"
        out.print(f"{write(room, target, exercises)} rows in {target}", soft_wrap=True)


@app.command()
def demo(
    classroom: Folder = None,
    jobs: Jobs = None,
    everything: Annotated[bool, typer.Option("--all", help="The whole sample class; takes minutes.")] = False,
    as_json: Json = False,
) -> None:
    """Grade a class of made-up students with known scores, and show that each gets the score it should."""
    from autograder.classroom.demo import run
    from autograder.classroom.scoreboard import print_scoreboard

    def early(results: list) -> None:
        if not as_json:
            print_scoreboard(out, results)

    with bars(as_json) as progress, stoppable(GOES_ON.replace("grade", "demo")):
        result = run(*at_work(classroom), jobs, progress, everything, early)
    if as_json:
        print(json.dumps(result.to_json()))
    else:
        result.show(out)
    raise typer.Exit(0 if result.as_expected else 1)


@app.command()
def doctor(as_json: Json = False) -> None:
    """Say what this machine has, what is missing, and what to do about it."""
    from autograder.doctor import examine

    findings = examine()
    if as_json:
        print(json.dumps([vars(finding) for finding in findings]))
    else:
        for finding in findings:
            line = f"{finding.status:8} {finding.subject}: {finding.detail}"
            out.print(line, highlight=False, markup=False, soft_wrap=True)
    raise typer.Exit(1 if any(finding.status == "missing" for finding in findings) else 0)


@app.command()
def bench(as_json: Json = False) -> None:
    """Measure an MLA layer on this GPU, each kernel fusion alone and all together, beside the report's figures."""
    import torch

    folder = find_course().root / "benchmarks"
    if not (folder / "ablation.py").is_file():
        raise FileNotFoundError(f"there is no {folder}/ablation.py: run this command from a copy of the repository")
    sys.path.insert(0, str(folder))
    import ablation
    import record

    if torch.cuda.is_available():
        with steps("measuring", len(ablation.SIZES) + len(ablation.DECODES), as_json) as step:
            found = {"device": record.device(), **ablation.measure(step, everything=False)}
    else:
        found = json.loads((folder / "ablation_h100.json").read_text())
        line = f"this needs a GPU, and there is none: here is what an {found['device']} gave on {found['date']}"
        err.print(line, soft_wrap=True)
    if as_json:
        print(json.dumps(found))
    else:
        ablation.show(found, lambda what: out.print(what, highlight=False))


@contextmanager
def bars(quiet: bool) -> Iterator[Callable[[str, int, int], None]]:
    """Show a progress bar for every stage of some work, on the error stream."""
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=err, disable=quiet) as progress:
        tasks: dict[str, Any] = {}
        lock = threading.Lock()

        def update(stage: str, done: int, total: int) -> None:
            with lock:  # else two threads add a bar each
                if stage not in tasks:
                    tasks[stage] = progress.add_task(stage, total=total)
            progress.update(tasks[stage], completed=done, total=total)

        yield update


@contextmanager
def stoppable(rest: str = "") -> Iterator[None]:
    """Have Ctrl-C end the work after what is under way, and say so with `rest`; have a second one end it at once."""

    def stop(*_: Any) -> None:
        signal.signal(signal.SIGINT, leave)
        err.print(f"stopping after what is under way; again to stop at once{rest}", highlight=False, soft_wrap=True)
        raise KeyboardInterrupt

    def leave(*_: Any) -> None:
        err.show_cursor()
        os._exit(130)  # past the threads that wait; workers go with this process, and files are whole or absent

    before = signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def steps(stage: str, total: int, quiet: bool) -> Iterator[Callable[[str], None]]:
    """Show one progress bar that advances with every call."""
    with bars(quiet) as update:
        names: list[str] = []

        def step(name: str) -> None:
            names.append(name)
            update(stage, len(names), total)

        yield step


def main() -> None:
    """Run the command line; turn the errors that a user can act on into a sentence and exit status 2."""
    from autograder.classroom.build import BuildError
    from autograder.classroom.restore import SubmissionError
    from autograder.classroom.scale import SchedulerError
    from autograder.course.course import UnknownExercise
    from autograder.isolation.sandbox import SandboxError

    try:
        app()
    except (BuildError, LessonError, SandboxError, SchedulerError, SubmissionError, UnknownExercise, OSError) as error:
        err.print(f"mla-course: {error}", style="red", highlight=False, markup=False, soft_wrap=True)
        sys.exit(2)
    except ModuleNotFoundError as error:
        extra = EXTRAS.get((error.name or "").split(".")[0])
        if extra is None:
            raise
        err.print(
            f"mla-course: this needs {error.name}: install the extra with `pip install 'mla-course[{extra}]'`",
            markup=False,
            soft_wrap=True,
        )
        sys.exit(2)


if __name__ == "__main__":
    main()
