"""Commands on a class: what it handed in, its grades, its pages."""

from __future__ import annotations

import enum
import json
from pathlib import Path
from typing import Annotated

import typer

from autograder.cli.terminal import (
    Folder,
    Jobs,
    Json,
    Lessons,
    Modelled,
    Seconds,
    app,
    at_work,
    bars,
    err,
    out,
    stoppable,
)


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


class Layout(enum.StrEnum):
    """How `export` lays grades out."""

    rows = "rows"
    wide = "wide"
    canvas = "canvas"
    moodle = "moodle"


UNDER = {
    "bubblewrap": "submissions run under bubblewrap: no network, none of your files",
    "process": "submissions run under process limits alone: your files and the network are open to them",
}
GOES_ON = "; `grade` goes on from here"


@app.command()
def collect(
    sources: Annotated[list[Path], typer.Argument(help="Downloads of Moodle or Canvas, .zip or unpacked; folders.")],
    lesson: Annotated[
        str | None, typer.Option(help="What it was handed in as.", show_default="as names and cells say")
    ] = None,
    mapping: Annotated[
        Path | None,
        typer.Option(
            help="A CSV file that says who is who: student_id, and number or name; or Moodle's grading worksheet, or "
            "the grades that Canvas exports.",
            show_default="the gradebook's names",
        ),
    ] = None,
    timestamps: Annotated[
        bool, typer.Option("--timestamps", help="The files' times are those of handing in: write timestamp.txt.")
    ] = False,
    dry: Annotated[bool, typer.Option("--dry-run", help="Only say what would go where.")] = False,
    classroom: Folder = None,
    as_json: Json = False,
) -> None:
    """Put what a learning platform's download holds into classroom/submitted, and say where each file went."""
    from autograder.classroom.collect import collect as take
    from autograder.classroom.grade import Classroom

    room = Classroom(*at_work(classroom))
    with bars(as_json) as progress, stoppable():
        taken = take(room, sources, lesson, mapping, timestamps, dry, progress)
    if as_json:
        print(json.dumps([each.to_json() for each in taken]))
    else:
        for each in taken:
            where = f"{each.to} ({each.what})" if each.to else "refused" if each.what == "refused" else "left out"
            out.print(f"{each.file} -> {where}{': ' if each.why else ''}{each.why}", highlight=False, soft_wrap=True)
        count = sum(each.what in ("new", "replaced") for each in taken)
        verb = "would go" if dry else "went"
        out.print(f"{count} notebooks {verb} into {room.submitted}", highlight=False, soft_wrap=True)
    raise typer.Exit(0 if all(each.good for each in taken) else 1)


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
    best: Annotated[
        bool,
        typer.Option(
            "--best", help="A student's best attempt at a lesson counts, lateness taken off, in place of the last one."
        ),
    ] = False,
    everything: Annotated[bool, typer.Option("--all", help="Reasons also for what was graded earlier.")] = False,
    as_json: Json = False,
) -> None:
    """Grade what is in classroom/submitted and enter it in the gradebook. What is graded already stays as it is."""
    from autograder.classroom.export import overruled, unknown
    from autograder.classroom.grade import Classroom
    from autograder.classroom.scoreboard import as_rows, print_scoreboard, remarks
    from autograder.dashboard.findings import sum_up

    room = Classroom(*at_work(classroom), seconds, isolation and isolation.value, scheduler)
    for name in lessons or ():
        room.course.folder(name)
    _, strange = room.found()
    under = room.isolated(lessons or ())
    err.print(UNDER[under], highlight=False, soft_wrap=True)
    with bars(as_json) as progress, stoppable(GOES_ON):
        results = room.grade(lessons or (), jobs, again, progress, best)
        if any(not result.problem for result in results):
            sum_up(room.course, room.folder, progress)
    if as_json:
        left = [*strange, *unknown(room)]
        print(json.dumps({"isolation": under, "results": as_rows(results), "left_alone": left}))
    else:
        print_scoreboard(out, results, everything)
        for line in [*overruled(room), *remarks(results), *strange, *unknown(room)]:
            out.print(line, highlight=False, markup=False, soft_wrap=True)
        results = [result for result in results if not result.withdrawn]
        if results:
            fresh = sum(result.fresh for result in results)
            rest = "" if everything or fresh == len(results) else "; --all gives reasons for the others too"
            out.print(f"{len(results)} submissions, {fresh} graded now{rest}", highlight=False)
        else:
            out.print(f"nothing to grade in {room.submitted}", soft_wrap=True)
    results = [result for result in results if not result.withdrawn]
    raise typer.Exit(1 if strange or any(result.problem or result.score is None for result in results) else 0)


@app.command()
def extension(
    student: Annotated[str | None, typer.Argument(help="Whom to grant it; without one, all are listed.")] = None,
    lesson: Annotated[str | None, typer.Argument(help="For which lesson.")] = None,
    days: Annotated[
        float | None, typer.Argument(help="Days after the due date, in place of what was granted before.")
    ] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Grant none any more.")] = False,
    classroom: Folder = None,
    as_json: Json = False,
) -> None:
    """Give a student more time for a lesson, also before they hand in; list what was granted. `grade` applies it."""
    from autograder.classroom.extension import grant
    from autograder.classroom.grade import Classroom

    if (lesson is None) != (days is None and not remove) or (remove and days is not None):
        raise typer.BadParameter("expected STUDENT LESSON DAYS, or STUDENT LESSON --remove, or no lesson to list")
    room = Classroom(*at_work(classroom))
    found, remarks = grant(room, student, lesson, days)
    if as_json:
        print(json.dumps({"extensions": [each.to_json() for each in found], "remarks": remarks}))
    else:
        for each in found:
            until = f"due {each.due}" if each.due else "no due date is set"
            out.print(
                f"{each.lesson} {each.student}: {each.days:g} days more, {until}", highlight=False, soft_wrap=True
            )
        for line in remarks if found or remarks else ["no extensions"]:
            out.print(line, highlight=False, soft_wrap=True)
    raise typer.Exit(1 if remarks else 0)


