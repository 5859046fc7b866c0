"""Points for speed: which bar a time reaches, and that a modelled time is the same every time."""

import dataclasses
import json
from types import SimpleNamespace

import pytest
import torch

from autograder.classroom import report
from autograder.judging.exercise import Speed
from autograder.judging.program import Cell
from autograder.judging.verdict import Outcome, VerdictStore
from autograder.kernels import speed
from autograder.kernels.model import model_call
from autograder.kernels.speed import Attained
from autograder.kernels.workers import KernelWorkers
from mla_ref.hardware.cost import Cost
from mla_ref.hardware.devices import DEVICES

from ..kernel_course import KERNEL, RIGHT, ROW_SUM, SETUP

TIMED = dataclasses.replace(
    ROW_SUM,
    speed=Speed(
        points=4,
        case=dict(rows=1 << 14, width=1 << 12),
        floor=lambda rows, width: Cost(bytes=4 * rows * width + 4 * rows, flops=2 * rows * width),
        bars=((0.3, 0.25), (0.6, 1.0)),
        baseline=lambda x, alpha: (alpha * x).sum(-1),
        ratio=1.5,
    ),
)
MATMUL = [
    SETUP,
    Cell(
        "matmul",
        """
@triton.jit
def matmul_kernel(a_ptr, b_ptr, out_ptr, N, BLOCK: tl.constexpr):
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    acc = tl.zeros([BLOCK, BLOCK], tl.float32)
    for start in range(0, N, BLOCK):
        inner = start + tl.arange(0, BLOCK)
        a = tl.load(a_ptr + rows[:, None] * N + inner[None, :])
        acc = tl.dot(a, tl.load(b_ptr + inner[:, None] * N + cols[None, :]), acc)
    tl.store(out_ptr + rows[:, None] * N + cols[None, :], acc.to(tl.float16))

def matmul(a, b):
    out = torch.empty_like(a)
    matmul_kernel[(len(a) // 64, len(a) // 64)](a, b, out, len(a), BLOCK=64)
    return out
""",
    ),
]
STORE = "    tl.store(out_ptr + row"
FULL = RIGHT.replace("BLOCK=64", "BLOCK=triton.next_power_of_2(x.shape[1])")


def took(seconds, **changes):
    found = Attained("measured", "a GPU", seconds, 1e-4, 4e-4, bytes=1e8, flops=1e7, bandwidth=1e12, rate=1e13)
    return speed.verdict_on(TIMED, dataclasses.replace(found, **changes))


def program(source):
    return [SETUP, Cell("row_sum", KERNEL + source)]


def test_each_bar_earns_its_share():
    assert [took(t).score for t in (1.1e-4, 2e-4, 1e-3)] == [4, 1, 0]
    assert [took(t).outcome for t in (1.1e-4, 2e-4, 1e-3)] == [Outcome.PASSED, Outcome.PARTIAL, Outcome.SLOW]
    reason = took(2e-4).reason
    assert "measured on a GPU: 50% of the floor's speed" in reason
    assert "60% of the floor's speed, 1.5× the baseline's" in reason


def test_full_points_take_the_baselines_ratio_too():
    assert took(1.1e-4, baseline=1.2e-4).score == 1


def test_what_noise_may_hide_is_reached():
    assert took(1.7e-4, slack=0.03).score == took(1.66e-4).score == 4
    assert took(1.7e-4).score == 1


def test_what_a_check_finds_fast_enough_a_grader_does_whatever_programs_its_seed_chooses(workers):
    reached = speed.judge_speed(TIMED, program(FULL), workers).speed["fraction"]
    found = {}
    for share in (0.97, 0.999, 1.01):
        exercise = dataclasses.replace(TIMED, speed=dataclasses.replace(TIMED.speed, bars=((share * reached, 1.0),)))
        for seed in ("", "secret"):
            found[share, seed] = speed.judge_speed(exercise, program(FULL), workers, seed)
    full = TIMED.speed.points
    assert {key: verdict.score for key, verdict in found.items()} == {
        (0.97, ""): full,
        (0.97, "secret"): full,
        (0.999, ""): 0,
        (0.999, "secret"): full,
        (1.01, ""): 0,
        (1.01, "secret"): 0,
    }
    assert "so near a bar" in found[0.999, ""].reason and "so near a bar" not in found[1.01, ""].reason


def test_a_bar_is_near_only_where_nothing_of_it_is_missed_by_much():
    near = [
        took(seconds, slack=-0.05, baseline=baseline).reason for seconds, baseline in ((1.64e-4, 4e-4), (1.2e-4, 1e-4))
    ]
    assert ["so near a bar" in reason for reason in near] == [True, False]


def test_no_bar_is_out_of_reach_where_the_baseline_has_units_that_triton_does_not_use():
    found = took(1.1e-4, baseline=0.5e-4, device="Tesla T4", unequal_units=True)
    assert found.score == 4 and "it is no bar" in found.notes[-1]
    assert took(1.1e-4, baseline=0.5e-4).score == 1


def test_the_floor_of_a_product_is_what_the_device_can_do_from_triton(workers):
    work = Cost(bytes=3 * 2 * 2048**2, flops=2 * 2048**3)
    arguments = {name: torch.empty(2048, 2048, dtype=torch.float16, device="meta") for name in ("a", "b")}
    on = {device: model_call(workers, MATMUL, "matmul", arguments, work, device) for device in ("t4", "a100_80gb")}
    assert on["t4"].floor == work.flops / DEVICES["t4"].flops["float32"]
    assert on["a100_80gb"].floor == work.flops / DEVICES["a100_80gb"].flops["float16"]
    assert "tensor" not in on["t4"].compiled[0]["instructions"]


