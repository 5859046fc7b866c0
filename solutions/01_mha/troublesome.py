"""Submissions that trouble a grader, once for the class: endless, greedy, damaged, forged."""

from __future__ import annotations

import copy

from autograder.course.sample import Expected, Notebook, Patch, Submission, find_cell, rewrite
from autograder.judging.verdict import Outcome

from .exercises import EXERCISES


def _delete(notebook: Notebook) -> Notebook:
    gone = {"attention"} | {cell["id"] for cell in notebook["cells"] if cell["id"].startswith("check-")}
    notebook["cells"] = [cell for cell in notebook["cells"] if cell["id"] not in gone]
    return notebook


def _copy(notebook: Notebook) -> Notebook:
    cell = find_cell(notebook, "attention")
    draft = copy.deepcopy(cell)
    draft["source"] = "def attention(q, k, v):\n    return q, q.sum(-1)"
    check = copy.deepcopy(find_cell(notebook, "check-attention"))
    place = notebook["cells"].index(cell)
    notebook["cells"][place:place] = [draft, check]
    return notebook


def _reverse(notebook: Notebook) -> Notebook:
    notebook["cells"].reverse()
    return notebook


def _forge(notebook: Notebook) -> Notebook:
    for cell in notebook["cells"]:
        if "nbgrader" in cell["metadata"]:
            cell["metadata"]["nbgrader"] |= {"points": 1000, "schema_version": 99, "locked": False, "solution": True}
        if cell["id"].startswith("check-"):
            cell["source"] = "1000.0"
            cell["outputs"] = [{"output_type": "execute_result", "data": {"text/plain": "1000.0"}, "metadata": {}}]
    return notebook


def _truncate(notebook: Notebook) -> bytes:
    return b'{"cells": [{"cell_type": "markdown", "source": ["# Lesson 01'


def _body(*lines: str) -> Patch:
    return rewrite("attention", "\n    ".join(["def attention(q, k, v):", *lines]))


def _all(outcome: Outcome, says: str) -> dict[str, Expected]:
    return {each.name: Expected(0, outcome, says) for each in EXERCISES}


TROUBLESOME = (
    Submission(
        "loop",
        "a loop that never ends",
        (_body("while True:", "    pass"),),
        {"attention": Expected(0, Outcome.TIME, "within 3 s")},
    ),
    Submission(
        "hog",
        "asks for all the memory there is",
        (_body("return [bytearray(1 << 30) for _ in range(1 << 20)]"),),
        {"attention": Expected(0, Outcome.MEMORY, "512 MiB")},
    ),
    Submission(
        "exit",
        "ends the process with a success",
        (_body("import os", "os._exit(0)"),),
        {"attention": Expected(0, Outcome.ENDED, "ended before it gave an answer")},
    ),
    Submission("corrupt", "half a file", (_truncate,), _all(Outcome.UNREADABLE, "not a notebook that can be read")),
    Submission("absent", "no file", (lambda notebook: None,), _all(Outcome.ABSENT, "was handed in")),
    Submission(
        "deleted",
        "deleted one solution and every check",
        (_delete,),
        {"attention": Expected(0, Outcome.MISSING, "not in the notebook")},
    ),
    Submission("copied", "two copies of a solution, the last one right, and of a check", (_copy,)),
    Submission("reordered", "all cells in reverse order", (_reverse,)),
    Submission("forged", "forged points, schema version and check cells; the solutions are right", (_forge,)),
)
