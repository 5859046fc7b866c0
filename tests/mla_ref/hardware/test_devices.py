import json
from pathlib import Path

import pytest
import torch

from mla_ref import DEVICES, Cost, find_device


def test_a_gpu_without_bfloat16_says_so():
    t4 = DEVICES["t4"]
    assert t4.half_dtype == "float16"
    assert t4.rate() == 65e12
    with pytest.raises(ValueError, match="no data-sheet bfloat16 rate for T4, known: float16, float32"):
        Cost(1, 1).time(t4, torch.bfloat16)


def test_figures_nobody_measured_are_not_invented():
    with pytest.raises(ValueError, match="no measured bandwidth for L4"):
        Cost(1, 1).time(DEVICES["l4"], measured=True)


@pytest.mark.parametrize("device", DEVICES.values(), ids=DEVICES)
def test_every_device_names_its_sources_and_has_plausible_figures(device):
    assert device.source[""]
    assert set(device.source) <= {"", *vars(device)}
    assert 100e9 < device.dram_bandwidth < 10e12
    assert device.l2_bandwidth is None or device.l2_bandwidth > device.dram_bandwidth
    assert 50 < device.ridge() < 500
    for dtype, rate in device.measured_flops.items():
        assert rate < device.flops[dtype]


def test_the_l2_of_an_h200_is_what_its_driver_said():
    record = json.loads((Path(__file__).parents[3] / "benchmarks" / "reconstruction_h200.json").read_text())
    assert DEVICES["h200"].l2_bytes == record["l2_bytes"]


def test_a_gpu_is_found_by_the_name_its_driver_gives_it():
    for key, device in DEVICES.items():
        assert [find_device(name) for name in device.driver_names] == [key] * len(device.driver_names)
    assert find_device("NVIDIA H100 80GB HBM3") == "h100" and find_device("Tesla T4") == "t4"
    assert find_device("NVIDIA H100 PCIe") is None and find_device(None) is None


def test_what_triton_compiles_for_names_the_architecture():
    targets = {key: (device.target, device.arch) for key, device in DEVICES.items()}
    assert targets["h100"] == (("cuda", 90, 32), "sm_90")
    assert targets["b200"] == (("cuda", 100, 32), "sm_100")
    assert targets["mi300x"] == (("hip", "gfx942", 64), "gfx942")
    assert targets["ascend_910b"] == (None, None)


@pytest.mark.parametrize("device", [each for each in DEVICES.values() if each.target], ids=lambda each: each.name)
def test_a_multiprocessor_holds_the_largest_block(device):
    assert device.sm.warp_size == device.target[2]
    assert device.shared_bytes + device.sm.reserved_bytes <= device.sm.shared_bytes
    assert 1e9 < device.sm.clock < 3e9
