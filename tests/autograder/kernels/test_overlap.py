"""Lesson 14: what is said of machine code holds for the code that its text speaks of, and no decoy earns its points."""

import dataclasses
import sys
from pathlib import Path

import pytest

from autograder.course.course import Course
from autograder.course.lesson import without_marks
from autograder.judging.program import Cell, build_program
from autograder.judging.verdict import Outcome
from autograder.kernels.speed import compiled_and_compared, judge_speed
from autograder.kernels.worker.overlap import product_loops

pytest.importorskip("triton", reason="kernels need Triton")
ROOT = Path(__file__).parents[3]
sys.path.append(str(ROOT / "benchmarks"))
import hopper_steps  # noqa: E402

COURSE = Course.at(ROOT)
LESSON = COURSE.lesson(hopper_steps.LESSON)
EXERCISES = {each.name: each for each in LESSON.exercises}


def program(exercise, edits=()):
    source = without_marks(LESSON.solutions[exercise])
    for old, new in edits:
        assert old in source, old
        source = source.replace(old, new)
    cell = Cell(exercise, source)
    return build_program(LESSON.setup, [], [cell], cell)


def loops(workers, exercise, edits=()):
    (compiled,) = compiled_and_compared(EXERCISES[exercise], program(exercise, edits), workers).launches
    return compiled["product_loops"]


def test_the_solution_of_the_product_keeps_one_under_way(workers):
    (loop,) = loops(workers, "piped_product")
    assert (loop["carried"], loop["copies"], loop["spills"]) == (1, [2, 2], [0, 0])


@pytest.mark.parametrize("form", ["one after the other", "tiles fetched ahead"])
def test_a_product_that_is_waited_for_is_not_carried(workers, form):
    (loop,) = loops(workers, "piped_product", hopper_steps.PRODUCT[form])
    assert (loop["carried"], loop["most"]) == (0, 1)


def test_the_compiler_has_the_softmax_behind_the_wait_and_a_store_holds_it(workers):
    assert [loop["exponentials"] for loop in loops(workers, "two_warpgroups")] == 2 * [[0, 66]]
    assert [loop["exponentials"] for loop in loops(workers, "two_warpgroups", hopper_steps.HELD)] == 2 * [[66, 66]]


def test_two_products_at_once_do_not_fit_into_registers_shared_alike(workers):
    shared = loops(workers, "two_warpgroups", hopper_steps.ALIKE)
    assert all(loop["registers"] == 168 and loop["spills"][1] for loop in shared)
    assert all(loop["registers"] == 240 and not loop["spills"][1] for loop in loops(workers, "two_warpgroups"))


def test_one_thing_after_the_other_has_one_product_under_way(workers):
    in_turn = hopper_steps.attention_forms()["two warpgroups and a loader"]
    assert [loop["most"] for loop in loops(workers, "two_warpgroups", in_turn)] == [1, 1]


def test_a_loop_that_shows_the_facts_and_does_half_of_the_work_earns_nothing(workers):
    exercise = EXERCISES["piped_product"]
    half = dataclasses.replace(exercise.speed, floor=lambda **case: exercise.speed.floor(**case) * 2)
    verdict = judge_speed(dataclasses.replace(exercise, speed=half), program("piped_product"), workers)
    assert (verdict.score, verdict.outcome) == (0, Outcome.SLOW)
    assert "warpgroup_mma does 50% of the FLOPs that the work takes" in verdict.reason


# A loop that waits for a barrier out of the way, from where it jumps back, is none of the loops that are looked at.
SPINNING = """.L_1: SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR4], R2
@!P0 BRA `(.L_3)
.L_2: HGMMA.64x64x16.F32.BF16 R24, gdesc[UR8], R24, gsb0
WARPGROUP.DEPBAR.LE gsb0, 0x1
MUFU.EX2 R4, R4
@P1 BRA `(.L_1)
MUFU.EX2 R4, R4
EXIT
.L_3: SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR4], R2
@!P0 BRA `(.L_3)
BRA `(.L_2)
"""


def test_waiting_for_a_barrier_is_no_loop_of_the_kernels():
    labels, code = {}, []
    for text in SPINNING.splitlines():
        label, colon, rest = text.partition(": ")
        if colon:
            labels[label] = len(code)
        code.append(rest if colon else text)
    (loop,) = product_loops(code, labels)
    assert (loop["products"], loop["exponentials"], loop["carried"]) == (1, [1, 1], 1)
