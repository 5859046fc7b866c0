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
from autograder.kernels.worker.overlap import copy_loops, product_loops
from autograder.kernels.workers import KernelFailure

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


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize("form", ["one after the other", "tiles fetched ahead"])
def test_a_product_that_is_waited_for_is_not_carried(workers, form):
    (loop,) = loops(workers, "piped_product", hopper_steps.PRODUCT[form])
    assert (loop["carried"], loop["most"]) == (0, 1)


@pytest.mark.thorough
def test_the_compiler_has_the_softmax_behind_the_wait_and_a_store_holds_it(workers):
    assert [loop["exponentials"] for loop in loops(workers, "two_warpgroups")] == 2 * [[0, 66]]
    assert [loop["exponentials"] for loop in loops(workers, "two_warpgroups", hopper_steps.HELD)] == 2 * [[66, 66]]


@pytest.mark.thorough
def test_two_products_at_once_do_not_fit_into_registers_shared_alike(workers):
    shared = loops(workers, "two_warpgroups", hopper_steps.ALIKE)
    assert all(loop["registers"] == 168 and loop["spills"][1] for loop in shared)
    assert all(loop["registers"] == 240 and not loop["spills"][1] for loop in loops(workers, "two_warpgroups"))


def test_one_thing_after_the_other_has_one_product_under_way(workers):
    in_turn = hopper_steps.attention_forms()["two warpgroups and a loader"]
    assert [loop["most"] for loop in loops(workers, "two_warpgroups", in_turn)] == [1, 1]


# Right, and slow.
STARTED = "    acc = gl.zeros([BLOCK_M, BLOCK_N], gl.float32, ACC)\n"
TURN = """        acc = warpgroup_mma(a.index(place), b.index(place).permute((1, 0)), acc, is_async=True)
        acc = warpgroup_mma_wait(1, deps=(acc,))  # the product before is done, and its place free
"""
TWICE = """        acc = warpgroup_mma(a.index(place), b.index(place).permute((1, 0)), acc, is_async=True)
        more = warpgroup_mma(a.index(place), b.index(place).permute((1, 0)), more, is_async=True)
        acc, more = warpgroup_mma_wait(1, deps=(acc, more))
"""
WORK_TWICE = [
    (TURN, TWICE),
    (STARTED, STARTED + STARTED.replace("acc =", "more =")),
    ("BLOCK_N = gl.constexpr(256)", "BLOCK_N = gl.constexpr(128)"),
    ("16, 256, 16", "16, 128, 16"),
    ("// 256)", "// 128)"),
    ("[256, 64]", "[128, 64]"),
    ("[64, 256]", "[64, 128]"),
    ("acc.to(gl.bfloat16)", "(0.5 * acc + 0.5 * more).to(gl.bfloat16)"),
    ("    acc = warpgroup_mma_wait(0, deps=(acc,))", "    acc, more = warpgroup_mma_wait(0, deps=(acc, more))"),
]


@pytest.mark.thorough
def test_what_does_the_work_twice_earns_nothing(workers):
    verdict = judge_speed(EXERCISES["piped_product"], program("piped_product", WORK_TWICE), workers)
    assert (verdict.score, verdict.outcome) == (0, Outcome.SLOW)
    assert "warpgroup_mma does 200% of the FLOPs" in verdict.reason


@pytest.mark.thorough
def test_what_does_half_of_the_work_by_wgmma_earns_nothing(workers):
    exercise = EXERCISES["piped_product"]
    half = dataclasses.replace(exercise.speed, floor=lambda **case: exercise.speed.floor(**case) * 2)
    verdict = judge_speed(dataclasses.replace(exercise, speed=half), program("piped_product"), workers)
    assert (verdict.score, verdict.outcome) == (0, Outcome.SLOW)
    assert "warpgroup_mma does 50% of the FLOPs that the work takes" in verdict.reason


def test_programs_at_full_size_are_enough_for_the_gpu(workers):
    exercise = EXERCISES["piped_product"]
    few = dataclasses.replace(exercise.speed, case=dict(M=640, N=2560, K=640))
    verdict = judge_speed(dataclasses.replace(exercise, speed=few), program("piped_product"), workers)
    assert verdict.score == 0
    assert "at full size 100 programs multiply, and H100 80GB HBM3 (SXM) has 132 multiprocessors" in verdict.reason


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


