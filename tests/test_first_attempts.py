"""What a beginner writes first, and what the check says of it: it names the mistake, and the place."""

from pathlib import Path

import pytest

from autograder.checking import CheckFailed, check
from autograder.course.course import Course
from autograder.course.lesson import without_marks
from autograder.isolation.worker import running

COURSE = Course.at(Path(__file__).parents[1])

SOFTMAX = ("torch.softmax(scores, dim=-1)", "scores.exp() / scores.exp().sum(-1, keepdim=True)")
ATTEMPTS = {
    "the count is not stored": ("KVCache", [("        self.used = total\n", "")], "the new length is not stored"),
    "the error is returned": ("KVCache", [("raise ValueError", "return ValueError")], "write raise in place of return"),
    "the weights overflow, lesson 01": ("attention", [SOFTMAX], "exp overflows"),
    "the weights overflow, lesson 02": ("naive_mla_attention", [SOFTMAX], "exp overflows"),
    "the weights overflow, lesson 03": ("latent_attention", [SOFTMAX], "exp overflows"),
    "the log-sum-exp overflows": (
        "latent_attention",
        [("torch.logsumexp(scores, dim=-1)", "scores.exp().sum(-1).log()")],
        "lse overflows",
    ),
    "no decorator": ("scale_add", [("@triton.jit\n", "")], "is @triton.jit missing"),
    "one block of heads": ("apply_rope", [("triton.cdiv(H, block_h)", "1")], "no store wrote"),
    "a loop that stands still": ("ridge_rows", [("+= 1", "+= 0 * wait()")], r"in line \d+ \(`"),
}
HELPER = "import time\n\n\ndef wait():\n    time.sleep(0.001)\n    return 0\n"  # a cell of the student's own


def attempt(name, changes):
    """Run the right solution with changes, below what it needs, and check it."""
    lesson, exercise = COURSE.locate(name)
    plan, namespace = COURSE.lesson(lesson), {"check": check}
    running.run_cell("helper", HELPER, namespace)
    for cell in (*plan.setup, *plan.references(exercise.needs)):
        running.run_cell(cell.name, cell.source, namespace)
    source = without_marks(plan.solutions[name])
    for before, after in changes:
        assert before in source, source
        source = source.replace(before, after)
    running.run_cell(name, source, namespace)
    exec(f"check({name!r})", namespace)


@pytest.mark.parametrize("attempted", ATTEMPTS)
def test_it_is_named(attempted, monkeypatch, capsys):
    monkeypatch.setenv("MLA_COURSE", str(COURSE.root))
    name, changes, says = ATTEMPTS[attempted]
    with pytest.raises(CheckFailed, match=says):
        attempt(name, changes)


def test_no_wrong_break_even_is_taken_for_another_mistake(monkeypatch, capsys):
    """2R without its 2 is none of the known mistakes."""
    monkeypatch.setenv("MLA_COURSE", str(COURSE.root))
    with pytest.raises(CheckFailed, match="not the right number"):
        attempt("break_even_queries", [("2 * R", "R")])
