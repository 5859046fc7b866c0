"""What the README promises to an engineer runs."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


@pytest.fixture
def results(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import results

    return results


def test_the_example_runs(capsys):
    (example,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    exec(compile(example, "README.md", "exec"), {})
    assert 0 < float(capsys.readouterr().out) < 1


def test_every_command_it_names_exists():
    from autograder.cli import app

    commands = {command.callback.__name__ for command in app.registered_commands}
    named = set(re.findall(r"mla-course ([a-z]+)", README))
    assert named <= commands, named - commands


def test_its_results_are_those_on_record(results):
    assert f"{results.START}{results.tables()}{results.END}" in README


def test_one_command_puts_results_into_it(results, monkeypatch, tmp_path):
    copy = tmp_path / "README.md"
    monkeypatch.setattr(results, "README", copy)
    copy.write_text(README.replace("| --- |", "").replace(results.tables(), "old"))
    assert copy.read_text() != README
    results.main(["--write"])
    assert copy.read_text() == README
    copy.write_text("no tables here")
    with pytest.raises(SystemExit, match="has no pair of lines"):
        results.main(["--write"])


def test_the_page_on_hopper_has_what_is_on_record(results):
    import hopper_report

    page = hopper_report.PAGE.read_text()
    assert hopper_report.filled(page) == page
    assert page.count("| reached |") + page.count("| missed |") == 13


def test_a_peer_that_is_added_to_a_record_gets_its_place(results, monkeypatch):
    load = results.load

    def with_peer(name):
        found = load(name)
        for case in found.get("decode", []) if name == "decode_h100" else []:
            case["calls"]["Peer"] = {"cold_us": 1234.5}
        return found

    monkeypatch.setattr(results, "load", with_peer)
    assert results.tables().count("Peer 1234.5 µs") == len(results.DECODES)


def test_every_gpu_benchmark_on_record_is_run_by_make():
    records = {path.stem.removesuffix("_h100") for path in (ROOT / "benchmarks").glob("*_h100.json")}
    command = ["make", "-n", "bench", "bench-hopper"]
    asked = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    every, of_hopper = (set(names.split()) for names in re.findall(r"for each in ([a-z0-9_ ]+);", asked))
    assert every <= records <= every | of_hopper
    assert all((ROOT / "benchmarks" / f"{name}.py").is_file() for name in every | of_hopper)
