"""The cost model's parts: what fits on a multiprocessor, and what the cache holds."""

import pytest

from autograder.kernels.cost_model import L2, DoesNotFit, resident_blocks
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
    l2 = L2(50e6, foreign=0.7)
    assert l2.bytes_moved({0: 9e6}, {}, {0: (0, 99)})[1] == 9e6
    assert l2.bytes_moved({0: 9e6}, {}, {0: (100, 199)})[1] == 9e6
    assert l2.bytes_moved({0: 9e6}, {}, {0: (150, 249)})[1] == 4.5e6
    assert l2.bytes_moved({0: 18e6}, {})[1] == 0


def test_a_touch_of_one_number_brings_no_more_than_that_into_the_cache():
    l2 = L2(50e6, foreign=0.7)
    l2.bytes_moved({0: 2.0}, {})
    assert l2.bytes_moved({0: 200e6}, {})[1] == pytest.approx(200e6)
    l2.bytes_moved({0: 2.0}, {})
    assert l2.bytes_moved({0: 200e6}, {})[1] == pytest.approx(200e6)


def test_rows_that_were_touched_launch_by_launch_are_all_held():
    l2 = L2(50e6, foreign=0.7)
    for row in range(1000):
        assert l2.bytes_moved({0: 9e3}, {}, {0: (row, row)})[1] == 9e3
    assert l2.bytes_moved({0: 9e6}, {}, {0: (0, 999)})[1] == pytest.approx(0.0)
