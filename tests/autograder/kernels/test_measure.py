"""Measured speed: what decides a verdict, and on a GPU what a student's code can and cannot gain."""

import dataclasses
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from autograder.course.course import Course
from autograder.isolation.sandbox import Sandbox, SandboxError
from autograder.isolation.worker.trees import mapped
from autograder.isolation.worker.wire import WireError
from autograder.judging.exercise import Exercise, Part, Speed, randn
from autograder.judging.program import Cell
from autograder.kernels import measure
from autograder.kernels.explain import explained
from autograder.kernels.measure import (
    Clock,
    GpuWorker,
    Measured,
    available,
    clocks_agree,
    unaccounted,
)
from autograder.kernels.record import checked
from autograder.kernels.worker import measuring
from autograder.kernels.worker.measuring import PLACE, Relauncher, Writer, read
from autograder.kernels.worker.recording import recording
from autograder.kernels.workers import EMULATOR, KernelFailure, LimitReached
from mla_ref.hardware.cost import Cost

pytestmark = pytest.mark.xdist_group("workers")

SPEED = Speed(
    points=2,
    case=dict(n=(1 << 22) + 3),
    floor=lambda n: Cost(bytes=12 * n, flops=2 * n),
    bars=((0.01, 0.5), (0.02, 1.0)),
    baseline=lambda x, y, alpha: alpha * x + y,
    ratio=0.5,
)
EXERCISE = Exercise(
    name="scale_add",
    title="alpha·x + y",
    parts=(Part("all", 1, visible=[dict(n=5)]),),
    inputs=lambda g, n: {"x": randn(g, n), "y": randn(g, n), "alpha": 2.5},
    oracle=lambda x, y, alpha: torch.add(y, x, alpha=alpha),
    kernel=True,
    speed=SPEED,
)
SETUP = "import torch\nimport triton\nimport triton.language as tl\n"
KERNEL = """
@triton.jit
def axpy(x_ptr, y_ptr, out_ptr, alpha, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x, y = tl.load(x_ptr + i, mask=i < n), tl.load(y_ptr + i, mask=i < n)
    tl.store(out_ptr + i, alpha * x + y, mask=i < n)

def run(x, y, alpha):
    out = torch.empty_like(x)
    axpy[(triton.cdiv(x.numel(), 1024),)](x, y, out, alpha, x.numel(), BLOCK=1024)
    return out
"""


def program(body):
    return [
        Cell("setup", SETUP, required=True),
        Cell("scale_add", f"{KERNEL}\nstate = {{}}\n\ndef scale_add(x, y, alpha):\n{body}", required=True),
    ]


def of(seconds, baseline=100e-6, floor=10e-6):
    return Measured("GPU", seconds, (seconds, seconds), floor, baseline, 9)


# What decides


def test_so_close_to_a_bar_that_noise_decides_it_is_measured_again():
    speed = dataclasses.replace(SPEED, bars=((0.25, 0.5), (0.5, 1.0)), ratio=4.0)
    assert of(20.2e-6).undecided(speed)
    assert not of(22e-6).undecided(speed)
    assert of(39.5e-6).undecided(speed), "a lower bar is one too"
    assert of(25.3e-6).undecided(speed), "and the ratio"
    assert not of(26.5e-6).undecided(speed)


def test_kernels_for_one_architecture_are_timed_there_alone():
    exercises = {each.name: each for each in Course.at(Path(__file__).parents[3]).exercises("14_last_factor")}
    for gpu, times in {
        "NVIDIA H200": True,
        "NVIDIA H100 80GB HBM3": True,
        "Tesla T4": False,
        "NVIDIA B200": False,
    }.items():
        assert measure.timing(exercises["piped_product"], gpu) == (gpu if times else None)
        assert measure.timing(EXERCISE, gpu) == gpu
    assert measure.timing(EXERCISE, None) is None


def test_a_time_is_never_above_its_floor_in_speed():
    assert of(9.8e-6).fraction == 1.0


