"""How do the seconds and the memory of grading grow with a class?

    .venv/bin/python benchmarks/grading_scale.py

Grades classes of growing size on one cheap lesson, each in a process of its own. All students hand in the solution, so
that each program is judged once, and what is measured is the machinery: reading, restoring, recording. Written are the
seconds of grading, of a second run that finds nothing to do, of the feedback pages and of the export, and the process's
largest memory after each.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import record

from autograder.classroom.export import export
from autograder.classroom.feedback import write_feedback
from autograder.classroom.grade import Classroom
from autograder.course.course import find_course
from autograder.course.sample import render, submissions
from autograder.isolation.sandbox import default_isolation

LESSON = "00_start_here"
SIZES = 125, 250, 500, 1000


def main() -> None:
    """Measure and write the record."""
    rows = []
    for size in SIZES:
        done = subprocess.run([sys.executable, __file__, str(size)], stdout=subprocess.PIPE, text=True, check=True)
        rows.append(json.loads(done.stdout))
        print(rows[-1], flush=True)
    first, last = rows[0], rows[-1]
    figures = {
        "lesson": LESSON,
        "isolation": default_isolation(),
        "classes": rows,
        "seconds_a_further_submission": round(
            (last["grade"]["seconds"] - first["grade"]["seconds"]) / (last["submissions"] - first["submissions"]), 4
        ),
        "kib_a_further_submission": round(
            1024 * (last["grade"]["mib"] - first["grade"]["mib"]) / (last["submissions"] - first["submissions"]), 1
        ),
    }
    print(record.write("grading_scale", figures, ("nbgrader", "sqlalchemy")))


def measure(size: int) -> dict[str, object]:
    """Return the seconds and the memory of each step on a class of that size."""
    course = find_course()
    right = render(course.lesson(LESSON), next(each for each in submissions(course, LESSON) if each.student == "ada"))
    with tempfile.TemporaryDirectory() as scratch:
        room = Classroom(course, Path(scratch), isolation=default_isolation())
        for n in range(size):
            path = room.submitted / f"student{n:04}" / LESSON / f"{LESSON}.ipynb"
            path.parent.mkdir(parents=True)
            path.write_bytes(right)
        steps = {
            "grade": room.grade,
            "grade_again": room.grade,
            "feedback": lambda: write_feedback(room),
            "export": lambda: export(room, Path(scratch) / "grades.csv"),
        }
        return {"submissions": size} | {name: _timed(step) for name, step in steps.items()}


def _timed(step) -> dict[str, float]:
    started, before = time.perf_counter(), time.process_time()
    step()
    seconds, cpu = time.perf_counter() - started, time.process_time() - before
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    scale = 1 << 20 if sys.platform == "darwin" else 1 << 10  # it counts bytes there, KiB here
    return {"seconds": round(seconds, 1), "cpu_seconds": round(cpu, 1), "mib": round(memory / scale)}


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(measure(int(sys.argv[1]))))
    else:
        main()
