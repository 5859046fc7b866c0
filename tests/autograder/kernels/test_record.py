"""What is noted of a student's launches, and how far it is believed."""

import pytest
import torch

from autograder.judging.program import Cell
from autograder.kernels.prove import unexplained
from autograder.kernels.record import checked, kernels_of, record, result_storages
from autograder.kernels.replay import replay
from autograder.kernels.workers import KernelFailure

pytestmark = pytest.mark.xdist_group("workers")

PROGRAM = [
    Cell(
        "kernels",
        """
import torch
import triton
import triton.language as tl

@triton.jit
def double(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + offs, 2 * tl.load(x_ptr + offs, mask=offs < n), mask=offs < n)

def launch(x, out, block=64, **options):
    double[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, out, x.numel(), BLOCK=block, **options)
    return out

def honest(x):
    return launch(x, torch.empty_like(x), num_warps=2)

def twice(x):
    return launch(launch(x, torch.empty_like(x)), torch.empty_like(x))[1:]

def cast(x):
    return launch(x.double(), torch.empty(x.shape, dtype=torch.float64)).float()

def decoy(x):
    launch(x, torch.empty_like(x))
    return 2 * x

def filled(x):
    out = 2 * x
    launch(x[:1], out)
    return out

def fallback(x):
    try:
        raise RuntimeError
    except RuntimeError:
        return 2 * x

def between(x):
    out = launch(x, torch.empty_like(x))
    out += 1
    return launch(out, torch.empty_like(x))
""",
        required=True,
    )
]


@pytest.fixture
def x():
    return torch.randn(150)


def proof(workers, entry, x):
    recording = record(workers, PROGRAM, entry, {"x": x}, execute=True)
    source = kernels_of(PROGRAM, recording)
    replayed = replay(workers, source, recording, {"x": x}, contents=result_storages(recording))
    return recording, replayed, unexplained(recording, replayed, {"x": x})


def made_on_host(recording, replayed):
    """Return what kernels read that is neither an argument nor a kernel's output: bytes, reader, its argument."""
    return [
        (recording.storages[number]["bytes"], launch["kernel"], name)
        for launch, counts in zip(recording.launches, replayed.counts, strict=True)
        for number in counts["unwritten"]
        for name, value in launch["args"].items()
        if value.get("tensor", {}).get("storage") == number and "input" not in recording.storages[number]
    ]


def test_notes_kernel_grid_arguments_and_result(workers, x):
    recording, _, reason = proof(workers, "honest", x)
    (launch,) = recording.launches
    assert launch["kernel"] == "double" and launch["grid"] == [3, 1, 1] and launch["options"] == {"num_warps": 2}
    assert launch["args"]["n"] == {"value": 150} and launch["args"]["BLOCK"] == {"constant": 64}
    assert launch["args"]["x_ptr"]["tensor"]["shape"] == [150]
    assert recording.storages[launch["args"]["x_ptr"]["tensor"]["storage"]]["input"] == "x"
    assert recording.result[0]["storage"] == launch["args"]["out_ptr"]["tensor"]["storage"]
    assert reason is None


def test_chains_and_views_are_explained(workers, x):
    recording, replayed, reason = proof(workers, "twice", x)
    assert reason is None and recording.result[0]["offset"] == 1
    assert made_on_host(recording, replayed) == []


@pytest.mark.parametrize(
    ("entry", "says"),
    [("decoy", "not written by a kernel"), ("filled", "149 of 150 elements"), ("cast", "not written by a kernel")],
)
def test_results_that_no_kernel_wrote_are_not_explained(workers, x, entry, says):
    assert says in proof(workers, entry, x)[2]


def test_a_call_without_launches_has_no_kernel_program(workers, x):
    with pytest.raises(KernelFailure, match="no Triton kernel"):
        proof(workers, "fallback", x)


def test_what_the_host_makes_is_named(workers, x):
    recording, replayed, _ = proof(workers, "cast", x)
    assert [event["op"] for event in recording.events if event["kind"] == "host"] == ["_to_copy", "_to_copy"]
    assert made_on_host(recording, replayed) == [(1200, "double", "x_ptr")]


def test_a_change_between_launches_is_carried_over(workers, x):
    recording, _, reason = proof(workers, "between", x)
    assert reason is None
    assert [number for number, _ in recording.launches[1]["content"]] == [1, 2]


def test_sizes_cost_nothing(workers):
    huge = torch.empty(1 << 28, dtype=torch.float32, device="meta")
    recording = record(workers, PROGRAM, "honest", {"x": huge}, execute=False)
    assert recording.launches[0]["grid"] == [1 << 22, 1, 1]


@pytest.mark.parametrize(
    "change",
    [
        {"grid": [1, 1, "x"]},
        {"kernel": 5, "args": []},
        {"args": {"x_ptr": {"tensor": {"storage": 9, "offset": 0, "shape": [1], "strides": [1], "dtype": "fp32"}}}},
        {"args": {"x_ptr": {"tensor": {"storage": 0, "offset": 0, "shape": [999], "strides": [1], "dtype": "fp32"}}}},
        {"args": {"x_ptr": {"pickle": "b"}}},
        {"options": {"num_warps": 10**9}},
        {"content": [[0, torch.zeros(3, dtype=torch.uint8)]]},
    ],
)
def test_forged_notes_are_refused(change):
    launch = {"kind": "launch", "kernel": "k", "grid": [1, 1, 1], "args": {}, "options": {}, "content": []}
    notes = {"events": [launch | change], "storages": [{"bytes": 600}], "result": []}
    with pytest.raises(KernelFailure, match="malformed"):
        checked(notes)