def test_what_a_call_does_beside_its_kernels_is_charged_unless_it_may_be_noise():
    assert unaccounted(1200e-6, 1000e-6, 160e-6) == pytest.approx(200e-6)
    assert unaccounted(1020e-6, 1000e-6, 160e-6) == 0
    assert unaccounted(500e-6, 1000e-6, 160e-6) == 0, "a process that answers too soon gains nothing"


def test_the_events_are_believed_as_long_as_the_judges_clock_confirms_them():
    assert clocks_agree((2000e-6, 1160e-6), (1000e-6, 160e-6))
    assert not clocks_agree((2000e-6, 1160e-6), (1000e-6, 600e-6))


def test_the_clock_leaves_out_what_a_run_costs_once(monkeypatch):
    now, clock = [0.0], Clock(5)
    monkeypatch.setattr(measure, "time", SimpleNamespace(perf_counter=lambda: now[0]))

    def run(times, noise):
        now[0] += 0.02 + noise + 5 * times * 0.002

    for noise in (0.5, 0.0, 0.7):  # the shortest run counts
        clock.take("x", lambda times, noise=noise: run(times, noise))
    assert clock["x"] == pytest.approx(0.002)


def test_results_come_back_through_shared_memory_as_they_were():
    memory, data = (
        torch.zeros(4096, dtype=torch.uint8),
        {"a": torch.randn(3, 5).half(), "b": (torch.arange(7), 2.5, None)},
    )
    places = mapped(data, Writer(memory))
    again = mapped(places, lambda place: read(memory, place), stand_ins=PLACE)
    assert (
        torch.equal(again["a"], data["a"])
        and torch.equal(again["b"][0], data["b"][0])
        and again["b"][1:] == (2.5, None)
    )


@pytest.mark.parametrize(
    "place", [[-16, "float32", [4]], [0, "float32", [2000]], [4092, "float32", [2]], [0, "float32", [-4, -4]]]
)
def test_a_place_outside_of_the_shared_memory_is_refused(place):
    with pytest.raises(WireError):
        read(torch.zeros(4096, dtype=torch.uint8), {"$at": place})


def played(function, x, monkeypatch):
    pytest.importorskip("triton")
    monkeypatch.setattr(measuring, "DEVICE", "cpu")
    with recording({"x": x}, execute=True) as log:
        result = function(x)
    found = explained(checked(log.notes(result)), {"x"})
    call, other = found.recording, torch.randn_like(x)
    log = {"events": call.events, "storages": call.storages, "result": call.result}
    return Relauncher("").prepare({"x": other}, log)()[0], other, found.reason


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.t().contiguous().half(),
        lambda x: torch.cat([x[:, 1:].clone(), torch.full((4, 1), 2.0)], 1),
        lambda x: torch.zeros_like(x).copy_(x),
        lambda x: x[torch.arange(3, -1, -1) * 2 // 2],
    ],
)
def test_what_torch_prepares_is_played_on_other_data(function, monkeypatch):
    again, other, reason = played(function, torch.randn(4, 3), monkeypatch)
    assert torch.equal(again, function(other)) and reason is None


def test_what_torch_computes_is_not_played(monkeypatch):
    again, _, reason = played(lambda x: torch.relu(x) + 1, torch.randn(4, 3), monkeypatch)
    assert again.isnan().all() and "torch computes from data outside the kernels: `relu`" in reason
    again, _, reason = played(lambda x: x.clone().add_(1), torch.randn(4, 3), monkeypatch)
    assert again.isnan().all() and "`add" in reason


# Conversations, without a GPU


@pytest.fixture(scope="module")
def compiler():
    pytest.importorskip("triton")
    with Sandbox("process", EMULATOR) as sandbox:
        yield sandbox


def ask(sandbox, source):
    cells = [dataclasses.asdict(Cell("scale_add", source, required=True))]
    request = {"program": cells, "entry": "scale_add", "driver": "call", "forbidden": []}
    with measure._session(sandbox, request, 4096):
        pass


