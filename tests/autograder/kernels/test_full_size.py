"""At full size, where no result is computed whole: is what the kernels write there right?"""

import dataclasses

import numpy as np
import pytest
import torch

from autograder.judging.exercise import Speed
from autograder.judging.program import Cell
from autograder.judging.verdict import Outcome
from autograder.kernels import speed
from autograder.kernels.full_size import FullSize
from autograder.kernels.worker.generated import PAGE, Generated
from mla_ref.hardware.cost import Cost

from ..kernel_course import KERNEL, RIGHT, ROW_SUM, SETUP

TIMED = dataclasses.replace(
    ROW_SUM,
    speed=Speed(
        points=4,
        case=dict(rows=1 << 14, width=1 << 12),
        small=dict(rows=40),
        axes=dict(x="n", out="n"),
        floor=lambda rows, width: Cost(bytes=4 * rows * width + 4 * rows, flops=2 * rows * width),
        bars=((0.3, 0.25), (0.6, 1.0)),
        baseline=lambda x, alpha: (alpha * x).sum(-1),
        ratio=1.5,
    ),
)
WHOLE = RIGHT.replace("BLOCK=64", "BLOCK=triton.next_power_of_2(x.shape[1])")
LOAD = "    x = tl.load(x_ptr + row * stride + cols, mask=cols < D, other=0.0)"


def verdict(workers, source, kernels=KERNEL, seed="a seed"):
    program = [SETUP, Cell("row_sum", kernels + source)]
    return speed.judge_speed(TIMED, program, workers, seed)


TWO_STEPS = """
@triton.jit
def half_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + i, tl.load(x_ptr + i, mask=i < n) * 2, mask=i < n)

def row_sum(x, alpha):
    sums, out = torch.empty(len(x)), torch.empty(len(x))
    sum_kernel[(len(x),)](x, sums, x.shape[1], x.stride(0), alpha / 2, BLOCK=triton.next_power_of_2(x.shape[1]))
    half_kernel[(triton.cdiv(len(x), 256),)](sums, out, len(x), BLOCK=256)
    return out
"""
HONEST = {
    "one launch": WHOLE,
    "a cast behind it": WHOLE.replace("return out", "return out.double().float()"),
    "a launch that reads what another wrote": TWO_STEPS,
    "a transposed output": WHOLE.replace("torch.empty(len(x))", "torch.empty(2, len(x)).T[:, 0]").replace(
        "tl.store(out_ptr + row,", "tl.store(out_ptr + row,"
    ),
}


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize("name", HONEST)
def test_right_kernels_are_right_there_too(workers, name):
    found = verdict(workers, HONEST[name])
    assert found.outcome in (Outcome.PASSED, Outcome.PARTIAL, Outcome.SLOW), found.reason


def test_each_program_is_looked_at_in_places_of_its_own(workers, monkeypatch):
    """So that what a verdict says of them is of no use to the next hand-in."""
    secrets = []

    class Noted(speed.FullSize):
        @property
        def options(self):
            secrets.append(self.secret)
            return super().options

    monkeypatch.setattr(speed, "FullSize", Noted)
    for source in (WHOLE, WHOLE, f"{WHOLE}# again\n"):
        verdict(workers, source)
    one, again, other = secrets
    assert one == again != other


WRONG = {
    "where there are many rows": ("x = x * (row < 40).to(tl.float32)", KERNEL),
    "in every second row": ("x = x * ((row < 40) | (row % 2 == 0)).to(tl.float32)", KERNEL),
    "but for the programs at the ends": ("x = x * ((row < 40) | (row == 16383)).to(tl.float32)", KERNEL),
    "in half of each row": ("x = tl.where((row < 40) | (cols < D // 2), x, 0.0)", KERNEL),
}


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize("name", WRONG)
def test_kernels_that_are_wrong_at_full_size_earn_nothing(workers, name):
    step, kernels = WRONG[name]
    found = verdict(workers, WHOLE, kernels.replace(LOAD, f"{LOAD}\n    {step}"))
    assert (found.outcome, found.score) == (Outcome.ERROR, 0), found.reason
    assert "at full size: out has a relative error of" in found.reason or "runs `" in found.reason


def test_rows_of_zeros_are_not_what_a_kernel_is_timed_on(workers):
    early = KERNEL.replace(
        LOAD,
        "    if tl.load(x_ptr + row * stride) == 0.0:\n        tl.store(out_ptr + row, 0.0)\n        return\n" + LOAD,
    )
    found = verdict(workers, WHOLE, early)
    (launch,) = [step for step in found.speed["steps"] if step["step"] == "sum_kernel"]
    assert launch["distinct_bytes"] >= 4 << 26


