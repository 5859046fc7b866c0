"""Judge a lesson's sample class with `mla-course check`, and compare every verdict with the one that it should get.

    PYTHONPATH=. python benchmarks/judged.py [LESSON...] [--students NAME...]    # all by default, minutes each
    PYTHONPATH=. python benchmarks/judged.py [LESSON...] --alone                 # the kernels of the solutions
    PYTHONPATH=. python benchmarks/judged.py [LESSON...] --modelled              # in the records, the cost model's word

On a machine with a GPU the speed of kernels is measured; this needs neither nbgrader nor JupyterLab. The record says
for each verdict on speed what was attained, for the lesson's own solution what the cost model says beside it, and how
much the time of one kernel differs between REPEATS measurements. Lessons that are not asked for stay as they are in it;
each has its own date, device and versions. Students who are not asked for are not in it, and then nothing is repeated.

Alone, the kernels of a lesson's own solution, ada's, are measured and held against the bars, their results compared in
every call; nothing else is judged. Modelled, which needs no GPU, is for a cost model that has changed: what it says of
the solutions is put into the records that are there, and all that was measured stays.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import record

from autograder.classroom.grader import Grader
from autograder.course.course import find_course
from autograder.course.sample import expected, hand_in, submissions
from autograder.isolation.sandbox import default_isolation
from autograder.judging.exercise import SPEED
from autograder.kernels import measure
from autograder.kernels.speed import judge_speed

REPEATS = 10
PACKAGES = ("triton",)
COURSE = find_course()
KEPT = ("how", "device", "seconds", "noise", "floor", "baseline", "fraction", "ratio")


def main(lessons: list[str], students: list[str], alone: bool) -> int:
    """Judge the classes; write the record. Return 1 if a verdict is not the expected one."""
    gpu = measure.available()
    name = f"judged_{record.gpu()}" if gpu else "judged"
    earlier = record.earlier(name)
    figures: dict[str, Any] = {"gpu": gpu, "lessons": recorded(earlier) if earlier else {}}
    lessons = lessons or [each for each in COURSE.lesson_names() if any(e.speed for e in COURSE.exercises(each))]
    for lesson in lessons:
        started = time.perf_counter()
        found = {"ada": solutions(lesson)} if alone else check(lesson, *students)
        solution = check(lesson, "ada", modelled=True)["ada"]
        judged = [each for each in submissions(COURSE, lesson) if each.student in found]
        surprises = [line for each in judged for line in compare(lesson, each, found)]
        figures["lessons"][lesson] = {
            **record.origin(PACKAGES),
            "isolation": default_isolation(),
            "submissions": 0 if alone else len(found),
            "seconds": round(time.perf_counter() - started, 1),
            "not_as_expected": surprises,
            "speed": {student: speeds(verdicts) for student, verdicts in found.items()},
            "solution_modelled": speeds(solution),
            "repeated": repeated(lesson) if gpu and not (students or alone) else None,
        }
        print(
            f"{lesson}: verdicts on {', '.join(found)}, {len(surprises)} of them not as expected",
            *surprises,
            sep="\n  ",
            flush=True,
        )
        figures["lessons"] = dict(sorted(figures["lessons"].items()))
        written = record.write(name, figures, PACKAGES)  # after each: the next may be cut off
    print(written)
    return int(any(figures["lessons"][lesson]["not_as_expected"] for lesson in lessons))


def remodel(lessons: list[str]) -> int:
    """Put what the cost model says of the solutions into every record; return 0."""
    records = {path: json.loads(path.read_text()) for path in sorted(record.FOLDER.glob("judged_*.json"))}
    known = sorted({lesson for found in records.values() for lesson in found["lessons"]})
    for lesson in lessons or known:
        solution = speeds(check(lesson, "ada", modelled=True)["ada"])
        for path, found in records.items():
            if lesson in found["lessons"]:
                found["lessons"][lesson]["solution_modelled"] = solution
                path.write_text(record.dumps(found))
        print(lesson, {name: round(each["fraction"], 2) for name, each in solution.items()}, flush=True)
    return 0


def recorded(found: dict[str, Any]) -> dict[str, Any]:
    """Return the lessons of a record; those without an origin of their own have the record's."""
    origin = {name: found[name] for name in ("date", "device", "versions")}
    return {lesson: {**origin, **each} for lesson, each in found["lessons"].items()}


