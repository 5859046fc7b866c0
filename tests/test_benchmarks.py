"""The benchmarks that need a GPU, as far as they run without one."""

from contextlib import suppress
from pathlib import Path

import pytest

from mla_ref import interpreter

with suppress(ImportError):  # no Triton here: the tests that need it say so
    interpreter.prepare()

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))


@pytest.mark.parametrize(
    ("device", "model"),
    [
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("Tesla T4", "t4"),
        ("NVIDIA GeForce RTX 4090", "rtx4090"),
    ],
)
def test_records_bear_the_model_of_the_gpu(monkeypatch, device, model):
    import record

    monkeypatch.setattr(record, "device", lambda: device)
    assert record.gpu() == model


def test_lines_cross_between_two_batches_or_not_at_all():
    pytest.importorskip("triton", reason="the benchmark runs kernels")
    from crossover import crossover

    rows = [{"B": B, "naive_us": 100.0, "absorb_us": 10.0 * B} for B in (4, 8, 16, 32)]
    assert crossover(rows) == 10
    assert crossover(rows[:2]) is None


def test_predictions_are_those_of_this_gpu_or_none(monkeypatch):
    pytest.importorskip("triton", reason="the benchmark runs kernels")
    import crossover
    import record

    from mla_ref import DEVICES

    asked = []

    def of(device, measured):
        asked.append(device)
        return 2.0 if measured else 1.0

    monkeypatch.setattr(record, "device", lambda: "NVIDIA H100 80GB HBM3")
    assert crossover.predicted(of, scale=10, digits=1) == {"data sheet": 10, "measured ceilings": 20}
    monkeypatch.setattr(record, "device", lambda: "NVIDIA GeForce RTX 4090")
    assert crossover.predicted(of, digits=1) == {"data sheet": 1}
    assert asked == [DEVICES["h100"], DEVICES["h100"], DEVICES["rtx4090"]]
    monkeypatch.setattr(record, "device", lambda: "NVIDIA GeForce GTX 750")
    with pytest.raises(SystemExit, match="no data sheet of NVIDIA GeForce GTX 750"):
        crossover.predicted(of, digits=1)