def test_a_program_that_ends_its_process_fails(compiler):
    with pytest.raises(KernelFailure, match="ended"):
        ask(compiler, "import os\nos._exit(0)")


def test_a_program_that_does_not_answer_reaches_a_limit(compiler, monkeypatch):
    monkeypatch.setattr(measure, "SECONDS", 1.0)
    with pytest.raises(LimitReached, match="within 1 s"):
        ask(compiler, "while True:\n    pass")


def test_what_a_program_raises_is_told(compiler):
    with pytest.raises(KernelFailure, match=r"ZeroDivisionError in line 1 \(`1 / 0`\)"):
        ask(compiler, "1 / 0")
    with pytest.raises(KernelFailure, match="does not define the function"):
        ask(compiler, "other = 1")


# On a GPU


@pytest.fixture(scope="module")
def gpu():
    if available() is None:
        pytest.skip("no GPU that Triton and torch can use")
    with GpuWorker() as started:
        yield started


def test_a_right_kernel_is_measured(gpu):
    found = gpu.measure(program("    return run(x, y, alpha)"), EXERCISE)
    assert found.device == available() and 0 < found.noise[0] <= found.seconds <= found.noise[1]
    assert 0 < found.fraction <= 1 and found.baseline > 0
    assert [row["step"] for row in found.table()] == ["axpy"]


BY_TILES = """
from triton.tools.tensor_descriptor import TensorDescriptor

@triton.jit
def axpy_tiles(x_desc, y_desc, out_desc, alpha, BLOCK: tl.constexpr):
    start = tl.program_id(0) * BLOCK
    out_desc.store([start], alpha * x_desc.load([start]) + y_desc.load([start]))
"""


def test_tensor_descriptors_of_the_host_are_measured(gpu):
    body = """    out = torch.empty_like(x)
    tiles = [TensorDescriptor.from_tensor(each, [256]) for each in (x, y, out)]
    axpy_tiles[(triton.cdiv(x.numel(), 256),)](*tiles, alpha, BLOCK=256)
    return out
"""
    setup, cell = program(body)
    found = gpu.measure([setup, Cell("tiles", BY_TILES, required=True), cell], EXERCISE)
    assert 0 < found.fraction <= 1 and [row["step"] for row in found.table()] == ["axpy_tiles"]


OWN_TILES = """
@triton.jit
def axpy_own_tiles(x_ptr, y_ptr, out_ptr, alpha, n, BLOCK: tl.constexpr):
    x_desc = tl.make_tensor_descriptor(x_ptr, [n], [1], [BLOCK])
    y_desc = tl.make_tensor_descriptor(y_ptr, [n], [1], [BLOCK])
    out_desc = tl.make_tensor_descriptor(out_ptr, [n], [1], [BLOCK])
    start = tl.program_id(0) * BLOCK
    out_desc.store([start], alpha * x_desc.load([start]) + y_desc.load([start]))
"""


def test_tensor_descriptors_that_a_kernel_makes_are_measured(gpu):
    body = """    out = torch.empty_like(x)
    axpy_own_tiles[(triton.cdiv(x.numel(), 256),)](x, y, out, alpha, x.numel(), BLOCK=256)
    return out
"""
    setup, cell = program(body)
    found = gpu.measure([setup, Cell("tiles", OWN_TILES, required=True), cell], EXERCISE)
    assert 0 < found.fraction <= 1 and [row["step"] for row in found.table()] == ["axpy_own_tiles"]


def test_casts_and_copies_for_a_kernel_belong_to_its_time(gpu):
    once = gpu.measure(program("    return run(x, y, alpha)"), EXERCISE)
    more = gpu.measure(program("    return run(x.clone(), y.double().float(), alpha)"), EXERCISE)
    assert more.seconds > 1.5 * once.seconds


