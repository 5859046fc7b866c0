"""Commands on a class: what it handed in, its grades, its pages."""

from __future__ import annotations

import enum
import json
from pathlib import Path
from typing import Annotated

import typer

from autograder.cli.terminal import Folder, Jobs, Json, Lessons, Seconds, app, at_work, bars, err, out, stoppable


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
GOES_ON = "; `grade` goes on from here"


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
    from autograder.dashboard.findings import sum_up

    room = Classroom(*at_work(classroom), seconds, isolation and isolation.value, scheduler)
    for name in lessons or ():
        room.course.folder(name)
    _, strange = room.found()
    under = room.isolated(lessons or ())
    err.print(UNDER[under], highlight=False, soft_wrap=True)
    with bars(as_json) as progress, stoppable(GOES_ON):
        results = room.grade(lessons or (), jobs, again, progress)
        if results:
            sum_up(room.course, room.folder, progress)
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
