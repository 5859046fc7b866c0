"""What the commands share: the application, its terminal, options and progress bars."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from autograder.course.course import VARIABLE, Course, find_course
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

    def __init__(self, **options: Any):
        super().__init__(emoji=False, **options)

    def print(self, *objects: Any, **options: Any) -> None:
        """Print as a Console does; of text the lines, without controls and markup."""
        objects = tuple("\n".join(map(one_line, o.split("\n"))) if isinstance(o, str) else o for o in objects)
        super().print(*objects, **{"markup": False, **options})


out, err = Terminal(), Terminal(stderr=True)
_stopping = threading.Event()  # after Ctrl-C, whose exception is lost where a destructor, or others' `except`, meets it

Folder = Annotated[
    Path | None,
    typer.Option(
        "--classroom", envvar="MLA_CLASSROOM", help="The class's folder.", show_default="classroom/ beside the lessons"
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Seconds = Annotated[
    float | None, typer.Option(help="Time limit an exercise, in place of its own: seconds of the processor.", min=0.1)
]
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
Lessons = Annotated[list[str] | None, typer.Argument(help="Lessons, such as 01_mha; all by default.")]


@app.callback()
def course_at_work(
    context: typer.Context,
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
        before = os.environ.get(VARIABLE)
        context.call_on_close(lambda: os.environ.update({VARIABLE: before}) if before else os.environ.pop(VARIABLE))
        os.environ[VARIABLE] = str(course.resolve())  # for the processes that the command starts, too


def at_work(classroom: Path | None) -> tuple[Course, Path]:
    """Return the course and the class's folder."""
    course = find_course()
    return course, (classroom or course.home / "classroom").resolve()


@contextmanager
def bars(quiet: bool) -> Iterator[Callable[[str, int, int], None]]:
    """Show a progress bar for every stage of some work, on the error stream; each step stops what is to be stopped."""
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=err, disable=quiet) as progress:
        tasks: dict[str, Any] = {}
        lock = threading.Lock()

        def update(stage: str, done: int, total: int) -> None:
            if _stopping.is_set():
                raise KeyboardInterrupt
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
        _stopping.set()
        err.print(f"stopping after what is under way; again to stop at once{rest}", highlight=False, soft_wrap=True)
        raise KeyboardInterrupt

    def leave(*_: Any) -> None:
        err.show_cursor()
        os._exit(130)  # past the threads that wait; workers go with this process, and files are whole or absent

    before = signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        _stopping.clear()
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
