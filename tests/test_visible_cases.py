"""`check` sees what the judge sees: as many blocks of everything, if with other numbers."""

import inspect
from pathlib import Path
from random import Random

import pytest

from autograder.course.course import Course

COURSE = Course.at(Path(__file__).parents[1])
KERNELS = [each for name in COURSE.lesson_names() for each in COURSE.lesson(name).exercises if each.kernel]
BLOCKS = (16, 32, 64, 128)
NO_SIZES = ("first", "beside", "first_page")  # positions, and gaps between rows


def sizes(case):
    """Yield each integer of a case with its name, those in lists too."""
    for name, value in case.items():
        waiting = [value]
        while waiting:
            each = waiting.pop()
            if isinstance(each, list | tuple):
                waiting += each
            elif isinstance(each, int) and not isinstance(each, bool) and name not in NO_SIZES:
                yield name, each


def largest(cases, exercise):
    found = {
        n: p.default for n, p in inspect.signature(exercise.inputs).parameters.items() if isinstance(p.default, int)
    }
    for case in cases:
        for name, size in sizes(case):
            found[name] = max(found.get(name, 0), size)
    return found


@pytest.mark.parametrize("exercise", KERNELS, ids=lambda each: each.name)
def test_a_size_that_goes_beyond_a_block_in_a_hidden_case_does_so_in_a_visible_one(exercise):
    hidden = [case for part in exercise.parts if part.hidden for n in range(10) for case in part.hidden(Random(n))]
    most, seen = largest(hidden, exercise), largest([c for part in exercise.parts for c in part.visible], exercise)
    for block in BLOCKS:
        assert {n for n, size in most.items() if size > block} <= {n for n, size in seen.items() if size > block}


def ones(case, exercise):
    """The sizes that are 1: as arguments of a kernel they are constants, which have no `.to`."""
    given = inspect.signature(exercise.inputs).parameters.items()
    found = {name: each.default for name, each in given} | case
    return {n for n, size in found.items() if type(size) is int and size == 1 and n not in (*NO_SIZES, "room")}


@pytest.mark.parametrize("exercise", KERNELS, ids=lambda each: each.name)
def test_sizes_that_are_1_together_in_a_hidden_case_are_so_in_a_visible_one(exercise):
    hidden = [case for part in exercise.parts if part.hidden for n in range(50) for case in part.hidden(Random(n))]
    seen = [ones(case, exercise) for part in exercise.parts for case in part.visible]
    assert [case for case in hidden if not any(ones(case, exercise) <= each for each in seen)] == []
