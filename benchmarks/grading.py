"""How fast is the judge, beside stock nbgrader, which executes each notebook in a kernel?

    .venv/bin/python benchmarks/grading.py

Both grade the same submissions of all lessons, with as many processes as there are cores. Stock nbgrader runs
`check(...)` in the kernel, without isolation: once the notebooks as they are, once with set-up, solution and check
cells alone: all that the judge runs.
"""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import record
from nbgrader.apps import NbGraderAPI
from nbgrader.coursedir import CourseDirectory
from traitlets.config import Config

from autograder.classroom import grader as judge
from autograder.classroom.build import register
from autograder.classroom.config import configure
from autograder.classroom.grade import Classroom
from autograder.course.course import find_course
from autograder.course.sample import render, submissions
from autograder.isolation.sandbox import default_isolation

COURSE = find_course()
STUDENTS = ("ada", "ben", "eli", "hana")
WORKERS = os.cpu_count() or 1


def main() -> None:
    """Measure and write the record."""
    lessons = COURSE.lesson_names()
    pairs = [(student, lesson) for lesson in lessons for student in STUDENTS]
    with tempfile.TemporaryDirectory() as scratch:
        ours = _judge(Path(scratch) / "judge", pairs)
        lean = _stock(Path(scratch) / "lean", pairs, lean=True)
        full = _stock(Path(scratch) / "full", pairs, lean=False)
    figures = {
        "lessons": lessons,
        "submissions": len(pairs),
        "processes": WORKERS,
        "submissions_per_minute": {
            "mla-course grade": ours,
            "stock nbgrader, set-up, solution and check cells only": lean,
            "stock nbgrader, whole notebooks": full,
        },
        "judge_seconds_per_exercise": _per_exercise(lessons),
    }
    print(record.write("grading", figures, ("nbgrader", "jupyterlab")))
    print(json.dumps(figures["submissions_per_minute"], indent=1))


def _hand_in(submitted: Path, pairs: list[tuple[str, str]], lean: bool = False) -> None:
    for student, name in pairs:
        lesson = COURSE.lesson(name)
        content = json.loads(render(lesson, next(s for s in submissions(COURSE, name) if s.student == student)))
        if lean:
            content["cells"] = [
                c for c in content["cells"] if "nbgrader" in c["metadata"] or c["id"].startswith("mine")
            ]
        path = submitted / student / name / f"{name}.ipynb"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(content))


def _judge(folder: Path, pairs: list[tuple[str, str]]) -> float:
    """Return the submissions a minute of `mla-course grade`, start of the workers and gradebook included."""
    _hand_in(folder / "submitted", pairs)
    room = Classroom(COURSE, folder, isolation=default_isolation())
    started = time.perf_counter()
    results = room.grade(jobs=WORKERS)
    seconds = time.perf_counter() - started
    assert len(results) == len(pairs) and not any(result.problem for result in results)
    return round(60 * len(pairs) / seconds, 1)


def _stock(folder: Path, pairs: list[tuple[str, str]], lean: bool) -> float:
    """Return the submissions a minute of nbgrader's own Autograde, students shared out over processes."""
    shares = [pairs[n::WORKERS] for n in range(WORKERS)]
    rooms = []
    for number, share in enumerate(shares):
        room = folder / str(number)
        _hand_in(room / "submitted", share, lean)
        config = _stock_config(room)
        for lesson in sorted({lesson for _, lesson in share}):
            register(COURSE.lesson(lesson), config)
        rooms.append((room, share))
    started = time.perf_counter()
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_autograde, args=room) for room in rooms]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    seconds = time.perf_counter() - started
    if any(process.exitcode for process in processes):
        sys.exit("stock nbgrader failed")
    return round(60 * len(pairs) / seconds, 1)


def _stock_config(room: Path) -> Config:
    config = configure(Config(), COURSE, classroom=room, release=room / "release")
    config.CourseDirectory.root = str(room)
    del config["Autograde"], config["OverwriteCells"]
    config.Execute.timeout = 120
    return config


def _autograde(room: Path, share: list[tuple[str, str]]) -> None:
    logging.getLogger("traitlets").setLevel(logging.CRITICAL)
    config = _stock_config(room)
    api = NbGraderAPI(CourseDirectory(config=config), config=config)
    for student, lesson in share:
        answer = api.autograde(lesson, student)
        if not answer["success"]:
            sys.exit(f"{student} {lesson}: {answer.get('error') or answer.get('log')}")


def _per_exercise(lessons: list[str], repeats: int = 5) -> dict[str, dict[str, float]]:
    """Return, for the solution of each exercise, the median and the spread of the judge's seconds."""
    found = {}
    with judge.Grader(COURSE, None) as grader:
        for lesson in map(COURSE.lesson, lessons):
            for each in lesson.exercises:
                job = grader.reference_job(lesson, each.name)
                times = []
                for _ in range(repeats + 1):
                    grader.forget()
                    times.append(grader.verdict(lesson, job).seconds)
                times = sorted(times[1:])  # the first one starts the worker
                found[each.name] = {"median": statistics.median(times), "min": times[0], "max": times[-1]}
    return found


if __name__ == "__main__":
    main()
