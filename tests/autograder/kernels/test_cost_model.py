"""The cost model's parts: what fits on a multiprocessor, and what the cache holds."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from autograder.kernels.cost_model import (
    L2,
    SECTOR,
    Constants,
    DoesNotFit,
    _put,
    host_time,
    resident_blocks,
    total_time,
)
from autograder.kernels.worker.recording import recording
from mla_ref.hardware.devices import DEVICES


def test_every_gpu_that_triton_compiles_for_has_a_multiprocessor():
    assert {name for name, device in DEVICES.items() if device.sm} == {
        name for name, device in DEVICES.items() if device.arch
    }


@pytest.mark.parametrize("device", ["t4", "mi300x", "a100_80gb", "h100"])
def test_a_block_may_have_all_the_shared_memory_that_a_block_can_have(device):
    most = DEVICES[device].shared_bytes
    compiled = {"warps": 4, "shared": most, "registers": 32}
    assert resident_blocks(compiled, DEVICES[device]) == 1
    with pytest.raises(DoesNotFit, match="shared memory"):
        resident_blocks({**compiled, "shared": most + 1}, DEVICES[device])


def test_too_many_warps_do_not_fit():
    compiled = {"warps": 64, "shared": 0, "registers": 32}
    with pytest.raises(DoesNotFit, match="1024"):
        resident_blocks(compiled, DEVICES["h100"])


def test_the_cache_holds_what_was_touched_and_not_the_rest_of_its_storage():
    l2, size, count = L2(50e6, foreign=0.7), 9.6e6, 300_000
    assert l2.bytes_moved({0: size}, {}, {0: (0, count - 1)})[1] == size
    assert l2.bytes_moved({0: size}, {}, {0: (count, 2 * count - 1)})[1] == size
    assert l2.bytes_moved({0: size}, {}, {0: (count * 3 // 2, count * 5 // 2 - 1)})[1] == size / 2
    assert l2.bytes_moved({0: 2 * size}, {})[1] == 0


def test_launches_that_touch_a_part_of_the_same_stretch_are_taken_to_touch_other_parts():
    l2, size = L2(50e6, foreign=0.7), 8e6
    every = {0: (0, 249_999)}
    for _ in range(8):
        assert l2.bytes_moved({0: size / 8}, {}, every)[1] == size / 8
    assert l2.bytes_moved({0: size / 8}, {}, every)[1] == 0


def test_no_more_is_found_in_the_cache_than_what_was_brought_there():
    l2, size, half = L2(50e6, foreign=0.7), 4e6, 125_000
    last = l2.bytes_moved({0: size + 32}, {}, {0: (0, 2 * half - 1)})[1]  # the second half, and the first sector
    first = l2.bytes_moved({0: size}, {}, {0: (0, half - 1)})[1]
    assert last + first >= 2 * size


def test_a_touch_of_one_number_brings_no_more_than_that_into_the_cache():
    l2 = L2(50e6, foreign=0.7)
    l2.bytes_moved({0: 2.0}, {})
    assert l2.bytes_moved({0: 200e6}, {})[1] == pytest.approx(200e6)
    l2.bytes_moved({0: 2.0}, {})
    assert l2.bytes_moved({0: 200e6}, {})[1] == pytest.approx(200e6)


def test_rows_that_were_touched_launch_by_launch_are_all_held():
    l2 = L2(50e6, foreign=0.7)
    for row in range(1000):
        assert l2.bytes_moved({0: 9600.0}, {}, {0: (300 * row, 300 * row + 299)})[1] == 9600
    assert l2.bytes_moved({0: 9.6e6}, {}, {0: (0, 299_999)})[1] == pytest.approx(0.0)


def view(tensor, storage=0):
    layout = {"shape": list(tensor.shape), "strides": list(tensor.stride())}
    return {"tensor": {"storage": storage, "dtype": "bf16", "offset": 0, **layout}}


def seconds(op, args, *shape):
    """Return the modelled time of an operation of torch, in `args` tensors, that makes a dense tensor of a shape."""
    packed = [[view(t) for t in a] if isinstance(a, tuple) else view(a) if hasattr(a, "stride") else a for a in args]
    made, size = view(torch.empty(shape, device="meta"), 1)["tensor"], 2 * torch.Size(shape).numel()
    event = {"op": [op, "default"], "args": packed, "kwargs": {}, "out": [made]}
    event |= {"reads": [[0, size]], "writes": [[1, size]]}
    return host_time(event, DEVICES["h100"], Constants.load(), L2(50e6, 0.5)).seconds


ROWS = torch.empty((4096, 8192), device="meta")
TURNED = torch.empty((8192, 4096), device="meta").t()


@pytest.mark.parametrize(
    ("op", "args", "shape"),
    [
        ("cat", lambda x: [(x[:2048], x[2048:])], (4096, 8192)),
        ("cat", lambda x: [(x[:, :4096], x[:, 4096:]), 1], (4096, 8192)),
        ("stack", lambda x: [(x[:2048], x[2048:])], (2, 2048, 8192)),
        ("constant_pad_nd", lambda x: [x, [0, 16]], (4096, 8208)),
        ("index_select", lambda x: [x, 0, torch.empty(4000, device="meta")], (4000, 8192)),
        ("repeat", lambda x: [x[:2048], [2, 1]], (4096, 8192)),
    ],
)
def test_torch_takes_as_long_for_what_is_transposed_whatever_shape_it_makes_of_it(op, args, shape):
    assert seconds(op, args(TURNED), *shape) > 0.95 * seconds("clone", [TURNED], 4096, 8192)
    assert seconds(op, args(ROWS), *shape) < 0.5 * seconds("clone", [TURNED], 4096, 8192)


def test_of_what_torch_puts_together_only_what_is_transposed_takes_long():
    both = seconds("cat", [(TURNED[:512], ROWS[512:])], 4096, 8192)
    assert seconds("clone", [ROWS], 4096, 8192) < both < 0.6 * seconds("clone", [TURNED], 4096, 8192)


def test_indices_that_lie_far_apart_do_not_make_a_look_up_slow():
    apart = torch.empty((4096, 64), device="meta")[:, 0]
    assert seconds("index_select", [ROWS, 0, apart], 4096, 8192) == seconds("clone", [ROWS], 4096, 8192)


def test_a_pass_that_makes_one_number_has_a_time():
    assert seconds("take", [TURNED, torch.empty(1, device="meta")], 1) < seconds("clone", [ROWS], 4096, 8192)


def told(call, *shapes, device="meta", dtype=torch.int64):
    """Return the modelled time of what torch does to tensors of such shapes, without launching it."""
    tensors = {str(n): torch.zeros(shape, dtype=dtype, device=device) for n, shape in enumerate(shapes)}
    with recording(tensors) as recorder:
        call(*tensors.values())
    events = [(event["op"][0], event, None) for event in recorder.events]
    _, steps = total_time(events, DEVICES["h100"], Constants.load(), [each["bytes"] for each in recorder.storages])
    return sum(step.seconds for step in steps)


@pytest.mark.parametrize("call", [lambda x: torch.stack([x, x]), lambda x: x.index_select(0, torch.arange(4096))])
def test_what_torch_stacks_or_looks_up_takes_the_time_of_its_bytes(call):
    def of(dtype):
        return told(call, (8192, 8192), dtype=dtype)

    assert of(torch.float32) > 1.7 * of(torch.bfloat16)


FEW = 1 << 15


@pytest.mark.parametrize(
    "call",
    [
        lambda x: x.as_strided((FEW, FEW), (1, 1)).zero_(),
        lambda x: x[:1].expand(FEW * FEW).fill_(3),
        lambda x: x[:FEW].expand(FEW, FEW).sum(0),
        lambda x: x.as_strided((FEW, FEW), (1, 1)).any(),
        lambda x: x.view(256, 256).index_put_([x[:FEW, None], x[None, :FEW]], x[0]),
    ],
)
def test_what_torch_goes_over_again_and_again_takes_its_time(call):
    assert told(call, 2 * FEW) > 1e-3


def test_what_torch_repeats_in_a_result_takes_the_time_of_the_result():
    whole = told(lambda x, y: x + y, (4096, 8192), (4096, 8192))
    assert told(lambda x, y: x + y, (4096, 8192), (8192,)) < whole
    assert told(lambda x, y: x + y.expand(4096, 8192), (4096, 8192), (8192,)) < whole
    assert told(lambda x, y: x.expand(64, 64, 64, 8192)[y, 0, 0], (8192,), 64) < whole


def test_distinct_numbers_are_found_by_sorting_however_few_they_are():
    sorting = told(lambda x: x.sort(), 1 << 20)
    assert told(lambda x: x.unique(), 1 << 20, device="cpu") > 0.9 * sorting


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 6)), max_size=30))
def test_stretches_that_were_touched_are_joined_and_counted_once(touched):
    spans, sectors, room = [], set(), 0.0
    for first, more in touched:
        room += _put(spans, (first, first + more))
        sectors.update(range(first, first + more + 1))
    assert sectors == {n for first, last in spans for n in range(first, last + 1)}
    assert room == SECTOR * len(sectors)
    assert all(one[1] + 1 < other[0] for one, other in pairwise(spans))