def check(lesson: str, *students: str, modelled: bool = False) -> dict[str, dict[str, Any]]:
    """Return the verdicts of `mla-course check` on the class, or on these students, by student and name."""
    with tempfile.TemporaryDirectory() as folder:
        hand_in(COURSE, Path(folder), [lesson])
        paths = sorted(Path(folder).glob(f"*/{lesson}/{lesson}.ipynb"))
        paths = [str(path) for path in paths if not students or path.parts[-3] in students]
        options = ["--json", *(["--modelled"] if modelled else [])]
        command = [sys.executable, "-m", "autograder.cli", "check", *options, *paths]
        answer = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        found = json.loads(answer.stdout)
    return {Path(path).parts[-3]: {each["exercise"]: each for each in verdicts} for path, verdicts in found.items()}


def solutions(lesson: str) -> dict[str, dict[str, Any]]:
    """Return the verdicts on the speed of the lesson's own solution by name."""
    plan = COURSE.lesson(lesson)
    with Grader(COURSE, None) as grader, measure.GpuWorker() as worker:
        found = [
            judge_speed(each, grader.reference_job(plan, each.name).program, worker)
            for each in plan.exercises
            if each.speed
        ]
    return {verdict.exercise: verdict.to_json() for verdict in found}


def repeated(lesson: str) -> dict[str, Any]:
    """Return the seconds of the lesson's last kernel in so many measurements, each from the start."""
    exercise = [each for each in COURSE.exercises(lesson) if each.speed][-1]
    with Grader(COURSE, None) as grader, measure.GpuWorker() as worker:
        program = grader.reference_job(COURSE.lesson(lesson), exercise.name).program
        found = [worker.measure(program, exercise) for _ in range(REPEATS)]
    seconds, noise = [each.seconds for each in found], [each.noise for each in found]
    return {"exercise": exercise.name, "seconds": seconds, "noise": noise}


def compare(lesson: str, submission: Any, found: dict[str, dict[str, Any]]) -> list[str]:
    """Return a sentence for every verdict that is not the expected one."""
    lines = []
    for name, got in found[submission.student].items():
        wanted = expected(COURSE.lesson(lesson), submission)[name]
        if (got["score"], got["outcome"]) != (wanted.score, wanted.outcome) or wanted.says not in got["reason"]:
            is_what = f"{got['outcome']}, {got['score']}, {got['reason']!r}"
            lines.append(f"{submission.student}, {name}: {is_what}; expected {wanted.outcome}, {wanted.score}")
    return lines


def speeds(verdicts: dict[str, Any]) -> dict[str, Any]:
    """Return what was attained, by exercise, with its score."""
    return {
        name.removesuffix(SPEED): {"score": each["score"]} | {key: each["speed"][key] for key in KEPT}
        for name, each in verdicts.items()
        if each["speed"]
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("lessons", nargs="*", help="all with kernels by default")
    parser.add_argument("--students", nargs="*", default=[], help="of the class; all by default")
    parser.add_argument("--alone", action="store_true", help="measure the kernels of the solutions; needs a GPU")
    parser.add_argument("--modelled", action="store_true", help="only model the solutions anew, for the records")
    arguments = parser.parse_args()
    if arguments.modelled:
        sys.exit(remodel(arguments.lessons))
    if arguments.alone and (arguments.students or not measure.available()):
        parser.error("--alone measures the solutions, without students, on a GPU")
    sys.exit(main(arguments.lessons, arguments.students, arguments.alone))
