"""A GPU is calibrated from times measured on it: what is fitted, what is written, and who takes it."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from autograder.classroom import scale
from autograder.cli import app, main
from autograder.course.course import Course
from autograder.kernels.cost_model import L2, Constants, host_time
from mla_ref.hardware.devices import DEVICES, HARDWARE, HardwareError, hardware_file

ROOT = Path(__file__).parents[1]
RECORD = ROOT / "benchmarks" / "model_measured_h200.json"


@pytest.fixture(scope="module")
def benchmarks():
    """The folder of benchmarks, from which modules can be imported."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "benchmarks"))
        yield patch


@pytest.fixture(scope="module")
def counted(benchmarks):
    """What was counted of the sweep's kernels of two tasks, those of small sizes."""
    import calibration
    import model_validation

    small = ("1Mi", "128x7168", "64x128", "1024x4096")
    cases = [case for case in calibration.sweep() if case[0] in ("add", "rope") and case[1] in small]
    return model_validation.counted(cases, "h200")


@pytest.fixture
def bench(benchmarks, monkeypatch, counted, tmp_path):
    """A function that calibrates from a record in one process: exit status, what it printed, the file."""
    import model_validation

    monkeypatch.setattr(model_validation, "counted", lambda cases, device, step: counted)
    monkeypatch.setenv("MLA_COURSE", str(ROOT))

    def run(record, *options):
        path, output = tmp_path / "record.json", tmp_path / "hardware.json"
        path.write_text(record if isinstance(record, str) else json.dumps(record))
        result = CliRunner().invoke(
            app, ["bench", "--calibrate", "--from", str(path), "--output", str(output), *options]
        )
        if result.exception and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result.stdout, json.loads(output.read_text())

    return run


def record_of(counted, constants=None):
    """The recorded times of an H200 for these cases; or those of a made-up one that has the constants."""
    import model_fit

    record = json.loads(RECORD.read_text())
    rows = [row for row in record["cases"] if (row["task"], row["size"], row["variant"]) in counted]
    if constants:
        times = model_fit.microseconds(model_fit.launched(counted), constants, DEVICES["h200"])
        rows = [row | {"graph": {"us": times[row["task"], row["size"], row["variant"]]}} for row in rows]
    return record | {"cases": rows}


@pytest.mark.thorough
def test_a_gpu_that_is_slower_than_the_model_thinks_is_found_out(counted, bench):
    known = Constants.load()
    slower = dataclasses.replace(known, launch=2 * known.launch, dram=known.dram / 2, host=known.host / 2)
    text, found = bench(record_of(counted, slower))
    errors = found["median_error"]
    assert found["taken"] and errors["task_left_out"] < errors["before"] / 2 and errors["fitted"] < 0.02
    assert found["constants"]["launch"] == pytest.approx(slower.launch, rel=0.1)
    assert "launch: " in text and "MLA_HARDWARE=" in text


@pytest.mark.thorough
def test_on_recorded_times_a_fit_leaves_less_error_than_guesses_on_tasks_that_it_has_not_seen(counted, benchmarks):
    import calibration
    import model_fit

    measured = {(c["task"], c["size"], c["variant"]): c["graph"]["us"] for c in record_of(counted)["cases"]}
    _, report = calibration.calibrate(model_fit.launched(counted), measured, "h200", Constants())
    assert report["taken"]
    assert report["mean_error"]["fitted"] < report["mean_error"]["task_left_out"] < report["mean_error"]["before"]


@pytest.mark.thorough
def test_a_fit_that_does_not_help_leaves_the_constants(counted, bench):
    text, found = bench(record_of(counted, Constants.load()))
    assert not found["taken"] and found["changed"] == {} and "stay as they are" in text
    assert Constants(**found["constants"]) == Constants.load()


def test_judge_and_roofline_take_the_file_and_other_gpus_do_not(counted, bench, monkeypatch, tmp_path):
    slower = dataclasses.replace(Constants.load(), launch=2 * Constants.load().launch)
    record = record_of(counted, slower) | {"ceilings": {"measured_dram_bandwidth": 4e12}}
    bench(record, "--json")
    path = tmp_path / "hardware.json"
    lesson = (Course.at(ROOT), "04_fused_norm_rope")
    monkeypatch.setenv(HARDWARE, str(path))
    assert hardware_file()["ceilings"] == {"measured_dram_bandwidth": 4e12}
    assert Constants.load("h200").launch > 1.5 * Constants.load("h100").launch
    assert Constants.load("h100") == Constants.load()
    assert path in scale._files.__wrapped__(*lesson)  # else verdicts of before would stand
    monkeypatch.delenv(HARDWARE)
    assert path not in scale._files.__wrapped__(*lesson) and Constants.load("h200") == Constants.load()


@pytest.mark.parametrize("content", ["{", "[]", '{"hardware": "h300"}', '{"hardware": "h200", "ceilings": {"sms": 1}}'])
def test_a_file_that_is_none_is_named(content, monkeypatch, tmp_path):
    path = tmp_path / "other.json"
    path.write_text(content)
    monkeypatch.setenv(HARDWARE, str(path))
    with pytest.raises(HardwareError, match=r"other\.json"):
        hardware_file()


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("record", "said"),
    [
        ("{}", "is no record"),
        ('{"device": "NVIDIA H300", "date": "", "versions": {}, "cases": []}', "NVIDIA H300 is not in the table"),
        ('{"device": "NVIDIA H200", "date": "", "versions": {}, "cases": []}', "0 cases of the sweep"),
    ],
)
def test_a_record_of_no_use_is_refused(record, said, bench):
    with pytest.raises(HardwareError, match=said):
        bench(record)


def test_without_a_gpu_and_a_record_one_sentence_says_so(benchmarks, monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr("sys.argv", ["mla-course", "--course", str(ROOT), "bench", "--calibrate"])
    monkeypatch.setenv("MLA_COURSE", "")  # put back afterwards: --course sets it
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2
    assert "this needs a GPU" in capsys.readouterr().err


def test_faster_memory_does_not_speed_a_pass_that_converts_as_much():
    def seconds(device, written):
        event = {"op": "to", "reads": [[0, 2e9]], "writes": [[1, written]]}
        return host_time(event, device, Constants.load(), L2(50e6, 0.5)).seconds

    h100 = DEVICES["h100"]
    faster = dataclasses.replace(h100, dram_bandwidth=4 * h100.dram_bandwidth)
    assert seconds(h100, 2e9) > 3 * seconds(faster, 2e9)
    assert seconds(h100, 4e9) < 2 * seconds(faster, 4e9)