@app.command()
def feedback(
    lessons: Lessons = None,
    classroom: Folder = None,
    download: Annotated[
        Path | None,
        typer.Option(
            "--for",
            metavar="DOWNLOAD",
            help="Also put the pages on what this download of Moodle or Canvas holds into an archive for the platform.",
        ),
    ] = None,
    mapping: Annotated[Path | None, typer.Option(help="Who is who in the download, as given to `collect`.")] = None,
    as_json: Json = False,
) -> None:
    """Write a feedback page for every graded submission to classroom/feedback."""
    from autograder.classroom.collect import hand_back
    from autograder.classroom.feedback import write_feedback
    from autograder.classroom.grade import Classroom

    room = Classroom(*at_work(classroom))
    with bars(as_json) as progress:
        pages, problems = write_feedback(room, lessons or (), progress)
    told, target = [], None
    if download:
        target = room.folder / f"feedback for {download.stem}.zip"
        told = hand_back(room, download, target, lessons[0] if lessons and len(lessons) == 1 else None, mapping)
        problems = [*problems, *(f"{each.file}: {each.why}" for each in told if not each.good)]
    if as_json:
        more = {"archive": str(target), "handed_back": [each.to_json() for each in told]} if target else {}
        print(json.dumps({"pages": [str(page) for page in pages], "problems": problems, **more}))
    else:
        out.print(f"{len(pages)} feedback pages in {room.folder / 'feedback'}", soft_wrap=True)
        if target:
            out.print(f"{sum(each.good for each in told)} of them in {target}: upload it as feedback", soft_wrap=True)
        for line in problems:
            out.print(line, highlight=False, markup=False, soft_wrap=True)
    raise typer.Exit(1 if problems else 0)


@app.command()
def export(
    target: Annotated[
        Path | None, typer.Argument(help="The CSV file to write.", show_default="grades.csv in the class's folder")
    ] = None,
    classroom: Folder = None,
    exercises: Annotated[bool, typer.Option("--exercises", help="A row an exercise, in place of a lesson.")] = False,
    layout: Annotated[
        Layout,
        typer.Option(help="A row a submission; or a row a student, for people (wide), or as the platform imports it."),
    ] = Layout.rows,
    as_json: Annotated[bool, typer.Option("--json", help="Print the rows as JSON, in place of a file.")] = False,
) -> None:
    """Write the gradebook as CSV. A score that needs a person's look is left blank."""
    from autograder.classroom.export import export as write
    from autograder.classroom.export import remarks, rows, table, unentered, unknown, unnumbered
    from autograder.classroom.grade import Classroom

    room = Classroom(*at_work(classroom))
    if exercises and layout is not Layout.rows:
        raise typer.BadParameter(f"the layout {layout} has a column a lesson: leave out --exercises")
    if as_json:
        print(json.dumps(rows(room, exercises) if layout is Layout.rows else table(room, layout)))
        for line in unknown(room):
            err.print(line, highlight=False, soft_wrap=True)
    else:
        target = target or room.folder / "grades.csv"
        out.print(f"{write(room, target, exercises, layout)} rows in {target}", soft_wrap=True)
        found, platforms = rows(room), (Layout.canvas, Layout.moodle)
        told = [
            *remarks(found),
            *unentered(room, found),
            *unknown(room),
            *(unnumbered(room) if layout in platforms else []),
        ]
        for line in told:
            out.print(line, highlight=False, soft_wrap=True)


@app.command()
def leaderboard(
    exercise: Annotated[
        str | None, typer.Argument(help="The exercise.", show_default="the one whose lesson says what is ranked")
    ] = None,
    aliases: Annotated[
        Path | None, typer.Option(help="A CSV file of student,alias: what is shown in place of names.")
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Write the tables as a page, too.")] = None,
    classroom: Folder = None,
    modelled: Modelled = False,
    as_json: Json = False,
) -> None:
    """Rank the right kernels of an exercise by their times: the geometric mean over the cases that its lesson names."""
    from autograder.classroom import leaderboard as board
    from autograder.files import write_whole

    course, folder = at_work(classroom)
    name = board.ranked_exercise(course, exercise)
    with bars(as_json) as progress, stoppable():
        found = board.collect(course, folder, name, progress, modelled)
    shown = board.renamed(found, aliases) if aliases else found
    tables, rest = board.rank(shown)
    if html:
        write_whole(html, board.as_html(name, tables, rest), public=True)
    if as_json:
        print(json.dumps(board.to_json(name, tables, rest)))
    else:
        out.print(board.as_text(name, tables, rest), highlight=False, soft_wrap=True)
    raise typer.Exit(1 if any(each.fault for each in rest) else 0)


@app.command()
def demo(
    classroom: Folder = None,
    jobs: Jobs = None,
    everything: Annotated[bool, typer.Option("--all", help="The whole sample class; takes minutes.")] = False,
    as_json: Json = False,
) -> None:
    """Grade a class of made-up students with known scores, and show that each gets the score it should.

    Its gradebook is an SQLite file in its folder. A folder with other students in it is left alone.
    """
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
