"""Commands on the course itself: its lessons, a notebook, this machine."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from autograder.cli.terminal import Jobs, Json, Lessons, Modelled, Seconds, app, bars, err, out, steps, stoppable
from autograder.course.course import find_course
from autograder.course.lesson import LessonError

if TYPE_CHECKING:
    from autograder.classroom.grader import Grader, Job
    from autograder.course.lesson import Lesson
    from autograder.judging.verdict import Verdict


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
def release(
    folder: Annotated[Path, typer.Argument(help="Where to write it; an earlier release there is brought up to date.")],
    as_json: Json = False,
) -> None:
    """Write what students get: the notebooks, and what they need to run. It installs, and holds no solutions."""
    from autograder.classroom.handout import hand_out, is_published

    course = find_course()
    with steps("building", len(course.lesson_names()), as_json) as step:
        paths = hand_out(course, folder.resolve(), step)
    if as_json:
        print(json.dumps({"folder": str(folder.resolve()), "files": paths}))
    else:
        out.print(f"{len(paths)} files in {folder}, none with a solution: hand it out, or publish it", soft_wrap=True)
        if not is_published(course):
            line = (
                f"notebooks cannot open in Colab yet: say in {course.solutions / 'course.toml'} where you publish them"
            )
            out.print(line, highlight=False, soft_wrap=True)


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
            names = ", ".join(course.lesson_names())
            raise LessonError(f"{path.name} is not named after a lesson: say which with --lesson NAME, one of {names}")
        plans[path] = course.lesson(lesson or path.stem)
    restored = {path: restore(plan, read_cells(path.resolve())) for path, plan in plans.items()}
    with Grader(course, None, seconds, modelled=modelled) as grader, bars(as_json) as progress, stoppable():
        cut = {path: grader.jobs(plan, restored[path]) for path, plan in plans.items()}
        work = [(plans[path], job) for path in plans for job in cut[path]]
        at_once = min(jobs or grader.place.seats, 1 + len(work) // 8)  # each takes seconds to start
        faults = grader.judge_all(work, lambda done: progress("judging", done, len(work)), at_once)
        found = {path: [faults.get(job.key) or grader.verdict(plans[path], job) for job in cut[path]] for path in plans}
        for path, plan in plans.items():
            if plan.handed_out:
                found[path] = [_with_own(grader, plan, job, found[path]) for job in cut[path]]
    if as_json:
        print(json.dumps({str(path): [each.to_json() for each in verdicts] for path, verdicts in found.items()}))
    for path, verdicts in {} if as_json else found.items():
        for verdict in verdicts:
            out.print(report.as_text(verdict), highlight=False, markup=False, soft_wrap=True)
        score, points = (report.number(sum(v)) for v in zip(*((v.score or 0, v.points) for v in verdicts), strict=True))
        name = f"{path}, {plans[path].name}" if len(found) > 1 else plans[path].name
        out.print(f"{name}: {score} of {points} points", soft_wrap=True)
    if not as_json and any(plan.handed_out and any(e.needs for e in plan.exercises) for plan in plans.values()):
        out.print(
            "The lessons' solutions are not here: an exercise that builds on earlier ones was judged with yours.",
            soft_wrap=True,
        )
    passed = all(verdict.outcome is Outcome.PASSED for verdicts in found.values() for verdict in verdicts)
    raise typer.Exit(0 if passed else 1)


def _with_own(grader: Grader, plan: Lesson, job: Job, verdicts: Sequence[Verdict]) -> Verdict:
    """Return a job's verdict, with a note on what it needs of the student's own answers that are not right."""
    from autograder.classroom import report
    from autograder.judging.program import names_read
    from autograder.judging.verdict import Outcome

    by_name = {each.exercise: each for each in verdicts}
    program = (grader.chosen(plan, job) if job.choices else job).program
    solution = next((cell for cell in program if cell.name == job.exercise.name), None)
    wrong = [name for name in job.exercise.needs if by_name[name].outcome is not Outcome.PASSED]
    used = names_read(wrong, program, solution) if solution and not job.answers else []
    return report.with_own(by_name[job.name], used)


@app.command()
def submission(
    source: Annotated[Path, typer.Argument(help="A notebook, solved; or a lesson's name, for its own solution.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The file to write.")] = Path("submission.py"),
    lesson: Annotated[str | None, typer.Option(help="The lesson, if the file has another name.")] = None,
    as_json: Json = False,
) -> None:
    """Write one Python file that a public competition takes, of a lesson that feeds one: PyTorch and Triton alone."""
    from autograder.classroom import submission as files
    from autograder.files import write_whole

    course = find_course()
    if source.is_file():
        text = files.of_notebook(course, source.resolve(), lesson)
    elif str(source) in course.lesson_names():
        text = files.of_solution(course, str(source))
    else:
        raise FileNotFoundError(f"there is no notebook {source}, and no lesson of that name")
    write_whole(output, text, public=True)
    if as_json:
        print(json.dumps({"file": str(output), "lines": text.count("\n")}))
    else:
        out.print(f"{output}: {text.count(chr(10))} lines, PyTorch and Triton alone", highlight=False, soft_wrap=True)


@app.command()
def progress(
    folder: Annotated[
        Path | None, typer.Argument(help="The folder of your notebooks.", show_default="course/ beside the lessons")
    ] = None,
    as_json: Json = False,
) -> None:
    """Say what the checks in your notebooks said last: done, points, speed, and what to do next."""
    from autograder import progress as notes

    course = find_course()
    default = course.home / "course"
    folder = folder or (default if default.is_dir() else Path.cwd())
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no folder {folder}: name the one that holds your notebooks")
    found = notes.entries(course, folder)
    if as_json:
        print(json.dumps(notes.to_json(found)))
    else:
        out.print(notes.as_text(found), highlight=False, soft_wrap=True)


@app.command()
def site(
    lessons: Lessons = None,
    to: Annotated[
        Path | None, typer.Option(help="Where the site goes.", show_default="site/ beside the lessons")
    ] = None,
    as_json: Json = False,
) -> None:
    """Write the course as a static site: lessons with executed outputs, and no solutions. All lessons take minutes."""
    from autograder import site as pages

    course = find_course()
    names = lessons or course.lesson_names()
    with steps("running lessons", len(names) + 1, as_json) as step:
        first = pages.build(course, (to or course.home / "site").resolve(), names, step)
    if as_json:
        print(json.dumps({"lessons": names, "page": str(first)}))
    else:
        out.print(f"{len(names)} lessons are in {first}", soft_wrap=True)


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
def bench(
    calibrate: Annotated[
        bool, typer.Option("--calibrate", help="Instead fit the model of kernels' times to this GPU, and write a file.")
    ] = False,
    record_of: Annotated[
        Path | None, typer.Option("--from", help="Calibrate from times that benchmarks/model_measure.py has recorded.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="The file to write.", show_default="hardware_GPU.json in this folder")
    ] = None,
    peer: Annotated[
        list[str] | None,
        typer.Option(help="Instead compare a decode, MODULE:FUNCTION, with ours: is it right, and how fast is it."),
    ] = None,
    size: Annotated[
        list[str] | None,
        typer.Option(help="B,S,H,T at which a peer is timed, such as 128,1,16,4096.", show_default="four sizes"),
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure an MLA layer on this GPU, each kernel fusion alone and all together, beside the report's figures.

    With --calibrate a sweep of kernels, good and bad, is measured in place of the layer. MLA_HARDWARE names the file to
    the judge and the roofline.

    With --peer it is a decode over pages, yours or a library's, called with the arguments of
    mla_ref.paged_latent_attention by name. It is compared with float64 first, also where there is no GPU.
    """
    import torch

    folder = find_course().root / "benchmarks"
    if not (folder / "ablation.py").is_file():
        raise FileNotFoundError(f"there is no {folder}/ablation.py: run this command from a copy of the repository")
    sys.path.insert(0, str(folder))
    if calibrate or record_of or output:
        _calibrate(record_of, output, as_json)
        return
    if peer or size:
        _compare(peer or [], size or [], as_json)
        return
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


