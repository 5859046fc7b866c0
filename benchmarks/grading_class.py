"""How long does it take to grade a class of 60 on the lessons with kernels?

    .venv/bin/python benchmarks/grading_class.py [LESSON…] [--students N]

What was measured is written at once: a run that was stopped goes on where it was. A record of another machine, other
versions or another number of students is begun anew; to measure the same again, remove it.

The students of the sample class hand in again and again, up to 60. Once as they are, so that programs are shared. Once
with the local names of each function changed, so that no two programs and no two kernels are the same text: the worst
that a class can do. Written are submissions a minute, the gradebook and the start of the workers included.
"""

from __future__ import annotations

import argparse
import ast
import itertools
import json
import os
import sys
import tempfile
import time
from pathlib import Path

import record

from autograder.classroom.grade import Classroom
from autograder.course.course import find_course
from autograder.course.lesson import Lesson
from autograder.course.sample import render, submissions
from autograder.isolation.sandbox import default_isolation
from autograder.judging.program import parsed

STUDENTS = 60
KINDS = "as they are", "no two alike"
PACKAGES = "triton", "nbgrader"
EVERY = 10.0  # seconds between words on progress
LESSONS = "04_fused_norm_rope", "05_fused_scores_softmax", "06_flash_decoding", "07_paged_cache"


class Renaming(ast.NodeTransformer):
    """Give what a function binds in its body, and nothing else, a name of one student's own."""

    def __init__(self, suffix: str):
        self.suffix, self.local = suffix, frozenset[str]()

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        """Rename in one function; functions within it are left alone, with all they name."""
        if self.local or any(
            isinstance(each, ast.FunctionDef | ast.Lambda) for each in ast.walk(node) if each is not node
        ):
            return node
        names = [each for each in ast.walk(node) if isinstance(each, ast.Name)]
        taken = {each.arg for each in ast.walk(node.args) if isinstance(each, ast.arg)}  # callers may name these
        self.local = frozenset(each.id for each in names if isinstance(each.ctx, ast.Store)) - taken
        self.generic_visit(node)
        self.local = frozenset()
        return node

    def visit_Name(self, node: ast.Name) -> ast.AST:
        """Rename one name."""
        return ast.copy_location(ast.Name(node.id + self.suffix, node.ctx), node) if node.id in self.local else node


def hand_in(lesson: Lesson, submitted: Path, distinct: bool, students: int) -> None:
    """Write what so many students hand in."""
    sample = [content for each in submissions(COURSE, lesson.name) if (content := render(lesson, each)) is not None]
    for n, content in enumerate(itertools.islice(itertools.cycle(sample), students)):
        folder = submitted / f"student{n:02}" / lesson.name
        folder.mkdir(parents=True)
        (folder / f"{lesson.name}.ipynb").write_bytes(_own(content, lesson, f"_{n}") if distinct else content)


def _own(content: bytes, lesson: Lesson, suffix: str) -> bytes:
    try:
        notebook = json.loads(content)
    except ValueError:
        return content
    for cell in notebook["cells"]:
        if cell["id"] in lesson.solutions and (tree := parsed(cell["source"])):
            cell["source"] = ast.unparse(Renaming(suffix).visit(tree))
    return json.dumps(notebook).encode()


def grade(lesson: Lesson, kind: str, students: int) -> dict[str, float]:
    """Return the figures of one lesson's class."""
    shown = time.monotonic()

    def progress(stage: str, done: int, total: int) -> None:
        nonlocal shown
        if time.monotonic() - shown > EVERY or done == total:
            shown = time.monotonic()
            print(f"{lesson.name}, {kind}: {stage} {done} of {total}", file=sys.stderr, flush=True)

    with tempfile.TemporaryDirectory() as scratch:
        room = Classroom(COURSE, Path(scratch), isolation=default_isolation())
        hand_in(lesson, room.submitted, kind == KINDS[1], students)
        started = time.perf_counter()
        results = room.grade(progress=progress)
        seconds = time.perf_counter() - started
    assert len(results) == students and not any(result.problem or result.score is None for result in results)
    return {
        "seconds": round(seconds, 1),
        "submissions_per_minute": round(60 * students / seconds, 1),
        "mean_score": round(sum(result.score for result in results) / students, 3),
    }


def main() -> None:
    """Measure and write the record."""
    parser = argparse.ArgumentParser()
    parser.add_argument("lessons", nargs="*", default=LESSONS)
    parser.add_argument("--students", type=int, default=STUDENTS)
    asked = parser.parse_args()
    same = {"students": asked.students, "isolation": default_isolation(), "cores": os.cpu_count()}
    found = known(same)
    for name in asked.lessons:
        for kind in KINDS:
            if kind not in found.setdefault(name, {}):
                found[name][kind] = grade(COURSE.lesson(name), kind, asked.students)
                record.write("grading_class", {**same, "lessons": found}, PACKAGES)
        print(name, json.dumps(found[name]), flush=True)
        if len({figures["mean_score"] for figures in found[name].values()}) > 1:
            sys.exit(f"{name}: other names gave other marks")


def known(same: dict[str, object]) -> dict[str, dict[str, dict[str, float]]]:
    """Return what an earlier run with the same machine, versions and class has measured."""
    before = record.earlier("grading_class")
    wanted = {**record.origin(PACKAGES), **same}
    differs = [key for key in wanted if key != "date" and before.get(key) != wanted[key]]
    return {} if differs else before["lessons"]


COURSE = find_course()

if __name__ == "__main__":
    main()