def test_what_torch_does_beside_the_kernels_is_charged_whatever_the_process_says_of_the_time(gpu):
    body = "    for _ in range(20):\n        torch.relu(x)\n    return run(x, y, alpha)"
    cells = program(body)
    liar = Cell("lies", "import time\ntorch.cuda.Event.elapsed_time = lambda *_: 1e-3\ntime.perf_counter = lambda: 0.0")
    found = gpu.measure([cells[0], liar, cells[1]], EXERCISE)
    assert "are not its kernels'" in found.notes[0] and "relu" in found.notes[1]


ATTACKS = {
    "torch": ("    return alpha * x + y", "no Triton kernel was launched"),
    "fall-back": (
        "    try:\n        axpy[(x,)](x)\n    except Exception:\n        return alpha * x + y",
        "no Triton kernel was launched",
    ),
    "decoy": (
        "    run(x, y, alpha)\n    return alpha * x + y",
        "the result is what torch computes from data outside the kernels: `relu`",
    ),
    "copied by a kernel": (
        "    return run(alpha * x + y, torch.zeros_like(x), 1.0)",
        "axpy takes as x_ptr what torch computes from data outside the kernels: `relu`",
    ),
    "kept by address": (
        "    if x.data_ptr() not in state:\n        state[x.data_ptr()] = run(x, y, alpha)\n"
        "    return state[x.data_ptr()]",
        "relative error",
    ),
    "a part when large": (
        "    n = x.numel() - 9000 if x.numel() > 99999 else x.numel()\n    out = torch.empty_like(x)\n"
        "    axpy[(triton.cdiv(n, 1024),)](x, y, out, alpha, n, BLOCK=1024)\n    return out",
        "relative error|NaN",
    ),
    "another stream": (
        "    stream = state.setdefault(0, torch.cuda.Stream())\n    with torch.cuda.stream(stream):\n"
        "        return run(x, y, alpha)",
        "relative error|NaN|infinite",
    ),
    "in place": (
        "    axpy[(triton.cdiv(x.numel(), 1024),)](x, y, x, alpha, x.numel(), BLOCK=1024)\n    return x",
        "changes its argument x in place",
    ),
    "exit": ("    import os\n    os._exit(0)", "ended in the middle"),
    "error": ("    raise ValueError('here')", r"ValueError in line \d+ .*here"),
    "illegal address": (
        "    axpy[(1 << 20,)](x, y, x, alpha, 1 << 40, BLOCK=1024)\n    return x",
        "illegal memory access",
    ),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_what_is_no_measurable_kernel_is_refused_and_the_next_program_is_not_blamed(gpu, name):
    body, says = ATTACKS[name]
    with pytest.raises(KernelFailure, match=says):
        gpu.measure(program(body), EXERCISE)


def test_a_result_that_torch_put_together_does_not_count_where_copying_is_the_exercise(gpu):
    joined = dataclasses.replace(EXERCISE, oracle=lambda x, y, alpha: torch.cat([y, x]), copies=False)
    with pytest.raises(KernelFailure, match="the result is what torch computes from data outside the kernels: `cat`"):
        gpu.measure(program("    run(x, y, alpha)\n    return torch.cat([y, x])"), joined)


def test_a_program_that_hangs_reaches_a_limit_and_the_next_is_measured(gpu, monkeypatch):
    monkeypatch.setattr(measure, "SECONDS", 6.0)
    with pytest.raises(LimitReached):
        gpu.measure(program("    while True:\n        pass"), EXERCISE)
    assert gpu.measure(program("    return run(x, y, alpha)"), EXERCISE).seconds > 0


def test_a_time_below_the_floor_is_the_graders_fault(gpu):
    far = dataclasses.replace(EXERCISE, speed=dataclasses.replace(SPEED, floor=lambda n: Cost(bytes=1e12)))
    with pytest.raises(SandboxError, match="less than the floor"):
        gpu.measure(program("    return run(x, y, alpha)"), far)