def test_feedback_says_how_and_on_what_and_survives_the_store(tmp_path):
    found = took(
        2e-4, noise=(1.9e-4, 2.3e-4), steps=({"step": "k<b>", "us": 3.25, "bound": "L2", "issued_bytes": 5e6},)
    )
    store = VerdictStore(tmp_path)
    store.put("key", found)
    assert store.get("key") == found
    html, text = report.as_html(found), report.as_text(found)
    for words in (
        "measured on a GPU: 200 µs (190 to 230)",
        "eager baseline 400 µs",
        "requests to the L2 cache bound it",
    ):
        assert words in html and words in text
    assert "k&lt;b&gt;" in html and "<svg" in html
    json.dumps(found.to_json())


@pytest.mark.thorough
def test_a_modelled_time_is_the_same_in_every_run():
    seen = set()
    for _ in range(2):
        with KernelWorkers() as fresh:
            for _ in range(3):
                fresh.forget()
                seen.add(json.dumps(speed.judge_speed(TIMED, program(FULL), fresh).speed, sort_keys=True))
    assert len(seen) == 1
    found = json.loads(seen.pop())
    assert found["how"] == "modelled" and found["device"] == DEVICES["h100"].name
    assert 0.5 < found["fraction"] <= 1 and found["ratio"] > 1


def test_a_time_below_the_floor_is_the_models_fault_and_earns_nothing(monkeypatch):
    too_fast = SimpleNamespace(device="h100", seconds=1e-5, floor=1e-4)
    monkeypatch.setattr(speed, "model_call", lambda *_: too_fast)
    verdict = speed.judge_speed(TIMED, program(FULL), None)
    assert verdict.outcome is Outcome.FAULT and "less than any kernel takes" in verdict.reason


@pytest.mark.thorough
def test_a_pass_on_the_host_costs_time(workers):
    plain = speed.judge_speed(TIMED, program(FULL), workers)
    slower = speed.judge_speed(TIMED, program(FULL.replace("(x, out,", "(x.double().float(), out,")), workers)
    assert plain.outcome is Outcome.PASSED
    assert slower.speed["seconds"] > 3 * plain.speed["seconds"]
    assert any("passes on the host" in note for note in slower.notes)


@pytest.mark.parametrize("grid", ["1 if len(x) > 999 else len(x)", "len(x) // 2 + 2"])
def test_less_work_at_full_size_earns_nothing(workers, grid):
    lazy = FULL.replace("[(len(x),)]", f"[({grid},)]")
    found = speed.judge_speed(TIMED, program(lazy), workers)
    assert (found.score, found.outcome) == (0, Outcome.ERROR)
    assert "the work takes 268.5 MB at least" in found.reason


def test_an_error_at_full_size_is_the_students_and_named(workers):
    found = speed.judge_speed(TIMED, program(FULL.replace("x.shape[1], x.stride", "x.shape[9], x.stride")), workers)
    assert (found.score, found.outcome) == (0, Outcome.ERROR)
    assert "at full size: IndexError" in found.reason


def at_full_size(workers, old, new):
    small = dataclasses.replace(TIMED, speed=dataclasses.replace(TIMED.speed, small=dict(rows=16)))
    assert old in KERNEL + FULL
    return speed.judge_speed(small, [SETUP, Cell("row_sum", (KERNEL + FULL).replace(old, new, 1))], workers, "seed")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (
            "    tl.store(out_ptr + row",
            "    if tl.num_programs(0) > 999:\n        x = x + x\n    tl.store(out_ptr + row",
        ),
        ("    tl.store(out_ptr + row", "    x = x if tl.num_programs(0) < 999 else x + x\n    tl.store(out_ptr + row"),
        ("    return out", "    if len(x) > 999:\n        copy_kernel[(1,)](out, out, 1, BLOCK=64)\n    return out"),
    ],
    ids=["if", "else", "kernel"],
)
def test_what_was_never_compared_is_not_timed(workers, old, new):
    found = at_full_size(workers, old, new)
    assert (found.score, found.outcome) == (0, Outcome.ERROR)
    assert "in no call whose answer was compared" in found.reason
    assert "Here rows=16384; compared were rows=16 and the exercise's cases" in found.reason


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("    sum_kernel[", "    alpha = alpha if x.shape[1] < 999 else 1.0\n    sum_kernel[", "relative error"),
        ("    sum_kernel[", "    x = x.flip(0) if len(x) > 15 else x\n    sum_kernel[", "relative error"),
        (
            "    return out",
            "    if x.shape[1] > 999:\n        return torch.empty(len(x)).copy_(alpha * x.sum(-1))\n    return out",
            "torch computes from data",
        ),
    ],
)
def test_what_is_timed_is_compared_in_a_small_call(workers, old, new, says):
    found = at_full_size(workers, old, new)
    assert (found.score, found.outcome) == (0, Outcome.ERROR)
    assert says in found.reason and "rows=16" in found.reason


def test_what_runs_in_a_case_of_the_parts_may_run_at_full_size(workers):
    branch = (
        "    if tl.num_programs(0) == 16:\n        x = x + 0\n    else:\n        x = x - 0\n    tl.store(out_ptr + row"
    )
    found = at_full_size(workers, "    tl.store(out_ptr + row", branch)
    assert found.outcome is Outcome.PASSED, found.reason
