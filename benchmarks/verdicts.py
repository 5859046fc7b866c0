"""How long does the judge take for kernels, where there is no GPU?

    PYTHONPATH=. .venv/bin/python benchmarks/verdicts.py

Judges the solution of every exercise with a kernel, answers and speed, one after the other on one worker; then grades
each lesson's whole sample class with as many workers as there are cores, start of the workers and gradebook included.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import record

from autograder.classroom import grader as judge
from autograder.classroom.grade import Classroom
from autograder.course.course import find_course
from autograder.course.sample import hand_in
from autograder.isolation.sandbox import default_isolation

COURSE = find_course()
LESSONS = [name for name in COURSE.lesson_names() if any(each.kernel for each in COURSE.exercises(name))]
WORKERS = os.cpu_count() or 1
REPEATS = 3


def main() -> None:
    """Measure and write the record."""
    answers, speeds = solutions()
    classes = {lesson: sample_class(lesson) for lesson in LESSONS}
    submissions, seconds = (sum(each[key] for each in classes.values()) for key in ("submissions", "seconds"))
    figures = {
        "workers": WORKERS,
        "answers_seconds": answers,
        "speed_seconds": speeds,
        "median_seconds": {
            "answers": statistics.median(each["median"] for each in answers.values()),
            "speed": statistics.median(each["median"] for each in speeds.values()),
        },
        "classes": classes,
        "submissions_per_minute": round(60 * submissions / seconds, 1),
    }
    print(record.write("verdicts", figures, ("triton",)))
    print({key: figures[key] for key in ("median_seconds", "submissions_per_minute")})


def solutions() -> tuple[dict[str, dict[str, float]], dict[str, dict[str, float]]]:
    """Return the seconds of the solutions' verdicts, on answers and on speed."""
    found: dict[str, list[float]] = {}
    with judge.Grader(COURSE, None) as grader:
        for lesson in map(COURSE.lesson, LESSONS):
            for name in (
                n for e in lesson.exercises if e.kernel for n in (e.name, f"{e.name}:speed" if e.speed else "")
            ):
                for _ in range(REPEATS if name else 0):
                    grader.forget()
                    for worker in grader.place.workers:  # what it keeps of earlier replies too
                        worker.forget()
                    job, started = grader.reference_job(lesson, name), time.perf_counter()
                    if job.answers:  # known, so that the speed alone is timed
                        grader.verdict(lesson, job.answers)
                        started = time.perf_counter()
                    verdict = grader.verdict(lesson, job)
                    found.setdefault(name, []).append(time.perf_counter() - started)
                    assert verdict.score == verdict.points, verdict
    rows = {name: _spread(seconds[1:]) for name, seconds in found.items()}  # the first one may start the worker
    of_speed = {name: row for name, row in rows.items() if name.endswith(":speed")}
    return {name: row for name, row in rows.items() if name not in of_speed}, of_speed


def _spread(seconds: list[float]) -> dict[str, float]:
    return {
        "median": round(statistics.median(seconds), 3),
        "min": round(min(seconds), 3),
        "max": round(max(seconds), 3),
    }


def sample_class(lesson: str) -> dict[str, Any]:
    """Grade a lesson's sample class; return how many there are, and the seconds."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        hand_in(COURSE, folder / "submitted", [lesson])
        room = Classroom(COURSE, folder, isolation=default_isolation())
        started = time.perf_counter()
        results = room.grade(jobs=WORKERS)
        seconds = time.perf_counter() - started
    return {"submissions": len(results), "seconds": round(seconds, 1)}


if __name__ == "__main__":
    main()