# A product of 8 columns does not keep tensor cores busy until the next of 256 is started.
SMALL = """.L_1: HGMMA.64x256x16.F32.BF16 R24, gdesc[UR8], R24
HGMMA.64x256x16.F32.BF16 R24, gdesc[UR8], R24, gsb0
WARPGROUP.DEPBAR.LE gsb0, 0x0
HGMMA.64x8x16.F32.BF16 R4, gdesc[UR8], R4, gsb0
WARPGROUP.DEPBAR.LE gsb0, 0x1
MUFU.EX2 R4, R4
@P1 BRA `(.L_1)
"""


def control(stall=1, sets=7, waits=0):
    """Return the upper half of an instruction: cycles to the next, the mark that it sets, those that it waits for."""
    return stall << 41 | sets << 46 | waits << 52


def parsed(text):
    labels, code = {}, []
    for line in text.splitlines():
        label, colon, rest = line.partition(": ")
        if colon:
            labels[label] = len(code)
        code.append(rest if colon else line)
    return code, labels


def read(text, controls=None):
    code, labels = parsed(text)
    (loop,) = product_loops(code, labels, controls or [control()] * len(code))
    return loop


def test_a_small_product_left_under_way_is_none():
    loop = read(SMALL)
    assert (loop["products"], loop["most"], loop["carried"], loop["exponentials"]) == (3, 1, 0, [0, 1])
    assert read(SMALL.replace("64x8x", "64x256x"))["carried"] == 1


# Two loads, each of which waits for the one before, and a barrier.
WAITING = """.L_1: LDG.E R4, desc[UR6][R4.64]
LDG.E.STRONG.GPU R4, desc[UR6][R4.64]
BAR.SYNC.DEFER_BLOCKING 0x0
{}
@P1 BRA `(.L_1)
"""


def test_a_turn_takes_what_its_loads_and_barriers_wait_for():
    text = WAITING.format("HGMMA.64x256x16.F32.BF16 R24, gdesc[UR8], R24, gsb0")
    apart = [control(sets=0), control(sets=1), control(), control(), control(stall=5)]
    chained = [control(sets=0, waits=2), control(sets=1, waits=1), *apart[2:]]
    assert read(text, apart)["turn"] == 2 + 15 + 1 + 1 + 5
    assert read(text, chained)["turn"] == 30 + 200


def test_a_loop_that_fetches_is_told_apart_from_one_that_multiplies():
    code, labels = parsed(WAITING.format("UTMALDG.2D [UR8], [UR4]"))
    assert product_loops(code, labels, [control()] * len(code)) == []
    assert copy_loops(code, labels, [control()] * len(code)) == [{"copies": 1, "turn": 5 + 15, "inner": 0}]
    code, labels = parsed(SMALL.replace("MUFU.EX2 R4, R4", "UTMALDG.2D [UR8], [UR4]"))
    assert copy_loops(code, labels, [control()] * len(code)) == []


def test_waiting_for_a_barrier_is_no_loop_of_the_kernels():
    loop = read(SPINNING)
    assert (loop["products"], loop["exponentials"], loop["carried"]) == (1, [1, 1], 1)


def test_what_the_compiler_finds_is_said(workers):
    turned = [("permute((1, 0))", "permute((0, 1))")]
    with pytest.raises(KernelFailure) as raised:
        loops(workers, "piped_product", turned)
    said = str(raised.value)
    assert "CompilationError in line 32 (`acc = warpgroup_mma(" in said
    assert "expected the last dimension of the first operand to be equal to" in said


@pytest.mark.thorough
def test_what_stands_beside_the_products_leaves_room_for_them(workers):
    """The lesson's own kernels: their tensor cores could be busy for longer than the last bar asks."""
    for name, exercise in EXERCISES.items():
        compared = compiled_and_compared(exercise, program(name), workers)
        assert exercise.speed.bars[-1][0] < compared.share <= 1, (name, compared)


def test_a_smaller_tile_earns_the_bar_that_it_can_reach(workers):
    """64 by 64: 32 FLOPs for a byte, half of the tensor cores' rate at most."""
    edits = [("BLOCK_N = gl.constexpr(256)", "BLOCK_N = gl.constexpr(64)"), ("[16, 256, 16]", "[16, 64, 16]")]
    edits += [("-(-N // 256)", "-(-N // 64)"), ("(b, [256, 64])", "(b, [64, 64])"), ("(c, [64, 256])", "(c, [64, 64])")]
    smaller = program("piped_product", edits)
    found = judge_speed(EXERCISES["piped_product"], smaller, workers)
    assert (found.outcome, found.score) == (Outcome.PARTIAL, 1.5)
    assert "32 FLOPs for each byte that is fetched leave the tensor cores busy at most 50% of the time" in found.reason
