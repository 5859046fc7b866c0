"""Answers in Gluon: right ones pass, and mistakes in handing on are named as in the notebook."""

import dataclasses
from pathlib import Path

import pytest
import torch

from autograder.judging.exercise import Exercise, Part, Speed, randn
from autograder.judging.program import Cell, build_program
from autograder.judging.verdict import Outcome
from autograder.kernels.speed import judge_speed
from mla_ref.hardware.cost import Cost

from ..kernel_course import SETUP, verdict

triton = pytest.importorskip("triton", reason="kernels need Triton")
pytestmark = pytest.mark.usefixtures("workers")

FILE = Path(__file__).parents[2] / "mla_ref" / "hardware" / "emulator" / "gluon_product.py"
KERNEL = FILE.read_text().partition('"""\n\n')[2]
HOST = """
import torch
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor


def described(x):
    return TensorDescriptor.from_tensor(x, [64, 64], gl.NVMMASharedLayout.get_default_for([64, 64], gl.bfloat16))


def matrix_product(a, b):
    c = torch.empty(len(a), len(b), dtype=a.dtype, device=a.device)
    grid = -(-len(a) // 64), -(-len(b) // 64)
    product[grid](described(a), described(b), described(c), -(-a.shape[1] // 64), num_warps=4)
    return c
"""
RIGHT = KERNEL + HOST
PRODUCT = Exercise(
    name="matrix_product",
    title="A times B transposed",
    parts=(
        Part("one block", 1, visible=[dict(M=64, N=64, K=64)]),
        Part("any", 2, visible=[dict(M=64, N=128, K=320)], hidden=lambda r: [dict(M=130, N=72, K=200)]),
    ),
    inputs=lambda g, M, N, K: {
        "a": randn(g, M, K, dtype=torch.bfloat16),
        "b": randn(g, N, K, dtype=torch.bfloat16),
    },
    oracle=lambda a, b: a @ b.T,
    returns=("c",),
    like=("a",),
    kernel=True,
)


def test_a_right_answer_passes(workers):
    found = verdict(workers, RIGHT, exercise=PRODUCT)
    assert found.outcome is Outcome.PASSED, found.reason


@pytest.mark.thorough
def test_layouts_may_have_names(workers):
    layout = "NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16])"
    assert f"ACC = gl.constexpr(gl.{layout})" in RIGHT
    wide = f"WIDTH = 64\nACC = gl.constexpr(gl.{layout.replace('64', 'WIDTH')})"
    named = "NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 64, 16])"
    annotated = [f"ACC: gl.constexpr = gl.{layout}"] if triton.__version__ >= "3.7" else []
    for given in (*annotated, wide, f"ACC = gl.constexpr(gl.{named})"):
        found = verdict(workers, RIGHT.replace(f"ACC = gl.constexpr(gl.{layout})", given), exercise=PRODUCT)
        assert found.outcome is Outcome.PASSED, found.reason


def test_its_speed_is_not_modelled(workers):
    cost = lambda **case: Cost(bytes=1, flops=1)
    speed = Speed(2, dict(M=64, N=64, K=64), cost, [(0.1, 1.0)], lambda a, b: a @ b.T)
    exercise = dataclasses.replace(PRODUCT, speed=speed)
    solution = Cell("matrix_product", RIGHT)
    found = judge_speed(exercise, build_program([SETUP], [], [solution], solution), workers)
    assert found.score == 0
    assert "the kernels are in Gluon, of which no model tells the time" in found.reason


def test_both_lines_of_a_race_are_the_students(workers):
    early = RIGHT.replace("        mbarrier.wait(free.index(place), (i // 2 & 1) ^ 1)\n", "")
    found = verdict(workers, early, exercise=PRODUCT)
    assert "a copy by TMA writes a[0] while a copy by TMA of line" in found.reason
    assert found.reason.count("(`tma.async_copy_global_to_shared(a_desc, [row, 64 * i], full.index(place)") == 2


WRONG = {
    "no wait": (
        "        mbarrier.wait(full.index(place), i // 2 & 1)\n",
        "",
        "a product reads a[0], where nothing has been written yet",
    ),
    "no fence": ("    fence_async_shared()\n", "", "no fence_async_shared() stands between the store"),
    "a deadlock": ("(i // 2 & 1) ^ 1)", "i // 2 & 1)", "every partition that has not ended waits"),
    "a tail beyond K": ("blocks):\n        place", "blocks - 1):\n        place", ""),
    "another layout": ("get_default_for([64, 64], gl.b", "get_default_for([64, 32], gl.b", "has another layout than"),
    "too much shared memory": (
        "[2, 64, 64], a_desc.layout",
        "[40, 64, 64], a_desc.layout",
        "product: it needs 344 KiB of shared memory",
    ),
    "what the tensor cores do not take": ("[16, 64, 16]", "[16, 48, 16]", "compiling ended without an answer"),
    "assembly": ("acc = gl.zeros", "acc = gl.inline_asm_elementwise", "uses gl.inline_asm_elementwise"),
    "a module": ("acc = gl.zeros", "acc = gl.amd.zeros", "uses gl.amd.zeros"),
}


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize("mistake", WRONG)
def test_a_wrong_answer_does_not(workers, mistake):
    old, new, said = WRONG[mistake]
    assert old in RIGHT
    found = verdict(workers, RIGHT.replace(old, new), exercise=PRODUCT)
    assert found.outcome is not Outcome.PASSED
    assert found.score == 0 or mistake == "a tail beyond K"
    assert said in found.reason