def test_other_launches_than_those_compared_are_refused(workers):
    other = KERNEL + KERNEL.split("@triton.jit")[1].replace("sum_kernel", "other_kernel").join(["\n@triton.jit", ""])
    source = WHOLE.replace("    sum_kernel[", "    kernel = sum_kernel if len(x) < 100 else other_kernel\n    kernel[")
    found = verdict(workers, source, other)
    assert (
        found.score == 0
        and "other_kernel follow one another here, and did in no call whose answer was compared" in found.reason
    )


def test_a_launch_for_each_row_is_told_by_their_number(workers):
    launch = "    sum_kernel[(len(x),)](x, out,"
    each = "    for i in range(len(x)):\n        sum_kernel[(1,)](x[i:], out[i:],"
    found = verdict(workers, WHOLE.replace(launch, each))
    assert found.reason == "at full size: one call launches 16384 kernels; at most 4096 are graded"


def test_the_time_does_not_hang_on_the_secret(workers):
    times = {verdict(workers, WHOLE, seed=seed).speed["seconds"] for seed in ("one", "two")}
    assert len(times) == 1


@pytest.mark.parametrize(
    ("turns", "longer"),
    [
        ("tl.where(row % 128 == 5, 2000, 0)", 3.0),
        ("tl.max(tl.where(tl.arange(0, 512) * 128 + 5 == row, 2000, 0))", 2.5),
    ],
)
def test_the_time_counts_the_few_programs_that_work_longer_whatever_the_secret(workers, turns, longer):
    long = f"    y = x\n    for _ in range({turns}):\n        y = tl.sqrt(y * y)\n"
    few = KERNEL.replace("    tl.store(out_ptr + row,", f"{long}    x += 0 * y\n    tl.store(out_ptr + row,", 1)
    times = {verdict(workers, WHOLE, few, seed).speed["seconds"] for seed in ("one", "two")}
    assert len(times) == 1
    assert min(times) > longer * verdict(workers, WHOLE).speed["seconds"]


def test_numbers_depend_on_key_and_place_alone():
    like = torch.randn(1000) + 2
    one, two, other = (Generated(torch.float32, 100_000, like, key) for key in ("k", "k", "another"))
    one.touch(torch.tensor([70_000]), 4)
    two.whole(), other.whole()
    first = 70_000 * 4 // PAGE * PAGE
    assert np.array_equal(one.raw[first : first + PAGE], two.raw[first : first + PAGE]) and not one.raw[:first].any()
    drawn, others = (torch.from_numpy(each.raw).view(torch.float32) for each in (two, other))
    assert 1.5 < drawn.mean() < 3 and torch.isin(drawn, torch.cat([like, like / 2, like * 2])).all()
    assert 0.2 < torch.isin(drawn, like).float().mean() < 0.8
    assert (drawn != others).float().mean() > 0.99


def test_numbers_that_are_given_whole_are_those_of_the_tensor():
    like = torch.randn(300)
    given = Generated(torch.float32, 300, like, "key")
    assert torch.equal(given.part((3, 100), [slice(1, 2)]), like[100:200][None])
    given.touch(torch.arange(300), 4)
    assert torch.equal(torch.from_numpy(given.raw).view(torch.float32), like)


def test_parts_are_those_of_the_whole():
    like = torch.randn(1000).bfloat16()
    whole, shape = Generated(torch.bfloat16, 40 * 50 * 600, like, "key"), (40, 50, 600)
    whole.whole()
    all_of_it = torch.from_numpy(whole.raw).view(torch.bfloat16).view(shape)
    for chosen in (
        [],
        [slice(3, 4)],
        [slice(None), slice(7, 8)],
        [slice(30, 31), slice(2, 9)],
        [slice(None), slice(None), slice(5, 9)],
        [torch.tensor([39, 0, 7])],
    ):
        part = Generated(torch.bfloat16, 40 * 50 * 600, like, "key").part(shape, chosen)
        assert torch.equal(part, all_of_it[tuple(chosen)])


def test_the_oracle_gets_the_rows_that_are_asked_for():
    full = FullSize(TIMED, "a seed")
    part = full._part({"n": slice(7, 9)}, draw=True)
    assert part["x"].shape == (2, 1 << 12) and part["alpha"] == 1.5
    whole = Generated(torch.float32, 1 << 26, *full.drawn["x"][2:])
    whole.touch(torch.arange(7 << 12, 9 << 12), 4)
    assert torch.equal(part["x"], torch.from_numpy(whole.raw).view(torch.float32).view(-1, 1 << 12)[7:9])
