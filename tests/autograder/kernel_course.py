"""A course of small kernels, and programs that solve it or pass for it."""

import textwrap
from pathlib import Path

from autograder.course.course import Course
from autograder.judging import judge
from autograder.judging.program import Cell, build_program
from autograder.kernels.answers import Answers

FOLDER = Path(__file__).parent / "courses" / "kernels"
(ROW_SUM,) = Course.at(FOLDER).exercises("91_row_sum")
GATHERED, CLEARED = Course.at(FOLDER).exercises("92_gather")
(SETUP,) = Course.at(FOLDER).lesson("91_row_sum").setup

KERNEL = """
@triton.jit
def sum_kernel(x_ptr, out_ptr, D, stride, alpha, BLOCK: tl.constexpr):
    row, cols = tl.program_id(0), tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * stride + cols, mask=cols < D, other=0.0)
    tl.store(out_ptr + row, tl.sum(x.to(tl.float32)) * alpha)

@triton.jit
def copy_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out_ptr + i, tl.load(x_ptr + i, mask=i < n), mask=i < n)

@triton.jit
def fill_kernel(out_ptr, i, value):
    tl.store(out_ptr + i, value)
"""
RIGHT = """
def row_sum(x, alpha):
    out = torch.empty(len(x))
    sum_kernel[(len(x),)](x, out, x.shape[1], x.stride(0), alpha, BLOCK=64)
    return out
"""


def verdict(workers, source, kernels=KERNEL, exercise=ROW_SUM, helpers=()):
    """Judge a cell of kernels and their launcher."""
    own = [Cell(f"own-{n}", textwrap.dedent(text)) for n, text in enumerate(helpers)]
    solution = Cell(exercise.name, textwrap.dedent(kernels) + textwrap.dedent(source))
    program = build_program([SETUP], [], [*own, solution], solution)
    return judge.judge(exercise, program, "seed", workers.sandbox, Answers(exercise, program, workers))
