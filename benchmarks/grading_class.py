"""How long does it take to grade a class of 60 on the lessons with kernels?

    .venv/bin/python benchmarks/grading_class.py [LESSON…]

The students of the sample class hand in again and again, up to 60. Once as they are, so that programs are shared. Once
with the local names of each function changed, so that no two programs and no two kernels are the same text: the worst
that a class can do. Written are submissions a minute, the gradebook and the start of the workers included.
"""

from __future__ import annotations

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
        self.local = frozenset(each.id for each in names if isinstance(each.ctx, ast.Store))
        self.generic_visit(node)
        self.local = frozenset()
        return node

    def visit_Name(self, node: ast.Name) -> ast.AST:
        """Rename one name."""
        return ast.copy_location(ast.Name(node.id + self.suffix, node.ctx), node) if node.id in self.local else node


def hand_in(lesson: Lesson, submitted: Path, distinct: bool) -> None:
    """Write what 60 students hand in."""
    sample = [content for each in submissions(COURSE, lesson.name) if (content := render(lesson, each)) is not None]
    for n, content in enumerate(itertools.islice(itertools.cycle(sample), STUDENTS)):
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


def grade(lesson: Lesson, distinct: bool) -> dict[str, float]:
    """Return the figures of one lesson's class."""
    with tempfile.TemporaryDirectory() as scratch:
        room = Classroom(COURSE, Path(scratch), isolation=default_isolation())
        hand_in(lesson, room.submitted, distinct)
        started = time.perf_counter()
        results = room.grade()
        seconds = time.perf_counter() - started
    assert len(results) == STUDENTS and not any(result.problem or result.score is None for result in results)
    return {
        "seconds": round(seconds, 1),
        "submissions_per_minute": round(60 * STUDENTS / seconds, 1),
        "mean_score": round(sum(result.score for result in results) / STUDENTS, 3),
    }


def main() -> None:
    """Measure and write the record."""
    found: dict[str, dict[str, object]] = {}
    for name in sys.argv[1:] or LESSONS:
        lesson = COURSE.lesson(name)
        found[name] = {"as they are": grade(lesson, False), "no two alike": grade(lesson, True)}
        print(name, json.dumps(found[name]), flush=True)
        if found[name]["as they are"]["mean_score"] != found[name]["no two alike"]["mean_score"]:
            sys.exit(f"{name}: other names gave other marks")
    figures = {"students": STUDENTS, "isolation": default_isolation(), "cores": os.cpu_count(), "lessons": found}
    print(record.write("grading_class", figures, ("triton", "nbgrader")))


COURSE = find_course()

if __name__ == "__main__":
    main()