def _compare(names: list[str], sizes: list[str], as_json: bool) -> None:
    """Say of each peer whether it is right; time those that are, where there is a GPU."""
    import peers
    import torch

    try:
        functions = {name: peers.find(name) for name in names}
        asked = [peers.size(each) for each in sizes] or peers.SIZES
        if not functions:
            raise peers.PeerError("--size says where a peer is timed: name it with --peer MODULE:FUNCTION")
    except peers.PeerError as error:
        raise typer.BadParameter(str(error)) from error
    gpu = torch.cuda.is_available()
    wrong: dict[str, str] = {}
    for name, function in functions.items():
        with steps(f"checking {name}", peers.CASES, as_json) as step:
            if sentence := peers.what_is_wrong(function, "cuda" if gpu else "cpu", step):
                wrong[name] = sentence
    right = {name: function for name, function in functions.items() if name not in wrong}
    with steps("measuring", len(asked) if gpu and right else 0, as_json) as step:
        times = peers.measure(right, asked, step) if gpu and right else []
    if as_json:
        print(json.dumps({"wrong": wrong, "right": list(right), "cases": peers.CASES, "times": times}))
    else:
        for name in functions:
            said = f"is wrong: {wrong[name]}" if name in wrong else f"agrees with float64 in {peers.CASES} cases"
            out.print(f"{name} {said}", highlight=False, soft_wrap=True)
        for line in peers.told(times):
            out.print(line, highlight=False, soft_wrap=True)
        if right and not gpu:
            err.print("to say how fast it is needs a GPU, and there is none", soft_wrap=True)
    if wrong or any("wrong" in each for each in times):
        raise typer.Exit(1)


def _calibrate(record_of: Path | None, output: Path | None, as_json: bool) -> None:
    """Calibrate the model of kernels' times, and write what it found."""
    import calibration

    from autograder.files import write_whole

    def counting(total: int) -> AbstractContextManager[Callable[[str], None]]:
        return steps("counting", total, as_json)

    found = calibration.from_record(record_of, counting) if record_of else calibration.from_gpu(counting)
    path = output or Path(f"hardware_{found['hardware']}.json")
    write_whole(path, json.dumps(found, indent=1) + "\n", public=True)
    if as_json:
        print(json.dumps({"file": str(path), **found}))
        return
    for line in calibration.told(found):
        out.print(line, highlight=False, soft_wrap=True)
    where = f"{path} is written: MLA_HARDWARE={path.resolve()} has the judge and the roofline take it"
    out.print(where, highlight=False, soft_wrap=True)
