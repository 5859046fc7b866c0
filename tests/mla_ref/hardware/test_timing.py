import time

import pytest
import torch

from mla_ref import Timing, bench, measure_copy_bandwidth, measure_matmul_rate


def test_measures_seconds_and_counts_calls():
    calls = []

    def work():
        calls.append(time.sleep(2e-3))

    timing = bench(work, warmup=2, repeat=9, device="cpu")
    assert len(calls) == 11
    assert timing.n == 9
    assert 2e-3 <= timing.p20 <= timing.median <= timing.p80
    assert timing.noise == pytest.approx((timing.p80 - timing.p20) / timing.median)


def test_one_call_is_enough_and_none_is_not():
    timing = bench(lambda: None, warmup=0, repeat=1, device="cpu")
    assert timing.p20 == timing.median == timing.p80
    with pytest.raises(ValueError, match="repeat is 0"):
        bench(lambda: None, repeat=0)


def test_prints_with_units():
    assert str(Timing(1.5e-3, 1e-3, 2.0, 7)) == "1.5 ms (p20 1 ms, p80 2 s, n=7)"
    assert str(Timing(2.5e-6, 4e-9, 3e-6, 7)) == "2.5 us (p20 4 ns, p80 3 us, n=7)"


def test_machine_rates_have_a_plausible_order():
    assert 1e8 < measure_copy_bandwidth("cpu", nbytes=2**22) < 1e13
    assert 1e7 < measure_matmul_rate("cpu", torch.float32, size=128) < 1e15
