"""What is noted of a student's launches, and how far it is believed."""

import pytest
import torch

from autograder.judging.program import Cell
from autograder.kernels.explain import explained
from autograder.kernels.record import checked, kernels_of, record
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

def cast_before(x):
    return launch(x.double(), torch.empty(x.shape, dtype=torch.float64))

def padded(x):
    return launch(torch.nn.functional.pad(x, (0, 10)), torch.empty(160))[:150]

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

def looked_up(x):
    return launch(torch.arange(300.0)[x.abs().to(torch.int64)], torch.empty_like(x))

def read(x):
    return launch(x, torch.empty_like(x), block=64 if x[0].item() < 9e9 else 32)

kept = torch.ones(150)

def known_before(x):
    launch(x, torch.empty_like(x))
    return kept

def by_lengths(x):
    order = torch.tensor([1, 0]).cumsum(0) * 75 % 150 // 75
    return launch(x.view(2, 75)[order].flatten(), torch.empty_like(x))
""",
        required=True,
    )
]


@pytest.fixture
def x():
    return torch.randn(150)


def recorded(workers, entry, x):
    return explained(record(workers, PROGRAM, entry, {"x": x}), {"x"})


def test_notes_kernel_grid_arguments_and_result(workers, x):
    found = recorded(workers, "honest", x)
    (launch,) = found.recording.launches
    assert launch["kernel"] == "double" and launch["grid"] == [3, 1, 1] and launch["options"] == {"num_warps": 2}
    assert launch["args"]["n"] == {"value": 150} and launch["args"]["BLOCK"] == {"constant": 64}
    assert launch["args"]["x_ptr"]["tensor"]["shape"] == [150]
    storages = found.recording.storages
    assert storages[launch["args"]["x_ptr"]["tensor"]["storage"]] == {"bytes": 600, "input": "x"}
    assert found.recording.result[0]["storage"] == launch["args"]["out_ptr"]["tensor"]["storage"]
    assert found.recording.form == {"$view": 0} and found.reason is None


def test_chains_views_and_casts_are_part_of_a_program(workers, x):
    found = recorded(workers, "twice", x)
    assert found.reason is None and found.recording.result[0]["offset"] == 1
    found = recorded(workers, "cast", x)
    hosts = [event for event in found.recording.events if event["kind"] == "host"]
    assert [event["op"][0] for event in hosts] == ["_to_copy", "_to_copy"] and found.reason is None
    assert [event["reads"] for event in hosts] == [[[0, 600]], [[2, 1200]]]


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ("decoy", "the result is what torch computes from data outside the kernels: `mul`"),
        ("filled", "double takes as out_ptr what torch computes"),
        ("between", "double takes as x_ptr what torch computes from data outside the kernels: `add`"),
        ("looked_up", "double takes as x_ptr what torch computes from data outside the kernels: `abs` in line"),
        ("read", "numbers of a tensor are read in Python in line"),
        ("known_before", "the result is no tensor of this call"),
    ],
)
def test_what_is_computed_from_data_is_named(workers, x, entry, says):
    assert says in recorded(workers, entry, x).reason


@pytest.mark.parametrize("entry", ["by_lengths", "twice", "cast", "honest"])
def test_arithmetic_of_integers_that_no_data_reaches_is_not(workers, x, entry):
    assert recorded(workers, entry, x).reason is None


def test_data_is_not_moved_where_copying_is_the_exercise(workers, x):
    program = record(workers, PROGRAM, "padded", {"x": x})
    assert explained(program, {"x"}).reason is None
    found = explained(program, {"x"}, copies=False)
    assert "double takes as x_ptr what torch computes from data outside the kernels: `constant_pad_nd`" in found.reason
    whole = record(workers, PROGRAM, "cast_before", {"x": x})
    assert explained(whole, {"x"}, copies=False).reason is None


def test_a_call_without_launches_has_no_kernel_program(workers, x):
    with pytest.raises(KernelFailure, match="no Triton kernel"):
        kernels_of(PROGRAM, recorded(workers, "fallback", x).recording)


def test_sizes_cost_nothing(workers):
    huge = torch.empty(1 << 28, dtype=torch.float32, device="meta")
    recording = record(workers, PROGRAM, "honest", {"x": huge})
    assert recording.launches[0]["grid"] == [1 << 22, 1, 1]


LAUNCH = {"kind": "launch", "kernel": "k", "grid": [1, 1, 1], "args": {}, "options": {}}
VIEW = {"storage": 0, "offset": 0, "shape": [1], "strides": [1], "dtype": "fp32"}
HOST = {"kind": "host", "op": ["clone", "default"], "line": "", "args": [{"tensor": VIEW}], "kwargs": {}, "out": [VIEW],
        "flops": 0, "reads": [], "writes": []}  # fmt: skip
USE = {"kernel": "k", "function": "k", "defined": ["", 1], "source": "", "names": {}, "defaults": {}}


def notes(**changes):
    return {"events": [], "storages": [{"bytes": 600}], "uses": [], "result": [], "form": None, **changes}


@pytest.mark.parametrize(
    "change",
    [
        {"grid": [1, 1, "x"]},
        {"kernel": 5, "args": []},
        {"args": {"x_ptr": {"tensor": {"storage": 9, "offset": 0, "shape": [1], "strides": [1], "dtype": "fp32"}}}},
        {"args": {"x_ptr": {"tensor": {"storage": 0, "offset": 0, "shape": [999], "strides": [1], "dtype": "fp32"}}}},
        {"args": {"x_ptr": {"pickle": "b"}}},
        {"options": {"num_warps": 10**9}},
    ],
)
def test_forged_launches_are_refused(change):
    with pytest.raises(KernelFailure, match="malformed"):
        checked(notes(events=[LAUNCH | change]))


@pytest.mark.parametrize(
    "change",
    [
        {"op": ["from_file", "default"]},
        {"op": ["clone", "no_such"]},
        {"op": ["clone"]},
        {"args": [{"tensor": VIEW | {"shape": [999]}}]},
        {"args": [{"tensor": VIEW | {"offset": -1}}]},
        {"args": [{"tensor": VIEW | {"storage": 1}}]},
        {"out": [VIEW | {"dtype": "complex64"}]},
        {"args": "x"},
        {"reads": [[7, 1]]},
    ],
)
def test_forged_operations_are_refused(change):
    with pytest.raises(KernelFailure, match="malformed"):
        checked(notes(events=[HOST | change]))


@pytest.mark.parametrize(
    "change",
    [
        {"storages": [{"bytes": -1}]},
        {"storages": [{"bytes": 600, "content": torch.zeros(3, dtype=torch.uint8), "dtype": "fp32"}]},
        {"storages": [{"bytes": 600, "content": torch.zeros(600, dtype=torch.uint8)}]},
        {"storages": [{"bytes": 4, "input": "x", "content": torch.zeros(4, dtype=torch.uint8), "dtype": "fp32"}]},
        {"uses": [USE | {"names": {"F": []}}]},
        {"uses": [USE | {"source": None}]},
        {"form": {"$view": 0}},
        {"result": [VIEW], "form": {"$view": 0.0}},
        {"result": [VIEW], "form": {"$view": False}},
        {"form": torch.zeros(3)},
        {"result": [VIEW], "form": [{"$view": 0}, {"$view": 0}]},
    ],
)
def test_forged_storages_and_results_are_refused(change):
    with pytest.raises(KernelFailure, match="malformed"):
        checked(notes(**change))


def test_costs_follow_from_operands_and_not_from_what_is_said():
    (event,) = checked(notes(events=[HOST])).events
    assert (event["reads"], event["writes"]) == ([[0, 4]], [[0, 4]])


def seen(*shape, storage=0, dtype="fp32"):
    strides = torch.empty(shape, device="meta").stride()
    return {"tensor": {"storage": storage, "offset": 0, "shape": [*shape], "strides": [*strides], "dtype": dtype}}


AT, ROWS = seen(2, storage=1, dtype="i64"), seen(4, 2, storage=1, dtype="i64")


@pytest.mark.parametrize(
    ("op", "args", "read", "written"),
    [
        (["zeros_like", "default"], [seen(4, 8)], 0, 4),
        (["new_full", "default"], [seen(4, 8), [1], 0.5], 0, 4),
        (["index_copy_", "default"], [seen(4, 8), 1, AT, seen(4, 2)], 128 + 16 + 32, 32),
        (["index_copy_", "default"], [seen(4, 8), -2, AT, seen(2, 8)], 128 + 16 + 64, 64),
        (["index_put_", "default"], [seen(4, 8), [None, AT], seen(4, 2)], 128 + 16 + 32, 32),
        (["index_put_", "default"], [seen(4, 8), [ROWS, AT], seen(1)], 128 + 64 + 16 + 4, 32),
        (["index_put_", "default"], [seen(4, 8), [seen(4, 8, dtype="i1")], seen(1)], 128 + 32 + 4, 128),
        (["scatter_", "value"], [seen(4, 8), 1, ROWS, 0.5], 128 + 64, 32),
        (["triu_", "default"], [seen(4, 8), 1], 128, 128),
    ],
)
def test_what_an_operation_reads_and_writes(op, args, read, written):
    out = [] if op[0].endswith("_") else [VIEW]
    (event,) = checked(
        notes(events=[HOST | {"op": op, "args": args, "out": out}], storages=[{"bytes": 600}] * 2)
    ).events
    assert [sum(size for _, size in event[kind]) for kind in ("reads", "writes")] == [read, written]


@pytest.mark.parametrize("args", [[seen(4)], [seen(4), "x", AT], [seen(4), 9, AT], [seen(4), {"tensor": 1}, AT]])
def test_a_forged_target_of_an_operation_is_refused(args):
    with pytest.raises(KernelFailure, match="malformed"):
        checked(notes(events=[HOST | {"op": ["index_copy_", "default"], "args": args, "out": []}]))
