"""Commands that look at a class and change nothing."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from autograder.cli.terminal import Folder, Json, Lessons, app, at_work, bars, err, out


@app.command()
def stats(lessons: Lessons = None, classroom: Folder = None, as_json: Json = False) -> None:
    """Print what the class made of each exercise, who and what needs a look, and what grading took."""
    from autograder.dashboard.stats import collect, show

    with bars(as_json) as progress:
        found = collect(*at_work(classroom), lessons or (), progress)
    if as_json:
        print(json.dumps(found))
    else:
        show(out, found)


@app.command()
def dashboard(
    classroom: Folder = None,
    port: Annotated[int | None, typer.Option(help="The port.", show_default="the first free one from 8866 on")] = None,
    ip: Annotated[str, typer.Option(help="The address to serve on; the default is this machine alone.")] = "127.0.0.1",
    formgrader: Annotated[str, typer.Option(help="Where formgrader's server is, for links.")] = "http://localhost:8888",
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open a browser.")] = True,
) -> None:
    """Show the class in a browser: exercises, students, who copied, what waits. Read-only, behind a token."""
    from autograder.dashboard.findings import sum_up
    from autograder.dashboard.serve import serve

    course, folder = at_work(classroom)
    with bars(quiet=False) as progress:
        sum_up(course, folder, progress)

    def told(address: str) -> None:
        err.print(f"The dashboard is at {address}\nCtrl-C ends it.", highlight=False, soft_wrap=True)

    raise typer.Exit(serve(course, folder, told, port, browser, formgrader, ip))
